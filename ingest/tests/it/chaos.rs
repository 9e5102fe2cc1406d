//! Seeded chaos in a small world: a log in memory, a lake on disk, sinks that are killed at any step, share partitions out anew,
//! fight for them, read what they have read, and lose their topic.

use crate::path::{closed, closer};
use ingest::publish::SAMPLES;
use ingest::sink::{self, Sink, SinkError};
use ingest::transport::{Bounds, Fetched, Message, Position, Record, Topic, TopicId, TransportError, partition_of};
use lake::Lake;
use schemas::proto::{Message as _, ScrapeRound};
use schemas::{Timestamp, tables};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

const PARTITIONS: u32 = 2;
const HOUR: i64 = 1_772_445_600_000;

/// What brokers hold: messages by partition, and the topic's id.
#[derive(Default)]
struct World {
    parts: [Vec<Message>; PARTITIONS as usize],
    incarnation: u64,
}

/// One reader's view of it: what it believes to hold, and how it is deceived.
struct View {
    world: Arc<Mutex<World>>,
    incarnation: u64,
    mine: Arc<Mutex<BTreeSet<u32>>>,
    random: Mutex<u64>,
}

fn draw(random: &mut u64, below: u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) % below.max(1)
}

fn id(incarnation: u64) -> TopicId {
    TopicId::parse(&format!("{incarnation:032x}")).unwrap()
}

impl View {
    fn chance(&self, of: u64) -> bool {
        draw(&mut self.random.lock().unwrap(), of) == 0
    }

    fn late(&self) -> TransportError {
        TransportError::Late { what: "reach", brokers: "nowhere".to_owned(), wait: Default::default() }
    }
}

impl Topic for View {
    fn name(&self) -> &str {
        SAMPLES
    }

    fn id(&self) -> TopicId {
        id(self.incarnation)
    }

    fn partitions(&self) -> u32 {
        PARTITIONS
    }

    fn produce(&self, records: &[Record]) -> Result<Vec<Position>, TransportError> {
        let mut world = self.world.lock().unwrap();
        let mut out = Vec::new();
        for record in records {
            let partition = partition_of(&record.key, PARTITIONS);
            let part = &mut world.parts[partition as usize];
            let offset = part.last().map_or(0, |m| m.offset + 1);
            part.push(Message { offset, key: record.key.clone(), value: record.value.clone(), at_ms: record.at_ms });
            out.push(Position { partition, offset });
        }
        drop(world);
        // The answer is lost now and then: the batch is there, and its producer sends it again.
        if self.chance(6) { Err(self.late()) } else { Ok(out) }
    }

    fn fetch(&self, partition: u32, from: u64, _: usize) -> Result<Fetched, TransportError> {
        if self.chance(25) {
            return Err(self.late());
        }
        let bounds = self.bounds(partition)?;
        if from > bounds.end {
            return Err(TransportError::OutOfRange { topic: SAMPLES.to_owned(), partition, from, bounds });
        }
        // Now and then it delivers from before what was asked for, and only a piece.
        let back = if self.chance(3) { 3 } else { 0 };
        let most = if self.chance(2) { 4 } else { 1000 };
        let world = self.world.lock().unwrap();
        let at = usize::try_from(from.saturating_sub(back)).unwrap();
        let messages: Vec<Message> =
            world.parts[partition as usize].iter().skip(at).take(most + back as usize).cloned().collect();
        let next = messages.last().map_or(from, |m| m.offset + 1).max(from);
        Ok(Fetched { messages, next, lost: Vec::new() })
    }

    fn bounds(&self, partition: u32) -> Result<Bounds, TransportError> {
        let world = self.world.lock().unwrap();
        Ok(Bounds { start: 0, end: world.parts[partition as usize].len() as u64 })
    }

