//! What the benches feed the path with: pages in dcgm-exporter's form, and rounds made of them.

use ingest::join::{self, Answer, Memory};
use ingest::page;
use ingest::publish;
use ingest::transport::Record;
use schemas::proto::ScrapeRound;
use schemas::{Timestamp, catalogue};
use std::fmt::Write;

/// The first round: ten o'clock.
pub const T0: i64 = 1_772_445_600_000;

/// Rounds of `nodes` nodes with eight GPUs each, `ticks` of each, 15 s apart, in the order in which they would come. Counters
/// grow, and what a busy device shows changes from one round to the next.
pub fn rounds(nodes: u64, ticks: u64) -> Vec<Record> {
    let mut pages = page::Memory::new(&page::Options::default());
    let mut memory = Memory::default();
    let mut out = Vec::new();
    for tick in 0..ticks {
        for node in 0..nodes {
            let text = dcgm_page(node, 8, tick);
            let at = T0 + 15_000 * tick as i64;
            let Ok(mut page) = page::read_remembering(text.as_bytes(), None, &page::Options::default(), &mut pages) else {
                continue;
            };
            let at_time = Timestamp::from_ms(at);
            join::owners(&mut memory, Some(&mut page), Answer::NotAsked, at_time, &join::Options::default());
            let round = ScrapeRound {
                cluster: "reef".into(),
                node: format!("node-{node:04}"),
                source: "http://node:9400/metrics".into(),
                at_ms: at,
                sequence: tick,
                status: "ok".into(),
                interval_ms: 15_000,
                devices: page.devices.into_iter().map(|d| d.sample).collect(),
                ..ScrapeRound::default()
            };
            out.extend(publish::round(round, 1 << 20).0);
        }
    }
    out
}

/// A page in dcgm-exporter's form: every metric of its default file that has a value of its own.
pub fn dcgm_page(node: u64, gpus: u64, tick: u64) -> String {
    let mut out = String::new();
    for field in catalogue::fields().iter().filter(|f| f.default_enabled && f.column.is_some()) {
        let _ = writeln!(out, "# HELP {} {}\n# TYPE {} {}", field.name, field.meaning, field.name, field.prom_type.as_str());
        for gpu in 0..gpus {
            let id = u64::from(field.id.unwrap_or_default());
            let noise = noise(node << 40 | gpu << 32 | tick << 16 | id);
            let value = match field.value_type {
                catalogue::ValueType::Double => format!("{:.6}", (noise % 1_000_000) as f64 / 1e6),
                catalogue::ValueType::Int64 if field.monotonic => (tick * 5_000_000 + noise % 1_000_000).to_string(),
                catalogue::ValueType::Int64 if field.unit == "bytes_per_second" => (noise % 10_000_000_000).to_string(),
                catalogue::ValueType::Int64 => (noise % 90).to_string(),
                catalogue::ValueType::Text => (gpu % 2).to_string(),
            };
            let _ = writeln!(
                out,
                "{}{{gpu=\"{gpu}\",UUID=\"GPU-7d1f6a02-1111-4222-8333-0123{node:04}89a{gpu}\",pci_bus_id=\"00000000:{gpu}8:00.0\",\
                 device=\"nvidia{gpu}\",modelName=\"NVIDIA H100 80GB HBM3\",Hostname=\"node-{node:04}\",\
                 DCGM_FI_DRIVER_VERSION=\"550.90.07\",container=\"main\",namespace=\"research\",\
                 pod=\"train-llm-7b-worker-{node}-{gpu}\"}} {value}",
                field.name
            );
        }
    }
    out
}

/// The same number for the same input, and no other pattern.
fn noise(of: u64) -> u64 {
    let mut x = of.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 31)
}
