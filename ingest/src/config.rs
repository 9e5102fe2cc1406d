//! Configuration of the two commands: a YAML file, environment `STRANDLINE_*` over it, flags over both; then checked types.

use crate::kubernetes;
use crate::transport::kafka::{self, Properties, Share};
use crate::transport::local;
use attribution::ResourceNames;
use serde::Deserialize;
use serde_yaml_ng::{Mapping, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

mod agent;
mod sink;

pub use agent::{AgentArgs, AgentConfig, AgentTransport};
pub use sink::{SinkArgs, SinkConfig, SinkTransport};

/// What is wrong with a configuration. Exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}")]
    Read {
        /// Path.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is no YAML mapping, or a value has the wrong type.
    #[error("{path}: {reason}")]
    Yaml {
        /// Path.
        path: PathBuf,
        /// Why, with its line.
        reason: String,
    },
    /// A key that nobody reads.
    #[error("{path}: unknown key `{key}`; did you mean `{nearest}`?")]
    UnknownKey {
        /// Path.
        path: PathBuf,
        /// The key.
        key: String,
        /// The known key nearest to it.
        nearest: &'static str,
    },
    /// Something that must be given is not.
    #[error("{0}")]
    Missing(&'static str),
    /// A value that holds for the life of the process.
    #[error("`{0}` cannot change while this process runs; start it again for that")]
    Fixed(&'static str),
    /// A value out of its range.
    #[error("{key}: {reason}")]
    Bad {
        /// The key.
        key: &'static str,
        /// Why.
        reason: String,
    },
}

/// A stretch of time as people write it: `500ms`, `15s`, `10m`, `2h`, `7d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(Duration);

impl Span {
    /// Milliseconds.
    pub fn ms(self) -> i64 {
        i64::try_from(self.0.as_millis()).unwrap_or(i64::MAX)
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no stretch of time; write 500ms, 15s, 10m, 2h or 7d");
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = text[..digits].parse().map_err(|_| bad())?;
        let unit = match &text[digits..] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(bad()),
        };
        number.checked_mul(unit).map(|ms| Span(Duration::from_millis(ms))).ok_or_else(bad)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// `kafka:` of either file: keys of ours, and with a dot in them properties of librdkafka, passed through. `PROPERTY_file`
/// names a file that holds the value: for secrets.
#[derive(Clone, Default, Deserialize)]
pub(crate) struct KafkaFile {
    bootstrap_servers: Option<String>,
    partitions: Option<u32>,
    replication: Option<u16>,
    retention: Option<Span>,
    timeout: Option<Span>,
    group: Option<String>,
    member: Option<u32>,
    members: Option<u32>,
    #[serde(flatten)]
    properties: BTreeMap<String, Value>,
}

const KAFKA_KEYS: &[&str] =
    &["bootstrap_servers", "partitions", "replication", "retention", "timeout", "group", "member", "members"];

impl std::fmt::Debug for KafkaFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Values may be secrets.
        f.debug_struct("KafkaFile").field("properties", &self.properties.keys().collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

/// Keys of what stands below a key, wherever that is: a mapping, or a list of them.
const KEYS_BELOW: &[(&str, &[&str])] = &[
    ("team", crate::allocations::config::TEAM_KEYS),
    ("targets", &["node", "address", "podres_socket", "basic_auth", "authorization", "tls_config", "enable_compression"]),
    ("file_sd_configs", &["files", "refresh_interval"]),
    ("kubernetes", kubernetes::config::KEYS),
    ("basic_auth", &["username", "password", "password_file"]),
    ("authorization", &["type", "credentials", "credentials_file"]),
    ("tls_config", &["ca_file", "cert_file", "key_file", "server_name", "insecure_skip_verify"]),
];

fn one_of(key: &'static str, given: Option<String>, default: &str, allowed: &[&str]) -> Result<String, ConfigError> {
    let value = given.unwrap_or_else(|| default.to_owned());
    if allowed.contains(&value.as_str()) {
        return Ok(value);
    }
    Err(ConfigError::Bad { key, reason: format!("`{value}` is none of {}", allowed.join(", ")) })
}

/// Partitions and bounds of the embedded log, by its keys in a file.
pub(crate) fn log_bounds(
    partitions: Option<u32>,
    retention: Option<Span>,
    bytes: Option<u64>,
) -> Result<(u32, local::Options), ConfigError> {
    let mut log = local::Options::default();
    log.retention_ms = retention.map_or(log.retention_ms, Span::ms);
    log.retention_bytes = bytes.unwrap_or(log.retention_bytes);
    let partitions = partitions.unwrap_or(1);
    if !(1..=10_000).contains(&partitions) {
        return Err(ConfigError::Bad { key: "log_partitions", reason: "1 to 10,000".to_owned() });
    }
    Ok((partitions, log))
}

pub(crate) const NO_LOG: ConfigError = ConfigError::Missing(
    "no log; give --log-dir DIR, STRANDLINE_LOG_DIR, or `log_dir:` in the file; or --kafka SERVERS or `kafka:` for Apache Kafka",
);

/// The embedded log's folder; none where Kafka is given instead.
pub(crate) fn one_log(log_dir: Option<PathBuf>, kafka: bool) -> Result<Option<PathBuf>, ConfigError> {
    match (&log_dir, kafka) {
        (Some(_), true) => {
            Err(ConfigError::Missing("both a log folder and Kafka are given; rounds go to one of them: leave one out"))
        }
        (None, false) => Err(NO_LOG),
        _ => Ok(log_dir),
    }
}

/// The connection that `kafka:` and `--kafka` say; none where neither is given. `reader`: whether partitions may be shared out.
pub(crate) fn kafka(
    file: Option<KafkaFile>,
    servers: Option<String>,
    reader: bool,
) -> Result<Option<kafka::Options>, ConfigError> {
    let bad = |reason: String| ConfigError::Bad { key: "kafka", reason };
    let Some(file) = file.or_else(|| servers.is_some().then(KafkaFile::default)) else { return Ok(None) };
    let servers = servers.or(file.bootstrap_servers).filter(|servers| !servers.is_empty());
    let servers = servers.ok_or_else(|| bad("no `bootstrap_servers`; give the brokers as host:port,host:port".to_owned()))?;
    let mut given = BTreeMap::new();
    for (key, value) in file.properties {
        if !key.contains('.') {
            let nearest = KAFKA_KEYS.iter().min_by_key(|k| strsim::damerau_levenshtein(&key, k)).copied().unwrap_or_default();
            return Err(bad(format!("unknown key `{key}`; did you mean `{nearest}`? Properties of librdkafka have a dot")));
        }
        let text = match value {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Bool(truth) => truth.to_string(),
            Value::Null | Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => {
                return Err(bad(format!("`{key}` is neither text nor a number nor a truth value")));
            }
        };
        match key.strip_suffix("_file") {
            Some(property) => {
                let read = std::fs::read_to_string(&text).map_err(|e| bad(format!("`{key}`: cannot read {text}: {e}")))?;
                given.insert(property.to_owned(), read.trim_end_matches(['\r', '\n']).to_owned());
            }
            None => {
                given.insert(key, text);
            }
        }
    }
    let ours = |key: String| bad(format!("`{key}` is set by strandline, for its promises stand on it; leave it out"));
    let mut options = kafka::Options::new(Properties::new(&servers, given).map_err(ours)?);
    options.partitions = file.partitions.unwrap_or(options.partitions);
    if !(1..=10_000).contains(&options.partitions) {
        return Err(bad("`partitions` is 1 to 10,000".to_owned()));
    }
    options.replication = file.replication;
    options.retention_ms = file.retention.map_or(options.retention_ms, Span::ms);
    if options.retention_ms < 7 * schemas::time::DAY_MS {
        return Err(bad("`retention` is at least 7d: it is what a sink that stands still has until data is lost".to_owned()));
    }
    options.timeout = file.timeout.map_or(options.timeout, |span| span.0).max(Duration::from_secs(1));
    options.share = match (file.group, file.member, file.members) {
        (None, None, None) => Share::All,
        (Some(group), None, None) if reader && !group.is_empty() => Share::Group(group),
        (None, Some(member), Some(members)) if reader && member < members => Share::Fixed { member, members },
        _ if !reader => return Err(bad("`group`, `member` and `members` are the sink's".to_owned())),
        _ => return Err(bad("give `group`, or `member` (from 0) with `members`, or none of them for all partitions".to_owned())),
    };
    Ok(Some(options))
}

/// Resource names: `nvidia.com/mig-*` is a beginning, anything else a whole name.
pub(crate) fn names(given: Option<Vec<String>>) -> ResourceNames {
    let Some(given) = given else { return ResourceNames::default() };
    let (prefixes, exact): (Vec<String>, Vec<String>) = given.into_iter().partition(|name| name.ends_with('*'));
    let prefixes = prefixes.into_iter().map(|p| p.trim_end_matches('*').to_owned()).collect();
    ResourceNames { exact, prefixes, ..ResourceNames::default() }
}

pub(crate) fn positive(key: &'static str, value: i64) -> Result<(), ConfigError> {
    if value > 0 { Ok(()) } else { Err(ConfigError::Bad { key, reason: "must be more than nothing".to_owned() }) }
}

/// Reads a file, refusing keys that nobody reads.
pub(crate) fn read<T: Default + for<'de> Deserialize<'de>>(
    path: Option<&Path>,
    known: &'static [&'static str],
) -> Result<T, ConfigError> {
    let Some(path) = path else { return Ok(T::default()) };
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let yaml = |e: serde_yaml_ng::Error| ConfigError::Yaml { path: path.to_owned(), reason: e.to_string() };
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(T::default());
    }
    let whole: Mapping = serde_yaml_ng::from_str(&text).map_err(yaml)?;
    check_keys(path, &whole, known)?;
    // From the text again, so that errors name their line.
    serde_yaml_ng::from_str(&text).map_err(yaml)
}

/// Refuses a key that nobody reads, here or below. Depth is bounded: only known keys are followed.
fn check_keys(path: &Path, mapping: &Mapping, known: &'static [&'static str]) -> Result<(), ConfigError> {
    for key in mapping.keys() {
        let key = key.as_str().map_or_else(|| format!("{key:?}"), str::to_owned);
        if !known.contains(&key.as_str()) {
            let nearest = known.iter().min_by_key(|k| strsim::damerau_levenshtein(&key, k)).copied().unwrap_or_default();
            return Err(ConfigError::UnknownKey { path: path.to_owned(), key, nearest });
        }
    }
    for (key, below) in KEYS_BELOW.iter().filter(|(key, _)| known.contains(key)) {
        let value = mapping.get(*key);
        if let Some(Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Tagged(_)) = value {
            // Not left to the next reading, which would print what it found: that may be a secret in the wrong place.
            let reason = format!("`{key}` has keys of its own: {}", below.join(", "));
            return Err(ConfigError::Yaml { path: path.to_owned(), reason });
        }
        let list = value.and_then(Value::as_sequence).into_iter().flatten();
        for entry in list.chain(value).filter_map(Value::as_mapping) {
            check_keys(path, entry, below)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
