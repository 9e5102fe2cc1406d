//! What the API server knows, and since when: holdings by number, demand and inventory as whole states (rule A3).
//!
//! Times inside an object are cut to whole seconds, as the API writes them; `observed_at_ms` is the exact instant at which
//! a watcher would hear of the change.

use std::collections::BTreeMap;

use schemas::{
    Timestamp,
    proto::{Demand, Device, Holding, Node, Unavailable},
};

use crate::{
    accelerator::Vendor,
    plan::{Binding, DRIVER_VERSION, NodePlan, Offer, Plan, PodPlan, Slot, api_second},
    work,
};

/// Whole states, each list in order of observation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ApiFacts {
    /// Pods bound to nodes, by number.
    pub holdings: Vec<Holding>,
    /// Pods that wait, or waited.
    pub demands: Vec<Demand>,
    /// Inventory.
    pub nodes: Vec<Node>,
}

/// A change that a watcher hears of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Event {
    at: i64,
    subject: Subject,
    /// How many changes of this subject came before.
    revision: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Subject {
    Node(usize),
    Demand(usize),
    Holding(usize),
}

/// Every change, in order.
pub(crate) fn events(plan: &Plan) -> Vec<Event> {
    let mut events = Vec::new();
    let mut push = |subject: Subject| events.extend(changes_of(plan, subject));
    (0..plan.nodes().len()).for_each(|node| push(Subject::Node(node)));
    for pod in 0..plan.pods().len() {
        push(Subject::Demand(pod));
        push(Subject::Holding(pod));
    }
    events.sort_unstable();
    events
}

/// Every change of one subject, in order.
fn changes_of(plan: &Plan, subject: Subject) -> impl DoubleEndedIterator<Item = Event> + use<> {
    let mut times: Vec<i64> = match subject {
        Subject::Node(node) => {
            let spells = plan.nodes()[node].spells.iter().filter(|spell| spell.unavailable().is_some());
            [plan.start_ms()].into_iter().chain(spells.flat_map(|spell| [spell.from, spell.to])).collect()
        }
        Subject::Demand(pod) => {
            let pod = &plan.pods()[pod];
            [Some(pod.created), pod.withdrawn, pod.bound.as_ref().map(|b| b.bound)].into_iter().flatten().collect()
        }
        Subject::Holding(pod) => {
            let binding = plan.pods()[pod].bound.as_ref();
            let times = binding.map(|b| [Some(b.bound), b.started, b.terminating, Some(b.ended)]);
            times.into_iter().flatten().flatten().collect()
        }
    };
    times.sort_unstable();
    times.dedup();
    let events = times.into_iter().zip(0..).map(move |(at, revision)| Event { at, subject, revision });
    events.collect::<Vec<_>>().into_iter()
}

/// The latest change of one subject up to `at`.
fn latest(plan: &Plan, subject: Subject, at: Timestamp) -> Option<Event> {
    changes_of(plan, subject).rfind(|event| event.at <= at.ms())
}

/// Inventory of one node as it is known at `at`.
pub(crate) fn node_at(plan: &Plan, node: usize, at: Timestamp) -> Option<Node> {
    latest(plan, Subject::Node(node), at).map(|event| node_state(plan, node, &event))
}

/// The holding of one pod as it is known at `at`, if it was bound by then.
pub(crate) fn holding_at(plan: &Plan, pod: usize, at: Timestamp) -> Option<Holding> {
    let event = latest(plan, Subject::Holding(pod), at)?;
    let pod = &plan.pods()[pod];
    Some(holding(plan, pod, pod.bound.as_ref()?, &event))
}

/// The demand of one pod as it is known at `at`, if it was made by then.
pub(crate) fn demand_at(plan: &Plan, pod: usize, at: Timestamp) -> Option<Demand> {
    latest(plan, Subject::Demand(pod), at).map(|event| demand(plan, &plan.pods()[pod], &event))
}

/// The latest state of everything that was heard of up to `at`; holdings that ended are among them.
pub fn api_facts(plan: &Plan, at: Timestamp) -> ApiFacts {
    let known = &plan.api[..plan.api.partition_point(|event| event.at <= at.ms())];
    let mut seen = std::collections::HashSet::new();
    let mut latest: Vec<Event> = known.iter().rev().filter(|event| seen.insert(event.subject)).copied().collect();
    latest.reverse();
    facts(plan, &latest)
}

/// Every change in `(from, to]`, each with the whole state after it.
pub fn api_changes(plan: &Plan, from: Timestamp, to: Timestamp) -> ApiFacts {
    let upto = |at: Timestamp| plan.api.partition_point(|event| event.at <= at.ms());
    facts(plan, plan.api.get(upto(from)..upto(to)).unwrap_or_default())
}

