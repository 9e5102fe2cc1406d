//! Rows of the lake to inputs, and hour rows back to the lake, as Arrow batches of `schemas::tables`.
//!
//! ```text
//! gpu_samples ─┐
//! scrapes ─────┤                                            ┌─hour_rows────> gpu_hours
//! allocations ─┼─Facts::add──> one Inputs a node ──hours──> rows
//! nodes ───────┘                └─device_capacities────────> capacity ─device_rows──> device_hours
//! ```
//!
//! Rows come in any order and any number of times, from closed hours or hot files. Of a holding's or an inventory
//! interval's states the one observed last stands. Each node gets its own horizon, from its own scrape intervals.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use arrow::{array::RecordBatch, error::ArrowError};

use schemas::Timestamp;

use crate::input::{Inputs, Text};

mod allocations;
mod columns;
mod inventory;
mod rows;
mod samples;
mod settled;

pub use rows::{device_rows, hour_rows};
pub use settled::settled_rows;

/// Why rows of the lake are no input.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// A column is missing or of another type; the file is not of this table.
    #[error("table {table} has no column {column} of type {wanted}; was the file written by strandline?")]
    Column {
        /// The table.
        table: &'static str,
        /// The column.
        column: String,
        /// The type that it should have.
        wanted: &'static str,
    },
    /// A column that may not be null is.
    #[error("table {table}: column {column} is null in row {row}")]
    Null {
        /// The table.
        table: &'static str,
        /// The column.
        column: String,
        /// The row in its batch.
        row: usize,
    },
    /// Our rows do not make a batch.
    #[error("cannot build a batch of table {table}")]
    Build {
        /// The table.
        table: &'static str,
        /// What Arrow says.
        #[source]
        err: ArrowError,
    },
}

/// Tables that hours are computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// What devices read.
    GpuSamples,
    /// Rounds, failed ones too.
    Scrapes,
    /// Who held what.
    Allocations,
    /// What there was.
    Nodes,
}

/// Rows gathered by (cluster, node).
#[derive(Debug, Default)]
pub struct Facts {
    nodes: BTreeMap<(Text, Text), NodeFacts>,
    api_watched: BTreeSet<Text>,
}

/// All rows of one node.
#[derive(Debug, Default)]
struct NodeFacts {
    samples: samples::Samples,
    allocations: allocations::Allocations,
    inventory: inventory::Inventory,
}

/// One node, ready for [`crate::hours`].
#[derive(Debug)]
pub struct NodeInputs {
    /// Its cluster.
    pub cluster: Text,
    /// Its name.
    pub node: Text,
    /// What is known of it.
    pub inputs: Inputs,
    /// Devices that somebody named and whose weight nobody told: not in the inputs, nor what they held.
    pub unweighed: Vec<Text>,
}

impl Facts {
    /// Adds the rows of a batch; columns may stand in any order, and columns that the ledger does not read may be missing.
    pub fn add(&mut self, source: Source, batch: &RecordBatch) -> Result<(), BatchError> {
        match source {
            Source::GpuSamples => samples::add_samples(self, batch),
            Source::Scrapes => samples::add_scrapes(self, batch),
            Source::Allocations => allocations::add(self, batch),
            Source::Nodes => inventory::add(self, batch),
        }
    }

    /// Says that `cluster` has an allocations watcher, though none of its holdings may be among the rows: a name that
    /// the kubelet alone knows is flagged then.
    pub fn api_is_watched(&mut self, cluster: &str) {
        self.api_watched.insert(cluster.into());
    }

    /// The same facts in pieces, cut before each (cluster, node) of `bounds`, which must be sorted: one piece more than bounds.
    pub fn split(mut self, bounds: &[(String, String)]) -> Vec<Self> {
        let mut pieces = Vec::with_capacity(bounds.len() + 1);
        for (cluster, node) in bounds.iter().rev() {
            let after = self.nodes.split_off(&(Text::from(cluster.as_str()), Text::from(node.as_str())));
            pieces.push(Self { nodes: after, api_watched: self.api_watched.clone() });
        }
        pieces.push(self);
        pieces.reverse();
        pieces
    }

    /// Says that the time of these facts is not over: what each source's last state of a node told as lasting lasts until `at`.
    pub fn lasting_until(&mut self, at: Timestamp) {
        self.nodes.values_mut().for_each(|node| node.inventory.lasting_until(at));
    }

    fn node(&mut self, cluster: &Text, node: &Text) -> &mut NodeFacts {
        self.nodes.entry((cluster.clone(), node.clone())).or_default()
    }

    /// Each node's inputs, in order of (cluster, node).
    pub fn into_nodes(self) -> Vec<NodeInputs> {
        let Self { nodes, api_watched } = self;
        let one = |((cluster, node), facts): ((Text, Text), NodeFacts)| {
            let watched = api_watched.contains(&cluster);
            let (rules, samples, failed_scrapes) = facts.samples.settle(&node);
            let mut holdings = facts.allocations.settle(&cluster, watched, facts.inventory.unit(), samples.listed);
            let (devices, unweighed) =
                inventory::devices(&node, &facts.inventory, &samples.seen, rules.horizon_ms, &mut holdings);
            let without_inventory = facts.inventory.is_empty().then(|| node.clone()).into_iter().collect();
            let inputs = Inputs { rules, devices, holdings, samples: samples.samples, failed_scrapes, without_inventory };
            NodeInputs { cluster, node, inputs, unweighed }
        };
        nodes.into_iter().map(one).collect()
    }
}

/// Texts of a column as shared texts, where neighbours are mostly alike.
#[derive(Default)]
struct Shared(Option<Text>);

impl Shared {
    fn of(&mut self, text: &str) -> Text {
        match &self.0 {
            Some(last) if **last == *text => last.clone(),
            _ => {
                let text: Text = Arc::from(text);
                self.0 = Some(text.clone());
                text
            }
        }
    }
}
