//! Nodes, namespaces and pods as the API server has them at an instant: JSON objects of `v1`, for a cluster without kubelets
//! (kwok) and for anything that reads a List. What they say of bind, start and end is what [`crate::api`] says.

use std::collections::{BTreeMap, BTreeSet};

use schemas::Timestamp;
use serde_json::{Value, json};

use crate::{
    api,
    plan::{Binding, CONTAINER, NodePlan, Outcome, Plan, PodPlan, api_second},
};

/// How long a pod that ended by itself is still listed; a deleted one is gone at once. Chosen: clusters keep some thousands.
const KEPT_MS: i64 = schemas::HOUR_MS;

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nodes.
    Node,
    /// Namespaces of the teams.
    Namespace,
    /// Pods that wait, run, or ended within the last hour.
    Pod,
}

impl Kind {
    /// Every kind, in the order in which they can be created.
    pub const ALL: &'static [Self] = &[Self::Node, Self::Namespace, Self::Pod];
}

/// The objects of `kinds` at `at`, as one `v1` List: of one cluster, or of all.
pub fn list(plan: &Plan, at: Timestamp, kinds: &[Kind], cluster: Option<&str>) -> Value {
    let kinds = Kind::ALL.iter().filter(|kind| kinds.contains(kind));
    let items: Vec<Value> = kinds.flat_map(|kind| objects(plan, at, *kind, cluster)).collect();
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

/// The objects of one kind at `at`: nodes and pods in the plan's order, namespaces by name. A pod that waits is in the cluster of
/// the node that it will get; one that never gets any, in the first.
pub fn objects(plan: &Plan, at: Timestamp, kind: Kind, cluster: Option<&str>) -> Vec<Value> {
    let here = |node: usize| cluster.is_none_or(|cluster| *plan.nodes()[node].cluster == *cluster);
    match kind {
        Kind::Node => (0..plan.nodes().len()).filter(|index| here(*index)).filter_map(|index| node(plan, index, at)).collect(),
        Kind::Namespace => {
            let names: BTreeSet<&str> = plan.spec().teams.iter().map(|team| team.namespace.as_str()).collect();
            names.into_iter().map(|name| namespace(plan, name)).collect()
        }
        Kind::Pod => {
            let pods = plan.pods().iter().filter(|pod| here(pod.bound.as_ref().map_or(0, |binding| binding.node)));
            pods.filter_map(|pod| self::pod(plan, pod, at.ms())).collect()
        }
    }
}

/// An instant as an object has it.
fn second(ms: i64) -> String {
    let text = Timestamp::from_ms(api_second(ms)).to_string();
    // Whole seconds, as the API writes them.
    text.replace(".000Z", "Z")
}

fn namespace(plan: &Plan, name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "uid": plan.seed().uuid(&format!("namespace/{name}")),
            "creationTimestamp": second(plan.spec().start.ms()),
        },
    })
}

fn node(plan: &Plan, index: usize, at: Timestamp) -> Option<Value> {
    let NodePlan { name, cluster, zone, provider, .. } = &plan.nodes()[index];
    let known = api::node_at(plan, index, at)?;
    let mut labels: serde_json::Map<String, Value> =
        known.labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    for (key, value) in
        [("kubernetes.io/hostname", &**name), ("strandline.io/provider", provider), ("strandline.io/cluster", cluster)]
    {
        labels.insert(key.to_owned(), json!(value));
    }
    let spells = |reason: &str| known.unavailable.iter().filter(move |spell| spell.reason == reason).collect::<Vec<_>>();
    let open = |reason: &str| spells(reason).into_iter().find(|spell| spell.to_ms.is_none()).map(|spell| spell.from_ms);
    // A node that is lost is one that its kubelet says nothing of.
    let not_ready = [open("not_ready"), open("lost")].into_iter().flatten().min();
    let closed = [open("cordoned"), open("maintenance")].into_iter().flatten().min();
    let mut taints = Vec::new();
    if let Some(since) = closed {
        taints.push(json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": second(since)}));
    }
    if let Some(since) = open("maintenance") {
        taints.push(json!({"key": "strandline.io/maintenance", "effect": "NoSchedule", "timeAdded": second(since)}));
    }
    if let Some(since) = not_ready {
        taints.push(json!({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "timeAdded": second(since)}));
    }
    let over = |reason: &str| spells(reason).iter().filter_map(|spell| spell.to_ms).max();
    let ready_since = over("not_ready").max(over("lost")).unwrap_or(known.present_from_ms);
    let resources = |accelerators: BTreeMap<String, u64>| {
        // Chosen: room for every pod that the GPUs can hold.
        let others = [("cpu", "192"), ("memory", "2Ti"), ("pods", "110"), ("ephemeral-storage", "4Ti")];
        let others = others.map(|(key, quantity)| (key.to_owned(), json!(quantity)));
        let counts = accelerators.into_iter().map(|(resource, count)| (resource, json!(count.to_string())));
        others.into_iter().chain(counts).collect::<serde_json::Map<String, Value>>()
    };
    let mut spec = json!({ "providerID": format!("{provider}:///{zone}/{name}") });
    if closed.is_some() {
        spec["unschedulable"] = json!(true);
    }
    if !taints.is_empty() {
        spec["taints"] = json!(taints);
    }
    Some(json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": &**name,
            "uid": plan.seed().uuid(&format!("node/{cluster}/{name}")),
            "creationTimestamp": second(known.present_from_ms),
            "labels": labels,
            "annotations": { "kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0" },
        },
        "spec": spec,
        "status": {
            "phase": "Running",
            "capacity": resources(api::resources(&plan.nodes()[index])),
            "allocatable": resources(api::allocatable(&plan.nodes()[index], at)),
            "conditions": [{
                "type": "Ready",
                "status": if not_ready.is_some() { "False" } else { "True" },
                "reason": if not_ready.is_some() { "KubeletNotReady" } else { "KubeletReady" },
                "lastTransitionTime": second(not_ready.unwrap_or(ready_since)),
                "lastHeartbeatTime": second(at.ms()),
            }],
        },
    }))
}

