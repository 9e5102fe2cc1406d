//! The truth of a window: who held what, and what it did, in the columns of `gpu_hours` (rule S3).
//!
//! A holding counts between its API times (whole seconds), as rule A3 counts it; [`truth_holdings`] has the exact times
//! beside them. Within it, activity is integrated exactly: no sampling, nothing unobserved but what nobody reads.
//!
//! What is not a whole millisecond (MIG instances, replicas) is a fraction until the hour is summed, and is rounded as rule
//! A15 rounds it: a GPU to its instances and the orphan, a device to its owners and the rest, an owner to its parts.

mod holdings;
mod share;
mod table;
mod waste;

use std::collections::BTreeMap;

use arrow::{array::RecordBatch, error::ArrowError};
use schemas::{
    HOUR_MS, Timestamp, Window,
    status::{RowKind, Tier},
    tables,
};

pub use self::holdings::{TruthHolding, truth_holdings};
use self::share::{nearest, share_out};
pub use self::waste::{Waste, truth_waste};
use crate::{
    plan::{Binding, BoardPlan, DevicePlan, DeviceRef, NodePlan, Plan, api_second},
    schedule,
};

/// One row: a device's hour with one owner, or the part of it that nobody held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TruthRow {
    /// The UTC hour, by its start.
    pub hour_start: Timestamp,
    /// The device; of an orphan the first instance of its GPU.
    pub device: DeviceRef,
    /// What the instances of a GPU leave over, and no device.
    pub orphan: bool,
    /// Owner, free or unavailable.
    pub kind: RowKind,
    /// Why nobody held it; none for an owner.
    pub reason: Option<&'static str>,
    /// The owner: index of [`Plan::pods`].
    pub pod: Option<usize>,
    /// Its milliseconds of a whole GPU.
    pub ms: i64,
    /// Whether anybody could read the device.
    pub observed: bool,
    /// Exact integral of each tier's activity that is the owner's, ppm x ms x [`TruthRow::parts`]; not rounded.
    pub exact: [i128; 3],
    /// How many parts `exact` has to the ppm x ms of a whole GPU.
    pub parts: i128,
    /// Activity beyond the owner's share, by tier; beside the sum.
    pub over_share_ms: [i64; 3],
    /// Part of `ms` before the containers started.
    pub pre_start_ms: i64,
    /// Part of `ms` after deletion was asked for.
    pub terminating_ms: i64,
    /// Part of `ms` while the node was not ready.
    pub on_unready_ms: i64,
    /// Time of an instance, not weighted.
    pub held_profile_ms: i64,
    /// Energy drawn, microjoules; shared equally among those that held the device.
    pub energy_uj: Option<i64>,
    /// Memory used, MiB x ms; shared likewise.
    pub fb_mib_ms: Option<i64>,
    shared: bool,
    over: bool,
}

impl TruthRow {
    /// Utilized time of `tier`, milliseconds: the exact integral to the nearest, halves up; the rest of `ms` is stranded.
    pub fn utilized_ms(&self, tier: Tier) -> i64 {
        nearest(self.exact[tier as usize], self.parts * PPM).min(self.ms)
    }

    /// The id of the device, or of the GPU whose instances leave this over.
    pub fn device_id<'a>(&self, plan: &'a Plan) -> &'a str {
        if self.orphan { &plan.board(self.device).uuid } else { &plan.device(self.device).id }
    }

    /// What else is to be said of it, as the ledger says it.
    pub fn flags(&self) -> &'static str {
        match (self.shared, self.over) {
            (true, true) => "over_share,shared",
            (true, false) => "shared",
            (false, _) => "",
        }
    }
}

const PPM: i128 = 1_000_000;

