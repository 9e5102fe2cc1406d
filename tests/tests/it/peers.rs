//! DuckDB, which no one here wrote, reads the closed tree with a plain glob and agrees with our SQL to the last digit.

use std::process::Command;

use serde_json::Value;

use crate::command::{succeeds, tree, tree_text};

/// Python with the peers' packages: `./x python` makes it on the first call.
pub fn python() -> String {
    let made = Command::new(tree("x")).arg("python").output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

/// Queries with `TABLE:name` in place of each table; whole numbers and texts only, so that answers compare to the digit.
pub const QUERIES: &[&str] = &[
    "SELECT team, kind, SUM(ms) AS ms, SUM(sm_utilized_ms) AS u, SUM(sm_stranded_ms) AS s, COUNT(*) AS n FROM TABLE:gpu_hours GROUP BY team, kind ORDER BY team NULLS FIRST, kind",
    "SELECT device, SUM(ms) AS ms, SUM(busy_utilized_ms) AS b, SUM(effective_utilized_ms) AS e FROM TABLE:gpu_hours GROUP BY device ORDER BY device NULLS FIRST",
    "SELECT node, SUM(capacity_ms) AS ms FROM TABLE:device_hours GROUP BY node ORDER BY node",
    "SELECT CAST(date AS VARCHAR) AS day, CAST(hour AS BIGINT) AS h, COUNT(*) AS n, SUM(dev_gpu_util) AS util, SUM(dev_total_energy_consumption) AS mj, COUNT(prof_sm_active) AS seen FROM TABLE:gpu_samples GROUP BY date, hour ORDER BY 1, 2",
    "SELECT status, COUNT(*) AS n, SUM(series) AS series FROM TABLE:scrapes GROUP BY status ORDER BY status",
    "SELECT source, COUNT(*) AS n, MIN(CAST(from_at AS VARCHAR)) IS NOT NULL AS timed FROM TABLE:allocations GROUP BY source ORDER BY source",
    "SELECT COUNT(*) AS n, SUM(ms) AS ms FROM TABLE:truth_gpu_hours",
    // Every ratio comes back as the six decimals that were printed.
    "SELECT CAST(SUM(CAST(ROUND(CAST(prof_sm_active AS DOUBLE) * 1000000) AS BIGINT)) AS BIGINT) AS ppm FROM TABLE:gpu_samples",
];

#[test]
fn duckdb_agrees_to_the_last_digit() {
    let folder = tempfile::tempdir().unwrap();
    let lake = folder.path().join("lake").to_str().unwrap().to_owned();
    succeeds(&["demo", "--fleet", &tree_text("kwok-fleet/fleets/small.yaml"), "--keep", &lake]);
    let theirs = Command::new(python()).arg(tree("tests/peers/duckdb_rows.py")).arg(&lake).args(QUERIES).output().unwrap();
    assert!(theirs.status.success(), "{}", String::from_utf8_lossy(&theirs.stderr));
    let theirs: Value = serde_json::from_slice(&theirs.stdout).unwrap();
    let mut rows = 0;
    for (query, theirs) in QUERIES.iter().zip(theirs.as_array().unwrap()) {
        let ours = succeeds(&["sql", "--lake", &lake, "--format", "json", &query.replace("TABLE:", "")]);
        let ours: Vec<Value> = ours.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(&Value::Array(ours.clone()), theirs, "{query}");
        assert!(!ours.is_empty(), "{query}");
        rows += ours.len();
    }
    assert!(rows > 20, "only {rows} rows were compared");
}
