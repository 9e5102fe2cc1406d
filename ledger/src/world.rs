//! The inputs, checked and laid out by node and device, with holdings clamped and samples made into covers.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroU32,
    sync::Arc,
};

use crate::{
    clamp,
    cover::{self, Cover},
    fraction::Frac,
    hours::HoursError,
    input::{Device, Held, Holding, Ids, Inputs, Pod, Sample, Telemetry, Text},
    row::Place,
    span::{self, Ms},
};

/// One node: nothing in it depends on another.
pub(crate) struct NodeWorld<'a> {
    pub(crate) name: &'a Text,
    /// By device id.
    pub(crate) devices: Vec<DeviceWorld<'a>>,
    /// GPUs that have instances, by id.
    pub(crate) split_gpus: Vec<SplitGpu<'a>>,
    pub(crate) scrapes: Scrapes,
    /// Holdings with a number in place of a device, by (bound, UID).
    pub(crate) counted: Vec<&'a Holding>,
    pub(crate) horizon_ms: i64,
    /// Whether anything is known of what the node has.
    pub(crate) inventory: bool,
}

/// When the node's exporter answered, and when it failed: sorted, each instant once.
#[derive(Default)]
pub(crate) struct Scrapes {
    pub(crate) answers: Vec<i64>,
    pub(crate) failures: Vec<i64>,
}

/// A GPU with MIG instances.
pub(crate) struct SplitGpu<'a> {
    pub(crate) id: &'a Text,
    /// Its own place in `devices`, where it is listed.
    pub(crate) listed: Option<usize>,
    /// Its instances' places in `devices`, by id.
    pub(crate) instances: Vec<usize>,
    /// While any instance is present.
    pub(crate) split: Vec<Ms>,
}

/// One device and all that touches it.
pub(crate) struct DeviceWorld<'a> {
    pub(crate) device: &'a Device,
    pub(crate) place: Arc<Place>,
    pub(crate) replicas: NonZeroU32,
    pub(crate) replicas_inferred: bool,
    /// In the inventory.
    pub(crate) present: Vec<Ms>,
    /// In the inventory and not split into instances.
    pub(crate) usable: Vec<Ms>,
    /// By (begin, reason): the first that is active names the time.
    pub(crate) unavailable: Vec<(Ms, &'a Text)>,
    /// By UID.
    pub(crate) owners: Vec<Owner<'a>>,
    /// Those that hold anything, by (bound, UID).
    pub(crate) holds: Vec<Hold<'a>>,
    /// By time; empty without telemetry.
    pub(crate) covers: Vec<Cover>,
}

/// One pod's claim on one device.
pub(crate) struct Owner<'a> {
    pub(crate) pod: &'a Pod,
    /// When it held any id: known and not cut, whether or not the device was present.
    pub(crate) runs: Vec<Ms>,
}

/// One holding of ids, clamped.
pub(crate) struct Hold<'a> {
    pub(crate) holding: &'a Holding,
    /// Index in `owners`.
    pub(crate) owner: usize,
    pub(crate) ids: u32,
    pub(crate) bound: i64,
    /// Since when the device is known; not before the bind.
    pub(crate) known_from: i64,
    /// First instant after it; the type's end where none is known.
    pub(crate) end: i64,
    /// Where a later bind cut it.
    pub(crate) cut: Option<i64>,
    /// From which instant on its containers have started; the type's end where never.
    pub(crate) started: i64,
    /// From which instant on it is terminating; the type's end where never.
    pub(crate) terminating_from: i64,
}

impl Hold<'_> {
    pub(crate) fn holds_at(&self, at: i64) -> bool {
        self.known_from <= at && at < self.end
    }
}

