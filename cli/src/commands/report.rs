//! `strandline report`: where the GPU-hours went, by any grouping.

use std::{io::Write, path::PathBuf};

use clap::{Args, ValueEnum};
use query::report::{Dimension, ReportError, Request, priced::Prices};
use schemas::{Window, calendar::Zone, status::Tier};

use crate::{
    commands::{FormatOption, LakeOption, WindowOption, money},
    failure::Failure,
};

/// What "utilized" means
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TierOption {
    /// Was anything running: GPU_UTIL, else GR_ENGINE_ACTIVE
    Busy,
    /// Share of SMs at work: SM_ACTIVE (the headline)
    Sm,
    /// Tensor pipe or memory at work, against their ceilings
    Effective,
}

impl From<TierOption> for Tier {
    fn from(option: TierOption) -> Self {
        match option {
            TierOption::Busy => Self::Busy,
            TierOption::Sm => Self::Sm,
            TierOption::Effective => Self::Effective,
        }
    }
}

/// Print capacity, allocated, utilized, stranded, unobserved, free and unavailable GPU-hours
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strandline report --lake /tmp/lake --by team
  strandline report --lake /tmp/lake --by team,product,day --from 2026-03-02 --to 2026-03-09 --tier effective
  strandline report --lake /tmp/lake --by team --month 2026-03 --tz Europe/Berlin --top 10 --min-coverage 50
  strandline report --lake /tmp/lake --by team,purchase_option --rates docs/examples/rates-demo.yaml
  strandline report --lake /tmp/lake --by node,hour --format csv

capacity = allocated + free + unavailable, and allocated = utilized + stranded + unobserved, to the millisecond.
used % is utilized / (utilized + stranded): every GPU-hour alike, and beside it every job (workload, else pod) alike.
Coverage is the share of the allocated time that somebody saw; no other percentage is worth more than it.
Hours that are not closed yet are computed as they stand. Where a bound or a zone cuts a UTC hour, its parts are computed
anew from samples and holdings.")]
pub struct Options {
    #[command(flatten)]
    lake: LakeOption,
    /// Group by: cluster, node, region, provider, product, profile, purchase_option, namespace, pod, workload, queue, team,
    /// hour, day, week, month
    #[arg(long, env = "STRANDLINE_BY", default_value = "team", value_name = "LIST")]
    by: String,
    #[command(flatten)]
    window: WindowOption,
    /// A whole month, such as 2026-03, in the zone of --tz
    #[arg(long, env = "STRANDLINE_MONTH", value_name = "YYYY-MM", conflicts_with_all = ["from", "to"])]
    month: Option<String>,
    /// Time zone of hours, days, weeks and months, such as Asia/Kolkata
    #[arg(long, env = "STRANDLINE_TZ", value_name = "ZONE", default_value = "UTC")]
    tz: String,
    /// What "utilized" means
    #[arg(long, env = "STRANDLINE_TIER", value_enum, default_value = "sm")]
    tier: TierOption,
    /// Print only the N groups with the most allocated time, and the others as one line
    #[arg(long, env = "STRANDLINE_TOP", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    top: Option<u32>,
    /// Do not print what was seen of groups that were seen less than this share of their time
    #[arg(long, env = "STRANDLINE_MIN_COVERAGE", value_name = "PERCENT", value_parser = percent)]
    min_coverage: Option<f64>,
    /// A rate card (YAML, see docs/money.md): money beside the hours
    #[arg(long, env = "STRANDLINE_RATES", value_name = "FILE")]
    rates: Option<PathBuf>,
    /// How to print the rows
    #[arg(long, env = "STRANDLINE_FORMAT", value_enum, default_value = "table")]
    format: FormatOption,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("give a number from 0 to 100".into()),
    }
}

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let by = Dimension::parse_list(&options.by).map_err(|error| Failure::usage(error.to_string()))?;
    let unknown = |error: schemas::calendar::CalendarError| Failure::usage(error.to_string());
    let zone = Zone::parse(&options.tz).map_err(unknown)?;
    let window = match &options.month {
        Some(month) => {
            let (from, to) = zone.month(month).map_err(unknown)?;
            Some(Window::new(from, to).map_err(|error| Failure::usage(error.to_string()))?)
        }
        None => options.window.in_zone(&zone)?,
    };
    let lake = options.lake.open()?;
    let prices = match &options.rates {
        None => None,
        Some(path) => {
            let card = money::read_card(path)?;
            Some(Prices { rows: money::priced(&lake, &card, window)?, currency: card.currency.to_string() })
        }
    };
    let request = Request {
        by,
        window,
        tier: options.tier.into(),
        zone: (options.tz != "UTC").then(|| options.tz.clone()),
        top: options.top.map(|top| top as usize),
        min_coverage: options.min_coverage,
        prices,
    };
    let report = query::report::report(&lake, &request).map_err(|error| match error {
        ReportError::Calendar(_) | ReportError::CannotCut { .. } | ReportError::NotPriced(_) => Failure::usage(error.to_string()),
        ReportError::Lake(_) | ReportError::Account(_) | ReportError::NoRows(_) | ReportError::BadRow { .. } => {
            Failure::failed(error)
        }
    })?;
    out.write_all(report.text(options.format.into()).as_bytes()).map_err(Failure::output)
}
