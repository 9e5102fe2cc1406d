//! One leader among the processes of a cluster, by a Lease of the coordination API.
//!
//! Who holds the lease writes its name and the time into it every few seconds; who finds that it has not changed for its duration
//! *by his own clock* takes it. Every write carries the version that was read, so of two that try, one is refused. A leader that
//! could not renew for two thirds of the duration stops by itself, before another may begin. Nothing depends on it but who
//! publishes: states are whole and repeats are harmless, so two leaders for a moment would do no damage.

use std::time::Duration;

use kube::core::params::{GetParams, PostParams};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::api::{Api, ApiError, Call};

/// Which lease, and how it is kept.
#[derive(Clone, Debug)]
pub struct LeaseOptions {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who we are: another name for every process.
    pub identity: String,
    /// After which time without renewal it may be taken. Whole seconds.
    pub duration: Duration,
}

/// Where we stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// We lead.
    Leader,
    /// Another does; empty where nobody is known to.
    Follower(String),
}

/// Our side of a lease.
pub struct Lease {
    api: Api,
    options: LeaseOptions,
    /// Holder, renewal and version as last read, and when they were first read so.
    seen: Option<(String, Option<String>, String, Instant)>,
    renewed: Option<Instant>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Object {
    #[serde(rename = "apiVersion")]
    version: String,
    kind: String,
    metadata: Metadata,
    spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    resource_version: String,
    #[serde(flatten)]
    others: serde_json::Map<String, serde_json::Value>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i32>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<i32>,
    #[serde(flatten)]
    others: serde_json::Map<String, serde_json::Value>,
}

const MAX_LEASE_BYTES: usize = 1 << 20;

impl Lease {
    /// A lease that is not held yet.
    pub fn new(api: Api, options: LeaseOptions) -> Self {
        Self { api, options, seen: None, renewed: None }
    }

    /// Time between two calls of [`Self::step`].
    pub fn step_every(&self) -> Duration {
        self.options.duration / 5
    }

    /// Until when we lead for sure, by our own clock.
    pub fn leads_until(&self) -> Option<Instant> {
        self.renewed.map(|at| at + self.options.duration * 2 / 3)
    }

    /// Takes the lease where it is free, and renews it where it is ours. Errors: nothing is known of it now; a leader leads on
    /// until [`Self::leads_until`].
    pub async fn step(&mut self) -> Result<Standing, ApiError> {
        let began = Instant::now();
        let read = self.read().await;
        let mut object = match read {
            Ok(object) => object,
            Err(ApiError::NotFound { .. }) => {
                let object = Object {
                    version: "coordination.k8s.io/v1".to_owned(),
                    kind: "Lease".to_owned(),
                    metadata: Metadata {
                        name: self.options.name.clone(),
                        namespace: self.options.namespace.clone(),
                        ..Metadata::default()
                    },
                    spec: Spec::default(),
                };
                return self.write("create", object, began).await;
            }
            Err(error) => return Err(error),
        };
        let holder = object.spec.holder_identity.clone().unwrap_or_default();
        if holder == self.options.identity || holder.is_empty() || self.is_over(&object, &holder) {
            object.version = "coordination.k8s.io/v1".to_owned();
            object.kind = "Lease".to_owned();
            return self.write("update", object, began).await;
        }
        self.renewed = None;
        Ok(Standing::Follower(holder))
    }

    /// Gives the lease up, so that another need not wait for its end.
    pub async fn release(&mut self) -> Result<(), ApiError> {
        if self.renewed.take().is_none() {
            return Ok(());
        }
        let mut object = self.read().await?;
        if object.spec.holder_identity.as_deref() != Some(&self.options.identity) {
            return Ok(());
        }
        object.spec.holder_identity = None;
        self.put("update", &object).await
    }

    /// Whether the lease has not changed for its duration, which we have seen ourselves.
    fn is_over(&mut self, object: &Object, holder: &str) -> bool {
        let now = (holder, &object.spec.renew_time, &object.metadata.resource_version);
        match &self.seen {
            Some((holder, renewed, version, since)) if (holder.as_str(), renewed, version) == now => {
                let said = object.spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok());
                // The duration that its holder works by; ours where it says none.
                since.elapsed() > said.map_or(self.options.duration, Duration::from_secs)
            }
            _ => {
                let (renewed, version) = (object.spec.renew_time.clone(), object.metadata.resource_version.clone());
                self.seen = Some((holder.to_owned(), renewed, version, Instant::now()));
                false
            }
        }
    }

    async fn write(&mut self, verb: &'static str, mut object: Object, began: Instant) -> Result<Standing, ApiError> {
        let now = self.api.receipt().api().to_string();
        let spec = &mut object.spec;
        if spec.holder_identity.as_deref() != Some(&self.options.identity) {
            spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |n| n.saturating_add(1)));
            spec.acquire_time = Some(micros(&now));
            spec.holder_identity = Some(self.options.identity.clone());
        }
        spec.renew_time = Some(micros(&now));
        spec.lease_duration_seconds = i32::try_from(self.options.duration.as_secs().max(1)).ok();
        match self.put(verb, &object).await {
            Ok(()) => {
                self.renewed = Some(began);
                Ok(Standing::Leader)
            }
            // Another was first; who, the next step shows.
            Err(ApiError::Conflict { .. }) => {
                self.renewed = None;
                Ok(Standing::Follower(String::new()))
            }
            Err(error) => Err(error),
        }
    }

    fn path(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.options.namespace)
    }

    async fn read(&self) -> Result<Object, ApiError> {
        let call = Call { verb: "get", resource: "leases" };
        let request = Api::at(&self.path()).get(&self.options.name, &GetParams::default());
        let (bytes, _) = self.api.whole(call, request, MAX_LEASE_BYTES).await?;
        serde_json::from_slice(&bytes).map_err(|e| ApiError::damaged(call, e))
    }

    async fn put(&self, verb: &'static str, object: &Object) -> Result<(), ApiError> {
        let call = Call { verb, resource: "leases" };
        let data = serde_json::to_vec(object).map_err(|e| ApiError::damaged(call, e))?;
        let api = Api::at(&self.path());
        let request = match verb {
            "create" => api.create(&PostParams::default(), data),
            _ => api.replace(&self.options.name, &PostParams::default(), data),
        };
        self.api.whole(call, request, MAX_LEASE_BYTES).await.map(drop)
    }
}

/// A time with microseconds, as leases have it.
fn micros(text: &str) -> String {
    let text = text.trim_end_matches('Z');
    match text.split_once('.') {
        Some((seconds, fraction)) => format!("{seconds}.{fraction:0<6.6}Z"),
        None => format!("{text}.000000Z"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_leases_have_microseconds() {
        assert_eq!(micros("2026-01-02T03:04:05Z"), "2026-01-02T03:04:05.000000Z");
        assert_eq!(micros("2026-01-02T03:04:05.12Z"), "2026-01-02T03:04:05.120000Z");
    }
}