/// Why there is no truth.
#[derive(Debug, thiserror::Error)]
pub enum TruthError {
    /// The fleet is not planned there.
    #[error("the fleet is planned from {start} to {end}; ask for a window inside that")]
    Outside {
        /// The fleet's start.
        start: Timestamp,
        /// Its end.
        end: Timestamp,
    },
    /// The columns did not make a batch.
    #[error("cannot build the truth's record batch")]
    Batch(#[from] ArrowError),
}

/// The truth of `window` as table `truth_gpu_hours`: [`truth_rows`] with every column.
pub fn truth(plan: &Plan, window: Window) -> Result<RecordBatch, TruthError> {
    let rows = truth_rows(plan, window)?;
    let table = tables::get("truth_gpu_hours");
    let columns = table.columns.iter().map(|column| table::column_of(plan, &rows, &column.name, column.kind)).collect();
    Ok(RecordBatch::try_new(table.schema(), columns)?)
}

/// Rows of `window`, by hour, cluster, node, device, kind and name. `ms` of a GPU's rows is the window's length, those of the
/// board that came in its place counted.
pub fn truth_rows(plan: &Plan, window: Window) -> Result<Vec<TruthRow>, TruthError> {
    let whole = plan.window();
    if whole.clip(window) != Some(window) {
        return Err(TruthError::Outside { start: whole.from(), end: whole.to() });
    }
    let mut rows = Vec::new();
    for (index, node) in plan.nodes().iter().enumerate() {
        for hour in window.hours() {
            let part = Window::new(hour, hour.plus_ms(HOUR_MS)).ok().and_then(|whole| window.clip(whole));
            let Some(part) = part else { continue };
            for board in &node.boards {
                let (from, to) = (part.from().ms().max(board.from), part.to().ms().min(board.to));
                if from < to {
                    board_rows(&Place { plan, index, node, hour, from, to }, board, &mut rows);
                }
            }
        }
    }
    let key = |row: &TruthRow| {
        let node = &plan.nodes()[row.device.node];
        let uid = row.pod.map(|pod| &*plan.pods()[pod].uid);
        (row.hour_start, &*node.cluster, &*node.name, row.device_id(plan), row.kind.as_str(), row.reason, uid)
    };
    rows.sort_by(|a, b| key(a).cmp(&key(b)));
    Ok(rows)
}

/// A node in the part of an hour that lies in the window.
struct Place<'a> {
    plan: &'a Plan,
    index: usize,
    node: &'a NodePlan,
    hour: Timestamp,
    from: i64,
    to: i64,
}

impl Place<'_> {
    fn row(&self, device: usize, kind: RowKind, reason: Option<&'static str>, pod: Option<usize>, ms: i64) -> TruthRow {
        TruthRow {
            hour_start: self.hour,
            device: DeviceRef { node: self.index, gpu: device },
            orphan: false,
            kind,
            reason,
            pod,
            ms,
            observed: true,
            exact: [0; 3],
            parts: 1,
            over_share_ms: [0; 3],
            pre_start_ms: 0,
            terminating_ms: 0,
            on_unready_ms: 0,
            held_profile_ms: 0,
            energy_uj: None,
            fb_mib_ms: None,
            shared: false,
            over: false,
        }
    }
}

/// Level 1: a GPU to its instances and what they leave over.
fn board_rows(place: &Place<'_>, board: &BoardPlan, rows: &mut Vec<TruthRow>) {
    let whole = place.to - place.from;
    let mut order: Vec<usize> = board.devices.clone().collect();
    order.sort_by(|a, b| place.node.devices[*a].id.cmp(&place.node.devices[*b].id));
    let weight = |device: &usize| {
        let (num, den) = place.node.devices[*device].weight;
        (i128::from(num), i128::from(den))
    };
    let den = order.first().map_or(1, |first| weight(first).1);
    let mut parts: Vec<i128> = order.iter().map(|device| weight(device).0 * i128::from(whole)).collect();
    parts.push(den * i128::from(whole) - parts.iter().sum::<i128>());
    let shares = share_out(whole, &parts, den);
    for (device, share) in order.iter().zip(&shares) {
        device_rows(place, *device, *share, rows);
    }
    if parts.last().is_some_and(|orphan| *orphan > 0) {
        let ms = shares.last().copied().unwrap_or(0);
        let row = place.row(board.devices.start, RowKind::Unavailable, Some("mig_orphan"), None, ms);
        rows.push(TruthRow { orphan: true, ..row });
    }
}

/// One owner's hour on a device, in exact parts.
#[derive(Default)]
struct Own {
    held: i128,
    pre_start: i128,
    terminating: i128,
    on_unready: i128,
    /// The device's time with it, not weighted, ms x ids.
    id_ms: i64,
    exact: [i128; 3],
    over: [i128; 3],
    energy: i128,
    fb: i128,
}

/// Who holds a device, by the API, and which part of it.
struct Holder<'a> {
    pod: usize,
    ids: u32,
    binding: &'a Binding,
    from: i64,
    to: i64,
}

