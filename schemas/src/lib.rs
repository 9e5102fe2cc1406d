//! What things mean: the metric catalogue, identities, time, messages, tables and the label contract.
//!
//! No I/O and no clock. Every other crate depends on this one, and this one on none of them.
//!
//! ```text
//! exposition name ──catalogue──> field id ──proto──> message ──tables──> Parquet column
//!                    labels: which spelling means what, which keys are refused
//! ```
//!
//! Modules in reading order: [`time`], [`calendar`], [`ids`], [`catalogue`], [`labels`], [`status`], [`proto`], [`tables`], [`rows`].

pub mod calendar;
pub mod catalogue;
pub mod ids;
pub mod labels;
pub mod proto;
pub mod rows;
pub mod status;
pub mod tables;
pub mod time;

pub use ids::{DeviceId, GpuUuid};
pub use time::{HOUR_MS, SKEW_LIMIT_MS, Timestamp, Window};
