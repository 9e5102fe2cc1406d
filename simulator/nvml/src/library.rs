//! One library per process: whether it is initialised, what its handles mean, and the way that every call goes.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Condvar, Mutex, OnceLock},
    time::Duration,
};

use simulator::nvml::Code;

use crate::{
    abi::Handle,
    boundary::Answer,
    events::EventSet,
    gpm::Sample,
    machine::{Machine, Moment, View, complain, locked},
};

/// Most event sets, and most samples, that a process can have.
const MAX_OBJECTS: usize = 4096;

static LIBRARY: Library = Library {
    machine: OnceLock::new(),
    state: Mutex::new(State { references: 0, generation: 0, sets: BTreeMap::new(), samples: BTreeMap::new(), made: 0 }),
    changed: Condvar::new(),
};

struct Library {
    machine: OnceLock<Option<Machine>>,
    state: Mutex<State>,
    /// Told when a set or the library goes, so that who waits for events stops waiting.
    changed: Condvar,
}

/// What calls leave behind.
pub struct State {
    references: u32,
    generation: u32,
    /// Event sets, by number.
    pub sets: BTreeMap<u32, EventSet>,
    /// GPM samples, by number.
    pub samples: BTreeMap<u32, Option<Sample>>,
    made: u32,
}

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Device = 1,
    GpuInstance = 2,
    ComputeInstance = 3,
    EventSet = 4,
    Sample = 5,
}

/// The upper half of every handle: no address of a process, and no small number.
const MARK: usize = 0x5354_4c4e; // "STLN"
const _: () = assert!(size_of::<usize>() == 8, "handles need 64 bits");

fn handle(kind: Kind, rest: u32) -> Handle {
    Handle(MARK << 32 | (kind as usize) << 28 | (rest as usize & 0x0fff_ffff))
}

/// What is left of a handle once it is seen to be of `kind`.
fn rest(kind: Kind, handle: Handle) -> Answer<u32> {
    let fits = handle.0 >> 28 == MARK << 4 | kind as usize;
    if fits { Ok((handle.0 & 0x0fff_ffff) as u32) } else { Err(Code::INVALID_ARGUMENT) }
}

/// Most boards of a node, those that come in another's place counted.
pub const MOST_GPUS: usize = 1 << 13;

/// Generation (11 bits), GPU (13), and instance counted from 1 (4).
fn place(moment: &Moment, gpu: usize, instance: Option<usize>) -> u32 {
    let instance = instance.map_or(0, |instance| instance + 1);
    (moment.generation & 0x7ff) << 17 | (gpu as u32 & 0x1fff) << 4 | (instance as u32 & 0xf)
}

/// Handle of a GPU, or of one of its instances as a device.
pub fn handle_of(moment: &Moment, gpu: usize, instance: Option<usize>) -> Handle {
    handle(Kind::Device, place(moment, gpu, instance))
}

/// Handle of a GPU instance.
pub fn gpu_instance_handle(moment: &Moment, gpu: usize, instance: usize) -> Handle {
    handle(Kind::GpuInstance, place(moment, gpu, Some(instance)))
}

/// Handle of the compute instance in it.
pub fn compute_instance_handle(moment: &Moment, gpu: usize, instance: usize) -> Handle {
    handle(Kind::ComputeInstance, place(moment, gpu, Some(instance)))
}

/// A call on its way: the node and the moment.
pub struct Session {
    /// The node.
    pub machine: &'static Machine,
    /// When.
    pub moment: Moment,
}

impl Session {
    fn open() -> Answer<Self> {
        if locked(&LIBRARY.state).references == 0 {
            return Err(Code::UNINITIALIZED);
        }
        let machine = LIBRARY.machine.get().and_then(Option::as_ref).ok_or(Code::UNINITIALIZED)?;
        let session = Self { machine, moment: machine.now() };
        session.forget_the_past();
        Ok(session)
    }

