//! The whole path of this crate: pages over HTTP and a kubelet on one side, a lake on the other.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use attribution::podres::v1;
use attribution::podres::v1::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use ingest::agent::{Agent, Options, Target, Topics};
use ingest::clock::VirtualClock;
use ingest::close::{self, Closer};
use ingest::publish::{ALLOCATIONS, NODES, SAMPLES};
use ingest::sink::{self, Sink, SinkError, Step};
use ingest::transport::local::{self, Log, TopicSpec};
use ingest::transport::{Record, Topic};
use lake::Lake;
use schemas::Timestamp;
use schemas::tables;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

const T0: &str = "2026-03-02T10:00:00Z";

fn at(seconds: i64) -> Timestamp {
    T0.parse::<Timestamp>().unwrap().plus_ms(seconds * 1000)
}

/// An exporter that answers what it is told to.
#[derive(Clone)]
pub struct Exporter {
    pub address: String,
    answer: Arc<Mutex<String>>,
}

impl Exporter {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let exporter = Exporter { address: listener.local_addr().unwrap().to_string(), answer: Arc::default() };
        let answer = exporter.answer.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move {
                    while stream.read(&mut [0; 4096]).await.is_ok_and(|n| n > 0) {
                        let text = answer.lock().unwrap().clone();
                        if stream.write_all(text.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        exporter
    }

    pub fn page(&self, body: &str) {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length:";
        *self.answer.lock().unwrap() = format!("{head} {}\r\n\r\n{body}", body.len());
    }

    fn error(&self, status: &str) {
        self.answer(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n"));
    }

    /// A whole answer, head and all.
    pub fn answer(&self, answer: String) {
        *self.answer.lock().unwrap() = answer;
    }
}

/// A kubelet whose pods are set from outside; none: its calls fail.
#[derive(Clone, Default)]
pub struct Kubelet(Arc<Mutex<Option<Pods>>>);

/// Names and device ids.
pub type Pods = Vec<(String, Vec<String>)>;

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(
        &self,
        _: tonic::Request<v1::ListPodResourcesRequest>,
    ) -> Result<tonic::Response<v1::ListPodResourcesResponse>, tonic::Status> {
        let pods = self.0.lock().unwrap().clone().ok_or_else(|| tonic::Status::unavailable("restarting"))?;
        let pod = |(name, device_ids): (String, Vec<String>)| v1::PodResources {
            name,
            namespace: "surf".into(),
            containers: vec![v1::ContainerResources {
                name: "main".into(),
                devices: vec![v1::ContainerDevices { resource_name: "nvidia.com/gpu".into(), device_ids, ..Default::default() }],
                ..Default::default()
            }],
            ..Default::default()
        };
        Ok(tonic::Response::new(v1::ListPodResourcesResponse { pod_resources: pods.into_iter().map(pod).collect() }))
    }

    async fn get_allocatable_resources(
        &self,
        _: tonic::Request<v1::AllocatableResourcesRequest>,
    ) -> Result<tonic::Response<v1::AllocatableResourcesResponse>, tonic::Status> {
        Err(tonic::Status::unimplemented("not asked here"))
    }

    async fn get(
        &self,
        _: tonic::Request<v1::GetPodResourcesRequest>,
    ) -> Result<tonic::Response<v1::GetPodResourcesResponse>, tonic::Status> {
        Err(tonic::Status::unimplemented("not asked here"))
    }
}

impl Kubelet {
    pub fn start(&self, socket: &Path) {
        let listener = UnixListener::bind(socket).unwrap();
        let service = PodResourcesListerServer::new(self.clone());
        let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
        tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    }

    pub fn pods(&self, pods: &[(&str, &[&str])]) {
        let owned = |(pod, ids): &(&str, &[&str])| ((*pod).to_owned(), ids.iter().map(|i| (*i).to_owned()).collect());
        *self.0.lock().unwrap() = Some(pods.iter().map(owned).collect());
    }

    fn fail(&self) {
        *self.0.lock().unwrap() = None;
    }
}

struct World {
    dir: tempfile::TempDir,
    exporter: Exporter,
    kubelet: Kubelet,
}

impl World {
    async fn new() -> Self {
        let world = World { dir: tempfile::tempdir().unwrap(), exporter: Exporter::start().await, kubelet: Kubelet::default() };
        world.kubelet.start(&world.socket());
        world
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("kubelet.sock")
    }

    fn log(&self) -> Log {
        open_log(self.dir.path())
    }

    fn agent(&self, log: &Log) -> Agent {
        let mut options = Options::new("reef");
        options.timeout = Duration::from_secs(2);
        options.state_file = Some(self.dir.path().join("state.json"));
        let target =
            Target { node: "dune-1".into(), address: self.exporter.address.parse().unwrap(), podres_socket: Some(self.socket()) };
        Agent::new(options, vec![target], topics(log), Arc::new(VirtualClock::at(at(0)))).unwrap()
    }

    fn lake(&self) -> Lake {
        Lake::create(&self.dir.path().join("lake")).unwrap()
    }

    fn sink(&self, log: &Log) -> Sink {
        Sink::open(self.lake(), all(log), sink::Options::default()).unwrap()
    }
}

pub fn open_log(dir: &Path) -> Log {
    let spec = |name| TopicSpec { name, partitions: 1 };
    Log::open(&dir.join("log"), &[SAMPLES, ALLOCATIONS, NODES].map(spec), local::Options::default()).unwrap()
}

pub fn topics(log: &Log) -> Topics {
    Topics {
        samples: log.topic(SAMPLES).unwrap(),
        allocations: log.topic(ALLOCATIONS).unwrap(),
        nodes: log.topic(NODES).unwrap(),
    }
}

pub fn all(log: &Log) -> Vec<Arc<dyn Topic>> {
    [SAMPLES, ALLOCATIONS, NODES].map(|name| log.topic(name).unwrap() as Arc<dyn Topic>).to_vec()
}

pub fn closer(lake: Lake) -> Closer {
    Closer::new(lake, close::Options { close_after_ms: 0, ..close::Options::default() })
}

/// A table's closed rows as text, one string a row, only the named columns.
pub fn closed(lake: &Lake, table: &'static str, columns: &[&str]) -> Vec<String> {
    let table = tables::get(table);
    let mut out = Vec::new();
    for file in lake.closed_files(table, None).unwrap() {
        for batch in lake::read::rows(table, &file.path, Some(columns)).unwrap() {
            out.extend((0..batch.num_rows()).map(|row| shown(&batch, row)));
        }
    }
    out
}

fn shown(batch: &RecordBatch, row: usize) -> String {
    let cell = |column: &Arc<dyn Array>| -> String {
        if column.is_null(row) {
            return "-".into();
        }
        if let Some(text) = column.as_string_opt::<i32>() {
            return text.value(row).to_owned();
        }
        if let Some(number) = column.as_primitive_opt::<Int64Type>() {
            return number.value(row).to_string();
        }
        if let Some(time) = column.as_primitive_opt::<TimestampMicrosecondType>() {
            return ((Timestamp::from_micros(time.value(row)).ms() - at(0).ms()) / 1000).to_string();
        }
        format!("{:?}", column.slice(row, 1))
    };
    batch.columns().iter().map(cell).collect::<Vec<_>>().join(" ")
}

fn page(devices: &[&str], util: i64) -> String {
    devices.iter().map(|d| format!("DCGM_FI_DEV_GPU_UTIL{{gpu=\"0\",UUID=\"{d}\",Hostname=\"dune-1\"}} {util}\n")).collect()
}

#[tokio::test]
async fn rounds_become_closed_hours_with_holders_failures_and_rejects() {
    let world = World::new().await;
    let log = world.log();
    let mut agent = world.agent(&log);
    world.kubelet.pods(&[("train-0", &["GPU-a"])]);
    world.exporter.page(&(page(&["GPU-a", "GPU-b"], 70) + "broken{ 1\nother_metric 5\n"));
    let report = agent.round(at(0)).await.unwrap();
    assert_eq!((report.by_status["ok"], report.devices, report.bad_lines, report.sightings), (1, 2, 1, 1));
    world.exporter.error("503 Busy");
    agent.round(at(30)).await.unwrap();
    world.exporter.page(&page(&["GPU-a"], 20));
    world.kubelet.fail();
    agent.round(at(60)).await.unwrap();
    world.kubelet.pods(&[]);
    agent.round(at(90)).await.unwrap();
    agent.round(at(120)).await.unwrap();
    agent.round(at(3600)).await.unwrap();

    let lake = world.lake();
    let mut sink = world.sink(&log);
    let report = sink.flush(at(3700)).unwrap();
    // Six rounds; the sighting of train-0, the first listing without it, and its end with the second.
    assert_eq!((report.records, report.unread(), report.buffered, report.behind_at), (9, 0, 0, None));
    let mut closer = closer(lake.clone());
    let report = closer.close(at(3600), at(3700)).unwrap();
    assert_eq!(report.watermark.unwrap().closed_to, at(3600));

    assert_eq!(
        closed(&lake, "scrapes", &["at", "sequence", "status", "devices", "bad_lines", "join_reason"]),
        ["0 1 ok 2 1 -", "30 2 http_5xx 0 0 -", "60 3 ok 1 0 list_failed", "90 4 ok 1 0 -", "120 5 ok 1 0 -"]
    );
    assert_eq!(
        closed(&lake, "gpu_samples", &["device", "at", "dev_gpu_util", "pod", "holders", "owner_source", "join_reason"]),
        [
            "GPU-a 0 70 train-0 1 podres -",
            "GPU-a 60 20 train-0 1 podres list_failed",
            "GPU-a 90 20 - 0 podres -",
            "GPU-a 120 20 - 0 podres -",
            "GPU-b 0 70 - 0 podres -",
        ]
    );
    assert_eq!(closed(&lake, "extra_samples", &["name", "labels", "at"]), ["other_metric {} 0"]);
    assert_eq!(closed(&lake, "rejects", &["line", "reason", "text", "rows"]), ["3 open_brace broken 1"]);
    assert_eq!(
        closed(&lake, "allocations", &["device", "pod", "source", "ids", "from_at", "to_at", "interval_to", "end_reason"]),
        ["GPU-a train-0 podres 1 0 120 120 unlisted"]
    );

    // Closing again with nothing new does nothing; the last hour closes when it is due.
    assert_eq!(closer.close(at(3600), at(3700)).unwrap().parts, Default::default());
    assert_eq!(self::closer(lake.clone()).close(at(3600), at(3700)).unwrap().parts, Default::default());
    assert_eq!(closer.close(at(7200), at(7300)).unwrap().parts.len(), 2, "scrapes and gpu_samples of the second hour");
    assert_eq!(closed(&lake, "scrapes", &["at"]).len(), 6);
}

/// A4: values that an exporter repeats because it collects more slowly are samples, and every round, failed ones too, carries
/// what the horizon is made of.
#[tokio::test]
async fn an_exporter_that_collects_every_30_s_gives_a_sample_every_15_s() {
    let world = World::new().await;
    let log = world.log();
    let mut options = Options::new("reef");
    options.collect_interval_ms = Some(30_000);
    let target = Target { node: "dune-1".into(), address: world.exporter.address.parse().unwrap(), podres_socket: None };
    let mut agent = Agent::new(options, vec![target], topics(&log), Arc::new(VirtualClock::at(at(0)))).unwrap();
    for (seconds, util) in [(0, Some(70)), (15, Some(70)), (30, Some(20)), (45, Some(20)), (60, None), (75, Some(20))] {
        match util {
            Some(util) => world.exporter.page(&page(&["GPU-a"], util)),
            None => world.exporter.error("503 Busy"),
        }
        agent.round(at(seconds)).await.unwrap();
    }
    world.sink(&log).flush(at(3700)).unwrap();
    closer(world.lake()).close(at(3600), at(3700)).unwrap();
    assert_eq!(
        closed(&world.lake(), "gpu_samples", &["at", "dev_gpu_util"]),
        ["0 70", "15 70", "30 20", "45 20", "75 20"],
        "equal values are not dropped: nothing tells a steady load from a repeated value"
    );
    let scrapes = closed(&world.lake(), "scrapes", &["at", "status", "interval_ms", "collect_interval_ms"]);
    assert_eq!(scrapes.len(), 6);
    assert!(scrapes.iter().all(|row| row.ends_with(" 15000 30000")), "{scrapes:?}");
    assert!(scrapes.contains(&"60 http_5xx 15000 30000".to_owned()), "{scrapes:?}");
}

#[tokio::test]
async fn a_restarted_agent_says_so_and_goes_on_where_it_was() {
    let world = World::new().await;
    world.kubelet.pods(&[("train-0", &["GPU-a"])]);
    world.exporter.page(&page(&["GPU-a"], 70));
    {
        let log = world.log();
        let mut agent = world.agent(&log);
        assert_eq!(agent.announce_restart(at(0)).await.unwrap(), 0, "the first start is none");
        agent.round(at(0)).await.unwrap();
        agent.round(at(30)).await.unwrap();
        // Dies with a round gathered and not taken.
        let lost = agent.gather(at(60)).await;
        assert_eq!(lost.report.by_status["ok"], 1);
    }
    let log = world.log();
    let mut agent = world.agent(&log);
    assert_eq!(agent.announce_restart(at(100)).await.unwrap(), 1);
    let report = agent.round(at(120)).await.unwrap();
    assert_eq!(report.sightings, 0, "the pod is known from before");
    world.kubelet.pods(&[]);
    agent.round(at(150)).await.unwrap();
    agent.round(at(180)).await.unwrap();
    let mut sink = world.sink(&log);
    sink.flush(at(3600)).unwrap();
    closer(world.lake()).close(at(3600), at(3600)).unwrap();
    assert_eq!(
        closed(&world.lake(), "scrapes", &["at", "sequence", "status"]),
        ["0 1 ok", "30 2 ok", "100 3 restarted", "120 4 ok", "150 5 ok", "180 6 ok"]
    );
    assert_eq!(closed(&world.lake(), "allocations", &["from_at", "to_at", "pod"]), ["0 180 train-0"]);
}

#[tokio::test]
async fn an_agent_may_publish_what_pages_show_as_inventory() {
    let world = World::new().await;
    let log = world.log();
    let mut options = Options::new("reef");
    options.publish_nodes = true;
    let target = Target { node: "dune-1".into(), address: world.exporter.address.parse().unwrap(), podres_socket: None };
    let clock = Arc::new(VirtualClock::at(at(0)));
    let mut agent = Agent::new(options, vec![target], topics(&log), clock).unwrap();
    let nodes = || log.topic(NODES).unwrap().bounds(0).unwrap().end;
    world.exporter.page(&page(&["GPU-a"], 1));
    agent.round(at(0)).await.unwrap();
    agent.round(at(30)).await.unwrap();
    assert_eq!(nodes(), 1, "what has not changed is not said again");
    world.exporter.page(&page(&["GPU-a", "GPU-b"], 1));
    agent.round(at(60)).await.unwrap();
    world.exporter.page(&page(&["GPU-b"], 1));
    agent.round(at(90)).await.unwrap();
    assert_eq!(nodes(), 2, "a page that lacks a GPU does not take it out of the inventory");
    agent.round(at(660)).await.unwrap();
    assert_eq!(nodes(), 3, "a whole state every ten minutes");
    world.sink(&log).flush(at(3600)).unwrap();
    closer(world.lake()).close(at(3600), at(3600)).unwrap();
    assert_eq!(
        closed(&world.lake(), "nodes", &["kind", "device", "from_at", "to_at", "source"]),
        ["device GPU-a 0 3600 agent", "device GPU-b 60 3600 agent", "node - 0 3600 agent"]
    );
}

pub fn round(node: &str, sequence: u64, seconds: i64) -> Record {
    use schemas::proto::{DeviceSample, Readings, Reject, ScrapeRound, Value};
    let mut readings = Readings::default();
    readings.set(203, Value::Int(sequence as i64 % 100));
    let device = |n: u32| DeviceSample { device: format!("GPU-{node}-{n}"), readings: Some(readings), ..Default::default() };
    let round = ScrapeRound {
        cluster: "reef".into(),
        node: node.into(),
        source: "page".into(),
        at_ms: at(seconds).ms(),
        sequence,
        status: "ok".into(),
        devices: vec![device(0), device(1)],
        rejects: vec![Reject { line: sequence as u32, reason: "bad_value".into(), text: "x".into() }],
        ..Default::default()
    };
    ingest::publish::round(round, 1 << 20).0.remove(0)
}

/// Every (node, sequence, device) of the hot tree, sorted.
fn hot(lake: &Lake, table: &'static str) -> Vec<String> {
    let table = tables::get(table);
    let columns: &[&str] =
        if table.name == "gpu_samples" { &["node", "sequence", "device"] } else { &["node", "at", "log_offset"] };
    let mut out = Vec::new();
    for file in lake.hot_files(table).unwrap() {
        for batch in lake::read::rows(table, &file.path, Some(columns)).unwrap() {
            out.extend((0..batch.num_rows()).map(|row| shown(&batch, row)));
        }
    }
    out.sort();
    out
}

fn only_samples(log: &Log) -> Vec<Arc<dyn Topic>> {
    vec![log.topic(SAMPLES).unwrap()]
}

/// A sink that dies at the n-th step, for every n, and is started again: everything is in the lake once.
#[test]
fn a_crash_at_any_step_of_publishing_loses_and_doubles_nothing() {
    // One message a fetch and a cut after four, so that the burst of ten is three cuts.
    let options = sink::Options { cut_rows: 15, fetch_bytes: 1, ..sink::Options::default() };
    let mut steps = 0;
    for crash_at in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let log = open_log(dir.path());
        let topic = log.topic(SAMPLES).unwrap();
        let lake = Lake::create(&dir.path().join("lake")).unwrap();
        let mut crashed = false;
        for burst in 0..3 {
            let records: Vec<Record> = (0..10).map(|n| round("n", burst * 10 + n + 1, (burst * 10 + n) as i64)).collect();
            topic.produce(&records).unwrap();
            let mut sink = Sink::open(lake.clone(), only_samples(&log), options.clone()).unwrap();
            if burst == 1 {
                let counter = Arc::new(Mutex::new(0));
                let count = counter.clone();
                sink.on_step(move |_| {
                    let mut n = count.lock().unwrap();
                    *n += 1;
                    if *n > crash_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                match sink.flush(at(100)) {
                    Ok(_) => steps = *counter.lock().unwrap(),
                    Err(SinkError::Stopped(_)) => crashed = true,
                    Err(error) => panic!("{error}"),
                }
            } else {
                sink.flush(at(100)).unwrap();
            }
        }
        let mut expected: Vec<String> = (1..=30).flat_map(|s| (0..2).map(move |d| format!("n {s} GPU-n-{d}"))).collect();
        expected.sort();
        assert_eq!(hot(&lake, "gpu_samples"), expected, "crash at step {crash_at}");
        assert_eq!((hot(&lake, "scrapes").len(), hot(&lake, "rejects").len()), (30, 30), "crash at step {crash_at}");
        intervals_tile(&lake, 30);
        if !crashed {
            break;
        }
    }
    assert_eq!(steps, 3 * 7, "three cuts of three tables, and every step of them was a crash");
}

/// The intervals of the first table cover `[0, end)` without gap or overlap.
fn intervals_tile(lake: &Lake, end: u64) {
    let mut next = 0;
    for file in lake.hot_files(tables::get("gpu_samples")).unwrap() {
        let footer = lake::read::footer(&file.path).unwrap();
        assert_eq!(file.key.start, next);
        next = footer.end.unwrap() + 1;
    }
    assert_eq!(next, end);
}

#[test]
fn a_writer_that_was_paused_loses_the_swap_and_goes_on_behind_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let topic = log.topic(SAMPLES).unwrap();
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let open = || Sink::open(lake.clone(), only_samples(&log), sink::Options::default()).unwrap();
    let (mut slow, mut fast) = (open(), open());
    topic.produce(&[round("n", 1, 0), round("n", 2, 1)]).unwrap();
    slow.step(at(0)).unwrap(); // has read both, has written nothing
    topic.produce(&[round("n", 3, 2)]).unwrap();
    fast.flush(at(1)).unwrap();
    topic.produce(&[round("n", 4, 3)]).unwrap();
    let report = slow.flush(at(2)).unwrap();
    assert_eq!((report.lost_swaps, report.unread()), (1, 1), "its buffer is dropped, the rest is to be read");
    slow.flush(at(3)).unwrap();
    fast.flush(at(4)).unwrap();
    assert_eq!(hot(&lake, "gpu_samples").len(), 8);
    assert_eq!((hot(&lake, "scrapes").len(), hot(&lake, "rejects").len()), (4, 4));
    intervals_tile(&lake, 4);
}

#[test]
fn a_writer_that_wakes_up_between_two_tables_finds_its_work_done() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let topic = log.topic(SAMPLES).unwrap();
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let mut first = Sink::open(lake.clone(), only_samples(&log), sink::Options::default()).unwrap();
    topic.produce(&[round("n", 1, 0)]).unwrap();
    // While the first writer stands between its files, another takes over, completes the interval and goes on.
    let (other_lake, topics) = (lake.clone(), only_samples(&log));
    first.on_step(move |step| {
        if step == Step::AfterFirst {
            let mut other = Sink::open(other_lake.clone(), topics.clone(), sink::Options::default()).unwrap();
            topics[0].produce(&[round("n", 2, 1)]).unwrap();
            other.flush(at(1)).unwrap();
        }
        ControlFlow::Continue(())
    });
    first.flush(at(2)).unwrap();
    assert_eq!((hot(&lake, "gpu_samples").len(), hot(&lake, "scrapes").len(), hot(&lake, "rejects").len()), (4, 2, 2));
    let report = Sink::open(lake.clone(), only_samples(&log), sink::Options::default()).unwrap().flush(at(3)).unwrap();
    assert_eq!(report.records, 0);
}

#[test]
fn logs_that_do_not_fit_the_lake_stop_the_sink_with_the_way_on() {
    let dir = tempfile::tempdir().unwrap();
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let open = |log: &Log, options: sink::Options| Sink::open(lake.clone(), only_samples(log), options);
    let log = open_log(dir.path());
    log.topic(SAMPLES).unwrap().produce(&[round("n", 1, 0), round("n", 2, 1)]).unwrap();
    open(&log, Default::default()).unwrap().flush(at(2)).unwrap();
    drop(log);
    // Created anew.
    std::fs::rename(dir.path().join("log"), dir.path().join("old")).unwrap();
    let log = open_log(dir.path());
    let error = open(&log, Default::default()).err().unwrap();
    assert!(matches!(error, SinkError::Recreated { .. }) && error.to_string().contains("--accept-new-topic"), "{error}");
    log.topic(SAMPLES).unwrap().produce(&[round("n", 3, 2)]).unwrap();
    open(&log, sink::Options { accept_new_topic: true, ..Default::default() }).unwrap().flush(at(3)).unwrap();
    open(&log, Default::default()).unwrap();
    assert_eq!(hot(&lake, "scrapes").len(), 3);
    drop(log);
    // The same id, but shorter: an old copy.
    let id = std::fs::read(dir.path().join("log").join(SAMPLES).join("topic")).unwrap();
    std::fs::remove_dir_all(dir.path().join("log")).unwrap();
    drop(open_log(dir.path()));
    std::fs::write(dir.path().join("log").join(SAMPLES).join("topic"), id).unwrap();
    let error = open(&open_log(dir.path()), Default::default()).err().unwrap();
    assert!(matches!(error, SinkError::Backwards { end: 0, pos: 1, .. }), "{error}");
}

#[test]
fn messages_that_were_dropped_unread_stop_the_sink_until_told() {
    let dir = tempfile::tempdir().unwrap();
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let small = local::Options { segment_bytes: 400, retention_ms: 1000, ..Default::default() };
    let log = Log::open(&dir.path().join("log"), &[TopicSpec { name: SAMPLES, partitions: 1 }], small).unwrap();
    let topic = log.topic(SAMPLES).unwrap();
    let mut sink = Sink::open(lake.clone(), only_samples(&log), Default::default()).unwrap();
    for n in 0..10 {
        topic.produce(&[round("n", n + 1, n as i64 * 10)]).unwrap();
    }
    log.retain(at(60).ms()).unwrap();
    let start = topic.bounds(0).unwrap().start;
    assert!(start > 2, "{start}");
    let error = sink.step(at(100)).unwrap_err();
    assert!(matches!(error, SinkError::Lost { pos: 0, .. }) && error.to_string().contains("--skip-lost"), "{error}");
    let told = sink::Options { skip_lost: true, ..Default::default() };
    Sink::open(lake.clone(), only_samples(&log), told).unwrap().flush(at(100)).unwrap();
    assert_eq!(hot(&lake, "scrapes").len() as u64, 10 - start);
    intervals_tile(&lake, 10);
    closer(lake.clone()).close(at(3600), at(3600)).unwrap();
    let rejects = closed(&lake, "rejects", &["reason", "rows"]);
    assert!(rejects.contains(&format!("lost {start}")), "{rejects:?}");
}

#[test]
fn messages_that_cannot_be_read_are_rejects_and_the_rest_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let bad = |topic: &str, value: &[u8]| {
        let record = Record { key: b"reef/dune-1".to_vec(), value: value.to_vec(), at_ms: at(5).ms() };
        log.topic(topic).unwrap().produce(&[record]).unwrap();
    };
    bad(SAMPLES, b"\xff\xff\xff");
    bad(ALLOCATIONS, b"");
    bad(NODES, b"\x0a\xff");
    log.topic(SAMPLES).unwrap().produce(&[round("dune-1", 1, 6)]).unwrap();
    let mut future = round("dune-1", 2, 7);
    future.value = {
        use schemas::proto::{Message, ScrapeRound};
        let mut round = ScrapeRound::decode(&*future.value).unwrap();
        round.at_ms = i64::MAX;
        round.encode_to_vec()
    };
    log.topic(SAMPLES).unwrap().produce(&[future]).unwrap();
    let mut sink = Sink::open(lake.clone(), all(&log), Default::default()).unwrap();
    let report = sink.flush(at(10)).unwrap();
    assert_eq!((report.records, report.rejects), (5, 5), "four messages and one line of a page");
    closer(lake.clone()).close(at(3600), at(3600)).unwrap();
    let rejects = closed(&lake, "rejects", &["cluster", "node", "source", "reason", "log_offset"]);
    assert_eq!(
        rejects,
        [
            "reef dune-1 strandline.allocations unknown_state 0",
            "reef dune-1 strandline.nodes undecodable 0",
            "reef dune-1 strandline.samples undecodable 0",
            "reef dune-1 page bad_value 1",
            "reef dune-1 strandline.samples bad_time 2",
        ]
    );
    assert_eq!(closed(&lake, "scrapes", &["sequence"]), ["1"]);
}

