//! What a pod's GPUs do, hour by hour: phases of constant activity.
//!
//! Each hour of a pod is drawn by itself, from the pod's key and the hour, so that any hour can be laid out without the ones
//! before it. What must hold together across hours (levels, checkpoints, a hang, the waits of a crash loop) is a closed form
//! of what is drawn once for the pod.

use crate::{activity::Activity, calendar::Calendar, calibrate, plan::PodPlan, seed::Draw, shape::Shape};

/// A pod's work, as far as its phases hang on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub shape: Shape,
    /// GPUs of the whole gang.
    pub gpus: u32,
    /// Which pod of its gang, and of how many.
    pub rank: u32,
    pub gang: u32,
    /// Key of its random streams.
    pub key: u64,
    /// When its containers started.
    pub started: i64,
    /// When its work ends: its end, or the request for its deletion.
    pub until: i64,
}

/// A phase: a level from an instant on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    pub from: i64,
    pub activity: Activity,
}

/// What one of its GPUs does in `[from, to)`, which lies within an hour: phases in order, the first at `from` or at its start.
/// None where it does not work.
pub(crate) fn phases(work: &Work, calendar: &Calendar, from: i64, to: i64) -> Vec<Phase> {
    let mut phases = Phases { list: Vec::new(), at: from.max(work.started), to: to.min(work.until) };
    if phases.open() {
        let draw = &mut Draw::keyed(work.key, from as u64);
        if let Some(preset) = calendar.preset {
            while phases.open() {
                let (activity, length_ms) = calibrate::phase(preset, phases.at, draw);
                phases.push(activity, length_ms);
            }
            return phases.list;
        }
        match work.shape {
            Shape::Training => training(work, &mut phases, draw),
            Shape::Inference | Shape::Prefill | Shape::Decode => inference(work, calendar, &mut phases, draw),
            Shape::Batch => batch(work, &mut phases, draw),
            Shape::Notebook => notebook(work, &mut phases, draw),
            Shape::CrashLoop => crash_loop(work, &mut phases, draw),
        }
    }
    phases.list
}

struct Phases {
    list: Vec<Phase>,
    at: i64,
    to: i64,
}

impl Phases {
    /// Appends a phase, if it has a length and there is time for it.
    fn push(&mut self, activity: Activity, length_ms: i64) {
        if self.open() && length_ms > 0 {
            self.list.push(Phase { from: self.at, activity });
            self.at += length_ms;
        }
    }

    fn open(&self) -> bool {
        self.at < self.to
    }
}

impl Work {
    /// The work of `pod` from `started` to `until`.
    pub fn of(pod: &PodPlan, started: i64, until: i64) -> Self {
        let PodPlan { shape, gpus, part, rank, gang, key, .. } = *pod;
        let gpus = if part.is_some() { 1 } else { gpus };
        Self { shape, gpus: gpus * gang, rank, gang, key, started, until }
    }

    /// What is drawn once for the pod.
    fn once(&self) -> Draw {
        Draw::keyed(self.key, u64::MAX)
    }

    /// When its containers have loaded what they need.
    fn loaded(&self, load_ms: i64) -> i64 {
        self.started + load_ms
    }
}

/// How often a gang has a pod that is slower than the others, ppm (chosen).
const STRAGGLES_PPM: u32 = 80_000;

/// A training job: its levels, and when it saves its state.
struct Training {
    sm: i64,
    tensor: i64,
    dram: i64,
    memory_pm: i64,
    nvlink_pm: i64,
    /// When its first step begins.
    begun: i64,
    /// From one checkpoint's beginning to the next one's, and how long it is written.
    period: i64,
    save: i64,
    /// From when on its ranks wait for each other for ever.
    hangs: Option<i64>,
    /// Of a gang with a straggler: the others wait for it at every step; itself it never waits.
    waits_pm: i64,
}

