//! `strandline sql`: any SELECT over the lake's tables.

use std::io::Write;

use clap::Args;

use crate::{
    commands::{FormatOption, LakeOption, runtime},
    failure::Failure,
};

/// Run a SELECT over the lake's tables (read-only; times are UTC; schemas/tables.md lists columns)
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strandline sql --lake /tmp/lake \"SHOW TABLES\"
  strandline sql --lake /tmp/lake \"SELECT team, SUM(sm_stranded_ms) / 3.6e6 AS stranded FROM gpu_hours WHERE kind = 'owner' GROUP BY team ORDER BY 2 DESC\"
  strandline sql --lake /tmp/lake --format csv \"SELECT at, device, dev_power_usage FROM gpu_samples LIMIT 10\"")]
pub struct Options {
    #[command(flatten)]
    lake: LakeOption,
    /// How to print the rows
    #[arg(long, env = "STRANDLINE_FORMAT", value_enum, default_value = "table")]
    format: FormatOption,
    /// The query
    query: String,
}

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let lake = options.lake.open()?;
    let session = query::sql::Session::open(&lake).map_err(Failure::failed)?;
    let rows = runtime()?.block_on(session.rows(&options.query)).map_err(Failure::failed)?;
    let text = query::show::text(&rows, options.format.into()).map_err(Failure::failed)?;
    out.write_all(text.as_bytes()).map_err(Failure::output)
}
