//! Holdings known by number only, taken from what nobody holds on their node (rule A16).

use std::collections::BTreeMap;

use schemas::status::HoldingSource;

use crate::{
    device::{DeviceHour, Idle, IdleKind},
    fraction::{Frac, TooFine, lcm},
    input::{Held, Pod, Ratio},
    row::FlagSet,
    span::Ms,
    world::{DeviceWorld, Hold, NodeWorld, end_of},
};

/// One pod's time by number on a node, as exact whole GPU milliseconds.
pub(crate) struct NumberHour<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) held: Frac,
    pub(crate) from_free: Frac,
    pub(crate) from_unavailable: Frac,
    pub(crate) pre_start: Frac,
    pub(crate) terminating: Frac,
    pub(crate) on_unready: Frac,
    /// What is held on a node without inventory: taken from nothing.
    pub(crate) unlisted: Frac,
    /// What found nothing to hold.
    pub(crate) over: Frac,
    pub(crate) source: HoldingSource,
    pub(crate) flags: FlagSet,
}

/// A holding by number, in the order in which they take.
struct Claim<'a> {
    pod: &'a Pod,
    from: i64,
    to: i64,
    started: i64,
    terminating_from: i64,
    source: HoldingSource,
    flags: FlagSet,
    /// Units of one of its devices.
    unit: i128,
    count: u32,
    /// When some of them were named, and how many.
    named: Vec<(i64, u32)>,
}

impl<'a> Claim<'a> {
    fn takes(&self, from: i64, to: i64, idle: [i128; 3], unlisted: i128, over: i128) -> Taken<'a> {
        let (pre_start, terminating) = (from < self.started, from >= self.terminating_from);
        let Self { pod, source, flags, .. } = *self;
        Taken { pod, from, to, pre_start, terminating, source, flags, idle, unlisted, over }
    }

    fn wants(&self, at: i64) -> i128 {
        let named: u64 = self.named.iter().filter(|(since, _)| *since <= at).map(|(_, ids)| u64::from(*ids)).sum();
        i128::from(u64::from(self.count).saturating_sub(named)) * self.unit
    }
}

/// Whether anything is held by number on the node in `window`.
pub(crate) fn is_needed(node: &NodeWorld<'_>, window: Ms) -> bool {
    let touches = |from: i64, to: i64| from < to && from < window.1 && to > window.0;
    node.counted.iter().any(|h| touches(h.bound.ms(), end_of(h)))
        || node.devices.iter().flat_map(|d| &d.holds).any(|h| touches(h.bound, h.known_from.min(h.end)))
}

/// What holdings by number took on a node, piece by piece.
pub(crate) struct Taking<'a> {
    /// How many units a whole GPU is.
    pub(crate) units: i128,
    /// In order of time, then of the claims.
    pub(crate) pieces: Vec<Taken<'a>>,
}

/// What one claim got, or did not get, during a span; in units.
pub(crate) struct Taken<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) pre_start: bool,
    pub(crate) terminating: bool,
    pub(crate) source: HoldingSource,
    pub(crate) flags: FlagSet,
    /// By [`IdleKind`].
    pub(crate) idle: [i128; 3],
    pub(crate) unlisted: i128,
    pub(crate) over: i128,
}

/// Each pod's account by number, by UID.
pub(crate) fn hour<'a>(taking: &Taking<'a>) -> Result<Vec<NumberHour<'a>>, TooFine> {
    let mut sums: BTreeMap<&str, Sums<'a>> = BTreeMap::new();
    for piece in &taking.pieces {
        sums.entry(&piece.pod.uid).or_insert_with(|| Sums::of(piece)).add(piece)?;
    }
    Ok(sums.into_values().map(|sums| sums.finish(taking.units)).collect())
}

