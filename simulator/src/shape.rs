//! Shapes of work: how long a pod runs, how many GPUs it takes, and what its GPUs do meanwhile.
//!
//! Activity is piecewise constant. Each phase has a base level and a noise that is as often above it as below it, in
//! cells that cancel exactly, so every integral is known in whole numbers (see [`crate::timeline`]).

use crate::seed::Draw;

/// A shape of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Long jobs in steps, with data stalls, checkpoints and, now and then, a hang.
    Training,
    /// Standing replicas whose load follows the day: prefill-heavy, or bound by decoding.
    Inference,
    /// Short jobs, some shorter than a scrape interval.
    Batch,
    /// Held, and mostly idle.
    Notebook,
}

/// What a shape's pods ask for and how they end.
pub(crate) struct Habits {
    /// How many GPUs, by weight.
    pub gpus: &'static [(u32, u32)],
    /// Bounds of equally likely pieces of the duration, seconds.
    pub durations_s: &'static [u32],
    /// How often a pod is deleted before its work is done, ppm.
    pub deleted_ppm: u32,
    /// How often its work fails, ppm.
    pub failed_ppm: u32,
    /// How often a pod that ended comes back under the same name, ppm.
    pub returns_ppm: u32,
    /// How long it waits for GPUs before its owner gives up, seconds; none: for ever.
    pub patience_s: Option<u32>,
    /// Queue.
    pub queue: &'static str,
    /// What makes its pods.
    pub controller: &'static str,
    /// Beginning of its name.
    pub word: &'static str,
}

impl Shape {
    /// Every shape, in the order in which the spec has them.
    pub const ALL: &'static [Self] = &[Self::Training, Self::Inference, Self::Batch, Self::Notebook];

    /// Its word in specs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Inference => "inference",
            Self::Batch => "batch",
            Self::Notebook => "notebook",
        }
    }

    pub(crate) const fn habits(self) -> Habits {
        match self {
            Self::Training => Habits {
                gpus: &[(1, 3), (2, 2), (4, 2), (8, 3)],
                durations_s: &[600, 1500, 3600, 7200, 14_400, 28_800],
                deleted_ppm: 120_000,
                failed_ppm: 80_000,
                returns_ppm: 100_000,
                patience_s: Some(6 * 3600),
                queue: "training",
                controller: "PyTorchJob",
                word: "train",
            },
            Self::Inference => Habits {
                gpus: &[(1, 6), (2, 3), (4, 1)],
                durations_s: &[3 * 3600, 8 * 3600, 16 * 3600, 30 * 3600],
                deleted_ppm: 1_000_000,
                failed_ppm: 0,
                returns_ppm: 1_000_000,
                patience_s: None,
                queue: "serving",
                controller: "StatefulSet",
                word: "serve",
            },
            Self::Batch => Habits {
                gpus: &[(1, 8), (2, 2)],
                durations_s: &[5, 60, 300, 900, 2400, 5400],
                deleted_ppm: 30_000,
                failed_ppm: 100_000,
                returns_ppm: 120_000,
                patience_s: Some(2 * 3600),
                queue: "batch",
                controller: "Job",
                word: "batch",
            },
            Self::Notebook => Habits {
                gpus: &[(1, 1)],
                durations_s: &[1200, 3600, 10_800, 28_800],
                deleted_ppm: 700_000,
                failed_ppm: 0,
                returns_ppm: 400_000,
                patience_s: Some(1800),
                queue: "interactive",
                controller: "Notebook",
                word: "notebook",
            },
        }
    }
}

impl Habits {
    /// Draws a duration, milliseconds.
    pub fn duration_ms(&self, draw: &mut Draw) -> i64 {
        let piece = draw.below(self.durations_s.len() as u64 - 1) as usize;
        draw.between(i64::from(self.durations_s[piece]) * 1000, i64::from(self.durations_s[piece + 1]) * 1000)
    }

    /// Mean of GPUs times duration, GPU-milliseconds, where a pod can have at most `most` GPUs.
    pub fn mean_gpu_ms(&self, most: u32) -> f64 {
        let pieces = self.durations_s.windows(2).map(|two| f64::from(two[0] + two[1]) * 500.0);
        let duration = pieces.sum::<f64>() / (self.durations_s.len() - 1) as f64;
        let fitting = self.gpus.iter().filter(|(gpus, _)| *gpus <= most);
        let (gpus, weights) =
            fitting.fold((0.0, 0.0), |(g, w), (gpus, weight)| (g + f64::from(gpus * weight), w + f64::from(*weight)));
        duration * gpus / weights
    }
}

