//! Boards and their constants, from `accelerators.csv`: measured figures with their sources.

use std::sync::LazyLock;

use crate::{
    calibrate::{self, Curve},
    timeline::Heat,
};

/// Who makes accelerators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// NVIDIA: the only one with DCGM.
    Nvidia,
    /// AMD.
    Amd,
    /// Google.
    Google,
}

/// One product. A constant that nobody published is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// Name as the driver gives it.
    pub product: String,
    /// Who makes it.
    pub vendor: Vendor,
    /// Architecture.
    pub arch: String,
    /// Device memory, MiB.
    pub memory_mib: i64,
    /// Board limit, milliwatts.
    pub tdp_mw: Option<i64>,
    /// Draw with nothing loaded, milliwatts.
    pub idle_mw: Option<i64>,
    /// Streaming multiprocessors.
    pub sm_count: Option<i64>,
    /// Highest SM clock, MHz.
    pub max_sm_clock_mhz: Option<i64>,
    /// Highest memory clock, MHz.
    pub max_mem_clock_mhz: Option<i64>,
    /// NVLinks of the board; none: no NVLink.
    pub nvlinks: Option<i64>,
    /// MIG profiles that it can be split into.
    pub mig_profiles: Vec<String>,
    /// Where the figures come from.
    pub source: String,
}

/// Constants of a board whose telemetry can be simulated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Board {
    pub memory_mib: i64,
    pub tdp_mw: i64,
    pub idle_mw: i64,
    pub max_sm_clock: i64,
    pub idle_sm_clock: i64,
    pub max_mem_clock: i64,
    pub nvlinks: Option<i64>,
    /// SXM boards: memory clock always up, HBM with a sensor of its own.
    pub hbm: bool,
    /// Ampere and later: rows are remapped.
    pub remaps_rows: bool,
    /// How warm it gets, where that was measured.
    pub curve: Option<Curve>,
}

impl Board {
    /// Temperature of die and memory above the inlet's at a steady draw with nothing loaded, thousandths of a degree.
    pub fn base(&self, idle_mw: i64) -> Heat {
        match self.curve {
            Some(curve) => {
                let (gpu_mc, mem_mc) = calibrate::warmth(curve, idle_mw);
                Heat { gpu_mc, mem_mc }
            }
            None => Heat { gpu_mc: 38_000 * idle_mw / self.tdp_mw, mem_mc: 29_000 * idle_mw / self.tdp_mw + 9_000 },
        }
    }

    /// What `power_mw` more than that add in the end.
    pub fn heat(&self, idle_mw: i64, power_mw: i64) -> Heat {
        match self.curve {
            Some(_) => {
                let (warm, base) = (self.base(idle_mw + power_mw), self.base(idle_mw));
                Heat { gpu_mc: warm.gpu_mc - base.gpu_mc, mem_mc: warm.mem_mc - base.mem_mc }
            }
            None => Heat { gpu_mc: 38_000 * power_mw / self.tdp_mw, mem_mc: 29_000 * power_mw / self.tdp_mw },
        }
    }
}

impl Accelerator {
    /// Resource that a whole one is asked for as.
    pub fn resource(&self) -> &'static str {
        match self.vendor {
            Vendor::Nvidia => "nvidia.com/gpu",
            Vendor::Amd => "amd.com/gpu",
            Vendor::Google => "google.com/tpu",
        }
    }

    /// Whether DCGM reads it.
    pub fn has_telemetry(&self) -> bool {
        self.vendor == Vendor::Nvidia
    }

    /// The board's constants, or the name of the one that is missing; none where nobody reads it.
    pub(crate) fn board(&self) -> Option<Result<Board, &'static str>> {
        self.has_telemetry().then(|| self.constants())
    }

    fn constants(&self) -> Result<Board, &'static str> {
        let hbm = self.nvlinks.is_some();
        let idle_sm_clock = match self.arch.as_str() {
            "Hopper" => 345,
            "Blackwell" => 120,
            "Volta" => 135,
            "Turing" => 300,
            _ => 210,
        };
        Ok(Board {
            memory_mib: self.memory_mib,
            tdp_mw: self.tdp_mw.ok_or("TDP")?,
            idle_mw: self.idle_mw.ok_or("idle power")?,
            max_sm_clock: self.max_sm_clock_mhz.ok_or("SM clock")?,
            idle_sm_clock,
            max_mem_clock: self.max_mem_clock_mhz.ok_or("memory clock")?,
            nvlinks: self.nvlinks,
            hbm,
            remaps_rows: matches!(self.arch.as_str(), "Ampere" | "Hopper" | "Ada Lovelace" | "Blackwell"),
            curve: None,
        })
    }
}

static ALL: LazyLock<Vec<Accelerator>> = LazyLock::new(|| {
    let mut reader = csv::Reader::from_reader(include_str!("accelerators.csv").as_bytes());
    let rows = reader.records().map(|record| record.expect("the embedded table of accelerators is well-formed CSV"));
    rows.map(|row| accelerator(&row)).collect()
});

fn accelerator(row: &csv::StringRecord) -> Accelerator {
    let cell = |at: usize| row.get(at).expect("the embedded table of accelerators has 12 columns");
    let number = |at: usize| {
        let text = cell(at);
        (!text.is_empty()).then(|| text.parse::<i64>().expect("the embedded table of accelerators has whole numbers"))
    };
    Accelerator {
        product: cell(0).to_owned(),
        vendor: match cell(1) {
            "NVIDIA" => Vendor::Nvidia,
            "AMD" => Vendor::Amd,
            "Google" => Vendor::Google,
            other => panic!("the embedded table of accelerators has a vendor `{other}` that nobody wrote down"),
        },
        arch: cell(2).to_owned(),
        memory_mib: number(3).expect("every accelerator has memory"),
        tdp_mw: number(4).map(|w| w * 1000),
        idle_mw: number(5).map(|w| w * 1000),
        sm_count: number(6),
        max_sm_clock_mhz: number(7),
        max_mem_clock_mhz: number(8),
        nvlinks: cell(9).split_once("x NVLink").map(|(n, _)| n.parse().expect("links are counted")),
        mig_profiles: cell(10).split(';').filter(|profile| *profile != "none").map(str::to_owned).collect(),
        source: cell(11).to_owned(),
    }
}

/// Every product that we have constants of.
pub fn all() -> &'static [Accelerator] {
    &ALL
}

/// The product called `name`, exactly.
pub fn by_product(name: &str) -> Option<&'static Accelerator> {
    ALL.iter().find(|accelerator| accelerator.product == name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn constants_are_read_with_their_sources() {
        let h100 = by_product("NVIDIA H100 80GB HBM3").unwrap();
        assert_eq!((h100.memory_mib, h100.tdp_mw, h100.nvlinks), (81_559, Some(700_000), Some(18)));
        assert_eq!(h100.mig_profiles.len(), 7);
        assert_eq!(by_product("NVIDIA L4").unwrap().nvlinks, None);
        assert!(all().iter().all(|a| !a.source.is_empty()));
        let refused: Vec<_> = all().iter().filter_map(|a| Some((a.product.as_str(), a.board()?.err()?))).collect();
        assert_eq!(refused, [("Tesla V100-SXM2-16GB", "idle power")]);
        let unread: Vec<_> = all().iter().filter(|a| !a.has_telemetry()).map(|a| a.product.as_str()).collect();
        assert_eq!(unread, ["TPU v5e", "AMD Instinct MI300X"]);
    }
}
