//! What the books read of objects: resource names, and where the names of teams, queues and the like stand.

use std::collections::BTreeMap;

use crate::holders::ResourceNames;

/// Where a team's name is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TeamSource {
    /// A label of the pod.
    PodLabel(String),
    /// A label of its namespace.
    NamespaceLabel(String),
    /// A list of namespaces and their teams.
    Mapping(BTreeMap<String, String>),
}

/// Which names a book reads.
#[derive(Clone, Debug)]
pub struct Options {
    /// Resources and claim drivers that stand for GPUs.
    pub resources: ResourceNames,
    /// Who pays: the first source that says it. Default: pod label `strandline.io/team`, `team`, `tenant`, then the same of the
    /// namespace.
    pub team: Vec<TeamSource>,
    /// Labels that name a queue, first one that is there. Default: `kueue.x-k8s.io/queue-name`, `kai.scheduler/queue`, `queue`.
    pub queue: Vec<String>,
    /// Labels that name a priority class, before the pod's own `priorityClassName`. Default: `kueue.x-k8s.io/priority-class`.
    pub priority_class: Vec<String>,
    /// How long events may come late or out of order, in ms; what is older is settled. Default: 10 minutes.
    pub reorder_ms: i64,
    /// Labels of nodes.
    pub node_labels: NodeLabels,
}

/// Labels of nodes, each the first one that is there.
#[derive(Clone, Debug)]
pub struct NodeLabels {
    /// Default: `nvidia.com/gpu.product`, `strandline.io/product`, `cloud.google.com/gke-tpu-accelerator`,
    /// `amd.com/gpu.product-name`.
    pub product: Vec<String>,
    /// Default: `topology.kubernetes.io/region`.
    pub region: Vec<String>,
    /// Default: `topology.kubernetes.io/zone`.
    pub zone: Vec<String>,
    /// Default: `strandline.io/provider`. Where none is there, the scheme of `spec.providerID` (`aws`, `gce`, `azure`, ...).
    pub provider: Vec<String>,
    /// Default: `strandline.io/purchase-option`, `karpenter.sh/capacity-type`, `eks.amazonaws.com/capacityType`.
    pub purchase_option: Vec<String>,
    /// Default: `strandline.io/reservation`, `karpenter.k8s.aws/capacity-reservation-id`.
    pub reservation: Vec<String>,
    /// How many replicas a device is shared as. Default: `nvidia.com/gpu.replicas`.
    pub replicas: Vec<String>,
}

/// Annotation in which a job says when its work was saved last (RFC 3339).
pub const LAST_CHECKPOINT: &str = "strandline.io/last-checkpoint";
/// Label that names the shape of the work, a key of the baselines.
pub const SHAPE: &str = "strandline.io/shape";

fn list(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

impl Default for Options {
    fn default() -> Self {
        let labels = ["strandline.io/team", "team", "tenant"];
        let of_pod = labels.iter().map(|label| TeamSource::PodLabel((*label).into()));
        let of_namespace = labels.iter().map(|label| TeamSource::NamespaceLabel((*label).into()));
        Self {
            resources: ResourceNames::default(),
            team: of_pod.chain(of_namespace).collect(),
            queue: list(&["kueue.x-k8s.io/queue-name", "kai.scheduler/queue", "queue"]),
            priority_class: list(&["kueue.x-k8s.io/priority-class"]),
            reorder_ms: 600_000,
            node_labels: NodeLabels::default(),
        }
    }
}

impl Default for NodeLabels {
    fn default() -> Self {
        Self {
            product: list(&[
                "nvidia.com/gpu.product",
                "strandline.io/product",
                "cloud.google.com/gke-tpu-accelerator",
                "amd.com/gpu.product-name",
            ]),
            region: list(&["topology.kubernetes.io/region"]),
            zone: list(&["topology.kubernetes.io/zone"]),
            provider: list(&["strandline.io/provider"]),
            purchase_option: list(&[
                "strandline.io/purchase-option",
                "karpenter.sh/capacity-type",
                "eks.amazonaws.com/capacityType",
            ]),
            reservation: list(&["strandline.io/reservation", "karpenter.k8s.aws/capacity-reservation-id"]),
            replicas: list(&["nvidia.com/gpu.replicas"]),
        }
    }
}

/// The first of `keys` that `labels` has, with a value that can be kept.
pub(super) fn first(labels: &BTreeMap<String, String>, keys: &[String]) -> String {
    let fits = |value: &&String| !value.is_empty() && value.len() <= schemas::ids::MAX_ID_BYTES;
    keys.iter().find_map(|key| labels.get(key).filter(fits)).cloned().unwrap_or_default()
}
