//! One resource, listed and watched for as long as someone listens.
//!
//! A list is told whole, with the receipt of its first page: its version is of that instant, and a pod that it lacks was gone by
//! then. After it every change is told in order. A connection that ends goes on where it ended; only a version that the server
//! does not keep any more (410 Gone) is listed anew. What the caller has no use for is dropped here, page by page, and of the rest
//! the fields that only the API server reads.

use std::{sync::Arc, time::Duration};

use kube::core::params::{ListParams, WatchParams};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc::Sender;

use super::api::{Api, ApiError, Call, MAX_ANSWER_BYTES, PAGE};
use crate::{
    pods::Receipt,
    slices::{self, Slices},
};

/// A resource that can be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Pods of all namespaces.
    Pods,
    /// Nodes.
    Nodes,
    /// Namespaces.
    Namespaces,
    /// ResourceClaims of all namespaces; older servers have none.
    Claims,
    /// ResourceSlices; older servers have none.
    Slices,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Pods, Self::Nodes, Self::Namespaces, Self::Claims, Self::Slices];

    /// Plural name.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::Namespaces => "namespaces",
            Self::Claims => "resourceclaims",
            Self::Slices => "resourceslices",
        }
    }

    /// Paths, the newest version first.
    pub(super) const fn paths(self) -> &'static [&'static str] {
        match self {
            Self::Pods => &["/api/v1/pods"],
            Self::Nodes => &["/api/v1/nodes"],
            Self::Namespaces => &["/api/v1/namespaces"],
            Self::Claims => &[
                "/apis/resource.k8s.io/v1/resourceclaims",
                "/apis/resource.k8s.io/v1beta2/resourceclaims",
                "/apis/resource.k8s.io/v1beta1/resourceclaims",
            ],
            Self::Slices => &[
                "/apis/resource.k8s.io/v1/resourceslices",
                "/apis/resource.k8s.io/v1beta2/resourceslices",
                "/apis/resource.k8s.io/v1beta1/resourceslices",
            ],
        }
    }

    /// Whether a server may do without it.
    const fn optional(self) -> bool {
        matches!(self, Self::Claims | Self::Slices)
    }
}

/// What there is to tell of a resource.
#[derive(Debug)]
pub enum Event {
    /// Every object that there is (of those that the caller wants), and the version of the list.
    Listed {
        /// Objects as JSON.
        objects: Vec<Vec<u8>>,
        /// Its version, where that is a number.
        version: Option<u64>,
    },
    /// An object was added or changed.
    Seen(Vec<u8>),
    /// An object was removed; this is its last state.
    Deleted(Vec<u8>),
    /// Nothing new up to now: the watch is alive.
    Current,
    /// The API server has no such resource: there are no objects.
    Absent,
    /// The watch does not work now, and will be tried again.
    Failed(ApiError),
}

impl Event {
    /// The objects that are there, by this event.
    pub fn objects(&self) -> impl Iterator<Item = &[u8]> {
        let objects = match self {
            Self::Listed { objects, .. } => objects.as_slice(),
            Self::Seen(object) => std::slice::from_ref(object),
            Self::Deleted(_) | Self::Current | Self::Absent | Self::Failed(_) => &[],
        };
        objects.iter().map(Vec::as_slice)
    }
}

/// What was told of a resource, and when.
#[derive(Debug)]
pub struct Told {
    /// Of which.
    pub resource: Resource,
    /// What.
    pub event: Event,
    /// When we had it.
    pub receipt: Receipt,
}

/// Which objects matter.
pub type Wants = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// How often a watch is ended from our side, so that a dead connection is noticed: seconds.
const WATCH_S: u32 = 290;
/// Longest silence of a watch: bookmarks come once a minute, or so.
const SILENCE: Duration = Duration::from_secs(150);
/// Pauses after failures: doubled from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// Most times that a list is begun anew because its pages were forgotten under it.
const LIST_TRIES: usize = 3;

