//! Runs a case of `podresources.jsonl` through [`crate::holders`], from its JSON or its wire form.

use std::collections::BTreeSet;

use prost::Message;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    holders::{Holders, Known, NodeGpu, NodeInstance, ResourceNames, SliceDevice, holders},
    podres::v1,
};

/// Why a case cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// Not the shape of a case.
    #[error("not a pod-resources case; see the vectors' README")]
    Shape(#[from] serde_json::Error),
    /// The wire form is no protobuf of this kind.
    #[error("the wire form is no ListPodResourcesResponse")]
    Wire(#[from] prost::DecodeError),
}

#[derive(Deserialize)]
struct Case {
    #[serde(default)]
    list_response: Value,
    gpus: Vec<Gpu>,
    #[serde(default)]
    resource_slices: Vec<Slice>,
    #[serde(default)]
    pod_phases: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    claims: Vec<Claim>,
}

#[derive(Deserialize)]
struct Gpu {
    index: u32,
    minor: Option<u32>,
    uuid: String,
    #[serde(default)]
    mig: Vec<Mig>,
}

#[derive(Deserialize)]
struct Mig {
    uuid: String,
    gi: u32,
    ci: u32,
    profile: String,
}

#[derive(Deserialize)]
struct Slice {
    driver: String,
    pool: String,
    device: String,
    uuid: String,
    #[serde(rename = "parentUUID")]
    parent: Option<String>,
    profile: Option<String>,
}

#[derive(Deserialize)]
struct Claim {
    namespace: String,
    name: String,
    results: Vec<ClaimResult>,
}

#[derive(Deserialize)]
struct ClaimResult {
    driver: String,
    pool: String,
    device: String,
    #[serde(rename = "adminAccess", default)]
    admin_access: bool,
}

/// The answer of a case in the shape of its `expect` and `unmatched`, from the JSON form of the list.
pub fn from_json(case: &str) -> Result<Value, CaseError> {
    let parsed: Case = serde_json::from_str(case)?;
    let list = list_from_json(&parsed.list_response)?;
    Ok(shown(&holders(&list, &known(parsed), &ResourceNames::default())))
}

/// The same from the wire form.
pub fn from_wire(case: &str, wire: &[u8]) -> Result<Value, CaseError> {
    let parsed: Case = serde_json::from_str(case)?;
    let list = v1::ListPodResourcesResponse::decode(wire)?;
    Ok(shown(&holders(&list, &known(parsed), &ResourceNames::default())))
}

fn known(case: Case) -> Known {
    let terminal = |(name, phase): (String, String)| {
        let (namespace, pod) = name.split_once('/')?;
        ["Succeeded", "Failed"].contains(&phase.as_str()).then(|| (namespace.to_owned(), pod.to_owned()))
    };
    let instance = |m: Mig| NodeInstance { uuid: Some(m.uuid), gi: m.gi, ci: Some(m.ci), profile: m.profile };
    let gpu =
        |g: Gpu| NodeGpu { index: g.index, minor: g.minor, uuid: g.uuid, instances: g.mig.into_iter().map(instance).collect() };
    let slice = |s: Slice| SliceDevice {
        driver: s.driver,
        pool: s.pool,
        device: s.device,
        uuid: s.uuid,
        parent: s.parent,
        profile: s.profile,
        product: None,
    };
    let mut admin_claims = BTreeSet::new();
    for claim in case.claims {
        for result in claim.results.into_iter().filter(|result| result.admin_access) {
            admin_claims.insert((claim.namespace.clone(), claim.name.clone(), result.driver, result.pool, result.device));
        }
    }
    Known {
        node: None,
        gpus: case.gpus.into_iter().map(gpu).collect(),
        slices: case.resource_slices.into_iter().map(slice).collect(),
        admin_claims,
        unread_claims: BTreeSet::new(),
        ended_pods: case.pod_phases.into_iter().filter_map(terminal).collect(),
    }
}

/// A pod-resources answer in JSON, as vectors and imports have it: with the proto's field names, or with those that `grpcurl`
/// and other printers of protobuf's JSON give them (`podResources`). Keys that a newer kubelet may add are skipped; an object
/// that is no such answer at all is refused, for it would read as a node where nobody holds anything.
pub fn list_from_json(list: &Value) -> Result<v1::ListPodResourcesResponse, serde_json::Error> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct List {
        #[serde(alias = "podResources")]
        pod_resources: Vec<Pod>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Pod {
        name: String,
        namespace: String,
        containers: Vec<Container>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Container {
        name: String,
        devices: Vec<Devices>,
        #[serde(alias = "dynamicResources")]
        dynamic_resources: Vec<Dynamic>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Devices {
        #[serde(alias = "resourceName")]
        resource_name: String,
        #[serde(alias = "deviceIds")]
        device_ids: Vec<String>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Dynamic {
        #[serde(alias = "claimName")]
        claim_name: String,
        #[serde(alias = "claimNamespace")]
        claim_namespace: String,
        #[serde(alias = "claimResources")]
        claim_resources: Vec<Resource>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Resource {
        #[serde(alias = "driverName")]
        driver_name: String,
        #[serde(alias = "poolName")]
        pool_name: String,
        #[serde(alias = "deviceName")]
        device_name: String,
        #[serde(alias = "shareId")]
        share_id: Option<String>,
    }
    let is_answer = list
        .as_object()
        .is_some_and(|o| o.is_empty() || ["pod_resources", "podResources"].iter().any(|key| o.contains_key(*key)));
    if !is_answer {
        return Err(serde::de::Error::custom("no `pod_resources` in it; is it the kubelet's answer to List?"));
    }
    let list = List::deserialize(list)?;
    let resource = |r: Resource| v1::ClaimResource {
        driver_name: r.driver_name,
        pool_name: r.pool_name,
        device_name: r.device_name,
        share_id: r.share_id,
        ..Default::default()
    };
    let dynamic = |d: Dynamic| v1::DynamicResource {
        claim_name: d.claim_name,
        claim_namespace: d.claim_namespace,
        claim_resources: d.claim_resources.into_iter().map(resource).collect(),
    };
    let devices = |d: Devices| v1::ContainerDevices { resource_name: d.resource_name, device_ids: d.device_ids, topology: None };
    let container = |c: Container| v1::ContainerResources {
        name: c.name,
        devices: c.devices.into_iter().map(devices).collect(),
        dynamic_resources: c.dynamic_resources.into_iter().map(dynamic).collect(),
        ..Default::default()
    };
    let pod = |p: Pod| v1::PodResources {
        name: p.name,
        namespace: p.namespace,
        containers: p.containers.into_iter().map(container).collect(),
        ..Default::default()
    };
    Ok(v1::ListPodResourcesResponse { pod_resources: list.pod_resources.into_iter().map(pod).collect() })
}

fn shown(found: &Holders) -> Value {
    let held: Vec<Value> = found
        .held
        .iter()
        .map(|held| {
            let pods: Vec<Value> = held
                .holds
                .iter()
                .map(|hold| {
                    let share = hold.share.0 as f64 / hold.share.1 as f64;
                    json!({"namespace": hold.namespace, "pod": hold.pod, "container": hold.container, "share": share, "ids": hold.ids})
                })
                .collect();
            json!({"device": held.device, "pods": pods, "conflict": held.conflict})
        })
        .collect();
    let unmatched: BTreeSet<&str> = found.unmatched.iter().map(|u| u.id.as_str()).collect();
    json!({"expect": held, "unmatched": unmatched})
}

/// Whether `got` (of [`from_json`]) is what the case expects; order is free, shares are compared to a billionth.
pub fn agrees(got: &Value, case: &Value) -> bool {
    type Hold = (String, i64, u64);
    let entries = |list: &Value| -> Vec<(String, bool, Vec<Hold>)> {
        let mut all: Vec<_> = list
            .as_array()
            .into_iter()
            .flatten()
            .map(|entry| {
                let mut pods: Vec<_> = entry["pods"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|p| {
                        let name = format!("{}/{}/{}", p["namespace"], p["pod"], p["container"]);
                        let share = (p["share"].as_f64().unwrap_or(f64::NAN) * 1e9).round() as i64;
                        (name, share, p["ids"].as_u64().unwrap_or(u64::MAX))
                    })
                    .collect();
                pods.sort();
                (entry["device"].to_string(), entry["conflict"] == Value::Bool(true), pods)
            })
            .collect();
        all.sort();
        all
    };
    let ids = |list: &Value| -> BTreeSet<String> { list.as_array().into_iter().flatten().map(Value::to_string).collect() };
    entries(&got["expect"]) == entries(&case["expect"]) && ids(&got["unmatched"]) == ids(&case["unmatched"])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_answer_is_read_in_both_spellings_and_nothing_else_passes_for_an_empty_one() {
        let snake = json!({"pod_resources": [{"name": "p", "namespace": "n", "containers": [{"name": "c", "cpu_ids": [1],
            "devices": [{"resource_name": "nvidia.com/gpu", "device_ids": ["GPU-a"]}],
            "dynamic_resources": [{"claim_name": "x", "claim_namespace": "n",
                "claim_resources": [{"driver_name": "d", "pool_name": "o", "device_name": "g", "share_id": "s"}]}]}]}]});
        let camel = json!({"podResources": [{"name": "p", "namespace": "n", "containers": [{"name": "c", "cpuIds": ["1"],
            "devices": [{"resourceName": "nvidia.com/gpu", "deviceIds": ["GPU-a"]}],
            "dynamicResources": [{"claimName": "x", "claimNamespace": "n",
                "claimResources": [{"driverName": "d", "poolName": "o", "deviceName": "g", "shareId": "s"}]}]}]}]});
        let read = list_from_json(&snake).unwrap();
        assert_eq!(read, list_from_json(&camel).unwrap());
        assert_eq!(read.pod_resources[0].containers[0].devices[0].device_ids, ["GPU-a"]);
        assert!(list_from_json(&json!({})).unwrap().pod_resources.is_empty(), "what is printed of an empty answer");
        for other in [json!({"items": []}), json!({"code": 14, "message": "restarting"}), json!([]), json!(null), json!("x")] {
            assert!(list_from_json(&other).is_err(), "{other}");
        }
    }
}
