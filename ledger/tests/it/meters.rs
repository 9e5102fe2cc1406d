//! The vectors' measures, and energy and memory by owner.

use ledger::{
    hours,
    input::{Device, Held, Holding, Ids, Inputs, Pod, Readings, Rules, Sample},
    measures::{self, busy, fragmentation},
    row::FlagSet,
};
use proptest::prelude::*;
use schemas::status::HoldingSource;
use serde_json::{Value, json};

use crate::worlds::{EDGE, at, window};

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/vectors/meters.jsonl");

#[test]
fn every_case_comes_out() {
    let cases = std::fs::read_to_string(CASES).unwrap();
    let mut failed = Vec::new();
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let got = measures::cases::run(line).unwrap_or_else(|error| json!(error.to_string()));
        if got != case["expect"] {
            failed.push(format!("{}: got {got}, expected {}", case["name"], case["expect"]));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(cases.lines().count(), 43, "cases were added or lost");
}

#[test]
fn numbers_that_make_no_sense_have_an_error_and_no_figure() {
    let huge = 1_000_000_000_000_000_000_i64;
    let small = "\"9999999999999999999999\"";
    for (kind, input) in [
        ("fragmentation", format!("{{\"steps\":[{{\"ms\":{huge},\"free\":[4294967295]}}],\"shapes\":[1]}}")),
        ("fragmentation", "{\"steps\":[{\"ms\":1,\"free\":[1]}],\"shapes\":[0]}".into()),
        ("fragmentation", "{\"steps\":[{\"ms\":-1,\"free\":[1]}],\"shapes\":[1]}".into()),
        ("memory_hours", format!("{{\"steps\":[{{\"mib\":18446744073709551615,\"ms\":{huge}}}]}}")),
        ("seat_hours", format!("{{\"capacity\":18446744073709551615,\"steps\":[{{\"seats\":1,\"ms\":{huge}}}]}}")),
        ("unserved", format!("{{\"now\":\"9999-12-31T00:00:00Z\",\"jobs\":[{{\"gpus\":{huge},\"asked\":\"0000-01-01T00:00:00Z\"}}]}}")),
        ("weighting", "{\"jobs\":[{\"count\":1,\"gpus\":1,\"ms\":1,\"u\":-1}]}".into()),
        ("weighting", format!("{{\"jobs\":[{{\"count\":1,\"gpus\":1,\"ms\":1,\"u\":{small}}}]}}")),
        ("busy_profile", "{\"steps\":[{\"busy\":1,\"ms\":-5}]}".into()),
        ("nodes", "{\"demand\":1,\"per_node\":0,\"regions\":1,\"lost_regions\":0,\"failure_ppm\":0,\"maintenance_ppm\":0,\"gpus_per_node\":8}".into()),
        ("nodes", "{\"demand\":1,\"per_node\":1,\"regions\":1,\"lost_regions\":1,\"failure_ppm\":0,\"maintenance_ppm\":0,\"gpus_per_node\":8}".into()),
        ("nodes", "{\"demand\":1,\"per_node\":1,\"regions\":1,\"lost_regions\":0,\"failure_ppm\":1000000,\"maintenance_ppm\":0,\"gpus_per_node\":8}".into()),
        ("nodes", "{\"demand\":18446744073709551615,\"per_node\":1,\"regions\":4294967295,\"lost_regions\":4294967294,\"failure_ppm\":999999,\"maintenance_ppm\":999999,\"gpus_per_node\":4294967295}".into()),
        ("forecast", "{\"n\":90,\"p\":1,\"at_or_below\":3}".into()),
        ("forecast", "{\"n\":0,\"p\":0.5,\"at_or_below\":0}".into()),
        ("calendar", "{\"zone\":\"Mars/Olympus\",\"bucket\":\"day\",\"from_local\":\"2026-01-01\",\"to_local\":\"2026-01-02\"}".into()),
        ("calendar", "{\"zone\":\"UTC\",\"bucket\":\"hour\",\"from_local\":\"1000-01-01\",\"to_local\":\"3000-01-02\"}".into()),
        ("calendar", "{\"zone\":\"UTC\",\"bucket\":\"year\",\"from_local\":\"1000-01-01\",\"to_local\":\"3000-01-02\"}".into()),
        ("tea", "{}".into()),
    ] {
        let answer = measures::cases::run(&format!("{{\"kind\":\"{kind}\",\"input\":{input}}}"));
        assert!(answer.is_err(), "{kind} {input}: {answer:?}");
    }
    // What has no time has no share, and is not 0 %.
    let answer = |kind: &str, input: &str| measures::cases::run(&format!("{{\"kind\":\"{kind}\",\"input\":{input}}}")).unwrap();
    assert!(answer("seat_hours", "{\"capacity\":0,\"steps\":[]}")["used_ppm"].is_null());
    assert!(answer("weighting", "{\"jobs\":[]}")["per_job_mean"].is_null());
    assert!(answer("busy_profile", "{\"steps\":[{\"busy\":3,\"ms\":0}]}")["max"].is_null());
    let withdrawn =
        "{\"now\":\"2026-03-02T10:00:09Z\",\"jobs\":[{\"gpus\":2,\"asked\":\"2026-03-02T10:00:09Z\",\"withdrawn\":null}]}";
    assert_eq!(answer("unserved", withdrawn)["still_waiting_ms"], json!([0]));
}

proptest! {
    /// Against an answer that asks every millisecond.
    #[test]
    fn busy_and_scattered_devices_agree_with_a_count_of_every_ms(
        steps in proptest::collection::vec((proptest::collection::vec(0_u32..9, 1..4), 0_i64..7), 0..6),
        shape in 1_u32..5,
    ) {
        let free: Vec<fragmentation::Step> =
            steps.iter().map(|(free, ms)| fragmentation::Step { ms: *ms, free: free.clone() }).collect();
        let every: Vec<&Vec<u32>> = steps.iter().flat_map(|(free, ms)| std::iter::repeat_n(free, *ms as usize)).collect();
        let got = fragmentation::shapes(&free, &[shape]).unwrap()[0];
        let gangs: u32 = every.iter().flat_map(|free| free.iter().map(|n| n / shape)).sum();
        let all: u32 = every.iter().flat_map(|free| free.iter()).sum();
        prop_assert_eq!((got.gang_ms, got.free_ms), (i64::from(gangs), i64::from(all)));
        prop_assert_eq!(got.usable_ms + got.lost_ms, got.free_ms);

        let busy: Vec<(u32, i64)> = steps.iter().map(|(free, ms)| (free[0], *ms)).collect();
        let mut every: Vec<u32> = every.iter().map(|free| free[0]).collect();
        every.sort_unstable();
        let at = |percent: usize| every.get((every.len() * percent).div_ceil(100).max(1) - 1).copied();
        let got = busy::profile(&busy).unwrap();
        prop_assert_eq!(got.map(|p| [p.p50, p.p95, p.max]), at(50).zip(at(95)).zip(at(100)).map(|((a, b), c)| [a, b, c]));
    }
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
    check_on(device, holdings, readings, expected);
}

fn check_on(device: Device, holdings: &[Holding], readings: &[(i64, i64, i64)], expected: &[&str]) {
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

#[test]
fn the_counter_of_a_whole_board_is_nobodys_energy_on_an_instance() {
    let instance = Device { parent: Some("G".into()), ..Device::new("A", "n1") };
    check_on(instance, &[holding("a", 0, Some(100))], &[(0, 0, 8), (100, 101, 8)], &["a after - 800 0"]);
}
