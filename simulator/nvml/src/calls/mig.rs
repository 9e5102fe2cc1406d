//! MIG: devices that are instances of a GPU. Each GPU instance holds one compute instance, number 0, of its whole size.

use std::ffi::c_uint;

use simulator::{mig::Placed, nvml::Code};

use super::entries;
use crate::{
    abi::{Attributes, ComputeInstanceInfo, GpuInstanceInfo, Handle, Placement},
    boundary::{Answer, Out},
    library::{compute_instance_handle, gpu_instance_handle},
    machine::{Part, View},
};

/// Most instances of a GPU: its compute slices.
const MOST: c_uint = 7;

/// UUID of a device: of an instance its own.
pub fn uuid(view: &View) -> Answer<String> {
    match view.instance {
        None => Ok(view.board().uuid.clone()),
        Some(_) => Ok(part(view)?.uuid.clone()),
    }
}

/// Name of a device: of an instance with its profile.
pub fn name(view: &View) -> Answer<String> {
    let model = &view.accelerator().product;
    match view.instance {
        None => Ok(model.clone()),
        Some(_) => Ok(format!("{model} MIG {}", part(view)?.placed.profile.name)),
    }
}

fn part<'a>(view: &View<'a>) -> Answer<&'a Part> {
    let instance = view.instance.ok_or(Code::NOT_SUPPORTED)?;
    view.board().parts.get(instance).ok_or(Code::INVALID_ARGUMENT)
}

/// Where the instance lies that a handle means.
fn placed<'a>(view: &View<'a>) -> Answer<&'a Placed> {
    Ok(&part(view)?.placed)
}

fn mig_capable(view: &View) -> Answer {
    view.whole()?;
    if view.accelerator().mig_profiles.is_empty() { Err(Code::NOT_SUPPORTED) } else { Ok(()) }
}

/// Number of a profile, as `nvidia-smi mig -lgip` lists it on A100 and H100 of 80 GB; taken to be the same on the other products of
/// seven slices (chosen).
fn profile_id(Placed { profile, .. }: &Placed) -> Answer<c_uint> {
    Ok(match (profile.slices, profile.memory_slices) {
        (7, _) => 0,
        (4, _) => 5,
        (3, _) => 9,
        (2, _) => 14,
        (1, 2) => 15,
        (1, _) if profile.name.ends_with("+me") => 20,
        (1, _) => 19,
        _ => return Err(Code::NOT_SUPPORTED),
    })
}

/// SMs of an instance: as listings of real boards have them, Hopper (16 a slice, 60 of three slices) and Ampere (14 a slice, also of
/// all seven); of others an eighth of the board's a slice (chosen). Otherwise an instance of all slices has all SMs (chosen), those of
/// `accelerators.csv`.
fn multiprocessors(view: &View, slices: u32) -> Answer<c_uint> {
    let all = view.accelerator().sm_count.and_then(|count| c_uint::try_from(count).ok()).ok_or(Code::NOT_SUPPORTED)?;
    Ok(match (view.accelerator().arch.as_str(), slices) {
        ("Ampere", slices) => 14 * slices,
        (_, 7) => all,
        ("Hopper", 3) => 60,
        ("Hopper", slices) => 16 * slices,
        (_, slices) => all / 8 * slices,
    })
}

/// Engines are nobody's knowledge here: their counts are 0.
fn attributes(view: &View, out: Out<Attributes>) -> Answer {
    out.there()?;
    let slices = placed(view)?.profile.slices;
    out.put(Attributes {
        multiprocessors: multiprocessors(view, slices)?,
        copy_engines: 0,
        decoders: 0,
        encoders: 0,
        jpeg: 0,
        ofa: 0,
        gpu_slices: slices,
        compute_slices: slices,
        memory_mib: view.int(250)? as u64,
    })
}