/// What the node's holdings by number take in `window`.
pub(crate) fn take<'a>(node: &NodeWorld<'a>, devices: &[DeviceHour<'a>], window: Ms) -> Result<Taking<'a>, TooFine> {
    let mut units = 1;
    for world in &node.devices {
        units = lcm(units, i128::from(world.device.weight.den()) * i128::from(world.replicas.get()))?;
    }
    for holding in &node.counted {
        if let Held::Count { weight, .. } = holding.held {
            units = lcm(units, weight.den().into())?;
        }
    }
    let claims = claims(node, units, window)?;
    let mut idle: Vec<(Idle<'_>, i128)> = Vec::new();
    // Idle time of a node without inventory is not known, so nothing is taken from it.
    for (world, hour) in node.devices.iter().zip(devices).filter(|_| node.inventory) {
        let unit = unit_of(world, units)?;
        idle.extend(hour.idle.iter().map(|piece| (*piece, unit)));
    }

    let mut taken = Vec::new();
    for (from, to) in pieces(&claims, &idle, window) {
        let mut left = [0_i128; 3];
        for (piece, unit) in idle.iter().filter(|(piece, _)| piece.from <= from && from < piece.to) {
            left[piece.kind as usize] += i128::from(piece.ids) * unit;
        }
        for claim in claims.iter().filter(|c| c.from <= from && from < c.to) {
            let mut wanted = claim.wants(from);
            if wanted == 0 {
                continue;
            }
            let mut got = [0_i128; 3];
            for (got, left) in got.iter_mut().zip(&mut left) {
                *got = wanted.min(*left);
                *left -= *got;
                wanted -= *got;
            }
            let (unlisted, over) = if node.inventory { (0, wanted) } else { (wanted, 0) };
            taken.push(claim.takes(from, to, got, unlisted, over));
        }
    }
    Ok(Taking { units, pieces: taken })
}

/// One id of a device, in units.
fn unit_of(world: &DeviceWorld<'_>, units: i128) -> Result<i128, TooFine> {
    let weight = world.device.weight;
    let ids = i128::from(weight.den()) * i128::from(world.replicas.get());
    (units / ids).checked_mul(weight.num().into()).ok_or(TooFine)
}

/// Claims that touch `window`, by (bound, UID, device; none first).
fn claims<'a>(node: &NodeWorld<'a>, units: i128, window: Ms) -> Result<Vec<Claim<'a>>, TooFine> {
    let touches = |from: i64, to: i64| from < to && from < window.1 && to > window.0;
    let mut sorted = Vec::new();
    for holding in &node.counted {
        let (from, to) = (holding.bound.ms(), end_of(holding));
        let Held::Count { count, weight } = holding.held else { continue };
        if !touches(from, to) {
            continue;
        }
        let named = devices_of(node, &holding.pod).map(|(_, h)| (h.known_from, h.ids)).collect();
        let claim = Claim {
            pod: &holding.pod,
            from,
            to,
            started: holding.started.map_or(i64::MAX, |at| at.ms()),
            terminating_from: holding.terminating_from.map_or(i64::MAX, |at| at.ms()),
            source: holding.source,
            flags: holding.flags,
            unit: unit_of_ratio(weight, units)?,
            count,
            named,
        };
        sorted.push(((from, &holding.pod.uid, None), claim));
    }
    for world in &node.devices {
        for hold in &world.holds {
            let (from, to) = (hold.bound, hold.known_from.min(hold.end));
            let pod = &hold.holding.pod;
            if !touches(from, to) || node.counted.iter().any(|h| h.pod.uid == pod.uid && h.bound.ms() < end_of(h)) {
                continue;
            }
            let claim = Claim {
                pod,
                from,
                to,
                started: hold.started,
                terminating_from: hold.terminating_from,
                source: hold.holding.source,
                flags: hold.holding.flags,
                unit: unit_of(world, units)?,
                count: hold.ids,
                named: Vec::new(),
            };
            sorted.push(((from, &pod.uid, Some(&world.device.id)), claim));
        }
    }
    sorted.sort_by_key(|(order, _)| *order);
    Ok(sorted.into_iter().map(|(_, claim)| claim).collect())
}

