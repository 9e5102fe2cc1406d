//! One HTTP server set-up for all binaries: limits, health pages, own metrics, a clean end.
//!
//! ```text
//! listener ──> connection (limit, header deadline) ──> router ──> answer
//!                                   pages: /-/healthy /-/ready /metrics of the process itself
//! ```
//!
//! Every binary builds its own [`axum::Router`], merges [`pages`] into it where it wants them, and calls [`serve`]. TLS and
//! authentication by a web-config file wrap the accepted connection in [`serve`], the one place where connections come in.
//!
//! Modules in reading order: [`listen`], [`server`], [`pages`](mod@pages), [`metrics`].

pub mod listen;
pub mod metrics;
pub mod pages;
pub mod server;

pub use listen::{Address, ListenError, listen};
pub use metrics::Metrics;
pub use pages::{Ready, health_pages, pages};
pub use server::{HangUp, Limits, serve, serve_with};
