//! Messages from a broker, by offsets that the caller names: one consumer, one queue a partition.

use super::{Bounds, Context, Fetched, Options, TransportError};
use crate::transport::Message;
use bytes::Bytes;
use rdkafka::client::Client;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One consumer for all that is read.
pub(super) struct Reader {
    options: Options,
    consumer: Arc<BaseConsumer<Context>>,
    parts: Mutex<Parts>,
}

/// Partitions by topic and number, each with a lock of its own: one that waits delays no other.
type Parts = HashMap<(&'static str, i32), Arc<Mutex<Part>>>;

/// One partition that is read.
struct Part {
    queue: PartitionQueue<Context>,
    /// The offset after the last message that the queue gave; none: the consumer is not sent there yet.
    next: Option<u64>,
    /// The end that was heard of last.
    end: u64,
    /// Bytes of the last answer: the next one is much the same.
    bytes: usize,
}

impl Reader {
    pub(super) fn new(options: &Options) -> Result<Self, TransportError> {
        let consumer: BaseConsumer<Context> = options.properties.client(
            "reader",
            &[
                // librdkafka wants a name; nothing is ever joined or committed under it.
                ("group.id", "strandline-reader"),
                ("enable.auto.commit", "false"),
                ("enable.auto.offset.store", "false"),
                // Never skip by itself: what is out of range is the caller's to judge.
                ("auto.offset.reset", "error"),
                // What the end of the log is, is asked; nobody writes these topics in transactions.
                ("isolation.level", "read_uncommitted"),
                // A partition's queue, so that all of them are bounded.
                ("queued.max.messages.kbytes", "16384"),
                ("queued.min.messages", "20000"),
                // A queue that was full is filled again at once when it is read, not after the default second.
                ("fetch.queue.backoff.ms", "10"),
                ("fetch.wait.max.ms", "100"),
            ],
            Context,
        )?;
        Ok(Reader { options: options.clone(), consumer: Arc::new(consumer), parts: Mutex::default() })
    }

    pub(super) fn client(&self) -> &Client<Context> {
        self.consumer.client()
    }

    /// Low and high watermark. Tries again while a partition moves between brokers.
    pub(super) fn bounds(&self, topic: &'static str, partition: i32) -> Result<Bounds, TransportError> {
        let deadline = Instant::now() + self.options.timeout;
        // A part of the time at first, more each time: the broker that is asked may be gone.
        let mut wait = self.options.timeout / 4;
        loop {
            // Events of the consumer, which nobody else serves.
            if let Some(Err(error)) = self.consumer.poll(Duration::ZERO) {
                tracing::debug!(%error, "consumer");
            }
            let left = || deadline.saturating_duration_since(Instant::now());
            match self.consumer.fetch_watermarks(topic, partition, left().min(wait)) {
                Ok((start, end)) => {
                    return Ok(Bounds { start: u64::try_from(start).unwrap_or(0), end: u64::try_from(end).unwrap_or(0) });
                }
                Err(error) if moving(&error) && left() > RETRY => {
                    // Who reads nothing learns of a new leader only when it asks.
                    if let Err(error) = self.consumer.fetch_metadata(Some(topic), left().min(wait)) {
                        tracing::debug!(%error, topic, "no word on its leaders");
                    }
                    std::thread::sleep(left().min(RETRY));
                    wait *= 2;
                }
                Err(error) => return Err(self.options.properties.failed("ask for offsets", error)),
            }
        }
    }

    /// An end of the partition as it was heard of, where the consumer is at `from` and that is before it: who reads on need not ask
    /// for the bounds, which takes longer than what the consumer has already. None: they are to be asked for.
    pub(super) fn known_end(&self, topic: &'static str, partition: i32, from: u64) -> Result<Option<u64>, TransportError> {
        let part = self.part(topic, partition)?;
        let part = part.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((part.next == Some(from) && from < part.end).then_some(part.end))
    }

    /// Messages of `[from, end)`; the caller knows that the partition holds them. None of them where the consumer has lost its
    /// place: then the bounds are to be asked for anew.
    pub(super) fn fetch(
        &self,
        topic: &'static str,
        partition: i32,
        from: u64,
        end: u64,
        max_bytes: usize,
    ) -> Result<Fetched, TransportError> {
        let mut out = Taken { next: from, ..Taken::default() };
        if from >= end {
            return Ok(out.fetched());
        }
        let part = self.part(topic, partition)?;
        let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
        self.go_to(&mut part, topic, partition, from)?;
        part.end = end;
        out.bytes.reserve(part.bytes);
        let deadline = Instant::now() + self.options.timeout;
        while out.next < end && (out.places.is_empty() || out.bytes.len() < max_bytes) {
            // The first one is waited for; after it, a short moment, since the broker sends what it has in pieces.
            let wait = if out.places.is_empty() { RETRY } else { Duration::from_millis(5) };
            match part.queue.poll(wait) {
                Some(Ok(message)) => {
                    let Ok(offset) = u64::try_from(message.offset()) else { continue };
                    out.add(offset, &message);
                    part.next = Some(offset + 1);
                }
                Some(Err(error)) => {
                    // Sent there anew at the next try.
                    part.next = None;
                    if !moving(&error) && !gone(&error) {
                        return Err(self.options.properties.failed("fetch", error));
                    }
                    break;
                }
                None if !out.places.is_empty() => break,
                None if Instant::now() >= deadline => {
                    part.next = None;
                    return Err(self.options.properties.late("fetch", self.options.timeout));
                }
                None => {
                    if let Some(Err(error)) = self.consumer.poll(Duration::ZERO) {
                        tracing::debug!(%error, "consumer");
                    }
                }
            }
        }
        part.bytes = out.bytes.len();
        Ok(out.fetched())
    }

    /// Stops fetching what this reader has no use for any more.
    pub(super) fn keep(&self, topic: &'static str, partitions: &BTreeSet<u32>) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = |(name, number): &(&'static str, i32)| {
            *name == topic && !u32::try_from(*number).is_ok_and(|number| partitions.contains(&number))
        };
        let names: Vec<_> = parts.keys().copied().filter(gone).collect();
        for (topic, number) in names {
            parts.remove(&(topic, number));
            if let Err(error) = self.consumer.incremental_unassign(&one(topic, number, Offset::Invalid)) {
                tracing::debug!(%error, topic, number, "cannot stop reading");
            }
        }
    }

    fn part(&self, topic: &'static str, partition: i32) -> Result<Arc<Mutex<Part>>, TransportError> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = parts.get(&(topic, partition)) {
            return Ok(part.clone());
        }
        // Before it is assigned, so that the consumer's own queue never gets one of its messages.
        let queue = self
            .consumer
            .split_partition_queue(topic, partition)
            .ok_or_else(|| self.options.properties.late("make a queue for", Duration::ZERO))?;
        let part = Arc::new(Mutex::new(Part { queue, next: None, end: 0, bytes: 0 }));
        parts.insert((topic, partition), part.clone());
        Ok(part)
    }

    /// Has the consumer fetch from `from` on, where it does not already.
    fn go_to(&self, part: &mut Part, topic: &'static str, partition: i32, from: u64) -> Result<(), TransportError> {
        if part.next == Some(from) {
            return Ok(());
        }
        let failed = |error| self.options.properties.failed("go to an offset", error);
        let held = self.consumer.assignment().map_err(failed)?;
        if held.find_partition(topic, partition).is_some() {
            self.consumer.incremental_unassign(&one(topic, partition, Offset::Invalid)).map_err(failed)?;
        }
        // What the queue still holds of before is older than `from`, or comes again: it is filtered by offset.
        while part.queue.poll(Duration::ZERO).is_some() {}
        let at = Offset::Offset(i64::try_from(from).unwrap_or(i64::MAX));
        self.consumer.incremental_assign(&one(topic, partition, at)).map_err(failed)?;
        part.next = Some(from);
        Ok(())
    }
}

