//! Samples become covers: what each tier reads from an instant on, and until when (rules A4, A5, A6, A9).

use schemas::status::{Cause, Tier};

use crate::{
    input::{Readings, Rules, Sample},
    reading::{PPM, Reading, Value},
    row::{Flag, FlagSet},
};

/// What one tier reads: activity in parts per million, or why there is none.
pub(crate) type TierReading = Result<u32, Cause>;

/// One sample of a device, all sources together, and the span that it speaks for.
#[derive(Clone, Debug)]
pub(crate) struct Cover {
    /// When it was taken.
    pub(crate) at: i64,
    /// The next record of the device, or the horizon, whichever is earlier.
    pub(crate) until: i64,
    pub(crate) tiers: [TierReading; 3],
    /// What is to be said where a tier's value is used.
    pub(crate) tier_flags: [FlagSet; 3],
    /// What is to be said wherever it covers.
    pub(crate) flags: FlagSet,
    /// 1001 and 1002 are there and exactly 0.
    pub(crate) quiet: bool,
    /// 203 is there and at least 20.
    pub(crate) hot: bool,
    pub(crate) energy_mj: Option<i64>,
    pub(crate) fb_used_mib: Option<i64>,
}

/// The covers of one device, in order of time. `samples` come in any order and may repeat.
pub(crate) fn covers(mut samples: Vec<&Sample>, on_instance: bool, rules: &Rules) -> Vec<Cover> {
    if !samples.is_sorted_by_key(|sample| sample.at) {
        samples.sort_by_key(|sample| sample.at); // the readings of one instant merge alike in any order
    }
    let mut covers: Vec<Cover> = Vec::with_capacity(samples.len());
    for same in samples.chunk_by(|a, b| a.at == b.at) {
        let (mut readings, mut flags) = (same[0].readings, same[0].flags);
        for other in &same[1..] {
            readings = readings.merge(other.readings);
            flags.extend(other.flags);
        }
        covers.push(cover(same[0].at.ms(), readings, flags, on_instance, rules));
    }
    for i in 1..covers.len() {
        covers[i - 1].until = covers[i - 1].until.min(covers[i].at);
    }
    covers
}

fn cover(at: i64, readings: Readings, flags: FlagSet, on_instance: bool, rules: &Rules) -> Cover {
    let Readings { mut gpu_util, gr_active, sm_active, tensor_active, dram_active, energy_mj, fb_used_mib } = readings;
    if on_instance {
        gpu_util = Reading::Absent; // an old exporter prints 0 there
    }
    let mut tiers = [Err(Cause::FieldAbsent); 3];
    let mut tier_flags = [FlagSet::EMPTY; 3];
    let mut set = |tier: Tier, reading: TierReading, used: &[Value]| {
        tiers[tier as usize] = reading;
        for value in used {
            let clip = if on_instance { Flag::MigOverrange } else { Flag::OverrangeClipped };
            let flags = FlagSet::EMPTY.with(Flag::Conflict, value.conflict()).with(clip, value.clipped());
            tier_flags[tier as usize].extend(flags);
        }
    };
    match (gpu_util, gr_active) {
        (Reading::Valid(value), _) | (_, Reading::Valid(value)) => set(Tier::Busy, Ok(value.ppm()), &[value]),
        _ => set(Tier::Busy, Err(cause(&[gpu_util, gr_active])), &[]),
    }
    match sm_active {
        Reading::Valid(value) => set(Tier::Sm, Ok(value.ppm()), &[value]),
        _ => set(Tier::Sm, Err(cause(&[sm_active])), &[]),
    }
    match (tensor_active, dram_active) {
        (Reading::Valid(tensor), Reading::Valid(dram)) => {
            let effective = rules.tensor_ceiling.fill(tensor.ppm()).max(rules.dram_ceiling.fill(dram.ppm()));
            set(Tier::Effective, Ok(effective.min(PPM)), &[tensor, dram]);
        }
        _ => set(Tier::Effective, Err(cause(&[tensor_active, dram_active])), &[]),
    }
    let zero = |reading| matches!(reading, Reading::Valid(value) if value.is_zero());
    Cover {
        at,
        until: at.saturating_add(rules.horizon_ms),
        tiers,
        tier_flags,
        flags,
        quiet: zero(gr_active) && zero(sm_active),
        hot: matches!(gpu_util, Reading::Valid(value) if value.at_least(20)),
        // An instance's lines carry the counter of its whole board: what part is the instance's, nobody measured.
        energy_mj: if on_instance { None } else { energy_mj },
        fb_used_mib,
    }
}

/// Why none of a tier's fields makes a value: the gravest fault among those that are not valid.
fn cause(readings: &[Reading]) -> Cause {
    if readings.contains(&Reading::OutOfRange) {
        Cause::OutOfRange
    } else if readings.contains(&Reading::Sentinel) {
        Cause::Sentinel
    } else {
        Cause::FieldAbsent
    }
}
