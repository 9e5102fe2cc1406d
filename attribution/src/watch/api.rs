//! One request to the API server: bounded in time and size, its errors named, its `Date` measured.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http_body_util::BodyExt;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
    core::Request,
};
use schemas::Timestamp;

use super::clock::{ApiClock, http_date};
use crate::pods::Receipt;

/// Our clock, for receipts.
pub type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Largest object, and largest page of a list: etcd takes objects up to 1.5 MB, and a page has at most [`PAGE`] of them, most
/// a few kilobytes.
pub const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Objects of a page of a list.
pub const PAGE: u32 = 500;

/// What is asked of which resource, for errors: the words of an RBAC rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// get, list, watch, create or update.
    pub verb: &'static str,
    /// Plural name, such as pods.
    pub resource: &'static str,
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)
    }
}

/// Why the API server did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No connection can be set up with what is configured.
    #[error("no way to the API server is configured; run inside the cluster with a service account, or give a kubeconfig")]
    Config(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The account lacks a right.
    #[error("the API server forbids `{call}`: {message}; grant that verb to this account, as deploy/rbac.yaml does")]
    Forbidden {
        /// What was asked.
        call: Call,
        /// The server's words.
        message: String,
    },
    /// The server does not know who asks.
    #[error("the API server does not accept this account's credentials for `{call}`: {message}; is its token still valid?")]
    Unauthorized {
        /// What was asked.
        call: Call,
        /// The server's words.
        message: String,
    },
    /// What was asked for is too old: it must be listed anew.
    #[error("`{call}` asks for a version that the API server does not keep any more")]
    Gone {
        /// What was asked.
        call: Call,
    },
    /// No such object, or no such resource.
    #[error("the API server has no such object or resource for `{call}`")]
    NotFound {
        /// What was asked.
        call: Call,
    },
    /// Someone else wrote the object first.
    #[error("another process changed the object of `{call}` first")]
    Conflict {
        /// What was asked.
        call: Call,
    },
    /// Any other refusal.
    #[error("the API server refused `{call}` with {code}: {message}")]
    Refused {
        /// What was asked.
        call: Call,
        /// HTTP status, or that of an error event.
        code: u16,
        /// The server's words.
        message: String,
    },
    /// No connection, or one that broke.
    #[error("no answer from the API server to `{call}`; is it running and reachable from here?")]
    Unreachable {
        /// What was asked.
        call: Call,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No answer in time.
    #[error("no answer from the API server to `{call}` in {limit:?}; is it overloaded?")]
    Timeout {
        /// What was asked.
        call: Call,
        /// The limit.
        limit: Duration,
    },
    /// An answer above the limit.
    #[error("the answer to `{call}` is larger than {limit} bytes")]
    TooLarge {
        /// What was asked.
        call: Call,
        /// The limit.
        limit: usize,
    },
    /// An answer that is not what the API server writes.
    #[error("the answer to `{call}` cannot be read: {what}; is there a proxy between?")]
    Damaged {
        /// What was asked.
        call: Call,
        /// What is wrong.
        what: String,
    },
}

impl ApiError {
    /// A short word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Config(_) => "config",
            Self::Forbidden { .. } => "forbidden",
            Self::Unauthorized { .. } => "unauthorized",
            Self::Gone { .. } => "gone",
            Self::NotFound { .. } => "not_found",
            Self::Conflict { .. } => "conflict",
            Self::Refused { .. } => "refused",
            Self::Unreachable { .. } => "unreachable",
            Self::Timeout { .. } => "timeout",
            Self::TooLarge { .. } => "too_large",
            Self::Damaged { .. } => "damaged",
        }
    }

    /// Every word of [`Self::reason`].
    pub const REASONS: &'static [&'static str] = &[
        "config",
        "forbidden",
        "unauthorized",
        "gone",
        "not_found",
        "conflict",
        "refused",
        "unreachable",
        "timeout",
        "too_large",
        "damaged",
    ];

    pub(super) fn damaged(call: Call, what: impl ToString) -> Self {
        Self::Damaged { call, what: what.to_string() }
    }

    /// The error that a status of the API server is.
    pub(super) fn of_status(call: Call, code: u16, message: String) -> Self {
        match code {
            401 => Self::Unauthorized { call, message },
            403 => Self::Forbidden { call, message },
            404 => Self::NotFound { call },
            409 => Self::Conflict { call },
            410 => Self::Gone { call },
            _ => Self::Refused { call, code, message },
        }
    }
}

/// A connection to the API server. Clones share it, and what is known of the server's clock.
#[derive(Clone)]
pub struct Api {
    client: Client,
    now: Now,
    clock: Arc<Mutex<ApiClock>>,
    /// Time for the head of an answer, and for the whole of one that is no watch.
    limit: Duration,
}

