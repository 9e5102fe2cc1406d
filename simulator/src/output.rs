//! Rows to the terminal: a table for people, CSV and JSON lines for programs.

use std::io::{self, Write};

use arrow::{
    array::{Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray},
    datatypes::DataType,
};
use clap::ValueEnum;
use schemas::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

/// How rows are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns that have any value, aligned.
    Table,
    /// One JSON object a line.
    Json,
    /// Every column, with a header.
    Csv,
}

/// Prints a record batch.
pub fn batch(batch: &RecordBatch, format: Format, out: &mut impl Write) -> io::Result<()> {
    let schema = batch.schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let rows = (0..batch.num_rows()).map(|row| batch.columns().iter().map(|column| cell(column, row)).collect());
    print(&names, rows.collect(), format, out)
}

/// Prints records that serialise to flat objects, their fields in the order of their declaration.
pub fn records<T: Serialize>(records: &[T], format: Format, out: &mut impl Write) -> io::Result<()> {
    let mut header = csv::Writer::from_writer(Vec::new());
    if let Some(first) = records.first() {
        header.serialize(first)?; // writes the names first, in order
    }
    let header = header.into_inner().map_err(|err| io::Error::other(err.to_string()))?;
    let header = String::from_utf8_lossy(&header);
    let names: Vec<&str> = header.lines().next().unwrap_or_default().split(',').collect();
    let row = |record: &T| {
        let mut object = serde_json::to_value(record)?;
        Ok(names.iter().map(|name| object.get_mut(name).map_or(Value::Null, Value::take)).collect())
    };
    let rows = records.iter().map(row).collect::<io::Result<Vec<_>>>()?;
    print(&names, rows, format, out)
}

fn cell(column: &dyn Array, row: usize) -> Value {
    if column.is_null(row) {
        return Value::Null;
    }
    let any = column.as_any();
    match column.data_type() {
        DataType::Utf8 => any.downcast_ref::<StringArray>().map(|a| a.value(row).into()),
        DataType::Int64 => any.downcast_ref::<Int64Array>().map(|a| a.value(row).into()),
        _ => any.downcast_ref::<TimestampMicrosecondArray>().map(|a| Timestamp::from_micros(a.value(row)).to_string().into()),
    }
    .unwrap_or(Value::Null)
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn print(names: &[&str], rows: Vec<Vec<Value>>, format: Format, out: &mut impl Write) -> io::Result<()> {
    match format {
        Format::Json => {
            for row in rows {
                let object: Map<String, Value> = names.iter().map(|name| (*name).to_owned()).zip(row).collect();
                writeln!(out, "{}", Value::Object(object))?;
            }
        }
        Format::Csv => {
            let mut writer = csv::Writer::from_writer(out);
            writer.write_record(names)?;
            for row in &rows {
                writer.write_record(row.iter().map(text))?;
            }
            writer.flush()?;
        }
        Format::Table => {
            let shown: Vec<usize> = (0..names.len()).filter(|at| rows.iter().any(|row| !text(&row[*at]).is_empty())).collect();
            let width = |at: usize| rows.iter().map(|row| text(&row[at]).chars().count()).max().unwrap_or(0).max(names[at].len());
            let widths: Vec<usize> = shown.iter().map(|at| width(*at)).collect();
            let mut line = |cells: Vec<String>| {
                let padded: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
                writeln!(out, "{}", padded.join("  ").trim_end())
            };
            line(shown.iter().map(|at| names[*at].to_owned()).collect())?;
            for row in &rows {
                line(shown.iter().map(|at| text(&row[*at])).collect())?;
            }
        }
    }
    Ok(())
}
