//! What a device is like at an instant, and the page of a node.

use std::{ops::Range, sync::Arc};

use exporter::{Collectors, Identity, Page, ReadError, Source};
use schemas::Timestamp;

use crate::{
    accelerator::Board,
    clock::SimClock,
    fault,
    plan::{BoardPlan, BoardSums, DevicePlan, DeviceRef, NodePlan, Plan},
    spec::{FleetSpec, Hostname},
    timeline::{self, Heat, Hour, Integrals, Now},
};

/// A device at an instant, as it is; misprints of its page are not in it. Ratios in parts per million. Of a MIG instance the
/// readings of the board are the whole board's, and what nobody reads of an instance is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuState {
    /// The board that it is, or is a part of.
    pub board: BoardState,
    /// GPU_UTIL, percent; none of an instance.
    pub util_pct: Option<i64>,
    /// Memory interface busy, percent; none of an instance.
    pub mem_copy_pct: Option<i64>,
    /// Memory, MiB: total is free + used + reserved.
    pub fb_total_mib: i64,
    /// Memory in use.
    pub fb_used_mib: i64,
    /// Memory that the driver keeps.
    pub fb_reserved_mib: i64,
    /// GR_ENGINE_ACTIVE.
    pub gr: i64,
    /// SM_ACTIVE.
    pub sm: i64,
    /// SM_OCCUPANCY.
    pub occupancy: i64,
    /// PIPE_TENSOR_ACTIVE.
    pub tensor: i64,
    /// DRAM_ACTIVE.
    pub dram: i64,
    /// PIPE_FP64_ACTIVE.
    pub fp64: i64,
    /// PIPE_FP32_ACTIVE.
    pub fp32: i64,
    /// PIPE_FP16_ACTIVE.
    pub fp16: i64,
    /// PCIe out of the GPU, bytes a second; none of an instance.
    pub pcie_tx: Option<i64>,
    /// PCIe into it.
    pub pcie_rx: Option<i64>,
    /// NVLink, bytes a second in each direction; only whole boards with NVLink.
    pub nvlink: Option<i64>,
    /// The pod that its page shows: index of [`Plan::pods`]. Of several that share it, the last one listed; for a while one
    /// that is gone, where labels are stale. Who holds it is in [`Plan::holders`].
    pub holder: Option<usize>,
}

/// A whole board at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoardState {
    /// SM clock, MHz.
    pub sm_clock: i64,
    /// Memory clock, MHz.
    pub mem_clock: i64,
    /// Memory temperature, degrees Celsius; only boards with HBM have the sensor.
    pub mem_temp: Option<i64>,
    /// Die temperature, degrees Celsius.
    pub gpu_temp: i64,
    /// Draw, milliwatts.
    pub power_mw: i64,
    /// Energy since the driver was loaded, millijoules.
    pub energy_mj: i64,
    /// PCIe resends since then.
    pub pcie_replays: i64,
    /// The last XID since the driver was loaded, if there was one.
    pub xid: Option<i64>,
    /// Rows remapped for correctable errors; only Ampere and later remap.
    pub remapped_rows: Option<i64>,
    /// Rows remapped for uncorrectable ones.
    pub uncorrectable_rows: Option<i64>,
    /// Pages retired after single-bit and after double-bit errors, and 1 where one of them waits for the driver to be loaded anew;
    /// only boards that do not remap rows.
    pub retired_pages: Option<(i64, i64, i64)>,
    /// Highest SM clock, MHz.
    pub max_sm_clock: i64,
    /// Highest memory clock, MHz.
    pub max_mem_clock: i64,
    /// Power limit, milliwatts.
    pub power_limit_mw: i64,
    /// Why the clocks are not higher, as NVML's bits: 1 idle, 4 power cap.
    pub clock_reasons: i64,
    /// Performance state: 0 in work, 8 idle on a board without HBM.
    pub pstate: i64,
    /// Time in which the power limit held the clocks down since the driver was loaded, nanoseconds; of a board that is cut,
    /// each instance's for its share.
    pub power_violation_ns: i64,
    /// Memory errors since the driver was loaded: corrected, and not.
    pub ecc_volatile: (i64, i64),
    /// The same over the board's life.
    pub ecc_aggregate: (i64, i64),
    /// NVLink errors since the driver was loaded, corrected by a replay; only boards with NVLink.
    pub nvlink_replays: Option<i64>,
    /// Whether it is cut into instances.
    pub mig: bool,
    /// Memory of the whole board, MiB.
    pub fb_total_mib: i64,
    /// What its devices use of it.
    pub fb_used_mib: i64,
    /// Memory that the driver keeps.
    pub fb_reserved_mib: i64,
}

