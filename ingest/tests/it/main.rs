//! The crate as its users see it.
#![allow(clippy::unwrap_used)]

mod allocations;
#[path = "../../../tests/kafka/broker.rs"]
mod broker;
mod chaos;
mod cluster;
mod corpus;
mod discovery;
mod kafka;
mod kill;
mod kubelet;
mod memory;
mod object_store;
mod operator;
mod path;
mod restart;
mod retention;
#[path = "../../../lake/tests/it/s3_server.rs"]
#[allow(dead_code, reason = "the lake's own tests use all of it")]
mod s3_server;
mod targets;
mod transport;
