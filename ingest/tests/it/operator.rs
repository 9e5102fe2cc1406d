//! What happens to a machine: a disk that fills, a log that loses its end or goes away, two sinks on one lake.

use crate::kill::{Process, wait_for};
use crate::path::{Exporter, closed, closer};
use ingest::agent::{Agent, Options, Target, Topics};
use ingest::clock::VirtualClock;
use ingest::config::{SinkArgs, SinkConfig};
use ingest::join::Answer;
use ingest::publish::{ALLOCATIONS, NODES, SAMPLES};
use ingest::run;
use ingest::sink::{self, Sink, SinkError, Step};
use ingest::transport::local::{self, Log, TopicSpec};
use ingest::transport::{Record, Topic};
use lake::Lake;
use schemas::proto::{Message, ScrapeRound};
use schemas::{HOUR_MS, Timestamp, tables};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// An hour in the middle of an era.
const HOUR: i64 = 1_772_445_600_000;

fn open(dir: &Path) -> Log {
    let spec = |name| TopicSpec { name, partitions: 1 };
    Log::open(&dir.join("log"), &[SAMPLES, ALLOCATIONS, NODES].map(spec), local::Options::default()).unwrap()
}

fn topics(log: &Log) -> Vec<Arc<dyn Topic>> {
    [SAMPLES, ALLOCATIONS, NODES].map(|name| log.topic(name).unwrap() as Arc<dyn Topic>).to_vec()
}

/// Rounds `numbers`, one a second from the hour on.
fn take(log: &Log, numbers: std::ops::Range<u64>) {
    let record = |n: u64| {
        let at_ms = HOUR + n as i64 * 1000;
        let round = ScrapeRound {
            cluster: "reef".into(),
            node: "dune-1".into(),
            source: "s".into(),
            at_ms,
            sequence: n,
            status: "ok".into(),
            ..ScrapeRound::default()
        };
        Record { key: b"reef/dune-1".to_vec(), value: round.encode_to_vec(), at_ms }
    };
    log.topic(SAMPLES).unwrap().produce(&numbers.map(record).collect::<Vec<_>>()).unwrap();
}

fn segment(dir: &Path) -> PathBuf {
    let mut all: Vec<PathBuf> = fs::read_dir(dir.join("log").join(SAMPLES).join("00000"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "log"))
        .collect();
    all.sort();
    all.pop().unwrap()
}

fn after(hours: i64) -> Timestamp {
    Timestamp::from_ms(HOUR + hours * HOUR_MS)
}

#[test]
fn taken_rounds_that_the_disk_lost_are_counted_in_rejects() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    take(&log, 0..10);
    drop(log);
    // The last of the ten is half there after a crash of the machine, though it was taken.
    let path = segment(dir.path());
    let length = fs::metadata(&path).unwrap().len();
    fs::File::options().write(true).open(&path).unwrap().set_len(length - 1).unwrap();
    let log = open(dir.path());
    take(&log, 10..12);

    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let mut sink = Sink::open(lake.clone(), topics(&log), sink::Options::default()).unwrap();
    let report = sink.flush(after(1)).unwrap();
    assert_eq!((report.records, report.lost, report.rejects), (11, 1, 1));
    closer(lake.clone()).close(after(1), after(1)).unwrap();
    let columns = ["reason", "rows", "text"];
    assert_eq!(
        closed(&lake, "rejects", &columns),
        ["lost 1 partition 0 offset 9: 1 messages were dropped before they were read"],
        "what was taken is in the lake, or it is counted"
    );
    assert_eq!(closed(&lake, "scrapes", &["sequence"]).len(), 11);
}

#[test]
fn an_interval_whose_messages_were_lost_before_it_was_complete_is_completed_when_told() {
    let dir = tempfile::tempdir().unwrap();
    let small = local::Options { segment_bytes: 400, retention_ms: 1000, ..local::Options::default() };
    let log = Log::open(&dir.path().join("log"), &[TopicSpec { name: SAMPLES, partitions: 1 }], small).unwrap();
    let topic = log.topic(SAMPLES).unwrap();
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let open = |skip_lost| {
        let options = sink::Options { skip_lost, ..sink::Options::default() };
        Sink::open(lake.clone(), vec![topic.clone() as Arc<dyn Topic>], options)
    };
    let mut dies = open(false).unwrap();
    take(&log, 0..10);
    dies.on_step(|step| if step == Step::AfterFirst { ControlFlow::Break(()) } else { ControlFlow::Continue(()) });
    assert!(matches!(dies.flush(after(1)), Err(SinkError::Stopped(_))));
    log.retain(after(1).ms()).unwrap();
    let start = topic.bounds(0).unwrap().start;
    assert!((2..10).contains(&start), "{start}");
    let error = open(false).map(drop).unwrap_err();
    assert!(matches!(error, SinkError::Lost { pos: 0, .. }), "{error}");
    let report = open(true).unwrap().flush(after(1)).unwrap();
    assert_eq!((report.lost, report.reasons.get("lost").copied()), (start, Some(start)));
    closer(lake.clone()).close(after(2), after(2)).unwrap();
    assert_eq!(closed(&lake, "scrapes", &["sequence"]).len() as u64, 10 - start);
    assert_eq!(closed(&lake, "rejects", &["reason", "rows"]), [format!("lost {start}")]);
    assert_eq!(lake.tiles().unwrap().faults, Vec::<String>::new());
    // Told once is enough.
    open(false).unwrap();
}

