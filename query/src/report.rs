//! The report: where the GPU-hours went, by any grouping, with a totals line that closes.
//!
//! A fold over `gpu_hours` in integer milliseconds; hours and percentages exist only in the text (rule A1). Time known by
//! number only (rule A16) is netted here: what a holding takes from free time is taken off the free time that is printed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fmt::Write as _,
};

use datafusion::arrow::array::{
    Array, AsArray, RecordBatch,
    types::{Int64Type, TimestampMicrosecondType},
};
use lake::{Lake, LakeError, read};
use schemas::{
    HOUR_MS, Timestamp, Window,
    status::{Cause, RowKind, Tier},
    tables,
};
use serde_json::{Map, Value, json};

use crate::show::{self, Format};

/// Flag of rows whose node has no inventory: their capacity is not known.
pub const NO_INVENTORY: &str = "no_inventory";

macro_rules! dimensions {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)+) => {
        /// What a report is grouped by.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Dimension { $($(#[$doc])* $variant,)+ }

        impl Dimension {
            /// Every dimension.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Its name, as in `--by`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
    };
}

dimensions! {
    /// Cluster.
    Cluster = "cluster",
    /// Node.
    Node = "node",
    /// Region.
    Region = "region",
    /// Provider.
    Provider = "provider",
    /// Product.
    Product = "product",
    /// Purchase option.
    PurchaseOption = "purchase_option",
    /// Namespace of the owner.
    Namespace = "namespace",
    /// Owner's name, with its namespace.
    Pod = "pod",
    /// Workload of the owner.
    Workload = "workload",
    /// Queue of the owner.
    Queue = "queue",
    /// Who pays.
    Team = "team",
    /// UTC hour.
    Hour = "hour",
    /// UTC day.
    Day = "day",
    /// UTC month.
    Month = "month",
}

/// A `--by` that is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadGrouping {
    /// No such dimension.
    #[error("cannot group by `{name}`; give one or more of {known}, comma-separated")]
    Unknown {
        /// What was given.
        name: String,
        /// What there is.
        known: String,
    },
    /// One twice.
    #[error("`{0}` stands twice in the grouping")]
    Twice(&'static str),
}

impl Dimension {
    /// Reads a comma-separated list.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, BadGrouping> {
        let mut list = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let known = || Self::ALL.iter().map(|d| d.as_str()).collect::<Vec<_>>().join(", ");
            let found = Self::ALL.iter().copied().find(|d| d.as_str() == name);
            let dimension = found.ok_or_else(|| BadGrouping::Unknown { name: name.to_owned(), known: known() })?;
            if list.contains(&dimension) {
                return Err(BadGrouping::Twice(dimension.as_str()));
            }
            list.push(dimension);
        }
        Ok(list)
    }

    /// Whether only owners have it: free and unavailable time stands apart.
    const fn of_owner(self) -> bool {
        matches!(self, Self::Namespace | Self::Pod | Self::Workload | Self::Queue | Self::Team)
    }

    /// Columns of `gpu_hours` that it is read from.
    const fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Cluster => &["cluster"],
            Self::Node => &["node"],
            Self::Region => &["region"],
            Self::Provider => &["provider"],
            Self::Product => &["product"],
            Self::PurchaseOption => &["purchase_option"],
            Self::Namespace => &["namespace"],
            Self::Pod => &["namespace", "pod"],
            Self::Workload => &["workload"],
            Self::Queue => &["queue"],
            Self::Team => &["team"],
            Self::Hour | Self::Day | Self::Month => &[],
        }
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Request {
    /// Grouping; empty for the total alone.
    pub by: Vec<Dimension>,
    /// Window, on full UTC hours; none for all closed hours.
    pub window: Option<Window>,
    /// What "utilized" means.
    pub tier: Tier,
}

