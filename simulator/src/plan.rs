//! The plan of a fleet: its nodes and devices, every pod's life, every fault; computed once from (spec, seed).
//!
//! A plan is a pure function of its spec and seed, so whatever is a function of a plan and a time is one of
//! (spec, seed, time), whatever was asked before (rule S1).

use std::{collections::HashMap, sync::Arc};

use exporter::{Attributes, Identity};
use schemas::{Timestamp, Window};

use crate::{
    accelerator::{self, Accelerator},
    fault::{self, Spell},
    schedule,
    seed::Seed,
    shape::{self, Shape},
    spec::{FleetSpec, NodePool, SpecError},
    timeline::{Build, Timeline},
};

/// Driver of every simulated node.
pub const DRIVER_VERSION: &str = "580.65.06";
/// Resource name that pods ask for.
pub const RESOURCE: &str = "nvidia.com/gpu";
/// Container of a pod that uses its GPUs.
pub const CONTAINER: &str = "main";

/// A fleet, planned.
#[derive(Debug)]
pub struct Plan {
    spec: FleetSpec,
    seed: Seed,
    nodes: Vec<NodePlan>,
    pods: Vec<PodPlan>,
    by_name: HashMap<Arc<str>, usize>,
    pub(crate) api: Vec<crate::api::Event>,
}

/// One node.
#[derive(Debug)]
pub struct NodePlan {
    /// Its name, unique in the fleet.
    pub name: Arc<str>,
    /// Its cluster.
    pub cluster: Arc<str>,
    /// Its accelerator.
    pub accelerator: &'static Accelerator,
    /// Region.
    pub region: String,
    /// Zone.
    pub zone: String,
    /// Provider.
    pub provider: String,
    /// Purchase option.
    pub purchase_option: String,
    /// Its GPUs, by index.
    pub devices: Vec<DevicePlan>,
    /// Pods that were bound to it, as indices of [`Plan::pods`], in order of their binding.
    pub pods: Vec<usize>,
    pub(crate) spells: Vec<Spell>,
    pub(crate) key: u64,
}

/// One GPU.
#[derive(Debug)]
pub struct DevicePlan {
    /// What it is.
    pub identity: Arc<Identity>,
    pub(crate) held: Vec<Held>,
    pub(crate) timeline: Timeline,
    pub(crate) xids: Vec<(i64, i64)>,
    pub(crate) resets: Vec<i64>,
    /// When its driver was loaded first.
    pub(crate) booted: i64,
    /// Energy on the counter at the start, microjoules.
    pub(crate) energy_uj: i64,
    pub(crate) key: u64,
}

/// A pod's time on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub pod: usize,
    /// What the kubelet says.
    pub named: i64,
    pub until: i64,
}

/// Names a device of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceRef {
    /// Index of [`Plan::nodes`].
    pub node: usize,
    /// Index of [`NodePlan::devices`].
    pub gpu: usize,
}

/// One pod's life. All times are exact; what the API says of them is cut to whole seconds ([`api_second`]).
#[derive(Clone, Debug)]
pub struct PodPlan {
    /// UID.
    pub uid: String,
    /// Name; a pod that comes back has the name of the one before it and another UID.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Who pays.
    pub team: String,
    /// What made it, `Job/batch-3`.
    pub workload: String,
    /// Queue.
    pub queue: &'static str,
    /// Shape.
    pub shape: Shape,
    /// GPUs asked for.
    pub gpus: u32,
    /// Products asked for; none named: any.
    pub products: Vec<String>,
    /// When it was made.
    pub created: i64,
    /// When its owner gave up waiting, if so.
    pub withdrawn: Option<i64>,
    /// Its time on a node, if it got one.
    pub bound: Option<Binding>,
    pub(crate) attributes: Arc<Attributes>,
    /// Name of its random streams.
    pub(crate) path: String,
}

