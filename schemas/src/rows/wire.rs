//! A scrape round as its message has it: texts and readings borrowed from the bytes, for rows are made of a million of them a few
//! seconds. A message that is not as our own encoder writes it is left to the protobuf library, whose word counts.

use super::Head;
use crate::proto::{DeviceSample, ExtraSample, Message as _, Readings, Reject, ScrapeRound, Value};
use crate::{catalogue, tables};
use std::borrow::Cow;
use std::sync::LazyLock;

/// Key of the field of [`DeviceSample`] that holds its readings: number 15, of a length.
const READINGS: u8 = 15 << 3 | 2;

/// What a field of [`Readings`] holds.
#[derive(Clone, Copy)]
enum Kind {
    None,
    Int,
    Float,
}

/// Field of [`Readings`] that a key begins.
#[derive(Clone, Copy)]
struct Slot {
    kind: Kind,
    /// Column of `gpu_samples`.
    column: u16,
}

/// Wire types of the two kinds of readings.
const VARINT: usize = 0;
const FIXED32: usize = 5;

/// By key (number and wire type), up to the largest.
static SLOTS: LazyLock<Vec<Slot>> = LazyLock::new(|| {
    let table = tables::get("gpu_samples");
    let fields = || catalogue::columns().filter_map(|(field, column)| Some((field.id?, table.index(column)?)));
    let last = fields().map(|(id, _)| id).max().unwrap_or(0);
    let mut slots = vec![Slot { kind: Kind::None, column: 0 }; (usize::from(last) + 1) << 3];
    let mut readings = Readings::default();
    for (id, column) in fields() {
        let (kind, wire_type) = match () {
            () if readings.set(id, Value::Int(0)) => (Kind::Int, VARINT),
            () if readings.set(id, Value::Float(0.0)) => (Kind::Float, FIXED32),
            () => continue,
        };
        slots[usize::from(id) << 3 | wire_type] = Slot { kind, column: column as u16 };
    }
    slots
});

/// [`ScrapeRound`] without its devices, borrowed.
#[derive(Debug, Default)]
pub struct Envelope<'a> {
    /// What its devices' rows have of it too.
    pub head: Head<'a>,
    /// How the round went; empty in a part of a round that is not its first.
    pub status: &'a str,
    /// How long it took.
    pub duration_ms: u32,
    /// Scrape interval.
    pub interval_ms: u32,
    /// The exporter's own, where known.
    pub collect_interval_ms: Option<u32>,
    /// What failed, in words.
    pub error: &'a str,
    /// Size of the page.
    pub body_bytes: u64,
    /// Series on it.
    pub series: u32,
    /// Lines that could not be read.
    pub bad_lines: u32,
    /// Series that came twice.
    pub duplicate_series: u32,
    /// Labels that were kept out.
    pub refused_labels: u32,
    /// Clock of the node minus clock of the API server, where measured.
    pub skew_ms: Option<i64>,
    /// Why no device could be joined.
    pub join_reason: &'a str,
    /// The kubelet's device ids that the page does not have.
    pub unmatched_ids: Vec<&'a str>,
    /// Samples of metrics that have no column.
    pub extra: Cow<'a, [ExtraSample]>,
    /// What was kept out.
    pub rejects: Cow<'a, [Reject]>,
}

impl<'a> Envelope<'a> {
    /// That of a round.
    pub fn of(round: &'a ScrapeRound) -> Self {
        Self {
            head: Head::of(round),
            status: &round.status,
            duration_ms: round.duration_ms,
            interval_ms: round.interval_ms,
            collect_interval_ms: round.collect_interval_ms,
            error: &round.error,
            body_bytes: round.body_bytes,
            series: round.series,
            bad_lines: round.bad_lines,
            duplicate_series: round.duplicate_series,
            refused_labels: round.refused_labels,
            skew_ms: round.skew_ms,
            join_reason: &round.join_reason,
            unmatched_ids: round.unmatched_ids.iter().map(String::as_str).collect(),
            extra: Cow::Borrowed(&round.extra),
            rejects: Cow::Borrowed(&round.rejects),
        }
    }

