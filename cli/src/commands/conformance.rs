//! `strandline conformance`: vectors through the product's own stages, for our tests and for users who want to be sure.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use ingest::conformance::Outcome;
use serde_json::{Value, json};

use crate::failure::Failure;

/// What a file of cases is about
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Pages of exposition text
    Exposition,
    /// Answers of the kubelet
    Podresources,
    /// Pod events
    Allocation,
    /// Small worlds and their accounts
    Accounting,
    /// Windows priced
    Money,
    /// Counters, calendars, fragmentation, memory and seats, waiting, ...
    Meters,
}

/// Run conformance cases (JSON lines) through the product's own stages
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strandline conformance accounting tests/data/vectors/accounting.jsonl
  strandline conformance exposition tests/data/vectors/exposition.jsonl --print

Prints each failing case with what we got and what was expected, and `N passed, M failed` last. Exit code 1 where a case
fails. Disputed cases are run too; a failing one is listed apart and does not count.")]
pub struct Options {
    /// What the cases are about
    #[arg(value_enum)]
    kind: Kind,
    /// File of cases, one JSON object a line
    file: PathBuf,
    /// Print one JSON line per case, {"name": ..., "got": ...}, in the shape of its `expect`
    #[arg(long)]
    print: bool,
}

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let text = read(&options.file)?;
    let (mut passed, mut failed, mut disputed) = (0, 0, 0);
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |what: String| Failure::because(format!("{}, line {}: {what}", options.file.display(), number + 1));
        let case: Value = serde_json::from_str(line).map_err(|error| wrong(format!("no JSON object: {error}")))?;
        let name = case["name"].as_str().ok_or_else(|| wrong("the case has no `name`".into()))?.to_owned();
        let outcome = one(options.kind, line, &case).map_err(wrong)?;
        if options.print {
            let (Outcome::Pass { got } | Outcome::Fail { got, .. }) = &outcome;
            let shown = match options.kind {
                // What no device answers to stands beside `expect` in these cases.
                Kind::Podresources => json!({"name": name, "got": got["expect"], "unmatched": got["unmatched"]}),
                _ => json!({"name": name, "got": got}),
            };
            writeln!(out, "{shown}").map_err(Failure::output)?;
        }
        match outcome {
            Outcome::Pass { .. } => passed += 1,
            Outcome::Fail { got, expected } => {
                let is_disputed = case["disputed"] == Value::Bool(true);
                if is_disputed {
                    disputed += 1
                } else {
                    failed += 1
                }
                if !options.print {
                    let word = if is_disputed { "DISPUTED, decided otherwise" } else { "FAILED" };
                    writeln!(out, "{word}: {name}\n  got      {got}\n  expected {expected}").map_err(Failure::output)?;
                }
            }
        }
    }
    if disputed > 0 {
        writeln!(out, "{disputed} disputed cases decided otherwise").map_err(Failure::output)?;
    }
    writeln!(out, "{passed} passed, {failed} failed").map_err(Failure::output)?;
    if failed == 0 { Ok(()) } else { Err(Failure::quiet(1)) }
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| Failure::because(format!("cannot read {}: {error}", path.display())))
}

fn one(kind: Kind, line: &str, case: &Value) -> Result<Outcome, String> {
    match kind {
        Kind::Exposition => ingest::conformance::exposition(case),
        Kind::Podresources => podresources(line, case),
        Kind::Accounting => accounting(line, case),
        Kind::Allocation => allocation(line, case),
        Kind::Meters => meters(line, case),
        Kind::Money => money(line, case),
    }
}

fn meters(line: &str, case: &Value) -> Result<Outcome, String> {
    let got = ledger::measures::cases::run(line).map_err(|error| error.to_string())?;
    let expected = case["expect"].clone();
    Ok(if got == expected { Outcome::Pass { got } } else { Outcome::Fail { got, expected } })
}

fn allocation(line: &str, case: &Value) -> Result<Outcome, String> {
    let got = attribution::pods::cases::run(line).map_err(|error| error.to_string())?;
    let expected = json!({"expect": case["expect"], "expect_device_seconds": case["expect_device_seconds"]});
    Ok(if got == expected { Outcome::Pass { got } } else { Outcome::Fail { got, expected } })
}

fn money(line: &str, case: &Value) -> Result<Outcome, String> {
    // Here bad input is an expectation like any other.
    let got = ledger::money::case::run_case(line).unwrap_or_else(|error| json!({"code": error.code()}));
    let expected = if case["expect"].is_null() { case["expect_error"].clone() } else { case["expect"].clone() };
    Ok(if got == expected { Outcome::Pass { got } } else { Outcome::Fail { got, expected } })
}

fn accounting(line: &str, case: &Value) -> Result<Outcome, String> {
    let (got, expected) = match ledger::case::run_case(line) {
        Ok(account) => (account, if case["expect"].is_null() { case["expect_error"].clone() } else { case["expect"].clone() }),
        Err(error) if error.code() == "bad_input" => return Err(error.to_string()),
        Err(error) if case["expect_error"].is_null() => (json!({"code": error.code()}), case["expect"].clone()),
        Err(error) => (json!({"code": error.code()}), case["expect_error"].clone()),
    };
    Ok(if got == expected { Outcome::Pass { got } } else { Outcome::Fail { got, expected } })
}

fn podresources(line: &str, case: &Value) -> Result<Outcome, String> {
    use base64::Engine as _;
    let got = attribution::conformance::from_json(line).map_err(|error| error.to_string())?;
    let expected = json!({"expect": case["expect"], "unmatched": case["unmatched"]});
    // The wire form, where given, must say the same.
    if let Some(wire) = case["list_response_pb_b64"].as_str() {
        let wire =
            base64::engine::general_purpose::STANDARD.decode(wire).map_err(|error| format!("list_response_pb_b64: {error}"))?;
        let from_wire = attribution::conformance::from_wire(line, &wire).map_err(|error| error.to_string())?;
        if !attribution::conformance::agrees(&from_wire, case) {
            return Ok(Outcome::Fail { got: from_wire, expected });
        }
    }
    Ok(if attribution::conformance::agrees(&got, case) { Outcome::Pass { got } } else { Outcome::Fail { got, expected } })
}
