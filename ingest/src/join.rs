//! Devices of a page to their holders (DESIGN A17): the node's pod-resources where they are configured, else the page's own
//! pod labels, flagged.
//!
//! ```text
//! page ──devices──┐
//! kubelet's List ─┴─> holders of each device, and why where there are none
//! last good List ──── stands in for a failed one for a bounded time, marked
//! ```
//!
//! Pure. Nothing here is an error: a page without a GPU that is held, an id that no device answers to, a label that says
//! something else than the kubelet are data, and each says so in its row.

use crate::page::{Device, Page, PagePod};
use attribution::holders::{self, ClaimName, ClaimedDevice, NodeInstance, SliceDevice};
use attribution::ids::{Target, shape};
use attribution::podres::v1::ListPodResourcesResponse;
use attribution::{Held, Holders, Known, NodeGpu, ResourceNames};
use schemas::proto::Holder;
use schemas::status::JoinReason;
use schemas::{DeviceId, GpuUuid, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How `owner_source` names the kubelet's word.
pub const FROM_PODRES: &str = "podres";
/// How `owner_source` names the page's own labels.
pub const FROM_LABELS: &str = "from_labels";

/// What is remembered of one node between rounds.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// Its name, by which its kubelet's ids of devices without DCGM are told from another node's; none: these are passed over.
    node: Option<String>,
    /// Its GPUs, as pages have shown them.
    gpus: BTreeMap<String, NodeGpu>,
    /// Devices of its ResourceSlices, which claims name.
    slices: Vec<SliceDevice>,
    /// What the API server says of claims, where it is asked.
    claims: Option<Arc<Claims>>,
    /// The claims of the last listing.
    listed_claims: BTreeSet<ClaimName>,
    /// The last good listing, resolved, and when it was made.
    last_good: Option<(Timestamp, Holders)>,
}

/// What the API server says of claims.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claims {
    /// Those that it was asked for, and said what they are or could not. Any other of a listing holds nothing until it was.
    pub read: BTreeSet<ClaimName>,
    /// Devices that claims with admin access look at.
    pub admin: BTreeSet<ClaimedDevice>,
}

/// What the node's kubelet said this round.
#[derive(Debug, Clone)]
pub enum Answer {
    /// It is not asked: pod-resources are not configured for this node.
    NotAsked,
    /// The pods of the node.
    Listed(ListPodResourcesResponse),
    /// It gave no answer.
    Failed(JoinReason),
}

/// How to join.
#[derive(Debug, Clone)]
pub struct Options {
    /// Resource names and drivers that stand for GPUs.
    pub names: ResourceNames,
    /// How long the last good listing stands in for failed ones. Default 60 s.
    pub hold_over_ms: i64,
}

impl Default for Options {
    fn default() -> Self {
        Options { names: ResourceNames::default(), hold_over_ms: 60_000 }
    }
}

/// What a join found beside the holders, which it wrote into the page's devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Joined {
    /// Held devices by a good listing of this round; none where there was none.
    pub listed: Option<Vec<Held>>,
    /// Why no device could be joined, where the kubelet gave no answer.
    pub reason: Option<JoinReason>,
    /// Ids of the kubelet that no device of the page answers to, sorted.
    pub unmatched: Vec<String>,
    /// Devices whose labels name another pod than the kubelet.
    pub label_disagreements: u64,
}

/// Most unmatched ids that a round carries.
const MAX_UNMATCHED: usize = 256;

