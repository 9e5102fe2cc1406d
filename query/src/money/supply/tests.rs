//! Runs from inventory rows, hour by hour.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use datafusion::arrow::{
    array::{ArrayRef, Int64Array, StringArray, TimestampMicrosecondArray},
    datatypes::Schema,
};

use super::*;
use crate::money::yaml;

const H: i64 = HOUR_MS;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_ms(1_772_409_600_000 + ms)
}

/// A row: kind, device, parent, purchase option, GPUs, part and whole interval in ms after the first hour.
#[derive(Clone, Copy, Default)]
struct Row {
    kind: &'static str,
    device: &'static str,
    parent: Option<&'static str>,
    option: &'static str,
    gpus: Option<i64>,
    part: (i64, i64),
    whole: (i64, Option<i64>),
}

fn device(device: &'static str, part: (i64, i64), whole: (i64, Option<i64>)) -> Row {
    Row { kind: "device", device, option: "od", part, whole, ..Row::default() }
}

fn batch(rows: &[Row]) -> RecordBatch {
    let table = tables::get("nodes");
    let texts =
        |get: &dyn Fn(&Row) -> Option<&'static str>| -> ArrayRef { Arc::new(rows.iter().map(get).collect::<StringArray>()) };
    let times = |get: &dyn Fn(&Row) -> Option<i64>| -> ArrayRef {
        let times: TimestampMicrosecondArray = rows.iter().map(|row| get(row).map(|ms| at(ms).micros())).collect();
        Arc::new(times.with_timezone("UTC"))
    };
    let ints = |get: &dyn Fn(&Row) -> Option<i64>| -> ArrayRef { Arc::new(rows.iter().map(get).collect::<Int64Array>()) };
    let fields: Vec<_> = NODE_COLUMNS.iter().map(|name| table.columns[table.index(name).unwrap()].clone()).collect();
    let columns = NODE_COLUMNS.iter().map(|name| match *name {
        "cluster" | "node" => texts(&|_| Some("n")),
        "kind" => texts(&|row| Some(row.kind)),
        "device" => texts(&|row| Some(row.device).filter(|device| !device.is_empty())),
        "parent" => texts(&|row| row.parent),
        "purchase_option" => texts(&|row| Some(row.option)),
        "capacity_gpus" => ints(&|row| row.gpus),
        "revision" => ints(&|_| Some(0)),
        "replicas" => ints(&|_| None),
        "from_at" => times(&|row| Some(row.part.0)),
        "to_at" => times(&|row| Some(row.part.1)),
        "interval_from" => times(&|row| Some(row.whole.0)),
        "interval_to" => times(&|row| row.whole.1),
        "observed_at" => times(&|row| Some(row.part.0)),
        _ => texts(&|_| None),
    });
    let schema = Schema::new(
        fields.iter().map(|c| datafusion::arrow::datatypes::Field::new(&c.name, c.kind.arrow(), true)).collect::<Vec<_>>(),
    );
    RecordBatch::try_new(Arc::new(schema), columns.collect()).unwrap()
}

fn card() -> Card {
    let text = "currency: EUR\npools:\n  - {pool: od, kind: per_use, match: {purchase_option: od}, price_per_gpu_hour: \"1\", increment_ms: 60000}\n  \
                - {pool: spot, kind: per_use, match: {purchase_option: spot}, price_per_gpu_hour: \"1\", increment_ms: 60000}\n";
    yaml::card("card", text).unwrap()
}

/// Pool, from, billed_from, to (in ms), ends, gpus.
type Shown = (String, i64, i64, i64, bool, i64);

/// Feeds hours; each answers with its runs.
fn feed(hours: &[Option<Vec<Row>>]) -> Vec<Vec<Shown>> {
    let card = card();
    let mut supply = Supply::new(&card, Vec::new());
    let read = |hour: Timestamp| {
        let number = usize::try_from((hour.ms() - at(0).ms()) / H).unwrap();
        Ok(hours.get(number).cloned().flatten().map(|rows| vec![batch(&rows)]).unwrap_or_default())
    };
    let ms = |t: Timestamp| t.ms() - at(0).ms();
    (0..hours.len() as i64)
        .map(|hour| {
            let runs = supply.hour(at(hour * H), read).unwrap().runs;
            runs.iter().map(|r| (r.pool.to_string(), ms(r.from), ms(r.billed_from), ms(r.to), r.ends, r.gpus)).collect()
        })
        .collect()
}

