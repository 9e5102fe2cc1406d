//! Retention: what was closed and is old goes, nothing else ever does, and hours close as if all of it were there.

use crate::path::{all, closed, open_log, round};
use ingest::close::{self, CloseError, Closer};
use ingest::publish::{ALLOCATIONS, NODES, SAMPLES};
use ingest::sink::{self, Sink};
use ingest::transport::{Record, Topic};
use lake::{ClosedKey, Footer, Lake};
use schemas::proto::{Device, Holding, Node};
use schemas::{HOUR_MS, Timestamp, tables};
use std::ops::ControlFlow;

const H: i64 = 3600;

fn at(seconds: i64) -> Timestamp {
    "2026-03-02T10:00:00Z".parse::<Timestamp>().unwrap().plus_ms(seconds * 1000)
}

/// Rows that are late by two hours are too late, and hot files go after four.
fn options() -> close::Options {
    close::Options {
        close_after_ms: 0,
        late_limit_ms: 2 * HOUR_MS,
        hot_retention_ms: Some(4 * HOUR_MS),
        ..close::Options::default()
    }
}

fn keeping() -> close::Options {
    close::Options { hot_retention_ms: None, ..options() }
}

fn holding(id: &str, observed: i64, from: i64, to: Option<i64>) -> Record {
    ingest::publish::holding(Holding {
        cluster: "reef".into(),
        node: "n".into(),
        source: "api".into(),
        id: id.into(),
        pod: id.into(),
        pod_uid: format!("u-{id}"),
        count: Some(2),
        observed_at_ms: at(observed).ms(),
        bound_ms: Some(at(from).ms()),
        ended_ms: to.map(|to| at(to).ms()),
        ..Holding::default()
    })
}

fn node(observed: i64, devices: &[String]) -> Record {
    let device = |d: &String| Device { device: d.clone(), ..Device::default() };
    ingest::publish::node(&Node {
        cluster: "reef".into(),
        node: "n".into(),
        source: "sim".into(),
        observed_at_ms: at(observed).ms(),
        present_from_ms: at(0).ms(),
        devices: devices.iter().map(device).collect(),
        ..Node::default()
    })
}

fn rows(lake: &Lake, name: &'static str) -> Vec<String> {
    let table = tables::get(name);
    closed(lake, name, &table.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>())
}

fn hot(lake: &Lake) -> usize {
    tables::all().iter().map(|table| lake.hot_files(table).unwrap().len()).sum()
}

fn draw(random: &mut u64, below: u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) % below.max(1)
}

