//! The same bytes for (spec, seed, time) on every machine, in every build: a change of a hash here is a change of every recorded
//! fleet, and is to be meant. `./x test` runs this program from two builds of simulator and renderer: with a debug build's checks,
//! and as release has them.
#![allow(clippy::unwrap_used)]

#[path = "it/fleets.rs"]
mod fleets;

use fleets::{fleet, spec, text, ticks};
use schemas::{Timestamp, proto::Message as _};
use sha2::{Digest, Sha256};
use simulator::{
    Plan, Seed,
    backfill::{
        Agents, frames,
        lake::{Options, backfill},
    },
    podres, truth,
};

fn hash_of(parts: impl IntoIterator<Item = Vec<u8>>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Every page of a fleet, asked for in an order of the caller's, hashed in order of time.
fn hash(plan: &Plan, order: impl Iterator<Item = Timestamp>) -> String {
    let mut pages: Vec<(Timestamp, usize, Vec<u8>)> = Vec::new();
    for at in order {
        pages.extend((0..plan.nodes().len()).map(|node| (at, node, text(plan, node, at))));
    }
    pages.sort();
    let mut hash = Sha256::new();
    pages.iter().for_each(|(_, _, page)| hash.update(page));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn equal_arguments_give_equal_bytes_in_any_order_of_asking() {
    let plan = fleet("small");
    let forward = hash(&plan, ticks(&plan, 17_001));
    assert_eq!(hash(&plan, ticks(&plan, 17_001).rev()), forward);
    assert_eq!(hash(&fleet("small"), ticks(&plan, 17_001)), forward);
    let other = Plan::new(spec("small"), Seed(8)).unwrap();
    assert_ne!(hash(&other, ticks(&plan, 17_001)), forward);
    // The same on every machine and in every build: a change of this line is a change of every recorded fleet.
    assert_eq!(forward, "5cdfc4112c698a6718c4f22fccdd977e79ae46d0c5d2862ee43fe1a281d27e4d");
}

#[test]
fn every_face_has_the_bytes_that_it_always_had() {
    let plan = fleet("small");
    let truth = hash_of([format!("{:?}", truth(&plan, plan.window()).unwrap()).into_bytes()]);
    let nodes = 0..plan.nodes().len();
    let at = |backwards: bool| -> Vec<Timestamp> {
        if backwards { ticks(&plan, 61_007).rev().collect() } else { ticks(&plan, 61_007).collect() }
    };
    let listed = |backwards| {
        let mut lists: Vec<(Timestamp, usize, Vec<u8>)> = Vec::new();
        for at in at(backwards) {
            lists.extend(nodes.clone().map(|node| (at, node, podres::list(&plan, node, at).encode_to_vec())));
        }
        lists.sort();
        hash_of(lists.into_iter().map(|(_, _, list)| list))
    };
    assert_eq!(listed(false), listed(true), "whatever was asked before");
    let mut messages = Vec::new();
    frames::write(&plan, plan.window(), &Agents::default(), &mut messages, |_| {}).unwrap();
    let messages = hash_of([messages]);
    let rows = |threads| {
        let folder = tempfile::tempdir().unwrap();
        let lake = lake::Lake::create(folder.path()).unwrap();
        backfill(&plan, &lake, &Options { window: plan.window(), threads, agents: Agents::default() }, &|_| {}).unwrap();
        let tables = ["gpu_samples", "scrapes", "allocations", "nodes", "demand", "truth_gpu_hours"].map(schemas::tables::get);
        let files = tables.into_iter().flat_map(|table| lake.closed_files(table, None).unwrap());
        hash_of(files.map(|file| lake::read::footer(&file.path).unwrap().content_hash.into_bytes()))
    };
    assert_eq!(rows(1), rows(3), "however many threads");
    assert_eq!(
        [truth, listed(false), messages, rows(2)],
        [
            "53a9e5abcdeb66ce9e0d2e320dae377f",
            "59c13bea5102199c2d17a20c848fcf5c",
            "30d1a4b8f372fd3e0414fd296bca5efc",
            "8ad8711fdafa478b2354da904f5ce319"
        ],
        "truth, pod-resources, messages, rows"
    );
}