/// Level 2 and 3: a device's `capacity` to its owners and what nobody held, and an owner's time to its parts.
fn device_rows(place: &Place<'_>, index: usize, capacity: i64, rows: &mut Vec<TruthRow>) {
    let device = &place.node.devices[index];
    let holders = holders(place, device);
    let hour = Account { place, device, holders: &holders, replicas: place.node.replicas }.sum();
    let mut owners: Vec<(&usize, &Own)> = hour.owners.iter().collect();
    owners.sort_by_key(|(pod, _)| &place.plan.pods()[**pod].uid);
    let nobody = || hour.free.iter().chain(&hour.unavailable);
    let parts: Vec<i128> = owners.iter().map(|(_, own)| own.held).chain(nobody().map(|(_, part)| *part)).collect();
    let mut shares = share_out(capacity, &parts, hour.parts).into_iter();
    for (pod, own) in owners {
        let ms = shares.next().unwrap_or(0);
        let memo = |part: i128| share_out(ms, &[part, own.held - part], hour.parts)[0];
        let observed = device.track.is_some();
        let row = place.row(index, RowKind::Owner, None, Some(*pod), ms);
        rows.push(TruthRow {
            observed,
            exact: own.exact,
            parts: hour.parts,
            over_share_ms: own.over.map(|over| nearest(over, hour.parts * PPM)),
            pre_start_ms: memo(own.pre_start),
            terminating_ms: memo(own.terminating),
            on_unready_ms: memo(own.on_unready),
            held_profile_ms: if device.instance.is_some() { own.id_ms } else { 0 },
            energy_uj: observed.then(|| nearest(own.energy, hour.parts)),
            fb_mib_ms: observed.then(|| nearest(own.fb, hour.parts)),
            shared: place.node.replicas > 1,
            over: own.over.iter().any(|over| *over > 0),
            ..row
        });
    }
    for ((reason, part), kind) in hour
        .free
        .iter()
        .map(|free| (free, RowKind::Free))
        .chain(hour.unavailable.iter().map(|unavailable| (unavailable, RowKind::Unavailable)))
    {
        let ms = shares.next().unwrap_or(0);
        if *part > 0 {
            rows.push(place.row(index, kind, Some(reason), None, ms));
        }
    }
}

/// The holders of a device in the place's time, by the API's seconds.
fn holders<'a>(place: &Place<'a>, device: &'a DevicePlan) -> Vec<Holder<'a>> {
    // By the kubelet's word one may begin after the hour that was bound in it.
    let last = device.held.partition_point(|held| held.named < place.to + schedule::NAMING_MS.1);
    let before = device.held.partition_point(|held| held.named <= place.from);
    let first = device.held[..before].last().map_or(0, |held| held.since as usize);
    let mut found = Vec::new();
    for held in &device.held[first..last] {
        let Some(binding) = &place.plan.pods()[held.pod].bound else { continue };
        let from = api_second(binding.bound).max(place.from);
        let to = api_second(binding.ended).min(place.to);
        if from < to {
            found.push(Holder { pod: held.pod, ids: held.ids, binding, from, to });
        }
    }
    found
}

/// What a device's time comes to, in parts of a whole GPU's millisecond.
struct Sum {
    /// How many parts a whole GPU's millisecond has.
    parts: i128,
    owners: BTreeMap<usize, Own>,
    free: Vec<(&'static str, i128)>,
    unavailable: Vec<(&'static str, i128)>,
}

struct Account<'a> {
    place: &'a Place<'a>,
    device: &'a DevicePlan,
    holders: &'a [Holder<'a>],
    replicas: u32,
}