#[test]
fn repeats_are_dropped_and_late_rows_reopen_an_hour_until_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let topic = log.topic(SAMPLES).unwrap();
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let mut sink = Sink::open(lake.clone(), only_samples(&log), Default::default()).unwrap();
    let mut closer = closer(lake.clone());
    topic.produce(&[round("n", 1, 0), round("n", 1, 0), round("n", 2, 30), round("n", 3, 3600)]).unwrap();
    sink.flush(at(4000)).unwrap();
    let report = closer.close(at(3600), at(4000)).unwrap();
    assert_eq!((closed(&lake, "gpu_samples", &["at"]).len(), report.repeats), (4, 2 + 1 + 1), "rows of three tables");
    // A late round, and a repeat of one that is closed.
    topic.produce(&[round("n", 1, 0), round("late", 9, 60)]).unwrap();
    sink.flush(at(5000)).unwrap();
    let report = closer.close(at(3600), at(5000)).unwrap();
    assert_eq!(report.repeats, 4);
    assert_eq!(closed(&lake, "scrapes", &["node", "at"]), ["late 60", "n 0", "n 30"]);
    // The same, with a closer that starts anew: nothing to do.
    assert_eq!(self::closer(lake.clone()).close(at(3600), at(5000)).unwrap().parts, Default::default());
    // After a week it is too late.
    let week = 8 * 86_400;
    topic.produce(&[round("n", 10, 90), round("n", 11, week)]).unwrap();
    sink.flush(at(week + 10)).unwrap();
    let report = closer.close(at(week), at(week + 10)).unwrap();
    assert_eq!(report.late, 4, "two samples, a scrape and a reject");
    assert_eq!(closed(&lake, "scrapes", &["node", "at"]), ["late 60", "n 0", "n 30", "n 3600"]);
    let late: Vec<String> =
        closed(&lake, "rejects", &["reason", "source", "rows"]).into_iter().filter(|r| r.starts_with("late")).collect();
    assert_eq!(late, ["late gpu_samples 2", "late rejects 1", "late scrapes 1"]);
}

