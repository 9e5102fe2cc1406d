//! `gpu_samples` and `scrapes`: readings, failed rounds, the horizon, and the node's clock put right.

use std::collections::{BTreeMap, HashMap};

use arrow::array::RecordBatch;
use schemas::{
    SKEW_LIMIT_MS, Timestamp,
    catalogue::{self, id},
    status::{JoinReason, ReadingFault, ScrapeStatus},
};

use super::{
    BatchError, Facts, Shared,
    columns::{Columns, Floats, Ints},
};
use crate::{
    input::{FailedScrape, Readings, Rules, Sample, Text},
    reading::Reading,
    row::{Flag, FlagSet},
};

/// What one node's rounds brought.
#[derive(Debug, Default)]
pub(super) struct Samples {
    samples: Vec<(Sample, Text)>,
    failed: Vec<(Timestamp, Text)>,
    /// Skew of the rounds in which it was too much, by (source, at).
    skewed: HashMap<(Text, Timestamp), i64>,
    horizon_ms: Option<i64>,
    seen: BTreeMap<Text, Seen>,
    /// Last round in which the kubelet told who holds what, the node's clock put right.
    listed: Option<Timestamp>,
}

/// A device as its samples show it.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) parent: Option<Text>,
    pub(super) profile: Option<Text>,
    pub(super) product: Option<Text>,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// Samples with the node's clock put right, and the devices that they show.
pub(super) struct Settled {
    pub(super) samples: Vec<Sample>,
    pub(super) seen: BTreeMap<Text, Seen>,
    /// The last round in which the kubelet told who holds what.
    pub(super) listed: Option<Timestamp>,
}

impl Samples {
    pub(super) fn settle(self, node: &Text) -> (Rules, Settled, Vec<FailedScrape>) {
        let Self { samples, failed, skewed, horizon_ms, seen, listed } = self;
        let right = |at: Timestamp, source: &Text| match skewed.get(&(source.clone(), at)) {
            Some(skew) => (at.plus_ms(skew.saturating_neg()), true),
            None => (at, false),
        };
        let corrected = |(sample, source): (Sample, Text)| {
            if skewed.is_empty() {
                return sample;
            }
            let (at, moved) = right(sample.at, &source);
            Sample { at, flags: sample.flags.with(Flag::SkewCorrected, moved), ..sample }
        };
        let samples = samples.into_iter().map(corrected).collect();
        let failed = failed.into_iter().map(|(at, source)| FailedScrape { node: node.clone(), at: right(at, &source).0 });
        let default = Rules::default();
        let rules = Rules { horizon_ms: horizon_ms.unwrap_or(default.horizon_ms), ..default };
        (rules, Settled { samples, seen, listed }, failed.collect())
    }
}

/// The fields that the ledger reads, as columns.
struct Fields {
    gpu_util: Ints,
    ratios: [Floats; 4],
    energy: Ints,
    fb_used: Ints,
}

const RATIOS: [u16; 4] = [id::GR_ENGINE_ACTIVE, id::SM_ACTIVE, id::PIPE_TENSOR_ACTIVE, id::DRAM_ACTIVE];

impl Fields {
    fn of(columns: &Columns<'_>) -> Result<Self, BatchError> {
        let name = |id: u16| {
            catalogue::by_id(id).and_then(|field| field.column.as_deref()).expect("the catalogue has a column for what we read")
        };
        let [gr, sm, tensor, dram] = RATIOS.map(|id| columns.floats(name(id)));
        Ok(Self {
            gpu_util: columns.ints(name(id::GPU_UTIL))?,
            ratios: [gr?, sm?, tensor?, dram?],
            energy: columns.ints(name(id::TOTAL_ENERGY))?,
            fb_used: columns.ints(name(id::FB_USED))?,
        })
    }

    fn read(&self, row: usize, on_instance: bool, faults: Option<&str>) -> Readings {
        let fault = |id: u16, stored: Option<Reading>| match faults {
            None => stored.unwrap_or_default(),
            Some(faults) => with_faults(id, stored, faults),
        };
        let ratio = |i: usize| fault(RATIOS[i], self.ratios[i].get(row).map(|stored| Reading::of_ratio(stored, on_instance)));
        Readings {
            gpu_util: fault(id::GPU_UTIL, self.gpu_util.get(row).map(Reading::of_percent)),
            gr_active: ratio(0),
            sm_active: ratio(1),
            tensor_active: ratio(2),
            dram_active: ratio(3),
            energy_mj: self.energy.get(row),
            fb_used_mib: self.fb_used.get(row),
        }
    }
}

