//! The proof from the lake alone that nothing taken was lost or taken twice (D6): hot files tile their offsets without gap or
//! overlap, and closed hours were made from all of them.

use std::collections::BTreeMap;

use schemas::{HOUR_MS, Timestamp, tables};

use crate::{ClosedKey, Footer, Lake, LakeError, path::TopicId, read};

/// What was found of the offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tiles {
    /// Partitions with hot files.
    pub partitions: usize,
    /// Intervals of offsets, each published once.
    pub intervals: usize,
    /// Offsets in them.
    pub offsets: u64,
    /// (hot file, closed hour) pairs that had to stand on each other, and do.
    pub pairs: usize,
    /// What is wrong, by partition and offset.
    pub faults: Vec<String>,
}

/// Tables whose rows are instants, so that a hot file's footer tells which hours it has rows of.
const INSTANTS: [&str; 3] = ["gpu_samples", "extra_samples", "scrapes"];

type Files = BTreeMap<u64, BTreeMap<&'static str, Footer>>;

impl Lake {
    /// Looks at the footers of all hot files, and of the closed hours that they have rows of.
    pub fn tiles(&self) -> Result<Tiles, LakeError> {
        let mut partitions: BTreeMap<(TopicId, u32), Files> = BTreeMap::new();
        for table in tables::all() {
            for file in self.hot_files(table)? {
                let footer = read::footer(&file.path)?;
                let files = partitions.entry((file.key.topic_id, file.key.partition)).or_default();
                files.entry(file.key.start).or_default().insert(table.name, footer);
            }
        }
        let mut tiles = Tiles { partitions: partitions.len(), ..Tiles::default() };
        for ((topic, partition), files) in &partitions {
            tiles.partition(&format!("{}/{partition:05}", topic.as_str()), files);
        }
        self.closed_stand_on(&partitions, &mut tiles)?;
        Ok(tiles)
    }

    /// Closed hours have what hot files have of them.
    fn closed_stand_on(&self, partitions: &BTreeMap<(TopicId, u32), Files>, tiles: &mut Tiles) -> Result<(), LakeError> {
        let Some(watermark) = self.watermark()? else { return Ok(()) };
        let mut inputs: BTreeMap<(&str, Timestamp), BTreeMap<String, u64>> = BTreeMap::new();
        for ((topic, partition), files) in partitions {
            let part = format!("{}/{partition:05}", topic.as_str());
            for (start, tables_of) in files {
                for (name, footer) in tables_of.iter().filter(|(name, _)| INSTANTS.contains(name)) {
                    let (Some(min), Some(max)) = (footer.min_at, footer.max_at) else { continue };
                    // Rows of the hours between may be missing; the ends are there.
                    for hour in [min.hour(), max.hour()] {
                        if hour < watermark.from || hour.plus_ms(HOUR_MS) > watermark.closed_to {
                            continue;
                        }
                        let covered = match inputs.get(&(*name, hour)) {
                            Some(covered) => covered,
                            None => {
                                let path = self.root().join(ClosedKey::of(hour).path(tables::get(name)));
                                let known = if path.exists() {
                                    read::footer(&path)?
                                        .inputs
                                        .and_then(|text| serde_json::from_str(&text).ok())
                                        .unwrap_or_default()
                                } else {
                                    BTreeMap::new()
                                };
                                inputs.entry((name, hour)).or_insert(known)
                            }
                        };
                        if covered.get(&part).is_some_and(|next| next > start) {
                            tiles.pairs += 1;
                        } else {
                            tiles
                                .faults
                                .push(format!("{part}: the closed hour {hour} of {name} lacks the rows of offset {start}"));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl Tiles {
    fn partition(&mut self, part: &str, files: &Files) {
        let mut next: Option<u64> = None;
        for (&start, tables_of) in files {
            match next {
                Some(next) if start > next => {
                    self.faults.push(format!("{part}: offsets {next} to {} are in no file", start - 1));
                }
                Some(next) if start < next => {
                    self.faults.push(format!("{part}: offsets {start} to {} are in two files", next - 1));
                }
                _ => {}
            }
            let anchors: Vec<_> = tables_of.iter().filter(|(_, footer)| footer.tables.is_some()).collect();
            let [(anchor, footer)] = anchors.as_slice() else {
                self.faults.push(format!(
                    "{part}: of the files of offset {start}, {} fix the interval; there must be one",
                    anchors.len()
                ));
                continue;
            };
            let end = footer.end.unwrap_or(start).max(start);
            for name in footer.tables.as_deref().unwrap_or_default().split(',').filter(|name| !name.is_empty()) {
                if !tables_of.contains_key(name) {
                    self.faults.push(format!(
                        "{part}: the file of {name} at offset {start} is missing; the sink makes it when it goes on"
                    ));
                }
            }
            for (name, other) in tables_of.iter().filter(|(name, _)| name != anchor) {
                if other.end.unwrap_or(start) != end {
                    self.faults.push(format!("{part}: {name} and {anchor} at offset {start} end at different offsets"));
                }
            }
            self.intervals += 1;
            self.offsets += end - start + 1;
            next = Some(end + 1);
        }
    }
}
