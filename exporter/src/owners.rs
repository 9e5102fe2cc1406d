//! Which pods hold the node's GPUs: the kubelet's pod-resources API says which device, and where labels or UIDs are asked for the
//! kubelet's Pods API, or the API server, says more of each pod.
//!
//! Asked on a clock of its own; scrapes read what was found last. A listing that fails leaves the last one standing for
//! [`HOLD`], and is counted by its reason.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use attribution::{
    Known, NodeGpu, ResourceNames,
    holders::{self, SliceDevice},
    kubelet, podres,
    watch::{Api, admin_access, list_pods, list_slices},
};
use schemas::{Timestamp, status::JoinReason};
use serde::Deserialize;
use tracing::{info, warn};

/// How long the last listing stands where the kubelet does not answer.
pub const HOLD: Duration = Duration::from_secs(60);
/// Time for one answer of the kubelet, or the API server.
const ANSWER: Duration = Duration::from_secs(10);
/// What the kubelet's Pods API, and what the API server said is asked anew after this long; sooner where a pod is not known. So long a
/// pod that came back under its name between two listings may carry what the one before was called.
const LOCAL_AGE: Duration = Duration::from_secs(15);
const API_AGE: Duration = Duration::from_secs(60);
/// The least time between two questions about pods.
const ASK_AT_LEAST: Duration = Duration::from_secs(1);
/// Longest name of a pod, a namespace or a container that is taken, bytes; Kubernetes' own limit is 253.
const MAX_NAME: usize = 512;
/// Most holders of a device; a GPU is shared by some tens at most.
const MOST_HOLDERS: usize = 256;
/// Reason of holders that are left out for those limits.
const REFUSED: &str = "holder_refused";
/// Claims that are looked up in one look.
const CLAIMS_A_LOOK: usize = 16;

/// What to ask, and where.
#[derive(Clone, Debug)]
pub struct How {
    /// The kubelet's pod-resources socket.
    pub socket: PathBuf,
    /// Time between two listings.
    pub interval: Duration,
    /// Resource names that stand for GPUs.
    pub names: ResourceNames,
    /// This node's name in the cluster: to ask the API server about its own pods and slices only.
    pub node: Option<String>,
    /// Whether a pod's UID and labels are wanted.
    pub details: bool,
    /// Whether devices of claims (DRA) are looked up.
    pub claims: bool,
    /// The kubelet's Pods API socket; used for details where it is there.
    pub pods_api: PathBuf,
    /// How the API server is reached; none: the pod's service account, else `KUBECONFIG`.
    pub kubeconfig: Option<PathBuf>,
}

/// A container's hold on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Namespace.
    pub namespace: String,
    /// Pod.
    pub pod: String,
    /// Container.
    pub container: String,
    /// UID of the pod, where it was asked for and is known.
    pub uid: Option<String>,
    /// Labels of the pod, where they were asked for and are known.
    pub labels: Arc<BTreeMap<String, String>>,
    /// Its share among those that hold the device: numerator and denominator. The shares of a device add up to 1.
    pub share: (u64, u64),
}

/// Who holds a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    /// Containers, in order of namespace, pod, container.
    pub holders: Vec<Holder>,
    /// Two pods claim it without sharing it.
    pub conflict: bool,
}

impl Owned {
    /// How many pods hold it.
    pub fn pods(&self) -> usize {
        self.holders.iter().map(|holder| (&holder.namespace, &holder.pod)).collect::<BTreeSet<_>>().len()
    }
}

/// A device: UUID of the GPU, and the GPU instance of it, if one is meant.
pub type DeviceKey = (String, Option<u32>);

/// What one listing says.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Held devices.
    pub owned: BTreeMap<DeviceKey, Owned>,
    /// Ids that no device answers to, by reason.
    pub unmatched: BTreeMap<&'static str, u64>,
    /// When it was made; none: never.
    pub at: Option<Instant>,
}

/// What is known of holders; shared between who asks and who prints.
#[derive(Debug, Default)]
pub struct Owners {
    listing: Mutex<Arc<Listing>>,
    failures: Mutex<BTreeMap<&'static str, u64>>,
}

impl Owners {
    /// The listing that stands at `now`: one that is too old says nothing.
    pub fn listing(&self, now: Instant) -> Arc<Listing> {
        let listing = locked(&self.listing).clone();
        let old = listing.at.is_none_or(|at| now.saturating_duration_since(at) > HOLD);
        if old { Arc::new(Listing { at: listing.at, ..Listing::default() }) } else { listing }
    }

