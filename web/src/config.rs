//! The Prometheus web-config file: TLS, client certificates, users and headers, as exporter-toolkit spells them.
//!
//! ```yaml
//! tls_server_config:                  # without this section: plain HTTP
//!   cert_file: server.crt             # or cert: the PEM itself; the file's folder is where relative paths begin
//!   key_file: server.key              # or key
//!   client_auth_type: NoClientCert    # RequestClientCert RequireAnyClientCert VerifyClientCertIfGiven RequireAndVerifyClientCert
//!   client_ca_file: clients.crt       # or client_ca
//!   client_allowed_sans: [prometheus.example.org]
//!   min_version: TLS12                # or TLS13
//!   max_version: TLS13
//!   cipher_suites: []                 # of TLS 1.2; those of TLS 1.3 are always on, as in Go
//!   curve_preferences: []
//!   prefer_server_cipher_suites: true
//! http_server_config:
//!   http2: true                       # taken and without effect: we speak HTTP/1.1 only, and say so by ALPN
//!   headers: {X-Content-Type-Options: nosniff}
//! basic_auth_users:
//!   prometheus: $2y$10$...            # bcrypt, as `htpasswd -nBC 10 prometheus` writes it
//! ```
//!
//! What the toolkit takes and we refuse: TLS before 1.2, what `rustls` has no code for (CBC suites, P-521), both `x` and
//! `x_file`, `rate_limit`, a section `tls_server_config` without a certificate (the toolkit would serve plain HTTP) and bcrypt
//! above cost 16. No error and no `Debug` output holds a value of the file beside names of options, files and users.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{File, Metadata},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use axum::http::{HeaderName, HeaderValue};
use rustls::ServerConfig;
use serde_yaml_ng::{Mapping, Value};

mod sans;
mod tls;

/// Most bytes of the file and of each file that it names.
pub const MAX_BYTES: u64 = 1024 * 1024;
/// Highest cost of a bcrypt hash: 16 is seconds of a core for one try.
pub const MAX_COST: u32 = 16;

/// Headers that the toolkit lets operators set, with the values that it allows; none: any value.
const HEADERS: &[(&str, &[&str])] = &[
    ("Strict-Transport-Security", &[]),
    ("X-Content-Type-Options", &["nosniff"]),
    ("X-Frame-Options", &["deny", "sameorigin"]),
    ("X-XSS-Protection", &[]),
    ("Content-Security-Policy", &[]),
];

/// A web-config file that was read and found good, with the files that it names.
#[derive(Clone, Default)]
pub struct WebConfig {
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// Whether clients must show a certificate of the operator's CA.
    pub(crate) verifies_clients: bool,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) users: Users,
}

/// Bcrypt hash of each user.
pub(crate) type Users = BTreeMap<String, Arc<str>>;

/// What is wrong with a web-config file; `Display` never has a secret of it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read {}{}; check the path and who may read it", file.display(), named(key))]
    Read {
        /// The file.
        file: PathBuf,
        /// The option that names it; empty for the web-config file itself.
        key: &'static str,
        /// What the system says.
        #[source]
        err: io::Error,
    },
    /// A file is larger than [`MAX_BYTES`].
    #[error("{}{} has more than {MAX_BYTES} bytes; is it the right file?", file.display(), named(key))]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// The option that names it; empty for the web-config file itself.
        key: &'static str,
    },
    /// The file is no YAML.
    #[error("{} is no YAML; correct it there", file.display())]
    Yaml {
        /// The file.
        file: PathBuf,
        /// What and where; the parser does not repeat values.
        #[source]
        err: serde_yaml_ng::Error,
    },
    /// An option cannot be used.
    #[error("{}: `{key}` {problem}", file.display())]
    Key {
        /// The file.
        file: PathBuf,
        /// The option, with its section.
        key: String,
        /// What is wrong, and the next step.
        problem: String,
    },
}

fn named(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!(" (`{key}`)") }
}

