//! `strandline import`: what was recorded elsewhere, into a lake, through the same messages, sink and closing as live data.
//!
//! ```text
//! allocations, devices (CSV, NDJSON) ─┐
//! pages with their times,             ├─> messages ─> log (<lake>/_log) ─> sink ─> close
//! pod-resources answers (JSON) ───────┘
//! billed runs, restarts (CSV, NDJSON) ─> their tables, by id
//! ```

mod billing;
mod mapping;
mod scrapes;
mod tables;

use std::{
    collections::{BTreeMap, HashMap},
    io::Write,
    path::PathBuf,
    sync::Arc,
};

use clap::{Args, Subcommand};
use ingest::{
    close::{self, Closer},
    publish,
    sink::{self, Sink},
    transport::{
        Record, Topic,
        local::{self, Log, TopicSpec},
    },
};
use lake::Lake;
use schemas::{
    HOUR_MS, Timestamp,
    proto::{Allocation, Holding, Message, Node, Reject, ScrapeRound, allocation},
};

use crate::failure::Failure;

/// Bring recorded data into a lake and close its hours
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strandline import allocations pods.csv --lake lake --map pod=name --map team=qos --map gpus=num_gpu \\
      --map weight=gpu_milli/1000 --map bound=scheduled_time --map ended=deletion_time --epoch 2023-01-01
  strandline import devices gpus.csv --lake lake
  strandline import scrapes index.csv --lake lake --interval 30
  strandline import runs runs.csv --lake lake

Then: strandline hours --lake lake; strandline report --lake lake --by team,hour")]
pub struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Allocations(tables::Options),
    Devices(tables::Options),
    Scrapes(scrapes::Options),
    Runs(billing::RunsOptions),
    Restarts(billing::RestartsOptions),
}

/// Where an import goes.
#[derive(Debug, Clone, Args)]
pub struct Destination {
    /// The lake, a folder; made if it is not there
    #[arg(long, env = "STRANDLINE_LAKE", value_name = "DIR")]
    lake: PathBuf,
    /// Name of the cluster
    #[arg(long, env = "STRANDLINE_CLUSTER", default_value = "imported", value_parser = cluster)]
    cluster: String,
    /// Close hours up to here (default: the hour of the latest time that the import states)
    #[arg(long, value_name = "TIME", value_parser = crate::commands::time)]
    to: Option<Timestamp>,
}

/// A cluster's name: what stands before the `/` of a node.
fn cluster(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains('/') {
        return Err("a cluster has a name without `/`".into());
    }
    mapping::name(text).map(|()| text.to_owned())
}

/// Most hours that one import may reach over: ten years.
const MAX_HOURS: i64 = 24 * 3653;

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    match &options.what {
        What::Allocations(options) => tables::allocations(options, out),
        What::Devices(options) => tables::devices(options, out),
        What::Scrapes(options) => scrapes::run(options, out),
        What::Runs(options) => billing::runs(options, out),
        What::Restarts(options) => billing::restarts(options, out),
    }
}

/// Something of a file that was kept out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// 1-based line.
    pub line: u64,
    /// Which field, and why.
    pub reason: String,
    /// The line's beginning.
    pub text: String,
}

/// A lake that is being written, with its log.
pub struct Path {
    lake: Lake,
    cluster: String,
    log: Log,
    earliest: Timestamp,
    latest: Timestamp,
}

impl Path {
    /// Opens both.
    pub fn open(destination: &Destination) -> Result<Self, Failure> {
        let lake = Lake::create(&destination.lake).map_err(Failure::failed)?;
        let root = lake
            .folder("an import of samples or holdings, which keeps its log beside the lake,")
            .map_err(Failure::failed)?
            .join("_log");
        // A lake that something else made (a demo, an agent) has as many partitions as that chose.
        let partitions = |name| local::partitions(&root, name).map_err(Failure::failed).map(|there| there.unwrap_or(1));
        let names = [publish::SAMPLES, publish::ALLOCATIONS, publish::NODES];
        let topics = names.map(|name| partitions(name).map(|partitions| TopicSpec { name, partitions }));
        let topics = topics.into_iter().collect::<Result<Vec<_>, Failure>>()?;
        let log = Log::open(&root, &topics, local::Options::default()).map_err(Failure::failed)?;
        let (earliest, latest) = (Timestamp::from_ms(i64::MAX), Timestamp::from_ms(i64::MIN));
        Ok(Self { lake, cluster: destination.cluster.clone(), log, earliest, latest })
    }

