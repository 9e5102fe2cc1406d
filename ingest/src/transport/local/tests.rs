#![allow(clippy::unwrap_used)]

use super::super::Lost;
use super::*;
use std::os::unix::fs::FileExt;

const T: TopicSpec<'static> = TopicSpec { name: "t", partitions: 1 };

fn record(n: usize) -> Record {
    Record { key: b"k".to_vec(), value: format!("value {n}").into_bytes(), at_ms: n as i64 * 1000 }
}

fn small() -> Options {
    Options { segment_bytes: 200, ..Options::default() }
}

fn values(topic: &LocalTopic, from: u64) -> Vec<String> {
    let mut out = Vec::new();
    let mut next = from;
    loop {
        let fetched = topic.fetch(0, next, 100).unwrap();
        if fetched.messages.is_empty() && fetched.next == next {
            return out;
        }
        out.extend(fetched.messages.iter().map(|m| format!("{}:{}", m.offset, String::from_utf8_lossy(&m.value))));
        next = fetched.next;
    }
}

fn last_segment(root: &Path) -> PathBuf {
    let mut all: Vec<_> = fs::read_dir(root.join("t/00000")).unwrap().map(|e| e.unwrap().path()).collect();
    all.retain(|p| p.extension().is_some_and(|e| e == "log"));
    all.sort();
    all.pop().unwrap()
}

#[test]
fn a_torn_end_is_cut_at_every_byte_and_offsets_go_on() {
    let whole = tempfile::tempdir().unwrap();
    let log = Log::open(whole.path(), &[T], Options::default()).unwrap();
    log.topic("t").unwrap().produce(&[record(0)]).unwrap();
    let after_first = fs::metadata(last_segment(whole.path())).unwrap().len();
    log.topic("t").unwrap().produce(&[record(1)]).unwrap();
    drop(log);
    let bytes = fs::read(last_segment(whole.path())).unwrap();
    for cut in after_first..bytes.len() as u64 {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), &[T], Options::default()).unwrap();
        log.topic("t").unwrap().produce(&[record(0)]).unwrap();
        drop(log);
        // A process that died while it wrote the second frame: `end` still says 1.
        fs::write(last_segment(dir.path()), &bytes[..cut as usize]).unwrap();
        let log = Log::open(dir.path(), &[T], Options::default()).unwrap();
        let topic = log.topic("t").unwrap();
        assert_eq!(topic.bounds(0).unwrap(), Bounds { start: 0, end: 1 }, "cut at {cut}");
        assert_eq!(topic.produce(&[record(7)]).unwrap()[0].offset, 1);
        assert_eq!(values(&topic, 0), ["0:value 0", "1:value 7"]);
    }
}

#[test]
fn offsets_that_the_disk_lost_are_not_given_away_again() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), &[T], Options::default()).unwrap();
    let topic = log.topic("t").unwrap();
    topic.produce(&[record(0), record(1), record(2)]).unwrap();
    drop((topic, log));
    let path = last_segment(dir.path());
    let length = fs::metadata(&path).unwrap().len();
    File::options().write(true).open(&path).unwrap().set_len(length - 1).unwrap();
    let log = Log::open(dir.path(), &[T], Options::default()).unwrap();
    let topic = log.topic("t").unwrap();
    assert_eq!(topic.produce(&[record(3)]).unwrap()[0].offset, 3, "offset 2 was taken, and stays lost");
    assert_eq!(values(&topic, 0), ["0:value 0", "1:value 1", "3:value 3"]);
    let hole = topic.fetch(0, 2, 100).unwrap();
    assert_eq!(hole.messages[0].offset, 3);
    assert_eq!(hole.lost, [Lost { from: 2, count: 1, at_ms: Some(3000) }], "and whoever reads it is told");
    assert_eq!(topic.fetch(0, 3, 100).unwrap().lost, []);
}