    fn verify(&self) -> Result<(), TransportError> {
        let now = self.world.lock().unwrap().incarnation;
        if now == self.incarnation {
            return Ok(());
        }
        Err(TransportError::Recreated { topic: SAMPLES.to_owned(), was: self.id(), now: id(now) })
    }

    fn assigned(&self) -> Result<BTreeSet<u32>, TransportError> {
        Ok(self.mine.lock().unwrap().clone())
    }
}

fn round(random: &mut u64, sequence: u64) -> Record {
    // A producer's clock jumps: backwards, and into the hour after.
    let jump = match draw(random, 10) {
        0 => -1_800_000,
        1 => 3_600_000,
        _ => 0,
    };
    let node = format!("n{}", draw(random, 5));
    let at_ms = HOUR + 1_800_000 + sequence as i64 * 1000 + jump;
    let round = ScrapeRound {
        cluster: "reef".into(),
        node: node.clone(),
        source: "s".into(),
        at_ms,
        sequence,
        status: "ok".into(),
        ..ScrapeRound::default()
    };
    Record { key: format!("reef/{node}").into_bytes(), value: round.encode_to_vec(), at_ms }
}

struct SinkOf {
    sink: Option<Sink>,
    mine: Arc<Mutex<BTreeSet<u32>>>,
}

