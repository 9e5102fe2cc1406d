//! One page, seen as devices: readings by field id, labels by meaning, everything else beside them.
//!
//! ```text
//! samples ──catalogue──> field id ─┐
//! labels  ──labels─────> device   ─┴─> one DeviceSample a device
//!                  └───> pods that the page names, refused labels (counted)
//! what the catalogue does not know ──> ExtraSample, with its labels, up to a cap
//! ```
//!
//! Pure. The rules (DESIGN A6, A9, A17, 3.2, 3.5):
//! * absent and empty labels are alike; old, new and Prometheus-renamed spellings are alike (`schemas::labels`);
//! * a value is classified by its field's own type (`schemas::catalogue::Field::read`): a blank, a NaN or a value out of
//!   range is no reading, and its reason stands in `faults`;
//! * the same series (name and labels) twice: the first is kept, the others are counted, and counted as conflicting where
//!   their values differ;
//! * several series of one (device, field), such as copies for virtual GPUs or stale label sets: one reading, the largest
//!   valid value; `conflict` where valid values differ as printed;
//! * labels that the cost-label contract refuses are dropped and counted.

use crate::parse::{self, Label, LineError, PageError, Sample};
use schemas::catalogue::{self, Field, Reading};
use schemas::labels::{Contract, Meaning, meaning};
use schemas::proto::{self, Readings, Value};
use schemas::status::{ReadingFault, ScrapeStatus};
use schemas::{DeviceId, GpuUuid};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};

pub use describe::{Described, describe};

/// How to read a page.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Bounds of the parser.
    pub limits: parse::Limits,
    /// Which labels may not enter.
    pub contract: Contract,
    /// Bounds on what a page may add beside its readings.
    pub caps: Caps,
}

/// Bounds on what a page may add beside its readings; what exceeds them is dropped and counted.
#[derive(Debug, Clone, Copy)]
pub struct Caps {
    /// Most samples that the catalogue does not know. Default 1,000.
    pub extra_samples: usize,
    /// Most devices. Default 1,024.
    pub devices: usize,
    /// Most unused labels kept a device, and labels of an extra sample. Default 64.
    pub labels: usize,
    /// Longest label value that is kept, in bytes; a longer one is cut. Default 1,024.
    pub label_bytes: usize,
    /// Most pods that a page may name for one device. Default 64.
    pub pods: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Caps { extra_samples: 1_000, devices: 1_024, labels: 64, label_bytes: 1_024, pods: 64 }
    }
}

/// Why a body is no page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PageFault {
    /// The body is longer than the limit.
    #[error("{0}")]
    TooLarge(PageError),
    /// The body is compressed.
    #[error("the body is gzip, not text; fetch it without compression, or unpack the file first")]
    Compressed,
    /// The body is HTML.
    #[error("the body is HTML, not metrics; is the path right (`/metrics`), or is this a login page?")]
    Html,
    /// The answer says that it is something else.
    #[error("content type `{0}` is not Prometheus text (`text/plain`)")]
    ContentType(String),
    /// Not one line is a sample.
    #[error("not one sample in the body: {bad_lines} bad lines, the first at {first}")]
    NoSample {
        /// Lines that are no samples.
        bad_lines: u64,
        /// The first of them.
        first: LineError,
    },
    /// No line at all that could be a sample.
    #[error("the body has no samples; the exporter may be reloading")]
    Empty,
}

impl PageFault {
    /// The status of a round that got this body.
    pub fn status(&self) -> ScrapeStatus {
        match self {
            PageFault::TooLarge(_) => ScrapeStatus::TooLarge,
            PageFault::Compressed | PageFault::Html | PageFault::ContentType(_) | PageFault::NoSample { .. } => {
                ScrapeStatus::ParseError
            }
            PageFault::Empty => ScrapeStatus::Empty,
        }
    }
}

/// A page, read.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// Its devices, by id.
    pub devices: Vec<Device>,
    /// Samples of metrics that the catalogue does not know, of families with several series a device, and of series that
    /// name no device.
    pub extra: Vec<proto::ExtraSample>,
    /// The first lines and values that were kept out.
    pub rejects: Vec<proto::Reject>,
    /// Counts.
    pub counts: Counts,
    /// The same bad lines with their places, for people.
    pub bad_lines: parse::Rejects,
    /// The page does not end in a line feed: it may have been cut.
    pub unterminated: bool,
}

