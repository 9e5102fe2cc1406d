//! What `strandline-sim nvml` and the simulated `libnvidia-ml.so.1` that it lays share: variables, the clock, codes, and what
//! a driver says of a simulated device beyond its page.
//!
//! The command checks the spec, lays a folder with the library under its soname, and becomes the wanted command. The library,
//! loaded there by whatever process, reads [`Setup`] from the environment. Fleet time is a function of the wall clock, so
//! processes that started at different times agree.

mod code;
mod script;

use std::{
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
};

use exporter::{Readings, Value};
use schemas::Timestamp;
use sha2::{Digest, Sha256};

use crate::{
    plan::{BoardPlan, DeviceRef, Plan},
    replay::ReplayError,
    seed::Seed,
    spec::{FleetSpec, SpecError},
    state::{board_state, state},
};

pub use code::Code;
pub use script::{Action, DeviceFault, Script, ScriptError};

/// Path of the fleet spec.
pub const SPEC: &str = "STRANDLINE_SIM_SPEC";
/// Folder that the traces which the spec names lie beside; not set: the spec's own.
pub const TRACES: &str = "STRANDLINE_SIM_TRACES";
/// Name of the node.
pub const NODE: &str = "STRANDLINE_SIM_NODE";
/// Seed in place of the spec's.
pub const SEED: &str = "STRANDLINE_SIM_SEED";
/// The wall clock's time at which the fleet's clock was begun, milliseconds since 1970.
pub const ORIGIN_MS: &str = "STRANDLINE_SIM_ORIGIN_MS";
/// Fleet time at that instant, RFC 3339.
pub const ORIGIN: &str = "STRANDLINE_SIM_ORIGIN";
/// How many times faster than the wall's the fleet's clock runs.
pub const SPEED: &str = "STRANDLINE_SIM_SPEED";
/// Path of a script of misbehaviour.
pub const SCRIPT: &str = "STRANDLINE_SIM_SCRIPT";

/// Every variable that the library reads.
pub const VARIABLES: [&str; 8] = [SPEC, TRACES, NODE, SEED, ORIGIN_MS, ORIGIN, SPEED, SCRIPT];

/// Name under which every client opens the library.
pub const SONAME: &str = "libnvidia-ml.so.1";

/// File name of the library as it is built.
pub const BUILT_AS: &str = "libnvidia_ml_sim.so";

/// Names of every function of the NVML header, one a line.
pub const FUNCTIONS: &str = include_str!("nvml/functions.txt");

/// Highest speed of a fleet's clock.
pub const MAX_SPEED: f64 = 1e6;

/// Fleet time as a function of the wall clock's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WallClock {
    /// When it was begun, by the wall clock, milliseconds since 1970.
    pub origin_ms: i64,
    /// Fleet time then.
    pub origin: Timestamp,
    /// How many times faster than the wall's it runs; 0: it stands.
    pub speed: f64,
}

impl WallClock {
    /// Fleet time when the wall clock shows `wall_ms`; before its beginning it stands.
    pub fn at(&self, wall_ms: i64) -> Timestamp {
        let since = wall_ms.saturating_sub(self.origin_ms).max(0);
        self.origin.plus_ms((since as f64 * self.speed) as i64)
    }

    /// How long until `at`, by the wall clock, milliseconds rounded up; never, where the clock stands.
    pub fn wall_ms_until(&self, wall_ms: i64, at: Timestamp) -> Option<u64> {
        let left = at.ms().saturating_sub(self.at(wall_ms).ms());
        match left {
            ..=0 => Some(0),
            _ if self.speed > 0.0 => Some((left as f64 / self.speed).ceil() as u64),
            _ => None,
        }
    }
}

/// What the library is told by its environment.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The fleet spec.
    pub spec: PathBuf,
    /// Folder that the traces which the spec names lie beside; none: the spec's own.
    pub traces: Option<PathBuf>,
    /// The node whose GPUs it shows.
    pub node: String,
    /// Seed in place of the spec's.
    pub seed: Option<Seed>,
    /// The fleet's clock.
    pub clock: WallClock,
    /// A script of misbehaviour.
    pub script: Option<PathBuf>,
}

