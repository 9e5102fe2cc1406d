//! One device through time: what it does, draws and holds at any instant, and the exact integral of each since the start.
//!
//! Time is cut into the fleet's hours. Of each only its beginning is kept: the integrals up to it and what is left of the heat
//! of the hours before. An hour is laid out when it is asked for, from the works of the pods that hold the device in it: a
//! list of segments with a constant base level and a noise in cells of [`CELL_MS`]. The first half of a cell lies as far above
//! the base as its second half below it, and what is left of a segment after its last whole cell has no noise. So a segment's
//! integral is base times length, whatever the noise; integrals up to any instant are a sum known beforehand and a closed form
//! within one cell. All of it is integer arithmetic: ppm, mW, MiB, ms.
//!
//! Power and heat are what the device adds to its board's when nothing runs on it, so that the instances of one board add up.

use schemas::HOUR_MS;

use crate::{
    accelerator::Board,
    activity::{Activity, NOISE, UTIL_NOISE},
    calendar::Calendar,
    seed,
    work::{self, Work},
};

/// Length of a noise cell.
pub(crate) const CELL_MS: i64 = 10_000;
const HALF_MS: i64 = CELL_MS / 2;
/// Time constant of the temperature's lag.
const LAG_MS: i64 = 60_000;

/// What one device is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Build {
    pub board: Board,
    /// Draw of the board with nothing loaded, mW.
    pub idle_mw: i64,
    /// Share of the board: numerator and denominator.
    pub share: (i64, i64),
    /// Memory, MiB.
    pub memory_mib: i64,
    /// It is a MIG instance: nobody reads GPU_UTIL there, and GR_ENGINE_ACTIVE stands for busy.
    pub instance: bool,
    /// Pods that it is given to at one time.
    pub replicas: i64,
    /// Key of its noise.
    pub key: u64,
}

/// A level with this device's constants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    pub activity: Activity,
    /// Draw above the idle board's, mW, and the step of its noise.
    pub power_mw: i64,
    pub power_step: i64,
    pub fb_used_mib: i64,
    /// It would draw more, and is held down.
    pub capped: bool,
    /// How far it will heat die and memory in the end, thousandths of a degree.
    target: Heat,
}

/// What a device adds to the temperature of die and memory, thousandths of a degree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heat {
    pub gpu_mc: i64,
    pub mem_mc: i64,
}

/// Integrals since the start of the timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Integrals {
    /// Power above the idle board's, microjoules (mW x ms).
    pub energy_uj: i64,
    /// GPU_UTIL, ppm x ms; of an instance, GR_ENGINE_ACTIVE.
    pub busy: i64,
    /// SM_ACTIVE, ppm x ms.
    pub sm: i64,
    /// The effective tier, ppm x ms.
    pub effective: i64,
    /// Memory used, MiB x ms.
    pub fb_mib_ms: i64,
    /// Time in which it was held down, ms.
    pub capped_ms: i64,
}

impl Integrals {
    pub fn minus(self, earlier: Self) -> Self {
        Self {
            energy_uj: self.energy_uj - earlier.energy_uj,
            busy: self.busy - earlier.busy,
            sm: self.sm - earlier.sm,
            effective: self.effective - earlier.effective,
            fb_mib_ms: self.fb_mib_ms - earlier.fb_mib_ms,
            capped_ms: self.capped_ms - earlier.capped_ms,
        }
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            energy_uj: self.energy_uj + other.energy_uj,
            busy: self.busy + other.busy,
            sm: self.sm + other.sm,
            effective: self.effective + other.effective,
            fb_mib_ms: self.fb_mib_ms + other.fb_mib_ms,
            capped_ms: self.capped_ms + other.capped_ms,
        }
    }
}

/// What a device does at an instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now<'a> {
    pub level: &'a Level,
    /// Noise of SM_ACTIVE and its like, in steps.
    pub q: i64,
    /// Noise of GPU_UTIL, in steps.
    pub u: i64,
    pub heat: Heat,
    /// A number that changes with the half cell, for rates that nobody integrates.
    pub spice: u64,
}

