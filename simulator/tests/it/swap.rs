//! A board that is replaced by another: the same slot, another identity, and every face says so at the same instant.

use std::collections::{BTreeMap, BTreeSet};

use exporter::Page;
use schemas::{HOUR_MS, Timestamp, proto::Node};
use serde_json::Value;
use simulator::{
    DeviceRef, Fault, Plan, Seed, api_facts,
    explain::explain,
    faults,
    nvml::{self, Place},
    objects::{self, Kind},
    plan::BoardPlan,
    podres,
    spec::{PerDay, Span, Swaps},
    state, truth_holdings, truth_rows,
};

use crate::{fleet, spec, text, ticks};

/// An exchange as the truth lists it.
struct Swap<'a> {
    fault: Fault,
    node: usize,
    old: (usize, &'a BoardPlan),
    new: (usize, &'a BoardPlan),
}

fn swaps(plan: &Plan) -> Vec<Swap<'_>> {
    let listed = faults(plan, plan.window()).into_iter().filter(|fault| fault.kind == "gpu_swap");
    let swap = |fault: Fault| {
        let node = plan.node(&fault.node).unwrap();
        let board = |uuid: &str| plan.nodes()[node].boards.iter().enumerate().find(|(_, board)| board.uuid == uuid).unwrap();
        Swap { node, old: board(fault.device.as_deref().unwrap()), new: board(&fault.detail), fault }
    };
    listed.map(swap).collect()
}

/// How long a node is drained before its board is taken out.
const DRAIN_MS: i64 = 120_000;

#[test]
fn the_truth_lists_every_exchange_with_both_uuids() {
    let plan = fleet("repairs");
    let found = swaps(&plan);
    let said: Vec<(&str, i64, i64)> = found
        .iter()
        .map(|swap| {
            let since = |at: Timestamp| (at.ms() - plan.window().from().ms()) / 60_000;
            (&*swap.fault.node, since(swap.fault.from), since(swap.fault.to))
        })
        .collect();
    assert_eq!(said, [("h100-0", 92, 130), ("h100-0", 242, 265), ("h100-mig-0", 122, 150), ("l4-shared-0", 182, 200)]);
    assert_eq!(found[0].new.1.uuid, found[1].old.1.uuid, "one slot twice");
    for Swap { old: (_, old), new: (_, new), fault, .. } in &found {
        assert_eq!((old.index, &old.pci_bus_id), (new.index, &new.pci_bus_id));
        assert_eq!((old.until(), new.since()), (Some(fault.to), Some(fault.to)));
    }
    let uuids: BTreeSet<&str> = plan.nodes().iter().flat_map(|node| &node.boards).map(|board| &*board.uuid).collect();
    assert_eq!(uuids.len() as u64, plan.spec().gpus() + 4);
}

