//! Pricing hour by hour: what an hour is made from, its digest, its rows in table `costs`.

use std::collections::{BTreeMap, BTreeSet};

use lake::{ClosedKey, Footer, Lake, read};
use ledger::{
    input::Text,
    money::{Bill, Bucket, Input, MoneyError, Pool, Restart, Row, Terms, Usage, UsedBasis, price},
};
use schemas::{HOUR_MS, Timestamp, Window, tables};
use sha2::{Digest, Sha256};

use super::{
    CostsError, Options, Summary,
    card::{self, Card, Labels},
    columns,
    costs::{self, CostRow, SOURCE, UNPRICED},
    files::Files,
    restarts,
    supply::{self, HourRuns, Supply},
    usage,
};

/// Version of the arithmetic; a change does every hour again.
const MONEY_VERSION: &str = "money/1";

/// GPU time used and padded since it began, by pool.
type Used = BTreeMap<usize, (i128, i128)>;

/// Pricing under way.
pub(super) struct Job<'c> {
    lake: &'c Lake,
    card: &'c Card,
    files: &'c Files,
    options: Options,
    pub(super) supply: Supply<'c>,
    lost: Vec<restarts::Lost>,
    summary: Summary,
    notes: Notes,
    /// The unbroken stretch of hours with rows that is under way: its begin, and what per-use pools had been used for then.
    stretch: Option<(Timestamp, Used)>,
    at_end: Used,
}

/// Counts of what a warning says once.
#[derive(Default)]
struct Notes {
    unknown_restarts: usize,
    unpriced_restarts: usize,
    since_bind: usize,
}

impl<'c> Job<'c> {
    pub(super) fn new(
        lake: &'c Lake,
        card: &'c Card,
        files: &'c Files,
        window: Window,
        options: Options,
    ) -> Result<Self, CostsError> {
        let supply = Supply::new(card, supply::imported(lake)?);
        let basis = card.entries.iter().enumerate().map(|(number, entry)| {
            let basis = match entry.pool.terms {
                Terms::PerUse(_) if supply.imported.contains(&number) => "imported",
                Terms::PerUse(_) => "inventory",
                Terms::Commitment(_) | Terms::Block(_) => "terms",
            };
            (entry.pool.name.clone(), basis)
        });
        let basis = basis.collect();
        let summary = Summary {
            window,
            computed: 0,
            unchanged: 0,
            hours: Vec::new(),
            basis,
            amounts: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            warnings: card.warnings(),
            rows: Vec::new(),
        };
        let (notes, stretch, at_end) = (Notes::default(), None, BTreeMap::new());
        let mut job = Self { lake, card, files, options, supply, lost: Vec::new(), summary, notes, stretch, at_end };
        job.lost = job.work_lost()?;
        Ok(job)
    }

    /// Work lost in the window's hours; and after them, where what is lost later is left out of an earlier hour's use.
    fn work_lost(&mut self) -> Result<Vec<restarts::Lost>, CostsError> {
        let told = restarts::imported(self.lake)?;
        let productive = self.card.entries.iter().any(|entry| is_productive(&entry.pool));
        let window = self.summary.window;
        let hours = self.files.0.keys().filter(|(table, _)| *table == "allocations").map(|(_, hour)| *hour);
        let mut lost = Vec::new();
        for hour in hours.filter(|hour| *hour >= window.from() && (productive || *hour < window.to())) {
            // Most hours lost nothing, and one column says so.
            if !restarts::may_be_of(hour, &told, &self.files.rows("allocations", hour, &["terminal_phase"])?) {
                continue;
            }
            let allocations = self.files.rows("allocations", hour, &restarts::COLUMNS)?;
            let nodes = || self.files.rows("nodes", hour, &restarts::NODE_COLUMNS);
            let found = restarts::of_hour(hour, &allocations, &told, nodes)?;
            if hour < window.to() {
                self.notes.unknown_restarts += found.unknown;
            }
            lost.extend(found.lost);
        }
        Ok(lost)
    }

    fn refused(&self, hour: Timestamp, pool: usize) -> CostsError {
        CostsError::Refused { hour, source: MoneyError::Overflow(self.card.entries[pool].pool.name.clone()) }
    }

    /// One hour of the window.
    pub(super) fn hour(&mut self, hour: Timestamp, runs: &HourRuns) -> Result<(), CostsError> {
        if self.files.of("gpu_hours", hour).is_empty() {
            self.close_stretch(hour)?;
            return self.unsettled(hour);
        }
        self.used_up_to(hour, runs)?;
        self.summary.hours.push(hour);
        let restarts = self.restarts_of(hour)?;
        let input = self.input(hour, runs, restarts)?;
        let digest = self.digest(hour, &input)?;
        if !self.options.force && !self.options.keep && self.is_done(hour, &digest) {
            self.summary.unchanged += 1;
            return Ok(());
        }
        self.price(hour, input, &digest)
    }

