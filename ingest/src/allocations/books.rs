//! What the API server told, to records: holdings, demand and inventory. Pure.

use crate::publish;
use crate::transport::Record;
use attribution::pods::{self, Book, Nodes, Options, PodState, Receipt, Refused, TeamSource};
use attribution::slices::SliceBook;
use attribution::watch::{Event, Resource, Told, Top};
use schemas::Timestamp;
use schemas::labels::Contract;
use schemas::proto::{self, Allocation, Holding, Message, allocation};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::{BTreeMap, BTreeSet};

/// Time after which pods that have ended are forgotten: far above the time by which events may come late.
const FORGET_AFTER_MS: i64 = 3_600_000;

/// Records of the two topics.
#[derive(Debug, Default)]
pub struct Batch {
    /// Holdings and demand.
    pub allocations: Vec<Record>,
    /// Inventory.
    pub nodes: Vec<Record>,
}

impl Batch {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.allocations.len() + self.nodes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts another behind this one.
    pub fn append(&mut self, mut other: Batch) {
        self.allocations.append(&mut other.allocations);
        self.nodes.append(&mut other.nodes);
    }
}

/// Everything that one cluster's API server has told.
pub struct Books {
    cluster: String,
    /// Pods.
    pub pods: Book,
    /// Nodes.
    pub nodes: Nodes,
    /// ResourceSlices, and the drivers of those that stand for GPUs.
    slices: SliceBook,
    drivers: Vec<String>,
    /// Resources whose list has come, or that the server does not have.
    listed: BTreeSet<Resource>,
    /// Up to when each resource is known, on the API server's clock.
    current: BTreeMap<Resource, Timestamp>,
    /// Nodes that were told of: those with GPUs, and those that had some.
    told: BTreeSet<String>,
}

impl Books {
    /// Empty books of `cluster`.
    pub fn new(cluster: &str, options: Options) -> Self {
        Books {
            cluster: cluster.to_owned(),
            pods: Book::new(options.clone()),
            slices: SliceBook::default(),
            drivers: options.resources.drivers.clone(),
            nodes: Nodes::new(options),
            listed: BTreeSet::new(),
            current: BTreeMap::new(),
            told: BTreeSet::new(),
        }
    }

    /// Takes a state that was published before, by us or another. For use before the first event.
    pub fn resume(&mut self, state: Recalled) {
        match state {
            Recalled::Holding(holding) => self.pods.resume(&holding),
            Recalled::Demand(demand) => self.pods.resume_demand(&demand),
            Recalled::Node(node) => {
                self.told.insert(node.node.clone());
                self.nodes.resume(&node);
            }
        }
    }

    /// Takes what was told. Out: what is wrong with objects that were refused.
    pub fn take(&mut self, told: &Told) -> Vec<String> {
        let receipt = told.receipt;
        if !matches!(told.event, Event::Failed(_)) {
            let current = self.current.entry(told.resource).or_insert(receipt.api());
            *current = receipt.api().max(*current);
        }
        if matches!(told.event, Event::Listed { .. } | Event::Absent) {
            self.listed.insert(told.resource);
        }
        if told.resource == Resource::Slices {
            return self.slice(&told.event);
        }
        let refused = match &told.event {
            Event::Listed { objects, version } => self.list(told.resource, objects, *version, receipt),
            Event::Seen(json) => self.seen(told.resource, json, receipt).err().into_iter().collect(),
            Event::Deleted(json) => self.deleted(told.resource, json, receipt).err().into_iter().collect(),
            Event::Current | Event::Absent | Event::Failed(_) => Vec::new(),
        };
        refused.iter().map(ToString::to_string).collect()
    }

    fn slice(&mut self, event: &Event) -> Vec<String> {
        let (changed, refused) = match event {
            Event::Listed { objects, .. } => {
                let (nodes, refused) = self.slices.relist(objects.iter().map(Vec::as_slice));
                (!nodes.is_empty(), refused)
            }
            Event::Seen(json) => match self.slices.seen(json) {
                Ok(nodes) => (!nodes.is_empty(), Vec::new()),
                Err(error) => (false, vec![error]),
            },
            Event::Deleted(json) => match self.slices.deleted(json) {
                Ok(nodes) => (!nodes.is_empty(), Vec::new()),
                Err(error) => (false, vec![error]),
            },
            Event::Current | Event::Absent | Event::Failed(_) => (false, Vec::new()),
        };
        if changed {
            self.nodes.slices(self.slices.gpus(&self.drivers));
        }
        refused.iter().map(ToString::to_string).collect()
    }

