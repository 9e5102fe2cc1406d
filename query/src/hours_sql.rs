//! The hours computation as SQL: one template, three dialects, the same rows to the digit.
//!
//! ```text
//! sql/hours.sql.in ──words replaced from the innermost out, `@{name:argument;argument}`──> one SELECT for DataFusion, DuckDB or Spark
//! ```
//!
//! The SELECT reads `settled_holdings`, `gpu_samples` and `scrapes` and gives the columns of `gpu_hours`. It needs joins,
//! window functions and whole numbers of 128 bits or 38 digits, and no recursion and no function of ours; the session's time zone is UTC.
//! A number that does not fit is an error in each of the engines (Spark: with ANSI mode, its default), or null where the ledger
//! wrote no denominator; it is never wrapped.

use std::{fmt::Write, path::Path, str::FromStr};

use ledger::row::Flag;
use schemas::{
    Window,
    status::{Cause, ScrapeStatus, Tier},
    tables,
};

const TEMPLATE: &str = include_str!("../sql/hours.sql.in");

/// Whose SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// DataFusion, as `strandline sql` runs it: tables by name.
    DataFusion,
    /// DuckDB: tables are globs over the lake's files.
    DuckDb,
    /// Spark SQL: tables are the lake's folders.
    Spark,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 3] = [Self::DataFusion, Self::DuckDb, Self::Spark];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DataFusion => "datafusion",
            Self::DuckDb => "duckdb",
            Self::Spark => "spark",
        }
    }

    /// The rows of a table of the lake at `lake`.
    pub fn source(self, table: &str, lake: &str) -> String {
        match self {
            Self::DataFusion => table.to_owned(),
            Self::DuckDb => format!("read_parquet('{}/{table}/*/*/*.parquet')", lake.replace('\'', "''")),
            Self::Spark => format!("parquet.`{}/{table}`", lake.replace('`', "``")),
        }
    }

    /// An instant as milliseconds since 1970.
    fn ms(self, instant: &str) -> String {
        match self {
            Self::DataFusion => format!("CAST({instant} AS BIGINT) / 1000"),
            Self::DuckDb => format!("epoch_ms({instant})"),
            Self::Spark => format!("unix_millis({instant})"),
        }
    }

    /// Whole numbers of at least 37 digits.
    fn wide(self, number: &str) -> String {
        match self {
            Self::DataFusion | Self::Spark => format!("CAST({number} AS DECIMAL(38, 0))"),
            Self::DuckDb => format!("CAST({number} AS HUGEINT)"),
        }
    }

    /// The quotient of two whole numbers of 64 bits, not below 0.
    fn div(self, a: &str, b: &str) -> String {
        match self {
            Self::DataFusion => format!("(({a}) / ({b}))"),
            Self::DuckDb => format!("(({a}) // ({b}))"),
            Self::Spark => format!("(({a}) DIV ({b}))"),
        }
    }

    /// The quotient of two wide numbers, not below 0, as one of 64 bits. DataFusion's own quotient has four decimals.
    fn wide_div(self, a: &str, b: &str) -> String {
        match self {
            Self::DataFusion => format!("CAST((({a}) - ({a}) % ({b})) / ({b}) AS BIGINT)"),
            Self::DuckDb => format!("CAST(({a}) // ({b}) AS BIGINT)"),
            Self::Spark => format!("(({a}) DIV ({b}))"),
        }
    }

    /// The starts of all hours from that of one instant to that of another, one a row.
    fn hours(self, from: &str, to: &str) -> String {
        let start = |at: &str| format!("{} * 3600000", self.div(at, "3600000"));
        let (from, to) = (start(from), start(to));
        match self {
            Self::DataFusion | Self::DuckDb => format!("UNNEST(generate_series({from}, {to}, 3600000))"),
            Self::Spark => format!("EXPLODE(SEQUENCE({from}, {to}, 3600000L))"),
        }
    }

    /// A literal instant.
    fn instant(self, at: schemas::Timestamp) -> String {
        format!("CAST('{at}' AS {})", if self == Self::Spark { "TIMESTAMP" } else { "TIMESTAMP WITH TIME ZONE" })
    }
}

impl FromStr for Dialect {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|dialect| dialect.as_str() == text);
        known.ok_or_else(|| format!("`{text}` is no dialect; one of datafusion, duckdb, spark"))
    }
}

/// The SELECT whose rows are those of `gpu_hours`, for the hours of `window` (all where there is none), sorted.
///
/// `lake` is where the engine finds the files; DataFusion's sessions know the tables by name.
pub fn hours(dialect: Dialect, lake: &Path, window: Option<Window>) -> String {
    Template { dialect, lake: &lake.to_string_lossy(), window }.fill(TEMPLATE)
}

