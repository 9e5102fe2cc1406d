//! Targets that come and go under a running agent, and configurations that change under it.

use crate::kill::{Process, wait_for};
use crate::path::{Exporter, all, closed, closer, open_log, topics};
use ingest::agent::{Agent, Changed, Gathered, Options, Target};
use ingest::clock::{Clock, VirtualClock};
use ingest::publish::SAMPLES;
use ingest::sink::{self, Sink};
use ingest::transport::Topic;
use ingest::transport::local::{self, Log};
use lake::Lake;
use schemas::proto::{Message, ScrapeRound};
use schemas::{HOUR_MS, Timestamp};
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// An hour in the middle of an era.
const HOUR: Timestamp = Timestamp::from_ms(1_772_445_600_000);
const INTERVAL_MS: i64 = 15_000;

fn target(node: &str, exporter: &Exporter) -> Target {
    Target { node: node.into(), address: exporter.address.parse().unwrap(), podres_socket: None }
}

/// A target with an instant of its own: none that falls on a whole multiple of the interval, where this test looks.
fn off_the_multiples(node: &str, exporter: &Exporter, log: &Log) -> Target {
    let page = |n: i32| format!("http://{}/metrics?n={n}", exporter.address).parse().unwrap();
    let targets = (0..).map(|n| Target { node: node.into(), address: page(n), podres_socket: None });
    let due = |target: &Target| {
        let clock = Arc::new(VirtualClock::at(HOUR));
        Agent::new(Options::new("reef"), vec![target.clone()], topics(log), clock).unwrap().due()
    };
    targets.into_iter().find(|target| due(target) != Some(HOUR.plus_ms(INTERVAL_MS))).unwrap()
}

/// Rounds until `end`, each target at its instants.
async fn rounds_until(agent: &mut Agent, clock: &VirtualClock, end: Timestamp) {
    while let Some(due) = agent.due().filter(|due| *due < end) {
        clock.set(due);
        assert_eq!(agent.begin(due), 0, "no round is skipped");
        take(agent).await;
    }
    clock.set(end);
}

async fn take(agent: &mut Agent) {
    let mut gathered = Gathered::default();
    while agent.answered(&mut gathered).await {}
    agent.publish(vec![gathered]).await.unwrap();
}

