//! What must hold in every world.

use std::collections::BTreeMap;

use ledger::{
    HourRow,
    capacity::capacities,
    hours,
    input::{Inputs, Span},
    row::What,
};
use proptest::prelude::*;
use schemas::{
    HOUR_MS,
    status::{Cause, Tier},
};

use crate::worlds::{CHOICE, EDGE, HALF, World, at, whole, window, worlds};

fn account(inputs: &Inputs) -> Vec<HourRow> {
    hours(inputs, whole()).unwrap()
}

/// Milliseconds of the union of spans inside `[from, to)`, instant by instant.
fn union_ms<'a>(spans: impl Iterator<Item = &'a Span> + Clone, from: i64, to: i64) -> i64 {
    (from..to).filter(|t| spans.clone().any(|s| s.from.ms() <= *t && *t < s.to.ms())).count() as i64
}

/// Rows without what a failed scrape may change: which cause it was.
fn without_causes(rows: &[HourRow]) -> Vec<String> {
    let line = |row: &HourRow| {
        let mut text = format!("{:?} {} {:?} {} ", row.hour_start, row.place.node, row.place.device, row.ms);
        match &row.what {
            What::Owner(owner) => {
                for tier in Tier::ALL {
                    let time = &owner.tiers[*tier];
                    let seen = (time.utilized_ms, time.stranded_ms, time.unobserved_ms(), time.over_share_ms);
                    text += &format!("{seen:?} ");
                }
                text + &format!(
                    "{:?}",
                    (&owner.pod.uid, owner.pre_start_ms, owner.terminating_ms, owner.on_unready_ms, owner.flags)
                )
            }
            What::Free(reason) | What::Unavailable(reason) => text + reason,
        }
    };
    rows.iter().map(line).collect()
}

/// Rows without anything that samples may change.
fn allocated(rows: &[HourRow]) -> Vec<(String, i64, [i64; 5])> {
    let line = |row: &HourRow| {
        let key = format!("{:?} {} {:?} ", row.hour_start, row.place.node, row.place.device);
        match &row.what {
            What::Owner(o) => {
                let memos = [o.pre_start_ms, o.terminating_ms, o.on_unready_ms, o.held_profile_ms, o.overcommitted_ms];
                (key + &o.pod.uid, row.ms, memos)
            }
            What::Free(reason) | What::Unavailable(reason) => (key + reason, row.ms, [0; 5]),
        }
    };
    rows.iter().map(line).collect()
}

fn both_identities_hold(World(inputs): &World, rows: &[HourRow]) {
    let mut by_gpu: BTreeMap<(i64, &str), i64> = BTreeMap::new();
    let mut by_number: BTreeMap<(i64, &str), i64> = BTreeMap::new();
    let mut total = 0;
    for row in rows {
        let hour = row.hour_start.ms();
        let place = &row.place;
        total += row.ms;
        match &place.device {
            Some(device) => *by_gpu.entry((hour, place.parent.as_ref().unwrap_or(device))).or_default() += row.ms,
            None => *by_number.entry((hour, &place.node)).or_default() += row.ms,
        }
        if let What::Owner(owner) = &row.what {
            for tier in Tier::ALL {
                let time = &owner.tiers[*tier];
                assert_eq!(time.utilized_ms + time.stranded_ms + time.unobserved_ms(), row.ms, "{tier} of {row:?}");
                assert!(time.utilized_ms >= 0 && time.stranded_ms >= 0 && time.over_share_ms >= 0, "{row:?}");
                assert!(Cause::ALL.iter().all(|cause| time.unobserved_by(*cause) >= 0), "{row:?}");
            }
            for memo in [owner.pre_start_ms, owner.terminating_ms, owner.on_unready_ms] {
                assert!((0..=row.ms).contains(&memo), "{row:?}");
            }
        }
        let taken_back = matches!(&row.what, What::Free(reason) | What::Unavailable(reason) if **reason == *"held_unknown");
        assert!(row.ms >= 0 || (taken_back && place.device.is_none()), "{row:?}");
    }
    assert!(by_number.values().all(|ms| *ms == 0), "a row by number has no capacity: {by_number:?}");

    let mut capacity = 0;
    for (hour, from, to) in [(EDGE - HOUR_MS, EDGE - HALF, EDGE), (EDGE, EDGE, EDGE + HALF)] {
        for gpu in ["A", "B", "C", "M"] {
            let of_gpu = |id: &str| id == gpu || id.strip_prefix(gpu).is_some_and(|rest| rest.starts_with('/'));
            let spans = inputs.devices.iter().filter(|d| of_gpu(&d.id)).flat_map(|d| &d.present);
            let present = union_ms(spans, from, to);
            assert_eq!(by_gpu.get(&(hour, gpu)).copied().unwrap_or(0), present, "GPU {gpu} in the hour {hour}");
            capacity += present;
        }
    }
    assert_eq!(total, capacity, "the fleet");

    let mut by_device: BTreeMap<_, i64> = BTreeMap::new();
    for row in rows {
        if let Some(device) = &row.place.device {
            *by_device.entry((row.hour_start, row.place.node.clone(), device.clone())).or_default() += row.ms;
        }
    }
    let inventory = capacities(&inputs.devices, whole()).unwrap();
    let inventory: BTreeMap<_, i64> = inventory.into_iter().map(|d| ((d.hour_start, d.node, d.device), d.capacity_ms)).collect();
    assert_eq!(by_device, inventory, "rows against the inventory alone");
}

