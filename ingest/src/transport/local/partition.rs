//! One partition: segments of frames, its end mark, reading and writing by position.

use super::super::{Bounds, Fetched, Lost, Message, Record, TransportError};
use super::{Options, lock};
use bytes::Bytes;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Length and crc.
const HEAD: usize = 8;
/// Offset, time, key length.
const FIXED: usize = 20;
/// One index entry for about this many bytes.
const INDEX_EVERY: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct Partition {
    dir: PathBuf,
    options: Options,
    writable: bool,
    /// In order of base offset; the last one is written to.
    segments: Vec<Segment>,
    /// The offset that the next record gets.
    next: u64,
    /// Offsets below are durable.
    end: u64,
    end_file: Option<Arc<File>>,
    /// Written since the last sync.
    dirty: bool,
}

#[derive(Debug)]
struct Segment {
    base: u64,
    path: PathBuf,
    file: Arc<File>,
    /// Bytes of whole frames (known for the last segment of a writer; of others the file's length).
    bytes: u64,
    /// Offset and byte of some frames, for finding a place; grows as the segment is written or read.
    index: Vec<(u64, u64)>,
}

/// A place to come back to when a batch cannot be written.
pub(super) struct Mark {
    segments: usize,
    bytes: u64,
    next: u64,
}

impl Partition {
    pub(super) fn open(dir: PathBuf, options: Options, writable: bool) -> Result<Self, TransportError> {
        let mut this = Partition { dir, options, writable, segments: Vec::new(), next: 0, end: 0, end_file: None, dirty: false };
        this.load_segments()?;
        if writable {
            this.repair()?
        } else {
            this.refresh()?
        }
        Ok(this)
    }

    fn load_segments(&mut self) -> Result<(), TransportError> {
        let mut bases = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(io("list", &self.dir))? {
            let path = entry.map_err(io("list", &self.dir))?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            if let Some(base) = name.strip_suffix(".log").and_then(|n| n.parse().ok()) {
                bases.push((base, path));
            }
        }
        bases.sort();
        let known = self.segments.len();
        self.segments.retain(|s| bases.iter().any(|(base, _)| *base == s.base));
        let dropped = known - self.segments.len();
        let last = self.segments.last().map(|s| s.base);
        for (base, path) in bases {
            if last.is_none_or(|last| base > last) {
                let file = OpenOptions::new().read(true).write(self.writable).open(&path);
                let file = match file {
                    Ok(file) => file,
                    // The writer's retention was faster.
                    Err(e) if e.kind() == ErrorKind::NotFound && !self.writable => continue,
                    Err(e) => return Err(io("open", &path)(e)),
                };
                let bytes = file.metadata().map_err(io("read", &path))?.len();
                self.segments.push(Segment { base, path, file: Arc::new(file), bytes, index: Vec::new() });
            }
        }
        tracing::trace!(dir = %self.dir.display(), dropped, segments = self.segments.len(), "segments listed");
        Ok(())
    }

    /// Cuts a torn end, never gives an offset away twice, and makes what is left durable.
    fn repair(&mut self) -> Result<(), TransportError> {
        let stated = read_end(&self.dir.join("end"))?;
        let mut next = stated;
        if let Some(last) = self.segments.last_mut() {
            let (bytes, after) = last.whole_frames()?;
            if bytes < last.bytes {
                tracing::warn!(segment = %last.path.display(), torn_bytes = last.bytes - bytes, "cut a torn end");
                last.file.set_len(bytes).map_err(io("cut", &last.path))?;
                last.bytes = bytes;
            }
            last.file.sync_all().map_err(io("sync", &last.path))?;
            next = stated.max(after);
            if after < stated {
                tracing::error!(segment = %last.path.display(), from = after, to = stated, "the disk lost messages that were taken");
            }
            if after < next {
                self.next = next;
                self.roll()?;
            }
        }
        self.next = next;
        self.end = next;
        if self.segments.is_empty() {
            self.roll()?;
        }
        self.publish_end()
    }

