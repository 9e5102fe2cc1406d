//! A node of which no inventory is known: what it holds is allocated, taken from nothing, and its capacity is not claimed.

use std::collections::BTreeSet;

use ledger::{
    hours,
    input::{Held, Holding, Inputs, Pod, Ratio},
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
