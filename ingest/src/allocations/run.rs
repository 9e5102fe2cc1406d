//! The loop that waits: stand by, lead, publish, stand by again.

use super::books::{Batch, Books, Recalled, refused_labels};
use super::config::{AllocationsConfig, Transport};
use super::recall::recall;
use super::reconcile::{Disagreements, Kubelets, Tail};
use crate::clock::Clock;
use crate::config::ConfigError;
use crate::publish::{ALLOCATIONS, NODES, SAMPLES};
use crate::run::{API_FAILURES as FAILURES, Pages, RunError, api_ahead, count_reload, counter};
use crate::transport::kafka::Kafka;
use crate::transport::local::{self, Log, TopicSpec};
use crate::transport::{Topic, TransportError};
use attribution::pods::asks_for_devices;
use attribution::watch::owners::{self, OwnerRef, Owners};
use attribution::watch::{Api, ApiError, Event, Lease, Resource, Standing, Told, Wants, follow};
use schemas::Timestamp;
use schemas::labels::Contract;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use web::{Metrics, Ready};

/// Events that wait to be taken: a few lists, or a burst of changes. A watch that is faster waits.
const QUEUE: usize = 256;
/// Events taken before what changed is published.
const AT_ONCE: usize = 512;
/// Longest time that is spent on asking for owners before what changed is published.
const OWNERS_LIMIT: Duration = Duration::from_secs(20);
/// Records that may wait for a log that does not take them; beyond it they are dropped, and everything is told again later.
const MAX_WAITING: usize = 200_000;
/// Time between two tries to publish, and to refresh what the pages show.
const TICK: Duration = Duration::from_secs(1);
const RETAIN_EVERY_MS: i64 = 60_000;

/// Time between two tries to reach Kafka at the start.
const RETRY_EVERY: Duration = Duration::from_secs(5);
/// Time between two refreshes of what the pages show of the books.
const GAUGES_EVERY_MS: i64 = 15_000;
/// Controllers whose way up is asked for again with every snapshot.
const MAX_PARTIAL: usize = 10_000;

const EVENTS: (&str, &str) = ("strandline_ingest_watch_events_total", "events of the API server by resource");
const REFUSED: (&str, &str) = ("strandline_ingest_refused_objects_total", "objects of the API server that could not be read");
const LATE: (&str, &str) = ("strandline_ingest_late_events_total", "events older than what is settled; they changed nothing");
const STATES: (&str, &str) = ("strandline_ingest_states_total", "states of holdings, demand and nodes taken by the log");
const UNTAKEN: (&str, &str) = ("strandline_ingest_untaken_states_total", "states dropped because the log took none for too long");
const REFUSED_LABELS: (&str, &str) =
    ("strandline_ingest_refused_labels_total", "labels of objects that the contract refused, with each time that they were told");
const UNCOMPARED: (&str, &str) =
    ("strandline_ingest_reconciliation_failures_total", "times that the kubelets' side could not be read to be compared");
const CHANGES: (&str, &str) = ("strandline_ingest_leader_changes_total", "times this process began or ceased to lead");

/// The topics that states go to.
#[derive(Clone)]
pub struct Topics {
    /// `strandline.allocations`.
    pub allocations: Arc<dyn Topic>,
    /// `strandline.nodes`.
    pub nodes: Arc<dyn Topic>,
}

/// How a running process is told to read its configuration again.
pub struct Reload {
    /// One message for each time that is asked for.
    pub asked: mpsc::Receiver<()>,
    /// Reads the configuration.
    pub load: Box<dyn FnMut() -> Result<AllocationsConfig, ConfigError> + Send>,
}

