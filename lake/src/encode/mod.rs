//! Rows to Parquet bytes: the properties that make every reader happy and the file small.
//!
//! Whole numbers stay whole (DELTA for counters and times, dictionary for gauges), ratios and watts are FLOAT with
//! byte-stream-split, text is dictionary-encoded plain UTF-8, zstd throughout, writer version 1, page index on. The Arrow
//! schema is not embedded, so that readers see Parquet's own types and nothing of ours.
//!
//! Texts may come as dictionaries with Int32 keys, which are the quicker the longer a row's text is that of the row before; the
//! file is that of the same rows as Utf8. Modules in reading order: `writer` (row groups), `runs` (a batch's column), `chunk`
//! (pages by runs, of what has a dictionary), `dictionary`, `series` (pages of the other columns), `numbers` (their encodings),
//! `written` (pages that are done), `value` (text and numbers), `hybrid` (codes and levels).

mod chunk;
mod dictionary;
mod hybrid;
mod numbers;
mod runs;
mod series;
#[cfg(test)]
mod tests;
mod value;
mod writer;
mod written;

use std::borrow::Borrow;

use arrow::{
    array::{Array, ArrayRef, RecordBatch, RecordBatchOptions},
    compute::{SortColumn, SortOptions, cast, concat_batches, lexsort_to_indices, take},
    datatypes::DataType,
};
use parquet::{
    basic::{Compression, Encoding, ZstdLevel},
    errors::ParquetError,
    file::{
        metadata::SortingColumn,
        properties::{EnabledStatistics, WriterProperties, WriterVersion},
    },
    schema::types::ColumnPath,
};
use schemas::{
    Timestamp, catalogue,
    tables::{Column, Table, Type},
};
use sha2::{Digest, Sha256};

use crate::{Footer, LakeError, order};
use writer::Writer;

/// Rows of one row group; enough for min/max pruning by device and time, little enough to buffer.
const ROW_GROUP_ROWS: usize = 250_000;
/// How hard zstd tries.
const ZSTD_LEVEL: i32 = 1;

/// Encodes `batches` of `table` as one file. Sets `rows`, `min_at`, `max_at` and `content_hash` of `footer`.
///
/// Rows are written in the order given; the caller sorts them. A text column of a batch is Utf8, or a dictionary of it with Int32
/// keys.
pub fn file(table: &'static Table, batches: &[RecordBatch], footer: &mut Footer) -> Result<Vec<u8>, LakeError> {
    stream(table, batches.iter().cloned().map(Ok::<_, LakeError>), footer)
}

/// The same of batches that are made one after the other: beside the file's own bytes no more than one row group of them is in
/// memory. An error of theirs ends it.
pub fn stream<E: From<LakeError>>(
    table: &'static Table,
    batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
    footer: &mut Footer,
) -> Result<Vec<u8>, E> {
    write(table, properties(table, Tree::Closed), batches, footer)
}

/// A file of the hot tree, which is read once or twice before its hour is closed: as quick to write as it can be.
pub fn hot(
    table: &'static Table,
    batches: impl IntoIterator<Item: Borrow<RecordBatch>>,
    footer: &mut Footer,
) -> Result<Vec<u8>, LakeError> {
    write(
        table,
        properties(table, Tree::Hot),
        batches.into_iter().map(|batch| Ok::<_, LakeError>(batch.borrow().clone())),
        footer,
    )
}

fn write<E: From<LakeError>>(
    table: &'static Table,
    properties: WriterProperties,
    batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
    footer: &mut Footer,
) -> Result<Vec<u8>, E> {
    let wrong = |source| LakeError::Encode { table: table.name, source };
    let mut writer = Writer::new(table.schema(), properties).map_err(wrong)?;
    (footer.rows, footer.min_at, footer.max_at) = (0, None, None);
    for batch in batches {
        let batch = batch?;
        writer.write(&batch).map_err(wrong)?;
        footer.rows += batch.num_rows() as u64;
        let (min, max) = times(table, &batch);
        footer.min_at = [footer.min_at, min].into_iter().flatten().min();
        footer.max_at = [footer.max_at, max].into_iter().flatten().max();
    }
    footer.content_hash = hex(&Sha256::digest(writer.pages().map_err(wrong)?));
    Ok(writer.finish(footer.key_values()).map_err(wrong)?)
}

