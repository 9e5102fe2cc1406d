//! Counters by the vectors, and energy and memory by owner.

use ledger::{
    counter::{self, StepKind},
    hours,
    input::{Device, Held, Holding, Ids, Inputs, Pod, Readings, Rules, Sample},
    row::FlagSet,
};
use schemas::{Timestamp, status::HoldingSource};
use serde_json::{Value, json};

use crate::worlds::{EDGE, at, window};

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/vectors/meters.jsonl");

#[test]
fn every_counter_case_comes_out() {
    let cases = std::fs::read_to_string(CASES).unwrap();
    let cases: Vec<Value> = cases.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut failed = Vec::new();
    let counters = cases.iter().filter(|case| case["kind"] == "counter");
    assert_eq!(counters.clone().count(), 13, "cases were added or lost");
    for case in counters {
        let raw = case["input"]["readings"].as_array().unwrap().iter();
        let raw = raw.filter_map(|r| Some((r["at"].as_str()?.parse::<Timestamp>().unwrap(), r["value"].as_i64()?)));
        let readings = counter::readings(raw.collect());
        let steps: Vec<_> = counter::steps(&readings, case["input"]["max_rate_per_s"].as_i64()).collect();
        let count = |kind| steps.iter().filter(|step| step.kind == kind).count();
        let got = json!({
            "increase": steps.iter().map(|step| step.increase).sum::<i64>(),
            "resets": count(StepKind::Reset),
            "implausible": count(StepKind::Implausible),
            "readings": readings.len(),
        });
        if got != case["expect"] {
            failed.push(format!("{}: got {got}, expected {}", case["name"], case["expect"]));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

fn holding(uid: &str, bound: i64, end: Option<i64>) -> Holding {
    Holding {
        pod: Pod { uid: uid.into(), namespace: "surf".into(), name: uid.into(), team: None, workload: None, queue: None },
        node: "n1".into(),
        held: Held::Device { device: "A".into(), ids: Ids::ONE, known_from: None },
        bound: at(EDGE + bound),
        started: Some(at(EDGE + bound)),
        terminating_from: None,
        end: end.map(|end| at(EDGE + end)),
        source: HoldingSource::Api,
        flags: FlagSet::EMPTY,
    }
}

/// Each owner's hour as `uid hour energy fb_used fb_unobserved flags`.
fn check(replicas: u32, holdings: &[Holding], readings: &[(i64, i64, i64)], expected: &[&str]) {
    let mut device = Device::new("A", "n1");
    device.replicas = std::num::NonZeroU32::new(replicas).unwrap();
    let sample = |&(ms, energy, fb): &(i64, i64, i64)| Sample {
        device: "A".into(),
        at: at(EDGE + ms),
        readings: Readings { energy_mj: Some(energy), fb_used_mib: Some(fb), ..Readings::default() },
        flags: FlagSet::EMPTY,
    };
    let inputs = Inputs {
        rules: Rules { horizon_ms: 100, ..Rules::default() },
        devices: vec![device],
        holdings: holdings.to_vec(),
        samples: readings.iter().map(sample).collect(),
        ..Inputs::default()
    };
    let rows = hours(&inputs, window(EDGE - 1000, EDGE + 1000)).unwrap();
    let line = |row: &ledger::HourRow| {
        let owner = row.owner()?;
        let [energy, used, unseen] =
            [owner.energy_mj, owner.fb_used_mib_ms, owner.fb_unobserved_ms].map(|m| m.map_or("-".into(), |m| m.to_string()));
        let hour = if row.hour_start.ms() < EDGE { "before" } else { "after" };
        Some(format!("{} {hour} {energy} {used} {unseen} {}", owner.pod.uid, owner.flags).trim().to_owned())
    };
    assert_eq!(rows.iter().filter_map(line).collect::<Vec<_>>(), expected);
}

#[test]
fn energy_is_cut_at_owner_edges_and_hours_and_nobodys_over_a_gap() {
    let two = [holding("a", -100, Some(20)), holding("b", 20, None)];
    check(
        1,
        &two,
        &[(-50, 1000, 10), (50, 2000, 20), (250, 9000, 20), (300, 9001, 30)],
        // -50 to 50: 10 a millisecond; 50 to 250 is longer than the horizon
        &["a before 500 500 50", "a after 200 200 0", "b after 301 6000 730"],
    );
}

#[test]
fn a_reset_is_a_lower_bound_and_an_impossible_fall_adds_nothing() {
    check(1, &[holding("a", 0, None)], &[(0, 900_000, 0), (100, 50_000, 0)], &["a after 50000 0 800 reset"]);
    check(1, &[holding("a", 0, None)], &[(0, 900_000, 0), (100, 899_999, 0)], &["a after 0 0 800 implausible"]);
}

#[test]
fn a_shared_device_is_split_equally() {
    let two = [holding("a", 0, Some(100)), holding("b", 0, Some(100))];
    check(2, &two, &[(0, 0, 8), (100, 101, 8)], &["a after 51 400 0 shared", "b after 50 400 0 shared"]);
}