#[test]
fn two_processes_that_close_hours_leave_nothing_out() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let rounds = 60;
    let all_there = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut mine = closer(lake.clone());
                let mut last = false;
                while !last {
                    last = all_there.load(Ordering::SeqCst);
                    mine.close(after(1), after(1)).unwrap();
                }
            });
        }
        let mut sink = Sink::open(lake.clone(), topics(&log), sink::Options::default()).unwrap();
        for n in 0..rounds {
            take(&log, n..n + 1);
            sink.flush(after(1)).unwrap();
        }
        all_there.store(true, Ordering::SeqCst);
    });
    // Each has done its last; a part that the other one wrote over is found by nobody any more.
    let mut sequences: Vec<u64> = closed(&lake, "scrapes", &["sequence"]).iter().map(|s| s.parse().unwrap()).collect();
    sequences.sort_unstable();
    assert_eq!(sequences, (0..rounds).collect::<Vec<_>>());
}

/// Every file that this process would write into `folder` finds the disk full.
fn fill(folder: &Path, name: &str) -> Vec<PathBuf> {
    fs::create_dir_all(folder).unwrap();
    let path = |n: usize| folder.join(format!(".{name}.{}-{n}.tmp", std::process::id()));
    // Names count up within the process, and other tests write tens of thousands of files in it.
    let paths: Vec<PathBuf> = (0..100_000).map(path).collect();
    for path in &paths {
        std::os::unix::fs::symlink("/dev/full", path).unwrap();
    }
    paths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_outlives_a_full_disk_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    take(&log, 0..10);
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    // Hot files find room, the closed hour does not.
    let part = lake::ClosedKey::of(Timestamp::from_ms(HOUR)).path(tables::get("scrapes"));
    let part = lake.location().join(part);
    let name = part.file_name().unwrap().to_str().unwrap().to_owned();
    let full = fill(part.parent().unwrap(), &name);

    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let args = SinkArgs {
        lake: Some(lake.location().to_owned()),
        log_dir: Some(dir.path().join("log")),
        listen: Some(port.to_string()),
        ..SinkArgs::default()
    };
    let config = SinkConfig { retry_every: Duration::from_millis(20), ..SinkConfig::load(args).unwrap() };
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let clock = Arc::new(VirtualClock::at(after(2)));
    let sink = tokio::spawn(run::sink(config, clock, async {
        let _ = ended.await;
    }));
    let scraper = ingest::scrape::Scraper::new(Duration::from_secs(5), 1 << 20);
    let get = |path: &str| {
        let address = format!("http://127.0.0.1:{port}{path}").parse().unwrap();
        let scraper = scraper.clone();
        async move { scraper.get(&address).await.map(|body| String::from_utf8(body.bytes.to_vec()).unwrap()).unwrap_or_default() }
    };
    let until = |path: &'static str, wanted: &'static str| async move {
        for _ in 0..6000 {
            if get(path).await.lines().any(|line| line.starts_with(wanted)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no `{wanted}` at {path} within a minute");
    };
    until("/metrics", "strandline_ingest_stops_total 3").await;
    assert_eq!(get("/-/ready").await, "", "it is not ready while it cannot write");
    assert!(!sink.is_finished());
    assert!(closed(&lake, "scrapes", &["sequence"]).is_empty(), "nothing half-written is to be seen");
    for path in full {
        let _ = fs::remove_file(path);
    }
    until("/-/ready", "ready").await;
    assert_eq!(closed(&lake, "scrapes", &["sequence"]).len(), 10, "what it had in hand when the disk was full is not forgotten");
    end.send(()).unwrap();
    sink.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_log_is_gone_ends_and_does_not_take_what_nobody_can_read() {
    let exporter = Exporter::start().await;
    exporter.page("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 1\n");
    let dir = tempfile::tempdir().unwrap();
    let (log, state) = (dir.path().join("log"), dir.path().join("state"));
    fs::create_dir(&state).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_strandline-ingest"))
        .args(["agent", "--cluster", "reef", "--node", "n", "--interval", "50ms", "--listen", "127.0.0.1:0"])
        .args(["--target", &exporter.address, "--log-dir", log.to_str().unwrap(), "--state-dir", state.to_str().unwrap()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut agent = Process(child);
    tokio::task::block_in_place(|| {
        wait_for("round", || {
            Log::reader(&log, local::Options::default())
                .is_ok_and(|l| l.topic(SAMPLES).is_ok_and(|t| t.bounds(0).is_ok_and(|b| b.end > 2)))
        });
        fs::remove_dir_all(&log).unwrap();
        wait_for("end", || agent.0.try_wait().unwrap().is_some());
    });
    assert_eq!(agent.0.try_wait().unwrap().unwrap().code(), Some(1));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut agent.0.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("was changed or removed by another program; restart this process"), "{said}");
    assert!(!said.contains('\u{1b}'), "no colours where nobody sees them: {said}");
}

#[test]
fn a_damaged_state_file_is_named_with_the_way_on() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("agent-state.json"), "").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_strandline-ingest"))
        .args(["agent", "--cluster", "reef", "--node", "n", "--target", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--log-dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("it is damaged: move it away"), "{said}");
}

#[test]
fn hours_are_closed_by_one_process_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    take(&log, 0..3);
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    Sink::open(lake.clone(), topics(&log), sink::Options::default()).unwrap().flush(after(1)).unwrap();
    fs::create_dir_all(lake.location().join("_state")).unwrap();
    let other = fs::File::create(lake.location().join("_state/closing.lock")).unwrap();
    other.lock().unwrap();
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| done.send(closer(lake.clone()).close(after(1), after(1)).is_ok()).unwrap());
        assert!(is_done.recv_timeout(Duration::from_millis(300)).is_err(), "another process is at it");
        assert!(closed(&lake, "scrapes", &["sequence"]).is_empty());
        other.unlock().unwrap();
        assert_eq!(is_done.recv_timeout(Duration::from_secs(30)), Ok(true));
    });
    assert_eq!(closed(&lake, "scrapes", &["sequence"]).len(), 3);
}