impl std::ops::Deref for GpuState {
    type Target = BoardState;

    fn deref(&self) -> &BoardState {
        &self.board
    }
}

/// Bytes a second of one NVLink in one direction.
const NVLINK_BYTES: i64 = 26_562_000_000;

/// State of one device at `at`; none of a product that nobody reads, nor of a board that is not there. Equal plans give equal
/// states on every machine, whatever was asked before.
///
/// Before the fleet's start it is as at the start; after its planned end nothing new happens.
pub fn state(plan: &Plan, device: DeviceRef, at: Timestamp) -> Option<GpuState> {
    let (node, board, at) = (&plan.nodes()[device.node], plan.board(device), at.ms());
    let hours = hours(plan, node, board, at)?;
    let mut own = None;
    let state = board_at(plan, node, board, at, hours.iter().map(|hour| hour.read(at)), |gpu, now| {
        if gpu == device.gpu {
            own = Some(now);
        }
    })?;
    let planned = &node.devices[device.gpu];
    Some(device_now(planned, board.board.as_ref()?, state, &own?, shown(plan, planned, at).0))
}

/// State of a node's board `board` (index of [`NodePlan::boards`]) at `at`; none of a product that nobody reads, nor where it is
/// not there.
pub fn board_state(plan: &Plan, node: usize, board: usize, at: Timestamp) -> Option<BoardState> {
    let (node, at) = (&plan.nodes()[node], at.ms());
    let hours = hours(plan, node, &node.boards[board], at)?;
    board_at(plan, node, &node.boards[board], at, hours.iter().map(|hour| hour.read(at)), |_, _| {})
}

/// A walk through one device's time: [`state`], bit by bit, in amortised constant time where instants ascend. It keeps the
/// hours that it stands in to itself, so that walks of many devices do not disturb each other.
#[derive(Debug)]
pub struct Walk<'a> {
    plan: &'a Plan,
    device: DeviceRef,
    /// One for each device of the board, with where in it the walk was last.
    hours: Vec<(Hour, usize)>,
    /// The pod that its page shows, and in which time.
    shown: (Option<usize>, Range<i64>),
}

impl Plan {
    /// A walk through the time of `device`.
    pub fn walk(&self, device: DeviceRef) -> Walk<'_> {
        Walk { plan: self, device, hours: Vec::new(), shown: (None, 0..0) }
    }
}

impl Walk<'_> {
    /// State of the device at `at`, as [`state`] has it.
    pub fn at(&mut self, at: Timestamp) -> Option<GpuState> {
        let (plan, node, at) = (self.plan, &self.plan.nodes()[self.device.node], at.ms());
        let (device, board) = (&node.devices[self.device.gpu], plan.board(self.device));
        let constants = board.board.as_ref().filter(|_| board.answers(at))?;
        let index = plan.hour_index(at);
        if self.hours.first().is_none_or(|(hour, _)| hour.index != index) {
            let devices = node.devices[board.devices.clone()].iter();
            let laid = devices.map(|device| Some((plan.lay(device, device.track.as_ref()?, index), 0)));
            self.hours = laid.collect::<Option<_>>()?;
        }
        if !self.shown.1.contains(&at) {
            let (pod, until) = shown(plan, device, at);
            self.shown = (pod, at..until);
        }
        let mut own = None;
        let reads = self.hours.iter_mut().map(|(hour, last)| hour.read_from(last, at));
        let state = board_at(plan, node, board, at, reads, |gpu, now| {
            if gpu == self.device.gpu {
                own = Some(now);
            }
        })?;
        Some(device_now(device, constants, state, &own?, self.shown.0))
    }
}

