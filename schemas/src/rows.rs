//! Messages to rows of the lake's tables: what a round, a holding, demand or a node's inventory is there. Pure, and the same rows
//! for the same message always, whoever writes them.

mod builder;
mod intervals;
mod numbers;
mod rounds;
mod samples;
mod scrapes;
mod texts;
pub mod wire;

pub use builder::Rows;
pub use intervals::{demand, holding, node};
pub use rounds::Rounds;
pub use samples::{Head, SampleColumns};
pub use scrapes::ScrapeColumns;

/// Times that a row may carry: from 1970 to the end of year 9999. Others have no folder.
pub const TIMES_MS: std::ops::Range<i64> = 0..253_402_300_800_000;

/// Where in the log a message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Partition.
    pub partition: u32,
    /// Offset.
    pub offset: u64,
}
