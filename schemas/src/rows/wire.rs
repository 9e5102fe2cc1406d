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

/// A round.
#[derive(Debug, PartialEq)]
pub struct Round<'a> {
    /// All of it but its devices.
    pub head: ScrapeRound,
    pub(super) devices: Vec<Device<'a>>,
    /// Readings of all devices by DCGM field id, in order of it for each device.
    pub(super) readings: Vec<(u32, Value)>,
}

/// [`DeviceSample`], borrowed.
#[derive(Debug, Default, PartialEq)]
pub struct Device<'a> {
    pub(super) device: &'a str,
    pub(super) parent: &'a str,
    pub(super) instance_id: Option<u32>,
    pub(super) profile: &'a str,
    pub(super) gpu_index: Option<u32>,
    pub(super) product: &'a str,
    pub(super) pci_bus_id: &'a str,
    pub(super) hostname: &'a str,
    pub(super) driver_version: &'a str,
    pub(super) holders: Vec<Holder<'a>>,
    pub(super) owner_source: &'a str,
    pub(super) join_reason: &'a str,
    pub(super) held_over: bool,
    pub(super) label_disagrees: bool,
    /// Where its readings are.
    pub(super) readings: Range<usize>,
    /// In order of field id.
    pub(super) faults: Vec<(u32, &'a str)>,
    /// In order of name.
    pub(super) labels: Vec<(&'a str, &'a str)>,
    pub(super) xid_message: &'a str,
}

/// [`crate::proto::Holder`], borrowed; rows have no use for its number of ids.
#[derive(Debug, Default, PartialEq)]
pub struct Holder<'a> {
    pub(super) namespace: &'a str,
    pub(super) pod: &'a str,
    pub(super) container: &'a str,
    pub(super) pod_uid: &'a str,
}

/// Reads a message. Errors: it is none.
pub fn read<T>(bytes: &[u8], rows: impl FnOnce(&Round<'_>) -> T) -> Result<T, prost::DecodeError> {
    match Round::of_bytes(bytes) {
        Some(round) => Ok(rows(&round)),
        None => ScrapeRound::decode(bytes).map(|round| rows(&Round::of(&round))),
    }
}

impl<'a> Round<'a> {
    /// None where the bytes are none of ours, or not in the order in which we write.
    fn of_bytes(bytes: &'a [u8]) -> Option<Self> {
        let (mut head, mut devices, mut readings) = (Vec::new(), Vec::new(), Vec::new());
        each_field(bytes, |number, value, whole| {
            match (number, value) {
                (DEVICES, Wire::Bytes(bytes)) => devices.push(Device::of_bytes(bytes, &mut readings)?),
                (DEVICES, _) => return None,
                _ => head.extend_from_slice(whole),
            }
            Some(())
        })?;
        Some(Round { head: ScrapeRound::decode(&*head).ok()?, devices, readings })
    }

    /// The same of a decoded one.
    pub fn of(round: &'a ScrapeRound) -> Self {
        let mut readings = Vec::new();
        let devices = round.devices.iter().map(|device| Device::of(device, &mut readings)).collect();
        Round { head: ScrapeRound { devices: Vec::new(), ..round.clone() }, devices, readings }
    }
}

impl<'a> Device<'a> {
    fn of_bytes(bytes: &'a [u8], readings: &mut Vec<(u32, Value)>) -> Option<Self> {
        let mut device = Device { readings: readings.len()..readings.len(), ..Device::default() };
        each_field(bytes, |number, value, _| {
            match number {
                1 => device.device = value.text()?,
                2 => device.parent = value.text()?,
                3 => device.instance_id = Some(value.varint()? as u32),
                4 => device.profile = value.text()?,
                5 => device.gpu_index = Some(value.varint()? as u32),
                6 => device.product = value.text()?,
                7 => device.pci_bus_id = value.text()?,
                8 => device.hostname = value.text()?,
                9 => device.driver_version = value.text()?,
                10 => device.holders.push(Holder::of_bytes(value.bytes()?)?),
                11 => device.owner_source = value.text()?,
                12 => device.join_reason = value.text()?,
                13 => device.held_over = value.varint()? != 0,
                14 => device.label_disagrees = value.varint()? != 0,
                15 => {
                    each_field(value.bytes()?, |id, value, _| {
                        let value = match (KINDS.get(id as usize)?, value) {
                            (Kind::Int, Wire::Varint(bits)) => Value::Int(bits as i64),
                            (Kind::Float, Wire::Fixed32(bits)) => Value::Float(f32::from_bits(bits)),
                            _ => return None,
                        };
                        let last = readings.get(device.readings.start..).and_then(|own| own.last());
                        // A field that came twice would be two values of one column.
                        if last.is_some_and(|(last, _)| *last >= id) {
                            return None;
                        }
                        readings.push((id, value));
                        Some(())
                    })?;
                    device.readings.end = readings.len();
                }
                16 => device.faults.push(entry(value.bytes()?, |key| key.varint().map(|key| key as u32))?),
                17 => device.labels.push(entry(value.bytes()?, Wire::text)?),
                18 => device.xid_message = value.text()?,
                _ => {}
            }
            Some(())
        })?;
        let in_order = device.faults.is_sorted_by(|a, b| a.0 < b.0) && device.labels.is_sorted_by(|a, b| a.0 < b.0);
        in_order.then_some(device)
    }

    /// The same of a decoded one; its readings are added to `readings`.
    pub fn of(sample: &'a DeviceSample, readings: &mut Vec<(u32, Value)>) -> Self {
        let start = readings.len();
        if let Some(of) = &sample.readings {
            of.each(|id, value| readings.push((u32::from(id), value)));
        }
        let holder = |h: &'a crate::proto::Holder| Holder {
            namespace: &h.namespace,
            pod: &h.pod,
            container: &h.container,
            pod_uid: &h.pod_uid,
        };
        Device {
            device: &sample.device,
            parent: &sample.parent,
            instance_id: sample.instance_id,
            profile: &sample.profile,
            gpu_index: sample.gpu_index,
            product: &sample.product,
            pci_bus_id: &sample.pci_bus_id,
            hostname: &sample.hostname,
            driver_version: &sample.driver_version,
            holders: sample.holders.iter().map(holder).collect(),
            owner_source: &sample.owner_source,
            join_reason: &sample.join_reason,
            held_over: sample.held_over,
            label_disagrees: sample.label_disagrees,
            readings: start..readings.len(),
            faults: sample.faults.iter().map(|(id, reason)| (*id, reason.as_str())).collect(),
            labels: sample.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
            xid_message: &sample.xid_message,
        }
    }
}