    /// Reads a round's message, and gives each device's to `device`. None where the bytes are none of ours, or `device` wants no
    /// more.
    pub(super) fn read(bytes: &'a [u8], mut device: impl FnMut(&'a [u8])) -> Option<Self> {
        let mut round = Self::default();
        each_field(bytes, |number, value, _| {
            match number {
                1 => round.head.cluster = value.str()?,
                2 => round.head.node = value.str()?,
                3 => round.head.source = value.str()?,
                4 => round.head.at_ms = zigzag(value.varint()?),
                5 => round.head.sequence = value.varint()?,
                6 => round.status = value.str()?,
                7 => round.duration_ms = value.varint()? as u32,
                8 => round.interval_ms = value.varint()? as u32,
                9 => round.collect_interval_ms = Some(value.varint()? as u32),
                10 => round.error = value.str()?,
                11 => round.body_bytes = value.varint()?,
                12 => round.series = value.varint()? as u32,
                13 => round.bad_lines = value.varint()? as u32,
                14 => round.duplicate_series = value.varint()? as u32,
                15 => round.refused_labels = value.varint()? as u32,
                16 => round.skew_ms = Some(zigzag(value.varint()?)),
                17 => round.join_reason = value.str()?,
                18 => round.unmatched_ids.push(value.str()?),
                20 => device(value.bytes()?),
                21 => round.extra.to_mut().push(ExtraSample::decode(value.bytes()?).ok()?),
                22 => round.rejects.to_mut().push(Reject::decode(value.bytes()?).ok()?),
                _ => {}
            }
            Some(())
        })?;
        Some(round)
    }
}

fn zigzag(bits: u64) -> i64 {
    (bits >> 1) as i64 ^ -((bits & 1) as i64)
}

/// [`crate::proto::DeviceSample`], borrowed: texts as their bytes, which are UTF-8. One that is read into again keeps its memory.
#[derive(Debug, Default)]
pub struct Device<'a> {
    /// Device: GPU UUID, or parent UUID/GPU instance id.
    pub device: &'a [u8],
    /// UUID of the GPU that an instance is part of.
    pub parent: &'a [u8],
    /// GPU instance id.
    pub instance_id: Option<u32>,
    /// MIG profile.
    pub profile: &'a [u8],
    /// DCGM's index on the node.
    pub gpu_index: Option<u32>,
    /// Product.
    pub product: &'a [u8],
    /// PCI address.
    pub pci_bus_id: &'a [u8],
    /// The page's own host name.
    pub hostname: &'a [u8],
    /// Driver version.
    pub driver_version: &'a [u8],
    /// Who holds it.
    pub holders: Vec<Holder<'a>>,
    /// Who said so.
    pub owner_source: &'a [u8],
    /// Why the owner is missing or doubtful.
    pub join_reason: &'a [u8],
    /// Whether an older answer stood in.
    pub held_over: bool,
    /// Whether the page's labels name another pod.
    pub label_disagrees: bool,
    /// What it reads.
    pub readings: Read<'a>,
    /// In order of field id.
    pub faults: Vec<(u32, &'a str)>,
    /// In order of name.
    pub labels: Vec<(&'a str, &'a str)>,
    /// Text of the last XID.
    pub xid_message: &'a [u8],
}

/// Readings by DCGM field id, in order of it.
#[derive(Clone, Copy, Debug)]
pub enum Read<'a> {
    /// One after the other.
    List(&'a [(u16, Value)]),
    /// The library's.
    Message(&'a Readings),
    /// As the bytes of a message that was read.
    Bytes(&'a [u8]),
}

/// [`crate::proto::Holder`], borrowed; rows have no use for its number of ids.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Holder<'a> {
    /// Namespace.
    pub namespace: &'a [u8],
    /// Pod.
    pub pod: &'a [u8],
    /// Container.
    pub container: &'a [u8],
    /// The pod's UID.
    pub pod_uid: &'a [u8],
}

impl Default for Read<'_> {
    fn default() -> Self {
        Self::List(&[])
    }
}

impl Read<'_> {
    /// Each of them that has a column: its place in `gpu_samples`, value.
    #[inline(always)]
    pub(super) fn each(self, mut f: impl FnMut(usize, Value)) {
        let slots = &**SLOTS;
        let mut by_id = |id: u16, value: Value| {
            let wire_type = if matches!(value, Value::Int(_)) { VARINT } else { FIXED32 };
            match slots.get(usize::from(id) << 3 | wire_type) {
                Some(Slot { kind: Kind::Int | Kind::Float, column }) => f((*column).into(), value),
                Some(Slot { kind: Kind::None, .. }) | None => {}
            }
        };
        match self {
            Self::List(list) => list.iter().for_each(|(id, value)| by_id(*id, *value)),
            Self::Message(readings) => readings.each(by_id),
            Self::Bytes(mut bytes) => {
                while let Some((column, value)) = reading(slots, &mut bytes) {
                    f(column, value);
                }
            }
        }
    }
}

