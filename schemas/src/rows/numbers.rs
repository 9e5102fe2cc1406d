//! Numbers of one column under construction: rows that have none are a gap, which nearly no column has.

use arrow::array::BooleanBufferBuilder;
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::ArrowNativeType;
use std::ops::Range;

#[derive(Default)]
pub(super) struct Numbers<T> {
    /// By row, and anything where one has none.
    values: Vec<T>,
    /// Rows that have none, but for those after the last that has one.
    gaps: Vec<Range<usize>>,
}

impl<T: ArrowNativeType> Numbers<T> {
    /// Whether no row has a number.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Bytes in memory, roughly.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.values[..])
    }

    /// Sets the number of row `row`; rows before it without a number have none.
    #[inline(always)]
    pub fn put(&mut self, row: usize, value: T) {
        if self.values.len() < row {
            self.skip(row);
        }
        self.values.push(value);
    }

    #[cold]
    fn skip(&mut self, row: usize) {
        self.gaps.push(self.values.len()..row);
        self.values.resize(row, T::default());
    }

    /// Gives the number of the last of `rows` rows to `times` more, if that has one.
    pub fn repeat(&mut self, rows: usize, times: usize) {
        if let (true, Some(&last)) = (self.values.len() == rows, self.values.last()) {
            self.values.resize(rows + times, last);
        }
    }

    /// The numbers of `len` rows; none are left. The next ones find room for as many.
    pub fn take(&mut self, len: usize) -> (ScalarBuffer<T>, Option<NullBuffer>) {
        if self.values.len() < len {
            self.skip(len);
        }
        let values = std::mem::replace(&mut self.values, Vec::with_capacity(len));
        let nulls = (!self.gaps.is_empty()).then(|| {
            let mut there = BooleanBufferBuilder::new(len);
            for gap in self.gaps.drain(..) {
                there.append_n(gap.start - there.len(), true);
                there.append_n(gap.len(), false);
            }
            there.append_n(len - there.len(), true);
            NullBuffer::new(there.finish())
        });
        (values.into(), nulls)
    }
}