fn run(seed: u64) {
    let random = &mut seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let dir = tempfile::tempdir().unwrap();
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    let world = Arc::new(Mutex::new(World::default()));
    let view = |random: &mut u64, mine: &Arc<Mutex<BTreeSet<u32>>>| -> Arc<dyn Topic> {
        let incarnation = world.lock().unwrap().incarnation;
        Arc::new(View { world: world.clone(), incarnation, mine: mine.clone(), random: Mutex::new(draw(random, u64::MAX)) })
    };
    let everything: BTreeSet<u32> = (0..PARTITIONS).collect();
    let mut sinks: Vec<SinkOf> = (0..2).map(|_| SinkOf { sink: None, mine: Arc::new(Mutex::new(everything.clone())) }).collect();
    let producer = view(random, &sinks[0].mine);
    let (mut sequence, mut steps, mut now) = (0, 0, HOUR);
    while steps < 40 {
        steps += 1;
        // The sinks' clock jumps too.
        now += draw(random, 120_000) as i64 - 20_000;
        match draw(random, 8) {
            0..=2 => {
                let batch: Vec<Record> = (0..1 + draw(random, 8)).map(|n| round(random, sequence + n)).collect();
                sequence += batch.len() as u64;
                while producer.produce(&batch).is_err() {}
            }
            3 => {
                // The group shares out anew: apart, together, or to nobody for a while.
                for of in &sinks {
                    let some: BTreeSet<u32> = everything.iter().copied().filter(|_| draw(random, 3) > 0).collect();
                    *of.mine.lock().unwrap() = some;
                }
            }
            _ => {
                let which = draw(random, 2) as usize;
                if sinks[which].sink.is_none() {
                    let topic = view(random, &sinks[which].mine);
                    let options = sink::Options { cut_rows: 5, cut_age_ms: 60_000, ..sink::Options::default() };
                    sinks[which].sink = open(lake.clone(), topic, options, seed);
                }
                let Some(sink) = &mut sinks[which].sink else { continue };
                // Killed at a step, or not this time.
                let mut left = draw(random, 40);
                sink.on_step(move |_| {
                    left = left.saturating_sub(1);
                    if left == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                let result =
                    if draw(random, 3) == 0 { sink.flush(Timestamp::from_ms(now)) } else { sink.step(Timestamp::from_ms(now)) };
                match result {
                    Ok(_) => {}
                    Err(SinkError::Stopped(_) | SinkError::Log(_)) => sinks[which].sink = None,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
        }
    }
    // A sink of its own reads what is left, and hours close.
    let last = Arc::new(Mutex::new(everything.clone()));
    let far = Timestamp::from_ms(HOUR + 100 * 3_600_000);
    loop {
        let Some(mut sink) = open(lake.clone(), view(random, &last), sink::Options::default(), seed) else { continue };
        match sink.flush(far) {
            Ok(report) if report.unread() == 0 => break,
            Ok(_) | Err(SinkError::Log(_)) => {}
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    closer(lake.clone()).close(far, far).unwrap();
    proof(&lake, &world.lock().unwrap(), seed);

    // The topic is created anew, with as many messages: who still held the old one publishes nothing of the new.
    let held = loop {
        if let Some(sink) = open(lake.clone(), view(random, &last), sink::Options::default(), seed) {
            break sink;
        }
    };
    let mut held = held;
    {
        let mut world = world.lock().unwrap();
        world.incarnation += 1;
        for part in &mut world.parts {
            let mut more = part.clone();
            more.iter_mut().for_each(|m| m.offset += part.len() as u64);
            part.extend(more);
        }
    }
    let files = lake.hot_files(tables::get("gpu_samples")).unwrap();
    if !world.lock().unwrap().parts.iter().all(Vec::is_empty) {
        let stopped = loop {
            match held.flush(far) {
                Err(SinkError::Log(TransportError::Late { .. })) => {}
                result => break result,
            }
        };
        assert!(matches!(stopped, Err(SinkError::Recreated { .. })), "seed {seed}: {stopped:?}");
        assert_eq!(lake.hot_files(tables::get("gpu_samples")).unwrap(), files, "seed {seed}");
    }
}

/// None where the log cannot be reached this time.
fn open(lake: Lake, topic: Arc<dyn Topic>, options: sink::Options, seed: u64) -> Option<Sink> {
    match Sink::open(lake, vec![topic], options) {
        Ok(sink) => Some(sink),
        Err(SinkError::Log(TransportError::Late { .. })) => None,
        Err(error) => panic!("seed {seed}: {error}"),
    }
}

/// Offsets of rounds in the hot tree, by partition, in no order.
pub fn hot_offsets(lake: &Lake) -> BTreeMap<u32, Vec<u64>> {
    use arrow::array::AsArray;
    let mut offsets: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let scrapes = tables::get("scrapes");
    for file in lake.hot_files(scrapes).unwrap() {
        for batch in lake::read::rows(scrapes, &file.path, Some(&["log_offset"])).unwrap() {
            let column = batch.column(0).as_primitive::<arrow::datatypes::Int64Type>();
            offsets.entry(file.key.partition).or_default().extend(column.values().iter().map(|o| *o as u64));
        }
    }
    offsets
}

/// Every offset in the hot tree once, every round in the closed tree once.
fn proof(lake: &Lake, world: &World, seed: u64) {
    let mut offsets = hot_offsets(lake);
    let mut taken = BTreeSet::new();
    for (partition, part) in world.parts.iter().enumerate() {
        let mut found = offsets.remove(&(partition as u32)).unwrap_or_default();
        found.sort_unstable();
        assert_eq!(found, part.iter().map(|m| m.offset).collect::<Vec<_>>(), "seed {seed}: partition {partition}");
        for message in part {
            let round = ScrapeRound::decode(&*message.value).unwrap();
            taken.insert(format!("{} {}", round.node, round.sequence));
        }
    }
    let tiles = lake.tiles().unwrap();
    assert_eq!(tiles.faults, Vec::<String>::new(), "seed {seed}");
    let mut found = closed(lake, "scrapes", &["node", "sequence"]);
    found.sort();
    assert_eq!(found, taken.into_iter().collect::<Vec<_>>(), "seed {seed}");
}

#[test]
fn two_hundred_seeds_of_chaos_lose_and_double_nothing() {
    let seeds = if std::env::var_os("STRANDLINE_FULL").is_some() { 2000 } else { 200 };
    for seed in 1..=seeds {
        // A panic inside does not always know its seed.
        println!("seed {seed}");
        run(seed);
    }
}
