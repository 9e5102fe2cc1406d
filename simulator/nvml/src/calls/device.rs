//! What a device is and what it reads.

use std::ffi::{c_int, c_uint, c_ulonglong};

use simulator::nvml::{self, Code};

use super::{entries, system::bus_of};
use crate::{
    abi::{FieldValue, PciInfo, PciInfoExt, PciInfoShort, TYPE_UNSIGNED, Temperature, Utilization, ViolationTime, version},
    boundary::{Answer, Out, TextOut, fixed},
    fields,
    machine::{View, float, int, unsigned},
};

/// NVIDIA's PCI vendor number, the lower half of a device's.
const VENDOR: c_uint = 0x10de;
/// How long the driver looks at its encoders for a reading, microseconds (chosen).
const SAMPLING_US: c_uint = 167_000;
/// Most fields of one question.
const MOST_FIELDS: c_int = 4096;

/// Serial of a GPU's board.
pub fn serial(view: &View) -> Answer<String> {
    view.whole()?;
    Ok(nvml::serial(&view.machine.plan, view.place()))
}

fn index(view: &View) -> Answer<c_uint> {
    match view.instance {
        Some(instance) => Ok(instance as c_uint),
        None => {
            let place = view.machine.present(view.moment).position(|gpu| gpu == view.gpu);
            place.map(|place| place as c_uint).ok_or(Code::GPU_IS_LOST)
        }
    }
}

fn pci(view: &View) -> PciInfo {
    let (domain, bus, device) = bus_of(view);
    let slot = format!("{bus:02X}:{device:02X}.0");
    PciInfo {
        bus_id_legacy: fixed(&format!("{domain:04X}:{slot}")),
        domain,
        bus,
        device,
        pci_device_id: VENDOR,
        pci_subsystem_id: VENDOR,
        bus_id: fixed(&format!("{domain:08X}:{slot}")),
    }
}

fn pci_short(view: &View) -> PciInfoShort {
    let PciInfo { bus_id_legacy: bus_id, domain, bus, device, pci_device_id, .. } = pci(view);
    PciInfoShort { bus_id, domain, bus, device, pci_device_id }
}

/// Number of an architecture, `NVML_DEVICE_ARCH_*` of NVML's header, and the CUDA compute capability that NVIDIA's list of GPUs gives
/// its products in `accelerators.csv`: others of Ampere (A10: 8.6) and Blackwell differ.
fn architecture(view: &View) -> Answer<(c_uint, (c_int, c_int))> {
    Ok(match view.accelerator().arch.as_str() {
        "Volta" => (5, (7, 0)),
        "Turing" => (6, (7, 5)),
        "Ampere" => (7, (8, 0)),
        "Ada Lovelace" => (8, (8, 9)),
        "Hopper" => (9, (9, 0)),
        "Blackwell" => (10, (10, 0)),
        _ => return Err(Code::NOT_SUPPORTED),
    })
}

