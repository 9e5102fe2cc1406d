//! `strandline hours`: compute hour rows of closed hours, or the account of a case.

use std::{fs, io::Write, path::PathBuf};

use clap::Args;
use lake::Lake;

use crate::{commands::WindowOption, failure::Failure};

/// Compute the hour rows of a lake's closed hours, or the account of a case
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strandline hours --lake /tmp/lake
  strandline hours --lake /tmp/lake --from 2026-03-02 --to 2026-03-03 --force
  strandline hours --case world.json

An hour whose inputs did not change is not done again, unless --force. A case file holds one JSON object, or one a line.")]
pub struct Options {
    /// The lake: a folder, or s3://BUCKET/PREFIX
    #[arg(long, env = "STRANDLINE_LAKE", value_name = "DIR", required_unless_present = "case")]
    lake: Option<PathBuf>,
    /// Print the account of a case (a small world as JSON) instead; no lake and no window are looked at
    #[arg(long, value_name = "FILE", conflicts_with = "force")]
    case: Option<PathBuf>,
    #[command(flatten)]
    window: WindowOption,
    /// Do hours again whose inputs did not change
    #[arg(long)]
    force: bool,
}

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    if let Some(path) = &options.case {
        return cases(path, out);
    }
    let Some(folder) = &options.lake else { return Err(Failure::usage("give --lake DIR or --case FILE")) };
    let lake = Lake::open(folder).map_err(Failure::failed)?;
    let job = query::job::Options { window: options.window.window()?, force: options.force };
    let bar = crate::commands::progress::bar("hours");
    let summary = query::job::run(&lake, job, |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let summary = summary.map_err(Failure::failed)?;
    let text = format!(
        "{} hours computed, {} unchanged; {} rows from {} samples\n",
        summary.computed, summary.unchanged, summary.rows, summary.samples
    );
    out.write_all(text.as_bytes()).map_err(Failure::output)?;
    if !summary.unweighed.is_empty() {
        eprintln!("left out, for nobody told their weight: {}", summary.unweighed.join(", "));
    }
    Ok(())
}

fn cases(path: &PathBuf, out: &mut dyn Write) -> Result<(), Failure> {
    let text = fs::read_to_string(path).map_err(|error| Failure::because(format!("cannot read {}: {error}", path.display())))?;
    // One object over many lines, or one a line.
    let whole = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
    let cases: Vec<&str> =
        if whole { vec![text.as_str()] } else { text.lines().filter(|line| !line.trim().is_empty()).collect() };
    let mut refused = false;
    for (number, case) in cases.iter().enumerate() {
        match ledger::case::run_case(case) {
            Ok(account) => writeln!(out, "{account}").map_err(Failure::output)?,
            Err(error) if error.code() != "bad_input" => {
                refused = true;
                writeln!(out, "{}", serde_json::json!({"code": error.code()})).map_err(Failure::output)?;
                eprintln!("strandline: {}, case {}: {error}", path.display(), number + 1);
            }
            Err(error) => return Err(Failure::because(format!("{}, case {}: {error}", path.display(), number + 1))),
        }
    }
    if refused { Err(Failure::quiet(1)) } else { Ok(()) }
}
