//! One device through time: what it does, draws and holds at any instant, and the exact integral of each since the start.
//!
//! A timeline is a list of segments with a constant base level and a noise in cells of [`CELL_MS`]: the first half of a
//! cell lies as far above the base as its second half below it, and what is left of a segment after its last whole cell
//! has no noise. So a segment's integral is base times length, whatever the noise; integrals up to any instant are a sum
//! known beforehand and a closed form within one cell. All of it is integer arithmetic: ppm, mW, MiB, ms.

use crate::{
    accelerator::Board,
    seed,
    shape::{Activity, NOISE, UTIL_NOISE},
};

/// Length of a noise cell.
pub(crate) const CELL_MS: i64 = 10_000;
const HALF_MS: i64 = CELL_MS / 2;
/// Time constant of the temperature's lag.
const LAG_MS: i64 = 60_000;

/// What one device is made of, beside its product: spread between boards of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Build {
    pub board: Board,
    /// Draw with nothing loaded, mW.
    pub idle_mw: i64,
    /// Inlet temperature, thousandths of a degree.
    pub ambient_mc: i64,
    /// Key of its noise.
    pub key: u64,
}

/// A level with this board's constants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    pub activity: Activity,
    pub power_mw: i64,
    pub power_step: i64,
    pub fb_used_mib: i64,
    pub sm_clock: i64,
    pub mem_clock: i64,
    gpu_target_mc: i64,
    mem_target_mc: i64,
}

/// Integrals since the start of the timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Integrals {
    /// Power, microjoules (mW x ms).
    pub energy_uj: i64,
    /// GPU_UTIL, ppm x ms.
    pub busy: i64,
    /// SM_ACTIVE, ppm x ms.
    pub sm: i64,
    /// The effective tier, ppm x ms.
    pub effective: i64,
    /// Memory used, MiB x ms.
    pub fb_mib_ms: i64,
}

impl Integrals {
    pub fn minus(self, earlier: Self) -> Self {
        Self {
            energy_uj: self.energy_uj - earlier.energy_uj,
            busy: self.busy - earlier.busy,
            sm: self.sm - earlier.sm,
            effective: self.effective - earlier.effective,
            fb_mib_ms: self.fb_mib_ms - earlier.fb_mib_ms,
        }
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            energy_uj: self.energy_uj + other.energy_uj,
            busy: self.busy + other.busy,
            sm: self.sm + other.sm,
            effective: self.effective + other.effective,
            fb_mib_ms: self.fb_mib_ms + other.fb_mib_ms,
        }
    }
}

#[derive(Clone, Debug)]
struct Segment {
    from: i64,
    level: Level,
    before: Integrals,
    gpu_mc: i64,
    mem_mc: i64,
}

/// What a device does at an instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub level: Level,
    /// Noise of SM_ACTIVE and its like, in steps.
    pub q: i64,
    /// Noise of GPU_UTIL, in steps.
    pub u: i64,
    pub gpu_mc: i64,
    pub mem_mc: i64,
    /// A number that changes with the half cell, for rates that nobody integrates.
    pub spice: u64,
}

/// One device through time.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    build: Build,
    segments: Vec<Segment>,
}

impl Build {
    fn level(&self, activity: Activity) -> Level {
        let board = &self.board;
        let usable = board.memory_mib - reserved_mib(board);
        let fb_used_mib = usable * activity.memory_pm / 1000;
        let range = board.tdp_mw - self.idle_mw;
        let draw = |sm: i64, tensor: i64, dram: i64| range * (450 * sm + 500 * tensor + 250 * dram) / 1_000_000_000;
        let resident = if activity.resident { range * 60 / 1000 } else { 0 };
        let wanted = self.idle_mw + resident + draw(activity.sm, activity.tensor, activity.dram);
        let power_step = match activity.resident {
            true => draw(activity.sm_step, activity.tensor_step, activity.dram_step),
            false => self.idle_mw / 500,
        };
        // The board's limit holds at every draw of the noise.
        let power_mw = wanted.min(board.tdp_mw * 985 / 1000 - power_step * NOISE);
        let sm_clock = match (activity.resident, wanted > power_mw) {
            (true, true) => board.max_sm_clock * 93 / 100 / 15 * 15,
            (true, false) => board.max_sm_clock,
            (false, _) => board.idle_sm_clock,
        };
        let mem_clock = if board.hbm || activity.resident { board.max_mem_clock } else { 405 };
        Level {
            activity,
            power_mw,
            power_step,
            fb_used_mib,
            sm_clock,
            mem_clock,
            gpu_target_mc: self.ambient_mc + 38_000 * power_mw / board.tdp_mw,
            mem_target_mc: self.ambient_mc + 9_000 + 29_000 * power_mw / board.tdp_mw,
        }
    }
}

