//! What retention has taken away, so that what is left can still be proven whole: the offsets whose hot files are gone, and the
//! states of intervals that those files told of and that go on.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use schemas::{Timestamp, tables::Table};
use serde::{Deserialize, Serialize};

use crate::{Footer, Lake, LakeError, Place, Version, encode};

/// Key of the offsets.
const KEY: &str = "_state/removed.json";
/// Key of the first hour whose inputs are there.
const RAW_KEY: &str = "_state/raw.json";

/// Offsets whose hot files retention has taken away, or is about to: their rows are in closed hours. Half-open ranges by
/// `topic id/partition`, in order, no two of which touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed(BTreeMap<String, Vec<(u64, u64)>>);

impl Removed {
    /// Ranges of a partition, `[from, to)`.
    pub fn of(&self, part: &str) -> &[(u64, u64)] {
        self.0.get(part).map_or(&[], Vec::as_slice)
    }

    /// Whether an offset is in one of them.
    pub fn holds(&self, part: &str, offset: u64) -> bool {
        self.of(part).iter().any(|(from, to)| (*from..*to).contains(&offset))
    }

    /// Adds the offsets `[from, to)`.
    pub fn add(&mut self, part: &str, from: u64, to: u64) {
        let ranges = self.0.entry(part.to_owned()).or_default();
        ranges.push((from, to));
        ranges.sort_unstable();
        ranges.dedup_by(|later, first| {
            let touches = later.0 <= first.1;
            if touches {
                first.1 = first.1.max(later.1);
            }
            touches
        });
    }

    /// How many offsets these are.
    pub fn offsets(&self) -> u64 {
        self.0.values().flatten().map(|(from, to)| to - from).sum()
    }
}

#[derive(Serialize, Deserialize)]
struct RawFrom {
    from: Timestamp,
}

impl Lake {
    /// What retention has taken away, and which writing of that this is.
    pub fn removed(&self) -> Result<(Removed, Option<Version>), LakeError> {
        let Some((text, version)) = self.store.read(KEY)? else { return Ok((Removed::default(), None)) };
        let bad = |source| LakeError::Removed { path: self.place(KEY).location(), source };
        let removed: Removed = serde_json::from_slice(&text).map_err(bad)?;
        let ordered = |ranges: &Vec<(u64, u64)>| {
            ranges.iter().all(|(from, to)| from < to) && ranges.windows(2).all(|pair| pair[0].1 < pair[1].0)
        };
        if !removed.0.values().all(ordered) {
            return Err(bad(serde::de::Error::custom("its ranges are not in order")));
        }
        Ok((removed, Some(version)))
    }

    /// Says what is about to be taken away, before it is. False where another writer has been there since `over`.
    pub fn set_removed_over(&self, removed: &Removed, over: Option<&Version>) -> Result<bool, LakeError> {
        let bad = |source| LakeError::Removed { path: self.place(KEY).location(), source };
        let text = serde_json::to_vec_pretty(removed).map_err(bad)?;
        Ok(self.store.replace_if(KEY, text, over)?.is_some())
    }

    /// The first closed hour that has what its hour rows were made from, where retention has removed that of earlier ones. Its
    /// own rows were made from the hour before too, so they are not made anew.
    pub fn raw_from(&self) -> Result<Option<Timestamp>, LakeError> {
        let Some((text, _)) = self.store.read(RAW_KEY)? else { return Ok(None) };
        let bad = |source| LakeError::Removed { path: self.place(RAW_KEY).location(), source };
        serde_json::from_slice::<RawFrom>(&text).map(|raw| Some(raw.from)).map_err(bad)
    }

    /// Says that what hours before `from` were made from is about to be removed.
    pub fn set_raw_from(&self, from: Timestamp) -> Result<(), LakeError> {
        let bad = |source| LakeError::Removed { path: self.place(RAW_KEY).location(), source };
        self.store.replace(RAW_KEY, serde_json::to_vec(&RawFrom { from }).map_err(bad)?)
    }

    /// Where the states of a table's intervals stand that go on, as its hot files told them.
    pub fn carried(&self, table: &'static Table) -> Place {
        self.place(&carried_key(table))
    }

    /// Writes them over what was there; none where another writer has been there since `over`.
    pub fn publish_carried_over(
        &self,
        table: &'static Table,
        rows: &RecordBatch,
        mut footer: Footer,
        over: Option<&Version>,
    ) -> Result<Option<Version>, LakeError> {
        let bytes = encode::file(table, std::slice::from_ref(rows), &mut footer)?;
        self.store.replace_if(&carried_key(table), bytes, over)
    }
}

fn carried_key(table: &Table) -> String {
    format!("_state/carried-{}.parquet", table.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let mut removed = Removed::default();
        for (from, to) in [(10, 20), (0, 5), (30, 31), (5, 7), (18, 25)] {
            removed.add("t/00000", from, to);
        }
        assert_eq!(removed.of("t/00000"), [(0, 7), (10, 25), (30, 31)]);
        assert!(removed.holds("t/00000", 6) && !removed.holds("t/00000", 7) && !removed.holds("u/00000", 6));
        assert_eq!(removed.offsets(), 23);
    }
}
