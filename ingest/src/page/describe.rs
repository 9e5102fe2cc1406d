//! A page as people are shown it: what `strandline parse` prints.

use super::{Page, PagePod};
use schemas::catalogue;
use schemas::proto::Value;
use serde::Serialize;
use std::collections::BTreeMap;

/// Everything that we see in a page.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Described {
    /// Devices by id.
    pub devices: Vec<DescribedDevice>,
    /// Samples outside the catalogue's columns.
    pub extra: Vec<DescribedExtra>,
    /// Lines and samples that were kept out.
    pub rejected: DescribedRejects,
    /// Series samples read.
    pub series: u64,
    /// Series that stood twice or more, the first not counted.
    pub duplicate_series: u64,
    /// Those of them whose value differs from the first.
    pub conflicting_duplicates: u64,
    /// Labels that the cost-label contract refused.
    pub refused_labels: u64,
    /// Readings that were dropped, clipped or in conflict, by reason.
    pub faults: BTreeMap<String, u64>,
    /// What a person should know beside.
    pub notes: Vec<String>,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DescribedDevice {
    /// Identity: UUID, or parent UUID/instance.
    pub device: String,
    /// UUID of the GPU that an instance is part of.
    pub parent: Option<String>,
    /// GPU instance id.
    pub instance_id: Option<u32>,
    /// MIG profile.
    pub profile: Option<String>,
    /// DCGM's index.
    pub gpu_index: Option<u32>,
    /// Product.
    pub product: Option<String>,
    /// PCI address.
    pub pci_bus_id: Option<String>,
    /// Host name that the page states.
    pub hostname: Option<String>,
    /// Driver version.
    pub driver_version: Option<String>,
    /// Pods that the page's labels name.
    pub pods: Vec<DescribedPod>,
    /// Readings by field id.
    pub readings: Vec<DescribedReading>,
    /// Labels that have no meaning to us.
    pub labels: BTreeMap<String, String>,
    /// Text of the last XID.
    pub xid_message: Option<String>,
}

/// A pod that labels name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DescribedPod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub pod: String,
    /// Container.
    pub container: Option<String>,
    /// UID.
    pub pod_uid: Option<String>,
}

/// One field of a device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DescribedReading {
    /// DCGM field id.
    pub field_id: u16,
    /// DCGM's name of it, whatever alias the page used.
    pub name: String,
    /// The reading; null where there is none.
    pub value: Option<serde_json::Number>,
    /// Unit.
    pub unit: String,
    /// Why there is none, or what to know about it.
    pub fault: Option<String>,
}

/// A sample outside the catalogue's columns.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DescribedExtra {
    /// Metric name.
    pub name: String,
    /// Device, where the series names one.
    pub device: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Value; null for NaN and infinities, which JSON cannot hold.
    pub value: Option<f64>,
}

/// What was kept out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DescribedRejects {
    /// How many.
    pub count: u64,
    /// How many bad lines by reason.
    pub by_reason: BTreeMap<String, u64>,
    /// The first of them.
    pub first: Vec<DescribedReject>,
}

/// One line that was kept out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DescribedReject {
    /// Line, from 1.
    pub line: u32,
    /// Byte of the fault in the line, from 1, where the fault has a place.
    pub column: Option<u32>,
    /// Byte offset of the fault in the page.
    pub offset: Option<u64>,
    /// Code of the reason.
    pub reason: String,
    /// The reason in words.
    pub message: String,
    /// The beginning of the line, up to its labels.
    pub text: String,
}

/// Describes a page.
pub fn describe(page: &Page) -> Described {
    let mut notes = Vec::new();
    if page.unterminated {
        notes.push("the page does not end in a line feed: it may have been cut".to_owned());
    }
    for (count, what) in [
        (page.counts.extra_dropped, "extra samples were dropped by their cap"),
        (page.counts.devices_dropped, "samples were dropped by the cap on devices"),
        (page.counts.labels_dropped, "labels were dropped by their cap"),
    ] {
        if count > 0 {
            notes.push(format!("{count} {what}"));
        }
    }
    Described {
        devices: page.devices.iter().map(device).collect(),
        extra: page.extra.iter().map(extra).collect(),
        rejected: rejected(page),
        series: page.counts.series,
        duplicate_series: page.counts.duplicate_series,
        conflicting_duplicates: page.counts.conflicting_duplicates,
        refused_labels: page.counts.refused_labels,
        faults: page.counts.faults.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect(),
        notes,
    }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn device(device: &super::Device) -> DescribedDevice {
    let sample = &device.sample;
    let mut readings: BTreeMap<u16, DescribedReading> = BTreeMap::new();
    let row = |id: u16, value: Option<serde_json::Number>| {
        let field = catalogue::by_id(id);
        DescribedReading {
            field_id: id,
            name: field.map_or(String::new(), |f| f.name.to_owned()),
            value,
            unit: field.map_or(String::new(), |f| f.unit.to_owned()),
            fault: sample.faults.get(&u32::from(id)).cloned(),
        }
    };
    if let Some(values) = &sample.readings {
        values.each(|id, value| {
            let number = match value {
                Value::Int(v) => Some(v.into()),
                // The shortest decimal that names this f32 is what was printed, less trailing zeros.
                Value::Float(v) => v.to_string().parse().ok(),
            };
            readings.insert(id, row(id, number));
        });
    }
    for id in sample.faults.keys().filter_map(|id| u16::try_from(*id).ok()) {
        readings.entry(id).or_insert_with(|| row(id, None));
    }
    DescribedDevice {
        device: sample.device.clone(),
        parent: some(&sample.parent),
        instance_id: sample.instance_id,
        profile: some(&sample.profile),
        gpu_index: sample.gpu_index,
        product: some(&sample.product),
        pci_bus_id: some(&sample.pci_bus_id),
        hostname: some(&sample.hostname),
        driver_version: some(&sample.driver_version),
        pods: device.pods.iter().map(pod).collect(),
        readings: readings.into_values().collect(),
        labels: sample.labels.clone(),
        xid_message: some(&sample.xid_message),
    }
}

fn pod(pod: &PagePod) -> DescribedPod {
    DescribedPod {
        namespace: pod.namespace.clone(),
        pod: pod.pod.clone(),
        container: some(&pod.container),
        pod_uid: some(&pod.pod_uid),
    }
}

fn extra(extra: &schemas::proto::ExtraSample) -> DescribedExtra {
    DescribedExtra {
        name: extra.name.clone(),
        device: some(&extra.device),
        labels: extra.labels.clone(),
        value: Some(extra.value).filter(|v| v.is_finite()),
    }
}

fn rejected(page: &Page) -> DescribedRejects {
    let first = page.rejects.iter().map(|reject| {
        let place = page.bad_lines.first.iter().find(|e| e.line == reject.line && e.reason.code() == reject.reason);
        DescribedReject {
            line: reject.line,
            column: place.map(|e| e.column),
            offset: place.map(|e| e.offset),
            reason: reject.reason.clone(),
            message: place.map_or_else(|| "the series' UUID or GPU_I_ID is no device id".to_owned(), |e| e.reason.to_string()),
            text: reject.text.clone(),
        }
    });
    let mut by_reason: BTreeMap<String, u64> = page.bad_lines.by_reason.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
    let bad_ids = page.counts.bad_lines - page.bad_lines.count;
    if bad_ids > 0 {
        by_reason.insert(super::BAD_DEVICE_ID.to_owned(), bad_ids);
    }
    DescribedRejects { count: page.counts.bad_lines, by_reason, first: first.collect() }
}
