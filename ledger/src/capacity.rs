//! Capacity from the inventory alone: what hour rows must sum to. Shares nothing with them but the rounding rule, so
//! that a check compares two derivations.

use std::collections::BTreeMap;

use schemas::{HOUR_MS, Timestamp, Window};

use crate::{
    fraction::{Frac, TooFine, share_out},
    hours::HoursError,
    input::{Device, Text},
    span::{self, Ms},
};

/// One device's capacity in one hour.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceHour {
    /// The UTC hour, by its start.
    pub hour_start: Timestamp,
    /// The node.
    pub node: Text,
    /// The device.
    pub device: Text,
    /// Whole-GPU-equivalent device milliseconds in the inventory.
    pub capacity_ms: i64,
}

/// Capacity of `devices` in `window`, by hour, node and device; devices that are not there in an hour have no entry.
///
/// A GPU with instances present is what they leave over; the time in which any is present is shared out to them by
/// id and then to it, so that the GPU's time is whole.
pub fn capacities(devices: &[Device], window: Window) -> Result<Vec<DeviceHour>, HoursError> {
    let mut gpus: BTreeMap<(&Text, &Text), Gpu<'_>> = BTreeMap::new();
    for device in devices {
        let gpu = gpus.entry((&device.node, device.parent.as_ref().unwrap_or(&device.id))).or_default();
        match device.parent {
            Some(_) => gpu.instances.push(device),
            None => gpu.listed = Some(device),
        }
    }
    let mut hours = Vec::new();
    for hour_start in window.hours() {
        let part = (hour_start.ms().max(window.from().ms()), hour_start.plus_ms(HOUR_MS).ms().min(window.to().ms()));
        for ((node, id), gpu) in &mut gpus {
            gpu.instances.sort_by(|a, b| a.id.cmp(&b.id));
            for (device, capacity_ms) in gpu.hour(id, part)? {
                hours.push(DeviceHour { hour_start, node: (*node).clone(), device, capacity_ms });
            }
        }
    }
    hours.sort();
    Ok(hours)
}

/// A GPU and its instances.
#[derive(Default)]
struct Gpu<'a> {
    listed: Option<&'a Device>,
    instances: Vec<&'a Device>,
}

impl Gpu<'_> {
    fn hour(&self, id: &Text, part: Ms) -> Result<Vec<(Text, i64)>, TooFine> {
        let weighted = |device: &Device, ms: i64| Frac::whole(ms).times(device.weight.num().into(), device.weight.den().into());
        let split = span::union(self.instances.iter().flat_map(|i| present(i)));
        let split_ms = span::length(&split, part);
        let mut capacities = Vec::new();
        let mut parts = Vec::with_capacity(self.instances.len() + 1);
        let mut left = Frac::whole(split_ms);
        for instance in &self.instances {
            let used = weighted(instance, span::length(&present(instance), part))?;
            left = left.minus(used)?;
            parts.push(used);
        }
        parts.push(left);
        let mut shares = share_out(split_ms, &parts)?;
        let orphan = shares.pop().unwrap_or(0);
        for ((instance, share), exact) in self.instances.iter().zip(shares).zip(&parts) {
            if !exact.is_zero() {
                capacities.push((instance.id.clone(), share));
            }
        }
        let whole_ms = self.listed.map_or(0, |gpu| span::length(&span::subtract(&present(gpu), &split), part));
        if whole_ms > 0 || !left.is_zero() {
            let whole = self.listed.map_or(Ok(Frac::ZERO), |gpu| weighted(gpu, whole_ms))?;
            capacities.push((id.clone(), whole.nearest()? + orphan));
        }
        Ok(capacities)
    }
}

fn present(device: &Device) -> Vec<Ms> {
    span::union(device.present.iter().map(|span| (span.from.ms(), span.to.ms())))
}