impl WebConfig {
    /// Reads `path` and the files that it names. Blocks.
    ///
    /// Errors: [`ConfigError`], for the first thing that is wrong.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::read_noting(path, &mut Seen::default())
    }

    /// [`WebConfig::read`], which notes in `seen` what it looked at, also where it fails.
    pub(crate) fn read_noting(path: &Path, seen: &mut Seen) -> Result<Self, ConfigError> {
        let text = seen.read(path, "")?;
        let value: Value = serde_yaml_ng::from_slice(&text).map_err(|err| ConfigError::Yaml { file: path.to_owned(), err })?;
        let mut top = Section::of(path, "", value)?;
        let mut config = Self::default();
        if let Some(section) = top.section("tls_server_config")? {
            (config.tls, config.verifies_clients) = tls::server_config(section, seen)?;
        }
        if let Some(section) = top.section("http_server_config")? {
            config.headers = headers(section)?;
        }
        if let Some(section) = top.section("basic_auth_users")? {
            config.users = users(section)?;
        }
        top.end(&["tls_server_config", "http_server_config", "basic_auth_users"])?;
        Ok(config)
    }

    /// Whether connections are TLS.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// What `self` asks of clients and `next` would not, in the file's words: a file that is half written or emptied by mistake
    /// must not open a server that runs.
    pub(crate) fn would_drop(&self, next: &Self) -> Option<&'static str> {
        if self.tls.is_some() && next.tls.is_none() {
            Some("tls_server_config")
        } else if self.verifies_clients && !next.verifies_clients {
            Some("client_auth_type: RequireAndVerifyClientCert")
        } else if !self.users.is_empty() && next.users.is_empty() {
            Some("basic_auth_users")
        } else {
            None
        }
    }
}

impl fmt::Debug for WebConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebConfig")
            .field("tls", &self.has_tls())
            .field("verifies_clients", &self.verifies_clients)
            .field("headers", &self.headers)
            .field("users", &self.users.keys())
            .finish()
    }
}

fn headers(mut section: Section<'_>) -> Result<Vec<(HeaderName, HeaderValue)>, ConfigError> {
    let _ = section.boolean("http2")?;
    let mut headers = Vec::new();
    if let Some(mut given) = section.section("headers")? {
        for (name, allowed) in HEADERS {
            let Some(value) = given.string(name)? else { continue };
            if !allowed.is_empty() && !allowed.contains(&value.as_str()) {
                return Err(given.wrong(name, format!("must be {}", allowed.join(" or "))));
            }
            let value = HeaderValue::from_str(&value)
                .map_err(|_| given.wrong(name, "has characters that no header may have; write it on one line"))?;
            headers.push((HeaderName::from_bytes(name.as_bytes()).expect("the names above are header names"), value));
        }
        given.end(&HEADERS.iter().map(|(name, _)| *name).collect::<Vec<_>>())?;
    }
    section.end(&["http2", "headers"])?;
    Ok(headers)
}

fn users(mut section: Section<'_>) -> Result<Users, ConfigError> {
    let mut users = Users::new();
    for (name, hash) in std::mem::take(&mut section.map) {
        let Value::String(name) = name else {
            return Err(section.wrong("", "has a name that is no string; write it in quotes"));
        };
        if name.contains(':') {
            return Err(section.wrong(&name, "cannot be a user's name: basic auth ends names at a colon"));
        }
        let hash = match hash {
            Value::String(hash) => hash,
            _ => return Err(section.wrong(&name, "must be a string: a bcrypt hash, in quotes")),
        };
        match cost(&hash) {
            None => {
                let problem = "is no bcrypt hash; make one with `htpasswd -nBC 10 NAME` and write what is after the colon";
                return Err(section.wrong(&name, problem));
            }
            Some(cost) if cost > MAX_COST => {
                let problem = format!("has cost {cost}, above {MAX_COST}: each try would take a core for long; use 10 to 12");
                return Err(section.wrong(&name, problem));
            }
            Some(_) => users.insert(name, Arc::from(hash)),
        };
    }
    Ok(users)
}

