//! Before Kafka, on an agent's disk: what Kafka does not take now is taken here, and goes there in order later (DESIGN D3).
//!
//! ```text
//! produce ──> Kafka                          while it answers
//!        └──> spool (fsync) ──forwarder──> Kafka     while it does not, and until all of the spool is there
//! ```
//!
//! The spool is an embedded log ([`super::local`]) of one partition a topic, and beside it a mark: the offset below which all
//! is acknowledged. The mark is written after the acknowledgement and not synced: after a crash it may be old, and what is sent
//! twice is dropped when hours close, since rounds carry their sequence. The log is bounded by bytes; its oldest segments go
//! first, and what had not been forwarded of them is counted.

use super::local::{self, LocalTopic, Log, TopicSpec};
use super::{Bounds, Fetched, Position, Record, Topic, TopicId, TransportError};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How a spool works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Most bytes of each topic; the oldest go first. Default 1 GiB.
    pub bytes: u64,
    /// Largest record.
    pub record_bytes: usize,
    /// Wait after the first try that failed, doubled up to `retry_most`. Default 500 ms.
    pub retry_first: Duration,
    /// Longest wait between two tries. Default 10 s.
    pub retry_most: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            bytes: 1 << 30,
            record_bytes: local::Options::default().record_bytes,
            retry_first: Duration::from_millis(500),
            retry_most: Duration::from_secs(10),
        }
    }
}

/// What a spool has done and holds. Counters only grow.
#[derive(Debug, Default)]
pub struct Counts {
    /// Messages that went into the spool.
    pub spooled: AtomicU64,
    /// Messages that went from the spool to Kafka.
    pub forwarded: AtomicU64,
    /// Messages that the limit took before they were forwarded, or that the disk lost.
    pub dropped: AtomicU64,
    /// Messages that the broker refused for what they are.
    pub refused: AtomicU64,
    /// Messages that wait now.
    pub waiting: AtomicU64,
    /// Bytes on disk now.
    pub bytes: AtomicU64,
}

/// Where a spool forwards to: a topic, or why there is none yet. Called until it gives one.
pub type Connect = Box<dyn Fn() -> Result<Arc<dyn Topic>, TransportError> + Send + Sync>;

/// All topics of an agent, with one forwarder.
pub struct Spool {
    topics: Vec<Arc<SpooledTopic>>,
    counts: Arc<Counts>,
    stop: Arc<Stop>,
    forwarder: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    asked: Mutex<bool>,
    told: Condvar,
    now: AtomicBool,
}

/// A topic that takes what Kafka does not take now.
pub struct SpooledTopic {
    name: &'static str,
    dir: PathBuf,
    options: Options,
    connect: Connect,
    there: Mutex<Option<Arc<dyn Topic>>>,
    log: Log,
    local: Arc<LocalTopic>,
    /// Offset below which all is forwarded. Held while a batch is produced or forwarded, which keeps their order.
    mark: Mutex<u64>,
    counts: Arc<Counts>,
}

impl Spool {
    /// Opens the spool in `dir`, whose topics forward to where `connect` says, once [`Self::start`] or [`Self::forward`] is called.
    pub fn open(dir: &Path, topics: Vec<(&'static str, Connect)>, options: Options) -> Result<Spool, TransportError> {
        let counts = Arc::new(Counts::default());
        let open = |(name, connect)| SpooledTopic::open(dir, name, connect, options, counts.clone()).map(Arc::new);
        let topics = topics.into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(Spool { topics, counts, stop: Arc::default(), forwarder: None })
    }

    /// Forwards from now on, by a thread that ends when this is dropped; first what an earlier run left.
    pub fn start(mut self) -> Result<Self, TransportError> {
        let (topics, stop) = (self.topics.clone(), self.stop.clone());
        let thread = std::thread::Builder::new().name("spool".to_owned()).spawn(move || forward_all(&topics, &stop));
        let no_thread = |source| TransportError::Io { what: "start a thread for", path: PathBuf::from("spool"), source };
        self.forwarder = Some(thread.map_err(no_thread)?);
        Ok(self)
    }

    /// Forwards one piece of each topic; returns whether there was any. Errors: that of the last topic that has one.
    pub fn forward(&self) -> Result<bool, TransportError> {
        forward(&self.topics).1
    }

    /// One of its topics.
    pub fn topic(&self, name: &str) -> Option<Arc<SpooledTopic>> {
        self.topics.iter().find(|topic| topic.name == name).cloned()
    }

    /// What it has done.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Applies the limit, and looks at what waits.
    pub fn retain(&self, now_ms: i64) -> Result<(), TransportError> {
        let (mut waiting, mut bytes) = (0, 0);
        for topic in &self.topics {
            let (of_topic, size) = topic.retain(now_ms)?;
            waiting += of_topic;
            bytes += size;
        }
        self.counts.waiting.store(waiting, Ordering::Relaxed);
        self.counts.bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.stop.now.store(true, Ordering::SeqCst);
        *lock(&self.stop.asked) = true;
        self.stop.told.notify_all();
        if let Some(forwarder) = self.forwarder.take()
            && forwarder.join().is_err()
        {
            tracing::error!("the spool's forwarder had ended by a mistake of ours; what waits is on disk");
        }
    }
}

impl SpooledTopic {
    fn open(
        dir: &Path,
        name: &'static str,
        connect: Connect,
        options: Options,
        counts: Arc<Counts>,
    ) -> Result<Self, TransportError> {
        let dir = dir.join(name);
        let log = Log::open(
            &dir,
            &[TopicSpec { name, partitions: 1 }],
            local::Options {
                // Sixteen segments a spool: what goes at one time is a small part of it.
                segment_bytes: (options.bytes / 16).clamp(1, 64 << 20),
                record_bytes: options.record_bytes,
                retention_bytes: options.bytes,
                retention_ms: i64::MAX,
            },
        )?;
        let local = log.topic(name)?;
        let bounds = local.bounds(0)?;
        let told = read_mark(&dir.join("forwarded"));
        let mark = told.unwrap_or(bounds.start).min(bounds.end);
        let topic =
            SpooledTopic { name, dir, options, connect, there: Mutex::new(None), log, local, mark: Mutex::new(mark), counts };
        // What the limit took while an earlier run died is counted by this one.
        topic.catch_up(&mut lock(&topic.mark), bounds.start)?;
        if told.is_none() {
            write_mark(&topic.dir.join("forwarded"), mark)?;
        }
        Ok(topic)
    }

