//! What befalls pods: gangs, priorities, XIDs, nodes that die or are taken back; work that is lost; labels that lie.

use std::collections::{BTreeMap, BTreeSet};

use schemas::status::RowKind;
use simulator::{
    FleetSpec, Plan, Seed, api_facts, faults,
    plan::{Binding, PodPlan},
    shape::Shape,
    spec::NoPage,
    state, truth_holdings, truth_rows, truth_waste,
};

use crate::ticks;

const FLEET: &str = r#"
name: rough
start: 2026-03-02T00:00:00Z
hours: 48
time_zone: America/New_York
clusters:
  - name: lab
    node_pools:
      - { name: h, count: 6, product: NVIDIA H100 80GB HBM3, gpus_per_node: 8, region: r, zone: z, provider: p,
          purchase_option: reserved }
      - { name: s, count: 3, product: NVIDIA A100-SXM4-80GB, gpus_per_node: 8, region: r, zone: z, provider: p,
          purchase_option: spot }
teams:
  - { name: big, namespace: big, weight: 4, priority: 10, mix: { training: 1 }, gangs: { share: 0.3, nodes: 2 },
      products: [NVIDIA H100 80GB HBM3] }
  - { name: low, namespace: low, weight: 4, mix: { training: 5, batch: 4, notebook: 1 }, arrivals: daily }
  - { name: bad, namespace: bad, weight: 0.3, mix: { crash_loop: 1 } }
arrivals: { load: 1.1 }
faults:
  xid: { per_gpu_day: 2 }
  node_death: { per_node_day: 0.4, lasts: [20m, 90m] }
  spot_reclaim: { per_node_day: 1, lasts: [30m, 3h] }
  clock_skew: { share: 0.5, within: [800ms, 5s] }
  stale_labels: { share: 0.2, lasts: [30s, 3m] }
"#;

fn rough() -> Plan {
    Plan::new(FleetSpec::parse(FLEET).unwrap(), Seed(3)).unwrap()
}

fn bound(plan: &Plan) -> Vec<(&PodPlan, &Binding)> {
    plan.pods().iter().filter_map(|pod| Some((pod, pod.bound.as_ref()?))).collect()
}

#[test]
fn lives_keep_their_order_and_devices_their_one_holder() {
    for seed in 0..4 {
        let plan = Plan::new(FleetSpec::parse(FLEET).unwrap(), Seed(seed)).unwrap();
        let mut spans = Vec::new();
        for (pod, b) in bound(&plan) {
            assert!(pod.created <= b.bound && b.bound < b.named && b.named < b.ended && b.ended <= b.released, "{pod:?}");
            let over = b.stopped.or(b.terminating).unwrap_or(b.ended);
            assert!(b.started.is_none_or(|started| b.named < started && started < over), "{pod:?}");
            assert!(b.terminating.is_none_or(|asked| b.named < asked && asked < b.ended), "{pod:?}");
            assert!(b.stopped.is_none_or(|stopped| stopped < b.ended && b.why == Some("node_lost")), "{pod:?}");
            spans.extend(b.devices.iter().map(|gpu| ((b.node, *gpu), b.bound, b.released)));
        }
        spans.sort();
        assert!(spans.windows(2).all(|two| two[0].0 != two[1].0 || two[0].2 <= two[1].1), "seed {seed}");
        let uids: BTreeSet<&str> = plan.pods().iter().map(|pod| &*pod.uid).collect();
        assert_eq!(uids.len(), plan.pods().len(), "every pod has its own UID");
        let rows = truth_rows(&plan, plan.window()).unwrap();
        assert_eq!(rows.iter().map(|row| row.ms).sum::<i64>(), 72 * plan.window().len_ms(), "seed {seed}");
    }
}

#[test]
fn gangs_have_all_their_nodes_or_none_and_go_together() {
    let plan = rough();
    let mut gangs: BTreeMap<(&str, i64), Vec<&PodPlan>> = BTreeMap::new();
    for pod in plan.pods().iter().filter(|pod| pod.gang > 1) {
        gangs.entry((&*pod.workload, pod.created)).or_default().push(pod);
    }
    let mut placed = 0;
    for pods in gangs.values() {
        assert_eq!((pods.len(), pods[0].gang, pods[0].gpus), (2, 2, 8));
        let nodes: BTreeSet<usize> = pods.iter().filter_map(|pod| Some(pod.bound.as_ref()?.node)).collect();
        assert!(matches!(nodes.len(), 0 | 2), "each on a node of its own, or none: {pods:?}");
        if let (Some(a), Some(b)) = (&pods[0].bound, &pods[1].bound) {
            assert_eq!((a.started, a.why, a.stopped), (b.started, b.why, b.stopped));
            assert!((a.ended - b.ended).abs() < 5_000);
            placed += 1;
        }
    }
    assert!(placed > 3, "{placed} of {}", gangs.len());
}

