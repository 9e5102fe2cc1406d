//! Rows as text: a table for people, or CSV or JSON lines for programs.

use datafusion::arrow::{
    array::RecordBatch,
    csv,
    error::ArrowError,
    json::{LineDelimitedWriter, WriterBuilder, writer::LineDelimited},
    util::pretty::pretty_format_batches,
};

/// How rows are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Columns drawn with lines.
    Table,
    /// One JSON object a line; nulls are written.
    Json,
    /// A header line and comma-separated values.
    Csv,
}

/// `batches` as text.
pub fn text(batches: &[RecordBatch], format: Format) -> Result<String, ArrowError> {
    match format {
        Format::Table => Ok(format!("{}\n", pretty_format_batches(batches)?)),
        Format::Json => {
            let mut writer: LineDelimitedWriter<Vec<u8>> =
                WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(Vec::new());
            for batch in batches {
                writer.write(batch)?;
            }
            writer.finish()?;
            into_text(writer.into_inner())
        }
        Format::Csv => {
            let mut bytes = Vec::new();
            let mut writer = csv::WriterBuilder::new().with_header(true).build(&mut bytes);
            for batch in batches {
                writer.write(batch)?;
            }
            drop(writer);
            into_text(bytes)
        }
    }
}

fn into_text(bytes: Vec<u8>) -> Result<String, ArrowError> {
    String::from_utf8(bytes).map_err(|error| ArrowError::ExternalError(Box::new(error)))
}