/// What stopped a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The lake could not be read.
    #[error(transparent)]
    Lake(#[from] LakeError),
    /// A bound inside an hour.
    #[error("{0} is not on a full UTC hour; the ledger's rows are whole hours, so give a bound such as {1}")]
    InsideHour(Timestamp, Timestamp),
    /// No hour rows in the window.
    #[error("no hour rows {0}; run `strandline hours --lake DIR` first, or widen --from and --to")]
    NoRows(String),
    /// Rows that are not ours.
    #[error("{file}: {what}; run `strandline hours --lake DIR --force` to write it anew")]
    BadRow {
        /// The file.
        file: String,
        /// What is wrong.
        what: &'static str,
    },
}

/// One group's key in one dimension.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// It has a name.
    Named(String),
    /// It should have one and has none: a team that nobody pays for, a product that the inventory does not say.
    Unattributed,
    /// Nobody held the time.
    Nobody,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Named(name) => name,
            Self::Unattributed => "unattributed",
            Self::Nobody => "(not allocated)",
        })
    }
}

/// One line: integer device-milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Group, one key a dimension.
    pub keys: Vec<Key>,
    /// Capacity; none where the inventory is not known.
    pub capacity_ms: Option<i64>,
    /// Held by pods.
    pub allocated_ms: i64,
    /// Of that: utilized in the report's tier.
    pub utilized_ms: i64,
    /// Of that: seen and not utilized.
    pub stranded_ms: i64,
    /// Of that: not seen.
    pub unobserved_ms: i64,
    /// Nobody's, ready to be given; none where the inventory is not known.
    pub free_ms: Option<i64>,
    /// Nobody's, not to be given; none where the inventory is not known.
    pub unavailable_ms: Option<i64>,
}

impl Line {
    /// Whether both identities hold.
    pub fn closes(&self) -> bool {
        let by_tier = self.utilized_ms + self.stranded_ms + self.unobserved_ms == self.allocated_ms;
        let by_device = match (self.capacity_ms, self.free_ms, self.unavailable_ms) {
            (Some(capacity), Some(free), Some(unavailable)) => capacity == self.allocated_ms + free + unavailable,
            _ => true,
        };
        by_tier && by_device
    }

    /// Share of the allocated time that was seen, in percent; none where nothing was allocated.
    pub fn coverage(&self) -> Option<f64> {
        (self.allocated_ms > 0).then(|| 100.0 * (self.allocated_ms - self.unobserved_ms) as f64 / self.allocated_ms as f64)
    }
}

/// The answer.
#[derive(Clone, Debug)]
pub struct Report {
    /// Grouping.
    pub by: Vec<Dimension>,
    /// Tier.
    pub tier: Tier,
    /// First instant of the first hour, and first after the last.
    pub window: Window,
    /// Groups, in order of their keys.
    pub lines: Vec<Line>,
    /// All of it.
    pub total: Line,
    /// Unobserved time by cause, causes without any left out.
    pub unobserved_by: Vec<(Cause, i64)>,
    /// Time of GPUs that their MIG layout leaves unusable; part of unavailable.
    pub mig_orphan_ms: i64,
    /// Held by number beyond what the nodes have; beside the sum.
    pub overcommitted_ms: i64,
}

#[derive(Clone, Default)]
struct Sums {
    owner: i64,
    free: i64,
    unavailable: i64,
    utilized: i64,
    stranded: i64,
    unobserved: i64,
    no_inventory: bool,
}

impl Sums {
    fn line(&self, keys: Vec<Key>) -> Line {
        let known = |ms| (!self.no_inventory).then_some(ms);
        Line {
            keys,
            capacity_ms: known(self.owner + self.free + self.unavailable),
            allocated_ms: self.owner,
            utilized_ms: self.utilized,
            stranded_ms: self.stranded,
            unobserved_ms: self.unobserved,
            free_ms: known(self.free),
            unavailable_ms: known(self.unavailable),
        }
    }
}

