//! A real Prometheus scrapes the exporter for two minutes: every scrape is taken, and the queries of dashboards answer as they should.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    exporter_program::{Running, eight, free_port, kubelets},
    world::{World, text, tree},
};

struct Prometheus {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// Scrapes `target` each second.
    fn start(target: u16) -> Self {
        let made = Command::new(tree("x")).arg("prometheus").output().unwrap();
        assert!(made.status.success(), "{}", text(&made));
        let program = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        let yaml = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
             scrape_configs: [{{job_name: gpus, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
        );
        std::fs::write(&config, yaml).unwrap();
        let port = free_port();
        let child = Command::new(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=error")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, port, _folder: folder }
    }

    fn get(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// Labels and value of each series of an answer.
    fn ask(&self, query: &str) -> Vec<(Value, f64)> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.get(&format!("/api/v1/query?query={encoded}")).unwrap_or_default();
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        let series = answer["data"]["result"].as_array().unwrap();
        series.iter().map(|one| (one["metric"].clone(), one["value"][1].as_str().unwrap().parse().unwrap())).collect()
    }

    /// The one value of an answer.
    fn one(&self, query: &str) -> f64 {
        match self.ask(query).as_slice() {
            [(_, value)] => *value,
            other => panic!("{query}: {other:?}"),
        }
    }
}

#[test]
fn a_real_prometheus_takes_every_scrape_and_dashboards_answer() {
    // A clock that runs: power changes, energy grows.
    let world = World::new(&eight(), "h100-0", 47, 1.0);
    let standing = World::new(&eight(), "h100-0", 47, 0.0);
    let folder = tempfile::tempdir().unwrap();
    let (_runtime, kubelets) = kubelets(&standing, folder.path());
    let socket = kubelets.socket("h100-0");
    let running = Running::start(&world, &["-k", "--pod-resources-kubelet-socket", socket.to_str().unwrap()]);
    let prometheus = Prometheus::start(running.port);
    let began = Instant::now();
    let scrapes = |prometheus: &Prometheus| {
        prometheus
            .get("/api/v1/query?query=count_over_time(up[10m])")
            .and_then(|answer| answer["data"]["result"][0]["value"][1].as_str()?.parse::<u32>().ok())
    };
    while scrapes(&prometheus).is_none_or(|scrapes| scrapes < 120) {
        assert!(began.elapsed() < Duration::from_secs(400), "two minutes of scrapes do not come: {:?}", scrapes(&prometheus));
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(prometheus.one("min_over_time(up[10m])"), 1.0, "every scrape was taken");
    assert!(prometheus.one("min_over_time(scrape_samples_scraped[90s])") > 250.0);
    let slowest = prometheus.one("quantile_over_time(0.99, scrape_duration_seconds[10m])");
    assert!(slowest < 0.5, "a scrape takes {slowest} s, network and parsing included");

    // What NVIDIA's dashboard of dcgm-exporter shows, by its metric and label names.
    assert_eq!(prometheus.ask("count by (instance) (DCGM_FI_DEV_GPU_TEMP)")[0].1, 8.0);
    assert_eq!(prometheus.ask("count by (gpu, modelName, hostname) (DCGM_FI_DEV_GPU_TEMP{gpu=~\".+\"})").len(), 8);
    let celsius = prometheus.one("avg(DCGM_FI_DEV_GPU_TEMP)");
    assert!((20.0..95.0).contains(&celsius), "{celsius}");
    let watts = prometheus.one("sum(DCGM_FI_DEV_POWER_USAGE)");
    assert!((8.0 * 50.0..8.0 * 700.0).contains(&watts), "{watts}");
    for (query, range) in [
        ("DCGM_FI_DEV_SM_CLOCK * 1000000", 1e8..3e9),
        ("DCGM_FI_DEV_GPU_UTIL", 0.0..100.1),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.0..1.001),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.0..1.001),
        ("DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE + DCGM_FI_DEV_FB_RESERVED", 80_000.0..82_000.0),
        ("DCGM_FI_DEV_MEM_COPY_UTIL", 0.0..100.1),
    ] {
        let series = prometheus.ask(query);
        assert_eq!(series.len(), 8, "{query}");
        assert!(series.iter().all(|(_, value)| range.contains(value)), "{query}: {series:?}");
    }
    // Energy is the integral of power, whichever way it is asked for.
    for gpu in 0..8 {
        let by_counter = prometheus.one(&format!("rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu=\"{gpu}\"}}[1m]) / 1000"));
        let by_gauge = prometheus.one(&format!("avg_over_time(DCGM_FI_DEV_POWER_USAGE{{gpu=\"{gpu}\"}}[1m])"));
        assert!((by_counter / by_gauge - 1.0).abs() < 0.1, "GPU {gpu}: {by_counter} W by its counter, {by_gauge} W by its gauge");
    }
    // By pod, without a GPU counted twice; free ones are there without a pod.
    let of_pods = prometheus.one("sum(DCGM_FI_DEV_FB_USED{exported_pod!=\"\"} or DCGM_FI_DEV_FB_USED{pod!=\"\"})");
    assert!(of_pods > 0.0 && of_pods <= prometheus.one("sum(DCGM_FI_DEV_FB_USED)"));

    // Ours.
    assert_eq!(prometheus.one("strandline_gpus_expected - strandline_gpus_seen"), 0.0);
    let shares = prometheus.ask("sum by (UUID) (strandline_gpu_holder_share_ratio)");
    assert!(!shares.is_empty() && shares.iter().all(|(_, share)| (share - 1.0).abs() < 1e-9), "{shares:?}");
    let split = prometheus.one("sum(strandline_gpu_holder_share_ratio * on (UUID) group_left () DCGM_FI_DEV_FB_USED)");
    assert!((split - of_pods).abs() < 1.0, "parts of holders are the whole: {split} and {of_pods}");
    assert!(prometheus.one("max(max_over_time(strandline_reading_age_seconds{group=\"device\"}[1m]))") < 2.0);
    assert_eq!(prometheus.one("sum(strandline_gpu_owners == 0 or strandline_gpu_owners > 0) - sum(strandline_gpu_owners)"), 0.0);
    assert_eq!(prometheus.ask("strandline_gpu_state{state=\"ok\"} == 1").len(), 8);
    assert!(prometheus.one("sum(rate(strandline_library_calls_total[1m]))") > 8.0);
    let quiet = prometheus.ask("increase(strandline_collection_errors_total[5m]) > 0");
    assert!(quiet.is_empty(), "{quiet:?}");
}