#[tokio::test]
async fn targets_come_and_go_and_lose_no_round() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let clock = Arc::new(VirtualClock::at(HOUR));
    let mut options = Options::new("reef");
    options.state_file = Some(dir.path().join("state.json"));
    let exporters = [Exporter::start().await, Exporter::start().await, Exporter::start().await];
    let [a, b, c] = [0, 1, 2].map(|n| {
        exporters[n].page("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 1\n");
        off_the_multiples(["a", "b", "c"][n], &exporters[n], &log)
    });
    let mut agent = Agent::new(options.clone(), vec![a.clone(), b.clone()], topics(&log), clock.clone()).unwrap();
    let minute = |n: i64| HOUR.plus_ms(n * 60_000);
    rounds_until(&mut agent, &clock, minute(1)).await;

    // A change while every target is being asked: the rounds that were begun are taken, also of who leaves.
    let last = HOUR.plus_ms(60_000 + INTERVAL_MS);
    clock.set(last);
    assert_eq!(agent.begin(last), 0);
    let changed = agent.change(options.clone(), vec![b.clone(), c.clone()]).unwrap();
    assert_eq!((changed, agent.targets()), (Changed { gained: 1, lost: 1 }, 2));
    take(&mut agent).await;
    rounds_until(&mut agent, &clock, minute(2)).await;

    // Two of one name are refused, and nothing has changed.
    let twice = agent.change(options.clone(), vec![b.clone(), b.clone()]);
    assert!(twice.unwrap_err().to_string().contains("two targets are called b"));
    assert_eq!(agent.targets(), 2);

    // It comes back and goes on where it was; another interval holds from then on.
    options.interval_ms = 30_000;
    let changed = agent.change(options.clone(), vec![a.clone(), b.clone(), c.clone()]).unwrap();
    assert_eq!(changed, Changed { gained: 1, lost: 0 });
    rounds_until(&mut agent, &clock, minute(4)).await;
    // Also over a restart, of targets that are away meanwhile.
    agent.change(options.clone(), vec![b.clone()]).unwrap();
    take(&mut agent).await;
    drop(agent);
    let mut agent = Agent::new(options, vec![a, b], topics(&log), clock.clone()).unwrap();
    rounds_until(&mut agent, &clock, minute(5)).await;

    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    Sink::open(lake.clone(), all(&log), sink::Options::default()).unwrap().flush(HOUR.plus_ms(HOUR_MS)).unwrap();
    closer(lake.clone()).close(HOUR.plus_ms(HOUR_MS), HOUR.plus_ms(HOUR_MS)).unwrap();
    let mut of: BTreeMap<String, Vec<(i64, i64)>> = BTreeMap::new();
    for row in closed(&lake, "scrapes", &["node", "sequence", "interval_ms", "status"]) {
        let [node, sequence, interval, status] = row.split(' ').collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(status, "ok");
        of.entry(node.to_owned()).or_default().push((sequence.parse().unwrap(), interval.parse().unwrap()));
    }
    for rounds in of.values_mut() {
        rounds.sort_unstable();
        let sequences: Vec<i64> = rounds.iter().map(|(sequence, _)| *sequence).collect();
        assert_eq!(sequences, (1..=rounds.len() as i64).collect::<Vec<_>>(), "one after the other, over every change");
    }
    let count = |node: &str, interval: i64| of[node].iter().filter(|(_, of)| *of == interval).count();
    // A minute and the round under way at 15 s, two minutes away, two and one at 30 s: four rounds a minute, then two.
    assert_eq!((count("b", 15_000), count("b", 30_000)), (8, 6));
    assert_eq!((count("c", 15_000), count("c", 30_000)), (3, 4));
    assert_eq!((count("a", 15_000), count("a", 30_000)), (5, 6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_agent_reads_its_files_again() {
    let dir = tempfile::tempdir().unwrap();
    let exporters = [Exporter::start().await, Exporter::start().await, Exporter::start().await];
    for exporter in &exporters {
        exporter.page("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 1\nbad line\n");
    }
    let [a, b, c] = [0, 1, 2].map(|n| exporters[n].address.clone());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let file = dir.path().join("agent.yaml");
    let found = dir.path().join("sd.json");
    let configure = |more: &str| {
        let sd = found.display();
        let log = dir.path().join("log");
        let text = format!(
            "cluster: reef\nlog_dir: {}\ninterval: 100ms\nlisten: '{port}'\n{more}\n\
             file_sd_configs: [{{files: ['{sd}'], refresh_interval: 50ms}}]\n",
            log.display()
        );
        fs::write(&file, text).unwrap();
    };
    let find = |text: &str| {
        fs::write(dir.path().join("next"), text).unwrap();
        fs::rename(dir.path().join("next"), &found).unwrap();
    };
    configure(&format!("targets: [{{node: a, address: '{a}'}}]"));
    find("[]");
    let child = Command::new(env!("CARGO_BIN_EXE_strandline-ingest"))
        .args(["agent", "--config", file.to_str().unwrap()])
        .env("STRANDLINE_LOG", "off")
        .spawn()
        .unwrap();
    let mut agent = Process(child);
    let scraper = ingest::scrape::Scraper::new(Duration::from_secs(5), 1 << 20);
    let value = async |name: &str| -> Option<f64> {
        let body = scraper.get(&format!("http://127.0.0.1:{port}/metrics").parse().unwrap()).await.ok()?;
        let page = String::from_utf8(body.bytes.to_vec()).unwrap();
        page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    let until = async |name: &str, right: &dyn Fn(f64) -> bool| {
        let began = Instant::now();
        loop {
            let now = value(name).await;
            if now.is_some_and(right) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{name} is {now:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let ok = "strandline_ingest_rounds_total{status=\"ok\"} ";
    let goes_on = async || {
        let before = value(ok).await.unwrap_or_default();
        until(ok, &|now| now > before + 3.0).await;
    };
    let hup = |pid: u32| Command::new("kill").args(["-HUP", &pid.to_string()]).status().unwrap();
    until("strandline_ingest_targets ", &|n| n == 1.0).await;
    goes_on().await;
    until("strandline_ingest_bad_lines_total{reason=\"bad_value\"} ", &|n| n > 0.0).await;

    // Files: more, then a bad one, then fewer.
    find(&format!("[{{\"targets\": [\"{b}\", \"{c}\", \"{b}\"]}}]"));
    until("strandline_ingest_targets ", &|n| n == 3.0).await;
    find("[{");
    until("strandline_ingest_discovery_failures_total ", &|n| n == 1.0).await;
    goes_on().await;
    assert_eq!(value("strandline_ingest_targets ").await, Some(3.0));
    find("[]");
    until("strandline_ingest_targets ", &|n| n == 1.0).await;

    // The configuration: three bad ones, each refused whole, then a good one.
    for (n, bad) in ["targets: [", "targtes: []", "targets: []\ncluster: other"].iter().enumerate() {
        if bad.contains("cluster") {
            configure(bad);
            fs::write(&file, fs::read_to_string(&file).unwrap().replacen("cluster: reef\n", "", 1)).unwrap();
        } else {
            configure(bad);
        }
        hup(agent.0.id());
        until("strandline_ingest_reloads_total{result=\"failed\"} ", &|failed| failed == n as f64 + 1.0).await;
        goes_on().await;
        assert_eq!(value("strandline_ingest_targets ").await, Some(1.0), "{bad}");
    }
    configure(&format!("targets: [{{node: a, address: '{a}'}}, {{node: b, address: '{b}'}}]"));
    hup(agent.0.id());
    until("strandline_ingest_reloads_total{result=\"ok\"} ", &|ok| ok == 1.0).await;
    until("strandline_ingest_targets ", &|n| n == 2.0).await;
    goes_on().await;
    let ready = scraper.get(&format!("http://127.0.0.1:{port}/-/ready").parse().unwrap()).await;
    assert!(ready.is_ok(), "rounds are taken: {ready:?}");
    assert!(value("strandline_ingest_round_milliseconds_total{status=\"ok\"} ").await.is_some());
    let _ = Command::new("kill").arg(agent.0.id().to_string()).status().unwrap();
    wait_for("end", || agent.0.try_wait().unwrap().is_some());
    assert_eq!(agent.0.try_wait().unwrap().unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_told_to_end_takes_the_rounds_that_it_began() {
    let dir = tempfile::tempdir().unwrap();
    let (log, port) = (dir.path().join("log"), std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
    // An exporter that answers when it is told to.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let file = dir.path().join("agent.yaml");
    let text = format!(
        "cluster: reef\nlog_dir: {}\ninterval: 200ms\ntimeout: 30s\nlisten: '{port}'\ntargets: [{{node: a, address: '{}'}}]\n",
        log.display(),
        listener.local_addr().unwrap()
    );
    fs::write(&file, text).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_strandline-ingest"))
        .args(["agent", "--config", file.to_str().unwrap()])
        .env("STRANDLINE_LOG", "off")
        .spawn()
        .unwrap();
    let mut agent = Process(child);
    let page = "DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 1\n";
    let (mut asked, _) = listener.accept().await.unwrap();
    let mut request = [0; 4096];
    assert!(asked.read(&mut request).await.unwrap() > 0);
    let scraper = ingest::scrape::Scraper::new(Duration::from_secs(5), 1 << 20);
    let get = async |path: &str| scraper.get(&format!("http://127.0.0.1:{port}{path}").parse().unwrap()).await;
    assert!(get("/-/healthy").await.is_ok());
    assert!(get("/-/ready").await.is_err(), "no round was taken yet");
    let _ = Command::new("kill").arg(agent.0.id().to_string()).status().unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(agent.0.try_wait().unwrap().is_none(), "it waits for the answer");
    asked.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}", page.len()).as_bytes()).await.unwrap();
    tokio::task::block_in_place(|| wait_for("end", || agent.0.try_wait().unwrap().is_some()));
    assert_eq!(agent.0.try_wait().unwrap().unwrap().code(), Some(0));
    let log = Log::reader(&log, local::Options::default()).unwrap();
    let taken = log.topic(SAMPLES).unwrap().fetch(0, 0, 1 << 20).unwrap().messages;
    let rounds: Vec<ScrapeRound> = taken.iter().map(|message| ScrapeRound::decode(&*message.value).unwrap()).collect();
    let [round] = rounds.as_slice() else { panic!("{rounds:?}") };
    assert_eq!((round.status.as_str(), round.devices.len()), ("ok", 1));
}

#[tokio::test]
async fn a_target_that_does_not_answer_in_time_delays_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let good = Exporter::start().await;
    good.page("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 1\n");
    // Listens and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let slow =
        Target { node: "slow".into(), address: silent.local_addr().unwrap().to_string().parse().unwrap(), podres_socket: None };
    let clock = Arc::new(VirtualClock::at(HOUR));
    let options = Options { timeout: Duration::from_secs(20), ..Options::new("reef") };
    let mut agent = Agent::new(options, vec![target("good", &good), slow], topics(&log), clock.clone()).unwrap();
    let end = HOUR.plus_ms(INTERVAL_MS);
    while let Some(due) = agent.due().filter(|due| *due <= end) {
        clock.set(due);
        agent.begin(due);
    }
    let mut gathered = Gathered::default();
    assert!(agent.answered(&mut gathered).await);
    assert_eq!(gathered.report.by_status, [("ok", 1)].into(), "the one that answers is there while the other is waited for");
    assert!(agent.is_asking());
    // Its next round has no time, and that is told.
    let next = clock.now().plus_ms(INTERVAL_MS);
    clock.set(next);
    assert_eq!(agent.begin(next), 1);
}

#[tokio::test]
async fn every_failure_is_a_round_with_its_status_and_without_samples() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let exporter = Exporter::start().await;
    let options = Options { timeout: Duration::from_millis(500), max_body_bytes: 1000, ..Options::new("reef") };
    let clock = Arc::new(VirtualClock::at(HOUR));
    let nobody = Target { node: "nobody".into(), address: "127.0.0.1:1".parse().unwrap(), podres_socket: None };
    let mut agent = Agent::new(options, vec![target("dune-1", &exporter), nobody], topics(&log), clock).unwrap();
    let sample = "DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 1\n";
    let answer = |head: &str, body: &str| format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let openmetrics = "200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0";
    let cut = format!("HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{sample}");
    for (text, status) in [
        (answer("200 OK", sample), "ok"),
        (answer(openmetrics, &format!("{sample}# EOF\n")), "ok"),
        (answer("404 Not Found", sample), "http_4xx"),
        (answer("503 Busy", sample), "http_5xx"),
        (answer("302 Found\r\nLocation: /", sample), "parse_error"),
        (answer("200 OK\r\nContent-Type: application/json", sample), "parse_error"),
        (answer("200 OK", "<html>"), "parse_error"),
        (answer("200 OK\r\nContent-Encoding: gzip", sample), "parse_error"),
        (answer(openmetrics, sample), "parse_error"),
        (answer("200 OK", &sample.repeat(100)), "too_large"),
        (answer("200 OK", ""), "empty"),
        (answer("200 OK", "# HELP a b\n"), "empty"),
        (answer(openmetrics, "# EOF\n"), "empty"),
        (cut, "timeout"),
    ] {
        exporter.answer(text.clone());
        let report = agent.round(HOUR).await.unwrap();
        let expected = BTreeMap::from([(status, 1), ("refused", 1)]);
        assert_eq!(report.by_status, expected, "{text}");
        assert_eq!(report.devices, u64::from(status == "ok"), "{text}");
    }
}
