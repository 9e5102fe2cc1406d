//! Our exporter's NVML source on this library: what it reads is what the simulator's page says.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use exporter::{
    Value,
    nvml::{Ages, Board, Driver, Fleet, Health, Options, Standing},
};
use simulator::{DeviceRef, Plan, nvml::Setup, state};

use crate::world::{World, cut, is_client, small};

/// Fields that the simulator's pages have.
fn printed() -> BTreeSet<u16> {
    exporter::Collectors::built_in().families().iter().map(|family| family.field).collect()
}

fn options() -> Options {
    Options {
        library: PathBuf::from("libnvidia-ml.so.1"),
        wanted: printed().into_iter().chain([112, 164, 190, 240, 310, 313]).collect(),
        texts: vec![1, 50, 53, 54, 57],
        interval: Duration::from_millis(50),
        profiling_interval: Duration::from_millis(100),
        census_interval: Duration::from_millis(100),
        ages: Ages {
            device: Duration::from_millis(1500),
            profiling: Duration::from_millis(1500),
            stuck: Duration::from_millis(300),
        },
        window: Duration::from_secs(300),
        sysfs: PathBuf::from("/nonexistent"),
    }
}

fn start() -> Arc<Fleet> {
    Fleet::start(options(), false).unwrap()
}

/// Looks until `wanted` holds.
fn until(what: &str, mut wanted: impl FnMut() -> bool) {
    let began = Instant::now();
    while !wanted() {
        assert!(began.elapsed() < Duration::from_secs(30), "it does not come: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn setup() -> (Setup, Plan, usize) {
    let setup = Setup::read(|name| std::env::var_os(name)).unwrap();
    let (plan, node) = setup.plan().unwrap();
    (setup, plan, node)
}

fn script(text: &str) {
    std::fs::write(setup().0.script.unwrap(), text).unwrap();
}

fn read(board: &Board, place: usize) -> exporter::Readings {
    let mut readings = exporter::Readings::default();
    board.readings(place, Instant::now(), |field, value| readings.set(field, value));
    readings
}

/// The board's profiling metrics are there, which come last.
fn profiled(fleet: &Fleet, place: usize) -> bool {
    let boards = fleet.boards();
    !boards.is_empty() && boards.iter().all(|board| read(board, place.min(board.parts.len())).get(1002).is_some())
}

/// As a page has it.
fn digits(value: Option<Value>) -> Option<String> {
    value.map(|value| match value {
        Value::Int(value) => value.to_string(),
        Value::Float(value) => format!("{value:.6}"),
    })
}

#[test]
fn what_is_read_is_the_page() {
    if !is_client() {
        return World::new(&small(), "h100-0", 47, 0.0).seen_by("exporter::what_is_read_is_the_page");
    }
    let (setup, plan, node) = setup();
    let fleet = start();
    until("profiling", || profiled(&fleet, 0));
    let boards = fleet.boards();
    assert_eq!(boards.len(), plan.nodes()[node].devices.len());
    for (gpu, board) in boards.iter().enumerate() {
        let mut page = exporter::Readings::default();
        state(&plan, DeviceRef { node, gpu }, setup.clock.origin).unwrap().readings(&mut page);
        assert_eq!((board.record.gpu as usize, &*board.identity), (gpu, &*plan.nodes()[node].devices[gpu].identity));
        let read = read(board, 0);
        for field in printed() {
            // XIDs come as events; rates of links come from two readings of a clock that stands.
            if field == 230 || field == 449 {
                continue;
            }
            assert_eq!(digits(read.get(field)), digits(page.get(field)), "GPU {gpu}, field {field}");
        }
        assert_eq!(board.health(Instant::now()), Health::Ok);
    }
    assert_eq!(fleet.driver(), Driver::Up);
    fleet.stop();
}

#[test]
fn instances_have_readings_of_their_own() {
    if !is_client() {
        return World::new(&cut(), "h100-0", 33, 0.0).seen_by("exporter::instances_have_readings_of_their_own");
    }
    let (setup, plan, node) = setup();
    let fleet = start();
    until("profiling", || profiled(&fleet, 1));
    let board = &fleet.boards()[0];
    let devices = plan.nodes()[node].boards[0].devices.clone();
    assert_eq!(board.parts.len(), devices.len());
    for (part, gpu) in devices.enumerate() {
        let mut page = exporter::Readings::default();
        state(&plan, DeviceRef { node, gpu }, setup.clock.origin).unwrap().readings(&mut page);
        let identity = &*board.parts[part].identity;
        assert_eq!(identity.instance, plan.nodes()[node].devices[gpu].identity.instance);
        let read = read(board, part + 1);
        for field in [250, 251, 252, 253, 1001, 1002, 1004, 1005] {
            assert_eq!(digits(read.get(field)), digits(page.get(field)), "instance {part}, field {field}");
        }
        assert_eq!(read.get(155), None, "power is the board's");
    }
    let whole = read(board, 0);
    assert!(whole.get(155).is_some() && whole.get(203).is_none() && whole.get(1002).is_none());
    assert_eq!(board.standing(0, 203, Instant::now()), Standing::Absent("NOT_SUPPORTED"));
    fleet.stop();
}

/// Calls that the exporter makes about a GPU, and a field that each fills.
const CALLS: [(&str, u16); 24] = [
    ("nvmlDeviceGetClockInfo", 100),
    ("nvmlDeviceGetMaxClockInfo", 113),
    ("nvmlDeviceGetCurrentClocksEventReasons", 112),
    ("nvmlDeviceGetTemperature", 150),
    ("nvmlDeviceGetPowerUsage", 155),
    ("nvmlDeviceGetTotalEnergyConsumption", 156),
    ("nvmlDeviceGetPowerManagementLimit", 160),
    ("nvmlDeviceGetPowerManagementLimitConstraints", 161),
    ("nvmlDeviceGetPowerManagementDefaultLimit", 163),
    ("nvmlDeviceGetEnforcedPowerLimit", 164),
    ("nvmlDeviceGetPerformanceState", 190),
    ("nvmlDeviceGetPcieThroughput", 200),
    ("nvmlDeviceGetPcieReplayCounter", 202),
    ("nvmlDeviceGetUtilizationRates", 203),
    ("nvmlDeviceGetEncoderUtilization", 206),
    ("nvmlDeviceGetDecoderUtilization", 207),
    ("nvmlDeviceGetMaxPcieLinkGeneration", 235),
    ("nvmlDeviceGetCurrPcieLinkGeneration", 237),
    ("nvmlDeviceGetMigMode", 67),
    ("nvmlDeviceGetBAR1MemoryInfo", 90),
    ("nvmlDeviceGetMemoryInfo_v2", 252),
    ("nvmlDeviceGetVirtualizationMode", 526),
    ("nvmlDeviceGetFieldValues", 140),
    ("nvmlGpmSampleGet", 1002),
];

/// Eight GPUs on a node.
fn eight() -> String {
    small().replace("gpus_per_node: 4", "gpus_per_node: 8")
}

/// Codes after which a question has no answer, and the GPU has: all but those of a lost device and of a driver that is gone.
const HARMLESS: [&str; 24] = [
    "INVALID_ARGUMENT",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "NOT_FOUND",
    "INSUFFICIENT_SIZE",
    "INSUFFICIENT_POWER",
    "TIMEOUT",
    "IRQ_ISSUE",
    "FUNCTION_NOT_FOUND",
    "CORRUPTED_INFOROM",
    "OPERATING_SYSTEM",
    "IN_USE",
    "MEMORY",
    "NO_DATA",
    "VGPU_ECC_NOT_SUPPORTED",
    "INSUFFICIENT_RESOURCES",
    "FREQ_NOT_SUPPORTED",
    "ARGUMENT_VERSION_MISMATCH",
    "DEPRECATED",
    "NOT_READY",
    "GPU_NOT_FOUND",
    "INVALID_STATE",
    "RESET_TYPE_NOT_SUPPORTED",
    "UNKNOWN",
];

/// Every code on every call: 24 codes on 24 calls, eight GPUs at a time.
#[test]
fn any_code_of_any_call_takes_its_own_fields_and_no_others() {
    if !is_client() {
        let name = "exporter::any_code_of_any_call_takes_its_own_fields_and_no_others";
        return World::new(&eight(), "h100-0", 30, 0.0).with_script("").seen_by(name);
    }
    let mut options = options();
    options.wanted.extend(CALLS.map(|(_, field)| field));
    // Not every call is one that this library answers.
    let fleet = Fleet::start(options.clone(), false).unwrap();
    until("all read", || profiled(&fleet, 0));
    let given = |(_, field): &&(&str, u16)| matches!(fleet.boards()[0].standing(0, *field, Instant::now()), Standing::Given(..));
    let calls: Vec<(&str, u16)> = CALLS.iter().filter(given).copied().collect();
    assert!(calls.len() >= 20, "{calls:?}");
    fleet.stop();
    for third in 0..3 {
        let code = |gpu: usize, call: usize| HARMLESS[(third * 8 + gpu + call) % HARMLESS.len()];
        let rules: String = (0..8)
            .flat_map(|gpu| calls.iter().enumerate().map(move |(call, (name, _))| (gpu, call, *name)))
            .map(|(gpu, call, name)| format!("- {{call: {name}, device: {gpu}, fail: {}}}\n", code(gpu, call)))
            .collect();
        script(&format!("calls:\n{rules}"));
        // The library reads the script again within a second.
        std::thread::sleep(Duration::from_millis(1300));
        let fleet = Fleet::start(options.clone(), false).unwrap();
        until("boards", || fleet.boards().len() == 8 && fleet.boards().iter().all(|board| board.rounds() > 4));
        let now = Instant::now();
        for (gpu, board) in fleet.boards().iter().enumerate() {
            for (call, (name, field)) in calls.iter().enumerate() {
                let wanted = match (code(gpu, call), *name) {
                    // The older call takes over.
                    ("FUNCTION_NOT_FOUND" | "ARGUMENT_VERSION_MISMATCH", "nvmlDeviceGetMemoryInfo_v2") => continue,
                    (code, _) => code,
                };
                assert_eq!(board.standing(0, *field, now), Standing::Absent(wanted), "GPU {gpu}, {name}");
            }
            assert_eq!(board.health(now), Health::Ok, "GPU {gpu}");
        }
        fleet.stop();
    }
}

#[test]
fn a_call_that_hangs_ages_its_fields_until_they_are_gone_and_holds_up_no_other() {
    if !is_client() {
        let script = "calls:\n- {call: nvmlDeviceGetTemperature, device: 1, after_calls: 3, times: 1, hang: 4s}\n";
        let name = "exporter::a_call_that_hangs_ages_its_fields_until_they_are_gone_and_holds_up_no_other";
        return World::new(&small(), "h100-0", 30, 0.0).with_script(script).seen_by(name);
    }
    let fleet = start();
    until("a call that hangs", || fleet.boards().iter().any(|board| board.stuck(Instant::now()) == 1));
    let board = fleet.boards().into_iter().find(|board| board.stuck(Instant::now()) == 1).unwrap();
    assert_eq!(board.record.gpu, 1);
    // Another thread goes on: other fields stay young while this one ages.
    let age = |field| match board.standing(0, field, Instant::now()) {
        Standing::Given(_, age) => Some(age),
        _ => None,
    };
    until("the field is old", || age(150).is_some_and(|age| age > Duration::from_millis(1000)));
    assert!(age(155).is_some_and(|age| age < Duration::from_millis(500)), "{:?}", age(155));
    let began = Instant::now();
    read(&board, 0);
    assert!(began.elapsed() < Duration::from_millis(50), "a scrape waits for nothing");
    until("the field is gone", || board.standing(0, 150, Instant::now()) == Standing::Absent("STALE"));
    assert_eq!((read(&board, 0).get(150), board.stale(Instant::now())), (None, 1));
    assert_eq!(board.health(Instant::now()), Health::Ok);
    until("the call comes back", || age(150).is_some_and(|age| age < Duration::from_millis(500)));
    assert_eq!(board.stuck(Instant::now()), 0);
    fleet.stop();
}

#[test]
fn threads_left_to_calls_that_hang_are_few() {
    if !is_client() {
        let script = "calls:\n- {call: nvmlDeviceGet*, device: 0, after_calls: 200, hang: 20s}\n";
        let name = "exporter::threads_left_to_calls_that_hang_are_few";
        return World::new(&small(), "h100-0", 30, 0.0).with_script(script).seen_by(name);
    }
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let mut options = options();
    options.ages.stuck = Duration::from_millis(100);
    options.census_interval = Duration::from_secs(100);
    let fleet = Fleet::start(options, false).unwrap();
    until("boards", || !fleet.boards().is_empty());
    let before = threads();
    let board = fleet.boards()[0].clone();
    until("it is given up on", || board.health(Instant::now()) == Health::Unresponsive);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(threads() <= before + exporter::nvml::board::MOST_STUCK, "{} threads, {before} before", threads());
    assert!(fleet.boards()[1..].iter().all(|board| board.health(Instant::now()) == Health::Ok));
    let counts = fleet.counts(None, Instant::now());
    assert_eq!((counts.expected, counts.seen, counts.lost), (4, 3, 1));
    let began = Instant::now();
    fleet.stop();
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}

#[test]
fn lost_devices_are_counted_and_come_back() {
    if !is_client() {
        return World::after(&small(), "h100-0", 30, 100)
            .with_script("")
            .seen_by("exporter::lost_devices_are_counted_and_come_back");
    }
    let fleet = start();
    until("all read", || profiled(&fleet, 0));
    let counts = || {
        let counts = fleet.counts(None, Instant::now());
        (counts.expected, counts.seen, counts.lost)
    };
    assert_eq!(counts(), (4, 4, 0));
    script("devices: [{device: 1, state: lost}, {device: 2, state: fallen_off}]");
    until("two are lost", || counts() == (4, 2, 2));
    let state = |gpu: u32| {
        let (record, board) = fleet.records().into_iter().find(|(record, _)| record.gpu == gpu).unwrap();
        (record, board.map(|board| board.health(Instant::now())))
    };
    assert_eq!(state(1).1, Some(Health::Lost("GPU_IS_LOST")));
    assert!(matches!(state(2).1, None | Some(Health::Lost(_))), "{:?}", state(2).1);
    assert_eq!((state(0).1, state(3).1), (Some(Health::Ok), Some(Health::Ok)), "those after it keep their numbers");
    for board in fleet.boards().iter().filter(|board| [1, 2].contains(&board.record.gpu)) {
        assert!(read(board, 0).as_slice().is_empty(), "nothing is said of it");
    }
    script("");
    until("they are back", || counts() == (4, 4, 0) && profiled(&fleet, 0));
    let (gpus, errors): (Vec<u32>, Vec<bool>) =
        fleet.records().iter().map(|(record, _)| (record.gpu, !record.errors().is_empty())).unzip();
    assert_eq!(gpus, [0, 1, 2, 3]);
    assert!(errors[1], "what failed is counted");
    fleet.stop();
}

#[test]
fn a_driver_that_is_restarted_is_read_again() {
    if !is_client() {
        let world = World::after(&small(), "h100-0", 30, 100).with_script("");
        return world.seen_by("exporter::a_driver_that_is_restarted_is_read_again");
    }
    let fleet = start();
    until("all read", || profiled(&fleet, 0));
    let energy = |fleet: &Fleet| match read(&fleet.boards()[0], 0).get(156) {
        Some(Value::Int(mj)) => mj,
        other => panic!("{other:?}"),
    };
    let before = energy(&fleet);
    script("driver: [{from: 90s, for: 1h}]");
    until("the driver is away", || matches!(fleet.driver(), Driver::Down(_)));
    assert!(fleet.boards().is_empty(), "nothing is read of before");
    assert_eq!(fleet.counts(None, Instant::now()).lost, 4);
    script("driver: [{from: 50s, for: 10s}]");
    until("the driver is back", || fleet.driver() == Driver::Up && profiled(&fleet, 0));
    assert!(energy(&fleet) < before / 10, "its counters begin anew");
    assert!(fleet.opened() >= 2);
    fleet.stop();
}

#[test]
fn a_driver_is_released_and_taken_up_again() {
    if !is_client() {
        let world = World::new(&small(), "h100-0", 30, 0.0);
        return world.seen_by("exporter::a_driver_is_released_and_taken_up_again");
    }
    let opened = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("nvidia");
    let fleet = start();
    until("all read", || profiled(&fleet, 0));
    assert!(opened());
    fleet.release(Some(Duration::from_secs(3600)));
    until("it is released", || fleet.driver() == Driver::Released && fleet.boards().is_empty());
    let asks = || {
        let mut threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        threads.any(|task| {
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            name.starts_with("gpu-") || name.starts_with("events")
        })
    };
    until("its threads leave", || !asks());
    fleet.release(None);
    until("it is read again", || fleet.driver() == Driver::Up && profiled(&fleet, 0));
    fleet.stop();
}

/// Each call of the library is counted, those that wait for XIDs among them, and no count begins anew with another fleet.
#[test]
fn time_in_the_library_is_counted_on() {
    if !is_client() {
        return World::new(&small(), "h100-0", 30, 0.0).seen_by("exporter::time_in_the_library_is_counted_on");
    }
    let mut options = options();
    (options.interval, options.census_interval) = (Duration::from_secs(1000), Duration::from_secs(1000));
    let fleet = Fleet::start(options.clone(), false).unwrap();
    until("one round", || !fleet.boards().is_empty() && fleet.boards().iter().all(|board| board.rounds() > 0));
    let counts = |fleet: &Fleet| {
        let shared = fleet.shared();
        (shared.calls.load(Ordering::Relaxed), shared.library_ns.load(Ordering::Relaxed))
    };
    let after_one_round = counts(&fleet);
    // Rounds and censuses are far away: what still asks waits for events.
    until("waits for events", || counts(&fleet).0 >= after_one_round.0 + 2);
    let before = counts(&fleet);
    options.wanted.insert(113);
    let after = Fleet::start_beside(options, false, Some(&fleet)).unwrap();
    assert!(counts(&after) >= before && counts(&after).1 > before.1, "{:?} after {before:?}", counts(&after));
    fleet.stop();
    after.stop();
}

#[test]
fn boards_without_profiling_have_none() {
    if !is_client() {
        return World::new(&small(), "l4-0", 52, 0.0).seen_by("exporter::boards_without_profiling_have_none");
    }
    let fleet = start();
    until("all read", || !fleet.boards().is_empty() && fleet.boards().iter().all(|board| board.rounds() > 3));
    for board in fleet.boards() {
        let read = read(&board, 0);
        assert!(read.as_slice().iter().all(|(field, _)| *field < 1000), "absent, and not 0");
        assert_eq!(board.standing(0, 1002, Instant::now()), Standing::Absent("NOT_SUPPORTED"));
        assert!(read.get(203).is_some() && read.get(155).is_some());
        assert_eq!(board.suspect(), None);
    }
    fleet.stop();
}

#[test]
fn gpus_that_come_to_the_bus_are_looked_for() {
    if !is_client() {
        return World::new(&small(), "h100-0", 30, 0.0).seen_by("exporter::gpus_that_come_to_the_bus_are_looked_for");
    }
    let sysfs = tempfile::tempdir().unwrap();
    let plug = |address: &str| {
        let folder = sysfs.path().join("bus/pci/devices").join(address);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("vendor"), "0x10de\n").unwrap();
        std::fs::write(folder.join("class"), "0x030200\n").unwrap();
    };
    for board in ["0000:0f:00.0", "0000:1b:00.0", "0000:27:00.0", "0000:33:00.0"] {
        plug(board);
    }
    let mut options = options();
    options.sysfs = sysfs.path().to_owned();
    let fleet = Fleet::start(options, false).unwrap();
    until("all read", || profiled(&fleet, 0));
    let counts = || fleet.counts(None, Instant::now());
    assert_eq!((counts().expected, counts().seen, counts().lost), (4, 4, 0));
    plug("0000:b3:00.0");
    // The driver's library learns of GPUs when it is initialised; this one has no fifth.
    until("the library is opened anew", || fleet.opened() == 2 && counts().seen == 4);
    assert_eq!((counts().expected, counts().lost), (5, 1));
    assert_eq!(fleet.counts(Some(8), Instant::now()).lost, 4, "as somebody told it");
    fleet.stop();
}

/// The library of an older driver: names that it has not are others in its table of symbols.
fn without(world: &World, functions: &[&str]) {
    let laid = world.setup.spec.parent().unwrap().join(simulator::nvml::SONAME);
    let mut bytes = std::fs::read(&laid).unwrap();
    for function in functions {
        let name = [&[0], function.as_bytes(), &[0]].concat();
        let found: Vec<usize> = (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(&name)).collect();
        assert!(!found.is_empty(), "{function} is no symbol");
        found.into_iter().for_each(|at| bytes[at + 1] = b'x');
    }
    std::fs::remove_file(&laid).unwrap(); // a link to the library of all tests
    std::fs::write(&laid, bytes).unwrap();
}

#[test]
fn functions_that_an_older_driver_has_not_take_their_own_fields() {
    let missing = [
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetFieldValues",
        "nvmlGpmSampleGet",
        "nvmlEventSetFree",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetVirtualizationMode",
    ];
    if !is_client() {
        let world = World::new(&small(), "h100-0", 47, 0.0);
        without(&world, &missing);
        return world.seen_by("exporter::functions_that_an_older_driver_has_not_take_their_own_fields");
    }
    let (setup, plan, node) = setup();
    let fleet = start();
    until("all read", || !fleet.boards().is_empty() && fleet.boards().iter().all(|board| board.rounds() > 4));
    for (gpu, board) in fleet.boards().iter().enumerate() {
        let now = state(&plan, DeviceRef { node, gpu }, setup.clock.origin).unwrap();
        let given = |field| match board.standing(0, field, Instant::now()) {
            Standing::Given(Value::Int(value), _) => Ok(value),
            Standing::Absent(code) => Err(code),
            other => panic!("{field}: {other:?}"),
        };
        // The older call counts what is reserved as used.
        assert_eq!(
            (given(250), given(251)),
            (Ok(now.fb_total_mib), Ok(now.fb_total_mib - now.fb_used_mib - now.fb_reserved_mib))
        );
        assert_eq!((given(252), given(253)), (Ok(now.fb_used_mib + now.fb_reserved_mib), Err("FUNCTION_NOT_FOUND")));
        assert_eq!(given(140), Err("FUNCTION_NOT_FOUND"));
        assert_eq!((given(240), given(310)), (Ok(now.power_violation_ns), Ok(now.ecc_volatile.0)), "by the older calls");
        assert_eq!((given(112), given(526)), (Ok(now.clock_reasons), Err("FUNCTION_NOT_FOUND")));
        assert_eq!((given(1002), board.record.last_xid()), (Err("FUNCTION_NOT_FOUND"), None));
        assert_eq!((given(203), board.health(Instant::now())), (Ok(now.util_pct.unwrap()), Health::Ok));
    }
    fleet.stop();
}

/// Codes of a lost device on every call: that GPU is lost, and no other.
#[test]
fn a_code_of_a_lost_device_on_any_call_loses_that_gpu_alone() {
    if !is_client() {
        let name = "exporter::a_code_of_a_lost_device_on_any_call_loses_that_gpu_alone";
        return World::new(&eight(), "h100-0", 30, 0.0).with_script("").seen_by(name);
    }
    let mut options = options();
    options.wanted.extend(CALLS.map(|(_, field)| field));
    options.census_interval = Duration::from_secs(100);
    for code in ["GPU_IS_LOST", "RESET_REQUIRED"] {
        for calls in CALLS.chunks(7) {
            script("");
            std::thread::sleep(Duration::from_millis(1200));
            let fleet = Fleet::start(options.clone(), false).unwrap();
            until("all read", || fleet.boards().len() == 8 && profiled(&fleet, 0));
            let given = |field| matches!(fleet.boards()[7].standing(0, field, Instant::now()), Standing::Given(..));
            // One call of each GPU but the last; those that this library does not answer lose nothing.
            let asked: Vec<bool> = calls.iter().map(|(_, field)| given(*field)).collect();
            let rule = |(gpu, (call, _)): (usize, &(&str, u16))| format!("- {{call: {call}, device: {gpu}, fail: {code}}}\n");
            let rules: String = calls.iter().enumerate().map(rule).collect();
            script(&format!("calls:\n{rules}"));
            let lost = |gpu: usize| fleet.boards()[gpu].health(Instant::now()) == Health::Lost(code);
            until("they are lost", || asked.iter().enumerate().all(|(gpu, asked)| !asked || lost(gpu)));
            let well: Vec<usize> = (0..8).filter(|gpu| asked.get(*gpu) != Some(&true)).collect();
            assert!(well.contains(&7) && well.iter().all(|gpu| !lost(*gpu)), "{code}: {calls:?}");
            assert_eq!(fleet.driver(), Driver::Up);
            fleet.stop();
        }
    }
    script("");
}

/// Codes of a driver that is gone on every call: the library is opened anew, again and again, and all is read once they stop.
#[test]
fn a_code_of_a_driver_that_is_gone_on_any_call_opens_the_library_anew() {
    if !is_client() {
        let name = "exporter::a_code_of_a_driver_that_is_gone_on_any_call_opens_the_library_anew";
        return World::new(&small(), "h100-0", 30, 0.0).with_script("").seen_by(name);
    }
    let mut options = options();
    options.wanted.extend(CALLS.map(|(_, field)| field));
    options.census_interval = Duration::from_secs(100);
    let fleet = Fleet::start(options, false).unwrap();
    until("all read", || profiled(&fleet, 0));
    let codes = ["UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "LIB_RM_VERSION_MISMATCH"];
    for (call, code) in [
        ("nvmlDeviceGetPowerUsage", 0),
        ("nvmlDeviceGetFieldValues", 1),
        ("nvmlGpmSampleGet", 2),
        ("nvmlDeviceGetMemoryInfo_v2", 3),
    ] {
        let opened = fleet.opened();
        script(&format!("calls: [{{call: {call}, fail: {}}}]", codes[code]));
        until("it is opened anew", || fleet.opened() > opened);
        script("");
        until("all is read again", || fleet.driver() == Driver::Up && fleet.boards().len() == 4 && profiled(&fleet, 0));
    }
    fleet.stop();
}

/// Traffic over NVLink is a rate between two readings of the driver's sums, on a clock that runs.
#[test]
fn nvlinks_rate_is_the_boards_traffic() {
    // A minute at which some board talks to others, in the fleet that everybody here knows.
    let calm = World::new(&small(), "h100-0", 0, 0.0);
    let traffic =
        |gpu: usize, at| state(&calm.plan, DeviceRef { node: calm.node, gpu }, at).and_then(|now| now.nvlink).unwrap_or(0);
    let busy = |gpu: usize, minute: i64| (0..30).all(|s| traffic(gpu, calm.at().plus_ms(minute * 60_000 + s * 1000)) > 0);
    let found = (1..110).flat_map(|minute| (0..4).map(move |gpu| (minute, gpu))).find(|&(minute, gpu)| busy(gpu, minute));
    let (minute, gpu) = found.expect("a board with traffic for half a minute");
    if !is_client() {
        return World::new(&small(), "h100-0", minute, 1.0).seen_by("exporter::nvlinks_rate_is_the_boards_traffic");
    }
    let fleet = start();
    let rate = || match fleet.boards().get(gpu).map(|board| board.standing(0, 449, Instant::now())) {
        Some(Standing::Given(Value::Int(rate), _)) => Some(rate),
        _ => None,
    };
    until("a rate", || rate().is_some());
    // Thousands of KiB a second, both ways, as DCGM has it.
    let (read, clock) = (rate().unwrap(), setup().0.clock);
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
    let near = (-30..=10).map(|tenth| 2 * traffic(gpu, clock.at(wall + tenth * 100)) / 1024 / 1000);
    let (least, most) = near.fold((i64::MAX, 0), |(least, most), rate| (least.min(rate), most.max(rate)));
    assert!(least > 0 && (least * 95 / 100..=most * 105 / 100).contains(&read), "{read} of {least} to {most}");
    fleet.stop();
}
