//! The fleet spec: what a person writes in YAML, checked.
//!
//! Unknown keys are refused with the nearest known one, limits with the key at fault. A checked spec can be planned.

mod check;
mod refusal;
mod scalar;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use exporter::Collectors;
use schemars::JsonSchema;
use schemas::{HOUR_MS, Timestamp};
use serde::Deserialize;

pub(crate) use self::check::matches;
pub use self::{
    refusal::{Problem, SpecError},
    scalar::{Layout, PerDay, Rate, Span},
};
use crate::{
    accelerator::{self, Vendor},
    exposition::{self, LoadError},
    mig,
    presets::Preset,
    replay::Replay,
    seed::Seed,
    shape::Shape,
};

/// One fleet.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetSpec {
    /// What it is called.
    pub name: String,
    /// Seed, unless the caller gives another.
    #[serde(default = "default_seed")]
    #[schemars(with = "u64")]
    pub seed: Seed,
    /// When the fleet opens, empty; a full UTC hour.
    #[schemars(with = "String")]
    pub start: Timestamp,
    /// How long it is planned.
    pub hours: u32,
    /// Interval at which its scrapers ask; faults of single scrapes last as long.
    #[serde(default = "default_interval")]
    pub scrape_interval: Span,
    /// Time zone of the daily and weekly cycle, by its IANA name.
    #[serde(default = "default_zone")]
    pub time_zone: String,
    /// How its pages look.
    #[serde(default)]
    pub exposition: Exposition,
    /// What was recorded elsewhere and is played again; [`FleetSpec::load`] reads it.
    #[serde(default)]
    pub replay: Replay,
    /// A measured cluster: pods of every shape ask, last and load their GPUs as its pods did.
    #[serde(default)]
    pub calibration: Option<Preset>,
    /// Clusters.
    pub clusters: Vec<Cluster>,
    /// Who wants GPUs.
    pub teams: Vec<Team>,
    /// How much work comes.
    #[serde(default)]
    pub arrivals: Arrivals,
    /// What goes wrong.
    #[serde(default)]
    pub faults: Faults,
}

/// How pages look.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Exposition {
    /// Spelling of the host name's label.
    pub hostname: Hostname,
    /// Whether pages carry pod labels, as dcgm-exporter does in Kubernetes mode.
    pub pod_labels: bool,
    /// Collectors file in dcgm-exporter's form (`field, type, help`), by its path beside the spec's own: which fields pages print.
    /// Not given: the built-in list. [`FleetSpec::load`] reads it.
    pub collectors: Option<PathBuf>,
    /// What is in that file, once it is read.
    #[serde(skip)]
    pub(crate) read: Option<Arc<Collectors>>,
}

impl Default for Exposition {
    fn default() -> Self {
        Self { hostname: Hostname::Lower, pod_labels: true, collectors: None, read: None }
    }
}

/// Spelling of the host name's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Hostname {
    /// `hostname`.
    Lower,
    /// `Hostname`, as releases before mid-2026.
    Classic,
    /// Not printed.
    Absent,
}

/// One cluster.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Its name, unique.
    pub name: String,
    /// Its nodes.
    pub node_pools: Vec<NodePool>,
}

/// Nodes that are alike; they are called `<name>-0`, `<name>-1`, ...
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodePool {
    /// Its name, unique in the fleet.
    pub name: String,
    /// How many nodes.
    pub count: u32,
    /// Product, as the driver names it (see `accelerators.csv`).
    pub product: String,
    /// GPUs of each node.
    pub gpus_per_node: u32,
    /// MIG instances of every GPU, by profile, or a list of such lists, one for each GPU; pods ask for
    /// `nvidia.com/mig-PROFILE`. Not given: GPUs are whole.
    #[serde(default)]
    pub mig: Option<Layout>,
    /// How the device plugin names MIG instances.
    #[serde(default)]
    pub mig_ids: MigIds,
    /// Replicas that each GPU is given out as, by time-slicing.
    #[serde(default = "one")]
    pub replicas: u32,
    /// Replicas are asked for as `nvidia.com/gpu.shared`, not as `nvidia.com/gpu`.
    #[serde(default)]
    pub rename: bool,
    /// Region.
    pub region: String,
    /// Zone.
    pub zone: String,
    /// Who rents it out.
    pub provider: String,
    /// How it is paid for: reserved, on-demand, spot, block.
    pub purchase_option: String,
}

