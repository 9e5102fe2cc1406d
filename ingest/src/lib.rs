//! From a page of metrics to a closed hour of the lake.
//!
//! ```text
//! target ──scrape──> parse ──> page ──> join <── kubelet pod-resources
//!                                        └──> publish ──> transport ──> sink ──> hot files ──close──> closed hours
//! agent: scrape to publish, one round at a time            sink, close: the other half, from the log alone
//!
//! API server ──watches──> allocations ──> transport: holdings, demand and inventory, from one process a cluster
//! ```
//!
//! Modules in reading order: [`discovery`], [`scrape`], [`parse`], [`page`], [`join`], [`publish`], [`frames`], [`agent`] (a
//! round, whole), `schedule`; [`kubernetes`], [`local`]; [`allocations`];
//! [`transport`]; [`rows`], [`sink`], [`close`]; [`clock`], [`config`], [`run`] (the loops that wait);
//! [`conformance`].

pub mod agent;
pub mod allocations;
pub mod clock;
pub mod close;
pub mod config;
pub mod conformance;
pub mod discovery;
pub mod frames;
pub mod gzip;
pub mod join;
pub mod kubernetes;
pub mod local;
pub mod page;
pub mod parse;
pub mod publish;
pub mod rows;
pub mod run;
mod schedule;
pub mod scrape;
pub mod sink;
mod stamp;
pub mod transport;
