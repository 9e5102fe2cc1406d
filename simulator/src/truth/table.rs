//! Rows of the truth as columns of `truth_gpu_hours`.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float32Array, Float64Array, Int64Array, StringArray, TimestampMicrosecondArray};
use schemas::{status::Tier, tables::Type};

use super::TruthRow;
use crate::plan::Plan;

/// One cell of the table.
enum Cell<'a> {
    Null,
    Text(&'a str),
    Int(i64),
}

fn cell<'a>(plan: &'a Plan, row: &TruthRow, column: &str) -> Cell<'a> {
    let node = &plan.nodes()[row.device.node];
    let device = plan.device(row.device);
    let text = |text: &'a str| if text.is_empty() { Cell::Null } else { Cell::Text(text) };
    match column {
        "hour_start" => return Cell::Int(row.hour_start.micros()),
        "cluster" => return text(&node.cluster),
        "node" => return text(&node.name),
        "device" => return text(row.device_id(plan)),
        "parent" => {
            let instance = device.instance.as_ref().filter(|_| !row.orphan);
            return instance.map_or(Cell::Null, |_| Cell::Text(&plan.board(row.device).uuid));
        }
        "profile" => {
            let instance = device.instance.as_ref().filter(|_| !row.orphan);
            return instance.map_or(Cell::Null, |instance| Cell::Text(&instance.placed.profile.name));
        }
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
        "held_profile_ms" => Cell::Int(row.held_profile_ms),
        "energy_mj" => row.energy_uj.map_or(Cell::Null, |energy| Cell::Int((energy + 500).div_euclid(1000))),
        "fb_used_mib_ms" => row.fb_mib_ms.map_or(Cell::Null, Cell::Int),
        "fb_unobserved_ms" => row.fb_mib_ms.map_or(Cell::Null, |_| Cell::Int(0)),
        "overcommitted_ms" => Cell::Int(0),
        "flags" => text(row.flags()),
        "allocation_source" | "owner_source" => text("sim"),
        _ => tier_cell(row, column),
    }
}

fn tier_cell<'a>(row: &TruthRow, column: &str) -> Cell<'a> {
    let found = Tier::ALL.iter().find_map(|tier| Some((*tier, column.strip_prefix(tier.as_str())?.strip_prefix('_')?)));
    match found {
        Some((tier, "utilized_ms")) => Cell::Int(row.utilized_ms(tier)),
        Some((tier, "stranded_ms")) => Cell::Int(if row.observed { row.ms - row.utilized_ms(tier) } else { 0 }),
        Some((_, "unobserved_no_source_ms")) => Cell::Int(if row.observed { 0 } else { row.ms }),
        Some((tier, "over_share_ms")) => Cell::Int(row.over_share_ms[tier as usize]),
        Some(_) => Cell::Int(0), // nothing else is unobserved
        None => Cell::Null,
    }
}

pub(super) fn column_of(plan: &Plan, rows: &[TruthRow], column: &str, kind: Type) -> ArrayRef {
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