/// What samples, holdings and failed scrapes say, in another order and with repeats.
fn shuffled(inputs: &Inputs, by: usize) -> Inputs {
    fn turn<T: Clone>(items: &[T], by: usize) -> Vec<T> {
        let mut turned: Vec<T> = items.iter().rev().cloned().collect();
        let turns = by % turned.len().max(1);
        turned.rotate_left(turns);
        turned.extend(items.iter().step_by(2).cloned());
        turned
    }
    let mut devices = inputs.devices.clone();
    devices.reverse();
    Inputs {
        rules: inputs.rules,
        devices,
        holdings: turn(&inputs.holdings, by),
        samples: turn(&inputs.samples, by),
        failed_scrapes: turn(&inputs.failed_scrapes, by),
        without_inventory: inputs.without_inventory.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn capacity_and_allocation_close(world in worlds(true, true)) {
        both_identities_hold(&world, &account(&world.0));
    }

    #[test]
    fn order_and_repetition_change_nothing(World(inputs) in worlds(true, true), by in 0..50_usize) {
        prop_assert_eq!(account(&shuffled(&inputs, by)), account(&inputs));
    }

    #[test]
    fn hours_add_up_at_a_full_hour(World(inputs) in worlds(true, true)) {
        let mut parts = hours(&inputs, window(EDGE - HALF, EDGE)).unwrap();
        parts.extend(hours(&inputs, window(EDGE, EDGE + HALF)).unwrap());
        prop_assert_eq!(parts, account(&inputs));
    }

    #[test]
    fn a_node_and_an_hour_need_nothing_of_the_rest(World(inputs) in worlds(true, true)) {
        let mut parts = Vec::new();
        for (from, to) in [(EDGE - HALF, EDGE), (EDGE, EDGE + HALF)] {
            for node in ["n1", "n2"] {
                let mut part = inputs.clone();
                let near = |t: schemas::Timestamp| (from - inputs.rules.horizon_ms..to).contains(&t.ms());
                part.devices.retain(|d| &*d.node == node);
                part.holdings.retain(|h| &*h.node == node);
                part.samples.retain(|s| near(s.at) && part.devices.iter().any(|d| d.id == s.device));
                part.failed_scrapes.retain(|s| &*s.node == node && near(s.at));
                parts.extend(hours(&part, window(from, to)).unwrap());
            }
        }
        prop_assert_eq!(parts, account(&inputs));
    }

    #[test]
    fn a_failed_scrape_changes_causes_only(World(inputs) in worlds(false, false), ms in -HALF..HALF) {
        let mut with = inputs.clone();
        with.failed_scrapes.push(ledger::input::FailedScrape { node: "n1".into(), at: at(EDGE + ms) });
        prop_assert_eq!(without_causes(&account(&with)), without_causes(&account(&inputs)));
    }

    #[test]
    fn records_never_change_what_is_allocated(World(inputs) in worlds(true, true), every in 1..5_usize) {
        let mut without = inputs.clone();
        without.samples = without.samples.into_iter().step_by(every + 1).collect();
        without.failed_scrapes.clear();
        prop_assert_eq!(allocated(&account(&without)), allocated(&account(&inputs)));
    }
}

#[test]
fn the_worlds_reach_every_kind_of_device() {
    assert!(CHOICE.iter().any(|(_, _, parent, _)| parent.is_some()));
    assert_eq!(
        CHOICE.iter().filter(|(_, _, parent, _)| *parent == Some("M")).map(|c| c.3).sum::<u32>(),
        6,
        "an orphan of one seventh"
    );
}
