//! How targets are asked: TLS, credentials, packing. The names of the settings are those of Prometheus' scrape configuration.
//!
//! Files of secrets and certificates are looked at for each request and read again where they have changed, so that what is
//! rotated under a running agent holds from the next round on. Nothing here prints a secret.

use crate::stamp::{self, Stamp};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderValue;
use hyper::{Request, Response};
use hyper_rustls::{ConfigBuilderExt, FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, CryptoProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use serde::{Deserialize, Deserializer, de};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Largest file of a secret or of certificates.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A secret that stands in the configuration. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A secret.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

impl<'de> Deserialize<'de> for Secret {
    /// Errors do not show what was found in its place: `password: 12345` is a secret too.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let shown = || de::Error::custom("a secret is a text; put it in quotes");
        match serde_yaml_ng::Value::deserialize(from).map_err(|_| shown())? {
            serde_yaml_ng::Value::String(text) => Ok(Secret(text)),
            _ => Err(shown()),
        }
    }
}

type PlainClient = Client<HttpConnector, Empty<Bytes>>;
type TlsClient = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// A user name and a password.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BasicAuth {
    /// User name.
    pub username: String,
    /// Password.
    pub password: Option<Secret>,
    /// File that holds it.
    pub password_file: Option<PathBuf>,
}

/// An `Authorization` header.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Authorization {
    /// Its scheme; `Bearer` where none is given.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Credentials.
    pub credentials: Option<Secret>,
    /// File that holds them.
    pub credentials_file: Option<PathBuf>,
}

/// Settings of TLS.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct TlsConfig {
    /// Certificates of the authorities that sign exporters' certificates (PEM); without it those of the system.
    pub ca_file: Option<PathBuf>,
    /// Our own certificate (PEM), for exporters that ask for one.
    pub cert_file: Option<PathBuf>,
    /// Its key (PEM).
    pub key_file: Option<PathBuf>,
    /// The name that the exporter's certificate must have, where that is not the address's host.
    pub server_name: Option<String>,
    /// Take any certificate: the connection is private only from those who do not answer in the exporter's place.
    #[serde(default)]
    pub insecure_skip_verify: bool,
}

