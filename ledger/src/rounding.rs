//! Exact sums become whole milliseconds, top down, once each (rule A15), and rows.

use std::sync::Arc;

use schemas::{
    Timestamp,
    status::{Cause, Tier},
};

use crate::{
    by_number::NumberHour,
    device::{DeviceHour, OwnerTime, SHARED_SLACK, UNHELD},
    fraction::{Frac, TooFine, share_out},
    input::{Pod, Text},
    meters::Meters,
    observe::{Observed, TierSum},
    row::{Flag, HourRow, OwnerHour, Place, TierTime, Tiers, What},
    span::{self, Ms},
    world::{DeviceWorld, NodeWorld},
};

/// The reason of what MIG instances leave over.
pub(crate) const MIG_ORPHAN: &str = "mig_orphan";

/// What a GPU's instances leave over, exact and rounded.
#[derive(Clone, Copy)]
pub(crate) struct Orphan {
    pub(crate) exact: Frac,
    pub(crate) ms: i64,
}

/// Level 1: each device's capacity, and each split GPU's orphan, in the order of the node's devices and GPUs.
pub(crate) fn capacities(
    node: &NodeWorld<'_>,
    devices: &[DeviceHour<'_>],
    window: Ms,
) -> Result<(Vec<i64>, Vec<Orphan>), TooFine> {
    let exact = |i: usize| node.devices[i].weighted(devices[i].usable_ms);
    let mut capacities = (0..devices.len()).map(|i| exact(i).nearest()).collect::<Result<Vec<_>, _>>()?;
    let mut orphans = Vec::with_capacity(node.split_gpus.len());
    for gpu in &node.split_gpus {
        let whole = span::length(&gpu.split, window);
        let mut parts: Vec<Frac> = gpu.instances.iter().map(|i| exact(*i)).collect();
        let used = parts.iter().copied().try_fold(Frac::ZERO, Frac::plus)?;
        let exact = Frac::whole(whole).minus(used)?;
        parts.push(exact);
        let mut shares = share_out(whole, &parts)?;
        let ms = shares.pop().unwrap_or(0);
        for (instance, share) in gpu.instances.iter().zip(shares) {
            capacities[*instance] = share;
        }
        orphans.push(Orphan { exact, ms });
    }
    Ok((capacities, orphans))
}

/// Levels 2 and 3: one device's rows. `seen` belongs to `hour.owners`, as it was observed and metered.
pub(crate) fn device_rows(
    at: Timestamp,
    world: &DeviceWorld<'_>,
    hour: &DeviceHour<'_>,
    seen: Vec<(Observed, Meters)>,
    capacity: i64,
    orphan: Option<Orphan>,
    rows: &mut Vec<HourRow>,
) -> Result<(), TooFine> {
    let mut free: Vec<(&str, Frac)> = Vec::new();
    for (reason, id_ms) in [(SHARED_SLACK, hour.slack), (UNHELD, hour.unheld)] {
        if id_ms > 0 {
            free.push((reason, world.of_ids(id_ms)));
        }
    }
    let mut unavailable: Vec<(&str, Frac)> =
        hour.unavailable.iter().map(|(reason, id_ms)| (&***reason, world.of_ids(*id_ms))).collect();
    if let Some(orphan) = orphan.filter(|orphan| !orphan.exact.is_zero()) {
        add_reason(&mut unavailable, MIG_ORPHAN, orphan.exact)?;
    }
    let owners = hour.owners.iter().map(|owner| world.of_ids(owner.held));
    let parts: Vec<Frac> =
        owners.chain(free.iter().map(|(_, part)| *part)).chain(unavailable.iter().map(|(_, part)| *part)).collect();
    let mut shares = share_out(capacity + orphan.map_or(0, |orphan| orphan.ms), &parts)?.into_iter();

    let mut push = |ms, what| rows.push(HourRow { hour_start: at, place: world.place.clone(), ms, what });
    for (owner, seen) in hour.owners.iter().zip(seen) {
        let ms = shares.next().unwrap_or(0);
        push(ms, What::Owner(Box::new(owner_hour(world, owner, seen, ms)?)));
    }
    for (reason, _) in free {
        push(shares.next().unwrap_or(0), What::Free(reason.into()));
    }
    for (reason, _) in unavailable {
        push(shares.next().unwrap_or(0), What::Unavailable(reason.into()));
    }
    Ok(())
}

/// A device may have been unavailable for a reason of the orphan's name before it was split.
fn add_reason<'a>(reasons: &mut Vec<(&'a str, Frac)>, reason: &'a str, part: Frac) -> Result<(), TooFine> {
    match reasons.binary_search_by_key(&reason, |(r, _)| *r) {
        Ok(at) => reasons[at].1 = reasons[at].1.plus(part)?,
        Err(at) => reasons.insert(at, (reason, part)),
    }
    Ok(())
}

fn owner_hour(
    world: &DeviceWorld<'_>,
    owner: &OwnerTime,
    (seen, meters): (Observed, Meters),
    ms: i64,
) -> Result<OwnerHour, TooFine> {
    let held = world.of_ids(owner.held);
    let memo = |id_ms: i64| memo(ms, world.of_ids(id_ms), held);
    let mut tiers = Tiers::default();
    for (tier, sums) in Tier::ALL.iter().zip(&seen.tiers) {
        tiers[*tier] = tier_time(world, sums, ms)?;
    }
    let profile = world.device.profile.is_some();
    let held_profile = Frac::new(owner.held.into(), world.replicas.get().into());
    Ok(OwnerHour {
        pod: pod(world.owners[owner.owner].pod),
        tiers,
        pre_start_ms: memo(owner.pre_start)?,
        terminating_ms: memo(owner.terminating)?,
        on_unready_ms: memo(owner.on_unready)?,
        held_profile_ms: if profile { held_profile.nearest()? } else { 0 },
        energy_mj: meters.energy_mj,
        fb_used_mib_ms: meters.fb_used_mib_ms,
        fb_unobserved_ms: meters.fb_unobserved_ms,
        overcommitted_ms: 0,
        source: owner.source,
        flags: {
            let mut flags = owner.flags;
            flags.extend(seen.flags);
            flags.extend(meters.flags);
            flags
        },
    })
}

