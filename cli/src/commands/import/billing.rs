//! Tables that only money needs: runs as a provider billed them, and restarts with their last checkpoint.
//!
//! They are few, and go straight into the lake: rows are kept by id, so that importing a file again changes nothing and a
//! corrected row replaces the old one.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::Write,
    path::PathBuf,
    sync::Arc,
};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, types};
use clap::Args;
use lake::{ClosedKey, Footer, Lake, read};
use schemas::{
    Timestamp,
    tables::{self, Table, Type},
};

use crate::{
    commands::import::{Refused, mapping},
    failure::Failure,
};

/// Import runs as a provider billed them (CSV with a header, or NDJSON): run, from, to, gpus, and pool or match labels
#[derive(Debug, Args)]
#[command(after_help = "Example:
  strandline import runs runs.csv --lake lake

runs.csv:
  run,pool,gpus,from,to
  i-0a1,north-od,8,2026-03-02T10:00:12Z,2026-03-02T17:31:40Z

In place of pool: provider, region, product, purchase_option, reservation, as the rate card matches them. Without `to` the run goes
on. A pool with imported runs is priced by them alone; the others by the inventory. A run imported again replaces itself.")]
pub struct RunsOptions {
    #[command(flatten)]
    common: Common,
}

/// Import restarts (CSV with a header, or NDJSON): pod_uid, or pod and namespace; at; last_checkpoint
#[derive(Debug, Args)]
#[command(after_help = "Example:
  strandline import restarts restarts.csv --lake lake

restarts.csv:
  namespace,pod,at,last_checkpoint
  train,llm-0,2026-03-02T12:40:00Z,2026-03-02T12:05:00Z

The work from last_checkpoint to at is lost; without last_checkpoint all since the restart before, or the bind.")]
pub struct RestartsOptions {
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Common {
    /// The table
    file: PathBuf,
    /// The lake: a folder, or s3://BUCKET/PREFIX; made if it is not there
    #[arg(long, env = "STRANDLINE_LAKE", value_name = "DIR")]
    lake: PathBuf,
    /// What times in seconds count from
    #[arg(long, value_name = "TIME", default_value = "1970-01-01", value_parser = crate::commands::time)]
    epoch: Timestamp,
}

/// Most GPUs of one run: more is a mistake in the file.
const MAX_GPUS: i64 = 1_000_000;

/// One cell of a row that is kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Cell {
    Null,
    Text(String),
    Int(i64),
    Time(Timestamp),
}

/// A row by its table's columns, and its own time.
type Kept = (Timestamp, Vec<Cell>);

/// `import runs`.
pub fn runs(options: &RunsOptions, out: &mut dyn Write) -> Result<(), Failure> {
    import(
        &options.common,
        "billed_runs",
        &["run", "gpus", "from"],
        |cells| {
            let id = text(cells, "run").ok_or("run is empty")?;
            let gpus: i64 =
                text(cells, "gpus").ok_or("gpus is empty")?.parse().map_err(|_| "gpus: no whole number".to_owned())?;
            if !(1..=MAX_GPUS).contains(&gpus) {
                return Err(format!("gpus: {gpus} is not from 1 to {MAX_GPUS}"));
            }
            let from = time(cells, "from", options.common.epoch)?.ok_or("from is empty")?;
            let to = time(cells, "to", options.common.epoch)?;
            if to.is_some_and(|to| to <= from) {
                return Err("to: the end is not after the beginning".into());
            }
            let labels = ["pool", "provider", "region", "product", "purchase_option", "reservation"];
            if labels.iter().all(|label| text(cells, label).is_none()) {
                return Err(
                    "neither pool nor a label that finds it (provider, region, product, purchase_option, reservation)".into()
                );
            }
            let may = |name| text(cells, name).map_or(Cell::Null, Cell::Text);
            let mut row = vec![Cell::Text(id.clone())];
            row.extend(labels.map(may));
            row.extend([Cell::Int(gpus), Cell::Time(from), to.map_or(Cell::Null, Cell::Time)]);
            Ok((id, (from, row)))
        },
        out,
    )
}

