//! Rows of `gpu_hours` to sums by group. Texts stay dictionary keys: a name is looked up once a file, not once a row.

use std::collections::{BTreeMap, HashMap};

use datafusion::arrow::{
    array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, types::Int32Type, types::Int64Type},
    buffer::{NullBuffer, ScalarBuffer},
    compute::cast,
    datatypes::DataType,
};
use foldhash::fast::FixedState;
use schemas::{
    Timestamp,
    status::{Cause, RowKind},
    tables,
};

use super::{
    Groups, Key, Line, Request,
    ask::{Buckets, Dimension},
    has_no_inventory,
};

/// Columns that every report reads, in this order.
const FIXED: [&str; 9] = ["ms", "kind", "reason", "flags", "overcommitted_ms", "cluster", "namespace", "workload", "pod_uid"];

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
    jobs: HashMap<String, (i64, i64)>,
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
        for (job, (utilized, seen)) in &other.jobs {
            match self.jobs.get_mut(job) {
                Some(sums) => *sums = (sums.0 + utilized, sums.1 + seen),
                None => drop(self.jobs.insert(job.clone(), (*utilized, *seen))),
            }
        }
    }

    pub(super) fn line(&self, keys: Vec<Key>) -> Line {
        let known = |ms| (!self.no_inventory).then_some(ms);
        // In order of the shares, so that the floating sum is the same whichever way the jobs came.
        let mut shares: Vec<f64> =
            self.jobs.values().filter(|(_, seen)| *seen > 0).map(|(utilized, seen)| *utilized as f64 / *seen as f64).collect();
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

/// Texts by number.
#[derive(Default)]
struct Texts {
    numbers: HashMap<String, u32>,
    texts: Vec<String>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    fn text(&self, number: u32) -> &str {
        self.texts.get(number as usize).map_or("", String::as_str)
    }
}

/// A job: the numbers of cluster, namespace and workload; of a pod without a workload, twice [`NO_TEXT`] and its UID.
type Job = [u32; 3];

/// The number of no text.
const NO_TEXT: u32 = u32::MAX;

/// A job in a place, its utilized and its seen time.
type JobTime = ((usize, Job), (i64, i64));

/// Utilized and seen time of each job in each place. Few jobs of one fleet share their last name, and few are in several groups,
/// so a short list by that name is faster than a hash of all of it; what is more goes by hash.
#[derive(Default)]
struct Times {
    by_name: Vec<Vec<JobTime>>,
    others: HashMap<(usize, Job), (i64, i64), FixedState>,
}

impl Times {
    const LISTED: usize = 16;

    fn add(&mut self, place: usize, job: Job, (utilized, seen): (i64, i64)) {
        let name = if job[2] == NO_TEXT { 0 } else { job[2] as usize };
        if self.by_name.len() <= name {
            self.by_name.resize_with(name + 1, Vec::new);
        }
        let list = &mut self.by_name[name];
        let time = match list.iter().position(|(known, _)| *known == (place, job)) {
            Some(at) => &mut list[at].1,
            None if list.len() < Self::LISTED => {
                list.push(((place, job), (0, 0)));
                let last = list.len() - 1;
                &mut list[last].1
            }
            None => self.others.entry((place, job)).or_default(),
        };
        *time = (time.0 + utilized, time.1 + seen);
    }

    fn all(self) -> impl Iterator<Item = JobTime> {
        self.by_name.into_iter().flatten().chain(self.others)
    }
}

/// The columns of a batch that tell a row's job.
struct JobsOfBatch {
    columns: [(Words, Vec<u32>); 4],
}

impl JobsOfBatch {
    fn of(batch: &RecordBatch, names: &mut Texts) -> Result<Self, &'static str> {
        let mut column = |place: usize| -> Result<_, &'static str> {
            let words = Words::of(batch.column(place))?;
            let numbers = words.values.iter().map(|word| word.map_or(NO_TEXT, |word| names.number(word))).collect();
            Ok((words, numbers))
        };
        Ok(Self { columns: [column(5)?, column(6)?, column(7)?, column(8)?] })
    }

    fn at(&self, row: usize) -> Job {
        let [cluster, namespace, workload, pod] = &self.columns;
        let number = |(words, numbers): &(Words, Vec<u32>)| words.at(row).map_or(NO_TEXT, |word| numbers[word]);
        match number(workload) {
            NO_TEXT => [NO_TEXT, NO_TEXT, number(pod)],
            workload => [number(cluster), number(namespace), workload],
        }
    }
}

/// A column of numbers, nulls as 0.
struct Ints<'b> {
    values: &'b [i64],
    nulls: Option<&'b NullBuffer>,
}