impl Level {
    /// Integrals over `length` ms at the base level.
    fn base(&self, length: i64) -> Integrals {
        let a = &self.activity;
        Integrals {
            energy_uj: self.power_mw * length,
            busy: a.util_pct * length * 10_000,
            sm: a.sm * length,
            effective: a.effective(0) * length,
            fb_mib_ms: self.fb_used_mib * length,
        }
    }
}

/// Memory that driver and firmware keep.
pub(crate) fn reserved_mib(board: &Board) -> i64 {
    board.memory_mib / 148
}

impl Timeline {
    /// A device that is idle from `start` on.
    pub fn idle(build: Build, start: i64) -> Self {
        let level = build.level(Activity::default());
        let (gpu_mc, mem_mc) = (level.gpu_target_mc, level.mem_target_mc);
        Self { build, segments: vec![Segment { from: start, level, before: Integrals::default(), gpu_mc, mem_mc }] }
    }

    /// Another activity from `from` on, which lies not before that of the segment before it.
    pub fn then(&mut self, from: i64, activity: Activity) {
        let last = self.segments.last().expect("a timeline begins with a segment");
        assert!(last.from <= from, "segments are laid in order: {} after {from}", last.from);
        let level = self.build.level(activity);
        let (gpu_mc, mem_mc) = temperatures(last, from);
        // Cells that cancel, and no noise after the last whole one: a segment comes to base times length.
        let before = last.before.plus(last.level.base(from - last.from));
        let next = Segment { from, level, before, gpu_mc, mem_mc };
        if last.from == from {
            self.segments.pop();
        }
        self.segments.push(next);
    }

    /// Nothing runs from `from` on.
    pub fn rest(&mut self, from: i64) {
        self.then(from, Activity::default());
    }

    fn at(&self, at: i64) -> (usize, &Segment) {
        let index = self.segments.partition_point(|segment| segment.from <= at).saturating_sub(1);
        (index, &self.segments[index])
    }

    /// The cell that holds `at`: how far into it, its key, and whether it is whole.
    fn cell(&self, index: usize, segment: &Segment, at: i64) -> (i64, u64) {
        let since = (at - segment.from).max(0);
        let (cell, into) = (since / CELL_MS, since % CELL_MS);
        let end = segment.from + (cell + 1) * CELL_MS;
        let whole = self.segments.get(index + 1).is_none_or(|next| end <= next.from);
        let draw = if whole { seed::mix(self.build.key ^ segment.from as u64, cell as u64) } else { 0 };
        (into, draw)
    }

    /// What the device does at `at`; before the start it is as at the start.
    pub fn now(&self, at: i64) -> Now {
        let (index, segment) = self.at(at);
        let (into, draw) = self.cell(index, segment, at);
        let (q, u) = noise(draw);
        let sign = if into < HALF_MS { 1 } else { -1 };
        let (gpu_mc, mem_mc) = temperatures(segment, at);
        let spice = seed::mix(draw, (into < HALF_MS) as u64);
        Now { level: segment.level, q: sign * q, u: sign * u, gpu_mc, mem_mc, spice }
    }

    /// Integrals from the start of the timeline to `at`.
    pub fn integrals(&self, at: i64) -> Integrals {
        let (index, segment) = self.at(at);
        let since = (at - segment.from).max(0);
        let (into, draw) = self.cell(index, segment, at);
        let (q, u) = noise(draw);
        // Up to here the first half has added, the second taken away.
        let tilt = if into < HALF_MS { into } else { CELL_MS - into };
        let a = segment.level.activity;
        let effective_step = a.effective(1) - a.effective(0);
        segment.before.plus(segment.level.base(since)).plus(Integrals {
            energy_uj: segment.level.power_step * q * tilt,
            busy: a.util_step * u * tilt * 10_000,
            sm: a.sm_step * q * tilt,
            effective: effective_step * q * tilt,
            fb_mib_ms: 0,
        })
    }

    /// Integrals over `[from, to)`.
    pub fn between(&self, from: i64, to: i64) -> Integrals {
        self.integrals(to).minus(self.integrals(from))
    }

