//! What each hour has of an interval, as closing writes it: ends clipped to the hour, the whole interval's beside them.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, TimestampMicrosecondArray},
    compute::filter_record_batch,
    datatypes::TimestampMicrosecondType,
};
use lake::{LakeError, encode};
use schemas::{
    HOUR_MS, Timestamp,
    rows::{self, Rows},
    tables::{self, Table},
};

use super::{lake::BackfillError, sightings::Sighted};
use crate::{api, plan::Plan};

/// Rows of `allocations`, `demand` and `nodes` of the hour that begins at `hour`, as they are known at `known`.
pub(super) fn hour(
    plan: &Plan,
    sighted: &[Sighted],
    hour: Timestamp,
    known: Timestamp,
) -> Result<Vec<(&'static Table, RecordBatch)>, BackfillError> {
    let (from, to) = (hour.ms(), hour.plus_ms(HOUR_MS).ms());
    let [mut allocations, mut demand, mut nodes] = ["allocations", "demand", "nodes"].map(|table| Rows::new(tables::get(table)));
    let ours = |what: String| BackfillError::Row(what);
    for (index, pod) in plan.pods().iter().enumerate() {
        if pod.created >= to {
            break; // in order of their creation
        }
        let bound = pod.bound.as_ref();
        if bound.is_some_and(|b| b.bound < to && from < b.ended)
            && let Some(holding) = api::holding_at(plan, index, known)
        {
            rows::holding(&mut allocations, &holding, None).map_err(ours)?;
        }
        let waited_to = bound.map(|b| b.bound).or(pod.withdrawn).unwrap_or(i64::MAX);
        if from < waited_to
            && let Some(wish) = api::demand_at(plan, index, known)
        {
            rows::demand(&mut demand, &wish, None).map_err(ours)?;
        }
    }
    for sighting in sighted.iter().filter(|sighting| sighting.touches(from, to)) {
        rows::holding(&mut allocations, &sighting.message(plan), None).map_err(ours)?;
    }
    for index in 0..plan.nodes().len() {
        if let Some(node) = api::node_at(plan, index, known) {
            rows::node(&mut nodes, &node, None).map_err(ours)?;
        }
    }
    let clipped = [allocations, demand, nodes].into_iter().map(|rows| Ok((rows.table(), clip(rows, from, to)?)));
    clipped.collect()
}

/// The rows that have any time in `[from, to)`, with `from_at` and `to_at` inside it, sorted.
fn clip(rows: Rows, from: i64, to: i64) -> Result<RecordBatch, BackfillError> {
    let table = rows.table();
    let batch = rows.finish();
    let (from, to) = (Timestamp::from_ms(from).micros(), Timestamp::from_ms(to).micros());
    let column =
        |name: &str| table.index(name).map(|index| batch.column(index).as_primitive::<TimestampMicrosecondType>().clone());
    let (Some(begins), Some(ends)) = (column("interval_from"), column("interval_to")) else { return Ok(batch) };
    let ends_at = |row: usize| if ends.is_valid(row) { ends.value(row).min(to) } else { to };
    let inside: Vec<(i64, i64)> = (0..batch.num_rows()).map(|row| (begins.value(row).max(from), ends_at(row))).collect();
    let keep: BooleanArray = inside.iter().map(|(from, to)| Some(from < to)).collect();
    let mut columns: Vec<ArrayRef> = batch.columns().to_vec();
    let times = |of: &dyn Fn(&(i64, i64)) -> i64| -> ArrayRef {
        Arc::new(TimestampMicrosecondArray::from_iter_values(inside.iter().map(of)).with_timezone("UTC"))
    };
    for (name, values) in [("from_at", times(&|(from, _)| *from)), ("to_at", times(&|(_, to)| *to))] {
        if let Some(index) = table.index(name) {
            columns[index] = values;
        }
    }
    let encode_error = |source: arrow::error::ArrowError| LakeError::Encode { table: table.name, source: source.into() };
    let batch = RecordBatch::try_new(table.schema(), columns).map_err(encode_error)?;
    let batch = filter_record_batch(&batch, &keep).map_err(encode_error)?;
    Ok(encode::sorted(table, &[batch])?)
}
