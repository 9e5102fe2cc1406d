//! UIDs, labels and claims from a real API server, with the rights of deploy/exporter.yaml and no others.

#[path = "../../../ingest/tests/it/cluster.rs"]
#[allow(dead_code)]
mod cluster;

use std::{path::Path, sync::Arc, time::Duration};

use attribution::ResourceNames;
use cluster::{Cluster, PODS, pod};
use exporter::owners::{self, How, Owners};
use serde_json::json;

use crate::owners::{Kubelet, gpus, until};

/// What the exporter may do: the manifest without its DaemonSet, in a namespace that is there.
async fn grant(cluster: &Cluster) {
    let manifest = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/exporter.yaml")).unwrap();
    let (rights, daemons) = manifest.split_once("apiVersion: apps/v1").unwrap();
    assert!(daemons.contains("kind: DaemonSet"));
    cluster.create("/api/v1/namespaces", json!({"metadata": {"name": "strandline"}})).await;
    cluster.apply(rights.trim_end().trim_end_matches("---")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_api_server_tells_labels_uids_and_claims_with_the_rights_that_are_documented() {
    let cluster = Cluster::start().await;
    grant(&cluster).await;
    cluster.create("/api/v1/namespaces", json!({"metadata": {"name": "ml"}})).await;
    cluster.create("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    let created = cluster.create(PODS, pod("train", 1, None, json!({"nodeName": "n1"}))).await;
    cluster.create(PODS, pod("elsewhere", 1, None, json!({"nodeName": "n2"}))).await;
    let device =
        |name: &str, uuid: &str| json!({"name": name, "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid}}});
    let spec = json!({
        "driver": "gpu.nvidia.com", "nodeName": "n1", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [device("gpu-0", "GPU-0"), device("gpu-2", "GPU-2")],
    });
    cluster.create("/apis/resource.k8s.io/v1/resourceslices", json!({"metadata": {"name": "s1"}, "spec": spec})).await;
    let request = json!({"name": "one", "exactly": {"deviceClassName": "gpu.nvidia.com"}});
    let claim = json!({"metadata": {"name": "claim"}, "spec": {"devices": {"requests": [request]}}});
    cluster.create("/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims", claim).await;

    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path());
    kubelet.is(&[("train", "", &["GPU-0"], "")]);
    kubelet.devices.claims("by-claim", "claim", "n1", "gpu-2");

    let owners = Arc::<Owners>::default();
    let how = How {
        socket: folder.path().join("resources.sock"),
        interval: Duration::from_millis(100),
        names: ResourceNames::default(),
        node: Some("n1".into()),
        details: true,
        claims: true,
        pods_api: folder.path().join("none.sock"),
        kubeconfig: Some(cluster.kubeconfig("strandline", "strandline-exporter", cluster.port).await),
    };
    let asking = tokio::spawn(owners::follow(how.clone(), owners.clone(), gpus, || {}));
    let (plain, by_claim) = (("GPU-0".to_owned(), None), ("GPU-2".to_owned(), None));
    let listing = until(&owners, "the API server's word", |listing| {
        listing.owned.get(&plain).is_some_and(|owned| owned.holders[0].uid.is_some()) && listing.owned.contains_key(&by_claim)
    })
    .await;
    let holder = &listing.owned[&plain].holders[0];
    assert_eq!(holder.uid.as_deref(), created["metadata"]["uid"].as_str());
    assert_eq!(holder.labels["kueue.x-k8s.io/queue-name"], "night");
    assert_eq!(listing.owned[&by_claim].holders[0].pod, "by-claim");
    let refused: Vec<_> = owners.failures().into_iter().filter(|(reason, _)| *reason == "forbidden").collect();
    assert!(refused.is_empty(), "{refused:?}");
    asking.abort();

    // Without them pods are told by the kubelet alone, and why is counted.
    let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/strandline-exporter";
    cluster.call("DELETE", binding, None).await;
    let poor = Arc::<Owners>::default();
    let asking = tokio::spawn(owners::follow(how, poor.clone(), gpus, || {}));
    let listing = until(&poor, "a refusal", |_| poor.failures().contains_key("forbidden")).await;
    let listing =
        if listing.owned.is_empty() { until(&poor, "the kubelet's word", |l| !l.owned.is_empty()).await } else { listing };
    assert_eq!((listing.owned[&plain].holders[0].pod.as_str(), &listing.owned[&plain].holders[0].uid), ("train", &None));
    assert!(!listing.owned.contains_key(&by_claim) && listing.unmatched.contains_key("claim_unread"), "{:?}", listing.unmatched);
    asking.abort();
}
