//! The fleet spec: what a person writes in YAML, checked.
//!
//! Unknown keys are refused with the nearest known one, limits with the key at fault. A checked spec can be planned.

use std::{collections::BTreeSet, fmt};

use schemas::{HOUR_MS, Timestamp};
use serde::{Deserialize, Deserializer, de::Visitor};

use crate::{accelerator, seed::Seed};

/// One fleet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetSpec {
    /// What it is called.
    pub name: String,
    /// Seed, unless the caller gives another.
    #[serde(default = "default_seed")]
    pub seed: Seed,
    /// When the fleet opens, empty; a full UTC hour.
    pub start: Timestamp,
    /// How long it is planned.
    pub hours: u32,
    /// Interval at which its scrapers ask; faults of single scrapes last as long.
    #[serde(default = "default_interval")]
    pub scrape_interval: Span,
    /// How its pages look.
    #[serde(default)]
    pub exposition: Exposition,
    /// Clusters.
    pub clusters: Vec<Cluster>,
    /// Who wants GPUs.
    pub teams: Vec<Team>,
    /// How much work comes.
    #[serde(default)]
    pub arrivals: Arrivals,
    /// What goes wrong.
    #[serde(default)]
    pub faults: Faults,
}

/// How pages look.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Exposition {
    /// Spelling of the host name's label.
    pub hostname: Hostname,
    /// Whether pages carry pod labels, as dcgm-exporter does in Kubernetes mode.
    pub pod_labels: bool,
}

impl Default for Exposition {
    fn default() -> Self {
        Self { hostname: Hostname::Lower, pod_labels: true }
    }
}

/// Spelling of the host name's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hostname {
    /// `hostname`.
    Lower,
    /// `Hostname`, as releases before mid-2026.
    Classic,
    /// Not printed.
    Absent,
}

/// One cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Its name, unique.
    pub name: String,
    /// Its nodes.
    pub node_pools: Vec<NodePool>,
}

/// Nodes that are alike; they are called `<name>-0`, `<name>-1`, ...
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePool {
    /// Its name, unique in the fleet.
    pub name: String,
    /// How many nodes.
    pub count: u32,
    /// Product, as the driver names it (see `accelerators.csv`).
    pub product: String,
    /// GPUs of each node.
    pub gpus_per_node: u32,
    /// Region.
    pub region: String,
    /// Zone.
    pub zone: String,
    /// Who rents it out.
    pub provider: String,
    /// How it is paid for: reserved, on-demand, spot, block.
    pub purchase_option: String,
}

/// One team.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Team {
    /// Its name.
    pub name: String,
    /// Namespace of its pods.
    pub namespace: String,
    /// Share of the work, relative to the other teams.
    pub weight: f64,
    /// Share of each shape in its GPU time, relative to each other.
    pub mix: Mix,
    /// Products that its pods ask for; none named: any.
    #[serde(default)]
    pub products: Vec<String>,
}

/// Shares of the shapes.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mix {
    /// Long jobs in steps, with data stalls and checkpoints.
    pub training: f64,
    /// Standing replicas whose load follows the day.
    pub inference: f64,
    /// Short jobs.
    pub batch: f64,
    /// Held, and mostly idle.
    pub notebook: f64,
}

/// How much work comes.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Arrivals {
    /// GPU time asked for, over capacity.
    pub load: f64,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self { load: 0.85 }
    }
}

/// What goes wrong; each kind is labelled in the truth.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Share of scrapes that get no answer.
    pub lost_scrapes: Rate,
    /// Spells in which the exporter of a node gives no page.
    pub exporter_down: Option<Down>,
    /// Spells in which a node is not ready.
    pub node_not_ready: Option<Spells>,
    /// Spells in which a node takes no new pods.
    pub cordon: Option<Spells>,
    /// Share of (device, scrape) in which one reading is printed as DCGM's blank.
    pub blanks: Rate,
    /// Share of (device, scrape) in which one reading is out of range.
    pub out_of_range: Rate,
    /// XIDs.
    pub xid: Option<PerGpu>,
    /// Driver reloads: counters begin anew when the device is next free.
    pub driver_reload: Option<PerNode>,
    /// Rounds that reach the log late.
    pub late_batches: Option<Delivery>,
    /// Rounds that reach the log twice, the second time after the delay.
    pub repeated_batches: Option<Delivery>,
    /// Spells at fixed times.
    pub windows: Vec<FixedSpell>,
}