impl Training {
    fn of(work: &Work) -> Self {
        let draw = &mut work.once();
        let sm = draw.between(560_000, 900_000);
        let tensor = sm * draw.between(420, 620) / 1000;
        let dram = draw.between(250_000, 520_000);
        let memory_pm = draw.between(700, 960);
        let nvlink_pm = if work.gpus > 1 { draw.between(80, 320) } else { 0 };
        let begun = work.loaded(draw.between(20_000, 120_000));
        let (period, save) = (draw.between(1_200_000, 2_400_000), draw.between(15_000, 70_000));
        let hangs = draw.chance(20_000).then(|| begun + draw.between(300_000, 7_200_000));
        let straggler = (work.gang > 1 && draw.chance(STRAGGLES_PPM)).then(|| draw.below(work.gang.into()) as u32);
        let waits_pm = if straggler.is_some_and(|rank| rank != work.rank) { draw.between(80, 300) } else { 0 };
        Self { sm, tensor, dram, memory_pm, nvlink_pm, begun, period, save, hangs, waits_pm }
    }

    /// The end of the last checkpoint that was whole at `at`; before the first, the beginning of its steps.
    fn saved(&self, at: i64) -> i64 {
        let at = self.hangs.map_or(at, |hangs| hangs.min(at));
        let whole = (at - self.begun - self.save).div_euclid(self.period);
        if whole < 1 { self.begun.min(at) } else { self.begun + whole * self.period + self.save }
    }
}

/// Since when a pod's work is not saved, had it ended at `at`: none of a shape that saves nothing.
pub(crate) fn unsaved_since(work: &Work, at: i64) -> Option<i64> {
    (work.shape == Shape::Training && work.started < at).then(|| Training::of(work).saved(at).max(work.started))
}

/// The end of the last checkpoint that was whole at `at`: none of a shape that saves nothing, none before the first.
pub(crate) fn last_checkpoint(work: &Work, at: i64) -> Option<i64> {
    let saves = work.shape == Shape::Training && work.started < at;
    saves
        .then(|| (Training::of(work).begun, Training::of(work).saved(at)))
        .filter(|(begun, saved)| saved > begun)
        .map(|(_, saved)| saved)
}

fn training(work: &Work, phases: &mut Phases, draw: &mut Draw) {
    let Training { sm, tensor, dram, memory_pm, nvlink_pm, begun, period, save, hangs, waits_pm } = Training::of(work);
    let load = Activity { memory_pm: memory_pm / 3, pcie_rx: 4_200_000, ..Activity::new(8, 15_000, 2_000, 20_000, 300) };
    phases.push(load, begun - phases.at);
    while phases.open() {
        let left = hangs.map_or(i64::MAX, |hangs| hangs - phases.at);
        if left <= 0 {
            // Ranks spin in a collective: busy by GPU_UTIL, few SMs, no tensor work.
            let hang = Activity { memory_pm, ..Activity::new(100, 110_000, 0, 16_000, 50) };
            phases.push(hang, phases.to - phases.at);
            return;
        }
        let (checkpoints, since) = ((phases.at - begun) / period, (phases.at - begun) % period);
        if checkpoints > 0 && since < save {
            let saving = Activity { memory_pm, pcie_tx: 9_500_000, ..Activity::new(6, 10_000, 0, 60_000, 300) };
            phases.push(saving, (save - since).min(left));
            continue;
        }
        let left = (period - since).min(left);
        let wobble = draw.between(-15, 15);
        let part = |ppm: i64| (ppm + ppm * wobble / 1000) * (1000 - waits_pm) / 1000;
        let step = Activity {
            memory_pm,
            nvlink_pm,
            pcie_tx: 220_000,
            pcie_rx: 900_000,
            fp16_pm: 90,
            ..Activity::new(98, part(sm), part(tensor), part(dram), 60)
        };
        let steps = draw.between(180_000, 720_000).min(left);
        phases.push(step, steps);
        if draw.chance(250_000) {
            let stall =
                Activity { memory_pm, pcie_rx: 2_800_000, ..Activity::new(draw.between(20, 50), 120_000, 40_000, 80_000, 300) };
            phases.push(stall, draw.between(8_000, 45_000).min(left - steps));
        }
    }
}

