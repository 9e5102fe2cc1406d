//! Which devices are printed, as dcgm-exporter's `--devices` says it: `f`, `g`, `g:0,2`, `i`, `i:0,3`, and two of them by `+`.

use std::collections::BTreeSet;

/// Devices that are printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    gpus: Pick,
    instances: Pick,
    /// Each GPU by its instances where it has any, else whole.
    flexible: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pick {
    None,
    All,
    Some(BTreeSet<u32>),
}

impl Pick {
    fn has(&self, id: u32) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Some(ids) => ids.contains(&id),
        }
    }
}

/// What is wrong with a selection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` selects no devices; write f (each GPU by its instances, else whole), g (GPUs), i (MIG instances), with ids as in g:0,2"
)]
pub struct BadSelection(String);

impl Default for Selection {
    fn default() -> Self {
        Self { gpus: Pick::All, instances: Pick::All, flexible: true }
    }
}

impl Selection {
    /// Reads a selection.
    pub fn parse(text: &str) -> Result<Self, BadSelection> {
        let bad = || BadSelection(text.chars().take(80).collect());
        if text.trim() == "f" {
            return Ok(Self::default());
        }
        let mut selection = Self { gpus: Pick::None, instances: Pick::None, flexible: false };
        for part in text.split('+').map(str::trim) {
            let (kind, ids) = part.split_once(':').map_or((part, None), |(kind, ids)| (kind, Some(ids)));
            let pick = match ids {
                None => Pick::All,
                Some(ids) => Pick::Some(
                    ids.split(',').map(range).collect::<Option<Vec<_>>>().ok_or_else(bad)?.into_iter().flatten().collect(),
                ),
            };
            match kind {
                "g" => selection.gpus = pick,
                "i" => selection.instances = pick,
                _ => return Err(bad()),
            }
        }
        Ok(selection)
    }

    /// Whether a whole GPU's own line is printed, by its index; `cut`: it has instances.
    pub fn gpu(&self, index: u32, cut: bool) -> bool {
        self.gpus.has(index) || (self.flexible && cut)
    }

    /// Whether a GPU instance is printed. dcgm-exporter counts instances over all GPUs; here it is the GPU instance id.
    pub fn instance(&self, gi: u32) -> bool {
        self.instances.has(gi)
    }
}

/// `3` or `0-7`, within reason.
fn range(text: &str) -> Option<std::ops::RangeInclusive<u32>> {
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|number| *number < 4096);
    match text.split_once('-') {
        Some((from, to)) => Some(number(from)?..=number(to)?),
        None => number(text).map(|id| id..=id),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn selections_are_dcgm_exporters() {
        let of = |text: &str| Selection::parse(text).unwrap();
        assert!(of("f").gpu(3, false) && of("f").gpu(3, true) && of("f").instance(7));
        assert!(of("g").gpu(3, true) && !of("g").instance(7));
        let some = of("g:0,2-3+i:7");
        assert_eq!((0..5).filter(|gpu| some.gpu(*gpu, false)).collect::<Vec<_>>(), [0, 2, 3]);
        assert!(some.instance(7) && !some.instance(8) && !of("i").gpu(0, true));
        for bad in ["", "x", "g:", "g:a", "g:1-", "g:0-99999999", "f+g"] {
            assert!(Selection::parse(bad).is_err(), "{bad}");
        }
    }
}
