//! `strandline conformance` on the cases that come with the project, and on ones that must fail.

use std::fs;

use serde_json::{Value, json};

use crate::command::{Ran, strandline, tree, tree_text};

fn run(kind: &str) -> Ran {
    strandline(&["conformance", kind, &tree_text(&format!("tests/data/vectors/{kind}.jsonl"))])
}

#[test]
fn every_case_passes_but_for_those_decided_otherwise() {
    for (kind, last, otherwise) in [
        ("accounting", "194 passed, 0 failed", 0),
        ("podresources", "41 passed, 0 failed", 0),
        // Rules of OpenMetrics' metric types, which Prometheus does not enforce either: docs/exposition.md.
        ("exposition", "252 passed, 0 failed", 18),
        ("meters", "43 passed, 0 failed", 0),
        ("allocation", "39 passed, 0 failed", 0),
        ("money", "88 passed, 0 failed", 0),
    ] {
        let ran = run(kind);
        assert_eq!(ran.out.lines().last(), Some(last), "{kind}: {}", ran.out);
        assert_eq!(ran.code, 0, "{kind}");
        let decided = ran.out.lines().filter(|line| line.starts_with("DISPUTED, decided otherwise: "));
        assert_eq!(decided.count(), otherwise, "{kind}");
    }
}

#[test]
fn what_is_printed_is_in_the_shape_of_what_is_expected() {
    let file = tree("tests/data/vectors/accounting.jsonl");
    let ran = strandline(&["conformance", "accounting", file.to_str().unwrap(), "--print"]);
    let cases = fs::read_to_string(&file).unwrap();
    let printed: Vec<&str> = ran.out.lines().filter(|line| line.starts_with('{')).collect();
    assert_eq!(printed.len(), cases.lines().count());
    for (printed, case) in printed.iter().zip(cases.lines()) {
        let (printed, case): (Value, Value) = (serde_json::from_str(printed).unwrap(), serde_json::from_str(case).unwrap());
        let expected = if case["expect"].is_null() { &case["expect_error"] } else { &case["expect"] };
        assert_eq!((&printed["name"], &printed["got"]), (&case["name"], expected));
    }
}

#[test]
fn a_case_that_fails_is_named_with_got_and_expected() {
    let cases = fs::read_to_string(tree("tests/data/vectors/accounting.jsonl")).unwrap();
    let mut case: Value = serde_json::from_str(cases.lines().next().unwrap()).unwrap();
    case["expect"]["totals"]["capacity_ms"] = json!(3_600_001);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cases.jsonl");
    fs::write(&path, format!("{case}\n{}\n", cases.lines().nth(1).unwrap())).unwrap();
    let ran = strandline(&["conformance", "accounting", path.to_str().unwrap()]);
    assert_eq!(ran.code, 1);
    assert_eq!(ran.out.lines().last(), Some("1 passed, 1 failed"));
    let name = case["name"].as_str().unwrap();
    assert!(ran.out.contains(&format!("FAILED: {name}\n  got      ")) && ran.out.contains("3600001"), "{}", ran.out);

    fs::write(&path, "{\"name\": \"x\", \"window\": 3}\n").unwrap();
    let ran = strandline(&["conformance", "accounting", path.to_str().unwrap()]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.message.contains("line 1") && ran.message.contains("window"), "{}", ran.message);
}

#[test]
fn a_case_file_is_one_object_or_one_a_line() {
    let cases = fs::read_to_string(tree("tests/data/vectors/accounting.jsonl")).unwrap();
    let refused = cases.lines().find(|line| line.contains("\"error_zero_horizon\"")).unwrap();
    let first: Value = serde_json::from_str(cases.lines().next().unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("case.json");
    let account = |text: String| {
        fs::write(&path, text).unwrap();
        strandline(&["hours", "--case", path.to_str().unwrap()])
    };
    let ran = account(serde_json::to_string_pretty(&first).unwrap());
    assert_eq!(ran.code, 0, "{}", ran.message);
    assert_eq!(serde_json::from_str::<Value>(&ran.out).unwrap(), first["expect"]);
    let ran = account(format!("{first}\n{refused}\n"));
    assert_eq!(ran.code, 1, "a refused case prints its code and exits non-zero");
    let lines: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, [first["expect"].clone(), json!({"code": "bad_horizon"})]);
}
