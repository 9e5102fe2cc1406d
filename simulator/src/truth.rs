//! The truth of a window: who held what, and what it did, in the columns of `gpu_hours` (rule S3).
//!
//! A holding counts between its API times (whole seconds), as rule A3 counts it; [`truth_holdings`] has the exact times
//! beside them. Within it, activity is integrated exactly: no sampling, nothing unobserved.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{
        ArrayRef, BooleanArray, Float32Array, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
    },
    error::ArrowError,
};
use schemas::{
    HOUR_MS, Timestamp, Window,
    status::{RowKind, Tier},
    tables::{self, Type},
};
use serde::Serialize;

use crate::{
    plan::{DeviceRef, NodePlan, Plan, api_second},
    timeline::Integrals,
};

/// One row: a device's hour with one owner, or the part of it that nobody held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TruthRow {
    /// The UTC hour, by its start.
    pub hour_start: Timestamp,
    /// The device.
    pub device: DeviceRef,
    /// Owner, free or unavailable.
    pub kind: RowKind,
    /// Why nobody held it; none for an owner.
    pub reason: Option<&'static str>,
    /// The owner: index of [`Plan::pods`].
    pub pod: Option<usize>,
    /// Its milliseconds.
    pub ms: i64,
    /// Exact integral of each tier's activity, ppm x ms; an owner's share, not rounded.
    pub exact: [i64; 3],
    /// Part of `ms` before the containers started.
    pub pre_start_ms: i64,
    /// Part of `ms` after deletion was asked for.
    pub terminating_ms: i64,
    /// Part of `ms` while the node was not ready.
    pub on_unready_ms: i64,
    /// Energy drawn, microjoules.
    pub energy_uj: i64,
    /// Memory used, MiB x ms.
    pub fb_mib_ms: i64,
}

impl TruthRow {
    /// Utilized time of `tier`, milliseconds: the exact integral to the nearest, halves up; the rest of `ms` is stranded.
    pub fn utilized_ms(&self, tier: Tier) -> i64 {
        (self.exact[tier as usize] + 500_000).div_euclid(1_000_000)
    }
}

/// Why there is no truth.
#[derive(Debug, thiserror::Error)]
pub enum TruthError {
    /// The fleet is not planned there.
    #[error("the fleet is planned from {start} to {end}; ask for a window inside that")]
    Outside {
        /// The fleet's start.
        start: Timestamp,
        /// Its end.
        end: Timestamp,
    },
    /// The columns did not make a batch.
    #[error("cannot build the truth's record batch")]
    Batch(#[from] ArrowError),
}

/// The truth of `window` as table `truth_gpu_hours`: [`truth_rows`] with every column.
pub fn truth(plan: &Plan, window: Window) -> Result<RecordBatch, TruthError> {
    let rows = truth_rows(plan, window)?;
    let table = tables::get("truth_gpu_hours");
    let columns = table.columns.iter().map(|column| column_of(plan, &rows, &column.name, column.kind)).collect();
    Ok(RecordBatch::try_new(table.schema(), columns)?)
}

/// Rows of `window`, by hour, cluster, node, device, kind and name. `ms` of a device's rows is the window's length.
pub fn truth_rows(plan: &Plan, window: Window) -> Result<Vec<TruthRow>, TruthError> {
    let whole = plan.window();
    if whole.clip(window) != Some(window) {
        return Err(TruthError::Outside { start: whole.from(), end: whole.to() });
    }
    let mut rows = Vec::new();
    for device in plan.devices() {
        device_rows(plan, device, window, &mut rows);
    }
    let key = |row: &TruthRow| {
        let node = &plan.nodes()[row.device.node];
        let uid = row.pod.map(|pod| &*plan.pods()[pod].uid);
        let uuid = &*plan.device(row.device).identity.uuid;
        (row.hour_start, &*node.cluster, &*node.name, uuid, row.kind.as_str(), row.reason, uid)
    };
    rows.sort_by(|a, b| key(a).cmp(&key(b)));
    Ok(rows)
}

fn device_rows(plan: &Plan, device: DeviceRef, window: Window, rows: &mut Vec<TruthRow>) {
    let node = &plan.nodes()[device.node];
    let mut book = Book { plan, node, device, rows: BTreeMap::new() };
    let (from, to) = (window.from().ms(), window.to().ms());
    let mut at = from;
    for held in &plan.device(device).held {
        let Some(binding) = &plan.pods()[held.pod].bound else { continue };
        let (bound, ended) = (api_second(binding.bound).clamp(at, to), api_second(binding.ended).clamp(at, to));
        if bound < ended {
            book.unheld(at, bound);
            book.owned(held.pod, bound, ended);
            at = ended;
        }
    }
    book.unheld(at, to);
    rows.extend(book.rows.into_values());
}

/// Hour, kind, reason, owner.
type RowKey = (i64, RowKind, Option<&'static str>, Option<usize>);

struct Book<'a> {
    plan: &'a Plan,
    node: &'a NodePlan,
    device: DeviceRef,
    rows: BTreeMap<RowKey, TruthRow>,
}

impl Book<'_> {
    /// Adds `[from, to)`, hour by hour.
    fn add(&mut self, kind: RowKind, reason: Option<&'static str>, pod: Option<usize>, from: i64, to: i64) {
        let mut at = from;
        while at < to {
            let hour = at.div_euclid(HOUR_MS) * HOUR_MS;
            let end = to.min(hour + HOUR_MS);
            let row = self.rows.entry((hour, kind, reason, pod)).or_insert_with(|| TruthRow {
                hour_start: Timestamp::from_ms(hour),
                device: self.device,
                kind,
                reason,
                pod,
                ms: 0,
                exact: [0; 3],
                pre_start_ms: 0,
                terminating_ms: 0,
                on_unready_ms: 0,
                energy_uj: 0,
                fb_mib_ms: 0,
            });
            row.ms += end - at;
            if let Some(binding) = pod.and_then(|pod| self.plan.pods()[pod].bound.as_ref()) {
                let Integrals { energy_uj, busy, sm, effective, fb_mib_ms } =
                    self.plan.device(self.device).timeline.between(at, end);
                for (sum, part) in row.exact.iter_mut().zip([busy, sm, effective]) {
                    *sum += part;
                }
                row.energy_uj += energy_uj;
                row.fb_mib_ms += fb_mib_ms;
                let started = binding.started.map_or(i64::MAX, api_second);
                row.pre_start_ms += overlap((at, end), (i64::MIN, started));
                row.terminating_ms += overlap((at, end), (binding.terminating.map_or(i64::MAX, api_second), i64::MAX));
                let unready = self.node.spells.iter().filter(|spell| spell.unavailable() == Some("not_ready"));
                row.on_unready_ms += unready.map(|spell| overlap((at, end), (spell.from, spell.to))).sum::<i64>();
            }
            at = end;
        }
    }

