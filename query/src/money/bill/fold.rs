//! Rows of `costs` folded into groups, and idle time given to whom the request says.

use std::collections::{BTreeMap, BTreeSet};

use ledger::{
    input::Text,
    money::{Bucket, Idle, IdleRule, Rate, TooFine, share_idle},
};

use super::{Basis, BillError, By, Line, PoolTotal, Request, month_of};
use crate::money::{
    card::{Card, Period},
    costs::{CostRow, SOURCE},
};

/// A row without its hour, with the period of charging and the time that is grouped by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    pool: Text,
    period: String,
    pub(super) bucket: Text,
    team: Option<Text>,
    idle_rule: Option<Text>,
    purchase_option: Option<Text>,
    provider: Option<Text>,
    region: Option<Text>,
    product: Option<Text>,
    time: [String; 3],
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub(super) gpu_ms: i64,
    pub(super) micro: Option<i64>,
    memo: (i64, i64),
}

impl Sum {
    fn add(&mut self, gpu_ms: i64, micro: Option<i64>) {
        self.gpu_ms += gpu_ms;
        self.micro = match (self.micro, micro) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }
}

pub(super) struct Folded<'r> {
    pub(super) by: &'r [By],
    pub(super) period: Period,
    pub(super) groups: BTreeMap<Group, Sum>,
    pub(super) pools: BTreeMap<Text, PoolTotal>,
}

