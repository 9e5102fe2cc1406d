//! `strandline check`: the proof that the numbers close.

use std::io::Write;

use clap::Args;
use query::{
    check::Verdict,
    proof::{self, Outcome, Proof},
};
use serde_json::json;

use crate::{
    commands::{LakeOption, WindowOption, parse::PageFormat},
    failure::Failure,
};

/// Prove that the lake is sound and its numbers close, a line a proof; exit 1 where one fails
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strandline check --lake /tmp/lake
  strandline check --lake /tmp/lake --offsets

closes:   capacity by the inventory alone (device_hours) equals the hour rows (gpu_hours) of every device and hour, and every
          owner's time its utilized, stranded and unobserved parts in each tier
schema:   every file has its table's columns and types, and rows of its folder's hour
hours:    every closed hour with inputs has hour rows
offsets:  hot files have every offset of the log once, and closed hours all of their rows
costs:    every priced hour sums to its source to the micro-unit, and is of the hour rows that there are
truth:    where a simulation left the truth, the ledger says it")]
pub struct Options {
    #[command(flatten)]
    lake: LakeOption,
    #[command(flatten)]
    window: WindowOption,
    /// Prove the offsets alone
    #[arg(long, env = "STRANDLINE_OFFSETS", conflicts_with_all = ["from", "to"])]
    offsets: bool,
    /// How to print the verdict
    #[arg(long, value_enum, default_value = "table")]
    format: PageFormat,
}

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let lake = options.lake.open()?;
    let json = options.format == PageFormat::Json;
    if options.offsets {
        let proof = proof::offsets(&lake).map_err(Failure::failed)?;
        let text = if json { format!("{}\n", proof_json(&proof)) } else { proof_text(&proof) };
        out.write_all(text.as_bytes()).map_err(Failure::output)?;
        return if proof.outcome == Outcome::Fails { Err(Failure::quiet(1)) } else { Ok(()) };
    }
    let window = options.window.window()?;
    // First of all: a file of another layout would make every other proof fail in its own words.
    let schema = proof::schema(&lake, window).map_err(Failure::failed)?;
    if schema.outcome == Outcome::Fails {
        let text = if json { format!("{}\n", proof_json(&schema)) } else { proof_text(&schema) };
        out.write_all(text.as_bytes()).map_err(Failure::output)?;
        return Err(Failure::because(schema.words));
    }
    let verdict = query::check::check(&lake, window).map_err(Failure::failed)?;
    let proofs = [
        schema,
        proof::hours(&lake, window).map_err(Failure::failed)?,
        proof::offsets(&lake).map_err(Failure::failed)?,
        proof::costs(&lake, window).map_err(Failure::failed)?,
        proof::truth(&lake).map_err(Failure::failed)?,
    ];
    let text =
        if json { as_json(&verdict, &proofs) } else { as_text(&verdict) + &proofs.iter().map(proof_text).collect::<String>() };
    out.write_all(text.as_bytes()).map_err(Failure::output)?;
    if verdict.hours == 0 {
        return Err(Failure::because("no hour rows in the window; run `strandline hours --lake DIR` first"));
    }
    let failed = verdict.fault.is_some() || proofs.iter().any(|proof| proof.outcome == Outcome::Fails);
    if failed { Err(Failure::quiet(1)) } else { Ok(()) }
}

fn proof_text(proof: &Proof) -> String {
    let outcome = match proof.outcome {
        Outcome::Holds => "holds: ",
        Outcome::Fails => "FAILS: ",
        Outcome::NothingToProve => "nothing to prove: ",
    };
    query::show::printable(&format!("{}: {outcome}{}\n", proof.name, proof.words))
}

fn proof_json(proof: &Proof) -> serde_json::Value {
    let holds = match proof.outcome {
        Outcome::Holds => Some(true),
        Outcome::Fails => Some(false),
        Outcome::NothingToProve => None,
    };
    json!({"name": proof.name, "holds": holds, "words": proof.words})
}

/// The verdict in words.
pub fn as_text(verdict: &Verdict) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    match &verdict.fault {
        None if verdict.hours == 0 => {}
        None => line(format!(
            "closes: {} device-hours equal the inventory, {} owner rows equal their parts in 3 tiers, over {} hours",
            verdict.device_hours, verdict.owner_rows, verdict.hours
        )),
        Some(fault) => {
            line(format!("DOES NOT CLOSE in {} places; the first: {fault}", verdict.faults));
        }
    }
    if !verdict.no_inventory.is_empty() {
        let count = verdict.no_inventory.len();
        let some: Vec<_> = verdict.no_inventory.iter().take(5).cloned().collect();
        line(format!("identity 1 (capacity) is not claimed for {count} nodes without inventory: {}", some.join(", ")));
    }
    for (node, ms) in &verdict.overcommitted {
        line(format!("overcommitted: {node} holds {ms} ms by number beyond what it has (beside the sum)"));
    }
    text
}

fn as_json(verdict: &Verdict, proofs: &[Proof]) -> String {
    let object = json!({
        "closes": verdict.fault.is_none(), "faults": verdict.faults, "first_fault": verdict.fault.as_ref().map(ToString::to_string),
        "hours": verdict.hours, "device_hours": verdict.device_hours, "owner_rows": verdict.owner_rows,
        "nodes_without_inventory": verdict.no_inventory, "overcommitted_ms": verdict.overcommitted,
        "proofs": proofs.iter().map(proof_json).collect::<Vec<_>>(),
    });
    format!("{object}\n")
}
