//! What per-use providers bill, hour by hour: imported runs where there are any for a pool, else the inventory's intervals.
//!
//! A GPU of the inventory is billed from its interval's begin to its end, by the price of the pool that its labels match at each
//! hour; GPUs with the same ends and pool are one run. Instances of a GPU are one GPU. Hours are fed oldest first, from the lake's
//! first on, so that a pool's cost is that since it began (M1).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use datafusion::arrow::array::RecordBatch;
use lake::{Lake, LakeError, read};
use ledger::{
    input::Text,
    money::{Opening, Run, TooFine},
};
use schemas::{HOUR_MS, Timestamp, status::InventoryKind, tables};

use super::{
    card::{Card, Labels},
    columns::{Columns, int, text, time},
};

/// How long after its end a run still matters: M6's tolerance looks back so far.
const LOOK_BACK_MS: i64 = 15 * 60_000;

/// A billed run of table `billed_runs`.
#[derive(Clone, Debug)]
pub(super) struct Billed {
    id: Text,
    pool: Option<Text>,
    labels: Labels,
    gpus: i64,
    from: Timestamp,
    to: Timestamp,
}

/// Every imported run, by begin.
pub(super) fn imported(lake: &Lake) -> Result<Vec<Billed>, LakeError> {
    let table = tables::get("billed_runs");
    let mut runs: Vec<Billed> = Vec::new();
    for file in lake.closed_files(table, None)? {
        for batch in read::rows(table, &file.path, None)? {
            let columns = Columns(&batch);
            let (ids, pools, gpus) = (columns.texts("run"), columns.texts("pool"), columns.ints("gpus"));
            let (from, to, labels) = (columns.times("from_at"), columns.times("to_at"), columns.labels());
            runs.extend((0..batch.num_rows()).filter_map(|row| {
                Some(Billed {
                    id: text(ids, row)?.into(),
                    pool: text(pools, row).map(Text::from),
                    labels: labels.of(row),
                    gpus: int(gpus, row)?,
                    from: time(from, row)?,
                    to: time(to, row).unwrap_or(NEVER),
                })
            }));
        }
    }
    runs.sort_by(|a, b| (a.from, &a.id).cmp(&(b.from, &b.id)));
    Ok(runs)
}

/// The end of what has none yet.
const NEVER: Timestamp = Timestamp::from_ms(i64::MAX);

/// Part of an hour in which something is billed.
#[derive(Clone, Debug)]
struct Part {
    thing: usize,
    gpus: i64,
    pool: Option<usize>,
    from: Timestamp,
    to: Timestamp,
    /// Begin of the whole interval.
    begin: Timestamp,
    /// Whether the interval ends at `to`.
    ends: bool,
}

/// Something that is being billed: a GPU, or an imported run.
#[derive(Clone, Debug)]
struct Open {
    pool: Option<usize>,
    gpus: i64,
    from: Timestamp,
    billed_from: Timestamp,
    to: Timestamp,
    ends: bool,
}

/// What is known of the hour after.
struct Next {
    /// What is billed from its first instant on.
    goes_on: BTreeSet<usize>,
    /// Whether the inventory says anything of it.
    is_known: bool,
}

/// A run's pool, begin, begin of its length, end, and whether it ends there.
type Key = (usize, Timestamp, Timestamp, Timestamp, bool);

/// The state between hours.
pub(super) struct Supply<'c> {
    card: &'c Card,
    billed: Vec<Billed>,
    /// Pools whose runs are imported.
    pub(super) imported: BTreeSet<usize>,
    names: HashMap<String, usize>,
    open: Vec<Option<Open>>,
    /// Runs that ended lately, with their GPUs.
    closed: BTreeMap<Key, i64>,
    opening: BTreeMap<usize, (i128, i128)>,
    /// The hour to come: its parts, and whether the inventory says nothing of it.
    next: Option<(Timestamp, Vec<Part>, bool)>,
}

