//! Restart of a sink: from opening the lake to the first new file, with 10,000 hot files in 16 partitions on local disk
//! (`cargo bench -p ingest --bench restart`). Most of the files are copies of one: a restart does not open them, and closing hours,
//! which does, drops their rows as repeats.

use ingest::close::{self, Closer};
use ingest::publish::{self, SAMPLES};
use ingest::sink::{self, Sink};
use ingest::transport::local::{self, Log, TopicSpec};
use ingest::transport::{Record, Topic};
use lake::{HotKey, Lake};
use schemas::proto::{DeviceSample, Readings, ScrapeRound, Value};
use schemas::{Timestamp, tables};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

const PARTITIONS: u32 = 16;
const FILES: usize = 10_000;
const NODES: usize = 200;
const AT_MS: i64 = 1_772_445_600_000;

fn main() -> Result<(), Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let lake = Lake::create(&scratch.path().join("lake"))?;
    let spec = TopicSpec { name: SAMPLES, partitions: PARTITIONS };
    let log = Log::open(&scratch.path().join("log"), &[spec], local::Options::default())?;
    let topic = log.topic(SAMPLES)?;
    let open = || Sink::open(lake.clone(), vec![topic.clone() as Arc<dyn Topic>], sink::Options::default());
    let now = Timestamp::from_ms(AT_MS);

    // One large file of each table and partition, and a small one, which is copied to offsets that the large one has.
    let copies = FILES / (2 * PARTITIONS as usize) - 2;
    for sequence in 0..copies {
        topic.produce(&(0..NODES).map(|node| round(node, sequence)).collect::<Vec<_>>())?;
    }
    let mut sink = open()?;
    sink.flush(now)?;
    topic.produce(&(0..NODES).map(|node| round(node, copies)).collect::<Vec<_>>())?;
    sink.flush(now)?;
    drop(sink);
    let mut files = 0;
    for name in ["gpu_samples", "scrapes"] {
        let table = tables::get(name);
        for file in lake.hot_files(table)?.iter().filter(|file| file.key.start > 0) {
            for start in 1..=copies as u64 {
                std::fs::copy(file.path.path()?, lake.place(&HotKey { start, ..file.key.clone() }.path(table)).path()?)?;
            }
        }
        files += lake.hot_files(table)?.len();
    }
    let mut best = f64::MAX;
    for pass in 0..3 {
        topic.produce(&(0..NODES).map(|node| round(node, copies + 1 + pass)).collect::<Vec<_>>())?;
        let began = Instant::now();
        let mut sink = open()?;
        let opened = began.elapsed();
        let report = sink.flush(now)?;
        let took = began.elapsed();
        best = best.min(took.as_secs_f64());
        println!(
            "restart with {files} hot files in {PARTITIONS} partitions: {:.3} s to the first new files ({} of them); opened in {:.3} s",
            took.as_secs_f64(),
            report.files,
            opened.as_secs_f64()
        );
    }
    let began = Instant::now();
    let options = close::Options { close_after_ms: 0, ..close::Options::default() };
    let report =
        Closer::new(lake.clone(), options).close(now.plus_ms(2 * schemas::HOUR_MS).hour(), now.plus_ms(2 * schemas::HOUR_MS))?;
    println!("  closing hours from all of these files, beside it: {:.3} s, {} rows", began.elapsed().as_secs_f64(), report.rows);
    println!("best of three: {best:.3} s (goal: under 2 s)");
    Ok(())
}

fn round(node: usize, sequence: usize) -> Record {
    let mut readings = Readings::default();
    readings.set(203, Value::Int(sequence as i64 % 100));
    let device =
        |n: usize| DeviceSample { device: format!("GPU-{node}-{n}"), readings: Some(readings), ..DeviceSample::default() };
    let round = ScrapeRound {
        cluster: "reef".into(),
        node: format!("n{node}"),
        source: "page".into(),
        at_ms: AT_MS + sequence as i64 * 1000,
        sequence: sequence as u64,
        status: "ok".into(),
        devices: (0..8).map(device).collect(),
        ..ScrapeRound::default()
    };
    publish::round(round, 1 << 20).0.remove(0)
}
