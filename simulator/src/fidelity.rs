//! How far a simulated fleet is from the cluster that it is calibrated by: distances between distributions of what the fleet
//! shows (states of its GPUs, lives of its pods) and of what was measured there.
//!
//! A distance is the largest difference between the two cumulative distributions (Kolmogorov and Smirnov's) at the published
//! points; where only a few quantiles were published it is called a gap, for between them nothing is known.

use serde::Serialize;

use crate::{
    plan::Plan,
    presets::{Measured, Preset},
    seed::Seed,
    spec::{FleetSpec, SpecError},
    state,
};

/// What a distance is between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Whole distributions.
    Ks,
    /// The distribution and a few published quantiles of it.
    Gap,
    /// Two numbers.
    Difference,
}

/// One quantity compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// The preset.
    pub preset: &'static str,
    /// The quantity.
    pub quantity: &'static str,
    /// What the distance is between.
    pub kind: Kind,
    /// Points that were published.
    pub points: usize,
    /// Simulated values.
    pub simulated: usize,
    /// The distance, 0 to 1.
    pub distance: f64,
    /// Whether it is at most [`LIMIT`].
    pub close: bool,
    /// Where it is largest, in the quantity's unit.
    pub at: f64,
    /// What there is to say of it.
    pub note: &'static str,
}

/// What a simulated fleet should keep to.
pub const LIMIT: f64 = 0.10;

/// Values of one quantity that the fleet shows, in thousandths of its unit.
type Values = Vec<i64>;

/// Compares the fleet of `preset`, planned with its own seed or `seed`, with what was measured.
pub fn fidelity(preset: Preset, seed: Option<Seed>) -> Result<Vec<Compared>, SpecError> {
    let spec = FleetSpec::parse(preset.fleet())?;
    let seed = seed.unwrap_or(spec.seed);
    let plan = Plan::new(spec, seed)?;
    let measured = preset.measured();
    let ks = |quantity: &'static str, note: &'static str, values: Values| {
        let (distance, at) = distance(measured.points(quantity), values.clone());
        row(preset, quantity, Kind::Ks, (measured.points(quantity).len(), values.len()), distance, at, note)
    };
    let counted = |quantity: &'static str, note: &'static str, values: Values| {
        let (distance, at) = distance(&cumulative(measured.points(quantity)), values.clone());
        row(preset, quantity, Kind::Ks, (measured.points(quantity).len(), values.len()), distance, at, note)
    };
    Ok(match preset {
        Preset::AcmeSeren => {
            let readings = Readings::of(&plan, 1_800_000, false);
            vec![
                ks("gpu_util", "free GPUs included, as in the source", readings.util),
                ks("fb_used", "percent of 80 GiB", readings.fb_used),
                ks("sm_active", "", readings.sm),
                ks("sm_occupancy", "", readings.occupancy),
                ks("power", "", readings.power),
                ks("gpu_temp", "whole degrees", readings.gpu_temp),
                ks("mem_temp", "whole degrees", readings.mem_temp),
            ]
        }
        Preset::Philly => {
            let lives = Lives::of(&plan);
            let readings = Readings::of(&plan, 6 * schemas::HOUR_MS, true);
            vec![
                ks("duration", "start to end of the pod", lives.durations),
                counted("gpus", "jobs of more than a node's 8 GPUs, 0.1 % there, are not simulated", lives.gpus),
                counted("hour", "of submission, UTC", lives.hours),
                ks("gpu_util", "held GPUs", readings.util),
            ]
        }
        Preset::Openb => {
            let lives = Lives::of(&plan);
            let replicas = plan.spec().pools().map(|(_, pool)| pool.replicas).max().unwrap_or(1);
            let held = in_ids(measured.points("fraction"), replicas);
            let (apart, at) = distance(&cumulative(&held), lives.fractions.clone());
            let (counts, note) = ((held.len(), lives.fractions.len()), "held, in 20 ids a GPU; measured ones rounded up to them");
            vec![
                ks("duration", "start to end of the pod", lives.durations),
                counted("gpus", "", lives.gpus),
                row(preset, "fraction", Kind::Ks, counts, apart, at, note),
                counted("hour", "of creation", lives.hours),
            ]
        }
        Preset::GenaiServing => serving(&plan, measured),
    })
}

fn row(
    preset: Preset,
    quantity: &'static str,
    kind: Kind,
    (points, simulated): (usize, usize),
    distance: f64,
    at: f64,
    note: &'static str,
) -> Compared {
    let distance = (distance * 1000.0).round() / 1000.0;
    Compared { preset: preset.as_str(), quantity, kind, points, simulated, distance, close: distance <= LIMIT, at, note }
}

