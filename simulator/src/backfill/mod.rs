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
//! A node's agent asks its page at the start of each scrape interval, its kubelet too, and whoever wrote this lake knew all that
//! had happened up to the end of the window. It dates what it sees by the node's own clock, from that clock's first round of the
//! fleet's time on; where clocks may be wrong (`faults.clock_skew`) it has measured by how much, exactly (chosen). Hours are made
//! side by side, each device after the other, so that nothing is sorted and little is in memory. Rows are made by the code that the
//! sink uses, `schemas::rows`.
//!
//! Modules: `sheet`, `observe`, `sightings`, `intervals`, [`lake`], [`frames`].

pub mod frames;
mod intervals;
pub mod lake;
mod observe;
mod sheet;
mod sightings;

use std::ops::Range;

use schemas::{Timestamp, Window};

use crate::plan::{NodePlan, Plan};

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

/// What a node's agent puts on its rounds and sightings.
#[derive(Clone, Copy, Debug)]
struct Dating {
    start_ms: i64,
    interval_ms: i64,
    /// By how much its clock is ahead.
    skew_ms: i64,
    /// What it has measured of that.
    measured_ms: Option<i64>,
    /// Number of its first round: before it, its clock showed a time before the fleet's.
    first: i64,
}

impl Dating {
    fn of(plan: &Plan, node: &NodePlan) -> Self {
        let (skew_ms, interval_ms) = (node.skew_ms, plan.spec().scrape_interval.ms());
        let measured_ms = plan.spec().faults.clock_skew.as_ref().map(|_| skew_ms);
        let first = ((-skew_ms).max(0) + interval_ms - 1).div_euclid(interval_ms);
        Self { start_ms: plan.start_ms(), interval_ms, skew_ms, measured_ms, first }
    }

    /// Rounds of `window` by the agent's clock, as far as they are in the plan's time.
    fn rounds(&self, plan: &Plan, window: Window) -> Range<i64> {
        let first = |at: Timestamp| (at.ms() - self.skew_ms - self.start_ms + self.interval_ms - 1).div_euclid(self.interval_ms);
        let all = ticks(plan, plan.window());
        let inside = |tick: i64| tick.max(self.first).min(all.end);
        inside(first(window.from()))..inside(first(window.to()))
    }

    /// `at` of round `tick`.
    fn stamp(&self, tick: i64) -> Timestamp {
        Timestamp::from_ms(self.start_ms + tick * self.interval_ms + self.skew_ms)
    }

    /// When the listing of round `tick` was had, as its sightings say it: put right where the ledger does so with the round.
    fn listed(&self, tick: i64) -> Timestamp {
        self.stamp(tick).without_skew(self.measured_ms)
    }

    fn sequence(&self, tick: i64) -> u64 {
        (tick - self.first).unsigned_abs() + 1
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