/// Writes holders, their source and reasons into the devices of `page` (none: the page could not be had; the node is asked
/// all the same, for who holds what does not depend on its exporter).
pub fn owners(memory: &mut Memory, page: Option<&mut Page>, answer: Answer, at: Timestamp, options: &Options) -> Joined {
    let mut none = Page::default();
    let have_page = page.is_some();
    let page = page.unwrap_or(&mut none);
    memory.learn(&page.devices);
    match answer {
        Answer::NotAsked => {
            from_labels(page);
            Joined::default()
        }
        Answer::Listed(list) => {
            memory.listed_claims = holders::claims(&list, &options.names);
            let known = memory.known(&list);
            let found = holders::holders(&list, &known, &options.names);
            let mut joined = Joined { unmatched: unmatched(&found, &list, page, have_page), ..Joined::default() };
            if found.held.is_empty() && !joined.unmatched.is_empty() {
                joined.reason = found.unmatched.first().map(|u| u.reason).or(Some(JoinReason::ResourceNotMatched));
            }
            joined.label_disagreements = from_podres(page, &found, None);
            joined.listed = Some(found.held.clone());
            memory.last_good = Some((at, found));
            joined
        }
        Answer::Failed(reason) => {
            let mut joined = Joined { reason: Some(reason), ..Joined::default() };
            match &memory.last_good {
                Some((when, found)) if at.ms() - when.ms() <= options.hold_over_ms => {
                    joined.label_disagreements = from_podres(page, found, Some(reason));
                }
                Some(_) => {
                    joined.reason = Some(JoinReason::Expired);
                    without(page, JoinReason::Expired);
                }
                None => without(page, reason),
            }
            joined
        }
    }
}

/// Holders by the kubelet. `stand_in` is the reason why an older listing is used.
fn from_podres(page: &mut Page, found: &Holders, stand_in: Option<JoinReason>) -> u64 {
    let by_device: BTreeMap<&str, &Held> = found.held.iter().map(|h| (h.device.as_str(), h)).collect();
    let mut disagreements = 0;
    for device in &mut page.devices {
        let pods = &device.pods;
        let sample = &mut device.sample;
        let held = by_device.get(sample.device.as_str());
        sample.owner_source = FROM_PODRES.to_owned();
        sample.held_over = stand_in.is_some();
        let mut reason = stand_in;
        if held.is_some_and(|h| h.conflict) {
            reason = Some(JoinReason::Conflict);
        }
        sample.join_reason = reason.map_or(String::new(), |r| r.as_str().to_owned());
        sample.holders = held.map_or(Vec::new(), |h| h.holds.iter().map(|hold| holder(hold, pods)).collect());
        let by_label: BTreeSet<_> = pods.iter().map(|p| (p.namespace.as_str(), p.pod.as_str())).collect();
        let by_kubelet: BTreeSet<_> = sample.holders.iter().map(|h| (h.namespace.as_str(), h.pod.as_str())).collect();
        // A page without pod labels says nothing; one that shows some of the sharers is how its exporter works.
        sample.label_disagrees = !by_label.is_subset(&by_kubelet);
        disagreements += u64::from(sample.label_disagrees);
    }
    disagreements
}

fn holder(hold: &holders::ContainerHold, labels: &[PagePod]) -> Holder {
    // The kubelet does not tell UIDs; a page that shows the same pod may.
    let same = labels.iter().find(|p| p.namespace == hold.namespace && p.pod == hold.pod && !p.pod_uid.is_empty());
    Holder {
        namespace: hold.namespace.clone(),
        pod: hold.pod.clone(),
        container: hold.container.clone(),
        pod_uid: same.map_or(String::new(), |p| p.pod_uid.clone()),
        ids: hold.ids,
    }
}

/// Holders by the page's own labels. Where the page names no pod at all, nobody knows whether its exporter maps pods: then
/// there is no source, not a node of free GPUs.
fn from_labels(page: &mut Page) {
    let maps_pods = page.devices.iter().any(|d| !d.pods.is_empty());
    for device in &mut page.devices {
        let holders = device.pods.iter().map(|p| Holder {
            namespace: p.namespace.clone(),
            pod: p.pod.clone(),
            container: p.container.clone(),
            pod_uid: p.pod_uid.clone(),
            ids: 1,
        });
        device.sample.holders = holders.collect();
        device.sample.owner_source = if maps_pods { FROM_LABELS.to_owned() } else { String::new() };
    }
}

fn without(page: &mut Page, reason: JoinReason) {
    for device in &mut page.devices {
        device.sample.join_reason = reason.as_str().to_owned();
    }
}

