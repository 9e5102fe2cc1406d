//! A scrape round as its message has it: texts and readings borrowed from the bytes, for rows are made of a million of them a few
//! seconds. A message that is not as our own encoder writes it is left to the protobuf library, whose word counts.

use crate::catalogue;
use crate::proto::{DeviceSample, Message as _, Readings, ScrapeRound, Value};
use std::ops::Range;
use std::sync::LazyLock;

/// Field of [`ScrapeRound`] that holds its devices.
const DEVICES: u32 = 20;

/// What a field of [`Readings`] holds.
#[derive(Clone, Copy)]
enum Kind {
    None,
    Int,
    Float,
}

/// By number of the field, up to the largest.
static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let last = catalogue::columns().filter_map(|(field, _)| field.id).max().unwrap_or(0);
    let mut readings = Readings::default();
    let mut kind = |id: u16| match () {
        () if readings.set(id, Value::Int(0)) => Kind::Int,
        () if readings.set(id, Value::Float(0.0)) => Kind::Float,
        () => Kind::None,
    };
    (0..=last).map(&mut kind).collect()
});

/// A round's message, read.
#[derive(Debug, PartialEq)]
pub struct Round {
    /// All of it but its devices.
    pub head: ScrapeRound,
    /// The message, as our own encoder writes it.
    pub(super) bytes: Vec<u8>,
    /// Where its devices are.
    pub(super) devices: Vec<Place>,
}

/// Where in its round's message a device is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    /// All that is said of it.
    pub whole: Range<usize>,
    /// Its id.
    pub id: Range<usize>,
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

impl Round {
    /// Reads a message. Errors: it is none.
    pub fn read(bytes: Vec<u8>) -> Result<Self, String> {
        if let Some((head, devices)) = Self::parts(&bytes) {
            return Ok(Self { head, bytes, devices });
        }
        // What another encoder may write is read by the library, and written anew.
        let bytes = ScrapeRound::decode(&*bytes).map_err(|error| error.to_string())?.encode_to_vec();
        let (head, devices) = Self::parts(&bytes).ok_or("it cannot be written anew as it was read")?;
        Ok(Self { head, bytes, devices })
    }

    /// None where the bytes are none of ours, or not in the order in which we write.
    fn parts(bytes: &[u8]) -> Option<(ScrapeRound, Vec<Place>)> {
        let place = |part: &[u8]| {
            let from = part.as_ptr() as usize - bytes.as_ptr() as usize;
            from..from + part.len()
        };
        let (mut head, mut devices, mut device) = (Vec::new(), Vec::new(), Device::default());
        each_field(bytes, |number, value, whole| {
            match (number, value) {
                (DEVICES, Wire::Bytes(bytes)) => {
                    device.read::<true>(bytes)?;
                    if let Read::Bytes(bytes) = device.readings {
                        Read::is_ours(bytes)?;
                    }
                    let id = if device.device.is_empty() { 0..0 } else { place(device.device) };
                    devices.push(Place { whole: place(bytes), id });
                }
                (DEVICES, _) => return None,
                _ => head.extend_from_slice(whole),
            }
            Some(())
        })?;
        Some((ScrapeRound::decode(&*head).ok()?, devices))
    }

    /// How many devices it has.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }
}

impl Default for Read<'_> {
    fn default() -> Self {
        Self::List(&[])
    }
}

impl Read<'_> {
    /// Each of them.
    #[inline(always)]
    pub(super) fn each(self, mut f: impl FnMut(u16, Value)) {
        match self {
            Self::List(list) => list.iter().for_each(|(id, value)| f(*id, *value)),
            Self::Message(readings) => readings.each(f),
            Self::Bytes(bytes) => {
                let kinds = &**KINDS;
                let _ = each_field(bytes, |id, value, _| {
                    f(id as u16, kinds.get(id as usize)?.value(value)?);
                    Some(())
                });
            }
        }
    }

    /// Whether bytes are readings as we write them.
    fn is_ours(bytes: &[u8]) -> Option<()> {
        let (kinds, mut last) = (&**KINDS, 0);
        each_field(bytes, |id, value, _| {
            kinds.get(id as usize)?.value(value)?;
            // Of a field that came twice the library knows which one counts.
            let before = std::mem::replace(&mut last, id);
            (before < id).then_some(())
        })
    }
}

impl Kind {
    #[inline(always)]
    fn value(self, wire: Wire<'_>) -> Option<Value> {
        match (self, wire) {
            (Kind::Int, Wire::Varint(bits)) => Some(Value::Int(bits as i64)),
            (Kind::Float, Wire::Fixed32(bits)) => Some(Value::Float(f32::from_bits(bits))),
            _ => None,
        }
    }
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
    Fixed32(u32),
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
                let (value, rest) = bytes.split_first_chunk()?;
                bytes = rest;
                Wire::Fixed32(u32::from_le_bytes(*value))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::proto::Reject;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn readings() -> impl Strategy<Value = Option<Readings>> {
        let id = prop::sample::select(vec![4u16, 52, 155, 156, 203, 230, 251, 1001, 1002, 1005]);
        let one = (id, prop_oneof![any::<i64>(), Just(0)], any::<f32>());
        prop::option::of(prop::collection::vec(one, 0..8)).prop_map(|values| {
            values.map(|values| {
                let mut readings = Readings::default();
                for (id, int, float) in values {
                    // Which of the two a field is, it knows by itself.
                    if !readings.set(id, Value::Int(int)) {
                        readings.set(id, Value::Float(if float.is_nan() { 0.5 } else { float }));
                    }
                }
                readings
            })
        })
    }

