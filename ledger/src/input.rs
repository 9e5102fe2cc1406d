//! What the ledger is computed from: devices, holdings, samples and failed scrapes, as plain checked values.
//!
//! Order and repetition of holdings, samples and failed scrapes mean nothing (rule A12). A device is listed once.

use std::{collections::BTreeSet, num::NonZeroU32, sync::Arc};

use schemas::{Timestamp, status::HoldingSource};

use crate::{reading::Reading, row::FlagSet};

/// A shared text: labels are repeated over many rows.
pub type Text = Arc<str>;

/// Everything about some nodes and the time around a window.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// How samples are read.
    pub rules: Rules,
    /// The inventory.
    pub devices: Vec<Device>,
    /// Who held what, or how much.
    pub holdings: Vec<Holding>,
    /// What devices read. Samples of devices that are not listed are not read.
    pub samples: Vec<Sample>,
    /// Scrapes without an answer.
    pub failed_scrapes: Vec<FailedScrape>,
    /// Nodes of which no inventory is known: what they hold by number is allocated all the same, taken from nothing, and their
    /// capacity is not claimed, nor what nobody holds of them (flag `no_inventory`).
    pub without_inventory: BTreeSet<Text>,
}

/// How samples are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How long a sample speaks at most (A4), above 0.
    pub horizon_ms: i64,
    /// Tensor pipe activity that counts as all of it (A5).
    pub tensor_ceiling: Ratio,
    /// DRAM activity that counts as all of it (A5).
    pub dram_ceiling: Ratio,
}

impl Default for Rules {
    /// The horizon of a 15 s scrape interval, tensor ceiling 1, DRAM ceiling 0.8.
    fn default() -> Self {
        Self { horizon_ms: 37_500, tensor_ceiling: Ratio::ONE, dram_ceiling: Ratio::FOUR_FIFTHS }
    }
}

/// A fraction above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ratio {
    num: NonZeroU32,
    den: NonZeroU32,
}

impl Ratio {
    /// The whole.
    pub const ONE: Self = Self { num: NonZeroU32::MIN, den: NonZeroU32::MIN };

    const FOUR_FIFTHS: Self = match Self::new(4, 5) {
        Some(ratio) => ratio,
        None => Self::ONE, // 4 and 5 are above 0
    };

    /// `num / den`, where both are above 0.
    pub const fn new(num: u32, den: u32) -> Option<Self> {
        match (NonZeroU32::new(num), NonZeroU32::new(den)) {
            (Some(num), Some(den)) => Some(Self { num, den }),
            _ => None,
        }
    }

    /// The numerator.
    pub fn num(self) -> u32 {
        self.num.get()
    }

    /// The denominator.
    pub fn den(self) -> u32 {
        self.den.get()
    }

    /// `ppm` parts per million of this ceiling, as parts per million: `ppm / self`, halves away from zero, at most 1.
    pub(crate) fn fill(self, ppm: u32) -> u32 {
        let (num, den) = (u128::from(self.num()), u128::from(self.den()));
        let scaled = (2 * u128::from(ppm) * den + num) / (2 * num);
        u32::try_from(scaled).unwrap_or(crate::reading::PPM).min(crate::reading::PPM)
    }
}

/// A half-open span of time that may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// First instant.
    pub from: Timestamp,
    /// First instant after it.
    pub to: Timestamp,
}

impl Span {
    /// All of time.
    pub const ALWAYS: Self = Self { from: Timestamp::from_ms(i64::MIN), to: Timestamp::from_ms(i64::MAX) };
}

/// A whole GPU, or a MIG instance of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Identity; unique among the inputs.
    pub id: Text,
    /// The node that it is in.
    pub node: Text,
    /// The GPU that it is an instance of.
    pub parent: Option<Text>,
    /// MIG profile.
    pub profile: Option<Text>,
    /// Model.
    pub product: Option<Text>,
    /// How it is paid for.
    pub purchase_option: Option<Text>,
    /// Reservation that it is part of.
    pub reservation: Option<Text>,
    /// Region.
    pub region: Option<Text>,
    /// Who rents it out.
    pub provider: Option<Text>,
    /// Compute share of a whole GPU, at most 1.
    pub weight: Ratio,
    /// Into how many equal ids it is shared out; more, where more distinct ids are held.
    pub replicas: NonZeroU32,
    /// Whether its product has the telemetry at all.
    pub telemetry: Telemetry,
    /// When it is in the inventory.
    pub present: Vec<Span>,
    /// When it cannot be given to pods.
    pub unavailable: Vec<Unavailable>,
}

impl Device {
    /// A whole GPU that is always there, unshared, with telemetry and without labels.
    pub fn new(id: impl Into<Text>, node: impl Into<Text>) -> Self {
        Self {
            id: id.into(),
            node: node.into(),
            parent: None,
            profile: None,
            product: None,
            purchase_option: None,
            reservation: None,
            region: None,
            provider: None,
            weight: Ratio::ONE,
            replicas: NonZeroU32::MIN,
            telemetry: Telemetry::Present,
            present: vec![Span::ALWAYS],
            unavailable: Vec::new(),
        }
    }
}

