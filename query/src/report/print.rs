//! The report as text: a table for people, CSV and JSON lines for programs.

use std::fmt::Write as _;

use schemas::{HOUR_MS, status::Tier};
use serde_json::{Map, Value, json};

use super::{Key, Line, Report};
use crate::{
    money::bill::units,
    show::{self, Format},
};

/// Hours with `decimals`, or `-` where not known.
fn hours(ms: Option<i64>, decimals: usize) -> String {
    ms.map_or("-".into(), |ms| format!("{:.decimals$}", ms as f64 / HOUR_MS as f64))
}

const FIGURES: [&str; 10] =
    ["capacity", "allocated", "utilized", "stranded", "unobserved", "free", "unavailable", "used %", "by job %", "coverage %"];

impl Report {
    /// The report as text.
    pub fn text(&self, format: Format) -> String {
        match format {
            Format::Table => self.table(),
            Format::Csv => self.csv(),
            Format::Json => self.json(),
        }
    }

    /// Whether enough of the line was seen to print what was seen of it.
    fn is_seen(&self, line: &Line) -> bool {
        self.min_coverage.is_none_or(|least| line.coverage().is_none_or(|coverage| coverage >= least))
    }

    fn figures(&self, line: &Line, decimals: usize) -> Vec<String> {
        let percent = |share: Option<f64>| share.map_or("-".into(), |percent| format!("{percent:.1}"));
        let seen = self.is_seen(line);
        vec![
            hours(line.capacity_ms, decimals),
            hours(Some(line.allocated_ms), decimals),
            hours(seen.then_some(line.utilized_ms), decimals),
            hours(seen.then_some(line.stranded_ms), decimals),
            hours(Some(line.unobserved_ms), decimals),
            hours(line.free_ms, decimals),
            hours(line.unavailable_ms, decimals),
            percent(line.mean_by_hours().filter(|_| seen)),
            percent(line.mean_by_jobs().filter(|_| seen)),
            percent(line.coverage()),
        ]
        .into_iter()
        .chain(self.priced.iter().map(|_| line.micro.map_or("-".into(), cents)))
        .collect()
    }

