//! MIG instances, replicas, and products that nobody reads: on every face, and in the truth.

use std::{collections::BTreeMap, sync::Arc};

use arrow::array::{Array, Int64Array, StringArray};
use exporter::Page;
use schemas::{
    HOUR_MS,
    status::{RowKind, Tier},
};
use simulator::{FleetSpec, Plan, api, api_facts, board_state, podres, serve, spec::NoPage, state, truth, truth_rows};

use crate::{text, ticks};

/// Two H100 cut like facts' capture, one whole beside them; L4 shared by four; TPUs and an MI300X.
const FLEET: &str = r#"
name: cut
seed: 5
start: 2026-03-02T00:00:00Z
hours: 3
clusters:
  - name: lab
    node_pools:
      - { name: mig, count: 1, product: NVIDIA H100 80GB HBM3, gpus_per_node: 3, region: r, zone: z, provider: p,
          purchase_option: reserved, mig: [[3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb], [7g.80gb], []] }
      - { name: old, count: 1, product: NVIDIA A100-SXM4-80GB, gpus_per_node: 1, region: r, zone: z, provider: p,
          purchase_option: reserved, mig: [1g.10gb+me, 2g.20gb], mig_ids: indexed }
      - { name: shared, count: 1, product: NVIDIA L4, gpus_per_node: 2, region: r, zone: z, provider: p,
          purchase_option: spot, replicas: 4, rename: true }
      - { name: tpu, count: 1, product: TPU v5e, gpus_per_node: 4, region: r, zone: z, provider: google, purchase_option: spot }
      - { name: amd, count: 1, product: AMD Instinct MI300X, gpus_per_node: 2, region: r, zone: z, provider: p, purchase_option: block }
teams:
  - { name: a, namespace: a, weight: 3, mix: { training: 1, decode: 4, notebook: 2, batch: 4 },
      products: [NVIDIA H100 80GB HBM3],
      resources: { decode: nvidia.com/mig-3g.40gb, notebook: nvidia.com/mig-1g.10gb, batch: nvidia.com/mig-2g.20gb } }
  - { name: b, namespace: b, weight: 4, mix: { notebook: 4, inference: 3, crash_loop: 1 }, products: [NVIDIA L4],
      resources: { notebook: nvidia.com/gpu.shared, inference: nvidia.com/gpu.shared, crash_loop: nvidia.com/gpu.shared } }
  - { name: c, namespace: c, weight: 2, mix: { batch: 1 }, products: [TPU v5e] }
  - { name: d, namespace: d, weight: 2, mix: { batch: 1 }, products: [AMD Instinct MI300X] }
  - { name: e, namespace: e, weight: 1, mix: { batch: 1 }, products: [NVIDIA A100-SXM4-80GB],
      resources: { batch: nvidia.com/mig-1g.10gb.me } }
arrivals: { load: 1.5 }
faults:
  blanks: 0.02
  windows:
    - { nodes: mig-0, kind: cordon, from: 70m, lasts: 30m }
    - { nodes: shared-0, kind: not_ready, from: 80m, lasts: 20m }
"#;

fn cut() -> Arc<Plan> {
    let spec = FleetSpec::parse(FLEET).unwrap();
    let seed = spec.seed;
    Arc::new(Plan::new(spec, seed).unwrap())
}