fn facts(plan: &Plan, events: &[Event]) -> ApiFacts {
    let mut facts = ApiFacts::default();
    for event in events {
        match event.subject {
            Subject::Node(node) => facts.nodes.push(node_state(plan, node, event)),
            Subject::Demand(pod) => facts.demands.push(demand(plan, &plan.pods()[pod], event)),
            Subject::Holding(pod) => {
                let pod = &plan.pods()[pod];
                let binding = pod.bound.as_ref().expect("only bound pods have holdings");
                facts.holdings.push(holding(plan, pod, binding, event));
            }
        }
    }
    facts
}

impl Event {
    /// An instant of the object, if it has come to pass.
    fn so_far(&self, at: impl Into<Option<i64>>) -> Option<i64> {
        at.into().filter(|at| *at <= self.at).map(api_second)
    }
}

fn holding(plan: &Plan, pod: &PodPlan, binding: &Binding, event: &Event) -> Holding {
    let node = &plan.nodes()[binding.node];
    let ended_ms = event.so_far(binding.ended);
    let work = pod.job(plan.horizon_ms()).map(|job| job.work);
    // What a MIG profile's name says; of a whole or shared GPU the node's replicas say it.
    let fraction = Some(binding.unit).filter(|_| pod.resource.contains("/mig-"));
    Holding {
        cluster: node.cluster.to_string(),
        node: node.name.to_string(),
        source: "api".into(),
        id: pod.uid.clone(),
        observed_at_ms: event.at,
        revision: event.revision,
        pod_uid: pod.uid.clone(),
        namespace: pod.namespace.to_string(),
        pod: pod.name.to_string(),
        team: pod.team.to_string(),
        workload: pod.workload.to_string(),
        queue: pod.queue.into(),
        resource: pod.resource.to_string(),
        count: Some(pod.gpus),
        weight_num: fraction.map(|(num, _)| num),
        weight_den: fraction.map(|(_, den)| den),
        bound_ms: event.so_far(binding.bound),
        started_ms: event.so_far(binding.started),
        terminating_from_ms: event.so_far(binding.terminating),
        end_reason: ended_ms.map_or(String::new(), |_| binding.outcome.end_reason().into()),
        ended_ms,
        last_checkpoint_ms: work.and_then(|work| work::last_checkpoint(&work, event.at.min(work.until))).map(api_second),
        terminal_phase: ended_ms.and_then(|_| binding.phase()).unwrap_or_default().into(),
        shape: pod.shape.as_str().into(),
        ..Holding::default()
    }
}

fn demand(plan: &Plan, pod: &PodPlan, event: &Event) -> Demand {
    let binding = pod.bound.as_ref().filter(|binding| binding.bound <= event.at);
    let withdrawn = event.so_far(pod.withdrawn);
    let product = if let [only] = &*pod.products { only.clone() } else { String::new() };
    // A pod that waits belongs to the cluster of the node that it will get; one that never gets any, to the first.
    let placed = pod.bound.as_ref().map_or(0, |binding| binding.node);
    Demand {
        cluster: plan.nodes()[placed].cluster.to_string(),
        pod_uid: pod.uid.clone(),
        observed_at_ms: event.at,
        revision: event.revision,
        namespace: pod.namespace.to_string(),
        pod: pod.name.to_string(),
        team: pod.team.to_string(),
        queue: pod.queue.into(),
        resource: pod.resource.to_string(),
        gpus: pod.gpus,
        product,
        asked_ms: api_second(pod.created),
        ended_ms: binding.map(|binding| api_second(binding.bound)).or(withdrawn),
        outcome: match (binding, withdrawn) {
            (Some(_), _) => "bound".into(),
            (None, Some(_)) => "withdrawn".into(),
            (None, None) => String::new(),
        },
        node: binding.map_or(String::new(), |binding| plan.nodes()[binding.node].name.to_string()),
    }
}