#[test]
fn an_hour_has_its_part_of_every_interval_and_later_states_correct_it() {
    use schemas::proto::{Device, Holding, Node};
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let mut sink = Sink::open(lake.clone(), all(&log), Default::default()).unwrap();
    let mut closer = closer(lake.clone());
    let holding = |id: &str, observed: i64, from: i64, to: Option<i64>, started: Option<i64>| {
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
            started_ms: started.map(|s| at(s).ms()),
            ended_ms: to.map(|s| at(s).ms()),
            ..Default::default()
        })
    };
    let allocations = log.topic(ALLOCATIONS).unwrap();
    let columns = &["holding_id", "from_at", "to_at", "interval_from", "interval_to", "started_at"];
    let h = 3600;
    allocations.produce(&[holding("a", 10, 5, None, None), holding("b", 100, 60, Some(90), Some(70))]).unwrap();
    sink.flush(at(h)).unwrap();
    closer.close(at(h), at(h)).unwrap();
    assert_eq!(closed(&lake, "allocations", columns), ["a 5 3600 5 - -", "b 60 90 60 90 70"]);

    // It goes on through the next hour; the first one is not written again for that.
    allocations.produce(&[holding("a", h + 10, 5, None, Some(h + 5))]).unwrap();
    sink.flush(at(2 * h)).unwrap();
    let report = closer.close(at(2 * h), at(2 * h)).unwrap();
    assert_eq!(report.parts["allocations"], 1);
    assert_eq!(closed(&lake, "allocations", columns)[2..], ["a 3600 7200 5 - 3605"]);

    // Its end lies in the second hour, and is learned late: that hour is corrected. An older state says nothing any more.
    allocations.produce(&[holding("a", 2 * h + 10, 5, Some(h + 1800), Some(h + 5)), holding("a", 3, 5, Some(7), None)]).unwrap();
    sink.flush(at(3 * h)).unwrap();
    let report = closer.close(at(3 * h), at(3 * h)).unwrap();
    assert_eq!(report.parts["allocations"], 1);
    let expected = ["a 5 3600 5 - -", "b 60 90 60 90 70", "a 3600 5400 5 5400 3605"];
    assert_eq!(closed(&lake, "allocations", columns), expected);
    assert_eq!(self::closer(lake.clone()).close(at(3 * h), at(3 * h)).unwrap().parts, Default::default());

    // A node's state is whole: a device that is gone from it is gone, and repeats change nothing.
    let node = |observed: i64, devices: &[&str]| {
        let device = |d: &&str| Device { device: (*d).into(), ..Default::default() };
        ingest::publish::node(&Node {
            cluster: "reef".into(),
            node: "n".into(),
            source: "sim".into(),
            observed_at_ms: at(observed).ms(),
            present_from_ms: at(0).ms(),
            devices: devices.iter().map(device).collect(),
            ..Default::default()
        })
    };
    log.topic(NODES).unwrap().produce(&[node(0, &["GPU-a", "GPU-b"])]).unwrap();
    sink.flush(at(3 * h)).unwrap();
    closer.close(at(3 * h), at(3 * h)).unwrap();
    assert_eq!(closed(&lake, "nodes", &["kind", "device"]).len(), 9, "three hours of a node and two devices");
    log.topic(NODES).unwrap().produce(&[node(600, &["GPU-a", "GPU-b"])]).unwrap();
    sink.flush(at(3 * h)).unwrap();
    assert_eq!(closer.close(at(3 * h), at(3 * h)).unwrap().parts, Default::default());
    log.topic(NODES).unwrap().produce(&[node(1200, &["GPU-a"])]).unwrap();
    sink.flush(at(3 * h)).unwrap();
    closer.close(at(3 * h), at(3 * h)).unwrap();
    assert_eq!(closed(&lake, "nodes", &["kind", "device"]).len(), 6);
}

