//! `allocations` against a real API server: watches, owners, claims, a lost watch (410 Gone), a change of leader, and rights.

use crate::broker;
use crate::cluster::{Cluster, PODS, Wire, pod, reference, until};
use crate::kafka::topics_of;
use crate::kill::{Process, wait_for};
use attribution::pods::{Options, asks_for_devices};
use attribution::watch::owners::{Owners, of_pod};
use attribution::watch::{Api, Event, Lease, LeaseOptions, Resource, Standing, Told, follow, list_slices};
use ingest::allocations::books::Recalled;
use ingest::allocations::run::{Reload, Topics, follow_cluster};
use ingest::allocations::{AllocationsArgs, AllocationsConfig};
use ingest::clock::{Clock, SystemClock};
use ingest::kubernetes::{Discovery, Found, targets};
use ingest::publish::{self, ALLOCATIONS, NODES};
use ingest::scrape::Scraper;
use ingest::transport::local::{self, Log, TopicSpec};
use ingest::transport::{Record, Topic};
use schemas::proto::{Demand, Holding, Node};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use web::{Metrics, Ready};

/// What the log tells, latest states first to last.
#[derive(Clone)]
struct States(Arc<dyn Topic>, Arc<dyn Topic>);

impl States {
    fn all(topic: &dyn Topic, read: fn(&[u8], &str) -> Option<Recalled>) -> Vec<Recalled> {
        let mut latest: BTreeMap<_, Recalled> = BTreeMap::new();
        for partition in 0..topic.partitions() {
            let bounds = topic.bounds(partition).unwrap();
            let mut next = bounds.start;
            while next < bounds.end {
                let fetched = topic.fetch(partition, next, 1 << 20).unwrap();
                for state in fetched.messages.iter().filter_map(|m| read(&m.value, "reef")) {
                    if latest.get(&state.id()).is_none_or(|known| known.order() <= state.order()) {
                        latest.insert(state.id(), state);
                    }
                }
                next = fetched.next;
            }
        }
        latest.into_values().collect()
    }

    fn holding(&self, pod: &str) -> Option<Holding> {
        Self::all(&*self.0, Recalled::allocation).into_iter().find_map(|state| match state {
            Recalled::Holding(h) if h.pod == pod => Some(*h),
            _ => None,
        })
    }

    fn demand(&self, pod: &str) -> Option<Demand> {
        Self::all(&*self.0, Recalled::allocation).into_iter().find_map(|state| match state {
            Recalled::Demand(d) if d.pod == pod => Some(*d),
            _ => None,
        })
    }

    fn node(&self, name: &str) -> Option<Node> {
        Self::all(&*self.1, Recalled::node).into_iter().find_map(|state| match state {
            Recalled::Node(n) if n.node == name => Some(*n),
            _ => None,
        })
    }
}

/// What an agent tells of a pod that its kubelet lists on one device of n1.
fn sighting(pod: &str, at_ms: i64) -> Record {
    let holding = Holding {
        cluster: "reef".into(),
        node: "n1".into(),
        source: "podres".into(),
        id: format!("ml/{pod}/main/GPU-{pod}@{at_ms}"),
        observed_at_ms: at_ms,
        namespace: "ml".into(),
        pod: pod.into(),
        container: "main".into(),
        device: format!("GPU-{pod}"),
        ..Holding::default()
    };
    Record { at_ms, ..publish::holding(holding) }
}

