//! Lake to answers: SQL over its tables, the hours job, reports and the proof that the numbers close.
//!
//! ```text
//! samples, scrapes, allocations, nodes ──hours job──> gpu_hours, device_hours ──> report
//!                                                                             ──> check
//! every table ──DataFusion──> sql
//! ```
//!
//! Modules in reading order: [`sql`], [`job`], [`report`], [`check`], [`truth`], [`show`].

pub mod check;
pub mod job;
pub mod report;
pub mod show;
pub mod sql;
pub mod truth;
