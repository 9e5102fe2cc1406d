//! Rows of `gpu_hours` to sums by group. Texts stay dictionary keys: a name is looked up once a file, not once a row.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use datafusion::arrow::{
    array::{
        Array, ArrayRef, AsArray, DictionaryArray, Int64Array, RecordBatch, StringArray, types::Int32Type, types::Int64Type,
    },
    compute::cast,
    datatypes::DataType,
};
use schemas::{
    Timestamp,
    status::{Cause, RowKind},
    tables,
};

use super::{
    Groups, Key, Line, NO_INVENTORY, Request,
    ask::{Buckets, Dimension},
};

/// Columns that every report reads, in this order.
const FIXED: [&str; 9] = ["ms", "kind", "reason", "flags", "overcommitted_ms", "cluster", "node", "workload", "pod_uid"];

/// The columns of `gpu_hours` that a report reads: the fixed ones, the tier's, the groupings'.
pub(super) fn columns(request: &Request) -> Vec<&'static str> {
    let table = tables::get("gpu_hours");
    let tier = request.tier;
    let mut names: Vec<&'static str> = FIXED.to_vec();
    let mut add = |name: &str| {
        if let Some(place) = table.index(name).filter(|_| !names.contains(&name)) {
            names.push(table.columns[place].name.as_str());
        }
    };
    add(&format!("{tier}_utilized_ms"));
    add(&format!("{tier}_stranded_ms"));
    Cause::ALL.iter().for_each(|cause| add(&format!("{tier}_unobserved_{cause}_ms")));
    request.by.iter().flat_map(|dimension| dimension.columns()).for_each(|column| add(column));
    names
}

/// Rows just computed in the columns that a report reads.
pub(super) fn narrowed(batches: &[RecordBatch], columns: &[&str]) -> Result<Vec<RecordBatch>, &'static str> {
    let narrow = |batch: &RecordBatch| {
        let schema = batch.schema();
        let places = columns.iter().map(|name| schema.index_of(name)).collect::<Result<Vec<_>, _>>();
        places.and_then(|places| batch.project(&places)).map_err(|_| "a column is missing")
    };
    batches.iter().map(narrow).collect()
}

/// Sums of one group.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    owner: i64,
    free: i64,
    unavailable: i64,
    utilized: i64,
    stranded: i64,
    unobserved: i64,
    no_inventory: bool,
    /// Utilized and seen time of each job.
    jobs: BTreeMap<u32, (i64, i64)>,
    /// The same as text, once numbers of jobs of different folders met.
    named_jobs: HashMap<String, (i64, i64)>,
}

impl Sums {
    pub(super) fn add(&mut self, other: &Self) {
        self.owner += other.owner;
        self.free += other.free;
        self.unavailable += other.unavailable;
        self.utilized += other.utilized;
        self.stranded += other.stranded;
        self.unobserved += other.unobserved;
        self.no_inventory |= other.no_inventory;
        for (job, (utilized, seen)) in &other.named_jobs {
            match self.named_jobs.get_mut(job) {
                Some(sums) => *sums = (sums.0 + utilized, sums.1 + seen),
                None => drop(self.named_jobs.insert(job.clone(), (*utilized, *seen))),
            }
        }
    }

    pub(super) fn line(&self, keys: Vec<Key>) -> Line {
        let known = |ms| (!self.no_inventory).then_some(ms);
        // In order of the shares, so that the floating sum is the same whichever way the jobs came.
        let mut shares: Vec<f64> = self
            .named_jobs
            .values()
            .filter(|(_, seen)| *seen > 0)
            .map(|(utilized, seen)| *utilized as f64 / *seen as f64)
            .collect();
        shares.sort_by(f64::total_cmp);
        Line {
            keys,
            capacity_ms: known(self.owner + self.free + self.unavailable),
            allocated_ms: self.owner,
            utilized_ms: self.utilized,
            stranded_ms: self.stranded,
            unobserved_ms: self.unobserved,
            free_ms: known(self.free),
            unavailable_ms: known(self.unavailable),
            jobs: shares.len() as u64,
            job_shares: shares.iter().sum(),
            micro: None,
        }
    }
}

