//! Hot files to closed hours: every row in the folder of its own time, once, sorted (DESIGN 3.4, D6).
//!
//! ```text
//! hot files ──rows by hour──┐
//! part of that hour ────────┴─merge: drop repeats, sort──> the part again, replaced whole        (tables of samples)
//! hot files ──latest state per id──> what each hour has of it ──> the part again, replaced whole (tables of intervals)
//! then the watermark
//! ```
//!
//! * An hour may be closed once it is over by `close_after` and everything of it that was taken is in hot files. Rows that come
//!   later reopen it until `late_limit`; after that they are counted in `rejects` (reason `late`).
//! * The footer of a part says up to which offset of each partition it was made (`inputs`), so that a hot file is merged into
//!   an hour once, through restarts; closing again with nothing new changes nothing.
//! * A part is replaced atomically, and the watermark moves after all parts: who dies in between does the same again.
//! * Rows of samples are unique on their table's sort columns. Of several, the highest sequence stands, then the lowest
//!   offset; the others are counted as repeats.

mod intervals;
mod lock;
mod samples;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use intervals::Book;
use lake::{Footer, HotFile, Lake, LakeError, Watermark};
use lock::Lock;
use schemas::tables::{self, Table};
use schemas::{HOUR_MS, Timestamp};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// When hours close.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Time past its end after which an hour may close. Default 10 minutes.
    pub close_after_ms: i64,
    /// Time past its end until which late rows reopen it. Default 7 days.
    pub late_limit_ms: i64,
    /// Longest stretch of hours of intervals that is filled at one time, counted back from the end. Default 400 days.
    pub max_hours: i64,
    /// Whether a lake begins with the first interval it is told of, and not with its first sample: an import's does, while a
    /// live one knows nothing of the months that a pod ran before it. Default no.
    pub reach_back: bool,
    /// Rows of hot files held in memory at one time. Default 1,000,000.
    pub budget_rows: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            close_after_ms: 600_000,
            late_limit_ms: 7 * schemas::time::DAY_MS,
            budget_rows: 1_000_000,
            max_hours: 24 * 400,
            reach_back: false,
        }
    }
}

