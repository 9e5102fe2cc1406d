//! The metric catalogue: every DCGM metric by field id, its spellings, type, unit and range.
//!
//! One row a metric, from `dcgm-fields.csv` (174 metrics; ids and aliases as in DCGM's headers 2.1.4 to 4.6.1). A page is
//! mapped by field id, so that DCGM's renames do not start new series. [`Field::read`] is the one place where a printed value
//! becomes a reading or a reason why it is none (rule A6).

use std::{collections::HashMap, sync::LazyLock};

use crate::status::ReadingFault;

/// How dcgm-exporter types the metric in its exposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromType {
    /// Goes up and down.
    Gauge,
    /// Printed as a counter; whether it truly never falls is [`Field::monotonic`].
    Counter,
    /// Text that travels as a label of other metrics.
    Label,
}

impl PromType {
    /// The word of a `# TYPE` line (labels have none of their own).
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Label => "label",
        }
    }
}

/// Type in which DCGM stores the field; decides its blanks and its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// Whole numbers: INT64 in the lake, printed as digits.
    Int64,
    /// Fractions: FLOAT in the lake, printed with six decimals.
    Double,
    /// Text; never a reading.
    Text,
}

/// One metric of the catalogue.
#[derive(Debug)]
pub struct Field {
    /// DCGM's name, the classic spelling that dcgm-exporter prints.
    pub name: &'static str,
    /// DCGM field id; exporter-made families without one have none.
    pub id: Option<u16>,
    /// Type in the exposition.
    pub prom_type: PromType,
    /// Unit in words (`MiB`, `percent`, `ratio`, `watts`, ...).
    pub unit: &'static str,
    /// Whether dcgm-exporter's default collectors file has it on.
    pub default_enabled: bool,
    /// Whether it needs DCGM's profiling module (GPM on Hopper and later).
    pub needs_profiling: bool,
    /// Stored type.
    pub value_type: ValueType,
    /// Other spellings of the same id and unit.
    pub aliases: Vec<&'static str>,
    /// Least valid value, where one is stated.
    pub min: Option<f64>,
    /// Greatest valid value, where one is stated.
    pub max: Option<f64>,
    /// Whether the value only grows but for resets.
    pub monotonic: bool,
    /// What it means, in one line.
    pub meaning: &'static str,
    /// Column of `gpu_samples`: the name without `DCGM_FI_`, in lower case. None for text and for families that have
    /// several series a device (`DCGM_EXP_*`), which land in `extra_samples` with their labels.
    pub column: Option<String>,
}

/// What one printed value says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reading {
    /// A whole number in range.
    Int(i64),
    /// A fraction in range.
    Ratio(f64),
    /// A fraction slightly above its range: kept raw, read as 1 by the ledger, flagged.
    Clipped(f64, ReadingFault),
    /// No reading, and why.
    Invalid(ReadingFault),
}

/// Field ids that the ledger reads.
pub mod id {
    /// GPU_UTIL, percent.
    pub const GPU_UTIL: u16 = 203;
    /// GR_ENGINE_ACTIVE, ratio.
    pub const GR_ENGINE_ACTIVE: u16 = 1001;
    /// SM_ACTIVE, ratio: the headline.
    pub const SM_ACTIVE: u16 = 1002;
    /// PIPE_TENSOR_ACTIVE, ratio.
    pub const PIPE_TENSOR_ACTIVE: u16 = 1004;
    /// DRAM_ACTIVE, ratio.
    pub const DRAM_ACTIVE: u16 = 1005;
    /// POWER_USAGE, watts.
    pub const POWER_USAGE: u16 = 155;
    /// TOTAL_ENERGY_CONSUMPTION, millijoules since the driver was loaded.
    pub const TOTAL_ENERGY: u16 = 156;
    /// XID_ERRORS, the last code seen.
    pub const XID_ERRORS: u16 = 230;
    /// FB_USED, MiB.
    pub const FB_USED: u16 = 252;
}

const INT32_BLANKS: std::ops::RangeInclusive<f64> = 2_147_483_632.0..=2_147_483_647.0;
const FP64_BLANK: f64 = 140_737_488_355_328.0;
/// First blank of int64 (`DCGM_INT64_BLANK`); greater values are its relatives (not found, not supported, not permitted).
const INT64_BLANK: i128 = 9_223_372_036_854_775_792;

