//! The embedded transport: a durable log on local disk, for the demo and for single machines (DESIGN D7).
//!
//! ```text
//! <root>/lock                                   held by the one writer
//! <root>/<topic>/topic                          id and number of partitions, written once
//! <root>/<topic>/<partition>/<base offset>.log  segments of frames
//! <root>/<topic>/<partition>/end                the offset below which all is durable; what readers go by
//!
//! frame: length u32 | crc32 u32 | offset u64 | at_ms i64 | key length u32 | key | value      (little endian)
//!        the length counts what follows the crc, the crc covers it
//! ```
//!
//! * *Taken* means fsynced. Producers that come together share one fsync (group commit): the first one in syncs for all that
//!   have written by then.
//! * `end` is written after the fsync that it tells of, so it never runs ahead of the disk. Readers, also in other processes,
//!   see offsets below it only. It is not itself fsynced: after a loss of power it may be old, and the next open corrects it.
//! * On open the last segment is checked frame by frame and cut after its last whole frame. What is cut was never taken
//!   (above `end`); should the disk have lost frames below `end`, their offsets are not given away again: a new segment
//!   begins at `end`, and the hole is logged and counted.
//! * A failed fsync poisons the topic until it is opened again: no one knows what the disk holds. A full disk does not: the
//!   file is cut back, nothing of the batch is taken.
//! * Retention drops whole old segments by bytes and by age; the log start moves, offsets stay.

mod partition;

use super::{Bounds, Fetched, Position, Record, Topic, TopicId, TransportError, partition_of};
use partition::{Partition, io};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a log that is locked is waited for: a process that is about to end has it, or a child that is not yet another program.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// Bounds of the embedded log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// A segment is closed at this size. Default 64 MiB.
    pub segment_bytes: u64,
    /// Largest record, key and value. Default 1 MiB.
    pub record_bytes: usize,
    /// Oldest segments are dropped while a partition is larger than this. Default 1 GiB.
    pub retention_bytes: u64,
    /// Segments are dropped when all of their messages are older than this. Default 7 days.
    pub retention_ms: i64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            segment_bytes: 64 << 20,
            record_bytes: 1 << 20,
            retention_bytes: 1 << 30,
            retention_ms: 7 * schemas::time::DAY_MS,
        }
    }
}

/// A topic to be there after opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicSpec<'a> {
    /// Name.
    pub name: &'a str,
    /// Partitions, if it has to be created.
    pub partitions: u32,
}

/// An open log.
#[derive(Debug)]
pub struct Log {
    topics: BTreeMap<String, Arc<LocalTopic>>,
    root: PathBuf,
    /// The lock goes when the file is closed, also by `kill -9`.
    _lock: Option<File>,
}

impl Log {
    /// Opens a log for writing, creates what is missing and repairs a torn end.
    pub fn open(root: &Path, topics: &[TopicSpec<'_>], options: Options) -> Result<Log, TransportError> {
        fs::create_dir_all(root).map_err(io("create", root))?;
        let path = root.join("lock");
        let lock = File::create(&path).map_err(io("create", &path))?;
        let began = Instant::now();
        while lock.try_lock().is_err() {
            if began.elapsed() > LOCK_WAIT {
                return Err(TransportError::Locked { path: root.to_owned() });
            }
            std::thread::sleep(LOCK_WAIT / 50);
        }
        for spec in topics {
            create(root, *spec)?;
        }
        Self::load(root, options, Some(lock))
    }

    /// Opens a log that another process may be writing, to read it. Repairs nothing.
    pub fn reader(root: &Path, options: Options) -> Result<Log, TransportError> {
        Self::load(root, options, None)
    }

    fn load(root: &Path, options: Options, lock: Option<File>) -> Result<Log, TransportError> {
        let mut topics = BTreeMap::new();
        for entry in fs::read_dir(root).map_err(io("list", root))? {
            let dir = entry.map_err(io("list", root))?.path();
            let Some(name) = dir.file_name().and_then(|n| n.to_str()).map(str::to_owned) else { continue };
            if dir.join("topic").exists() {
                topics.insert(name.clone(), Arc::new(LocalTopic::open(name, dir, options, lock.is_some())?));
            }
        }
        Ok(Log { topics, root: root.to_owned(), _lock: lock })
    }

    /// One of its topics.
    pub fn topic(&self, name: &str) -> Result<Arc<LocalTopic>, TransportError> {
        let missing = || TransportError::NoTopic { topic: name.to_owned(), path: self.root.clone() };
        self.topics.get(name).cloned().ok_or_else(missing)
    }

    /// Drops old segments of every topic. Returns how many messages went.
    pub fn retain(&self, now_ms: i64) -> Result<u64, TransportError> {
        self.topics.values().map(|topic| topic.retain(now_ms)).sum()
    }
}

/// How many partitions a topic has in the log at `root`; none where it is not there.
pub fn partitions(root: &Path, name: &str) -> Result<Option<u32>, TransportError> {
    let dir = root.join(name);
    if dir.join("topic").exists() { read_topic_file(&dir).map(|(_, count)| Some(count)) } else { Ok(None) }
}

/// One topic of the log.
#[derive(Debug)]
pub struct LocalTopic {
    name: String,
    id: TopicId,
    dir: PathBuf,
    options: Options,
    writable: bool,
    partitions: Vec<Mutex<Partition>>,
    commit: Mutex<Commit>,
    synced: Condvar,
}

/// Who has written and what is durable, counted in batches.
#[derive(Debug, Default)]
struct Commit {
    written: u64,
    durable: u64,
    syncing: bool,
    poisoned: bool,
}

impl LocalTopic {
    fn open(name: String, dir: PathBuf, options: Options, writable: bool) -> Result<Self, TransportError> {
        let (id, count) = read_topic_file(&dir)?;
        let partitions = (0..count)
            .map(|p| Partition::open(dir.join(format!("{p:05}")), options, writable).map(Mutex::new))
            .collect::<Result<_, _>>()?;
        Ok(LocalTopic { name, id, dir, options, writable, partitions, commit: Mutex::default(), synced: Condvar::new() })
    }

