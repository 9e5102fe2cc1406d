//! The first half of the data path, whole and in order: scrape, parse, join, publish.
//!
//! ```text
//! for every target at once:   GET page ──> page::read ──┐
//!                             List pods ────────────────┴─> join::owners ──> one ScrapeRound, sightings that changed
//! then, in one batch a topic: remember (state file) ──> produce ──> taken
//! ```
//!
//! A round is [`Agent::gather`] and then [`Agent::publish`]; [`Agent::round`] is both. The loop that waits asks each target at
//! an instant of its own instead: [`Agent::due`], [`Agent::begin`], [`Agent::answered`]. Targets come and go between two rounds
//! of theirs ([`Agent::change`]). What must survive the process stands in
//! the state file before anything is produced: the sequence of each target, its sightings, and the sighting states that this
//! round publishes (`outbox`). After a crash the outbox is published again, which is harmless since a state is whole and
//! carries its own identity; the next round of each target gets a sequence that was never used, behind a record `restarted`.

use crate::clock::Clock;
use crate::join::{self, Answer, Memory};
use crate::local::Local;
use crate::page;
use crate::publish;
use crate::schedule::Schedule;
use crate::scrape::{Address, Body, ScrapeFault, Scraper};
use crate::transport::{Record, Topic, TransportError, partition_of};
use attribution::holders::{ClaimName, SliceDevice};
use attribution::sightings::Sightings;
use attribution::{SocketError, podres, pods};
use schemas::Timestamp;
use schemas::proto::{Allocation, Holding, Message, Node, ScrapeRound, allocation};
use schemas::status::{HoldingSource, JoinReason, ScrapeStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};

mod inventory;
mod round;
mod state;
mod targets;

use inventory::Inventory;
pub use inventory::SOURCE;
use round::{Fault, fill};
pub use round::{Gathered, RoundReport};
use state::{State, TargetState, from_hex, load, state_key, to_hex};
pub use targets::Changed;

/// One node to scrape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name of the node, as the cluster knows it.
    pub node: String,
    /// Its page.
    pub address: Address,
    /// The kubelet's pod-resources socket; none: the page's own labels name the pods.
    pub podres_socket: Option<PathBuf>,
}

/// How an agent works.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of the cluster.
    pub cluster: String,
    /// Scrape interval in milliseconds, carried by every round.
    pub interval_ms: u32,
    /// Interval at which the exporters collect, where known.
    pub collect_interval_ms: Option<u32>,
    /// Time for a whole page, and for an answer of the kubelet.
    pub timeout: Duration,
    /// Largest page in bytes.
    pub max_body_bytes: usize,
    /// Largest message in bytes.
    pub max_message_bytes: usize,
    /// Most targets asked at one time.
    pub concurrency: usize,
    /// How pages are read.
    pub page: page::Options,
    /// How devices are joined.
    pub join: join::Options,
    /// Where state is kept between runs; none: nothing is (simulations).
    pub state_file: Option<PathBuf>,
    /// The node whose pods its kubelet tells; none: no kubelet is asked for them.
    pub pods_node: Option<String>,
    /// Whether to publish the devices that pages show as inventory of their node, for sites without another inventory.
    pub publish_nodes: bool,
}

impl Options {
    /// The defaults: 15 s interval, 10 s time-out, pages up to 16 MiB, 256 targets at one time.
    pub fn new(cluster: &str) -> Self {
        Options {
            cluster: cluster.to_owned(),
            interval_ms: 15_000,
            collect_interval_ms: None,
            timeout: Duration::from_secs(10),
            max_body_bytes: 16 << 20,
            max_message_bytes: publish::MAX_MESSAGE_BYTES,
            concurrency: 256,
            page: page::Options::default(),
            join: join::Options::default(),
            state_file: None,
            pods_node: None,
            publish_nodes: false,
        }
    }
}

/// The topics that an agent produces to.
#[derive(Clone)]
pub struct Topics {
    /// `strandline.samples`.
    pub samples: Arc<dyn Topic>,
    /// `strandline.allocations`.
    pub allocations: Arc<dyn Topic>,
    /// `strandline.nodes`.
    pub nodes: Arc<dyn Topic>,
}

