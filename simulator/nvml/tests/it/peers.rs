//! nvidia-ml-py, gpustat and nvitop, unmodified.

use std::collections::{BTreeMap, BTreeSet};

use exporter::Value;
use schemas::Timestamp;
use serde_json::Value as Json;
use simulator::{DeviceRef, nvml};

use crate::world::{World, cut, json_lines, python, small, text, tree};

fn rows_script() -> std::path::PathBuf {
    tree("tests/peers/nvml_rows.py")
}

/// Fields of the page that no single reading of NVML gives: an event, a rate over time, a constant of the exporter's.
const BY_OTHER_MEANS: [&str; 3] =
    ["DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_VGPU_LICENSE_STATUS"];

/// Everything that the page says and one reading gives is what nvidia-ml-py reads at the same instant, to the last printed
/// digit; what it cannot read is not on the page. But for `beyond`: names that the page has by other means than NVML.
fn reads_what_the_page_says(world: &World, beyond: &dyn Fn(&str) -> bool) -> BTreeSet<String> {
    agree(world, &json_lines(&mut reader(world.command(python()))), beyond)
}

/// Reads all of `tests/data/nvml-map.csv`, as the rest of `command`.
pub fn reader(mut command: std::process::Command) -> std::process::Command {
    command.arg(rows_script()).arg("rows").arg(tree("tests/data/nvml-map.csv"));
    command
}

/// That `rows` are what the page says, as [`reads_what_the_page_says`]; names that were compared.
pub fn agree(world: &World, rows: &[Json], beyond: &dyn Fn(&str) -> bool) -> BTreeSet<String> {
    let read: BTreeMap<(&str, &str), &Json> =
        rows.iter().map(|row| ((row["name"].as_str().unwrap(), row["uuid"].as_str().unwrap()), row)).collect();
    let (mut compared, printed) = (BTreeSet::new(), world.lines());
    for (name, uuid, value) in printed.iter().filter(|(name, ..)| !BY_OTHER_MEANS.contains(&name.as_str()) && !beyond(name)) {
        let row = read.get(&(name, uuid)).unwrap_or_else(|| panic!("the map has no reading of {name} of {uuid}"));
        let number = row["value"].as_f64().unwrap_or_else(|| panic!("{row} beside {value}"));
        let number = if value.contains('.') { format!("{number:.6}") } else { format!("{number}") };
        assert_eq!(&number, value, "{name} of {uuid} at {}", world.at());
        compared.insert(name.clone());
    }
    let on_page: BTreeSet<(&str, &str)> = printed.iter().map(|(name, uuid, _)| (&**name, &**uuid)).collect();
    for ((name, uuid), row) in read.iter().filter(|(_, row)| !row["error"].is_null()) {
        assert_eq!(row["error"], 3, "{row}");
        assert!(!on_page.contains(&(name, uuid)) || beyond(name), "{name} is on the page, and nvidia-ml-py cannot read it");
    }
    compared
}

#[test]
fn nvidia_ml_py_reads_what_the_page_says() {
    // DCGM reads profiling fields of boards before Hopper by another way.
    let profiling = |name: &str| name.starts_with("DCGM_FI_PROF_");
    for (node, beyond, names) in [("h100-0", &(|_: &str| false) as &dyn Fn(&str) -> bool, 28), ("l4-0", &profiling, 16)] {
        let mut compared: BTreeSet<String> = BTreeSet::new();
        for minute in [0, 33, 88] {
            compared.extend(reads_what_the_page_says(&World::new(&small(), node, minute, 0.0), beyond));
        }
        assert!(compared.len() >= names, "{}: {compared:?}", compared.len());
    }
}

/// Instances are devices: their memory and activity are their own, power, temperature and the like their GPU's.
#[test]
fn nvidia_ml_py_reads_what_the_page_says_of_instances() {
    // Rows are not told of a GPU that is cut, and DCGM's page has them nevertheless.
    let rows = |name: &str| name.contains("REMAP");
    let mut compared: BTreeSet<String> = BTreeSet::new();
    for minute in [33, 88] {
        let world = World::new(&cut(), "h100-0", minute, 0.0);
        compared.extend(reads_what_the_page_says(&world, &rows));
    }
    assert!(compared.len() >= 24, "{}: {compared:?}", compared.len());
}

#[test]
fn nvitop_shows_instances_and_shared_gpus() {
    let world = World::new(&cut(), "h100-0", 33, 0.0);
    let output = world.command(python()).args(["-m", "nvitop", "-1"]).env("COLUMNS", "120").output().unwrap();
    let shown = text(&output);
    assert!(output.status.success() && shown.contains("Enabled"), "{shown}");
    for (_, device) in world.places() {
        if let Some(instance) = &device.instance {
            assert!(shown.contains(&instance.placed.profile.name), "{}: {shown}", instance.placed.profile.name);
        }
    }
    let world = World::new(&cut(), "l4-0", 0, 0.0);
    let at = |minute: i64| world.at().plus_ms(minute * 60_000);
    let running = |world: &World, at| -> Vec<Vec<nvml::Process>> {
        let devices = world.places().into_iter().map(|(place, _)| DeviceRef { node: place.node, gpu: place.device.unwrap() });
        devices.map(|device| nvml::processes(&world.plan, device, at)).collect()
    };
    let shared = |minute: &i64| running(&world, at(*minute)).iter().any(|processes| processes.len() > 1);
    let world = World::new(&cut(), "l4-0", (1..120).find(shared).expect("some share a GPU"), 0.0);
    let shown = text(&world.command(python()).args(["-m", "nvitop", "-1"]).env("COLUMNS", "120").output().unwrap());
    for (gpu, processes) in running(&world, world.at()).iter().enumerate() {
        let used: i64 = processes.iter().map(|process| process.used_mib).sum();
        let state = simulator::state(&world.plan, DeviceRef { node: world.node, gpu }, world.at()).unwrap();
        assert_eq!(used, state.fb_used_mib, "shares of the memory are all of it");
        assert!(processes.iter().all(|process| shown.contains(&process.pid.to_string())), "{processes:?}: {shown}");
    }
}