impl Now<'_> {
    /// Busy, sm and effective activity, ppm.
    pub fn tiers(&self, instance: bool) -> [i64; 3] {
        let a = &self.level.activity;
        let busy = if instance { a.gr + a.sm_step * self.q } else { (a.util_pct + a.util_step * self.u) * 10_000 };
        [busy, a.sm + a.sm_step * self.q, a.effective(self.q)]
    }

    /// Draw above the idle board's, mW.
    pub fn power_mw(&self) -> i64 {
        self.level.power_mw + self.level.power_step * self.q
    }
}

/// A pod's work on the device, and when its process is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub work: Work,
    pub ended: i64,
}

/// What is kept of an hour: its beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Carried {
    pub before: Integrals,
    pub heat: Heat,
    /// Index of the first of the device's holders that is not over.
    pub first: u32,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    from: i64,
    level: Level,
    before: Integrals,
    heat: Heat,
}

/// One hour of a device, laid out.
#[derive(Debug)]
pub(crate) struct Hour {
    /// Which hour of the fleet.
    pub index: usize,
    to: i64,
    key: u64,
    instance: bool,
    segments: Vec<Segment>,
}

impl Build {
    pub fn level(&self, activity: Activity) -> Level {
        let board = &self.board;
        let (num, den) = self.share;
        let usable = self.memory_mib - reserved_mib(self.memory_mib);
        let fb_used_mib = usable * activity.memory_pm / 1000;
        let range = (board.tdp_mw - self.idle_mw) * num / den;
        let draw = |sm: i64, tensor: i64, dram: i64| range * (450 * sm + 500 * tensor + 250 * dram) / 1_000_000_000;
        let resident = if activity.resident { range * 60 / 1000 } else { 0 };
        let issued = |sm: i64| sm * activity.issue_pm / 1000;
        let wanted = resident + draw(issued(activity.sm), activity.tensor, activity.dram);
        let power_step = match activity.resident {
            true => draw(issued(activity.sm_step), activity.tensor_step, activity.dram_step),
            false => self.idle_mw * num / den / 500,
        };
        // The board's limit holds at every draw of the noise.
        let limit = (board.tdp_mw * 985 / 1000 - self.idle_mw) * num / den - power_step * NOISE;
        let power_mw = wanted.min(limit);
        Level { activity, power_mw, power_step, fb_used_mib, capped: wanted > limit, target: board.heat(self.idle_mw, power_mw) }
    }
}

impl Level {
    /// Integrals over `length` ms at the base level.
    fn base(&self, length: i64, instance: bool) -> Integrals {
        let a = &self.activity;
        Integrals {
            energy_uj: self.power_mw * length,
            busy: if instance { a.gr } else { a.util_pct * 10_000 } * length,
            sm: a.sm * length,
            effective: a.effective(0) * length,
            fb_mib_ms: self.fb_used_mib * length,
            capped_ms: if self.capped { length } else { 0 },
        }
    }
}

/// Memory that driver and firmware keep of `memory_mib`.
pub(crate) fn reserved_mib(memory_mib: i64) -> i64 {
    memory_mib / 148
}

impl Hour {
    /// Lays out hour `index`, which begins at `from` as `carried` says, with the jobs of the device's holders. The `last` hour
    /// of a fleet goes on for ever: what works then stops at its end.
    pub fn lay(build: &Build, calendar: &Calendar, carried: &Carried, index: usize, from: i64, jobs: &[Job], last: bool) -> Self {
        let to = if last { i64::MAX } else { from + HOUR_MS };
        let mut changes = changes(calendar, from, to, jobs);
        // No more than will be there: a large fleet keeps an hour of every device.
        let segments = Vec::with_capacity(changes.len() + 1);
        let mut hour = Self { index, to, key: build.key, instance: build.instance, segments };
        hour.push(carried.before, carried.heat, from, build.level(Activity::default()));
        changes.sort_by_key(|change| (change.0, change.1));
        let mut now: Vec<(usize, Activity)> = Vec::new();
        let mut changes = changes.into_iter().peekable();
        while let Some((at, job, activity)) = changes.next() {
            now.retain(|(other, _)| *other != job);
            now.extend(activity.map(|activity| (job, activity)));
            if changes.peek().is_some_and(|next| next.0 == at) {
                continue;
            }
            let activity = match (now.as_slice(), build.replicas) {
                ([], _) => Activity::default(),
                ([(_, only)], 1) => *only,
                (several, replicas) => {
                    let several: Vec<Activity> = several.iter().map(|(_, activity)| *activity).collect();
                    Activity::together(&several, replicas)
                }
            };
            hour.then(at, build.level(activity));
        }
        hour
    }

