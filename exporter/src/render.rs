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
}

impl Renderer {
    /// A renderer of the families of `collectors`.
    pub fn new(collectors: Arc<Collectors>, style: Style) -> Self {
        Self { collectors, style, blocks: Vec::new(), spans: Vec::new(), next: Vec::new() }
    }

    /// Appends the page's text to `out`: families by field id, each with its devices in the page's order. A family that no
    /// device has a reading of is not there; a reading that no collector asks for is not printed.
    pub fn render(&mut self, page: &Page, out: &mut Vec<u8>) {
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

    /// Each device's labels up to the closing brace; they are the same in all families but XID_ERRORS.
    fn label_blocks(&mut self, page: &Page) {
        self.blocks.clear();
        self.spans.clear();
        let Self { collectors, style, blocks, spans, .. } = self;
        for Device { identity, attributes, .. } in page.devices() {
            let begin = blocks.len();
            let attributes = labels(collectors, *style, page.hostname(), identity, attributes.as_deref(), blocks);
            spans.push([begin, attributes, blocks.len()]);
        }
    }
}

/// A device's labels up to the closing brace; comes back with where in `out` its attributes begin.
pub(crate) fn labels(
    collectors: &Collectors,
    style: Style,
    hostname: Option<&str>,
    identity: &Identity,
    attributes: Option<&Attributes>,
    out: &mut Vec<u8>,
) -> usize {
    let hostname = hostname.and_then(|name| match style.hostname {
        HostnameLabel::Lower => Some(("hostname", name)),
        HostnameLabel::Classic => Some(("Hostname", name)),
        HostnameLabel::Absent => None,
    });
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
    for (name, field) in collectors.labels() {
        if let Some((_, value)) = identity.texts.iter().find(|(id, _)| id == field) {
            label(name, value, out);
        }
    }
    let begin = out.len();
    for (name, value) in attributes.iter().flat_map(|attributes| attributes.iter()) {
        label(name, value, out);
    }
    begin
}

/// A device's attributes with the two of XID_ERRORS among them, in order of their names.
fn xid_attributes(device: &Device, value: Value, out: &mut Vec<u8>) {
    let code = xid::code(value);
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
pub(crate) fn label(name: &str, value: &str, out: &mut Vec<u8>) {
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