    fn list(&mut self, resource: Resource, objects: &[Vec<u8>], version: Option<u64>, receipt: Receipt) -> Vec<Refused> {
        let objects = objects.iter().map(Vec::as_slice);
        match resource {
            Resource::Pods => self.pods.relist(objects, version, receipt),
            Resource::Nodes => self.nodes.relist(objects, version, receipt),
            Resource::Namespaces => objects.filter_map(|json| self.pods.namespace(json, receipt).err()).collect(),
            Resource::Claims => objects.filter_map(|json| self.pods.claim(json, receipt).err()).collect(),
            Resource::Slices => Vec::new(),
        }
    }

    fn seen(&mut self, resource: Resource, json: &[u8], receipt: Receipt) -> Result<(), Refused> {
        match resource {
            Resource::Pods => self.pods.seen(json, receipt),
            Resource::Nodes => self.nodes.seen(json, receipt),
            Resource::Namespaces => self.pods.namespace(json, receipt),
            Resource::Claims => self.pods.claim(json, receipt),
            Resource::Slices => Ok(()),
        }
    }

    fn deleted(&mut self, resource: Resource, json: &[u8], receipt: Receipt) -> Result<(), Refused> {
        match resource {
            Resource::Pods => self.pods.deleted(json, receipt),
            Resource::Nodes => self.nodes.deleted(json, receipt),
            // Who paid, and what was held by claim, stays so for the pods that are there.
            Resource::Namespaces | Resource::Claims | Resource::Slices => Ok(()),
        }
    }

    /// Takes which workloads the pods' controllers belong to.
    pub fn workloads(&mut self, tops: &[Top]) {
        for top in tops {
            self.pods.workload(&top.namespace, &top.direct, &top.workload, top.whole);
        }
    }

    /// Takes a chain of team sources whose mappings say something else; false where it has other sources than before.
    pub fn remap(&mut self, team: Vec<TeamSource>) -> bool {
        self.pods.remap(team)
    }

    /// Whether everything has been listed once: before that, states are half known and nothing is published.
    pub fn complete(&self) -> bool {
        Resource::ALL.iter().all(|resource| self.listed.contains(resource))
    }

    /// What changed since this was last asked.
    pub fn changes(&mut self, now: Timestamp) -> Batch {
        let pods = self.pods.take_changes();
        let nodes = self.nodes.take_changes();
        self.batch(pods, nodes, None, now)
    }

    /// Everything, as known now; and pods that ended long ago are forgotten.
    pub fn snapshot(&mut self, now: Timestamp) -> Batch {
        self.pods.forget(now.plus_ms(-FORGET_AFTER_MS));
        // Told with the rest: they are no changes any more.
        drop((self.pods.take_changes(), self.nodes.take_changes()));
        let (pods, nodes) = (self.pods.states(), self.nodes.states());
        let current = self.current.clone();
        self.batch(pods, nodes, Some(&current), now)
    }

