//! The report: where the GPU-hours went, by any grouping, with a totals line that closes.
//!
//! A fold over `gpu_hours` in integer milliseconds; hours and percentages exist only in the text (rule A1). Time known by
//! number only (rule A16) is netted here: what a holding takes from free time is taken off the free time that is printed.
//! Hours that are not closed yet are computed as they stand and counted in; hours that a time zone or a bound cuts are
//! computed anew in parts, from samples and holdings (rule A13).
//!
//! Modules in reading order: [`ask`], `fold`, [`priced`], `print`.

pub mod ask;
mod fold;
pub mod priced;
mod print;

use std::{collections::BTreeMap, fmt};

pub use ask::{BadGrouping, Dimension, Request};
use datafusion::arrow::array::{AsArray, RecordBatch, types::TimestampMicrosecondType};
use fold::{Folded, Folder, Sums};
use lake::{Lake, LakeError, scan::Scan};
use schemas::{
    HOUR_MS, Timestamp, Window,
    status::{Cause, Tier},
    tables,
};

use crate::{account::AccountError, job, live};

/// Whether a row's flags say that its node has no inventory: its capacity is not known, nor what nobody holds of it.
pub(crate) fn has_no_inventory(flags: &str) -> bool {
    flags.split(',').any(|flag| flag == "no_inventory")
}

/// What stopped a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The lake could not be read.
    #[error(transparent)]
    Lake(#[from] LakeError),
    /// An hour that had to be computed could not be.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// An hour that a bound cuts, and whose inputs are gone.
    #[error(
        "the hour of {hour} is cut at {at}, and its samples and holdings are no longer in the lake, so its rows cannot be cut; \
         choose bounds and a time zone on full UTC hours, such as --tz UTC"
    )]
    CannotCut {
        /// The hour.
        hour: Timestamp,
        /// The bound inside it.
        at: Timestamp,
    },
    /// Money by what a rate card does not know.
    #[error("money is not known by {0}; with --rates group by team, provider, region, product, purchase_option, or UTC time")]
    NotPriced(String),
    /// A zone that the system does not know, or another fault of the calendar.
    #[error("{0}")]
    Calendar(String),
    /// No hour rows in the window.
    #[error("no hour rows {0}; run `strandline hours --lake DIR` first, or widen --from and --to")]
    NoRows(String),
    /// Rows that are not ours.
    #[error("{file}: {what}; run `strandline hours --lake DIR --force` to write it anew")]
    BadRow {
        /// The file.
        file: String,
        /// What is wrong.
        what: &'static str,
    },
}

/// One group's key in one dimension.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// It has a name.
    Named(String),
    /// It should have one and has none: a team that nobody pays for, a product that the inventory does not say.
    Unattributed,
    /// Nobody held the time.
    Nobody,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Named(name) => name,
            Self::Unattributed => "unattributed",
            Self::Nobody => "(not allocated)",
        })
    }
}

/// One line: integer device-milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// Group, one key a dimension.
    pub keys: Vec<Key>,
    /// Capacity; none where the inventory is not known.
    pub capacity_ms: Option<i64>,
    /// Held by pods.
    pub allocated_ms: i64,
    /// Of that: utilized in the report's tier.
    pub utilized_ms: i64,
    /// Of that: seen and not utilized.
    pub stranded_ms: i64,
    /// Of that: not seen.
    pub unobserved_ms: i64,
    /// Nobody's, ready to be given; none where the inventory is not known.
    pub free_ms: Option<i64>,
    /// Nobody's, not to be given; none where the inventory is not known.
    pub unavailable_ms: Option<i64>,
    /// Jobs (workloads, else pods) of which anything was seen.
    pub jobs: u64,
    /// Sum over these jobs of each one's utilized share of its seen time.
    pub job_shares: f64,
    /// Money in micro-units, where a rate card is given.
    pub micro: Option<i64>,
}

impl Line {
    /// Whether both identities hold.
    pub fn closes(&self) -> bool {
        let by_tier = self.utilized_ms + self.stranded_ms + self.unobserved_ms == self.allocated_ms;
        let by_device = match (self.capacity_ms, self.free_ms, self.unavailable_ms) {
            (Some(capacity), Some(free), Some(unavailable)) => capacity == self.allocated_ms + free + unavailable,
            _ => true,
        };
        by_tier && by_device
    }