/// One hour's runs.
#[derive(Clone, Debug, Default)]
pub(super) struct HourRuns {
    pub(super) runs: Vec<Run>,
    pub(super) openings: BTreeMap<usize, Opening>,
}

impl<'c> Supply<'c> {
    pub(super) fn new(card: &'c Card, billed: Vec<Billed>) -> Self {
        let mut supply = Self {
            card,
            billed,
            imported: BTreeSet::new(),
            names: HashMap::new(),
            open: Vec::new(),
            closed: BTreeMap::new(),
            opening: BTreeMap::new(),
            next: None,
        };
        let found: Vec<usize> = supply.billed.iter().filter_map(|run| supply.pool_of_run(run, run.from.hour())).collect();
        for pool in found {
            // A pool's price changes, its provider's statement does not.
            let same = |(_, entry): &(usize, &super::card::Entry)| entry.matches == card.entries[pool].matches;
            supply.imported.extend(card.entries.iter().enumerate().filter(same).map(|(number, _)| number));
        }
        supply
    }

    /// Imported runs that no per-use pool prices, with the hour of their begin.
    pub(super) fn unpriced_runs(&self) -> Vec<String> {
        let lost = self.billed.iter().filter(|run| self.pool_of_run(run, run.from.hour()).is_none());
        lost.map(|run| run.id.to_string()).collect()
    }

    fn pool_of_run(&self, run: &Billed, hour: Timestamp) -> Option<usize> {
        match &run.pool {
            None => self.card.per_use_of(&run.labels, hour),
            Some(name) => self.card.entries.iter().position(|entry| {
                entry.pool.name == *name && entry.pool.term().is_none() && entry.touches(hour, hour.plus_ms(HOUR_MS))
            }),
        }
    }

    fn thing(&mut self, name: &str) -> usize {
        if let Some(thing) = self.names.get(name) {
            return *thing;
        }
        let fresh = self.open.len();
        self.names.insert(name.to_owned(), fresh);
        self.open.push(None);
        fresh
    }

    /// Takes one hour, and the hour after it where that is known: an interval that ends with the hour may go on in the next.
    pub(super) fn hour(
        &mut self,
        hour: Timestamp,
        read_hour: impl Fn(Timestamp) -> Result<Vec<RecordBatch>, LakeError>,
    ) -> Result<HourRuns, SupplyError> {
        let end = hour.plus_ms(HOUR_MS);
        let (parts, is_blind) = match self.next.take() {
            Some((at, parts, is_blind)) if at == hour => (parts, is_blind),
            _ => {
                let nodes = read_hour(hour)?;
                (self.parts(hour, &nodes), nodes.is_empty())
            }
        };
        let nodes = read_hour(end)?;
        let after = self.parts(end, &nodes);
        let goes_on: BTreeSet<usize> = after.iter().filter(|part| part.from == end).map(|part| part.thing).collect();
        self.next = Some((end, after, nodes.is_empty()));
        if is_blind {
            self.assume(end, &parts);
        }
        self.advance(hour, &parts, is_blind, &Next { goes_on, is_known: !nodes.is_empty() });
        self.listed(hour)
    }

    /// Of an hour without inventory nothing is concluded: what had no end goes on.
    fn assume(&mut self, end: Timestamp, parts: &[Part]) {
        let told: BTreeSet<usize> = parts.iter().map(|part| part.thing).collect();
        for (thing, open) in self.open.iter_mut().enumerate() {
            if let Some(open) = open.as_mut().filter(|open| !open.ends && !told.contains(&thing)) {
                open.to = open.to.max(end);
            }
        }
    }

