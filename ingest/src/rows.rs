//! Messages to rows: what one message of a topic adds to which tables. Pure, and the same rows for the same message always,
//! for a file may be made again from the log (see `sink`).

pub use schemas::rows::Rows;

use crate::publish;
use crate::transport::Message;
use arrow::array::RecordBatch;
use lake::LakeError;
use schemas::proto::{Allocation, Message as _, Node, allocation};
use schemas::rows::{self, Place, Rounds, ScrapeColumns, TIMES_MS};
use schemas::tables::{self, Table};
use std::collections::BTreeMap;

/// What a topic's messages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `strandline.samples`: scrape rounds.
    Samples,
    /// `strandline.allocations`: holdings and demand.
    Allocations,
    /// `strandline.nodes`: inventory.
    Nodes,
}

impl Kind {
    /// The kind of a topic by its name.
    pub fn of_topic(name: &str) -> Option<Self> {
        match name {
            publish::SAMPLES => Some(Kind::Samples),
            publish::ALLOCATIONS => Some(Kind::Allocations),
            publish::NODES => Some(Kind::Nodes),
            _ => None,
        }
    }

    /// The tables that its messages fill, in order of publishing: the first one fixes an interval and always has a file, even
    /// one without rows.
    pub fn tables(self) -> Vec<&'static Table> {
        let names: &[&'static str] = match self {
            Kind::Samples => &["gpu_samples", "extra_samples", "rejects", "scrapes"],
            Kind::Allocations => &["allocations", "demand", "rejects"],
            Kind::Nodes => &["nodes", "rejects"],
        };
        names.iter().map(|name| tables::get(name)).collect()
    }
}

/// Rows of one topic's messages, table by table.
pub struct Batch {
    kind: Kind,
    topic: String,
    partition: u32,
    /// Rows of [`Kind::tables`]; those of `gpu_samples` are made at the end, of `rounds`.
    tables: Vec<Rows>,
    rounds: Rounds,
    scrape_columns: ScrapeColumns,
    /// Messages or parts of messages that were refused.
    pub rejects: u64,
    /// The same by reason; at most [`MAX_REASONS`] and `other`, for an agent's words are not bounded by anything here.
    pub reasons: BTreeMap<String, u64>,
    /// Messages.
    pub records: u64,
}

/// Most reasons that are counted by name.
pub const MAX_REASONS: usize = 50;

impl Batch {
    /// No rows yet of `partition` of the topic called `topic`.
    pub fn new(kind: Kind, topic: &str, partition: u32) -> Self {
        let tables: Vec<Rows> = kind.tables().into_iter().map(Rows::new).collect();
        let (topic, rounds, reasons) = (topic.to_owned(), Rounds::default(), BTreeMap::new());
        let scrape_columns = ScrapeColumns::new();
        Batch { kind, topic, partition, tables, rounds, scrape_columns, rejects: 0, reasons, records: 0 }
    }

    /// Adds the rows of one message. One that cannot be read is a row of `rejects`.
    pub fn add(&mut self, message: Message) {
        self.records += 1;
        let Message { offset, key, value, at_ms } = message;
        let place = Place { partition: self.partition, offset };
        let result = match self.kind {
            Kind::Samples => self.round(value, place),
            Kind::Allocations => Allocation::decode(&*value).map_err(undecodable).and_then(|a| match a.state {
                Some(allocation::State::Holding(holding)) => rows::holding(&mut self.tables[0], &holding, Some(place)),
                Some(allocation::State::Demand(demand)) => rows::demand(&mut self.tables[1], &demand, Some(place)),
                None => Err("unknown_state: neither a holding nor demand; is the sink older than the agent?".to_owned()),
            }),
            Kind::Nodes => {
                Node::decode(&*value).map_err(undecodable).and_then(|n| rows::node(&mut self.tables[0], &n, Some(place)))
            }
        };
        if let Err(why) = result {
            self.refuse(&key, at_ms, place, &why);
        }
    }

    fn round(&mut self, message: Vec<u8>, place: Place) -> Result<(), String> {
        let Self { tables, rounds, reasons, rejects, scrape_columns, .. } = self;
        let [_, extra, refused, scrapes] = tables.as_mut_slice() else { return Ok(()) };
        rounds.add(message, Some(place), |round, devices| {
            *rejects += round.rejects.len() as u64;
            for reject in round.rejects.iter() {
                count(reasons, &reject.reason, 1);
            }
            scrape_columns.others(round, devices, Some(place), extra, refused, scrapes);
        })
    }

