//! The web-config file over real sockets: TLS, client certificates, users, headers, and files that change.

use std::{fs, net::SocketAddr, path::Path, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
    version::{TLS12, TLS13},
};
use tempfile::TempDir;
use tokio_rustls::TlsConnector;
use web::WebConfig;

use super::*;

/// An authority and what it signed.
struct Authority(CertifiedIssuer<'static, KeyPair>);

struct Signed {
    certificate: CertificateDer<'static>,
    pem: String,
    key: KeyPair,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn sign(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> Signed {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages.push(usage);
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.0).unwrap();
        Signed { certificate: signed.der().clone(), pem: signed.pem(), key }
    }

    fn server(&self) -> Signed {
        self.sign("localhost", ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn client(&self, name: &str) -> Signed {
        self.sign(name, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A client that trusts this authority, shows `own`, and speaks `versions`.
    fn trusted_by(&self, own: Option<&Signed>, versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap().with_root_certificates(roots);
        match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let key = PrivateKeyDer::try_from(own.key.serialize_der()).unwrap();
                builder.with_client_auth_cert(vec![own.certificate.clone()], key).unwrap()
            }
        }
    }

    fn client_config(&self) -> ClientConfig {
        self.trusted_by(None, &[&TLS12, &TLS13])
    }
}

/// A folder with a server's certificate of `authority`, `clients`' own, and the web-config file `text`.
fn folder(authority: &Authority, clients: &Authority, text: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    put_certificate(folder.path(), authority);
    fs::write(folder.path().join("clients.crt"), clients.0.pem()).unwrap();
    fs::write(folder.path().join("web.yml"), text).unwrap();
    folder
}

fn put_certificate(folder: &Path, authority: &Authority) {
    let server = authority.server();
    fs::write(folder.join("server.crt"), server.pem).unwrap();
    fs::write(folder.join("server.key"), server.key.serialize_pem()).unwrap();
}

/// Puts `text` at `file` at once, as one who rotates should: no look sees half of it.
fn put(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, file).unwrap();
}

const TLS: &str = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n";

struct Secure {
    address: SocketAddr,
    metrics: Metrics,
    _running: Running,
}

async fn serving(folder: &TempDir, limits: Limits) -> Secure {
    let metrics = Metrics::new();
    let guard = Guard::of(Some(&folder.path().join("web.yml")), &metrics).unwrap();
    let running = start_guarded(web::health_pages(Ready::at_once()), limits, guard).await;
    Secure { address: running.address, metrics, _running: running }
}

const REQUEST: &str = "GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// What a TLS client gets; an error at any step is one.
async fn ask(address: SocketAddr, client: ClientConfig, request: &str) -> std::io::Result<String> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8(answer).unwrap())
}

async fn is_answered(address: SocketAddr, client: ClientConfig) -> bool {
    ask(address, client, REQUEST).await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

#[tokio::test]
async fn versions_are_those_of_the_file() {
    let authority = Authority::new("servers");
    for (options, old, new) in
        [("", true, true), ("  min_version: TLS13\n", false, true), ("  max_version: TLS12\n", true, false)]
    {
        let folder = folder(&authority, &authority, &format!("{TLS}{options}"));
        let server = serving(&folder, Limits::default()).await;
        assert_eq!(is_answered(server.address, authority.trusted_by(None, &[&TLS12])).await, old, "{options}");
        assert_eq!(is_answered(server.address, authority.trusted_by(None, &[&TLS13])).await, new, "{options}");
        let failed = u64::from(!old) + u64::from(!new);
        until("the count", || async { refused(&server.metrics, "tls_handshake") == failed }).await;
    }
}

#[tokio::test]
async fn a_client_that_trusts_another_authority_leaves_and_is_counted() {
    let (authority, other) = (Authority::new("servers"), Authority::new("servers"));
    let folder = folder(&authority, &authority, TLS);
    let server = serving(&folder, Limits::default()).await;
    let err = ask(server.address, other.client_config(), REQUEST).await.unwrap_err();
    assert!(err.to_string().contains("certificate"), "{err}");
    until("the count", || async { refused(&server.metrics, "tls_handshake") == 1 }).await;
    assert!(is_answered(server.address, authority.client_config()).await);
}

#[tokio::test]
async fn inline_pem_suites_and_curves_are_taken() {
    let authority = Authority::new("servers");
    let signed = authority.server();
    let indented = |pem: &str| pem.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let text = format!(
        "tls_server_config:\n  cert: |\n{}  key: |\n{}  cipher_suites: [TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]\n  \
         curve_preferences: [CurveP384]\n  prefer_server_cipher_suites: false\n",
        indented(&signed.pem),
        indented(&signed.key.serialize_pem())
    );
    let folder = folder(&authority, &authority, &text);
    let server = serving(&folder, Limits::default()).await;
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(authority.trusted_by(None, &[&TLS12])));
    let stream = connector.connect(name, TcpStream::connect(server.address).await.unwrap()).await.unwrap();
    let connection = stream.get_ref().1;
    let suite = connection.negotiated_cipher_suite().unwrap().suite();
    assert_eq!(suite, rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256);
    assert_eq!(connection.negotiated_key_exchange_group().unwrap().name(), rustls::NamedGroup::secp384r1);
    // The list is about TLS 1.2 only.
    assert!(is_answered(server.address, authority.trusted_by(None, &[&TLS13])).await);
}

