//! Which pods the kubelet has listed on which devices, from when to when (DESIGN A9).
//!
//! A sighting is one container on one device: from the first listing with it to the second listing in a row without it (one
//! listing may miss a pod that is still there). Failed calls are no listings and change nothing. The whole state of a
//! sighting is published when it changes, and every live one again every ten minutes, so that a lost or repeated message does
//! no harm. A listing that misses it, or has it again after one that missed it, is such a change: a live state that was observed
//! after its last listing says that the name is not there just now, and a pod of that name bound since is another one.
//! The state survives a restart of the agent (see `agent::State`): the same holding goes on under its first sighting.

use crate::Held;
use schemas::Timestamp;
use schemas::proto::Holding;
use schemas::status::HoldingSource;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Whole states are published again after this time.
pub const SNAPSHOT_EVERY_MS: i64 = 600_000;

/// The sightings of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sightings {
    live: Vec<Sighting>,
    last_snapshot: Option<Timestamp>,
    revision: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Sighting {
    namespace: String,
    pod: String,
    container: String,
    device: String,
    replica_ids: BTreeSet<String>,
    ids: u32,
    first_seen: Timestamp,
    last_listed: Timestamp,
    missed: bool,
}

impl Sightings {
    /// Takes one good listing of the node into account. Returns the states to publish.
    pub fn listed(&mut self, cluster: &str, node: &str, held: &[Held], at: Timestamp) -> Vec<Holding> {
        let mut now: BTreeMap<[String; 4], (u32, BTreeSet<String>)> = BTreeMap::new();
        for device in held {
            for hold in &device.holds {
                let ids = device.replica_ids.get(&(hold.namespace.clone(), hold.pod.clone())).cloned().unwrap_or_default();
                let key = [&hold.namespace, &hold.pod, &hold.container, &device.device].map(String::clone);
                now.insert(key, (hold.ids, ids));
            }
        }
        let snapshot = self.last_snapshot.is_none_or(|last| at.ms() >= last.ms().saturating_add(SNAPSHOT_EVERY_MS));
        if snapshot {
            self.last_snapshot = Some(at);
        }
        let mut changed: Vec<(Sighting, Option<Timestamp>)> = Vec::new();
        let mut kept = Vec::with_capacity(self.live.len());
        for mut sighting in self.live.drain(..) {
            let key = [&sighting.namespace, &sighting.pod, &sighting.container, &sighting.device].map(String::clone);
            match now.remove(&key) {
                Some((ids, replica_ids)) => {
                    let differs = ids != sighting.ids || replica_ids != sighting.replica_ids || sighting.missed;
                    (sighting.ids, sighting.replica_ids, sighting.missed) = (ids, replica_ids, false);
                    sighting.last_listed = at;
                    if differs || snapshot {
                        changed.push((sighting.clone(), None));
                    }
                    kept.push(sighting);
                }
                None if sighting.missed => changed.push((sighting, Some(at))),
                None => {
                    sighting.missed = true;
                    changed.push((sighting.clone(), None));
                    kept.push(sighting);
                }
            }
        }
        for ([namespace, pod, container, device], (ids, replica_ids)) in now {
            let sighting =
                Sighting { namespace, pod, container, device, replica_ids, ids, first_seen: at, last_listed: at, missed: false };
            changed.push((sighting.clone(), None));
            kept.push(sighting);
        }
        self.live = kept;
        changed.into_iter().map(|(sighting, ended)| self.state(cluster, node, sighting, ended, at)).collect()
    }

    /// The sightings of one node as its published states tell them, in any order, repeats allowed: for an agent that has lost
    /// its state. Those that had not ended go on, and end when they are not listed; forgotten, they would never end.
    pub fn recall(states: impl IntoIterator<Item = Holding>) -> Self {
        let mut latest: BTreeMap<String, Holding> = BTreeMap::new();
        for state in states {
            let order = |h: &Holding| (h.observed_at_ms, h.revision);
            if latest.get(&state.id).is_none_or(|known| order(known) < order(&state)) {
                latest.insert(state.id.clone(), state);
            }
        }
        let revision = latest.values().map(|h| h.revision).max().unwrap_or_default();
        let sighting = |h: Holding| {
            let first_seen = Timestamp::from_ms(h.known_from_ms?);
            let last_listed = h.last_listed_ms.map_or(first_seen, Timestamp::from_ms);
            Some(Sighting {
                namespace: h.namespace,
                pod: h.pod,
                container: h.container,
                device: h.device,
                replica_ids: h.replica_ids.into_iter().collect(),
                ids: h.ids.unwrap_or(1),
                first_seen,
                last_listed,
                missed: h.last_listed_ms.is_some_and(|last| last < h.observed_at_ms),
            })
        };
        let live = latest.into_values().filter(|h| h.ended_ms.is_none()).filter_map(sighting).collect();
        Sightings { live, last_snapshot: None, revision }
    }