fn inference(work: &Work, calendar: &Calendar, phases: &mut Phases, draw: &mut Draw) {
    let once = &mut work.once();
    let either = once.chance(600_000);
    let decodes = match work.shape {
        Shape::Decode => true,
        Shape::Prefill => false,
        _ => either,
    };
    let scale = once.between(600, 1100);
    let memory_pm = once.between(850, 930);
    let load = Activity { memory_pm: memory_pm / 2, pcie_rx: 6_000_000, ..Activity::new(3, 5_000, 0, 30_000, 300) };
    phases.push(load, work.loaded(once.between(15_000, 90_000)) - phases.at);
    while phases.open() {
        let burst = if draw.chance(60_000) { 1400 } else { 1000 };
        let load = (calendar.load_pm(phases.at) * scale / 1000 * draw.between(850, 1150) / 1000 * burst / 1000).min(1000);
        let serve = if decodes {
            Activity {
                fp16_pm: 140,
                ..Activity::new(40 + 58 * load / 1000, 90_000 + 480 * load, 60 * load, 140_000 + 560 * load, 180)
            }
        } else {
            let sm = 60_000 + 720 * load;
            Activity { fp16_pm: 110, ..Activity::new(20 + 75 * load / 1000, sm, sm * 52 / 100, sm * 38 / 100, 220) }
        };
        let serve = Activity { memory_pm, pcie_tx: 20_000 + 180 * load, pcie_rx: 30_000 + 240 * load, ..serve };
        phases.push(serve, draw.between(120_000, 330_000));
    }
}

fn batch(work: &Work, phases: &mut Phases, draw: &mut Draw) {
    let once = &mut work.once();
    let sm = once.between(350_000, 850_000);
    let tensor = sm * once.between(50, 450) / 1000;
    let dram = once.between(200_000, 640_000);
    let memory_pm = once.between(150, 700);
    let double = once.chance(100_000);
    while phases.open() {
        let work = Activity {
            memory_pm,
            fp32_pm: 420,
            fp64_pm: if double { 250 } else { 0 },
            pcie_tx: 350_000,
            pcie_rx: 1_500_000,
            ..Activity::new(draw.between(90, 99), sm, tensor, dram, 100)
        };
        phases.push(work, draw.between(60_000, 400_000));
        if draw.chance(400_000) {
            let wait = Activity { memory_pm, pcie_rx: 2_000_000, ..Activity::new(draw.between(0, 12), 8_000, 0, 12_000, 400) };
            phases.push(wait, draw.between(5_000, 50_000));
        }
    }
}

fn notebook(work: &Work, phases: &mut Phases, draw: &mut Draw) {
    let memory_pm = work.once().between(40, 550);
    while phases.open() {
        phases.push(Activity::waiting(memory_pm), draw.between(180_000, 1_800_000));
        let cell = draw.between(80_000, 620_000);
        let run = Activity {
            memory_pm,
            fp32_pm: 300,
            pcie_rx: 600_000,
            ..Activity::new(draw.between(40, 96), cell, cell * 3 / 10, cell * 4 / 10, 150)
        };
        phases.push(run, draw.between(10_000, 200_000));
    }
}

/// First and longest wait of a kubelet before it starts a container again; each is twice the one before.
const BACK_OFF_MS: (i64, i64) = (10_000, 300_000);

fn crash_loop(work: &Work, phases: &mut Phases, draw: &mut Draw) {
    let once = &mut work.once();
    let memory_pm = once.between(20, 300);
    let lives = once.between(5_000, 60_000);
    while phases.open() {
        let (lives, left) = in_crash_loop(phases.at - work.started, lives);
        let run = Activity { memory_pm, pcie_rx: 3_000_000, ..Activity::new(draw.between(2, 9), 6_000, 0, 16_000, 300) };
        phases.push(if lives { run } else { Activity::default() }, left);
    }
}

