//! Seeded chaos in a small world: a log in memory, an agent's spool and a lake on disk; agent and sinks that are killed, a broker
//! that is away, answers that are lost, a disk that is full, clocks that jump, sinks that share partitions out anew, fight for
//! them and read what they have read, a log that loses what nobody has read, and at last a topic that is made anew.

use crate::path::{closed, closer};
use ingest::publish::SAMPLES;
use ingest::sink::{self, Sink, SinkError};
use ingest::transport::spool::{self, Spool};
use ingest::transport::{Bounds, Fetched, Message, Position, Record, Topic, TopicId, TransportError, partition_of};
use lake::{Lake, LakeError};
use schemas::proto::{Message as _, ScrapeRound};
use schemas::{Timestamp, tables};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

const PARTITIONS: u32 = 2;
const HOUR: i64 = 1_772_445_600_000;

/// What must have happened over all seeds, or the chaos is not what it says.
const FAULTS: [&str; 17] = [
    "agent killed",
    "broker away",
    "clock of a sink put back",
    "clock of an agent jumped",
    "disk full",
    "fetch failed",
    "hour reopened",
    "lost unread",
    "message delivered twice",
    "message sent twice",
    "nobody holds a partition",
    "response lost",
    "sink killed",
    "spool dropped the oldest",
    "spool torn",
    "swap lost",
    "topic made anew",
];

/// What brokers hold, and what befalls everybody.
#[derive(Default)]
struct World {
    parts: [Part; PARTITIONS as usize],
    incarnation: u64,
    now: i64,
    away_until: i64,
    full_until: i64,
    /// How often each fault has happened.
    seen: BTreeMap<&'static str, u64>,
}

/// A partition: all that it ever took, and from where on it still has it.
#[derive(Default)]
struct Part {
    messages: Vec<Message>,
    start: u64,
}

impl World {
    fn saw(&mut self, fault: &'static str) {
        *self.seen.entry(fault).or_default() += 1;
    }
}

/// One client's view of it: what it believes to hold, and how it is deceived.
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

    /// The world, where it can be reached.
    fn reach(&self) -> Result<MutexGuard<'_, World>, TransportError> {
        let mut world = self.world.lock().unwrap();
        if world.now < world.away_until {
            world.saw("broker away");
            return Err(self.late());
        }
        Ok(world)
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
        let mut world = self.reach()?;
        let mut out = Vec::new();
        for record in records {
            let partition = partition_of(&record.key, PARTITIONS);
            let messages = &mut world.parts[partition as usize].messages;
            let offset = messages.len() as u64;
            messages.push(Message {
                offset,
                key: record.key.clone().into(),
                value: record.value.clone().into(),
                at_ms: record.at_ms,
            });
            out.push(Position { partition, offset });
        }
        // Now and then the answer is lost: the batch is there, and its producer does not know.
        if self.chance(6) {
            world.saw("response lost");
            return Err(self.late());
        }
        Ok(out)
    }

    fn fetch(&self, partition: u32, from: u64, _: usize) -> Result<Fetched, TransportError> {
        let bounds = self.bounds(partition)?;
        let mut world = self.reach()?;
        if self.chance(25) {
            world.saw("fetch failed");
            return Err(self.late());
        }
        if from > bounds.end || from < bounds.start {
            return Err(TransportError::OutOfRange { topic: SAMPLES.to_owned(), partition, from, bounds });
        }
        // Now and then it delivers from before what was asked for, and only a piece.
        let back = if self.chance(3) { 3 } else { 0 };
        let most = if self.chance(2) { 4 } else { 1000 };
        let at = from.saturating_sub(back).max(bounds.start);
        if at < from {
            world.saw("message delivered twice");
        }
        let all = &world.parts[partition as usize].messages;
        let messages: Vec<Message> = all.iter().skip(at as usize).take(most + back as usize).cloned().collect();
        let next = messages.last().map_or(from, |m| m.offset + 1).max(from);
        Ok(Fetched { messages, next, lost: Vec::new() })
    }

    fn bounds(&self, partition: u32) -> Result<Bounds, TransportError> {
        let world = self.reach()?;
        let part = &world.parts[partition as usize];
        Ok(Bounds { start: part.start, end: part.messages.len() as u64 })
    }

    fn verify(&self) -> Result<(), TransportError> {
        let now = self.reach()?.incarnation;
        if now == self.incarnation {
            return Ok(());
        }
        Err(TransportError::Recreated { topic: SAMPLES.to_owned(), was: self.id(), now: id(now) })
    }

    fn assigned(&self) -> Result<BTreeSet<u32>, TransportError> {
        Ok(self.mine.lock().unwrap().clone())
    }
}

