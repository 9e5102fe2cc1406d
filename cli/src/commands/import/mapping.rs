//! Columns of a file to fields of ours: `--map field=column`, or a YAML file of such pairs; and rows of CSV or NDJSON.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::Path,
};

use schemas::Timestamp;

use crate::{commands::read_file, failure::Failure};

/// Where a field is read from: a column, divided by a whole number where that is given (`gpu_milli/1000`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The column.
    pub column: String,
    /// The divisor.
    pub divisor: Option<u32>,
}

/// Field to origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    origins: BTreeMap<&'static str, Origin>,
    /// Fields that somebody mapped, rather than those found under their own names.
    mapped: BTreeSet<&'static str>,
}

impl Mapping {
    /// Fields not mapped are read from the column of their own name, where there is one.
    pub fn of(pairs: &[String], file: Option<&Path>, known: &'static [&'static str]) -> Result<Self, Failure> {
        let mut all: Vec<(String, String)> = Vec::new();
        if let Some(path) = file {
            let bad = |what: String| Failure::usage(format!("{}: {what}", path.display()));
            let text = fs::read_to_string(path).map_err(|error| bad(format!("cannot be read: {error}")))?;
            let pairs: BTreeMap<String, String> = serde_yaml_ng::from_str(&text).map_err(|error| bad(error.to_string()))?;
            all.extend(pairs);
        }
        for pair in pairs {
            let (field, column) =
                pair.split_once('=').ok_or_else(|| Failure::usage(format!("--map {pair}: give FIELD=COLUMN")))?;
            all.push((field.trim().to_owned(), column.trim().to_owned()));
        }
        let mut mapping = BTreeMap::new();
        for (field, column) in all {
            let known_field = known.iter().copied().find(|k| *k == field);
            let field = known_field
                .ok_or_else(|| Failure::usage(format!("--map {field}: no such field; there are {}", known.join(", "))))?;
            let origin = match column.rsplit_once('/') {
                None => Origin { column, divisor: None },
                Some((column, divisor)) => {
                    let divisor = divisor.parse().ok().filter(|d| *d > 0);
                    let divisor = divisor.ok_or_else(|| {
                        Failure::usage(format!("--map {field}={column}/...: the divisor is no whole number above 0"))
                    })?;
                    Origin { column: column.to_owned(), divisor: Some(divisor) }
                }
            };
            mapping.insert(field, origin);
        }
        let mapped = mapping.keys().copied().collect();
        for field in known {
            mapping.entry(field).or_insert_with(|| Origin { column: (*field).to_owned(), divisor: None });
        }
        Ok(Self { origins: mapping, mapped })
    }

    /// Origin of a field.
    pub fn origin(&self, field: &str) -> Option<&Origin> {
        self.origins.get(field)
    }

    /// Fields that somebody mapped, on the command line or in a mapping file.
    pub fn mapped(&self) -> Vec<&'static str> {
        self.mapped.iter().copied().collect()
    }

    /// Whether the file has the field's column.
    pub fn is_there(&self, field: &str, rows: &Rows) -> bool {
        self.origins.get(field).is_some_and(|origin| rows.columns.contains(&origin.column))
    }
}

/// Rows of a file; a cell that is empty or null is absent.
#[derive(Debug, Default)]
pub struct Rows {
    /// Columns that any row has.
    pub columns: Vec<String>,
    /// Rows with their 1-based line.
    pub rows: Vec<(u64, HashMap<String, String>)>,
    /// Lines that are no rows.
    pub refused: Vec<super::Refused>,
}

/// Largest table that is read.
const MAX_TABLE_BYTES: u64 = 4 << 30;

/// Reads CSV with a header line, or NDJSON where the file begins with `{`.
pub fn rows(path: &Path) -> Result<Rows, Failure> {
    let bytes =
        read_file(path, MAX_TABLE_BYTES).map_err(|error| Failure::because(format!("cannot read {}: {error}", path.display())))?;
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    if bytes.trim_ascii_start().first() == Some(&b'{') { Ok(ndjson(bytes)) } else { csv_rows(path, bytes) }
}

