//! Closed files that money is made from, listed once.

use std::collections::BTreeMap;

use datafusion::arrow::array::RecordBatch;
use lake::{ClosedFile, Lake, LakeError, read};
use schemas::{HOUR_MS, Timestamp, Window, tables};

use super::CostsError;

/// Closed files by table and hour.
pub(super) struct Files(pub(super) BTreeMap<(&'static str, Timestamp), Vec<ClosedFile>>);

/// Tables that are read, and the one that is written.
const TABLES: [&str; 4] = ["gpu_hours", "nodes", "allocations", "costs"];

impl Files {
    pub(super) fn list(lake: &Lake) -> Result<Self, LakeError> {
        let mut files: BTreeMap<(&'static str, Timestamp), Vec<ClosedFile>> = BTreeMap::new();
        for name in TABLES {
            for file in lake.closed_files(tables::get(name), None)? {
                files.entry((name, file.key.hour)).or_default().push(file);
            }
        }
        Ok(Self(files))
    }

    pub(super) fn of(&self, table: &'static str, hour: Timestamp) -> &[ClosedFile] {
        self.0.get(&(table, hour)).map_or(&[], Vec::as_slice)
    }

    pub(super) fn rows(&self, table: &'static str, hour: Timestamp, columns: &[&str]) -> Result<Vec<RecordBatch>, LakeError> {
        let mut batches = Vec::new();
        for file in self.of(table, hour) {
            batches.extend(read::rows(tables::get(table), &file.path, Some(columns))?);
        }
        Ok(batches)
    }

    /// The first hour with anything.
    pub(super) fn first(&self) -> Timestamp {
        let first = |table: &'static str| {
            let from = (table, Timestamp::from_ms(i64::MIN));
            self.0.range(from..).next().filter(|((name, _), _)| *name == table).map(|((_, hour), _)| *hour)
        };
        ["gpu_hours", "nodes"].into_iter().filter_map(first).min().unwrap_or_default()
    }

    /// The window asked for, where it is on full hours and has rows; else that of the rows.
    pub(super) fn window(&self, asked: Option<Window>) -> Result<Window, CostsError> {
        if let Some(bound) = asked.into_iter().flat_map(|w| [w.from(), w.to()]).find(|bound| bound.hour() != *bound) {
            return Err(CostsError::InsideHour(bound, bound.hour()));
        }
        let hours = || self.0.keys().filter(|(table, _)| *table == "gpu_hours").map(|(_, hour)| *hour);
        let inside = |hour: &Timestamp| asked.is_none_or(|w| *hour >= w.from() && *hour < w.to());
        let none = || {
            let asked = asked.filter(|w| w.to().ms() - w.from().ms() < 200 * 366 * 24 * HOUR_MS);
            CostsError::NoHours(asked.map_or("in the lake".into(), |w| format!("from {} to {}", w.from(), w.to())))
        };
        let (Some(first), Some(last)) = (hours().find(inside), hours().rfind(inside)) else { return Err(none()) };
        // An end of time that nobody gave is the end of the rows.
        let bounded = |at: Timestamp| (1..253_402_300_800_000).contains(&at.ms());
        let from = asked.map(Window::from).filter(|at| bounded(*at)).unwrap_or(first);
        let to = asked.map(Window::to).filter(|at| bounded(*at)).unwrap_or(last.plus_ms(HOUR_MS));
        Window::new(from, to).map_err(|_| none())
    }
}
