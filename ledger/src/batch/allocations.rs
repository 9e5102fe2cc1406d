//! `allocations`: states of holdings and sightings, of which the last observed stands.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    num::NonZeroU32,
};

use arrow::array::RecordBatch;
use schemas::{Timestamp, status::HoldingSource};

use super::{BatchError, Facts, Shared, columns::Columns};
use crate::{
    input::{Held, Holding, Ids, Pod, Ratio, Text},
    row::FlagSet,
    settle::{Sighting, settle},
};

/// What one node's holdings are, by (source, holding id), each with when it was observed.
#[derive(Debug, Default)]
pub(super) struct Allocations(BTreeMap<(Text, Text), (Observed, State)>);

/// Order of states: observed at, then revision, then whatever tells two apart.
type Observed = (Timestamp, i64);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// And whether the row says what each device held by number weighs.
    Holding(Holding, bool),
    /// And whether it goes on as far as its state tells: later listings have it too, or there would be another state.
    Sighting(Sighting, bool),
}

impl Allocations {
    /// Holdings of the node's devices; one held by number weighs `unit` where its row does not say. `listed` is the last time
    /// that its kubelet is known to have told who holds what.
    pub(super) fn settle(self, cluster: &str, api_watched: bool, unit: Ratio, listed: Option<Timestamp>) -> Vec<Holding> {
        let (mut holdings, mut sightings) = (Vec::new(), Vec::new());
        for (_, state) in self.0.into_values() {
            match state {
                State::Holding(mut holding, weighed) => {
                    if let (Held::Count { weight, .. }, false) = (&mut holding.held, weighed) {
                        *weight = unit;
                    }
                    holdings.push(holding);
                }
                State::Sighting(mut sighting, goes_on) => {
                    // A listing that changes nothing is not told; the rounds tell that there was one.
                    if goes_on && sighting.last_listed.is_some() {
                        sighting.last_listed = sighting.last_listed.max(listed);
                    }
                    sightings.push(sighting);
                }
            }
        }
        let watched = api_watched || holdings.iter().any(|h| h.source == HoldingSource::Api);
        if watched || !holdings.is_empty() {
            settle(cluster, Some(&holdings), &sightings)
        } else {
            settle(cluster, None, &sightings)
        }
    }
}

pub(super) fn add(facts: &mut Facts, batch: &RecordBatch) -> Result<(), BatchError> {
    let columns = Columns::of("allocations", batch);
    let text = |name| columns.texts(name);
    let (clusters, nodes, devices, holding_ids) = (text("cluster")?, text("node")?, text("device")?, text("holding_id")?);
    let (uids, namespaces, pods, containers) = (text("pod_uid")?, text("namespace")?, text("pod")?, text("container")?);
    let (teams, workloads, queues, flags, sources) =
        (text("team")?, text("workload")?, text("queue")?, text("flags")?, text("source")?);
    let replica_ids = text("replica_ids")?;
    let (counts, id_counts) = (columns.ints("count")?, columns.ints("ids")?);
    let (weight_nums, weight_dens) = (columns.ints("weight_num")?, columns.ints("weight_den")?);
    let (bound_at, known_from, started_at) =
        (columns.times("bound_at")?, columns.times("known_from")?, columns.times("started_at")?);
    let (terminating, begins, ends) =
        (columns.times("terminating_from")?, columns.times("interval_from")?, columns.times("interval_to")?);
    let last_listed = columns.times("last_listed")?;
    let (observed_at, revisions) = (columns.times("observed_at")?, columns.ints("revision")?);

    let (mut cluster, mut node) = (Shared::default(), Shared::default());
    for row in 0..batch.num_rows() {
        let this_cluster = cluster.of(clusters.must(row)?);
        let this_node = node.of(nodes.must(row)?);
        let (holding_id, source) = (holding_ids.must(row)?, sources.must(row)?);
        let kind = HoldingSource::from_text(source).unwrap_or(HoldingSource::Import);
        let begin = begins.must(row)?;
        let ids = ids(replica_ids.get(row), id_counts.count(row));
        let flags = FlagSet::from_text(flags.get(row).unwrap_or("")).0;
        let observed = (observed_at.must(row)?, revisions.get(row).unwrap_or(0));
        let (namespace, pod): (Text, Text) = (namespaces.must(row)?.into(), pods.must(row)?.into());
        let device = devices.get(row).filter(|device| !device.is_empty()).map(Text::from);
        let uid = uids.get(row).filter(|uid| !uid.is_empty()).map(Text::from);
        let state = match (kind, device) {
            (HoldingSource::PodResources, Some(device)) => {
                let sighting = Sighting {
                    node: this_node.clone(),
                    namespace,
                    pod,
                    pod_uid: uid,
                    container: containers.get(row).map(Text::from),
                    device,
                    ids,
                    first_seen: known_from.get(row).unwrap_or(begin),
                    seen_until: ends.get(row),
                    last_listed: last_listed.get(row),
                    flags,
                };
                // One observed after its last listing was missed by the one that observed it.
                let goes_on = sighting.seen_until.is_none() && sighting.last_listed.is_none_or(|last| last >= observed.0);
                State::Sighting(sighting, goes_on)
            }
            (_, device) => {
                let weight = weight_nums.count(row).zip(weight_dens.count(row)).and_then(|(num, den)| Ratio::new(num, den));
                let held = match device {
                    Some(device) => Held::Device { device, ids, known_from: known_from.get(row) },
                    None => Held::Count { count: counts.count(row).unwrap_or(1), weight: weight.unwrap_or(Ratio::ONE) },
                };
                let holding = Holding {
                    pod: Pod {
                        uid: uid.unwrap_or_else(|| format!("{source}:{this_cluster}/{holding_id}").into()),
                        namespace,
                        name: pod,
                        team: teams.get(row).map(Text::from),
                        workload: workloads.get(row).map(Text::from),
                        queue: queues.get(row).map(Text::from),
                    },
                    node: this_node.clone(),
                    held,
                    bound: bound_at.get(row).unwrap_or(begin),
                    started: started_at.get(row),
                    terminating_from: terminating.get(row),
                    end: ends.get(row),
                    source: kind,
                    flags,
                };
                State::Holding(holding, weight.is_some())
            }
        };
        if kind == HoldingSource::Api {
            facts.api_watched.insert(this_cluster.clone());
        }
        let states = &mut facts.node(&this_cluster, &this_node).allocations.0;
        match states.entry((source.into(), holding_id.into())) {
            Entry::Vacant(free) => {
                free.insert((observed, state));
            }
            Entry::Occupied(mut last) => {
                let newer = (observed, state);
                if *last.get() < newer {
                    last.insert(newer);
                }
            }
        }
    }
    Ok(())
}

/// Which ids, where all are numbers (`uuid::n` or n), else how many.
fn ids(named: Option<&str>, count: Option<u32>) -> Ids {
    let named: Vec<&str> = named.unwrap_or("").split(',').filter(|id| !id.is_empty()).collect();
    let numbers: Option<Vec<u32>> = named.iter().map(|id| id.rsplit("::").next()?.parse().ok()).collect();
    match numbers {
        Some(numbers) if !numbers.is_empty() => Ids::Named(numbers),
        _ => {
            let count = count.or_else(|| u32::try_from(named.len()).ok()).and_then(NonZeroU32::new);
            count.map_or(Ids::ONE, Ids::Number)
        }
    }
}
