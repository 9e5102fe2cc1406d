//! One HTTP server set-up for all binaries: limits, health pages, own metrics, a clean end.
//!
//! ```text
//! listener ──> connection (limit, TLS, deadlines) ──> guard ──> router ──> answer
//!                      │                                │          pages: /-/healthy /-/ready /metrics of the process itself
//!                      └── web-config file: TLS ────────┴── users, headers
//! ```
//!
//! Every binary builds its own [`axum::Router`], merges [`pages`] into it where it wants them, and calls [`serve`], or
//! [`serve_guarded`] with the [`Guard`] of a Prometheus web-config file, which covers every path.
//!
//! Modules in reading order: [`listen`], [`server`], [`config`], [`guard`], [`pages`](mod@pages), [`metrics`].

pub mod config;
pub mod guard;
pub mod listen;
pub mod metrics;
mod paced;
pub mod pages;
pub mod server;

pub use config::{ConfigError, WebConfig};
pub use guard::Guard;
pub use listen::{Address, ListenError, listen, listen_systemd};
pub use metrics::Metrics;
pub use pages::{Ready, health_pages, pages};
pub use server::{HangUp, Limits, serve, serve_guarded, serve_with};
