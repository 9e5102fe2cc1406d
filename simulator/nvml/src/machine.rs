//! The node behind the library: its GPUs, its clock, its script, and what a device reads at a moment.

use std::{
    error::Error,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use exporter::{Readings, Value};
use schemas::Timestamp;
use simulator::{
    DeviceRef, Plan,
    accelerator::Accelerator,
    mig::Placed,
    nvml::{self, Code, DeviceFault, Meter, Place, Script, Setup, Traffic, WallClock},
    plan::{BoardPlan, InstancePlan},
};

use crate::{
    abi::NO_INSTANCE,
    boundary::Answer,
    library::{MOST_GPUS, handle_of},
};

/// A script is looked at again no sooner.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The node.
pub struct Machine {
    /// The fleet.
    pub plan: Plan,
    /// Its node, as an index of the plan's.
    pub node: usize,
    /// Every board that it ever has, in the plan's order; [`Machine::present`] has those of a moment.
    pub gpus: Vec<Gpu>,
    clock: WallClock,
    script: Option<Mutex<ScriptFile>>,
    meters: Mutex<Vec<Option<Meter>>>,
}

/// One GPU: whole, or cut into instances.
pub struct Gpu {
    /// Its slot.
    pub slot: u32,
    /// UUID.
    pub uuid: String,
    /// PCI address.
    pub pci_bus_id: String,
    /// The whole GPU as a device of the plan.
    pub whole: Option<usize>,
    /// Its MIG instances, in the order of their index.
    pub parts: Vec<Part>,
}

/// A MIG instance of a GPU.
pub struct Part {
    /// The instance as a device of the plan.
    pub device: usize,
    /// Its own UUID.
    pub uuid: String,
    /// Profile, place and GPU instance id.
    pub placed: Placed,
}

/// What holds for the whole of one call.
pub struct Moment {
    /// The wall clock's time, milliseconds since 1970.
    pub wall_ms: i64,
    /// Fleet time.
    pub at: Timestamp,
    /// The script then.
    pub script: Arc<Script>,
    /// Fleet time since the clock's beginning.
    pub since_ms: i64,
    /// How often a script has restarted the driver; handles of another generation mean nothing.
    pub generation: u32,
    /// When it did so last.
    pub restarted: Option<Timestamp>,
}

/// A script and when it was last looked at.
struct ScriptFile {
    path: PathBuf,
    looked: Instant,
    stamp: Option<(SystemTime, u64)>,
    script: Arc<Script>,
}

impl Machine {
    /// What the environment describes.
    pub fn load() -> Result<Self, Box<dyn Error>> {
        let setup = Setup::read(|name| std::env::var_os(name))?;
        let (plan, node) = setup.plan()?;
        let script = setup.script.map(ScriptFile::open).transpose()?.map(Mutex::new);
        let gpus = gpus(&plan, node);
        if gpus.len() > MOST_GPUS {
            return Err(format!(
                "the node has {} boards over the fleet's time; handles tell {MOST_GPUS} apart: plan fewer swaps",
                gpus.len()
            )
            .into());
        }
        let meters = Mutex::new(vec![None; plan.nodes()[node].devices.len()]);
        Ok(Self { plan, node, gpus, clock: setup.clock, script, meters })
    }

    /// What holds now.
    pub fn now(&self) -> Moment {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let wall_ms = since.map_or(0, |since| since.as_millis() as i64);
        let at = self.clock.at(wall_ms);
        let script = self.script.as_ref().map(|script| locked(script).current()).unwrap_or_default();
        let since_ms = at.ms() - self.clock.origin.ms();
        let (generation, restarted) = script.restarts(self.clock.origin, since_ms);
        Moment { wall_ms, at, script, since_ms, generation, restarted }
    }

    /// Fleet time when the wall clock shows `wall_ms`.
    pub fn fleet_time(&self, wall_ms: i64) -> Timestamp {
        self.clock.at(wall_ms)
    }

    /// How long until `at`, by the wall clock; never, where the clock stands.
    pub fn until(&self, moment: &Moment, at: Timestamp) -> Option<Duration> {
        self.clock.wall_ms_until(moment.wall_ms, at).map(Duration::from_millis)
    }

    /// How GPU `gpu` is away, if it is: by the script, or by the plan.
    pub fn away(&self, moment: &Moment, gpu: usize) -> Option<DeviceFault> {
        let scripted = moment.script.device(self.gpus[gpu].slot, &self.gpus[gpu].uuid, moment.since_ms);
        let place = Place { node: self.node, board: gpu, device: None };
        let planned = || nvml::is_lost(&self.plan, place, moment.at).then_some(DeviceFault::Lost);
        scripted.or_else(planned)
    }

    /// The GPUs that are counted, in order: of each slot the board whose time it is.
    pub fn present<'a>(&'a self, moment: &'a Moment) -> impl Iterator<Item = usize> + 'a {
        let boards = self.plan.nodes()[self.node].boards_at(moment.at).map(|(gpu, _)| gpu);
        boards.filter(|gpu| self.away(moment, *gpu) != Some(DeviceFault::FallenOff))
    }

    /// Constants of its boards.
    pub fn accelerator(&self) -> &'static Accelerator {
        self.plan.nodes()[self.node].accelerator
    }

    /// Whether NVML tells profiling metrics of its boards: those of Hopper and later.
    pub fn has_gpm(&self) -> bool {
        matches!(self.accelerator().arch.as_str(), "Hopper" | "Blackwell")
    }
}

