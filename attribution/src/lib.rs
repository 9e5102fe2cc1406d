//! Who holds what: device ids of the kubelet to devices, holders and their shares; pod and node events to holdings by number.
//!
//! ```text
//! kubelet ──pod-resources List──> podres ──> holders: device -> pods, shares, conflicts
//!                                   ids: the shapes that plugins give a device
//! API server ──pod and node events──> pods: holdings by number, demand, inventory
//! ```
//!
//! Pure but for the client in [`podres`]. Modules in reading order: [`ids`], [`holders`], [`podres`], [`pods`], [`conformance`].

pub mod conformance;
pub mod holders;
pub mod ids;
pub mod podres;
pub mod pods;

pub use holders::{Held, Holders, Known, NodeGpu, ResourceNames};
