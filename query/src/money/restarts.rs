//! Work that restarts lost: from a pod's last checkpoint to its end, where it ended Failed or an import says that it restarted.
//!
//! A pod that is preempted or evicted is stopped by its kubelet, which reports the phase Failed before the pod goes; one that was
//! deleted by its owner, or ended well, lost nothing. So Failed alone counts. Without a checkpoint everything since the bind, or
//! since the pod's restart before, is lost, and that is counted beside.

use std::collections::{BTreeMap, BTreeSet};

use datafusion::arrow::array::RecordBatch;
use lake::{Lake, LakeError, read};
use ledger::{
    input::Text,
    money::{TooFine, nearest_part},
};
use schemas::{HOUR_MS, Timestamp, status::InventoryKind, tables};

use super::{
    card::Labels,
    columns::{Columns, int, text, time},
};

/// Columns of `allocations` that are read, where a lake has them.
pub(super) const COLUMNS: [&str; 20] = [
    "cluster",
    "node",
    "device",
    "holding_id",
    "pod_uid",
    "namespace",
    "pod",
    "team",
    "count",
    "weight_num",
    "weight_den",
    "ids",
    "bound_at",
    "interval_from",
    "interval_to",
    "source",
    "observed_at",
    "revision",
    "last_checkpoint",
    "terminal_phase",
];

/// Columns of `nodes` that are read.
pub(super) const NODE_COLUMNS: [&str; 14] = [
    "cluster",
    "node",
    "kind",
    "device",
    "provider",
    "region",
    "product",
    "purchase_option",
    "reservation",
    "weight_num",
    "weight_den",
    "replicas",
    "observed_at",
    "revision",
];

/// A pod by its UID, or by namespace and name.
type Named = (Option<Text>, Option<(Text, Text)>);

/// A row of table `restarts`.
#[derive(Clone, Debug)]
pub(super) struct Imported {
    uid: Option<Text>,
    name: Option<(Text, Text)>,
    at: Timestamp,
    checkpoint: Option<Timestamp>,
    /// The pod's restart before this one.
    before: Option<Timestamp>,
}

impl Imported {
    fn is_of(&self, holding: &Holding) -> bool {
        match &self.uid {
            Some(uid) => holding.uid.as_ref() == Some(uid),
            None => self.name.as_ref() == Some(&holding.name),
        }
    }
}

/// Every imported restart, by time; exact repeats once.
pub(super) fn imported(lake: &Lake) -> Result<Vec<Imported>, LakeError> {
    let table = tables::get("restarts");
    let mut found = BTreeSet::new();
    for file in lake.closed_files(table, None)? {
        for batch in read::rows(table, &file.path, None)? {
            let columns = Columns(&batch);
            let (uids, spaces, pods) = (columns.texts("pod_uid"), columns.texts("namespace"), columns.texts("pod"));
            let (at, checkpoints) = (columns.times("at"), columns.times("last_checkpoint"));
            for row in 0..batch.num_rows() {
                let Some(at) = time(at, row) else { continue };
                let name = text(pods, row).map(|pod| (Text::from(text(spaces, row).unwrap_or("default")), Text::from(pod)));
                found.insert((at, (text(uids, row).map(Text::from), name), time(checkpoints, row)));
            }
        }
    }
    let mut before: BTreeMap<Named, Timestamp> = BTreeMap::new();
    let one = |(at, (uid, name), checkpoint): (Timestamp, Named, Option<Timestamp>)| {
        let before = before.insert((uid.clone(), name.clone()), at);
        Imported { uid, name, at, checkpoint, before }
    };
    Ok(found.into_iter().map(one).collect())
}

/// Work lost in an hour.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lost {
    pub(super) labels: Labels,
    pub(super) team: Option<Text>,
    /// GPUs held: numerator and denominator.
    pub(super) gpus: (i64, i64),
    /// First instant of the work lost.
    pub(super) from: Timestamp,
    /// First instant after it. What ends with an hour belongs to that hour.
    pub(super) at: Timestamp,
    /// Without a checkpoint.
    pub(super) since_bind: bool,
}

impl Lost {
    /// Whether it was lost in the hour.
    pub(super) fn is_of(&self, hour: Timestamp) -> bool {
        hour < self.at && self.at <= hour.plus_ms(HOUR_MS)
    }

    /// GPU time lost between two instants.
    pub(super) fn gpu_ms(&self, from: Timestamp, to: Timestamp) -> Result<i64, TooFine> {
        let ms = self.at.min(to).ms().saturating_sub(self.from.max(from).ms()).max(0);
        nearest_part(ms, self.gpus.0, self.gpus.1)
    }
}

