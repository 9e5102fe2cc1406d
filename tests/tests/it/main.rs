//! End to end: through the commands and the servers, against traces, truth and peers.

#![allow(clippy::unwrap_used)]

mod attack;
mod backfill;
mod bad_facts;
mod bad_input;
#[path = "../../kafka/broker.rs"]
#[allow(dead_code)]
mod broker;
mod bucket;
mod closed_loop;
mod command;
mod conformance;
mod edges;
mod examples;
mod hours_job;
mod hours_sql;
mod kafka_truth;
mod money;
mod newcomer;
mod peers;
mod questions;
mod readme;
mod real_input;
mod real_page;
mod repairs;
mod reports;
#[path = "../../../lake/tests/it/s3_server.rs"]
#[allow(dead_code)]
mod s3_server;
mod sql_world;
mod what_dies;
#[path = "../../../ledger/tests/it/worlds.rs"]
#[allow(dead_code)]
mod worlds;
