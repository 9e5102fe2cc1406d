//! The ledger against the truth of a simulated fleet: table `truth_gpu_hours` beside `gpu_hours`.
//!
//! Allocated time must match to the millisecond, per owner, and per device outside `no_device_yet` (time by number only); of MIG
//! instances and shared devices to a millisecond a row, for there each row is a fraction that was rounded on its own.
//! Utilized time is sampled: what the ledger read must lie within its sampling error of the truth, once the time that nobody
//! saw is allowed for.

use std::collections::{BTreeMap, BTreeSet};

use datafusion::arrow::array::{
    Array, AsArray, Float32Array, RecordBatch, StringArray,
    types::{Float32Type, Int64Type},
};
use lake::{Lake, LakeError, read};
use schemas::{
    status::{Cause, RowKind, Tier},
    tables::{self, Table},
};

/// How far standard errors may carry the ledger from the truth: one run in some 15,000 is further off by chance.
const STANDARD_ERRORS: f64 = 4.0;

/// What came of comparing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Owners (pods by UID) in the truth or the ledger.
    pub owners: usize,
    /// Owners whose allocated time differs: UID, ledger, truth (ms).
    pub owner_differences: Vec<(String, i64, i64)>,
    /// (Device, owner) pairs compared, outside `no_device_yet`.
    pub device_owners: usize,
    /// Pairs where the ledger has time on a device that the truth does not give it, or more of it (ms).
    pub device_differences: Vec<(String, String, i64, i64)>,
    /// Time known by number only (ms): allocated in the truth on a device, in the ledger on none yet.
    pub no_device_yet_ms: i64,
    /// Allocated time, ledger and truth (ms).
    pub allocated_ms: (i64, i64),
    /// By tier.
    pub tiers: Vec<TierComparison>,
}

/// Utilized time of one tier.
#[derive(Clone, Debug, PartialEq)]
pub struct TierComparison {
    /// The tier.
    pub tier: Tier,
    /// By the ledger (ms).
    pub ledger_ms: i64,
    /// In truth, unobserved time included (ms).
    pub truth_ms: i64,
    /// Time that nobody saw (ms): the truth may have used up to all of it.
    pub unobserved_ms: i64,
    /// One standard error of the ledger's figure by its samples (ms).
    pub standard_error_ms: f64,
    /// Samples behind it.
    pub samples: u64,
}

impl TierComparison {
    /// Whether truth lies where the ledger says it must.
    pub fn holds(&self) -> bool {
        let slack = STANDARD_ERRORS * self.standard_error_ms;
        let (ledger, truth) = (self.ledger_ms as f64, self.truth_ms as f64);
        ledger - slack <= truth && truth <= ledger + self.unobserved_ms as f64 + slack
    }
}

impl Comparison {
    /// Whether all of it holds.
    pub fn holds(&self) -> bool {
        self.owner_differences.is_empty() && self.device_differences.is_empty() && self.tiers.iter().all(TierComparison::holds)
    }
}

#[derive(Default)]
struct Book {
    /// Owner -> ms.
    owners: BTreeMap<String, i64>,
    /// (Device, owner) -> ms.
    devices: BTreeMap<(String, String), i64>,
    /// Owner -> how many rows it has.
    rows: BTreeMap<String, i64>,
    /// Owners of instances and replicas.
    fractions: BTreeSet<String>,
    by_number: i64,
    utilized: [i64; 3],
    unobserved: [i64; 3],
}

