//! What one state of a pod says: everything that the book needs of it, and nothing else.

use std::collections::BTreeMap;

use schemas::Timestamp;

use super::{
    object::{Pod, PodSpec, PodStatus, Refused},
    options::{self, LAST_CHECKPOINT, Options, SHAPE, TeamSource},
    request,
};

/// Instants that are times and not damage: 1970 to the end of 9999, as the lake takes them.
pub(super) const TIMES_MS: std::ops::Range<i64> = 1..253_402_300_800_000;

/// How a pod ended by its own word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TerminalPhase {
    /// Every container ended well.
    Succeeded,
    /// One did not, or the pod was evicted, or its node went.
    Failed,
}

impl TerminalPhase {
    /// The phase as the API writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// One state of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Evidence {
    pub(super) node: Option<String>,
    pub(super) created: Option<i64>,
    /// lastTransitionTime of PodScheduled=True.
    pub(super) scheduled: Option<i64>,
    pub(super) running: bool,
    /// The earliest start of a container that is known.
    pub(super) started: Option<i64>,
    pub(super) deletion: Option<Deletion>,
    pub(super) terminal: Option<TerminalPhase>,
    /// Earliest and latest finishedAt, where all containers have one.
    pub(super) finished: Option<(i64, i64)>,
    pub(super) about: About,
    /// Devices asked, by resource name.
    pub(super) requests: BTreeMap<String, u32>,
    /// Name of the claim that the scheduler made for what `requests` has.
    pub(super) own_claim: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deletion {
    pub(super) at: i64,
    pub(super) grace_ms: Option<i64>,
}

/// What a pod is called and whom it belongs to; empty where not said.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct About {
    /// What another process made of the chain, where that is all that is known.
    pub(super) resumed_team: String,
    /// By the pod's own labels: what each `PodLabel` source of the chain has, by position.
    pub(super) teams: Vec<(usize, String)>,
    pub(super) workload: String,
    pub(super) queue: String,
    pub(super) priority_class: String,
    pub(super) shape: String,
    pub(super) last_checkpoint: Option<i64>,
    /// Product that the pod insists on.
    pub(super) product: String,
}

impl Evidence {
    /// What `pod` says. Errors: a request that is no number of devices.
    pub(super) fn of(pod: &Pod, options: &Options) -> Result<Self, Refused> {
        let requests = request::effective(&pod.spec, &options.resources).map_err(|(field, what)| Refused {
            kind: "pod",
            who: format!("{}/{}", pod.metadata.namespace, pod.metadata.name),
            field,
            what,
        })?;
        let status = &pod.status;
        let scheduled = status.conditions.iter().find(|c| c.kind == "PodScheduled" && c.status == "True");
        let deletion = time(pod.metadata.deletion_timestamp).map(|at| Deletion {
            at,
            grace_ms: pod.metadata.deletion_grace_period_seconds.filter(|s| *s >= 0).and_then(|s| s.checked_mul(1000)),
        });
        Ok(Self {
            node: Some(pod.spec.node_name.clone()).filter(|node| !node.is_empty()),
            created: time(pod.metadata.creation_timestamp),
            scheduled: scheduled.and_then(|c| time(c.last_transition_time)),
            running: status.phase == "Running",
            started: started(status),
            deletion,
            terminal: match status.phase.as_str() {
                "Succeeded" => Some(TerminalPhase::Succeeded),
                "Failed" => Some(TerminalPhase::Failed),
                _ => None,
            },
            finished: finished(&pod.spec, status),
            about: About::of(pod, options),
            requests,
            own_claim: status.extended_resource_claim_status.as_ref().map(|c| c.resource_claim_name.clone()),
        })
    }
}

impl About {
    fn of(pod: &Pod, options: &Options) -> Self {
        let labels = &pod.metadata.labels;
        let one = |key: &str| options::first(labels, &[key.to_owned()]);
        let teams = options.team.iter().enumerate().filter_map(|(position, source)| match source {
            TeamSource::PodLabel(key) => Some((position, one(key))).filter(|(_, team)| !team.is_empty()),
            TeamSource::NamespaceLabel(_) | TeamSource::Mapping(_) => None,
        });
        let owner = pod.metadata.owner_references.iter().find(|owner| owner.controller);
        let class = options::first(labels, &options.priority_class);
        let checkpoint = pod.metadata.annotations.get(LAST_CHECKPOINT).and_then(|text| text.trim().parse::<Timestamp>().ok());
        Self {
            resumed_team: String::new(),
            teams: teams.collect(),
            workload: owner.map(|owner| format!("{}/{}", owner.kind, owner.name)).unwrap_or_default(),
            queue: options::first(labels, &options.queue),
            priority_class: if class.is_empty() { pod.spec.priority_class_name.clone() } else { class },
            shape: one(SHAPE),
            last_checkpoint: time(checkpoint),
            product: options::first(&pod.spec.node_selector, &options.node_labels.product),
        }
    }
}

pub(super) fn time(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::ms).filter(|ms| TIMES_MS.contains(ms))
}

/// The earliest start of a container that runs along, before a restart too.
fn started(status: &PodStatus) -> Option<i64> {
    let states = status.container_statuses.iter().flat_map(|s| [&s.state, &s.last_state]);
    let starts = states.flat_map(|state| {
        let running = state.running.as_ref().and_then(|r| r.started_at);
        [running, state.terminated.as_ref().and_then(|t| t.started_at)]
    });
    starts.filter_map(time).min()
}

/// The span of finishedAt, where every container and every sidecar has one. An ordinary init container that has one counts too:
/// a pod may fail in it.
fn finished(spec: &PodSpec, status: &PodStatus) -> Option<(i64, i64)> {
    let statuses = status.container_statuses.iter().chain(&status.init_container_statuses);
    let ends: BTreeMap<&str, i64> =
        statuses.filter_map(|s| Some((s.name.as_str(), time(s.state.terminated.as_ref()?.finished_at)?))).collect();
    let sidecars = spec.init_containers.iter().filter(|c| c.restart_policy == "Always");
    let mut needed = spec.containers.iter().chain(sidecars);
    if spec.containers.is_empty() || !needed.all(|c| ends.contains_key(c.name.as_str())) {
        return None;
    }
    ends.values().min().copied().zip(ends.values().max().copied())
}