#[test]
fn a_file_that_another_hand_changed_takes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Log::open(dir.path(), &[T], Options::default()).unwrap();
    let log = open();
    let topic = log.topic("t").unwrap();
    topic.produce(&[record(0), record(1)]).unwrap();
    let path = last_segment(dir.path());
    let length = fs::metadata(&path).unwrap().len();
    File::options().write(true).open(&path).unwrap().set_len(length - 1).unwrap();
    for _ in 0..3 {
        assert!(matches!(topic.produce(&[record(2)]), Err(TransportError::Changed { .. })), "behind a hole nobody would read it");
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), length - 1, "and the file does not look whole again");
    drop((topic, log));
    let log = open();
    let topic = log.topic("t").unwrap();
    assert_eq!(topic.produce(&[record(2)]).unwrap()[0].offset, 2);
    assert_eq!(topic.fetch(0, 0, 1000).unwrap().lost, [Lost { from: 1, count: 1, at_ms: Some(2000) }]);
    fs::remove_dir_all(dir.path()).unwrap();
    let error = topic.produce(&[record(3)]).unwrap_err();
    assert!(error.to_string().contains("changed or removed"), "{error}: what is written into a removed file nobody finds");
}

#[test]
fn damage_in_the_middle_is_an_error_not_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), &[T], small()).unwrap();
    let topic = log.topic("t").unwrap();
    for n in 0..20 {
        topic.produce(&[record(n)]).unwrap();
    }
    let first = dir.path().join("t/00000/00000000000000000000.log");
    File::options().write(true).open(first).unwrap().write_all_at(b"XX", 30).unwrap();
    assert!(matches!(topic.fetch(0, 0, 1000), Err(TransportError::Damaged { .. })));
    assert!(topic.fetch(0, 10, 1000).is_ok(), "what is not damaged is still there");
}

#[test]
fn retention_drops_whole_segments_by_age_and_by_size() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { retention_ms: 10_000, ..small() };
    let log = Log::open(dir.path(), &[T], options).unwrap();
    let topic = log.topic("t").unwrap();
    for n in 0..20 {
        topic.produce(&[record(n)]).unwrap();
    }
    let gone = log.retain(20_000).unwrap();
    let bounds = topic.bounds(0).unwrap();
    assert_eq!((gone, bounds.end), (bounds.start, 20));
    assert!((5..=10).contains(&bounds.start), "{bounds:?}: messages of the last 10 s stay, whole segments go");
    assert!(matches!(topic.fetch(0, 0, 100), Err(TransportError::OutOfRange { bounds: b, .. }) if b == bounds));
    assert_eq!(values(&topic, bounds.start).len() as u64, 20 - bounds.start);
    drop((topic, log));
    let log = Log::open(dir.path(), &[T], Options { retention_bytes: 250, ..small() }).unwrap();
    log.retain(0).unwrap();
    let topic = log.topic("t").unwrap();
    assert!(topic.bounds(0).unwrap().start > bounds.start);
    assert_eq!(topic.produce(&[record(20)]).unwrap()[0].offset, 20);
}

#[test]
fn one_writer_many_readers() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), &[T], small()).unwrap();
    assert!(matches!(Log::open(dir.path(), &[T], small()), Err(TransportError::Locked { .. })));
    let writer = log.topic("t").unwrap();
    let reading = Log::reader(dir.path(), small()).unwrap();
    let reader = reading.topic("t").unwrap();
    assert_eq!(reader.id(), writer.id());
    for n in 0..20 {
        writer.produce(&[record(n)]).unwrap();
        assert_eq!(reader.bounds(0).unwrap(), Bounds { start: 0, end: n as u64 + 1 });
        assert_eq!(values(&reader, n as u64), [format!("{n}:value {n}")]);
    }
    assert!(matches!(reader.produce(&[record(0)]), Err(TransportError::ReadOnly { .. })));
    assert!(matches!(reading.retain(0), Err(TransportError::ReadOnly { .. })));
    drop((log, writer));
    Log::open(dir.path(), &[T], small()).unwrap();
}

#[test]
fn a_reader_does_not_see_what_is_not_yet_durable() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), &[T], Options::default()).unwrap();
    let writer = log.topic("t").unwrap();
    let reading = Log::reader(dir.path(), Options::default()).unwrap();
    let reader = reading.topic("t").unwrap();
    writer.write(&[record(0)]).unwrap();
    assert_eq!(reader.bounds(0).unwrap().end, 0);
    assert_eq!(values(&writer, 0), [""; 0]);
    writer.commit().unwrap();
    assert_eq!(values(&reader, 0), ["0:value 0"]);
}