/// Whether a container that runs `lives` ms at a time does so `since` its first start, and for how long it still does or not.
fn in_crash_loop(mut since: i64, lives: i64) -> (bool, i64) {
    let (mut wait, longest) = BACK_OFF_MS;
    loop {
        if since < lives {
            return (true, lives - since);
        }
        if since < lives + wait {
            return (false, lives + wait - since);
        }
        since -= lives + wait;
        if wait == longest {
            since %= lives + wait;
        }
        wait = (2 * wait).min(longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::{NOISE, UTIL_NOISE};

    const HOUR: i64 = schemas::HOUR_MS;

    fn work(shape: Shape, key: u64) -> Work {
        Work { shape, gpus: 8, rank: 0, gang: 1, key, started: 12_345, until: 24 * HOUR - 777 }
    }

    fn day(work: &Work) -> Vec<Phase> {
        let calendar = Calendar::utc();
        (0..24).flat_map(|hour| phases(work, &calendar, hour * HOUR, (hour + 1) * HOUR)).collect()
    }

    fn check(a: &Activity) {
        let tensor_leads = a.tensor + a.tensor_step * NOISE > (a.dram + a.dram_step * NOISE) / 4 * 5;
        for q in -NOISE..=NOISE {
            let (sm, tensor, dram) = (a.sm + a.sm_step * q, a.tensor + a.tensor_step * q, a.dram + a.dram_step * q);
            let gr = a.gr + a.sm_step * q;
            assert!(0 <= tensor && tensor <= sm && sm <= gr && gr <= 1_000_000, "{a:?}");
            assert!((0..=800_000).contains(&dram) && dram % 4 == 0, "{a:?}");
            assert!(a.effective(q) == if tensor_leads { tensor } else { dram / 4 * 5 }, "{a:?} at {q}");
            assert_eq!(a.effective(q) + a.effective(-q), 2 * a.effective(0), "linear in the noise: {a:?}");
            for u in -UTIL_NOISE..=UTIL_NOISE {
                let util = a.util_pct + a.util_step * u;
                assert!(util * 10_000 >= sm && util <= 100, "{a:?}");
            }
        }
        assert!((0..=1000).contains(&a.memory_pm), "{a:?}");
    }

    #[test]
    fn levels_keep_to_the_inequalities_at_every_draw_of_the_noise() {
        for &shape in Shape::ALL {
            for key in 0..40 {
                let phases = day(&work(shape, key));
                assert!(phases.windows(2).all(|two| two[0].from < two[1].from));
                assert_eq!((phases[0].from, phases.len() > 24), (12_345, true));
                phases.iter().for_each(|phase| check(&phase.activity));
            }
        }
    }

    #[test]
    fn pods_together_keep_to_them_too() {
        let days: Vec<Vec<Phase>> = Shape::ALL.iter().map(|shape| day(&work(*shape, 3))).collect();
        for n in 0..200 {
            let pods: Vec<Activity> = days.iter().map(|day| day[n % day.len()].activity).collect();
            for few in [&pods[..1], &pods[1..4], &pods[..]] {
                check(&Activity::together(few, 8));
            }
        }
        let idle = Activity::waiting(400);
        assert_eq!(Activity::together(&[idle, idle], 4), Activity::waiting(200));
        assert_eq!(Activity::together(&[], 4), Activity::default());
    }

    #[test]
    fn checkpoints_are_where_the_phases_have_them() {
        for key in 0..20 {
            let work = work(Shape::Training, key);
            let mut saved: Vec<i64> = Vec::new();
            for two in day(&work).windows(2) {
                if two[0].activity.pcie_tx == 9_500_000 && two[1].activity.pcie_tx != 9_500_000 {
                    saved.push(two[1].from);
                }
            }
            let hung = Training::of(&work).hangs.is_some();
            assert!(hung || saved.len() > 20, "{saved:?}");
            for two in saved.windows(2) {
                assert_eq!(unsaved_since(&work, two[1] - 1), Some(two[0]));
                assert_eq!(unsaved_since(&work, two[1]), Some(two[1]));
            }
            assert_eq!(unsaved_since(&work, saved[0] - 1), Some(Training::of(&work).begun));
            assert_eq!((last_checkpoint(&work, saved[0] - 1), last_checkpoint(&work, saved[0])), (None, Some(saved[0])));
        }
        assert_eq!(unsaved_since(&work(Shape::Batch, 1), HOUR), None);
    }

    #[test]
    fn a_crash_loop_waits_twice_as_long_each_time_up_to_five_minutes() {
        let mut at = 0;
        let mut waits = Vec::new();
        while waits.len() < 8 {
            let (lives, left) = in_crash_loop(at, 7_000);
            if !lives {
                waits.push(left / 1000);
            }
            at += left;
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(in_crash_loop(at + 1_000_000 * 307_000 + 6_999, 7_000), (true, 1));
    }
}