    /// The same call, later: whether the library and the driver are still there.
    pub fn again() -> Answer<Self> {
        let session = Self::open()?;
        let away = session.moment.script.driver_away(session.moment.since_ms);
        if away { Err(Code::DRIVER_NOT_LOADED) } else { Ok(session) }
    }

    /// Handles of a driver that was restarted mean nothing, nor do the sets and samples made with it.
    fn forget_the_past(&self) {
        let mut state = locked(&LIBRARY.state);
        if state.generation != self.moment.generation {
            state.generation = self.moment.generation;
            state.sets.clear();
            state.samples.clear();
            LIBRARY.changed.notify_all();
        }
    }

    /// What the script does to a call. Hangs here, with no lock held.
    fn act(&self, name: &str, gpu: Option<usize>) -> Answer {
        let device = gpu.map(|gpu| (self.machine.gpus[gpu].slot, self.machine.gpus[gpu].uuid.as_str()));
        let action = self.moment.script.on_call(name, device, self.moment.since_ms);
        if action.hang_ms > 0 {
            std::thread::sleep(Duration::from_millis(action.hang_ms));
        }
        match action.fail {
            Some(Code::SUCCESS) | None => {}
            Some(code) => return Err(code),
        }
        if self.moment.script.driver_away(self.moment.since_ms) { Err(Code::DRIVER_NOT_LOADED) } else { Ok(()) }
    }

    /// A GPU or an instance at the session's moment.
    pub fn view(&self, gpu: usize, instance: Option<usize>) -> View<'_> {
        View { machine: self.machine, moment: &self.moment, gpu, instance }
    }

    fn find(&self, kind: Kind, handle: Handle) -> Answer<View<'_>> {
        let place = rest(kind, handle)?;
        let (gpu, instance) = ((place >> 4 & 0x1fff) as usize, (place & 0xf) as usize);
        let known = self.machine.gpus.get(gpu).ok_or(Code::INVALID_ARGUMENT)?;
        let of_now = place >> 17 == self.moment.generation & 0x7ff;
        if !of_now || instance > known.parts.len() {
            return Err(Code::INVALID_ARGUMENT);
        }
        Ok(self.view(gpu, instance.checked_sub(1)))
    }

    /// The `index`th GPU that is counted.
    pub fn by_index(&self, index: u32) -> Answer<View<'_>> {
        let gpu = self.machine.present(&self.moment).nth(index as usize);
        self.there(self.view(gpu.ok_or(Code::INVALID_ARGUMENT)?, None))
    }

    /// The counted GPU, or instance of one, that is meant.
    pub fn find_by(&self, is: impl Fn(&View) -> bool) -> Answer<View<'_>> {
        let whole = self.machine.present(&self.moment).map(|gpu| (gpu, None));
        let parts = self.machine.present(&self.moment);
        let parts = parts.flat_map(|gpu| (0..self.machine.gpus[gpu].parts.len()).map(move |part| (gpu, Some(part))));
        let mut all = whole.chain(parts).map(|(gpu, instance)| self.view(gpu, instance));
        self.there(all.find(is).ok_or(Code::NOT_FOUND)?)
    }

    fn there<'a>(&self, view: View<'a>) -> Answer<View<'a>> {
        if self.machine.away(&self.moment, view.gpu).is_some() { Err(Code::GPU_IS_LOST) } else { Ok(view) }
    }
}

/// A panic is a fault of ours; it must not pass into the caller's frames.
fn guarded(body: impl FnOnce() -> Answer) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::SUCCESS.0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// A call about the node.
pub fn call(name: &str, body: impl FnOnce(&Session) -> Answer) -> u32 {
    guarded(|| {
        let session = Session::open()?;
        session.act(name, None)?;
        body(&session)
    })
}

/// A call about a device.
pub fn on(name: &str, device: Handle, body: impl FnOnce(&View) -> Answer) -> u32 {
    on_kind(Kind::Device, name, device, body)
}

/// A call about a GPU instance.
pub fn on_gpu_instance(name: &str, instance: Handle, body: impl FnOnce(&View) -> Answer) -> u32 {
    on_kind(Kind::GpuInstance, name, instance, body)
}