impl<'a> Holder<'a> {
    fn of_bytes(bytes: &'a [u8]) -> Option<Self> {
        let mut holder = Holder::default();
        each_field(bytes, |number, value, _| {
            match number {
                1 => holder.namespace = value.text()?,
                2 => holder.pod = value.text()?,
                3 => holder.container = value.text()?,
                4 => holder.pod_uid = value.text()?,
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
            2 => entry.1 = value.text()?,
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

    fn text(self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}

/// Gives each field to `f`: number, value, and all of its bytes. None where the bytes are no message, or `f` wants no more.
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

fn varint(bytes: &mut &[u8]) -> Option<u64> {
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

    proptest! {
        #[test]
        fn what_is_written_is_read_as_the_library_reads_it(devices in prop::collection::vec(device(), 0..4)) {
            let round = round(devices);
            let bytes = round.encode_to_vec();
            let decoded = ScrapeRound::decode(&*bytes).unwrap();
            prop_assert_eq!(Round::of_bytes(&bytes), Some(Round::of(&decoded)));
        }

        #[test]
        fn damage_is_refused_where_the_library_refuses_it(
            devices in prop::collection::vec(device(), 1..3), at in any::<prop::sample::Index>(), byte in any::<u8>()
        ) {
            let mut bytes = round(devices).encode_to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let theirs = ScrapeRound::decode(&*bytes);
            match read(&bytes, |round| format!("{round:?}")) {
                Ok(ours) => prop_assert_eq!(ours, format!("{:?}", Round::of(&theirs.unwrap()))),
                Err(error) => prop_assert_eq!(error.to_string(), theirs.unwrap_err().to_string()),
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
        assert_eq!(Round::of_bytes(&bytes), None);
        read(&bytes, |round| {
            assert_eq!((&*round.readings, &*round.devices[0].labels), (&[(203, Value::Int(8))][..], &[("a", "1")][..]))
        })
        .unwrap();
    }
}
