//! What is remembered of a GPU for as long as the process runs, whatever becomes of its driver: counters that only grow, and XIDs.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use crate::source::Identity;

/// Events of a GPU that are kept for counts by window.
const KEPT_EVENTS: usize = 1024;
/// Different XID codes, and different faults by field, that are told apart.
const MOST_KINDS: usize = 512;

/// A GPU's past.
#[derive(Debug)]
pub struct Record {
    /// UUID.
    pub uuid: String,
    /// Index that its lines have: NVML's at first sight, and for as long as this process runs.
    pub gpu: u32,
    past: Mutex<Past>,
}

#[derive(Debug, Default)]
struct Past {
    identity: Option<Arc<Identity>>,
    pci: String,
    errors: BTreeMap<(u16, &'static str), u64>,
    xids: BTreeMap<(u64, Option<u32>), Xid>,
    last_xid: Option<u64>,
    events: VecDeque<(Instant, u64)>,
    watched: bool,
}

/// XIDs of one code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid {
    /// How many.
    pub count: u64,
    /// When the last one came.
    pub last: SystemTime,
}

impl Record {
    /// A GPU without a past.
    pub fn new(uuid: String, gpu: u32) -> Self {
        Self { uuid, gpu, past: Mutex::default() }
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it was called last, and where it was.
    pub fn seen_as(&self, identity: &Arc<Identity>, pci: &str) {
        let mut past = self.past();
        past.identity = Some(identity.clone());
        pci.clone_into(&mut past.pci);
    }

    /// What it was called last.
    pub fn identity(&self) -> Option<Arc<Identity>> {
        self.past().identity.clone()
    }

    /// PCI address that it was seen at last.
    pub fn pci(&self) -> String {
        self.past().pci.clone()
    }

    /// Counts a fault of each of `fields`.
    pub fn failed(&self, fields: &[u16], code: &'static str) {
        let mut past = self.past();
        for field in fields {
            let known = past.errors.len();
            match past.errors.get_mut(&(*field, code)) {
                Some(count) => *count += 1,
                None if known < MOST_KINDS => drop(past.errors.insert((*field, code), 1)),
                None => {}
            }
        }
    }

    /// Faults by field and code.
    pub fn errors(&self) -> Vec<((u16, &'static str), u64)> {
        self.past().errors.iter().map(|(key, count)| (*key, *count)).collect()
    }

    /// That its XIDs are waited for, or no longer.
    pub fn watched(&self, watched: bool) {
        self.past().watched = watched;
    }

    /// An XID of the GPU, or of an instance of it.
    pub fn xid(&self, code: u64, gpu_instance: Option<u32>, now: Instant, at: SystemTime) {
        let mut past = self.past();
        past.last_xid = Some(code);
        if past.events.len() == KEPT_EVENTS {
            past.events.pop_front();
        }
        past.events.push_back((now, code));
        let known = past.xids.len();
        match past.xids.get_mut(&(code, gpu_instance)) {
            Some(xid) => (xid.count, xid.last) = (xid.count + 1, at),
            None if known < MOST_KINDS => drop(past.xids.insert((code, gpu_instance), Xid { count: 1, last: at })),
            None => {}
        }
    }

    /// XIDs by code and instance since this process began.
    pub fn xids(&self) -> Vec<((u64, Option<u32>), Xid)> {
        self.past().xids.iter().map(|(key, xid)| (*key, *xid)).collect()
    }

    /// The last XID; 0 where there was none while they were waited for; none where nobody waits for them.
    pub fn last_xid(&self) -> Option<u64> {
        let past = self.past();
        past.last_xid.or(past.watched.then_some(0))
    }

    /// XIDs by code in the `window` before `now`; none where nobody waits for them.
    pub fn xids_within(&self, window: Duration, now: Instant) -> Option<BTreeMap<u64, u64>> {
        let past = self.past();
        if !past.watched && past.last_xid.is_none() {
            return None;
        }
        let within = past.events.iter().filter(|(at, _)| now.saturating_duration_since(*at) <= window);
        let mut counts = BTreeMap::new();
        for (_, code) in within {
            *counts.entry(*code).or_default() += 1;
        }
        Some(counts)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn xids_are_counted_by_code_and_window() {
        let record = Record::new("GPU-x".into(), 0);
        let (began, at) = (Instant::now(), SystemTime::UNIX_EPOCH);
        assert_eq!((record.last_xid(), record.xids_within(Duration::MAX, began)), (None, None));
        record.watched(true);
        assert_eq!(record.last_xid(), Some(0));
        record.xid(31, None, began, at);
        record.xid(31, None, began + Duration::from_secs(10), at + Duration::from_secs(10));
        record.xid(79, Some(3), began + Duration::from_secs(20), at);
        assert_eq!(record.last_xid(), Some(79));
        let now = began + Duration::from_secs(25);
        let counts = record.xids_within(Duration::from_secs(15), now).unwrap();
        assert_eq!(counts, BTreeMap::from([(31, 1), (79, 1)]));
        assert_eq!(record.xids()[0], ((31, None), Xid { count: 2, last: at + Duration::from_secs(10) }));
        assert_eq!(record.xids()[1].0, (79, Some(3)));
    }

    #[test]
    fn a_storm_of_faults_does_not_grow_without_end() {
        let record = Record::new("GPU-x".into(), 0);
        for field in 0..2000 {
            record.failed(&[field], "UNKNOWN");
            record.xid(u64::from(field), None, Instant::now(), SystemTime::UNIX_EPOCH);
        }
        record.failed(&[0], "UNKNOWN");
        assert_eq!((record.errors().len(), record.errors()[0]), (MOST_KINDS, ((0, "UNKNOWN"), 2)));
        assert_eq!(record.xids().len(), MOST_KINDS);
    }
}
