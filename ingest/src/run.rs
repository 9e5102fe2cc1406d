//! The two loops that wait: rounds at their interval, and a sink that follows the log.

use crate::agent::{Agent, AgentError, Gathered, RoundReport, Topics};
use crate::clock::Clock;
use crate::close::{CloseError, CloseReport, Closer};
use crate::config::{AgentConfig, AgentTransport, ConfigError, SinkConfig, SinkTransport};
use crate::page::BAD_DEVICE_ID;
use crate::parse::Reason;
use crate::publish::{ALLOCATIONS, NODES, SAMPLES};
use crate::sink::{Flush, Sink, SinkError, StepReport};
use crate::transport::kafka::Kafka;
use crate::transport::local::{self, Log, TopicSpec};
use crate::transport::spool::{Connect, Counts, Spool};
use crate::transport::{Topic, TransportError};
use attribution::SocketError;
use attribution::watch::ApiError;
use lake::{Lake, LakeError};
use schemas::Timestamp;
use schemas::status::{JoinReason, ReadingFault, ScrapeStatus};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use web::{Metrics, Ready};

mod sources;

pub(crate) use sources::API_FAILURES;
use sources::{Heard, Sources};

/// Why a command ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its own pages cannot be served.
    #[error("cannot serve this process's own pages")]
    Listen(#[source] web::ListenError),
    /// Nor by that web-config file.
    #[error("cannot use the web-config file of this process's own pages")]
    WebConfig(#[source] web::ConfigError),
    /// The log cannot be opened.
    #[error("cannot open the log")]
    Log(#[source] TransportError),
    /// The agent cannot start.
    #[error("the agent cannot start")]
    Agent(#[source] AgentError),
    /// The agent cannot go on.
    #[error("the agent stopped")]
    Stopped(#[source] AgentError),
    /// The sink stopped.
    #[error("the sink stopped")]
    Sink(#[source] SinkError),
    /// Hours cannot be closed.
    #[error("hours cannot be closed")]
    Close(#[source] CloseError),
    /// The lake cannot be opened.
    #[error("cannot open the lake")]
    Lake(#[source] LakeError),
    /// Nothing leads to the API server.
    #[error("cannot ask the API server")]
    Api(#[source] ApiError),
}

/// Time between two looks at the log.
const SINK_EVERY: Duration = Duration::from_millis(500);
/// Least time between two batches of rounds that are taken, so that a fleet's rounds share their syncs; never more than the
/// scrape interval.
const TAKE_EVERY_MS: i64 = 1_000;
/// Time between two tries at closing hours.
const CLOSE_EVERY_MS: i64 = 60_000;

// Counters of what should not happen, with their help. They are there from the start, so that the first time is an increase.
const SKIPPED: (&str, &str) = ("strandline_ingest_skipped_rounds_total", "rounds that had no time");
const UNTAKEN: (&str, &str) = ("strandline_ingest_untaken_rounds_total", "rounds that the log did not take");
const RELOADS: (&str, &str) = ("strandline_ingest_reloads_total", "times the configuration was read again, by result");
const UNFOUND: (&str, &str) = (
    "strandline_ingest_discovery_failures_total",
    "files of targets, pods of exporters, or what they name, that could not be used",
);
const DROPPED: (&str, &str) = ("strandline_ingest_dropped_messages_total", "messages that left the log by its retention");
const REJECTS: (&str, &str) = ("strandline_ingest_rejects_total", "messages and parts of messages refused, by reason");
const STOPS: (&str, &str) = ("strandline_ingest_stops_total", "times the sink stopped consuming, or could not close hours");

/// How a running agent is told to read its configuration again.
pub struct Reload {
    /// One message for each time that is asked for.
    pub asked: mpsc::Receiver<()>,
    /// Reads the configuration.
    pub load: Box<dyn FnMut() -> Result<AgentConfig, ConfigError> + Send>,
}

/// Scrapes until `shutdown`; every round that was begun is finished.
pub async fn agent(
    config: AgentConfig,
    mut reload: Reload,
    clock: Arc<dyn Clock>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let (metrics, ready) = (Metrics::new(), Ready::new());
    let pages = Pages::start(&config.listen, config.web_config_file.as_deref(), &metrics, &ready).await?;
    let taker = Taker::open(&config.transport).map_err(RunError::Log)?;
    let topics = Topics { samples: taker.topic(SAMPLES)?, allocations: taker.topic(ALLOCATIONS)?, nodes: taker.topic(NODES)? };
    count_round(&metrics, &RoundReport::default());
    for (name, help) in [SKIPPED, UNTAKEN, UNFOUND, DROPPED] {
        counter(&metrics, name, help).add(0);
    }
    count_reload(&metrics, "ok", 0);
    count_reload(&metrics, "failed", 0);
    if config.local_pods.is_some() {
        for reason in SocketError::REASONS {
            metrics.counter(sources::UNLISTED.0, sources::UNLISTED.1, &[("reason", reason)]).add(0);
        }
    }
    if config.kubernetes.is_some() {
        for reason in ApiError::REASONS {
            metrics.counter(API_FAILURES.0, API_FAILURES.1, &[("reason", reason)]).add(0);
        }
    }

    let mut agent = Agent::new(config.options.clone(), Vec::new(), topics, clock.clone()).map_err(RunError::Agent)?;
    let (mut sources, unfound) = Sources::of(&config, None, &clock, &metrics).await.map_err(RunError::Api)?;
    counter(&metrics, UNFOUND.0, UNFOUND.1).add(unfound);
    agent.change(config.options.clone(), sources.targets()).map_err(RunError::Agent)?;
    sources.tell(&mut agent);
    let recalled = match agent.recall() {
        // A new node must not wait for Kafka. What it had seen before it lost its state ends when it is sighted elsewhere.
        Err(AgentError::Produce(error)) if error.passes() && matches!(taker, Taker::Spool(_)) => {
            tracing::warn!(
                error = format!("{:#}", anyhow::Error::new(error)),
                "there was no state file, and Kafka does not tell"
            );
            0
        }
        result => result.map_err(RunError::Agent)?,
    };
    if recalled > 0 {
        tracing::warn!(recalled, "there was no state file; what the log tells of pods on devices goes on");
    }
    let restarted = agent.announce_restart(clock.now()).await.map_err(RunError::Agent)?;
    let interval_ms = config.options.interval_ms;
    count_targets(&metrics, agent.targets());
    tracing::info!(targets = agent.targets(), interval_ms, restarted, "agent started");

    tokio::pin!(shutdown);
    let mut config = config;
    let mut taking = Taking { metrics: metrics.clone(), ready, untaken: 0 };
    let mut gathered = Gathered::default();
    let (mut taken, mut retained) = (None, Some(clock.now()));
    loop {
        let now = clock.now();
        let interval_ms = i64::from(config.options.interval_ms);
        let take_every_ms = interval_ms.min(TAKE_EVERY_MS);
        if !gathered.is_empty() && due(taken, take_every_ms, now) {
            sources.unknown(gathered.report.newly_unmatched, agent.claims());
            taking.take(&mut agent, std::mem::take(&mut gathered), now).await?;
            taker.count(&metrics);
            taken = Some(now);
            continue;
        }
        if due(retained, CLOSE_EVERY_MS, now) {
            retained = Some(now);
            if let Err(error) = taker.retain(now, &metrics) {
                tracing::error!(error = format!("{:#}", anyhow::Error::new(error)), "cannot drop old segments of the log")
            }
        }
        // An interval at most: a clock that was put back is noticed then.
        let wait = [now.plus_ms(interval_ms.min(CLOSE_EVERY_MS))];
        let take_at = taken.filter(|_| !gathered.is_empty()).map(|taken: Timestamp| taken.plus_ms(take_every_ms));
        let wake = agent.due().into_iter().chain(take_at).chain(wait).min().unwrap_or(now);
        tokio::select! {
            () = clock.sleep_until(wake) => {
                let skipped = agent.begin(clock.now());
                if skipped > 0 {
                    tracing::warn!(skipped, "rounds had no time; targets take longer than the interval, or this machine is too busy");
                    counter(&metrics, SKIPPED.0, SKIPPED.1).add(skipped);
                }
            }
            _ = agent.answered(&mut gathered), if agent.is_asking() => {}
            news = sources.news() => {
                match sources.hear(news, &metrics) {
                    Heard::Nothing => {}
                    Heard::Targets => sources::change(&mut agent, &config, &sources, &metrics),
                    Heard::Pods(at, pods) => {
                        let holdings = agent.local_pods(&pods, at);
                        taking.take_some(&mut agent, holdings, clock.now()).await?;
                    }
                }
                sources.tell(&mut agent);
                let back = agent.restarted(clock.now());
                taking.take_some(&mut agent, back, clock.now()).await?;
            }
            Some(()) = reload.asked.recv() => {
                match sources::read_again(&mut reload, &config, &mut sources, &mut agent, &clock, &metrics).await {
                    Ok((next, new_sources)) => {
                        count_reload(&metrics, "ok", 1);
                        count_targets(&metrics, agent.targets());
                        tracing::info!(targets = agent.targets(), "the configuration was read again");
                        (config, sources) = (next, new_sources);
                        sources.tell(&mut agent);
                        let back = agent.restarted(clock.now());
                        taking.take_some(&mut agent, back, clock.now()).await?;
                    }
                    Err(error) => {
                        count_reload(&metrics, "failed", 1);
                        tracing::error!(error = format!("{error:#}"), "the new configuration is refused; the old one goes on");
                    }
                }
            }
            () = &mut shutdown => break,
        }
    }
    // What was begun is finished: each target has its time-out.
    while agent.answered(&mut gathered).await {}
    if !gathered.is_empty() {
        taking.take(&mut agent, gathered, clock.now()).await?;
    }
    tracing::info!("agent ends");
    pages.stop().await;
    Ok(())
}

/// Whether something that is done every so often, and was done at `last`, is due. It is where the clock was put back.
fn due(last: Option<Timestamp>, every_ms: i64, now: Timestamp) -> bool {
    last.is_none_or(|last| !(0..every_ms).contains(&(now.ms() - last.ms())))
}

/// What follows a batch of rounds.
struct Taking {
    metrics: Metrics,
    ready: Ready,
    /// Batches since the last one that was taken.
    untaken: u64,
}

impl Taking {
    /// Has what was gathered beside the rounds taken, where it is anything.
    async fn take_some(&mut self, agent: &mut Agent, gathered: Gathered, now: Timestamp) -> Result<(), RunError> {
        if gathered.is_empty() { Ok(()) } else { self.take(agent, gathered, now).await }
    }

    /// Has a batch of rounds taken. An error ends the agent.
    async fn take(&mut self, agent: &mut Agent, gathered: Gathered, now: Timestamp) -> Result<(), RunError> {
        let report = gathered.report.clone();
        match agent.publish(vec![gathered]).await {
            Ok(()) => {
                count_round(&self.metrics, &report);
                if !report.by_status.is_empty() {
                    let help = "time of the last round that was taken, seconds since 1970";
                    self.metrics.gauge("strandline_ingest_last_round_seconds", help, &[]).set(now.ms() as f64 / 1000.0);
                }
                if self.untaken > 0 {
                    tracing::info!(untaken = self.untaken, "rounds are taken again");
                    self.untaken = 0;
                }
                self.ready.set(true);
                tracing::debug!(?report, "rounds");
                Ok(())
            }
            // Nothing will be taken until the log is opened again: whoever watches over this process starts it anew.
            Err(error @ AgentError::Produce(TransportError::Poisoned { .. } | TransportError::Changed { .. })) => {
                Err(RunError::Stopped(error))
            }
            Err(error) => {
                let rounds = report.by_status.values().sum::<u64>();
                self.untaken += rounds;
                let chain = anyhow::Error::new(error);
                tracing::error!(error = format!("{chain:#}"), rounds, "rounds are not taken; they are a gap");
                counter(&self.metrics, UNTAKEN.0, UNTAKEN.1).add(rounds);
                self.ready.set(false);
                Ok(())
            }
        }
    }
}

/// Shows how far the API server's clock is ahead of ours.
pub(crate) fn api_ahead(metrics: &Metrics, ahead_ms: i64) {
    let help = "clock of the API server minus ours, in seconds";
    metrics.gauge("strandline_ingest_api_clock_ahead_seconds", help, &[]).set(ahead_ms as f64 / 1000.0);
}

fn count_targets(metrics: &Metrics, targets: usize) {
    metrics.gauge("strandline_ingest_targets", "targets that are scraped", &[]).set(targets as f64);
}

pub(crate) fn count_reload(metrics: &Metrics, result: &str, count: u64) {
    metrics.counter(RELOADS.0, RELOADS.1, &[("result", result)]).add(count);
}

/// Where an agent's rounds are taken.
enum Taker {
    Log(Log),
    Spool(Spool),
}

/// Topics that an agent writes and a sink reads.
const TOPICS: [&str; 3] = [SAMPLES, ALLOCATIONS, NODES];

impl Taker {
    fn open(transport: &AgentTransport) -> Result<Self, TransportError> {
        match transport {
            AgentTransport::Log { dir, partitions, options } => {
                let specs = TOPICS.map(|name| TopicSpec { name, partitions: *partitions });
                Log::open(dir, &specs, *options).map(Taker::Log)
            }
            AgentTransport::Kafka { options, spool_dir, spool } => {
                let kafka = Kafka::new(options.clone())?;
                match kafka.prepare(&TOPICS) {
                    Err(error) if error.passes() => {
                        let error = format!("{:#}", anyhow::Error::new(error));
                        tracing::warn!(error, "Kafka is not there; rounds go to the spool until it is");
                    }
                    result => result?,
                }
                let connect = |name: &'static str| {
                    let kafka = kafka.clone();
                    let connect: Connect = Box::new(move || {
                        let missing = || TransportError::NoTopic { topic: name.to_owned(), path: "Kafka".into() };
                        let topics = match kafka.topics(&[name]) {
                            Err(TransportError::NoTopic { .. }) => kafka.prepare(&[name]).and_then(|()| kafka.topics(&[name]))?,
                            result => result?,
                        };
                        topics.into_iter().next().map(|topic| topic as Arc<dyn Topic>).ok_or_else(missing)
                    });
                    (name, connect)
                };
                Spool::open(spool_dir, TOPICS.map(connect).into_iter().collect(), *spool)?.start().map(Taker::Spool)
            }
        }
    }

    fn topic(&self, name: &str) -> Result<Arc<dyn Topic>, RunError> {
        let missing = || RunError::Log(TransportError::NoTopic { topic: name.to_owned(), path: "spool".into() });
        match self {
            Taker::Log(log) => log.topic(name).map(|topic| topic as Arc<dyn Topic>).map_err(RunError::Log),
            Taker::Spool(spool) => spool.topic(name).map(|topic| topic as Arc<dyn Topic>).ok_or_else(missing),
        }
    }

    fn retain(&self, now: Timestamp, metrics: &Metrics) -> Result<(), TransportError> {
        match self {
            Taker::Log(log) => counter(metrics, DROPPED.0, DROPPED.1).add(log.retain(now.ms())?),
            Taker::Spool(spool) => spool.retain(now.ms())?,
        }
        Ok(())
    }

    fn count(&self, metrics: &Metrics) {
        if let Taker::Spool(spool) = self {
            count_spool(metrics, spool.counts());
        }
    }
}

fn count_spool(metrics: &Metrics, counts: &Counts) {
    for (name, help, now) in [
        ("strandline_ingest_spooled_total", "messages that went into the spool because Kafka did not take them", &counts.spooled),
        ("strandline_ingest_forwarded_total", "messages that went from the spool to Kafka", &counts.forwarded),
        ("strandline_ingest_spool_dropped_total", "messages that left the spool before Kafka had them", &counts.dropped),
        ("strandline_ingest_spool_refused_total", "messages of the spool that Kafka refused for what they are", &counts.refused),
    ] {
        let shown = counter(metrics, name, help);
        shown.add(now.load(Ordering::Relaxed).saturating_sub(shown.get()));
    }
    for (name, help, now) in [
        ("strandline_ingest_spool_messages", "messages that wait in the spool", &counts.waiting),
        ("strandline_ingest_spool_bytes", "bytes of the spool on disk", &counts.bytes),
    ] {
        metrics.gauge(name, help, &[]).set(now.load(Ordering::Relaxed) as f64);
    }
}

/// Follows the log until `shutdown`, then publishes what it has read.
pub async fn sink(config: SinkConfig, clock: Arc<dyn Clock>, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
    let (metrics, ready) = (Metrics::new(), Ready::new());
    let pages = Pages::start(&config.listen, config.web_config_file.as_deref(), &metrics, &ready).await?;
    let lake = Lake::create(&config.lake).map_err(RunError::Lake)?;
    let stop = Arc::new(AtomicBool::new(false));
    let work = {
        let stop = stop.clone();
        tokio::task::spawn_blocking(move || follow(&config, &lake, &*clock, &metrics, &ready, &stop))
    };
    tokio::pin!(shutdown, work);
    let result = tokio::select! {
        result = &mut work => result,
        () = &mut shutdown => {
            stop.store(true, Ordering::SeqCst);
            work.await
        }
    };
    pages.stop().await;
    match result {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The sink's loop, on a thread of its own: it reads files and writes files.
fn follow(
    config: &SinkConfig,
    lake: &Lake,
    clock: &dyn Clock,
    metrics: &Metrics,
    ready: &Ready,
    stop: &AtomicBool,
) -> Result<(), RunError> {
    count_step(metrics, &StepReport::default());
    count_close(metrics, &CloseReport::default());
    counter(metrics, STOPS.0, STOPS.1).add(0);
    for reason in ["lost", "undecodable"] {
        metrics.counter(REJECTS.0, REJECTS.1, &[("reason", reason)]).add(0);
    }
    let mut closer = Closer::new(lake.clone(), config.close);
    let mut closed_at: Option<Timestamp> = None;
    let kafka = match &config.transport {
        SinkTransport::Kafka(options) => Some(Kafka::new(options.clone()).map_err(RunError::Log)?),
        SinkTransport::Log(_) => None,
    };
    let mut prepared = false;
    // After a stumble nothing says that it is over until something was written: what is read is only in memory.
    let mut stumbled = false;
    'open: while !stop.load(Ordering::SeqCst) {
        let topics = match topics(config, kafka.as_ref(), &mut prepared) {
            Ok(topics) => topics,
            Err(error) if error.passes() || matches!(error, TransportError::NoTopic { .. }) => {
                tracing::warn!(error = format!("{:#}", anyhow::Error::new(error)), "waiting for the log");
                ready.set(false);
                pause(config.retry_every, stop);
                continue;
            }
            Err(error) => return Err(RunError::Log(error)),
        };
        let mut sink = match Sink::open(lake.clone(), topics, config.sink.clone()) {
            Ok(sink) => sink,
            Err(error) if passes(&error) => {
                stumbled = true;
                stumble(error, "the sink has stopped consuming and will try again", metrics, ready);
                pause(config.retry_every, stop);
                continue;
            }
            Err(error) => return Err(RunError::Sink(error)),
        };
        tracing::info!(lake = %lake.location().display(), "sink follows the log");
        loop {
            let last = stop.load(Ordering::SeqCst);
            let now = clock.now();
            // At the end, and to see whether the disk has room again, all that is read is written at once.
            let step = if last || stumbled { sink.flush(now) } else { sink.step(now) };
            let closed = match step {
                Ok(report) => {
                    count_step(metrics, &report);
                    let due = last || closed_at.is_none_or(|at| now.ms() - at.ms() >= CLOSE_EVERY_MS);
                    if due { close(&mut closer, &mut sink, metrics, now, report.behind_at) } else { Ok(()) }
                }
                Err(error) => Err(RunError::Sink(error)),
            };
            match closed {
                Ok(()) => {
                    closed_at = Some(closed_at.filter(|at| now.ms() - at.ms() < CLOSE_EVERY_MS).unwrap_or(now));
                    if stumbled {
                        tracing::info!("the sink goes on");
                    }
                    stumbled = false;
                    ready.set(true);
                }
                Err(RunError::Sink(error)) if passes(&error) => {
                    stumbled = true;
                    stumble(error, "the sink has stopped consuming and will try again", metrics, ready);
                    pause(config.retry_every, stop);
                    continue 'open;
                }
                Err(RunError::Close(error)) if error.passes() => {
                    // What the closer remembers may be ahead of what it has written: it begins anew, from the lake.
                    closer = Closer::new(lake.clone(), config.close);
                    stumbled = true;
                    stumble(error, "hours cannot be closed now; the sink will try again", metrics, ready);
                    pause(config.retry_every, stop);
                    continue 'open;
                }
                Err(error) => return Err(error),
            }
            if last {
                break 'open;
            }
            pause(SINK_EVERY, stop);
        }
    }
    tracing::info!("sink ends");
    Ok(())
}

/// The topics as they are now. `prepared` says whether their settings have been looked at.
fn topics(config: &SinkConfig, kafka: Option<&Arc<Kafka>>, prepared: &mut bool) -> Result<Vec<Arc<dyn Topic>>, TransportError> {
    match (&config.transport, kafka) {
        (SinkTransport::Log(dir), _) => {
            let log = Log::reader(dir, local::Options::default())?;
            TOPICS.into_iter().map(|name| log.topic(name).map(|t| t as Arc<dyn Topic>)).collect()
        }
        (SinkTransport::Kafka(_), Some(kafka)) => {
            if !*prepared {
                kafka.prepare(&TOPICS)?;
                *prepared = true;
            }
            Ok(kafka.topics(&TOPICS)?.into_iter().map(|t| t as Arc<dyn Topic>).collect())
        }
        (SinkTransport::Kafka(options), None) => Kafka::new(options.clone())?.topics(&TOPICS).map(|_| Vec::new()),
    }
}

/// Closes what is due. What is buffered of hours that are over is published first.
fn close(
    closer: &mut Closer,
    sink: &mut Sink,
    metrics: &Metrics,
    now: Timestamp,
    behind: Option<Timestamp>,
) -> Result<(), RunError> {
    let elsewhere = sink.behind_elsewhere().map_err(RunError::Sink)?;
    let earlier = |mine: Option<Timestamp>| [mine, elsewhere].into_iter().flatten().min();
    let mut behind = earlier(behind);
    if closer.due(now, behind) < closer.due(now, None) {
        let report = sink.flush(now).map_err(RunError::Sink)?;
        count_step(metrics, &report);
        behind = earlier(report.behind_at);
    }
    let report = match closer.close(closer.due(now, behind), now) {
        // A killed one's lease, at the worst: nothing is lost by closing later.
        Err(error @ CloseError::Busy { .. }) => {
            tracing::warn!(%error, "hours are not closed this time");
            return Ok(());
        }
        result => result.map_err(RunError::Close)?,
    };
    count_close(metrics, &report);
    if !report.parts.is_empty() {
        tracing::info!(
            parts = report.parts.values().sum::<u64>(),
            rows = report.rows,
            repeats = report.repeats,
            late = report.late,
            "closed hours"
        );
    }
    if report.removed_hot + report.removed_closed > 0 {
        tracing::info!(hot = report.removed_hot, closed = report.removed_closed, "removed files that were old and closed");
    }
    Ok(())
}

fn count_close(metrics: &Metrics, report: &CloseReport) {
    for (table, parts) in &report.parts {
        let name = "strandline_ingest_closed_parts_total";
        metrics.counter(name, "parts of closed hours written", &[("table", table)]).add(*parts);
    }
    counter(metrics, "strandline_ingest_repeats_total", "repeated rows dropped while closing").add(report.repeats);
    counter(metrics, "strandline_ingest_late_total", "rows and states that came too late").add(report.late);
    for (tree, count) in [("hot", report.removed_hot), ("closed", report.removed_closed)] {
        let name = "strandline_ingest_removed_files_total";
        metrics.counter(name, "files that retention has removed, by tree", &[("tree", tree)]).add(count);
    }
    if let Some(watermark) = report.watermark {
        let help = "end of the last closed hour, seconds since 1970";
        metrics.gauge("strandline_ingest_closed_to_seconds", help, &[]).set(watermark.closed_to.ms() as f64 / 1000.0);
    }
}

/// Whether an error may go away by itself: then the sink stops consuming and tries again; it never drops anything for it.
fn passes(error: &SinkError) -> bool {
    match error {
        SinkError::Lake(error) => error.passes(),
        // The agent, when it is started again, cuts a damaged end; a broker comes back.
        SinkError::Log(error) => error.passes(),
        SinkError::UnknownTopic(_)
        | SinkError::Recreated { .. }
        | SinkError::Backwards { .. }
        | SinkError::Lost { .. }
        | SinkError::Torn { .. }
        | SinkError::Stopped(_) => false,
    }
}

fn stumble(error: impl std::error::Error + Send + Sync + 'static, what: &str, metrics: &Metrics, ready: &Ready) {
    tracing::error!(error = format!("{:#}", anyhow::Error::new(error)), "{what}");
    counter(metrics, STOPS.0, STOPS.1).inc();
    ready.set(false);
}

/// Waits, but not longer than until the end is asked for.
fn pause(time: Duration, stop: &AtomicBool) {
    let step = Duration::from_millis(50);
    let mut left = time;
    while !left.is_zero() && !stop.load(Ordering::SeqCst) {
        std::thread::sleep(left.min(step));
        left = left.saturating_sub(step);
    }
}

/// This process's own pages.
pub(crate) struct Pages {
    stop: tokio::sync::oneshot::Sender<()>,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Pages {
    pub(crate) async fn start(
        listen: &str,
        web_config_file: Option<&Path>,
        metrics: &Metrics,
        ready: &Ready,
    ) -> Result<Self, RunError> {
        let guard = web::Guard::of(web_config_file, metrics).map_err(RunError::WebConfig)?;
        let address = listen.parse().map_err(RunError::Listen)?;
        let listener = web::listen(address).await.map_err(RunError::Listen)?;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let router = web::pages(metrics.clone(), ready.clone());
        let serving = tokio::spawn(web::serve_guarded(listener, router, web::Limits::default(), guard, async {
            let _ = stopped.await;
        }));
        Ok(Pages { stop, serving })
    }

    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        if let Ok(Err(error)) = self.serving.await {
            tracing::warn!(%error, "this process's own pages ended badly");
        }
    }
}

pub(crate) fn counter(metrics: &Metrics, name: &'static str, help: &'static str) -> web::metrics::Counter {
    metrics.counter(name, help, &[])
}

fn count_round(metrics: &Metrics, report: &RoundReport) {
    for status in ScrapeStatus::ALL.iter().map(|s| s.as_str()) {
        let count = report.by_status.get(status).copied().unwrap_or_default();
        metrics.counter("strandline_ingest_rounds_total", "scrape rounds by status", &[("status", status)]).add(count);
        let took = report.took_ms.get(status).copied().unwrap_or_default();
        let help = "time from the request to the whole answer, of page and kubelet, by status of the round";
        metrics.counter("strandline_ingest_round_milliseconds_total", help, &[("status", status)]).add(took);
    }
    for reason in JoinReason::ALL.iter().map(|r| r.as_str()) {
        let count = report.join_reasons.get(reason).copied().unwrap_or_default();
        let name = "strandline_ingest_join_failures_total";
        metrics.counter(name, "rounds whose devices could not be joined", &[("reason", reason)]).add(count);
    }
    let by_label = |name, help, label, words: Vec<(&'static str, u64)>| {
        for (word, count) in words {
            metrics.counter(name, help, &[(label, word)]).add(count);
        }
    };
    // From zero at the start, whatever has been counted.
    let all = |words: &[&'static str], counts: &BTreeMap<&'static str, u64>| -> Vec<(&'static str, u64)> {
        words.iter().map(|word| (*word, 0)).chain(counts.iter().map(|(word, count)| (*word, *count))).collect()
    };
    let bad_lines = all(&[Reason::CODES, &[BAD_DEVICE_ID]].concat(), &report.bad_lines_by_reason);
    by_label("strandline_ingest_bad_lines_total", "lines kept out, by reason", "reason", bad_lines);
    let faults = all(&ReadingFault::ALL.iter().map(|fault| fault.as_str()).collect::<Vec<_>>(), &report.faults);
    let help = "readings that were dropped, clipped or in conflict, by reason";
    by_label("strandline_ingest_reading_faults_total", help, "reason", faults);
    let capped = ["extra_samples", "device_samples", "labels"].into_iter().zip(report.capped).collect();
    by_label("strandline_ingest_capped_total", "what the caps on one page dropped", "what", capped);
    for (name, help, count) in [
        ("strandline_ingest_series_total", "series read", report.series),
        ("strandline_ingest_duplicate_series_total", "series that stood twice on a page", report.duplicate_series),
        ("strandline_ingest_refused_labels_total", "labels that the contract refused", report.refused_labels),
        (
            "strandline_ingest_label_disagrees_total",
            "devices whose labels name another pod than the kubelet",
            report.label_disagreements,
        ),
        ("strandline_ingest_sightings_total", "sighting states published", report.sightings),
        ("strandline_ingest_local_states_total", "states of holdings by the node's own kubelet published", report.local_states),
        ("strandline_ingest_refused_pods_total", "pods of the node's own kubelet that could not be read", report.refused_pods),
        ("strandline_ingest_messages_total", "messages taken", report.messages),
        ("strandline_ingest_message_bytes_total", "bytes of messages taken", report.bytes),
        ("strandline_ingest_left_out_total", "parts of rounds that no message had room for", report.left_out),
    ] {
        counter(metrics, name, help).add(count);
    }
}

fn count_step(metrics: &Metrics, report: &StepReport) {
    for (name, help, count) in [
        ("strandline_ingest_records_total", "messages read from the log", report.records),
        ("strandline_ingest_lost_messages_total", "messages that were lost after they were taken", report.lost),
        ("strandline_ingest_hot_files_total", "hot files published", report.files),
        ("strandline_ingest_lost_swaps_total", "cuts that another writer had made first", report.lost_swaps),
    ] {
        counter(metrics, name, help).add(count);
    }
    for lag in &report.lag {
        let labels = [("topic", lag.topic.as_str()), ("partition", &lag.partition.to_string())];
        metrics.gauge("strandline_ingest_lag", "messages taken and not yet read", &labels).set(lag.messages as f64);
    }
    for (reason, count) in &report.reasons {
        metrics.counter(REJECTS.0, REJECTS.1, &[("reason", reason)]).add(*count);
    }
    let took = |flush: &Flush| u64::try_from(flush.took.as_millis()).unwrap_or(u64::MAX);
    for (name, help, count) in [
        ("strandline_ingest_flushes_total", "intervals published", report.flushes.len() as u64),
        ("strandline_ingest_flush_rows_total", "rows published", report.flushes.iter().map(|f| f.rows).sum()),
        ("strandline_ingest_flush_bytes_total", "bytes of hot files published", report.flushes.iter().map(|f| f.bytes).sum()),
        ("strandline_ingest_flush_milliseconds_total", "time spent publishing", report.flushes.iter().map(took).sum()),
    ] {
        counter(metrics, name, help).add(count);
    }
    if let Some(last) = report.flushes.last() {
        let (name, help) = ("strandline_ingest_flush_last_seconds", "how long the last interval took to publish");
        metrics.gauge(name, help, &[]).set(last.took.as_secs_f64());
    }
    metrics.gauge("strandline_ingest_buffered", "messages read and not yet in files", &[]).set(report.buffered as f64);
}
