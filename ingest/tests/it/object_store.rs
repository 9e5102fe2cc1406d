//! The second half of the path with its lake in an object store: the same rows as on a disk, and none lost or doubled when the
//! store loses answers, is overloaded, or has two writers.

use crate::kill::{Process, wait_for};
use crate::path::{all, closed, closer, open_log, round};
use crate::s3_server::{Fault, Server};
use ingest::publish::{ALLOCATIONS, NODES, SAMPLES};
use ingest::sink::{self, Sink, SinkError};
use ingest::transport::Topic;
use ingest::transport::local::Log;
use lake::Lake;
use schemas::proto::{Device, Holding, Node};
use schemas::{Timestamp, tables};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn at(seconds: i64) -> Timestamp {
    "2026-03-02T10:00:00Z".parse::<Timestamp>().unwrap().plus_ms(seconds * 1000)
}

fn on(server: &Server) -> Lake {
    Lake::create_with(&server.location("reef"), || server.access()).unwrap()
}

fn samples(log: &Log) -> Vec<Arc<dyn Topic>> {
    vec![log.topic(SAMPLES).unwrap()]
}

/// Rows of every closed table that the path fills.
fn everything(lake: &Lake) -> Vec<Vec<String>> {
    let of = |name: &'static str| {
        let table = tables::get(name);
        closed(lake, name, &table.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>())
    };
    ["gpu_samples", "extra_samples", "scrapes", "rejects", "allocations", "nodes"].map(of).to_vec()
}

#[test]
fn the_path_ends_in_a_bucket_as_it_does_in_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let server = Server::start();
    let lakes = [Lake::create(&dir.path().join("lake")).unwrap(), on(&server)];
    let mut sinks = lakes.each_ref().map(|lake| Sink::open(lake.clone(), all(&log), sink::Options::default()).unwrap());
    let mut closers = lakes.each_ref().map(|lake| closer(lake.clone()));
    let holding = |observed: i64, end: Option<i64>| {
        ingest::publish::holding(Holding {
            cluster: "reef".into(),
            node: "n".into(),
            source: "api".into(),
            id: "a".into(),
            pod: "a".into(),
            count: Some(1),
            observed_at_ms: at(observed).ms(),
            bound_ms: Some(at(5).ms()),
            ended_ms: end.map(|end| at(end).ms()),
            ..Holding::default()
        })
    };
    let node = ingest::publish::node(&Node {
        cluster: "reef".into(),
        node: "n".into(),
        source: "sim".into(),
        observed_at_ms: at(0).ms(),
        present_from_ms: at(0).ms(),
        devices: vec![Device { device: "GPU-a".into(), ..Device::default() }],
        ..Node::default()
    });
    log.topic(NODES).unwrap().produce(&[node]).unwrap();
    for hour in 0..3 {
        let from = hour * 3600;
        let rounds = [round("n", hour as u64 * 2 + 1, from), round("n", hour as u64 * 2 + 2, from + 30)];
        log.topic(SAMPLES).unwrap().produce(&rounds).unwrap();
        // A repeat, and a late one.
        log.topic(SAMPLES).unwrap().produce(&[round("n", 1, 0), round("late", hour as u64, 60 + hour)]).unwrap();
        log.topic(ALLOCATIONS).unwrap().produce(&[holding(from + 10, (hour == 2).then_some(3700))]).unwrap();
        for (sink, closer) in sinks.iter_mut().zip(&mut closers) {
            let report = sink.flush(at(from + 3600)).unwrap();
            assert!(report.unread() == 0 && report.flushes.iter().all(|flush| flush.bytes > 0), "{report:?}");
            closer.close(at(from + 3600), at(from + 3600)).unwrap();
        }
    }
    let [disk, bucket] = &lakes;
    assert_eq!(everything(bucket), everything(disk));
    assert_eq!(closed(bucket, "scrapes", &["node"]).len(), 9);
    assert_eq!((bucket.tiles().unwrap(), bucket.watermark().unwrap()), (disk.tiles().unwrap(), disk.watermark().unwrap()));
    assert_eq!(bucket.tiles().unwrap().faults, Vec::<String>::new());
    // A closer that starts anew, in a bucket too, has nothing to do.
    assert_eq!(closer(bucket.clone()).close(at(3 * 3600), at(3 * 3600)).unwrap().parts, Default::default());
}

