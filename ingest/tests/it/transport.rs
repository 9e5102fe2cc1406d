//! What every transport promises, whatever is behind it. A new transport adds one harness and one line at the end.

use ingest::transport::local::{Log, Options, TopicSpec};
use ingest::transport::{Bounds, Record, Topic, TransportError};
use std::sync::Arc;

/// Makes a topic of one transport, and lets go of it and opens it again.
pub trait Harness {
    fn open(&mut self, name: &str, partitions: u32) -> Arc<dyn Topic>;
    fn close(&mut self);
    /// Deletes the topic, so that the next `open` creates it anew.
    fn delete(&mut self, name: &str);
}

struct Local {
    dir: tempfile::TempDir,
    log: Option<Log>,
}

impl Harness for Local {
    fn open(&mut self, name: &str, partitions: u32) -> Arc<dyn Topic> {
        self.close();
        let options = Options { segment_bytes: 500, ..Options::default() };
        let log = Log::open(self.dir.path(), &[TopicSpec { name, partitions }], options).unwrap();
        let topic = log.topic(name).unwrap();
        self.log = Some(log);
        topic
    }

    fn close(&mut self) {
        self.log = None;
    }

    fn delete(&mut self, name: &str) {
        self.close();
        std::fs::remove_dir_all(self.dir.path().join(name)).unwrap();
    }
}

/// Times of records are times.
const EPOCH: i64 = 1_772_445_600_000;

fn record(key: &str, value: &str, at_ms: i64) -> Record {
    Record { key: key.into(), value: value.into(), at_ms }
}

pub fn conformance(mut harness: impl Harness) {
    // A new topic is empty, has an id and the partitions that were asked for.
    let topic = harness.open("strandline.samples", 3);
    let id = topic.id();
    assert_eq!((topic.name(), topic.partitions()), ("strandline.samples", 3));
    for partition in 0..3 {
        assert_eq!(topic.bounds(partition).unwrap(), Bounds { start: 0, end: 0 });
        let empty = topic.fetch(partition, 0, 1000).unwrap();
        assert_eq!((empty.messages.len(), empty.next), (0, 0));
    }
    assert!(topic.produce(&[]).unwrap().is_empty());

    // One key goes to one partition, in order; positions come in order of records.
    let batch: Vec<Record> = (0..60).map(|n| record(&format!("node-{}", n % 6), &format!("v{n}"), EPOCH + n)).collect();
    let positions = topic.produce(&batch).unwrap();
    assert_eq!(positions.len(), 60);
    for key in 0..6 {
        let of_key: Vec<_> = positions.iter().skip(key).step_by(6).collect();
        assert!(of_key.windows(2).all(|w| w[0].partition == w[1].partition && w[0].offset < w[1].offset));
    }
    let used: Vec<u32> = (0..3).filter(|p| positions.iter().any(|at| at.partition == *p)).collect();
    assert!(used.len() > 1, "keys spread over partitions");

    // What was taken is there, at its position, whole; fetched in one piece or in many, and as often as one likes.
    for partition in 0..3 {
        let bounds = topic.bounds(partition).unwrap();
        let all = topic.fetch(partition, bounds.start, usize::MAX).unwrap();
        assert_eq!(all.next, bounds.end);
        let mut pieces = Vec::new();
        let mut next = bounds.start;
        while next < bounds.end {
            let fetched = topic.fetch(partition, next, 1).unwrap();
            assert!(fetched.next > next, "a fetch below the end gets on");
            next = fetched.next;
            pieces.extend(fetched.messages);
        }
        assert_eq!(pieces, all.messages);
        for message in &all.messages {
            let n = positions.iter().position(|p| (p.partition, p.offset) == (partition, message.offset)).unwrap();
            let sent = &batch[n];
            assert_eq!((&*sent.key, &*sent.value, sent.at_ms), (&*message.key, &*message.value, message.at_ms));
        }
        let rest = topic.fetch(partition, bounds.end, 1000).unwrap();
        assert_eq!((rest.messages.len(), rest.next), (0, bounds.end));
        let beyond = topic.fetch(partition, bounds.end + 1, 1000);
        assert!(matches!(beyond, Err(TransportError::OutOfRange { bounds: b, .. }) if b == bounds));
    }
    assert!(matches!(topic.bounds(3), Err(TransportError::NoPartition { .. })));
    assert!(matches!(topic.fetch(3, 0, 1), Err(TransportError::NoPartition { .. })));

    // After a restart everything is as before, and offsets go on.
    let before: Vec<Bounds> = (0..3).map(|p| topic.bounds(p).unwrap()).collect();
    let first = topic.fetch(used[0], 0, usize::MAX).unwrap();
    drop(topic);
    let topic = harness.open("strandline.samples", 3);
    assert_eq!(topic.id(), id);
    assert_eq!((0..3).map(|p| topic.bounds(p).unwrap()).collect::<Vec<_>>(), before);
    assert_eq!(topic.fetch(used[0], 0, usize::MAX).unwrap(), first);
    topic.verify().unwrap();
    assert_eq!(topic.assigned().unwrap(), (0..3).collect(), "nobody shares them out");
    let more = topic.produce(&[record("node-0", "again", EPOCH + 99)]).unwrap()[0];
    assert_eq!(more.offset, before[more.partition as usize].end);

    // A topic that was created anew has another id and begins at 0; who holds the old one learns of it.
    harness.delete("strandline.samples");
    let anew = harness.open("strandline.samples", 3);
    assert!(matches!(topic.verify(), Err(TransportError::Recreated { now, .. }) if now == anew.id()));
    drop(topic);
    let topic = anew;
    assert_ne!(topic.id(), id);
    assert_eq!(topic.bounds(used[0]).unwrap(), Bounds { start: 0, end: 0 });
}

#[test]
fn the_embedded_log_keeps_the_promises() {
    conformance(Local { dir: tempfile::tempdir().unwrap(), log: None });
}
