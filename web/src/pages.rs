//! The pages that every server has: whether it lives, whether it is ready, its own metrics.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::{
    Router,
    http::{StatusCode, header},
    routing::get,
};

use crate::metrics::Metrics;

/// Whether a server is ready for its work; clones are the same flag. It begins unready.
#[derive(Clone, Debug, Default)]
pub struct Ready(Arc<AtomicBool>);

impl Ready {
    /// Not ready yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ready from the first request on.
    pub fn at_once() -> Self {
        let ready = Self::new();
        ready.set(true);
        ready
    }

    /// Says whether it is.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Relaxed);
    }

    /// Whether it is.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// `/-/healthy` (200 while the process answers) and `/-/ready` (503 until `ready`).
pub fn health_pages(ready: Ready) -> Router {
    let readiness = move || async move {
        if ready.get() { (StatusCode::OK, "ready\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready\n") }
    };
    Router::new().route("/-/healthy", get(|| async { "healthy\n" })).route("/-/ready", get(readiness))
}

/// [`health_pages`] and `/metrics`: the process's own metrics.
pub fn pages(metrics: Metrics, ready: Ready) -> Router {
    let own = move || async move { ([(header::CONTENT_TYPE, TEXT)], metrics.render()) };
    health_pages(ready).route("/metrics", get(own))
}

/// Content type of Prometheus text.
pub const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
