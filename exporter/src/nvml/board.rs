//! One GPU of the node as its readings lie in memory: written by the thread that asks the library, read by scrapes.
//!
//! No lock is held while the library is asked, so a call that hangs holds up no scrape: its readings grow old and are left out.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use schemas::{
    catalogue::{self, Reading},
    status::ReadingFault,
};

use super::{
    calls::{self, Answers, Call},
    fault::{Fault, Kind},
    gpm,
    record::Record,
    session::FoundGpu,
};
use crate::source::{Identity, Instance, Value};

/// How often a question is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Each round: calls that cost microseconds.
    Device,
    /// Profiling metrics, more seldom.
    Profiling,
}

/// A question about the GPU or one of its instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// 0: the GPU; else one more than the place of the instance in [`Board::parts`].
    pub place: usize,
    /// What is asked.
    pub call: Call,
    /// The DCGM fields of its answer.
    pub fields: Vec<u16>,
    /// How often.
    pub group: Group,
}

/// A GPU instance of a board.
#[derive(Clone, Debug)]
pub struct Part {
    /// What its lines say of it.
    pub identity: Arc<Identity>,
    /// GPU instance id.
    pub gi: u32,
    /// Place of its first MIG device among the GPU's.
    pub index: u32,
}

/// Time limits of readings.
#[derive(Clone, Copy, Debug)]
pub struct Ages {
    /// A reading of the device that is older is left out.
    pub device: Duration,
    /// The same of a profiling metric.
    pub profiling: Duration,
    /// A call that takes longer is given up on: its thread is left to it, another goes on with the rest.
    pub stuck: Duration,
}

/// Most threads of one board that are left to calls that hang.
pub const MOST_STUCK: usize = 4;
/// Stands for the question that gives the board's handle.
const HANDLE: usize = usize::MAX;

/// A GPU and its instances.
#[derive(Debug)]
pub struct Board {
    /// As the library showed it.
    pub found: FoundGpu,
    /// What the GPU's own lines say of it.
    pub identity: Arc<Identity>,
    /// Its GPU instances, by id.
    pub parts: Vec<Part>,
    /// What is remembered of it.
    pub record: Arc<Record>,
    /// What is asked.
    pub questions: Vec<Question>,
    ages: Ages,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    /// By place: readings and faults by field.
    cells: Vec<BTreeMap<u16, Cell>>,
    /// The thread in charge; an earlier one that comes back from its call is to leave.
    ticket: u64,
    /// The call that runs: by which thread, which question, since when.
    doing: Option<(usize, Instant)>,
    /// Questions that threads were left to.
    stuck: BTreeSet<usize>,
    /// Why the board does not answer.
    lost: Option<Fault>,
    /// Rounds that were gone through, and when the last one ended in which the board answered.
    rounds: u64,
    answered: Option<Instant>,
    retired: bool,
    suspicion: u32,
    /// Clock events of past rounds, and how often each bit was ever set.
    reasons: VecDeque<(Instant, u64)>,
    reasons_ever: BTreeMap<u64, u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    value: Option<(Value, Instant)>,
    /// Why the first way to it has no value.
    fault: Option<Fault>,
    /// Why the older way has none.
    older_fault: Option<Fault>,
    group: Option<Group>,
}

/// What is to become of a thread after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Go on.
    Go,
    /// The board does not answer: no more questions this round.
    EndRound,
    /// The driver is gone: tell, and ask nothing more.
    DriverGone,
    /// Another thread is in charge, or the board is retired.
    Leave,
}

/// How a board is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answers.
    Ok,
    /// It fell off the bus, or needs a reset.
    Lost(&'static str),
    /// Calls hang.
    Unresponsive,
}

/// What is known of a field of a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing {
    /// Read, and so long ago.
    Given(Value, Duration),
    /// Not to be had, and why.
    Absent(&'static str),
    /// Nothing yet.
    Unasked,
}

