//! ResourceSlices to the devices that claims name: driver, pool and device to a UUID. Versions v1 and v1beta2 have a device's
//! attributes in the device, v1beta1 has them under `basic`.
//!
//! A slice that cannot be read is left out and said; the others stand.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Deserialize;

use crate::holders::SliceDevice;

/// A slice that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a ResourceSlice cannot be read: {field}: {what}; compare `kubectl get resourceslice -o json`")]
pub struct BadSlice {
    /// Path of the field at fault.
    pub field: String,
    /// What is wrong with it.
    pub what: String,
}

#[derive(Deserialize)]
struct Slice {
    #[serde(default)]
    metadata: Metadata,
    spec: Spec,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    driver: String,
    pool: Pool,
    node_name: Option<String>,
    devices: Option<Vec<Device>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pool {
    name: String,
    #[serde(default)]
    generation: i64,
}

#[derive(Deserialize)]
struct Device {
    name: String,
    attributes: Option<BTreeMap<String, Attribute>>,
    taints: Option<Vec<Taint>>,
    basic: Option<Basic>,
}

#[derive(Deserialize)]
struct Basic {
    attributes: Option<BTreeMap<String, Attribute>>,
    taints: Option<Vec<Taint>>,
}

#[derive(Deserialize)]
struct Taint {
    #[serde(default)]
    effect: String,
}

/// One attribute; of its kinds only texts matter here.
#[derive(Deserialize)]
struct Attribute {
    string: Option<String>,
}

/// What some slices say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slices {
    /// Devices that have a UUID, by the node that they are on; under an empty name those that belong to no single node.
    pub by_node: BTreeMap<String, Vec<SliceDevice>>,
    /// Slices that were left out.
    pub refused: Vec<BadSlice>,
}

/// Reads slices. Of a pool only the newest generation counts: older slices of it are about to go.
pub fn read<'a>(slices: impl IntoIterator<Item = &'a [u8]>) -> Slices {
    let (mut found, mut kept) = (Slices::default(), Vec::new());
    for json in slices {
        match parse(json) {
            Ok((_, slice)) => kept.push(slice),
            Err(error) => found.refused.push(error),
        }
    }
    let newest = newest(&kept);
    for slice in kept.iter().filter(|slice| newest.get(&slice.pool()) == Some(&slice.generation)) {
        let devices = slice.devices.iter().map(|(device, _)| device.clone());
        found.by_node.entry(slice.node.clone()).or_default().extend(devices);
    }
    found.by_node.retain(|_, devices| !devices.is_empty());
    found
}

/// What we keep of a slice.
#[derive(Debug)]
struct Kept {
    driver: String,
    pool: String,
    generation: i64,
    node: String,
    /// Devices that have a UUID, and whether a taint keeps pods from them.
    devices: Vec<(SliceDevice, bool)>,
}

impl Kept {
    fn pool(&self) -> (&str, &str) {
        (&self.driver, &self.pool)
    }
}

/// The newest generation of each pool.
fn newest<'a>(slices: impl IntoIterator<Item = &'a Kept>) -> HashMap<(&'a str, &'a str), i64> {
    let mut newest = HashMap::new();
    for slice in slices {
        let generation = newest.entry(slice.pool()).or_insert(slice.generation);
        *generation = slice.generation.max(*generation);
    }
    newest
}

/// Name of a slice, and what is kept of it.
fn parse(json: &[u8]) -> Result<(String, Kept), BadSlice> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let slice: Slice = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| BadSlice { field: error.path().to_string(), what: error.inner().to_string() })?;
    let Spec { driver, pool, node_name, devices } = slice.spec;
    let device = |device: Device| {
        let (inner, tainted) = device.basic.map_or((None, None), |basic| (basic.attributes, basic.taints));
        let attributes = device.attributes.or(inner).unwrap_or_default();
        // A driver may write the domain of its own attributes, or leave it away.
        let text = |name: &str| {
            let own = attributes.get(name).or_else(|| attributes.get(&format!("{driver}/{name}")));
            own.and_then(|attribute| attribute.string.clone()).filter(|text| !text.is_empty())
        };
        let taints = device.taints.or(tainted).unwrap_or_default();
        let kept_away = taints.iter().any(|taint| taint.effect == "NoSchedule" || taint.effect == "NoExecute");
        let device = SliceDevice {
            driver: driver.clone(),
            pool: pool.name.clone(),
            device: device.name,
            uuid: text("uuid")?,
            parent: text("parentUUID"),
            profile: text("profile"),
            product: text("productName"),
        };
        Some((device, kept_away))
    };
    let devices = devices.unwrap_or_default().into_iter().filter_map(device).collect();
    let node = node_name.unwrap_or_default();
    Ok((slice.metadata.name, Kept { driver, pool: pool.name, generation: pool.generation, node, devices }))
}

