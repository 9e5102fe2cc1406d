//! Devices of scrape rounds to rows of `gpu_samples`, row by row.

use super::wire::{Device, Read};
use super::{Place, Rows};
use crate::proto::{DeviceSample, ScrapeRound, Value};
use crate::{catalogue, tables};
use std::collections::BTreeSet;
use std::fmt::Write;

/// What a device's row has of its round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head<'a> {
    /// Cluster.
    pub cluster: &'a str,
    /// Node.
    pub node: &'a str,
    /// Scraped target.
    pub source: &'a str,
    /// The agent's clock when the request went out.
    pub at_ms: i64,
    /// The agent's count of rounds of this target.
    pub sequence: u64,
}

impl<'a> Head<'a> {
    /// That of a round.
    pub fn of(round: &'a ScrapeRound) -> Self {
        Self { cluster: &round.cluster, node: &round.node, source: &round.source, at_ms: round.at_ms, sequence: round.sequence }
    }
}

/// Positions of the columns of `gpu_samples` that every sample sets, found once.
#[derive(Debug)]
pub struct SampleColumns {
    cluster: usize,
    node: usize,
    device: usize,
    at: usize,
    source: usize,
    sequence: usize,
    parent: usize,
    instance_id: usize,
    profile: usize,
    gpu_index: usize,
    product: usize,
    pci_bus_id: usize,
    hostname: usize,
    driver_version: usize,
    namespace: usize,
    pod: usize,
    container: usize,
    pod_uid: usize,
    holders: usize,
    owner_source: usize,
    join_reason: usize,
    held_over: usize,
    label_disagrees: usize,
    faults: usize,
    labels: usize,
    xid_message: usize,
    /// Columns of what a device is and whose, which rarely changes from round to round.
    facts: Vec<usize>,
}

impl Default for SampleColumns {
    fn default() -> Self {
        Self::new()
    }
}

impl SampleColumns {
    /// The positions.
    ///
    /// # Panics
    /// Where the table lacks one: names are literals in our own code.
    pub fn new() -> Self {
        let table = tables::get("gpu_samples");
        let at = |name: &str| table.index(name).unwrap_or_else(|| panic!("gpu_samples has no column {name}"));
        let changing = ["at", "sequence", "log_partition", "log_offset"].map(at);
        let readings: BTreeSet<usize> = catalogue::columns().map(|(_, column)| at(column)).collect();
        let facts = |column: &usize| !changing.contains(column) && !readings.contains(column);
        SampleColumns {
            facts: (0..table.columns.len()).filter(facts).collect(),
            cluster: at("cluster"),
            node: at("node"),
            device: at("device"),
            at: at("at"),
            source: at("source"),
            sequence: at("sequence"),
            parent: at("parent"),
            instance_id: at("instance_id"),
            profile: at("profile"),
            gpu_index: at("gpu_index"),
            product: at("product"),
            pci_bus_id: at("pci_bus_id"),
            hostname: at("hostname"),
            driver_version: at("driver_version"),
            namespace: at("namespace"),
            pod: at("pod"),
            container: at("container"),
            pod_uid: at("pod_uid"),
            holders: at("holders"),
            owner_source: at("owner_source"),
            join_reason: at("join_reason"),
            held_over: at("held_over"),
            label_disagrees: at("label_disagrees"),
            faults: at("faults"),
            labels: at("labels"),
            xid_message: at("xid_message"),
        }
    }

    /// Adds one device of a round to rows of `gpu_samples`; of the round only its head is read.
    pub fn device(&self, round: &ScrapeRound, device: &DeviceSample, place: Option<Place>, rows: &mut Rows) {
        let mut borrowed = Device::default();
        borrowed.set(device);
        self.sample(&Head::of(round), &borrowed, place, rows);
    }

    /// The same, borrowed.
    pub fn sample(&self, round: &Head<'_>, device: &Device<'_>, place: Option<Place>, rows: &mut Rows) {
        rows.settle();
        rows.text_at(self.cluster, round.cluster);
        rows.text_at(self.node, round.node);
        rows.bytes_at(self.device, device.device);
        rows.time_at(self.at, round.at_ms);
        rows.text_at(self.source, round.source);
        rows.int_at(self.sequence, i64::try_from(round.sequence).unwrap_or(i64::MAX));
        rows.bytes_at(self.parent, device.parent);
        if let Some(id) = device.instance_id {
            rows.int_at(self.instance_id, i64::from(id));
        }
        rows.bytes_at(self.profile, device.profile);
        if let Some(index) = device.gpu_index {
            rows.int_at(self.gpu_index, i64::from(index));
        }
        rows.bytes_at(self.product, device.product);
        rows.bytes_at(self.pci_bus_id, device.pci_bus_id);
        rows.bytes_at(self.hostname, device.hostname);
        rows.bytes_at(self.driver_version, device.driver_version);
        self.owner(device, rows);
        rows.bytes_at(self.join_reason, device.join_reason);
        rows.bool_at(self.held_over, device.held_over);
        rows.bool_at(self.label_disagrees, device.label_disagrees);
        if !device.faults.is_empty() {
            let mut text = String::new();
            for (id, reason) in &device.faults {
                let _ = write!(text, "{}{id}:{reason}", if text.is_empty() { "" } else { "," });
            }
            rows.text_at(self.faults, &text);
        }
        if !device.labels.is_empty() {
            rows.json_at(self.labels, device.labels.iter().copied());
        }
        rows.bytes_at(self.xid_message, device.xid_message);
        rows.log(place);
        self.readings(device.readings, rows);
        rows.end_row();
    }

    /// Adds a row of the device of the row before, of which all is as it was but time, number and readings. `rows` must not be
    /// empty, nor the row before another device's.
    pub fn again(&self, round: &Head<'_>, readings: Read<'_>, place: Option<Place>, rows: &mut Rows) {
        rows.time_at(self.at, round.at_ms);
        rows.int_at(self.sequence, i64::try_from(round.sequence).unwrap_or(i64::MAX));
        rows.log(place);
        self.readings(readings, rows);
        rows.end_row_as_before(&self.facts);
    }

    fn readings(&self, readings: Read<'_>, rows: &mut Rows) {
        readings.each(|column, value| match value {
            Value::Int(v) => rows.int_at(column, v),
            Value::Float(v) => rows.float_at(column, v),
        });
    }

    /// The holder's name where it is one; how many there are where someone was asked.
    fn owner(&self, device: &Device<'_>, rows: &mut Rows) {
        rows.bytes_at(self.owner_source, device.owner_source);
        if device.owner_source.is_empty() {
            return;
        }
        // Nearly always one container of one pod holds a device, or nobody.
        let [holder, others @ ..] = &*device.holders else {
            rows.int_at(self.holders, 0);
            return;
        };
        if others.iter().any(|other| (other.namespace, other.pod) != (holder.namespace, holder.pod)) {
            let pods: BTreeSet<(&[u8], &[u8])> = device.holders.iter().map(|h| (h.namespace, h.pod)).collect();
            rows.int_at(self.holders, pods.len() as i64);
            return;
        }
        rows.int_at(self.holders, 1);
        rows.bytes_at(self.namespace, holder.namespace);
        rows.bytes_at(self.pod, holder.pod);
        let uid = device.holders.iter().map(|h| h.pod_uid).find(|u| !u.is_empty());
        rows.bytes_at(self.pod_uid, uid.unwrap_or_default());
        if others.is_empty() {
            rows.bytes_at(self.container, holder.container);
        }
    }
}