impl Board {
    /// A board of which nothing is read yet. `wanted` are the fields that are printed.
    pub fn new(found: FoundGpu, record: Arc<Record>, wanted: &BTreeSet<u16>, ages: Ages) -> Self {
        let identity = Identity {
            gpu: record.gpu,
            uuid: found.uuid.clone(),
            pci_bus_id: found.pci.clone(),
            model: found.model.clone(),
            instance: None,
            texts: found.texts.clone(),
        };
        let mut parts: Vec<Part> = Vec::new();
        for part in &found.parts {
            // DCGM shows GPU instances, however many compute instances they hold.
            if parts.last().is_some_and(|last| last.gi == part.gi) {
                continue;
            }
            let instance = Some(Instance { profile: part.profile.clone(), id: part.gi });
            let identity = Arc::new(Identity { instance, ..identity.clone() });
            parts.push(Part { identity, gi: part.gi, index: part.index });
        }
        let questions = questions(wanted, parts.len());
        let cells = vec![BTreeMap::new(); parts.len() + 1];
        let state = State {
            cells,
            ticket: 0,
            doing: None,
            stuck: BTreeSet::new(),
            lost: None,
            rounds: 0,
            answered: None,
            retired: false,
            suspicion: 0,
            reasons: VecDeque::new(),
            reasons_ever: BTreeMap::new(),
        };
        let identity = Arc::new(identity);
        record.seen_as(&identity, &found.pci);
        Self { found, identity, parts, record, questions, ages, state: Mutex::new(state), wake: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes charge: the ticket of a new thread.
    pub fn take_charge(&self) -> u64 {
        let mut state = self.state();
        state.ticket += 1;
        state.doing = None;
        state.ticket
    }

    /// Asks all its threads to leave.
    pub fn retire(&self) {
        self.state().retired = true;
        self.wake.notify_all();
    }

    /// Waits until `until`; false where the thread of `ticket` is to leave.
    pub fn wait(&self, ticket: u64, until: Instant) -> bool {
        let mut state = self.state();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if state.retired || state.ticket != ticket {
                return false;
            }
            if left.is_zero() {
                return true;
            }
            state = self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Notes that the handle is about to be asked for; false where the thread is to leave.
    pub fn begin_handle(&self, ticket: u64, now: Instant) -> bool {
        self.begin_call(ticket, HANDLE, now)
    }

    /// Notes that a question is about to be asked: its fields that are worth asking for now. None: nothing to ask, or a thread
    /// hangs in it.
    pub fn begin(&self, ticket: u64, question: usize, now: Instant) -> Option<Vec<u16>> {
        let asked = self.questions.get(question)?;
        let fields: Vec<u16> = {
            let state = self.state();
            if state.stuck.contains(&question) {
                return None;
            }
            let cells = state.cells.get(asked.place)?;
            let worth = |field: &&u16| {
                let cell = cells.get(field).copied().unwrap_or_default();
                let missing = |fault: Option<Fault>| fault.is_some_and(|fault| fault.kind == Kind::Missing);
                if asked.call.is_older() { missing(cell.fault) && !missing(cell.older_fault) } else { !missing(cell.fault) }
            };
            asked.fields.iter().filter(worth).copied().collect()
        };
        (!fields.is_empty() && self.begin_call(ticket, question, now)).then_some(fields)
    }

    fn begin_call(&self, ticket: u64, question: usize, now: Instant) -> bool {
        let mut state = self.state();
        if state.retired || state.ticket != ticket {
            return false;
        }
        state.doing = Some((question, now));
        true
    }

    /// Notes that the handle came, or why not.
    pub fn end_handle(&self, ticket: u64, answer: Result<(), Fault>) -> Next {
        if !self.end_call(ticket, HANDLE) {
            return Next::Leave;
        }
        match answer {
            Ok(()) => Next::Go,
            Err(fault) => self.no_handle(fault),
        }
    }

    fn no_handle(&self, fault: Fault) -> Next {
        let all: Vec<u16> =
            self.questions.iter().filter(|asked| asked.place == 0).flat_map(|asked| asked.fields.clone()).collect();
        self.record.failed(&all, fault.code);
        match fault.kind {
            Kind::DriverGone => Next::DriverGone,
            _ => {
                self.lose(fault);
                Next::EndRound
            }
        }
    }

    /// The end of a call: false where the thread is no longer in charge.
    fn end_call(&self, ticket: u64, question: usize) -> bool {
        let mut state = self.state();
        if state.ticket == ticket {
            state.doing = None;
        } else {
            // It was given up on, and came back after all: the question may be asked again.
            state.stuck.remove(&question);
        }
        state.ticket == ticket && !state.retired
    }

    /// Puts an answer where scrapes find it.
    pub fn end(&self, ticket: u64, question: usize, asked_for: &[u16], answer: Result<Answers, Fault>, now: Instant) -> Next {
        if !self.end_call(ticket, question) {
            return Next::Leave;
        }
        let Some(asked) = self.questions.get(question) else { return Next::Leave };
        let answers = match answer {
            Ok(answers) => answers,
            Err(fault) => asked_for.iter().map(|field| (*field, Err(fault))).collect(),
        };
        let mut next = Next::Go;
        let mut lost = None;
        let mut failed: Vec<(u16, &'static str)> = Vec::new();
        {
            let mut state = self.state();
            let Some(cells) = state.cells.get_mut(asked.place) else { return Next::Leave };
            for (field, answer) in answers {
                let cell = cells.entry(field).or_default();
                cell.group = Some(asked.group);
                let answer = answer.and_then(|value| believable(field, value, asked.place > 0));
                let fault = if asked.call.is_older() { &mut cell.older_fault } else { &mut cell.fault };
                *fault = answer.err();
                cell.value = answer.ok().map(|value| (value, now));
                let Some(Fault { code, kind }) = *fault else { continue };
                match kind {
                    Kind::Missing => continue,
                    Kind::Failed => {}
                    Kind::DeviceLost => (next, lost) = (Next::EndRound, *fault),
                    Kind::DriverGone => next = Next::DriverGone,
                }
                failed.push((field, code));
            }
        }
        for (field, code) in failed {
            self.record.failed(&[field], code);
        }
        match lost {
            Some(fault) => self.lose(fault),
            None => self.state().lost = None,
        }
        next
    }

    /// The board does not answer: none of its readings is of now.
    fn lose(&self, fault: Fault) {
        let mut state = self.state();
        state.lost = Some(fault);
        for cells in &mut state.cells {
            for cell in cells.values_mut() {
                cell.value = None;
            }
        }
    }

    /// The end of a round.
    pub fn end_round(&self, ticket: u64) {
        let mut state = self.state();
        if state.ticket == ticket {
            state.rounds += 1;
            if state.lost.is_none() {
                state.answered = Some(Instant::now());
            }
        }
    }

    /// How long ago a round ended in which the board answered.
    pub fn read_ago(&self, now: Instant) -> Option<Duration> {
        self.state().answered.map(|at| now.saturating_duration_since(at))
    }

    /// How many rounds were gone through.
    pub fn rounds(&self) -> u64 {
        self.state().rounds
    }

    /// Whether every question of the last round failed as it does when handles are of a driver's past.
    pub fn handles_are_void(&self) -> bool {
        let state = self.state();
        let mut faults = state.cells.iter().flat_map(BTreeMap::values).map(|cell| (cell.value, cell.fault));
        let mut any = false;
        faults.all(|(value, fault)| {
            let void = value.is_none() && fault.is_some_and(|fault| fault.code == "INVALID_ARGUMENT");
            any |= void;
            void || fault.is_some_and(|fault| fault.kind == Kind::Missing)
        }) && any
    }

    /// Gives up on a call that hangs: true where another thread is to take charge.
    pub fn give_up(&self, now: Instant) -> bool {
        let mut state = self.state();
        let Some((question, since)) = state.doing else { return false };
        if now.saturating_duration_since(since) < self.ages.stuck || state.retired {
            return false;
        }
        if state.stuck.len() >= MOST_STUCK || !state.stuck.insert(question) || question == HANDLE {
            return false;
        }
        state.doing = None;
        true
    }

    /// How many threads hang.
    pub fn stuck(&self, now: Instant) -> usize {
        let state = self.state();
        let doing = state.doing.is_some_and(|(question, since)| {
            now.saturating_duration_since(since) >= self.ages.stuck && !state.stuck.contains(&question)
        });
        state.stuck.len() + usize::from(doing)
    }

    /// How it is.
    pub fn health(&self, now: Instant) -> Health {
        let state = self.state();
        match state.lost {
            Some(fault) => Health::Lost(fault.code),
            None if state.stuck.contains(&HANDLE) || state.stuck.len() >= MOST_STUCK => Health::Unresponsive,
            None => {
                let hangs = |(_, since): (usize, Instant)| now.saturating_duration_since(since) >= self.ages.stuck * 2;
                if state.doing.is_some_and(hangs) { Health::Unresponsive } else { Health::Ok }
            }
        }
    }

    /// Readings of a place that are young enough, ascending by field; and the age of the oldest of each group.
    pub fn readings(&self, place: usize, now: Instant, mut each: impl FnMut(u16, Value)) -> [Option<Duration>; 2] {
        let state = self.state();
        let mut ages = [None; 2];
        for (field, cell) in state.cells.get(place).into_iter().flatten() {
            if let Some((value, age)) = self.young(cell, now) {
                each(*field, value);
                let oldest = &mut ages[usize::from(cell.group == Some(Group::Profiling))];
                *oldest = Some(oldest.map_or(age, |oldest: Duration| oldest.max(age)));
            }
        }
        ages
    }

    fn young(&self, cell: &Cell, now: Instant) -> Option<(Value, Duration)> {
        let (value, at) = cell.value?;
        let age = now.saturating_duration_since(at);
        let limit = if cell.group == Some(Group::Profiling) { self.ages.profiling } else { self.ages.device };
        (age <= limit).then_some((value, age))
    }

    /// Readings that are left out because they are old, of all places.
    pub fn stale(&self, now: Instant) -> usize {
        let state = self.state();
        let cells = state.cells.iter().flat_map(BTreeMap::values);
        cells.filter(|cell| cell.value.is_some() && self.young(cell, now).is_none()).count()
    }

    /// What is known of `field` of a place.
    pub fn standing(&self, place: usize, field: u16, now: Instant) -> Standing {
        let state = self.state();
        if let Some(fault) = state.lost {
            return Standing::Absent(fault.code);
        }
        let Some(cell) = state.cells.get(place).and_then(|cells| cells.get(&field)) else { return Standing::Unasked };
        match (self.young(cell, now), cell.fault) {
            (Some((value, age)), _) => Standing::Given(value, age),
            (None, Some(fault)) => Standing::Absent(fault.code),
            (None, None) if cell.value.is_some() => Standing::Absent("STALE"),
            (None, None) => Standing::Unasked,
        }
    }

    /// Notes clock events of a round, and forgets those before `window`.
    pub fn note_reasons(&self, now: Instant, window: Duration) {
        let mut state = self.state();
        let mask = match state.cells.first().and_then(|cells| cells.get(&112)) {
            Some(Cell { value: Some((Value::Int(mask), at)), .. }) if *at == now => *mask as u64,
            _ => return,
        };
        while state.reasons.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > window)
            || state.reasons.len() >= 4096
        {
            state.reasons.pop_front();
        }
        state.reasons.push_back((now, mask));
        for bit in (0..64).map(|bit| 1 << bit).filter(|bit| mask & bit != 0) {
            *state.reasons_ever.entry(bit).or_default() += 1;
        }
    }

    /// In how many rounds within `window` each bit of the clock events was set; none where they are not read.
    pub fn clock_events(&self, now: Instant, window: Duration) -> Option<Vec<(u64, u64)>> {
        let state = self.state();
        if state.reasons.is_empty() {
            return None;
        }
        let within = || state.reasons.iter().filter(|(at, _)| now.saturating_duration_since(*at) <= window);
        let bits = (0..64).map(|bit| 1_u64 << bit);
        Some(
            bits.filter_map(|bit| {
                Some(within().filter(|(_, mask)| mask & bit != 0).count() as u64).filter(|n| *n > 0).map(|n| (bit, n))
            })
            .collect(),
        )
    }

    /// In how many rounds each bit of the clock events was set since the board was first read.
    pub fn clock_events_ever(&self) -> Vec<(u64, u64)> {
        self.state().reasons_ever.iter().map(|(bit, count)| (*bit, *count)).collect()
    }

    /// Looks at a round with profiling metrics: whether they stand at 0 while utilization and power say otherwise.
    pub fn note_profiling(&self) {
        let mut state = self.state();
        let Some(cells) = state.cells.first() else { return };
        let number = |field: u16| match cells.get(&field)?.value?.0 {
            Value::Int(value) => Some(value as f64),
            Value::Float(value) => Some(value),
        };
        let doubt = match (number(1001), number(1002), number(203)) {
            (Some(graphics), Some(sm), Some(util)) => {
                let draws = number(155).zip(number(164)).is_none_or(|(draw, limit)| draw >= 0.15 * limit);
                graphics == 0.0 && sm == 0.0 && util >= 10.0 && draws
            }
            _ => false,
        };
        state.suspicion = if doubt { state.suspicion.saturating_add(1) } else { 0 };
    }

    /// Whether profiling metrics stood at 0 twice while utilization and power said otherwise; none where there are none.
    pub fn suspect(&self) -> Option<bool> {
        let state = self.state();
        let profiled = state.cells.first()?.get(&1002)?.value.is_some();
        profiled.then_some(state.suspicion >= 2)
    }
}

/// A value that its field can have: what is a blank, or out of the catalogue's range, is no reading. A profiling ratio of an instance
/// may be somewhat above 1.
fn believable(field: u16, value: Value, on_instance: bool) -> Result<Value, Fault> {
    let Some(known) = catalogue::by_id(field) else { return Ok(value) };
    let (whole, number) = match value {
        Value::Int(value) => (Some(i128::from(value)), value as f64),
        Value::Float(value) => (None, value),
    };
    let bad = |code| Err(Fault { code, ..Fault::BAD_VALUE });
    match known.read_number(whole, number, on_instance) {
        Reading::Invalid(ReadingFault::Sentinel) => bad("BLANK"),
        Reading::Invalid(_) => bad("OUT_OF_RANGE"),
        _ => Ok(value),
    }
}

/// The questions that fill `wanted`, and what else is needed to judge readings, about a GPU with so many instances.
fn questions(wanted: &BTreeSet<u16>, parts: usize) -> Vec<Question> {
    let of = |fields: &[u16]| -> Vec<u16> { fields.iter().filter(|field| wanted.contains(field)).copied().collect() };
    let mut questions = Vec::new();
    let mut add = |place, call, fields: Vec<u16>, group| {
        if !fields.is_empty() {
            questions.push(Question { place, call, fields, group });
        }
    };
    let batch: Vec<u16> = calls::FIELDS.iter().map(|(field, ..)| *field).filter(|field| wanted.contains(field)).collect();
    let profiled: Vec<u16> = wanted.iter().copied().filter(|field| gpm::metric(*field).is_some()).collect();
    add(0, Call::Fields, batch, Group::Device);
    for (call, _, fields) in calls::ROWS {
        add(0, *call, of(fields), Group::Device);
    }
    for place in 1..=parts {
        for (call, _, fields) in calls::ROWS.iter().filter(|(call, ..)| *call == Call::Memory) {
            add(place, *call, of(fields), Group::Device);
        }
    }
    for place in 0..=parts {
        add(place, Call::Gpm, profiled.clone(), Group::Profiling);
    }
    questions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_field_cannot_be_is_no_reading() {
        let code = |field, value, on_instance| believable(field, value, on_instance).err().map(|fault| fault.code);
        // As a driver was seen to give them.
        assert_eq!(code(203, Value::Int(2619), false), Some("OUT_OF_RANGE"));
        assert_eq!(code(203, Value::Int(4_294_967_295), false), Some("OUT_OF_RANGE"));
        assert_eq!(code(190, Value::Int(32), false), Some("OUT_OF_RANGE"), "NVML's unknown state");
        assert_eq!(code(156, Value::Int(9_223_372_036_854_775_794), false), Some("BLANK"));
        assert_eq!(code(156, Value::Int(2_147_483_640), false), None, "energy passes that number within an hour");
        assert_eq!((code(1002, Value::Float(1.29), true), code(1002, Value::Float(1.29), false)), (None, Some("OUT_OF_RANGE")));
        assert_eq!(code(155, Value::Float(699.9), false), None);
    }

    fn board() -> Board {
        let found = FoundGpu {
            uuid: "GPU-x".into(),
            index: 0,
            minor: None,
            pci: String::new(),
            model: String::new(),
            texts: Vec::new(),
            parts: Vec::new(),
        };
        let ages = Ages { device: Duration::from_secs(5), profiling: Duration::from_secs(30), stuck: Duration::from_secs(2) };
        let wanted = [155, 164, 203, 240, 1001, 1002].into();
        Board::new(found, Arc::new(Record::new("GPU-x".into(), 0)), &wanted, ages)
    }

    /// Answers each question of a round with what `value` gives for its fields.
    fn answer(board: &Board, ticket: u64, at: Instant, value: impl Fn(u16, Call) -> Result<Value, Fault>) {
        for (n, question) in board.questions.iter().enumerate() {
            if let Some(fields) = board.begin(ticket, n, at) {
                let answers = fields.iter().map(|field| (*field, value(*field, question.call))).collect();
                assert_eq!(board.end(ticket, n, &fields, Ok(answers), at), Next::Go);
            }
        }
        board.note_profiling();
        board.end_round(ticket);
    }

    #[test]
    fn profiling_at_0_is_doubted_where_the_board_works() {
        let (board, now) = (board(), Instant::now());
        let ticket = board.take_charge();
        let reads = |util: i64, watts: f64, sm: f64| {
            move |field, _| {
                Ok(match field {
                    155 => Value::Float(watts),
                    164 => Value::Float(700.0),
                    1001 | 1002 => Value::Float(sm),
                    _ => Value::Int(util),
                })
            }
        };
        assert_eq!(board.suspect(), None, "nothing is read yet");
        answer(&board, ticket, now, reads(90, 400.0, 0.0));
        assert_eq!(board.suspect(), Some(false), "once may be chance");
        answer(&board, ticket, now, reads(90, 400.0, 0.0));
        assert_eq!(board.suspect(), Some(true));
        answer(&board, ticket, now, reads(90, 400.0, 0.5));
        assert_eq!(board.suspect(), Some(false));
        for _ in 0..3 {
            answer(&board, ticket, now, reads(90, 70.0, 0.0));
        }
        assert_eq!(board.suspect(), Some(false), "a board that draws nothing does nothing");
        for _ in 0..3 {
            answer(&board, ticket, now, reads(0, 400.0, 0.0));
        }
        assert_eq!(board.suspect(), Some(false), "nor one without a kernel");
    }

    #[test]
    fn an_older_call_is_asked_only_where_the_newer_has_nothing() {
        let (board, now) = (board(), Instant::now());
        let ticket = board.take_charge();
        let asked = std::cell::RefCell::new(Vec::new());
        for _ in 0..2 {
            answer(&board, ticket, now, |field, call| {
                if field == 240 {
                    asked.borrow_mut().push(call);
                    return if call == Call::Fields { Err(Fault::NOT_SUPPORTED) } else { Ok(Value::Int(7)) };
                }
                Ok(Value::Int(1))
            });
        }
        let older = |call: &&Call| call.is_older();
        assert_eq!((asked.borrow().len(), asked.borrow().iter().filter(older).count()), (3, 2), "{:?}", asked.borrow());
        assert_eq!(board.standing(0, 240, now), Standing::Given(Value::Int(7), Duration::ZERO));
    }

    #[test]
    fn old_readings_are_left_out_and_a_thread_that_was_given_up_on_leaves() {
        let (board, now) = (board(), Instant::now());
        let first = board.take_charge();
        answer(&board, first, now, |_, _| Ok(Value::Int(1)));
        let count = |at: Instant| {
            let mut fields = Vec::new();
            board.readings(0, at, |field, _| fields.push(field));
            fields
        };
        assert!(count(now + Duration::from_secs(5)).contains(&155));
        assert_eq!(count(now + Duration::from_secs(6)), [1001, 1002], "profiling may be older");
        assert_eq!(board.stale(now + Duration::from_secs(6)), 4);
        // It hangs in its first question.
        let fields = board.begin(first, 0, now).unwrap_or_default();
        assert!(!board.give_up(now + Duration::from_secs(1)));
        assert!(board.give_up(now + Duration::from_secs(2)));
        let second = board.take_charge();
        assert_eq!((board.begin(second, 0, now), board.stuck(now)), (None, 1), "nobody hangs in it a second time");
        assert_eq!(board.end(first, 0, &fields, Ok(Vec::new()), now), Next::Leave);
        assert!(board.begin(second, 0, now).is_some() && board.stuck(now) == 0, "it came back");
    }
}
