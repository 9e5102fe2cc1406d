//! Money beside hours: rows of `costs`, as a rate card made them, on the report's lines.
//!
//! A rate card prices pools, so money is known by who pays, by what the pools are, and by time; not by node or pod. What
//! belongs to no line of hours (a commitment that nobody used, rounding) has a line of its own, so that the column sums to the
//! bill.

use std::collections::BTreeMap;

use ledger::money::Bucket;
use schemas::HOUR_MS;

use super::{
    Key, Line, ReportError,
    ask::{Buckets, Dimension},
};
use crate::money::costs::{CostRow, UNPRICED};

/// What a card made of the report's hours.
#[derive(Clone, Debug)]
pub struct Prices {
    /// Rows of `costs`.
    pub rows: Vec<CostRow>,
    /// Currency of the card.
    pub currency: String,
}

/// Puts each row's money on its line. Returns the GPU time that no pool prices.
pub(super) fn put(prices: &Prices, by: &[Dimension], buckets: &Buckets, lines: &mut Vec<Line>) -> Result<i64, ReportError> {
    let mut micro: BTreeMap<Vec<Key>, i64> = BTreeMap::new();
    let mut unpriced = 0;
    for row in &prices.rows {
        if &*row.bucket == UNPRICED {
            unpriced += row.gpu_ms;
        }
        let (Some(bucket), Some(amount)) = (row.bucket(), row.micro) else { continue };
        let keys = by.iter().enumerate().map(|(place, dimension)| key(*dimension, place, bucket, row, buckets));
        *micro.entry(keys.collect::<Result<_, _>>()?).or_default() += amount;
    }
    for line in lines.iter_mut() {
        // Where the card does not tell such lines apart, their money stands on a line of its own: this one's is not known.
        line.micro = micro.remove(&line.keys);
    }
    lines.extend(micro.into_iter().map(|(keys, micro)| Line { keys, micro: Some(micro), ..Line::none() }));
    lines.sort_by(|a, b| a.keys.cmp(&b.keys));
    Ok(unpriced)
}

fn key(dimension: Dimension, place: usize, bucket: Bucket, row: &CostRow, buckets: &Buckets) -> Result<Key, ReportError> {
    let named = |text: &Option<ledger::input::Text>| text.as_ref().map_or(Key::Unattributed, |text| Key::Named(text.to_string()));
    match dimension {
        Dimension::Team => match (bucket, &row.team) {
            (_, Some(team)) => Ok(Key::Named(team.to_string())),
            (Bucket::Unattributed | Bucket::RestartWaste, None) => Ok(Key::Unattributed),
            _ => Ok(Key::Nobody),
        },
        Dimension::Provider => Ok(named(&row.provider)),
        Dimension::Region => Ok(named(&row.region)),
        Dimension::Product => Ok(named(&row.product)),
        Dimension::PurchaseOption => Ok(named(&row.purchase_option)),
        Dimension::Hour | Dimension::Day | Dimension::Week | Dimension::Month => {
            if !buckets.bounds(row.hour, row.hour.plus_ms(HOUR_MS)).is_empty() {
                return Err(ReportError::NotPriced(format!("a {} of this zone that cuts UTC hours", dimension.as_str())));
            }
            Ok(buckets.label(place, row.hour).map_or(Key::Unattributed, |label| Key::Named(label.to_owned())))
        }
        Dimension::Cluster
        | Dimension::Node
        | Dimension::Profile
        | Dimension::Namespace
        | Dimension::Pod
        | Dimension::Workload
        | Dimension::Queue => Err(ReportError::NotPriced(dimension.as_str().into())),
    }
}
