//! One part of the path dies for twenty minutes of an hour, and comes back. What the bill then says is in docs/failure-modes.md.
//!
//! The same fleet without faults each time, in simulated time, through the real agent, log, sink and closing; only one thing
//! differs from the run in which nothing dies.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arrow::array::{Array, AsArray, types::Int64Type};
use ingest::{
    agent::{Agent, Options, Target, Topics},
    clock::VirtualClock,
    close::{self, Closer},
    publish,
    sink::{self, Sink},
    transport::{
        Bounds, Fetched, Position, Record, Topic, TopicId, TransportError,
        local::{self, Log, TopicSpec},
        spool::{self, Spool},
    },
};
use lake::{Lake, read};
use schemas::{HOUR_MS, status::Cause, tables};
use simulator::{ApiFacts, FleetSpec, Plan, SimClock, api_changes, api_facts, podres::Kubelets, serve};

/// What dies between minute 20 and minute 40.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dead {
    Nothing,
    Exporter,
    Agent,
    Kubelet,
    Api,
    Log,
    Sink,
    Lake,
    /// The sink, and retention drops the rounds that it did not read.
    Overrun,
}

const MINUTE: i64 = 60_000;
const FROM: i64 = 20 * MINUTE;
const TO: i64 = 40 * MINUTE;
const INTERVAL: i64 = MINUTE;
/// Rule A4: 5/2 of the interval.
const HORIZON: i64 = INTERVAL * 5 / 2;

/// Two nodes, two hours, nothing wrong.
const FLEET: &str = "
name: calm
seed: 11
start: 2026-03-02T00:00:00Z
hours: 2
scrape_interval: 60s
clusters:
  - name: lab
    node_pools:
      - { name: h100, count: 2, product: NVIDIA H100 80GB HBM3, gpus_per_node: 4, region: r, zone: z, provider: p, purchase_option: reserved }
teams:
  - { name: research, namespace: research, weight: 2, mix: { training: 6, batch: 3, notebook: 1 } }
  - { name: serving, namespace: serving, weight: 1, mix: { inference: 8, notebook: 2 } }
arrivals: { load: 0.9 }
";

/// A topic that is away while the flag is up, as a broker is.
struct Away {
    inner: Arc<dyn Topic>,
    away: Arc<AtomicBool>,
}

impl Topic for Away {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn id(&self) -> TopicId {
        self.inner.id()
    }

    fn partitions(&self) -> u32 {
        self.inner.partitions()
    }

    fn produce(&self, records: &[Record]) -> Result<Vec<Position>, TransportError> {
        if self.away.load(Ordering::SeqCst) {
            return Err(TransportError::Late { what: "produce to", brokers: "test".into(), wait: Duration::ZERO });
        }
        self.inner.produce(records)
    }

    fn fetch(&self, partition: u32, from: u64, max_bytes: usize) -> Result<Fetched, TransportError> {
        self.inner.fetch(partition, from, max_bytes)
    }

    fn bounds(&self, partition: u32) -> Result<Bounds, TransportError> {
        self.inner.bounds(partition)
    }

    fn verify(&self) -> Result<(), TransportError> {
        self.inner.verify()
    }
}

/// A topic whose retention has dropped what is before an offset of each partition.
struct Cut {
    inner: Arc<dyn Topic>,
    starts: Arc<[AtomicU64; 2]>,
}

impl Topic for Cut {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn id(&self) -> TopicId {
        self.inner.id()
    }

    fn partitions(&self) -> u32 {
        self.inner.partitions()
    }

    fn produce(&self, records: &[Record]) -> Result<Vec<Position>, TransportError> {
        self.inner.produce(records)
    }

    fn fetch(&self, partition: u32, from: u64, max_bytes: usize) -> Result<Fetched, TransportError> {
        assert!(from >= self.starts[partition as usize].load(Ordering::SeqCst), "a read of what is not there any more");
        self.inner.fetch(partition, from, max_bytes)
    }