/// Cost of a whole bcrypt hash (`$2y$10$` and 53 characters); none where it is not one.
fn cost(hash: &str) -> Option<u32> {
    let rest = ["$2a$", "$2b$", "$2y$"].iter().find_map(|prefix| hash.strip_prefix(prefix))?;
    let (cost, digest) = rest.split_once('$')?;
    let alphabet = |b: u8| b.is_ascii_alphanumeric() || b == b'.' || b == b'/';
    let whole = cost.len() == 2 && digest.len() == 53 && digest.bytes().all(alphabet);
    let parsed = hash.parse::<bcrypt::HashParts>().ok()?;
    (whole && (4..=31).contains(&parsed.get_cost())).then(|| parsed.get_cost())
}

/// One mapping of the file; what was used is taken out of it, and [`Section::end`] refuses the rest.
struct Section<'a> {
    file: &'a Path,
    path: String,
    map: Mapping,
}

impl<'a> Section<'a> {
    fn of(file: &'a Path, path: &str, value: Value) -> Result<Self, ConfigError> {
        let path = path.to_owned();
        match value {
            Value::Mapping(map) => Ok(Self { file, path, map }),
            Value::Null => Ok(Self { file, path, map: Mapping::new() }),
            _ => {
                let key = if path.is_empty() { "the file".to_owned() } else { path };
                let problem = "must be a mapping: lines of `name: value`, indented below it".to_owned();
                Err(ConfigError::Key { file: file.to_owned(), key, problem })
            }
        }
    }

    fn wrong(&self, key: &str, problem: impl Into<String>) -> ConfigError {
        let key = match (self.path.as_str(), key) {
            ("", key) => key.to_owned(),
            (path, "") => path.to_owned(),
            (path, key) => format!("{path}.{key}"),
        };
        ConfigError::Key { file: self.file.to_owned(), key, problem: problem.into() }
    }

    /// What is under `key`; null is nothing.
    fn take(&mut self, key: &str) -> Option<Value> {
        self.map.remove(key).filter(|value| !value.is_null())
    }

    fn section(&mut self, key: &str) -> Result<Option<Section<'a>>, ConfigError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let path = if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        Section::of(self.file, &path, value).map(Some)
    }

    /// A string; an empty one is none, as in the toolkit.
    fn string(&mut self, key: &str) -> Result<Option<String>, ConfigError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
            Some(_) => Err(self.wrong(key, "must be a string; write it in quotes")),
        }
    }

    fn boolean(&mut self, key: &str) -> Result<Option<bool>, ConfigError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Bool(yes)) => Ok(Some(yes)),
            Some(_) => Err(self.wrong(key, "must be true or false")),
        }
    }

    fn strings(&mut self, key: &str) -> Result<Option<Vec<String>>, ConfigError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let texts = match value {
            Value::Sequence(values) => values
                .into_iter()
                .map(|value| match value {
                    Value::String(text) => Some(text),
                    _ => None,
                })
                .collect(),
            _ => None,
        };
        texts.map(Some).ok_or_else(|| self.wrong(key, "must be a list of strings"))
    }

    /// Refuses what nobody took.
    fn end(&self, known: &[&str]) -> Result<(), ConfigError> {
        match self.map.keys().find(|key| !matches!(key, Value::String(key) if known.contains(&key.as_str()))) {
            None => Ok(()),
            Some(Value::String(key)) => {
                Err(self.wrong(key, format!("is unknown here; take it out, or use one of: {}", known.join(", "))))
            }
            Some(_) => Err(self.wrong("", "has a name that is no string")),
        }
    }
}

/// The files that a read looked at, as they were before it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen(Vec<(PathBuf, Option<Stamp>)>);

