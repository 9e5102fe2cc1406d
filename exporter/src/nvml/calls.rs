//! The questions that the driver's library is asked, and the DCGM fields that each answer fills: one table, one loop.
//!
//! Sources of the mapping and its scales: NVML's header and DCGM's field table, as docs/exporter.md lists them.

use nvml_wrapper::{
    Device,
    enum_wrappers::device::{
        Clock, EccCounter, GpuVirtualizationMode, MemoryError, PcieUtilCounter, PerformancePolicy, TemperatureSensor,
        TemperatureThreshold,
    },
};

use super::{
    fault::Fault,
    raw::{self, ALL_LINKS, FieldAt},
};
use crate::source::Value;

/// A question. Each is one call of the library, but where said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Clocks now: SM, memory, video.
    Clock(Clock),
    /// Highest clocks.
    MaxClock(Clock),
    /// Clocks set for applications.
    AppClock(Clock),
    /// The die's temperature.
    Temperature,
    /// A limit of temperature.
    Threshold(TemperatureThreshold),
    /// Draw of the board.
    Power,
    /// Limit of the draw, as set.
    PowerLimit,
    /// Lowest and highest limit that can be set.
    PowerLimits,
    /// Limit by default.
    PowerLimitDefault,
    /// Limit in force.
    EnforcedLimit,
    /// Energy since the driver was loaded.
    Energy,
    /// Share of time with a kernel, and with memory traffic.
    Utilization,
    /// Video encoder.
    Encoder,
    /// Video decoder.
    Decoder,
    /// Device memory; by the older call where the library has not the newer.
    Memory,
    /// Memory of the bus window.
    Bar1,
    /// PCIe traffic over 20 ms, in which the call does not return.
    PcieTraffic(PcieUtilCounter),
    /// PCIe link: generation now.
    PcieGeneration,
    /// Lanes now.
    PcieWidth,
    /// Highest generation.
    PcieMaxGeneration,
    /// Most lanes.
    PcieMaxWidth,
    /// PCIe resends.
    PcieReplays,
    /// Why clocks are held down: a mask.
    ClockReasons,
    /// Performance state.
    PerformanceState,
    /// Fan.
    Fan,
    /// Whether MIG is on.
    MigMode,
    /// Whether this is a virtual GPU, and so may want a licence.
    Licence,
    /// Many fields by NVML's field ids, at once.
    Fields,
    /// Time that clocks were held down, by the older call.
    Violation(PerformancePolicy),
    /// ECC errors by the older call.
    Ecc(MemoryError, EccCounter),
    /// Bytes over all NVLinks, link by link.
    LinkBytes,
    /// Profiling metrics between two samples.
    Gpm,
}

impl Call {
    /// Whether it is an older way to fields that another question gives on newer drivers.
    pub const fn is_older(self) -> bool {
        matches!(self, Self::Violation(_) | Self::Ecc(..))
    }
}

/// A question and the DCGM fields of its answer. Of two rows with a field, the later is asked only where the earlier has not given
/// it.
pub type Row = (Call, &'static str, &'static [u16]);

