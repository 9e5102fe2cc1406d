//! GPUs of this machine through NVML, the driver's own library.
//!
//! ```text
//! session: library, census ──> fleet: boards come and go ──> worker of each board ──calls, gpm──> board: readings in memory
//!                                  events: XIDs ──> record of each GPU                                 │
//!                                                                                    Source::read <────┘  (never waits)
//! ```
//!
//! Modules in reading order: [`session`], [`fault`], [`calls`], [`gpm`], `raw`, [`record`], [`board`], [`wishes`], [`worker`],
//! [`events`], [`fleet`].

pub mod board;
pub mod calls;
pub mod events;
pub mod fault;
pub mod fleet;
pub mod gpm;
mod raw;
pub mod record;
pub mod session;
pub mod wishes;
pub mod worker;

pub use board::{Ages, Board, Health, Standing};
pub use fleet::{Counts, Driver, Fleet, Options};
pub use session::OpenError;