#[inline(always)]
fn reading(slots: &[Slot], bytes: &mut &[u8]) -> Option<(usize, Value)> {
    if bytes.is_empty() {
        return None;
    }
    let slot = slots.get(usize::try_from(varint(bytes)?).ok()?)?;
    let value = match slot.kind {
        Kind::Int => Value::Int(varint(bytes)? as i64),
        Kind::Float => {
            let (value, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            Value::Float(f32::from_le_bytes(*value))
        }
        Kind::None => return None,
    };
    Some((slot.column.into(), value))
}

/// Says whether bytes are readings as we write them: known fields, in the order of their numbers.
pub(super) fn are_readings(mut bytes: &[u8]) -> Option<()> {
    let (slots, mut last) = (&**SLOTS, 0);
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        match slots.get(usize::try_from(key).ok()?)?.kind {
            Kind::Int => drop(varint(&mut bytes)?),
            Kind::Float => bytes = bytes.get(4..)?,
            Kind::None => return None,
        }
        // Of a field that came twice the library knows which one counts.
        let before = std::mem::replace(&mut last, key);
        (before < key).then_some(())?;
    }
    Some(())
}

impl<'a> Device<'a> {
    /// Nothing, in the memory that there is.
    fn clear(&mut self) {
        let Self { holders, faults, labels, .. } = std::mem::take(self);
        *self = Self { holders, faults, labels, ..Self::default() };
        self.holders.clear();
        self.faults.clear();
        self.labels.clear();
    }

    /// Reads one device's message. None where the bytes are none of ours, or not in the order in which we write; its readings are
    /// not looked at, and whether texts are UTF-8 only where it is `new`.
    pub(super) fn read<const NEW: bool>(&mut self, bytes: &'a [u8]) -> Option<()> {
        self.clear();
        each_field(bytes, |number, value, _| {
            match number {
                1 => self.device = value.text::<NEW>()?,
                2 => self.parent = value.text::<NEW>()?,
                3 => self.instance_id = Some(value.varint()? as u32),
                4 => self.profile = value.text::<NEW>()?,
                5 => self.gpu_index = Some(value.varint()? as u32),
                6 => self.product = value.text::<NEW>()?,
                7 => self.pci_bus_id = value.text::<NEW>()?,
                8 => self.hostname = value.text::<NEW>()?,
                9 => self.driver_version = value.text::<NEW>()?,
                10 => self.holders.push(Holder::of_bytes::<NEW>(value.bytes()?)?),
                11 => self.owner_source = value.text::<NEW>()?,
                12 => self.join_reason = value.text::<NEW>()?,
                13 => self.held_over = value.varint()? != 0,
                14 => self.label_disagrees = value.varint()? != 0,
                15 => {
                    let bytes = value.bytes()?;
                    // In two pieces they are the library's to put together.
                    let first = matches!(self.readings, Read::List(_));
                    first.then(|| self.readings = Read::Bytes(bytes))?;
                }
                16 => self.faults.push(entry(value.bytes()?, |key| key.varint().map(|key| key as u32))?),
                17 => self.labels.push(entry(value.bytes()?, Wire::str)?),
                18 => self.xid_message = value.text::<NEW>()?,
                _ => {}
            }
            Some(())
        })?;
        let in_order = self.faults.is_sorted_by(|a, b| a.0 < b.0) && self.labels.is_sorted_by(|a, b| a.0 < b.0);
        in_order.then_some(())
    }

    /// The same of a decoded one.
    pub fn set(&mut self, sample: &'a DeviceSample) {
        self.clear();
        self.readings = sample.readings.as_ref().map_or(Read::default(), Read::Message);
        let holder = |h: &'a crate::proto::Holder| Holder {
            namespace: h.namespace.as_bytes(),
            pod: h.pod.as_bytes(),
            container: h.container.as_bytes(),
            pod_uid: h.pod_uid.as_bytes(),
        };
        self.device = sample.device.as_bytes();
        self.parent = sample.parent.as_bytes();
        self.instance_id = sample.instance_id;
        self.profile = sample.profile.as_bytes();
        self.gpu_index = sample.gpu_index;
        self.product = sample.product.as_bytes();
        self.pci_bus_id = sample.pci_bus_id.as_bytes();
        self.hostname = sample.hostname.as_bytes();
        self.driver_version = sample.driver_version.as_bytes();
        self.holders.extend(sample.holders.iter().map(holder));
        self.owner_source = sample.owner_source.as_bytes();
        self.join_reason = sample.join_reason.as_bytes();
        self.held_over = sample.held_over;
        self.label_disagrees = sample.label_disagrees;
        self.faults.extend(sample.faults.iter().map(|(id, reason)| (*id, reason.as_str())));
        self.labels.extend(sample.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        self.xid_message = sample.xid_message.as_bytes();
    }
}

impl<'a> Holder<'a> {
    fn of_bytes<const NEW: bool>(bytes: &'a [u8]) -> Option<Self> {
        let mut holder = Holder::default();
        each_field(bytes, |number, value, _| {
            match number {
                1 => holder.namespace = value.text::<NEW>()?,
                2 => holder.pod = value.text::<NEW>()?,
                3 => holder.container = value.text::<NEW>()?,
                4 => holder.pod_uid = value.text::<NEW>()?,
                5 => drop(value.varint()?),
                _ => {}
            }
            Some(())
        })?;
        Some(holder)
    }
}