/// Ids that no device of the page answers to: of unknown shape or device, held devices that the page lacks (where there is a
/// page), and ids that look like GPUs under a resource name that is not configured.
fn unmatched(found: &Holders, list: &ListPodResourcesResponse, page: &Page, have_page: bool) -> Vec<String> {
    let mut ids: BTreeSet<&str> = found.unmatched.iter().map(|u| u.id.as_str()).collect();
    if have_page {
        let on_page: BTreeSet<&str> = page.devices.iter().map(|d| d.sample.device.as_str()).collect();
        let shown = found.held.iter().filter(|held| !held.unread).map(|h| h.device.as_str());
        ids.extend(shown.filter(|d| !on_page.contains(d)));
    }
    let resolved: BTreeSet<&str> = found.held.iter().flat_map(|h| h.replica_ids.values().flatten()).map(String::as_str).collect();
    let listed = list.pod_resources.iter().flat_map(|p| &p.containers).flat_map(|c| &c.devices).flat_map(|d| &d.device_ids);
    let other_name = listed.map(String::as_str).filter(|id| gpu_like(id) && !resolved.contains(id));
    ids.extend(other_name);
    ids.into_iter().take(MAX_UNMATCHED).map(|id| id.chars().take(200).collect()).collect()
}

fn gpu_like(id: &str) -> bool {
    matches!(shape(id).map(|s| s.target), Some(Target::Uuid(_) | Target::Partition { .. }))
}

impl Memory {
    /// Of a node called `node`, of which nothing is known yet.
    pub fn of(node: &str) -> Self {
        Self { node: Some(node.to_owned()), ..Self::default() }
    }

    /// Takes the devices of the node's ResourceSlices as they are now; those before are forgotten.
    pub fn set_slices(&mut self, slices: Vec<SliceDevice>) {
        self.slices = slices;
    }

    /// Takes what the API server says of claims; none: it is not asked, and every claim holds its devices.
    pub fn set_claims(&mut self, claims: Option<Arc<Claims>>) {
        self.claims = claims;
    }

    /// The claims of the last listing.
    pub fn listed_claims(&self) -> &BTreeSet<ClaimName> {
        &self.listed_claims
    }

    fn known(&self, list: &ListPodResourcesResponse) -> Known {
        let (admin_claims, unread_claims) = match &self.claims {
            Some(claims) => {
                let listed =
                    |(namespace, name, ..): &&ClaimedDevice| self.listed_claims.iter().any(|(n, c)| n == namespace && c == name);
                let unread = self.listed_claims.difference(&claims.read).cloned().collect();
                (claims.admin.iter().filter(listed).cloned().collect(), unread)
            }
            None => Default::default(),
        };
        let gpus = self.gpus_with_listed(list);
        let (node, slices) = (self.node.clone(), self.slices.clone());
        Known { node, gpus, slices, admin_claims, unread_claims, ..Known::default() }
    }

    /// Adds the devices of a page. They stay known when a later page lacks them: the kubelet may still name them.
    fn learn(&mut self, devices: &[Device]) {
        for device in devices {
            let uuid = device.id.gpu().as_str();
            let gpu = self.gpus.entry(uuid.to_owned()).or_insert_with(|| unseen(uuid));
            if let Some(index) = device.sample.gpu_index {
                gpu.index = index;
            }
            gpu.minor = device.device_name.strip_prefix("nvidia").and_then(|n| n.parse().ok()).or(gpu.minor);
            if let Some(gi) = device.id.instance_id()
                && !gpu.instances.iter().any(|i| i.gi == gi)
            {
                let profile = device.sample.profile.clone();
                gpu.instances.push(NodeInstance { uuid: None, gi, ci: None, profile });
            }
        }
    }

