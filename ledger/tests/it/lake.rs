//! The vectors once more, by way of the lake's tables; and what inputs the tables alone make.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{
        Array, ArrayRef, BooleanArray, Float32Array, Float64Array, Int64Array, RecordBatch, StringArray,
        TimestampMicrosecondArray,
    },
    compute::concat_batches,
    datatypes::{DataType, SchemaRef},
};
use ledger::{
    HourRow,
    batch::{Facts, NodeInputs, Source, device_rows, hour_rows},
    capacity::capacities,
    case, hours,
    row::What,
};
use schemas::{
    Timestamp, catalogue,
    status::{HoldingSource, RowKind},
    tables,
};
use serde_json::Value;

use crate::worlds::{at, window};

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/vectors/accounting.jsonl");

/// A cell of a row in the making.
#[derive(Clone, Debug)]
enum Cell {
    Text(String),
    Int(i64),
    Float(f32),
    Time(Timestamp),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<i64> for Cell {
    fn from(n: i64) -> Self {
        Self::Int(n)
    }
}

impl From<Timestamp> for Cell {
    fn from(at: Timestamp) -> Self {
        Self::Time(at)
    }
}

/// A row by column; what is not there is null, or empty where it may not be null.
#[derive(Clone, Debug, Default)]
struct Row(BTreeMap<String, Cell>);

impl Row {
    fn set(mut self, column: &str, cell: impl Into<Cell>) -> Self {
        self.0.insert(column.into(), cell.into());
        self
    }

