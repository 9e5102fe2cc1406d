//! Pods' times on nodes: as the API tells them, and as they were.

use schemas::{Timestamp, Window};
use serde::Serialize;

use crate::plan::{Plan, api_second};

/// A pod's time on a node: as the API tells it, and as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TruthHolding {
    /// Cluster.
    pub cluster: String,
    /// Node.
    pub node: String,
    /// Pod.
    pub pod_uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Who pays.
    pub team: String,
    /// Shape of its work.
    pub shape: crate::shape::Shape,
    /// Devices, comma-joined.
    pub devices: String,
    /// Bind, as the API tells it.
    pub bound: Timestamp,
    /// Bind, exactly.
    pub true_bound: Timestamp,
    /// When the kubelet named the devices.
    pub named: Timestamp,
    /// Start of the containers, as the API tells it.
    pub started: Option<Timestamp>,
    /// The same, exactly.
    pub true_started: Option<Timestamp>,
    /// Request for deletion, as the API tells it.
    pub terminating: Option<Timestamp>,
    /// The same, exactly.
    pub true_terminating: Option<Timestamp>,
    /// End, as the API tells it.
    pub ended: Timestamp,
    /// End, exactly.
    pub true_ended: Timestamp,
    /// When the kubelet let go of the devices.
    pub released: Timestamp,
    /// terminal or removed.
    pub end_reason: &'static str,
    /// What ended it before its time: xid, preempted, spot_reclaimed, drained, node_lost.
    pub why: Option<&'static str>,
}

/// Every pod's time on a node that touches `window` (as the API tells it), by bind and UID.
pub fn truth_holdings(plan: &Plan, window: Window) -> Vec<TruthHolding> {
    let second = |ms: i64| Timestamp::from_ms(api_second(ms));
    let exact = Timestamp::from_ms;
    let mut found = Vec::new();
    for pod in plan.pods() {
        let Some(b) = &pod.bound else { continue };
        if second(b.bound) >= window.to() || second(b.ended) <= window.from() {
            continue;
        }
        let node = &plan.nodes()[b.node];
        let mut ids: Vec<&str> = b.devices.iter().map(|device| &*node.devices[*device].id).collect();
        ids.dedup();
        found.push(TruthHolding {
            cluster: node.cluster.to_string(),
            node: node.name.to_string(),
            pod_uid: pod.uid.clone(),
            namespace: pod.namespace.to_string(),
            pod: pod.name.to_string(),
            team: pod.team.to_string(),
            shape: pod.shape,
            devices: ids.join(","),
            bound: second(b.bound),
            true_bound: exact(b.bound),
            named: exact(b.named),
            started: b.started.map(second),
            true_started: b.started.map(exact),
            terminating: b.terminating.map(second),
            true_terminating: b.terminating.map(exact),
            ended: second(b.ended),
            true_ended: exact(b.ended),
            released: exact(b.released),
            end_reason: b.outcome.end_reason(),
            why: b.why,
        });
    }
    found.sort_by(|a, b| (a.true_bound, &a.pod_uid).cmp(&(b.true_bound, &b.pod_uid)));
    found
}
