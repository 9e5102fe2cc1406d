//! Files of frames into the log: messages that were made elsewhere, a simulator's past say, are taken as if agents had made them.
//!
//! ```text
//! file ──length, Frame──> records, some thousands together ──produce──> taken
//! ```
//!
//! Records are dated by this machine's clock, for a log keeps messages by their date, and those of a past would be gone before
//! anyone reads them. What is sent twice does no harm: rounds carry their sequence, states are whole. So a file can be sent again
//! from any frame on.

use crate::config::{ConfigError, KafkaFile, NO_LOG, Span, kafka, log_bounds, one_log, read};
use crate::publish::{self, ALLOCATIONS, MAX_MESSAGE_BYTES, NODES, SAMPLES};
use crate::transport::kafka::{self as broker, Kafka};
use crate::transport::local::{self, Log, TopicSpec};
use crate::transport::{Record, Topic, TransportError};
use clap::Args;
use schemas::Timestamp;
use schemas::proto::{Frame, Message, allocation, frame};
use serde::Deserialize;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Largest frame: a round of a thousand devices has a megabyte.
pub const MAX_FRAME_BYTES: usize = 16 << 20;
/// Records, and bytes of them, that are produced together.
const BATCH_RECORDS: usize = 4_000;
const BATCH_BYTES: usize = 4 << 20;
/// Tries at one batch, while what stops it may pass, and the first wait between two; it doubles.
const TRIES: u32 = 6;
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Options of `publish`.
#[derive(Debug, Clone, Default, Args)]
pub struct PublishArgs {
    /// File of frames, as `strandline-sim backfill --frames` writes it; `-` is standard input
    pub file: PathBuf,
    /// YAML file; environment and flags go over it
    #[arg(long, env = "STRANDLINE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder of the log that the frames are taken into
    #[arg(long, env = "STRANDLINE_LOG_DIR", value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Brokers of Apache Kafka, instead of a log folder: host:port,host:port (TLS, SASL and more: `kafka` in the file)
    #[arg(long, env = "STRANDLINE_KAFKA", value_name = "SERVERS")]
    pub kafka: Option<String>,
    /// Frames at the beginning of the file to pass over, because they are taken already
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub from_frame: u64,
}

/// The file of `publish`. Every key may be left out.
#[derive(Debug, Clone, Default, Deserialize)]
struct File {
    log_dir: Option<PathBuf>,
    log_partitions: Option<u32>,
    log_retention: Option<Span>,
    log_retention_bytes: Option<u64>,
    kafka: Option<KafkaFile>,
}

const KEYS: &[&str] = &["log_dir", "log_partitions", "log_retention", "log_retention_bytes", "kafka"];

/// What `publish` runs with.
#[derive(Debug, Clone)]
pub struct PublishConfig {
    /// The file.
    pub file: PathBuf,
    /// Frames to pass over.
    pub from_frame: u64,
    /// Where they are taken.
    pub into: Transport,
}

/// Where frames are taken.
#[derive(Debug, Clone)]
pub enum Transport {
    /// The embedded log.
    Log {
        /// Its folder.
        dir: PathBuf,
        /// Partitions of each topic, where they are created.
        partitions: u32,
        /// Its bounds.
        options: local::Options,
    },
    /// Kafka.
    Kafka(broker::Options),
}

impl PublishConfig {
    /// The configuration that these arguments, and the file they name, add up to.
    pub fn load(args: PublishArgs) -> Result<Self, ConfigError> {
        let file: File = read(args.config.as_deref(), KEYS)?;
        let kafka = kafka(file.kafka, args.kafka, false)?;
        let (partitions, options) = log_bounds(file.log_partitions, file.log_retention, file.log_retention_bytes)?;
        let into = match (one_log(args.log_dir.or(file.log_dir), kafka.is_some())?, kafka) {
            (Some(dir), _) => Transport::Log { dir, partitions, options },
            (None, Some(options)) => Transport::Kafka(options),
            (None, None) => return Err(NO_LOG),
        };
        Ok(PublishConfig { file: args.file, from_frame: args.from_frame, into })
    }
}