/// Short names of the tiers in the template.
const TIERS: [(&str, Tier); 3] = [("b", Tier::Busy), ("s", Tier::Sm), ("e", Tier::Effective)];

struct Template<'a> {
    dialect: Dialect,
    lake: &'a str,
    window: Option<Window>,
}

impl Template<'_> {
    /// Replaces every word, the last to begin first, so that none stands inside another's arguments.
    fn fill(&self, template: &str) -> String {
        let mut text = template.to_owned();
        while let Some(begin) = text.rfind("@{") {
            let end = begin + text[begin..].find('}').expect("a word of the template ends");
            let word = &text[begin + 2..end];
            let (name, arguments) = word.split_once(':').unwrap_or((word, ""));
            let filled = self.word(name, &arguments.split(';').collect::<Vec<_>>());
            text.replace_range(begin..=end, &filled);
        }
        text
    }

    fn word(&self, name: &str, arguments: &[&str]) -> String {
        let dialect = self.dialect;
        match (name, arguments) {
            ("table", [table]) => dialect.source(table, self.lake),
            ("ms", [instant]) => dialect.ms(instant),
            ("wide", [number]) => dialect.wide(number),
            ("div", [a, b]) => dialect.div(a, b),
            ("wdiv", [a, b]) => dialect.wide_div(a, b),
            ("hours", [from, to]) => dialect.hours(from, to),
            ("sum", [number]) => format!("CAST(SUM({number}) AS BIGINT)"),
            ("sum_over", [number, keys]) => format!("CAST(SUM({number}) OVER (PARTITION BY {keys}) AS BIGINT)"),
            ("max", columns) => each(columns, |column| format!("MAX({column}) AS {column}")),
            ("each", [text]) => each(&TIERS, |(short, _)| text.replace('#', short)),
            ("pick", [column]) => pick(column, column),
            ("pick", [column, called]) => pick(column, called),
            ("read", [column, id, valid, blank]) => read(column, id, valid, blank),
            ("ratio", [column, id]) => {
                let valid = format!("NOT isnan({column}) AND {column} >= 0 AND {column} < 2 AND {column} * 1e9 < most");
                let blank =
                    format!("isnan({column}) OR {column} >= 140737488355328 OR {column} BETWEEN 2147483632 AND 2147483648");
                read(column, id, &valid, &blank)
            }
            ("merge", [column]) => format!(
                "MAX({column}_v) AS {column}_v, MIN({column}_v) AS {column}_lo, \
                 CASE WHEN MAX({column}_v) IS NULL THEN MAX({column}_f) ELSE 0 END AS {column}_f, MAX({column}_c) AS {column}_c"
            ),
            ("ppm", [column]) => ppm(column),
            ("failed", _) => {
                let failed = ScrapeStatus::ALL.iter().filter(|status| status.failed());
                each(&failed.collect::<Vec<_>>(), |status| format!("'{status}'"))
            }
            ("where", [column]) => self.within(column, "WHERE"),
            ("and", [column]) => self.within(column, "AND"),
            ("pivot", _) => each(&picked(), |(name, pick)| format!("{pick} AS {name}")),
            ("figures", _) => each(&picked(), |(name, _)| format!("g.{name}")),
            ("select", _) => select(self),
            _ => panic!("the template has a word that is not known: {name} with {} arguments", arguments.len()),
        }
    }

    /// Rows of the window's hours; samples and rounds from a day before it on, the longest horizon there is.
    fn within(&self, column: &str, begin: &str) -> String {
        let Some(window) = self.window else { return String::new() };
        let reach = if column == "hour_start" { 0 } else { schemas::time::DAY_MS };
        let from = window.from().hour().plus_ms(-reach);
        let to = window.to().plus_ms(reach);
        format!(" {begin} {column} >= {} AND {column} < {}", self.dialect.instant(from), self.dialect.instant(to))
    }

    /// `ms` shared out to two exact parts; the first one's share.
    fn share(&self, part: &str, rest: &str, den: &str, ms: &str) -> String {
        let (floor, other) = (self.dialect.wide_div(part, den), self.dialect.wide_div(rest, den));
        format!(
            "CASE WHEN ({part}) = 0 THEN 0 ELSE {floor} + CASE WHEN {ms} - {floor} - {other} \
             > CASE WHEN ({part}) % {den} >= ({rest}) % {den} THEN 0 ELSE 1 END THEN 1 ELSE 0 END END"
        )
    }
}

