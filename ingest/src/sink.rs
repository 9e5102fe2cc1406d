//! The second half of the data path: from the log to hot files, every taken message exactly once (DESIGN D1, D2).
//!
//! ```text
//! topic/partition ──fetch from pos──> buffer of rows ──cut──> publish ──> pos = end + 1
//!                                                     (bytes, rows, age, shutdown)
//! ```
//!
//! # Why it is exactly once
//!
//! There is no other state than the lake. For one partition, `pos` is the first offset that is in no file. A cut covers the
//! contiguous interval `[pos, end]` and makes files in several tables, all called `pos`:
//!
//! 1. The topic's *first* table (`gpu_samples`, `allocations`, `nodes`) is published create-if-absent, even without rows. This
//!    one file is the compare-and-swap: it alone fixes `end`, and its footer names the other tables that have rows in the
//!    interval. Of two writers at `pos`, one creates it; the other learns that it is taken, drops its buffer and reads the head
//!    of the chain anew.
//! 2. The files of the other tables are then created if absent, from exactly the messages `[pos, end]`. One that is already
//!    there came from the same messages, since the interval was fixed first; it is accepted when its footer says that interval.
//!    No file of this tree is ever overwritten, so a writer that was paused anywhere and wakes up hours later can only
//!    create what is right or find it there.
//! 3. Only then does the writer go on at `end + 1`.
//!
//! A crash between 1 and 3 leaves an interval that is fixed but not complete; it can only be the newest one of its partition,
//! for no writer goes on before 3. So whoever takes up a partition (at start, or having lost a swap) first completes the newest
//! interval: for each table that the footer names and that has no file, the messages are read from the log once more and their
//! rows, a pure function of the messages (`rows`), are published. Until then readers may miss some rows of that one interval;
//! they never see a row twice.
//!
//! Messages below `pos` are ignored whatever the log delivers. Offsets that a log skips belong to the interval around them:
//! intervals follow `pos`, not the first message's offset.
//!
//! # When it stops
//!
//! A log that begins after `pos` has lost messages that were never read; one that ends before `pos`, or a topic of this name
//! with another id, was created anew. Both stop the sink with words that say what an operator can do. Nothing is skipped by
//! itself. A disk that is full, or an object store that does not answer, stops it too, before anything half-written is visible.

use crate::rows::{Batch, Kind};
use crate::transport::{Topic, TransportError};
use arrow::array::RecordBatch;
use lake::{Footer, HotKey, Lake, LakeError, Published};
use schemas::Timestamp;
use schemas::tables::{self, Table};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

mod report;

pub use report::{Flush, Lag, Options, SinkError, Step, StepReport};

