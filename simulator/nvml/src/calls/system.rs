//! The library itself, the system, and the devices that it finds.

use std::ffi::{c_char, c_int, c_uint};

use simulator::{nvml, nvml::Code, plan::DRIVER_VERSION};

use super::entries;
use crate::{
    abi::{Handle, Uuid, version},
    boundary::{Answer, Out, TextIn, TextOut},
    library::{self, Session},
    machine::View,
};

/// CUDA version of the driver's branch (580: 13.0).
const CUDA_VERSION: c_int = 13_000;

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> u32 {
    library::init("nvmlInit")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> u32 {
    library::init("nvmlInit_v2")
}

/// The flags ask for leniency (no GPU is no error; attach to none), which is there anyway.
#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> u32 {
    library::init("nvmlInitWithFlags")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> u32 {
    library::shutdown()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: c_uint) -> *const c_char {
    Code(code).text().as_ptr()
}

/// A bus address as numbers: `00000000:1B:00.0`, `0000:1b:00.0` and `1B:00.0` are one.
fn bus_address(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.rsplitn(3, ':');
    let (slot, bus, domain) = (parts.next()?, parts.next()?, parts.next().unwrap_or("0"));
    let (device, function) = slot.split_once('.')?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    number(function).filter(|function| *function == 0)?;
    Some((number(domain)?, number(bus)?, number(device)?))
}

/// Bus address of a device: domain, bus and device.
pub fn bus_of(view: &View) -> (u32, u32, u32) {
    bus_address(&view.board().pci_bus_id).unwrap_or_default()
}

fn by_bus(session: &Session, text: TextIn, device: Out<Handle>) -> Answer {
    device.there()?;
    let wanted = bus_address(&text.get()?).ok_or(Code::INVALID_ARGUMENT)?;
    device.put(session.find_by(|view| view.instance.is_none() && bus_of(view) == wanted)?.handle())
}

fn by_uuid(session: &Session, wanted: &str, device: Out<Handle>) -> Answer {
    device.there()?;
    device.put(session.find_by(|view| super::mig::uuid(view).is_ok_and(|uuid| uuid == wanted))?.handle())
}

fn count(session: &Session, count: Out<c_uint>) -> Answer {
    count.put(session.machine.present(&session.moment).count() as c_uint)
}

fn by_index(session: &Session, index: c_uint, device: Out<Handle>) -> Answer {
    device.there()?;
    device.put(session.by_index(index)?.handle())
}

/// Of the two kinds of UUID that may be asked for, the one in letters.
const IN_LETTERS: c_uint = 1;

entries! {
    node nvmlSystemGetDriverVersion(text: TextOut, length: c_uint) |_| text.put(length, DRIVER_VERSION);
    node nvmlSystemGetNVMLVersion(text: TextOut, length: c_uint) |_| text.put(length, &format!("13.{DRIVER_VERSION}"));
    node nvmlSystemGetCudaDriverVersion(number: Out<c_int>) |_| number.put(CUDA_VERSION);
    node nvmlSystemGetCudaDriverVersion_v2(number: Out<c_int>) |_| number.put(CUDA_VERSION);
    node nvmlSystemGetProcessName(pid: c_uint, text: TextOut, length: c_uint) |session| {
        text.put(length, &nvml::process_name(&session.machine.plan, pid).ok_or(Code::NOT_FOUND)?)
    };
    node nvmlUnitGetCount(number: Out<c_uint>) |_| number.put(0);
    node nvmlGetExcludedDeviceCount(number: Out<c_uint>) |_| number.put(0);
    node nvmlDeviceGetCount(number: Out<c_uint>) |session| count(session, number);
    node nvmlDeviceGetCount_v2(number: Out<c_uint>) |session| count(session, number);
    node nvmlDeviceGetHandleByIndex(index: c_uint, device: Out<Handle>) |session| by_index(session, index, device);
    node nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<Handle>) |session| by_index(session, index, device);
    node nvmlDeviceGetHandleByPciBusId(text: TextIn, device: Out<Handle>) |session| by_bus(session, text, device);
    node nvmlDeviceGetHandleByPciBusId_v2(text: TextIn, device: Out<Handle>) |session| by_bus(session, text, device);
    node nvmlDeviceGetHandleByUUID(text: TextIn, device: Out<Handle>) |session| by_uuid(session, &text.get()?, device);
    node nvmlDeviceGetHandleByUUIDV(uuid: Out<Uuid>, device: Out<Handle>) |session| {
        let uuid = uuid.versioned(version::<Uuid>(1))?;
        if uuid.kind != IN_LETTERS {
            return Err(Code::NOT_SUPPORTED);
        }
        let letters: Vec<u8> = uuid.text.iter().map(|letter| *letter as u8).take_while(|letter| *letter != 0).collect();
        by_uuid(session, &String::from_utf8(letters).map_err(|_| Code::INVALID_ARGUMENT)?, device)
    };
    node nvmlDeviceGetHandleBySerial(text: TextIn, device: Out<Handle>) |session| {
        device.there()?;
        let wanted = text.get()?;
        device.put(session.find_by(|view| super::device::serial(view).is_ok_and(|serial| serial == wanted))?.handle())
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_addresses_are_read_in_every_spelling() {
        for text in ["00000000:1B:00.0", "0000:1b:00.0", "1B:00.0"] {
            assert_eq!(bus_address(text), Some((0, 0x1b, 0)), "{text}");
        }
        for text in ["", "1B", "x:1B:00.0", "0:1B:00", "0:1B:00.1", "::."] {
            assert_eq!(bus_address(text), None, "{text}");
        }
    }
}
