//! Configuration of `allocations`.

use super::books::refuses;
use crate::config::{ConfigError, KafkaFile, NO_LOG, Span, kafka as kafka_options, log_bounds, names, one_log, positive, read};
use crate::transport::{kafka, local};
use attribution::pods::options::NodeLabels;
use attribution::pods::{Options, TeamSource};
use attribution::watch::LeaseOptions;
use clap::Args;
use schemas::labels::Contract;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of `allocations`.
#[derive(Debug, Clone, Default, Args)]
pub struct AllocationsArgs {
    /// YAML file; environment and flags go over it
    #[arg(long, env = "STRANDLINE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of the cluster
    #[arg(long, env = "STRANDLINE_CLUSTER")]
    pub cluster: Option<String>,
    /// How to reach the API server [default: the pod's service account, else KUBECONFIG]
    #[arg(long, env = "STRANDLINE_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of this process among those that may lead [default: POD_NAME, else HOSTNAME]
    #[arg(long, env = "STRANDLINE_IDENTITY")]
    pub identity: Option<String>,
    /// Namespace of the lease by which one leads [default: POD_NAMESPACE, else strandline]
    #[arg(long, env = "STRANDLINE_LEASE_NAMESPACE", value_name = "NAMESPACE")]
    pub lease_namespace: Option<String>,
    /// Folder of the log that states are taken into; one of its own
    #[arg(long, env = "STRANDLINE_LOG_DIR", value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Brokers of Apache Kafka, instead of a log folder: host:port,host:port (TLS, SASL and more: `kafka` in the file)
    #[arg(long, env = "STRANDLINE_KAFKA", value_name = "SERVERS")]
    pub kafka: Option<String>,
    /// Where to serve /metrics, /-/healthy and /-/ready [default: 127.0.0.1:9403]
    #[arg(long, env = "STRANDLINE_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Prometheus web-config file for those pages: TLS, client certificates, users; read again when it changes [default: plain HTTP]
    #[arg(long, env = "STRANDLINE_WEB_CONFIG_FILE", value_name = "FILE")]
    pub web_config_file: Option<PathBuf>,
}

/// The file. Every key may be left out.
#[derive(Debug, Clone, Default, Deserialize)]
struct File {
    cluster: Option<String>,
    kubeconfig: Option<PathBuf>,
    identity: Option<String>,
    lease_namespace: Option<String>,
    lease_name: Option<String>,
    lease_duration: Option<Span>,
    timeout: Option<Span>,
    snapshot_every: Option<Span>,
    resource_names: Option<Vec<String>>,
    claim_drivers: Option<Vec<String>>,
    team: Option<Vec<TeamEntry>>,
    queue_labels: Option<Vec<String>>,
    priority_class_labels: Option<Vec<String>>,
    #[serde(default)]
    node_labels: NodeLabelsEntry,
    refuse_labels: Option<Vec<String>>,
    log_dir: Option<PathBuf>,
    log_partitions: Option<u32>,
    log_retention: Option<Span>,
    log_retention_bytes: Option<u64>,
    kafka: Option<KafkaFile>,
    agent_logs: Option<Vec<PathBuf>>,
    reconcile_after: Option<Span>,
    listen: Option<String>,
    web_config_file: Option<PathBuf>,
}

/// One source of the chain of teams: one of its keys.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TeamEntry {
    pod_label: Option<String>,
    namespace_label: Option<String>,
    mapping_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeLabelsEntry {
    product: Option<Vec<String>>,
    region: Option<Vec<String>>,
    zone: Option<Vec<String>>,
    provider: Option<Vec<String>>,
    purchase_option: Option<Vec<String>>,
    reservation: Option<Vec<String>>,
    replicas: Option<Vec<String>>,
}

const KEYS: &[&str] = &[
    "cluster",
    "kubeconfig",
    "identity",
    "lease_namespace",
    "lease_name",
    "lease_duration",
    "timeout",
    "snapshot_every",
    "resource_names",
    "claim_drivers",
    "team",
    "queue_labels",
    "priority_class_labels",
    "node_labels",
    "refuse_labels",
    "log_dir",
    "log_partitions",
    "log_retention",
    "log_retention_bytes",
    "kafka",
    "agent_logs",
    "reconcile_after",
    "listen",
    "web_config_file",
];
pub(crate) const TEAM_KEYS: &[&str] = &["pod_label", "namespace_label", "mapping_file"];