    /// Share of the allocated time that was seen, in percent; none where nothing was allocated.
    pub fn coverage(&self) -> Option<f64> {
        (self.allocated_ms > 0).then(|| 100.0 * (self.allocated_ms - self.unobserved_ms) as f64 / self.allocated_ms as f64)
    }

    /// Utilized share of what was seen, in percent, every GPU-hour alike; none where nothing was seen.
    pub fn mean_by_hours(&self) -> Option<f64> {
        let seen = self.utilized_ms + self.stranded_ms;
        (seen > 0).then(|| 100.0 * self.utilized_ms as f64 / seen as f64)
    }

    /// The same, every job alike: small and short jobs weigh as much as large ones (V27).
    pub fn mean_by_jobs(&self) -> Option<f64> {
        (self.jobs > 0).then(|| 100.0 * self.job_shares / self.jobs as f64)
    }
}

/// The answer.
#[derive(Clone, Debug)]
pub struct Report {
    /// Grouping.
    pub by: Vec<Dimension>,
    /// Tier.
    pub tier: Tier,
    /// Zone of days, months and printed bounds.
    pub zone: Option<String>,
    /// First instant of the first hour, and first after the last.
    pub window: Window,
    /// Groups, in order of their keys; with `top`, the largest by allocated time.
    pub lines: Vec<Line>,
    /// Groups that `top` left out, summed, and how many.
    pub others: Option<(usize, Line)>,
    /// All of it.
    pub total: Line,
    /// Least coverage, in percent, at which utilized and stranded time of a line is printed.
    pub min_coverage: Option<f64>,
    /// Unobserved time by cause, causes without any left out.
    pub unobserved_by: Vec<(Cause, i64)>,
    /// Time of GPUs that their MIG layout leaves unusable; part of unavailable.
    pub mig_orphan_ms: i64,
    /// Held by number beyond what the nodes have; beside the sum.
    pub overcommitted_ms: i64,
    /// Hours that are not closed, and up to when they are known.
    pub open: Option<(usize, Timestamp)>,
    /// Closed hours of the window that have no hour rows yet, and the first of them.
    pub not_computed: Option<(usize, Timestamp)>,
    /// Hours that were cut and computed anew.
    pub cut_hours: usize,
    /// Currency, and GPU time that has no price, where a rate card is given.
    pub priced: Option<(String, i64)>,
}

/// Computes a report from the hours of `lake`.
pub fn report(lake: &Lake, request: &Request) -> Result<Report, ReportError> {
    let plan = Plan::of(lake, request)?;
    let folded = plan.fold(lake, request)?;
    let none = || {
        let end = |to: Timestamp| if to.ms() > LAST_MS { "the end".to_owned() } else { to.to_string() };
        ReportError::NoRows(request.window.map_or("in the lake".into(), |w| format!("from {} to {}", w.from(), end(w.to()))))
    };
    let window = plan.window.ok_or_else(none)?;
    let mut total = Sums::default();
    folded.groups.values().for_each(|sums| total.add(sums));
    let mut lines: Vec<Line> = folded.groups.into_iter().map(|(keys, sums)| sums.line(keys)).collect();
    let mut total = total.line(vec![]);
    let mut priced = None;
    if let Some(prices) = &request.prices {
        let unpriced = priced::put(prices, &request.by, &plan.buckets, &mut lines)?;
        priced = Some((prices.currency.clone(), unpriced));
        total.micro = Some(lines.iter().filter_map(|line| line.micro).sum());
    }
    let mut others = None;
    if let Some(top) = request.top.filter(|top| *top < lines.len()) {
        // The largest first; equal ones by their keys.
        lines.sort_by(|a, b| (-a.allocated_ms, &a.keys).cmp(&(-b.allocated_ms, &b.keys)));
        let rest = lines.split_off(top);
        others = Some((rest.len(), rest.iter().fold(Line::none(), Line::plus)));
    }
    Ok(Report {
        by: request.by.clone(),
        tier: request.tier,
        zone: request.zone.clone(),
        window,
        lines,
        others,
        total,
        min_coverage: request.min_coverage,
        unobserved_by: folded.unobserved_by.into_iter().filter(|(_, ms)| *ms != 0).collect(),
        mig_orphan_ms: folded.mig_orphan,
        overcommitted_ms: folded.overcommitted,
        open: plan.open,
        not_computed: job::not_computed(lake, &plan.raw, request.window)?,
        cut_hours: plan.parts.len(),
        priced,
    })
}

