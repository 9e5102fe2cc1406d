//! Pages as they were recorded, served at their own times.
//!
//! A recording is a folder a node, with a file a page: `NODE/2026-03-02T10:00:00Z.txt`. At any time a node has the latest page of
//! up to then.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    Router,
    extract::{Path as UrlPath, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use schemas::Timestamp;

use crate::clock::SimClock;

/// Pages by node and time. Only names are kept in memory.
#[derive(Debug, Default)]
pub struct Recording {
    nodes: BTreeMap<String, BTreeMap<Timestamp, PathBuf>>,
}

/// Why a recording cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// A folder cannot be listed.
    #[error("cannot list {}", path.display())]
    List {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        err: io::Error,
    },
    /// A file whose name is no time.
    #[error("{} is named after no time; call a page 2026-03-02T10:00:00Z.txt", .0.display())]
    Name(PathBuf),
    /// Nothing there.
    #[error("{} has no pages; put them into a folder a node, as NODE/2026-03-02T10:00:00Z.txt", .0.display())]
    Empty(PathBuf),
}

impl Recording {
    /// The recording in `folder`.
    pub fn open(folder: &Path) -> Result<Self, RecordingError> {
        let mut nodes: BTreeMap<String, BTreeMap<Timestamp, PathBuf>> = BTreeMap::new();
        for of_node in list(folder)?.into_iter().filter(|path| path.is_dir()) {
            let pages = nodes.entry(of_node.file_name().unwrap_or_default().to_string_lossy().into_owned()).or_default();
            for page in list(&of_node)? {
                let at = page.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
                pages.insert(at.ok_or_else(|| RecordingError::Name(page.clone()))?, page);
            }
        }
        nodes.retain(|_, pages| !pages.is_empty());
        if nodes.is_empty() { Err(RecordingError::Empty(folder.to_owned())) } else { Ok(Self { nodes }) }
    }

    /// Nodes that have pages.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    /// The time of the first page.
    pub fn start(&self) -> Option<Timestamp> {
        self.nodes.values().filter_map(|pages| pages.keys().next()).min().copied()
    }

    /// The page of a node at `at`: the latest up to then.
    pub fn page(&self, node: &str, at: Timestamp) -> Option<&Path> {
        self.nodes.get(node)?.range(..=at).next_back().map(|(_, path)| path.as_path())
    }
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, RecordingError> {
    let failed = |err| RecordingError::List { path: folder.to_owned(), err };
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect()
}

/// The pages at `/nodes/NAME/metrics` at the clock's time, byte for byte, and `/nodes`: their names. Before a node's first page it
/// has none.
pub fn router(recording: Arc<Recording>, clock: SimClock) -> Router {
    let names = |State((recording, _)): State<(Arc<Recording>, SimClock)>| async move {
        recording.nodes().flat_map(|node| [node, "\n"]).collect::<String>()
    };
    Router::new().route("/nodes", get(names)).route("/nodes/{name}/metrics", get(page)).with_state((recording, clock))
}

async fn page(State((recording, clock)): State<(Arc<Recording>, SimClock)>, UrlPath(name): UrlPath<String>) -> Response {
    let Some(path) = recording.page(&name, clock.now()) else {
        return (StatusCode::NOT_FOUND, "no page of that node up to now; see /nodes\n").into_response();
    };
    let file = path.to_owned();
    let read = tokio::task::spawn_blocking(move || std::fs::read(file)).await.map_err(io::Error::other).flatten();
    match read {
        Ok(bytes) => ([(header::CONTENT_TYPE, web::pages::TEXT)], bytes).into_response(),
        Err(err) => (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot read {}: {err}\n", path.display())).into_response(),
    }
}