/// One process of the role, as a runtime of its own: when that is shut down, all of it stops at once.
struct Member {
    dir: tempfile::TempDir,
    hangup: mpsc::Sender<()>,
    metrics: Metrics,
    ready: Ready,
    stop: Option<oneshot::Sender<()>>,
    work: Option<JoinHandle<()>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Member {
    fn start(identity: &str, lease_s: u32, kubeconfig: &Path, topics: &Topics) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("allocations.yaml");
        let teams = dir.path().join("teams.yaml");
        let text = format!(
            "lease_duration: {lease_s}s\nlease_namespace: strandline\ntimeout: 5s\nreconcile_after: 1s\n\
             team: [{{namespace_label: team}}, {{mapping_file: '{}'}}]\nagent_logs: ['{}']\n",
            teams.display(),
            dir.path().join("agent").display()
        );
        std::fs::write(&teams, "lab: red\n").unwrap();
        std::fs::write(&file, text).unwrap();
        let args = AllocationsArgs {
            config: Some(file),
            cluster: Some("reef".into()),
            kubeconfig: Some(kubeconfig.to_owned()),
            identity: Some(identity.into()),
            log_dir: Some("unused".into()),
            ..AllocationsArgs::default()
        };
        let config = AllocationsConfig::load(args.clone()).unwrap();
        let (hangup, asked) = mpsc::channel(1);
        let reload = Reload { asked, load: Box::new(move || AllocationsConfig::load(args.clone())) };
        let (metrics, ready, topics) = (Metrics::new(), Ready::new(), topics.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let work = {
            let (metrics, ready) = (metrics.clone(), ready.clone());
            runtime.spawn(async move {
                let stopped = async {
                    let _ = stopped.await;
                };
                let clock = Arc::new(SystemClock);
                follow_cluster(&config, reload, topics, clock, &metrics, &ready, stopped, |_| {}).await.unwrap();
            })
        };
        Member { dir, hangup, metrics, ready, stop: Some(stop), work: Some(work), runtime: Some(runtime) }
    }

    fn counts(&self, series: &str) -> f64 {
        let page = self.metrics.render();
        let line = page.lines().find(|line| line.starts_with(series) && line[series.len()..].starts_with(' '));
        line.map_or(f64::NAN, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
    }

    async fn ready(&self) {
        until("ready member", || self.ready.get().then_some(())).await;
    }

    async fn leads(&self) {
        until("leader", || (self.counts("strandline_ingest_leader") == 1.0).then_some(())).await;
    }

    async fn end(mut self) {
        let _ = self.stop.take().unwrap().send(());
        self.work.take().unwrap().await.unwrap();
    }
}

impl Cluster {
    async fn deployment(&self) -> Value {
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "template": template});
        let path = "/apis/apps/v1/namespaces/ml";
        let made = self
            .create(
                &format!("{path}/deployments"),
                json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}),
            )
            .await;
        let metadata = json!({"name": "web-abc", "ownerReferences": [reference(&made)]});
        let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec});
        self.create(&format!("{path}/replicasets"), set).await
    }

    async fn cron_job(&self) -> Value {
        let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}});
        let spec = json!({"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": template}}});
        let path = "/apis/batch/v1/namespaces/ml";
        let cron = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"}, "spec": spec});
        let cron = self.create(&format!("{path}/cronjobs"), cron).await;
        let metadata = json!({"name": "nightly-1", "ownerReferences": [reference(&cron)]});
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}});
        self.create(&format!("{path}/jobs"), job).await
    }
}

