//! The plan of a fleet: its nodes and devices, every pod's life, every fault; computed once from (spec, seed).
//!
//! A plan is a pure function of its spec and seed, so whatever is a function of a plan and a time is one of
//! (spec, seed, time), whatever was asked before (rule S1). It keeps who holds what and how every hour of a device begins;
//! what a device does within an hour is laid out when it is asked for (see `timeline`).

mod node;

use std::{
    collections::HashMap,
    num::NonZeroUsize,
    ops::Range,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use exporter::{Attributes, Collectors, Identity};
use schemas::{HOUR_MS, Timestamp, Window};

use crate::{
    accelerator::{Accelerator, Board},
    calendar::Calendar,
    exposition::Printed,
    fault::Spell,
    mig::Placed,
    schedule,
    seed::Seed,
    shape::Shape,
    spec::{FleetSpec, MigIds, Problem, SpecError},
    timeline::{Build, Carried, Hour, Integrals, Job},
    work::Work,
};

/// Driver of every simulated node.
pub const DRIVER_VERSION: &str = "580.65.06";
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
    pub(crate) calendar: Calendar,
    pub(crate) printed: Printed,
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
    /// Every board that it ever has, by index, those that come in one's place after it: [`NodePlan::boards_at`] has those of an
    /// instant.
    pub boards: Vec<BoardPlan>,
    /// What it can give to pods: whole GPUs, and the instances of those that are cut, in order of board and layout.
    pub devices: Vec<DevicePlan>,
    /// Replicas that each device is given out as; 1: it is not shared.
    pub replicas: u32,
    /// How its device plugin names instances.
    pub mig_ids: MigIds,
    /// What its device plugin offers, by resource name.
    pub offers: Vec<Offer>,
    /// Pods that were bound to it, as indices of [`Plan::pods`], in order of their binding.
    pub pods: Vec<usize>,
    /// By how much its clock is ahead of the fleet's, ms: an agent on it stamps its rounds so.
    pub skew_ms: i64,
    pub(crate) spells: Vec<Spell>,
    pub(crate) key: u64,
}

/// What a node gives under one resource name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The resource, such as `nvidia.com/gpu`.
    pub resource: Arc<str>,
    /// What one of it is of a whole GPU: numerator and denominator.
    pub unit: (u32, u32),
    /// Every one of it on the boards of the fleet's start; those that come in their place give the same ([`NodePlan::slot_at`]).
    pub slots: Vec<Slot>,
}

/// One id of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// Index of [`NodePlan::devices`].
    pub device: usize,
    /// Which replica of it; 0 of a device that is not shared.
    pub replica: u32,
}

/// One GPU, whole or cut.
#[derive(Debug)]
pub struct BoardPlan {
    /// DCGM's index on the node: its slot.
    pub index: u32,
    /// How many boards were in its slot before it.
    pub epoch: u32,
    /// UUID.
    pub uuid: String,
    /// PCI address with an 8-digit domain.
    pub pci_bus_id: String,
    /// Its devices: indices of [`NodePlan::devices`].
    pub devices: Range<usize>,
    /// What DCGM knows of its product; none where nobody reads it.
    pub(crate) board: Option<Board>,
    /// When it is in the inventory: from its first minute of service until that of the board that comes in its place.
    pub(crate) from: i64,
    pub(crate) to: i64,
    /// When it is taken out: from then on nothing reads it.
    pub(crate) out: i64,
    pub(crate) idle_mw: i64,
    /// Inlet temperature, thousandths of a degree.
    pub(crate) ambient_mc: i64,
    pub(crate) xids: Vec<(i64, i64)>,
    /// When its counters began anew, and what they had come to then.
    pub(crate) resets: Vec<(i64, BoardSums)>,
    /// When it was off the bus: nothing reads it.
    pub(crate) lost: Vec<(i64, i64)>,
    /// When its driver was loaded first.
    pub(crate) booted: i64,
    /// Energy on the counter at the start, microjoules.
    pub(crate) energy_uj: i64,
    pub(crate) key: u64,
}

