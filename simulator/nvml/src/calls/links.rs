//! NVLink.

use std::ffi::{c_uint, c_ulonglong};

use simulator::nvml::Code;

use super::entries;
use crate::{
    boundary::{Answer, Out},
    fields::{link, link_version},
    machine::View,
};

/// Errors of one link. Only the total of all links is known, which is a link's own when it is 0.
fn errors(view: &View, number: c_uint, counter: c_uint) -> Answer<u64> {
    link(view, number)?;
    let field = match counter {
        0 => 429, // replay
        1 => 439, // recovery
        2 => 409, // CRC of flits
        3 => 419, // CRC of data
        4 => return Err(Code::NOT_SUPPORTED),
        _ => return Err(Code::INVALID_ARGUMENT),
    };
    match view.int(field)? {
        0 => Ok(0),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

entries! {
    device nvmlDeviceGetNvLinkState(number: c_uint, out: Out<c_uint>) |view| {
        view.whole()?;
        out.there()?;
        link(view, number)?;
        out.put(1)
    };
    device nvmlDeviceGetNvLinkVersion(number: c_uint, out: Out<c_uint>) |view| {
        view.whole()?;
        out.there()?;
        link(view, number)?;
        out.put(link_version(view)?)
    };
    device nvmlDeviceGetNvLinkErrorCounter(number: c_uint, counter: c_uint, out: Out<c_ulonglong>) |view| {
        view.whole()?;
        out.there()?;
        out.put(errors(view, number, counter)?)
    };
}