/// What an agent tells of pod `a` on `GPU-a`, which it has seen since second 5.
fn sighting(observed: i64, listed: i64, ended: Option<i64>) -> ingest::transport::Record {
    ingest::publish::holding(schemas::proto::Holding {
        cluster: "reef".into(),
        node: "n".into(),
        source: "podres".into(),
        id: "a".into(),
        pod: "a".into(),
        device: "GPU-a".into(),
        observed_at_ms: at(observed).ms(),
        known_from_ms: Some(at(5).ms()),
        last_listed_ms: Some(at(listed).ms()),
        ended_ms: ended.map(|s| at(s).ms()),
        ..Default::default()
    })
}

/// Who is meant by a sighting hangs on when it was missed: an hour that was written before that was known is corrected.
#[test]
fn a_sighting_that_was_missed_in_a_closed_hour_corrects_it_and_listings_as_ever_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let mut sink = Sink::open(lake.clone(), all(&log), Default::default()).unwrap();
    let mut closer = closer(lake.clone());
    let h = 3600;
    let mut step = |now: i64, state: (i64, i64, Option<i64>)| {
        let topic = log.topic(ALLOCATIONS).unwrap();
        topic.produce(&[sighting(state.0, state.1, state.2)]).unwrap();
        sink.flush(at(now)).unwrap();
        let report = closer.close(at(now), at(now)).unwrap();
        let rows = closed(&lake, "allocations", &["from_at", "last_listed", "interval_to"]);
        (report.parts.get("allocations").copied().unwrap_or(0), rows)
    };
    let row = |text: &str| text.to_owned();
    assert_eq!(step(h, (h - 300, h - 300, None)), (1, vec![row("5 3300 -")]));
    // Listed as ever, told again: nothing that was written changes.
    assert_eq!(step(h, (h + 300, h + 300, None)), (0, vec![row("5 3300 -")]));
    // Missed once inside the hour, as is learned late.
    assert_eq!(step(h, (h + 330, h - 30, None)), (1, vec![row("5 3570 -")]));
    // There again: it goes on. Then it ends, last listed in the hour after, which is no matter of this one.
    assert_eq!(step(h, (h + 360, h + 360, None)), (1, vec![row("5 3960 -")]));
    assert_eq!(step(h, (h + 600, h + 540, Some(h + 600))), (0, vec![row("5 3960 -")]));
    let (parts, rows) = step(2 * h, (h + 601, h + 540, Some(h + 600)));
    assert_eq!((parts, rows), (1, vec![row("5 3960 -"), row("3600 4140 4200")]));
}

