//! The crate as its users see it.
#![allow(clippy::unwrap_used)]

mod allocations;
mod chaos;
mod cluster;
mod corpus;
mod discovery;
mod kafka;
mod kill;
mod kubelet;
mod memory;
mod operator;
mod path;
mod targets;
mod transport;
