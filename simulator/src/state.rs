//! What a device reads at an instant: the physics as readings, and the page of a node.

use std::sync::Arc;

use exporter::{Collectors, Identity, Page, ReadError, Readings, Source, Value};
use schemas::Timestamp;

use crate::{
    accelerator::Board,
    clock::SimClock,
    fault::{self, Misprint},
    plan::{BoardPlan, BoardSums, DevicePlan, DeviceRef, NodePlan, Plan},
    spec::{FleetSpec, Hostname},
    timeline::{self, Hour, Now},
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

/// State of one device at `at`; none of a product that nobody reads, nor of a board that is not there. Equal plans give equal states on every machine, whatever
/// was asked before.
///
/// Before the fleet's start it is as at the start; after its planned end nothing new happens.
pub fn state(plan: &Plan, device: DeviceRef, at: Timestamp) -> Option<GpuState> {
    let node = &plan.nodes()[device.node];
    let board = plan.board(device);
    let board = BoardNow::of(board, node, plan, at.ms(), |device| plan.hour(device, plan.hour_index(at.ms())))?;
    Some(board.device(plan, node, device.gpu))
}

/// State of a node's board `board` (index of [`NodePlan::boards`]) at `at`; none of a product that nobody reads, nor where it is
/// not there.
pub fn board_state(plan: &Plan, node: usize, board: usize, at: Timestamp) -> Option<BoardState> {
    let node = &plan.nodes()[node];
    let hour = |device: &DevicePlan| plan.hour(device, plan.hour_index(at.ms()));
    BoardNow::of(&node.boards[board], node, plan, at.ms(), hour).map(|board| board.state)
}

/// A walk through one device's time: [`state`], bit by bit, in amortised constant time where instants ascend. It keeps the
/// hours that it stands in to itself, so that walks of many devices do not disturb each other.
#[derive(Debug)]
pub struct Walk<'a> {
    plan: &'a Plan,
    device: DeviceRef,
    /// One for each device of the board.
    hours: Vec<Option<Arc<Hour>>>,
}

impl Plan {
    /// A walk through the time of `device`.
    pub fn walk(&self, device: DeviceRef) -> Walk<'_> {
        Walk { plan: self, device, hours: vec![None; self.board(device).devices.len()] }
    }
}

impl Walk<'_> {
    /// State of the device at `at`, as [`state`] has it.
    pub fn at(&mut self, at: Timestamp) -> Option<GpuState> {
        let (plan, node) = (self.plan, &self.plan.nodes()[self.device.node]);
        let board = plan.board(self.device);
        let index = plan.hour_index(at.ms());
        let mut hours = self.hours.iter_mut();
        let hour = |device: &DevicePlan| {
            let kept = hours.next()?;
            if kept.as_ref().is_none_or(|hour| hour.index != index) {
                *kept = Some(Arc::new(plan.lay(device, device.track.as_ref()?, index)));
            }
            kept.clone()
        };
        let board = BoardNow::of(board, node, plan, at.ms(), hour)?;
        Some(board.device(plan, node, self.device.gpu))
    }
}

/// A board at an instant, with what each of its devices does.
struct BoardNow<'a> {
    at: i64,
    plan: &'a BoardPlan,
    board: Board,
    state: BoardState,
    devices: Vec<Now>,
}

impl<'a> BoardNow<'a> {
    /// `hour` gives the hour of each device of the board that holds `at`, in their order.
    fn of(
        plan: &'a BoardPlan,
        node: &NodePlan,
        fleet: &Plan,
        at: i64,
        mut hour: impl FnMut(&DevicePlan) -> Option<Arc<Hour>>,
    ) -> Option<Self> {
        let board = plan.board?;
        if !plan.answers(at) {
            return None;
        }
        let mut devices = Vec::with_capacity(plan.devices.len());
        let mut sums = BoardSums::idle(fleet, plan, at);
        for device in &node.devices[plan.devices.clone()] {
            let (now, integrals) = hour(device)?.read(at);
            sums.add(device, &integrals);
            devices.push(now);
        }
        let mig = node.devices[plan.devices.start].instance.is_some();
        let state = board_now(plan, &board, &devices, sums, mig, at);
        Some(Self { at, plan, board, state, devices })
    }