impl Account<'_> {
    /// Sums piece by piece: between two edges the same pods hold the device, and it is free or unavailable for one reason.
    fn sum(&self) -> Sum {
        let (num, den) = (i128::from(self.device.weight.0), i128::from(self.device.weight.1));
        // Activity is divided by the number of holders, at most one for each replica.
        let among: i128 = (1..=i128::from(self.replicas)).fold(1, share::lcm);
        let replicas = i128::from(self.replicas);
        let mut sum = Sum {
            parts: den * replicas * among,
            owners: BTreeMap::new(),
            free: vec![("shared_slack", 0), ("unheld", 0)],
            unavailable: Vec::new(),
        };
        let mut unavailable: BTreeMap<&'static str, i128> = BTreeMap::new();
        let id = num * among;
        for (from, to) in self.pieces() {
            let length = i128::from(to - from);
            let here: Vec<&Holder<'_>> = self.holders.iter().filter(|h| h.from <= from && from < h.to).collect();
            let held: u32 = here.iter().map(|holder| holder.ids).sum();
            let idle = i128::from(self.replicas.saturating_sub(held)) * id * length;
            match self.reason(from) {
                Some(reason) if idle > 0 => *unavailable.entry(reason).or_default() += idle,
                _ => sum.free[usize::from(here.is_empty())].1 += idle,
            }
            for holder in &here {
                let own = sum.owners.entry(holder.pod).or_default();
                let part = i128::from(holder.ids) * id * length;
                let when = |yes: bool| if yes { part } else { 0 };
                own.held += part;
                own.id_ms += i64::from(holder.ids) * (to - from);
                own.pre_start += when(holder.binding.started.is_none_or(|started| from < api_second(started)));
                own.terminating += when(holder.binding.terminating.is_some_and(|asked| api_second(asked) <= from));
                own.on_unready += when(self.unready(from));
            }
            self.activity(from, to, &here, num, among, &mut sum.owners);
        }
        sum.unavailable = unavailable.into_iter().collect();
        sum
    }

    /// Spans of the place's time between the edges of holders and of the node's spells.
    fn pieces(&self) -> Vec<(i64, i64)> {
        let (from, to) = (self.place.from, self.place.to);
        let mut edges = vec![from, to];
        for holder in self.holders {
            let binding = holder.binding;
            edges.extend([holder.from, holder.to]);
            edges.extend([binding.started, binding.terminating].into_iter().flatten().map(api_second));
        }
        edges.extend(self.place.node.spells.iter().flat_map(|spell| [spell.from, spell.to]));
        edges.retain(|at| from <= *at && *at <= to);
        edges.sort_unstable();
        edges.dedup();
        edges.windows(2).map(|two| (two[0], two[1])).collect()
    }

    /// Why the node cannot give what it has at `at`: the reason that began first, then by the alphabet.
    fn reason(&self, at: i64) -> Option<&'static str> {
        let spells = self.place.node.spells.iter().filter(|spell| spell.holds(at));
        spells.filter_map(|spell| Some((spell.from, spell.unavailable()?))).min().map(|(_, reason)| reason)
    }

    fn unready(&self, at: i64) -> bool {
        self.place.node.spells.iter().any(|spell| spell.holds(at) && matches!(spell.unavailable(), Some("not_ready" | "lost")))
    }

    /// Adds what the device does in a piece to those that hold it: equal parts, each up to its share.
    fn activity(&self, from: i64, to: i64, here: &[&Holder<'_>], num: i128, among: i128, owners: &mut BTreeMap<usize, Own>) {
        let plan = self.place.plan;
        let (Some(track), Some(first)) = (&self.device.track, here.first()) else { return };
        let (Some(begin), Some(end)) = (plan.integrals(self.device, from), plan.integrals(self.device, to)) else { return };
        let all = end.minus(begin);
        let idle_uj = i128::from(track.build.idle_mw) * i128::from(to - from);
        let (den, replicas) = (i128::from(self.device.weight.1), i128::from(self.replicas));
        let pods = here.len() as i128;
        // Energy and memory are the device's own: its weight is in them already, but for the idle board's.
        let equal = |whole: i128| whole * replicas * among / pods;
        for holder in here {
            let own = owners.entry(holder.pod).or_default();
            own.energy += equal(i128::from(all.energy_uj) * den + idle_uj * num);
            own.fb += equal(i128::from(all.fb_mib_ms) * den);
        }
        if self.replicas == 1 {
            let own = owners.entry(first.pod).or_default();
            for (sum, part) in own.exact.iter_mut().zip([all.busy, all.sm, all.effective]) {
                *sum += i128::from(part) * num;
            }
            return;
        }
        let device = DeviceRef { node: self.place.index, gpu: self.index() };
        let mut points: Vec<i64> =
            plan.breakpoints(device, Timestamp::from_ms(from), Timestamp::from_ms(to)).iter().map(|at| at.ms()).collect();
        points.push(to);
        let Some(hour) = plan.hour(self.device, plan.hour_index(from)) else { return };
        for two in points.windows(2) {
            let length = i128::from(two[1] - two[0]);
            for (tier, ppm) in hour.now(two[0]).tiers(self.device.instance.is_some()).into_iter().enumerate() {
                let each = i128::from(ppm) * replicas * among / pods * num;
                for holder in here {
                    let share = i128::from(holder.ids) * PPM * among * num;
                    let own = owners.entry(holder.pod).or_default();
                    own.exact[tier] += each.min(share) * length;
                    own.over[tier] += (each - share).max(0) * length;
                }
            }
        }
    }

    fn index(&self) -> usize {
        let devices = self.place.node.boards[self.device.board].devices.clone();
        devices.into_iter().find(|at| std::ptr::eq(&self.place.node.devices[*at], self.device)).unwrap_or(0)
    }
}