impl Field {
    /// Reads a value as printed. `number` is the text as a float; `on_instance` says that the device is a MIG instance.
    ///
    /// Blanks are told by the field's own type, never by size alone: energy in mJ passes int32's blank within an hour.
    /// A field with an upper limit calls any type's blank a sentinel, for there it is out of range anyway.
    pub fn read(&self, printed: &str, number: f64, on_instance: bool) -> Reading {
        self.read_number(printed.parse::<i128>().ok(), number, on_instance)
    }

    /// The same of a value that was never printed: `whole` is what its digits would be, none where they have a fraction's point.
    pub fn read_number(&self, whole: Option<i128>, number: f64, on_instance: bool) -> Reading {
        if number.is_nan() || self.is_blank(whole, number) {
            return Reading::Invalid(ReadingFault::Sentinel);
        }
        if number.is_infinite() || self.min.is_some_and(|min| number < min) {
            return Reading::Invalid(ReadingFault::OutOfRange);
        }
        if let Some(max) = self.max.filter(|&max| number > max) {
            return match self.unit {
                "ratio" if on_instance && number <= 1.5 * max => Reading::Clipped(number, ReadingFault::MigOverrange),
                "ratio" if !on_instance && number <= 1.01 * max => Reading::Clipped(number, ReadingFault::OverrangeClipped),
                _ => Reading::Invalid(ReadingFault::OutOfRange),
            };
        }
        match self.value_type {
            ValueType::Double => Reading::Ratio(number),
            ValueType::Int64 => match whole.and_then(|value| i64::try_from(value).ok()) {
                Some(value) => Reading::Int(value),
                // Printed as 1.5e+07, say; exact as long as a float holds it.
                None if number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0 => Reading::Int(number as i64),
                None => Reading::Invalid(ReadingFault::OutOfRange),
            },
            ValueType::Text => Reading::Invalid(ReadingFault::OutOfRange),
        }
    }

    fn is_blank(&self, whole: Option<i128>, number: f64) -> bool {
        if self.max.is_some() {
            return INT32_BLANKS.contains(&number) || (number >= FP64_BLANK && number.is_finite());
        }
        match self.value_type {
            ValueType::Int64 => match whole {
                Some(value) => value >= INT64_BLANK,
                None => number.is_finite() && number >= INT64_BLANK as f64,
            },
            ValueType::Double => number.is_finite() && number >= FP64_BLANK,
            ValueType::Text => false,
        }
    }
}

struct Catalogue {
    fields: Vec<Field>,
    by_name: HashMap<&'static str, usize>,
    by_id: HashMap<u16, usize>,
}

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    let fields: Vec<Field> = include_str!("dcgm-fields.csv").lines().skip(1).map(field).collect();
    let mut by_name = HashMap::new();
    let mut by_id = HashMap::new();
    for (index, field) in fields.iter().enumerate() {
        for &name in std::iter::once(&field.name).chain(&field.aliases) {
            by_name.insert(name, index);
        }
        if let Some(id) = field.id {
            by_id.insert(id, index);
        }
    }
    Catalogue { fields, by_name, by_id }
});

/// Every metric, in order of field id; those without an id come last.
pub fn fields() -> &'static [Field] {
    &CATALOGUE.fields
}

/// The metric spelled `name`, by its DCGM name or any alias.
pub fn by_name(name: &str) -> Option<&'static Field> {
    CATALOGUE.by_name.get(name).map(|&index| &CATALOGUE.fields[index])
}

/// The metric with DCGM field id `id`.
pub fn by_id(id: u16) -> Option<&'static Field> {
    CATALOGUE.by_id.get(&id).map(|&index| &CATALOGUE.fields[index])
}

/// The metrics that have a column in `gpu_samples`, in order of field id.
pub fn columns() -> impl Iterator<Item = (&'static Field, &'static str)> {
    fields().iter().filter_map(|field| Some((field, field.column.as_deref()?)))
}