#[tokio::test]
async fn alpn_says_http_1_1_only() {
    let authority = Authority::new("servers");
    let folder = folder(&authority, &authority, &format!("{TLS}http_server_config: {{http2: true}}\n"));
    let server = serving(&folder, Limits::default()).await;
    let speaking = |protocols: &[&[u8]]| {
        let mut client = authority.client_config();
        client.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        client
    };
    assert!(is_answered(server.address, speaking(&[b"h2", b"http/1.1"])).await);
    assert!(!is_answered(server.address, speaking(&[b"h2"])).await);
}

#[tokio::test]
async fn client_certificates_are_asked_for_as_each_type_says() {
    let (authority, clients, strangers) = (Authority::new("servers"), Authority::new("clients"), Authority::new("clients"));
    let (own, other) = (clients.client("prometheus"), strangers.client("prometheus"));
    // Whether a client is answered without a certificate, with one of the file's authority, and with another's.
    for (policy, none, ours, theirs) in [
        ("NoClientCert", true, true, true),
        ("RequestClientCert", true, true, true),
        ("RequireAnyClientCert", false, true, true),
        ("RequireClientCert", false, true, true),
        ("VerifyClientCertIfGiven", true, true, false),
        ("RequireAndVerifyClientCert", false, true, false),
    ] {
        let authority_line = if policy.contains("Verify") { "  client_ca_file: clients.crt\n" } else { "" };
        let folder = folder(&authority, &clients, &format!("{TLS}  client_auth_type: {policy}\n{authority_line}"));
        let server = serving(&folder, Limits::default()).await;
        for versions in [&[&TLS12], &[&TLS13]] {
            let answered = async |own| is_answered(server.address, authority.trusted_by(own, versions)).await;
            assert_eq!(answered(None).await, none, "{policy}, no certificate");
            assert_eq!(answered(Some(&own)).await, ours, "{policy}, a good one");
            assert_eq!(answered(Some(&other)).await, theirs, "{policy}, a stranger's");
        }
        let failed = 2 * [none, ours, theirs].iter().filter(|answered| !**answered).count() as u64;
        until("the count", || async { refused(&server.metrics, "tls_handshake") == failed }).await;
    }
}

#[tokio::test]
async fn only_allowed_names_of_clients_are_let_in() {
    let (authority, clients) = (Authority::new("servers"), Authority::new("clients"));
    for (policy, line) in [("RequireAndVerifyClientCert", "  client_ca_file: clients.crt\n"), ("RequireAnyClientCert", "")] {
        let text =
            format!("{TLS}  client_auth_type: {policy}\n{line}  client_allowed_sans: [prometheus.example.org, 10.0.0.5]\n");
        let folder = folder(&authority, &clients, &text);
        let server = serving(&folder, Limits::default()).await;
        for (name, answered) in
            [("prometheus.example.org", true), ("10.0.0.5", true), ("eve.example.org", false), ("example.org", false)]
        {
            let client = authority.trusted_by(Some(&clients.client(name)), &[&TLS12, &TLS13]);
            assert_eq!(is_answered(server.address, client).await, answered, "{policy} {name}");
        }
        assert!(!is_answered(server.address, authority.client_config()).await);
    }
}

