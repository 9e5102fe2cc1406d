//! One page, seen as devices: readings by field id, labels by meaning, everything else beside them.
//!
//! ```text
//! samples ──catalogue──> field id ───────────┐
//! label block ──facts──> device, attributes ─┴─> one DeviceSample a device
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
//! * labels that the cost-label contract refuses are dropped and counted;
//! * OpenMetrics adds `_total` to the name of a counter: the field is the same.
//!
//! What a label block says is worked out once and remembered ([`Memory`]), within a page and from page to page of a target.

use crate::parse::{self, Format, Item, Labels, LineError, PageError, Sample, Text};
use facts::{Facts, cut};
use schemas::DeviceId;
use schemas::catalogue::{self, Field, Reading};
use schemas::labels::Contract;
use schemas::proto::{self, Readings, Value};
use schemas::status::{ReadingFault, ScrapeStatus};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

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
    /// Most bytes of label blocks that a target's [`Memory`] takes; with what they say it is some five times that. Default 128
    /// KiB; a page of 8 GPUs has 3 KiB of them. With 0 nothing is remembered.
    pub memory_bytes: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Caps { extra_samples: 1_000, devices: 1_024, labels: 64, label_bytes: 1_024, pods: 64, memory_bytes: 128 << 10 }
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
    /// OpenMetrics without its end mark: part of a page is no page.
    #[error("the page ends after line {} without `# EOF`: it was cut, and nothing of it is used", .0.line)]
    Cut(LineError),
    /// The body is HTML.
    #[error("the body is HTML, not metrics; is the path right (`/metrics`), or is this a login page?")]
    Html,
    /// The answer says that it is something else.
    #[error("content type `{0}` is neither Prometheus text (`text/plain`) nor OpenMetrics (`application/openmetrics-text`)")]
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
            PageFault::Compressed
            | PageFault::Cut(_)
            | PageFault::Html
            | PageFault::ContentType(_)
            | PageFault::NoSample { .. } => ScrapeStatus::ParseError,
            PageFault::Empty => ScrapeStatus::Empty,
        }
    }
}

/// A page, read.
#[derive(Debug, Clone, Default, PartialEq)]
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
#[derive(Debug, Clone, PartialEq)]
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

/// What is remembered of a target between its pages: what the label blocks of its series say. Of one target, and of one set
/// of [`Options`]. With an empty one a page reads the same.
#[derive(Debug)]
pub struct Memory {
    blocks: parse::Memory,
    /// By number of the block.
    facts: Vec<Arc<Facts>>,
    hasher: RandomState,
}

impl Memory {
    /// An empty memory for pages that are read with `options`.
    pub fn new(options: &Options) -> Self {
        Memory { blocks: parse::Memory::new(options.caps.memory_bytes), facts: Vec::new(), hasher: RandomState::new() }
    }
}

/// Why a sample is kept out whose labels name no device; beside the codes of `parse::Reason`.
pub const BAD_DEVICE_ID: &str = "bad_device_id";

/// Reads a page as devices. `content_type` is the answer's header, where there was an answer; without one a page that ends in
/// `# EOF` is OpenMetrics, any other one text.
pub fn read(bytes: &[u8], content_type: Option<&str>, options: &Options) -> Result<Page, PageFault> {
    read_remembering(bytes, content_type, options, &mut Memory::new(options))
}

/// As [`read`], with what is remembered of the target's earlier pages.
pub fn read_remembering(
    bytes: &[u8],
    content_type: Option<&str>,
    options: &Options,
    memory: &mut Memory,
) -> Result<Page, PageFault> {
    let format = format_of(bytes, content_type)?;
    if bytes.trim_ascii_start().first() == Some(&b'<') {
        return Err(PageFault::Html);
    }
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return Err(PageFault::Compressed);
    }
    if bytes.trim_ascii_start().is_empty() {
        return Err(PageFault::Empty);
    }
    let Memory { blocks, facts, hasher } = memory;
    let mut reader = Reader::new(format, options, facts, hasher);
    let summary = parse::each_remembering(bytes, format, parse::Mode::Lenient, options.limits, blocks, |item, labels| {
        if let Item::Sample(sample) = item {
            reader.sample(sample, labels);
        }
    });
    let summary = summary.map_err(|error| match error {
        PageError::TooLarge { .. } => PageFault::TooLarge(error),
        PageError::Cut(at) => PageFault::Cut(at),
        PageError::Line(_) => unreachable!("a lenient reading refuses no page for a line"),
    })?;
    if summary.samples == 0 {
        return Err(match summary.rejects.first.first() {
            Some(first) => PageFault::NoSample { bad_lines: summary.rejects.count, first: *first },
            None => PageFault::Empty,
        });
    }
    Ok(reader.finish(bytes, summary))
}

