//! Where readings come from: one node's devices at one instant.

use std::{error::Error, sync::Arc};

/// One node's devices.
pub trait Source: Send + Sync {
    /// Reads every device into `page`, which holds nothing of an earlier reading after [`Page::begin`].
    ///
    /// What a device cannot say is left out. A blank is no reading; a source that plays an exporter which prints blanks sets
    /// them as the numbers they are.
    fn read(&self, page: &mut Page) -> Result<(), ReadError>;
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The driver's library failed as a whole, not for one device.
    #[error("the GPU driver does not answer; is it loaded, and may this process open its devices?")]
    Driver(#[source] Box<dyn Error + Send + Sync>),
}

/// What one node's devices read; reused from scrape to scrape.
#[derive(Debug, Default)]
pub struct Page {
    hostname: Option<Arc<str>>,
    devices: Vec<Device>,
    used: usize,
}

/// One device and its readings: a whole GPU, or a MIG instance (then the GPU itself has no entry).
#[derive(Debug)]
pub struct Device {
    /// What it is.
    pub identity: Arc<Identity>,
    /// What is said of its use: pod labels and the like.
    pub attributes: Option<Arc<Attributes>>,
    /// What it reads.
    pub readings: Readings,
    /// Lines of families that are counted and have labels of their own.
    pub extras: Vec<Extra>,
}

/// A line of one of the exporter's own families, `DCGM_EXP_*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extra {
    /// The family, by the number that [`crate::collectors`] gives it.
    pub family: u16,
    /// Its labels.
    pub labels: Vec<(&'static str, String)>,
    /// Its value.
    pub value: i64,
}

impl Extra {
    /// A line; a count beyond what a page can hold is held to that.
    pub fn new<const N: usize>(family: u16, labels: [(&'static str, String); N], value: u64) -> Self {
        Self { family, labels: labels.into(), value: i64::try_from(value).unwrap_or(i64::MAX) }
    }
}

/// What a device is; the same for as long as its exporter runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// DCGM's index on the node.
    pub gpu: u32,
    /// UUID of the GPU.
    pub uuid: String,
    /// PCI address with an 8-digit domain, as `00000000:1B:00.0`.
    pub pci_bus_id: String,
    /// Product.
    pub model: String,
    /// The MIG instance that it is, if it is one.
    pub instance: Option<Instance>,
    /// Values of fields that a collectors file may print as labels, such as the driver version (field 1).
    pub texts: Vec<(u16, String)>,
}

/// A GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// MIG profile, `1g.10gb`.
    pub profile: String,
    /// GPU instance id.
    pub id: u32,
}

/// Labels about a device's use, in byte order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    own: Vec<(String, String)>,
    pod_labels: Vec<(String, String)>,
}

impl Attributes {
    /// Labels by name; the last of a name stands.
    pub fn new(labels: impl IntoIterator<Item = (String, String)>) -> Self {
        let labels: std::collections::BTreeMap<String, String> = labels.into_iter().collect();
        Self { own: labels.into_iter().collect(), pod_labels: Vec::new() }
    }

    /// The labels of a device that a pod's container holds.
    pub fn of_pod(namespace: &str, pod: &str, container: &str) -> Self {
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Self::new([label("container", container), label("namespace", namespace), label("pod", pod)])
    }

    /// The same with labels of the pod, whose names differ from each other and from all other labels of the line.
    pub fn with_pod_labels(mut self, mut labels: Vec<(String, String)>) -> Self {
        labels.sort();
        self.pod_labels = labels;
        self
    }

    /// The labels, in byte order of their names; those of the pod apart.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.own.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The pod's own labels, in byte order of their names.
    pub fn pod_labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pod_labels.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// A reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Printed as digits.
    Int(i64),
    /// Printed with six decimals.
    Float(f64),
}

/// Readings by DCGM field id, ascending.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Readings(Vec<(u16, Value)>);

impl Readings {
    /// Sets a field; ascending ids are the fast way.
    pub fn set(&mut self, field: u16, value: Value) {
        match self.0.last() {
            Some(&(last, _)) if last >= field => match self.0.binary_search_by_key(&field, |&(id, _)| id) {
                Ok(at) => self.0[at].1 = value,
                Err(at) => self.0.insert(at, (field, value)),
            },
            _ => self.0.push((field, value)),
        }
    }

    /// Takes a field away.
    pub fn unset(&mut self, field: u16) {
        self.0.retain(|&(id, _)| id != field);
    }

    /// Takes fields away.
    pub fn unset_all(&mut self, fields: &[u16]) {
        self.0.retain(|(id, _)| !fields.contains(id));
    }

    /// One field's value.
    pub fn get(&self, field: u16) -> Option<Value> {
        self.0.binary_search_by_key(&field, |&(id, _)| id).ok().map(|at| self.0[at].1)
    }

    /// All of them, ascending by field id.
    pub fn as_slice(&self) -> &[(u16, Value)] {
        &self.0
    }
}

impl Page {
    /// An empty page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the last reading; `hostname` is what the node calls itself.
    pub fn begin(&mut self, hostname: Option<Arc<str>>) {
        self.hostname = hostname;
        self.used = 0;
    }

    /// Adds a device, whose readings are then set in what comes back.
    pub fn device(&mut self, identity: &Arc<Identity>, attributes: Option<&Arc<Attributes>>) -> &mut Readings {
        if self.used == self.devices.len() {
            self.devices.push(Device {
                identity: identity.clone(),
                attributes: None,
                readings: Readings::default(),
                extras: Vec::new(),
            });
        }
        let device = &mut self.devices[self.used];
        self.used += 1;
        if !Arc::ptr_eq(&device.identity, identity) {
            device.identity = identity.clone();
        }
        device.attributes = attributes.cloned();
        device.readings.0.clear();
        device.extras.clear();
        &mut device.readings
    }

    /// The device that was added last.
    pub fn last(&mut self) -> Option<&mut Device> {
        self.used.checked_sub(1).and_then(|last| self.devices.get_mut(last))
    }

    /// What the node calls itself.
    pub fn hostname(&self) -> Option<&str> {
        self.hostname.as_deref()
    }

    /// The devices, in the order in which they were added.
    pub fn devices(&self) -> &[Device] {
        &self.devices[..self.used]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_stay_in_order_of_field_id() {
        let mut readings = Readings::default();
        for (field, value) in [(203, 1), (150, 2), (1001, 3), (203, 4)] {
            readings.set(field, Value::Int(value));
        }
        assert_eq!(readings.as_slice(), [(150, Value::Int(2)), (203, Value::Int(4)), (1001, Value::Int(3))]);
        readings.unset(150);
        assert_eq!((readings.get(150), readings.get(203)), (None, Some(Value::Int(4))));
    }

    #[test]
    fn a_page_forgets_what_it_held() {
        let (a, b) = (Arc::new(Identity::default()), Arc::new(Identity { gpu: 1, ..Identity::default() }));
        let mut page = Page::new();
        page.begin(None);
        page.device(&a, Some(&Arc::new(Attributes::of_pod("n", "p", "c")))).set(150, Value::Int(1));
        page.device(&b, None);
        page.begin(None);
        page.device(&b, None);
        let [device] = page.devices() else { panic!("one device: {:?}", page.devices()) };
        assert_eq!((device.identity.gpu, device.attributes.is_none(), device.readings.as_slice().len()), (1, true, 0));
    }
}