    /// One of the log's topics.
    pub fn topic(&self, name: &str) -> Result<Arc<dyn Topic>, Failure> {
        self.log.topic(name).map(|topic| topic as Arc<dyn Topic>).map_err(Failure::failed)
    }

    /// Says that the import states a time.
    pub fn saw(&mut self, at: Timestamp) {
        self.latest = self.latest.max(at);
        self.earliest = self.earliest.min(at);
    }

    /// Refuses an import that reaches over more time than anybody's fleet: one wrong year would make hours without end.
    pub fn reaches(&self) -> Result<(), Failure> {
        let before = self.lake.watermark().map_err(Failure::failed)?;
        let from = before.map_or(self.earliest, |w| self.earliest.min(w.from));
        let to = before.map_or(self.latest, |w| self.latest.max(w.closed_to));
        let hours = to.ms().saturating_sub(from.ms()) / HOUR_MS;
        if hours <= MAX_HOURS {
            return Ok(());
        }
        let lake = if before.is_some() { ", with what is in the lake," } else { "" };
        Err(Failure::because(format!(
            "the times{lake} reach from {from} to {to}, {hours} hours: more than ten years; is one of them wrong, or --epoch?"
        )))
    }

    /// Hands every message of a topic to `visit`, oldest first.
    fn earlier(&self, topic: &str, mut visit: impl FnMut(&[u8])) -> Result<(), Failure> {
        let topic = self.topic(topic)?;
        for partition in 0..topic.partitions() {
            let bounds = topic.bounds(partition).map_err(Failure::failed)?;
            let mut next = bounds.start;
            while next < bounds.end {
                let fetched = topic.fetch(partition, next, 8 << 20).map_err(Failure::failed)?;
                fetched.messages.iter().for_each(|message| visit(&message.value));
                next = fetched.next.max(next + 1);
            }
        }
        Ok(())
    }

    /// Makes holdings that an earlier import has stated too later states of the same: what is imported last stands.
    pub fn supersede(&self, holdings: &mut BTreeMap<String, Holding>) -> Result<(), Failure> {
        let mut known: HashMap<String, (i64, u64)> = HashMap::new();
        self.earlier(publish::ALLOCATIONS, |bytes| {
            let Ok(Allocation { state: Some(allocation::State::Holding(old)), .. }) = Allocation::decode(bytes) else { return };
            let same = |new: &Holding| (&new.cluster, &new.node, &new.source) == (&old.cluster, &old.node, &old.source);
            if holdings.get(&old.id).is_some_and(same) {
                let order = known.entry(old.id).or_insert((i64::MIN, 0));
                *order = (*order).max((old.observed_at_ms, old.revision));
            }
        })?;
        for (id, (observed, revision)) in known {
            if let Some(holding) = holdings.get_mut(&id) {
                holding.observed_at_ms = holding.observed_at_ms.max(observed);
                holding.revision = revision + 1;
            }
        }
        Ok(())
    }

    /// The latest state of each node of `source` that is in the log.
    pub fn inventory(&self, source: &str) -> Result<BTreeMap<String, Node>, Failure> {
        let mut known: BTreeMap<String, Node> = BTreeMap::new();
        self.earlier(publish::NODES, |bytes| {
            let Ok(node) = Node::decode(bytes) else { return };
            let order = |n: &Node| (n.observed_at_ms, n.revision);
            let is_later = known.get(&node.node).is_none_or(|old| order(old) <= order(&node));
            if node.cluster == self.cluster && node.source == source && is_later {
                known.insert(node.node.clone(), node);
            }
        })?;
        Ok(known)
    }