fn format_of(bytes: &[u8], content_type: Option<&str>) -> Result<Format, PageFault> {
    let value = content_type.unwrap_or_default();
    let kind = value.split(';').next().unwrap_or_default().trim();
    let is = |name: &str| kind.eq_ignore_ascii_case(name);
    if kind.is_empty() {
        let whole = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let ends = whole.strip_suffix(b"# EOF").is_some_and(|before| before.is_empty() || before.ends_with(b"\n"));
        return Ok(if ends { Format::OpenMetrics } else { Format::Text });
    }
    // Of any version: exporters that let Go guess the type state none.
    match () {
        () if is("text/plain") => Ok(Format::Text),
        () if is("application/openmetrics-text") => Ok(Format::OpenMetrics),
        () if is("text/html") => Err(PageFault::Html),
        () => Err(PageFault::ContentType(value.chars().filter(|c| !c.is_control()).take(100).collect())),
    }
}

/// The beginning of a bad line, up to its labels: those may hold what the contract refuses.
fn excerpt(bytes: &[u8], error: &LineError) -> String {
    let start = (error.offset as usize + 1).saturating_sub(error.column as usize);
    let rest = bytes.get(start..).unwrap_or_default();
    let line = rest.split(|b| matches!(b, b'\n' | b'{')).next().unwrap_or_default();
    String::from_utf8_lossy(&line[..line.len().min(64)]).into_owned()
}

/// State while the samples of one page go by.
struct Reader<'p, 'm> {
    format: Format,
    options: &'p Options,
    /// By number of the block, of this page and of pages before.
    facts: &'m mut Vec<Arc<Facts>>,
    hasher: &'m RandomState,
    /// Where the devices of numbered blocks are, once this page has shown them.
    places: Vec<Option<Place>>,
    by_id: HashMap<(String, String), Option<usize>>,
    /// For each device, the series that were read for each field: to tell a repeat from another series.
    seen: Vec<HashMap<u16, Seen<'p>>>,
    /// Extra samples by the hash of their series, to find repeats.
    extra_seen: HashMap<u64, Vec<usize>>,
    last_field: Option<(Text<'p>, Option<&'static Field>)>,
    /// Samples that no device could take.
    rejects: Vec<proto::Reject>,
    out: Page,
}

/// Where the device that a block names is on this page.
#[derive(Clone, Copy)]
enum Place {
    /// In the list of devices; so many labels of each series of this block are dropped by the caps.
    Device(usize, u64),
    /// Nowhere: the cap on devices dropped it.
    Dropped,
    /// Nowhere: the labels name none.
    Bad,
}

/// The series read so far for one (device, field).
struct Seen<'p> {
    first: Series<'p>,
    others: Vec<Series<'p>>,
    /// The printed value that was kept, if one was valid.
    kept: Option<&'p str>,
}

struct Series<'p> {
    name: Text<'p>,
    facts: Arc<Facts>,
    raw: &'p str,
}

impl<'p, 'm> Reader<'p, 'm> {
    fn new(format: Format, options: &'p Options, facts: &'m mut Vec<Arc<Facts>>, hasher: &'m RandomState) -> Self {
        Reader {
            format,
            options,
            facts,
            hasher,
            places: Vec::new(),
            by_id: HashMap::new(),
            seen: Vec::new(),
            extra_seen: HashMap::new(),
            last_field: None,
            rejects: Vec::new(),
            out: Page::default(),
        }
    }

