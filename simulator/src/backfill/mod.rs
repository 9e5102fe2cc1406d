//! Months in minutes: what agents, sink and closing would have made of the fleet, written at once, with past times.
//!
//! ```text
//! state ──observe──> the round that an agent would have published ──┬─ rows ──> gpu_samples, scrapes ─┐
//! kubelet ──sightings──> holdings by device ──┐                     │                                 ├─> closed hours ──> watermark
//! API ──api──> holdings, demand, inventory ───┴─ intervals ─────────│──> allocations, demand, nodes ──┤
//!                                                                   │          truth ─────────────────┘
//!                                                                   └─ frames: the messages themselves, as they reach the log
//! ```
//!
//! The agent asks every node at the start of each scrape interval, its kubelet too, and the one that wrote this lake knew all
//! that had happened up to the end of the window. Hours are made side by side, each device after the other, so that nothing is
//! sorted and little is in memory. Rows are made by the code that the sink uses, `schemas::rows`.
//!
//! Modules: `observe`, `sightings`, `intervals`, [`lake`], [`frames`].

pub mod frames;
mod intervals;
pub mod lake;
mod observe;
mod sightings;

use std::ops::Range;

use schemas::{Timestamp, Window};

use crate::plan::Plan;

/// What the agents of a backfill are like.
#[derive(Clone, Debug)]
pub struct Agents {
    /// Where they find pages: a node's page is this and [`crate::serve::path`].
    pub base: String,
    /// How long they wait for an answer, in ms.
    pub timeout_ms: u32,
}

impl Default for Agents {
    /// Those that scrape what `serve` listens at by default, with the agent's own defaults.
    fn default() -> Self {
        Self { base: "http://127.0.0.1:9500".to_owned(), timeout_ms: 10_000 }
    }
}

/// Numbers of the scrape rounds in `window`: round 0 is at the fleet's start.
fn ticks(plan: &Plan, window: Window) -> Range<i64> {
    let interval = plan.spec().scrape_interval.ms();
    let first = |at: Timestamp| (at.ms() - plan.start_ms() + interval - 1).div_euclid(interval);
    first(window.from())..first(window.to())
}

/// When round number `tick` is.
fn at(plan: &Plan, tick: i64) -> Timestamp {
    Timestamp::from_ms(plan.start_ms() + tick * plan.spec().scrape_interval.ms())
}
