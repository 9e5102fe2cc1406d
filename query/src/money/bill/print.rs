//! A bill as text: a table for people, CSV and JSON lines for programs. Money is exact in each.

use std::fmt::Write as _;

use ledger::money::Bucket;
use schemas::HOUR_MS;
use serde_json::{Map, Value, json};

use super::{Basis, Bill, Line, UNPRICED};
use crate::show::{self, Format};

/// Micro-units as units with six decimals.
pub fn units(micro: i64) -> String {
    let (whole, fraction) = (micro.unsigned_abs() / 1_000_000, micro.unsigned_abs() % 1_000_000);
    format!("{}{whole}.{fraction:06}", if micro < 0 { "-" } else { "" })
}

/// GPU-hours with three decimals, rounded half away from zero.
pub fn hours(gpu_ms: i64) -> String {
    let thousandth = HOUR_MS.unsigned_abs() / 1000;
    let rounded = (gpu_ms.unsigned_abs() + thousandth / 2) / thousandth;
    format!("{}{}.{:03}", if gpu_ms < 0 { "-" } else { "" }, rounded / 1000, rounded % 1000)
}

impl Bill {
    /// The bill as text.
    pub fn text(&self, format: Format) -> String {
        match format {
            Format::Table => show::printable(&self.table()),
            Format::Csv => self.csv(),
            Format::Json => self.json(),
        }
    }

    /// A line that is only a memo has no place among the sums.
    fn is_memo(line: &Line) -> bool {
        line.gpu_ms == 0 && line.micro == Some(0) && (line.memo_gpu_ms != 0 || line.memo_micro != 0)
    }

