//! What an agent makes of one node's page and its kubelet's answer: the message of a round, device by device.
//!
//! The readings do not go through text here; what the text would have been read as is asked of the catalogue.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    rc::Rc,
};

use attribution::{
    Held, Known, NodeGpu, ResourceNames,
    holders::{self, NodeInstance},
    ids::{Target, shape},
    podres::v1::ListPodResourcesResponse,
};
use exporter::{Collectors, Identity, Size, render::HostnameLabel};
use schemas::{
    Timestamp,
    labels::{Meaning, meaning},
    proto::{DeviceSample, Holder, ScrapeRound, Value},
    status::{JoinReason, ScrapeStatus},
};

use super::{Agents, Dating, sheet::Sheet};
use crate::{
    plan::{DeviceRef, NodePlan, Plan},
    podres, serve,
    spec::NoPage,
    state::Walk,
};

/// What a kubelet answers for a time: who holds which device.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Devices that somebody holds.
    pub held: Vec<Held>,
    /// Holders as a round carries them, by device.
    holders: BTreeMap<String, (Vec<Holder>, bool)>,
    /// Ids that no device answers to.
    unmatched: Vec<String>,
    reason: Option<JoinReason>,
}

impl Listing {
    /// Whether anybody holds a device.
    pub fn holds(&self, device: &str) -> bool {
        self.holders.contains_key(device)
    }
}

/// The kubelet's answers of one node; an answer is good until the next change.
pub(super) struct Listings<'a> {
    plan: &'a Plan,
    node: usize,
    names: ResourceNames,
    gpus: BTreeMap<String, NodeGpu>,
    /// Instants at which the answer may change, in order.
    pub changes: Vec<i64>,
    now: Option<(i64, i64, Rc<Listing>)>,
}

impl<'a> Listings<'a> {
    /// Those in `times`: of what is before or after, nothing is to be asked.
    pub fn new(plan: &'a Plan, node: usize, times: Range<i64>) -> Self {
        let NodePlan { devices, spells, .. } = &plan.nodes()[node];
        let held = devices.iter().flat_map(|device| &device.held).flat_map(|held| [held.named, held.until]);
        // What changes while a node is silent is heard of after it.
        let silence = spells.iter().filter(|spell| spell.silent()).flat_map(|spell| [spell.from, spell.to]);
        let mut changes: Vec<i64> = held.chain(silence).filter(|change| times.contains(change)).collect();
        changes.sort_unstable();
        changes.dedup();
        let mut gpus: BTreeMap<String, NodeGpu> = BTreeMap::new();
        // No page shows a product that nobody reads.
        let shown = devices.iter().filter(|_| plan.nodes()[node].has_telemetry());
        for identity in shown.map(|device| &device.identity) {
            let gpu = gpus.entry(identity.uuid.clone()).or_insert_with(|| NodeGpu {
                index: identity.gpu,
                minor: Some(identity.gpu),
                uuid: identity.uuid.clone(),
                instances: Vec::new(),
            });
            if let Some(instance) = &identity.instance {
                gpu.instances.push(NodeInstance { uuid: None, gi: instance.id, ci: None, profile: instance.profile.clone() });
            }
        }
        Self { plan, node, names: ResourceNames::default(), gpus, changes, now: None }
    }

    /// The answer at `at`.
    pub fn at(&mut self, at: Timestamp) -> Rc<Listing> {
        if let Some((from, to, listing)) = &self.now
            && (*from..*to).contains(&at.ms())
        {
            return listing.clone();
        }
        let next = self.changes.partition_point(|change| *change <= at.ms());
        let from = next.checked_sub(1).map_or(i64::MIN, |last| self.changes[last]);
        let to = self.changes.get(next).copied().unwrap_or(i64::MAX);
        let listing = Rc::new(self.resolve(&podres::list(self.plan, self.node, at)));
        self.now = Some((from, to, listing.clone()));
        listing
    }

