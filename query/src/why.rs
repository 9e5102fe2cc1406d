//! Why an hour row says what it says: the holdings, samples and rules that made it, piece by piece.

use std::{collections::BTreeMap, fmt::Write as _};

use lake::{
    Lake,
    scan::{NodeRange, Scan},
};
use ledger::{
    HourRow, baselines,
    explain::{Explanation, Held, Piece, Said, explain},
    money::Bucket,
    row::What,
};
use schemas::{
    HOUR_MS, Timestamp, Window,
    status::{Cause, Tier},
};
use serde_json::{Value, json};

use crate::{
    account::{self, AccountError, Reach},
    job::Files,
    live,
    money::{
        bill::{hours, units},
        card::Card,
        costs::CostRow,
    },
    show,
};

/// What is to be explained.
#[derive(Clone, Debug)]
pub enum Asked {
    /// One device, by its id.
    Device(String),
    /// Every device that a pod held in the hour: by UID, `namespace/name` or name.
    Pod(String),
}

/// What stopped an explanation.
#[derive(Debug, thiserror::Error)]
pub enum WhyError {
    /// The hour's inputs could not be read.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// The lake could not be read.
    #[error(transparent)]
    Lake(#[from] lake::LakeError),
    /// Nothing of the hour is in the lake.
    #[error("no raw rows of the hour of {0} in the lake; {1}")]
    NoInputs(Timestamp, String),
    /// Nothing to explain.
    #[error(
        "{asked} is in no row of the hour of {hour}; `strandline sql --lake DIR \"SELECT DISTINCT device, namespace, pod FROM gpu_hours\"` lists what there is"
    )]
    NotThere {
        /// What was asked.
        asked: String,
        /// The hour.
        hour: Timestamp,
    },
}

/// One device's hour, explained.
#[derive(Debug)]
pub struct Why {
    /// The cluster.
    pub cluster: String,
    /// The node.
    pub node: String,
    /// The device.
    pub device: String,
    /// The instant that was asked about.
    pub at: Timestamp,
    /// The hour, or its part that is known.
    pub window: Window,
    /// Its pieces; none for time that is known by number only.
    pub explanation: Option<Explanation>,
    /// Its rows.
    pub rows: Vec<HourRow>,
    /// Whether the hour is still open.
    pub open: bool,
    /// Shape of work by (namespace, pod), where a label says it.
    pub shapes: BTreeMap<(String, String), String>,
}

/// Explains the hour of `at`.
pub fn why(lake: &Lake, asked: &Asked, at: Timestamp) -> Result<Vec<Why>, WhyError> {
    let hour = at.hour();
    let files = Files::list(lake)?;
    let (reach, window, open) = match live::reach_of(lake, &files, hour)? {
        Some((reach, window)) => (reach, window, true),
        None => {
            let Some(window) = Window::new(hour, hour.plus_ms(HOUR_MS)).ok().filter(|_| files.has(hour)) else {
                let ends = (files.hours().next(), files.hours().last());
                let there = match ends {
                    (Some(first), Some(last)) => format!("it has hours from {first} to {}", last.plus_ms(HOUR_MS)),
                    _ => "it has none at all".into(),
                };
                return Err(WhyError::NoInputs(hour, there));
            };
            (files.reach(lake, hour, files.before(hour)), window, false)
        }
    };
    let mut found = Vec::new();
    let shapes = shapes(&reach)?;
    for node in nodes_with(&reach, asked, window)? {
        let reach = Reach { nodes: node, ..reach.clone() };
        for inputs in account::inputs(&reach, window)? {
            let refused = |source| AccountError::Refused { hour, node: format!("{}/{}", inputs.cluster, inputs.node), source };
            let rows = ledger::hours(&inputs.inputs, window).map_err(refused)?;
            for device in devices_of(&rows, asked) {
                let explanation = match &device {
                    Some(device) => explain(&inputs.inputs, device, window).map_err(refused)?,
                    None => None,
                };
                let of_device = |row: &&HourRow| {
                    let same = row.place.device.as_deref() == device.as_deref();
                    same && (device.is_some() || is_asked(row, asked))
                };
                found.push(Why {
                    cluster: inputs.cluster.to_string(),
                    node: inputs.node.to_string(),
                    device: device.clone().unwrap_or_else(|| "(devices not named)".into()),
                    at,
                    window,
                    explanation,
                    rows: rows.iter().filter(of_device).cloned().collect(),
                    open,
                    shapes: shapes.clone(),
                });
            }
        }
    }
    if found.is_empty() {
        let asked = match asked {
            Asked::Device(device) => format!("device {device}"),
            Asked::Pod(pod) => format!("pod {pod}"),
        };
        return Err(WhyError::NotThere { asked, hour });
    }
    Ok(found)
}

