//! What a row costs to encode: `gpu_samples` with all its texts, by parquet's own writer and by ours, of Utf8 and of dictionaries.
//!
//! Estimate before measuring: parquet's writer hashes, compares and copies 20 texts a row, some 0.5 us; by keys nothing is done
//! a row but a compare.
#![allow(clippy::expect_used)]

use std::{hint::black_box, sync::Arc, time::Instant};

use arrow::{
    array::{
        ArrayRef, DictionaryArray, Float32Array, Int32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
        new_null_array,
    },
    compute::cast,
    datatypes::{DataType, Field, Schema},
};
use lake::{Footer, encode};
use parquet::{
    arrow::{ArrowWriter, arrow_writer::ArrowWriterOptions},
    basic::{Compression, Encoding, ZstdLevel},
    file::properties::{EnabledStatistics, WriterProperties, WriterVersion},
    schema::types::ColumnPath,
};
use schemas::tables::{self, Column, Table, Type};

fn main() {
    let quick = std::env::args().any(|argument| argument == "--test");
    let (rows, repeats) = if quick { (2_000, 1) } else { (240_000, 7) };
    let table = tables::get("gpu_samples");
    let texts = table.columns.iter().filter(|column| column.kind == Type::Text).count();
    println!("{rows} rows of {} columns, {texts} of texts; ns a row, the best of {repeats}", table.columns.len());
    for run in [12, 240] {
        let keyed = batch(table, rows, run);
        let plain = as_utf8(table, &keyed);
        let numbers = without_texts(table, &plain);
        let [by_parquet, of_plain, of_keyed, rest] = best(
            repeats,
            rows,
            [
                &|| parquets(table, &plain),
                &|| encode::hot(table, [&plain], &mut Footer::default()).expect("a file"),
                &|| encode::hot(table, [&keyed], &mut Footer::default()).expect("a file"),
                &|| encode::hot(table, [&numbers], &mut Footer::default()).expect("a file"),
            ],
        );
        println!(
            "runs of {run:3} rows, hot:    parquet's writer {by_parquet:6.0}, Utf8 {of_plain:6.0}, dictionaries {of_keyed:6.0}; ratio {:.2}",
            by_parquet / of_keyed
        );
        println!(
            "  of that all but texts  {rest:6.0}; texts alone: ratio {:.1}",
            (by_parquet - rest) / (of_keyed - rest).max(1.0)
        );
        let file = |rows: &RecordBatch| encode::file(table, std::slice::from_ref(rows), &mut Footer::default()).expect("a file");
        let [of_plain, of_keyed] = best(repeats, rows, [&|| file(&plain), &|| file(&keyed)]);
        println!("runs of {run:3} rows, closed: Utf8 {of_plain:6.0}, dictionaries {of_keyed:6.0}");
        let few = keyed.slice(0, 1000.min(rows));
        let small = || encode::hot(table, [&few], &mut Footer::default()).expect("a file");
        let [ours, theirs] = best(repeats, 1000, [&small, &|| parquets(table, &plain.slice(0, few.num_rows()))]);
        println!("  a hot file of {} rows: {:.2} ms, parquet's writer {:.2} ms", few.num_rows(), ours / 1e3, theirs / 1e3);
    }
}

/// The least nanoseconds a row that each takes, taken in turns.
fn best<const N: usize>(repeats: usize, rows: usize, makes: [&dyn Fn() -> Vec<u8>; N]) -> [f64; N] {
    let mut least = [f64::MAX; N];
    for _ in 0..repeats {
        for (least, make) in least.iter_mut().zip(makes) {
            let start = Instant::now();
            black_box(make());
            *least = least.min(start.elapsed().as_secs_f64() * 1e9 / rows as f64);
        }
    }
    least
}