/// Why an agent cannot go on, or a round is not taken.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A pod-resources path that cannot be an address.
    #[error("target {node}")]
    Podres {
        /// Its node.
        node: String,
        /// Why.
        #[source]
        source: SocketError,
    },
    /// Two targets under one name.
    #[error("two targets are called {node} with the page {address}; a round could not be told from another")]
    SameTarget {
        /// Node.
        node: String,
        /// Page.
        address: String,
    },
    /// The state file cannot be read or written.
    #[error("cannot use the state file {path}; {}", advice(source))]
    State {
        /// Path.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The batch is not taken.
    #[error("the round is not taken")]
    Produce(#[from] TransportError),
}

/// What an operator can do about a state file.
fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "free disk space; until then rounds are gaps, and nothing that was taken is lost"
        }
        std::io::ErrorKind::InvalidData => {
            "it is damaged: move it away, and the agent goes on from what its log tells; only its sequences begin anew"
        }
        _ => "give the agent a directory of its own that it may write (--state-dir)",
    }
}

/// Scrapes targets and publishes what it sees.
pub struct Agent {
    options: Options,
    topics: Topics,
    clock: Arc<dyn Clock>,
    scraper: Scraper,
    /// By number; none where a target has left.
    targets: Vec<Option<Known>>,
    schedule: Schedule,
    /// Targets that are being asked.
    asking: JoinSet<(usize, Result<Asked, JoinError>)>,
    /// Room for so many at one time.
    room: Arc<Semaphore>,
    /// What is remembered of targets that have left, should they come back.
    departed: BTreeMap<String, TargetState>,
    /// Sighting states that may not have been taken yet.
    outbox: Vec<Record>,
    /// Whether there was a state file.
    remembered: bool,
    skew_ms: Option<i64>,
    /// The pods of `options.pods_node`.
    local: Local,
}

/// A target and what is remembered of it.
struct Known {
    target: Target,
    source: String,
    podres: Option<podres::Client>,
    memory: Memory,
    pages: page::Memory,
    sequence: u64,
    sightings: Sightings,
    inventory: Inventory,
    /// How its last round went, so that a change is said once.
    health: Health,
    /// An earlier run has scraped it, and no record says yet that this one began.
    restarts: bool,
    /// Ids of its kubelet that no device answered to in its last round.
    unmatched: Vec<String>,
    /// It is being asked.
    asked: bool,
    /// It leaves when its round is done.
    leaves: bool,
    /// Grows with each change of how it is asked.
    change: u32,
}

/// Most targets that are remembered after they have left; beyond it the first by name are forgotten.
const MAX_DEPARTED: usize = 10_000;

/// How a target's last round went: its status, and why its devices could not be joined. None where it was well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Health {
    status: Option<ScrapeStatus>,
    join: Option<JoinReason>,
}

/// What came of asking one target.
struct Asked {
    index: usize,
    at: Timestamp,
    duration_ms: i64,
    body: Result<Body, ScrapeFault>,
    answer: Answer,
    podres: Option<podres::Client>,
    /// The target's `change` when it was asked.
    change: u32,
}

impl Agent {
    /// An agent that goes on where its state file ends. Must be called inside a tokio runtime.
    pub fn new(options: Options, targets: Vec<Target>, topics: Topics, clock: Arc<dyn Clock>) -> Result<Self, AgentError> {
        let state = match &options.state_file {
            Some(path) => load(path)?,
            None => None,
        };
        let remembered = state.is_some();
        let state = state.unwrap_or_default();
        let outbox = state
            .outbox
            .iter()
            .filter_map(|(key, at_ms, hex)| Some(Record { key: key.clone().into_bytes(), value: from_hex(hex)?, at_ms: *at_ms }));
        let local = state.local.iter().filter_map(|hex| Holding::decode(&*from_hex(hex)?).ok());
        let pods = pods::Options { resources: options.join.names.clone(), ..pods::Options::default() };
        let mut agent = Agent {
            local: Local::resume(pods, local),
            scraper: Scraper::new(options.timeout, options.max_body_bytes),
            schedule: Schedule::new(i64::from(options.interval_ms)),
            asking: JoinSet::new(),
            room: Arc::new(Semaphore::new(options.concurrency.max(1))),
            targets: Vec::with_capacity(targets.len()),
            departed: state.targets,
            outbox: outbox.collect(),
            options,
            topics,
            clock,
            remembered,
            skew_ms: None,
        };
        agent.change(agent.options.clone(), targets)?;
        Ok(agent)
    }

