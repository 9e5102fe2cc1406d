//! One fleet from outside: the same bytes always, physics that closes, faces that agree, a truth that sums.
#![allow(clippy::unwrap_used)]

mod backfill;
mod collectors;
mod command;
mod devices;
mod faces;
mod fidelity;
mod fleets;
mod life;
mod objects;
mod physics;
mod replay;
mod scale;
mod shapes;
mod sites;
mod swap;
mod truth;

use fleets::{fleet, spec, text, ticks};
use simulator::{Plan, Seed};

#[test]
fn no_two_pods_hold_a_device_at_one_time() {
    for seed in 0..6 {
        let name = if seed < 5 { "small" } else { "demo" };
        let plan = Plan::new(spec(name), Seed(seed)).unwrap();
        let mut spans: Vec<((usize, simulator::plan::Slot), i64, i64, &str)> = Vec::new();
        for pod in plan.pods() {
            let Some(b) = &pod.bound else { continue };
            assert_eq!(b.devices.len(), pod.gpus as usize);
            assert!(pod.created <= b.bound && b.bound < b.named && b.named < b.ended && b.ended <= b.released, "{pod:?}");
            assert!(b.started.is_none_or(|started| b.named < started && started < b.ended), "{pod:?}");
            assert!(b.terminating.is_none_or(|asked| b.named < asked && asked < b.ended), "{pod:?}");
            spans.extend(b.slots().map(|slot| ((b.node, slot), b.bound, b.released, &*pod.uid)));
        }
        spans.sort();
        for two in spans.windows(2) {
            assert!(two[0].0 != two[1].0 || two[0].2 <= two[1].1, "seed {seed}: {two:?}");
        }
        let mut uids: Vec<&str> = plan.pods().iter().map(|pod| &*pod.uid).collect();
        uids.sort_unstable();
        uids.dedup();
        assert_eq!(uids.len(), plan.pods().len(), "every pod has its own UID");
    }
}

#[test]
fn the_demo_fleet_has_every_kind_of_day() {
    let plan = fleet("demo");
    let bound: Vec<_> = plan.pods().iter().filter_map(|pod| Some((pod, pod.bound.as_ref()?))).collect();
    let count = |what: &dyn Fn(&simulator::plan::PodPlan, &simulator::plan::Binding) -> bool| {
        bound.iter().filter(|(pod, b)| what(pod, b)).count()
    };
    assert!(plan.nodes().len() >= 8 && plan.spec().gpus() >= 64 && plan.spec().teams.len() >= 4);
    assert!(count(&|pod, b| b.bound - pod.created > 60_000) > 5, "some wait");
    assert!(plan.pods().iter().any(|pod| pod.withdrawn.is_some()), "some give up");
    assert!(
        count(&|_, b| b.started.is_some_and(|started| b.ended - started < 30_000)) > 3,
        "some are shorter than a scrape interval"
    );
    assert!(count(&|_, b| b.started.is_some_and(|started| started - b.bound > 60_000)) > 5, "some pull their image for long");
    assert!(count(&|_, b| b.terminating.is_some()) > 10, "some are deleted");
    assert!(count(&|_, b| b.started.is_none()) > 0, "some never start");
    let mut names: Vec<_> = bound.iter().map(|(pod, _)| (&pod.namespace, &pod.name)).collect();
    names.sort();
    assert!(names.windows(2).filter(|two| two[0] == two[1]).count() > 5, "some names come back with another UID");
    let kinds: std::collections::BTreeSet<_> = simulator::faults(&plan, plan.window()).iter().map(|fault| fault.kind).collect();
    for kind in ["blank", "cordoned", "counter_reset", "exporter_down", "lost_scrape", "not_ready", "out_of_range", "xid"] {
        assert!(kinds.contains(kind), "{kind}: {kinds:?}");
    }
}
