//! Rows of one table, column by column. A column that a row does not set is null in it, at no cost until the end; a text that is
//! that of the row before is kept once.

use super::Place;
use super::numbers::Numbers;
use super::texts::Texts;
use crate::tables::{Table, Type};
use arrow::{
    array::{
        ArrayBuilder, ArrayRef, BooleanBuilder, PrimitiveArray, RecordBatch, RecordBatchOptions, TimestampMicrosecondArray,
        new_null_array,
    },
    datatypes::{ArrowPrimitiveType, DataType, Field, Float32Type, Float64Type, Int64Type, Schema, SchemaRef},
    util::bit_util,
};
use std::sync::Arc;

/// Nulls up to row `$len`. A builder that is told of no nulls at all keeps no list of them, which spares the writer one too.
macro_rules! pad {
    ($builder:ident, $len:expr) => {{
        let missing = $len - ArrayBuilder::len(&*$builder);
        if missing > 0 {
            $builder.append_nulls(missing);
        }
    }};
}

/// Rows under construction.
pub struct Rows {
    table: &'static Table,
    columns: Vec<Column>,
    len: usize,
    text_bytes: usize,
    log: Option<(usize, usize)>,
    /// Columns without values, by type.
    empty: Vec<(Type, ArrayRef)>,
    /// For texts that are put together.
    scratch: String,
    /// Rows at the end that are as the one before them in these columns, which do not have them yet.
    repeats: usize,
    repeated: Vec<usize>,
    /// Schema of [`Rows::take_runs`].
    runs: Option<SchemaRef>,
}

/// How a batch has its texts.
#[derive(Clone, Copy, PartialEq)]
enum As {
    Texts,
    Runs,
}

enum Column {
    Text(Texts),
    Int(Numbers<i64>),
    Float(Numbers<f32>),
    Double(Numbers<f64>),
    /// Microseconds.
    Time(Numbers<i64>),
    Bool(BooleanBuilder),
}

impl Rows {
    /// No rows of `table`.
    pub fn new(table: &'static Table) -> Self {
        let column = |kind: Type| match kind {
            Type::Text => Column::Text(Texts::default()),
            Type::Int => Column::Int(Numbers::default()),
            Type::Float => Column::Float(Numbers::default()),
            Type::Double => Column::Double(Numbers::default()),
            Type::Time => Column::Time(Numbers::default()),
            Type::Bool => Column::Bool(BooleanBuilder::with_capacity(0)),
        };
        let log = table.index("log_partition").zip(table.index("log_offset"));
        Rows {
            table,
            columns: table.columns.iter().map(|c| column(c.kind)).collect(),
            len: 0,
            text_bytes: 0,
            log,
            empty: Vec::new(),
            scratch: String::new(),
            repeats: 0,
            repeated: Vec::new(),
            runs: None,
        }
    }

