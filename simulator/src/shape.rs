//! Shapes of work: how long a pod runs, how many GPUs it takes, how it ends. What its GPUs do meanwhile is in `work`.

use crate::seed::Draw;

/// A shape of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Long jobs in steps, with data stalls, checkpoints and, now and then, a hang.
    Training,
    /// Standing replicas whose load follows the day: prefill-heavy, or bound by decoding.
    Inference,
    /// Those of them that read prompts: bursts of tensor work.
    Prefill,
    /// Those that write answers: bound by memory.
    Decode,
    /// Short jobs, some shorter than a scrape interval.
    Batch,
    /// Held, and mostly idle.
    Notebook,
    /// A container that ends soon after each start and is started again after ever longer waits, its GPUs held throughout.
    CrashLoop,
}

/// What a shape's pods ask for and how they end.
pub(crate) struct Habits {
    /// How many GPUs, by weight.
    pub gpus: &'static [(u32, u32)],
    /// Which part of it those ask for that ask for one, thousandths, by weight; empty: all of it.
    pub parts: &'static [(u32, u32)],
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
    pub const ALL: &'static [Self] =
        &[Self::Training, Self::Inference, Self::Prefill, Self::Decode, Self::Batch, Self::Notebook, Self::CrashLoop];

    /// Its word in specs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Inference => "inference",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Batch => "batch",
            Self::Notebook => "notebook",
            Self::CrashLoop => "crash_loop",
        }
    }

    /// Whether it stands for good and serves.
    pub const fn serves(self) -> bool {
        matches!(self, Self::Inference | Self::Prefill | Self::Decode)
    }

    pub(crate) const fn habits(self) -> Habits {
        match self {
            Self::Training => Habits {
                gpus: &[(1, 3), (2, 2), (4, 2), (8, 3)],
                parts: &[],
                durations_s: &[600, 1500, 3600, 7200, 14_400, 28_800],
                deleted_ppm: 120_000,
                failed_ppm: 80_000,
                returns_ppm: 100_000,
                patience_s: Some(6 * 3600),
                queue: "training",
                controller: "PyTorchJob",
                word: "train",
            },
            Self::Inference | Self::Prefill | Self::Decode => Habits {
                gpus: &[(1, 6), (2, 3), (4, 1)],
                parts: &[],
                durations_s: &[3 * 3600, 8 * 3600, 16 * 3600, 30 * 3600],
                deleted_ppm: 1_000_000,
                failed_ppm: 0,
                returns_ppm: 1_000_000,
                patience_s: None,
                queue: "serving",
                controller: "StatefulSet",
                word: match self {
                    Self::Prefill => "prefill",
                    Self::Decode => "decode",
                    _ => "serve",
                },
            },
            Self::Batch => Habits {
                gpus: &[(1, 8), (2, 2)],
                parts: &[],
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
                parts: &[],
                durations_s: &[1200, 3600, 10_800, 28_800],
                deleted_ppm: 700_000,
                failed_ppm: 0,
                returns_ppm: 400_000,
                patience_s: Some(1800),
                queue: "interactive",
                controller: "Notebook",
                word: "notebook",
            },
            Self::CrashLoop => Habits {
                gpus: &[(1, 4), (2, 1)],
                parts: &[],
                durations_s: &[1800, 7200, 28_800],
                deleted_ppm: 1_000_000,
                failed_ppm: 0,
                returns_ppm: 0,
                patience_s: Some(3600),
                queue: "batch",
                controller: "Deployment",
                word: "broken",
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

    /// Mean duration, milliseconds.
    pub fn mean_ms(&self) -> f64 {
        let pieces = self.durations_s.windows(2).map(|two| f64::from(two[0] + two[1]) * 500.0);
        pieces.sum::<f64>() / (self.durations_s.len() - 1) as f64
    }

    /// Mean of GPUs times duration, GPU-milliseconds, where a pod can have at most `most` GPUs, or so many ids of `replicas` of one.
    pub fn mean_gpu_ms(&self, most: u32, replicas: Option<u32>) -> f64 {
        let of_one = replicas.filter(|_| !self.parts.is_empty()).map_or(1.0, |replicas| {
            let sum =
                |of: &dyn Fn(u32) -> u32| self.parts.iter().map(|(part, weight)| f64::from(of(*part) * weight)).sum::<f64>();
            sum(&|part| ids(part, replicas)) / sum(&|_| replicas)
        });
        let fitting = self.gpus.iter().filter(|(gpus, _)| *gpus <= most);
        let (gpus, weights) = fitting.fold((0.0, 0.0), |(sum, weights), (gpus, weight)| {
            let part = if *gpus == 1 { of_one } else { 1.0 };
            (sum + f64::from(gpus * weight) * part, weights + f64::from(*weight))
        });
        self.mean_ms() * gpus / weights
    }
}

/// How many of a GPU's `replicas` ids make at least `part` thousandths of it.
pub(crate) const fn ids(part: u32, replicas: u32) -> u32 {
    (part * replicas).div_ceil(1000)
}
