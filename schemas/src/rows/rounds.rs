//! Scrape rounds as their messages, until they become rows of `gpu_samples` in the order of the table. So each row is written
//! once, where it belongs, and what is in the making stays in the processor's cache: half the time of making rows as they come
//! and sorting them.

use super::wire::{self, Device};
use super::{Head, Place, Rows, SampleColumns};
use crate::tables::{self, Table};
use arrow::array::RecordBatch;
use std::collections::HashMap;

/// Rows that are made at one time: their columns fit the second cache.
const BATCH_ROWS: usize = 4096;

/// Rounds of many targets.
#[derive(Debug, Default)]
pub struct Rounds {
    rounds: Vec<Round>,
    samples: Vec<Sample>,
    targets: Vec<Target>,
    devices: Vec<KnownDevice>,
    target_ids: HashMap<[String; 3], usize>,
    device_ids: HashMap<(usize, Vec<u8>), usize>,
    bytes: usize,
}

#[derive(Debug)]
struct Round {
    target: usize,
    at_ms: i64,
    sequence: u64,
    place: Option<Place>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Sample {
    round: usize,
    device: usize,
    /// Where in the round's bytes.
    whole: std::ops::Range<usize>,
}

#[derive(Debug)]
struct Target {
    cluster: String,
    node: String,
    source: String,
    /// The devices of its last round, in the order there.
    devices: Vec<usize>,
}

/// A device as one target shows it.
#[derive(Debug)]
struct KnownDevice {
    target: usize,
    id: Vec<u8>,
}

impl Rounds {
    /// The table of the rows.
    pub fn table() -> &'static Table {
        tables::get("gpu_samples")
    }

    /// Adds the devices of a round.
    pub fn add(&mut self, round: wire::Round, place: Option<Place>) {
        let wire::Round { head, bytes, devices } = round;
        let target = self.target([head.cluster, head.node, head.source]);
        let number = self.rounds.len();
        for (position, wire::Place { whole, id }) in devices.into_iter().enumerate() {
            let device = self.device(target, position, &bytes[id]);
            self.samples.push(Sample { round: number, device, whole });
        }
        self.bytes += bytes.len();
        self.rounds.push(Round { target, at_ms: head.at_ms, sequence: head.sequence, place, bytes });
    }

    fn target(&mut self, key: [String; 3]) -> usize {
        let next = self.targets.len();
        *self.target_ids.entry(key).or_insert_with_key(|[cluster, node, source]| {
            let [cluster, node, source] = [cluster.clone(), node.clone(), source.clone()];
            self.targets.push(Target { cluster, node, source, devices: Vec::new() });
            next
        })
    }

    /// Nearly always a target shows what it showed the last time.
    fn device(&mut self, target: usize, position: usize, id: &[u8]) -> usize {
        let shown = &mut self.targets[target].devices;
        if let Some(&device) = shown.get(position).filter(|device| self.devices[**device].id == id) {
            return device;
        }
        let next = self.devices.len();
        let device = *self.device_ids.entry((target, id.to_vec())).or_insert(next);
        if device == next {
            self.devices.push(KnownDevice { target, id: id.to_vec() });
        }
        shown.truncate(position);
        shown.push(device);
        device
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
        self.bytes + self.rounds.len() * size_of::<Round>() + self.samples.len() * size_of::<Sample>()
    }