/// `batches` as one batch of the table's schema, in the order of the table's sort columns (nulls first).
pub fn sorted(table: &'static Table, batches: &[RecordBatch]) -> Result<RecordBatch, LakeError> {
    let wrong = |source: arrow::error::ArrowError| LakeError::Encode { table: table.name, source: ParquetError::from(source) };
    let plain = |batch: &RecordBatch| {
        let columns = batch.columns().iter().zip(&table.columns);
        let columns = columns.map(|(array, of)| match array.data_type() {
            DataType::Dictionary(..) => cast(array, &of.kind.arrow()),
            _ => Ok(array.clone()),
        });
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(table.schema(), columns.collect::<Result<_, _>>()?, &options)
    };
    let plain = batches.iter().map(plain).collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    let all = concat_batches(&table.schema(), &plain).map_err(wrong)?;
    let keys: Vec<ArrayRef> =
        table.sort.iter().filter_map(|name| table.index(name)).map(|index| all.column(index).clone()).collect();
    let order = match order::order(&keys) {
        Some(order) => order,
        None => {
            let options = Some(SortOptions { descending: false, nulls_first: true });
            let keys: Vec<_> = keys.into_iter().map(|values| SortColumn { values, options }).collect();
            lexsort_to_indices(&keys, None).map_err(wrong)?
        }
    };
    let in_order = |column: &ArrayRef| {
        // Most columns of most files are empty: any order of nulls is the same.
        if column.null_count() == column.len() { Ok(column.clone()) } else { take(column, &order, None) }
    };
    let columns = all.columns().iter().map(in_order).collect::<Result<_, _>>().map_err(wrong)?;
    let options = RecordBatchOptions::new().with_row_count(Some(all.num_rows()));
    RecordBatch::try_new_with_options(table.schema(), columns, &options).map_err(wrong)
}

fn times(table: &Table, batch: &RecordBatch) -> (Option<Timestamp>, Option<Timestamp>) {
    use arrow::array::{AsArray, types::TimestampMicrosecondType};
    let column = table.index(table.time).and_then(|index| batch.column(index).as_primitive_opt::<TimestampMicrosecondType>());
    let Some(column) = column else { return (None, None) };
    let (low, high) = (arrow::compute::min(column), arrow::compute::max(column));
    (low.map(Timestamp::from_micros), high.map(Timestamp::from_micros))
}

/// Which tree a file is of.
#[derive(Clone, Copy, PartialEq)]
enum Tree {
    Closed,
    /// Least and greatest values only of what readers skip by, and no dictionaries of whole numbers.
    Hot,
}

fn properties(table: &Table, tree: Tree) -> WriterProperties {
    let sorting = table.sort.iter().filter_map(|name| table.index(name));
    let sorting = sorting.map(|index| SortingColumn { column_idx: index as i32, descending: false, nulls_first: true }).collect();
    let hot = tree == Tree::Hot;
    let mut properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL).expect("a zstd level")))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_created_by(concat!("strandline ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_sorting_columns(Some(sorting))
        .set_statistics_enabled(if hot { EnabledStatistics::None } else { EnabledStatistics::Page })
        .set_offset_index_disabled(hot);
    for column in &table.columns {
        let path = ColumnPath::new(vec![column.name.clone()]);
        if hot && (table.sort.contains(&&*column.name) || table.time == column.name) {
            properties = properties.set_column_statistics_enabled(path.clone(), EnabledStatistics::Chunk);
        }
        let layout = match layout(column) {
            Layout::Dictionary if hot && column.kind == Type::Int => Layout::Encoded(Encoding::DELTA_BINARY_PACKED),
            layout => layout,
        };
        properties = match layout {
            Layout::Dictionary => properties.set_column_dictionary_enabled(path, true),
            Layout::Encoded(encoding) => {
                properties.set_column_dictionary_enabled(path.clone(), false).set_column_encoding(path, encoding)
            }
        };
    }
    properties.build()
}

enum Layout {
    Dictionary,
    Encoded(Encoding),
}

fn layout(column: &Column) -> Layout {
    match column.kind {
        Type::Text => Layout::Dictionary,
        Type::Float => Layout::Encoded(Encoding::BYTE_STREAM_SPLIT),
        Type::Double | Type::Bool => Layout::Encoded(Encoding::PLAIN),
        Type::Time => Layout::Encoded(Encoding::DELTA_BINARY_PACKED),
        Type::Int => {
            let field = catalogue::columns().find(|(_, name)| *name == column.name).map(|(field, _)| field);
            // A counter, or a byte rate: every row another number, so a dictionary only costs.
            let busy = match field {
                Some(field) => field.monotonic || field.unit == "bytes_per_second",
                None => column.name.ends_with("_ms") || ["sequence", "log_offset"].contains(&column.name.as_str()),
            };
            if busy { Layout::Encoded(Encoding::DELTA_BINARY_PACKED) } else { Layout::Dictionary }
        }
    }
}

/// Bytes in hexadecimal, as hashes are written.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
