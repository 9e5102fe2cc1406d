//! The book of nodes: events in, inventory out.
//!
//! What the tables can say of a node known from the API server alone: since when it is there, its labels, GPUs of its capacity and
//! allocatable as they are now, and spells in which the whole node cannot be given to pods. What they cannot: *which* device a
//! plugin calls unhealthy (allocatable is below capacity; both numbers are told, the node stays available, and only a node that
//! has none left is `unhealthy` as a whole), and what capacity was before it changed. A node that was removed and came
//! back under its name is one interval with a spell `lost`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use schemas::{Timestamp, proto};

use super::{
    book::{Counts, Receipt},
    evidence::time,
    object::{self, Node, Quantity, Refused},
    options::{self, Options},
    quantity::count,
};
use crate::slices::SliceGpus;

/// The state of one node's inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// Its name.
    pub node: String,
    /// Receipt of the last observation, on the API server's clock.
    pub observed_at: Timestamp,
    /// How many states were told before.
    pub revision: u64,
    /// Since when it is in the inventory.
    pub present_from: i64,
    /// When it was removed.
    pub present_to: Option<i64>,
    /// Labels that we use; empty where not there.
    pub labels: NodeFacts,
    /// Spells in which nothing of it can be given to pods, by time.
    pub unavailable: Vec<Spell>,
}

/// A spell of unavailability of the whole node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spell {
    /// First instant.
    pub from: i64,
    /// not_ready, cordoned, unhealthy or lost.
    pub reason: &'static str,
    /// First instant after; none while it lasts.
    pub to: Option<i64>,
}

/// What a node's object says beside its conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct NodeFacts {
    pub product: String,
    pub region: String,
    pub zone: String,
    pub provider: String,
    pub purchase_option: String,
    pub reservation: String,
    /// GPUs of status.capacity; none where no device plugin has said.
    pub capacity_gpus: Option<u32>,
    /// GPUs of status.allocatable.
    pub allocatable_gpus: Option<u32>,
    /// Replicas that a device is shared as.
    pub replicas: Option<u32>,
    /// All of its accelerators are such as no DCGM reads.
    pub unread: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Observation {
    at: i64,
    what: What,
    version: Option<u64>,
    seen: Option<Arc<Seen>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Seen,
    Listed,
    Deleted,
    Missing,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    uid: String,
    created: Option<i64>,
    /// Since when it is ready or not.
    ready: Option<(i64, bool)>,
    cordoned: bool,
    /// When the taint of a cordon was set, where told.
    cordoned_at: Option<i64>,
    facts: NodeFacts,
}

/// What a run of observations amounts to.
#[derive(Clone, Debug, Default)]
struct Life {
    last_at: Option<i64>,
    version: Option<u64>,
    /// Intervals in the inventory, by time; the last may be open.
    present: Vec<(i64, Option<i64>)>,
    uid: String,
    gone: BTreeSet<String>,
    ready: BTreeMap<i64, bool>,
    cordoned: BTreeMap<i64, bool>,
    healthy: BTreeMap<i64, bool>,
    facts: NodeFacts,
}

#[derive(Debug, Default)]
struct Entry {
    settled: Life,
    tail: Vec<Observation>,
    now: Life,
    told: Option<NodeState>,
    revision: u64,
}

/// Every node of one cluster's watch. Like the book of pods: the same whatever order events come in, within `reorder_ms`.
#[derive(Debug)]
pub struct Nodes {
    options: Options,
    nodes: HashMap<String, Entry>,
    lists: BTreeSet<(i64, Option<u64>)>,
    changed: BTreeSet<String>,
    counts: Counts,
    settled_before: i64,
    /// GPUs by ResourceSlices.
    by_slices: BTreeMap<String, SliceGpus>,
}