/// Whether a product has activity telemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telemetry {
    /// It has.
    Present,
    /// It has not (a TPU, say): its time is unobserved with cause `no_source`.
    None,
}

/// Time in which a device cannot be given to pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unavailable {
    /// When; an empty span is ignored.
    pub span: Span,
    /// Why: `not_ready`, `cordoned`, `lost`, `unhealthy`, `maintenance`, ...
    pub reason: Text,
}

/// One pod's time on one device, or on a number of devices that nobody has named yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holding {
    /// Whose.
    pub pod: Pod,
    /// Where.
    pub node: Text,
    /// What.
    pub held: Held,
    /// Since when the scheduler counts it (A3).
    pub bound: Timestamp,
    /// When its containers started, if they ever did.
    pub started: Option<Timestamp>,
    /// When its deletion was asked for.
    pub terminating_from: Option<Timestamp>,
    /// When it ended: the earliest of terminal phase and removal. At or before `bound`: it held nothing.
    pub end: Option<Timestamp>,
    /// Whose word its begin and end are.
    pub source: HoldingSource,
    /// What else is to be said of it; carried to its rows.
    pub flags: FlagSet,
}

/// The owner of time: a pod by UID, and what it is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pod {
    /// Identity.
    pub uid: Text,
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// Who pays; none: unattributed.
    pub team: Option<Text>,
    /// The workload that it belongs to.
    pub workload: Option<Text>,
    /// The queue that admitted it.
    pub queue: Option<Text>,
}

/// What a holding holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// Ids of a device that the kubelet named.
    Device {
        /// The device.
        device: Text,
        /// How many of its replica ids, or which.
        ids: Ids,
        /// When the kubelet named it; never before the bind.
        known_from: Option<Timestamp>,
    },
    /// Devices known by number only (A16).
    Count {
        /// How many.
        count: u32,
        /// Compute share of a whole GPU of each (with sharing 1/replicas).
        weight: Ratio,
    },
}

/// Replica ids that a holding has of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ids {
    /// How many.
    Number(NonZeroU32),
    /// Which: the n of `uuid::n`, in any order.
    Named(Vec<u32>),
}

impl Ids {
    /// One id: a device that is not shared.
    pub const ONE: Self = Self::Number(NonZeroU32::MIN);

    /// How many different ids.
    pub fn count(&self) -> u32 {
        match self {
            Self::Number(n) => n.get(),
            Self::Named(ids) => {
                let mut ids = ids.clone();
                ids.sort_unstable();
                ids.dedup();
                u32::try_from(ids.len()).unwrap_or(u32::MAX)
            }
        }
    }
}

/// The earliest of the ends that are known: terminal phase, removal, or one already decided (A3).
pub fn earliest(ends: impl IntoIterator<Item = Option<Timestamp>>) -> Option<Timestamp> {
    ends.into_iter().flatten().min()
}

/// When the deletion was asked for: the deletion timestamp lies a grace period after it.
pub fn deletion_request(deletion_timestamp: Timestamp, grace_ms: i64) -> Timestamp {
    deletion_timestamp.plus_ms(grace_ms.saturating_neg())
}

/// What one device read at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The device.
    pub device: Text,
    /// When the scrape began.
    pub at: Timestamp,
    /// What it read; a sample without a valid value is an answer all the same.
    pub readings: Readings,
    /// What else is to be said of it; carried to the rows that it covers.
    pub flags: FlagSet,
}

/// The fields that the ledger reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readings {
    /// GPU_UTIL (203).
    pub gpu_util: Reading,
    /// GR_ENGINE_ACTIVE (1001).
    pub gr_active: Reading,
    /// SM_ACTIVE (1002).
    pub sm_active: Reading,
    /// PIPE_TENSOR_ACTIVE (1004).
    pub tensor_active: Reading,
    /// DRAM_ACTIVE (1005).
    pub dram_active: Reading,
    /// TOTAL_ENERGY_CONSUMPTION (156), in mJ, where valid.
    pub energy_mj: Option<i64>,
    /// FB_USED (252), in MiB, where valid.
    pub fb_used_mib: Option<i64>,
}

impl Readings {
    /// One sample of two of the same device and instant, field by field (A9).
    pub fn merge(self, other: Self) -> Self {
        Self {
            gpu_util: self.gpu_util.merge(other.gpu_util),
            gr_active: self.gr_active.merge(other.gr_active),
            sm_active: self.sm_active.merge(other.sm_active),
            tensor_active: self.tensor_active.merge(other.tensor_active),
            dram_active: self.dram_active.merge(other.dram_active),
            energy_mj: self.energy_mj.max(other.energy_mj),
            fb_used_mib: self.fb_used_mib.max(other.fb_used_mib),
        }
    }
}

/// A scrape of a node's exporter that got no page.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FailedScrape {
    /// The node.
    pub node: Text,
    /// When the request went out.
    pub at: Timestamp,
}