/// `import restarts`.
pub fn restarts(options: &RestartsOptions, out: &mut dyn Write) -> Result<(), Failure> {
    import(
        &options.common,
        "restarts",
        &["at"],
        |cells| {
            let (uid, pod) = (text(cells, "pod_uid"), text(cells, "pod"));
            if uid.is_none() && pod.is_none() {
                return Err("neither pod_uid nor pod".into());
            }
            let at = time(cells, "at", options.common.epoch)?.ok_or("at is empty")?;
            let checkpoint = time(cells, "last_checkpoint", options.common.epoch)?;
            if checkpoint.is_some_and(|checkpoint| checkpoint > at) {
                return Err("last_checkpoint: it is after the restart".into());
            }
            let space = pod.as_ref().map(|_| text(cells, "namespace").unwrap_or_else(|| "default".into()));
            let id = format!("{uid:?} {space:?} {pod:?} {}", at.ms());
            let may = |text: Option<String>| text.map_or(Cell::Null, Cell::Text);
            Ok((id, (at, vec![may(uid), may(space), may(pod), Cell::Time(at), checkpoint.map_or(Cell::Null, Cell::Time)])))
        },
        out,
    )
}

fn text(cells: &HashMap<String, String>, name: &str) -> Option<String> {
    cells.get(name).cloned()
}

fn time(cells: &HashMap<String, String>, name: &str, epoch: Timestamp) -> Result<Option<Timestamp>, String> {
    cells.get(name).map(|text| mapping::time(text, epoch).map_err(|error| format!("{name}: {error}"))).transpose()
}

/// Reads the file, merges its rows with those of the lake by id, and writes the hours that changed.
fn import(
    options: &Common,
    table: &'static str,
    needed: &[&str],
    read_row: impl Fn(&HashMap<String, String>) -> Result<(String, Kept), String>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let rows = mapping::rows(&options.file)?;
    if let Some(missing) = needed.iter().find(|column| !rows.columns.iter().any(|there| there == *column)) {
        let file = options.file.display();
        return Err(Failure::usage(format!("{file} has no column `{missing}`; it has: {}", rows.columns.join(", "))));
    }
    let (mut refused, mut new): (Vec<Refused>, BTreeMap<String, (u64, Kept)>) = (rows.refused, BTreeMap::new());
    let source = options.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for (line, cells) in &rows.rows {
        let shown = || format!("{cells:?}").chars().take(200).collect();
        let names = cells.values().try_for_each(|text| mapping::name(text));
        match names.and_then(|()| read_row(cells)) {
            Err(reason) => refused.push(Refused { line: *line, reason, text: shown() }),
            Ok((id, (at, mut row))) => {
                row.push(Cell::Text(source.clone()));
                if let Some((first, _)) = new.get(&id).filter(|(_, kept)| *kept != (at, row.clone())) {
                    let reason = format!("it stands in line {first} with different content");
                    refused.push(Refused { line: *line, reason, text: shown() });
                    continue;
                }
                new.entry(id).or_insert((*line, (at, row)));
            }
        }
    }
    refused.sort_by_key(|refused| refused.line);
    let imported = new.len();
    let file = options.file.display();
    if imported > 0 {
        let lake = Lake::create(&options.lake).map_err(Failure::failed)?;
        let hours = merge(&lake, tables::get(table), new.into_iter().map(|(id, (_, kept))| (id, kept)).collect())?;
        writeln!(out, "{imported} rows of {file} imported into table {table} ({hours} hours written)")
            .map_err(Failure::output)?;
    }
    let Some(first) = refused.first() else {
        return if imported > 0 { Ok(()) } else { Err(Failure::because(format!("nothing was imported: {file} has no rows"))) };
    };
    let words = format!("{} lines of {file} were refused; the first: line {}: {}", refused.len(), first.line, first.reason);
    if imported == 0 {
        return Err(Failure::because(format!("nothing was imported: {words}")));
    }
    writeln!(out, "{words}").map_err(Failure::output)
}