/// An entry of a map: what is left out is empty.
fn entry<'a, K: Default>(bytes: &'a [u8], key: impl Fn(Wire<'a>) -> Option<K>) -> Option<(K, &'a str)> {
    let mut entry = (K::default(), "");
    each_field(bytes, |number, value, _| {
        match number {
            1 => entry.0 = key(value)?,
            2 => entry.1 = value.str()?,
            _ => {}
        }
        Some(())
    })?;
    Some(entry)
}

/// A value by its wire type.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Varint(u64),
    Fixed64,
    Bytes(&'a [u8]),
    Fixed32,
}

impl<'a> Wire<'a> {
    fn varint(self) -> Option<u64> {
        if let Wire::Varint(value) = self { Some(value) } else { None }
    }

    fn bytes(self) -> Option<&'a [u8]> {
        if let Wire::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    /// A text's bytes; whether they are UTF-8 is asked where they are `new`.
    #[inline(always)]
    fn text<const NEW: bool>(self) -> Option<&'a [u8]> {
        // Nearly all texts are ASCII, which is quicker to see.
        self.bytes().filter(|bytes| !NEW || bytes.is_ascii() || std::str::from_utf8(bytes).is_ok())
    }

    fn str(self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}

/// A device's message in three pieces: what is before its readings, these, and what follows. None where it has none; of another
/// encoder's message the pieces may be others.
pub(super) fn split_at_readings(bytes: &[u8], before: usize) -> Option<(&[u8], &[u8], &[u8])> {
    let (before, mut rest) = bytes.split_at_checked(before)?;
    let (_, after_key) = rest.split_first().filter(|(key, _)| **key == READINGS)?;
    rest = after_key;
    let length = usize::try_from(varint(&mut rest)?).ok()?;
    let (readings, after) = rest.split_at_checked(length)?;
    Some((before, readings, after))
}

/// Length of the field of a device's readings, of which there are `readings` bytes.
pub(super) fn readings_field_len(readings: usize) -> usize {
    1 + prost::encoding::encoded_len_varint(readings as u64) + readings
}

/// Gives each field to `f`: number, value, and all of its bytes. None where the bytes are no message, or `f` wants no more.
#[inline(always)]
fn each_field<'a>(mut bytes: &'a [u8], mut f: impl FnMut(u32, Wire<'a>, &'a [u8]) -> Option<()>) -> Option<()> {
    while !bytes.is_empty() {
        let begin = bytes;
        let key = varint(&mut bytes)?;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0)?;
        let value = match key & 7 {
            0 => Wire::Varint(varint(&mut bytes)?),
            1 => {
                bytes = bytes.get(8..)?;
                Wire::Fixed64
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (value, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Wire::Bytes(value)
            }
            5 => {
                bytes = bytes.get(4..)?;
                Wire::Fixed32
            }
            _ => return None,
        };
        f(number, value, &begin[..begin.len() - bytes.len()])?;
    }
    Some(())
}

#[inline(always)]
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    match **bytes {
        [byte, ref rest @ ..] if byte < 0x80 => {
            *bytes = rest;
            Some(byte.into())
        }
        [first, second, ref rest @ ..] if second < 0x80 => {
            *bytes = rest;
            Some(u64::from(first & 0x7f) | u64::from(second) << 7)
        }
        _ => long_varint(bytes),
    }
}

fn long_varint(bytes: &mut &[u8]) -> Option<u64> {
    if let Some((head, _)) = bytes.split_first_chunk() {
        let word = u64::from_le_bytes(*head);
        let last = !word & 0x8080_8080_8080_8080;
        if last != 0 {
            let bits = last.trailing_zeros() + 1;
            // Seven bits of each byte up to the last one's, in three steps: pairs, fours, all.
            let word = word & (u64::MAX >> (64 - bits)) & 0x7f7f_7f7f_7f7f_7f7f;
            let word = (word & 0x7f00_7f00_7f00_7f00) >> 1 | word & 0x007f_007f_007f_007f;
            let word = (word & 0x3fff_0000_3fff_0000) >> 2 | word & 0x0000_3fff_0000_3fff;
            let word = (word & 0x0fff_ffff_0000_0000) >> 4 | word & 0x0000_0000_0fff_ffff;
            *bytes = &bytes[bits as usize / 8..];
            return Some(word);
        }
    }
    let mut value = 0;
    for (place, byte) in bytes.iter().enumerate() {
        // Ten bytes, the last one of a single bit.
        if place == 9 && *byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            *bytes = &bytes[place + 1..];
            return Some(value);
        }
    }
    None
}