/// Texts as dictionaries: a device's rows follow each other, eight devices a node; most other columns are empty, as in real rows.
fn batch(table: &Table, rows: usize, run: usize) -> RecordBatch {
    let numbers = 0..rows as i64;
    let mut filled = 0;
    let columns: Vec<ArrayRef> = table
        .columns
        .iter()
        .map(|column| match column.kind {
            Type::Text => text(column, rows, run),
            Type::Time => {
                let times = numbers.clone().map(|row| row * 15_000_000);
                Arc::new(TimestampMicrosecondArray::from_iter_values(times).with_timezone("UTC")) as ArrayRef
            }
            Type::Int if filled < 8 => {
                filled += 1;
                Arc::new(Int64Array::from_iter_values(numbers.clone().map(|row| row / 3 % 50)))
            }
            Type::Float if filled < 20 => {
                filled += 1;
                Arc::new(Float32Array::from_iter_values(numbers.clone().map(|row| (row % 1000) as f32 * 0.001)))
            }
            kind => new_null_array(&kind.arrow(), rows),
        })
        .collect();
    let fields: Vec<_> =
        table.columns.iter().zip(&columns).map(|(of, array)| Field::new(&of.name, array.data_type().clone(), true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("a batch")
}

fn text(column: &Column, rows: usize, run: usize) -> ArrayRef {
    let per = match column.name.as_str() {
        "cluster" | "product" | "driver_version" | "owner_source" | "profile" => rows,
        "node" | "source" | "hostname" | "namespace" => run * 8,
        _ => run,
    };
    let values = StringArray::from_iter_values((0..rows.div_ceil(per)).map(|n| format!("{}-{n:08x}-of-the-reef", column.name)));
    Arc::new(DictionaryArray::new(Int32Array::from_iter_values((0..rows).map(|row| (row / per) as i32)), Arc::new(values)))
}

fn as_utf8(table: &Table, batch: &RecordBatch) -> RecordBatch {
    let columns = batch.columns().iter().zip(&table.columns).map(|(array, of)| cast(array, &of.kind.arrow()).expect("a cast"));
    RecordBatch::try_new(table.schema(), columns.collect()).expect("a batch")
}

/// With one text instead of many, and no more than that where there must be one.
fn without_texts(table: &Table, batch: &RecordBatch) -> RecordBatch {
    let rows = batch.num_rows();
    let columns = batch.columns().iter().zip(&table.columns).map(|(array, of)| match (of.kind, of.nullable) {
        (Type::Text, true) => new_null_array(&DataType::Utf8, rows),
        (Type::Text, false) => {
            let keys = Int32Array::from_iter_values(std::iter::repeat_n(0, rows));
            Arc::new(DictionaryArray::new(keys, Arc::new(StringArray::from(vec!["x"])))) as ArrayRef
        }
        _ => array.clone(),
    });
    let columns: Vec<ArrayRef> = columns.collect();
    let fields: Vec<_> =
        table.columns.iter().zip(&columns).map(|(of, array)| Field::new(&of.name, array.data_type().clone(), true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("a batch")
}

/// A hot file as parquet's writer makes it: zstd, dictionaries of texts alone, few statistics, no offset index.
fn parquets(table: &Table, batch: &RecordBatch) -> Vec<u8> {
    let mut properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true);
    for column in &table.columns {
        let path = ColumnPath::new(vec![column.name.clone()]);
        if table.sort.contains(&&*column.name) {
            properties = properties.set_column_statistics_enabled(path.clone(), EnabledStatistics::Chunk);
        }
        let encoding = match column.kind {
            Type::Text => continue,
            Type::Int | Type::Time => Encoding::DELTA_BINARY_PACKED,
            Type::Float => Encoding::BYTE_STREAM_SPLIT,
            Type::Double | Type::Bool => Encoding::PLAIN,
        };
        properties = properties.set_column_dictionary_enabled(path.clone(), false).set_column_encoding(path, encoding);
    }
    let options = ArrowWriterOptions::new().with_properties(properties.build()).with_skip_arrow_metadata(true);
    let mut writer = ArrowWriter::try_new_with_options(Vec::new(), table.schema(), options).expect("a writer");
    writer.write(batch).expect("rows");
    writer.into_inner().expect("a file")
}
