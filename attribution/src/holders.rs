//! Which pods hold which device, by one pod-resources answer. Pure.
//!
//! A pod's share of a device is its distinct ids of it over the sum of distinct ids of all pods that hold it; inside the pod
//! each id counts the same and is split equally among the containers that list it. So the shares of a held device add up to 1.
//! That is the share among holders; replicas that nobody holds are the ledger's business (rule A7).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use schemas::status::JoinReason;

use crate::{
    ids::{self, Target},
    podres::v1::{ClaimResource, ListPodResourcesResponse},
};

/// A GPU of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGpu {
    /// Index in DCGM's order.
    pub index: u32,
    /// Number of its device file, where known; else the index stands in.
    pub minor: Option<u32>,
    /// UUID.
    pub uuid: String,
    /// Its MIG instances.
    pub instances: Vec<NodeInstance>,
}

/// A MIG instance of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInstance {
    /// UUID of its own, where known.
    pub uuid: Option<String>,
    /// GPU instance id.
    pub gi: u32,
    /// Compute instance id, where known.
    pub ci: Option<u32>,
    /// Profile.
    pub profile: String,
}

/// A device of a ResourceSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceDevice {
    /// Driver of the slice.
    pub driver: String,
    /// Pool.
    pub pool: String,
    /// Device name.
    pub device: String,
    /// UUID of the GPU or partition.
    pub uuid: String,
    /// UUID of the GPU that a partition is part of.
    pub parent: Option<String>,
    /// MIG profile of a partition.
    pub profile: Option<String>,
    /// Product, as the driver names it.
    pub product: Option<String>,
}

/// A ResourceClaim: namespace and name.
pub type ClaimName = (String, String);

/// A device that a claim names: namespace and name of the claim, driver, pool, device.
pub type ClaimedDevice = (String, String, String, String, String);

/// What is known of the node beside the kubelet's answer.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Its name: devices that no DCGM reads are called by it. None: they are passed over.
    pub node: Option<String>,
    /// Its GPUs.
    pub gpus: Vec<NodeGpu>,
    /// Devices of its ResourceSlices.
    pub slices: Vec<SliceDevice>,
    /// Devices by claims with admin access: these look at a device and hold nothing.
    pub admin_claims: BTreeSet<ClaimedDevice>,
    /// Claims, (namespace, name), of which it is not known yet whether they have admin access: their devices are held by nobody
    /// that can be named.
    pub unread_claims: BTreeSet<ClaimName>,
    /// Pods, (namespace, name), that the API server knows to have ended; older kubelets list them still.
    pub ended_pods: BTreeSet<(String, String)>,
}

/// Resource names and claim drivers that stand for GPUs.
#[derive(Clone, Debug)]
pub struct ResourceNames {
    /// Names that match whole.
    pub exact: Vec<String>,
    /// Beginnings of names.
    pub prefixes: Vec<String>,
    /// Drivers of claims.
    pub drivers: Vec<String>,
    /// Names of accelerators that no DCGM reads, whole: their devices are known by the kubelet's ids alone ([`ids::unread`]).
    pub unread: Vec<String>,
}

impl Default for ResourceNames {
    fn default() -> Self {
        Self {
            exact: vec!["nvidia.com/gpu".into(), "nvidia.com/gpu.shared".into()],
            prefixes: vec!["nvidia.com/mig-".into()],
            drivers: vec!["gpu.nvidia.com".into()],
            unread: vec!["google.com/tpu".into(), "amd.com/gpu".into()],
        }
    }
}

impl ResourceNames {
    /// Whether it stands for accelerators, read or not.
    pub(crate) fn counts(&self, name: &str) -> bool {
        self.is_unread(name) || self.matches(name)
    }

    pub(crate) fn is_unread(&self, name: &str) -> bool {
        self.unread.iter().any(|n| n == name)
    }

    fn matches(&self, name: &str) -> bool {
        self.exact.iter().any(|n| n == name) || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }
}

