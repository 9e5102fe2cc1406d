//! Rows of table `costs`: one hour's bill, and the time that has no price; written and read back.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use ledger::{input::Text, money::Bucket};
use schemas::{Timestamp, tables};

use super::columns::{Columns, int, text, time};

/// Pool and bucket of time without a price.
pub const UNPRICED: &str = "unpriced";
/// Bucket of the row that states what a pool costs, beside the rows that sum to it.
pub const SOURCE: &str = "source";

/// One row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostRow {
    /// Start of the UTC hour.
    pub hour: Timestamp,
    /// Pool, or [`UNPRICED`].
    pub pool: Text,
    /// How it is paid for.
    pub purchase_option: Option<Text>,
    /// A [`Bucket`], [`UNPRICED`] or [`SOURCE`].
    pub bucket: Text,
    /// Who pays.
    pub team: Option<Text>,
    /// GPU time.
    pub gpu_ms: i64,
    /// Amount; none where there is no price.
    pub micro: Option<i64>,
    /// Currency.
    pub currency: Text,
    /// On idle rows.
    pub idle_rule: Option<Text>,
    /// Provider.
    pub provider: Option<Text>,
    /// Region.
    pub region: Option<Text>,
    /// Product.
    pub product: Option<Text>,
    /// What unpriced time is.
    pub reason: Option<Text>,
    /// Where a source comes from; what restart waste is in.
    pub basis: Option<Text>,
    /// Beside the sum.
    pub memo_gpu_ms: Option<i64>,
    /// Beside the sum.
    pub memo_micro: Option<i64>,
    /// Paid for.
    pub source_gpu_ms: Option<i64>,
    /// The pool's amount.
    pub source_micro: Option<i64>,
    /// What falls due.
    pub cash_micro: Option<i64>,
}

impl CostRow {
    /// Its bucket, where it is one that sums to the bill.
    pub fn bucket(&self) -> Option<Bucket> {
        Bucket::from_text(&self.bucket)
    }
}

/// Rows as a batch of `costs`.
pub(super) fn batch(rows: &[CostRow]) -> Result<RecordBatch, datafusion::arrow::error::ArrowError> {
    let schema = tables::get("costs").schema();
    let texts = |get: fn(&CostRow) -> Option<&str>| -> ArrayRef { Arc::new(rows.iter().map(get).collect::<StringArray>()) };
    let ints = |get: fn(&CostRow) -> Option<i64>| -> ArrayRef { Arc::new(rows.iter().map(get).collect::<Int64Array>()) };
    let hours: TimestampMicrosecondArray = rows.iter().map(|row| Some(row.hour.micros())).collect();
    let columns = schema.fields().iter().map(|field| match field.name().as_str() {
        "hour_start" => Arc::new(hours.clone().with_timezone("UTC")) as ArrayRef,
        "pool" => texts(|row| Some(&row.pool)),
        "purchase_option" => texts(|row| row.purchase_option.as_deref()),
        "bucket" => texts(|row| Some(&row.bucket)),
        "team" => texts(|row| row.team.as_deref()),
        "gpu_ms" => ints(|row| Some(row.gpu_ms)),
        "micro" => ints(|row| row.micro),
        "currency" => texts(|row| Some(&row.currency)),
        "idle_rule" => texts(|row| row.idle_rule.as_deref()),
        "provider" => texts(|row| row.provider.as_deref()),
        "region" => texts(|row| row.region.as_deref()),
        "product" => texts(|row| row.product.as_deref()),
        "reason" => texts(|row| row.reason.as_deref()),
        "basis" => texts(|row| row.basis.as_deref()),
        "memo_gpu_ms" => ints(|row| row.memo_gpu_ms),
        "memo_micro" => ints(|row| row.memo_micro),
        "source_gpu_ms" => ints(|row| row.source_gpu_ms),
        "source_micro" => ints(|row| row.source_micro),
        "cash_micro" => ints(|row| row.cash_micro),
        _ => datafusion::arrow::array::new_null_array(field.data_type(), rows.len()),
    });
    RecordBatch::try_new(schema.clone(), columns.collect())
}

/// Rows of a batch of `costs`.
pub(super) fn rows(batch: &RecordBatch) -> Vec<CostRow> {
    let columns = Columns(batch);
    let hours = columns.times("hour_start");
    let [pools, options, buckets, teams, currencies, rules] =
        ["pool", "purchase_option", "bucket", "team", "currency", "idle_rule"].map(|name| columns.texts(name));
    let [providers, regions, products, reasons, bases] =
        ["provider", "region", "product", "reason", "basis"].map(|name| columns.texts(name));
    let [times, micros, memo_times, memo_micros, source_times, source_micros, cashes] =
        ["gpu_ms", "micro", "memo_gpu_ms", "memo_micro", "source_gpu_ms", "source_micro", "cash_micro"]
            .map(|name| columns.ints(name));
    let one = |row: usize| {
        let must = |column| Text::from(text(column, row).unwrap_or_default());
        let may = |column| text(column, row).map(Text::from);
        CostRow {
            hour: time(hours, row).unwrap_or_default(),
            pool: must(pools),
            purchase_option: may(options),
            bucket: must(buckets),
            team: may(teams),
            gpu_ms: int(times, row).unwrap_or(0),
            micro: int(micros, row),
            currency: must(currencies),
            idle_rule: may(rules),
            provider: may(providers),
            region: may(regions),
            product: may(products),
            reason: may(reasons),
            basis: may(bases),
            memo_gpu_ms: int(memo_times, row),
            memo_micro: int(memo_micros, row),
            source_gpu_ms: int(source_times, row),
            source_micro: int(source_micros, row),
            cash_micro: int(cashes, row),
        }
    };
    (0..batch.num_rows()).map(one).collect()
}
