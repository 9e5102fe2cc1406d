//! Money from the lake: hour rows, inventory and a rate card to table `costs` and a bill (rules M1 to M10).
//!
//! ```text
//! rate card (YAML) ──yaml──> card ────────────────────────┐
//! nodes, billed_runs ──supply──> runs, oldest hour first ─┤
//! gpu_hours ──usage──> who held how much of which pool ───┼─ledger::money──> costs, an hour at a time ──> bill
//! allocations, restarts ──restarts──> work lost ──────────┘
//! ```
//!
//! Hours are settled by themselves, so a commitment that is exceeded in one hour does not fill a quiet one (M6), and longer
//! windows are sums of hours. An hour is done again only where what it is made from changed: pools, runs, hour rows, restarts.
//!
//! Modules in reading order: [`card`], [`yaml`], `files`, `columns`, `supply`, `usage`, `restarts`, `job`, [`costs`], [`bill`],
//! [`proof`].

use std::collections::BTreeMap;

use lake::{Lake, LakeError};
use ledger::{input::Text, money::MoneyError};
use schemas::{HOUR_MS, Timestamp, Window};

pub mod bill;
pub mod card;
mod columns;
pub mod costs;
mod files;
mod job;
pub mod proof;
mod restarts;
mod supply;
mod usage;
pub mod yaml;

pub use costs::CostRow;

use card::Card;
use files::Files;
use job::Job;
use supply::SupplyError;

/// What stopped the pricing.
#[derive(Debug, thiserror::Error)]
pub enum CostsError {
    /// The lake could not be read or written.
    #[error(transparent)]
    Lake(#[from] LakeError),
    /// A bound inside an hour.
    #[error("{0} is not on a full UTC hour; the ledger's rows are whole hours, so give a bound such as {1}")]
    InsideHour(Timestamp, Timestamp),
    /// No hour rows in the window.
    #[error("no hour rows {0}; run `strandline hours --lake DIR` first, or widen --from and --to")]
    NoHours(String),
    /// A card that holds at no hour of the window.
    #[error(
        "{file} prices nothing from {from} to {to}: its pools hold from {first} to {last}; give the card of these months, or \
         another window"
    )]
    OtherMonths {
        /// The card.
        file: String,
        /// First hour asked for.
        from: Timestamp,
        /// First instant after.
        to: Timestamp,
        /// First instant of a pool.
        first: Timestamp,
        /// And the last.
        last: Timestamp,
    },
    /// An hour that the ledger refuses.
    #[error("hour {hour}: not priced ({})", source.code())]
    Refused {
        /// The hour.
        hour: Timestamp,
        /// Why.
        source: MoneyError,
    },
    /// Runs that do not add up.
    #[error("hour {hour}: {what}")]
    Runs {
        /// The hour.
        hour: Timestamp,
        /// What is wrong.
        what: String,
    },
    /// Rows that are not ours.
    #[error("{file}: {what}; run `strandline hours --lake DIR --force` to write it anew")]
    BadRow {
        /// The file.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// Rows that do not make a batch.
    #[error("hour {hour}: cannot build rows of costs")]
    Build {
        /// The hour.
        hour: Timestamp,
        /// Arrow's reason.
        source: datafusion::arrow::error::ArrowError,
    },
}

/// How hours are priced.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Only hours of this window; none: every hour with hour rows.
    pub window: Option<Window>,
    /// Price hours again whose inputs did not change.
    pub force: bool,
    /// Keep the rows in memory, for somebody who only asks, and leave table `costs` as it is.
    pub keep: bool,
}

/// What was done.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The window, clipped to nothing: as asked for, or that of the hour rows.
    pub window: Window,
    /// Hours priced.
    pub computed: usize,
    /// Hours whose inputs had not changed.
    pub unchanged: usize,
    /// Hours of the window that have rows, in order.
    pub hours: Vec<Timestamp>,
    /// By pool: where its runs come from.
    pub basis: BTreeMap<Text, &'static str>,
    /// What the source says of each pool over these hours, computed over each unbroken stretch at once.
    pub amounts: BTreeMap<Text, i64>,
    /// Cost of what is paid ahead in hours of the window that have no rows: in no row.
    pub unsettled: BTreeMap<Text, i64>,
    /// What is to be said.
    pub warnings: Vec<String>,
    /// The rows of every hour, where they were kept in memory.
    pub rows: Vec<CostRow>,
}

/// Prices every hour of the window whose inputs changed. `progress` is told after each hour: done, all.
pub fn run(lake: &Lake, card: &Card, options: Options, mut progress: impl FnMut(usize, usize)) -> Result<Summary, CostsError> {
    let files = Files::list(lake)?;
    let window = files.window(options.window)?;
    let (first, last) = card.reach().unwrap_or((window.to(), window.from()));
    if !card.entries.iter().any(|entry| entry.touches(window.from(), window.to())) {
        let (from, to) = (window.from(), window.to());
        return Err(CostsError::OtherMonths { file: card.file.clone(), from, to, first, last });
    }
    let mut job = Job::new(lake, card, &files, window, options)?;
    // What is billed by use is cumulative since the lake's first hour; without such a pool nothing before the window matters.
    let has_runs = card.entries.iter().any(|entry| entry.pool.term().is_none());
    let start = if has_runs { files.first().min(window.from()) } else { window.from() };
    let all = usize::try_from((window.to().ms() - start.ms()) / HOUR_MS).unwrap_or(usize::MAX);
    let mut hour = start;
    let mut done = 0;
    while hour < window.to() {
        let nodes = |at| if has_runs { files.rows("nodes", at, &supply::NODE_COLUMNS) } else { Ok(Vec::new()) };
        let runs = job.supply.hour(hour, nodes).map_err(|error| match error {
            SupplyError::Lake(error) => CostsError::Lake(error),
            SupplyError::TooLarge(_) => CostsError::Runs { hour, what: error.to_string() },
        })?;
        if hour >= window.from() {
            job.hour(hour, &runs)?;
        }
        (hour, done) = (hour.plus_ms(HOUR_MS), done + 1);
        progress(done, all);
    }
    job.finish()
}