    /// `current`: the states are known to hold up to then.
    fn batch(
        &mut self,
        pods: Vec<PodState>,
        nodes: Vec<pods::NodeState>,
        current: Option<&BTreeMap<Resource, Timestamp>>,
        now: Timestamp,
    ) -> Batch {
        let known_to = |resource| current.and_then(|current| current.get(&resource).copied());
        let mut batch = Batch::default();
        for pod in pods {
            for holding in &pod.holdings {
                // An end is told as of the event that showed it; what goes on was true when the watch last spoke.
                let observed = known_to(Resource::Pods).filter(|_| holding.ended.is_none()).max(Some(pod.observed_at));
                let message = holding.message(&self.cluster, observed.unwrap_or(pod.observed_at), pod.revision);
                batch.allocations.push(Record { at_ms: now.ms(), ..publish::holding(message) });
            }
            // What was bound long ago waits no more, and everybody knows.
            let fresh = |ended: i64| current.is_none() || ended > now.ms() - FORGET_AFTER_MS;
            if let Some(demand) = pod.demand.as_ref().filter(|demand| demand.ended.is_none_or(fresh)) {
                let observed = known_to(Resource::Pods).filter(|_| demand.ended.is_none()).max(Some(pod.observed_at));
                let message = demand.message(&self.cluster, &pod.uid, observed.unwrap_or(pod.observed_at), pod.revision);
                batch.allocations.push(Record { at_ms: now.ms(), ..publish::demand(message) });
            }
        }
        for node in nodes {
            let facts = &node.labels;
            if facts.capacity_gpus.unwrap_or(0) > 0 || !facts.product.is_empty() {
                self.told.insert(node.node.clone());
            } else if !self.told.contains(&node.node) {
                continue;
            }
            let mut message = node.message(&self.cluster);
            if let Some(current) = known_to(Resource::Nodes).filter(|_| node.present_to.is_none()) {
                message.observed_at_ms = message.observed_at_ms.max(current.ms());
            }
            batch.nodes.push(Record { at_ms: now.ms(), ..publish::node(&message) });
        }
        batch
    }

    /// GPUs of the cluster by what is known of them now: of nodes that are there, given to pods, and asked for by pods that wait.
    pub fn totals(&self, now: Timestamp) -> Totals {
        let mut totals = Totals::default();
        for node in self.nodes.states().iter().filter(|node| node.present_to.is_none()) {
            totals.capacity += u64::from(node.labels.capacity_gpus.unwrap_or(0));
            totals.allocatable += u64::from(node.labels.allocatable_gpus.unwrap_or(0));
        }
        for pod in self.pods.states() {
            totals.bound += pod.holdings.iter().map(|holding| u64::from(holding.held_at(now.ms()))).sum::<u64>();
            totals.waiting += pod.demand.iter().filter(|d| d.ended.is_none()).map(|d| u64::from(d.gpus)).sum::<u64>();
        }
        totals
    }

    /// The pods that hold something at `now` by number: (node, namespace, pod) and how much.
    pub fn held(&self, now: Timestamp) -> BTreeMap<(String, String, String), u32> {
        let mut held = BTreeMap::new();
        for holding in self.pods.states().iter().flat_map(|pod| &pod.holdings) {
            let count = holding.held_at(now.ms());
            if count > 0 {
                let key = (holding.node.clone(), holding.namespace.to_string(), holding.pod.to_string());
                *held.entry(key).or_default() += count;
            }
        }
        held
    }
}

/// Whole devices, or what stands for them by resource name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Of status.capacity.
    pub capacity: u64,
    /// Of status.allocatable.
    pub allocatable: u64,
    /// Held by pods.
    pub bound: u64,
    /// Asked by pods that wait.
    pub waiting: u64,
}

/// A state as the log tells it.
#[derive(Clone, Debug, PartialEq)]
pub enum Recalled {
    /// Of a holding by the API server.
    Holding(Box<Holding>),
    /// Of a pod that waits.
    Demand(Box<proto::Demand>),
    /// Of a node by the API server.
    Node(Box<proto::Node>),
}

impl Recalled {
    /// What a message of the allocations topic says, where it is the API server's word on `cluster`.
    pub fn allocation(value: &[u8], cluster: &str) -> Option<Self> {
        match Allocation::decode(value).ok()?.state? {
            allocation::State::Holding(h) if h.cluster == cluster && h.source == "api" => Some(Recalled::Holding(Box::new(h))),
            allocation::State::Demand(d) if d.cluster == cluster => Some(Recalled::Demand(Box::new(d))),
            allocation::State::Holding(_) | allocation::State::Demand(_) => None,
        }
    }

    /// The same of the nodes topic.
    pub fn node(value: &[u8], cluster: &str) -> Option<Self> {
        let node = proto::Node::decode(value).ok()?;
        (node.cluster == cluster && node.source == "api").then(|| Recalled::Node(Box::new(node)))
    }

