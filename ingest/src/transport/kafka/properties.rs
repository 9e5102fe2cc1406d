//! What the operator gives librdkafka: brokers, TLS, SASL and the like, passed through; never shown.

use rdkafka::ClientConfig;
use std::collections::BTreeMap;
use std::fmt;

/// Properties of librdkafka. `Debug` shows their names only: some values are secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Properties {
    brokers: String,
    given: BTreeMap<String, String>,
}

/// Properties that the promises of this transport stand on.
const OURS: &[&str] = &[
    "acks",
    "allow.auto.create.topics",
    "auto.offset.reset",
    "bootstrap.servers",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
    "isolation.level",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.max.bytes",
    "message.timeout.ms",
    "metadata.broker.list",
    "partition.assignment.strategy",
    "request.required.acks",
    "transactional.id",
];

/// The role that sends.
pub(super) const PRODUCER: &str = "producer";
/// A property with two names.
const COMPRESSION: [&str; 2] = ["compression.type", "compression.codec"];

impl Properties {
    /// `brokers` as `host:port,host:port`. Errors: the name of a property that is ours to set.
    pub fn new(brokers: &str, given: BTreeMap<String, String>) -> Result<Self, String> {
        match given.keys().find(|key| OURS.contains(&key.as_str())) {
            Some(key) => Err(key.clone()),
            None => Ok(Properties { brokers: brokers.to_owned(), given }),
        }
    }

    /// The brokers that are asked first.
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// Defaults, what was given over them, `ours` over both.
    pub(super) fn config(&self, role: &str, ours: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("client.id", format!("strandline-{role}"))
            .set("socket.keepalive.enable", "true")
            .set("reconnect.backoff.max.ms", "1000")
            // A leader that died is asked again and again until somebody asks who leads now; librdkafka does so every five minutes.
            .set("topic.metadata.refresh.interval.ms", "5000")
            .set("metadata.max.age.ms", "10000")
            .set("log.connection.close", "false");
        if role == PRODUCER && !COMPRESSION.iter().any(|key| self.given.contains_key(*key)) {
            config.set(COMPRESSION[0], "zstd");
        }
        for (key, value) in &self.given {
            config.set(key, value);
        }
        config.set("bootstrap.servers", &self.brokers).set("allow.auto.create.topics", "false");
        for (key, value) in ours {
            config.set(*key, *value);
        }
        config
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Properties")
            .field("brokers", &self.brokers)
            .field("given", &self.given.keys().collect::<Vec<_>>())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn messages_are_packed_with_zstd_unless_the_operator_says_otherwise() {
        let packing = |role, given: &[(&str, &str)]| {
            let given = given.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            let config = Properties::new("a:1", given).unwrap().config(role, &[]);
            let all = config.config_map().into_iter();
            let found: Vec<String> = all.filter(|(key, _)| key.starts_with("compression")).map(|(_, v)| v.to_string()).collect();
            found
        };
        assert_eq!(packing(PRODUCER, &[]), ["zstd"]);
        assert_eq!(packing(PRODUCER, &[("compression.codec", "lz4")]), ["lz4"]);
        assert!(packing("reader", &[]).is_empty());
    }

    #[test]
    fn secrets_are_not_shown_and_ours_are_refused() {
        let given = |key: &str| BTreeMap::from([(key.to_owned(), "hush".to_owned())]);
        let properties = Properties::new("a:1", given("sasl.password"));
        let shown = format!("{properties:?}");
        assert!(shown.contains("sasl.password") && !shown.contains("hush"), "{shown}");
        assert_eq!(Properties::new("a:1", given("acks")), Err("acks".to_owned()));
    }
}
