//! One lake that holds every conformance case and some hundreds of random worlds, each as a cluster of its own: samples and
//! rounds as an agent would have written them, settled holdings and hour rows as the ledger makes of what it reads back.

use std::{collections::HashMap, sync::Arc};

use arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, new_null_array};
use lake::{ClosedKey, Footer, Lake};
use ledger::{
    batch::{Facts, Source, hour_rows, settled_rows},
    input::{Inputs, Sample},
    reading::Reading,
};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use schemas::{HOUR_MS, Timestamp, Window, tables};
use serde_json::Value;

use crate::{command::tree, worlds};

/// A row of `gpu_samples`, as far as the ledger reads it.
struct Row {
    node: String,
    device: String,
    parent: Option<String>,
    at: i64,
    source: String,
    from_labels: bool,
    faults: Vec<String>,
    util: Option<i64>,
    ratios: [Option<f32>; 4],
    energy: Option<i64>,
    fb: Option<i64>,
}

const RATIOS: [(&str, &str); 4] = [
    ("1001", "prof_gr_engine_active"),
    ("1002", "prof_sm_active"),
    ("1004", "prof_pipe_tensor_active"),
    ("1005", "prof_dram_active"),
];

/// A round of `scrapes`.
struct Round {
    node: String,
    at: i64,
    source: String,
    failed: bool,
    skew_ms: Option<i64>,
}

/// Tables of one lake as they grow.
#[derive(Default)]
struct Tables(HashMap<&'static str, Vec<RecordBatch>>);

/// How many cases the lake holds.
pub struct Made {
    pub vectors: usize,
    pub random: usize,
    pub rows: usize,
}

/// Fills a lake with all cases of the vectors that have an account, and `random` worlds of `seed`.
pub fn fill(lake: &Lake, random: usize, seed: u8) -> Made {
    let mut tables = Tables::default();
    let mut made = Made { vectors: 0, random: 0, rows: 0 };
    for line in std::fs::read_to_string(tree("tests/data/vectors/accounting.jsonl")).unwrap().lines() {
        let json: Value = serde_json::from_str(line).unwrap();
        if json.get("expect").is_none() {
            continue;
        }
        let case = ledger::case::read(line).unwrap();
        let (samples, rounds) = of_case(&json, &case.inputs);
        let name = json["name"].as_str().unwrap();
        made.rows += tables.add(&format!("vector-{name}"), case.inputs, case.window, &samples, &rounds);
        made.vectors += 1;
    }
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]));
    for i in 0..random {
        let (split, shared) = (i % 2 == 0, i % 4 > 1);
        let mut inputs = worlds::worlds(split, shared).new_tree(&mut runner).unwrap().current().0;
        let mut chance = Chance(u64::from(seed) << 32 | i as u64);
        if chance.one_in(10) {
            inputs.without_inventory.insert("n1".into());
        }
        let (samples, rounds) = of_world(&inputs, &mut chance);
        made.rows += tables.add(&format!("random-{i:04}"), inputs, worlds::whole(), &samples, &rounds);
        made.random += 1;
    }
    tables.publish(lake);
    made
}