impl Nodes {
    /// No nodes yet.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            nodes: HashMap::new(),
            lists: BTreeSet::new(),
            changed: BTreeSet::new(),
            counts: Counts::default(),
            settled_before: i64::MIN,
            by_slices: BTreeMap::new(),
        }
    }

    /// Takes the GPUs of every node by its ResourceSlices. They count where the node's own status names none: nodes that give GPUs
    /// by claims alone have no device plugin to say it.
    pub fn slices(&mut self, gpus: BTreeMap<String, SliceGpus>) {
        let differs = |node: &&String| self.by_slices.get(*node) != gpus.get(*node);
        let changed: Vec<String> = self.by_slices.keys().chain(gpus.keys()).filter(differs).cloned().collect();
        self.changed.extend(changed);
        self.by_slices = gpus;
    }

    /// What was kept out so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Event ADDED or MODIFIED. Errors: it was refused and counted; nothing changed.
    pub fn seen(&mut self, json: &[u8], receipt: Receipt) -> Result<(), Refused> {
        self.node(json, What::Seen, receipt.api().ms()).map(drop)
    }

    /// Event DELETED. Errors: it was refused and counted; where its name could be read, the node is gone all the same.
    pub fn deleted(&mut self, json: &[u8], receipt: Receipt) -> Result<(), Refused> {
        let at = receipt.api().ms();
        self.node(json, What::Deleted, at).map(drop).inspect_err(|_| {
            if let Some(name) = object::identity(json).name.filter(|name| self.nodes.contains_key(name)) {
                self.observe(&name, Observation { at, what: What::Deleted, version: None, seen: None });
            }
        })
    }

    /// A full list: a node that it lacks is gone by then. Out: the nodes that were refused; none of these is taken for gone.
    pub fn relist<'a>(
        &mut self,
        nodes: impl IntoIterator<Item = &'a [u8]>,
        version: Option<u64>,
        receipt: Receipt,
    ) -> Vec<Refused> {
        let at = receipt.api().ms();
        self.lists.insert((at, version));
        let (mut refused, mut there) = (Vec::new(), BTreeSet::new());
        for json in nodes {
            match self.node(json, What::Listed, at) {
                Ok(name) => drop(there.insert(name)),
                Err(error) => {
                    refused.push(error);
                    if let Some(name) = object::identity(json).name {
                        if self.nodes.contains_key(&name) {
                            self.observe(&name, Observation { at, what: What::Listed, version: None, seen: None });
                        }
                        there.insert(name);
                    }
                }
            }
        }
        let known = |entry: &Entry| entry.known_before(at);
        let missing = self.nodes.iter().filter(|(name, entry)| !there.contains(*name) && known(entry));
        for name in missing.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.observe(&name, Observation { at, what: What::Missing, version, seen: None });
        }
        refused
    }

    /// Takes a node as another process left it. For use before the first event.
    pub fn resume(&mut self, node: &proto::Node) {
        let mut life = Life { last_at: Some(node.observed_at_ms), ..Life::default() };
        life.present.push((node.present_from_ms, node.present_to_ms));
        for spell in node.unavailable.iter().filter(|spell| spell.device.is_empty()) {
            let points = match spell.reason.as_str() {
                "not_ready" => &mut life.ready,
                "cordoned" => &mut life.cordoned,
                "unhealthy" => &mut life.healthy,
                _ => continue,
            };
            // Of readiness and health the good is true, of a cordon the bad is.
            let bad = spell.reason == "cordoned";
            points.insert(spell.from_ms, bad);
            if let Some(to) = spell.to_ms {
                points.entry(to).or_insert(!bad);
            }
        }
        for spell in node.unavailable.iter().filter(|spell| spell.device.is_empty() && spell.reason == "lost") {
            if let (Some(last), Some(to)) = (life.present.last_mut(), spell.to_ms) {
                let end = last.1;
                last.1 = Some(spell.from_ms);
                life.present.push((to, end));
            }
        }
        life.facts = NodeFacts {
            product: node.product.clone(),
            region: node.region.clone(),
            zone: node.zone.clone(),
            provider: node.provider.clone(),
            purchase_option: node.purchase_option.clone(),
            reservation: node.reservation.clone(),
            capacity_gpus: node.capacity_gpus,
            allocatable_gpus: node.allocatable_gpus,
            replicas: node.replicas,
            unread: node.telemetry == "none",
        };
        let entry = Entry { settled: life.clone(), now: life, revision: node.revision, ..Entry::default() };
        self.nodes.insert(node.node.clone(), entry);
    }

    /// The state of every node, by name.
    pub fn states(&self) -> Vec<NodeState> {
        let mut states: Vec<NodeState> =
            self.nodes.iter().filter_map(|(name, entry)| entry.state(name, self.by_slices.get(name))).collect();
        states.sort_by(|a, b| a.node.cmp(&b.node));
        states
    }

    /// The states that changed since they were last asked for, by name.
    pub fn take_changes(&mut self) -> Vec<NodeState> {
        let mut states = Vec::new();
        for name in std::mem::take(&mut self.changed) {
            let Some(entry) = self.nodes.get_mut(&name) else { continue };
            let Some(state) = entry.state(&name, self.by_slices.get(&name)) else { continue };
            let same =
                |told: &NodeState| NodeState { observed_at: told.observed_at, revision: told.revision, ..state.clone() } == *told;
            if !entry.told.as_ref().is_some_and(same) {
                entry.told = Some(state.clone());
                entry.revision += 1;
                states.push(state);
            }
        }
        states
    }

    fn node(&mut self, json: &[u8], what: What, at: i64) -> Result<String, Refused> {
        let read = object::read(json).and_then(|node: Node| Ok((Seen::of(&node, &self.options)?, node.metadata)));
        let (seen, metadata) = read.inspect_err(|_| self.counts.refused += 1)?;
        self.nodes.entry(metadata.name.clone()).or_default();
        let version = metadata.version();
        self.observe(&metadata.name, Observation { at, what, version, seen: Some(Arc::new(seen)) });
        Ok(metadata.name)
    }

    fn observe(&mut self, name: &str, observation: Observation) {
        let at = observation.at;
        self.settled_before = self.settled_before.max(at.saturating_sub(self.options.reorder_ms.max(0)));
        self.lists = self.lists.split_off(&(self.settled_before, None));
        let Some(entry) = self.nodes.get_mut(name) else { return };
        if !entry.insert(observation, self.settled_before) {
            self.counts.late += 1;
            return;
        }
        for (list, version) in self.lists.range((at.saturating_add(1), None)..).copied().collect::<Vec<_>>() {
            if !entry.tail.iter().any(|o| o.at == list && o.what == What::Listed) {
                entry.insert(Observation { at: list, what: What::Missing, version, seen: None }, self.settled_before);
            }
        }
        entry.settle(self.settled_before);
        self.changed.insert(name.to_owned());
    }
}

