//! Label spellings: what each label of a page means, and the contract on cost labels (DESIGN 3.5).

/// What a label of a GPU series tells us. Labels that we use are fields; anything else is [`Meaning::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Meaning {
    /// `gpu`: DCGM's index on the node.
    GpuIndex,
    /// `UUID`, `uuid`, `gpu_uuid`: the device identity.
    Uuid,
    /// `pci_bus_id`.
    PciBusId,
    /// `device`: `nvidia0`.
    DeviceName,
    /// `modelName`, `model_name`: the product.
    Product,
    /// `GPU_I_PROFILE`: MIG profile.
    Profile,
    /// `GPU_I_ID`: GPU instance id.
    InstanceId,
    /// `Hostname`, `hostname`.
    Hostname,
    /// `DCGM_FI_DRIVER_VERSION` and its alias.
    DriverVersion,
    /// `namespace`, `pod_namespace`.
    Namespace,
    /// `exported_namespace`: what the exporter said, renamed by a Prometheus between us and it; goes before `namespace`.
    ExportedNamespace,
    /// `pod`, `pod_name`.
    Pod,
    /// `exported_pod`.
    ExportedPod,
    /// `container`, `container_name`.
    Container,
    /// `exported_container`.
    ExportedContainer,
    /// `pod_uid`.
    PodUid,
    /// `vgpu`: copy number of a shared device.
    Vgpu,
    /// `err_code`: same number as the value of XID_ERRORS.
    ErrCode,
    /// `err_msg`: text of the XID.
    ErrMsg,
    /// One of the cost labels of the contract.
    Cost(CostLabel),
    /// None of these.
    Other,
}

/// The cost labels, the only ones that decide who pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CostLabel {
    /// `team` or `tenant`.
    Team,
    /// `queue`.
    Queue,
    /// `sku`.
    Sku,
    /// `cell`.
    Cell,
    /// `purchase_option`.
    PurchaseOption,
}

impl CostLabel {
    /// Every cost label.
    pub const ALL: &'static [Self] = &[Self::Team, Self::Queue, Self::Sku, Self::Cell, Self::PurchaseOption];

    /// Its column.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Team => "team",
            Self::Queue => "queue",
            Self::Sku => "sku",
            Self::Cell => "cell",
            Self::PurchaseOption => "purchase_option",
        }
    }
}

/// What label `name` of a GPU series means.
pub fn meaning(name: &str) -> Meaning {
    match name {
        "gpu" => Meaning::GpuIndex,
        "UUID" | "uuid" | "gpu_uuid" => Meaning::Uuid,
        "pci_bus_id" => Meaning::PciBusId,
        "device" => Meaning::DeviceName,
        "modelName" | "model_name" => Meaning::Product,
        "GPU_I_PROFILE" => Meaning::Profile,
        "GPU_I_ID" => Meaning::InstanceId,
        "Hostname" | "hostname" => Meaning::Hostname,
        "DCGM_FI_DRIVER_VERSION" | "DCGM_FI_SYSTEM_DRIVER_VERSION" => Meaning::DriverVersion,
        "namespace" | "pod_namespace" => Meaning::Namespace,
        "exported_namespace" => Meaning::ExportedNamespace,
        "pod" | "pod_name" => Meaning::Pod,
        "exported_pod" => Meaning::ExportedPod,
        "container" | "container_name" => Meaning::Container,
        "exported_container" => Meaning::ExportedContainer,
        "pod_uid" => Meaning::PodUid,
        "vgpu" => Meaning::Vgpu,
        "err_code" => Meaning::ErrCode,
        "err_msg" => Meaning::ErrMsg,
        "team" | "tenant" => Meaning::Cost(CostLabel::Team),
        "queue" => Meaning::Cost(CostLabel::Queue),
        "sku" => Meaning::Cost(CostLabel::Sku),
        "cell" => Meaning::Cost(CostLabel::Cell),
        "purchase_option" => Meaning::Cost(CostLabel::PurchaseOption),
        _ => Meaning::Other,
    }
}

/// Label keys that can carry people or prompts; series keep their other labels, these are dropped and counted.
pub const REFUSED: &[&str] = &["prompt", "user_email", "session_raw"];

/// The contract on label keys: the built-in refusals and an operator's own patterns.
#[derive(Clone, Debug, Default)]
pub struct Contract {
    patterns: Vec<String>,
}

impl Contract {
    /// A contract that refuses, beside [`REFUSED`], every key that matches one of `patterns`: a key, or a part of one with
    /// `*` at either end (`*email*`, `session_*`). Compared without regard to ASCII case.
    pub fn new(patterns: impl IntoIterator<Item = String>) -> Self {
        Self { patterns: patterns.into_iter().map(|p| p.to_ascii_lowercase()).collect() }
    }

    /// Whether label `key` may not enter the lake.
    pub fn refuses(&self, key: &str) -> bool {
        let key = key.to_ascii_lowercase();
        REFUSED.contains(&key.as_str()) || self.patterns.iter().any(|pattern| matches(pattern, &key))
    }
}

fn matches(pattern: &str, key: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(_), Some(_)) if pattern.len() > 1 => key.contains(&pattern[1..pattern.len() - 1]),
        (Some(rest), None) => key.ends_with(rest),
        (None, Some(rest)) => key.starts_with(rest),
        (Some(_), Some(_)) => true, // a lone `*`
        (None, None) => pattern == key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_every_age_mean_the_same() {
        assert_eq!(meaning("Hostname"), meaning("hostname"));
        assert_eq!(meaning("UUID"), meaning("uuid"));
        assert_eq!(meaning("pod_name"), meaning("pod"));
        assert_ne!(meaning("exported_pod"), meaning("pod"));
        assert_eq!(meaning("tenant"), Meaning::Cost(CostLabel::Team));
        assert_eq!(meaning("app"), Meaning::Other);
    }

    #[test]
    fn the_contract_refuses_people_and_prompts() {
        let contract = Contract::new(["*email*".into(), "session_*".into(), "ssn".into()]);
        for key in ["prompt", "User_Email", "work_EMAIL_2", "session_id", "ssn"] {
            assert!(contract.refuses(key), "{key}");
        }
        for key in ["team", "my_ssn", "a_session_", "prompt_tokens"] {
            assert!(!contract.refuses(key), "{key}");
        }
    }
}
