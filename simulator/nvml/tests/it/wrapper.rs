//! nvml-wrapper, unmodified: each test runs in a process of its own that sees a node.

use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::{
    Nvml,
    bitmasks::event::EventTypes,
    enum_wrappers::device::{
        Clock, EccCounter, MemoryError, PcieUtilCounter, PerformancePolicy, PerformanceState, Sampling, TemperatureSensor,
    },
    enums::{device::SampleValue, event::XidError},
    error::NvmlError,
    gpm::gpm_metrics_get,
    struct_wrappers::event::EventData,
    structs::device::FieldId,
};
use simulator::{DeviceRef, Plan, nvml as sim, nvml::Setup, state};

use crate::world::{World, cut, is_client, small};

fn here() -> (Setup, Plan, usize) {
    let setup = Setup::read(|name| std::env::var_os(name)).unwrap();
    let (plan, node) = setup.plan().unwrap();
    (setup, plan, node)
}

#[test]
fn a_wrapped_node_is_the_simulated_one() {
    if !is_client() {
        for (node, minute) in [("h100-0", 47), ("l4-0", 52)] {
            World::new(&small(), node, minute, 0.0).seen_by("wrapper::a_wrapped_node_is_the_simulated_one");
        }
        return;
    }
    let (setup, plan, node) = here();
    let nvml = Nvml::init().unwrap();
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.65.06");
    assert_eq!(nvml.sys_nvml_version().unwrap(), "13.580.65.06");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
    let devices = &plan.nodes()[node].devices;
    let accelerator = plan.nodes()[node].accelerator;
    assert_eq!(nvml.device_count().unwrap() as usize, devices.len());
    for (gpu, planned) in devices.iter().enumerate() {
        let now = simulator::state(&plan, DeviceRef { node, gpu }, setup.clock.origin).unwrap();
        let device = nvml.device_by_index(gpu as u32).unwrap();
        let uuid = device.uuid().unwrap();
        assert_eq!((&uuid, &device.name().unwrap()), (&planned.identity.uuid, &accelerator.product));
        let pci = device.pci_info().unwrap();
        assert_eq!(pci.bus_id, planned.identity.pci_bus_id);
        assert_eq!(nvml.device_by_uuid(uuid).unwrap().index().unwrap(), gpu as u32);
        assert_eq!(nvml.device_by_pci_bus_id(pci.bus_id).unwrap().index().unwrap(), gpu as u32);
        let memory = device.memory_info().unwrap();
        let mib = |bytes: u64| (bytes / (1 << 20)) as i64;
        assert_eq!((mib(memory.total), mib(memory.used)), (now.fb_total_mib, now.fb_used_mib));
        assert_eq!(memory.total, memory.used + memory.free + memory.reserved);
        assert_eq!(i64::from(device.power_usage().unwrap()), now.power_mw);
        assert_eq!(Some(i64::from(device.enforced_power_limit().unwrap())), accelerator.tdp_mw);
        assert_eq!(device.total_energy_consumption().unwrap() as i64, now.energy_mj);
        assert_eq!(i64::from(device.temperature(TemperatureSensor::Gpu).unwrap()), now.gpu_temp);
        assert_eq!(i64::from(device.clock_info(Clock::SM).unwrap()), now.sm_clock);
        assert_eq!(i64::from(device.clock_info(Clock::Graphics).unwrap()), now.sm_clock);
        assert_eq!(i64::from(device.clock_info(Clock::Memory).unwrap()), now.mem_clock);
        assert_eq!(Some(i64::from(device.max_clock_info(Clock::SM).unwrap())), accelerator.max_sm_clock_mhz);
        assert!(matches!(device.clock_info(Clock::Video), Err(NvmlError::NotSupported)));
        let rates = device.utilization_rates().unwrap();
        assert_eq!((Some(i64::from(rates.gpu)), Some(i64::from(rates.memory))), (now.util_pct, now.mem_copy_pct));
        assert_eq!(device.encoder_utilization().unwrap().utilization, 0);
        assert_eq!(i64::from(device.pcie_replay_counter().unwrap()), now.pcie_replays);
        assert_eq!(i64::from(device.pcie_throughput(PcieUtilCounter::Send).unwrap()), now.pcie_tx.unwrap() / 1024);
        assert!(matches!(device.fan_speed(0), Err(NvmlError::NotSupported)));
        let held = now.fb_used_mib > 0;
        let wanted = if now.pstate == 8 { PerformanceState::Eight } else { PerformanceState::Zero };
        assert_eq!(device.performance_state().unwrap(), wanted);
        assert_eq!(device.current_throttle_reasons().unwrap().bits() as i64, now.clock_reasons);
        let violation = device.violation_status(PerformancePolicy::Power).unwrap();
        assert_eq!(violation.violation_time as i64, now.power_violation_ns);
        let ecc = |kind, counter| device.total_ecc_errors(kind, counter).unwrap() as i64;
        assert_eq!(ecc(MemoryError::Corrected, EccCounter::Volatile), now.ecc_volatile.0);
        assert_eq!(ecc(MemoryError::Uncorrected, EccCounter::Aggregate), now.ecc_aggregate.1);

        let processes = device.running_compute_processes().unwrap();
        assert_eq!(processes.len(), usize::from(held));
        for process in processes {
            let pod = &plan.pods()[now.holder.unwrap()];
            let name = nvml.sys_process_name(process.pid, 200).unwrap();
            assert_eq!(name, format!("{}/{}", pod.namespace, pod.name));
            let samples = device.process_utilization_stats(0).unwrap();
            assert_eq!((samples[0].pid, Some(i64::from(samples[0].sm_util))), (process.pid, now.util_pct));
        }
        assert!(device.running_graphics_processes().unwrap().is_empty());

        let samples = device.samples(Sampling::GpuUtilization, None).unwrap();
        assert_eq!(samples.len(), 60);
        assert!(
            samples
                .iter()
                .all(|sample| matches!(sample.value, SampleValue::U32(value) if Some(i64::from(value)) == now.util_pct))
        );

        // 82: memory temperature; 91: links; 138: bytes sent over link 0; 4711: no such field.
        let fields = device.field_values_for(&[82, 91, 138, 4711].map(FieldId)).unwrap();
        let said: Vec<String> = fields.iter().map(|field| format!("{:?}", field.as_ref().unwrap().value)).collect();
        assert_eq!(said[3], "Err(InvalidArg)");
        match accelerator.nvlinks {
            Some(links) => {
                let bytes = sim::Meter::read(&mut None, &plan, DeviceRef { node, gpu }, setup.clock.origin, None).nvlink();
                let wanted = [
                    format!("U32({})", now.mem_temp.unwrap()),
                    format!("U32({links})"),
                    format!("U64({})", bytes / links / 1024),
                ];
                assert_eq!(said[..3], wanted.map(|value| format!("Ok({value})")));
            }
            None => assert!(said[..3].iter().all(|value| value == "Err(NotSupported)"), "{said:?}"),
        }

        let gpm = accelerator.arch == "Hopper";
        assert_eq!(device.gpm_support().unwrap(), gpm);
        if gpm {
            let (one, two) = (device.gpm_sample().unwrap(), device.gpm_sample().unwrap());
            let ids = [GpmMetricId::SmUtil, GpmMetricId::AnyTensorUtil, GpmMetricId::PcieTxPerSec, GpmMetricId::IntegerUtil];
            let metrics = gpm_metrics_get(&nvml, &one, &two, &ids).unwrap();
            let value = |n: usize| metrics[n].as_ref().unwrap().value;
            assert_eq!((value(0) * 1e4).round() as i64, now.sm);
            assert_eq!((value(1) * 1e4).round() as i64, now.tensor);
            assert_eq!((value(2) * 1_048_576.0) as i64, now.pcie_tx.unwrap());
            assert!(matches!(metrics[3], Err(NvmlError::NotSupported)), "the state has no integer pipe");
        } else {
            assert!(matches!(device.gpm_sample(), Err(NvmlError::NotSupported)));
        }
    }
}

