//! Work that was done and is lost: what a pod that failed or had to go had not saved.

use schemas::{Timestamp, Window};
use serde::Serialize;

use super::share::nearest;
use crate::{
    plan::{Outcome, Plan},
    shape::Shape,
    work,
};

/// One pod's lost work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Waste {
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
    /// What ended it: failed, or xid, preempted, spot_reclaimed, drained, node_lost.
    pub why: &'static str,
    /// The last checkpoint, or the start of the work where there is none.
    pub since: Timestamp,
    /// When the work ended.
    pub at: Timestamp,
    /// Time of whole GPUs between the two, ms.
    pub lost_ms: i64,
}

/// The work that pods whose work ended in `window` had done in vain, by end and UID. Training loses what it did since its last
/// checkpoint, batch jobs all; who serves or sits at a notebook saves nothing and loses nothing.
pub fn truth_waste(plan: &Plan, window: Window) -> Vec<Waste> {
    let mut found = Vec::new();
    for pod in plan.pods() {
        let (Some(binding), Some(job)) = (&pod.bound, pod.job(plan.horizon_ms())) else { continue };
        let why = binding.why.or((binding.outcome == Outcome::Failed).then_some("failed"));
        let at = job.work.until;
        let since = match pod.shape {
            Shape::Training => work::unsaved_since(&job.work, at),
            Shape::Batch => Some(job.work.started),
            Shape::Inference | Shape::Prefill | Shape::Decode | Shape::Notebook | Shape::CrashLoop => None,
        };
        let (Some(why), Some(since)) = (why, since) else { continue };
        let end = Timestamp::from_ms(at);
        if since >= at || end < window.from() || end >= window.to() {
            continue;
        }
        let node = &plan.nodes()[binding.node];
        let (num, den) = binding.unit;
        found.push(Waste {
            cluster: node.cluster.to_string(),
            node: node.name.to_string(),
            pod_uid: pod.uid.clone(),
            namespace: pod.namespace.to_string(),
            pod: pod.name.to_string(),
            team: pod.team.to_string(),
            why,
            since: Timestamp::from_ms(since),
            at: end,
            lost_ms: nearest(i128::from(at - since) * i128::from(pod.gpus) * i128::from(num), den.into()),
        });
    }
    found.sort_by(|a, b| (a.at, &a.pod_uid).cmp(&(b.at, &b.pod_uid)));
    found
}
