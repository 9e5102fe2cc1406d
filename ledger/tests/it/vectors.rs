//! Every conformance case, compared as whole objects, to the millisecond.

use std::fmt::Write;

use ledger::case::run_case;
use proptest::prelude::*;
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

#[test]
fn a_bad_case_names_its_field() {
    let case = std::fs::read_to_string(CASES).unwrap();
    let case = case.lines().next().unwrap();
    let check = |from: &str, to: &str, expected: &str| {
        assert!(case.contains(from), "{from}");
        assert_eq!(run_case(&case.replacen(from, to, 1)).unwrap_err().to_string(), expected);
    };
    let time = "an RFC 3339 time such as 2026-03-02T10:00:00.000Z belongs here";
    check("\"from\": \"2026", "\"from\": \"26", &format!("window.from: {time}, and it is \"26-03-02T10:00:00.000Z\""));
    check("\"bound\":", "\"bond\":", &format!("allocations[0].bound: {time}, and it is absent"));
    check(
        "\"1002\": 0.8",
        "\"1002\": []",
        "samples[0].values.1002: a number, \"NaN\", \"+Inf\" or \"-Inf\" belongs here, and it is []",
    );
    let digits = "0.12345678901234567891";
    let long = format!("samples[0].values.1002: a decimal number of at most 19 digits belongs here, and it is {digits}");
    check("\"1002\": 0.8", &format!("\"1002\": {digits}"), &long);
    check("\"devices\": [", "\"devices\": [7, ", "devices[0]: an object belongs here, and it is 7");
    assert_eq!(run_case("[").unwrap_err().code(), "bad_input");
    let endless = r#"{"window": {"from": "0001-01-01T00:00:00Z", "to": "2026-03-02T10:00:00Z"}, "scrape_interval_ms": 30000}"#;
    let refused = run_case(endless).unwrap_err();
    assert!(refused.code() == "bad_input" && refused.to_string().contains("ten years"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_it_panic(which in 0..194_usize, at in 0.0..1.0_f64, put in "[-0-9e\\[\\]{}\",:.null]{0,6}", cut in 0..12_usize) {
        let cases = std::fs::read_to_string(CASES).unwrap();
        let mut case: Vec<char> = cases.lines().filter(|line| line.len() < 20_000).cycle().nth(which).unwrap().chars().collect();
        let begin = (case.len() as f64 * at) as usize;
        let end = (begin + cut).min(case.len());
        case.splice(begin..end, put.chars());
        // A longer year of hours than anyone asks for is slow, not wrong.
        let case: String = case.into_iter().collect();
        let short = |case: &ledger::case::Case| case.window.len_ms() < 40 * 86_400_000;
        if ledger::case::read(&case).is_ok_and(|case| short(&case)) {
            let _ = run_case(&case);
        }
    }
}