/// Utilization of serving pods, a sample a minute.
fn serving(plan: &Plan, measured: &Measured) -> Vec<Compared> {
    let preset = Preset::GenaiServing;
    let (mut all, mut by_hour): (Values, Vec<Values>) = (Vec::new(), vec![Vec::new(); 24]);
    each_state(plan, 60_000, true, |at, state| {
        if let Some(util) = util(state) {
            all.push(util);
            by_hour[(at / schemas::HOUR_MS).rem_euclid(24) as usize].push(util);
        }
    });
    let count = all.len();
    let zeros = |values: &Values| values.iter().filter(|value| **value == 0).count() as f64 / values.len().max(1) as f64;
    let share = measured.at("zero_share", 0) as f64 / 1000.0;
    let mut worst = (0.0, 0.0);
    for (hour, values) in by_hour.iter().enumerate() {
        // Percent, as a share of the scale.
        let mean = values.iter().sum::<i64>() as f64 / values.len().max(1) as f64 / 1000.0;
        let apart = (mean - measured.at("hour_mean", hour as i64) as f64 / 1000.0).abs() / 100.0;
        if apart > worst.0 {
            worst = (apart, hour as f64);
        }
    }
    let difference = (zeros(&all) - share).abs();
    let (largest, at) = gap(measured.points("gpu_util"), all);
    vec![
        row(
            preset,
            "gpu_util",
            Kind::Gap,
            (measured.points("gpu_util").len(), count),
            largest,
            at,
            "largest gap over the published quantiles",
        ),
        row(preset, "zero_share", Kind::Difference, (1, count), difference, 0.0, "share of samples at 0"),
        row(
            preset,
            "hour_mean",
            Kind::Difference,
            (24, count),
            worst.0,
            worst.1,
            "hourly mean utilization, the hour furthest off",
        ),
    ]
}

/// The largest difference between the distribution of `values` and the one whose percentiles are `points`, from either side of
/// every published value; and that value.
fn distance(points: &[(i64, i64)], mut values: Values) -> (f64, f64) {
    values.sort_unstable();
    let mut largest = (0.0, 0.0);
    let count = values.len().max(1) as f64;
    let mut at = 0;
    while at < points.len() {
        let value = points[at].1;
        let last = at + points[at..].partition_point(|(_, other)| *other == value) - 1;
        let share = |place: i64| place as f64 / 100_000.0;
        // At or below the value, and below it; where the first published one lies inside a run of equal ones, what is below it
        // is not known.
        let upto = values.partition_point(|other| *other <= value) as f64 / count;
        let below = values.partition_point(|other| *other < value) as f64 / count;
        let beyond_first = at > 0 || points[at].0 == 0;
        for apart in [Some((upto - share(points[last].0)).abs()), beyond_first.then(|| (below - share(points[at].0)).abs())] {
            if apart.is_some_and(|apart| apart > largest.0) {
                largest = (apart.unwrap_or_default(), value as f64 / 1000.0);
            }
        }
        at = last + 1;
    }
    largest
}

/// How far, at worst, a published quantile is from being one of `values`: the share of them below it and up to it should have its
/// percentile between them; and that quantile.
fn gap(points: &[(i64, i64)], mut values: Values) -> (f64, f64) {
    values.sort_unstable();
    let count = values.len().max(1) as f64;
    let mut largest = (0.0, 0.0);
    for &(place, value) in points {
        let share = place as f64 / 100_000.0;
        let upto = values.partition_point(|other| *other <= value) as f64 / count;
        let below = values.partition_point(|other| *other < value) as f64 / count;
        let apart = (below - share).max(share - upto);
        if apart > largest.0 {
            largest = (apart, value as f64 / 1000.0);
        }
    }
    largest
}

/// Counts by value as percentiles: of each value where it begins and where it ends.
fn cumulative(counts: &[(i64, i64)]) -> Vec<(i64, i64)> {
    let total: i64 = counts.iter().map(|(_, count)| count).sum();
    let (mut sum, mut points) = (0, Vec::new());
    for (value, count) in counts {
        points.push((sum * 100_000 / total.max(1), *value));
        sum += count;
        points.push((sum * 100_000 / total.max(1), *value));
    }
    points
}

/// Counts by parts of a GPU, as ids of one that has `replicas`: each part rounded up.
fn in_ids(parts: &[(i64, i64)], replicas: u32) -> Vec<(i64, i64)> {
    let mut counts: std::collections::BTreeMap<i64, i64> = std::collections::BTreeMap::new();
    for (part, count) in parts {
        let held = crate::shape::ids(u32::try_from(*part).unwrap_or(1000), replicas);
        *counts.entry(i64::from(held * 1000 / replicas)).or_default() += count;
    }
    counts.into_iter().collect()
}