/// Shapes of work that pods' labels name.
fn shapes(reach: &Reach) -> Result<BTreeMap<(String, String), String>, WhyError> {
    let mut shapes = BTreeMap::new();
    for part in reach.intervals.iter().filter(|part| part.table.index("shape").is_some()) {
        let columns = ["namespace", "pod", "shape"];
        let scan = Scan {
            table: part.table,
            columns: Some(&columns),
            nodes: reach.nodes.clone(),
            between: None,
            dictionaries: false,
            instead: None,
        };
        for batch in scan.open(&part.path)? {
            let batch = batch?;
            let text = |name: &str, row: usize| show::text_at(&batch, name, row);
            for row in 0..batch.num_rows() {
                if let (Some(namespace), Some(pod), Some(shape)) = (text("namespace", row), text("pod", row), text("shape", row))
                {
                    shapes.insert((namespace.to_owned(), pod.to_owned()), shape.to_owned());
                }
            }
        }
    }
    Ok(shapes)
}

/// Nodes whose rows name what is asked: only they are computed.
fn nodes_with(reach: &Reach, asked: &Asked, window: Window) -> Result<Vec<NodeRange>, WhyError> {
    let mut nodes = std::collections::BTreeSet::new();
    for part in reach.intervals.iter().chain(&reach.instants) {
        let names: Vec<&str> = ["cluster", "node", "device", "namespace", "pod", "pod_uid"]
            .into_iter()
            .filter(|name| part.table.index(name).is_some())
            .collect();
        if !names.contains(&"device") {
            continue;
        }
        let timed = part.table.time == "at";
        let between = timed.then(|| (window.from(), window.to()));
        let scan = Scan {
            table: part.table,
            columns: Some(&names),
            nodes: reach.nodes.clone(),
            between,
            dictionaries: false,
            instead: None,
        };
        for batch in scan.open(&part.path)? {
            let batch = batch?;
            let text = |name: &str, row: usize| show::text_at(&batch, name, row);
            for row in 0..batch.num_rows() {
                let hit = match asked {
                    Asked::Device(device) => text("device", row) == Some(device),
                    Asked::Pod(pod) => names_pod(pod, text("pod_uid", row), text("namespace", row), text("pod", row)),
                };
                if let (true, Some(cluster), Some(node)) = (hit, text("cluster", row), text("node", row)) {
                    nodes.insert((cluster.to_owned(), node.to_owned()));
                }
            }
        }
    }
    Ok(nodes.into_iter().map(|(cluster, node)| NodeRange::only(&cluster, &node)).collect())
}

/// Whether `asked` is this pod: its UID, `namespace/name`, its name, or the identity that a pod without API server has.
fn names_pod(asked: &str, uid: Option<&str>, namespace: Option<&str>, name: Option<&str>) -> bool {
    if uid == Some(asked) || name == Some(asked) {
        return true;
    }
    let (Some(namespace), Some(name)) = (namespace, name) else { return false };
    let full = format!("{namespace}/{name}");
    // podres:<cluster>/<namespace>/<name>@<first sighting>
    full == asked || (asked.starts_with("podres:") && asked.contains(&format!("/{full}@")))
}