    fn resolve(&self, list: &ListPodResourcesResponse) -> Listing {
        let node = Some(self.plan.nodes()[self.node].name.to_string());
        let known = Known { node, gpus: self.gpus_with_listed(list), ..Known::default() };
        let found = holders::holders(list, &known, &self.names);
        let unmatched: BTreeSet<&str> = found.unmatched.iter().map(|unmatched| unmatched.id.as_str()).collect();
        let mut listing = Listing { unmatched: unmatched.into_iter().map(str::to_owned).collect(), ..Listing::default() };
        if found.held.is_empty() && !listing.unmatched.is_empty() {
            listing.reason = found.unmatched.first().map(|unmatched| unmatched.reason);
        }
        for held in &found.held {
            let holder = |hold: &holders::ContainerHold| Holder {
                namespace: hold.namespace.clone(),
                pod: hold.pod.clone(),
                container: hold.container.clone(),
                pod_uid: String::new(),
                ids: hold.ids,
            };
            listing.holders.insert(held.device.clone(), (held.holds.iter().map(holder).collect(), held.conflict));
        }
        listing.held = found.held;
        listing
    }

    /// The node's GPUs, with those that a listing names though no page has shown them.
    fn gpus_with_listed(&self, list: &ListPodResourcesResponse) -> Vec<NodeGpu> {
        let mut gpus = self.gpus.clone();
        let unseen = |uuid: &str| NodeGpu { index: u32::MAX, minor: None, uuid: uuid.to_owned(), instances: Vec::new() };
        let containers = list.pod_resources.iter().flat_map(|pod| &pod.containers);
        for id in containers.flat_map(|container| &container.devices).flat_map(|devices| &devices.device_ids) {
            match shape(id).map(|shape| shape.target) {
                Some(Target::Uuid(uuid)) if uuid.starts_with("GPU-") => {
                    gpus.entry(uuid.to_owned()).or_insert_with(|| unseen(uuid));
                }
                Some(Target::Partition { gpu, gi, .. }) => {
                    let gpu = gpus.entry(gpu.to_owned()).or_insert_with(|| unseen(gpu));
                    if gpu.instances.iter().all(|instance| instance.gi != gi) {
                        gpu.instances.push(NodeInstance { uuid: None, gi, ci: None, profile: String::new() });
                    }
                }
                Some(Target::Uuid(_) | Target::Minor { .. } | Target::Index(_)) | None => {}
            }
        }
        gpus.into_values().collect()
    }
}

/// One node as its agent sees it.
pub(super) struct Observer<'a> {
    plan: &'a Plan,
    node: usize,
    timeout_ms: u32,
    printed_hostname: bool,
    /// One a device.
    walks: Vec<Walk<'a>>,
    dating: Dating,
    /// When the round of the head is, by the fleet's clock.
    at: Timestamp,
    /// What a round says beside its devices.
    pub head: ScrapeRound,
    /// The device that was read last, but for its readings.
    sample: DeviceSample,
    /// Its page.
    sheet: Sheet,
    /// What that was made of.
    of: Option<Of>,
}

/// What a sample is made of beside the device's state.
struct Of {
    /// Index of [`NodePlan::devices`].
    gpu: usize,
    listing: Rc<Listing>,
    /// The pod that the page shows.
    shown: Option<usize>,
}

impl<'a> Observer<'a> {
    pub fn new(plan: &'a Plan, node: usize, agents: &Agents) -> Self {
        let NodePlan { name, cluster, .. } = &plan.nodes()[node];
        let style = serve::style(plan);
        let dating = Dating::of(plan, &plan.nodes()[node]);
        Self {
            plan,
            node,
            timeout_ms: agents.timeout_ms,
            printed_hostname: style.hostname != HostnameLabel::Absent,
            walks: (0..plan.nodes()[node].devices.len()).map(|gpu| plan.walk(DeviceRef { node, gpu })).collect(),
            dating,
            at: plan.window().from(),
            head: ScrapeRound {
                skew_ms: dating.measured_ms,
                cluster: cluster.to_string(),
                node: name.to_string(),
                source: format!("{}{}", agents.base, serve::path(name)),
                interval_ms: u32::try_from(plan.spec().scrape_interval.ms()).unwrap_or(u32::MAX),
                ..ScrapeRound::default()
            },
            sample: DeviceSample::default(),
            sheet: Sheet::new(plan),
            of: None,
        }
    }

