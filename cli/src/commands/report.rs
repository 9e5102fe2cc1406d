//! `strandline report`: where the GPU-hours went, by any grouping.

use std::io::Write;

use clap::{Args, ValueEnum};
use query::report::{Dimension, ReportError, Request};
use schemas::status::Tier;

use crate::{
    commands::{FormatOption, LakeOption, WindowOption},
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
  strandline report --lake /tmp/lake --by node,hour --format csv

capacity = allocated + free + unavailable, and allocated = utilized + stranded + unobserved, to the millisecond.
Coverage is the share of the allocated time that somebody saw.")]
pub struct Options {
    #[command(flatten)]
    lake: LakeOption,
    /// Group by: cluster, node, region, provider, product, purchase_option, namespace, pod, workload, queue, team, hour, day, month
    #[arg(long, env = "STRANDLINE_BY", default_value = "team", value_name = "LIST")]
    by: String,
    #[command(flatten)]
    window: WindowOption,
    /// What "utilized" means
    #[arg(long, env = "STRANDLINE_TIER", value_enum, default_value = "sm")]
    tier: TierOption,
    /// How to print the rows
    #[arg(long, env = "STRANDLINE_FORMAT", value_enum, default_value = "table")]
    format: FormatOption,
}

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let by = Dimension::parse_list(&options.by).map_err(|error| Failure::usage(error.to_string()))?;
    let request = Request { by, window: options.window.window()?, tier: options.tier.into() };
    let report = query::report::report(&options.lake.open()?, &request).map_err(|error| match error {
        ReportError::InsideHour(..) => Failure::usage(error.to_string()),
        ReportError::Lake(_) | ReportError::NoRows(_) | ReportError::BadRow { .. } => Failure::failed(error),
    })?;
    out.write_all(report.text(options.format.into()).as_bytes()).map_err(Failure::output)
}