/// An hour in which nobody had news of a sighting is written again when there is.
#[test]
fn news_of_a_sighting_after_an_hour_without_any_corrects_that_hour() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let mut sink = Sink::open(lake.clone(), all(&log), Default::default()).unwrap();
    let mut closer = closer(lake.clone());
    let h = 3600;
    let mut told = |now: i64, listed: i64| {
        log.topic(ALLOCATIONS).unwrap().produce(&[sighting(listed, listed, None)]).unwrap();
        sink.flush(at(now)).unwrap();
        closer.close(at(now), at(now)).unwrap();
        closed(&lake, "allocations", &["from_at", "last_listed"])
    };
    assert_eq!(told(3 * h, 600), ["5 600", "3600 600", "7200 600"]);
    assert_eq!(told(3 * h, 2 * h + 60), ["5 600", "3600 7260", "7200 7260"]);
}

#[test]
fn what_a_pod_says_of_its_end_is_in_the_row_of_its_last_hour() {
    use schemas::proto::Holding;
    let dir = tempfile::tempdir().unwrap();
    let log = open_log(dir.path());
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let mut sink = Sink::open(lake.clone(), all(&log), Default::default()).unwrap();
    let mut closer = closer(lake.clone());
    let holding = |observed: i64, checkpoint: Option<i64>, end: Option<i64>| {
        ingest::publish::holding(Holding {
            cluster: "reef".into(),
            node: "n".into(),
            source: "api".into(),
            id: "a".into(),
            pod: "a".into(),
            observed_at_ms: at(observed).ms(),
            bound_ms: Some(at(5).ms()),
            last_checkpoint_ms: checkpoint.map(|c| at(c).ms()),
            ended_ms: end.map(|e| at(e).ms()),
            terminal_phase: end.map_or(String::new(), |_| "Failed".into()),
            shape: "pretraining".into(),
            ..Default::default()
        })
    };
    let h = 3600;
    let columns = &["from_at", "last_checkpoint", "terminal_phase", "shape"];
    let topic = log.topic(ALLOCATIONS).unwrap();
    topic.produce(&[holding(10, Some(8), None)]).unwrap();
    sink.flush(at(h)).unwrap();
    closer.close(at(h), at(h)).unwrap();
    // Later checkpoints and the end touch no hour that the pod filled before.
    topic.produce(&[holding(h + 9, Some(h + 7), None), holding(h + 90, Some(h + 60), Some(h + 80))]).unwrap();
    sink.flush(at(2 * h)).unwrap();
    assert_eq!(closer.close(at(2 * h), at(2 * h)).unwrap().parts["allocations"], 1);
    let expected = ["5 8 - pretraining".to_owned(), format!("{h} {} Failed pretraining", h + 60)];
    assert_eq!(closed(&lake, "allocations", columns), expected);
    // A time that is none refuses the state, not the message's neighbours.
    topic.produce(&[holding(3 * h, Some(-9_999_999_999_999), Some(h + 80))]).unwrap();
    sink.flush(at(3 * h)).unwrap();
    assert_eq!(closed(&lake, "allocations", columns), expected);
}
