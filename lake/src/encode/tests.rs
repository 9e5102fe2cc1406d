//! Our files beside those of parquet's own writer: the same bytes.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use arrow::{
    array::{
        AsArray, BooleanArray, DictionaryArray, Float32Array, Float64Array, Int32Array, Int64Array, StringArray,
        TimestampMicrosecondArray, new_null_array,
    },
    datatypes::{DataType, Field, Schema},
};
use bytes::Bytes;
use parquet::arrow::{ArrowWriter, arrow_reader::ParquetRecordBatchReader, arrow_writer::ArrowWriterOptions};
use proptest::prelude::*;
use schemas::tables;

use super::*;

/// Two texts that are always there, three that may be null, a time and two numbers.
const TABLE: &str = "rejects";
/// Tables that have columns of every type between them.
const TABLES: [&str; 3] = [TABLE, "extra_samples", "gpu_samples"];

/// What parquet's writer makes of Utf8.
fn reference(table: &'static Table, properties: WriterProperties, batches: &[RecordBatch], footer: &mut Footer) -> Vec<u8> {
    let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
    let mut writer = ArrowWriter::try_new_with_options(Vec::new(), table.schema(), options).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.flush().unwrap();
    writer.sync().unwrap();
    footer.content_hash = hex(&Sha256::digest(writer.inner()));
    footer.key_values().into_iter().for_each(|pair| writer.append_key_value_metadata(pair));
    writer.into_inner().unwrap()
}

/// How the rows of a column follow each other.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Different values.
    distinct: u64,
    /// Rows of a run, at most.
    run: u64,
    /// Of a hundred runs, those that are null, where the column may be.
    nulls: u64,
    text: Texts,
}

#[derive(Clone, Copy, Debug)]
enum Texts {
    /// The first is empty.
    Short,
    /// Over the 64 bytes to which statistics are cut.
    Long,
    /// Characters of one to four bytes, across those 64 bytes, some with no successor of their length.
    Foreign,
    /// So that few fill a dictionary.
    Huge,
}

impl Texts {
    /// Numbers in the place of texts: near each other, far, of all sizes up to the greatest, in steps.
    fn whole(self, number: u64) -> i64 {
        match self {
            Texts::Short => 40 - number as i64,
            Texts::Long => number.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64,
            Texts::Foreign => [i64::MIN, -1, 0, 1, i64::MAX, 1 << 40][number as usize % 6] ^ (number as i64 >> 3),
            Texts::Huge => number as i64 * 5_000_000,
        }
    }

    /// Fractions, zeros of both signs, and what is no number.
    fn fraction(self, number: u64) -> f64 {
        let odd = [0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE];
        match self {
            Texts::Short => number as f64 / 8.0,
            Texts::Long => self.whole(number) as f64,
            Texts::Foreign => odd[number as usize % odd.len()],
            Texts::Huge => -(number as f64) / 3.0,
        }
    }

    fn of(self, number: u64) -> String {
        match self {
            Texts::Short if number == 0 => String::new(),
            Texts::Short => format!("v{number}"),
            Texts::Long => format!("{:060}-{number}-{number:030}", number % 3),
            Texts::Foreign => {
                let odd = ['a', '\u{7f}', 'é', '\u{7ff}', '\u{ffff}', '\u{10ffff}', '日', '🐟'];
                let odd = odd[number as usize % odd.len()];
                format!("{}{}{number}", "x".repeat(40 + number as usize % 30), odd.to_string().repeat(24))
            }
            Texts::Huge => format!("{number}{}", "h".repeat(3000 + number as usize % 1000)),
        }
    }
}

/// Enough chance for rows; a fixed rule, so that a case that fails fails again.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % most.max(1)
    }
}

/// Numbers of values, by row.
fn column(shape: Shape, rows: usize, nullable: bool, chance: &mut Chance) -> Vec<Option<u64>> {
    let mut of = Vec::with_capacity(rows);
    while of.len() < rows {
        let value = (!nullable || chance.below(100) >= shape.nulls).then(|| chance.below(shape.distinct));
        let run = chance.below(shape.run) as usize + 1;
        of.extend(std::iter::repeat_n(value, run.min(rows - of.len())));
    }
    of
}

fn utf8(of: &[Option<u64>], texts: Texts) -> ArrayRef {
    Arc::new(of.iter().map(|number| number.map(|number| texts.of(number))).collect::<StringArray>())
}

