//! Scrape rounds as their messages, until they become rows of `gpu_samples` in the order of the table. So each row is written
//! once, where it belongs, and what is in the making stays in the processor's cache: half the time of making rows as they come
//! and sorting them.

use super::wire::{self, Device, Envelope, Read};
use super::{Head, Place, Rows, SampleColumns, TIMES_MS};
use crate::proto::{Message as _, ScrapeRound};
use crate::tables::{self, Table};
use arrow::array::RecordBatch;
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::Range;

/// Rows that are made at one time: their columns fit the second cache.
const BATCH_ROWS: usize = 4096;

/// Samples of which what is read next is asked for at one time.
const AHEAD: usize = 32;
/// Bytes that come into the processor's cache together.
const LINE: usize = 64;

/// Rounds of many targets.
#[derive(Debug, Default)]
pub struct Rounds {
    rounds: Vec<Round>,
    samples: Vec<Sample>,
    facts: Vec<Facts>,
    targets: Vec<Target>,
    target_ids: HashMap<[String; 3], usize>,
    last_target: usize,
    bytes: usize,
    /// For the places of one round's devices.
    scratch: Vec<Range<usize>>,
}

#[derive(Debug)]
struct Round {
    target: usize,
    at_ms: i64,
    sequence: u64,
    place: Option<Place>,
    bytes: Bytes,
}

#[derive(Debug)]
struct Sample {
    round: usize,
    facts: usize,
    /// Where in the round's bytes.
    readings: Range<usize>,
}

/// A device's message but for its readings, as a target showed it once or round after round.
#[derive(Debug)]
struct Facts {
    target: usize,
    /// The first round that has it, and where.
    round: usize,
    whole: Range<usize>,
    /// The device's id, where in the round's bytes.
    id: Range<usize>,
    /// Where in `whole`; none: it has none.
    readings: Option<Pieces>,
}

/// Lengths of a device's message before the key of its readings, and with them.
#[derive(Debug)]
struct Pieces {
    before: usize,
    with: usize,
}

#[derive(Debug)]
struct Target {
    cluster: String,
    node: String,
    source: String,
    /// Facts that it showed last, by position.
    shown: Vec<usize>,
}

