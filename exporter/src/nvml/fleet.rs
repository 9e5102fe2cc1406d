//! Boards of the node as they come and go: the census, the watch over calls that hang, the driver's restarts.
//!
//! ```text
//! census thread:  open the library ─> census ─> boards (kept where nothing changed) ─> a worker each; events
//!                      ^─────────── driver gone, released, GPUs on the bus changed ───────────'
//! warden thread:  calls that hang ─> another worker takes charge
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tracing::{info, warn};

use crate::chain::chain;

use super::{
    board::{Ages, Board, Health},
    events,
    fault::Kind,
    record::Record,
    session::{self, Census, FoundGpu, OpenError, Session},
    wishes::Wishes,
    worker::{self, Shared},
};

/// Most GPUs that are remembered.
const MOST_RECORDS: usize = 256;
/// How often the warden looks.
const LOOK: Duration = Duration::from_millis(100);
/// Waits before the library is opened again, the first and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// Calls are given this long to end when the library is to be left.
const LEAVE: Duration = Duration::from_secs(2);

/// What the fleet is told at start.
#[derive(Clone, Debug)]
pub struct Options {
    /// The library: a path, or a name on the loader's path.
    pub library: PathBuf,
    /// Fields that are read.
    pub wanted: BTreeSet<u16>,
    /// Fields that are read as texts.
    pub texts: Vec<u16>,
    /// Time between two rounds.
    pub interval: Duration,
    /// Time between two rounds of profiling metrics.
    pub profiling_interval: Duration,
    /// Time between two censuses.
    pub census_interval: Duration,
    /// When readings are too old, and calls hang.
    pub ages: Ages,
    /// How long events are kept for counts by window.
    pub window: Duration,
    /// Where the kernel shows its devices.
    pub sysfs: PathBuf,
}

/// How the driver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// It answers.
    Up,
    /// It cannot be asked: NVML's code.
    Down(&'static str),
    /// Left alone on request, so that it can be unloaded.
    Released,
}

/// The node's boards, and who asks about them.
#[derive(Debug)]
pub struct Fleet {
    options: Options,
    shared: Arc<Shared>,
    state: Mutex<State>,
    wishes: Arc<Wishes>,
    /// Whether XIDs are waited for: not while another fleet does that.
    events: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct State {
    boards: Vec<Arc<Board>>,
    session: Weak<Session>,
    records: BTreeMap<String, Arc<Record>>,
    unreadable: Vec<(u32, &'static str)>,
    on_the_bus: Option<Vec<String>>,
    most_seen: usize,
    driver: Option<Driver>,
    opened: u64,
    census_at: Option<Instant>,
    censuses: u64,
}

/// How many GPUs there should be, and are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// On the bus; where that cannot be read, the most that were ever seen.
    pub expected: usize,
    /// Shown by the library and answering.
    pub seen: usize,
    /// Expected, and not answering.
    pub lost: usize,
}

impl Fleet {
    /// Opens the library, takes the first census and starts the threads. With `wait`, an error of the library is no error: it is
    /// opened when it is there.
    pub fn start(options: Options, wait: bool) -> Result<Arc<Self>, OpenError> {
        Self::start_beside(options, wait, None)
    }

    /// The same beside a fleet whose place it is to take: it remembers what that one does, and leaves XIDs to it until
    /// [`Self::wait_for_events`].
    pub fn start_beside(options: Options, wait: bool, before: Option<&Self>) -> Result<Arc<Self>, OpenError> {
        let wishes = Arc::<Wishes>::default();
        let counted = |of: fn(&Shared) -> &AtomicU64| before.map_or(0, |before| of(&before.shared).load(Ordering::Relaxed));
        let shared = Arc::new(Shared {
            interval: options.interval,
            profiling_interval: options.profiling_interval,
            window: options.window,
            library_ns: AtomicU64::new(counted(|shared| &shared.library_ns)),
            calls: AtomicU64::new(counted(|shared| &shared.calls)),
            wishes: wishes.clone(),
        });
        let released_until = before.and_then(|before| before.wishes.lock().released_until);
        wishes.lock().released_until = released_until;
        let session = if released_until.is_some_and(|until| Instant::now() < until) {
            None // somebody is about to unload the driver
        } else {
            match shared.in_library(|| Session::open(&options.library)) {
                Ok(session) => Some(Arc::new(session)),
                Err(err) if wait => {
                    info!(err = %chain(&err), "the GPU driver is not there yet; waiting");
                    None
                }
                Err(err) => return Err(err),
            }
        };
        let events = AtomicBool::new(before.is_none());
        let fleet = Arc::new(Self { options, shared, state: Mutex::default(), wishes, events, threads: Mutex::default() });
        if let Some(before) = before {
            let (records, opened, most_seen) = {
                let state = before.state();
                (state.records.clone(), state.opened, state.most_seen)
            };
            let mut state = fleet.state();
            (state.records, state.opened, state.most_seen) = (records, opened, most_seen);
        }
        fleet.state().driver = Some(Driver::Down("NOT_READY"));
        let start = |name: &str, body: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(1 << 20).spawn(body);
            thread.map_err(|err| warn!(%err, name, "cannot start a thread")).ok()
        };
        let (census, warden) = (fleet.clone(), fleet.clone());
        let threads =
            [start("census", Box::new(move || census.take_censuses(session))), start("warden", Box::new(move || warden.watch()))];
        fleet.threads.lock().unwrap_or_else(PoisonError::into_inner).extend(threads.into_iter().flatten());
        Ok(fleet)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its boards, in order of their index.
    pub fn boards(&self) -> Vec<Arc<Board>> {
        self.state().boards.clone()
    }

