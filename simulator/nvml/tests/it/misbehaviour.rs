//! Scripts: each kind of misbehaviour, seen by nvml-wrapper.

use std::time::{Duration, Instant};

use nvml_wrapper::{Nvml, enum_wrappers::device::TemperatureSensor, error::NvmlError};
use simulator::nvml as sim;

use crate::world::{World, is_client, small, text};

fn temperature(nvml: &Nvml, gpu: u32) -> Result<u32, NvmlError> {
    nvml.device_by_index(gpu)?.temperature(TemperatureSensor::Gpu)
}

#[test]
fn calls_fail_with_any_code_and_hang() {
    if !is_client() {
        let script = "calls:\n\
            - {call: nvmlDeviceGetPowerUsage, device: 1, fail: NO_PERMISSION}\n\
            - {call: nvmlDeviceGetTemperature, after_calls: 1, times: 2, fail: 999}\n\
            - {call: nvmlDeviceGetUtilizationRates, hang: 300ms}\n";
        World::new(&small(), "h100-0", 30, 0.0).with_script(script).seen_by("misbehaviour::calls_fail_with_any_code_and_hang");
        return;
    }
    let nvml = Nvml::init().unwrap();
    let power = |gpu| nvml.device_by_index(gpu).unwrap().power_usage();
    assert!(power(0).is_ok() && matches!(power(1), Err(NvmlError::NoPermission)));
    let said: Vec<bool> = (0..5).map(|_| temperature(&nvml, 0).is_ok()).collect();
    assert_eq!(said, [true, false, false, true, true]);
    let begun = Instant::now();
    nvml.device_by_index(0).unwrap().utilization_rates().unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(300));
}

#[test]
fn devices_are_lost_by_the_clock_and_fall_off() {
    if !is_client() {
        let script = "devices:\n\
            - {device: 0, from: 200s, state: lost}\n\
            - {device: 1, from: 90s, for: 1m, state: lost}\n\
            - {device: 2, from: 10s, state: fallen_off}\n\
            - {device: 3, from: 10s, for: 10s, state: lost}\n";
        World::after(&small(), "h100-0", 30, 100)
            .with_script(script)
            .seen_by("misbehaviour::devices_are_lost_by_the_clock_and_fall_off");
        return;
    }
    let nvml = Nvml::init().unwrap();
    assert_eq!(nvml.device_count().unwrap(), 3, "one is no longer counted");
    assert!(temperature(&nvml, 0).is_ok(), "not yet");
    assert!(matches!(temperature(&nvml, 1), Err(NvmlError::GpuLost)));
    let last = nvml.device_by_index(2).unwrap();
    assert!(last.temperature(TemperatureSensor::Gpu).is_ok(), "no longer");
    assert_eq!((last.index().unwrap(), last.minor_number().unwrap()), (2, 3), "those after it move up");
    assert!(matches!(nvml.device_by_index(3), Err(NvmlError::InvalidArg)));
}

/// Asks until the answer is the wanted one: a script is read again within a second or so.
fn until(mut wanted: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !wanted() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_script_is_read_again() {
    if !is_client() {
        let world = World::new(&small(), "h100-0", 30, 0.0).with_script("");
        return world.seen_by("misbehaviour::a_script_is_read_again");
    }
    let path = setup().script.unwrap();
    let nvml = Nvml::init().unwrap();
    assert!(temperature(&nvml, 0).is_ok());
    std::fs::write(&path, "calls: [{call: nvmlDeviceGetTemperature, fail: TIMEOUT}]").unwrap();
    until(|| matches!(temperature(&nvml, 0), Err(NvmlError::Timeout)));
    // A script that cannot be read leaves the last one in force.
    std::fs::write(&path, "calls: [{call: nvmlNoSuchThing, fail: TIMEOUT}]").unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    assert!(matches!(temperature(&nvml, 0), Err(NvmlError::Timeout)));
    std::fs::write(&path, "").unwrap();
    until(|| temperature(&nvml, 0).is_ok());
}

#[test]
fn a_restarted_driver_is_away_and_begins_anew() {
    if !is_client() {
        let world = World::after(&small(), "h100-0", 30, 100).with_script("");
        return world.seen_by("misbehaviour::a_restarted_driver_is_away_and_begins_anew");
    }
    let setup = setup();
    let script = |text: &str| std::fs::write(setup.script.as_ref().unwrap(), text).unwrap();
    let nvml = Nvml::init().unwrap();
    let (device, set) = (nvml.device_by_index(0).unwrap(), nvml.create_event_set().unwrap());
    let before = device.total_energy_consumption().unwrap();

    script("driver: [{from: 90s, for: 1h}]");
    until(|| matches!(device.uuid(), Err(NvmlError::DriverNotLoaded)));
    assert!(matches!(Nvml::init(), Err(NvmlError::DriverNotLoaded)));
    assert!(matches!(set.wait(1), Err(NvmlError::DriverNotLoaded)));

    script("driver: [{from: 50s, for: 10s}]");
    until(|| matches!(device.uuid(), Err(NvmlError::InvalidArg)));
    assert!(matches!(set.wait(1), Err(NvmlError::InvalidArg)), "sets are of the driver's past");
    let anew = nvml.device_by_index(0).unwrap();
    let counted = anew.total_energy_consumption().unwrap() as i64;
    let (plan, node) = setup.plan().unwrap();
    let restarted = setup.clock.origin.plus_ms(60_000);
    let place = sim::Place { node, board: 0, device: Some(0) };
    let by = |at| match sim::readings(&plan, place, at, Some(restarted)).get(156) {
        Some(exporter::Value::Int(mj)) => mj,
        other => panic!("{other:?}"),
    };
    // The clock hardly moves, yet it does.
    let now = setup.clock.origin.plus_ms(100_000);
    assert!((by(now)..=by(now.plus_ms(1000))).contains(&counted), "{counted} mJ in the forty seconds since");
    assert!(counted < before as i64 / 10);
}

fn setup() -> sim::Setup {
    sim::Setup::read(|name| std::env::var_os(name)).unwrap()
}

/// A library that cannot show its node says so in one line, and every initialisation gets the same code.
#[test]
fn a_bad_setup_is_no_driver_and_one_line() {
    if is_client() {
        // Loaded once; nvml-wrapper would load it anew for each.
        let lib = crate::hostile::open();
        for _ in 0..2 {
            // SAFETY: the function takes nothing.
            assert_eq!(unsafe { (lib.nvmlInit_v2.as_ref().unwrap())() }, 9);
        }
        return;
    }
    let bad_spec = small().replace("gpus_per_node: 4", "gpus_per_nod: 4");
    let mut no_node = World::new(&small(), "h100-0", 0, 0.0);
    no_node.setup.node = "h100-1".into();
    let spec = World::new(&small(), "h100-0", 0, 0.0);
    std::fs::write(&spec.setup.spec, bad_spec).unwrap();
    let script = World::new(&small(), "h100-0", 0, 0.0).with_script("calls: 7");
    for (world, says) in [
        (no_node, "no node is called `h100-1`; did you mean `h100-0`?"),
        (spec, "unknown key `gpus_per_nod`; did you mean `gpus_per_node`?"),
        (script, "cannot use the script"),
    ] {
        let mut command = world.command(std::env::current_exe().unwrap());
        let output = command.args(["misbehaviour::a_bad_setup_is_no_driver_and_one_line", "--exact", "--nocapture"]).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let said = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("simulated libnvidia-ml.so.1: ")).collect();
        assert!(lines.len() == 1 && lines[0].contains(says), "{said}");
    }
}
