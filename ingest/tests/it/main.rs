//! The crate as its users see it.
#![allow(clippy::unwrap_used)]

mod kill;
mod operator;
mod path;
mod transport;