/// A call about a compute instance.
pub fn on_compute_instance(name: &str, instance: Handle, body: impl FnOnce(&View) -> Answer) -> u32 {
    on_kind(Kind::ComputeInstance, name, instance, body)
}

fn on_kind(kind: Kind, name: &str, handle: Handle, body: impl FnOnce(&View) -> Answer) -> u32 {
    guarded(|| {
        let session = Session::open()?;
        let found = session.find(kind, handle);
        session.act(name, found.as_ref().ok().map(|view| view.gpu))?;
        body(&session.there(found?)?)
    })
}

/// `nvmlInit` by any of its names.
pub fn init(name: &str) -> u32 {
    guarded(|| {
        let load = || Machine::load().map_err(|err| complain(&*err)).ok();
        let machine = LIBRARY.machine.get_or_init(load).as_ref().ok_or(Code::DRIVER_NOT_LOADED)?;
        let session = Session { machine, moment: machine.now() };
        session.act(name, None)?;
        session.forget_the_past();
        let mut state = locked(&LIBRARY.state);
        state.references = state.references.checked_add(1).ok_or(Code::INSUFFICIENT_RESOURCES)?;
        Ok(())
    })
}

/// `nvmlShutdown`: once for each initialisation.
pub fn shutdown() -> u32 {
    guarded(|| {
        let mut state = locked(&LIBRARY.state);
        state.references = state.references.checked_sub(1).ok_or(Code::UNINITIALIZED)?;
        if state.references == 0 {
            state.sets.clear();
            state.samples.clear();
            LIBRARY.changed.notify_all();
        }
        Ok(())
    })
}

/// Works on what calls leave behind.
pub fn with_state<T>(work: impl FnOnce(&mut State) -> Answer<T>) -> Answer<T> {
    work(&mut locked(&LIBRARY.state))
}

/// Waits until what calls leave behind changes, at most `timeout`.
pub fn wait(timeout: Duration) {
    let state = locked(&LIBRARY.state);
    drop(LIBRARY.changed.wait_timeout(state, timeout));
}

impl State {
    fn number(&mut self) -> u32 {
        self.made = self.made.wrapping_add(1) & 0x0fff_ffff;
        self.made
    }

    /// A new, empty event set.
    pub fn make_set(&mut self) -> Answer<Handle> {
        if self.sets.len() >= MAX_OBJECTS {
            return Err(Code::INSUFFICIENT_RESOURCES);
        }
        let number = self.number();
        self.sets.insert(number, EventSet::default());
        Ok(handle(Kind::EventSet, number))
    }

    /// An event set.
    pub fn set(&mut self, set: Handle) -> Answer<&mut EventSet> {
        let number = rest(Kind::EventSet, set)?;
        self.sets.get_mut(&number).ok_or(Code::INVALID_ARGUMENT)
    }

    /// Frees an event set; who waits for it stops.
    pub fn free_set(&mut self, set: Handle) -> Answer {
        let number = rest(Kind::EventSet, set)?;
        LIBRARY.changed.notify_all();
        self.sets.remove(&number).map(drop).ok_or(Code::INVALID_ARGUMENT)
    }

    /// A new, empty sample.
    pub fn make_sample(&mut self) -> Answer<Handle> {
        if self.samples.len() >= MAX_OBJECTS {
            return Err(Code::INSUFFICIENT_RESOURCES);
        }
        let number = self.number();
        self.samples.insert(number, None);
        Ok(handle(Kind::Sample, number))
    }

    /// A sample.
    pub fn sample(&mut self, sample: Handle) -> Answer<&mut Option<Sample>> {
        let number = rest(Kind::Sample, sample)?;
        self.samples.get_mut(&number).ok_or(Code::INVALID_ARGUMENT)
    }

    /// Frees a sample.
    pub fn free_sample(&mut self, sample: Handle) -> Answer {
        let number = rest(Kind::Sample, sample)?;
        self.samples.remove(&number).map(drop).ok_or(Code::INVALID_ARGUMENT)
    }
}