/// What `allocations` runs with.
#[derive(Debug, Clone)]
pub struct AllocationsConfig {
    /// Name of the cluster.
    pub cluster: String,
    /// How to reach the API server; none: the service account, else `KUBECONFIG`.
    pub kubeconfig: Option<PathBuf>,
    /// Which labels and resource names are read.
    pub options: Options,
    /// The lease by which one leads. Default: `strandline-allocations`, 15 s.
    pub lease: LeaseOptions,
    /// Time for an answer. Default: 30 s.
    pub timeout: Duration,
    /// Time between two full snapshots. Default: 10 minutes.
    pub snapshot_every_ms: i64,
    /// Labels that may not name anything.
    pub contract: Contract,
    /// Where states are taken.
    pub transport: Transport,
    /// Folders of agents' embedded logs, whose sightings are compared with what the API server says beside those in `transport`.
    pub agent_logs: Vec<PathBuf>,
    /// How long the API server and a kubelet must disagree on a pod until that counts. Default: 60 s.
    pub reconcile_after_ms: i64,
    /// Where its own pages are.
    pub listen: String,
    /// Web-config file of those pages; none: plain HTTP, for everyone.
    pub web_config_file: Option<PathBuf>,
}

/// Where states are taken.
#[derive(Debug, Clone, PartialEq)]
pub enum Transport {
    /// The embedded log.
    Log {
        /// Its folder.
        dir: PathBuf,
        /// Partitions of each topic, where they are created.
        partitions: u32,
        /// Its bounds.
        options: local::Options,
    },
    /// Kafka.
    Kafka(kafka::Options),
}

impl AllocationsConfig {
    /// The configuration that these arguments, and the file they name, add up to.
    pub fn load(args: AllocationsArgs) -> Result<Self, ConfigError> {
        let file: File = read(args.config.as_deref(), KEYS)?;
        let cluster = args
            .cluster
            .or(file.cluster)
            .ok_or(ConfigError::Missing("no cluster; give --cluster NAME, STRANDLINE_CLUSTER, or `cluster:` in the file"))?;
        if cluster.is_empty() || cluster.contains('/') {
            return Err(ConfigError::Bad { key: "cluster", reason: "a name without `/` is needed".to_owned() });
        }
        let kafka = kafka_options(file.kafka, args.kafka, false)?;
        let log_dir = one_log(args.log_dir.or(file.log_dir), kafka.is_some())?;
        let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let identity = args.identity.or(file.identity).or_else(|| environment("POD_NAME")).or_else(|| environment("HOSTNAME"));
        let namespace = args.lease_namespace.or(file.lease_namespace).or_else(|| environment("POD_NAMESPACE"));
        let lease = LeaseOptions {
            namespace: namespace.unwrap_or_else(|| "strandline".to_owned()),
            name: file.lease_name.unwrap_or_else(|| "strandline-allocations".to_owned()),
            identity: identity.ok_or(ConfigError::Missing("no name for this process; give --identity NAME"))?,
            duration: Duration::from_millis(file.lease_duration.map_or(15_000, Span::ms).unsigned_abs()),
        };
        if lease.duration < Duration::from_secs(1) || !lease.duration.as_millis().is_multiple_of(1000) {
            return Err(ConfigError::Bad { key: "lease_duration", reason: "whole seconds, at least one".to_owned() });
        }
        for (key, name) in [("lease_namespace", &lease.namespace), ("lease_name", &lease.name)] {
            let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
            if name.is_empty() || name.len() > 253 || !name.bytes().all(fits) {
                return Err(ConfigError::Bad { key, reason: format!("`{name}` is no name of an object in Kubernetes") });
            }
        }
        let mut options = Options { resources: names(file.resource_names), ..Options::default() };
        options.resources.drivers = file.claim_drivers.unwrap_or(options.resources.drivers);
        if let Some(entries) = file.team {
            options.team = entries.into_iter().map(team).collect::<Result<_, _>>()?;
        }
        options.queue = file.queue_labels.unwrap_or(options.queue);
        options.priority_class = file.priority_class_labels.unwrap_or(options.priority_class);
        options.node_labels = node_labels(file.node_labels, options.node_labels);
        let refused = Contract::new(file.refuse_labels.unwrap_or_default());
        contract(&options, &refused)?;
        let timeout = file.timeout.map_or(30_000, Span::ms);
        let snapshot_every_ms = file.snapshot_every.map_or(600_000, Span::ms);
        positive("timeout", timeout)?;
        positive("snapshot_every", snapshot_every_ms)?;
        if snapshot_every_ms > 600_000 {
            let reason = "at most 10m: who begins reads half an hour of the log, and must find everything in it".to_owned();
            return Err(ConfigError::Bad { key: "snapshot_every", reason });
        }
        let (partitions, log) = log_bounds(file.log_partitions, file.log_retention, file.log_retention_bytes)?;
        let transport = match (log_dir, kafka) {
            (Some(dir), _) => Transport::Log { dir, partitions, options: log },
            (None, Some(options)) => Transport::Kafka(options),
            (None, None) => return Err(NO_LOG),
        };
        let reconcile_after_ms = file.reconcile_after.map_or(60_000, Span::ms);
        positive("reconcile_after", reconcile_after_ms)?;
        Ok(AllocationsConfig {
            cluster,
            kubeconfig: args.kubeconfig.or(file.kubeconfig),
            options,
            lease,
            timeout: Duration::from_millis(timeout.unsigned_abs()),
            snapshot_every_ms,
            contract: refused,
            transport,
            agent_logs: file.agent_logs.unwrap_or_default(),
            reconcile_after_ms,
            listen: args.listen.or(file.listen).unwrap_or_else(|| "127.0.0.1:9403".to_owned()),
            web_config_file: args.web_config_file.or(file.web_config_file),
        })
    }