/// Why the library cannot show a node.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A variable that must be there.
    #[error("`{0}` is not set; start the command by `strandline-sim nvml`")]
    Missing(&'static str),
    /// A variable that says nothing usable.
    #[error("`{name}` is `{}`, which is not {wanted}; start the command by `strandline-sim nvml`", text.display())]
    Variable {
        /// Its name.
        name: &'static str,
        /// What it says.
        text: OsString,
        /// What it should be.
        wanted: &'static str,
    },
    /// The spec cannot be read.
    #[error("cannot read the fleet spec {}", path.display())]
    Read {
        /// Where it should be.
        path: PathBuf,
        /// What the system says.
        #[source]
        err: io::Error,
    },
    /// The spec is wrong.
    #[error("{}", path.display())]
    Spec {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        err: SpecError,
    },
    /// A trace cannot be played.
    #[error("{}", path.display())]
    Traces {
        /// The spec that names it.
        path: PathBuf,
        /// Why.
        #[source]
        err: ReplayError,
    },
    /// A node whose accelerators NVML knows nothing of.
    #[error("node `{name}` has {product}, which NVML knows nothing of; name a node with GPUs of NVIDIA")]
    Foreign {
        /// The node.
        name: String,
        /// What it has.
        product: String,
    },
    /// No such node.
    #[error("no node is called `{name}`; did you mean `{nearest}`?")]
    Node {
        /// The name.
        name: String,
        /// The name nearest to it.
        nearest: String,
    },
}