#[test]
fn whatever_ends_a_pod_early_is_told_and_its_job_comes_back() {
    let plan = rough();
    let pods = bound(&plan);
    let mut why: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, b) in &pods {
        *why.entry(b.why.unwrap_or("own")).or_default() += 1;
    }
    for cause in ["own", "xid", "preempted", "spot_reclaimed", "node_lost", "drained"] {
        assert!(why.get(cause).is_some_and(|count| *count > 0), "{cause}: {why:?}");
    }
    let end = plan.window().to().ms() - 60_000;
    for (pod, b) in pods.iter().filter(|(_, b)| b.why.is_some() && b.ended < end) {
        let again = plan.pods().iter().any(|other| other.name == pod.name && other.created > b.ended && other.uid != pod.uid);
        assert!(again, "{pod:?}");
    }
    let priority = |pod: &PodPlan| if &*pod.team == "big" { 10 } else { 0 };
    assert!(pods.iter().filter(|(_, b)| b.why == Some("preempted")).all(|(pod, _)| priority(pod) == 0));
    let told = truth_holdings(&plan, plan.window());
    assert_eq!(told.iter().filter(|holding| holding.why == Some("xid")).count(), why["xid"]);
}

#[test]
fn an_xid_fails_the_pod_that_it_hits_within_seconds() {
    let plan = rough();
    let listed = faults(&plan, plan.window());
    let xids: Vec<_> = listed.iter().filter(|fault| fault.kind == "xid").collect();
    for (pod, b) in bound(&plan).into_iter().filter(|(_, b)| b.why == Some("xid")) {
        let ids: BTreeSet<&str> = b.devices.iter().map(|gpu| &*plan.nodes()[b.node].devices[*gpu].id).collect();
        let on_node = |xid: &&&simulator::Fault| pod.gang > 1 || xid.device.as_deref().is_some_and(|id| ids.contains(id));
        let near = xids.iter().filter(on_node).any(|xid| (0..10_000).contains(&(b.ended - xid.from.ms())));
        assert!(near, "{pod:?}");
    }
    let off = listed.iter().find(|fault| fault.kind == "off_the_bus").expect("a board falls off the bus");
    let device = plan.devices().find(|device| plan.device(*device).id == *off.device.as_ref().unwrap()).unwrap();
    assert!(state(&plan, device, off.from.plus_ms(-1)).is_some() && state(&plan, device, off.from).is_none());
    let back = state(&plan, device, off.to).unwrap();
    assert_eq!((back.holder, back.xid), (None, None));
    let cordoned = |fault: &&simulator::Fault| fault.kind == "cordoned" && fault.node == off.node && fault.from <= off.to;
    assert!(listed.iter().any(|fault| cordoned(&fault) && fault.to >= off.to), "the node is drained");
}

#[test]
fn a_dead_node_answers_nobody_and_its_pods_hold_on_until_the_api_has_found_out() {
    let plan = rough();
    let listed = faults(&plan, plan.window());
    let dead = listed.iter().find(|fault| fault.kind == "node_death" && fault.from.ms() > plan.window().from().ms() + 7_200_000);
    let dead = dead.expect("a node dies");
    let node = plan.node(&dead.node).unwrap();
    assert_eq!(plan.no_page(node, dead.from), Some(NoPage::Refuse));
    let on: Vec<_> = bound(&plan).into_iter().filter(|(_, b)| b.node == node && b.stopped == Some(dead.from.ms())).collect();
    assert!(!on.is_empty());
    for (_, b) in &on {
        assert!((335_000..360_000).contains(&(b.ended - dead.from.ms())), "{b:?}");
        let device = plan.devices().find(|device| device.node == node && device.gpu == b.devices[0]).unwrap();
        assert_eq!(state(&plan, device, dead.from.plus_ms(1_000)).unwrap().sm, 0);
    }
    let rows = truth_rows(&plan, plan.window()).unwrap();
    let on_unready: i64 = rows.iter().filter(|row| row.kind == RowKind::Owner).map(|row| row.on_unready_ms).sum();
    assert!(on_unready > 0);
    assert!(rows.iter().any(|row| row.reason == Some("lost")));
}