impl DeviceWorld<'_> {
    /// Milliseconds of one id, as whole GPU milliseconds.
    pub(crate) fn of_ids(&self, id_ms: i64) -> Frac {
        let weight = self.device.weight;
        Frac::new(i128::from(weight.num()) * i128::from(id_ms), i128::from(weight.den()) * i128::from(self.replicas.get()))
    }

    /// Milliseconds of the device, as whole GPU milliseconds.
    pub(crate) fn weighted(&self, ms: i64) -> Frac {
        Frac::new(i128::from(self.device.weight.num()) * i128::from(ms), self.device.weight.den().into())
    }

    /// The pods that held the device at an instant, by index in `owners`.
    pub(crate) fn owners_at(&self, at: i64) -> impl Iterator<Item = usize> {
        self.owners.iter().enumerate().filter(move |(_, owner)| span::holding(&owner.runs, at).is_some()).map(|(i, _)| i)
    }
}

/// The instant of a holding's end, or the end of time.
pub(crate) fn end_of(holding: &Holding) -> i64 {
    holding.end.map_or(i64::MAX, |end| end.ms())
}

/// Lays the inputs out by node, in order of node name.
pub(crate) fn nodes(inputs: &Inputs) -> Result<Vec<NodeWorld<'_>>, HoursError> {
    if inputs.rules.horizon_ms <= 0 {
        return Err(HoursError::BadHorizon { horizon_ms: inputs.rules.horizon_ms });
    }
    let mut devices: Vec<&Device> = inputs.devices.iter().collect();
    devices.sort_by(|a, b| (&a.node, &a.id).cmp(&(&b.node, &b.id)));
    let mut index: HashMap<&str, usize> = HashMap::with_capacity(devices.len());
    for (i, device) in devices.iter().enumerate() {
        if index.insert(&device.id, i).is_some() {
            return Err(HoursError::DuplicateDevice { device: device.id.clone() });
        }
    }
    check_weights(&devices)?;

    let (holdings_of, mut counted) = holdings_by_device(inputs, &index)?;
    let (samples_of, mut scrapes) = samples_by_device(inputs, &devices, &index);
    let mut nodes: Vec<NodeWorld<'_>> = Vec::new();
    for ((device, holdings), samples) in devices.into_iter().zip(holdings_of).zip(samples_of) {
        if nodes.last().is_none_or(|node| *node.name != device.node) {
            nodes.push(NodeWorld {
                name: &device.node,
                devices: Vec::new(),
                split_gpus: Vec::new(),
                scrapes: scrapes.remove(&*device.node).unwrap_or_default(),
                counted: counted.remove(&*device.node).unwrap_or_default(),
                horizon_ms: inputs.rules.horizon_ms,
                inventory: !inputs.without_inventory.contains(&device.node),
            });
        }
        let covers = cover::covers(samples, device.parent.is_some(), &inputs.rules);
        let laid_out = device_world(device, &holdings, covers)?;
        nodes.last_mut().expect("a node was just pushed").devices.push(laid_out);
    }
    for (_, holdings) in counted {
        // A node without devices: what is bound there by number finds nothing to hold.
        let name = &holdings.first().expect("a node is listed with a holding").node;
        nodes.push(NodeWorld {
            name,
            devices: Vec::new(),
            split_gpus: Vec::new(),
            scrapes: Scrapes::default(),
            counted: holdings,
            horizon_ms: inputs.rules.horizon_ms,
            inventory: !inputs.without_inventory.contains(name),
        });
    }
    nodes.sort_by_key(|node| node.name);
    for node in &mut nodes {
        split(node);
    }
    Ok(nodes)
}

/// The instances of one GPU never weigh more than the GPU at any instant.
fn check_weights(devices: &[&Device]) -> Result<(), HoursError> {
    let mut edges: BTreeMap<&str, Vec<(i64, bool, Frac)>> = BTreeMap::new();
    for device in devices {
        let gpu = device.parent.as_ref().unwrap_or(&device.id);
        let weight = Frac::from(device.weight);
        if device.weight.num() > device.weight.den() {
            return Err(HoursError::WeightsExceedParent { gpu: gpu.clone() });
        }
        if device.parent.is_some() {
            for (from, to) in present(device) {
                edges.entry(gpu).or_default().extend([(from, true, weight), (to, false, weight)]);
            }
        }
    }
    for (gpu, mut edges) in edges {
        edges.sort_by_key(|(at, begins, _)| (*at, *begins)); // ends first
        let mut sum = Frac::ZERO;
        for (_, begins, weight) in edges {
            sum = if begins { sum.plus(weight)? } else { sum.minus(weight)? };
            if sum.above(1) {
                return Err(HoursError::WeightsExceedParent { gpu: gpu.into() });
            }
        }
    }
    Ok(())
}