/// The same with a dictionary in which values repeat, are in no order or not used.
fn keyed(of: &[Option<u64>], shape: Shape, chance: &mut Chance) -> ArrayRef {
    let mut values: Vec<u64> = (0..shape.distinct).collect();
    for _ in 0..chance.below(3) {
        values.push(chance.below(shape.distinct));
    }
    for at in (1..values.len()).rev() {
        values.swap(at, chance.below(at as u64 + 1) as usize);
    }
    let mut places = vec![Vec::new(); shape.distinct as usize];
    for (place, value) in values.iter().enumerate() {
        places[*value as usize].push(place as i32);
    }
    let mut key = |value: u64| {
        let places = &places[value as usize];
        places[chance.below(places.len() as u64) as usize]
    };
    let keys: Int32Array = of.iter().map(|value| value.map(&mut key)).collect();
    let texts = StringArray::from_iter_values(values.iter().map(|number| shape.text.of(*number)));
    Arc::new(DictionaryArray::new(keys, Arc::new(texts)))
}

/// The same rows twice, in batches: as Utf8, and in each batch as Utf8 or as dictionaries.
fn batches(table: &Table, shapes: &[Shape], cuts: &[usize], seed: u64) -> (Vec<RecordBatch>, Vec<RecordBatch>) {
    let (mut chance, mut numbers) = (Chance(seed), 0);
    let mut of_both = (Vec::new(), Vec::new());
    for rows in cuts.iter().copied() {
        let (mut plain, mut mixed): (Vec<ArrayRef>, Vec<ArrayRef>) = Default::default();
        for (column_of, shape) in table.columns.iter().zip(shapes.iter().cycle()) {
            let of = column(*shape, rows, column_of.nullable, &mut chance);
            let (one, other): (ArrayRef, ArrayRef) = match column_of.kind {
                Type::Text => {
                    let plain = utf8(&of, shape.text);
                    let keyed = if chance.below(5) == 0 { plain.clone() } else { keyed(&of, *shape, &mut chance) };
                    (plain, keyed)
                }
                Type::Int => same(of.iter().map(|of| of.map(|n| shape.text.whole(n))).collect::<Int64Array>()),
                Type::Float => same(of.iter().map(|of| of.map(|n| shape.text.fraction(n) as f32)).collect::<Float32Array>()),
                Type::Double => same(of.iter().map(|of| of.map(|n| shape.text.fraction(n))).collect::<Float64Array>()),
                Type::Bool => same(of.iter().map(|of| of.map(|n| n % 2 == 0)).collect::<BooleanArray>()),
                Type::Time => {
                    let times = (numbers..numbers + rows as i64).map(|number| number * 1000);
                    let times = TimestampMicrosecondArray::from_iter_values(times).with_timezone("UTC");
                    same(times)
                }
            };
            plain.push(one);
            mixed.push(other);
        }
        numbers += rows as i64;
        let fields = table.columns.iter().zip(&mixed);
        let fields: Vec<_> = fields.map(|(of, array)| Field::new(&of.name, array.data_type().clone(), true)).collect();
        of_both.0.push(RecordBatch::try_new(table.schema(), plain).unwrap());
        of_both.1.push(RecordBatch::try_new(Arc::new(Schema::new(fields)), mixed).unwrap());
    }
    of_both
}

fn same(array: impl Array + Clone + 'static) -> (ArrayRef, ArrayRef) {
    (Arc::new(array.clone()), Arc::new(array))
}

fn check(table: &'static Table, properties: WriterProperties, plain: &[RecordBatch], mixed: &[RecordBatch]) {
    let mut footer = Footer { topic: Some("t".into()), writer_epoch: "w".into(), ..Footer::default() };
    let ours = |batches: &[RecordBatch], footer: &mut Footer| {
        write(table, properties.clone(), batches.iter().cloned().map(Ok::<_, LakeError>), footer).unwrap()
    };
    let (of_keys, mut other) = (ours(mixed, &mut footer), footer.clone());
    let theirs = reference(table, properties.clone(), plain, &mut other);
    assert_eq!(footer, other);
    assert!(of_keys == theirs, "{} bytes of ours, {} of parquet's", of_keys.len(), theirs.len());
    assert!(ours(plain, &mut footer) == theirs, "Utf8 goes another way");
}

fn shape() -> impl Strategy<Value = Shape> {
    let texts = prop_oneof![4 => Just(Texts::Short), 2 => Just(Texts::Long), 2 => Just(Texts::Foreign), 1 => Just(Texts::Huge)];
    let distinct = prop_oneof![Just(1), 2..20u64, 20..600u64];
    let run = prop_oneof![Just(1), 2..20u64, 20..1000u64];
    let nulls = prop_oneof![3 => Just(0), 1 => Just(100), 2 => 1..99u64];
    (distinct, run, nulls, texts).prop_map(|(distinct, run, nulls, text)| Shape { distinct, run, nulls, text })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// With limits so narrow that few rows meet them all.
    #[test]
    fn the_bytes_are_those_of_parquets_writer(
        table in prop::sample::select(&TABLES[..]),
        shapes in prop::collection::vec(shape(), 3..8),
        cuts in prop::collection::vec(0..1500usize, 1..5),
        seed: u64,
        hot: bool,
        group in 300..4000usize,
        page_rows in prop_oneof![Just(20_000usize), 100..3000usize],
        batch_rows in prop_oneof![Just(1024usize), 16..300usize],
        page_bytes in prop_oneof![Just(1usize << 20), 300..20_000usize],
        dictionary_bytes in prop_oneof![2 => Just(1usize << 20), 1 => 20..40_000usize],
    ) {
        let table = tables::get(table);
        let of = properties(table, if hot { Tree::Hot } else { Tree::Closed }).into_builder();
        let of = of.set_max_row_group_row_count(Some(group)).set_data_page_row_count_limit(page_rows);
        let of = of.set_write_batch_size(batch_rows).set_data_page_size_limit(page_bytes);
        let (plain, mixed) = batches(table, &shapes, &cuts, seed);
        check(table, of.set_dictionary_page_size_limit(dictionary_bytes).build(), &plain, &mixed);
    }
}

