//! Boards that are replaced and clocks that are wrong, by the real path and by the simulator's past: the hours are the truth.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use arrow::array::{Array, AsArray, RecordBatch, types::Int64Type, types::TimestampMicrosecondType};
use lake::Lake;
use schemas::{HOUR_MS, SKEW_LIMIT_MS};
use simulator::{
    FleetSpec, Plan,
    spec::{Span, SpellKind},
};

use crate::{
    backfill::{alike, rows, write},
    command::{succeeds, tree_text},
};

fn plan(change: impl FnOnce(&mut FleetSpec)) -> Plan {
    let mut spec = FleetSpec::parse(&std::fs::read_to_string(tree_text("kwok-fleet/fleets/repairs.yaml")).unwrap()).unwrap();
    change(&mut spec);
    let seed = spec.seed;
    Plan::new(spec, seed).unwrap()
}

/// A lake of the plan with its hours computed.
fn hours(plan: &Plan, folder: &Path) {
    write(plan, folder);
    succeeds(&["hours", "--lake", folder.to_str().unwrap()]);
}

#[test]
fn a_fleet_that_swaps_boards_by_wrong_clocks_closes_as_the_truth_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, real) = (folder.path().join("ours"), folder.path().join("real"));
    let ran = succeeds(&["demo", "--fleet", &tree_text("kwok-fleet/fleets/repairs.yaml"), "--keep", real.to_str().unwrap()]);
    assert!(ran.contains("check: closes") && ran.contains("allocated matches to the millisecond"), "{ran}");
    let plan = plan(|_| {});
    hours(&plan, &ours);
    alike(
        &ours,
        &real,
        &["gpu_samples", "scrapes", "allocations", "nodes", "demand", "truth_gpu_hours", "gpu_hours", "device_hours"],
    );
    assert!(succeeds(&["check", "--lake", ours.to_str().unwrap()]).contains("closes"));

    // Every slot has every second once, by both of its boards.
    let capacity = ints(&rows(&ours, "device_hours"), "capacity_ms");
    let whole = plan.window().len_ms() * i64::try_from(plan.spec().gpus()).unwrap();
    assert_eq!(capacity.iter().sum::<i64>(), whole);
    let table = rows(&ours, "gpu_hours");
    let (devices, parents) = (texts(&table, "device"), texts(&table, "parent"));
    let seen: BTreeSet<&str> = devices.iter().chain(&parents).flatten().copied().collect();
    let owned: BTreeSet<&str> = (0..table.num_rows())
        .filter(|row| texts(&table, "kind")[*row] == Some("owner"))
        .filter_map(|row| parents[row].or(devices[row]))
        .collect();
    let swapped =
        plan.nodes().iter().flat_map(|node| &node.boards).filter(|board| board.since().is_some() || board.until().is_some());
    assert_eq!(swapped.clone().count(), 7, "four exchanges, one slot twice");
    for board in swapped {
        assert!(seen.contains(&*board.uuid) && owned.contains(&*board.uuid), "{} is in the ledger, and was held", board.uuid);
    }
}

fn texts<'a>(rows: &'a RecordBatch, column: &str) -> Vec<Option<&'a str>> {
    rows.column_by_name(column).unwrap().as_string::<i32>().iter().collect()
}

fn ints(rows: &RecordBatch, column: &str) -> Vec<i64> {
    rows.column_by_name(column).unwrap().as_primitive::<Int64Type>().iter().map(Option::unwrap_or_default).collect()
}

/// What a row of `gpu_hours` is about: hour, node, device, kind, reason, owner.
type Key = (i64, String, Option<String>, String, Option<String>, Option<String>);
/// Every other column but flags, and the flags.
type Rest = (Vec<String>, String);

/// Rows from the second hour on, by what they are about.
fn by_key(folder: &Path, from_ms: i64) -> BTreeMap<Key, Rest> {
    let table = rows(folder, "gpu_hours");
    let hour = table.column_by_name("hour_start").unwrap().as_primitive::<TimestampMicrosecondType>();
    let text = |name: &str| texts(&table, name).into_iter().map(|text| text.map(str::to_owned)).collect::<Vec<_>>();
    let (nodes, devices, kinds, reasons, pods) = (text("node"), text("device"), text("kind"), text("reason"), text("pod_uid"));
    let flags = text("flags");
    let others: Vec<usize> = (0..table.num_columns()).filter(|column| table.schema().field(*column).name() != "flags").collect();
    let mut found = BTreeMap::new();
    for row in (0..table.num_rows()).filter(|row| hour.value(*row) / 1000 >= from_ms) {
        let get = |column: &[Option<String>]| column[row].clone();
        let key = (hour.value(row) / 1000, get(&nodes).unwrap(), get(&devices), get(&kinds).unwrap(), get(&reasons), get(&pods));
        let rest = others.iter().map(|column| format!("{:?}", table.column(*column).slice(row, 1))).collect();
        assert!(found.insert(key, (rest, get(&flags).unwrap_or_default())).is_none(), "one row of each");
    }
    found
}