fn node_state(plan: &Plan, index: usize, event: &Event) -> Node {
    let node = &plan.nodes()[index];
    let product = &node.accelerator.product;
    let gpus = node.gpus() as u32;
    let spells = node.spells.iter().filter(|spell| spell.from <= event.at);
    let device = |device: &crate::plan::DevicePlan| {
        let placed = device.instance.as_ref().map(|instance| &instance.placed);
        let board = &node.boards[device.board];
        Device {
            device: device.id.clone(),
            parent: placed.map_or(String::new(), |_| board.uuid.clone()),
            profile: placed.map_or(String::new(), |placed| placed.profile.name.clone()),
            product: product.clone(),
            weight_num: placed.map(|_| device.weight.0),
            weight_den: placed.map(|_| device.weight.1),
            replicas: Some(node.replicas).filter(|replicas| *replicas > 1),
            present_from_ms: board.since().map(Timestamp::ms),
            present_to_ms: board.until().map(Timestamp::ms).filter(|to| *to <= event.at),
        }
    };
    let known = |device: &&crate::plan::DevicePlan| node.boards[device.board].from <= event.at;
    Node {
        cluster: node.cluster.to_string(),
        node: node.name.to_string(),
        source: "api".into(),
        observed_at_ms: event.at,
        revision: event.revision,
        present_from_ms: plan.start_ms(),
        product: product.clone(),
        region: node.region.clone(),
        zone: node.zone.clone(),
        provider: node.provider.clone(),
        purchase_option: node.purchase_option.clone(),
        capacity_gpus: Some(gpus),
        allocatable_gpus: Some(gpus),
        replicas: Some(node.replicas).filter(|replicas| *replicas > 1),
        telemetry: if node.has_telemetry() { String::new() } else { "none".into() },
        devices: node.devices.iter().filter(known).map(device).collect(),
        unavailable: spells
            .filter_map(|spell| {
                let reason = spell.unavailable()?.to_owned();
                Some(Unavailable { device: String::new(), reason, from_ms: spell.from, to_ms: event.so_far(spell.to) })
            })
            .collect(),
        labels: labels(node).into_iter().collect(),
        ..Node::default()
    }
}

/// What the node's `status.capacity` says of its accelerators: every resource that its device plugin offers, and how many of
/// it. A whole GPU's resource is there with 0 where all are cut.
pub fn resources(node: &NodePlan) -> BTreeMap<String, u64> {
    counted(node, |_| true)
}

/// The same as `status.allocatable` says it at `at`: without what is off the bus, or in an empty slot.
pub fn allocatable(node: &NodePlan, at: Timestamp) -> BTreeMap<String, u64> {
    counted(node, |slot| node.slot_at(slot, at).is_some())
}

fn counted(node: &NodePlan, counts: impl Fn(Slot) -> bool) -> BTreeMap<String, u64> {
    let count = |offer: &Offer| offer.slots.iter().filter(|slot| counts(**slot)).count() as u64;
    let offers = node.offers.iter().map(|offer| (offer.resource.to_string(), count(offer)));
    let mut found: BTreeMap<String, u64> = offers.collect();
    if node.accelerator.vendor == Vendor::Nvidia && node.replicas == 1 {
        found.entry("nvidia.com/gpu".into()).or_insert(0);
    }
    found
}

/// Labels of the node that feature discovery, the cloud and the node's provider write about its accelerators.
pub fn labels(node: &NodePlan) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut label = |key: &str, value: String| drop(labels.insert(key.to_owned(), value));
    let product = &node.accelerator.product;
    let plain = product.replace(' ', "-");
    label("topology.kubernetes.io/region", node.region.clone());
    label("topology.kubernetes.io/zone", node.zone.clone());
    label("karpenter.sh/capacity-type", node.purchase_option.clone());
    match node.accelerator.vendor {
        Vendor::Google => label("cloud.google.com/gke-tpu-accelerator", "tpu-v5-lite-podslice".into()),
        Vendor::Amd => label("amd.com/gpu.product-name", plain),
        Vendor::Nvidia => {
            let shared = node.replicas > 1;
            label("nvidia.com/gpu.present", "true".into());
            label("nvidia.com/gpu.count", node.gpus().to_string());
            label("nvidia.com/gpu.memory", node.accelerator.memory_mib.to_string());
            label("nvidia.com/gpu.family", node.accelerator.arch.to_lowercase().replace(' ', "-"));
            label("nvidia.com/gpu.replicas", node.replicas.to_string());
            label("nvidia.com/gpu.sharing-strategy", if shared { "time-slicing" } else { "none" }.into());
            label("nvidia.com/gpu.product", if shared { format!("{plain}-SHARED") } else { plain });
            label("nvidia.com/cuda.driver-version.full", DRIVER_VERSION.into());
            label("nvidia.com/mig.capable", (!node.accelerator.mig_profiles.is_empty()).to_string());
            let cut = node.devices.iter().any(|device| device.instance.is_some());
            label("nvidia.com/mig.strategy", if cut { "mixed" } else { "none" }.into());
            for offer in &node.offers {
                let instance = offer.slots.first().and_then(|slot| node.devices[slot.device].instance.as_ref());
                let Some(instance) = instance else { continue };
                label(&format!("{}.count", offer.resource), offer.slots.len().to_string());
                label(&format!("{}.memory", offer.resource), instance.memory_mib.to_string());
                label(&format!("{}.slices.gi", offer.resource), instance.placed.profile.slices.to_string());
                label(&format!("{}.slices.ci", offer.resource), instance.placed.profile.slices.to_string());
                label(
                    &format!("{}.product", offer.resource),
                    format!("{}-MIG-{}", product.replace(' ', "-"), instance.placed.profile.name.replace('+', ".")),
                );
            }
        }
    }
    labels
}
