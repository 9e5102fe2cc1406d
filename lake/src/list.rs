//! What files there are. Names that are not ours are left alone, but for Parquet files among the closed hours: whoever reads
//! those by a glob would count their rows, and we would not, so they are refused by name.

use schemas::{HOUR_MS, Timestamp, Window, tables::Table};

use crate::{ClosedKey, Footer, HotKey, Lake, LakeError, Place, path::TopicId, read};

/// A hot file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HotFile {
    /// Its name.
    pub key: HotKey,
    /// Where it lies.
    pub path: Place,
}

/// A file of a closed hour.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClosedFile {
    /// Its name.
    pub key: ClosedKey,
    /// Where it lies.
    pub path: Place,
}

impl Lake {
    /// Hot files of a table, by topic id, partition and first offset. Opens none of them.
    pub fn hot_files(&self, table: &'static Table) -> Result<Vec<HotFile>, LakeError> {
        self.hot_below(table, &format!("_hot/{}", table.name))
    }

    /// The newest hot file of one partition and its footer: where a restart goes on (at `end + 1`). Opens that file only.
    pub fn hot_head(
        &self,
        table: &'static Table,
        topic_id: &TopicId,
        partition: u32,
    ) -> Result<Option<(HotFile, Footer)>, LakeError> {
        let folder = HotKey { topic_id: topic_id.clone(), partition, start: 0 }.folder(table);
        let newest = self.hot_below(table, &folder)?.pop();
        newest.map(|file| read::footer(&file.path).map(|footer| (file, footer))).transpose()
    }

    fn hot_below(&self, table: &'static Table, folder: &str) -> Result<Vec<HotFile>, LakeError> {
        let keys = self.store.list(folder, &|_| true)?;
        let file = |key: &String| hot_key(table, key).map(|found| HotFile { key: found, path: self.place(key) });
        let mut files: Vec<HotFile> = keys.iter().filter_map(file).collect();
        files.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(files)
    }

    /// Files of closed hours of a table, by hour and shard; only of hours that `window` touches, where given.
    pub fn closed_files(&self, table: &'static Table, window: Option<Window>) -> Result<Vec<ClosedFile>, LakeError> {
        let outside = |hour: Timestamp| window.is_some_and(|w| hour >= w.to() || hour.plus_ms(HOUR_MS) <= w.from());
        // A bucket is listed whole; of one hour, or of some of one day, that day is enough.
        let day =
            window.map(|w| (w.from().date_hour().0, w.to().plus_ms(-1).date_hour().0)).filter(|(first, last)| first == last);
        let root = match day {
            Some((day, _)) => format!("{}/date={day}", table.name),
            None => table.name.to_owned(),
        };
        let mut files = Vec::new();
        for key in self.store.list(&root, &|folder| hour_of(folder).is_none_or(|hour| !outside(hour)))? {
            let (folder, name) = key.trim_end_matches('/').rsplit_once('/').unwrap_or_default();
            let hour = hour_of(folder);
            if hour.is_some_and(outside) {
                continue;
            }
            let shard = name.strip_prefix("part-").and_then(|n| n.strip_suffix(".parquet")).and_then(|n| n.parse().ok());
            let found = hour.zip(shard).map(|(hour, shard)| ClosedKey { hour, shard });
            // One spelling of each name only: `part-0` beside `part-00000` would be the same hour twice.
            match found.filter(|found| found.path(table) == key) {
                Some(found) => files.push(ClosedFile { key: found, path: self.place(&key) }),
                None if name.ends_with(".parquet") => return Err(LakeError::Stray(self.place(&key).location())),
                None => {}
            }
        }
        files.sort_by_key(|file| file.key);
        Ok(files)
    }
}

/// The hot key that a file's name spells, if it is one of ours.
fn hot_key(table: &Table, key: &str) -> Option<HotKey> {
    let mut parts = key.split('/').skip(2);
    let topic_id = TopicId::parse(parts.next()?).ok()?;
    let partition = parts.next()?.parse().ok()?;
    let start = parts.next()?.strip_suffix(".parquet")?.parse().ok()?;
    let found = HotKey { topic_id, partition, start };
    (found.path(table) == key).then_some(found)
}

/// The hour that a folder `.../date=.../hour=...` is of.
fn hour_of(folder: &str) -> Option<Timestamp> {
    let (rest, hour) = folder.rsplit_once("/hour=")?;
    let (_, date) = rest.rsplit_once("/date=")?;
    format!("{date}T{hour}:00:00Z").parse().ok()
}