/// What an hour lost.
#[derive(Clone, Debug, Default)]
pub(super) struct HourLost {
    pub(super) lost: Vec<Lost>,
    /// Imported restarts of pods that hold nothing then.
    pub(super) unknown: usize,
}

/// One holding's state as observed last.
struct Holding {
    place: (Text, Text),
    device: Option<Text>,
    uid: Option<Text>,
    name: (Text, Text),
    team: Option<Text>,
    count: i64,
    weight: Option<(i64, i64)>,
    ids: i64,
    bound: Timestamp,
    end: Option<Timestamp>,
    is_podres: bool,
    checkpoint: Option<Timestamp>,
    failed: bool,
}

/// Whether an hour may have lost anything; `phases` are its allocations, with the column of that name at least.
pub(super) fn may_be_of(hour: Timestamp, imported: &[Imported], phases: &[RecordBatch]) -> bool {
    let failed = |batch: &RecordBatch| {
        let phases = Columns(batch).texts("terminal_phase");
        (0..batch.num_rows()).any(|row| text(phases, row) == Some("Failed"))
    };
    imported.iter().any(|restart| hour < restart.at && restart.at <= hour.plus_ms(HOUR_MS)) || phases.iter().any(failed)
}

/// What `hour` lost; `nodes` is asked only where there is something.
pub(super) fn of_hour(
    hour: Timestamp,
    allocations: &[RecordBatch],
    imported: &[Imported],
    nodes: impl FnOnce() -> Result<Vec<RecordBatch>, LakeError>,
) -> Result<HourLost, LakeError> {
    let end = hour.plus_ms(HOUR_MS);
    let inside = |at: Timestamp| hour < at && at <= end;
    let told: Vec<&Imported> = imported.iter().filter(|restart| inside(restart.at)).collect();
    let holdings = holdings(allocations);
    let ended = |holding: &Holding| holding.failed && holding.end.is_some_and(inside);
    if told.is_empty() && !holdings.iter().any(ended) {
        return Ok(HourLost::default());
    }
    let places = Places::of(&nodes()?);
    let mut found = HourLost::default();
    for restart in told {
        let held = |holding: &&Holding| holding.bound < restart.at && holding.end.is_none_or(|end| end >= restart.at);
        let mut of_pod: Vec<&Holding> = holdings.iter().filter(|h| restart.is_of(h)).filter(held).collect();
        // The scheduler's book says how many; the kubelet's list would say it again.
        if of_pod.iter().any(|holding| !holding.is_podres) {
            of_pod.retain(|holding| !holding.is_podres);
        }
        found.unknown += usize::from(of_pod.is_empty());
        let since = restart.checkpoint.or(restart.before);
        let lost = of_pod.into_iter().filter_map(|h| places.lost(h, since, restart.at, restart.checkpoint.is_none()));
        found.lost.extend(lost);
    }
    for holding in holdings.iter().filter(|holding| ended(holding)) {
        let at = holding.end.unwrap_or(end);
        let of_pod = || imported.iter().filter(|restart| restart.is_of(holding));
        if of_pod().any(|restart| restart.at == at) {
            continue; // what an import says of this end goes first
        }
        let before = of_pod().map(|restart| restart.at).filter(|earlier| *earlier < at).max();
        let lost = places.lost(holding, holding.checkpoint.or(before), at, holding.checkpoint.is_none());
        found.lost.extend(lost);
    }
    found.lost.sort();
    Ok(found)
}

