//! The thread that asks the library about one board, on its own clock.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use nvml_wrapper::{Device, GpmSample};
use rustix::time::{ClockId, clock_gettime};

use super::{
    board::{Board, Group, Next},
    calls::{self, Answers, Call, Earlier, Scale},
    fault::{Fault, Kind},
    gpm,
    raw::{self, FieldAt},
    session::Session,
    wishes::Wishes,
};
use crate::source::Value;

/// What all workers share.
#[derive(Debug)]
pub struct Shared {
    /// Time between two rounds.
    pub interval: Duration,
    /// Time between two rounds of profiling metrics.
    pub profiling_interval: Duration,
    /// How long clock events are kept.
    pub window: Duration,
    /// Processor time spent in the library, nanoseconds.
    pub library_ns: AtomicU64,
    /// Calls of the library.
    pub calls: AtomicU64,
    /// Where a worker says that the driver is gone.
    pub wishes: Arc<Wishes>,
}

impl Shared {
    /// Says that the driver is gone.
    pub fn driver_gone(&self) {
        self.wishes.wish(|wanted| wanted.driver_gone = true);
    }

    /// Runs `call` and counts the processor time that it takes as the library's.
    pub fn in_library<T>(&self, call: impl FnOnce() -> T) -> T {
        let before = thread_ns();
        let answer = call();
        self.library_ns.fetch_add(thread_ns().saturating_sub(before), Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        answer
    }
}

/// Processor time of this thread, nanoseconds.
fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

/// Starts a thread that asks about `board`. It leaves when the board is retired, another takes charge, or the session is over.
pub fn start(board: Arc<Board>, session: Arc<Session>, shared: Arc<Shared>) -> std::io::Result<()> {
    let ticket = board.take_charge();
    let name = format!("gpu-{}", board.record.gpu);
    let body = move || work(&board, &session, &shared, ticket);
    // The library's own frames need room; a megabyte is what it has in threads of its own clients.
    std::thread::Builder::new().name(name).stack_size(1 << 20).spawn(body).map(drop)
}

/// What a worker keeps from round to round.
struct Desk<'a> {
    device: Option<Device<'a>>,
    parts: Vec<Option<Device<'a>>>,
    sums: BTreeMap<u16, Earlier>,
    samples: BTreeMap<usize, (GpmSample<'a>, Instant)>,
    gpm: Option<bool>,
}

fn work(board: &Board, session: &Session, shared: &Shared, ticket: u64) {
    let mut desk = Desk { device: None, parts: Vec::new(), sums: BTreeMap::new(), samples: BTreeMap::new(), gpm: None };
    let mut next_round = Instant::now();
    let mut next_profile = next_round;
    let mut away = false;
    while !session.is_over() {
        let now = Instant::now();
        let profile = now >= next_profile;
        match round(board, session, shared, ticket, &mut desk, profile, now) {
            Next::Leave => return,
            Next::DriverGone => {
                shared.driver_gone();
                return;
            }
            Next::Go => {
                if std::mem::take(&mut away) {
                    session.changed(); // its events are to be waited for again
                }
                board.note_reasons(now, shared.window);
                if profile {
                    board.note_profiling();
                }
                if board.handles_are_void() {
                    shared.driver_gone();
                    return;
                }
                if desk.parts.iter().any(Option::is_none) {
                    desk.device = None; // an instance that could not be had: look again
                }
            }
            Next::EndRound => {
                // Handles of a device that comes back are new ones.
                away = true;
                desk.device = None;
                desk.parts.clear();
                desk.samples.clear();
                desk.gpm = None;
            }
        }
        board.end_round(ticket);
        if profile {
            // The first samples have nothing to be compared with: the second ones come soon.
            let first = board.rounds() <= 1;
            next_profile =
                if first { now + shared.interval.min(shared.profiling_interval) } else { now + shared.profiling_interval };
        }
        next_round += shared.interval;
        if next_round < Instant::now() {
            next_round = Instant::now() + shared.interval; // rounds that were missed are not made up for
        }
        if !board.wait(ticket, next_round) {
            return;
        }
    }
}

/// One round. All its readings are of `at`, the instant at which it began.
fn round<'a>(
    board: &Board,
    session: &'a Session,
    shared: &Shared,
    ticket: u64,
    desk: &mut Desk<'a>,
    profile: bool,
    at: Instant,
) -> Next {
    if desk.device.is_none() {
        if !board.begin_handle(ticket, Instant::now()) {
            return Next::Leave;
        }
        let found = shared.in_library(|| handles(board, session));
        let answer = found.map(|(device, parts)| (desk.device, desk.parts) = (Some(device), parts));
        match board.end_handle(ticket, answer) {
            Next::Go => {}
            other => return other,
        }
    }
    for (n, question) in board.questions.iter().enumerate() {
        if question.group == Group::Profiling && !profile {
            continue;
        }
        let Some(fields) = board.begin(ticket, n, Instant::now()) else { continue };
        let answer = shared.in_library(|| ask(board, desk, question.place, question.call, &fields));
        match board.end(ticket, n, &fields, answer, at) {
            Next::Go => {}
            other => return other,
        }
    }
    Next::Go
}

