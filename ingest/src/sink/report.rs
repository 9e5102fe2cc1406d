//! How a sink is set, what a step of it reports, and what stops it.

use crate::transport::TransportError;
use lake::LakeError;
use schemas::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// When a sink cuts, and what it goes on from.
#[derive(Debug, Clone)]
pub struct Options {
    /// A buffer is cut at this many bytes of rows. Default 32 MiB.
    pub cut_bytes: usize,
    /// A buffer is cut at this many rows. Default 200,000.
    pub cut_rows: usize,
    /// A buffer is cut this long after its first message. Default 60 s.
    pub cut_age_ms: i64,
    /// All buffers together; the largest is cut while they are larger. Default 256 MiB.
    pub total_bytes: usize,
    /// Bytes asked of the log at one time: what one core's cache holds. Default 1 MiB.
    pub fetch_bytes: usize,
    /// Go on although the topic was created anew: an operator's word. Default no.
    pub accept_new_topic: bool,
    /// Go on although messages were dropped from the log before they were read; they are counted in `rejects`. An operator's
    /// word. Default no.
    pub skip_lost: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            cut_bytes: 32 << 20,
            cut_rows: 200_000,
            cut_age_ms: 60_000,
            total_bytes: 256 << 20,
            fetch_bytes: 1 << 20,
            accept_new_topic: false,
            skip_lost: false,
        }
    }
}

/// Why a sink stopped.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// A topic that the sink does not know.
    #[error("topic `{0}` is none that the sink reads; it reads strandline.samples, .allocations and .nodes")]
    UnknownTopic(String),
    /// The log failed.
    #[error("cannot read the log")]
    Log(#[source] TransportError),
    /// The lake failed.
    #[error("cannot write the lake")]
    Lake(#[source] LakeError),
    /// The topic was created anew.
    #[error(
        "topic `{topic}` was created anew: the lake holds it as {was}, the log now as {now}. If its old messages are all in the \
         lake, start the sink once with `--accept-new-topic`"
    )]
    Recreated {
        /// Topic.
        topic: String,
        /// Id in the lake.
        was: String,
        /// Id in the log.
        now: String,
    },
    /// The log ends before what the lake already holds.
    #[error(
        "`{topic}`/{partition} ends at offset {end}, but the lake holds it up to {pos}: the log was created anew or restored from \
         an old copy. Nothing was written; give the sink the right log"
    )]
    Backwards {
        /// Topic.
        topic: String,
        /// Partition.
        partition: u32,
        /// The log's end.
        end: u64,
        /// Next offset of the lake.
        pos: u64,
    },
    /// The log dropped messages that were not read.
    #[error(
        "`{topic}`/{partition} begins at offset {start}, but the lake holds it only up to {pos}: {} messages were dropped \
         before they were read. To go on without them, start the sink once with `--skip-lost`", start - pos
    )]
    Lost {
        /// Topic.
        topic: String,
        /// Partition.
        partition: u32,
        /// The log's start.
        start: u64,
        /// Next offset of the lake.
        pos: u64,
    },
    /// A file of another table that does not belong to the interval.
    #[error("{path} covers another interval than the files beside it; was the lake changed by hand?")]
    Torn {
        /// The file.
        path: String,
    },
    /// The hook said so: a test's crash.
    #[error("stopped at {0:?} as told")]
    Stopped(Step),
}

/// The places where a sink may die; a hook may stop it there (see [`Sink::on_step`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A buffer is about to be cut.
    BeforeFirst,
    /// The file that fixes the interval is there.
    AfterFirst,
    /// The file of another table is about to be published.
    BeforeOther(&'static str),
    /// It is there.
    AfterOther(&'static str),
    /// The interval is complete, and the sink has not yet gone on.
    Complete,
}

/// What a step did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepReport {
    /// Messages read.
    pub records: u64,
    /// Messages and parts of messages refused.
    pub rejects: u64,
    /// Messages that the log has lost after they were taken (among the refused ones once they are in a file).
    pub lost: u64,
    /// Files published.
    pub files: u64,
    /// Rows in them.
    pub rows: u64,
    /// Cuts that another writer had made first.
    pub lost_swaps: u64,
    /// Messages that are taken and not yet read, of every partition that this sink holds.
    pub lag: Vec<Lag>,
    /// Messages that are read and not yet in files.
    pub buffered: u64,
    /// Every message of before this time is in files (the times of their records); none where nothing is behind. Of the
    /// partitions that this sink holds; see [`Sink::behind_elsewhere`].
    pub behind_at: Option<Timestamp>,
    /// What was refused, by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Every interval that was published.
    pub flushes: Vec<Flush>,
}

impl StepReport {
    /// Messages that are taken and not yet read, of all partitions.
    pub fn unread(&self) -> u64 {
        self.lag.iter().map(|lag| lag.messages).sum()
    }
}

/// How far a partition is behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lag {
    /// Topic.
    pub topic: String,
    /// Partition.
    pub partition: u32,
    /// Messages that are taken and not yet read.
    pub messages: u64,
}

/// One interval that was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flush {
    /// Rows, of all tables.
    pub rows: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
}