/// Compares the hours that both tables have, of the clusters that the truth knows.
pub fn compare(lake: &Lake) -> Result<Comparison, LakeError> {
    let (ledger, truth) = (tables::get("gpu_hours"), tables::get("truth_gpu_hours"));
    let hours: BTreeSet<_> = lake.closed_files(truth, None)?.iter().map(|file| file.key.hour).collect();
    let (mut ours, mut theirs) = (Book::default(), Book::default());
    let mut clusters: BTreeSet<String> = BTreeSet::new();
    for (table, book) in [(truth, &mut theirs), (ledger, &mut ours)] {
        for file in lake.closed_files(table, None)?.iter().filter(|file| hours.contains(&file.key.hour)) {
            for batch in read::rows(table, &file.path, Some(&columns(table)))? {
                if table.name == truth.name {
                    let found = batch.column(CLUSTER).as_string_opt::<i32>().into_iter().flatten().flatten();
                    clusters.extend(found.map(str::to_owned));
                }
                book.add(&batch, &clusters);
            }
        }
    }
    let errors = Errors::of(lake)?;
    let mut comparison = Comparison {
        owners: ours.owners.keys().chain(theirs.owners.keys()).collect::<BTreeSet<_>>().len(),
        device_owners: ours.devices.len(),
        no_device_yet_ms: ours.by_number,
        allocated_ms: (ours.owners.values().sum(), theirs.owners.values().sum()),
        ..Comparison::default()
    };
    let rounding = |owner: &str| {
        let rows = |book: &Book| book.rows.get(owner).copied().unwrap_or(0);
        let fraction = ours.fractions.contains(owner) || theirs.fractions.contains(owner);
        if fraction { rows(&ours) + rows(&theirs) } else { 0 }
    };
    let mut rounded = 0;
    for owner in ours.owners.keys().chain(theirs.owners.keys()).collect::<BTreeSet<_>>() {
        let of = |book: &Book| book.owners.get(owner).copied().unwrap_or(0);
        rounded += rounding(owner);
        if (of(&ours) - of(&theirs)).abs() > rounding(owner) {
            comparison.owner_differences.push((owner.clone(), of(&ours), of(&theirs)));
        }
    }
    // What an owner lacks on its devices it has by number, and no device may have more than the truth gives it.
    let mut lacking: BTreeMap<&str, i64> = BTreeMap::new();
    for pair in ours.devices.keys().chain(theirs.devices.keys()).collect::<BTreeSet<_>>() {
        let of = |book: &Book| book.devices.get(pair).copied().unwrap_or(0);
        let (mine, true_ms) = (of(&ours), of(&theirs));
        if mine > true_ms + rounding(&pair.1) {
            comparison.device_differences.push((pair.0.clone(), pair.1.clone(), mine, true_ms));
        }
        *lacking.entry(&pair.1).or_default() += true_ms - mine;
    }
    let lacking: i64 = lacking.values().sum();
    if (lacking - ours.by_number).abs() > rounded {
        comparison.device_differences.push(("all devices".into(), "all owners".into(), ours.by_number, lacking));
    }
    for (number, &tier) in Tier::ALL.iter().enumerate() {
        comparison.tiers.push(TierComparison {
            tier,
            ledger_ms: ours.utilized[number],
            truth_ms: theirs.utilized[number],
            unobserved_ms: ours.unobserved[number],
            standard_error_ms: errors.variance_ms2[number].sqrt(),
            samples: errors.samples,
        });
    }
    Ok(comparison)
}

const FIXED: [&str; 7] = ["device", "kind", "pod_uid", "ms", "cluster", "profile", "flags"];
/// Place of the cluster among them.
const CLUSTER: usize = 4;