/// How the device plugin names MIG instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MigIds {
    /// `MIG-` and a UUID of its own: drivers since R470.
    #[default]
    Uuid,
    /// `MIG-GPU-uuid/gi/ci`: drivers before that.
    Indexed,
}

impl NodePool {
    /// MIG instances of GPU `gpu`, by profile; none: it is whole.
    pub fn layout(&self, gpu: u32) -> &[String] {
        match &self.mig {
            None => &[],
            Some(Layout::Every(profiles)) => profiles,
            Some(Layout::Each(gpus)) => gpus.get(gpu as usize).map_or(&[], Vec::as_slice),
        }
    }

    /// Resource that a whole GPU of it, or a replica of one, is asked for as; none of a product that nobody knows.
    pub(crate) fn resource(&self) -> Option<&'static str> {
        let product = accelerator::by_product(&self.product)?;
        Some(if self.rename && product.vendor == Vendor::Nvidia { "nvidia.com/gpu.shared" } else { product.resource() })
    }

    /// Every resource that its nodes give: what one of it is of a whole GPU, and how many of it a node has.
    pub(crate) fn resources(&self) -> BTreeMap<String, ((u32, u32), u32)> {
        let mut found = BTreeMap::new();
        let Some(product) = accelerator::by_product(&self.product) else { return found };
        for gpu in 0..self.gpus_per_node {
            let layout = self.layout(gpu);
            let whole = self.resource().filter(|_| layout.is_empty());
            let whole = whole.map(|resource| (resource.to_owned(), (1, self.replicas), self.replicas));
            let placed = mig::place(product, layout).into_iter().flatten().filter(|_| !layout.is_empty());
            let placed = placed.map(|placed| (placed.profile.resource(), (placed.profile.slices, mig::SLICES), 1));
            for (resource, unit, count) in whole.into_iter().chain(placed) {
                found.entry(resource).or_insert((unit, 0)).1 += count;
            }
        }
        found
    }
}

/// The JSON Schema of fleet specs.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(FleetSpec)
}

/// One team.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Team {
    /// Its name.
    pub name: String,
    /// Namespace of its pods.
    pub namespace: String,
    /// Share of the work, relative to the other teams.
    pub weight: f64,
    /// Share of each shape in its GPU time, relative to each other.
    pub mix: Mix,
    /// Products that its pods ask for; none named: any.
    #[serde(default)]
    pub products: Vec<String>,
    /// Who goes first: a team takes the room of teams of lower priority where it finds none.
    #[serde(default)]
    pub priority: i32,
    /// Its training jobs that need several whole nodes at once.
    #[serde(default)]
    pub gangs: Option<Gangs>,
    /// How its jobs come.
    #[serde(default)]
    pub arrivals: ArrivalShape,
    /// Resource that pods of a shape ask for, one each unless it is whole GPUs; not given: whole GPUs of its products.
    #[serde(default)]
    pub resources: Resources,
}

impl Team {
    /// Whether its pods may have `product`.
    pub(crate) fn may_have(&self, product: &str) -> bool {
        self.products.is_empty() || self.products.iter().any(|p| p == product)
    }
}

/// Jobs of several nodes.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gangs {
    /// Share of the team's training jobs.
    pub share: Rate,
    /// Nodes of each.
    pub nodes: u32,
}

/// How jobs come over the day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ArrivalShape {
    /// As many at night.
    #[default]
    Even,
    /// With the load of the day and the week in the fleet's time zone.
    Daily,
}

/// Resource names by shape.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Resources {
    /// Of training.
    pub training: Option<String>,
    /// Of inference.
    pub inference: Option<String>,
    /// Of prefill.
    pub prefill: Option<String>,
    /// Of decode.
    pub decode: Option<String>,
    /// Of batch.
    pub batch: Option<String>,
    /// Of notebooks.
    pub notebook: Option<String>,
    /// Of crash loops.
    pub crash_loop: Option<String>,
}

impl Resources {
    /// What pods of `shape` ask for, if it is said.
    pub fn of(&self, shape: Shape) -> Option<&str> {
        match shape {
            Shape::Training => &self.training,
            Shape::Inference => &self.inference,
            Shape::Prefill => &self.prefill,
            Shape::Decode => &self.decode,
            Shape::Batch => &self.batch,
            Shape::Notebook => &self.notebook,
            Shape::CrashLoop => &self.crash_loop,
        }
        .as_deref()
    }
}

