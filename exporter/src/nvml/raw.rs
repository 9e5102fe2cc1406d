//! Calls that nvml-wrapper does not wrap, or wraps too narrowly: the only unsafe code of this crate.
#![allow(unsafe_code)]

use nvml_wrapper::{
    Device, EventSet, Nvml,
    error::{nvml_sym, nvml_try},
};
use nvml_wrapper_sys::bindings as sys;

use super::fault::Fault;

/// A field by NVML's id, for the link or the part of the board that the scope means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldAt {
    /// NVML's field id.
    pub id: u32,
    /// 0: the device, or link 0; [`ALL_LINKS`].
    pub scope: u32,
}

/// The scope that means all links.
pub const ALL_LINKS: u32 = u32::MAX;

/// Values of fields, in the order of `fields`, each with its own fault. nvml-wrapper sets no scope.
pub fn field_values(device: &Device, fields: &[FieldAt]) -> Result<Vec<Result<i64, Fault>>, Fault> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref())?;
    // SAFETY: a struct of numbers and a union of numbers, for which zeros are valid.
    let empty: sys::nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    let asked = fields.iter().map(|field| sys::nvmlFieldValue_t { fieldId: field.id, scopeId: field.scope, ..empty });
    let mut values: Vec<sys::nvmlFieldValue_t> = asked.collect();
    let count = i32::try_from(values.len()).map_err(|_| Fault::BAD_VALUE)?;
    // SAFETY: the handle is of this library, and the array has `count` entries.
    nvml_try(unsafe { call(device.handle(), count, values.as_mut_ptr()) })?;
    Ok(values.iter().map(whole).collect())
}

/// The whole number that an entry holds; fields that we ask for have no fractions.
fn whole(entry: &sys::nvmlFieldValue_t) -> Result<i64, Fault> {
    nvml_try(entry.nvmlReturn).map_err(Fault::of_entry)?;
    // SAFETY: eight bytes of a union of numbers, all of them set: zeros before the call.
    let bits = unsafe { entry.value.ullVal };
    let low = bits.to_ne_bytes();
    let first_four = || [low[0], low[1], low[2], low[3]];
    match entry.valueType {
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => Ok(u32::from_ne_bytes(first_four()).into()),
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => Ok(i32::from_ne_bytes(first_four()).into()),
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => Ok(u16::from_ne_bytes([low[0], low[1]]).into()),
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG => Ok(bits as i64),
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG | sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => {
            i64::try_from(bits).map_err(|_| Fault::BAD_VALUE)
        }
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE => match f64::from_bits(bits) {
            value if value.is_finite() && value.abs() < 9e18 => Ok(value as i64),
            _ => Err(Fault::BAD_VALUE),
        },
        _ => Err(Fault::BAD_VALUE),
    }
}

/// Total, free and used bytes by the first version of the call, for drivers before 510: reserved memory is within what is used.
pub fn memory_v1(device: &Device) -> Result<(u64, u64, u64), Fault> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = sys::nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: the handle is of this library, and the struct is the call's.
    nvml_try(unsafe { call(device.handle(), &mut memory) })?;
    Ok((memory.total, memory.free, memory.used))
}

/// Clock event reasons, every bit that the driver sets, by the newer of the call's two names that the library has.
pub fn clock_reasons(device: &Device) -> Result<u64, Fault> {
    let library = device.nvml().lib();
    let newer = library.nvmlDeviceGetCurrentClocksEventReasons.as_ref();
    let call = newer.or(library.nvmlDeviceGetCurrentClocksThrottleReasons.as_ref());
    let call = nvml_sym(call)?;
    let mut reasons = 0;
    // SAFETY: the handle is of this library.
    nvml_try(unsafe { call(device.handle(), &mut reasons) })?;
    Ok(reasons)
}

/// GPU instance id and compute instance id of a MIG device.
pub fn instance_ids(device: &Device) -> Result<(u32, u32), Fault> {
    let library = device.nvml().lib();
    let (gpu, compute) =
        (nvml_sym(library.nvmlDeviceGetGpuInstanceId.as_ref())?, nvml_sym(library.nvmlDeviceGetComputeInstanceId.as_ref())?);
    let (mut gi, mut ci) = (0, 0);
    // SAFETY: the handle is of this library.
    nvml_try(unsafe { gpu(device.handle(), &mut gi) })?;
    // SAFETY: as above.
    nvml_try(unsafe { compute(device.handle(), &mut ci) })?;
    Ok((gi, ci))
}

/// Whether samples and sets of events that are made can be freed: nvml-wrapper panics where a library has no function for it.
pub fn frees(nvml: &Nvml) -> bool {
    nvml.lib().nvmlGpmSampleFree.is_ok() && nvml.lib().nvmlEventSetFree.is_ok()
}

/// Whether a library can be left again, for the same reason.
pub fn shuts_down(nvml: &Nvml) -> bool {
    nvml.lib().nvmlShutdown.is_ok()
}

/// Shuts the library down and unloads it; for the end of a session, which is once.
pub fn drop_once(nvml: &mut std::mem::ManuallyDrop<Nvml>) {
    // SAFETY: only a session's own end calls this, after which nothing can reach the library through it.
    unsafe { std::mem::ManuallyDrop::drop(nvml) }
}

/// What tells one device's handle from another's while the library stays loaded.
pub fn handle(device: &Device) -> usize {
    // SAFETY: it is only compared.
    unsafe { device.handle() }.addr()
}

/// An event as the driver gives it, waited for at most `timeout_ms`: the device's handle and the XID. nvml-wrapper drops the
/// instance.
pub fn wait(set: &EventSet, timeout_ms: u32) -> Result<Event, Fault> {
    let call = nvml_sym(set.nvml.lib().nvmlEventSetWait_v2.as_ref())?;
    // SAFETY: a struct of numbers and a pointer, for which zeros are valid.
    let mut data: sys::nvmlEventData_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is of this library, and the struct is the call's.
    nvml_try(unsafe { call(set.handle(), &mut data, timeout_ms) })?;
    Ok(Event {
        device: data.device.addr(),
        kind: data.eventType,
        data: data.eventData,
        gpu_instance: (data.gpuInstanceId != u32::MAX).then_some(data.gpuInstanceId),
    })
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// [`handle`] of its device.
    pub device: usize,
    /// Type, a bit of NVML's mask.
    pub kind: u64,
    /// The XID, of an event that is one.
    pub data: u64,
    /// The GPU instance that it is about, if one.
    pub gpu_instance: Option<u32>,
}