/// What was taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Published {
    /// Frames read, those that were passed over too.
    pub frames: u64,
    /// Scrape rounds.
    pub rounds: u64,
    /// Holdings.
    pub holdings: u64,
    /// States of demand.
    pub demands: u64,
    /// States of nodes.
    pub nodes: u64,
    /// Messages that these came to.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Parts of rounds that no message had room for.
    pub left_out: u64,
}

/// Why frames could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum FramesError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file is damaged, cut, or no file of frames.
    #[error(
        "{path}: frame {frame}, at byte {byte}: {what}; was it written by `strandline-sim backfill --frames`, and to its end?"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The frame, from 0.
        frame: u64,
        /// Where it begins.
        byte: u64,
        /// What is wrong.
        what: String,
    },
    /// The log cannot be opened.
    #[error("cannot open the log")]
    Open(#[source] TransportError),
    /// The log did not take a batch.
    #[error("the log takes no more; frames before {frame} are taken: go on with --from-frame {frame}")]
    Produce {
        /// The first frame that is not known to be taken.
        frame: u64,
        /// Why.
        #[source]
        source: Box<TransportError>,
    },
}

/// Takes every frame of the file. `clock` dates the messages, `done` hears of every batch. Blocks.
pub fn publish(
    config: &PublishConfig,
    clock: impl Fn() -> Timestamp,
    mut done: impl FnMut(&Published),
) -> Result<Published, FramesError> {
    let topics = Topics::open(&config.into).map_err(FramesError::Open)?;
    let mut frames = Frames::open(&config.file)?;
    let (mut published, mut batch) = (Published::default(), Batch::default());
    let mut taken = 0;
    while let Some(frame) = frames.next()? {
        published.frames += 1;
        if published.frames <= config.from_frame {
            continue;
        }
        batch.add(frame, clock(), &mut published);
        if batch.records >= BATCH_RECORDS || batch.bytes >= BATCH_BYTES {
            batch.produce(&topics).map_err(|source| FramesError::Produce { frame: taken, source: source.into() })?;
            taken = published.frames;
            done(&published);
        }
    }
    batch.produce(&topics).map_err(|source| FramesError::Produce { frame: taken, source: source.into() })?;
    Ok(published)
}

/// The topics, and what keeps them open.
struct Topics {
    samples: Arc<dyn Topic>,
    allocations: Arc<dyn Topic>,
    nodes: Arc<dyn Topic>,
    _log: Option<Log>,
}

impl Topics {
    fn open(into: &Transport) -> Result<Self, TransportError> {
        const NAMES: [&str; 3] = [SAMPLES, ALLOCATIONS, NODES];
        match into {
            Transport::Log { dir, partitions, options } => {
                let specs = NAMES.map(|name| TopicSpec { name, partitions: *partitions });
                let log = Log::open(dir, &specs, *options)?;
                let [samples, allocations, nodes] = NAMES.map(|name| log.topic(name));
                Ok(Topics { samples: samples?, allocations: allocations?, nodes: nodes?, _log: Some(log) })
            }
            Transport::Kafka(options) => {
                let kafka = Kafka::new(options.clone())?;
                kafka.prepare(&NAMES)?;
                let one = |name: &'static str| -> Result<Arc<dyn Topic>, TransportError> {
                    let missing = || TransportError::NoTopic { topic: name.to_owned(), path: "Kafka".into() };
                    kafka.topics(&[name])?.into_iter().next().map(|topic| topic as Arc<dyn Topic>).ok_or_else(missing)
                };
                Ok(Topics { samples: one(SAMPLES)?, allocations: one(ALLOCATIONS)?, nodes: one(NODES)?, _log: None })
            }
        }
    }
}

/// Records that are produced together, holdings before the samples that they explain.
#[derive(Default)]
struct Batch {
    samples: Vec<Record>,
    allocations: Vec<Record>,
    nodes: Vec<Record>,
    records: usize,
    bytes: usize,
}