    fn push(&mut self, before: Integrals, heat: Heat, from: i64, level: Level) {
        self.segments.push(Segment { from, level, before, heat });
    }

    /// Another level from `from` on, which lies not before the segment before it.
    fn then(&mut self, from: i64, level: Level) {
        let last = *self.segments.last().expect("an hour begins with a segment");
        if last.from == from {
            self.segments.pop();
        }
        self.push(last.before.plus(last.level.base(from - last.from, self.instance)), heat(&last, from), from, level);
    }

    /// How the hour after this one begins; its first holder is for the caller to say.
    pub fn carries(&self) -> Carried {
        let last = self.segments.last().expect("an hour begins with a segment");
        let before = last.before.plus(last.level.base(self.to - last.from, self.instance));
        Carried { before, heat: heat(last, self.to), first: 0 }
    }

    fn at(&self, at: i64) -> (usize, &Segment) {
        let index = self.segments.partition_point(|segment| segment.from <= at).saturating_sub(1);
        (index, &self.segments[index])
    }

    fn end(&self, index: usize) -> i64 {
        self.segments.get(index + 1).map_or(self.to, |next| next.from)
    }

    /// The cell that holds `at`: how far into it, and its draw; 0 where it is not whole.
    fn cell(&self, index: usize, segment: &Segment, at: i64) -> (i64, u64) {
        let since = (at - segment.from).max(0);
        let (cell, into) = (since / CELL_MS, since % CELL_MS);
        let whole = segment.from + (cell + 1) * CELL_MS <= self.end(index);
        (into, if whole { seed::mix(self.key ^ segment.from as u64, cell as u64) } else { 0 })
    }

    /// What the device does at `at`, and the integrals up to then; before the hour it is as at its beginning.
    pub fn read(&self, at: i64) -> (Now<'_>, Integrals) {
        self.read_in(self.at(at).0, at)
    }

    /// The same; `last` is where the hour was read before, nearby or not, and is then where it is read now.
    pub fn read_from(&self, last: &mut usize, at: i64) -> (Now<'_>, Integrals) {
        let begun = |index: usize| self.segments.get(index).is_some_and(|segment| segment.from <= at);
        if begun(*last) {
            while begun(*last + 1) {
                *last += 1;
            }
        } else {
            *last = self.at(at).0;
        }
        self.read_in(*last, at)
    }

    fn read_in(&self, index: usize, at: i64) -> (Now<'_>, Integrals) {
        let segment = &self.segments[index];
        let (into, draw) = self.cell(index, segment, at);
        (Self::now_in(segment, into, draw, at), self.integrals_in(segment, into, draw, at))
    }

