//! A stretch of time from the lake's own rows: facts of its nodes, piece by piece, through the ledger.
//!
//! ```text
//! allocations, nodes ──whole──> facts by node ──cut into pieces of nodes──┐   each piece on a thread of its own,
//! gpu_samples, scrapes ──of the piece's nodes, within a horizon───────────┴─> one node at a time: hour rows, capacity
//! ```
//!
//! Memory is bounded by the intervals of the stretch and by one piece of samples a thread, whatever the size of the fleet.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

use datafusion::arrow::array::{Array, AsArray, RecordBatch, types::Int64Type};
use lake::{
    LakeError, Place,
    scan::{NodeRange, Scan},
};
use ledger::{
    HoursError,
    batch::{BatchError, Facts, NodeInputs, Source, device_rows, hour_rows, settled_rows},
};
use schemas::{HOUR_MS, Timestamp, Window, tables::Table};

/// Samples that one piece of nodes should have about.
const PIECE_SAMPLES: i64 = 300_000;

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

/// What stopped an account.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
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
}

/// A file of a table, and what the ledger takes it for.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) source: Source,
    pub(crate) table: &'static Table,
    pub(crate) path: Place,
}

/// The files behind a stretch of time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reach {
    /// Holdings and inventory.
    pub(crate) intervals: Vec<Part>,
    /// Samples and scrapes, of the stretch and of its neighbourhood.
    pub(crate) instants: Vec<Part>,
    /// Nodes that are asked for.
    pub(crate) nodes: NodeRange,
    /// For a stretch that is not over: until when what was last told as lasting lasts.
    pub(crate) lasting: Option<Timestamp>,
}

/// What became of the time.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Batches of `gpu_hours`, in order of (cluster, node).
    pub(crate) rows: Vec<RecordBatch>,
    /// Batches of `device_hours`, likewise.
    pub(crate) capacities: Vec<RecordBatch>,
    /// Batches of `settled_holdings`, likewise.
    pub(crate) settled: Vec<RecordBatch>,
    /// Samples read.
    pub(crate) samples: u64,
    /// Devices (cluster/node/device) that somebody named and whose weight nobody told.
    pub(crate) unweighed: BTreeSet<String>,
}

/// Computes the account of `window`, a part of one UTC hour or a whole one.
pub(crate) fn account(reach: &Reach, window: Window) -> Result<Account, AccountError> {
    let hour = window.from().hour();
    let (span, pieces) = plan(reach, window)?;
    let todo: Mutex<Vec<(usize, NodeRange, Facts)>> =
        Mutex::new(pieces.into_iter().enumerate().map(|(i, (r, f))| (i, r, f)).rev().collect());
    let done: Mutex<BTreeMap<usize, Result<Account, AccountError>>> = Mutex::new(BTreeMap::new());
    let count = lock(&todo).len();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count).max(1);
    let work = || {
        loop {
            let Some((number, nodes, facts)) = lock(&todo).pop() else { return };
            let result = piece(reach, &nodes, facts, span, window, hour);
            let failed = result.is_err();
            lock(&done).insert(number, result);
            if failed {
                lock(&todo).clear();
            }
        }
    };
    if threads == 1 {
        work();
    } else {
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    }
    let mut whole = Account::default();
    for (_, part) in done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        let part = part?;
        whole.rows.extend(part.rows);
        whole.capacities.extend(part.capacities);
        whole.settled.extend(part.settled);
        whole.samples += part.samples;
        whole.unweighed.extend(part.unweighed);
    }
    Ok(whole)
}

/// The inputs of each node of a stretch, for those who want to look into them.
pub(crate) fn inputs(reach: &Reach, window: Window) -> Result<Vec<NodeInputs>, AccountError> {
    let (span, pieces) = plan(reach, window)?;
    let mut nodes = Vec::new();
    for (range, mut facts) in pieces {
        add_instants(reach, &range, &mut facts, span, window.from().hour())?;
        nodes.extend(facts.into_nodes());
    }
    Ok(nodes)
}