    /// The node's GPUs, with those that a listing names by UUID though no page has shown them: which device a pod holds is
    /// the kubelet's word, seen by the exporter or not.
    fn gpus_with_listed(&self, list: &ListPodResourcesResponse) -> Vec<NodeGpu> {
        let mut gpus = self.gpus.clone();
        for container in list.pod_resources.iter().flat_map(|p| &p.containers) {
            for id in container.devices.iter().flat_map(|d| &d.device_ids) {
                match shape(id).map(|s| s.target) {
                    Some(Target::Uuid(uuid)) if uuid.starts_with("GPU-") && GpuUuid::parse(uuid).is_ok() => {
                        gpus.entry(uuid.to_owned()).or_insert_with(|| unseen(uuid));
                    }
                    Some(Target::Partition { gpu, gi, .. }) if GpuUuid::parse(gpu).is_ok() => {
                        let gpu = gpus.entry(gpu.to_owned()).or_insert_with(|| unseen(gpu));
                        if !gpu.instances.iter().any(|i| i.gi == gi) {
                            gpu.instances.push(NodeInstance { uuid: None, gi, ci: None, profile: String::new() });
                        }
                    }
                    Some(Target::Uuid(_) | Target::Partition { .. } | Target::Minor { .. } | Target::Index(_)) | None => {}
                }
            }
        }
        gpus.into_values().collect()
    }

    /// The devices that pages have shown so far, instances in place of their parents.
    pub fn devices(&self) -> Vec<DeviceId> {
        let of = |gpu: &NodeGpu| -> Vec<DeviceId> {
            let Ok(uuid) = GpuUuid::parse(&gpu.uuid) else { return Vec::new() };
            if gpu.instances.is_empty() {
                return vec![DeviceId::whole(uuid)];
            }
            gpu.instances.iter().map(|i| DeviceId::instance(uuid.clone(), i.gi)).collect()
        };
        self.gpus.values().flat_map(of).collect()
    }
}

