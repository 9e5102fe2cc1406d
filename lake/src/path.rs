//! Names of files: pure functions of what they hold, made from checked parts only, never from raw labels.

use schemas::{Timestamp, tables::Table};

/// Names one hot file. No date, clock, host or end offset is in it: that makes publishing a compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HotKey {
    /// Id of the topic's incarnation: lower-case hex, digits and `-` only.
    pub topic_id: TopicId,
    /// Partition.
    pub partition: u32,
    /// First offset that the file covers.
    pub start: u64,
}

/// Id of a topic's incarnation; a re-created topic has another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(String);

/// A topic id with characters that could leave its folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no topic id; it may have 1 to 64 letters, digits, `-` and `_`")]
pub struct BadTopicId(String);

impl TopicId {
    /// Checks an id: 1 to 64 letters, digits, `-` and `_`.
    pub fn parse(text: &str) -> Result<Self, BadTopicId> {
        let fits = (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if fits { Ok(Self(text.to_owned())) } else { Err(BadTopicId(text.chars().take(80).collect())) }
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl HotKey {
    /// Folder of the partition's files, below the lake's root.
    pub fn folder(&self, table: &Table) -> String {
        format!("_hot/{}/{}", table.name, self.part())
    }

    /// Its partition, as `topic id/partition`.
    pub fn part(&self) -> String {
        format!("{}/{:05}", self.topic_id.as_str(), self.partition)
    }

    /// The file, below the lake's root.
    pub fn path(&self, table: &Table) -> String {
        format!("{}/{:020}.parquet", self.folder(table), self.start)
    }
}

/// Names one file of a closed hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClosedKey {
    /// Start of the UTC hour.
    pub hour: Timestamp,
    /// Shard: 0 unless a table's hour is split.
    pub shard: u32,
}

impl ClosedKey {
    /// Shard 0 of the hour that holds `at`.
    pub fn of(at: Timestamp) -> Self {
        Self { hour: at.hour(), shard: 0 }
    }

    /// Folder of the hour, below the lake's root.
    pub fn folder(&self, table: &Table) -> String {
        let (date, hour) = self.hour.date_hour();
        format!("{}/date={date}/hour={hour}", table.name)
    }

    /// The file, below the lake's root.
    pub fn path(&self, table: &Table) -> String {
        format!("{}/part-{:05}.parquet", self.folder(table), self.shard)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_follow_the_design() {
        let table = schemas::tables::get("gpu_samples");
        let key = HotKey { topic_id: TopicId::parse("0af-9").unwrap(), partition: 3, start: 42 };
        assert_eq!(key.path(table), "_hot/gpu_samples/0af-9/00003/00000000000000000042.parquet");
        let key = ClosedKey::of("2026-03-02T10:59:59.999Z".parse().unwrap());
        assert_eq!(key.path(table), "gpu_samples/date=2026-03-02/hour=10/part-00000.parquet");
        assert!(TopicId::parse("../../etc").is_err());
        assert!(TopicId::parse("").is_err());
    }
}