/// Rounds that are not delivered as they should be.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delivery {
    /// Share of rounds.
    pub rate: Rate,
    /// Shortest and longest delay.
    pub delay: (Span, Span),
}

/// Spells at random times.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spells {
    /// How many a node has in a day, on average.
    pub per_node_day: PerDay,
    /// Shortest and longest.
    pub lasts: (Span, Span),
}

/// Spells without a page.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Down {
    /// How many a node has in a day, on average.
    pub per_node_day: PerDay,
    /// Shortest and longest.
    pub lasts: (Span, Span),
    /// What scrapers get; one of these for each spell.
    #[serde(default = "default_how")]
    pub how: Vec<NoPage>,
}

/// Events of a GPU at random times.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerGpu {
    /// How many a GPU has in a day, on average.
    pub per_gpu_day: PerDay,
}

/// Events of a node at random times.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerNode {
    /// How many a node has in a day, on average.
    pub per_node_day: PerDay,
}

/// A spell at a fixed time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedSpell {
    /// Nodes: a name, or the beginning of names and `*`.
    pub nodes: String,
    /// What.
    pub kind: SpellKind,
    /// When, after the start.
    pub from: Span,
    /// How long.
    pub lasts: Span,
    /// For `exporter_down`: what scrapers get.
    #[serde(default = "refuse")]
    pub how: NoPage,
}

/// Kinds of spells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpellKind {
    /// No page.
    ExporterDown,
    /// The node is not ready.
    NotReady,
    /// The node takes no new pods.
    Cordon,
    /// The same, for maintenance.
    Maintenance,
}

/// What a scraper gets in place of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoPage {
    /// The connection is closed without an answer.
    Refuse,
    /// 500.
    Error,
    /// 200 with nothing in it: an exporter that reloads.
    Empty,
    /// No answer for as long as the scraper waits. Costs a real timeout, also in fast time.
    Hang,
}

impl NoPage {
    /// Its word in the spec and in the truth.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Error => "error",
            Self::Empty => "empty",
            Self::Hang => "hang",
        }
    }
}

/// A share between 0 and 1, in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u32);

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let check = |share: f64| {
            let fits = (0.0..=1.0).contains(&share);
            if fits { Ok(Self((share * 1e6).round() as u32)) } else { Err(format!("{share} is not a share between 0 and 1")) }
        };
        from.deserialize_f64(Scalar {
            expects: "a share between 0 and 1",
            number: check,
            text: |text: &str| Err(not("a share", text)),
        })
    }
}

/// Reads one scalar and checks it while the reader still knows its line and its key: an error from later on is shown with those
/// of the whole section.
struct Scalar<N, T> {
    expects: &'static str,
    number: N,
    text: T,
}

fn not(what: &str, text: &str) -> String {
    format!("`{text}` is not {what}")
}