/// What changes when a file is written or another is put in its place, also behind a symbolic link as Kubernetes does it.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    #[cfg(unix)]
    identity: (u64, u64, i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt;
        Self {
            modified: metadata.modified().ok(),
            bytes: metadata.len(),
            #[cfg(unix)]
            identity: (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Seen {
    /// Whether any of the files is another now.
    pub(crate) fn changed(&self) -> bool {
        self.0.iter().any(|(file, then)| std::fs::metadata(file).ok().map(|now| Stamp::of(&now)) != *then)
    }

    fn read(&mut self, file: &Path, key: &'static str) -> Result<Vec<u8>, ConfigError> {
        let failed = |err| ConfigError::Read { file: file.to_owned(), key, err };
        let metadata = std::fs::metadata(file);
        // Noted before the read: what is written meanwhile is a change at the next look.
        self.0.push((file.to_owned(), metadata.as_ref().ok().map(Stamp::of)));
        // A pipe would block, a device would not end.
        if !metadata.map_err(failed)?.is_file() {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")));
        }
        let mut bytes = Vec::new();
        File::open(file).and_then(|opened| opened.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(failed)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(ConfigError::TooLarge { file: file.to_owned(), key });
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn refused(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("web.yml");
        std::fs::write(&file, text).unwrap();
        let said = WebConfig::read(&file).unwrap_err();
        let debug = format!("{said:?}");
        assert!(!debug.contains("hunter2"), "a secret is told: {debug}");
        said.to_string().replace(&file.display().to_string(), "web.yml")
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, says) in [
            (
                "tls: {}",
                "web.yml: `tls` is unknown here; take it out, or use one of: tls_server_config, http_server_config, basic_auth_users",
            ),
            ("rate_limit: {burst: 1}", "web.yml: `rate_limit` is unknown here"),
            ("hunter2", "web.yml: `the file` must be a mapping"),
            ("basic_auth_users: 'a:hunter2'", "web.yml: `basic_auth_users` must be a mapping"),
            ("basic_auth_users: {a: [hunter2]}", "web.yml: `basic_auth_users.a` must be a string"),
            ("basic_auth_users: {a: hunter2}", "web.yml: `basic_auth_users.a` is no bcrypt hash; make one with `htpasswd"),
            ("basic_auth_users: {'a:b': hunter2}", "web.yml: `basic_auth_users.a:b` cannot be a user's name"),
            ("basic_auth_users: {1: hunter2}", "web.yml: `basic_auth_users` has a name that is no string"),
            (
                "basic_auth_users: {a: $2y$17$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi}",
                "web.yml: `basic_auth_users.a` has cost 17, above 16",
            ),
            ("http_server_config: {http2: maybe}", "web.yml: `http_server_config.http2` must be true or false"),
            ("http_server_config: {headers: {Server: x}}", "web.yml: `http_server_config.headers.Server` is unknown here"),
            (
                "http_server_config: {headers: {X-Frame-Options: x}}",
                "`http_server_config.headers.X-Frame-Options` must be deny or sameorigin",
            ),
            (
                "http_server_config: {headers: {Content-Security-Policy: \"a\\nb\"}}",
                "`http_server_config.headers.Content-Security-Policy` has characters that no header may have",
            ),
            ("a: [", "web.yml is no YAML"),
        ] {
            let said = refused(text);
            assert!(said.contains(says), "{text}\nsays    {said}\nand not {says}");
        }
    }

    #[test]
    fn files_that_cannot_be_read_are_named_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let said = WebConfig::read(&folder.path().join("none.yml")).unwrap_err().to_string();
        assert!(said.starts_with("cannot read ") && said.contains("none.yml; check the path"), "{said}");
        let said = WebConfig::read(folder.path()).unwrap_err().to_string();
        assert!(said.starts_with("cannot read "), "{said}");
        let large = folder.path().join("large.yml");
        std::fs::write(&large, vec![b'#'; MAX_BYTES as usize + 1]).unwrap();
        let said = WebConfig::read(&large).unwrap_err().to_string();
        assert!(said.contains("large.yml has more than 1048576 bytes"), "{said}");
    }

    #[test]
    fn an_empty_file_asks_for_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("web.yml");
        for text in
            ["", "tls_server_config:\nbasic_auth_users:\n", "http_server_config: {http2: false, headers: {X-Frame-Options: ''}}"]
        {
            std::fs::write(&file, text).unwrap();
            let config = WebConfig::read(&file).unwrap();
            assert!(!config.has_tls() && config.users.is_empty() && config.headers.is_empty(), "{text}");
        }
    }
}