/// A small generator of fixed arithmetic.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> i64 {
        i64::try_from(self.next() % limit).unwrap()
    }

    /// When a round of `at` was written down by a clock that may be off, and by how much: half a second is let pass.
    fn skewed(&mut self, at: i64) -> (i64, Option<i64>) {
        let skew = (500 + self.below(50)) * if self.one_in(2) { 1 } else { -1 };
        match self.below(3) {
            0 if skew.abs() > 500 => (at + skew, Some(skew)),
            1 => (at, Some(skew.clamp(-500, 500))),
            _ => (at, None),
        }
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

/// A value as the page prints it: what is stored of it, and what is said of it.
fn stored(value: &Value, id: &str, most: f64, faults: &mut Vec<String>) -> Option<f64> {
    let blank = |v: f64| v >= 140_737_488_355_328.0 || (2_147_483_632.0..=2_147_483_647.0).contains(&v);
    let fault = match value {
        Value::Null => return None,
        Value::String(text) if text == "NaN" => "sentinel",
        Value::String(_) => "out_of_range",
        value => match value.as_f64().unwrap() {
            v if blank(v) => "sentinel",
            v if (0.0..=most).contains(&v) => return Some(v),
            _ => "out_of_range",
        },
    };
    faults.push(format!("{id}:{fault}"));
    None
}

fn of_case(json: &Value, inputs: &Inputs) -> (Vec<Row>, Vec<Round>) {
    let (mut samples, mut rounds) = (Vec::new(), Vec::new());
    for (i, sample) in json["samples"].as_array().unwrap().iter().enumerate() {
        let at = ledger_time(sample["at"].as_str().unwrap());
        let source = format!("page-{i}");
        if sample.get("scrape_failed").is_some_and(|reason| !reason.is_null()) {
            let node = sample["node"].as_str().unwrap().to_owned();
            rounds.push(Round { node, at, source, failed: true, skew_ms: None });
            continue;
        }
        let device = sample["device"].as_str().unwrap().to_owned();
        let known = inputs.devices.iter().find(|d| *d.id == *device);
        let node = known.or(inputs.devices.first()).map_or("nowhere", |d| &d.node).to_owned();
        let parent = known.and_then(|d| d.parent.as_ref()).map(|gpu| gpu.to_string());
        let most = if parent.is_some() { 1.5 } else { 1.01 };
        let mut faults = Vec::new();
        let values = &sample["values"];
        let util = stored(&values["203"], "203", 100.0, &mut faults).map(|v| v.round() as i64);
        let ratios = RATIOS.map(|(id, _)| stored(&values[id], id, most, &mut faults).map(|v| v as f32));
        samples.push(Row { node, device, parent, at, source, from_labels: false, faults, util, ratios, energy: None, fb: None });
    }
    (samples, rounds)
}

fn ledger_time(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().ms()
}

/// What a reading is stored as: a value that reads alike, in whole percent or parts per million.
fn store(reading: Reading, id: &str, whole: f64, clipped: f64, faults: &mut Vec<String>) -> Option<f64> {
    match reading {
        Reading::Absent => None,
        Reading::Sentinel => {
            faults.push(format!("{id}:sentinel"));
            None
        }
        Reading::OutOfRange => {
            faults.push(format!("{id}:out_of_range"));
            None
        }
        Reading::Valid(value) if value.clipped() => Some(clipped),
        Reading::Valid(value) => Some(f64::from(value.ppm()) / 1e6 * whole),
    }
}

fn of_world(inputs: &Inputs, chance: &mut Chance) -> (Vec<Row>, Vec<Round>) {
    let mut rounds = Vec::new();
    let (with_energy, with_fb, with_skew) = (chance.one_in(2), chance.one_in(2), chance.one_in(4));
    for failed in &inputs.failed_scrapes {
        let source = format!("failed-{}", rounds.len());
        let (at, skew_ms) = if with_skew { chance.skewed(failed.at.ms()) } else { (failed.at.ms(), None) };
        rounds.push(Round { node: failed.node.to_string(), at, source, failed: true, skew_ms });
    }
    let mut samples = Vec::new();
    for (i, Sample { device, at, readings, .. }) in inputs.samples.iter().enumerate() {
        let known = inputs.devices.iter().find(|d| d.id == *device).unwrap();
        let mut faults = Vec::new();
        let clipped = if known.parent.is_some() { 1.2 } else { 1.005 };
        let util = store(readings.gpu_util, "203", 100.0, 100.0, &mut faults).map(|v| v.round() as i64);
        let four = [readings.gr_active, readings.sm_active, readings.tensor_active, readings.dram_active];
        let mut ratio = |(reading, (id, _)): (Reading, (&str, &str))| {
            let value = store(reading, id, 1.0, clipped, &mut faults)?;
            if chance.one_in(20) {
                faults.push(format!("{id}:conflict"));
            }
            // Any six decimals, and some more than are printed.
            Some(if chance.one_in(5) { (value * 0.5 + chance.below(500_000) as f64 * 1e-6) as f32 } else { value as f32 })
        };
        let [gr, sm, tensor, dram] = [0, 1, 2, 3].map(|i| ratio((four[i], RATIOS[i])));
        let source = format!("page-{i}");
        let node = known.node.to_string();
        let (written_at, skew_ms) = if with_skew { chance.skewed(at.ms()) } else { (at.ms(), None) };
        if skew_ms.is_some() {
            rounds.push(Round { node: node.clone(), at: written_at, source: source.clone(), failed: false, skew_ms });
        }
        samples.push(Row {
            node,
            device: device.to_string(),
            parent: known.parent.as_ref().map(|gpu| gpu.to_string()),
            at: written_at,
            source,
            from_labels: chance.one_in(15),
            faults,
            util,
            ratios: [gr, sm, tensor, dram],
            energy: (with_energy && !chance.one_in(4))
                .then(|| if chance.one_in(6) { chance.below(900) } else { at.ms() % 100_000 * 700 }),
            fb: (with_fb && !chance.one_in(4)).then(|| chance.below(81_000)),
        });
    }
    (samples, rounds)
}

impl Tables {
    /// Adds one case as a cluster, computed from what its rows are read back as. Returns how many hour rows it has.
    fn add(&mut self, cluster: &str, mut inputs: Inputs, window: Window, samples: &[Row], rounds: &[Round]) -> usize {
        let (samples, rounds) = (sample_batch(cluster, samples), round_batch(cluster, rounds));
        let mut facts = Facts::default();
        facts.add(Source::GpuSamples, &samples).unwrap();
        facts.add(Source::Scrapes, &rounds).unwrap();
        inputs.samples.clear();
        inputs.failed_scrapes.clear();
        for node in facts.into_nodes() {
            inputs.samples.extend(node.inputs.samples);
            inputs.failed_scrapes.extend(node.inputs.failed_scrapes);
        }
        let (rows, settled) = ledger::hours_and_settled(&inputs, window).unwrap();
        let count = rows.len();
        assert_eq!(rows, ledger::hours(&inputs, window).unwrap(), "{cluster}");
        self.push("gpu_samples", samples);
        self.push("scrapes", rounds);
        self.push("gpu_hours", hour_rows(cluster, &rows).unwrap());
        self.push("settled_holdings", settled_rows(cluster, &settled).unwrap());
        count
    }

    fn push(&mut self, table: &'static str, batch: RecordBatch) {
        self.0.entry(table).or_default().push(batch);
    }

    /// One file a table: where in the closed tree a row lies means nothing to these queries.
    fn publish(self, lake: &Lake) {
        let hour = Timestamp::from_ms(worlds::EDGE - HOUR_MS).hour();
        for (name, batches) in self.0 {
            let rows = lake::encode::sorted(tables::get(name), &batches).unwrap();
            lake.publish_closed(tables::get(name), ClosedKey { hour, shard: 0 }, &[rows], Footer::default()).unwrap();
        }
    }
}

/// The table's columns: those given, the others null.
fn batch(table: &'static str, rows: usize, given: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let mut given: HashMap<&str, ArrayRef> = given.into_iter().collect();
    let schema = tables::get(table).schema();
    let columns = schema
        .fields()
        .iter()
        .map(|field| given.remove(field.name().as_str()).unwrap_or_else(|| new_null_array(field.data_type(), rows)));
    let columns = columns.collect();
    assert!(given.is_empty(), "{table} has no column {:?}", given.keys());
    RecordBatch::try_new(schema, columns).unwrap()
}

fn texts<'a>(values: impl Iterator<Item = Option<&'a str>>) -> ArrayRef {
    Arc::new(values.collect::<StringArray>())
}