/// Computes a report from the closed hours of `lake`.
pub fn report(lake: &Lake, request: &Request) -> Result<Report, ReportError> {
    if let Some(window) = request.window {
        for bound in [window.from(), window.to()] {
            if bound.hour() != bound {
                return Err(ReportError::InsideHour(bound, bound.hour()));
            }
        }
    }
    let table = tables::get("gpu_hours");
    let columns = Columns::of(request);
    let mut groups: BTreeMap<Vec<Key>, Sums> = BTreeMap::new();
    let mut side = Side::default();
    let mut hours: Option<(Timestamp, Timestamp)> = None;
    for file in lake.closed_files(table, request.window)? {
        let hour = file.key.hour;
        hours = Some(hours.map_or((hour, hour), |(first, last)| (first.min(hour), last.max(hour))));
        let batches = read::rows(table, &file.path, Some(&columns.names))?;
        let bad = |what| ReportError::BadRow { file: file.path.display().to_string(), what };
        let unlisted = unlisted(&batches).map_err(bad)?;
        for batch in &batches {
            columns.fold(batch, hour, &unlisted, &mut groups, &mut side).map_err(bad)?;
        }
    }
    let none =
        || ReportError::NoRows(request.window.map_or("in the lake".into(), |w| format!("from {} to {}", w.from(), end(w.to()))));
    let (first, last) = hours.ok_or_else(none)?;
    let window = Window::new(first, last.plus_ms(HOUR_MS)).map_err(|_| none())?;
    let mut total = Sums::default();
    for sums in groups.values() {
        total.owner += sums.owner;
        total.free += sums.free;
        total.unavailable += sums.unavailable;
        total.utilized += sums.utilized;
        total.stranded += sums.stranded;
        total.unobserved += sums.unobserved;
        total.no_inventory |= sums.no_inventory;
    }
    Ok(Report {
        by: request.by.clone(),
        tier: request.tier,
        window,
        lines: groups.into_iter().map(|(keys, sums)| sums.line(keys)).collect(),
        total: total.line(vec![]),
        unobserved_by: side.unobserved_by.into_iter().filter(|(_, ms)| *ms != 0).collect(),
        mig_orphan_ms: side.mig_orphan,
        overcommitted_ms: side.overcommitted,
    })
}

#[derive(Default)]
struct Side {
    unobserved_by: BTreeMap<Cause, i64>,
    mig_orphan: i64,
    overcommitted: i64,
}

/// The columns that a report reads, by position in its batches.
struct Columns {
    names: Vec<&'static str>,
    by: Vec<Dimension>,
    keys: Vec<Vec<usize>>,
    causes: Vec<(Cause, usize)>,
}

impl Columns {
    fn of(request: &Request) -> Self {
        let table = tables::get("gpu_hours");
        let name = |column: String| table.index(&column).map(|i| table.columns[i].name.as_str());
        let tier = request.tier;
        let fixed = ["ms", "kind", "reason", "flags", "overcommitted_ms", "cluster", "node"];
        let mut names: Vec<&'static str> = fixed.to_vec();
        names.extend([name(format!("{tier}_utilized_ms")), name(format!("{tier}_stranded_ms"))].into_iter().flatten());
        let mut causes = Vec::new();
        for &cause in Cause::ALL {
            if let Some(column) = name(format!("{tier}_unobserved_{cause}_ms")) {
                causes.push((cause, names.len()));
                names.push(column);
            }
        }
        let mut keys = Vec::new();
        for dimension in &request.by {
            let mut places = Vec::new();
            for &column in dimension.columns() {
                let place = names.iter().position(|n| *n == column).unwrap_or_else(|| {
                    names.push(column);
                    names.len() - 1
                });
                places.push(place);
            }
            keys.push(places);
        }
        Self { names, by: request.by.clone(), keys, causes }
    }

