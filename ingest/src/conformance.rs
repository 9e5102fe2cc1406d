//! Runs conformance vectors through this crate's own stages, for tests and for `strandline conformance`.

use crate::parse::{self, Exposition, Format, Limits, Mode, PageError};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// How one case ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// As expected.
    Pass {
        /// What we made of the input, in the shape of the vector's `expect`.
        got: Value,
    },
    /// Not as expected.
    Fail {
        /// What we made of the input, in the shape of the vector's `expect`.
        got: Value,
        /// What the vector expects, with a remark where the difference lies outside that shape.
        expected: Value,
    },
}

/// Runs one case of `exposition.jsonl`: strict mode against the expectation, and, for a refusal whose line real
/// parsers agree on, lenient mode for counting that line as bad.
///
/// Errors: a text that says why the case itself cannot be read.
pub fn exposition(case: &Value) -> Result<Outcome, String> {
    let format = match case["format"].as_str() {
        Some("text") => Format::Text,
        Some("openmetrics") => Format::OpenMetrics,
        other => return Err(format!("unknown format {other:?}")),
    };
    let input: Vec<u8> = match (case["input"].as_str(), case["input_b64"].as_str()) {
        (Some(text), None) => text.as_bytes().to_vec(),
        (None, Some(text)) => STANDARD.decode(text).map_err(|e| format!("input_b64 is not base64: {e}"))?,
        _ => return Err("a case has either `input` or `input_b64`".into()),
    };
    let expected = &case["expect"];
    let strict = parse::page(&input, format, Mode::Strict, Limits::default());
    let got = shape(&strict);
    let line_agreed = case["line_agreed"].as_array().is_some_and(|a| !a.is_empty());

    let right = match (expected["samples"].as_array(), expected["error_line"].as_u64()) {
        (Some(samples), None) => match &strict {
            Ok(page) => same_samples(page, samples)?,
            Err(_) => false,
        },
        (None, Some(line)) => match &strict {
            Err(PageError::Line(e) | PageError::Cut(e)) => !line_agreed || u64::from(e.line) == line,
            Err(PageError::TooLarge { .. }) | Ok(_) => false,
        },
        _ => return Err("`expect` has either `samples` or `error_line`".into()),
    };
    if !right {
        return Ok(Outcome::Fail { got, expected: expected.clone() });
    }
    if let (true, Some(line)) = (line_agreed, expected["error_line"].as_u64()) {
        let lenient = parse::page(&input, format, Mode::Lenient, Limits { rejects_kept: usize::MAX, ..Limits::default() });
        let counted = match lenient {
            Ok(page) => page.rejects.first.iter().any(|e| u64::from(e.line) == line),
            // Without its end mark nothing of a page is used, in either mode.
            Err(PageError::Cut(e)) => u64::from(e.line) >= line,
            Err(PageError::Line(_) | PageError::TooLarge { .. }) => false,
        };
        if !counted {
            let expected = json!({"error_line": line, "remark": "lenient mode does not count this line as bad"});
            return Ok(Outcome::Fail { got, expected });
        }
    }
    Ok(Outcome::Pass { got })
}

fn shape(result: &Result<Exposition<'_>, PageError>) -> Value {
    let page = match result {
        Ok(page) => page,
        Err(PageError::Line(e) | PageError::Cut(e)) => return json!({"error_line": e.line}),
        Err(PageError::TooLarge { .. }) => return json!({"error_line": 1}),
    };
    let samples = page.samples.iter().map(|sample| {
        let labels: Map<String, Value> = page.labels(sample).iter().map(|l| (l.name.to_string(), json!(l.value.get()))).collect();
        json!({"name": sample.name.get(), "labels": labels, "value": shown(sample.value), "ts_ms": sample.ts_ms})
    });
    json!({"samples": samples.collect::<Vec<_>>()})
}

/// A value as the vectors write it.
fn shown(value: f64) -> String {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf".into() } else { "-Inf".into() }
    } else if value != 0.0 && (value.abs() < 1e-5 || value.abs() >= 1e21) {
        format!("{value:e}")
    } else {
        format!("{value}")
    }
}

