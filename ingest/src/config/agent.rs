//! The agent's file and its command line.

use super::{ConfigError, KafkaFile, NO_LOG, Span, kafka, log_bounds, names, one_log, one_of, positive, read};
use crate::discovery::{Defaults, Files, Pattern};
use crate::local::LocalPods;
use crate::scrape::{Access, AccessError, Authorization, BasicAuth, TlsConfig};
use crate::transport::kafka::Options as KafkaOptions;
use crate::transport::{local, spool};
use crate::{agent, join, kubernetes, page, publish};
use clap::Args;
use schemas::labels::Contract;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

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
    /// Prometheus web-config file for those pages: TLS, client certificates, users; read again when it changes [default: plain HTTP]
    #[arg(long, env = "STRANDLINE_WEB_CONFIG_FILE", value_name = "FILE")]
    pub web_config_file: Option<PathBuf>,
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
    web_config_file: Option<PathBuf>,
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
    "web_config_file",
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
    /// Web-config file of those pages; none: plain HTTP, for everyone.
    pub web_config_file: Option<PathBuf>,
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
        options: KafkaOptions,
        /// Folder of the spool.
        spool_dir: PathBuf,
        /// Its bounds.
        spool: spool::Options,
    },
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
        let web_config_file = args.web_config_file.or(file.web_config_file);
        Ok(AgentConfig { options, targets, files, kubernetes, local_pods, transport, listen, web_config_file })
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
            ("web_config_file", self.web_config_file == next.web_config_file),
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

fn target(node: &str, address: &str, podres_socket: Option<PathBuf>, defaults: &Defaults) -> Result<agent::Target, ConfigError> {
    let bad = |reason| ConfigError::Bad { key: "targets", reason };
    if node.is_empty() {
        return Err(bad(format!("the target {address} has no node")));
    }
    let address = defaults.address(address).map_err(|reason| bad(format!("{node}: {reason}")))?;
    Ok(agent::Target { node: node.to_owned(), address, podres_socket })
}
