//! Profiling metrics (GPM): two samples, and what their later instant reads.
//!
//! A real driver averages between the two. Here the metric is the reading at the later sample's instant, which is what the
//! page shows then: one state behind all faces.

use exporter::{Readings, Value};
use schemas::Timestamp;
use simulator::nvml::{self, Code};

use crate::{
    abi::{GpmMetric, GpmMetricsHead, Name},
    boundary::{Answer, Out},
    library,
    machine::View,
};

/// The only version of the request.
pub const METRICS_VERSION: u32 = 1;
/// The only version of the question about support.
pub const SUPPORT_VERSION: u32 = 1;
/// Entries of the request's array in the newest header.
const MOST_METRICS: u32 = 333;

/// A filled sample: whose, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    gpu: usize,
    instance: Option<usize>,
    at: Timestamp,
}

impl Sample {
    /// A sample of a device now.
    pub fn of(view: &View) -> Answer<Self> {
        if !view.machine.has_gpm() {
            return Err(Code::NOT_SUPPORTED);
        }
        view.device()?;
        Ok(Self { gpu: view.gpu, instance: view.instance, at: view.moment.at })
    }
}

/// What a metric is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// A ratio, given in percent.
    Percent,
    /// Bytes a second, given in MiB a second.
    Rate,
}

/// DCGM's field for a metric.
const fn source(metric: u32) -> Option<(u16, Scale)> {
    let (field, scale) = match metric {
        1 => (1001, Scale::Percent),
        2 => (1002, Scale::Percent),
        3 => (1003, Scale::Percent),
        4 => (1016, Scale::Percent),
        5 => (1004, Scale::Percent),
        6 => (1015, Scale::Percent),
        7 => (1014, Scale::Percent),
        9 => (1013, Scale::Percent),
        10..=13 => (995 + metric as u16, Scale::Percent),
        20 => (1009, Scale::Rate),
        21 => (1010, Scale::Rate),
        30..=37 => (987 + metric as u16, Scale::Percent),
        40..=47 => (985 + metric as u16, Scale::Percent),
        50 | 51 => (983 + metric as u16, Scale::Percent),
        60 => (1012, Scale::Rate),
        61 => (1011, Scale::Rate),
        _ => return None,
    };
    Some((field, scale))
}

fn metric(readings: &Readings, metric: u32) -> Answer<(f64, Name)> {
    if !(1..MOST_METRICS).contains(&metric) {
        return Err(Code::INVALID_ARGUMENT);
    }
    let (field, scale) = source(metric).ok_or(Code::NOT_SUPPORTED)?;
    let value = match readings.get(field).ok_or(Code::NOT_SUPPORTED)? {
        Value::Int(value) => value as f64,
        Value::Float(value) => value,
    };
    Ok(match scale {
        Scale::Percent => (value * 100.0, Name::of(c"%")),
        Scale::Rate => (value / 1_048_576.0, Name::of(c"MiB/s")),
    })
}

/// Fills a request.
pub fn metrics(session: &library::Session, request: Out<GpmMetricsHead>) -> Answer {
    let head = request.versioned(METRICS_VERSION)?;
    if head.count > MOST_METRICS {
        return Err(Code::INVALID_ARGUMENT);
    }
    let [one, two] = library::with_state(|state| {
        let mut filled = |handle| state.sample(handle)?.ok_or(Code::INVALID_ARGUMENT);
        Ok([filled(head.sample1)?, filled(head.sample2)?])
    })?;
    if (one.gpu, one.instance) != (two.gpu, two.instance) {
        return Err(Code::INVALID_ARGUMENT);
    }
    let place = session.view(one.gpu, one.instance).place();
    let readings = nvml::readings(&session.machine.plan, place, one.at.max(two.at), None);
    let entries: Out<GpmMetric> = request.cast::<u8>().nth(size_of::<GpmMetricsHead>()).cast();
    for n in 0..head.count as usize {
        let entry = entries.nth(n);
        let mut filled = entry.get()?;
        let (code, value, unit) = match metric(&readings, filled.metric_id) {
            Ok((value, unit)) => (Code::SUCCESS, value, unit),
            Err(code) => (code, 0.0, Name::NONE),
        };
        (filled.code, filled.value, filled.unit) = (code.0, value, unit);
        (filled.short_name, filled.long_name) = (Name::NONE, Name::NONE);
        entry.put(filled)?;
    }
    Ok(())
}
