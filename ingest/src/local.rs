//! The node's pods by its own kubelet (Pods API): who holds how many devices and since when, as `allocations` tells it of a whole
//! cluster, for nodes whose API server is not asked.
//!
//! ```text
//! ListPods ──> attribution::pods::Book ──what changed; everything, every ten minutes──> holdings by number
//!    └─ UIDs by name ──> holders of samples
//! ```
//!
//! The kubelet hands out the API server's objects, so holdings go under the same source and the same ids. What it has not is left
//! out: labels of namespaces, owners above a pod's own controller, and how many devices a claim has. Pure.

use attribution::pods::{Book, Options, Receipt, asks_for_devices};
use attribution::sightings::SNAPSHOT_EVERY_MS;
use schemas::Timestamp;
use schemas::proto::Holding;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Which kubelet is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPods {
    /// Its node.
    pub node: String,
    /// Its socket.
    pub socket: PathBuf,
}

/// What one node's kubelet has told of its pods.
pub struct Local {
    options: Options,
    book: Book,
    /// UIDs of the pods of the last list, by namespace and name.
    uids: BTreeMap<(String, String), String>,
    /// Holdings that have not ended, as last told: they survive the process, so that they end although nobody watched.
    live: BTreeMap<String, Holding>,
    last_snapshot: Option<Timestamp>,
}

/// What came of one list.
#[derive(Debug, Default)]
pub struct Told {
    /// Whole states to publish.
    pub holdings: Vec<Holding>,
    /// Pods that could not be read.
    pub refused: u64,
}

impl Local {
    /// Goes on from the holdings that were live before.
    pub fn resume(options: Options, live: impl IntoIterator<Item = Holding>) -> Self {
        let mut book = Book::new(options.clone());
        let live: BTreeMap<String, Holding> = live.into_iter().map(|holding| (holding.id.clone(), holding)).collect();
        live.values().for_each(|holding| book.resume(holding));
        Local { options, book, uids: BTreeMap::new(), live, last_snapshot: None }
    }

    /// Takes a full list of the node's pods, had at `at`; the API server's clock is `api_ahead_ms` ahead of the one that says so.
    pub fn listed(&mut self, cluster: &str, pods: &[Vec<u8>], at: Timestamp, api_ahead_ms: i64) -> Told {
        let receipt = Receipt { at, api_ahead_ms };
        self.uids = pods.iter().filter_map(|json| name_of(json)).collect();
        // Of pods that ask for no device not even the name is kept in the book.
        let mine = pods.iter().map(Vec::as_slice).filter(|json| asks_for_devices(json, &self.options));
        let refused = self.book.relist(mine, None, receipt).len() as u64;
        let snapshot = self.last_snapshot.is_none_or(|last| at.ms() - last.ms() >= SNAPSHOT_EVERY_MS);
        let changed = self.book.take_changes();
        let states = if snapshot { self.book.states() } else { changed };
        if snapshot {
            self.last_snapshot = Some(at);
            self.book.forget(receipt.api().plus_ms(-SNAPSHOT_EVERY_MS));
        }
        let mut holdings = Vec::new();
        for state in states {
            for holding in &state.holdings {
                // What goes on was true at this list.
                let observed = if holding.ended.is_none() { receipt.api().max(state.observed_at) } else { state.observed_at };
                let message = holding.message(cluster, observed, state.revision);
                match message.ended_ms {
                    Some(_) => drop(self.live.remove(&message.id)),
                    None => drop(self.live.insert(message.id.clone(), message.clone())),
                }
                holdings.push(message);
            }
        }
        Told { holdings, refused }
    }

    /// UID of the pod of that name, by the last list.
    pub fn uid(&self, namespace: &str, pod: &str) -> Option<&str> {
        self.uids.get(&(namespace.to_owned(), pod.to_owned())).map(String::as_str)
    }

    /// Holdings that have not ended.
    pub fn live(&self) -> impl Iterator<Item = &Holding> {
        self.live.values()
    }
}

fn name_of(json: &[u8]) -> Option<((String, String), String)> {
    #[derive(Deserialize)]
    struct Pod {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        name: String,
        namespace: String,
        uid: String,
    }
    let Metadata { name, namespace, uid } = serde_json::from_slice::<Pod>(json).ok()?.metadata;
    Some(((namespace, name), uid)).filter(|(_, uid)| !uid.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pod(name: &str, uid: &str, gpus: &str) -> Vec<u8> {
        let limits = if gpus.is_empty() { String::new() } else { format!(r#""nvidia.com/gpu":"{gpus}""#) };
        format!(
            r#"{{"metadata":{{"uid":"{uid}","name":"{name}","namespace":"ml","labels":{{"team":"a"}}}},
            "spec":{{"nodeName":"n1","containers":[{{"name":"c","resources":{{"limits":{{{limits}}}}}}}]}},
            "status":{{"conditions":[{{"type":"PodScheduled","status":"True","lastTransitionTime":"2026-03-02T10:00:00Z"}}]}}}}"#
        )
        .into_bytes()
    }

    /// 2026-03-02T10:00:00Z.
    const T: i64 = 1_772_445_600_000;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_ms(T + second * 1000)
    }

    #[test]
    fn holdings_end_although_nobody_watched() {
        let pods = [pod("p", "u1", "2"), pod("cpu", "u2", ""), pod("odd", "u3", "many")];
        let mut local = Local::resume(Options::default(), []);
        let told = local.listed("reef", &pods, at(10), 0);
        let [held] = told.holdings.as_slice() else { panic!("{told:?}") };
        assert_eq!((held.source.as_str(), held.id.as_str(), held.team.as_str()), ("api", "u1", "a"));
        assert_eq!((held.bound_ms, held.count, told.refused), (Some(T), Some(2), 1));
        assert_eq!((local.uid("ml", "cpu"), local.uid("ml", "gone")), (Some("u2"), None));
        assert!(local.listed("reef", &pods, at(20), 0).holdings.is_empty(), "nothing new");
        let again = local.listed("reef", &pods, at(610), 0).holdings;
        assert_eq!(again.len(), 1, "everything is told again after ten minutes");
        assert_eq!(again[0].observed_at_ms, at(610).ms());

        let live: Vec<Holding> = local.live().cloned().collect();
        let mut next = Local::resume(Options::default(), live);
        let told = next.listed("reef", &[], at(700), 2_000).holdings;
        assert_eq!((told[0].id.as_str(), told[0].ended_ms), ("u1", Some(at(702).ms())), "on the API server's clock");
        assert_eq!(told[0].flags, ["end_inferred"]);
        assert_eq!(next.live().count(), 0);
    }
}
