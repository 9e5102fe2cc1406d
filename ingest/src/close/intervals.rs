//! Tables whose rows are intervals: the latest state of each id stands, and every hour has its part of it.
//!
//! A state is what one message says: of one holding, of one pod's demand, or of a node with all of its devices and spells. The
//! latest by (observed at, revision) replaces the earlier one whole. A change rewrites those closed hours in which the two
//! differ: a holding that goes on, or ends later, changes no hour that it filled before.

use super::{CloseError, CloseReport, Closer, Covered, Told, failed, wrong};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use arrow::row::{OwnedRow, RowConverter, SortField};
use lake::{ClosedKey, HotFile, HotKey, Place, Version, Watermark};
use schemas::tables::{self, Table};
use schemas::{HOUR_MS, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Columns that name a state, by table.
fn id_columns(table: &Table) -> &'static [&'static str] {
    match table.name {
        "allocations" => &["cluster", "node", "source", "holding_id"],
        "demand" => &["cluster", "pod_uid"],
        _ => &["cluster", "node", "source"],
    }
}

/// Columns that say when and from where a state was observed, or how the interval goes on after the hour: no difference there
/// is a difference in an hour, but for the listings of a sighting ([`Listed`]).
const ASIDE: [&str; 12] = [
    "from_at",
    "to_at",
    "interval_to",
    "observed_at",
    "revision",
    "log_partition",
    "log_offset",
    "end_reason",
    "outcome",
    "last_listed",
    "last_checkpoint",
    "terminal_phase",
];
/// Moments inside an interval: they differ in the hours after them only.
const MOMENTS: [&str; 3] = ["known_from", "started_at", "terminating_from"];

/// The latest states of one table, as hot files tell them.
pub(super) struct Book {
    table: &'static Table,
    /// Rows come back only from the converter that made them.
    whole: RowConverter,
    states: BTreeMap<OwnedRow, State>,
    pub(super) read: HashMap<Place, Told>,
    /// Up to which offset it has every file of each partition.
    covered: Covered,
    /// What was carried over when files were removed.
    pub(super) carried: Carried,
    /// States that a closed hour before that was written from, of the last that was asked for.
    written: Option<(Timestamp, BTreeMap<OwnedRow, State>)>,
    /// Closed hours to be written again.
    dirty: BTreeSet<Timestamp>,
}

/// Up to where a book stands on what was carried over, and no longer on hot files.
#[derive(Default)]
pub(super) struct Carried {
    /// States that end before this hour are not in the book; its closed hours are not written any more. None: all are.
    pub(super) from: Option<Timestamp>,
    version: Option<Version>,
}

/// What stands in the footer of carried states as `inputs`.
#[derive(serde::Serialize, serde::Deserialize)]
struct CarriedInputs {
    from: Timestamp,
    covered: Covered,
}

struct State {
    order: (i64, i64),
    intervals: Vec<Interval>,
}

/// One row of a state.
struct Interval {
    from: i64,
    to: Option<i64>,
    moments: [Option<i64>; MOMENTS.len()],
    listed: Option<Listed>,
    /// What else the row says, for comparing.
    rest: OwnedRow,
    /// The row, for writing.
    whole: OwnedRow,
}

/// Up to when a sighting was listed, as its state tells.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Listed {
    last: i64,
    /// Neither missed since nor ended: listings that change nothing are not told, so it goes on.
    goes_on: bool,
}

impl Listed {
    /// What of it tells which pods of an hour it may mean: those bound before it was missed, and of one that goes on any, if
    /// there was news of it since the hour began.
    fn in_hour(self, begin: i64, end: i64) -> Option<i64> {
        Some(self.last).filter(|last| *last < if self.goes_on { begin } else { end })
    }
}

/// What an hour has of an interval.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Piece<'a> {
    rest: &'a OwnedRow,
    from: i64,
    to: i64,
    moments: [Option<i64>; MOMENTS.len()],
    listed: Option<i64>,
}

impl Interval {
    fn in_hour(&self, hour: Timestamp) -> Option<Piece<'_>> {
        let (begin, end) = (hour.ms(), hour.plus_ms(HOUR_MS).ms());
        let (from, to) = (self.from.max(begin), self.to.map_or(end, |to| to.min(end)));
        let moments = self.moments.map(|m| m.filter(|ms| *ms < end));
        let listed = self.listed.and_then(|listed| listed.in_hour(begin, end));
        (from < to).then_some(Piece { rest: &self.rest, from, to, moments, listed })
    }
}

