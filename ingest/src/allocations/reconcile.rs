//! What the kubelets say of who holds how much, beside what the API server says: for how many pods they disagree now.
//!
//! ```text
//! agents' sightings in the log ──> Kubelets: devices by pod ─┐
//! Books::held: devices by pod ───────────────────────────────┴─> Disagreements: by kind, those that last
//! ```
//!
//! The same comparison over closed hours is the view `reconciliation`; this is the one of the moment. A little disagreement is
//! natural: a kubelet names devices some time after the bind, and lists them some time after the end. Pure but for [`Tail`].

use super::recall;
use crate::transport::{Topic, TransportError};
use attribution::sightings;
use schemas::Timestamp;
use schemas::proto::{Allocation, Holding, Message, allocation};
use schemas::status::HoldingSource;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Node, namespace and pod.
pub type PodOnNode = (String, String, String);

/// A state that is not told again in this time has lost its agent: it says nothing of now any more.
const FORGET_AFTER_MS: i64 = 2 * sightings::SNAPSHOT_EVERY_MS + 60_000;
/// Most bytes of the log that are read at one time; more are read at the next.
const AT_ONCE_BYTES: usize = 64 << 20;
const FETCH_BYTES: usize = 4 << 20;

/// How the two sides disagree on a pod. The words are those of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The API server knows that it holds, and no kubelet names a device of it.
    ApiOnly,
    /// A kubelet names devices of it, and the API server does not know that it holds any.
    PodresOnly,
    /// Both know it, with other numbers of devices.
    Number,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ApiOnly, Self::PodresOnly, Self::Number];

    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ApiOnly => "api_only",
            Self::PodresOnly => "podres_only",
            Self::Number => "number",
        }
    }
}

/// What kubelets said last, by the agents' messages.
#[derive(Debug, Default)]
pub struct Kubelets {
    /// Sightings by node and id; those that ended too, so that a late state of one does not bring it back.
    states: BTreeMap<(String, String), Holding>,
    /// Whether any was ever told: without agents there is nothing to compare.
    heard: bool,
}

impl Kubelets {
    /// Takes a message of the allocations topic; others than sightings of `cluster` are passed over.
    pub fn take(&mut self, value: &[u8], cluster: &str) {
        let Ok(Allocation { state: Some(allocation::State::Holding(holding)) }) = Allocation::decode(value) else { return };
        if holding.cluster != cluster || holding.source != HoldingSource::PodResources.as_str() {
            return;
        }
        self.heard = true;
        let key = (holding.node.clone(), holding.id.clone());
        let order = |h: &Holding| (h.observed_at_ms, h.revision);
        if self.states.get(&key).is_none_or(|known| order(known) <= order(&holding)) {
            self.states.insert(key, holding);
        }
    }

    /// Devices by pod at `now`; none where no kubelet was ever heard of. A device counts once for each id of it that the pod
    /// lists, as in the view.
    pub fn held(&mut self, now: Timestamp) -> Option<BTreeMap<PodOnNode, u32>> {
        self.states.retain(|_, holding| now.ms() - holding.observed_at_ms <= FORGET_AFTER_MS);
        let mut ids: BTreeMap<(PodOnNode, &str), u32> = BTreeMap::new();
        for holding in self.states.values().filter(|holding| holding.ended_ms.is_none()) {
            let pod = (holding.node.clone(), holding.namespace.clone(), holding.pod.clone());
            // Containers of one pod may list the same ids of a device, and each state has all of the pod's ids of it.
            let number = u32::try_from(holding.replica_ids.len().max(1)).unwrap_or(u32::MAX);
            let most = ids.entry((pod, holding.device.as_str())).or_default();
            *most = number.max(*most);
        }
        let mut held = BTreeMap::new();
        for ((pod, _), number) in ids {
            let sum: &mut u32 = held.entry(pod).or_default();
            *sum = sum.saturating_add(number);
        }
        self.heard.then_some(held)
    }
}

/// Disagreements, each since when.
#[derive(Debug, Default)]
pub struct Disagreements {
    since: BTreeMap<PodOnNode, (Kind, Timestamp)>,
}

