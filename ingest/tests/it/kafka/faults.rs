//! Topics that lose what nobody has read, and topics that are made anew: the sink stops, says so, and goes on when it is told.

use super::*;
use crate::chaos::hot_offsets_by_topic;
use ingest::sink::SinkError;
use rdkafka::{Offset, TopicPartitionList};
use std::process::{Command, Stdio};

/// Rounds `numbers` of one node, one a second from `from_ms` on. Kafka keeps what is young: they are of today.
fn take(topic: &dyn Topic, from_ms: i64, numbers: std::ops::Range<u64>) {
    let record = |sequence: u64| {
        let at_ms = from_ms + sequence as i64 * 1000;
        let round = ScrapeRound {
            cluster: "reef".into(),
            node: "n".into(),
            source: "page".into(),
            at_ms,
            sequence,
            status: "ok".into(),
            ..ScrapeRound::default()
        };
        Record { key: b"reef/n".to_vec(), value: round.encode_to_vec(), at_ms }
    };
    topic.produce(&numbers.map(record).collect::<Vec<_>>()).unwrap();
}

/// Offsets in the hot tree by topic id; there is one partition.
fn by_topic(lake: &Lake) -> BTreeMap<String, Vec<u64>> {
    let mut found = hot_offsets_by_topic(lake);
    found.values_mut().for_each(|offsets| offsets.sort_unstable());
    found.into_iter().map(|((topic, _), offsets)| (topic.as_str().to_owned(), offsets)).collect()
}

/// The exit code of a sink that ends by itself, and what it said.
fn ends_by_itself(dir: &Path, config: &Path) -> (Option<i32>, String) {
    let said = dir.join("said");
    let mut child = Command::new(env!("CARGO_BIN_EXE_strandline-ingest"))
        .args(["sink", "--listen", "127.0.0.1:0", "--config"])
        .arg(config)
        .env("STRANDLINE_LOG", "error")
        .stdout(Stdio::null())
        .stderr(fs::File::create(&said).unwrap())
        .spawn()
        .map(Process)
        .unwrap();
    wait_for("end", || child.0.try_wait().unwrap().is_some());
    (child.0.wait().unwrap().code(), fs::read_to_string(said).unwrap())
}

/// Runs a sink with an operator's word until its page has `lines`, and ends it.
fn told(config: &Path, word: &str, lines: &[&str]) {
    let port = free_port();
    let sink = Process::listening(port, &["sink", word], config);
    wait_for(&lines.join(", "), || {
        get(port, "/metrics").is_some_and(|(_, page)| lines.iter().all(|wanted| page.lines().any(|line| line == *wanted)))
    });
    assert_eq!(sink.ends(), Some(0));
}

#[test]
fn what_a_topic_lost_or_is_not_any_more_stops_the_sink_until_it_is_told() {
    let cluster = Cluster::plain(1);
    let dir = tempfile::tempdir().unwrap();
    let (lake_dir, config) = (dir.path().join("lake"), dir.path().join("sink.yaml"));
    let section = format!("kafka: {{bootstrap_servers: '{}', partitions: 1, replication: 1}}", cluster.address());
    fs::write(&config, format!("lake: {}\ncut_age: 100ms\n{section}\n", lake_dir.display())).unwrap();
    let lake = Lake::create(&lake_dir).unwrap();
    let connect = || {
        let mut options = options(&cluster, &[]);
        options.partitions = 1;
        topics(options)
    };
    let open = |topics: &[Arc<KafkaTopic>]| {
        let topics = topics.iter().map(|topic| topic.clone() as Arc<dyn Topic>).collect();
        Sink::open(lake.clone(), topics, sink::Options::default())
    };
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let now = Timestamp::from_ms(since.as_millis() as i64);
    let from_ms = now.ms() - 60_000;

    // Seven messages go before they are read.
    let first = connect();
    let mut held = open(&first).unwrap();
    take(&*first[0], from_ms, 0..5);
    held.flush(now).unwrap();
    take(&*first[0], from_ms, 5..15);
    let mut before = TopicPartitionList::new();
    before.add_partition_offset(SAMPLES, 0, Offset::Offset(12)).unwrap();
    wait(admin(&cluster).delete_records(&before, &AdminOptions::new())).unwrap();
    let error = held.flush(now).unwrap_err();
    assert!(matches!(error, SinkError::Lost { start: 12, pos: 5, .. }), "{error:?}");
    let (code, said) = ends_by_itself(dir.path(), &config);
    assert!(code == Some(1) && said.contains("begins at offset 12") && said.contains("--skip-lost"), "{said}");
    assert_eq!(by_topic(&lake).values().cloned().collect::<Vec<_>>(), [[0, 1, 2, 3, 4]]);
    told(
        &config,
        "--skip-lost",
        &[
            "strandline_ingest_lost_messages_total 7",
            "strandline_ingest_rejects_total{reason=\"lost\"} 7",
            "strandline_ingest_records_total 3",
        ],
    );
    let old = first[0].id().as_str().to_owned();
    assert_eq!(by_topic(&lake), BTreeMap::from([(old.clone(), vec![0, 1, 2, 3, 4, 12, 13, 14])]));

    // The topic is made anew, with more messages than the old one had.
    let mut held = open(&first).unwrap();
    delete(&cluster, SAMPLES);
    let second = connect();
    take(&*second[0], from_ms, 15..40);
    let stopped = match held.flush(now) {
        // What a client of the old topic is told depends on when it asks; then the sink is opened anew.
        Err(SinkError::Log(error)) if error.passes() => open(&connect()).map(drop),
        result => result.map(drop),
    };
    assert!(matches!(stopped, Err(SinkError::Recreated { .. })), "{stopped:?}");
    let (code, said) = ends_by_itself(dir.path(), &config);
    assert!(code == Some(1) && said.contains("was created anew") && said.contains("--accept-new-topic"), "{said}");
    assert_eq!(by_topic(&lake).len(), 1, "nothing of the new topic is in the lake");
    told(&config, "--accept-new-topic", &["strandline_ingest_records_total 25"]);
    let new = second[0].id().as_str().to_owned();
    assert_eq!(by_topic(&lake), BTreeMap::from([(old, vec![0, 1, 2, 3, 4, 12, 13, 14]), (new, (0..25).collect())]));

    // The proof knows both, closed hours have what there was, and what there was not is a number in `rejects`, not rounds.
    assert_eq!(lake.tiles().unwrap().faults, Vec::<String>::new());
    let far = now.plus_ms(3 * schemas::HOUR_MS);
    closer(lake.clone()).close(far, far).unwrap();
    let mut found: Vec<u64> = closed(&lake, "scrapes", &["sequence"]).iter().map(|s| s.parse().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, (0..5).chain(12..40).collect::<Vec<_>>());
    assert_eq!(closed(&lake, "rejects", &["reason", "rows"]), ["lost 7"]);
}