fn topics(dir: &Path) -> (Log, Topics) {
    let specs = [ALLOCATIONS, NODES].map(|name| TopicSpec { name, partitions: 1 });
    let log = Log::open(dir, &specs, local::Options::default()).unwrap();
    let topics = Topics { allocations: log.topic(ALLOCATIONS).unwrap(), nodes: log.topic(NODES).unwrap() };
    (log, topics)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_api_server_is_followed_through_lost_watches_and_leaders() {
    let mut cluster = Cluster::start().await;
    cluster.furnish().await;
    let wire = Wire::to(cluster.port).await;
    let config = cluster.kubeconfig("strandline", "strandline-allocations", wire.port).await;
    let dir = tempfile::tempdir().unwrap();
    let (_log, topics) = topics(dir.path());
    let told = States(topics.allocations.clone(), topics.nodes.clone());
    let now = || SystemClock.now().ms();

    // What was there before the first list, and what comes after it.
    let set = cluster.deployment().await;
    cluster.create(PODS, pod("web-1", 2, Some(&set), json!({}))).await;
    cluster.create(PODS, pod("cpu-only", 0, Some(&set), json!({}))).await;
    let began = now();
    cluster.bind("web-1", "n1").await;
    let first = Member::start("first", 120, &config, &topics);
    let web = until("holding of web-1", || told.holding("web-1")).await;
    assert_eq!((web.node.as_str(), web.count, web.resource.as_str()), ("n1", Some(2), "nvidia.com/gpu"));
    assert_eq!((web.team.as_str(), web.queue.as_str(), web.workload.as_str()), ("search", "night", "Deployment/web"));
    let bound = web.bound_ms.unwrap();
    assert!((began - 1000..=now()).contains(&bound), "a whole second of the API server: {bound}, began {began}");
    assert_eq!((bound % 1000, web.flags.clone()), (0, Vec::<String>::new()));
    let node = until("node n1", || told.node("n1")).await;
    assert_eq!((node.capacity_gpus, node.allocatable_gpus), (Some(8), Some(8)));
    let labels = [&node.product, &node.region, &node.provider, &node.purchase_option].map(String::as_str);
    assert_eq!(labels, ["NVIDIA-H100-80GB-HBM3", "r1", "aws", "spot"]);
    assert!(told.node("cpu-1").is_none(), "a node without GPUs");
    first.ready().await;

    // What kubelets say beside it, one here and one in the log of an agent: one device of the two, and a pod that the API server
    // does not know.
    let disagree = |kind: &str| first.counts(&format!("strandline_ingest_reconciliation_pods{{kind=\"{kind}\"}}"));
    assert!(disagree("number").is_nan(), "nobody has heard of a kubelet");
    topics.allocations.produce(&[sighting("web-1", now())]).unwrap();
    let spec = TopicSpec { name: ALLOCATIONS, partitions: 1 };
    let agent = Log::open(&first.dir.path().join("agent"), &[spec], local::Options::default()).unwrap();
    agent.topic(ALLOCATIONS).unwrap().produce(&[sighting("ghost", now())]).unwrap();
    until("disagreement", || (disagree("number") == 1.0 && disagree("podres_only") == 1.0).then_some(())).await;
    assert_eq!(disagree("api_only"), 0.0);

    // A node that gives GPUs by claims alone.
    cluster.create("/api/v1/nodes", json!({"metadata": {"name": "claims-1"}})).await;
    let device = |uuid: &str| json!({"name": uuid.to_lowercase(), "attributes": {"uuid": {"string": uuid}, "productName": {"string": "NVIDIA H200"}}});
    let pool = json!({"name": "claims-1", "generation": 1, "resourceSliceCount": 1});
    let devices = json!([device("GPU-x"), device("GPU-y")]);
    let spec = json!({"driver": "gpu.nvidia.com", "nodeName": "claims-1", "pool": pool, "devices": devices});
    cluster.create("/apis/resource.k8s.io/v1/resourceslices", json!({"metadata": {"name": "c1"}, "spec": spec})).await;
    let node = until("node claims-1", || told.node("claims-1")).await;
    assert_eq!((node.capacity_gpus, node.allocatable_gpus, node.product.as_str()), (Some(2), Some(2), "NVIDIA H200"));

    // A namespace whose team a file says: another file, then a bad one.
    cluster.create("/api/v1/namespaces", json!({"metadata": {"name": "lab"}})).await;
    let mut lab = pod("lab-1", 1, None, json!({"nodeName": "n1"}));
    lab["metadata"]["namespace"] = json!("lab");
    lab["metadata"]["labels"]["user_email"] = json!("someone");
    cluster.create("/api/v1/namespaces/lab/pods", lab).await;
    let team = |team: &'static str| {
        let told = &told;
        until("team", move || told.holding("lab-1").filter(|h| h.team == team).map(drop))
    };
    team("red").await;
    assert!(first.counts("strandline_ingest_refused_labels_total") >= 1.0);
    std::fs::write(first.dir.path().join("teams.yaml"), "lab: blue\n").unwrap();
    first.hangup.send(()).await.unwrap();
    team("blue").await;
    let reloads = |result: &str| first.counts(&format!("strandline_ingest_reloads_total{{result=\"{result}\"}}"));
    std::fs::write(first.dir.path().join("teams.yaml"), "[").unwrap();
    first.hangup.send(()).await.unwrap();
    until("refusal", || (reloads("failed") == 1.0).then_some(())).await;
    assert_eq!((reloads("ok"), told.holding("lab-1").unwrap().team.as_str()), (1.0, "blue"));
    std::fs::write(first.dir.path().join("teams.yaml"), "lab: blue\n").unwrap();

    let job = cluster.cron_job().await;
    cluster.create(PODS, pod("nightly-1-x", 1, Some(&job), json!({}))).await;
    let waiting = until("demand", || told.demand("nightly-1-x")).await;
    assert_eq!((waiting.gpus, waiting.ended_ms, waiting.team.as_str()), (1, None, "search"));
    cluster.bind("nightly-1-x", "n1").await;
    let nightly = until("holding of nightly-1-x", || told.holding("nightly-1-x")).await;
    assert_eq!(nightly.workload, "CronJob/nightly");
    until("demand that is met", || told.demand("nightly-1-x").filter(|d| d.outcome == "bound")).await;
    // A JobSet whose kind the server does not have: what is known, flagged. A PyTorchJob is a top by itself.
    let owner =
        |kind: &str, version: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "big", "uid": kind}});
    let set = owner("JobSet", "jobset.x-k8s.io/v1alpha2");
    cluster.create(PODS, pod("set-1", 1, Some(&set), json!({"nodeName": "n1"}))).await;
    let torch = owner("PyTorchJob", "kubeflow.org/v1");
    cluster.create(PODS, pod("torch-1", 1, Some(&torch), json!({}))).await;
    cluster.bind("torch-1", "n1").await;
    let set = until("holding of set-1", || told.holding("set-1")).await;
    assert_eq!(
        (set.workload.as_str(), set.flags.as_slice()),
        ("JobSet/big", ["bind_inferred", "workload_partial"].map(String::from).as_slice())
    );
    assert_eq!(until("holding of torch-1", || told.holding("torch-1")).await.workload, "PyTorchJob/big");

    // A claim of a driver that is configured; the pod asks for no resource by name.
    let claims = "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims";
    let request = json!({"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}});
    let claim = json!({"metadata": {"name": "two"}, "spec": {"devices": {"requests": [request]}}});
    cluster.create(claims, claim).await;
    let by_claim = json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "two"}]});
    let made = cluster.create(PODS, pod("claimer", 0, None, by_claim)).await;
    let result = json!({"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"});
    let status = json!({"status": {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "claimer", "uid": made["metadata"]["uid"]}],
    }});
    cluster.call("PATCH", &format!("{claims}/two/status"), Some(status)).await;
    cluster.bind("claimer", "n1").await;
    let claimer = until("holding of the claimer", || told.holding("claimer")).await;
    assert_eq!((claimer.resource.as_str(), claimer.count), ("gpu.nvidia.com", Some(1)));

    // Cordon, terminal phase with its own time, removal.
    cluster.call("PATCH", "/api/v1/nodes/n1", Some(json!({"spec": {"unschedulable": true}}))).await;
    until("cordon", || told.node("n1").filter(|n| n.unavailable.iter().any(|u| u.reason == "cordoned" && u.to_ms.is_none())))
        .await;
    let finished = (now() / 1000 + 1) * 1000;
    let at = schemas::Timestamp::from_ms(finished).to_string();
    while now() <= finished + 1500 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ended = json!({"exitCode": 0, "startedAt": at, "finishedAt": at});
    let state =
        json!([{"name": "main", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": ended}}]);
    let status = json!({"status": {"phase": "Succeeded", "containerStatuses": state}});
    cluster.call("PATCH", &format!("{PODS}/nightly-1-x/status"), Some(status)).await;
    let nightly = until("end of nightly-1-x", || told.holding("nightly-1-x").filter(|h| h.ended_ms.is_some())).await;
    assert_eq!((nightly.ended_ms, nightly.end_reason.as_str()), (Some(finished), "terminal"));
    cluster.delete("torch-1").await;
    let torch = until("end of torch-1", || told.holding("torch-1").filter(|h| h.ended_ms.is_some())).await;
    assert_eq!((torch.end_reason.as_str(), torch.flags.len()), ("removed", 0));

    // The wire breaks; what happens then is known to etcd alone, and soon not even to it.
    cluster.create(PODS, pod("goes", 1, None, json!({}))).await;
    cluster.bind("goes", "n1").await;
    until("holding of goes", || told.holding("goes")).await;
    assert_eq!(first.counts("strandline_ingest_api_failures_total{reason=\"gone\"}"), 0.0);
    wire.cut();
    let cut_at = now();
    cluster.delete("goes").await;
    cluster.create(PODS, pod("comes", 1, None, json!({}))).await;
    cluster.bind("comes", "n1").await;
    cluster.stop_api();
    cluster.compact();
    cluster.start_api().await;
    wire.mend();
    let goes = until("end of goes", || told.holding("goes").filter(|h| h.ended_ms.is_some())).await;
    assert_eq!((goes.end_reason.as_str(), goes.flags.as_slice()), ("removed", ["end_inferred".to_owned()].as_slice()));
    assert!(goes.ended_ms.unwrap() > cut_at - 2000);
    let comes = until("holding of comes", || told.holding("comes")).await;
    assert!(comes.bound_ms.unwrap() <= goes.ended_ms.unwrap() && comes.flags.is_empty(), "{comes:?}");
    assert!(first.counts("strandline_ingest_api_failures_total{reason=\"gone\"}") >= 1.0, "{}", first.metrics.render());
    assert_eq!(told.holding("web-1").unwrap().ended_ms, None, "none is lost");
    assert_eq!(told.holding("web-1").unwrap().bound_ms, Some(bound));
    until("leader again", || (first.counts("strandline_ingest_leader") == 1.0).then_some(())).await;
    first.ready().await;

    // It ends in order, and one whose lease is short goes on at once.
    first.end().await;
    let first = Member::start("short", 3, &config, &topics);
    first.leads().await;
    first.ready().await;

    // Another stands by; the leader dies without a word. A bind that only a receipt tells stands.
    let set_before = told.holding("set-1").unwrap();
    let second = Member::start("second", 3, &config, &topics);
    second.ready().await;
    assert_eq!(second.counts("strandline_ingest_leader"), 0.0);
    drop(first);
    cluster.delete("set-1").await;
    cluster.create(PODS, pod("later", 1, None, json!({}))).await;
    second.leads().await;
    let set = until("end of set-1", || told.holding("set-1").filter(|h| h.ended_ms.is_some())).await;
    assert_eq!((set.bound_ms, set.workload), (set_before.bound_ms, set_before.workload));
    assert!(set.flags.contains(&"end_inferred".to_owned()) && set.flags.contains(&"bind_inferred".to_owned()), "{:?}", set.flags);
    until("demand of later", || told.demand("later")).await;
    second.ready().await;

    // It ends in order and gives the lease up, and a third goes on at once; a wait that ended meanwhile is known to have.
    second.end().await;
    cluster.delete("later").await;
    let third = Member::start("third", 3, &config, &topics);
    third.leads().await;
    let later = until("end of the wait", || told.demand("later").filter(|d| d.ended_ms.is_some())).await;
    assert_eq!(later.outcome, "withdrawn");
    assert!(told.holding("cpu-only").is_none() && told.demand("cpu-only").is_none());
    third.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_told_over_a_real_kafka_and_the_process_ends_in_order() {
    let cluster = Cluster::start().await;
    cluster.furnish().await;
    let account = cluster.kubeconfig("strandline", "strandline-allocations", cluster.port).await;
    let mut broker = tokio::task::block_in_place(|| broker::Cluster::plain(1));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("allocations.yaml");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let text = format!(
        "cluster: reef\nkubeconfig: '{}'\nidentity: one\nlease_namespace: strandline\nlease_duration: 120s\n\
         reconcile_after: 1s\nlisten: '{port}'\n\
         kafka: {{bootstrap_servers: '{}', partitions: 2, replication: 1, timeout: 2s}}\n",
        account.display(),
        broker.address()
    );
    std::fs::write(&file, text).unwrap();
    let start = || {
        let child = Command::new(env!("CARGO_BIN_EXE_strandline-ingest"))
            .args(["allocations", "--config", file.to_str().unwrap()])
            .env("STRANDLINE_LOG", "error")
            .spawn();
        Process(child.unwrap())
    };
    let scraper = Scraper::new(Duration::from_secs(5), 1 << 20);
    let get = async |path: &str| {
        let body = scraper.get(&format!("http://127.0.0.1:{port}{path}").parse().unwrap()).await;
        body.map(|body| String::from_utf8(body.bytes.to_vec()).unwrap())
    };
    cluster.create(PODS, pod("web-1", 2, None, json!({}))).await;
    cluster.bind("web-1", "n1").await;
    let mut process = start();
    let kafka = tokio::task::block_in_place(|| topics_of(&broker));
    let told = States(kafka[1].clone(), kafka[2].clone());
    let holding = |pod: &str| tokio::task::block_in_place(|| told.holding(pod));
    let web = until("holding of web-1", || holding("web-1")).await;
    assert_eq!((web.count, web.team.as_str()), (Some(2), "search"));
    until("node n1", || tokio::task::block_in_place(|| told.node("n1"))).await;
    for _ in 0..600 {
        if get("/-/ready").await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(get("/-/ready").await.is_ok() && get("/-/healthy").await.is_ok());

    // What the agents tell in the same topic is compared with it.
    tokio::task::block_in_place(|| told.0.produce(&[sighting("ghost", SystemClock.now().ms())])).unwrap();
    let disagree = "strandline_ingest_reconciliation_pods{kind=\"podres_only\"} 1";
    for _ in 0..1200 {
        if get("/metrics").await.is_ok_and(|page| page.lines().any(|line| line == disagree)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(get("/metrics").await.unwrap().contains(disagree));

    // While the broker is away, states wait.
    broker.kill_all();
    cluster.create(PODS, pod("web-2", 1, None, json!({}))).await;
    cluster.bind("web-2", "n1").await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    tokio::task::block_in_place(|| broker.resume());
    let kafka = tokio::task::block_in_place(|| topics_of(&broker));
    let told = States(kafka[1].clone(), kafka[2].clone());
    let holding = |pod: &str| tokio::task::block_in_place(|| told.holding(pod));
    let second = until("holding of web-2", || holding("web-2")).await;

    // Told to end, it gives the lease up, although that would last two minutes.
    let _ = Command::new("kill").arg(process.0.id().to_string()).status().unwrap();
    tokio::task::block_in_place(|| wait_for("end", || process.0.try_wait().unwrap().is_some()));
    assert_eq!(process.0.try_wait().unwrap().unwrap().code(), Some(0));
    cluster.delete("web-2").await;
    let mut next = start();
    let ended = until("end of web-2", || holding("web-2").filter(|h| h.ended_ms.is_some())).await;
    assert_eq!((ended.bound_ms, ended.flags.as_slice()), (second.bound_ms, ["end_inferred".to_owned()].as_slice()));
    let _ = Command::new("kill").arg(next.0.id().to_string()).status().unwrap();
    tokio::task::block_in_place(|| wait_for("end", || next.0.try_wait().unwrap().is_some()));
    assert_eq!(next.0.try_wait().unwrap().unwrap().code(), Some(0));
}

/// Rules of the manifest: (role, index of the rule, verb).
const CLUSTER_ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/strandline-allocations";
const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/strandline/roles/strandline-allocations-lease";

async fn first_failure(api: &Api, resource: Resource) -> String {
    let (to, mut told) = mpsc::channel::<Told>(16);
    let options = Options::default();
    let work = tokio::spawn(follow(api.clone(), resource, Arc::new(move |json: &[u8]| asks_for_devices(json, &options)), to));
    let failed = async {
        loop {
            if let Event::Failed(error) = told.recv().await.unwrap().event {
                return error.to_string();
            }
        }
    };
    let text = failed.await;
    work.abort();
    text
}

/// Takes `verb` out of rule `index` and waits until the server knows.
async fn without(cluster: &Cluster, role: &str, index: usize, verb: &str) -> Value {
    let whole = cluster.call("GET", role, None).await;
    let mut rules = whole["rules"].clone();
    rules[index]["verbs"].as_array_mut().unwrap().retain(|have| have != verb);
    if rules[index]["verbs"].as_array().unwrap().is_empty() {
        rules.as_array_mut().unwrap().remove(index);
    }
    cluster.call("PATCH", role, Some(json!({"rules": rules}))).await;
    whole["rules"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_right_of_the_manifest_is_needed_and_its_lack_is_named() {
    let cluster = Cluster::start().await;
    cluster.furnish().await;
    let config = cluster.kubeconfig("strandline", "strandline-allocations", cluster.port).await;
    let now: Arc<dyn Fn() -> schemas::Timestamp + Send + Sync> = Arc::new(|| SystemClock.now());
    let api = Api::connect(Some(&config), now, Duration::from_secs(10)).await.unwrap();
    let lease = |identity: &str| {
        let options = LeaseOptions {
            namespace: "strandline".into(),
            name: "strandline-allocations".into(),
            identity: identity.into(),
            duration: Duration::from_secs(2),
        };
        Lease::new(api.clone(), options)
    };
    let mut tried = 0;
    for (index, resource) in
        [(0, Resource::Pods), (0, Resource::Nodes), (0, Resource::Namespaces), (1, Resource::Claims), (1, Resource::Slices)]
    {
        for verb in ["list", "watch"] {
            let rules = without(&cluster, CLUSTER_ROLE, index, verb).await;
            // A right that was just taken away may still be known for a moment: then the watch lives, and fails when it is begun anew.
            let expected = format!("the API server forbids `{verb} {}`", resource.plural());
            let mut said = String::new();
            for _ in 0..20 {
                match tokio::time::timeout(Duration::from_secs(1), first_failure(&api, resource)).await {
                    Ok(failure) => said = failure,
                    Err(_) => continue,
                }
                // The right that was given back last may not be known yet.
                if said.starts_with(&expected) {
                    break;
                }
            }
            assert!(
                said.starts_with(&expected) && said.ends_with("grant that verb to this account, as deploy/rbac.yaml does"),
                "{said}"
            );
            cluster.call("PATCH", CLUSTER_ROLE, Some(json!({"rules": rules}))).await;
            tried += 1;
        }
    }
    // The lease: create, then get and update.
    for (index, verb) in [(0, "create"), (1, "get"), (1, "update")] {
        if verb != "create" {
            let took = async {
                while !matches!(lease("a").step().await, Ok(Standing::Leader)) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), took).await.unwrap();
        }
        let rules = without(&cluster, ROLE, index, verb).await;
        let failed = async {
            loop {
                if let Err(error) = lease("a").step().await {
                    return error.to_string();
                }
                // The right may still be known for a moment, and then the lease is there.
                if verb == "create" {
                    let path = "/apis/coordination.k8s.io/v1/namespaces/strandline/leases/strandline-allocations";
                    cluster.call("DELETE", path, None).await;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let said = tokio::time::timeout(Duration::from_secs(20), failed).await.unwrap();
        assert!(said.starts_with(&format!("the API server forbids `{verb} leases`")), "{said}");
        cluster.call("PATCH", ROLE, Some(json!({"rules": rules}))).await;
        tried += 1;
    }
    // The way up to a workload: without the right what is known, and counted.
    let set = cluster.deployment().await;
    let job = cluster.cron_job().await;
    for (index, owner, kind, top) in
        [(2, &set, "ReplicaSet/web-abc", "Deployment/web"), (3, &job, "Job/nightly-1", "CronJob/nightly")]
    {
        let made = cluster.create(PODS, pod(&format!("p{index}"), 1, Some(owner), json!({}))).await.to_string();
        let controller = of_pod(made.as_bytes()).unwrap();
        let ask = async |whole: bool| {
            let began = Instant::now();
            loop {
                let mut owners = Owners::new(api.clone());
                let tops = owners.tops([controller.clone()], Duration::from_secs(10)).await;
                if tops[0].whole == whole {
                    return (tops[0].workload.clone(), owners.take_failures().get("forbidden").copied());
                }
                assert!(began.elapsed() < Duration::from_secs(20), "{tops:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        assert_eq!(ask(true).await, (top.to_owned(), None));
        let rules = without(&cluster, CLUSTER_ROLE, index, "get").await;
        assert_eq!(ask(false).await, (kind.to_owned(), Some(1)));
        cluster.call("PATCH", CLUSTER_ROLE, Some(json!({"rules": rules}))).await;
        tried += 1;
    }
    assert_eq!(tried, 15);

    // What an agent asks for, as the account of the agent.
    let config = cluster.kubeconfig("strandline", "strandline-agent", cluster.port).await;
    let agent = Api::connect(Some(&config), Arc::new(|| SystemClock.now()), Duration::from_secs(10)).await.unwrap();
    let devices = json!([
        {"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-a"}, "index": {"int": 0}}},
        {"name": "gpu-0-mig-1", "attributes": {"uuid": {"string": "MIG-b"}, "parentUUID": {"string": "GPU-a"}}},
    ]);
    let pool = json!({"name": "n1", "generation": 1, "resourceSliceCount": 1});
    let spec = json!({"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": pool, "devices": devices});
    cluster.create("/apis/resource.k8s.io/v1/resourceslices", json!({"metadata": {"name": "s1"}, "spec": spec})).await;
    let slices = list_slices(&agent, Some("n1")).await.unwrap();
    assert_eq!(list_slices(&agent, None).await.unwrap(), slices);
    let slices: Vec<_> = slices.by_node["n1"].iter().map(|s| (s.device.as_str(), s.uuid.as_str(), s.parent.as_deref())).collect();
    assert_eq!(slices, [("gpu-0", "GPU-a", None), ("gpu-0-mig-1", "MIG-b", Some("GPU-a"))]);
    assert!(list_slices(&agent, Some("cpu-1")).await.unwrap().by_node.is_empty());

    let mut exporter = pod("exporter", 0, None, json!({"nodeName": "n1"}));
    exporter["metadata"]["labels"] = json!({"app.kubernetes.io/name": "dcgm-exporter"});
    exporter["spec"]["containers"][0]["ports"] = json!([{"name": "metrics", "containerPort": 9401}]);
    cluster.create(PODS, exporter).await;
    let anywhere = Discovery::default();
    assert!(targets(&agent, &anywhere).await.unwrap().found.is_empty(), "it does not run yet");
    let status = json!({"status": {"phase": "Running", "podIP": "127.0.0.7", "podIPs": [{"ip": "127.0.0.7"}]}});
    cluster.call("PATCH", &format!("{PODS}/exporter/status"), Some(status)).await;
    for (node, found) in [(None, 1), (Some("n1"), 1), (Some("cpu-1"), 0)] {
        let how = Discovery { node: node.map(str::to_owned), ..Discovery::default() };
        let targets = targets(&agent, &how).await.unwrap();
        assert_eq!((targets.found.len(), targets.refused.len()), (found, 0), "{node:?}");
        let right = |f: &Found| {
            (f.node.as_str(), f.url.as_str(), f.pod.as_str()) == ("n1", "http://127.0.0.7:9401/metrics", "ml/exporter")
        };
        assert!(targets.found.iter().all(right), "{targets:?}");
    }
}