    /// Takes the parts of an hour into the open runs; runs that are over go to the closed ones.
    fn advance(&mut self, hour: Timestamp, parts: &[Part], is_blind: bool, next: &Next) {
        let mut seen = vec![false; self.open.len()];
        for part in parts {
            seen[part.thing] = true;
            let before = self.open[part.thing].take();
            let joined = before.as_ref().filter(|open| open.to == part.from || part.begin <= open.from.min(open.billed_from));
            let next = match joined {
                Some(open) if open.pool == part.pool && open.gpus == part.gpus => {
                    Open { to: part.to.max(open.to), ends: part.ends, ..open.clone() }
                }
                Some(open) => Open { billed_from: open.billed_from, ..opened(part, part.from) },
                // What ran before the lake's first hour is part of its length, at the price that held since.
                None => {
                    let held = part.pool.map_or(part.from, |pool| self.card.entries[pool].from);
                    opened(part, part.begin.max(held).min(part.from))
                }
            };
            let continued = joined.is_some();
            let same = joined.is_some_and(|open| open.pool == next.pool && open.gpus == next.gpus);
            if let Some(open) = before.filter(|_| !same) {
                let to = if continued { open.to.min(part.from) } else { open.to };
                self.close(Open { to, ends: !continued, ..open });
            }
            self.open[part.thing] = Some(next);
        }
        for thing in 0..self.open.len() {
            let Some(open) = &self.open[thing] else { continue };
            let was_seen = seen.get(thing) == Some(&true);
            let last = open.to == hour.plus_ms(HOUR_MS);
            let ends_inside = was_seen && open.to < hour.plus_ms(HOUR_MS);
            let ends_with_hour = last && !next.goes_on.contains(&thing) && (open.ends || (was_seen && next.is_known));
            // Gone without an end that anybody saw: nobody knows what its last increment was.
            let is_lost = !was_seen && !is_blind && open.to <= hour;
            if (ends_inside || ends_with_hour || is_lost)
                && let Some(open) = self.open[thing].take()
            {
                self.close(Open { ends: !is_lost, ..open });
            }
        }
    }

    fn close(&mut self, open: Open) {
        if let Some(pool) = open.pool.filter(|_| open.from < open.to) {
            *self.closed.entry((pool, open.from, open.billed_from, open.to, open.ends)).or_default() += open.gpus;
        }
    }

    /// Runs that matter to an hour, cut at its end; those before it go into the openings.
    fn listed(&mut self, hour: Timestamp) -> Result<HourRuns, SupplyError> {
        let (end, early) = (hour.plus_ms(HOUR_MS), hour.plus_ms(-LOOK_BACK_MS));
        let (old, recent): (BTreeMap<Key, i64>, _) =
            std::mem::take(&mut self.closed).into_iter().partition(|((_, _, _, to, _), _)| *to <= early);
        self.closed = recent;
        for (key, gpus) in old {
            let run = self.run(key, gpus);
            let pad = self.card.entries[key.0].pool.pad_of(&run).map_err(|_| self.too_large(key.0))?;
            let sums = self.opening.entry(key.0).or_default();
            sums.0 += i128::from(gpus) * i128::from(run.to.ms() - run.from.ms());
            sums.1 += pad;
        }
        let mut listed = self.closed.clone();
        for open in self.open.iter().flatten() {
            // After an hour without rows nobody knows yet whether it goes on.
            if let Some(pool) = open.pool.filter(|_| open.from < open.to.min(end)) {
                *listed.entry((pool, open.from, open.billed_from, open.to.min(end), false)).or_default() += open.gpus;
            }
        }
        let mut openings = BTreeMap::new();
        for (&pool, &(used, pad)) in &self.opening {
            let whole = |sum: i128| i64::try_from(sum).map_err(|_| self.too_large(pool));
            openings.insert(pool, Opening { used_gpu_ms: whole(used)?, pad_gpu_ms: whole(pad)? });
        }
        Ok(HourRuns { runs: listed.into_iter().map(|(key, gpus)| self.run(key, gpus)).collect(), openings })
    }

    fn run(&self, (pool, from, billed_from, to, ends): Key, gpus: i64) -> Run {
        let pool = self.card.entries[pool].pool.name.clone();
        let id = format!("{pool} {} {} {} {ends}", from.ms(), billed_from.ms(), to.ms()).into();
        Run { id, pool, from, to, gpus, billed_from, ends }
    }

