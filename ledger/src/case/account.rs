//! Hour rows summed to an account: by device, by owner, and in all.

use std::collections::BTreeMap;

use schemas::status::{Cause, Tier};
use serde_json::{Map, Value, json};

use super::team_or_unattributed;
use crate::{
    input::Device,
    row::{FlagSet, HourRow, OwnerHour, What},
};

/// The account of `rows`; a device that is listed has an entry whether or not it has time.
pub(super) fn of(devices: &[Device], rows: &[HourRow]) -> Value {
    let mut by_device: BTreeMap<(bool, &str), Space<'_>> = BTreeMap::new();
    for device in devices {
        by_device.entry((false, &device.id)).or_insert_with(|| Space::on(&device.node));
    }
    let mut by_owner: BTreeMap<(&str, bool, &str), Owner<'_>> = BTreeMap::new();
    let mut all = Space::on("");
    let mut totals = Totals::default();
    for profile in devices.iter().filter_map(|device| device.profile.as_deref()) {
        totals.profiles.entry(profile).or_default();
    }
    for row in rows {
        let device = row.place.device.as_deref();
        let place = (device.is_none(), device.unwrap_or(&row.place.node));
        by_device.entry(place).or_insert_with(|| Space::on(&row.place.node)).add(row);
        all.add(row);
        if let Some(hour) = row.owner() {
            totals.add(row, hour);
            let owner = by_owner.entry((&hour.pod.uid, place.0, place.1)).or_insert_with(|| Owner::of(row, hour));
            owner.add(row, hour);
        }
    }
    let devices: Vec<Value> =
        by_device.iter().map(|((by_number, device), space)| space.print((!by_number).then_some(device))).collect();
    let owners: Vec<Value> = by_owner.into_values().map(Owner::print).collect();
    json!({ "devices": devices, "owners": owners, "totals": totals.print(&all) })
}

/// Sums of a kind of time by a word.
type By<'a> = BTreeMap<&'a str, i64>;

fn print_by(by: &By<'_>) -> Value {
    by.iter().filter(|(_, ms)| **ms != 0).map(|(key, ms)| ((*key).to_owned(), json!(ms))).collect::<Map<_, _>>().into()
}

fn sum(by: &By<'_>) -> i64 {
    by.values().sum()
}

/// Sums of the tiers.
#[derive(Default)]
struct TierSums([[i64; 3]; 3], [[i64; Cause::ALL.len()]; 3]);

impl TierSums {
    fn add(&mut self, hour: &OwnerHour) {
        for tier in Tier::ALL {
            let time = &hour.tiers[*tier];
            let [utilized, stranded, over] = &mut self.0[*tier as usize];
            *utilized += time.utilized_ms;
            *stranded += time.stranded_ms;
            *over += time.over_share_ms;
            for cause in Cause::ALL {
                self.1[*tier as usize][*cause as usize] += time.unobserved_by(*cause);
            }
        }
    }

    fn print(&self) -> Value {
        let tier = |tier: &Tier| {
            let [utilized, stranded, over] = self.0[*tier as usize];
            let causes: By<'_> =
                Cause::ALL.iter().map(|cause| (cause.as_str(), self.1[*tier as usize][*cause as usize])).collect();
            let time = json!({
                "utilized_ms": utilized,
                "stranded_ms": stranded,
                "unobserved_ms": sum(&causes),
                "over_share_ms": over,
                "unobserved_by": print_by(&causes),
            });
            (tier.as_str().to_owned(), time)
        };
        Tier::ALL.iter().map(tier).collect::<Map<_, _>>().into()
    }
}

/// Sums of one device, of a node's holdings by number, or of all.
struct Space<'a> {
    node: &'a str,
    allocated: i64,
    free: By<'a>,
    unavailable: By<'a>,
    tiers: TierSums,
}

impl<'a> Space<'a> {
    fn on(node: &'a str) -> Self {
        Self { node, allocated: 0, free: By::new(), unavailable: By::new(), tiers: TierSums::default() }
    }

