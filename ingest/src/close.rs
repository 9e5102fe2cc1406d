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
//! * What is closed and old leaves the hot tree, where that is asked for (`retain`).
//! * A part is replaced atomically, and the watermark moves after all parts: who dies in between does the same again.
//! * Rows of samples are unique on their table's sort columns. Of several, the highest sequence stands, then the lowest
//!   offset; the others are counted as repeats.

mod intervals;
mod retain;
mod samples;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use intervals::Book;
use lake::{Footer, HotFile, Lake, LakeError, Place, Removed, Turn, Version, Watermark};
use schemas::tables::{self, Table};
use schemas::{HOUR_MS, Timestamp};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

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
    /// Longest wait for another process that closes hours. Default 60 s.
    pub wait: Duration,
    /// How long hot files are kept whose rows are all in closed hours; never less than `late_limit` and two hours. None: for
    /// ever, the default.
    pub hot_retention_ms: Option<i64>,
    /// How long closed hours of what hour rows are made from are kept, once hour rows are there; never less than hot files are. The
    /// hour rows stay. None: for ever, the default.
    pub closed_retention_ms: Option<i64>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            close_after_ms: 600_000,
            late_limit_ms: 7 * schemas::time::DAY_MS,
            budget_rows: 1_000_000,
            max_hours: 24 * 400,
            reach_back: false,
            wait: Duration::from_secs(60),
            hot_retention_ms: None,
            closed_retention_ms: None,
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
    /// The record of what was removed failed.
    #[error("cannot tell what retention has removed")]
    Removed(#[source] Box<LakeError>),
    /// The hook said so: a test's crash.
    #[error("stopped at {0:?} as told")]
    Stopped(RetainStep),
    /// Another process closes hours of this lake.
    #[error("another process has been closing hours of {lake} for {}; is one stuck?", wait.as_secs())]
    Busy {
        /// The lake.
        lake: std::path::PathBuf,
        /// How long this one has waited.
        wait: Duration,
    },
    /// Whether another process closes hours cannot be told.
    #[error("cannot tell whether another process closes hours")]
    Turn(#[source] Box<LakeError>),
    /// Another process has closed hours meanwhile: this one was paused for longer than its lease.
    #[error("another process has closed hours of {lake} meanwhile; beginning anew")]
    Overtaken {
        /// The lake.
        lake: std::path::PathBuf,
    },
}

impl CloseError {
    /// Whether it may go away by itself.
    pub fn passes(&self) -> bool {
        match self {
            CloseError::Lake { source, .. }
            | CloseError::Watermark(source)
            | CloseError::Removed(source)
            | CloseError::Turn(source) => source.passes(),
            CloseError::Busy { .. } | CloseError::Overtaken { .. } => true,
            CloseError::Rows { .. } | CloseError::Stopped(_) => false,
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
    /// Hot files that retention has removed.
    pub removed_hot: u64,
    /// Files of closed hours that retention has removed.
    pub removed_closed: u64,
}

/// The places where retention may die; a hook may stop it there (see [`Closer::on_step`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetainStep {
    /// What goes on of a table's intervals was written.
    Carried(&'static str),
    /// It is said what will be removed.
    Said,
    /// A file was removed.
    Removed,
}

type Hook = Box<dyn FnMut(RetainStep) -> ControlFlow<()> + Send>;

/// Tables whose rows are instants.
const SAMPLES: [&str; 4] = ["gpu_samples", "extra_samples", "scrapes", "rejects"];
/// Tables whose rows are intervals.
const INTERVALS: [&str; 3] = ["allocations", "demand", "nodes"];

/// Time between two questions whether it is done: the first, and the longest.
const ASK_FIRST: Duration = Duration::from_millis(20);
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Closes hours of one lake. Keeps what it has read of hot files, which never change.
pub struct Closer {
    lake: Lake,
    options: Options,
    epoch: String,
    /// Of hot files of samples that are not wholly in closed hours.
    footers: HashMap<Place, Footer>,
    /// Hot files of sample tables that are in closed hours with all of their rows.
    done: HashMap<Place, Told>,
    /// Up to which offset an hour has each partition, by table and hour.
    covered: HashMap<(&'static str, Timestamp), Covered>,
    /// Which writing of a part that is from.
    versions: HashMap<(&'static str, Timestamp), Version>,
    /// The right to close hours, while they are closed.
    turn: Option<Turn>,
    books: BTreeMap<&'static str, Book>,
    /// Offsets whose hot files are gone, or about to; none before it was asked for.
    removed: Option<(Removed, Option<Version>)>,
    /// Up to where retention has looked.
    retained_to: Option<Timestamp>,
    hook: Option<Hook>,
}

/// What is kept in mind of a hot file that needs no more reading.
#[derive(Debug, Clone, Copy)]
struct Told {
    /// First offset after it.
    next: u64,
    /// The latest time that it speaks of; none where it has no rows.
    newest: Option<Timestamp>,
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
            done: HashMap::new(),
            covered: HashMap::new(),
            versions: HashMap::new(),
            turn: None,
            books: INTERVALS.into_iter().map(|name| (name, Book::new(tables::get(name)))).collect(),
            removed: None,
            retained_to: None,
            hook: None,
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
        let turn = self.wait_for_turn()?;
        if turn.last() != self.epoch {
            // Another one has closed hours since: what is remembered of them is old.
            let (epoch, hook) = (std::mem::take(&mut self.epoch), self.hook.take());
            *self = Closer { epoch, hook, ..Closer::new(self.lake.clone(), self.options) };
        }
        self.turn = Some(turn);
        let report = self.close_in_turn(upto, now);
        self.turn = None;
        report
    }

    /// Waits for the right to close hours, but not for ever.
    fn wait_for_turn(&self) -> Result<Turn, CloseError> {
        let began = Instant::now();
        loop {
            let turn = self.lake.try_turn("closing", &self.epoch).map_err(|e| CloseError::Turn(Box::new(e)))?;
            match turn {
                Some(turn) => return Ok(turn),
                None if began.elapsed() < self.options.wait => std::thread::sleep(ASK_EVERY.min(began.elapsed().max(ASK_FIRST))),
                None => return Err(CloseError::Busy { lake: self.lake.location().to_owned(), wait: began.elapsed() }),
            }
        }
    }

    fn close_in_turn(&mut self, upto: Timestamp, now: Timestamp) -> Result<CloseReport, CloseError> {
        let upto = upto.hour();
        let found = self.lake.watermark_now().map_err(|e| CloseError::Watermark(Box::new(e)))?;
        let (before, version) = found.unzip();
        if self.removed.is_none() {
            self.recall()?;
        }
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
        let Some(from) = first.filter(|from| *from < upto) else {
            self.retain(now, before, &mut report)?;
            return Ok(report);
        };
        let watermark = Watermark { from, closed_to: before.map_or(upto, |w| w.closed_to.max(upto)) };
        for name in INTERVALS {
            self.intervals(name, watermark, before, &mut report)?;
        }
        if before != Some(watermark) {
            let set = self.lake.set_watermark_over(watermark, version.as_ref());
            if !set.map_err(|e| CloseError::Watermark(Box::new(e)))? {
                return Err(self.overtaken());
            }
            report.watermark = Some(watermark);
        }
        self.retain(now, Some(watermark), &mut report)?;
        Ok(report)
    }

    /// Calls `hook` at every step of retention; where it breaks, the closer stops there as if it had died.
    pub fn on_step(&mut self, hook: impl FnMut(RetainStep) -> ControlFlow<()> + Send + 'static) {
        self.hook = Some(Box::new(hook));
    }

    /// Hot files of a table in order of (topic, partition, offset), without those that retention was about to remove.
    ///
    /// A listing may miss a file that appears meanwhile and show the one behind it, whose offsets would then count for both. So it
    /// is listed twice: whatever is before a file of the first listing is in the second.
    fn hot(&self, table: &'static Table) -> Result<Vec<HotFile>, CloseError> {
        let mut ends: HashMap<String, u64> = HashMap::new();
        for file in self.lake.hot_files(table).map_err(failed(table))? {
            ends.insert(file.key.part(), file.key.start); // in order: the last stays
        }
        let mut files = self.lake.hot_files(table).map_err(failed(table))?;
        files.retain(|file| ends.get(&file.key.part()).is_some_and(|end| file.key.start <= *end));
        if let Some((removed, _)) = &self.removed {
            files.retain(|file| !removed.holds(&file.key.part(), file.key.start));
        }
        Ok(files)
    }

    /// The footer of a hot file of samples.
    fn footer(&mut self, table: &'static Table, file: &HotFile) -> Result<Footer, CloseError> {
        if let Some(footer) = self.footers.get(&file.path) {
            return Ok(footer.clone());
        }
        let footer = lake::read::footer(&file.path).map_err(failed(table))?;
        self.footers.insert(file.path.clone(), footer.clone());
        Ok(footer)
    }

    /// What a closed hour was made from.
    fn covered(&mut self, table: &'static Table, hour: Timestamp) -> Result<&mut Covered, CloseError> {
        if !self.covered.contains_key(&(table.name, hour)) {
            let place = self.lake.place(&lake::ClosedKey::of(hour).path(table));
            // Asked for before it is read: where another writes in between, what this one writes is refused.
            let known = match place.version().map_err(failed(table))? {
                Some(version) => {
                    self.versions.insert((table.name, hour), version);
                    let footer = lake::read::footer(&place).map_err(failed(table))?;
                    // A part without `inputs` was made by an import; nothing of the log is in it.
                    footer.inputs.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
                }
                None => Covered::new(),
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

    fn overtaken(&self) -> CloseError {
        CloseError::Overtaken { lake: self.lake.location().to_owned() }
    }

    /// Writes a part of an hour that [`Closer::covered`] was asked for.
    fn publish(
        &mut self,
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
        if let Some(turn) = &mut self.turn
            && !turn.keep().map_err(|e| CloseError::Turn(Box::new(e)))?
        {
            return Err(self.overtaken());
        }
        let key = lake::ClosedKey::of(hour);
        let over = self.versions.remove(&(table.name, hour));
        if rows.num_rows() == 0 {
            self.lake.remove_closed(table, key).map_err(failed(table))?;
        } else {
            let written = self.lake.publish_closed_over(table, key, std::slice::from_ref(rows), footer, over.as_ref());
            let Some(version) = written.map_err(failed(table))? else { return Err(self.overtaken()) };
            self.versions.insert((table.name, hour), version);
        }
        *report.parts.entry(table.name).or_default() += 1;
        report.rows += rows.num_rows() as u64;
        Ok(())
    }
}

fn failed(table: &'static Table) -> impl Fn(LakeError) -> CloseError {
    move |source| CloseError::Lake { table: table.name, source: Box::new(source) }
}

fn wrong(table: &'static Table) -> impl Fn(ArrowError) -> CloseError {
    move |source| CloseError::Rows { table: table.name, source }
}