fn columns(table: &'static Table) -> Vec<&'static str> {
    let mut names = FIXED.to_vec();
    for tier in Tier::ALL {
        let mut parts = vec![format!("{tier}_utilized_ms")];
        parts.extend(Cause::ALL.iter().map(|cause| format!("{tier}_unobserved_{cause}_ms")));
        names.extend(parts.iter().filter_map(|part| table.index(part)).map(|index| table.columns[index].name.as_str()));
    }
    names
}

impl Book {
    fn add(&mut self, batch: &RecordBatch, clusters: &BTreeSet<String>) {
        let text = |place: usize, row: usize| {
            batch.column(place).as_string_opt::<i32>().filter(|c| c.is_valid(row)).map(|c| c.value(row).to_owned())
        };
        let int = |place: usize, row: usize| {
            batch.column(place).as_primitive_opt::<Int64Type>().filter(|c| c.is_valid(row)).map_or(0, |c| c.value(row))
        };
        let per_tier = 1 + Cause::ALL.len();
        for row in 0..batch.num_rows() {
            if text(1, row).as_deref().and_then(RowKind::from_text) != Some(RowKind::Owner)
                || text(CLUSTER, row).is_none_or(|cluster| !clusters.contains(&cluster))
            {
                continue;
            }
            let (owner, ms) = (text(2, row).unwrap_or_default(), int(3, row));
            *self.owners.entry(owner.clone()).or_default() += ms;
            *self.rows.entry(owner.clone()).or_default() += 1;
            let shared = text(6, row).is_some_and(|flags| flags.split(',').any(|flag| flag == "shared"));
            if shared || text(5, row).is_some() {
                self.fractions.insert(owner.clone());
            }
            match text(0, row) {
                Some(device) => *self.devices.entry((device, owner)).or_default() += ms,
                None => self.by_number += ms,
            }
            for tier in 0..Tier::ALL.len() {
                let first = FIXED.len() + tier * per_tier;
                self.utilized[tier] += int(first, row);
                self.unobserved[tier] += (first + 1..first + per_tier).map(|place| int(place, row)).sum::<i64>();
            }
        }
    }
}

/// Variance of the ledger's utilized time by tier. A sample stands for one interval, so n of them with variance s² are off by
/// interval x s x sqrt(n): per pod and device, summed.
#[derive(Default)]
struct Errors {
    variance_ms2: [f64; 3],
    samples: u64,
}

#[derive(Default, Clone, Copy)]
struct Spread {
    n: f64,
    sum: f64,
    squares: f64,
}

impl Spread {
    fn add(&mut self, value: f64) {
        self.n += 1.0;
        self.sum += value;
        self.squares += value * value;
    }

    /// n times the variance, 0 for fewer than two.
    fn n_variance(self) -> f64 {
        if self.n < 2.0 { 0.0 } else { (self.squares - self.sum * self.sum / self.n).max(0.0) * self.n / (self.n - 1.0) }
    }
}

impl Errors {
    fn of(lake: &Lake) -> Result<Self, LakeError> {
        let mut interval: i64 = 0;
        let scrapes = tables::get("scrapes");
        for file in lake.closed_files(scrapes, None)? {
            for batch in read::rows(scrapes, &file.path, Some(&["interval_ms"]))? {
                let longest = batch.column(0).as_primitive_opt::<Int64Type>().and_then(datafusion::arrow::compute::max);
                interval = interval.max(longest.unwrap_or(0));
            }
        }
        let names = [
            "device",
            "namespace",
            "pod",
            "dev_gpu_util",
            "prof_gr_engine_active",
            "prof_sm_active",
            "prof_pipe_tensor_active",
            "prof_dram_active",
        ];
        let samples = tables::get("gpu_samples");
        let mut spreads: BTreeMap<(String, String), [Spread; 3]> = BTreeMap::new();
        let mut errors = Self::default();
        for file in lake.closed_files(samples, None)? {
            for batch in read::rows(samples, &file.path, Some(&names))? {
                let texts: Vec<&StringArray> = (0..3).filter_map(|place| batch.column(place).as_string_opt::<i32>()).collect();
                let util = batch.column(3).as_primitive_opt::<Int64Type>();
                let ratios: Vec<&Float32Array> =
                    (4..8).filter_map(|p| batch.column(p).as_primitive_opt::<Float32Type>()).collect();
                let ([device, namespace, pod], Some(util), [gr, sm, tensor, dram]) = (&texts[..], util, &ratios[..]) else {
                    continue;
                };
                for row in (0..batch.num_rows()).filter(|row| pod.is_valid(*row) && namespace.is_valid(*row)) {
                    errors.samples += 1;
                    let key = (device.value(row).to_owned(), format!("{}/{}", namespace.value(row), pod.value(row)));
                    let of_pod = spreads.entry(key).or_default();
                    let ratio = |column: &Float32Array| column.is_valid(row).then(|| f64::from(column.value(row)));
                    let busy = if util.is_valid(row) { Some(util.value(row) as f64 / 100.0) } else { ratio(gr) };
                    let effective = ratio(tensor).zip(ratio(dram)).map(|(t, d)| t.max(d / 0.8).min(1.0));
                    for (spread, value) in of_pod.iter_mut().zip([busy, ratio(sm), effective]) {
                        if let Some(value) = value {
                            spread.add(value);
                        }
                    }
                }
            }
        }
        for of_pod in spreads.values() {
            for (variance, spread) in errors.variance_ms2.iter_mut().zip(of_pod) {
                *variance += (interval as f64).powi(2) * spread.n_variance();
            }
        }
        Ok(errors)
    }
}