/// One container's hold on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerHold {
    /// Namespace.
    pub namespace: String,
    /// Pod.
    pub pod: String,
    /// Container.
    pub container: String,
    /// Its share of the device among the holders: numerator and denominator, in lowest terms.
    pub share: (u64, u64),
    /// Distinct ids of the device that it lists.
    pub ids: u32,
}

/// A device that somebody holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The device as the node knows it: a GPU, or a partition by its own UUID where that is known, else parent/gi.
    pub device: String,
    /// UUID of the GPU that it is, or is a part of.
    pub gpu: String,
    /// GPU instance id, for a partition of known parent.
    pub gi: Option<u32>,
    /// Containers, in order of namespace, pod, container.
    pub holds: Vec<ContainerHold>,
    /// Distinct replica ids, by pod (namespace, name).
    pub replica_ids: BTreeMap<(String, String), BTreeSet<String>>,
    /// Two owners claim one physical device: not sharing, and not to be booked to both (rule A11).
    pub conflict: bool,
    /// No page shows it: its product has no DCGM.
    pub unread: bool,
}

/// An id that no device answers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unmatched {
    /// The id, or driver/pool/device.
    pub id: String,
    /// Why.
    pub reason: JoinReason,
    /// Who lists it: namespace, pod, container.
    pub holder: (String, String, String),
}

/// What one answer says. Every device of the node that is not here is idle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Held devices, by device.
    pub held: Vec<Held>,
    /// Ids of no device, each once, sorted.
    pub unmatched: Vec<Unmatched>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Device {
    name: String,
    gpu: String,
    gi: Option<u32>,
    whole: bool,
    unread: bool,
}

#[derive(Clone, PartialEq, Eq)]
enum IdKind {
    Unshared,
    Replica,
    /// A claim's result, with the claim's namespace and name, and whether it is a share.
    Claim((String, String), bool),
}

#[derive(Default)]
struct Claims {
    /// Pod -> id -> containers that list it.
    pods: BTreeMap<(String, String), BTreeMap<String, BTreeSet<String>>>,
    kinds: Vec<IdKind>,
}

/// The claims by which pods hold GPUs, or look at them.
pub fn claims(list: &ListPodResourcesResponse, names: &ResourceNames) -> BTreeSet<ClaimName> {
    let claims = list.pod_resources.iter().flat_map(|pod| &pod.containers).flat_map(|container| &container.dynamic_resources);
    let of_gpus = claims.filter(|claim| claim.claim_resources.iter().any(|result| names.drivers.contains(&result.driver_name)));
    of_gpus.map(|claim| (claim.claim_namespace.clone(), claim.claim_name.clone())).collect()
}

/// Resolves one answer of the kubelet against what is known of the node.
pub fn holders(list: &ListPodResourcesResponse, known: &Known, names: &ResourceNames) -> Holders {
    let mut devices: BTreeMap<Device, Claims> = BTreeMap::new();
    let mut unmatched = BTreeSet::new();
    let index = Index::of(known);
    for pod in &list.pod_resources {
        let owner = (pod.namespace.clone(), pod.name.clone());
        if known.ended_pods.contains(&owner) {
            continue;
        }
        for container in &pod.containers {
            let mut book = |id: &str, found: Result<(Device, IdKind), JoinReason>| match found {
                Ok((device, kind)) => {
                    let claims = devices.entry(device).or_default();
                    let ids = claims.pods.entry(owner.clone()).or_default();
                    ids.entry(id.to_owned()).or_default().insert(container.name.clone());
                    claims.kinds.push(kind);
                }
                Err(reason) => {
                    let holder = (owner.0.clone(), owner.1.clone(), container.name.clone());
                    unmatched.insert(Unmatched { id: id.to_owned(), reason, holder });
                }
            };
            for entry in container.devices.iter().filter(|entry| names.counts(&entry.resource_name)) {
                for id in &entry.device_ids {
                    match (names.is_unread(&entry.resource_name), &known.node) {
                        (true, Some(node)) => book(id, Ok((unread(node, &entry.resource_name, id), IdKind::Unshared))),
                        (true, None) => {}
                        (false, _) => book(id, index.by_id(id)),
                    }
                }
            }
            for claim in &container.dynamic_resources {
                for result in claim.claim_resources.iter().filter(|result| names.drivers.contains(&result.driver_name)) {
                    let name = (claim.claim_namespace.clone(), claim.claim_name.clone());
                    if known.admin_claims.contains(&(
                        name.0.clone(),
                        name.1.clone(),
                        result.driver_name.clone(),
                        result.pool_name.clone(),
                        result.device_name.clone(),
                    )) {
                        continue;
                    }
                    let mut id = format!("{}/{}/{}", result.driver_name, result.pool_name, result.device_name);
                    let found = match known.unread_claims.contains(&name) {
                        true => Err(JoinReason::ClaimUnread),
                        false => index.by_claim(result).map(|device| (device, IdKind::Claim(name, result.share_id.is_some()))),
                    };
                    if let Some(share) = result.share_id.as_deref().filter(|_| found.is_ok()) {
                        id = format!("{id}/{share}");
                    }
                    book(&id, found);
                }
            }
        }
    }
    let conflicts = conflicts(&devices);
    let held = devices.into_iter().map(|(device, claims)| held(&device, claims, conflicts.contains(&device.name))).collect();
    Holders { held, unmatched: unmatched.into_iter().collect() }
}

