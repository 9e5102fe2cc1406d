//! How large a page's text is, without printing it. A line is its family's name, its device's labels and a number, and from one
//! instant to the next mostly numbers change.

use std::sync::Arc;

use schemas::catalogue::id::XID_ERRORS;

use crate::{
    collectors::Collectors,
    number,
    render::{self, Style},
    source::{Attributes, Identity, Value},
    xid,
};

/// How large a page's text is, and how many samples it has. A page is the sum of its devices, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes.
    pub bytes: u64,
    /// Lines that are samples.
    pub series: u64,
    /// A bit for each family: whether its head is counted.
    begun: Vec<u64>,
}

/// The lines of one device, as [`crate::Renderer`] would print them: how many they are and how long.
#[derive(Debug)]
pub struct Lines {
    collectors: Arc<Collectors>,
    style: Style,
    /// For each family: bytes of its line without the labels that all lines have; 0: there is no line.
    lens: Vec<u32>,
    /// A bit for each family: whether there is a line.
    there: Vec<u64>,
    series: u64,
    /// Sum of `lens`.
    bytes: u64,
    /// Bytes of the labels that all lines have.
    labels: u64,
    scratch: Vec<u8>,
}

impl Size {
    /// Nothing measured yet; memory is kept.
    pub fn clear(&mut self) {
        (self.bytes, self.series) = (0, 0);
        self.begun.clear();
    }

    /// Adds the lines of a device, and the heads of families that no device before it has had. All devices of a page have the
    /// same collectors.
    pub fn add(&mut self, lines: &Lines) {
        self.bytes += lines.bytes + lines.series * lines.labels;
        self.series += lines.series;
        self.begun.resize(lines.there.len(), 0);
        for (word, (begun, there)) in self.begun.iter_mut().zip(&lines.there).enumerate() {
            let mut new = there & !*begun;
            *begun |= there;
            while new != 0 {
                let family = word * 64 + new.trailing_zeros() as usize;
                self.bytes += lines.collectors.families()[family].head.len() as u64;
                new &= new - 1;
            }
        }
    }
}

impl Lines {
    /// No lines yet.
    pub fn new(collectors: Arc<Collectors>, style: Style) -> Self {
        let families = collectors.families().len();
        Self {
            lens: vec![0; families],
            there: vec![0; families.div_ceil(64)],
            collectors,
            style,
            series: 0,
            bytes: 0,
            labels: 0,
            scratch: Vec::new(),
        }
    }

    /// Takes all lines away.
    pub fn clear(&mut self) {
        self.lens.fill(0);
        self.there.fill(0);
        (self.series, self.bytes) = (0, 0);
    }

    /// Puts the labels of a device into all lines, those that come later too.
    pub fn label(&mut self, hostname: Option<&str>, identity: &Identity, attributes: Option<&Attributes>) {
        self.scratch.clear();
        render::labels(&self.collectors, self.style, hostname, identity, attributes, &mut self.scratch);
        self.labels = self.scratch.len() as u64;
    }

    /// Sets the number of the line of family number `family` of the collectors; of one that they do not have, nothing.
    pub fn set(&mut self, family: usize, value: Value) {
        let (Some(len), Some(of)) = (self.lens.get_mut(family), self.collectors.families().get(family)) else { return };
        let mut printed = |print: &dyn Fn(&mut Vec<u8>)| {
            self.scratch.clear();
            print(&mut self.scratch);
            self.scratch.len()
        };
        let digits = match value {
            Value::Int(value) => number::integer_len(value),
            Value::Float(value) => {
                number::six_decimals_len(value).unwrap_or_else(|| printed(&|out| number::six_decimals(value, out)))
            }
        };
        let own = if of.field == XID_ERRORS { printed(&|out| xid_labels(value, out)) } else { 0 };
        // `} ` before the number, a line feed after it.
        let new = (of.name.len() + own + digits + 3) as u32;
        if *len == 0 {
            self.series += 1;
            self.there[family / 64] |= 1 << (family % 64);
        }
        self.bytes = self.bytes + u64::from(new) - u64::from(*len);
        *len = new;
    }
}

/// What a line of XID_ERRORS has beside the labels of all lines; it stands among these.
fn xid_labels(value: Value, out: &mut Vec<u8>) {
    let code = xid::code(value);
    render::label("err_code", &code.to_string(), out);
    render::label("err_msg", xid::message(code), out);
}
