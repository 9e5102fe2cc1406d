//! The cluster's side of the path: who was given how many GPUs on which node, who waits, and what nodes there are.
//!
//! ```text
//! API server ──watches──> books (attribution::pods) ──what changed──> records ──> transport
//!      └──owner references──> workloads ──┘   └──everything, every ten minutes and after each list──┘
//! log ──what was told before──> books, when a leader begins
//! ```
//!
//! One process a cluster leads, by Lease; others stand by. A state is whole, so a repeat, or two leaders for a moment, do no
//! harm. What a leader knows beyond the API server (receipts of binds that have no time of their own, pods that went while nobody
//! watched) it takes from the log itself when it begins: see [`recall`].
//!
//! Modules in reading order: [`books`] (pure), [`recall`], [`reconcile`], [`config`], [`run`].

pub mod books;
pub mod config;
pub mod recall;
pub mod reconcile;
pub mod run;

pub use config::{AllocationsArgs, AllocationsConfig};
pub use run::run;