impl Rounds {
    /// The table of the rows.
    pub fn table() -> &'static Table {
        tables::get("gpu_samples")
    }

    /// Adds a round's message, and gives what it says beside its devices, and how many these are, to `said`. Errors: a code, then
    /// words; of such a message nothing is kept.
    pub fn add(
        &mut self,
        mut bytes: Bytes,
        place: Option<Place>,
        mut said: impl FnMut(&Envelope<'_>, usize),
    ) -> Result<(), String> {
        let (target, at_ms, sequence) = match self.read(&bytes, &mut said) {
            Some(read) => read?,
            None => {
                // What another encoder may write is read by the library, and written anew.
                let round = ScrapeRound::decode(&*bytes).map_err(|error| format!("undecodable: {error}"))?;
                bytes = round.encode_to_vec().into();
                self.read(&bytes, &mut said).ok_or("undecodable: it cannot be written anew as it was read")??
            }
        };
        self.bytes += bytes.len();
        self.rounds.push(Round { target, at_ms, sequence, place, bytes });
        Ok(())
    }

    /// Reads the message of the next round: its target, time and number. None where the bytes are none of ours, or not in the order
    /// in which we write.
    fn read(&mut self, bytes: &[u8], said: &mut impl FnMut(&Envelope<'_>, usize)) -> Option<Result<(usize, i64, u64), String>> {
        let mut devices = std::mem::take(&mut self.scratch);
        devices.clear();
        let read = self.read_into(bytes, &mut devices, said);
        self.scratch = devices;
        read
    }

    fn read_into(
        &mut self,
        bytes: &[u8],
        devices: &mut Vec<Range<usize>>,
        said: &mut impl FnMut(&Envelope<'_>, usize),
    ) -> Option<Result<(usize, i64, u64), String>> {
        let round = Envelope::read(bytes, |device| devices.push(place(device, bytes)))?;
        let Head { cluster, node, source, at_ms, sequence } = round.head;
        if !TIMES_MS.contains(&at_ms) {
            return Some(Err(format!("bad_time: {at_ms} ms is outside the years 1970 to 9999")));
        }
        let target = self.target(cluster, node, source);
        let (first, facts) = (self.samples.len(), self.facts.len());
        for (position, device) in devices.iter().enumerate() {
            if self.device(target, position, device.clone(), bytes).is_none() {
                self.samples.truncate(first);
                self.facts.truncate(facts);
                return None;
            }
        }
        let shown = &mut self.targets[target].shown;
        shown.clear();
        shown.extend(self.samples[first..].iter().map(|sample| sample.facts));
        said(&round, devices.len());
        Some(Ok((target, at_ms, sequence)))
    }

    fn target(&mut self, cluster: &str, node: &str, source: &str) -> usize {
        let is = |target: &Target| target.cluster == cluster && target.node == node && target.source == source;
        // Targets come round after round in much the same order.
        let guess = self.last_target + 1;
        let guess = if guess < self.targets.len() { guess } else { 0 };
        self.last_target = match self.targets.get(guess) {
            Some(target) if is(target) => guess,
            _ => {
                let next = self.targets.len();
                let [cluster, node, source] = [cluster, node, source].map(str::to_owned);
                *self.target_ids.entry([cluster, node, source]).or_insert_with_key(|[cluster, node, source]| {
                    let [cluster, node, source] = [cluster.clone(), node.clone(), source.clone()];
                    self.targets.push(Target { cluster, node, source, shown: Vec::new() });
                    next
                })
            }
        };
        self.last_target
    }

    /// Has the cache fetch the readings of some samples, which lie far from each other, all at once: read one after the other, each
    /// would be waited for.
    fn ask_for_readings(&self, samples: &[usize]) {
        let lines = samples.iter().map(|number| {
            let Sample { round, readings, .. } = &self.samples[*number];
            touch(&self.rounds[*round].bytes[readings.clone()])
        });
        std::hint::black_box(lines.fold(0, |all, lines| all ^ lines));
    }

    /// Adds the device that the next round of `target`, which is `round`, has at `position`. None where its bytes are none of ours.
    fn device(&mut self, target: usize, position: usize, whole: Range<usize>, round: &[u8]) -> Option<()> {
        let (number, bytes) = (self.rounds.len(), &round[whole.clone()]);
        let place = |part| place(part, round);
        let shown = self.targets[target].shown.get(position).copied();
        if let Some((facts, readings)) = shown.and_then(|facts| Some((facts, self.same(&self.facts[facts], bytes)?))) {
            wire::are_readings(readings)?;
            let readings = if readings.is_empty() { 0..0 } else { place(readings) };
            self.samples.push(Sample { round: number, facts, readings });
            return Some(());
        }
        let mut device = Device::default();
        device.read::<true>(bytes)?;
        let (mut pieces, mut readings) = (None, 0..0);
        if let Read::Bytes(read) = device.readings {
            wire::are_readings(read)?;
            let with = place(read).end - whole.start;
            let before = with.checked_sub(wire::readings_field_len(read.len()))?;
            // With a length in another form than ours the pieces are not where they are looked for.
            wire::split_at_readings(bytes, before).filter(|(_, found, _)| std::ptr::eq(*found, read))?;
            (pieces, readings) = (Some(Pieces { before, with }), place(read));
        }
        let id = if device.device.is_empty() { 0..0 } else { place(device.device) };
        let facts = self.facts.len();
        self.facts.push(Facts { target, round: number, whole, id, readings: pieces });
        self.samples.push(Sample { round: number, facts, readings });
        Some(())
    }

    /// The readings of a device's message if all else of it is as `facts` are.
    fn same<'b>(&self, facts: &Facts, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let known = &self.rounds.get(facts.round)?.bytes[facts.whole.clone()];
        let Some(Pieces { before, with }) = facts.readings else { return (known == bytes).then_some(&[]) };
        let (start, readings, end) = wire::split_at_readings(bytes, before)?;
        (*start == known[..before] && *end == known[with..]).then_some(readings)
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Bytes in memory, roughly.
    pub fn bytes(&self) -> usize {
        let each = self.rounds.len() * size_of::<Round>() + self.samples.len() * size_of::<Sample>();
        self.bytes + each + self.facts.len() * size_of::<Facts>()
    }

    /// Places of the samples in the order of the table: cluster, node, device, time, source. Equal ones keep their order.
    fn order(&self) -> Vec<usize> {
        let key = |facts: &Facts| {
            let Target { cluster, node, source, .. } = &self.targets[facts.target];
            let id = &self.rounds[facts.round].bytes[facts.id.clone()];
            ((cluster.as_str(), node.as_str(), id), source.as_str())
        };
        let mut by_key: Vec<_> = self.facts.iter().map(key).zip(0..).collect();
        by_key.sort_unstable();
        // Which group of equal cluster, node and device each is of, and where among all its source has it.
        let (mut groups, mut ranks) = (0, 0);
        let mut of_facts = vec![(0, 0); by_key.len()];
        for (place, (key, facts)) in by_key.iter().enumerate() {
            if let Some((before, _)) = place.checked_sub(1).and_then(|before| by_key.get(before)) {
                groups += usize::from(before.0 != key.0);
                ranks += usize::from(before != key);
            }
            of_facts[*facts] = (groups, ranks);
        }
        let of = |sample: &Sample| of_facts[sample.facts];
        let mut starts = vec![0; groups + 2];
        for sample in &self.samples {
            starts[of(sample).0 + 1] += 1;
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let (mut order, mut next) = (vec![0; self.samples.len()], starts.clone());
        for (number, sample) in self.samples.iter().enumerate() {
            let next = &mut next[of(sample).0];
            order[*next] = number;
            *next += 1;
        }
        let time = |number: &usize| {
            let sample = &self.samples[*number];
            (self.rounds[sample.round].at_ms, of(sample).1)
        };
        for ends in starts.windows(2) {
            // Nearly always in order as they came.
            order[ends[0]..ends[1]].sort_by_key(time);
        }
        order
    }

    /// The rows, in the order of the table, texts as [`Rows::take_runs`] has them.
    pub fn batches(&self) -> impl Iterator<Item = RecordBatch> {
        let (order, columns, mut device) = (self.order(), SampleColumns::new(), Device::default());
        let mut rows = Rows::new(Self::table());
        let mut from = 0;
        std::iter::from_fn(move || {
            let rest = order.get(from..).filter(|rest| !rest.is_empty())?;
            let some = &rest[..rest.len().min(BATCH_ROWS)];
            from += some.len();
            let mut before = None;
            for (place, &number) in some.iter().enumerate() {
                if place % AHEAD == 0 {
                    self.ask_for_readings(&some[place..some.len().min(place + AHEAD)]);
                }
                let Sample { round, facts, readings } = &self.samples[number];
                let round = &self.rounds[*round];
                let target = &self.targets[round.target];
                let head = Head {
                    cluster: &target.cluster,
                    node: &target.node,
                    source: &target.source,
                    at_ms: round.at_ms,
                    sequence: round.sequence,
                };
                let readings = Read::Bytes(&round.bytes[readings.clone()]);
                if before.replace(*facts) == Some(*facts) {
                    columns.again(&head, readings, round.place, &mut rows);
                    continue;
                }
                let Facts { round: first, whole, .. } = &self.facts[*facts];
                device.read::<false>(&self.rounds[*first].bytes[whole.clone()]).expect("it was read when it came");
                device.readings = readings;
                columns.sample(&head, &device, round.place, &mut rows);
            }
            Some(rows.take_runs())
        })
    }
}

/// Reads a byte of each line of the cache that `bytes` lie in.
fn touch(bytes: &[u8]) -> u8 {
    let last = bytes.last().copied().unwrap_or(0);
    bytes.iter().step_by(LINE).fold(last, |all, byte| all ^ byte)
}

/// Where in `whole` a part of it is.
fn place(part: &[u8], whole: &[u8]) -> Range<usize> {
    let from = part.as_ptr() as usize - whole.as_ptr() as usize;
    from..from + part.len()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::proto::{DeviceSample, Readings, Reject, Value};
    use arrow::compute::{cast, concat_batches};
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

    prop_compose! {
        fn round()(
            cluster in "[ab]", node in "n[12]?", source in "s[12]", at_ms in 0i64..5, sequence in 0u64..9,
            devices in prop::collection::vec(("G[1-4]?", "[a-c]?"), 0..5),
        ) -> ScrapeRound {
            let devices = devices.into_iter().map(|(device, product)| DeviceSample { device, product, ..DeviceSample::default() });
            ScrapeRound { cluster, node, source, at_ms, sequence, devices: devices.collect(), ..ScrapeRound::default() }
        }
    }

    /// Batches as one, each text as itself.
    fn texts(batches: &[RecordBatch]) -> RecordBatch {
        let schema = Rounds::table().schema();
        let plain = |batch: &RecordBatch| {
            let columns = batch.columns().iter().zip(schema.fields());
            let columns = columns.map(|(column, field)| cast(column, field.data_type()).unwrap()).collect();
            RecordBatch::try_new(schema.clone(), columns).unwrap()
        };
        concat_batches(&schema, &batches.iter().map(plain).collect::<Vec<_>>()).unwrap()
    }

    /// Rows, what rounds say beside their devices, and why some are refused.
    type All = (RecordBatch, Vec<String>, Vec<String>);

    fn ours(messages: &[Vec<u8>]) -> All {
        let (mut kept, mut said, mut refused) = (Rounds::default(), Vec::new(), Vec::new());
        for (offset, message) in (0..).zip(messages) {
            let place = Some(Place { partition: 3, offset });
            if let Err(why) = kept.add(message.clone().into(), place, |round, devices| said.push(format!("{round:?} {devices}")))
            {
                refused.push(why);
            }
        }
        let batches: Vec<RecordBatch> = kept.batches().collect();
        assert_eq!(kept.len(), batches.iter().map(RecordBatch::num_rows).sum::<usize>());
        (texts(&batches), said, refused)
    }

    /// By the library, one by one, and sorted.
    fn theirs(messages: &[Vec<u8>]) -> All {
        let (mut decoded, mut said, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for (offset, message) in (0..).zip(messages) {
            match ScrapeRound::decode(&**message) {
                Ok(round) if !TIMES_MS.contains(&round.at_ms) => {
                    refused.push(format!("bad_time: {} ms is outside the years 1970 to 9999", round.at_ms));
                }
                Ok(round) => {
                    said.push(format!("{:?} {}", Envelope::of(&round), round.devices.len()));
                    decoded.push((Place { partition: 3, offset }, round));
                }
                Err(error) => refused.push(format!("undecodable: {error}")),
            }
        }
        let mut one_by_one = Vec::new();
        for (place, round) in &decoded {
            one_by_one.extend(round.devices.iter().map(|device| (*place, round, device)));
        }
        one_by_one.sort_by_key(|(_, r, d)| (&r.cluster, &r.node, &d.device, r.at_ms, &r.source));
        let (columns, mut rows) = (SampleColumns::new(), Rows::new(Rounds::table()));
        one_by_one.into_iter().for_each(|(place, round, device)| columns.device(round, device, Some(place), &mut rows));
        (rows.finish(), said, refused)
    }

    prop_compose! {
        /// Rounds of one target, mostly of the same devices with other readings.
        fn a_target()(
            pool in prop::collection::vec(device(), 1..4),
            rounds in prop::collection::vec(
                prop::collection::vec((any::<prop::sample::Index>(), readings(), prop::bool::weighted(0.1), "[a-c]{0,3}"), 0..4), 1..6),
            skews in prop::collection::vec(prop::option::of(any::<i32>()), 6),
        ) -> Vec<ScrapeRound> {
            let round = |(number, (devices, skew_ms)): (i64, (Vec<_>, Option<i32>))| {
                let of = |(position, (other, readings, changed, text)): (usize, (prop::sample::Index, _, bool, String))| {
                    let mut device = pool[if changed { other.index(pool.len()) } else { position % pool.len() }].clone();
                    device.readings = readings;
                    if changed {
                        device.hostname = text;
                    }
                    device
                };
                let reject = Reject { reason: "bad".into(), ..Reject::default() };
                ScrapeRound {
                    node: "n".into(),
                    at_ms: 1_772_409_600_000 + number / 2,
                    sequence: number as u64,
                    skew_ms: skew_ms.map(i64::from),
                    unmatched_ids: skew_ms.iter().map(i32::to_string).collect(),
                    devices: devices.into_iter().enumerate().map(of).collect(),
                    rejects: vec![reject; usize::from(number == 2)],
                    ..ScrapeRound::default()
                }
            };
            (0..).zip(rounds.into_iter().zip(skews)).map(round).collect()
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_the_library_reads_it(rounds in a_target()) {
            let messages: Vec<Vec<u8>> = rounds.iter().map(ScrapeRound::encode_to_vec).collect();
            for message in &messages {
                prop_assert!(Rounds::default().read(message, &mut |_, _| ()).is_some(), "left to the library");
            }
            prop_assert_eq!(ours(&messages), theirs(&messages));
        }

        #[test]
        fn damage_is_refused_where_the_library_refuses_it(
            rounds in a_target(), which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), byte in any::<u8>()
        ) {
            let mut messages: Vec<Vec<u8>> = rounds.iter().map(ScrapeRound::encode_to_vec).collect();
            let which = which.index(messages.len());
            let at = at.index(messages[which].len());
            messages[which][at] = byte;
            prop_assert_eq!(ours(&messages), theirs(&messages));
        }
    }

    #[test]
    fn what_another_encoder_may_write_is_the_librarys() {
        let one = DeviceSample { labels: BTreeMap::from([("a".into(), "1".into())]), ..DeviceSample::default() };
        let part = |readings: Readings| DeviceSample { readings: Some(readings), ..one.clone() }.encode_to_vec();
        let of = |value: i64| {
            let mut readings = Readings::default();
            assert!(readings.set(203, Value::Int(value)));
            readings
        };
        let round = |device: Vec<u8>| [vec![0xa2, 0x01, u8::try_from(device.len()).unwrap()], device].concat();
        // A device in two pieces: protobuf puts them together, the later value counts. Then one whose length of readings takes a
        // byte more than it must.
        let mut long = part(of(9));
        let key = long.iter().position(|byte| *byte == 15 << 3 | 2).unwrap();
        let length = std::mem::replace(&mut long[key + 1], 0x80 | 3);
        assert_eq!(length, 3);
        long.insert(key + 2, 0);
        let messages = [round(part(of(6))), round([part(of(7)), part(of(8))].concat()), round(long)];
        assert!(Rounds::default().read(&messages[0], &mut |_, _| ()).is_some());
        assert!(messages[1..].iter().all(|message| Rounds::default().read(message, &mut |_, _| ()).is_none()));
        let (rows, said, refused) = ours(&messages);
        assert_eq!((rows.num_rows(), said.len(), refused.len()), (3, 3, 0));
        assert_eq!((rows, said, refused), theirs(&messages));
    }

    proptest! {
        #[test]
        fn rows_are_those_of_each_round_sorted(rounds in prop::collection::vec(round(), 0..20)) {
            let mut kept = Rounds::default();
            let mut one_by_one = Vec::new();
            for (offset, round) in (0..).zip(&rounds) {
                let place = Some(Place { partition: 3, offset });
                kept.add(round.encode_to_vec().into(), place, |_, _| ()).unwrap();
                one_by_one.extend(round.devices.iter().map(|device| (round, device, place)));
            }
            prop_assert_eq!(kept.len(), one_by_one.len());
            one_by_one.sort_by_key(|(r, d, _)| (&r.cluster, &r.node, &d.device, r.at_ms, &r.source));
            let (columns, mut rows) = (SampleColumns::new(), Rows::new(Rounds::table()));
            one_by_one.into_iter().for_each(|(round, device, place)| columns.device(round, device, place, &mut rows));
            let batches: Vec<RecordBatch> = kept.batches().collect();
            prop_assert_eq!(texts(&batches), rows.finish());
        }
    }

    #[test]
    fn batches_follow_each_other_without_gaps() {
        let mut kept = Rounds::default();
        let devices: Vec<DeviceSample> =
            (0..100).map(|gpu| DeviceSample { device: format!("G{gpu:02}"), ..DeviceSample::default() }).collect();
        for sequence in (0..90).rev() {
            let round =
                ScrapeRound { at_ms: sequence, sequence: sequence as u64, devices: devices.clone(), ..ScrapeRound::default() };
            kept.add(round.encode_to_vec().into(), None, |_, _| ()).unwrap();
        }
        let batches: Vec<RecordBatch> = kept.batches().collect();
        assert_eq!(batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [4096, 4096, 808]);
        let all = texts(&batches);
        let sequence: &arrow::array::Int64Array = all.column_by_name("sequence").unwrap().as_any().downcast_ref().unwrap();
        assert!(sequence.values().iter().enumerate().all(|(row, sequence)| *sequence == row as i64 % 90));
    }
}
