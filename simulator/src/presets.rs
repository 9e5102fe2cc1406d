//! What real clusters were measured to do, as far as it was published: the data that presets are calibrated by and compared with.
//!
//! Each table's head names its source and licence. Values are kept in thousandths of their unit, as whole numbers.

use std::{borrow::Cow, collections::BTreeMap, fmt, str::FromStr, sync::LazyLock};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

/// A measured cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Preset {
    /// DCGM readings of an A100 cluster that trains language models (Acme, Seren).
    AcmeSeren,
    /// Jobs of a shared training cluster (Philly).
    Philly,
    /// Pods of a Kubernetes cluster whose GPUs are shared (openb).
    Openb,
    /// Pods that serve image models.
    GenaiServing,
}

/// One quantity of a preset: pairs of (place, value), both in thousandths. Of a distribution the place is the percentile, else
/// what is counted: hours of the day, numbers of GPUs.
pub type Points = Vec<(i64, i64)>;

/// A preset's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Where they come from, under which licence, and what was changed.
    pub source: String,
    quantities: BTreeMap<&'static str, Points>,
}

impl Preset {
    /// Every preset.
    pub const ALL: &'static [Self] = &[Self::AcmeSeren, Self::Philly, Self::Openb, Self::GenaiServing];

    /// Its word in specs and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AcmeSeren => "acme-seren",
            Self::Philly => "philly",
            Self::Openb => "openb",
            Self::GenaiServing => "genai-serving",
        }
    }

    /// The fleet that is calibrated by it, as a spec.
    pub const fn fleet(self) -> &'static str {
        match self {
            Self::AcmeSeren => include_str!("presets/acme-seren.yaml"),
            Self::Philly => include_str!("presets/philly.yaml"),
            Self::Openb => include_str!("presets/openb.yaml"),
            Self::GenaiServing => include_str!("presets/genai-serving.yaml"),
        }
    }

    /// Its tables.
    pub fn measured(self) -> &'static Measured {
        static ALL: LazyLock<[Measured; 4]> = LazyLock::new(|| {
            [
                include_str!("presets/acme-seren.csv"),
                include_str!("presets/philly.csv"),
                include_str!("presets/openb.csv"),
                include_str!("presets/genai-serving.csv"),
            ]
            .map(read)
        });
        &ALL[self as usize]
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Self::ALL.iter().map(|preset| preset.as_str()).collect::<Vec<_>>().join(", ");
        Self::ALL
            .iter()
            .copied()
            .find(|preset| preset.as_str() == text)
            .ok_or_else(|| format!("`{text}` is no preset; there are {}", known()))
    }
}

impl JsonSchema for Preset {
    fn schema_name() -> Cow<'static, str> {
        "Preset".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let words: Vec<&str> = Self::ALL.iter().map(|preset| preset.as_str()).collect();
        json_schema!({ "description": "A measured cluster.", "type": "string", "enum": words })
    }
}

impl<'de> Deserialize<'de> for Preset {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        /// Checked inside the reader, which then knows the line and the key.
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Preset;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a preset")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Preset, E> {
                text.parse().map_err(E::custom)
            }
        }
        from.deserialize_str(Text)
    }
}

fn read(text: &'static str) -> Measured {
    let mut source = String::new();
    let mut quantities: BTreeMap<&'static str, Points> = BTreeMap::new();
    for line in text.lines() {
        if let Some(words) = line.strip_prefix("# ") {
            source.push_str(if source.is_empty() { "" } else { " " });
            source.push_str(words);
        } else if line != "quantity,at,value" {
            let mut cells = line.split(',');
            let (Some(quantity), Some(at), Some(value)) = (cells.next(), cells.next(), cells.next()) else {
                panic!("the embedded table has a row that is no quantity, place and value: {line}");
            };
            let thousandths = |cell: &str| {
                let number: f64 = cell.parse().expect("the embedded tables have numbers");
                (number * 1000.0).round() as i64
            };
            quantities.entry(quantity).or_default().push((thousandths(at), thousandths(value)));
        }
    }
    Measured { source, quantities }
}

impl Measured {
    /// The points of one quantity; none of one that was not measured.
    pub fn points(&self, quantity: &str) -> &[(i64, i64)] {
        self.quantities.get(quantity).map_or(&[], Vec::as_slice)
    }

    /// The value at `rank` (ppm of the samples lie below it), between two points on the straight line between them.
    pub fn at_rank(&self, quantity: &str, rank: i64) -> i64 {
        between(self.points(quantity), rank.clamp(0, 1_000_000) / 10)
    }

    /// The value at a place, of a quantity that is no distribution.
    pub fn at(&self, quantity: &str, place: i64) -> i64 {
        between(self.points(quantity), place * 1000)
    }
}

/// The line through `points` at `place`; beyond the ends it is flat.
pub(crate) fn between(points: &[(i64, i64)], place: i64) -> i64 {
    let next = points.partition_point(|(at, _)| *at <= place);
    match (next.checked_sub(1).map(|last| points[last]), points.get(next)) {
        (Some((from, low)), Some(&(to, high))) => low + (high - low) * (place - from) / (to - from),
        (Some((_, value)), None) | (None, Some(&(_, value))) => value,
        (None, None) => 0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tables_name_their_source_and_have_what_they_are_compared_by() {
        for (preset, quantities) in [
            (Preset::AcmeSeren, &["gpu_util", "fb_used", "sm_active", "sm_occupancy", "power", "gpu_temp", "mem_temp"][..]),
            (Preset::Philly, &["duration", "gpus", "hour", "gpu_util"]),
            (Preset::Openb, &["duration", "gpus", "fraction", "hour"]),
            (Preset::GenaiServing, &["gpu_util", "gpu_util_busy", "zero_share", "hour_mean", "hour_zero"]),
        ] {
            let measured = preset.measured();
            assert!(measured.source.contains("github"), "{preset}: {}", measured.source);
            for quantity in quantities {
                let points = measured.points(quantity);
                assert!(!points.is_empty() && points.windows(2).all(|two| two[0].0 < two[1].0), "{preset} {quantity}");
            }
            assert_eq!(preset.as_str().parse(), Ok(preset));
        }
        assert_eq!(
            "nobody".parse::<Preset>().unwrap_err(),
            "`nobody` is no preset; there are acme-seren, philly, openb, genai-serving"
        );
    }

    #[test]
    fn quantiles_are_on_the_line_between_points() {
        let points = [(0, 10), (50, 20), (100, 20), (150, 50)];
        let at = |place| between(&points, place);
        assert_eq!([at(-1), at(0), at(25), at(50), at(75), at(125), at(150), at(900)], [10, 10, 15, 20, 20, 35, 50, 50]);
        assert_eq!(Preset::AcmeSeren.measured().at_rank("gpu_util", 500_000), 99_000);
    }
}