    fn bounds(&self, partition: u32) -> Result<Bounds, TransportError> {
        let bounds = self.inner.bounds(partition)?;
        Ok(Bounds { start: self.starts[partition as usize].load(Ordering::SeqCst), ..bounds })
    }

    fn verify(&self) -> Result<(), TransportError> {
        self.inner.verify()
    }
}

/// Columns of one owner's hour by name: whole numbers that are there.
type Row = BTreeMap<String, i64>;
/// By hour, device (empty where it is not known), and pod.
type Bill = BTreeMap<(i64, String, String), Row>;

/// What a run left behind.
struct After {
    bill: Bill,
    /// Rounds by status, as the lake has them.
    rounds: BTreeMap<String, u64>,
    /// Samples by the reason that the join gave.
    reasons: BTreeMap<String, u64>,
    /// Samples for which an older answer stood in.
    held_over: u64,
    /// Rows of `rejects`: reason, and how many rows each stands for.
    rejects: BTreeMap<String, i64>,
}

fn lives(dead: Dead) -> After {
    let folder = tempfile::tempdir().unwrap();
    let lake = Lake::create(&folder.path().join("lake")).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(live(dead, &lake, folder.path()));
    query::job::run(&lake, query::job::Options::default(), |_, _| {}).unwrap();
    after(&lake)
}