fn is_asked(row: &HourRow, asked: &Asked) -> bool {
    match (asked, row.owner()) {
        (Asked::Pod(pod), Some(owner)) => names_pod(pod, Some(&owner.pod.uid), Some(&owner.pod.namespace), Some(&owner.pod.name)),
        (Asked::Device(device), _) => row.place.device.as_deref() == Some(device),
        (Asked::Pod(_), None) => false,
    }
}

/// Devices that are asked for; none for rows known by number.
fn devices_of(rows: &[HourRow], asked: &Asked) -> Vec<Option<String>> {
    let mut devices: Vec<Option<String>> =
        rows.iter().filter(|row| is_asked(row, asked)).map(|row| row.place.device.as_deref().map(str::to_owned)).collect();
    devices.sort();
    devices.dedup();
    devices
}

impl Why {
    /// The explanation in words.
    pub fn text(&self, tier: Tier) -> String {
        let mut text = String::new();
        let labels = self.rows.first().map(|row| {
            let place = &row.place;
            [&place.product, &place.profile, &place.region, &place.provider, &place.purchase_option]
                .into_iter()
                .flatten()
                .map(|label| show::cell(label))
                .collect::<Vec<_>>()
                .join(", ")
        });
        let labels = labels.filter(|l| !l.is_empty()).map_or(String::new(), |l| format!(" ({l})"));
        let open = if self.open { ", an hour that is not closed yet" } else { "" };
        let (from, to) = (self.window.from(), self.window.to());
        let _ = writeln!(text, "{} on {}/{}{labels}\nfrom {from} to {to} (UTC){open}", self.device, self.cluster, self.node);
        match &self.explanation {
            Some(explanation) => self.pieces(explanation, tier, &mut text),
            None => text.push_str(
                "\nheld by number: the scheduler bound the pod and no one has named its devices, so no sample can speak for it (A16)\n",
            ),
        }
        self.sums(tier, &mut text);
        self.baselines(tier, &mut text);
        text
    }

    fn pieces(&self, explanation: &Explanation, tier: Tier, text: &mut String) {
        text.push_str("\nwho held it\n");
        if explanation.holdings.is_empty() {
            text.push_str("  nobody\n");
        }
        for held in &explanation.holdings {
            let _ = writeln!(text, "  {}", holding(held));
        }
        let _ = writeln!(
            text,
            "\nwhat was seen, tier {tier}: a sample speaks until the next, at most {} s (A4)",
            explanation.horizon_ms as f64 / 1000.0
        );
        let runs = runs(&explanation.pieces, tier);
        for run in &runs {
            let here = run.from <= self.at && self.at < run.to;
            let mark = if here { "> " } else { "  " };
            let _ = writeln!(text, "{mark}{} .. {}  {:<28} {}", clock(run.from), clock(run.to), run.owner, run.words);
        }
        if runs.iter().any(|run| run.from <= self.at && self.at < run.to) {
            let _ = writeln!(text, "> holds {}", self.at);
        }
        for piece in explanation.pieces.iter().filter(|p| p.from <= self.at && self.at < p.to) {
            if let Said::Seen { at, tiers, pods } = &piece.said {
                let all: Vec<String> = Tier::ALL.iter().map(|t| format!("{t} {}", reading(tiers[*t as usize]))).collect();
                let split = if *pods > 1 { format!(", split between {pods} pods (A7)") } else { String::new() };
                let _ = writeln!(text, "  the sample of {at} says: {}{split}", all.join(", "));
            }
        }
    }

