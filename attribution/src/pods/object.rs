//! Kubernetes objects as JSON: the fields that we read, lenient about all others. `null` is absent.

use std::collections::BTreeMap;

use schemas::{Timestamp, ids::MAX_ID_BYTES};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

/// An object that is refused: the rest goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} {who} is refused: {field}: {what}; compare `kubectl get {kind} -o json`, the object is not what the API server writes"
)]
pub struct Refused {
    /// pod, node, namespace or resourceclaim.
    pub kind: &'static str,
    /// Which: namespace/name, or what is known of it.
    pub who: String,
    /// Path of the field at fault.
    pub field: String,
    /// What is wrong with it.
    pub what: String,
}

/// Reads one object; an error names the field by its path.
pub(super) fn read<T: DeserializeOwned + Named>(json: &[u8]) -> Result<T, Refused> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let refused = |field: String, what: String| Refused { kind: T::KIND, who: identity(json).who(), field, what };
    let object: T = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| refused(error.path().to_string(), error.inner().to_string()))?;
    reader.end().map_err(|error| refused(".".into(), error.to_string()))?;
    object.check().map_err(|(field, what)| refused(field.into(), what))?;
    Ok(object)
}

/// As much of who an object is as can be read of it.
pub(super) fn identity(json: &[u8]) -> Identity {
    #[derive(Default, Deserialize)]
    struct Whole {
        #[serde(default)]
        metadata: serde_json::Value,
    }
    let whole: Whole = serde_json::from_slice(json).unwrap_or_default();
    let text = |key: &str| whole.metadata[key].as_str().filter(|text| fits(text)).map(str::to_owned);
    Identity { uid: text("uid"), namespace: text("namespace"), name: text("name") }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Identity {
    pub(super) uid: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
}

impl Identity {
    fn who(&self) -> String {
        match (&self.namespace, &self.name, &self.uid) {
            (Some(namespace), Some(name), _) => format!("{namespace}/{name}"),
            (None, Some(name), _) => name.clone(),
            (_, None, Some(uid)) => format!("with uid {uid}"),
            (_, None, None) => "without a readable name".into(),
        }
    }
}

/// What objects have in common.
pub(super) trait Named {
    const KIND: &'static str;

    /// Field and fault of what a type alone does not say.
    fn check(&self) -> Result<(), (&'static str, String)>;
}

fn fits(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_ID_BYTES && !text.chars().any(char::is_control)
}

fn must(field: &'static str, text: &str) -> Result<(), (&'static str, String)> {
    match fits(text) {
        true => Ok(()),
        false => Err((field, format!("has {} bytes or a control character; 1 to {MAX_ID_BYTES} bytes are read", text.len()))),
    }
}

fn may(field: &'static str, text: &str) -> Result<(), (&'static str, String)> {
    if text.is_empty() { Ok(()) } else { must(field, text) }
}

/// `null` like an absent field.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Declares a struct whose every field may be absent or null.
macro_rules! object {
    ($($(#[$meta:meta])* struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $kind:ty,)* })+) => {
        $($(#[$meta])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub(super) struct $name {
            $($(#[$field_meta])* #[serde(deserialize_with = "or_default")] pub(super) $field: $kind,)*
        })+
    };
}

object! {
    struct Pod { metadata: Metadata, spec: PodSpec, status: PodStatus, }

    struct Metadata {
        name: String,
        namespace: String,
        uid: String,
        resource_version: String,
        creation_timestamp: Option<Timestamp>,
        deletion_timestamp: Option<Timestamp>,
        deletion_grace_period_seconds: Option<i64>,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
        owner_references: Vec<OwnerReference>,
    }

    struct OwnerReference { kind: String, name: String, controller: bool, }

    struct PodSpec {
        node_name: String,
        containers: Vec<Container>,
        init_containers: Vec<Container>,
        overhead: BTreeMap<String, Quantity>,
        node_selector: BTreeMap<String, String>,
        priority_class_name: String,
        resource_claims: Vec<PodClaim>,
    }

    struct PodClaim { name: String, }

    struct Container { name: String, restart_policy: String, resources: Resources, }

    struct Resources { requests: BTreeMap<String, Quantity>, limits: BTreeMap<String, Quantity>, }

    struct PodStatus {
        phase: String,
        conditions: Vec<Condition>,
        container_statuses: Vec<ContainerStatus>,
        init_container_statuses: Vec<ContainerStatus>,
        extended_resource_claim_status: Option<ExtendedResourceClaim>,
    }

    struct ExtendedResourceClaim { resource_claim_name: String, }

    struct Condition {
        #[serde(rename = "type")]
        kind: String,
        status: String,
        last_transition_time: Option<Timestamp>,
    }

    struct ContainerStatus { name: String, state: State, last_state: State, }

    struct State { running: Option<Started>, terminated: Option<Terminated>, }

    struct Started { started_at: Option<Timestamp>, }

    struct Terminated { started_at: Option<Timestamp>, finished_at: Option<Timestamp>, }

    struct Node { metadata: Metadata, spec: NodeSpec, status: NodeStatus, }

    struct NodeSpec {
        unschedulable: bool,
        taints: Vec<Taint>,
        #[serde(rename = "providerID")]
        provider_id: String,
    }

    struct Taint { key: String, time_added: Option<Timestamp>, }

    struct NodeStatus {
        capacity: BTreeMap<String, Quantity>,
        allocatable: BTreeMap<String, Quantity>,
        conditions: Vec<Condition>,
    }

    struct Namespace { metadata: Metadata, }

    struct Claim { metadata: Metadata, status: ClaimStatus, }

    struct ClaimStatus { allocation: Option<Allocation>, reserved_for: Vec<Consumer>, }

    struct Allocation { devices: AllocatedDevices, }

    struct AllocatedDevices { results: Vec<AllocatedDevice>, }

    struct AllocatedDevice { driver: String, admin_access: bool, }

    struct Consumer { resource: String, uid: String, }
}

impl Metadata {
    /// The version of the object, where it is a number that can be compared.
    pub(super) fn version(&self) -> Option<u64> {
        self.resource_version.parse().ok()
    }
}

impl Named for Pod {
    const KIND: &'static str = "pod";

    fn check(&self) -> Result<(), (&'static str, String)> {
        must("metadata.uid", &self.metadata.uid)?;
        must("metadata.name", &self.metadata.name)?;
        must("metadata.namespace", &self.metadata.namespace)?;
        may("spec.nodeName", &self.spec.node_name)
    }
}

impl Named for Node {
    const KIND: &'static str = "node";

    fn check(&self) -> Result<(), (&'static str, String)> {
        must("metadata.name", &self.metadata.name)
    }
}

impl Named for Namespace {
    const KIND: &'static str = "namespace";

    fn check(&self) -> Result<(), (&'static str, String)> {
        must("metadata.name", &self.metadata.name)
    }
}

impl Named for Claim {
    const KIND: &'static str = "resourceclaim";

    fn check(&self) -> Result<(), (&'static str, String)> {
        must("metadata.uid", &self.metadata.uid)?;
        must("metadata.name", &self.metadata.name)?;
        must("metadata.namespace", &self.metadata.namespace)
    }
}

/// A quantity as written: text or a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Quantity(pub(super) String);

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Written;
        impl serde::de::Visitor<'_> for Written {
            type Value = Quantity;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a quantity such as \"2\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
                Ok(Quantity(text.to_owned()))
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }
        }
        from.deserialize_any(Written)
    }
}