    fn fold(
        &self,
        batch: &RecordBatch,
        hour: Timestamp,
        unlisted: &BTreeSet<(String, String)>,
        groups: &mut BTreeMap<Vec<Key>, Sums>,
        side: &mut Side,
    ) -> Result<(), &'static str> {
        let ints = |place: usize| batch.column(place).as_primitive_opt::<Int64Type>().ok_or("a column is not INT64");
        let texts = |place: usize| batch.column(place).as_string_opt::<i32>().ok_or("a column is not text");
        let (ms, kind, reason, flags, over) = (ints(0)?, texts(1)?, texts(2)?, texts(3)?, ints(4)?);
        let (clusters, nodes) = (texts(CLUSTER)?, texts(NODE)?);
        let (utilized, stranded) = (ints(7)?, ints(8)?);
        let causes = self.causes.iter().map(|&(cause, place)| Ok((cause, ints(place)?))).collect::<Result<Vec<_>, &str>>()?;
        let keys = self.keys.iter().map(|places| places.iter().map(|&p| texts(p)).collect::<Result<Vec<_>, &str>>());
        let keys = keys.collect::<Result<Vec<_>, &str>>()?;
        let of_unlisted = |row: usize| {
            !unlisted.is_empty() && unlisted.contains(&(clusters.value(row).to_owned(), nodes.value(row).to_owned()))
        };
        for row in 0..batch.num_rows() {
            let kind = RowKind::from_text(kind.value(row)).ok_or("a row of unknown kind")?;
            let key = |(dimension, columns): (&Dimension, &Vec<&datafusion::arrow::array::StringArray>)| {
                key(*dimension, hour, kind, columns, row)
            };
            let group: Vec<Key> = self.by.iter().zip(&keys).map(key).collect();
            let sums = groups.entry(group).or_default();
            let value = |column: &datafusion::arrow::array::Int64Array| if column.is_null(row) { 0 } else { column.value(row) };
            match kind {
                RowKind::Owner => {
                    sums.owner += value(ms);
                    sums.utilized += value(utilized);
                    sums.stranded += value(stranded);
                    for (cause, column) in &causes {
                        sums.unobserved += value(column);
                        *side.unobserved_by.entry(*cause).or_default() += value(column);
                    }
                    side.overcommitted += value(over);
                    sums.no_inventory |= has_no_inventory(flags, row);
                }
                RowKind::Free => {
                    sums.free += value(ms);
                    sums.no_inventory |= of_unlisted(row);
                }
                RowKind::Unavailable => {
                    sums.no_inventory |= of_unlisted(row);
                    sums.unavailable += value(ms);
                    if reason.is_valid(row) && reason.value(row) == "mig_orphan" {
                        side.mig_orphan += value(ms);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The end of a window in words; one that nobody gave is the end of time, and no time to print.
fn end(to: Timestamp) -> String {
    if to.ms() > LAST_MS { "the end".to_owned() } else { to.to_string() }
}

/// The last instant that a time prints as a date.
const LAST_MS: i64 = 253_402_300_799_999;

/// Places of two columns in [`Columns::names`].
const CLUSTER: usize = 5;
const NODE: usize = 6;

fn has_no_inventory(flags: &datafusion::arrow::array::StringArray, row: usize) -> bool {
    flags.is_valid(row) && flags.value(row).split(',').any(|flag| flag == NO_INVENTORY)
}

/// Nodes of an hour that have no inventory, by the rows of their owners: what nobody holds there is only what was seen, and
/// as little known as their capacity.
fn unlisted(batches: &[RecordBatch]) -> Result<BTreeSet<(String, String)>, &'static str> {
    let mut found = BTreeSet::new();
    for batch in batches {
        let texts = |place: usize| batch.column(place).as_string_opt::<i32>().ok_or("a column is not text");
        let (flags, clusters, nodes) = (texts(3)?, texts(CLUSTER)?, texts(NODE)?);
        for row in (0..batch.num_rows()).filter(|row| has_no_inventory(flags, *row)) {
            found.insert((clusters.value(row).to_owned(), nodes.value(row).to_owned()));
        }
    }
    Ok(found)
}

fn key(
    dimension: Dimension,
    hour: Timestamp,
    kind: RowKind,
    columns: &[&datafusion::arrow::array::StringArray],
    row: usize,
) -> Key {
    let text = hour.to_string();
    match dimension {
        Dimension::Hour => return Key::Named(format!("{}Z", &text[..16])),
        Dimension::Day => return Key::Named(text[..10].to_owned()),
        Dimension::Month => return Key::Named(text[..7].to_owned()),
        _ if dimension.of_owner() && kind != RowKind::Owner => return Key::Nobody,
        _ => {}
    }
    let parts: Vec<&str> = columns.iter().filter(|column| column.is_valid(row)).map(|column| column.value(row)).collect();
    if parts.is_empty() { Key::Unattributed } else { Key::Named(parts.join("/")) }
}

/// Hours with `decimals`, or `-` where not known.
fn hours(ms: Option<i64>, decimals: usize) -> String {
    ms.map_or("-".into(), |ms| format!("{:.decimals$}", ms as f64 / HOUR_MS as f64))
}

const FIGURES: [&str; 8] = ["capacity", "allocated", "utilized", "stranded", "unobserved", "free", "unavailable", "coverage %"];

impl Report {
    /// The report as text.
    pub fn text(&self, format: Format) -> String {
        match format {
            Format::Table => self.table(),
            Format::Csv => self.csv(),
            Format::Json => self.json(),
        }
    }

    fn figures(line: &Line, decimals: usize) -> Vec<String> {
        vec![
            hours(line.capacity_ms, decimals),
            hours(Some(line.allocated_ms), decimals),
            hours(Some(line.utilized_ms), decimals),
            hours(Some(line.stranded_ms), decimals),
            hours(Some(line.unobserved_ms), decimals),
            hours(line.free_ms, decimals),
            hours(line.unavailable_ms, decimals),
            line.coverage().map_or("-".into(), |percent| format!("{percent:.1}")),
        ]
    }

    fn table(&self) -> String {
        let keys = self.by.len().max(1);
        let mut rows: Vec<Vec<String>> = Vec::new();
        let mut header: Vec<String> = self.by.iter().map(|d| d.as_str().to_owned()).collect();
        header.resize(keys, String::new());
        header.extend(FIGURES.map(str::to_owned));
        rows.push(header);
        let grouped = !self.by.is_empty();
        for line in self.lines.iter().filter(|_| grouped) {
            let mut row: Vec<String> = line.keys.iter().map(|key| show::cell(&key.to_string())).collect();
            row.extend(Self::figures(line, 2));
            rows.push(row);
        }
        let mut total = vec![String::new(); keys];
        total[0] = "total".into();
        total.extend(Self::figures(&self.total, 2));
        rows.push(total);

        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
        let mut text = String::new();
        let _ = writeln!(
            text,
            "GPU-hours from {} to {} (UTC), tier {}: {}",
            self.window.from(),
            self.window.to(),
            self.tier,
            meaning(self.tier)
        );
        let rule = "-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1));
        let last = rows.len() - 1;
        for (number, row) in rows.iter().enumerate() {
            if number == 1 || number == last {
                let _ = writeln!(text, "{rule}");
            }
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, &width))| if column < keys { format!("{cell:<width$}") } else { format!("{cell:>width$}") })
                .collect();
            let _ = writeln!(text, "{}", cells.join("  ").trim_end());
        }
        text.push_str(&self.notes());
        text
    }

    /// What is to be said beside the sum.
    fn notes(&self) -> String {
        let mut text = String::new();
        let total = &self.total;
        if total.closes() {
            let capacity = match total.capacity_ms {
                Some(capacity) => format!(
                    "closes to the millisecond: capacity {capacity} = allocated {} + free {} + unavailable {}; ",
                    total.allocated_ms,
                    total.free_ms.unwrap_or_default(),
                    total.unavailable_ms.unwrap_or_default()
                ),
                None => "capacity is not known: no inventory for some of these nodes; ".into(),
            };
            let _ = writeln!(
                text,
                "{capacity}allocated {} = utilized {} + stranded {} + unobserved {}",
                total.allocated_ms, total.utilized_ms, total.stranded_ms, total.unobserved_ms
            );
        } else {
            text.push_str("DOES NOT CLOSE; run `strandline check` for the first device and hour at fault\n");
        }
        if !self.unobserved_by.is_empty() {
            let mut causes = self.unobserved_by.clone();
            causes.sort_by_key(|(cause, ms)| (-ms, *cause));
            let causes: Vec<_> = causes.iter().map(|(cause, ms)| format!("{cause} {}", hours(Some(*ms), 2))).collect();
            let _ = writeln!(text, "unobserved by cause: {}", causes.join(", "));
        }
        if self.mig_orphan_ms != 0 {
            let _ = writeln!(text, "of unavailable, mig_orphan (layout loss): {}", hours(Some(self.mig_orphan_ms), 2));
        }
        if self.overcommitted_ms != 0 {
            let _ = writeln!(
                text,
                "beside the sum, overcommitted: {}; `strandline check` names the node",
                hours(Some(self.overcommitted_ms), 2)
            );
        }
        text
    }

    fn json(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let mut object = Map::new();
            for (dimension, key) in self.by.iter().zip(&line.keys) {
                let value = match key {
                    Key::Nobody => Value::Null,
                    Key::Named(_) | Key::Unattributed => Value::String(key.to_string()),
                };
                object.insert(dimension.as_str().into(), value);
            }
            let figures = json!({
                "tier": self.tier.as_str(), "capacity_ms": line.capacity_ms, "allocated_ms": line.allocated_ms,
                "utilized_ms": line.utilized_ms, "stranded_ms": line.stranded_ms, "unobserved_ms": line.unobserved_ms,
                "free_ms": line.free_ms, "unavailable_ms": line.unavailable_ms,
            });
            if let Value::Object(figures) = figures {
                object.extend(figures);
            }
            let _ = writeln!(text, "{}", Value::Object(object));
        }
        text
    }