    /// Keeps what per-use pools were used for at both ends of the stretch.
    fn used_up_to(&mut self, hour: Timestamp, runs: &HourRuns) -> Result<(), CostsError> {
        let at = |instant| {
            let per_use = self.card.entries.iter().enumerate().filter(|(_, entry)| entry.pool.term().is_none());
            let used = |(pool, _): (usize, _)| {
                Ok((pool, supply::up_to(self.card, pool, runs, instant).map_err(|_| self.refused(hour, pool))?))
            };
            per_use.map(used).collect::<Result<Used, CostsError>>()
        };
        let before = if self.stretch.is_none() { Some(at(hour)?) } else { None };
        let after = at(hour.plus_ms(HOUR_MS))?;
        if let Some(before) = before {
            self.stretch = Some((hour, before));
        }
        self.at_end = after;
        Ok(())
    }

    /// What the source says of the stretch that ends at `to`.
    fn close_stretch(&mut self, to: Timestamp) -> Result<(), CostsError> {
        let Some((from, before)) = self.stretch.take() else { return Ok(()) };
        for (number, entry) in self.card.entries.iter().enumerate() {
            let too_large = |_| self.refused(from, number);
            let micro = match entry.pool.term() {
                None => {
                    let cost = |used: &Used| {
                        let (used, pad) = used.get(&number).copied().unwrap_or_default();
                        entry.pool.cost_of(used + pad).map_err(too_large)
                    };
                    cost(&self.at_end)? - cost(&before)?
                }
                Some(_) => amount_of(&entry.pool, from, to).map_err(too_large)?,
            };
            *self.summary.amounts.entry(entry.pool.name.clone()).or_default() += micro;
        }
        Ok(())
    }

    /// An hour without rows: what is paid ahead costs all the same, and nobody knows who had it.
    fn unsettled(&mut self, hour: Timestamp) -> Result<(), CostsError> {
        for (number, entry) in self.card.entries.iter().enumerate().filter(|(_, entry)| entry.pool.term().is_some()) {
            let micro = amount_of(&entry.pool, hour, hour.plus_ms(HOUR_MS)).map_err(|_| self.refused(hour, number))?;
            if micro != 0 {
                *self.summary.unsettled.entry(entry.pool.name.clone()).or_default() += micro;
            }
        }
        Ok(())
    }

    /// Work lost, by pool: in the hour of the restart, or, where use leaves it out, in the hours that it was done in.
    fn restarts_of(&mut self, hour: Timestamp) -> Result<Vec<Restart>, CostsError> {
        let end = hour.plus_ms(HOUR_MS);
        let mut restarts = Vec::new();
        for lost in self.lost.iter().filter(|lost| lost.is_of(hour) || (lost.from < end && lost.at > end)) {
            let is_now = lost.is_of(hour);
            self.notes.since_bind += usize::from(is_now && lost.since_bind);
            let Some((pool, _)) = self.card.pools_of(&lost.labels, hour).first().copied() else {
                self.notes.unpriced_restarts += usize::from(is_now);
                continue;
            };
            let productive = is_productive(&self.card.entries[pool].pool);
            if !productive && !is_now {
                continue;
            }
            let from = if productive { hour } else { lost.from };
            let gpu_ms = lost.gpu_ms(from, end).map_err(|_| self.refused(hour, pool))?;
            let name = self.card.entries[pool].pool.name.clone();
            restarts.push(Restart { pool: name, team: lost.team.clone(), gpu_ms, at: Some(hour) });
        }
        Ok(restarts)
    }

    /// What an hour is priced from, but its usage.
    fn input(&self, hour: Timestamp, runs: &HourRuns, restarts: Vec<Restart>) -> Result<Input, CostsError> {
        let (end, early) = (hour.plus_ms(HOUR_MS), hour.plus_ms(-HOUR_MS));
        let due = |pool: &Pool| pool.term().and_then(|term| term.paid_at).is_some_and(|at| hour <= at && at < end);
        let wanted = self.card.entries.iter().enumerate().filter(|(_, e)| e.touches(early, end) || due(&e.pool));
        let pools = wanted.map(|(number, entry)| {
            let mut pool = entry.pool.clone();
            if let (Terms::PerUse(terms), Some(opening)) = (&mut pool.terms, runs.openings.get(&number)) {
                terms.opening = *opening;
            }
            pool
        });
        let pools: Vec<Pool> = pools.collect();
        let known: BTreeSet<&Text> = pools.iter().map(|pool| &pool.name).collect();
        let of_hour = runs.runs.iter().filter(|run| known.contains(&run.pool)).cloned().collect();
        let window = Window::new(hour, end).map_err(|_| CostsError::InsideHour(hour, hour))?;
        let currency = self.card.currency.clone();
        Ok(Input { currency, window, period: None, runs: of_hour, usage: Vec::new(), restarts, pools })
    }