    fn sums(&self, tier: Tier, text: &mut String) {
        text.push_str("\nthe rows, in device-milliseconds (A2, A15)\n");
        for row in &self.rows {
            match &row.what {
                What::Owner(owner) => {
                    let sums = owner.tiers[tier];
                    let causes: Vec<String> = Cause::ALL
                        .iter()
                        .map(|cause| (cause, sums.unobserved_by(*cause)))
                        .filter(|(_, ms)| *ms != 0)
                        .map(|(cause, ms)| format!("{cause} {ms}"))
                        .collect();
                    let causes = if causes.is_empty() { String::new() } else { format!(" ({})", causes.join(", ")) };
                    let unseen = sums.unobserved_ms();
                    let team = owner.pod.team.as_deref().unwrap_or("unattributed");
                    let _ = writeln!(
                        text,
                        "  {}/{}, team {}: allocated {} = utilized {} + stranded {} + unobserved {unseen}{causes}",
                        show::cell(&owner.pod.namespace),
                        show::cell(&owner.pod.name),
                        show::cell(team),
                        row.ms,
                        sums.utilized_ms,
                        sums.stranded_ms,
                    );
                    let memos = [
                        ("before its containers started", owner.pre_start_ms),
                        ("while it terminated", owner.terminating_ms),
                        ("on a device that was not ready", owner.on_unready_ms),
                    ];
                    let memos: Vec<String> =
                        memos.iter().filter(|(_, ms)| *ms != 0).map(|(word, ms)| format!("{ms} {word}")).collect();
                    if !memos.is_empty() {
                        let _ = writeln!(text, "    of allocated: {} (A3)", memos.join(", "));
                    }
                    if owner.flags != ledger::row::FlagSet::EMPTY {
                        let _ = writeln!(text, "    flags: {}", owner.flags);
                    }
                }
                What::Free(reason) => {
                    let _ = writeln!(text, "  free, {reason}: {}", row.ms);
                }
                What::Unavailable(reason) => {
                    let _ = writeln!(text, "  unavailable, {}: {}", show::cell(reason), row.ms);
                }
            }
        }
    }

    /// What the owners' time cost, in words: the pool that prices it, and by time their part of its row of `costs` (M4).
    pub fn price(&self, card: &Card, costs: &[CostRow]) -> String {
        let mut text = String::from("\nthe price (allocation is billed, never utilization)\n");
        for row in &self.rows {
            let Some(owner) = row.owner() else { continue };
            let place = &row.place;
            let labels =
                [&place.provider, &place.region, &place.product, &place.purchase_option, &place.reservation].map(Clone::clone);
            let name = format!("{}/{}", show::cell(&owner.pod.namespace), show::cell(&owner.pod.name));
            let pools = card.pools_of(&labels, row.hour_start);
            if pools.is_empty() {
                let _ = writeln!(text, "  {name}: no pool of {} matches it: unpriced", card.file);
            }
            for (number, _) in pools {
                let entry = &card.entries[number];
                let bucket = if owner.pod.team.is_some() { Bucket::Team } else { Bucket::Unattributed };
                let of_team = |cost: &&CostRow| {
                    cost.hour == row.hour_start
                        && cost.pool == entry.pool.name
                        && cost.bucket() == Some(bucket)
                        && cost.team == owner.pod.team
                };
                let Some(cost) = costs.iter().find(of_team).filter(|cost| cost.gpu_ms > 0) else { continue };
                let mine = row.ms - owner.on_unready_ms;
                let micro = i128::from(cost.micro.unwrap_or(0)) * i128::from(mine) / i128::from(cost.gpu_ms);
                let _ = writeln!(
                    text,
                    "  {name}: pool `{}` ({}, line {}) bills {} GPU-hours of its team in this hour at {} {}; by time its part is {}",
                    show::cell(&entry.pool.name),
                    card.file,
                    entry.line,
                    hours(cost.gpu_ms),
                    units(cost.micro.unwrap_or(0)),
                    card.currency,
                    units(i64::try_from(micro).unwrap_or(i64::MAX)),
                );
                if owner.on_unready_ms > 0 {
                    let _ = writeln!(
                        text,
                        "    {} ms on a device that was not ready are in bucket `unready`, nobody's",
                        owner.on_unready_ms
                    );
                }
            }
        }
        text
    }