/// One device: a whole GPU, or an instance of one.
#[derive(Debug)]
pub struct DevicePlan {
    /// What its page says it is.
    pub identity: Arc<Identity>,
    /// Its id: a GPU's UUID, or of an instance `UUID/GPU instance id`.
    pub id: String,
    /// Index of [`NodePlan::boards`].
    pub board: usize,
    /// The instance that it is, if it is one.
    pub instance: Option<InstancePlan>,
    /// Compute share of a whole GPU: numerator and denominator.
    pub weight: (u32, u32),
    /// Who holds it when, by the kubelet, in order of naming.
    pub(crate) held: Vec<Held>,
    pub(crate) track: Option<Track>,
    pub(crate) key: u64,
}

/// A MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstancePlan {
    /// Profile, place and GPU instance id.
    pub placed: Placed,
    /// UUID of its own.
    pub uuid: String,
    /// Memory, MiB.
    pub memory_mib: i64,
}

/// A device through time: how every hour begins, and the hour that was asked for last.
#[derive(Debug)]
pub(crate) struct Track {
    pub build: Build,
    pub hours: Vec<Carried>,
    last: Mutex<Option<Arc<Hour>>>,
}

/// A pod's time on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub pod: usize,
    /// What the kubelet says.
    pub named: i64,
    pub until: i64,
    /// How many of its replicas.
    pub ids: u32,
    /// Index of the first holder that is there as long as this one: where to begin to look.
    pub since: u32,
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
    pub name: Arc<str>,
    /// Namespace.
    pub namespace: Arc<str>,
    /// Who pays.
    pub team: Arc<str>,
    /// What made it, `Job/batch-3`.
    pub workload: Arc<str>,
    /// Queue.
    pub queue: &'static str,
    /// Shape.
    pub shape: Shape,
    /// Resource asked for.
    pub resource: Arc<str>,
    /// How many of it.
    pub gpus: u32,
    /// What it asked of one GPU, thousandths, where that is less than all: its ids are replicas of one.
    pub part: Option<u32>,
    /// Which pod of its gang it is.
    pub rank: u32,
    /// How many pods its gang has, each on a node of its own; 1: it is none.
    pub gang: u32,
    /// Products asked for; none named: any.
    pub products: Arc<[String]>,
    /// When it was made.
    pub created: i64,
    /// When its owner gave up waiting, if so.
    pub withdrawn: Option<i64>,
    /// Its time on a node, if it got one.
    pub bound: Option<Binding>,
    /// How many of its name came before it.
    pub(crate) generation: u32,
    /// Key of its work.
    pub(crate) key: u64,
    pub(crate) attributes: OnceLock<Arc<Attributes>>,
}

