//! The ledger through its public face.
#![allow(clippy::unwrap_used, clippy::type_complexity)]

mod lake;
mod meters;
mod money;
mod naive;
mod no_inventory;
mod properties;
mod settled;
mod vectors;
mod worlds;
