//! From a page of metrics to a closed hour of the lake.
//!
//! ```text
//! target ──HTTP──> parse ──> page ──> join <── kubelet pod-resources
//!                                      └──> publish ──> transport ──> sink ──> hot files ──close──> closed hours
//! ```
//!
//! Modules in reading order: [`parse`], [`page`], [`transport`]; [`conformance`].

pub mod conformance;
pub mod page;
pub mod parse;
pub mod transport;
