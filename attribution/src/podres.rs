//! The kubelet's pod-resources API (v1): generated types, and a client over its unix socket.
//!
//! The generated file is checked in; `cargo test -p attribution` makes it anew from `proto/podresources.proto` and compares.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use schemas::status::JoinReason;
use tonic::transport::{Channel, Endpoint};

#[allow(missing_docs, clippy::all)]
#[rustfmt::skip]
#[path = "podres/v1.rs"]
pub mod v1;

use v1::pod_resources_lister_client::PodResourcesListerClient;

/// Where kubelets listen unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
/// Largest answer that we take: dense nodes pass gRPC's default of 4 MiB.
pub const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Why the kubelet gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum PodresError {
    /// Nothing lies at the socket's path.
    #[error("no pod-resources socket at {}; mount the kubelet's pod-resources folder, or set its path", .0.display())]
    NoSocket(PathBuf),
    /// A path that is no valid address.
    #[error("`{}` cannot be the address of a unix socket", .0.display())]
    BadPath(PathBuf),
    /// The call failed or was refused.
    #[error("the kubelet at {} refused pod-resources {call} ({code}): {message}", .socket.display())]
    Refused {
        /// List, Get or GetAllocatableResources.
        call: &'static str,
        /// The socket.
        socket: PathBuf,
        /// gRPC code.
        code: tonic::Code,
        /// The kubelet's words.
        message: String,
    },
    /// No answer in time.
    #[error("no answer from the kubelet at {} in {timeout:?}; is it overloaded?", .socket.display())]
    Timeout {
        /// The socket.
        socket: PathBuf,
        /// The limit.
        timeout: Duration,
    },
}

impl PodresError {
    /// The reason as rows carry it.
    pub fn reason(&self) -> JoinReason {
        match self {
            Self::NoSocket(_) | Self::BadPath(_) => JoinReason::NoSocket,
            Self::Refused { .. } | Self::Timeout { .. } => JoinReason::ListFailed,
        }
    }
}

/// A client of one kubelet. Connects at the first call and again after a restart of the kubelet.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    timeout: Duration,
    inner: PodResourcesListerClient<Channel>,
}

impl Client {
    /// A client of the kubelet at `socket` that waits at most `timeout` for an answer. Must be called inside a tokio runtime.
    pub fn new(socket: &Path, timeout: Duration) -> Result<Self, PodresError> {
        let bad = || PodresError::BadPath(socket.to_owned());
        let address = format!("unix://{}", socket.to_str().ok_or_else(bad)?);
        let endpoint = Endpoint::from_shared(address).map_err(|_| bad())?;
        let inner = PodResourcesListerClient::new(endpoint.connect_lazy()).max_decoding_message_size(MAX_ANSWER_BYTES);
        Ok(Self { socket: socket.to_owned(), timeout, inner })
    }

    /// Every pod of the node with its devices.
    pub async fn list(&mut self) -> Result<v1::ListPodResourcesResponse, PodresError> {
        let (client, socket, timeout) = (&mut self.inner, &self.socket, self.timeout);
        answer(socket, timeout, "List", client.list(v1::ListPodResourcesRequest {})).await
    }

    /// The devices of one pod; none where the kubelet does not know it, or is older than this call: then [`Self::list`] says.
    pub async fn get(&mut self, namespace: &str, pod: &str) -> Result<Option<v1::PodResources>, PodresError> {
        let (client, socket, timeout) = (&mut self.inner, &self.socket, self.timeout);
        let request = v1::GetPodResourcesRequest { pod_name: pod.to_owned(), pod_namespace: namespace.to_owned() };
        match answer(socket, timeout, "Get", client.get(request)).await {
            Ok(found) => Ok(found.pod_resources),
            // The kubelet wraps every reason in Unknown.
            Err(PodresError::Refused {
                code: tonic::Code::Unimplemented | tonic::Code::Unknown | tonic::Code::NotFound, ..
            }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The node's healthy devices, held or not; an unhealthy GPU is not among them.
    pub async fn allocatable(&mut self) -> Result<v1::AllocatableResourcesResponse, PodresError> {
        let (client, socket, timeout) = (&mut self.inner, &self.socket, self.timeout);
        let asked = client.get_allocatable_resources(v1::AllocatableResourcesRequest {});
        answer(socket, timeout, "GetAllocatableResources", asked).await
    }
}

async fn answer<T>(
    socket: &Path,
    timeout: Duration,
    name: &'static str,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, PodresError> {
    match tokio::time::timeout(timeout, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(_)) if !socket.exists() => Err(PodresError::NoSocket(socket.to_owned())),
        Ok(Err(status)) => {
            let message = status.message().to_owned();
            Err(PodresError::Refused { call: name, socket: socket.to_owned(), code: status.code(), message })
        }
        Err(_) => Err(PodresError::Timeout { socket: socket.to_owned(), timeout }),
    }
}
