//! `strandline why`: the events, samples and rules that made an hour row.

use std::io::Write;

use clap::Args;
use query::why::{Asked, WhyError};
use schemas::Timestamp;

use crate::{
    commands::{LakeOption, parse::PageFormat, report::TierOption},
    failure::Failure,
};

/// Explain one device's hour, or a pod's: who held it, what was seen, and what the rules made of it
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("asked").required(true).args(["device", "pod"])))]
#[command(after_help = "Examples:
  strandline why --lake /tmp/lake --device GPU-5d8f2b9c-... --at 2026-03-02T10:20:00Z
  strandline why --lake /tmp/lake --pod reef/train-7 --at 2026-03-02T10:20:00Z --tier busy

The hour of --at is computed anew from samples and holdings, so they must still be in the lake; an hour that is not closed
yet is explained as far as it is known. Rule numbers (A4, ...) are those of docs/accounting.md.")]
pub struct Options {
    #[command(flatten)]
    lake: LakeOption,
    /// Device to explain: GPU UUID, or parent UUID/GPU instance id
    #[arg(long, env = "STRANDLINE_DEVICE", value_name = "ID")]
    device: Option<String>,
    /// Pod to explain, with every device that it held: UID, namespace/name, or name
    #[arg(long, env = "STRANDLINE_POD", value_name = "POD")]
    pod: Option<String>,
    /// An instant in the hour: RFC 3339 (2026-03-02T10:20:00Z)
    #[arg(long, env = "STRANDLINE_AT", value_name = "TIME", value_parser = crate::commands::time)]
    at: Timestamp,
    /// What "utilized" means
    #[arg(long, env = "STRANDLINE_TIER", value_enum, default_value = "sm")]
    tier: TierOption,
    /// How to print the explanation
    #[arg(long, value_enum, default_value = "table")]
    format: PageFormat,
}

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let asked = match (&options.device, &options.pod) {
        (Some(device), _) => Asked::Device(device.clone()),
        (None, Some(pod)) => Asked::Pod(pod.clone()),
        (None, None) => return Err(Failure::usage("give --device ID or --pod POD")),
    };
    let found = query::why::why(&options.lake.open()?, &asked, options.at).map_err(|error| match error {
        WhyError::NoInputs(..) | WhyError::NotThere { .. } => Failure::because(error.to_string()),
        WhyError::Account(_) | WhyError::Lake(_) => Failure::failed(error),
    })?;
    let text: Vec<String> = found
        .iter()
        .map(|why| if options.format == PageFormat::Json { format!("{}\n", why.json()) } else { why.text(options.tier.into()) })
        .collect();
    let between = if options.format == PageFormat::Json { "" } else { "\n" };
    out.write_all(text.join(between).as_bytes()).map_err(Failure::output)
}