impl Setup {
    /// Reads the variables by `get`.
    pub fn read(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, SetupError> {
        let get = |name: &'static str| get(name).filter(|text| !text.is_empty());
        let must = |name| get(name).ok_or(SetupError::Missing(name));
        let clock = WallClock {
            origin_ms: parsed(ORIGIN_MS, must(ORIGIN_MS)?, "a number of milliseconds")?,
            origin: parsed(ORIGIN, must(ORIGIN)?, "an RFC 3339 time")?,
            speed: parsed(SPEED, get(SPEED).unwrap_or_else(|| "1".into()), "a number")?,
        };
        if !(0.0..=MAX_SPEED).contains(&clock.speed) {
            let text = clock.speed.to_string().into();
            return Err(SetupError::Variable { name: SPEED, text, wanted: "between 0 and 1000000" });
        }
        let seed = get(SEED).map(|text| parsed(SEED, text, "a whole number")).transpose()?;
        let node = parsed(NODE, must(NODE)?, "a node's name")?;
        let (traces, script) = (get(TRACES).map(Into::into), get(SCRIPT).map(Into::into));
        Ok(Self { spec: must(SPEC)?.into(), traces, node, seed, clock, script })
    }

    /// The variables that say so; what is `None` is to be unset.
    pub fn variables(&self) -> Vec<(&'static str, Option<OsString>)> {
        vec![
            (SPEC, Some(self.spec.clone().into())),
            (TRACES, self.traces.clone().map(Into::into)),
            (NODE, Some(self.node.clone().into())),
            (SEED, self.seed.map(|seed| seed.to_string().into())),
            (ORIGIN_MS, Some(self.clock.origin_ms.to_string().into())),
            (ORIGIN, Some(self.clock.origin.to_string().into())),
            (SPEED, Some(self.clock.speed.to_string().into())),
            (SCRIPT, self.script.clone().map(Into::into)),
        ]
    }

    /// Plans the fleet and finds the node.
    pub fn plan(&self) -> Result<(Plan, usize), SetupError> {
        let path = || self.spec.clone();
        let text = std::fs::read_to_string(&self.spec).map_err(|err| SetupError::Read { path: path(), err })?;
        let mut spec = FleetSpec::parse(&text).map_err(|err| SetupError::Spec { path: path(), err })?;
        spec.exposition.collectors = None; // it is the pages', and may lie elsewhere than this copy of the spec
        let beside = self.traces.as_deref().or(self.spec.parent()).unwrap_or(Path::new(""));
        spec.replay.load(beside).map_err(|err| SetupError::Traces { path: path(), err })?;
        let seed = self.seed.unwrap_or(spec.seed);
        let plan = Plan::new(spec, seed).map_err(|err| SetupError::Spec { path: path(), err })?;
        let node = find(&plan, &self.node)?;
        Ok((plan, node))
    }
}

/// Index of the node called `name`, which has GPUs of NVIDIA; or the name nearest to it.
pub fn find(plan: &Plan, name: &str) -> Result<usize, SetupError> {
    let Some(node) = plan.node(name) else {
        let names = plan.nodes().iter().map(|node| &*node.name);
        let nearest = names.min_by_key(|known| (strsim::damerau_levenshtein(name, known), *known));
        return Err(SetupError::Node { name: name.to_owned(), nearest: nearest.unwrap_or_default().to_owned() });
    };
    if !plan.nodes()[node].has_telemetry() {
        let product = plan.nodes()[node].accelerator.product.clone();
        return Err(SetupError::Foreign { name: name.to_owned(), product });
    }
    Ok(node)
}

fn parsed<T: std::str::FromStr>(name: &'static str, text: OsString, wanted: &'static str) -> Result<T, SetupError> {
    let value = text.to_str().and_then(|text| text.parse().ok());
    value.ok_or(SetupError::Variable { name, text, wanted })
}

/// Where the library lies: beside the program, or where cargo leaves it for tests; of two the one that was built last.
pub fn beside(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?;
    let places = [folder.join(BUILT_AS), folder.join("deps").join(BUILT_AS)].into_iter().filter(|path| path.is_file());
    places.max_by_key(|path| path.metadata().and_then(|file| file.modified()).ok())
}

/// Name of the folder of a library and a spec: the same for the same two.
pub fn folder_name(library: &Path, spec: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(library.as_os_str().as_encoded_bytes());
    hash.update([0]);
    hash.update(spec);
    let digest = hash.finalize();
    digest[..8].iter().fold("nvml-".to_owned(), |name, byte| name + &format!("{byte:02x}"))
}

/// Lays `library` into `folder` under the names by which clients open it, and the spec beside it, so that a spec that is
/// edited later does not make two processes disagree. Comes back with the path of the spec there.
pub fn lay(folder: &Path, library: &Path, spec: &str) -> io::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    let folder = folder.canonicalize()?;
    let library = library.canonicalize()?;
    let scratch = |name: &str| folder.join(format!(".{name}.{}", std::process::id()));
    for name in [SONAME, "libnvidia-ml.so"] {
        let link = scratch(name);
        let _ = std::fs::remove_file(&link); // of a process that had our number and was killed
        std::os::unix::fs::symlink(&library, &link)?;
        std::fs::rename(&link, folder.join(name))?;
    }
    let written = scratch("fleet.yaml");
    std::fs::write(&written, spec)?;
    let path = folder.join("fleet.yaml");
    std::fs::rename(&written, &path)?;
    Ok(path)
}

/// `LD_LIBRARY_PATH` with `folder` before what it was.
pub fn search_path(folder: &Path, before: Option<&OsStr>) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        path.push(":");
        path.push(before);
    }
    path
}

/// A GPU of a node, or an instance of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of [`Plan::nodes`].
    pub node: usize,
    /// Index of [`crate::plan::NodePlan::boards`].
    pub board: usize,
    /// Index of [`crate::plan::NodePlan::devices`]: the whole GPU or an instance; none for a GPU that is cut, as a whole.
    pub device: Option<usize>,
}

impl Place {
    fn plan(self, plan: &Plan) -> &BoardPlan {
        &plan.nodes()[self.node].boards[self.board]
    }

