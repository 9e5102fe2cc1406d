//! How fast a DCGM page is parsed, beside the prometheus-parse crate on the same text in the same run.
//!
//! Estimates before measuring: 1 GB/s borrowed scan (facts of a 35-line scanner), less the checks, so 0.7 to 1 GB/s;
//! prometheus-parse 30 MB/s; 4 GB/s where blocks are known, for what is left is one look for the line's end, one comparison and
//! a number. Budgets: 600 MB/s with every label decoded, 1 GB/s where a target repeats its series, 20 times prometheus-parse.

use ingest::parse::{Format, Item, Labels, Limits, Memory, Mode, each, each_remembering, page};
use std::fmt::Write;
use std::hint::black_box;
use std::time::Instant;

fn main() {
    // `cargo bench` hands its filter arguments on; a run as a test (`--test`) only checks that both parsers read the page.
    let quick = std::env::args().any(|a| a == "--test");
    let text = dcgm_page(8);
    let samples = page(text.as_bytes(), Format::Text, Mode::Strict, Limits::default()).map(|p| p.samples.len());
    println!("page: {} bytes, {samples:?} samples, 10 labels each", text.len());
    let repeats = if quick { 1 } else { 20 };
    let calls = if quick { 1 } else { 500 };
    let ours = megabytes_a_second(&text, repeats, calls, |text| {
        let mut sum = 0.0;
        let read = each(text.as_bytes(), Format::Text, Mode::Lenient, Limits::default(), |item, labels| {
            if let Item::Sample(sample) = item {
                sum += sample.value + black_box(labels).len() as f64;
            }
        });
        black_box(sum);
        read.is_ok()
    });
    let mut memory = Memory::new(1 << 20);
    let repeated = megabytes_a_second(&text, repeats, calls, |text| {
        let mut sum = 0.0;
        let visit = |item: Item<'_>, labels: Labels<'_, '_>| {
            if let (Item::Sample(sample), Labels::Known(number)) = (item, labels) {
                sum += sample.value + f64::from(black_box(number));
            }
        };
        let read = each_remembering(text.as_bytes(), Format::Text, Mode::Lenient, Limits::default(), &mut memory, visit);
        black_box(sum);
        read.is_ok()
    });
    let listed = megabytes_a_second(&text, repeats, calls, |text| {
        black_box(page(text.as_bytes(), Format::Text, Mode::Lenient, Limits::default())).is_ok()
    });
    let theirs = megabytes_a_second(&text, repeats, if quick { 1 } else { 10 }, |text| {
        black_box(prometheus_parse::Scrape::parse(text.lines().map(|l| Ok(l.to_owned())))).is_ok()
    });
    println!("ingest::parse     {ours:8.1} MB/s (budget 600)");
    println!("  into lists      {listed:8.1} MB/s");
    println!("  series repeated {repeated:8.1} MB/s (budget 1000)");
    println!("prometheus-parse  {theirs:8.1} MB/s");
    println!("ratio             {:8.1} (budget 20)", ours / theirs);
}

/// The best of `repeats` rounds of `calls` calls: what the code can do, less what the machine does beside it.
fn megabytes_a_second(text: &str, repeats: usize, calls: usize, mut parse: impl FnMut(&str) -> bool) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..repeats {
        let start = Instant::now();
        for _ in 0..calls {
            assert!(parse(black_box(text)));
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    (text.len() * calls) as f64 / best / 1e6
}

/// A page in dcgm-exporter's form, 25 families.
fn dcgm_page(gpus: usize) -> String {
    let mut out = String::new();
    for family in 0..25 {
        let name = format!("DCGM_FI_DEV_METRIC_{family:02}");
        let _ = writeln!(out, "# HELP {name} some words about it.\n# TYPE {name} gauge");
        for gpu in 0..gpus {
            let value = match family % 3 {
                0 => format!("{}", gpu * 37 + family),
                1 => format!("{:.6}", (gpu * 31 + family * 7) as f64 / 997.0),
                _ => format!("{}", 1_234_567_890 + gpu * family),
            };
            let _ = writeln!(
                out,
                "{name}{{gpu=\"{gpu}\",UUID=\"GPU-7d1f6a02-1111-4222-8333-0123456789a{gpu}\",pci_bus_id=\"00000000:{gpu}8:00.0\",\
                 device=\"nvidia{gpu}\",modelName=\"NVIDIA H100 80GB HBM3\",Hostname=\"node-0007\",\
                 DCGM_FI_DRIVER_VERSION=\"550.90.07\",container=\"main\",namespace=\"research\",pod=\"train-llm-7b-worker-{gpu}\"}} {value}"
            );
        }
    }
    out
}