/// A stored reading with what `faults` (`id:reason,...`) says of its field.
fn with_faults(id: u16, stored: Option<Reading>, faults: &str) -> Reading {
    let mut reading = stored.unwrap_or_default();
    for fault in faults.split(',') {
        let Some((field, reason)) = fault.split_once(':') else { continue };
        if field.parse() != Ok(id) {
            continue;
        }
        reading = match (ReadingFault::from_text(reason), stored) {
            (Some(ReadingFault::Conflict), Some(_)) => reading.in_conflict(),
            (Some(ReadingFault::Sentinel), None) => Reading::Sentinel,
            (Some(ReadingFault::OutOfRange), None) => Reading::OutOfRange,
            // What was clipped is stored raw, and clipped where it is read; an invalid value beside a valid one lost.
            (Some(_) | None, _) => reading,
        };
    }
    reading
}

pub(super) fn add_samples(facts: &mut Facts, batch: &RecordBatch) -> Result<(), BatchError> {
    let columns = Columns::of("gpu_samples", batch);
    let (clusters, nodes, devices) = (columns.texts("cluster")?, columns.texts("node")?, columns.texts("device")?);
    let (sources, times) = (columns.texts("source")?, columns.times("at")?);
    let (parents, profiles, products) = (columns.texts("parent")?, columns.texts("profile")?, columns.texts("product")?);
    let (owners, faults) = (columns.texts("owner_source")?, columns.texts("faults")?);
    let fields = Fields::of(&columns)?;
    let (mut cluster, mut node, mut device, mut source) =
        (Shared::default(), Shared::default(), Shared::default(), Shared::default());
    let mut row = 0;
    while row < batch.num_rows() {
        // Rows are sorted by node and device: one run of a device at a time.
        let (this_cluster, this_node) = (cluster.of(clusters.must(row)?), node.of(nodes.must(row)?));
        let this_device = device.of(devices.must(row)?);
        let samples = &mut facts.node(&this_cluster, &this_node).samples;
        let begin = row;
        let (mut first, mut last) = (times.must(row)?, times.must(row)?);
        let on_instance = parents.get(row).is_some();
        while row < batch.num_rows()
            && *devices.must(row)? == *this_device
            && *nodes.must(row)? == *this_node
            && *clusters.must(row)? == *this_cluster
        {
            let at = times.must(row)?;
            (first, last) = (first.min(at), last.max(at));
            let flags = FlagSet::EMPTY.with(Flag::FromLabels, owners.get(row) == Some("from_labels"));
            let readings = fields.read(row, on_instance, faults.get(row));
            samples.samples.push((Sample { device: this_device.clone(), at, readings, flags }, source.of(sources.must(row)?)));
            row += 1;
        }
        let text = |texts: &super::columns::Texts| texts.get(begin).filter(|text| !text.is_empty()).map(Text::from);
        let seen = Seen { parent: text(&parents), profile: text(&profiles), product: text(&products), first, last };
        samples.seen.entry(this_device).and_modify(|known| *known = known.clone().with(&seen)).or_insert(seen);
    }
    Ok(())
}

impl Seen {
    /// The same whichever came first: labels by order of the texts, for a device has one of each.
    fn with(self, other: &Self) -> Self {
        Self {
            parent: self.parent.max(other.parent.clone()),
            profile: self.profile.max(other.profile.clone()),
            product: self.product.max(other.product.clone()),
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }
}

pub(super) fn add_scrapes(facts: &mut Facts, batch: &RecordBatch) -> Result<(), BatchError> {
    let columns = Columns::of("scrapes", batch);
    let (clusters, nodes, sources) = (columns.texts("cluster")?, columns.texts("node")?, columns.texts("source")?);
    let (times, statuses, reasons) = (columns.times("at")?, columns.texts("status")?, columns.texts("join_reason")?);
    let (intervals, collects, skews) =
        (columns.ints("interval_ms")?, columns.ints("collect_interval_ms")?, columns.ints("skew_ms")?);
    let (mut cluster, mut node, mut source) = (Shared::default(), Shared::default(), Shared::default());
    for row in 0..batch.num_rows() {
        let samples = &mut facts.node(&cluster.of(clusters.must(row)?), &node.of(nodes.must(row)?)).samples;
        let (at, source) = (times.must(row)?, source.of(sources.must(row)?));
        if let Some(interval) = intervals.count(row).map(i64::from) {
            let known = interval + collects.count(row).map_or(0, i64::from);
            let horizon = known.max(interval * 5 / 2);
            samples.horizon_ms = samples.horizon_ms.max(Some(horizon));
        }
        // A note about the agent is no round, and where the kubelet gave no answer the round says so.
        let status = ScrapeStatus::from_text(statuses.must(row)?);
        let silent = reasons.get(row).and_then(JoinReason::from_text).is_some_and(JoinReason::unanswered);
        if status != Some(ScrapeStatus::Restarted) && !silent {
            samples.listed = samples.listed.max(Some(at.without_skew(skews.get(row))));
        }
        if let Some(skew) = skews.get(row).filter(|skew| skew.saturating_abs() > SKEW_LIMIT_MS) {
            samples.skewed.insert((source.clone(), at), skew);
        }
        if status.is_some_and(ScrapeStatus::failed) {
            samples.failed.push((at, source));
        }
    }
    Ok(())
}