    fn device(self) -> Option<DeviceRef> {
        self.device.map(|gpu| DeviceRef { node: self.node, gpu })
    }
}

/// A process on a device: one for each pod whose memory is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number. Above any that Linux gives out, so that no process of this machine is taken for it.
    pub pid: u32,
    /// What it is called: namespace and name of its pod.
    pub name: String,
    /// Device memory that it has, MiB.
    pub used_mib: i64,
}

/// Linux gives out no process number above this (`PID_MAX_LIMIT` of 64-bit kernels).
const HIGHEST_PID: u32 = 1 << 22;

/// The processes on a device at `at`, in order of their holders' naming. Those that share a device have its memory alike
/// (chosen: the state knows the device's), the first ones what is left over.
pub fn processes(plan: &Plan, device: DeviceRef, at: Timestamp) -> Vec<Process> {
    let used_mib = state(plan, device, at).map_or(0, |state| state.fb_used_mib);
    let there = |pod: &usize| {
        let bound = plan.pods()[*pod].bound.as_ref();
        bound.is_some_and(|bound| bound.started.is_some_and(|started| started <= at.ms()) && at.ms() < bound.ended)
    };
    let pods: Vec<usize> = plan.holders(device, at).map(|(pod, _)| pod).filter(there).collect();
    if used_mib == 0 || pods.is_empty() {
        return Vec::new();
    }
    let (each, rest) = (used_mib / pods.len() as i64, used_mib % pods.len() as i64);
    let process =
        |(n, pod): (i64, usize)| Process { pid: pid(pod), name: pod_name(plan, pod), used_mib: each + i64::from(n < rest) };
    (0..).zip(pods).map(process).collect()
}

fn pid(pod: usize) -> u32 {
    HIGHEST_PID + 1 + (pod as u32 % (i32::MAX as u32 - HIGHEST_PID))
}

fn pod_name(plan: &Plan, pod: usize) -> String {
    let pod = &plan.pods()[pod];
    format!("{}/{}", pod.namespace, pod.name)
}

/// What the process numbered `pid` is called, if a pod of the plan has it.
pub fn process_name(plan: &Plan, pid: u32) -> Option<String> {
    let pod = pid.checked_sub(HIGHEST_PID + 1)? as usize;
    (pod < plan.pods().len()).then(|| pod_name(plan, pod))
}

/// XIDs of a GPU up to `to`, in order: when, and the code.
pub fn xids(plan: &Plan, place: Place, to: Timestamp) -> Vec<(Timestamp, i64)> {
    let xids = place.plan(plan).xids.iter().take_while(|(at, _)| *at <= to.ms());
    xids.map(|(at, code)| (Timestamp::from_ms(*at), *code)).collect()
}

/// A number of 13 digits that stands for the board: its serial.
pub fn serial(plan: &Plan, place: Place) -> String {
    place.plan(plan).serial()
}

/// Counters of the driver, by DCGM field id: they begin anew when it is loaded.
const SINCE_LOAD: [u16; 14] = [156, 202, 240, 241, 242, 243, 244, 245, 310, 311, 409, 419, 429, 439];

/// Readings at `at`: the page's, without misprints; of a GPU that is cut, what is known of it as a whole. Where its driver was restarted at `restarted` by a script, counters are what they have grown since.
pub fn readings(plan: &Plan, place: Place, at: Timestamp, restarted: Option<Timestamp>) -> Readings {
    let mut readings = raw(plan, place, at);
    let reset = place.plan(plan).reset_before(at.ms()).map(|(reset, _)| reset);
    if let Some(restarted) = restarted.filter(|restarted| reset.is_none_or(|reset| reset < restarted.ms())) {
        let before = raw(plan, place, restarted);
        for field in SINCE_LOAD {
            if let (Some(Value::Int(now)), Some(Value::Int(before))) = (readings.get(field), before.get(field)) {
                readings.set(field, Value::Int(now - before));
            }
        }
    }
    readings
}