/// Why a target cannot be asked in the way that is configured.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Settings that do not go together.
    #[error("{0}")]
    Settings(&'static str),
    /// A file that cannot be read.
    #[error("cannot read the {key} {path}; does it exist, and may this process read it?")]
    File {
        /// The setting.
        key: &'static str,
        /// Path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file without what it should hold.
    #[error("the {key} {path} holds no {what}")]
    Holds {
        /// The setting.
        key: &'static str,
        /// Path.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// TLS cannot be set up.
    #[error("cannot set up TLS; check `tls_config`")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// How a target is asked. Targets that share one share its connections.
pub struct Access {
    basic_auth: Option<BasicAuth>,
    authorization: Option<Authorization>,
    tls: TlsConfig,
    /// Whether packed pages are asked for.
    pub(super) enable_compression: bool,
    plain: PlainClient,
    opened: Mutex<Opened>,
}

/// What was read from files, and what was made of it.
#[derive(Default)]
struct Opened {
    authorization: Option<(Vec<Stamp>, HeaderValue)>,
    tls: Option<(Vec<Stamp>, TlsClient)>,
}

/// What one request needs.
pub(super) struct Open {
    pub client: HttpClient,
    pub authorization: Option<HeaderValue>,
}

/// A client, with TLS or without.
pub(super) enum HttpClient {
    Plain(PlainClient),
    Tls(TlsClient),
}

impl HttpClient {
    pub async fn request(&self, request: Request<Empty<Bytes>>) -> Result<Response<Incoming>, Error> {
        match self {
            HttpClient::Plain(client) => client.request(request).await,
            HttpClient::Tls(client) => client.request(request).await,
        }
    }
}

impl Access {
    /// An access with these settings. Files are read with the first request.
    ///
    /// Errors: settings that do not go together.
    pub fn new(
        basic_auth: Option<BasicAuth>,
        authorization: Option<Authorization>,
        tls: TlsConfig,
        enable_compression: bool,
    ) -> Result<Self, AccessError> {
        let settings = |wrong: bool, what| if wrong { Err(AccessError::Settings(what)) } else { Ok(()) };
        settings(basic_auth.is_some() && authorization.is_some(), "give `basic_auth` or `authorization`, not both")?;
        if let Some(basic) = &basic_auth {
            settings(basic.username.contains(':'), "a `username` of `basic_auth` has no colon")?;
            settings(
                basic.password.is_some() && basic.password_file.is_some(),
                "give `password` or `password_file` of `basic_auth`, not both",
            )?;
        }
        if let Some(authorization) = &authorization {
            settings(
                authorization.credentials.is_some() == authorization.credentials_file.is_some(),
                "`authorization` needs `credentials` or `credentials_file`, one of both",
            )?;
            let basic = authorization.kind.as_deref().is_some_and(|kind| kind.eq_ignore_ascii_case("basic"));
            settings(basic, "`authorization` of type Basic is `basic_auth`: give username and password there")?;
        }
        settings(tls.cert_file.is_some() != tls.key_file.is_some(), "`cert_file` and `key_file` of `tls_config` go together")?;
        if let Some(name) = &tls.server_name {
            settings(ServerName::try_from(name.as_str()).is_err(), "`server_name` of `tls_config` is no name of a host")?;
        }
        let plain = pooled().build(connector());
        Ok(Access { basic_auth, authorization, tls, enable_compression, plain, opened: Mutex::default() })
    }

    /// What a request needs, with files as they are now.
    pub(super) fn open(&self, tls: bool) -> Result<Open, AccessError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let client = if tls { HttpClient::Tls(self.tls_client(&mut opened)?) } else { HttpClient::Plain(self.plain.clone()) };
        Ok(Open { client, authorization: self.header(&mut opened)? })
    }

    fn header(&self, opened: &mut Opened) -> Result<Option<HeaderValue>, AccessError> {
        type Wanted<'a> = (Option<&'a BasicAuth>, &'a str, &'static str, Option<&'a Secret>, Option<&'a PathBuf>);
        let (basic, kind, key, text, file): Wanted<'_> = match (&self.basic_auth, &self.authorization) {
            (Some(b), _) => (Some(b), "Basic", "password_file", b.password.as_ref(), b.password_file.as_ref()),
            (None, Some(a)) => {
                let kind = a.kind.as_deref().unwrap_or("Bearer").trim();
                (None, kind, "credentials_file", a.credentials.as_ref(), a.credentials_file.as_ref())
            }
            (None, None) => return Ok(None),
        };
        let stamps = stamps([(key, file)])?;
        if let Some((of, header)) = &opened.authorization
            && *of == stamps
        {
            return Ok(Some(header.clone()));
        }
        let secret = match (text, file) {
            (Some(secret), _) => secret.0.clone(),
            // As Prometheus does: editors end files with a line feed.
            (None, Some(path)) => String::from_utf8(read(key, path)?)
                .map_err(|_| AccessError::Holds { key, path: path.clone(), what: "text" })?
                .trim()
                .to_owned(),
            (None, None) => String::new(),
        };
        let text = match basic {
            Some(basic) => format!("Basic {}", STANDARD.encode(format!("{}:{secret}", basic.username))),
            None => format!("{kind} {secret}"),
        };
        let unfit = AccessError::Settings("credentials hold a character that no header may hold");
        let mut header = HeaderValue::from_str(&text).map_err(|_| unfit)?;
        header.set_sensitive(true);
        opened.authorization = Some((stamps, header.clone()));
        Ok(Some(header))
    }

    fn tls_client(&self, opened: &mut Opened) -> Result<TlsClient, AccessError> {
        let files = [
            ("ca_file", self.tls.ca_file.as_ref()),
            ("cert_file", self.tls.cert_file.as_ref()),
            ("key_file", self.tls.key_file.as_ref()),
        ];
        let stamps = stamps(files)?;
        if let Some((of, client)) = &opened.tls
            && *of == stamps
        {
            return Ok(client.clone());
        }
        let mut http = connector();
        http.enforce_http(false);
        let builder = HttpsConnectorBuilder::new().with_tls_config(self.client_config()?).https_or_http();
        let builder = match &self.tls.server_name {
            Some(name) => {
                let name = ServerName::try_from(name.clone()).map_err(|e| AccessError::Tls(Box::new(e)))?;
                builder.with_server_name_resolver(FixedServerNameResolver::new(name))
            }
            None => builder,
        };
        let client = pooled().build(builder.enable_http1().wrap_connector(http));
        opened.tls = Some((stamps, client.clone()));
        Ok(client)
    }

    fn client_config(&self) -> Result<ClientConfig, AccessError> {
        let tls = |e: rustls::Error| AccessError::Tls(Box::new(e));
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().map_err(tls)?;
        let builder = match &self.tls.ca_file {
            _ if self.tls.insecure_skip_verify => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            }
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates("ca_file", path)? {
                    roots.add(certificate).map_err(tls)?;
                }
                builder.with_root_certificates(roots)
            }
            None => builder.with_native_roots().map_err(|e| AccessError::Tls(Box::new(e)))?,
        };
        match (&self.tls.cert_file, &self.tls.key_file) {
            (Some(certificate), Some(key)) => {
                let chain = certificates("cert_file", certificate)?;
                let missing = |_| AccessError::Holds { key: "key_file", path: key.clone(), what: "private key in PEM form" };
                let key = PrivateKeyDer::from_pem_slice(&read("key_file", key)?).map_err(missing)?;
                builder.with_client_auth_cert(chain, key).map_err(tls)
            }
            _ => Ok(builder.with_no_client_auth()),
        }
    }
}

