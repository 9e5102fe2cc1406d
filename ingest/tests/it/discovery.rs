//! An agent that lives by a real API server: exporters that come and go, devices by claim, the clocks, and a server that is away.

use crate::cluster::{Cluster, Wire, until};
use crate::kubelet::{Kubelet, PodsApi};
use crate::path::Exporter;
use ingest::clock::{Clock, SystemClock};
use ingest::config::{AgentArgs, AgentConfig};
use ingest::publish::{ALLOCATIONS, SAMPLES};
use ingest::run::{self, Reload};
use ingest::scrape::Scraper;
use ingest::transport::Topic;
use ingest::transport::local::{self, Log};
use schemas::Timestamp;
use schemas::proto::{Allocation, Holding, Message, ScrapeRound, allocation};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// A clock that is ahead of the machine's, which is the API server's.
struct Ahead(i64);

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        SystemClock.now().plus_ms(self.0)
    }

    fn sleep_until(&self, at: Timestamp) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        SystemClock.sleep_until(at.plus_ms(-self.0))
    }
}

const AHEAD_MS: i64 = 3_000;

/// An agent in this process, and its pages.
struct Agent {
    log: PathBuf,
    port: u16,
    stop: oneshot::Sender<()>,
    work: JoinHandle<()>,
}

impl Agent {
    /// `more`: lines of its file.
    fn start(dir: &Path, more: &str) -> Self {
        let (file, log) = (dir.join("agent.yaml"), dir.join("log"));
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let text = format!("cluster: reef\nlog_dir: {}\ninterval: 200ms\nlisten: '{port}'\n{more}\n", log.display());
        std::fs::write(&file, text).unwrap();
        let config = AgentConfig::load(AgentArgs { config: Some(file), ..AgentArgs::default() }).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (_, asked) = mpsc::channel(1);
        let again = config.clone();
        let reload = Reload { asked, load: Box::new(move || Ok(again.clone())) };
        let work = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            run::agent(config, reload, Arc::new(Ahead(AHEAD_MS)), stopped).await.unwrap();
        });
        Agent { log, port, stop, work }
    }

    /// The value of a series of its page.
    async fn value(&self, series: &str) -> Option<f64> {
        let page = format!("http://127.0.0.1:{}/metrics", self.port).parse().unwrap();
        let body = Scraper::new(Duration::from_secs(5), 1 << 20).get(&page).await.ok()?;
        let text = String::from_utf8(body.bytes.to_vec()).unwrap();
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    async fn becomes(&self, series: &str, right: impl Fn(f64) -> bool) {
        for _ in 0..1200 {
            if self.value(series).await.is_some_and(&right) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{series} is {:?} after a minute", self.value(series).await);
    }

    async fn rounds_go_on(&self) {
        let ok = "strandline_ingest_rounds_total{status=\"ok\"}";
        let before = self.value(ok).await.unwrap_or_default();
        self.becomes(ok, |now| now > before + 3.0).await;
    }

    /// What was taken of a topic, in order.
    fn taken(&self, topic: &str) -> Vec<Vec<u8>> {
        let Ok(log) = Log::reader(&self.log, local::Options::default()) else { return Vec::new() };
        let topic = log.topic(topic).unwrap();
        let bounds = topic.bounds(0).unwrap();
        let (mut next, mut taken) = (bounds.start, Vec::new());
        while next < bounds.end {
            let fetched = topic.fetch(0, next, 1 << 20).unwrap();
            next = fetched.next;
            taken.extend(fetched.messages.into_iter().map(|message| message.value.to_vec()));
        }
        taken
    }

    fn rounds(&self) -> Vec<ScrapeRound> {
        self.taken(SAMPLES).iter().map(|value| ScrapeRound::decode(&**value).unwrap()).collect()
    }

    /// The last state of a holding by number.
    fn holding(&self, id: &str) -> Option<Holding> {
        let holding = |value: &Vec<u8>| match Allocation::decode(&**value).unwrap().state {
            Some(allocation::State::Holding(holding)) => Some(holding).filter(|h| h.source == "api" && h.id == id),
            _ => None,
        };
        self.taken(ALLOCATIONS).iter().filter_map(holding).next_back()
    }

    async fn end(self) {
        self.stop.send(()).unwrap();
        self.work.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_lives_by_a_real_api_server() {
    let cluster = Cluster::start().await;
    cluster.furnish().await;
    let wire = Wire::to(cluster.port).await;
    let account = cluster.kubeconfig("strandline", "strandline-agent", wire.port).await;
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start().await;
    exporter.page(
        "DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 1\n\
         DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-b\",GPU_I_ID=\"9\",GPU_I_PROFILE=\"1g.10gb\"} 1\n",
    );
    let (_, page_port) = exporter.address.rsplit_once(':').unwrap();
    let socket = dir.path().join("kubelet.sock");
    let kubelet = Kubelet::start(&socket);
    let slice = |generation: u32, devices: serde_json::Value| {
        let pool = json!({"name": "n1", "generation": generation, "resourceSliceCount": 1});
        json!({
            "metadata": {"name": format!("s{generation}")},
            "spec": {"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": pool, "devices": devices},
        })
    };
    let slices = "/apis/resource.k8s.io/v1/resourceslices";
    let first = json!({"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-a"}}});
    cluster.create(slices, slice(1, json!([first.clone()]))).await;
    cluster.exporter("exporter-1", "n1", page_port).await;
    cluster.exporter("elsewhere", "cpu-1", page_port).await;
    let how = format!(
        "kubernetes: {{kubeconfig: '{}', node: n1, podres_socket: '{}', refresh_interval: 1s}}",
        account.display(),
        socket.display()
    );
    kubelet.claims("claimer", "two", "n1", "gpu-0");
    let agent = Agent::start(dir.path(), &how);
    agent.becomes("strandline_ingest_targets", |n| n == 1.0).await;
    agent.rounds_go_on().await;

    // A device by claim, and the clocks' difference with each round.
    let held = |agent: &Agent, device: usize, pod: &str| {
        let rounds = agent.rounds();
        let holder = rounds.last().and_then(|round| round.devices.get(device)?.holders.first().cloned());
        holder.filter(|holder| holder.pod == pod)
    };
    until("claimer on GPU-a", || held(&agent, 0, "claimer")).await;
    let skew = until("skew", || agent.rounds().last().and_then(|round| round.skew_ms)).await;
    assert!((AHEAD_MS - 300..=AHEAD_MS + 300).contains(&skew), "{skew}");
    agent.becomes("strandline_ingest_api_clock_ahead_seconds", |ahead| (-3.3..=-2.7).contains(&ahead)).await;

    // A monitor that looks at the same device: it holds nothing, at no instant.
    cluster.claim_with_admin_access("watch", "gpu-0").await;
    kubelet.claims("monitor", "watch", "n1", "gpu-0");
    agent.rounds_go_on().await;
    until("monitor known", || agent.rounds().last().filter(|round| round.unmatched_ids.is_empty()).map(|_| ())).await;
    agent.rounds_go_on().await;
    let rounds = agent.rounds();
    let holders = || rounds.iter().flat_map(|round| &round.devices).flat_map(|device| &device.holders);
    assert!(holders().all(|holder| holder.pod != "monitor"), "a monitor was taken for a holder");
    assert!(held(&agent, 0, "claimer").is_some());

    // A device that nobody knows: its slice is new.
    kubelet.claims("small", "three", "n1", "gpu-1-mig");
    until("unmatched device", || agent.rounds().last().filter(|round| !round.unmatched_ids.is_empty()).map(|_| ())).await;
    let attributes = json!({
        "uuid": {"string": "MIG-x"}, "parentUUID": {"string": "GPU-b"}, "profile": {"string": "1g.10gb"},
    });
    cluster.create(slices, slice(2, json!([first, {"name": "gpu-1-mig", "attributes": attributes}]))).await;
    until("small on GPU-b/9", || held(&agent, 1, "small")).await;
    assert_eq!(agent.rounds().last().unwrap().devices[1].device, "GPU-b/9");

    // A pod that cannot be scraped costs no other, and is counted once.
    cluster.exporter("bad", "n1", "many").await;
    agent.becomes("strandline_ingest_discovery_failures_total", |n| n == 1.0).await;
    agent.rounds_go_on().await;
    assert_eq!(agent.value("strandline_ingest_targets").await, Some(1.0));
    cluster.delete("bad").await;

    // The server is away: what it told stands.
    let failures = "strandline_ingest_api_failures_total{reason=\"unreachable\"}";
    assert_eq!(agent.value(failures).await, Some(0.0));
    wire.cut();
    agent.becomes(failures, |n| n >= 2.0).await;
    agent.rounds_go_on().await;
    assert_eq!(agent.value("strandline_ingest_targets").await, Some(1.0));
    assert!(held(&agent, 0, "claimer").is_some(), "and so does what claims name");
    wire.mend();

    // An exporter goes, and another comes to its place: rounds go on by their numbers.
    cluster.delete("exporter-1").await;
    agent.becomes("strandline_ingest_targets", |n| n == 0.0).await;
    cluster.exporter("exporter-2", "n1", page_port).await;
    agent.becomes("strandline_ingest_targets", |n| n == 1.0).await;
    agent.rounds_go_on().await;
    assert_eq!(agent.value("strandline_ingest_discovery_failures_total").await, Some(1.0));
    agent.end().await;

    // The next run begins without the server. Its target is found later, and the record of the restart stands before its rounds.
    wire.cut();
    let agent = Agent::start(dir.path(), &how);
    agent.becomes(failures, |n| n >= 1.0).await;
    agent.becomes("strandline_ingest_targets", |n| n == 0.0).await;
    wire.mend();
    agent.becomes("strandline_ingest_targets", |n| n == 1.0).await;
    agent.rounds_go_on().await;
    let rounds = agent.rounds();
    agent.end().await;
    let sequences: Vec<u64> = rounds.iter().map(|round| round.sequence).collect();
    assert_eq!(sequences, (1..=rounds.len() as u64).collect::<Vec<_>>(), "one target, one number after the other");
    let restarts: Vec<&ScrapeRound> = rounds.iter().filter(|round| round.status == "restarted").collect();
    assert_eq!(restarts.len(), 1, "of two runs");
    assert!(restarts[0].error.ends_with(&format!("had sequence {}", restarts[0].sequence - 1)), "{}", restarts[0].error);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nodes_own_kubelet_tells_who_holds_what_where_its_socket_is() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start().await;
    exporter.page("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 1\n");
    let (podres, pods) = (dir.path().join("kubelet.sock"), dir.path().join("pods.sock"));
    Kubelet::start(&podres).holds("p", &["GPU-a"]);
    let more = format!(
        "targets: [{{node: n1, address: '{}', podres_socket: '{}'}}]\npods_socket: '{}'",
        exporter.address,
        podres.display(),
        pods.display()
    );
    let agent = Agent::start(dir.path(), &more);
    // An older kubelet has no such socket: that is counted, and all else is as it was.
    agent.becomes("strandline_ingest_local_pods_failures_total{reason=\"no_socket\"}", |n| n >= 1.0).await;
    agent.rounds_go_on().await;
    assert!(agent.taken(ALLOCATIONS).len() == 1, "the sighting alone");
    let ready = Scraper::new(Duration::from_secs(5), 1 << 20);
    assert!(ready.get(&format!("http://127.0.0.1:{}/-/ready", agent.port).parse().unwrap()).await.is_ok());

    let api = PodsApi::start(&pods);
    let bound = Ahead(0).now().ms() / 1000 - 60;
    api.pod(Some(("p", "u-1", bound)));
    let held = until("holding of p", || agent.holding("u-1")).await;
    assert_eq!((held.pod.as_str(), held.team.as_str(), held.count, held.bound_ms), ("p", "search", Some(1), Some(bound * 1000)));
    let uid = |agent: &Agent| {
        let rounds = agent.rounds();
        let holder = rounds.last().and_then(|round| round.devices.first()?.holders.first().cloned());
        holder.filter(|holder| holder.pod_uid == "u-1")
    };
    until("UID of the sample's holder", || uid(&agent)).await;
    agent.end().await;

    // It goes while nobody watches.
    api.pod(None);
    let agent = Agent::start(dir.path(), &more);
    let ended = until("end of p", || agent.holding("u-1").filter(|h| h.ended_ms.is_some())).await;
    assert_eq!((ended.bound_ms, ended.flags.as_slice()), (Some(bound * 1000), ["end_inferred".to_owned()].as_slice()));
    agent.end().await;
}