/// Clock of a domain: 0 graphics and 1 SM are one, 2 is memory; what video runs at nobody says.
fn clock(kind: c_uint, sm: impl FnOnce() -> Answer<u32>, memory: impl FnOnce() -> Answer<u32>) -> Answer<u32> {
    match kind {
        0 | 1 => sm(),
        2 => memory(),
        3 => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

fn clock_now(view: &View, kind: c_uint) -> Answer<u32> {
    clock(kind, || view.unsigned(100), || view.unsigned(101))
}

fn clock_max(view: &View, kind: c_uint) -> Answer<u32> {
    view.whole()?;
    let constant = |constant: Option<i64>| unsigned(constant.ok_or(Code::NOT_SUPPORTED)?);
    clock(kind, || constant(view.accelerator().max_sm_clock_mhz), || constant(view.accelerator().max_mem_clock_mhz))
}

/// The limit that the state has, or the board's own.
fn power_limit(view: &View) -> Answer<u32> {
    view.whole()?;
    if let Ok(watts) = float(&view.readings(), 160) {
        return unsigned((watts * 1000.0).round() as i64);
    }
    unsigned(view.accelerator().tdp_mw.ok_or(Code::NOT_SUPPORTED)?)
}

/// Degrees at which boards shut down, slow down, and run at most, and their memory's most: published of two boards, in
/// absolute degrees (later ones give margins).
fn threshold(view: &View, kind: c_uint) -> Answer<u32> {
    view.whole()?;
    let degrees: [Option<u32>; 4] = match view.accelerator().product.as_str() {
        "NVIDIA A100-SXM4-80GB" => [Some(92), Some(89), Some(95), Some(85)],
        "Tesla T4" => [Some(96), Some(93), None, Some(85)],
        _ => [None; 4],
    };
    match kind {
        0..=3 => degrees[kind as usize].ok_or(Code::NOT_SUPPORTED),
        4..=7 => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

fn engine_utilization(view: &View, field: u16, percent: Out<c_uint>, sampling_us: Out<c_uint>) -> Answer {
    percent.there()?;
    sampling_us.put(SAMPLING_US)?;
    percent.put(view.unsigned(field)?)
}

/// Reasons why clocks are where they are, as a mask: idle, power cap and the like.
fn clock_reasons(view: &View, mask: Out<c_ulonglong>) -> Answer {
    mask.there()?;
    view.whole()?;
    mask.put(view.int(112)? as u64)
}

/// Every reason of the header.
const ALL_REASONS: u64 = 0x1ff;

fn pcie_throughput(view: &View, counter: c_uint) -> Answer<u32> {
    view.whole()?;
    let (direct, bytes) = match counter {
        0 => (200, 1009),
        1 => (201, 1010),
        _ => return Err(Code::INVALID_ARGUMENT),
    };
    let readings = view.readings();
    unsigned(int(&readings, direct).or_else(|_| int(&readings, bytes).map(|bytes| bytes / 1024))?)
}

/// ECC errors by kind (corrected, uncorrected) and counter (since the driver's load, ever).
pub fn ecc_total(view: &View, kind: c_uint, counter: c_uint) -> Answer<u64> {
    view.whole()?;
    let field = match (kind, counter) {
        (0, 0) => 310,
        (1, 0) => 311,
        (0, 1) => 312,
        (1, 1) => 313,
        _ => return Err(Code::INVALID_ARGUMENT),
    };
    Ok(view.int(field)? as u64)
}

fn field_values(view: &View, count: c_int, values: Out<FieldValue>) -> Answer {
    values.there()?;
    if !(1..=MOST_FIELDS).contains(&count) {
        return Err(Code::INVALID_ARGUMENT);
    }
    let readings = view.whole().map(|()| view.readings());
    for n in 0..count as usize {
        let place = values.nth(n);
        let mut filled = place.get()?;
        let typed = readings.as_ref().map_err(|code| *code);
        let typed = typed.and_then(|readings| fields::value(view, readings, filled.field_id, filled.scope_id));
        // Fleet time: a counter's growth over it is a rate at any speed of the clock.
        (filled.at_us, filled.latency_us) = (view.moment.at.micros(), 0);
        filled.code = match typed {
            Ok(fields::Typed(value_type, value)) => {
                (filled.value_type, filled.value) = (value_type, value);
                Code::SUCCESS.0
            }
            Err(code) => code.0,
        };
        place.put(filled)?;
    }
    Ok(())
}

/// Samples of the last minute, a second apart, after `last_seen_us` by the wall clock.
fn samples(
    view: &View,
    kind: c_uint,
    last_seen_us: u64,
    value_type: Out<c_uint>,
    count: Out<c_uint>,
    out: Out<crate::abi::Sample>,
) -> Answer {
    view.whole()?;
    value_type.there()?;
    let read = |at: schemas::Timestamp| {
        let readings = nvml::readings(&view.machine.plan, view.place(), at, None);
        match kind {
            0 => fields::milliwatts(&readings),
            1 => unsigned(int(&readings, 203)?),
            2 => unsigned(int(&readings, 204)?),
            3 => unsigned(int(&readings, 206)?),
            4 => unsigned(int(&readings, 207)?),
            5 => unsigned(int(&readings, 100)?),
            6 => unsigned(int(&readings, 101)?),
            7..=9 => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    };
    let mut found = Vec::new();
    let last = view.moment.wall_ms.div_euclid(1000);
    for second in last - 59..=last {
        let at_us = second as u64 * 1_000_000;
        if at_us > last_seen_us {
            let value = read(view.machine.fleet_time(second * 1000))?;
            found.push(crate::abi::Sample { at_us, value: crate::abi::Value::unsigned(value) });
        }
    }
    value_type.put(TYPE_UNSIGNED)?;
    if found.is_empty() {
        return Err(Code::NOT_FOUND);
    }
    if out.is_null() {
        return count.put(found.len() as c_uint); // the question how many there are
    }
    // Of more than there is room for, the latest.
    let room = (count.get()? as usize).min(found.len());
    out.fill(count, &found[found.len() - room..])
}

/// Answers a question with one number of a whole GPU.
fn number<T: Copy>(out: Out<T>, value: impl FnOnce() -> Answer<T>) -> Answer {
    out.there()?;
    out.put(value()?)
}

entries! {
    device nvmlDeviceGetName(text: TextOut, length: c_uint) |view| text.put(length, &super::mig::name(view)?);
    device nvmlDeviceGetUUID(text: TextOut, length: c_uint) |view| text.put(length, &super::mig::uuid(view)?);
    device nvmlDeviceGetSerial(text: TextOut, length: c_uint) |view| text.put(length, &serial(view)?);
    device nvmlDeviceGetIndex(out: Out<c_uint>) |view| number(out, || index(view));
    device nvmlDeviceGetMinorNumber(out: Out<c_uint>) |view| number(out, || view.whole().map(|()| view.board().slot as c_uint));
    device nvmlDeviceGetModuleId(out: Out<c_uint>) |view| number(out, || view.whole().map(|()| view.board().slot as c_uint));
    device nvmlDeviceGetBrand(out: Out<c_uint>) |view| {
        // 2 Tesla, 14 NVIDIA.
        number(out, || Ok(if view.accelerator().product.starts_with("Tesla") { 2 } else { 14 }))
    };
    device nvmlDeviceGetArchitecture(out: Out<c_uint>) |view| number(out, || Ok(architecture(view)?.0));
    device nvmlDeviceGetCudaComputeCapability(major: Out<c_int>, minor: Out<c_int>) |view| {
        let (_, (x, y)) = architecture(view)?;
        minor.there()?;
        major.put(x).and_then(|()| minor.put(y))
    };
    device nvmlDeviceGetPciInfo_v3(out: Out<PciInfo>) |view| number(out, || view.whole().map(|()| pci(view)));
    device nvmlDeviceGetPciInfo_v2(out: Out<PciInfoShort>) |view| number(out, || view.whole().map(|()| pci_short(view)));
    device nvmlDeviceGetPciInfo(out: Out<PciInfoShort>) |view| number(out, || view.whole().map(|()| pci_short(view)));
    device nvmlDeviceGetPciInfoExt(out: Out<PciInfoExt>) |view| {
        let mut info = out.versioned(version::<PciInfoExt>(1))?;
        view.whole()?;
        let PciInfo { domain, bus, device, pci_device_id, pci_subsystem_id, bus_id, .. } = pci(view);
        (info.domain, info.bus, info.device) = (domain, bus, device);
        (info.pci_device_id, info.pci_subsystem_id, info.bus_id) = (pci_device_id, pci_subsystem_id, bus_id);
        // Class 3, display controller; subclass 2, 3D controller.
        (info.base_class, info.sub_class) = (3, 2);
        out.put(info)
    };
    device nvmlDeviceGetBusType(out: Out<c_uint>) |view| number(out, || view.whole().map(|()| 2)); // PCIe
    device nvmlDeviceGetBoardId(out: Out<c_uint>) |view| number(out, || view.whole().map(|()| bus_of(view).1 << 8));
    device nvmlDeviceGetMultiGpuBoard(out: Out<c_uint>) |view| number(out, || view.whole().map(|()| 0));
    device nvmlDeviceGetDisplayMode(out: Out<c_uint>) |view| number(out, || view.whole().map(|()| 0));
    device nvmlDeviceGetDisplayActive(out: Out<c_uint>) |view| number(out, || view.whole().map(|()| 0));
    device nvmlDeviceGetPersistenceMode(out: Out<c_uint>) |view| number(out, || view.whole().map(|()| 1));
    device nvmlDeviceGetComputeMode(out: Out<c_uint>) |view| number(out, || view.whole().map(|()| 0));
    device nvmlDeviceGetPowerManagementMode(out: Out<c_uint>) |view| number(out, || view.whole().map(|()| 1));
    device nvmlDeviceGetPowerSource(out: Out<c_uint>) |view| number(out, || view.whole().map(|()| 0));
    device nvmlDeviceGetVirtualizationMode(out: Out<c_uint>) |view| number(out, || view.whole().map(|()| 0));
    device nvmlDeviceGetEccMode(current: Out<c_uint>, pending: Out<c_uint>) |view| {
        view.whole()?;
        pending.there()?;
        current.put(1).and_then(|()| pending.put(1))
    };
    device nvmlDeviceGetDefaultEccMode(out: Out<c_uint>) |view| number(out, || view.whole().map(|()| 1));
    device nvmlDeviceGetTemperature(sensor: c_uint, out: Out<c_uint>) |view| {
        if sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        number(out, || view.unsigned(150))
    };
    device nvmlDeviceGetTemperatureV(out: Out<Temperature>) |view| {
        let mut asked = out.versioned(version::<Temperature>(1))?;
        if asked.sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        asked.temperature = view.unsigned(150)? as c_int;
        out.put(asked)
    };
    device nvmlDeviceGetTemperatureThreshold(kind: c_uint, out: Out<c_uint>) |view| number(out, || threshold(view, kind));
    device nvmlDeviceGetPowerUsage(out: Out<c_uint>) |view| {
        number(out, || view.whole().and_then(|()| fields::milliwatts(&view.readings())))
    };
    device nvmlDeviceGetPowerManagementLimit(out: Out<c_uint>) |view| number(out, || power_limit(view));
    device nvmlDeviceGetPowerManagementDefaultLimit(out: Out<c_uint>) |view| number(out, || power_limit(view));
    device nvmlDeviceGetEnforcedPowerLimit(out: Out<c_uint>) |view| number(out, || power_limit(view));
    device nvmlDeviceGetTotalEnergyConsumption(out: Out<c_ulonglong>) |view| {
        number(out, || view.whole().and_then(|()| Ok(view.int(156)? as u64)))
    };
    device nvmlDeviceGetPerformanceState(out: Out<c_uint>) |view| number(out, || view.unsigned(190));
    device nvmlDeviceGetPowerState(out: Out<c_uint>) |view| number(out, || view.unsigned(190));
    device nvmlDeviceGetClockInfo(kind: c_uint, out: Out<c_uint>) |view| number(out, || clock_now(view, kind));
    device nvmlDeviceGetMaxClockInfo(kind: c_uint, out: Out<c_uint>) |view| number(out, || clock_max(view, kind));
    device nvmlDeviceGetMaxCustomerBoostClock(kind: c_uint, out: Out<c_uint>) |view| number(out, || clock_max(view, kind));
    device nvmlDeviceGetClock(kind: c_uint, id: c_uint, out: Out<c_uint>) |view| {
        number(out, || match id {
            0 => clock_now(view, kind),
            3 => clock_max(view, kind),
            1 | 2 => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_ARGUMENT),
        })
    };
    device nvmlDeviceGetCurrentClocksEventReasons(mask: Out<c_ulonglong>) |view| clock_reasons(view, mask);
    device nvmlDeviceGetCurrentClocksThrottleReasons(mask: Out<c_ulonglong>) |view| clock_reasons(view, mask);
    device nvmlDeviceGetSupportedClocksEventReasons(mask: Out<c_ulonglong>) |view| {
        number(mask, || view.whole().map(|()| ALL_REASONS))
    };
    device nvmlDeviceGetSupportedClocksThrottleReasons(mask: Out<c_ulonglong>) |view| {
        number(mask, || view.whole().map(|()| ALL_REASONS))
    };
    device nvmlDeviceGetUtilizationRates(out: Out<Utilization>) |view| {
        number(out, || Ok(Utilization { gpu: view.unsigned(203)?, memory: view.unsigned(204)? }))
    };
    device nvmlDeviceGetEncoderUtilization(percent: Out<c_uint>, us: Out<c_uint>) |view| engine_utilization(view, 206, percent, us);
    device nvmlDeviceGetDecoderUtilization(percent: Out<c_uint>, us: Out<c_uint>) |view| engine_utilization(view, 207, percent, us);
    device nvmlDeviceGetFanSpeed(out: Out<c_uint>) |view| number(out, || view.unsigned(191));
    device nvmlDeviceGetNumFans(out: Out<c_uint>) |view| {
        // Boards whose fan nobody reads have none.
        number(out, || view.whole().map(|()| c_uint::from(view.unsigned(191).is_ok())))
    };
    device nvmlDeviceGetPcieThroughput(counter: c_uint, out: Out<c_uint>) |view| number(out, || pcie_throughput(view, counter));
    device nvmlDeviceGetPcieReplayCounter(out: Out<c_uint>) |view| number(out, || view.unsigned(202));
    device nvmlDeviceGetViolationStatus(policy: c_uint, out: Out<ViolationTime>) |view| {
        if !(0..12).contains(&policy) {
            return Err(Code::INVALID_ARGUMENT);
        }
        view.whole()?;
        number(out, || {
            let field = u16::try_from(policy).ok().filter(|policy| *policy < 6).ok_or(Code::NOT_SUPPORTED)?;
            let violation_ns = view.int(240 + field)? as u64;
            Ok(ViolationTime { reference_us: view.moment.at.micros() as u64, violation_ns })
        })
    };
    device nvmlDeviceGetFieldValues(count: c_int, values: Out<FieldValue>) |view| field_values(view, count, values);
    device nvmlDeviceGetSamples(
        kind: c_uint, last_seen_us: c_ulonglong, value_type: Out<c_uint>, count: Out<c_uint>, out: Out<crate::abi::Sample>,
    ) |view| samples(view, kind, last_seen_us, value_type, count, out);
}

/// GPU_UTIL and its like of a device, percent; a device that cannot say has none.
pub fn percent(view: &View, field: u16) -> c_uint {
    int(&view.readings(), field).and_then(unsigned).unwrap_or(0)
}
