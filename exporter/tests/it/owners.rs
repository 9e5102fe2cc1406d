//! Pods by a kubelet of ours: its pod-resources API, and its Pods API for UIDs and labels.

#[path = "../../../ingest/tests/it/kubelet.rs"]
#[allow(dead_code)]
mod kubelet;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use attribution::{NodeGpu, ResourceNames, holders::NodeInstance, kubelet::v1alpha1, podres::v1};
use exporter::owners::{self, How, Listing, Owners};

/// A kubelet of ours with both of its sockets, in a folder: `resources.sock` and `pods.sock`.
pub struct Kubelet {
    pub devices: kubelet::Kubelet,
    pods: kubelet::PodsApi,
}

impl Kubelet {
    pub fn start(folder: &Path) -> Self {
        Self {
            devices: kubelet::Kubelet::start(&folder.join("resources.sock")),
            pods: kubelet::PodsApi::start(&folder.join("pods.sock")),
        }
    }

    /// The pods that there are: name, UID, device ids, a label.
    pub fn is(&self, pods: &[(&str, &str, &[&str], &str)]) {
        let devices = pods.iter().map(|(name, _, ids, _)| v1::PodResources {
            name: (*name).into(),
            namespace: "ml".into(),
            containers: vec![v1::ContainerResources {
                name: "main".into(),
                devices: vec![v1::ContainerDevices {
                    resource_name: "nvidia.com/gpu".into(),
                    device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
                    ..v1::ContainerDevices::default()
                }],
                ..v1::ContainerResources::default()
            }],
            ..v1::PodResources::default()
        });
        let objects = pods.iter().map(|(name, uid, _, label)| v1alpha1::Pod {
            metadata: Some(v1alpha1::ObjectMeta {
                name: (*name).into(),
                namespace: "ml".into(),
                uid: (*uid).into(),
                labels: [("team".to_owned(), (*label).to_owned())].into(),
                ..v1alpha1::ObjectMeta::default()
            }),
            ..v1alpha1::Pod::default()
        });
        let (devices, objects) = (devices.collect(), objects.collect());
        *self.pods.0.lock().unwrap() = objects;
        *self.devices.0.lock().unwrap() = devices;
    }
}

pub fn gpus() -> Vec<NodeGpu> {
    let gpu = |index: u32, instances| NodeGpu { index, minor: Some(index), uuid: format!("GPU-{index}"), instances };
    let part = |uuid: &str, ci| NodeInstance { uuid: Some(uuid.into()), gi: 7, ci: Some(ci), profile: "1g.10gb".into() };
    vec![gpu(0, vec![]), gpu(1, vec![part("MIG-a", 0), part("MIG-b", 1)]), gpu(2, vec![])]
}

/// What the exporter asks, of a kubelet in `folder`.
fn how(folder: &Path, details: bool) -> How {
    How {
        socket: folder.join("resources.sock"),
        interval: Duration::from_millis(50),
        names: ResourceNames::default(),
        node: Some("n".into()),
        details,
        claims: false,
        pods_api: folder.join("pods.sock"),
        kubeconfig: None,
    }
}

