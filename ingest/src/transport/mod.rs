//! The log between agent and sink: what is taken stays taken.
//!
//! ```text
//! agent ──produce──> partition: 0 1 2 3 4 5 │        offsets, gapless but for holes that the log itself declares
//!                               ^start      ^end
//! sink  <──fetch from──────────────┘                 any number of times, always the same
//! ```
//!
//! [`Topic`] is what every transport gives: [`kafka`], or the embedded [`local`] log; a [`spool`] stands before Kafka on an
//! agent's disk. The promises, held by one conformance test
//! over every implementation:
//!
//! * `produce` returns when the batch is *taken*: on disk (fsync), or acknowledged. On an error any part of the batch may be
//!   taken; a repeat is harmless, since rounds carry their sequence.
//! * An offset names one message for ever; it is never given to another, through restarts and torn writes.
//! * `fetch` shows only what is taken.
//! * A topic that was created anew has a new id.
//!
//! The trait is plain blocking calls: its callers are a producer that must wait for the disk anyway and a sink that has a
//! thread of its own.

pub mod kafka;
pub mod local;
pub mod spool;

pub use lake::path::TopicId;

use bytes::Bytes;
use rdkafka::error::KafkaError;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// What a producer hands over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Messages of one key keep their order: they go to one partition.
    pub key: Vec<u8>,
    /// The message.
    pub value: Vec<u8>,
    /// Its time, for retention and for what has no time of its own. After 1970: Kafka takes 0 for "now".
    pub at_ms: i64,
}

/// A message as it stands in the log. Those that were fetched together lie in one buffer, which is there as long as one of them is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its offset in its partition.
    pub offset: u64,
    /// Key.
    pub key: Bytes,
    /// The message.
    pub value: Bytes,
    /// Its time as the producer stated it.
    pub at_ms: i64,
}

/// Where a record was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Partition.
    pub partition: u32,
    /// Offset.
    pub offset: u64,
}

/// What a partition holds now: offsets in `[start, end)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The first offset that is still there.
    pub start: u64,
    /// The offset that the next taken message will get (Kafka's high watermark).
    pub end: u64,
}

/// An answer to a fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Messages in order of offset.
    pub messages: Vec<Message>,
    /// Where to fetch next. Beyond the last message where the log has a hole.
    pub next: u64,
    /// Offsets before `next` whose messages were taken and that the log has lost since, by its own word. They will not come.
    pub lost: Vec<Lost>,
}

/// Messages that were taken and that the log does not have any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// The first of them.
    pub from: u64,
    /// How many.
    pub count: u64,
    /// A time near theirs: of the message after them, else of the one before, where there is one.
    pub at_ms: Option<i64>,
}

/// One topic of a transport.
pub trait Topic: Send + Sync {
    /// Name, such as `strandline.samples`.
    fn name(&self) -> &str;

    /// Identity.
    fn id(&self) -> TopicId;

    /// Number of partitions, fixed at creation.
    fn partitions(&self) -> u32;

    /// Appends records, each to the partition of its key, and returns when all are taken. Positions in order of records.
    fn produce(&self, records: &[Record]) -> Result<Vec<Position>, TransportError>;

    /// Taken messages of a partition from offset `from` on, at least one if there is any, then up to about `max_bytes`.
    ///
    /// Errors: `OutOfRange` where `from` is below the start or above the end.
    fn fetch(&self, partition: u32, from: u64, max_bytes: usize) -> Result<Fetched, TransportError>;

    /// What a partition holds now.
    fn bounds(&self, partition: u32) -> Result<Bounds, TransportError>;

    /// Asks anew whether this is still the topic that it was. What was fetched before this returns came from it.
    ///
    /// Errors: `Recreated` where the name now belongs to another topic, `Grown` where it has more partitions.
    fn verify(&self) -> Result<(), TransportError>;

    /// The partitions that this reader is to read now; all of them where nobody shares them out.
    fn assigned(&self) -> Result<BTreeSet<u32>, TransportError> {
        Ok((0..self.partitions()).collect())
    }

    /// Says that everything below `next` is in the lake. For whoever watches from outside; nothing is ever read back.
    fn published(&self, _partition: u32, _next: u64) {}
}

/// The partition of a key, the same for every transport.
pub fn partition_of(key: &[u8], partitions: u32) -> u32 {
    crc32fast::hash(key) % partitions.max(1)
}

