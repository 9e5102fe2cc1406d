//! The crate as its users see it.
#![allow(clippy::unwrap_used)]

mod path;
mod transport;