fn tier_time(world: &DeviceWorld<'_>, sums: &TierSum, ms: i64) -> Result<TierTime, TooFine> {
    let mut parts = vec![sums.utilized, world.of_ids(sums.seen).minus(sums.utilized)?];
    let causes = || Cause::ALL.iter().zip(sums.unseen).filter(|(_, id_ms)| *id_ms > 0);
    parts.extend(causes().map(|(_, id_ms)| world.of_ids(id_ms)));
    let mut shares = share_out(ms, &parts)?.into_iter();
    let mut time = TierTime::default();
    time.over_share_ms = sums.over_share.nearest()?;
    time.utilized_ms = shares.next().unwrap_or(0);
    time.stranded_ms = shares.next().unwrap_or(0);
    for ((cause, _), share) in causes().zip(shares) {
        time.set_unobserved(*cause, share);
    }
    Ok(time)
}

/// The part `memo` of `whole`, where `whole` was rounded to `ms`.
fn memo(ms: i64, memo: Frac, whole: Frac) -> Result<i64, TooFine> {
    if memo.is_zero() {
        return Ok(0);
    }
    Ok(share_out(ms, &[memo, whole.minus(memo)?])?[0])
}

/// The orphan of a GPU that is not in the inventory itself.
pub(crate) fn orphan_row(at: Timestamp, node: &NodeWorld<'_>, gpu: usize, orphan: Orphan, rows: &mut Vec<HourRow>) {
    let gpu = &node.split_gpus[gpu];
    if orphan.exact.is_zero() {
        return;
    }
    let labels = gpu.instances.iter().map(|i| &node.devices[*i].place);
    let place = Place { device: Some(gpu.id.clone()), ..shared_labels(node.name, labels) };
    rows.push(HourRow { hour_start: at, place: Arc::new(place), ms: orphan.ms, what: What::Unavailable(MIG_ORPHAN.into()) });
}

/// The rows of holdings by number: each owner's, and what they take back from the node's free and unavailable time.
pub(crate) fn number_rows(
    at: Timestamp,
    node: &NodeWorld<'_>,
    pods: Vec<NumberHour<'_>>,
    rows: &mut Vec<HourRow>,
) -> Result<(), TooFine> {
    if pods.is_empty() {
        return Ok(());
    }
    let place = Arc::new(shared_labels(node.name, node.devices.iter().map(|world| &world.place)));
    let (mut free, mut unavailable) = ((false, 0), (false, 0));
    for number in pods {
        let ms = number.held.nearest()?;
        let taken = share_out(ms, &[number.from_free, number.from_unavailable, number.unlisted])?;
        free = (free.0 || !number.from_free.is_zero(), free.1 + taken[0]);
        unavailable = (unavailable.0 || !number.from_unavailable.is_zero(), unavailable.1 + taken[1]);
        let mut tiers = Tiers::default();
        for tier in Tier::ALL {
            tiers[*tier].set_unobserved(Cause::NoDeviceYet, ms);
        }
        let owner = OwnerHour {
            pod: pod(number.pod),
            tiers,
            pre_start_ms: memo(ms, number.pre_start, number.held)?,
            terminating_ms: memo(ms, number.terminating, number.held)?,
            on_unready_ms: memo(ms, number.on_unready, number.held)?,
            held_profile_ms: 0,
            energy_mj: None,
            fb_used_mib_ms: None,
            fb_unobserved_ms: None,
            overcommitted_ms: number.over.nearest()?,
            source: number.source,
            flags: number.flags.with(Flag::Overcommitted, !number.over.is_zero()),
        };
        rows.push(HourRow { hour_start: at, place: place.clone(), ms, what: What::Owner(Box::new(owner)) });
    }
    let held_unknown = || Text::from("held_unknown");
    for ((any, ms), what) in [(free, What::Free(held_unknown())), (unavailable, What::Unavailable(held_unknown()))] {
        if any {
            rows.push(HourRow { hour_start: at, place: place.clone(), ms: -ms, what });
        }
    }
    Ok(())
}

fn pod(pod: &Pod) -> Arc<Pod> {
    Arc::new(pod.clone())
}

/// A place without a device, with the labels on which all of `places` agree.
pub(crate) fn shared_labels<'a>(node: &Text, places: impl Iterator<Item = &'a Arc<Place>>) -> Place {
    let mut shared: Option<Place> = None;
    for place in places {
        match &mut shared {
            None => shared = Some(Place { node: node.clone(), device: None, parent: None, profile: None, ..(**place).clone() }),
            Some(shared) => {
                let keep = |mine: &mut Option<Text>, theirs: &Option<Text>| {
                    if mine != theirs {
                        *mine = None;
                    }
                };
                keep(&mut shared.product, &place.product);
                keep(&mut shared.region, &place.region);
                keep(&mut shared.provider, &place.provider);
                keep(&mut shared.purchase_option, &place.purchase_option);
                keep(&mut shared.reservation, &place.reservation);
            }
        }
    }
    shared.unwrap_or_else(|| Place {
        node: node.clone(),
        device: None,
        parent: None,
        profile: None,
        product: None,
        region: None,
        provider: None,
        purchase_option: None,
        reservation: None,
    })
}
