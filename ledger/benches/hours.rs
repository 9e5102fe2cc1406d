//! Samples to hour rows: one hour of a fleet at 15 s, from inputs in memory, one core.
//!
//! Budget (DESIGN 7): 500,000 samples a second on two cores, so 250,000 here. Estimate before the first run: 40 bytes
//! of readings and three tiers of a few additions a sample, some 200 ns: 5 million samples a second.

use std::{sync::Arc, time::Instant};

use arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use ledger::{
    batch::{Facts, Source},
    hours,
    input::{Device, Held, Holding, Ids, Inputs, Pod, Readings, Sample, Text},
    reading::Reading,
    row::FlagSet,
};
use schemas::{Timestamp, Window, status::HoldingSource};

const NODES: usize = 100;
const GPUS: usize = 8;
const HOUR: i64 = 3_600_000;

/// One node: four pods that follow each other on each GPU, and a reading each 15 s.
fn node(n: usize) -> Inputs {
    let name: Text = format!("node-{n:04}").into();
    let mut inputs = Inputs::default();
    for g in 0..GPUS {
        let id: Text = format!("GPU-{n:08}-{g:04}").into();
        inputs.devices.push(Device::new(id.clone(), name.clone()));
        for p in 0..4_i64 {
            inputs.holdings.push(Holding {
                pod: Pod {
                    uid: format!("uid-{n}-{g}-{p}").into(),
                    namespace: "team".into(),
                    name: format!("job-{p}").into(),
                    team: Some("reef".into()),
                    workload: None,
                    queue: None,
                },
                node: name.clone(),
                held: Held::Device { device: id.clone(), ids: Ids::ONE, known_from: None },
                bound: Timestamp::from_ms(HOUR + p * HOUR / 4),
                started: Some(Timestamp::from_ms(HOUR + p * HOUR / 4 + 20_000)),
                terminating_from: None,
                end: Some(Timestamp::from_ms(HOUR + (p + 1) * HOUR / 4 - 5_000)),
                source: HoldingSource::Api,
                flags: FlagSet::EMPTY,
            });
        }
        for t in 0..240_i64 {
            let share = ((t * 37 + g as i64 * 11) % 1000) as f32 / 1000.0;
            let ratio = |x: f32| Reading::of_ratio(x, false);
            inputs.samples.push(Sample {
                device: id.clone(),
                at: Timestamp::from_ms(HOUR + t * 15_000 + n as i64),
                readings: Readings {
                    gpu_util: Reading::of_percent((share * 100.0) as i64),
                    gr_active: ratio(share),
                    sm_active: ratio(share * 0.7),
                    tensor_active: ratio(share * 0.3),
                    dram_active: ratio(share * 0.4),
                    energy_mj: Some(t * 15 * 400_000),
                    fb_used_mib: Some(60_000),
                },
                flags: FlagSet::EMPTY,
            });
        }
    }
    inputs
}

/// The columns of `gpu_samples` that the ledger reads, for the same node.
fn batch(inputs: &Inputs) -> RecordBatch {
    let samples = &inputs.samples;
    let same = |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![text; samples.len()])) };
    let devices = samples.iter().map(|s| Some(&*s.device)).collect::<StringArray>();
    let ratio = |by: f32| -> ArrayRef {
        let share = |i: usize| ((i * 37) % 1000) as f32 / 1000.0 * by;
        Arc::new((0..samples.len()).map(|i| Some(share(i))).collect::<Float32Array>())
    };
    let int =
        |get: &dyn Fn(usize) -> i64| -> ArrayRef { Arc::new((0..samples.len()).map(|i| Some(get(i))).collect::<Int64Array>()) };
    let at = samples.iter().map(|s| Some(s.at.micros())).collect::<TimestampMicrosecondArray>().with_timezone("UTC");
    let columns: [(&str, ArrayRef); 12] = [
        ("cluster", same("bay")),
        ("node", same(&inputs.devices[0].node)),
        ("device", Arc::new(devices)),
        ("at", Arc::new(at)),
        ("source", same("10.0.0.1:9400")),
        ("dev_gpu_util", int(&|i| i as i64 % 101)),
        ("prof_gr_engine_active", ratio(1.0)),
        ("prof_sm_active", ratio(0.7)),
        ("prof_pipe_tensor_active", ratio(0.3)),
        ("prof_dram_active", ratio(0.4)),
        ("dev_total_energy_consumption", int(&|i| i as i64 * 6_000_000)),
        ("dev_fb_used", int(&|_| 60_000)),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).expect("columns of one length")
}

fn main() {
    let nodes: Vec<Inputs> = (0..NODES).map(node).collect();
    let samples: usize = nodes.iter().map(|inputs| inputs.samples.len()).sum();
    let window = Window::new(Timestamp::from_ms(HOUR), Timestamp::from_ms(2 * HOUR)).expect("an hour is not empty");
    let batches: Vec<RecordBatch> = nodes.iter().map(batch).collect();
    for _ in 0..5 {
        let begin = Instant::now();
        let mut read = 0;
        for batch in &batches {
            let mut facts = Facts::default();
            facts.add(Source::GpuSamples, batch).expect("a made batch has what is read");
            read += facts.into_nodes().iter().map(|node| node.inputs.samples.len()).sum::<usize>();
        }
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "{read} rows of gpu_samples -> inputs in {seconds:.3} s: {:.0} samples a second, one core",
            read as f64 / seconds
        );
    }
    for _ in 0..5 {
        let begin = Instant::now();
        let mut rows = 0;
        for inputs in &nodes {
            rows += hours(inputs, window).expect("a made world is sound").len();
        }
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "{samples} samples of {} GPUs -> {rows} rows in {seconds:.3} s: {:.0} samples a second, one core",
            NODES * GPUS,
            samples as f64 / seconds
        );
    }
}
