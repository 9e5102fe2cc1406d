//! `strandline-sim backfill`: a fleet's past into a lake, or as the messages that led to it.

use std::{
    fs::File,
    io::{self, BufWriter, IsTerminal, Write},
    num::NonZeroUsize,
    path::PathBuf,
    sync::Mutex,
    time::{Duration, Instant},
};

use lake::Lake;
use schemas::{Timestamp, Window};
use simulator::backfill::{
    Agents, frames,
    lake::{BackfillError, Options, backfill},
};

use super::{Failure, Fleet, usage};

#[derive(Debug, clap::Args)]
pub struct Backfill {
    #[command(flatten)]
    fleet: Fleet,
    /// The lake whose hours are written: a folder, or s3://BUCKET/PREFIX. Hours that are there are replaced.
    #[arg(long, env = "STRANDLINE_LAKE", value_name = "DIR", required_unless_present = "frames")]
    lake: Option<PathBuf>,
    /// File for the messages that agents would have published, in order of their delivery; `-` is standard output. `strandline-ingest
    /// publish` sends them.
    #[arg(long, value_name = "FILE")]
    frames: Option<PathBuf>,
    /// First instant; default: the fleet's start.
    #[arg(long)]
    from: Option<Timestamp>,
    /// First instant after the window; default: the fleet's end.
    #[arg(long)]
    to: Option<Timestamp>,
    /// Hours made at one time [default: the processors there are].
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// Where the agents found the pages, as their rows say it: a node's page is this and /nodes/NAME/metrics.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9500")]
    scraped_from: String,
}

impl Backfill {
    pub fn run(self) -> Result<(), Failure> {
        let plan = self.fleet.plan()?;
        let whole = plan.window();
        let window = Window::new(self.from.unwrap_or(whole.from()), self.to.unwrap_or(whole.to()));
        let window = window.map_err(|err| usage("--from and --to", &err))?;
        if whole.clip(window) != Some(window) {
            let said = format!(
                "--from and --to: the fleet is planned from {} to {}; take a window inside that",
                whole.from(),
                whole.to()
            );
            return Err(Failure { exit: 2, said });
        }
        let agents = Agents { base: self.scraped_from.clone(), ..Agents::default() };
        let began = Instant::now();
        if let Some(location) = &self.lake {
            let threads = self.threads.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
            let options = Options { window, threads, agents: agents.clone() };
            let hours = window.hours().count();
            let progress = Progress::new();
            let done = |so_far: simulator::backfill::lake::Written| {
                progress.say(|| {
                    let rate = so_far.samples as f64 / began.elapsed().as_secs_f64();
                    format!("{} of {hours} hours, {:.0} samples a second", so_far.hours, rate)
                });
            };
            let lake = Lake::create(location)?;
            let written = backfill(&plan, &lake, &options, &done);
            progress.clear();
            let written = written.map_err(|err| match err {
                BackfillError::Window { .. } | BackfillError::Gap { .. } => usage("--from and --to", &err),
                other => other.into(),
            })?;
            let seconds = began.elapsed().as_secs_f64();
            println!(
                "{} hours of {} GPUs: {} samples in {:.1} s ({:.0} a second), {} rows, {} bytes, {:.1} a sample",
                written.hours,
                plan.spec().gpus(),
                written.samples,
                seconds,
                written.samples as f64 / seconds,
                written.rows,
                written.bytes,
                written.sample_bytes as f64 / written.samples.max(1) as f64
            );
        }
        let Some(file) = &self.frames else { return Ok(()) };
        let progress = Progress::new();
        let done = |so_far: frames::Framed| progress.say(|| format!("{} rounds, {} bytes", so_far.rounds, so_far.bytes));
        let framed = if file.as_os_str() == "-" {
            frames::write(&plan, window, &agents, BufWriter::new(io::stdout().lock()), done)
        } else {
            let out = File::create(file).map_err(|err| usage(format_args!("cannot write {}", file.display()), &err))?;
            frames::write(&plan, window, &agents, BufWriter::with_capacity(1 << 20, out), done)
        };
        progress.clear();
        let framed = framed.map_err(|err| {
            let mut failure = Failure::from(err);
            if !failure.said.is_empty() {
                failure.said = format!("cannot write {}; is the disk full? {}", file.display(), failure.said);
            }
            failure
        })?;
        eprintln!(
            "{} frames, {} of them rounds ({} late, {} once more), {} bytes in {:.1} s",
            framed.frames,
            framed.rounds,
            framed.late,
            framed.repeated,
            framed.bytes,
            began.elapsed().as_secs_f64()
        );
        Ok(())
    }
}

/// A line on the terminal that says how far it is, from two seconds on.
struct Progress {
    last: Mutex<Option<Instant>>,
    terminal: bool,
}

const FIRST: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_millis(500);

impl Progress {
    fn new() -> Self {
        let begin = Instant::now() + FIRST - EVERY;
        Self { last: Mutex::new(Some(begin)), terminal: io::stderr().is_terminal() }
    }

    fn say(&self, line: impl FnOnce() -> String) {
        let Some(mut last) = self.last.try_lock().ok().filter(|_| self.terminal) else { return };
        if last.is_none_or(|last| Instant::now().saturating_duration_since(last) >= EVERY) {
            eprint!("\r\x1b[K{}", line());
            let _ = io::stderr().flush();
            *last = Some(Instant::now());
        }
    }

    fn clear(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}