    /// Whether a running process with this configuration can go on with `next`: the mappings of teams may say something else.
    ///
    /// Errors: what holds for the life of the process.
    pub fn can_become(&self, next: &Self) -> Result<(), ConfigError> {
        let unmapped = |config: &Self| {
            let mut config = config.clone();
            let mappings = config.options.team.iter_mut().filter_map(|source| match source {
                TeamSource::Mapping(teams) => Some(teams),
                TeamSource::PodLabel(_) | TeamSource::NamespaceLabel(_) => None,
            });
            mappings.for_each(BTreeMap::clear);
            // Compared as shown, which has every field of it but secrets; those are in `transport`.
            format!("{config:?}")
        };
        if unmapped(self) != unmapped(next) || self.transport != next.transport {
            return Err(ConfigError::Missing(
                "only what the mapping files of `team` say can change while this process runs; start it again for the rest",
            ));
        }
        Ok(())
    }
}

fn team(entry: TeamEntry) -> Result<TeamSource, ConfigError> {
    match (entry.pod_label, entry.namespace_label, entry.mapping_file) {
        (Some(label), None, None) => Ok(TeamSource::PodLabel(label)),
        (None, Some(label), None) => Ok(TeamSource::NamespaceLabel(label)),
        (None, None, Some(path)) => mapping(&path).map(TeamSource::Mapping),
        _ => {
            let reason = "each source is one of pod_label, namespace_label and mapping_file".to_owned();
            Err(ConfigError::Bad { key: "team", reason })
        }
    }
}

/// A YAML file of `namespace: team`.
fn mapping(path: &Path) -> Result<BTreeMap<String, String>, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    serde_yaml_ng::from_str(&text).map_err(|e| ConfigError::Yaml { path: path.to_owned(), reason: e.to_string() })
}

fn node_labels(given: NodeLabelsEntry, default: NodeLabels) -> NodeLabels {
    NodeLabels {
        product: given.product.unwrap_or(default.product),
        region: given.region.unwrap_or(default.region),
        zone: given.zone.unwrap_or(default.zone),
        provider: given.provider.unwrap_or(default.provider),
        purchase_option: given.purchase_option.unwrap_or(default.purchase_option),
        reservation: given.reservation.unwrap_or(default.reservation),
        replicas: given.replicas.unwrap_or(default.replicas),
    }
}

