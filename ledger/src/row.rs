//! What the ledger says: one row per (UTC hour, device, owner), with what is free and unavailable beside the owners.

use std::{fmt, sync::Arc};

use schemas::{
    Timestamp,
    status::{Cause, HoldingSource, RowKind, Tier},
};

use crate::input::{Pod, Text};

/// One line of the ledger. `ms` over all rows of a device and hour is its capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HourRow {
    /// The UTC hour, by its start.
    pub hour_start: Timestamp,
    /// Where.
    pub place: Arc<Place>,
    /// Whole-GPU-equivalent device milliseconds; negative only where `held_unknown` is taken back (A16).
    pub ms: i64,
    /// Whose time it is.
    pub what: What,
}

/// A device with its labels, or, with `device` none, the node of holdings known by number (A16).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The node.
    pub node: Text,
    /// The device.
    pub device: Option<Text>,
    /// The GPU that it is an instance of.
    pub parent: Option<Text>,
    /// MIG profile.
    pub profile: Option<Text>,
    /// Model. Without a device: the node's, where its devices agree; so too the labels below.
    pub product: Option<Text>,
    /// Region.
    pub region: Option<Text>,
    /// Who rents it out.
    pub provider: Option<Text>,
    /// How it is paid for.
    pub purchase_option: Option<Text>,
    /// Reservation that it is part of.
    pub reservation: Option<Text>,
}

/// Whose time a row is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A pod's.
    Owner(Box<OwnerHour>),
    /// Nobody's and ready to be given, with the reason: `unheld`, `shared_slack`, `held_unknown`.
    Free(Text),
    /// Nobody's and not to be given, with the reason.
    Unavailable(Text),
}

impl HourRow {
    /// Owner, free or unavailable.
    pub fn kind(&self) -> RowKind {
        match self.what {
            What::Owner(_) => RowKind::Owner,
            What::Free(_) => RowKind::Free,
            What::Unavailable(_) => RowKind::Unavailable,
        }
    }

    /// The owner's figures, on an owner's row.
    pub fn owner(&self) -> Option<&OwnerHour> {
        match &self.what {
            What::Owner(owner) => Some(owner),
            What::Free(_) | What::Unavailable(_) => None,
        }
    }

    /// The one order of rows: hour, node, device (none last), owners by UID, free by reason, unavailable by reason.
    pub(crate) fn sort_key(&self) -> (Timestamp, &str, bool, Option<&str>, RowKind, &str) {
        let name = match &self.what {
            What::Owner(owner) => &owner.pod.uid,
            What::Free(reason) | What::Unavailable(reason) => reason,
        };
        let device = self.place.device.as_deref();
        (self.hour_start, &self.place.node, device.is_none(), device, self.kind(), name)
    }
}

/// What is said of an owner's time on a device in an hour. The row's `ms` is what it was allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerHour {
    /// The owner.
    pub pod: Arc<Pod>,
    /// What was seen of it, by tier.
    pub tiers: Tiers,
    /// Part of it before the containers started.
    pub pre_start_ms: i64,
    /// Part of it after deletion was asked for.
    pub terminating_ms: i64,
    /// Part of it while the device was unavailable for another reason than `cordoned` or `maintenance`.
    pub on_unready_ms: i64,
    /// Instance time held, the weight not applied: the second meter of A8.
    pub held_profile_ms: i64,
    /// Energy of the time, where it was read.
    pub energy_mj: Option<i64>,
    /// Memory in use times time, where it was read.
    pub fb_used_mib_ms: Option<i64>,
    /// Time without a reading of it, where there is any.
    pub fb_unobserved_ms: Option<i64>,
    /// Bound by number, with nothing on the node left to hold: beside the sum (A16).
    pub overcommitted_ms: i64,
    /// Whose word the allocation is; of several holdings the first in order of the words.
    pub source: HoldingSource,
    /// What else is to be said.
    pub flags: FlagSet,
}

/// Figures of each tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tiers([TierTime; 3]);

impl std::ops::Index<Tier> for Tiers {
    type Output = TierTime;

    fn index(&self, tier: Tier) -> &TierTime {
        &self.0[tier as usize]
    }
}

impl std::ops::IndexMut<Tier> for Tiers {
    fn index_mut(&mut self, tier: Tier) -> &mut TierTime {
        &mut self.0[tier as usize]
    }
}

/// One tier's figures: `utilized + stranded + unobserved` is the row's `ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierTime {
    /// Seen at work.
    pub utilized_ms: i64,
    /// Seen idle.
    pub stranded_ms: i64,
    /// Activity above the held share, beside the sum (A7).
    pub over_share_ms: i64,
    unobserved_ms: [i64; Cause::ALL.len()],
}

