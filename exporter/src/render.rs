//! A page of readings to text.

use std::sync::Arc;

use schemas::catalogue::id::XID_ERRORS;

use crate::{
    collectors::Collectors,
    number,
    source::{Attributes, Device, Identity, Page, Value},
    xid,
};

/// How the label with the node's own name is spelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostnameLabel {
    /// `hostname`: releases since mid-2026.
    #[default]
    Lower,
    /// `Hostname`: all earlier ones.
    Classic,
    /// Not printed.
    Absent,
}

/// What differs between the ages and switches of dcgm-exporter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Spelling of the host name's label.
    pub hostname: HostnameLabel,
}

/// How large a page's text is, measured device by device with [`Renderer::measure`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes.
    pub bytes: u64,
    /// Lines that are samples.
    pub series: u64,
    /// For each family: whether its head is counted.
    begun: Vec<bool>,
}

impl Size {
    /// Nothing measured yet; memory is kept.
    pub fn clear(&mut self) {
        (self.bytes, self.series) = (0, 0);
        self.begun.clear();
    }
}

/// Host name, identity and attributes: what labels are made of.
type Measured = (Option<Arc<str>>, Arc<Identity>, Option<Arc<Attributes>>);

/// Prints pages. Its memory is reused from page to page.
#[derive(Debug)]
pub struct Renderer {
    collectors: Arc<Collectors>,
    style: Style,
    /// Label blocks of all devices, one after the other.
    blocks: Vec<u8>,
    /// For each device: where its block begins, where its attributes begin, where it ends.
    spans: Vec<[usize; 3]>,
    /// For each device: its next reading.
    next: Vec<usize>,
    scratch: Vec<u8>,
    /// The one device that `blocks` is of, where it was measured last.
    measured: Option<Measured>,
}

impl Renderer {
    /// A renderer of the families of `collectors`.
    pub fn new(collectors: Arc<Collectors>, style: Style) -> Self {
        Self { collectors, style, blocks: Vec::new(), spans: Vec::new(), next: Vec::new(), scratch: Vec::new(), measured: None }
    }

    /// Appends the page's text to `out`: families by field id, each with its devices in the page's order. A family that no
    /// device has a reading of is not there; a reading that no collector asks for is not printed.
    pub fn render(&mut self, page: &Page, out: &mut Vec<u8>) {
        self.measured = None;
        self.label_blocks(page);
        self.next.clear();
        self.next.resize(page.devices().len(), 0);
        for family in self.collectors.families() {
            let mut begun = false;
            for (at, device) in page.devices().iter().enumerate() {
                let readings = device.readings.as_slice();
                let next = &mut self.next[at];
                while readings.get(*next).is_some_and(|(field, _)| *field < family.field) {
                    *next += 1;
                }
                let Some(&(_, value)) = readings.get(*next).filter(|(field, _)| *field == family.field) else { continue };
                if !begun {
                    out.extend_from_slice(family.head.as_bytes());
                    begun = true;
                }
                out.extend_from_slice(family.name.as_bytes());
                let [begin, attributes, end] = self.spans[at];
                if family.field == XID_ERRORS {
                    out.extend_from_slice(&self.blocks[begin..attributes]);
                    xid_attributes(device, value, out);
                } else {
                    out.extend_from_slice(&self.blocks[begin..end]);
                }
                out.extend_from_slice(b"} ");
                match value {
                    Value::Int(value) => number::integer(value, out),
                    Value::Float(value) => number::six_decimals(value, out),
                }
                out.push(b'\n');
            }
        }
    }