/// Questions about a whole GPU, those of [`FIELDS`] and [`super::gpm`] apart. `Memory` is asked about instances too.
pub const ROWS: &[Row] = &[
    (Call::Clock(Clock::SM), "nvmlDeviceGetClockInfo(SM)", &[100]),
    (Call::Clock(Clock::Memory), "nvmlDeviceGetClockInfo(MEM)", &[101]),
    (Call::Clock(Clock::Video), "nvmlDeviceGetClockInfo(VIDEO)", &[102]),
    (Call::AppClock(Clock::SM), "nvmlDeviceGetApplicationsClock(SM)", &[110]),
    (Call::AppClock(Clock::Memory), "nvmlDeviceGetApplicationsClock(MEM)", &[111]),
    (Call::ClockReasons, "nvmlDeviceGetCurrentClocksEventReasons", &[112]),
    (Call::MaxClock(Clock::SM), "nvmlDeviceGetMaxClockInfo(SM)", &[113]),
    (Call::MaxClock(Clock::Memory), "nvmlDeviceGetMaxClockInfo(MEM)", &[114]),
    (Call::MaxClock(Clock::Video), "nvmlDeviceGetMaxClockInfo(VIDEO)", &[115]),
    (Call::Temperature, "nvmlDeviceGetTemperature", &[150]),
    (Call::Threshold(TemperatureThreshold::MemoryMax), "nvmlDeviceGetTemperatureThreshold(MEM_MAX)", &[151]),
    (Call::Threshold(TemperatureThreshold::GpuMax), "nvmlDeviceGetTemperatureThreshold(GPU_MAX)", &[152]),
    (Call::Power, "nvmlDeviceGetPowerUsage", &[155]),
    (Call::Energy, "nvmlDeviceGetTotalEnergyConsumption", &[156]),
    (Call::Threshold(TemperatureThreshold::Slowdown), "nvmlDeviceGetTemperatureThreshold(SLOWDOWN)", &[158]),
    (Call::Threshold(TemperatureThreshold::Shutdown), "nvmlDeviceGetTemperatureThreshold(SHUTDOWN)", &[159]),
    (Call::PowerLimit, "nvmlDeviceGetPowerManagementLimit", &[160]),
    (Call::PowerLimits, "nvmlDeviceGetPowerManagementLimitConstraints", &[161, 162]),
    (Call::PowerLimitDefault, "nvmlDeviceGetPowerManagementDefaultLimit", &[163]),
    (Call::EnforcedLimit, "nvmlDeviceGetEnforcedPowerLimit", &[164]),
    (Call::PerformanceState, "nvmlDeviceGetPerformanceState", &[190]),
    (Call::Fan, "nvmlDeviceGetFanSpeed_v2(0)", &[191]),
    (Call::PcieTraffic(PcieUtilCounter::Send), "nvmlDeviceGetPcieThroughput(TX_BYTES)", &[200]),
    (Call::PcieTraffic(PcieUtilCounter::Receive), "nvmlDeviceGetPcieThroughput(RX_BYTES)", &[201]),
    (Call::PcieReplays, "nvmlDeviceGetPcieReplayCounter", &[202]),
    (Call::Utilization, "nvmlDeviceGetUtilizationRates", &[203, 204]),
    (Call::Encoder, "nvmlDeviceGetEncoderUtilization", &[206]),
    (Call::Decoder, "nvmlDeviceGetDecoderUtilization", &[207]),
    (Call::PcieMaxGeneration, "nvmlDeviceGetMaxPcieLinkGeneration", &[235]),
    (Call::PcieMaxWidth, "nvmlDeviceGetMaxPcieLinkWidth", &[236]),
    (Call::PcieGeneration, "nvmlDeviceGetCurrPcieLinkGeneration", &[237]),
    (Call::PcieWidth, "nvmlDeviceGetCurrPcieLinkWidth", &[238]),
    (Call::MigMode, "nvmlDeviceGetMigMode", &[67]),
    (Call::Bar1, "nvmlDeviceGetBAR1MemoryInfo", &[90, 92, 93]),
    (Call::Memory, "nvmlDeviceGetMemoryInfo_v2", &[250, 251, 252, 253, 254]),
    (Call::Licence, "nvmlDeviceGetVirtualizationMode", &[526]),
    (Call::LinkBytes, "nvmlDeviceGetFieldValues(202, 204 of each link)", &[1201, 1203]),
    (Call::Violation(PerformancePolicy::Power), "nvmlDeviceGetViolationStatus(POWER)", &[240]),
    (Call::Violation(PerformancePolicy::Thermal), "nvmlDeviceGetViolationStatus(THERMAL)", &[241]),
    (Call::Violation(PerformancePolicy::SyncBoost), "nvmlDeviceGetViolationStatus(SYNC_BOOST)", &[242]),
    (Call::Violation(PerformancePolicy::BoardLimit), "nvmlDeviceGetViolationStatus(BOARD_LIMIT)", &[243]),
    (Call::Violation(PerformancePolicy::LowUtilization), "nvmlDeviceGetViolationStatus(LOW_UTILIZATION)", &[244]),
    (Call::Violation(PerformancePolicy::Reliability), "nvmlDeviceGetViolationStatus(RELIABILITY)", &[245]),
    (Call::Ecc(MemoryError::Corrected, EccCounter::Volatile), "nvmlDeviceGetTotalEccErrors(CORRECTED, VOLATILE)", &[310]),
    (Call::Ecc(MemoryError::Uncorrected, EccCounter::Volatile), "nvmlDeviceGetTotalEccErrors(UNCORRECTED, VOLATILE)", &[311]),
    (Call::Ecc(MemoryError::Corrected, EccCounter::Aggregate), "nvmlDeviceGetTotalEccErrors(CORRECTED, AGGREGATE)", &[312]),
    (Call::Ecc(MemoryError::Uncorrected, EccCounter::Aggregate), "nvmlDeviceGetTotalEccErrors(UNCORRECTED, AGGREGATE)", &[313]),
];

