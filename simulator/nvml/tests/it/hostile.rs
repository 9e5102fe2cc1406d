//! Callers that do not keep to the header: the answer is a code, never a crash.

use std::{mem, ptr};

use nvml_wrapper_sys::bindings::{self as sys, NvmlLib, nvmlDevice_t, nvmlEventSet_t, nvmlGpmSample_t};

use crate::world::{World, cut, is_client, small};

const OK: u32 = 0;
const UNINITIALIZED: u32 = 1;
const INVALID: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const NOT_FOUND: u32 = 6;
const TOO_SMALL: u32 = 7;
const WRONG_VERSION: u32 = 25;

/// The library, loaded by its soname.
pub fn open() -> NvmlLib {
    // SAFETY: the library's initialisers do nothing.
    unsafe { NvmlLib::new("libnvidia-ml.so.1") }.unwrap()
}

/// A struct of zeros.
fn zeros<T: Copy>() -> T {
    // SAFETY: used for the bindings' structs of numbers and pointers alone.
    unsafe { mem::zeroed() }
}

/// Calls a function of the library by name.
macro_rules! call {
    // SAFETY: the arguments are what the tests want to be answered: null, or valid for the function.
    ($lib:ident.$name:ident($($arg:expr),*)) => { unsafe { ($lib.$name.as_ref().unwrap())($($arg),*) } };
}

fn gpu(lib: &NvmlLib, index: u32) -> nvmlDevice_t {
    let mut device: nvmlDevice_t = ptr::null_mut();
    assert_eq!(call!(lib.nvmlDeviceGetHandleByIndex_v2(index, &mut device)), OK);
    device
}

fn in_child(name: &str, body: impl FnOnce(NvmlLib)) {
    if is_client() { body(open()) } else { World::new(&small(), "h100-0", 33, 0.0).seen_by(name) }
}

#[test]
fn initialisation_is_counted() {
    in_child("hostile::initialisation_is_counted", |lib| {
        let mut count = 0;
        assert_eq!(call!(lib.nvmlDeviceGetCount_v2(&mut count)), UNINITIALIZED);
        assert_eq!(call!(lib.nvmlShutdown()), UNINITIALIZED);
        assert_eq!(call!(lib.nvmlDeviceSetMigMode(ptr::null_mut(), 0, &mut count)), UNINITIALIZED);
        assert_eq!((call!(lib.nvmlInit_v2()), call!(lib.nvmlInitWithFlags(3))), (OK, OK));
        assert_eq!(call!(lib.nvmlShutdown()), OK);
        assert_eq!(call!(lib.nvmlDeviceGetCount_v2(&mut count)), OK);
        assert_eq!(count, 4);
        assert_eq!(call!(lib.nvmlShutdown()), OK);
        assert_eq!(call!(lib.nvmlDeviceGetCount_v2(&mut count)), UNINITIALIZED);
        assert_eq!(call!(lib.nvmlInit_v2()), OK);
        assert_eq!(call!(lib.nvmlDeviceGetCount_v2(&mut count)), OK, "again from the beginning");
    });
}

