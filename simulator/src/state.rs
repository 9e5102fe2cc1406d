//! What a device reads at an instant: the physics as readings, and the page of a node.

use std::sync::Arc;

use exporter::{Page, ReadError, Readings, Source, Value};
use schemas::Timestamp;

use crate::{
    clock::SimClock,
    fault::Misprint,
    plan::{DevicePlan, DeviceRef, NodePlan, Plan},
    timeline,
};

/// A device at an instant, as it is; misprints of its page are not in it. Ratios in parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuState {
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
    /// GPU_UTIL, percent.
    pub util_pct: i64,
    /// Memory interface busy, percent.
    pub mem_copy_pct: i64,
    /// The last XID since the driver was loaded, if there was one.
    pub xid: Option<i64>,
    /// Memory, MiB: total is free + used + reserved.
    pub fb_total_mib: i64,
    /// Memory in use.
    pub fb_used_mib: i64,
    /// Memory that the driver keeps.
    pub fb_reserved_mib: i64,
    /// Rows remapped for correctable errors; only Ampere and later remap.
    pub remapped_rows: Option<i64>,
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
    /// PCIe out of the GPU, bytes a second.
    pub pcie_tx: i64,
    /// PCIe into it.
    pub pcie_rx: i64,
    /// NVLink, bytes a second in each direction; only boards with NVLink.
    pub nvlink: Option<i64>,
    /// The pod that the kubelet says holds it: index of [`Plan::pods`].
    pub holder: Option<usize>,
}

/// Bytes a second of one NVLink in one direction.
const NVLINK_BYTES: i64 = 26_562_000_000;

/// State of one device at `at`. Equal plans give equal states on every machine, whatever was asked before.
///
/// Before the fleet's start it is as at the start; after its planned end nothing new happens.
pub fn state(plan: &Plan, device: DeviceRef, at: Timestamp) -> GpuState {
    state_of(plan.device(device), &plan.nodes()[device.node], at.ms())
}

fn state_of(device: &DevicePlan, node: &NodePlan, at: i64) -> GpuState {
    let board = node.accelerator.board().expect("a checked spec names products that can be simulated");
    let now = device.timeline.now(at);
    let (level, a) = (now.level, now.level.activity);
    let sm = a.sm + a.sm_step * now.q;
    let dram = a.dram + a.dram_step * now.q;
    let reset = device.reset_before(at);
    let integral = |at: i64| device.timeline.integrals(at).energy_uj;
    let energy_uj = integral(at) + reset.map_or(device.energy_uj, |reset| -integral(reset));
    // A resend every few hours.
    let replay_ms = schemas::HOUR_MS * (3 + (device.key % 29) as i64);
    let replays = (at - reset.unwrap_or(device.booted)) / replay_ms;
    let xids = &device.xids[..device.xids.partition_point(|(seen, _)| *seen <= at)];
    let remapped = xids.iter().filter(|(_, code)| *code == 63).count() as i64;
    let wobble = |kilobytes: i64, salt: u32| {
        kilobytes * (950 + ((now.spice >> salt) % 101) as i64) + ((now.spice >> (salt + 7)) % 1000) as i64
    };
    GpuState {
        sm_clock: level.sm_clock,
        mem_clock: level.mem_clock,
        mem_temp: board.hbm.then_some((now.mem_mc + 500) / 1000),
        gpu_temp: (now.gpu_mc + 500) / 1000,
        power_mw: level.power_mw + level.power_step * now.q,
        energy_mj: energy_uj / 1000,
        pcie_replays: replays,
        util_pct: a.util_pct + a.util_step * now.u,
        mem_copy_pct: dram / 10_000,
        xid: xids.last().filter(|(seen, _)| reset.is_none_or(|reset| reset <= *seen)).map(|(_, code)| *code),
        fb_total_mib: board.memory_mib,
        fb_used_mib: level.fb_used_mib,
        fb_reserved_mib: timeline::reserved_mib(&board),
        remapped_rows: board.remaps_rows.then_some(remapped),
        gr: a.gr + a.sm_step * now.q,
        sm,
        occupancy: sm * a.occupancy_pm / 1000,
        tensor: a.tensor + a.tensor_step * now.q,
        dram,
        fp64: sm * a.fp64_pm / 1000,
        fp32: sm * a.fp32_pm / 1000,
        fp16: sm * a.fp16_pm / 1000,
        pcie_tx: wobble(a.pcie_tx + 180, 3),
        pcie_rx: wobble(a.pcie_rx + 420, 19),
        nvlink: board
            .nvlinks
            .map(|links| links * NVLINK_BYTES / 1_000_000 * wobble(a.nvlink_pm, 31) / 1000 * i64::from(a.nvlink_pm > 0)),
        holder: device.holder(at),
    }
}