#[test]
fn what_is_wrong_with_tls_is_named() {
    let (authority, other) = (Authority::new("servers"), Authority::new("others"));
    let folder = folder(&authority, &authority, "");
    fs::write(folder.path().join("other.key"), other.server().key.serialize_pem()).unwrap();
    fs::write(folder.path().join("empty.pem"), "").unwrap();
    let file = folder.path().join("web.yml");
    let with = |options: &str| format!("{TLS}{options}");
    for (text, says) in [
        ("tls_server_config: {min_version: TLS12}".to_owned(), "`tls_server_config.cert_file` is missing"),
        ("tls_server_config: {cert_file: server.crt}".to_owned(), "`tls_server_config.key_file` is missing"),
        ("tls_server_config: {cert_fil: x}".to_owned(), "`tls_server_config.cert_fil` is unknown here"),
        ("tls_server_config: {cert_file: none.crt}".to_owned(), "none.crt (`cert_file`); check the path"),
        (
            "tls_server_config: {cert_file: empty.pem, key_file: server.key}".to_owned(),
            "`tls_server_config.cert_file` holds no certificate",
        ),
        (
            "tls_server_config: {cert_file: server.crt, key_file: server.crt}".to_owned(),
            "`tls_server_config.key_file` holds no private key",
        ),
        (
            "tls_server_config: {cert_file: server.crt, key_file: other.key}".to_owned(),
            "`tls_server_config.key_file` is not the key of `cert_file`",
        ),
        (with("  cert: hunter2\n"), "`tls_server_config.cert` is given beside `cert_file`; keep one"),
        (with("  key: hunter2\n"), "`tls_server_config.key` is given beside `key_file`; keep one"),
        ("tls_server_config: {cert_file: server.crt, key: hunter2}".to_owned(), "`tls_server_config.key` holds no private key"),
        (
            with("  client_auth_type: Maybe\n"),
            "`tls_server_config.client_auth_type` does not know \"Maybe\"; use one of: NoClientCert, ",
        ),
        (with("  client_ca_file: clients.crt\n"), "`tls_server_config.client_ca_file` has no effect without `client_auth_type`"),
        (with("  client_auth_type: RequireAndVerifyClientCert\n"), "`tls_server_config.client_ca_file` is missing"),
        (
            with("  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: empty.pem\n"),
            "`tls_server_config.client_ca_file` holds no certificate",
        ),
        (
            with("  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: clients.crt\n  client_allowed_sans: [a]\n"),
            "`tls_server_config.client_allowed_sans` needs `client_auth_type: RequireAndVerifyClientCert`",
        ),
        (with("  client_allowed_sans: a\n"), "`tls_server_config.client_allowed_sans` must be a list of strings"),
        (with("  min_version: TLS11\n"), "`tls_server_config.min_version` does not know \"TLS11\"; use one of: TLS12, TLS13"),
        (with("  min_version: TLS13\n  max_version: TLS12\n"), "`tls_server_config.max_version` is below `min_version`"),
        (
            with("  cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]\n"),
            "`tls_server_config.cipher_suites` does not know \"TLS_RSA_WITH_AES_128_CBC_SHA\"; use one of: TLS_AES_256_GCM_SHA384, ",
        ),
        (
            with("  curve_preferences: [CurveP521]\n"),
            "`tls_server_config.curve_preferences` does not know \"CurveP521\"; use one of: X25519, CurveP256, CurveP384",
        ),
        (with("  prefer_server_cipher_suites: 1\n"), "`tls_server_config.prefer_server_cipher_suites` must be true or false"),
    ] {
        fs::write(&file, &text).unwrap();
        let err = WebConfig::read(&file).map(|_| text.clone()).unwrap_err();
        assert!(err.to_string().contains(says), "{text}\nsays    {err}\nand not {says}");
        assert!(!format!("{err:?}").contains("hunter2"));
    }
}

fn users(all: &[(&str, &str)]) -> String {
    let line = |(name, password): &(&str, &str)| format!("  {name}: {}\n", bcrypt::hash(password, 4).unwrap());
    format!("basic_auth_users:\n{}", all.iter().map(line).collect::<String>())
}

async fn logged_in(address: SocketAddr, path: &str, credentials: &str) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let credentials = STANDARD.encode(credentials);
    say(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Basic {credentials}\r\n\r\n"))
        .await
}

#[tokio::test]
async fn users_are_asked_for_on_every_path_and_headers_are_on_every_answer() {
    let authority = Authority::new("servers");
    let text = format!(
        "{}http_server_config:\n  headers:\n    X-Frame-Options: deny\n    Strict-Transport-Security: max-age=31536000\n",
        users(&[("ann", "secret")])
    );
    let folder = folder(&authority, &authority, &text);
    let server = serving(&folder, Limits::default()).await;
    for (path, credentials, status) in [
        ("/-/healthy", "ann:secret", 200),
        ("/nothing", "ann:secret", 404),
        ("/-/healthy", "ann:wrong", 401),
        ("/nothing", "eve:secret", 401),
    ] {
        let answer = logged_in(server.address, path, credentials).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path} {credentials}: {answer}");
        assert!(answer.contains("x-frame-options: deny\r\n"), "{answer}");
        assert!(answer.contains("strict-transport-security: max-age=31536000\r\n"), "{answer}");
        assert_eq!(answer.contains("www-authenticate: Basic\r\n"), status == 401, "{answer}");
    }
    assert!(get(server.address, "/-/healthy").await.starts_with("HTTP/1.1 401 "));
    assert_eq!(refused(&server.metrics, "unauthorized"), 3);
}