/// A pod's time on a node.
#[derive(Clone, Debug)]
pub struct Binding {
    /// Index of [`Plan::nodes`].
    pub node: usize,
    /// Indices of [`NodePlan::devices`], one for each that it asked for.
    pub devices: Vec<usize>,
    /// Which replica of each device; empty where none is shared.
    pub replicas: Vec<u32>,
    /// What one of them is of a whole GPU.
    pub unit: (u32, u32),
    /// When the scheduler bound it.
    pub bound: i64,
    /// When the kubelet named its devices.
    pub named: i64,
    /// When its containers started, if they did.
    pub started: Option<i64>,
    /// When its deletion was asked for, if it was.
    pub terminating: Option<i64>,
    /// When its processes died with their node, if they did; the API learns of it later.
    pub stopped: Option<i64>,
    /// When it ended; may lie beyond the fleet's planned time.
    pub ended: i64,
    /// When the kubelet let go of its devices.
    pub released: i64,
    /// How it ended.
    pub outcome: Outcome,
    /// What ended it before its time: xid, preempted, spot_reclaimed, drained, node_lost.
    pub why: Option<&'static str>,
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
        let unread = |key: &str, message: &str| {
            SpecError::Limits(vec![Problem { line: None, key: key.to_owned(), message: message.to_owned() }])
        };
        if (spec.replay.jobs.is_some() || spec.replay.requests.is_some()) && spec.replay.read.is_none() {
            return Err(unread("replay", "its files are not read yet; load the spec before it is planned"));
        }
        let collectors = spec.collectors();
        let collectors = collectors.ok_or_else(|| unread("exposition.collectors", "its file is not read yet; load the spec"))?;
        let mut nodes = Vec::new();
        for (cluster, pool) in spec.pools() {
            for i in 0..pool.count {
                nodes.push(node::node(&spec, seed, &cluster.name, pool, i));
            }
        }
        let pods = schedule::pods(&spec, seed, &nodes);
        for (index, pod) in pods.iter().enumerate() {
            if let Some(binding) = &pod.bound {
                nodes[binding.node].pods.push(index);
            }
        }
        let by_name = nodes.iter().enumerate().map(|(index, node)| (node.name.clone(), index)).collect();
        let calendar = Calendar::of(&spec);
        let printed = Printed::new(collectors);
        let mut plan = Self { spec, seed, nodes: Vec::new(), pods, by_name, calendar, printed, api: Vec::new() };
        // What lies on a node is that node's alone: every processor takes some of them.
        let share = nodes.len().div_ceil(std::thread::available_parallelism().map_or(1, NonZeroUsize::get)).max(1);
        std::thread::scope(|scope| {
            for nodes in nodes.chunks_mut(share) {
                scope.spawn(|| nodes.iter_mut().for_each(|node| node::work(node, &plan)));
            }
        });
        plan.nodes = nodes;
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

    /// What its pages print.
    pub fn collectors(&self) -> &Arc<Collectors> {
        &self.printed.collectors
    }

    pub(crate) fn start_ms(&self) -> i64 {
        self.spec.start.ms()
    }

    /// When nothing new happens any more: an hour after the planned time.
    pub(crate) fn horizon_ms(&self) -> i64 {
        self.spec.end().ms() + HOUR_MS
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

    /// Every device that there ever is, node by node.
    pub fn devices(&self) -> impl Iterator<Item = DeviceRef> {
        let gpus = |(node, plan): (usize, &NodePlan)| (0..plan.devices.len()).map(move |gpu| DeviceRef { node, gpu });
        self.nodes.iter().enumerate().flat_map(gpus)
    }

    /// One device.
    pub fn device(&self, device: DeviceRef) -> &DevicePlan {
        &self.nodes[device.node].devices[device.gpu]
    }

    /// The GPU that a device is, or is a part of.
    pub fn board(&self, device: DeviceRef) -> &BoardPlan {
        &self.nodes[device.node].boards[self.device(device).board]
    }

    /// Pods that the kubelet says hold a device at `at`: indices of [`Plan::pods`], with how many of its ids each has.
    pub fn holders(&self, device: DeviceRef, at: Timestamp) -> impl Iterator<Item = (usize, u32)> {
        self.device(device).holders(at.ms()).map(|held| (held.pod, held.ids))
    }

    /// Every instant of `[from, to)` at which activity or power of a device may change, `from` first.
    pub fn breakpoints(&self, device: DeviceRef, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
        let device = self.device(device);
        let mut points = vec![from.ms()];
        if device.track.is_some() {
            for hour in self.hour_index(from.ms())..=self.hour_index(to.ms() - 1) {
                let begin = self.start_ms() + hour as i64 * HOUR_MS;
                let end = if hour + 1 == self.hours() { to.ms() } else { to.ms().min(begin + HOUR_MS) };
                let Some(hour) = self.hour(device, hour) else { continue };
                points.extend(hour.breakpoints(begin.max(from.ms()), end).into_iter().filter(|at| *at > from.ms()));
            }
        }
        points.into_iter().map(Timestamp::from_ms).collect()
    }

    /// Hours that are kept of each device.
    fn hours(&self) -> usize {
        self.spec.hours as usize + 1
    }

    pub(crate) fn hour_index(&self, at: i64) -> usize {
        (at - self.start_ms()).div_euclid(HOUR_MS).clamp(0, self.hours() as i64 - 1) as usize
    }

    /// Hour `index` of a device: the one that was asked for last, or laid out anew. None where nobody reads the device.
    pub(crate) fn hour(&self, device: &DevicePlan, index: usize) -> Option<Arc<Hour>> {
        let track = device.track.as_ref()?;
        let mut last = track.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hour) = last.as_ref().filter(|hour| hour.index == index) {
            return Some(hour.clone());
        }
        let hour = Arc::new(self.lay(device, track, index));
        *last = Some(hour.clone());
        Some(hour)
    }