#[test]
fn two_sinks_and_two_closers_fight_over_a_bucket_that_fails_now_and_then() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let server = Server::start();
    let lake = on(&server);
    let mut count = 0_u64;
    server.faults(move |method, _| {
        count += 1;
        match (count % 11, count % 7) {
            (0, _) => Fault::Overloaded,
            (_, 0) if method == hyper::Method::PUT => Fault::LostAnswer,
            _ => Fault::None,
        }
    });
    const ROUNDS: u64 = 24;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (lake, topics) = (on(&server), samples(&log));
            scope.spawn(move || {
                let options = sink::Options { cut_rows: 1, ..sink::Options::default() };
                let mut sink = Sink::open(lake.clone(), topics, options).unwrap();
                let mut closer = closer(lake.clone());
                let ends = Instant::now() + Duration::from_secs(60);
                let written = || lake.tiles().map_or(0, |tiles| tiles.offsets);
                while written() < ROUNDS && Instant::now() < ends {
                    sink.flush(at(10)).unwrap();
                    closer.close(at(3600), at(3600)).unwrap();
                }
            });
        }
        for sequence in 0..ROUNDS {
            log.topic(SAMPLES).unwrap().produce(&[round("n", sequence, sequence as i64)]).unwrap();
        }
    });
    server.faults(|_, _| Fault::None);
    closer(lake.clone()).close(at(3600), at(3600)).unwrap();
    let tiles = lake.tiles().unwrap();
    assert_eq!((tiles.offsets, tiles.faults), (ROUNDS, vec![]));
    let found: Vec<String> = closed(&lake, "scrapes", &["sequence"]);
    assert_eq!(found.len() as u64, ROUNDS);
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>().len() as u64, ROUNDS);
}

#[test]
fn a_store_that_is_away_stops_the_sink_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let server = Server::start();
    on(&server);
    let access = lake::Access { retry_for: Duration::from_millis(100), ..server.access() };
    let lake = Lake::open_with(&server.location("reef"), || access).unwrap();
    let mut sink = Sink::open(lake.clone(), samples(&log), sink::Options::default()).unwrap();
    log.topic(SAMPLES).unwrap().produce(&[round("n", 1, 0)]).unwrap();
    server.faults(|_, _| Fault::Overloaded);
    let error = sink.flush(at(1)).unwrap_err();
    assert!(matches!(&error, SinkError::Lake(error) if error.passes()), "{error}");
    server.faults(|_, _| Fault::None);
    log.topic(SAMPLES).unwrap().produce(&[round("n", 2, 1)]).unwrap();
    Sink::open(lake.clone(), samples(&log), sink::Options::default()).unwrap().flush(at(2)).unwrap();
    assert_eq!(lake.tiles().unwrap().offsets, 2);
}

#[test]
fn the_sink_as_a_process_takes_its_bucket_from_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    log.topic(SAMPLES).unwrap().produce(&[round("n", 1, 0)]).unwrap();
    let server = Server::start();
    let start = || {
        let child = Command::new(env!("CARGO_BIN_EXE_strandline-ingest"))
            .args(["sink", "--lake", "s3://lake/reef", "--cut-age", "0s", "--listen", "127.0.0.1:0", "--log-dir"])
            .arg(dir.path().join("log"))
            // The rounds are of last March: where the first sink closes their hour before it is killed, the second one comes late.
            .args(["--late-limit", "3650d", "--hot-retention", "3660d"])
            .env("STRANDLINE_LOG", "error")
            .envs(server.access().settings)
            .stdout(Stdio::null())
            .spawn();
        Process(child.unwrap())
    };
    let lake = on(&server);
    let waits = |offsets: u64| wait_for("file in the bucket", || lake.tiles().unwrap().offsets >= offsets);
    let first = start();
    waits(1);
    first.kill();
    log.topic(SAMPLES).unwrap().produce(&[round("n", 2, 1)]).unwrap();
    let _second = start();
    waits(2);
    // The hour of the second one was closed already, and is closed again within a minute.
    wait_for("hour closed again", || lake.tiles().unwrap().faults.is_empty());
}