/// Hands over the state of every GPU (of every held one) at every `step_ms` of the fleet's time.
fn each_state(plan: &Plan, step_ms: i64, held: bool, mut each: impl FnMut(i64, &state::GpuState)) {
    for device in plan.devices() {
        let (mut walk, mut at) = (plan.walk(device), plan.window().from());
        while at < plan.window().to() {
            if let Some(state) = walk.at(at).filter(|state| !held || state.holder.is_some()) {
                each(at.ms(), &state);
            }
            at = at.plus_ms(step_ms);
        }
    }
}

fn util(state: &state::GpuState) -> Option<i64> {
    state.util_pct.map(|percent| percent * 1000)
}

/// Readings of GPUs.
#[derive(Default)]
struct Readings {
    util: Values,
    fb_used: Values,
    sm: Values,
    occupancy: Values,
    power: Values,
    gpu_temp: Values,
    mem_temp: Values,
}

/// Memory of the source's boards, which its percentages are of.
const SOURCE_MIB: i64 = 81_920;

impl Readings {
    fn of(plan: &Plan, step_ms: i64, held: bool) -> Self {
        let mut readings = Self::default();
        each_state(plan, step_ms, held, |_, state| {
            readings.util.extend(util(state));
            readings.fb_used.push(state.fb_used_mib * 100_000 / SOURCE_MIB);
            // Parts per million to thousandths of a percent.
            readings.sm.push(state.sm / 10);
            readings.occupancy.push(state.occupancy / 10);
            readings.power.push(state.power_mw);
            readings.gpu_temp.push(state.gpu_temp * 1000);
            readings.mem_temp.extend(state.mem_temp.map(|degrees| degrees * 1000));
        });
        readings
    }
}

/// Lives of pods that were made in the fleet's time.
#[derive(Default)]
struct Lives {
    durations: Values,
    gpus: Values,
    fractions: Values,
    hours: Values,
}

impl Lives {
    fn of(plan: &Plan) -> Self {
        let mut lives = Self::default();
        // The fleet opens with pods that have a part of their time left; those are no arrivals.
        let opened = plan.window().from().plus_ms(schemas::HOUR_MS).ms();
        for pod in plan.pods().iter().filter(|pod| pod.created >= opened) {
            let held = pod.bound.as_ref().filter(|_| pod.part.is_some()).map(|bound| (pod.gpus * bound.unit.0, bound.unit.1));
            // A part that nobody has got yet is no fraction held.
            if pod.part.is_none() || held.is_some() {
                lives.fractions.push(held.map_or(1000, |(ids, replicas)| i64::from(ids * 1000 / replicas)));
            }
            lives.gpus.push(if pod.part.is_some() { 1000 } else { i64::from(pod.gpus) * 1000 });
            lives.hours.push((pod.created / schemas::HOUR_MS).rem_euclid(24) * 1000);
            if let Some((started, ended)) = pod.bound.as_ref().and_then(|bound| Some((bound.started?, bound.ended))) {
                lives.durations.push(ended - started);
            }
        }
        lives
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_has_no_distance_from_itself_and_a_large_one_from_another() {
        let points: Vec<(i64, i64)> = (0..=100).map(|percent| (percent * 1000, percent * 10)).collect();
        let same: Values = (0..10_000).map(|n| n / 10).collect();
        assert!(distance(&points, same.clone()).0 < 0.002);
        let half: Values = same.iter().map(|value| value / 2).collect();
        let (apart, at) = distance(&points, half);
        assert!((apart - 0.5).abs() < 0.01 && (at - 0.5).abs() < 0.01, "{apart} at {at}");
    }

    #[test]
    fn atoms_are_compared_from_both_sides() {
        // A third at 0, the rest at 100.
        let points = [(0, 0), (33_333, 0), (33_334, 100), (100_000, 100)];
        let sampled = |zeros: usize| [vec![0; zeros], vec![100; 300 - zeros]].concat();
        assert!(distance(&points, sampled(100)).0 < 0.001);
        assert!((distance(&points, sampled(160)).0 - 0.2).abs() < 0.001);
        // Of a few quantiles all that is known is that each lies between what is below it and what is up to it.
        let quantiles = [(25_000, 0), (50_000, 100), (75_000, 100)];
        assert!(gap(&quantiles, sampled(100)).0 < 0.001);
        assert!((gap(&quantiles, sampled(180)).0 - 0.1).abs() < 0.001);
        let counts = [(1000, 100), (8000, 200)];
        assert!(distance(&cumulative(&counts), [vec![1000; 100], vec![8000; 200]].concat()).0 < 0.001);
    }
}