fn gpus(plan: &Plan, node: usize) -> Vec<Gpu> {
    let node = &plan.nodes()[node];
    let part = |device: usize| {
        let InstancePlan { uuid, placed, .. } = node.devices[device].instance.as_ref()?;
        Some(Part { device, uuid: uuid.clone(), placed: placed.clone() })
    };
    let gpu = |board: &BoardPlan| Gpu {
        slot: board.index,
        uuid: board.uuid.clone(),
        pci_bus_id: board.pci_bus_id.clone(),
        whole: board.devices.clone().find(|device| node.devices[*device].instance.is_none()),
        parts: board.devices.clone().filter_map(part).collect(),
    };
    node.boards.iter().map(gpu).collect()
}

impl ScriptFile {
    fn open(path: PathBuf) -> Result<Self, Box<dyn Error>> {
        let describe = |err: &dyn Error| format!("cannot use the script {}: {err}", path.display());
        let text = std::fs::read_to_string(&path).map_err(|err| describe(&err))?;
        let script = Arc::new(Script::parse(&text).map_err(|err| describe(&err))?);
        Ok(Self { stamp: stamp(&path), path, looked: Instant::now(), script })
    }

    /// The script as the file has it; as it was, where what the file has now is none.
    fn current(&mut self) -> Arc<Script> {
        if self.looked.elapsed() >= LOOK_AGAIN {
            self.looked = Instant::now();
            let stamp = stamp(&self.path);
            if stamp != self.stamp {
                match Self::open(self.path.clone()) {
                    Ok(opened) => *self = opened,
                    Err(err) => complain(&*err),
                }
                self.stamp = stamp;
            }
        }
        self.script.clone()
    }
}

/// What tells one state of a file from another.
fn stamp(path: &std::path::Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

/// One line on standard error, sources included: the library has no other way to say more than a code.
pub fn complain(err: &dyn Error) {
    let mut said = err.to_string();
    let mut next = err.source();
    while let Some(source) = next {
        said = format!("{said}: {source}");
        next = source.source();
    }
    eprintln!("simulated libnvidia-ml.so.1: {}", said.replace('\n', "; "));
}

/// What a lock guards; a thread that panicked in it left nothing half-done that matters here.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A GPU, or an instance of one, at a moment.
pub struct View<'a> {
    /// The node.
    pub machine: &'a Machine,
    /// When.
    pub moment: &'a Moment,
    /// Which GPU.
    pub gpu: usize,
    /// Which of its instances, if one is meant.
    pub instance: Option<usize>,
}

impl<'a> View<'a> {
    /// Its GPU.
    pub fn board(&self) -> &'a Gpu {
        &self.machine.gpus[self.gpu]
    }

    /// The same for the whole GPU.
    pub fn parent(&self) -> View<'a> {
        View { instance: None, ..*self }
    }

    /// That it is a whole GPU: most functions know nothing of instances.
    pub fn whole(&self) -> Answer {
        if self.instance.is_none() { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
    }

    /// Where it is in the plan.
    pub fn place(&self) -> Place {
        let device = match self.instance {
            Some(instance) => self.board().parts.get(instance).map(|part| part.device),
            None => self.board().whole,
        };
        Place { node: self.machine.node, board: self.gpu, device }
    }

    /// The plan's device: not to be had of a GPU that is cut into instances.
    pub fn device(&self) -> Answer<DeviceRef> {
        let place = self.place();
        place.device.map(|gpu| DeviceRef { node: place.node, gpu }).ok_or(Code::NOT_SUPPORTED)
    }

    /// What it reads, by DCGM field id.
    pub fn readings(&self) -> Readings {
        nvml::readings(&self.machine.plan, self.place(), self.moment.at, self.moment.restarted)
    }

    /// A whole number that it reads.
    pub fn int(&self, field: u16) -> Answer<i64> {
        int(&self.readings(), field)
    }

    /// The same of a whole GPU, as the 32-bit number that most functions give.
    pub fn unsigned(&self, field: u16) -> Answer<u32> {
        self.whole()?;
        unsigned(self.int(field)?)
    }

    /// What went over its links since its counters began.
    pub fn traffic(&self) -> Answer<Traffic> {
        self.whole()?;
        let device = self.device()?;
        let mut meters = locked(&self.machine.meters);
        let kept = meters.get_mut(device.gpu).ok_or(Code::UNKNOWN)?;
        Ok(Meter::read(kept, &self.machine.plan, device, self.moment.at, self.moment.restarted))
    }

    /// Its handle.
    pub fn handle(&self) -> crate::abi::Handle {
        handle_of(self.moment, self.gpu, self.instance)
    }

    /// GPU instance id and compute instance id; none of a whole GPU.
    pub fn instance_ids(&self) -> (u32, u32) {
        let part = self.instance.and_then(|instance| self.board().parts.get(instance));
        part.map_or((NO_INSTANCE, NO_INSTANCE), |part| (part.placed.id, 0))
    }

    /// Board constants.
    pub fn accelerator(&self) -> &'static Accelerator {
        self.machine.accelerator()
    }
}

/// A whole number of `readings`; what is not there is not supported.
pub fn int(readings: &Readings, field: u16) -> Answer<i64> {
    match readings.get(field) {
        Some(Value::Int(value)) => Ok(value),
        Some(Value::Float(_)) | None => Err(Code::NOT_SUPPORTED),
    }
}

/// A fraction of `readings`.
pub fn float(readings: &Readings, field: u16) -> Answer<f64> {
    match readings.get(field) {
        Some(Value::Float(value)) => Ok(value),
        Some(Value::Int(_)) | None => Err(Code::NOT_SUPPORTED),
    }
}

/// A number as 32 bits without sign; one that does not fit is a fault of ours.
pub fn unsigned(value: i64) -> Answer<u32> {
    u32::try_from(value).map_err(|_| Code::UNKNOWN)
}