/// Shares of the shapes.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Mix {
    /// Long jobs in steps, with data stalls and checkpoints.
    pub training: f64,
    /// Standing replicas whose load follows the day: prefill-heavy, or bound by decoding.
    pub inference: f64,
    /// Those of them that read prompts: bursts of tensor work.
    pub prefill: f64,
    /// Those that write answers: bound by memory.
    pub decode: f64,
    /// Short jobs.
    pub batch: f64,
    /// Held, and mostly idle.
    pub notebook: f64,
    /// Pods whose container ends soon after each start, and is started again after ever longer waits.
    pub crash_loop: f64,
}

impl Mix {
    /// The share of `shape`.
    pub fn of(&self, shape: Shape) -> f64 {
        match shape {
            Shape::Training => self.training,
            Shape::Inference => self.inference,
            Shape::Prefill => self.prefill,
            Shape::Decode => self.decode,
            Shape::Batch => self.batch,
            Shape::Notebook => self.notebook,
            Shape::CrashLoop => self.crash_loop,
        }
    }

    /// All shares together.
    pub fn sum(&self) -> f64 {
        Shape::ALL.iter().map(|shape| self.of(*shape)).sum()
    }
}

/// How much work comes.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Arrivals {
    /// GPU time asked for, over capacity.
    pub load: f64,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self { load: 0.85 }
    }
}

/// What goes wrong; each kind is labelled in the truth.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Share of scrapes that get no answer.
    pub lost_scrapes: Rate,
    /// Spells in which the exporter of a node gives no page.
    pub exporter_down: Option<Down>,
    /// Spells in which a node is not ready.
    pub node_not_ready: Option<Spells>,
    /// Spells in which a node takes no new pods.
    pub cordon: Option<Spells>,
    /// Share of (device, scrape) in which one reading is printed as DCGM's blank.
    pub blanks: Rate,
    /// Share of (device, scrape) in which one reading is out of range.
    pub out_of_range: Rate,
    /// Nodes whose clock is wrong.
    pub clock_skew: Option<Skew>,
    /// Pages that go on to show a pod that is gone.
    pub stale_labels: Option<Stale>,
    /// XIDs.
    pub xid: Option<PerGpu>,
    /// Nodes that die with all that runs on them; the API finds out later.
    pub node_death: Option<Spells>,
    /// Spot nodes that the provider takes back, two minutes after it said so.
    pub spot_reclaim: Option<Spells>,
    /// GPUs that are taken out and replaced by another: same node and slot, another UUID and serial, counters begun anew.
    pub gpu_swap: Option<Swaps>,
    /// Driver reloads: counters begin anew when the device is next free.
    pub driver_reload: Option<PerNode>,
    /// Rounds that reach the log late.
    pub late_batches: Option<Delivery>,
    /// Rounds that reach the log twice, the second time after the delay.
    pub repeated_batches: Option<Delivery>,
    /// Spells at fixed times.
    pub windows: Vec<FixedSpell>,
}

/// Clocks that are wrong.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Skew {
    /// Share of nodes.
    pub share: Rate,
    /// By how much at least and at most, one way or the other; at most 1h.
    pub within: (Span, Span),
}

/// Labels that are out of date.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stale {
    /// Share of (pod, device) that is shown too long.
    pub share: Rate,
    /// How long at least and at most.
    pub lasts: (Span, Span),
}

/// Rounds that are not delivered as they should be.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Delivery {
    /// Share of rounds.
    pub rate: Rate,
    /// Shortest and longest delay.
    pub delay: (Span, Span),
}

/// Spells at random times.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spells {
    /// How many a node has in a day, on average.
    pub per_node_day: PerDay,
    /// Shortest and longest.
    pub lasts: (Span, Span),
}

/// Spells without a page.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Down {
    /// How many a node has in a day, on average.
    pub per_node_day: PerDay,
    /// Shortest and longest.
    pub lasts: (Span, Span),
    /// What scrapers get; one of these for each spell.
    #[serde(default = "default_how")]
    pub how: Vec<NoPage>,
}

/// Events of a GPU at random times.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PerGpu {
    /// How many a GPU has in a day, on average.
    pub per_gpu_day: PerDay,
}

