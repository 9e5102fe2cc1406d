//! The proof that the ledger closes (rule A2): per device and hour against the inventory, per owner and tier.

use std::collections::BTreeMap;

use datafusion::arrow::array::{Array, AsArray, RecordBatch, types::Int64Type};
use lake::{Lake, LakeError, read};
use schemas::{
    Timestamp, Window,
    status::{Cause, RowKind, Tier},
    tables::{self, Table},
};

use crate::report::{has_no_inventory, hour_of};

/// What does not close, first of all that does not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Identity 1, against the inventory.
    #[error(
        "{device} of {node} in the hour of {hour}: capacity by the inventory is {capacity_ms} ms, the hour rows sum to {rows_ms} ms"
    )]
    Capacity {
        /// The hour.
        hour: Timestamp,
        /// Cluster/node.
        node: String,
        /// The device.
        device: String,
        /// By `device_hours`.
        capacity_ms: i64,
        /// By `gpu_hours`.
        rows_ms: i64,
    },
    /// Identity 2.
    #[error(
        "{device} of {node} in the hour of {hour}, owner {owner}, tier {tier}: allocated {allocated_ms} ms, utilized + stranded + unobserved {parts_ms} ms"
    )]
    Tier {
        /// The hour.
        hour: Timestamp,
        /// Cluster/node.
        node: String,
        /// The device, or `devices not named`.
        device: String,
        /// Pod UID.
        owner: String,
        /// Tier.
        tier: Tier,
        /// Allocated.
        allocated_ms: i64,
        /// Sum of its parts.
        parts_ms: i64,
    },
    /// Time below nothing, other than rule A16's.
    #[error("{device} of {node} in the hour of {hour}: a negative figure, {ms} ms")]
    Negative {
        /// The hour.
        hour: Timestamp,
        /// Cluster/node.
        node: String,
        /// The device.
        device: String,
        /// The figure.
        ms: i64,
    },
}

/// What was looked at, and what was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Hours with rows.
    pub hours: usize,
    /// (device, hour) pairs held against the inventory.
    pub device_hours: usize,
    /// Owner rows held against their tiers.
    pub owner_rows: usize,
    /// The first fault by hour, node and device.
    pub fault: Option<Fault>,
    /// How many faults there are.
    pub faults: usize,
    /// Nodes without inventory, for which identity 1 is not claimed.
    pub no_inventory: Vec<String>,
    /// Time held by number beyond what a node has, by node.
    pub overcommitted: BTreeMap<String, i64>,
}

/// Checks the closed hours of `lake` inside `window`, or all of them.
pub fn check(lake: &Lake, window: Option<Window>) -> Result<Verdict, LakeError> {
    let (rows, inventory) = (tables::get("gpu_hours"), tables::get("device_hours"));
    let mut hours: BTreeMap<Timestamp, Vec<(&'static Table, lake::Place)>> = BTreeMap::new();
    for table in [rows, inventory] {
        for file in lake.closed_files(table, window)? {
            hours.entry(file.key.hour).or_default().push((table, file.path));
        }
    }
    let mut verdict = Verdict { hours: hours.len(), ..Verdict::default() };
    let mut faults: Vec<Fault> = Vec::new();
    let mut no_inventory: std::collections::BTreeSet<String> = std::collections::BTreeSet::new();
    for (hour, files) in hours {
        let mut of_device: BTreeMap<(String, String), (i64, i64)> = BTreeMap::new();
        for (table, path) in files {
            let names = if table.name == rows.name {
                row_columns()
            } else {
                vec!["hour_start", "cluster", "node", "device", "capacity_ms"]
            };
            read::verify(&path)?;
            for batch in read::rows(table, &path, Some(&names))? {
                if table.name == rows.name {
                    owners(&batch, hour, &mut of_device, &mut faults, &mut verdict, &mut no_inventory);
                } else {
                    capacity(&batch, &mut of_device);
                }
            }
        }
        for ((node, device), (rows_ms, capacity_ms)) in of_device {
            verdict.device_hours += usize::from(device != NOT_NAMED);
            if rows_ms != capacity_ms {
                faults.push(Fault::Capacity { hour, node, device, capacity_ms, rows_ms });
            }
        }
        if !faults.is_empty() && verdict.fault.is_none() {
            verdict.fault = faults.first().cloned();
        }
        verdict.faults += faults.len();
        faults.clear();
    }
    verdict.no_inventory = no_inventory.into_iter().collect();
    Ok(verdict)
}

/// How rows known by number only are called; no device has blanks in its name.
const NOT_NAMED: &str = "devices not named";

const FIXED: [&str; 11] =
    ["hour_start", "cluster", "node", "device", "kind", "pod_uid", "ms", "reason", "flags", "overcommitted_ms", "pre_start_ms"];

fn row_columns() -> Vec<&'static str> {
    let table = tables::get("gpu_hours");
    let mut names = FIXED.to_vec();
    for tier in Tier::ALL {
        let mut parts = vec![format!("{tier}_utilized_ms"), format!("{tier}_stranded_ms")];
        parts.extend(Cause::ALL.iter().map(|cause| format!("{tier}_unobserved_{cause}_ms")));
        names.extend(parts.iter().filter_map(|part| table.index(part)).map(|index| table.columns[index].name.as_str()));
    }
    names
}

