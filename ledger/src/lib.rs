//! Samples and holdings to hour rows: where every GPU millisecond went. Pure: no I/O, no clock, no floats.
//!
//! ```text
//! devices ──┐
//! holdings ─┼─world─> one node, clamped ─┐ per UTC hour
//! records ──┘                            │
//!                device: who held it when, what is left over
//!                observe: what its samples saw of each owner, and why the rest was not seen
//!                by_number: holdings whose device nobody named yet, taken from what is left over
//!                rounding: exact fractions to whole milliseconds, top down ──> hour rows
//! ```
//!
//! Rows satisfy `capacity = owners + free + unavailable` per device, and per owner and tier
//! `ms = utilized + stranded + unobserved`, exactly. Everything is independent per node, and an hour's rows
//! depend on no record outside `[hour - horizon, end of the hour)`; so a caller may go node by node and hour by
//! hour, in any order, with all holdings and devices of the node that touch the hour (or cut a holding that does).
//!
//! Modules in reading order: [`reading`], [`input`], [`settle`] (raw facts to holdings), [`row`], `span`, `fraction`, `clamp`, `cover`, `world`,
//! `device`, `observe`, [`counter`], `meters`, `by_number`, `rounding`, [`mod@hours`], [`settled`] (what SQL computes the same from);
//! [`capacity`] (the same capacity from the inventory alone); [`mod@explain`] (an hour piece by piece); then [`batch`], the lake's
//! tables in and out, and [`case`], the vectors' text form. Beside the account: [`measures`] and [`baselines`], what a shape of work
//! usually does. [`money`] stands apart: it prices the time that hour rows state.

pub mod baselines;
pub mod batch;
pub mod capacity;
pub mod case;
pub mod explain;
pub mod hours;
pub mod input;
pub mod measures;
pub mod money;
pub mod reading;
pub mod row;
pub mod settle;
pub mod settled;

mod by_number;
mod clamp;
pub mod counter;
mod cover;
mod device;
mod fraction;
mod meters;
mod observe;
mod rounding;
mod span;
mod world;

pub use hours::{HoursError, hours, hours_and_settled};
pub use row::HourRow;
pub use settled::SettledRow;
