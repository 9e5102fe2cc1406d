//! Values by NVML field id, as `nvmlDeviceGetFieldValues` gives them.

use exporter::Readings;
use simulator::nvml::Code;

use crate::{
    abi::{TYPE_LONG_LONG, TYPE_SIGNED, TYPE_UNSIGNED, Value},
    boundary::Answer,
    machine::{View, float, int, unsigned},
};

/// The scope that means all links.
const ALL_LINKS: u32 = u32::MAX;
/// Field ids of the driver's age end here.
const HIGHEST: u32 = 273;

/// A value and its type.
pub struct Typed(pub u32, pub Value);

fn long(value: i64) -> Answer<Typed> {
    Ok(Typed(TYPE_LONG_LONG, Value::long(value as u64)))
}

fn short(value: i64) -> Answer<Typed> {
    Ok(Typed(TYPE_UNSIGNED, Value::unsigned(unsigned(value)?)))
}

fn signed(value: i32) -> Answer<Typed> {
    Ok(Typed(TYPE_SIGNED, Value::signed(value)))
}

/// Milliwatts of a draw in watts.
pub fn milliwatts(readings: &Readings) -> Answer<u32> {
    unsigned((float(readings, 155)? * 1000.0).round() as i64)
}

/// Field `field` of a device that reads `readings`, for the link or the part of the board that `scope` means.
pub fn value(view: &View, readings: &Readings, field: u32, scope: u32) -> Answer<Typed> {
    let accelerator = view.accelerator();
    let limit = || accelerator.tdp_mw.ok_or(Code::NOT_SUPPORTED).and_then(short);
    match field {
        1 | 2 => short(1), // ECC is on, and stays on
        3..=6 => long(int(readings, 307 + field as u16)?),
        29..=31 => long(int(readings, 361 + field as u16)?),
        38 => long(int(readings, 409)?),
        45 => long(int(readings, 419)?),
        52 => long(int(readings, 429)?),
        59 => long(int(readings, 439)?),
        74..=79 => long(int(readings, 166 + field as u16)?),
        82 => short(int(readings, 140)?),
        83 => long(int(readings, 156)?),
        91 => short(accelerator.nvlinks.ok_or(Code::NOT_SUPPORTED)?),
        94 => short(int(readings, 202)?),
        138..=141 => long(on_links(view, scope)? / 1024),
        142 => short(int(readings, 394)?),
        143 => short(int(readings, 393)?),
        144 => short(int(readings, 396)?),
        145 => short(int(readings, 395)?),
        165 => link(view, scope).and_then(|_| short(1)),
        166 => link(view, scope).and_then(|_| short(i64::from(link_version(view)?))),
        185 | 186 if scope == 0 => short(i64::from(milliwatts(readings)?)),
        188 | 189 | 190 | 192 => limit(),
        193 if has_margins(view) => signed(-8),
        194 if has_margins(view) => signed(-2),
        196 if has_margins(view) => signed(0),
        197 => long(view.traffic()?.pcie_tx()),
        198 => long(view.traffic()?.pcie_rx()),
        202 | 204 if accelerator.arch == "Blackwell" => long(on_links(view, scope)?),
        1..=HIGHEST => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// Thermal limits of Hopper and later are margins: shutdown 8 degrees past the limit, slowdown 2 past it.
fn has_margins(view: &View) -> bool {
    matches!(view.accelerator().arch.as_str(), "Hopper" | "Blackwell")
}

/// How many links a board has, once `link` is seen to be one of them.
pub fn link(view: &View, link: u32) -> Answer<u32> {
    let links = unsigned(view.accelerator().nvlinks.ok_or(Code::NOT_SUPPORTED)?)?;
    if link < links { Ok(links) } else { Err(Code::INVALID_ARGUMENT) }
}

/// NVLink's generation, by the header's numbering of versions.
pub fn link_version(view: &View) -> Answer<u32> {
    match view.accelerator().arch.as_str() {
        "Volta" => Ok(2),
        "Ampere" => Ok(4),
        "Hopper" => Ok(6),
        "Blackwell" => Ok(7),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

/// Bytes over one link, or all of them, in each direction; links share the traffic alike.
fn on_links(view: &View, scope: u32) -> Answer<i64> {
    let links = link(view, if scope == ALL_LINKS { 0 } else { scope })?;
    let all = view.traffic()?.nvlink();
    Ok(if scope == ALL_LINKS { all } else { all / i64::from(links) })
}
