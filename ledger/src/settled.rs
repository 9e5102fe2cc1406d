//! Settled holdings: what an hour's account is made of before anything is seen or rounded, for those who compute the rows in SQL.
//!
//! ```text
//! world, device, by_number ──settled──> pieces of time, clamped, cut to presence, names known ──SQL, with samples and scrapes──> hour rows
//! ```
//!
//! An hour's rows and its samples and scrapes, with those of one horizon before it, are enough for the hour. All that needs
//! recursion (clamping, what holdings by number take, common denominators) is done here; what is left to SQL are joins,
//! sums and ranks over whole numbers.

use std::sync::Arc;

use schemas::{Timestamp, status::HoldingSource};

use crate::{
    by_number::{Taken, Taking},
    device::{DeviceHour, Idle, IdleKind, OwnerTime},
    fraction::lcm,
    input::{Pod, Ratio, Rules, Telemetry, Text},
    rounding::{MIG_ORPHAN, shared_labels},
    row::{Flag, FlagSet, Place},
    span::{self, Ms},
    world::{DeviceWorld, NodeWorld, SplitGpu},
};

/// Largest product of the two denominators of a row: an hour of it, in parts per million, stays far below 128 bits in any engine.
const MAX_PARTS: i128 = 1_000_000_000_000_000_000;

/// One row of `settled_holdings`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledRow {
    /// The UTC hour, by its start.
    pub hour_start: Timestamp,
    /// Where.
    pub place: Arc<Place>,
    /// Start of the piece.
    pub from: Timestamp,
    /// First instant after it.
    pub to: Timestamp,
    /// What it is.
    pub what: Settled,
    /// How its time is counted.
    pub measure: Arc<Measure>,
}

/// What holds for all rows of a device and hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measure {
    /// How samples are read.
    pub rules: Rules,
    /// Whether there can be any.
    pub telemetry: Telemetry,
    /// Replica ids of the device; none without a device.
    pub replicas: Option<u32>,
    /// Compute share of a whole GPU, as numerator and denominator; none without a device.
    pub weight: Option<(i64, i64)>,
    /// One id for a millisecond, in parts of a whole GPU millisecond; none without a device.
    pub unit_num: Option<i64>,
    /// How many parts a whole GPU millisecond is; none where 64 bits do not hold it.
    pub unit_den: Option<i64>,
    /// Common multiple of the numbers of pods that samples are split between; none where 64 bits do not hold it.
    pub split_lcm: Option<i64>,
}

/// What a row of `settled_holdings` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The device is listed; its samples are answers of the node. The span is the hour's.
    Device,
    /// A pod holds the device, whether or not the device is present; from one horizon before the hour on.
    Held {
        /// The pod's UID.
        pod_uid: Text,
        /// How many pods hold the device at the time.
        pods: u32,
    },
    /// A pod's ids of a device.
    Owner {
        /// The pod.
        pod: Arc<Pod>,
        /// Since when it has held the device without a break.
        held_from: Timestamp,
        /// How many ids.
        ids: u32,
        /// How many of them have not started, are terminating, are on an unready device.
        memos: [u32; 3],
        /// Whose word the allocation is: the first of the owner's hour.
        source: HoldingSource,
        /// What is to be said of the owner's hour.
        flags: FlagSet,
    },
    /// Ids that nobody holds and that may be given.
    Free {
        /// Why.
        reason: Text,
        /// How many.
        ids: u32,
        /// `no_inventory`, or nothing.
        flags: FlagSet,
    },
    /// Ids that nobody holds and that may not be given.
    Unavailable {
        /// Why.
        reason: Text,
        /// How many.
        ids: u32,
        /// What MIG instances leave over, and no id of the device itself.
        orphan: bool,
        /// `no_inventory`, or nothing.
        flags: FlagSet,
    },
    /// What a holding by number takes, in parts of a whole GPU; none where 64 bits do not hold it.
    Number {
        /// The pod.
        pod: Arc<Pod>,
        /// Its containers have not started.
        pre_start: bool,
        /// Its deletion was asked for.
        terminating: bool,
        /// From free time, from calm and from unready unavailable time, on a node without inventory, and beyond what there is.
        taken: [Option<i64>; 5],
        /// Whose word it is.
        source: HoldingSource,
        /// What is to be said of it.
        flags: FlagSet,
    },
}