async fn live(dead: Dead, lake: &Lake, folder: &Path) {
    let plan = Arc::new(Plan::new(FleetSpec::parse(FLEET).unwrap(), simulator::Seed(11)).unwrap());
    let window = plan.window();
    let sim_clock = SimClock::stopped(window.from());
    let clock = Arc::new(VirtualClock::at(window.from()));
    let first = Serving::start(&plan, &sim_clock, 0).await;
    let (port, mut pages) = (first.port, Some(first));
    let sockets = tempfile::Builder::new().prefix("sl-").tempdir().unwrap();
    let mut kubelets = Some(Kubelets::start(&plan, &sim_clock, sockets.path()).unwrap());

    let names = [publish::SAMPLES, publish::ALLOCATIONS, publish::NODES];
    let specs = names.map(|name| TopicSpec { name, partitions: 2 });
    let log = Log::open(&folder.join("log"), &specs, local::Options::default()).unwrap();
    let inner = |name: &str| -> Arc<dyn Topic> { log.topic(name).unwrap() };
    // The agent before a broker that may be away; who tells of the cluster writes to the log itself.
    let away = Arc::new(AtomicBool::new(false));
    let connect = |name: &'static str| {
        let (inner, away) = (inner(name), away.clone());
        let there =
            move || -> Result<Arc<dyn Topic>, TransportError> { Ok(Arc::new(Away { inner: inner.clone(), away: away.clone() })) };
        (name, Box::new(there) as spool::Connect)
    };
    let quick = spool::Options {
        retry_first: Duration::from_millis(5),
        retry_most: Duration::from_millis(20),
        ..spool::Options::default()
    };
    let spool = Spool::open(&folder.join("spool"), names.map(connect).into(), quick).unwrap().start().unwrap();
    let spooled = |name: &str| -> Arc<dyn Topic> { spool.topic(name).unwrap() };
    let topics =
        Topics { samples: spooled(publish::SAMPLES), allocations: spooled(publish::ALLOCATIONS), nodes: spooled(publish::NODES) };
    let targets: Vec<Target> = plan
        .nodes()
        .iter()
        .map(|node| Target {
            node: node.name.to_string(),
            address: format!("http://127.0.0.1:{port}{}", serve::path(&node.name)).parse().unwrap(),
            podres_socket: Some(simulator::podres::socket(sockets.path(), &node.name)),
        })
        .collect();
    let options = Options {
        interval_ms: INTERVAL as u32,
        timeout: Duration::from_secs(5),
        state_file: Some(folder.join("agent.state")),
        ..Options::new("lab")
    };
    let start = || Agent::new(options.clone(), targets.clone(), topics.clone(), clock.clone()).unwrap();
    let mut agent = Some(start());
    let starts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let try_open = |skip_lost: bool| {
        let samples: Arc<dyn Topic> = Arc::new(Cut { inner: inner(publish::SAMPLES), starts: starts.clone() });
        let topics = vec![samples, inner(publish::ALLOCATIONS), inner(publish::NODES)];
        Sink::open(lake.clone(), topics, sink::Options { cut_age_ms: 5 * MINUTE, skip_lost, ..sink::Options::default() })
    };
    let open = || try_open(false).unwrap();
    let mut sink = open();

    let mut refused = 0;
    let (mut now, mut told_at) = (window.from(), window.from().plus_ms(-1));
    while now < window.to() {
        sim_clock.set(now);
        clock.set(now);
        let minute = now.ms() - window.from().ms();
        let gone = (FROM..TO).contains(&minute);
        match dead {
            Dead::Exporter if gone => {
                if let Some(pages) = pages.take() {
                    pages.stop().await;
                }
            }
            Dead::Exporter if pages.is_none() => pages = Some(Serving::start(&plan, &sim_clock, port).await),
            Dead::Kubelet if gone => {
                if let Some(kubelets) = kubelets.take() {
                    kubelets.stop().await;
                }
            }
            Dead::Kubelet if kubelets.is_none() => {
                kubelets = Some(Kubelets::start(&plan, &sim_clock, sockets.path()).unwrap());
            }
            Dead::Agent if gone => agent = None,
            Dead::Agent if agent.is_none() => {
                let mut again = start();
                again.recall().unwrap();
                again.announce_restart(now).await.unwrap();
                agent = Some(again);
            }
            // As a disk that is not mounted: an empty folder stands where the lake was.
            Dead::Lake if minute == FROM => {
                std::fs::rename(lake.location(), folder.join("unmounted")).unwrap();
                std::fs::create_dir(lake.location()).unwrap();
            }
            Dead::Lake if minute == TO => {
                std::fs::remove_dir(lake.location()).expect("nothing was written into the empty folder");
                std::fs::rename(folder.join("unmounted"), lake.location()).unwrap();
            }
            Dead::Log => away.store(gone, Ordering::SeqCst),
            Dead::Overrun if minute == FROM => drop(tokio::task::block_in_place(|| sink.flush(now)).unwrap()),
            Dead::Overrun if minute == TO => {
                let samples = inner(publish::SAMPLES);
                for (partition, start) in (0..).zip(&*starts) {
                    start.store(samples.bounds(partition).unwrap().end, Ordering::SeqCst);
                }
                tokio::task::block_in_place(|| {
                    let error = try_open(false).and_then(|mut sink| sink.step(now)).unwrap_err().to_string();
                    assert!(error.contains("--skip-lost"), "{error}");
                    sink = try_open(true).unwrap();
                });
            }
            _ => {}
        }
        if !(gone && dead == Dead::Api) {
            let mut facts = api_changes(&plan, told_at, now);
            told_at = now;
            if minute % (10 * MINUTE) == 0 {
                let all = api_facts(&plan, now);
                facts.holdings.extend(all.holdings.into_iter().filter(|holding| holding.ended_ms.is_none()));
                facts.nodes.extend(all.nodes);
            }
            tell(&inner, &facts);
        }
        if let Some(agent) = &mut agent {
            agent.round(now).await.unwrap();
        }
        if !(gone && matches!(dead, Dead::Sink | Dead::Log | Dead::Overrun)) {
            // What waits in the spool goes on by real time.
            let began = Instant::now();
            spool.retain(now.ms()).unwrap();
            while spool.counts().waiting.load(Ordering::Relaxed) > 0 {
                assert!(began.elapsed() < Duration::from_secs(30), "the spool does not empty");
                tokio::time::sleep(Duration::from_millis(5)).await;
                spool.retain(now.ms()).unwrap();
            }
            if let Err(error) = tokio::task::block_in_place(|| sink.step(now)) {
                assert!(gone && dead == Dead::Lake, "{error}");
                refused += 1;
                sink = open(); // as the process does
            }
        }
        now = now.plus_ms(INTERVAL);
    }
    tell(&inner, &api_changes(&plan, told_at, window.to()));
    tokio::task::block_in_place(|| {
        sink.flush(window.to()).unwrap();
        Closer::new(lake.clone(), close::Options::default()).close(window.to(), window.to()).unwrap();
    });
    assert_eq!(spool.counts().dropped.load(Ordering::Relaxed) + spool.counts().refused.load(Ordering::Relaxed), 0);
    assert_eq!(refused > 0, dead == Dead::Lake);
    if dead == Dead::Log {
        assert!(spool.counts().forwarded.load(Ordering::Relaxed) >= 20, "the spool was of use");
    }
    if let Some(pages) = pages {
        pages.stop().await;
    }
    if let Some(kubelets) = kubelets {
        kubelets.stop().await;
    }
}

