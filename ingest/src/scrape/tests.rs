#![allow(clippy::unwrap_used)]
use super::*;
use flate2::Compression;
use flate2::write::GzEncoder;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

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
    assert_eq!(text("https://node-1").unwrap(), "https://node-1/metrics");
    for secret in ["http://me:hush@node-1:9400/metrics", "me:hush@node-1", "https://me:hush@node-1/"] {
        let refused = text(secret).unwrap_err();
        assert!(refused.contains("password") && !refused.contains("hush"), "{refused}");
    }
    for bad in ["", "http://", "ftp://x", "a b"] {
        assert!(text(bad).unwrap_err().contains("write http://host:9400/metrics"), "{bad}");
    }
}

/// An exporter that keeps its connections, with TLS or without.
#[derive(Clone, Default)]
struct Exporter {
    /// The body and the headers beside its length.
    answer: Arc<Mutex<(String, Vec<u8>)>>,
    /// The requests that it got.
    asked: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

impl Exporter {
    async fn start(&self, tls: Option<ServerConfig>) -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acceptor = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        let scheme = if acceptor.is_some() { "https" } else { "http" };
        let me = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (me, acceptor) = (me.clone(), acceptor.clone());
                tokio::spawn(async move {
                    match acceptor {
                        None => me.talk(stream).await,
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                me.talk(stream).await;
                            }
                        }
                    }
                });
            }
        });
        format!("{scheme}://localhost:{port}").parse().unwrap()
    }

    async fn talk(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        self.connections.fetch_add(1, Ordering::SeqCst);
        let mut request = [0; 4096];
        while let Ok(n @ 1..) = stream.read(&mut request).await {
            self.asked.lock().unwrap().push(String::from_utf8_lossy(&request[..n]).to_lowercase());
            let (headers, body) = self.answer.lock().unwrap().clone();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
            if stream.write_all(&[head.as_bytes(), &body].concat()).await.is_err() {
                return;
            }
        }
    }

    fn says(&self, headers: &str, body: &[u8]) {
        *self.answer.lock().unwrap() = (headers.to_owned(), body.to_vec());
    }

    fn header(&self, name: &str) -> Option<String> {
        let asked = self.asked.lock().unwrap();
        asked.last().unwrap().lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(": ")?.to_owned()))
    }
}

fn scraper() -> Scraper {
    Scraper::new(Duration::from_secs(10), 1 << 20)
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn connections_are_kept_and_both_formats_and_packing_are_offered() {
    let exporter = Exporter::default();
    let target = exporter.start(None).await;
    exporter.says("", b"up 1\n");
    let scraper = scraper();
    for _ in 0..3 {
        assert_eq!(scraper.get(&target).await.unwrap().bytes.as_ref(), b"up 1\n");
    }
    assert_eq!((exporter.connections.load(Ordering::SeqCst), exporter.asked.lock().unwrap().len()), (1, 3));
    let accept = exporter.header("accept").unwrap();
    assert!(accept.starts_with("application/openmetrics-text;version=1.0.0;q=0.5,"), "{accept}");
    assert!(accept.contains(",text/plain;version=0.0.4;q=0.3,"), "{accept}");
    assert_eq!(exporter.header("accept-encoding").as_deref(), Some("gzip"));
    let unpacked = Access::new(None, None, TlsConfig::default(), false).unwrap();
    scraper.get(&target.with(Arc::new(unpacked))).await.unwrap();
    assert_eq!(exporter.header("accept-encoding"), None);
}

#[tokio::test]
async fn packed_pages_are_unpacked_within_the_limit() {
    let exporter = Exporter::default();
    let target = exporter.start(None).await;
    let page = "up 1\n".repeat(1000);
    exporter.says("Content-Encoding: gzip\r\n", &packed(page.as_bytes()));
    assert_eq!(scraper().get(&target).await.unwrap().bytes.as_ref(), page.as_bytes());
    exporter.says("Content-Encoding: GZIP\r\n", &[packed(b"up 1\n"), packed(b"up 2\n")].concat());
    assert_eq!(scraper().get(&target).await.unwrap().bytes.as_ref(), b"up 1\nup 2\n");

    // A bomb: 64 MiB of nothing in 64 KiB.
    let bomb = packed(&vec![b'\n'; 64 << 20]);
    assert!(bomb.len() < 1 << 17);
    exporter.says("Content-Encoding: gzip\r\n", &bomb);
    check(scraper().get(&target).await, ScrapeStatus::TooLarge, "larger than 1048576 bytes");
    assert_eq!(gzip::unpack(&packed(b"12345"), 5).unwrap().as_deref(), Some(b"12345".as_slice()));
    assert_eq!(gzip::unpack(&packed(b"12345"), 4).unwrap(), None);

    let whole = packed(page.as_bytes());
    let mut flipped = whole.clone();
    let last = flipped.len() - 6;
    flipped[last] ^= 1;
    for (body, what) in [(&whole[..whole.len() - 9], "cut"), (&flipped, "flipped"), (b"up 1\n".as_slice(), "no gzip")] {
        exporter.says("Content-Encoding: gzip\r\n", body);
        let result = scraper().get(&target).await;
        assert!(result.is_err(), "{what}");
        check(result, ScrapeStatus::ParseError, "damaged gzip");
    }
    exporter.says("Content-Encoding: br\r\n", b"?");
    check(scraper().get(&target).await, ScrapeStatus::ParseError, "content encoding `br` was not asked for");
}

#[tokio::test]
async fn a_page_of_100_megabytes_is_refused_without_being_held() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
            let chunk = [b"10000\r\n".as_slice(), &[b'\n'; 0x10000], b"\r\n"].concat();
            for _ in 0..1600 {
                if stream.write_all(&chunk).await.is_err() {
                    break;
                }
                counted.fetch_add(0x10000, Ordering::SeqCst);
            }
        }
    });
    check(scraper().get(&target).await, ScrapeStatus::TooLarge, "larger than 1048576 bytes");
    assert!(sent.load(Ordering::SeqCst) < 32 << 20, "what the kernel holds, and no more");
}