    /// Where there was no state file: takes up the sightings that this agent's own log tells of. Returns how many go on. Once,
    /// before the first round; blocks while it reads.
    pub fn recall(&mut self) -> Result<usize, AgentError> {
        if self.remembered {
            return Ok(0);
        }
        let mut of_node: BTreeMap<String, Vec<Holding>> = BTreeMap::new();
        let topic = &self.topics.allocations;
        topic.verify()?;
        // Only where this agent's nodes have their messages: other nodes' may be many.
        let of = |known: &Known| partition_of(&publish::key(&self.options.cluster, &known.target.node), topic.partitions());
        let partitions: BTreeSet<u32> = self.targets.iter().flatten().map(of).collect();
        for partition in partitions {
            let bounds = topic.bounds(partition)?;
            let mut next = bounds.start;
            while next < bounds.end {
                let fetched = topic.fetch(partition, next, 8 << 20)?;
                for message in &fetched.messages {
                    // One that cannot be read is the sink's to refuse.
                    let Ok(Allocation { state: Some(allocation::State::Holding(holding)) }) = Allocation::decode(&*message.value)
                    else {
                        continue;
                    };
                    if holding.cluster == self.options.cluster && holding.source == HoldingSource::PodResources.as_str() {
                        of_node.entry(holding.node.clone()).or_default().push(holding);
                    }
                }
                if fetched.next <= next {
                    break;
                }
                next = fetched.next;
            }
        }
        let mut live = 0;
        for known in self.targets.iter_mut().flatten().filter(|known| known.podres.is_some()) {
            if let Some(states) = of_node.remove(&known.target.node) {
                known.sightings = Sightings::recall(states);
                live += known.sightings.len();
            }
        }
        Ok(live)
    }

    /// Publishes the records of [`Agent::restarted`]. Returns how many. Once, before the first round.
    pub async fn announce_restart(&mut self, now: Timestamp) -> Result<u64, AgentError> {
        let gathered = self.restarted(now);
        let restarted = gathered.samples.len() as u64;
        self.publish(vec![gathered]).await?;
        Ok(restarted)
    }

    /// A record `restarted` for every target that an earlier run has scraped and that this one asks since it was last asked for
    /// these: the rounds between the last sequence of that run and this one were not taken.
    pub fn restarted(&mut self, now: Timestamp) -> Gathered {
        let mut gathered = Gathered::default();
        for index in 0..self.targets.len() {
            let Some(known) = self.targets[index].as_mut() else { continue };
            let last = known.sequence;
            if std::mem::take(&mut known.restarts)
                && last > 0
                && let Some(mut round) = self.round_of(index, now)
            {
                round.status = ScrapeStatus::Restarted.as_str().to_owned();
                round.error = format!("the agent started; the last round of the run before had sequence {last}");
                self.add(&mut gathered, round);
            }
        }
        gathered
    }

    /// One round at `now`: every target is scraped, and all of it is taken when this returns.
    pub async fn round(&mut self, now: Timestamp) -> Result<RoundReport, AgentError> {
        let gathered = self.gather(now).await;
        let report = gathered.report.clone();
        self.publish(vec![gathered]).await?;
        Ok(report)
    }