impl State {
    fn in_hour(&self, hour: Timestamp) -> Vec<Piece<'_>> {
        let mut pieces: Vec<_> = self.intervals.iter().filter_map(|i| i.in_hour(hour)).collect();
        pieces.sort();
        pieces
    }

    /// The hours in which the state may have anything, below `end`.
    fn hours(&self, end: Timestamp) -> (Timestamp, Timestamp) {
        let from = self.intervals.iter().map(|i| i.from).min().unwrap_or(end.ms());
        let to = self.intervals.iter().map(|i| i.to.unwrap_or(end.ms())).max().unwrap_or(from);
        (Timestamp::from_ms(from).hour(), Timestamp::from_ms(to).min(end))
    }

    /// Before which instant two states say the same of every hour, as they differ at most in when they were listed; the end of
    /// time where they are alike. None: they differ in more.
    fn alike_before(&self, other: &State) -> Option<i64> {
        let same =
            |(a, b): (&Interval, &Interval)| a.from == b.from && a.to == b.to && a.moments == b.moments && a.rest == b.rest;
        let pairs = self.intervals.iter().zip(&other.intervals);
        if self.intervals.len() != other.intervals.len() || !pairs.clone().all(same) {
            return None;
        }
        let relisted = |(a, b): (&Interval, &Interval)| {
            let last = |i: &Interval| i.listed.map_or(0, |listed| listed.last);
            if a.listed == b.listed { i64::MAX } else { last(a).min(last(b)) }
        };
        Some(pairs.fold(i64::MAX, |least, pair| least.min(relisted(pair))))
    }
}

impl Book {
    pub(super) fn new(table: &'static Table) -> Self {
        let whole = converter(table.schema().fields().iter().map(|f| f.data_type().clone()));
        let whole = whole.expect("the tables have only column types that Arrow can order");
        Book {
            table,
            whole,
            states: BTreeMap::new(),
            read: HashMap::new(),
            covered: Covered::new(),
            carried: Carried::default(),
            written: None,
            dirty: BTreeSet::new(),
        }
    }

    /// Whether it knows what a hot file says.
    pub(super) fn has(&self, key: &HotKey) -> bool {
        self.covered.get(&key.part()).is_some_and(|next| *next > key.start)
    }

    /// The first instant of any interval.
    pub(super) fn earliest(&self) -> Option<Timestamp> {
        self.states.values().flat_map(|s| &s.intervals).map(|i| i.from).min().map(Timestamp::from_ms)
    }

    /// The states of rows whose intervals stand in the columns `bounds`, in order of their messages.
    fn states(&self, rows: &RecordBatch, bounds: [&str; 2]) -> Result<Vec<(OwnedRow, State)>, CloseError> {
        let table = self.table;
        let of = |names: &dyn Fn(&str) -> bool| -> Result<arrow::row::Rows, CloseError> {
            let columns: Vec<usize> = (0..table.columns.len()).filter(|i| names(&table.columns[*i].name)).collect();
            encode(rows, &columns).map_err(wrong(table))
        };
        // In the order in which the id's columns are listed, not the table's: ids are compared with themselves only.
        let ids = of(&|name| id_columns(table).contains(&name))?;
        let rest = of(&|name| !ASIDE.contains(&name) && !MOMENTS.contains(&name))?;
        let whole = self.whole.convert_columns(rows.columns()).map_err(wrong(table))?;
        let times = |name: &str| table.index(name).map(|i| rows.column(i).as_primitive::<TimestampMicrosecondType>());
        let ints = |name: &str| table.index(name).map(|i| rows.column(i).as_primitive::<Int64Type>());
        let ms = |column: Option<&arrow::array::PrimitiveArray<TimestampMicrosecondType>>, row: usize| {
            column.filter(|c| c.is_valid(row)).map(|c| Timestamp::from_micros(c.value(row)).ms())
        };
        let number = |column: Option<&arrow::array::PrimitiveArray<Int64Type>>, row: usize| {
            column.filter(|c| c.is_valid(row)).map_or(-1, |c| c.value(row))
        };
        let (from, to, observed) = (times(bounds[0]), times(bounds[1]), times("observed_at"));
        let (last_listed, ended) = (times("last_listed"), times("interval_to"));
        let moments = MOMENTS.map(times);
        let (revision, partition, offset) = (ints("revision"), ints("log_partition"), ints("log_offset"));
        // One message is one state, whatever order its rows have in the file.
        let mut by_message: BTreeMap<(i64, i64, OwnedRow), State> = BTreeMap::new();
        for row in 0..rows.num_rows() {
            let id = ids.row(row).owned();
            let state = by_message.entry((number(partition, row), number(offset, row), id)).or_insert_with(|| State {
                order: (ms(observed, row).unwrap_or(i64::MIN), number(revision, row)),
                intervals: Vec::new(),
            });
            state.intervals.push(Interval {
                from: ms(from, row).unwrap_or_default(),
                to: ms(to, row),
                moments: moments.map(|m| ms(m, row)),
                listed: ms(last_listed, row).map(|last| Listed {
                    last,
                    goes_on: ms(ended, row).is_none() && ms(observed, row).is_none_or(|at| at <= last),
                }),
                rest: rest.row(row).owned(),
                whole: whole.row(row).owned(),
            });
        }
        Ok(by_message.into_iter().map(|((_, _, id), state)| (id, state)).collect())
    }

