//! One device in one hour: who held how much of it when, and what nobody held (rules A2, A3, A7).
//!
//! Time is counted in id-milliseconds: a device with R replicas has R of them each millisecond.

use schemas::status::HoldingSource;

use crate::{
    input::Text,
    row::{Flag, FlagSet},
    span::{self, Ms},
    world::{DeviceWorld, Hold},
};

/// What became of a device's time in a window.
pub(crate) struct DeviceHour<'a> {
    /// In the inventory and not split into instances, in milliseconds.
    pub(crate) usable_ms: i64,
    /// Those with time, by UID.
    pub(crate) owners: Vec<OwnerTime>,
    /// Nobody's, on a device that nobody holds.
    pub(crate) unheld: i64,
    /// Nobody's, beside a holder.
    pub(crate) slack: i64,
    /// Nobody's and not to be given, by reason.
    pub(crate) unavailable: Vec<(&'a Text, i64)>,
    /// The same three, as pieces in order of time.
    pub(crate) idle: Vec<Idle<'a>>,
}

/// Why ids are free: nobody holds the device.
pub(crate) const UNHELD: &str = "unheld";
/// Why ids are free: nobody holds them beside a holder of others.
pub(crate) const SHARED_SLACK: &str = "shared_slack";

/// One owner's time on the device, in id-milliseconds.
pub(crate) struct OwnerTime {
    /// Index in the device's owners.
    pub(crate) owner: usize,
    pub(crate) held: i64,
    pub(crate) pre_start: i64,
    pub(crate) terminating: i64,
    pub(crate) on_unready: i64,
    /// When it held how many ids, in order of time.
    pub(crate) stretches: Vec<Stretch>,
    pub(crate) source: HoldingSource,
    pub(crate) flags: FlagSet,
}

/// A span in which an owner holds the same number of ids.
#[derive(Clone, Copy)]
pub(crate) struct Stretch {
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) ids: u32,
    /// How many of the ids have not started, are terminating, are on an unready device.
    pub(crate) memos: [u32; 3],
}

/// Ids of the device that nobody holds during a span.
#[derive(Clone, Copy)]
pub(crate) struct Idle<'a> {
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) ids: u32,
    pub(crate) kind: IdleKind,
    pub(crate) reason: &'a str,
}

/// Why nobody holds them, in the order in which holdings by number take from them (A16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IdleKind {
    /// Ready to be given.
    Free,
    /// Unavailable without being unready: `cordoned`, `maintenance`.
    Calm,
    /// Unavailable and unready.
    Unready,
}

/// A reason that makes unheld time unavailable but is no unready time.
fn is_calm(reason: &str) -> bool {
    matches!(reason, "cordoned" | "maintenance")
}