#[test]
fn instances_are_devices_of_their_gpu() {
    if !is_client() {
        return World::new(&cut(), "h100-0", 33, 0.0).seen_by("wrapper::instances_are_devices_of_their_gpu");
    }
    let (setup, plan, node) = here();
    let nvml = Nvml::init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    assert_eq!((nvml.device_count().unwrap(), gpu.mig_mode().unwrap().current, gpu.mig_device_count().unwrap()), (4, 1, 7));
    assert!(matches!(gpu.utilization_rates(), Err(NvmlError::NotSupported)));
    assert!(matches!(gpu.gpm_sample(), Err(NvmlError::NotSupported)));
    let board = state::board_state(&plan, node, 0, setup.clock.origin).unwrap();
    assert_eq!(i64::from(gpu.power_usage().unwrap()), board.power_mw);
    assert_eq!(gpu.total_energy_consumption().unwrap() as i64, board.energy_mj);
    assert_eq!((gpu.memory_info().unwrap().used >> 20) as i64, board.fb_used_mib);
    assert!(matches!(gpu.mig_device_by_index(4), Err(NvmlError::NotFound)));
    assert!(matches!(gpu.mig_device_by_index(7), Err(NvmlError::InvalidArg)));
    let parts = plan.nodes()[node].boards[0].devices.clone();
    assert_eq!(parts.len(), 4);
    let mut resident = 0;
    for (index, device) in parts.enumerate() {
        let instance = plan.nodes()[node].devices[device].instance.as_ref().unwrap();
        let now = simulator::state(&plan, DeviceRef { node, gpu: device }, setup.clock.origin).unwrap();
        let part = gpu.mig_device_by_index(index as u32).unwrap();
        assert_eq!(part.uuid().unwrap(), instance.uuid);
        assert_eq!(part.name().unwrap(), format!("NVIDIA H100 80GB HBM3 MIG {}", instance.placed.profile.name));
        assert_eq!(nvml.device_by_uuid(instance.uuid.as_str()).unwrap().index().unwrap(), index as u32);
        assert_eq!((part.memory_info().unwrap().total >> 20) as i64, instance.memory_mib);
        assert!(matches!(part.power_usage(), Err(NvmlError::NotSupported)));
        let attributes = part.attributes().unwrap();
        assert_eq!(attributes.gpu_instance_slice_count, instance.placed.profile.slices);
        let processes = part.running_compute_processes().unwrap();
        resident += processes.len();
        assert!(processes.iter().all(|process| process.gpu_instance_id == Some(instance.placed.id)));
        assert_eq!(processes.iter().map(|process| process.pid).collect::<Vec<_>>().len(), usize::from(now.fb_used_mib > 0));
        let sample = || gpu.gpm_mig_sample(instance.placed.id).unwrap();
        let metrics = gpm_metrics_get(&nvml, &sample(), &sample(), &[GpmMetricId::SmUtil]).unwrap();
        assert_eq!((metrics[0].as_ref().unwrap().value * 1e4).round() as i64, now.sm);
    }
    assert!(resident > 0, "somebody works on an instance");
    assert_eq!(gpu.running_compute_processes().unwrap().len(), resident, "the GPU lists the processes of its instances");
    assert!(matches!(gpu.gpm_mig_sample(99), Err(NvmlError::NotFound)));
    let whole = nvml.device_by_index(2).unwrap();
    assert_eq!(whole.mig_mode().unwrap().current, 0);
    assert!(matches!(whole.mig_device_by_index(0), Err(NvmlError::NotFound)));
    assert!(whole.utilization_rates().is_ok());
}