/// How a field's number becomes the metric's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// As it is.
    One,
    /// Milliwatts to watts.
    Milli,
    /// A running sum in KiB to its rate, in thousands of KiB a second: DCGM's "MB/s".
    Rate,
}

/// DCGM field, NVML fields that are added up for it, scale.
pub const FIELDS: &[(u16, &[FieldAt], Scale)] = &[
    (140, &[at(82)], Scale::One),
    (157, &[at(186)], Scale::Milli),
    (240, &[at(74)], Scale::One),
    (241, &[at(75)], Scale::One),
    (242, &[at(76)], Scale::One),
    (243, &[at(77)], Scale::One),
    (244, &[at(78)], Scale::One),
    (245, &[at(79)], Scale::One),
    (310, &[at(3)], Scale::One),
    (311, &[at(4)], Scale::One),
    (312, &[at(5)], Scale::One),
    (313, &[at(6)], Scale::One),
    (390, &[at(29)], Scale::One),
    (391, &[at(30)], Scale::One),
    (392, &[at(31)], Scale::One),
    (393, &[at(143)], Scale::One),
    (394, &[at(142)], Scale::One),
    (395, &[at(145)], Scale::One),
    (396, &[at(144)], Scale::One),
    (409, &[at(38)], Scale::One),
    (419, &[at(45)], Scale::One),
    (429, &[at(52)], Scale::One),
    (439, &[at(59)], Scale::One),
    (440, &[link(138, 0), link(139, 0)], Scale::Rate),
    (441, &[link(138, 1), link(139, 1)], Scale::Rate),
    (442, &[link(138, 2), link(139, 2)], Scale::Rate),
    (443, &[link(138, 3), link(139, 3)], Scale::Rate),
    (444, &[link(138, 4), link(139, 4)], Scale::Rate),
    (445, &[link(138, 5), link(139, 5)], Scale::Rate),
    (446, &[link(138, 12), link(139, 12)], Scale::Rate),
    (447, &[link(138, 13), link(139, 13)], Scale::Rate),
    (448, &[link(138, 14), link(139, 14)], Scale::Rate),
    (449, &[link(138, ALL_LINKS), link(139, ALL_LINKS)], Scale::Rate),
    (475, &[link(138, 6), link(139, 6)], Scale::Rate),
    (476, &[link(138, 7), link(139, 7)], Scale::Rate),
    (477, &[link(138, 8), link(139, 8)], Scale::Rate),
    (478, &[link(138, 9), link(139, 9)], Scale::Rate),
    (479, &[link(138, 10), link(139, 10)], Scale::Rate),
    (480, &[link(138, 11), link(139, 11)], Scale::Rate),
    (494, &[link(138, 15), link(139, 15)], Scale::Rate),
    (495, &[link(138, 16), link(139, 16)], Scale::Rate),
    (496, &[link(138, 17), link(139, 17)], Scale::Rate),
];

const fn at(id: u32) -> FieldAt {
    FieldAt { id, scope: 0 }
}

const fn link(id: u32, scope: u32) -> FieldAt {
    FieldAt { id, scope }
}

/// Most links of a GPU that are asked: twice what the largest board has.
const MOST_LINKS: u32 = 36;
/// Bytes of a MiB.
const MIB: u64 = 1 << 20;

/// What an answer says of each field.
pub type Answers = Vec<(u16, Result<Value, Fault>)>;

fn int(value: impl Into<i64>) -> Value {
    Value::Int(value.into())
}

fn wide(value: u64) -> Result<Value, Fault> {
    i64::try_from(value).map(Value::Int).map_err(|_| Fault::BAD_VALUE)
}

fn watts(milliwatts: u32) -> Value {
    Value::Float(f64::from(milliwatts) / 1000.0)
}

