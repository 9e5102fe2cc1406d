//! What a round and a row cost: page to message, message to rows, rows to a file.
//!
//! Estimates before measuring: parse 60 us, labels and catalogue 60 us, join 10 us, encode 20 us a page of 8 GPUs (budget
//! 300 us cold, scrape not counted); rows 250,000 samples a second and more.

mod rounds;

use arrow::array::RecordBatch;
use ingest::join::{self, Answer, Memory};
use ingest::page;
use ingest::publish;
use ingest::rows::{Batch, Kind};
use ingest::transport::Message;
use rounds::dcgm_page;
use schemas::Timestamp;
use schemas::proto::{Message as _, ScrapeRound};
use std::hint::black_box;
use std::time::Instant;

fn main() {
    let quick = std::env::args().any(|a| a == "--test");
    let text = dcgm_page(7, 8, 0);
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

    let records = if quick { rounds::rounds(2, 2) } else { rounds::rounds(1000, 10) };
    let messages: Vec<Message> = (0..)
        .zip(records)
        .map(|(offset, record)| Message { offset, key: record.key.into(), value: record.value.into(), at_ms: record.at_ms })
        .collect();
    let repeats = if quick { 1 } else { 5 };
    let batch = || {
        let mut batch = Batch::new(Kind::Samples, publish::SAMPLES, 0);
        messages.iter().for_each(|message| batch.add(message.clone()));
        batch.finish()
    };
    let file = |table, rows: &mut dyn Iterator<Item = RecordBatch>| {
        let _ = black_box(lake::encode::hot(table, rows, &mut lake::Footer::default()));
    };
    let micros = best(repeats, 1, || {
        let Ok((first, others)) = batch() else { return };
        file(first.table(), &mut first.batches());
        others.into_iter().for_each(|(table, rows)| file(table, &mut std::iter::once(rows)));
    });
    let samples = messages.len() as f64 * 8.0;
    println!("message to Parquet     {:8.0} samples a second (budget 250,000)", samples / micros * 1e6);
    let each = |name: &str, micros: f64| println!("  {name:23} {:8.2} us a sample", micros / samples);
    each(
        "decode by prost alone",
        best(repeats, 1, || messages.iter().for_each(|m| drop(black_box(ScrapeRound::decode(&*m.value))))),
    );
    each("read", best(repeats, 1, || drop(black_box(batch()))));
    let Ok((first, _)) = batch() else { return };
    each("rows in order", best(repeats, 1, || first.batches().for_each(|rows| drop(black_box(rows)))));
    let rows: Vec<RecordBatch> = first.batches().collect();
    each("encode", best(repeats, 1, || file(first.table(), &mut rows.iter().cloned())));
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