/// One agent and what it has had taken, over all of its lives.
struct AgentOf {
    dir: PathBuf,
    spool: Option<Spool>,
    sequence: u64,
    /// Rounds that were taken, as `node sequence`.
    taken: BTreeSet<String>,
    /// Messages that its spools dropped, as its lives counted them.
    dropped: u64,
}

impl AgentOf {
    /// The spool of this life; it is opened where there is none.
    fn spool(&mut self, there: &Arc<dyn Topic>) -> &Spool {
        // Some fifteen rounds.
        let options = spool::Options { bytes: 1600, ..spool::Options::default() };
        let open = || {
            let there = there.clone();
            let connect: spool::Connect = Box::new(move || Ok(there.clone()));
            Spool::open(&self.dir, vec![(SAMPLES, connect)], options)
        };
        self.spool.get_or_insert_with(|| open().unwrap())
    }

    /// Has some rounds taken.
    fn take(&mut self, random: &mut u64, there: &Arc<dyn Topic>, world: &Mutex<World>) {
        let mut batch = Vec::new();
        let mut names = Vec::new();
        for _ in 0..1 + draw(random, 8) {
            let node = format!("n{}", draw(random, 5));
            // Its clock jumps: backwards, and into the hour after.
            let jump = match draw(random, 10) {
                0 => -1_800_000,
                1 => 3_600_000,
                _ => 0,
            };
            if jump != 0 {
                world.lock().unwrap().saw("clock of an agent jumped");
            }
            names.push(format!("{node} {}", self.sequence));
            batch.push(round(&node, self.sequence, HOUR + 1_800_000 + self.sequence as i64 * 1000 + jump));
            self.sequence += 1;
        }
        let spool = self.spool(there);
        spool.topic(SAMPLES).unwrap().produce(&batch).unwrap();
        spool.retain(HOUR).unwrap();
        self.taken.extend(names);
    }

    /// `kill -9`, at times in the middle of a write to the spool.
    fn kill(&mut self, random: &mut u64, world: &Mutex<World>) {
        let Some(spool) = self.spool.take() else { return };
        self.dropped += spool.counts().dropped.load(Ordering::Relaxed);
        drop(spool);
        world.lock().unwrap().saw("agent killed");
        if draw(random, 2) == 0 {
            let folder = self.dir.join(SAMPLES).join(SAMPLES).join("00000");
            let mut segments: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
            segments.retain(|path| path.extension().is_some_and(|end| end == "log"));
            segments.sort();
            let last = std::fs::OpenOptions::new().append(true).open(segments.last().unwrap());
            last.unwrap().write_all(&[80, 0, 0, 0, 1, 2, 3]).unwrap();
            world.lock().unwrap().saw("spool torn");
        }
    }
}

fn round(node: &str, sequence: u64, at_ms: i64) -> Record {
    let round = ScrapeRound {
        cluster: "reef".into(),
        node: node.into(),
        source: "s".into(),
        at_ms,
        sequence,
        status: "ok".into(),
        ..ScrapeRound::default()
    };
    Record { key: format!("reef/{node}").into_bytes(), value: round.encode_to_vec(), at_ms }
}