/// Why a transport could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// A file operation failed.
    #[error("cannot {what} {path}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The disk is full; nothing of the batch is taken, and the log goes on when there is room.
    #[error("no room for the log at {path}; free disk space or lower its retention")]
    Full {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// Another process writes this log.
    #[error("the log at {path} is already open for writing; stop the other process or give this one its own directory")]
    Locked {
        /// The log's directory.
        path: PathBuf,
    },
    /// This log was opened to be read.
    #[error("the log at {path} is open for reading only")]
    ReadOnly {
        /// The log's directory.
        path: PathBuf,
    },
    /// An earlier write could not be made durable; what the disk holds is unknown until the log is opened again.
    #[error("an earlier write to {path} failed; restart this process so that the log is checked and opened again")]
    Poisoned {
        /// The topic's directory.
        path: PathBuf,
    },
    /// No such topic in the log.
    #[error("no topic `{topic}` at {path}; has its producer been started?")]
    NoTopic {
        /// The topic asked for.
        topic: String,
        /// The log's directory.
        path: PathBuf,
    },
    /// No such partition.
    #[error("topic `{topic}` has no partition {partition}")]
    NoPartition {
        /// Topic.
        topic: String,
        /// Partition asked for.
        partition: u32,
    },
    /// The topic exists with another number of partitions.
    #[error("topic `{topic}` has {have} partitions, not {want}; they are fixed when it is created")]
    Partitions {
        /// Topic.
        topic: String,
        /// Partitions it has.
        have: u32,
        /// Partitions asked for.
        want: u32,
    },
    /// A name that cannot be a topic's.
    #[error("`{0}` is no topic name: use letters, digits, `.`, `-` and `_`")]
    BadName(String),
    /// A record above the limit.
    #[error("a record of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// An offset that the partition does not hold.
    #[error("offset {from} of `{topic}`/{partition} is outside [{}, {}]", bounds.start, bounds.end)]
    OutOfRange {
        /// Topic.
        topic: String,
        /// Partition.
        partition: u32,
        /// Offset asked for.
        from: u64,
        /// What the partition holds.
        bounds: Bounds,
    },
    /// Another hand than the writer's changed a file of the log; what the disk holds is unknown until the log is opened again.
    #[error("{path} was changed or removed by another program; restart this process so that the log is checked and opened again")]
    Changed {
        /// The segment file.
        path: PathBuf,
    },
    /// Bytes that were taken are damaged.
    #[error(
        "{path} is damaged at byte {at}: {what}; restart the agent, which cuts a damaged end, or else move this file out of the \
         log. Messages that are lost by it are counted in `rejects`"
    )]
    Damaged {
        /// Segment file.
        path: PathBuf,
        /// Byte.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Kafka did not do what it was asked. It may pass.
    #[error("cannot {what} Kafka at {brokers}; is it up, and may this client do that?")]
    Kafka {
        /// What was tried.
        what: &'static str,
        /// Where.
        brokers: String,
        /// What librdkafka says.
        #[source]
        source: KafkaError,
    },
    /// Kafka did not answer in time. It may pass.
    #[error("cannot {what} Kafka at {brokers}: no answer in {} ms; is it up, and are its addresses right?", wait.as_millis())]
    Late {
        /// What was tried.
        what: &'static str,
        /// Where.
        brokers: String,
        /// How long was waited.
        wait: Duration,
    },
    /// A property that librdkafka does not take.
    #[error("kafka: property `{key}`: {reason}; properties are those of librdkafka's CONFIGURATION.md")]
    Property {
        /// Its name.
        key: String,
        /// Why.
        reason: String,
    },
    /// A message that the broker refuses for what it is, however often it is sent.
    #[error("topic `{topic}` refuses a message for what it is; it is not sent again. Is this machine's clock right?")]
    Refused {
        /// Topic.
        topic: String,
        /// What the broker says.
        #[source]
        source: KafkaError,
    },
    /// A topic that could not be created.
    #[error(
        "cannot create topic `{topic}`; create it yourself: kafka-topics.sh --bootstrap-server SERVER --create --topic {topic} \
         --partitions 6 --config cleanup.policy=delete --config retention.ms=604800000"
    )]
    NotCreated {
        /// Topic.
        topic: String,
        /// What the broker says.
        #[source]
        source: KafkaError,
    },
    /// A topic whose settings would lose or change what it takes.
    #[error(
        "topic `{topic}` has {setting}={have}, and what is taken would not be safe there; set it: kafka-configs.sh --bootstrap-server \
         SERVER --alter --topic {topic} --add-config {setting}={want}"
    )]
    Setting {
        /// Topic.
        topic: String,
        /// Setting.
        setting: &'static str,
        /// Its value.
        have: String,
        /// A value that is right.
        want: String,
    },
    /// A broker without identities of topics.
    #[error("topic `{topic}` has no id, so that one created anew could not be told from it; Kafka 2.8 or later is needed")]
    NoTopicId {
        /// Topic.
        topic: String,
    },
    /// The name belongs to another topic now.
    #[error("topic `{topic}` was created anew: it was {}, and is now {}", was.as_str(), now.as_str())]
    Recreated {
        /// Topic.
        topic: String,
        /// Id when it was opened.
        was: TopicId,
        /// Id now.
        now: TopicId,
    },
    /// The topic has got more partitions: it is to be opened again.
    #[error("topic `{topic}` has {have} partitions now, and had {want}")]
    Grown {
        /// Topic.
        topic: String,
        /// Partitions it has.
        have: u32,
        /// Partitions it had.
        want: u32,
    },
}

impl TransportError {
    /// Whether the same may succeed later, without anyone doing anything to the log.
    pub fn passes(&self) -> bool {
        match self {
            TransportError::Io { .. }
            | TransportError::Damaged { .. }
            | TransportError::Kafka { .. }
            | TransportError::Late { .. }
            | TransportError::Grown { .. } => true,
            TransportError::Full { .. }
            | TransportError::Locked { .. }
            | TransportError::ReadOnly { .. }
            | TransportError::Poisoned { .. }
            | TransportError::NoTopic { .. }
            | TransportError::NoPartition { .. }
            | TransportError::Partitions { .. }
            | TransportError::BadName(_)
            | TransportError::TooLarge { .. }
            | TransportError::OutOfRange { .. }
            | TransportError::Changed { .. }
            | TransportError::Property { .. }
            | TransportError::Refused { .. }
            | TransportError::NotCreated { .. }
            | TransportError::Setting { .. }
            | TransportError::NoTopicId { .. }
            | TransportError::Recreated { .. } => false,
        }
    }
}
