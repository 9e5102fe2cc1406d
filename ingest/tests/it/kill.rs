//! `kill -9` of the real processes under load, again and again: every taken round is in the lake once.

use crate::path::{Exporter, closer};
use ingest::publish::{ALLOCATIONS, NODES, SAMPLES};
use ingest::sink::{self, Sink};
use ingest::transport::Topic;
use ingest::transport::local::{self, Log};
use lake::Lake;
use schemas::proto::{Message, ScrapeRound};
use schemas::{Timestamp, tables};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NODES_OF_FLEET: usize = 12;

/// A process that goes when the test does.
pub struct Process(pub Child);

impl Process {
    pub fn start(arguments: &[&str], config: &Path) -> Self {
        Self::listening(0, arguments, config)
    }

    /// The same with its pages at `port`; 0: anywhere.
    pub fn listening(port: u16, arguments: &[&str], config: &Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_strandline-ingest"))
            .args(arguments)
            .arg("--config")
            .arg(config)
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .env("STRANDLINE_LOG", "error")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Process(child)
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        assert!(self.0.try_wait().unwrap().is_none(), "it had ended by itself");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Asks it to end, and waits for that. Its exit code.
    pub fn ends(mut self) -> Option<i32> {
        let asked = Command::new("kill").arg(self.0.id().to_string()).status().unwrap();
        assert!(asked.success());
        wait_for("end", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Status and body of a page that a process serves about itself; none where nobody listens yet.
pub fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// Waits until `done`, at most three minutes: a machine may be busy.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(180), "no {what} within three minutes");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Messages of a topic, with their partitions and offsets.
fn messages(dir: &Path, topic: &str) -> Vec<(u32, u64, Vec<u8>)> {
    let Ok(log) = Log::reader(&dir.join("log"), local::Options::default()) else { return Vec::new() };
    let Ok(topic) = log.topic(topic) else { return Vec::new() };
    let mut out = Vec::new();
    for partition in 0..topic.partitions() {
        let fetched = topic.fetch(partition, 0, usize::MAX).unwrap();
        out.extend(fetched.messages.into_iter().map(|m| (partition, m.offset, m.value.to_vec())));
    }
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_under_load_loses_and_doubles_nothing() {
    let exporter = Exporter::start().await;
    exporter.page("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 1\nDCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-b\"} 2\nbroken{ 1\n");
    let dir = tempfile::tempdir().unwrap();
    let targets: String = (0..NODES_OF_FLEET).map(|n| format!("  - {{node: n{n}, address: '{}'}}\n", exporter.address)).collect();
    let log_dir = dir.path().join("log");
    let agent = dir.path().join("agent.yaml");
    std::fs::write(
        &agent,
        format!("cluster: reef\nlog_dir: {}\nlog_partitions: 2\ninterval: 10ms\ntargets:\n{targets}", log_dir.display()),
    )
    .unwrap();
    let sink = dir.path().join("sink.yaml");
    let lake_dir = dir.path().join("lake");
    std::fs::write(
        &sink,
        format!("lake: {}\nlog_dir: {}\ncut_age: 50ms\ncut_rows: 100\n", lake_dir.display(), log_dir.display()),
    )
    .unwrap();

    let lake = Lake::create(&lake_dir).unwrap();
    let hot = |lake: &Lake| lake.hot_files(tables::get("gpu_samples")).unwrap().len();
    let restarts = 5;
    tokio::task::block_in_place(|| {
        for life in 0..restarts {
            let agent = Process::start(&["agent"], &agent);
            let sink = Process::start(&["sink"], &sink);
            let (taken, files) = (messages(dir.path(), SAMPLES).len(), hot(&lake));
            // Each life ends in the middle of something else: after a few rounds, a few files, or both.
            wait_for("round", || messages(dir.path(), SAMPLES).len() > taken + NODES_OF_FLEET * (3 + life));
            wait_for("hot file", || hot(&lake) > files + life % 3);
            if life % 2 == 0 {
                agent.kill();
                sink.kill();
            } else {
                sink.kill();
                agent.kill();
            }
        }
    });

    // The last life is in this process: read what is left, and close all hours.
    let log = open_log_with(dir.path());
    let topics = [SAMPLES, ALLOCATIONS, NODES].map(|name| log.topic(name).unwrap() as Arc<dyn Topic>).to_vec();
    let far = Timestamp::from_ms(4_102_444_800_000); // 2100
    Sink::open(lake.clone(), topics, sink::Options::default()).unwrap().flush(far).unwrap();
    closer(lake.clone()).close(far, far).unwrap();

    let all = messages(dir.path(), SAMPLES);
    let mut taken: BTreeSet<(String, i64, u64)> = BTreeSet::new();
    let mut restarted: BTreeMap<String, u64> = BTreeMap::new();
    let mut ok = 0;
    for (_, _, value) in &all {
        let round = ScrapeRound::decode(&**value).unwrap();
        ok += usize::from(round.status == "ok");
        *restarted.entry(round.node.clone()).or_default() += u64::from(round.status == "restarted");
        assert!(taken.insert((round.node, round.at_ms, round.sequence)), "no sequence is used twice");
    }
    assert!(taken.len() > NODES_OF_FLEET * 3 * restarts);
    assert_eq!(restarted.len(), NODES_OF_FLEET);
    assert!(restarted.values().all(|n| *n == restarts as u64 - 1), "{restarted:?}");

    // Hot files hold every offset once.
    let mut offsets: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
    let scrapes = tables::get("scrapes");
    for file in lake.hot_files(scrapes).unwrap() {
        let partition = i64::from(file.key.partition);
        for batch in lake::read::rows(scrapes, &file.path, Some(&["log_offset"])).unwrap() {
            use arrow::array::AsArray;
            let column = batch.column(0).as_primitive::<arrow::datatypes::Int64Type>();
            offsets.entry(partition).or_default().extend(column.values().iter().map(|o| *o as u64));
        }
    }
    for (partition, mut found) in offsets {
        found.sort_unstable();
        let expected: Vec<u64> = all.iter().filter(|m| i64::from(m.0) == partition).map(|m| m.1).collect();
        assert_eq!(found, expected, "partition {partition}");
    }
    // Closed hours hold every round once.
    let closed = crate::path::closed(&lake, "scrapes", &["node", "sequence"]);
    let mut expected: Vec<String> = taken.iter().map(|(node, _, sequence)| format!("{node} {sequence}")).collect();
    let mut found = closed.clone();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    let samples = crate::path::closed(&lake, "gpu_samples", &["node"]).len();
    assert_eq!(samples, ok * 2, "two devices a round; under this load some rounds time out");
}

fn open_log_with(dir: &Path) -> Log {
    let spec = |name| local::TopicSpec { name, partitions: 2 };
    Log::open(&dir.join("log"), &[SAMPLES, ALLOCATIONS, NODES].map(spec), local::Options::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_agent_says_that_it_is_ready_and_what_it_did() {
    let exporter = Exporter::start().await;
    exporter.page("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 1\nbroken{ 1\n");
    let dir = tempfile::tempdir().unwrap();
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let child = Command::new(env!("CARGO_BIN_EXE_strandline-ingest"))
        .args(["agent", "--node", "n", "--interval", "50ms", "--target", &exporter.address])
        .args(["--listen", &port.to_string()])
        .env("STRANDLINE_CLUSTER", "reef")
        .env("STRANDLINE_LOG_DIR", dir.path())
        .env("STRANDLINE_LOG", "error")
        .spawn()
        .unwrap();
    let agent = Process(child);
    let scraper = ingest::scrape::Scraper::new(Duration::from_secs(5), 1 << 20);
    let get = |path: &str| {
        let address = format!("http://127.0.0.1:{port}{path}").parse().unwrap();
        let scraper = scraper.clone();
        async move { scraper.get(&address).await.map(|body| String::from_utf8(body.bytes.to_vec()).unwrap()) }
    };
    let began = Instant::now();
    while get("/-/ready").await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(60), "not ready within a minute");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let page = get("/metrics").await.unwrap();
    let value = |name: &str| page.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<f64>().ok());
    assert!(value("strandline_ingest_rounds_total{status=\"ok\"} ").is_some_and(|n| n >= 1.0), "{page}");
    assert!(value("strandline_ingest_bad_lines_total{reason=\"open_brace\"} ").is_some_and(|n| n >= 1.0), "{page}");
    // Our own page is one that we can read.
    let read = ingest::page::read(page.as_bytes(), None, &Default::default()).unwrap();
    assert_eq!(read.counts.bad_lines, 0);
    // Asked to end, it ends well.
    assert_eq!(agent.ends(), Some(0));
}

#[test]
fn wrong_configuration_is_exit_code_2_and_help_has_an_example() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_strandline-ingest")).args(arguments).env_clear().output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (code, text) = run(&["agent"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("no cluster; give --cluster"), "{text}");
    assert_eq!(run(&["agent", "--no-such-flag"]).0, Some(2));
    assert_eq!(run(&["sink", "--lake", "/dev/null/x", "--log-dir", "/x", "--listen", "0"]).0, Some(1));
    let (code, text) =
        run(&["sink", "--lake", "/dev/null/x", "--log-dir", "/x", "--listen", "0", "--web-config-file", "/no/such/web.yml"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("web-config file of this process's own pages: cannot read /no/such/web.yml; check the path"), "{text}");
    for command in ["agent", "sink", "allocations"] {
        let (code, text) = run(&[command, "--help"]);
        assert_eq!(code, Some(0));
        assert!(text.contains("--web-config-file <FILE>") && text.contains("STRANDLINE_WEB_CONFIG_FILE"), "{text}");
        assert!(text.contains("Example:") && text.contains("STRANDLINE_LOG_DIR"), "{text}");
    }
}