fn ints(values: impl Iterator<Item = Option<i64>>) -> ArrayRef {
    Arc::new(values.collect::<Int64Array>())
}

fn times(values: impl Iterator<Item = i64>) -> ArrayRef {
    Arc::new(values.map(|ms| Some(ms * 1000)).collect::<TimestampMicrosecondArray>().with_timezone("UTC"))
}

fn sample_batch(cluster: &str, rows: &[Row]) -> RecordBatch {
    let faults: Vec<String> = rows.iter().map(|row| row.faults.join(",")).collect();
    let mut given = vec![
        ("cluster", texts(rows.iter().map(|_| Some(cluster)))),
        ("node", texts(rows.iter().map(|row| Some(&*row.node)))),
        ("device", texts(rows.iter().map(|row| Some(&*row.device)))),
        ("at", times(rows.iter().map(|row| row.at))),
        ("source", texts(rows.iter().map(|row| Some(&*row.source)))),
        ("sequence", ints((0..rows.len()).map(|i| i64::try_from(i).ok()))),
        ("parent", texts(rows.iter().map(|row| row.parent.as_deref()))),
        ("owner_source", texts(rows.iter().map(|row| row.from_labels.then_some("from_labels")))),
        ("faults", texts(faults.iter().map(|text| Some(&**text).filter(|text| !text.is_empty())))),
        ("dev_gpu_util", ints(rows.iter().map(|row| row.util))),
        ("dev_total_energy_consumption", ints(rows.iter().map(|row| row.energy))),
        ("dev_fb_used", ints(rows.iter().map(|row| row.fb))),
    ];
    for (i, (_, column)) in RATIOS.iter().enumerate() {
        given.push((column, Arc::new(rows.iter().map(|row| row.ratios[i]).collect::<Float32Array>())));
    }
    batch("gpu_samples", rows.len(), given)
}

fn round_batch(cluster: &str, rows: &[Round]) -> RecordBatch {
    let given = vec![
        ("cluster", texts(rows.iter().map(|_| Some(cluster)))),
        ("node", texts(rows.iter().map(|row| Some(&*row.node)))),
        ("at", times(rows.iter().map(|row| row.at))),
        ("source", texts(rows.iter().map(|row| Some(&*row.source)))),
        ("sequence", ints((0..rows.len()).map(|i| i64::try_from(i).ok()))),
        ("status", texts(rows.iter().map(|row| Some(if row.failed { "timeout" } else { "ok" })))),
        ("interval_ms", ints(rows.iter().map(|_| Some(15_000)))),
        ("skew_ms", ints(rows.iter().map(|row| row.skew_ms))),
    ];
    batch("scrapes", rows.len(), given)
}
