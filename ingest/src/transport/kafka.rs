//! Kafka behind [`Topic`] (DESIGN 3.3, D1, D2).
//!
//! ```text
//! produce ──idempotent, acks=all──> broker ──acknowledged──> taken
//! fetch   <──one consumer, one queue a partition; offsets are the caller's, never the group's
//! ```
//!
//! * *Taken* means acknowledged by all in-sync replicas. A message that is not acknowledged in time is an error; it may be there
//!   all the same, and a repeat is harmless (see [`Topic`]).
//! * A topic's identity is the id that the broker gave it when it was created (Kafka 2.8 and later). [`Topic::verify`] asks for
//!   it again: what was fetched before it answers the same id came from that topic, for ids never come back.
//! * A consumer group only says which partitions are whose ([`group`]); what is read begins where the lake ends.
//!
//! Modules in reading order: [`properties`] (what the operator gave), [`settings`] (topics as they must be), [`describe`] (their
//! identity), [`produce`], [`read`], [`group`].

mod describe;
mod group;
mod produce;
pub mod properties;
mod read;
mod settings;

use super::{Bounds, Fetched, Position, Record, Topic, TopicId, TransportError};
use group::Membership;
use produce::Producer;
pub use properties::Properties;
use rdkafka::admin::AdminClient;
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::KafkaError;
use read::Reader;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How a connection works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Brokers, and what else the operator wants librdkafka to do.
    pub properties: Properties,
    /// Partitions of topics that are created. Default 6.
    pub partitions: u32,
    /// Replicas of topics that are created; none: the broker's default.
    pub replication: Option<u16>,
    /// Retention of topics that are created, and the least that is accepted of those that are there. Default 7 days.
    pub retention_ms: i64,
    /// Largest record, key and value. Default 1,000,000 less what a batch adds.
    pub record_bytes: usize,
    /// Time for an acknowledgement, and for every other answer. Default 10 s.
    pub timeout: Duration,
    /// Which partitions a reader reads.
    pub share: Share,
}

/// Which partitions of each topic one reader reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Share {
    /// All.
    All,
    /// Every partition whose number leaves `member` when divided by `members`: fixed, as a StatefulSet's ordinals are.
    Fixed {
        /// This one, from 0.
        member: u32,
        /// How many there are.
        members: u32,
    },
    /// What the consumer group of this name gives it.
    Group(String),
}

/// What a batch adds to one record, with room to spare.
const RECORD_OVERHEAD: usize = 16 << 10;
/// What brokers take as one batch without being told otherwise (1 MiB and 12 bytes of framing), less than that.
const BATCH_BYTES: usize = 1_000_000;

impl Options {
    /// The defaults.
    pub fn new(properties: Properties) -> Self {
        Options {
            properties,
            partitions: 6,
            replication: None,
            retention_ms: 7 * schemas::time::DAY_MS,
            record_bytes: BATCH_BYTES - RECORD_OVERHEAD,
            timeout: Duration::from_secs(10),
            share: Share::All,
        }
    }

    /// Largest batch of the producer, and so the least that topics must take.
    fn batch_bytes(&self) -> usize {
        (self.record_bytes + RECORD_OVERHEAD).max(BATCH_BYTES)
    }
}

/// A connection to one cluster. Threads and sockets begin with what is first asked of it.
pub struct Kafka {
    options: Options,
    producer: Producer,
    reader: OnceLock<Reader>,
    membership: OnceLock<Membership>,
}

impl Kafka {
    /// A connection to be. Errors: a property that librdkafka does not know, or a value that it does not take.
    pub fn new(options: Options) -> Result<Arc<Kafka>, TransportError> {
        // A client that is made and dropped tells of a wrong property before anything else is done.
        options.properties.client::<_, AdminClient<Context>>("check", &[], Context)?;
        let producer = Producer::new(&options)?;
        Ok(Arc::new(Kafka { options, producer, reader: OnceLock::new(), membership: OnceLock::new() }))
    }