impl Seen {
    fn of(node: &Node, options: &Options) -> Result<Self, Refused> {
        let refused = |field: String, what: String| Refused { kind: "node", who: node.metadata.name.clone(), field, what };
        let labels = &node.metadata.labels;
        let names = &options.node_labels;
        let one = |keys: &[String]| options::first(labels, keys);
        let replicas = one(&names.replicas).parse().ok().filter(|replicas: &u32| *replicas > 1);
        let sum = |names: &[String], quantities: &BTreeMap<String, Quantity>, field: &str| -> Result<Option<u32>, Refused> {
            let mut sum: Option<u32> = None;
            for name in names {
                let Some(quantity) = quantities.get(name) else { continue };
                let number = count(&quantity.0).map_err(|e| refused(format!("{field}[{name}]"), e.to_string()))?;
                sum = Some(sum.unwrap_or(0).saturating_add(number));
            }
            Ok(sum)
        };
        let unread = |quantities, field| sum(&options.resources.unread, quantities, field);
        let gpus = |quantities, field| -> Result<Option<u32>, Refused> {
            let read = sum(&options.resources.exact, quantities, field)?;
            // A shared device is there once for each replica.
            let whole = |sum: u32| replicas.filter(|r| sum.is_multiple_of(*r)).map_or(sum, |r| sum / r);
            Ok(match (read.map(whole), unread(quantities, field)?) {
                (Some(read), Some(unread)) => Some(read.saturating_add(unread)),
                (read, unread) => read.or(unread),
            })
        };
        let read = node.status.capacity.iter().any(|(name, quantity)| {
            let counts = options.resources.counts(name) && !options.resources.is_unread(name);
            counts && count(&quantity.0).is_ok_and(|number| number > 0)
        });
        let ready = node.status.conditions.iter().find(|c| c.kind == "Ready");
        let taint = node.spec.taints.iter().find(|taint| taint.key == "node.kubernetes.io/unschedulable");
        let scheme = node.spec.provider_id.split_once("://").map_or("", |(scheme, _)| scheme);
        let provider = one(&names.provider);
        let product = one(&names.product);
        Ok(Self {
            uid: node.metadata.uid.clone(),
            created: time(node.metadata.creation_timestamp),
            ready: ready.and_then(|c| Some((time(c.last_transition_time)?, c.status == "True"))),
            cordoned: node.spec.unschedulable,
            cordoned_at: taint.and_then(|taint| time(taint.time_added)),
            facts: NodeFacts {
                product: product.strip_suffix("-SHARED").unwrap_or(&product).to_owned(),
                region: one(&names.region),
                zone: one(&names.zone),
                provider: if provider.is_empty() { scheme.to_owned() } else { provider },
                purchase_option: one(&names.purchase_option),
                reservation: one(&names.reservation),
                capacity_gpus: gpus(&node.status.capacity, "status.capacity")?,
                allocatable_gpus: gpus(&node.status.allocatable, "status.allocatable")?,
                replicas,
                unread: !read && unread(&node.status.capacity, "status.capacity")?.is_some_and(|number| number > 0),
            },
        })
    }
}