#[test]
fn pages_and_kubelets_tell_the_board_that_is_there() {
    let plan = fleet("repairs");
    let mut page = Page::new();
    for Swap { node, old: (_, old), new: (_, new), fault, .. } in swaps(&plan) {
        let mut uuids = |at: Timestamp| {
            state::read_node(&plan, node, at, &mut page);
            let shown = |device: &exporter::Device| (device.identity.gpu, device.identity.uuid.clone());
            let shown: Vec<(u32, String)> = page.devices().iter().map(shown).collect();
            assert!(shown.is_sorted_by_key(|(gpu, _)| *gpu), "in order of their index: {shown:?}");
            let page = String::from_utf8(text(&plan, node, at)).unwrap();
            let ids: BTreeSet<String> = shown.into_iter().filter(|(gpu, _)| *gpu == old.index).map(|(_, uuid)| uuid).collect();
            assert!([old, new].iter().all(|board| ids.contains(&board.uuid) == page.contains(&board.uuid)));
            ids.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(uuids(fault.from.plus_ms(-1)), [&*old.uuid]);
        assert!(uuids(fault.from).is_empty() && uuids(fault.to.plus_ms(-1)).is_empty(), "the slot is empty");
        assert_eq!(uuids(fault.to), [&*new.uuid]);

        let ids = |at: Timestamp| {
            let list = podres::list(&plan, node, at).pod_resources;
            let containers = list.iter().flat_map(|pod| &pod.containers).flat_map(|container| &container.devices);
            containers.flat_map(|devices| devices.device_ids.clone()).collect::<Vec<String>>()
        };
        let given = |at: Timestamp| {
            let devices = podres::allocatable(&plan, node, at).devices;
            devices.into_iter().flat_map(|devices| devices.device_ids).collect::<Vec<String>>()
        };
        let (mut had, mut has) = (0, 0);
        for at in ticks(&plan, 30_000) {
            let (listed, given) = (ids(at), given(at));
            let names = |ids: &[String], board: &BoardPlan| ids.iter().filter(|id| id.contains(&board.uuid)).count();
            let (drained, back) = (fault.from.plus_ms(-DRAIN_MS + 40_000), fault.to);
            if drained <= at && at < back {
                assert!(listed.is_empty(), "{listed:?} at {at}: no pod survives");
            }
            had += names(&listed, old);
            has += names(&listed, new);
            assert!(names(&listed, old) == 0 || at < drained);
            assert!(names(&listed, new) == 0 || back <= at);
            for board in [old, new] {
                assert_eq!(names(&given, board) > 0, !off(&plan, node, board, at), "{} at {at}", board.uuid);
            }
        }
        assert!(had > 0 && has > 0, "{} and {} are held in their time: {had}, {has}", old.uuid, new.uuid);
    }
}

/// Whether nothing reads a board at `at`.
fn off(plan: &Plan, node: usize, board: &BoardPlan, at: Timestamp) -> bool {
    state(plan, DeviceRef { node, gpu: board.devices.start }, at).is_none()
}

#[test]
fn the_api_tells_it_as_inventory_and_as_objects() {
    let plan = fleet("repairs");
    let of = |node: usize, at: Timestamp| -> Node {
        let name = &plan.nodes()[node].name;
        api_facts(&plan, at).nodes.into_iter().find(|node| node.node == **name).unwrap()
    };
    for Swap { node, old: (_, old), new: (_, new), fault, .. } in swaps(&plan) {
        let present = |at: Timestamp, board: &BoardPlan| {
            let node = of(node, at);
            let device = node.devices.iter().find(|device| device.device == board.uuid || device.parent == board.uuid)?;
            Some((device.present_from_ms, device.present_to_ms))
        };
        let came = old.since().map(Timestamp::ms);
        assert_eq!((present(fault.to.plus_ms(-1), old), present(fault.to.plus_ms(-1), new)), (Some((came, None)), None));
        assert_eq!(present(fault.to, old), Some((came, Some(fault.to.ms()))));
        assert_eq!(present(fault.to, new), Some((Some(fault.to.ms()), None)));
        assert_eq!(of(node, fault.to).capacity_gpus, Some(plan.nodes()[node].gpus() as u32));
        let maintained =
            of(node, fault.from).unavailable.into_iter().any(|spell| spell.reason == "maintenance" && spell.to_ms.is_none());
        assert!(maintained);

        let object = |at: Timestamp| -> Value {
            let nodes = objects::objects(&plan, at, Kind::Node, None);
            nodes.into_iter().find(|object| object["metadata"]["name"] == *plan.nodes()[node].name).unwrap()
        };
        let count = |object: &Value, which: &str| -> u64 {
            let counts = object["status"][which].as_object().unwrap();
            let gpus = counts.iter().filter(|(resource, _)| resource.starts_with("nvidia.com/"));
            gpus.map(|(_, count)| count.as_str().unwrap().parse::<u64>().unwrap()).sum()
        };
        let (empty, back) = (object(fault.from), object(fault.to));
        let each = count(&back, "capacity") / plan.nodes()[node].gpus() as u64;
        assert_eq!(count(&empty, "capacity"), count(&back, "capacity"));
        assert_eq!(count(&empty, "allocatable"), count(&back, "capacity") - each, "the empty slot gives nothing");
        assert_eq!(empty["spec"]["unschedulable"], true);
        assert_eq!((count(&back, "allocatable"), &back["spec"]["unschedulable"]), (count(&back, "capacity"), &Value::Null));
        let late = object(fault.to.plus_ms(-1));
        assert_eq!(late["status"]["conditions"][0]["status"], "False", "the node starts anew with the board");
    }
}

#[test]
fn counters_begin_anew_and_nothing_of_the_old_board_goes_on() {
    let plan = fleet("repairs");
    let mut aged = 0;
    for Swap { node, old: (before, old), new: (after, new), fault, .. } in swaps(&plan) {
        let of = |board: &BoardPlan, at: Timestamp| state(&plan, DeviceRef { node, gpu: board.devices.start }, at);
        let (last, first) = (of(old, fault.from.plus_ms(-1)).unwrap(), of(new, fault.to).unwrap());
        assert!(last.energy_mj > 0);
        aged += i64::from(last.xid.is_some()) + last.remapped_rows.unwrap_or(0) + last.pcie_replays + last.ecc_aggregate.0;
        assert_eq!((first.energy_mj, first.power_violation_ns, first.pcie_replays, first.xid), (0, 0, 0, None));
        assert_eq!((first.ecc_volatile, first.ecc_aggregate), ((0, 0), (0, 0)));
        assert_eq!((first.remapped_rows.unwrap_or(0), first.uncorrectable_rows.unwrap_or(0)), (0, 0));
        assert!(first.nvlink_replays.is_none_or(|replays| replays == 0) && first.holder.is_none());
        // An hour on, it has counted its own: the integral of its power.
        let later = fault.to.plus_ms(1_800_000);
        let device = |board: &BoardPlan| DeviceRef { node, gpu: board.devices.start };
        if plan.device(device(new)).instance.is_none() {
            let mut points = plan.breakpoints(device(new), fault.to, later);
            points.push(later);
            let drawn: i64 = points.windows(2).map(|two| of(new, two[0]).unwrap().power_mw * (two[1].ms() - two[0].ms())).sum();
            assert!((of(new, later).unwrap().energy_mj - drawn / 1000).abs() <= 1);
        }
        let place = |board: usize| Place { node, board, device: None };
        assert_ne!(nvml::serial(&plan, place(before)), nvml::serial(&plan, place(after)));
        assert!(nvml::xids(&plan, place(before), plan.window().to()).iter().all(|(at, _)| *at < fault.from));
        assert!(nvml::xids(&plan, place(after), plan.window().to()).iter().all(|(at, _)| fault.to <= *at));
        let uuids = |board: &BoardPlan| -> Vec<&str> {
            let devices = &plan.nodes()[node].devices[board.devices.clone()];
            devices.iter().filter_map(|device| Some(&*device.instance.as_ref()?.uuid)).collect()
        };
        assert!(uuids(old).len() == uuids(new).len() && uuids(old).iter().all(|uuid| !uuids(new).contains(uuid)));
        // Its neighbours' drivers are loaded anew with the node.
        for (_, board) in plan.nodes()[node].boards_at(fault.to).filter(|(board, _)| *board != after) {
            assert!(of(board, fault.to).is_none_or(|state| state.energy_mj == 0 && state.ecc_aggregate.0 >= 0));
        }
    }
    assert!(aged > 0, "some board had something to leave behind");
}

#[test]
fn pods_go_and_the_truth_has_every_second_once() {
    let plan = fleet("repairs");
    let holdings = truth_holdings(&plan, plan.window());
    for Swap { old: (_, old), new: (_, new), fault, .. } in swaps(&plan) {
        let of = |board: &BoardPlan| holdings.iter().filter(|holding| holding.devices.contains(&board.uuid)).collect::<Vec<_>>();
        assert!(of(old).iter().all(|holding| holding.released < fault.from) && !of(old).is_empty());
        assert!(of(new).iter().all(|holding| fault.to < holding.true_bound) && !of(new).is_empty());
        let begun = fault.from.plus_ms(-DRAIN_MS);
        let gone = holdings.iter().filter(|holding| holding.node == fault.node && holding.why == Some("drained"));
        assert!(gone.filter(|holding| holding.true_terminating.is_some_and(|asked| asked.ms() - begun.ms() < 5_000)).count() > 0);
    }
    let mut slots: BTreeMap<(Timestamp, usize, u32), i64> = BTreeMap::new();
    let mut devices: BTreeSet<&str> = BTreeSet::new();
    let rows = truth_rows(&plan, plan.window()).unwrap();
    for row in &rows {
        *slots.entry((row.hour_start, row.device.node, plan.board(row.device).index)).or_default() += row.ms;
        devices.insert(&plan.board(row.device).uuid);
    }
    assert_eq!(slots.len() as u64, plan.spec().gpus() * 6);
    assert!(slots.values().all(|ms| *ms == HOUR_MS), "{slots:?}");
    assert_eq!(devices.len() as u64, plan.spec().gpus() + 4);
    // While the slot is empty, its time is maintenance, of the board that left it.
    for Swap { old: (_, old), fault, .. } in swaps(&plan).into_iter().filter(|swap| swap.fault.node == "h100-0") {
        let maintained: i64 = rows
            .iter()
            .filter(|row| plan.board(row.device).uuid == old.uuid && row.reason == Some("maintenance"))
            .map(|row| row.ms)
            .sum();
        let least = fault.to.ms() - fault.from.ms();
        assert!((least..least + DRAIN_MS + 1).contains(&maintained), "{maintained}");
    }
}

#[test]
fn an_exchange_changes_nothing_before_it_and_nothing_of_other_draws() {
    let with = fleet("repairs");
    let mut plain = spec("repairs");
    plain.faults.windows.clear();
    let without = Plan::new(plain, with.seed()).unwrap();
    let first = with.window().from().plus_ms(90 * 60_000);
    let before = |plan: &Plan| pages(plan, ticks(plan, 61_007).take_while(|at| *at < first));
    assert_eq!(before(&with), before(&without));
    assert_eq!(before(&with), before(&fleet("repairs")), "the same again");
    assert!(pages(&with, ticks(&with, 301_007)) == pages(&with, ticks(&with, 301_007).rev()), "in any order of asking");
}

#[test]
fn exchanges_at_random_come_as_often_as_asked_and_let_a_board_serve() {
    let mut fleet = spec("small");
    fleet.hours = 24 * 20;
    fleet.arrivals.load = 0.1;
    fleet.faults = simulator::spec::Faults::default();
    let span = |text: &str| text.parse::<Span>().unwrap();
    fleet.faults.gpu_swap = Some(Swaps { per_gpu_day: PerDay(0.2), lasts: (span("1h"), span("5h")) });
    let plan = Plan::new(fleet, Seed(3)).unwrap();
    let found = swaps(&plan);
    // 6 slots for 20 days: 24, and fewer by the day that each new board serves at least.
    assert!((10..=32).contains(&found.len()), "{}", found.len());
    for Swap { new: (_, new), .. } in &found {
        if let (Some(since), Some(until)) = (new.since(), new.until()) {
            assert!(until.ms() - since.ms() > 24 * HOUR_MS);
        }
    }
    let explained = explain(&plan);
    assert_eq!((explained.gpus, explained.faults["gpu_swap"]), (6, found.len()));
    assert_eq!(explained.label_values["UUID"], 6 + found.iter().filter(|swap| swap.fault.to < plan.window().to()).count());
    let each = explained.series / 6;
    assert!(explained.series_ever > explained.series + found.len() as u64 * (each - 5), "a new board has series of its own");
    let gpus: u32 = explained.gpus_by_product.values().map(|count| *count as u32).sum();
    assert_eq!((gpus, explained.offers["nvidia.com/gpu"]), (6, 6));
}

/// Every page of a fleet, in order of time and node whatever the order of asking.
fn pages(plan: &Plan, order: impl Iterator<Item = Timestamp>) -> BTreeMap<(Timestamp, usize), Vec<u8>> {
    order.flat_map(|at| (0..plan.nodes().len()).map(move |node| ((at, node), text(plan, node, at)))).collect()
}
