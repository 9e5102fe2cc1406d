//! `kubernetes:` of the agent's file.

use super::Discovery;
use super::source::Options;
use crate::config::{ConfigError, Span, positive};
use crate::discovery::Defaults;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// Its keys.
pub(crate) const KEYS: &[&str] =
    &["kubeconfig", "exporters", "namespace", "labels", "node", "port_name", "port", "podres_socket", "refresh_interval"];

/// As it stands there. Every key may be left out.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Entry {
    kubeconfig: Option<PathBuf>,
    exporters: Option<bool>,
    namespace: Option<String>,
    labels: Option<String>,
    node: Option<String>,
    port_name: Option<String>,
    port: Option<u16>,
    podres_socket: Option<PathBuf>,
    refresh_interval: Option<Span>,
}

impl Entry {
    /// The checked form. `node` and `podres_socket` are the command line's, which go over the file; `timeout` is that of the kubelet.
    pub(crate) fn checked(
        self,
        node: Option<String>,
        podres_socket: Option<PathBuf>,
        defaults: Defaults,
        timeout: Duration,
    ) -> Result<Options, ConfigError> {
        let bad = |reason: &str| ConfigError::Bad { key: "kubernetes", reason: reason.to_owned() };
        let default = Discovery::default();
        let (node, podres_socket) = (node.or(self.node), podres_socket.or(self.podres_socket));
        if podres_socket.is_some() && node.is_none() {
            return Err(bad(
                "a `podres_socket` is one node's; give that node too: `node:`, --node or STRANDLINE_NODE (in a DaemonSet: \
                 fieldRef spec.nodeName)",
            ));
        }
        for (name, value) in [("namespace", &self.namespace), ("node", &node)] {
            let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
            if value.as_ref().is_some_and(|value| value.is_empty() || value.len() > 253 || !value.bytes().all(fits)) {
                return Err(bad(&format!("`{name}` is no name of an object in Kubernetes")));
            }
        }
        let refresh_ms = self.refresh_interval.map_or(30_000, Span::ms);
        positive("kubernetes", refresh_ms)?;
        if refresh_ms > 120_000 {
            return Err(bad("`refresh_interval` is at most 2m: the clocks are compared by what is answered in ten minutes"));
        }
        let exporters = Discovery {
            labels: self.labels.unwrap_or(default.labels),
            namespace: self.namespace,
            node,
            port_name: self.port_name.unwrap_or(default.port_name),
            port: self.port.unwrap_or(default.port),
            scheme: defaults.scheme.clone(),
            path: defaults.metrics_path.clone(),
        };
        Ok(Options {
            kubeconfig: self.kubeconfig,
            exporters: self.exporters.unwrap_or(true).then_some(exporters),
            podres_socket,
            defaults,
            refresh: Duration::from_millis(refresh_ms.unsigned_abs()),
            timeout,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::config::{AgentArgs, AgentConfig};

    fn load(text: &str, node: Option<&str>) -> Result<AgentConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.yaml");
        std::fs::write(&path, text).unwrap();
        let args = AgentArgs { config: Some(path.clone()), node: node.map(str::to_owned), ..AgentArgs::default() };
        AgentConfig::load(args).map_err(|e| e.to_string().replace(&path.display().to_string(), "FILE"))
    }

    #[test]
    fn the_example_finds_its_own_nodes_exporters() {
        let text = include_str!("../../../docs/examples/agent-node.yaml");
        let how = load(text, Some("dune-1")).unwrap().kubernetes.unwrap();
        let exporters = how.exporters.unwrap();
        assert_eq!((exporters.node.as_deref(), exporters.namespace.as_deref()), (Some("dune-1"), Some("gpu-operator")));
        assert_eq!((exporters.labels.as_str(), exporters.port), ("app=nvidia-dcgm-exporter", 9400));
        assert_eq!((how.refresh.as_secs(), how.timeout.as_secs()), (30, 10));
        assert!(load(text, None).unwrap_err().contains("fieldRef spec.nodeName"), "a socket without its node");
    }

    #[test]
    fn mistakes_are_named_with_the_way_out() {
        let error = |keys: &str| load(&format!("cluster: reef\nlog_dir: /log\nkubernetes: {keys}\n"), None).unwrap_err();
        assert_eq!(error("{lables: a}"), "FILE: unknown key `lables`; did you mean `labels`?");
        assert!(error("true").contains("`kubernetes` has keys of its own"));
        assert!(error("{refresh_interval: 5m}").contains("at most 2m"));
        assert!(error("{namespace: a/b}").contains("no name of an object"));
        assert!(error("{exporters: false}").starts_with("nothing to scrape"));
        assert!(load("cluster: reef\nlog_dir: /log\nkubernetes: {}\n", None).is_ok());
    }
}
