//! What the book says of a pod: its holdings by number, and its demand; and the messages that carry them.

use std::sync::Arc;

use schemas::{
    Timestamp,
    proto::{Demand, Holding},
};

use super::{
    evidence::TerminalPhase,
    life::{EndReason, Life},
    options::Options,
    request,
};

/// Devices of a claim that are reserved for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) claim: String,
    pub(super) driver: String,
    pub(super) devices: u32,
    /// Pods that the claim is reserved for.
    pub(super) among: u32,
}

/// The whole state of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodState {
    /// Its UID.
    pub uid: String,
    /// Receipt of the last observation, on the API server's clock.
    pub observed_at: Timestamp,
    /// How many states were told before.
    pub revision: u64,
    /// What it holds or held: one a resource name and claim.
    pub holdings: Vec<PodHolding>,
    /// What it asks or asked for, where that is any device.
    pub demand: Option<PodDemand>,
}

/// Devices of one resource name, or of one claim, that a pod holds by number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodHolding {
    /// Names it among the holdings of the cluster: the UID for the first of the configured resource names, else with the
    /// resource or claim behind it.
    pub id: String,
    /// The pod's UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub pod: Arc<str>,
    /// Its node.
    pub node: String,
    /// Resource name, or driver of the claim.
    pub resource: String,
    /// Devices.
    pub count: u32,
    /// Compute share of a whole GPU that each is: numerator and denominator. None: 1, or the node's replicas decide.
    pub weight: Option<(u32, u32)>,
    /// When it was bound.
    pub bound: i64,
    /// Whether that is a receipt.
    pub bind_inferred: bool,
    /// When its containers started.
    pub started: Option<i64>,
    /// When its deletion was asked for.
    pub terminating_from: Option<i64>,
    /// When it ended.
    pub ended: Option<i64>,
    /// Why.
    pub end_reason: Option<EndReason>,
    /// Whether the end is a receipt of a terminal phase, or a relist's.
    pub end_inferred: bool,
    /// The phase in which it ended.
    pub terminal_phase: Option<TerminalPhase>,
    /// The pod's own word on when its work was saved last.
    pub last_checkpoint: Option<i64>,
    /// Who pays; empty for unattributed.
    pub team: String,
    /// What made it, as Kind/name; empty where nothing did.
    pub workload: String,
    /// Whether the way up to it could not be seen to its end.
    pub workload_partial: bool,
    /// Its queue; empty where none is said.
    pub queue: String,
    /// Its priority class; empty where none is said. No table has it.
    pub priority_class: String,
    /// Shape of its work; empty where not said.
    pub shape: String,
}

/// Devices that a pod asks for, from its creation to its bind or withdrawal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodDemand {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub pod: Arc<str>,
    /// Who asks; empty for unattributed.
    pub team: String,
    /// Its queue.
    pub queue: String,
    /// Resource name: the first of the configured ones that it asks for.
    pub resource: String,
    /// Devices of that name.
    pub gpus: u32,
    /// Product that its node selector insists on; empty where any will do.
    pub product: String,
    /// When it was created.
    pub asked: i64,
    /// When it was bound or withdrawn.
    pub ended: Option<i64>,
    /// The node that it was bound to; empty where it was not.
    pub node: String,
}

impl PodHolding {
    pub(super) fn all(
        uid: &str,
        namespace: Arc<str>,
        pod: Arc<str>,
        life: &Life,
        claims: &[&Share],
        team: &str,
        options: &Options,
    ) -> Vec<Self> {
        let (Some((bound, bind_inferred)), Some(evidence), Some((node, _))) = (life.bound(), life.latest.as_deref(), &life.node)
        else {
            return Vec::new();
        };
        let end = life.end;
        // Heard of only after its end, and nothing says when it began.
        if bind_inferred && !life.seen_alive && end.is_some_and(|end| end.at <= bound) {
            return Vec::new();
        }
        let about = &evidence.about;
        let holding = |id: String, resource: &str, count: u32, weight: Option<(u32, u32)>| Self {
            id,
            uid: uid.to_owned(),
            namespace: namespace.clone(),
            pod: pod.clone(),
            node: node.clone(),
            resource: resource.to_owned(),
            count,
            weight,
            bound,
            bind_inferred,
            started: life.started(),
            terminating_from: life.terminating(),
            ended: end.map(|end| end.at),
            end_reason: end.map(|end| end.reason),
            end_inferred: end.is_some_and(|end| end.inferred),
            terminal_phase: end.and_then(|end| end.phase),
            last_checkpoint: about.last_checkpoint,
            team: team.to_owned(),
            workload: about.workload.clone(),
            workload_partial: false,
            queue: about.queue.clone(),
            priority_class: about.priority_class.clone(),
            shape: about.shape.clone(),
        };
        let main = options.resources.exact.first();
        let by_name = evidence.requests.iter().map(|(resource, count)| {
            let id = if main == Some(resource) { uid.to_owned() } else { format!("{uid}/{resource}") };
            holding(id, resource, *count, request::weight(resource))
        });
        let by_claim = claims.iter().filter(|share| share.devices > 0).map(|share| {
            let weight = Some((1, share.among)).filter(|(_, among)| *among > 1);
            holding(format!("{uid}/claim/{}/{}", share.claim, share.driver), &share.driver, share.devices, weight)
        });
        by_name.chain(by_claim).collect()
    }