#[test]
fn a_run_goes_on_over_hours_and_ends_once() {
    let whole = (600_000, Some(H + 1_200_000));
    let hours = feed(&[
        Some(vec![device("a", (600_000, H), whole), device("b", (600_000, H), whole)]),
        Some(vec![device("a", (H, H + 1_200_000), whole), device("b", (H, H + 1_200_000), whole)]),
        Some(vec![]),
    ]);
    assert_eq!(hours[0], [("od".into(), 600_000, 600_000, H, false, 2)]);
    assert_eq!(hours[1], [("od".into(), 600_000, 600_000, H + 1_200_000, true, 2)]);
    assert_eq!(hours[2], [], "it ended more than 15 minutes before");
}

#[test]
fn an_interval_that_ends_with_its_hour_ends_there_unless_another_goes_on() {
    let ends = device("a", (0, H), (0, Some(H)));
    assert_eq!(feed(&[Some(vec![ends]), Some(vec![])])[0], [("od".into(), 0, 0, H, true, 1)]);
    let hours = feed(&[Some(vec![ends]), Some(vec![device("a", (H, 2 * H), (H, None))])]);
    assert_eq!(hours[0], [("od".into(), 0, 0, H, false, 1)]);
    assert_eq!(hours[1], [("od".into(), 0, 0, 2 * H, false, 1)]);
}

#[test]
fn instances_are_their_gpu_and_a_node_may_only_count() {
    let instance = |id, part, whole| Row { parent: Some("g"), ..device(id, part, whole) };
    let hours = feed(&[Some(vec![
        instance("g/1", (0, 1_800_000), (0, Some(1_800_000))),
        instance("g/2", (0, H), (0, None)),
        instance("g/3", (1_800_000, H), (1_800_000, None)),
        Row { kind: "node", option: "od", gpus: Some(1), part: (0, H), ..Row::default() },
    ])]);
    assert_eq!(hours[0], [("od".into(), 0, 0, H, false, 1)]);
    let node = Row { kind: "node", option: "spot", gpus: Some(8), part: (0, H), ..Row::default() };
    assert_eq!(feed(&[Some(vec![node])])[0], [("spot".into(), 0, 0, H, false, 8)]);
}

#[test]
fn an_hour_without_rows_ends_nothing_and_a_device_without_rows_is_gone() {
    let lasts = |hour: i64| device("a", (hour * H, (hour + 1) * H), (0, None));
    let other = |hour: i64| device("b", (hour * H, (hour + 1) * H), (0, None));
    let hours = feed(&[Some(vec![lasts(0)]), None, Some(vec![lasts(2)])]);
    assert_eq!(hours[2], [("od".into(), 0, 0, 3 * H, false, 1)]);
    // Its last hour is the one that it ends in, so that its pad falls there.
    let hours = feed(&[Some(vec![lasts(0), other(0)]), Some(vec![other(1)])]);
    assert_eq!(hours[0], [("od".into(), 0, 0, H, false, 1), ("od".into(), 0, 0, H, true, 1)]);
    // After hours without rows nobody knows when it ended.
    let hours = feed(&[Some(vec![lasts(0), other(0)]), None, Some(vec![other(2)])]);
    assert_eq!(hours[2], [("od".into(), 0, 0, 2 * H, false, 1), ("od".into(), 0, 0, 3 * H, false, 1)]);
}

#[test]
fn a_run_that_changes_its_pool_is_billed_over_its_whole_length() {
    let part = |hour: i64, option| Row { option, ..device("a", (hour * H, (hour + 1) * H), (0, None)) };
    let hours = feed(&[Some(vec![part(0, "od")]), Some(vec![part(1, "spot")]), Some(vec![part(2, "none")])]);
    assert_eq!(hours[0], [("od".into(), 0, 0, H, false, 1)]);
    assert_eq!(hours[1], [("od".into(), 0, 0, H, false, 1), ("spot".into(), H, 0, 2 * H, false, 1)]);
    assert_eq!(hours[2], [("spot".into(), H, 0, 2 * H, false, 1)]);
}