/// One device of a page.
#[derive(Debug, Clone)]
pub struct Device {
    /// Identity.
    pub id: DeviceId,
    /// `nvidia0`: the name under which some kubelets know the device.
    pub device_name: String,
    /// The pods that the page's own labels name, in order of first sight.
    pub pods: Vec<PagePod>,
    /// What travels; holders are the join's to fill.
    pub sample: proto::DeviceSample,
}

/// A pod as the labels of a page name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PagePod {
    /// Namespace.
    pub namespace: String,
    /// Pod.
    pub pod: String,
    /// Container.
    pub container: String,
    /// UID, where the page has it.
    pub pod_uid: String,
}

/// What was counted while reading a page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Series samples read.
    pub series: u64,
    /// Lines kept out, and samples whose device id is none.
    pub bad_lines: u64,
    /// Series that stood twice or more, the first not counted.
    pub duplicate_series: u64,
    /// Those of them whose value differs from the first.
    pub conflicting_duplicates: u64,
    /// Labels that the contract refused.
    pub refused_labels: u64,
    /// Extra samples dropped by the cap.
    pub extra_dropped: u64,
    /// Samples of devices dropped by the cap.
    pub devices_dropped: u64,
    /// Labels dropped by the cap.
    pub labels_dropped: u64,
    /// Readings by fault (also those that a valid reading of another series replaced).
    pub faults: BTreeMap<&'static str, u64>,
}

/// Reads a page as devices. `content_type` is the answer's header, where there was an answer.
pub fn read(bytes: &[u8], content_type: Option<&str>, options: &Options) -> Result<Page, PageFault> {
    check_content_type(content_type)?;
    if bytes.trim_ascii_start().first() == Some(&b'<') {
        return Err(PageFault::Html);
    }
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return Err(PageFault::Compressed);
    }
    let text = parse::page(bytes, parse::Mode::Lenient, options.limits).map_err(PageFault::TooLarge)?;
    if text.samples.is_empty() {
        return Err(match text.rejects.first.first() {
            Some(first) => PageFault::NoSample { bad_lines: text.rejects.count, first: *first },
            None => PageFault::Empty,
        });
    }
    let mut reader = Reader::new(&text, options);
    for error in &text.rejects.first {
        reader.out.rejects.push(proto::Reject {
            line: error.line,
            reason: error.reason.code().to_owned(),
            text: excerpt(bytes, error),
        });
    }
    reader.out.counts.bad_lines = text.rejects.count;
    for sample in &text.samples {
        reader.sample(sample);
    }
    let mut page = reader.finish();
    page.bad_lines = text.rejects;
    page.unterminated = text.unterminated;
    Ok(page)
}

fn check_content_type(content_type: Option<&str>) -> Result<(), PageFault> {
    let Some(value) = content_type else { return Ok(()) };
    let kind = value.split(';').next().unwrap_or_default().trim();
    // `text/plain` of any version: exporters that let Go guess the type state no version.
    if kind.is_empty() || kind.eq_ignore_ascii_case("text/plain") {
        return Ok(());
    }
    if kind.eq_ignore_ascii_case("text/html") {
        return Err(PageFault::Html);
    }
    Err(PageFault::ContentType(value.chars().filter(|c| !c.is_control()).take(100).collect()))
}

/// The beginning of a bad line, up to its labels: those may hold what the contract refuses.
fn excerpt(bytes: &[u8], error: &LineError) -> String {
    let start = (error.offset as usize + 1).saturating_sub(error.column as usize);
    let rest = bytes.get(start..).unwrap_or_default();
    let line = rest.split(|b| matches!(b, b'\n' | b'{')).next().unwrap_or_default();
    String::from_utf8_lossy(&line[..line.len().min(64)]).into_owned()
}

