//! A past as a whole, by the program that people run: `strandline-sim backfill --lake` of 1,000 GPUs at 15 s, in a process of its
//! own. Budget (release, two cores): 30 days, 173 million samples, in under 8 minutes and 2 GiB.
//!
//! STRANDLINE_BENCH_HOURS sets the hours (default 24; 720 is the month). `--test` writes the two hours of the small fleet. No peer:
//! see the bench `backfill`, which is the same by parts.
#![allow(clippy::unwrap_used)]

mod program;

use std::{
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use program::Program;

fn main() {
    let quick = std::env::args().any(|a| a == "--test");
    let hours = std::env::var("STRANDLINE_BENCH_HOURS").map_or(24, |hours| hours.parse().unwrap());
    let (fleet, hours) = if quick { ("small", 2) } else { ("thousand", hours) };
    let path = format!("{}/../kwok-fleet/fleets/{fleet}.yaml", env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let (spec, lake) = (folder.path().join("fleet.yaml"), folder.path().join("lake"));
    // A fleet of so many hours, so that its plan is no larger than that.
    let text = std::fs::read_to_string(path).unwrap();
    let lines =
        text.lines().map(|line| if line.starts_with("hours: ") { format!("hours: {hours}\n") } else { format!("{line}\n") });
    std::fs::write(&spec, lines.collect::<String>()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_strandline-sim"));
    command.arg("backfill").arg(&spec).arg("--lake").arg(&lake).env("RUST_LOG", "warn").stdout(Stdio::inherit());
    let began = Instant::now();
    let mut program = Program::start(&mut command);
    let (mut cpu_s, mut peak_mib) = (0.0_f64, 0);
    // What a process has used up is told while it runs.
    while program.runs() {
        (cpu_s, peak_mib) = (cpu_s.max(program.cpu_s()), peak_mib.max(program.peak_mib()));
        thread::sleep(Duration::from_millis(20));
    }
    println!(
        "{hours} h of {fleet}: {:.1?} with the plan and the start of the program, {cpu_s:.1} s of processor, peak {peak_mib} MiB, {:.0} MB of lake",
        began.elapsed(),
        size(&lake) as f64 / 1e6
    );
}

/// Bytes of the files below a folder.
fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let each = |entry: std::fs::DirEntry| {
        let kind = entry.metadata().unwrap();
        if kind.is_dir() { size(&entry.path()) } else { kind.len() }
    };
    entries.map(each).sum()
}
