//! Messages of package `strandline.v1` (`schemas/proto`), generated and checked in, and the readings by field id.
//!
//! `cargo test -p schemas` regenerates both from the `.proto` files and the catalogue and fails when they differ;
//! `UPDATE=1 cargo test --profile ci -p schemas` writes them. `proto/released.binpb` is the descriptor of the last release, which later
//! ones must contain; `RELEASE=1` with the same command writes it anew. Field numbers of [`Readings`] are DCGM field ids.

#[allow(missing_docs, clippy::all)]
#[rustfmt::skip]
#[path = "proto/strandline.v1.rs"]
mod generated;
#[rustfmt::skip]
#[path = "proto/readings_by_id.rs"]
mod readings_by_id;

pub use generated::*;
pub use prost::Message;

/// A stored reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Of a field that DCGM stores as int64.
    Int(i64),
    /// Of a field that DCGM stores as a double; f32 gives back its printed decimals.
    Float(f32),
}