/// What the API server says, as `allocations` publishes it.
fn tell(topic: &dyn Fn(&str) -> Arc<dyn Topic>, facts: &ApiFacts) {
    let holdings: Vec<Record> = facts.holdings.iter().cloned().map(publish::holding).collect();
    let nodes: Vec<Record> = facts.nodes.iter().map(publish::node).collect();
    for (name, records) in [(publish::ALLOCATIONS, holdings), (publish::NODES, nodes)] {
        if !records.is_empty() {
            topic(name).produce(&records).unwrap();
        }
    }
}

struct Serving {
    port: u16,
    stop: tokio::sync::oneshot::Sender<()>,
    task: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Serving {
    /// The exporters of all nodes on `port`; on a free one for 0.
    async fn start(plan: &Arc<Plan>, clock: &SimClock, port: u16) -> Self {
        let listener = web::listen(port.to_string().parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let task = tokio::spawn(web::serve(listener, serve::router(plan.clone(), clock.clone()), async {
            let _ = stopped.await;
        }));
        Self { port, stop, task }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap().unwrap();
    }
}

fn after(lake: &Lake) -> After {
    let mut bill = Bill::new();
    let table = tables::get("gpu_hours");
    for file in lake.closed_files(table, None).unwrap() {
        for batch in read::rows(table, &file.path, None).unwrap() {
            let text = |name: &str| batch.column(table.index(name).unwrap()).as_string::<i32>().clone();
            let (kinds, devices, pods) = (text("kind"), text("device"), text("pod_uid"));
            for row in (0..batch.num_rows()).filter(|row| kinds.value(*row) == "owner") {
                let device = if devices.is_valid(row) { devices.value(row) } else { "" };
                let numbers = table.columns.iter().enumerate().filter_map(|(i, column)| {
                    let ints = batch.column(i).as_primitive_opt::<Int64Type>()?;
                    ints.is_valid(row).then(|| (column.name.clone(), ints.value(row)))
                });
                let key = (file.key.hour.ms() / HOUR_MS, device.to_owned(), pods.value(row).to_owned());
                assert!(bill.insert(key, numbers.collect()).is_none(), "one row a device, hour and owner");
            }
        }
    }
    let (mut rounds, mut reasons, mut held_over) = (BTreeMap::new(), BTreeMap::new(), 0);
    let table = tables::get("scrapes");
    for file in lake.closed_files(table, None).unwrap() {
        for batch in read::rows(table, &file.path, Some(&["status"])).unwrap() {
            batch
                .column(0)
                .as_string::<i32>()
                .iter()
                .flatten()
                .for_each(|status| *rounds.entry(status.to_owned()).or_default() += 1);
        }
    }
    let table = tables::get("gpu_samples");
    for file in lake.closed_files(table, None).unwrap() {
        for batch in read::rows(table, &file.path, Some(&["join_reason", "held_over"])).unwrap() {
            batch.column(0).as_string::<i32>().iter().flatten().for_each(|why| *reasons.entry(why.to_owned()).or_default() += 1);
            held_over += batch.column(1).as_boolean().iter().filter(|held| *held == Some(true)).count() as u64;
        }
    }
    let mut rejects = BTreeMap::new();
    let table = tables::get("rejects");
    for file in lake.closed_files(table, None).unwrap() {
        for batch in read::rows(table, &file.path, Some(&["reason", "rows"])).unwrap() {
            let rows = batch.column(1).as_primitive::<Int64Type>();
            for (reason, rows) in batch.column(0).as_string::<i32>().iter().zip(rows) {
                *rejects.entry(reason.unwrap().to_owned()).or_default() += rows.unwrap();
            }
        }
    }
    After { bill, rounds, reasons, held_over, rejects }
}

/// Allocated time of the pods, whichever device.
fn allocated(bill: &Bill) -> BTreeMap<(i64, &str), i64> {
    let mut sums = BTreeMap::new();
    for ((hour, _, pod), row) in bill {
        *sums.entry((*hour, pod.as_str())).or_default() += row["ms"];
    }
    sums
}

fn sum(bill: &Bill, column: &str) -> i64 {
    bill.values().filter_map(|row| row.get(column)).sum()
}

/// Sums of the tier `sm` over the bill: utilized, stranded, unobserved by cause.
fn sm(bill: &Bill) -> (i64, i64, BTreeMap<Cause, i64>) {
    let unobserved = Cause::ALL.iter().map(|cause| (*cause, sum(bill, &format!("sm_unobserved_{}_ms", cause.as_str()))));
    (sum(bill, "sm_utilized_ms"), sum(bill, "sm_stranded_ms"), unobserved.collect())
}

/// Time that was seen without the failure and is not seen with it is unobserved for `cause`: none of it became utilized or
/// stranded, and what is allocated is what it was.
fn unseen_for(calm: &After, after: &After, cause: Cause) {
    assert_eq!(allocated(&calm.bill), allocated(&after.bill), "who holds what is not the dead part's to say");
    let ((utilized, stranded, mut expected), (less_utilized, less_stranded, found)) = (sm(&calm.bill), sm(&after.bill));
    assert!(less_utilized < utilized && less_stranded < stranded, "idle and busy time are both unseen");
    let unseen = utilized + stranded - less_utilized - less_stranded;
    *expected.entry(cause).or_default() += unseen;
    // The time before an owner's first sample is a handover where that comes within a horizon, else the failure's; and who asks no
    // exporter asks no kubelet, so that a pod bound meanwhile has no device yet.
    for other in [Cause::Handover, Cause::NoDeviceYet] {
        let moved = expected[&other] - found[&other];
        assert!(cause == Cause::Gap || other == Cause::Handover || moved == 0);
        *expected.entry(other).or_default() -= moved;
        *expected.entry(cause).or_default() += moved;
    }
    assert_eq!(found, expected);
    // Eight GPUs at most, from one horizon after the last sample to the first sample that is there again.
    let most = 8 * (TO - FROM + INTERVAL - HORIZON);
    assert!(unseen <= most && unseen > most / 2, "{unseen} of {most}");
    for (key, row) in &after.bill {
        if let Some(was) = calm.bill.get(key) {
            assert!(row["sm_utilized_ms"] <= was["sm_utilized_ms"] && row["sm_stranded_ms"] <= was["sm_stranded_ms"], "{key:?}");
            assert!(row.get("energy_mj").unwrap_or(&0) <= was.get("energy_mj").unwrap_or(&0), "{key:?}");
        }
    }
    let memory = |after: &After| sum(&after.bill, "fb_unobserved_ms");
    assert!(memory(after) > memory(calm) + unseen / 2, "memory is not seen either");
    // The counter's increase over the gap is nobody's: energy is not spread over whoever held the device meanwhile.
    assert!(sum(&after.bill, "energy_mj") < sum(&calm.bill, "energy_mj"));
}

#[test]
fn a_dead_exporter_is_unobserved_time_and_failed_rounds() {
    let (calm, after) = (lives(Dead::Nothing), lives(Dead::Exporter));
    assert_eq!(calm.rounds.keys().collect::<Vec<_>>(), ["ok"]);
    assert_eq!(after.rounds["refused"], 2 * ((TO - FROM) / INTERVAL) as u64, "every round of both nodes has a status");
    assert_eq!(after.rounds["ok"], calm.rounds["ok"] - after.rounds["refused"]);
    unseen_for(&calm, &after, Cause::ExporterDown);
}

#[test]
fn a_dead_agent_is_a_gap_that_the_next_one_names() {
    let (calm, after) = (lives(Dead::Nothing), lives(Dead::Agent));
    assert_eq!(after.rounds["restarted"], 2, "the rounds that nobody took are said to be missing");
    assert_eq!(after.rounds["ok"], calm.rounds["ok"] - 2 * ((TO - FROM) / INTERVAL) as u64);
    unseen_for(&calm, &after, Cause::Gap);
}

#[test]
fn rounds_that_retention_dropped_unread_are_unobserved_time_and_counted() {
    let (calm, after) = (lives(Dead::Nothing), lives(Dead::Overrun));
    let lost = 2 * (TO - FROM) / INTERVAL;
    assert_eq!(after.rounds["ok"], calm.rounds["ok"] - lost as u64);
    assert_eq!((&calm.rejects, &after.rejects), (&BTreeMap::new(), &BTreeMap::from([("lost".to_owned(), lost)])));
    unseen_for(&calm, &after, Cause::Gap);
}

#[test]
fn a_dead_kubelet_leaves_readings_and_says_why_they_have_no_owner() {
    let (calm, after) = (lives(Dead::Nothing), lives(Dead::Kubelet));
    assert_eq!(after.rounds, calm.rounds, "the pages are there");
    assert!(after.held_over > 0 && calm.held_over == 0, "the last good answer stands in, and says so");
    assert!(calm.reasons.is_empty(), "{:?}", calm.reasons);
    let known = ["no_socket", "list_failed", "expired"];
    assert!(!after.reasons.is_empty() && after.reasons.keys().all(|why| known.contains(&why.as_str())), "{:?}", after.reasons);
    // The API server still says who holds how many; only which device is learned later.
    assert_eq!(allocated(&calm.bill), allocated(&after.bill));
    let (utilized, stranded, mut expected) = sm(&calm.bill);
    let (less_utilized, less_stranded, found) = sm(&after.bill);
    *expected.entry(Cause::NoDeviceYet).or_default() += utilized + stranded - less_utilized - less_stranded;
    assert!(less_utilized <= utilized && less_stranded <= stranded);
    let handover = |causes: &BTreeMap<Cause, i64>| causes[&Cause::Handover] + causes[&Cause::NoDeviceYet];
    assert_eq!(handover(&found), handover(&expected), "what is not seen has no device yet, or has it newly");
}

#[test]
fn what_comes_late_makes_the_same_bill() {
    let calm = lives(Dead::Nothing);
    for dead in [Dead::Log, Dead::Sink, Dead::Api, Dead::Lake] {
        let after = lives(dead);
        let (was, is): (BTreeSet<_>, BTreeSet<_>) = (calm.bill.iter().collect(), after.bill.iter().collect());
        let missing: Vec<_> = was.difference(&is).collect();
        let new: Vec<_> = is.difference(&was).collect();
        assert!(missing.is_empty() && new.is_empty(), "{dead:?}: {missing:?} became {new:?}");
        assert_eq!(after.rounds, calm.rounds, "{dead:?}");
    }
}
