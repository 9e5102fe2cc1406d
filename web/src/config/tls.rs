//! `tls_server_config` as rustls takes it.

use std::{fmt, path::Path, sync::Arc};

use rustls::{
    CipherSuite, DigitallySignedStruct, DistinguishedName, Error, NamedGroup, RootCertStore, ServerConfig, SignatureScheme,
    SupportedProtocolVersion,
    client::danger::HandshakeSignatureValid,
    crypto::{self, CryptoProvider, SupportedKxGroup, WebPkiSupportedAlgorithms},
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::{TLS12, TLS13},
};

use super::{ConfigError, Section, Seen, sans};

const KNOWN: &[&str] = &[
    "cert_file",
    "cert",
    "key_file",
    "key",
    "client_auth_type",
    "client_ca_file",
    "client_ca",
    "client_allowed_sans",
    "min_version",
    "max_version",
    "cipher_suites",
    "curve_preferences",
    "prefer_server_cipher_suites",
];

/// Go's names of the groups that we have.
const CURVES: &[(&str, NamedGroup)] =
    &[("X25519", NamedGroup::X25519), ("CurveP256", NamedGroup::secp256r1), ("CurveP384", NamedGroup::secp384r1)];

/// Go's names of client authentication; `RequireClientCert` is the toolkit's old name of `RequireAnyClientCert`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientAuth {
    No,
    Request,
    RequireAny,
    VerifyIfGiven,
    RequireAndVerify,
}

const CLIENT_AUTH: &[(&str, ClientAuth)] = &[
    ("NoClientCert", ClientAuth::No),
    ("RequestClientCert", ClientAuth::Request),
    ("RequireAnyClientCert", ClientAuth::RequireAny),
    ("RequireClientCert", ClientAuth::RequireAny),
    ("VerifyClientCertIfGiven", ClientAuth::VerifyIfGiven),
    ("RequireAndVerifyClientCert", ClientAuth::RequireAndVerify),
];

/// The section's server and whether clients must be verified; no server where the section is empty.
pub(super) fn server_config(mut section: Section<'_>, seen: &mut Seen) -> Result<(Option<Arc<ServerConfig>>, bool), ConfigError> {
    if section.map.is_empty() {
        return Ok((None, false));
    }
    let chain = pem(&mut section, seen, "cert_file", "cert")?;
    let key = pem(&mut section, seen, "key_file", "key")?;
    let authority = pem(&mut section, seen, "client_ca_file", "client_ca")?;
    let policy = match section.string("client_auth_type")? {
        None => ClientAuth::No,
        Some(name) => one_of(&section, "client_auth_type", &name, CLIENT_AUTH)?,
    };
    let allowed = section.strings("client_allowed_sans")?;
    let versions = versions(&mut section)?;
    let provider = Arc::new(provider(&mut section)?);
    let ours_first = section.boolean("prefer_server_cipher_suites")?.unwrap_or(true);
    // What is unknown is said before what is missing: a misspelt `cert_fil` is both.
    section.end(KNOWN)?;

    let chain =
        chain.ok_or_else(|| section.wrong("cert_file", "is missing: TLS needs a certificate; give `cert_file` or `cert`"))?;
    let key =
        key.ok_or_else(|| section.wrong("key_file", "is missing: the certificate needs its key; give `key_file` or `key`"))?;
    let certificates = certificates(&section, &chain)?;
    let private = PrivateKeyDer::from_pem_slice(&key.bytes)
        .map_err(|_| section.wrong(key.option, "holds no private key in PEM; it begins with `-----BEGIN PRIVATE KEY-----`"))?;
    let verifier = verifier(&section, policy, authority, allowed, &provider)?;

    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .map_err(|_| section.wrong("cipher_suites", "leaves none for the versions that are allowed; name more"))?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut server = builder.with_single_cert(certificates, private).map_err(|err| match err {
        Error::InconsistentKeys(_) => {
            section.wrong(key.option, format!("is not the key of `{}`; is one of them older?", chain.option))
        }
        _ => section
            .wrong(key.option, "is a key that cannot be used; use RSA of 2048 bits or more, ECDSA P-256 or P-384, or Ed25519"),
    })?;
    server.ignore_client_order = ours_first;
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((Some(Arc::new(server)), policy == ClientAuth::RequireAndVerify))
}

/// PEM and the option that it came from.
struct Pem {
    option: &'static str,
    bytes: Vec<u8>,
}

fn pem(section: &mut Section<'_>, seen: &mut Seen, file: &'static str, inline: &'static str) -> Result<Option<Pem>, ConfigError> {
    match (section.string(file)?, section.string(inline)?) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(section.wrong(inline, format!("is given beside `{file}`; keep one of them"))),
        (None, Some(text)) => Ok(Some(Pem { option: inline, bytes: text.into_bytes() })),
        (Some(path), None) => {
            let folder = section.file.parent().unwrap_or(Path::new(""));
            Ok(Some(Pem { option: file, bytes: seen.read(&folder.join(path), file)? }))
        }
    }
}

fn certificates(section: &Section<'_>, pem: &Pem) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem.bytes).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(section.wrong(pem.option, "holds no certificate in PEM; it begins with `-----BEGIN CERTIFICATE-----`")),
    }
}

fn one_of<T: Copy>(section: &Section<'_>, key: &str, name: &str, known: &[(&str, T)]) -> Result<T, ConfigError> {
    known.iter().find(|(known, _)| *known == name).map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<_> = known.iter().map(|(known, _)| *known).collect();
        section.wrong(key, format!("does not know {name:?}; use one of: {}", known.join(", ")))
    })
}

