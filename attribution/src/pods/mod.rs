//! Pod and node events to holdings, demand and inventory (rules A3, A9, A11). Pure: no I/O, no clock.
//!
//! ```text
//! JSON of the API server ─> object ─> evidence ─> life ──> state: holdings by number, demand ─> messages
//!                                     request: the scheduler's count
//!                              └────> nodes: presence, spells, labels ──────────────────────> messages
//! ```
//!
//! A watcher hands each event to a [`Book`] or [`Nodes`] with its receipt, and sends what [`Book::take_changes`] has. Modules in
//! reading order: [`options`], `object`, [`quantity`], `request`, `evidence`, `life`, [`book`], [`state`], [`nodes`], [`cases`].

pub mod book;
pub mod cases;
pub mod nodes;
pub mod options;
pub mod quantity;
pub mod state;

mod evidence;
mod life;
mod object;
mod request;

pub use book::{Book, Counts, Receipt, asks_for_devices};
pub use evidence::TerminalPhase;
pub use life::EndReason;
pub use nodes::{NodeState, Nodes};
pub use object::Refused;
pub use options::{Options, TeamSource};
pub use state::{PodDemand, PodHolding, PodState};