    /// Digest of what an hour is made from.
    fn digest(&self, hour: Timestamp, input: &Input) -> Result<String, CostsError> {
        let mut digest = Sha256::new();
        digest.update(format!("{MONEY_VERSION}\n{:?}\n{:?}\n{:?}", input.currency, input.pools, input.restarts));
        digest.update(format!("\n{:?}\n{:?}", input.runs, self.supply.imported));
        for entry in self.card.entries.iter().filter(|entry| entry.touches(hour, hour.plus_ms(HOUR_MS))) {
            digest.update(format!("\n{} {:?} {} {}", entry.pool.name, entry.matches, entry.from, entry.to));
        }
        for file in self.files.of("gpu_hours", hour) {
            digest.update(format!("\n{} {}", file.key.shard, read::footer(&file.path)?.content_hash));
        }
        Ok(lake::encode::hex(&digest.finalize()))
    }

    fn is_done(&self, hour: Timestamp, digest: &str) -> bool {
        let [file] = self.files.of("costs", hour) else { return false };
        // A damaged result is done again, not complained about.
        read::footer(&file.path).is_ok_and(|footer| footer.inputs.as_deref() == Some(digest))
    }

    fn price(&mut self, hour: Timestamp, mut input: Input, digest: &str) -> Result<(), CostsError> {
        let batches = self.files.rows("gpu_hours", hour, &usage::COLUMNS)?;
        let used = usage::of_hour(self.card, &self.supply, hour, &batches).map_err(|error| {
            let file = self.files.of("gpu_hours", hour).first().map_or_else(String::new, |f| f.path.display().to_string());
            CostsError::BadRow { file, what: error.to_string() }
        })?;
        input.usage = used.usage.clone();
        leave_out_lost(&mut input);
        // The charging period is longer than an hour: idle by use stays where it is until then (M7).
        input.period = Window::new(hour, hour.plus_ms(2 * HOUR_MS)).ok();
        let bill = price(&input).map_err(|source| CostsError::Refused { hour, source })?;
        let rows = self.rows(hour, &input, &bill, &used);
        if self.options.keep {
            self.summary.rows.extend(rows);
            self.summary.computed += 1;
            return Ok(());
        }
        let batch = costs::batch(&rows).map_err(|source| CostsError::Build { hour, source })?;
        let table = tables::get("costs");
        let sorted = lake::encode::sorted(table, &[batch])?;
        let footer = Footer { inputs: Some(digest.to_owned()), writer_epoch: MONEY_VERSION.into(), ..Footer::default() };
        self.lake.publish_closed(table, ClosedKey { hour, shard: 0 }, &[sorted], footer)?;
        self.summary.computed += 1;
        Ok(())
    }

    /// Rows of an hour: the bill's, what each pool costs, and the time without a price.
    fn rows(&self, hour: Timestamp, input: &Input, bill: &Bill, used: &usage::HourUse) -> Vec<CostRow> {
        let entry = |name: &Text| self.card.entries.iter().find(|entry| entry.pool.name == *name);
        let blank = |name: &Text, bucket: &str| {
            let only = |label| entry(name).and_then(|entry| entry.matches.only(label)).cloned();
            CostRow {
                hour,
                pool: name.clone(),
                purchase_option: entry(name).and_then(|entry| entry.pool.purchase_option.clone()),
                bucket: bucket.into(),
                currency: input.currency.clone(),
                provider: only(0),
                region: only(1),
                product: only(2),
                ..CostRow::default()
            }
        };
        let mut rows = Vec::new();
        for row in &bill.rows {
            let Row { team, gpu_ms, micro, idle_rule, .. } = row.clone();
            let idle_rule = idle_rule.map(|rule| rule.as_str().into());
            let basis = (row.bucket == Bucket::RestartWaste).then(|| UsedBasis::Productive.as_str().into());
            rows.push(CostRow { team, gpu_ms, micro: Some(micro), idle_rule, basis, ..blank(&row.pool, row.bucket.as_str()) });
        }
        for row in &bill.memo {
            let (memo_gpu_ms, memo_micro) = (Some(row.gpu_ms), Some(row.micro));
            let basis = Some(UsedBasis::Billed.as_str().into());
            let team = row.team.clone();
            rows.push(CostRow { team, micro: Some(0), memo_gpu_ms, memo_micro, basis, ..blank(&row.pool, row.bucket.as_str()) });
        }
        for pool in bill.pools.iter().filter(|pool| pool.gpu_ms != 0 || pool.micro != 0 || pool.cash_micro != 0) {
            rows.push(CostRow {
                micro: Some(0),
                basis: self.summary.basis.get(&pool.pool).map(|basis| Text::from(*basis)),
                source_gpu_ms: Some(pool.gpu_ms),
                source_micro: Some(pool.micro),
                cash_micro: Some(pool.cash_micro),
                ..blank(&pool.pool, SOURCE)
            });
        }
        for ((labels, kind, team), gpu_ms) in used.unpriced.iter().filter(|(_, gpu_ms)| **gpu_ms != 0) {
            let [provider, region, product, purchase_option, _]: Labels = labels.clone();
            rows.push(CostRow {
                hour,
                pool: UNPRICED.into(),
                purchase_option,
                bucket: UNPRICED.into(),
                team: team.clone(),
                gpu_ms: *gpu_ms,
                currency: input.currency.clone(),
                provider,
                region,
                product,
                reason: Some(kind.as_str().into()),
                ..CostRow::default()
            });
        }
        rows
    }