impl Api {
    /// Sets up a connection by `kubeconfig`, else by the service account of this pod, else by `KUBECONFIG`. Nothing is asked yet.
    /// Must be called inside a tokio runtime.
    pub async fn connect(kubeconfig: Option<&Path>, now: Now, limit: Duration) -> Result<Self, ApiError> {
        let mut config = match kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(|e| ApiError::Config(e.into()))?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                    .await
                    .map_err(|e| ApiError::Config(e.into()))?
            }
            None => Config::infer().await.map_err(|e| ApiError::Config(e.into()))?,
        };
        // Who calls decides when to try again.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|e| ApiError::Config(e.into()))?;
        Ok(Self { client, now, clock: Arc::default(), limit })
    }

    /// Now, as a receipt.
    pub fn receipt(&self) -> Receipt {
        let ahead = self.clock.lock().unwrap_or_else(PoisonError::into_inner).ahead_ms();
        Receipt { at: (self.now)(), api_ahead_ms: ahead.map_or(0, |(ahead, _)| ahead) }
    }

    /// The API server's clock minus ours in ms, and by how much that may be wrong; none before the first answer.
    pub fn ahead_ms(&self) -> Option<(i64, i64)> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner).ahead_ms()
    }

    /// The resource at `path`, for requests.
    pub(super) fn at(path: &str) -> Request {
        Request::new(path)
    }

    /// A whole answer of at most `max` bytes, and its receipt.
    pub(super) async fn whole(&self, call: Call, request: Asked, max: usize) -> Result<(Vec<u8>, Receipt), ApiError> {
        let work = async {
            let mut body = self.body(call, request).await?;
            let receipt = self.receipt();
            let mut bytes = Vec::new();
            while let Some(chunk) = body.chunk(call).await? {
                if bytes.len() + chunk.len() > max {
                    return Err(ApiError::TooLarge { call, limit: max });
                }
                bytes.extend_from_slice(&chunk);
            }
            Ok((bytes, receipt))
        };
        match tokio::time::timeout(self.limit, work).await {
            Ok(result) => result,
            Err(_) => Err(ApiError::Timeout { call, limit: self.limit }),
        }
    }

    /// The body of a good answer, to be read as it comes.
    pub(super) async fn body(&self, call: Call, request: Asked) -> Result<Chunks, ApiError> {
        let request = request.map_err(|e| ApiError::damaged(call, e))?.map(Body::from);
        let sent = (self.now)();
        let answer = match tokio::time::timeout(self.limit, self.client.send(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(ApiError::Unreachable { call, source: error.into() }),
            Err(_) => return Err(ApiError::Timeout { call, limit: self.limit }),
        };
        let date = answer.headers().get("date").and_then(|date| http_date(date.to_str().ok()?));
        if let Some(date) = date {
            self.clock.lock().unwrap_or_else(PoisonError::into_inner).answer(sent, (self.now)(), date);
        }
        let status = answer.status();
        let mut chunks = Chunks { body: answer.into_body() };
        if status.is_success() {
            return Ok(chunks);
        }
        let mut text = Vec::new();
        while text.len() < 64 << 10 {
            match tokio::time::timeout(self.limit, chunks.chunk(call)).await {
                Ok(Ok(Some(chunk))) => text.extend_from_slice(&chunk),
                Ok(Ok(None) | Err(_)) | Err(_) => break,
            }
        }
        #[derive(Default, serde::Deserialize)]
        struct Status {
            #[serde(default)]
            message: String,
        }
        let said = serde_json::from_slice::<Status>(&text).unwrap_or_default().message;
        let said = if said.is_empty() { String::from_utf8_lossy(&text).into_owned() } else { said };
        Err(ApiError::of_status(call, status.as_u16(), said.chars().take(500).collect()))
    }
}

/// A request as the `kube` crate builds it, or what is wrong with its parameters.
pub(super) type Asked = Result<hyper::Request<Vec<u8>>, kube::core::request::Error>;

/// An answer's body as it comes.
pub(super) struct Chunks {
    body: Body,
}

impl Chunks {
    /// The next bytes; none at the end.
    pub(super) async fn chunk(&mut self, call: Call) -> Result<Option<Vec<u8>>, ApiError> {
        loop {
            return match self.body.frame().await {
                None => Ok(None),
                Some(Err(error)) => Err(ApiError::Unreachable { call, source: error.into() }),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => Ok(Some(data.to_vec())),
                    Err(_) => continue,
                },
            };
        }
    }
}
