//! `strandline-sim nvml`: becomes a command that sees a node's GPUs through a simulated libnvidia-ml.so.1.

use std::{
    ffi::OsString,
    io::{self, Write},
    path::{Path, PathBuf},
};

use schemas::Timestamp;
use simulator::nvml;

use super::{Failure, Fleet, begins, checked_speed, usage};

const EXAMPLES: &str = "Examples:
  strandline-sim nvml fleet.yaml --node h100-0 -- nvitop -1
  strandline-sim nvml fleet.yaml --node h100-0 --speed 60 --script misbehave.yaml -- python3 exporter.py
  eval \"$(strandline-sim nvml fleet.yaml --node h100-0 --print-env)\"; gpustat --json

The command is replaced by COMMAND, so its exit status and signals are COMMAND's own. Every process that is started from it sees
the same fleet time, counted from the moment at which this command began.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Nvml {
    #[command(flatten)]
    fleet: Fleet,
    /// The node whose GPUs are shown.
    #[arg(long, env = "STRANDLINE_SIM_NODE")]
    node: String,
    /// Fleet time to begin at (RFC 3339); default: the spec's start, when the fleet is still empty.
    #[arg(long)]
    start: Option<Timestamp>,
    /// How many times faster than the wall's the fleet's clock runs; 0: it stands.
    #[arg(long, env = "STRANDLINE_SIM_SPEED", default_value_t = 1.0)]
    speed: f64,
    /// What is to go wrong: a YAML file of failing and hanging calls, lost devices, driver restarts; read again on change.
    #[arg(long, env = "STRANDLINE_SIM_SCRIPT")]
    script: Option<PathBuf>,
    /// The library; default: libnvidia_ml_sim.so beside this program.
    #[arg(long, env = "STRANDLINE_SIM_LIBRARY")]
    library: Option<PathBuf>,
    /// Folder for the library under its soname and for a copy of the spec; default: one in the cache of the user.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Print the variables as shell commands in place of running a command.
    #[arg(long)]
    print_env: bool,
    /// The command and its arguments.
    #[arg(last = true, required_unless_present = "print_env", value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Nvml {
    /// Becomes the command, or prints the variables that would have made it see the node.
    pub fn run(self) -> Result<(), Failure> {
        let origin_ms = wall_ms();
        checked_speed(self.speed)?;
        let text = self.fleet.text()?;
        let plan = self.fleet.plan_of(&text, |_| {})?;
        let origin = begins(&plan, self.start)?;
        nvml::find(&plan, &self.node).map_err(|err| usage("--node", &err))?;
        let script = self.script.as_deref().map(checked_script).transpose()?;
        let library = self.library()?;
        let folder = match &self.folder {
            Some(folder) => folder.clone(),
            None => cache()?.join(nvml::folder_name(&library, &text)),
        };
        let spec = nvml::lay(&folder, &library, &text);
        let spec = spec.map_err(|err| usage(format_args!("cannot lay the library into {}", folder.display()), &err))?;
        let clock = nvml::WallClock { origin_ms, origin, speed: self.speed };
        // The spec's copy lies elsewhere, and so may the command's folder: traces are named by their whole path.
        let traces = self.fleet.folder().canonicalize().ok();
        let setup = nvml::Setup { spec, traces, node: self.node, seed: self.fleet.seed, clock, script };
        let before = std::env::var_os("LD_LIBRARY_PATH");
        let folder = setup.spec.parent().unwrap_or(&folder);
        let search = nvml::search_path(folder, before.as_deref());
        let variables = setup.variables().into_iter().chain([("LD_LIBRARY_PATH", Some(search))]);
        if self.print_env {
            let mut out = io::stdout().lock();
            for (name, value) in variables {
                match value {
                    Some(value) => writeln!(out, "export {name}={}", quoted(&value))?,
                    None => writeln!(out, "unset {name}")?,
                }
            }
            return Ok(());
        }
        let Some((program, arguments)) = self.command.split_first() else { return Ok(()) };
        let mut command = std::process::Command::new(program);
        command.args(arguments);
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let err = std::os::unix::process::CommandExt::exec(&mut command);
        Err(usage(format_args!("cannot run `{}`", program.display()), &err))
    }

    fn library(&self) -> Result<PathBuf, Failure> {
        match &self.library {
            Some(library) => library.canonicalize().map_err(|err| usage(format_args!("--library {}", library.display()), &err)),
            None => {
                let program = std::env::current_exe()?;
                nvml::beside(&program).ok_or_else(|| Failure {
                    exit: 2,
                    said: format!(
                        "{} does not lie beside {}; build it by `cargo build --workspace` with the same profile, or name it by --library",
                        nvml::BUILT_AS,
                        program.display()
                    ),
                })
            }
        }
    }
}

fn wall_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}

/// A script that can be read, by its whole path: the command may change its folder.
fn checked_script(path: &Path) -> Result<PathBuf, Failure> {
    let cannot = |err: io::Error| usage(format_args!("cannot read the script {}", path.display()), &err);
    let text = std::fs::read_to_string(path).map_err(cannot)?;
    nvml::Script::parse(&text).map_err(|err| usage(path.display(), &err))?;
    path.canonicalize().map_err(cannot)
}

/// Where this user's programs keep what they can make again.
fn cache() -> Result<PathBuf, Failure> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    let said = || "neither XDG_CACHE_HOME nor HOME is set; name a folder by --folder".to_owned();
    Ok(cache.ok_or_else(|| Failure { exit: 2, said: said() })?.join("strandline"))
}

/// A value in single quotes, as a shell reads it.
fn quoted(value: &std::ffi::OsStr) -> String {
    format!("'{}'", value.to_string_lossy().replace('\'', r"'\''"))
}