fn versions(section: &mut Section<'_>) -> Result<Vec<&'static SupportedProtocolVersion>, ConfigError> {
    const KNOWN: &[(&str, u8)] = &[("TLS12", 12), ("TLS13", 13)];
    let mut bound = |key, default| match section.string(key)? {
        None => Ok(default),
        Some(name) => one_of(section, key, &name, KNOWN),
    };
    let (least, most) = (bound("min_version", 12)?, bound("max_version", 13)?);
    if least > most {
        return Err(section.wrong("max_version", "is below `min_version`; raise it"));
    }
    Ok([(12, &TLS12), (13, &TLS13)].into_iter().filter(|(n, _)| (least..=most).contains(n)).map(|(_, version)| version).collect())
}

/// ring's algorithms, in the order of the file where it names some.
fn provider(section: &mut Section<'_>) -> Result<CryptoProvider, ConfigError> {
    let mut provider = crypto::ring::default_provider();
    let names: Vec<(String, CipherSuite)> =
        provider.cipher_suites.iter().map(|suite| (go_name(suite.suite()), suite.suite())).collect();
    let names: Vec<(&str, CipherSuite)> = names.iter().map(|(name, suite)| (name.as_str(), *suite)).collect();
    if let Some(asked) = section.strings("cipher_suites")?.filter(|asked| !asked.is_empty()) {
        let wanted = asked.iter().map(|name| one_of(section, "cipher_suites", name, &names)).collect::<Result<Vec<_>, _>>()?;
        // The file orders those of TLS 1.2; as in Go, the others stay as they are.
        let all = std::mem::take(&mut provider.cipher_suites);
        let (newer, older): (Vec<_>, Vec<_>) = all.into_iter().partition(|suite| suite.tls13().is_some());
        let older = wanted.iter().filter_map(|wanted| older.iter().find(|suite| suite.suite() == *wanted).copied());
        provider.cipher_suites = newer.into_iter().chain(older).collect();
    }
    if let Some(asked) = section.strings("curve_preferences")?.filter(|asked| !asked.is_empty()) {
        let wanted =
            asked.iter().map(|name| one_of(section, "curve_preferences", name, CURVES)).collect::<Result<Vec<_>, _>>()?;
        let all: Vec<&'static dyn SupportedKxGroup> = std::mem::take(&mut provider.kx_groups);
        provider.kx_groups =
            wanted.iter().filter_map(|wanted| all.iter().find(|group| group.name() == *wanted).copied()).collect();
    }
    Ok(provider)
}

/// Go writes `TLS_AES_128_GCM_SHA256` where rustls writes `TLS13_AES_128_GCM_SHA256`.
fn go_name(suite: CipherSuite) -> String {
    let name = suite.as_str().unwrap_or_default();
    match name.strip_prefix("TLS13_") {
        Some(rest) => format!("TLS_{rest}"),
        None => name.to_owned(),
    }
}

fn verifier(
    section: &Section<'_>,
    policy: ClientAuth,
    authority: Option<Pem>,
    allowed: Option<Vec<String>>,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, ConfigError> {
    let mandatory = matches!(policy, ClientAuth::RequireAny | ClientAuth::RequireAndVerify);
    if allowed.is_some() && !mandatory {
        let problem = "needs `client_auth_type: RequireAndVerifyClientCert` (or RequireAnyClientCert): without a certificate there is \
                       nothing to compare";
        return Err(section.wrong("client_allowed_sans", problem));
    }
    let roots = match &authority {
        None => None,
        Some(pem) if policy == ClientAuth::No => {
            let problem = "has no effect without `client_auth_type`; set that to RequireAndVerifyClientCert";
            return Err(section.wrong(pem.option, problem));
        }
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(section, pem)? {
                roots
                    .add(certificate)
                    .map_err(|_| section.wrong(pem.option, "holds a certificate that cannot be read; write it anew in PEM"))?;
            }
            Some(Arc::new(roots))
        }
    };
    let hints = roots.as_ref().map(|roots| roots.subjects()).unwrap_or_default();
    let chain = match (policy, roots) {
        (ClientAuth::No, _) => return Ok(None),
        (ClientAuth::Request | ClientAuth::RequireAny, _) => None,
        (ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify, Some(roots)) => {
            let built = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build();
            Some(built.map_err(|_| section.wrong("client_ca_file", "holds no certificate that can verify clients"))?)
        }
        (ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify, None) => {
            let problem = "is missing: clients are verified by it, the system's authorities are not used; give `client_ca_file` or \
                           `client_ca`";
            return Err(section.wrong("client_ca_file", problem));
        }
    };
    let algorithms = provider.signature_verification_algorithms;
    Ok(Some(Arc::new(Clients { chain, mandatory, hints, allowed, algorithms })))
}

/// What is asked of a client's certificate. That the client has its key is asked always.
struct Clients {
    /// Verifies the chain; none: any certificate.
    chain: Option<Arc<dyn ClientCertVerifier>>,
    mandatory: bool,
    hints: Vec<DistinguishedName>,
    allowed: Option<Vec<String>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients").field("mandatory", &self.mandatory).field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(chain) = &self.chain {
            chain.verify_client_cert(end_entity, intermediates, now)?;
        }
        if let Some(allowed) = &self.allowed
            && !sans::names(end_entity).is_some_and(|names| names.iter().any(|name| allowed.contains(name)))
        {
            return Err(Error::General("the client's certificate has none of `client_allowed_sans`".to_owned()));
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
