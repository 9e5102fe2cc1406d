//! Checks that what is generated from the catalogue and the `.proto` files is what is checked in.

#![allow(clippy::unwrap_used)]

mod generated;
mod messages;