    fn table(&self) -> String {
        let keys = self.by.len();
        let mut rows: Vec<Vec<String>> = Vec::new();
        let mut header: Vec<String> = self.by.iter().map(|by| by.as_str().to_owned()).collect();
        header.extend(["GPU-hours".to_owned(), self.currency.to_string()]);
        rows.push(header);
        for line in self.lines.iter().filter(|line| !Self::is_memo(line)) {
            let mut row: Vec<String> = line.keys.iter().map(|key| show::cell(key.as_deref().unwrap_or("-"))).collect();
            row.extend([hours(line.gpu_ms), line.micro.map_or("unpriced".into(), units)]);
            rows.push(row);
        }
        let mut total = vec![String::new(); keys];
        total[0] = "total".into();
        total.extend([hours(self.priced_gpu_ms + self.unpriced_gpu_ms), units(self.total_micro)]);
        rows.push(total);
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
        let what = match (self.basis, self.spread_idle) {
            (Basis::Showback, false) => "showback: idle is shown, and nobody's",
            (Basis::Chargeback, false) => "chargeback: idle is its owner's or its users' where the card says so",
            (Basis::Showback, true) => "showback, with what nobody held spread by use",
            (Basis::Chargeback, true) => "chargeback, with what nobody held spread by use",
        };
        let mut text = String::new();
        let _ = writeln!(text, "Cost in {} from {} to {} (UTC); {what}", self.currency, self.window.0, self.window.1);
        let rule = "-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1));
        for (number, row) in rows.iter().enumerate() {
            if number == 1 || number == rows.len() - 1 {
                let _ = writeln!(text, "{rule}");
            }
            let cell = |(column, (cell, &width)): (usize, (&String, &usize))| {
                if column < keys { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            };
            let cells: Vec<String> = row.iter().zip(&widths).enumerate().map(cell).collect();
            let _ = writeln!(text, "{}", cells.join("  ").trim_end());
        }
        text.push_str(&self.notes());
        text
    }

    /// What is to be said beside the sum.
    pub fn notes(&self) -> String {
        let mut text = String::new();
        let mut say = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        let currency = &self.currency;
        if self.sums() {
            let pools = self.pools.iter().filter(|(_, pool)| pool.source_micro != 0 || pool.source_gpu_ms != 0);
            let pools: Vec<String> =
                pools.map(|(name, pool)| format!("{name} {} ({})", units(pool.source_micro), pool.basis)).collect();
            let of = if pools.is_empty() { "no pool has a cost".to_owned() } else { pools.join(" + ") };
            say(format!("sums to the source to the micro-unit: {} {currency} = {of}", units(self.total_micro)));
        } else {
            say("DOES NOT SUM TO ITS SOURCE; run `strandline money` with --force, and tell us if it stays".into());
            for (name, pool) in self.pools.iter().filter(|(_, pool)| !pool.sums()) {
                say(format!(
                    "  {name}: rows {} micro, hours {} micro, window {} micro; rows {} GPU-ms, paid for {} GPU-ms",
                    pool.rows_micro, pool.source_micro, pool.amount_micro, pool.rows_gpu_ms, pool.source_gpu_ms
                ));
            }
        }
        let cash: i64 = self.pools.values().map(|pool| pool.cash_micro).sum();
        if cash != self.total_micro {
            say(format!("cash that falls due in these hours: {} {currency}", units(cash)));
        }
        for line in self.lines.iter().filter(|line| Self::is_memo(line)) {
            let keys: Vec<&str> = line.keys.iter().map(|key| key.as_deref().unwrap_or("-")).collect();
            let (hours, money) = (hours(line.memo_gpu_ms), units(line.memo_micro));
            say(format!(
                "beside the sum, {}: {hours} GPU-hours, {money} {currency} (basis billed: inside the use above)",
                keys.join(" ")
            ));
        }
        let bucket = self.by.iter().position(|by| *by == super::By::Bucket);
        let time_of = |name: &str| -> i64 {
            let is = |line: &&Line| bucket.is_some_and(|at| line.keys[at].as_deref() == Some(name));
            self.lines.iter().filter(is).map(|line| line.gpu_ms).sum()
        };
        let not_billed = time_of(Bucket::NotBilled.as_str());
        if not_billed != 0 {
            say(format!("held beyond what is billed, at no cost: {} GPU-hours", hours(not_billed)));
        }
        if time_of(UNPRICED) != 0 || self.unpriced_gpu_ms != 0 {
            say(format!(
                "WITHOUT A PRICE: {} GPU-hours of {} match no pool of the card; the total leaves them out",
                hours(self.unpriced_gpu_ms),
                hours(self.priced_gpu_ms + self.unpriced_gpu_ms)
            ));
        }
        for name in &self.not_yet {
            say(format!(
                "idle of pool {name} is charged by use over its whole charging period, which is not (all) here: it stays nobody's"
            ));
        }
        let (all, priced) = self.hours;
        if priced < all {
            say(format!("priced {priced} of the {all} hours; the others have no hour rows"));
        }
        for (name, micro) in &self.unsettled {
            say(format!("pool {name} costs another {} {currency} in hours without rows: in no line above", units(*micro)));
        }
        text
    }

    fn json(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let mut object = Map::new();
            for (by, key) in self.by.iter().zip(&line.keys) {
                object.insert(by.as_str().into(), json!(key));
            }
            let figures = json!({
                "gpu_ms": line.gpu_ms, "micro": line.micro, "currency": *self.currency,
                "memo_gpu_ms": line.memo_gpu_ms, "memo_micro": line.memo_micro,
            });
            if let Value::Object(figures) = figures {
                object.extend(figures);
            }
            let _ = writeln!(text, "{}", Value::Object(object));
        }
        text
    }

    fn csv(&self) -> String {
        let mut text = String::new();
        let names = self.by.iter().map(|by| by.as_str());
        let header: Vec<&str> = names.chain(["gpu_ms", "micro", "currency", "memo_gpu_ms", "memo_micro"]).collect();
        let _ = writeln!(text, "{}", header.join(","));
        for line in &self.lines {
            let keys = line.keys.iter().map(|key| show::csv_cell(key.as_deref().unwrap_or_default()));
            let micro = line.micro.map_or_else(String::new, |micro| micro.to_string());
            let figures = [line.gpu_ms.to_string(), micro, self.currency.to_string()];
            let memo = [line.memo_gpu_ms.to_string(), line.memo_micro.to_string()];
            let _ = writeln!(text, "{}", keys.chain(figures).chain(memo).collect::<Vec<_>>().join(","));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_and_hours_are_printed_exactly() {
        assert_eq!(units(0), "0.000000");
        assert_eq!(units(-1), "-0.000001");
        assert_eq!(units(154_176_000_001), "154176.000001");
        assert_eq!(units(i64::MIN), "-9223372036854.775808");
        assert_eq!(hours(5_400_000), "1.500");
        assert_eq!(hours(-1_800), "-0.001");
        assert_eq!(hours(1_799), "0.000");
    }
}