/// A GPU that no page has shown: no index or device file leads to it.
fn unseen(uuid: &str) -> NodeGpu {
    NodeGpu { index: u32::MAX, minor: None, uuid: uuid.to_owned(), instances: Vec::new() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::page;
    use attribution::podres::v1::{ClaimResource, ContainerDevices, ContainerResources, DynamicResource, PodResources};

    fn page_of(text: &str) -> Page {
        page::read(text.as_bytes(), None, &page::Options::default()).unwrap()
    }

    fn line(uuid: &str, more: &str) -> String {
        format!("DCGM_FI_DEV_GPU_UTIL{{UUID=\"{uuid}\"{more}}} 1\n")
    }

    fn list(pods: &[(&str, &str, &[&str])]) -> Answer {
        let pod = |(name, resource, ids): &(&str, &str, &[&str])| PodResources {
            name: (*name).into(),
            namespace: "n".into(),
            containers: vec![ContainerResources {
                name: "c".into(),
                devices: vec![ContainerDevices {
                    resource_name: (*resource).into(),
                    device_ids: ids.iter().map(|i| (*i).into()).collect(),
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        Answer::Listed(ListPodResourcesResponse { pod_resources: pods.iter().map(pod).collect() })
    }

    const GPU: &str = "nvidia.com/gpu";

    fn join(memory: &mut Memory, text: &str, answer: Answer, at_ms: i64) -> (Page, Joined) {
        let mut page = page_of(text);
        let joined = owners(memory, Some(&mut page), answer, Timestamp::from_ms(at_ms), &Options::default());
        (page, joined)
    }

    fn pods(page: &Page, device: usize) -> Vec<&str> {
        page.devices[device].sample.holders.iter().map(|h| h.pod.as_str()).collect()
    }

    #[test]
    fn the_kubelets_word_goes_before_the_labels() {
        let text = line("GPU-a", ",pod=\"old\",namespace=\"n\"")
            + &line("GPU-b", ",pod=\"q\",namespace=\"n\",pod_uid=\"u-9\"")
            + &line("GPU-c", "");
        let answer = list(&[("p", GPU, &["GPU-a"]), ("q", GPU, &["GPU-b"])]);
        let (page, joined) = join(&mut Memory::default(), &text, answer, 0);
        assert_eq!((pods(&page, 0), pods(&page, 1), pods(&page, 2)), (vec!["p"], vec!["q"], vec![]));
        let disagrees: Vec<_> = page.devices.iter().map(|d| d.sample.label_disagrees).collect();
        assert_eq!((disagrees, joined.label_disagreements), (vec![true, false, false], 1));
        assert!(page.devices.iter().all(|d| d.sample.owner_source == FROM_PODRES && d.sample.join_reason.is_empty()));
        assert_eq!(page.devices[1].sample.holders[0].pod_uid, "u-9", "the page knows the UID of the same pod");
        assert_eq!(joined.listed.map(|l| l.len()), Some(2));
    }

    #[test]
    fn without_pod_resources_labels_are_used_and_said_so() {
        let text = line("GPU-a", ",pod=\"p\",namespace=\"n\",container=\"c\"") + &line("GPU-b", "");
        let (page, joined) = join(&mut Memory::default(), &text, Answer::NotAsked, 0);
        assert_eq!((pods(&page, 0), pods(&page, 1)), (vec!["p"], vec![]));
        assert!(page.devices.iter().all(|d| d.sample.owner_source == FROM_LABELS));
        assert_eq!(joined, Joined::default());
        let (bare, _) = join(&mut Memory::default(), &line("GPU-a", ""), Answer::NotAsked, 0);
        assert_eq!(bare.devices[0].sample.owner_source, "", "an exporter that maps no pods does not say that GPUs are free");
    }

    #[test]
    fn a_failed_listing_is_bridged_for_a_bounded_time() {
        let mut memory = Memory::default();
        let text = line("GPU-a", "");
        join(&mut memory, &text, list(&[("p", GPU, &["GPU-a"])]), 0);
        let (page, joined) = join(&mut memory, &text, Answer::Failed(JoinReason::ListFailed), 60_000);
        let sample = &page.devices[0].sample;
        assert_eq!((pods(&page, 0), sample.held_over, sample.join_reason.as_str()), (vec!["p"], true, "list_failed"));
        assert_eq!((joined.reason, joined.listed), (Some(JoinReason::ListFailed), None));
        let (page, joined) = join(&mut memory, &text, Answer::Failed(JoinReason::ListFailed), 60_001);
        let sample = &page.devices[0].sample;
        assert_eq!((pods(&page, 0), sample.held_over, sample.join_reason.as_str()), (vec![], false, "expired"));
        assert_eq!((sample.owner_source.as_str(), joined.reason), ("", Some(JoinReason::Expired)));
        let (page, _) = join(&mut Memory::default(), &text, Answer::Failed(JoinReason::NoSocket), 0);
        assert_eq!(page.devices[0].sample.join_reason, "no_socket");
    }

    #[test]
    fn a_held_gpu_that_the_page_lacks_is_data() {
        let mut memory = Memory::default();
        let answer = list(&[("p", GPU, &["GPU-a", "GPU-gone"]), ("m", GPU, &["MIG-GPU-b/3/0"])]);
        let (page, joined) = join(&mut memory, &line("GPU-a", ""), answer.clone(), 0);
        assert_eq!(pods(&page, 0), ["p"]);
        assert_eq!(joined.unmatched, ["GPU-b/3", "GPU-gone"]);
        let devices: Vec<_> = joined.listed.unwrap().into_iter().map(|h| h.device).collect();
        assert_eq!(devices, ["GPU-a", "GPU-b/3", "GPU-gone"], "which device a pod holds is the kubelet's word");
        let joined = owners(&mut memory, None, answer, Timestamp::from_ms(1), &Options::default());
        assert_eq!((joined.unmatched.len(), joined.listed.map(|l| l.len())), (0, Some(3)), "no page, no mismatch");
    }

    #[test]
    fn ids_by_number_lead_to_the_pages_devices() {
        let text =
            line("GPU-a", ",gpu=\"0\",device=\"nvidia1\"") + &line("GPU-b", ",gpu=\"1\",device=\"nvidia0\",GPU_I_ID=\"2\"");
        let answer = list(&[("p", GPU, &["nvidia1"]), ("q", GPU, &["nvidia0/gi2"])]);
        let (page, joined) = join(&mut Memory::default(), &text, answer, 0);
        assert_eq!((pods(&page, 0), pods(&page, 1), joined.unmatched), (vec!["p"], vec!["q"], vec![]));
    }

    /// Pod p with one device by claim.
    fn by_claim(device: &str) -> Answer {
        let result = ClaimResource {
            driver_name: "gpu.nvidia.com".into(),
            pool_name: "n1".into(),
            device_name: device.into(),
            ..ClaimResource::default()
        };
        let claim = DynamicResource { claim_name: "c".into(), claim_namespace: "n".into(), claim_resources: vec![result] };
        let container = ContainerResources { name: "c".into(), dynamic_resources: vec![claim], ..ContainerResources::default() };
        let pod =
            PodResources { name: "p".into(), namespace: "n".into(), containers: vec![container], ..PodResources::default() };
        Answer::Listed(ListPodResourcesResponse { pod_resources: vec![pod] })
    }

    fn slice(device: &str, uuid: &str, part: Option<(&str, &str)>) -> SliceDevice {
        SliceDevice {
            driver: "gpu.nvidia.com".into(),
            pool: "n1".into(),
            device: device.into(),
            uuid: uuid.into(),
            parent: part.map(|(parent, _)| parent.to_owned()),
            profile: part.map(|(_, profile)| profile.to_owned()),
            product: None,
        }
    }

    #[test]
    fn claims_lead_to_devices_by_the_nodes_slices() {
        let answer = by_claim("gpu-0");
        let (mut memory, text) = (Memory::default(), line("GPU-a", ""));
        let (page, joined) = join(&mut memory, &text, answer.clone(), 0);
        assert_eq!((pods(&page, 0), joined.reason), (vec![], Some(JoinReason::DeviceUnknown)));
        assert_eq!(joined.unmatched, ["gpu.nvidia.com/n1/gpu-0"]);
        memory.set_slices(vec![slice("gpu-0", "GPU-a", None)]);
        let (page, joined) = join(&mut memory, &text, answer, 1);
        assert_eq!((pods(&page, 0), joined.reason, joined.unmatched), (vec!["p"], None, vec![]));
    }

    #[test]
    fn a_claim_holds_once_it_is_known_not_to_look_only() {
        let (mut memory, text, answer) = (Memory::default(), line("GPU-a", ""), by_claim("gpu-0"));
        memory.set_slices(vec![slice("gpu-0", "GPU-a", None)]);
        memory.set_claims(Some(Arc::default()));
        let (page, joined) = join(&mut memory, &text, answer.clone(), 0);
        assert_eq!((pods(&page, 0), joined.reason), (vec![], Some(JoinReason::ClaimUnread)));
        assert_eq!(joined.unmatched, ["gpu.nvidia.com/n1/gpu-0"]);
        let name = memory.listed_claims().first().cloned().unwrap();
        let read = BTreeSet::from([name.clone()]);
        memory.set_claims(Some(Arc::new(Claims { read: read.clone(), admin: BTreeSet::new() })));
        let (page, joined) = join(&mut memory, &text, answer.clone(), 1);
        assert_eq!((pods(&page, 0), joined.reason, joined.unmatched), (vec!["p"], None, vec![]));
        let looks = (name.0, name.1, "gpu.nvidia.com".to_owned(), "n1".to_owned(), "gpu-0".to_owned());
        memory.set_claims(Some(Arc::new(Claims { read, admin: BTreeSet::from([looks]) })));
        let (page, joined) = join(&mut memory, &text, answer, 2);
        assert_eq!(
            (pods(&page, 0), joined.listed, joined.unmatched),
            (vec![], Some(vec![]), vec![]),
            "it looks, and holds nothing"
        );
    }

    #[test]
    fn an_instance_by_claim_meets_the_pages_parent_and_instance_id() {
        let text = line("GPU-a", ",GPU_I_ID=\"9\",GPU_I_PROFILE=\"1g.10gb\"")
            + &line("GPU-a", ",GPU_I_ID=\"2\",GPU_I_PROFILE=\"3g.40gb\"");
        let mut memory = Memory::default();
        let small = ("GPU-a", "1g.10gb");
        memory.set_slices(vec![
            slice("gpu-0", "GPU-a", None),
            slice("mig-1", "MIG-x", Some(small)),
            slice("mig-3", "MIG-y", Some(("GPU-a", "3g.40gb"))),
        ]);
        let (page, joined) = join(&mut memory, &text, by_claim("mig-1"), 0);
        let ids: Vec<&str> = page.devices.iter().map(|device| device.sample.device.as_str()).collect();
        assert_eq!(ids, ["GPU-a/2", "GPU-a/9"]);
        assert_eq!((pods(&page, 0), pods(&page, 1), joined.unmatched), (vec![], vec!["p"], vec![]));
        // Two alike: the pod holds one of them, and which is not guessed.
        let two = text + &line("GPU-a", ",GPU_I_ID=\"10\",GPU_I_PROFILE=\"1g.10gb\"");
        memory.set_slices(vec![slice("mig-1", "MIG-x", Some(small)), slice("mig-2", "MIG-z", Some(small))]);
        let (page, joined) = join(&mut memory, &two, by_claim("mig-1"), 1);
        assert!((0..3).all(|device| pods(&page, device).is_empty()));
        assert_eq!(joined.unmatched, ["MIG-x"]);
    }

    #[test]
    fn what_cannot_be_joined_says_why() {
        let text = line("GPU-a", "");
        let (_, joined) = join(&mut Memory::default(), &text, list(&[("p", GPU, &["weird!"])]), 0);
        assert_eq!((joined.reason, joined.unmatched), (Some(JoinReason::IdShapeUnknown), vec!["weird!".to_owned()]));
        let (page, joined) = join(&mut Memory::default(), &text, list(&[("p", "acme.com/gpu", &["GPU-a"])]), 0);
        assert_eq!((joined.reason, joined.unmatched), (Some(JoinReason::ResourceNotMatched), vec!["GPU-a".to_owned()]));
        assert!(pods(&page, 0).is_empty());
        let two = list(&[("p", GPU, &["GPU-a"]), ("q", GPU, &["GPU-a"])]);
        let (page, _) = join(&mut Memory::default(), &text, two, 0);
        assert_eq!((pods(&page, 0), page.devices[0].sample.join_reason.as_str()), (vec!["p", "q"], "conflict"));
    }

    #[test]
    fn devices_that_no_dcgm_reads_are_called_by_the_kubelets_ids() {
        let answer = list(&[("p", "google.com/tpu", &["3", "4"]), ("q", GPU, &["GPU-a"])]);
        let (_, joined) = join(&mut Memory::of("tpu-0"), &line("GPU-a", ""), answer.clone(), 0);
        let devices: Vec<_> = joined.listed.unwrap().into_iter().map(|h| h.device).collect();
        assert_eq!(devices, ["GPU-a", "tpu-0:google.com.tpu:3", "tpu-0:google.com.tpu:4"]);
        assert_eq!((joined.reason, joined.unmatched), (None, vec![]), "no page would show them");
        let (_, joined) = join(&mut Memory::default(), &line("GPU-a", ""), answer, 0);
        assert_eq!((joined.listed.map(|l| l.len()), joined.unmatched), (Some(1), vec![]), "no name without the node's");
    }

    #[test]
    fn sharers_are_no_disagreement() {
        let text = line("GPU-a", ",pod=\"q\",namespace=\"n\"");
        let answer = list(&[("p", GPU, &["GPU-a::0"]), ("q", GPU, &["GPU-a::1"])]);
        let (page, joined) = join(&mut Memory::default(), &text, answer, 0);
        assert_eq!((pods(&page, 0), joined.label_disagreements), (vec!["p", "q"], 0));
    }
}