    /// What the device does at `at`; before the hour it is as at its beginning.
    pub fn now(&self, at: i64) -> Now<'_> {
        let (index, segment) = self.at(at);
        let (into, draw) = self.cell(index, segment, at);
        Self::now_in(segment, into, draw, at)
    }

    fn now_in(segment: &Segment, into: i64, draw: u64, at: i64) -> Now<'_> {
        let (q, u) = noise(draw);
        let sign = if into < HALF_MS { 1 } else { -1 };
        let spice = seed::mix(draw, (into < HALF_MS) as u64);
        Now { level: &segment.level, q: sign * q, u: sign * u, heat: heat(segment, at), spice }
    }

    /// Integrals from the start of the timeline to `at`.
    pub fn integrals(&self, at: i64) -> Integrals {
        let (index, segment) = self.at(at);
        let (into, draw) = self.cell(index, segment, at);
        self.integrals_in(segment, into, draw, at)
    }

    fn integrals_in(&self, segment: &Segment, into: i64, draw: u64, at: i64) -> Integrals {
        let since = (at - segment.from).max(0);
        let (q, u) = noise(draw);
        // Up to here the first half has added, the second taken away.
        let tilt = if into < HALF_MS { into } else { CELL_MS - into };
        let a = &segment.level.activity;
        let effective_step = a.effective(1) - a.effective(0);
        segment.before.plus(segment.level.base(since, self.instance)).plus(Integrals {
            energy_uj: segment.level.power_step * q * tilt,
            busy: if self.instance { a.sm_step * q } else { a.util_step * u * 10_000 } * tilt,
            sm: a.sm_step * q * tilt,
            effective: effective_step * q * tilt,
            fb_mib_ms: 0,
            capped_ms: 0,
        })
    }

    /// Every instant of `[from, to)`, which lies in the hour, at which a level or its noise may change, `from` first.
    pub fn breakpoints(&self, from: i64, to: i64) -> Vec<i64> {
        let mut points = vec![from];
        for (index, segment) in self.segments.iter().enumerate() {
            let end = self.end(index).min(to);
            if end <= from {
                continue;
            }
            let skipped = (from - segment.from).max(0) / HALF_MS;
            let mut at = segment.from + skipped * HALF_MS;
            while at < end {
                if at > from {
                    points.push(at);
                }
                at += HALF_MS;
            }
        }
        points
    }
}

/// When which job does what from then on in `[from, to)`; nothing where its process is not there.
fn changes(calendar: &Calendar, from: i64, to: i64, jobs: &[Job]) -> Vec<(i64, usize, Option<Activity>)> {
    let mut changes = Vec::new();
    for (number, Job { work, ended }) in jobs.iter().enumerate() {
        let phases = work::phases(work, calendar, from, to.min(from + HOUR_MS));
        changes.extend(phases.iter().map(|phase| (phase.from, number, Some(phase.activity))));
        if work.until < *ended && work.until < to && from < *ended {
            // Asked to go: the process is there until the end, its work is not.
            let hour = (work.until - 1 - from).div_euclid(HOUR_MS) * HOUR_MS + from;
            let last = match phases.last() {
                Some(last) => Some(*last),
                None => work::phases(work, calendar, hour, hour + HOUR_MS).last().copied(),
            };
            let waiting = last.map(|last| Activity::waiting(last.activity.memory_pm));
            changes.push((work.until.max(from), number, waiting));
        }
        if from < *ended && *ended < to {
            changes.push((*ended, number, None));
        }
    }
    changes
}

/// Noise of a cell's first half, from its draw; none of a cell that is not whole.
fn noise(draw: u64) -> (i64, i64) {
    if draw == 0 {
        return (0, 0);
    }
    let of = |bits: u64, most: i64| (bits % (2 * most as u64 + 1)) as i64 - most;
    (of(draw >> 32, NOISE), of(draw & 0xffff_ffff, UTIL_NOISE))
}