    fn table(&self) -> String {
        let keys = self.by.len().max(1);
        let mut rows: Vec<Vec<String>> = Vec::new();
        let mut header: Vec<String> = self.by.iter().map(|d| d.as_str().to_owned()).collect();
        header.resize(keys, String::new());
        header.extend(FIGURES.map(str::to_owned));
        header.extend(self.priced.iter().map(|(currency, _)| show::cell(currency)));
        rows.push(header);
        let grouped = !self.by.is_empty();
        for line in self.lines.iter().filter(|_| grouped) {
            let mut row: Vec<String> = line.keys.iter().map(|key| show::cell(&key.to_string())).collect();
            row.extend(self.figures(line, 2));
            rows.push(row);
        }
        if let Some((count, line)) = &self.others {
            let mut row = vec![String::new(); keys];
            row[0] = format!("({count} others)");
            row.extend(self.figures(line, 2));
            rows.push(row);
        }
        let mut total = vec![String::new(); keys];
        total[0] = "total".into();
        total.extend(self.figures(&self.total, 2));
        rows.push(total);

        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
        let mut text = String::new();
        let _ = writeln!(
            text,
            "GPU-hours from {} to {} (UTC){}, tier {}: {}",
            self.window.from(),
            self.window.to(),
            self.zone.as_ref().map_or(String::new(), |zone| format!(", calendar of {zone}")),
            self.tier,
            meaning(self.tier)
        );
        let rule = "-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1));
        let last = rows.len() - 1;
        for (number, row) in rows.iter().enumerate() {
            if number == 1 || number == last {
                let _ = writeln!(text, "{rule}");
            }
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, &width))| if column < keys { format!("{cell:<width$}") } else { format!("{cell:>width$}") })
                .collect();
            let _ = writeln!(text, "{}", cells.join("  ").trim_end());
        }
        text.push_str(&self.notes());
        text
    }

    /// What is to be said beside the sum.
    fn notes(&self) -> String {
        let mut text = String::new();
        let total = &self.total;
        if total.closes() {
            let capacity = match total.capacity_ms {
                Some(capacity) => format!(
                    "closes to the millisecond: capacity {capacity} = allocated {} + free {} + unavailable {}; ",
                    total.allocated_ms,
                    total.free_ms.unwrap_or_default(),
                    total.unavailable_ms.unwrap_or_default()
                ),
                None => "capacity is not known: no inventory for some of these nodes; ".into(),
            };
            let _ = writeln!(
                text,
                "{capacity}allocated {} = utilized {} + stranded {} + unobserved {}",
                total.allocated_ms, total.utilized_ms, total.stranded_ms, total.unobserved_ms
            );
        } else {
            text.push_str("DOES NOT CLOSE; run `strandline check` for the first device and hour at fault\n");
        }
        if !self.unobserved_by.is_empty() {
            let mut causes = self.unobserved_by.clone();
            causes.sort_by_key(|(cause, ms)| (-ms, *cause));
            let causes: Vec<_> = causes.iter().map(|(cause, ms)| format!("{cause} {}", hours(Some(*ms), 2))).collect();
            let _ = writeln!(text, "unobserved by cause: {}", causes.join(", "));
        }
        let unseen = self.lines.iter().filter(|line| !self.is_seen(line)).count();
        if let (Some(least), true) = (self.min_coverage, unseen > 0) {
            let _ =
                writeln!(text, "groups seen less than {least} % of their time: {unseen}; what was seen of them is not printed");
        }
        if let Some((currency, unpriced)) = &self.priced {
            let _ = writeln!(
                text,
                "money is what `strandline money` bills for closed hours, {} {} in all; GPU-hours without a price: {}",
                total.micro.map_or("-".into(), units),
                show::cell(currency),
                hours(Some(*unpriced), 2)
            );
        }
        if let Some((hours, first)) = self.not_computed {
            let _ = writeln!(
                text,
                "NOT in these sums: {hours} closed hours without hour rows, the first of {first}; run `strandline hours`"
            );
        }
        if let Some((hours, to)) = self.open {
            let noun = if hours == 1 { "hour is" } else { "hours are" };
            let _ = writeln!(
                text,
                "of these, {hours} {noun} not closed yet and known up to {to}: computed now, and may still change"
            );
        }
        if self.cut_hours != 0 {
            let _ = writeln!(text, "parts of UTC hours computed anew from samples and holdings (rule A13): {}", self.cut_hours);
        }
        if self.mig_orphan_ms != 0 {
            let _ = writeln!(text, "of unavailable, mig_orphan (layout loss): {}", hours(Some(self.mig_orphan_ms), 2));
        }
        if self.overcommitted_ms != 0 {
            let _ = writeln!(
                text,
                "beside the sum, overcommitted: {}; `strandline check` names the node",
                hours(Some(self.overcommitted_ms), 2)
            );
        }
        text
    }

    fn json(&self) -> String {
        let mut text = String::new();
        for line in self.lines.iter().chain(self.others.iter().map(|(_, line)| line)) {
            let mut object = Map::new();
            for (dimension, key) in self.by.iter().zip(&line.keys) {
                let value = match key {
                    Key::Nobody => Value::Null,
                    Key::Named(_) | Key::Unattributed => Value::String(key.to_string()),
                };
                object.insert(dimension.as_str().into(), value);
            }
            let figures = json!({
                "tier": self.tier.as_str(), "capacity_ms": line.capacity_ms, "allocated_ms": line.allocated_ms,
                "utilized_ms": self.is_seen(line).then_some(line.utilized_ms),
                "stranded_ms": self.is_seen(line).then_some(line.stranded_ms), "unobserved_ms": line.unobserved_ms,
                "free_ms": line.free_ms, "unavailable_ms": line.unavailable_ms, "jobs": line.jobs,
                "used_percent_by_hours": line.mean_by_hours().filter(|_| self.is_seen(line)),
                "used_percent_by_jobs": line.mean_by_jobs().filter(|_| self.is_seen(line)),
                "coverage_percent": line.coverage(), "micro": line.micro,
                "currency": self.priced.as_ref().map(|(currency, _)| currency),
            });
            if self.others.as_ref().is_some_and(|(_, others)| std::ptr::eq(others, line)) {
                object.insert("others".into(), json!(self.others.as_ref().map(|(count, _)| count)));
            }
            if let Value::Object(figures) = figures {
                object.extend(figures);
            }
            let _ = writeln!(text, "{}", Value::Object(object));
        }
        text
    }

    /// Milliseconds, so that sums stay exact; an empty cell is not known, or not printed.
    fn csv(&self) -> String {
        let mut text = String::new();
        let names = self.by.iter().map(|d| d.as_str());
        let header: Vec<&str> = names.chain(CSV_FIGURES).chain(self.priced.iter().flat_map(|_| ["micro", "currency"])).collect();
        let _ = writeln!(text, "{}", header.join(","));
        let others = self.others.iter().map(|(_, line)| line);
        for line in self.lines.iter().chain(others) {
            let mut cells: Vec<String> = line
                .keys
                .iter()
                .map(|key| if *key == Key::Nobody { String::new() } else { show::csv_cell(&key.to_string()) })
                .collect();
            if cells.len() < self.by.len() {
                // The line of all that `--top` left out.
                cells = vec![String::new(); self.by.len()];
                cells[0] = "(others)".into();
            }
            let seen = self.is_seen(line);
            let figures = [
                line.capacity_ms,
                Some(line.allocated_ms),
                seen.then_some(line.utilized_ms),
                seen.then_some(line.stranded_ms),
                Some(line.unobserved_ms),
                line.free_ms,
                line.unavailable_ms,
            ];
            cells.extend(figures.map(|ms| ms.map_or(String::new(), |ms| ms.to_string())));
            let shares = [line.mean_by_hours().filter(|_| seen), line.mean_by_jobs().filter(|_| seen), line.coverage()];
            cells.extend(shares.map(|share| share.map_or(String::new(), |share| format!("{share:.4}"))));
            if let Some((currency, _)) = &self.priced {
                cells.extend([line.micro.map_or(String::new(), |micro| micro.to_string()), show::csv_cell(currency)]);
            }
            let _ = writeln!(text, "{}", cells.join(","));
        }
        text
    }
}

/// Micro-units as units with two decimals, rounded half away from zero; the exact sum stands below the table.
fn cents(micro: i64) -> String {
    let hundredths = (i128::from(micro).abs() + 5_000) / 10_000;
    let sign = if micro < 0 && hundredths != 0 { "-" } else { "" };
    format!("{sign}{}.{:02}", hundredths / 100, hundredths % 100)
}

const CSV_FIGURES: [&str; 10] = [
    "capacity_ms",
    "allocated_ms",
    "utilized_ms",
    "stranded_ms",
    "unobserved_ms",
    "free_ms",
    "unavailable_ms",
    "used_percent_by_hours",
    "used_percent_by_jobs",
    "coverage_percent",
];

const fn meaning(tier: Tier) -> &'static str {
    match tier {
        Tier::Busy => "was anything running (GPU_UTIL, else GR_ENGINE_ACTIVE)",
        Tier::Sm => "share of SMs at work (SM_ACTIVE)",
        Tier::Effective => "tensor pipe or memory at work (PIPE_TENSOR_ACTIVE, DRAM_ACTIVE / 0.8)",
    }
}
