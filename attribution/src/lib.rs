//! Who holds what: device ids of the kubelet to devices, holders and their shares.
//!
//! ```text
//! kubelet ──pod-resources List──> podres ──> holders: device -> pods, shares, conflicts
//!                                   ids: the shapes that plugins give a device
//! ```
//!
//! Pure but for the client in [`podres`]. Modules in reading order: [`ids`], [`holders`], [`podres`], [`conformance`].

pub mod conformance;
pub mod holders;
pub mod ids;
pub mod podres;

pub use holders::{Held, Holders, Known, NodeGpu, ResourceNames};