#[tokio::test]
async fn an_agent_that_lost_its_state_ends_what_it_had_seen() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let state = dir.path().join("state.json");
    let agent = || {
        let mut options = Options::new("reef");
        options.state_file = Some(state.clone());
        let target = Target {
            node: "dune-1".into(),
            address: "127.0.0.1:1".parse().unwrap(),
            podres_socket: Some(dir.path().join("kubelet.sock")),
        };
        let topics = Topics {
            samples: log.topic(SAMPLES).unwrap(),
            allocations: log.topic(ALLOCATIONS).unwrap(),
            nodes: log.topic(NODES).unwrap(),
        };
        Agent::new(options, vec![target], topics, Arc::new(VirtualClock::at(after(0)))).unwrap()
    };
    let held = |pods: &[&str]| {
        let pod = |name: &&str| {
            serde_json::json!({"name": name, "namespace": "surf", "containers": [{"name": "c",
                "devices": [{"resource_name": "nvidia.com/gpu", "device_ids": [format!("GPU-{name}")]}]}]})
        };
        let list = serde_json::json!({"pod_resources": pods.iter().map(pod).collect::<Vec<_>>()});
        Answer::Listed(attribution::conformance::list_from_json(&list).unwrap())
    };
    let minute = |n: i64| after(0).plus_ms(n * 60_000);
    let mut first = agent();
    assert_eq!(first.recall().unwrap(), 0);
    let seen = first.listed(0, minute(0), held(&["stays", "goes"]));
    first.publish(vec![seen]).await.unwrap();
    drop(first);
    fs::remove_file(&state).unwrap();

    let mut second = agent();
    assert_eq!(second.recall().unwrap(), 2);
    for n in [5, 6, 7] {
        let seen = second.listed(0, minute(n), held(&["stays"]));
        second.publish(vec![seen]).await.unwrap();
    }
    drop(second);
    assert_eq!(agent().recall().unwrap(), 0, "where there is a state file it is what counts");

    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    Sink::open(lake.clone(), topics(&log), sink::Options::default()).unwrap().flush(after(1)).unwrap();
    closer(lake.clone()).close(after(1), after(1)).unwrap();
    let mut holdings = closed(&lake, "allocations", &["pod", "interval_from", "interval_to"]);
    holdings.sort();
    assert_eq!(holdings, ["goes 0 360", "stays 0 -"], "one holding each, and the one that went has an end");
}
