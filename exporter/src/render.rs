//! A page of readings to text.

use std::sync::Arc;

use schemas::catalogue::id::XID_ERRORS;

use crate::{
    collectors::{Collectors, Family, counted},
    number,
    source::{Attributes, Device, Extra, Identity, Page, Value},
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
    /// Label names of the exporter that was before dcgm-exporter: `uuid`, `container_name`, `pod_namespace`, `pod_name`.
    pub old_namespace: bool,
    /// Blanks in the product's name are dashes.
    pub dashes_in_model: bool,
}

/// The form of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4.
    #[default]
    Text,
    /// OpenMetrics 1.0.0, without the `# EOF` with which a whole page ends.
    OpenMetrics,
}

/// Prints pages. Its memory is reused from page to page.
#[derive(Debug)]
pub struct Renderer {
    collectors: Arc<Collectors>,
    style: Style,
    /// Label blocks of all devices, one after the other.
    blocks: Vec<u8>,
    /// For each device: where its block begins, its other labels, its attributes, and where it ends.
    spans: Vec<[usize; 4]>,
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
        self.render_as(page, Format::Text, out);
    }

    /// The same in either form.
    pub fn render_as(&mut self, page: &Page, format: Format, out: &mut Vec<u8>) {
        self.label_blocks(page);
        self.next.clear();
        self.next.resize(page.devices().len(), 0);
        let collectors = self.collectors.clone();
        for family in collectors.families() {
            if counted::is(family.field) {
                self.counted(page, family, format, out);
                continue;
            }
            let mut begun = false;
            for (at, device) in page.devices().iter().enumerate() {
                let readings = device.readings.as_slice();
                let next = &mut self.next[at];
                while readings.get(*next).is_some_and(|(field, _)| *field < family.field) {
                    *next += 1;
                }
                let Some(&(_, value)) = readings.get(*next).filter(|(field, _)| *field == family.field) else { continue };
                if !begun {
                    out.extend_from_slice(head(family, format).as_bytes());
                    begun = true;
                }
                out.extend_from_slice(family.name.as_bytes());
                let [begin, _, attributes, end] = self.spans[at];
                if family.field == XID_ERRORS {
                    out.extend_from_slice(&self.blocks[begin..attributes]);
                    xid_attributes(device, value, self.style, out);
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

    /// A family that is counted by the exporter: its lines have labels of their own, which stand among the device's other labels.
    fn counted(&mut self, page: &Page, family: &Family, format: Format, out: &mut Vec<u8>) {
        let mut begun = false;
        for (at, device) in page.devices().iter().enumerate() {
            for extra in device.extras.iter().filter(|extra| extra.family == family.field) {
                if !begun {
                    out.extend_from_slice(head(family, format).as_bytes());
                    begun = true;
                }
                out.extend_from_slice(family.name.as_bytes());
                let [begin, other, attributes, end] = self.spans[at];
                out.extend_from_slice(&self.blocks[begin..other]);
                others(&self.collectors, &device.identity, device.attributes.as_deref(), Some(extra), out);
                out.extend_from_slice(&self.blocks[attributes..end]);
                out.extend_from_slice(b"} ");
                number::integer(extra.value, out);
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
            let [other, attributes] = labels(collectors, *style, page.hostname(), identity, attributes.as_deref(), blocks);
            spans.push([begin, other, attributes, blocks.len()]);
        }
    }
}

fn head(family: &Family, format: Format) -> &str {
    match format {
        Format::Text => &family.head,
        Format::OpenMetrics => &family.open_head,
    }
}

/// A device's labels up to the closing brace; comes back with where in `out` its other labels and its attributes begin.
pub(crate) fn labels(
    collectors: &Collectors,
    style: Style,
    hostname: Option<&str>,
    identity: &Identity,
    attributes: Option<&Attributes>,
    out: &mut Vec<u8>,
) -> [usize; 2] {
    let hostname = hostname.and_then(|name| match style.hostname {
        HostnameLabel::Lower => Some(("hostname", name)),
        HostnameLabel::Classic => Some(("Hostname", name)),
        HostnameLabel::Absent => None,
    });
    out.extend_from_slice(b"{gpu=\"");
    number::integer(identity.gpu.into(), out);
    out.push(b'"');
    label(if style.old_namespace { "uuid" } else { "UUID" }, &identity.uuid, out);
    label("pci_bus_id", &identity.pci_bus_id, out);
    out.extend_from_slice(b",device=\"nvidia");
    number::integer(identity.gpu.into(), out);
    out.push(b'"');
    if style.dashes_in_model {
        label("modelName", &identity.model.replace(' ', "-"), out);
    } else {
        label("modelName", &identity.model, out);
    }
    if let Some(instance) = &identity.instance {
        label("GPU_I_PROFILE", &instance.profile, out);
        out.extend_from_slice(b",GPU_I_ID=\"");
        number::integer(instance.id.into(), out);
        out.push(b'"');
    }
    if let Some((name, value)) = hostname {
        label(name, value, out);
    }
    let other = out.len();
    others(collectors, identity, attributes, None, out);
    let begin = out.len();
    for (name, value) in attributes.iter().flat_map(|attributes| attributes.iter()) {
        label(if style.old_namespace { old_name(name) } else { name }, value, out);
    }
    [other, begin]
}

/// Labels that a collectors file asks for, those of the pod, and those of a counted line: together in byte order of their names.
fn others(
    collectors: &Collectors,
    identity: &Identity,
    attributes: Option<&Attributes>,
    extra: Option<&Extra>,
    out: &mut Vec<u8>,
) {
    let text = |field: &u16| identity.texts.iter().find(|(id, _)| id == field).map(|(_, text)| text.as_str());
    let of_file = collectors.labels().iter().filter_map(|(name, field)| Some((name.as_str(), text(field)?)));
    let mut of_pod = attributes.iter().flat_map(|attributes| attributes.pod_labels()).peekable();
    if extra.is_none() && of_pod.peek().is_none() {
        // Nearly always, and in order.
        of_file.for_each(|(name, value)| label(name, value, out));
        return;
    }
    let of_line = extra.iter().flat_map(|extra| &extra.labels).map(|(name, value)| (*name, value.as_str()));
    let mut all: Vec<(&str, &str)> = of_file.chain(of_pod).chain(of_line).collect();
    all.sort_unstable();
    all.iter().for_each(|(name, value)| label(name, value, out));
}

/// What a label was called before dcgm-exporter.
fn old_name(name: &str) -> &str {
    match name {
        "container" => "container_name",
        "namespace" => "pod_namespace",
        "pod" => "pod_name",
        name => name,
    }
}

/// A device's attributes with the two of XID_ERRORS among them, in order of their names.
fn xid_attributes(device: &Device, value: Value, style: Style, out: &mut Vec<u8>) {
    let code = xid::code(value);
    let own = [("err_code", code.to_string()), ("err_msg", xid::message(code).to_owned())];
    let mut own = own.iter().map(|(name, value)| (*name, value.as_str())).peekable();
    for (name, text) in device.attributes.iter().flat_map(|attributes| attributes.iter()) {
        while let Some((own_name, own_text)) = own.next_if(|(own_name, _)| *own_name < name) {
            label(own_name, own_text, out);
        }
        label(if style.old_namespace { old_name(name) } else { name }, text, out);
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
