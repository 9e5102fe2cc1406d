//! The kubelet's pod-resources API (v1): generated types, and a client over its unix socket.
//!
//! The generated file is checked in; `cargo test -p attribution` makes it anew from `proto/podresources.proto` and compares.

use std::{path::Path, time::Duration};

use tonic::transport::Channel;

use crate::socket::{Socket, SocketError};

#[allow(missing_docs, clippy::all)]
#[rustfmt::skip]
#[path = "podres/v1.rs"]
pub mod v1;

use v1::pod_resources_lister_client::PodResourcesListerClient;

/// Where kubelets listen unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
/// Largest answer that we take: dense nodes pass gRPC's default of 4 MiB.
pub const MAX_ANSWER_BYTES: usize = 16 << 20;

/// A client of one kubelet. Connects at the first call and again after a restart of the kubelet.
#[derive(Clone, Debug)]
pub struct Client {
    socket: Socket,
    inner: PodResourcesListerClient<Channel>,
}

impl Client {
    /// A client of the kubelet at `socket` that waits at most `timeout` for an answer. Must be called inside a tokio runtime.
    pub fn new(socket: &Path, timeout: Duration) -> Result<Self, SocketError> {
        let advice = "mount the kubelet's pod-resources folder, or set its path";
        let socket = Socket { service: "pod-resources", advice, path: socket.to_owned(), timeout };
        let inner = PodResourcesListerClient::new(socket.channel()?).max_decoding_message_size(MAX_ANSWER_BYTES);
        Ok(Self { socket, inner })
    }

    /// Every pod of the node with its devices.
    pub async fn list(&mut self) -> Result<v1::ListPodResourcesResponse, SocketError> {
        self.socket.answer("pod-resources List", self.inner.list(v1::ListPodResourcesRequest {})).await
    }

    /// The devices of one pod; none where the kubelet does not know it, or is older than this call: then [`Self::list`] says.
    pub async fn get(&mut self, namespace: &str, pod: &str) -> Result<Option<v1::PodResources>, SocketError> {
        let request = v1::GetPodResourcesRequest { pod_name: pod.to_owned(), pod_namespace: namespace.to_owned() };
        match self.socket.answer("pod-resources Get", self.inner.get(request)).await {
            Ok(found) => Ok(found.pod_resources),
            // The kubelet wraps every reason in Unknown.
            Err(SocketError::Refused {
                code: tonic::Code::Unimplemented | tonic::Code::Unknown | tonic::Code::NotFound, ..
            }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The node's healthy devices, held or not; an unhealthy GPU is not among them.
    pub async fn allocatable(&mut self) -> Result<v1::AllocatableResourcesResponse, SocketError> {
        let asked = self.inner.get_allocatable_resources(v1::AllocatableResourcesRequest {});
        self.socket.answer("pod-resources GetAllocatableResources", asked).await
    }
}
