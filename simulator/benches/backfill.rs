//! How fast a past is written: 1,000 GPUs at 15 s into a lake, all processors. Budget (release): 400,000 samples a second on two
//! cores, stretch 1,000,000; 30 days in 8 minutes and 2 GiB.
//!
//! STRANDLINE_BENCH_HOURS sets the hours (default 6). No peer makes GPU telemetry of the past; what others generate in the same
//! sense (tsbs, avalanche) is written in Go, of other data, and is not run here.
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use schemas::{HOUR_MS, Window};
use simulator::{
    FleetSpec, Plan,
    backfill::{
        Agents, frames,
        lake::{Options, backfill},
    },
};

fn main() {
    let hours: u32 = std::env::var("STRANDLINE_BENCH_HOURS").map_or(6, |hours| hours.parse().unwrap());
    let path = format!("{}/../kwok-fleet/fleets/thousand.yaml", env!("CARGO_MANIFEST_DIR"));
    let mut spec = FleetSpec::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    spec.hours = hours;
    let (seed, gpus) = (spec.seed, spec.gpus());
    let began = Instant::now();
    let plan = Plan::new(spec, seed).unwrap();
    println!("plan:     {gpus} GPUs, {hours} h, {} pods in {:.1?}, peak {} MiB", plan.pods().len(), began.elapsed(), peak_mib());
    let folder = tempfile::tempdir().unwrap();
    let lake = lake::Lake::create(folder.path()).unwrap();
    let most = std::thread::available_parallelism().map_or(1, |n| n.get());
    for threads in [1, most] {
        let options = Options { window: plan.window(), threads, agents: Agents::default() };
        let began = Instant::now();
        let written = backfill(&plan, &lake, &options, &|_| {}).unwrap();
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "backfill: {threads} threads: {} samples in {seconds:.1} s, {:.0} a second, {:.1} bytes a sample, peak {} MiB",
            written.samples,
            written.samples as f64 / seconds,
            written.sample_bytes as f64 / written.samples as f64,
            peak_mib()
        );
    }
    let window = Window::new(plan.window().from(), plan.window().from().plus_ms(HOUR_MS)).unwrap();
    let began = Instant::now();
    let framed = frames::write(&plan, window, &Agents::default(), std::io::sink(), |_| {}).unwrap();
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "frames:   {} rounds in {seconds:.1} s, {:.0} a second, {:.0} MB/s",
        framed.rounds,
        framed.rounds as f64 / seconds,
        framed.bytes as f64 / seconds / 1e6
    );
}

/// Most memory that this process has had, MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