    /// What a reader in another process can see now.
    fn refresh(&mut self) -> Result<(), TransportError> {
        self.end = self.end.max(read_end(&self.dir.join("end"))?);
        self.load_segments()
    }

    pub(super) fn bounds(&mut self) -> Result<Bounds, TransportError> {
        if !self.writable {
            self.refresh()?;
        }
        Ok(Bounds { start: self.segments.first().map_or(self.end, |s| s.base.min(self.end)), end: self.end })
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { segments: self.segments.len(), bytes: self.segments.last().map_or(0, |s| s.bytes), next: self.next }
    }

    /// Takes back what was appended since `mark`.
    pub(super) fn undo(&mut self, mark: Mark) -> Result<(), TransportError> {
        for segment in self.segments.drain(mark.segments..) {
            fs::remove_file(&segment.path).map_err(io("remove", &segment.path))?;
        }
        self.next = mark.next;
        if let Some(last) = self.segments.last_mut() {
            // Never longer than it is: a file that another hand has cut must not look whole again.
            if last.file.metadata().map_err(io("read", &last.path))?.len() > mark.bytes {
                last.file.set_len(mark.bytes).map_err(io("cut", &last.path))?;
            }
            last.bytes = mark.bytes;
            last.index.retain(|(offset, _)| *offset < mark.next);
        }
        Ok(())
    }

