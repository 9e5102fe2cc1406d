//! Pages from targets over HTTP/1.1: a whole body, or the reason why there is none.
//!
//! Connections are kept and reused. A body that was cut short, came too late or is too long gives no bytes at all: a failed
//! scrape is a record with its status, never half a page (DESIGN D4). Packed bodies are unpacked within the same limit.
//!
//! * [`Address`]: where a page is; [`Access`] (`access`): how it is asked for, TLS and credentials.

mod access;

pub use access::{Access, AccessError, Authorization, BasicAuth, Secret, TlsConfig};

use crate::gzip;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::header::{self, HeaderMap};
use hyper::{Request, StatusCode, Uri};
use schemas::status::ScrapeStatus;
use std::error::Error;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// What is asked for: OpenMetrics before text, as Prometheus does.
const ACCEPT: &str = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                      text/plain;version=0.0.4;q=0.3,*/*;q=0.1";

/// Where a page is, and how it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    uri: Uri,
    access: Option<Arc<Access>>,
}

impl Address {
    /// The address as text.
    pub fn as_text(&self) -> String {
        self.uri.to_string()
    }

    /// Its host, as the address has it.
    pub fn host(&self) -> &str {
        self.uri.host().unwrap_or_default()
    }

    /// The same page, asked for in this way.
    #[must_use]
    pub fn with(self, access: Arc<Access>) -> Self {
        Address { access: Some(access), ..self }
    }
}

/// A text that is no address of a page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// Neither `http://host:port/path` nor `https://`.
    #[error("`{0}` is no address of a page; write http://host:9400/metrics")]
    NotHttp(String),
    /// A name and a password, which would be printed wherever the address is.
    #[error("the address of a page has no room for a name and a password; give them as `basic_auth`")]
    Credentials,
}

impl FromStr for Address {
    type Err = BadAddress;

    /// `host:port` and `http://host:port` get the path `/metrics`.
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress::NotHttp(text.to_owned());
        let authority = text.split_once("://").map_or(text, |(_, rest)| rest);
        if authority.split(['/', '?', '#']).next().is_some_and(|host| host.contains('@')) {
            return Err(BadAddress::Credentials);
        }
        let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = whole.parse().map_err(|_| bad())?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
            return Err(bad());
        }
        let uri = if uri.path_and_query().is_some_and(|p| p.as_str() != "/") {
            uri
        } else {
            format!("{}/metrics", whole.trim_end_matches('/')).parse().map_err(|_| bad())?
        };
        Ok(Address { uri, access: None })
    }
}

/// What an answer brought.
#[derive(Debug, Clone)]
pub struct Body {
    /// The whole body, unpacked.
    pub bytes: Bytes,
    /// The answer's content type.
    pub content_type: Option<String>,
}

/// Why a target gave no body.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeFault {
    /// No whole answer in time.
    #[error("no whole answer from {target} in {timeout:?}; check its exporter or raise `timeout`")]
    Timeout {
        /// Address.
        target: String,
        /// The limit.
        timeout: Duration,
    },
    /// No connection, or one that broke before the whole answer.
    #[error("{target}: {reason}")]
    Refused {
        /// Address.
        target: String,
        /// What happened.
        reason: String,
    },
    /// An answer that is no page.
    #[error("{target} answered {status}")]
    Http {
        /// Address.
        target: String,
        /// HTTP status.
        status: u16,
    },
    /// An answer whose packing is damaged or was not asked for.
    #[error("the page of {target} cannot be unpacked: {reason}")]
    Packing {
        /// Address.
        target: String,
        /// What happened.
        reason: String,
    },
    /// What is needed to ask cannot be had: a file of a secret or of a certificate.
    #[error("cannot ask {target}")]
    Access {
        /// Address.
        target: String,
        /// Why.
        #[source]
        source: AccessError,
    },
    /// A body above the limit.
    #[error("the page of {target} is larger than {limit} bytes; raise `max_body_bytes` if that is right")]
    TooLarge {
        /// Address.
        target: String,
        /// The limit.
        limit: usize,
    },
}

impl ScrapeFault {
    /// The status of the round.
    pub fn status(&self) -> ScrapeStatus {
        match self {
            ScrapeFault::Timeout { .. } => ScrapeStatus::Timeout,
            // Without its secrets nobody is asked: no answer, as where nobody listens.
            ScrapeFault::Refused { .. } | ScrapeFault::Access { .. } => ScrapeStatus::Refused,
            ScrapeFault::Http { status: 400..=499, .. } => ScrapeStatus::Http4xx,
            ScrapeFault::Http { status: 500..=599, .. } => ScrapeStatus::Http5xx,
            // A redirect or the like: an answer, but no page.
            ScrapeFault::Http { .. } | ScrapeFault::Packing { .. } => ScrapeStatus::ParseError,
            ScrapeFault::TooLarge { .. } => ScrapeStatus::TooLarge,
        }
    }
}

/// A client for all targets. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Scraper {
    /// For addresses that have no access of their own.
    default: Arc<Access>,
    timeout: Duration,
    max_body_bytes: usize,
}

impl Scraper {
    /// A client that waits `timeout` for a whole answer of at most `max_body_bytes`, packed and unpacked.
    pub fn new(timeout: Duration, max_body_bytes: usize) -> Self {
        Scraper { default: Arc::default(), timeout, max_body_bytes }
    }

    /// One page.
    pub async fn get(&self, target: &Address) -> Result<Body, ScrapeFault> {
        match tokio::time::timeout(self.timeout, self.fetch(target)).await {
            Ok(result) => result,
            Err(_) => Err(ScrapeFault::Timeout { target: target.as_text(), timeout: self.timeout }),
        }
    }

    async fn fetch(&self, target: &Address) -> Result<Body, ScrapeFault> {
        let refused = |error: &dyn Error, what: &str| ScrapeFault::Refused {
            target: target.as_text(),
            reason: format!("{what}: {}", innermost(error)),
        };
        let access = target.access.as_ref().unwrap_or(&self.default);
        let unable = |source| ScrapeFault::Access { target: target.as_text(), source };
        let open = access.open(target.uri.scheme_str() == Some("https")).map_err(unable)?;
        let mut request = Request::get(target.uri.clone())
            .header(header::ACCEPT, ACCEPT)
            .header(header::USER_AGENT, concat!("strandline-ingest/", env!("CARGO_PKG_VERSION")));
        if access.enable_compression {
            request = request.header(header::ACCEPT_ENCODING, "gzip");
        }
        if let Some(authorization) = open.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::new()).map_err(|e| refused(&e, "no request could be made"))?;
        let response = open.client.request(request).await.map_err(|e| {
            let what = match () {
                () if is_tls(&e) => "TLS failed; check `tls_config`, and the exporter's certificate",
                () if e.is_connect() => "cannot connect; is the exporter running?",
                () => "the connection broke",
            };
            refused(&e, what)
        })?;
        let status = response.status().as_u16();
        // Part of a page is no page.
        if !response.status().is_success() || response.status() == StatusCode::PARTIAL_CONTENT {
            return Err(ScrapeFault::Http { target: target.as_text(), status });
        }
        let too_large = || ScrapeFault::TooLarge { target: target.as_text(), limit: self.max_body_bytes };
        let stated = response.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
        if stated.is_some_and(|n| n > self.max_body_bytes) {
            return Err(too_large());
        }
        let content_type = text_of(response.headers(), header::CONTENT_TYPE);
        let encoding = text_of(response.headers(), header::CONTENT_ENCODING).unwrap_or_default().to_ascii_lowercase();
        let bytes = match Limited::new(response.into_body(), self.max_body_bytes).collect().await {
            Ok(body) => body.to_bytes(),
            Err(e) if e.is::<LengthLimitError>() => return Err(too_large()),
            Err(e) => return Err(refused(&*e, "the page was cut short")),
        };
        let packing = |reason| ScrapeFault::Packing { target: target.as_text(), reason };
        let bytes = match &*encoding {
            "" | "identity" => bytes,
            "gzip" | "x-gzip" => match gzip::unpack(&bytes, self.max_body_bytes) {
                Ok(Some(page)) => page.into(),
                Ok(None) => return Err(too_large()),
                Err(error) => return Err(packing(format!("damaged gzip: {error}"))),
            },
            other => return Err(packing(format!("content encoding `{}` was not asked for", other.escape_debug()))),
        };
        Ok(Body { bytes, content_type })
    }
}

fn text_of(headers: &HeaderMap, name: header::HeaderName) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// The cause at the end of a chain: hyper's outer errors say little.
fn innermost(error: &dyn Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

/// Whether TLS is in a chain.
fn is_tls(error: &(dyn Error + 'static)) -> bool {
    // What an I/O error wraps is no source of it: it stands in its place.
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(|e| e.get_ref());
    error.is::<rustls::Error>() || wrapped.is_some_and(|e| is_tls(e)) || error.source().is_some_and(is_tls)
}

#[cfg(test)]
mod tests;