    fn sample(&mut self, sample: Sample<'p>, labels: Labels<'_, 'p>) {
        self.out.counts.series += 1;
        let (number, facts) = match labels {
            Labels::Known(number) => (Some(number), self.facts[number as usize].clone()),
            Labels::Read(labels, number) => {
                let facts = Arc::new(Facts::of(labels, self.options, self.hasher));
                if let Some(number) = number {
                    self.facts.truncate(number as usize);
                    self.facts.push(facts.clone());
                }
                (number, facts)
            }
        };
        self.out.counts.refused_labels += facts.refused;
        let field = self.field(sample.name).filter(|f| f.column.is_some() && facts.uuid.is_some() && !facts.part);
        let Some((field, id)) = field.and_then(|field| Some((field, field.id?))) else {
            self.extra(&sample, &facts);
            return;
        };
        match self.place(number, &facts) {
            Place::Device(device, dropped) => {
                self.out.counts.labels_dropped += dropped;
                self.reading(device, field, id, &sample, &facts);
            }
            Place::Dropped => self.out.counts.devices_dropped += 1,
            Place::Bad => self.reject(&sample, BAD_DEVICE_ID),
        }
    }

    /// The catalogue's row of a sample's name; families stand together, so the last answer is asked first.
    fn field(&mut self, name: Text<'p>) -> Option<&'static Field> {
        if let Some((last, field)) = &self.last_field
            && *last == name
        {
            return *field;
        }
        let text = name.get();
        let counter = || text.strip_suffix("_total").filter(|_| self.format == Format::OpenMetrics);
        let field = catalogue::by_name(&text).or_else(|| catalogue::by_name(counter()?));
        self.last_field = Some((name, field));
        field
    }

    /// Where the device that a block names is; on the page's first series of that block, with what the block says of it.
    fn place(&mut self, number: Option<u32>, facts: &Facts) -> Place {
        let known = number.and_then(|number| *self.places.get(number as usize)?);
        if let Some(place) = known {
            return place;
        }
        let place = match self.device(facts) {
            // What a block says twice of a device changes nothing: only the first series that says something is believed.
            Ok(Some(device)) => Place::Device(device, self.attributes(device, facts)),
            Ok(None) => Place::Dropped,
            Err(()) => Place::Bad,
        };
        if let Some(number) = number.map(|number| number as usize) {
            if self.places.len() <= number {
                self.places.resize(number + 1, None);
            }
            self.places[number] = Some(place);
        }
        place
    }

    /// The device that a block names: `None` where the cap on devices dropped it, an error where it is no device id.
    fn device(&mut self, facts: &Facts) -> Result<Option<usize>, ()> {
        let key = (facts.uuid.clone().unwrap_or_default(), facts.instance.clone().unwrap_or_default());
        if let Some(known) = self.by_id.get(&key) {
            return known.ok_or(()).map(Some);
        }
        if self.by_id.len() >= self.options.caps.devices {
            return Ok(None);
        }
        let index = facts.id.is_some().then_some(self.out.devices.len());
        self.by_id.insert(key, index);
        let id = facts.id.clone().ok_or(())?;
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

    /// What a block says of the device itself; the first series that says something is believed. Returns how many labels the
    /// caps dropped.
    fn attributes(&mut self, device: usize, facts: &Facts) -> u64 {
        let caps = self.options.caps;
        let device = &mut self.out.devices[device];
        let mut dropped = 0;
        let set = |to: &mut String, from: &Option<String>| {
            if let (true, Some(from)) = (to.is_empty(), from) {
                to.clone_from(from);
            }
        };
        set(&mut device.device_name, &facts.device_name);
        set(&mut device.sample.profile, &facts.profile);
        set(&mut device.sample.product, &facts.product);
        set(&mut device.sample.pci_bus_id, &facts.pci_bus_id);
        set(&mut device.sample.hostname, &facts.hostname);
        set(&mut device.sample.driver_version, &facts.driver_version);
        device.sample.gpu_index = device.sample.gpu_index.or(facts.gpu_index);
        if let Some(pod) = &facts.pod {
            let same = |p: &PagePod| p.pod == pod.pod && p.namespace == pod.namespace && p.container == pod.container;
            match device.pods.iter().position(same) {
                Some(known) if device.pods[known].pod_uid.is_empty() => device.pods[known].pod_uid.clone_from(&pod.pod_uid),
                Some(_) => {}
                None if device.pods.len() < caps.pods => device.pods.push(pod.clone()),
                None => dropped += 1,
            }
        }
        for (name, value) in &facts.other {
            if device.sample.labels.contains_key(name) {
                continue;
            }
            if device.sample.labels.len() >= caps.labels {
                dropped += 1;
                continue;
            }
            device.sample.labels.insert(name.clone(), value.clone());
        }
        dropped
    }

    /// One value of one field into the device's readings.
    fn reading(&mut self, device: usize, field: &Field, id: u16, sample: &Sample<'p>, facts: &Arc<Facts>) {
        let mut kept = None;
        let series = || Series { name: sample.name, facts: facts.clone(), raw: sample.raw };
        if let Some(seen) = self.seen[device].get_mut(&id) {
            let same = |s: &&Series<'_>| s.facts.same_labels(facts) && s.name == sample.name;
            if let Some(first) = [&seen.first].into_iter().chain(&seen.others).find(same) {
                self.out.counts.duplicate_series += 1;
                self.out.counts.conflicting_duplicates += u64::from(first.raw != sample.raw);
                return;
            }
            // Bounded: what one device and field may add here is a handful of copies, not a page of them.
            if seen.others.len() < self.options.caps.pods {
                seen.others.push(series());
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
                sample_of.xid_message = facts.err_msg.clone().unwrap_or_default();
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
        self.seen[device].entry(id).or_insert_with(|| Seen { first: series(), others: Vec::new(), kept: None }).kept = kept;
    }

    fn extra(&mut self, sample: &Sample<'p>, facts: &Facts) {
        let (labels, dropped) = facts.extra(self.options);
        self.out.counts.labels_dropped += dropped;
        let name = sample.name.get();
        let hash = self.hasher.hash_one((&name, labels));
        let alike = self.extra_seen.entry(hash).or_default();
        if let Some(first) = alike.iter().map(|i| &self.out.extra[*i]).find(|e| e.name == name && e.labels == *labels) {
            self.out.counts.duplicate_series += 1;
            self.out.counts.conflicting_duplicates += u64::from(first.value.to_bits() != sample.value.to_bits());
            return;
        }
        if self.out.extra.len() >= self.options.caps.extra_samples {
            self.out.counts.extra_dropped += 1;
            return;
        }
        alike.push(self.out.extra.len());
        let (device, name, labels) = (facts.extra_device(), name.into_owned(), labels.clone());
        self.out.extra.push(proto::ExtraSample { device, name, labels, value: sample.value });
    }

    fn reject(&mut self, sample: &Sample<'p>, reason: &'static str) {
        self.out.counts.bad_lines += 1;
        if self.rejects.len() < self.options.limits.rejects_kept {
            let name = sample.name.get();
            let text = cut(&name, 64).to_owned();
            self.rejects.push(proto::Reject { line: sample.line, reason: reason.to_owned(), text });
        }
    }

    fn finish(mut self, bytes: &[u8], summary: parse::Summary) -> Page {
        let bad_line = |error: &LineError| proto::Reject {
            line: error.line,
            reason: error.reason.code().to_owned(),
            text: excerpt(bytes, error),
        };
        self.out.counts.bad_lines += summary.rejects.count;
        let all = summary.rejects.first.iter().map(bad_line).chain(self.rejects);
        self.out.rejects = all.take(self.options.limits.rejects_kept).collect();
        self.out.rejects.sort_by_key(|r| r.line);
        self.out.bad_lines = summary.rejects;
        self.out.unterminated = summary.unterminated;
        self.out.devices.sort_by(|a, b| a.id.cmp(&b.id));
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

mod describe;
mod facts;
#[cfg(test)]
mod tests;