#[test]
fn a_batch_that_cannot_be_written_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let spec = TopicSpec { name: "t", partitions: 2 };
    let log = Log::open(dir.path(), &[spec], Options { record_bytes: 50, ..small() }).unwrap();
    let topic = log.topic("t").unwrap();
    let keys: Vec<Vec<u8>> = (0..2).map(|p| (0u8..).map(|n| vec![n]).find(|k| partition_of(k, 2) == p).unwrap()).collect();
    let on = |p: usize, bytes: usize| Record { key: keys[p].clone(), value: vec![b'x'; bytes], at_ms: 0 };
    topic.produce(&[on(0, 10), on(1, 10)]).unwrap();
    assert!(matches!(topic.produce(&[on(0, 10), on(1, 51)]), Err(TransportError::TooLarge { bytes: 52, limit: 50 })));
    // The second partition cannot be written: its segment is gone from under it, and a new one cannot be made.
    for _ in 0..6 {
        topic.produce(&[on(1, 40)]).unwrap();
    }
    fs::remove_dir_all(dir.path().join("t/00001")).unwrap();
    let before = topic.bounds(0).unwrap();
    assert!(matches!(topic.produce(&[on(0, 40), on(1, 40)]), Err(TransportError::Changed { .. })));
    topic.produce(&[on(0, 11)]).unwrap();
    let got = topic.fetch(0, before.end, 1000).unwrap();
    assert_eq!(got.messages.len(), 1, "the first partition's part of the failed batch was taken back");
    assert_eq!((got.messages[0].offset, got.messages[0].value.len()), (before.end, 11));
}

#[test]
fn what_a_crash_at_creation_leaves_is_no_topic() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("t/00000")).unwrap();
    fs::write(dir.path().join("t/00000/00000000000000000005.log"), b"half").unwrap();
    assert!(matches!(Log::reader(dir.path(), small()).unwrap().topic("t"), Err(TransportError::NoTopic { .. })));
    let log = Log::open(dir.path(), &[T], small()).unwrap();
    assert_eq!(log.topic("t").unwrap().bounds(0).unwrap(), Bounds { start: 0, end: 0 });
}

#[test]
fn names_and_partitions_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["", "..", "a/b", ".hidden", "ü"] {
        let result = Log::open(dir.path(), &[TopicSpec { name, partitions: 1 }], small());
        assert!(matches!(result, Err(TransportError::BadName(_))), "{name}");
    }
    drop(Log::open(dir.path(), &[T], small()).unwrap());
    let other = Log::open(dir.path(), &[TopicSpec { name: "t", partitions: 2 }], small());
    assert!(matches!(other, Err(TransportError::Partitions { have: 1, want: 2, .. })));
    let log = Log::open(dir.path(), &[T], small()).unwrap();
    assert!(matches!(log.topic("t").unwrap().bounds(1), Err(TransportError::NoPartition { .. })));
    fs::write(dir.path().join("t/topic"), "id ../x\npartitions 1\n").unwrap();
    drop(log);
    assert!(matches!(Log::open(dir.path(), &[T], small()), Err(TransportError::Damaged { .. })));
}

#[test]
fn many_producers_share_syncs_and_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), &[TopicSpec { name: "t", partitions: 3 }], small()).unwrap();
    let topic = log.topic("t").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let topic = topic.clone();
            scope.spawn(move || {
                for n in 0..25 {
                    let record = Record { key: vec![thread], value: vec![thread, n], at_ms: 0 };
                    let position = topic.produce(&[record]).unwrap()[0];
                    let bounds = topic.bounds(position.partition).unwrap();
                    assert!(position.offset < bounds.end, "taken means visible");
                }
            });
        }
    });
    let mut seen: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
    for partition in 0..3 {
        let all = topic.fetch(partition, 0, usize::MAX).unwrap();
        assert_eq!(all.messages.iter().map(|m| m.offset).collect::<Vec<_>>(), (0..all.next).collect::<Vec<_>>());
        for message in all.messages {
            seen.entry(message.value[0]).or_default().push(message.value[1]);
        }
    }
    assert_eq!(seen.len(), 8);
    assert!(seen.values().all(|order| *order == (0..25).collect::<Vec<u8>>()), "one key keeps its order");
}