    fn add(&mut self, row: &'a HourRow) {
        match &row.what {
            What::Owner(hour) => {
                self.allocated += row.ms;
                self.tiers.add(hour);
            }
            What::Free(reason) => *self.free.entry(reason).or_default() += row.ms,
            What::Unavailable(reason) => *self.unavailable.entry(reason).or_default() += row.ms,
        }
    }

    fn capacity(&self) -> i64 {
        self.allocated + sum(&self.free) + sum(&self.unavailable)
    }

    fn print(&self, device: Option<&str>) -> Value {
        json!({
            "device": device,
            "node": self.node,
            "capacity_ms": self.capacity(),
            "allocated_ms": self.allocated,
            "free_ms": sum(&self.free),
            "unavailable_ms": sum(&self.unavailable),
            "free_by": print_by(&self.free),
            "unavailable_by": print_by(&self.unavailable),
            "tiers": self.tiers.print(),
        })
    }
}

/// Sums of one owner on one device, or by number on one node.
struct Owner<'a> {
    row: &'a HourRow,
    hour: &'a OwnerHour,
    allocated: i64,
    tiers: TierSums,
    memos: [i64; 3],
    flags: FlagSet,
}

impl<'a> Owner<'a> {
    fn of(row: &'a HourRow, hour: &'a OwnerHour) -> Self {
        Self { row, hour, allocated: 0, tiers: TierSums::default(), memos: [0; 3], flags: FlagSet::EMPTY }
    }

    fn add(&mut self, row: &HourRow, hour: &OwnerHour) {
        self.allocated += row.ms;
        self.tiers.add(hour);
        add_memos(&mut self.memos, hour);
        self.flags.extend(hour.flags);
    }

    fn print(self) -> Value {
        let pod = &self.hour.pod;
        let [pre_start, terminating, on_unready] = self.memos;
        json!({
            "pod_uid": *pod.uid,
            "namespace": *pod.namespace,
            "pod": *pod.name,
            "team": team_or_unattributed(&pod.team),
            "node": *self.row.place.node,
            "device": self.row.place.device.as_deref(),
            "allocated_ms": self.allocated,
            "tiers": self.tiers.print(),
            "pre_start_ms": pre_start,
            "terminating_ms": terminating,
            "on_unready_ms": on_unready,
            "flags": self.flags.iter().map(|flag| flag.as_str()).collect::<Vec<_>>(),
        })
    }
}

fn add_memos(memos: &mut [i64; 3], hour: &OwnerHour) {
    for (sum, ms) in memos.iter_mut().zip([hour.pre_start_ms, hour.terminating_ms, hour.on_unready_ms]) {
        *sum += ms;
    }
}

/// What is summed over all owners.
#[derive(Default)]
struct Totals<'a> {
    memos: [i64; 3],
    overcommitted: i64,
    teams: By<'a>,
    /// Zeros stay: a profile of the inventory that nobody held.
    profiles: By<'a>,
}

impl<'a> Totals<'a> {
    fn add(&mut self, row: &'a HourRow, hour: &'a OwnerHour) {
        add_memos(&mut self.memos, hour);
        self.overcommitted += hour.overcommitted_ms;
        *self.teams.entry(team_or_unattributed(&hour.pod.team)).or_default() += row.ms;
        if let Some(profile) = row.place.profile.as_deref() {
            *self.profiles.entry(profile).or_default() += hour.held_profile_ms;
        }
    }

    fn print(&self, all: &Space<'_>) -> Value {
        let [pre_start, terminating, on_unready] = self.memos;
        json!({
            "capacity_ms": all.capacity(),
            "allocated_ms": all.allocated,
            "free_ms": sum(&all.free),
            "unavailable_ms": sum(&all.unavailable),
            "free_by": print_by(&all.free),
            "unavailable_by": print_by(&all.unavailable),
            "pre_start_ms": pre_start,
            "terminating_ms": terminating,
            "on_unready_ms": on_unready,
            "overcommitted_ms": self.overcommitted,
            "tiers": all.tiers.print(),
            "allocated_by_team": print_by(&self.teams),
            "profile_ms": self.profiles.iter().map(|(profile, ms)| ((*profile).to_owned(), json!(ms))).collect::<Map<_, _>>(),
        })
    }
}
