//! Structs of the C interface, as the header lays them out; a test compares them with the bindings of another project.

use std::ffi::{c_char, c_int, c_uint};

/// Version word of a struct: its size and the number of its version.
pub const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

/// A handle: of a GPU, an instance, an event set or a sample. A number in the place of a pointer.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle(pub usize);

/// No instance: what MIG ids are where there is no MIG.
pub const NO_INSTANCE: c_uint = c_uint::MAX;

macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $type),* }
    )*};
}

structs! {
    /// `nvmlMemory_t`, bytes.
    Memory { total: u64, free: u64, used: u64 }
    /// `nvmlMemory_v2_t`, bytes.
    MemoryV2 { version: c_uint, total: u64, reserved: u64, free: u64, used: u64 }
    /// `nvmlBAR1Memory_t`, bytes.
    Bar1 { total: u64, free: u64, used: u64 }
    /// `nvmlUtilization_t`, percent.
    Utilization { gpu: c_uint, memory: c_uint }
    /// `nvmlPciInfo_t` as of `nvmlDeviceGetPciInfo_v3`.
    PciInfo { bus_id_legacy: [c_char; 16], domain: c_uint, bus: c_uint, device: c_uint, pci_device_id: c_uint, pci_subsystem_id: c_uint, bus_id: [c_char; 32] }
    /// What callers of the first two versions have room for.
    PciInfoShort { bus_id: [c_char; 16], domain: c_uint, bus: c_uint, device: c_uint, pci_device_id: c_uint }
    /// `nvmlPciInfoExt_v1_t`.
    PciInfoExt { version: c_uint, domain: c_uint, bus: c_uint, device: c_uint, pci_device_id: c_uint, pci_subsystem_id: c_uint, base_class: c_uint, sub_class: c_uint, bus_id: [c_char; 32] }
    /// `nvmlProcessInfo_v1_t`.
    ProcessInfoV1 { pid: c_uint, used_gpu_memory: u64 }
    /// `nvmlProcessInfo_v2_t`, and what `_v3` takes.
    ProcessInfo { pid: c_uint, used_gpu_memory: u64, gpu_instance_id: c_uint, compute_instance_id: c_uint }
    /// `nvmlProcessDetail_v1_t`.
    ProcessDetail { pid: c_uint, used_gpu_memory: u64, gpu_instance_id: c_uint, compute_instance_id: c_uint, used_protected_memory: u64 }
    /// `nvmlProcessUtilizationSample_t`; time in microseconds.
    ProcessSample { pid: c_uint, at_us: u64, sm_util: c_uint, mem_util: c_uint, enc_util: c_uint, dec_util: c_uint }
    /// `nvmlProcessUtilizationInfo_v1_t`.
    ProcessUtilization { at_us: u64, pid: c_uint, sm_util: c_uint, mem_util: c_uint, enc_util: c_uint, dec_util: c_uint, jpg_util: c_uint, ofa_util: c_uint }
    /// `nvmlSample_t`.
    Sample { at_us: u64, value: Value }
    /// `nvmlFieldValue_t`.
    FieldValue { field_id: c_uint, scope_id: c_uint, at_us: i64, latency_us: i64, value_type: c_uint, code: c_uint, value: Value }
    /// `nvmlEventData_t`.
    EventData { device: Handle, event_type: u64, event_data: u64, gpu_instance_id: c_uint, compute_instance_id: c_uint }
    /// What callers of the first `nvmlEventSetWait` have room for.
    EventDataShort { device: Handle, event_type: u64, event_data: u64 }
    /// `nvmlViolationTime_t`; microseconds since 1970 and nanoseconds.
    ViolationTime { reference_us: u64, violation_ns: u64 }
    /// `nvmlTemperature_v1_t`.
    Temperature { version: c_uint, sensor: c_uint, temperature: c_int }
    /// `nvmlUUID_v1_t`; the text form of its value, which is the larger.
    Uuid { version: c_uint, kind: c_uint, text: [c_char; 41] }
    /// `nvmlEccErrorCounts_t`.
    EccErrorCounts { l1_cache: u64, l2_cache: u64, device_memory: u64, register_file: u64 }
    /// `nvmlDeviceAttributes_t`.
    Attributes { multiprocessors: c_uint, copy_engines: c_uint, decoders: c_uint, encoders: c_uint, jpeg: c_uint, ofa: c_uint, gpu_slices: c_uint, compute_slices: c_uint, memory_mib: u64 }
    /// `nvmlGpuInstancePlacement_t`, and the compute instances' alike.
    Placement { start: c_uint, size: c_uint }
    /// `nvmlGpuInstanceInfo_t`.
    GpuInstanceInfo { device: Handle, id: c_uint, profile_id: c_uint, placement: Placement }
    /// `nvmlComputeInstanceInfo_t`.
    ComputeInstanceInfo { device: Handle, gpu_instance: Handle, id: c_uint, profile_id: c_uint, placement: Placement }
    /// `nvmlGpmSupport_t`.
    GpmSupport { version: c_uint, supported: c_uint }
    /// One entry of `nvmlGpmMetricsGet_t`.
    GpmMetric { metric_id: c_uint, code: c_uint, value: f64, short_name: Name, long_name: Name, unit: Name }
    /// The beginning of `nvmlGpmMetricsGet_t`; entries follow, as many as are asked for.
    GpmMetricsHead { version: c_uint, count: c_uint, sample1: Handle, sample2: Handle }
}

