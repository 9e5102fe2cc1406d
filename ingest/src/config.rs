//! Configuration of the two commands: a YAML file, environment `STRANDLINE_*` over it, flags over both; then checked types.

use crate::close;
use crate::discovery::{Defaults, Files, Pattern};
use crate::local::LocalPods;
use crate::page;
use crate::scrape::{Access, AccessError, Authorization, BasicAuth, TlsConfig};
use crate::transport::kafka::{self, Properties, Share};
use crate::transport::{local, spool};
use crate::{agent, join, kubernetes, publish, sink};
use attribution::ResourceNames;
use clap::Args;
use schemas::labels::Contract;
use serde::Deserialize;
use serde_yaml_ng::{Mapping, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

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

/// Options of `agent`.
#[derive(Debug, Clone, Default, Args)]
pub struct AgentArgs {
    /// YAML file; environment and flags go over it
    #[arg(long, env = "STRANDLINE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of the cluster
    #[arg(long, env = "STRANDLINE_CLUSTER")]
    pub cluster: Option<String>,
    /// Name of this node: with --target that of the one page to scrape (more of them: `targets` in the file), without it the node
    /// whose exporters `kubernetes` in the file finds
    #[arg(long, env = "STRANDLINE_NODE")]
    pub node: Option<String>,
    /// Page of this node's exporter, such as localhost:9400
    #[arg(long, env = "STRANDLINE_TARGET", value_name = "ADDRESS")]
    pub target: Option<String>,
    /// The kubelet's pod-resources socket of this node; without one, the page's own pod labels name the holders
    #[arg(long, env = "STRANDLINE_PODRES_SOCKET", value_name = "PATH")]
    pub podres_socket: Option<PathBuf>,
    /// The kubelet's pods socket of this node (Kubernetes 1.37: /var/lib/kubelet/pods-api/pods-api.sock): who holds devices and
    /// since when, where no `allocations` watches the cluster
    #[arg(long, env = "STRANDLINE_PODS_SOCKET", value_name = "PATH")]
    pub pods_socket: Option<PathBuf>,
    /// Scrape interval [default: 15s]
    #[arg(long, env = "STRANDLINE_INTERVAL")]
    pub interval: Option<Span>,
    /// Folder of the log that rounds are taken into
    #[arg(long, env = "STRANDLINE_LOG_DIR", value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Brokers of Apache Kafka, instead of a log folder: host:port,host:port (TLS, SASL and more: `kafka` in the file)
    #[arg(long, env = "STRANDLINE_KAFKA", value_name = "SERVERS")]
    pub kafka: Option<String>,
    /// Folder for what the agent remembers between runs [default: the log's folder]
    #[arg(long, env = "STRANDLINE_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Where to serve /metrics, /-/healthy and /-/ready [default: 127.0.0.1:9401]
    #[arg(long, env = "STRANDLINE_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<String>,
}

/// Options of `sink`.
#[derive(Debug, Clone, Default, Args)]
pub struct SinkArgs {
    /// YAML file; environment and flags go over it
    #[arg(long, env = "STRANDLINE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The lake: a folder, or s3://BUCKET/PREFIX (reached as AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, ... say)
    #[arg(long, env = "STRANDLINE_LAKE", value_name = "DIR")]
    pub lake: Option<PathBuf>,
    /// Folder of the log that the agent writes
    #[arg(long, env = "STRANDLINE_LOG_DIR", value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Brokers of Apache Kafka, instead of a log folder: host:port,host:port (TLS, SASL, groups and more: `kafka` in the file)
    #[arg(long, env = "STRANDLINE_KAFKA", value_name = "SERVERS")]
    pub kafka: Option<String>,
    /// Age at which rows are published even if they are few [default: 60s]
    #[arg(long, env = "STRANDLINE_CUT_AGE")]
    pub cut_age: Option<Span>,
    /// Time past its end after which an hour is closed [default: 10m]
    #[arg(long, env = "STRANDLINE_CLOSE_AFTER")]
    pub close_after: Option<Span>,
    /// Time past its end until which late rows reopen an hour [default: 7d]
    #[arg(long, env = "STRANDLINE_LATE_LIMIT")]
    pub late_limit: Option<Span>,
    /// Time after which hot files go whose rows are all in closed hours; at least `late_limit` and 2h [default: 14d]
    #[arg(long, env = "STRANDLINE_HOT_RETENTION")]
    pub hot_retention: Option<Span>,
    /// Time after which goes what hour rows were made from; the hour rows stay [default: never]
    #[arg(long, env = "STRANDLINE_CLOSED_RETENTION")]
    pub closed_retention: Option<Span>,
    /// Go on although a topic was created anew; its old messages must all be in the lake
    #[arg(long)]
    pub accept_new_topic: bool,
    /// Go on although messages were dropped before they were read; they are counted in `rejects`
    #[arg(long)]
    pub skip_lost: bool,
    /// Where to serve /metrics, /-/healthy and /-/ready [default: 127.0.0.1:9402]
    #[arg(long, env = "STRANDLINE_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<String>,
}

/// The agent's file. Every key may be left out.
#[derive(Debug, Clone, Default, Deserialize)]
struct AgentFile {
    cluster: Option<String>,
    #[serde(default)]
    targets: Vec<TargetEntry>,
    #[serde(default)]
    file_sd_configs: Vec<FileSdEntry>,
    kubernetes: Option<kubernetes::config::Entry>,
    pods_socket: Option<PathBuf>,
    scheme: Option<String>,
    metrics_path: Option<String>,
    basic_auth: Option<BasicAuth>,
    authorization: Option<Authorization>,
    tls_config: Option<TlsConfig>,
    enable_compression: Option<bool>,
    interval: Option<Span>,
    collect_interval: Option<Span>,
    timeout: Option<Span>,
    max_body_bytes: Option<usize>,
    max_message_bytes: Option<usize>,
    concurrency: Option<usize>,
    hold_over: Option<Span>,
    resource_names: Option<Vec<String>>,
    refuse_labels: Option<Vec<String>>,
    publish_nodes: Option<bool>,
    log_dir: Option<PathBuf>,
    log_partitions: Option<u32>,
    log_retention: Option<Span>,
    log_retention_bytes: Option<u64>,
    state_dir: Option<PathBuf>,
    kafka: Option<KafkaFile>,
    spool_bytes: Option<u64>,
    listen: Option<String>,
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

#[derive(Debug, Clone, Deserialize)]
struct TargetEntry {
    node: String,
    address: String,
    podres_socket: Option<PathBuf>,
    basic_auth: Option<BasicAuth>,
    authorization: Option<Authorization>,
    tls_config: Option<TlsConfig>,
    enable_compression: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
struct FileSdEntry {
    files: Vec<String>,
    refresh_interval: Option<Span>,
}

const AGENT_KEYS: &[&str] = &[
    "cluster",
    "targets",
    "file_sd_configs",
    "kubernetes",
    "pods_socket",
    "scheme",
    "metrics_path",
    "basic_auth",
    "authorization",
    "tls_config",
    "enable_compression",
    "interval",
    "collect_interval",
    "timeout",
    "max_body_bytes",
    "max_message_bytes",
    "concurrency",
    "hold_over",
    "resource_names",
    "refuse_labels",
    "publish_nodes",
    "log_dir",
    "log_partitions",
    "log_retention",
    "log_retention_bytes",
    "state_dir",
    "kafka",
    "spool_bytes",
    "listen",
];
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

/// The sink's file. Every key may be left out.
#[derive(Debug, Clone, Default, Deserialize)]
struct SinkFile {
    lake: Option<PathBuf>,
    log_dir: Option<PathBuf>,
    cut_age: Option<Span>,
    cut_bytes: Option<usize>,
    cut_rows: Option<usize>,
    total_bytes: Option<usize>,
    close_after: Option<Span>,
    late_limit: Option<Span>,
    hot_retention: Option<Span>,
    closed_retention: Option<Span>,
    kafka: Option<KafkaFile>,
    listen: Option<String>,
}

const SINK_KEYS: &[&str] = &[
    "lake",
    "log_dir",
    "kafka",
    "cut_age",
    "cut_bytes",
    "cut_rows",
    "total_bytes",
    "close_after",
    "late_limit",
    "hot_retention",
    "closed_retention",
    "listen",
];

/// What `agent` runs with.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// How it works.
    pub options: agent::Options,
    /// What it scrapes, by the configuration itself.
    pub targets: Vec<agent::Target>,
    /// Files that name more targets.
    pub files: Files,
    /// How the API server tells of more targets, of claims and of the clocks' difference; none: it is not asked.
    pub kubernetes: Option<kubernetes::source::Options>,
    /// Which kubelet tells its pods; none: none is asked.
    pub local_pods: Option<LocalPods>,
    /// Where rounds are taken.
    pub transport: AgentTransport,
    /// Where its own pages are.
    pub listen: String,
}

/// Where an agent's rounds are taken.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentTransport {
    /// The embedded log.
    Log {
        /// Its folder.
        dir: PathBuf,
        /// Partitions of each topic, where they are created.
        partitions: u32,
        /// Its bounds.
        options: local::Options,
    },
    /// Kafka, and a spool for when it is away.
    Kafka {
        /// The connection.
        options: kafka::Options,
        /// Folder of the spool.
        spool_dir: PathBuf,
        /// Its bounds.
        spool: spool::Options,
    },
}

/// What a sink follows.
#[derive(Debug, Clone)]
pub enum SinkTransport {
    /// The embedded log in this folder.
    Log(PathBuf),
    /// Kafka.
    Kafka(kafka::Options),
}

/// What `sink` runs with.
#[derive(Debug, Clone)]
pub struct SinkConfig {
    /// The lake.
    pub lake: PathBuf,
    /// The log.
    pub transport: SinkTransport,
    /// How it cuts.
    pub sink: sink::Options,
    /// How it closes.
    pub close: close::Options,
    /// Time between two tries after something that may pass: a log that is not there yet, a full disk.
    pub retry_every: Duration,
    /// Where its own pages are.
    pub listen: String,
}

impl AgentConfig {
    /// The configuration that these arguments, and the file they name, add up to.
    pub fn load(args: AgentArgs) -> Result<Self, ConfigError> {
        let file: AgentFile = read(args.config.as_deref(), AGENT_KEYS)?;
        let cluster = args
            .cluster
            .or(file.cluster)
            .ok_or(ConfigError::Missing("no cluster; give --cluster NAME, STRANDLINE_CLUSTER, or `cluster:` in the file"))?;
        if cluster.is_empty() || cluster.contains('/') {
            return Err(ConfigError::Bad { key: "cluster", reason: "a name without `/` is needed".to_owned() });
        }
        let defaults = Defaults {
            scheme: one_of("scheme", file.scheme, "http", &["http", "https"])?,
            metrics_path: file.metrics_path.unwrap_or_else(|| "/metrics".to_owned()),
            access: access("", file.basic_auth, file.authorization, file.tls_config, file.enable_compression)?
                .unwrap_or_default(),
        };
        let mut targets = Vec::new();
        for entry in file.targets {
            let own = access(&entry.node, entry.basic_auth, entry.authorization, entry.tls_config, entry.enable_compression)?;
            let defaults = Defaults { access: own.unwrap_or_else(|| defaults.access.clone()), ..defaults.clone() };
            targets.push(target(&entry.node, &entry.address, entry.podres_socket, &defaults)?);
        }
        match (&args.node, &args.target) {
            (Some(node), Some(address)) => targets = vec![target(node, address, args.podres_socket.clone(), &defaults)?],
            (None, None) => {}
            (Some(_), None) if file.kubernetes.is_some() => {}
            _ => return Err(ConfigError::Missing("--node and --target go together: the node's name, and its page")),
        }
        let files = files(&file.file_sd_configs, defaults.clone())?;
        let interval = args.interval.or(file.interval).map_or(15_000, Span::ms);
        let timeout = file.timeout.map_or(interval.min(10_000), Span::ms);
        positive("interval", interval)?;
        positive("timeout", timeout)?;
        let asked = file.kubernetes.map(|entry| {
            // With --target, the socket is that target's.
            let socket = args.podres_socket.clone().filter(|_| args.target.is_none());
            entry.checked(args.node.clone(), socket, defaults, Duration::from_millis(timeout.unsigned_abs()))
        });
        let kubernetes = asked.transpose()?;
        if targets.is_empty() && files.is_empty() && kubernetes.as_ref().is_none_or(|how| how.exporters.is_none()) {
            return Err(ConfigError::Missing(
                "nothing to scrape; give --node NAME --target localhost:9400, or `targets:`, `file_sd_configs:` or `kubernetes:` in \
                 the file",
            ));
        }
        let kafka = kafka(file.kafka, args.kafka, false)?;
        let log_dir = one_log(args.log_dir.or(file.log_dir), kafka.is_some())?;
        let mut options = agent::Options::new(&cluster);
        options.interval_ms =
            u32::try_from(interval).map_err(|_| ConfigError::Bad { key: "interval", reason: "at most 49 days".to_owned() })?;
        if let Some(collect) = file.collect_interval {
            positive("collect_interval", collect.ms())?;
            let ms = u32::try_from(collect.ms());
            let bad = |_| ConfigError::Bad { key: "collect_interval", reason: "at most 49 days".to_owned() };
            options.collect_interval_ms = Some(ms.map_err(bad)?);
        }
        options.timeout = Duration::from_millis(timeout.unsigned_abs());
        options.max_body_bytes = file.max_body_bytes.unwrap_or(options.max_body_bytes);
        options.max_message_bytes = file.max_message_bytes.unwrap_or(publish::MAX_MESSAGE_BYTES);
        options.concurrency = file.concurrency.unwrap_or(options.concurrency);
        for (key, value) in [
            ("max_body_bytes", options.max_body_bytes),
            ("max_message_bytes", options.max_message_bytes),
            ("concurrency", options.concurrency),
        ] {
            positive(key, i64::try_from(value).unwrap_or(i64::MAX))?;
        }
        options.page = page::Options {
            limits: crate::parse::Limits { page_bytes: options.max_body_bytes, ..Default::default() },
            contract: Contract::new(file.refuse_labels.unwrap_or_default()),
            ..page::Options::default()
        };
        options.join = join::Options { names: names(file.resource_names), ..join::Options::default() };
        if let Some(hold_over) = file.hold_over {
            options.join.hold_over_ms = hold_over.ms();
        }
        options.publish_nodes = file.publish_nodes.unwrap_or(false);
        let own = kubernetes.as_ref().and_then(|how| how.exporters.as_ref()?.node.clone());
        let local_pods = match args.pods_socket.or(file.pods_socket) {
            Some(socket) => Some(LocalPods { node: own_node(args.node, own, &targets)?, socket }),
            None => None,
        };
        options.pods_node = local_pods.as_ref().map(|local| local.node.clone());
        let state_dir = args.state_dir.or(file.state_dir).or_else(|| log_dir.clone()).ok_or(ConfigError::Missing(
            "with Kafka the agent needs a folder of its own for its state and its spool; give --state-dir DIR or `state_dir:`",
        ))?;
        options.state_file = Some(state_dir.join("agent-state.json"));
        let max_message_bytes = options.max_message_bytes;
        let (log_partitions, mut log) = log_bounds(file.log_partitions, file.log_retention, file.log_retention_bytes)?;
        log.record_bytes = log.record_bytes.max(max_message_bytes + 1024);
        let mut bounds = spool::Options { record_bytes: log.record_bytes, ..spool::Options::default() };
        bounds.bytes = file.spool_bytes.unwrap_or(bounds.bytes);
        positive("spool_bytes", i64::try_from(bounds.bytes).unwrap_or(i64::MAX))?;
        let transport = match (log_dir, kafka) {
            (Some(dir), _) => AgentTransport::Log { dir, partitions: log_partitions, options: log },
            (None, Some(mut options)) => {
                options.record_bytes = options.record_bytes.max(max_message_bytes + 1024);
                // A round must not wait longer for Kafka than until the next one.
                let most = Duration::from_millis(interval.unsigned_abs()).max(Duration::from_secs(1));
                options.timeout = options.timeout.min(most);
                AgentTransport::Kafka { options, spool_dir: state_dir.join("spool"), spool: bounds }
            }
            (None, None) => return Err(NO_LOG),
        };
        let listen = args.listen.or(file.listen).unwrap_or_else(|| "127.0.0.1:9401".to_owned());
        Ok(AgentConfig { options, targets, files, kubernetes, local_pods, transport, listen })
    }

    /// Whether a running agent with this configuration can go on with `next`.
    ///
    /// Errors: the key that holds for the life of the process.
    pub fn can_become(&self, next: &Self) -> Result<(), ConfigError> {
        for (key, same) in [
            ("cluster", self.options.cluster == next.options.cluster),
            ("state_dir", self.options.state_file == next.options.state_file),
            ("log_dir or kafka", self.transport == next.transport),
            ("max_message_bytes", self.options.max_message_bytes == next.options.max_message_bytes),
            ("listen", self.listen == next.listen),
        ] {
            if !same {
                return Err(ConfigError::Fixed(key));
            }
        }
        Ok(())
    }
}

/// The node that the agent is on: as given, or that of all its targets.
fn own_node(given: Option<String>, own: Option<String>, targets: &[agent::Target]) -> Result<String, ConfigError> {
    let of_targets: BTreeSet<&String> = targets.iter().map(|target| &target.node).collect();
    let only = of_targets.first().filter(|_| of_targets.len() == 1).map(|node| (*node).clone());
    given.or(own).or(only).ok_or(ConfigError::Bad {
        key: "pods_socket",
        reason: "it is one node's; give that node too: --node or STRANDLINE_NODE".to_owned(),
    })
}

/// How to ask; none where nothing of it is given. `of` is the node whose it is, empty for all.
fn access(
    of: &str,
    basic_auth: Option<BasicAuth>,
    authorization: Option<Authorization>,
    tls_config: Option<TlsConfig>,
    enable_compression: Option<bool>,
) -> Result<Option<Arc<Access>>, ConfigError> {
    if basic_auth.is_none() && authorization.is_none() && tls_config.is_none() && enable_compression.is_none() {
        return Ok(None);
    }
    let access = Access::new(basic_auth, authorization, tls_config.unwrap_or_default(), enable_compression.unwrap_or(true));
    let bad = |e: AccessError| match of {
        "" => ConfigError::Bad { key: "how targets are asked", reason: e.to_string() },
        node => ConfigError::Bad { key: "targets", reason: format!("{node}: {e}") },
    };
    access.map(|access| Some(Arc::new(access))).map_err(bad)
}

/// Targets by file. The shortest refresh of all entries holds for all.
fn files(entries: &[FileSdEntry], defaults: Defaults) -> Result<Files, ConfigError> {
    let bad = |reason| ConfigError::Bad { key: "file_sd_configs", reason };
    let patterns = entries.iter().flat_map(|entry| &entry.files).map(|text| Pattern::new(text).map_err(bad));
    let patterns = patterns.collect::<Result<Vec<_>, _>>()?;
    let refresh_ms = entries.iter().filter_map(|entry| entry.refresh_interval).map(Span::ms).min().unwrap_or(5_000);
    positive("file_sd_configs", refresh_ms)?;
    Ok(Files::new(patterns, Duration::from_millis(refresh_ms.unsigned_abs()), defaults))
}

fn one_of(key: &'static str, given: Option<String>, default: &str, allowed: &[&str]) -> Result<String, ConfigError> {
    let value = given.unwrap_or_else(|| default.to_owned());
    if allowed.contains(&value.as_str()) {
        return Ok(value);
    }
    Err(ConfigError::Bad { key, reason: format!("`{value}` is none of {}", allowed.join(", ")) })
}

impl SinkConfig {
    /// The configuration that these arguments, and the file they name, add up to.
    pub fn load(args: SinkArgs) -> Result<Self, ConfigError> {
        let file: SinkFile = read(args.config.as_deref(), SINK_KEYS)?;
        let lake = args.lake.or(file.lake).ok_or(ConfigError::Missing(
            "no lake; give --lake DIR (or s3://BUCKET/PREFIX), STRANDLINE_LAKE, or `lake:` in the file",
        ))?;
        let kafka = kafka(file.kafka, args.kafka, true)?;
        let transport = match (one_log(args.log_dir.or(file.log_dir), kafka.is_some())?, kafka) {
            (Some(dir), _) => SinkTransport::Log(dir),
            (None, Some(options)) => SinkTransport::Kafka(options),
            (None, None) => return Err(NO_LOG),
        };
        let mut sink = sink::Options::default();
        sink.cut_age_ms = args.cut_age.or(file.cut_age).map_or(sink.cut_age_ms, Span::ms);
        sink.cut_bytes = file.cut_bytes.unwrap_or(sink.cut_bytes);
        sink.cut_rows = file.cut_rows.unwrap_or(sink.cut_rows);
        sink.total_bytes = file.total_bytes.unwrap_or(sink.total_bytes);
        sink.accept_new_topic = args.accept_new_topic;
        sink.skip_lost = args.skip_lost;
        let mut close = close::Options::default();
        close.close_after_ms = args.close_after.or(file.close_after).map_or(close.close_after_ms, Span::ms);
        close.late_limit_ms = args.late_limit.or(file.late_limit).map_or(close.late_limit_ms, Span::ms);
        let hot = args.hot_retention.or(file.hot_retention).map_or(14 * schemas::time::DAY_MS, Span::ms);
        let closed = args.closed_retention.or(file.closed_retention).map(Span::ms);
        let least = close.late_limit_ms.saturating_add(2 * schemas::HOUR_MS);
        if hot < least || closed.is_some_and(|closed| closed < hot) {
            return Err(ConfigError::Bad {
                key: if hot < least { "hot_retention" } else { "closed_retention" },
                reason:
                    "at least `late_limit` and 2h for hot files, and no less for closed hours: what may be written again is kept"
                        .to_owned(),
            });
        }
        // It tries again every minute, and reads the log meanwhile.
        close.wait = Duration::from_secs(1);
        close.hot_retention_ms = Some(hot);
        close.closed_retention_ms = closed;
        let listen = args.listen.or(file.listen).unwrap_or_else(|| "127.0.0.1:9402".to_owned());
        Ok(SinkConfig { lake, transport, sink, close, retry_every: Duration::from_secs(5), listen })
    }
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

fn target(node: &str, address: &str, podres_socket: Option<PathBuf>, defaults: &Defaults) -> Result<agent::Target, ConfigError> {
    let bad = |reason| ConfigError::Bad { key: "targets", reason };
    if node.is_empty() {
        return Err(bad(format!("the target {address} has no node")));
    }
    let address = defaults.address(address).map_err(|reason| bad(format!("{node}: {reason}")))?;
    Ok(agent::Target { node: node.to_owned(), address, podres_socket })
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
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn agent(text: &str, args: AgentArgs) -> Result<AgentConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.yaml");
        std::fs::write(&path, text).unwrap();
        AgentConfig::load(AgentArgs { config: Some(path.clone()), ..args })
            .map_err(|e| e.to_string().replace(&path.display().to_string(), "FILE"))
    }

    const FILE: &str = "cluster: reef\nlog_dir: /log\ninterval: 30s\nrefuse_labels: ['*secret*']\n\
                        targets:\n  - {node: dune-1, address: 'dune-1:9400', podres_socket: /s}\n";

    #[test]
    fn a_file_is_read_and_flags_go_over_it() {
        let config = agent(FILE, AgentArgs::default()).unwrap();
        assert_eq!((config.options.cluster.as_str(), config.options.interval_ms), ("reef", 30_000));
        assert_eq!(config.targets[0].address.as_text(), "http://dune-1:9400/metrics");
        assert_eq!(config.options.state_file.as_deref(), Some(Path::new("/log/agent-state.json")));
        assert!(config.options.page.contract.refuses("my_secret"));
        let args = AgentArgs {
            interval: Some("5s".parse().unwrap()),
            node: Some("n".into()),
            target: Some("localhost:1".into()),
            ..AgentArgs::default()
        };
        let config = agent(FILE, args).unwrap();
        assert_eq!((config.options.interval_ms, config.targets.len()), (5_000, 1));
        assert_eq!((config.targets[0].node.as_str(), config.options.timeout), ("n", Duration::from_secs(5)));
    }

    #[test]
    fn the_example_is_read_as_it_says() {
        let config = agent(include_str!("../../docs/examples/agent.yaml"), AgentArgs::default()).unwrap();
        let pages: Vec<_> = config.targets.iter().map(|t| t.address.as_text()).collect();
        assert_eq!(pages, ["https://dune-1:9400/metrics", "http://surf-1:9400/metrics"]);
        assert_ne!(config.targets[0].address, "https://dune-1:9400/metrics".parse().unwrap(), "it has the access of all");
        assert_eq!(config.options.collect_interval_ms, Some(30_000));
        assert!(!config.files.is_empty());
    }

    #[test]
    fn secrets_in_the_wrong_place_are_not_shown() {
        for wrong in
            ["basic_auth: hush", "authorization: hush", "targets: hush", "basic_auth: {username: a, password: {hush: 1}}"]
        {
            let error = agent(&format!("cluster: reef\nlog_dir: /log\n{wrong}\n"), AgentArgs::default()).unwrap_err();
            assert!(error.starts_with("FILE: ") && !error.contains("hush"), "{error}");
        }
        let both = format!("{FILE}basic_auth: {{username: a}}\nauthorization: {{credentials: hush}}\n");
        assert_eq!(
            agent(&both, AgentArgs::default()).unwrap_err(),
            "how targets are asked: give `basic_auth` or `authorization`, not both"
        );
        let good = agent(&format!("{FILE}authorization: {{credentials: hush}}\n"), AgentArgs::default()).unwrap();
        assert!(!format!("{good:?}").contains("hush"));
    }

    #[test]
    fn what_holds_for_the_life_of_the_process_is_named() {
        let config = agent(FILE, AgentArgs::default()).unwrap();
        let next = |from: &str, to: &str| config.can_become(&agent(&FILE.replace(from, to), AgentArgs::default()).unwrap());
        next("30s", "15s").unwrap();
        next("dune-1:9400", "dune-2:9400").unwrap();
        assert!(next("reef", "bay").unwrap_err().to_string().starts_with("`cluster` cannot change while this process runs"));
        assert!(next("/log", "/other").unwrap_err().to_string().contains("cannot change"));
    }

    #[test]
    fn mistakes_are_named_with_the_way_out() {
        let error = |text: &str| agent(text, AgentArgs::default()).unwrap_err();
        assert_eq!(error("clusster: x\n"), "FILE: unknown key `clusster`; did you mean `cluster`?");
        assert_eq!(error("targets: [{node: a, adress: b}]\n"), "FILE: unknown key `adress`; did you mean `address`?");
        assert!(error("interval: soon\n").contains("`soon` is no stretch of time"), "{}", error("interval: soon\n"));
        assert!(error("- a\n").starts_with("FILE: "), "{}", error("- a\n"));
        assert!(error("").starts_with("no cluster; give --cluster"));
        assert!(error("cluster: a/b\n").contains("without `/`"));
        assert!(error("cluster: x\n").starts_with("nothing to scrape"));
        assert_eq!(error("cluster: x\nbasic_auth: {user: me}\n"), "FILE: unknown key `user`; did you mean `username`?");
        assert_eq!(
            error("targets: [{node: a, address: b, tls_config: {insecure_skip_verfy: true}}]\n"),
            "FILE: unknown key `insecure_skip_verfy`; did you mean `insecure_skip_verify`?"
        );
        assert!(error("cluster: x\ntargets: [{node: a, address: b}]\n").starts_with("no log"));
        assert!(error(&FILE.replace("30s", "0s")).contains("interval"));
        let missing = AgentConfig::load(AgentArgs { config: Some("/no/such".into()), ..AgentArgs::default() });
        assert!(missing.unwrap_err().to_string().contains("/no/such"));
        let sink = SinkConfig::load(SinkArgs { lake: Some("/lake".into()), ..SinkArgs::default() }).unwrap_err();
        assert!(sink.to_string().starts_with("no log"));
    }

    #[test]
    fn kafka_is_given_instead_of_a_log_with_secrets_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("password");
        std::fs::write(&secret, "open-sesame\n").unwrap();
        let text = FILE.replace("log_dir: /log\n", "state_dir: /state\n");
        let kafka = |keys: &str| agent(&format!("{text}kafka: {{{keys}}}\n"), AgentArgs::default());
        let keys = format!("bootstrap_servers: 'a:1', sasl.username: u, sasl.password_file: '{}'", secret.display());
        let config = kafka(&keys).unwrap();
        let shown = format!("{config:?}");
        assert!(shown.contains("sasl.password") && !shown.contains("open-sesame"), "{shown}");
        assert!(matches!(config.transport, AgentTransport::Kafka { spool_dir, .. } if spool_dir == Path::new("/state/spool")));
        let error = |keys: &str| kafka(keys).unwrap_err();
        assert!(error("partitions: 3").contains("no `bootstrap_servers`"));
        assert!(error("bootstrap_servers: a, particions: 3").contains("did you mean `partitions`?"));
        assert!(error("bootstrap_servers: a, enable.idempotence: false").contains("set by strandline"));
        assert!(error("bootstrap_servers: a, group: g").contains("the sink's"));
        assert!(error("bootstrap_servers: a, retention: 1d").contains("at least 7d"));
        assert!(error("bootstrap_servers: a, sasl.password_file: /no/such").contains("cannot read /no/such"));
        let both = agent(FILE, AgentArgs { kafka: Some("a:1".into()), ..AgentArgs::default() }).unwrap_err();
        assert!(both.contains("leave one out"), "{both}");
        let homeless = text.replace("state_dir: /state\n", "");
        let homeless = agent(&homeless, AgentArgs { kafka: Some("a:1".into()), ..AgentArgs::default() }).unwrap_err();
        assert!(homeless.contains("--state-dir"), "{homeless}");
    }

    #[test]
    fn a_pods_socket_is_one_nodes() {
        let with = |more: &str| agent(&format!("{FILE}{more}pods_socket: /p\n"), AgentArgs::default());
        let config = with("").unwrap();
        assert_eq!(config.options.pods_node.as_deref(), Some("dune-1"));
        assert_eq!(config.local_pods, Some(LocalPods { node: "dune-1".into(), socket: "/p".into() }));
        let two = with("  - {node: surf-1, address: 'surf-1:9400'}\n").unwrap_err();
        assert!(two.contains("give that node too"), "{two}");
    }

    #[test]
    fn resource_names_with_a_star_are_beginnings() {
        let names = names(Some(vec!["acme.com/gpu".into(), "acme.com/mig-*".into()]));
        assert_eq!((names.exact, names.prefixes), (vec!["acme.com/gpu".to_owned()], vec!["acme.com/mig-".to_owned()]));
    }

    #[test]
    fn stretches_of_time_have_units() {
        for (text, ms) in [("500ms", 500), ("15s", 15_000), ("10m", 600_000), ("2h", 7_200_000), ("7d", 604_800_000)] {
            assert_eq!(text.parse::<Span>().map(Span::ms), Ok(ms));
        }
        for text in ["", "5", "s", "-5s", "1.5s", "5 s", "99999999999999999999d"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
