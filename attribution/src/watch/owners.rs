//! From a pod's controller up to the workload that people know: Deployment through ReplicaSet, CronJob or JobSet through Job,
//! RayJob through RayCluster. A kind that has no owner worth asking for (StatefulSet, PyTorchJob, ...) is the top at once.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use futures::{StreamExt, stream};
use kube::core::params::GetParams;
use serde::Deserialize;
use tokio::time::Instant;

use super::api::{Api, ApiError, Call};

/// Who made an object, by its own word.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerRef {
    api_version: String,
    /// Kind, such as ReplicaSet.
    pub kind: String,
    /// Name.
    pub name: String,
    uid: String,
    controller: bool,
}

/// The workload that a pod's controller leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top {
    /// Namespace of both.
    pub namespace: String,
    /// The pod's own controller, as Kind/name.
    pub direct: String,
    /// The workload, as Kind/name.
    pub workload: String,
    /// Whether the way up was seen to its end: not where a right or an object is missing.
    pub whole: bool,
}

/// Kinds that may have an owner worth asking for: group, kind, path of the group and version, plural.
const MIDDLE: [(&str, &str, &str, &str); 4] = [
    ("apps/", "ReplicaSet", "/apis/apps/v1", "replicasets"),
    ("batch/", "Job", "/apis/batch/v1", "jobs"),
    ("jobset.x-k8s.io/", "JobSet", "/apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    ("ray.io/", "RayCluster", "/apis/ray.io/v1", "rayclusters"),
];
/// Steps of the longest way that is followed.
const STEPS: usize = 4;
/// Answers that are remembered; one more, and all are asked for anew.
const REMEMBERED: usize = 50_000;
/// Questions asked at one time.
const AT_ONCE: usize = 8;
/// After which time something that could not be had is asked for again.
const AGAIN: Duration = Duration::from_secs(300);
const MAX_OBJECT_BYTES: usize = 4 << 20;

/// What is known of owners.
pub struct Owners {
    api: Api,
    /// Owner of each object by UID; and what could not be had, until when.
    known: HashMap<String, Result<Option<OwnerRef>, Instant>>,
    /// Questions that failed so far, by the word of the error.
    failures: HashMap<&'static str, u64>,
}

impl Owners {
    /// Nothing is known yet.
    pub fn new(api: Api) -> Self {
        Self { api, known: HashMap::new(), failures: HashMap::new() }
    }

    /// Questions that could not be answered since this was last asked, by the word of the error.
    pub fn take_failures(&mut self) -> HashMap<&'static str, u64> {
        std::mem::take(&mut self.failures)
    }

    /// The tops of the controllers of these pods, each once. Asks at most `limit` long; what is missing then is told as not
    /// whole, and asked for the next time.
    pub async fn tops(&mut self, pods: impl IntoIterator<Item = (String, OwnerRef)>, limit: Duration) -> Vec<Top> {
        let pods: BTreeSet<(String, OwnerRef)> = pods.into_iter().collect();
        if self.known.len() > REMEMBERED {
            self.known.clear();
        }
        let until = Instant::now() + limit;
        for _ in 0..STEPS {
            let next = pods.iter().filter_map(|(namespace, owner)| Some((namespace.clone(), self.next_question(owner)?)));
            let missing: BTreeSet<(String, OwnerRef)> = next.collect();
            if missing.is_empty() {
                break;
            }
            let question = |(namespace, owner): (String, OwnerRef)| {
                let api = self.api.clone();
                async move {
                    let answer = tokio::time::timeout_at(until, ask(&api, &namespace, &owner)).await;
                    (owner, answer)
                }
            };
            let questions: Vec<_> = missing.into_iter().map(question).collect();
            let answers: Vec<_> = stream::iter(questions).buffer_unordered(AT_ONCE).collect().await;
            for (owner, answer) in answers {
                let known = match answer {
                    Ok(Ok(above)) => Ok(above),
                    Ok(Err(error)) => {
                        *self.failures.entry(error.reason()).or_default() += 1;
                        tracing::debug!(error = %error, kind = owner.kind, "an owner cannot be had");
                        Err(Instant::now() + AGAIN)
                    }
                    Err(_) => {
                        *self.failures.entry("timeout").or_default() += 1;
                        Err(Instant::now())
                    }
                };
                self.known.insert(owner.uid, known);
            }
        }
        pods.into_iter().map(|(namespace, owner)| self.top(namespace, owner)).collect()
    }

    /// The first object on the way up from `owner` that must be asked for.
    fn next_question(&self, owner: &OwnerRef) -> Option<OwnerRef> {
        let mut at = owner;
        for _ in 0..STEPS {
            middle(at)?;
            match self.known.get(&at.uid) {
                None => return Some(at.clone()),
                Some(Err(again)) => return (*again <= Instant::now()).then(|| at.clone()),
                Some(Ok(above)) => at = above.as_ref()?,
            }
        }
        None
    }

    fn top(&self, namespace: String, owner: OwnerRef) -> Top {
        let name = |owner: &OwnerRef| format!("{}/{}", owner.kind, owner.name);
        let direct = name(&owner);
        let mut at = &owner;
        let mut whole = true;
        for _ in 0..STEPS {
            if middle(at).is_none() {
                break;
            }
            match self.known.get(&at.uid) {
                Some(Ok(Some(above))) => at = above,
                Some(Ok(None)) => break,
                Some(Err(_)) | None => {
                    whole = false;
                    break;
                }
            }
        }
        Top { namespace, direct, workload: name(at), whole }
    }
}

fn middle(owner: &OwnerRef) -> Option<&'static (&'static str, &'static str, &'static str, &'static str)> {
    MIDDLE.iter().find(|(group, kind, _, _)| owner.kind == *kind && owner.api_version.starts_with(group))
}

/// Who owns `owner` itself.
async fn ask(api: &Api, namespace: &str, owner: &OwnerRef) -> Result<Option<OwnerRef>, ApiError> {
    let Some((_, _, group, plural)) = middle(owner) else { return Ok(None) };
    let call = Call { verb: "get", resource: plural };
    let request = Api::at(&format!("{group}/namespaces/{namespace}/{plural}")).get_metadata(&owner.name, &GetParams::default());
    let (bytes, _) = api.whole(call, request, MAX_OBJECT_BYTES).await?;
    let (uid, above) = controller(&bytes).ok_or_else(|| ApiError::damaged(call, "no metadata"))?;
    // Another object of the name has come: the one that made the pod is gone.
    if uid == owner.uid { Ok(above) } else { Err(ApiError::NotFound { call }) }
}

/// UID of an object, and its controller.
fn controller(json: &[u8]) -> Option<(String, Option<OwnerRef>)> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Metadata {
        uid: String,
        owner_references: Option<Vec<OwnerRef>>,
    }
    let object: Object = serde_json::from_slice(json).ok()?;
    let owner = object.metadata.owner_references.unwrap_or_default().into_iter().find(|owner| owner.controller);
    Some((object.metadata.uid, owner))
}

/// Namespace and controller of a pod; none where it has no controller.
pub fn of_pod(json: &[u8]) -> Option<(String, OwnerRef)> {
    #[derive(Deserialize)]
    struct Pod {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        namespace: String,
    }
    let (_, owner) = controller(json)?;
    let pod: Pod = serde_json::from_slice(json).ok()?;
    Some((pod.metadata.namespace, owner?))
}