impl<'b> Ints<'b> {
    fn of(column: &'b ArrayRef) -> Result<Self, &'static str> {
        let column: &Int64Array = column.as_primitive_opt::<Int64Type>().ok_or("a column is not INT64")?;
        Ok(Self { values: column.values(), nulls: column.nulls().filter(|nulls| nulls.null_count() > 0) })
    }

    fn at(&self, row: usize) -> i64 {
        if self.nulls.is_some_and(|nulls| nulls.is_null(row)) { 0 } else { self.values[row] }
    }

    /// Whether there may be a number other than 0.
    fn any(&self) -> bool {
        self.values.iter().fold(0, |all, value| all | value) != 0
    }
}

/// Folds batches whose columns are those of [`columns`].
pub(super) struct Folder<'a> {
    request: &'a Request,
    buckets: &'a Buckets,
    /// Column names of the batches.
    columns: Vec<&'static str>,
    names: Vec<Names>,
    /// Names of jobs, their namespaces and clusters.
    job_names: Texts,
    places: HashMap<Vec<u32>, usize, FixedState>,
    /// The key asked for last, and its place.
    last: (Vec<u32>, usize),
    sums: Vec<Sums>,
    times: Times,
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
            job_names: Texts::default(),
            places: HashMap::default(),
            last: (vec![u32::MAX], 0), // no key has this number
            sums: Vec::new(),
            times: Times::default(),
            folded: Folded::default(),
        }
    }

    /// Folds the batches of one hour, or of a part that begins at `at`. A panic-free error names what is no row of ours.
    pub(super) fn hour(&mut self, at: Timestamp, batches: &[RecordBatch]) -> Result<(), &'static str> {
        batches.iter().try_for_each(|batch| self.batch(at, batch))
    }

    fn batch(&mut self, at: Timestamp, batch: &RecordBatch) -> Result<(), &'static str> {
        let ints = |place: usize| Ints::of(batch.column(place));
        let (ms, over) = (ints(0)?, ints(4)?);
        let (kind, reason, flags) = (Words::of(batch.column(1))?, Words::of(batch.column(2))?, Words::of(batch.column(3))?);
        let (utilized, stranded) = (ints(FIXED.len())?, ints(FIXED.len() + 1)?);
        let first = FIXED.len() + 2;
        let causes: Vec<Ints<'_>> = (first..first + Cause::ALL.len()).map(ints).collect::<Result<_, _>>()?;
        let kinds: Vec<Option<RowKind>> = kind.values.iter().map(|word| word.and_then(RowKind::from_text)).collect();
        let orphan = reason.number_of("mig_orphan");
        let bare: Vec<bool> = flags.values.iter().map(|word| word.is_some_and(has_no_inventory)).collect();
        let jobs = JobsOfBatch::of(batch, &mut self.job_names)?;
        let keys: Vec<Keys> = (0..self.request.by.len()).map(|place| self.keys(place, at, batch)).collect::<Result<_, _>>()?;
        let mut key = vec![0_u32; keys.len()];
        let causes: Vec<(Cause, Ints<'_>)> = Cause::ALL.iter().copied().zip(causes).filter(|(_, ints)| ints.any()).collect();
        let over = Some(over).filter(Ints::any);
        let mut unobserved = vec![0; causes.len()];
        for row in 0..batch.num_rows() {
            let kind = kind.at(row).and_then(|word| kinds[word]).ok_or("a row of unknown kind")?;
            for (key, column) in key.iter_mut().zip(&keys) {
                *key = column.number(row, kind == RowKind::Owner);
            }
            let place = self.place(&key);
            let sums = &mut self.sums[place];
            match kind {
                RowKind::Owner => {
                    let (used, idle) = (utilized.at(row), stranded.at(row));
                    sums.owner += ms.at(row);
                    sums.utilized += used;
                    sums.stranded += idle;
                    for ((_, column), sum) in causes.iter().zip(&mut unobserved) {
                        let unseen = column.at(row);
                        sums.unobserved += unseen;
                        *sum += unseen;
                    }
                    if used + idle > 0 {
                        self.times.add(place, jobs.at(row), (used, used + idle));
                    }
                    self.folded.overcommitted += over.as_ref().map_or(0, |over| over.at(row));
                    sums.no_inventory |= flags.at(row).is_some_and(|word| bare[word]);
                }
                RowKind::Free => sums.free += ms.at(row),
                RowKind::Unavailable => {
                    sums.unavailable += ms.at(row);
                    if orphan.is_some() && reason.at(row) == orphan {
                        self.folded.mig_orphan += ms.at(row);
                    }
                }
            }
        }
        for ((cause, _), ms) in causes.iter().zip(unobserved) {
            *self.folded.unobserved_by.entry(*cause).or_default() += ms;
        }
        Ok(())
    }

    fn place(&mut self, key: &[u32]) -> usize {
        if self.last.0 == key {
            return self.last.1;
        }
        let place = match self.places.get(key) {
            Some(place) => *place,
            None => {
                self.sums.push(Sums::default());
                self.places.insert(key.to_vec(), self.sums.len() - 1);
                self.sums.len() - 1
            }
        };
        self.last.0.clear();
        self.last.0.extend_from_slice(key);
        self.last.1 = place;
        place
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
        for ((place, job), time) in std::mem::take(&mut self.times).all() {
            // No name in Kubernetes has a line break.
            self.sums[place].jobs.insert(job.map(|number| self.job_names.text(number)).join("\n"), time);
        }
        for (key, place) in std::mem::take(&mut self.places) {
            let sums = std::mem::take(&mut self.sums[place]);
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
    places: ScalarBuffer<i32>,
    nulls: Option<NullBuffer>,
    values: StringArray,
}

impl Words {
    fn of(column: &ArrayRef) -> Result<Self, &'static str> {
        let kind = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        let column =
            if *column.data_type() == kind { column.clone() } else { cast(column, &kind).map_err(|_| "a column is not text")? };
        let words = column.as_dictionary_opt::<Int32Type>().ok_or("a column is not text")?;
        let values = words.values().as_string_opt::<i32>().ok_or("a column is not text")?.clone();
        let nulls = words.keys().nulls().filter(|nulls| nulls.null_count() > 0).cloned();
        Ok(Self { places: words.keys().values().clone(), nulls, values })
    }

    fn at(&self, row: usize) -> Option<usize> {
        let known = self.nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
        known.then(|| self.places[row] as usize) // places in a dictionary are not negative
    }

    fn number_of(&self, word: &str) -> Option<usize> {
        self.values.iter().position(|value| value == Some(word))
    }
}
