//! What a scrape round says beside its devices, to rows of `scrapes`, `extra_samples` and `rejects`.

use super::wire::Envelope;
use super::{Place, Rows};
use crate::proto::ExtraSample;
use crate::tables;

/// Positions of the columns of `scrapes`, found once.
#[derive(Debug)]
pub struct ScrapeColumns {
    cluster: usize,
    node: usize,
    at: usize,
    source: usize,
    sequence: usize,
    status: usize,
    error: usize,
    duration_ms: usize,
    interval_ms: usize,
    collect_interval_ms: usize,
    body_bytes: usize,
    series: usize,
    devices: usize,
    bad_lines: usize,
    duplicate_series: usize,
    refused_labels: usize,
    skew_ms: usize,
    join_reason: usize,
    unmatched_ids: usize,
}

impl Default for ScrapeColumns {
    fn default() -> Self {
        Self::new()
    }
}

impl ScrapeColumns {
    /// The positions.
    ///
    /// # Panics
    /// Where the table lacks one: names are literals in our own code.
    pub fn new() -> Self {
        let table = tables::get("scrapes");
        let at = |name: &str| table.index(name).unwrap_or_else(|| panic!("scrapes has no column {name}"));
        ScrapeColumns {
            cluster: at("cluster"),
            node: at("node"),
            at: at("at"),
            source: at("source"),
            sequence: at("sequence"),
            status: at("status"),
            error: at("error"),
            duration_ms: at("duration_ms"),
            interval_ms: at("interval_ms"),
            collect_interval_ms: at("collect_interval_ms"),
            body_bytes: at("body_bytes"),
            series: at("series"),
            devices: at("devices"),
            bad_lines: at("bad_lines"),
            duplicate_series: at("duplicate_series"),
            refused_labels: at("refused_labels"),
            skew_ms: at("skew_ms"),
            join_reason: at("join_reason"),
            unmatched_ids: at("unmatched_ids"),
        }
    }

    /// Adds what a round of `devices` devices says beside them to the rows of its other tables.
    pub fn others(
        &self,
        round: &Envelope<'_>,
        devices: usize,
        place: Option<Place>,
        extra: &mut Rows,
        rejects: &mut Rows,
        scrapes: &mut Rows,
    ) {
        for sample in round.extra.iter() {
            extra_sample(round, sample, place, extra);
        }
        for reject in round.rejects.iter() {
            rejects.text("cluster", round.head.cluster);
            rejects.text("node", round.head.node);
            rejects.time("at", round.head.at_ms);
            rejects.text("source", round.head.source);
            if reject.line > 0 {
                rejects.int("line", i64::from(reject.line));
            }
            rejects.text("reason", &reject.reason);
            rejects.text("text", &reject.text);
            rejects.int("rows", 1);
            rejects.log(place);
            rejects.end_row();
        }
        // A part of a round that was too large for one message has no status: its first part is the round's row.
        if !round.status.is_empty() {
            self.scrape(round, devices, place, scrapes);
        }
    }

    /// Adds a round of `devices` devices to rows of `scrapes`.
    pub fn scrape(&self, round: &Envelope<'_>, devices: usize, place: Option<Place>, rows: &mut Rows) {
        let int = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        rows.text_at(self.cluster, round.head.cluster);
        rows.text_at(self.node, round.head.node);
        rows.time_at(self.at, round.head.at_ms);
        rows.text_at(self.source, round.head.source);
        rows.int_at(self.sequence, int(round.head.sequence));
        rows.text_at(self.status, round.status);
        rows.text_at(self.error, round.error);
        rows.int_at(self.duration_ms, i64::from(round.duration_ms));
        rows.int_at(self.interval_ms, i64::from(round.interval_ms));
        if let Some(ms) = round.collect_interval_ms {
            rows.int_at(self.collect_interval_ms, i64::from(ms));
        }
        rows.int_at(self.body_bytes, int(round.body_bytes));
        rows.int_at(self.series, i64::from(round.series));
        rows.int_at(self.devices, devices as i64);
        rows.int_at(self.bad_lines, i64::from(round.bad_lines));
        rows.int_at(self.duplicate_series, i64::from(round.duplicate_series));
        rows.int_at(self.refused_labels, i64::from(round.refused_labels));
        if let Some(ms) = round.skew_ms {
            rows.int_at(self.skew_ms, ms);
        }
        rows.text_at(self.join_reason, round.join_reason);
        rows.text_at(self.unmatched_ids, &round.unmatched_ids.join(","));
        rows.log(place);
        rows.end_row();
    }
}

fn extra_sample(round: &Envelope<'_>, sample: &ExtraSample, place: Option<Place>, rows: &mut Rows) {
    rows.text("cluster", round.head.cluster);
    rows.text("node", round.head.node);
    rows.text("device", &sample.device);
    rows.time("at", round.head.at_ms);
    rows.text("source", round.head.source);
    rows.int("sequence", i64::try_from(round.head.sequence).unwrap_or(i64::MAX));
    rows.text("name", &sample.name);
    let labels = rows.index("labels");
    rows.json_at(labels, sample.labels.iter());
    let value = rows.index("value");
    rows.double_at(value, sample.value);
    rows.log(place);
    rows.end_row();
}