    /// Scrapes and joins every target at `now`; nothing is taken yet.
    pub async fn gather(&mut self, now: Timestamp) -> Gathered {
        let began = self.clock.now();
        let numbers: Vec<usize> = self.known().map(|(number, _)| number).collect();
        for number in numbers {
            self.ask(number, now, began);
        }
        let mut all = Vec::with_capacity(self.targets.len());
        while let Some(asked) = self.asking.join_next().await {
            all.extend(asked);
        }
        all.sort_by_key(|(number, _)| *number);
        let mut gathered = Gathered::default();
        for (number, asked) in all {
            self.take(&mut gathered, number, asked);
        }
        gathered
    }

    /// Goes on from what was published of target number `index` before, where there is no state file: a state is whole, so
    /// what the next one leaves out would be gone.
    pub fn remember(&mut self, index: usize, node: &Node) {
        if let Some(Some(known)) = self.targets.get_mut(index) {
            known.inventory = Inventory::of(node);
        }
    }

    /// Takes the devices of ResourceSlices by node: claims name devices by them. A node that is not there has none.
    pub fn know_slices(&mut self, slices: &BTreeMap<String, Vec<SliceDevice>>) {
        for known in self.targets.iter_mut().flatten().filter(|known| known.target.podres_socket.is_some()) {
            known.memory.set_slices(slices.get(&known.target.node).cloned().unwrap_or_default());
        }
    }

    /// Takes what the API server says of claims; none: it is not asked.
    pub fn know_claims(&mut self, claims: Option<&Arc<join::Claims>>) {
        for known in self.targets.iter_mut().flatten().filter(|known| known.target.podres_socket.is_some()) {
            known.memory.set_claims(claims.cloned());
        }
    }

    /// The claims that kubelets listed last.
    pub fn claims(&self) -> BTreeSet<ClaimName> {
        self.known().flat_map(|(_, known)| known.memory.listed_claims()).cloned().collect()
    }

    /// Takes by how much this agent's clock, which dates rounds, is ahead of the API server's, in ms; none: it is not known. Rounds
    /// from now on carry it, and sightings are dated without it where it is too much (A11).
    pub fn know_skew(&mut self, skew_ms: Option<i64>) {
        self.skew_ms = skew_ms;
    }

    /// Takes a full list of the pods of `options.pods_node` as its kubelet told it at `at`, objects as JSON. Who holds what by it is
    /// gathered, to be published.
    pub fn local_pods(&mut self, pods: &[Vec<u8>], at: Timestamp) -> Gathered {
        let told = self.local.listed(&self.options.cluster, pods, at, -self.skew_ms.unwrap_or(0));
        let mut gathered = Gathered::default();
        gathered.report.local_states = told.holdings.len() as u64;
        gathered.report.refused_pods = told.refused;
        gathered.allocations = told.holdings.into_iter().map(publish::holding).collect();
        gathered
    }

    /// Takes a page that was recorded at `at` as if target number `index` had answered with it, and the kubelet with `answer`.
    /// `source` names the recording in place of the target's address. Pages of a target go in in order of time.
    pub fn recorded(&mut self, index: usize, at: Timestamp, source: &str, page: Body, answer: Answer) -> Gathered {
        let mut gathered = Gathered::default();
        if let Some(Some(known)) = self.targets.get_mut(index) {
            known.source = source.to_owned();
            let (podres, change) = (known.podres.take(), known.change);
            self.one(&mut gathered, Asked { index, at, duration_ms: 0, body: Ok(page), answer, podres, change });
        }
        gathered
    }

    /// Takes the kubelet's `answer` of `at` for target number `index` without a page: who held what, and no round. A failed
    /// call is no listing and changes nothing.
    pub fn listed(&mut self, index: usize, at: Timestamp, answer: Answer) -> Gathered {
        let mut gathered = Gathered::default();
        if let Some(Some(known)) = self.targets.get_mut(index) {
            let joined = join::owners(&mut known.memory, None, answer, at, &self.options.join);
            if let Some(held) = joined.listed {
                let listed = at.without_skew(self.skew_ms);
                let changed = known.sightings.listed(&self.options.cluster, &known.target.node, &held, listed);
                gathered.report.sightings = changed.len() as u64;
                gathered.allocations = changed.into_iter().map(publish::holding).collect();
            }
        }
        gathered
    }