    /// What such work usually reads, where its shape is known.
    fn baselines(&self, tier: Tier, text: &mut String) {
        for row in &self.rows {
            let Some(owner) = row.owner() else { continue };
            let shape = self.shapes.get(&(owner.pod.namespace.to_string(), owner.pod.name.to_string())).map(String::as_str);
            let Some(baseline) = baselines::of(shape, owner.pod.workload.as_deref()) else { continue };
            let band = match tier {
                Tier::Busy => baseline.busy,
                Tier::Sm => baseline.sm,
                Tier::Effective => None,
            };
            let usual = match band.map(|band| (band.least_ppm, band.most_ppm)) {
                Some((Some(least), Some(most))) => format!("{} to {}", reading(Ok(least)), reading(Ok(most))),
                Some((Some(least), None)) => format!("{} and more", reading(Ok(least))),
                Some((None, Some(most))) => format!("at most {}", reading(Ok(most))),
                Some((None, None)) | None => continue,
            };
            let sums = owner.tiers[tier];
            let seen = sums.utilized_ms + sums.stranded_ms;
            let own = if seen > 0 {
                let used = sums.utilized_ms as f64 * 100.0 / seen as f64;
                format!("{used:.1} % of the {:.1} % of its time that was seen", seen as f64 * 100.0 / row.ms.max(1) as f64)
            } else {
                "not seen".into()
            };
            let _ = writeln!(
                text,
                "\nbaseline for {} ({}), tier {tier}: {usual}; here {own}\n  source: {}",
                show::cell(&baseline.name),
                match baseline.basis {
                    baselines::Basis::Target => "when it goes well",
                    baselines::Basis::Found => "as found elsewhere",
                    baselines::Basis::Symptom => "a symptom",
                },
                baseline.source
            );
        }
    }

    /// The explanation as one JSON object.
    pub fn json(&self) -> Value {
        let pieces = self.explanation.iter().flat_map(|e| &e.pieces).map(|piece| {
            let pod = piece.pod.as_ref().map(|pod| pod.uid.to_string());
            let mut object =
                json!({"from": piece.from.to_string(), "to": piece.to.to_string(), "ids": piece.ids, "pod_uid": pod});
            let said = match &piece.said {
                Said::Seen { at, tiers, pods } => {
                    let tiers: serde_json::Map<String, Value> = Tier::ALL
                        .iter()
                        .map(|tier| {
                            let value = match tiers[*tier as usize] {
                                Ok(ppm) => json!(ppm),
                                Err(cause) => json!(cause.as_str()),
                            };
                            (format!("{tier}_ppm"), value)
                        })
                        .collect();
                    json!({"said": "seen", "sample_at": at.to_string(), "pods": pods, "tiers": tiers})
                }
                Said::Unseen(cause) => json!({"said": "unseen", "cause": cause.as_str()}),
                Said::Free => json!({"said": "free"}),
                Said::Unavailable(reason) => json!({"said": "unavailable", "reason": reason.to_string()}),
            };
            if let (Value::Object(object), Value::Object(said)) = (&mut object, said) {
                object.extend(said);
            }
            object
        });
        let rows = self.rows.iter().map(|row| {
            let owner = row.owner();
            json!({
                "kind": row.kind().as_str(), "ms": row.ms, "pod_uid": owner.map(|o| o.pod.uid.to_string()),
                "tiers": owner.map(|o| Tier::ALL.iter().map(|tier| {
                    let sums = o.tiers[*tier];
                    let unseen: serde_json::Map<String, Value> = Cause::ALL.iter().map(|c| (c.as_str().to_owned(), json!(sums.unobserved_by(*c)))).filter(|(_, v)| v != &json!(0)).collect();
                    (tier.as_str().to_owned(), json!({"utilized_ms": sums.utilized_ms, "stranded_ms": sums.stranded_ms, "unobserved_ms": unseen}))
                }).collect::<serde_json::Map<String, Value>>()),
                "flags": owner.map(|o| o.flags.to_string()),
            })
        });
        json!({
            "cluster": self.cluster, "node": self.node, "device": self.device, "at": self.at.to_string(), "open": self.open,
            "from": self.window.from().to_string(), "to": self.window.to().to_string(),
            "pieces": pieces.collect::<Vec<_>>(), "rows": rows.collect::<Vec<_>>(),
        })
    }
}