/// Tells of `resource` until nobody listens. `wants` says which objects matter; an object that it cannot read matters.
pub async fn follow(api: Api, resource: Resource, wants: Wants, to: Sender<Told>) {
    let mut watch = Watch { api, resource, wants, to, path: 0 };
    let mut pause = PAUSES.0;
    let mut version: Option<String> = None;
    loop {
        let began = tokio::time::Instant::now();
        let result = match version.take() {
            None => watch.list().await,
            Some(from) => watch.watch(from).await,
        };
        let error = match result {
            Ok(next) => {
                version = Some(next);
                pause = PAUSES.0;
                // A server that ends every watch at once must not be asked in a tight loop.
                if began.elapsed() < PAUSES.0 {
                    tokio::time::sleep(PAUSES.0).await;
                }
                continue;
            }
            Err(Ended::Unheard) => return,
            Err(Ended::Failed(error, from)) => {
                version = from;
                error
            }
        };
        let wait = match &error {
            // What was asked for is listed at once.
            ApiError::Gone { .. } => Duration::ZERO,
            ApiError::NotFound { .. } if resource.optional() => {
                if watch.path + 1 < resource.paths().len() {
                    watch.path += 1;
                    continue;
                }
                watch.path = 0;
                if watch.tell(Event::Absent, watch.api.receipt()).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_secs(300)).await;
                continue;
            }
            _ => pause,
        };
        if watch.tell(Event::Failed(error), watch.api.receipt()).await.is_err() {
            return;
        }
        tokio::time::sleep(wait).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

struct Watch {
    api: Api,
    resource: Resource,
    wants: Wants,
    to: Sender<Told>,
    /// Which of the resource's paths the server has.
    path: usize,
}

/// Why a list or a watch ended.
enum Ended {
    /// Nobody listens any more.
    Unheard,
    /// It failed; where a watch can go on from.
    Failed(ApiError, Option<String>),
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// What a line's object says of itself: its version, or of a Status why there is no more.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Said {
    metadata: ListMeta,
    code: u16,
    message: String,
}

impl Watch {
    fn path(&self) -> &'static str {
        self.resource.paths().get(self.path).copied().unwrap_or_default()
    }

    fn call(&self, verb: &'static str) -> Call {
        Call { verb, resource: self.resource.plural() }
    }

    async fn tell(&self, event: Event, receipt: Receipt) -> Result<(), Ended> {
        self.to.send(Told { resource: self.resource, event, receipt }).await.map_err(|_| Ended::Unheard)
    }

    /// Lists everything; the version to watch from.
    async fn list(&mut self) -> Result<String, Ended> {
        let mut tries = 0;
        loop {
            tries += 1;
            match pages(&self.api, self.call("list"), self.path(), ListParams::default(), &*self.wants).await {
                Ok((objects, version, receipt)) => {
                    let number = version.parse().ok();
                    self.tell(Event::Listed { objects, version: number }, receipt).await?;
                    return Ok(version);
                }
                Err(ApiError::Gone { .. }) if tries < LIST_TRIES => {}
                Err(error) => return Err(Ended::Failed(error, None)),
            }
        }
    }

    /// Watches from version `from` until the server ends it; the version to go on from.
    async fn watch(&mut self, mut from: String) -> Result<String, Ended> {
        let call = self.call("watch");
        let params = WatchParams { bookmarks: true, timeout: Some(WATCH_S), ..WatchParams::default() };
        let gone = |error: ApiError, from: String| {
            let again = !matches!(error, ApiError::Gone { .. });
            Ended::Failed(error, again.then_some(from))
        };
        let mut chunks = match self.api.body(call, Api::at(self.path()).watch(&params, &from)).await {
            Ok(chunks) => chunks,
            Err(error) => return Err(gone(error, from)),
        };
        let mut lines = Lines::default();
        loop {
            let chunk = match tokio::time::timeout(SILENCE, chunks.chunk(call)).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => return Ok(from),
                Ok(Err(error)) => return Err(gone(error, from)),
                Err(_) => return Err(gone(ApiError::Timeout { call, limit: SILENCE }, from)),
            };
            let receipt = self.api.receipt();
            lines.add(&chunk);
            while let Some(line) = lines.next() {
                match self.line(call, &line, receipt).await? {
                    Ok(Some(version)) => from = version,
                    Ok(None) => {}
                    Err(error) => return Err(gone(error, from)),
                }
            }
            if lines.pending() > MAX_ANSWER_BYTES {
                return Err(gone(ApiError::TooLarge { call, limit: MAX_ANSWER_BYTES }, from));
            }
        }
    }

    /// Tells what one line of a watch says; the version to go on from.
    async fn line(&self, call: Call, line: &[u8], receipt: Receipt) -> Result<Result<Option<String>, ApiError>, Ended> {
        let read = serde_json::from_slice::<Line>(line).map_err(|e| ApiError::damaged(call, e));
        let line = match read {
            Ok(line) => line,
            Err(error) => return Ok(Err(error)),
        };
        let object = line.object.get().as_bytes();
        let said: Said = serde_json::from_slice(object).unwrap_or_default();
        let event = match line.kind {
            "ADDED" | "MODIFIED" if (self.wants)(object) => Event::Seen(trimmed(object)),
            "DELETED" if (self.wants)(object) => Event::Deleted(trimmed(object)),
            // Others' objects show that the watch is alive, but need not be told of.
            "ADDED" | "MODIFIED" | "DELETED" => return Ok(Ok(Some(said.metadata.resource_version).filter(|v| !v.is_empty()))),
            "BOOKMARK" => Event::Current,
            "ERROR" => return Ok(Err(ApiError::of_status(call, said.code, said.message))),
            other => return Ok(Err(ApiError::damaged(call, format!("an event of the type `{other:.40}`")))),
        };
        self.tell(event, receipt).await?;
        Ok(Ok(Some(said.metadata.resource_version).filter(|version| !version.is_empty())))
    }
}

