//! Pages from targets over HTTP/1.1: a whole body, or the reason why there is none.
//!
//! Connections are kept and reused. A body that was cut short, came too late or is too long gives no bytes at all: a failed
//! scrape is a record with its status, never half a page (DESIGN D4).

use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use schemas::status::ScrapeStatus;
use std::error::Error;
use std::str::FromStr;
use std::time::Duration;

/// Where a page is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address(Uri);

impl Address {
    /// The address as text.
    pub fn as_text(&self) -> String {
        self.0.to_string()
    }
}

/// A text that is no address of a page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// Not `http://host:port/path`.
    #[error("`{0}` is no address of a page; write http://host:9400/metrics")]
    NotHttp(String),
    /// A name and a password, which would be printed wherever the address is.
    #[error("the address of a page has no room for a name and a password; write http://host:9400/metrics")]
    Credentials,
    /// TLS is not there yet.
    #[error("`{0}`: pages over https are not read yet; scrape the exporter over http on the node itself")]
    Https(String),
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
        if text.starts_with("https://") {
            return Err(BadAddress::Https(text.to_owned()));
        }
        let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = whole.parse().map_err(|_| bad())?;
        if uri.scheme_str() != Some("http") || uri.host().is_none_or(str::is_empty) {
            return Err(bad());
        }
        if uri.path_and_query().is_some_and(|p| p.as_str() != "/") {
            return Ok(Address(uri));
        }
        format!("{}/metrics", whole.trim_end_matches('/')).parse().map(Address).map_err(|_| bad())
    }
}

/// What an answer brought.
#[derive(Debug, Clone)]
pub struct Body {
    /// The whole body.
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
            ScrapeFault::Refused { .. } => ScrapeStatus::Refused,
            ScrapeFault::Http { status: 400..=499, .. } => ScrapeStatus::Http4xx,
            ScrapeFault::Http { status: 500..=599, .. } => ScrapeStatus::Http5xx,
            // A redirect or the like: an answer, but no page.
            ScrapeFault::Http { .. } => ScrapeStatus::ParseError,
            ScrapeFault::TooLarge { .. } => ScrapeStatus::TooLarge,
        }
    }
}

/// A client for all targets. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Scraper {
    client: Client<HttpConnector, Empty<Bytes>>,
    timeout: Duration,
    max_body_bytes: usize,
}

impl Scraper {
    /// A client that waits `timeout` for a whole answer of at most `max_body_bytes`.
    pub fn new(timeout: Duration, max_body_bytes: usize) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(timeout));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(300))
            .pool_max_idle_per_host(1)
            .build(connector);
        Scraper { client, timeout, max_body_bytes }
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
        let request = Request::get(target.0.clone())
            .header(header::ACCEPT, "text/plain;version=0.0.4;q=1,*/*;q=0.1")
            .header(header::USER_AGENT, concat!("strandline-ingest/", env!("CARGO_PKG_VERSION")))
            .body(Empty::new())
            .map_err(|e| refused(&e, "no request could be made"))?;
        let response = self.client.request(request).await.map_err(|e| {
            let connect = if e.is_connect() { "cannot connect; is the exporter running?" } else { "the connection broke" };
            refused(&e, connect)
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
        let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).map(str::to_owned);
        match Limited::new(response.into_body(), self.max_body_bytes).collect().await {
            Ok(body) => Ok(Body { bytes: body.to_bytes(), content_type }),
            Err(e) if e.is::<LengthLimitError>() => Err(too_large()),
            Err(e) => Err(refused(&*e, "the page was cut short")),
        }
    }
}