    /// Creates the topics that are not there, and checks the settings of all: `cleanup.policy=delete`, retention, sizes, times.
    pub fn prepare(&self, names: &[&'static str]) -> Result<(), TransportError> {
        settings::prepare(&self.options, names)
    }

    /// Topics as they are now. All that one reader will read must be asked for together: a group is joined for all of them.
    pub fn topics(self: &Arc<Self>, names: &[&'static str]) -> Result<Vec<Arc<KafkaTopic>>, TransportError> {
        let reader = self.reader()?;
        let described = describe::topics(reader.client(), &self.options, names)?;
        if let Share::Group(name) = &self.options.share
            && self.membership.get().is_none()
        {
            let _ = self.membership.set(Membership::join(&self.options, name, names)?);
        }
        let topic = |(name, found): (&&'static str, describe::Described)| {
            let id = found.id.clone();
            Arc::new(KafkaTopic { kafka: self.clone(), name, id, partitions: found.partitions })
        };
        Ok(names.iter().zip(described).map(topic).collect())
    }

    fn reader(&self) -> Result<&Reader, TransportError> {
        if self.reader.get().is_none() {
            let _ = self.reader.set(Reader::new(&self.options)?);
        }
        self.reader.get().ok_or_else(|| self.options.properties.late("make a consumer for", Duration::ZERO))
    }
}

/// One topic of a cluster.
pub struct KafkaTopic {
    kafka: Arc<Kafka>,
    name: &'static str,
    id: TopicId,
    partitions: u32,
}

impl KafkaTopic {
    fn known(&self, partition: u32) -> Result<i32, TransportError> {
        let missing = || TransportError::NoPartition { topic: self.name.to_owned(), partition };
        i32::try_from(partition).ok().filter(|_| partition < self.partitions).ok_or_else(missing)
    }
}

impl Topic for KafkaTopic {
    fn name(&self) -> &str {
        self.name
    }

    fn id(&self) -> TopicId {
        self.id.clone()
    }

    fn partitions(&self) -> u32 {
        self.partitions
    }

    fn produce(&self, records: &[Record]) -> Result<Vec<Position>, TransportError> {
        self.kafka.producer.produce(self.name, self.partitions, records)
    }

    fn fetch(&self, partition: u32, from: u64, max_bytes: usize) -> Result<Fetched, TransportError> {
        let number = self.known(partition)?;
        let reader = self.kafka.reader()?;
        let deadline = Instant::now() + self.kafka.options.timeout;
        let end = || {
            let bounds = self.bounds(partition)?;
            if from < bounds.start || from > bounds.end {
                return Err(TransportError::OutOfRange { topic: self.name.to_owned(), partition, from, bounds });
            }
            Ok(bounds.end)
        };
        let fetch = |end| reader.fetch(self.name, number, from, end, max_bytes);
        let wait = || {
            let left = Instant::now() < deadline;
            if left {
                std::thread::sleep(read::RETRY);
            }
            left
        };
        let late = || self.kafka.options.properties.late("fetch", self.kafka.options.timeout);
        persist(from, reader.known_end(self.name, number, from)?, end, fetch, wait)?.ok_or_else(late)
    }

    fn bounds(&self, partition: u32) -> Result<Bounds, TransportError> {
        let number = self.known(partition)?;
        self.kafka.reader()?.bounds(self.name, number)
    }

    fn verify(&self) -> Result<(), TransportError> {
        let found = describe::topics(self.kafka.reader()?.client(), &self.kafka.options, &[self.name])?;
        let Some(found) = found.into_iter().next() else { return Ok(()) };
        if found.id != self.id {
            return Err(TransportError::Recreated { topic: self.name.to_owned(), was: self.id.clone(), now: found.id });
        }
        if found.partitions != self.partitions {
            let (have, want) = (found.partitions, self.partitions);
            return Err(TransportError::Grown { topic: self.name.to_owned(), have, want });
        }
        Ok(())
    }

    fn assigned(&self) -> Result<BTreeSet<u32>, TransportError> {
        let all = 0..self.partitions;
        let mine: BTreeSet<u32> = match &self.kafka.options.share {
            Share::All => all.collect(),
            Share::Fixed { member, members } => all.filter(|p| p % members.max(&1) == *member).collect(),
            Share::Group(_) => self.kafka.membership.get().map(|m| m.held(self.name)).unwrap_or_default(),
        };
        self.kafka.reader()?.keep(self.name, &mine);
        Ok(mine)
    }

    fn published(&self, partition: u32, next: u64) {
        if let Some(membership) = self.kafka.membership.get() {
            membership.commit(self.name, partition, next);
        }
    }
}

/// Messages from `from` on, as `fetch` gives them up to an end, which is `known` or asked for. Of what is there nothing is no answer:
/// the consumer has lost its place, and whoever asked would take it for a hole, or for the end. Then the end is asked for anew, as
/// long as `wait` says that there is time. None: there is no more.
fn persist(
    from: u64,
    mut known: Option<u64>,
    mut end: impl FnMut() -> Result<u64, TransportError>,
    mut fetch: impl FnMut(u64) -> Result<Fetched, TransportError>,
    mut wait: impl FnMut() -> bool,
) -> Result<Option<Fetched>, TransportError> {
    loop {
        let end = known.take().map_or_else(&mut end, Ok)?;
        let fetched = fetch(end)?;
        if fetched.next > from || from >= end {
            return Ok(Some(fetched));
        }
        if !wait() {
            return Ok(None);
        }
    }
}

/// Where librdkafka's own words go.
pub(super) struct Context;

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // What it means for us is said where it is handled; a broker that is away says this every second.
        tracing::debug!(%error, reason, "librdkafka");
    }
}

