//! Memory: how much, and its errors.

use std::ffi::{c_uint, c_ulonglong};

use simulator::nvml::Code;

use super::{device::ecc_total, entries};
use crate::{
    abi::{Bar1, EccErrorCounts, Memory, MemoryV2, version},
    boundary::{Answer, Out},
    machine::{View, int, unsigned},
};

const MIB: u64 = 1 << 20;

/// Bytes: total, reserved, free, used; used and free leave out what is reserved.
fn memory(view: &View) -> Answer<[u64; 4]> {
    let readings = view.readings();
    let bytes = |field| int(&readings, field).map(|mib| mib as u64 * MIB);
    Ok([bytes(250)?, bytes(253)?, bytes(251)?, bytes(252)?])
}

/// Pages are retired where rows are not remapped; which ones nobody says.
fn retired(view: &View, cause: c_uint, count: Out<c_uint>) -> Answer {
    count.there()?;
    view.whole()?;
    let field = match cause {
        0 => 390,
        1 => 391,
        _ => return Err(Code::INVALID_ARGUMENT),
    };
    match view.int(field)? {
        0 => count.put(0),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

entries! {
    device nvmlDeviceGetMemoryInfo(out: Out<Memory>) |view| {
        out.there()?;
        let [total, reserved, free, used] = memory(view)?;
        out.put(Memory { total, free, used: used + reserved })
    };
    device nvmlDeviceGetMemoryInfo_v2(out: Out<MemoryV2>) |view| {
        let asked = out.versioned(version::<MemoryV2>(2))?;
        let [total, reserved, free, used] = memory(view)?;
        out.put(MemoryV2 { version: asked.version, total, reserved, free, used })
    };
    device nvmlDeviceGetBAR1MemoryInfo(out: Out<Bar1>) |view| {
        // A window over all of the memory, a power of two, with nothing mapped (chosen): nvitop cannot show an instance
        // without it.
        out.there()?;
        let [memory, ..] = memory(view)?;
        let total = memory.next_power_of_two();
        out.put(Bar1 { total, free: total, used: 0 })
    };
    device nvmlDeviceGetTotalEccErrors(kind: c_uint, counter: c_uint, out: Out<c_ulonglong>) |view| {
        out.there()?;
        out.put(ecc_total(view, kind, counter)?)
    };
    device nvmlDeviceGetDetailedEccErrors(kind: c_uint, counter: c_uint, out: Out<EccErrorCounts>) |view| {
        // All errors that are simulated are the memory's.
        out.there()?;
        let device_memory = ecc_total(view, kind, counter)?;
        out.put(EccErrorCounts { l1_cache: 0, l2_cache: 0, device_memory, register_file: 0 })
    };
    device nvmlDeviceGetMemoryErrorCounter(kind: c_uint, counter: c_uint, place: c_uint, out: Out<c_ulonglong>) |view| {
        out.there()?;
        let total = ecc_total(view, kind, counter)?;
        match place {
            2 => out.put(total), // device memory
            0 | 1 | 3..=7 => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    };
    device nvmlDeviceGetRetiredPages(cause: c_uint, count: Out<c_uint>, _addresses: Out<c_ulonglong>) |view| {
        retired(view, cause, count)
    };
    device nvmlDeviceGetRetiredPages_v2(
        cause: c_uint, count: Out<c_uint>, _addresses: Out<c_ulonglong>, _times: Out<c_ulonglong>,
    ) |view| retired(view, cause, count);
    device nvmlDeviceGetRetiredPagesPendingStatus(out: Out<c_uint>) |view| {
        out.there()?;
        out.put(view.unsigned(392)?)
    };
    device nvmlDeviceGetRemappedRows(
        correctable: Out<c_uint>, uncorrectable: Out<c_uint>, pending: Out<c_uint>, failed: Out<c_uint>,
    ) |view| {
        view.whole()?;
        let places = [(correctable, 394), (uncorrectable, 393), (pending, 396), (failed, 395)];
        places.iter().try_for_each(|(place, _)| place.there())?;
        let readings = view.readings();
        places.iter().try_for_each(|(place, field)| place.put(unsigned(int(&readings, *field)?)?))
    };
}