    /// The table.
    pub fn table(&self) -> &'static Table {
        self.table
    }

    /// Finished rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes in memory, roughly.
    pub fn bytes(&self) -> usize {
        self.text_bytes + self.columns.iter().map(Column::bytes).sum::<usize>()
    }

    /// Position of a column of the table.
    ///
    /// # Panics
    /// Where the table has no such column: names are literals in our own code.
    pub fn index(&self, column: &str) -> usize {
        self.table.index(column).unwrap_or_else(|| panic!("table {} has no column {column}", self.table.name))
    }

    /// Sets a text of the current row; an empty one is null where the column may be null.
    pub fn text(&mut self, column: &str, value: &str) {
        let index = self.index(column);
        self.text_at(index, value);
    }

    /// The same by position.
    pub fn text_at(&mut self, index: usize, value: &str) {
        self.bytes_at(index, value.as_bytes());
    }

    /// The same of a text's bytes, which the caller knows to be UTF-8.
    #[inline]
    pub(super) fn bytes_at(&mut self, index: usize, value: &[u8]) {
        if value.is_empty() && self.table.columns[index].nullable {
            return;
        }
        if let Column::Text(b) = &mut self.columns[index] {
            b.append(self.len, value);
            self.text_bytes += value.len();
        }
    }

    /// Sets a text of the current row to a JSON object, its keys in the order given.
    pub fn json_at<K: AsRef<str>>(&mut self, index: usize, labels: impl IntoIterator<Item = (K, K)>) {
        let mut text = std::mem::take(&mut self.scratch);
        text.clear();
        for (name, value) in labels {
            text.push(if text.is_empty() { '{' } else { ',' });
            json_text(name.as_ref(), &mut text);
            text.push(':');
            json_text(value.as_ref(), &mut text);
        }
        text.push_str(if text.is_empty() { "{}" } else { "}" });
        self.text_at(index, &text);
        self.scratch = text;
    }

    /// Sets a whole number of the current row.
    pub fn int(&mut self, column: &str, value: i64) {
        let index = self.index(column);
        self.int_at(index, value);
    }

    /// The same by position.
    #[inline(always)]
    pub fn int_at(&mut self, index: usize, value: i64) {
        if let Column::Int(b) = &mut self.columns[index] {
            b.put(self.len, value);
        }
    }

    /// Sets a fraction of the current row; NaN and infinities are null.
    #[inline(always)]
    pub fn float_at(&mut self, index: usize, value: f32) {
        if let (Column::Float(b), true) = (&mut self.columns[index], value.is_finite()) {
            b.put(self.len, value);
        }
    }

    /// Sets a double of the current row; NaN and infinities are null.
    pub fn double_at(&mut self, index: usize, value: f64) {
        if let (Column::Double(b), true) = (&mut self.columns[index], value.is_finite()) {
            b.put(self.len, value);
        }
    }

    /// Sets a time of the current row.
    pub fn time(&mut self, column: &str, ms: i64) {
        let index = self.index(column);
        self.time_at(index, ms);
    }

    /// The same by position.
    #[inline]
    pub fn time_at(&mut self, index: usize, ms: i64) {
        if let Column::Time(b) = &mut self.columns[index] {
            b.put(self.len, ms.saturating_mul(1000));
        }
    }

    /// Sets a truth value of the current row.
    #[inline]
    pub fn bool_at(&mut self, index: usize, value: bool) {
        if let Column::Bool(b) = &mut self.columns[index] {
            pad!(b, self.len);
            b.append_value(value);
        }
    }

    /// Says where in the log the current row comes from; none: from no log.
    pub fn log(&mut self, place: Option<Place>) {
        if let (Some((p, o)), Some(Place { partition, offset })) = (self.log, place) {
            self.int_at(p, i64::from(partition));
            self.int_at(o, i64::try_from(offset).unwrap_or(i64::MAX));
        }
    }

    /// Finishes the current row.
    pub fn end_row(&mut self) {
        self.len += 1;
    }

    /// Finishes the current row, which in `columns` is as the row before. Until [`Rows::settle`] they must not be set.
    pub(super) fn end_row_as_before(&mut self, columns: &[usize]) {
        if self.repeats == 0 {
            self.repeated.clear();
            self.repeated.extend_from_slice(columns);
        }
        self.repeats += 1;
        self.len += 1;
    }

    /// Gives the columns that rows have from the row before them what they lack.
    pub(super) fn settle(&mut self) {
        if self.repeats == 0 {
            return;
        }
        let rows = self.len - self.repeats;
        for &column in &self.repeated {
            self.columns[column].repeat(rows, self.repeats);
        }
        self.repeats = 0;
    }

    /// The rows as one batch.
    ///
    /// # Panics
    /// Where a row left a column unset that must not be null: a mistake in our own code.
    pub fn finish(mut self) -> RecordBatch {
        self.take()
    }

    /// The same, and no rows are left. The next ones find room for as many.
    ///
    /// # Panics
    /// As [`Rows::finish`].
    pub fn take(&mut self) -> RecordBatch {
        self.batch(As::Texts, self.table.schema())
    }

    /// As [`Rows::take`], texts as places (INT32) in a dictionary that has a text once for each run of rows with it.
    ///
    /// # Panics
    /// As [`Rows::finish`].
    pub fn take_runs(&mut self) -> RecordBatch {
        let schema = self.runs.get_or_insert_with(|| runs(&self.table.schema())).clone();
        self.batch(As::Runs, schema)
    }

    fn batch(&mut self, texts: As, schema: SchemaRef) -> RecordBatch {
        self.settle();
        let len = self.len;
        let Self { columns, empty, .. } = self;
        let columns = columns.iter_mut().zip(&self.table.columns).zip(schema.fields());
        let take = |((column, of), field): ((&mut Column, &crate::tables::Column), &Arc<Field>)| {
            column.take(len, texts, || none(empty, of.kind, field.data_type(), len))
        };
        let arrays = columns.map(take).collect();
        (self.len, self.text_bytes) = (0, 0);
        let options = RecordBatchOptions::new().with_row_count(Some(len));
        RecordBatch::try_new_with_options(schema, arrays, &options)
            .expect("every column is built by its table's own type and padded to one length")
    }
}

/// A table's schema, its texts as places in a dictionary.
fn runs(schema: &Schema) -> SchemaRef {
    let field = |field: &Arc<Field>| match field.data_type() {
        DataType::Utf8 => Arc::new(Field::clone(field).with_data_type(Texts::runs_type())),
        _ => field.clone(),
    };
    let fields: Vec<Arc<Field>> = schema.fields().iter().map(field).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// `text` as JSON: nearly always as it is, in quotes.
fn json_text(text: &str, out: &mut String) {
    let plain = text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\');
    if plain {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&serde_json::Value::from(text).to_string());
    }
}