    fn too_large(&self, pool: usize) -> SupplyError {
        SupplyError::TooLarge(self.card.entries[pool].pool.name.clone())
    }

    /// What is billed in an hour: the inventory's GPUs, and imported runs.
    fn parts(&mut self, hour: Timestamp, nodes: &[RecordBatch]) -> Vec<Part> {
        let mut parts = self.inventory(hour, nodes);
        let end = hour.plus_ms(HOUR_MS);
        let begun = self.billed.partition_point(|run| run.from < end);
        let running: Vec<Billed> = self.billed[..begun].iter().filter(|run| run.to > hour).cloned().collect();
        for run in running {
            let pool = self.pool_of_run(&run, hour);
            let (from, to) = (run.from.max(hour), run.to.min(end));
            let thing = self.thing(&format!("run {}", run.id));
            parts.push(Part { thing, gpus: run.gpus, pool, from, to, begin: run.from, ends: run.to <= end });
        }
        parts
    }

    fn inventory(&mut self, hour: Timestamp, nodes: &[RecordBatch]) -> Vec<Part> {
        let mut spells: BTreeMap<usize, Vec<Spell>> = BTreeMap::new();
        let mut counted: BTreeMap<String, (i64, Spell)> = BTreeMap::new();
        let mut listed: BTreeSet<String> = BTreeSet::new();
        let mut pools: HashMap<Labels, Option<usize>> = HashMap::new();
        let pool_of = |card: &Card, labels: Labels, imported: &BTreeSet<usize>, pools: &mut HashMap<Labels, Option<usize>>| {
            *pools.entry(labels).or_insert_with_key(|labels| card.per_use_of(labels, hour).filter(|p| !imported.contains(p)))
        };
        for batch in nodes {
            let columns = Columns(batch);
            let (clusters, names, kinds) = (columns.texts("cluster"), columns.texts("node"), columns.texts("kind"));
            let (devices, parents, labels) = (columns.texts("device"), columns.texts("parent"), columns.labels());
            let (gpus, replicas) = (columns.ints("capacity_gpus"), columns.ints("replicas"));
            let (from, to) = (columns.times("from_at"), columns.times("to_at"));
            let (begins, ends) = (columns.times("interval_from"), columns.times("interval_to"));
            let (observed, revisions) = (columns.times("observed_at"), columns.ints("revision"));
            let mut last: Option<(usize, Option<usize>)> = None;
            // Rows are sorted, so names are made anew for few of them.
            let (mut of_node, mut node, mut name, mut is_listed) = (None, String::new(), String::new(), false);
            for row in 0..batch.num_rows() {
                let (Some(from), Some(to), Some(begin)) = (time(from, row), time(to, row), time(begins, row)) else { continue };
                let pool = match last {
                    Some((before, pool)) if labels.alike(before, row) => pool,
                    _ => pool_of(self.card, labels.of(row), &self.imported, &mut pools),
                };
                last = Some((row, pool));
                let state = (time(observed, row), int(revisions, row));
                let spell = Spell { from, to, begin, ends: time(ends, row).is_some_and(|end| end <= to), state, pool };
                let place = (text(clusters, row).unwrap_or("?"), text(names, row).unwrap_or("?"));
                if of_node != Some(place) {
                    (of_node, node, is_listed) = (Some(place), format!("{}/{}", place.0, place.1), false);
                }
                match text(kinds, row).and_then(InventoryKind::from_text) {
                    Some(InventoryKind::Device) => {
                        let Some(device) = text(devices, row) else { continue };
                        name.clear();
                        name.extend([&node, "/", text(parents, row).unwrap_or(device)]);
                        spells.entry(self.thing(&name)).or_default().push(spell);
                        if !is_listed {
                            listed.insert(node.clone());
                            is_listed = true;
                        }
                    }
                    Some(InventoryKind::Node) => {
                        let shared = int(replicas, row).unwrap_or(1).max(1);
                        let gpus = int(gpus, row).unwrap_or(0).max(0);
                        counted.insert(node.clone(), ((gpus + shared - 1) / shared, spell));
                    }
                    Some(InventoryKind::Unavailable) | None => {}
                }
            }
        }
        // A node that counts its GPUs and lists none.
        for (node, (gpus, spell)) in counted.into_iter().filter(|(node, _)| !listed.contains(node)) {
            for number in 1..=gpus {
                let thing = self.thing(&format!("{node}/unnamed:{number}"));
                spells.entry(thing).or_default().push(spell.clone());
            }
        }
        spells.into_iter().flat_map(|(thing, spells)| joined(thing, spells)).collect()
    }
}