/// All that was folded.
#[derive(Default)]
pub(super) struct Folded {
    pub(super) groups: Groups,
    pub(super) unobserved_by: BTreeMap<Cause, i64>,
    pub(super) mig_orphan: i64,
    pub(super) overcommitted: i64,
}

/// Names by number, so that rows are grouped by numbers.
#[derive(Default)]
struct Names {
    numbers: HashMap<Key, u32>,
    names: Vec<Key>,
}

impl Names {
    fn number(&mut self, key: Key) -> u32 {
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(key.clone());
        self.numbers.insert(key, number);
        number
    }
}

/// Folds batches whose columns are those of [`columns`].
pub(super) struct Folder<'a> {
    request: &'a Request,
    buckets: &'a Buckets,
    /// Column names of the batches.
    columns: Vec<&'static str>,
    names: Vec<Names>,
    jobs: Names,
    places: HashMap<Vec<u32>, usize>,
    sums: Vec<Sums>,
    folded: Folded,
}

impl<'a> Folder<'a> {
    pub(super) fn of(request: &'a Request, buckets: &'a Buckets) -> Self {
        let names = request.by.iter().map(|_| Names::default()).collect();
        Self {
            request,
            buckets,
            columns: columns(request),
            names,
            jobs: Names::default(),
            places: HashMap::new(),
            sums: Vec::new(),
            folded: Folded::default(),
        }
    }

