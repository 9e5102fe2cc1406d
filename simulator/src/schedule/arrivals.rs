//! What teams ask for by themselves; what comes back later is asked for when it ends.

use std::sync::Arc;

use super::{Day, Wish};
use crate::{
    calendar::Calendar,
    calibrate,
    shape::{Shape, ids},
    spec::{ArrivalShape, FleetSpec, Team},
};

/// Arrivals are drawn slot by slot, so that no logarithm is needed for the gaps between them.
const SLOT_MS: i64 = 10_000;
/// The fleet fills up over its first minutes.
const OPENING_MS: i64 = 600_000;

/// What a team's jobs of one shape are.
struct Asks {
    team: Arc<str>,
    namespace: Arc<str>,
    products: Arc<[String]>,
    resource: Arc<str>,
    /// What one of it is of a whole GPU; where pools differ, in the first.
    unit: f64,
    /// Most of it that one pod can have: one of what is not a whole GPU.
    most: u32,
    /// Where those that ask for a part of a GPU find it: the resource, and how many of it a GPU is.
    shared: Option<(&'static str, u32)>,
}

impl Asks {
    fn of(spec: &FleetSpec, team: &Team, shape: Shape) -> Self {
        let resource = spec.resource(team, shape);
        let pools = || spec.pools().map(|(_, pool)| pool).filter(|pool| team.may_have(&pool.product));
        let given: Vec<((u32, u32), u32)> = pools().filter_map(|pool| pool.resources().get(resource).copied()).collect();
        let unit = given.first().map_or((1, 1), |(unit, _)| *unit);
        let whole = unit == (1, 1);
        let most = given.iter().map(|(_, count)| *count).max();
        Self {
            team: team.name.as_str().into(),
            namespace: team.namespace.as_str().into(),
            products: team.products.clone().into(),
            resource: resource.into(),
            unit: f64::from(unit.0) / f64::from(unit.1),
            most: if whole { most.unwrap_or(1) } else { 1 },
            shared: spec.shared(resource, |product| team.may_have(product)).filter(|_| whole),
        }
    }
}

/// All that `team` asks for by itself, `gpus` at a time on average.
pub(super) fn arrivals(day: &mut Day<'_>, spec: &FleetSpec, team: &Team, gpus: f64) {
    let start = spec.start.ms();
    let calendar = Calendar::of(spec);
    let sum = team.mix.sum();
    for &shape in Shape::ALL {
        let share = team.mix.of(shape);
        if share <= 0.0 {
            continue;
        }
        let habits = day.habits(shape);
        let asks = Asks::of(spec, team, shape);
        let wanted = gpus * share / sum / asks.unit;
        let mut draw = day.seed.stream(&format!("arrivals/{}/{}", team.name, shape.as_str()));
        let sizes: Vec<(u32, u32)> = habits.gpus.iter().copied().filter(|(gpus, _)| *gpus <= asks.most).collect();
        // Which jobs are gangs is drawn apart, so that a team's other jobs stay what they are.
        let mut gang = day.seed.stream(&format!("gangs/{}", team.name));
        let gangs = team.gangs.filter(|_| shape == Shape::Training && asks.unit >= 1.0);
        let mut number = 0;
        let mut ask = |day: &mut Day<'_>, draw: &mut crate::seed::Draw, created: i64, work_pm: i64| {
            let mut size = draw.weighted(&sizes);
            let work_ms = (habits.duration_ms(draw) * work_pm / 1000).max(1000);
            let mut nodes = 1;
            if let Some(gangs) = gangs.filter(|gangs| gang.chance(gangs.share.0)) {
                (nodes, size) = (gangs.nodes, asks.most);
            }
            let wish = Wish {
                name: &format!("{}-{}-{number}", team.name, habits.word),
                team: &asks.team,
                namespace: &asks.namespace,
                shape,
                resource: &asks.resource,
                products: &asks.products,
                gpus: size,
                nodes,
                created,
            };
            let mut pods = wish.pods();
            number += 1;
            let mut gpus = f64::from(size * nodes);
            if let (Some((resource, replicas)), false, 1) = (asks.shared, habits.parts.is_empty(), size) {
                let part = draw.weighted(habits.parts);
                if let [pod] = pods.as_mut_slice()
                    && part < 1000
                {
                    (pod.resource, pod.gpus, pod.part) = (resource.into(), ids(part, replicas), Some(part));
                    gpus = f64::from(pod.gpus) / f64::from(replicas);
                }
            }
            day.request(pods, work_ms, team.priority);
            gpus
        };
        // The fleet opens with what would be running: replicas for good, jobs with a part of their time left.
        let mut standing = 0.0;
        while standing < wanted {
            let created = start + draw.between(0, OPENING_MS);
            let left_pm = if shape.serves() { 1000 } else { draw.between(100, 1000) };
            standing += ask(day, &mut draw, created, left_pm);
        }
        if shape.serves() {
            continue;
        }
        let mut mean_gpu_ms = habits.mean_gpu_ms(asks.most, asks.shared.map(|(_, replicas)| replicas));
        if let Some(gangs) = gangs {
            let share = f64::from(gangs.share.0) / 1e6;
            let of_gang = habits.mean_ms() * f64::from(gangs.nodes * asks.most);
            mean_gpu_ms = mean_gpu_ms * (1.0 - share) + of_gang * share;
        }
        let even = wanted * SLOT_MS as f64 / mean_gpu_ms;
        let mut slot = start + OPENING_MS;
        while slot < day.end {
            let per_slot = match team.arrivals {
                ArrivalShape::Even => even,
                ArrivalShape::Daily => even * calendar.load_pm(slot) as f64 / calendar.mean_pm() as f64,
            };
            let per_slot = match day.preset {
                Some(preset) => per_slot * calibrate::arrivals_ppm(preset, slot) as f64 / 1e6,
                None => per_slot,
            };
            let rest_ppm = ((per_slot - per_slot.floor()) * 1e6).round() as u32;
            for _ in 0..per_slot.floor() as u64 + u64::from(draw.chance(rest_ppm)) {
                let created = slot + draw.between(0, SLOT_MS - 1);
                ask(day, &mut draw, created, 1000);
            }
            slot += SLOT_MS;
        }
    }
}