    /// Dates the head: all that a device's row has of it.
    pub fn stamp(&mut self, tick: i64) {
        self.at = super::at(self.plan, tick);
        self.head.at_ms = self.dating.stamp(tick).ms();
        self.head.sequence = self.dating.sequence(tick);
    }

    /// Sets the head to round number `tick`, whose page was had or not: its status and, where there is no page, why. What a page
    /// adds to it is [`Observer::page_of`]'s.
    pub fn begin(&mut self, tick: i64, listing: &Listing) -> bool {
        self.stamp(tick);
        let (at, first) = (self.at, self.dating.first);
        let head = &mut self.head;
        (head.duration_ms, head.body_bytes, head.series) = (0, 0, 0);
        let silent = silent_since(&self.plan.nodes()[self.node], at);
        let reason = match silent {
            None => listing.reason,
            // The last good answer stands in for a while.
            Some(since) => {
                let interval = self.plan.spec().scrape_interval.ms();
                let last = (since - self.plan.start_ms() - 1).div_euclid(interval);
                let bridged = last < first || at.ms() - super::at(self.plan, last).ms() <= HOLD_OVER_MS;
                Some(if bridged { JoinReason::ListFailed } else { JoinReason::Expired })
            }
        };
        head.join_reason = reason.map_or(String::new(), |reason| reason.as_str().to_owned());
        if silent.is_some() {
            head.unmatched_ids.clear();
        } else {
            head.unmatched_ids.clone_from(&listing.unmatched);
        }
        let source = &head.source;
        let (status, error, duration_ms) = match self.plan.no_page(self.node, at) {
            None => (ScrapeStatus::Ok, String::new(), 0),
            Some(NoPage::Refuse) => {
                let why = format!("{source}: the connection broke: connection closed before message completed");
                (ScrapeStatus::Refused, why, 0)
            }
            Some(NoPage::Error) => (ScrapeStatus::Http5xx, format!("{source} answered 500"), 0),
            Some(NoPage::Empty) => (ScrapeStatus::Empty, NO_SAMPLES.to_owned(), 0),
            Some(NoPage::Hang) => {
                let timeout = std::time::Duration::from_millis(self.timeout_ms.into());
                let why = format!("no whole answer from {source} in {timeout:?}; check its exporter or raise `timeout`");
                (ScrapeStatus::Timeout, why, self.timeout_ms)
            }
        };
        head.status.clear();
        head.status.push_str(status.as_str());
        (head.error, head.duration_ms) = (error, duration_ms);
        status == ScrapeStatus::Ok
    }

    /// What the page came to, and which devices it lacks that are held. One without a sample is none.
    pub fn page_of(&mut self, size: &Size, lacks: &BTreeSet<String>) {
        if size.series == 0 && self.head.status == ScrapeStatus::Ok.as_str() {
            self.head.status = ScrapeStatus::Empty.as_str().to_owned();
            self.head.error = NO_SAMPLES.to_owned();
        } else if !lacks.is_empty() && !self.silent() {
            let ids: BTreeSet<String> = self.head.unmatched_ids.drain(..).chain(lacks.iter().cloned()).collect();
            self.head.unmatched_ids = ids.into_iter().take(MAX_UNMATCHED).collect();
        }
        self.head.body_bytes = size.bytes;
        self.head.series = u32::try_from(size.series).unwrap_or(u32::MAX);
    }

