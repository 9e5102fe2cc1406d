//! `strandline-sim fidelity`: how far a calibrated fleet is from what was measured.

use std::io::{self, Write};

use simulator::{
    Seed,
    fidelity::{LIMIT, fidelity},
    presets::Preset,
};

use super::{Failure, usage};
use crate::output::{self, Format};

#[derive(Debug, clap::Args)]
pub struct Fidelity {
    /// Which cluster: acme-seren, philly, openb, genai-serving.
    #[arg(long)]
    preset: Preset,
    /// Seed in place of the preset's.
    #[arg(long, env = "STRANDLINE_SIM_SEED")]
    seed: Option<Seed>,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

impl Fidelity {
    pub fn run(self) -> Result<(), Failure> {
        let compared = fidelity(self.preset, self.seed).map_err(|err| usage(self.preset, &err))?;
        let mut out = io::BufWriter::new(io::stdout().lock());
        output::records(&compared, self.format, &mut out)?;
        if self.format == Format::Table {
            writeln!(out, "\nclose: a distance of at most {LIMIT}. {}", self.preset.measured().source)?;
        }
        Ok(out.flush()?)
    }
}
