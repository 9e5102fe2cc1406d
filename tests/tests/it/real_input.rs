//! Real traces, imported as holdings: our hours against the exact overlap that comes with them.

use std::{collections::BTreeMap, fs};

use schemas::{HOUR_MS, Timestamp};
use serde_json::Value;

use crate::command::{succeeds, tree, tree_text};

/// GPU-hours by (hour start in seconds, team), from a trace's `hourly_gpu_hours.csv`.
fn expected(path: &str) -> BTreeMap<(i64, String), f64> {
    let text = fs::read_to_string(tree(path)).unwrap();
    let mut lines = text.lines();
    let teams: Vec<&str> = lines.next().unwrap().split(',').skip(1).collect();
    let mut hours = BTreeMap::new();
    for line in lines {
        let mut cells = line.split(',');
        let start: i64 = cells.next().unwrap().parse().unwrap();
        for (team, cell) in teams.iter().zip(cells) {
            hours.insert((start, (*team).to_owned()), cell.parse::<f64>().unwrap());
        }
    }
    hours
}

/// Imports a table with `mapping`, computes its window and compares.
fn imported_equals(table: &str, truth: &str, epoch: Timestamp, mapping: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let lake = folder.path().join("lake").to_str().unwrap().to_owned();
    let expected = expected(truth);
    let at = |seconds: i64| epoch.plus_ms(seconds * 1000);
    let from = at(expected.keys().next().unwrap().0).to_string();
    let to = at(expected.keys().last().unwrap().0 + 3600).to_string();

    let (table, epoch_text) = (tree_text(table), epoch.to_string());
    let mut import = vec!["import", "allocations", &table, "--lake", &lake, "--epoch", &epoch_text];
    for pair in mapping {
        import.extend(["--map", pair]);
    }
    succeeds(&import);
    succeeds(&["hours", "--lake", &lake, "--from", &from, "--to", &to]);
    let report = succeeds(&["report", "--lake", &lake, "--by", "team,hour", "--from", &from, "--to", &to, "--format", "json"]);
    let mut found = BTreeMap::new();
    for line in report.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["capacity_ms"], Value::Null, "no inventory was imported, so no capacity is claimed: {line}");
        let hour: Timestamp = line["hour"].as_str().unwrap().replace('Z', ":00Z").parse().unwrap();
        let seconds = (hour.ms() - epoch.ms()) / 1000;
        let hours = line["allocated_ms"].as_i64().unwrap() as f64 / HOUR_MS as f64;
        found.insert((seconds, line["team"].as_str().unwrap().to_owned()), hours);
    }
    let mut compared = 0;
    for (key, truth) in &expected {
        let ours = found.get(key).copied().unwrap_or(0.0);
        assert!((ours - truth).abs() <= 5e-7, "{key:?}: {ours} GPU-hours, by the trace {truth}");
        compared += usize::from(*truth > 0.0);
    }
    for (key, ours) in &found {
        assert!(expected.contains_key(key) || *ours == 0.0, "{key:?}: {ours} GPU-hours that the trace does not have");
    }
    assert!(compared > 300, "only {compared} hours had anything to compare");

    let check = succeeds(&["check", "--lake", &lake, "--from", &from, "--to", &to]);
    assert!(check.starts_with("closes: "), "{check}");
    assert!(check.contains("identity 1 (capacity) is not claimed for 1 nodes without inventory: imported/unplaced"), "{check}");
    let total = succeeds(&["report", "--lake", &lake, "--by", "team", "--from", &from, "--to", &to]);
    assert!(total.contains("capacity is not known"), "{total}");
}

#[test]
fn openb_pods_with_fractions_of_gpus() {
    let mapping =
        ["pod=name", "team=qos", "gpus=num_gpu", "weight=gpu_milli/1000", "bound=scheduled_time", "ended=deletion_time"];
    let folder = "tests/data/traces/openb-pods";
    let epoch = "2023-01-01T00:00:00Z".parse().unwrap();
    imported_equals(&format!("{folder}/pods.csv"), &format!("{folder}/hourly_gpu_hours.csv"), epoch, &mapping);
}

#[test]
fn philly_jobs() {
    let mapping = ["pod=job_id", "team=vc", "gpus=num_gpus", "bound=start_unix", "ended=end_unix"];
    let folder = "tests/data/traces/philly-jobs";
    imported_equals(&format!("{folder}/jobs.csv"), &format!("{folder}/hourly_gpu_hours.csv"), Timestamp::from_ms(0), &mapping);
}