    /// What an hour has, as rows.
    fn rows(&self, hour: Timestamp) -> Result<RecordBatch, CloseError> {
        let table = self.table;
        let mut whole = Vec::new();
        let (mut from, mut to) = (Vec::new(), Vec::new());
        for interval in self.states.values().flat_map(|s| &s.intervals) {
            if let Some(piece) = interval.in_hour(hour) {
                whole.push(interval.whole.row());
                from.push(Timestamp::from_ms(piece.from).micros());
                to.push(Timestamp::from_ms(piece.to).micros());
            }
        }
        if whole.is_empty() {
            return Ok(RecordBatch::new_empty(table.schema()));
        }
        let mut columns: Vec<ArrayRef> = self.whole.convert_rows(whole).map_err(wrong(table))?;
        let time = |ms: Vec<i64>| Arc::new(TimestampMicrosecondArray::from(ms).with_timezone("UTC")) as ArrayRef;
        for (name, values) in [("from_at", from), ("to_at", to)] {
            if let Some(index) = table.index(name) {
                columns[index] = time(values);
            }
        }
        let batch = RecordBatch::try_new(table.schema(), columns).map_err(wrong(table))?;
        lake::encode::sorted(table, &[batch]).map_err(failed(table))
    }
}

impl Closer {
    /// Takes new hot files of a table into its book, and notes which closed hours they change.
    pub(super) fn learn(
        &mut self,
        name: &'static str,
        now: Timestamp,
        watermark: Option<Watermark>,
        report: &mut CloseReport,
    ) -> Result<(), CloseError> {
        let table = tables::get(name);
        for file in self.hot(table)? {
            let part = file.key.part();
            let Some(book) = self.books.get(name) else { return Ok(()) };
            if book.has(&file.key) {
                continue;
            }
            let rows = whole_file(table, &file.path)?;
            let next = lake::read::footer(&file.path).map_err(failed(table))?.end.unwrap_or(file.key.start) + 1;
            let states = book.states(&rows, INTERVAL)?;
            let newest = states.iter().map(|(_, state)| state.order.0).max().map(Timestamp::from_ms);
            for (id, new) in states {
                self.change(table, &file, id, new, now, watermark, report)?;
            }
            if let Some(book) = self.books.get_mut(name) {
                let known = book.covered.entry(part).or_default();
                *known = next.max(*known);
                book.read.insert(file.path.clone(), Told { next, newest });
            }
        }
        Ok(())
    }

    /// What a hot file that was learned told last.
    pub(super) fn told(&mut self, table: &'static Table, place: &Place) -> Result<Option<Told>, CloseError> {
        let Some(book) = self.books.get_mut(table.name) else { return Ok(None) };
        if let Some(told) = book.read.get(place) {
            return Ok(Some(*told));
        }
        // Known from what was carried over, and not looked at by this process.
        let Some(end) = lake::read::footer(place).map_err(failed(table))?.end else { return Ok(None) };
        let states = book.states(&whole_file(table, place)?, INTERVAL)?;
        let newest = states.iter().map(|(_, state)| state.order.0).max().map(Timestamp::from_ms);
        let told = Told { next: end + 1, newest };
        book.read.insert(place.clone(), told);
        Ok(Some(told))
    }

