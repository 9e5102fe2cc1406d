//! Which closed files stand behind which hour, and what they are worth: the digest that tells an hour to be done again.

use std::{cell::RefCell, collections::BTreeMap, path::Path, path::PathBuf};

use lake::{ClosedFile, ClosedKey, Lake, LakeError, read, scan::NodeRange};
use ledger::batch::Source;
use schemas::{HOUR_MS, Timestamp, tables};
use sha2::{Digest, Sha256};

use super::{CARRIED, LEDGER_VERSION};
use crate::account::{Part, Reach};

/// Tables that hours are made from.
const INPUTS: [(&str, Source); 4] = [
    ("gpu_samples", Source::GpuSamples),
    ("scrapes", Source::Scrapes),
    ("allocations", Source::Allocations),
    ("nodes", Source::Nodes),
];

/// Closed files of the inputs by hour.
pub(crate) struct Files {
    files: BTreeMap<Timestamp, Vec<(Source, &'static str, ClosedFile)>>,
    /// Content hashes of files that the job does not write, as they were when it first asked.
    hashes: RefCell<BTreeMap<PathBuf, String>>,
}

impl Files {
    /// Lists the closed files of `lake`.
    pub(crate) fn list(lake: &Lake) -> Result<Self, LakeError> {
        let mut files: BTreeMap<Timestamp, Vec<(Source, &'static str, ClosedFile)>> = BTreeMap::new();
        for (name, source) in INPUTS {
            for file in lake.closed_files(tables::get(name), None)? {
                files.entry(file.key.hour).or_default().push((source, name, file));
            }
        }
        Ok(Self { files, hashes: RefCell::default() })
    }

    /// Hours with any input, in order.
    pub(crate) fn hours(&self) -> impl Iterator<Item = Timestamp> {
        self.files.keys().copied()
    }

    /// Whether the raw rows of an hour are still in the lake.
    pub(crate) fn has(&self, hour: Timestamp) -> bool {
        self.files.contains_key(&hour)
    }

    /// The last hour with any input before `hour`: the one that hands on to it.
    pub(crate) fn before(&self, hour: Timestamp) -> Option<Timestamp> {
        self.files.range(..hour).next_back().map(|(hour, _)| *hour)
    }

    /// The files behind an hour, with what the hour `before` handed on.
    pub(crate) fn reach(&self, lake: &Lake, hour: Timestamp, before: Option<Timestamp>) -> Reach {
        let mut reach = Reach { nodes: NodeRange::default(), ..Reach::default() };
        for near in [hour.plus_ms(-HOUR_MS), hour, hour.plus_ms(HOUR_MS)] {
            for (source, table, file) in self.files.get(&near).into_iter().flatten() {
                let part = Part { source: *source, table: tables::get(table), path: file.path.clone() };
                match source {
                    Source::GpuSamples | Source::Scrapes => reach.instants.push(part),
                    Source::Allocations | Source::Nodes if near == hour => reach.intervals.push(part),
                    Source::Allocations | Source::Nodes => {}
                }
            }
        }
        reach.intervals.extend(before.and_then(|before| carried_file(lake, before)));
        reach
    }

    /// Holdings of an hour: its own, and what was handed on to it.
    pub(crate) fn allocations(&self, lake: &Lake, hour: Timestamp, before: Option<Timestamp>) -> Vec<Part> {
        let reach = self.reach(lake, hour, before);
        reach.intervals.into_iter().filter(|part| part.source == Source::Allocations).collect()
    }

    /// Digest of the files behind an hour.
    pub(crate) fn digest(&self, lake: &Lake, hour: Timestamp, before: Option<Timestamp>) -> Result<String, LakeError> {
        let reach = self.reach(lake, hour, before);
        let mut digest = Sha256::new();
        digest.update(LEDGER_VERSION);
        for part in reach.intervals.iter().chain(&reach.instants) {
            let carried = part.table.name == CARRIED;
            let hash = if carried { read::footer(&part.path)?.content_hash } else { self.hash(&part.path)? };
            let place = part.path.strip_prefix(lake.root()).unwrap_or(&part.path);
            // Which hour handed on is of no matter, only what.
            let place = if carried { CARRIED.into() } else { place.to_string_lossy() };
            digest.update(format!("\n{place} {hash}"));
        }
        Ok(lake::encode::hex(&digest.finalize()))
    }

    fn hash(&self, path: &Path) -> Result<String, LakeError> {
        if let Some(hash) = self.hashes.borrow().get(path) {
            return Ok(hash.clone());
        }
        let hash = read::footer(path)?.content_hash;
        self.hashes.borrow_mut().insert(path.to_owned(), hash.clone());
        Ok(hash)
    }
}

/// What an hour handed on, where it was done.
fn carried_file(lake: &Lake, hour: Timestamp) -> Option<Part> {
    let table = tables::get(CARRIED);
    let path = lake.root().join(ClosedKey { hour, shard: 0 }.path(table));
    path.exists().then_some(Part { source: Source::Allocations, table, path })
}
