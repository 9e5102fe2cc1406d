//! Typed columns of a batch by name.

use arrow::{
    array::{
        Array, ArrayRef, AsArray, Float32Array, Int32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
    },
    compute::cast,
    datatypes::{DataType, Float32Type, Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType},
};
use schemas::Timestamp;

use super::BatchError;

/// The columns of one batch of a table.
pub(super) struct Columns<'a> {
    table: &'static str,
    batch: &'a RecordBatch,
}

/// A column of texts, plain or as places in a dictionary.
pub(super) struct Texts {
    column: Column<StringArray>,
    places: Option<Int32Array>,
}
/// A column of whole numbers.
pub(super) struct Ints(Option<Int64Array>);
/// A column of fractions.
pub(super) struct Floats(Option<Float32Array>);
/// A column of instants.
pub(super) struct Times(Column<TimestampMicrosecondArray>);

struct Column<A> {
    table: &'static str,
    name: &'static str,
    array: Option<A>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(table: &'static str, batch: &'a RecordBatch) -> Self {
        Self { table, batch }
    }

    /// The column as `wanted`, where it is there; views and dictionaries become plain.
    fn get(&self, name: &str, wanted: &DataType, word: &'static str) -> Result<Option<ArrayRef>, BatchError> {
        let Some(column) = self.batch.column_by_name(name) else { return Ok(None) };
        if column.data_type() == wanted {
            return Ok(Some(column.clone()));
        }
        let wrong = |_| BatchError::Column { table: self.table, column: name.to_owned(), wanted: word };
        cast(column, wanted).map(Some).map_err(wrong)
    }

    pub(super) fn texts(&self, name: &'static str) -> Result<Texts, BatchError> {
        let given = self.batch.column_by_name(name).and_then(|column| column.as_dictionary_opt::<Int32Type>());
        let of_dictionary = given.and_then(|given| Some((given.keys().clone(), given.values().as_string_opt::<i32>()?.clone())));
        let (places, array) = match of_dictionary {
            Some((places, values)) => (Some(places), Some(values)),
            None => (None, self.get(name, &DataType::Utf8, "text")?.map(|array| array.as_string::<i32>().clone())),
        };
        Ok(Texts { column: Column { table: self.table, name, array }, places })
    }

    pub(super) fn ints(&self, name: &str) -> Result<Ints, BatchError> {
        Ok(Ints(self.get(name, &DataType::Int64, "whole number")?.map(|array| array.as_primitive::<Int64Type>().clone())))
    }

    pub(super) fn floats(&self, name: &str) -> Result<Floats, BatchError> {
        Ok(Floats(self.get(name, &DataType::Float32, "fraction")?.map(|array| array.as_primitive::<Float32Type>().clone())))
    }

    pub(super) fn times(&self, name: &'static str) -> Result<Times, BatchError> {
        let kind = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let array = self.get(name, &kind, "instant")?.map(|array| array.as_primitive::<TimestampMicrosecondType>().clone());
        Ok(Times(Column { table: self.table, name, array }))
    }
}

impl<A: Array> Column<A> {
    fn array(&self) -> Result<&A, BatchError> {
        let missing = || BatchError::Column { table: self.table, column: self.name.to_owned(), wanted: "that is never null" };
        self.array.as_ref().ok_or_else(missing)
    }

    fn null(&self, row: usize) -> BatchError {
        BatchError::Null { table: self.table, column: self.name.to_owned(), row }
    }
}

impl Texts {
    pub(super) fn get(&self, row: usize) -> Option<&str> {
        let place = match &self.places {
            None => row,
            // Places in a dictionary are not negative.
            Some(places) => places.is_valid(row).then(|| places.value(row) as usize)?,
        };
        self.column.array.as_ref().filter(|array| array.is_valid(place)).map(|array| array.value(place))
    }

    pub(super) fn must(&self, row: usize) -> Result<&str, BatchError> {
        self.column.array()?;
        self.get(row).ok_or_else(|| self.column.null(row))
    }
}

impl Ints {
    pub(super) fn get(&self, row: usize) -> Option<i64> {
        self.0.as_ref().filter(|array| array.is_valid(row)).map(|array| array.value(row))
    }

    /// A count above 0; what is not is as good as absent.
    pub(super) fn count(&self, row: usize) -> Option<u32> {
        self.get(row).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0)
    }
}

impl Floats {
    pub(super) fn get(&self, row: usize) -> Option<f32> {
        self.0.as_ref().filter(|array| array.is_valid(row)).map(|array| array.value(row))
    }
}

impl Times {
    pub(super) fn get(&self, row: usize) -> Option<Timestamp> {
        let array = self.0.array.as_ref().filter(|array| array.is_valid(row))?;
        Some(Timestamp::from_micros(array.value(row)))
    }

    pub(super) fn must(&self, row: usize) -> Result<Timestamp, BatchError> {
        self.0.array()?;
        self.get(row).ok_or_else(|| self.0.null(row))
    }
}