fn handles<'a>(board: &Board, session: &'a Session) -> Result<(Device<'a>, Vec<Option<Device<'a>>>), Fault> {
    let device = session.nvml.device_by_uuid(board.found.uuid.as_str()).map_err(|err| {
        let fault = Fault::from(err);
        // A UUID that the library knows no more is a device that fell off the bus.
        if fault.kind == Kind::Missing { Fault { code: "NOT_FOUND", kind: Kind::DeviceLost } } else { fault }
    })?;
    let part = |part: &super::board::Part| {
        let found = device.mig_device_by_index(part.index).ok()?;
        raw::instance_ids(&found).is_ok_and(|(gi, _)| gi == part.gi).then_some(found)
    };
    let parts = board.parts.iter().map(part).collect();
    Ok((device, parts))
}

fn ask<'a>(board: &Board, desk: &mut Desk<'a>, place: usize, call: Call, fields: &[u16]) -> Result<Answers, Fault> {
    let Some(device) = &desk.device else { return Err(Fault::NOT_SUPPORTED) };
    match call {
        Call::Fields => batch(device, &mut desk.sums, fields),
        Call::Gpm => {
            let gi = place.checked_sub(1).and_then(|part| board.parts.get(part)).map(|part| part.gi);
            if desk.gpm.is_none() {
                desk.gpm = Some(gpm::supported(device)?);
            }
            if desk.gpm == Some(false) {
                return Err(Fault::NOT_SUPPORTED);
            }
            let sample = gpm::sample(device, gi)?;
            let taken = Instant::now();
            let answer = match desk.samples.get(&place) {
                Some((earlier, before)) if taken.saturating_duration_since(*before) >= Duration::from_millis(gpm::LEAST_MS) => {
                    gpm::between(device, earlier, &sample, fields)
                }
                Some(_) => return Ok(Vec::new()),
                None => Ok(Vec::new()),
            };
            desk.samples.insert(place, (sample, taken));
            answer
        }
        call => match place.checked_sub(1) {
            None => calls::ask(device, call),
            Some(part) => match desk.parts.get(part) {
                Some(Some(part)) => calls::ask(part, call),
                _ => Err(Fault { code: "NOT_FOUND", kind: Kind::Failed }),
            },
        },
    }
}

/// Fields by NVML's ids, in one call.
fn batch(device: &Device, sums: &mut BTreeMap<u16, Earlier>, fields: &[u16]) -> Result<Answers, Fault> {
    let rows: Vec<_> = calls::FIELDS.iter().filter(|(field, ..)| fields.contains(field)).collect();
    let asked: Vec<FieldAt> = rows.iter().flat_map(|(_, of, _)| of.iter().copied()).collect();
    let mut values = raw::field_values(device, &asked)?.into_iter();
    let now = Instant::now();
    let mut answers = Answers::new();
    for (field, of, scale) in rows {
        let mut sum = Ok(0_i64);
        for _ in *of {
            let value = values.next().unwrap_or(Err(Fault::BAD_VALUE));
            sum = sum.and_then(|sum| sum.checked_add(value?).ok_or(Fault::BAD_VALUE));
        }
        let value = match (sum, scale) {
            (Err(fault), _) => Err(fault),
            (Ok(value), Scale::One) => Ok(Value::Int(value)),
            (Ok(value), Scale::Milli) => Ok(Value::Float(value as f64 / 1000.0)),
            (Ok(sum), Scale::Rate) => {
                let now = Earlier { sum, at: now };
                let earlier = sums.insert(*field, now);
                match earlier.and_then(|earlier| calls::rate(earlier, now)) {
                    Some(rate) => Ok(Value::Int(rate)),
                    None => continue, // the first of a sum, or one that began anew: no rate yet
                }
            }
        };
        answers.push((*field, value));
    }
    Ok(answers)
}
