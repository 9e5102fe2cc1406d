//! Work as it was measured: pods that ask, last and load their GPUs as the cluster of a preset did.
//!
//! A phase draws one rank, and every reading is the quantile at that rank: what is high is high together, so that the
//! inequalities of the physics hold. What was not measured is chosen so that what was comes out: of the draw, SMs that wait
//! more or less for memory, tensor pipe and DRAM; of the temperature, a curve over the draw.

use std::sync::LazyLock;

use crate::{
    accelerator::Board,
    activity::Activity,
    presets::{Preset, between},
    seed::Draw,
    shape::Habits,
};

/// Share of Seren's GPUs that nobody holds, ppm: those that read 0 (chosen; the source does not say who held what).
const FREE: i64 = 320_000;
/// From which rank on their power is a board's that nothing is loaded on; below are boards that hardly read at all.
const IDLE_FROM: i64 = 20_000;
/// Limit of Seren's boards: they draw up to 558 W, so they are of the 500 W kind, not of the 400 W kind.
const SEREN_LIMIT_MW: i64 = 500_000;

/// What pods of a preset ask for and how they end, where `base` is what they would.
pub(crate) fn habits(preset: Preset, base: Habits) -> Habits {
    /// Numbers of GPUs and parts of one with their weights, and bounds of durations.
    type Table = (Vec<(u32, u32)>, Vec<(u32, u32)>, Vec<u32>);
    static TABLES: LazyLock<Vec<Table>> = LazyLock::new(|| {
        let small = |number: i64| u32::try_from(number / 1000).unwrap_or(u32::MAX);
        let one = |preset: &Preset| {
            let measured = preset.measured();
            let gpus = measured.points("gpus").iter().map(|(gpus, count)| (small(*gpus), small(*count))).collect();
            // A part is in thousandths of a GPU already.
            let part = |part: i64| u32::try_from(part).unwrap_or(u32::MAX);
            let parts = measured.points("fraction").iter().map(|(of, count)| (part(*of), small(*count))).collect();
            let durations = measured.points("duration").iter().map(|(_, seconds)| small(*seconds)).collect();
            (gpus, parts, durations)
        };
        Preset::ALL.iter().map(one).collect()
    });
    type Weighted = &'static [(u32, u32)];
    let (gpus, parts, durations_s): (Weighted, Weighted, &[u32]) = match preset {
        // Readings only: their jobs are chosen.
        Preset::AcmeSeren => (&[(1, 4), (4, 1), (8, 6)], &[], &[1_800, 7_200, 21_600, 86_400]),
        // Pods that stand for good.
        Preset::GenaiServing => (&[(1, 1)], &[], &[100_000, 200_000]),
        Preset::Philly | Preset::Openb => {
            let (gpus, parts, durations) = &TABLES[preset as usize];
            (gpus, parts, durations)
        }
    };
    Habits { gpus, parts, durations_s, deleted_ppm: 0, failed_ppm: 0, returns_ppm: 0, patience_s: None, ..base }
}

/// How many pods come in the hour that holds `at`, over the mean of a day: ppm.
pub(crate) fn arrivals_ppm(preset: Preset, at: i64) -> i64 {
    let hours = preset.measured().points("hour");
    let total: i64 = hours.iter().map(|(_, count)| count).sum();
    let hour = at.div_euclid(schemas::HOUR_MS).rem_euclid(24) * 1000;
    match hours.iter().find(|(place, _)| *place == hour) {
        Some((_, count)) if total > 0 => count * hours.len() as i64 * 1_000_000 / total,
        _ => 1_000_000,
    }
}

/// What a GPU does in a phase that begins at `at`, and how long, ms.
pub(crate) fn phase(preset: Preset, at: i64, draw: &mut Draw) -> (Activity, i64) {
    let measured = preset.measured();
    let rank = draw.between(0, 999_999);
    match preset {
        Preset::AcmeSeren => (seren(FREE + rank * (1_000_000 - FREE) / 1_000_000), draw.between(600_000, 2_400_000)),
        Preset::Philly => (busy(measured.at_rank("gpu_util", rank)), draw.between(300_000, 1_800_000)),
        Preset::Openb => (busy(100_000 * rank / 1_000_000), draw.between(300_000, 1_800_000)),
        Preset::GenaiServing => {
            let hour = at.div_euclid(schemas::HOUR_MS).rem_euclid(24);
            let idle = draw.chance(u32::try_from(measured.at("hour_zero", hour) * 1000).unwrap_or(0));
            let util = if idle { 0 } else { measured.at_rank("gpu_util_busy", rank) };
            (busy(util), draw.between(50_000, 130_000))
        }
    }
}

/// A level of which only GPU_UTIL was measured, thousandths of a percent.
fn busy(util: i64) -> Activity {
    let util_pct = (util + 500) / 1000;
    let sm = util_pct * 6_200;
    let level = Activity { memory_pm: 500, ..Activity::new(util_pct, sm, sm * 3 / 10, sm / 4, 60) };
    Activity { util_step: 0, ..level }
}

