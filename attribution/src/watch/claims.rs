//! Claims with admin access, which the kubelet's list does not tell from others (KEP-5018): they look at devices that others hold.

use kube::core::params::GetParams;
use serde::Deserialize;

use super::{
    api::{Api, ApiError, Call},
    follow::Resource,
};
use crate::holders::{ClaimName, ClaimedDevice};

/// Largest ResourceClaim: etcd takes objects up to 1.5 MB.
const MAX_CLAIM_BYTES: usize = 2 << 20;

/// Devices that the claim has admin access to; none at all where there is no such claim, whatever the reason.
pub async fn admin_access(api: &Api, claim: &ClaimName) -> Result<Vec<ClaimedDevice>, ApiError> {
    let call = Call { verb: "get", resource: "resourceclaims" };
    let (namespace, name) = claim;
    // The kubelet's words become a part of a path.
    let fits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
    if !fits(namespace) || !fits(name) || name.bytes().all(|b| b == b'.') || namespace.bytes().all(|b| b == b'.') {
        return Ok(Vec::new());
    }
    for path in Resource::Claims.paths() {
        let Some(group) = path.strip_suffix("/resourceclaims") else { continue };
        let request = Api::at(&format!("{group}/namespaces/{namespace}/resourceclaims")).get(name, &GetParams::default());
        match api.whole(call, request, MAX_CLAIM_BYTES).await {
            Ok((bytes, _)) => return devices(&bytes, claim).map_err(|what| ApiError::damaged(call, what)),
            Err(ApiError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Vec::new())
}

#[derive(Deserialize)]
struct Claim {
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
struct Status {
    allocation: Option<Allocation>,
}

#[derive(Deserialize)]
struct Allocation {
    #[serde(default)]
    devices: Devices,
}

#[derive(Default, Deserialize)]
struct Devices {
    results: Option<Vec<Allocated>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Allocated {
    driver: String,
    pool: String,
    device: String,
    admin_access: Option<bool>,
}

fn devices(json: &[u8], (namespace, name): &ClaimName) -> Result<Vec<ClaimedDevice>, serde_json::Error> {
    let claim: Claim = serde_json::from_slice(json)?;
    let results = claim.status.allocation.and_then(|allocation| allocation.devices.results).unwrap_or_default();
    let admin = results.into_iter().filter(|result| result.admin_access == Some(true));
    Ok(admin.map(|result| (namespace.clone(), name.clone(), result.driver, result.pool, result.device)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_results_with_admin_access_count() {
        let name = ("monitoring".to_owned(), "watch".to_owned());
        let json = br#"{"status":{"allocation":{"devices":{"results":[
            {"driver":"gpu.nvidia.com","pool":"n1","device":"gpu-0","request":"a","adminAccess":true},
            {"driver":"gpu.nvidia.com","pool":"n1","device":"gpu-1","request":"b"}]}}}}"#;
        let found = devices(json, &name).expect("a claim");
        let of = |device: &str| ("monitoring".into(), "watch".into(), "gpu.nvidia.com".into(), "n1".into(), device.to_owned());
        assert_eq!(found, [of("gpu-0")]);
        assert!(devices(br#"{"status":{}}"#, &name).expect("a claim without devices").is_empty());
        assert!(devices(br#"{"status":7}"#, &name).is_err());
    }
}
