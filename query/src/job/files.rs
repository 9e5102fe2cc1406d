//! Which closed files stand behind which hour, and what they are worth: the digest that tells an hour to be done again.

use std::{cell::RefCell, collections::BTreeMap};

use lake::{ClosedFile, ClosedKey, Lake, LakeError, Place, read, scan::NodeRange};
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
    /// The first hour that has its inputs, where retention has removed earlier ones: what was handed on to it is gone.
    frozen: Option<Timestamp>,
    /// Content hashes of files that the job does not write, as they were when it first asked.
    hashes: RefCell<BTreeMap<Place, String>>,
}

impl Files {
    /// Lists the closed files of `lake`.
    pub(crate) fn list(lake: &Lake) -> Result<Self, LakeError> {
        let frozen = lake.raw_from()?;
        let mut files: BTreeMap<Timestamp, Vec<(Source, &'static str, ClosedFile)>> = BTreeMap::new();
        for (name, source) in INPUTS {
            for file in lake.closed_files(tables::get(name), None)? {
                // What retention was stopped at before it was done.
                if frozen.is_some_and(|from| file.key.hour < from) {
                    continue;
                }
                files.entry(file.key.hour).or_default().push((source, name, file));
            }
        }
        Ok(Self { files, frozen, hashes: RefCell::default() })
    }

    /// Hours with any input, in order.
    pub(crate) fn hours(&self) -> impl Iterator<Item = Timestamp> {
        self.files.keys().copied()
    }

    /// Whether the raw rows of an hour are still in the lake, and what was handed on to it.
    pub(crate) fn has(&self, hour: Timestamp) -> bool {
        self.files.contains_key(&hour) && !self.is_frozen(hour)
    }

    /// Whether the hour's rows stand as they are, for what they were made from is not all there.
    pub(crate) fn is_frozen(&self, hour: Timestamp) -> bool {
        self.frozen == Some(hour)
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
            // Which hour handed on is of no matter, only what.
            let place = if carried { CARRIED } else { part.path.key() };
            digest.update(format!("\n{place} {hash}"));
        }
        Ok(lake::encode::hex(&digest.finalize()))
    }

    fn hash(&self, path: &Place) -> Result<String, LakeError> {
        if let Some(hash) = self.hashes.borrow().get(path) {
            return Ok(hash.clone());
        }
        let hash = read::footer(path)?.content_hash;
        self.hashes.borrow_mut().insert(path.clone(), hash.clone());
        Ok(hash)
    }
}

/// What an hour handed on, where it was done.
fn carried_file(lake: &Lake, hour: Timestamp) -> Option<Part> {
    let table = tables::get(CARRIED);
    let path = lake.place(&ClosedKey { hour, shard: 0 }.path(table));
    // What cannot be looked at is complained about when it is read.
    path.exists().unwrap_or(true).then_some(Part { source: Source::Allocations, table, path })
}