#[test]
fn lost_work_is_what_was_done_since_the_last_checkpoint() {
    let plan = rough();
    let waste = truth_waste(&plan, plan.window());
    let by_uid: BTreeMap<&str, &PodPlan> = plan.pods().iter().map(|pod| (&*pod.uid, pod)).collect();
    assert!(waste.len() > 20);
    for lost in &waste {
        let pod = by_uid[&*lost.pod_uid];
        let started = pod.bound.as_ref().unwrap().started.unwrap();
        assert!(started <= lost.since.ms() && lost.since < lost.at, "{lost:?}");
        assert_eq!(lost.lost_ms, (lost.at.ms() - lost.since.ms()) * i64::from(pod.gpus));
        match pod.shape {
            Shape::Batch => assert_eq!(lost.since.ms(), started),
            _ => assert_eq!(pod.shape, Shape::Training),
        }
    }
    assert!(waste.iter().any(|lost| lost.since.ms() > by_uid[&*lost.pod_uid].bound.as_ref().unwrap().started.unwrap() + 600_000));
    let failed = |pod: &PodPlan| pod.shape == Shape::Training && pod.bound.as_ref().is_some_and(|b| b.why == Some("xid"));
    assert!(waste.iter().any(|lost| failed(by_uid[&*lost.pod_uid])), "an XID costs work");
    // What the API server says of a pod that failed is what the truth says, in whole seconds.
    let facts = api_facts(&plan, plan.window().to());
    let of: BTreeMap<&str, &schemas::proto::Holding> = facts.holdings.iter().map(|h| (&*h.id, h)).collect();
    let mut told = 0;
    for lost in waste.iter().filter(|lost| lost.why != "node_lost" && by_uid[&*lost.pod_uid].shape == Shape::Training) {
        let holding = of[&*lost.pod_uid];
        if let Some(at) = holding.last_checkpoint_ms.filter(|_| holding.ended_ms.is_some()) {
            assert_eq!((at, &*holding.terminal_phase), (lost.since.ms() / 1000 * 1000, "Failed"), "{lost:?}");
            told += 1;
        }
    }
    assert!(told > 5, "{told}");
}

#[test]
fn labels_lie_where_the_truth_says_so_and_nowhere_else() {
    let plan = rough();
    let stale: Vec<_> = faults(&plan, plan.window()).into_iter().filter(|fault| fault.kind == "stale_labels").collect();
    assert!(stale.len() > 20, "{}", stale.len());
    let lies = |id: &str, at| stale.iter().any(|fault| fault.device.as_deref() == Some(id) && fault.from <= at && at < fault.to);
    let mut seen = 0;
    for at in ticks(&plan, 61_007) {
        for device in plan.devices() {
            let Some(shown) = state(&plan, device, at) else { continue };
            let holder = plan.holders(device, at).next().map(|(pod, _)| pod);
            if shown.holder != holder {
                assert!(lies(&plan.device(device).id, at), "{device:?} at {at}");
                seen += 1;
            }
        }
    }
    assert!(seen > 10, "{seen}");
    let skewed = plan.nodes().iter().filter(|node| node.skew_ms != 0);
    assert!(skewed.clone().all(|node| (800..=5_000).contains(&node.skew_ms.abs())));
    let listed = faults(&plan, plan.window()).iter().filter(|fault| fault.kind == "clock_skew").count();
    assert_eq!((skewed.count(), listed > 0), (listed, true));
}

#[test]
fn daily_arrivals_follow_the_local_day() {
    let plan = rough();
    let mut by_hour = [0_i64; 24];
    for pod in plan.pods().iter().filter(|pod| &*pod.team == "low" && pod.shape == Shape::Batch) {
        let since = pod.created - plan.window().from().ms();
        if since > 3_600_000 {
            by_hour[((since / 3_600_000 + 24 - 5) % 24) as usize] += 1;
        }
    }
    let night: i64 = by_hour[1..5].iter().sum();
    let noon: i64 = by_hour[12..16].iter().sum();
    assert!(noon > 2 * night, "{by_hour:?}");
}