/// Asks one question of a device. `Fields` and `Gpm` are asked by who keeps their earlier values.
pub fn ask(device: &Device, call: Call) -> Result<Answers, Fault> {
    let one = |field: u16, value: Value| Ok(vec![(field, Ok(value))]);
    match call {
        Call::Clock(clock) => one(by_clock(clock, [100, 101, 102]), int(device.clock_info(clock)?)),
        Call::AppClock(clock) => one(by_clock(clock, [110, 111, 111]), int(device.applications_clock(clock)?)),
        Call::MaxClock(clock) => one(by_clock(clock, [113, 114, 115]), int(device.max_clock_info(clock)?)),
        Call::Temperature => one(150, int(device.temperature(TemperatureSensor::Gpu)?)),
        Call::Threshold(which) => {
            let field = match which {
                TemperatureThreshold::MemoryMax => 151,
                TemperatureThreshold::GpuMax => 152,
                TemperatureThreshold::Slowdown => 158,
                _ => 159,
            };
            one(field, int(device.temperature_threshold(which)?))
        }
        Call::Power => one(155, watts(device.power_usage()?)),
        Call::PowerLimit => one(160, watts(device.power_management_limit()?)),
        Call::PowerLimits => {
            let limits = device.power_management_limit_constraints()?;
            Ok(vec![(161, Ok(watts(limits.min_limit))), (162, Ok(watts(limits.max_limit)))])
        }
        Call::PowerLimitDefault => one(163, watts(device.power_management_limit_default()?)),
        Call::EnforcedLimit => one(164, watts(device.enforced_power_limit()?)),
        Call::Energy => one(156, wide(device.total_energy_consumption()?)?),
        Call::Utilization => {
            let rates = device.utilization_rates()?;
            Ok(vec![(203, Ok(int(rates.gpu))), (204, Ok(int(rates.memory)))])
        }
        Call::Encoder => one(206, int(device.encoder_utilization()?.utilization)),
        Call::Decoder => one(207, int(device.decoder_utilization()?.utilization)),
        Call::Memory => memory(device),
        Call::Bar1 => {
            let memory = device.bar1_memory_info()?;
            let mib = |bytes: u64| wide(bytes / MIB);
            Ok(vec![(90, mib(memory.total)), (92, mib(memory.used)), (93, mib(memory.free))])
        }
        Call::PcieTraffic(counter) => {
            let field = if counter == PcieUtilCounter::Send { 200 } else { 201 };
            one(field, int(device.pcie_throughput(counter)?))
        }
        Call::PcieGeneration => one(237, int(device.current_pcie_link_gen()?)),
        Call::PcieWidth => one(238, int(device.current_pcie_link_width()?)),
        Call::PcieMaxGeneration => one(235, int(device.max_pcie_link_gen()?)),
        Call::PcieMaxWidth => one(236, int(device.max_pcie_link_width()?)),
        Call::PcieReplays => one(202, int(device.pcie_replay_counter()?)),
        Call::ClockReasons => one(112, wide(raw::clock_reasons(device)?)?),
        Call::PerformanceState => one(190, int(device.performance_state()?.as_c())),
        Call::Fan => one(191, int(device.fan_speed(0)?)),
        Call::MigMode => one(67, int(device.mig_mode()?.current)),
        Call::Licence => licence(device),
        Call::Violation(policy) => {
            let field = match policy {
                PerformancePolicy::Power => 240,
                PerformancePolicy::Thermal => 241,
                PerformancePolicy::SyncBoost => 242,
                PerformancePolicy::BoardLimit => 243,
                PerformancePolicy::LowUtilization => 244,
                _ => 245,
            };
            one(field, wide(device.violation_status(policy)?.violation_time)?)
        }
        Call::Ecc(kind, counter) => {
            let field = match (kind, counter) {
                (MemoryError::Corrected, EccCounter::Volatile) => 310,
                (MemoryError::Uncorrected, EccCounter::Volatile) => 311,
                (MemoryError::Corrected, EccCounter::Aggregate) => 312,
                (MemoryError::Uncorrected, EccCounter::Aggregate) => 313,
            };
            one(field, wide(device.total_ecc_errors(kind, counter)?)?)
        }
        Call::LinkBytes => link_bytes(device),
        Call::Fields | Call::Gpm => Err(Fault::NO_FUNCTION),
    }
}

const fn by_clock(clock: Clock, [sm, memory, video]: [u16; 3]) -> u16 {
    match clock {
        Clock::Graphics | Clock::SM => sm,
        Clock::Memory => memory,
        Clock::Video => video,
    }
}

