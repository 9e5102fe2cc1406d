//! `nodes`: which devices there were, and when. What the inventory does not list, samples and holdings may name.
//!
//! - A device is present where its own rows say so; one without rows, where its node's rows say so; where the node has
//!   none either, always.
//! - A node that counts its GPUs and lists none has as many as it counts; those that nobody named are `unnamed:node:n`.
//! - An instance that no row weighs is weighed by its profile.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    num::NonZeroU32,
};

use arrow::array::RecordBatch;
use schemas::{Timestamp, status::InventoryKind};

use super::{BatchError, Facts, Shared, columns::Columns, samples::Seen};
use crate::{
    fraction::Frac,
    input::{Device, Held, Holding, Ratio, Span, Telemetry, Text, Unavailable},
    span,
};

/// An interval's identity: device, reason and begin.
type Key = (Option<Text>, Option<Text>, Timestamp);

/// What one node's inventory rows say.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    node: BTreeMap<Key, Interval>,
    devices: BTreeMap<Key, Interval>,
    unavailable: BTreeMap<Key, Interval>,
}

/// One interval as far as its rows go, and what its last observed state says.
#[derive(Debug)]
struct Interval {
    begin: Timestamp,
    /// Earliest begin of its rows.
    known_from: Timestamp,
    /// Latest end of its rows: how far it is known to last while it has no end.
    known_to: Timestamp,
    observed: (Timestamp, i64),
    end: Option<Timestamp>,
    /// Who told the last state.
    source: Text,
    labels: Labels,
}

/// What rows say of a node or device.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    parent: Option<Text>,
    profile: Option<Text>,
    product: Option<Text>,
    region: Option<Text>,
    provider: Option<Text>,
    purchase_option: Option<Text>,
    reservation: Option<Text>,
    gpus: Option<u32>,
    weight: Option<Ratio>,
    replicas: Option<u32>,
    no_telemetry: bool,
}

impl Interval {
    /// From its own begin, which may lie before the rows: who began first names unavailable time.
    fn span(&self) -> Span {
        Span { from: self.begin, to: self.end.unwrap_or(self.known_to) }
    }
}

impl Inventory {
    /// Whether no row says what the node has.
    pub(super) fn is_empty(&self) -> bool {
        self.node.is_empty() && self.devices.is_empty()
    }

    /// What the last state of each source told as lasting lasts until `at`, as it will when the hour closes: a state lists all
    /// that the source knows, so what an earlier one had and it has not is over.
    pub(super) fn lasting_until(&mut self, at: Timestamp) {
        let mut last: BTreeMap<Text, (Timestamp, i64)> = BTreeMap::new();
        for interval in [&self.node, &self.devices, &self.unavailable].into_iter().flat_map(BTreeMap::values) {
            let of_source = last.entry(interval.source.clone()).or_insert(interval.observed);
            *of_source = interval.observed.max(*of_source);
        }
        for interval in [&mut self.node, &mut self.devices, &mut self.unavailable].into_iter().flat_map(BTreeMap::values_mut) {
            let newest = last.get(&interval.source) == Some(&interval.observed);
            if newest && interval.end.is_none() {
                interval.known_to = interval.known_to.max(at);
            }
        }
    }

    /// What one device asked by number weighs where nobody says it: a whole GPU, or one replica of a shared one.
    pub(super) fn unit(&self) -> Ratio {
        let of_devices = || self.devices.values().filter_map(|device| device.labels.replicas).max();
        let replicas = latest(self.node.values()).replicas.or_else(of_devices);
        replicas.and_then(|replicas| Ratio::new(1, replicas)).unwrap_or(Ratio::ONE)
    }
}