    /// Places of the samples in the order of the table: cluster, node, device, time, source. Equal ones keep their order.
    fn order(&self) -> Vec<usize> {
        let key = |device: usize| {
            let KnownDevice { target, id } = &self.devices[device];
            let Target { cluster, node, source, .. } = &self.targets[*target];
            (cluster.as_str(), node.as_str(), id.as_slice(), source.as_str())
        };
        let mut by_key: Vec<usize> = (0..self.devices.len()).collect();
        by_key.sort_unstable_by(|a, b| key(*a).cmp(&key(*b)));
        // Which group of equal cluster, node and device each is of, and where among all it stands.
        let mut groups = 0;
        let mut group = vec![0; by_key.len()];
        let mut rank = vec![0; by_key.len()];
        for (place, &device) in by_key.iter().enumerate() {
            let whole = |device: usize| {
                let (cluster, node, id, _) = key(device);
                (cluster, node, id)
            };
            if place > 0 && whole(by_key[place - 1]) != whole(device) {
                groups += 1;
            }
            (group[device], rank[device]) = (groups, place);
        }
        let mut starts = vec![0; groups + 2];
        for sample in &self.samples {
            starts[group[sample.device] + 1] += 1;
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let (mut order, mut next) = (vec![0; self.samples.len()], starts.clone());
        for (number, sample) in self.samples.iter().enumerate() {
            let next = &mut next[group[sample.device]];
            order[*next] = number;
            *next += 1;
        }
        let time = |number: &usize| {
            let sample = &self.samples[*number];
            (self.rounds[sample.round].at_ms, rank[sample.device])
        };
        for ends in starts.windows(2) {
            // Nearly always in order as they came.
            order[ends[0]..ends[1]].sort_by_key(time);
        }
        order
    }

    /// The rows, in the order of the table.
    pub fn batches(&self) -> impl Iterator<Item = RecordBatch> {
        let (order, columns, mut device) = (self.order(), SampleColumns::new(), Device::default());
        let mut rows = Rows::new(Self::table());
        let mut from = 0;
        std::iter::from_fn(move || {
            let rest = order.get(from..).filter(|rest| !rest.is_empty())?;
            let some = &rest[..rest.len().min(BATCH_ROWS)];
            from += some.len();
            for &number in some {
                let sample = &self.samples[number];
                let round = &self.rounds[sample.round];
                let target = &self.targets[round.target];
                device.read::<false>(&round.bytes[sample.whole.clone()]).expect("it was read when it came");
                let head = Head {
                    cluster: &target.cluster,
                    node: &target.node,
                    source: &target.source,
                    at_ms: round.at_ms,
                    sequence: round.sequence,
                };
                columns.sample(&head, &device, round.place, &mut rows);
            }
            Some(rows.take())
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::proto::{DeviceSample, Message as _, ScrapeRound};
    use arrow::compute::concat_batches;
    use proptest::prelude::*;

    prop_compose! {
        fn round()(
            cluster in "[ab]", node in "n[12]?", source in "s[12]", at_ms in 0i64..5, sequence in 0u64..9,
            devices in prop::collection::vec(("G[1-4]?", "[a-c]?"), 0..5),
        ) -> ScrapeRound {
            let devices = devices.into_iter().map(|(device, product)| DeviceSample { device, product, ..DeviceSample::default() });
            ScrapeRound { cluster, node, source, at_ms, sequence, devices: devices.collect(), ..ScrapeRound::default() }
        }
    }

    proptest! {
        #[test]
        fn rows_are_those_of_each_round_sorted(rounds in prop::collection::vec(round(), 0..20)) {
            let mut kept = Rounds::default();
            let mut one_by_one = Vec::new();
            for (offset, round) in (0..).zip(&rounds) {
                let place = Some(Place { partition: 3, offset });
                kept.add(wire::Round::read(round.encode_to_vec()).unwrap(), place);
                one_by_one.extend(round.devices.iter().map(|device| (round, device, place)));
            }
            prop_assert_eq!(kept.len(), one_by_one.len());
            one_by_one.sort_by_key(|(r, d, _)| (&r.cluster, &r.node, &d.device, r.at_ms, &r.source));
            let (columns, mut rows) = (SampleColumns::new(), Rows::new(Rounds::table()));
            one_by_one.into_iter().for_each(|(round, device, place)| columns.device(round, device, place, &mut rows));
            let batches: Vec<RecordBatch> = kept.batches().collect();
            prop_assert_eq!(concat_batches(&Rounds::table().schema(), &batches).unwrap(), rows.finish());
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
            kept.add(wire::Round::read(round.encode_to_vec()).unwrap(), None);
        }
        let batches: Vec<RecordBatch> = kept.batches().collect();
        assert_eq!(batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [4096, 4096, 808]);
        let all = concat_batches(&Rounds::table().schema(), &batches).unwrap();
        let sequence: &arrow::array::Int64Array = all.column_by_name("sequence").unwrap().as_any().downcast_ref().unwrap();
        assert!(sequence.values().iter().enumerate().all(|(row, sequence)| *sequence == row as i64 % 90));
    }
}