/// The cause at the end of a chain: hyper's outer errors say little.
fn innermost(error: &dyn Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Answers every connection with `answer`, then holds it open or closes it.
    async fn server(answer: &'static str, hold: bool) -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let _ = stream.read(&mut [0; 4096]).await;
                    let _ = stream.write_all(answer.as_bytes()).await;
                    if hold {
                        std::future::pending::<()>().await;
                    }
                });
            }
        });
        address
    }

    async fn get(answer: &'static str, hold: bool) -> Result<Body, ScrapeFault> {
        let target = server(answer, hold).await;
        Scraper::new(Duration::from_millis(300), 50).get(&target).await
    }

    #[track_caller]
    fn check(result: Result<Body, ScrapeFault>, status: ScrapeStatus, words: &str) {
        let fault = result.unwrap_err();
        assert_eq!(fault.status(), status, "{fault}");
        assert!(fault.to_string().contains(words), "{fault}");
    }

    #[tokio::test]
    async fn a_whole_page_comes_with_its_type() {
        let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 5\r\n\r\nup 1\n";
        let body = get(answer, true).await.unwrap();
        assert_eq!((body.bytes.as_ref(), body.content_type.as_deref()), (&b"up 1\n"[..], Some("text/plain; charset=utf-8")));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nup 1\n\r\n0\r\n\r\n";
        assert_eq!(get(chunked, true).await.unwrap().bytes.as_ref(), b"up 1\n");
    }

    #[tokio::test]
    async fn half_a_page_is_no_page() {
        let cut = "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nup 1\nup 2";
        check(get(cut, false).await, ScrapeStatus::Refused, "the page was cut short");
        check(get(cut, true).await, ScrapeStatus::Timeout, "no whole answer");
        let cut = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nup 1\n\r\n";
        check(get(cut, false).await, ScrapeStatus::Refused, "the page was cut short");
    }

    #[tokio::test]
    async fn every_failure_has_its_status() {
        check(get("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", true).await, ScrapeStatus::Http4xx, "404");
        check(get("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", true).await, ScrapeStatus::Http5xx, "500");
        let part = "HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\n\r\nup 1\n";
        check(get(part, true).await, ScrapeStatus::ParseError, "206");
        check(get("HTTP/1.1 302 Moved\r\nContent-Length: 0\r\n\r\n", true).await, ScrapeStatus::ParseError, "302");
        check(get("HTTP/1.1 200 OK\r\nContent-Length: 51\r\n\r\n", true).await, ScrapeStatus::TooLarge, "larger than 50");
        let endless = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n\
                       0123456789012345678901234567890123456789012345678901234567890123\r\n";
        check(get(endless, true).await, ScrapeStatus::TooLarge, "larger than 50");
        check(get("", false).await, ScrapeStatus::Refused, "");
        check(get("nonsense\r\n\r\n", false).await, ScrapeStatus::Refused, "the connection broke");
        check(get("", true).await, ScrapeStatus::Timeout, "");
        let nobody = Scraper::new(Duration::from_millis(300), 50).get(&"127.0.0.1:1".parse().unwrap()).await;
        check(nobody, ScrapeStatus::Refused, "is the exporter running?");
    }

    #[test]
    fn addresses_are_checked_and_completed() {
        let text = |t: &str| t.parse::<Address>().map(|a| a.as_text()).map_err(|e| e.to_string());
        assert_eq!(text("node-1:9400").unwrap(), "http://node-1:9400/metrics");
        assert_eq!(text("http://node-1:9400/").unwrap(), "http://node-1:9400/metrics");
        assert_eq!(text("http://node-1:9400/other?x=1").unwrap(), "http://node-1:9400/other?x=1");
        assert!(text("https://node-1").unwrap_err().contains("not read yet"));
        for secret in ["http://me:hush@node-1:9400/metrics", "me:hush@node-1", "https://me:hush@node-1/"] {
            let refused = text(secret).unwrap_err();
            assert!(refused.contains("password") && !refused.contains("hush"), "{refused}");
        }
        for bad in ["", "http://", "ftp://x", "a b"] {
            assert!(text(bad).unwrap_err().contains("write http://host:9400/metrics"), "{bad}");
        }
    }
}