    /// Every instant of `[from, to)` at which a level or its noise may change, `from` first.
    pub fn breakpoints(&self, from: i64, to: i64) -> Vec<i64> {
        let mut points = vec![from];
        for (index, segment) in self.segments.iter().enumerate() {
            let end = self.segments.get(index + 1).map_or(to, |next| next.from.min(to));
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

/// Noise of a cell's first half, from its draw; none of a cell that is not whole.
fn noise(draw: u64) -> (i64, i64) {
    if draw == 0 {
        return (0, 0);
    }
    let of = |bits: u64, most: i64| (bits % (2 * most as u64 + 1)) as i64 - most;
    (of(draw >> 32, NOISE), of(draw & 0xffff_ffff, UTIL_NOISE))
}

/// Die and memory temperature: what is left of the way to the target shrinks as 1 / (1 + t/lag)^2.
fn temperatures(segment: &Segment, at: i64) -> (i64, i64) {
    // Past a few lags nothing is left; the bound keeps the arithmetic small.
    let since = (at - segment.from).clamp(0, 100 * LAG_MS);
    let (whole, part) = ((LAG_MS + since) * (LAG_MS + since), LAG_MS * LAG_MS);
    let lag = |from: i64, target: i64| target + (from - target) * (part / 1000) / (whole / 1000);
    (lag(segment.gpu_mc, segment.level.gpu_target_mc), lag(segment.mem_mc, segment.level.mem_target_mc))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{
        accelerator,
        seed::Seed,
        shape::{self, Shape},
    };

    fn timeline(shape: Shape) -> Timeline {
        let board = accelerator::by_product("NVIDIA H100 80GB HBM3").unwrap().board().unwrap();
        let build = Build { board, idle_mw: 71_000, ambient_mc: 28_000, key: 0x1234_5678 };
        let mut timeline = Timeline::idle(build, 0);
        for phase in shape::phases(shape, 8, 70_123, 3_000_457, &mut Seed(5).stream("x")) {
            timeline.then(phase.from, phase.activity);
        }
        timeline.rest(3_000_457);
        timeline
    }

    #[test]
    fn integrals_are_the_sum_over_every_constant_piece() {
        for &shape in Shape::ALL {
            let timeline = timeline(shape);
            let (from, to) = (1_234, 3_100_001);
            let mut points = timeline.breakpoints(from, to);
            points.push(to);
            let mut sum = Integrals::default();
            for two in points.windows(2) {
                let (now, length) = (timeline.now(two[0]), two[1] - two[0]);
                let late = timeline.now(two[1] - 1);
                assert_eq!((now.q, now.u), (late.q, late.u), "constant from {} to {}", two[0], two[1]);
                let a = now.level.activity;
                sum = sum.plus(Integrals {
                    energy_uj: (now.level.power_mw + now.level.power_step * now.q) * length,
                    busy: (a.util_pct + a.util_step * now.u) * 10_000 * length,
                    sm: (a.sm + a.sm_step * now.q) * length,
                    effective: a.effective(now.q) * length,
                    fb_mib_ms: now.level.fb_used_mib * length,
                });
                assert_eq!(timeline.between(from, two[1]), sum, "{shape:?} up to {}", two[1]);
            }
        }
    }

    #[test]
    fn temperature_lags_power() {
        let timeline = timeline(Shape::Training);
        let idle = timeline.now(0).gpu_mc;
        let begun = timeline.now(200_000).gpu_mc;
        let hot = timeline.now(1_000_000);
        assert!(idle <= begun && begun < hot.gpu_mc);
        assert!((hot.gpu_mc - hot.level.gpu_target_mc).abs() < 4_000);
        assert!((timeline.now(80_000_000).gpu_mc - idle).abs() < 50, "cools down again");
    }

    #[test]
    fn a_resident_model_lifts_idle_power_and_nothing_passes_the_limit() {
        let timeline = timeline(Shape::Notebook);
        let (free, held) = (timeline.now(0).level, timeline.now(80_000).level);
        assert_eq!((held.activity.sm, held.activity.util_pct), (0, 0));
        assert!(held.power_mw > free.power_mw + 30_000, "{held:?}");
        for shape in Shape::ALL {
            for segment in &self::timeline(*shape).segments {
                assert!(segment.level.power_mw + segment.level.power_step * NOISE <= 700_000);
            }
        }
    }
}
