//! What made a device's hour: who held it, what each sample said of it, and why the rest was not seen.
//!
//! The same world, holdings and covers as [`mod@crate::hours`] reads, told piece by piece in place of summed.

use std::sync::Arc;

use schemas::{HOUR_MS, Timestamp, Window, status::Cause};

use crate::{
    cover::Cover,
    device::{self, DeviceHour, Stretch},
    hours::HoursError,
    input::{Inputs, Pod, Text},
    observe::{Listen, Witness},
    row::FlagSet,
    span::Ms,
    world::{self, DeviceWorld, Hold},
};

/// A device's time, piece by piece.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Every holding that touches the window, by bind; what its end was, and what cut it.
    pub holdings: Vec<Held>,
    /// What became of the time, in order; of a shared device pieces of several owners overlap.
    pub pieces: Vec<Piece>,
    /// How long a sample speaks at most (A4), in milliseconds.
    pub horizon_ms: i64,
    /// Into how many ids the device is shared out.
    pub replicas: u32,
}

/// A holding as the ledger takes it.
#[derive(Clone, Debug)]
pub struct Held {
    /// Whose.
    pub pod: Arc<Pod>,
    /// Ids held.
    pub ids: u32,
    /// Bind (A3).
    pub bound: Timestamp,
    /// When the device was known; not before the bind.
    pub known_from: Timestamp,
    /// When its containers started.
    pub started: Option<Timestamp>,
    /// When its deletion was asked for.
    pub terminating_from: Option<Timestamp>,
    /// Its end as it was told.
    pub end: Option<Timestamp>,
    /// Where a later bind cut it (A11).
    pub cut: Option<Timestamp>,
    /// Flags of the holding.
    pub flags: FlagSet,
}

/// A piece of a device's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First instant.
    pub from: Timestamp,
    /// First instant after it.
    pub to: Timestamp,
    /// Ids that it is about.
    pub ids: u32,
    /// Whose it is; none: nobody's.
    pub pod: Option<Arc<Pod>>,
    /// What is said of it.
    pub said: Said,
}

/// What is said of a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// A sample speaks for it (A4): what each tier read in parts per million, or why there is none.
    Seen {
        /// When it was taken.
        at: Timestamp,
        /// By tier, in order of `Tier::ALL`.
        tiers: [Result<u32, Cause>; 3],
        /// Between how many pods it is split (A7).
        pods: u32,
    },
    /// Nothing does.
    Unseen(Cause),
    /// Nobody held it, and it was ready to be given.
    Free,
    /// Nobody held it, for a reason that it could not be given.
    Unavailable(Text),
}

/// Explains the part of `window` in the hour of its beginning; none where the inputs have no such device.
pub fn explain(inputs: &Inputs, device: &str, window: Window) -> Result<Option<Explanation>, HoursError> {
    let nodes = world::nodes(inputs)?;
    let hour = window.from().hour();
    let part = (window.from().ms(), window.to().ms().min(hour.plus_ms(HOUR_MS).ms()));
    for node in &nodes {
        let Some(world) = node.devices.iter().find(|world| *world.device.id == *device) else { continue };
        let of_hour = device::hour(world, part);
        let witness = Witness::of(world, &node.scrapes, node.horizon_ms, part);
        let mut pieces = Vec::new();
        for owner in &of_hour.owners {
            let pod = Arc::new(world.owners[owner.owner].pod.clone());
            let mut told = Told { pod, pieces: &mut pieces };
            witness.tell(owner.owner, &owner.stretches, &mut told);
        }
        idle(world, &of_hour, &mut pieces);
        pieces
            .sort_by(|a, b| (a.from, a.to, a.pod.as_ref().map(|p| &p.uid)).cmp(&(b.from, b.to, b.pod.as_ref().map(|p| &p.uid))));
        let holdings = world.holds.iter().filter(|hold| hold.bound < part.1 && hold.holding.end.is_none_or(|e| e.ms() > part.0));
        return Ok(Some(Explanation {
            holdings: holdings.map(held).collect(),
            pieces,
            horizon_ms: node.horizon_ms,
            replicas: world.replicas.get(),
        }));
    }
    Ok(None)
}

fn held(hold: &Hold<'_>) -> Held {
    let holding = hold.holding;
    Held {
        pod: Arc::new(holding.pod.clone()),
        ids: hold.ids,
        bound: holding.bound,
        known_from: Timestamp::from_ms(hold.known_from),
        started: holding.started,
        terminating_from: holding.terminating_from,
        end: holding.end,
        cut: hold.cut.map(Timestamp::from_ms),
        flags: holding.flags,
    }
}

/// Time that nobody held, with the reason that names it.
fn idle(world: &DeviceWorld<'_>, hour: &DeviceHour<'_>, pieces: &mut Vec<Piece>) {
    for piece in &hour.idle {
        let active = |((from, to), _): &&(Ms, &Text)| *from <= piece.from && piece.from < *to;
        let said = match world.unavailable.iter().find(active) {
            Some((_, reason)) => Said::Unavailable((*reason).clone()),
            None => Said::Free,
        };
        let (from, to) = (Timestamp::from_ms(piece.from), Timestamp::from_ms(piece.to));
        match pieces.last_mut() {
            Some(last) if last.pod.is_none() && last.to == from && last.said == said && last.ids == piece.ids => last.to = to,
            _ => pieces.push(Piece { from, to, ids: piece.ids, pod: None, said }),
        }
    }
}

/// Collects what is told of one owner.
struct Told<'p> {
    pod: Arc<Pod>,
    pieces: &'p mut Vec<Piece>,
}

impl Told<'_> {
    fn push(&mut self, from: i64, to: i64, ids: u32, said: Said) {
        let (from, to) = (Timestamp::from_ms(from), Timestamp::from_ms(to));
        match self.pieces.last_mut() {
            // Pieces are cut at edges that change nothing of what is seen.
            Some(last) if last.to == from && last.said == said && last.ids == ids && last.pod.as_ref() == Some(&self.pod) => {
                last.to = to
            }
            _ => self.pieces.push(Piece { from, to, ids, pod: Some(self.pod.clone()), said }),
        }
    }
}

impl Listen for Told<'_> {
    fn cover(&mut self, cover: &Cover, pods: u32, stretch: Stretch, _replicas: u32) {
        let said = Said::Seen { at: Timestamp::from_ms(cover.at), tiers: cover.tiers, pods };
        self.push(stretch.from, stretch.to, stretch.ids, said);
    }

    fn miss(&mut self, cause: Cause, from: i64, to: i64, ids: u32) {
        self.push(from, to, ids, Said::Unseen(cause));
    }
}