/// Why hours could not be closed.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// The lake failed.
    #[error("cannot close hours of {table}")]
    Lake {
        /// Table.
        table: &'static str,
        /// Why.
        #[source]
        source: Box<LakeError>,
    },
    /// Rows that do not fit together.
    #[error("cannot sort rows of {table}")]
    Rows {
        /// Table.
        table: &'static str,
        /// Why.
        #[source]
        source: ArrowError,
    },
    /// The watermark failed.
    #[error("cannot move the watermark")]
    Watermark(#[source] Box<LakeError>),
    /// Another process closes hours of this lake.
    #[error("another process has been closing hours of {lake} for {}; is one stuck?", wait.as_secs())]
    Busy {
        /// The lake.
        lake: std::path::PathBuf,
        /// How long this one has waited.
        wait: Duration,
    },
    /// Whether another process closes hours cannot be told.
    #[error("cannot use the lock {path}")]
    Lock {
        /// The lock's file.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl CloseError {
    /// Whether it may go away by itself.
    pub fn passes(&self) -> bool {
        match self {
            CloseError::Lake { source, .. } | CloseError::Watermark(source) => source.is_disk_full(),
            CloseError::Lock { source, .. } => {
                matches!(source.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
            }
            CloseError::Busy { .. } => true,
            CloseError::Rows { .. } => false,
        }
    }
}

/// What closing did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CloseReport {
    /// Parts written, by table.
    pub parts: BTreeMap<&'static str, u64>,
    /// Rows in them.
    pub rows: u64,
    /// Repeats dropped.
    pub repeats: u64,
    /// Rows and states that came too late.
    pub late: u64,
    /// The watermark now.
    pub watermark: Option<Watermark>,
}

/// Tables whose rows are instants.
const SAMPLES: [&str; 4] = ["gpu_samples", "extra_samples", "scrapes", "rejects"];
/// Tables whose rows are intervals.
const INTERVALS: [&str; 3] = ["allocations", "demand", "nodes"];

/// Closes hours of one lake. Keeps what it has read of hot files, which never change.
pub struct Closer {
    lake: Lake,
    options: Options,
    epoch: String,
    footers: HashMap<std::path::PathBuf, Footer>,
    /// Hot files of sample tables that are in closed hours with all of their rows.
    done: std::collections::HashSet<std::path::PathBuf>,
    /// Up to which offset an hour has each partition, by table and hour.
    covered: HashMap<(&'static str, Timestamp), Covered>,
    books: BTreeMap<&'static str, Book>,
}

/// For each `topic id/partition`, the first offset that is not in.
type Covered = BTreeMap<String, u64>;

impl Closer {
    /// A closer of `lake`.
    pub fn new(lake: Lake, options: Options) -> Self {
        Closer {
            lake,
            options,
            epoch: format!("{:016x}", RandomState::new().hash_one(std::process::id())),
            footers: HashMap::new(),
            done: Default::default(),
            covered: HashMap::new(),
            books: INTERVALS.into_iter().map(|name| (name, Book::new(tables::get(name)))).collect(),
        }
    }

    /// Up to where hours may be closed at `now`, where all records of before `behind` are in hot files (none: all are).
    pub fn due(&self, now: Timestamp, behind: Option<Timestamp>) -> Timestamp {
        let over = now.plus_ms(-self.options.close_after_ms);
        behind.map_or(over, |behind| behind.min(over)).hour()
    }

    /// Closes every hour that ends at or before `upto`, and moves the watermark there. `now` decides what is late.
    ///
    /// One process at a time closes hours of a lake: a part is made of what is there, and two at once would each leave out what
    /// the other one adds. After an error what this closer remembers may be ahead of the lake; make a new one.
    pub fn close(&mut self, upto: Timestamp, now: Timestamp) -> Result<CloseReport, CloseError> {
        let mut lock = Lock::take(&self.lake)?;
        if !lock.was(&self.epoch) {
            // Another one has closed hours since: what is remembered of them is old.
            *self = Closer::new(self.lake.clone(), self.options);
            lock.is_now(&self.epoch)?;
        }
        let upto = upto.hour();
        let before = self.lake.watermark().map_err(|e| CloseError::Watermark(Box::new(e)))?;
        let mut report = CloseReport { watermark: before, ..CloseReport::default() };
        let mut first = before.map(|w| w.from);
        for name in SAMPLES {
            let earliest = self.samples(tables::get(name), upto, now, before, &mut report)?;
            if name != "rejects" {
                first = [first, earliest].into_iter().flatten().min();
            }
        }
        for name in INTERVALS {
            self.learn(name, now, before, &mut report)?;
        }
        // A lake that has only seen intervals begins with the first of them.
        if first.is_none() || self.options.reach_back {
            let earliest = self.books.values().filter_map(Book::earliest).min().map(Timestamp::hour);
            first = [first, earliest].into_iter().flatten().min();
        }
        let Some(from) = first.filter(|from| *from < upto) else { return Ok(report) };
        let watermark = Watermark { from, closed_to: before.map_or(upto, |w| w.closed_to.max(upto)) };
        for name in INTERVALS {
            self.intervals(name, watermark, before, &mut report)?;
        }
        if before != Some(watermark) {
            self.lake.set_watermark(watermark).map_err(|e| CloseError::Watermark(Box::new(e)))?;
            report.watermark = Some(watermark);
        }
        Ok(report)
    }

    /// Hot files of a table in order of (topic, partition, offset), with their footers.
    fn hot(&mut self, table: &'static Table) -> Result<Vec<(HotFile, Footer)>, CloseError> {
        let files = self.lake.hot_files(table).map_err(failed(table))?;
        files
            .into_iter()
            .map(|file| {
                let footer = match self.footers.get(&file.path) {
                    Some(footer) => footer.clone(),
                    None => {
                        let footer = lake::read::footer(&file.path).map_err(failed(table))?;
                        self.footers.insert(file.path.clone(), footer.clone());
                        footer
                    }
                };
                Ok((file, footer))
            })
            .collect()
    }

    /// What a closed hour was made from.
    fn covered(&mut self, table: &'static Table, hour: Timestamp) -> Result<&mut Covered, CloseError> {
        if !self.covered.contains_key(&(table.name, hour)) {
            let path = self.lake.root().join(lake::ClosedKey::of(hour).path(table));
            let known = if path.exists() {
                let footer = lake::read::footer(&path).map_err(failed(table))?;
                // A part without `inputs` was made by an import; nothing of the log is in it.
                footer.inputs.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
            } else {
                Covered::new()
            };
            self.covered.insert((table.name, hour), known);
        }
        Ok(self.covered.entry((table.name, hour)).or_default())
    }

    /// Whether rows of an hour come too late to be taken in.
    fn is_late(&self, hour: Timestamp, now: Timestamp, watermark: Option<Watermark>) -> bool {
        let closed = watermark.is_some_and(|w| hour < w.closed_to);
        closed && hour.plus_ms(HOUR_MS).plus_ms(self.options.late_limit_ms) < now
    }

    fn publish(
        &self,
        table: &'static Table,
        hour: Timestamp,
        rows: &RecordBatch,
        covered: &Covered,
        repeats: u64,
        report: &mut CloseReport,
    ) -> Result<(), CloseError> {
        let footer = Footer {
            inputs: Some(serde_json::to_string(covered).unwrap_or_default()),
            repeats,
            writer_epoch: self.epoch.clone(),
            ..Footer::default()
        };
        let key = lake::ClosedKey::of(hour);
        if rows.num_rows() == 0 {
            self.lake.remove_closed(table, key).map_err(failed(table))?;
        } else {
            self.lake.publish_closed(table, key, std::slice::from_ref(rows), footer).map_err(failed(table))?;
        }
        *report.parts.entry(table.name).or_default() += 1;
        report.rows += rows.num_rows() as u64;
        Ok(())
    }
}

/// Name of a file's partition in [`Covered`].
fn part_of(file: &HotFile) -> String {
    format!("{}/{:05}", file.key.topic_id.as_str(), file.key.partition)
}

fn failed(table: &'static Table) -> impl Fn(LakeError) -> CloseError {
    move |source| CloseError::Lake { table: table.name, source: Box::new(source) }
}

fn wrong(table: &'static Table) -> impl Fn(ArrowError) -> CloseError {
    move |source| CloseError::Rows { table: table.name, source }
}