    /// Produces gathered rounds; all of them are taken when this returns.
    pub async fn publish(&mut self, gathered: Vec<Gathered>) -> Result<(), AgentError> {
        let (mut samples, mut nodes) = (Vec::new(), Vec::new());
        for mut round in gathered {
            samples.append(&mut round.samples);
            nodes.append(&mut round.nodes);
            self.outbox.append(&mut round.allocations);
        }
        self.save()?;
        let topics = self.topics.clone();
        let allocations = self.outbox.clone();
        let produced = tokio::task::spawn_blocking(move || -> Result<(), TransportError> {
            // Holdings first: who reads a sample can know its holding.
            for (topic, records) in [(&topics.allocations, &allocations), (&topics.nodes, &nodes), (&topics.samples, &samples)] {
                if !records.is_empty() {
                    topic.produce(records)?;
                }
            }
            Ok(())
        });
        match produced.await {
            Ok(result) => result?,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
        self.outbox.clear();
        Ok(())
    }

    /// One target's answers into a round.
    fn one(&mut self, gathered: &mut Gathered, asked: Asked) {
        let Some(mut round) = self.round_of(asked.index, asked.at) else { return };
        let Some(known) = &mut self.targets[asked.index] else { return };
        if known.change == asked.change {
            known.podres = asked.podres;
        }
        round.duration_ms = u32::try_from(asked.duration_ms).unwrap_or(0);
        let read = match asked.body {
            Ok(body) => {
                round.body_bytes = body.bytes.len() as u64;
                let kind = body.content_type.as_deref();
                page::read_remembering(&body.bytes, kind, &self.options.page, &mut known.pages).map_err(Fault::Page)
            }
            Err(fault) => Err(Fault::Scrape(fault)),
        };
        let mut health = Health::default();
        let mut page = match read {
            Ok(page) => Some(page),
            Err(fault) => {
                health.status = Some(fault.status());
                round.status = fault.status().as_str().to_owned();
                round.error = format!("{:#}", anyhow::Error::new(fault));
                None
            }
        };
        let joined = join::owners(&mut known.memory, page.as_mut(), asked.answer, asked.at, &self.options.join);
        if let Some(held) = &joined.listed {
            // Who reads the lake puts the rounds of a wrong clock right, and has the skew with them; a holding carries none.
            let listed = asked.at.without_skew(self.skew_ms);
            let changed = known.sightings.listed(&self.options.cluster, &known.target.node, held, listed);
            gathered.report.sightings += changed.len() as u64;
            gathered.allocations.extend(changed.into_iter().map(publish::holding));
        }
        health.join = joined.reason;
        known.changed(health, &round.error);
        if let Some(reason) = joined.reason {
            round.join_reason = reason.as_str().to_owned();
            *gathered.report.join_reasons.entry(reason.as_str()).or_default() += 1;
        }
        gathered.report.newly_unmatched += joined.unmatched.iter().filter(|id| !known.unmatched.contains(id)).count() as u64;
        known.unmatched.clone_from(&joined.unmatched);
        round.unmatched_ids = joined.unmatched;
        gathered.report.label_disagreements += joined.label_disagreements;
        if let Some(page) = page.as_mut().filter(|_| self.options.pods_node.as_ref() == Some(&known.target.node)) {
            let holders = page.devices.iter_mut().flat_map(|device| &mut device.sample.holders);
            for holder in holders.filter(|holder| holder.pod_uid.is_empty()) {
                holder.pod_uid = self.local.uid(&holder.namespace, &holder.pod).unwrap_or_default().to_owned();
            }
        }
        if let Some(page) = page {
            if self.options.publish_nodes
                && let Some(node) = known.inventory.seen(&self.options.cluster, &known.target.node, &page, asked.at)
            {
                gathered.nodes.push(publish::node(&node));
            }
            fill(&mut round, &mut gathered.report, page);
        }
        self.add(gathered, round);
    }

    /// An empty round of a target, with the next sequence.
    fn round_of(&mut self, index: usize, at: Timestamp) -> Option<ScrapeRound> {
        let known = self.targets.get_mut(index)?.as_mut()?;
        known.sequence += 1;
        Some(ScrapeRound {
            cluster: self.options.cluster.clone(),
            node: known.target.node.clone(),
            source: known.source.clone(),
            at_ms: at.ms(),
            sequence: known.sequence,
            status: ScrapeStatus::Ok.as_str().to_owned(),
            interval_ms: self.options.interval_ms,
            collect_interval_ms: self.options.collect_interval_ms,
            skew_ms: self.skew_ms,
            ..ScrapeRound::default()
        })
    }

    fn add(&self, gathered: &mut Gathered, round: ScrapeRound) {
        let status = ScrapeStatus::from_text(&round.status).map_or("other", ScrapeStatus::as_str);
        *gathered.report.by_status.entry(status).or_default() += 1;
        *gathered.report.took_ms.entry(status).or_default() += u64::from(round.duration_ms);
        let (records, left_out) = publish::round(round, self.options.max_message_bytes);
        gathered.report.left_out += left_out;
        gathered.report.messages += records.len() as u64;
        gathered.report.bytes += records.iter().map(|r| r.value.len() as u64).sum::<u64>();
        gathered.samples.extend(records);
    }

    fn save(&self) -> Result<(), AgentError> {
        let Some(path) = &self.options.state_file else { return Ok(()) };
        let mut targets = self.departed.clone();
        targets.extend(self.known().map(|(_, known)| (state_key(&known.target.node, &known.source), known.state())));
        let outbox = self.outbox.iter().map(|r| (String::from_utf8_lossy(&r.key).into_owned(), r.at_ms, to_hex(&r.value)));
        let local = self.local.live().map(|holding| to_hex(&holding.encode_to_vec()));
        let state = State { targets, outbox: outbox.collect(), local: local.collect() };
        let failed = |source| AgentError::State { path: path.clone(), source };
        let text = serde_json::to_vec(&state).map_err(|e| failed(e.into()))?;
        let temporary = path.with_extension("tmp");
        // Synced before it gets its name: a loss of power may bring back an older state, whose sequences then repeat at other
        // instants (the key of a round holds its instant too), but never half a file or an empty one.
        let write = || {
            let mut file = std::fs::File::create(&temporary)?;
            file.write_all(&text)?;
            file.sync_data()?;
            std::fs::rename(&temporary, path)
        };
        write().map_err(failed)
    }
}

impl Known {
    /// What must survive the process.
    fn state(&self) -> TargetState {
        TargetState {
            of_this_run: !self.restarts,
            sequence: self.sequence,
            sightings: self.sightings.clone(),
            inventory: self.inventory.clone(),
        }
    }