entries! {
    device nvmlDeviceGetMigMode(current: Out<c_uint>, pending: Out<c_uint>) |view| {
        mig_capable(view)?;
        pending.there()?;
        let on = c_uint::from(!view.board().parts.is_empty());
        current.put(on).and_then(|()| pending.put(on))
    };
    device nvmlDeviceIsMigDeviceHandle(out: Out<c_uint>) |view| out.put(view.instance.is_some().into());
    device nvmlDeviceGetGpuInstanceId(out: Out<c_uint>) |view| {
        out.there()?;
        out.put(placed(view)?.id)
    };
    device nvmlDeviceGetComputeInstanceId(out: Out<c_uint>) |view| {
        out.there()?;
        part(view)?;
        out.put(0)
    };
    device nvmlDeviceGetMaxMigDeviceCount(out: Out<c_uint>) |view| {
        view.whole()?;
        out.put(if mig_capable(view).is_ok() { MOST } else { 0 })
    };
    device nvmlDeviceGetMigDeviceHandleByIndex(index: c_uint, out: Out<Handle>) |view| {
        out.there()?;
        mig_capable(view)?;
        let found = (index as usize) < view.board().parts.len();
        match index {
            MOST.. => Err(Code::INVALID_ARGUMENT),
            _ if found => out.put(View { instance: Some(index as usize), ..*view }.handle()),
            _ => Err(Code::NOT_FOUND),
        }
    };
    device nvmlDeviceGetDeviceHandleFromMigDeviceHandle(out: Out<Handle>) |view| {
        out.there()?;
        part(view).map_err(|_| Code::INVALID_ARGUMENT)?;
        out.put(view.parent().handle())
    };
    device nvmlDeviceGetAttributes(out: Out<Attributes>) |view| attributes(view, out);
    device nvmlDeviceGetAttributes_v2(out: Out<Attributes>) |view| attributes(view, out);
    device nvmlDeviceGetGpuInstances(profile: c_uint, out: Out<Handle>, count: Out<c_uint>) |view| {
        mig_capable(view)?;
        count.there()?;
        let parts = view.board().parts.iter().enumerate();
        let handles: Vec<Handle> = parts
            .filter(|(_, part)| profile_id(&part.placed) == Ok(profile))
            .map(|(n, _)| gpu_instance_handle(view.moment, view.gpu, n))
            .collect();
        handles.iter().enumerate().try_for_each(|(n, handle)| out.there().and_then(|()| out.nth(n).put(*handle)))?;
        count.put(handles.len() as c_uint)
    };
    device nvmlDeviceGetGpuInstanceById(id: c_uint, out: Out<Handle>) |view| {
        mig_capable(view)?;
        out.there()?;
        let place = view.board().parts.iter().position(|part| part.placed.id == id).ok_or(Code::NOT_FOUND)?;
        out.put(gpu_instance_handle(view.moment, view.gpu, place))
    };
    gpu_instance nvmlGpuInstanceGetInfo(out: Out<GpuInstanceInfo>) |view| {
        out.there()?;
        let placed = placed(view)?;
        out.put(GpuInstanceInfo {
            device: view.parent().handle(),
            id: placed.id,
            profile_id: profile_id(placed)?,
            placement: Placement { start: placed.start, size: placed.profile.memory_slices },
        })
    };
    gpu_instance nvmlGpuInstanceGetComputeInstances(profile: c_uint, out: Out<Handle>, count: Out<c_uint>) |view| {
        count.there()?;
        let found = compute_profile_id(placed(view)?) == Ok(profile);
        if found {
            out.put(compute_instance_handle(view.moment, view.gpu, view.instance.unwrap_or_default()))?;
        }
        count.put(found.into())
    };
    gpu_instance nvmlGpuInstanceGetComputeInstanceById(id: c_uint, out: Out<Handle>) |view| {
        out.there()?;
        match id {
            0 => out.put(compute_instance_handle(view.moment, view.gpu, view.instance.unwrap_or_default())),
            _ => Err(Code::NOT_FOUND),
        }
    };
    compute_instance nvmlComputeInstanceGetInfo_v2(out: Out<ComputeInstanceInfo>) |view| {
        out.there()?;
        let placed = placed(view)?;
        out.put(ComputeInstanceInfo {
            device: view.parent().handle(),
            gpu_instance: gpu_instance_handle(view.moment, view.gpu, view.instance.unwrap_or_default()),
            id: 0,
            profile_id: compute_profile_id(placed)?,
            placement: Placement { start: 0, size: placed.profile.slices },
        })
    };
}

/// Number of the compute profile of so many slices: `NVML_COMPUTE_INSTANCE_PROFILE_*_SLICE` of NVML's header.
fn compute_profile_id(placed: &Placed) -> Answer<c_uint> {
    match placed.profile.slices {
        slices @ 1..=4 => Ok(slices - 1),
        7 => Ok(4),
        _ => Err(Code::NOT_SUPPORTED),
    }
}