/// Fields that are a board's, also where it is cut, by DCGM field id: not its activity, nor its rows.
const OF_BOARD: [u16; 24] =
    [100, 101, 112, 140, 150, 155, 156, 160, 190, 202, 240, 241, 242, 243, 244, 245, 310, 311, 312, 313, 409, 419, 429, 439];

fn raw(plan: &Plan, place: Place, at: Timestamp) -> Readings {
    let mut readings = Readings::default();
    let mut read = |device| state(plan, device, at).map(|state| state.readings(&mut readings));
    if let Some(device) = place.device() {
        read(device);
        return readings;
    }
    // Its instances show their board's readings as their own.
    let first = place.plan(plan).devices.start;
    read(DeviceRef { node: place.node, gpu: first });
    let mut whole = Readings::default();
    for field in OF_BOARD {
        if let Some(value) = readings.get(field) {
            whole.set(field, value);
        }
    }
    if let Some(board) = board_state(plan, place.node, place.board, at) {
        let (total, used, reserved) = (board.fb_total_mib, board.fb_used_mib, board.fb_reserved_mib);
        for (field, mib) in [(250, total), (251, total - used - reserved), (252, used), (253, reserved)] {
            whole.set(field, Value::Int(mib));
        }
    }
    whole
}

/// Whether a board does not answer at `at`.
pub fn is_lost(plan: &Plan, place: Place, at: Timestamp) -> bool {
    board_state(plan, place.node, place.board, at).is_none()
}

/// Bytes that went over a device's links since its counters began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Out over PCIe, byte-milliseconds a second: thousandths of a byte.
    pcie_tx: i128,
    pcie_rx: i128,
    nvlink: i128,
}

impl Traffic {
    /// Bytes out over PCIe.
    pub const fn pcie_tx(&self) -> i64 {
        (self.pcie_tx / 1000) as i64
    }

    /// Bytes in over PCIe.
    pub const fn pcie_rx(&self) -> i64 {
        (self.pcie_rx / 1000) as i64
    }

    /// Bytes over NVLink, in each direction.
    pub const fn nvlink(&self) -> i64 {
        (self.nvlink / 1000) as i64
    }
}

/// Exact integrals of a device's traffic. Rates are constant between breakpoints, which are added up one by one; what was
/// added up to is kept, so that the next question costs what lies between.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    from: Timestamp,
    to: Timestamp,
    sum: Traffic,
}

