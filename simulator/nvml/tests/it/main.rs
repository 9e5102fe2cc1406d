//! The library in the hands of clients that no one here wrote, beside the page of the same node at the same instant.
#![allow(clippy::unwrap_used)]

mod device;
mod exporter;
mod exporter_program;
mod exporter_prometheus;
mod hostile;
mod memory;
mod misbehaviour;
mod peers;
mod program;
mod world;
mod wrapper;