/// A pod's time on a node.
#[derive(Clone, Debug)]
pub struct Binding {
    /// Index of [`Plan::nodes`].
    pub node: usize,
    /// Indices of [`NodePlan::devices`].
    pub devices: Vec<usize>,
    /// When the scheduler bound it.
    pub bound: i64,
    /// When the kubelet named its devices.
    pub named: i64,
    /// When its containers started, if they did.
    pub started: Option<i64>,
    /// When its deletion was asked for, if it was.
    pub terminating: Option<i64>,
    /// When it ended; may lie beyond the fleet's planned time.
    pub ended: i64,
    /// When the kubelet let go of its devices.
    pub released: i64,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a pod ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its work was done.
    Succeeded,
    /// Its work failed.
    Failed,
    /// It was deleted.
    Deleted,
}

impl Outcome {
    /// `end_reason` of its holding.
    pub const fn end_reason(self) -> &'static str {
        match self {
            Self::Succeeded | Self::Failed => "terminal",
            Self::Deleted => "removed",
        }
    }
}

/// An instant as an API object has it: cut to whole seconds.
pub const fn api_second(ms: i64) -> i64 {
    ms.div_euclid(1000) * 1000
}

impl Plan {
    /// Plans the fleet of `spec` with `seed`.
    pub fn new(spec: FleetSpec, seed: Seed) -> Result<Self, SpecError> {
        spec.check()?;
        let mut nodes = Vec::new();
        for (cluster, pool) in spec.pools() {
            for i in 0..pool.count {
                nodes.push(node(&spec, seed, &cluster.name, pool, i));
            }
        }
        let pods = schedule::pods(&spec, seed, &nodes);
        for (index, pod) in pods.iter().enumerate() {
            if let Some(binding) = &pod.bound {
                nodes[binding.node].pods.push(index);
            }
        }
        for node in &mut nodes {
            node.pods.sort_by_key(|pod| pods[*pod].bound.as_ref().map(|b| (b.bound, *pod)));
            work(node, &pods, &spec, seed);
        }
        let by_name = nodes.iter().enumerate().map(|(index, node)| (node.name.clone(), index)).collect();
        let mut plan = Self { spec, seed, nodes, pods, by_name, api: Vec::new() };
        plan.api = crate::api::events(&plan);
        Ok(plan)
    }

    /// The spec.
    pub fn spec(&self) -> &FleetSpec {
        &self.spec
    }

    /// The seed.
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// The fleet's planned time.
    pub fn window(&self) -> Window {
        Window::new(self.spec.start, self.spec.end()).expect("a checked spec plans at least an hour")
    }

    pub(crate) fn start_ms(&self) -> i64 {
        self.spec.start.ms()
    }

    /// Every node, in the order of the spec.
    pub fn nodes(&self) -> &[NodePlan] {
        &self.nodes
    }

    /// Index of the node called `name`.
    pub fn node(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Every pod, in order of (created, namespace, name).
    pub fn pods(&self) -> &[PodPlan] {
        &self.pods
    }

    /// Every device, node by node.
    pub fn devices(&self) -> impl Iterator<Item = DeviceRef> {
        let gpus = |(node, plan): (usize, &NodePlan)| (0..plan.devices.len()).map(move |gpu| DeviceRef { node, gpu });
        self.nodes.iter().enumerate().flat_map(gpus)
    }

    /// One device.
    pub fn device(&self, device: DeviceRef) -> &DevicePlan {
        &self.nodes[device.node].devices[device.gpu]
    }
}

impl DevicePlan {
    /// The pod that the kubelet says holds the device at `at`.
    pub(crate) fn holder(&self, at: i64) -> Option<usize> {
        let next = self.held.partition_point(|held| held.named <= at);
        self.held[..next].last().filter(|held| at < held.until).map(|held| held.pod)
    }

    /// The latest counter reset up to `at`.
    pub(crate) fn reset_before(&self, at: i64) -> Option<i64> {
        self.resets[..self.resets.partition_point(|reset| *reset <= at)].last().copied()
    }

