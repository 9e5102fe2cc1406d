//! The two loops that wait: rounds at their interval, and a sink that follows the log.

use crate::agent::{Agent, AgentError, RoundReport, Topics};
use crate::clock::Clock;
use crate::close::{CloseError, CloseReport, Closer};
use crate::config::{AgentConfig, SinkConfig};
use crate::publish::{ALLOCATIONS, NODES, SAMPLES};
use crate::sink::{Sink, SinkError, StepReport};
use crate::transport::local::{self, Log, TopicSpec};
use crate::transport::{Topic, TransportError};
use lake::{Lake, LakeError};
use schemas::Timestamp;
use schemas::status::{JoinReason, ScrapeStatus};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use web::{Metrics, Ready};

/// Why a command ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its own pages cannot be served.
    #[error("cannot serve this process's own pages")]
    Listen(#[source] web::ListenError),
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
    #[error("cannot watch the cluster")]
    Api(#[source] attribution::watch::ApiError),
}

/// Time between two looks at the log.
const SINK_EVERY: Duration = Duration::from_millis(500);
/// Time between two tries at closing hours.
const CLOSE_EVERY_MS: i64 = 60_000;

// Counters of what should not happen, with their help. They are there from the start, so that the first time is an increase.
const SKIPPED: (&str, &str) = ("strandline_ingest_skipped_rounds_total", "rounds that had no time");
const UNTAKEN: (&str, &str) = ("strandline_ingest_untaken_rounds_total", "rounds that the log did not take");
const DROPPED: (&str, &str) = ("strandline_ingest_dropped_messages_total", "messages that left the log by its retention");
const STOPS: (&str, &str) = ("strandline_ingest_stops_total", "times the sink stopped consuming, or could not close hours");

/// Scrapes until `shutdown`; every round that was begun is finished.
pub async fn agent(config: AgentConfig, clock: Arc<dyn Clock>, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
    let (metrics, ready) = (Metrics::new(), Ready::new());
    let pages = Pages::start(&config.listen, &metrics, &ready).await?;
    let specs = [SAMPLES, ALLOCATIONS, NODES].map(|name| TopicSpec { name, partitions: config.log_partitions });
    let log = Log::open(&config.log_dir, &specs, config.log).map_err(RunError::Log)?;
    let topic = |name| log.topic(name).map_err(RunError::Log);
    let topics = Topics { samples: topic(SAMPLES)?, allocations: topic(ALLOCATIONS)?, nodes: topic(NODES)? };
    count_round(&metrics, &RoundReport::default());
    for (name, help) in [SKIPPED, UNTAKEN, DROPPED] {
        counter(&metrics, name, help).add(0);
    }
    let mut untaken: u64 = 0;
    let interval = i64::from(config.options.interval_ms);
    let targets = config.targets.len();
    let mut agent = Agent::new(config.options, config.targets, topics, clock.clone()).map_err(RunError::Agent)?;
    let recalled = agent.recall().map_err(RunError::Agent)?;
    if recalled > 0 {
        tracing::warn!(recalled, "there was no state file; what the log tells of pods on devices goes on");
    }
    let restarted = agent.announce_restart(clock.now()).await.map_err(RunError::Agent)?;
    tracing::info!(targets, interval_ms = interval, restarted, log = %config.log_dir.display(), "agent started");

    tokio::pin!(shutdown);
    let mut next = next_tick(clock.now(), interval);
    let mut retained = clock.now();
    loop {
        tokio::select! {
            () = clock.sleep_until(next) => {}
            () = &mut shutdown => break,
        }
        let now = clock.now();
        let skipped = (now.ms() - next.ms()) / interval;
        if skipped > 0 {
            tracing::warn!(skipped, "rounds took longer than the interval");
            counter(&metrics, SKIPPED.0, SKIPPED.1).add(skipped.unsigned_abs());
        }
        match agent.round(now).await {
            Ok(report) => {
                count_round(&metrics, &report);
                let help = "time of the last round that was taken, seconds since 1970";
                metrics.gauge("strandline_ingest_last_round_seconds", help, &[]).set(now.ms() as f64 / 1000.0);
                if untaken > 0 {
                    tracing::info!(untaken, "rounds are taken again");
                    untaken = 0;
                }
                ready.set(true);
                tracing::debug!(?report, "round");
            }
            // Nothing will be taken until the log is opened again: whoever watches over this process starts it anew.
            Err(error @ AgentError::Produce(TransportError::Poisoned { .. } | TransportError::Changed { .. })) => {
                return Err(RunError::Stopped(error));
            }
            Err(error) => {
                untaken += 1;
                let chain = anyhow::Error::new(error);
                tracing::error!(error = format!("{chain:#}"), "the round is not taken; it is a gap");
                counter(&metrics, UNTAKEN.0, UNTAKEN.1).inc();
                ready.set(false);
            }
        }
        if now.ms() - retained.ms() >= CLOSE_EVERY_MS {
            retained = now;
            match log.retain(now.ms()) {
                Ok(dropped) => {
                    counter(&metrics, DROPPED.0, DROPPED.1).add(dropped);
                }
                Err(error) => {
                    tracing::error!(error = format!("{:#}", anyhow::Error::new(error)), "cannot drop old segments of the log")
                }
            }
        }
        next = next_tick(clock.now(), interval);
    }
    tracing::info!("agent ends");
    pages.stop().await;
    Ok(())
}

/// The next multiple of the interval after `now`: agents of one fleet scrape at the same instants.
fn next_tick(now: Timestamp, interval: i64) -> Timestamp {
    Timestamp::from_ms((now.ms().div_euclid(interval) + 1).saturating_mul(interval))
}

/// Follows the log until `shutdown`, then publishes what it has read.
pub async fn sink(config: SinkConfig, clock: Arc<dyn Clock>, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
    let (metrics, ready) = (Metrics::new(), Ready::new());
    let pages = Pages::start(&config.listen, &metrics, &ready).await?;
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
    let mut closer = Closer::new(lake.clone(), config.close);
    let mut closed_at: Option<Timestamp> = None;
    // After a stumble nothing says that it is over until something was written: what is read is only in memory.
    let mut stumbled = false;
    'open: while !stop.load(Ordering::SeqCst) {
        let topics = match topics(config) {
            Ok(topics) => topics,
            Err(error @ (TransportError::NoTopic { .. } | TransportError::Io { .. })) => {
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
        tracing::info!(lake = %lake.root().display(), log = %config.log_dir.display(), "sink follows the log");
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

fn topics(config: &SinkConfig) -> Result<Vec<Arc<dyn Topic>>, TransportError> {
    let log = Log::reader(&config.log_dir, local::Options::default())?;
    [SAMPLES, ALLOCATIONS, NODES].into_iter().map(|name| log.topic(name).map(|t| t as Arc<dyn Topic>)).collect()
}

/// Closes what is due. What is buffered of hours that are over is published first.
fn close(
    closer: &mut Closer,
    sink: &mut Sink,
    metrics: &Metrics,
    now: Timestamp,
    behind: Option<Timestamp>,
) -> Result<(), RunError> {
    let mut behind = behind;
    if closer.due(now, behind) < closer.due(now, None) {
        let report = sink.flush(now).map_err(RunError::Sink)?;
        count_step(metrics, &report);
        behind = report.behind_at;
    }
    let report = closer.close(closer.due(now, behind), now).map_err(RunError::Close)?;
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
    Ok(())
}

fn count_close(metrics: &Metrics, report: &CloseReport) {
    for (table, parts) in &report.parts {
        let name = "strandline_ingest_closed_parts_total";
        metrics.counter(name, "parts of closed hours written", &[("table", table)]).add(*parts);
    }
    counter(metrics, "strandline_ingest_repeats_total", "repeated rows dropped while closing").add(report.repeats);
    counter(metrics, "strandline_ingest_late_total", "rows and states that came too late").add(report.late);
    if let Some(watermark) = report.watermark {
        let help = "end of the last closed hour, seconds since 1970";
        metrics.gauge("strandline_ingest_closed_to_seconds", help, &[]).set(watermark.closed_to.ms() as f64 / 1000.0);
    }
}

/// Whether an error may go away by itself: then the sink stops consuming and tries again; it never drops anything for it.
fn passes(error: &SinkError) -> bool {
    match error {
        SinkError::Lake(error) => error.is_disk_full(),
        // The agent, when it is started again, cuts a damaged end.
        SinkError::Log(TransportError::Io { .. } | TransportError::Damaged { .. }) => true,
        SinkError::Log(_)
        | SinkError::UnknownTopic(_)
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
    pub(crate) async fn start(listen: &str, metrics: &Metrics, ready: &Ready) -> Result<Self, RunError> {
        let address = listen.parse().map_err(RunError::Listen)?;
        let listener = web::listen(address).await.map_err(RunError::Listen)?;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let serving = tokio::spawn(web::serve(listener, web::pages(metrics.clone(), ready.clone()), async {
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
    }
    for reason in JoinReason::ALL.iter().map(|r| r.as_str()) {
        let count = report.join_reasons.get(reason).copied().unwrap_or_default();
        let name = "strandline_ingest_join_failures_total";
        metrics.counter(name, "rounds whose devices could not be joined", &[("reason", reason)]).add(count);
    }
    for (name, help, count) in [
        ("strandline_ingest_series_total", "series read", report.series),
        ("strandline_ingest_bad_lines_total", "lines kept out", report.bad_lines),
        ("strandline_ingest_duplicate_series_total", "series that stood twice on a page", report.duplicate_series),
        ("strandline_ingest_refused_labels_total", "labels that the contract refused", report.refused_labels),
        (
            "strandline_ingest_label_disagrees_total",
            "devices whose labels name another pod than the kubelet",
            report.label_disagreements,
        ),
        ("strandline_ingest_sightings_total", "sighting states published", report.sightings),
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
        ("strandline_ingest_rejects_total", "messages and parts of messages refused", report.rejects),
        ("strandline_ingest_lost_messages_total", "messages that were lost after they were taken", report.lost),
        ("strandline_ingest_hot_files_total", "hot files published", report.files),
        ("strandline_ingest_lost_swaps_total", "cuts that another writer had made first", report.lost_swaps),
    ] {
        counter(metrics, name, help).add(count);
    }
    metrics.gauge("strandline_ingest_lag", "messages taken and not yet read", &[]).set(report.lag as f64);
    metrics.gauge("strandline_ingest_buffered", "messages read and not yet in files", &[]).set(report.buffered as f64);
}
