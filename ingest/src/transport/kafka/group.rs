//! A consumer group, for one thing only: which partitions are whose. Nothing is read through it.
//!
//! The members' assignment is cooperative, so that a partition that stays is not disturbed. Safety does not stand on it: two
//! sinks that both believe to hold a partition meet at the lake's compare-and-swap (DESIGN D2). It is polled by whoever asks what
//! is held: a sink that hangs loses its partitions after `max.poll.interval.ms`, and has lost nothing else.

use super::{Options, TransportError, log};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Offset, TopicPartitionList};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// This process's place in a group.
pub(super) struct Membership {
    consumer: BaseConsumer<Held>,
}

/// Partitions held now, by topic.
#[derive(Default)]
struct Held(Mutex<BTreeMap<String, BTreeSet<u32>>>);

impl ClientContext for Held {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "librdkafka");
    }
}

impl ConsumerContext for Held {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, what: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let cooperative = matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative);
        let gained = matches!(what, RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS);
        let done = if gained {
            // Held, never fetched: where from does not matter.
            let at = list.set_all_offsets(Offset::End);
            let assigned = if cooperative { consumer.incremental_assign(list) } else { consumer.assign(list) };
            at.and(assigned).and_then(|()| consumer.pause(list))
        } else if cooperative {
            consumer.incremental_unassign(list)
        } else {
            consumer.unassign()
        };
        if let Err(error) = done {
            tracing::warn!(%error, "the consumer group's assignment could not be taken up; it will be given again");
        }
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for element in list.elements() {
            let of_topic = held.entry(element.topic().to_owned()).or_default();
            let Ok(partition) = u32::try_from(element.partition()) else { continue };
            if gained {
                of_topic.insert(partition)
            } else {
                of_topic.remove(&partition)
            };
        }
        tracing::info!(gained, partitions = list.count(), "the consumer group has shared its partitions out anew");
    }
}

impl Membership {
    pub(super) fn join(options: &Options, group: &str, topics: &[&str]) -> Result<Self, TransportError> {
        let consumer: BaseConsumer<Held> = options.properties.client(
            "group",
            &[
                ("group.id", group),
                ("enable.auto.commit", "false"),
                ("enable.auto.offset.store", "false"),
                ("auto.offset.reset", "latest"),
                ("partition.assignment.strategy", "cooperative-sticky"),
            ],
            Held::default(),
        )?;
        consumer.subscribe(topics).map_err(|e| options.properties.failed("join a group at", e))?;
        Ok(Membership { consumer })
    }

    /// Partitions of a topic that are this member's now.
    pub(super) fn held(&self, topic: &str) -> BTreeSet<u32> {
        // Bounded: events come a few at a time, and what is left is for the next call.
        for _ in 0..100 {
            match self.consumer.poll(Duration::ZERO) {
                None => break,
                Some(Err(error)) => tracing::debug!(%error, "consumer group"),
                Some(Ok(_)) => {}
            }
        }
        self.consumer.context().0.lock().unwrap_or_else(PoisonError::into_inner).get(topic).cloned().unwrap_or_default()
    }

    /// Tells the group how far the lake is, for whoever watches lag. Nobody reads it back, and nobody waits for it.
    pub(super) fn commit(&self, topic: &str, partition: u32, next: u64) {
        let mut list = TopicPartitionList::new();
        let (Ok(partition), Ok(next)) = (i32::try_from(partition), i64::try_from(next)) else { return };
        let told = list
            .add_partition_offset(topic, partition, Offset::Offset(next))
            .and_then(|()| self.consumer.commit(&list, CommitMode::Async));
        if let Err(error) = told {
            tracing::debug!(%error, topic, partition, "offset not committed");
        }
    }
}
