//! The hours job: closed hours of samples and holdings to closed hours of `gpu_hours`, `device_hours` and `settled_holdings`.
//!
//! ```text
//! hour h:  allocations, nodes of h (and, where the kubelet named devices, back to the earliest bind that reaches h)
//!          samples, scrapes of h, with one horizon before it and after it
//!          ──ledger──> rows, published over the hour's old ones
//! ```
//!
//! An hour is done again only where the files behind it changed: their content hashes stand in the footer of its rows. So
//! the job may be run at any time and any number of times, and a crash leaves the old rows or the new ones.

use std::collections::BTreeMap;

use datafusion::arrow::{
    array::{
        Array, AsArray, BooleanArray, RecordBatch,
        types::{Int64Type, TimestampMicrosecondType},
    },
    compute::filter_record_batch,
};
use lake::{ClosedFile, ClosedKey, Footer, Lake, LakeError, read};
use ledger::{
    HoursError,
    batch::{BatchError, Facts, Source, device_rows, hour_rows, settled_rows},
};
use schemas::{
    HOUR_MS, Timestamp, Window,
    status::HoldingSource,
    tables::{self, Table},
};
use sha2::{Digest, Sha256};

/// Version of the arithmetic; a change does every hour again.
const LEDGER_VERSION: &str = "ledger/1";

/// What stopped the job.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The lake could not be read or written.
    #[error(transparent)]
    Lake(#[from] LakeError),
    /// Rows that the ledger cannot read.
    #[error("hour {hour}: rows that the ledger cannot read; run `strandline check --lake DIR`, or restore the file")]
    Rows {
        /// The hour.
        hour: Timestamp,
        /// What is wrong.
        source: BatchError,
    },
    /// A world that the ledger refuses.
    #[error("hour {hour}, node {node}: the ledger refuses its inputs ({})", source.code())]
    Refused {
        /// The hour.
        hour: Timestamp,
        /// Cluster/node.
        node: String,
        /// Why.
        source: HoursError,
    },
    /// Filtering failed inside Arrow.
    #[error("hour {hour}: cannot filter rows by time")]
    Filter {
        /// The hour.
        hour: Timestamp,
        /// Arrow's reason.
        source: datafusion::arrow::error::ArrowError,
    },
}

/// How the job is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Only hours that this window touches.
    pub window: Option<Window>,
    /// Do hours again whose inputs did not change.
    pub force: bool,
}

/// What the job did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Hours computed.
    pub computed: usize,
    /// Hours whose inputs had not changed.
    pub unchanged: usize,
    /// Rows of `gpu_hours` written.
    pub rows: u64,
    /// Samples read, lookback included.
    pub samples: u64,
    /// Devices (cluster/node/device) that somebody named and whose weight nobody told: left out, and said so.
    pub unweighed: Vec<String>,
}

/// Tables that hours are made from.
const INPUTS: [(&str, Source); 4] = [
    ("gpu_samples", Source::GpuSamples),
    ("scrapes", Source::Scrapes),
    ("allocations", Source::Allocations),
    ("nodes", Source::Nodes),
];

/// Columns of samples that the ledger reads.
const SAMPLE_COLUMNS: [&str; 21] = [
    "cluster",
    "node",
    "device",
    "at",
    "source",
    "parent",
    "profile",
    "product",
    "owner_source",
    "label_disagrees",
    "faults",
    "namespace",
    "pod",
    "pod_uid",
    "dev_gpu_util",
    "prof_gr_engine_active",
    "prof_sm_active",
    "prof_pipe_tensor_active",
    "prof_dram_active",
    "dev_total_energy_consumption",
    "dev_fb_used",
];

/// Computes every closed hour whose inputs changed. `progress` is told after each hour: done, all.
pub fn run(lake: &Lake, options: Options, mut progress: impl FnMut(usize, usize)) -> Result<Summary, JobError> {
    let hours = Hours::list(lake, options.window)?;
    let mut summary = Summary::default();
    let mut unweighed = std::collections::BTreeSet::new();
    let all: Vec<Timestamp> = hours.wanted.clone();
    for (done, &hour) in all.iter().enumerate() {
        one_hour(lake, &hours, hour, options.force, &mut summary, &mut unweighed)?;
        progress(done + 1, all.len());
    }
    summary.unweighed = unweighed.into_iter().collect();
    Ok(summary)
}