    /// Takes up what was carried over when hot files were removed.
    pub(super) fn take_up(&mut self, name: &'static str) -> Result<(), CloseError> {
        let table = tables::get(name);
        let place = self.lake.carried(table);
        let Some(version) = place.version().map_err(failed(table))? else { return Ok(()) };
        let footer = lake::read::footer(&place).map_err(failed(table))?;
        let inputs = footer.inputs.as_deref().and_then(|text| serde_json::from_str::<CarriedInputs>(text).ok());
        let Some(inputs) = inputs else {
            return Err(failed(table)(lake::LakeError::Footer { path: place.display().to_string().into(), key: "inputs" }));
        };
        let rows = whole_file(table, &place)?;
        let Some(book) = self.books.get_mut(name) else { return Ok(()) };
        book.states = book.states(&rows, INTERVAL)?.into_iter().collect();
        book.covered = inputs.covered;
        book.carried = Carried { from: Some(inputs.from), version: Some(version) };
        Ok(())
    }

    /// Writes down the states that go on at `from` or later, and forgets the others.
    pub(super) fn carry(&mut self, name: &'static str, from: Timestamp) -> Result<(), CloseError> {
        let table = tables::get(name);
        let Some(book) = self.books.get_mut(name) else { return Ok(()) };
        book.states.retain(|_, state| state.intervals.iter().any(|i| i.to.is_none_or(|to| to > from.ms())));
        let rows: Vec<_> = book.states.values().flat_map(|s| &s.intervals).map(|i| i.whole.row()).collect();
        let rows = match rows.is_empty() {
            true => RecordBatch::new_empty(table.schema()),
            false => {
                let columns = book.whole.convert_rows(rows).map_err(wrong(table))?;
                RecordBatch::try_new(table.schema(), columns).map_err(wrong(table))?
            }
        };
        let inputs = CarriedInputs { from, covered: book.covered.clone() };
        let footer = lake::Footer {
            inputs: Some(serde_json::to_string(&inputs).unwrap_or_default()),
            writer_epoch: self.epoch.clone(),
            ..lake::Footer::default()
        };
        let written = self.lake.publish_carried_over(table, &rows, footer, book.carried.version.as_ref());
        let Some(version) = written.map_err(failed(table))? else { return Err(self.overtaken()) };
        if let Some(book) = self.books.get_mut(name) {
            book.carried = Carried { from: Some(from), version: Some(version) };
            book.written = None;
        }
        Ok(())
    }

    /// What a closed hour has of an id that is not in the book any more.
    fn written(&mut self, table: &'static Table, hour: Timestamp, id: &OwnedRow, new: &State) -> Result<bool, CloseError> {
        let place = self.lake.place(&ClosedKey::of(hour).path(table));
        let Some(book) = self.books.get_mut(table.name) else { return Ok(true) };
        if book.written.as_ref().is_none_or(|(of, _)| *of != hour) {
            let mut states: BTreeMap<OwnedRow, State> = BTreeMap::new();
            if place.exists().map_err(failed(table))? {
                for (id, state) in book.states(&whole_file(table, &place)?, ["from_at", "to_at"])? {
                    match states.entry(id) {
                        std::collections::btree_map::Entry::Vacant(entry) => drop(entry.insert(state)),
                        std::collections::btree_map::Entry::Occupied(mut entry) => {
                            entry.get_mut().intervals.extend(state.intervals)
                        }
                    }
                }
            }
            book.written = Some((hour, states));
        }
        let found = book.written.as_ref().and_then(|(_, states)| states.get(id));
        Ok(found.map_or(Vec::new(), |state| state.in_hour(hour)) == new.in_hour(hour))
    }