    /// Writes frames; returns the offset of the first. On an error the caller calls `undo`.
    pub(super) fn append<'a>(&mut self, records: impl Iterator<Item = &'a Record>) -> Result<u64, TransportError> {
        let first = self.next;
        let mut buffer = Vec::new();
        for record in records {
            let full = self.segments.last().is_some_and(|s| s.bytes + buffer.len() as u64 >= self.options.segment_bytes);
            if full {
                self.flush(&mut buffer)?;
                // The old segment must be durable before the new one exists: only the last one is checked on open.
                if let Some(last) = self.segments.last() {
                    last.file.sync_data().map_err(io("sync", &last.path))?;
                }
                self.roll()?;
            }
            if let Some(last) = self.segments.last_mut() {
                last.note(self.next, last.bytes + buffer.len() as u64);
            }
            frame(&mut buffer, self.next, record);
            self.next += 1;
        }
        self.flush(&mut buffer)?;
        self.dirty = true;
        Ok(first)
    }

    fn flush(&mut self, buffer: &mut Vec<u8>) -> Result<(), TransportError> {
        if let Some(last) = self.segments.last_mut() {
            last.is_as_left()?;
            last.file.write_all_at(buffer, last.bytes).map_err(|e| match e.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => TransportError::Full { path: last.path.clone() },
                _ => io("write", &last.path)(e),
            })?;
            last.bytes += buffer.len() as u64;
        }
        buffer.clear();
        Ok(())
    }

    /// Begins a segment at the next offset.
    fn roll(&mut self) -> Result<(), TransportError> {
        let path = self.dir.join(format!("{:020}.log", self.next));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(|e| match e.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => TransportError::Full { path: path.clone() },
            _ => io("create", &path)(e),
        })?;
        sync_dir(&self.dir)?;
        self.segments.push(Segment { base: self.next, path, file: Arc::new(file), bytes: 0, index: Vec::new() });
        Ok(())
    }

    fn publish_end(&mut self) -> Result<(), TransportError> {
        let path = self.dir.join("end");
        let file = match &self.end_file {
            Some(file) => file.clone(),
            None => {
                let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
                let file = Arc::new(file.map_err(io("create", &path))?);
                self.end_file = Some(file.clone());
                file
            }
        };
        let mut bytes = self.end.to_le_bytes().to_vec();
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        file.write_all_at(&bytes, 0).map_err(io("write", &path))
    }

    /// Messages in `[from, end)`.
    pub(super) fn read(&mut self, from: u64, end: u64, max_bytes: usize) -> Result<Fetched, TransportError> {
        let mut out = Fetched { messages: Vec::new(), next: from, lost: Vec::new() };
        let mut taken = 0;
        let first = self.segments.partition_point(|s| s.base <= from).saturating_sub(1);
        for at in first..self.segments.len() {
            // What this segment can hold ends where the next one begins.
            let is_last = at + 1 == self.segments.len();
            let limit = self.segments.get(at + 1).map_or(end, |s| s.base.min(end));
            if out.next < limit {
                self.segments[at].read(limit, max_bytes, &mut taken, &mut out)?;
                if out.next < limit && taken >= max_bytes {
                    break;
                }
                if out.next < limit && is_last {
                    let path = self.segments[at].path.clone();
                    return Err(TransportError::Damaged { path, at: 0, what: "messages that were taken are missing" });
                }
                // Short of its limit and not the last: the hole that `repair` declared, or a segment that was moved away.
                if out.next < limit {
                    let after = match self.segments.get(at + 1) {
                        Some(segment) if segment.base < end => segment.first_at()?,
                        Some(_) | None => None,
                    };
                    let at_ms = after.or_else(|| out.messages.last().map(|m| m.at_ms));
                    out.lost.push(Lost { from: out.next, count: limit - out.next, at_ms });
                    out.next = limit;
                }
            }
            if out.next >= end || taken >= max_bytes {
                break;
            }
        }
        Ok(out)
    }

    /// Drops segments whose messages all lie below `upto`.
    pub(super) fn trim(&mut self, upto: u64) -> Result<(), TransportError> {
        let all = upto >= self.next && self.next == self.end;
        if all && self.segments.last().is_some_and(|last| last.bytes > 0) {
            self.roll()?;
        }
        while self.segments.len() > 1 && self.segments[1].base <= upto {
            let segment = self.segments.remove(0);
            fs::remove_file(&segment.path).map_err(io("remove", &segment.path))?;
        }
        Ok(())
    }

    pub(super) fn next_segment(&self, offset: u64) -> Option<u64> {
        self.segments.iter().map(|s| s.base).find(|base| *base > offset)
    }

    /// Drops old segments; returns how many messages went.
    pub(super) fn retain(&mut self, now_ms: i64) -> Result<u64, TransportError> {
        let mut total: u64 = self.segments.iter().map(|s| s.bytes).sum();
        let mut gone = 0;
        while self.segments.len() > 1 {
            // The first message of the next segment is not older than any of this one but for producers' clocks.
            let newest = self.segments[1].first_at()?;
            let old = newest.is_some_and(|at| at < now_ms.saturating_sub(self.options.retention_ms));
            if !old && total <= self.options.retention_bytes {
                break;
            }
            let segment = self.segments.remove(0);
            fs::remove_file(&segment.path).map_err(io("remove", &segment.path))?;
            total -= segment.bytes;
            gone += self.segments[0].base - segment.base;
        }
        Ok(gone)
    }
}

/// Makes what a partition has written durable, then visible. The lock is not held while the disk works.
pub(super) fn sync(partition: &Mutex<Partition>) -> Result<(), TransportError> {
    let (file, path, upto) = {
        let mut this = lock(partition);
        if !this.dirty {
            return Ok(());
        }
        this.dirty = false;
        let Some(last) = this.segments.last() else { return Ok(()) };
        (last.file.clone(), last.path.clone(), this.next)
    };
    file.sync_data().map_err(io("sync", &path))?;
    let mut this = lock(partition);
    // A batch that is being undone may have lowered `next` since; nobody was promised those offsets.
    this.end = this.end.max(upto.min(this.next));
    this.publish_end()
}