/// Watches until `shutdown`, whenever this process leads; what was told by then is published, and the lease given up.
pub async fn run(
    config: AllocationsConfig,
    reload: Reload,
    clock: Arc<dyn Clock>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let (metrics, ready) = (Metrics::new(), Ready::new());
    let pages = Pages::start(&config.listen, config.web_config_file.as_deref(), &metrics, &ready).await?;
    let mut shutdown = std::pin::pin!(shutdown);
    let result = match &config.transport {
        Transport::Log { dir, partitions, options } => {
            let specs = [SAMPLES, ALLOCATIONS, NODES].map(|name| TopicSpec { name, partitions: *partitions });
            let log = Log::open(dir, &specs, *options).map_err(RunError::Log)?;
            let topic = |name| log.topic(name).map_err(RunError::Log);
            let topics = Topics { allocations: topic(ALLOCATIONS)?, nodes: topic(NODES)? };
            let retain = |now: Timestamp| match log.retain(now.ms()) {
                Ok(dropped) => counter(&metrics, DROPPED.0, DROPPED.1).add(dropped),
                Err(error) => {
                    tracing::error!(error = format!("{:#}", anyhow::Error::new(error)), "cannot drop old segments of the log")
                }
            };
            follow_cluster(&config, reload, topics, clock, &metrics, &ready, shutdown, retain).await
        }
        Transport::Kafka(options) => {
            let kafka = Kafka::new(options.clone()).map_err(RunError::Log)?;
            let topics = tokio::select! {
                topics = kafka_topics(kafka) => Some(topics.map_err(RunError::Log)?),
                () = &mut shutdown => None,
            };
            match topics {
                Some(topics) => follow_cluster(&config, reload, topics, clock, &metrics, &ready, shutdown, |_| {}).await,
                None => Ok(()),
            }
        }
    };
    pages.stop().await;
    result
}