/// A GPU that falls off the bus by the plan is not on the page, and lost to NVML.
#[test]
fn a_gpu_off_the_bus_is_lost() {
    let spec = small().replace("xid: { per_gpu_day: 3 }", "xid: { per_gpu_day: 300 }");
    let off = |world: &World| {
        let faults = simulator::faults(&world.plan, world.plan.window());
        let off = faults.into_iter().find(|fault| fault.kind == "off_the_bus" && fault.node == "h100-0").expect("one falls off");
        (off.device.unwrap(), off.from)
    };
    if !is_client() {
        let mut world = World::new(&spec, "h100-0", 0, 0.0);
        let (uuid, from) = off(&world);
        world.setup.clock.origin = from;
        assert!(!world.page().contains(&uuid));
        return world.seen_by("wrapper::a_gpu_off_the_bus_is_lost");
    }
    let (setup, plan, node) = here();
    let lost: Vec<bool> = {
        let boards = 0..plan.nodes()[node].boards.len();
        boards.map(|board| state::board_state(&plan, node, board, setup.clock.origin).is_none()).collect()
    };
    assert!(lost.contains(&true) && lost.contains(&false));
    let nvml = Nvml::init().unwrap();
    for (index, lost) in (0..).zip(lost) {
        match nvml.device_by_index(index) {
            Ok(device) => assert!(!lost && device.power_usage().is_ok()),
            Err(NvmlError::GpuLost) => assert!(lost),
            Err(err) => panic!("{err}"),
        }
    }
    assert_eq!(nvml.device_count().unwrap(), 4);
}

