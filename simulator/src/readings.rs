//! What a device's state reads as: DCGM's fields, each a whole number of something.

use exporter::{Readings, Value};

use crate::{fault::Misprint, state::GpuState};

/// What a field's number counts; all but whole ones are printed as fractions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    One,
    Thousandth,
    Millionth,
}

use Unit::{Millionth, One, Thousandth};

impl Unit {
    /// `number` of it as a page has it.
    pub fn value(self, number: i64) -> Value {
        match self {
            One => Value::Int(number),
            Thousandth => Value::Float(number as f64 / 1e3),
            Millionth => Value::Float(number as f64 / 1e6),
        }
    }
}

/// How many fields [`GpuState::each`] has.
const FIELDS: usize = 61;

/// The numbers of a state, in the order of [`GpuState::each`].
#[derive(Debug)]
pub(crate) struct Numbers {
    /// A bit for each: whether the device has it.
    pub has: u128,
    /// 0 where it has not.
    pub of: [i64; FIELDS],
}

impl GpuState {
    /// Every reading that DCGM has of such a device.
    pub fn readings(&self, readings: &mut Readings) {
        self.readings_of(|_| true, readings);
    }

    /// Those of them whose field is `wanted`.
    pub(crate) fn readings_of(&self, wanted: impl Fn(u16) -> bool, readings: &mut Readings) {
        self.each(|field, unit, number| {
            if let Some(number) = number.filter(|_| wanted(field)) {
                readings.set(field, unit.value(number));
            }
        });
    }

    /// All numbers.
    pub(crate) fn numbers(&self) -> Numbers {
        let (mut numbers, mut at) = (Numbers { has: 0, of: [0; FIELDS] }, 0);
        self.each(|_, _, number| {
            numbers.has |= u128::from(number.is_some()) << at;
            numbers.of[at] = number.unwrap_or(0);
            at += 1;
        });
        numbers
    }

    /// Every field in order of its id, and how many of what it reads; none where such a device has no reading of it.
    #[inline(always)]
    pub(crate) fn each(&self, mut set: impl FnMut(u16, Unit, Option<i64>)) {
        let zero_if = |there: bool| there.then_some(0);
        set(67, One, Some(self.mig.into()));
        set(100, One, Some(self.sm_clock));
        set(101, One, Some(self.mem_clock));
        set(112, One, Some(self.clock_reasons));
        set(113, One, Some(self.max_sm_clock));
        set(114, One, Some(self.max_mem_clock));
        set(140, One, self.mem_temp);
        set(150, One, Some(self.gpu_temp));
        set(155, Thousandth, Some(self.power_mw));
        set(156, One, Some(self.energy_mj));
        set(157, Thousandth, Some(self.power_mw));
        set(160, Thousandth, Some(self.power_limit_mw));
        // Nobody lowers the limit.
        set(163, Thousandth, Some(self.power_limit_mw));
        set(164, Thousandth, Some(self.power_limit_mw));
        set(190, One, Some(self.pstate));
        set(202, One, Some(self.pcie_replays));
        set(203, One, self.util_pct);
        set(204, One, self.mem_copy_pct);
        // Nobody decodes video; of an instance nobody could say.
        set(206, One, zero_if(self.util_pct.is_some()));
        set(207, One, zero_if(self.util_pct.is_some()));
        set(230, One, self.xid);
        set(240, One, Some(self.power_violation_ns));
        // Nothing else has held these clocks down.
        set(241, One, Some(0));
        set(242, One, Some(0));
        set(243, One, Some(0));
        set(244, One, Some(0));
        set(245, One, Some(0));
        let usable = self.fb_total_mib - self.fb_reserved_mib;
        set(250, One, Some(self.fb_total_mib));
        set(251, One, Some(usable - self.fb_used_mib));
        set(252, One, Some(self.fb_used_mib));
        set(253, One, Some(self.fb_reserved_mib));
        set(254, Millionth, Some(self.fb_used_mib * 1_000_000 / usable.max(1)));
        set(310, One, Some(self.ecc_volatile.0));
        set(311, One, Some(self.ecc_volatile.1));
        set(312, One, Some(self.ecc_aggregate.0));
        set(313, One, Some(self.ecc_aggregate.1));
        set(390, One, self.retired_pages.map(|(single, ..)| single));
        set(391, One, self.retired_pages.map(|(_, double, _)| double));
        set(392, One, self.retired_pages.map(|(.., waits)| waits));
        set(393, One, self.uncorrectable_rows);
        set(394, One, self.remapped_rows);
        set(395, One, zero_if(self.remapped_rows.is_some()));
        // No row waits: each is remapped at once.
        set(396, One, zero_if(self.remapped_rows.is_some()));
        set(409, One, zero_if(self.nvlink_replays.is_some()));
        set(419, One, zero_if(self.nvlink_replays.is_some()));
        set(429, One, self.nvlink_replays);
        set(439, One, zero_if(self.nvlink_replays.is_some()));
        set(449, One, self.nvlink.map(|nvlink| 2 * nvlink / 1_000_000));
        set(526, One, Some(0));
        set(1001, Millionth, Some(self.gr));
        set(1002, Millionth, Some(self.sm));
        set(1003, Millionth, Some(self.occupancy));
        set(1004, Millionth, Some(self.tensor));
        set(1005, Millionth, Some(self.dram));
        set(1006, Millionth, Some(self.fp64));
        set(1007, Millionth, Some(self.fp32));
        set(1008, Millionth, Some(self.fp16));
        set(1009, One, self.pcie_tx);
        set(1010, One, self.pcie_rx);
        set(1011, One, self.nvlink);
        set(1012, One, self.nvlink);
    }
}

