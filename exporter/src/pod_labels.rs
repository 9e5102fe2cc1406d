//! Labels of a pod as labels of a line: allowed ones, under names that are valid and stand once.

use std::collections::{BTreeMap, BTreeSet};

use regex_lite::Regex;
use web::metrics::Counter;

/// Most labels of a pod, and longest value, bytes.
pub const MOST: usize = 64;
/// See [`MOST`]; Kubernetes' own limit of a value is 63.
pub const MAX_VALUE: usize = 1024;
/// Longest key that is looked at, bytes; Kubernetes' own limit is 317.
const MAX_KEY: usize = 512;
/// Before names that would stand twice, or are no names.
const PREFIX: &str = "label_";

/// Names that lines have already.
const TAKEN: &[&str] = &[
    "GPU_I_ID",
    "GPU_I_PROFILE",
    "Hostname",
    "UUID",
    "clock_event",
    "container",
    "container_name",
    "device",
    "err_code",
    "err_msg",
    "gpu",
    "hostname",
    "hpc_job",
    "modelName",
    "namespace",
    "pci_bus_id",
    "pod",
    "pod_name",
    "pod_namespace",
    "pod_uid",
    "uuid",
    "vgpu",
    "window_size_in_ms",
    "xid",
];

/// Which labels of pods are printed.
#[derive(Debug)]
pub struct PodLabels {
    allowed: Vec<Regex>,
    taken: BTreeSet<String>,
    refused: Counter,
}

impl PodLabels {
    /// Labels whose keys one of `allowed` matches, all where there is none; `taken` are more names that lines have. `refused` counts
    /// those that are left out or cut, for their size or their number.
    pub fn new(allowed: Vec<Regex>, taken: impl IntoIterator<Item = String>, refused: Counter) -> Self {
        let taken = TAKEN.iter().map(|name| (*name).to_owned()).chain(taken).collect();
        Self { allowed, taken, refused }
    }

    /// Label pairs of a pod's labels: as dcgm-exporter names them, every character outside `[A-Za-z0-9_]` as `_`. A name that would
    /// repeat one of the line's, or is none, is prefixed `label_`; of keys that become one name the later ones are numbered.
    pub fn of(&self, labels: &BTreeMap<String, String>) -> Vec<(String, String)> {
        let mut named: BTreeMap<String, String> = BTreeMap::new();
        for (key, value) in labels {
            if !self.allowed.is_empty() && !self.allowed.iter().any(|allowed| allowed.is_match(key)) {
                continue;
            }
            if named.len() == MOST || key.len() > MAX_KEY {
                self.refused.inc();
                continue;
            }
            let value = if value.len() > MAX_VALUE {
                self.refused.inc();
                &value[..value.floor_char_boundary(MAX_VALUE)]
            } else {
                value
            };
            let name = self.name(key);
            let free = |name: &str| !named.contains_key(name) && !self.taken.contains(name);
            let numbered = (2_u32..).map(|n| format!("{name}_{n}"));
            let name = std::iter::once(name.clone()).chain(numbered).find(|name| free(name)).unwrap_or(name);
            named.insert(name, value.to_owned());
        }
        named.into_iter().collect()
    }

    fn name(&self, key: &str) -> String {
        let plain: String = key.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
        let digit = plain.bytes().next().is_none_or(|first| first.is_ascii_digit());
        if digit || plain.starts_with("__") || self.taken.contains(&plain) { format!("{PREFIX}{plain}") } else { plain }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn counter() -> Counter {
        web::Metrics::new().counter("refused_total", "x", &[])
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn names_are_valid_and_stand_once() {
        let labels = PodLabels::new(Vec::new(), ["DCGM_FI_DRIVER_VERSION".to_owned()], counter());
        let of = labels.of(&map(&[
            ("app.kubernetes.io/name", "a"),
            ("app_kubernetes_io_name", "b"),
            ("gpu", "c"),
            ("pod", "d"),
            ("1st", "e"),
            ("__name__", "f"),
            ("DCGM_FI_DRIVER_VERSION", "g"),
            ("team", "say \"hi\"\n"),
        ]));
        let expected = [
            ("app_kubernetes_io_name", "a"),
            ("app_kubernetes_io_name_2", "b"),
            ("label_1st", "e"),
            ("label_DCGM_FI_DRIVER_VERSION", "g"),
            ("label___name__", "f"),
            ("label_gpu", "c"),
            ("label_pod", "d"),
            ("team", "say \"hi\"\n"),
        ];
        assert_eq!(of, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(labels.refused.get(), 0);
    }

    #[test]
    fn sizes_have_limits_and_what_is_left_out_is_counted() {
        let labels = PodLabels::new(Vec::new(), [], counter());
        let long = "é".repeat(30_000);
        let mut many: BTreeMap<String, String> = (0..100).map(|n| (format!("k{n:03}"), String::new())).collect();
        many.insert("a".into(), long);
        many.insert("x".repeat(600), String::new());
        let of = labels.of(&many);
        assert_eq!((of.len(), of[0].1.len(), labels.refused.get()), (MOST, MAX_VALUE, 1 + 37 + 1));
        let some = PodLabels::new(vec![Regex::new("^team$").unwrap()], [], counter());
        assert_eq!(some.of(&map(&[("team", "a"), ("steam", "b")])), [("team".to_owned(), "a".to_owned())]);
    }

    proptest! {
        #[test]
        fn any_labels_give_valid_unique_names(labels in prop::collection::btree_map("[ -~é\n]{0,12}", ".{0,9}", 0..20)) {
            let of = PodLabels::new(Vec::new(), [], counter()).of(&labels);
            prop_assert_eq!(of.len(), labels.len());
            let names: BTreeSet<&String> = of.iter().map(|(name, _)| name).collect();
            prop_assert_eq!(names.len(), of.len());
            for name in names {
                prop_assert!(!TAKEN.contains(&name.as_str()), "{}", name);
                prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{}", name);
                prop_assert!(!name.as_bytes()[0].is_ascii_digit());
            }
        }
    }
}