fn basic(password: Option<&str>, file: Option<&Path>) -> Option<BasicAuth> {
    let (password, password_file) = (password.map(Secret::new), file.map(Path::to_owned));
    Some(BasicAuth { username: "me".into(), password, password_file })
}

fn bearer(file: &Path) -> Option<Authorization> {
    Some(Authorization { kind: None, credentials: None, credentials_file: Some(file.to_owned()) })
}

#[tokio::test]
async fn credentials_are_sent_never_shown_and_read_again_when_their_file_changes() {
    let exporter = Exporter::default();
    let target = exporter.start(None).await;
    exporter.says("", b"up 1\n");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, "hush-1\n").unwrap();
    let with = |basic, bearer| target.clone().with(Arc::new(Access::new(basic, bearer, TlsConfig::default(), true).unwrap()));

    let by_name = with(basic(Some("hush"), None), None);
    scraper().get(&by_name).await.unwrap();
    assert_eq!(exporter.header("authorization").as_deref(), Some("basic bwu6ahvzaa=="), "me:hush, in lower case");
    assert!(!format!("{by_name:?}").contains("hush"), "{by_name:?}");

    let by_file = with(None, bearer(&file));
    scraper().get(&by_file).await.unwrap();
    assert_eq!(exporter.header("authorization").as_deref(), Some("bearer hush-1"));
    fs::write(dir.path().join("next"), "hush-2").unwrap();
    fs::rename(dir.path().join("next"), &file).unwrap();
    scraper().get(&by_file).await.unwrap();
    assert_eq!(exporter.header("authorization").as_deref(), Some("bearer hush-2"));
    let by_file = with(basic(None, Some(&file)), None);
    scraper().get(&by_file).await.unwrap();
    assert_eq!(exporter.header("authorization").as_deref(), Some("basic bwu6ahvzac0y"));

    // Without its secret nobody is asked.
    let before = exporter.asked.lock().unwrap().len();
    fs::write(&file, "two\nlines hush").unwrap();
    let fault = scraper().get(&by_file).await;
    assert!(fault.is_ok(), "in base64 any byte may stand");
    let by_file = with(None, bearer(&file));
    let fault = scraper().get(&by_file).await.unwrap_err();
    let chain = format!("{:#}", anyhow::Error::new(fault));
    assert!(chain.contains("no header may hold") && !chain.contains("hush"), "{chain}");
    fs::remove_file(&file).unwrap();
    let fault = scraper().get(&by_file).await.unwrap_err();
    assert_eq!(fault.status(), ScrapeStatus::Refused);
    let chain = format!("{:#}", anyhow::Error::new(fault));
    assert!(chain.contains("cannot read the credentials_file") && chain.contains("token"), "{chain}");
    assert_eq!(exporter.asked.lock().unwrap().len(), before + 1);
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    let refused = |basic, bearer, tls| match Access::new(basic, bearer, tls, true) {
        Err(error) => error.to_string(),
        Ok(access) => panic!("{access:?}"),
    };
    let tls = TlsConfig::default;
    let path = Path::new("/x");
    assert!(refused(basic(Some("x"), Some(path)), None, tls()).contains("`password` or `password_file`"));
    assert!(refused(basic(None, None), bearer(path), tls()).contains("`basic_auth` or `authorization`"));
    let colon = Some(BasicAuth { username: "a:b".into(), password: None, password_file: None });
    assert!(refused(colon, None, tls()).contains("no colon"));
    let none = Some(Authorization { kind: None, credentials: None, credentials_file: None });
    assert!(refused(None, none, tls()).contains("one of both"));
    let kind = Some(Authorization { kind: Some("basic".into()), ..bearer(path).unwrap() });
    assert!(refused(None, kind, tls()).contains("`basic_auth`"));
    assert!(refused(None, None, TlsConfig { cert_file: Some(path.into()), ..tls() }).contains("go together"));
    assert!(refused(None, None, TlsConfig { server_name: Some("a b".into()), ..tls() }).contains("no name of a host"));
    let secret: Result<Secret, _> = serde_yaml_ng::from_str("12345");
    assert!(!secret.unwrap_err().to_string().contains("12345"));
}