    fn partition(&self, partition: u32) -> Result<MutexGuard<'_, Partition>, TransportError> {
        let missing = || TransportError::NoPartition { topic: self.name.clone(), partition };
        self.partitions.get(partition as usize).map(lock).ok_or_else(missing)
    }

    fn retain(&self, now_ms: i64) -> Result<u64, TransportError> {
        if !self.writable {
            return Err(TransportError::ReadOnly { path: self.dir.clone() });
        }
        self.partitions.iter().map(|p| lock(p).retain(now_ms)).sum()
    }

    /// Frames into files, not yet durable. Either all of the batch is written or the files are as before.
    fn write(&self, records: &[Record]) -> Result<Vec<Position>, TransportError> {
        let mut positions = vec![Position { partition: 0, offset: 0 }; records.len()];
        let mut by_partition: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, record) in records.iter().enumerate() {
            let bytes = record.key.len() + record.value.len();
            if bytes > self.options.record_bytes {
                return Err(TransportError::TooLarge { bytes, limit: self.options.record_bytes });
            }
            by_partition.entry(partition_of(&record.key, self.partitions())).or_default().push(index);
        }
        let mut done = Vec::new();
        for (number, indexes) in by_partition {
            // All of the batch's partitions stay locked until it is written, so that undoing takes back nobody else's.
            let mut partition = self.partition(number)?;
            let before = partition.mark();
            let result = partition.append(indexes.iter().map(|i| &records[*i]));
            done.push((partition, before));
            match result {
                Ok(first) => {
                    for (n, index) in indexes.into_iter().enumerate() {
                        positions[index] = Position { partition: number, offset: first + n as u64 };
                    }
                }
                Err(error) => {
                    for (mut partition, before) in done {
                        partition.undo(before)?;
                    }
                    return Err(error);
                }
            }
        }
        // Counted while the partitions are still locked: a batch that is counted is written in full.
        lock(&self.commit).written += 1;
        Ok(positions)
    }

    /// Returns when every batch written before the call is durable.
    fn commit(&self) -> Result<(), TransportError> {
        let poisoned = || TransportError::Poisoned { path: self.dir.clone() };
        let mut commit = lock(&self.commit);
        let mine = commit.written;
        loop {
            if commit.durable >= mine {
                return Ok(());
            }
            if commit.poisoned {
                return Err(poisoned());
            }
            if commit.syncing {
                commit = self.synced.wait(commit).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            commit.syncing = true;
            let upto = commit.written;
            drop(commit);
            let result = self.partitions.iter().try_for_each(partition::sync);
            commit = lock(&self.commit);
            commit.syncing = false;
            match &result {
                Ok(()) => commit.durable = commit.durable.max(upto),
                Err(_) => commit.poisoned = true,
            }
            self.synced.notify_all();
            result?;
        }
    }
}