/// A panic in one piece ends the whole account, so a poisoned lock holds nothing that is used.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

type Pieces = Vec<(NodeRange, Facts)>;

/// The time from which instants matter, and the facts of intervals cut into pieces of nodes.
fn plan(reach: &Reach, window: Window) -> Result<((Timestamp, Timestamp), Pieces), AccountError> {
    let hour = window.from().hour();
    let mut sizes: BTreeMap<(String, String), i64> = BTreeMap::new();
    let mut margin = 60_000;
    for part in reach.instants.iter().filter(|part| part.source == Source::Scrapes) {
        let columns = ["cluster", "node", "devices", "at", "interval_ms", "collect_interval_ms", "skew_ms"];
        for batch in scan(part, &reach.nodes, Some(&columns), None).open(&part.path)? {
            let batch = batch?;
            margin = margin.max(horizon_of(&batch));
            add_sizes(&batch, window, &mut sizes);
        }
    }
    let margin = margin.min(HOUR_MS);
    let mut facts = Facts::default();
    for part in &reach.intervals {
        for batch in scan(part, &reach.nodes, None, None).open(&part.path)? {
            facts.add(part.source, &batch?).map_err(|source| AccountError::Rows { hour, source })?;
        }
    }
    if let Some(until) = reach.lasting {
        facts.lasting_until(until);
    }
    let bounds = bounds(&sizes);
    let ends = bounds.iter().cloned().map(Some).chain([reach.nodes.to.clone()]);
    let begins = [reach.nodes.from.clone()].into_iter().chain(bounds.iter().cloned().map(Some));
    let ranges = begins.zip(ends).map(|(from, to)| NodeRange { from, to });
    let span = (window.from().plus_ms(-margin), window.to().plus_ms(margin));
    Ok((span, ranges.zip(facts.split(&bounds)).collect()))
}

