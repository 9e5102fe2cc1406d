//! Columns of a batch that was read with the columns it needs, by name.

use datafusion::arrow::array::{
    Array, AsArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
    types::{Int64Type, TimestampMicrosecondType},
};
use ledger::input::Text;
use schemas::Timestamp;

use super::card::{LABELS, Labels};

/// A batch whose columns have the types of its table, as `lake::read::rows` sees to.
pub(super) struct Columns<'a>(pub(super) &'a RecordBatch);

impl<'a> Columns<'a> {
    pub(super) fn texts(&self, name: &str) -> Option<&'a StringArray> {
        self.0.column_by_name(name)?.as_string_opt::<i32>()
    }

    pub(super) fn ints(&self, name: &str) -> Option<&'a Int64Array> {
        self.0.column_by_name(name)?.as_primitive_opt::<Int64Type>()
    }

    pub(super) fn times(&self, name: &str) -> Option<&'a TimestampMicrosecondArray> {
        self.0.column_by_name(name)?.as_primitive_opt::<TimestampMicrosecondType>()
    }

    pub(super) fn labels(&self) -> LabelColumns<'a> {
        LabelColumns(LABELS.map(|label| self.texts(label)))
    }
}

pub(super) fn text(column: Option<&StringArray>, row: usize) -> Option<&str> {
    column.filter(|c| c.is_valid(row)).map(|c| c.value(row)).filter(|text| !text.is_empty())
}

pub(super) fn int(column: Option<&Int64Array>, row: usize) -> Option<i64> {
    column.filter(|c| c.is_valid(row)).map(|c| c.value(row))
}

pub(super) fn time(column: Option<&TimestampMicrosecondArray>, row: usize) -> Option<Timestamp> {
    column.filter(|c| c.is_valid(row)).map(|c| Timestamp::from_micros(c.value(row)))
}

/// The columns that a match looks at.
pub(super) struct LabelColumns<'a>([Option<&'a StringArray>; 5]);

impl LabelColumns<'_> {
    /// Whether two rows have the same labels.
    pub(super) fn alike(&self, a: usize, b: usize) -> bool {
        self.0.iter().all(|column| text(*column, a) == text(*column, b))
    }

    pub(super) fn of(&self, row: usize) -> Labels {
        self.0.map(|column| text(column, row).map(Text::from))
    }
}