    /// Adds to nodes what earlier imports said of them: a state of a node is whole, so what it leaves out would be gone.
    pub fn join_inventory(&self, nodes: &mut BTreeMap<String, Node>) -> Result<(), Failure> {
        let Some(source) = nodes.values().next().map(|node| node.source.clone()) else { return Ok(()) };
        for (name, old) in self.inventory(&source)? {
            let Some(new) = nodes.get_mut(&name) else { continue };
            let mut devices: BTreeMap<String, _> = old.devices.into_iter().map(|d| (d.device.clone(), d)).collect();
            devices.extend(std::mem::take(&mut new.devices).into_iter().map(|d| (d.device.clone(), d)));
            new.devices = devices.into_values().collect();
            new.present_from_ms = new.present_from_ms.min(old.present_from_ms);
            new.observed_at_ms = new.observed_at_ms.max(old.observed_at_ms);
            new.revision = old.revision + 1;
            let facts = [
                (&mut new.product, old.product),
                (&mut new.region, old.region),
                (&mut new.zone, old.zone),
                (&mut new.provider, old.provider),
                (&mut new.purchase_option, old.purchase_option),
                (&mut new.reservation, old.reservation),
            ];
            for (new, old) in facts {
                if new.is_empty() {
                    *new = old;
                }
            }
        }
        Ok(())
    }

    /// Appends records to a topic; all are taken when this returns.
    pub fn produce(&self, topic: &str, records: &[Record]) -> Result<(), Failure> {
        let topic = self.topic(topic)?;
        for some in records.chunks(10_000) {
            topic.produce(some).map_err(Failure::failed)?;
        }
        Ok(())
    }

    /// Puts what was refused into table `rejects`, at the hour of the import's latest time.
    pub fn refuse(&self, file: &std::path::Path, refused: &[Refused]) -> Result<(), Failure> {
        let reject = |r: &Refused| Reject {
            line: u32::try_from(r.line).unwrap_or(u32::MAX),
            reason: r.reason.clone(),
            text: r.text.clone(),
        };
        // A part of a round without a status makes rows in `rejects` only.
        let round = |some: &[Refused]| ScrapeRound {
            cluster: self.cluster.clone(),
            source: file.display().to_string(),
            at_ms: self.latest.plus_ms(-1).ms().max(0),
            rejects: some.iter().map(reject).collect(),
            ..ScrapeRound::default()
        };
        let records: Vec<Record> =
            refused.chunks(200).flat_map(|some| publish::round(round(some), publish::MAX_MESSAGE_BYTES).0).collect();
        self.produce(publish::SAMPLES, &records)
    }

    /// Runs the sink to the log's end and closes every hour up to the destination's end.
    pub fn finish(self, destination: &Destination) -> Result<Timestamp, Failure> {
        let topics = [publish::SAMPLES, publish::ALLOCATIONS, publish::NODES].map(|name| self.topic(name));
        let topics = topics.into_iter().collect::<Result<Vec<_>, _>>()?;
        let spinner = crate::commands::progress::spinner("closing hours");
        let mut sink = Sink::open(self.lake.clone(), topics, sink::Options::default()).map_err(Failure::failed)?;
        let latest = self.latest.plus_ms(-1).hour().plus_ms(HOUR_MS);
        let to = destination.to.unwrap_or(latest);
        sink.flush(to).map_err(Failure::failed)?;
        // What was recorded may be of any age.
        let options = close::Options {
            late_limit_ms: i64::MAX / 4,
            max_hours: MAX_HOURS + 24,
            reach_back: true,
            ..close::Options::default()
        };
        Closer::new(self.lake, options).close(to, to).map_err(Failure::failed)?;
        spinner.finish_and_clear();
        Ok(to)
    }
}

/// What an import says when it is done.
pub fn summary(
    out: &mut dyn Write,
    file: &std::path::Path,
    lines: &[String],
    refused: &[Refused],
    imported: usize,
) -> Result<(), Failure> {
    for line in lines {
        writeln!(out, "{line}").map_err(Failure::output)?;
    }
    if refused.is_empty() {
        return Ok(());
    }
    let first = &refused[0];
    let words = format!(
        "{} lines of {} were refused and are in table rejects; the first: line {}: {}",
        refused.len(),
        file.display(),
        first.line,
        first.reason
    );
    if imported == 0 {
        return Err(Failure::because(format!("nothing was imported: {words}")));
    }
    writeln!(out, "{words}").map_err(Failure::output)
}