fn held(device: &Device, claims: Claims, conflict: bool) -> Held {
    let total: u64 = claims.pods.values().map(|ids| ids.len() as u64).sum();
    let mut holds = Vec::new();
    let mut replica_ids = BTreeMap::new();
    for ((namespace, pod), ids) in &claims.pods {
        let containers: BTreeSet<&String> = ids.values().flatten().collect();
        // Each id is split equally among its containers; bring those parts to one denominator.
        let common = ids.values().map(|c| c.len() as u64).fold(1, lcm);
        for container in containers {
            let mine = ids.values().filter(|of| of.contains(container));
            let (count, parts) = mine.fold((0, 0), |(count, parts), of| (count + 1, parts + common / of.len() as u64));
            let share = lowest(parts, common * total);
            holds.push(ContainerHold {
                namespace: namespace.clone(),
                pod: pod.clone(),
                container: container.clone(),
                share,
                ids: count,
            });
        }
        replica_ids.insert((namespace.clone(), pod.clone()), ids.keys().cloned().collect());
    }
    Held {
        device: device.name.clone(),
        gpu: device.gpu.clone(),
        gi: device.gi,
        holds,
        replica_ids,
        conflict,
        unread: device.unread,
    }
}

/// Names of devices that two owners claim without sharing them.
fn conflicts(devices: &BTreeMap<Device, Claims>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (device, claims) in devices {
        let shared = claims.kinds.iter().all(|kind| *kind == IdKind::Replica)
            || claims.kinds.iter().all(|kind| matches!(kind, IdKind::Claim(_, true)))
            || claims.kinds.windows(2).all(|pair| match (&pair[0], &pair[1]) {
                (IdKind::Claim(a, _), IdKind::Claim(b, _)) => a == b,
                _ => false,
            }) && matches!(claims.kinds.first(), Some(IdKind::Claim(..)));
        if claims.pods.len() > 1 && !shared {
            names.insert(device.name.clone());
        }
        // A whole GPU held by one pod, and an instance of it by another.
        for (part, its) in devices.iter().filter(|(part, _)| device.whole && !part.whole && part.gpu == device.gpu) {
            let owners: BTreeSet<_> = claims.pods.keys().chain(its.pods.keys()).collect();
            if owners.len() > 1 {
                names.extend([device.name.clone(), part.name.clone()]);
            }
        }
    }
    names
}

/// The node's devices, ready to be asked.
struct Index<'a> {
    known: &'a Known,
    by_uuid: HashMap<&'a str, Device>,
}