impl Batch {
    fn add(&mut self, content: frame::Content, now: Timestamp, published: &mut Published) {
        let (records, into) = match content {
            frame::Content::Round(round) => {
                published.rounds += 1;
                let (records, left_out) = publish::round(round, MAX_MESSAGE_BYTES);
                published.left_out += left_out;
                (records, &mut self.samples)
            }
            frame::Content::Allocation(allocation) => {
                let record = match allocation.state {
                    Some(allocation::State::Holding(holding)) => {
                        published.holdings += 1;
                        Some(publish::holding(holding))
                    }
                    Some(allocation::State::Demand(demand)) => {
                        published.demands += 1;
                        Some(publish::demand(demand))
                    }
                    None => None,
                };
                (record.into_iter().collect(), &mut self.allocations)
            }
            frame::Content::Node(node) => {
                published.nodes += 1;
                (vec![publish::node(&node)], &mut self.nodes)
            }
        };
        for record in records {
            let record = Record { at_ms: now.ms(), ..record };
            self.records += 1;
            self.bytes += record.value.len();
            published.messages += 1;
            published.bytes += record.value.len() as u64;
            into.push(record);
        }
    }

    fn produce(&mut self, topics: &Topics) -> Result<(), TransportError> {
        for (topic, records) in
            [(&topics.allocations, &mut self.allocations), (&topics.nodes, &mut self.nodes), (&topics.samples, &mut self.samples)]
        {
            let mut wait = FIRST_WAIT;
            for attempt in 1.. {
                match if records.is_empty() { Ok(Vec::new()) } else { topic.produce(records) } {
                    Ok(_) => break,
                    Err(error) if error.passes() && attempt < TRIES => {
                        tracing::warn!(topic = topic.name(), %error, "the log did not take a batch; it is tried again");
                        std::thread::sleep(wait);
                        wait *= 2;
                    }
                    Err(error) => return Err(error),
                }
            }
            records.clear();
        }
        (self.records, self.bytes) = (0, 0);
        Ok(())
    }
}

/// Frames of a file, one after the other.
struct Frames {
    path: PathBuf,
    from: Box<dyn BufRead>,
    frame: u64,
    byte: u64,
    buffer: Vec<u8>,
}

impl Frames {
    fn open(path: &Path) -> Result<Self, FramesError> {
        let from: Box<dyn BufRead> = if path == Path::new("-") {
            Box::new(BufReader::with_capacity(1 << 20, io::stdin()))
        } else {
            let failed = |source| FramesError::Read { path: path.to_owned(), source };
            Box::new(BufReader::with_capacity(1 << 20, std::fs::File::open(path).map_err(failed)?))
        };
        Ok(Frames { path: path.to_owned(), from, frame: 0, byte: 0, buffer: Vec::new() })
    }

    fn next(&mut self) -> Result<Option<frame::Content>, FramesError> {
        let Some((length, prefix)) = self.length()? else { return Ok(None) };
        if length > MAX_FRAME_BYTES as u64 {
            return Err(self.damaged(format!("has {length} bytes, more than {MAX_FRAME_BYTES}")));
        }
        self.buffer.clear();
        let read = (&mut self.from).take(length).read_to_end(&mut self.buffer);
        let read = read.map_err(|source| FramesError::Read { path: self.path.clone(), source })?;
        if (read as u64) < length {
            return Err(self.damaged(format!("ends after {read} of {length} bytes")));
        }
        let frame = Frame::decode(&*self.buffer).map_err(|error| self.damaged(error.to_string()))?;
        let content = frame.content.ok_or_else(|| self.damaged("says nothing that this version knows".to_owned()))?;
        self.frame += 1;
        self.byte += prefix + length;
        Ok(Some(content))
    }