fn field(line: &'static str) -> Field {
    let cells: Vec<&'static str> = line.splitn(12, ',').collect();
    let &[name, id, prom_type, unit, enabled, profiling, value_type, aliases, min, max, monotonic, meaning] = cells.as_slice()
    else {
        panic!("the embedded catalogue has a row of {} cells: {line}", cells.len());
    };
    let number = |cell: &str| (!cell.is_empty()).then(|| cell.parse().expect("the embedded catalogue has numbers for limits"));
    let value_type = match value_type {
        "int64" => ValueType::Int64,
        "double" => ValueType::Double,
        "string" => ValueType::Text,
        other => panic!("the embedded catalogue has an unknown value type {other}"),
    };
    let prom_type = match prom_type {
        "gauge" => PromType::Gauge,
        "counter" => PromType::Counter,
        "label" => PromType::Label,
        other => panic!("the embedded catalogue has an unknown exposition type {other}"),
    };
    let column = name.strip_prefix("DCGM_FI_").filter(|_| value_type != ValueType::Text).map(str::to_lowercase);
    Field {
        name,
        id: (!id.is_empty()).then(|| id.parse().expect("the embedded catalogue has numbers for ids")),
        prom_type,
        unit,
        default_enabled: enabled == "true",
        needs_profiling: profiling == "true",
        value_type,
        aliases: aliases.split(';').filter(|alias| !alias.is_empty()).collect(),
        min: number(min),
        max: number(max),
        monotonic: monotonic == "yes",
        meaning,
        column,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(name: &str, printed: &str, on_instance: bool) -> Reading {
        by_name(name).unwrap().read(printed, printed.parse().unwrap(), on_instance)
    }

    #[test]
    fn every_spelling_names_one_field() {
        let spellings: usize = fields().iter().map(|f| 1 + f.aliases.len()).sum();
        assert_eq!(spellings, CATALOGUE.by_name.len(), "no spelling stands twice");
        assert_eq!(fields().len(), 174);
        assert_eq!(fields().iter().filter(|f| f.default_enabled).count(), 26);
        assert_eq!(by_name("DCGM_FI_DEV_GPU_UTIL_RATIO").unwrap().id, Some(id::GPU_UTIL));
        assert_eq!(by_name("dcgm_gpu_utilization").unwrap().id, Some(id::GPU_UTIL));
        assert_eq!(by_id(id::SM_ACTIVE).unwrap().column.as_deref(), Some("prof_sm_active"));
        assert!(by_name("DCGM_FI_DEV_NO_SUCH").is_none());
    }

    #[test]
    fn columns_are_distinct_and_never_date_or_hour() {
        let mut names: Vec<_> = columns().map(|(_, column)| column).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(!names.contains(&"date") && !names.contains(&"hour"));
        assert!(by_name("DCGM_EXP_XID_ERRORS_COUNT").unwrap().column.is_none());
    }

    #[test]
    fn blanks_are_told_by_the_fields_own_type() {
        use ReadingFault::*;
        let util = "DCGM_FI_DEV_GPU_UTIL";
        assert_eq!(read(util, "42", false), Reading::Int(42));
        assert_eq!(read(util, "2147483632", false), Reading::Invalid(Sentinel));
        assert_eq!(read(util, "9223372036854775794", false), Reading::Invalid(Sentinel));
        assert_eq!(read(util, "140737488355328", false), Reading::Invalid(Sentinel));
        assert_eq!(read(util, "808334905", false), Reading::Invalid(OutOfRange));
        assert_eq!(read(util, "NaN", false), Reading::Invalid(Sentinel));
        assert_eq!(read(util, "inf", false), Reading::Invalid(OutOfRange));
        assert_eq!(read(util, "-1", false), Reading::Invalid(OutOfRange));
        let energy = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION";
        assert_eq!(read(energy, "2147483640", false), Reading::Int(2_147_483_640));
        assert_eq!(read(energy, "140737488355328", false), Reading::Int(140_737_488_355_328));
        assert_eq!(read(energy, "9223372036854775792", false), Reading::Invalid(Sentinel));
        assert_eq!(read(energy, "9223372036854775807", false), Reading::Invalid(Sentinel));
        assert_eq!(read(energy, "1.5e3", false), Reading::Int(1500));
        assert_eq!(read("DCGM_FI_DEV_POWER_USAGE", "140737488355330", false), Reading::Invalid(Sentinel));
    }

    #[test]
    fn ratios_slightly_above_one_are_kept_raw() {
        let sm = "DCGM_FI_PROF_SM_ACTIVE";
        assert_eq!(read(sm, "0.503000", false), Reading::Ratio(0.503));
        assert_eq!(read(sm, "1.294", true), Reading::Clipped(1.294, ReadingFault::MigOverrange));
        assert_eq!(read(sm, "1.01", false), Reading::Clipped(1.01, ReadingFault::OverrangeClipped));
        assert_eq!(read(sm, "1.294", false), Reading::Invalid(ReadingFault::OutOfRange));
        assert_eq!(read(sm, "1.51", true), Reading::Invalid(ReadingFault::OutOfRange));
    }
}
