//! The book of nodes.

use attribution::pods::{NodeState, Nodes, Options};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::pods::{T0, merge, receipt, rfc};

fn node(uid: &str, more: Value) -> Value {
    let mut node = json!({
        "metadata": {"name": "dune-1", "uid": uid, "creationTimestamp": rfc(0), "labels": {
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "topology.kubernetes.io/region": "eu-1",
            "topology.kubernetes.io/zone": "eu-1a", "karpenter.sh/capacity-type": "spot"}},
        "spec": {"providerID": "aws:///eu-1a/i-1"},
        "status": {"capacity": {"nvidia.com/gpu": "8", "cpu": "96"}, "allocatable": {"nvidia.com/gpu": "8", "cpu": "95500m"}},
    });
    merge(&mut node, more);
    node
}

fn ready(status: &str, since: i64) -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": rfc(since)}]}})
}

fn seen(nodes: &mut Nodes, ms: i64, node: &Value) {
    nodes.seen(node.to_string().as_bytes(), receipt(ms)).unwrap();
}

fn spells(nodes: &Nodes) -> Vec<String> {
    let states = nodes.states();
    let text = |s: &attribution::pods::nodes::Spell| {
        format!("{} {}..{}", s.reason, s.from - T0, s.to.map_or(String::new(), |to| (to - T0).to_string()))
    };
    states[0].unavailable.iter().map(text).collect()
}

