//! Rows as text: a table for people, or CSV or JSON lines for programs.

use datafusion::arrow::{
    array::{Array, AsArray, RecordBatch},
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
        Format::Table => Ok(printable(&format!("{}\n", pretty_format_batches(batches)?))),
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

/// The text in a column of a batch; none where it is null, or the column is not there or not text.
pub(crate) fn text_at<'a>(batch: &'a RecordBatch, column: &str, row: usize) -> Option<&'a str> {
    let texts = batch.column_by_name(column)?.as_string_opt::<i32>()?;
    texts.is_valid(row).then(|| texts.value(row))
}

/// Longest cell of a table for people, in characters.
const MAX_CELL: usize = 100;

/// `text` as a terminal may get it: names come from outside, and a control character in one could repaint the screen. Line
/// feeds stay.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\n' || !is_control(c) { out.push(c) } else { out.extend(c.escape_default()) }
    }
    out
}

/// One cell of a table for people: on one line, and cut where it is very long.
pub fn cell(text: &str) -> String {
    let mut out = String::new();
    for (number, c) in text.chars().enumerate() {
        if number == MAX_CELL {
            out.push('…');
            break;
        }
        if is_control(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// One cell of CSV: quoted where its text needs it.
pub(crate) fn csv_cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// Control characters, and those that turn the direction of the text after them.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn into_text(bytes: Vec<u8>) -> Result<String, ArrowError> {
    String::from_utf8(bytes).map_err(|error| ArrowError::ExternalError(Box::new(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_paint_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\nc");
        assert_eq!(cell("a\nb\u{202e}"), "a\\nb\\u{202e}");
        assert_eq!(cell(&"x".repeat(100_000)).chars().count(), MAX_CELL + 1);
    }
}
