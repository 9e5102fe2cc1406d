//! From a page of metrics to a closed hour of the lake.
//!
//! ```text
//! target ──HTTP──> parse ──> samples
//! ```

pub mod conformance;
pub mod parse;