    /// The topic behind the spool.
    fn there(&self) -> Result<Arc<dyn Topic>, TransportError> {
        let mut there = lock(&self.there);
        if let Some(topic) = &*there {
            return Ok(topic.clone());
        }
        let topic = (self.connect)()?;
        *there = Some(topic.clone());
        Ok(topic)
    }

    /// Sends, and looks the topic up anew next time where it is not what it was.
    fn send(&self, records: &[Record]) -> Result<Vec<Position>, TransportError> {
        let result = self.there()?.produce(records);
        if result.is_err() {
            *lock(&self.there) = None;
        }
        result
    }

    fn spool(&self, records: &[Record]) -> Result<Vec<Position>, TransportError> {
        let positions = self.local.produce(records)?;
        self.counts.spooled.fetch_add(records.len() as u64, Ordering::Relaxed);
        Ok(positions)
    }

    /// Forwards one piece of what waits; returns whether there was any.
    fn forward(&self) -> Result<bool, TransportError> {
        let mut mark = lock(&self.mark);
        let bounds = self.local.bounds(0)?;
        self.catch_up(&mut mark, bounds.start)?;
        if *mark >= bounds.end {
            return Ok(false);
        }
        let fetched = match self.local.fetch(0, *mark, PIECE) {
            Ok(fetched) => fetched,
            Err(error @ TransportError::Damaged { .. }) => {
                // Nothing behind the damage in its segment can be read. In the last segment a restart cuts it.
                let Some(next) = self.local.next_segment(0, *mark)? else { return Err(error) };
                tracing::error!(error = format!("{error:#}"), from = *mark, to = next, "messages of the spool are lost");
                self.catch_up(&mut mark, next)?;
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        let records: Vec<Record> =
            fetched.messages.into_iter().map(|m| Record { key: m.key.into(), value: m.value.into(), at_ms: m.at_ms }).collect();
        match self.send(&records) {
            Ok(_) => {
                self.counts.forwarded.fetch_add(records.len() as u64, Ordering::Relaxed);
            }
            // One of them, or some: the others must not wait for it.
            Err(TransportError::Refused { .. } | TransportError::TooLarge { .. }) => {
                for record in &records {
                    match self.send(std::slice::from_ref(record)) {
                        Ok(_) => {
                            self.counts.forwarded.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error @ (TransportError::Refused { .. } | TransportError::TooLarge { .. })) => {
                            tracing::error!(
                                error = format!("{:#}", anyhow::Error::new(error)),
                                "a message of the spool is refused"
                            );
                            self.counts.refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
            Err(error) => return Err(error),
        }
        let lost: u64 = fetched.lost.iter().map(|lost| lost.count).sum();
        self.counts.dropped.fetch_add(lost, Ordering::Relaxed);
        *mark = fetched.next;
        write_mark(&self.dir.join("forwarded"), *mark)?;
        self.local.trim(0, *mark)?;
        Ok(true)
    }

    /// Counts what is gone before it was forwarded.
    fn catch_up(&self, mark: &mut u64, start: u64) -> Result<(), TransportError> {
        if start > *mark {
            let dropped = start - *mark;
            tracing::error!(topic = self.name, dropped, "messages were dropped from the spool before Kafka had them");
            self.counts.dropped.fetch_add(dropped, Ordering::Relaxed);
            *mark = start;
            write_mark(&self.dir.join("forwarded"), *mark)?;
        }
        Ok(())
    }

    fn retain(&self, now_ms: i64) -> Result<(u64, u64), TransportError> {
        self.log.retain(now_ms)?;
        let bounds = self.local.bounds(0)?;
        // Not waited for: a forwarder that waits for Kafka holds it for seconds, and counts what is gone itself.
        let waiting = match self.mark.try_lock() {
            Ok(mut mark) => {
                self.catch_up(&mut mark, bounds.start)?;
                bounds.end - *mark
            }
            Err(_) => bounds.end - bounds.start,
        };
        let folder = self.dir.join(self.name).join("00000");
        let listed = fs::read_dir(&folder).map_err(|source| TransportError::Io { what: "list", path: folder, source })?;
        let bytes = listed.flatten().filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum();
        Ok((waiting, bytes))
    }
}

impl Topic for SpooledTopic {
    fn name(&self) -> &str {
        self.name
    }

    /// That of the spool: an agent has no use for the other one.
    fn id(&self) -> TopicId {
        self.local.id()
    }

    fn partitions(&self) -> u32 {
        lock(&self.there).as_ref().map_or(1, |topic| topic.partitions())
    }

    /// Positions are those of the log that took the batch.
    fn produce(&self, records: &[Record]) -> Result<Vec<Position>, TransportError> {
        let mut mark = lock(&self.mark);
        let bounds = self.local.bounds(0)?;
        self.catch_up(&mut mark, bounds.start)?;
        // What waits goes first.
        if *mark < bounds.end {
            return self.spool(records);
        }
        match self.send(records) {
            Err(error) if error.passes() || matches!(error, TransportError::NoTopic { .. }) => {
                tracing::warn!(
                    topic = self.name,
                    error = format!("{:#}", anyhow::Error::new(error)),
                    "Kafka does not take messages; they go to the spool until it does"
                );
                self.spool(records)
            }
            result => result,
        }
    }

    fn fetch(&self, partition: u32, from: u64, max_bytes: usize) -> Result<Fetched, TransportError> {
        self.there()?.fetch(partition, from, max_bytes)
    }

    fn bounds(&self, partition: u32) -> Result<Bounds, TransportError> {
        self.there()?.bounds(partition)
    }

    fn verify(&self) -> Result<(), TransportError> {
        self.there()?.verify()
    }

    fn assigned(&self) -> Result<BTreeSet<u32>, TransportError> {
        self.there()?.assigned()
    }
}

/// Bytes that are forwarded at one time.
const PIECE: usize = 1 << 20;
/// Time between two looks at an empty spool.
const IDLE: Duration = Duration::from_millis(500);

/// See [`Spool::forward`]; with the place of the topic whose error it is.
fn forward(topics: &[Arc<SpooledTopic>]) -> (usize, Result<bool, TransportError>) {
    let mut result = (0, Ok(false));
    for (place, topic) in topics.iter().enumerate() {
        match (topic.forward(), &mut result.1) {
            (Ok(some), Ok(any)) => *any |= some,
            (Ok(_), Err(_)) => {}
            (Err(error), _) => result = (place, Err(error)),
        }
    }
    result
}

fn forward_all(topics: &[Arc<SpooledTopic>], stop: &Stop) {
    let Some(options) = topics.first().map(|topic| topic.options) else { return };
    let mut wait = options.retry_first;
    while !stop.now.load(Ordering::SeqCst) {
        let pause = match forward(topics) {
            (place, Err(error)) => {
                tracing::debug!(
                    topic = topics[place].name,
                    error = format!("{:#}", anyhow::Error::new(error)),
                    "the spool waits"
                );
                let pause = wait;
                wait = (wait * 2).min(options.retry_most);
                pause
            }
            (_, Ok(forwarded)) => {
                wait = options.retry_first;
                if forwarded { Duration::ZERO } else { IDLE }
            }
        };
        let asked = lock(&stop.asked);
        if !*asked && !pause.is_zero() {
            let _ = stop.told.wait_timeout(asked, pause);
        }
    }
}

/// The mark. None where it is not there, or not whole.
fn read_mark(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.strip_suffix('\n')?.parse().ok()
}

fn write_mark(path: &Path, mark: u64) -> Result<(), TransportError> {
    let io = |source| TransportError::Io { what: "write", path: path.to_owned(), source };
    let scratch = path.with_extension("tmp");
    fs::write(&scratch, format!("{mark}\n")).and_then(|()| fs::rename(&scratch, path)).map_err(io)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