impl Misprint {
    /// What the page shows in place of the reading.
    pub fn value(self) -> Value {
        let way = (self.way % 4) as i64;
        match (self.field, self.blank) {
            (203, true) => Value::Int(if way < 2 { 9_223_372_036_854_775_792 + way } else { 2_147_483_632 + way }),
            (_, true) => Value::Float(140_737_488_355_328.0 + way as f64),
            (203, false) => Value::Int([808_334_905, 2_619, 101, 4_294_967_295][way as usize]),
            (_, false) => Value::Float([1.294, 1.013, 57.5, -0.25][way as usize]),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{DeviceRef, FleetSpec, Plan, state};

    #[test]
    fn numbers_are_the_readings_in_order_of_field_id() {
        let path = format!("{}/../kwok-fleet/fleets/mixed.yaml", env!("CARGO_MANIFEST_DIR"));
        let spec = FleetSpec::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
        let seed = spec.seed;
        let plan = Plan::new(spec, seed).unwrap();
        let at = plan.window().from().plus_ms(5_000_000);
        let mut shapes = std::collections::BTreeSet::new();
        for state in plan.devices().filter_map(|device: DeviceRef| state(&plan, device, at)) {
            let (mut readings, mut fields) = (Readings::default(), Vec::new());
            state.readings(&mut readings);
            state.each(|field, unit, _| fields.push((field, unit)));
            assert_eq!(fields.len(), FIELDS);
            assert!(fields.windows(2).all(|two| two[0].0 < two[1].0), "{fields:?}");
            let numbers = state.numbers();
            let has = |at: usize| numbers.has >> at & 1 == 1;
            let told = (0..FIELDS).filter(|at| has(*at)).map(|at| (fields[at].0, fields[at].1.value(numbers.of[at])));
            assert_eq!(told.collect::<Vec<_>>(), readings.as_slice());
            assert!((0..FIELDS).all(|at| has(at) || numbers.of[at] == 0));
            shapes.insert(numbers.has);
        }
        assert!(shapes.len() >= 3, "whole boards with and without NVLink, and instances");
    }
}