/// The device's account in `window`, a part of one hour.
pub(crate) fn hour<'a>(world: &DeviceWorld<'a>, window: Ms) -> DeviceHour<'a> {
    let replicas = world.replicas.get();
    let touches = |&(from, to): &Ms| from < window.1 && to > window.0;
    let usable: Vec<Ms> = span::clip(&world.usable, window).collect();
    let holds: Vec<&Hold<'_>> = world.holds.iter().filter(|h| touches(&(h.known_from, h.end)) && h.known_from < h.end).collect();
    let unavailable: Vec<&(Ms, &Text)> = world.unavailable.iter().filter(|(span, _)| touches(span)).collect();

    let mut hour =
        DeviceHour { usable_ms: 0, owners: Vec::new(), unheld: 0, slack: 0, unavailable: Vec::new(), idle: Vec::new() };
    for (from, to) in pieces(&usable, &holds, &unavailable) {
        let ms = to - from;
        hour.usable_ms += ms;
        let mut active = unavailable.iter().filter(|((begin, end), _)| *begin <= from && from < *end).peekable();
        let named = active.peek().map(|(_, reason)| *reason);
        let unready = active.any(|(_, reason)| !is_calm(reason));

        let mut held = 0_u32; // clamping keeps the sum within the replicas
        for hold in holds.iter().filter(|h| h.holds_at(from)) {
            held += hold.ids;
            let owner = owner_time(&mut hour.owners, hold);
            let memos = [from < hold.started, from >= hold.terminating_from, unready].map(|is| if is { hold.ids } else { 0 });
            owner.held += i64::from(hold.ids) * ms;
            for (sum, ids) in [&mut owner.pre_start, &mut owner.terminating, &mut owner.on_unready].into_iter().zip(memos) {
                *sum += i64::from(ids) * ms;
            }
            owner.flags.extend(hold.holding.flags);
            let cut_here = hold.cut.is_some_and(|cut| window.0 < cut && cut <= window.1); // its last millisecond
            owner.flags = owner.flags.with(Flag::EndClamped, cut_here);
            match owner.stretches.last_mut() {
                Some(last) if last.from == from => {
                    last.ids += hold.ids;
                    last.memos.iter_mut().zip(memos).for_each(|(sum, ids)| *sum += ids);
                }
                _ => owner.stretches.push(Stretch { from, to, ids: hold.ids, memos }),
            }
        }
        if held < replicas {
            let ids = replicas - held;
            let id_ms = i64::from(ids) * ms;
            let (kind, reason) = match named {
                Some(reason) => {
                    add_reason(&mut hour.unavailable, reason, id_ms);
                    (if unready { IdleKind::Unready } else { IdleKind::Calm }, &**reason)
                }
                None if held > 0 => {
                    hour.slack += id_ms;
                    (IdleKind::Free, SHARED_SLACK)
                }
                None => {
                    hour.unheld += id_ms;
                    (IdleKind::Free, UNHELD)
                }
            };
            hour.idle.push(Idle { from, to, ids, kind, reason });
        }
    }
    for owner in &mut hour.owners {
        owner.flags = owner.flags.with(Flag::Shared, replicas > 1).with(Flag::ReplicasInferred, world.replicas_inferred);
    }
    hour
}

/// The usable time, cut wherever anything changes.
fn pieces(usable: &[Ms], holds: &[&Hold<'_>], unavailable: &[&(Ms, &Text)]) -> Vec<Ms> {
    let mut edges: Vec<i64> = Vec::with_capacity(4 * holds.len() + 2 * unavailable.len());
    for hold in holds {
        edges.extend([hold.known_from, hold.end, hold.started, hold.terminating_from]);
    }
    for ((from, to), _) in unavailable {
        edges.extend([*from, *to]);
    }
    edges.sort_unstable();
    edges.dedup();
    let mut pieces = Vec::with_capacity(edges.len() + usable.len());
    for &(mut from, to) in usable {
        let inside = edges.partition_point(|edge| *edge <= from);
        for &edge in edges[inside..].iter().take_while(|edge| **edge < to) {
            pieces.push((from, edge));
            from = edge;
        }
        pieces.push((from, to));
    }
    pieces
}

fn owner_time<'o>(owners: &'o mut Vec<OwnerTime>, hold: &Hold<'_>) -> &'o mut OwnerTime {
    let (owner, source) = (hold.owner, hold.holding.source);
    let at = match owners.binary_search_by_key(&owner, |o| o.owner) {
        Ok(at) => at,
        Err(at) => {
            let nothing = OwnerTime {
                owner,
                held: 0,
                pre_start: 0,
                terminating: 0,
                on_unready: 0,
                stretches: Vec::new(),
                source,
                flags: FlagSet::EMPTY,
            };
            owners.insert(at, nothing);
            at
        }
    };
    owners[at].source = owners[at].source.min(source);
    &mut owners[at]
}

fn add_reason<'a>(reasons: &mut Vec<(&'a Text, i64)>, reason: &'a Text, id_ms: i64) {
    match reasons.binary_search_by_key(&reason, |(r, _)| *r) {
        Ok(at) => reasons[at].1 += id_ms,
        Err(at) => reasons.insert(at, (reason, id_ms)),
    }
}