    pub(super) fn finish(mut self) -> Result<Summary, CostsError> {
        if let Some(last) = self.summary.hours.last().copied() {
            self.close_stretch(last.plus_ms(HOUR_MS))?;
        }
        let unseen = self.unseen()?;
        let warnings = &mut self.summary.warnings;
        warnings.extend(unseen);
        let lost = self.supply.unpriced_runs();
        if let Some(first) = lost.first() {
            warnings.push(format!(
                "{} imported runs belong to no per_use pool of the card, so their cost is in no row; the first: `{first}`",
                lost.len()
            ));
        }
        let Notes { unknown_restarts, unpriced_restarts, since_bind } = self.notes;
        let mut count = |n: usize, what: &str| {
            if n > 0 {
                warnings.push(format!("{n} {what}"));
            }
        };
        count(unknown_restarts, "imported restarts name a pod that holds nothing at that time: not counted");
        count(unpriced_restarts, "restarts are on nodes that no pool prices: not counted");
        count(since_bind, "restarts have no checkpoint: all since the bind counts as lost");
        Ok(self.summary)
    }

    /// Labels of the card that no row of the window has. Reads hours until all are found.
    fn unseen(&self) -> Result<Vec<String>, CostsError> {
        let mut seen: [BTreeSet<Text>; 5] = Default::default();
        let mut warnings = usage::unseen(self.card, &seen);
        for &hour in &self.summary.hours {
            if warnings.is_empty() {
                break;
            }
            for batch in self.files.rows("gpu_hours", hour, &card::LABELS)? {
                let columns = columns::Columns(&batch);
                for (label, seen) in card::LABELS.iter().zip(&mut seen) {
                    let column = columns.texts(label);
                    let mut last = None;
                    for text in (0..batch.num_rows()).filter_map(|row| columns::text(column, row)) {
                        if last != Some(text) && !seen.contains(text) {
                            seen.insert(text.into());
                        }
                        last = Some(text);
                    }
                }
            }
            warnings = usage::unseen(self.card, &seen);
        }
        Ok(warnings)
    }
}

fn is_productive(pool: &Pool) -> bool {
    matches!(&pool.terms, Terms::PerUse(terms) if terms.basis == UsedBasis::Productive)
}

/// Hour rows hold the work that restarts lost. Where a pool's use leaves it out (basis productive), it is taken off the team's
/// time, and is never more than that.
fn leave_out_lost(input: &mut Input) {
    for restart in &mut input.restarts {
        if !input.pools.iter().any(|pool| pool.name == restart.pool && is_productive(pool)) {
            continue;
        }
        let mut left = restart.gpu_ms;
        let of_team = |usage: &&mut Usage| usage.pool == restart.pool && usage.team == restart.team && !usage.unavailable;
        for usage in input.usage.iter_mut().filter(of_team) {
            let off = left.min(usage.gpu_ms - usage.on_unready_gpu_ms);
            usage.gpu_ms -= off;
            left -= off;
        }
        restart.gpu_ms -= left;
    }
}

/// What a pool that is paid ahead costs in a span.
fn amount_of(pool: &Pool, from: Timestamp, to: Timestamp) -> Result<i64, ledger::money::TooFine> {
    let Ok(window) = Window::new(from, to) else { return Ok(0) };
    Ok(ledger::money::Amount::of(pool, &[], window)?.micro)
}
