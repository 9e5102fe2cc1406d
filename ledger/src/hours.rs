//! The ledger itself: inputs and a window in, hour rows out.

use schemas::{HOUR_MS, Timestamp, Window};

use crate::{
    by_number, device,
    fraction::TooFine,
    input::{Inputs, Rules, Text},
    meters,
    observe::Witness,
    rounding,
    row::{Flag, HourRow, What},
    settled::{self, NodeHour, SettledRow},
    span::Ms,
    world::{self, NodeWorld},
};

/// Why there are no hour rows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HoursError {
    /// A horizon that covers nothing.
    #[error("a horizon of {horizon_ms} ms covers nothing; give one above 0")]
    BadHorizon {
        /// What was given.
        horizon_ms: i64,
    },
    /// MIG instances that do not fit their GPU.
    #[error("the weights on {gpu} come to more than one GPU; check its instances' profiles and when they were present")]
    WeightsExceedParent {
        /// The GPU.
        gpu: Text,
    },
    /// A device listed twice.
    #[error("device {device} is listed twice; list it once, with all the time in which it was present")]
    DuplicateDevice {
        /// The device.
        device: Text,
    },
    /// A holding on a device that is not in the inventory.
    #[error("pod {pod_uid} holds device {device}, which is not in the inventory; list it, or hold by number")]
    UnknownDevice {
        /// The device.
        device: Text,
        /// The holder.
        pod_uid: Text,
    },
    /// A holding of more ids than the device has.
    #[error("pod {pod_uid} holds {ids} ids of device {device}, which has {replicas}; check its replicas")]
    IdsExceedReplicas {
        /// The device.
        device: Text,
        /// The holder.
        pod_uid: Text,
        /// How many it claims.
        ids: u32,
        /// How many there are.
        replicas: u32,
    },
    /// Weights, replicas and splits without a common denominator that fits.
    #[error("the weights and shares of one node have no common denominator in 127 bits; use simpler weights")]
    TooFine,
}

impl HoursError {
    /// The fixed word of each refusal.
    pub fn code(&self) -> &'static str {
        match self {
            Self::BadHorizon { .. } => "bad_horizon",
            Self::WeightsExceedParent { .. } => "weights_exceed_parent",
            Self::DuplicateDevice { .. } => "duplicate_device",
            Self::UnknownDevice { .. } => "unknown_device",
            Self::IdsExceedReplicas { .. } => "ids_exceed_replicas",
            Self::TooFine => "too_fine",
        }
    }
}

impl From<TooFine> for HoursError {
    fn from(_: TooFine) -> Self {
        Self::TooFine
    }
}

/// GPU time of `window`, by UTC hour, device and owner.
///
/// In: devices, each once; holdings, samples and failed scrapes in any order, repeats allowed. Out: sorted by
/// (hour, node, device, owner); `ms` of a device's rows sums to its capacity in the window, unobserved included. A node without
/// inventory has rows of owners only: its capacity is not claimed, nor what nobody holds of it.
/// For b on a UTC hour, `hours(a..c) = hours(a..b) + hours(b..c)`.
///
/// A row depends on no sample or failed scrape outside `[hour - horizon, end of the hour)`, but for its energy, which
/// the first reading after the hour completes (within one horizon), and on nothing of another node: with those, and
/// the holdings and devices of the node, any part gives the rows of the whole.
pub fn hours(inputs: &Inputs, window: Window) -> Result<Vec<HourRow>, HoursError> {
    Ok(account(inputs, window, false)?.rows)
}

/// The same rows, and beside them the settled holdings that a SQL engine computes them from.
pub fn hours_and_settled(inputs: &Inputs, window: Window) -> Result<(Vec<HourRow>, Vec<SettledRow>), HoursError> {
    let account = account(inputs, window, true)?;
    Ok((account.rows, account.settled))
}

struct Account {
    rows: Vec<HourRow>,
    settled: Vec<SettledRow>,
}

fn account(inputs: &Inputs, window: Window, settle: bool) -> Result<Account, HoursError> {
    let nodes = world::nodes(inputs)?;
    let mut account = Account { rows: Vec::new(), settled: Vec::new() };
    for start in window.hours() {
        let part = (start.ms().max(window.from().ms()), start.plus_ms(HOUR_MS).ms().min(window.to().ms()));
        for node in &nodes {
            let settle = settle.then_some((&inputs.rules, &mut account.settled));
            node_hour(node, start, part, &mut account.rows, settle)?;
        }
    }
    account.rows.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
    Ok(account)
}

fn node_hour(
    node: &NodeWorld<'_>,
    start: Timestamp,
    part: Ms,
    rows: &mut Vec<HourRow>,
    settle: Option<(&Rules, &mut Vec<SettledRow>)>,
) -> Result<(), TooFine> {
    let first = rows.len();
    let devices: Vec<_> = node.devices.iter().map(|world| device::hour(world, part)).collect();
    let (capacities, orphans) = rounding::capacities(node, &devices, part)?;
    let mut splits = Vec::new();
    for (i, (world, hour)) in node.devices.iter().zip(&devices).enumerate() {
        let witness = Witness::of(world, &node.scrapes, node.horizon_ms, part);
        let seen =
            hour.owners.iter().map(|owner| witness.observe(owner.owner, &owner.stretches)).collect::<Result<Vec<_>, _>>()?;
        let seen = seen.into_iter().zip(meters::of(world, hour, part, node.horizon_ms)?).collect();
        let orphan = node.split_gpus.iter().position(|gpu| gpu.listed == Some(i)).map(|gpu| orphans[gpu]);
        rounding::device_rows(start, world, hour, seen, capacities[i], orphan, rows)?;
        if settle.is_some() {
            splits.push(witness.split_lcm().ok());
        }
    }
    for (gpu, orphan) in orphans.into_iter().enumerate() {
        if node.split_gpus[gpu].listed.is_none() {
            rounding::orphan_row(start, node, gpu, orphan, rows);
        }
    }
    let taking = by_number::is_needed(node, part).then(|| by_number::take(node, &devices, part)).transpose()?;
    if let Some(taking) = &taking {
        rounding::number_rows(start, node, by_number::hour(taking)?, rows)?;
    }
    if let Some((rules, settled)) = settle {
        settled::node_hour(&NodeHour { node, start, part, rules, devices: &devices, splits: &splits, taking }, settled);
    }
    if !node.inventory {
        claim_owners_only(rows, first);
    }
    Ok(())
}

/// What nobody holds on a node without inventory is not known to be there: of its rows from `first` on, owners' stay, flagged.
fn claim_owners_only(rows: &mut Vec<HourRow>, first: usize) {
    let mut place = 0;
    rows.retain_mut(|row| {
        place += 1;
        match &mut row.what {
            _ if place <= first => true,
            What::Owner(owner) => {
                owner.flags.insert(Flag::NoInventory);
                true
            }
            What::Free(_) | What::Unavailable(_) => false,
        }
    });
}