impl Line {
    /// Nothing, of known capacity.
    fn none() -> Self {
        Self { capacity_ms: Some(0), free_ms: Some(0), unavailable_ms: Some(0), ..Self::default() }
    }

    fn plus(self, other: &Self) -> Self {
        let both = |a: Option<i64>, b: Option<i64>| a.zip(b).map(|(a, b)| a + b);
        Self {
            keys: self.keys,
            capacity_ms: both(self.capacity_ms, other.capacity_ms),
            allocated_ms: self.allocated_ms + other.allocated_ms,
            utilized_ms: self.utilized_ms + other.utilized_ms,
            stranded_ms: self.stranded_ms + other.stranded_ms,
            unobserved_ms: self.unobserved_ms + other.unobserved_ms,
            free_ms: both(self.free_ms, other.free_ms),
            unavailable_ms: both(self.unavailable_ms, other.unavailable_ms),
            jobs: self.jobs + other.jobs,
            job_shares: self.job_shares + other.job_shares,
            micro: self.micro.map_or(other.micro, |mine| Some(mine + other.micro.unwrap_or(0))),
        }
    }
}

/// The last instant that a time prints as a date.
const LAST_MS: i64 = 253_402_300_799_999;

/// Which rows are folded: whole closed hours from their files, cut ones and open ones computed.
struct Plan {
    whole: Vec<(Timestamp, lake::Place)>,
    parts: Vec<Window>,
    live: Vec<live::LiveHour>,
    window: Option<Window>,
    open: Option<(usize, Timestamp)>,
    buckets: ask::Buckets,
    /// Raw files of closed hours, and the time that is not closed.
    raw: job::Files,
    open_time: Option<live::Open>,
}

impl Plan {
    fn of(lake: &Lake, request: &Request) -> Result<Self, ReportError> {
        let files = lake.closed_files(tables::get("gpu_hours"), request.window)?;
        let raw = job::Files::list(lake)?;
        let open_time = live::Open::find(lake)?;
        let live = open_time.as_ref().map_or_else(|| Ok(Vec::new()), |open| open.hours(lake, &raw, request.window))?;
        let spans = files.iter().map(|file| (file.key.hour, file.key.hour.plus_ms(HOUR_MS)));
        let spans = spans.chain(live.iter().map(|hour| (hour.window.from(), hour.window.to())));
        let ends = spans.fold(None, |ends: Option<(Timestamp, Timestamp)>, (from, to)| {
            Some(ends.map_or((from, to), |(first, last)| (first.min(from), last.max(to))))
        });
        let clipped = ends.map(|(from, to)| match request.window {
            Some(asked) => (from.max(asked.from()), to.min(asked.to())),
            None => (from, to),
        });
        let window = clipped.and_then(|(from, to)| Window::new(from, to).ok());
        let buckets = ask::Buckets::of(request, window).map_err(ReportError::Calendar)?;
        let (whole, parts) = (Vec::new(), Vec::new());
        let mut plan = Self { whole, parts, live: Vec::new(), window, open: None, buckets, raw, open_time };
        let Some(window) = window else { return Ok(plan) };
        for file in files {
            let hour = file.key.hour;
            let cuts = plan.cuts(window, hour, hour.plus_ms(HOUR_MS));
            if cuts.is_empty() {
                plan.whole.push((hour, file.path));
                continue;
            }
            if !plan.raw.has(hour) {
                return Err(ReportError::CannotCut { hour, at: cuts[0] });
            }
            plan.add_parts(window, hour, hour.plus_ms(HOUR_MS), &cuts);
        }
        let hours = live.len();
        for hour in live {
            plan.open = Some((hours, hour.window.to()));
            let cuts = plan.cuts(window, hour.window.from(), hour.window.to());
            if cuts.is_empty() {
                plan.live.push(hour);
            } else {
                plan.add_parts(window, hour.window.from(), hour.window.to(), &cuts);
            }
        }
        Ok(plan)
    }

