//! The API server's objects say what the API facts say, read by the crate that reads a real API server's.

use std::collections::BTreeMap;

use attribution::pods::{Book, Nodes, Options, Receipt};
use schemas::{Timestamp, proto::Holding};
use serde_json::Value;
use simulator::{
    Plan, api_changes, api_facts,
    objects::{self, Kind},
};

use crate::fleet;

/// Instants at which anything changes in the API server, in order.
fn instants(plan: &Plan) -> Vec<Timestamp> {
    let changes = api_changes(plan, Timestamp::from_ms(i64::MIN), plan.window().to());
    let mut all: Vec<i64> = changes.holdings.iter().map(|h| h.observed_at_ms).collect();
    all.extend(changes.demands.iter().map(|d| d.observed_at_ms));
    all.extend(changes.nodes.iter().map(|n| n.observed_at_ms));
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(Timestamp::from_ms).collect()
}

fn by_uid(list: Vec<Value>) -> BTreeMap<String, Value> {
    list.into_iter().map(|object| (object["metadata"]["uid"].as_str().unwrap().to_owned(), object)).collect()
}

#[test]
fn a_watch_of_the_objects_tells_the_holdings_demand_and_spells_of_the_plan() {
    let plan = fleet("small");
    let mut book = Book::new(Options::default());
    let mut nodes = Nodes::new(Options::default());
    let (mut pods, mut events): (BTreeMap<String, Value>, u32) = (BTreeMap::new(), 0);
    for at in instants(&plan) {
        // The API knows whole seconds, and so does who watches here.
        let receipt = Receipt::at(Timestamp::from_ms(at.ms().div_euclid(1000) * 1000));
        let now = by_uid(objects::objects(&plan, at, Kind::Pod, None));
        for (uid, pod) in &now {
            if pods.get(uid) != Some(pod) {
                book.seen(pod.to_string().as_bytes(), receipt).unwrap();
                events += 1;
            }
        }
        for (uid, pod) in &pods {
            if !now.contains_key(uid) {
                book.deleted(pod.to_string().as_bytes(), receipt).unwrap();
            }
        }
        pods = now;
        for node in objects::objects(&plan, at, Kind::Node, None) {
            nodes.seen(node.to_string().as_bytes(), receipt).unwrap();
        }
    }
    assert!(events > 40, "{events}");
    let facts = api_facts(&plan, plan.window().to());
    let states = book.take_changes();
    let told: BTreeMap<&str, &Holding> = facts.holdings.iter().map(|holding| (&*holding.id, holding)).collect();
    let mut compared = 0;
    for holding in states.iter().flat_map(|state| &state.holdings) {
        let ours = told[&*holding.uid];
        assert_eq!(
            (Some(holding.bound), holding.started, holding.terminating_from, holding.ended, Some(holding.count)),
            (ours.bound_ms, ours.started_ms, ours.terminating_from_ms, ours.ended_ms, ours.count),
            "{holding:?}"
        );
        assert_eq!(holding.end_reason.map_or("", |reason| reason.as_str()), ours.end_reason, "{holding:?}");
        assert_eq!(
            (&*holding.team, &*holding.workload, &*holding.queue, &*holding.node),
            (&*ours.team, &*ours.workload, &*ours.queue, &*ours.node)
        );
        compared += 1;
    }
    assert_eq!(compared, told.len(), "every pod that was bound is a holding");
    let waits: BTreeMap<&str, _> = states.iter().filter_map(|state| Some((&*state.uid, state.demand.as_ref()?))).collect();
    for ours in &facts.demands {
        let theirs = waits[&*ours.pod_uid];
        assert_eq!((theirs.asked, theirs.ended, theirs.gpus), (ours.asked_ms, ours.ended_ms, ours.gpus), "{ours:?}");
        assert_eq!(theirs.outcome().unwrap_or_default(), ours.outcome);
    }
    let inventory: BTreeMap<String, _> = nodes.take_changes().into_iter().map(|node| (node.node.clone(), node)).collect();
    for ours in &facts.nodes {
        let theirs = inventory[&ours.node].message(&ours.cluster);
        assert_eq!(
            (&theirs.region, &theirs.zone, &theirs.provider, &theirs.purchase_option, theirs.capacity_gpus),
            (&ours.region, &ours.zone, &ours.provider, &ours.purchase_option, ours.capacity_gpus)
        );
        let spells = |node: &schemas::proto::Node| {
            let mut spells: Vec<(String, i64, Option<i64>)> =
                node.unavailable.iter().map(|spell| (spell.reason.clone(), spell.from_ms, spell.to_ms)).collect();
            spells.sort();
            spells
        };
        assert_eq!(spells(&theirs), spells(ours), "{}", ours.node);
    }
}

#[test]
fn a_watch_knows_nodes_that_nobody_reads() {
    let plan = fleet("mixed");
    let at = plan.window().from();
    let mut nodes = Nodes::new(Options::default());
    for node in objects::objects(&plan, at, Kind::Node, None) {
        nodes.seen(node.to_string().as_bytes(), Receipt::at(at)).unwrap();
    }
    let told: BTreeMap<String, String> = api_facts(&plan, at).nodes.into_iter().map(|node| (node.node, node.telemetry)).collect();
    let seen: BTreeMap<String, String> =
        nodes.states().iter().map(|node| (node.node.clone(), node.message("").telemetry)).collect();
    assert_eq!(seen, told);
    assert_eq!(seen.values().filter(|telemetry| *telemetry == "none").count(), 3, "two of TPUs, one of AMD's GPUs");
}

#[test]
fn a_list_holds_what_is_asked_for_of_the_cluster_that_is_asked_for() {
    let plan = fleet("demo");
    let at = plan.window().from().plus_ms(6 * schemas::HOUR_MS);
    let all = objects::list(&plan, at, Kind::ALL, None);
    assert_eq!((&all["apiVersion"], &all["kind"]), (&"v1".into(), &"List".into()));
    let kinds: Vec<&str> = all["items"].as_array().unwrap().iter().map(|item| item["kind"].as_str().unwrap()).collect();
    let namespaces: std::collections::BTreeSet<&str> = plan.spec().teams.iter().map(|team| team.namespace.as_str()).collect();
    let namespaces = namespaces.len();
    let count = |kind: &str| kinds.iter().filter(|k| **k == kind).count();
    assert_eq!((count("Node"), count("Namespace")), (plan.nodes().len(), namespaces));
    assert!(count("Pod") > 30 && kinds.windows(2).all(|two| two[0] == two[1] || two[1] != "Node"), "{kinds:?}");
    let of = |cluster: &str| objects::objects(&plan, at, Kind::Pod, Some(cluster)).len();
    assert_eq!(of("east") + of("west"), count("Pod"));
    let node = &objects::objects(&plan, at, Kind::Node, Some("west"))[0];
    assert_eq!(node["metadata"]["labels"]["topology.kubernetes.io/region"], "us-west-2");
    assert_eq!(node["status"]["allocatable"]["nvidia.com/gpu"], "8");
}
