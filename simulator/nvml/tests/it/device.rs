//! `tests/device/run.sh`, which is for machines with real GPUs, tried on this library with a stand-in for nvidia-smi.

use std::{path::Path, process::Command, thread};

use crate::{
    exporter_program::{eight, program},
    world::{World, text, tree},
};

/// The script in its short form, as a command that sees `world`; the load is one that does nothing, as the fleet is at work anyway.
fn script(world: &World, report: &Path) -> Command {
    let mut command = world.command(tree("tests/device/run.sh"));
    let path = std::env::var("PATH").unwrap();
    command.arg(program()).arg(report).env("PATH", format!("{}:{path}", tree("tests/device/stand-in").display()));
    command.env("STRANDLINE_DEVICE_QUICK", "1").env("STRANDLINE_DEVICE_LOAD", "sleep 120");
    command
}

/// Rows of the report as phase, field and verdict.
fn rows(report: &str) -> Vec<(&str, &str, &str)> {
    let tables = report.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| phase"));
    tables
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            (cells[0], cells[1], cells[cells.len() - 1])
        })
        .collect()
}

#[test]
fn the_script_for_real_machines_agrees_and_finds_what_differs() {
    let world = World::new(&eight(), "h100-0", 30, 1.0);
    let folder = tempfile::tempdir().unwrap();
    let (fair, lying) = (folder.path().join("fair.md"), folder.path().join("lying.md"));
    let lies = "clocks.sm=400,xml.remapped_rows/remapped_row_corr=1,dmon.gtemp=9";
    let (agreed, differed) = thread::scope(|scope| {
        let agreed = scope.spawn(|| script(&world, &fair).output().unwrap());
        let differed = scope.spawn(|| script(&world, &lying).env("STAND_IN_LIES", lies).output().unwrap());
        (agreed.join().unwrap(), differed.join().unwrap())
    });
    let report = std::fs::read_to_string(&fair).unwrap_or_default();
    assert_eq!(agreed.status.code(), Some(0), "{}\n{report}", text(&agreed));
    assert!(report.contains("**No hardware**") && report.contains("All that was compared agrees."), "{report}");
    assert!(report.contains("by nvmlGpmMetricsGet"), "the check is in the report: {report}");
    let verdicts = rows(&report);
    for phase in ["idle", "load"] {
        for (field, least) in [
            ("DCGM_FI_DEV_GPU_TEMP", 3),
            ("DCGM_FI_DEV_MEMORY_TEMP", 3),
            ("DCGM_FI_DEV_POWER_USAGE", 3),
            ("DCGM_FI_DEV_GPU_UTIL", 2),
            ("DCGM_FI_DEV_SM_CLOCK", 2),
            ("DCGM_FI_DEV_FB_USED", 2),
            ("DCGM_FI_DEV_FB_RESERVED", 2),
            ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", 1),
            ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 1),
            ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 2),
            ("DCGM_FI_DEV_PSTATE", 1),
            ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 1),
            ("DCGM_FI_DEV_MIG_MODE", 1),
            ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1),
            ("DCGM_FI_PROF_SM_ACTIVE", 1),
            ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1),
        ] {
            let agrees = |row: &&(&str, &str, &str)| (row.0, row.1) == (phase, field) && row.2.starts_with("agrees");
            assert_eq!(verdicts.iter().filter(agrees).count(), least, "{phase} {field}: {report}");
        }
    }
    for what in ["latency of 200 scrapes", "resident memory", "end on SIGTERM", "names", "form", "units", "memory"] {
        assert!(verdicts.iter().any(|row| row.1 == what), "{what}: {report}");
    }

    let report = std::fs::read_to_string(&lying).unwrap_or_default();
    assert_eq!(differed.status.code(), Some(1), "{}\n{report}", text(&differed));
    let mut named: Vec<(&str, &str)> =
        rows(&report).iter().filter(|row| row.2.starts_with("DIFFERS")).map(|row| (row.0, row.1)).collect();
    named.sort_unstable();
    let fields = ["DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SM_CLOCK"];
    let expected: Vec<(&str, &str)> = ["idle", "load"].iter().flat_map(|phase| fields.map(|field| (*phase, field))).collect();
    assert_eq!(named, expected, "{report}");
    assert!(text(&differed).contains("DIFFERS on GPU 0, 1"), "it is said too: {}", text(&differed));
}

#[test]
fn the_script_says_what_it_lacks() {
    let said = |program: &Path| {
        let output = Command::new(tree("tests/device/run.sh")).arg(program).env("PATH", "/usr/bin:/bin").output().unwrap();
        (output.status.code(), text(&output))
    };
    let (code, message) = said(Path::new("/nonexistent"));
    assert!(code == Some(2) && message.contains("/nonexistent is no program"), "{message}");
    // A machine with a GPU has one.
    if !Path::new("/usr/bin/nvidia-smi").exists() {
        let (code, message) = said(&program());
        assert!(code == Some(2) && message.contains("there is no nvidia-smi"), "{message}");
    }
}
