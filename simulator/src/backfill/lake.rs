//! A fleet's past into a lake: closed hours, side by side, and the watermark behind them.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    rc::Rc,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use arrow::array::RecordBatch;
use exporter::Size;
use lake::{ClosedKey, Footer, Lake, LakeError, Watermark};
use schemas::{
    HOUR_MS, Timestamp, Window,
    proto::{DeviceSample, ScrapeRound, Value},
    rows::{
        Head, Rows, SampleColumns, ScrapeColumns,
        wire::{Device, Envelope, Read},
    },
    tables,
};

use super::{
    Agents, Dating, at, intervals,
    observe::{Listing, Listings, Observer, device_id},
    sightings::{self, Sighted},
};
use crate::{
    plan::Plan,
    truth::{TruthError, truth},
};

/// Rows of samples that are handed to the encoder at one time.
const BATCH_ROWS: usize = 4_096;
/// What stands as the writer in every footer: the same rows are the same bytes, whoever wrote them.
const WRITER: &str = "strandline-sim backfill";

/// What to write.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whole UTC hours of the fleet's time.
    pub window: Window,
    /// Hours that are made at one time.
    pub threads: usize,
    /// Who scraped them.
    pub agents: Agents,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Hours.
    pub hours: u64,
    /// Rows of `gpu_samples`.
    pub samples: u64,
    /// Bytes of their files.
    pub sample_bytes: u64,
    /// Rows of all tables.
    pub rows: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