impl Segment {
    /// The file at this segment's path is still the one that is open, and as long as it was left. What is written into a file
    /// that was removed, or behind a hole, would be taken and never read.
    fn is_as_left(&self) -> Result<(), TransportError> {
        let open = self.file.metadata().map_err(io("read", &self.path))?;
        match fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino(), found.len()) == (open.dev(), open.ino(), self.bytes) => Ok(()),
            Ok(_) => Err(TransportError::Changed { path: self.path.clone() }),
            Err(e) if e.kind() == ErrorKind::NotFound => Err(TransportError::Changed { path: self.path.clone() }),
            Err(e) => Err(io("read", &self.path)(e)),
        }
    }

    fn note(&mut self, offset: u64, byte: u64) {
        if self.index.last().is_none_or(|(_, at)| byte >= at + INDEX_EVERY) {
            self.index.push((offset, byte));
        }
    }

    /// Bytes of the whole frames from the beginning, and the offset after them.
    fn whole_frames(&mut self) -> Result<(u64, u64), TransportError> {
        let (mut at, mut next) = (0, self.base);
        let mut window = Window::new(&self.file, self.bytes);
        loop {
            match window.frame(at, next) {
                Ok(Some((frame, message))) => {
                    next = message.offset + 1;
                    if self.index.last().is_none_or(|(_, byte)| at >= byte + INDEX_EVERY) {
                        self.index.push((message.offset, at));
                    }
                    at += frame;
                }
                Ok(None) | Err(FrameError::Damaged(_)) => return Ok((at, next)),
                Err(FrameError::Io(e)) => return Err(io("read", &self.path)(e)),
            }
        }
    }

    /// Appends this segment's messages from `out.next` on, below offset `limit`.
    fn read(&mut self, limit: u64, max_bytes: usize, taken: &mut usize, out: &mut Fetched) -> Result<(), TransportError> {
        let known = self.index.partition_point(|(offset, _)| *offset <= out.next);
        let (mut next, mut at) = known.checked_sub(1).map_or((self.base, 0), |i| self.index[i]);
        // A reader in another process sees the file grow.
        let bytes = self.file.metadata().map_err(io("read", &self.path))?.len();
        let file = self.file.clone();
        let mut window = Window::new(&file, bytes);
        while next < limit && (*taken == 0 || *taken < max_bytes) {
            let (frame, message) = match window.frame(at, next) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(FrameError::Damaged(what)) => {
                    return Err(TransportError::Damaged { path: self.path.clone(), at, what });
                }
                Err(FrameError::Io(e)) => return Err(io("read", &self.path)(e)),
            };
            if self.index.last().is_none_or(|(offset, byte)| message.offset > *offset && at >= byte + INDEX_EVERY) {
                self.index.push((message.offset, at));
            }
            next = message.offset + 1;
            at += frame;
            if message.offset >= out.next && message.offset < limit {
                *taken += message.key.len() + message.value.len() + FIXED;
                out.next = next;
                out.messages.push(message);
            }
        }
        Ok(())
    }

    fn first_at(&self) -> Result<Option<i64>, TransportError> {
        let bytes = self.file.metadata().map_err(io("read", &self.path))?.len();
        let mut window = Window::new(&self.file, bytes);
        match window.frame(0, self.base) {
            Ok(found) => Ok(found.map(|(_, message)| message.at_ms)),
            Err(FrameError::Io(e)) => Err(io("read", &self.path)(e)),
            Err(FrameError::Damaged(what)) => Err(TransportError::Damaged { path: self.path.clone(), at: 0, what }),
        }
    }
}

enum FrameError {
    Io(std::io::Error),
    Damaged(&'static str),
}

/// A buffered view of a file, read forwards.
struct Window<'a> {
    file: &'a File,
    bytes: u64,
    start: u64,
    buffer: Vec<u8>,
}

impl<'a> Window<'a> {
    const STEP: usize = 256 << 10;

    fn new(file: &'a File, bytes: u64) -> Self {
        Window { file, bytes, start: 0, buffer: Vec::new() }
    }