fn present(device: &Device) -> Vec<Ms> {
    span::union(device.present.iter().map(|span| (span.from.ms(), span.to.ms())))
}

type ByNode<'a, T> = BTreeMap<&'a str, T>;
/// Holdings of one device, or by number of one node, by (bound, UID).
type HoldingsOf<'a> = Vec<&'a Holding>;

/// Holdings of each device by (bound, UID), and those by number of each node likewise; exact repeats once.
fn holdings_by_device<'a>(
    inputs: &'a Inputs,
    index: &HashMap<&str, usize>,
) -> Result<(Vec<HoldingsOf<'a>>, ByNode<'a, HoldingsOf<'a>>), HoursError> {
    let mut sorted: Vec<&Holding> = inputs.holdings.iter().collect();
    sorted.sort_by(|a, b| (a.bound, &a.pod.uid, a).cmp(&(b.bound, &b.pod.uid, b)));
    sorted.dedup();
    let mut of_device = vec![Vec::new(); index.len()];
    let mut counted: ByNode<'a, HoldingsOf<'a>> = BTreeMap::new();
    for holding in sorted {
        match &holding.held {
            Held::Device { device, .. } => {
                let known = index.get(&**device);
                let at = *known
                    .ok_or_else(|| HoursError::UnknownDevice { device: device.clone(), pod_uid: holding.pod.uid.clone() })?;
                of_device[at].push(holding);
            }
            Held::Count { .. } => counted.entry(&holding.node).or_default().push(holding),
        }
    }
    Ok((of_device, counted))
}

/// Samples of each device, and when each node answered and failed. A device without telemetry is no answer.
fn samples_by_device<'a>(
    inputs: &'a Inputs,
    devices: &[&'a Device],
    index: &HashMap<&str, usize>,
) -> (Vec<Vec<&'a Sample>>, ByNode<'a, Scrapes>) {
    let mut of_device: Vec<Vec<&'a Sample>> = vec![Vec::new(); devices.len()];
    let mut scrapes: ByNode<'a, Scrapes> = BTreeMap::new();
    let mut last: Option<(&Text, Option<usize>)> = None;
    for sample in &inputs.samples {
        let at = match last {
            Some((device, at)) if Arc::ptr_eq(device, &sample.device) => at,
            _ => index.get(&*sample.device).copied(),
        };
        last = Some((&sample.device, at));
        if let Some(at) = at.filter(|at| devices[*at].telemetry == Telemetry::Present) {
            of_device[at].push(sample);
        }
    }
    for (device, samples) in devices.iter().zip(&of_device) {
        if !samples.is_empty() {
            let node = scrapes.entry(&device.node).or_default();
            node.answers.extend(samples.iter().map(|sample| sample.at.ms()));
        }
    }
    for failed in &inputs.failed_scrapes {
        scrapes.entry(&failed.node).or_default().failures.push(failed.at.ms());
    }
    for node in scrapes.values_mut() {
        for instants in [&mut node.answers, &mut node.failures] {
            instants.sort_unstable();
            instants.dedup();
        }
    }
    (of_device, scrapes)
}