pub(super) fn add(facts: &mut Facts, batch: &RecordBatch) -> Result<(), BatchError> {
    let columns = Columns::of("nodes", batch);
    let text = |name| columns.texts(name);
    let (clusters, nodes, kinds, devices, reasons) =
        (text("cluster")?, text("node")?, text("kind")?, text("device")?, text("reason")?);
    let (parents, profiles, products, regions) = (text("parent")?, text("profile")?, text("product")?, text("region")?);
    let (providers, options, telemetry) = (text("provider")?, text("purchase_option")?, text("telemetry")?);
    let reservations = text("reservation")?;
    let (gpus, replicas) = (columns.ints("capacity_gpus")?, columns.ints("replicas")?);
    let (weight_nums, weight_dens) = (columns.ints("weight_num")?, columns.ints("weight_den")?);
    let (from, to) = (columns.times("from_at")?, columns.times("to_at")?);
    let (begins, ends) = (columns.times("interval_from")?, columns.times("interval_to")?);
    let (observed_at, revisions, sources) = (columns.times("observed_at")?, columns.ints("revision")?, columns.texts("source")?);
    let (mut cluster, mut node, mut source) = (Shared::default(), Shared::default(), Shared::default());
    for row in 0..batch.num_rows() {
        let inventory = &mut facts.node(&cluster.of(clusters.must(row)?), &node.of(nodes.must(row)?)).inventory;
        let given = |texts: &super::columns::Texts| texts.get(row).filter(|text| !text.is_empty()).map(Text::from);
        let intervals = match InventoryKind::from_text(kinds.must(row)?) {
            Some(InventoryKind::Node) => &mut inventory.node,
            Some(InventoryKind::Device) => &mut inventory.devices,
            Some(InventoryKind::Unavailable) => &mut inventory.unavailable,
            None => continue, // of a later version
        };
        let labels = Labels {
            parent: given(&parents),
            profile: given(&profiles),
            product: given(&products),
            region: given(&regions),
            provider: given(&providers),
            purchase_option: given(&options),
            reservation: given(&reservations),
            gpus: gpus.count(row),
            weight: weight_nums.count(row).zip(weight_dens.count(row)).and_then(|(num, den)| Ratio::new(num, den)),
            replicas: replicas.count(row),
            no_telemetry: telemetry.get(row) == Some("none"),
        };
        let (begin, known_to) = (begins.must(row)?, to.must(row)?);
        let known_from = from.get(row).unwrap_or(begin);
        let teller = source.of(sources.get(row).unwrap_or(""));
        let state = ((observed_at.must(row)?, revisions.get(row).unwrap_or(0)), ends.get(row), labels);
        match intervals.entry((given(&devices), given(&reasons), begin)) {
            Entry::Vacant(free) => {
                let (observed, end, labels) = state;
                free.insert(Interval { begin, known_from, known_to, observed, end, source: teller, labels });
            }
            Entry::Occupied(known) => {
                let known = known.into_mut();
                known.known_from = known.known_from.min(known_from);
                known.known_to = known.known_to.max(known_to);
                if (known.observed, known.end, &known.labels) < (state.0, state.1, &state.2) {
                    (known.observed, known.end, known.labels) = state;
                    known.source = teller;
                }
            }
        }
    }
    Ok(())
}

/// The node's devices, each once. Holdings of devices that cannot be weighed are taken out; their ids come back.
pub(super) fn devices(
    node: &Text,
    inventory: &Inventory,
    seen: &BTreeMap<Text, Seen>,
    horizon_ms: i64,
    holdings: &mut Vec<Holding>,
) -> (Vec<Device>, Vec<Text>) {
    let of_node = latest(inventory.node.values());
    let node_spans = joined(inventory.node.values().map(Interval::span));
    let default_spans = if inventory.node.is_empty() { vec![Span::ALWAYS] } else { node_spans };

    let mut listed: BTreeMap<Text, Vec<&Interval>> = BTreeMap::new();
    for ((device, ..), interval) in &inventory.devices {
        if let Some(device) = device {
            listed.entry(device.clone()).or_default().push(interval);
        }
    }
    let mut devices: BTreeMap<Text, Device> = BTreeMap::new();
    let mut unweighed = Vec::new();
    for (id, intervals) in &listed {
        let present = joined(intervals.iter().map(|interval| interval.span()));
        add_device(node, id, latest(intervals.iter().copied()), &of_node, present, &mut devices, &mut unweighed);
    }
    for (id, seen) in seen.iter().filter(|(id, _)| !listed.contains_key(*id)) {
        let labels = Labels {
            parent: seen.parent.clone(),
            profile: seen.profile.clone(),
            product: seen.product.clone(),
            ..Labels::default()
        };
        add_device(node, id, labels, &of_node, default_spans.clone(), &mut devices, &mut unweighed);
    }
    // What was over before the inventory's rows begin names no device that it has not: a board that was replaced is gone, though
    // a pod of a name that it held goes on elsewhere.
    let told_from = inventory.node.values().map(|interval| interval.known_from).min();
    let over = |holding: &Holding| told_from.zip(holding.end).is_some_and(|(from, end)| end <= from);
    for holding in holdings.iter().filter(|holding| !over(holding)) {
        let Held::Device { device: id, .. } = &holding.held else { continue };
        if !devices.contains_key(id) && !unweighed.contains(id) {
            let parent = id.rsplit_once('/').map(|(gpu, _)| gpu.into());
            let labels = Labels { parent, ..Labels::default() };
            add_device(node, id, labels, &of_node, default_spans.clone(), &mut devices, &mut unweighed);
        }
    }
    fit_instances(&mut devices, seen, &listed, horizon_ms);
    if listed.is_empty() {
        add_unnamed(node, &of_node, &default_spans, &mut devices);
    }
    add_unavailable(inventory, &mut devices);

    holdings.retain(|holding| match &holding.held {
        Held::Device { device, ids, .. } => match devices.get_mut(device) {
            Some(device) => {
                // Replicas are at least the ids that one holder has.
                device.replicas = NonZeroU32::new(ids.count()).map_or(device.replicas, |ids| ids.max(device.replicas));
                true
            }
            None => false,
        },
        Held::Count { .. } => true,
    });
    unweighed.sort();
    (devices.into_values().collect(), unweighed)
}

/// The labels observed last.
fn latest<'a>(intervals: impl Iterator<Item = &'a Interval>) -> Labels {
    intervals.max_by_key(|interval| (interval.observed, &interval.labels)).map_or(Labels::default(), |last| last.labels.clone())
}