/// Why a backfill failed.
#[derive(Debug, thiserror::Error)]
pub enum BackfillError {
    /// The window is not inside the fleet's time, or not on full hours.
    #[error("the window from {from} to {to} is not of full UTC hours inside the fleet's time, {start} to {end}")]
    Window {
        /// Its start.
        from: Timestamp,
        /// Its end.
        to: Timestamp,
        /// The fleet's start.
        start: Timestamp,
        /// The fleet's end.
        end: Timestamp,
    },
    /// The lake has closed hours that would not meet the new ones.
    #[error(
        "the lake at {} has closed hours from {} to {}; hours from {from} to {to} would leave a gap between them: take a window that \
         meets them, or another lake", lake.display(), has.from, has.closed_to
    )]
    Gap {
        /// The lake.
        lake: PathBuf,
        /// Its hours.
        has: Watermark,
        /// Start of the new ones.
        from: Timestamp,
        /// Their end.
        to: Timestamp,
    },
    /// A sink closes hours of the same lake.
    #[error("another process closes hours of the lake at {}; end it, or give a lake of its own", .0.display())]
    Busy(PathBuf),
    /// The lake failed.
    #[error("cannot write the lake")]
    Lake(#[from] LakeError),
    /// A state that no row can hold.
    #[error("cannot make a row: {0}")]
    Row(String),
    /// The truth failed.
    #[error("cannot tell the truth")]
    Truth(#[from] TruthError),
}

/// Writes the hours of `options.window`, and moves the watermark. Hours that are there are replaced. `done` hears of every hour.
pub fn backfill(plan: &Plan, lake: &Lake, options: &Options, done: &(dyn Fn(Written) + Sync)) -> Result<Written, BackfillError> {
    let (window, whole) = (options.window, plan.window());
    let full = window.from() == window.from().hour() && window.to() == window.to().hour();
    if whole.clip(window) != Some(window) || !full {
        let (start, end) = (whole.from(), whole.to());
        return Err(BackfillError::Window { from: window.from(), to: window.to(), start, end });
    }
    let Some(_turn) = lake.try_turn("closing", WRITER)? else {
        return Err(BackfillError::Busy(lake.location().to_owned()));
    };
    let has = lake.watermark()?;
    if let Some(has) = has.filter(|has| window.to() < has.from || has.closed_to < window.from()) {
        return Err(BackfillError::Gap { lake: lake.location().to_owned(), has, from: window.from(), to: window.to() });
    }
    let threads = options.threads.max(1);
    let sighted = all_sighted(plan, window.to(), threads);
    let hours: Vec<Timestamp> = window.hours().collect();
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sum, failed) = (Mutex::new(Written::default()), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..threads.min(hours.len()) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed)
                    && let Some(hour) = hours.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    match write_hour(plan, lake, options, &sighted, *hour) {
                        Ok(written) => {
                            let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
                            sum.add(written);
                            done(*sum);
                        }
                        Err(error) => {
                            stop.store(true, Ordering::Relaxed);
                            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let from = has.map_or(window.from(), |has| has.from.min(window.from()));
    let closed_to = has.map_or(window.to(), |has| has.closed_to.max(window.to()));
    lake.set_watermark(Watermark { from, closed_to })?;
    Ok(sum.into_inner().unwrap_or_else(PoisonError::into_inner))
}

impl Written {
    fn add(&mut self, more: Self) {
        self.hours += more.hours;
        self.samples += more.samples;
        self.sample_bytes += more.sample_bytes;
        self.rows += more.rows;
        self.bytes += more.bytes;
    }
}

/// Sightings of all nodes, node by node.
fn all_sighted(plan: &Plan, to: Timestamp, threads: usize) -> Vec<Sighted> {
    let nodes = plan.nodes().len();
    let next = AtomicUsize::new(0);
    let found: Mutex<Vec<(usize, Vec<Sighted>)>> = Mutex::new(Vec::with_capacity(nodes));
    std::thread::scope(|scope| {
        for _ in 0..threads.min(nodes) {
            scope.spawn(|| {
                loop {
                    let node = next.fetch_add(1, Ordering::Relaxed);
                    if node >= nodes {
                        break;
                    }
                    let sighted = sightings::of_node(plan, node, to);
                    found.lock().unwrap_or_else(PoisonError::into_inner).push((node, sighted));
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_unstable_by_key(|(node, _)| *node);
    found.into_iter().flat_map(|(_, sighted)| sighted).collect()
}

fn write_hour(
    plan: &Plan,
    lake: &Lake,
    options: &Options,
    sighted: &[Sighted],
    hour: Timestamp,
) -> Result<Written, BackfillError> {
    let key = ClosedKey::of(hour);
    let mut written = Written { hours: 1, ..Written::default() };
    let mut samples = Samples::new(plan, &options.agents, hour);
    let footer = |repeats: u64| Footer { writer_epoch: WRITER.to_owned(), repeats, ..Footer::default() };
    let table = tables::get("gpu_samples");
    let repeats = samples.repeats();
    // An hour in which no page was had has no file of samples.
    let first = samples.next_batch();
    if let Some(first) = first {
        let rest = std::iter::from_fn(|| samples.next_batch());
        let batches = std::iter::once(first).chain(rest).map(Ok::<_, BackfillError>);
        let (footer, bytes) = lake.publish_closed_from(table, key, batches, footer(repeats.samples))?;
        (written.samples, written.sample_bytes) = (footer.rows, bytes);
        (written.rows, written.bytes) = (footer.rows, bytes);
    } else {
        lake.remove_closed(table, key)?;
    }
    let mut others = intervals::hour(plan, sighted, hour, options.window.to())?;
    others.push((tables::get("scrapes"), samples.scrapes()));
    let part = Window::new(hour, hour.plus_ms(HOUR_MS)).ok().and_then(|whole| options.window.clip(whole));
    if let Some(part) = part {
        let table = tables::get("truth_gpu_hours");
        others.push((table, lake::encode::sorted(table, &[truth(plan, part)?])?));
    }
    for (table, rows) in others {
        if rows.num_rows() == 0 {
            lake.remove_closed(table, key)?;
            continue;
        }
        let repeats = if table.name == "scrapes" { repeats.rounds } else { 0 };
        let batches = std::iter::once(Ok::<_, BackfillError>(rows));
        let (footer, bytes) = lake.publish_closed_from(table, key, batches, footer(repeats))?;
        written.rows += footer.rows;
        written.bytes += bytes;
    }
    Ok(written)
}

/// What was delivered once more, and was dropped when the hour closed.
struct Repeats {
    samples: u64,
    rounds: u64,
}

/// Samples of one hour in the order of the table: cluster, node, device, time.
struct Samples<'a> {
    plan: &'a Plan,
    agents: &'a Agents,
    hour: Option<Window>,
    /// Nodes in the order of the table that are still to come, the next one last.
    nodes: Vec<usize>,
    columns: SampleColumns,
    scrape_columns: ScrapeColumns,
    rows: Rows,
    scrapes: Rows,
    sizes: Vec<Size>,
}

impl<'a> Samples<'a> {
    fn new(plan: &'a Plan, agents: &'a Agents, hour: Timestamp) -> Self {
        let mut nodes: Vec<usize> = (0..plan.nodes().len()).collect();
        let key = |node: &usize| (&plan.nodes()[*node].cluster, &plan.nodes()[*node].name);
        nodes.sort_by(|a, b| key(b).cmp(&key(a)));
        Self {
            plan,
            agents,
            sizes: Vec::new(),
            hour: Window::new(hour, hour.plus_ms(HOUR_MS)).ok(),
            nodes,
            columns: SampleColumns::new(),
            scrape_columns: ScrapeColumns::new(),
            rows: Rows::new(tables::get("gpu_samples")),
            scrapes: Rows::new(tables::get("scrapes")),
        }
    }

    /// The rounds of the hour by the clock of node number `node`.
    fn rounds(&self, node: usize) -> std::ops::Range<i64> {
        let dating = Dating::of(self.plan, &self.plan.nodes()[node]);
        self.hour.map_or(0..0, |hour| dating.rounds(self.plan, hour))
    }

    /// Rows that a repeated round adds, and that are dropped again.
    fn repeats(&self) -> Repeats {
        let mut repeats = Repeats { samples: 0, rounds: 0 };
        if self.plan.spec().faults.repeated_batches.is_none() {
            return repeats;
        }
        for &node in &self.nodes {
            for tick in self.rounds(node) {
                let at = at(self.plan, tick);
                if self.plan.repeated_ms(node, at).is_some() {
                    repeats.rounds += 1;
                    if self.plan.no_page(node, at).is_none() {
                        let boards = self.plan.nodes()[node].boards.iter().filter(|board| board.answers(at.ms()));
                        repeats.samples += boards.map(|board| board.devices.len() as u64).sum::<u64>();
                    }
                }
            }
        }
        repeats
    }

    /// The next rows; none where there are no more.
    fn next_batch(&mut self) -> Option<RecordBatch> {
        while self.rows.len() < BATCH_ROWS
            && let Some(node) = self.nodes.pop()
        {
            self.node(node);
        }
        if self.rows.is_empty() {
            return None;
        }
        Some(self.rows.take())
    }

    fn node(&mut self, node: usize) {
        let ticks = self.rounds(node);
        let Self { plan, agents, columns, scrape_columns, rows, scrapes, sizes, .. } = self;
        sizes.resize_with(ticks.clone().count(), Size::default);
        let mut observer = Observer::new(plan, node, agents);
        let mut listings = Listings::new(plan, node, at(plan, ticks.start).ms()..at(plan, ticks.end).ms());
        let listings: Vec<Rc<Listing>> = ticks.clone().map(|tick| listings.at(at(plan, tick))).collect();
        sizes.iter_mut().for_each(Size::clear);
        let devices = &plan.nodes()[node].devices;
        let mut order: Vec<(String, usize)> = devices.iter().enumerate().map(|(gpu, d)| (device_id(&d.identity), gpu)).collect();
        order.sort_unstable();
        let paged: Vec<bool> = ticks.clone().map(|tick| plan.no_page(node, at(plan, tick)).is_none()).collect();
        let rounds = || ticks.clone().zip(&listings).zip(&paged);
        let mut on_page = vec![0; paged.len()];
        let mut lacks: Vec<BTreeSet<String>> = vec![BTreeSet::new(); paged.len()];
        for (id, gpu) in order {
            for (round, (((tick, listing), paged), size)) in rounds().zip(sizes.iter_mut()).enumerate() {
                if *paged {
                    observer.stamp(tick);
                    let each = |head: &ScrapeRound, sample: &DeviceSample, readings: &[(u16, Value)], unchanged: bool| {
                        let readings = Read::List(readings);
                        // The row before is this device's.
                        if unchanged && !rows.is_empty() {
                            columns.again(&Head::of(head), readings, None, rows);
                            return;
                        }
                        let mut device = Device::default();
                        device.set(sample);
                        device.readings = readings;
                        columns.sample(&Head::of(head), &device, None, rows);
                    };
                    if observer.device(gpu, at(plan, tick), listing, size, each) {
                        on_page[round] += 1;
                    } else if listing.holds(&id) {
                        lacks[round].insert(id.clone());
                    }
                }
            }
        }
        for (round, (((tick, listing), _), size)) in rounds().zip(sizes.iter()).enumerate() {
            if observer.begin(tick, listing) {
                observer.page_of(size, &lacks[round]);
            }
            scrape_columns.scrape(&Envelope::of(&observer.head), on_page[round], None, scrapes);
        }
    }

    /// The rounds of the hour; after the last of the samples.
    fn scrapes(self) -> RecordBatch {
        self.scrapes.finish()
    }
}