/// State while the samples of one page go by.
struct Reader<'p> {
    text: &'p parse::Exposition<'p>,
    options: &'p Options,
    by_id: HashMap<(Cow<'p, str>, Cow<'p, str>), Option<usize>>,
    /// For each device, the series that were read for each field: to tell a repeat from another series.
    seen: Vec<HashMap<u16, Seen<'p>>>,
    /// Extra samples by the hash of their series, to find repeats.
    extra_seen: HashMap<u64, Vec<usize>>,
    hasher: RandomState,
    last_field: Option<(Cow<'p, str>, Option<&'static Field>)>,
    out: Page,
}

/// The series read so far for one (device, field).
struct Seen<'p> {
    /// Each with the hash of its series, once there is a second one to compare with.
    first: (Option<u64>, &'p Sample<'p>),
    others: Vec<(u64, &'p Sample<'p>)>,
    /// The printed value that was kept, if one was valid.
    kept: Option<&'p str>,
}

/// A series' labels by meaning; empty ones are left out.
#[derive(Default)]
struct Meanings<'p> {
    uuid: Option<Cow<'p, str>>,
    instance: Option<Cow<'p, str>>,
    profile: Option<Cow<'p, str>>,
    gpu_index: Option<Cow<'p, str>>,
    product: Option<Cow<'p, str>>,
    pci_bus_id: Option<Cow<'p, str>>,
    hostname: Option<Cow<'p, str>>,
    driver_version: Option<Cow<'p, str>>,
    device_name: Option<Cow<'p, str>>,
    err_msg: Option<Cow<'p, str>>,
    pod: [Option<Cow<'p, str>>; 3],
    exported: [Option<Cow<'p, str>>; 3],
    pod_uid: Option<Cow<'p, str>>,
    /// Labels that no meaning uses.
    other: Vec<Label<'p>>,
    /// The series is about a part of a device or of the node, not about a device.
    part: bool,
}

impl<'p> Reader<'p> {
    fn new(text: &'p parse::Exposition<'p>, options: &'p Options) -> Self {
        Reader {
            text,
            options,
            by_id: HashMap::new(),
            seen: Vec::new(),
            extra_seen: HashMap::new(),
            hasher: RandomState::new(),
            last_field: None,
            out: Page::default(),
        }
    }

    fn sample(&mut self, sample: &'p Sample<'p>) {
        self.out.counts.series += 1;
        let field = self.field(sample);
        let labels = self.text.labels(sample);
        let found = self.meanings(labels);
        let reading_of = match (field.filter(|f| f.column.is_some()), &found.uuid) {
            (Some(field), Some(_)) if !found.part => field.id.map(|id| (field, id)),
            _ => None,
        };
        let Some((field, id)) = reading_of else {
            self.extra(sample, labels, &found);
            return;
        };
        match self.device(&found) {
            Ok(Some(device)) => {
                self.attributes(device, &found);
                self.reading(device, field, id, sample, found.err_msg.as_deref());
            }
            Ok(None) => self.out.counts.devices_dropped += 1,
            Err(reason) => self.reject(sample, reason),
        }
    }

    /// The catalogue's row of a sample's name; families stand together, so the last answer is asked first.
    fn field(&mut self, sample: &Sample<'p>) -> Option<&'static Field> {
        if let Some((name, field)) = &self.last_field
            && sample.name == **name
        {
            return *field;
        }
        let name = sample.name.get();
        let field = catalogue::by_name(&name);
        self.last_field = Some((name, field));
        field
    }

    fn meanings(&mut self, labels: &[Label<'p>]) -> Meanings<'p> {
        let mut m = Meanings::default();
        for label in labels {
            if label.value.is_empty() {
                continue;
            }
            let name = label.name.get();
            let value = || Some(label.value.get());
            match meaning(&name) {
                Meaning::GpuIndex => m.gpu_index = value(),
                Meaning::Uuid => m.uuid = value(),
                Meaning::PciBusId => m.pci_bus_id = value(),
                Meaning::DeviceName => m.device_name = value(),
                Meaning::Product => m.product = value(),
                Meaning::Profile => m.profile = value(),
                Meaning::InstanceId => m.instance = value(),
                Meaning::Hostname => m.hostname = value(),
                Meaning::DriverVersion => m.driver_version = value(),
                Meaning::Namespace => m.pod[0] = value(),
                Meaning::Pod => m.pod[1] = value(),
                Meaning::Container => m.pod[2] = value(),
                Meaning::ExportedNamespace => m.exported[0] = value(),
                Meaning::ExportedPod => m.exported[1] = value(),
                Meaning::ExportedContainer => m.exported[2] = value(),
                Meaning::PodUid => m.pod_uid = value(),
                Meaning::ErrMsg => m.err_msg = value(),
                Meaning::Vgpu | Meaning::ErrCode => {}
                Meaning::Cost(_) => m.other.push(*label),
                Meaning::Other => {
                    // Entities below or beside a GPU: NVLink lines, NVSwitches, CPUs and their cores.
                    m.part |= matches!(&*name, "nvlink" | "nvswitch" | "cpu" | "cpucore");
                    if self.options.contract.refuses(&name) {
                        self.out.counts.refused_labels += 1;
                    } else {
                        m.other.push(*label);
                    }
                }
            }
        }
        m
    }

    /// The device that a series names: `None` where the cap on devices dropped it.
    fn device(&mut self, found: &Meanings<'p>) -> Result<Option<usize>, &'static str> {
        let uuid = found.uuid.clone().unwrap_or_default();
        let instance = found.instance.clone().unwrap_or_default();
        if let Some(known) = self.by_id.get(&(uuid.clone(), instance.clone())) {
            return known.ok_or("bad_device_id").map(Some);
        }
        if self.by_id.len() >= self.options.caps.devices {
            return Ok(None);
        }
        let id = GpuUuid::parse(&uuid).ok().and_then(|gpu| match &*instance {
            "" => Some(DeviceId::whole(gpu)),
            text => Some(DeviceId::instance(gpu, text.parse().ok()?)),
        });
        let index = id.is_some().then_some(self.out.devices.len());
        self.by_id.insert((uuid, instance), index);
        let id = id.ok_or("bad_device_id")?;
        self.seen.push(HashMap::new());
        self.out.devices.push(Device {
            device_name: String::new(),
            pods: Vec::new(),
            sample: proto::DeviceSample {
                device: id.to_string(),
                parent: id.instance_id().map_or(String::new(), |_| id.gpu().to_string()),
                instance_id: id.instance_id(),
                readings: Some(Readings::default()),
                ..Default::default()
            },
            id,
        });
        Ok(index)
    }

    /// What the labels say of the device itself; the first series that says something is believed.
    fn attributes(&mut self, device: usize, found: &Meanings<'p>) {
        let caps = self.options.caps;
        let device = &mut self.out.devices[device];
        let set = |to: &mut String, from: &Option<Cow<'p, str>>| {
            if let (true, Some(from)) = (to.is_empty(), from) {
                *to = cut(from, caps.label_bytes).to_owned();
            }
        };
        set(&mut device.device_name, &found.device_name);
        set(&mut device.sample.profile, &found.profile);
        set(&mut device.sample.product, &found.product);
        set(&mut device.sample.pci_bus_id, &found.pci_bus_id);
        set(&mut device.sample.hostname, &found.hostname);
        set(&mut device.sample.driver_version, &found.driver_version);
        if let (None, Some(index)) = (device.sample.gpu_index, &found.gpu_index) {
            device.sample.gpu_index = index.parse().ok();
        }
        // What the exporter itself said goes before what a Prometheus put in its place.
        let [namespace, pod, container] = if found.exported[1].is_some() { &found.exported } else { &found.pod };
        if let Some(pod) = pod {
            let same = |p: &PagePod| {
                p.pod == **pod
                    && p.namespace == namespace.as_deref().unwrap_or_default()
                    && p.container == container.as_deref().unwrap_or_default()
            };
            match device.pods.iter().position(same) {
                Some(known) => set(&mut device.pods[known].pod_uid, &found.pod_uid),
                None if device.pods.len() < caps.pods => device.pods.push(PagePod {
                    namespace: cut(namespace.as_deref().unwrap_or_default(), caps.label_bytes).to_owned(),
                    pod: cut(pod, caps.label_bytes).to_owned(),
                    container: cut(container.as_deref().unwrap_or_default(), caps.label_bytes).to_owned(),
                    pod_uid: cut(found.pod_uid.as_deref().unwrap_or_default(), caps.label_bytes).to_owned(),
                }),
                None => self.out.counts.labels_dropped += 1,
            }
        }
        for label in &found.other {
            let name = label.name.get();
            if device.sample.labels.contains_key(&*name) {
                continue;
            }
            if device.sample.labels.len() >= caps.labels {
                self.out.counts.labels_dropped += 1;
                continue;
            }
            device.sample.labels.insert(name.into_owned(), cut(&label.value.get(), caps.label_bytes).to_owned());
        }
    }

    /// One value of one field into the device's readings.
    fn reading(&mut self, device: usize, field: &Field, id: u16, sample: &'p Sample<'p>, err_msg: Option<&str>) {
        let mut kept = None;
        if let Some(seen) = self.seen[device].get_mut(&id) {
            let (text, hasher) = (self.text, &self.hasher);
            let hash_of = |s: &Sample<'p>| series_hash(hasher, s, text.labels(s));
            let hash = hash_of(sample);
            let first = (*seen.first.0.get_or_insert_with(|| hash_of(seen.first.1)), seen.first.1);
            // Only series of the same hash are compared label by label: a page of a million copies costs what it is long.
            let same = |s: &&(u64, &Sample<'p>)| {
                s.0 == hash && same_labels(text.labels(s.1), text.labels(sample)) && s.1.name == sample.name
            };
            if let Some((_, first)) = [&first].into_iter().chain(&seen.others).find(same) {
                self.out.counts.duplicate_series += 1;
                self.out.counts.conflicting_duplicates += u64::from(first.raw != sample.raw);
                return;
            }
            // Bounded: what one device and field may add here is a handful of copies, not a page of them.
            if seen.others.len() < self.options.caps.pods {
                seen.others.push((hash, sample));
            }
            kept = seen.kept;
        }
        let sample_of = &mut self.out.devices[device].sample;
        let readings = sample_of.readings.get_or_insert_default();
        let (value, fault) = match field.read(sample.raw, sample.value, sample_of.instance_id.is_some()) {
            Reading::Int(value) => (Some(Value::Int(value)), None),
            Reading::Ratio(value) => (Some(Value::Float(value as f32)), None),
            Reading::Clipped(value, fault) => (Some(Value::Float(value as f32)), Some(fault)),
            Reading::Invalid(fault) => (None, Some(fault)),
        };
        if let Some(fault) = fault {
            *self.out.counts.faults.entry(fault.as_str()).or_default() += 1;
        }
        let old = readings.get(id);
        let conflict = value.is_some() && kept.is_some_and(|k| k != sample.raw);
        if let Some(value) = value
            && old.is_none_or(|old| greater(value, old))
        {
            readings.set(id, value);
            kept = Some(sample.raw);
            if id == catalogue::id::XID_ERRORS {
                let text = err_msg.unwrap_or_default();
                sample_of.xid_message = cut(text, self.options.caps.label_bytes).to_owned();
            }
        }
        let before = sample_of.faults.get(&u32::from(id)).and_then(|t| ReadingFault::from_text(t));
        if conflict && before != Some(ReadingFault::Conflict) {
            *self.out.counts.faults.entry(ReadingFault::Conflict.as_str()).or_default() += 1;
        }
        match told(before, fault, kept.is_some(), conflict) {
            Some(fault) => sample_of.faults.insert(u32::from(id), fault.as_str().to_owned()),
            None => sample_of.faults.remove(&u32::from(id)),
        };
        self.seen[device].entry(id).or_insert(Seen { first: (None, sample), others: Vec::new(), kept: None }).kept = kept;
    }

    fn extra(&mut self, sample: &Sample<'p>, labels: &[Label<'p>], found: &Meanings<'p>) {
        let caps = self.options.caps;
        let mut kept: BTreeMap<String, String> = BTreeMap::new();
        for label in labels {
            let name = label.name.get();
            if label.value.is_empty() || (meaning(&name) == Meaning::Other && self.options.contract.refuses(&name)) {
                continue;
            }
            if kept.len() >= caps.labels {
                self.out.counts.labels_dropped += 1;
                continue;
            }
            kept.insert(name.into_owned(), cut(&label.value.get(), caps.label_bytes).to_owned());
        }
        let name = sample.name.get().into_owned();
        let hash = self.hasher.hash_one((&name, &kept));
        let alike = self.extra_seen.entry(hash).or_default();
        if let Some(first) = alike.iter().map(|i| &self.out.extra[*i]).find(|e| e.name == name && e.labels == kept) {
            self.out.counts.duplicate_series += 1;
            self.out.counts.conflicting_duplicates += u64::from(first.value.to_bits() != sample.value.to_bits());
            return;
        }
        if self.out.extra.len() >= caps.extra_samples {
            self.out.counts.extra_dropped += 1;
            return;
        }
        alike.push(self.out.extra.len());
        let uuid = found.uuid.as_deref().and_then(|u| GpuUuid::parse(u).ok());
        let device = uuid.map_or(String::new(), |gpu| match found.instance.as_deref().map(str::parse) {
            Some(Ok(instance)) => DeviceId::instance(gpu, instance).to_string(),
            _ => gpu.to_string(),
        });
        self.out.extra.push(proto::ExtraSample { device, name, labels: kept, value: sample.value });
    }

    fn reject(&mut self, sample: &Sample<'p>, reason: &'static str) {
        self.out.counts.bad_lines += 1;
        if self.out.rejects.len() < self.options.limits.rejects_kept {
            let name = sample.name.get();
            let text = cut(&name, 64).to_owned();
            self.out.rejects.push(proto::Reject { line: sample.line, reason: reason.to_owned(), text });
        }
    }

    fn finish(mut self) -> Page {
        self.out.devices.sort_by(|a, b| a.id.cmp(&b.id));
        self.out.rejects.sort_by_key(|r| r.line);
        self.out
    }
}

/// What stands in `faults` for a field after one more series: a conflict outlives everything, a remark on a valid value goes
/// before the loss of another series' value, and of two losses `out_of_range` before `sentinel`.
fn told(before: Option<ReadingFault>, now: Option<ReadingFault>, valid: bool, conflict: bool) -> Option<ReadingFault> {
    use ReadingFault::{Conflict, MigOverrange, OutOfRange, OverrangeClipped, Sentinel};
    let either = |fault| before == Some(fault) || now == Some(fault);
    if conflict || before == Some(Conflict) {
        return Some(Conflict);
    }
    let remark = [MigOverrange, OverrangeClipped].into_iter().find(|f| either(*f));
    let loss = [OutOfRange, Sentinel].into_iter().find(|f| either(*f));
    if valid { remark } else { loss }
}

fn greater(a: Value, b: Value) -> bool {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a > b,
        (Value::Float(a), Value::Float(b)) => a > b,
        // One field has one stored type.
        (Value::Int(_), Value::Float(_)) | (Value::Float(_), Value::Int(_)) => false,
    }
}

/// Whether two label lists are the same set; empty values count as absent.
fn same_labels(a: &[Label<'_>], b: &[Label<'_>]) -> bool {
    let full = |l: &&Label<'_>| !l.value.is_empty();
    if a.iter().filter(full).eq(b.iter().filter(full)) {
        return true; // the usual case: the same order too
    }
    let sorted = |labels: &[Label<'_>]| {
        let mut all: Vec<_> =
            labels.iter().filter(full).map(|l| (l.name.get().into_owned(), l.value.get().into_owned())).collect();
        all.sort_unstable();
        all
    };
    a.iter().filter(full).count() == b.iter().filter(full).count() && sorted(a) == sorted(b)
}

/// A hash of a series that does not depend on the order of its labels; empty ones count as absent.
fn series_hash(hasher: &RandomState, sample: &Sample<'_>, labels: &[Label<'_>]) -> u64 {
    let full = labels.iter().filter(|l| !l.value.is_empty());
    full.fold(hasher.hash_one(sample.name.get()), |sum, l| sum.wrapping_add(hasher.hash_one((l.name.get(), l.value.get()))))
}

/// The longest beginning of `text` of at most `max` bytes.
fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

mod describe;
#[cfg(test)]
mod tests;