#[test]
fn hours_by_a_wrong_clock_are_those_by_a_right_one_where_it_is_put_right() {
    let folder = tempfile::tempdir().unwrap();
    let (right, wrong) = (folder.path().join("right"), folder.path().join("wrong"));
    let no_swaps = |spec: &mut FleetSpec| spec.faults.windows.retain(|window| window.kind != SpellKind::GpuSwap);
    let of = |from: &str, to: &str| (from.parse::<Span>().unwrap(), to.parse::<Span>().unwrap());
    let skewed = plan(|spec| {
        no_swaps(spec);
        // On both sides of the limit.
        spec.faults.clock_skew.as_mut().unwrap().within = of("100ms", "900ms");
        spec.faults.clock_skew.as_mut().unwrap().share.0 = 1_000_000;
    });
    let limit = |node: &simulator::plan::NodePlan| node.skew_ms.abs() > SKEW_LIMIT_MS;
    let skews: Vec<i64> = skewed.nodes().iter().map(|node| node.skew_ms).collect();
    assert!(skewed.nodes().iter().any(limit) && skewed.nodes().iter().any(|node| !limit(node)), "{skews:?}");
    assert!(skews.iter().any(|skew| *skew > 0) && skews.iter().any(|skew| *skew < 0), "{skews:?}");
    let plain = plan(|spec| {
        no_swaps(spec);
        spec.faults.clock_skew = None;
    });
    hours(&skewed, &wrong);
    hours(&plain, &right);

    // Rounds lie in the hour that their node's clock showed.
    let lake = Lake::open(&wrong).unwrap();
    let table = schemas::tables::get("scrapes");
    for file in lake.closed_files(table, None).unwrap() {
        for batch in lake::read::rows(table, &file.path, None).unwrap() {
            let at = batch.column_by_name("at").unwrap().as_primitive::<TimestampMicrosecondType>();
            let (node, skew) = (texts(&batch, "node"), ints(&batch, "skew_ms"));
            for row in 0..batch.num_rows() {
                let node = &skewed.nodes()[skewed.node(node[row].unwrap()).unwrap()];
                let since = at.value(row) / 1000 - skewed.window().from().ms();
                assert_eq!((skew[row], (since - node.skew_ms) % 30_000), (node.skew_ms, 0));
                assert_eq!(schemas::Timestamp::from_micros(at.value(row)).hour(), file.key.hour);
            }
        }
    }

    // Before a slow clock shows the fleet's beginning there is no round: the first hour is not compared.
    let second = skewed.window().from().ms() + HOUR_MS;
    let (ours, theirs) = (by_key(&wrong, second), by_key(&right, second));
    let corrected = |key: &Key| limit(&skewed.nodes()[skewed.node(&key.1).unwrap()]);
    let exact = |rows: &BTreeMap<Key, Rest>| {
        rows.iter().filter(|(key, _)| corrected(key)).map(|(key, rest)| (key.clone(), rest.0.clone())).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(exact(&ours), exact(&theirs));
    let flagged = |key: &Key| ours[key].1.split(',').any(|flag| flag == "skew_corrected");
    let read = |key: &&Key| key.3 == "owner" && key.2.is_some();
    let said = ours.keys().filter(read).filter(|key| corrected(key)).filter(|key| flagged(key)).count();
    assert!(said > 20 && !ours.keys().any(|key| !corrected(key) && flagged(key)), "{said}");

    // Where it is not, owners still have the API's time, and what they did is off by the skew at either end of a row: by a whole
    // round where a holding's edge lies between a round and its stamp.
    let sums = |folder: &Path| {
        let table = rows(folder, "gpu_hours");
        let hour = table.column_by_name("hour_start").unwrap().as_primitive::<TimestampMicrosecondType>();
        let (nodes, pods, used) = (texts(&table, "node"), texts(&table, "pod_uid"), ints(&table, "sm_utilized_ms"));
        let ms = ints(&table, "ms");
        let mut sums: BTreeMap<(i64, String), (i64, i64, i64)> = BTreeMap::new();
        for row in (0..table.num_rows()).filter(|row| hour.value(*row) / 1000 >= second) {
            let node = &skewed.nodes()[skewed.node(nodes[row].unwrap()).unwrap()];
            if let (Some(pod), false) = (pods[row], limit(node)) {
                let sum = sums.entry((hour.value(row), pod.to_owned())).or_default();
                *sum = (sum.0 + ms[row], sum.1 + used[row], sum.2 + 1);
            }
        }
        sums
    };
    let (ours, theirs) = (sums(&wrong), sums(&right));
    assert!(ours.len() > 20 && ours.keys().eq(theirs.keys()));
    let by_uid: BTreeMap<&str, &simulator::plan::PodPlan> = skewed.pods().iter().map(|pod| (&*pod.uid, pod)).collect();
    let mut moved = 0;
    for (key, (ms, used, devices)) in &ours {
        let (true_ms, true_used, _) = theirs[key];
        let b = by_uid[&*key.1].bound.as_ref().unwrap();
        let skew = skewed.nodes()[b.node].skew_ms.abs();
        let near = |at: i64| {
            let since = (at - skewed.window().from().ms()).rem_euclid(30_000);
            // API times are whole seconds.
            since.min(30_000 - since) <= skew + 1_000
        };
        let edges = [b.bound, b.named, b.ended, b.released].into_iter().filter(|at| near(*at)).count() as i64;
        let bound = devices * (2 * skew + edges * (30_000 + skew)) + 1;
        assert_eq!(*ms, true_ms, "{key:?}");
        assert!((used - true_used).abs() <= bound, "{key:?}: {used} ms, by a right clock {true_used}; {bound} allowed");
        moved += i64::from(*used != true_used);
    }
    assert!(moved > 0, "a wrong clock is no right one");
}