impl Life {
    fn take(&mut self, observation: &Observation) {
        let Observation { at, what, version, seen } = observation;
        self.last_at = Some(*at).max(self.last_at);
        if matches!((self.version, version), (Some(known), Some(version)) if *version < known) {
            return;
        }
        if *what != What::Missing {
            self.version = (*version).max(self.version);
        }
        if let Some(seen) = seen {
            if self.gone.contains(&seen.uid) {
                return; // a stale event of a node that is gone
            }
            self.read(seen, *at, *what == What::Deleted);
        }
        if matches!(what, What::Deleted | What::Missing)
            && let Some((from, to @ None)) = self.present.last_mut()
        {
            *to = Some((*at).max(*from));
            if !self.uid.is_empty() {
                self.gone.insert(std::mem::take(&mut self.uid));
            }
        }
    }

    fn read(&mut self, seen: &Seen, at: i64, last: bool) {
        let begin = seen.created.map_or(at, |created| created.min(at));
        let another = !self.uid.is_empty() && !seen.uid.is_empty() && self.uid != seen.uid;
        match self.present.last_mut() {
            Some((from, to @ None)) if another => {
                // The removal of the one before was missed.
                let cut = begin.max(*from);
                *to = Some(cut);
                self.gone.insert(std::mem::take(&mut self.uid));
                self.present.push((cut, None));
            }
            Some((_, None)) => {}
            // Nothing tells a node without UID from a stale event of the one that went.
            Some((_, Some(to))) => {
                let begin = begin.max(*to);
                self.present.push((begin, None));
            }
            None if last && seen.created.is_none() => return,
            None => self.present.push((begin, None)),
        }
        if !seen.uid.is_empty() {
            self.uid.clone_from(&seen.uid);
        }
        if let Some((since, ready)) = seen.ready {
            let known = self.ready.entry(since).or_insert(ready);
            *known &= ready; // not ready wins where one instant has both
        }
        let set = |points: &mut BTreeMap<i64, bool>, at: i64, now: bool, before: bool| {
            if points.range(..=at).next_back().map_or(before, |(_, known)| *known) != now {
                points.insert(at, now);
            }
        };
        let since = seen.cordoned_at.filter(|_| seen.cordoned).map_or(at, |since| since.min(at));
        // A taint's time inside an earlier spell says nothing new.
        let last_point = self.cordoned.keys().next_back().copied().unwrap_or(i64::MIN);
        set(&mut self.cordoned, since.max(last_point), seen.cordoned, false);
        if let (Some(capacity), Some(allocatable)) = (seen.facts.capacity_gpus, seen.facts.allocatable_gpus) {
            set(&mut self.healthy, at, capacity == 0 || allocatable > 0, true);
        }
        self.facts = seen.facts.clone();
    }