type Hook = Box<dyn FnMut(Step) -> ControlFlow<()> + Send>;
type WriteHook = Box<dyn FnMut(&HotKey, &'static Table) -> Result<(), LakeError> + Send>;

/// Writes topics into a lake.
pub struct Sink {
    lake: Lake,
    options: Options,
    epoch: String,
    topics: Vec<Arc<dyn Topic>>,
    parts: Vec<Part>,
    hook: Option<Hook>,
    write_hook: Option<WriteHook>,
    /// Messages that an interval was completed without, as told, and that are in no report yet.
    skipped: u64,
}

/// One partition of one topic.
struct Part {
    topic: Arc<dyn Topic>,
    kind: Kind,
    topic_id: lake::path::TopicId,
    partition: u32,
    /// First offset that is in no file.
    pos: u64,
    /// Next offset to fetch.
    next: u64,
    buffer: Option<Buffer>,
    /// Time of the last message read.
    last_at_ms: Option<i64>,
    /// Messages from `pos` to `next` were skipped as told, and no buffer says so yet.
    skipped: bool,
}

struct Buffer {
    batch: Batch,
    since: Timestamp,
    /// Time of its earliest record.
    first_at_ms: i64,
}

impl Sink {
    /// Takes up the partitions of `topics` that are this reader's where the lake ends, completing what an earlier writer left
    /// incomplete.
    pub fn open(lake: Lake, topics: Vec<Arc<dyn Topic>>, options: Options) -> Result<Sink, SinkError> {
        keep_memory();
        let epoch = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let mut sink =
            Sink { lake, options, epoch, topics: Vec::new(), parts: Vec::new(), hook: None, write_hook: None, skipped: 0 };
        for topic in topics {
            let kind = kind_of(&*topic)?;
            sink.check_id(&*topic, kind)?;
            sink.topics.push(topic);
        }
        sink.share()?;
        Ok(sink)
    }

    /// Takes up partitions that have become this reader's, and lets go of those that are another's now: what was read of them
    /// and is in no file is read by that one.
    fn share(&mut self) -> Result<(), SinkError> {
        for topic in self.topics.clone() {
            let mine = topic.assigned().map_err(SinkError::Log)?;
            self.parts.retain(|part| part.topic.name() != topic.name() || mine.contains(&part.partition));
            for partition in mine {
                if self.parts.iter().any(|p| p.topic.name() == topic.name() && p.partition == partition) {
                    continue;
                }
                self.parts.push(Part {
                    kind: kind_of(&*topic)?,
                    topic_id: topic.id(),
                    partition,
                    pos: 0,
                    next: 0,
                    buffer: None,
                    last_at_ms: None,
                    skipped: false,
                    topic: topic.clone(),
                });
                if let Err(error) = self.take_up(self.parts.len() - 1) {
                    // Not half taken up: the next step tries it whole.
                    self.parts.pop();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// A time before which everything is in files of the partitions that other sinks hold; none where nothing of them is behind.
    /// Hours must not close without them.
    pub fn behind_elsewhere(&self) -> Result<Option<Timestamp>, SinkError> {
        let mut behind: Option<i64> = None;
        for topic in &self.topics {
            let table = first_table(kind_of(&**topic)?);
            for partition in 0..topic.partitions() {
                if self.parts.iter().any(|p| p.topic.name() == topic.name() && p.partition == partition) {
                    continue;
                }
                let head = self.lake.hot_head(table, &topic.id(), partition).map_err(SinkError::Lake)?;
                let pos = head.and_then(|(_, footer)| footer.end).map_or(0, |end| end + 1);
                let bounds = topic.bounds(partition).map_err(SinkError::Log)?;
                if bounds.end <= pos {
                    continue;
                }
                // What its own sink stops at, hours stop at too.
                let first = match topic.fetch(partition, pos, 1) {
                    Ok(fetched) => fetched.messages.first().map_or(0, |m| m.at_ms),
                    Err(TransportError::OutOfRange { .. }) => 0,
                    Err(error) => return Err(SinkError::Log(error)),
                };
                behind = Some(behind.map_or(first, |at| at.min(first)));
            }
        }
        Ok(behind.map(Timestamp::from_ms))
    }

    /// Calls `hook` at every step; where it breaks, the sink stops there as if it had died.
    pub fn on_step(&mut self, hook: impl FnMut(Step) -> ControlFlow<()> + Send + 'static) {
        self.hook = Some(Box::new(hook));
    }

    /// Calls `hook` before every file that is published; its error is the lake's. So a test fills the disk.
    pub fn on_write(&mut self, hook: impl FnMut(&HotKey, &'static Table) -> Result<(), LakeError> + Send + 'static) {
        self.write_hook = Some(Box::new(hook));
    }

    /// Reads all that is taken, and publishes what is due at `now`.
    pub fn step(&mut self, now: Timestamp) -> Result<StepReport, SinkError> {
        let mut report = StepReport::default();
        self.share()?;
        for index in 0..self.parts.len() {
            self.read(index, now, &mut report)?;
        }
        for index in 0..self.parts.len() {
            let due = self.parts[index].buffer.as_ref().is_some_and(|b| now.ms() - b.since.ms() >= self.options.cut_age_ms);
            if due {
                self.cut(index, &mut report)?;
            }
        }
        self.finish(report)
    }

    /// Reads all that is taken, and publishes all of it: before closing hours, and at the end.
    pub fn flush(&mut self, now: Timestamp) -> Result<StepReport, SinkError> {
        let mut report = StepReport::default();
        self.share()?;
        for index in 0..self.parts.len() {
            self.read(index, now, &mut report)?;
            self.cut(index, &mut report)?;
        }
        self.finish(report)
    }

    fn finish(&mut self, mut report: StepReport) -> Result<StepReport, SinkError> {
        let mut behind: Option<i64> = None;
        for part in &self.parts {
            let end = part.topic.bounds(part.partition).map_err(SinkError::Log)?.end;
            let lag = end.saturating_sub(part.next);
            report.lag.push(Lag { topic: part.topic.name().to_owned(), partition: part.partition, messages: lag });
            report.buffered += part.next - part.pos;
            // Lower bounds for the times of what is not in files yet: the buffer's first record, else the last one read.
            let unwritten = part.buffer.as_ref().map(|b| b.first_at_ms);
            let unread = (lag > 0).then(|| part.last_at_ms.unwrap_or(0));
            behind = [behind, unwritten, unread].into_iter().flatten().min();
        }
        report.behind_at = behind.map(Timestamp::from_ms);
        let skipped = std::mem::take(&mut self.skipped);
        report.lost += skipped;
        report.rejects += skipped;
        if skipped > 0 {
            *report.reasons.entry("lost".to_owned()).or_default() += skipped;
        }
        Ok(report)
    }

    /// Whether the lake knows this topic under another id.
    fn check_id(&self, topic: &dyn Topic, kind: Kind) -> Result<(), SinkError> {
        let table = first_table(kind);
        let now = topic.id();
        let mut heads: BTreeMap<(lake::path::TopicId, u32), lake::HotFile> = BTreeMap::new();
        for file in self.lake.hot_files(table).map_err(SinkError::Lake)? {
            heads.insert((file.key.topic_id.clone(), file.key.partition), file);
        }
        if heads.keys().any(|(id, _)| *id == now) {
            return Ok(());
        }
        if !heads.is_empty() && self.options.accept_new_topic {
            // Said once; the next start may come before the first file of the new topic.
            return self.lake.accept_topic(topic.name(), &now).map_err(SinkError::Lake);
        }
        if self.lake.accepted_topic(topic.name()).map_err(SinkError::Lake)?.as_ref() == Some(&now) {
            return Ok(());
        }
        for ((id, _), file) in &heads {
            let footer = lake::read::footer(&file.path).map_err(SinkError::Lake)?;
            if footer.topic.as_deref() == Some(topic.name()) {
                return Err(SinkError::Recreated {
                    topic: topic.name().to_owned(),
                    was: id.as_str().to_owned(),
                    now: now.as_str().to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Goes on where the lake ends.
    fn take_up(&mut self, index: usize) -> Result<(), SinkError> {
        let part = &self.parts[index];
        let table = first_table(part.kind);
        let head = self.lake.hot_head(table, &part.topic_id, part.partition).map_err(SinkError::Lake)?;
        let mut pos = 0;
        if let Some((file, footer)) = head {
            let end = footer.end.ok_or_else(|| SinkError::Torn { path: file.path.display().to_string() })?;
            self.complete(index, file.key.start, end, &footer)?;
            pos = end + 1;
        }
        let part = &mut self.parts[index];
        part.buffer = None;
        part.skipped = false;
        part.pos = pos;
        part.next = pos;
        let bounds = part.topic.bounds(part.partition).map_err(SinkError::Log)?;
        let (topic, partition) = (part.topic.name().to_owned(), part.partition);
        if bounds.end < pos {
            return Err(SinkError::Backwards { topic, partition, end: bounds.end, pos });
        }
        if bounds.start > pos {
            if !self.options.skip_lost {
                return Err(SinkError::Lost { topic, partition, start: bounds.start, pos });
            }
            tracing::error!(topic, partition, from = pos, to = bounds.start, "skipping lost messages as told");
            part.next = bounds.start;
            part.skipped = true;
        }
        Ok(())
    }

    /// Publishes the files that a fixed interval lacks.
    fn complete(&mut self, index: usize, start: u64, end: u64, fixed: &Footer) -> Result<(), SinkError> {
        let tables = fixed.tables.as_deref().unwrap_or_default();
        let part = &self.parts[index];
        let mut missing: Vec<&'static Table> = Vec::new();
        for &table in part.kind.tables()[1..].iter().filter(|table| tables.split(',').any(|name| name == table.name)) {
            if !self.is_there(index, start, table)? {
                missing.push(table);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        tracing::warn!(
            topic = part.topic.name(),
            partition = part.partition,
            start,
            end,
            "completing an interval that was left incomplete"
        );
        let mut batch = Batch::new(part.kind, part.topic.name(), part.partition);
        let mut next = start;
        let mut skipped = 0;
        while next <= end {
            let bounds = part.topic.bounds(part.partition).map_err(SinkError::Log)?;
            let (topic, partition) = (part.topic.name().to_owned(), part.partition);
            if bounds.start > next {
                if !self.options.skip_lost {
                    return Err(SinkError::Lost { topic, partition, start: bounds.start, pos: next });
                }
                // The first table has their rows already; the others do without.
                let count = bounds.start.min(end + 1) - next;
                tracing::error!(topic, partition, from = next, count, "completing an interval without lost messages, as told");
                let after = part.topic.fetch(partition, bounds.start, 1).map_err(SinkError::Log)?;
                let at_ms = fixed.max_at.map(Timestamp::ms).or_else(|| after.messages.first().map(|m| m.at_ms));
                batch.lost(next, count, at_ms);
                skipped += count;
                next += count;
                continue;
            }
            if bounds.end <= end {
                return Err(SinkError::Backwards { topic, partition, end: bounds.end, pos: end + 1 });
            }
            let fetched = part.topic.fetch(part.partition, next, self.options.fetch_bytes).map_err(SinkError::Log)?;
            for message in fetched.messages.into_iter().filter(|m| (next..=end).contains(&m.offset)) {
                batch.add(message);
            }
            for lost in fetched.lost.iter().filter(|l| (next..=end).contains(&l.from)) {
                batch.lost(lost.from, lost.count, lost.at_ms);
            }
            next = fetched.next.max(next + 1);
        }
        let footer = self.footer(index, end, &batch);
        // What was skipped is a row of `rejects`, unless that file was published before anything was lost.
        let rejects = skipped > 0 && !self.is_there(index, start, tables::get("rejects"))?;
        let wanted = |table: &Table| missing.iter().any(|m| m.name == table.name) || rejects && table.name == "rejects";
        let (_, others) = batch.finish().map_err(SinkError::Lake)?;
        for (table, rows) in others.into_iter().filter(|(table, _)| wanted(table)) {
            self.publish_other(index, start, end, table, &rows, &footer)?;
        }
        self.skipped += skipped;
        Ok(())
    }

    fn is_there(&self, index: usize, start: u64, table: &Table) -> Result<bool, SinkError> {
        self.lake.place(&self.key(index, start).path(table)).exists().map_err(SinkError::Lake)
    }

    /// Reads what is taken now into the buffer, cutting whenever that is full. What comes while it reads is the next step's: an
    /// end that moves on as fast as it is followed would leave the other partitions unread, and nothing cut by its age.
    fn read(&mut self, index: usize, now: Timestamp, report: &mut StepReport) -> Result<(), SinkError> {
        let part = &self.parts[index];
        let end = part.topic.bounds(part.partition).map_err(SinkError::Log)?.end;
        loop {
            let part = &mut self.parts[index];
            let fetched = match part.topic.fetch(part.partition, part.next, self.options.fetch_bytes) {
                Ok(fetched) => fetched,
                Err(TransportError::OutOfRange { topic, partition, bounds, from }) => {
                    return Err(if bounds.start > from {
                        SinkError::Lost { topic, partition, start: bounds.start, pos: part.pos }
                    } else {
                        SinkError::Backwards { topic, partition, end: bounds.end, pos: part.pos }
                    });
                }
                Err(error) => return Err(SinkError::Log(error)),
            };
            // What was skipped as told is a row of the interval that begins with it.
            if std::mem::take(&mut part.skipped) {
                let first_at_ms = fetched.messages.first().map(|m| m.at_ms).or(part.last_at_ms).unwrap_or_else(|| now.ms());
                let mut batch = Batch::new(part.kind, part.topic.name(), part.partition);
                batch.lost(part.pos, part.next - part.pos, Some(first_at_ms));
                report.lost += part.next - part.pos;
                part.buffer = Some(Buffer { batch, since: now, first_at_ms });
            }
            if fetched.next <= part.next {
                return Ok(());
            }
            // Filtered, not trusted: a log may deliver what lies before the offset that was asked for.
            for message in fetched.messages.into_iter().filter(|m| m.offset >= part.next) {
                part.last_at_ms = Some(message.at_ms);
                let buffer = part.buffer.get_or_insert_with(|| Buffer {
                    batch: Batch::new(part.kind, part.topic.name(), part.partition),
                    since: now,
                    first_at_ms: message.at_ms,
                });
                buffer.first_at_ms = buffer.first_at_ms.min(message.at_ms);
                buffer.batch.add(message);
                report.records += 1;
            }
            for lost in fetched.lost.iter().filter(|l| l.from >= part.next) {
                tracing::error!(topic = part.topic.name(), partition = part.partition, ?lost, "the log has lost messages");
                let first_at_ms = lost.at_ms.or(part.last_at_ms).unwrap_or_else(|| now.ms());
                let buffer = part.buffer.get_or_insert_with(|| Buffer {
                    batch: Batch::new(part.kind, part.topic.name(), part.partition),
                    since: now,
                    first_at_ms,
                });
                buffer.batch.lost(lost.from, lost.count, Some(first_at_ms));
                report.lost += lost.count;
            }
            part.next = fetched.next;
            let full = part
                .buffer
                .as_ref()
                .is_some_and(|b| b.batch.bytes() >= self.options.cut_bytes || b.batch.rows() >= self.options.cut_rows);
            if full {
                self.cut(index, report)?;
            }
            while self.parts.iter().filter_map(|p| p.buffer.as_ref()).map(|b| b.batch.bytes()).sum::<usize>()
                > self.options.total_bytes
            {
                let bytes = |p: &Part| p.buffer.as_ref().map_or(0, |b| b.batch.bytes());
                let Some(largest) = (0..self.parts.len()).max_by_key(|i| bytes(&self.parts[*i])) else { break };
                self.cut(largest, report)?;
            }
            if self.parts[index].next >= end {
                return Ok(());
            }
        }
    }

    /// Publishes a buffer, if there is one, and goes on after it.
    fn cut(&mut self, index: usize, report: &mut StepReport) -> Result<(), SinkError> {
        let part = &mut self.parts[index];
        let Some(buffer) = part.buffer.take() else {
            // A hole at the end of what was read belongs to the next interval.
            return Ok(());
        };
        let end = part.next - 1;
        report.rejects += buffer.batch.rejects;
        for (reason, count) in &buffer.batch.reasons {
            *report.reasons.entry(reason.clone()).or_default() += count;
        }
        self.publish(index, end, buffer.batch, report)
    }

    fn publish(&mut self, index: usize, end: u64, batch: Batch, report: &mut StepReport) -> Result<(), SinkError> {
        let began = Instant::now();
        let pos = self.parts[index].pos;
        let key = self.key(index, pos);
        let mut footer = self.footer(index, end, &batch);
        // After the last fetch of these messages: ids do not come back, so all of them came from this topic.
        self.parts[index].topic.verify().map_err(|error| match error {
            TransportError::Recreated { topic, was, now } => {
                SinkError::Recreated { topic, was: was.as_str().to_owned(), now: now.as_str().to_owned() }
            }
            error => SinkError::Log(error),
        })?;
        let (first, mut others) = batch.finish().map_err(SinkError::Lake)?;
        others.retain(|(_, rows)| rows.num_rows() > 0);
        footer.tables = Some(others.iter().map(|(table, _)| table.name).collect::<Vec<_>>().join(","));
        let table = first.table();
        self.at(Step::BeforeFirst)?;
        let mut flush = Flush { rows: first.len() as u64, bytes: 0, took: Duration::ZERO };
        let published = self.write(table, &key, first.batches(), footer.clone())?;
        match published {
            Published::New | Published::AlreadyMine => {}
            Published::Taken => {
                tracing::warn!(
                    topic = self.parts[index].topic.name(),
                    partition = key.partition,
                    pos,
                    "another writer was first; reading the head anew"
                );
                report.lost_swaps += 1;
                return self.take_up(index);
            }
        }
        self.at(Step::AfterFirst)?;
        report.files += 1 + others.len() as u64;
        footer.tables = None;
        for (table, rows) in &others {
            flush.rows += rows.num_rows() as u64;
            self.publish_other(index, pos, end, table, rows, &footer)?;
        }
        self.at(Step::Complete)?;
        for table in std::iter::once(table).chain(others.iter().map(|(table, _)| *table)) {
            flush.bytes += self.lake.place(&key.path(table)).size().ok().flatten().unwrap_or(0);
        }
        flush.took = began.elapsed();
        report.rows += flush.rows;
        report.flushes.push(flush);
        let part = &mut self.parts[index];
        part.pos = end + 1;
        part.topic.published(part.partition, part.pos);
        Ok(())
    }

    /// One table's part of a fixed interval: created, or found to be there already.
    fn publish_other(
        &mut self,
        index: usize,
        start: u64,
        end: u64,
        table: &'static Table,
        rows: &RecordBatch,
        footer: &Footer,
    ) -> Result<(), SinkError> {
        self.at(Step::BeforeOther(table.name))?;
        let key = self.key(index, start);
        let published = self.write(table, &key, std::iter::once(rows.clone()), footer.clone())?;
        if published == Published::Taken {
            let place = self.lake.place(&key.path(table));
            let theirs = lake::read::footer(&place).map_err(SinkError::Lake)?;
            if theirs.end != Some(end) || theirs.rows != rows.num_rows() as u64 {
                return Err(SinkError::Torn { path: place.display().to_string() });
            }
        }
        self.at(Step::AfterOther(table.name))
    }

    fn write(
        &mut self,
        table: &'static Table,
        key: &HotKey,
        rows: impl Iterator<Item = RecordBatch>,
        footer: Footer,
    ) -> Result<Published, SinkError> {
        self.write_hook.as_mut().map_or(Ok(()), |hook| hook(key, table)).map_err(SinkError::Lake)?;
        self.lake.publish_hot(table, key, rows, footer).map_err(SinkError::Lake)
    }

    fn key(&self, index: usize, start: u64) -> HotKey {
        let part = &self.parts[index];
        HotKey { topic_id: part.topic_id.clone(), partition: part.partition, start }
    }

    fn footer(&self, index: usize, end: u64, batch: &Batch) -> Footer {
        Footer {
            topic: Some(self.parts[index].topic.name().to_owned()),
            end: Some(end),
            records: batch.records,
            rejects: batch.rejects,
            writer_epoch: self.epoch.clone(),
            ..Footer::default()
        }
    }

    fn at(&mut self, step: Step) -> Result<(), SinkError> {
        match self.hook.as_mut().map(|hook| hook(step)) {
            Some(ControlFlow::Break(())) => Err(SinkError::Stopped(step)),
            Some(ControlFlow::Continue(())) | None => Ok(()),
        }
    }
}

/// Has the C library keep what a buffer of messages gives back for the next one, where it would return each to the system, which
/// took up to a sixth of the sink's time: it keeps twice the largest block that it was ever given back, if that is below 32 MiB. Nothing
/// is written to this one, so that it takes no memory.
fn keep_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(31 << 20)));
}

fn kind_of(topic: &dyn Topic) -> Result<Kind, SinkError> {
    Kind::of_topic(topic.name()).ok_or_else(|| SinkError::UnknownTopic(topic.name().to_owned()))
}

fn first_table(kind: Kind) -> &'static Table {
    kind.tables()[0]
}
