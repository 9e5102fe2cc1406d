//! The command line: `serve`, `replay`, `objects`, `backfill`, `truth`, `fidelity`, `nvml`, `schema`, `check`.

mod backfill;
mod fidelity;
mod nvml;
mod objects;
mod replay;
mod serve;

use std::{
    error::Error,
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use clap::{Parser, Subcommand, ValueEnum};
use schemas::{Timestamp, Window};
use simulator::{FleetSpec, Plan, Seed, explain};

use crate::output::{self, Format};

const EXAMPLES: &str = "Examples:
  strandline-sim check kwok-fleet/fleets/demo.yaml
  strandline-sim serve kwok-fleet/fleets/demo.yaml --listen 9500 --speed 60 --sockets /tmp/kubelets
  curl -s localhost:9500/nodes/h100-0/metrics | head
  strandline-sim truth kwok-fleet/fleets/demo.yaml --what hours --format csv > truth.csv
  strandline-sim nvml kwok-fleet/fleets/demo.yaml --node h100-0 --start 2026-03-02T09:00:00Z -- nvitop -1";

/// One fleet from (spec, seed, time): metrics, kubelets, and the truth behind them.
#[derive(Debug, Parser)]
#[command(name = "strandline-sim", version, after_help = EXAMPLES)]
pub struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve every node's page, at /nodes/NAME/metrics or at a port of its own, and its kubelet's pod-resources socket.
    #[command(
        after_help = "Example:\n  strandline-sim serve fleet.yaml --listen 9500 --speed 60 --sockets /tmp/kubelets --file-sd nodes.json"
    )]
    Serve(serve::Serve),
    /// Serve recorded pages as they were, at their own times.
    #[command(after_help = "Example:\n  strandline-sim replay recording/ --listen 9500 --speed 10")]
    Replay(replay::Replay),
    /// Print the API server's objects: nodes, namespaces and pods as a Kubernetes List.
    #[command(after_help = "Example:\n  strandline-sim objects fleet.yaml --at 2026-03-02T06:00:00Z | kubectl apply -f -")]
    Objects(objects::Objects),
    /// Write the fleet's past: closed hours of a lake, or the messages that agents would have published.
    #[command(
        after_help = "Examples:\n  strandline-sim backfill fleet.yaml --lake /tmp/lake\n  strandline-sim backfill fleet.yaml --frames fleet.frames && strandline-ingest publish fleet.frames --kafka broker-1:9092"
    )]
    Backfill(backfill::Backfill),
    /// Print what is true: hour rows, holdings with exact times, faults.
    #[command(after_help = "Example:\n  strandline-sim truth fleet.yaml --what faults --format json")]
    Truth {
        #[command(flatten)]
        fleet: Fleet,
        /// What to print.
        #[arg(long, value_enum, default_value_t = What::Hours)]
        what: What,
        /// First instant; default: the fleet's start.
        #[arg(long)]
        from: Option<Timestamp>,
        /// First instant after the window; default: the fleet's end.
        #[arg(long)]
        to: Option<Timestamp>,
        /// How to print it.
        #[arg(long, value_enum, default_value_t = Format::Table)]
        format: Format,
    },
    /// Plan the fleet of a preset and say how far it is from what was measured.
    #[command(after_help = "Example:\n  strandline-sim fidelity --preset acme-seren")]
    Fidelity(fidelity::Fidelity),
    /// Run a command on a node's GPUs: it loads a simulated libnvidia-ml.so.1.
    Nvml(nvml::Nvml),
    /// Print the JSON Schema of fleet specs.
    #[command(after_help = "Example:\n  strandline-sim schema > fleet.schema.json")]
    Schema,
    /// Check a spec and say what its fleet comes to.
    #[command(after_help = "Example:\n  strandline-sim check fleet.yaml --format json")]
    Check {
        #[command(flatten)]
        fleet: Fleet,
        /// How to print it.
        #[arg(long, value_enum, default_value_t = CheckFormat::Table)]
        format: CheckFormat,
    },
}