    /// GPUs that were ever seen, in order of their index; whether each is here now.
    pub fn records(&self) -> Vec<(Arc<Record>, Option<Arc<Board>>)> {
        let state = self.state();
        let board = |record: &Arc<Record>| state.boards.iter().find(|board| board.record.uuid == record.uuid).cloned();
        let mut records: Vec<_> = state.records.values().map(|record| (record.clone(), board(record))).collect();
        records.sort_by_key(|(record, _)| record.gpu);
        records
    }

    /// How the driver is.
    pub fn driver(&self) -> Driver {
        self.state().driver.unwrap_or(Driver::Down("NOT_READY"))
    }

    /// How often the library was opened.
    pub fn opened(&self) -> u64 {
        self.state().opened
    }

    /// How many censuses were taken.
    pub fn censuses(&self) -> u64 {
        self.state().censuses
    }

    /// How long ago the last census was taken.
    pub fn census_age(&self, now: Instant) -> Option<Duration> {
        self.state().census_at.map(|at| now.saturating_duration_since(at))
    }

    /// GPUs that the library counts and cannot show: index and NVML's code.
    pub fn unreadable(&self) -> Vec<(u32, &'static str)> {
        self.state().unreadable.clone()
    }

    /// Whether this fleet reads what `options` say.
    pub fn reads(&self, options: &Options) -> bool {
        (&self.options.wanted, &self.options.texts) == (&options.wanted, &options.texts)
    }

    /// Waits for XIDs from now on.
    pub fn wait_for_events(&self) {
        self.events.store(true, Ordering::Release);
        if let Some(session) = self.state().session.upgrade() {
            session.changed();
        }
    }

    /// Whether it does.
    pub fn waits_for_events(&self) -> bool {
        self.events.load(Ordering::Acquire)
    }

    /// Counters of the workers.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// How many GPUs there should be and are; `told` is how many somebody says there should be.
    pub fn counts(&self, told: Option<usize>, now: Instant) -> Counts {
        let state = self.state();
        let ok = state.boards.iter().filter(|board| board.health(now) == Health::Ok).count();
        let seen = if state.driver == Some(Driver::Up) { ok } else { 0 };
        let bus = state.on_the_bus.as_ref().map(Vec::len).filter(|count| *count > 0);
        let expected = told.or(bus).unwrap_or(state.most_seen);
        Counts { expected, seen, lost: expected.saturating_sub(seen) }
    }

    /// Asks for a census now.
    pub fn look_again(&self) {
        self.wishes.wish(|wanted| wanted.look = true);
    }

    /// Leaves the library alone for `time`, or takes it up again.
    pub fn release(&self, time: Option<Duration>) {
        self.wishes.wish(|wanted| {
            wanted.released_until = time.map(|time| Instant::now() + time);
            wanted.look = true;
        });
    }

    /// Leaves the library alone, or does not, as `before` was told.
    pub fn release_as(&self, before: &Self) {
        let until = before.wishes.lock().released_until;
        self.wishes.wish(|wanted| {
            wanted.look |= wanted.released_until != until;
            wanted.released_until = until;
        });
    }