/// Time between two tries.
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// What was taken from a queue, one message after the other in one buffer.
#[derive(Default)]
struct Taken {
    bytes: Vec<u8>,
    places: Vec<Place>,
    next: u64,
}

struct Place {
    offset: u64,
    at_ms: i64,
    key: usize,
    value: usize,
}

impl Taken {
    /// Adds a message, unless it is not the next one: a log may deliver what lies before the offset that was asked for.
    fn add(&mut self, offset: u64, message: &BorrowedMessage<'_>) {
        if offset < self.next {
            return;
        }
        let (key, value) = (message.key().unwrap_or_default(), message.payload().unwrap_or_default());
        self.next = offset + 1;
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        let at_ms = message.timestamp().to_millis().unwrap_or(0);
        self.places.push(Place { offset, at_ms, key: key.len(), value: value.len() });
    }

    fn fetched(mut self) -> Fetched {
        // Messages may be kept for a while: not with room that nothing fills.
        self.bytes.shrink_to_fit();
        let mut bytes = Bytes::from(self.bytes);
        let message = |Place { offset, at_ms, key, value }| Message {
            offset,
            key: bytes.split_to(key),
            value: bytes.split_to(value),
            at_ms,
        };
        Fetched { messages: self.places.into_iter().map(message).collect(), next: self.next, lost: Vec::new() }
    }
}

fn one(topic: &str, partition: i32, offset: Offset) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    // Fails only for an offset that is no offset.
    let _ = list.add_partition_offset(topic, partition, offset);
    list
}

/// Whether an error says that what was asked for is not there, which the bounds tell better.
fn gone(error: &KafkaError) -> bool {
    matches!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::OffsetOutOfRange | RDKafkaErrorCode::AutoOffsetReset))
}

/// Whether an error goes away when a partition has its leader again.
fn moving(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::NotLeaderForPartition
                | RDKafkaErrorCode::LeaderNotAvailable
                | RDKafkaErrorCode::FencedLeaderEpoch
                | RDKafkaErrorCode::UnknownLeaderEpoch
                | RDKafkaErrorCode::OffsetNotAvailable
                | RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::AllBrokersDown
                | RDKafkaErrorCode::Resolve
                | RDKafkaErrorCode::RequestTimedOut
                | RDKafkaErrorCode::OperationTimedOut
                | RDKafkaErrorCode::PartitionEOF
        )
    )
}
