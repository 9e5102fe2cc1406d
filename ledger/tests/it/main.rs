//! The ledger through its public face.
#![allow(clippy::unwrap_used)]

mod vectors;