    /// Ends the threads. One that hangs in the library is left behind.
    pub fn stop(&self) {
        self.wishes.wish(|wanted| wanted.stop = true);
        let threads: Vec<_> = self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
        let until = Instant::now() + LEAVE;
        for thread in threads {
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }

    fn take_censuses(self: &Arc<Self>, mut session: Option<Arc<Session>>) {
        let mut backoff = BACKOFF.0;
        if let Some(session) = &session {
            self.opened_anew(session);
        }
        loop {
            let mut wait = self.options.census_interval;
            let wanted = *self.wishes.lock();
            if wanted.stop {
                break;
            }
            let released = wanted.released_until.is_some_and(|until| Instant::now() < until);
            if released {
                self.leave(&mut session, Driver::Released);
                wait = Duration::from_millis(250);
            } else if session.is_none() {
                match self.shared.in_library(|| Session::open(&self.options.library)) {
                    Ok(opened) => {
                        let opened = Arc::new(opened);
                        self.opened_anew(&opened);
                        session = Some(opened);
                        backoff = BACKOFF.0;
                        continue;
                    }
                    Err(err) => {
                        self.state().driver = Some(Driver::Down(err.code()));
                        wait = backoff;
                        backoff = (backoff * 2).min(BACKOFF.1);
                    }
                }
            } else if let Some(open) = &session {
                let on_the_bus = session::on_the_bus(&self.options.sysfs);
                let moved = {
                    let state = self.state();
                    state.on_the_bus.is_some() && on_the_bus.is_some() && state.on_the_bus != on_the_bus
                };
                if moved {
                    // The library learns of GPUs when it is initialised, and then no more.
                    info!("GPUs on the bus have changed; opening the library anew");
                    self.state().on_the_bus = on_the_bus;
                    self.leave(&mut session, Driver::Down("NOT_READY"));
                    continue;
                }
                let before: Vec<FoundGpu> = self.boards().iter().map(|board| board.found.clone()).collect();
                match self.shared.in_library(|| session::census(open, &self.options.texts, &before)) {
                    Ok(census) => self.install(&census, open),
                    Err(fault) if fault.kind == Kind::DriverGone => {
                        warn!(code = fault.code, "the GPU driver is gone; waiting for it to come back");
                        self.leave(&mut session, Driver::Down(fault.code));
                        continue;
                    }
                    Err(fault) => warn!(code = fault.code, "the GPUs cannot be counted"),
                }
            }
            let seen = self.wishes.wait(wait);
            if seen.stop {
                break;
            }
            if seen.driver_gone && session.is_some() && !released {
                warn!("the GPU driver does not know its handles any more; opening the library anew");
                self.leave(&mut session, Driver::Down("UNINITIALIZED"));
            }
        }
        self.leave(&mut session, Driver::Released);
    }

    /// A library that was just opened: its events are waited for.
    fn opened_anew(self: &Arc<Self>, session: &Arc<Session>) {
        {
            let mut state = self.state();
            state.opened += 1;
            state.driver = Some(Driver::Up);
            state.session = Arc::downgrade(session);
            state.on_the_bus = session::on_the_bus(&self.options.sysfs);
        }
        events::start(self.clone(), session.clone());
    }

    /// Retires all boards and drops the library, which shuts it down once the last call has come back.
    fn leave(&self, session: &mut Option<Arc<Session>>, driver: Driver) {
        let Some(session) = session.take() else {
            self.state().driver = Some(driver);
            return;
        };
        session.end();
        let boards = {
            let mut state = self.state();
            state.driver = Some(driver);
            std::mem::take(&mut state.boards)
        };
        for board in &boards {
            board.retire();
            if self.waits_for_events() {
                board.record.watched(false);
            }
        }
        drop(boards);
        let until = Instant::now() + LEAVE;
        while Arc::strong_count(&session) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        if Arc::strong_count(&session) > 1 {
            warn!("a call of the GPU library hangs; the library stays open until it comes back");
        }
    }

    /// Puts the boards of a census in place of those before; a board that has not changed keeps its thread.
    fn install(self: &Arc<Self>, census: &Census, session: &Arc<Session>) {
        let mut state = self.state();
        let mut boards = Vec::new();
        let mut new = Vec::new();
        for found in &census.gpus {
            // Indexes move when one before falls off the bus; that is no change of the board.
            let same = |board: &&Arc<Board>| {
                let known = &board.found;
                (&known.uuid, &known.pci, &known.parts, &known.texts, known.minor)
                    == (&found.uuid, &found.pci, &found.parts, &found.texts, found.minor)
            };
            if let Some(board) = state.boards.iter().find(same) {
                boards.push(board.clone());
                continue;
            }
            let record = record_of(&mut state.records, census, found);
            let board = Arc::new(Board::new(found.clone(), record, &self.options.wanted, self.options.ages));
            new.push(board.clone());
            boards.push(board);
        }
        // One that is counted and cannot be shown, as one that is lost: it keeps its place, and says that it is lost.
        for board in &state.boards {
            let listed = boards.iter().any(|kept| kept.found.uuid == board.found.uuid);
            if !listed && !census.unreadable.is_empty() {
                boards.push(board.clone());
            }
        }
        boards.sort_by_key(|board| board.record.gpu);
        for board in &state.boards {
            if !boards.iter().any(|kept| Arc::ptr_eq(kept, board)) {
                info!(gpu = board.record.gpu, uuid = %board.found.uuid, "a GPU is gone, or was cut anew");
                board.retire();
                board.record.watched(false);
            }
        }
        let changed = !new.is_empty() || boards.len() != state.boards.len();
        state.most_seen = state.most_seen.max(census.gpus.len() + census.unreadable.len());
        // What was taken out of the machine is not lost: its address is no longer on the bus.
        if let Some(bus) = state.on_the_bus.clone().filter(|bus| !bus.is_empty()) {
            let here: BTreeSet<String> = boards.iter().map(|board| board.found.uuid.clone()).collect();
            state.records.retain(|uuid, record| {
                here.contains(uuid) || bus.iter().any(|address| session::same_address(&record.pci(), address))
            });
        }
        state.boards = boards;
        state.unreadable.clone_from(&census.unreadable);
        state.census_at = Some(Instant::now());
        state.driver = Some(Driver::Up);
        state.censuses += 1;
        drop(state);
        for board in new {
            info!(gpu = board.record.gpu, uuid = %board.found.uuid, instances = board.parts.len(), "a GPU is there");
            self.start_worker(board, session.clone());
        }
        if changed {
            session.changed();
        }
    }

    fn start_worker(&self, board: Arc<Board>, session: Arc<Session>) {
        if let Err(err) = worker::start(board, session, self.shared.clone()) {
            warn!(%err, "cannot start a thread for a GPU; its readings are absent");
        }
    }

    /// Looks for calls that hang until the fleet stops.
    fn watch(self: &Arc<Self>) {
        loop {
            let wanted = *self.wishes.lock();
            if wanted.stop {
                return;
            }
            let (boards, session) = {
                let state = self.state();
                (state.boards.clone(), state.session.upgrade())
            };
            let now = Instant::now();
            for board in boards.into_iter().filter(|board| board.give_up(now)) {
                warn!(gpu = board.record.gpu, "a call of the GPU library hangs; another thread goes on with the rest");
                if let Some(session) = &session {
                    self.start_worker(board, session.clone());
                }
            }
            drop(session);
            std::thread::sleep(LOOK);
        }
    }
}

/// The record of a GPU of the census: the one that it has, or a new one under its index, or where another GPU of the census has
/// that number the lowest that none has.
fn record_of(records: &mut BTreeMap<String, Arc<Record>>, census: &Census, found: &FoundGpu) -> Arc<Record> {
    if let Some(record) = records.get(&found.uuid) {
        return record.clone();
    }
    let here = census.gpus.iter().filter_map(|gpu| records.get(&gpu.uuid));
    let taken: BTreeSet<u32> = here.map(|record| record.gpu).collect();
    let gpu = std::iter::once(found.index).chain(0..).find(|gpu| !taken.contains(gpu)).unwrap_or(found.index);
    let record = Arc::new(Record::new(found.uuid.clone(), gpu));
    if records.len() < MOST_RECORDS {
        records.insert(found.uuid.clone(), record.clone());
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(uuid: &str, index: u32) -> FoundGpu {
        let (pci, model) = (String::new(), String::new());
        FoundGpu { uuid: uuid.into(), index, minor: None, pci, model, texts: Vec::new(), parts: Vec::new() }
    }

    #[test]
    fn a_gpu_keeps_its_number_whatever_happens_to_others() {
        let mut records = BTreeMap::new();
        let mut numbers = |gpus: &[FoundGpu]| -> Vec<u32> {
            let census = Census { gpus: gpus.to_vec(), unreadable: Vec::new() };
            gpus.iter().map(|gpu| record_of(&mut records, &census, gpu).gpu).collect()
        };
        assert_eq!(numbers(&[gpu("a", 0), gpu("b", 1), gpu("c", 2)]), [0, 1, 2]);
        assert_eq!(numbers(&[gpu("a", 0), gpu("c", 1)]), [0, 2], "b fell off the bus");
        assert_eq!(numbers(&[gpu("a", 0), gpu("d", 1), gpu("c", 2)]), [0, 1, 2], "d came in the place of b");
        assert_eq!(numbers(&[gpu("a", 0), gpu("c", 1), gpu("e", 2)]), [0, 2, 1], "no two have one number");
    }
}