fn holding(held: &Held) -> String {
    let pod = &held.pod;
    let team = pod.team.as_deref().unwrap_or("unattributed");
    let mut words = format!(
        "{}/{} (uid {}, team {}): bound {}",
        show::cell(&pod.namespace),
        show::cell(&pod.name),
        show::cell(&pod.uid),
        show::cell(team),
        held.bound
    );
    if held.known_from > held.bound {
        let _ = write!(words, ", device named {} (A16 before)", held.known_from);
    }
    match held.started {
        Some(started) => {
            let _ = write!(words, ", started {started}");
        }
        None => words.push_str(", not seen to start"),
    }
    if let Some(from) = held.terminating_from {
        let _ = write!(words, ", terminating from {from}");
    }
    match (held.cut, held.end) {
        (Some(cut), _) => {
            let _ = write!(words, ", cut {cut} by the next bind of its device (A11)");
        }
        (None, Some(end)) => {
            let _ = write!(words, ", ended {end} (A3)");
        }
        (None, None) => words.push_str(", still held"),
    }
    if held.ids > 1 {
        let _ = write!(words, ", {} ids", held.ids);
    }
    if held.flags != ledger::row::FlagSet::EMPTY {
        let _ = write!(words, " [{}]", held.flags);
    }
    words
}

/// Neighbouring pieces of one owner that are alike: samples with values, or one cause.
struct Run {
    from: Timestamp,
    to: Timestamp,
    owner: String,
    words: String,
}

/// A run as it grows: its samples' (length, value), and what its pieces say alike where they have no value.
type Growing = (Run, Vec<(i64, u32)>, Option<String>);

fn runs(pieces: &[Piece], tier: Tier) -> Vec<Run> {
    let mut runs: Vec<Growing> = Vec::new();
    for piece in pieces {
        let owner =
            piece.pod.as_ref().map_or("(nobody)".to_owned(), |pod| show::cell(&format!("{}/{}", pod.namespace, pod.name)));
        let ms = piece.to.ms() - piece.from.ms();
        let (value, alike) = match &piece.said {
            Said::Seen { tiers, .. } => match tiers[tier as usize] {
                Ok(ppm) => (Some((ms, ppm)), None),
                Err(cause) => (None, Some(format!("unobserved: {cause}"))),
            },
            Said::Unseen(cause) => (None, Some(format!("unobserved: {cause}"))),
            Said::Free => (None, Some("free".into())),
            Said::Unavailable(reason) => (None, Some(format!("unavailable: {}", show::cell(reason)))),
        };
        match runs.last_mut() {
            Some((run, values, last)) if run.owner == owner && run.to == piece.from && *last == alike => {
                run.to = piece.to;
                values.extend(value);
            }
            _ => {
                let run = Run { from: piece.from, to: piece.to, owner, words: String::new() };
                runs.push((run, value.into_iter().collect(), alike));
            }
        }
    }
    let words = |(mut run, values, alike): Growing| {
        run.words = alike.unwrap_or_else(|| {
            let ms: i64 = values.iter().map(|(ms, _)| ms).sum();
            let sum: i128 = values.iter().map(|(ms, ppm)| i128::from(*ms) * i128::from(*ppm)).sum();
            let mean = sum as f64 / ms.max(1) as f64 / 1e4;
            let least = values.iter().map(|(_, ppm)| ppm).min().copied().unwrap_or(0);
            let most = values.iter().map(|(_, ppm)| ppm).max().copied().unwrap_or(0);
            let count = values.len();
            let noun = if count == 1 { "sample" } else { "samples" };
            format!("{count} {noun}, mean {mean:.1} % ({} to {})", reading(Ok(least)), reading(Ok(most)))
        });
        run
    };
    runs.into_iter().map(words).collect()
}

fn reading(reading: Result<u32, Cause>) -> String {
    match reading {
        Ok(ppm) => format!("{:.1} %", f64::from(ppm) / 1e4),
        Err(cause) => format!("not read ({cause})"),
    }
}

/// The time of day to the millisecond.
fn clock(at: Timestamp) -> String {
    let text = at.to_string();
    text.get(11..23).unwrap_or(&text).to_owned()
}