/// The column of the row's tier.
fn pick(column: &str, called: &str) -> String {
    format!("CASE v.tier WHEN 1 THEN g.b_{column} WHEN 2 THEN g.s_{column} ELSE g.e_{column} END AS {called}")
}

fn each<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// A reading's valid value, why there is none, and whether its page had two that differ.
fn read(column: &str, id: &str, valid: &str, blank: &str) -> String {
    let said = |reason: &str| format!("faults LIKE '%,{id}:{reason},%'");
    format!(
        "CASE WHEN {valid} THEN {column} END AS {column}_v,\n        \
         CASE WHEN {column} IS NULL THEN CASE WHEN {} THEN 1 WHEN {} THEN 2 ELSE 0 END WHEN {valid} THEN 0 WHEN {blank} THEN 1 ELSE 2 END AS {column}_f,\n        \
         CASE WHEN {valid} AND {} THEN 1 ELSE 0 END AS {column}_c",
        said("sentinel"),
        said("out_of_range"),
        said("conflict"),
    )
}

/// A ratio in parts per million, rounded once, halves up; whether it was clipped, is exactly 0, in conflict. A stored float is
/// told from another by its nine decimals.
fn ppm(column: &str) -> String {
    let nearest = |number: String| {
        format!("CAST(FLOOR({number}) AS BIGINT) + CASE WHEN {number} - FLOOR({number}) >= 5e-1 THEN 1 ELSE 0 END")
    };
    let (value, low) = (format!("c.{column}_v"), format!("c.{column}_lo"));
    let printed =
        |value: &str| format!("GREATEST({}, CASE WHEN {value} > 0 THEN 1 ELSE 0 END)", nearest(format!("{value} * 1e9")));
    format!(
        "CASE WHEN {value} IS NULL THEN NULL WHEN {value} * 1e9 >= 1.0000000005e9 THEN 1000000 ELSE {} END AS {column}_p, c.{column}_f,\n        \
         CASE WHEN c.{column}_c = 1 OR ({value} > {low} AND {} <> {}) THEN 1 ELSE 0 END AS {column}_c,\n        \
         CASE WHEN {value} * 1e9 >= 1.0000000005e9 THEN 1 ELSE 0 END AS {column}_o, CASE WHEN {value} = 0 THEN 1 ELSE 0 END AS {column}_z",
        nearest(format!("{value} * 1e6")),
        printed(&value),
        printed(&low),
    )
}

/// The place of a cause among an owner's parts: utilized, stranded, then the causes by name.
fn part(cause: Cause) -> usize {
    2 + cause as usize
}

/// The figures of an owner's row that rounding shares out, and how each is picked from the parts.
fn picked() -> Vec<(String, String)> {
    let mut columns = Vec::new();
    let of = |tier: usize, part: usize| format!("MAX(CASE WHEN tier = {tier} AND part = {part} THEN part_ms END)");
    for (i, (_, tier)) in TIERS.iter().enumerate() {
        columns.push((format!("{tier}_utilized_ms"), of(i + 1, 0)));
        columns.push((format!("{tier}_stranded_ms"), of(i + 1, 1)));
        // A cause without time is no part of it.
        let causes = Cause::ALL.iter();
        columns.extend(causes.map(|c| (format!("{tier}_unobserved_{c}_ms"), format!("COALESCE({}, 0)", of(i + 1, part(*c))))));
        columns.push((format!("{tier}_over_share_ms"), format!("MAX(CASE WHEN tier = {} THEN over_share_ms END)", i + 1)));
    }
    let memos = ["pre_start_ms", "terminating_ms", "on_unready_ms"].iter().zip(4..);
    columns.extend(memos.map(|(memo, tier)| ((*memo).to_owned(), of(tier, 0))));
    columns
}

/// Flags of the holdings and those with a condition, sorted and comma-joined; null where there are none.
fn flags(also: &[(Flag, &str)]) -> String {
    let one = |flag: &Flag| {
        let held = format!("(',' || COALESCE(flags, '') || ',') LIKE '%,{},%'", flag.as_str());
        let said = also.iter().filter(|(said, _)| said == flag).map(|(_, when)| format!(" OR {when}"));
        format!("CASE WHEN {held}{} THEN ',{}' ELSE '' END", said.collect::<String>(), flag.as_str())
    };
    let all = Flag::ALL.iter().map(one).collect::<Vec<_>>().join("\n        || ");
    format!("NULLIF(SUBSTR({all}, 2), '')")
}