    /// Folds the batches of one hour, or of a part that begins at `at`. A panic-free error names what is no row of ours.
    pub(super) fn hour(&mut self, at: Timestamp, batches: &[RecordBatch]) -> Result<(), &'static str> {
        let unlisted = unlisted(batches)?;
        batches.iter().try_for_each(|batch| self.batch(at, batch, &unlisted))
    }

    fn batch(&mut self, at: Timestamp, batch: &RecordBatch, unlisted: &BTreeSet<(String, String)>) -> Result<(), &'static str> {
        let ints = |place: usize| batch.column(place).as_primitive_opt::<Int64Type>().ok_or("a column is not INT64");
        let (ms, over) = (ints(0)?, ints(4)?);
        let (kind, reason, flags) = (Words::of(batch.column(1))?, Words::of(batch.column(2))?, Words::of(batch.column(3))?);
        let (cluster, node) = (Words::of(batch.column(5))?, Words::of(batch.column(6))?);
        let (utilized, stranded) = (ints(FIXED.len())?, ints(FIXED.len() + 1)?);
        let first = FIXED.len() + 2;
        let causes: Vec<&Int64Array> = (first..first + Cause::ALL.len()).map(ints).collect::<Result<_, _>>()?;
        let kinds: Vec<Option<RowKind>> = kind.values.iter().map(|word| word.and_then(RowKind::from_text)).collect();
        let orphan = reason.number_of("mig_orphan");
        let bare: Vec<bool> = flags.values.iter().map(|word| word.is_some_and(has_no_inventory)).collect();
        let jobs = self.jobs_of(batch)?;
        let keys: Vec<Keys> = (0..self.request.by.len()).map(|place| self.keys(place, at, batch)).collect::<Result<_, _>>()?;
        let value = |column: &Int64Array, row: usize| if column.is_null(row) { 0 } else { column.value(row) };
        let mut key = vec![0_u32; keys.len()];
        let mut last: Option<(Vec<u32>, usize)> = None;
        for (row, &job) in jobs.iter().enumerate() {
            let kind = kind.at(row).and_then(|word| kinds[word]).ok_or("a row of unknown kind")?;
            for (key, column) in key.iter_mut().zip(&keys) {
                *key = column.number(row, kind == RowKind::Owner);
            }
            let place = match &last {
                Some((known, place)) if *known == key => *place,
                _ => self.place(&key),
            };
            if last.as_ref().is_none_or(|(known, _)| *known != key) {
                last = Some((key.clone(), place));
            }
            let sums = &mut self.sums[place];
            if kind != RowKind::Owner {
                sums.no_inventory |= !unlisted.is_empty() && {
                    let name = |words: &Words| words.at(row).map_or("", |word| words.values.value(word)).to_owned();
                    unlisted.contains(&(name(&cluster), name(&node)))
                };
            }
            match kind {
                RowKind::Owner => {
                    let (used, idle) = (value(utilized, row), value(stranded, row));
                    sums.owner += value(ms, row);
                    sums.utilized += used;
                    sums.stranded += idle;
                    for (cause, column) in Cause::ALL.iter().zip(&causes) {
                        let unseen = value(column, row);
                        if unseen != 0 {
                            sums.unobserved += unseen;
                            *self.folded.unobserved_by.entry(*cause).or_default() += unseen;
                        }
                    }
                    if used + idle > 0 {
                        let time = sums.jobs.entry(job).or_default();
                        *time = (time.0 + used, time.1 + used + idle);
                    }
                    self.folded.overcommitted += value(over, row);
                    sums.no_inventory |= flags.at(row).is_some_and(|word| bare[word]);
                }
                RowKind::Free => sums.free += value(ms, row),
                RowKind::Unavailable => {
                    sums.unavailable += value(ms, row);
                    if orphan.is_some() && reason.at(row) == orphan {
                        self.folded.mig_orphan += value(ms, row);
                    }
                }
            }
        }
        Ok(())
    }

    fn place(&mut self, key: &[u32]) -> usize {
        if let Some(place) = self.places.get(key) {
            return *place;
        }
        self.sums.push(Sums::default());
        self.places.insert(key.to_vec(), self.sums.len() - 1);
        self.sums.len() - 1
    }

    /// The number of each row's job: its workload within its namespace's cluster, else its pod.
    fn jobs_of(&mut self, batch: &RecordBatch) -> Result<Vec<u32>, &'static str> {
        let (workload, pod) = (Words::of(batch.column(7))?, Words::of(batch.column(8))?);
        let mut number = |words: &Words, prefix: &str| -> Vec<u32> {
            let name = |word: Option<&str>| Key::Named(format!("{prefix}{}", word.unwrap_or_default()));
            words.values.iter().map(|word| self.jobs.number(name(word))).collect()
        };
        let (workloads, pods) = (number(&workload, "w:"), number(&pod, "p:"));
        let job = |row: usize| match (workload.at(row), pod.at(row)) {
            (Some(word), _) => workloads[word],
            (None, Some(word)) => pods[word],
            (None, None) => 0,
        };
        Ok((0..batch.num_rows()).map(job).collect())
    }

    fn keys(&mut self, place: usize, at: Timestamp, batch: &RecordBatch) -> Result<Keys, &'static str> {
        let dimension = self.request.by[place];
        let names = &mut self.names[place];
        if let Some(label) = self.buckets.label(place, at) {
            return Ok(Keys { nobody: None, rows: Numbers::One(names.number(Key::Named(label.to_owned()))) });
        }
        let column = |name: &str| {
            let place = self.columns.iter().position(|known| *known == name).ok_or("a column is missing")?;
            Words::of(batch.column(place))
        };
        let nobody = dimension.of_owner().then(|| names.number(Key::Nobody));
        // No profile is no fault: it is a whole GPU.
        let none = if dimension == Dimension::Profile { Key::Named("(whole GPU)".into()) } else { Key::Unattributed };
        let unattributed = names.number(none);
        let rows = match *dimension.columns() {
            [one] => {
                let words = column(one)?;
                let numbers: Vec<u32> = words
                    .values
                    .iter()
                    .map(|word| word.map_or(unattributed, |word| names.number(Key::Named(word.to_owned()))))
                    .collect();
                (0..batch.num_rows()).map(|row| words.at(row).map_or(unattributed, |word| numbers[word])).collect()
            }
            [outer, inner] => {
                let (outer, inner) = (column(outer)?, column(inner)?);
                let mut known: HashMap<(Option<usize>, Option<usize>), u32> = HashMap::new();
                let mut number = |row: usize| {
                    let pair = (outer.at(row), inner.at(row));
                    *known.entry(pair).or_insert_with(|| {
                        let parts: Vec<&str> = [pair.0.map(|w| outer.values.value(w)), pair.1.map(|w| inner.values.value(w))]
                            .into_iter()
                            .flatten()
                            .collect();
                        if parts.is_empty() { unattributed } else { names.number(Key::Named(parts.join("/"))) }
                    })
                };
                (0..batch.num_rows()).map(&mut number).collect()
            }
            _ => return Err("a grouping has no column"),
        };
        Ok(Keys { nobody, rows: Numbers::Each(rows) })
    }

    /// Adds what another folder of the same request has.
    pub(super) fn merge(&mut self, other: Self) {
        let folded = other.finish();
        for (keys, sums) in folded.groups {
            match self.folded.groups.get_mut(&keys) {
                Some(mine) => mine.add(&sums),
                None => drop(self.folded.groups.insert(keys, sums)),
            }
        }
        for (cause, ms) in folded.unobserved_by {
            *self.folded.unobserved_by.entry(cause).or_default() += ms;
        }
        self.folded.mig_orphan += folded.mig_orphan;
        self.folded.overcommitted += folded.overcommitted;
    }

    /// Groups by their names.
    pub(super) fn finish(mut self) -> Folded {
        let job = |number: u32| match self.jobs.names.get(number as usize) {
            Some(Key::Named(name)) => name.clone(),
            _ => String::new(),
        };
        for (key, place) in std::mem::take(&mut self.places) {
            let mut sums = std::mem::take(&mut self.sums[place]);
            sums.named_jobs.extend(std::mem::take(&mut sums.jobs).into_iter().map(|(number, time)| (job(number), time)));
            let keys = key.iter().zip(&self.names).map(|(number, names)| names.names[*number as usize].clone()).collect();
            self.folded.groups.entry(keys).or_default().add(&sums);
        }
        self.folded
    }
}