fn joined(spans: impl Iterator<Item = Span>) -> Vec<Span> {
    let union = span::union(spans.map(|span| (span.from.ms(), span.to.ms())));
    union.into_iter().map(|(from, to)| Span { from: Timestamp::from_ms(from), to: Timestamp::from_ms(to) }).collect()
}

fn add_device(
    node: &Text,
    id: &Text,
    own: Labels,
    of_node: &Labels,
    present: Vec<Span>,
    devices: &mut BTreeMap<Text, Device>,
    unweighed: &mut Vec<Text>,
) {
    let product = own.product.or_else(|| of_node.product.clone());
    let weight = match (own.weight, &own.parent) {
        (Some(weight), _) => Some(weight),
        (None, None) => Some(Ratio::ONE),
        (None, Some(_)) => own.profile.as_deref().and_then(|profile| weight_of(profile, product.as_deref())),
    };
    let Some(weight) = weight else {
        unweighed.push(id.clone());
        return;
    };
    let replicas = own.replicas.or(of_node.replicas).and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
    let device = Device {
        parent: own.parent,
        profile: own.profile,
        product,
        purchase_option: own.purchase_option.or_else(|| of_node.purchase_option.clone()),
        reservation: own.reservation.or_else(|| of_node.reservation.clone()),
        region: own.region.or_else(|| of_node.region.clone()),
        provider: own.provider.or_else(|| of_node.provider.clone()),
        weight,
        replicas,
        telemetry: if own.no_telemetry || of_node.no_telemetry { Telemetry::None } else { Telemetry::Present },
        present,
        ..Device::new(id.clone(), node.clone())
    };
    devices.insert(id.clone(), device);
}

/// The compute share of an instance by its profile: `3g.40gb` is three slices of seven; an A30 has four.
fn weight_of(profile: &str, product: Option<&str>) -> Option<Ratio> {
    let slices = profile.split(['.', ' ']).find_map(|part| part.strip_suffix('g')?.parse().ok())?;
    let of = if product.is_some_and(|product| product.contains("A30")) { 4 } else { 7 };
    Ratio::new(slices, of).filter(|weight| weight.num() <= weight.den())
}

/// A GPU that was split anew shows more instances than it ever had at once. Those that the inventory does not list are
/// present from their first sample to one horizon past the last, or to the first sample of one that came later.
fn fit_instances(
    devices: &mut BTreeMap<Text, Device>,
    seen: &BTreeMap<Text, Seen>,
    listed: &BTreeMap<Text, Vec<&Interval>>,
    horizon_ms: i64,
) {
    let mut sums: BTreeMap<Text, Frac> = BTreeMap::new();
    for device in devices.values() {
        if let Some(gpu) = &device.parent {
            let sum = sums.entry(gpu.clone()).or_insert(Frac::ZERO);
            *sum = sum.plus(device.weight.into()).unwrap_or(*sum); // too fine a sum is refused where hours are computed
        }
    }
    for (gpu, _) in sums.into_iter().filter(|(_, sum)| sum.above(1)) {
        let siblings: Vec<&Seen> = seen.values().filter(|s| s.parent.as_ref() == Some(&gpu)).collect();
        for device in devices.values_mut().filter(|d| d.parent.as_ref() == Some(&gpu) && !listed.contains_key(&d.id)) {
            let Some(own) = seen.get(&device.id) else { continue };
            let later = siblings.iter().map(|s| s.first).filter(|first| *first > own.last).min();
            let to = own.last.plus_ms(horizon_ms);
            device.present = vec![Span { from: own.first, to: later.map_or(to, |later| later.min(to)) }];
        }
    }
}

/// GPUs that the node counts and nobody named.
fn add_unnamed(node: &Text, of_node: &Labels, present: &[Span], devices: &mut BTreeMap<Text, Device>) {
    let Some(counted) = of_node.gpus else { return };
    let gpus = counted.div_ceil(of_node.replicas.unwrap_or(1).max(1));
    let known: std::collections::BTreeSet<&Text> = devices.values().map(|d| d.parent.as_ref().unwrap_or(&d.id)).collect();
    let missing = usize::try_from(gpus).unwrap_or(0).saturating_sub(known.len());
    for n in 1..=missing {
        let id: Text = format!("unnamed:{node}:{n}").into();
        add_device(node, &id, Labels::default(), of_node, present.to_vec(), devices, &mut Vec::new());
    }
}

fn add_unavailable(inventory: &Inventory, devices: &mut BTreeMap<Text, Device>) {
    for ((id, reason, _), interval) in &inventory.unavailable {
        let reason: Text = reason.clone().unwrap_or_else(|| "unavailable".into());
        let hit = devices
            .values_mut()
            .filter(|device| id.as_ref().is_none_or(|id| *id == device.id || Some(id) == device.parent.as_ref()));
        for device in hit {
            device.unavailable.push(Unavailable { span: interval.span(), reason: reason.clone() });
        }
    }
}