/// The hour of each device of a board that holds `at`, in their order; none where nobody reads the board at `at`.
fn hours(plan: &Plan, node: &NodePlan, board: &BoardPlan, at: i64) -> Option<Vec<Arc<Hour>>> {
    if board.board.is_none() || !board.answers(at) {
        return None;
    }
    let index = plan.hour_index(at);
    node.devices[board.devices.clone()].iter().map(|device| plan.hour(device, index)).collect()
}

/// A board at `at`, from what each of its devices does then; `each` hears of every one, by index of [`NodePlan::devices`]. None
/// of a product that nobody reads.
#[inline]
fn board_at<'h>(
    plan: &Plan,
    node: &NodePlan,
    board: &BoardPlan,
    at: i64,
    devices: impl Iterator<Item = (Now<'h>, Integrals)>,
    mut each: impl FnMut(usize, Now<'h>),
) -> Option<BoardState> {
    let constants = board.board.as_ref()?;
    let mut all = Together { sums: BoardSums::idle(plan, board, at), ..Together::default() };
    for (gpu, (now, integrals)) in board.devices.clone().zip(devices) {
        all.add(&node.devices[gpu], &now, &integrals);
        each(gpu, now);
    }
    Some(board_now(board, constants, &all, node.devices[board.devices.start].instance.is_some(), at))
}

/// What the devices of a board come to.
#[derive(Default)]
struct Together {
    resident: bool,
    capped: bool,
    heat: Heat,
    power_mw: i64,
    fb_used_mib: i64,
    sums: BoardSums,
}

impl Together {
    fn add(&mut self, device: &DevicePlan, now: &Now<'_>, integrals: &Integrals) {
        self.resident |= now.level.activity.resident;
        self.capped |= now.level.capped;
        self.heat.gpu_mc += now.heat.gpu_mc;
        self.heat.mem_mc += now.heat.mem_mc;
        self.power_mw += now.power_mw();
        self.fb_used_mib += now.level.fb_used_mib;
        self.sums.add(device, integrals);
    }
}

fn board_now(plan: &BoardPlan, board: &Board, all: &Together, mig: bool, at: i64) -> BoardState {
    let (resident, capped, sums) = (all.resident, all.capped, all.sums);
    let reset = plan.reset_before(at);
    let since = reset.map_or(plan.booted, |(reset, _)| reset);
    let before = reset.map_or(BoardSums { energy_uj: -plan.energy_uj, capped_ms: 0 }, |(_, sums)| sums);
    // A resend every few hours.
    let replay_ms = schemas::HOUR_MS * (3 + (plan.key % 29) as i64);
    let xids = &plan.xids[..plan.xids.partition_point(|(seen, _)| *seen <= at)];
    let of = |wanted: i64, from: i64| xids.iter().filter(|(seen, code)| *code == wanted && *seen >= from).count() as i64;
    // A corrected error every few days; in some boards every few hours (chosen).
    let flip_ms = schemas::HOUR_MS * if plan.key >> 40 & 15 == 0 { 5 } else { 60 + (plan.key >> 8 & 63) as i64 };
    let flips = |from: i64| (at - from).max(0) / flip_ms;
    let aged = plan.booted - schemas::HOUR_MS * 24 * (30 + (plan.key >> 16 & 255) as i64);
    let made = if plan.epoch > 0 { plan.booted } else { aged };
    let base = board.base(plan.idle_mw);
    BoardState {
        sm_clock: match (resident, capped) {
            (true, true) => board.max_sm_clock * 93 / 100 / 15 * 15,
            (true, false) => board.max_sm_clock,
            (false, _) => board.idle_sm_clock,
        },
        mem_clock: if board.hbm || resident { board.max_mem_clock } else { 405 },
        mem_temp: board.hbm.then(|| (plan.ambient_mc + base.mem_mc + all.heat.mem_mc + 500) / 1000),
        gpu_temp: (plan.ambient_mc + base.gpu_mc + all.heat.gpu_mc + 500) / 1000,
        power_mw: plan.idle_mw + all.power_mw,
        energy_mj: (sums.energy_uj - before.energy_uj) / 1000,
        pcie_replays: (at - since) / replay_ms,
        xid: xids.last().filter(|(seen, _)| reset.is_none_or(|(reset, _)| reset <= *seen)).map(|(_, code)| *code),
        remapped_rows: board.remaps_rows.then(|| of(63, i64::MIN)),
        uncorrectable_rows: board.remaps_rows.then(|| of(94, i64::MIN)),
        retired_pages: (!board.remaps_rows).then(|| {
            let waits = of(63, since) + of(94, since) > 0;
            (of(63, i64::MIN), of(94, i64::MIN), waits.into())
        }),
        max_sm_clock: board.max_sm_clock,
        max_mem_clock: board.max_mem_clock,
        power_limit_mw: board.tdp_mw,
        clock_reasons: match (resident, capped) {
            (false, _) => 1,
            (true, true) => 4,
            (true, false) => 0,
        },
        pstate: if board.hbm || resident { 0 } else { 8 },
        power_violation_ns: (sums.capped_ms - before.capped_ms) * 1_000_000,
        ecc_volatile: (flips(since), of(94, since)),
        ecc_aggregate: (flips(made), of(94, i64::MIN)),
        nvlink_replays: board.nvlinks.map(|_| of(74, since)),
        mig,
        fb_total_mib: board.memory_mib,
        fb_used_mib: all.fb_used_mib,
        fb_reserved_mib: timeline::reserved_mib(board.memory_mib),
    }
}

fn device_now(device: &DevicePlan, board: &Board, state: BoardState, now: &Now<'_>, shown: Option<usize>) -> GpuState {
    let (level, a) = (now.level, &now.level.activity);
    let [_, sm, _] = now.tiers(false);
    let dram = a.dram + a.dram_step * now.q;
    let whole = device.instance.is_none();
    let fb_total_mib = device.instance.as_ref().map_or(board.memory_mib, |instance| instance.memory_mib);
    let wobble = |kilobytes: i64, salt: u32| {
        kilobytes * (950 + ((now.spice >> salt) % 101) as i64) + ((now.spice >> (salt + 7)) % 1000) as i64
    };
    let nvlink = |links: i64| links * NVLINK_BYTES / 1_000_000 * wobble(a.nvlink_pm, 31) / 1000 * i64::from(a.nvlink_pm > 0);
    GpuState {
        board: state,
        util_pct: whole.then_some(a.util_pct + a.util_step * now.u),
        mem_copy_pct: whole.then_some(dram / 10_000),
        fb_total_mib,
        fb_used_mib: level.fb_used_mib,
        fb_reserved_mib: timeline::reserved_mib(fb_total_mib),
        gr: a.gr + a.sm_step * now.q,
        sm,
        occupancy: sm * a.occupancy_pm / 1000,
        tensor: a.tensor + a.tensor_step * now.q,
        dram,
        fp64: sm * a.fp64_pm / 1000,
        fp32: sm * a.fp32_pm / 1000,
        fp16: sm * a.fp16_pm / 1000,
        pcie_tx: whole.then(|| wobble(a.pcie_tx + 180, 3)),
        pcie_rx: whole.then(|| wobble(a.pcie_rx + 420, 19)),
        nvlink: board.nvlinks.filter(|_| whole).map(nvlink),
        holder: shown,
    }
}

/// The pod that the page of a device shows at `at`, and until when that stays.
fn shown(plan: &Plan, device: &DevicePlan, at: i64) -> (Option<usize>, i64) {
    let begun = device.held.partition_point(|held| held.named <= at);
    let mut until = device.held.get(begun).map_or(i64::MAX, |next| next.named);
    // The kubelet lists pods by namespace and name.
    let holders = device.holders(at).inspect(|held| until = until.min(held.until));
    let listed = holders.max_by_key(|held| {
        let pod = &plan.pods()[held.pod];
        (&pod.namespace, &pod.name)
    });
    let shared = device.track.as_ref().is_none_or(|track| track.build.replicas > 1);
    if shared || plan.spec().faults.stale_labels.is_none() {
        return (listed.map(|held| held.pod), until);
    }
    // A pod that is gone and that the page still shows, if there is one.
    let gone = device.held[..begun].iter().rev().take(2).find(|held| held.until <= at);
    let stale = gone.and_then(|gone| Some((gone.pod, fault::stale_until(plan, device, gone)?)));
    match stale.filter(|(_, stale)| at < *stale) {
        Some((pod, stale)) => (Some(pod), until.min(stale)),
        None => (listed.map(|held| held.pod), until),
    }
}

/// Labels of a device's series where no pod holds it, as its page prints them.
pub(crate) fn labels<'a>(
    spec: &FleetSpec,
    collectors: &'a Collectors,
    node: &str,
    identity: &Identity,
) -> Vec<(&'a str, String)> {
    let mut labels = vec![
        ("gpu", identity.gpu.to_string()),
        ("UUID", identity.uuid.clone()),
        ("pci_bus_id", identity.pci_bus_id.clone()),
        ("device", format!("nvidia{}", identity.gpu)),
        ("modelName", identity.model.clone()),
    ];
    if let Some(instance) = &identity.instance {
        labels.extend([("GPU_I_PROFILE", instance.profile.clone()), ("GPU_I_ID", instance.id.to_string())]);
    }
    match spec.exposition.hostname {
        Hostname::Lower => labels.push(("hostname", node.to_owned())),
        Hostname::Classic => labels.push(("Hostname", node.to_owned())),
        Hostname::Absent => {}
    }
    for (name, field) in collectors.labels() {
        let text = identity.texts.iter().find(|(id, _)| id == field);
        labels.extend(text.map(|(_, value)| (name.as_str(), value.clone())));
    }
    labels
}