/// GPUs that are replaced at random times, each board after a day of service at the earliest.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Swaps {
    /// How many a GPU's slot has in a day, on average; at most 1.
    pub per_gpu_day: PerDay,
    /// From the drain of the node to the new board's first minute of service, at least and at most: the slot is empty for all of
    /// it but its first two minutes.
    pub lasts: (Span, Span),
}

/// Events of a node at random times.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PerNode {
    /// How many a node has in a day, on average.
    pub per_node_day: PerDay,
}

/// A spell at a fixed time.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FixedSpell {
    /// Nodes: a name, or the beginning of names and `*`.
    pub nodes: String,
    /// What.
    pub kind: SpellKind,
    /// When, after the start.
    pub from: Span,
    /// How long.
    pub lasts: Span,
    /// For `exporter_down`: what scrapers get.
    #[serde(default = "refuse")]
    pub how: NoPage,
    /// For `gpu_swap`: index of the GPU that is replaced.
    #[serde(default)]
    pub gpu: Option<u32>,
}

/// Kinds of spells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpellKind {
    /// No page.
    ExporterDown,
    /// The node is not ready.
    NotReady,
    /// The node takes no new pods.
    Cordon,
    /// The same, for maintenance.
    Maintenance,
    /// The node is dead.
    Lost,
    /// The node was taken back by its provider.
    Reclaimed,
    /// The node is drained, and one of its GPUs is replaced.
    GpuSwap,
}

/// What a scraper gets in place of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoPage {
    /// The connection is closed without an answer.
    Refuse,
    /// 500.
    Error,
    /// 200 with nothing in it: an exporter that reloads.
    Empty,
    /// No answer for as long as the scraper waits. Costs a real timeout, also in fast time.
    Hang,
}

impl NoPage {
    /// Its word in the spec and in the truth.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Error => "error",
            Self::Empty => "empty",
            Self::Hang => "hang",
        }
    }
}

fn default_seed() -> Seed {
    Seed(1)
}

fn default_interval() -> Span {
    Span::from_ms(30_000).expect("half a minute is a time")
}

fn default_zone() -> String {
    "UTC".to_owned()
}

fn one() -> u32 {
    1
}

fn default_how() -> Vec<NoPage> {
    vec![NoPage::Refuse, NoPage::Error, NoPage::Empty]
}

fn refuse() -> NoPage {
    NoPage::Refuse
}

/// Most GPUs of a fleet.
pub const MAX_GPUS: u64 = 200_000;

impl FleetSpec {
    /// Reads a spec and checks it.
    ///
    /// Errors: every one with the key at fault, and its line.
    pub fn parse(yaml: &str) -> Result<Self, SpecError> {
        let spec: Self = serde_yaml_ng::from_str(yaml).map_err(|err| refusal::explain(&err))?;
        spec.check().map_err(|err| err.with_lines(yaml))?;
        Ok(spec)
    }

    /// Reads the files that the spec names, by paths beside `folder`: traces, collectors. A spec that names any can be planned
    /// only then.
    pub fn load(&mut self, folder: &std::path::Path) -> Result<(), LoadError> {
        if let Some(file) = &self.exposition.collectors {
            self.exposition.read = Some(Arc::new(exposition::read(&folder.join(file))?));
        }
        Ok(self.replay.load(folder)?)
    }

    /// What pages print; none where the file that says it is not read yet.
    pub(crate) fn collectors(&self) -> Option<Arc<Collectors>> {
        match &self.exposition.collectors {
            Some(_) => self.exposition.read.clone(),
            None => Some(Arc::new(Collectors::built_in())),
        }
    }

    /// First instant after the fleet's planned time.
    pub fn end(&self) -> Timestamp {
        self.start.plus_ms(i64::from(self.hours) * HOUR_MS)
    }

    /// GPUs of the fleet.
    pub fn gpus(&self) -> u64 {
        self.pools().map(|(_, pool)| u64::from(pool.count) * u64::from(pool.gpus_per_node)).sum()
    }

    /// Every pool with its cluster.
    pub fn pools(&self) -> impl Iterator<Item = (&Cluster, &NodePool)> {
        self.clusters.iter().flat_map(|cluster| cluster.node_pools.iter().map(move |pool| (cluster, pool)))
    }
}