impl GpuState {
    /// The readings of its page: what DCGM prints of such a device.
    pub fn readings(&self, readings: &mut Readings) {
        let ratio = |ppm: i64| Value::Float(ppm as f64 / 1e6);
        let mut int = |field: u16, value: i64| readings.set(field, Value::Int(value));
        int(100, self.sm_clock);
        int(101, self.mem_clock);
        if let Some(mem_temp) = self.mem_temp {
            int(140, mem_temp);
        }
        int(150, self.gpu_temp);
        readings.set(155, Value::Float(self.power_mw as f64 / 1e3));
        let mut int = |field: u16, value: i64| readings.set(field, Value::Int(value));
        int(156, self.energy_mj);
        int(202, self.pcie_replays);
        int(203, self.util_pct);
        int(204, self.mem_copy_pct);
        int(206, 0);
        int(207, 0);
        if let Some(xid) = self.xid {
            int(230, xid);
        }
        int(250, self.fb_total_mib);
        int(251, self.fb_total_mib - self.fb_used_mib - self.fb_reserved_mib);
        int(252, self.fb_used_mib);
        int(253, self.fb_reserved_mib);
        if let Some(rows) = self.remapped_rows {
            int(393, 0);
            int(394, rows);
            int(395, 0);
        }
        if let Some(nvlink) = self.nvlink {
            int(449, 2 * nvlink / 1_000_000);
        }
        int(526, 0);
        for (field, ppm) in [
            (1001, self.gr),
            (1002, self.sm),
            (1003, self.occupancy),
            (1004, self.tensor),
            (1005, self.dram),
            (1006, self.fp64),
            (1007, self.fp32),
            (1008, self.fp16),
        ] {
            readings.set(field, ratio(ppm));
        }
        let mut int = |field: u16, value: i64| readings.set(field, Value::Int(value));
        int(1009, self.pcie_tx);
        int(1010, self.pcie_rx);
        if let Some(nvlink) = self.nvlink {
            int(1011, nvlink);
            int(1012, nvlink);
        }
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

/// Reads every device of node `node` at `at` into `page`, as its exporter prints it.
pub fn read_node(plan: &Plan, node: usize, at: Timestamp, page: &mut Page) {
    page.begin(Some(plan.nodes()[node].name.clone()));
    for gpu in 0..plan.nodes()[node].devices.len() {
        read_device(plan, DeviceRef { node, gpu }, at, page);
    }
}

/// Adds one device at `at` to `page`, as its node's exporter prints it.
pub(crate) fn read_device(plan: &Plan, device: DeviceRef, at: Timestamp, page: &mut Page) {
    let node = &plan.nodes()[device.node];
    let device = &node.devices[device.gpu];
    let state = state_of(device, node, at.ms());
    let holder = state.holder.filter(|_| plan.spec().exposition.pod_labels);
    let readings = page.device(&device.identity, holder.map(|pod| &plan.pods()[pod].attributes));
    state.readings(readings);
    if let Some(misprint) = plan.misprint(device.key, at.ms()) {
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