/// Kafka's topics, as soon as it is there. Errors: those that do not pass.
async fn kafka_topics(kafka: Arc<Kafka>) -> Result<Topics, TransportError> {
    let mut said = false;
    loop {
        let kafka = kafka.clone();
        let opened = blocking(move || {
            // All three: whoever comes first creates them.
            kafka.prepare(&[SAMPLES, ALLOCATIONS, NODES])?;
            kafka.topics(&[ALLOCATIONS, NODES])
        });
        match opened.await {
            Ok(topics) => {
                let mut topics = topics.into_iter().map(|topic| topic as Arc<dyn Topic>);
                if let (Some(allocations), Some(nodes)) = (topics.next(), topics.next()) {
                    return Ok(Topics { allocations, nodes });
                }
            }
            Err(error) if error.passes() => {
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!(error = format!("{:#}", anyhow::Error::new(error)), "waiting for Kafka");
                }
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(RETRY_EVERY).await;
    }
}

/// The same over topics of any transport; `every_minute` is called once a minute.
#[allow(clippy::too_many_arguments)]
pub async fn follow_cluster(
    config: &AllocationsConfig,
    mut reload: Reload,
    topics: Topics,
    clock: Arc<dyn Clock>,
    metrics: &Metrics,
    ready: &Ready,
    shutdown: impl Future<Output = ()>,
    mut every_minute: impl FnMut(Timestamp),
) -> Result<(), RunError> {
    let mut config = config.clone();
    let now = {
        let clock = clock.clone();
        Arc::new(move || clock.now())
    };
    let api = Api::connect(config.kubeconfig.as_deref(), now, config.timeout).await.map_err(RunError::Api)?;
    declare(metrics);
    let (stop_lease, lease_stops) = oneshot::channel();
    let (standing, mut stands) = watch::channel(Stand::default());
    let lease = Lease::new(api.clone(), config.lease.clone());
    let keeping = tokio::spawn(keep(lease, standing, lease_stops, metrics.clone()));
    tracing::info!(cluster = config.cluster, identity = config.lease.identity, "stands by to watch the cluster");

    tokio::pin!(shutdown);
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut term: Option<Term> = None;
    let mut minute = clock.now();
    let mut unread = false;
    let result = loop {
        let mut told = Vec::new();
        tokio::select! {
            () = &mut shutdown => break Ok(()),
            Ok(()) = stands.changed() => {}
            _ = tick.tick() => {}
            _ = receive(&mut term, &mut told) => {}
            Some(()) = reload.asked.recv() => read_again(&mut reload, &mut config, &mut term, metrics),
        }
        let stand = stands.borrow_and_update().clone();
        let now = clock.now();
        if now.ms() - minute.ms() >= RETAIN_EVERY_MS {
            minute = now;
            every_minute(now);
        }
        if let Some((ahead, _)) = api.ahead_ms() {
            api_ahead(metrics, ahead);
        }
        if !stand.leads() {
            if term.take().is_some() {
                tracing::warn!(leader = stand.holder, "ceased to lead; another goes on from the log");
                counter(metrics, CHANGES.0, CHANGES.1).inc();
            }
            metrics.gauge("strandline_ingest_leader", LEADER, &[]).set(0.0);
            // A follower is ready when it knows that someone leads.
            ready.set(stand.known && !stand.holder.is_empty());
            continue;
        }
        if term.is_none() {
            match Term::begin(&config, &topics, &api, metrics).await {
                Ok(begun) => term = Some(begun),
                Err(error) if error.passes() => {
                    if !std::mem::replace(&mut unread, true) {
                        tracing::error!(
                            error = format!("{:#}", anyhow::Error::new(error)),
                            "what was told before cannot be read; begins when it can"
                        );
                    }
                    ready.set(false);
                    continue;
                }
                Err(error) => break Err(RunError::Log(error)),
            }
            unread = false;
            counter(metrics, CHANGES.0, CHANGES.1).inc();
            metrics.gauge("strandline_ingest_leader", LEADER, &[]).set(1.0);
        }
        let Some(term) = &mut term else { continue };
        term.take(told).await;
        if let Err(error) = term.publish(&topics, clock.now(), &stands).await {
            break Err(RunError::Log(error));
        }
        ready.set(term.is_well());
    };
    if let Some(mut term) = term.filter(|_| result.is_ok()) {
        let mut told = Vec::new();
        while let Ok(event) = term.events.try_recv() {
            told.push(event);
        }
        term.take(told).await;
        if let Err(error) = term.publish(&topics, clock.now(), &stands).await {
            tracing::error!(error = format!("{:#}", anyhow::Error::new(error)), "the last states are not taken");
        }
    }
    let _ = stop_lease.send(());
    if let Err(error) = keeping.await {
        tracing::error!(%error, "the lease's task ended badly");
    }
    tracing::info!("ends");
    result
}

/// Reads the configuration again. One that is wrong, or differs in more than the mappings of teams, is refused, and the old one
/// goes on.
fn read_again(reload: &mut Reload, config: &mut AllocationsConfig, term: &mut Option<Term>, metrics: &Metrics) {
    let read = (reload.load)().and_then(|next| config.can_become(&next).map(|()| next));
    let result = match read {
        Ok(next) => {
            if let Some(term) = term {
                term.books.remap(next.options.team.clone());
            }
            *config = next;
            tracing::info!("the mappings of teams were read again");
            "ok"
        }
        Err(error) => {
            let error = format!("{:#}", anyhow::Error::new(error));
            tracing::error!(error, "the new configuration is refused; the old one goes on");
            "failed"
        }
    };
    count_reload(metrics, result, 1);
}

const LEADER: &str = "1 where this process leads";
const DROPPED: (&str, &str) = ("strandline_ingest_dropped_messages_total", "messages that left the log by its retention");

/// Counters are there from the start, so that the first time is an increase.
fn declare(metrics: &Metrics) {
    for resource in Resource::ALL {
        metrics.counter(EVENTS.0, EVENTS.1, &[("resource", resource.plural())]).add(0);
    }
    for reason in ApiError::REASONS {
        metrics.counter(FAILURES.0, FAILURES.1, &[("reason", reason)]).add(0);
    }
    for (name, help) in [REFUSED, LATE, STATES, UNTAKEN, CHANGES, DROPPED, REFUSED_LABELS, UNCOMPARED] {
        counter(metrics, name, help).add(0);
    }
    count_reload(metrics, "ok", 0);
    count_reload(metrics, "failed", 0);
    metrics.gauge("strandline_ingest_leader", LEADER, &[]).set(0.0);
}

async fn receive(term: &mut Option<Term>, told: &mut Vec<Told>) {
    match term {
        Some(term) => {
            if term.events.recv_many(told, AT_ONCE).await == 0 {
                std::future::pending::<()>().await;
            }
        }
        None => std::future::pending().await,
    }
}

/// What the keeper of the lease says.
#[derive(Debug, Clone, Default)]
struct Stand {
    /// Until when we lead for sure.
    until: Option<Instant>,
    /// Who leads, where that is another.
    holder: String,
    /// Whether the last look at the lease worked.
    known: bool,
}

impl Stand {
    fn leads(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

/// Takes and renews the lease until told to stop, and gives it up then. On a task of its own: a slow question to the API server
/// must not cost the lease.
async fn keep(mut lease: Lease, standing: watch::Sender<Stand>, mut stop: oneshot::Receiver<()>, metrics: Metrics) {
    let every = lease.step_every();
    let mut failing: Option<&'static str> = None;
    loop {
        let result = tokio::time::timeout(every.saturating_mul(2), lease.step()).await;
        let mut stand = Stand { until: lease.leads_until(), ..Stand::default() };
        match result {
            Ok(Ok(found)) => {
                if failing.take().is_some() {
                    tracing::info!("the lease can be read again");
                }
                stand.known = true;
                if let Standing::Follower(holder) = found {
                    stand.holder = holder;
                }
            }
            Ok(Err(error)) => {
                metrics.counter(FAILURES.0, FAILURES.1, &[("reason", error.reason())]).inc();
                if failing.replace(error.reason()) != Some(error.reason()) {
                    tracing::error!(error = format!("{:#}", anyhow::Error::new(error)), "the lease cannot be had");
                }
            }
            Err(_) => {
                metrics.counter(FAILURES.0, FAILURES.1, &[("reason", "timeout")]).inc();
                if failing.replace("timeout") != Some("timeout") {
                    tracing::error!("the API server does not answer in time for the lease");
                }
            }
        }
        standing.send_replace(stand);
        tokio::select! {
            _ = &mut stop => break,
            () = tokio::time::sleep(every) => {}
        }
    }
    match tokio::time::timeout(every.saturating_mul(2), lease.release()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(error = format!("{:#}", anyhow::Error::new(error)), "the lease runs out by itself"),
        Err(_) => tracing::warn!("no answer; the lease runs out by itself"),
    }
}

/// The time in which this process leads.
struct Term {
    books: Books,
    owners: Owners,
    events: mpsc::Receiver<Told>,
    /// Ended with the term.
    _watches: JoinSet<()>,
    /// Not taken by the log yet.
    waiting: Batch,
    /// Whether everything is to be told, and when it was last.
    resync: bool,
    told_all: Option<Timestamp>,
    gauges: Option<Timestamp>,
    snapshot_every_ms: i64,
    /// Resources whose watch does not work, and why.
    failing: BTreeMap<Resource, &'static str>,
    /// Controllers whose way up is not known to its end.
    partial: BTreeSet<(String, OwnerRef)>,
    late: u64,
    untaken: bool,
    contract: Contract,
    comparison: Comparison,
    metrics: Metrics,
}

/// Both sides of who holds what, to be compared now and then.
struct Comparison {
    cluster: String,
    /// Where agents tell what kubelets say. Away while it is read.
    side: Option<(Vec<Tail>, Kubelets)>,
    disagreements: Disagreements,
    lasting_ms: i64,
    last: Option<Timestamp>,
    /// Whether the last reading failed.
    unread: bool,
}

impl Term {
    /// Reads what was told before, and begins to watch.
    async fn begin(config: &AllocationsConfig, topics: &Topics, api: &Api, metrics: &Metrics) -> Result<Self, TransportError> {
        let (cluster, topics, tail) = (config.cluster.clone(), topics.clone(), topics.allocations.clone());
        let states = blocking(move || {
            let mut states = recall(&*topics.allocations, &cluster, Recalled::allocation)?;
            states.append(&mut recall(&*topics.nodes, &cluster, Recalled::node)?);
            Ok::<_, TransportError>(states)
        })
        .await?;
        let comparison = Comparison::new(config, &tail);
        let mut books = Books::new(&config.cluster, config.options.clone());
        let recalled = states.len();
        states.into_iter().for_each(|state| books.resume(state));
        let (to, events) = mpsc::channel(QUEUE);
        let mut watches = JoinSet::new();
        let options = config.options.clone();
        let gpu_pods: Wants = Arc::new(move |json: &[u8]| asks_for_devices(json, &options));
        for resource in Resource::ALL {
            let wants: Wants = if resource == Resource::Pods { gpu_pods.clone() } else { Arc::new(|_: &[u8]| true) };
            watches.spawn(follow(api.clone(), resource, wants, to.clone()));
        }
        tracing::info!(recalled, "leads; watches the cluster");
        Ok(Term {
            books,
            owners: Owners::new(api.clone()),
            events,
            _watches: watches,
            waiting: Batch::default(),
            resync: true,
            told_all: None,
            gauges: None,
            snapshot_every_ms: config.snapshot_every_ms,
            failing: BTreeMap::new(),
            partial: BTreeSet::new(),
            late: 0,
            untaken: false,
            contract: config.contract.clone(),
            comparison,
            metrics: metrics.clone(),
        })
    }

    fn is_well(&self) -> bool {
        self.books.complete() && self.failing.is_empty() && !self.untaken
    }

    async fn take(&mut self, told: Vec<Told>) {
        let mut controllers = BTreeSet::new();
        for told in told {
            self.health(&told);
            if told.resource == Resource::Pods {
                controllers.extend(told.event.objects().filter_map(owners::of_pod));
            }
            if !matches!(told.resource, Resource::Claims | Resource::Slices) {
                let refused = told.event.objects().map(|json| refused_labels(json, &self.contract)).sum();
                counter(&self.metrics, REFUSED_LABELS.0, REFUSED_LABELS.1).add(refused);
            }
            let refused = self.books.take(&told);
            counter(&self.metrics, REFUSED.0, REFUSED.1).add(refused.len() as u64);
            for error in refused {
                tracing::warn!(error, "an object is left out");
            }
            self.resync |= matches!(told.event, Event::Listed { .. });
        }
        self.find_owners(controllers).await;
    }

    async fn find_owners(&mut self, controllers: BTreeSet<(String, OwnerRef)>) {
        if controllers.is_empty() {
            return;
        }
        let tops = self.owners.tops(controllers.iter().cloned(), OWNERS_LIMIT).await;
        for (controller, top) in controllers.into_iter().zip(&tops) {
            if top.whole {
                self.partial.remove(&controller);
            } else if self.partial.len() < MAX_PARTIAL {
                self.partial.insert(controller);
            }
        }
        self.books.workloads(&tops);
        for (reason, count) in self.owners.take_failures() {
            self.metrics.counter(FAILURES.0, FAILURES.1, &[("reason", reason)]).add(count);
        }
        let help = "controllers of pods whose own owner could not be read";
        self.metrics.gauge("strandline_ingest_partial_workloads", help, &[]).set(self.partial.len() as f64);
    }

    /// Counts an event, and says once when a watch begins to fail, fails otherwise, or works again.
    fn health(&mut self, told: &Told) {
        let resource = told.resource.plural();
        if let Event::Failed(error) = &told.event {
            self.metrics.counter(FAILURES.0, FAILURES.1, &[("reason", error.reason())]).inc();
            // A list that was too old is no failure: it is listed anew, and that is said.
            if matches!(error, ApiError::Gone { .. }) {
                tracing::info!(resource, "the watch was too far behind; everything is listed anew");
            } else if self.failing.insert(told.resource, error.reason()) != Some(error.reason()) {
                let mut text = error.to_string();
                let mut source = std::error::Error::source(error);
                while let Some(error) = source {
                    text = format!("{text}: {error}");
                    source = error.source();
                }
                tracing::error!(resource, error = text, "the watch does not work");
            }
            return;
        }
        self.metrics.counter(EVENTS.0, EVENTS.1, &[("resource", resource)]).inc();
        if self.failing.remove(&told.resource).is_some() {
            tracing::info!(resource, "the watch works again");
        }
    }

    /// Hands what changed, or everything where that is due, to the log. Errors: the log must be opened anew.
    async fn publish(&mut self, topics: &Topics, now: Timestamp, stands: &watch::Receiver<Stand>) -> Result<(), TransportError> {
        if !self.books.complete() {
            return Ok(());
        }
        let due = self.told_all.is_none_or(|at| now.ms() - at.ms() >= self.snapshot_every_ms);
        if due && !self.partial.is_empty() {
            let again = self.partial.clone();
            self.find_owners(again).await;
        }
        let everything = due || self.resync;
        let batch = if everything { self.books.snapshot(now) } else { self.books.changes(now) };
        if everything {
            (self.told_all, self.resync) = (Some(now), false);
            // Older states of the same things.
            self.waiting = Batch::default();
        }
        self.waiting.append(batch);
        if self.waiting.len() > MAX_WAITING {
            counter(&self.metrics, UNTAKEN.0, UNTAKEN.1).add(self.waiting.len() as u64);
            self.waiting = Batch::default();
            self.told_all = None;
        }
        self.gauges(now);
        self.comparison.compare(&self.books, now, &self.metrics).await;
        // Another may lead by now; what he says, he says himself.
        if self.waiting.is_empty() || !stands.borrow().leads() {
            return Ok(());
        }
        let count = self.waiting.len() as u64;
        match produce(topics, &mut self.waiting).await {
            Ok(()) => {
                counter(&self.metrics, STATES.0, STATES.1).add(count);
                if std::mem::take(&mut self.untaken) {
                    tracing::info!("the log takes states again");
                }
                Ok(())
            }
            Err(error @ (TransportError::Poisoned { .. } | TransportError::Changed { .. })) => Err(error),
            Err(error) => {
                if !std::mem::replace(&mut self.untaken, true) {
                    tracing::error!(error = format!("{:#}", anyhow::Error::new(error)), "states are not taken; they wait");
                }
                Ok(())
            }
        }
    }

    fn gauges(&mut self, now: Timestamp) {
        if self.gauges.is_some_and(|at| now.ms() - at.ms() < GAUGES_EVERY_MS) {
            return;
        }
        self.gauges = Some(now);
        let totals = self.books.totals(now);
        for (kind, gpus) in [
            ("capacity", totals.capacity),
            ("allocatable", totals.allocatable),
            ("bound", totals.bound),
            ("waiting", totals.waiting),
        ] {
            let help = "GPUs of the cluster by resource name: there, allocatable, held by pods, asked for by waiting pods";
            self.metrics.gauge("strandline_ingest_cluster_gpus", help, &[("kind", kind)]).set(gpus as f64);
        }
        let pods = self.books.pods.len();
        self.metrics
            .gauge("strandline_ingest_pods", "pods that ask for GPUs, and those that did in the last hour", &[])
            .set(pods as f64);
        let late = self.books.pods.counts().late + self.books.nodes.counts().late;
        counter(&self.metrics, LATE.0, LATE.1).add(late.saturating_sub(self.late));
        self.late = late;
    }
}

impl Comparison {
    fn new(config: &AllocationsConfig, own: &Arc<dyn Topic>) -> Self {
        let own = own.clone();
        let mut tails = vec![Tail::of(Box::new(move || Ok(own.clone())))];
        for dir in config.agent_logs.clone() {
            tails.push(Tail::of(Box::new(move || {
                Log::reader(&dir, local::Options::default())?.topic(ALLOCATIONS).map(|topic| topic as Arc<dyn Topic>)
            })));
        }
        Comparison {
            cluster: config.cluster.clone(),
            side: Some((tails, Kubelets::default())),
            disagreements: Disagreements::default(),
            lasting_ms: config.reconcile_after_ms,
            last: None,
            unread: false,
        }
    }

    /// Compares both sides, where it is time for that, and shows how many pods they disagree on.
    async fn compare(&mut self, books: &Books, now: Timestamp, metrics: &Metrics) {
        let every = GAUGES_EVERY_MS.min(self.lasting_ms);
        if self.last.is_some_and(|at| now.ms() - at.ms() < every) {
            return;
        }
        self.last = Some(now);
        let Some((mut tails, mut kubelets)) = self.side.take() else { return };
        let cluster = self.cluster.clone();
        let (read, side) = blocking(move || {
            let each = |tail: &mut Tail| tail.read(|value| kubelets.take(value, &cluster));
            let read: Vec<Result<(), TransportError>> = tails.iter_mut().map(each).collect();
            (read, (tails, kubelets))
        })
        .await;
        let (_, kubelets) = self.side.insert(side);
        let mut unread = false;
        for error in read.into_iter().filter_map(Result::err) {
            counter(metrics, UNCOMPARED.0, UNCOMPARED.1).inc();
            unread = true;
            if !self.unread {
                let error = format!("{:#}", anyhow::Error::new(error));
                tracing::warn!(error, "what kubelets say cannot be read; it is compared as it was");
            }
        }
        self.unread = unread;
        // Without agents there is nothing to compare, and no figure.
        let Some(podres) = kubelets.held(now) else { return };
        let help = "pods on which the API server and the kubelets disagree for some time, by who knows them";
        for (kind, pods) in self.disagreements.compare(&books.held(now), &podres, now, self.lasting_ms) {
            metrics.gauge("strandline_ingest_reconciliation_pods", help, &[("kind", kind.as_str())]).set(pods as f64);
        }
    }
}

/// Holdings first: what is taken leaves the batch.
async fn produce(topics: &Topics, batch: &mut Batch) -> Result<(), TransportError> {
    for (topic, records) in [(&topics.allocations, &mut batch.allocations), (&topics.nodes, &mut batch.nodes)] {
        if records.is_empty() {
            continue;
        }
        let (topic, sent) = (topic.clone(), std::mem::take(records));
        let (result, sent) = blocking(move || (topic.produce(&sent).map(drop), sent)).await;
        if let Err(error) = result {
            *records = sent;
            return Err(error);
        }
    }
    Ok(())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