    fn spells(&self) -> Vec<Spell> {
        let mut spells = Vec::new();
        let mut of = |points: &BTreeMap<i64, bool>, bad: bool, reason: &'static str| {
            let mut from = None;
            for (at, state) in points {
                match (from, *state == bad) {
                    (None, true) => from = Some(*at),
                    (Some(begin), false) => {
                        spells.push(Spell { from: begin, reason, to: Some(*at) });
                        from = None;
                    }
                    (None, false) | (Some(_), true) => {}
                }
            }
            spells.extend(from.map(|begin| Spell { from: begin, reason, to: None }));
        };
        of(&self.ready, false, "not_ready");
        of(&self.cordoned, true, "cordoned");
        of(&self.healthy, false, "unhealthy");
        // A spell holds while the node is there; between two presences it is lost.
        let (Some((begin, _)), Some((_, end))) = (self.present.first(), self.present.last()) else { return Vec::new() };
        let mut clipped: Vec<Spell> = spells
            .into_iter()
            .map(|s| Spell { from: s.from.max(*begin), to: [s.to, *end].into_iter().flatten().min(), ..s })
            .filter(|s| s.to.is_none_or(|to| s.from < to))
            .collect();
        let gaps = self.present.windows(2).filter_map(|pair| Some((pair[0].1?, pair[1].0)));
        clipped.extend(gaps.filter(|(from, to)| from < to).map(|(from, to)| Spell { from, reason: "lost", to: Some(to) }));
        clipped.sort();
        clipped
    }
}

impl Entry {
    fn known_before(&self, at: i64) -> bool {
        self.settled.last_at.is_some_and(|last| last < at) || self.tail.first().is_some_and(|first| first.at < at)
    }

    fn insert(&mut self, observation: Observation, settled_before: i64) -> bool {
        if observation.at < settled_before && self.settled.last_at.is_some_and(|last| observation.at < last) {
            return false;
        }
        let Err(place) = self.tail.binary_search(&observation) else { return true };
        self.tail.insert(place, observation);
        if place + 1 == self.tail.len() {
            self.now.take(&self.tail[place]);
        } else {
            self.now = self.settled.clone();
            self.tail.iter().for_each(|o| self.now.take(o));
        }
        true
    }

    fn settle(&mut self, before: i64) {
        let old = self.tail.partition_point(|o| o.at < before);
        for observation in self.tail.drain(..old) {
            self.settled.take(&observation);
        }
    }

    fn state(&self, name: &str, by_slices: Option<&SliceGpus>) -> Option<NodeState> {
        let life = &self.now;
        let (present_from, _) = *life.present.first()?;
        let mut labels = life.facts.clone();
        if let Some(gpus) = by_slices.filter(|_| labels.capacity_gpus.unwrap_or(0) == 0) {
            (labels.capacity_gpus, labels.allocatable_gpus) = (Some(gpus.capacity), Some(gpus.allocatable));
            if labels.product.is_empty() {
                labels.product.clone_from(&gpus.product);
            }
        }
        Some(NodeState {
            node: name.to_owned(),
            observed_at: Timestamp::from_ms(life.last_at?),
            revision: self.revision,
            present_from,
            present_to: life.present.last()?.1,
            labels,
            unavailable: life.spells(),
        })
    }
}

impl NodeState {
    /// The message that carries it; devices are the node's to name, and not in it.
    pub fn message(&self, cluster: &str) -> proto::Node {
        let labels = &self.labels;
        let spell = |spell: &Spell| proto::Unavailable {
            device: String::new(),
            reason: spell.reason.into(),
            from_ms: spell.from,
            to_ms: spell.to,
        };
        proto::Node {
            cluster: cluster.to_owned(),
            node: self.node.clone(),
            source: "api".into(),
            observed_at_ms: self.observed_at.ms(),
            revision: self.revision,
            present_from_ms: self.present_from,
            present_to_ms: self.present_to,
            product: labels.product.clone(),
            region: labels.region.clone(),
            zone: labels.zone.clone(),
            provider: labels.provider.clone(),
            purchase_option: labels.purchase_option.clone(),
            reservation: labels.reservation.clone(),
            capacity_gpus: labels.capacity_gpus,
            allocatable_gpus: labels.allocatable_gpus,
            replicas: labels.replicas,
            telemetry: if labels.unread { "none".into() } else { String::new() },
            unavailable: self.unavailable.iter().map(spell).collect(),
            ..proto::Node::default()
        }
    }
}