    /// Failures so far by reason: of the kubelet's socket, of the API server, and of ids.
    pub fn failures(&self) -> BTreeMap<&'static str, u64> {
        locked(&self.failures).clone()
    }

    fn count(&self, reason: &'static str, times: u64) {
        *locked(&self.failures).entry(reason).or_default() += times;
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of a pod beside its devices.
#[derive(Clone, Debug, Default)]
struct Pod {
    uid: String,
    labels: Arc<BTreeMap<String, String>>,
}

/// What the asker keeps between two listings.
struct Desk {
    how: How,
    owners: Arc<Owners>,
    pods: HashMap<(String, String), Pod>,
    pods_at: Option<Instant>,
    slices: Vec<SliceDevice>,
    slices_at: Option<Instant>,
    admin: BTreeSet<holders::ClaimedDevice>,
    claims_read: BTreeSet<holders::ClaimName>,
    api: Option<Api>,
    asked_at: Option<Instant>,
    said: BTreeMap<&'static str, &'static str>,
}

/// Asks again and again, until the task is dropped. `gpus` gives the node's GPUs; `unknown` is called where an id names a device
/// that is not known, which a new census may find.
pub async fn follow(how: How, owners: Arc<Owners>, gpus: impl Fn() -> Vec<NodeGpu>, unknown: impl Fn()) {
    let mut client = None;
    let mut desk = Desk {
        how,
        owners,
        pods: HashMap::new(),
        pods_at: None,
        slices: Vec::new(),
        slices_at: None,
        admin: BTreeSet::new(),
        claims_read: BTreeSet::new(),
        api: None,
        asked_at: None,
        said: BTreeMap::new(),
    };
    let mut ticks = tokio::time::interval(desk.how.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if client.is_none() {
            client =
                podres::Client::new(&desk.how.socket, ANSWER).map_err(|err| desk.fail("pod-resources", err.reason(), &err)).ok();
        }
        let Some(client) = &mut client else { continue };
        match client.list().await {
            Ok(list) => {
                desk.well("pod-resources");
                desk.look_up(&list).await;
                let listing = desk.listing(&list, gpus());
                if listing.unmatched.contains_key(JoinReason::DeviceUnknown.as_str()) {
                    unknown();
                }
                *locked(&desk.owners.listing) = Arc::new(listing);
            }
            Err(err) => desk.fail("pod-resources", err.reason(), &err),
        }
    }
}

impl Desk {
    /// Counts a failure, and says it where it is another than before.
    fn fail(&mut self, who: &'static str, reason: &'static str, err: &dyn std::error::Error) {
        self.owners.count(reason, 1);
        if self.said.insert(who, reason) != Some(reason) {
            warn!(who, err = %crate::chain::chain(err), "pods of GPUs cannot be told; what was told last stands for a minute");
        }
    }

    fn well(&mut self, who: &'static str) {
        if self.said.remove(who).is_some() {
            info!(who, "pods of GPUs can be told again");
        }
    }

    /// Finds out what the listing alone does not tell: pods' UIDs and labels, devices of claims.
    async fn look_up(&mut self, list: &podres::v1::ListPodResourcesResponse) {
        let now = Instant::now();
        let old = |at: Option<Instant>, age: Duration| at.is_none_or(|at| now.saturating_duration_since(at) >= age);
        let holding = list.pod_resources.iter().filter(|pod| {
            pod.containers.iter().any(|container| !container.devices.is_empty() || !container.dynamic_resources.is_empty())
        });
        // A pod that is gone is forgotten: another one of its name is another pod.
        let listed: BTreeSet<(&str, &str)> = holding.clone().map(|pod| (pod.namespace.as_str(), pod.name.as_str())).collect();
        self.pods.retain(|(namespace, name), _| listed.contains(&(namespace.as_str(), name.as_str())));
        if !old(self.asked_at, ASK_AT_LEAST) {
            return;
        }
        let unknown = |pod: &podres::v1::PodResources| !self.pods.contains_key(&(pod.namespace.clone(), pod.name.clone()));
        let age = if self.how.pods_api.exists() { LOCAL_AGE } else { API_AGE };
        if self.how.details && (old(self.pods_at, age) || holding.clone().any(unknown)) {
            self.asked_at = Some(now);
            self.read_pods(now).await;
        }
        let claims = holders::claims(list, &self.how.names);
        if self.how.claims && !claims.is_empty() {
            let unread: Vec<_> = claims.difference(&self.claims_read).take(CLAIMS_A_LOOK).cloned().collect();
            if !unread.is_empty() || old(self.slices_at, API_AGE) {
                self.asked_at = Some(now);
                self.read_claims(&claims, &unread, now).await;
            }
        }
    }

    async fn read_pods(&mut self, now: Instant) {
        if self.how.pods_api.exists() {
            let answer = match kubelet::Client::new(&self.how.pods_api, ANSWER) {
                Ok(mut client) => client.list().await,
                Err(err) => Err(err),
            };
            match answer {
                Ok(pods) => {
                    self.well("pods-api");
                    self.pods = pods.iter().filter_map(|json| read_pod(json)).collect();
                    self.pods_at = Some(now);
                    return;
                }
                // Then the API server is asked.
                Err(err) => self.fail("pods-api", err.reason(), &err),
            }
        }
        let Some(api) = self.api().await else { return };
        let fields = self.how.node.as_ref().map(|node| format!("spec.nodeName={node}")).unwrap_or_default();
        match list_pods(&api, None, "", &fields).await {
            Ok(pods) => {
                self.well("api-server");
                self.pods = pods.iter().filter_map(|json| read_pod(json)).collect();
                self.pods_at = Some(now);
            }
            Err(err) => self.fail("api-server", err.reason(), &err),
        }
    }

    async fn read_claims(&mut self, claims: &BTreeSet<holders::ClaimName>, unread: &[holders::ClaimName], now: Instant) {
        let Some(api) = self.api().await else { return };
        match list_slices(&api, self.how.node.as_deref()).await {
            Ok(slices) => {
                self.well("resourceslices");
                self.slices = slices.by_node.into_values().flatten().collect();
                self.slices_at = Some(now);
            }
            Err(err) => self.fail("resourceslices", err.reason(), &err),
        }
        self.claims_read.retain(|claim| claims.contains(claim));
        for claim in unread {
            match admin_access(&api, claim).await {
                Ok(devices) => {
                    self.well("resourceclaims");
                    self.admin.extend(devices);
                    self.claims_read.insert(claim.clone());
                }
                Err(err) => self.fail("resourceclaims", err.reason(), &err),
            }
        }
        let read = &self.claims_read;
        self.admin.retain(|(namespace, name, ..)| read.contains(&(namespace.clone(), name.clone())));
    }

    async fn api(&mut self) -> Option<Api> {
        if self.api.is_none() {
            let now = Arc::new(|| Timestamp::from_ms(wall_ms()));
            match Api::connect(self.how.kubeconfig.as_deref(), now, ANSWER).await {
                Ok(api) => self.api = Some(api),
                Err(err) => self.fail("api-server", err.reason(), &err),
            }
        }
        self.api.clone()
    }

    /// The listing as who prints wants it.
    fn listing(&self, list: &podres::v1::ListPodResourcesResponse, gpus: Vec<NodeGpu>) -> Listing {
        let claims = holders::claims(list, &self.how.names);
        let known = Known {
            node: None,
            gpus,
            slices: self.slices.clone(),
            admin_claims: self.admin.clone(),
            unread_claims: claims.difference(&self.claims_read).cloned().collect(),
            ended_pods: BTreeSet::new(),
        };
        let found = holders::holders(list, &known, &self.how.names);
        let mut listing = Listing { at: Some(Instant::now()), ..Listing::default() };
        // Compute instances of one GPU instance are one device here, as they are on the page.
        let mut of_device: BTreeMap<DeviceKey, Vec<holders::Held>> = BTreeMap::new();
        for held in found.held.into_iter().filter(|held| !held.unread) {
            of_device.entry((held.gpu.clone(), held.gi)).or_default().push(held);
        }
        for (device, parts) in of_device {
            let parts_held = parts.len() as u64;
            let mut owned = Owned { conflict: parts.iter().any(|held| held.conflict), ..Owned::default() };
            let mut shares: BTreeMap<(String, String, String), (u64, u64)> = BTreeMap::new();
            for hold in parts.into_iter().flat_map(|held| held.holds) {
                let name = (hold.namespace, hold.pod, hold.container);
                let known = shares.contains_key(&name);
                let long = [&name.0, &name.1, &name.2].iter().any(|name| name.len() > MAX_NAME);
                if long || (!known && shares.len() == MOST_HOLDERS) {
                    *listing.unmatched.entry(REFUSED).or_default() += 1;
                    continue;
                }
                let share = (hold.share.0, hold.share.1.saturating_mul(parts_held));
                let sum = shares.entry(name).or_insert((0, 1));
                *sum = added(*sum, share);
            }
            owned.holders.extend(shares.into_iter().map(|((namespace, pod, container), share)| {
                let known = self.pods.get(&(namespace.clone(), pod.clone())).cloned();
                let (uid, labels) = known.map(|pod| (Some(pod.uid), pod.labels)).unwrap_or_default();
                Holder { namespace, pod, container, uid, labels, share }
            }));
            listing.owned.insert(device, owned);
        }
        for unmatched in &found.unmatched {
            *listing.unmatched.entry(unmatched.reason.as_str()).or_default() += 1;
        }
        for (reason, count) in &listing.unmatched {
            self.owners.count(reason, *count);
        }
        listing
    }
}

/// The sum of two parts.
fn added(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    if a.0 == 0 {
        return b;
    }
    if a.1 == b.1 {
        return (a.0.saturating_add(b.0), a.1);
    }
    (a.0.saturating_mul(b.1).saturating_add(b.0.saturating_mul(a.1)), a.1.saturating_mul(b.1))
}

fn wall_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Name, UID and labels of a pod's JSON; one that cannot be read is left out.
fn read_pod(json: &[u8]) -> Option<((String, String), Pod)> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        name: String,
        namespace: String,
        uid: String,
        #[serde(default)]
        labels: Option<BTreeMap<String, String>>,
    }
    let Object { metadata } = serde_json::from_slice(json).ok()?;
    let labels = Arc::new(metadata.labels.unwrap_or_default());
    Some(((metadata.namespace, metadata.name), Pod { uid: metadata.uid, labels }))
}
