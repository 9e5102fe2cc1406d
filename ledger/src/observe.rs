//! What samples saw of one owner's time on a device in one hour, and why the rest was not seen (rules A4, A5, A7).

use schemas::status::{Cause, Tier};

use crate::{
    cover::Cover,
    device::Stretch,
    fraction::{Frac, TooFine, lcm},
    input::Telemetry,
    reading::PPM,
    row::{Flag, FlagSet},
    span::{self, Ms},
    world::{DeviceWorld, Scrapes},
};

/// One tier of an owner's hour, exact.
pub(crate) struct TierSum {
    /// Whole GPU milliseconds.
    pub(crate) utilized: Frac,
    /// Whole GPU milliseconds, beside the sum.
    pub(crate) over_share: Frac,
    /// Id-milliseconds with a reading.
    pub(crate) seen: i64,
    /// Id-milliseconds without one, by cause.
    pub(crate) unseen: [i64; Cause::ALL.len()],
}

/// An owner's hour as it was seen.
pub(crate) struct Observed {
    pub(crate) tiers: [TierSum; 3],
    pub(crate) flags: FlagSet,
}

/// Whoever is told what was seen, piece by piece.
pub(crate) trait Listen {
    /// A sample, split between `pods`, speaks for the stretch.
    fn cover(&mut self, cover: &Cover, pods: u32, stretch: Stretch, replicas: u32);
    /// Nothing does, for a cause.
    fn miss(&mut self, cause: Cause, from: i64, to: i64, ids: u32);
}

/// Everything that speaks about one device.
pub(crate) struct Witness<'a> {
    pub(crate) world: &'a DeviceWorld<'a>,
    pub(crate) scrapes: &'a Scrapes,
    pub(crate) horizon_ms: i64,
    /// The covers that reach into the hour, and for each how many pods it is split between.
    covers: &'a [Cover],
    pods: Vec<u32>,
}

impl<'a> Witness<'a> {
    pub(crate) fn of(world: &'a DeviceWorld<'a>, scrapes: &'a Scrapes, horizon_ms: i64, window: Ms) -> Self {
        let first = world.covers.partition_point(|cover| cover.until <= window.0);
        let end = world.covers.partition_point(|cover| cover.at < window.1).max(first);
        let covers = &world.covers[first..end];
        let count = |cover: &Cover| u32::try_from(world.owners_at(cover.at).count()).unwrap_or(u32::MAX).max(1);
        let pods = if world.replicas.get() > 1 { covers.iter().map(count).collect() } else { vec![1; covers.len()] };
        Self { world, scrapes, horizon_ms, covers, pods }
    }

    /// A common multiple of the numbers of pods that the hour's samples are split between.
    pub(crate) fn split_lcm(&self) -> Result<i128, TooFine> {
        self.pods.iter().try_fold(1, |all, pods| lcm(all, i128::from(*pods)))
    }

    /// What was seen of `owner` during `stretches`.
    pub(crate) fn observe(&self, owner: usize, stretches: &[Stretch]) -> Result<Observed, TooFine> {
        let mut seen = Seen::default();
        self.tell(owner, stretches, &mut seen);
        seen.finish(self.world)
    }

    /// Tells `seen` what was seen of `owner` during `stretches`, in order of time.
    pub(crate) fn tell(&self, owner: usize, stretches: &[Stretch], seen: &mut impl Listen) {
        let runs = &self.world.owners[owner].runs;
        for stretch in stretches {
            if self.world.device.telemetry == Telemetry::None {
                seen.miss(Cause::NoSource, stretch.from, stretch.to, stretch.ids);
                continue;
            }
            let known_from = span::holding(runs, stretch.from).map_or(stretch.from, |run| run.0);
            let mut next = self.covers.partition_point(|cover| cover.at <= stretch.from);
            let mut from = stretch.from;
            while from < stretch.to {
                let last = next.checked_sub(1).map(|i| (&self.covers[i], self.pods[i]));
                let next_at = self.covers.get(next).map_or(i64::MAX, |cover| cover.at);
                let to = match last {
                    Some((cover, pods)) if from < cover.until => {
                        let to = cover.until.min(stretch.to);
                        if span::holding(runs, cover.at).is_some() {
                            seen.cover(cover, pods, Stretch { from, to, ..*stretch }, self.world.replicas.get());
                        } else {
                            self.unseen(seen, Stretch { from, to, ..*stretch }, known_from, Some(cover.at));
                        }
                        to
                    }
                    _ => {
                        let to = next_at.min(stretch.to);
                        self.unseen(seen, Stretch { from, to, ..*stretch }, known_from, last.map(|(cover, _)| cover.at));
                        to
                    }
                };
                from = to;
                if next_at <= from {
                    next += 1;
                }
            }
        }
    }