impl Folded<'_> {
    pub(super) fn add(&mut self, row: &CostRow) {
        if &*row.bucket == SOURCE {
            let pool = self.pools.entry(row.pool.clone()).or_default();
            pool.source_micro += row.source_micro.unwrap_or(0);
            pool.source_gpu_ms += row.source_gpu_ms.unwrap_or(0);
            pool.cash_micro += row.cash_micro.unwrap_or(0);
            return;
        }
        if let Some(bucket) = row.bucket() {
            let pool = self.pools.entry(row.pool.clone()).or_default();
            pool.rows_micro += row.micro.unwrap_or(0);
            pool.rows_gpu_ms += if bucket == Bucket::NotBilled { 0 } else { row.gpu_ms };
        }
        let text = row.hour.to_string();
        let keep = |by: By, shown: &str| if self.by.contains(&by) { shown.to_owned() } else { String::new() };
        let group = Group {
            pool: row.pool.clone(),
            period: if self.period == Period::Month { month_of(row.hour) } else { String::new() },
            bucket: row.bucket.clone(),
            team: row.team.clone(),
            idle_rule: row.idle_rule.clone(),
            purchase_option: row.purchase_option.clone(),
            provider: row.provider.clone(),
            region: row.region.clone(),
            product: row.product.clone(),
            time: [keep(By::Hour, &format!("{}Z", &text[..16])), keep(By::Day, &text[..10]), keep(By::Month, &text[..7])],
        };
        let sum = self.groups.entry(group).or_default();
        sum.add(row.gpu_ms, row.micro);
        sum.memo.0 += row.memo_gpu_ms.unwrap_or(0);
        sum.memo.1 += row.memo_micro.unwrap_or(0);
    }

    /// Gives idle time to whom the request says; returns the pools whose time to be charged has not come.
    pub(super) fn charge(
        &mut self,
        card: &Card,
        request: &Request,
        whole: &BTreeSet<String>,
    ) -> Result<BTreeSet<Text>, BillError> {
        if request.basis == Basis::Showback {
            self.show_only();
        }
        let mut not_yet = BTreeSet::new();
        let pools: BTreeSet<(Text, String)> =
            self.groups.keys().map(|group| (group.pool.clone(), group.period.clone())).collect();
        for (name, period) in pools {
            let Some(entry) = card.entries.iter().find(|entry| entry.pool.name == name) else { continue };
            let by_use = request.basis == Basis::Chargeback && entry.pool.idle == Idle::ByUse;
            if by_use && !request.spread_idle && !whole.contains(&period) {
                not_yet.insert(name.clone());
                continue;
            }
            if !by_use && !request.spread_idle {
                continue;
            }
            let rate = Rate::of(&entry.pool).map_err(|_| BillError::TooLarge(name.clone()))?;
            let idle = entry.pool.idle_bucket();
            let buckets = if request.spread_idle { vec![idle, Bucket::Unavailable] } else { vec![idle] };
            for bucket in buckets {
                let shared = self.share(&name, &period, bucket, &rate).map_err(|_| BillError::TooLarge(name.clone()))?;
                let over = if self.period == Period::Month { "a month" } else { "the window" };
                let fine = [By::Hour, By::Day].into_iter().find(|by| self.by.contains(by));
                let fine = fine.or_else(|| (self.period == Period::Window && self.by.contains(&By::Month)).then_some(By::Month));
                if let Some(by) = fine.filter(|_| shared) {
                    return Err(BillError::NotBy(over, by.as_str()));
                }
            }
        }
        Ok(not_yet)
    }

    /// Takes names off idle rows.
    fn show_only(&mut self) {
        for (mut group, sum) in std::mem::take(&mut self.groups) {
            if group.idle_rule.is_some() {
                group.team = None;
                group.idle_rule = Some(IdleRule::Central.as_str().into());
            }
            let shown = self.groups.entry(group).or_default();
            shown.add(sum.gpu_ms, sum.micro);
            shown.memo.0 += sum.memo.0;
            shown.memo.1 += sum.memo.1;
        }
    }

    /// Shares what nobody held of a pool in a period out by use. Whether there was anything, and anyone.
    fn share(&mut self, pool: &Text, period: &str, bucket: Bucket, rate: &Rate) -> Result<bool, TooFine> {
        let of_pool = |group: &Group| group.pool == *pool && group.period == period;
        let mut uses: BTreeMap<Option<Text>, i64> = BTreeMap::new();
        let is_use = |group: &Group| {
            matches!(Bucket::from_text(&group.bucket), Some(Bucket::Team | Bucket::Unattributed | Bucket::RestartWaste))
        };
        for (group, sum) in self.groups.iter().filter(|(group, _)| of_pool(group) && is_use(group)) {
            *uses.entry(group.team.clone()).or_default() += sum.gpu_ms;
        }
        let nobodys = |group: &Group| of_pool(group) && *group.bucket == *bucket.as_str() && group.team.is_none();
        let taken: Vec<Group> = self.groups.keys().filter(|group| nobodys(group)).cloned().collect();
        let Some(example) = taken.first().cloned() else { return Ok(false) };
        if uses.values().all(|used| *used == 0) {
            return Ok(false);
        }
        let mut idle = (0, 0);
        for group in &taken {
            let sum = self.groups.remove(group).unwrap_or_default();
            idle = (idle.0 + sum.gpu_ms, idle.1 + sum.micro.unwrap_or(0));
        }
        let shares = share_idle(idle.0, rate, &uses.into_iter().collect::<Vec<_>>())?;
        let mut left = idle.1;
        for share in shares.into_iter().filter(|share| share.gpu_ms != 0) {
            left -= share.micro;
            let rule = (bucket != Bucket::Unavailable).then(|| IdleRule::ByUse.as_str().into());
            let group = Group { team: share.team, idle_rule: rule, ..example.clone() };
            self.groups.entry(group).or_default().add(share.gpu_ms, Some(share.micro));
        }
        // Each share is rounded by itself, and each hour's idle was: what is between them is rounding, and the sum stays.
        if left != 0 {
            let group = Group { bucket: Bucket::Rounding.as_str().into(), team: None, idle_rule: None, ..example };
            self.groups.entry(group).or_default().add(0, Some(left));
        }
        Ok(true)
    }

    pub(super) fn lines(&self) -> Vec<Line> {
        let mut lines: BTreeMap<Vec<Option<String>>, Sum> = BTreeMap::new();
        for (group, sum) in &self.groups {
            let key = |by: &By| {
                let text = |text: &Option<Text>| text.as_deref().map(str::to_owned);
                match by {
                    By::Team => text(&group.team),
                    By::Pool => Some(group.pool.to_string()),
                    By::Bucket => Some(group.bucket.to_string()),
                    By::PurchaseOption => text(&group.purchase_option),
                    By::Provider => text(&group.provider),
                    By::Region => text(&group.region),
                    By::Product => text(&group.product),
                    By::Hour => Some(group.time[0].clone()),
                    By::Day => Some(group.time[1].clone()),
                    By::Month => Some(group.time[2].clone()),
                }
            };
            let line = lines.entry(self.by.iter().map(key).collect()).or_default();
            line.add(sum.gpu_ms, sum.micro);
            line.memo.0 += sum.memo.0;
            line.memo.1 += sum.memo.1;
        }
        let line = |(keys, sum): (Vec<Option<String>>, Sum)| Line {
            keys,
            gpu_ms: sum.gpu_ms,
            micro: sum.micro,
            memo_gpu_ms: sum.memo.0,
            memo_micro: sum.memo.1,
        };
        lines.into_iter().map(line).collect()
    }
}