fn csv_rows(path: &Path, bytes: &[u8]) -> Result<Rows, Failure> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(bytes);
    let header =
        reader.headers().map_err(|error| Failure::because(format!("{}: no header line: {error}", path.display())))?.clone();
    let mut rows = Rows { columns: header.iter().map(str::to_owned).collect(), ..Rows::default() };
    for record in reader.records() {
        match record {
            Ok(record) => {
                let line = record.position().map_or(0, csv::Position::line);
                if record.len() != header.len() {
                    let mut reason = format!("{} cells, and the header has {}", record.len(), header.len());
                    // A quote that nothing closes takes the lines after it into its cell.
                    let lines = record.iter().map(|cell| cell.matches('\n').count()).sum::<usize>();
                    if lines > 0 {
                        reason.push_str(&format!("; a quoted cell takes in {lines} line ends, so is a quote missing?"));
                    }
                    rows.refused.push(super::Refused {
                        line,
                        reason,
                        text: record.iter().collect::<Vec<_>>().join(",").chars().take(200).collect(),
                    });
                    continue;
                }
                let cells = header.iter().zip(record.iter()).filter(|(_, cell)| !cell.trim().is_empty());
                rows.rows.push((line, cells.map(|(name, cell)| (name.to_owned(), cell.trim().to_owned())).collect()));
            }
            Err(error) => {
                let line = error.position().map_or(0, csv::Position::line);
                rows.refused.push(super::Refused { line, reason: error.to_string(), text: String::new() });
            }
        }
    }
    Ok(rows)
}

fn ndjson(bytes: &[u8]) -> Rows {
    let mut rows = Rows::default();
    let mut columns = std::collections::BTreeSet::new();
    for (number, line) in bytes.split(|b| *b == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty()) {
        let number = number as u64 + 1;
        let refuse = |reason: String| super::Refused {
            line: number,
            reason,
            text: String::from_utf8_lossy(line).chars().take(200).collect(),
        };
        match serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(line) {
            Err(error) => rows.refused.push(refuse(format!("no JSON object: {error}"))),
            Ok(object) => {
                let mut cells = HashMap::new();
                for (name, value) in object {
                    columns.insert(name.clone());
                    match value {
                        serde_json::Value::Null => {}
                        serde_json::Value::String(text) if text.is_empty() => {}
                        serde_json::Value::String(text) => drop(cells.insert(name, text)),
                        other => drop(cells.insert(name, other.to_string())),
                    }
                }
                rows.rows.push((number, cells));
            }
        }
    }
    rows.columns = columns.into_iter().collect();
    rows
}

/// Longest name of anything, in bytes.
const MAX_NAME: usize = 1024;

/// Whether a text may be a name: of bounded length, without characters that would break messages, tables and paths.
pub fn name(text: &str) -> Result<(), String> {
    if text.len() > MAX_NAME {
        Err(format!("{} bytes are more than the {MAX_NAME} of a name", text.len()))
    } else if text.chars().any(char::is_control) {
        Err("a name has no line end and no other control character".into())
    } else {
        Ok(())
    }
}

/// When a GPU may have been held: 1970 to 2099. A time outside is a mistake of unit or epoch, and would make hours without end.
const TIMES_MS: std::ops::Range<i64> = 0..4_102_444_800_000;

fn plausible(at: Timestamp) -> Result<Timestamp, String> {
    if TIMES_MS.contains(&at.ms()) { Ok(at) } else { Err(format!("{at} is not in the years 1970 to 2099; is --epoch right?")) }
}

/// A time as a table states it: RFC 3339, or seconds (with up to three decimals read) after `epoch`.
pub fn time(text: &str, epoch: Timestamp) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return plausible(at);
    }
    let bad = || format!("`{text}` is no time: give RFC 3339, or seconds");
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let seconds: i64 = whole.parse().map_err(|_| bad())?;
    // A thousandth that is cut off would be a guess; times here are whole milliseconds.
    if fraction.bytes().skip(3).any(|b| b != b'0') {
        return Err(format!("`{text}` has more than three decimals; times are whole milliseconds"));
    }
    let millis: i64 = format!("{fraction:0<3}")[..3].parse().map_err(|_| bad())?;
    let ms = seconds.checked_mul(1000).and_then(|ms| ms.checked_add(millis)).ok_or_else(bad)?;
    let ms = if negative { -ms } else { ms };
    plausible(Timestamp::from_ms(epoch.ms().checked_add(ms).ok_or_else(bad)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn times_are_rfc_3339_or_seconds() {
        let epoch: Timestamp = "2023-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(time("90.5", epoch).unwrap().to_string(), "2023-01-01T00:01:30.500Z");
        assert_eq!(time("1506902515", Timestamp::from_ms(0)).unwrap().to_string(), "2017-10-02T00:01:55.000Z");
        assert_eq!(time("-1", epoch).unwrap().to_string(), "2022-12-31T23:59:59.000Z");
        assert_eq!(time("2026-03-02T10:00:00Z", epoch).unwrap().to_string(), "2026-03-02T10:00:00.000Z");
        for bad in [
            "",
            "x",
            "1e3",
            "1.2345",
            "99999999999999999999",
            "999999999999",
            "--1",
            ".",
            "1969-12-31T23:59:59Z",
            "9999-12-30T00:00:00Z",
        ] {
            assert!(time(bad, epoch).is_err(), "{bad}");
        }
    }
}
