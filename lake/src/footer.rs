//! What our writer puts into a file's footer: where its rows came from and how many there are.

use parquet::file::metadata::{KeyValue, ParquetMetaData};
use schemas::Timestamp;

use crate::{LakeError, store::Place};

/// Version of the row layout that this code writes.
pub const SCHEMA_VERSION: u32 = 1;

/// Facts about a file, in its Parquet key-value metadata under `strandline.*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// Topic, for a hot file.
    pub topic: Option<String>,
    /// First offset that the file covers, for a hot file.
    pub start: Option<u64>,
    /// Last offset that the file covers (included), for a hot file; the next file begins after it.
    pub end: Option<u64>,
    /// Messages behind the rows.
    pub records: u64,
    /// Rows of this file.
    pub rows: u64,
    /// Messages or parts of messages that were refused, counted in `rejects`.
    pub rejects: u64,
    /// Exact repeats that were dropped, for a closed hour.
    pub repeats: u64,
    /// Earliest time of a row.
    pub min_at: Option<Timestamp>,
    /// Latest time of a row.
    pub max_at: Option<Timestamp>,
    /// For a hot file that fixes the interval of several tables: the others that have rows in it, comma-joined.
    pub tables: Option<String>,
    /// For a closed hour: what it was made from, so that doing it again can be told to change nothing.
    pub inputs: Option<String>,
    /// Names the run of the writer.
    pub writer_epoch: String,
    /// SHA-256 of the file's data pages, set by the writer.
    pub content_hash: String,
}

const PREFIX: &str = "strandline.";

impl Footer {
    /// The key-values, in fixed order; facts that are not known are left out.
    pub(crate) fn key_values(&self) -> Vec<KeyValue> {
        let mut all = Vec::new();
        let mut put = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                all.push(KeyValue::new(format!("{PREFIX}{key}"), value));
            }
        };
        put("schema_version", Some(SCHEMA_VERSION.to_string()));
        put("topic", self.topic.clone());
        put("start", self.start.map(|v| v.to_string()));
        put("end", self.end.map(|v| v.to_string()));
        put("records", Some(self.records.to_string()));
        put("rows", Some(self.rows.to_string()));
        put("rejects", Some(self.rejects.to_string()));
        put("repeats", Some(self.repeats.to_string()));
        put("min_at", self.min_at.map(|v| v.to_string()));
        put("max_at", self.max_at.map(|v| v.to_string()));
        put("tables", self.tables.clone());
        put("inputs", self.inputs.clone());
        put("writer_epoch", Some(self.writer_epoch.clone()));
        put("content_hash", Some(self.content_hash.clone()));
        all
    }

    /// Refuses a file of a later row layout; `place` is for the error.
    pub(crate) fn known_layout(place: &Place, metadata: &ParquetMetaData) -> Result<(), LakeError> {
        let pairs = metadata.file_metadata().key_value_metadata().into_iter().flatten();
        let found = pairs.filter(|kv| kv.key.strip_prefix(PREFIX) == Some("schema_version")).find_map(|kv| kv.value.as_deref());
        match found {
            Some(text) if text.parse::<u32>().ok().is_none_or(|version| version > SCHEMA_VERSION) => {
                Err(LakeError::Newer { path: place.location(), found: text.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Reads the facts back; `place` is for the error.
    pub(crate) fn from_metadata(place: &Place, metadata: &ParquetMetaData) -> Result<Self, LakeError> {
        Self::known_layout(place, metadata)?;
        let empty = Vec::new();
        let pairs = metadata.file_metadata().key_value_metadata().unwrap_or(&empty);
        let text = |key: &str| pairs.iter().find(|kv| kv.key.strip_prefix(PREFIX) == Some(key)).and_then(|kv| kv.value.clone());
        let number = |key: &'static str| -> Result<Option<u64>, LakeError> {
            let bad = |_| LakeError::Footer { path: place.location(), key };
            text(key).map(|value| value.parse().map_err(bad)).transpose()
        };
        let time = |key: &'static str| -> Result<Option<Timestamp>, LakeError> {
            let bad = |_| LakeError::Footer { path: place.location(), key };
            text(key).map(|value| value.parse().map_err(bad)).transpose()
        };
        let needed = |key: &'static str| -> Result<u64, LakeError> {
            number(key)?.ok_or(LakeError::Footer { path: place.location(), key })
        };
        let word = |key: &'static str| text(key).ok_or(LakeError::Footer { path: place.location(), key });
        Ok(Self {
            topic: text("topic"),
            start: number("start")?,
            end: number("end")?,
            records: needed("records")?,
            rows: needed("rows")?,
            rejects: needed("rejects")?,
            repeats: needed("repeats")?,
            min_at: time("min_at")?,
            max_at: time("max_at")?,
            tables: text("tables"),
            inputs: text("inputs"),
            writer_epoch: word("writer_epoch")?,
            content_hash: word("content_hash")?,
        })
    }
}
