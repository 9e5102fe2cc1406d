//! The loop that waits: stand by, lead, publish, stand by again.

use super::books::{Batch, Books, Recalled};
use super::config::AllocationsConfig;
use super::recall::recall;
use crate::clock::Clock;
use crate::publish::{ALLOCATIONS, NODES, SAMPLES};
use crate::run::{Pages, RunError, counter};
use crate::transport::local::{Log, TopicSpec};
use crate::transport::{Topic, TransportError};
use attribution::pods::asks_for_devices;
use attribution::watch::owners::{self, OwnerRef, Owners};
use attribution::watch::{Api, ApiError, Event, Lease, Resource, Standing, Told, Wants, follow};
use schemas::Timestamp;
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

/// Time between two refreshes of what the pages show of the books.
const GAUGES_EVERY_MS: i64 = 15_000;
/// Controllers whose way up is asked for again with every snapshot.
const MAX_PARTIAL: usize = 10_000;

const EVENTS: (&str, &str) = ("strandline_ingest_watch_events_total", "events of the API server by resource");
const FAILURES: (&str, &str) = ("strandline_ingest_api_failures_total", "requests to the API server that failed, by reason");
const REFUSED: (&str, &str) = ("strandline_ingest_refused_objects_total", "objects of the API server that could not be read");
const LATE: (&str, &str) = ("strandline_ingest_late_events_total", "events older than what is settled; they changed nothing");
const STATES: (&str, &str) = ("strandline_ingest_states_total", "states of holdings, demand and nodes taken by the log");
const UNTAKEN: (&str, &str) = ("strandline_ingest_untaken_states_total", "states dropped because the log took none for too long");
const CHANGES: (&str, &str) = ("strandline_ingest_leader_changes_total", "times this process began or ceased to lead");

/// The topics that states go to.
#[derive(Clone)]
pub struct Topics {
    /// `strandline.allocations`.
    pub allocations: Arc<dyn Topic>,
    /// `strandline.nodes`.
    pub nodes: Arc<dyn Topic>,
}

/// Watches until `shutdown`, whenever this process leads; what was told by then is published, and the lease given up.
pub async fn run(config: AllocationsConfig, clock: Arc<dyn Clock>, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
    let (metrics, ready) = (Metrics::new(), Ready::new());
    let pages = Pages::start(&config.listen, &metrics, &ready).await?;
    let specs = [SAMPLES, ALLOCATIONS, NODES].map(|name| TopicSpec { name, partitions: config.log_partitions });
    let log = Log::open(&config.log_dir, &specs, config.log).map_err(RunError::Log)?;
    let topic = |name| log.topic(name).map_err(RunError::Log);
    let topics = Topics { allocations: topic(ALLOCATIONS)?, nodes: topic(NODES)? };
    let retain = |now: Timestamp| match log.retain(now.ms()) {
        Ok(dropped) => counter(&metrics, DROPPED.0, DROPPED.1).add(dropped),
        Err(error) => tracing::error!(error = format!("{:#}", anyhow::Error::new(error)), "cannot drop old segments of the log"),
    };
    let result = follow_cluster(&config, topics, clock, &metrics, &ready, shutdown, retain).await;
    pages.stop().await;
    result
}

/// The same over topics of any transport; `every_minute` is called once a minute.
pub async fn follow_cluster(
    config: &AllocationsConfig,
    topics: Topics,
    clock: Arc<dyn Clock>,
    metrics: &Metrics,
    ready: &Ready,
    shutdown: impl Future<Output = ()>,
    mut every_minute: impl FnMut(Timestamp),
) -> Result<(), RunError> {
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
    let result = loop {
        let mut told = Vec::new();
        tokio::select! {
            () = &mut shutdown => break Ok(()),
            Ok(()) = stands.changed() => {}
            _ = tick.tick() => {}
            _ = receive(&mut term, &mut told) => {}
        }
        let stand = stands.borrow_and_update().clone();
        let now = clock.now();
        if now.ms() - minute.ms() >= RETAIN_EVERY_MS {
            minute = now;
            every_minute(now);
        }
        if let Some((ahead, _)) = api.ahead_ms() {
            let help = "clock of the API server minus ours, in seconds";
            metrics.gauge("strandline_ingest_api_clock_ahead_seconds", help, &[]).set(ahead as f64 / 1000.0);
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
            let begun = Term::begin(config, &topics, &api, metrics).await;
            match begun {
                Ok(begun) => term = Some(begun),
                Err(error) => break Err(RunError::Log(error)),
            }
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
    for (name, help) in [REFUSED, LATE, STATES, UNTAKEN, CHANGES, DROPPED] {
        counter(metrics, name, help).add(0);
    }
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
    metrics: Metrics,
}

impl Term {
    /// Reads what was told before, and begins to watch.
    async fn begin(config: &AllocationsConfig, topics: &Topics, api: &Api, metrics: &Metrics) -> Result<Self, TransportError> {
        let (cluster, topics) = (config.cluster.clone(), topics.clone());
        let states = blocking(move || {
            let mut states = recall(&*topics.allocations, &cluster, Recalled::allocation)?;
            states.append(&mut recall(&*topics.nodes, &cluster, Recalled::node)?);
            Ok::<_, TransportError>(states)
        })
        .await?;
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
                match &told.event {
                    Event::Listed { objects, .. } => controllers.extend(objects.iter().filter_map(|json| owners::of_pod(json))),
                    Event::Seen(json) => controllers.extend(owners::of_pod(json)),
                    Event::Deleted(_) | Event::Current | Event::Absent | Event::Failed(_) => {}
                }
            }
            let refused = self.books.take(&told);
            counter(&self.metrics, REFUSED.0, REFUSED.1).add(refused.len() as u64);
            for error in refused {
                tracing::warn!(%error, "an object is left out");
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
