//! `strandline check`: the proof that the numbers close.

use std::io::Write;

use clap::Args;
use query::check::Verdict;
use serde_json::json;

use crate::{
    commands::{LakeOption, WindowOption, parse::PageFormat},
    failure::Failure,
};

/// Prove that every device's hours sum to its capacity and every owner's to its parts; exit 1 where they do not
#[derive(Debug, Args)]
#[command(after_help = "Example:
  strandline check --lake /tmp/lake

Capacity is taken from the inventory alone (table device_hours) and compared with the hour rows (table gpu_hours).")]
pub struct Options {
    #[command(flatten)]
    lake: LakeOption,
    #[command(flatten)]
    window: WindowOption,
    /// How to print the verdict
    #[arg(long, value_enum, default_value = "table")]
    format: PageFormat,
}

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let verdict = query::check::check(&options.lake.open()?, options.window.window()?).map_err(Failure::failed)?;
    let text = if options.format == PageFormat::Json { as_json(&verdict) } else { as_text(&verdict) };
    out.write_all(text.as_bytes()).map_err(Failure::output)?;
    if verdict.hours == 0 {
        return Err(Failure::because("no hour rows in the window; run `strandline hours --lake DIR` first"));
    }
    if verdict.fault.is_some() { Err(Failure::quiet(1)) } else { Ok(()) }
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

fn as_json(verdict: &Verdict) -> String {
    let object = json!({
        "closes": verdict.fault.is_none(), "faults": verdict.faults, "first_fault": verdict.fault.as_ref().map(ToString::to_string),
        "hours": verdict.hours, "device_hours": verdict.device_hours, "owner_rows": verdict.owner_rows,
        "nodes_without_inventory": verdict.no_inventory, "overcommitted_ms": verdict.overcommitted,
    });
    format!("{object}\n")
}
