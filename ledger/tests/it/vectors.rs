//! Every conformance case, compared as whole objects, to the millisecond.

use std::fmt::Write;

use ledger::case::run_case;
use serde_json::Value;

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/vectors/accounting.jsonl");

/// Where two values differ, by path.
fn differences(path: &str, got: &Value, expected: &Value, out: &mut Vec<String>) {
    match (got, expected) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let at = format!("{path}.{key}");
                differences(&at, a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null), out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}[{i}]"), a, b, out);
            }
        }
        _ if got == expected => {}
        _ => out.push(format!("{path}: got {got}, expected {expected}")),
    }
}

#[test]
fn every_case_comes_out_to_the_millisecond() {
    let cases = std::fs::read_to_string(CASES).unwrap();
    let (mut count, mut failures) = (0, String::new());
    let mut failed = Vec::new();
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let name = case["name"].as_str().unwrap().to_owned();
        count += 1;
        let mut found = Vec::new();
        match (run_case(line), case.get("expect"), case.get("expect_error")) {
            (Ok(got), Some(expected), None) => {
                differences("", &got, expected, &mut found);
                if found.is_empty() && got != *expected {
                    found.push("a null that is not there, or one too many".into());
                }
            }
            (Err(err), None, Some(expected)) if Some(err.code()) == expected["code"].as_str() => {}
            (got, expected, refusal) => {
                let got = got.map(|_| "an account").map_err(|err| format!("{}: {err}", err.code()));
                found.push(format!("got {got:?}, expected {} or {refusal:?}", expected.map_or("no account", |_| "an account")));
            }
        }
        if !found.is_empty() {
            writeln!(failures, "{name}:\n    {}", found.iter().take(12).cloned().collect::<Vec<_>>().join("\n    ")).unwrap();
            failed.push(name);
        }
    }
    assert_eq!(count, 194, "cases were added or lost");
    assert!(failed.is_empty(), "{} of {count} cases fail: {failed:?}\n{failures}", failed.len());
}
