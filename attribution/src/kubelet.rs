//! The kubelet's Pods API (v1alpha1, Kubernetes 1.37): the node's pods as the kubelet knows them, over its unix socket. A source of
//! pods for nodes whose API server is not to be asked.
//!
//! A pod comes as the core API's own message. What we read of it becomes JSON as the API server writes it, so that one reader
//! ([`pods`](crate::pods)) serves both. The generated file is checked in; `cargo test -p attribution` makes it anew from
//! `proto/pods.proto` and compares.

use std::{collections::HashMap, path::Path, time::Duration};

use prost::Message;
use schemas::Timestamp;
use serde_json::{Value, json};
use tonic::transport::Channel;

use crate::socket::{Socket, SocketError};

#[allow(missing_docs, clippy::all)]
#[rustfmt::skip]
#[path = "kubelet/v1alpha1.rs"]
pub mod v1alpha1;

use v1alpha1::pods_client::PodsClient;

/// Where kubelets listen unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/var/lib/kubelet/pods-api/pods-api.sock";
/// Largest answer that we take: a node's pods, each with its whole spec and status.
pub const MAX_ANSWER_BYTES: usize = 64 << 20;

/// A client of one kubelet. Connects at the first call and again after a restart of the kubelet.
#[derive(Clone, Debug)]
pub struct Client {
    socket: Socket,
    inner: PodsClient<Channel>,
}

impl Client {
    /// A client of the kubelet at `socket` that waits at most `timeout` for an answer. Must be called inside a tokio runtime.
    pub fn new(socket: &Path, timeout: Duration) -> Result<Self, SocketError> {
        let advice = "it is there from Kubernetes 1.37 on: mount the kubelet's pods-api folder, or leave `pods_socket` out";
        let socket = Socket { service: "pods", advice, path: socket.to_owned(), timeout };
        let inner = PodsClient::new(socket.channel()?).max_decoding_message_size(MAX_ANSWER_BYTES);
        Ok(Self { socket, inner })
    }

    /// Every pod of the node, as JSON; one that cannot be read is JSON without its fields, which the reader refuses and counts.
    pub async fn list(&mut self) -> Result<Vec<Vec<u8>>, SocketError> {
        let answer = self.socket.answer("ListPods", self.inner.list_pods(v1alpha1::ListPodsRequest {})).await?;
        Ok(answer.pods.iter().map(|pod| json_of(pod)).collect())
    }
}

/// A pod's message as the API server would write it, as far as we read it.
pub fn json_of(pod: &[u8]) -> Vec<u8> {
    let pod = v1alpha1::Pod::decode(pod).unwrap_or_default();
    let (metadata, spec, status) =
        (pod.metadata.unwrap_or_default(), pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
    let owner = |o: &v1alpha1::OwnerReference| json!({"kind": o.kind, "name": o.name, "controller": o.controller});
    let condition = |c: &v1alpha1::PodCondition| json!({"type": c.r#type, "status": c.status, "lastTransitionTime": time(c.last_transition_time)});
    let list = |containers: &[v1alpha1::Container]| containers.iter().map(container).collect::<Vec<_>>();
    let statuses = |statuses: &[v1alpha1::ContainerStatus]| statuses.iter().map(container_status).collect::<Vec<_>>();
    let object = json!({
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
            "creationTimestamp": time(metadata.creation_timestamp),
            "deletionTimestamp": time(metadata.deletion_timestamp),
            "deletionGracePeriodSeconds": metadata.deletion_grace_period_seconds,
            "labels": metadata.labels,
            "annotations": metadata.annotations,
            "ownerReferences": metadata.owner_references.iter().map(owner).collect::<Vec<_>>(),
        },
        "spec": {
            "nodeName": spec.node_name,
            "nodeSelector": spec.node_selector,
            "priorityClassName": spec.priority_class_name,
            "containers": list(&spec.containers),
            "initContainers": list(&spec.init_containers),
            "overhead": quantities(&spec.overhead),
            "resourceClaims": spec.resource_claims.iter().map(|claim| json!({"name": claim.name})).collect::<Vec<_>>(),
        },
        "status": {
            "phase": status.phase,
            "conditions": status.conditions.iter().map(condition).collect::<Vec<_>>(),
            "containerStatuses": statuses(&status.container_statuses),
            "initContainerStatuses": statuses(&status.init_container_statuses),
        },
    });
    object.to_string().into_bytes()
}

fn container(container: &v1alpha1::Container) -> Value {
    let asked = container.resources.as_ref();
    let of = |quantities_of: fn(&v1alpha1::ResourceRequirements) -> &HashMap<String, v1alpha1::Quantity>| {
        asked.map(|asked| quantities(quantities_of(asked)))
    };
    json!({
        "name": container.name,
        "restartPolicy": container.restart_policy,
        "resources": {"limits": of(|asked| &asked.limits), "requests": of(|asked| &asked.requests)},
    })
}

fn quantities(given: &HashMap<String, v1alpha1::Quantity>) -> Value {
    given
        .iter()
        .map(|(name, quantity)| (name.clone(), Value::from(quantity.string.clone())))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn container_status(status: &v1alpha1::ContainerStatus) -> Value {
    let state = |state: &Option<v1alpha1::ContainerState>| {
        let state = state.as_ref()?;
        let running = state.running.map(|running| json!({"startedAt": time(running.started_at)}));
        let terminated =
            state.terminated.map(|ended| json!({"startedAt": time(ended.started_at), "finishedAt": time(ended.finished_at)}));
        Some(json!({"running": running, "terminated": terminated}))
    };
    json!({"name": status.name, "state": state(&status.state), "lastState": state(&status.last_state)})
}

/// A time as the API server writes it; none where it is not told, or is no time: Go's zero is the year 1.
fn time(time: Option<v1alpha1::Time>) -> Option<String> {
    let time = time?;
    let ms = time.seconds.checked_mul(1000)?.checked_add(i64::from(time.nanos) / 1_000_000)?;
    (1..253_402_300_800_000).contains(&ms).then(|| Timestamp::from_ms(ms).to_string())
}