    /// Every instant of `[from, to)` at which activity or power may change, `from` first.
    pub fn breakpoints(&self, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
        self.timeline.breakpoints(from.ms(), to.ms()).into_iter().map(Timestamp::from_ms).collect()
    }
}

fn node(spec: &FleetSpec, seed: Seed, cluster: &str, pool: &NodePool, i: u32) -> NodePlan {
    let name: Arc<str> = format!("{}-{i}", pool.name).into();
    let accelerator = accelerator::by_product(&pool.product).expect("a checked spec names known products");
    let board = accelerator.board().expect("a checked spec names products that can be simulated");
    let start = spec.start.ms();
    let device = |gpu: u32| {
        let path = format!("device/{cluster}/{name}/{gpu}");
        let uuid = format!("GPU-{}", seed.uuid(&path));
        let mut draw = seed.stream(&path);
        let idle_mw = board.idle_mw * draw.between(940, 1060) / 1000;
        let build = Build { board, idle_mw, ambient_mc: draw.between(25_000, 31_000), key: seed.key(&path) };
        // Up for days before the start: counters have a past.
        let booted = start - draw.between(3_600, 2_000_000) * 1000;
        let energy_uj = (start - booted) * draw.between(idle_mw, board.tdp_mw / 2);
        DevicePlan {
            xids: fault::xids(spec, seed, &uuid),
            identity: Arc::new(Identity {
                gpu,
                uuid,
                pci_bus_id: format!("00000000:{:02X}:00.0", 0x0F + 12 * gpu),
                model: pool.product.clone(),
                instance: None,
                texts: vec![(1, DRIVER_VERSION.to_owned())],
            }),
            held: Vec::new(),
            timeline: Timeline::idle(build, start),
            resets: Vec::new(),
            booted,
            energy_uj,
            key: build.key,
        }
    };
    NodePlan {
        devices: (0..pool.gpus_per_node).map(device).collect(),
        cluster: cluster.into(),
        accelerator,
        region: pool.region.clone(),
        zone: pool.zone.clone(),
        provider: pool.provider.clone(),
        purchase_option: pool.purchase_option.clone(),
        pods: Vec::new(),
        spells: fault::spells(spec, seed, &name),
        key: seed.key(&format!("node/{cluster}/{name}")),
        name,
    }
}

/// Lays every pod's work on the node's devices, and the resets where they are free.
fn work(node: &mut NodePlan, pods: &[PodPlan], spec: &FleetSpec, seed: Seed) {
    let horizon = spec.end().ms() + schemas::HOUR_MS;
    for &index in &node.pods {
        let pod = &pods[index];
        let Some(binding) = &pod.bound else { continue };
        let works_until = binding.terminating.unwrap_or(binding.ended).min(horizon);
        let phases = match binding.started.filter(|started| *started < works_until) {
            Some(started) => {
                let mut draw = seed.stream(&format!("{}/work", pod.path));
                shape::phases(pod.shape, pod.gpus, started, works_until, &mut draw)
            }
            None => Vec::new(),
        };
        for &gpu in &binding.devices {
            let device = &mut node.devices[gpu];
            device.held.push(Held { pod: index, named: binding.named, until: binding.released });
            for phase in &phases {
                device.timeline.then(phase.from, phase.activity);
            }
            if let Some(last) = phases.last() {
                if works_until < binding.ended {
                    // Asked to go: the process is there until the end, its work is not.
                    let memory_pm = last.activity.memory_pm;
                    device
                        .timeline
                        .then(works_until, shape::Activity { memory_pm, resident: true, ..shape::Activity::default() });
                }
                device.timeline.rest(binding.ended);
            }
        }
    }
    for wanted in fault::reloads(spec, seed, &node.name) {
        for device in &mut node.devices {
            let busy = device.held.iter().map(|held| (pods[held.pod].bound.as_ref().map_or(held.named, |b| b.bound), held.until));
            let mut at = wanted;
            for (bound, until) in busy {
                if bound <= at && at < until {
                    at = until;
                }
            }
            if at < spec.end().ms() && device.resets.last().is_none_or(|last| *last < at) {
                device.resets.push(at);
            }
        }
    }
    for device in &mut node.devices {
        device.resets.sort_unstable();
    }
}
