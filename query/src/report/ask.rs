//! What can be asked of a report: groupings, and the buckets of time that some of them are.

use schemas::{
    Timestamp, Window,
    calendar::{Bucket, Unit, Zone, buckets},
    status::Tier,
};

use super::priced::Prices;

macro_rules! dimensions {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)+) => {
        /// What a report is grouped by.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Dimension { $($(#[$doc])* $variant,)+ }

        impl Dimension {
            /// Every dimension.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Its name, as in `--by`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
    };
}

dimensions! {
    /// Cluster.
    Cluster = "cluster",
    /// Node.
    Node = "node",
    /// Region.
    Region = "region",
    /// Provider.
    Provider = "provider",
    /// Product.
    Product = "product",
    /// MIG profile; whole GPUs have none.
    Profile = "profile",
    /// Purchase option.
    PurchaseOption = "purchase_option",
    /// Namespace of the owner.
    Namespace = "namespace",
    /// Owner's name, with its namespace.
    Pod = "pod",
    /// Workload of the owner.
    Workload = "workload",
    /// Queue of the owner.
    Queue = "queue",
    /// Who pays.
    Team = "team",
    /// Hour of the zone.
    Hour = "hour",
    /// Day of the zone.
    Day = "day",
    /// ISO week of the zone.
    Week = "week",
    /// Month of the zone.
    Month = "month",
}

/// A `--by` that is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadGrouping {
    /// No such dimension.
    #[error("cannot group by `{name}`; give one or more of {known}, comma-separated")]
    Unknown {
        /// What was given.
        name: String,
        /// What there is.
        known: String,
    },
    /// One twice.
    #[error("`{0}` stands twice in the grouping")]
    Twice(&'static str),
}

impl Dimension {
    /// Reads a comma-separated list.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, BadGrouping> {
        let mut list = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let known = || Self::ALL.iter().map(|d| d.as_str()).collect::<Vec<_>>().join(", ");
            let found = Self::ALL.iter().copied().find(|d| d.as_str() == name);
            let dimension = found.ok_or_else(|| BadGrouping::Unknown { name: name.to_owned(), known: known() })?;
            if list.contains(&dimension) {
                return Err(BadGrouping::Twice(dimension.as_str()));
            }
            list.push(dimension);
        }
        Ok(list)
    }

    /// Whether only owners have it: free and unavailable time stands apart.
    pub(super) const fn of_owner(self) -> bool {
        matches!(self, Self::Namespace | Self::Pod | Self::Workload | Self::Queue | Self::Team)
    }

    /// Columns of `gpu_hours` that it is read from; none: it is a bucket of time.
    pub(super) const fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Cluster => &["cluster"],
            Self::Node => &["node"],
            Self::Region => &["region"],
            Self::Provider => &["provider"],
            Self::Product => &["product"],
            Self::Profile => &["profile"],
            Self::PurchaseOption => &["purchase_option"],
            Self::Namespace => &["namespace"],
            Self::Pod => &["namespace", "pod"],
            Self::Workload => &["workload"],
            Self::Queue => &["queue"],
            Self::Team => &["team"],
            Self::Hour | Self::Day | Self::Week | Self::Month => &[],
        }
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Request {
    /// Grouping; empty for the total alone.
    pub by: Vec<Dimension>,
    /// Window; none for all hours. Hours that a bound cuts are computed anew.
    pub window: Option<Window>,
    /// What "utilized" means.
    pub tier: Tier,
    /// Zone of hours, days, weeks and months; none: UTC.
    pub zone: Option<String>,
    /// How many groups are printed, the largest by allocated time; the others are one line.
    pub top: Option<usize>,
    /// Least coverage, in percent, at which utilized and stranded time of a line is printed.
    pub min_coverage: Option<f64>,
    /// Money beside hours.
    pub prices: Option<Prices>,
}

impl Request {
    /// The total of all hours, in UTC.
    pub fn of(tier: Tier) -> Self {
        Self { by: Vec::new(), window: None, tier, zone: None, top: None, min_coverage: None, prices: None }
    }
}

/// Buckets of time of each dimension that is one, over the report's window.
pub(super) struct Buckets(Vec<Option<Vec<Bucket>>>);

impl Buckets {
    /// Lays out the buckets of `request` over `window`. Errors: a zone that is not known, in words.
    pub(super) fn of(request: &Request, window: Option<Window>) -> Result<Self, String> {
        let zone = Zone::parse(request.zone.as_deref().unwrap_or("UTC")).map_err(|error| error.to_string())?;
        let of_dimension = |dimension: &Dimension| {
            let unit = match dimension {
                Dimension::Hour => Unit::Hour,
                Dimension::Day => Unit::Day,
                Dimension::Week => Unit::Week,
                Dimension::Month => Unit::Month,
                _ => return Ok(None),
            };
            let Some(window) = window else { return Ok(Some(Vec::new())) };
            let mut list = buckets(&zone, unit, window.from(), window.to()).map_err(|error| error.to_string())?;
            if request.zone.is_none() {
                list.iter_mut().for_each(|bucket| bucket.label = bucket.label.replace("+0000", "Z"));
            }
            Ok(Some(list))
        };
        request.by.iter().map(of_dimension).collect::<Result<_, String>>().map(Self)
    }

    /// Bounds of buckets inside `(from, to)`.
    pub(super) fn bounds(&self, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
        let mut bounds = Vec::new();
        for list in self.0.iter().flatten() {
            let first = list.partition_point(|bucket| bucket.to <= from);
            bounds.extend(list[first..].iter().map(|bucket| bucket.to).take_while(|bound| *bound < to));
        }
        bounds
    }

    /// The label of the bucket that holds `at`, for the dimension at `place`; none where it is no bucket of time.
    pub(super) fn label(&self, place: usize, at: Timestamp) -> Option<&str> {
        let list = self.0.get(place)?.as_ref()?;
        let after = list.partition_point(|bucket| bucket.from <= at);
        list[..after].last().map(|bucket| bucket.label.as_str())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn groupings_are_checked() {
        assert_eq!(Dimension::parse_list("team, product,hour").unwrap(), [Dimension::Team, Dimension::Product, Dimension::Hour]);
        assert!(Dimension::parse_list("").unwrap().is_empty());
        let error = Dimension::parse_list("tema").unwrap_err().to_string();
        assert!(error.contains("`tema`") && error.contains("purchase_option"), "{error}");
        assert_eq!(Dimension::parse_list("team,team").unwrap_err(), BadGrouping::Twice("team"));
    }
}
