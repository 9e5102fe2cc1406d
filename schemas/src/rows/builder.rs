//! Rows of one table, column by column. A column that a row does not set is null in it, at no cost until the end.

use super::Place;
use crate::tables::{Table, Type};
use arrow::array::{
    ArrayRef, BooleanBuilder, Float32Builder, Float64Builder, Int64Builder, RecordBatch, StringBuilder,
    TimestampMicrosecondBuilder,
};
use std::sync::Arc;

/// Rows under construction.
pub struct Rows {
    table: &'static Table,
    columns: Vec<Column>,
    len: usize,
    bytes: usize,
    log: Option<(usize, usize)>,
}

enum Column {
    Text(StringBuilder),
    Int(Int64Builder),
    Float(Float32Builder),
    Double(Float64Builder),
    Time(TimestampMicrosecondBuilder),
    Bool(BooleanBuilder),
}

impl Rows {
    /// No rows of `table`.
    pub fn new(table: &'static Table) -> Self {
        let column = |kind: Type| match kind {
            Type::Text => Column::Text(StringBuilder::new()),
            Type::Int => Column::Int(Int64Builder::with_capacity(0)),
            Type::Float => Column::Float(Float32Builder::with_capacity(0)),
            Type::Double => Column::Double(Float64Builder::with_capacity(0)),
            Type::Time => Column::Time(TimestampMicrosecondBuilder::with_capacity(0)),
            Type::Bool => Column::Bool(BooleanBuilder::with_capacity(0)),
        };
        let log = table.index("log_partition").zip(table.index("log_offset"));
        Rows { table, columns: table.columns.iter().map(|c| column(c.kind)).collect(), len: 0, bytes: 0, log }
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
        self.bytes
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
        if value.is_empty() && self.table.columns[index].nullable {
            return;
        }
        if let Column::Text(b) = &mut self.columns[index] {
            b.append_nulls(self.len - arrow::array::ArrayBuilder::len(b));
            b.append_value(value);
            self.bytes += value.len() + 4;
        }
    }

    /// Sets a whole number of the current row.
    pub fn int(&mut self, column: &str, value: i64) {
        let index = self.index(column);
        self.int_at(index, value);
    }

    /// The same by position.
    pub fn int_at(&mut self, index: usize, value: i64) {
        if let Column::Int(b) = &mut self.columns[index] {
            b.append_nulls(self.len - arrow::array::ArrayBuilder::len(b));
            b.append_value(value);
            self.bytes += 8;
        }
    }

    /// Sets a fraction of the current row; NaN and infinities are null.
    pub fn float_at(&mut self, index: usize, value: f32) {
        if let (Column::Float(b), true) = (&mut self.columns[index], value.is_finite()) {
            b.append_nulls(self.len - arrow::array::ArrayBuilder::len(b));
            b.append_value(value);
            self.bytes += 4;
        }
    }

    /// Sets a double of the current row; NaN and infinities are null.
    pub fn double_at(&mut self, index: usize, value: f64) {
        if let (Column::Double(b), true) = (&mut self.columns[index], value.is_finite()) {
            b.append_nulls(self.len - arrow::array::ArrayBuilder::len(b));
            b.append_value(value);
            self.bytes += 8;
        }
    }

    /// Sets a time of the current row.
    pub fn time(&mut self, column: &str, ms: i64) {
        let index = self.index(column);
        self.time_at(index, ms);
    }

    /// The same by position.
    pub fn time_at(&mut self, index: usize, ms: i64) {
        if let Column::Time(b) = &mut self.columns[index] {
            b.append_nulls(self.len - arrow::array::ArrayBuilder::len(b));
            b.append_value(ms.saturating_mul(1000));
            self.bytes += 8;
        }
    }

    /// Sets a truth value of the current row.
    pub fn bool_at(&mut self, index: usize, value: bool) {
        if let Column::Bool(b) = &mut self.columns[index] {
            b.append_nulls(self.len - arrow::array::ArrayBuilder::len(b));
            b.append_value(value);
            self.bytes += 1;
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

    /// The rows as one batch.
    ///
    /// # Panics
    /// Where a row left a column unset that must not be null: a mistake in our own code.
    pub fn finish(self) -> RecordBatch {
        let len = self.len;
        let array = |column: Column| -> ArrayRef {
            macro_rules! padded {
                ($b:ident) => {{
                    $b.append_nulls(len - arrow::array::ArrayBuilder::len(&$b));
                    Arc::new($b.finish())
                }};
            }
            match column {
                Column::Text(mut b) => padded!(b),
                Column::Int(mut b) => padded!(b),
                Column::Float(mut b) => padded!(b),
                Column::Double(mut b) => padded!(b),
                Column::Time(mut b) => {
                    b.append_nulls(len - arrow::array::ArrayBuilder::len(&b));
                    Arc::new(b.finish().with_timezone("UTC"))
                }
                Column::Bool(mut b) => padded!(b),
            }
        };
        let arrays = self.columns.into_iter().map(array).collect();
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(len));
        RecordBatch::try_new_with_options(self.table.schema(), arrays, &options)
            .expect("every column is built by its table's own type and padded to one length")
    }
}
