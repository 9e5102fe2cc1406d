//! A plan in numbers, before anything runs: what `strandline-sim check` prints.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use exporter::Page;
use serde::Serialize;

use crate::{
    fault,
    plan::{DevicePlan, DeviceRef, Plan},
    state,
};

/// What a fleet comes to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explained {
    /// Name of the fleet.
    pub name: String,
    /// Seed.
    pub seed: u64,
    /// Nodes.
    pub nodes: usize,
    /// GPUs.
    pub gpus: usize,
    /// MIG instances, by profile.
    pub instances: BTreeMap<String, usize>,
    /// What device plugins offer, by resource.
    pub offers: BTreeMap<String, usize>,
    /// GPUs by product.
    pub gpus_by_product: BTreeMap<String, usize>,
    /// Hours planned.
    pub hours: u32,
    /// GPU-hours of capacity.
    pub gpu_hours: u64,
    /// Scrapes of all nodes over the whole time.
    pub scrapes: u64,
    /// Series of one scrape of all nodes, where no GPU is held.
    pub series: u64,
    /// The same by metric.
    pub series_by_metric: BTreeMap<String, u64>,
    /// Different values of each label over the whole time, but for those of pods.
    pub label_values: BTreeMap<String, usize>,
    /// Different values of each pod label over the whole time: what pods add to the number of series.
    pub pod_label_values: BTreeMap<&'static str, usize>,
    /// Different series over the whole time: each series of a device once for every pod that holds it, and once free.
    pub series_ever: u64,
    /// Pods that were made.
    pub pods: usize,
    /// Pods by shape.
    pub pods_by_shape: BTreeMap<&'static str, usize>,
    /// Pods that gave up waiting.
    pub withdrawn: usize,
    /// GPU-hours that pods hold.
    pub allocated_gpu_hours: f64,
    /// Share of capacity that pods hold, percent.
    pub allocated_pct: f64,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, usize>,
}

