//! Records to a broker, and back when all of them are acknowledged.

use super::properties::PRODUCER;
use super::{Options, Position, Record, TransportError, log};
use crate::transport::partition_of;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message as _};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Sends batches. One librdkafka producer behind it, made when it is first needed and made anew after an error that it does not
/// recover from.
pub(super) struct Producer {
    options: Options,
    client: Mutex<Option<Arc<ThreadedProducer<Acks>>>>,
}

/// Routes each acknowledgement to the batch that waits for it.
struct Acks;

/// What a message carries to its acknowledgement.
struct Ticket {
    index: usize,
    reply: mpsc::Sender<Ack>,
}

type Ack = (usize, Result<Position, KafkaError>);

impl ClientContext for Acks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "librdkafka");
    }
}

impl ProducerContext for Acks {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let ack = match result {
            Ok(message) => match (u32::try_from(message.partition()), u64::try_from(message.offset())) {
                (Ok(partition), Ok(offset)) => Ok(Position { partition, offset }),
                // Acknowledged without an offset: a repeat that the broker recognised. Nobody reads positions to fetch by.
                _ => Ok(Position { partition: u32::try_from(message.partition()).unwrap_or(0), offset: u64::MAX }),
            },
            Err((error, _)) => Err(error.clone()),
        };
        // Nobody waits any more: the batch has failed already.
        let _ = ticket.reply.send((ticket.index, ack));
    }
}

impl Producer {
    pub(super) fn new(options: &Options) -> Result<Self, TransportError> {
        let producer = Producer { options: options.clone(), client: Mutex::new(None) };
        Ok(producer)
    }

    /// Returns when every record is acknowledged by all in-sync replicas.
    pub(super) fn produce(&self, topic: &str, partitions: u32, records: &[Record]) -> Result<Vec<Position>, TransportError> {
        for record in records {
            let (bytes, limit) = (record.key.len() + record.value.len(), self.options.record_bytes);
            if bytes > limit {
                return Err(TransportError::TooLarge { bytes, limit });
            }
        }
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let client = self.client()?;
        let (reply, acks) = mpsc::channel::<Ack>();
        let mut batch = Batch { positions: vec![None; records.len()], error: None, refused: None };
        // librdkafka ends every message after its own timeout; the rest is for its thread to say so.
        let deadline = Instant::now() + self.options.timeout + Duration::from_secs(5);
        'records: for (index, record) in records.iter().enumerate() {
            let partition = i32::try_from(partition_of(&record.key, partitions)).unwrap_or(0);
            let mut next = BaseRecord::with_opaque_to(topic, Box::new(Ticket { index, reply: reply.clone() }))
                .partition(partition)
                .key(&record.key)
                .payload(&record.value)
                .timestamp(record.at_ms);
            loop {
                match client.send(next) {
                    Ok(()) => break,
                    // Bounded: room comes with acknowledgements.
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) if Instant::now() < deadline => {
                        next = back;
                        if let Ok(ack) = acks.recv_timeout(Duration::from_millis(100)) {
                            batch.take(ack);
                        }
                    }
                    Err((error, _)) => {
                        batch.fail(error);
                        break 'records;
                    }
                }
            }
        }
        drop(reply);
        loop {
            match acks.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(ack) => batch.take(ack),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.forget();
                    return Err(self.options.properties.late("produce to", self.options.timeout));
                }
            }
        }
        if client.client().fatal_error().is_some() {
            // Sequence numbers that the broker will not take any more: a new producer begins new ones.
            self.forget();
        }
        if let Some(source) = batch.error {
            return Err(self.options.properties.failed("produce to", source));
        }
        if let Some(source) = batch.refused {
            return Err(TransportError::Refused { topic: topic.to_owned(), source });
        }
        batch
            .positions
            .into_iter()
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| self.options.properties.late("produce to", self.options.timeout))
    }

    fn client(&self) -> Result<Arc<ThreadedProducer<Acks>>, TransportError> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let timeout = self.options.timeout.as_millis().max(1000).to_string();
        let batch = self.options.batch_bytes().to_string();
        let made: ThreadedProducer<Acks> = self.options.properties.client(
            PRODUCER,
            &[
                ("enable.idempotence", "true"),
                ("acks", "all"),
                ("message.timeout.ms", &timeout),
                ("message.max.bytes", &batch),
                // Defaults would let a gigabyte wait.
                ("queue.buffering.max.kbytes", "32768"),
                ("queue.buffering.max.messages", "20000"),
            ],
            Acks,
        )?;
        let made = Arc::new(made);
        *client = Some(made.clone());
        Ok(made)
    }

    fn forget(&self) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

struct Batch {
    positions: Vec<Option<Position>>,
    /// What may pass.
    error: Option<KafkaError>,
    /// What will not, however often it is tried.
    refused: Option<KafkaError>,
}

impl Batch {
    fn take(&mut self, (index, ack): Ack) {
        match ack {
            Ok(position) => {
                if let Some(place) = self.positions.get_mut(index) {
                    *place = Some(position);
                }
            }
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: KafkaError) {
        let code = error.rdkafka_error_code();
        let refused = matches!(
            code,
            Some(
                RDKafkaErrorCode::MessageSizeTooLarge
                    | RDKafkaErrorCode::InvalidMessageSize
                    | RDKafkaErrorCode::InvalidTimestamp
                    | RDKafkaErrorCode::InvalidRecord
                    | RDKafkaErrorCode::InvalidMessage
            )
        );
        if refused { self.refused = Some(error) } else { self.error = Some(error) }
    }
}
