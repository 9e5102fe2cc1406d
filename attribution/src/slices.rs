//! ResourceSlices to the devices that claims name: driver, pool and device to a UUID. Versions v1 and v1beta2 have a device's
//! attributes in the device, v1beta1 has them under `basic`.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use crate::holders::SliceDevice;

/// A slice that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("a ResourceSlice cannot be read: {field}: {what}")]
pub struct BadSlice {
    /// Path of the field at fault.
    pub field: String,
    /// What is wrong with it.
    pub what: String,
}

#[derive(Deserialize)]
struct Slice {
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    driver: String,
    pool: Pool,
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
    basic: Option<Basic>,
}

#[derive(Deserialize)]
struct Basic {
    attributes: Option<BTreeMap<String, Attribute>>,
}

/// One attribute; of its kinds only texts matter here.
#[derive(Deserialize)]
struct Attribute {
    string: Option<String>,
}

/// The devices of some slices that have a UUID. Of a pool only the newest generation counts: older slices of it are about to go.
pub fn devices<'a>(slices: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<SliceDevice>, BadSlice> {
    let mut specs = Vec::new();
    let mut newest: HashMap<(String, String), i64> = HashMap::new();
    for json in slices {
        let mut reader = serde_json::Deserializer::from_slice(json);
        let slice: Slice = serde_path_to_error::deserialize(&mut reader)
            .map_err(|error| BadSlice { field: error.path().to_string(), what: error.inner().to_string() })?;
        let spec = slice.spec;
        let generation = newest.entry((spec.driver.clone(), spec.pool.name.clone())).or_insert(spec.pool.generation);
        *generation = spec.pool.generation.max(*generation);
        specs.push(spec);
    }
    let mut devices = Vec::new();
    for spec in specs {
        let key = (spec.driver, spec.pool.name);
        if newest.get(&key) != Some(&spec.pool.generation) {
            continue;
        }
        for device in spec.devices.unwrap_or_default() {
            let attributes = device.attributes.or(device.basic.and_then(|basic| basic.attributes)).unwrap_or_default();
            // A driver may write the domain of its own attributes, or leave it away.
            let text = |name: &str| {
                let own = attributes.get(name).or_else(|| attributes.get(&format!("{}/{name}", key.0)));
                own.and_then(|attribute| attribute.string.clone()).filter(|text| !text.is_empty())
            };
            let Some(uuid) = text("uuid") else { continue };
            let parent = text("parentUUID");
            devices.push(SliceDevice { driver: key.0.clone(), pool: key.1.clone(), device: device.name, uuid, parent });
        }
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(texts: &[&str]) -> Result<Vec<(String, String, Option<String>)>, String> {
        let found = devices(texts.iter().map(|text| text.as_bytes())).map_err(|e| e.to_string())?;
        Ok(found.into_iter().map(|d| (format!("{}/{}/{}", d.driver, d.pool, d.device), d.uuid, d.parent)).collect())
    }

    #[test]
    fn attributes_stand_where_each_version_has_them() {
        let v1 = r#"{"spec":{"driver":"d","pool":{"name":"n","generation":1},"devices":[
            {"name":"gpu-0","attributes":{"uuid":{"string":"GPU-a"},"index":{"int":0}}},
            {"name":"mig-1","attributes":{"d/uuid":{"string":"MIG-b"},"d/parentUUID":{"string":"GPU-a"}}},
            {"name":"nic","attributes":{"mac":{"string":"x"}}}]}}"#;
        let expected = [("d/n/gpu-0", "GPU-a", None), ("d/n/mig-1", "MIG-b", Some("GPU-a"))];
        let expected: Vec<_> =
            expected.iter().map(|(id, uuid, parent)| (id.to_string(), uuid.to_string(), parent.map(str::to_owned))).collect();
        assert_eq!(read(&[v1]), Ok(expected));
        let beta = r#"{"spec":{"driver":"d","pool":{"name":"n"},"devices":[
            {"name":"gpu-0","basic":{"attributes":{"uuid":{"string":"GPU-a"}}}}]}}"#;
        assert_eq!(read(&[beta]), Ok(vec![("d/n/gpu-0".into(), "GPU-a".into(), None)]));
    }

    #[test]
    fn an_older_generation_of_a_pool_does_not_count() {
        let slice = |generation: u32, uuid: &str| {
            format!(
                r#"{{"spec":{{"driver":"d","pool":{{"name":"n","generation":{generation}}},"devices":[
                {{"name":"gpu-0","attributes":{{"uuid":{{"string":"{uuid}"}}}}}}]}}}}"#
            )
        };
        assert_eq!(read(&[&slice(2, "GPU-new"), &slice(1, "GPU-old")]), Ok(vec![("d/n/gpu-0".into(), "GPU-new".into(), None)]));
    }

    #[test]
    fn a_slice_that_cannot_be_read_names_its_field() {
        let error = read(&[r#"{"spec":{"driver":5}}"#]).unwrap_err();
        assert!(error.contains("spec.driver"), "{error}");
    }
}
