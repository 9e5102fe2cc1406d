//! The API server as a source of events for [`pods`](crate::pods), behind feature `kube`.
//!
//! ```text
//! list, page by page ──> Listed ─┐
//! watch ──ADDED, MODIFIED, DELETED, BOOKMARK──> Told (what, when) ──> the caller's books
//!   └─ 410 Gone, or a broken list: list again
//! Date header of every answer ──> ApiClock ──> receipts on the API server's clock
//! Lease ──> one leader         owner references ──> the workload at the top
//! ```
//!
//! The connection (TLS, tokens, kubeconfig) is the `kube` crate's. Its typed watcher is not used: the books read an object's own
//! JSON and keep a few hundred bytes of it, a receipt needs the answer's headers, and most pods of a cluster ask for no GPU and
//! are dropped page by page. Modules in reading order: [`clock`], [`api`], [`follow`],
//! [`claims`], [`owners`], [`lease`].

pub mod api;
pub mod claims;
pub mod clock;
pub mod follow;
pub mod lease;
pub mod owners;

pub use api::{Api, ApiError, Call};
pub use claims::admin_access;
pub use clock::ApiClock;
pub use follow::{Event, Resource, Told, Wants, follow, list_pods, list_slices};
pub use lease::{Lease, LeaseOptions, Standing};
pub use owners::{OwnerRef, Owners, Top};