fn unit_of_ratio(weight: Ratio, units: i128) -> Result<i128, TooFine> {
    (units / i128::from(weight.den())).checked_mul(weight.num().into()).ok_or(TooFine)
}

/// A pod's device records on the node, whether or not they were cut since.
fn devices_of<'n, 'a>(node: &'n NodeWorld<'a>, pod: &'n Pod) -> impl Iterator<Item = (&'n DeviceWorld<'a>, &'n Hold<'a>)> {
    let holds = node.devices.iter().flat_map(|world| world.holds.iter().map(move |hold| (world, hold)));
    holds.filter(|(_, hold)| hold.holding.pod.uid == pod.uid)
}

/// `window`, cut wherever anything changes, without the parts before the first and after the last claim.
fn pieces(claims: &[Claim<'_>], idle: &[(Idle<'_>, i128)], window: Ms) -> Vec<Ms> {
    let mut edges: Vec<i64> = vec![window.0, window.1];
    for claim in claims {
        edges.extend([claim.from, claim.to, claim.started, claim.terminating_from]);
        edges.extend(claim.named.iter().map(|(since, _)| *since));
    }
    edges.extend(idle.iter().flat_map(|(piece, _)| [piece.from, piece.to]));
    let begin = claims.iter().map(|c| c.from).min().unwrap_or(window.1).max(window.0);
    let end = claims.iter().map(|c| c.to).max().unwrap_or(window.0).min(window.1);
    edges.retain(|edge| (begin..=end).contains(edge));
    edges.sort_unstable();
    edges.dedup();
    edges.windows(2).map(|w| (w[0], w[1])).collect()
}

/// One pod's sums in unit-milliseconds.
struct Sums<'a> {
    pod: &'a Pod,
    /// By [`IdleKind`].
    got: [i128; 3],
    pre_start: i128,
    terminating: i128,
    unlisted: i128,
    over: i128,
    source: HoldingSource,
    flags: FlagSet,
}

impl<'a> Sums<'a> {
    fn of(piece: &Taken<'a>) -> Self {
        Self {
            pod: piece.pod,
            got: [0; 3],
            pre_start: 0,
            terminating: 0,
            unlisted: 0,
            over: 0,
            source: piece.source,
            flags: FlagSet::EMPTY,
        }
    }

    fn add(&mut self, piece: &Taken<'_>) -> Result<(), TooFine> {
        let ms = i128::from(piece.to - piece.from);
        let unlisted = piece.unlisted.checked_mul(ms).ok_or(TooFine)?;
        let mut held = unlisted;
        self.unlisted += unlisted;
        for (sum, got) in self.got.iter_mut().zip(piece.idle) {
            let unit_ms = got.checked_mul(ms).ok_or(TooFine)?;
            *sum += unit_ms;
            held += unit_ms;
        }
        self.pre_start += if piece.pre_start { held } else { 0 };
        self.terminating += if piece.terminating { held } else { 0 };
        self.over += piece.over.checked_mul(ms).ok_or(TooFine)?;
        self.source = self.source.min(piece.source);
        self.flags.extend(piece.flags);
        Ok(())
    }

    fn finish(self, units: i128) -> NumberHour<'a> {
        let [free, calm, unready] = self.got;
        let of = |sum| Frac::new(sum, units);
        NumberHour {
            pod: self.pod,
            held: of(free + calm + unready + self.unlisted),
            from_free: of(free),
            from_unavailable: of(calm + unready),
            pre_start: of(self.pre_start),
            terminating: of(self.terminating),
            on_unready: of(self.got[IdleKind::Unready as usize]),
            unlisted: of(self.unlisted),
            over: of(self.over),
            source: self.source,
            flags: self.flags,
        }
    }
}