impl<V, N: Fn(f64) -> Result<V, String>, T: Fn(&str) -> Result<V, String>> Visitor<'_> for Scalar<N, T> {
    type Value = V;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expects)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<V, E> {
        (self.number)(value).map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<V, E> {
        (self.number)(value as f64).map_err(E::custom)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<V, E> {
        (self.number)(value as f64).map_err(E::custom)
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<V, E> {
        (self.text)(value).map_err(E::custom)
    }
}

/// A number of events a day, at most 1,440.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PerDay(pub f64);

impl<'de> Deserialize<'de> for PerDay {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let check = |count: f64| {
            let fits = (0.0..=1440.0).contains(&count);
            if fits { Ok(Self(count)) } else { Err(format!("{count} is not a number of events a day between 0 and 1440")) }
        };
        let text = |text: &str| Err(not("a number of events a day", text));
        from.deserialize_f64(Scalar { expects: "a number of events a day", number: check, text })
    }
}

/// A length of time in whole milliseconds, above 0: `30s`, `250ms`, `5m`, `2h`, `1d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(i64);

impl Span {
    /// `ms` milliseconds; nothing where that is no time.
    pub const fn from_ms(ms: i64) -> Option<Self> {
        if ms > 0 { Some(Self(ms)) } else { None }
    }

    /// In milliseconds.
    pub const fn ms(self) -> i64 {
        self.0
    }
}

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let unit = match unit {
            "ms" => Some(1),
            "s" => Some(1000),
            "m" => Some(60_000),
            "h" => Some(HOUR_MS),
            "d" => Some(24 * HOUR_MS),
            _ => None,
        };
        let ms = unit.and_then(|unit| number.parse::<i64>().ok()?.checked_mul(unit)).filter(|ms| *ms > 0);
        ms.map(Self).ok_or_else(|| format!("`{text}` is no length of time such as 30s, 5m or 2h"))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = |text: &str| text.parse::<Self>().map_err(|error| error.to_string());
        let number = |number: f64| Err(not("a length of time such as 30s, 5m or 2h", &number.to_string()));
        from.deserialize_str(Scalar { expects: "a length of time such as 30s", number, text })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ms if ms % HOUR_MS == 0 => write!(f, "{}h", ms / HOUR_MS),
            ms if ms % 60_000 == 0 => write!(f, "{}m", ms / 60_000),
            ms if ms % 1000 == 0 => write!(f, "{}s", ms / 1000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

fn default_seed() -> Seed {
    Seed(1)
}

fn default_interval() -> Span {
    Span(30_000)
}

fn default_how() -> Vec<NoPage> {
    vec![NoPage::Refuse, NoPage::Error, NoPage::Empty]
}

fn refuse() -> NoPage {
    NoPage::Refuse
}

/// What is wrong with a spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A key that no spec has.
    #[error("line {line}: {place}unknown key `{key}`; did you mean `{nearest}`?")]
    UnknownKey {
        /// 1-based.
        line: usize,
        /// The path above it, ending in `: `, or nothing.
        place: String,
        /// The key.
        key: String,
        /// The known key nearest to it.
        nearest: String,
    },
    /// Not YAML, or not of the right form.
    #[error("{}{message}", line.map_or(String::new(), |line| format!("line {line}: ")))]
    Form {
        /// 1-based, where known.
        line: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// Values that no fleet can have.
    #[error("{}", join(.0))]
    Limits(Vec<Problem>),
}

/// A value that no fleet can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key at fault, with its path.
    pub key: String,
    /// What is wrong with it, and what to do.
    pub message: String,
}

fn join(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(|p| format!("{}: {}", p.key, p.message)).collect();
    lines.join("\n")
}

/// Most GPUs of a fleet.
pub const MAX_GPUS: u64 = 200_000;

impl FleetSpec {
    /// Reads a spec and checks it.
    pub fn parse(yaml: &str) -> Result<Self, SpecError> {
        let spec: Self = serde_yaml_ng::from_str(yaml).map_err(|err| explain(&err))?;
        spec.check()?;
        Ok(spec)
    }

    /// First instant after the fleet's planned time.
    pub fn end(&self) -> Timestamp {
        self.start.plus_ms(i64::from(self.hours) * HOUR_MS)
    }

    /// GPUs of the fleet.
    pub fn gpus(&self) -> u64 {
        self.pools().map(|(_, pool)| u64::from(pool.count) * u64::from(pool.gpus_per_node)).sum()
    }

    /// Every pool with its cluster.
    pub fn pools(&self) -> impl Iterator<Item = (&Cluster, &NodePool)> {
        self.clusters.iter().flat_map(|cluster| cluster.node_pools.iter().map(move |pool| (cluster, pool)))
    }

    /// Every limit; all that are broken come back together.
    pub fn check(&self) -> Result<(), SpecError> {
        let mut found = Vec::new();
        let mut problem = |key: String, message: String| found.push(Problem { key, message });
        name(&self.name, "name".into(), &mut problem);
        // Up to 2099, as in an import: a time beyond is a slip, and the calendar ends in 9999.
        if self.start != self.start.hour() || !(0..4_102_444_800_000).contains(&self.start.ms()) {
            problem("start".into(), format!("{} is not a full UTC hour of the years 1970 to 2099", self.start));
        }
        if !(1..=8784).contains(&self.hours) {
            problem("hours".into(), format!("{} hours; plan between 1 and 8784 (366 days)", self.hours));
        }
        if !(1000..=600_000).contains(&self.scrape_interval.ms()) {
            problem("scrape_interval".into(), format!("{} is not between 1s and 10m", self.scrape_interval));
        }
        if !(self.arrivals.load >= 0.0 && self.arrivals.load <= 5.0) {
            problem("arrivals.load".into(), format!("{} is not between 0 and 5 times the capacity", self.arrivals.load));
        }
        self.check_clusters(&mut problem);
        self.check_teams(&mut problem);
        self.check_faults(&mut problem);
        if found.is_empty() { Ok(()) } else { Err(SpecError::Limits(found)) }
    }

    fn check_clusters(&self, problem: &mut impl FnMut(String, String)) {
        let (mut clusters, mut pools) = (BTreeSet::new(), BTreeSet::new());
        if self.pools().next().is_none() {
            problem("clusters".into(), "no node pool; a fleet has at least one".into());
        }
        for (c, cluster) in self.clusters.iter().enumerate() {
            name(&cluster.name, format!("clusters[{c}].name"), problem);
            if !clusters.insert(&cluster.name) {
                problem(format!("clusters[{c}].name"), format!("`{}` is the name of another cluster", cluster.name));
            }
            for (p, pool) in cluster.node_pools.iter().enumerate() {
                let key = |field: &str| format!("clusters[{c}].node_pools[{p}].{field}");
                name(&pool.name, key("name"), problem);
                if !pools.insert(&pool.name) {
                    problem(key("name"), format!("`{}` is the name of another pool; nodes would share names", pool.name));
                }
                if !(1..=20_000).contains(&pool.count) {
                    problem(key("count"), format!("{} nodes; give between 1 and 20000", pool.count));
                }
                if !(1..=16).contains(&pool.gpus_per_node) {
                    problem(key("gpus_per_node"), format!("{} GPUs a node; give between 1 and 16", pool.gpus_per_node));
                }
                if let Some(message) = product_problem(&pool.product) {
                    problem(key("product"), message);
                }
                for (field, text) in [
                    ("region", &pool.region),
                    ("zone", &pool.zone),
                    ("provider", &pool.provider),
                    ("purchase_option", &pool.purchase_option),
                ] {
                    name(text, key(field), problem);
                }
            }
        }
        if self.gpus() > MAX_GPUS {
            problem("clusters".into(), format!("{} GPUs; a fleet has at most {MAX_GPUS}", self.gpus()));
        }
    }

    fn check_teams(&self, problem: &mut impl FnMut(String, String)) {
        if self.teams.is_empty() || self.teams.len() > 1000 {
            problem("teams".into(), format!("{} teams; give between 1 and 1000", self.teams.len()));
        }
        let mut names = BTreeSet::new();
        for (t, team) in self.teams.iter().enumerate() {
            let key = |field: &str| format!("teams[{t}].{field}");
            name(&team.name, key("name"), problem);
            name(&team.namespace, key("namespace"), problem);
            if !names.insert(&team.name) {
                problem(key("name"), format!("`{}` is the name of another team", team.name));
            }
            if !(team.weight > 0.0 && team.weight <= 1e6) {
                problem(key("weight"), format!("{} is not above 0 and at most 1000000", team.weight));
            }
            let shares = [team.mix.training, team.mix.inference, team.mix.batch, team.mix.notebook];
            let sum: f64 = shares.iter().sum();
            if shares.iter().any(|share| !(*share >= 0.0 && *share <= 1e6)) || sum <= 0.0 {
                problem(key("mix"), "shares are numbers between 0 and 1000000, not all 0".into());
            }
            for product in &team.products {
                if !self.pools().any(|(_, pool)| pool.product == *product) {
                    problem(key("products"), format!("no node pool has product `{product}`; its pods would wait for ever"));
                }
            }
        }
    }

    fn check_faults(&self, problem: &mut impl FnMut(String, String)) {
        let faults = &self.faults;
        let spells = [
            ("exporter_down", faults.exporter_down.as_ref().map(|f| f.lasts)),
            ("node_not_ready", faults.node_not_ready.as_ref().map(|f| f.lasts)),
            ("cordon", faults.cordon.as_ref().map(|f| f.lasts)),
        ];
        for (kind, lasts) in spells {
            if let Some((shortest, longest)) = lasts.filter(|(shortest, longest)| shortest > longest) {
                problem(format!("faults.{kind}.lasts"), format!("[{shortest}, {longest}] is reversed; give the shortest first"));
            }
            if let Some((shortest, _)) = lasts.filter(|(shortest, _)| shortest.ms() < 1000) {
                problem(format!("faults.{kind}.lasts"), format!("{shortest} is below a second; the API knows whole seconds"));
            }
        }
        for (kind, delivery) in [("late_batches", faults.late_batches), ("repeated_batches", faults.repeated_batches)] {
            if let Some(Delivery { delay: (shortest, longest), .. }) = delivery.filter(|of| of.delay.0 > of.delay.1) {
                problem(format!("faults.{kind}.delay"), format!("[{shortest}, {longest}] is reversed; give the shortest first"));
            }
        }
        if faults.exporter_down.as_ref().is_some_and(|down| down.how.is_empty()) {
            problem("faults.exporter_down.how".into(), "is empty; name one of refuse, error, empty, hang".into());
        }
        let whole = self.end().ms() - self.start.ms();
        for (w, window) in faults.windows.iter().enumerate() {
            let key = |field: &str| format!("faults.windows[{w}].{field}");
            let nodes = self.pools().flat_map(|(_, pool)| (0..pool.count.min(20_000)).map(move |i| format!("{}-{i}", pool.name)));
            if !nodes.into_iter().any(|node| matches(&window.nodes, &node)) {
                problem(key("nodes"), format!("no node is called `{}`; nodes are called <pool>-0, <pool>-1, ...", window.nodes));
            }
            if window.from.ms() >= whole {
                problem(key("from"), format!("{} after the start is beyond the fleet's {} hours", window.from, self.hours));
            }
            if window.from.ms() % 1000 != 0 || window.lasts.ms() % 1000 != 0 {
                problem(key("from"), "spells begin and end on whole seconds, as the API tells them".into());
            }
        }
    }
}

/// Whether `pattern`, a name or the beginning of one and `*`, means `node`.
pub(crate) fn matches(pattern: &str, node: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => node.starts_with(beginning),
        None => pattern == node,
    }
}