/// `nvmlProcessDetailList_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProcessDetailList {
    pub version: c_uint,
    /// 0: compute, 1: graphics, 2: MPS.
    pub mode: c_uint,
    pub count: c_uint,
    pub processes: crate::boundary::Out<ProcessDetail>,
}

/// `nvmlProcessesUtilizationInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProcessesUtilization {
    pub version: c_uint,
    pub count: c_uint,
    pub last_seen_us: u64,
    pub processes: crate::boundary::Out<ProcessUtilization>,
}

/// A name that a caller may read for as long as the library is loaded, or none.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Name(*const c_char);

impl Name {
    /// No name.
    pub const NONE: Self = Self(std::ptr::null());

    /// This name.
    pub const fn of(text: &'static std::ffi::CStr) -> Self {
        Self(text.as_ptr())
    }
}

/// `nvmlValue_t`: a union of eight bytes, in which each type begins with the first.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Value([u8; 8]);

impl Value {
    /// A 64-bit whole number.
    pub const fn long(value: u64) -> Self {
        Self(value.to_ne_bytes())
    }

    /// A 32-bit whole number with a sign.
    pub const fn signed(value: i32) -> Self {
        Self::unsigned(value as u32)
    }

    /// A 32-bit whole number.
    pub const fn unsigned(value: u32) -> Self {
        let [a, b, c, d] = value.to_ne_bytes();
        Self([a, b, c, d, 0, 0, 0, 0])
    }
}

/// `nvmlValueType_t`.
pub const TYPE_UNSIGNED: c_uint = 1;
/// The same with a sign.
pub const TYPE_SIGNED: c_uint = 5;
/// Without sign, of 64 bits.
pub const TYPE_LONG_LONG: c_uint = 3;

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use nvml_wrapper_sys::bindings as theirs;

    use super::*;
    use crate::boundary::Out;

    /// Size, alignment and the offset of the last field are those of the other bindings.
    macro_rules! alike {
        ($($ours:ty, $last:ident => $theirs:ident, $their_last:ident;)*) => {$(
            assert_eq!(size_of::<$ours>(), size_of::<theirs::$theirs>(), stringify!($theirs));
            assert_eq!(align_of::<$ours>(), align_of::<theirs::$theirs>(), stringify!($theirs));
            assert_eq!(offset_of!($ours, $last), offset_of!(theirs::$theirs, $their_last), stringify!($theirs));
        )*};
    }

    #[test]
    fn structs_are_laid_out_as_the_header_has_them() {
        alike! {
            Memory, used => nvmlMemory_t, used;
            MemoryV2, used => nvmlMemory_v2_t, used;
            Bar1, used => nvmlBAR1Memory_t, bar1Used;
            Utilization, memory => nvmlUtilization_t, memory;
            PciInfo, bus_id => nvmlPciInfo_t, busId;
            PciInfoExt, bus_id => nvmlPciInfoExt_v1_t, busId;
            ProcessInfoV1, used_gpu_memory => nvmlProcessInfo_v1_t, usedGpuMemory;
            ProcessInfo, compute_instance_id => nvmlProcessInfo_t, computeInstanceId;
            ProcessDetail, used_protected_memory => nvmlProcessDetail_v1_t, usedGpuCcProtectedMemory;
            ProcessDetailList, processes => nvmlProcessDetailList_v1_t, procArray;
            ProcessSample, dec_util => nvmlProcessUtilizationSample_t, decUtil;
            ProcessUtilization, ofa_util => nvmlProcessUtilizationInfo_v1_t, ofaUtil;
            ProcessesUtilization, processes => nvmlProcessesUtilizationInfo_v1_t, procUtilArray;
            Sample, value => nvmlSample_t, sampleValue;
            FieldValue, value => nvmlFieldValue_t, value;
            EventData, compute_instance_id => nvmlEventData_t, computeInstanceId;
            ViolationTime, violation_ns => nvmlViolationTime_t, violationTime;
            Temperature, temperature => nvmlTemperature_v1_t, temperature;
            Uuid, text => nvmlUUID_v1_t, value;
            EccErrorCounts, register_file => nvmlEccErrorCounts_t, registerFile;
            Attributes, memory_mib => nvmlDeviceAttributes_t, memorySizeMB;
            Placement, size => nvmlGpuInstancePlacement_t, size;
            Placement, size => nvmlComputeInstancePlacement_t, size;
            GpuInstanceInfo, placement => nvmlGpuInstanceInfo_t, placement;
            ComputeInstanceInfo, placement => nvmlComputeInstanceInfo_t, placement;
            GpmSupport, supported => nvmlGpmSupport_t, isSupportedDevice;
            GpmMetric, short_name => nvmlGpmMetric_t, metricInfo;
        }
        assert_eq!(size_of::<GpmMetricsHead>(), offset_of!(theirs::nvmlGpmMetricsGet_t, metrics));
        assert_eq!(size_of::<Out<u8>>(), size_of::<*mut u8>());
        assert_eq!(offset_of!(PciInfoShort, pci_device_id), offset_of!(PciInfo, pci_device_id));
        assert_eq!(offset_of!(EventDataShort, event_data), offset_of!(EventData, event_data));
        // The version words that another client writes by hand.
        assert_eq!(version::<MemoryV2>(2), 0x0200_0028);
        assert_eq!(version::<Temperature>(1), 0x0100_000c);
        assert_eq!(version::<ProcessDetailList>(1), 0x0100_0018);
        assert_eq!(version::<PciInfoExt>(1), 0x0100_0040);
        assert_eq!(version::<Uuid>(1), 0x0100_0034);
    }
}