/// A node's hour as the account has it.
pub(crate) struct NodeHour<'n, 'a> {
    pub(crate) node: &'n NodeWorld<'a>,
    pub(crate) start: Timestamp,
    pub(crate) part: Ms,
    pub(crate) rules: &'n Rules,
    pub(crate) devices: &'n [DeviceHour<'a>],
    /// Of each device: a common multiple of the numbers of pods of its samples.
    pub(crate) splits: &'n [Option<i128>],
    pub(crate) taking: Option<Taking<'a>>,
}

/// Appends a node's rows of one hour.
pub(crate) fn node_hour(hour: &NodeHour<'_, '_>, rows: &mut Vec<SettledRow>) {
    let dens = denominators(hour.node);
    for (i, world) in hour.node.devices.iter().enumerate() {
        let measure = Arc::new(hour.measure(world, dens[i], hour.splits[i]));
        device_rows(hour, world, &hour.devices[i], &measure, rows);
    }
    for gpu in &hour.node.split_gpus {
        orphan_rows(hour, gpu, dens[gpu.instances[0]], rows);
    }
    if let Some(taking) = &hour.taking {
        number_rows(hour, taking, rows);
    }
}

/// Each device's denominator: a GPU and its instances have one together.
fn denominators(node: &NodeWorld<'_>) -> Vec<Option<i128>> {
    let own = |world: &DeviceWorld<'_>| i128::from(world.device.weight.den()) * i128::from(world.replicas.get());
    let mut dens: Vec<Option<i128>> = node.devices.iter().map(|world| Some(own(world))).collect();
    for gpu in &node.split_gpus {
        let members = || gpu.instances.iter().copied().chain(gpu.listed);
        let common = members().try_fold(1, |all, i| lcm(all, dens[i]?).ok());
        members().for_each(|i| dens[i] = common);
    }
    dens
}

fn small(number: Option<i128>) -> Option<i64> {
    i64::try_from(number?).ok()
}

/// `weight` of a GPU in parts of it.
fn parts_of(weight: Ratio, den: i128) -> i128 {
    den / i128::from(weight.den()) * i128::from(weight.num())
}

impl NodeHour<'_, '_> {
    fn measure(&self, world: &DeviceWorld<'_>, den: Option<i128>, split: Option<i128>) -> Measure {
        let weight = world.device.weight;
        let fits = den.zip(split).is_some_and(|(den, split)| den.checked_mul(split).is_some_and(|parts| parts <= MAX_PARTS));
        let unit = den.map(|den| parts_of(weight, den) / i128::from(world.replicas.get()));
        Measure {
            rules: *self.rules,
            telemetry: world.device.telemetry,
            replicas: Some(world.replicas.get()),
            weight: Some((weight.num().into(), weight.den().into())),
            unit_num: small(unit),
            unit_den: small(den),
            split_lcm: small(split.filter(|_| fits)),
        }
    }

    fn row(&self, place: &Arc<Place>, measure: &Arc<Measure>, (from, to): Ms, what: Settled) -> SettledRow {
        SettledRow {
            hour_start: self.start,
            place: place.clone(),
            from: Timestamp::from_ms(from),
            to: Timestamp::from_ms(to),
            what,
            measure: measure.clone(),
        }
    }
}

fn device_rows(
    hour: &NodeHour<'_, '_>,
    world: &DeviceWorld<'_>,
    account: &DeviceHour<'_>,
    measure: &Arc<Measure>,
    rows: &mut Vec<SettledRow>,
) {
    let mut push = |span, what| rows.push(hour.row(&world.place, measure, span, what));
    push(hour.part, Settled::Device);
    for OwnerTime { owner, stretches, source, flags, .. } in &account.owners {
        let runs = &world.owners[*owner].runs;
        let pod = Arc::new(world.owners[*owner].pod.clone());
        let flags = flags.with(Flag::NoInventory, !hour.node.inventory);
        for stretch in stretches {
            let held_from = span::holding(runs, stretch.from).map_or(stretch.from, |run| run.0);
            let what = Settled::Owner {
                pod: pod.clone(),
                held_from: Timestamp::from_ms(held_from),
                ids: stretch.ids,
                memos: stretch.memos,
                source: *source,
                flags,
            };
            push((stretch.from, stretch.to), what);
        }
    }
    let flags = unlisted(hour);
    for Idle { from, to, ids, kind, reason } in account.idle.iter().copied() {
        let what = match kind {
            IdleKind::Free => Settled::Free { reason: reason.into(), ids, flags },
            IdleKind::Calm | IdleKind::Unready => Settled::Unavailable { reason: reason.into(), ids, orphan: false, flags },
        };
        push((from, to), what);
    }
    let reach = (hour.part.0.saturating_sub(hour.node.horizon_ms), hour.part.1);
    for (span, owner, pods) in holders(world, reach) {
        push(span, Settled::Held { pod_uid: world.owners[owner].pod.uid.clone(), pods });
    }
}

