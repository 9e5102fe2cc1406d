//! What was told before, from the end of the log: the state of a leader that begins.
//!
//! Every state that lasts is published again within ten minutes, so the last half hour of the log has all of them, as long as
//! someone led in it; before a pause of all leaders, the half hour before its last message. Record times are those of publishing.

use super::books::Recalled;
use crate::transport::{Topic, TransportError};
use std::collections::BTreeMap;

/// How far back from the last message is read: three snapshots.
pub const BACK_MS: i64 = 1_800_000;
const FETCH_BYTES: usize = 4 << 20;

/// The latest states of `cluster` that the end of `topic` tells, by what they are states of. `read` reads one message.
pub fn recall(
    topic: &dyn Topic,
    cluster: &str,
    read: fn(&[u8], &str) -> Option<Recalled>,
) -> Result<Vec<Recalled>, TransportError> {
    let mut latest: BTreeMap<(u8, String, String), Recalled> = BTreeMap::new();
    for partition in 0..topic.partitions() {
        let bounds = topic.bounds(partition)?;
        let mut next = begin(topic, partition)?;
        while next < bounds.end {
            let fetched = topic.fetch(partition, next, FETCH_BYTES)?;
            for message in &fetched.messages {
                // One that cannot be read is the sink's to refuse.
                let Some(state) = read(&message.value, cluster) else { continue };
                let id = state.id();
                if latest.get(&id).is_none_or(|known| known.order() <= state.order()) {
                    latest.insert(id, state);
                }
            }
            if fetched.next <= next {
                break;
            }
            next = fetched.next;
        }
    }
    // Holdings before demand, so that a pod that holds is not taken for one that waits.
    Ok(latest.into_values().collect())
}

/// Where the last half hour of a partition begins.
pub(super) fn begin(topic: &dyn Topic, partition: u32) -> Result<u64, TransportError> {
    let bounds = topic.bounds(partition)?;
    if bounds.start == bounds.end {
        return Ok(bounds.start);
    }
    let last = time_at(topic, partition, bounds.end - 1)?.or(time_at(topic, partition, bounds.start)?).unwrap_or(0);
    first_since(topic, partition, bounds.start, bounds.end, last.saturating_sub(BACK_MS))
}

/// Time of the first message at or after `offset`; none where there is none.
fn time_at(topic: &dyn Topic, partition: u32, offset: u64) -> Result<Option<i64>, TransportError> {
    Ok(topic.fetch(partition, offset, 1)?.messages.first().map(|message| message.at_ms))
}

/// An offset before which every message is older than `since`, by halving: times grow along the log, nearly.
fn first_since(topic: &dyn Topic, partition: u32, start: u64, end: u64, since: i64) -> Result<u64, TransportError> {
    let (mut low, mut high) = (start, end);
    while low < high {
        let middle = low + (high - low) / 2;
        match time_at(topic, partition, middle)? {
            Some(at) if at < since => low = middle + 1,
            Some(_) | None => high = middle,
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::publish::{self, ALLOCATIONS};
    use crate::transport::Record;
    use crate::transport::local::{Log, Options, TopicSpec};
    use schemas::proto::Holding;

    #[test]
    fn the_last_half_hour_is_read_and_the_latest_state_stands() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), &[TopicSpec { name: ALLOCATIONS, partitions: 3 }], Options::default()).unwrap();
        let topic = log.topic(ALLOCATIONS).unwrap();
        let state = |node: usize, id: &str, minute: i64, revision: u64| {
            let holding = Holding {
                cluster: "c".into(),
                node: format!("n{node}"),
                source: "api".into(),
                id: id.into(),
                observed_at_ms: minute * 60_000,
                revision,
                bound_ms: Some(1),
                ..Holding::default()
            };
            Record { at_ms: minute * 60_000, ..publish::holding(holding) }
        };
        // A pod that ended in minute 20 and was told of once more in minute 30; one on each of many nodes, until minute 100.
        let mut records = vec![state(0, "old", 20, 1), state(0, "old", 30, 1)];
        for minute in (0..=100).step_by(10) {
            records.extend((0..20).map(|node| state(node, "live", minute, minute.unsigned_abs())));
        }
        records.sort_by_key(|r| r.at_ms);
        topic.produce(&records).unwrap();
        let got = recall(&*topic, "c", Recalled::allocation).unwrap();
        assert_eq!(got.len(), 20);
        assert!(got.iter().all(|state| state.order() == (6_000_000, 100)), "{got:?}");
        assert!(recall(&*topic, "other", Recalled::allocation).unwrap().is_empty());
        let offset = first_since(&*topic, 0, 0, topic.bounds(0).unwrap().end, 6_000_000).unwrap();
        assert!(offset > 0, "the beginning of the log is not read");
    }
}
