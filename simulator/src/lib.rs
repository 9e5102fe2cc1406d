//! One fleet from (spec, seed, time): its metrics, its kubelets, its API server's facts, and the truth behind them.
//!
//! ```text
//! FleetSpec ─┐
//! Seed ──────┴─> Plan: pods, devices, faults ──┬─ state(device, at) ──> /nodes/NAME/metrics   (exporter's renderer)
//!                                              ├─ podres: one kubelet socket per node
//!                                              ├─ api_facts, api_changes: holdings, demand, inventory
//!                                              └─ truth(window): hour rows, exact integrals, every fault by name
//! ```
//!
//! No wall clock inside: a plan is a pure function of (spec, seed), everything else of a plan and a time. One state is behind
//! all faces, so they agree at every instant.
//!
//! The library behind NVML's C interface is a crate of its own in `nvml/`; [`nvml`] is what it has in common with the command.
//!
//! Modules in reading order: [`spec`], [`seed`], [`accelerator`], [`mig`], `calendar`, [`shape`], `schedule`, [`fault`], `work`,
//! `activity`, `timeline`, [`exposition`], [`plan`], [`state`](mod@state), `readings`, [`api`], [`truth`](mod@truth), [`clock`], [`serve`], [`podres`],
//! [`nvml`], [`explain`].

pub mod accelerator;
mod activity;
pub mod api;
pub mod backfill;
mod calendar;
mod calibrate;
pub mod clock;
pub mod explain;
pub mod exposition;
pub mod fault;
pub mod fidelity;
pub mod mig;
pub mod nvml;
pub mod objects;
pub mod plan;
pub mod podres;
pub mod presets;
mod readings;
pub mod replay;
mod schedule;
pub mod seed;
pub mod serve;
pub mod shape;
pub mod spec;
pub mod state;
mod timeline;
pub mod truth;
mod work;

pub use api::{ApiFacts, api_changes, api_facts};
pub use clock::SimClock;
pub use fault::{Fault, faults};
pub use plan::{DeviceRef, Plan};
pub use seed::Seed;
pub use spec::{FleetSpec, SpecError};
pub use state::{BoardState, GpuState, NodeSource, Walk, board_state, state};
pub use truth::{TruthError, truth, truth_holdings, truth_rows, truth_waste};