/// Writes hours whose rows change; returns how many.
fn merge(lake: &Lake, table: &'static Table, new: BTreeMap<String, Kept>) -> Result<usize, Failure> {
    let mut hours: BTreeMap<Timestamp, Vec<Vec<Cell>>> = BTreeMap::new();
    let mut touched: BTreeSet<Timestamp> = BTreeSet::new();
    for file in lake.closed_files(table, None).map_err(Failure::failed)? {
        for batch in read::rows(table, &file.path, None).map_err(Failure::failed)? {
            for row in 0..batch.num_rows() {
                let cells: Vec<Cell> = batch.columns().iter().map(|column| cell(column, row)).collect();
                if new.contains_key(&id_of(table, &cells)) {
                    touched.insert(file.key.hour);
                } else {
                    hours.entry(file.key.hour).or_default().push(cells);
                }
            }
        }
    }
    for (at, row) in new.into_values() {
        touched.insert(at.hour());
        hours.entry(at.hour()).or_default().push(row);
    }
    for &hour in &touched {
        let key = ClosedKey { hour, shard: 0 };
        match hours.get(&hour) {
            None => lake.remove_closed(table, key).map_err(Failure::failed)?,
            Some(rows) => {
                let batch = batch(table, rows)?;
                let sorted = lake::encode::sorted(table, &[batch]).map_err(Failure::failed)?;
                let footer = Footer { writer_epoch: "import".into(), ..Footer::default() };
                lake.publish_closed(table, key, &[sorted], footer).map_err(Failure::failed)?;
            }
        }
    }
    Ok(touched.len())
}

/// The id under which a row of the lake is kept.
fn id_of(table: &Table, cells: &[Cell]) -> String {
    let text = |at: usize| if let Cell::Text(text) = &cells[at] { Some(text.clone()) } else { None };
    if table.name == "billed_runs" {
        return text(0).unwrap_or_default();
    }
    let at = if let Cell::Time(at) = cells[3] { at.ms() } else { 0 };
    format!("{:?} {:?} {:?} {at}", text(0), text(1), text(2))
}

fn cell(column: &ArrayRef, row: usize) -> Cell {
    if column.is_null(row) {
        return Cell::Null;
    }
    if let Some(texts) = column.as_string_opt::<i32>() {
        return Cell::Text(texts.value(row).to_owned());
    }
    if let Some(times) = column.as_primitive_opt::<types::TimestampMicrosecondType>() {
        return Cell::Time(Timestamp::from_micros(times.value(row)));
    }
    column.as_primitive_opt::<types::Int64Type>().map_or(Cell::Null, |ints| Cell::Int(ints.value(row)))
}

fn batch(table: &Table, rows: &[Vec<Cell>]) -> Result<RecordBatch, Failure> {
    let column = |(at, column): (usize, &tables::Column)| -> ArrayRef {
        let cells = rows.iter().map(|row| &row[at]);
        match column.kind {
            Type::Time => {
                let times: TimestampMicrosecondArray =
                    cells.map(|cell| if let Cell::Time(time) = cell { Some(time.micros()) } else { None }).collect();
                Arc::new(times.with_timezone("UTC"))
            }
            Type::Int => {
                Arc::new(cells.map(|cell| if let Cell::Int(int) = cell { Some(*int) } else { None }).collect::<Int64Array>())
            }
            Type::Text | Type::Float | Type::Double | Type::Bool => {
                Arc::new(cells.map(|cell| if let Cell::Text(text) = cell { Some(text) } else { None }).collect::<StringArray>())
            }
        }
    };
    let columns = table.columns.iter().enumerate().map(column).collect();
    RecordBatch::try_new(table.schema(), columns).map_err(Failure::failed)
}