/// Where a row of the result comes from, and how its columns are called there.
struct Branch {
    from: &'static str,
    column: fn(&Template<'_>, &str) -> String,
}

const BRANCHES: [Branch; 3] = [
    // What nobody holds of a node without inventory is no row: nothing else is said of such time.
    Branch { from: "device_rows WHERE kind = 'owner' OR flags IS NULL", column: device_column },
    Branch { from: "number_rows", column: number_column },
    Branch { from: "taken WHERE num > 0", column: taken_column },
];

/// Columns that say where and when.
const PLACE: [&str; 11] = [
    "hour_start",
    "cluster",
    "node",
    "device",
    "parent",
    "profile",
    "product",
    "region",
    "provider",
    "purchase_option",
    "reservation",
];
/// Columns that say whose.
const OWNER: [&str; 6] = ["pod_uid", "namespace", "pod", "workload", "team", "queue"];

fn device_column(_: &Template<'_>, name: &str) -> String {
    match name {
        "overcommitted_ms" => "CASE WHEN kind = 'owner' THEN 0 END".into(),
        "owner_source" => {
            let labels = "labels = 1 OR (',' || COALESCE(flags, '') || ',') LIKE '%,from_labels,%'";
            let device =
                format!("WHEN {labels} THEN 'from_labels' WHEN allocation_source = 'import' THEN 'import' ELSE 'podres'");
            format!("CASE WHEN kind <> 'owner' THEN NULL {device} END")
        }
        "flags" => flags(&[
            (Flag::Conflict, "conflict = 1"),
            (Flag::FromLabels, "labels = 1"),
            (Flag::Implausible, "implausible = 1"),
            (Flag::MigOverrange, "(clipped = 1 AND parent IS NOT NULL)"),
            (Flag::OverShare, "exceeded = 1"),
            (Flag::OverrangeClipped, "(clipped = 1 AND parent IS NULL)"),
            (Flag::ProfilingStuck, "stuck = 1"),
            (Flag::Reset, "again = 1"),
            (Flag::SkewCorrected, "skewed = 1"),
        ]),
        _ => name.into(),
    }
}

fn number_column(template: &Template<'_>, name: &str) -> String {
    let part = |column: &str| template.share(column, &format!("held - {column}"), "den", "ms");
    match name {
        "device" | "parent" | "profile" | "reason" | "energy_mj" | "fb_used_mib_ms" | "fb_unobserved_ms" => "NULL".into(),
        "kind" => "'owner'".into(),
        "pre_start_ms" => part("pre_start"),
        "terminating_ms" => part("terminating"),
        "on_unready_ms" => part("unready"),
        "overcommitted_ms" => {
            let two = template.dialect.wide("2");
            template.dialect.wide_div(&format!("lacking * {two} + den"), &format!("den * {two}"))
        }
        "owner_source" => "allocation_source".into(),
        "flags" => flags(&[(Flag::Overcommitted, "lacking > 0")]),
        _ if name.ends_with("_no_device_yet_ms") => "ms".into(),
        _ if PLACE.contains(&name) || OWNER.contains(&name) || ["ms", "allocation_source"].contains(&name) => name.into(),
        _ => "0".into(),
    }
}

fn taken_column(_: &Template<'_>, name: &str) -> String {
    match name {
        "device" | "parent" | "profile" => "NULL".into(),
        "reason" => "'held_unknown'".into(),
        "ms" => "-ms".into(),
        _ if PLACE.contains(&name) || name == "kind" => name.into(),
        _ => "NULL".into(),
    }
}

/// The rows of all kinds in the columns of `gpu_hours`.
fn select(template: &Template<'_>) -> String {
    let mut text = String::from("SELECT * FROM (\n");
    for (i, Branch { from, column }) in BRANCHES.iter().enumerate() {
        let columns = each(&tables::get("gpu_hours").columns, |c| match column(template, &c.name) {
            _ if c.name == "cluster" => "cl AS cluster".into(),
            value if value == c.name => value,
            value => format!("{value} AS {}", c.name),
        });
        let union = if i > 0 { "    UNION ALL\n" } else { "" };
        let _ = writeln!(text, "{union}    SELECT {columns}\n    FROM {from}");
    }
    text.push_str(") rows_of_all_kinds");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dialect_has_every_column_and_no_word_left() {
        for dialect in Dialect::ALL {
            let text = hours(dialect, Path::new("/lake"), None);
            assert!(!text.contains("@{") && !text.contains("OVER_"), "{}", dialect.as_str());
            assert_eq!(dialect.as_str().parse(), Ok(dialect));
            assert_eq!(dialect == Dialect::DuckDb, text.contains("read_parquet('/lake/gpu_samples/*/*/*.parquet')"));
        }
        assert!("oracle".parse::<Dialect>().is_err());
    }
}