/// A pod as it is at `at`; none where it is not made yet, or gone.
fn pod(plan: &Plan, pod: &PodPlan, at: i64) -> Option<Value> {
    let binding = pod.bound.as_ref().filter(|b| b.bound <= at);
    let gone = match binding {
        Some(Binding { outcome: Outcome::Deleted, ended, .. }) => *ended,
        Some(Binding { ended, .. }) => *ended + KEPT_MS,
        None => pod.withdrawn.unwrap_or(i64::MAX),
    };
    if at < pod.created || gone <= at {
        return None;
    }
    let mut metadata = json!({
        "name": &*pod.name,
        "namespace": &*pod.namespace,
        "uid": pod.uid,
        "creationTimestamp": second(pod.created),
        "labels": { "team": &*pod.team, "queue": pod.queue, "strandline.io/shape": pod.shape.as_str() },
    });
    if let Some((kind, name)) = pod.workload.split_once('/') {
        let uid = plan.seed().uuid(&format!("workload/{}/{}", pod.namespace, pod.workload));
        let version = if kind == "Job" { "batch/v1" } else { "apps/v1" };
        metadata["ownerReferences"] =
            json!([{ "apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true }]);
    }
    let limits = json!({ &*pod.resource: pod.gpus.to_string() });
    let mut spec = json!({
        "containers": [{ "name": CONTAINER, "image": "registry.invalid/work:1", "resources": { "limits": limits, "requests": limits } }],
        "restartPolicy": "Never",
    });
    if let [product] = &*pod.products {
        spec["nodeSelector"] = json!({ "nvidia.com/gpu.product": product.replace(' ', "-") });
    }
    let mut status = json!({ "phase": "Pending" });
    let Some(b) = binding else {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": second(pod.created),
        }]);
        return Some(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status }));
    };
    spec["nodeName"] = json!(&*plan.nodes()[b.node].name);
    status["conditions"] = json!([{ "type": "PodScheduled", "status": "True", "lastTransitionTime": second(b.bound) }]);
    if let Some(asked) = b.terminating.filter(|asked| *asked <= at) {
        metadata["deletionTimestamp"] = json!(second(asked + GRACE_S * 1000));
        metadata["deletionGracePeriodSeconds"] = json!(GRACE_S);
    }
    let ended = b.ended <= at;
    let started = b.started.filter(|started| *started <= at);
    let phase = match (ended, started) {
        (true, _) if b.outcome == Outcome::Failed => "Failed",
        (true, _) => "Succeeded",
        (false, Some(_)) => "Running",
        (false, None) => "Pending",
    };
    status["phase"] = json!(phase);
    if let Some(started) = started {
        let state = if ended {
            let code = i64::from(b.outcome == Outcome::Failed);
            json!({ "terminated": { "startedAt": second(started), "finishedAt": second(b.ended), "exitCode": code } })
        } else {
            json!({ "running": { "startedAt": second(started) } })
        };
        status["startTime"] = json!(second(b.bound));
        status["containerStatuses"] = json!([{
            "name": CONTAINER, "image": "registry.invalid/work:1", "imageID": "", "ready": !ended, "started": !ended, "restartCount": 0,
            "state": state,
        }]);
    }
    Some(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status }))
}

/// Grace that a deletion gives; what the API server puts on top of the request's time.
const GRACE_S: i64 = 30;
