//! A node of which no inventory is known: what it holds is allocated, taken from nothing, and its capacity is not claimed.

use std::collections::BTreeSet;

use ledger::{
    hours,
    input::{Device, Held, Holding, Ids, Inputs, Pod, Ratio},
    row::{Flag, FlagSet},
};
use schemas::status::HoldingSource;

use crate::worlds::{at, window};

#[test]
fn time_by_number_is_allocated_in_full() {
    let pod = Pod { uid: "u".into(), namespace: "n".into(), name: "p".into(), team: None, workload: None, queue: None };
    let holding = Holding {
        pod,
        node: "unplaced".into(),
        held: Held::Count { count: 3, weight: Ratio::new(1, 4).unwrap() },
        bound: at(0),
        started: Some(at(0)),
        terminating_from: None,
        end: Some(at(1000)),
        source: HoldingSource::Import,
        flags: FlagSet::EMPTY,
    };
    let mut inputs = Inputs { holdings: vec![holding], ..Inputs::default() };
    let rows = hours(&inputs, window(0, 2000)).unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(
        (rows[0].ms, rows[0].owner().unwrap().overcommitted_ms),
        (0, 750),
        "an inventory without GPUs has nothing to hold"
    );

    inputs.without_inventory = BTreeSet::from(["unplaced".into()]);
    let rows = hours(&inputs, window(0, 2000)).unwrap();
    assert_eq!(rows.len(), 1, "nothing is taken from free time that nobody knows");
    let owner = rows[0].owner().unwrap();
    assert_eq!((rows[0].ms, owner.overcommitted_ms), (750, 0));
    assert!(owner.flags.contains(Flag::NoInventory) && !owner.flags.contains(Flag::Overcommitted));
    assert_eq!(rows[0].place.device, None);
}

#[test]
fn what_nobody_holds_of_it_is_no_row() {
    let pod =
        |uid: &str| Pod { uid: uid.into(), namespace: "n".into(), name: uid.into(), team: None, workload: None, queue: None };
    let holding = |uid: &str, held: Held, from: i64, to: i64| Holding {
        pod: pod(uid),
        node: "n1".into(),
        held,
        bound: at(from),
        started: Some(at(from)),
        terminating_from: None,
        end: Some(at(to)),
        source: HoldingSource::Import,
        flags: FlagSet::EMPTY,
    };
    let of_device = Held::Device { device: "A".into(), ids: Ids::ONE, known_from: Some(at(0)) };
    let mut inputs = Inputs {
        devices: vec![Device::new("A", "n1")],
        holdings: vec![
            holding("named", of_device, 0, 500),
            holding("counted", Held::Count { count: 1, weight: Ratio::ONE }, 500, 2000),
        ],
        ..Inputs::default()
    };
    let lines = |inputs: &Inputs| -> Vec<(Option<String>, i64, bool)> {
        let rows = hours(inputs, window(0, 2000)).unwrap();
        rows.iter().map(|row| (row.place.device.as_deref().map(str::to_owned), row.ms, row.owner().is_some())).collect()
    };
    let named = (Some("A".to_owned()), 500, true);
    let listed = [named.clone(), (Some("A".to_owned()), 1500, false), (None, 1500, true), (None, -1500, false)];
    assert_eq!(lines(&inputs), listed, "with an inventory, what is held by number is taken from free time");

    inputs.without_inventory = BTreeSet::from(["n1".into()]);
    assert_eq!(lines(&inputs), [named, (None, 1500, true)]);
}
