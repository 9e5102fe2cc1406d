//! `libnvidia-ml.so.1` of a simulated node: what NVML's clients load, unmodified, and read as if GPUs were there.
//!
//! ```text
//! C caller ─> calls/ (one function each) ─> library: initialised? scripted to fail? whose handle?
//!                                              └─> machine: the node's GPUs at the clock's time ─> simulator's state
//! ```
//!
//! `strandline-sim nvml` lays the library and sets the variables that [`simulator::nvml::Setup`] reads at the first
//! `nvmlInit`. State is a function of the wall clock, so processes agree. What a board cannot say is NOT_SUPPORTED, not 0;
//! so is every function of the header that is not written here ([`unsupported`]).
//!
//! Pointers are touched in `boundary` alone, each behind a type that only a C caller can make. Handles are numbers that are
//! looked up, never followed.
//!
//! Modules in reading order: `boundary`, `abi`, `machine`, `library`, `fields`, `gpm`, `events`, `calls`, `unsupported`.

mod abi;
mod boundary;
mod calls;
mod events;
mod fields;
mod gpm;
mod library;
mod machine;
mod unsupported;