    /// `len` bytes at `at`; fewer where the file ends.
    fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8], std::io::Error> {
        let inside = at >= self.start && at + len as u64 <= self.start + self.buffer.len() as u64;
        if !inside {
            let want = len.max(Self::STEP).min(self.bytes.saturating_sub(at) as usize);
            self.buffer.resize(want, 0);
            self.start = at;
            let mut filled = 0;
            while filled < want {
                match self.file.read_at(&mut self.buffer[filled..], at + filled as u64) {
                    Ok(0) => break,
                    Ok(n) => filled += n,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            self.buffer.truncate(filled);
        }
        let from = (at - self.start) as usize;
        Ok(&self.buffer[from..self.buffer.len().min(from + len)])
    }

    /// The frame at `at`, whose offset must be at least `least`. `None` at the end of the file.
    fn frame(&mut self, at: u64, least: u64) -> Result<Option<(u64, Message)>, FrameError> {
        let head = self.bytes(at, HEAD).map_err(FrameError::Io)?;
        if head.is_empty() {
            return Ok(None);
        }
        let (Some(length), Some(crc)) = (u32_at(head, 0), u32_at(head, 4)) else {
            return Err(FrameError::Damaged("the file ends within a frame"));
        };
        let length = length as usize;
        if length < FIXED || length as u64 > self.bytes {
            return Err(FrameError::Damaged("a frame of impossible length"));
        }
        let body = self.bytes(at + HEAD as u64, length).map_err(FrameError::Io)?;
        if body.len() < length {
            return Err(FrameError::Damaged("the file ends within a frame"));
        }
        if crc32fast::hash(body) != crc {
            return Err(FrameError::Damaged("the checksum does not fit"));
        }
        let parts = (u64_at(body, 0), u64_at(body, 8), u32_at(body, 16));
        let (Some(offset), Some(at_ms), Some(key)) = parts else { return Err(FrameError::Damaged("a frame too short")) };
        let (Some(key), Some(value)) = (body.get(FIXED..FIXED + key as usize), body.get(FIXED + key as usize..)) else {
            return Err(FrameError::Damaged("a key longer than its frame"));
        };
        if offset < least {
            return Err(FrameError::Damaged("offsets go backwards"));
        }
        let message =
            Message { offset, key: Bytes::copy_from_slice(key), value: Bytes::copy_from_slice(value), at_ms: at_ms as i64 };
        Ok(Some(((HEAD + length) as u64, message)))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

fn frame(out: &mut Vec<u8>, offset: u64, record: &Record) {
    let start = out.len();
    let length = FIXED + record.key.len() + record.value.len();
    out.extend_from_slice(&(length as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(&record.at_ms.to_le_bytes());
    out.extend_from_slice(&(record.key.len() as u32).to_le_bytes());
    out.extend_from_slice(&record.key);
    out.extend_from_slice(&record.value);
    let crc = crc32fast::hash(&out[start + HEAD..]);
    out[start + 4..start + HEAD].copy_from_slice(&crc.to_le_bytes());
}

/// The stated end; 0 where none is stated, or where a torn write left none that can be believed.
fn read_end(path: &Path) -> Result<u64, TransportError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(io("read", path)(e)),
    };
    let (Some(end), Some(crc)) = (u64_at(&bytes, 0), u32_at(&bytes, 8)) else { return Ok(0) };
    Ok(if crc32fast::hash(&bytes[..8]) == crc { end } else { 0 })
}

/// Writes a file so that it is there whole and durable, or not at all.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), TransportError> {
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary).map_err(io("create", &temporary))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io("write", &temporary))?;
    fs::rename(&temporary, path).map_err(io("rename", path))?;
    path.parent().map_or(Ok(()), sync_dir)
}

pub(super) fn sync_dir(dir: &Path) -> Result<(), TransportError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(io("sync", dir))
}

/// An I/O error on a path.
pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> TransportError {
    let path = path.to_owned();
    move |source| TransportError::Io { what, path, source }
}
