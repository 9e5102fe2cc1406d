//! Who holds what: device ids of the kubelet to devices, holders and their shares; pod and node events to holdings by number.
//!
//! ```text
//! kubelet ──pod-resources List──> podres ──> holders: device -> pods, shares, conflicts
//!                                   ids: the shapes that plugins give a device
//! API server ──pod and node events──> pods: holdings by number, demand, inventory
//!    or kubelet ──ListPods, of one node──┘
//! ```
//!
//! Pure but for the clients: [`podres`] and [`kubelet`] of the kubelet, and `watch` of the API server behind feature `kube`.
//! Modules in reading order: [`ids`], [`holders`], [`socket`], [`podres`], [`sightings`], [`pods`], [`kubelet`], [`slices`],
//! `watch`, [`conformance`].

pub mod conformance;
pub mod holders;
pub mod ids;
pub mod kubelet;
pub mod podres;
pub mod pods;
pub mod sightings;
pub mod slices;
pub mod socket;
#[cfg(feature = "kube")]
pub mod watch;

pub use holders::{Held, Holders, Known, NodeGpu, ResourceNames};
pub use socket::SocketError;