/// Explains a plan.
pub fn explain(plan: &Plan) -> Explained {
    let spec = plan.spec();
    let window = plan.window();
    let mut gpus_by_product: BTreeMap<String, usize> = BTreeMap::new();
    let mut series_by_metric: BTreeMap<String, u64> = BTreeMap::new();
    let mut page = Page::new();
    let collectors = plan.collectors();
    let printed: BTreeSet<u16> = collectors.families().iter().map(|family| family.field).collect();
    let (mut instances, mut offers) = (BTreeMap::<String, usize>::new(), BTreeMap::<String, usize>::new());
    let mut labels: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let mut series_ever = 0;
    for (index, node) in plan.nodes().iter().enumerate() {
        *gpus_by_product.entry(node.accelerator.product.clone()).or_default() += node.gpus();
        let first = |device: &&DevicePlan| node.boards[device.board].epoch == 0;
        for instance in node.devices.iter().filter(first).filter_map(|device| device.instance.as_ref()) {
            *instances.entry(instance.placed.profile.name.clone()).or_default() += 1;
        }
        for offer in &node.offers {
            *offers.entry(offer.resource.to_string()).or_default() += offer.slots.len();
        }
        for (gpu, planned) in node.devices.iter().enumerate() {
            // A board that comes later has its series from then on.
            let board = &node.boards[planned.board];
            let begins = board.since().unwrap_or(window.from());
            let Some(state) = state::state(plan, DeviceRef { node: index, gpu }, begins).filter(|_| begins < window.to()) else {
                continue;
            };
            page.begin(Some(node.name.clone()));
            state::print(plan, node, gpu, &state, begins, &mut page);
            let Some(device) = page.devices().first() else { continue };
            let mut of_device = 0;
            for (field, _) in device.readings.as_slice().iter().filter(|(field, _)| printed.contains(field)) {
                of_device += 1;
                if board.epoch == 0 {
                    let family = collectors.families().iter().find(|family| family.field == *field);
                    *series_by_metric.entry(family.map_or(String::new(), |family| family.name.clone())).or_default() += 1;
                }
            }
            let holders: BTreeSet<(&str, &str)> =
                planned.held.iter().map(|held| (&*plan.pods()[held.pod].namespace, &*plan.pods()[held.pod].name)).collect();
            series_ever += of_device * (1 + if spec.exposition.pod_labels { holders.len() as u64 } else { 0 });
            for (label, value) in state::labels(spec, collectors, &node.name, &device.identity) {
                labels.entry(label).or_default().insert(value);
            }
        }
    }
    let gpus = spec.gpus();
    let gpu_hours = gpus * u64::from(spec.hours);
    let mut pods_by_shape: BTreeMap<&'static str, usize> = BTreeMap::new();
    let (mut names, mut namespaces) = (BTreeSet::new(), BTreeSet::new());
    let mut held_ms = 0.0;
    for pod in plan.pods() {
        *pods_by_shape.entry(pod.shape.as_str()).or_default() += 1;
        if let Some(binding) = &pod.bound {
            names.insert((&pod.namespace, &pod.name));
            namespaces.insert(&pod.namespace);
            let unit = f64::from(binding.unit.0) / f64::from(binding.unit.1);
            held_ms += f64::from(pod.gpus) * unit * (binding.ended.min(window.to().ms()) - binding.bound) as f64;
        }
    }
    let mut faults: BTreeMap<&'static str, usize> = BTreeMap::new();
    for fault in fault::faults(plan, window) {
        *faults.entry(fault.kind).or_default() += 1;
    }
    let capacity_ms = gpus as f64 * window.len_ms() as f64;
    Explained {
        name: spec.name.clone(),
        seed: plan.seed().0,
        nodes: plan.nodes().len(),
        gpus: gpus as usize,
        instances,
        offers,
        gpus_by_product,
        hours: spec.hours,
        gpu_hours,
        scrapes: plan.nodes().len() as u64 * (window.len_ms() / spec.scrape_interval.ms()) as u64,
        series: series_by_metric.values().sum(),
        series_by_metric,
        label_values: labels.into_iter().map(|(label, values)| (label.to_owned(), values.len())).collect(),
        series_ever,
        pod_label_values: [("namespace", namespaces.len()), ("pod", names.len()), ("container", 1)].into_iter().collect(),
        pods: plan.pods().len(),
        pods_by_shape,
        withdrawn: plan.pods().iter().filter(|pod| pod.withdrawn.is_some()).count(),
        allocated_gpu_hours: (held_ms / schemas::HOUR_MS as f64 * 10.0).round() / 10.0,
        allocated_pct: (held_ms / capacity_ms * 1000.0).round() / 10.0,
        faults,
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "fleet {}, seed {}", self.name, self.seed)?;
        writeln!(f, "{} nodes, {} GPUs, {} hours: {} GPU-hours", self.nodes, self.gpus, self.hours, self.gpu_hours)?;
        for (product, gpus) in &self.gpus_by_product {
            writeln!(f, "  {gpus:>6}  {product}")?;
        }
        for (profile, count) in &self.instances {
            writeln!(f, "  {count:>6}  MIG {profile}")?;
        }
        writeln!(f, "device plugins offer:")?;
        for (resource, count) in &self.offers {
            writeln!(f, "  {count:>6}  {resource}")?;
        }
        writeln!(f, "{} scrapes, {} series each time over all nodes, by metric:", self.scrapes, self.series)?;
        for (metric, series) in &self.series_by_metric {
            writeln!(f, "  {series:>6}  {metric}")?;
        }
        writeln!(f, "values of their labels:")?;
        for (label, values) in &self.label_values {
            writeln!(f, "  {values:>6}  {label}")?;
        }
        writeln!(f, "{} series over the whole time; values of pod labels then:", self.series_ever)?;
        for (label, values) in &self.pod_label_values {
            writeln!(f, "  {values:>6}  {label}")?;
        }
        writeln!(
            f,
            "{} pods, {} of them withdrawn, hold {} GPU-hours, {} % of capacity:",
            self.pods, self.withdrawn, self.allocated_gpu_hours, self.allocated_pct
        )?;
        for (shape, pods) in &self.pods_by_shape {
            writeln!(f, "  {pods:>6}  {shape}")?;
        }
        writeln!(f, "faults:")?;
        for (kind, count) in &self.faults {
            writeln!(f, "  {count:>6}  {kind}")?;
        }
        Ok(())
    }
}