impl Default for Access {
    /// No credentials, TLS by the system's authorities, pages packed where the exporter can.
    fn default() -> Self {
        Access {
            basic_auth: None,
            authorization: None,
            tls: TlsConfig::default(),
            enable_compression: true,
            plain: pooled().build(connector()),
            opened: Mutex::default(),
        }
    }
}

impl PartialEq for Access {
    /// By its settings.
    fn eq(&self, other: &Self) -> bool {
        let settings = |a: &Self| (a.basic_auth.clone(), a.authorization.clone(), a.tls.clone(), a.enable_compression);
        std::ptr::eq(self, other) || settings(self) == settings(other)
    }
}

impl Eq for Access {}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("basic_auth", &self.basic_auth)
            .field("authorization", &self.authorization)
            .field("tls", &self.tls)
            .field("enable_compression", &self.enable_compression)
            .finish_non_exhaustive()
    }
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector
}

fn pooled() -> hyper_util::client::legacy::Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(Duration::from_secs(300)).pool_max_idle_per_host(1);
    builder
}

fn stamps<'a>(files: impl IntoIterator<Item = (&'static str, Option<&'a PathBuf>)>) -> Result<Vec<Stamp>, AccessError> {
    let stamp = |(key, path): (&'static str, &PathBuf)| {
        Stamp::of(path).map_err(|source| AccessError::File { key, path: path.clone(), source })
    };
    files.into_iter().filter_map(|(key, path)| Some(stamp((key, path?)))).collect()
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, AccessError> {
    stamp::read(path, MAX_FILE_BYTES).map_err(|source| AccessError::File { key, path: path.to_owned(), source })
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, AccessError> {
    let bytes = read(key, path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(AccessError::Holds { key, path: path.to_owned(), what: "certificate in PEM form" }),
    }
}

/// Takes any certificate; that its holder has the key is still proved.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
