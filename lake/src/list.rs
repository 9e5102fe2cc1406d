//! What files there are. Names that are not ours are left alone, but for Parquet files among the closed hours: whoever reads
//! those by a glob would count their rows, and we would not, so they are refused by name.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use schemas::{HOUR_MS, Timestamp, Window, tables::Table};

use crate::{ClosedKey, Footer, HotKey, Lake, LakeError, path::TopicId, read};

/// A hot file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HotFile {
    /// Its name.
    pub key: HotKey,
    /// Where it lies.
    pub path: PathBuf,
}

/// A file of a closed hour.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClosedFile {
    /// Its name.
    pub key: ClosedKey,
    /// Where it lies.
    pub path: PathBuf,
}

impl Lake {
    /// Hot files of a table, by topic id, partition and first offset.
    pub fn hot_files(&self, table: &'static Table) -> Result<Vec<HotFile>, LakeError> {
        let mut files = Vec::new();
        let root = self.root.join("_hot").join(table.name);
        for (topic, folder) in entries(&root)? {
            let Ok(topic_id) = TopicId::parse(&topic) else { continue };
            for (partition, folder) in entries(&folder)? {
                let Ok(partition) = partition.parse() else { continue };
                for (name, path) in entries(&folder)? {
                    let Some(start) = name.strip_suffix(".parquet").and_then(|n| n.parse().ok()) else { continue };
                    files.push(HotFile { key: HotKey { topic_id: topic_id.clone(), partition, start }, path });
                }
            }
        }
        files.sort();
        Ok(files)
    }

    /// The newest hot file of one partition and its footer: where a restart goes on (at `end + 1`).
    pub fn hot_head(
        &self,
        table: &'static Table,
        topic_id: &TopicId,
        partition: u32,
    ) -> Result<Option<(HotFile, Footer)>, LakeError> {
        let folder = self.root.join(HotKey { topic_id: topic_id.clone(), partition, start: 0 }.folder(table));
        let newest = entries(&folder)?
            .into_iter()
            .filter_map(|(name, path)| Some((name.strip_suffix(".parquet")?.parse::<u64>().ok()?, path)))
            .max_by_key(|(start, _)| *start);
        newest
            .map(|(start, path)| {
                let footer = read::footer(&path)?;
                Ok((HotFile { key: HotKey { topic_id: topic_id.clone(), partition, start }, path }, footer))
            })
            .transpose()
    }

    /// Files of closed hours of a table, by hour and shard; only of hours that `window` touches, where given.
    pub fn closed_files(&self, table: &'static Table, window: Option<Window>) -> Result<Vec<ClosedFile>, LakeError> {
        let mut files = Vec::new();
        let stray = |name: &str, path: &Path| {
            if name.ends_with(".parquet") { Err(LakeError::Stray(path.to_owned())) } else { Ok(()) }
        };
        for (date, path) in entries(&self.root.join(table.name))? {
            stray(&date, &path)?;
            for (hour, path) in entries(&path)? {
                stray(&hour, &path)?;
                let start = hour_of(&date, &hour);
                if start.zip(window).is_some_and(|(start, w)| start >= w.to() || start.plus_ms(HOUR_MS) <= w.from()) {
                    continue;
                }
                for (name, path) in entries(&path)? {
                    let shard = name.strip_prefix("part-").and_then(|n| n.strip_suffix(".parquet")).and_then(|n| n.parse().ok());
                    let key = start.zip(shard).map(|(hour, shard)| ClosedKey { hour, shard });
                    // One spelling of each name only: `part-0` beside `part-00000` would be the same hour twice.
                    match key.filter(|key| path.ends_with(key.path(table)) && !path.is_dir()) {
                        Some(key) => files.push(ClosedFile { key, path }),
                        None => stray(&name, &path)?,
                    }
                }
            }
        }
        files.sort();
        Ok(files)
    }
}

/// The hour that the folders `date=...` and `hour=...` name.
fn hour_of(date: &str, hour: &str) -> Option<Timestamp> {
    let (date, hour) = (date.strip_prefix("date=")?, hour.strip_prefix("hour=")?);
    format!("{date}T{hour}:00:00Z").parse().ok()
}

/// Names and paths in a folder, sorted; none where the folder is not there.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, LakeError> {
    let listing = match fs::read_dir(folder) {
        Ok(listing) => listing,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Vec::new()),
        Err(error) => return Err(LakeError::io("list", folder)(error)),
    };
    let mut names = Vec::new();
    for entry in listing {
        let entry = entry.map_err(LakeError::io("list", folder))?;
        if let Ok(name) = entry.file_name().into_string() {
            names.push((name, entry.path()));
        }
    }
    names.sort();
    Ok(names)
}