    /// Lays out hour `index` of a device.
    pub(crate) fn lay(&self, device: &DevicePlan, track: &Track, index: usize) -> Hour {
        let carried = &track.hours[index];
        let from = self.start_ms() + index as i64 * HOUR_MS;
        let holders = device.held[carried.first as usize..].iter().take_while(|held| held.named < from + HOUR_MS);
        let jobs: Vec<Job> = holders.filter_map(|held| self.pods[held.pod].job(self.horizon_ms())).collect();
        Hour::lay(&track.build, &self.calendar, carried, index, from, &jobs, index + 1 == self.hours())
    }

    /// Integrals of a device from the fleet's start to `at`; none where nobody reads it.
    pub(crate) fn integrals(&self, device: &DevicePlan, at: i64) -> Option<Integrals> {
        let track = device.track.as_ref()?;
        let index = self.hour_index(at);
        if at == self.start_ms() + index as i64 * HOUR_MS {
            return Some(track.hours[index].before);
        }
        self.hour(device, index).map(|hour| hour.integrals(at))
    }
}

impl DevicePlan {
    /// Who the kubelet says holds the device at `at`, in order of naming.
    pub(crate) fn holders(&self, at: i64) -> impl DoubleEndedIterator<Item = &Held> {
        let next = self.held.partition_point(|held| held.named <= at);
        let first = self.held[..next].last().map_or(next, |last| last.since as usize);
        self.held[first..next].iter().filter(move |held| at < held.until)
    }
}

impl BoardPlan {
    /// When it came in the place of another, if it did.
    pub fn since(&self) -> Option<Timestamp> {
        (self.epoch > 0).then(|| Timestamp::from_ms(self.from))
    }

    /// When another came in its place, if one does.
    pub fn until(&self) -> Option<Timestamp> {
        (self.to < i64::MAX).then(|| Timestamp::from_ms(self.to))
    }

    /// Whether its slot is its own at `at`, empty or not.
    pub(crate) fn is_current(&self, at: i64) -> bool {
        self.from <= at && at < self.to
    }

    /// Whether it is in its slot at `at`.
    pub(crate) fn there(&self, at: i64) -> bool {
        self.from <= at && at < self.out
    }

    /// Whether something reads it at `at`: it is in its slot, and on the bus.
    pub(crate) fn answers(&self, at: i64) -> bool {
        self.there(at) && !self.lost.iter().any(|(off, back)| *off <= at && at < *back)
    }

    /// A number of 13 digits that stands for the board.
    pub fn serial(&self) -> String {
        format!("{:013}", self.key % 10_000_000_000_000)
    }

    /// The latest counter reset up to `at`, and what the counters had come to.
    pub(crate) fn reset_before(&self, at: i64) -> Option<(i64, BoardSums)> {
        self.resets[..self.resets.partition_point(|(reset, _)| *reset <= at)].last().copied()
    }
}

impl NodePlan {
    /// How many GPUs it has.
    pub fn gpus(&self) -> usize {
        self.boards.iter().filter(|board| board.epoch == 0).count()
    }

