//! `strandline money`: what the GPU time cost, and who had it.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use lake::Lake;
use query::money::{
    CostsError, Options as Job,
    bill::{self, BillError, By, Request},
    card::Card,
    costs::CostRow,
    yaml,
};
use schemas::{Window, calendar::Zone};

use crate::{
    commands::{FormatOption, LakeOption, WindowOption, progress, read_file},
    failure::Failure,
};

/// Who pays for idle time
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BasisOption {
    /// Nobody: everything is shown, nothing is moved
    Showback,
    /// Whom the rate card says: the pool's owner, or its users by their use
    Chargeback,
}

/// Price the hours of a lake by a rate card (table costs), and print the bill
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strandline money --lake /tmp/lake --rates docs/examples/rates-demo.yaml
  strandline money --lake /tmp/lake --rates rates.yaml --month 2026-03 --by team,pool --basis chargeback
  strandline money --lake /tmp/lake --rates rates.yaml --by pool,day --format csv
  strandline sql --lake /tmp/lake \"SELECT team, SUM(micro) / 1e6 AS cost FROM costs WHERE bucket = 'team' GROUP BY team\"

Allocation is billed, never utilization. What no pool of the card matches is `unpriced`, with its time. An hour whose inputs
did not change is not priced again, unless --force. The bill sums to its source to the micro-unit, or the exit code is 1.
docs/money.md describes the card and every bucket.")]
pub struct Options {
    #[command(flatten)]
    lake: LakeOption,
    /// The rate card (YAML)
    #[arg(long, env = "STRANDLINE_RATES", value_name = "FILE")]
    rates: PathBuf,
    #[command(flatten)]
    window: WindowOption,
    /// A UTC month, in place of --from and --to
    #[arg(long, value_name = "YYYY-MM", conflicts_with_all = ["from", "to"], value_parser = month)]
    month: Option<Window>,
    /// Group by: team, pool, bucket, purchase_option, provider, region, product, hour, day, month (the bucket is always shown)
    #[arg(long, env = "STRANDLINE_BY", default_value = "team", value_name = "LIST")]
    by: String,
    /// Who pays for idle time
    #[arg(long, value_enum, default_value = "showback")]
    basis: BasisOption,
    /// Share what nobody held (idle, reserved_idle, unavailable) out by use, in every pool
    #[arg(long)]
    spread_idle: bool,
    /// Price hours again whose inputs did not change
    #[arg(long)]
    force: bool,
    /// How to print the bill
    #[arg(long, env = "STRANDLINE_FORMAT", value_enum, default_value = "table")]
    format: FormatOption,
}

fn month(text: &str) -> Result<Window, String> {
    let month = Zone::parse("UTC").and_then(|utc| utc.month(text)).map_err(|error| error.to_string())?;
    Window::new(month.0, month.1).map_err(|error| error.to_string())
}

/// Largest rate card that is read.
const MAX_CARD_BYTES: u64 = 4 << 20;

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let by = By::parse_list(&options.by).map_err(Failure::usage)?;
    let card = read_card(&options.rates)?;
    let lake = options.lake.open()?;
    let window = match options.month {
        Some(month) => Some(month),
        None => options.window.window()?,
    };
    let bar = progress::bar("pricing hours");
    let job = Job { window, force: options.force, keep: false };
    let summary = query::money::run(&lake, &card, job, |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let summary = summary.map_err(of_costs)?;
    // A table is for people, who read on; what programs read stays clean.
    if options.format != FormatOption::Table {
        summary.warnings.iter().for_each(|warning| eprintln!("warning: {}", query::show::printable(warning)));
    }
    let basis = match options.basis {
        BasisOption::Showback => bill::Basis::Showback,
        BasisOption::Chargeback => bill::Basis::Chargeback,
    };
    let request = Request { by, basis, spread_idle: options.spread_idle };
    let bill = bill::bill(&lake, &card, &summary, &request).map_err(|error| match error {
        BillError::Costs(error) => of_costs(error),
        BillError::NotBy(..) => Failure::usage(error.to_string()),
        BillError::TooLarge(_) => Failure::failed(error),
    })?;
    out.write_all(bill.text(options.format.into()).as_bytes()).map_err(Failure::output)?;
    let done = format!("{} hours priced, {} unchanged (table costs)\n", summary.computed, summary.unchanged);
    if options.format == FormatOption::Table {
        for warning in &summary.warnings {
            writeln!(out, "warning: {}", query::show::printable(warning)).map_err(Failure::output)?;
        }
        out.write_all(done.as_bytes()).map_err(Failure::output)?;
    }
    if bill.sums() { Ok(()) } else { Err(Failure::because("the bill does not sum to its source")) }
}

/// Reads the rate card at `path`.
pub(super) fn read_card(path: &Path) -> Result<Card, Failure> {
    let file = path.display().to_string();
    let bytes = read_file(path, MAX_CARD_BYTES).map_err(|error| Failure::usage(format!("cannot read {file}: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|_| Failure::usage(format!("{file}: it is not UTF-8")))?;
    yaml::card(&file, &text).map_err(|error| Failure::usage(error.to_string()))
}

/// Prices the closed hours of `window` by a card, for those who only ask: table `costs` is the bill's and stays as it is.
pub(super) fn priced(lake: &Lake, card: &Card, window: Option<Window>) -> Result<Vec<CostRow>, Failure> {
    let job = Job { window, force: false, keep: true };
    Ok(query::money::run(lake, card, job, |_, _| {}).map_err(of_costs)?.rows)
}

fn of_costs(error: CostsError) -> Failure {
    match error {
        CostsError::InsideHour(..) => Failure::usage(error.to_string()),
        CostsError::Lake(_)
        | CostsError::NoHours(_)
        | CostsError::OtherMonths { .. }
        | CostsError::Refused { .. }
        | CostsError::Runs { .. }
        | CostsError::BadRow { .. }
        | CostsError::Build { .. } => Failure::failed(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use schemas::Timestamp;

    #[test]
    fn months_are_read() {
        let march = month("2026-03").unwrap();
        assert_eq!(
            (march.from().to_string(), march.to().to_string()),
            ("2026-03-01T00:00:00.000Z".into(), "2026-04-01T00:00:00.000Z".into())
        );
        assert_eq!(month("2026-12").unwrap().to(), "2027-01-01T00:00:00Z".parse::<Timestamp>().unwrap());
        for bad in ["", "2026", "2026-13", "2026-00", "x-01"] {
            assert!(month(bad).is_err(), "{bad}");
        }
    }
}
