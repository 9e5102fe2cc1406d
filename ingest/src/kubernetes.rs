//! Targets by Kubernetes: the exporters' pods, of one node or of the whole cluster.
//!
//! A pod is a target while it runs, has an address and is not on its way out. Its port is what the annotation
//! `prometheus.io/port` says, else its container port of the configured name, else the configured number; path and scheme may be
//! annotated too. A pod annotated `prometheus.io/scrape: "false"` is none.

pub(crate) mod config;
pub mod source;

use attribution::watch::{Api, ApiError, list_pods};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Which pods are exporters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    /// Label selector. Default `app.kubernetes.io/name in (strandline-exporter, dcgm-exporter)`; older charts and the GPU operator
    /// say `app=nvidia-dcgm-exporter`.
    pub labels: String,
    /// Their namespace; none: all.
    pub namespace: Option<String>,
    /// Only pods of this node; none: of the whole cluster.
    pub node: Option<String>,
    /// Name of the container port. Default `metrics`.
    pub port_name: String,
    /// Port where a pod names none. Default 9400.
    pub port: u16,
    /// Scheme and path where a pod names none. Default `http`, `/metrics`.
    pub scheme: String,
    /// See `scheme`.
    pub path: String,
}

impl Default for Discovery {
    fn default() -> Self {
        Discovery {
            labels: "app.kubernetes.io/name in (strandline-exporter, dcgm-exporter)".to_owned(),
            namespace: None,
            node: None,
            port_name: "metrics".to_owned(),
            port: 9400,
            scheme: "http".to_owned(),
            path: "/metrics".to_owned(),
        }
    }
}

/// An exporter that was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// Its node.
    pub node: String,
    /// Its page.
    pub url: String,
    /// Its pod, as namespace/name.
    pub pod: String,
}

/// What came of looking.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Targets {
    /// Exporters, sorted, each node and page once.
    pub found: Vec<Found>,
    /// Pods that were selected and cannot be scraped, and why; one that is only starting or ending is not among them.
    pub refused: Vec<(String, String)>,
}

/// Asks the API server for the exporters that there are now.
pub async fn targets(api: &Api, how: &Discovery) -> Result<Targets, ApiError> {
    let fields = how.node.as_ref().map(|node| format!("spec.nodeName={node}")).unwrap_or_default();
    let pods = list_pods(api, how.namespace.as_deref(), &how.labels, &fields).await?;
    Ok(of_pods(pods.iter().map(Vec::as_slice), how))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pod {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    namespace: String,
    annotations: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<String>,
    containers: Option<Vec<Container>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    ports: Option<Vec<Port>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    name: Option<String>,
    container_port: u16,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
}

/// The exporters among these pods. Pure.
pub fn of_pods<'a>(pods: impl IntoIterator<Item = &'a [u8]>, how: &Discovery) -> Targets {
    let mut targets = Targets::default();
    for json in pods {
        let pod: Pod = match serde_json::from_slice(json) {
            Ok(pod) => pod,
            Err(error) => {
                targets.refused.push(("a pod".to_owned(), error.to_string()));
                continue;
            }
        };
        let name = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
        match of_pod(&pod, how) {
            Ok(Some((node, url))) => targets.found.push(Found { node, url, pod: name }),
            Ok(None) => {}
            Err(why) => targets.refused.push((name, why)),
        }
    }
    targets.found.sort();
    targets.found.dedup_by(|b, a| (&a.node, &a.url) == (&b.node, &b.url));
    targets
}