/// Longest text of a spec that is read (chosen: a thousand teams are some 200,000).
const MAX_SPEC_BYTES: u64 = 4 << 20;

#[derive(Debug, clap::Args)]
struct Fleet {
    /// The fleet spec, a YAML file; `-` reads standard input.
    spec: PathBuf,
    /// Seed in place of the spec's.
    #[arg(long, env = "STRANDLINE_SIM_SEED")]
    seed: Option<Seed>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// Hour rows, in the columns of gpu_hours.
    Hours,
    /// Holdings: API times and exact ones.
    Holdings,
    /// Everything that went wrong.
    Faults,
    /// Work that was lost: done since the last checkpoint of pods that failed or had to go.
    Waste,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CheckFormat {
    Table,
    Json,
}

/// What failed: the exit code (1 failed, 2 wrong usage or configuration) and the whole chain of reasons.
pub struct Failure {
    pub exit: u8,
    pub said: String,
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(err: E) -> Self {
        // A reader that went away (`| head`) is no failure worth words.
        if is_broken_pipe(&err) { Self { exit: 0, said: String::new() } } else { Self { exit: 1, said: chain(&err) } }
    }
}

/// Whether it comes from a reader that went away, also where a writer of JSON or CSV says so.
fn is_broken_pipe(err: &(dyn Error + 'static)) -> bool {
    let broken = |kind| kind == io::ErrorKind::BrokenPipe;
    if let Some(err) = err.downcast_ref::<io::Error>() {
        return broken(err.kind()) || err.get_ref().is_some_and(|inner| is_broken_pipe(inner));
    }
    if let Some(err) = err.downcast_ref::<serde_json::Error>() {
        return err.io_error_kind().is_some_and(broken);
    }
    if let Some(err) = err.downcast_ref::<csv::Error>() {
        return matches!(err.kind(), csv::ErrorKind::Io(err) if broken(err.kind()));
    }
    err.source().is_some_and(is_broken_pipe)
}

/// An error with its sources, outermost first.
fn chain(err: &dyn Error) -> String {
    let mut said = err.to_string();
    let mut next = err.source();
    while let Some(source) = next {
        said = format!("{said}: {source}");
        next = source.source();
    }
    said
}

/// A failure that the caller can mend by asking otherwise.
fn usage(what: impl std::fmt::Display, err: &dyn Error) -> Failure {
    Failure { exit: 2, said: format!("{what}: {}", chain(err)) }
}

/// Who may ask: everyone, or as the web-config file says.
fn guard(file: Option<&Path>, metrics: &web::Metrics) -> Result<web::Guard, Failure> {
    web::Guard::of(file, metrics).map_err(|err| usage("--web-config-file", &err))
}

impl Command {
    pub async fn run(self) -> Result<(), Failure> {
        match self.verb {
            Verb::Serve(serve) => serve.run().await,
            Verb::Replay(replay) => replay.run().await,
            Verb::Objects(objects) => objects.run(),
            Verb::Backfill(backfill) => tokio::task::block_in_place(|| backfill.run()),
            Verb::Truth { fleet, what, from, to, format } => {
                let plan = fleet.plan()?;
                let whole = plan.window();
                let window = Window::new(from.unwrap_or(whole.from()), to.unwrap_or(whole.to()));
                let window = window.map_err(|err| usage("--from and --to", &err))?;
                let mut out = io::BufWriter::new(io::stdout().lock());
                match what {
                    What::Hours => {
                        let batch = simulator::truth(&plan, window).map_err(|err| usage("--from and --to", &err))?;
                        output::batch(&batch, format, &mut out)?;
                    }
                    What::Holdings => output::records(&simulator::truth_holdings(&plan, window), format, &mut out)?,
                    What::Waste => output::records(&simulator::truth_waste(&plan, window), format, &mut out)?,
                    What::Faults => output::records(&simulator::faults(&plan, window), format, &mut out)?,
                }
                Ok(out.flush()?)
            }
            Verb::Fidelity(fidelity) => tokio::task::block_in_place(|| fidelity.run()),
            Verb::Nvml(nvml) => nvml.run(),
            Verb::Schema => Ok(writeln!(io::stdout().lock(), "{}", serde_json::to_string_pretty(&simulator::spec::schema())?)?),
            Verb::Check { fleet, format } => {
                let explained = explain::explain(&fleet.plan()?);
                let mut out = io::stdout().lock();
                match format {
                    CheckFormat::Table => write!(out, "{explained}")?,
                    CheckFormat::Json => writeln!(out, "{}", serde_json::to_string_pretty(&explained)?)?,
                }
                Ok(())
            }
        }
    }
}

/// When a clock begins: `--start`, else with the fleet.
fn begins(plan: &Plan, start: Option<Timestamp>) -> Result<Timestamp, Failure> {
    let (window, start) = (plan.window(), start.unwrap_or(plan.spec().start));
    let said = if start < window.from() {
        format!("--start is before the fleet's start, {}; give that or a later time", window.from())
    } else if window.to() <= start {
        format!("--start {start} is outside the fleet's time, {} to {}", window.from(), window.to())
    } else {
        return Ok(start);
    };
    Err(Failure { exit: 2, said })
}

fn checked_speed(speed: f64) -> Result<(), Failure> {
    let fits = (0.0..=simulator::nvml::MAX_SPEED).contains(&speed);
    let said = || format!("--speed {speed} is not between 0 and {}", simulator::nvml::MAX_SPEED);
    if fits { Ok(()) } else { Err(Failure { exit: 2, said: said() }) }
}

impl Fleet {
    fn plan(&self) -> Result<Plan, Failure> {
        self.plan_with(|_| {})
    }

    /// The plan of the spec as `change` leaves it.
    fn plan_with(&self, change: impl FnOnce(&mut FleetSpec)) -> Result<Plan, Failure> {
        self.plan_of(&self.text()?, change)
    }

    fn text(&self) -> Result<String, Failure> {
        let read = |from: &mut dyn Read| {
            let mut text = String::new();
            from.take(MAX_SPEC_BYTES + 1).read_to_string(&mut text).map(|_| text)
        };
        let text = if self.spec == Path::new("-") {
            read(&mut io::stdin())
        } else {
            File::open(&self.spec).and_then(|mut file| read(&mut file))
        };
        let text = text.map_err(|err| usage(format_args!("cannot read the fleet spec {}", self.spec.display()), &err))?;
        if text.len() as u64 > MAX_SPEC_BYTES {
            let said = format!("{} is longer than {MAX_SPEC_BYTES} bytes; is it a fleet spec?", self.spec.display());
            return Err(Failure { exit: 2, said });
        }
        Ok(text)
    }

    /// Folder that the paths in the spec are beside.
    fn folder(&self) -> &Path {
        let folder = self.spec.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or(Path::new("."))
    }

    fn plan_of(&self, text: &str, change: impl FnOnce(&mut FleetSpec)) -> Result<Plan, Failure> {
        let file = self.spec.display();
        let mut spec = FleetSpec::parse(text).map_err(|err| usage(&file, &err))?;
        change(&mut spec);
        let relative = spec.exposition.collectors.as_ref().filter(|file| file.is_relative() && self.spec == Path::new("-"));
        if let Some(relative) = relative {
            let said = format!(
                "{file}: exposition.collectors: a spec from standard input lies in no folder that `{}` could be beside; \
                 give its whole path, or the spec as a file",
                relative.display()
            );
            return Err(Failure { exit: 2, said });
        }
        spec.load(self.folder()).map_err(|err| usage(&file, &err))?;
        let seed = self.seed.unwrap_or(spec.seed);
        Plan::new(spec, seed).map_err(|err| usage(&file, &err))
    }
}

/// Done on SIGINT or SIGTERM.
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        },
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Command::command().debug_assert();
    }
}
