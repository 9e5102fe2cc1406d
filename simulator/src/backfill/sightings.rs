//! Holdings by device as an agent publishes them that asks the kubelet at every round: the latest state of each.
//!
//! The rule is `attribution::sightings`; here it is only asked at the rounds at which it can say something.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use attribution::sightings::{SNAPSHOT_EVERY_MS, Sightings};
use schemas::{Timestamp, Window, proto::Holding};

use super::{
    Dating, at,
    observe::{Listings, silent_since},
    ticks,
};
use crate::plan::Plan;

/// The latest state of one sighting, small: a month of a large fleet has a million.
#[derive(Clone, Debug)]
pub(super) struct Sighted {
    node: u32,
    ids: u32,
    namespace: Arc<str>,
    pod: Arc<str>,
    container: Arc<str>,
    device: Arc<str>,
    replica_ids: Box<[String]>,
    known_from: i64,
    last_listed: i64,
    ended: Option<i64>,
    observed: i64,
    revision: u64,
}

impl Sighted {
    /// Whether any of it lies in `[from, to)`.
    pub fn touches(&self, from: i64, to: i64) -> bool {
        self.known_from < to && self.ended.is_none_or(|ended| from < ended)
    }

    /// The message that carries it.
    pub fn message(&self, plan: &Plan) -> Holding {
        let node = &plan.nodes()[self.node as usize];
        let known_from = Timestamp::from_ms(self.known_from);
        Holding {
            cluster: node.cluster.to_string(),
            node: node.name.to_string(),
            source: "podres".to_owned(),
            id: format!("{}/{}/{}/{}@{known_from}", self.namespace, self.pod, self.container, self.device),
            observed_at_ms: self.observed,
            revision: self.revision,
            namespace: self.namespace.to_string(),
            pod: self.pod.to_string(),
            container: self.container.to_string(),
            device: self.device.to_string(),
            ids: Some(self.ids),
            replica_ids: self.replica_ids.to_vec(),
            known_from_ms: Some(self.known_from),
            last_listed_ms: Some(self.last_listed),
            ended_ms: self.ended,
            end_reason: self.ended.map_or(String::new(), |_| "unlisted".to_owned()),
            ..Holding::default()
        }
    }
}

/// Texts that stand in many sightings, once.
#[derive(Default)]
struct Texts(HashSet<Arc<str>>);

impl Texts {
    fn of(&mut self, text: &str) -> Arc<str> {
        match self.0.get(text) {
            Some(known) => known.clone(),
            None => {
                let text: Arc<str> = text.into();
                self.0.insert(text.clone());
                text
            }
        }
    }
}

/// The latest state of every sighting of node `node`, by an agent that runs from the fleet's start to `to`, in the order in which
/// they ended.
pub(super) fn of_node(plan: &Plan, node: usize, to: Timestamp) -> Vec<Sighted> {
    let (mut texts, mut done, mut live) = (Texts::default(), Vec::new(), HashMap::new());
    each_state(plan, node, to, |state| {
        let sighted = Sighted {
            node: node as u32,
            ids: state.ids.unwrap_or(1),
            namespace: texts.of(&state.namespace),
            pod: texts.of(&state.pod),
            container: texts.of(&state.container),
            device: texts.of(&state.device),
            replica_ids: state.replica_ids.into_boxed_slice(),
            known_from: state.known_from_ms.unwrap_or_default(),
            last_listed: state.last_listed_ms.unwrap_or_default(),
            ended: state.ended_ms,
            observed: state.observed_at_ms,
            revision: state.revision,
        };
        if sighted.ended.is_some() {
            live.remove(&state.id);
            done.push(sighted);
        } else {
            live.insert(state.id, sighted);
        }
    });
    let mut live: Vec<Sighted> = live.into_values().collect();
    live.sort_by(|a, b| (a.known_from, &a.device, &a.pod).cmp(&(b.known_from, &b.device, &b.pod)));
    done.append(&mut live);
    done
}

/// Every state that the agent of node `node` publishes up to `to`, in order.
pub(super) fn each_state(plan: &Plan, node: usize, to: Timestamp, mut each: impl FnMut(Holding)) {
    let Ok(window) = Window::new(plan.spec().start, to) else { return };
    let rounds = ticks(plan, window);
    let mut walk = Walk::new(plan, node);
    while let Some(tick) = walk.next().filter(|tick| *tick < rounds.end) {
        walk.take(tick).into_iter().for_each(&mut each);
    }
}

/// An agent's listings of one node, round by round, without those that change nothing.
pub(super) struct Walk<'a> {
    plan: &'a Plan,
    node: usize,
    dating: Dating,
    listings: Listings<'a>,
    sightings: Sightings,
    /// Rounds at which a listing differs from the one before, and those next to them.
    due: BTreeSet<i64>,
    changes: usize,
    snapshot: i64,
}

impl<'a> Walk<'a> {
    pub fn new(plan: &'a Plan, node: usize) -> Self {
        let listings = Listings::new(plan, node, i64::MIN..i64::MAX);
        let dating = Dating::of(plan, &plan.nodes()[node]);
        let (sightings, due) = (Sightings::default(), BTreeSet::new());
        Self { plan, node, dating, listings, sightings, due, changes: 0, snapshot: dating.first }
    }

    /// The next round that matters.
    pub fn next(&mut self) -> Option<i64> {
        let interval = self.plan.spec().scrape_interval.ms();
        // A sighting remembers when it was listed last, so the round before a change counts, and that after it, when it is missed
        // for the second time.
        while let Some(change) = self.listings.changes.get(self.changes) {
            let tick = (change - self.plan.start_ms() + interval - 1).div_euclid(interval);
            if self.due.first().is_some_and(|first| *first < tick - 1) {
                break;
            }
            self.due.extend((tick - 1..=tick + 1).filter(|tick| *tick >= self.dating.first));
            self.changes += 1;
        }
        Some(self.due.first().map_or(self.snapshot, |first| self.snapshot.min(*first)))
    }

    /// What the agent publishes at round `tick`, which [`Walk::next`] has named.
    pub fn take(&mut self, tick: i64) -> Vec<Holding> {
        let interval = self.plan.spec().scrape_interval.ms();
        self.due.remove(&tick);
        let at = at(self.plan, tick);
        let node = &self.plan.nodes()[self.node];
        if silent_since(node, at).is_some() {
            // A failed call is no listing and changes nothing; what is due is due at the next round.
            self.snapshot = self.snapshot.max(tick + 1);
            return Vec::new();
        }
        if tick >= self.snapshot {
            self.snapshot = tick + (SNAPSHOT_EVERY_MS + interval - 1) / interval;
        }
        let listing = self.listings.at(at);
        self.sightings.listed(&node.cluster, &node.name, &listing.held, self.dating.listed(tick))
    }
}