fn text(batch: &RecordBatch, place: usize, row: usize) -> Option<&str> {
    let column = batch.column(place).as_string_opt::<i32>()?;
    column.is_valid(row).then(|| column.value(row))
}

fn int(batch: &RecordBatch, place: usize, row: usize) -> i64 {
    batch.column(place).as_primitive_opt::<Int64Type>().filter(|c| c.is_valid(row)).map_or(0, |c| c.value(row))
}

fn owners(
    batch: &RecordBatch,
    hour: Timestamp,
    of_device: &mut BTreeMap<(String, String), (i64, i64)>,
    faults: &mut Vec<Fault>,
    verdict: &mut Verdict,
    no_inventory: &mut std::collections::BTreeSet<String>,
) {
    let per_tier = 2 + Cause::ALL.len();
    for row in 0..batch.num_rows() {
        let node = format!("{}/{}", text(batch, 1, row).unwrap_or("?"), text(batch, 2, row).unwrap_or("?"));
        let shown = text(batch, 3, row).unwrap_or(NOT_NAMED).to_owned();
        let ms = int(batch, 6, row);
        // A row in the folder of another hour would be counted there.
        let hour = hour_of(batch, 0, row).unwrap_or(hour);
        let unlisted = text(batch, 8, row).is_some_and(has_no_inventory);
        // Rule A16: what is held by number is taken from the node, so rows without a device sum to nothing. A node without
        // inventory has rows of its owners only, and nothing to hold them against.
        if !unlisted {
            of_device.entry((node.clone(), shown.clone())).or_default().0 += ms;
        }
        if ms < 0 && text(batch, 7, row) != Some("held_unknown") {
            faults.push(Fault::Negative { hour, node: node.clone(), device: shown.clone(), ms });
        }
        if text(batch, 4, row).and_then(RowKind::from_text) != Some(RowKind::Owner) {
            continue;
        }
        verdict.owner_rows += 1;
        if unlisted {
            no_inventory.insert(node.clone());
        }
        let over = int(batch, 9, row);
        if over != 0 {
            *verdict.overcommitted.entry(node.clone()).or_default() += over;
        }
        for (number, &tier) in Tier::ALL.iter().enumerate() {
            let first = FIXED.len() + number * per_tier;
            let parts: Vec<i64> = (first..first + per_tier).map(|place| int(batch, place, row)).collect();
            let parts_ms: i64 = parts.iter().sum();
            if parts_ms != ms {
                let owner = text(batch, 5, row).unwrap_or("?").to_owned();
                let fault =
                    Fault::Tier { hour, node: node.clone(), device: shown.clone(), owner, tier, allocated_ms: ms, parts_ms };
                faults.push(fault);
            } else if let Some(&ms) = parts.iter().find(|ms| **ms < 0) {
                faults.push(Fault::Negative { hour, node: node.clone(), device: shown.clone(), ms });
            }
        }
    }
}

fn capacity(batch: &RecordBatch, of_device: &mut BTreeMap<(String, String), (i64, i64)>) {
    for row in 0..batch.num_rows() {
        let node = format!("{}/{}", text(batch, 1, row).unwrap_or("?"), text(batch, 2, row).unwrap_or("?"));
        let device = text(batch, 3, row).unwrap_or("?").to_owned();
        of_device.entry((node, device)).or_default().1 += int(batch, 4, row);
    }
}
