//! What the demo prints: the report, the proof, the comparison with the truth, and what to try next.

use std::{io::Write, time::Duration};

use lake::Lake;
use query::{
    job::Summary,
    report::{Dimension, Request, report},
    show::Format,
    truth::{Comparison, compare},
};
use schemas::{HOUR_MS, status::Tier};

use crate::{
    commands::{check, demo::fleet::Counts},
    failure::Failure,
};

/// Prints all of it; fails where the numbers do not close or do not match the truth.
pub fn all(
    lake: &Lake,
    counts: &Counts,
    summary: &Summary,
    (program, took): (&str, Duration),
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut line = |text: String| out.write_all(text.as_bytes()).map_err(Failure::output);
    let rounds: Vec<_> = counts.rounds.iter().map(|(status, count)| format!("{count} {status}")).collect();
    line(format!(
        "scraped {} series in {} rounds ({}); {} messages, {:.1} MB, {} hot files; {} hour rows; {:.1} s\n\n",
        grouped(counts.series),
        grouped(counts.rounds.values().sum()),
        rounds.join(", "),
        grouped(counts.messages),
        counts.bytes as f64 / 1e6,
        counts.hot_files,
        grouped(summary.rows),
        took.as_secs_f64(),
    ))?;
    let request = Request { by: vec![Dimension::Team, Dimension::Product], ..Request::of(Tier::Sm) };
    line(report(lake, &request).map_err(Failure::failed)?.text(Format::Table))?;
    let verdict = query::check::check(lake, None).map_err(Failure::failed)?;
    line(format!("\ncheck: {}", check::as_text(&verdict)))?;
    let comparison = compare(lake).map_err(Failure::failed)?;
    line(format!("\n{}", against_truth(&comparison)))?;
    line(next(lake, program))?;
    if verdict.fault.is_some() || !comparison.holds() { Err(Failure::quiet(1)) } else { Ok(()) }
}

fn hours(ms: i64) -> String {
    format!("{:.3}", ms as f64 / HOUR_MS as f64)
}

/// The comparison in words.
pub fn against_truth(comparison: &Comparison) -> String {
    let mut text = String::from("against the truth of the simulation:\n");
    let (ledger, truth) = comparison.allocated_ms;
    match comparison.owner_differences.first() {
        None => text.push_str(&format!(
            "  allocated matches to the millisecond for each of {} owners ({})\n",
            comparison.owners,
            match ledger == truth {
                true => format!("{ledger} ms = {truth} ms"),
                false => format!("{ledger} ms, in truth {truth} ms: rows of cut and shared GPUs are rounded one by one"),
            }
        )),
        Some((owner, ledger, truth)) => text.push_str(&format!(
            "  allocated DIFFERS for {} of {} owners; the first: {owner} has {ledger} ms, in truth {truth} ms\n",
            comparison.owner_differences.len(),
            comparison.owners
        )),
    }
    match comparison.device_differences.first() {
        None => text.push_str(&format!(
            "  and for each of {} (device, owner) pairs, outside the {} GPU-hours known by number only (no_device_yet)\n",
            comparison.device_owners,
            hours(comparison.no_device_yet_ms)
        )),
        Some((device, owner, ledger, truth)) => text.push_str(&format!(
            "  DIFFERS for {} (device, owner) pairs; the first: {device} of {owner} has {ledger} ms, in truth {truth} ms\n",
            comparison.device_differences.len()
        )),
    }
    for tier in &comparison.tiers {
        let verdict = if tier.holds() { "holds" } else { "DOES NOT HOLD" };
        text.push_str(&format!(
            "  {:<9} utilized {} GPU-hours, and up to {} that nobody saw; in truth {}: {verdict} (sampling error {} by {} samples)\n",
            tier.tier.as_str(),
            hours(tier.ledger_ms),
            hours(tier.unobserved_ms),
            hours(tier.truth_ms),
            hours(tier.standard_error_ms.round() as i64),
            grouped(tier.samples)
        ));
    }
    text
}

fn next(lake: &Lake, program: &str) -> String {
    let root = lake.location().display();
    format!(
        "
the lake is {root}; try next:
  {program} report --lake {root} --by team,hour --tier effective
  {program} sql --lake {root} \"SELECT pod, SUM(sm_stranded_ms) / 3.6e6 AS stranded_gpu_hours FROM gpu_hours WHERE kind = 'owner' GROUP BY pod ORDER BY 2 DESC LIMIT 5\"
  duckdb -c \"SELECT team, SUM(ms) / 3.6e6 AS gpu_hours FROM '{root}/gpu_hours/*/*/*.parquet' GROUP BY ALL ORDER BY 2 DESC\"
"
    )
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}