#[test]
fn events_are_the_xids_of_the_plan() {
    if !is_client() {
        // XIDs come a few minutes of fleet time after the start, at 600 times the wall clock's speed.
        let spec = small().replace("xid: { per_gpu_day: 3 }", "xid: { per_gpu_day: 60 }");
        World::new(&spec, "h100-0", 10, 600.0).seen_by("wrapper::events_are_the_xids_of_the_plan");
        return;
    }
    let (setup, plan, node) = here();
    let nvml = Nvml::init().unwrap();
    let mut set = nvml.create_event_set().unwrap();
    for gpu in 0..nvml.device_count().unwrap() {
        let device = nvml.device_by_index(gpu).unwrap();
        assert_eq!(device.supported_event_types().unwrap(), EventTypes::CRITICAL_XID_ERROR);
        set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|both| both.error).unwrap();
    }
    let began = setup.clock.at(wall_ms());
    let mut wanted: Vec<_> = Vec::new();
    for gpu in 0..plan.nodes()[node].devices.len() {
        let place = sim::Place { node, board: gpu, device: None };
        let xids = sim::xids(&plan, place, plan.window().to());
        wanted.extend(xids.into_iter().filter(|(at, _)| *at > began).map(|(at, code)| (at, gpu as u32, code as u64)));
    }
    wanted.sort();
    assert!(wanted.len() > 10, "the spec has XIDs");
    let mut late_ms = Vec::new();
    for (at, gpu, code) in wanted.into_iter().take(6) {
        let EventData { device, event_data, .. } = set.wait(60_000).unwrap();
        late_ms.push((setup.clock.at(wall_ms()).ms() - at.ms()) as f64 / setup.clock.speed);
        let found = (device.index().unwrap(), event_data.map(|xid| xid_code(&xid)));
        assert_eq!(found, (gpu, Some(code)));
    }
    assert!(late_ms.iter().all(|late| *late > -2.0), "none before its time: {late_ms:?}");
    let begun = std::time::Instant::now();
    assert!(matches!(nvml.create_event_set().unwrap().wait(30), Err(NvmlError::Timeout)));
    assert!(begun.elapsed().as_millis() >= 30);
}

fn xid_code(xid: &XidError) -> u64 {
    match xid {
        XidError::Value(code) => *code,
        XidError::Unknown => 999,
    }
}

fn wall_ms() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64
}

#[test]
fn a_swapped_gpu_is_another_device_and_the_old_one_is_lost() {
    let spec = small().replacen(
        "  windows:\n",
        "  windows:\n    - { nodes: h100-0, kind: gpu_swap, gpu: 1, from: 30m, lasts: 10m }\n",
        1,
    );
    if !is_client() {
        // 420 s of fleet time before it is taken out, 480 before the other is there, at 160 a second.
        let world = World::new(&spec, "h100-0", 25, 160.0);
        world.seen_by("wrapper::a_swapped_gpu_is_another_device_and_the_old_one_is_lost");
        return;
    }
    let (setup, plan, node) = here();
    let boards: Vec<_> = plan.nodes()[node].boards.iter().filter(|board| board.index == 1).collect();
    let (old, new) = (boards[0], boards[1]);
    let wall_ms = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
    let wait = |at: schemas::Timestamp| {
        let left = setup.clock.wall_ms_until(wall_ms(), at).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(left + 20));
    };
    let nvml = Nvml::init().unwrap();
    let held = nvml.device_by_uuid(old.uuid.as_str()).unwrap();
    let (serial, bus) = (held.serial().unwrap(), held.pci_info().unwrap().bus_id);
    assert_eq!((held.index().unwrap(), held.minor_number().unwrap()), (1, 1));
    // The slot is empty: the device is lost, and the others are where they were.
    wait(old.until().unwrap().plus_ms(-470_000));
    assert!(matches!(held.power_usage(), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_index(1), Err(NvmlError::GpuLost)));
    assert_eq!((nvml.device_count().unwrap(), nvml.device_by_index(2).unwrap().index().unwrap()), (4, 2));
    wait(new.since().unwrap());
    assert!(matches!(held.power_usage(), Err(NvmlError::GpuLost)), "its handle stands for the board that is gone");
    assert!(matches!(nvml.device_by_uuid(old.uuid.as_str()), Err(NvmlError::NotFound)));
    let now = nvml.device_by_index(1).unwrap();
    assert_eq!((now.uuid().unwrap(), now.pci_info().unwrap().bus_id), (new.uuid.clone(), bus));
    assert_eq!((now.minor_number().unwrap(), nvml.device_by_uuid(new.uuid.as_str()).unwrap().index().unwrap()), (1, 1));
    assert_ne!(now.serial().unwrap(), serial);
    // At most 700 W since then: millijoules a millisecond.
    let energy_mj = now.total_energy_consumption().unwrap() as i64;
    let since_ms = setup.clock.at(wall_ms()).ms() - new.since().unwrap().ms();
    assert!(energy_mj <= 700 * since_ms, "{energy_mj} mJ in {since_ms} ms");
    assert_eq!(nvml.device_count().unwrap(), 4);
}
