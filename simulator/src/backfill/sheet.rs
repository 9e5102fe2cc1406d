//! What the page says of one device and what its agent reads there, instant by instant: only what has changed is looked at.

use std::sync::Arc;

use exporter::{Attributes, Identity, Lines, Value as Shown, xid};
use schemas::{
    catalogue::{Field, Reading, id::XID_ERRORS},
    proto::{DeviceSample, Value},
    status::ReadingFault,
};

use crate::{
    fault::Misprint,
    plan::Plan,
    readings::{Numbers, Unit},
    serve,
    state::GpuState,
};

/// One device's readings.
pub(super) struct Sheet {
    /// Which numbers the device has, as [`Numbers`] has it.
    has: u128,
    on_instance: bool,
    /// What its page prints.
    printed: Vec<Printed>,
    /// The same as lengths of lines.
    pub lines: Lines,
    /// What is read there, in order of field id.
    pub readings: Vec<(u16, Value)>,
    /// A reading came or went: `readings` is to be put together anew.
    moved: bool,
}

/// One field of the device's page.
struct Printed {
    field: u16,
    catalogue: &'static Field,
    /// Number of its family.
    family: usize,
    /// Where in [`Numbers`] it is.
    at: usize,
    unit: Unit,
    /// What it says; none: a misprint, or nothing yet.
    number: Option<i64>,
    reading: Option<Value>,
    fault: Option<ReadingFault>,
    /// Where among the readings it is.
    place: usize,
}

impl Sheet {
    pub fn new(plan: &Plan) -> Self {
        let lines = Lines::new(Arc::clone(plan.collectors()), serve::style(plan));
        Self { has: 0, on_instance: false, printed: Vec::new(), lines, readings: Vec::new(), moved: false }
    }

    /// Puts a device's labels on its lines.
    pub fn label(&mut self, hostname: &str, identity: &Identity, attributes: Option<&Attributes>) {
        self.lines.label(Some(hostname), identity, attributes);
    }

    /// Forgets the device that it was of: the next one's readings are all new.
    pub fn clear(&mut self) {
        self.printed.clear();
        self.has = 0;
    }

    /// Reads the page of the device in `state`, `wrong` on it. All but the readings goes into `sample`, which is of the last
    /// instant of the same device; true where any of that has changed.
    pub fn read(&mut self, plan: &Plan, state: &GpuState, wrong: Option<Misprint>, sample: &mut DeviceSample) -> bool {
        let numbers = state.numbers();
        let mut changed = false;
        if self.printed.is_empty() || self.has != numbers.has {
            self.begin(plan, state, &numbers, sample);
            changed = true;
        }
        let wrong = wrong.and_then(|wrong| Some((self.printed.iter().position(|it| it.field == wrong.field)?, wrong.value())));
        for at in 0..self.printed.len() {
            let printed = &mut self.printed[at];
            let number = numbers.of[printed.at];
            if printed.number != Some(number) && wrong.is_none_or(|(wrong, _)| wrong != at) {
                printed.number = Some(number);
                let shown = printed.unit.value(number);
                changed |= self.print(at, shown, sample);
            }
        }
        if let Some((at, shown)) = wrong {
            self.printed[at].number = None;
            changed |= self.print(at, shown, sample);
        }
        if std::mem::take(&mut self.moved) {
            self.readings.clear();
            for printed in &mut self.printed {
                printed.place = self.readings.len();
                self.readings.extend(printed.reading.map(|reading| (printed.field, reading)));
            }
        }
        changed
    }

    /// Takes the fields of the device in `state`, which say nothing yet.
    fn begin(&mut self, plan: &Plan, state: &GpuState, numbers: &Numbers, sample: &mut DeviceSample) {
        self.printed.clear();
        self.lines.clear();
        (self.has, self.on_instance, self.moved) = (numbers.has, sample.instance_id.is_some(), true);
        sample.faults.clear();
        sample.xid_message.clear();
        let mut at = 0;
        state.each(|field, unit, number| {
            if let (Some(_), Some((family, catalogue))) = (number, plan.printed.family(field)) {
                let (number, reading, fault, place) = (None, None, None, 0);
                self.printed.push(Printed { field, catalogue, family, at, unit, number, reading, fault, place });
            }
            at += 1;
        });
    }

    /// The page says `shown` in line number `at`: what the parser makes of it. True where it is more than another reading.
    fn print(&mut self, at: usize, shown: Shown, sample: &mut DeviceSample) -> bool {
        let printed = &mut self.printed[at];
        self.lines.set(printed.family, shown);
        let reading = match shown {
            Shown::Int(value) => printed.catalogue.read_number(Some(value.into()), value as f64, self.on_instance),
            Shown::Float(value) => printed.catalogue.read_number(None, value, self.on_instance),
        };
        let (value, fault) = match reading {
            Reading::Int(value) => (Some(Value::Int(value)), None),
            Reading::Ratio(value) => (Some(Value::Float(value as f32)), None),
            Reading::Clipped(value, fault) => (Some(Value::Float(value as f32)), Some(fault)),
            Reading::Invalid(fault) => (None, Some(fault)),
        };
        match (printed.reading, value) {
            (Some(_), Some(value)) if !self.moved => self.readings[printed.place].1 = value,
            (None, None) => {}
            _ => self.moved = true,
        }
        printed.reading = value;
        let mut changed = false;
        if printed.fault != fault {
            printed.fault = fault;
            match fault {
                Some(fault) => sample.faults.insert(printed.field.into(), fault.as_str().to_owned()),
                None => sample.faults.remove(&printed.field.into()),
            };
            changed = true;
        }
        if printed.field == XID_ERRORS {
            let message = if let Some(Value::Int(code)) = value { xid::message(code) } else { "" };
            changed |= sample.xid_message != message;
            sample.xid_message.clear();
            sample.xid_message.push_str(message);
        }
        changed
    }
}