    /// Reads device number `gpu` at `at`, and hands it and its readings over if the page has it; false where it has not. Instants
    /// of a device ascend. The last that `each` gets says whether nothing has changed but the head's time and number and the
    /// readings since it was called before, for the same device.
    pub fn device(
        &mut self,
        gpu: usize,
        at: Timestamp,
        listing: &Rc<Listing>,
        size: &mut Size,
        mut each: impl FnMut(&ScrapeRound, &DeviceSample, &[(u16, Value)], bool),
    ) -> bool {
        let Some(state) = self.walks[gpu].at(at) else { return false };
        let plan = self.plan;
        let node = &plan.nodes()[self.node];
        let (device, sample) = (&node.devices[gpu], &mut self.sample);
        let shown = state.holder.filter(|_| plan.spec().exposition.pod_labels);
        let before = self.of.as_ref().filter(|of| of.gpu == gpu);
        let same_device = before.is_some();
        let same_listing = before.is_some_and(|of| Rc::ptr_eq(&of.listing, listing));
        let same_shown = before.is_some_and(|of| of.shown == shown);
        let mut changed = !same_device;
        if !same_device {
            let hostname = if self.printed_hostname { &*node.name } else { "" };
            identify(sample, &device.identity, hostname, plan.collectors());
            self.sheet.clear();
        }
        if !same_listing {
            changed |= hold(sample, listing);
        }
        if !same_shown {
            self.sheet.label(&node.name, &device.identity, shown.map(|pod| &**plan.pods()[pod].attributes()));
        }
        if !same_listing || !same_shown {
            let disagrees = shown.map(|pod| &plan.pods()[pod]).is_some_and(|pod| {
                sample.holders.iter().all(|holder| holder.namespace != *pod.namespace || holder.pod != *pod.name)
            });
            changed |= std::mem::replace(&mut sample.label_disagrees, disagrees) != disagrees;
            self.of = Some(Of { gpu, listing: listing.clone(), shown });
        }
        changed |= self.sheet.read(plan, &state, plan.misprint(device, at.ms()), sample);
        size.add(&self.sheet.lines);
        each(&self.head, sample, &self.sheet.readings, !changed);
        true
    }

    /// Whether the node answers nobody at the round of the head.
    fn silent(&self) -> bool {
        silent_since(&self.plan.nodes()[self.node], self.at).is_some()
    }
}

const NO_SAMPLES: &str = "the body has no samples; the exporter may be reloading";
/// How long an agent's last good listing stands in for failed ones, and how many unmatched ids a round carries: its defaults.
const HOLD_OVER_MS: i64 = 60_000;
const MAX_UNMATCHED: usize = 256;

/// Since when a node answers nobody, not even for its kubelet, if it does not at `at`.
pub(super) fn silent_since(node: &NodePlan, at: Timestamp) -> Option<i64> {
    node.spells.iter().filter(|spell| spell.silent() && spell.holds(at.ms())).map(|spell| spell.from).min()
}

/// What a page's labels say of a device.
fn identify(sample: &mut DeviceSample, identity: &Identity, hostname: &str, collectors: &Collectors) {
    *sample = DeviceSample {
        device: device_id(identity),
        parent: identity.instance.as_ref().map_or(String::new(), |_| identity.uuid.clone()),
        instance_id: identity.instance.as_ref().map(|instance| instance.id),
        profile: identity.instance.as_ref().map_or(String::new(), |instance| instance.profile.clone()),
        gpu_index: Some(identity.gpu),
        product: identity.model.clone(),
        pci_bus_id: identity.pci_bus_id.clone(),
        hostname: hostname.to_owned(),
        ..DeviceSample::default()
    };
    for (name, field) in collectors.labels() {
        let Some((_, text)) = identity.texts.iter().find(|(id, _)| id == field) else { continue };
        if matches!(meaning(name), Meaning::DriverVersion) {
            sample.driver_version.clone_from(text);
        } else {
            sample.labels.insert(name.clone(), text.clone());
        }
    }
}

/// A device as the lake calls it.
pub(super) fn device_id(identity: &Identity) -> String {
    match &identity.instance {
        Some(instance) => format!("{}/{}", identity.uuid, instance.id),
        None => identity.uuid.clone(),
    }
}