/// Closed files of the inputs by table and hour.
struct Hours {
    files: BTreeMap<(&'static str, Timestamp), Vec<ClosedFile>>,
    wanted: Vec<Timestamp>,
}

impl Hours {
    fn list(lake: &Lake, window: Option<Window>) -> Result<Self, LakeError> {
        let mut files: BTreeMap<(&'static str, Timestamp), Vec<ClosedFile>> = BTreeMap::new();
        let mut wanted = std::collections::BTreeSet::new();
        for (name, _) in INPUTS {
            for file in lake.closed_files(tables::get(name), None)? {
                let hour = file.key.hour;
                if window.is_none_or(|w| hour < w.to() && hour.plus_ms(HOUR_MS) > w.from()) {
                    wanted.insert(hour);
                }
                files.entry((name, hour)).or_default().push(file);
            }
        }
        Ok(Self { files, wanted: wanted.into_iter().collect() })
    }

    fn of(&self, table: &'static str, hour: Timestamp) -> &[ClosedFile] {
        self.files.get(&(table, hour)).map_or(&[], Vec::as_slice)
    }

    fn rows(&self, table: &'static str, hour: Timestamp, columns: Option<&[&str]>) -> Result<Vec<RecordBatch>, LakeError> {
        let mut batches = Vec::new();
        for file in self.of(table, hour) {
            batches.extend(read::rows(tables::get(table), &file.path, columns)?);
        }
        Ok(batches)
    }

    /// Digest of the files behind an hour.
    fn digest(&self, reaches: &[(&'static str, Timestamp)]) -> Result<String, LakeError> {
        let mut digest = Sha256::new();
        digest.update(LEDGER_VERSION);
        for &(table, hour) in reaches {
            for file in self.of(table, hour) {
                digest.update(format!("\n{table} {hour} {} {}", file.key.shard, read::footer(&file.path)?.content_hash));
            }
        }
        Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

fn one_hour(
    lake: &Lake,
    hours: &Hours,
    hour: Timestamp,
    force: bool,
    summary: &mut Summary,
    unweighed: &mut std::collections::BTreeSet<String>,
) -> Result<(), JobError> {
    let (before, after) = (hour.plus_ms(-HOUR_MS), hour.plus_ms(HOUR_MS));
    let earliest =
        earliest_bind(&[hours.rows("allocations", before, None)?, hours.rows("allocations", hour, None)?].concat(), before);
    let mut reaches: Vec<(&'static str, Timestamp)> = vec![("nodes", hour)];
    for table in ["gpu_samples", "scrapes"] {
        reaches.extend([before, hour, after].map(|h| (table, h)));
    }
    let mut next = earliest;
    while next <= hour {
        reaches.push(("allocations", next));
        next = next.plus_ms(HOUR_MS);
    }
    let digest = hours.digest(&reaches)?;
    if !force && is_done(lake, hour, &digest)? {
        summary.unchanged += 1;
        return Ok(());
    }

    let horizon = horizon_of(&[hours.rows("scrapes", before, None)?, hours.rows("scrapes", hour, None)?].concat());
    let span = (hour.plus_ms(-horizon), after.plus_ms(horizon));
    let mut facts = Facts::default();
    for (table, source) in INPUTS {
        let columns = (table == "gpu_samples").then_some(&SAMPLE_COLUMNS[..]);
        for &(_, at) in reaches.iter().filter(|(name, _)| *name == table) {
            for batch in hours.rows(table, at, columns)? {
                let timed = matches!(source, Source::GpuSamples | Source::Scrapes);
                let batch = if timed { within(&batch, span).map_err(|source| JobError::Filter { hour, source })? } else { batch };
                if source == Source::GpuSamples {
                    summary.samples += batch.num_rows() as u64;
                }
                facts.add(source, &batch).map_err(|source| JobError::Rows { hour, source })?;
            }
        }
    }
    let window = Window::new(hour, after).map_err(|_| JobError::Lake(LakeError::NoLake(lake.root().to_owned())))?;
    let (mut batches, mut capacities, mut holdings) = (Vec::new(), Vec::new(), Vec::new());
    for node in facts.into_nodes() {
        let refused = |source| JobError::Refused { hour, node: format!("{}/{}", node.cluster, node.node), source };
        let (rows, settled) = ledger::hours_and_settled(&node.inputs, window).map_err(refused)?;
        unweighed.extend(node.unweighed.iter().map(|device| format!("{}/{}/{device}", node.cluster, node.node)));
        let wrong = |source| JobError::Rows { hour, source };
        batches.push(hour_rows(&node.cluster, &rows).map_err(wrong)?);
        holdings.push(settled_rows(&node.cluster, &settled).map_err(wrong)?);
        let capacity = ledger::capacity::capacities(&node.inputs.devices, window).map_err(refused)?;
        capacities.push(device_rows(&node.cluster, &capacity).map_err(wrong)?);
    }
    summary.rows += publish(lake, "gpu_hours", hour, &batches, &digest)?;
    publish(lake, "device_hours", hour, &capacities, &digest)?;
    publish(lake, "settled_holdings", hour, &holdings, &digest)?;
    summary.computed += 1;
    Ok(())
}

/// The hour of the earliest bind that reaches these rows, where the kubelet named devices: a later holder of a device that is
/// gone by now may have cut one that seems to go on. Holdings known by number cut nobody, so without names nothing is needed.
fn earliest_bind(allocations: &[RecordBatch], latest: Timestamp) -> Timestamp {
    let mut earliest = latest;
    let mut named = false;
    for batch in allocations {
        let (Some(source), Some(from)) = (batch.column_by_name("source"), batch.column_by_name("interval_from")) else {
            continue;
        };
        named |=
            source.as_string_opt::<i32>().is_some_and(|c| c.iter().flatten().any(|s| s == HoldingSource::PodResources.as_str()));
        let first = from.as_primitive_opt::<TimestampMicrosecondType>().and_then(datafusion::arrow::compute::min);
        earliest = first.map_or(earliest, |first| earliest.min(Timestamp::from_micros(first).hour()));
    }
    if named { earliest } else { latest }
}

/// One horizon, generously: how far samples outside the hour matter to it.
fn horizon_of(scrapes: &[RecordBatch]) -> i64 {
    let longest = |batch: &RecordBatch, column: &str| {
        let column = batch.column_by_name(column)?.as_primitive_opt::<Int64Type>()?;
        datafusion::arrow::compute::max(column)
    };
    let interval = scrapes.iter().filter_map(|b| longest(b, "interval_ms")).max().unwrap_or(0);
    let collect = scrapes.iter().filter_map(|b| longest(b, "collect_interval_ms")).max().unwrap_or(0);
    (3 * interval).max(interval.saturating_add(collect)).clamp(60_000, HOUR_MS)
}

fn within(batch: &RecordBatch, span: (Timestamp, Timestamp)) -> Result<RecordBatch, datafusion::arrow::error::ArrowError> {
    let Some(at) = batch.column_by_name("at").and_then(|c| c.as_primitive_opt::<TimestampMicrosecondType>().cloned()) else {
        return Ok(batch.clone()); // the ledger refuses it, with the column's name
    };
    let (from, to) = (span.0.micros(), span.1.micros());
    if at.null_count() == 0 && at.values().iter().all(|&t| from <= t && t <= to) {
        return Ok(batch.clone());
    }
    let keep: BooleanArray = at.iter().map(|t| Some(t.is_some_and(|t| from <= t && t <= to))).collect();
    filter_record_batch(batch, &keep)
}

fn is_done(lake: &Lake, hour: Timestamp, digest: &str) -> Result<bool, LakeError> {
    let window = Window::new(hour, hour.plus_ms(HOUR_MS)).ok();
    for table in ["gpu_hours", "device_hours", "settled_holdings"] {
        let files = lake.closed_files(tables::get(table), window)?;
        let [file] = files.as_slice() else { return Ok(false) };
        // A damaged result is done again, not complained about.
        match read::footer(&file.path) {
            Ok(footer) if footer.inputs.as_deref() == Some(digest) => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn publish(lake: &Lake, name: &'static str, hour: Timestamp, batches: &[RecordBatch], digest: &str) -> Result<u64, LakeError> {
    let table: &'static Table = tables::get(name);
    let key = ClosedKey { hour, shard: 0 };
    let rows = lake::encode::sorted(table, batches)?;
    let count = rows.num_rows() as u64;
    let footer = Footer { inputs: Some(digest.to_owned()), writer_epoch: LEDGER_VERSION.into(), ..Footer::default() };
    lake.publish_closed(table, key, &[rows], footer)?;
    Ok(count)
}