    fn maybe(self, column: &str, cell: Option<impl Into<Cell>>) -> Self {
        match cell {
            Some(cell) => self.set(column, cell),
            None => self,
        }
    }
}

fn batch(table: &'static str, rows: &[Row]) -> RecordBatch {
    let schema: SchemaRef = tables::get(table).schema();
    for row in rows {
        assert!(row.0.keys().all(|column| schema.field_with_name(column).is_ok()), "{table} has not all of {row:?}");
    }
    let column = |field: &arrow::datatypes::FieldRef| -> ArrayRef {
        let cells = rows.iter().map(|row| row.0.get(field.name()));
        let filled = !field.is_nullable();
        match field.data_type() {
            DataType::Utf8 => Arc::new(StringArray::from_iter(cells.map(|cell| match cell {
                Some(Cell::Text(text)) => Some(text.clone()),
                None => filled.then(String::new),
                other => panic!("{}: {other:?}", field.name()),
            }))),
            DataType::Int64 => Arc::new(Int64Array::from_iter(cells.map(|cell| match cell {
                Some(Cell::Int(n)) => Some(*n),
                None => filled.then_some(0),
                other => panic!("{}: {other:?}", field.name()),
            }))),
            DataType::Float32 => Arc::new(Float32Array::from_iter(cells.map(|cell| match cell {
                Some(Cell::Float(n)) => Some(*n),
                None => None,
                other => panic!("{}: {other:?}", field.name()),
            }))),
            DataType::Timestamp(..) => {
                let times = TimestampMicrosecondArray::from_iter(cells.map(|cell| match cell {
                    Some(Cell::Time(at)) => Some(at.micros()),
                    None => filled.then_some(0),
                    other => panic!("{}: {other:?}", field.name()),
                }));
                Arc::new(times.with_timezone("UTC"))
            }
            DataType::Boolean => Arc::new(BooleanArray::from(vec![None; rows.len()])),
            DataType::Float64 => Arc::new(Float64Array::from(vec![None; rows.len()])),
            other => panic!("{other}"),
        }
    };
    RecordBatch::try_new(schema.clone(), schema.fields().iter().map(column).collect()).unwrap()
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str().map(|text| text.parse().unwrap())
}

/// One case as rows of the lake; none where a number of it does not fit the lake's types.
fn tables_of(case: &Value, horizon_ms: i64) -> Option<[(Source, RecordBatch); 4]> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of_cluster = || Row::default().set("cluster", "bay");
    let node_of: BTreeMap<String, &Value> = case["devices"].as_array().unwrap().iter().map(|d| (text(&d["device"]), d)).collect();
    let (mut samples, mut scrapes, mut allocations, mut nodes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (begin, end) = (at(0), at(4_000_000_000_000));

    for device in case["devices"].as_array().unwrap() {
        let node = text(&device["node"]);
        let row = of_cluster().set("node", &*node).set("device", device["device"].as_str().unwrap()).set("to_at", end);
        let from = time(&device["present_from"]).unwrap_or(begin);
        let present = row
            .clone()
            .set("kind", "device")
            .maybe("parent", device["parent"].as_str())
            .maybe("profile", device["mig_profile"].as_str())
            .maybe("product", device["product"].as_str())
            .maybe("telemetry", device["telemetry"].as_str())
            .maybe("weight_num", device["weight"]["num"].as_i64())
            .maybe("weight_den", device["weight"]["den"].as_i64())
            .maybe("replicas", device["replicas"].as_i64())
            .set("interval_from", from)
            .maybe("interval_to", time(&device["present_to"]));
        nodes.push(present);
        for down in device["unavailable"].as_array().into_iter().flatten() {
            let row = row.clone().set("kind", "unavailable").set("reason", down["reason"].as_str().unwrap());
            nodes.push(row.set("interval_from", time(&down["from"]).unwrap()).maybe("interval_to", time(&down["to"])));
        }
        // The horizon is scrape + collect interval here, as long as it takes.
        let round = of_cluster().set("node", &*node).set("at", begin).set("source", "s").set("status", "ok");
        scrapes.push(round.set("interval_ms", 1).set("collect_interval_ms", horizon_ms - 1));
    }
    for (i, holding) in case["allocations"].as_array().unwrap().iter().enumerate() {
        let terminating = [
            time(&holding["terminating_from"]),
            time(&holding["deletion_timestamp"]).map(|at| at.plus_ms(-holding["grace_ms"].as_i64().unwrap())),
        ];
        let ends = ["ended", "terminal", "removed"].map(|key| time(&holding[key]));
        let ids = holding["replica_ids"].as_array().map(|ids| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
        let row = of_cluster()
            .set("node", holding["node"].as_str().unwrap())
            .set("source", "import")
            .set("holding_id", &*format!("{i}"))
            .set("pod_uid", holding["pod_uid"].as_str().unwrap())
            .set("namespace", holding["namespace"].as_str().unwrap())
            .set("pod", holding["pod"].as_str().unwrap())
            .maybe("team", holding["team"].as_str())
            .maybe("device", holding["device"].as_str())
            .maybe("count", holding["count"].as_i64())
            .maybe("weight_num", holding["weight"]["num"].as_i64())
            .maybe("weight_den", holding["weight"]["den"].as_i64())
            .maybe("ids", holding["ids"].as_i64())
            .maybe("replica_ids", ids.as_deref())
            .maybe("bound_at", time(&holding["bound"]))
            .maybe("known_from", time(&holding["known_from"]))
            .maybe("started_at", time(&holding["started"]))
            .maybe("terminating_from", terminating.into_iter().flatten().min())
            .maybe("interval_to", ends.into_iter().flatten().min());
        allocations.push(row);
    }
    for (i, sample) in case["samples"].as_array().unwrap().iter().enumerate() {
        let (source, when) = (format!("source-{i}"), time(&sample["at"]).unwrap());
        if !sample["scrape_failed"].is_null() {
            let row = of_cluster().set("node", sample["node"].as_str().unwrap()).set("at", when);
            scrapes.push(row.set("source", &*source).set("status", "timeout").set("interval_ms", 1));
            continue;
        }
        let device = node_of[sample["device"].as_str().unwrap()];
        let mut row = of_cluster()
            .set("node", device["node"].as_str().unwrap())
            .set("device", sample["device"].as_str().unwrap())
            .set("at", when)
            .set("source", &*source)
            .maybe("parent", device["parent"].as_str());
        let mut faults = Vec::new();
        for (id, value) in sample["values"].as_object().unwrap() {
            let printed = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let field = catalogue::by_id(id.parse().unwrap()).unwrap();
            let number = match &*printed {
                "+Inf" => f64::INFINITY,
                "-Inf" => f64::NEG_INFINITY,
                text => text.parse().unwrap(),
            };
            let fits = number.fract() == 0.0 || (*id != "203" && printed.split('.').nth(1).is_some_and(|part| part.len() <= 6));
            match field.read(&printed, number, device["parent"].is_string()) {
                catalogue::Reading::Int(n) if fits => row = row.set(field.column.as_deref().unwrap(), n),
                catalogue::Reading::Ratio(n) | catalogue::Reading::Clipped(n, _) if fits => {
                    row.0.insert(field.column.clone().unwrap(), Cell::Float(n as f32));
                }
                catalogue::Reading::Invalid(fault) if fits || !number.is_finite() || printed.contains('e') => {
                    faults.push(format!("{id}:{fault}"))
                }
                _ => return None,
            }
        }
        samples.push(if faults.is_empty() { row } else { row.set("faults", &*faults.join(",")) });
    }
    Some([
        (Source::GpuSamples, batch("gpu_samples", &samples)),
        (Source::Scrapes, batch("scrapes", &scrapes)),
        (Source::Allocations, batch("allocations", &allocations)),
        (Source::Nodes, batch("nodes", &nodes)),
    ])
}

#[test]
fn every_case_comes_out_alike_by_way_of_the_lake() {
    let cases = std::fs::read_to_string(CASES).unwrap();
    let (mut compared, mut failed) = (0, Vec::new());
    for line in cases.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        let Ok(case) = case::read(line) else { continue };
        let Ok(mut expected) = hours(&case.inputs, case.window) else { continue };
        let Some(tables) = tables_of(&value, case.inputs.rules.horizon_ms) else { continue };
        for row in &mut expected {
            if let What::Owner(owner) = &mut row.what {
                owner.source = HoldingSource::Import;
            }
        }
        let mut facts = Facts::default();
        for (source, rows) in &tables {
            facts.add(*source, rows).unwrap();
            facts.add(*source, &rows.slice(0, rows.num_rows() / 2)).unwrap(); // repeats mean nothing
        }
        let nodes = facts.into_nodes();
        let mut got: Vec<HourRow> = Vec::new();
        for NodeInputs { mut inputs, unweighed, .. } in nodes {
            assert!(unweighed.is_empty());
            inputs.rules.tensor_ceiling = case.inputs.rules.tensor_ceiling;
            got.extend(hours(&inputs, case.window).unwrap());
        }
        got.sort_by_key(|row| row.hour_start); // nodes come in order
        compared += 1;
        if got != expected {
            failed.push(value["name"].clone());
        }
    }
    assert!(failed.is_empty(), "{} of {compared} differ: {failed:?}", failed.len());
    assert!(compared >= 150, "only {compared} cases fit the lake's types");
}

#[test]
fn hour_rows_fill_every_column_and_sum_to_the_capacity() {
    let cases = std::fs::read_to_string(CASES).unwrap();
    let mut made = Vec::new();
    for line in cases.lines() {
        let Ok(case) = case::read(line) else { continue };
        let Ok(rows) = hours(&case.inputs, case.window) else { continue };
        let batch = hour_rows("bay", &rows).unwrap();
        let capacity = device_rows("bay", &capacities(&case.inputs.devices, case.window).unwrap()).unwrap();
        let sum = |batch: &RecordBatch, column: &str| {
            let array = batch.column_by_name(column).unwrap().clone();
            array.as_any().downcast_ref::<Int64Array>().unwrap().iter().flatten().sum::<i64>()
        };
        assert_eq!(sum(&batch, "ms"), sum(&capacity, "capacity_ms"), "{line}");
        let owners = rows.iter().filter(|row| row.kind() == RowKind::Owner);
        assert_eq!(
            sum(&batch, "sm_utilized_ms"),
            owners.map(|r| r.owner().unwrap().tiers[schemas::status::Tier::Sm].utilized_ms).sum::<i64>()
        );
        made.push(batch);
    }
    let all = concat_batches(&tables::get("gpu_hours").schema(), &made).unwrap();
    let always_null = [
        "region",
        "provider",
        "purchase_option",
        "reservation",
        "workload",
        "queue",
        "energy_mj",
        "fb_used_mib_ms",
        "fb_unobserved_ms",
    ];
    for (field, column) in all.schema().fields().iter().zip(all.columns()) {
        assert_eq!(
            column.null_count() == all.num_rows(),
            always_null.contains(&&**field.name()),
            "{} is always null",
            field.name()
        );
    }
}

fn add(facts: &mut Facts, source: Source, table: &'static str, rows: &[Row]) {
    facts.add(source, &batch(table, rows)).unwrap();
}

fn on(node: &str) -> Row {
    Row::default().set("cluster", "bay").set("node", node)
}

/// The account of the first hour, as lines.
fn lines(facts: Facts) -> Vec<String> {
    lines_of(facts.into_nodes())
}

fn lines_of(nodes: Vec<NodeInputs>) -> Vec<String> {
    let mut lines = Vec::new();
    for node in nodes {
        lines.extend(node.unweighed.iter().map(|device| format!("unweighed {device}")));
        for row in hours(&node.inputs, window(0, 3_600_000)).unwrap() {
            let device = row.place.device.as_deref().unwrap_or("-");
            lines.push(match &row.what {
                What::Owner(o) => format!("{device} {} {} {}", o.pod.uid, row.ms, o.flags).trim().to_owned(),
                What::Free(reason) | What::Unavailable(reason) => format!("{device} {reason} {}", row.ms),
            });
        }
    }
    lines
}

fn node_row(node: &str) -> Row {
    on(node).set("kind", "node").set("interval_from", at(0)).set("to_at", at(3_600_000)).set("source", "api")
}

#[test]
fn a_node_that_counts_its_gpus_has_as_many_as_it_counts() {
    let mut facts = Facts::default();
    add(
        &mut facts,
        Source::Nodes,
        "nodes",
        &[node_row("n1").set("capacity_gpus", 4).set("replicas", 2).set("interval_from", at(600_000))],
    );
    let sample = on("n1").set("device", "A").set("at", at(900_000)).set("source", "s");
    add(&mut facts, Source::GpuSamples, "gpu_samples", &[sample]);
    assert_eq!(lines(facts), ["A unheld 3000000", "unnamed:n1:1 unheld 3000000"]);
}

#[test]
fn the_state_observed_last_stands_and_a_node_s_trouble_is_its_devices() {
    let down = node_row("n1").set("kind", "unavailable").set("reason", "not_ready").set("interval_from", at(-1000));
    let listed = node_row("n1").set("kind", "device").set("device", "A");
    let mut facts = Facts::default();
    let over = down.clone().set("interval_to", at(600_000)).set("observed_at", at(700_000));
    add(&mut facts, Source::Nodes, "nodes", &[over, down.set("observed_at", at(100_000)), listed]);
    assert_eq!(lines(facts), ["A unheld 3000000", "A not_ready 600000"]);
}

#[test]
fn a_replica_asked_by_number_is_a_part_of_a_gpu() {
    let mut facts = Facts::default();
    add(&mut facts, Source::Nodes, "nodes", &[node_row("n1").set("kind", "device").set("device", "A").set("replicas", 4)]);
    let book =
        on("n1").set("source", "api").set("holding_id", "u1").set("pod_uid", "u1").set("count", 2).set("interval_from", at(0));
    add(&mut facts, Source::Allocations, "allocations", &[book]);
    assert_eq!(lines(facts), ["A unheld 3600000", "- u1 1800000", "- held_unknown -1800000"]);
}

#[test]
fn the_kubelet_names_the_device_of_an_api_holding() {
    let book = on("n1")
        .set("source", "api")
        .set("holding_id", "u1")
        .set("pod_uid", "u1")
        .set("namespace", "surf")
        .set("pod", "a")
        .set("count", 1);
    let book = book.set("interval_from", at(600_000)).set("bound_at", at(600_000));
    let seen = on("n1")
        .set("source", "podres")
        .set("holding_id", "surf/a/A")
        .set("namespace", "surf")
        .set("pod", "a")
        .set("device", "A");
    let seen = seen.set("interval_from", at(660_000)).set("ids", 1);
    let mut facts = Facts::default();
    add(&mut facts, Source::Allocations, "allocations", &[seen.clone(), book]);
    assert_eq!(lines(facts), ["A u1 2940000 no_inventory", "- u1 60000 no_inventory"]);

    let mut facts = Facts::default();
    add(&mut facts, Source::Allocations, "allocations", std::slice::from_ref(&seen));
    assert_eq!(lines(facts)[0], "A podres:bay/surf/a@1970-01-01T00:11:00.000Z 2940000 no_inventory");

    let mut facts = Facts::default();
    facts.api_is_watched("bay");
    add(&mut facts, Source::Allocations, "allocations", &[seen]);
    assert_eq!(lines(facts)[0], "A podres:bay/surf/a@1970-01-01T00:11:00.000Z 2940000 no_api_holding,no_inventory");
}

/// The kubelet lists a pod for a while after its end: where that was on the hour, the next hour has only the sighting of it.
#[test]
fn what_the_hour_before_hands_on_explains_a_sighting_after_the_end() {
    let pod = |source: &str, id: &str| {
        on("n1").set("source", source).set("holding_id", id).set("namespace", "surf").set("pod", "a").set("cluster", "bay")
    };
    let ended = pod("api", "u1").set("pod_uid", "u1").set("count", 1).set("bound_at", at(-22_000));
    let ended = ended.set("interval_from", at(-22_000)).set("interval_to", at(0)).set("observed_at", at(900));
    let seen = pod("podres", "a/A").set("device", "A").set("ids", 1).set("interval_from", at(0)).set("known_from", at(0));
    let seen = seen.set("last_listed", at(0)).set("interval_to", at(60_000)).set("observed_at", at(60_000));
    let of = |handed_on: &[Row]| {
        let mut facts = Facts::default();
        facts.api_is_watched("bay");
        add(&mut facts, Source::Nodes, "nodes", &[node_row("n1").set("kind", "device").set("device", "A")]);
        add(&mut facts, Source::Allocations, "allocations", std::slice::from_ref(&seen));
        add(&mut facts, Source::Allocations, "carried_allocations", handed_on);
        lines(facts)
    };
    assert_eq!(of(&[ended]), ["A unheld 3600000"]);
    // Nothing is known of a pod that ended long before: whoever the kubelet lists is somebody.
    assert_eq!(of(&[]), ["A podres:bay/surf/a@1970-01-01T00:00:00.000Z 60000 no_api_holding", "A unheld 3540000"]);
}

/// Pod a of two lives, the second bound on its node while the sighting of the first still goes on; meanwhile pod b is on the device.
#[test]
fn a_device_is_not_guessed_for_a_pod_of_the_same_name_before_the_kubelet_has_named_it() {
    let api = |uid: &str, pod: &str, from: i64, to: Option<i64>| {
        let row =
            on("n1").set("source", "api").set("holding_id", uid).set("pod_uid", uid).set("namespace", "surf").set("pod", pod);
        row.set("count", 1).set("bound_at", at(from)).set("interval_from", at(from)).maybe("interval_to", to.map(at))
    };
    let seen = |pod: &str, from: i64, listed: i64, observed: i64| {
        let row = on("n1").set("source", "podres").set("holding_id", pod).set("namespace", "surf").set("pod", pod);
        let row = row.set("device", "A").set("ids", 1).set("interval_from", at(from)).set("known_from", at(from));
        row.set("last_listed", at(listed)).set("observed_at", at(observed))
    };
    let round =
        |ms: i64, status: &str| on("n1").set("at", at(ms)).set("source", "s").set("status", status).set("interval_ms", 30_000);
    let devices = ["A", "B"].map(|device| node_row("n1").set("kind", "device").set("device", device));
    let holdings = [api("a1", "a", 0, Some(3_540_000)), api("b1", "b", 3_549_000, None), api("a2", "a", 3_580_000, None)];
    let of = |sighting: Row, rounds: &[Row]| {
        let mut facts = Facts::default();
        add(&mut facts, Source::Nodes, "nodes", &devices);
        add(&mut facts, Source::Allocations, "allocations", &holdings);
        add(&mut facts, Source::Allocations, "allocations", &[sighting, seen("b", 3_570_000, 3_570_000, 3_570_000)]);
        add(&mut facts, Source::Scrapes, "scrapes", rounds);
        let held = |line: &String| ["a1", "a2", "b1"].iter().any(|uid| line.contains(uid));
        lines(facts).into_iter().filter(held).collect::<Vec<_>>()
    };
    let by_number = ["A a1 3540000", "A b1 30000", "- a2 20000", "- b1 21000"];
    let rounds = |last: Row| [round(3_540_000, "ok"), last];
    // It was told ten minutes before, and no listing since the second bind is known.
    let unsaid = seen("a", 0, 3_000_000, 3_000_000);
    assert_eq!(of(unsaid.clone(), &rounds(round(3_570_000, "ok"))), by_number);
    assert_eq!(of(unsaid.clone(), &[]), by_number);
    // Nor is a round a listing whose kubelet gave no answer, or that is a note about the agent.
    let silent = round(3_590_000, "ok").set("join_reason", "list_failed");
    assert_eq!(of(unsaid.clone(), &rounds(silent)), by_number);
    assert_eq!(of(unsaid.clone(), &rounds(round(3_590_000, "restarted"))), by_number);
    // The first listing without it is told, and no later round makes the second pod of it.
    let missed = seen("a", 0, 3_540_000, 3_570_000);
    assert_eq!(of(missed, &rounds(round(3_590_000, "ok"))), by_number);
    // Listed since its bind, with or without the page: the device is the second pod's, and who had it before is cut.
    let cut = ["A a1 3540000", "A a2 20000", "A b1 10000 end_clamped", "- b1 21000"];
    for status in ["ok", "timeout"] {
        assert_eq!(of(unsaid.clone(), &rounds(round(3_590_000, status))), cut, "{status}");
    }
    let skewed = |skew: i64| rounds(round(3_590_000, "ok").set("skew_ms", skew));
    assert_eq!((of(unsaid.clone(), &skewed(20_000)).len(), of(unsaid, &skewed(5_000))), (4, cut.map(String::from).to_vec()));
}

#[test]
fn instances_are_weighed_by_their_profile_and_a_new_layout_takes_over() {
    let sample = |device: &str, profile: &str, ms: i64| {
        on("n1").set("device", device).set("parent", "M").set("profile", profile).set("at", at(ms)).set("source", "s")
    };
    let round = on("n1").set("at", at(0)).set("source", "s").set("status", "ok").set("interval_ms", 40_000);
    let mut facts = Facts::default();
    add(&mut facts, Source::Nodes, "nodes", &[node_row("n1")]);
    add(&mut facts, Source::Scrapes, "scrapes", &[round]);
    let first = [sample("M/1", "7g.80gb", 0), sample("M/1", "7g.80gb", 1_000_000)];
    add(
        &mut facts,
        Source::GpuSamples,
        "gpu_samples",
        &[&first[..], &[sample("M/2", "3g.40gb", 1_200_000), sample("M/2", "3g.40gb", 3_590_000)]].concat(),
    );
    // M/1 to one horizon (100 s) past its last sample; then M/2 with four sevenths left over.
    assert_eq!(lines(facts), ["M mig_orphan 1371429", "M/1 unheld 1100000", "M/2 unheld 1028571"]);

    let mut facts = Facts::default();
    let seen =
        on("n1").set("source", "podres").set("holding_id", "x").set("namespace", "surf").set("pod", "a").set("device", "M/3");
    add(&mut facts, Source::Allocations, "allocations", &[seen.set("interval_from", at(0))]);
    assert_eq!(lines(facts), ["unweighed M/3"]);
}

/// A holding of device A on n1 from the first instant on.
fn held() -> Row {
    let row = on("n1").set("source", "import").set("holding_id", "u1").set("pod_uid", "u1");
    row.set("device", "A").set("interval_from", at(0))
}

#[test]
fn a_board_that_was_replaced_is_not_brought_back_by_a_holding_that_is_over() {
    for (end, expected) in [(3_600_000, vec!["B"]), (3_600_001, vec!["A", "B"])] {
        let mut facts = Facts::default();
        let node = node_row("n1").set("from_at", at(3_600_000)).set("to_at", at(7_200_000));
        let device = node.clone().set("kind", "device").set("device", "B").set("interval_from", at(3_000_000));
        add(&mut facts, Source::Nodes, "nodes", &[node, device]);
        add(&mut facts, Source::Allocations, "allocations", &[held().set("interval_to", at(end))]);
        let inputs = &facts.into_nodes()[0].inputs;
        let devices: Vec<&str> = inputs.devices.iter().map(|device| &*device.id).collect();
        assert_eq!(devices, expected, "a holding until {end}");
    }
}

#[test]
fn a_clock_that_is_off_is_put_right_and_said() {
    let node = node_row("n1").set("kind", "device").set("device", "A");
    let sample = on("n1").set("device", "A").set("at", at(90_000)).set("source", "s");
    let round = on("n1").set("at", at(90_000)).set("source", "s").set("status", "ok").set("interval_ms", 40_000);
    let failed = round.clone().set("at", at(95_000)).set("status", "timeout");
    let corrected = "A u1 3600000 skew_corrected";
    for (skew, taken, missed, expected) in
        [(20_000, 70_000, 75_000, corrected), (-501, 90_501, 95_501, corrected), (500, 90_000, 95_000, "A u1 3600000")]
    {
        let mut facts = Facts::default();
        add(&mut facts, Source::Nodes, "nodes", std::slice::from_ref(&node));
        add(&mut facts, Source::Allocations, "allocations", &[held()]);
        add(&mut facts, Source::GpuSamples, "gpu_samples", std::slice::from_ref(&sample));
        add(&mut facts, Source::Scrapes, "scrapes", &[round.clone().set("skew_ms", skew), failed.clone().set("skew_ms", skew)]);
        let nodes = facts.into_nodes();
        assert_eq!((nodes[0].inputs.samples[0].at, nodes[0].inputs.failed_scrapes[0].at), (at(taken), at(missed)));
        assert_eq!(lines_of(nodes), [expected]);
    }
}

#[test]
fn a_page_in_conflict_with_itself_says_so_where_it_is_used() {
    let mut sample = on("n1").set("device", "A").set("at", at(0)).set("source", "s").set("faults", "1001:sentinel,1002:conflict");
    sample.0.insert("prof_sm_active".into(), Cell::Float(0.5));
    let mut facts = Facts::default();
    add(&mut facts, Source::Allocations, "allocations", &[held()]);
    add(&mut facts, Source::GpuSamples, "gpu_samples", &[sample]);
    assert_eq!(lines(facts), ["A u1 3600000 conflict,no_inventory"]);
}

/// A4: max(5/2 x scrape interval, scrape + collect interval where that is known), by what the node's own rounds say.
#[test]
fn the_horizon_of_a_node_is_what_its_rounds_say() {
    for (interval, collect, horizon) in
        [(15_000, None, 37_500), (15_000, Some(10_000), 37_500), (15_000, Some(30_000), 45_000), (60_000, Some(30_000), 150_000)]
    {
        let round = on("n1").set("at", at(0)).set("source", "s").set("status", "ok").set("interval_ms", interval);
        let mut facts = Facts::default();
        add(&mut facts, Source::Scrapes, "scrapes", &[round.maybe("collect_interval_ms", collect)]);
        assert_eq!(facts.into_nodes()[0].inputs.rules.horizon_ms, horizon, "{interval} {collect:?}");
    }
}

#[test]
fn the_state_of_a_holding_observed_last_stands_whichever_came_first() {
    let open = held().set("observed_at", at(100)).set("revision", 1);
    let ended = held().set("observed_at", at(100)).set("revision", 2).set("interval_to", at(600_000));
    for states in [[open.clone(), ended.clone()], [ended, open]] {
        let mut facts = Facts::default();
        add(&mut facts, Source::Allocations, "allocations", &states);
        assert_eq!(lines(facts), ["A u1 600000 no_inventory"]);
    }
}

#[test]
fn a_device_has_at_least_the_ids_that_one_pod_holds_of_it() {
    let mut facts = Facts::default();
    add(&mut facts, Source::Allocations, "allocations", &[held().set("ids", 2)]);
    assert_eq!(lines(facts), ["A u1 3600000 no_inventory,shared"]);
}