/// What a GPU does in a phase, before its board's constants come in. Ratios in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    /// GPU_UTIL in percent: base, and the step of its noise (3 up, 3 down).
    pub util_pct: i64,
    pub util_step: i64,
    /// GR_ENGINE_ACTIVE; its noise is SM_ACTIVE's.
    pub gr: i64,
    /// SM_ACTIVE: base, and the step of its noise (10 up, 10 down).
    pub sm: i64,
    pub sm_step: i64,
    /// PIPE_TENSOR_ACTIVE.
    pub tensor: i64,
    pub tensor_step: i64,
    /// DRAM_ACTIVE; multiples of 4, at most 800,000, so that its fifth quarters are whole.
    pub dram: i64,
    pub dram_step: i64,
    /// SM_OCCUPANCY and the arithmetic pipes, in permille of SM_ACTIVE.
    pub occupancy_pm: i64,
    pub fp32_pm: i64,
    pub fp16_pm: i64,
    pub fp64_pm: i64,
    /// Memory used, permille of what the driver leaves.
    pub memory_pm: i64,
    /// PCIe out of and into the GPU, kB/s.
    pub pcie_tx: i64,
    pub pcie_rx: i64,
    /// NVLink, one direction, in permille of the links.
    pub nvlink_pm: i64,
    /// A process holds the device.
    pub resident: bool,
}

/// Noise steps of SM_ACTIVE and its like: drawn from -10 to 10.
pub(crate) const NOISE: i64 = 10;
/// Noise steps of GPU_UTIL: drawn from -3 to 3.
pub(crate) const UTIL_NOISE: i64 = 3;

impl Activity {
    /// A level that keeps to the inequalities at every draw of the noise: `0 <= tensor <= sm <= gr <= 1`, `sm <= util`,
    /// and one of tensor and DRAM decides the effective tier throughout.
    fn new(util_pct: i64, sm: i64, tensor: i64, dram: i64, noise_pm: i64) -> Self {
        let sm = sm.clamp(0, 960_000);
        let gr = (sm + sm / 20).min(980_000);
        let sm_step = (sm * noise_pm / 1000 / NOISE).min((1_000_000 - gr) / NOISE).min(sm / NOISE);
        let tensor = tensor.clamp(0, sm);
        let mut tensor_step = if sm == 0 { 0 } else { sm_step * tensor / sm };
        let mut dram = dram.clamp(0, 760_000) / 4 * 4;
        let mut dram_step = (dram * noise_pm / 1000 / NOISE).min((800_000 - dram) / NOISE).min(dram / NOISE) / 4 * 4;
        let lead = |q: i64| (tensor + tensor_step * q) - (dram + dram_step * q) * 5 / 4;
        if (lead(NOISE) > 0) != (lead(-NOISE) > 0) {
            // Too close to call: make it plain.
            dram = (tensor / 2) / 4 * 4;
            dram_step = 0;
            if tensor_step * NOISE > tensor / 4 {
                tensor_step = 0;
            }
        }
        let highest_sm_pct = (sm + sm_step * NOISE + 9_999) / 10_000;
        let util_pct = util_pct.clamp(highest_sm_pct, 100);
        let util_step = ((100 - util_pct) / UTIL_NOISE).min((util_pct - highest_sm_pct) / UTIL_NOISE).clamp(0, 4);
        Self {
            util_pct,
            util_step,
            gr,
            sm,
            sm_step,
            tensor,
            tensor_step,
            dram,
            dram_step,
            occupancy_pm: 380,
            fp32_pm: 120,
            fp16_pm: 60,
            fp64_pm: 0,
            resident: true,
            ..Self::default()
        }
    }

    /// The effective tier's activity at noise `q`: the larger of tensor pipe and DRAM over 0.8.
    pub fn effective(&self, q: i64) -> i64 {
        (self.tensor + self.tensor_step * q).max((self.dram + self.dram_step * q) / 4 * 5)
    }
}

/// A phase: a level from an instant on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase {
    pub from: i64,
    pub activity: Activity,
}

/// What a pod of `shape` does on each of its GPUs in `[from, to)`.
pub(crate) fn phases(shape: Shape, gpus: u32, from: i64, to: i64, draw: &mut Draw) -> Vec<Phase> {
    let mut phases = Phases { list: Vec::new(), at: from, to };
    match shape {
        Shape::Training => training(gpus, &mut phases, draw),
        Shape::Inference => inference(&mut phases, draw),
        Shape::Batch => batch(&mut phases, draw),
        Shape::Notebook => notebook(&mut phases, draw),
    }
    phases.list
}

struct Phases {
    list: Vec<Phase>,
    at: i64,
    to: i64,
}

impl Phases {
    fn push(&mut self, activity: Activity, length_ms: i64) {
        if self.at < self.to {
            self.list.push(Phase { from: self.at, activity });
            self.at += length_ms;
        }
    }

    fn open(&self) -> bool {
        self.at < self.to
    }
}