impl TierTime {
    /// Allocated and not seen, for this cause.
    pub fn unobserved_by(&self, cause: Cause) -> i64 {
        self.unobserved_ms[cause as usize]
    }

    /// Allocated and not seen, for any cause.
    pub fn unobserved_ms(&self) -> i64 {
        self.unobserved_ms.iter().sum()
    }

    pub(crate) fn set_unobserved(&mut self, cause: Cause, ms: i64) {
        self.unobserved_ms[cause as usize] = ms;
    }
}

/// Declares the flags, in byte order of their texts.
macro_rules! flags {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)+) => {
        /// A remark on a row; the order is that of the texts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Flag { $($(#[$doc])* $variant,)+ }

        impl Flag {
            /// Every flag, in byte order of the texts.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The text in tables.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// The flag whose text is `text`.
            pub fn from_text(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

flags! {
    /// The bind is the receipt of the first event that shows the node.
    BindInferred = "bind_inferred",
    /// Two sources gave valid values that differ, in a field that was used.
    Conflict = "conflict",
    /// The end was moved to a later bind on the same device, in this hour.
    EndClamped = "end_clamped",
    /// The end is a receipt or relist time.
    EndInferred = "end_inferred",
    /// The owner comes from the page's own pod labels.
    FromLabels = "from_labels",
    /// The energy counter fell to a value that it could not have reached: nothing was added.
    Implausible = "implausible",
    /// An instance's ratio above 1 was cut to 1.
    MigOverrange = "mig_overrange",
    /// The kubelet names a pod that the API server's holdings do not have.
    NoApiHolding = "no_api_holding",
    /// No inventory of the node is known: its capacity is not claimed.
    NoInventory = "no_inventory",
    /// Activity above the held share.
    OverShare = "over_share",
    /// Some of what was bound by number found nothing to hold.
    Overcommitted = "overcommitted",
    /// A GPU's ratio just above 1 was cut to 1.
    OverrangeClipped = "overrange_clipped",
    /// 1001 and 1002 read 0 while GPU_UTIL says otherwise.
    ProfilingStuck = "profiling_stuck",
    /// More distinct replica ids were held than are configured.
    ReplicasInferred = "replicas_inferred",
    /// The energy counter started again: its increase is a lower bound.
    Reset = "reset",
    /// The device is shared.
    Shared = "shared",
    /// Sample times were moved by the node's measured skew.
    SkewCorrected = "skew_corrected",
}

/// A set of flags.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlagSet(u32);

impl FlagSet {
    /// No flag.
    pub const EMPTY: Self = Self(0);

    /// Adds one.
    pub fn insert(&mut self, flag: Flag) {
        self.0 |= 1 << flag as u32;
    }

    /// With one more, where `when` holds.
    #[must_use]
    pub fn with(mut self, flag: Flag, when: bool) -> Self {
        if when {
            self.insert(flag);
        }
        self
    }

    /// Adds all of another set.
    pub fn extend(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Whether it is there.
    pub fn contains(self, flag: Flag) -> bool {
        self.0 & (1 << flag as u32) != 0
    }

    /// The flags, in byte order of their texts.
    pub fn iter(self) -> impl Iterator<Item = Flag> {
        Flag::ALL.iter().copied().filter(move |flag| self.contains(*flag))
    }

    /// The flags of a comma-joined text; words that we do not know come back beside them.
    pub fn from_text(text: &str) -> (Self, Vec<&str>) {
        let mut set = Self::EMPTY;
        let words = text.split(',').filter(|word| !word.is_empty());
        let unknown = words.filter(|word| match Flag::from_text(word) {
            Some(flag) => {
                set.insert(flag);
                false
            }
            None => true,
        });
        let unknown = unknown.collect();
        (set, unknown)
    }
}

impl fmt::Display for FlagSet {
    /// Sorted and comma-joined, as the tables have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, flag) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            f.write_str(flag.as_str())?;
        }
        Ok(())
    }
}

impl fmt::Debug for FlagSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Flag::as_str)).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn flags_are_sorted_and_come_back_from_their_text() {
        assert!(Flag::ALL.windows(2).all(|w| w[0].as_str() < w[1].as_str()));
        let set = FlagSet::EMPTY.with(Flag::Shared, true).with(Flag::Conflict, true).with(Flag::EndClamped, false);
        assert_eq!(set.to_string(), "conflict,shared");
        assert_eq!(FlagSet::from_text("shared,,new_word,conflict"), (set, vec!["new_word"]));
    }

    #[test]
    fn tiers_are_indexed_by_their_declaration_order() {
        for (i, tier) in Tier::ALL.iter().enumerate() {
            assert_eq!(*tier as usize, i);
        }
        for (i, cause) in Cause::ALL.iter().enumerate() {
            assert_eq!(*cause as usize, i);
        }
    }
}