/// Lists what there is at `path`, page by page: objects that are wanted, the list's version, and the receipt of the first page.
async fn pages(
    api: &Api,
    call: Call,
    path: &str,
    params: ListParams,
    wants: &(dyn Fn(&[u8]) -> bool + Send + Sync),
) -> Result<(Vec<Vec<u8>>, String, Receipt), ApiError> {
    let mut objects = Vec::new();
    let mut params = params.limit(PAGE);
    let mut first: Option<(String, Receipt)> = None;
    loop {
        let (bytes, receipt) = api.whole(call, Api::at(path).list(&params), MAX_ANSWER_BYTES).await?;
        let page: Page = serde_json::from_slice(&bytes).map_err(|e| ApiError::damaged(call, e))?;
        let wanted = page.items.unwrap_or_default().into_iter().map(|o| o.get().as_bytes()).filter(|o| wants(o));
        objects.extend(wanted.map(trimmed));
        let (version, receipt) = first.get_or_insert((page.metadata.resource_version, receipt)).clone();
        match page.metadata.next.filter(|next| !next.is_empty()) {
            Some(next) => params.continue_token = Some(next),
            None if version.is_empty() => return Err(ApiError::damaged(call, "the list has no resourceVersion")),
            None => return Ok((objects, version, receipt)),
        }
    }
}

/// Pods by label and field selectors, as JSON; for discovery.
pub async fn list_pods(api: &Api, namespace: Option<&str>, labels: &str, fields: &str) -> Result<Vec<Vec<u8>>, ApiError> {
    let path = match namespace {
        Some(namespace) => format!("/api/v1/namespaces/{namespace}/pods"),
        None => "/api/v1/pods".to_owned(),
    };
    let call = Call { verb: "list", resource: "pods" };
    pages(api, call, &path, selected(labels, fields), &|_| true).await.map(|(objects, _, _)| objects)
}

/// The ResourceSlices that drivers publish for `node`, or all of them, from the newest version that the server has; none where it
/// has none.
pub async fn list_slices(api: &Api, node: Option<&str>) -> Result<Slices, ApiError> {
    let call = Call { verb: "list", resource: "resourceslices" };
    let fields = node.map(|node| format!("spec.nodeName={node}")).unwrap_or_default();
    for path in Resource::Slices.paths() {
        match pages(api, call, path, selected("", &fields), &|_| true).await {
            Ok((objects, _, _)) => return Ok(slices::read(objects.iter().map(Vec::as_slice))),
            Err(ApiError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Slices::default())
}

fn selected(labels: &str, fields: &str) -> ListParams {
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    ListParams { label_selector: given(labels), field_selector: given(fields), ..ListParams::default() }
}

/// Bytes as they come to whole lines.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    /// Where the next line begins, and up to where there is no end of one.
    start: usize,
    searched: usize,
}

impl Lines {
    fn add(&mut self, chunk: &[u8]) {
        self.bytes.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.bytes.extend_from_slice(chunk);
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') {
                None => {
                    self.searched = self.bytes.len();
                    return None;
                }
                Some(length) => {
                    let end = self.searched + length;
                    let line = self.bytes[self.start..end].to_vec();
                    (self.start, self.searched) = (end + 1, end + 1);
                    if !line.is_empty() {
                        return Some(line);
                    }
                }
            }
        }
    }

    fn pending(&self) -> usize {
        self.bytes.len() - self.start
    }
}

/// An object without `metadata.managedFields`, often half of it, which nothing here reads. What cannot be read stays as it is.
fn trimmed(object: &[u8]) -> Vec<u8> {
    type Fields<'a> = std::collections::BTreeMap<String, &'a RawValue>;
    let without = || -> Option<Vec<u8>> {
        let whole: Fields = serde_json::from_slice(object).ok()?;
        let mut metadata: Fields = serde_json::from_str(whole.get("metadata")?.get()).ok()?;
        metadata.remove("managedFields")?;
        let metadata = serde_json::value::to_raw_value(&metadata).ok()?;
        let mut whole = whole;
        whole.insert("metadata".to_owned(), &metadata);
        serde_json::to_vec(&whole).ok()
    };
    without().unwrap_or_else(|| object.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_however_they_come() {
        let text = b"{\"a\":1}\n\n{\"b\":2}\n{\"c\"";
        for size in 1..=text.len() {
            let mut lines = Lines::default();
            let mut got = Vec::new();
            for chunk in text.chunks(size) {
                lines.add(chunk);
                while let Some(line) = lines.next() {
                    got.push(String::from_utf8_lossy(&line).into_owned());
                }
            }
            assert_eq!(got, ["{\"a\":1}", "{\"b\":2}"], "in chunks of {size}");
            assert_eq!(lines.pending(), 4);
        }
    }

    #[test]
    fn only_managed_fields_are_dropped() {
        let object = br#"{"metadata":{"name":"a","managedFields":[{"x":1}],"uid":"u"},"spec":{"n": 1}}"#;
        assert_eq!(trimmed(object), br#"{"metadata":{"name":"a","uid":"u"},"spec":{"n": 1}}"#);
        for same in [&b"{\"metadata\":{\"name\":\"a\"}}"[..], b"[]", b"nonsense"] {
            assert_eq!(trimmed(same), same);
        }
    }
}