impl Meter {
    /// Traffic of a whole GPU from the later of `restarted` and its last counter reset to `at`. `kept` is what an earlier
    /// question about the same device left behind.
    pub fn read(kept: &mut Option<Self>, plan: &Plan, device: DeviceRef, at: Timestamp, restarted: Option<Timestamp>) -> Traffic {
        let start = plan.window().from();
        let reset = plan.board(device).reset_before(at.ms()).map(|(reset, _)| Timestamp::from_ms(reset));
        let from = reset.max(restarted).unwrap_or(start).max(start);
        let meter = kept.filter(|meter| meter.from == from && meter.to <= at);
        let mut meter = meter.unwrap_or(Self { from, to: from, sum: Traffic::default() });
        let mut walk = plan.walk(device);
        while meter.to < at {
            let to = at.min(meter.to.plus_ms(24 * schemas::HOUR_MS)); // a day's breakpoints at a time
            let mut points = plan.breakpoints(device, meter.to, to);
            points.push(to);
            for two in points.windows(2) {
                let Some(now) = walk.at(two[0]) else { break };
                let ms = i128::from(two[1].ms() - two[0].ms());
                let add = |sum: &mut i128, rate: Option<i64>| *sum += i128::from(rate.unwrap_or(0)) * ms;
                add(&mut meter.sum.pcie_tx, now.pcie_tx);
                add(&mut meter.sum.pcie_rx, now.pcie_rx);
                add(&mut meter.sum.nvlink, now.nvlink);
            }
            meter.to = to;
        }
        *kept = Some(meter);
        meter.sum
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn setup() -> Setup {
        let clock = WallClock { origin_ms: 1_790_000_000_000, origin: "2026-03-02T06:00:00Z".parse().unwrap(), speed: 60.5 };
        let script = Some("/tmp/misbehave.yaml".into());
        let (spec, traces) = ("/tmp/fleet.yaml".into(), Some("/tmp/traces".into()));
        Setup { spec, traces, node: "h100-0".into(), seed: Some(Seed(7)), clock, script }
    }

    fn read_back(setup: &Setup, without: &str) -> Result<Setup, SetupError> {
        let variables = setup.variables();
        Setup::read(|name| variables.iter().find(|(known, _)| *known == name && name != without)?.1.clone())
    }

    #[test]
    fn variables_say_the_setup() {
        assert_eq!(read_back(&setup(), "").unwrap(), setup());
        let plain = Setup { traces: None, seed: None, script: None, ..setup() };
        assert_eq!(read_back(&plain, "").unwrap(), plain);
        let names: Vec<&str> = setup().variables().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, VARIABLES);
        let missing = read_back(&setup(), ORIGIN).unwrap_err().to_string();
        assert_eq!(missing, "`STRANDLINE_SIM_ORIGIN` is not set; start the command by `strandline-sim nvml`");
        let wrong = Setup { clock: WallClock { speed: -1.0, ..setup().clock }, ..setup() };
        assert!(read_back(&wrong, "").unwrap_err().to_string().contains("between 0 and 1000000"));
    }

    #[test]
    fn fleet_time_follows_the_wall_clock() {
        let clock = setup().clock;
        assert_eq!(clock.at(clock.origin_ms - 5), clock.origin);
        assert_eq!(clock.at(clock.origin_ms + 1000), clock.origin.plus_ms(60_500));
        assert_eq!(clock.wall_ms_until(clock.origin_ms, clock.origin.plus_ms(60_501)), Some(1001));
        assert_eq!(clock.wall_ms_until(clock.origin_ms, clock.origin), Some(0));
        let stands = WallClock { speed: 0.0, ..clock };
        assert_eq!(stands.at(i64::MAX), clock.origin);
        assert_eq!(stands.wall_ms_until(clock.origin_ms, clock.origin.plus_ms(1)), None);
    }

    #[test]
    fn traffic_is_the_same_in_one_step_and_in_many() {
        let spec = FleetSpec::parse(include_str!("../../kwok-fleet/fleets/small.yaml")).unwrap();
        let plan = Plan::new(spec, Seed(7)).unwrap();
        let start = plan.window().from();
        for device in plan.devices() {
            let mut walked = None;
            for minute in [3, 4, 17, 61, 90] {
                let at = start.plus_ms(minute * 60_000 + 123);
                let once = Meter::read(&mut None, &plan, device, at, None);
                assert_eq!(Meter::read(&mut walked, &plan, device, at, None), once, "{device:?} to {at}");
                assert!(once.pcie_rx() > 0 && once.pcie_tx() > 0);
            }
        }
    }

    #[test]
    fn a_restarted_driver_counts_anew() {
        let spec = FleetSpec::parse(include_str!("../../kwok-fleet/fleets/small.yaml")).unwrap();
        let plan = Plan::new(spec, Seed(7)).unwrap();
        let (restarted, at) = (plan.window().from().plus_ms(1_800_000), plan.window().from().plus_ms(1_803_000));
        let place = Place { node: 0, board: 0, device: Some(0) };
        let energy = |restarted| match readings(&plan, place, at, restarted).get(156) {
            Some(Value::Int(mj)) => mj,
            other => panic!("{other:?}"),
        };
        let mj = energy(Some(restarted));
        assert!((60_000..2_100_000).contains(&mj), "three seconds of a board: {mj} mJ");
        assert!(energy(None) > 100 * mj);
    }
}
