//! Runs a case of `meters.jsonl`.

use std::collections::BTreeMap;

use schemas::{
    Timestamp,
    calendar::{self, CalendarError, Unit, Zone},
};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{Decimal, MeasureError, busy, forecast, fragmentation, held, sizing, waiting, weighting};
use crate::counter::{self, StepKind};

/// Why a case has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// Not the shape of a case of its kind.
    #[error("not a case of meters ({0}); see the vectors' README")]
    Shape(#[from] serde_json::Error),
    /// Numbers that make no sense.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// No such zone, or too much of it.
    #[error(transparent)]
    Calendar(#[from] CalendarError),
}

#[derive(Deserialize)]
struct Case<'a> {
    kind: Kind,
    #[serde(borrow)]
    input: &'a RawValue,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Counter,
    Calendar,
    Fragmentation,
    MemoryHours,
    SeatHours,
    Unserved,
    Weighting,
    BusyProfile,
    Nodes,
    Forecast,
}

/// The answer to the case on `line`, in the shape of its `expect`.
pub fn run(line: &str) -> Result<Value, CaseError> {
    let case: Case<'_> = serde_json::from_str(line)?;
    let input = case.input.get();
    match case.kind {
        Kind::Counter => counter(input),
        Kind::Calendar => calendar(input),
        Kind::Fragmentation => fragmentation(input),
        Kind::MemoryHours => memory_hours(input),
        Kind::SeatHours => seat_hours(input),
        Kind::Unserved => unserved(input),
        Kind::Weighting => weighting(input),
        Kind::BusyProfile => busy_profile(input),
        Kind::Nodes => nodes(input),
        Kind::Forecast => forecast(input),
    }
}

fn counter(input: &str) -> Result<Value, CaseError> {
    #[derive(Deserialize)]
    struct Input {
        readings: Vec<Reading>,
        max_rate_per_s: Option<i64>,
    }
    #[derive(Deserialize)]
    struct Reading {
        at: Timestamp,
        /// Null is no reading.
        value: Option<i64>,
    }
    let input: Input = serde_json::from_str(input)?;
    let readings = counter::readings(input.readings.iter().filter_map(|r| Some((r.at, r.value?))).collect());
    let steps: Vec<_> = counter::steps(&readings, input.max_rate_per_s).collect();
    let count = |kind| steps.iter().filter(|step| step.kind == kind).count();
    let increase = steps.iter().map(|step| i128::from(step.increase)).sum();
    Ok(json!({
        "increase": super::exact::whole(increase)?,
        "resets": count(StepKind::Reset),
        "implausible": count(StepKind::Implausible),
        "readings": readings.len(),
    }))
}

fn calendar(input: &str) -> Result<Value, CaseError> {
    #[derive(Deserialize)]
    struct Input {
        zone: String,
        bucket: Bucket,
        from_local: String,
        to_local: String,
    }
    #[derive(Clone, Copy, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Bucket {
        Hour,
        Day,
        Week,
        Month,
    }
    let input: Input = serde_json::from_str(input)?;
    let zone = Zone::parse(&input.zone)?;
    let unit = match input.bucket {
        Bucket::Hour => Unit::Hour,
        Bucket::Day => Unit::Day,
        Bucket::Week => Unit::Week,
        Bucket::Month => Unit::Month,
    };
    let buckets = calendar::buckets(&zone, unit, zone.day(&input.from_local)?, zone.day(&input.to_local)?)?;
    let bucket = |b: &calendar::Bucket| json!({"label": b.label, "from": b.from, "ms": b.to.ms() - b.from.ms()});
    Ok(json!({"buckets": buckets.iter().map(bucket).collect::<Vec<_>>()}))
}

fn fragmentation(input: &str) -> Result<Value, CaseError> {
    #[derive(Deserialize)]
    struct Input {
        steps: Vec<Step>,
        shapes: Vec<u32>,
        mix_ppm: Option<BTreeMap<u32, u32>>,
    }
    #[derive(Deserialize)]
    struct Step {
        ms: i64,
        free: Vec<u32>,
    }
    let input: Input = serde_json::from_str(input)?;
    let steps: Vec<_> = input.steps.into_iter().map(|s| fragmentation::Step { ms: s.ms, free: s.free }).collect();
    let shape = |s: &fragmentation::Shape| json!({"shape": s.shape, "free_ms": s.free_ms, "gang_ms": s.gang_ms, "usable_ms": s.usable_ms, "lost_ms": s.lost_ms});
    let shapes = fragmentation::shapes(&steps, &input.shapes)?;
    let mut answer = json!({"shapes": shapes.iter().map(shape).collect::<Vec<_>>()});
    if let Some(mix) = input.mix_ppm {
        answer["mix_lost_ppm"] = fragmentation::mix_lost_ppm(&steps, &mix)?.into();
    }
    Ok(answer)
}