fn training(gpus: u32, phases: &mut Phases, draw: &mut Draw) {
    let sm = draw.between(560_000, 900_000);
    let tensor = sm * draw.between(420, 620) / 1000;
    let dram = draw.between(250_000, 520_000);
    let memory_pm = draw.between(700, 960);
    let nvlink_pm = if gpus > 1 { draw.between(80, 320) } else { 0 };
    let hangs = draw.chance(20_000).then(|| phases.at + draw.between(300_000, 7_200_000));
    let load = Activity { memory_pm: memory_pm / 3, pcie_rx: 4_200_000, ..Activity::new(8, 15_000, 2_000, 20_000, 300) };
    phases.push(load, draw.between(20_000, 120_000));
    let mut checkpoint = phases.at + draw.between(1_200_000, 2_400_000);
    while phases.open() {
        if hangs.is_some_and(|hang| phases.at >= hang) {
            // Ranks spin in a collective: busy by GPU_UTIL, few SMs, no tensor work.
            let hang = Activity { memory_pm, ..Activity::new(100, 110_000, 0, 16_000, 50) };
            phases.push(hang, phases.to - phases.at);
            return;
        }
        let wobble = draw.between(-15, 15);
        let part = |ppm: i64| ppm + ppm * wobble / 1000;
        let step = Activity {
            memory_pm,
            nvlink_pm,
            pcie_tx: 220_000,
            pcie_rx: 900_000,
            fp16_pm: 90,
            ..Activity::new(98, part(sm), part(tensor), part(dram), 60)
        };
        phases.push(step, draw.between(180_000, 720_000));
        if phases.at >= checkpoint {
            let save = Activity { memory_pm, pcie_tx: 9_500_000, ..Activity::new(6, 10_000, 0, 60_000, 300) };
            phases.push(save, draw.between(15_000, 70_000));
            checkpoint = phases.at + draw.between(1_500_000, 2_100_000);
        } else if draw.chance(250_000) {
            let stall =
                Activity { memory_pm, pcie_rx: 2_800_000, ..Activity::new(draw.between(20, 50), 120_000, 40_000, 80_000, 300) };
            phases.push(stall, draw.between(8_000, 45_000));
        }
    }
}

/// Load by hour of the day (UTC), permille of the peak.
const DAY: [i64; 24] =
    [330, 270, 230, 210, 220, 270, 360, 480, 620, 760, 860, 920, 950, 970, 1000, 990, 960, 910, 850, 780, 700, 610, 510, 410];

fn inference(phases: &mut Phases, draw: &mut Draw) {
    let decoding = draw.chance(600_000);
    let scale = draw.between(600, 1100);
    let memory_pm = draw.between(850, 930);
    let load = Activity { memory_pm: memory_pm / 2, pcie_rx: 6_000_000, ..Activity::new(3, 5_000, 0, 30_000, 300) };
    phases.push(load, draw.between(15_000, 90_000));
    while phases.open() {
        let hour = (phases.at / 3_600_000).rem_euclid(24) as usize;
        let burst = if draw.chance(60_000) { 1400 } else { 1000 };
        let load = (DAY[hour] * scale / 1000 * draw.between(850, 1150) / 1000 * burst / 1000).min(1000);
        let serve = if decoding {
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

fn batch(phases: &mut Phases, draw: &mut Draw) {
    let sm = draw.between(350_000, 850_000);
    let tensor = sm * draw.between(50, 450) / 1000;
    let dram = draw.between(200_000, 640_000);
    let memory_pm = draw.between(150, 700);
    let double = draw.chance(100_000);
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

fn notebook(phases: &mut Phases, draw: &mut Draw) {
    let memory_pm = draw.between(40, 550);
    let still = Activity { memory_pm, ..Activity::new(0, 0, 0, 0, 0) };
    while phases.open() {
        phases.push(still, draw.between(180_000, 1_800_000));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Seed;

    #[test]
    fn levels_keep_to_the_inequalities_at_every_draw_of_the_noise() {
        for &shape in Shape::ALL {
            for n in 0..40 {
                let mut draw = Seed(n).stream(shape.as_str());
                let phases = phases(shape, 8, 0, 86_400_000, &mut draw);
                assert!(phases.windows(2).all(|two| two[0].from < two[1].from));
                for Phase { activity: a, .. } in phases {
                    let tensor_leads = a.tensor + a.tensor_step * NOISE > (a.dram + a.dram_step * NOISE) / 4 * 5;
                    for q in -NOISE..=NOISE {
                        let (sm, tensor, dram) = (a.sm + a.sm_step * q, a.tensor + a.tensor_step * q, a.dram + a.dram_step * q);
                        assert!(
                            0 <= tensor && tensor <= sm && sm <= a.gr + a.sm_step * q && a.gr + a.sm_step * q <= 1_000_000,
                            "{a:?}"
                        );
                        assert!((0..=800_000).contains(&dram) && dram % 4 == 0, "{a:?}");
                        assert!(a.effective(q) == if tensor_leads { tensor } else { dram / 4 * 5 }, "{a:?} at {q}");
                        for u in -UTIL_NOISE..=UTIL_NOISE {
                            let util = a.util_pct + a.util_step * u;
                            assert!(util * 10_000 >= sm && util <= 100, "{a:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_effective_tier_is_linear_in_the_noise() {
        let mut draw = Seed(3).stream("x");
        for Phase { activity, .. } in phases(Shape::Inference, 1, 0, 86_400_000, &mut draw) {
            for q in 0..=NOISE {
                assert_eq!(activity.effective(q) + activity.effective(-q), 2 * activity.effective(0), "{activity:?}");
            }
        }
    }
}