impl ConsumerContext for Context {}

fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
            tracing::warn!(facility, message, "librdkafka");
        }
        RDKafkaLogLevel::Error
        | RDKafkaLogLevel::Warning
        | RDKafkaLogLevel::Notice
        | RDKafkaLogLevel::Info
        | RDKafkaLogLevel::Debug => tracing::debug!(facility, message, "librdkafka"),
    }
}

impl Properties {
    /// A client of ours: what the operator gave, `ours` over it.
    fn client<C, T>(&self, role: &str, ours: &[(&str, &str)], context: C) -> Result<T, TransportError>
    where
        C: ClientContext,
        T: FromClientConfigAndContext<C>,
    {
        self.config(role, ours).create_with_context(context).map_err(|error| match error {
            KafkaError::ClientConfig(_, reason, key, _) => TransportError::Property { key, reason },
            // What librdkafka says of files that it cannot read, or of pairs of properties that do not go together.
            KafkaError::ClientCreation(reason) => TransportError::Property { key: "kafka".to_owned(), reason },
            source => self.failed("make a client for", source),
        })
    }

    fn failed(&self, what: &'static str, source: KafkaError) -> TransportError {
        TransportError::Kafka { what, brokers: self.brokers().to_owned(), source }
    }

    fn late(&self, what: &'static str, wait: Duration) -> TransportError {
        TransportError::Late { what, brokers: self.brokers().to_owned(), wait }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn upto(next: u64) -> Result<Fetched, TransportError> {
        Ok(Fetched { messages: Vec::new(), next, lost: Vec::new() })
    }

    #[test]
    fn a_fetch_that_lost_its_place_asks_for_the_end_and_tries_again() {
        let (mut asked, mut ends) = (0, Vec::new());
        let end = || {
            asked += 1;
            Ok(9)
        };
        let fetch = |end| {
            ends.push(end);
            upto(if ends.len() < 3 { 5 } else { 9 })
        };
        assert_eq!(persist(5, Some(7), end, fetch, || true).unwrap().unwrap().next, 9);
        assert_eq!((asked, ends), (2, vec![7, 9, 9]));
    }

    #[test]
    fn a_place_that_is_not_there_any_more_is_an_error() {
        let bounds = Bounds { start: 6, end: 9 };
        let gone = || Err(TransportError::OutOfRange { topic: "t".into(), partition: 0, from: 5, bounds });
        let error = persist(5, Some(7), gone, |_| upto(5), || true).unwrap_err();
        assert!(matches!(error, TransportError::OutOfRange { .. }), "{error}");
    }

    #[test]
    fn nothing_is_an_answer_at_the_end_alone() {
        assert_eq!(persist(5, None, || Ok(5), |_| upto(5), || unreachable!()).unwrap().unwrap().next, 5);
        let mut tries = 0;
        let wait = || {
            tries += 1;
            tries < 4
        };
        assert_eq!(persist(5, None, || Ok(6), |_| upto(5), wait).unwrap(), None);
        assert_eq!(tries, 4);
    }
}