#[test]
fn labels_capacity_and_spells() {
    let mut nodes = Nodes::new(Options::default());
    seen(&mut nodes, 10_000, &node("a", ready("True", 5_000)));
    let state: NodeState = nodes.take_changes().remove(0);
    let message = state.message("reef");
    assert_eq!((message.present_from_ms, message.capacity_gpus, message.allocatable_gpus), (T0, Some(8), Some(8)));
    assert_eq!((&*message.product, &*message.region, &*message.zone), ("NVIDIA-H100-80GB-HBM3", "eu-1", "eu-1a"));
    assert_eq!((&*message.provider, &*message.purchase_option), ("aws", "spot"));
    assert!(message.unavailable.is_empty());

    seen(&mut nodes, 62_300, &node("a", ready("Unknown", 62_000)));
    seen(&mut nodes, 90_000, &node("a", ready("False", 62_000)));
    let mut cordoned = node("a", ready("True", 100_000));
    merge(&mut cordoned, json!({"spec": {"unschedulable": true}}));
    seen(&mut nodes, 120_400, &cordoned);
    assert_eq!(spells(&nodes), ["not_ready 62000..100000", "cordoned 120400.."]);
    // The same again changes nothing, and is not told again.
    nodes.take_changes();
    seen(&mut nodes, 130_000, &cordoned);
    assert!(nodes.take_changes().is_empty());
    // One GPU short: both numbers are told, no device is guessed, the node stays available.
    seen(&mut nodes, 140_000, &node("a", json!({"status": {"allocatable": {"nvidia.com/gpu": "7"}}})));
    assert_eq!(spells(&nodes), ["not_ready 62000..100000", "cordoned 120400..140000"]);
    assert_eq!(nodes.states()[0].labels.allocatable_gpus, Some(7));
    seen(&mut nodes, 150_000, &node("a", json!({"status": {"allocatable": {"nvidia.com/gpu": "0"}}})));
    assert_eq!(spells(&nodes)[2], "unhealthy 150000..");
    // A shared device is there once for each replica.
    let shared = json!({"metadata": {"labels": {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.product": "L4-SHARED"}},
        "status": {"capacity": {"nvidia.com/gpu": "32"}, "allocatable": {"nvidia.com/gpu": "32"}}});
    seen(&mut nodes, 160_000, &node("a", shared));
    let labels = &nodes.states()[0].labels;
    assert_eq!((labels.capacity_gpus, labels.replicas, &*labels.product), (Some(8), Some(4), "L4"));
}

#[test]
fn accelerators_that_no_dcgm_reads_count_and_are_said_to_have_no_telemetry() {
    let told = |labels: Value, capacity: Value| {
        let mut nodes = Nodes::new(Options::default());
        let node = json!({"metadata": {"name": "a", "labels": labels},
            "status": {"capacity": capacity.clone(), "allocatable": capacity}});
        seen(&mut nodes, 10_000, &node);
        let message = nodes.states()[0].message("reef");
        (message.capacity_gpus, message.telemetry, message.product)
    };
    let none = || "none".to_owned();
    let tpu = json!({"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"});
    assert_eq!(told(tpu, json!({"google.com/tpu": "8"})), (Some(8), none(), "tpu-v5-lite-podslice".into()));
    let amd = json!({"amd.com/gpu.product-name": "AMD-Instinct-MI300X"});
    assert_eq!(told(amd, json!({"amd.com/gpu": "8", "nvidia.com/gpu": "0"})), (Some(8), none(), "AMD-Instinct-MI300X".into()));
    let both = json!({"amd.com/gpu": "1", "nvidia.com/gpu": "4"});
    assert_eq!(told(json!({}), both), (Some(5), String::new(), String::new()), "a node that some DCGM reads");
    assert_eq!(told(json!({}), json!({"nvidia.com/mig-1g.10gb": "7", "google.com/tpu": "0"})).1, "");
    assert_eq!(told(json!({}), json!({"cpu": "8"})), (None, String::new(), String::new()));
}

#[test]
fn a_node_that_went_and_came_back_was_lost_in_between() {
    let mut nodes = Nodes::new(Options::default());
    seen(&mut nodes, 1_000, &node("a", json!({})));
    nodes.deleted(node("a", json!({})).to_string().as_bytes(), receipt(50_000)).unwrap();
    assert_eq!(nodes.states()[0].present_to, Some(T0 + 50_000));
    seen(&mut nodes, 51_000, &node("a", json!({})));
    assert_eq!(nodes.states()[0].present_to, Some(T0 + 50_000), "a stale event");
    let again = node("b", json!({"metadata": {"creationTimestamp": rfc(80_000)}}));
    seen(&mut nodes, 81_000, &again);
    assert_eq!((nodes.states()[0].present_to, spells(&nodes)), (None, vec!["lost 50000..80000".into()]));
    // A watcher that starts anew has the same.
    let mut resumed = Nodes::new(Options::default());
    nodes.take_changes().iter().for_each(|state| resumed.resume(&state.message("reef")));
    assert_eq!(spells(&resumed), spells(&nodes));
    assert!(resumed.relist([], None, receipt(99_000)).is_empty());
    assert_eq!(resumed.states()[0].present_to, Some(T0 + 99_000));
}

#[test]
fn what_cannot_be_read_is_named_and_kept_out() {
    let mut nodes = Nodes::new(Options::default());
    seen(&mut nodes, 0, &node("a", json!({})));
    let bad = node("a", json!({"status": {"capacity": {"nvidia.com/gpu": "7500m"}}})).to_string();
    let error = nodes.seen(bad.as_bytes(), receipt(5)).unwrap_err();
    assert!(
        error.to_string().starts_with("node dune-1 is refused: status.capacity[nvidia.com/gpu]: `7500m` is not whole"),
        "{error}"
    );
    assert_eq!(nodes.relist([bad.as_bytes()], None, receipt(9)).len(), 1);
    assert_eq!((nodes.counts().refused, nodes.states()[0].present_to), (2, None));
    assert!(nodes.deleted(bad.as_bytes(), receipt(10)).is_err());
    assert_eq!(nodes.states()[0].present_to, Some(T0 + 10));
}

proptest! {
    #[test]
    fn any_order_and_any_repetition_give_the_same_nodes(
        (events, shuffled) in proptest::collection::vec((0_i64..60, 0_u8..7, 0_u8..2, any::<bool>(), proptest::option::of(0_i64..60)), 0..12)
            .prop_flat_map(|events| {
                let mut taken = std::collections::BTreeSet::new();
                let events: Vec<_> = events.into_iter().filter(|e| taken.insert(e.0)).collect();
                let twice: Vec<_> = events.iter().chain(&events).cloned().collect();
                (Just(events), Just(twice).prop_shuffle())
            }),
    ) {
        let feed = |nodes: &mut Nodes, (at, kind, uid, cordon, since): &(i64, u8, u8, bool, Option<i64>)| {
            let mut one = node(["a", "b"][usize::from(*uid)], json!({"spec": {"unschedulable": cordon}}));
            if let Some(since) = since {
                merge(&mut one, ready(if *cordon { "True" } else { "False" }, since * 1000));
            }
            let (one, receipt) = (one.to_string(), receipt(at * 1000 + 500));
            match kind {
                0 => nodes.deleted(one.as_bytes(), receipt).unwrap(),
                1 => drop(nodes.relist([], None, receipt)),
                2 => drop(nodes.relist([one.as_bytes()], None, receipt)),
                _ => nodes.seen(one.as_bytes(), receipt).unwrap(),
            }
        };
        let states = |nodes: &Nodes| nodes.states().into_iter().map(|s| NodeState { revision: 0, ..s }).collect::<Vec<_>>();
        let mut sorted = events.clone();
        sorted.sort();
        let (mut a, mut b) = (Nodes::new(Options::default()), Nodes::new(Options::default()));
        sorted.iter().for_each(|event| feed(&mut a, event));
        shuffled.iter().for_each(|event| feed(&mut b, event));
        prop_assert_eq!(states(&a), states(&b));
        for state in states(&a) {
            let end = state.present_to.unwrap_or(i64::MAX);
            prop_assert!(state.present_from <= end);
            for spell in state.unavailable {
                prop_assert!(state.present_from <= spell.from && spell.to.is_none_or(|to| spell.from < to && to <= end));
            }
        }
    }
}
