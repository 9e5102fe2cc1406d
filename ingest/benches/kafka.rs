//! From a real Kafka broker to hot files, as the sink does it, beside the same client reading the same topic and doing nothing with
//! what it reads: the ceiling.
//!
//! Estimate before measuring: the client gives a million samples a second and more, so that what decoding and Parquet cost
//! decides (`path`): 250,000 samples a second.

#![allow(clippy::unwrap_used)]

#[path = "../../tests/kafka/broker.rs"]
#[allow(dead_code)]
mod broker;
mod rounds;

use broker::Cluster;
use ingest::publish::SAMPLES;
use ingest::sink::{self, Sink};
use ingest::transport::Topic;
use ingest::transport::kafka::{Kafka, Options, Properties};
use lake::Lake;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Message, Offset, TopicPartitionList};
use schemas::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn main() {
    let quick = std::env::args().any(|a| a == "--test");
    let (nodes, ticks) = if quick { (5, 2) } else { (1000, 40) };
    let cluster = Cluster::plain(1);
    let connect = || -> Arc<dyn Topic> {
        let mut options = Options::new(Properties::new(&cluster.address(), BTreeMap::new()).unwrap());
        (options.replication, options.partitions) = (Some(1), 1);
        let kafka = Kafka::new(options).unwrap();
        kafka.prepare(&[SAMPLES]).unwrap();
        kafka.topics(&[SAMPLES]).unwrap().remove(0)
    };
    let records = rounds::rounds(nodes, ticks);
    let (messages, samples) = (records.len() as u64, records.len() as f64 * 8.0);
    let bytes: usize = records.iter().map(|record| record.value.len()).sum();
    let topic = connect();
    let began = Instant::now();
    for batch in records.chunks(nodes as usize) {
        topic.produce(batch).unwrap();
    }
    let produced = began.elapsed();
    println!("{messages} messages of 8 samples, {:.1} MB, one partition", bytes as f64 / 1e6);
    let line = |what: &str, took: Duration, cpu: Duration| {
        println!(
            "{what:<36} {:9.0} samples a second, {:9.0} a second of one core",
            samples / took.as_secs_f64(),
            samples / cpu.as_secs_f64()
        );
    };
    println!("{:<36} {:9.0} samples a second, acknowledged", "produce", samples / produced.as_secs_f64());

    let mut ceiling = (Duration::MAX, Duration::MAX);
    let mut ours = (Duration::MAX, Duration::MAX);
    for _ in 0..if quick { 1 } else { 3 } {
        ceiling = ceiling.min(timed(|| read_only(&cluster.address(), messages)));
        let dir = tempfile::tempdir().unwrap();
        let lake = Lake::create(dir.path()).unwrap();
        let topic = connect();
        ours = ours.min(timed(|| {
            let mut sink = Sink::open(lake, vec![topic], sink::Options::default()).unwrap();
            let report = sink.flush(Timestamp::from_ms(rounds::T0)).unwrap();
            assert_eq!(report.records, messages);
        }));
    }
    line("Kafka to hot Parquet (budget 250,000)", ours.0, ours.1);
    line("Kafka to nothing, by the same client", ceiling.0, ceiling.1);
}

/// Wall time, and time of all of this process's threads.
fn timed(work: impl FnOnce()) -> (Duration, Duration) {
    let (began, cpu) = (Instant::now(), cpu());
    work();
    (began.elapsed(), self::cpu() - cpu)
}

/// Time that this process has used, of all its threads: fields 14 and 15 of its stat, in hundredths of a second.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

fn read_only(brokers: &str, messages: u64) {
    let consumer: BaseConsumer = rdkafka::ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "peer")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(SAMPLES, 0, Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let mut bytes = 0;
    for _ in 0..messages {
        bytes += consumer.poll(Duration::from_secs(10)).unwrap().unwrap().payload().map_or(0, <[u8]>::len);
    }
    assert!(bytes > 0);
}