#[test]
fn every_function_of_the_header_is_there() {
    let world = World::new(&small(), "h100-0", 0, 0.0);
    let list = tree("simulator/src/nvml/functions.txt");
    let missing = json_lines(world.command(python()).arg(rows_script()).arg("names").arg(list));
    assert_eq!(missing, [Json::Array(Vec::new())]);
}

/// What a driver counts by then, millijoules.
fn energy(world: &World, uuid: &str, at: Timestamp) -> i64 {
    let places = world.places();
    let (place, _) = places.iter().find(|(_, device)| device.identity.uuid == uuid).unwrap();
    match nvml::readings(&world.plan, *place, at, None).get(156) {
        Some(Value::Int(mj)) => mj,
        other => panic!("{other:?}"),
    }
}

#[test]
fn processes_agree_while_the_clock_runs() {
    let world = World::new(&small(), "h100-0", 40, 600.0);
    let python = python();
    let run = || {
        let mut command = world.command(&python);
        command.arg(rows_script()).args(["energy", "20"]).stdout(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let clients = [run(), run()];
    let mut seen: BTreeMap<(i64, String), Vec<i64>> = BTreeMap::new();
    for client in clients {
        let output = client.wait_with_output().unwrap();
        assert!(output.status.success());
        let mut last = 0;
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let row: Json = serde_json::from_str(line).unwrap();
            let (at, uuid) = (row["at_us"].as_i64().unwrap() / 1000, row["uuid"].as_str().unwrap().to_owned());
            assert!(at >= last, "time goes on");
            last = at;
            seen.entry((at, uuid)).or_default().push(row["mj"].as_i64().unwrap());
        }
        assert!(last > world.at().ms() + 60_000, "the clock has run: {last}");
    }
    for ((at, uuid), counted) in &seen {
        let true_mj = energy(&world, uuid, Timestamp::from_ms(*at));
        assert!(counted.iter().all(|mj| *mj == true_mj), "{uuid} at {at}: {counted:?}, true is {true_mj}");
    }
    assert!(seen.len() > 80);
}

/// Readings of the page by name, in the order of the node's GPUs.
fn column(world: &World, name: &str) -> Vec<f64> {
    world.lines().iter().filter(|(known, ..)| known == name).map(|(.., value)| value.parse().unwrap()).collect()
}

#[test]
fn gpustat_shows_the_node() {
    let world = World::new(&small(), "h100-0", 33, 0.0);
    let output = world.command(python()).args(["-m", "gpustat", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let shown: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["driver_version"], "580.65.06");
    let gpus = shown["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), 4);
    let column = |name| column(&world, name);
    let (temp, util) = (column("DCGM_FI_DEV_GPU_TEMP"), column("DCGM_FI_DEV_GPU_UTIL"));
    let (power, used) = (column("DCGM_FI_DEV_POWER_USAGE"), column("DCGM_FI_DEV_FB_USED"));
    for (n, gpu) in gpus.iter().enumerate() {
        let number = |key: &str| gpu[key].as_f64().unwrap_or_else(|| panic!("{key}: {gpu}"));
        assert_eq!((&gpu["name"], number("index")), (&"NVIDIA H100 80GB HBM3".into(), n as f64));
        assert_eq!((number("temperature.gpu"), number("utilization.gpu")), (temp[n], util[n]));
        // gpustat cuts the draw to whole watts.
        assert_eq!((number("power.draw"), number("enforced.power.limit")), (power[n].floor(), 700.0));
        assert_eq!((number("memory.used"), number("memory.total")), (used[n], 81_559.0));
        assert!(gpu["fan.speed"].is_null(), "no board with such a cooler has a fan to read");
    }
    assert!(util.iter().any(|util| *util > 0.0), "somebody works: {util:?}");
}

#[test]
fn nvitop_shows_the_node() {
    let world = World::new(&small(), "h100-0", 33, 0.0);
    let output = world.command(python()).args(["-m", "nvitop", "-1", "--colorful"]).env("COLUMNS", "120").output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let shown = text(&output);
    assert!(shown.contains("580.65.06") && shown.contains("13.0"), "{shown}");
    let (temp, power) = (column(&world, "DCGM_FI_DEV_GPU_TEMP"), column(&world, "DCGM_FI_DEV_POWER_USAGE"));
    for (temp, power) in temp.iter().zip(power) {
        assert!(shown.contains(&format!("{temp}C")) && shown.contains(&format!("{}W / 700W", power.round())), "{power}: {shown}");
    }
    let processes: Vec<nvml::Process> = (0..4)
        .flat_map(|gpu| {
            let device = DeviceRef { node: world.node, gpu };
            nvml::processes(&world.plan, device, world.at())
        })
        .collect();
    assert!(!processes.is_empty());
    for process in processes {
        assert!(shown.contains(&process.pid.to_string()), "{process:?}: {shown}");
    }
}