    /// Says once when a target begins to fail, fails otherwise, or is well again.
    fn changed(&mut self, health: Health, error: &str) {
        let (node, before) = (&self.target.node, std::mem::replace(&mut self.health, health));
        if before.status != health.status {
            match health.status {
                Some(status) => tracing::warn!(%node, status = status.as_str(), error, "rounds have no page"),
                None => tracing::info!(%node, "rounds have a page again"),
            }
        }
        if before.join != health.join {
            match health.join {
                Some(reason) => tracing::warn!(%node, reason = reason.as_str(), "devices cannot be joined with pods"),
                None => tracing::info!(%node, "devices can be joined with pods again"),
            }
        }
    }
}

fn podres_client(target: &Target, options: &Options) -> Result<Option<podres::Client>, AgentError> {
    let client = target.podres_socket.as_deref().map(|socket| podres::Client::new(socket, options.timeout));
    client.transpose().map_err(|source| AgentError::Podres { node: target.node.clone(), source })
}

async fn ask(podres: &mut Option<podres::Client>) -> Answer {
    let Some(client) = podres else { return Answer::NotAsked };
    match client.list().await {
        Ok(list) => Answer::Listed(list),
        Err(error) => {
            tracing::debug!(%error, "no pod-resources answer");
            Answer::Failed(error.join_reason())
        }
    }
}