/// What a device adds to the temperatures: what is left of the way to the target shrinks as 1 / (1 + t/lag)^2.
fn heat(segment: &Segment, at: i64) -> Heat {
    // Past a few lags nothing is left; the bound keeps the arithmetic small.
    let since = (at - segment.from).clamp(0, 100 * LAG_MS);
    let (whole, part) = ((LAG_MS + since) * (LAG_MS + since), LAG_MS * LAG_MS);
    let lag = |from: i64, target: i64| target + (from - target) * (part / 1000) / (whole / 1000);
    let target = segment.level.target;
    Heat { gpu_mc: lag(segment.heat.gpu_mc, target.gpu_mc), mem_mc: lag(segment.heat.mem_mc, target.mem_mc) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{accelerator, shape::Shape};

    fn build() -> Build {
        let board = accelerator::by_product("NVIDIA H100 80GB HBM3").unwrap().board().unwrap().unwrap();
        let memory_mib = board.memory_mib;
        Build { board, idle_mw: 71_000, share: (1, 1), memory_mib, instance: false, replicas: 1, key: 0x1234_5678 }
    }

    fn hour(build: &Build, shapes: &[Shape]) -> Hour {
        let works = (1..).zip(shapes).map(|(key, shape)| Work {
            shape: *shape,
            gpus: 8,
            rank: 0,
            gang: 1,
            key,
            started: 70_123 * key as i64,
            until: 2_990_111,
        });
        let jobs: Vec<Job> = works.map(|work| Job { work, ended: 3_000_457 }).collect();
        Hour::lay(build, &Calendar::utc(), &Carried::default(), 0, 0, &jobs, false)
    }

    #[test]
    fn integrals_are_the_sum_over_every_constant_piece() {
        let sharing = Build { replicas: 4, ..build() };
        let instance = Build { instance: true, share: (3, 7), memory_mib: 40_000, ..build() };
        let alone = Shape::ALL.iter().map(|shape| vec![*shape]).collect::<Vec<_>>();
        let cases = alone.iter().flat_map(|shapes| [(build(), shapes.clone()), (instance, shapes.clone())]);
        for (build, shapes) in cases.chain([(sharing, Shape::ALL.to_vec())]) {
            let hour = hour(&build, &shapes);
            let (from, to) = (1_234, 3_100_001);
            let mut points = hour.breakpoints(from, to);
            points.push(to);
            let mut sum = Integrals::default();
            for two in points.windows(2) {
                let (now, length) = (hour.now(two[0]), two[1] - two[0]);
                let late = hour.now(two[1] - 1);
                assert_eq!((now.q, now.u), (late.q, late.u), "constant from {} to {}", two[0], two[1]);
                let [busy, sm, effective] = now.tiers(build.instance);
                sum = sum.plus(Integrals {
                    energy_uj: now.power_mw() * length,
                    busy: busy * length,
                    sm: sm * length,
                    effective: effective * length,
                    fb_mib_ms: now.level.fb_used_mib * length,
                    capped_ms: if now.level.capped { length } else { 0 },
                });
                let between = hour.integrals(two[1]).minus(hour.integrals(from));
                assert_eq!(between, sum, "{shapes:?} up to {}", two[1]);
            }
        }
    }

    #[test]
    fn an_hour_goes_on_where_the_one_before_ended() {
        let first = hour(&build(), &[Shape::Training]);
        let carried = first.carries();
        assert_eq!(carried.before, first.integrals(HOUR_MS));
        let second = Hour::lay(&build(), &Calendar::utc(), &carried, 1, HOUR_MS, &[], true);
        assert_eq!(second.integrals(HOUR_MS), carried.before);
        assert_eq!(second.now(HOUR_MS).heat, first.now(HOUR_MS).heat);
        assert_eq!(second.now(i64::MAX / 2).level.power_mw, 0, "the last hour goes on");
    }

    #[test]
    fn temperature_lags_power() {
        let hour = hour(&build(), &[Shape::Training]);
        let heat = |at: i64| hour.now(at).heat.gpu_mc;
        assert_eq!(heat(0), 0);
        assert!(heat(0) <= heat(200_000) && heat(200_000) < heat(1_000_000));
        assert!((heat(1_000_000) - hour.now(1_000_000).level.target.gpu_mc).abs() < 4_000);
        assert!(heat(80_000_000).abs() < 50, "cools down again");
    }

    #[test]
    fn a_resident_model_lifts_idle_power_and_nothing_passes_the_limit() {
        let idle = hour(&build(), &[Shape::Notebook]);
        let (free, held) = (idle.now(0).level, idle.now(80_000).level);
        assert_eq!((held.activity.sm, held.activity.util_pct), (0, 0));
        assert!(held.power_mw > free.power_mw + 30_000, "{held:?}");
        for &shape in Shape::ALL {
            for segment in &hour(&build(), &[shape]).segments {
                assert!(71_000 + segment.level.power_mw + segment.level.power_step * NOISE <= 700_000);
            }
        }
        let seventh = |num| Build { share: (num, 7), instance: true, ..build() };
        let most = |num| {
            let hour = hour(&seventh(num), &[Shape::Training]);
            hour.segments.iter().map(|s| s.level.power_mw + s.level.power_step * NOISE).max().unwrap()
        };
        assert!(71_000 + most(3) + most(2) + 2 * most(1) <= 700_000, "instances share the board's limit");
    }
}