/// A day of a node with pods that come, stay over many hours and go; told again every hour, late now and then, and
/// hours that nobody closes. One lake keeps everything, in the other files go, and its closer is killed at any step of that.
fn run(seed: u64) {
    let random = &mut seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let [keeps, retains] = ["keeps", "retains"].map(|name| Lake::create(&dir.path().join(name)).unwrap());
    let mut sinks = [&keeps, &retains].map(|lake| Sink::open(lake.clone(), all(&log), sink::Options::default()).unwrap());
    let mut keeper = Closer::new(keeps.clone(), keeping());
    let mut retainer = Closer::new(retains.clone(), options());
    let mut pods: Vec<(String, i64, Option<i64>)> = Vec::new();
    let (mut sequence, mut removed, mut stopped) = (0, 0, 0);
    for hour in 0..24_i64 {
        let from = hour * H;
        for minute in 0..3 {
            sequence += 1;
            log.topic(SAMPLES).unwrap().produce(&[round("n", sequence, from + minute * 1200)]).unwrap();
        }
        if hour > 2 && draw(random, 3) == 0 {
            // An hour late, which is in time.
            log.topic(SAMPLES).unwrap().produce(&[round("late", sequence, from - H + 7)]).unwrap();
        }
        if draw(random, 2) == 0 {
            pods.push((format!("pod-{hour}"), from + 60, None));
        }
        for (_, _, end) in pods.iter_mut().filter(|(_, begin, end)| end.is_none() && *begin < from) {
            if draw(random, 8) == 0 {
                *end = Some(from + 1800);
            }
        }
        // Everything that goes on or has just ended is told again.
        let told = pods.iter().filter(|(_, _, end)| end.is_none_or(|end| end > from));
        let told: Vec<Record> = told.map(|(id, begin, end)| holding(id, from + 3000, *begin, *end)).collect();
        if !told.is_empty() {
            log.topic(ALLOCATIONS).unwrap().produce(&told).unwrap();
        }
        if hour % 3 == 0 {
            let devices: Vec<String> = (0..=hour / 12).map(|n| format!("GPU-{n}")).collect();
            log.topic(NODES).unwrap().produce(&[node(from + 100, &devices)]).unwrap();
        }
        let now = at(from + H);
        for sink in &mut sinks {
            sink.flush(now).unwrap();
        }
        // For a while nobody closes hours.
        if (10..15).contains(&hour) {
            let before = hot(&retains);
            assert_eq!(before, hot(&keeps) - removed, "seed {seed}: nothing goes that nobody closed");
            continue;
        }
        keeper.close(now, now).unwrap();
        loop {
            let mut left = draw(random, 12);
            retainer.on_step(move |_| {
                left = left.saturating_sub(1);
                if left == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            let closed = retainer.close(now, now);
            assert_eq!(retains.tiles().unwrap().faults, Vec::<String>::new(), "seed {seed}, hour {hour}");
            match closed {
                Ok(_) => break,
                Err(CloseError::Stopped(_)) => {
                    stopped += 1;
                    retainer = Closer::new(retains.clone(), options());
                    // A sink that starts in between finds where to go on.
                    sinks[1] = Sink::open(retains.clone(), all(&log), sink::Options::default()).unwrap();
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        // Any process may be a new one.
        if draw(random, 3) == 0 {
            retainer = Closer::new(retains.clone(), options());
        }
        removed = hot(&keeps) - hot(&retains);
        // All rows of all hours, so not after every hour.
        if hour % 6 != 5 {
            continue;
        }
        for table in ["gpu_samples", "scrapes", "rejects", "allocations", "nodes", "demand"] {
            assert_eq!(rows(&retains, table), rows(&keeps, table), "seed {seed}, hour {hour}, {table}");
        }
    }
    assert!(stopped > 0 && removed > 30, "seed {seed}: {stopped} {removed}");
    assert!(hot(&retains) < 50, "seed {seed}: {} files stay", hot(&retains));
    let (tiles, whole) = (retains.tiles().unwrap(), keeps.tiles().unwrap());
    assert_eq!((tiles.offsets + tiles.removed, whole.removed), (whole.offsets, 0), "seed {seed}");
}

#[test]
fn killed_at_any_step_retention_removes_nothing_that_was_not_closed_and_hours_close_as_without_it() {
    let seeds = if std::env::var_os("STRANDLINE_FULL").is_some() { 100 } else { 2 };
    for seed in 1..=seeds {
        println!("seed {seed}");
        run(seed);
    }
}

#[test]
fn what_comes_after_its_files_are_gone_is_counted_and_opens_nothing_again() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let mut sink = Sink::open(lake.clone(), all(&log), sink::Options::default()).unwrap();
    let mut closer = Closer::new(lake.clone(), options());
    let allocations = log.topic(ALLOCATIONS).unwrap();
    allocations.produce(&[holding("gone", 100, 60, Some(90)), holding("stays", 100, 60, None)]).unwrap();
    for hour in 0..12 {
        log.topic(SAMPLES).unwrap().produce(&[round("n", hour as u64, hour * H)]).unwrap();
        if hour > 0 {
            allocations.produce(&[holding("other", hour * H + 5, hour * H + 1, Some(hour * H + 4))]).unwrap();
        }
        sink.flush(at((hour + 1) * H)).unwrap();
        closer.close(at((hour + 1) * H), at((hour + 1) * H)).unwrap();
    }
    assert!(lake.removed().unwrap().0.offsets() > 6);
    let columns = &["holding_id", "from_at", "to_at", "interval_from"];
    let before = closed(&lake, "allocations", columns);
    let stays = |rows: &[String]| rows.iter().filter(|row| row.starts_with("stays")).count();
    assert_eq!(stays(&before), 12, "its only message went hours ago");
    // An old state of what had ended comes again: it would be open for ever. What still goes on is known.
    allocations.produce(&[holding("gone", 61, 60, None), holding("stays", 61, 60, None)]).unwrap();
    // And of what is not known any more, told newly: nothing that differs from its hour, and then something that does.
    allocations.produce(&[holding("gone", 12 * H, 60, Some(90))]).unwrap();
    sink.flush(at(12 * H)).unwrap();
    for mut closer in [closer, Closer::new(lake.clone(), options())] {
        let report = closer.close(at(12 * H), at(12 * H)).unwrap();
        assert_eq!(report.late, 1, "the old state");
        assert_eq!(closed(&lake, "allocations", columns), before);
    }
    allocations.produce(&[holding("gone", 12 * H + 1, 60, Some(95))]).unwrap();
    sink.flush(at(12 * H)).unwrap();
    let report = Closer::new(lake.clone(), options()).close(at(12 * H), at(12 * H)).unwrap();
    assert_eq!(report.late, 2, "that one, and what differs from an hour that is not written any more");
    assert_eq!(closed(&lake, "allocations", columns), before);
    let late = closed(&lake, "rejects", &["reason", "source"]).into_iter().filter(|row| row == "late allocations").count();
    assert_eq!(late, 2);
}

#[test]
fn what_hours_were_made_from_goes_once_they_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let mut sink = Sink::open(lake.clone(), all(&log), sink::Options::default()).unwrap();
    let mut closer = Closer::new(lake.clone(), close::Options { closed_retention_ms: Some(6 * HOUR_MS), ..options() });
    let hours = |name: &'static str| -> Vec<i64> {
        let files = lake.closed_files(tables::get(name), None).unwrap();
        files.iter().map(|file| (file.key.hour.ms() - at(0).ms()) / HOUR_MS).collect()
    };
    for hour in 0..12 {
        log.topic(SAMPLES).unwrap().produce(&[round("n", hour as u64, hour * H)]).unwrap();
        sink.flush(at((hour + 1) * H)).unwrap();
        let report = closer.close(at((hour + 1) * H), at((hour + 1) * H)).unwrap();
        assert_eq!(report.removed_closed, 0, "there are no hour rows yet");
    }
    // Hour rows of the first four hours.
    for hour in 0..4 {
        for name in ["gpu_hours", "device_hours"] {
            let table = tables::get(name);
            let rows = arrow::array::RecordBatch::new_empty(table.schema());
            lake.publish_closed(table, ClosedKey::of(at(hour * H)), &[rows], Footer::default()).unwrap();
        }
    }
    log.topic(SAMPLES).unwrap().produce(&[round("n", 99, 12 * H)]).unwrap();
    sink.flush(at(13 * H)).unwrap();
    let report = closer.close(at(13 * H), at(13 * H)).unwrap();
    assert_eq!(hours("scrapes"), (3..13).collect::<Vec<_>>(), "the first that stays has its rows");
    assert_eq!((hours("gpu_samples"), hours("gpu_hours")), ((3..13).collect(), (0..4).collect()));
    assert!(report.removed_closed >= 6, "{report:?}");
    assert_eq!(lake.raw_from().unwrap(), Some(at(3 * H)));
    assert_eq!(lake.tiles().unwrap().faults, Vec::<String>::new());
}