/// What is said of time that nobody holds: whether it becomes no hour row, because nobody knows what the node has.
fn unlisted(hour: &NodeHour<'_, '_>) -> FlagSet {
    FlagSet::EMPTY.with(Flag::NoInventory, !hour.node.inventory)
}

/// Who held the device when, and beside how many, in `reach`; not cut to its presence.
fn holders(world: &DeviceWorld<'_>, reach: Ms) -> Vec<(Ms, usize, u32)> {
    let runs = || world.owners.iter().enumerate().flat_map(|(i, owner)| span::clip(&owner.runs, reach).map(move |run| (run, i)));
    let mut edges: Vec<i64> = runs().flat_map(|((from, to), _)| [from, to]).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut counts: Vec<(Ms, u32)> = Vec::new();
    for edge in edges.windows(2) {
        let pods = u32::try_from(world.owners_at(edge[0]).count()).unwrap_or(u32::MAX);
        match counts.last_mut() {
            Some((span, last)) if *last == pods && span.1 == edge[0] => span.1 = edge[1],
            _ => counts.push(((edge[0], edge[1]), pods)),
        }
    }
    let mut held = Vec::new();
    for ((from, to), owner) in runs() {
        let first = counts.partition_point(|(span, _)| span.1 <= from);
        for ((begin, end), pods) in counts[first..].iter().take_while(|(span, _)| span.0 < to) {
            held.push((((*begin).max(from), (*end).min(to)), owner, *pods));
        }
    }
    held
}

/// What the instances of a GPU leave over, piece by piece.
fn orphan_rows(hour: &NodeHour<'_, '_>, gpu: &SplitGpu<'_>, den: Option<i128>, rows: &mut Vec<SettledRow>) {
    let node = hour.node;
    let split: Vec<Ms> = span::clip(&gpu.split, hour.part).collect();
    let mut edges: Vec<i64> = split.iter().flat_map(|(from, to)| [*from, *to]).collect();
    for i in &gpu.instances {
        edges.extend(span::clip(&node.devices[*i].present, hour.part).flat_map(|(from, to)| [from, to]));
    }
    edges.sort_unstable();
    edges.dedup();
    let place = match gpu.listed {
        Some(listed) => node.devices[listed].place.clone(),
        None => {
            let labels = shared_labels(node.name, gpu.instances.iter().map(|i| &node.devices[*i].place));
            Arc::new(Place { device: Some(gpu.id.clone()), ..labels })
        }
    };
    for edge in edges.windows(2).filter(|edge| span::holding(&split, edge[0]).is_some()) {
        let present =
            gpu.instances.iter().map(|i| &node.devices[*i]).filter(|world| span::holding(&world.present, edge[0]).is_some());
        let left = den.map(|den| den - present.map(|world| parts_of(world.device.weight, den)).sum::<i128>());
        if left == Some(0) {
            continue;
        }
        let measure = Arc::new(Measure {
            rules: *hour.rules,
            telemetry: Telemetry::Present,
            replicas: Some(1),
            weight: small(left).zip(small(den)),
            unit_num: small(left),
            unit_den: small(den),
            split_lcm: Some(1),
        });
        let what = Settled::Unavailable { reason: MIG_ORPHAN.into(), ids: 1, orphan: true, flags: unlisted(hour) };
        rows.push(hour.row(&place, &measure, (edge[0], edge[1]), what));
    }
}

fn number_rows(hour: &NodeHour<'_, '_>, taking: &Taking<'_>, rows: &mut Vec<SettledRow>) {
    let place = Arc::new(shared_labels(hour.node.name, hour.node.devices.iter().map(|world| &world.place)));
    let measure = Arc::new(Measure {
        rules: *hour.rules,
        telemetry: Telemetry::Present,
        replicas: None,
        weight: None,
        unit_num: None,
        unit_den: small(Some(taking.units)),
        split_lcm: Some(1),
    });
    for piece in &taking.pieces {
        let Taken { pod, from, to, pre_start, terminating, source, flags, idle: [free, calm, unready], unlisted, over } = *piece;
        let taken = [free, calm, unready, unlisted, over].map(|parts| small(Some(parts)));
        let flags = flags.with(Flag::NoInventory, !hour.node.inventory);
        let what = Settled::Number { pod: Arc::new(pod.clone()), pre_start, terminating, taken, source, flags };
        rows.push(hour.row(&place, &measure, (from, to), what));
    }
}