/// An authority, and what it signs.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes `name.crt` and `name.key`, of a certificate for `host`.
    fn sign(&self, dir: &Path, name: &str, host: &str) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![host.to_owned()]).unwrap().signed_by(&key, &self.0).unwrap();
        fs::write(dir.join(format!("{name}.crt")), certificate.pem()).unwrap();
        fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

fn server_config(dir: &Path, clients: Option<&Authority>) -> ServerConfig {
    use rustls::pki_types::pem::PemObject;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority.0.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = rustls::pki_types::CertificateDer::pem_file_iter(dir.join("server.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_file(dir.join("server.key")).unwrap();
    builder.with_single_cert(chain.map(Result::unwrap).collect(), key).unwrap()
}

#[tokio::test]
async fn tls_is_verified_unless_it_is_told_not_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, other) = (Authority::new(), Authority::new());
    authority.sign(dir.path(), "server", "localhost");
    let (ca_file, other_file) = (dir.path().join("ca.pem"), dir.path().join("other.pem"));
    fs::write(&ca_file, authority.0.pem()).unwrap();
    fs::write(&other_file, other.0.pem()).unwrap();
    let exporter = Exporter::default();
    let target = exporter.start(Some(server_config(dir.path(), None))).await;
    exporter.says("", b"up 1\n");
    let with = |tls| target.clone().with(Arc::new(Access::new(None, None, tls, true).unwrap()));
    let tls = |ca: &Path| TlsConfig { ca_file: Some(ca.to_owned()), ..TlsConfig::default() };

    let good = with(tls(&ca_file));
    let scraper = scraper();
    for _ in 0..2 {
        assert_eq!(scraper.get(&good).await.unwrap().bytes.as_ref(), b"up 1\n");
    }
    assert_eq!(exporter.connections.load(Ordering::SeqCst), 1, "kept here too");
    check(scraper.get(&with(tls(&other_file))).await, ScrapeStatus::Refused, "TLS failed; check `tls_config`");
    let by_the_system = scraper.get(&target).await;
    assert_eq!(by_the_system.unwrap_err().status(), ScrapeStatus::Refused);
    let named = TlsConfig { server_name: Some("dune-1".into()), ..tls(&ca_file) };
    check(scraper.get(&with(named)).await, ScrapeStatus::Refused, "TLS failed; check `tls_config`");
    let skipped = TlsConfig { insecure_skip_verify: true, ..TlsConfig::default() };
    assert_eq!(scraper.get(&with(skipped)).await.unwrap().bytes.as_ref(), b"up 1\n");

    // Another authority in the same file: what is read again is no longer trusted.
    fs::copy(&other_file, dir.path().join("next")).unwrap();
    fs::rename(dir.path().join("next"), &ca_file).unwrap();
    check(scraper.get(&good).await, ScrapeStatus::Refused, "TLS failed");
    fs::write(&ca_file, "no certificate").unwrap();
    let chain = format!("{:#}", anyhow::Error::new(scraper.get(&good).await.unwrap_err()));
    assert!(chain.contains("the ca_file") && chain.contains("holds no certificate in PEM form"), "{chain}");
}

#[tokio::test]
async fn an_exporter_may_ask_for_our_certificate_and_for_its_own_name() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    authority.sign(dir.path(), "server", "dune-1.example");
    authority.sign(dir.path(), "client", "agent");
    let path = |name: &str| Some(dir.path().join(name));
    fs::write(dir.path().join("ca.pem"), authority.0.pem()).unwrap();
    let exporter = Exporter::default();
    let target = exporter.start(Some(server_config(dir.path(), Some(&authority)))).await;
    exporter.says("", b"up 1\n");
    let mut tls = TlsConfig { ca_file: path("ca.pem"), server_name: Some("dune-1.example".into()), ..TlsConfig::default() };
    let with = |tls: &TlsConfig| target.clone().with(Arc::new(Access::new(None, None, tls.clone(), true).unwrap()));
    let stranger = scraper().get(&with(&tls)).await;
    assert_eq!(stranger.unwrap_err().status(), ScrapeStatus::Refused);
    (tls.cert_file, tls.key_file) = (path("client.crt"), path("client.key"));
    assert_eq!(scraper().get(&with(&tls)).await.unwrap().bytes.as_ref(), b"up 1\n");
    tls.key_file = path("ca.pem");
    let chain = format!("{:#}", anyhow::Error::new(scraper().get(&with(&tls)).await.unwrap_err()));
    assert!(chain.contains("the key_file") && chain.contains("holds no private key"), "{chain}");
}
