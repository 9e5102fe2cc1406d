//! Reports by every grouping close, and say the same in every format.

use serde_json::Value;

use crate::command::{succeeds, tree_text};

const GROUPINGS: [&str; 16] = [
    "cluster",
    "node",
    "region",
    "provider",
    "product",
    "purchase_option",
    "namespace",
    "pod",
    "workload",
    "queue",
    "team",
    "hour",
    "day",
    "month",
    "team,product,hour",
    "node,pod,hour",
];
const FIGURES: [&str; 7] =
    ["capacity_ms", "allocated_ms", "utilized_ms", "stranded_ms", "unobserved_ms", "free_ms", "unavailable_ms"];

#[test]
fn every_grouping_sums_to_the_same_total_and_closes() {
    let folder = tempfile::tempdir().unwrap();
    let lake = folder.path().join("lake").to_str().unwrap().to_owned();
    succeeds(&["demo", "--fleet", &tree_text("kwok-fleet/fleets/small.yaml"), "--keep", &lake]);
    for tier in ["busy", "sm", "effective"] {
        let report =
            |by: &str, format: &str| succeeds(&["report", "--lake", &lake, "--by", by, "--tier", tier, "--format", format]);
        let lines =
            |by: &str| -> Vec<Value> { report(by, "json").lines().map(|line| serde_json::from_str(line).unwrap()).collect() };
        let sums = |lines: &[Value]| FIGURES.map(|figure| lines.iter().map(|line| line[figure].as_i64().unwrap()).sum::<i64>());
        let whole = sums(&lines("month"));
        let [capacity, allocated, utilized, stranded, unobserved, free, unavailable] = whole;
        assert_eq!(capacity, allocated + free + unavailable);
        assert_eq!(allocated, utilized + stranded + unobserved);
        assert_eq!(capacity, 6 * 2 * 3_600_000, "6 GPUs, 2 hours");
        assert!(utilized > 0 && stranded > 0 && free > 0);
        for by in GROUPINGS {
            let lines = lines(by);
            assert_eq!(sums(&lines), whole, "by {by}, tier {tier}");
            for line in &lines {
                let of = |figure: &str| line[figure].as_i64().unwrap();
                assert_eq!(of("capacity_ms"), of("allocated_ms") + of("free_ms") + of("unavailable_ms"), "{line}");
                assert_eq!(of("allocated_ms"), of("utilized_ms") + of("stranded_ms") + of("unobserved_ms"), "{line}");
                assert!(FIGURES.iter().all(|figure| of(figure) >= 0), "nobody is shown a negative time: {line}");
            }
            let csv = report(by, "csv");
            assert_eq!(csv.lines().count(), lines.len() + 1, "a header and a line each");
            let table = report(by, "table");
            assert!(table.contains("closes to the millisecond"), "{table}");
        }
    }
    // A window is a part of the whole, and two make it.
    let part = |from: &str, to: &str| {
        let text = succeeds(&["report", "--lake", &lake, "--by", "day", "--from", from, "--to", to, "--format", "json"]);
        serde_json::from_str::<Value>(text.trim()).unwrap()["allocated_ms"].as_i64().unwrap()
    };
    let (zero, one, two) = ("2026-03-02T00:00:00Z", "2026-03-02T01:00:00Z", "2026-03-02T02:00:00Z");
    assert_eq!(part(zero, one) + part(one, two), part(zero, two));
}