/// `len` nulls of an array type, the same ones as the last time if they were as many.
fn none(known: &mut Vec<(Type, ArrayRef)>, of: Type, kind: &DataType, len: usize) -> ArrayRef {
    match known.iter().position(|(kind, array)| *kind == of && array.len() == len) {
        Some(at) if known[at].1.data_type() == kind => known[at].1.clone(),
        _ => {
            let array = new_null_array(kind, len);
            known.retain(|(kind, _)| *kind != of);
            known.push((of, array.clone()));
            array
        }
    }
}

impl Column {
    /// Bytes in memory, roughly, but for those of texts themselves.
    fn bytes(&self) -> usize {
        match self {
            Column::Text(texts) => size_of::<i32>() * texts.len(),
            Column::Int(numbers) | Column::Time(numbers) => numbers.bytes(),
            Column::Float(numbers) => numbers.bytes(),
            Column::Double(numbers) => numbers.bytes(),
            Column::Bool(b) => b.len(),
        }
    }

    /// Adds the last of `rows` rows `times` more, if it is set in that one.
    fn repeat(&mut self, rows: usize, times: usize) {
        match self {
            Column::Text(texts) => texts.repeat(rows, times),
            Column::Int(numbers) | Column::Time(numbers) => numbers.repeat(rows, times),
            Column::Float(numbers) => numbers.repeat(rows, times),
            Column::Double(numbers) => numbers.repeat(rows, times),
            Column::Bool(b) => {
                if b.len() == rows && rows > 0 {
                    b.append_n(times, bit_util::get_bit(b.values_slice(), rows - 1));
                }
            }
        }
    }

    /// The column of `len` rows; `none` gives one without values.
    fn take(&mut self, len: usize, texts: As, none: impl FnOnce() -> ArrayRef) -> ArrayRef {
        let empty = match self {
            Column::Text(texts) => texts.is_empty(),
            Column::Int(numbers) | Column::Time(numbers) => numbers.is_empty(),
            Column::Float(numbers) => numbers.is_empty(),
            Column::Double(numbers) => numbers.is_empty(),
            Column::Bool(b) => b.is_empty(),
        };
        if empty && len > 0 {
            return none();
        }
        match self {
            Column::Text(b) if texts == As::Runs => Arc::new(b.take_runs(len)),
            Column::Text(b) => Arc::new(b.take(len)),
            Column::Int(numbers) => Arc::new(array::<Int64Type>(numbers, len)),
            Column::Float(numbers) => Arc::new(array::<Float32Type>(numbers, len)),
            Column::Double(numbers) => Arc::new(array::<Float64Type>(numbers, len)),
            Column::Time(numbers) => {
                let (values, nulls) = numbers.take(len);
                Arc::new(TimestampMicrosecondArray::new(values, nulls).with_timezone("UTC"))
            }
            Column::Bool(b) => {
                pad!(b, len);
                let array = b.finish();
                *b = BooleanBuilder::with_capacity(len);
                Arc::new(array)
            }
        }
    }
}

fn array<T: ArrowPrimitiveType>(numbers: &mut Numbers<T::Native>, len: usize) -> PrimitiveArray<T> {
    let (values, nulls) = numbers.take(len);
    PrimitiveArray::new(values, nulls)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use arrow::array::AsArray as _;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn labels_are_json_as_the_library_writes_it(labels in prop::collection::btree_map("\\PC{0,4}|[a-z\"\\\\\n\u{0}-\u{1f}\u{7f}]{0,4}", ".{0,6}", 0..4)) {
            let labels: BTreeMap<String, String> = labels;
            let mut rows = Rows::new(crate::tables::get("extra_samples"));
            let column = rows.index("labels");
            rows.json_at(column, &labels);
            let texts = rows.columns[column].take(1, As::Texts, || unreachable!());
            prop_assert_eq!(texts.as_string::<i32>().value(0), serde_json::to_string(&labels).unwrap());
        }
    }

    #[test]
    fn what_is_taken_leaves_nothing_behind() {
        let mut rows = Rows::new(crate::tables::get("rejects"));
        let mut taken = Vec::new();
        for (reason, line) in [("bad", Some(7)), ("worse", None)] {
            for text in ["cluster", "node", "source", "reason", "text"] {
                rows.text(text, reason);
            }
            rows.time("at", 1);
            rows.int("rows", 1);
            line.into_iter().for_each(|line| rows.int("line", line));
            rows.end_row();
            taken.push(rows.take());
        }
        assert!(rows.is_empty() && rows.bytes() == 0);
        let column = |batch: &RecordBatch, name: &str| batch.column_by_name(name).unwrap().clone();
        assert_eq!(column(&taken[0], "reason").as_string::<i32>().value(0), "bad");
        assert_eq!(column(&taken[1], "reason").as_string::<i32>().value(0), "worse");
        assert_eq!((column(&taken[0], "line").null_count(), column(&taken[1], "line").null_count()), (0, 1));
    }
}