impl Disagreements {
    /// Compares both sides at `now`. Out: how many pods they have disagreed on in one way for at least `lasting_ms`, by kind.
    pub fn compare(
        &mut self,
        api: &BTreeMap<PodOnNode, u32>,
        podres: &BTreeMap<PodOnNode, u32>,
        now: Timestamp,
        lasting_ms: i64,
    ) -> BTreeMap<Kind, u64> {
        let mut since = BTreeMap::new();
        let mut counts: BTreeMap<Kind, u64> = Kind::ALL.into_iter().map(|kind| (kind, 0)).collect();
        for pod in api.keys().chain(podres.keys()).collect::<BTreeSet<_>>() {
            let kind = match (api.get(pod), podres.get(pod)) {
                (Some(a), Some(b)) if a == b => continue,
                (Some(_), Some(_)) => Kind::Number,
                (Some(_), None) => Kind::ApiOnly,
                (None, _) => Kind::PodresOnly,
            };
            let began = self.since.get(pod).filter(|(before, _)| *before == kind).map_or(now, |(_, began)| *began);
            if now.ms() - began.ms() >= lasting_ms {
                *counts.entry(kind).or_default() += 1;
            }
            since.insert(pod.clone(), (kind, began));
        }
        self.since = since;
        counts
    }
}

/// Opens a topic.
pub type Open = Box<dyn FnMut() -> Result<Arc<dyn Topic>, TransportError> + Send>;

/// Reads a topic from its last half hour on, and then what is new.
pub struct Tail {
    open: Open,
    topic: Option<Arc<dyn Topic>>,
    next: BTreeMap<u32, u64>,
}

impl Tail {
    /// Nothing is opened or read yet.
    pub fn of(open: Open) -> Self {
        Tail { open, topic: None, next: BTreeMap::new() }
    }

    /// Hands every message that is new to `take`, up to a bounded number of bytes. Blocks. Errors: the topic is opened anew the
    /// next time.
    pub fn read(&mut self, take: impl FnMut(&[u8])) -> Result<(), TransportError> {
        let topic = match self.topic.take() {
            Some(topic) => topic,
            None => (self.open)()?,
        };
        self.read_from(&*topic, take)?;
        self.topic = Some(topic);
        Ok(())
    }

