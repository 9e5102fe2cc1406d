//! The crate as its users see it.
#![allow(clippy::unwrap_used)]

mod allocations;
#[path = "../../../tests/kafka/broker.rs"]
mod broker;
mod chaos;
mod cluster;
mod corpus;
mod kafka;
mod kill;
mod operator;
mod path;
mod targets;
mod transport;
