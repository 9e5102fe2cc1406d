//! Which fields are printed and under what names: dcgm-exporter's collectors file.

use schemas::catalogue::{self, PromType};

/// The families of a page, in order of field id, and the fields that are printed as labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collectors {
    families: Vec<Family>,
    labels: Vec<(String, u16)>,
}

/// One family of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// DCGM field id.
    pub field: u16,
    /// Name as the collectors file spells it.
    pub name: String,
    /// Its HELP and TYPE lines, escaped and ended.
    pub head: String,
}

/// What is wrong with a collectors file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CollectorsError {
    /// Not three cells.
    #[error("line {line}: `{text}` is not `field, type, help`")]
    Cells {
        /// 1-based.
        line: usize,
        /// The line.
        text: String,
    },
    /// No such field, or one that no device has a value of.
    #[error("line {line}: no DCGM field is called `{name}`; spell it as DCGM does")]
    UnknownField {
        /// 1-based.
        line: usize,
        /// The name.
        name: String,
    },
    /// A type that dcgm-exporter has not.
    #[error("line {line}: `{kind}` is no type of {name}; write gauge, counter or label")]
    UnknownType {
        /// 1-based.
        line: usize,
        /// The field.
        name: String,
        /// The type.
        kind: String,
    },
    /// A field twice, by whatever spelling.
    #[error("line {line}: {name} stands on an earlier line already")]
    Twice {
        /// 1-based.
        line: usize,
        /// The field.
        name: String,
    },
}

impl Collectors {
    /// The built-in list: dcgm-exporter's default fields, SM_ACTIVE, SM_OCCUPANCY, the arithmetic pipes, NVLink bytes, FB_TOTAL.
    pub fn built_in() -> Self {
        Self::parse(include_str!("counters.csv")).expect("the embedded collectors file is well-formed")
    }

    /// Reads a collectors file: `field, type, help`; blank lines and lines that begin with `#` say nothing.
    pub fn parse(text: &str) -> Result<Self, CollectorsError> {
        let mut collectors = Self { families: Vec::new(), labels: Vec::new() };
        let mut fields = std::collections::BTreeSet::new();
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let mut cells = text.splitn(3, ',').map(str::trim);
            let (Some(name), Some(kind), Some(help)) = (cells.next(), cells.next(), cells.next()) else {
                return Err(CollectorsError::Cells { line, text: text.to_owned() });
            };
            let owned = || name.to_owned();
            let field = catalogue::by_name(name).and_then(|field| field.id);
            let field = field.ok_or_else(|| CollectorsError::UnknownField { line, name: owned() })?;
            if !fields.insert(field) {
                return Err(CollectorsError::Twice { line, name: owned() });
            }
            let kind = match kind.to_ascii_lowercase().as_str() {
                "gauge" => PromType::Gauge,
                "counter" => PromType::Counter,
                "label" => PromType::Label,
                _ => return Err(CollectorsError::UnknownType { line, name: owned(), kind: kind.to_owned() }),
            };
            if kind == PromType::Label {
                collectors.labels.push((owned(), field));
                continue;
            }
            let help = unquoted(help).replace('\\', "\\\\").replace('\n', "\\n");
            let head = format!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.as_str());
            collectors.families.push(Family { field, name: owned(), head });
        }
        collectors.families.sort_by_key(|family| family.field);
        collectors.labels.sort();
        Ok(collectors)
    }

    /// The families, in order of field id.
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// The fields that are printed as labels of the others, by name.
    pub fn labels(&self) -> &[(String, u16)] {
        &self.labels
    }
}

/// A cell in double quotes without them, as CSV has it.
fn unquoted(cell: &str) -> String {
    match cell.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(inner) => inner.replace("\"\"", "\""),
        None => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_built_in_list_has_every_default_field() {
        let built_in = Collectors::built_in();
        let has = |id| built_in.families.iter().any(|f| f.field == id) || built_in.labels.iter().any(|(_, field)| *field == id);
        for field in catalogue::fields().iter().filter(|field| field.default_enabled) {
            assert!(has(field.id.unwrap()), "{}", field.name);
        }
        assert!([250, 1002, 1003, 1006, 1007, 1008, 1011, 1012].into_iter().all(has));
        assert!(built_in.families.windows(2).all(|two| two[0].field < two[1].field));
        for family in &built_in.families {
            let kind = catalogue::by_id(family.field).unwrap().prom_type.as_str();
            assert!(family.head.ends_with(&format!("# TYPE {} {kind}\n", family.name)), "{}", family.head);
        }
    }

    #[test]
    fn a_file_is_read_as_it_is_spelled() {
        let text = "# comment\n\n DCGM_FI_DEV_GPU_UTIL_RATIO , Gauge, \"busy, in \"\"%\"\"\"\nDCGM_FI_DEV_SM_CLOCK,counter,a\\b";
        let families = Collectors::parse(text).unwrap().families;
        let heads: String = families.iter().map(|f| f.head.as_str()).collect();
        assert_eq!(
            heads,
            "# HELP DCGM_FI_DEV_SM_CLOCK a\\\\b\n# TYPE DCGM_FI_DEV_SM_CLOCK counter\n\
             # HELP DCGM_FI_DEV_GPU_UTIL_RATIO busy, in \"%\"\n# TYPE DCGM_FI_DEV_GPU_UTIL_RATIO gauge\n"
        );
    }

    #[test]
    fn a_bad_file_is_refused_with_its_line() {
        let refusal = |text: &str| Collectors::parse(text).unwrap_err().to_string();
        assert!(refusal("\nDCGM_FI_DEV_SM_CLOCK, gauge").starts_with("line 2: "));
        assert!(refusal("DCGM_FI_DEV_SM_CLOK, gauge, x").contains("no DCGM field is called `DCGM_FI_DEV_SM_CLOK`"));
        assert!(refusal("DCGM_FI_DEV_SM_CLOCK, gage, x").contains("`gage` is no type of DCGM_FI_DEV_SM_CLOCK"));
        assert!(refusal("DCGM_FI_DEV_GPU_UTIL,gauge,x\nDCGM_FI_DEV_GPU_UTIL_RATIO,gauge,y").contains("earlier line"));
    }
}