    /// Devices held at `at`, by what is known.
    pub fn held_at(&self, at: i64) -> u32 {
        if self.bound <= at && self.ended.is_none_or(|end| at < end) { self.count } else { 0 }
    }

    /// The message that carries it.
    pub fn message(&self, cluster: &str, observed_at: Timestamp, revision: u64) -> Holding {
        let flags = [
            ("bind_inferred", self.bind_inferred),
            ("end_inferred", self.end_inferred),
            ("workload_partial", self.workload_partial),
        ];
        Holding {
            cluster: cluster.to_owned(),
            node: self.node.clone(),
            source: "api".into(),
            id: self.id.clone(),
            observed_at_ms: observed_at.ms(),
            revision,
            pod_uid: self.uid.clone(),
            namespace: self.namespace.to_string(),
            pod: self.pod.to_string(),
            team: self.team.clone(),
            workload: self.workload.clone(),
            queue: self.queue.clone(),
            resource: self.resource.clone(),
            count: Some(self.count),
            weight_num: self.weight.map(|(num, _)| num),
            weight_den: self.weight.map(|(_, den)| den),
            bound_ms: Some(self.bound),
            started_ms: self.started,
            terminating_from_ms: self.terminating_from,
            ended_ms: self.ended,
            end_reason: self.end_reason.map_or(String::new(), |reason| reason.as_str().into()),
            flags: flags.iter().filter(|(_, set)| *set).map(|(flag, _)| (*flag).to_owned()).collect(),
            last_checkpoint_ms: self.last_checkpoint,
            terminal_phase: self.terminal_phase.map_or(String::new(), |phase| phase.as_str().into()),
            shape: self.shape.clone(),
            ..Holding::default()
        }
    }
}

impl PodDemand {
    pub(super) fn of(
        namespace: Arc<str>,
        pod: Arc<str>,
        life: &Life,
        claims: &[&Share],
        team: &str,
        options: &Options,
    ) -> Option<Self> {
        let evidence = life.latest.as_deref()?;
        let first = |name: &&String| options.resources.exact.iter().position(|exact| exact == *name).unwrap_or(usize::MAX);
        let asked = evidence.requests.keys().min_by_key(|name| (first(name), (*name).clone()));
        let (resource, gpus) = match asked {
            Some(resource) => (resource.clone(), evidence.requests.get(resource).copied()?),
            None => {
                let share = claims.iter().find(|share| share.devices > 0)?;
                (share.driver.clone(), share.devices)
            }
        };
        // A list at start-up has pods that ended long ago; nobody waits there.
        if life.bound().is_none() && life.end.is_some() && !life.seen_alive {
            return None;
        }
        let bound = life.bound().map(|(bound, _)| bound);
        let asked = life.created.or(life.first_at)?;
        let asked = bound.map_or(asked, |bound| asked.min(bound));
        Some(Self {
            namespace,
            pod,
            team: team.to_owned(),
            queue: evidence.about.queue.clone(),
            resource,
            gpus,
            product: evidence.about.product.clone(),
            asked,
            ended: bound.or(life.end.map(|end| end.at)).map(|end| end.max(asked)),
            node: life.node.as_ref().map(|(node, _)| node.clone()).unwrap_or_default(),
        })
    }

    /// bound, withdrawn, or none while it waits.
    pub fn outcome(&self) -> Option<&'static str> {
        self.ended.map(|_| if self.node.is_empty() { "withdrawn" } else { "bound" })
    }

    /// The message that carries it.
    pub fn message(&self, cluster: &str, uid: &str, observed_at: Timestamp, revision: u64) -> Demand {
        Demand {
            cluster: cluster.to_owned(),
            pod_uid: uid.to_owned(),
            observed_at_ms: observed_at.ms(),
            revision,
            namespace: self.namespace.to_string(),
            pod: self.pod.to_string(),
            team: self.team.clone(),
            queue: self.queue.clone(),
            resource: self.resource.clone(),
            gpus: self.gpus,
            product: self.product.clone(),
            asked_ms: self.asked,
            ended_ms: self.ended,
            outcome: self.outcome().unwrap_or_default().into(),
            node: self.node.clone(),
        }
    }
}
