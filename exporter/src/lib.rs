//! One node's GPUs to exposition text, as dcgm-exporter prints it.
//!
//! ```text
//! Source: what the devices read now ──> Page ──Renderer (Collectors, Style)──> text ──> GET /metrics
//! ```
//!
//! The text is dcgm-exporter's byte for byte wherever its text is valid: names, HELP, label order, integers as digits, floats
//! with six decimals. Where it is not valid (quotes and line ends in labels) it is escaped.
//!
//! Two sources: the simulator, and [`node::Node`], this machine's GPUs through NVML, which the binary `strandline-exporter` serves.
//!
//! ```text
//! config ──> run: nvml::Fleet (threads that ask the driver) ──> node::Node (Source) ──> serve ──> /metrics, /health
//!                 owners (pods by the kubelet) ──────────────────┘
//! ```
//!
//! Modules in reading order: [`source`], [`collectors`], [`render`], [`number`], [`xid`], [`size`], [`serve`]; then [`nvml`],
//! [`owners`], [`pod_labels`], [`hpc`], [`select`], [`node`], [`families`], [`check`], [`config`], [`run`].

pub mod chain;
pub mod check;
pub mod collectors;
pub mod config;
pub mod families;
pub mod hpc;
pub mod node;
pub mod number;
pub mod nvml;
pub mod owners;
pub mod pod_labels;
pub mod render;
pub mod run;
pub mod select;
pub mod serve;
pub mod size;
pub mod source;
pub mod xid;

pub use collectors::{Collectors, CollectorsError};
pub use render::{Format, HostnameLabel, Renderer, Style};
pub use serve::{Pages, router};
pub use size::{Lines, Size};
pub use source::{Attributes, Device, Extra, Identity, Instance, Page, ReadError, Readings, Source, Value};