    prop_compose! {
        fn device()(
            texts in prop::collection::vec("[a-zé/\"]{0,6}", 13),
            ints in prop::collection::vec(prop::option::of(any::<u32>()), 2),
            flags in any::<[bool; 2]>(),
            holders in prop::collection::vec(("[a-z]{0,3}", "[a-z]{0,3}", "[a-z]{0,3}", "[a-z]{0,3}", any::<u32>()), 0..3),
            readings in readings(),
            faults in prop::collection::btree_map(any::<u32>(), "[a-z]{0,3}", 0..3),
            labels in prop::collection::btree_map("[a-z]{0,3}", "[a-z]{0,3}", 0..3),
        ) -> DeviceSample {
            let mut texts = texts.into_iter();
            let mut text = || texts.next().unwrap();
            let holder = |(namespace, pod, container, pod_uid, ids)| crate::proto::Holder { namespace, pod, container, pod_uid, ids };
            DeviceSample {
                device: text(),
                parent: text(),
                instance_id: ints[0],
                profile: text(),
                gpu_index: ints[1],
                product: text(),
                pci_bus_id: text(),
                hostname: text(),
                driver_version: text(),
                holders: holders.into_iter().map(holder).collect(),
                owner_source: text(),
                join_reason: text(),
                held_over: flags[0],
                label_disagrees: flags[1],
                readings,
                faults,
                labels,
                xid_message: text(),
            }
        }
    }

    fn round(devices: Vec<DeviceSample>) -> ScrapeRound {
        let reject = Reject { reason: "bad".into(), ..Reject::default() };
        let (node, at_ms, skew_ms) = ("n".into(), 1_772_409_600_000, Some(-7));
        ScrapeRound { node, at_ms, skew_ms, sequence: 9, devices, rejects: vec![reject], ..ScrapeRound::default() }
    }

    /// What rows are made of, ours and the library's.
    fn ours(round: &Round) -> String {
        let mut text = format!("{:?}", round.head);
        let mut device = Device::default();
        for place in &round.devices {
            device.read::<false>(&round.bytes[place.whole.clone()]).unwrap();
            assert_eq!(device.device, &round.bytes[place.id.clone()]);
            text += &shown(&device);
        }
        text
    }

    fn shown(device: &Device<'_>) -> String {
        let mut readings = Vec::new();
        device.readings.each(|id, value| readings.push((id, value)));
        let Device { holders, faults, labels, readings: _, .. } = device;
        let texts = [device.device, device.parent, device.profile, device.product, device.pci_bus_id, device.hostname];
        let more = [device.driver_version, device.owner_source, device.join_reason, device.xid_message];
        let numbers = (device.instance_id, device.gpu_index, device.held_over, device.label_disagrees);
        format!("{texts:?}{more:?}{numbers:?}{holders:?}{faults:?}{labels:?}{readings:?}")
    }

    fn theirs(round: &ScrapeRound) -> String {
        let mut text = format!("{:?}", ScrapeRound { devices: Vec::new(), ..round.clone() });
        let mut device = Device::default();
        for sample in &round.devices {
            device.set(sample);
            text += &shown(&device);
        }
        text
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_the_library_reads_it(devices in prop::collection::vec(device(), 0..4)) {
            let round = round(devices);
            let bytes = round.encode_to_vec();
            prop_assert!(Round::parts(&bytes).is_some(), "left to the library");
            prop_assert_eq!(ours(&Round::read(bytes).unwrap()), theirs(&round));
        }

        #[test]
        fn damage_is_refused_where_the_library_refuses_it(
            devices in prop::collection::vec(device(), 1..3), at in any::<prop::sample::Index>(), byte in any::<u8>()
        ) {
            let mut bytes = round(devices).encode_to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            match (Round::read(bytes.clone()), ScrapeRound::decode(&*bytes)) {
                (Ok(round), Ok(decoded)) => prop_assert_eq!(ours(&round), theirs(&decoded)),
                (Err(error), decoded) => prop_assert_eq!(error, decoded.unwrap_err().to_string()),
                (Ok(_), Err(error)) => prop_assert!(false, "not refused: {error}"),
            }
        }
    }

    #[test]
    fn what_another_encoder_may_write_is_the_librarys() {
        let one = DeviceSample { labels: BTreeMap::from([("a".into(), "1".into())]), ..DeviceSample::default() };
        let part = |readings: Readings| DeviceSample { readings: Some(readings), ..one.clone() }.encode_to_vec();
        let of = |id: u16, value: i64| {
            let mut readings = Readings::default();
            assert!(readings.set(id, Value::Int(value)));
            readings
        };
        // A device in two pieces: protobuf puts them together, the later value counts.
        let device = [part(of(203, 7)), part(of(203, 8))].concat();
        let mut bytes = vec![0xa2, 0x01, u8::try_from(device.len()).unwrap()];
        bytes.extend(device);
        assert_eq!(Round::parts(&bytes), None);
        let round = Round::read(bytes).unwrap();
        let mut device = Device::default();
        device.read::<false>(&round.bytes[round.devices[0].whole.clone()]).unwrap();
        let mut readings = Vec::new();
        device.readings.each(|id, value| readings.push((id, value)));
        assert_eq!((&*readings, &*device.labels), (&[(203, Value::Int(8))][..], &[("a", "1")][..]));
    }
}