/// Names become labels, paths and file names: what Kubernetes allows, 1 to 63 characters.
fn name(text: &str, key: String, problem: &mut impl FnMut(String, String)) {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let outer = |c: char| c.is_ascii_alphanumeric();
    let good = text.chars().all(inner) && text.starts_with(outer) && text.ends_with(outer) && text.len() <= 63;
    if !good {
        problem(
            key,
            format!("`{}` is no name: 1 to 63 letters, digits, `-`, `_`, `.`, no sign at either end", text.escape_debug()),
        );
    }
}

fn product_problem(product: &str) -> Option<String> {
    match accelerator::by_product(product) {
        Some(known) => {
            known.board().err().map(|missing| format!("`{product}` cannot be simulated yet: its {missing} is not known"))
        }
        None => {
            let all = || accelerator::all().iter().map(|a| a.product.as_str());
            // The same name in other letters is nearer than any other name.
            let nearest = all().find(|known| known.eq_ignore_ascii_case(product)).unwrap_or_else(|| nearest(product, all()));
            Some(format!("no product is called `{product}`; did you mean `{nearest}`?"))
        }
    }
}

fn nearest<'a>(text: &str, known: impl Iterator<Item = &'a str>) -> &'a str {
    known.min_by_key(|word| (strsim::damerau_levenshtein(text, word), *word)).unwrap_or("nothing at all")
}