    fn csv(&self) -> String {
        let mut text = String::new();
        let names = self.by.iter().map(|d| d.as_str().to_owned());
        let figures = FIGURES[..7].iter().map(|name| format!("{name}_gpu_hours"));
        let header: Vec<String> = names.chain(figures).chain(["coverage_percent".to_owned()]).collect();
        let _ = writeln!(text, "{}", header.join(","));
        for line in &self.lines {
            let keys = line.keys.iter().map(|key| if *key == Key::Nobody { String::new() } else { quoted(&key.to_string()) });
            let figures = Self::figures(line, 6).into_iter().map(|figure| if figure == "-" { String::new() } else { figure });
            let _ = writeln!(text, "{}", keys.chain(figures).collect::<Vec<_>>().join(","));
        }
        text
    }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

const fn meaning(tier: Tier) -> &'static str {
    match tier {
        Tier::Busy => "was anything running (GPU_UTIL, else GR_ENGINE_ACTIVE)",
        Tier::Sm => "share of SMs at work (SM_ACTIVE)",
        Tier::Effective => "tensor pipe or memory at work (PIPE_TENSOR_ACTIVE, DRAM_ACTIVE / 0.8)",
    }
}

/// Start of the hour of a row, from its column.
pub(crate) fn hour_of(batch: &RecordBatch, place: usize, row: usize) -> Option<Timestamp> {
    batch.column(place).as_primitive_opt::<TimestampMicrosecondType>().map(|column| Timestamp::from_micros(column.value(row)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn groupings_are_checked() {
        assert_eq!(Dimension::parse_list("team, product,hour").unwrap(), [Dimension::Team, Dimension::Product, Dimension::Hour]);
        assert!(Dimension::parse_list("").unwrap().is_empty());
        let error = Dimension::parse_list("tema").unwrap_err().to_string();
        assert!(error.contains("`tema`") && error.contains("purchase_option"), "{error}");
        assert_eq!(Dimension::parse_list("team,team").unwrap_err(), BadGrouping::Twice("team"));
    }

    #[test]
    fn a_line_that_does_not_close_says_so() {
        let line = Line {
            capacity_ms: Some(10),
            allocated_ms: 6,
            utilized_ms: 1,
            stranded_ms: 2,
            unobserved_ms: 3,
            free_ms: Some(3),
            unavailable_ms: Some(1),
            ..Line::default()
        };
        assert!(line.closes());
        assert!(!Line { free_ms: Some(2), ..line.clone() }.closes());
        assert!(!Line { stranded_ms: 1, ..line.clone() }.closes());
        assert_eq!(line.coverage(), Some(50.0));
    }
}
