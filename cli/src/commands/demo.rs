//! `strandline demo`: a simulated fleet through the real path, in one process, and what came of it against the truth.
//!
//! ```text
//! simulator ──HTTP page a node──┐                                        ┌─> report
//!           ──pod-resources────┴─> agent ──log on disk──> sink ──> close ─> hours ─┼─> check
//!           ──API facts──────────────────────^                           └─> compare with the truth
//! ```
//!
//! No shortcut: pages are scraped over HTTP and parsed, devices are joined over the kubelets' sockets, messages are protobuf in
//! a durable log, and the lake is what the sink made of them. Only time is virtual: a round begins when the last one is taken.

pub mod fleet;
mod print;

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    time::Instant,
};

use clap::Args;
use lake::Lake;
use simulator::{FleetSpec, Plan, Seed};

use crate::{
    commands::{progress, runtime},
    failure::{Failure, chain},
};

/// The fleet of the demo.
const FLEET: &str = include_str!("../../../kwok-fleet/fleets/demo.yaml");
/// Marks a folder as a lake that the demo made and may make anew.
const MARK: &str = "_state/demo.txt";

/// Simulate a fleet, run it through the real path, and compare the bill with the truth
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strandline demo
  strandline demo --keep /tmp/lake --seed 7
  strandline demo --fleet kwok-fleet/fleets/small.yaml --hours 2

The fleet is simulated; everything after it is the product's own path. The lake stays where the last lines say.")]
pub struct Options {
    /// Folder for the lake (default: a new one in the temporary folder)
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Seed of the simulation (default: the fleet's own)
    #[arg(long, env = "STRANDLINE_SEED")]
    seed: Option<u64>,
    /// Simulated hours (default: the fleet's own)
    #[arg(long)]
    hours: Option<u32>,
    /// Fleet to simulate, as YAML (default: kwok-fleet/fleets/demo.yaml)
    #[arg(long, value_name = "FILE")]
    fleet: Option<PathBuf>,
}

/// Runs the command; `program` is the name that it was called by, for the commands to try next.
pub fn run(options: &Options, program: &str, out: &mut dyn Write) -> Result<(), Failure> {
    let plan = plan(options)?;
    let lake = fresh_lake(options.keep.as_deref())?;
    let began = Instant::now();
    let devices = plan.devices().filter(|device| plan.board(*device).epoch == 0).count();
    writeln!(
        out,
        "simulating {} nodes, {} GPUs{}, {} h of {} from {}, seed {}",
        plan.nodes().len(),
        plan.spec().gpus(),
        if devices as u64 == plan.spec().gpus() { String::new() } else { format!(" ({devices} devices, MIG instances counted)") },
        plan.window().len_ms() / schemas::HOUR_MS,
        options.fleet.as_deref().map_or("the demo fleet".into(), |path| path.display().to_string()),
        plan.window().from(),
        plan.seed().0
    )
    .map_err(Failure::output)?;
    let runtime = runtime()?;
    let topics = fleet::log(&lake)?;
    let counts = runtime.block_on(fleet::run(plan, &lake, topics))?;
    let bar = progress::bar("hours");
    let summary = query::job::run(&lake, query::job::Options::default(), |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let summary = summary.map_err(Failure::failed)?;
    print::all(&lake, &counts, &summary, (program, began.elapsed()), out)
}

fn plan(options: &Options) -> Result<Plan, Failure> {
    let (name, text) = match &options.fleet {
        None => ("the demo fleet".to_owned(), FLEET.to_owned()),
        Some(path) => {
            let read = fs::read_to_string(path);
            let text = read.map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
            (path.display().to_string(), text)
        }
    };
    let wrong = |error: simulator::SpecError| Failure::usage(format!("{name}: {error}"));
    let mut spec = FleetSpec::parse(&text).map_err(wrong)?;
    if let Some(hours) = options.hours {
        spec.hours = hours;
        // Spells that would begin after the new end do not happen.
        spec.faults.windows.retain(|window| window.from.ms() < i64::from(hours) * schemas::HOUR_MS);
    }
    spec.check().map_err(wrong)?;
    let folder = options.fleet.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
    spec.load(folder).map_err(|error| Failure::usage(format!("{name}: {}", chain(&error))))?;
    let seed = options.seed.map_or(spec.seed, Seed);
    Plan::new(spec, seed).map_err(wrong)
}

/// An empty lake. A folder that holds anything but an earlier demo's lake is left alone.
fn fresh_lake(keep: Option<&Path>) -> Result<Lake, Failure> {
    let folder = match keep {
        Some(folder) => folder.to_owned(),
        None => tempfile::Builder::new().prefix("strandline-demo-").tempdir().map_err(Failure::failed)?.keep(),
    };
    let holds_something = fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some());
    if holds_something {
        if !folder.join(MARK).is_file() {
            let shown = folder.display();
            return Err(Failure::usage(format!("{shown} is not empty and no demo's lake; give --keep a new folder")));
        }
        fs::remove_dir_all(&folder).map_err(Failure::failed)?;
    }
    let lake = Lake::create(&folder).map_err(Failure::failed)?;
    lake.folder("a demo").map_err(Failure::failed)?;
    let mark = folder.join(MARK);
    let written = fs::create_dir_all(folder.join("_state"))
        .and_then(|()| fs::write(&mark, "made by strandline demo; made anew by the next\n"));
    written.map_err(|error| Failure::because(format!("cannot write {}: {error}", mark.display())))?;
    Ok(lake)
}