    /// Bounds of the window and of buckets inside `(from, to)`.
    fn cuts(&self, window: Window, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
        let mut cuts: Vec<Timestamp> = self.buckets.bounds(from, to);
        cuts.extend([window.from(), window.to()].into_iter().filter(|bound| from < *bound && *bound < to));
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    fn add_parts(&mut self, window: Window, from: Timestamp, to: Timestamp, cuts: &[Timestamp]) {
        let ends = cuts.iter().copied().chain([to]);
        let mut begin = from;
        for end in ends {
            // What lies before the window or after it is not asked for.
            if begin >= window.from() && end <= window.to() {
                self.parts.extend(Window::new(begin, end).ok());
            }
            begin = end;
        }
    }

    fn fold(&self, lake: &Lake, request: &Request) -> Result<Folded, ReportError> {
        let table = tables::get("gpu_hours");
        let columns = fold::columns(request);
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(self.whole.len().div_ceil(8)).max(1);
        let buckets = &self.buckets;
        let of_files = |files: &[(Timestamp, lake::Place)]| -> Result<Folder<'_>, ReportError> {
            let mut folder = Folder::of(request, buckets);
            for (hour, path) in files {
                // A pod is asked for only where it has no workload, unless the report is by pod.
                let instead = (!request.by.iter().any(|by| by.columns().contains(&"pod_uid"))).then_some(("workload", "pod_uid"));
                let nodes = Default::default();
                let scan = Scan { table, columns: Some(&columns), nodes, between: None, dictionaries: true, instead };
                let batches = scan.open(path)?.collect::<Result<Vec<_>, _>>()?;
                let bad = |what| ReportError::BadRow { file: path.display().to_string(), what };
                folder.hour(*hour, &batches).map_err(bad)?;
            }
            Ok(folder)
        };
        let chunk = self.whole.len().div_ceil(threads).max(1);
        let results: Vec<Result<Folder<'_>, ReportError>> = std::thread::scope(|scope| {
            let handles: Vec<_> = self.whole.chunks(chunk).map(|files| scope.spawn(move || of_files(files))).collect();
            handles.into_iter().map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        let mut whole = Folder::of(request, &self.buckets);
        for result in results {
            whole.merge(result?);
        }
        let computed = |what| ReportError::BadRow { file: "rows just computed".into(), what };
        for hour in &self.live {
            whole.hour(hour.window.from(), &fold::narrowed(&hour.rows, &columns).map_err(computed)?).map_err(computed)?;
        }
        for part in &self.parts {
            let open = match &self.open_time {
                Some(open) => open.part(lake, &self.raw, *part)?,
                None => None,
            };
            let rows = match open {
                Some(rows) => rows,
                None => job::part_of_hour(lake, &self.raw, *part)?.rows,
            };
            whole.hour(part.from(), &fold::narrowed(&rows, &columns).map_err(computed)?).map_err(computed)?;
        }
        Ok(whole.finish())
    }
}

/// Start of the hour of a row, from its column.
pub(crate) fn hour_of(batch: &RecordBatch, place: usize, row: usize) -> Option<Timestamp> {
    batch.column(place).as_primitive_opt::<TimestampMicrosecondType>().map(|column| Timestamp::from_micros(column.value(row)))
}

/// Sums by group.
type Groups = BTreeMap<Vec<Key>, Sums>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_does_not_close_says_so() {
        let line = Line {
            capacity_ms: Some(10),
            allocated_ms: 6,
            utilized_ms: 1,
            stranded_ms: 2,
            unobserved_ms: 3,
            free_ms: Some(3),
            unavailable_ms: Some(1),
            ..Line::default()
        };
        assert!(line.closes());
        assert!(!Line { free_ms: Some(2), ..line.clone() }.closes());
        assert!(!Line { stranded_ms: 1, ..line.clone() }.closes());
        assert_eq!(line.coverage(), Some(50.0));
    }

    #[test]
    fn both_means_of_one_large_good_job_and_many_small_bad_ones() {
        // V27: 64 GPUs x 10 h at 0.9, and 100 jobs of 1 GPU x 0.1 h at 0.1.
        let line = Line { utilized_ms: 577, stranded_ms: 73, jobs: 101, job_shares: 0.9 + 10.0, ..Line::default() };
        assert_eq!(
            format!("{:.4} {:.4}", line.mean_by_hours().unwrap_or(0.0), line.mean_by_jobs().unwrap_or(0.0)),
            "88.7692 10.7921"
        );
    }
}