#[test]
fn null_and_foreign_pointers_are_invalid_arguments() {
    in_child("hostile::null_and_foreign_pointers_are_invalid_arguments", |lib| {
        assert_eq!(call!(lib.nvmlInit_v2()), OK);
        let (device, null) = (gpu(&lib, 0), ptr::null_mut());
        let mut here = 0;
        for foreign in
            [null, ptr::dangling_mut(), (&raw mut here).cast(), device.wrapping_byte_add(1 << 16), !0_usize as nvmlDevice_t]
        {
            let mut number = 0;
            assert_eq!(call!(lib.nvmlDeviceGetPowerUsage(foreign, &mut number)), INVALID, "{foreign:?}");
            let mut set_data: sys::nvmlEventData_t = zeros();
            assert_eq!(call!(lib.nvmlEventSetWait_v2(foreign.cast(), &mut set_data, 0)), INVALID);
            assert_eq!(call!(lib.nvmlEventSetFree(foreign.cast())), INVALID);
            assert_eq!(call!(lib.nvmlGpmSampleFree(foreign.cast())), INVALID);
            assert_eq!(call!(lib.nvmlGpmSampleGet(device, foreign.cast())), INVALID);
            assert_eq!(call!(lib.nvmlDeviceRegisterEvents(device, 8, foreign.cast())), INVALID);
        }
        assert_eq!(call!(lib.nvmlDeviceGetCount_v2(null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetHandleByIndex_v2(0, null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetHandleByUUID(ptr::null(), &mut device.clone())), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetHandleByUUID(c"GPU-x".as_ptr(), null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetName(device, null.cast(), 96)), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetMemoryInfo(device, null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetMemoryInfo_v2(device, null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetPciInfo_v3(device, null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetUtilizationRates(device, null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetComputeRunningProcesses_v3(device, null.cast(), null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetFieldValues(device, 1, null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetEncoderUtilization(device, null.cast(), null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetCudaComputeCapability(device, null.cast(), null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetRemappedRows(device, null.cast(), null.cast(), null.cast(), null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlEventSetCreate(null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlGpmSampleAlloc(null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlGpmMetricsGet(null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlGpmQueryDeviceSupport(device, null.cast())), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetMigMode(device, null.cast(), null.cast())), INVALID);
        // What no board can do does not even look at its arguments.
        assert_eq!(call!(lib.nvmlDeviceGetAccountingPids(null, null.cast(), null.cast())), NOT_SUPPORTED);
        let text = call!(lib.nvmlErrorString(15));
        // SAFETY: the text lives as long as the library.
        let said = unsafe { std::ffi::CStr::from_ptr(text) };
        assert_eq!(said, c"GPU is lost");
    });
}

/// Every function of the header with nothing but zeros, and with a GPU and zeros: null pointers, no room, index 0.
#[test]
fn every_function_survives_zeros() {
    in_child("hostile::every_function_survives_zeros", |lib| {
        type Any = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize) -> u32;
        let call = |name: &str, first: usize| {
            // SAFETY: every function takes at most eight arguments, all of them numbers or pointers, and all may be zero.
            unsafe {
                let function = *lib.__library.get::<Any>(name.as_bytes()).unwrap();
                function(first, 0, 0, 0, 0, 0, 0, 0)
            }
        };
        let own = ["nvmlInit", "nvmlShutdown", "nvmlErrorString"];
        let names = || simulator::nvml::FUNCTIONS.lines().filter(|name| !own.iter().any(|own| name.starts_with(own)));
        assert!(names().all(|name| call(name, 0) == UNINITIALIZED));
        assert_eq!(call!(lib.nvmlInit_v2()), OK);
        let of_a_device = |name: &&str| {
            let finds = ["nvmlDeviceGetCount", "nvmlDeviceGetHandleBy"];
            name.starts_with("nvmlDevice") && !finds.iter().any(|finds| name.starts_with(finds))
        };
        let zeros = names().map(|name| (name, 0));
        for (name, first) in zeros.chain(names().filter(of_a_device).map(|name| (name, gpu(&lib, 0) as usize))) {
            let answer = call(name, first);
            assert!([INVALID, NOT_SUPPORTED, NOT_FOUND, WRONG_VERSION].contains(&answer), "{name} of {first:#x}: {answer}");
        }
        assert!(names().count() > 400);
        let mut mw = 0;
        assert_eq!(call!(lib.nvmlDeviceGetPowerUsage(gpu(&lib, 0), &mut mw)), OK, "and goes on");
    });
}

#[test]
fn versions_sizes_and_indices_are_checked() {
    in_child("hostile::versions_sizes_and_indices_are_checked", |lib| {
        assert_eq!(call!(lib.nvmlInit_v2()), OK);
        let device = gpu(&lib, 0);
        let mut none: nvmlDevice_t = ptr::null_mut();
        assert_eq!(call!(lib.nvmlDeviceGetHandleByIndex_v2(4, &mut none)), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetHandleByIndex_v2(u32::MAX, &mut none)), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetHandleByUUID(c"GPU-nobody".as_ptr(), &mut none)), NOT_FOUND);
        assert_eq!(call!(lib.nvmlDeviceGetHandleByPciBusId_v2(c"0000:FF:00.0".as_ptr(), &mut none)), NOT_FOUND);
        assert_eq!(call!(lib.nvmlDeviceGetHandleByPciBusId_v2(c"nowhere".as_ptr(), &mut none)), INVALID);
        let endless = [b'x' as std::ffi::c_char; 300];
        assert_eq!(call!(lib.nvmlDeviceGetHandleByUUID(endless.as_ptr(), &mut none)), INVALID);

        let mut memory: sys::nvmlMemory_v2_t = zeros();
        for (version, answer) in [(0, WRONG_VERSION), (0x0100_0028, WRONG_VERSION), (0x0200_0028, OK), (2, WRONG_VERSION)] {
            memory.version = version;
            assert_eq!(call!(lib.nvmlDeviceGetMemoryInfo_v2(device, &mut memory)), answer, "{version:#x}");
        }
        let mut temperature: sys::nvmlTemperature_t = zeros();
        assert_eq!(call!(lib.nvmlDeviceGetTemperatureV(device, &mut temperature)), WRONG_VERSION);
        let mut support: sys::nvmlGpmSupport_t = zeros();
        assert_eq!(call!(lib.nvmlGpmQueryDeviceSupport(device, &mut support)), WRONG_VERSION);
        support.version = 1;
        assert_eq!((call!(lib.nvmlGpmQueryDeviceSupport(device, &mut support)), support.isSupportedDevice), (OK, 1));

        let mut name = [0x55; 64];
        for length in [0, 1, 21] {
            assert_eq!(call!(lib.nvmlDeviceGetName(device, name.as_mut_ptr(), length)), TOO_SMALL);
        }
        assert!(name.iter().all(|byte| *byte == 0x55), "nothing is written where it does not fit");
        assert_eq!(call!(lib.nvmlDeviceGetName(device, name.as_mut_ptr(), 22)), OK);
        assert_eq!((name[21], name[22]), (0, 0x55));

        let (mut serial, mut same) = ([0; 30], ptr::null_mut());
        assert_eq!(call!(lib.nvmlDeviceGetSerial(device, serial.as_mut_ptr(), 30)), OK);
        assert_eq!((call!(lib.nvmlDeviceGetHandleBySerial(serial.as_ptr(), &mut same)), same), (OK, device));

        let busy = (0..4).map(|n| gpu(&lib, n)).find(|device| {
            let mut count = 0;
            call!(lib.nvmlDeviceGetComputeRunningProcesses_v3(*device, &mut count, ptr::null_mut())) == TOO_SMALL && count == 1
        });
        let busy = busy.expect("somebody works after 33 minutes");
        let (mut count, mut process) = (1, zeros::<sys::nvmlProcessInfo_t>());
        assert_eq!(call!(lib.nvmlDeviceGetComputeRunningProcesses_v3(busy, &mut count, ptr::null_mut())), INVALID);
        count = 1;
        assert_eq!(call!(lib.nvmlDeviceGetComputeRunningProcesses_v3(busy, &mut count, &mut process)), OK);
        assert!(process.pid > 1 << 22 && process.usedGpuMemory > 0 && process.gpuInstanceId == u32::MAX);

        let mut number = 0;
        assert_eq!(call!(lib.nvmlDeviceGetTemperature(device, 7, &mut number)), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetClockInfo(device, 4, &mut number)), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetPcieThroughput(device, 2, &mut number)), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetTemperatureThreshold(device, 99, &mut number)), INVALID);
        let mut long = 0;
        assert_eq!(call!(lib.nvmlDeviceGetTotalEccErrors(device, 2, 0, &mut long)), INVALID);
        assert_eq!(call!(lib.nvmlDeviceGetNvLinkState(device, 18, &mut number)), INVALID);
        assert_eq!((call!(lib.nvmlDeviceGetNvLinkState(device, 17, &mut number)), number), (OK, 1));
        let mut field: sys::nvmlFieldValue_t = zeros();
        for count in [0, -1, i32::MAX] {
            assert_eq!(call!(lib.nvmlDeviceGetFieldValues(device, count, &mut field)), INVALID);
        }
        for (id, scope, answer) in
            [(0, 0, INVALID), (274, 0, INVALID), (251, 0, NOT_SUPPORTED), (138, 99, INVALID), (138, u32::MAX, OK)]
        {
            (field.fieldId, field.scopeId) = (id, scope);
            assert_eq!(call!(lib.nvmlDeviceGetFieldValues(device, 1, &mut field)), OK);
            assert_eq!(field.nvmlReturn, answer, "field {id} of {scope}");
        }
    });
}

#[test]
fn instances_have_handles_of_three_kinds() {
    if !is_client() {
        return World::new(&cut(), "h100-0", 33, 0.0).seen_by("hostile::instances_have_handles_of_three_kinds");
    }
    let lib = open();
    assert_eq!(call!(lib.nvmlInit_v2()), OK);
    let device = gpu(&lib, 0);
    let (mut found, mut count) = ([ptr::null_mut(); 7], 0);
    // 3g.40gb is profile 9, 1g.10gb is 19, and there is no 4g.40gb, 5.
    for (profile, number) in [(5, 0), (9, 1), (14, 1), (19, 2)] {
        assert_eq!(call!(lib.nvmlDeviceGetGpuInstances(device, profile, found.as_mut_ptr(), &mut count)), OK);
        assert_eq!(count, number, "profile {profile}");
    }
    assert_eq!(call!(lib.nvmlDeviceGetGpuInstances(device, 9, found.as_mut_ptr(), &mut count)), OK);
    let mut info: sys::nvmlGpuInstanceInfo_t = zeros();
    assert_eq!(call!(lib.nvmlGpuInstanceGetInfo(found[0], &mut info)), OK);
    assert_eq!((info.device, info.profileId, info.placement.size), (device, 9, 4));
    let mut same = ptr::null_mut();
    assert_eq!((call!(lib.nvmlDeviceGetGpuInstanceById(device, info.id, &mut same)), same), (OK, found[0]));
    assert_eq!(call!(lib.nvmlDeviceGetGpuInstanceById(device, 99, &mut same)), NOT_FOUND);
    let mut compute = ptr::null_mut();
    assert_eq!(call!(lib.nvmlGpuInstanceGetComputeInstanceById(found[0], 0, &mut compute)), OK);
    assert_eq!(call!(lib.nvmlGpuInstanceGetComputeInstanceById(found[0], 1, &mut compute.clone())), NOT_FOUND);
    let mut detail: sys::nvmlComputeInstanceInfo_t = zeros();
    assert_eq!(call!(lib.nvmlComputeInstanceGetInfo_v2(compute, &mut detail)), OK);
    assert_eq!((detail.device, detail.gpuInstance, detail.id, detail.placement.size), (device, found[0], 0, 3));
    // A handle of one kind is none of another.
    let mut number = 0;
    assert_eq!(call!(lib.nvmlDeviceGetIndex(found[0].cast(), &mut number)), INVALID);
    assert_eq!(call!(lib.nvmlGpuInstanceGetInfo(device.cast(), &mut info)), INVALID);
    assert_eq!(call!(lib.nvmlComputeInstanceGetInfo_v2(found[0].cast(), &mut detail)), INVALID);
    // Of a GPU that is not cut, and of an instance.
    let whole = gpu(&lib, 2);
    assert_eq!(call!(lib.nvmlDeviceGetGpuInstances(whole, 9, found.as_mut_ptr(), &mut count)), OK);
    assert_eq!(count, 0);
    assert_eq!(call!(lib.nvmlDeviceGetGpuInstanceId(whole, &mut number)), NOT_SUPPORTED);
    let mut part = ptr::null_mut();
    assert_eq!(call!(lib.nvmlDeviceGetMigDeviceHandleByIndex(device, 0, &mut part)), OK);
    assert_eq!((call!(lib.nvmlDeviceIsMigDeviceHandle(part, &mut number)), number), (OK, 1));
    assert_eq!((call!(lib.nvmlDeviceGetGpuInstanceId(part, &mut number)), number), (OK, info.id));
    let mut parent = ptr::null_mut();
    assert_eq!((call!(lib.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part, &mut parent)), parent), (OK, device));
    assert_eq!(call!(lib.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device, &mut parent)), INVALID);
    assert_eq!(call!(lib.nvmlDeviceGetMigMode(part, &mut number, &mut count)), NOT_SUPPORTED);
}

#[test]
fn samples_and_sets_are_freed_once_and_are_not_endless() {
    in_child("hostile::samples_and_sets_are_freed_once_and_are_not_endless", |lib| {
        assert_eq!(call!(lib.nvmlInit_v2()), OK);
        let device = gpu(&lib, 0);
        let mut samples: Vec<nvmlGpmSample_t> = Vec::new();
        let answer = loop {
            let mut sample: nvmlGpmSample_t = ptr::null_mut();
            match call!(lib.nvmlGpmSampleAlloc(&mut sample)) {
                OK => samples.push(sample),
                answer => break answer,
            }
        };
        assert_eq!((answer, samples.len()), (23, 4096), "insufficient resources");
        let mut request: Box<sys::nvmlGpmMetricsGet_t> = Box::new(zeros());
        (request.sample1, request.sample2, request.numMetrics) = (samples[0], samples[1], 1);
        assert_eq!(call!(lib.nvmlGpmMetricsGet(&mut *request)), WRONG_VERSION);
        request.version = 1;
        assert_eq!(call!(lib.nvmlGpmMetricsGet(&mut *request)), INVALID, "the samples are empty");
        assert_eq!(call!(lib.nvmlGpmSampleGet(device, samples[0])), OK);
        assert_eq!(call!(lib.nvmlGpmSampleGet(gpu(&lib, 1), samples[1])), OK);
        assert_eq!(call!(lib.nvmlGpmMetricsGet(&mut *request)), INVALID, "samples of two devices");
        assert_eq!(call!(lib.nvmlGpmSampleGet(device, samples[1])), OK);
        request.numMetrics = 334;
        assert_eq!(call!(lib.nvmlGpmMetricsGet(&mut *request)), INVALID);
        request.numMetrics = 3;
        for (entry, id) in request.metrics.iter_mut().zip([2, 999, 4]) {
            entry.metricId = id;
        }
        assert_eq!(call!(lib.nvmlGpmMetricsGet(&mut *request)), OK);
        let answers: Vec<u32> = request.metrics[..3].iter().map(|entry| entry.nvmlReturn).collect();
        assert_eq!(answers, [OK, INVALID, NOT_SUPPORTED]);
        for sample in &samples {
            assert_eq!((call!(lib.nvmlGpmSampleFree(*sample)), call!(lib.nvmlGpmSampleFree(*sample))), (OK, INVALID));
        }
        let mut set: nvmlEventSet_t = ptr::null_mut();
        assert_eq!(call!(lib.nvmlEventSetCreate(&mut set)), OK);
        assert_eq!(call!(lib.nvmlDeviceRegisterEvents(device, 1 << 40, set)), INVALID);
        assert_eq!(call!(lib.nvmlDeviceRegisterEvents(device, 1, set)), NOT_SUPPORTED);
        assert_eq!((call!(lib.nvmlEventSetFree(set)), call!(lib.nvmlEventSetFree(set))), (OK, INVALID));
    });
}

#[test]
fn threads_call_at_once_and_a_waiting_one_is_woken() {
    in_child("hostile::threads_call_at_once_and_a_waiting_one_is_woken", |lib| {
        let lib = &lib;
        std::thread::scope(|scope| {
            for n in 0..8 {
                scope.spawn(move || {
                    for _ in 0..50 {
                        assert_eq!(call!(lib.nvmlInit_v2()), OK);
                        let (device, mut mw) = (gpu(lib, n % 4), 0);
                        assert_eq!(call!(lib.nvmlDeviceGetPowerUsage(device, &mut mw)), OK);
                        assert!(mw > 10_000);
                        assert_eq!(call!(lib.nvmlShutdown()), OK);
                    }
                });
            }
        });
        assert_eq!(call!(lib.nvmlInit_v2()), OK);
        let mut set: nvmlEventSet_t = ptr::null_mut();
        assert_eq!(call!(lib.nvmlEventSetCreate(&mut set)), OK);
        let address = set as usize;
        let begun = std::time::Instant::now();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(move || {
                let mut data: sys::nvmlEventData_t = zeros();
                call!(lib.nvmlEventSetWait_v2(address as nvmlEventSet_t, &mut data, u32::MAX))
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(call!(lib.nvmlEventSetFree(set)), OK);
            assert_eq!(waiting.join().unwrap(), INVALID);
        });
        assert!(begun.elapsed() < std::time::Duration::from_secs(5));
    });
}
