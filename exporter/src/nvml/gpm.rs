//! Profiling metrics (GPM) between two samples, for Hopper and later; of a GPU or of a MIG instance.
//!
//! Before Hopper NVML has no such counters: those fields are missing there, never 0.

use nvml_wrapper::{Device, GpmSample, enums::gpm::GpmMetricId, gpm::gpm_metrics_get};

use super::{calls::Answers, fault::Fault, raw};
use crate::source::Value;

/// Least time between two samples, by NVML's header.
pub const LEAST_MS: u64 = 100;

/// The metric of a DCGM field.
pub fn metric(field: u16) -> Option<GpmMetricId> {
    use GpmMetricId as M;
    const NVDEC: [M; 8] =
        [M::Nvdec0Util, M::Nvdec1Util, M::Nvdec2Util, M::Nvdec3Util, M::Nvdec4Util, M::Nvdec5Util, M::Nvdec6Util, M::Nvdec7Util];
    const NVJPG: [M; 8] =
        [M::Nvjpg0Util, M::Nvjpg1Util, M::Nvjpg2Util, M::Nvjpg3Util, M::Nvjpg4Util, M::Nvjpg5Util, M::Nvjpg6Util, M::Nvjpg7Util];
    Some(match field {
        1001 => M::GraphicsUtil,
        1002 => M::SmUtil,
        1003 => M::SmOccupancy,
        1004 => M::AnyTensorUtil,
        1005 => M::DramBwUtil,
        1006 => M::Fp64Util,
        1007 => M::Fp32Util,
        1008 => M::Fp16Util,
        1009 => M::PcieTxPerSec,
        1010 => M::PcieRxPerSec,
        1011 => M::NvlinkTotalTxPerSec,
        1012 => M::NvlinkTotalRxPerSec,
        1013 => M::ImmaTensorUtil,
        1014 => M::HmmaTensorUtil,
        1015 => M::DfmaTensorUtil,
        1016 => M::IntegerUtil,
        1017..=1024 => NVDEC[usize::from(field - 1017)],
        1025..=1032 => NVJPG[usize::from(field - 1025)],
        1033 => M::Nvofa0Util,
        1034 => M::Nvofa1Util,
        _ => return None,
    })
}

/// Whether a field is a rate in MiB a second and not a share in percent.
const fn is_rate(field: u16) -> bool {
    matches!(field, 1009..=1012)
}

/// A sample of a device, or of its instance `gi`.
pub fn sample<'a>(device: &Device<'a>, gi: Option<u32>) -> Result<GpmSample<'a>, Fault> {
    if !raw::frees(device.nvml()) {
        return Err(Fault::NO_FUNCTION);
    }
    Ok(match gi {
        None => device.gpm_sample()?,
        Some(gi) => device.gpm_mig_sample(gi)?,
    })
}

/// Whether the device has such metrics at all.
pub fn supported(device: &Device) -> Result<bool, Fault> {
    Ok(device.gpm_support()?)
}

/// The metrics of `fields` between two samples: shares as ratios, rates in bytes a second, cut.
pub fn between(device: &Device, earlier: &GpmSample, later: &GpmSample, fields: &[u16]) -> Result<Answers, Fault> {
    let asked: Vec<(u16, GpmMetricId)> = fields.iter().filter_map(|field| Some((*field, metric(*field)?))).collect();
    let ids: Vec<GpmMetricId> = asked.iter().map(|(_, id)| *id).collect();
    // Far fewer than the array of the wrapper has room for, which would panic.
    let metrics = gpm_metrics_get(device.nvml(), earlier, later, &ids)?;
    let scaled = |(field, answer): (u16, Result<f64, Fault>)| (field, answer.and_then(|value| scale(field, value)));
    let answers = metrics.into_iter().map(|metric| metric.map(|metric| metric.value).map_err(Fault::of_entry));
    Ok(asked.iter().map(|(field, _)| *field).zip(answers).map(scaled).collect())
}

fn scale(field: u16, value: f64) -> Result<Value, Fault> {
    // NaN is GPM's "no value".
    if value.is_nan() {
        return Err(Fault { code: "NO_DATA", ..Fault::BAD_VALUE });
    }
    if !(0.0..1e15).contains(&value) {
        return Err(Fault::BAD_VALUE);
    }
    Ok(if is_rate(field) { Value::Int((value * 1_048_576.0) as i64) } else { Value::Float(value / 100.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_ratios_and_rates_are_bytes() {
        assert_eq!(scale(1002, 81.25), Ok(Value::Float(0.8125)));
        assert_eq!(scale(1009, 1.5), Ok(Value::Int(1_572_864)));
        assert_eq!(scale(1002, f64::NAN).map_err(|fault| fault.code), Err("NO_DATA"));
        assert_eq!(scale(1002, f64::INFINITY), Err(Fault::BAD_VALUE));
        assert_eq!(scale(1009, -1.0), Err(Fault::BAD_VALUE));
    }

    #[test]
    fn each_metric_has_one_field() {
        let metrics: Vec<u32> = (0..2000).filter_map(metric).map(|metric| metric.as_c()).collect();
        let unique: std::collections::BTreeSet<_> = metrics.iter().collect();
        assert_eq!((metrics.len(), unique.len()), (34, 34));
        assert_eq!((metric(1004).map(|m| m.as_c()), metric(1011).map(|m| m.as_c())), (Some(5), Some(61)));
    }
}