    /// How many containers are on devices now.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether nobody is.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    fn state(&mut self, cluster: &str, node: &str, s: Sighting, ended: Option<Timestamp>, at: Timestamp) -> Holding {
        self.revision += 1;
        Holding {
            cluster: cluster.to_owned(),
            node: node.to_owned(),
            source: HoldingSource::PodResources.as_str().to_owned(),
            id: format!("{}/{}/{}/{}@{}", s.namespace, s.pod, s.container, s.device, s.first_seen),
            observed_at_ms: at.ms(),
            revision: self.revision,
            namespace: s.namespace,
            pod: s.pod,
            container: s.container,
            device: s.device,
            ids: Some(s.ids),
            replica_ids: s.replica_ids.into_iter().collect(),
            known_from_ms: Some(s.first_seen.ms()),
            last_listed_ms: Some(s.last_listed.ms()),
            ended_ms: ended.map(Timestamp::ms),
            end_reason: ended.map_or(String::new(), |_| "unlisted".to_owned()),
            ..Holding::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::ContainerHold;

    fn held(device: &str, pods: &[(&str, u32)]) -> Held {
        let hold = |(pod, ids): &(&str, u32)| ContainerHold {
            namespace: "n".into(),
            pod: (*pod).into(),
            container: "c".into(),
            share: (1, 1),
            ids: *ids,
        };
        let replica =
            |(pod, ids): &(&str, u32)| (("n".into(), (*pod).into()), (0..*ids).map(|i| format!("{device}::{i}")).collect());
        Held {
            device: device.into(),
            gpu: device.into(),
            gi: None,
            holds: pods.iter().map(hold).collect(),
            replica_ids: pods.iter().map(replica).collect(),
            conflict: false,
            unread: false,
        }
    }

    /// `at: pod xids first_seen..end` of what is published for listings 30 s apart; `?` where that listing missed it.
    fn run(listings: &[&[(&str, u32)]]) -> Vec<String> {
        let mut sightings = Sightings::default();
        let mut out = Vec::new();
        for (n, pods) in listings.iter().enumerate() {
            let at = Timestamp::from_ms(n as i64 * 30_000);
            for state in sightings.listed("cl", "no", &[held("GPU-a", pods)], at) {
                let missed = state.last_listed_ms < Some(state.observed_at_ms);
                let end = state.ended_ms.map_or(if missed { "?".into() } else { String::new() }, |ms| (ms / 1000).to_string());
                let ids = state.ids.unwrap_or_default();
                out.push(format!("{}: {} x{ids} {}..{end}", n * 30, state.pod, state.known_from_ms.unwrap_or(-1) / 1000));
            }
        }
        out
    }

    #[test]
    fn a_sighting_lasts_from_its_first_listing_to_the_second_without_it() {
        let p: &[(&str, u32)] = &[("p", 1)];
        assert_eq!(run(&[&[], p, p, &[], &[], &[]]), ["30: p x1 30..", "90: p x1 30..?", "120: p x1 30..120"]);
        let flaps = ["0: p x1 0..", "30: p x1 0..?", "60: p x1 0..", "90: p x1 0..?", "120: p x1 0.."];
        assert_eq!(run(&[p, &[], p, &[], p]), flaps, "one listing without it ends nothing, and is told");
        assert_eq!(run(&[p, &[], &[], p]), ["0: p x1 0..", "30: p x1 0..?", "60: p x1 0..60", "90: p x1 90.."]);
    }

    #[test]
    fn a_change_of_ids_is_the_whole_state_again() {
        assert_eq!(run(&[&[("p", 1)], &[("p", 2), ("q", 1)]]), ["0: p x1 0..", "30: p x2 0..", "30: q x1 30.."]);
    }

    #[test]
    fn live_states_are_published_again_every_ten_minutes() {
        let p: &[(&str, u32)] = &[("p", 1)];
        let quiet = vec![p; 41];
        assert_eq!(run(&quiet), ["0: p x1 0..", "600: p x1 0..", "1200: p x1 0.."]);
    }

    #[test]
    fn one_holding_keeps_its_name_and_revisions_grow() {
        let mut sightings = Sightings::default();
        let at = Timestamp::from_ms;
        let first = sightings.listed("cl", "no", &[held("GPU-a", &[("p", 1)])], at(0)).remove(0);
        let mut again: Sightings =
            serde_json::from_str(&serde_json::to_string(&sightings).unwrap_or_default()).unwrap_or_default();
        assert_eq!((again.len(), again.is_empty()), (1, false));
        let missed = again.listed("cl", "no", &[], at(30_000)).remove(0);
        assert_eq!((missed.last_listed_ms, missed.ended_ms), (Some(0), None));
        let mut recalled = Sightings::recall([missed.clone(), first.clone()]);
        assert_eq!(recalled.listed("cl", "no", &[], at(60_000)).remove(0).ended_ms, Some(60_000), "the second in a row");
        let end = again.listed("cl", "no", &[], at(60_000)).remove(0);
        assert_eq!((&first.id, first.source.as_str(), first.ended_ms), (&end.id, "podres", None));
        assert_eq!((end.ended_ms, end.end_reason.as_str()), (Some(60_000), "unlisted"));
        assert!(end.revision > first.revision);
        assert!(again.is_empty());
    }
}