    #[allow(clippy::too_many_arguments)]
    fn change(
        &mut self,
        table: &'static Table,
        file: &HotFile,
        id: OwnedRow,
        new: State,
        now: Timestamp,
        watermark: Option<Watermark>,
        report: &mut CloseReport,
    ) -> Result<(), CloseError> {
        let Some(book) = self.books.get_mut(table.name) else { return Ok(()) };
        let old = book.states.get(&id);
        if old.is_some_and(|old| old.order >= new.order) {
            return Ok(()); // a repeat, or one that was overtaken
        }
        let carried_from = book.carried.from;
        if let Some(from) = carried_from.filter(|from| old.is_none() && new.order.0 < from.ms()) {
            // Of an id that is not known any more, from before that: it may have been overtaken, and nobody can tell.
            let hour = new.intervals.iter().map(|i| i.from).min().map_or(from, |first| Timestamp::from_ms(first.max(0)).hour());
            report.late += 1;
            return self.too_late(table, hour, &file.key.part(), file.key.start, 1, report);
        }
        let unknown = old.is_none();
        let mut candidates = Vec::new();
        let alike_before = old.and_then(|old| old.alike_before(&new));
        if let Some(w) = watermark
            && alike_before != Some(i64::MAX)
        {
            let (mut first, mut last) = new.hours(w.closed_to);
            if let Some((f, l)) = old.map(|old| old.hours(w.closed_to)) {
                (first, last) = (first.min(f), last.max(l));
            }
            if let Some(alike) = alike_before {
                first = first.max(Timestamp::from_ms(alike).hour());
            }
            let mut hour = first.max(w.from).max(last.plus_ms(-self.options.max_hours * HOUR_MS).hour());
            while hour < last {
                let before = old.map_or(Vec::new(), |old| old.in_hour(hour));
                if before != new.in_hour(hour) {
                    candidates.push(hour);
                }
                hour = hour.plus_ms(HOUR_MS);
            }
        }
        if unknown && let Some(from) = carried_from {
            // Before that, a book that has nothing of an id knows nothing of it: the hours themselves do.
            let mut differ = Vec::with_capacity(candidates.len());
            for hour in candidates {
                if hour >= from || !self.written(table, hour, &id, &new)? {
                    differ.push(hour);
                }
            }
            candidates = differ;
        }
        if let Some(book) = self.books.get_mut(table.name) {
            book.states.insert(id, new);
        }
        let part = file.key.part();
        let mut late: Option<Timestamp> = None;
        for hour in candidates {
            if carried_from.is_some_and(|from| hour < from) {
                late = late.max(Some(hour));
                continue;
            }
            if self.covered(table, hour)?.get(&part).is_some_and(|next| *next > file.key.start) {
                continue; // the hour was written when this was known
            }
            if self.is_late(hour, now, watermark) {
                late = late.max(Some(hour));
            } else if let Some(book) = self.books.get_mut(table.name) {
                book.dirty.insert(hour);
            }
        }
        if let Some(hour) = late {
            report.late += 1;
            self.too_late(table, hour, &part, file.key.start, 1, report)?;
        }
        Ok(())
    }

    /// Writes the hours that close now, and those that changed.
    pub(super) fn intervals(
        &mut self,
        name: &'static str,
        watermark: Watermark,
        before: Option<Watermark>,
        report: &mut CloseReport,
    ) -> Result<(), CloseError> {
        let table = tables::get(name);
        let Some(book) = self.books.get_mut(name) else { return Ok(()) };
        let mut hours = std::mem::take(&mut book.dirty);
        // Not before the first interval: there is nothing to write there.
        let earliest = book.earliest().map_or(watermark.closed_to, Timestamp::hour);
        let least = watermark.closed_to.plus_ms(-self.options.max_hours * HOUR_MS);
        let begin = watermark.from.max(earliest);
        if begin < least && before.is_none_or(|w| begin < w.from) {
            tracing::warn!(table = name, from = %begin, to = %least, "hours so long ago were not closed; is a clock wrong?");
        }
        // Hours before what was carried over are closed, and are not made anew without what was removed.
        let mut hour = begin.max(least).max(book.carried.from.unwrap_or(begin));
        while hour < watermark.closed_to {
            if before.is_none_or(|w| hour < w.from || hour >= w.closed_to) {
                hours.insert(hour);
            }
            hour = hour.plus_ms(HOUR_MS);
        }
        let covered = book.covered.clone();
        for hour in hours {
            let rows = match self.books.get(name) {
                Some(book) => book.rows(hour)?,
                None => continue,
            };
            let known = self.covered(table, hour)?;
            if rows.num_rows() == 0 && known.is_empty() {
                continue; // there was nothing, and is nothing
            }
            known.clone_from(&covered);
            self.publish(table, hour, &rows, &covered, 0, report)?;
        }
        Ok(())
    }
}

/// Columns that say from when to when an interval goes, whatever the hour.
const INTERVAL: [&str; 2] = ["interval_from", "interval_to"];

fn whole_file(table: &'static Table, place: &Place) -> Result<RecordBatch, CloseError> {
    let rows = lake::read::rows(table, place, None).map_err(failed(table))?;
    arrow::compute::concat_batches(&table.schema(), &rows).map_err(wrong(table))
}

fn converter(types: impl Iterator<Item = arrow::datatypes::DataType>) -> Result<RowConverter, arrow::error::ArrowError> {
    RowConverter::new(types.map(SortField::new).collect())
}

fn encode(rows: &RecordBatch, columns: &[usize]) -> Result<arrow::row::Rows, arrow::error::ArrowError> {
    let types = columns.iter().map(|i| rows.column(*i).data_type().clone());
    let arrays: Vec<ArrayRef> = columns.iter().map(|i| rows.column(*i).clone()).collect();
    converter(types)?.convert_columns(&arrays)
}