fn name(message: &Message) -> String {
    let round = ScrapeRound::decode(&*message.value).unwrap();
    format!("{} {}", round.node, round.sequence)
}

struct SinkOf {
    sink: Option<Sink>,
    mine: Arc<Mutex<BTreeSet<u32>>>,
    /// Whether its operator has said that it may go on without what is lost.
    skip_lost: bool,
}

/// Where files cost no disk: what is killed here are processes, and what they had written stays.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// One world, and the faults that it has seen.
fn run(seed: u64) -> BTreeMap<&'static str, u64> {
    let random = &mut seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let dir = folder();
    let lake = Lake::create(&dir.path().join("lake")).unwrap();
    // Twenty minutes before an hour is over: it closes in the middle, and what comes late opens it again.
    let world = Arc::new(Mutex::new(World { now: HOUR + 2_400_000, ..World::default() }));
    let view = |random: &mut u64, mine: &Arc<Mutex<BTreeSet<u32>>>| -> Arc<dyn Topic> {
        let incarnation = world.lock().unwrap().incarnation;
        Arc::new(View { world: world.clone(), incarnation, mine: mine.clone(), random: Mutex::new(draw(random, u64::MAX)) })
    };
    let everything: BTreeSet<u32> = (0..PARTITIONS).collect();
    let all = Arc::new(Mutex::new(everything.clone()));
    let mut sinks: Vec<SinkOf> =
        (0..2).map(|_| SinkOf { sink: None, mine: Arc::new(Mutex::new(everything.clone())), skip_lost: false }).collect();
    let there = view(random, &all);
    let dir_of_spool = dir.path().join("spool");
    let mut agent = AgentOf { dir: dir_of_spool, spool: None, sequence: 0, taken: BTreeSet::new(), dropped: 0 };
    let mut overrun = false;
    for _ in 0..60 {
        // The sinks' clock jumps too.
        let step = draw(random, 120_000) as i64 - 20_000;
        let now = {
            let mut world = world.lock().unwrap();
            world.now += step;
            if step < 0 {
                world.saw("clock of a sink put back");
            }
            world.now
        };
        match draw(random, 16) {
            0..=4 => agent.take(random, &there, &world),
            5 => agent.kill(random, &world),
            6 => {
                // What waits goes on; an error is for the next time.
                let _ = agent.spool(&there).forward();
            }
            7 => {
                // The group shares out anew: apart, together, or to nobody for a while.
                for of in &sinks {
                    let some: BTreeSet<u32> = everything.iter().copied().filter(|_| draw(random, 3) > 0).collect();
                    *of.mine.lock().unwrap() = some;
                }
                let held = |p| sinks.iter().any(|of| of.mine.lock().unwrap().contains(&p));
                if !everything.iter().all(|p| held(*p)) {
                    world.lock().unwrap().saw("nobody holds a partition");
                }
            }
            8 => match draw(random, 6) {
                0 => world.lock().unwrap().away_until = now + draw(random, 600_000) as i64,
                1 => world.lock().unwrap().full_until = now + draw(random, 600_000) as i64,
                2 if !overrun => {
                    overrun = true;
                    let part = &mut world.lock().unwrap().parts[draw(random, 2) as usize];
                    part.start = draw(random, part.messages.len() as u64 + 1);
                }
                _ => close(&lake, now, &world),
            },
            _ => {
                let of = &mut sinks[draw(random, 2) as usize];
                if of.sink.is_none() {
                    let topic = view(random, &of.mine);
                    let options =
                        sink::Options { cut_rows: 5, cut_age_ms: 60_000, skip_lost: of.skip_lost, ..sink::Options::default() };
                    of.sink = open(&lake, topic, options, seed, &mut of.skip_lost);
                }
                let Some(sink) = &mut of.sink else { continue };
                // Killed at a step, or not this time.
                let mut left = draw(random, 40);
                sink.on_step(move |_| {
                    left = left.saturating_sub(1);
                    if left == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                fill(sink, &world);
                let flush = draw(random, 3) == 0;
                let now = Timestamp::from_ms(now);
                match if flush { sink.flush(now) } else { sink.step(now) } {
                    Ok(report) => (0..report.lost_swaps).for_each(|_| world.lock().unwrap().saw("swap lost")),
                    Err(error) => {
                        of.sink = None;
                        match error {
                            SinkError::Stopped(_) => world.lock().unwrap().saw("sink killed"),
                            SinkError::Log(error) if error.passes() => {}
                            SinkError::Lake(error) if error.is_disk_full() => {}
                            SinkError::Lost { .. } => of.skip_lost = true,
                            error => panic!("seed {seed}: {error}"),
                        }
                    }
                }
            }
        }
    }
    {
        let mut world = world.lock().unwrap();
        (world.away_until, world.full_until) = (0, 0);
    }
    // The agent's last life sends what waits.
    while agent.spool(&there).forward().unwrap_or(true) {}
    agent.dropped += agent.spool(&there).counts().dropped.load(Ordering::Relaxed);
    let taken = &agent.taken;
    none_is_missing(&mut world.lock().unwrap(), taken, agent.dropped, seed);
    let far = Timestamp::from_ms(HOUR + 100 * 3_600_000);
    read_all(&lake, |random| view(random, &all), random, (far, false), seed);
    closer(lake.clone()).close(far, far).unwrap();
    let before = rounds_in_lake(&lake, &world.lock().unwrap(), seed);
    assert_eq!(closed_rounds(&lake), before, "seed {seed}");
    if !lost_offsets(&lake).is_empty() {
        world.lock().unwrap().saw("lost unread");
    }

    made_anew(&lake, |random| view(random, &all), random, &world, seed);
    closer(lake.clone()).close(far, far).unwrap();
    let mut both = before;
    both.extend(rounds_in_lake(&lake, &world.lock().unwrap(), seed));
    assert_eq!(closed_rounds(&lake), both, "seed {seed}");
    let world = world.lock().unwrap();
    world.seen.clone()
}

/// Writes find the disk full for as long as the world says.
fn fill(sink: &mut Sink, world: &Arc<Mutex<World>>) {
    let world = world.clone();
    sink.on_write(move |key, table| {
        let mut world = world.lock().unwrap();
        if world.now >= world.full_until {
            return Ok(());
        }
        world.saw("disk full");
        Err(LakeError::Io { what: "write", path: key.path(table).into(), source: Error::from(ErrorKind::StorageFull) })
    });
}

/// Closes the hours that are over, whatever is still to come of them.
fn close(lake: &Lake, now: i64, world: &Mutex<World>) {
    let files = |lake: &Lake| lake.closed_files(tables::get("scrapes"), None).unwrap().len();
    let before = files(lake);
    let now = Timestamp::from_ms(now);
    let report = closer(lake.clone()).close(now, now).unwrap();
    if report.parts.get("scrapes").is_some_and(|parts| *parts > (files(lake) - before) as u64) {
        world.lock().unwrap().saw("hour reopened");
    }
}

/// None where the log cannot be reached this time, or has lost what nobody had read.
fn open(lake: &Lake, topic: Arc<dyn Topic>, options: sink::Options, seed: u64, skip_lost: &mut bool) -> Option<Sink> {
    match Sink::open(lake.clone(), vec![topic], options) {
        Ok(sink) => Some(sink),
        Err(SinkError::Log(error)) if error.passes() => None,
        Err(SinkError::Lost { .. }) => {
            *skip_lost = true;
            None
        }
        Err(error) => panic!("seed {seed}: {error}"),
    }
}

/// A sink of its own reads what is left.
fn read_all(
    lake: &Lake,
    view: impl Fn(&mut u64) -> Arc<dyn Topic>,
    random: &mut u64,
    (now, accept_new_topic): (Timestamp, bool),
    seed: u64,
) {
    let mut skip_lost = false;
    loop {
        let options = sink::Options { skip_lost, accept_new_topic, ..sink::Options::default() };
        let Some(mut sink) = open(lake, view(random), options, seed, &mut skip_lost) else { continue };
        match sink.flush(now) {
            Ok(report) if report.unread() == 0 => return,
            Ok(_) => {}
            Err(SinkError::Log(error)) if error.passes() => {}
            Err(SinkError::Lost { .. }) => skip_lost = true,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
}

/// Every round that was taken is with the broker, or was counted as dropped by the spool.
fn none_is_missing(world: &mut World, taken: &BTreeSet<String>, dropped: u64, seed: u64) {
    let sent: Vec<String> = world.parts.iter().flat_map(|part| part.messages.iter().map(name)).collect();
    let distinct: BTreeSet<&String> = sent.iter().collect();
    let missing = taken.iter().filter(|round| !distinct.contains(round)).count() as u64;
    assert!(missing <= dropped, "seed {seed}: {missing} rounds are missing, {dropped} were dropped");
    assert!(distinct.iter().all(|round| taken.contains(*round)), "seed {seed}: a round that nobody took");
    if sent.len() > distinct.len() {
        world.saw("message sent twice");
    }
    if missing > 0 {
        world.saw("spool dropped the oldest");
    }
}

/// The topic is made anew, with more messages: who still holds the old one publishes nothing of the new, and neither does who
/// comes anew, until it is told.
fn made_anew(lake: &Lake, view: impl Fn(&mut u64) -> Arc<dyn Topic>, random: &mut u64, world: &Arc<Mutex<World>>, seed: u64) {
    if world.lock().unwrap().parts.iter().all(|part| part.messages.is_empty()) {
        return;
    }
    let now = Timestamp::from_ms(HOUR + 100 * 3_600_000);
    let mut held = loop {
        if let Some(sink) = open(lake, view(random), sink::Options::default(), seed, &mut false) {
            break sink;
        }
    };
    {
        let mut world = world.lock().unwrap();
        world.incarnation += 1;
        let old = std::mem::take(&mut world.parts).map(|part| part.messages.len());
        for sequence in 10_000.. {
            // Of a time that no round has had yet.
            let record = round(&format!("n{}", draw(random, 5)), sequence, HOUR + 20 * 3_600_000 + sequence as i64);
            let part = &mut world.parts[partition_of(&record.key, PARTITIONS) as usize].messages;
            let offset = part.len() as u64;
            part.push(Message { offset, key: record.key.into(), value: record.value.into(), at_ms: record.at_ms });
            if world.parts.iter().zip(&old).all(|(part, old)| part.messages.len() > *old) {
                break;
            }
        }
        world.saw("topic made anew");
    }
    let files = lake.hot_files(tables::get("gpu_samples")).unwrap();
    let stopped = loop {
        match held.flush(now) {
            Err(SinkError::Log(error)) if error.passes() => {}
            result => break result,
        }
    };
    assert!(matches!(stopped, Err(SinkError::Recreated { .. })), "seed {seed}: {stopped:?}");
    let refused = Sink::open(lake.clone(), vec![view(random)], sink::Options::default()).map(drop);
    assert!(matches!(refused, Err(SinkError::Recreated { .. })), "seed {seed}: {refused:?}");
    assert_eq!(lake.hot_files(tables::get("gpu_samples")).unwrap(), files, "seed {seed}");
    read_all(lake, view, random, (now, true), seed);
}

/// Offsets of rounds in the hot tree, by topic id and partition, in no order.
pub fn hot_offsets_by_topic(lake: &Lake) -> BTreeMap<(TopicId, u32), Vec<u64>> {
    use arrow::array::AsArray;
    let mut offsets: BTreeMap<(TopicId, u32), Vec<u64>> = BTreeMap::new();
    let scrapes = tables::get("scrapes");
    for file in lake.hot_files(scrapes).unwrap() {
        for batch in lake::read::rows(scrapes, &file.path, Some(&["log_offset"])).unwrap() {
            let column = batch.column(0).as_primitive::<arrow::datatypes::Int64Type>();
            let key = (file.key.topic_id.clone(), file.key.partition);
            offsets.entry(key).or_default().extend(column.values().iter().map(|o| *o as u64));
        }
    }
    offsets
}

/// The same of a lake that knows one topic, by partition.
pub fn hot_offsets(lake: &Lake) -> BTreeMap<u32, Vec<u64>> {
    hot_offsets_by_topic(lake).into_iter().map(|((_, partition), offsets)| (partition, offsets)).collect()
}

/// Offsets that `rejects` says were lost unread, by topic id and partition.
fn lost_offsets(lake: &Lake) -> BTreeMap<(TopicId, u32), Vec<u64>> {
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;
    let mut offsets: BTreeMap<(TopicId, u32), Vec<u64>> = BTreeMap::new();
    let rejects = tables::get("rejects");
    for file in lake.hot_files(rejects).unwrap() {
        for batch in lake::read::rows(rejects, &file.path, Some(&["reason", "rows", "log_offset"])).unwrap() {
            let reasons = batch.column(0).as_string::<i32>();
            let (rows, from) = (batch.column(1).as_primitive::<Int64Type>(), batch.column(2).as_primitive::<Int64Type>());
            for row in (0..batch.num_rows()).filter(|row| reasons.value(*row) == "lost") {
                let range = from.value(row) as u64..(from.value(row) + rows.value(row)) as u64;
                offsets.entry((file.key.topic_id.clone(), file.key.partition)).or_default().extend(range);
            }
        }
    }
    offsets
}

/// Proves that the hot tree has every offset of the world once, or counts it as lost, and returns the rounds that it has.
fn rounds_in_lake(lake: &Lake, world: &World, seed: u64) -> BTreeSet<String> {
    let (mut offsets, mut lost) = (hot_offsets_by_topic(lake), lost_offsets(lake));
    let mut rounds = BTreeSet::new();
    for (partition, part) in (0..).zip(&world.parts) {
        let key = (id(world.incarnation), partition);
        let found = offsets.remove(&key).unwrap_or_default();
        rounds.extend(found.iter().map(|offset| name(&part.messages[*offset as usize])));
        let mut all = [found, lost.remove(&key).unwrap_or_default()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..part.messages.len() as u64).collect::<Vec<_>>(), "seed {seed}: partition {partition}");
    }
    assert_eq!(lake.tiles().unwrap().faults, Vec::<String>::new(), "seed {seed}");
    rounds
}

/// Every round of the closed tree, which has none twice.
fn closed_rounds(lake: &Lake) -> BTreeSet<String> {
    let rows = closed(lake, "scrapes", &["node", "sequence"]);
    let rounds: BTreeSet<String> = rows.iter().cloned().collect();
    assert_eq!(rounds.len(), rows.len(), "a round is in the closed tree twice");
    let lost: i64 = closed(lake, "rejects", &["rows"]).iter().map(|rows| rows.parse::<i64>().unwrap()).sum();
    assert_eq!(lost as usize, lost_offsets(lake).values().map(Vec::len).sum::<usize>(), "what is lost is counted");
    rounds
}

#[test]
fn two_hundred_seeds_of_chaos_lose_and_double_nothing() {
    if let Some(seed) = std::env::var("STRANDLINE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        // One that failed, again.
        println!("seed {seed}: {:?}", run(seed));
        return;
    }
    let seeds = if std::env::var_os("STRANDLINE_FULL").is_some() { 2000 } else { 200 };
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 1..=seeds {
        // A panic inside does not always know its seed.
        println!("seed {seed}");
        for (fault, count) in run(seed) {
            *seen.entry(fault).or_default() += count;
        }
    }
    println!("{seen:?}");
    let missing: Vec<&str> = FAULTS.into_iter().filter(|fault| !seen.contains_key(fault)).collect();
    assert_eq!(missing, [""; 0], "faults that never happened");
}