    fn read_from(&mut self, topic: &dyn Topic, mut take: impl FnMut(&[u8])) -> Result<(), TransportError> {
        let mut left = AT_ONCE_BYTES;
        for partition in 0..topic.partitions() {
            let bounds = topic.bounds(partition)?;
            let known = match self.next.get(&partition) {
                Some(next) => *next,
                None => recall::begin(topic, partition)?,
            };
            // What retention has dropped meanwhile, or a topic that was made anew, is told again within ten minutes.
            let mut next = if (bounds.start..=bounds.end).contains(&known) { known } else { bounds.start };
            while next < bounds.end && left > 0 {
                let fetched = topic.fetch(partition, next, FETCH_BYTES)?;
                for message in &fetched.messages {
                    left = left.saturating_sub(message.value.len());
                    take(&message.value);
                }
                if fetched.next <= next {
                    break;
                }
                next = fetched.next;
            }
            self.next.insert(partition, next);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::publish::{self, ALLOCATIONS};
    use crate::transport::Record;
    use crate::transport::local::{Log, Options, TopicSpec};

    fn sighting(pod: &str, container: &str, device: &str, replicas: &[&str], at: i64, ended: bool) -> Vec<u8> {
        let holding = Holding {
            cluster: "c".into(),
            node: "n1".into(),
            source: "podres".into(),
            id: format!("{pod}/{container}/{device}"),
            observed_at_ms: at,
            namespace: "ml".into(),
            pod: pod.into(),
            container: container.into(),
            device: device.into(),
            replica_ids: replicas.iter().map(|id| (*id).to_owned()).collect(),
            ended_ms: ended.then_some(at),
            ..Holding::default()
        };
        publish::holding(holding).value
    }

    fn pod(name: &str) -> PodOnNode {
        ("n1".into(), "ml".into(), name.into())
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(ms)
    }

    #[test]
    fn a_kubelets_devices_are_counted_as_in_the_view() {
        let mut kubelets = Kubelets::default();
        assert_eq!(kubelets.held(at(0)), None, "nobody was heard of");
        for message in [
            sighting("p", "a", "GPU-1", &[], 0, false),
            sighting("p", "b", "GPU-1", &[], 0, false),
            sighting("p", "a", "GPU-2", &["GPU-2::0", "GPU-2::1"], 0, false),
            sighting("q", "a", "GPU-3", &[], 0, false),
            sighting("q", "a", "GPU-3", &[], 10, true),
            sighting("q", "a", "GPU-3", &[], 5, false),
            b"nonsense".to_vec(),
        ] {
            kubelets.take(&message, "c");
            kubelets.take(&message, "another");
        }
        assert_eq!(kubelets.held(at(20)).unwrap(), [(pod("p"), 3)].into());
        assert_eq!(kubelets.held(at(FORGET_AFTER_MS + 1)).unwrap(), BTreeMap::new(), "an agent that is gone says nothing of now");
    }

    #[test]
    fn what_lasts_counts_by_its_kind() {
        let mut disagreements = Disagreements::default();
        let side = |pods: &[(&str, u32)]| pods.iter().map(|(name, count)| (pod(name), *count)).collect::<BTreeMap<_, _>>();
        let mut check = |api: &[(&str, u32)], podres: &[(&str, u32)], now: i64, expected: [u64; 3]| {
            let counts = disagreements.compare(&side(api), &side(podres), at(now), 60_000);
            assert_eq!(Kind::ALL.map(|kind| counts[&kind]), expected, "at {now}");
        };
        let (api, podres) = ([("a", 1), ("n", 8), ("same", 2)], [("k", 1), ("n", 7), ("same", 2)]);
        check(&api, &podres, 0, [0, 0, 0]);
        check(&api, &podres, 59_999, [0, 0, 0]);
        check(&api, &podres, 60_000, [1, 1, 1]);
        // Another kind is another disagreement, and one that was mended begins anew.
        check(&[("k", 2), ("n", 8)], &[("k", 1), ("n", 8)], 61_000, [0, 0, 0]);
        check(&api, &podres, 62_000, [0, 0, 0]);
        check(&api, &podres, 122_000, [1, 1, 1]);
        check(&[], &[], 123_000, [0, 0, 0]);
    }

    #[test]
    fn a_log_is_read_on_from_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), &[TopicSpec { name: ALLOCATIONS, partitions: 2 }], Options::default()).unwrap();
        let topic: Arc<dyn Topic> = log.topic(ALLOCATIONS).unwrap();
        let record =
            |n: i64| Record { key: format!("c/{n}").into_bytes(), value: vec![u8::try_from(n).unwrap()], at_ms: n * 60_000 };
        let read = |tail: &mut Tail| {
            let mut got = Vec::new();
            tail.read(|value| got.push(value[0])).unwrap();
            got.sort_unstable();
            got
        };
        let tail = |topic: &Arc<dyn Topic>| {
            let topic = topic.clone();
            Tail::of(Box::new(move || Ok(topic.clone())))
        };
        let folder = dir.path().join("not there yet");
        let mut late = Tail::of(Box::new(move || {
            Log::reader(&folder, Options::default())?.topic(ALLOCATIONS).map(|topic| topic as Arc<dyn Topic>)
        }));
        assert!(late.read(|_| {}).is_err() && late.read(|_| {}).is_err());
        let (mut tail, fresh) = (tail(&topic), tail);
        assert!(read(&mut tail).is_empty());
        topic.produce(&(0..100).map(record).collect::<Vec<_>>()).unwrap();
        assert_eq!(read(&mut tail).len(), 100);
        topic.produce(&[record(100)]).unwrap();
        assert_eq!(read(&mut tail), [100]);
        let fresh = read(&mut fresh(&topic));
        assert!(fresh.contains(&100) && !fresh.contains(&50), "the last half hour: {fresh:?}");
    }
}