impl<'a> Index<'a> {
    fn of(known: &'a Known) -> Self {
        let mut by_uuid = HashMap::new();
        for slice in &known.slices {
            let gpu = slice.parent.clone().unwrap_or_else(|| slice.uuid.clone());
            let device = instance_of(slice, known).unwrap_or_else(|| Device {
                name: slice.uuid.clone(),
                gpu,
                gi: None,
                whole: slice.parent.is_none(),
                unread: false,
            });
            by_uuid.insert(slice.uuid.as_str(), device);
        }
        for gpu in &known.gpus {
            by_uuid.insert(&gpu.uuid, whole(gpu));
            for instance in &gpu.instances {
                if let Some(uuid) = &instance.uuid {
                    by_uuid.insert(uuid, part(gpu, instance));
                }
            }
        }
        Self { known, by_uuid }
    }

    fn by_id(&self, id: &str) -> Result<(Device, IdKind), JoinReason> {
        let shape = ids::shape(id).ok_or(JoinReason::IdShapeUnknown)?;
        let gpus = &self.known.gpus;
        let device = match shape.target {
            Target::Uuid(uuid) => self.by_uuid.get(uuid).cloned(),
            Target::Partition { gpu, gi, ci } => gpus.iter().find(|g| g.uuid == gpu).and_then(|g| {
                let fits = |i: &&NodeInstance| i.gi == gi && i.ci.is_none_or(|known| known == ci);
                g.instances.iter().find(fits).map(|i| part(g, i))
            }),
            Target::Minor { minor, gi } => {
                let gpu = gpus.iter().find(|g| g.minor.unwrap_or(g.index) == minor);
                match gi {
                    None => gpu.map(whole),
                    Some(gi) => gpu.and_then(|g| g.instances.iter().find(|i| i.gi == gi).map(|i| part(g, i))),
                }
            }
            Target::Index(index) => gpus.iter().find(|g| g.index == index).map(whole),
        };
        let kind = if shape.replica { IdKind::Replica } else { IdKind::Unshared };
        device.map(|device| (device, kind)).ok_or(JoinReason::DeviceUnknown)
    }

    fn by_claim(&self, result: &ClaimResource) -> Result<Device, JoinReason> {
        let slice = self.known.slices.iter().find(|slice| {
            slice.driver == result.driver_name && slice.pool == result.pool_name && slice.device == result.device_name
        });
        slice.and_then(|slice| self.by_uuid.get(slice.uuid.as_str()).cloned()).ok_or(JoinReason::DeviceUnknown)
    }
}

/// The instance of a known GPU that a slice's partition is. A slice tells its UUID and pages tell its instance id; both tell parent
/// and profile, so they meet where a GPU has one instance of the profile. Of several alike nothing says which is which.
fn instance_of(slice: &SliceDevice, known: &Known) -> Option<Device> {
    let (parent, profile) = (slice.parent.as_ref()?, slice.profile.as_ref()?);
    let alike = |s: &&SliceDevice| s.parent.as_ref() == Some(parent) && s.profile.as_ref() == Some(profile);
    let gpu = known.gpus.iter().find(|gpu| gpu.uuid == *parent)?;
    let mut instances = gpu.instances.iter().filter(|instance| instance.profile == *profile);
    let (instance, another) = (instances.next()?, instances.next());
    (another.is_none() && known.slices.iter().filter(alike).count() == 1).then(|| part(gpu, instance))
}

fn whole(gpu: &NodeGpu) -> Device {
    Device { name: gpu.uuid.clone(), gpu: gpu.uuid.clone(), gi: None, whole: true, unread: false }
}

fn part(gpu: &NodeGpu, instance: &NodeInstance) -> Device {
    let name = instance.uuid.clone().unwrap_or_else(|| format!("{}/{}", gpu.uuid, instance.gi));
    Device { name, gpu: gpu.uuid.clone(), gi: Some(instance.gi), whole: false, unread: false }
}

fn unread(node: &str, resource: &str, id: &str) -> Device {
    let name = ids::unread(node, resource, id);
    Device { gpu: name.clone(), name, gi: None, whole: true, unread: true }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: u64, b: u64) -> u64 {
    a / gcd(a, b) * b
}

fn lowest(num: u64, den: u64) -> (u64, u64) {
    let by = gcd(num, den).max(1);
    (num / by, den / by)
}
