//! What a round gathers, and what it reports.

use crate::page::{self, Page, PageFault};
use crate::scrape::ScrapeFault;
use crate::transport::Record;
use schemas::proto::ScrapeRound;
use schemas::status::ScrapeStatus;
use std::collections::BTreeMap;

/// What a round did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoundReport {
    /// Rounds by status.
    pub by_status: BTreeMap<&'static str, u64>,
    /// Milliseconds from the request to the whole answer, of page and kubelet, by status of the round.
    pub took_ms: BTreeMap<&'static str, u64>,
    /// Devices on all pages.
    pub devices: u64,
    /// Series read.
    pub series: u64,
    /// Lines kept out.
    pub bad_lines: u64,
    /// The same by reason.
    pub bad_lines_by_reason: BTreeMap<&'static str, u64>,
    /// Readings that were dropped, clipped or in conflict, by reason.
    pub faults: BTreeMap<&'static str, u64>,
    /// What the caps on pages dropped: samples of unknown metrics, samples of devices, labels.
    pub capped: [u64; 3],
    /// Series that stood twice on a page.
    pub duplicate_series: u64,
    /// Labels that the contract refused.
    pub refused_labels: u64,
    /// Devices whose labels name another pod than the kubelet.
    pub label_disagreements: u64,
    /// Ids of kubelets that no device answers to, and did not in the round before.
    pub newly_unmatched: u64,
    /// Targets whose devices could not be joined, by reason.
    pub join_reasons: BTreeMap<&'static str, u64>,
    /// Sighting states published.
    pub sightings: u64,
    /// States of holdings by the node's own kubelet that were published.
    pub local_states: u64,
    /// Pods of the node's own kubelet that could not be read.
    pub refused_pods: u64,
    /// Messages.
    pub messages: u64,
    /// Bytes of messages.
    pub bytes: u64,
    /// Parts that no message had room for.
    pub left_out: u64,
}

/// A round that is gathered and not yet published.
#[derive(Debug, Clone, Default)]
pub struct Gathered {
    pub(super) samples: Vec<Record>,
    pub(super) allocations: Vec<Record>,
    pub(super) nodes: Vec<Record>,
    /// What it found.
    pub report: RoundReport,
}

impl Gathered {
    /// Whether nothing was gathered.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty() && self.allocations.is_empty() && self.nodes.is_empty()
    }
}

/// Why a round has no page.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Scrape(ScrapeFault),
    #[error(transparent)]
    Page(PageFault),
}

impl Fault {
    pub(super) fn status(&self) -> ScrapeStatus {
        match self {
            Fault::Scrape(fault) => fault.status(),
            Fault::Page(fault) => fault.status(),
        }
    }
}

/// A page into a round, and into what the round reports.
pub(super) fn fill(round: &mut ScrapeRound, report: &mut RoundReport, page: Page) {
    let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    round.series = count(page.counts.series);
    round.bad_lines = count(page.counts.bad_lines);
    round.duplicate_series = count(page.counts.duplicate_series);
    round.refused_labels = count(page.counts.refused_labels);
    report.devices += page.devices.len() as u64;
    report.series += page.counts.series;
    report.bad_lines += page.counts.bad_lines;
    report.duplicate_series += page.counts.duplicate_series;
    report.refused_labels += page.counts.refused_labels;
    let bad_ids = page.counts.bad_lines - page.bad_lines.count;
    let by_reason = page.bad_lines.by_reason.into_iter().chain([(page::BAD_DEVICE_ID, bad_ids)]);
    for (reason, count) in by_reason {
        *report.bad_lines_by_reason.entry(reason).or_default() += count;
    }
    for (reason, count) in page.counts.faults {
        *report.faults.entry(reason).or_default() += count;
    }
    let capped = [page.counts.extra_dropped, page.counts.devices_dropped, page.counts.labels_dropped];
    report.capped.iter_mut().zip(capped).for_each(|(sum, count)| *sum += count);
    round.devices = page.devices.into_iter().map(|d| d.sample).collect();
    round.extra = page.extra;
    round.rejects = page.rejects;
}
