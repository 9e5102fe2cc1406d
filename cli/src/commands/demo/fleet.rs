//! The fleet, run: exporters and kubelets on loopback, agents that scrape them tick by tick, a sink, and closing.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ingest::{
    agent::{Agent, Gathered, Options, RoundReport, Target, Topics},
    clock::VirtualClock,
    close::{self, Closer},
    publish,
    sink::{self, Sink},
    transport::{
        Record, Topic,
        local::{self, Log, TopicSpec},
    },
};
use lake::{ClosedKey, Footer, Lake};
use schemas::{
    HOUR_MS, Timestamp, Window,
    proto::{Allocation, allocation},
    tables,
};
use simulator::{ApiFacts, Plan, SimClock, api_changes, api_facts, podres::Kubelets, serve};

use crate::failure::Failure;

/// What went through the path.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Rounds by status.
    pub rounds: BTreeMap<&'static str, u64>,
    /// Series read from pages.
    pub series: u64,
    /// Messages in the log, and their bytes.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Hot files that the sink published.
    pub hot_files: u64,
}

impl Counts {
    fn add(&mut self, report: &RoundReport) {
        for (&status, count) in &report.by_status {
            *self.rounds.entry(status).or_default() += count;
        }
        self.series += report.series;
        self.messages += report.messages;
        self.bytes += report.bytes;
    }
}

/// Rounds of an agent that are produced together.
const ROUNDS_AT_ONCE: usize = 20;
/// Partitions of a topic.
const PARTITIONS: u32 = 2;
/// Whole states are published again after this long (DESIGN 3.3).
const SNAPSHOT_MS: i64 = 600_000;

/// The embedded log beside `lake`, with the topics that agents write and sinks read.
pub fn log(lake: &Lake) -> Result<Topics, Failure> {
    let names = [publish::SAMPLES, publish::ALLOCATIONS, publish::NODES];
    let specs = names.map(|name| TopicSpec { name, partitions: PARTITIONS });
    let folder = lake.folder("a demo").map_err(Failure::failed)?;
    let log = Log::open(&folder.join("_log"), &specs, local::Options::default()).map_err(Failure::failed)?;
    let topic = |name: &str| log.topic(name).map(|topic| topic as Arc<dyn Topic>).map_err(Failure::failed);
    Ok(Topics { samples: topic(publish::SAMPLES)?, allocations: topic(publish::ALLOCATIONS)?, nodes: topic(publish::NODES)? })
}

/// Runs the whole window of `plan` through `topics` into `lake`, closes its hours, and writes the truth beside them.
pub async fn run(plan: Plan, lake: &Lake, topics: Topics) -> Result<Counts, Failure> {
    let plan = Arc::new(plan);
    let window = plan.window();
    let clock = SimClock::stopped(window.from());
    let virtual_clock = Arc::new(VirtualClock::at(window.from()));

    let address: web::Address = "0".parse().map_err(Failure::failed)?; // any free port, loopback only
    let listener = web::listen(address).await.map_err(Failure::failed)?;
    let port = listener.local_addr().map_err(Failure::failed)?.port();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let pages = tokio::spawn(web::serve(listener, serve::router(plan.clone(), clock.clone()), async {
        let _ = stopped.await;
    }));
    let sockets = tempfile::Builder::new().prefix("sl-").tempdir().map_err(Failure::failed)?;
    let kubelets = Kubelets::start(&plan, &clock, sockets.path()).map_err(Failure::failed)?;

    let mut sink = Sink::open(
        lake.clone(),
        vec![topics.samples.clone(), topics.allocations.clone(), topics.nodes.clone()],
        sink::Options { cut_age_ms: HOUR_MS, ..sink::Options::default() },
    )
    .map_err(Failure::failed)?;
    let mut agents = agents(&plan, port, &kubelets, &topics, &virtual_clock)?;

    let mut waiting: Vec<Vec<Gathered>> = agents.iter().map(|_| Vec::new()).collect();
    let interval = plan.spec().scrape_interval.ms();
    let mut counts = Counts::default();
    let bar = crate::commands::progress::bar("scraping");
    bar.set_length(u64::try_from(window.len_ms() / interval).unwrap_or(0));
    let mut now = window.from();
    let mut before = now.plus_ms(-1);
    let mut snapshot = now;
    while now < window.to() {
        clock.set(now);
        virtual_clock.set(now);
        let facts = if now >= snapshot {
            snapshot = now.plus_ms(SNAPSHOT_MS);
            // All that changed since the last round, and all that is live.
            merge(api_changes(&plan, before, now), live(api_facts(&plan, now)))
        } else {
            api_changes(&plan, before, now)
        };
        publish_facts(&topics, &facts, now)?;
        before = now;
        // Each by its own clock, from the fleet's beginning by that.
        let asking = agents.iter_mut().zip(&mut waiting).filter(|((skew_ms, _), _)| now.plus_ms(*skew_ms) >= window.from());
        let (rounds, waits): (Vec<_>, Vec<_>) =
            asking.map(|((skew_ms, agent), waiting)| (agent.gather(now.plus_ms(*skew_ms)), waiting)).unzip();
        for (gathered, waiting) in join_all(rounds.into_iter()).await.into_iter().zip(waits) {
            counts.add(&gathered.report);
            waiting.push(gathered);
        }
        let next = now.plus_ms(interval);
        // Taken means synced to disk; a few rounds at a time, since here they come a hundred times faster than on a node.
        if waiting.iter().any(|rounds| rounds.len() >= ROUNDS_AT_ONCE) || next.hour() != now.hour() || next >= window.to() {
            let taken = agents.iter_mut().zip(&mut waiting).map(|((_, agent), rounds)| agent.publish(std::mem::take(rounds)));
            join_all(taken).await.into_iter().collect::<Result<(), _>>().map_err(Failure::failed)?;
        }
        if next.hour() != now.hour() {
            counts.hot_files += tokio::task::block_in_place(|| sink.step(now)).map_err(Failure::failed)?.files;
        }
        now = next;
        bar.inc(1);
    }
    // What the API says at the end of the window, so that nothing seems to go on after it.
    publish_facts(&topics, &api_changes(&plan, before, window.to()), window.to())?;
    bar.finish_and_clear();
    counts.hot_files += sink.flush(window.to()).map_err(Failure::failed)?.files;
    close_hours(lake, window)?;
    write_truth(&plan, lake, window)?;

    kubelets.stop().await;
    let _ = stop.send(());
    pages.await.map_err(Failure::failed)?.map_err(Failure::failed)?;
    Ok(counts)
}

