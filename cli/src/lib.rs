//! `strandline`: where the GPU-hours went, for people.
//!
//! One module a command in [`commands`]; each takes its checked options and a writer for what it prints. Exit code 0: done,
//! 1: failed (or a check that found something), 2: wrong usage or configuration.

pub mod commands;
pub mod failure;

use std::{ffi::OsString, io, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use failure::Failure;

/// Where your GPU-hours went: allocated, utilized, stranded, and what nobody saw.
#[derive(Debug, Parser)]
#[command(name = "strandline", version, propagate_version = true)]
#[command(after_help = "Examples:
  strandline demo --keep /tmp/lake
  strandline report --lake /tmp/lake --by team,product --tier sm
  strandline sql --lake /tmp/lake \"SELECT team, SUM(ms) / 3.6e6 AS gpu_hours FROM gpu_hours GROUP BY team\"
  strandline check --lake /tmp/lake

Every command: --help. Options can be given as STRANDLINE_<OPTION> too, or in a YAML file with --config; an option on the
command line goes first, then the environment, then the file.
Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(commands::demo::Options),
    Hours(commands::hours::Options),
    Report(commands::report::Options),
    Money(commands::money::Options),
    Sql(commands::sql::Options),
    Check(commands::check::Options),
    Why(commands::why::Options),
    Parse(commands::parse::Options),
    Import(commands::import::Options),
    Conformance(commands::conformance::Options),
}

/// Runs the command line `arguments`, program name first, on the process's own output.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut out = io::stdout().lock();
    match run(arguments, &mut out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                // What it tells of came from outside.
                eprintln!("strandline: {}", query::show::printable(message));
            }
            ExitCode::from(failure.code())
        }
    }
}

/// Runs the command line `arguments` and prints to `out`.
pub fn run(arguments: impl IntoIterator<Item = OsString>, out: &mut dyn io::Write) -> Result<(), Failure> {
    let arguments = commands::configured(arguments, &Arguments::command())?;
    let program = arguments.first().map_or("strandline".into(), |name| name.to_string_lossy().into_owned());
    let parsed = match Arguments::try_parse_from(arguments) {
        Ok(parsed) => parsed,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            write!(out, "{error}").map_err(Failure::output)?;
            return Ok(());
        }
        Err(error) => return Err(Failure::usage(error.to_string().trim_start_matches("error: ").trim_end().to_owned())),
    };
    match parsed.command {
        Command::Demo(options) => commands::demo::run(&options, &program, out),
        Command::Hours(options) => commands::hours::run(&options, out),
        Command::Report(options) => commands::report::run(&options, out),
        Command::Money(options) => commands::money::run(&options, out),
        Command::Sql(options) => commands::sql::run(&options, out),
        Command::Check(options) => commands::check::run(&options, out),
        Command::Why(options) => commands::why::run(&options, out),
        Command::Parse(options) => commands::parse::run(&options, out),
        Command::Import(options) => commands::import::run(&options, out),
        Command::Conformance(options) => commands::conformance::run(&options, out),
    }
}