    /// Device `at` of the node, which is on this board.
    fn device(&self, plan: &Plan, node: &NodePlan, at: usize) -> GpuState {
        let device = &node.devices[at];
        device_now(plan, device, &self.board, self.state, &self.devices[at - self.plan.devices.start], self.at)
    }
}

fn board_now(plan: &BoardPlan, board: &Board, devices: &[Now], sums: BoardSums, mig: bool, at: i64) -> BoardState {
    let sum = |of: fn(&Now) -> i64| devices.iter().map(of).sum::<i64>();
    let resident = devices.iter().any(|now| now.level.activity.resident);
    let capped = devices.iter().any(|now| now.level.capped);
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
        mem_temp: board.hbm.then(|| (plan.ambient_mc + base.mem_mc + sum(|now| now.heat.mem_mc) + 500) / 1000),
        gpu_temp: (plan.ambient_mc + base.gpu_mc + sum(|now| now.heat.gpu_mc) + 500) / 1000,
        power_mw: plan.idle_mw + sum(Now::power_mw),
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
        fb_used_mib: sum(|now| now.level.fb_used_mib),
        fb_reserved_mib: timeline::reserved_mib(board.memory_mib),
    }
}

fn device_now(plan: &Plan, device: &DevicePlan, board: &Board, state: BoardState, now: &Now, at: i64) -> GpuState {
    let (level, a) = (now.level, now.level.activity);
    let [_, sm, _] = now.tiers(false);
    let dram = a.dram + a.dram_step * now.q;
    let whole = device.instance.is_none();
    let fb_total_mib = device.instance.as_ref().map_or(board.memory_mib, |instance| instance.memory_mib);
    let wobble = |kilobytes: i64, salt: u32| {
        kilobytes * (950 + ((now.spice >> salt) % 101) as i64) + ((now.spice >> (salt + 7)) % 1000) as i64
    };
    let nvlink = |links: i64| links * NVLINK_BYTES / 1_000_000 * wobble(a.nvlink_pm, 31) / 1000 * i64::from(a.nvlink_pm > 0);
    // The kubelet lists pods by namespace and name.
    let listed = device.holders(at).max_by_key(|held| {
        let pod = &plan.pods()[held.pod];
        (&pod.namespace, &pod.name)
    });
    let shown = stale(plan, device, at).or(listed.map(|held| held.pod));
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

/// The pod that is gone and that the page still shows, if there is one.
fn stale(plan: &Plan, device: &DevicePlan, at: i64) -> Option<usize> {
    let shared = device.track.as_ref().is_none_or(|track| track.build.replicas > 1);
    if shared || plan.spec().faults.stale_labels.is_none() {
        return None;
    }
    let begun = device.held.partition_point(|held| held.named <= at);
    let gone = device.held[..begun].iter().rev().take(2).find(|held| held.until <= at)?;
    fault::stale_until(plan, device, gone).filter(|until| at < *until).map(|_| gone.pod)
}

impl GpuState {
    /// Every reading that DCGM has of such a device.
    pub fn readings(&self, readings: &mut Readings) {
        self.readings_of(|_| true, readings);
    }

    /// Those of them whose field is `wanted`.
    pub(crate) fn readings_of(&self, wanted: impl Fn(u16) -> bool, readings: &mut Readings) {
        let mut set = |field: u16, value: Option<Value>| {
            if let Some(value) = value.filter(|_| wanted(field)) {
                readings.set(field, value);
            }
        };
        let int = |value: i64| Some(Value::Int(value));
        let some = |value: Option<i64>| value.map(Value::Int);
        let watts = |mw: i64| Some(Value::Float(mw as f64 / 1e3));
        let ratio = |ppm: i64| Some(Value::Float(ppm as f64 / 1e6));
        set(67, int(self.mig.into()));
        set(100, int(self.sm_clock));
        set(101, int(self.mem_clock));
        set(112, int(self.clock_reasons));
        set(113, int(self.max_sm_clock));
        set(114, int(self.max_mem_clock));
        set(140, some(self.mem_temp));
        set(150, int(self.gpu_temp));
        set(155, watts(self.power_mw));
        set(156, int(self.energy_mj));
        set(157, watts(self.power_mw));
        set(160, watts(self.power_limit_mw));
        // Nobody lowers the limit.
        set(163, watts(self.power_limit_mw));
        set(164, watts(self.power_limit_mw));
        set(190, int(self.pstate));
        set(202, int(self.pcie_replays));
        set(203, some(self.util_pct));
        set(204, some(self.mem_copy_pct));
        // Nobody decodes video; of an instance nobody could say.
        set(206, some(self.util_pct.map(|_| 0)));
        set(207, some(self.util_pct.map(|_| 0)));
        set(230, some(self.xid));
        set(240, int(self.power_violation_ns));
        // Nothing else has held these clocks down.
        (241..=245).for_each(|field| set(field, int(0)));
        let usable = self.fb_total_mib - self.fb_reserved_mib;
        set(250, int(self.fb_total_mib));
        set(251, int(usable - self.fb_used_mib));
        set(252, int(self.fb_used_mib));
        set(253, int(self.fb_reserved_mib));
        set(254, ratio(self.fb_used_mib * 1_000_000 / usable.max(1)));
        set(310, int(self.ecc_volatile.0));
        set(311, int(self.ecc_volatile.1));
        set(312, int(self.ecc_aggregate.0));
        set(313, int(self.ecc_aggregate.1));
        set(390, some(self.retired_pages.map(|(single, ..)| single)));
        set(391, some(self.retired_pages.map(|(_, double, _)| double)));
        set(392, some(self.retired_pages.map(|(.., waits)| waits)));
        set(393, some(self.uncorrectable_rows));
        set(394, some(self.remapped_rows));
        set(395, some(self.remapped_rows.map(|_| 0)));
        // No row waits: each is remapped at once.
        set(396, some(self.remapped_rows.map(|_| 0)));
        set(409, some(self.nvlink_replays.map(|_| 0)));
        set(419, some(self.nvlink_replays.map(|_| 0)));
        set(429, some(self.nvlink_replays));
        set(439, some(self.nvlink_replays.map(|_| 0)));
        set(449, some(self.nvlink.map(|nvlink| 2 * nvlink / 1_000_000)));
        set(526, int(0));
        set(1001, ratio(self.gr));
        set(1002, ratio(self.sm));
        set(1003, ratio(self.occupancy));
        set(1004, ratio(self.tensor));
        set(1005, ratio(self.dram));
        set(1006, ratio(self.fp64));
        set(1007, ratio(self.fp32));
        set(1008, ratio(self.fp16));
        set(1009, some(self.pcie_tx));
        set(1010, some(self.pcie_rx));
        set(1011, some(self.nvlink));
        set(1012, some(self.nvlink));
    }
}

impl Misprint {
    fn apply(self, readings: &mut Readings) {
        let way = (self.way % 4) as i64;
        let wrong = match (self.field, self.blank) {
            (203, true) => Value::Int(if way < 2 { 9_223_372_036_854_775_792 + way } else { 2_147_483_632 + way }),
            (_, true) => Value::Float(140_737_488_355_328.0 + way as f64),
            (203, false) => Value::Int([808_334_905, 2_619, 101, 4_294_967_295][way as usize]),
            (_, false) => Value::Float([1.294, 1.013, 57.5, -0.25][way as usize]),
        };
        readings.set(self.field, wrong);
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
    let index = plan.hour_index(at.ms());
    for board in &node.boards {
        let Some(now) = BoardNow::of(board, node, plan, at.ms(), |device| plan.hour(device, index)) else { continue };
        for device in board.devices.clone() {
            print(plan, node, device, &now.device(plan, node, device), at, page);
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
        misprint.apply(readings);
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