    fn owned(&mut self, pod: usize, from: i64, to: i64) {
        self.add(RowKind::Owner, None, Some(pod), from, to);
    }

    /// Time that nobody held: free, or unavailable for the reason that began first, then by the alphabet.
    fn unheld(&mut self, from: i64, to: i64) {
        let node = self.node;
        let spells = || node.spells.iter().filter_map(|spell| Some((spell, spell.unavailable()?)));
        let mut edges: Vec<i64> =
            spells().flat_map(|(spell, _)| [spell.from, spell.to]).filter(|at| from < *at && *at < to).collect();
        edges.extend([from, to]);
        edges.sort_unstable();
        for two in edges.windows(2).filter(|two| two[0] < two[1]) {
            let active = spells().filter(|(spell, _)| spell.holds(two[0]));
            match active.min_by_key(|(spell, reason)| (spell.from, *reason)) {
                Some((_, reason)) => self.add(RowKind::Unavailable, Some(reason), None, two[0], two[1]),
                None => self.add(RowKind::Free, Some("unheld"), None, two[0], two[1]),
            }
        }
    }
}

fn overlap(a: (i64, i64), b: (i64, i64)) -> i64 {
    (a.1.min(b.1) - a.0.max(b.0)).max(0)
}

/// One cell of the table.
enum Cell<'a> {
    Null,
    Text(&'a str),
    Int(i64),
}

fn cell<'a>(plan: &'a Plan, row: &TruthRow, column: &str) -> Cell<'a> {
    let node = &plan.nodes()[row.device.node];
    let text = |text: &'a str| if text.is_empty() { Cell::Null } else { Cell::Text(text) };
    match column {
        "hour_start" => return Cell::Int(row.hour_start.micros()),
        "cluster" => return text(&node.cluster),
        "node" => return text(&node.name),
        "device" => return text(&plan.device(row.device).identity.uuid),
        "product" => return text(&node.accelerator.product),
        "region" => return text(&node.region),
        "provider" => return text(&node.provider),
        "purchase_option" => return text(&node.purchase_option),
        "kind" => return text(row.kind.as_str()),
        "reason" => return row.reason.map_or(Cell::Null, Cell::Text),
        "ms" => return Cell::Int(row.ms),
        _ => {}
    }
    let Some(pod) = row.pod.map(|pod| &plan.pods()[pod]) else { return Cell::Null };
    match column {
        "pod_uid" => text(&pod.uid),
        "namespace" => text(&pod.namespace),
        "pod" => text(&pod.name),
        "workload" => text(&pod.workload),
        "team" => text(&pod.team),
        "queue" => text(pod.queue),
        "pre_start_ms" => Cell::Int(row.pre_start_ms),
        "terminating_ms" => Cell::Int(row.terminating_ms),
        "on_unready_ms" => Cell::Int(row.on_unready_ms),
        "held_profile_ms" => Cell::Int(row.ms),
        "energy_mj" => Cell::Int((row.energy_uj + 500).div_euclid(1000)),
        "fb_used_mib_ms" => Cell::Int(row.fb_mib_ms),
        "fb_unobserved_ms" | "overcommitted_ms" => Cell::Int(0),
        "allocation_source" | "owner_source" => text("sim"),
        _ => tier_cell(row, column),
    }
}