    /// Names what it is a state of.
    pub fn id(&self) -> (u8, String, String) {
        match self {
            Recalled::Holding(h) => (0, h.node.clone(), h.id.clone()),
            Recalled::Demand(d) => (1, String::new(), d.pod_uid.clone()),
            Recalled::Node(n) => (2, n.node.clone(), String::new()),
        }
    }

    /// The later of two states of one thing stands.
    pub fn order(&self) -> (i64, u64) {
        match self {
            Recalled::Holding(h) => (h.observed_at_ms, h.revision),
            Recalled::Demand(d) => (d.observed_at_ms, d.revision),
            Recalled::Node(n) => (n.observed_at_ms, n.revision),
        }
    }
}

/// Labels of an object that `contract` refuses: they name nothing here, and only their number is told.
pub fn refused_labels(json: &[u8], contract: &Contract) -> u64 {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        labels: Option<BTreeMap<String, IgnoredAny>>,
    }
    let labels = serde_json::from_slice::<Object>(json).ok().and_then(|object| object.metadata.labels).unwrap_or_default();
    labels.keys().filter(|key| refuses(contract, key)).count() as u64
}

/// Whether a label's key is refused. It may have a prefix, as in example.com/team.
pub(super) fn refuses(contract: &Contract, label: &str) -> bool {
    contract.refuses(label) || label.rsplit_once('/').is_some_and(|(_, name)| contract.refuses(name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use attribution::watch::{ApiError, Call};

    const POD: &str = r#"{"metadata":{"uid":"u1","name":"p","namespace":"ns","creationTimestamp":"2026-01-01T00:00:00Z"},
        "spec":{"containers":[{"name":"c","resources":{"limits":{"nvidia.com/gpu":"2"}}}]},"status":{}}"#;

    fn told(resource: Resource, event: Event, at: i64) -> Told {
        Told { resource, event, receipt: Receipt::at(Timestamp::from_ms(at)) }
    }

    fn listed(resource: Resource, objects: &[&str], at: i64) -> Told {
        let objects = objects.iter().map(|o| o.as_bytes().to_vec()).collect();
        told(resource, Event::Listed { objects, version: None }, at)
    }

    const T: i64 = 1_767_225_600_000;

    #[test]
    fn nothing_is_complete_before_everything_was_listed() {
        let mut books = Books::new("c", Options::default());
        for resource in Resource::ALL {
            assert!(!books.complete());
            let failed = ApiError::NotFound { call: Call { verb: "list", resource: resource.plural() } };
            books.take(&told(resource, Event::Failed(failed), T));
            books.take(&listed(resource, &[], T));
        }
        assert!(books.complete());
    }

    #[test]
    fn a_pod_that_waited_while_nobody_watched_waits_no_longer() {
        let mut before = Books::new("c", Options::default());
        before.take(&listed(Resource::Pods, &[POD], T + 1000));
        let batch = before.snapshot(Timestamp::from_ms(T + 2000));
        assert_eq!(batch.allocations.len(), 1);
        assert_eq!(before.totals(Timestamp::from_ms(T + 2000)).waiting, 2);

        let mut books = Books::new("c", Options::default());
        for record in &batch.allocations {
            books.resume(Recalled::allocation(&record.value, "c").unwrap());
        }
        books.take(&listed(Resource::Pods, &[], T + 60_000));
        let changes = books.changes(Timestamp::from_ms(T + 60_001));
        let Some(Recalled::Demand(demand)) = Recalled::allocation(&changes.allocations[0].value, "c") else {
            panic!("no demand")
        };
        assert_eq!((demand.asked_ms, demand.ended_ms, demand.outcome.as_str()), (T, Some(T + 60_000), "withdrawn"));
        assert_eq!(demand.pod_uid, "u1");
    }

    #[test]
    fn a_snapshot_says_up_to_when_it_is_known_to_hold() {
        let mut books = Books::new("c", Options::default());
        let bound = POD.replace("\"spec\":{", "\"spec\":{\"nodeName\":\"n1\",");
        books.take(&listed(Resource::Pods, &[&bound], T + 1000));
        books.take(&told(Resource::Pods, Event::Current, T + 61_000));
        let now = Timestamp::from_ms(T + 100_000);
        let Some(Recalled::Holding(h)) = Recalled::allocation(&books.snapshot(now).allocations[0].value, "c") else {
            panic!("no holding")
        };
        assert_eq!((h.observed_at_ms, h.bound_ms, h.count), (T + 61_000, Some(T + 1000), Some(2)));
        books.take(&told(Resource::Pods, Event::Deleted(bound.into_bytes()), T + 120_000));
        books.take(&told(Resource::Pods, Event::Current, T + 180_000));
        let Some(Recalled::Holding(h)) = Recalled::allocation(&books.snapshot(now).allocations[0].value, "c") else {
            panic!("no holding")
        };
        assert_eq!((h.observed_at_ms, h.ended_ms), (T + 120_000, Some(T + 120_000)), "an end is as old as its event");
    }

    #[test]
    fn nodes_without_gpus_are_not_told_of_and_those_that_lost_theirs_are() {
        let node = |capacity: &str| {
            format!(
                r#"{{"metadata":{{"uid":"n","name":"n1","creationTimestamp":"2026-01-01T00:00:00Z"}},
                "status":{{"capacity":{{{capacity}}},"allocatable":{{{capacity}}}}}}}"#
            )
        };
        let mut books = Books::new("c", Options::default());
        books.take(&listed(Resource::Nodes, &[&node("\"cpu\":\"4\"")], T));
        assert!(books.changes(Timestamp::from_ms(T)).is_empty());
        books.take(&told(Resource::Nodes, Event::Seen(node("\"nvidia.com/gpu\":\"8\"").into_bytes()), T + 1000));
        assert_eq!(books.changes(Timestamp::from_ms(T)).nodes.len(), 1);
        assert_eq!(books.totals(Timestamp::from_ms(T)).capacity, 8);
        books.take(&told(Resource::Nodes, Event::Seen(node("").into_bytes()), T + 2000));
        assert_eq!(books.changes(Timestamp::from_ms(T)).nodes.len(), 1);
    }

    #[test]
    fn labels_that_can_carry_people_are_counted_and_not_told() {
        let contract = Contract::new(["*secret*".to_owned()]);
        let labels = r#"{"team":"a","user_email":"x@y","acme.io/prompt":"hush","my-secret":"b"}"#;
        assert_eq!(refused_labels(format!(r#"{{"metadata":{{"labels":{labels}}}}}"#).as_bytes(), &contract), 3);
        assert_eq!(refused_labels(br#"{"metadata":{}}"#, &contract), 0);
    }

    #[test]
    fn another_mapping_tells_the_pods_whose_team_it_changes() {
        let mapping = |team: &str| TeamSource::Mapping([("ns".to_owned(), team.to_owned())].into());
        let options = Options { team: vec![TeamSource::PodLabel("team".into()), mapping("red")], ..Options::default() };
        let mut books = Books::new("c", options);
        let bound = POD.replace("\"spec\":{", "\"spec\":{\"nodeName\":\"n1\",");
        books.take(&listed(Resource::Pods, &[&bound], T + 1000));
        let teams = |books: &mut Books| -> Vec<String> {
            let records = books.changes(Timestamp::from_ms(T + 2000)).allocations;
            let team = |record: &Record| match Recalled::allocation(&record.value, "c") {
                Some(Recalled::Holding(holding)) => Some(holding.team.clone()),
                _ => None,
            };
            records.iter().filter_map(team).collect()
        };
        assert_eq!(teams(&mut books), ["red"]);
        assert!(books.remap(vec![TeamSource::PodLabel("team".into()), mapping("blue")]));
        assert_eq!(teams(&mut books), ["blue"]);
        assert!(books.remap(vec![TeamSource::PodLabel("team".into()), mapping("blue")]));
        assert!(teams(&mut books).is_empty(), "nothing changed");
        assert!(!books.remap(vec![mapping("green")]), "another chain");
        assert!(!books.remap(vec![TeamSource::PodLabel("owner".into()), mapping("green")]));
        assert!(teams(&mut books).is_empty());
    }
}