    /// The length of the next frame, and how many bytes say it; none at the end of the file.
    fn length(&mut self) -> Result<Option<(u64, u64)>, FramesError> {
        let mut length = 0u64;
        for at in 0..10u64 {
            let mut byte = [0];
            match self.from.read_exact(&mut byte) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && at == 0 => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(self.damaged("ends inside its length".to_owned()));
                }
                Err(source) => return Err(FramesError::Read { path: self.path.clone(), source }),
            }
            length |= u64::from(byte[0] & 0x7f) << (7 * at);
            if byte[0] & 0x80 == 0 {
                return Ok(Some((length, at + 1)));
            }
        }
        Err(self.damaged("begins with no length".to_owned()))
    }

    fn damaged(&self, what: String) -> FramesError {
        FramesError::Damaged { path: self.path.clone(), frame: self.frame, byte: self.byte, what }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::transport::local::Log;
    use schemas::proto::{Allocation, Holding, Node, ScrapeRound};

    fn round(sequence: u64) -> frame::Content {
        frame::Content::Round(ScrapeRound { cluster: "c".into(), node: "n".into(), sequence, at_ms: 5, ..Default::default() })
    }

    fn file(contents: &[frame::Content]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for content in contents {
            let frame = Frame { delivered_ms: 9, content: Some(content.clone()) };
            frame.encode_length_delimited(&mut bytes).unwrap();
        }
        bytes
    }

    fn send(bytes: &[u8], from_frame: u64, log: &Path) -> Result<Published, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f.frames");
        std::fs::write(&path, bytes).unwrap();
        let into = Transport::Log { dir: log.to_owned(), partitions: 1, options: local::Options::default() };
        let config = PublishConfig { file: path, from_frame, into };
        publish(&config, || Timestamp::from_ms(1_800_000_000_000), |_| {}).map_err(|error| {
            let text = error.to_string();
            text.rsplit_once("f.frames: ").map_or(text.clone(), |(_, rest)| rest.to_owned())
        })
    }

    fn sequences(log: &Path) -> Vec<(u64, i64)> {
        let log = Log::open(log, &[], local::Options::default()).unwrap();
        let fetched = log.topic(SAMPLES).unwrap().fetch(0, 0, 1 << 20).unwrap();
        let of = |m: &crate::transport::Message| (ScrapeRound::decode(&*m.value).unwrap().sequence, m.at_ms);
        fetched.messages.iter().map(of).collect()
    }

    #[test]
    fn every_message_goes_to_its_topic_dated_now_and_a_file_can_be_gone_on_with() {
        let log = tempfile::tempdir().unwrap();
        let held = Allocation { state: Some(allocation::State::Holding(Holding { id: "h".into(), ..Default::default() })) };
        let contents = [
            frame::Content::Allocation(held),
            round(1),
            frame::Content::Node(Node { node: "n".into(), ..Default::default() }),
            round(2),
        ];
        let sent = send(&file(&contents), 0, log.path()).unwrap();
        assert_eq!((sent.frames, sent.rounds, sent.holdings, sent.nodes, sent.messages), (4, 2, 1, 1, 4));
        let sent = send(&file(&contents), 3, log.path()).unwrap();
        assert_eq!((sent.frames, sent.rounds, sent.messages), (4, 1, 1));
        let now = 1_800_000_000_000;
        assert_eq!(sequences(log.path()), [(1, now), (2, now), (2, now)]);
    }

    #[test]
    fn what_is_no_file_of_frames_is_refused_with_its_place() {
        let log = tempfile::tempdir().unwrap();
        let good = file(&[round(1), round(2)]);
        let one = good.len() / 2;
        for (bytes, says) in [
            (good[..good.len() - 1].to_vec(), format!("frame 1, at byte {one}: ends after {} of {} bytes", one - 2, one - 1)),
            (b"# HELP DCGM_FI_DEV_GPU_UTIL x\n".to_vec(), "frame 0, at byte 0: ".to_owned()),
            (vec![0xff; 12], "frame 0, at byte 0: begins with no length".to_owned()),
            (vec![0xff, 0xff, 0xff, 0x7f], "frame 0, at byte 0: has 268435455 bytes, more than 16777216".to_owned()),
            (vec![2, 0x08, 2], "frame 0, at byte 0: says nothing that this version knows".to_owned()),
        ] {
            let refused = send(&bytes, 0, log.path()).unwrap_err();
            assert!(refused.starts_with(&says), "{refused}");
        }
        assert_eq!(send(&[], 0, log.path()).unwrap(), Published::default());
    }
}