fn scan<'a>(part: &Part, nodes: &NodeRange, columns: Option<&'a [&'a str]>, between: Option<(Timestamp, Timestamp)>) -> Scan<'a> {
    // Samples repeat their texts by the thousand.
    let dictionaries = part.source == Source::GpuSamples;
    Scan { table: part.table, columns, nodes: nodes.clone(), between, dictionaries, instead: None }
}

/// One horizon, generously, and what clocks are off: how far instants outside the window matter to it.
fn horizon_of(scrapes: &RecordBatch) -> i64 {
    let longest = |column: &str| {
        let column = scrapes.column_by_name(column)?.as_primitive_opt::<Int64Type>()?;
        column.iter().flatten().map(i64::saturating_abs).max()
    };
    let interval = longest("interval_ms").unwrap_or(0);
    let collect = longest("collect_interval_ms").unwrap_or(0);
    let skew = longest("skew_ms").unwrap_or(0);
    interval.saturating_mul(3).max(interval.saturating_add(collect)).saturating_add(skew)
}

/// How many samples the rounds of each node brought inside the window.
fn add_sizes(scrapes: &RecordBatch, window: Window, sizes: &mut BTreeMap<(String, String), i64>) {
    let text = |column: &str| scrapes.column_by_name(column).and_then(|c| c.as_string_opt::<i32>());
    let devices = scrapes.column_by_name("devices").and_then(|c| c.as_primitive_opt::<Int64Type>());
    let at = scrapes.column_by_name("at");
    let at = at.and_then(|c| c.as_primitive_opt::<datafusion::arrow::array::types::TimestampMicrosecondType>());
    let (Some(clusters), Some(nodes), Some(devices), Some(at)) = (text("cluster"), text("node"), devices, at) else { return };
    let (from, to) = (window.from().micros(), window.to().micros());
    let mut run: Option<(usize, i64)> = None; // first row of a node, and its samples so far
    let mut close = |run: Option<(usize, i64)>| {
        if let Some((row, samples)) = run {
            *sizes.entry((clusters.value(row).to_owned(), nodes.value(row).to_owned())).or_default() += samples;
        }
    };
    for row in 0..scrapes.num_rows() {
        let inside = from <= at.value(row) && at.value(row) < to;
        let samples = if inside && devices.is_valid(row) { devices.value(row).clamp(0, 4096) } else { 0 };
        match &mut run {
            Some((first, sum)) if nodes.value(*first) == nodes.value(row) && clusters.value(*first) == clusters.value(row) => {
                *sum += samples;
            }
            _ => close(run.replace((row, samples))),
        }
    }
    close(run);
}

/// Where to cut, so that no piece has many more samples than the others.
fn bounds(sizes: &BTreeMap<(String, String), i64>) -> Vec<(String, String)> {
    let mut bounds = Vec::new();
    let mut sum = 0_i64;
    for (node, samples) in sizes {
        if sum > 0 && sum.saturating_add(*samples) > PIECE_SAMPLES {
            bounds.push(node.clone());
            sum = 0;
        }
        sum = sum.saturating_add(*samples);
    }
    bounds
}

fn add_instants(
    reach: &Reach,
    nodes: &NodeRange,
    facts: &mut Facts,
    span: (Timestamp, Timestamp),
    hour: Timestamp,
) -> Result<u64, AccountError> {
    let mut samples = 0;
    for part in &reach.instants {
        let of_samples = part.source == Source::GpuSamples;
        let columns = of_samples.then_some(&SAMPLE_COLUMNS[..]);
        for batch in scan(part, nodes, columns, Some(span)).open(&part.path)? {
            let batch = batch?;
            samples += if of_samples { batch.num_rows() as u64 } else { 0 };
            facts.add(part.source, &batch).map_err(|source| AccountError::Rows { hour, source })?;
        }
    }
    Ok(samples)
}

fn piece(
    reach: &Reach,
    nodes: &NodeRange,
    mut facts: Facts,
    span: (Timestamp, Timestamp),
    window: Window,
    hour: Timestamp,
) -> Result<Account, AccountError> {
    let samples = add_instants(reach, nodes, &mut facts, span, hour)?;
    let mut account = Account { samples, ..Account::default() };
    for node in facts.into_nodes() {
        let refused = |source| AccountError::Refused { hour, node: format!("{}/{}", node.cluster, node.node), source };
        let wrong = |source| AccountError::Rows { hour, source };
        let (rows, settled) = ledger::hours_and_settled(&node.inputs, window).map_err(refused)?;
        let of_node = |device: &ledger::input::Text| format!("{}/{}/{device}", node.cluster, node.node);
        account.unweighed.extend(node.unweighed.iter().map(of_node));
        account.rows.push(hour_rows(&node.cluster, &rows).map_err(wrong)?);
        account.settled.push(settled_rows(&node.cluster, &settled).map_err(wrong)?);
        // Devices that were only seen are no inventory.
        if !node.inputs.without_inventory.contains(&node.node) {
            let capacity = ledger::capacity::capacities(&node.inputs.devices, window).map_err(refused)?;
            account.capacities.push(device_rows(&node.cluster, &capacity).map_err(wrong)?);
        }
    }
    Ok(account)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_between_nodes_by_their_samples() {
        let sizes = |list: &[(&str, i64)]| list.iter().map(|(n, s)| (("c".to_owned(), (*n).to_owned()), *s)).collect();
        let names = |list: &[(&str, i64)]| bounds(&sizes(list)).into_iter().map(|(_, node)| node).collect::<Vec<_>>();
        assert!(names(&[]).is_empty());
        assert!(names(&[("a", 10), ("b", 20)]).is_empty());
        assert_eq!(names(&[("a", 200_000), ("b", 200_000), ("c", 50_000), ("d", 100_000)]), ["b", "d"]);
        assert_eq!(names(&[("a", 0), ("b", 900_000), ("c", i64::MAX), ("d", 1)]), ["c", "d"]);
    }
}
