//! What an hour hands on to the next: holdings that have ended and still matter to one that goes on, or may matter to a
//! listing yet to come.
//!
//! A holding that seems to go on may have been cut by a later bind of its device (rule A11), may have been named by a
//! sighting that is over (A16), or may carry on the name of a run of sightings (A9). So, with begin(N) the earliest begin of
//! a row of name N = (node, namespace, pod) that goes on or matters, a row that has ended matters where
//! * its name is such an N, and it had not ended before begin(N); or
//! * its device is one of a row of such an N, and it ended after begin(N): it may have cut it; or
//! * it is the scheduler's word of a name that matters, the last before a sighting: that sighting is of that pod; or
//! * it is a holding by number that ended in this hour: the kubelet lists a pod for a while after its end, so the first
//!   listing of its device may come in the next hour, where it is to be that pod's and not an owner's that nobody bound.
//!
//! Generous where in doubt: a row too many changes nothing, for a cut that was made is made again.

use std::collections::{BTreeMap, BTreeSet};

use datafusion::arrow::{
    array::{
        Array, ArrayRef, AsArray, BooleanArray, RecordBatch, StringArray, TimestampMicrosecondArray,
        types::{Int64Type, TimestampMicrosecondType},
    },
    compute::filter_record_batch,
    error::ArrowError,
};
use lake::{Lake, LakeError, read};
use ledger::batch::BatchError;
use schemas::{
    HOUR_MS, Timestamp,
    status::HoldingSource,
    tables::{self, Table},
};

use super::files::Files;
use crate::account::AccountError;

/// The rows that `hour` hands on, as batches of `carried_allocations`.
pub(super) fn carried(
    lake: &Lake,
    files: &Files,
    hour: Timestamp,
    before: Option<Timestamp>,
) -> Result<Vec<RecordBatch>, AccountError> {
    let allocations = tables::get("allocations");
    let names: Vec<&str> = allocations.columns.iter().map(|column| column.name.as_str()).collect();
    let mut batches = Vec::new();
    for part in files.allocations(lake, hour, before) {
        batches.extend(read::rows(part.table, &part.path, Some(&names))?);
    }
    let broken = |err: ArrowError| AccountError::Rows { hour, source: BatchError::Build { table: "carried_allocations", err } };
    let rows = rows_of(&batches, allocations)?;
    let keep = matter(&rows, hour.plus_ms(HOUR_MS).micros());
    let table = tables::get("carried_allocations");
    let mut out = Vec::new();
    let mut first = 0;
    for batch in &batches {
        let mask: BooleanArray = (first..first + batch.num_rows()).map(|row| Some(keep.contains(&row))).collect();
        first += batch.num_rows();
        let kept = filter_record_batch(batch, &mask).map_err(broken)?;
        let hours = TimestampMicrosecondArray::from(vec![hour.micros(); kept.num_rows()]).with_timezone("UTC");
        let columns = kept.columns().iter().cloned().chain([std::sync::Arc::new(hours) as ArrayRef]).collect();
        out.push(RecordBatch::try_new(table.schema(), columns).map_err(broken)?);
    }
    Ok(out)
}

/// A holding or sighting, as far as it tells whether it matters.
struct Row<'a> {
    id: (&'a str, &'a str, &'a str, &'a str),
    name: Name<'a>,
    device: Option<&'a str>,
    from: i64,
    to: Option<i64>,
    order: (i64, i64),
    api: bool,
}

/// Cluster, node, namespace and pod.
type Name<'a> = (&'a str, &'a str, &'a str, &'a str);

fn rows_of<'a>(batches: &'a [RecordBatch], table: &'static Table) -> Result<Vec<Row<'a>>, LakeError> {
    let place = |name: &str| table.index(name).unwrap_or_default();
    let mut rows = Vec::new();
    for batch in batches {
        let text = |name: &str| batch.column(place(name)).as_string::<i32>();
        let time = |name: &str| batch.column(place(name)).as_primitive::<TimestampMicrosecondType>();
        let (clusters, nodes, sources, ids) = (text("cluster"), text("node"), text("source"), text("holding_id"));
        let (namespaces, pods, devices) = (text("namespace"), text("pod"), text("device"));
        let (from, to, observed) = (time("interval_from"), time("interval_to"), time("observed_at"));
        let revisions = batch.column(place("revision")).as_primitive::<Int64Type>();
        let given =
            |texts: &'a StringArray, row: usize| (texts.is_valid(row) && !texts.value(row).is_empty()).then(|| texts.value(row));
        for row in 0..batch.num_rows() {
            let (cluster, node) = (clusters.value(row), nodes.value(row));
            rows.push(Row {
                id: (cluster, node, sources.value(row), ids.value(row)),
                name: (cluster, node, namespaces.value(row), pods.value(row)),
                device: given(devices, row),
                from: from.value(row),
                to: to.is_valid(row).then(|| to.value(row)),
                order: (observed.value(row), if revisions.is_valid(row) { revisions.value(row) } else { 0 }),
                api: sources.value(row) == HoldingSource::Api.as_str(),
            });
        }
    }
    Ok(rows)
}