fn tier_cell<'a>(row: &TruthRow, column: &str) -> Cell<'a> {
    let found = Tier::ALL.iter().find_map(|tier| Some((*tier, column.strip_prefix(tier.as_str())?.strip_prefix('_')?)));
    match found {
        Some((tier, "utilized_ms")) => Cell::Int(row.utilized_ms(tier)),
        Some((tier, "stranded_ms")) => Cell::Int(row.ms - row.utilized_ms(tier)),
        Some(_) => Cell::Int(0), // nothing is unobserved, no share is exceeded
        None => Cell::Null,
    }
}

fn column_of(plan: &Plan, rows: &[TruthRow], column: &str, kind: Type) -> ArrayRef {
    let cells = rows.iter().map(|row| cell(plan, row, column));
    let int = |cell: Cell<'_>| if let Cell::Int(value) = cell { Some(value) } else { None };
    match kind {
        Type::Text => {
            let texts = cells.map(|cell| if let Cell::Text(text) = cell { Some(text) } else { None });
            Arc::new(texts.collect::<StringArray>())
        }
        Type::Int => Arc::new(cells.map(int).collect::<Int64Array>()),
        Type::Time => Arc::new(cells.map(int).collect::<TimestampMicrosecondArray>().with_timezone("UTC")),
        Type::Float => Arc::new(Float32Array::new_null(rows.len())),
        Type::Double => Arc::new(Float64Array::new_null(rows.len())),
        Type::Bool => Arc::new(BooleanArray::new_null(rows.len())),
    }
}

/// A pod's time on a node: as the API tells it, and as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TruthHolding {
    /// Cluster.
    pub cluster: String,
    /// Node.
    pub node: String,
    /// Pod.
    pub pod_uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Who pays.
    pub team: String,
    /// Shape of its work.
    pub shape: crate::shape::Shape,
    /// Devices, comma-joined.
    pub devices: String,
    /// Bind, as the API tells it.
    pub bound: Timestamp,
    /// Bind, exactly.
    pub true_bound: Timestamp,
    /// When the kubelet named the devices.
    pub named: Timestamp,
    /// Start of the containers, as the API tells it.
    pub started: Option<Timestamp>,
    /// The same, exactly.
    pub true_started: Option<Timestamp>,
    /// Request for deletion, as the API tells it.
    pub terminating: Option<Timestamp>,
    /// The same, exactly.
    pub true_terminating: Option<Timestamp>,
    /// End, as the API tells it.
    pub ended: Timestamp,
    /// End, exactly.
    pub true_ended: Timestamp,
    /// When the kubelet let go of the devices.
    pub released: Timestamp,
    /// terminal or removed.
    pub end_reason: &'static str,
}

/// Every pod's time on a node that touches `window` (as the API tells it), by bind and UID.
pub fn truth_holdings(plan: &Plan, window: Window) -> Vec<TruthHolding> {
    let second = |ms: i64| Timestamp::from_ms(api_second(ms));
    let exact = Timestamp::from_ms;
    let mut found = Vec::new();
    for pod in plan.pods() {
        let Some(b) = &pod.bound else { continue };
        if second(b.bound) >= window.to() || second(b.ended) <= window.from() {
            continue;
        }
        let node = &plan.nodes()[b.node];
        let uuids: Vec<&str> = b.devices.iter().map(|gpu| &*node.devices[*gpu].identity.uuid).collect();
        found.push(TruthHolding {
            cluster: node.cluster.to_string(),
            node: node.name.to_string(),
            pod_uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            team: pod.team.clone(),
            shape: pod.shape,
            devices: uuids.join(","),
            bound: second(b.bound),
            true_bound: exact(b.bound),
            named: exact(b.named),
            started: b.started.map(second),
            true_started: b.started.map(exact),
            terminating: b.terminating.map(second),
            true_terminating: b.terminating.map(exact),
            ended: second(b.ended),
            true_ended: exact(b.ended),
            released: exact(b.released),
            end_reason: b.outcome.end_reason(),
        });
    }
    found.sort_by(|a, b| (a.true_bound, &a.pod_uid).cmp(&(b.true_bound, &b.pod_uid)));
    found
}
