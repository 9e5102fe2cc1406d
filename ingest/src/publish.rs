//! Rounds to records of the log: one message a round and node, keyed by it, none too large for the log to take.

use crate::transport::Record;
use schemas::proto::{Allocation, Demand, Holding, Message, Node, Reject, ScrapeRound, allocation};

/// Topic of scrape rounds.
pub const SAMPLES: &str = "strandline.samples";
/// Topic of holdings and demand.
pub const ALLOCATIONS: &str = "strandline.allocations";
/// Topic of node inventory.
pub const NODES: &str = "strandline.nodes";

/// Largest message by default: below what brokers take without being told (1 MB).
pub const MAX_MESSAGE_BYTES: usize = 256 << 10;

/// A round as records: one, or more where one would be too large. Then the devices are shared out over several messages of
/// the same round, of which only the first has a status and so a row in `scrapes`; extra samples go first when even one
/// device does not fit. What had to be left out is counted in the second value.
pub fn round(mut round: ScrapeRound, max_bytes: usize) -> (Vec<Record>, u64) {
    let key = key(&round.cluster, &round.node);
    let at_ms = round.at_ms;
    let record = |round: &ScrapeRound| Record { key: key.clone(), value: round.encode_to_vec(), at_ms };
    if round.encoded_len() <= max_bytes {
        return (vec![record(&round)], 0);
    }
    let devices = std::mem::take(&mut round.devices);
    let extra = std::mem::take(&mut round.extra);
    let mut left_out = 0;
    while round.encoded_len() > max_bytes && round.rejects.pop().is_some() {
        left_out += 1;
    }
    if round.encoded_len() > max_bytes {
        round.unmatched_ids.clear();
        round.error.truncate(round.error.floor_char_boundary(1000));
    }
    let rest = ScrapeRound {
        cluster: round.cluster.clone(),
        node: round.node.clone(),
        source: round.source.clone(),
        at_ms: round.at_ms,
        sequence: round.sequence,
        interval_ms: round.interval_ms,
        ..ScrapeRound::default()
    };
    let mut parts = vec![round];
    // Tag and length of one more entry of a repeated field.
    let entry = |len: usize| len + 6;
    let mut room = max_bytes.saturating_sub(parts[0].encoded_len());
    let empty_room = max_bytes.saturating_sub(rest.encoded_len());
    for mut device in devices {
        let mut need = entry(device.encoded_len());
        if need > empty_room {
            device.labels.clear();
            need = entry(device.encoded_len());
        }
        if need > empty_room {
            left_out += 1;
            continue;
        }
        if need > room {
            parts.push(rest.clone());
            room = empty_room;
        }
        room -= need;
        if let Some(part) = parts.last_mut() {
            part.devices.push(device);
        }
    }
    for sample in extra {
        let need = entry(sample.encoded_len());
        if need > empty_room {
            left_out += 1;
            continue;
        }
        if need > room {
            parts.push(rest.clone());
            room = empty_room;
        }
        room -= need;
        if let Some(part) = parts.last_mut() {
            part.extra.push(sample);
        }
    }
    if left_out > 0 {
        let note = Reject { line: 0, reason: "too_large".to_owned(), text: format!("{left_out} parts of the round") };
        if let Some(first) = parts.first_mut().filter(|p| p.encoded_len() + 64 <= max_bytes) {
            first.rejects.push(note);
        }
    }
    (parts.iter().map(record).collect(), left_out)
}

/// A holding's state as a record.
pub fn holding(holding: Holding) -> Record {
    let key = key(&holding.cluster, &holding.node);
    let at_ms = holding.observed_at_ms;
    let message = Allocation { state: Some(allocation::State::Holding(holding)) };
    Record { key, value: message.encode_to_vec(), at_ms }
}

/// A demand's state as a record. While the pod waits it has no node, and the key has none.
pub fn demand(demand: Demand) -> Record {
    let key = key(&demand.cluster, &demand.node);
    let at_ms = demand.observed_at_ms;
    let message = Allocation { state: Some(allocation::State::Demand(demand)) };
    Record { key, value: message.encode_to_vec(), at_ms }
}

/// A node's state as a record.
pub fn node(node: &Node) -> Record {
    Record { key: key(&node.cluster, &node.node), value: node.encode_to_vec(), at_ms: node.observed_at_ms }
}

/// The key of a node's messages.
pub fn key(cluster: &str, node: &str) -> Vec<u8> {
    format!("{cluster}/{node}").into_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use schemas::proto::{DeviceSample, ExtraSample};

    fn big(devices: usize, label_bytes: usize) -> ScrapeRound {
        let device = |n: usize| DeviceSample {
            device: format!("GPU-{n}"),
            labels: [("x".to_owned(), "y".repeat(label_bytes))].into(),
            ..Default::default()
        };
        let extra = |n: usize| ExtraSample { name: format!("m{n}"), value: 1.0, ..Default::default() };
        ScrapeRound {
            cluster: "c".into(),
            node: "n".into(),
            sequence: 7,
            at_ms: 5,
            status: "ok".into(),
            devices: (0..devices).map(device).collect(),
            extra: (0..50).map(extra).collect(),
            ..Default::default()
        }
    }

    fn parts(round_of: ScrapeRound, max: usize) -> (Vec<ScrapeRound>, u64) {
        let (records, left_out) = round(round_of, max);
        assert!(records.iter().all(|r| r.value.len() <= max && r.key == b"c/n" && r.at_ms == 5));
        (records.iter().map(|r| ScrapeRound::decode(&*r.value).unwrap()).collect(), left_out)
    }

    #[test]
    fn a_round_that_fits_is_one_message() {
        let (got, left_out) = parts(big(8, 100), MAX_MESSAGE_BYTES);
        assert_eq!((got, left_out), (vec![big(8, 100)], 0));
    }

    #[test]
    fn a_large_round_is_shared_out_whole_and_only_its_first_part_has_a_status() {
        let whole = big(40, 300);
        let (got, left_out) = parts(whole.clone(), 2000);
        assert!(got.len() > 5);
        assert_eq!(left_out, 0);
        assert_eq!(got.iter().flat_map(|p| p.devices.clone()).collect::<Vec<_>>(), whole.devices);
        assert_eq!(got.iter().flat_map(|p| p.extra.clone()).collect::<Vec<_>>(), whole.extra);
        assert_eq!(got.iter().filter(|p| !p.status.is_empty()).count(), 1);
        assert!(got.iter().all(|p| (p.sequence, p.at_ms) == (7, 5)));
    }

    #[test]
    fn what_cannot_fit_is_left_out_once_and_counted() {
        let mut whole = big(2, 5000);
        whole.devices[1].product = "z".repeat(3000);
        let (got, left_out) = parts(whole, 2000);
        let devices: Vec<_> = got.iter().flat_map(|p| &p.devices).map(|d| (d.device.as_str(), d.labels.len())).collect();
        assert_eq!((devices, left_out), (vec![("GPU-0", 0)], 1), "labels go before the device does");
        assert_eq!(got[0].rejects[0].reason, "too_large");
    }
}
