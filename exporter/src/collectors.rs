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
    /// The same in OpenMetrics, where a counter whose name does not end in `_total` is none.
    pub open_head: String,
}

/// Numbers of the families that are counted by the exporter and have labels of their own. The first four are DCGM's; the last two
/// have none there.
pub mod counted {
    /// DCGM_EXP_XID_ERRORS_COUNT: XIDs by code in a window.
    pub const XIDS_IN_WINDOW: u16 = 9001;
    /// DCGM_EXP_CLOCK_EVENTS_COUNT: rounds with a clock event in a window.
    pub const CLOCK_EVENTS_IN_WINDOW: u16 = 9002;
    /// DCGM_EXP_XID_ERRORS_TOTAL: XIDs by code since the exporter's start.
    pub const XIDS: u16 = 9005;
    /// DCGM_EXP_CLOCK_EVENTS_TOTAL: rounds with a clock event since the exporter's start.
    pub const CLOCK_EVENTS: u16 = 9006;

    /// Whether a family is one of these.
    pub const fn is(family: u16) -> bool {
        family >= 9001
    }
}

/// Longest collectors file and help text, bytes, and most rows.
pub const MAX_BYTES: usize = 1 << 20;
const MAX_HELP: usize = 1024;
const MAX_ROWS: usize = 4096;

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
    /// A help text, or a file, above its limit.
    #[error("line {line}: {what} is above the limit of {limit}; make it shorter")]
    TooLong {
        /// 1-based.
        line: usize,
        /// What.
        what: &'static str,
        /// The limit.
        limit: usize,
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
        let (collectors, refused) = Self::parse_lossy(text);
        refused.into_iter().next().map_or(Ok(collectors), Err)
    }

    /// The same, where a bad row is refused and those beside it are kept.
    pub fn parse_lossy(text: &str) -> (Self, Vec<CollectorsError>) {
        let mut collectors = Self { families: Vec::new(), labels: Vec::new() };
        let mut fields = std::collections::BTreeSet::new();
        let mut refused = Vec::new();
        // Editors of other systems mark the beginning of a file.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            if fields.len() + refused.len() >= MAX_ROWS {
                refused.push(CollectorsError::TooLong { line, what: "the number of rows", limit: MAX_ROWS });
                break;
            }
            if let Err(err) = collectors.row(line, text, &mut fields) {
                refused.push(err);
            }
        }
        collectors.families.sort_by_key(|family| family.field);
        collectors.labels.sort();
        (collectors, refused)
    }

    fn row(&mut self, line: usize, text: &str, fields: &mut std::collections::BTreeSet<u16>) -> Result<(), CollectorsError> {
        let mut cells = text.splitn(3, ',').map(str::trim);
        let (Some(name), Some(kind), Some(help)) = (cells.next(), cells.next(), cells.next()) else {
            return Err(CollectorsError::Cells { line, text: shown(text) });
        };
        if help.len() > MAX_HELP {
            return Err(CollectorsError::TooLong { line, what: "the help text", limit: MAX_HELP });
        }
        let owned = || shown(name);
        let field = catalogue::by_name(name).and_then(|field| match field.name {
            "DCGM_EXP_XID_ERRORS_TOTAL" => Some(counted::XIDS),
            "DCGM_EXP_CLOCK_EVENTS_TOTAL" => Some(counted::CLOCK_EVENTS),
            _ => field.id,
        });
        let field = field.ok_or_else(|| CollectorsError::UnknownField { line, name: owned() })?;
        let kind = match kind.to_ascii_lowercase().as_str() {
            "gauge" => PromType::Gauge,
            "counter" => PromType::Counter,
            "label" => PromType::Label,
            _ => return Err(CollectorsError::UnknownType { line, name: owned(), kind: shown(kind) }),
        };
        if !fields.insert(field) {
            return Err(CollectorsError::Twice { line, name: owned() });
        }
        if kind == PromType::Label {
            self.labels.push((name.to_owned(), field));
            return Ok(());
        }
        let help = unquoted(help);
        let escaped = help.replace('\\', "\\\\").replace('\n', "\\n");
        let head = format!("# HELP {name} {escaped}\n# TYPE {name} {}\n", kind.as_str());
        let (open_name, open_kind) = match (kind, name.strip_suffix("_total")) {
            (PromType::Counter, Some(stem)) => (stem, "counter"),
            (PromType::Counter, None) => (name, "unknown"),
            _ => (name, "gauge"),
        };
        let open_help = escaped.replace('"', "\\\"");
        let open_head = format!("# HELP {open_name} {open_help}\n# TYPE {open_name} {open_kind}\n");
        self.families.push(Family { field, name: name.to_owned(), head, open_head });
        Ok(())
    }

    /// The fields of its families and labels.
    pub fn fields(&self) -> std::collections::BTreeSet<u16> {
        let labels = self.labels.iter().map(|(_, field)| *field);
        self.families.iter().map(|family| family.field).chain(labels).collect()
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

/// A text of the file as an error shows it.
fn shown(text: &str) -> String {
    text.chars().take(120).collect()
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
    fn good_rows_beside_bad_ones_are_kept() {
        let text = "DCGM_FI_DEV_SM_CLOCK, gauge, a, b\nnonsense\nDCGM_FI_NO_SUCH, gauge, x\nDCGM_FI_DEV_GPU_TEMP, gauge, t";
        let (collectors, refused) = Collectors::parse_lossy(text);
        assert_eq!(collectors.fields().into_iter().collect::<Vec<_>>(), [100, 150]);
        let lines: Vec<String> = refused.iter().map(ToString::to_string).collect();
        assert!(lines[0].starts_with("line 2: ") && lines[1].starts_with("line 3: ") && lines.len() == 2, "{lines:?}");
        let (marked, refused) =
            Collectors::parse_lossy("\u{feff}DCGM_FI_DEV_SM_CLOCK, gauge, a\r\nDCGM_FI_DEV_GPU_TEMP, gauge, t\r\n");
        assert_eq!((marked.fields().len(), refused.len()), (2, 0), "a file of another system");
        let (none, refused) = Collectors::parse_lossy(&"DCGM_FI_NO_SUCH, gauge, x\n".repeat(5000));
        assert_eq!((none.families.len(), refused.len()), (0, MAX_ROWS + 1), "a file of nonsense has an end");
    }

    #[test]
    fn openmetrics_has_counters_only_where_names_say_so() {
        let text = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER, counter, a \"b\"\ndcgm_nvlink_flit_crc_error_count_total, counter, c";
        let heads: String = Collectors::parse(text).unwrap().families.iter().map(|f| f.open_head.as_str()).collect();
        let expected = "# HELP DCGM_FI_DEV_PCIE_REPLAY_COUNTER a \\\"b\\\"\n# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER unknown\n\
             # HELP dcgm_nvlink_flit_crc_error_count c\n# TYPE dcgm_nvlink_flit_crc_error_count counter\n";
        assert_eq!(heads, expected);
    }

    #[test]
    fn a_bad_file_is_refused_with_its_line() {
        let refusal = |text: &str| Collectors::parse(text).unwrap_err().to_string();
        assert!(refusal("\nDCGM_FI_DEV_SM_CLOCK, gauge").starts_with("line 2: "));
        assert!(refusal("DCGM_FI_DEV_SM_CLOK, gauge, x").contains("no DCGM field is called `DCGM_FI_DEV_SM_CLOK`"));
        assert!(refusal("DCGM_FI_DEV_SM_CLOCK, gage, x").contains("`gage` is no type of DCGM_FI_DEV_SM_CLOCK"));
        let long = format!("DCGM_FI_DEV_SM_CLOCK, gauge, {}", "x".repeat(2000));
        assert!(refusal(&long).contains("the help text is above the limit"));
        assert!(refusal("DCGM_FI_DEV_GPU_UTIL,gauge,x\nDCGM_FI_DEV_GPU_UTIL_RATIO,gauge,y").contains("earlier line"));
    }
}
