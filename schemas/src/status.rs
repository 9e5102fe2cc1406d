//! Closed word lists: scrape outcomes, tiers, causes of unobserved time, kinds of rows, reasons.

/// Declares an enum whose variants have one fixed text each, used in messages, tables and metrics alike.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every word, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The fixed text.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// The word whose fixed text is `text`.
            pub fn from_text(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// How one scrape round of one target ended (rule D4: a failed scrape is a record).
    ScrapeStatus {
        /// The page was read; lines that were kept out are counted beside it.
        Ok = "ok",
        /// No whole answer in time; a partial body gives no samples.
        Timeout = "timeout",
        /// Nobody listened, or the connection broke before a whole answer.
        Refused = "refused",
        /// The target answered 4xx.
        Http4xx = "http_4xx",
        /// The target answered 5xx.
        Http5xx = "http_5xx",
        /// The body is no exposition text at all (HTML, say), or its type is not text.
        ParseError = "parse_error",
        /// The body is larger than the limit.
        TooLarge = "too_large",
        /// The body has no sample: an exporter that reloads, not a node without GPUs.
        Empty = "empty",
        /// The agent started here; rounds since its last sequence were not taken.
        Restarted = "restarted",
    }
}

impl JoinReason {
    /// Whether it says that the kubelet did not tell who holds what.
    pub fn unanswered(self) -> bool {
        match self {
            Self::NoSocket | Self::ListFailed | Self::Expired => true,
            Self::IdShapeUnknown | Self::ResourceNotMatched | Self::DeviceUnknown | Self::Conflict | Self::ClaimUnread => false,
        }
    }
}

impl ScrapeStatus {
    /// Whether this round read a page. `restarted` is a note about the agent: neither an answer nor a failure of the exporter.
    pub fn answered(self) -> bool {
        self == Self::Ok
    }

    /// Whether this round asked the exporter and got no page.
    pub fn failed(self) -> bool {
        !matches!(self, Self::Ok | Self::Restarted)
    }
}

words! {
    /// What "utilized" means (rule A5); the tiers stand side by side and are never mixed.
    Tier {
        /// Was anything running: GPU_UTIL (203), else GR_ENGINE_ACTIVE (1001).
        Busy = "busy",
        /// SM_ACTIVE (1002): the headline.
        Sm = "sm",
        /// The larger of tensor pipe (1004) over its ceiling and DRAM active (1005) over 0.8.
        Effective = "effective",
    }
}

words! {
    /// Why allocated time was not seen (rule A4), in byte order of the texts.
    Cause {
        /// The node did not answer.
        ExporterDown = "exporter_down",
        /// The page came without the field.
        FieldAbsent = "field_absent",
        /// Nothing explains it.
        Gap = "gap",
        /// From an owner's start to the first record of the device, at most one horizon.
        Handover = "handover",
        /// The holding is known by number only.
        NoDeviceYet = "no_device_yet",
        /// The product has no such telemetry.
        NoSource = "no_source",
        /// The value was outside its range.
        OutOfRange = "out_of_range",
        /// The value was DCGM's blank, or not a number.
        Sentinel = "sentinel",
        /// The page came without this device.
        Stale = "stale",
        /// The profiler reads 0 while GPU_UTIL says otherwise.
        Suspect = "suspect",
    }
}

words! {
    /// Whose time an hour row is.
    RowKind {
        /// A pod's.
        Owner = "owner",
        /// Nobody's, and ready to be given.
        Free = "free",
        /// Nobody's, and not to be given.
        Unavailable = "unavailable",
    }
}

words! {
    /// Where a holding is known from.
    HoldingSource {
        /// The API server's pods.
        Api = "api",
        /// The kubelet's pod-resources answer.
        PodResources = "podres",
        /// An imported table.
        Import = "import",
    }
}

words! {
    /// What an interval of the `nodes` table says.
    InventoryKind {
        /// The node is in the inventory, with its capacity and labels; `device` is null.
        Node = "node",
        /// The device is in the inventory.
        Device = "device",
        /// The device (or, where null, every device of the node) cannot be given to pods, for `reason`.
        Unavailable = "unavailable",
    }
}

words! {
    /// What became of one reading where its page met the catalogue (rule A6).
    ReadingFault {
        /// DCGM's blank of the field's own type, or NaN.
        Sentinel = "sentinel",
        /// Infinite, or outside the field's range.
        OutOfRange = "out_of_range",
        /// Slightly above 1 on a MIG instance: stored raw, read as 1.
        MigOverrange = "mig_overrange",
        /// Slightly above 1 on a whole GPU: stored raw, read as 1.
        OverrangeClipped = "overrange_clipped",
        /// Two valid values of one device and instant that differ as printed; the larger is kept.
        Conflict = "conflict",
    }
}

words! {
    /// Why a device's row has no owner from the node's own answer, or one that needs a remark.
    JoinReason {
        /// The pod-resources socket is not there.
        NoSocket = "no_socket",
        /// The kubelet refused or failed the call.
        ListFailed = "list_failed",
        /// The last good answer was too old to go on with.
        Expired = "expired",
        /// A device id of no known shape.
        IdShapeUnknown = "id_shape_unknown",
        /// The pod asks for GPUs under a resource name that is not configured.
        ResourceNotMatched = "resource_not_matched",
        /// The kubelet names a device that the node's page does not have.
        DeviceUnknown = "device_unknown",
        /// Two pods hold one device that is not shared.
        Conflict = "conflict",
        /// By a claim of which the API server has not said yet whether it holds its devices or only looks at them.
        ClaimUnread = "claim_unread",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn words_come_back_from_their_text() {
        for &cause in Cause::ALL {
            assert_eq!(Cause::from_text(cause.as_str()), Some(cause));
        }
        assert_eq!(ScrapeStatus::from_text("perhaps"), None);
        assert!(Cause::ALL.windows(2).all(|w| w[0].as_str() < w[1].as_str()), "A15 breaks ties in byte order");
        assert!(!ScrapeStatus::Restarted.answered() && !ScrapeStatus::Restarted.failed());
    }
}
