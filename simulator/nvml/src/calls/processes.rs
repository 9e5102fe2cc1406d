//! Pods as processes: one for each whose memory is on the device.

use std::ffi::{c_uint, c_ulonglong};

use simulator::nvml::{self, Code, Process};

use super::{device::percent, entries};
use crate::{
    abi::{
        ProcessDetail, ProcessDetailList, ProcessInfo, ProcessInfoV1, ProcessSample, ProcessUtilization, ProcessesUtilization,
        version,
    },
    boundary::{Answer, Out},
    machine::View,
};

const MIB: u64 = 1 << 20;

/// Processes of a device with their instance's ids; of a GPU that is cut into instances, those of all of them.
fn running(view: &View) -> Answer<Vec<(Process, (c_uint, c_uint))>> {
    let parts: Vec<View> = match (view.instance, view.board().whole) {
        (None, None) => (0..view.board().parts.len()).map(|part| View { instance: Some(part), ..*view }).collect(),
        _ => vec![View { ..*view }],
    };
    let mut found = Vec::new();
    for part in parts {
        let processes = nvml::processes(&view.machine.plan, part.device()?, view.moment.at);
        found.extend(processes.into_iter().map(|process| (process, part.instance_ids())));
    }
    Ok(found)
}

fn list<T: Copy>(view: &View, count: Out<c_uint>, out: Out<T>, item: impl Fn(Process, (c_uint, c_uint)) -> T) -> Answer {
    count.there()?;
    let items: Vec<T> = running(view)?.into_iter().map(|(process, ids)| item(process, ids)).collect();
    out.fill(count, &items)
}

fn old(process: Process, _: (c_uint, c_uint)) -> ProcessInfoV1 {
    ProcessInfoV1 { pid: process.pid, used_gpu_memory: process.used_mib as u64 * MIB }
}

fn new(process: Process, (gpu_instance_id, compute_instance_id): (c_uint, c_uint)) -> ProcessInfo {
    ProcessInfo { pid: process.pid, used_gpu_memory: process.used_mib as u64 * MIB, gpu_instance_id, compute_instance_id }
}

/// No pod draws, and none comes by way of MPS.
fn none(count: Out<c_uint>) -> Answer {
    count.put(0)
}

/// What the processes of a whole GPU do now, unless the caller has seen it; the wall clock's time, which callers filter by.
fn activity(view: &View, last_seen_us: u64) -> Answer<Vec<ProcessSample>> {
    if view.instance.is_some() || view.board().whole.is_none() {
        return Err(Code::NOT_SUPPORTED); // nobody tells of a cut GPU's utilization
    }
    let at_us = view.moment.wall_ms as u64 * 1000;
    let running = running(view)?;
    if running.is_empty() || at_us <= last_seen_us {
        return Err(Code::NOT_FOUND);
    }
    // Processes on one device share its activity alike.
    let share = |field| percent(view, field) / running.len() as c_uint;
    let (sm_util, mem_util, enc_util, dec_util) = (share(203), share(204), share(206), share(207));
    let sample = |(process, _): &(Process, _)| ProcessSample { pid: process.pid, at_us, sm_util, mem_util, enc_util, dec_util };
    Ok(running.iter().map(sample).collect())
}

entries! {
    device nvmlDeviceGetComputeRunningProcesses(count: Out<c_uint>, out: Out<ProcessInfoV1>) |view| list(view, count, out, old);
    device nvmlDeviceGetComputeRunningProcesses_v2(count: Out<c_uint>, out: Out<ProcessInfo>) |view| list(view, count, out, new);
    device nvmlDeviceGetComputeRunningProcesses_v3(count: Out<c_uint>, out: Out<ProcessInfo>) |view| list(view, count, out, new);
    device nvmlDeviceGetGraphicsRunningProcesses(count: Out<c_uint>, _out: Out<ProcessInfoV1>) |_| none(count);
    device nvmlDeviceGetGraphicsRunningProcesses_v2(count: Out<c_uint>, _out: Out<ProcessInfo>) |_| none(count);
    device nvmlDeviceGetGraphicsRunningProcesses_v3(count: Out<c_uint>, _out: Out<ProcessInfo>) |_| none(count);
    device nvmlDeviceGetMPSComputeRunningProcesses(count: Out<c_uint>, _out: Out<ProcessInfoV1>) |_| none(count);
    device nvmlDeviceGetMPSComputeRunningProcesses_v2(count: Out<c_uint>, _out: Out<ProcessInfo>) |_| none(count);
    device nvmlDeviceGetMPSComputeRunningProcesses_v3(count: Out<c_uint>, _out: Out<ProcessInfo>) |_| none(count);
    device nvmlDeviceGetRunningProcessDetailList(out: Out<ProcessDetailList>) |view| {
        let mut asked = out.versioned(version::<ProcessDetailList>(1))?;
        let items: Vec<ProcessDetail> = match asked.mode {
            0 => running(view)?,
            1 | 2 => Vec::new(),
            _ => return Err(Code::INVALID_ARGUMENT),
        }
        .into_iter()
        .map(|(process, (gpu_instance_id, compute_instance_id))| ProcessDetail {
            pid: process.pid,
            used_gpu_memory: process.used_mib as u64 * MIB,
            gpu_instance_id,
            compute_instance_id,
            used_protected_memory: 0,
        })
        .collect();
        let room = std::mem::replace(&mut asked.count, items.len() as c_uint) as usize;
        out.put(asked)?;
        if items.len() > room {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        items.iter().enumerate().try_for_each(|(n, item)| asked.processes.there().and_then(|()| asked.processes.nth(n).put(*item)))
    };
    device nvmlDeviceGetProcessUtilization(out: Out<ProcessSample>, count: Out<c_uint>, last_seen_us: c_ulonglong) |view| {
        count.there()?;
        out.fill(count, &activity(view, last_seen_us)?)
    };
    device nvmlDeviceGetProcessesUtilizationInfo(out: Out<ProcessesUtilization>) |view| {
        let mut asked = out.versioned(version::<ProcessesUtilization>(1))?;
        let samples = activity(view, asked.last_seen_us)?;
        let room = std::mem::replace(&mut asked.count, samples.len() as c_uint) as usize;
        asked.last_seen_us = view.moment.wall_ms as u64 * 1000;
        out.put(asked)?;
        if samples.len() > room {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        samples.iter().enumerate().try_for_each(|(n, sample)| {
            let ProcessSample { pid, at_us, sm_util, mem_util, enc_util, dec_util } = *sample;
            let item = ProcessUtilization { at_us, pid, sm_util, mem_util, enc_util, dec_util, jpg_util: 0, ofa_util: 0 };
            asked.processes.there().and_then(|()| asked.processes.nth(n).put(item))
        })
    };
}