fn same_samples(page: &Exposition<'_>, expected: &[Value]) -> Result<bool, String> {
    if page.samples.len() != expected.len() {
        return Ok(false);
    }
    for (sample, want) in page.samples.iter().zip(expected) {
        let text = want["value"].as_str().ok_or("`value` is not a string")?;
        let value: f64 = text.parse().map_err(|_| format!("`value` {text} is not a number"))?;
        let labels = want["labels"].as_object().ok_or("`labels` is not an object")?;
        let got = page.labels(sample);
        let same_labels = got.len() == labels.len()
            && got.iter().all(|l| labels.get(l.name.get().as_ref()).and_then(Value::as_str).is_some_and(|v| l.value == *v));
        // Bits, so that -0 is not 0; any NaN is NaN.
        let same_value = sample.value.to_bits() == value.to_bits() || (sample.value.is_nan() && value.is_nan());
        let same = want["name"].as_str().is_some_and(|n| sample.name == *n)
            && same_labels
            && same_value
            && want["ts_ms"].as_i64() == sample.ts_ms;
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Rules that only one of the two reference parsers of OpenMetrics holds, and we do not: they reach over lines, or ask of a
    /// metric's type what a reading may be. `docs/exposition.md` says why.
    const DECIDED_OTHERWISE: &[&str] = &[
        "om_counter_no_total",
        "om_exemplar_129_chars",
        "om_sem_bucket_order",
        "om_sem_bucket_without_le",
        "om_sem_count_vs_inf",
        "om_sem_gauge_exemplar",
        "om_sem_help_after_sample",
        "om_sem_help_twice",
        "om_sem_histogram_no_inf",
        "om_sem_interleaved",
        "om_sem_name_clash",
        "om_sem_nan_counter",
        "om_sem_negative_counter",
        "om_sem_stateset_value",
        "om_sem_summary_quantile_range",
        "om_sem_type_after_sample",
        "om_sem_type_twice",
        "om_unit_on_info",
    ];

    #[test]
    fn every_case_of_the_vectors_passes_but_for_those_decided_otherwise() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/vectors/exposition.jsonl");
        let (mut passed, mut otherwise, mut failed) = (0, Vec::new(), Vec::new());
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            match exposition(&case).unwrap() {
                Outcome::Pass { got } => {
                    passed += 1;
                    // What --print writes must itself be read as right.
                    if let Some(samples) = got["samples"].as_array() {
                        assert_eq!(samples.len(), case["expect"]["samples"].as_array().unwrap().len());
                    }
                }
                Outcome::Fail { got, .. } if case["disputed"] == true && case["format"] == "openmetrics" => {
                    assert!(got["samples"].is_array(), "all of them are leniencies: {case}");
                    otherwise.push(case["name"].as_str().unwrap().to_owned());
                }
                Outcome::Fail { got, expected } => failed.push(format!("{}: got {got}, expected {expected}", case["name"])),
            }
        }
        assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
        otherwise.sort_unstable();
        assert_eq!(otherwise, DECIDED_OTHERWISE);
        assert_eq!(passed, 270 - DECIDED_OTHERWISE.len());
    }

    #[test]
    fn a_wrong_expectation_fails() {
        let case = json!({"format": "text", "input": "a 1\n", "expect": {"samples": [
            {"name": "a", "labels": {}, "value": "2", "ts_ms": null}]}});
        let Outcome::Fail { got, .. } = exposition(&case).unwrap() else { panic!("must fail") };
        assert_eq!(got["samples"][0]["value"], "1");
        let case = json!({"format": "text", "input": "a 1\n", "expect": {"error_line": 1}});
        assert!(matches!(exposition(&case).unwrap(), Outcome::Fail { .. }));
        let case = json!({"format": "text", "input": "a 1\nb\n", "expect": {"error_line": 1}, "line_agreed": ["x"]});
        assert!(matches!(exposition(&case).unwrap(), Outcome::Fail { .. }));
        assert!(exposition(&json!({"format": "text"})).is_err());
    }
}