impl Topic for LocalTopic {
    fn name(&self) -> &str {
        &self.name
    }

    fn id(&self) -> TopicId {
        self.id.clone()
    }

    fn partitions(&self) -> u32 {
        self.partitions.len() as u32
    }

    fn produce(&self, records: &[Record]) -> Result<Vec<Position>, TransportError> {
        if !self.writable {
            return Err(TransportError::ReadOnly { path: self.dir.clone() });
        }
        if lock(&self.commit).poisoned {
            return Err(TransportError::Poisoned { path: self.dir.clone() });
        }
        let positions = self.write(records)?;
        self.commit()?;
        Ok(positions)
    }

    fn fetch(&self, partition: u32, from: u64, max_bytes: usize) -> Result<Fetched, TransportError> {
        let mut log = self.partition(partition)?;
        let bounds = log.bounds()?;
        if from < bounds.start || from > bounds.end {
            return Err(TransportError::OutOfRange { topic: self.name.clone(), partition, from, bounds });
        }
        log.read(from, bounds.end, max_bytes)
    }

    fn bounds(&self, partition: u32) -> Result<Bounds, TransportError> {
        self.partition(partition)?.bounds()
    }

    fn verify(&self) -> Result<(), TransportError> {
        let (now, _) = read_topic_file(&self.dir)?;
        if now == self.id {
            return Ok(());
        }
        Err(TransportError::Recreated { topic: self.name.clone(), was: self.id.clone(), now })
    }
}

impl LocalTopic {
    /// Drops what a spool has no use for any more: segments of `partition` whose messages all lie below `upto`, and the last
    /// one too where that is all of it.
    pub(super) fn trim(&self, partition: u32, upto: u64) -> Result<(), TransportError> {
        self.partition(partition)?.trim(upto)
    }

    /// The first offset of the segment after the one that holds `offset`; none where that is the last.
    pub(super) fn next_segment(&self, partition: u32, offset: u64) -> Result<Option<u64>, TransportError> {
        Ok(self.partition(partition)?.next_segment(offset))
    }
}

/// A lock whose holder panicked is taken all the same: every state behind these locks is valid between statements that
/// can fail, and a poisoned topic says so itself.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a topic, or checks that the one that is there fits.
fn create(root: &Path, spec: TopicSpec<'_>) -> Result<(), TransportError> {
    let fits = (1..=200).contains(&spec.name.len())
        && spec.name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        && !spec.name.starts_with('.');
    if !fits {
        return Err(TransportError::BadName(spec.name.to_owned()));
    }
    let dir = root.join(spec.name);
    let file = dir.join("topic");
    if file.exists() {
        let (_, have) = read_topic_file(&dir)?;
        if have != spec.partitions {
            return Err(TransportError::Partitions { topic: spec.name.to_owned(), have, want: spec.partitions });
        }
        return Ok(());
    }
    for partition in 0..spec.partitions {
        let path = dir.join(format!("{partition:05}"));
        fs::create_dir_all(&path).map_err(io("create", &path))?;
        // A directory without its topic file is what a crash here left behind; its offsets were never given to anyone.
        for entry in fs::read_dir(&path).map_err(io("list", &path))? {
            let stale = entry.map_err(io("list", &path))?.path();
            fs::remove_file(&stale).map_err(io("remove", &stale))?;
        }
    }
    let draw = |n: u8| RandomState::new().hash_one((n, std::process::id(), spec.name));
    let text = format!("id {:016x}{:016x}\npartitions {}\n", draw(0), draw(1), spec.partitions);
    partition::write_whole(&file, text.as_bytes())?;
    partition::sync_dir(root)
}

fn read_topic_file(dir: &Path) -> Result<(TopicId, u32), TransportError> {
    let path = dir.join("topic");
    let text = fs::read_to_string(&path).map_err(io("read", &path))?;
    let mut lines = text.lines();
    let id = lines.next().and_then(|l| l.strip_prefix("id ")).and_then(|id| TopicId::parse(id).ok());
    let count = lines.next().and_then(|l| l.strip_prefix("partitions ")).and_then(|n| n.parse().ok());
    let damaged = TransportError::Damaged { path, at: 0, what: "not `id` and `partitions`" };
    id.zip(count).filter(|(_, n)| (1..=10_000).contains(n)).ok_or(damaged)
}

#[cfg(test)]
mod tests;