/// One agent a cluster, for all of its nodes whose clocks are alike, and by how much they are ahead of the fleet's: it stamps its
/// rounds by them.
fn agents(
    plan: &Plan,
    port: u16,
    kubelets: &Kubelets,
    topics: &Topics,
    clock: &Arc<VirtualClock>,
) -> Result<Vec<(i64, Agent)>, Failure> {
    let mut targets: BTreeMap<(&str, i64), Vec<Target>> = BTreeMap::new();
    for node in plan.nodes() {
        let address = format!("http://127.0.0.1:{port}{}", serve::path(&node.name));
        let address = address.parse().map_err(Failure::failed)?;
        let target = Target { node: node.name.to_string(), address, podres_socket: Some(kubelets.socket(&node.name)) };
        targets.entry((&node.cluster, node.skew_ms)).or_default().push(target);
    }
    let interval_ms = u32::try_from(plan.spec().scrape_interval.ms()).unwrap_or(u32::MAX);
    let one = |((cluster, skew_ms), targets): ((&str, i64), Vec<Target>)| {
        // Real time: long enough that a busy machine loses no scrape. A fleet whose exporters hang waits as long for each.
        let options = Options { interval_ms, timeout: Duration::from_secs(5), ..Options::new(cluster) };
        let mut agent = Agent::new(options, targets, topics.clone(), clock.clone()).map_err(Failure::failed)?;
        // Where no clock is wrong, nobody looks.
        agent.know_skew(plan.spec().faults.clock_skew.as_ref().map(|_| skew_ms));
        Ok((skew_ms, agent))
    };
    targets.into_iter().map(one).collect()
}

/// Without holdings and waits that are long over.
fn live(mut facts: ApiFacts) -> ApiFacts {
    facts.holdings.retain(|holding| holding.ended_ms.is_none());
    facts.demands.retain(|demand| demand.ended_ms.is_none());
    facts
}

fn merge(mut facts: ApiFacts, more: ApiFacts) -> ApiFacts {
    facts.holdings.extend(more.holdings);
    facts.demands.extend(more.demands);
    facts.nodes.extend(more.nodes);
    facts
}

fn publish_facts(topics: &Topics, facts: &ApiFacts, now: Timestamp) -> Result<(), Failure> {
    let mut allocations: Vec<Record> = facts.holdings.iter().cloned().map(publish::holding).collect();
    allocations.extend(facts.demands.iter().map(|demand| demand_record(demand, now)));
    if !allocations.is_empty() {
        topics.allocations.produce(&allocations).map_err(Failure::failed)?;
    }
    let nodes: Vec<Record> = facts.nodes.iter().map(publish::node).collect();
    if !nodes.is_empty() {
        topics.nodes.produce(&nodes).map_err(Failure::failed)?;
    }
    Ok(())
}

fn demand_record(demand: &schemas::proto::Demand, now: Timestamp) -> Record {
    use schemas::proto::Message as _;
    let message = Allocation { state: Some(allocation::State::Demand(demand.clone())) };
    Record { key: format!("{}/{}", demand.cluster, demand.node).into_bytes(), value: message.encode_to_vec(), at_ms: now.ms() }
}

fn close_hours(lake: &Lake, window: Window) -> Result<(), Failure> {
    let mut closer = Closer::new(lake.clone(), close::Options::default());
    closer.close(window.to(), window.to()).map_err(Failure::failed)?;
    Ok(())
}

fn write_truth(plan: &Plan, lake: &Lake, window: Window) -> Result<(), Failure> {
    let table = tables::get("truth_gpu_hours");
    for hour in window.hours() {
        let part = Window::new(hour, hour.plus_ms(HOUR_MS)).ok().and_then(|whole| window.clip(whole));
        let Some(part) = part else { continue };
        let rows = simulator::truth(plan, part).map_err(Failure::failed)?;
        let rows = lake::encode::sorted(table, &[rows]).map_err(Failure::failed)?;
        let footer = Footer { writer_epoch: "truth".into(), ..Footer::default() };
        lake.publish_closed(table, ClosedKey { hour, shard: 0 }, &[rows], footer).map_err(Failure::failed)?;
    }
    Ok(())
}

/// Waits for all of a few futures at once.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut waiting = false;
        for (future, output) in &mut futures {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *output = Some(value),
                    std::task::Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}
