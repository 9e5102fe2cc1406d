//! The crate as its users see it.
#![allow(clippy::unwrap_used)]

mod chaos;
mod kafka;
mod kill;
mod operator;
mod path;
mod transport;
