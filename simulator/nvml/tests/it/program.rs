//! `strandline-sim nvml` as people run it: the program, the library and a client.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use schemas::Timestamp;
use simulator::FleetSpec;

use crate::{
    peers::{agree, reader},
    world::{World, json_lines, python, small},
};

/// The program, one folder above this test: `cargo test --workspace` builds it there.
fn program() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let program = this.parent().and_then(|folder| folder.parent()).unwrap().join("strandline-sim");
    assert!(program.is_file(), "{} is not there; build it by `cargo build -p simulator` with this profile", program.display());
    program
}

/// `strandline-sim nvml` of node h100-0 of the fleet in `file`, on a clock that stands; a client's command is to follow.
fn nvml(file: &Path, start: Timestamp) -> Command {
    let mut command = Command::new(program());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.arg("nvml").arg(file).args(["--node", "h100-0", "--speed", "0", "--start", &start.to_string(), "--folder"]);
    command.arg(file.with_file_name("laid")).arg("--").arg(python());
    command
}

#[test]
fn a_client_that_the_program_starts_reads_the_page_of_the_node() {
    let spec = small();
    let world = World::new(&spec, "h100-0", 33, 0.0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fleet.yaml");
    std::fs::write(&file, &spec).unwrap();
    let compared = agree(&world, &json_lines(&mut reader(nvml(&file, world.at()))), &|_| false);
    assert!(compared.len() >= 28, "{}: {compared:?}", compared.len());
}

#[test]
fn the_library_finds_the_traces_that_the_spec_names() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fleet.yaml");
    std::fs::write(folder.path().join("jobs.csv"), "job_id,vc,start_unix,duration_s,num_gpus\n1,a,60,7000,4\n").unwrap();
    let spec = format!("{}\nreplay: {{ jobs: {{ form: philly-jobs, file: jobs.csv }} }}\n", small());
    std::fs::write(&file, &spec).unwrap();
    let start = FleetSpec::parse(&spec).unwrap().start;
    let rows = json_lines(&mut reader(nvml(&file, start.plus_ms(3_600_000))));
    let used = rows.iter().filter(|row| row["name"] == "DCGM_FI_DEV_FB_USED").filter(|row| row["value"].as_f64() > Some(1000.0));
    assert_eq!(used.count(), 4, "the trace's one job holds all of the node: {rows:?}");
}