fn opened(part: &Part, from: Timestamp) -> Open {
    Open { pool: part.pool, gpus: part.gpus, from, billed_from: part.begin.min(from), to: part.to, ends: part.ends }
}

/// A device's row of an hour.
#[derive(Clone, Debug)]
struct Spell {
    from: Timestamp,
    to: Timestamp,
    begin: Timestamp,
    ends: bool,
    state: (Option<Timestamp>, Option<i64>),
    pool: Option<usize>,
}

/// A GPU's rows of an hour, of itself and of its instances, as what was billed of it: rows that touch are one.
fn joined(thing: usize, mut spells: Vec<Spell>) -> Vec<Part> {
    spells.sort_by_key(|spell| (spell.from, spell.to));
    let pool = spells.iter().max_by_key(|spell| (spell.state, spell.pool)).and_then(|spell| spell.pool);
    let mut parts: Vec<Part> = Vec::new();
    for spell in spells {
        match parts.last_mut() {
            Some(part) if spell.from <= part.to => {
                part.begin = part.begin.min(spell.begin);
                match spell.to.cmp(&part.to) {
                    std::cmp::Ordering::Greater => part.ends = spell.ends,
                    std::cmp::Ordering::Equal => part.ends &= spell.ends,
                    std::cmp::Ordering::Less => {}
                }
                part.to = part.to.max(spell.to);
            }
            _ => {
                let Spell { from, to, begin, ends, .. } = spell;
                parts.push(Part { thing, gpus: 1, pool, from, to, begin, ends });
            }
        }
    }
    parts
}

/// What stopped the reading of runs.
#[derive(Debug, thiserror::Error)]
pub(super) enum SupplyError {
    /// The lake could not be read.
    #[error(transparent)]
    Lake(#[from] LakeError),
    /// Sums beyond 64 bits.
    #[error("pool `{0}`: the GPU time of its runs is too large to be computed exactly")]
    TooLarge(Text),
}

/// Columns of `nodes` that are read.
pub(super) const NODE_COLUMNS: [&str; 18] = [
    "cluster",
    "node",
    "kind",
    "device",
    "parent",
    "provider",
    "region",
    "product",
    "purchase_option",
    "reservation",
    "capacity_gpus",
    "replicas",
    "from_at",
    "to_at",
    "interval_from",
    "interval_to",
    "observed_at",
    "revision",
];

/// GPU time used and padded by a pool's runs up to an instant that no listed run passes but by use.
pub(super) fn up_to(card: &Card, pool: usize, runs: &HourRuns, at: Timestamp) -> Result<(i128, i128), TooFine> {
    let entry = &card.entries[pool].pool;
    let opening = runs.openings.get(&pool).copied().unwrap_or_default();
    let (mut used, mut pad) = (i128::from(opening.used_gpu_ms), i128::from(opening.pad_gpu_ms));
    for run in runs.runs.iter().filter(|run| run.pool == entry.name) {
        used += i128::from(run.gpus) * i128::from((run.to.min(at).ms() - run.from.ms()).max(0));
        if run.to <= at {
            pad += entry.pad_of(run)?;
        }
    }
    Ok((used, pad))
}

#[cfg(test)]
mod tests;