/// Reads every device of node `node` at `at` into `page`, as its exporter prints it; nothing of a product that nobody reads.
pub fn read_node(plan: &Plan, node: usize, at: Timestamp, page: &mut Page) {
    let node = &plan.nodes()[node];
    page.begin(Some(node.name.clone()));
    for board in &node.boards {
        let (Some(constants), Some(hours)) = (&board.board, hours(plan, node, board, at.ms())) else { continue };
        let mut nows = Vec::with_capacity(hours.len());
        let reads = hours.iter().map(|hour| hour.read(at.ms()));
        let Some(state) = board_at(plan, node, board, at.ms(), reads, |gpu, now| nows.push((gpu, now))) else { continue };
        for (gpu, now) in nows {
            let device = &node.devices[gpu];
            let shown = shown(plan, device, at.ms()).0;
            print(plan, node, gpu, &device_now(device, constants, state, &now, shown), at, page);
        }
    }
}

/// Adds a device (index of [`NodePlan::devices`]) in its state at `at` to `page`, as its node's exporter prints it.
pub(crate) fn print(plan: &Plan, node: &NodePlan, device: usize, state: &GpuState, at: Timestamp, page: &mut Page) {
    let device = &node.devices[device];
    let holder = state.holder.filter(|_| plan.spec().exposition.pod_labels);
    let readings = page.device(&device.identity, holder.map(|pod| plan.pods()[pod].attributes()));
    state.readings_of(|field| plan.printed.field(field).is_some(), readings);
    if let Some(misprint) = plan.misprint(device, at.ms()) {
        readings.set(misprint.field, misprint.value());
    }
}

/// A node of a plan as a source of pages, by a clock.
#[derive(Clone, Debug)]
pub struct NodeSource {
    /// The plan.
    pub plan: Arc<Plan>,
    /// Index of [`Plan::nodes`].
    pub node: usize,
    /// What time it is.
    pub clock: SimClock,
}

impl Source for NodeSource {
    fn read(&self, page: &mut Page) -> Result<(), ReadError> {
        read_node(&self.plan, self.node, self.clock.now(), page);
        Ok(())
    }
}