    /// Adds to `size` what the devices of `page` add to a page's text, without printing it. The size of a page is that of its
    /// devices together, however they are shared out over calls.
    pub fn measure(&mut self, page: &Page, size: &mut Size) {
        // One device measured time after time has the same labels.
        let same = |device: &Device| {
            let (hostname, identity, attributes) = self.measured.as_ref()?;
            let alike = match (attributes, &device.attributes) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (None, None) => true,
                _ => false,
            };
            Some(alike && Arc::ptr_eq(identity, &device.identity) && hostname.as_deref() == page.hostname())
        };
        let known = matches!(page.devices(), [only] if same(only) == Some(true));
        if !known {
            self.label_blocks(page);
            self.measured = match page.devices() {
                [only] => Some((page.hostname().map(Into::into), only.identity.clone(), only.attributes.clone())),
                _ => None,
            };
        }
        size.begun.resize(self.collectors.families().len(), false);
        for (at, device) in page.devices().iter().enumerate() {
            let [begin, attributes, end] = self.spans[at];
            let mut readings = device.readings.as_slice().iter().peekable();
            for (family, begun) in self.collectors.families().iter().zip(&mut size.begun) {
                while readings.next_if(|(field, _)| *field < family.field).is_some() {}
                let Some((_, value)) = readings.next_if(|(field, _)| *field == family.field) else { continue };
                if !std::mem::replace(begun, true) {
                    size.bytes += family.head.len() as u64;
                }
                let block = if family.field == XID_ERRORS {
                    self.scratch.clear();
                    xid_attributes(device, *value, &mut self.scratch);
                    attributes - begin + self.scratch.len()
                } else {
                    end - begin
                };
                let digits = match value {
                    Value::Int(value) => number::integer_len(*value),
                    Value::Float(value) => number::six_decimals_len(*value).unwrap_or_else(|| {
                        self.scratch.clear();
                        number::six_decimals(*value, &mut self.scratch);
                        self.scratch.len()
                    }),
                };
                // `} ` before the number, a line feed after it.
                size.bytes += (family.name.len() + block + digits + 3) as u64;
                size.series += 1;
            }
        }
    }

    /// Each device's labels up to the closing brace; they are the same in all families but XID_ERRORS.
    fn label_blocks(&mut self, page: &Page) {
        self.blocks.clear();
        self.spans.clear();
        let hostname = page.hostname().and_then(|name| match self.style.hostname {
            HostnameLabel::Lower => Some(("hostname", name)),
            HostnameLabel::Classic => Some(("Hostname", name)),
            HostnameLabel::Absent => None,
        });
        let out = &mut self.blocks;
        for device in page.devices() {
            let identity = &device.identity;
            let begin = out.len();
            out.extend_from_slice(b"{gpu=\"");
            number::integer(identity.gpu.into(), out);
            out.push(b'"');
            label("UUID", &identity.uuid, out);
            label("pci_bus_id", &identity.pci_bus_id, out);
            out.extend_from_slice(b",device=\"nvidia");
            number::integer(identity.gpu.into(), out);
            out.push(b'"');
            label("modelName", &identity.model, out);
            if let Some(instance) = &identity.instance {
                label("GPU_I_PROFILE", &instance.profile, out);
                out.extend_from_slice(b",GPU_I_ID=\"");
                number::integer(instance.id.into(), out);
                out.push(b'"');
            }
            if let Some((name, value)) = hostname {
                label(name, value, out);
            }
            for (name, field) in self.collectors.labels() {
                if let Some((_, value)) = identity.texts.iter().find(|(id, _)| id == field) {
                    label(name, value, out);
                }
            }
            let attributes = out.len();
            for (name, value) in device.attributes.iter().flat_map(|attributes| attributes.iter()) {
                label(name, value, out);
            }
            self.spans.push([begin, attributes, out.len()]);
        }
    }
}

/// A device's attributes with the two of XID_ERRORS among them, in order of their names.
fn xid_attributes(device: &Device, value: Value, out: &mut Vec<u8>) {
    let code = match value {
        Value::Int(code) => code,
        Value::Float(code) => code as i64,
    };
    let own = [("err_code", code.to_string()), ("err_msg", xid::message(code).to_owned())];
    let mut own = own.iter().map(|(name, value)| (*name, value.as_str())).peekable();
    for (name, text) in device.attributes.iter().flat_map(|attributes| attributes.iter()) {
        while let Some((own_name, own_text)) = own.next_if(|(own_name, _)| *own_name < name) {
            label(own_name, own_text, out);
        }
        label(name, text, out);
    }
    own.for_each(|(name, text)| label(name, text, out));
}

/// `,name="value"` with the value escaped.
fn label(name: &str, value: &str, out: &mut Vec<u8>) {
    out.push(b',');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"=\"");
    for &byte in value.as_bytes() {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'"' => out.extend_from_slice(b"\\\""),
            b'\n' => out.extend_from_slice(b"\\n"),
            byte => out.push(byte),
        }
    }
    out.push(b'"');
}