#[tokio::test]
async fn users_and_certificates_change_without_a_restart() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let folder = folder(&old, &old, TLS);
    let server = serving(&folder, Limits::default()).await;
    assert!(is_answered(server.address, old.client_config()).await);
    // Certificate first, key a moment later: between the two the last pair stays.
    let signed = new.server();
    put(&folder.path().join("server.crt"), &signed.pem);
    let failures = || async {
        assert!(is_answered(server.address, old.client_config()).await);
        shown(&server.metrics, "web_config_reload_failures_total") == 1
    };
    until("the failed look", failures).await;
    put(&folder.path().join("server.key"), &signed.key.serialize_pem());
    until("the new certificate", || is_answered(server.address, new.client_config())).await;
    assert!(!is_answered(server.address, old.client_config()).await);
    assert_eq!(shown(&server.metrics, "web_config_reload_failures_total"), 1);
}

#[tokio::test]
async fn a_kept_connection_sees_changed_users_and_a_bad_file_changes_nothing() {
    let authority = Authority::new("servers");
    let folder = folder(&authority, &authority, &users(&[("ann", "secret")]));
    let file = folder.path().join("web.yml");
    let server = serving(&folder, Limits::default()).await;
    let healthy = async |credentials: &str| {
        let answer = logged_in(server.address, "/-/healthy", credentials).await;
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    assert_eq!((healthy("ann:secret").await, healthy("bob:secret").await), (200, 401));

    let mut kept = TcpStream::connect(server.address).await.unwrap();
    put(&file, &users(&[("bob", "secret"), ("ann", "other")]));
    until("the new users", || async { healthy("bob:secret").await == 200 }).await;
    assert_eq!((healthy("ann:secret").await, healthy("ann:other").await), (401, 200));
    kept.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Basic YW5uOnNlY3JldA==\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    kept.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");

    // No YAML; nothing at all, as while a file is being written; gone: each is counted once, and opens nothing.
    let failures = || shown(&server.metrics, "web_config_reload_failures_total");
    for (n, text) in [(1, Some("basic_auth_users: [")), (2, Some("")), (3, None)] {
        match text {
            Some(text) => put(&file, text),
            None => fs::remove_file(&file).unwrap(),
        }
        until("the failed look", || async {
            assert_eq!(get(server.address, "/-/healthy").await.split(' ').nth(1), Some("401"), "the server is open");
            failures() >= n
        })
        .await;
        assert_eq!((failures(), healthy("bob:secret").await), (n, 200), "{text:?}");
    }
    put(&file, &users(&[("cid", "secret")]));
    until("the users after that", || async { healthy("cid:secret").await == 200 }).await;
    assert_eq!(failures(), 3);
}

#[tokio::test]
async fn plain_http_on_a_port_of_tls_is_told_so() {
    let authority = Authority::new("servers");
    let folder = folder(&authority, &authority, TLS);
    let server = serving(&folder, Limits::default()).await;
    let answer = get(server.address, "/-/healthy").await;
    assert!(answer.starts_with("HTTP/1.0 400 Bad Request\r\n") && answer.contains("ask for https://"), "{answer}");
    assert_eq!(refused(&server.metrics, "plain_http"), 1);
    assert_eq!(say(server.address, "\0\0\0\0").await, "");
    until("the count", || async { refused(&server.metrics, "tls_handshake") == 1 }).await;
    assert!(is_answered(server.address, authority.client_config()).await);
}

#[tokio::test]
async fn a_handshake_that_does_not_come_gives_its_place_back() {
    let authority = Authority::new("servers");
    let folder = folder(&authority, &authority, TLS);
    let limits = Limits { connections: 1, handshake_timeout: Duration::from_secs(2), ..Limits::default() };
    let server = serving(&folder, limits).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    // The head of a record, and never the record.
    let mut half = TcpStream::connect(server.address).await.unwrap();
    half.write_all(b"\x16\x03\x01\x02\x00").await.unwrap();
    for stream in [&mut silent, &mut half] {
        let mut rest = Vec::new();
        tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut rest)).await.unwrap().ok();
        assert!(rest.is_empty());
    }
    assert_eq!(refused(&server.metrics, "late_handshake"), 2);
    assert!(is_answered(server.address, authority.client_config()).await);
}

#[tokio::test]
async fn the_end_waits_for_no_handshake() {
    let authority = Authority::new("servers");
    let folder = folder(&authority, &authority, TLS);
    let guard = Guard::of(Some(&folder.path().join("web.yml")), &Metrics::new()).unwrap();
    let limits = Limits { grace: Duration::from_secs(600), handshake_timeout: Duration::from_secs(600), ..Limits::default() };
    let server = start_guarded(web::health_pages(Ready::at_once()), limits, guard).await;
    let silent = TcpStream::connect(server.address).await.unwrap();
    assert!(is_answered(server.address, authority.client_config()).await); // so `silent` was taken
    server.stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(60), server.done).await.expect("it ends at once").unwrap().unwrap();
    drop(silent);
}