/// Node and page of a pod; none where it is not one to scrape now.
fn of_pod(pod: &Pod, how: &Discovery) -> Result<Option<(String, String)>, String> {
    let none = BTreeMap::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&none);
    let said = |key: &str| annotations.get(&format!("prometheus.io/{key}")).map(String::as_str);
    let (Some(node), Some(ip)) = (&pod.spec.node_name, &pod.status.pod_ip) else { return Ok(None) };
    let runs = pod.status.phase.as_deref() == Some("Running") && pod.metadata.deletion_timestamp.is_none();
    if !runs || said("scrape") == Some("false") {
        return Ok(None);
    }
    let ip: IpAddr = ip.parse().map_err(|_| format!("its podIP `{ip:.60}` is no address"))?;
    let ports = pod.spec.containers.iter().flatten().flat_map(|container| container.ports.iter().flatten());
    let named = ports.filter(|port| port.name.as_deref() == Some(&how.port_name)).map(|port| port.container_port).next();
    let port = match said("port") {
        Some(text) => text.parse().map_err(|_| format!("its annotation prometheus.io/port is `{text:.60}`; give a number"))?,
        None => named.unwrap_or(how.port),
    };
    let scheme = match said("scheme").unwrap_or(&how.scheme) {
        scheme @ ("http" | "https") => scheme,
        other => return Err(format!("its annotation prometheus.io/scheme is `{other:.60}`; give http or https")),
    };
    let path = said("path").unwrap_or(&how.path);
    let fits = |b: u8| b.is_ascii_graphic() && !b"#\"<>\\^`{|}".contains(&b);
    if !path.starts_with('/') || !path.bytes().all(fits) {
        return Err(format!("its annotation prometheus.io/path is `{path:.60}`; give a path that begins with /"));
    }
    let host = match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    Ok(Some((node.clone(), format!("{scheme}://{host}:{port}{path}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, annotations: &str, ports: &str, more: &str, status: &str) -> String {
        format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"gpu","annotations":{{{annotations}}}{more}}},
            "spec":{{"nodeName":"n1","containers":[{{"ports":[{ports}]}}]}},"status":{{{status}}}}}"#
        )
    }

    fn check(pods: &[String], expected: &[(&str, &str)], refused: &[&str]) {
        let targets = of_pods(pods.iter().map(String::as_bytes), &Discovery::default());
        let found: Vec<_> = targets.found.iter().map(|f| (f.node.as_str(), f.url.as_str())).collect();
        assert_eq!(found, expected);
        assert_eq!(targets.refused.len(), refused.len(), "{:?}", targets.refused);
        for ((_, why), expected) in targets.refused.iter().zip(refused) {
            assert!(why.contains(expected), "{why}");
        }
    }

    const RUNS: &str = r#""phase":"Running","podIP":"10.0.0.7""#;

    #[test]
    fn a_port_is_annotated_or_named_or_the_default() {
        check(&[pod("a", "", "", "", RUNS)], &[("n1", "http://10.0.0.7:9400/metrics")], &[]);
        let named = r#"{"name":"health","containerPort":1},{"name":"metrics","containerPort":9500}"#;
        check(&[pod("a", "", named, "", RUNS)], &[("n1", "http://10.0.0.7:9500/metrics")], &[]);
        let annotated = r#""prometheus.io/port":"9600","prometheus.io/path":"/gpu","prometheus.io/scheme":"https""#;
        check(&[pod("a", annotated, named, "", RUNS)], &[("n1", "https://10.0.0.7:9600/gpu")], &[]);
        let six = r#""phase":"Running","podIP":"fd00::7""#;
        check(&[pod("a", "", "", "", six)], &[("n1", "http://[fd00::7]:9400/metrics")], &[]);
    }

    #[test]
    fn a_pod_that_does_not_run_is_no_target_and_one_that_is_wrong_says_why() {
        let pods = [
            pod("pending", "", "", "", r#""phase":"Pending""#),
            pod("done", "", "", "", r#""phase":"Succeeded","podIP":"10.0.0.8""#),
            pod("going", "", "", r#","deletionTimestamp":"2026-01-01T00:00:00Z""#, RUNS),
            pod("not", r#""prometheus.io/scrape":"false""#, "", "", RUNS),
            pod("port", r#""prometheus.io/port":"many""#, "", "", RUNS),
            pod("path", r#""prometheus.io/path":"/a b""#, "", "", RUNS),
            pod("scheme", r#""prometheus.io/scheme":"ftp""#, "", "", RUNS),
            pod("ip", "", "", "", r#""phase":"Running","podIP":"evil/../x""#),
            "{".to_owned(),
            pod("good", "", "", "", RUNS),
            pod("twice", "", "", "", RUNS),
        ];
        let refused = ["give a number", "begins with /", "give http or https", "no address", "EOF"];
        check(&pods, &[("n1", "http://10.0.0.7:9400/metrics")], &refused);
    }
}