fn device_world<'a>(device: &'a Device, holdings: &[&'a Holding], covers: Vec<Cover>) -> Result<DeviceWorld<'a>, HoursError> {
    let ids_of = |holding: &'a Holding| match &holding.held {
        Held::Device { ids, known_from, .. } => Some((ids, *known_from)),
        Held::Count { .. } => None,
    };
    let holdings: Vec<&'a Holding> = holdings.iter().copied().filter(|h| h.bound.ms() < end_of(h)).collect();
    let mut seen: Vec<u32> = Vec::new();
    for holding in &holdings {
        if let Some((Ids::Named(named), _)) = ids_of(holding) {
            seen.extend(named);
        }
    }
    seen.sort_unstable();
    seen.dedup();
    let seen = u32::try_from(seen.len()).ok().and_then(NonZeroU32::new);
    let replicas = seen.map_or(device.replicas, |seen| seen.max(device.replicas));

    let mut owners: Vec<Owner<'a>> = holdings.iter().map(|h| Owner { pod: &h.pod, runs: Vec::new() }).collect();
    owners.sort_by(|a, b| a.pod.uid.cmp(&b.pod.uid)); // stable: labels of the first bound
    owners.dedup_by(|a, b| a.pod.uid == b.pod.uid);
    let mut holds = Vec::with_capacity(holdings.len());
    for holding in &holdings {
        let Some((ids, known_from)) = ids_of(holding) else { continue };
        let ids = ids.count();
        if ids > replicas.get() {
            return Err(HoursError::IdsExceedReplicas {
                device: device.id.clone(),
                pod_uid: holding.pod.uid.clone(),
                ids,
                replicas: replicas.get(),
            });
        }
        let owner =
            owners.binary_search_by(|o| o.pod.uid.cmp(&holding.pod.uid)).expect("every holding's pod is among the owners");
        let bound = holding.bound.ms();
        holds.push(Hold {
            holding,
            owner,
            ids,
            bound,
            known_from: known_from.map_or(bound, |known| known.ms().max(bound)),
            end: end_of(holding),
            cut: None,
            started: holding.started.map_or(i64::MAX, |at| at.ms()),
            terminating_from: holding.terminating_from.map_or(i64::MAX, |at| at.ms()),
        });
    }
    let claims: Vec<_> = holds.iter().map(|h| clamp::Claim { bound: h.bound, end: h.end, ids: h.ids }).collect();
    for (hold, cut) in holds.iter_mut().zip(clamp::cuts(&claims, replicas.get())) {
        hold.end = cut.unwrap_or(hold.end);
        hold.cut = cut;
    }
    for hold in &holds {
        owners[hold.owner].runs.push((hold.known_from, hold.end));
    }
    for owner in &mut owners {
        owner.runs = span::union(owner.runs.drain(..));
    }

    let present = present(device);
    let mut unavailable: Vec<(Ms, &Text)> = device
        .unavailable
        .iter()
        .map(|u| ((u.span.from.ms(), u.span.to.ms()), &u.reason))
        .filter(|((from, to), _)| from < to)
        .collect();
    unavailable.sort_by_key(|((from, _), reason)| (*from, *reason));
    Ok(DeviceWorld {
        device,
        place: place(device),
        replicas,
        replicas_inferred: replicas > device.replicas,
        usable: present.clone(),
        present,
        unavailable,
        owners,
        holds,
        covers,
    })
}

fn place(device: &Device) -> Arc<Place> {
    let Device { id, node, parent, profile, product, purchase_option, reservation, region, provider, .. } = device.clone();
    Arc::new(Place { node, device: Some(id), parent, profile, product, region, provider, purchase_option, reservation })
}

/// Finds the GPUs with instances; while any is present, the GPU itself is not there to be held.
fn split(node: &mut NodeWorld<'_>) {
    let mut gpus: BTreeMap<&Text, Vec<usize>> = BTreeMap::new();
    for (i, world) in node.devices.iter().enumerate() {
        if let Some(parent) = &world.device.parent {
            gpus.entry(parent).or_default().push(i);
        }
    }
    for (id, instances) in gpus {
        let split = span::union(instances.iter().flat_map(|i| node.devices[*i].present.clone()));
        let listed = node.devices.binary_search_by(|world| world.device.id.cmp(id)).ok();
        if let Some(listed) = listed {
            node.devices[listed].usable = span::subtract(&node.devices[listed].present, &split);
        }
        node.split_gpus.push(SplitGpu { id, listed, instances, split });
    }
}
