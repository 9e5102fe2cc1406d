//! `strandline sql`: any SELECT over the lake's tables.

use std::{io::Write, thread};

use clap::{Args, ValueEnum};
use lake::Lake;
use query::hours_sql::{Dialect, hours};

use crate::{
    commands::{FormatOption, LakeOption, WindowOption},
    failure::Failure,
};

/// Run a SELECT over the lake's tables (read-only; times are UTC; schemas/tables.md lists columns)
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strandline sql --lake /tmp/lake \"SHOW TABLES\"
  strandline sql --lake /tmp/lake \"SELECT team, SUM(sm_stranded_ms) / 3.6e6 AS stranded FROM gpu_hours WHERE kind = 'owner' GROUP BY team ORDER BY 2 DESC\"
  strandline sql --lake /tmp/lake --format csv \"SELECT at, device, dev_power_usage FROM gpu_samples LIMIT 10\"
  strandline sql --lake /tmp/lake --print hours --dialect duckdb > hours.sql

--print hours prints the SELECT that computes gpu_hours anew from settled_holdings, gpu_samples and scrapes, for DuckDB, Spark or
the engine of this command, the session in UTC (docs/scale-out.md).")]
pub struct Options {
    #[command(flatten)]
    lake: LakeOption,
    /// How to print the rows
    #[arg(long, env = "STRANDLINE_FORMAT", value_enum, default_value = "table")]
    format: FormatOption,
    /// Print a query of ours instead of running one
    #[arg(long, value_enum, value_name = "QUERY", conflicts_with = "query")]
    print: Option<Printed>,
    /// Whose SQL is printed: datafusion, duckdb or spark
    #[arg(long, value_name = "ENGINE", default_value = "datafusion", requires = "print")]
    dialect: Dialect,
    #[command(flatten)]
    window: WindowOption,
    /// The query
    #[arg(required_unless_present = "print")]
    query: Option<String>,
}

/// Queries of ours that are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Printed {
    /// The hours computation: the rows of gpu_hours from settled holdings, samples and scrapes
    Hours,
}

/// Stack of a query's thread: a plan is walked by recursion, and the hours computation is a deep one.
const STACK_BYTES: usize = 64 << 20;

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let lake = options.lake.open()?;
    let text = match (options.print, &options.query) {
        (Some(Printed::Hours), _) => hours(options.dialect, lake.root(), options.window.window()?),
        (None, Some(query)) => answer(&lake, query, options.format)?,
        (None, None) => return Err(Failure::usage("give a query, or --print hours")),
    };
    out.write_all(text.as_bytes()).map_err(Failure::output)
}

fn answer(lake: &Lake, query: &str, format: FormatOption) -> Result<String, Failure> {
    let session = query::sql::Session::open(lake).map_err(Failure::failed)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().thread_stack_size(STACK_BYTES).enable_all().build();
    let runtime = runtime.map_err(Failure::failed)?;
    let rows = thread::scope(|scope| {
        let run = || runtime.block_on(session.rows(query));
        let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run).map_err(Failure::failed)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(Failure::failed)
    })?;
    query::show::text(&rows, format.into()).map_err(Failure::failed)
}
