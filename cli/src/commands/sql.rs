//! `strandline sql`: any SELECT over the lake's tables.

use std::{io::Write, thread};

use clap::Args;
use lake::Lake;
use query::{
    hours_sql::{Dialect, hours},
    questions,
};

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
  strandline sql --lake /tmp/lake --question list
  strandline sql --lake /tmp/lake --question stranding
  strandline sql --lake /tmp/lake --print stranding > stranding.sql
  strandline sql --lake /tmp/lake --print hours --dialect duckdb > hours.sql

Questions are SQL files that DataFusion, DuckDB and Spark run as they stand (docs/questions.md); --print shows one.
--print hours prints the SELECT that computes gpu_hours anew from settled_holdings, gpu_samples and scrapes, for DuckDB, Spark or
the engine of this command, the session in UTC (docs/scale-out.md).")]
pub struct Options {
    #[command(flatten)]
    lake: LakeOption,
    /// How to print the rows
    #[arg(long, env = "STRANDLINE_FORMAT", value_enum, default_value = "table")]
    format: FormatOption,
    /// Answer a question of ours; `list` names them
    #[arg(long, env = "STRANDLINE_QUESTION", value_name = "NAME", conflicts_with_all = ["query", "print"])]
    question: Option<String>,
    /// Metric that question kv-seat-hours integrates: the gauge of a serving page
    #[arg(long, env = "STRANDLINE_KV_GAUGE", value_name = "METRIC", default_value = questions::KV_GAUGE)]
    kv_gauge: String,
    /// Print the SQL of a question, or of the hours computation (`hours`), instead of running any
    #[arg(long, value_name = "NAME", conflicts_with = "query")]
    print: Option<String>,
    /// Whose SQL is printed: datafusion, duckdb or spark
    #[arg(long, value_name = "ENGINE", default_value = "datafusion", requires = "print")]
    dialect: Dialect,
    #[command(flatten)]
    window: WindowOption,
    /// The query
    #[arg(required_unless_present_any = ["print", "question"])]
    query: Option<String>,
}

/// Stack of a query's thread: a plan is walked by recursion, and the hours computation is a deep one.
/// Memory of it is only taken where it is used.
const STACK_BYTES: usize = 1 << 30;
/// Longest statement: each of its terms may take some 20 KiB of the stack.
const MAX_QUERY_BYTES: usize = 64 << 10;

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let lake = options.lake.open()?;
    let text = match (options.print.as_deref(), options.question.as_deref(), &options.query) {
        (Some("hours"), ..) => hours(options.dialect, lake.location(), options.window.window()?),
        (Some(name), ..) => question(name, &options.kv_gauge)?,
        (None, Some("list"), _) => {
            questions::ALL.iter().map(|(name, sql)| format!("{name:<22} {}\n", questions::asks(sql))).collect()
        }
        (None, Some(name), _) => answer(&lake, &question(name, &options.kv_gauge)?, options.format)?,
        (None, None, Some(query)) => answer(&lake, query, options.format)?,
        (None, None, None) => return Err(Failure::usage("give a query, --question NAME, or --print NAME")),
    };
    out.write_all(text.as_bytes()).map_err(Failure::output)
}

/// The SQL of a question.
fn question(name: &str, kv_gauge: &str) -> Result<String, Failure> {
    let Some(sql) = questions::sql(name) else {
        let known: Vec<&str> = questions::ALL.iter().map(|(name, _)| *name).collect();
        let nearest = known.iter().min_by_key(|word| strsim::damerau_levenshtein(word, name)).copied().unwrap_or_default();
        return Err(Failure::usage(format!(
            "no question is called `{name}`; did you mean `{nearest}`? There are {}",
            known.join(", ")
        )));
    };
    if name == "kv-seat-hours" {
        let refused = || Failure::usage(format!("`{kv_gauge}` is no metric name; give one such as {}", questions::KV_GAUGE));
        return questions::kv_seat_hours(kv_gauge).ok_or_else(refused);
    }
    Ok(sql.to_owned())
}

fn answer(lake: &Lake, query: &str, format: FormatOption) -> Result<String, Failure> {
    if query.len() > MAX_QUERY_BYTES {
        return Err(Failure::because(format!(
            "the statement is longer than {} KiB; join a table in place of a list",
            MAX_QUERY_BYTES >> 10
        )));
    }
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
