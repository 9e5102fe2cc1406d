//! The crate as its users see it.
#![allow(clippy::unwrap_used)]

mod corpus;
mod kill;
mod operator;
mod path;
mod targets;
mod transport;
