//! `strandline why`: the events, samples and rules that made an hour row.

use std::{io::Write, path::PathBuf};

use clap::Args;
use query::why::{Asked, WhyError};
use schemas::{HOUR_MS, Timestamp, Window};

use crate::{
    commands::{LakeOption, money, parse::PageFormat, report::TierOption},
    failure::Failure,
};

/// Explain one device's hour, or a pod's: who held it, what was seen, and what the rules made of it
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("asked").required(true).args(["device", "pod"])))]
#[command(after_help = "Examples:
  strandline why --lake /tmp/lake --device GPU-5d8f2b9c-... --at 2026-03-02T10:20:00Z
  strandline why --lake /tmp/lake --pod reef/train-7 --at 2026-03-02T10:20:00Z --tier busy --rates rates.yaml

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
    /// A rate card (YAML, see docs/money.md): what the time cost, too
    #[arg(long, env = "STRANDLINE_RATES", value_name = "FILE")]
    rates: Option<PathBuf>,
    /// How to print the explanation
    #[arg(long, value_enum, default_value = "table")]
    format: PageFormat,
}

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let lake = options.lake.open()?;
    let asked = match (&options.device, &options.pod) {
        (Some(device), _) => Asked::Device(device.clone()),
        (None, Some(pod)) => Asked::Pod(pod.clone()),
        (None, None) => return Err(Failure::usage("give --device ID or --pod POD")),
    };
    let found = query::why::why(&lake, &asked, options.at).map_err(|error| match error {
        WhyError::NoInputs(..) | WhyError::NotThere { .. } => Failure::because(error.to_string()),
        WhyError::Account(_) | WhyError::Lake(_) => Failure::failed(error),
    })?;
    let json = options.format == PageFormat::Json;
    let mut text: Vec<String> =
        found.iter().map(|why| if json { format!("{}\n", why.json()) } else { why.text(options.tier.into()) }).collect();
    if let (Some(path), false) = (&options.rates, json) {
        let card = money::read_card(path)?;
        let hour = options.at.hour();
        let window = Window::new(hour, hour.plus_ms(HOUR_MS)).map_err(|error| Failure::usage(error.to_string()))?;
        let costs = money::priced(&lake, &card, Some(window))?;
        text.iter_mut().zip(&found).for_each(|(text, why)| text.push_str(&why.price(&card, &costs)));
    }
    out.write_all(text.join(if json { "" } else { "\n" }).as_bytes()).map_err(Failure::output)
}
