//! What a round and a row cost: page to message, message to rows, rows to a file.
//!
//! Estimates before measuring: parse 60 us, labels and catalogue 60 us, join 10 us, encode 20 us a page of 8 GPUs (budget
//! 300 us cold, scrape not counted); rows 250,000 samples a second and more.

use ingest::join::{self, Answer, Memory};
use ingest::page;
use ingest::publish;
use ingest::rows::{Batch, Kind};
use ingest::transport::Message;
use schemas::proto::ScrapeRound;
use schemas::{Timestamp, catalogue};
use std::fmt::Write;
use std::hint::black_box;
use std::time::Instant;

fn main() {
    let quick = std::env::args().any(|a| a == "--test");
    let text = dcgm_page(8);
    let (rounds, repeats) = if quick { (2, 1) } else { (200, 10) };
    let mut record = None;
    let mut round = |pages: &mut page::Memory| {
        let mut memory = Memory::default();
        if let Ok(mut page) = page::read_remembering(text.as_bytes(), None, &page::Options::default(), pages) {
            join::owners(&mut memory, Some(&mut page), Answer::NotAsked, Timestamp::from_ms(0), &join::Options::default());
            let devices = page.devices.into_iter().map(|d| d.sample).collect();
            let round =
                ScrapeRound { cluster: "reef".into(), node: "n".into(), status: "ok".into(), devices, ..Default::default() };
            record = black_box(publish::round(round, 1 << 20)).0.pop();
        }
    };
    let cold = best(repeats, rounds, || round(&mut page::Memory::new(&page::Options::default())));
    let mut pages = page::Memory::new(&page::Options::default());
    let warm = best(repeats, rounds, || round(&mut pages));
    let Some(record) = record else {
        println!("the page was not read");
        return;
    };
    println!("page: {} bytes, message: {} bytes", text.len(), record.value.len());
    println!("parse + join + encode  {cold:8.1} us a round of 8 GPUs, first sight (budget 300, the scrape not counted)");
    println!("  series seen before   {warm:8.1} us (budget 150)");

    let message = Message { offset: 0, key: record.key, value: record.value, at_ms: 0 };
    let messages = if quick { 10 } else { 10_000 };
    let micros = best(if quick { 1 } else { 3 }, 1, || {
        let mut batch = Batch::new(Kind::Samples, publish::SAMPLES, 0);
        for offset in 0..messages {
            batch.add(&Message { offset, ..message.clone() });
        }
        for (table, rows) in batch.finish() {
            let sorted = lake::encode::sorted(table, &[rows]);
            let _ = black_box(sorted.and_then(|rows| lake::encode::file(table, &[rows], &mut lake::Footer::default())));
        }
    });
    let samples = messages as f64 * 8.0;
    println!("message to Parquet     {:8.0} samples a second (budget 250,000)", samples / micros * 1e6);
}

/// The best of some repeats, in microseconds a call.
fn best(repeats: usize, calls: usize, mut f: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..repeats {
        let start = Instant::now();
        for _ in 0..calls {
            f();
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e6 / calls as f64);
    }
    best
}

/// A page in dcgm-exporter's form: every metric of its default file that has a value of its own.
fn dcgm_page(gpus: usize) -> String {
    let mut out = String::new();
    for field in catalogue::fields().iter().filter(|f| f.default_enabled && f.column.is_some()) {
        let _ = writeln!(out, "# HELP {} {}\n# TYPE {} {}", field.name, field.meaning, field.name, field.prom_type.as_str());
        for gpu in 0..gpus {
            let value = match field.value_type {
                catalogue::ValueType::Double => format!("{:.6}", gpu as f64 / 9.0),
                catalogue::ValueType::Int64 | catalogue::ValueType::Text => (gpu % 2).to_string(),
            };
            let _ = writeln!(
                out,
                "{}{{gpu=\"{gpu}\",UUID=\"GPU-7d1f6a02-1111-4222-8333-0123456789a{gpu}\",pci_bus_id=\"00000000:{gpu}8:00.0\",\
                 device=\"nvidia{gpu}\",modelName=\"NVIDIA H100 80GB HBM3\",Hostname=\"node-0007\",\
                 DCGM_FI_DRIVER_VERSION=\"550.90.07\",container=\"main\",namespace=\"research\",pod=\"train-llm-7b-worker-{gpu}\"}} {value}",
                field.name
            );
        }
    }
    out
}