    /// The boards that its inventory has at `at`, with their places in [`NodePlan::boards`], by index: one for each GPU.
    pub fn boards_at(&self, at: Timestamp) -> impl Iterator<Item = (usize, &BoardPlan)> {
        self.boards.iter().enumerate().filter(move |(_, board)| board.is_current(at.ms()))
    }

    /// What gives at `at` what `slot`, one of an [`Offer`], gave at the fleet's start; none while nothing reads it.
    pub fn slot_at(&self, slot: Slot, at: Timestamp) -> Option<Slot> {
        let first = &self.boards[self.devices[slot.device].board];
        let now = self.boards.iter().find(|board| board.index == first.index && board.answers(at.ms()))?;
        Some(Slot { device: now.devices.start + slot.device - first.devices.start, ..slot })
    }

    /// Whether an exporter reads it.
    pub fn has_telemetry(&self) -> bool {
        self.accelerator.has_telemetry()
    }

    /// Name of a slot as the device plugin gives it to the kubelet.
    pub fn plugin_id(&self, slot: Slot) -> String {
        let device = &self.devices[slot.device];
        let board = &self.boards[device.board];
        match &device.instance {
            Some(instance) if self.mig_ids == MigIds::Indexed => format!("MIG-{}/{}/0", board.uuid, instance.placed.id),
            Some(instance) => instance.uuid.clone(),
            None if self.replicas > 1 => format!("{}::{}", board.uuid, slot.replica),
            None if self.has_telemetry() => board.uuid.clone(),
            // Plugins of other vendors number their devices, or name their PCI addresses (chosen: the number).
            None => board.index.to_string(),
        }
    }
}

impl Binding {
    /// The phase in which the pod ended; none of one that its owner deleted, or whose node died with it. A kubelet that has to
    /// stop a pod reports it as failed before it goes.
    pub fn phase(&self) -> Option<&'static str> {
        match (self.outcome, self.why) {
            (Outcome::Succeeded, _) => Some("Succeeded"),
            (Outcome::Failed, _) => Some("Failed"),
            (Outcome::Deleted, Some(why)) => (why != "node_lost").then_some("Failed"),
            (Outcome::Deleted, None) => None,
        }
    }

    /// Its ids of devices.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        let replica = |at: usize| self.replicas.get(at).copied().unwrap_or(0);
        self.devices.iter().enumerate().map(move |(at, device)| Slot { device: *device, replica: replica(at) })
    }
}

impl PodPlan {
    /// Name of its random streams.
    pub(crate) fn path(&self) -> String {
        format!("pod/{}/{}/{}", self.namespace, self.name, self.generation)
    }

    /// Its labels on a page.
    pub(crate) fn attributes(&self) -> &Arc<Attributes> {
        self.attributes.get_or_init(|| Arc::new(Attributes::of_pod(&self.namespace, &self.name, CONTAINER)))
    }

    /// Its work, if its containers started before it was asked to go.
    pub(crate) fn job(&self, horizon: i64) -> Option<Job> {
        let binding = self.bound.as_ref()?;
        let until = binding.stopped.or(binding.terminating).unwrap_or(binding.ended).min(horizon);
        let started = binding.started.filter(|started| *started < until)?;
        Some(Job { work: Work::of(self, started, until), ended: binding.stopped.unwrap_or(binding.ended) })
    }
}

/// What a board's counters have grown since the fleet's start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BoardSums {
    pub energy_uj: i64,
    /// Time in which its devices were held down, each for its share of the board, ms.
    pub capped_ms: i64,
}

impl BoardSums {
    /// The idle board's sums at `at`.
    pub fn idle(plan: &Plan, board: &BoardPlan, at: i64) -> Self {
        Self { energy_uj: board.idle_mw * (at - plan.start_ms()).max(0), capped_ms: 0 }
    }

    /// Adds what a device of the board has added.
    pub fn add(&mut self, device: &DevicePlan, integrals: &Integrals) {
        let (num, den) = device.weight;
        self.energy_uj += integrals.energy_uj;
        self.capped_ms += integrals.capped_ms * i64::from(num) / i64::from(den);
    }
}