fn holdings(batches: &[RecordBatch]) -> Vec<Holding> {
    type Id = (Text, Text, Text, Text);
    type State = (Option<Timestamp>, Option<i64>);
    let mut latest: BTreeMap<Id, (State, Holding)> = BTreeMap::new();
    for batch in batches {
        let columns = Columns(batch);
        let texts = |name| columns.texts(name);
        let (clusters, nodes, sources, ids) = (texts("cluster"), texts("node"), texts("source"), texts("holding_id"));
        let (devices, uids, spaces, pods, teams) =
            (texts("device"), texts("pod_uid"), texts("namespace"), texts("pod"), texts("team"));
        let (counts, nums, dens) = (columns.ints("count"), columns.ints("weight_num"), columns.ints("weight_den"));
        let (replica_ids, phases) = (columns.ints("ids"), texts("terminal_phase"));
        let (bound, begins, ends) = (columns.times("bound_at"), columns.times("interval_from"), columns.times("interval_to"));
        let (observed, revisions, checkpoints) =
            (columns.times("observed_at"), columns.ints("revision"), columns.times("last_checkpoint"));
        let shared = |column, row| Text::from(text(column, row).unwrap_or_default());
        for row in 0..batch.num_rows() {
            let Some(begin) = time(begins, row) else { continue };
            let id = (shared(clusters, row), shared(nodes, row), shared(sources, row), shared(ids, row));
            let state = (time(observed, row), int(revisions, row));
            if latest.get(&id).is_some_and(|(known, _)| *known > state) {
                continue;
            }
            let holding = Holding {
                place: (id.0.clone(), id.1.clone()),
                device: text(devices, row).map(Text::from),
                uid: text(uids, row).map(Text::from),
                name: (shared(spaces, row), shared(pods, row)),
                team: text(teams, row).map(Text::from),
                count: int(counts, row).unwrap_or(1),
                weight: int(nums, row).zip(int(dens, row)).filter(|(_, den)| *den > 0),
                ids: int(replica_ids, row).unwrap_or(1),
                bound: time(bound, row).unwrap_or(begin),
                end: time(ends, row),
                is_podres: &*id.2 == "podres",
                checkpoint: time(checkpoints, row),
                failed: text(phases, row) == Some("Failed"),
            };
            latest.insert(id, (state, holding));
        }
    }
    latest.into_values().map(|(_, holding)| holding).collect()
}

/// Labels, weight and replicas of nodes (device none) and devices.
struct Places(BTreeMap<(Text, Text, Option<Text>), Place>);

struct Place {
    state: (Option<Timestamp>, Option<i64>),
    labels: Labels,
    weight: Option<(i64, i64)>,
    replicas: i64,
}

impl Places {
    fn of(batches: &[RecordBatch]) -> Self {
        let mut places: BTreeMap<(Text, Text, Option<Text>), Place> = BTreeMap::new();
        for batch in batches {
            let columns = Columns(batch);
            let (clusters, nodes, kinds) = (columns.texts("cluster"), columns.texts("node"), columns.texts("kind"));
            let (devices, labels) = (columns.texts("device"), columns.labels());
            let (nums, dens, replicas) = (columns.ints("weight_num"), columns.ints("weight_den"), columns.ints("replicas"));
            let (observed, revisions) = (columns.times("observed_at"), columns.ints("revision"));
            for row in 0..batch.num_rows() {
                if text(kinds, row).and_then(InventoryKind::from_text) == Some(InventoryKind::Unavailable) {
                    continue;
                }
                let shared = |column, row| Text::from(text(column, row).unwrap_or_default());
                let key = (shared(clusters, row), shared(nodes, row), text(devices, row).map(Text::from));
                let place = Place {
                    state: (time(observed, row), int(revisions, row)),
                    labels: labels.of(row),
                    weight: int(nums, row).zip(int(dens, row)).filter(|(_, den)| *den > 0),
                    replicas: int(replicas, row).unwrap_or(1).max(1),
                };
                if places.get(&key).is_none_or(|known| known.state <= place.state) {
                    places.insert(key, place);
                }
            }
        }
        Self(places)
    }

    /// What a holding lost between `since` (none: its bind) and `at`; none where that is nothing.
    fn lost(&self, holding: &Holding, since: Option<Timestamp>, at: Timestamp, since_bind: bool) -> Option<Lost> {
        let place = |device: Option<Text>| self.0.get(&(holding.place.0.clone(), holding.place.1.clone(), device));
        let of_node = place(None);
        let of_device = holding.device.clone().and_then(|device| place(Some(device)));
        // Shares of a GPU that it held: by number, or of its device.
        let (num, den) = match &holding.device {
            None => {
                let (num, den) = holding.weight.unwrap_or((1, of_node.map_or(1, |node| node.replicas)));
                (num.saturating_mul(holding.count), den)
            }
            Some(_) => {
                let (num, den) = of_device.and_then(|device| device.weight).unwrap_or((1, 1));
                (num.saturating_mul(holding.ids), den.saturating_mul(of_device.map_or(1, |device| device.replicas)))
            }
        };
        let from = since.map_or(holding.bound, |since| since.max(holding.bound));
        let labels = of_device.or(of_node).map(|place| place.labels.clone()).unwrap_or_default();
        let lost = Lost { labels, team: holding.team.clone(), gpus: (num.max(0), den.max(1)), from, at, since_bind };
        Some(lost).filter(|lost| lost.from < lost.at && lost.gpus.0 > 0)
    }
}