/// Puts in what the kubelet says of it; true where that is another thing.
fn hold(sample: &mut DeviceSample, listing: &Listing) -> bool {
    let held = listing.holders.get(&sample.device);
    let (holders, conflict) = held.map_or((&[][..], false), |(holders, conflict)| (&**holders, *conflict));
    let (source, reason) = ("podres", if conflict { JoinReason::Conflict.as_str() } else { "" });
    let changed = sample.holders != holders || sample.join_reason != reason || sample.owner_source != source;
    if changed {
        sample.holders = holders.to_vec();
        (sample.owner_source, sample.join_reason) = (source.to_owned(), reason.to_owned());
    }
    changed
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use exporter::{Device, Page, Renderer, Value as Shown, xid};
    use schemas::catalogue::{Reading, id::XID_ERRORS};

    use super::*;
    use crate::{
        FleetSpec,
        backfill::{at, ticks},
        spec::{Hostname, Rate},
        state,
    };

    /// An example fleet with much dirt.
    fn plan(name: &str, hours: u32, hostname: Hostname) -> Plan {
        let path = format!("{}/../kwok-fleet/fleets/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let mut spec = FleetSpec::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
        (spec.hours, spec.exposition.hostname) = (hours, hostname);
        (spec.faults.blanks, spec.faults.out_of_range) = (Rate(60_000), Rate(60_000));
        let seed = spec.seed;
        Plan::new(spec, seed).unwrap()
    }

    /// What an agent makes of one device of a page, looked at alone.
    fn afresh(plan: &Plan, node: &NodePlan, device: &Device, listing: &Listing) -> (DeviceSample, Vec<(u16, Value)>) {
        let (mut sample, mut readings) = (DeviceSample::default(), Vec::new());
        let hostname = if serve::style(plan).hostname == HostnameLabel::Absent { "" } else { &*node.name };
        identify(&mut sample, &device.identity, hostname, plan.collectors());
        hold(&mut sample, listing);
        if let Some(attributes) = &device.attributes {
            let label = |name: &str| attributes.iter().find(|(key, _)| *key == name).unwrap().1;
            let (namespace, pod) = (label("namespace"), label("pod"));
            sample.label_disagrees = sample.holders.iter().all(|holder| holder.namespace != namespace || holder.pod != pod);
        }
        for &(id, shown) in device.readings.as_slice() {
            let Some(field) = plan.printed.field(id) else { continue };
            let (whole, number) = match shown {
                Shown::Int(value) => (Some(value.into()), value as f64),
                Shown::Float(value) => (None, value),
            };
            let (value, fault) = match field.read_number(whole, number, device.identity.instance.is_some()) {
                Reading::Int(value) => (Some(Value::Int(value)), None),
                Reading::Ratio(value) => (Some(Value::Float(value as f32)), None),
                Reading::Clipped(value, fault) => (Some(Value::Float(value as f32)), Some(fault)),
                Reading::Invalid(fault) => (None, Some(fault)),
            };
            readings.extend(value.map(|value| (id, value)));
            sample.faults.extend(fault.map(|fault| (id.into(), fault.as_str().to_owned())));
            if let (XID_ERRORS, Some(Value::Int(code))) = (id, value) {
                sample.xid_message = xid::message(code).to_owned();
            }
        }
        (sample, readings)
    }

    /// What was seen of a fleet's samples.
    #[derive(Debug, Default)]
    struct Seen {
        samples: usize,
        unchanged: usize,
        faults: usize,
        /// With the faults of the sample before.
        faults_again: usize,
        disagree: usize,
        xids: usize,
        absent: usize,
    }

    /// Has an observer read devices in the order of `order`, and compares what it says each time with a look afresh.
    fn check(plan: &Plan, node: usize, order: &[(usize, usize)], rounds: &[(i64, Rc<Listing>, Page)], seen: &mut Seen) {
        let agents = Agents::default();
        let mut observer = Observer::new(plan, node, &agents);
        let planned = &plan.nodes()[node];
        let mut sizes = vec![Size::default(); rounds.len()];
        let mut before: Option<(usize, [String; 3], DeviceSample)> = None;
        for &(gpu, round) in order {
            let (tick, listing, page) = &rounds[round];
            observer.stamp(*tick);
            let identity = &planned.devices[gpu].identity;
            let expected = page.devices().iter().find(|device| Arc::ptr_eq(&device.identity, identity));
            let mut called = 0;
            let each = |head: &ScrapeRound, sample: &DeviceSample, readings: &[(u16, Value)], unchanged: bool| {
                called += 1;
                let (of_page, read) = afresh(plan, planned, expected.unwrap(), listing);
                assert_eq!((sample, readings), (&of_page, &*read), "{} at {tick}", planned.name);
                let head = [head.cluster.clone(), head.node.clone(), head.source.clone()];
                let same = before.as_ref().is_some_and(|before| (before.0, &before.1, &before.2) == (gpu, &head, sample));
                assert_eq!(unchanged, same, "{} at {tick}: {before:?}, then {sample:?}", planned.name);
                seen.samples += 1;
                seen.unchanged += usize::from(unchanged);
                seen.faults += usize::from(!sample.faults.is_empty());
                seen.faults_again += usize::from(unchanged && !sample.faults.is_empty());
                seen.disagree += usize::from(sample.label_disagrees);
                seen.xids += usize::from(!sample.xid_message.is_empty());
                before = Some((gpu, head, sample.clone()));
            };
            let has = observer.device(gpu, at(plan, *tick), listing, &mut sizes[round], each);
            assert_eq!((has, called), (expected.is_some(), usize::from(has)));
            seen.absent += usize::from(!has);
        }
        let mut renderer = Renderer::new(plan.collectors().clone(), serve::style(plan));
        for ((_, _, page), size) in rounds.iter().zip(&sizes) {
            let mut text = Vec::new();
            renderer.render(page, &mut text);
            let series = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && line[0] != b'#').count();
            assert_eq!((size.bytes, size.series), (text.len() as u64, series as u64));
        }
    }

    #[test]
    fn what_is_kept_from_instant_to_instant_is_what_is_read_afresh() {
        let mut all = Seen::default();
        for (name, hours, hostname) in
            [("small", 2, Hostname::Classic), ("mixed", 3, Hostname::Lower), ("repairs", 6, Hostname::Absent)]
        {
            let plan = plan(name, hours, hostname);
            let mut seen = Seen::default();
            for (node, planned) in plan.nodes().iter().enumerate() {
                let mut listings = Listings::new(&plan, node, i64::MIN..i64::MAX);
                let round = |tick: i64| {
                    let (at, mut page) = (at(&plan, tick), Page::new());
                    state::read_node(&plan, node, at, &mut page);
                    plan.no_page(node, at).is_none().then(|| (tick, listings.at(at), page))
                };
                let rounds: Vec<(i64, Rc<Listing>, Page)> = ticks(&plan, plan.window()).filter_map(round).collect();
                let gpus = 0..planned.devices.len();
                // As the lake has them, and as messages have.
                let by_device: Vec<_> = gpus.clone().flat_map(|gpu| (0..rounds.len()).map(move |at| (gpu, at))).collect();
                let by_round: Vec<_> = (0..rounds.len()).flat_map(|at| gpus.clone().map(move |gpu| (gpu, at))).collect();
                check(&plan, node, &by_device, &rounds, &mut seen);
                check(&plan, node, &by_round, &rounds, &mut Seen::default());
            }
            assert!(seen.unchanged * 2 > seen.samples && seen.unchanged < seen.samples, "{name}: {seen:?}");
            let Seen { faults, faults_again, disagree, xids, absent, .. } = seen;
            all = Seen {
                faults: all.faults + faults,
                faults_again: all.faults_again + faults_again,
                disagree: all.disagree + disagree,
                xids: all.xids + xids,
                absent: all.absent + absent,
                ..all
            };
        }
        let Seen { faults, faults_again, disagree, xids, absent, .. } = all;
        assert!([faults, faults_again, disagree, xids, absent].iter().all(|count| *count > 10), "{all:?}");
    }
}