/// The level at `rank` of Seren's readings.
fn seren(rank: i64) -> Activity {
    let measured = Preset::AcmeSeren.measured();
    let at = |quantity: &str| measured.at_rank(quantity, rank);
    // Thousandths of a percent to parts per million.
    let (sm, occupancy) = (at("sm_active") * 10, at("sm_occupancy") * 10);
    let memory_mib = at("fb_used") * 81_920 / 100_000;
    // What a board in the middle of those draws that nothing is loaded on.
    let board = Load { idle_mw: measured.at_rank("power", (IDLE_FROM + FREE) / 2), limit_mw: SEREN_LIMIT_MW };
    let (issue_pm, tensor, dram) = board.share_out(sm, at("power"));
    let level = Activity::new((at("gpu_util") + 500) / 1000, sm, tensor, dram, 30);
    Activity {
        util_step: 0,
        memory_pm: (memory_mib * 1000 / (81_920 - crate::timeline::reserved_mib(81_920))).min(1000),
        occupancy_pm: if level.sm > 0 { (occupancy * 1000 / level.sm).min(1000) } else { 0 },
        issue_pm,
        ..level
    }
}

/// A board's draw, as far as it is shared out over its parts.
struct Load {
    idle_mw: i64,
    limit_mw: i64,
}

impl Load {
    /// How much its SMs issue (permille), its tensor pipe and its DRAM work (ppm), where it draws `power_mw` with SMs active for
    /// `sm` ppm of the time: the physics of `timeline`, turned round.
    fn share_out(&self, sm: i64, power_mw: i64) -> (i64, i64, i64) {
        let range = self.limit_mw - self.idle_mw;
        let above = (power_mw - self.idle_mw - range * 60 / 1000).max(0) * 1_000_000 / range;
        let (least_tensor, least_dram) = (sm * 10 / 1000, sm * 20 / 1000);
        let least = (500 * least_tensor + 250 * least_dram) / 1000;
        let full = 450 * sm / 1000;
        if above <= least + full {
            let issue = if full > 0 { (above - least).max(0) * 1000 / full } else { 0 };
            return (issue, least_tensor, least_dram);
        }
        let rest = above - full;
        let tensor = (rest * 1000 / 500 * 7 / 10).clamp(least_tensor, sm);
        let dram = ((rest - 500 * tensor / 1000) * 1000 / 250).clamp(least_dram, 740_000);
        let tensor = ((rest - 250 * dram / 1000) * 1000 / 500).clamp(least_tensor, sm);
        (1000, tensor, dram)
    }
}

/// Die and memory temperature over the draw of a board: (mW, die, memory), thousandths of a degree.
pub(crate) type Curve = &'static [(i64, i64, i64)];

/// A board as the preset's are: `board` with another limit, and how warm it gets.
pub(crate) fn board(preset: Preset, board: Board) -> Board {
    static SEREN: LazyLock<Vec<(i64, i64, i64)>> = LazyLock::new(|| {
        let measured = Preset::AcmeSeren.measured();
        let one = |percent: i64| {
            let at = |quantity: &str| measured.at_rank(quantity, percent * 10_000);
            (at("power"), at("gpu_temp"), at("mem_temp"))
        };
        let mut curve: Vec<(i64, i64, i64)> = (1..=99).map(one).collect();
        curve.dedup_by_key(|(power, _, _)| *power);
        curve
    });
    match preset {
        Preset::AcmeSeren => Board { tdp_mw: SEREN_LIMIT_MW, curve: Some(&SEREN), ..board },
        Preset::Philly | Preset::Openb | Preset::GenaiServing => board,
    }
}

/// Draw of a board with nothing loaded, mW, where that was measured: one of the least, by `draw`.
pub(crate) fn idle_mw(preset: Preset, draw: &mut Draw) -> Option<i64> {
    match preset {
        Preset::AcmeSeren => Some(preset.measured().at_rank("power", draw.between(IDLE_FROM, FREE))),
        Preset::Philly | Preset::Openb | Preset::GenaiServing => None,
    }
}

/// Die and memory temperature at a draw.
pub(crate) fn warmth(curve: Curve, power_mw: i64) -> (i64, i64) {
    let pick = |of: fn(&(i64, i64, i64)) -> (i64, i64)| {
        let points: Vec<(i64, i64)> = curve.iter().map(of).collect();
        between(&points, power_mw)
    };
    (pick(|(power, die, _)| (*power, *die)), pick(|(power, _, memory)| (*power, *memory)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::NOISE;

    #[test]
    fn levels_of_every_rank_keep_to_the_inequalities_and_draw_what_was_measured() {
        for rank in (FREE..1_000_000).step_by(1_000) {
            let a = seren(rank);
            for q in [-NOISE, 0, NOISE] {
                let (sm, tensor) = (a.sm + a.sm_step * q, a.tensor + a.tensor_step * q);
                assert!(0 <= tensor && tensor <= sm && sm <= a.util_pct * 10_000, "{rank}: {a:?}");
            }
            assert!(a.occupancy_pm <= 1000 && a.memory_pm <= 1000 && (0..=1000).contains(&a.issue_pm), "{a:?}");
            let (idle, range) = (62_000, SEREN_LIMIT_MW - 62_000);
            let drawn = idle
                + range * 60 / 1000
                + range * (450 * a.sm * a.issue_pm / 1000 + 500 * a.tensor + 250 * a.dram) / 1_000_000_000;
            let wanted = Preset::AcmeSeren.measured().at_rank("power", rank);
            assert!((drawn - wanted).abs() < 30_000 || wanted > 480_000, "{rank}: draws {drawn}, measured {wanted}: {a:?}");
        }
    }

    #[test]
    fn a_day_has_as_many_arrivals_as_without_its_hours() {
        for preset in [Preset::Philly, Preset::Openb] {
            let day: i64 = (0..24).map(|hour| arrivals_ppm(preset, hour * schemas::HOUR_MS)).sum();
            assert!((day - 24_000_000).abs() < 100, "{day}");
        }
        assert_eq!(arrivals_ppm(Preset::AcmeSeren, 0), 1_000_000);
    }
}