/// A refusal of the YAML reader in our words: the line, the key, the nearest known key.
fn explain(err: &serde_yaml_ng::Error) -> SpecError {
    let line = err.location().map(|location| location.line());
    let mut message = err.to_string();
    if let Some(location) = err.location() {
        message = message.replace(&format!(" at line {} column {}", location.line(), location.column()), "");
    }
    for (said, what) in [("unknown field `", "key"), ("unknown variant `", "word")] {
        let Some((place, rest)) = message.split_once(said) else { continue };
        let Some((key, expected)) = rest.split_once('`') else { continue };
        let known = expected.split('`').skip(1).step_by(2);
        let nearest = nearest(key, known).to_owned();
        let (place, key) = (place.to_owned(), key.to_owned());
        return match what {
            "key" => SpecError::UnknownKey { line: line.unwrap_or(1), place, key, nearest },
            _ => SpecError::Form { line, message: format!("{place}`{key}` is no word here; did you mean `{nearest}`?") },
        };
    }
    SpecError::Form { line, message }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const GOOD: &str = include_str!("../../kwok-fleet/fleets/small.yaml");

    fn refusal(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "the test's own replacement finds nothing: {from}");
        FleetSpec::parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn a_typo_is_named_with_its_line_and_the_nearest_key() {
        let line = GOOD.lines().position(|line| line.contains("gpus_per_node")).unwrap() + 1;
        assert_eq!(
            refusal("gpus_per_node:", "gpu_per_node:"),
            format!("line {line}: clusters[0].node_pools[0]: unknown key `gpu_per_node`; did you mean `gpus_per_node`?")
        );
        let line = GOOD.lines().position(|line| line.starts_with("hours")).unwrap() + 1;
        assert_eq!(refusal("hours:", "hour:"), format!("line {line}: unknown key `hour`; did you mean `hours`?"));
        assert!(refusal("notebook:", "notebok:").contains("unknown key `notebok`; did you mean `notebook`?"));
        assert!(
            refusal("kind: exporter_down", "kind: exporter_dwn")
                .contains("`exporter_dwn` is no word here; did you mean `exporter_down`?")
        );
    }

    #[test]
    fn every_limit_has_its_message() {
        for (from, to, says) in [
            ("hours: 2", "hours: 0", "hours: 0 hours; plan between 1 and 8784"),
            ("hours: 2", "hours: two", "hours: invalid type: string"),
            ("hours: 2", "hours: -1", "hours: invalid type: integer `-1`"),
            ("scrape_interval: 30s", "scrape_interval: 30", "30` is no length of time such as 30s"),
            ("scrape_interval: 30s", "scrape_interval: 11m", "scrape_interval: 11m is not between 1s and 10m"),
            ("start: 2026-03-02T00:00:00Z", "start: 2026-03-02T00:00:01Z", "is not a full UTC hour"),
            ("product: NVIDIA H100 80GB HBM3", "product: NVIDIA H100 80GB HBM", "did you mean `NVIDIA H100 80GB HBM3`?"),
            ("product: NVIDIA H100 80GB HBM3", "product: TPU v5e", "its DCGM telemetry is not known"),
            ("gpus_per_node: 4", "gpus_per_node: 17", "17 GPUs a node; give between 1 and 16"),
            ("weight: 2", "weight: -2", "teams[0].weight: -2 is not above 0"),
            ("lost_scrapes: 0.01", "lost_scrapes: 1.5", "1.5 is not a share between 0 and 1"),
            ("namespace: research", "namespace: re/search", "`re/search` is no name"),
            ("nodes: l4-0", "nodes: l5-0", "no node is called `l5-0`"),
            (
                "blanks: 0.003",
                "late_batches: { rate: 0.1, delay: [2h, 5m] }",
                "faults.late_batches.delay: [2h, 5m] is reversed; give the shortest first",
            ),
        ] {
            let said = refusal(from, to);
            assert!(said.contains(says), "{to}: {said}");
        }
        assert!(FleetSpec::parse("").is_err());
        assert!(FleetSpec::parse("- a\n- b").is_err());
        assert!(FleetSpec::parse("name: [").unwrap_err().to_string().starts_with("line "));
    }

    #[test]
    fn broken_limits_come_together() {
        let both = GOOD.replacen("scrape_interval: 30s", "scrape_interval: 1ms", 1).replacen("weight: 2", "weight: 0", 1);
        assert_eq!(FleetSpec::parse(&both).unwrap_err().to_string().lines().count(), 2);
    }
}
