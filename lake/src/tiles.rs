//! The proof from the lake alone that nothing taken was lost or taken twice (D6): hot files tile their offsets without gap or
//! overlap, and closed hours were made from all of them.

use std::collections::BTreeMap;

use schemas::{HOUR_MS, Timestamp, tables};

use crate::{ClosedKey, Footer, Lake, LakeError, Removed, read};

/// What was found of the offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tiles {
    /// Partitions with hot files.
    pub partitions: usize,
    /// Intervals of offsets, each published once.
    pub intervals: usize,
    /// Offsets in them.
    pub offsets: u64,
    /// Offsets whose files retention has taken away, once their rows were in closed hours.
    pub removed: u64,
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
        let mut partitions: BTreeMap<String, Files> = BTreeMap::new();
        let mut listed = Vec::new();
        for table in tables::all() {
            listed.extend(self.hot_files(table)?.into_iter().map(|file| (table, file)));
        }
        // Read after the listing: a file that is taken away meanwhile is in it.
        let mut removed = self.removed()?.0;
        for (table, file) in listed {
            let part = file.key.part();
            // What retention was stopped at before it was done.
            if removed.holds(&part, file.key.start) {
                continue;
            }
            let footer = match read::footer(&file.path) {
                Err(error) if error.is_gone() => {
                    removed = self.removed()?.0;
                    if removed.holds(&part, file.key.start) {
                        continue;
                    }
                    return Err(error);
                }
                footer => footer?,
            };
            partitions.entry(part).or_default().entry(file.key.start).or_default().insert(table.name, footer);
        }
        for (part, files) in &mut partitions {
            files.retain(|start, _| !removed.holds(part, *start));
        }
        let mut tiles = Tiles { partitions: partitions.len(), removed: removed.offsets(), ..Tiles::default() };
        for (part, files) in &partitions {
            tiles.partition(part, files, &removed);
        }
        self.closed_stand_on(&partitions, &mut tiles)?;
        Ok(tiles)
    }

    /// Closed hours have what hot files have of them.
    fn closed_stand_on(&self, partitions: &BTreeMap<String, Files>, tiles: &mut Tiles) -> Result<(), LakeError> {
        let Some(watermark) = self.watermark()? else { return Ok(()) };
        let mut inputs: BTreeMap<(&str, Timestamp), BTreeMap<String, u64>> = BTreeMap::new();
        for (part, files) in partitions {
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
                                let path = self.place(&ClosedKey::of(hour).path(tables::get(name)));
                                let known = if path.exists()? {
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
                        if covered.get(part).is_some_and(|next| next > start) {
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
    fn partition(&mut self, part: &str, files: &Files, removed: &Removed) {
        let mut gone = removed.of(part).iter().peekable();
        // Every partition is read from its first offset on.
        let mut next = 0;
        for (&start, tables_of) in files {
            while let Some((from, to)) = gone.next_if(|(from, _)| *from < start) {
                self.follows(part, next, *from);
                next = *to;
            }
            self.follows(part, next, start);
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
            next = end + 1;
        }
        // The newest file of a partition is never taken away.
        if let Some((from, to)) = gone.next() {
            self.faults
                .push(format!("{part}: offsets {from} to {} were removed, and nothing that came after them is there", to - 1));
        }
    }

    fn follows(&mut self, part: &str, next: u64, start: u64) {
        if start > next {
            self.faults.push(format!("{part}: offsets {next} to {} are in no file", start - 1));
        } else if start < next {
            self.faults.push(format!("{part}: offsets {start} to {} are in two files", next - 1));
        }
    }
}