/// Labels that can carry people or prompts name no team, queue or product (DESIGN 3.5). All other labels of objects are not read.
fn contract(options: &Options, contract: &Contract) -> Result<(), ConfigError> {
    let of_team = options.team.iter().filter_map(|source| match source {
        TeamSource::PodLabel(label) | TeamSource::NamespaceLabel(label) => Some(("team", label)),
        TeamSource::Mapping(_) => None,
    });
    let nodes = &options.node_labels;
    let of_nodes = [
        &nodes.product,
        &nodes.region,
        &nodes.zone,
        &nodes.provider,
        &nodes.purchase_option,
        &nodes.reservation,
        &nodes.replicas,
    ];
    let lists = [("queue_labels", &options.queue), ("priority_class_labels", &options.priority_class)];
    let all = of_team
        .chain(lists.into_iter().flat_map(|(key, labels)| labels.iter().map(move |label| (key, label))))
        .chain(of_nodes.into_iter().flatten().map(|label| ("node_labels", label)));
    for (key, label) in all {
        if refuses(contract, label) {
            let reason = format!("the label `{label}` can carry people or prompts and is refused; name another");
            return Err(ConfigError::Bad { key, reason });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn load(text: &str) -> Result<AllocationsConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("allocations.yaml");
        std::fs::write(dir.path().join("teams.yaml"), "search: ranking\n").unwrap();
        std::fs::write(&path, text.replace("TEAMS", &dir.path().join("teams.yaml").display().to_string())).unwrap();
        let args = AllocationsArgs { config: Some(path.clone()), identity: Some("a".into()), ..AllocationsArgs::default() };
        AllocationsConfig::load(args).map_err(|e| e.to_string().replace(&path.display().to_string(), "FILE"))
    }

    const FILE: &str = "cluster: reef\nlog_dir: /log\n";

    #[test]
    fn the_chain_of_teams_is_read_in_order() {
        let config = load(&format!(
            "{FILE}team:\n- pod_label: example.com/team\n- mapping_file: TEAMS\n- namespace_label: owner\nlease_duration: 3s\n"
        ))
        .unwrap();
        let mapping = [("search".to_owned(), "ranking".to_owned())].into();
        let label = |label: &str| label.to_owned();
        assert_eq!(
            config.options.team,
            [
                TeamSource::PodLabel(label("example.com/team")),
                TeamSource::Mapping(mapping),
                TeamSource::NamespaceLabel(label("owner"))
            ]
        );
        assert_eq!(config.lease.duration, Duration::from_secs(3));
        assert_eq!(config.lease.name, "strandline-allocations");
    }

    #[test]
    fn kafka_is_given_instead_of_a_log() {
        let config = load("cluster: reef\nkafka: {bootstrap_servers: 'a:1', partitions: 3}\n").unwrap();
        assert!(matches!(config.transport, Transport::Kafka(options) if options.partitions == 3));
    }

    #[test]
    fn mistakes_are_named_with_the_way_out() {
        let error = |text: &str| load(&format!("{FILE}{text}")).unwrap_err();
        assert_eq!(error("teams: []\n"), "FILE: unknown key `teams`; did you mean `team`?");
        assert!(error("team: [{}]\n").contains("one of pod_label, namespace_label and mapping_file"));
        assert!(error("team: [{mapping_file: /no/such}]\n").contains("/no/such"));
        assert!(error("team: [{pod_label: user_email}]\n").contains("`user_email` can carry people or prompts"));
        assert!(error("team: [{pod_label: acme.io/prompt}]\n").contains("is refused"));
        assert!(error("node_labels: {region: [cost_owner]}\nrefuse_labels: ['*owner*']\n").contains("`cost_owner`"));
        assert!(error("lease_duration: 500ms\n").contains("whole seconds"));
        assert!(error("lease_name: A/b\n").contains("no name of an object"));
        assert!(error("snapshot_every: 1h\n").contains("at most 10m"));
        assert!(error("kafka: {bootstrap_servers: 'a:1'}\n").contains("leave one out"));
        assert!(error("reconcile_after: 0s\n").contains("more than nothing"));
        assert!(load("cluster: reef\n").unwrap_err().starts_with("no log"));
    }
}
