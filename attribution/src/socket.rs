//! A kubelet's unix socket: how its services are reached, how long they may take, and what it means that they do not answer.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use schemas::status::JoinReason;
use tonic::transport::{Channel, Endpoint};

/// Longest part of a kubelet's own words that an error repeats.
const MAX_WORDS: usize = 500;

/// Why a kubelet gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Nothing lies at the socket's path.
    #[error("no {service} socket at {}; {advice}", .socket.display())]
    NoSocket {
        /// What it would serve.
        service: &'static str,
        /// What to do.
        advice: &'static str,
        /// Its path.
        socket: PathBuf,
    },
    /// A path that is no valid address.
    #[error("`{}` cannot be the address of a unix socket", .0.display())]
    BadPath(PathBuf),
    /// The call failed or was refused.
    #[error("the kubelet at {} refused {call} ({code}): {message}", .socket.display())]
    Refused {
        /// The call.
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

impl SocketError {
    /// A short word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoSocket { .. } | Self::BadPath(_) => "no_socket",
            Self::Refused { .. } => "refused",
            Self::Timeout { .. } => "timeout",
        }
    }

    /// Every word of [`Self::reason`].
    pub const REASONS: &'static [&'static str] = &["no_socket", "refused", "timeout"];

    /// The reason as rows carry it.
    pub fn join_reason(&self) -> JoinReason {
        match self {
            Self::NoSocket { .. } | Self::BadPath(_) => JoinReason::NoSocket,
            Self::Refused { .. } | Self::Timeout { .. } => JoinReason::ListFailed,
        }
    }
}

/// A socket, and how to speak of it.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    /// What it serves.
    pub service: &'static str,
    /// What to do where it is not there.
    pub advice: &'static str,
    pub path: PathBuf,
    pub timeout: Duration,
}

impl Socket {
    /// A connection that is made at the first call, and again after a restart of the kubelet. Must be called inside a tokio runtime.
    pub fn channel(&self) -> Result<Channel, SocketError> {
        let bad = || SocketError::BadPath(self.path.clone());
        let address = format!("unix://{}", self.path.to_str().ok_or_else(bad)?);
        Ok(Endpoint::from_shared(address).map_err(|_| bad())?.connect_lazy())
    }

    /// The answer to `asked`, named `call` in errors.
    pub async fn answer<T>(
        &self,
        call: &'static str,
        asked: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, SocketError> {
        let socket = || self.path.clone();
        match tokio::time::timeout(self.timeout, asked).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(_)) if !Path::exists(&self.path) => {
                Err(SocketError::NoSocket { service: self.service, advice: self.advice, socket: socket() })
            }
            Ok(Err(status)) => {
                let message = status.message().chars().take(MAX_WORDS).collect();
                Err(SocketError::Refused { call, socket: socket(), code: status.code(), message })
            }
            Err(_) => Err(SocketError::Timeout { socket: socket(), timeout: self.timeout }),
        }
    }
}
