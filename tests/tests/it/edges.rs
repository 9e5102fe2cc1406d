//! Which crate may depend on which: DESIGN's edges, and no others.

use std::collections::{BTreeMap, BTreeSet};

/// Every crate and the crates of ours that it may use, outside tests.
const EDGES: &[(&str, &[&str])] = &[
    ("schemas", &[]),
    ("attribution", &["schemas"]),
    ("lake", &["schemas"]),
    ("web", &["schemas"]),
    ("exporter", &["schemas", "attribution", "web"]),
    ("simulator", &["schemas", "exporter", "attribution", "lake", "web"]),
    ("nvml-sim", &["schemas", "exporter", "simulator"]),
    ("ingest", &["schemas", "attribution", "lake", "web"]),
    ("ledger", &["schemas"]),
    ("query", &["schemas", "ledger", "lake", "web"]),
    ("cli", &["schemas", "attribution", "lake", "web", "exporter", "simulator", "ingest", "ledger", "query"]),
    ("tests", &["schemas", "attribution", "lake", "web", "exporter", "simulator", "ingest", "ledger", "query", "cli"]),
];

/// Heavy dependencies and the one crate that may have each.
const ALONE: &[(&str, &str)] = &[("datafusion", "query"), ("rdkafka", "ingest"), ("object_store", "lake")];

#[test]
fn crates_depend_along_the_design() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let arguments = ["metadata", "--format-version=1", "--no-deps", "--offline", "--manifest-path", manifest];
    let answer = std::process::Command::new(env!("CARGO")).args(arguments).output().unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let allowed: BTreeMap<&str, BTreeSet<&str>> = EDGES.iter().map(|(name, to)| (*name, to.iter().copied().collect())).collect();
    let ours: BTreeSet<&str> = packages.iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(ours, allowed.keys().copied().collect(), "a crate is new or gone: write its edges here and in the design");
    for package in packages {
        for dependency in package["dependencies"].as_array().unwrap() {
            let (from, to) = (package["name"].as_str().unwrap(), dependency["name"].as_str().unwrap());
            assert!(!ours.contains(to) || allowed[from].contains(to), "{from} -> {to} is no edge of the design");
            for (heavy, owner) in ALONE {
                assert!(to != *heavy || from == *owner, "{from} depends on {heavy}, which is {owner}'s alone");
            }
        }
    }
}

#[test]
fn arrow_is_there_once() {
    let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock")).unwrap();
    for name in ["arrow", "arrow-array", "arrow-schema", "parquet", "object_store", "datafusion"] {
        let count = lock.matches(&format!("name = \"{name}\"\n")).count();
        assert!(count <= 1, "{name} is locked {count} times; two arrows do not share record batches");
    }
}