    /// Names the causes of a stretch without a record of the device in it, `last` being the one before it.
    fn unseen(&self, seen: &mut impl Listen, stretch: Stretch, known_from: i64, last: Option<i64>) {
        let Stretch { mut from, to, ids, .. } = stretch;
        let horizon_end = |at: i64| at.saturating_add(self.horizon_ms);
        if last.is_none_or(|last| last < known_from) {
            let until = horizon_end(known_from).min(to);
            if from < until {
                seen.miss(Cause::Handover, from, until, ids);
                from = until;
            }
        }
        let (answers, failures) = (&self.scrapes.answers, &self.scrapes.failures);
        let mut answered = answers.partition_point(|at| *at <= from);
        let mut failed = failures.partition_point(|at| *at <= from);
        while from < to {
            let answer = answered.checked_sub(1).map(|i| answers[i]);
            let failure = failed.checked_sub(1).map(|i| failures[i]);
            let (cause, until) = match (failure, answer) {
                (Some(f), a) if a.is_none_or(|a| a < f) && from < horizon_end(f) => (Cause::ExporterDown, horizon_end(f)),
                (_, Some(a)) if last.is_none_or(|last| last < a) && from < horizon_end(a) => (Cause::Stale, horizon_end(a)),
                _ => (Cause::Gap, i64::MAX),
            };
            let next_answer = answers.get(answered).copied().unwrap_or(i64::MAX);
            let next_failure = failures.get(failed).copied().unwrap_or(i64::MAX);
            let until = until.min(next_answer).min(next_failure).min(to);
            seen.miss(cause, from, until, ids);
            from = until;
            answered += usize::from(next_answer <= from);
            failed += usize::from(next_failure <= from);
        }
    }
}

/// Sums of one owner's hour as they grow.
#[derive(Default)]
struct Seen {
    tiers: [TierSeen; 3],
    flags: FlagSet,
    covered_ms: i64,
    hot_ms: i64,
    loud: bool,
}

#[derive(Default)]
struct TierSeen {
    /// Parts-per-million-milliseconds below the share, by the number of pods that they are split between.
    below: BySplit,
    /// Id-milliseconds in which activity reached the share.
    at_share: i64,
    /// Like `below`: all activity of the time in `at_share`.
    reached: BySplit,
    over: bool,
    seen: i64,
    unseen: [i64; Cause::ALL.len()],
    flags: FlagSet,
}

/// Sums by the number of pods that a sample is split between.
#[derive(Default)]
struct BySplit(Vec<(u32, i64)>);

impl BySplit {
    fn add(&mut self, pods: u32, ppm_ms: i64) {
        match self.0.iter_mut().find(|(p, _)| *p == pods) {
            Some((_, sum)) => *sum += ppm_ms,
            None => self.0.push((pods, ppm_ms)),
        }
    }

    /// The sum in device milliseconds.
    fn sum(&self) -> Result<Frac, TooFine> {
        let part = |&(pods, ppm_ms): &(u32, i64)| Frac::new(ppm_ms.into(), i128::from(PPM) * i128::from(pods));
        self.0.iter().map(part).try_fold(Frac::ZERO, Frac::plus)
    }
}

impl Listen for Seen {
    fn miss(&mut self, cause: Cause, from: i64, to: i64, ids: u32) {
        for tier in &mut self.tiers {
            tier.unseen[cause as usize] += i64::from(ids) * (to - from);
        }
    }

    fn cover(&mut self, cover: &Cover, pods: u32, stretch: Stretch, replicas: u32) {
        let ms = stretch.to - stretch.from;
        let id_ms = i64::from(stretch.ids) * ms;
        self.covered_ms += ms;
        self.hot_ms += if cover.hot { ms } else { 0 };
        self.loud |= !cover.quiet;
        self.flags.extend(cover.flags);
        for ((tier, reading), flags) in self.tiers.iter_mut().zip(cover.tiers).zip(cover.tier_flags) {
            match reading {
                Ok(ppm) => {
                    tier.seen += id_ms;
                    tier.flags.extend(flags);
                    // activity / pods against ids / replicas
                    let activity = i128::from(ppm) * i128::from(replicas);
                    let share = i128::from(stretch.ids) * i128::from(PPM) * i128::from(pods);
                    if activity <= share {
                        tier.below.add(pods, i64::from(ppm) * ms);
                    } else {
                        tier.at_share += id_ms;
                        tier.reached.add(pods, i64::from(ppm) * ms);
                        tier.over = true;
                    }
                }
                Err(cause) => tier.unseen[cause as usize] += id_ms,
            }
        }
    }
}

impl Seen {
    fn finish(self, world: &DeviceWorld<'_>) -> Result<Observed, TooFine> {
        // A profiler that reads exactly 0 all the time while GPU_UTIL says otherwise saw nothing.
        let stuck = self.covered_ms > 0 && !self.loud && 2 * self.hot_ms >= self.covered_ms;
        let mut flags = self.flags.with(Flag::ProfilingStuck, stuck);
        let mut finish = |tier: Tier, mut sums: TierSeen| {
            if stuck && tier != Tier::Busy {
                sums.unseen[Cause::Suspect as usize] += sums.seen;
                return Ok(TierSum { utilized: Frac::ZERO, over_share: Frac::ZERO, seen: 0, unseen: sums.unseen });
            }
            flags.extend(sums.flags.with(Flag::OverShare, sums.over));
            let weight = world.device.weight;
            let weigh = |device_ms: Frac| device_ms.times(weight.num().into(), weight.den().into());
            let at_share = world.of_ids(sums.at_share);
            Ok(TierSum {
                utilized: weigh(sums.below.sum()?)?.plus(at_share)?,
                over_share: weigh(sums.reached.sum()?)?.minus(at_share)?,
                seen: sums.seen,
                unseen: sums.unseen,
            })
        };
        let [busy, sm, effective] = self.tiers;
        let tiers = [finish(Tier::Busy, busy)?, finish(Tier::Sm, sm)?, finish(Tier::Effective, effective)?];
        Ok(Observed { tiers, flags })
    }
}