/// The number of each row's key in one dimension.
struct Keys {
    /// Of rows without an owner, where only owners have the dimension.
    nobody: Option<u32>,
    rows: Numbers,
}

enum Numbers {
    One(u32),
    Each(Vec<u32>),
}

impl Keys {
    fn number(&self, row: usize, owned: bool) -> u32 {
        match (self.nobody, &self.rows) {
            (Some(nobody), _) if !owned => nobody,
            (_, Numbers::One(number)) => *number,
            (_, Numbers::Each(numbers)) => numbers[row],
        }
    }
}

/// A column of texts as places in a short list.
struct Words {
    words: DictionaryArray<Int32Type>,
    values: StringArray,
}

impl Words {
    fn of(column: &ArrayRef) -> Result<Self, &'static str> {
        let kind = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        let column =
            if *column.data_type() == kind { column.clone() } else { cast(column, &kind).map_err(|_| "a column is not text")? };
        let words = column.as_dictionary_opt::<Int32Type>().ok_or("a column is not text")?.clone();
        let values = words.values().as_string_opt::<i32>().ok_or("a column is not text")?.clone();
        Ok(Self { words, values })
    }

    fn at(&self, row: usize) -> Option<usize> {
        self.words.key(row)
    }

    fn number_of(&self, word: &str) -> Option<usize> {
        self.values.iter().position(|value| value == Some(word))
    }
}

fn has_no_inventory(flags: &str) -> bool {
    flags.split(',').any(|flag| flag == NO_INVENTORY)
}

/// Nodes of an hour that have no inventory, by the rows of their owners: what nobody holds there is only what was seen, and
/// as little known as their capacity.
fn unlisted(batches: &[RecordBatch]) -> Result<BTreeSet<(String, String)>, &'static str> {
    let mut found = BTreeSet::new();
    for batch in batches {
        let flags = Words::of(batch.column(3))?;
        let bare: Vec<bool> = flags.values.iter().map(|word| word.is_some_and(has_no_inventory)).collect();
        if !bare.contains(&true) {
            continue;
        }
        let (clusters, nodes) = (Words::of(batch.column(5))?, Words::of(batch.column(6))?);
        let name = |words: &Words, row: usize| words.at(row).map_or("", |word| words.values.value(word)).to_owned();
        for row in (0..batch.num_rows()).filter(|row| flags.at(*row).is_some_and(|word| bare[word])) {
            found.insert((name(&clusters, row), name(&nodes, row)));
        }
    }
    Ok(found)
}
