//! The messages themselves, in the order in which they reach the log: length-delimited frames of `strandline.v1`.
//!
//! A round that is late comes at its time of delivery, one that is repeated comes again; they are made anew then and not kept.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    rc::Rc,
};

use exporter::Size;
use schemas::{
    Timestamp, Window,
    proto::{Allocation, DeviceSample, Frame, Message as _, Readings, ScrapeRound, Value, allocation, frame},
};

use super::{
    Agents, Dating, at,
    observe::{Listings, Observer},
    sightings::Walk,
    ticks,
};
use crate::{
    api::{self, ApiFacts},
    plan::Plan,
};

/// Whole states are published again after this long (DESIGN 3.3).
const SNAPSHOT_MS: i64 = 600_000;

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framed {
    /// Frames.
    pub frames: u64,
    /// Rounds among them, repeated ones too.
    pub rounds: u64,
    /// Rounds that came late.
    pub late: u64,
    /// Rounds that came once more.
    pub repeated: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Writes every message of `window` to `out`; `done` hears of every round of the fleet.
///
/// What the API server knows before the window is not told again but by the next snapshot, at most ten minutes into it.
pub fn write(plan: &Plan, window: Window, agents: &Agents, out: impl Write, mut done: impl FnMut(Framed)) -> io::Result<Framed> {
    let mut frames = Frames { out, framed: Framed::default(), buffer: Vec::new() };
    let mut nodes: Vec<Node<'_>> = (0..plan.nodes().len()).map(|node| Node::new(plan, node, agents)).collect();
    // Rounds that are still under way: when they come, node, number, and whether that is for the second time.
    let mut under_way: BTreeSet<(i64, usize, i64, bool)> = BTreeSet::new();
    let mut before = window.from().plus_ms(-1);
    let mut snapshot = window.from();
    for tick in ticks(plan, window) {
        let now = at(plan, tick);
        while let Some((due, ..)) = under_way.first().filter(|(due, ..)| *due <= now.ms()).copied() {
            deliver(&mut frames, &mut nodes, &mut under_way, due)?;
        }
        let mut facts = api::api_changes(plan, before, now);
        if now >= snapshot {
            snapshot = now.plus_ms(SNAPSHOT_MS);
            add_live(&mut facts, api::api_facts(plan, now));
        }
        before = now;
        frames.facts(facts, now)?;
        for (index, node) in nodes.iter_mut().enumerate().filter(|(_, node)| node.first <= tick) {
            for holding in node.sightings(tick) {
                frames.allocation(allocation::State::Holding(holding), now)?;
            }
            let late = plan.late_ms(index, now);
            match late {
                0 => frames.round(node.round(tick), now)?,
                late => {
                    frames.framed.late += 1;
                    under_way.insert((now.ms() + late, index, tick, false));
                }
            }
            if let Some(delay) = plan.repeated_ms(index, now) {
                under_way.insert((now.ms() + late + delay, index, tick, true));
            }
        }
        done(frames.framed);
    }
    while let Some((due, ..)) = under_way.first().copied() {
        deliver(&mut frames, &mut nodes, &mut under_way, due)?;
    }
    frames.facts(api::api_changes(plan, before, window.to()), window.to())?;
    frames.out.flush()?;
    Ok(frames.framed)
}

/// Delivers the first of the rounds under way.
fn deliver<W: Write>(
    frames: &mut Frames<W>,
    nodes: &mut [Node<'_>],
    under_way: &mut BTreeSet<(i64, usize, i64, bool)>,
    due: i64,
) -> io::Result<()> {
    if let Some((_, node, tick, again)) = under_way.pop_first() {
        frames.framed.repeated += u64::from(again);
        frames.round(nodes[node].round(tick), Timestamp::from_ms(due))?;
    }
    Ok(())
}

/// Adds what goes on: holdings that have not ended, pods that wait, nodes.
fn add_live(facts: &mut ApiFacts, live: ApiFacts) {
    facts.holdings.extend(live.holdings.into_iter().filter(|holding| holding.ended_ms.is_none()));
    facts.demands.extend(live.demands.into_iter().filter(|demand| demand.ended_ms.is_none()));
    facts.nodes.extend(live.nodes);
}

/// One node's agent.
struct Node<'a> {
    plan: &'a Plan,
    observer: Observer<'a>,
    listings: Listings<'a>,
    walk: Walk<'a>,
    node: usize,
    /// Number of its first round.
    first: i64,
    devices: usize,
}

impl<'a> Node<'a> {
    fn new(plan: &'a Plan, node: usize, agents: &Agents) -> Self {
        Self {
            plan,
            observer: Observer::new(plan, node, agents),
            listings: Listings::new(plan, node, i64::MIN..i64::MAX),
            walk: Walk::new(plan, node),
            node,
            first: Dating::of(plan, &plan.nodes()[node]).first,
            devices: plan.nodes()[node].devices.len(),
        }
    }

    /// Holdings by device that the agent publishes with round `tick`; of rounds before that were passed over, it publishes nothing.
    fn sightings(&mut self, tick: i64) -> Vec<schemas::proto::Holding> {
        let mut states = Vec::new();
        while let Some(next) = self.walk.next().filter(|next| *next <= tick) {
            states = self.walk.take(next);
            if next == tick {
                return states;
            }
        }
        states.clear();
        states
    }

    fn round(&mut self, tick: i64) -> ScrapeRound {
        let at = at(self.plan, tick);
        let listing = self.listings.at(at);
        let mut size = Size::default();
        let mut samples: Vec<DeviceSample> = Vec::with_capacity(self.devices);
        if self.observer.begin(tick, &listing) {
            let mut lacks = BTreeSet::new();
            for (gpu, device) in self.plan.nodes()[self.node].devices.iter().enumerate() {
                let each = |_: &ScrapeRound, sample: &DeviceSample, values: &[(u16, Value)], _| {
                    let mut readings = Readings::default();
                    for (id, value) in values {
                        readings.set(*id, *value);
                    }
                    samples.push(DeviceSample { readings: Some(readings), ..sample.clone() });
                };
                if !self.observer.device(gpu, at, &Rc::clone(&listing), &mut size, each) && listing.holds(&device.id) {
                    lacks.insert(device.id.clone());
                }
            }
            self.observer.page_of(&size, &lacks);
        }
        samples.sort_by(|a, b| gpu_and_instance(a).cmp(&gpu_and_instance(b)));
        ScrapeRound { devices: samples, ..self.observer.head.clone() }
    }
}

/// What an agent sorts devices by.
fn gpu_and_instance(sample: &DeviceSample) -> (&str, Option<u32>) {
    let gpu = if sample.parent.is_empty() { &sample.device } else { &sample.parent };
    (gpu, sample.instance_id)
}

struct Frames<W> {
    out: W,
    framed: Framed,
    buffer: Vec<u8>,
}

impl<W: Write> Frames<W> {
    fn frame(&mut self, content: frame::Content, now: Timestamp) -> io::Result<()> {
        let frame = Frame { delivered_ms: now.ms(), content: Some(content) };
        self.buffer.clear();
        frame.encode_length_delimited(&mut self.buffer).map_err(io::Error::other)?;
        self.framed.frames += 1;
        self.framed.bytes += self.buffer.len() as u64;
        self.out.write_all(&self.buffer)
    }

    fn round(&mut self, round: ScrapeRound, now: Timestamp) -> io::Result<()> {
        self.framed.rounds += 1;
        self.frame(frame::Content::Round(round), now)
    }

    fn allocation(&mut self, state: allocation::State, now: Timestamp) -> io::Result<()> {
        self.frame(frame::Content::Allocation(Allocation { state: Some(state) }), now)
    }

    fn facts(&mut self, facts: ApiFacts, now: Timestamp) -> io::Result<()> {
        for holding in facts.holdings {
            self.allocation(allocation::State::Holding(holding), now)?;
        }
        for demand in facts.demands {
            self.allocation(allocation::State::Demand(demand), now)?;
        }
        for node in facts.nodes {
            self.frame(frame::Content::Node(node), now)?;
        }
        Ok(())
    }
}