/// Whole MiB, as DCGM cuts them. The share used is of what is not reserved.
fn memory(device: &Device) -> Result<Answers, Fault> {
    let mib = |bytes: u64| wide(bytes / MIB);
    let newer = device.memory_info().map_err(Fault::from);
    match newer {
        Ok(memory) => {
            let usable = memory.total.saturating_sub(memory.reserved);
            let share = (usable > 0).then(|| Value::Float(memory.used as f64 / usable as f64)).ok_or(Fault::BAD_VALUE);
            Ok(vec![
                (250, mib(memory.total)),
                (251, mib(memory.free)),
                (252, mib(memory.used)),
                (253, mib(memory.reserved)),
                (254, share),
            ])
        }
        Err(fault) if fault == Fault::NO_FUNCTION || fault.code == "ARGUMENT_VERSION_MISMATCH" => {
            // What is reserved is within what is used, and not told apart: no value of either.
            let (total, free, used) = raw::memory_v1(device)?;
            Ok(vec![
                (250, mib(total)),
                (251, mib(free)),
                (252, mib(used)),
                (253, Err(Fault::NO_FUNCTION)),
                (254, Err(Fault::NO_FUNCTION)),
            ])
        }
        Err(fault) => Err(fault),
    }
}

/// Not a virtual GPU: no licence, which DCGM prints as 0. Of a virtual one the licence is not read.
fn licence(device: &Device) -> Result<Answers, Fault> {
    let none = device.virtualization_mode()? != GpuVirtualizationMode::Vgpu;
    Ok(vec![(526, if none { Ok(Value::Int(0)) } else { Err(Fault::NOT_SUPPORTED) })])
}

/// Bytes over all links, for boards that count them (NVLink 5): field 91 says how many links there are.
fn link_bytes(device: &Device) -> Result<Answers, Fault> {
    let links = raw::field_values(device, &[at(91)])?.into_iter().next().ok_or(Fault::BAD_VALUE)??;
    let links = u32::try_from(links).map_err(|_| Fault::BAD_VALUE)?.min(MOST_LINKS);
    let of = |id: u32| (0..links).map(|scope| FieldAt { id, scope }).collect::<Vec<_>>();
    let sum = |id: u32| -> Result<Value, Fault> {
        let values = raw::field_values(device, &of(id))?;
        let mut sum = 0_i64;
        for value in values {
            sum = sum.checked_add(value?).ok_or(Fault::BAD_VALUE)?;
        }
        Ok(Value::Int(sum))
    };
    Ok(vec![(1201, sum(202)), (1203, sum(204))])
}

/// What the last reading of a running sum leaves behind, for its rate.
#[derive(Clone, Copy, Debug)]
pub struct Earlier {
    /// The sum, KiB.
    pub sum: i64,
    /// When it was read.
    pub at: std::time::Instant,
}

/// Thousands of KiB a second between two readings of a running sum; none where it fell, or no time passed.
pub fn rate(earlier: Earlier, now: Earlier) -> Option<i64> {
    let seconds = now.at.checked_duration_since(earlier.at)?.as_secs_f64();
    let grown = now.sum.checked_sub(earlier.sum).filter(|grown| *grown >= 0)?;
    (seconds > 0.0).then(|| (grown as f64 / seconds / 1000.0) as i64)
}

/// The call that is asked for `field`, as `--strandline-check` names it.
pub fn named(field: u16) -> Option<String> {
    if let Some((_, fields, _)) = FIELDS.iter().find(|(known, ..)| *known == field) {
        let ids: Vec<String> = fields.iter().map(|field| field.id.to_string()).collect();
        return Some(format!("nvmlDeviceGetFieldValues({})", ids.join(" + ")));
    }
    if let Some(id) = super::gpm::metric(field) {
        return Some(format!("nvmlGpmMetricsGet({})", id.as_c()));
    }
    let row = ROWS.iter().find(|(.., fields)| fields.contains(&field));
    row.map(|(_, name, _)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn every_field_of_the_tables_is_in_the_catalogue_and_asked_in_one_way_first() {
        let mut seen = std::collections::BTreeSet::new();
        for (field, ..) in FIELDS {
            assert!(seen.insert(*field), "{field} twice");
        }
        for (call, name, fields) in ROWS {
            for field in *fields {
                assert_eq!(!seen.insert(*field), call.is_older(), "{name}: {field}");
            }
        }
        for field in seen {
            let known = schemas::catalogue::by_id(field).unwrap();
            assert!(named(field).is_some_and(|name| name.starts_with("nvml")), "{}", known.name);
        }
    }

    #[test]
    fn a_rate_is_of_what_grew() {
        let at = Instant::now();
        let later = at + Duration::from_millis(500);
        let rate = |before, after, at_after| rate(Earlier { sum: before, at }, Earlier { sum: after, at: at_after });
        assert_eq!(rate(1000, 1_501_000, later), Some(3000));
        assert_eq!((rate(1000, 1000, later), rate(1000, 999, later), rate(1, 5, at)), (Some(0), None, None));
    }
}