#[test]
fn facts_and_truth_agree_on_a_rough_day() {
    let plan = rough();
    let facts = api_facts(&plan, plan.window().to());
    let (from, to) = (plan.window().from().ms(), plan.window().to().ms());
    let told: i64 = facts
        .holdings
        .iter()
        .map(|h| (h.ended_ms.unwrap_or(to).min(to) - h.bound_ms.unwrap().max(from)).max(0) * i64::from(h.count.unwrap()))
        .sum();
    let rows = truth_rows(&plan, plan.window()).unwrap();
    assert_eq!(told, rows.iter().filter(|row| row.kind == RowKind::Owner).map(|row| row.ms).sum::<i64>());
}

/// Gangs only, big enough that one pod against the others is told apart.
const GANGS: &str = r#"
name: gangs
start: 2026-03-02T00:00:00Z
hours: 72
clusters:
  - name: lab
    node_pools:
      - { name: h, count: 12, product: NVIDIA H100 80GB HBM3, gpus_per_node: 8, region: r, zone: z, provider: p,
          purchase_option: reserved }
teams:
  - { name: big, namespace: big, weight: 1, mix: { training: 1 }, gangs: { share: 1, nodes: 3 } }
arrivals: { load: 1 }
"#;

#[test]
fn a_straggler_works_on_while_the_others_of_its_gang_wait_for_it() {
    let (mut straggling, mut even) = (0, 0);
    for seed in 0..6 {
        let plan = Plan::new(FleetSpec::parse(GANGS).unwrap(), Seed(seed)).unwrap();
        let pods = plan.pods();
        // By (gang, hour): for each pod the integrals of its SMs, of the effective tier, and its energy.
        let mut gangs: BTreeMap<_, BTreeMap<usize, [i128; 3]>> = BTreeMap::new();
        for row in truth_rows(&plan, plan.window()).unwrap() {
            let Some((pod, b)) = row.pod.and_then(|pod| Some((pod, pods[pod].bound.as_ref()?))) else { continue };
            let whole = b.started.is_some_and(|started| started + 120_000 < row.hour_start.ms())
                && row.hour_start.ms() + schemas::HOUR_MS < b.terminating.unwrap_or(b.ended);
            if whole {
                let gang = (&*pods[pod].workload, pods[pod].created, row.hour_start);
                let sums = gangs.entry(gang).or_default().entry(pod).or_default();
                for (sum, more) in sums.iter_mut().zip([row.exact[1], row.exact[2], row.energy_uj.unwrap().into()]) {
                    *sum += more;
                }
            }
        }
        let mut of_gang: BTreeMap<_, Vec<Option<usize>>> = BTreeMap::new();
        for ((workload, created, _), pods) in gangs.into_iter().filter(|(_, pods)| pods.len() == 3) {
            let mut sums: Vec<(usize, [i128; 3])> = pods.into_iter().collect();
            sums.sort_by_key(|(_, sums)| sums[0]);
            let [low, middle, (pod, high)] = sums[..] else { unreachable!("three pods") };
            assert_eq!(low.1[..2], middle.1[..2], "those that wait do so in step");
            let slower = high[0] > middle.1[0];
            if slower {
                // Others wait 8 to 30 % of their steps; the hour has stalls and checkpoints beside.
                assert!((695..990).contains(&(middle.1[0] * 1000 / high[0])), "{low:?} {middle:?} {high:?}");
                assert!(
                    high[1] >= middle.1[1] && high[2] > middle.1[2].max(low.1[2]),
                    "it draws more: {low:?} {middle:?} {high:?}"
                );
            } else {
                assert_eq!(high[..2], middle.1[..2]);
            }
            of_gang.entry((workload.to_owned(), created)).or_default().push(slower.then_some(pod));
        }
        for hours in of_gang.values() {
            let found: BTreeSet<usize> = hours.iter().flatten().copied().collect();
            assert!(found.len() <= 1, "the same pod in every hour: {hours:?}");
            if found.is_empty() { even += 1 } else { straggling += 1 }
        }
    }
    // One gang in twelve, as chosen.
    assert!(straggling >= 3 && even > 4 * straggling, "{straggling} of {}", straggling + even);
}