/// Looks until the listing is as wanted.
pub async fn until(owners: &Owners, what: &str, wanted: impl Fn(&Listing) -> bool) -> Arc<Listing> {
    let began = Instant::now();
    loop {
        let listing = owners.listing(Instant::now());
        if wanted(&listing) {
            return listing;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{what} does not come: {listing:?} {:?}", owners.failures());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_told_with_uids_and_labels_and_what_is_not_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path());
    kubelet.is(&[
        ("train", "uid-1", &["GPU-0"], "a \"b\"\n"),
        ("part", "uid-2", &["MIG-a"], "b"),
        ("odd", "uid-3", &["GPU-9", "what?"], "c"),
    ]);
    let (owners, looked) = (Arc::<Owners>::default(), Arc::new(AtomicU64::new(0)));
    let how = how(folder.path(), true);
    let seen = looked.clone();
    let asking = tokio::spawn(owners::follow(how, owners.clone(), gpus, move || {
        seen.fetch_add(1, Ordering::Relaxed);
    }));
    let key = |gpu: &str, gi| (gpu.to_owned(), gi);
    let listing = until(&owners, "pods", |listing| {
        listing.owned.get(&("GPU-0".to_owned(), None)).is_some_and(|owned| owned.holders[0].uid.is_some())
    })
    .await;
    let holder = &listing.owned[&key("GPU-0", None)].holders[0];
    assert_eq!(
        (holder.pod.as_str(), holder.uid.as_deref(), holder.labels["team"].as_str()),
        ("train", Some("uid-1"), "a \"b\"\n")
    );
    assert_eq!(listing.owned[&key("GPU-1", Some(7))].holders[0].pod, "part");
    assert!(!listing.owned.contains_key(&key("GPU-2", None)), "it is free");
    assert_eq!((listing.unmatched.get("device_unknown"), listing.unmatched.get("id_shape_unknown")), (Some(&1), Some(&1)));
    assert!(looked.load(Ordering::Relaxed) > 0, "a device that is not known is looked for");
    assert!(owners.failures()["device_unknown"] > 0);

    // The same name, after a while without it: another pod.
    kubelet.is(&[]);
    until(&owners, "nobody", |listing| listing.owned.is_empty()).await;
    kubelet.is(&[("train", "uid-9", &["GPU-0", "GPU-2"], "z")]);
    let listing = until(&owners, "the new pod", |listing| {
        listing.owned.get(&("GPU-2".to_owned(), None)).is_some_and(|owned| owned.holders[0].uid.is_some())
    })
    .await;
    assert_eq!(listing.owned[&key("GPU-0", None)].holders[0].uid.as_deref(), Some("uid-9"));
    asking.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_devices_have_parts_and_conflicts_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path());
    kubelet.is(&[
        ("a", "1", &["GPU-0::0", "GPU-0::1"], ""),
        ("b", "2", &["GPU-0::2"], ""),
        ("c", "3", &["GPU-2"], ""),
        ("d", "4", &["GPU-2"], ""),
    ]);
    let owners = Arc::<Owners>::default();
    let how = how(folder.path(), false);
    let asking = tokio::spawn(owners::follow(how, owners.clone(), gpus, || {}));
    let listing = until(&owners, "pods", |listing| !listing.owned.is_empty()).await;
    let shared = &listing.owned[&("GPU-0".to_owned(), None)];
    assert_eq!((shared.pods(), shared.conflict), (2, false));
    assert_eq!(shared.holders.iter().map(|holder| holder.share).collect::<Vec<_>>(), [(2, 3), (1, 3)]);
    assert!(shared.holders.iter().all(|holder| holder.uid.is_none()), "not asked for");
    assert!(listing.owned[&("GPU-2".to_owned(), None)].conflict);
    // Two compute instances of one GPU instance: one device, each holder once.
    kubelet.is(&[("a", "1", &["MIG-a", "MIG-b"], "")]);
    let key = ("GPU-1".to_owned(), Some(7));
    let listing = until(&owners, "one pod", |listing| listing.owned.contains_key(&key)).await;
    assert_eq!(listing.owned[&key].holders.iter().map(|holder| holder.share).collect::<Vec<_>>(), [(2, 2)]);
    kubelet.is(&[("a", "1", &["MIG-a"], ""), ("b", "2", &["MIG-b"], "")]);
    let listing = until(&owners, "two pods", |listing| listing.owned.get(&key).is_some_and(|owned| owned.pods() == 2)).await;
    assert_eq!(listing.owned[&key].holders.iter().map(|holder| holder.share).collect::<Vec<_>>(), [(1, 2), (1, 2)]);
    asking.abort();
}

/// A socket that is no kubelet's, or one gone mad: what is left out is counted, and the rest is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_have_limits_of_name_and_number() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path());
    let (long, names) = ("x".repeat(60_000), (0..1000).map(|n| format!("pod-{n:04}")).collect::<Vec<_>>());
    let ids: Vec<String> = (0..1000).map(|n| format!("GPU-0::{n}")).collect();
    let ids: Vec<[&str; 1]> = ids.iter().map(|id| [id.as_str()]).collect();
    let mut pods: Vec<(&str, &str, &[&str], &str)> =
        names.iter().zip(&ids).map(|(name, ids)| (name.as_str(), "u", &ids[..], "")).collect();
    pods.push((&long, "u", &["GPU-2"], ""));
    pods.push(("odd \"name\"\n", "u", &["GPU-2"], ""));
    kubelet.is(&pods);
    let owners = Arc::<Owners>::default();
    let how = how(folder.path(), false);
    let asking = tokio::spawn(owners::follow(how, owners.clone(), gpus, || {}));
    let listing = until(&owners, "pods", |listing| !listing.owned.is_empty()).await;
    assert_eq!(listing.owned[&("GPU-0".to_owned(), None)].holders.len(), 256);
    assert_eq!(listing.owned[&("GPU-2".to_owned(), None)].holders[0].pod, "odd \"name\"\n");
    assert_eq!(listing.unmatched["holder_refused"], 1000 - 256 + 1);
    asking.abort();
}