/// GPUs of one node by its slices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceGpus {
    /// Whole GPUs: one that is cut into partitions is one.
    pub capacity: u32,
    /// Those of which something is free of taints that keep pods away.
    pub allocatable: u32,
    /// Product of the first, as the driver names it; empty where none is named.
    pub product: String,
}

/// The slices of a cluster as its events tell them.
#[derive(Debug, Default)]
pub struct SliceBook {
    /// By name of the slice.
    slices: BTreeMap<String, Kept>,
}

impl SliceBook {
    /// Event ADDED or MODIFIED. Out: the nodes whose devices may be others. Errors: it is left out.
    pub fn seen(&mut self, json: &[u8]) -> Result<BTreeSet<String>, BadSlice> {
        let (name, slice) = parse(json)?;
        let mut nodes = BTreeSet::from([slice.node.clone()]);
        nodes.extend(self.slices.insert(name, slice).map(|before| before.node));
        Ok(nodes)
    }

    /// Event DELETED. Out and errors as of [`SliceBook::seen`].
    pub fn deleted(&mut self, json: &[u8]) -> Result<BTreeSet<String>, BadSlice> {
        let (name, _) = parse(json)?;
        Ok(self.slices.remove(&name).map(|before| before.node).into_iter().collect())
    }

    /// A full list. Out: the nodes whose devices may be others, and the slices that were left out.
    pub fn relist<'a>(&mut self, slices: impl IntoIterator<Item = &'a [u8]>) -> (BTreeSet<String>, Vec<BadSlice>) {
        let before = std::mem::take(&mut self.slices);
        let mut nodes: BTreeSet<String> = before.into_values().map(|slice| slice.node).collect();
        let mut refused = Vec::new();
        for json in slices {
            match self.seen(json) {
                Ok(of) => nodes.extend(of),
                Err(error) => refused.push(error),
            }
        }
        (nodes, refused)
    }

    /// GPUs by node that slices of `drivers` tell; a node that is not there has none.
    pub fn gpus(&self, drivers: &[String]) -> BTreeMap<String, SliceGpus> {
        let newest = newest(self.slices.values());
        let mut of_node: BTreeMap<&str, BTreeMap<&str, (bool, &str)>> = BTreeMap::new();
        let current = self.slices.values().filter(|slice| newest.get(&slice.pool()) == Some(&slice.generation));
        for slice in current.filter(|slice| !slice.node.is_empty() && drivers.contains(&slice.driver)) {
            for (device, kept_away) in &slice.devices {
                let gpu = device.parent.as_ref().unwrap_or(&device.uuid);
                let (free, product) = of_node.entry(&slice.node).or_default().entry(gpu).or_default();
                *free |= !kept_away;
                *product = device.product.as_deref().filter(|_| product.is_empty()).unwrap_or(product);
            }
        }
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let gpus = |gpus: BTreeMap<&str, (bool, &str)>| SliceGpus {
            capacity: count(gpus.len()),
            allocatable: count(gpus.values().filter(|(free, _)| *free).count()),
            product: gpus
                .values()
                .map(|(_, product)| *product)
                .find(|product| !product.is_empty())
                .unwrap_or_default()
                .to_owned(),
        };
        of_node.into_iter().map(|(node, of)| (node.to_owned(), gpus(of))).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Devices as `node: driver/pool/device`, UUID and parent; then what was refused.
    fn check(texts: &[&str], expected: &[(&str, &str, Option<&str>)], refused: &[&str]) {
        let found = read(texts.iter().map(|text| text.as_bytes()));
        let devices = found.by_node.iter().flat_map(|(node, devices)| devices.iter().map(move |d| (node, d)));
        let devices: Vec<_> =
            devices.map(|(n, d)| (format!("{n}: {}/{}/{}", d.driver, d.pool, d.device), &*d.uuid, d.parent.as_deref())).collect();
        let devices: Vec<_> = devices.iter().map(|(name, uuid, parent)| (name.as_str(), *uuid, *parent)).collect();
        assert_eq!(devices, expected);
        assert_eq!(found.refused.len(), refused.len());
        for (error, words) in found.refused.iter().zip(refused) {
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn attributes_stand_where_each_version_has_them() {
        let v1 = r#"{"spec":{"driver":"d","nodeName":"n","pool":{"name":"p","generation":1},"devices":[
            {"name":"gpu-0","attributes":{"uuid":{"string":"GPU-a"},"index":{"int":0}}},
            {"name":"mig-1","attributes":{"d/uuid":{"string":"MIG-b"},"d/parentUUID":{"string":"GPU-a"}}},
            {"name":"nic","attributes":{"mac":{"string":"x"}}}]}}"#;
        check(&[v1], &[("n: d/p/gpu-0", "GPU-a", None), ("n: d/p/mig-1", "MIG-b", Some("GPU-a"))], &[]);
        let beta = r#"{"spec":{"driver":"d","pool":{"name":"p"},"devices":[
            {"name":"gpu-0","basic":{"attributes":{"uuid":{"string":"GPU-a"}}}}]}}"#;
        check(&[beta], &[(": d/p/gpu-0", "GPU-a", None)], &[]);
    }

    #[test]
    fn an_older_generation_of_a_pool_does_not_count() {
        let slice = |generation: u32, uuid: &str| {
            format!(
                r#"{{"spec":{{"driver":"d","nodeName":"n","pool":{{"name":"n","generation":{generation}}},"devices":[
                {{"name":"gpu-0","attributes":{{"uuid":{{"string":"{uuid}"}}}}}}]}}}}"#
            )
        };
        check(&[&slice(2, "GPU-new"), &slice(1, "GPU-old")], &[("n: d/n/gpu-0", "GPU-new", None)], &[]);
    }

    #[test]
    fn a_slice_that_cannot_be_read_names_its_field_and_costs_no_other() {
        let good = r#"{"spec":{"driver":"d","nodeName":"n","pool":{"name":"n"},"devices":[
            {"name":"gpu-0","attributes":{"uuid":{"string":"GPU-a"}}}]}}"#;
        check(&[r#"{"spec":{"driver":5}}"#, good], &[("n: d/n/gpu-0", "GPU-a", None)], &["spec.driver"]);
    }

    #[test]
    fn a_nodes_gpus_are_counted_whole_from_its_slices() {
        let slice = |name: &str, generation: u32, driver: &str, devices: &str| {
            format!(
                r#"{{"metadata":{{"name":"{name}"}},"spec":{{"driver":"{driver}","nodeName":"n1",
                "pool":{{"name":"p","generation":{generation}}},"devices":[{devices}]}}}}"#
            )
        };
        let gpu = |uuid: &str, more: &str| {
            format!(
                r#"{{"name":"{uuid}","attributes":{{"uuid":{{"string":"{uuid}"}},"productName":{{"string":"NVIDIA X"}}}}{more}}}"#
            )
        };
        let part = |uuid: &str| {
            format!(r#"{{"name":"{uuid}","attributes":{{"uuid":{{"string":"{uuid}"}},"parentUUID":{{"string":"GPU-b"}}}}}}"#)
        };
        let away = r#","taints":[{"key":"k","effect":"NoExecute"}]"#;
        let first = slice("s1", 1, "gpu.nvidia.com", &[gpu("GPU-a", ""), gpu("GPU-c", away)].join(","));
        let cut = slice("s2", 1, "gpu.nvidia.com", &[part("MIG-1"), part("MIG-2")].join(","));
        let nic = slice("s3", 1, "nic.example.com", &gpu("NIC-a", ""));
        let drivers = ["gpu.nvidia.com".to_owned()];
        let mut book = SliceBook::default();
        let (nodes, refused) = book.relist([first.as_bytes(), cut.as_bytes(), nic.as_bytes(), b"{}"]);
        assert_eq!((nodes, refused.len()), (["n1".to_owned()].into(), 1));
        let of = |book: &SliceBook| book.gpus(&drivers).remove("n1");
        let gpus = |capacity, allocatable| Some(SliceGpus { capacity, allocatable, product: "NVIDIA X".into() });
        assert_eq!(of(&book), gpus(3, 2));
        // The pool is published anew: what is left of the old generation does not count.
        book.seen(slice("s4", 2, "gpu.nvidia.com", &gpu("GPU-a", "")).as_bytes()).unwrap();
        assert_eq!(of(&book), gpus(1, 1));
        book.deleted(slice("s4", 2, "gpu.nvidia.com", "").as_bytes()).unwrap();
        assert_eq!(of(&book), gpus(3, 2));
        assert_eq!(book.relist([]).0.len(), 1);
        assert_eq!(of(&book), None);
    }
}