/// Pages of 20,000 rows, dictionaries of a mebibyte and more, several row groups; as the tables' files have them.
#[test]
fn large_files_are_the_same_too() {
    let short = Shape { distinct: 300, run: 40, nulls: 0, text: Texts::Short };
    let shapes = [
        short,
        Shape { text: Texts::Long, run: 3, ..short },
        Shape { nulls: 30, ..short },
        Shape { distinct: 1, run: 100_000, text: Texts::Long, ..short },
        Shape { nulls: 100, ..short },
        Shape { distinct: 900, run: 2, text: Texts::Huge, ..short },
        Shape { distinct: 60_000, run: 1, nulls: 2, text: Texts::Foreign },
        short,
    ];
    for table in TABLES.map(tables::get) {
        for of in [properties(table, Tree::Closed), properties(table, Tree::Hot)] {
            let of = of.into_builder().set_max_row_group_row_count(Some(50_000)).build();
            // The wide one has its columns' kinds many times.
            let first = if table.columns.len() > 100 { 23_000 } else { 45_000 };
            let (plain, mixed) = batches(table, &shapes, &[first, 1, 17_000, 2_000], 7);
            check(table, of, &plain, &mixed);
        }
    }
}

#[test]
fn a_column_of_another_type_is_refused() {
    let table = tables::get(TABLE);
    let (plain, _) = batches(tables::get(TABLE), &[Shape { distinct: 2, run: 1, nulls: 0, text: Texts::Short }], &[3], 1);
    let place = table.index("reason").unwrap();
    let with = |array: ArrayRef| {
        let mut columns = plain[0].columns().to_vec();
        columns[place] = array;
        let fields: Vec<_> = columns.iter().map(|array| Field::new("c", array.data_type().clone(), true)).collect();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
        hot(table, [batch], &mut Footer::default()).map_err(|error| format!("{:?}", error))
    };
    assert!(with(Arc::new(Int64Array::from(vec![1, 2, 3]))).unwrap_err().contains("the table's is Utf8"));
    assert!(with(new_null_array(&DataType::Utf8, 3)).unwrap_err().contains("reason is null where it may not be"));
    let one = plain[0].project(&[0]).unwrap();
    assert!(hot(table, [one], &mut Footer::default()).is_err());
    let views = arrow::compute::cast(plain[0].column(place), &DataType::Utf8View).unwrap();
    assert_eq!(with(views).unwrap(), hot(table, &plain, &mut Footer::default()).unwrap());
}

/// Parquet's writer has no such case to compare with: it takes nulls of the dictionary for texts.
#[test]
fn a_null_in_a_dictionary_is_a_null() {
    let table = tables::get(TABLE);
    let (plain, _) = batches(tables::get(TABLE), &[Shape { distinct: 2, run: 1, nulls: 0, text: Texts::Short }], &[4], 1);
    let keys = Int32Array::from(vec![Some(1), Some(0), None, Some(1)]);
    let keyed = DictionaryArray::new(keys, Arc::new(StringArray::from(vec![Some("a"), None])));
    let mut columns = plain[0].columns().to_vec();
    columns[table.index("text").unwrap()] = Arc::new(keyed);
    let fields: Vec<_> = columns.iter().map(|array| Field::new("c", array.data_type().clone(), true)).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    let bytes = hot(table, [batch], &mut Footer::default()).unwrap();
    let reader = ParquetRecordBatchReader::try_new(Bytes::from(bytes), 10).unwrap();
    let back: Vec<_> = reader.map(|batch| batch.unwrap()).collect();
    let texts = back[0].column_by_name("text").unwrap().as_string::<i32>();
    assert_eq!(texts.iter().collect::<Vec<_>>(), [None, Some("a"), None, None]);
}

#[test]
fn dictionaries_are_put_in_order() {
    let shape = Shape { distinct: 9, run: 3, nulls: 20, text: Texts::Short };
    let (plain, mixed) = batches(tables::get(TABLE), &[shape], &[40, 7], 3);
    let table = tables::get(TABLE);
    assert_eq!(sorted(table, &mixed).unwrap(), sorted(table, &plain).unwrap());
}