#[test]
fn pages_name_instances_as_the_exporter_does_and_say_nothing_of_what_nobody_reads() {
    let plan = cut();
    let at = plan.window().from().plus_ms(5_000_000);
    let page = String::from_utf8(text(&plan, 0, at)).unwrap();
    let temperatures: Vec<&str> = page.lines().filter(|line| line.starts_with("DCGM_FI_DEV_GPU_TEMP{")).collect();
    assert_eq!(temperatures.len(), 6, "four instances, one that is all of its GPU, one whole: {page}");
    let three = temperatures[0];
    assert!(three.contains(r#"gpu="0""#) && three.contains(r#"GPU_I_PROFILE="3g.40gb",GPU_I_ID="2""#), "{three}");
    assert_eq!(page.lines().filter(|line| line.starts_with("DCGM_FI_DEV_GPU_UTIL{")).count(), 1, "of the whole GPU alone");
    assert_eq!(page.lines().filter(|line| line.starts_with("DCGM_FI_PROF_SM_ACTIVE{")).count(), 6);
    let value = |line: &str| line.rsplit(' ').next().unwrap().to_owned();
    assert!(temperatures[..4].iter().all(|line| value(line) == value(three)), "the board's reading on every instance");
    for (node, name) in ["tpu-0", "amd-0"].iter().map(|name| (plan.node(name).unwrap(), name)) {
        assert_eq!(text(&plan, node, at), b"", "{name}");
        assert_eq!(plan.no_page(node, at), Some(NoPage::Empty));
    }
    assert_eq!(serve::path("tpu-0"), "/nodes/tpu-0/metrics");
    let tpu = plan.devices().find(|device| device.node == plan.node("tpu-0").unwrap()).unwrap();
    assert_eq!(state(&plan, tpu, at), None);
}

#[test]
fn kubelets_name_ids_as_device_plugins_do() {
    let plan = cut();
    let mut shapes: BTreeMap<String, usize> = BTreeMap::new();
    for at in ticks(&plan, 600_000) {
        for node in 0..plan.nodes().len() {
            for entry in podres::list(&plan, node, at).pod_resources.iter().flat_map(|pod| &pod.containers[0].devices) {
                for id in &entry.device_ids {
                    let shape: String = id.chars().map(|c| if c.is_ascii_hexdigit() { 'x' } else { c }).collect();
                    *shapes.entry(format!("{} {shape}", entry.resource_name)).or_default() += 1;
                }
            }
        }
    }
    let uuid = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    for shape in [
        format!("nvidia.com/mig-3g.40gb MIG-{uuid}"),
        format!("nvidia.com/mig-1g.10gb MIG-{uuid}"),
        format!("nvidia.com/mig-1g.10gb.me MIG-GPU-{uuid}/x/x"),
        format!("nvidia.com/gpu.shared GPU-{uuid}::x"),
        format!("nvidia.com/gpu GPU-{uuid}"),
        "google.com/tpu x".to_owned(),
        "amd.com/gpu x".to_owned(),
    ] {
        assert!(shapes.get(&shape).is_some_and(|count| *count > 1), "{shape}: {shapes:?}");
    }
    let all = podres::allocatable(&plan, plan.node("shared-0").unwrap(), plan.window().from());
    assert_eq!(all.devices.iter().map(|entry| entry.device_ids.len()).sum::<usize>(), 8);
}

#[test]
fn nodes_offer_what_their_plugins_would() {
    let plan = cut();
    let node = |name: &str| &plan.nodes()[plan.node(name).unwrap()];
    let offers = |name: &str| api::resources(node(name)).into_iter().collect::<Vec<_>>();
    let of = |pairs: &[(&str, u64)]| pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect::<Vec<_>>();
    assert_eq!(
        offers("mig-0"),
        of(&[
            ("nvidia.com/gpu", 1),
            ("nvidia.com/mig-1g.10gb", 2),
            ("nvidia.com/mig-2g.20gb", 1),
            ("nvidia.com/mig-3g.40gb", 1),
            ("nvidia.com/mig-7g.80gb", 1)
        ])
    );
    assert_eq!(offers("old-0"), of(&[("nvidia.com/gpu", 0), ("nvidia.com/mig-1g.10gb.me", 1), ("nvidia.com/mig-2g.20gb", 1)]));
    assert_eq!(offers("shared-0"), of(&[("nvidia.com/gpu.shared", 8)]));
    assert_eq!((offers("tpu-0"), offers("amd-0")), (of(&[("google.com/tpu", 4)]), of(&[("amd.com/gpu", 2)])));
    let label = |name: &str, key: &str| api::labels(node(name)).get(key).cloned().unwrap_or_default();
    assert_eq!(label("shared-0", "nvidia.com/gpu.product"), "NVIDIA-L4-SHARED");
    assert_eq!(label("shared-0", "nvidia.com/gpu.replicas"), "4");
    assert_eq!(label("mig-0", "nvidia.com/mig.strategy"), "mixed");
    assert_eq!(label("mig-0", "nvidia.com/mig-1g.10gb.count"), "2");
    let facts = api_facts(&plan, plan.window().to());
    let told = |name: &str| facts.nodes.iter().find(|node| node.node == name).unwrap();
    assert_eq!((told("tpu-0").telemetry.as_str(), told("mig-0").telemetry.as_str()), ("none", ""));
    assert_eq!((told("shared-0").replicas, told("shared-0").devices[0].replicas), (Some(4), Some(4)));
    let instance = &told("mig-0").devices[0];
    assert_eq!((instance.weight_num, instance.weight_den, instance.profile.as_str()), (Some(3), Some(7), "3g.40gb"));
    assert_eq!(instance.device, format!("{}/2", instance.parent));
    let mig = facts.holdings.iter().find(|h| h.resource == "nvidia.com/mig-2g.20gb").unwrap();
    assert_eq!((mig.count, mig.weight_num, mig.weight_den), (Some(1), Some(2), Some(7)));
}

#[test]
fn no_id_is_given_twice_and_never_more_than_there_are() {
    let plan = cut();
    let mut spans = Vec::new();
    for pod in plan.pods() {
        let Some(binding) = &pod.bound else { continue };
        assert_eq!(binding.slots().count(), pod.gpus as usize);
        spans.extend(binding.slots().map(|slot| ((binding.node, slot), binding.bound, binding.released)));
    }
    spans.sort();
    assert!(spans.windows(2).all(|two| two[0].0 != two[1].0 || two[0].2 <= two[1].1));
    let shared = plan.node("shared-0").unwrap();
    let most = ticks(&plan, 60_000).map(|at| {
        let on = |device| plan.holders(device, at).count();
        plan.devices().filter(|device| device.node == shared).map(on).max().unwrap()
    });
    assert!((3..=4).contains(&most.max().unwrap()), "several pods are on one GPU at a time");
}

#[test]
fn a_board_is_the_sum_of_its_instances() {
    let plan = cut();
    let mut page = Page::new();
    for at in ticks(&plan, 97_003) {
        let board = board_state(&plan, 0, 0, at).unwrap();
        let instances: Vec<_> =
            plan.devices().filter(|d| d.node == 0 && plan.device(*d).board == 0).map(|d| state(&plan, d, at).unwrap()).collect();
        assert_eq!(instances.len(), 4);
        assert!(instances.iter().all(|now| now.board == board && now.util_pct.is_none() && now.nvlink.is_none()));
        assert_eq!(board.fb_used_mib, instances.iter().map(|now| now.fb_used_mib).sum::<i64>());
        assert!((60_000..=700_000).contains(&board.power_mw), "{board:?}");
        for now in instances {
            assert!(now.fb_used_mib + now.fb_reserved_mib < now.fb_total_mib && now.fb_total_mib <= 40_779, "{now:?}");
            assert!(now.tensor <= now.sm && now.sm <= now.gr, "{now:?}");
        }
        simulator::state::read_node(&plan, 0, at, &mut page);
        assert_eq!(page.devices().len(), 6);
    }
}

#[test]
fn the_truth_of_every_gpu_sums_to_its_time() {
    let plan = cut();
    let rows = truth_rows(&plan, plan.window()).unwrap();
    let mut gpus: BTreeMap<(_, &str), i64> = BTreeMap::new();
    for row in &rows {
        *gpus.entry((row.hour_start, plan.board(row.device).uuid.as_str())).or_default() += row.ms;
        for &tier in Tier::ALL {
            assert!((0..=row.ms).contains(&row.utilized_ms(tier)), "{row:?}");
        }
        assert!(row.pre_start_ms <= row.ms && row.terminating_ms <= row.ms && row.on_unready_ms <= row.ms, "{row:?}");
    }
    assert_eq!(gpus.len(), 3 * (3 + 1 + 2 + 4 + 2));
    assert!(gpus.values().all(|ms| *ms == HOUR_MS));
    // What the layout of `old` leaves over: 4 of 7 slices.
    let orphan = |name: &str| -> i64 {
        let of = |row: &&simulator::truth::TruthRow| {
            row.reason == Some("mig_orphan") && plan.nodes()[row.device.node].name.as_ref() == name
        };
        rows.iter().filter(of).map(|row| row.ms).sum()
    };
    assert_eq!((orphan("old-0"), orphan("mig-0")), ((3 * HOUR_MS * 4 + 3) / 7, 0));
    let reasons: std::collections::BTreeSet<_> = rows.iter().filter_map(|row| row.reason).collect();
    assert_eq!(reasons.into_iter().collect::<Vec<_>>(), ["cordoned", "mig_orphan", "not_ready", "shared_slack", "unheld"]);
    let owners = || rows.iter().filter(|row| row.kind == RowKind::Owner);
    let flags: std::collections::BTreeSet<_> = owners().map(|row| row.flags()).collect();
    assert_eq!(flags.into_iter().collect::<Vec<_>>(), ["", "over_share,shared", "shared"]);
    for row in owners().filter(|row| plan.device(row.device).instance.is_some()) {
        let (num, den) = plan.device(row.device).weight;
        assert!((row.held_profile_ms * i64::from(num) / i64::from(den) - row.ms).abs() <= 1, "{row:?}");
    }
}

#[test]
fn shares_divide_a_device_and_never_multiply_it() {
    let plan = cut();
    let shared = plan.node("shared-0").unwrap();
    let mut sums: BTreeMap<_, [i64; 2]> = BTreeMap::new();
    for row in truth_rows(&plan, plan.window()).unwrap().iter().filter(|row| row.device.node == shared && row.pod.is_some()) {
        let sum = sums.entry((row.hour_start, row.device)).or_default();
        sum[0] += row.utilized_ms(Tier::Sm) + row.over_share_ms[Tier::Sm as usize];
        sum[1] += 1;
    }
    assert_eq!(sums.len(), 6);
    let mut whole = 0;
    for ((hour, device), [told, owners]) in sums {
        let mut activity = 0;
        let mut points = plan.breakpoints(device, hour, hour.plus_ms(HOUR_MS));
        points.push(hour.plus_ms(HOUR_MS));
        for two in points.windows(2) {
            activity += state(&plan, device, two[0]).unwrap().sm * (two[1].ms() - two[0].ms());
        }
        let activity = activity / 1_000_000;
        // A pod's process may outlast its holding by less than a second.
        assert!((told - activity).abs() <= owners * 1_500 && told <= activity + owners, "{told} of {activity} with {owners}");
        whole += activity;
    }
    assert!(whole > HOUR_MS / 10, "{whole}");
}

#[test]
fn what_nobody_reads_is_unobserved_for_want_of_a_source() {
    let plan = cut();
    let batch = truth(&plan, plan.window()).unwrap();
    let ints = |name: &str| batch.column_by_name(name).unwrap().as_any().downcast_ref::<Int64Array>().unwrap();
    let texts = |name: &str| batch.column_by_name(name).unwrap().as_any().downcast_ref::<StringArray>().unwrap();
    let (ms, unseen, utilized, stranded) =
        (ints("ms"), ints("sm_unobserved_no_source_ms"), ints("sm_utilized_ms"), ints("sm_stranded_ms"));
    let (products, pods, profiles, parents) = (texts("product"), texts("pod_uid"), texts("profile"), texts("parent"));
    let mut hidden = 0;
    for row in (0..batch.num_rows()).filter(|row| pods.is_valid(*row)) {
        let unread = products.value(row).starts_with("TPU") || products.value(row).starts_with("AMD");
        assert_eq!(unseen.value(row), if unread { ms.value(row) } else { 0 });
        assert_eq!(utilized.value(row) + stranded.value(row) + unseen.value(row), ms.value(row));
        assert_eq!(ints("energy_mj").is_null(row), unread);
        assert_eq!(profiles.is_valid(row), parents.is_valid(row));
        hidden += unseen.value(row);
    }
    assert!(hidden > HOUR_MS, "{hidden}");
}

#[test]
fn a_walk_is_the_state_bit_by_bit() {
    let plan = cut();
    for device in plan.devices() {
        let mut walk = plan.walk(device);
        let forward: Vec<_> = ticks(&plan, 13_007).map(|at| (at, walk.at(at))).collect();
        for (at, walked) in forward.into_iter().rev().step_by(7) {
            assert_eq!(state(&plan, device, at), walked, "{device:?} at {at}");
        }
        assert_eq!(walk.at(plan.window().from().plus_ms(-5)), state(&plan, device, plan.window().from().plus_ms(-5)));
        let late = plan.window().to().plus_ms(9 * HOUR_MS);
        assert_eq!(walk.at(late), state(&plan, device, late));
    }
}

#[test]
fn a_node_that_is_gone_answers_nobody_whatever_it_has() {
    let from = "  windows:\n";
    let lost = "  windows:\n    - { nodes: tpu-0, kind: lost, from: 100m, lasts: 10m }\n    - { nodes: tpu-0, kind: exporter_down, from: 10m, lasts: 5m }\n";
    let spec = FleetSpec::parse(&FLEET.replacen(from, lost, 1)).unwrap();
    let seed = spec.seed;
    let plan = Plan::new(spec, seed).unwrap();
    let answer = |minute: i64| plan.no_page(plan.node("tpu-0").unwrap(), plan.window().from().plus_ms(minute * 60_000));
    assert_eq!(
        [0, 12, 99, 100, 109, 110].map(answer).map(|answer| answer.unwrap().as_str()),
        ["empty", "empty", "empty", "refuse", "refuse", "empty"]
    );
}
