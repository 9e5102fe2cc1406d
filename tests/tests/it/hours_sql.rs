//! The hours computation in SQL, by DataFusion, DuckDB and Spark, beside the ledger's own rows: the same to the digit.

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Child, Command, Stdio},
};

use lake::Lake;
use schemas::Timestamp;
use serde_json::{Map, Value};

use crate::{
    command::{succeeds, tree, tree_text},
    peers::python,
    sql_world,
};

/// The rows of the ledger, in the order of the computation.
const LEDGER: &str = "SELECT * FROM gpu_hours ORDER BY hour_start, cluster, node, CASE WHEN device IS NULL THEN 1 ELSE 0 END, \
                      device, CASE kind WHEN 'owner' THEN 0 WHEN 'free' THEN 1 ELSE 2 END, COALESCE(pod_uid, reason)";

type Row = Map<String, Value>;

/// Rows of one query of `strandline sql`, instants as milliseconds.
fn ours(lake: &str, query: &str) -> Vec<Row> {
    let text = succeeds(&["sql", "--lake", lake, "--format", "json", query]);
    let row = |line: &str| {
        let mut row: Row = serde_json::from_str(line).unwrap();
        row.remove("date");
        row.remove("hour");
        let at: Timestamp = row["hour_start"].as_str().unwrap().parse().unwrap();
        row.insert("hour_start".into(), at.ms().into());
        row
    };
    text.lines().map(row).collect()
}

/// The hours computation over `lake`, for an engine.
fn hours(lake: &str, engine: &str) -> String {
    succeeds(&["sql", "--lake", lake, "--print", "hours", "--dialect", engine])
}

/// Another engine at work on it.
fn peer(lake: &str, engine: &str, folder: &Path) -> Child {
    let file = folder.join(format!("{engine}.sql"));
    std::fs::write(&file, hours(lake, engine)).unwrap();
    let mut command = Command::new(python());
    command.arg(tree("tests/peers/hours_rows.py")).arg(engine).arg(&file).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What it found.
fn theirs(peer: Child) -> Vec<Row> {
    let done = peer.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8(done.stdout).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Vec<Value>>(line).unwrap());
    let names: Vec<String> = lines.next().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    lines.map(|row| names.iter().cloned().zip(row).collect()).collect()
}

/// Where rows differ, a line each.
fn differences(got: &[Row], expected: &[Row]) -> Vec<String> {
    let key = |row: &Row| {
        ["hour_start", "cluster", "node", "device", "kind", "pod_uid", "reason"].map(|name| row[name].to_string()).join(" ")
    };
    let theirs: BTreeMap<String, &Row> = got.iter().map(|row| (key(row), row)).collect();
    let ours: BTreeMap<String, &Row> = expected.iter().map(|row| (key(row), row)).collect();
    let mut found = Vec::new();
    for (key, row) in &ours {
        let Some(other) = theirs.get(key) else {
            found.push(format!("{key}: no such row"));
            continue;
        };
        let columns = row.iter().filter(|(name, value)| other.get(*name) != Some(value));
        let columns: Vec<String> =
            columns.map(|(name, value)| format!("{name} is {:?} and not {value}", other.get(name))).collect();
        if !columns.is_empty() {
            found.push(format!("{key}: {}", columns.join(", ")));
        }
    }
    found.extend(theirs.keys().filter(|key| !ours.contains_key(*key)).map(|key| format!("{key}: a row too many")));
    if found.is_empty() && got != expected {
        found.push("the rows come in another order, or one comes twice".into());
    }
    found
}

fn check(engine: &str, got: &[Row], expected: &[Row]) {
    let found = differences(got, expected);
    let shown: Vec<&String> = found.iter().take(20).collect();
    assert!(found.is_empty(), "{engine}: {} of {} rows differ:\n{shown:#?}", found.len(), expected.len());
}

#[test]
fn three_engines_and_the_ledger_agree_to_the_digit() {
    let folder = tempfile::tempdir().unwrap();
    let (lake, random) = (folder.path().join("lake"), if std::env::var_os("STRANDLINE_FULL").is_some() { 3000 } else { 300 });
    let made = sql_world::fill(&Lake::create(&lake).unwrap(), random, 7);
    assert_eq!((made.vectors, made.random), (187, random), "cases were added or lost");
    let lake = lake.to_str().unwrap();

    let spark = peer(lake, "spark", folder.path());
    let expected = ours(lake, LEDGER);
    assert_eq!(expected.len(), made.rows);
    let duckdb = peer(lake, "duckdb", folder.path());
    check("datafusion", &ours(lake, &hours(lake, "datafusion")), &expected);
    check("duckdb", &theirs(duckdb), &expected);
    check("spark", &theirs(spark), &expected);

    // Every figure is reached: none of these columns is zero, or null, in all rows of all cases.
    let some = |name: &str| expected.iter().any(|row| row[name].as_i64().is_some_and(|n| n != 0));
    let idle: Vec<&String> =
        expected[0].keys().filter(|name| name.ends_with("_ms") || *name == "energy_mj").filter(|name| !some(name)).collect();
    assert_eq!(idle, ["busy_unobserved_suspect_ms"], "the busy tier has no suspects; all else is compared with something");
    let flags: std::collections::BTreeSet<&str> =
        expected.iter().filter_map(|row| row["flags"].as_str()).flat_map(|flags| flags.split(',')).collect();
    for flag in [
        "conflict",
        "end_clamped",
        "from_labels",
        "mig_overrange",
        "no_inventory",
        "over_share",
        "overcommitted",
        "overrange_clipped",
        "profiling_stuck",
        "replicas_inferred",
        "reset",
        "shared",
        "skew_corrected",
    ] {
        assert!(flags.contains(flag), "no case has the flag {flag}: {flags:?}");
    }
}

#[test]
fn the_hours_of_a_lake_come_out_as_the_job_wrote_them() {
    let folder = tempfile::tempdir().unwrap();
    let lake = folder.path().join("lake").to_str().unwrap().to_owned();
    succeeds(&["demo", "--fleet", &tree_text("kwok-fleet/fleets/small.yaml"), "--keep", &lake]);
    let expected = ours(&lake, LEDGER);
    assert!(expected.len() > 20, "only {} rows", expected.len());
    check("duckdb", &theirs(peer(&lake, "duckdb", folder.path())), &expected);

    // One hour alone, from its own samples and those of the horizon before it.
    let last = expected.last().unwrap()["hour_start"].as_i64().unwrap();
    let hour = [Timestamp::from_ms(last).to_string(), Timestamp::from_ms(last + schemas::HOUR_MS).to_string()];
    let query = succeeds(&["sql", "--lake", &lake, "--print", "hours", "--from", &hour[0], "--to", &hour[1]]);
    let of_hour: Vec<Row> = expected.iter().filter(|row| row["hour_start"] == last).cloned().collect();
    assert!(of_hour.len() < expected.len());
    check("datafusion", &ours(&lake, &query), &of_hour);
}