fn memory_hours(input: &str) -> Result<Value, CaseError> {
    #[derive(Deserialize)]
    struct Input {
        steps: Vec<Step>,
    }
    #[derive(Deserialize)]
    struct Step {
        mib: u64,
        ms: i64,
    }
    let input: Input = serde_json::from_str(input)?;
    let hours = held::memory_hours(&input.steps.iter().map(|s| (s.mib, s.ms)).collect::<Vec<_>>())?;
    Ok(json!({"mib_ms": hours.mib_ms, "gib_hours": hours.gib_hours, "gb_hours": hours.gb_hours}))
}

fn seat_hours(input: &str) -> Result<Value, CaseError> {
    #[derive(Deserialize)]
    struct Input {
        capacity: u64,
        steps: Vec<Step>,
    }
    #[derive(Deserialize)]
    struct Step {
        seats: u64,
        ms: i64,
    }
    let input: Input = serde_json::from_str(input)?;
    let seats = held::seat_hours(input.capacity, &input.steps.iter().map(|s| (s.seats, s.ms)).collect::<Vec<_>>())?;
    Ok(json!({"seat_ms": seats.seat_ms, "capacity_seat_ms": seats.capacity_seat_ms, "used_ppm": seats.used_ppm}))
}

fn unserved(input: &str) -> Result<Value, CaseError> {
    #[derive(Deserialize)]
    struct Input {
        now: Timestamp,
        jobs: Vec<Job>,
    }
    #[derive(Deserialize)]
    struct Job {
        gpus: u64,
        asked: Timestamp,
        bound: Option<Timestamp>,
        withdrawn: Option<Timestamp>,
    }
    let input: Input = serde_json::from_str(input)?;
    let job = |j: &Job| waiting::Job { gpus: j.gpus, asked: j.asked, bound: j.bound, withdrawn: j.withdrawn };
    let answer = waiting::unserved(input.now, &input.jobs.iter().map(job).collect::<Vec<_>>())?;
    Ok(json!({
        "unserved_ms": answer.unserved_ms,
        "admitted_mean_wait_ms": answer.admitted_mean_wait_ms,
        "still_waiting_ms": answer.still_waiting_ms,
        "withdrawn_wait_ms": answer.withdrawn_wait_ms,
    }))
}

fn weighting(input: &str) -> Result<Value, CaseError> {
    #[derive(Deserialize)]
    struct Input<'a> {
        #[serde(borrow)]
        jobs: Vec<Jobs<'a>>,
    }
    #[derive(Deserialize)]
    struct Jobs<'a> {
        count: u32,
        gpus: u32,
        ms: i64,
        #[serde(borrow)]
        u: &'a RawValue,
    }
    let input: Input<'_> = serde_json::from_str(input)?;
    let jobs = |j: &Jobs<'_>| Ok(weighting::Jobs { count: j.count, gpus: j.gpus, ms: j.ms, u: Decimal::parse(j.u.get())? });
    let means = weighting::means(&input.jobs.iter().map(jobs).collect::<Result<Vec<_>, MeasureError>>()?)?;
    Ok(json!({"per_job_mean": means.per_job, "gpu_hour_mean": means.gpu_hour}))
}

fn busy_profile(input: &str) -> Result<Value, CaseError> {
    #[derive(Deserialize)]
    struct Input {
        steps: Vec<Step>,
    }
    #[derive(Deserialize)]
    struct Step {
        busy: u32,
        ms: i64,
    }
    let input: Input = serde_json::from_str(input)?;
    let profile = busy::profile(&input.steps.iter().map(|s| (s.busy, s.ms)).collect::<Vec<_>>())?;
    Ok(json!({"p50": profile.map(|p| p.p50), "p95": profile.map(|p| p.p95), "max": profile.map(|p| p.max)}))
}

fn nodes(input: &str) -> Result<Value, CaseError> {
    #[derive(Deserialize)]
    struct Input {
        demand: u64,
        per_node: u64,
        regions: u32,
        lost_regions: u32,
        failure_ppm: u32,
        maintenance_ppm: u32,
        gpus_per_node: u32,
    }
    let i: Input = serde_json::from_str(input)?;
    let nodes = sizing::nodes(&sizing::Demand {
        demand: i.demand,
        per_node: i.per_node,
        regions: i.regions,
        lost_regions: i.lost_regions,
        failure_ppm: i.failure_ppm,
        maintenance_ppm: i.maintenance_ppm,
        gpus_per_node: i.gpus_per_node,
    })?;
    Ok(json!({
        "exact": nodes.exact,
        "nodes": nodes.nodes,
        "per_region": nodes.per_region,
        "placed": nodes.placed,
        "gpus": nodes.gpus,
    }))
}

fn forecast(input: &str) -> Result<Value, CaseError> {
    #[derive(Deserialize)]
    struct Input<'a> {
        n: u32,
        #[serde(borrow)]
        p: &'a RawValue,
        at_or_below: u32,
    }
    let input: Input<'_> = serde_json::from_str(input)?;
    let answer = forecast::calibration(input.n, Decimal::parse(input.p.get())?, input.at_or_below)?;
    Ok(json!({"expected": answer.expected, "two_sd_squared": answer.two_sd_squared, "honest": answer.honest}))
}
