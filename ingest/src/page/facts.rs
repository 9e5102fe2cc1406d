//! What the label block of a series says: the device, what is to be known of it, who holds it. Worked out once for all series
//! that carry the same block.

use super::{Caps, Options, PagePod};
use crate::parse::Label;
use schemas::labels::{Contract, Meaning, meaning};
use schemas::{DeviceId, GpuUuid};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// A block's labels by meaning; empty ones are as if they were not there. Texts are cut to their cap, but for those that tell
/// series and devices apart.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The labels that are not empty, sorted: what tells one series of a name from another.
    labels: Vec<(String, String)>,
    hash: u64,
    pub uuid: Option<String>,
    pub instance: Option<String>,
    /// The device, where `uuid` and `instance` name one.
    pub id: Option<DeviceId>,
    pub profile: Option<String>,
    pub gpu_index: Option<u32>,
    pub product: Option<String>,
    pub pci_bus_id: Option<String>,
    pub hostname: Option<String>,
    pub driver_version: Option<String>,
    pub device_name: Option<String>,
    pub err_msg: Option<String>,
    /// What the exporter itself said goes before what a Prometheus put in its place.
    pub pod: Option<PagePod>,
    /// Labels that no meaning uses.
    pub other: Vec<(String, String)>,
    /// How many labels the contract refused.
    pub refused: u64,
    /// The series is about a part of a device or of the node, not about a device.
    pub part: bool,
    /// Labels of an extra sample with this block, and how many its cap dropped.
    extra: OnceLock<(BTreeMap<String, String>, u64)>,
}

impl Facts {
    pub fn of(labels: &[Label<'_>], options: &Options, hasher: &RandomState) -> Self {
        let Caps { label_bytes, .. } = options.caps;
        let mut f = Facts::default();
        let mut pod: [Option<Cow<'_, str>>; 3] = Default::default();
        let mut exported: [Option<Cow<'_, str>>; 3] = Default::default();
        let mut pod_uid = None;
        for label in labels.iter().filter(|label| !label.value.is_empty()) {
            let (name, value) = (label.name.get(), label.value.get());
            let kept = || Some(cut(&value, label_bytes).to_owned());
            match meaning(&name) {
                Meaning::GpuIndex => f.gpu_index = value.parse().ok(),
                Meaning::Uuid => f.uuid = Some(value.clone().into_owned()),
                Meaning::PciBusId => f.pci_bus_id = kept(),
                Meaning::DeviceName => f.device_name = kept(),
                Meaning::Product => f.product = kept(),
                Meaning::Profile => f.profile = kept(),
                Meaning::InstanceId => f.instance = Some(value.clone().into_owned()),
                Meaning::Hostname => f.hostname = kept(),
                Meaning::DriverVersion => f.driver_version = kept(),
                Meaning::Namespace => pod[0] = Some(value.clone()),
                Meaning::Pod => pod[1] = Some(value.clone()),
                Meaning::Container => pod[2] = Some(value.clone()),
                Meaning::ExportedNamespace => exported[0] = Some(value.clone()),
                Meaning::ExportedPod => exported[1] = Some(value.clone()),
                Meaning::ExportedContainer => exported[2] = Some(value.clone()),
                Meaning::PodUid => pod_uid = Some(value.clone()),
                Meaning::ErrMsg => f.err_msg = kept(),
                Meaning::Vgpu | Meaning::ErrCode => {}
                Meaning::Cost(_) => f.other.extend(kept().map(|value| (name.clone().into_owned(), value))),
                Meaning::Other => {
                    // Entities below or beside a GPU: NVLink lines, NVSwitches, CPUs and their cores.
                    f.part |= matches!(&*name, "nvlink" | "nvswitch" | "cpu" | "cpucore");
                    if options.contract.refuses(&name) {
                        f.refused += 1;
                    } else {
                        f.other.extend(kept().map(|value| (name.clone().into_owned(), value)));
                    }
                }
            }
            f.labels.push((name.into_owned(), value.into_owned()));
        }
        f.labels.sort_unstable();
        f.hash = hasher.hash_one(&f.labels);
        f.id = f.uuid.as_deref().and_then(|uuid| device(uuid, f.instance.as_deref()));
        let [namespace, name, container] = if exported[1].is_some() { exported } else { pod };
        let text = |of: Option<Cow<'_, str>>| cut(of.as_deref().unwrap_or_default(), label_bytes).to_owned();
        f.pod = name.map(|name| PagePod {
            namespace: text(namespace),
            pod: text(Some(name)),
            container: text(container),
            pod_uid: text(pod_uid),
        });
        f
    }

    /// Whether both have the same set of labels, in whatever order and spelling.
    pub fn same_labels(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || (self.hash == other.hash && self.labels == other.labels)
    }

    /// The labels that an extra sample with this block carries, and how many the cap dropped.
    pub fn extra(&self, options: &Options) -> &(BTreeMap<String, String>, u64) {
        let refused = |contract: &Contract, name: &str| meaning(name) == Meaning::Other && contract.refuses(name);
        self.extra.get_or_init(|| {
            let mut kept: BTreeMap<String, String> = BTreeMap::new();
            let mut dropped = 0;
            for (name, value) in self.labels.iter().filter(|(name, _)| !refused(&options.contract, name)) {
                if kept.len() < options.caps.labels {
                    kept.insert(name.clone(), cut(value, options.caps.label_bytes).to_owned());
                } else {
                    dropped += 1;
                }
            }
            (kept, dropped)
        })
    }

    /// The device of an extra sample, empty where it names none. An instance id that is none leaves the whole GPU.
    pub fn extra_device(&self) -> String {
        let Some(gpu) = self.uuid.as_deref().and_then(|uuid| GpuUuid::parse(uuid).ok()) else { return String::new() };
        self.id.clone().unwrap_or_else(|| DeviceId::whole(gpu)).to_string()
    }
}

fn device(uuid: &str, instance: Option<&str>) -> Option<DeviceId> {
    let gpu = GpuUuid::parse(uuid).ok()?;
    Some(match instance {
        None => DeviceId::whole(gpu),
        Some(text) => DeviceId::instance(gpu, text.parse().ok()?),
    })
}

/// The longest beginning of `text` of at most `max` bytes.
pub(super) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}