    /// `why` is a code, then words.
    fn refuse(&mut self, key: &[u8], at_ms: i64, place: Place, why: &str) {
        self.rejects += 1;
        let (reason, words) = why.split_once(": ").unwrap_or((why, ""));
        count(&mut self.reasons, reason, 1);
        let Some(rejects) = self.tables.iter_mut().find(|t| t.table().name == "rejects") else { return };
        let key = std::str::from_utf8(key).ok().and_then(|k| k.split_once('/'));
        let at_ms = at_ms.clamp(TIMES_MS.start, TIMES_MS.end - 1);
        rejects.text("cluster", key.map(|k| k.0).unwrap_or_default());
        rejects.text("node", key.map(|k| k.1).unwrap_or_default());
        rejects.time("at", at_ms);
        rejects.text("source", &self.topic);
        rejects.text("reason", reason);
        rejects.text("text", &format!("partition {} offset {}: {words}", place.partition, place.offset));
        rejects.int("rows", 1);
        rejects.log(Some(place));
        rejects.end_row();
    }

    /// Says that `count` messages from offset `from` on were dropped by the log before they were read. `at_ms` is the time of
    /// the first one that is left.
    pub fn lost(&mut self, from: u64, count: u64, at_ms: Option<i64>) {
        self.rejects += count;
        self::count(&mut self.reasons, "lost", count);
        let Some(rejects) = self.tables.iter_mut().find(|t| t.table().name == "rejects") else { return };
        rejects.time("at", at_ms.unwrap_or(0).clamp(TIMES_MS.start, TIMES_MS.end - 1));
        rejects.text("source", &self.topic);
        rejects.text("reason", "lost");
        rejects.text(
            "text",
            &format!("partition {} offset {from}: {count} messages were dropped before they were read", self.partition),
        );
        rejects.int("rows", i64::try_from(count).unwrap_or(i64::MAX));
        rejects.log(Some(Place { partition: self.partition, offset: from }));
        rejects.end_row();
    }

    /// Bytes that the rows take in memory, roughly.
    pub fn bytes(&self) -> usize {
        self.rounds.bytes() + self.tables.iter().map(Rows::bytes).sum::<usize>()
    }

    /// Rows of all tables.
    pub fn rows(&self) -> usize {
        self.rounds.len() + self.tables.iter().map(Rows::len).sum::<usize>()
    }

    /// The rows, in order of [`Kind::tables`], each table's in its own order.
    pub fn finish(self) -> Result<(First, Vec<Other>), LakeError> {
        let mut tables = self.tables.into_iter().map(|rows| {
            let table = rows.table();
            Ok((table, lake::encode::sorted(table, &[rows.finish()])?))
        });
        let first = tables.next().transpose()?;
        let first = match (self.kind, first) {
            (Kind::Allocations | Kind::Nodes, Some((table, rows))) => First::Rows(table, rows),
            (Kind::Samples, _) | (_, None) => First::Samples(self.rounds),
        };
        Ok((first, tables.collect::<Result<_, _>>()?))
    }
}

/// Rows of another table, in its order.
pub type Other = (&'static Table, RecordBatch);

/// Rows of the table that fixes an interval.
pub enum First {
    /// Samples, which are made into rows while they are written.
    Samples(Rounds),
    /// Others.
    Rows(&'static Table, RecordBatch),
}

impl First {
    /// The table.
    pub fn table(&self) -> &'static Table {
        match self {
            First::Samples(_) => Rounds::table(),
            First::Rows(table, _) => table,
        }
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        match self {
            First::Samples(rounds) => rounds.len(),
            First::Rows(_, rows) => rows.num_rows(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows, in the order of the table.
    pub fn batches(&self) -> Box<dyn Iterator<Item = RecordBatch> + '_> {
        match self {
            First::Samples(rounds) => Box::new(rounds.batches()),
            First::Rows(_, rows) => Box::new(std::iter::once(rows.clone())),
        }
    }
}

fn count(reasons: &mut BTreeMap<String, u64>, reason: &str, n: u64) {
    let known = reasons.contains_key(reason) || reasons.len() < MAX_REASONS;
    *reasons.entry(if known { reason } else { "other" }.to_owned()).or_default() += n;
}

fn undecodable(error: impl std::fmt::Display) -> String {
    format!("undecodable: {error}")
}
