//! `strandline import`: what was recorded elsewhere, into a lake, through the same messages, sink and closing as live data.
//!
//! ```text
//! allocations, devices (CSV, NDJSON) ─┐
//! pages with their times,             ├─> messages ─> log (<lake>/_log) ─> sink ─> close
//! pod-resources answers (JSON) ───────┘
//! ```

mod mapping;
mod scrapes;
mod tables;

use std::{io::Write, path::PathBuf, sync::Arc};

use clap::{Args, Subcommand};
use ingest::{
    close::{self, Closer},
    publish,
    sink::{self, Sink},
    transport::{
        Record, Topic,
        local::{self, Log, TopicSpec},
    },
};
use lake::Lake;
use schemas::{
    HOUR_MS, Timestamp,
    proto::{Reject, ScrapeRound},
};

use crate::failure::Failure;

/// Bring recorded data into a lake and close its hours
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strandline import allocations pods.csv --lake lake --map pod=name --map team=qos --map gpus=num_gpu \\
      --map weight=gpu_milli/1000 --map bound=scheduled_time --map ended=deletion_time --epoch 2023-01-01
  strandline import devices gpus.csv --lake lake
  strandline import scrapes index.csv --lake lake --interval 30

Then: strandline hours --lake lake; strandline report --lake lake --by team,hour")]
pub struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Allocations(tables::Options),
    Devices(tables::Options),
    Scrapes(scrapes::Options),
}

/// Where an import goes.
#[derive(Debug, Clone, Args)]
pub struct Destination {
    /// Folder of the lake; made if it is not there
    #[arg(long, env = "STRANDLINE_LAKE", value_name = "DIR")]
    lake: PathBuf,
    /// Name of the cluster
    #[arg(long, env = "STRANDLINE_CLUSTER", default_value = "imported")]
    cluster: String,
    /// Close hours up to here (default: the hour of the latest time that the import states)
    #[arg(long, value_name = "TIME", value_parser = crate::commands::time)]
    to: Option<Timestamp>,
}

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    match &options.what {
        What::Allocations(options) => tables::allocations(options, out),
        What::Devices(options) => tables::devices(options, out),
        What::Scrapes(options) => scrapes::run(options, out),
    }
}

/// Something of a file that was kept out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// 1-based line.
    pub line: u64,
    /// Which field, and why.
    pub reason: String,
    /// The line's beginning.
    pub text: String,
}

/// A lake that is being written, with its log.
pub struct Path {
    lake: Lake,
    cluster: String,
    log: Log,
    latest: Timestamp,
}

impl Path {
    /// Opens both.
    pub fn open(destination: &Destination) -> Result<Self, Failure> {
        let lake = Lake::create(&destination.lake).map_err(Failure::failed)?;
        let topics = [publish::SAMPLES, publish::ALLOCATIONS, publish::NODES].map(|name| TopicSpec { name, partitions: 1 });
        let log = Log::open(&lake.root().join("_log"), &topics, local::Options::default()).map_err(Failure::failed)?;
        Ok(Self { lake, cluster: destination.cluster.clone(), log, latest: Timestamp::from_ms(i64::MIN) })
    }

    /// One of the log's topics.
    pub fn topic(&self, name: &str) -> Result<Arc<dyn Topic>, Failure> {
        self.log.topic(name).map(|topic| topic as Arc<dyn Topic>).map_err(Failure::failed)
    }

    /// Says that the import states a time.
    pub fn saw(&mut self, at: Timestamp) {
        self.latest = self.latest.max(at);
    }

    /// Appends records to a topic; all are taken when this returns.
    pub fn produce(&self, topic: &str, records: &[Record]) -> Result<(), Failure> {
        let topic = self.topic(topic)?;
        for some in records.chunks(10_000) {
            topic.produce(some).map_err(Failure::failed)?;
        }
        Ok(())
    }

    /// Puts what was refused into table `rejects`, at the hour of the import's latest time.
    pub fn refuse(&self, file: &std::path::Path, refused: &[Refused]) -> Result<(), Failure> {
        let reject = |r: &Refused| Reject {
            line: u32::try_from(r.line).unwrap_or(u32::MAX),
            reason: r.reason.clone(),
            text: r.text.clone(),
        };
        // A part of a round without a status makes rows in `rejects` only.
        let round = |some: &[Refused]| ScrapeRound {
            cluster: self.cluster.clone(),
            source: file.display().to_string(),
            at_ms: self.latest.plus_ms(-1).ms().max(0),
            rejects: some.iter().map(reject).collect(),
            ..ScrapeRound::default()
        };
        let records: Vec<Record> =
            refused.chunks(200).flat_map(|some| publish::round(round(some), publish::MAX_MESSAGE_BYTES).0).collect();
        self.produce(publish::SAMPLES, &records)
    }

    /// Runs the sink to the log's end and closes every hour up to the destination's end.
    pub fn finish(self, destination: &Destination) -> Result<Timestamp, Failure> {
        let topics = [publish::SAMPLES, publish::ALLOCATIONS, publish::NODES].map(|name| self.topic(name));
        let topics = topics.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut sink = Sink::open(self.lake.clone(), topics, sink::Options::default()).map_err(Failure::failed)?;
        let latest = self.latest.plus_ms(-1).hour().plus_ms(HOUR_MS);
        let to = destination.to.unwrap_or(latest);
        sink.flush(to).map_err(Failure::failed)?;
        // What was recorded may be of any age.
        let options = close::Options { late_limit_ms: i64::MAX / 4, ..close::Options::default() };
        Closer::new(self.lake, options).close(to, to).map_err(Failure::failed)?;
        Ok(to)
    }
}

/// What an import says when it is done.
pub fn summary(
    out: &mut dyn Write,
    file: &std::path::Path,
    lines: &[String],
    refused: &[Refused],
    imported: usize,
) -> Result<(), Failure> {
    for line in lines {
        writeln!(out, "{line}").map_err(Failure::output)?;
    }
    if refused.is_empty() {
        return Ok(());
    }
    let first = &refused[0];
    let words = format!(
        "{} lines of {} were refused and are in table rejects; the first: line {}: {}",
        refused.len(),
        file.display(),
        first.line,
        first.reason
    );
    if imported == 0 {
        return Err(Failure::because(format!("nothing was imported: {words}")));
    }
    writeln!(out, "{words}").map_err(Failure::output)
}
