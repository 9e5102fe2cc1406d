//! Lake to answers: SQL over its tables, the hours job, reports and the proof that the numbers close.
//!
//! ```text
//! samples, scrapes, allocations, nodes ──hours job──> gpu_hours, device_hours ──> report
//!                                                                             ──> check
//! gpu_hours, nodes, rate card ──money──> costs, bill
//! every table ──DataFusion──> sql
//! ```
//!
//! Modules in reading order: [`sql`], [`account`], [`job`], [`hours_sql`], [`questions`], [`live`], [`money`], [`report`], [`check`], [`truth`],
//! [`proof`], [`why`], [`show`].

pub mod account;
pub mod check;
pub mod hours_sql;
pub mod job;
pub mod live;
pub mod money;
pub mod proof;
pub mod questions;
pub mod report;
pub mod show;
pub mod sql;
pub mod truth;
pub mod why;
