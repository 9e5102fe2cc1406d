//! The closed loop over a real Kafka: a simulated fleet, agents, Kafka, sink, closed hours and hour rows, held against the truth,
//! while the broker is killed.

use crate::broker::Cluster;
use crate::command::tree;
use cli::commands::demo::fleet;
use ingest::agent::Topics;
use ingest::publish::{ALLOCATIONS, NODES, SAMPLES};
use ingest::transport::Topic;
use ingest::transport::kafka::{Kafka, Options, Properties};
use lake::Lake;
use simulator::{FleetSpec, Plan, Seed};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

fn topics(cluster: &Cluster) -> Topics {
    let mut options = Options::new(Properties::new(&cluster.address(), BTreeMap::new()).unwrap());
    // Long enough for a broker to be away and come back: nothing is given up meanwhile.
    (options.replication, options.partitions, options.timeout) = (Some(1), 3, Duration::from_secs(60));
    let kafka = Kafka::new(options).unwrap();
    let names = [SAMPLES, ALLOCATIONS, NODES];
    kafka.prepare(&names).unwrap();
    let [samples, allocations, nodes] =
        <[_; 3]>::try_from(kafka.topics(&names).unwrap()).unwrap_or_else(|_| panic!("three were asked for"));
    let topic = |topic| -> Arc<dyn Topic> { topic };
    Topics { samples: topic(samples), allocations: topic(allocations), nodes: topic(nodes) }
}

/// How many messages were taken; none while the broker is away.
fn taken(topic: &dyn Topic) -> Option<u64> {
    (0..topic.partitions()).map(|partition| topic.bounds(partition).ok().map(|bounds| bounds.end)).sum()
}

#[test]
fn hours_over_kafka_match_the_truth_though_its_broker_is_killed() {
    let seeds: u64 = if std::env::var_os("STRANDLINE_FULL").is_some() { 10 } else { 3 };
    for seed in 1..=seeds {
        println!("seed {seed}");
        let folder = tempfile::tempdir().unwrap();
        let lake = Lake::create(&folder.path().join("lake")).unwrap();
        let text = std::fs::read_to_string(tree("kwok-fleet/fleets/small.yaml")).unwrap();
        let plan = Plan::new(FleetSpec::parse(&text).unwrap(), Seed(seed)).unwrap();
        let mut cluster = Cluster::plain(1);
        let topics = topics(&cluster);
        let watched = topics.samples.clone();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        std::thread::scope(|scope| {
            let running = scope.spawn(|| runtime.block_on(fleet::run(plan, &lake, topics)).unwrap());
            // Two nodes, 240 rounds each; the broker goes once in each half.
            for rounds in [40 + seed * 7, 300 + seed * 7] {
                while !running.is_finished() && taken(&*watched).is_none_or(|now| now < rounds) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                assert!(!running.is_finished(), "seed {seed}: the fleet ended before the broker was killed");
                cluster.kill_all();
                cluster.resume();
            }
            let counts = running.join().unwrap();
            assert!(counts.messages >= 480, "seed {seed}: {counts:?}");
        });

        // Every offset is in the hot tree once, and closed hours stand on all of them.
        let tiles = lake.tiles().unwrap();
        assert_eq!(tiles.faults, Vec::<String>::new(), "seed {seed}");
        query::job::run(&lake, query::job::Options::default(), |_, _| {}).unwrap();
        let verdict = query::check::check(&lake, None).unwrap();
        assert!(verdict.fault.is_none() && verdict.hours > 0, "seed {seed}: {verdict:?}");
        let comparison = query::truth::compare(&lake).unwrap();
        assert!(comparison.holds() && comparison.owners > 1, "seed {seed}: {comparison:?}");
        let (ledger, truth) = comparison.allocated_ms;
        assert_eq!(ledger, truth, "seed {seed}: to the millisecond");
    }
}