/// Which rows have ended at `end` and still matter, by their places.
fn matter(rows: &[Row<'_>], end: i64) -> BTreeSet<usize> {
    // Of the states of one holding the last observed stands.
    let mut last: BTreeMap<_, usize> = BTreeMap::new();
    for (place, row) in rows.iter().enumerate() {
        let known = last.entry(row.id).or_insert(place);
        if rows[*known].order < row.order {
            *known = place;
        }
    }
    let (over, going): (Vec<usize>, Vec<usize>) =
        last.into_values().partition(|place| rows[*place].to.is_some_and(|to| to <= end));
    // A row that holds nothing cuts nobody, but may be the name's.
    let mut by_name: BTreeMap<Name<'_>, Vec<usize>> = BTreeMap::new();
    let mut by_device: BTreeMap<(&str, &str, &str), Vec<usize>> = BTreeMap::new();
    for &place in &over {
        let row = &rows[place];
        by_name.entry(row.name).or_default().push(place);
        if let Some(device) = row.device {
            by_device.entry((row.name.0, row.name.1, device)).or_default().push(place);
        }
    }
    // With which begin a name or a device was last looked through; an earlier one looks again.
    let mut begins: BTreeMap<Name<'_>, i64> = BTreeMap::new();
    let mut devices: BTreeMap<Name<'_>, BTreeSet<&str>> = BTreeMap::new();
    let mut kept: BTreeSet<usize> = BTreeSet::new();
    let mut todo: Vec<usize> = going;
    while let Some(place) = todo.pop() {
        let row = &rows[place];
        let begin = begins.entry(row.name).or_insert(i64::MAX);
        let earlier = row.from < *begin;
        *begin = row.from.min(*begin);
        let begin = *begin;
        let of_name = devices.entry(row.name).or_default();
        let new_device = row.device.filter(|device| of_name.insert(device));
        if !earlier && new_device.is_none() {
            continue;
        }
        let ended = |place: &usize| rows[*place].to.unwrap_or(i64::MAX);
        let mut found: Vec<usize> = Vec::new();
        if earlier {
            let same = by_name.get(&row.name).into_iter().flatten().copied();
            found.extend(same.clone().filter(|place| ended(place) >= begin));
            let word = same.filter(|place| rows[*place].api && rows[*place].from <= begin);
            found.extend(word.max_by_key(|place| (rows[*place].from, ended(place))));
        }
        for device in of_name.iter().filter(|device| earlier || Some(**device) == new_device) {
            let same = by_device.get(&(row.name.0, row.name.1, *device)).into_iter().flatten().copied();
            found.extend(same.filter(|place| ended(place) > begin));
        }
        todo.extend(found.into_iter().filter(|place| kept.insert(*place)));
    }
    // None of these leads to others: it holds nothing after this hour.
    let ended_in_it = |row: &Row<'_>| row.device.is_none() && row.to.is_some_and(|to| to > end - HOUR_MS * 1000);
    kept.extend(over.into_iter().filter(|place| ended_in_it(&rows[*place])));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row<'a>(id: &'a str, pod: &'a str, device: Option<&'a str>, from: i64, to: Option<i64>, api: bool) -> Row<'a> {
        let source = if api { "api" } else { "podres" };
        Row { id: ("c", "n", source, id), name: ("c", "n", "ns", pod), device, from, to, order: (0, 0), api }
    }

    /// Ids of rows that matter at 100.
    fn check(rows: &[Row<'_>], expected: &[&str]) {
        let mut ids: Vec<&str> = matter(rows, 100).into_iter().map(|place| rows[place].id.3).collect();
        ids.sort_unstable();
        assert_eq!(ids, expected);
    }

    #[test]
    fn one_after_another_hands_nothing_on() {
        check(&[row("a", "p", Some("G"), 0, Some(40), false), row("b", "q", Some("G"), 50, None, false)], &[]);
    }

    #[test]
    fn who_cut_a_holding_that_goes_on_is_handed_on_with_the_schedulers_word() {
        let rows = [
            row("long", "p", Some("G"), 0, None, false),
            row("cutter", "q", Some("G"), 30, Some(60), false),
            row("its-bind", "q", None, 28, Some(58), true),
            row("elsewhere", "r", Some("H"), 30, Some(60), false),
        ];
        check(&rows, &["cutter", "its-bind"]);
    }

    #[test]
    fn the_bind_counts_and_not_the_sighting() {
        // The kubelet named the device at 50, the pod was bound at 20, and another one had it until 30.
        let rows = [
            row("bind", "p", None, 20, None, true),
            row("seen", "p", Some("G"), 50, None, false),
            row("other", "q", Some("G"), 10, Some(30), false),
        ];
        check(&rows, &["other"]);
    }

    #[test]
    fn devices_that_a_pod_had_stay_named() {
        let rows = [row("bind", "p", None, 0, None, true), row("seen", "p", Some("G"), 5, Some(50), false)];
        check(&rows, &["seen"]);
    }

    #[test]
    fn a_run_of_sightings_keeps_its_beginning() {
        let rows = [
            row("1", "p", Some("A"), 0, Some(50), false),
            row("2", "p", Some("B"), 50, Some(70), false),
            row("3", "p", Some("A"), 70, None, false),
            row("0", "p", Some("A"), -90, Some(-1), false),
        ];
        check(&rows, &["1", "2"]);
    }

    #[test]
    fn what_ended_in_the_hour_may_be_listed_first_in_the_next() {
        let hour = HOUR_MS * 1000;
        let rows = [
            row("last", "p", None, 0, Some(100), true),
            row("same-name", "p", None, -10, Some(-1), true),
            row("first", "q", None, -20, Some(101 - hour), true),
            row("hour-before", "r", None, -hour, Some(100 - hour), true),
            row("going", "s", None, 0, None, true),
            row("seen", "p", Some("G"), 50, Some(99), false),
        ];
        check(&rows, &["first", "last", "same-name"]);
    }

    #[test]
    fn an_older_state_is_no_holding() {
        let mut old = row("a", "p", Some("G"), 0, None, false);
        old.order = (1, 0);
        let mut new = row("a", "p", Some("G"), 0, Some(60), false);
        new.order = (2, 0);
        check(&[old, new, row("b", "q", Some("G"), 10, Some(50), false)], &[]);
    }
}
