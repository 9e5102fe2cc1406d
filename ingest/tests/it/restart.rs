//! A restart goes on from the names of files and the newest one's footer, however many there are.

use crate::path::round;
use ingest::publish::SAMPLES;
use ingest::sink::{self, Sink, SinkError};
use ingest::transport::Topic;
use ingest::transport::local::{self, Log, TopicSpec};
use lake::{HotKey, Lake};
use schemas::{Timestamp, tables};
use std::sync::Arc;

#[test]
fn a_restart_opens_the_newest_file_of_each_partition_and_no_other() {
    const PARTITIONS: u32 = 16;
    let dir = tempfile::tempdir().unwrap();
    let spec = TopicSpec { name: SAMPLES, partitions: PARTITIONS };
    let log = Log::open(&dir.path().join("log"), &[spec], local::Options::default()).unwrap();
    let topic = log.topic(SAMPLES).unwrap();
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let open = || Sink::open(lake.clone(), vec![topic.clone() as Arc<dyn Topic>], sink::Options::default()).unwrap();
    let now = Timestamp::from_ms(1_772_445_600_000);
    let mut sink = open();
    for pass in 0..4 {
        let rounds: Vec<_> = (0..200).map(|node| round(&format!("n{node}"), pass, pass as i64)).collect();
        topic.produce(&rounds).unwrap();
        assert!(sink.flush(now).unwrap().files >= 2 * u64::from(PARTITIONS), "every partition has a node");
    }
    drop(sink);
    // Every file but the newest is no Parquet any more: who opens one of them fails.
    let table = tables::get("gpu_samples");
    let mut old = 0;
    for table in [table, tables::get("scrapes"), tables::get("extra_samples"), tables::get("rejects")] {
        let files = lake.hot_files(table).unwrap();
        let newest = |of: &HotKey| files.iter().filter(|f| f.key.part() == of.part()).map(|f| f.key.start).max();
        for file in files.iter().filter(|file| newest(&file.key) != Some(file.key.start)) {
            std::fs::write(file.path.path().unwrap(), "not opened").unwrap();
            old += 1;
        }
    }
    assert!(old > 6 * PARTITIONS, "{old}");
    let mut sink = open();
    topic.produce(&(0..200).map(|node| round(&format!("n{node}"), 9, 9)).collect::<Vec<_>>()).unwrap();
    let report = sink.flush(now).unwrap();
    assert_eq!((report.records, report.unread(), report.flushes.len()), (200, 0, PARTITIONS as usize));
}

#[test]
fn an_operators_word_on_a_new_topic_is_remembered_before_it_has_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let spec = TopicSpec { name: SAMPLES, partitions: 1 };
    let log = |name: &str| Log::open(&dir.path().join(name), &[spec], local::Options::default()).unwrap().topic(SAMPLES).unwrap();
    let open = |topic: &Arc<local::LocalTopic>, accept_new_topic| {
        let options = sink::Options { accept_new_topic, ..sink::Options::default() };
        Sink::open(lake.clone(), vec![topic.clone() as Arc<dyn Topic>], options)
    };
    let (old, new, newer) = (log("old"), log("new"), log("newer"));
    old.produce(&[round("n", 1, 0)]).unwrap();
    open(&old, false).unwrap().flush(Timestamp::from_ms(1_772_445_600_000)).unwrap();
    assert!(matches!(open(&new, false), Err(SinkError::Recreated { .. })));
    open(&new, true).unwrap();
    open(&new, false).unwrap();
    // It was said of that one only.
    assert!(matches!(open(&newer, false), Err(SinkError::Recreated { .. })));
}
