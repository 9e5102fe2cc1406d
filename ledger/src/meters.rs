//! Energy and memory of an owner's time on a device (rule A10): beside the account, in units of their own.

use schemas::Timestamp;

use crate::{
    counter::{self, StepKind},
    cover::Cover,
    device::DeviceHour,
    fraction::{Frac, TooFine},
    row::{Flag, FlagSet},
    span::Ms,
    world::DeviceWorld,
};

/// No board draws more: a counter that would need it did not start again.
const MAX_MILLIWATT: i64 = 3_000_000;

/// One owner's meters; none where the device was not read for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meters {
    pub(crate) energy_mj: Option<i64>,
    pub(crate) fb_used_mib_ms: Option<i64>,
    pub(crate) fb_unobserved_ms: Option<i64>,
    pub(crate) flags: FlagSet,
}

/// A span in which the same owners hold the device, by index in the hour's owners.
struct Together {
    from: i64,
    to: i64,
    owners: Vec<usize>,
}

/// The meters of each of `hour.owners`. Readings of one horizon past the window complete its last stretch.
pub(crate) fn of(world: &DeviceWorld<'_>, hour: &DeviceHour<'_>, window: Ms, horizon_ms: i64) -> Result<Vec<Meters>, TooFine> {
    let mut meters = vec![Meters::default(); hour.owners.len()];
    let near = (window.0.saturating_sub(horizon_ms), window.1.saturating_add(horizon_ms));
    let first = world.covers.partition_point(|cover| cover.at < near.0);
    let end = world.covers.partition_point(|cover| cover.at <= near.1).max(first);
    let covers = &world.covers[first..end];
    if !hour.owners.is_empty() && covers.iter().any(|cover| cover.energy_mj.is_some() || cover.fb_used_mib.is_some()) {
        let together = together(hour);
        energy(covers, &together, horizon_ms, &mut meters);
        memory(world, hour, covers, &mut meters)?;
    }
    Ok(meters)
}

fn together(hour: &DeviceHour<'_>) -> Vec<Together> {
    let stretches = hour.owners.iter().enumerate().flat_map(|(i, owner)| owner.stretches.iter().map(move |s| (s.from, s.to, i)));
    let mut stretches: Vec<_> = stretches.collect();
    stretches.sort_unstable(); // owners of one piece of time stand side by side, in order of UID
    let mut together: Vec<Together> = Vec::new();
    for (from, to, owner) in stretches {
        match together.last_mut() {
            Some(last) if last.from == from => last.owners.push(owner),
            _ => together.push(Together { from, to, owners: vec![owner] }),
        }
    }
    together
}

/// Spreads each increase evenly over its time, cut at owner edges; over a gap above the horizon it is nobody's.
fn energy(covers: &[Cover], together: &[Together], horizon_ms: i64, meters: &mut [Meters]) {
    let readings: Vec<_> = covers.iter().filter_map(|c| Some((Timestamp::from_ms(c.at), c.energy_mj?))).collect();
    for step in counter::steps(&readings, Some(MAX_MILLIWATT)) {
        if step.to.ms().saturating_sub(step.from.ms()) > horizon_ms {
            continue;
        }
        let first = together.partition_point(|t| t.to <= step.from.ms());
        for Together { from, to, owners } in together[first..].iter().take_while(|t| t.from < step.to.ms()) {
            let part = step.part(Timestamp::from_ms(*from).max(step.from), Timestamp::from_ms(*to).min(step.to));
            let among = i64::try_from(owners.len()).unwrap_or(i64::MAX);
            for (i, owner) in owners.iter().enumerate() {
                let extra = i64::from((i as i64) < part % among); // the odd units to the first, by UID
                let meter = &mut meters[*owner];
                *meter.energy_mj.get_or_insert(0) += part / among + extra;
                match step.kind {
                    StepKind::Rise => {}
                    StepKind::Reset => meter.flags.insert(Flag::Reset),
                    StepKind::Implausible => meter.flags.insert(Flag::Implausible),
                }
            }
        }
    }
}

/// Memory in use over time, held from each sample on like activity, shared equally among those that held the device.
fn memory(world: &DeviceWorld<'_>, hour: &DeviceHour<'_>, covers: &[Cover], meters: &mut [Meters]) -> Result<(), TooFine> {
    if covers.iter().all(|cover| cover.fb_used_mib.is_none()) {
        return Ok(());
    }
    for (owner, meter) in hour.owners.iter().zip(meters) {
        let (mut used, mut unobserved) = (Frac::ZERO, 0);
        for stretch in &owner.stretches {
            unobserved += stretch.to - stretch.from;
            let first = covers.partition_point(|cover| cover.until <= stretch.from);
            for cover in covers[first..].iter().take_while(|cover| cover.at < stretch.to) {
                let mut pods = world.owners_at(cover.at).peekable();
                let Some(mib) = cover.fb_used_mib.filter(|_| pods.peek().is_some()) else { continue };
                let mut among = 0;
                let mut mine = false;
                for pod in pods {
                    among += 1;
                    mine |= pod == owner.owner;
                }
                if mine {
                    let ms = cover.until.min(stretch.to) - cover.at.max(stretch.from);
                    unobserved -= ms;
                    used = used.plus(Frac::new(i128::from(mib) * i128::from(ms), among))?;
                }
            }
        }
        meter.fb_used_mib_ms = Some(used.nearest()?);
        meter.fb_unobserved_ms = Some(unobserved);
    }
    Ok(())
}
