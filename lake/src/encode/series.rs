//! A column chunk value by value: numbers and truth values of which a file has no dictionary.
//!
//! Parquet's own writer makes two contexts of zstd and a buffer of a megabyte for each such column, and a wide table has a
//! hundred; here all columns of a file have one context in common. The bytes are the same (see `chunk`).

use arrow::buffer::NullBuffer;
use bytes::Bytes;
use parquet::{
    column::writer::ColumnCloseResult,
    errors::ParquetError,
    file::properties::{EnabledStatistics, WriterPropertiesPtr},
    schema::types::ColumnDescPtr,
};

use super::{
    hybrid::Hybrid,
    numbers::{Encode, Number},
    written::{Bounds, Codec, Limits, PageDone, Written},
};

/// One column of one row group, as long as it grows.
pub(super) struct Series<E: Encode> {
    limits: Limits,
    page: Page<E>,
    written: Written<E::Number>,
}

/// The page that is being filled.
struct Page<E: Encode> {
    rows: usize,
    nulls: usize,
    /// Which rows are there; None where a column has no nulls.
    levels: Option<Hybrid>,
    encoder: E,
    bounds: Bounds<E::Number>,
}

impl<E: Encode> Series<E> {
    pub(super) fn new(descr: ColumnDescPtr, properties: WriterPropertiesPtr) -> Self {
        let levels = (descr.max_def_level() > 0).then(|| Hybrid::new(1));
        let page = Page { rows: 0, nulls: 0, levels, encoder: E::default(), bounds: Bounds::default() };
        Self { limits: Limits::new(&descr, &properties), page, written: Written::new(descr, properties) }
    }

    /// Adds the rows of a batch. `raw` is memory for the bytes of a page.
    ///
    /// Errors: a null in a column that has none, a page too large for Parquet.
    pub(super) fn write(
        &mut self,
        values: &[E::Number],
        nulls: Option<&NullBuffer>,
        raw: &mut Vec<u8>,
        codec: &mut Codec,
    ) -> Result<(), ParquetError> {
        let nullable = self.page.levels.is_some();
        if !nullable && nulls.is_some_and(|nulls| nulls.null_count() > 0) {
            return Err(self.written.null_where_none_may_be());
        }
        let absent = nulls.is_some_and(|nulls| nulls.null_count() == values.len());
        let uniform = nulls.is_none() || absent;
        let most = if nullable && uniform { self.limits.page_rows } else { self.limits.batch_rows };
        let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
        let mut from = 0;
        while from < values.len() {
            let batch = most.min(values.len() - from);
            let step = self.rows_that_fit(nulls, from, batch, most);
            let until = from + batch;
            while from < until {
                let rows = step.min(until - from);
                self.put(&values[from..from + rows], nulls.map(|nulls| nulls.slice(from, rows)).as_ref());
                from += rows;
                if self.page.rows >= self.limits.page_rows || self.page.encoder.size() >= self.limits.page_bytes {
                    self.end_page(raw, codec)?;
                }
            }
        }
        Ok(())
    }

    /// How many of the next `rows` rows, which are at most `most`, are taken at once, so that not many more bytes than a page may
    /// hold come with them.
    fn rows_that_fit(&self, nulls: Option<&NullBuffer>, from: usize, rows: usize, most: usize) -> usize {
        if E::Number::WIDTH * most <= self.limits.page_bytes {
            return rows;
        }
        let values = rows - nulls.map_or(0, |nulls| nulls.slice(from, rows).null_count());
        let fit = (self.limits.page_bytes / E::Number::WIDTH).max(1);
        if fit >= values { rows } else { (fit * rows).div_ceil(values).min(rows) }
    }

    fn put(&mut self, values: &[E::Number], nulls: Option<&NullBuffer>) {
        let page = &mut self.page;
        page.rows += values.len();
        let bounded = self.written.statistics != EnabledStatistics::None;
        let mut present = |values: &[E::Number]| {
            if let Some((least, greatest)) = bounded.then(|| Number::bounds(values)).flatten() {
                page.bounds.widen_by(&least, &greatest);
            }
            page.encoder.put(values);
        };
        let Some(nulls) = nulls else {
            if let Some(levels) = &mut page.levels {
                levels.put(1, values.len());
            }
            return present(values);
        };
        page.nulls += nulls.null_count();
        let mut next = 0;
        for (start, end) in nulls.valid_slices() {
            if let Some(levels) = &mut page.levels {
                levels.put(0, start - next);
                levels.put(1, end - start);
            }
            present(&values[start..end]);
            next = end;
        }
        if let Some(levels) = &mut page.levels {
            levels.put(0, values.len() - next);
        }
    }

    fn end_page(&mut self, raw: &mut Vec<u8>, codec: &mut Codec) -> Result<(), ParquetError> {
        let page = &mut self.page;
        raw.clear();
        if let Some(levels) = &mut page.levels {
            levels.end_page(raw);
        }
        page.encoder.end_page(raw);
        let (rows, nulls) = (std::mem::take(&mut page.rows), std::mem::take(&mut page.nulls));
        let bounds = std::mem::take(&mut page.bounds);
        self.written.add(PageDone { rows, nulls, text_bytes: None, bounds, encoding: E::ENCODING }, raw, codec)
    }

    /// The chunk's bytes and what the footer says of it, offsets counted from the first of them.
    pub(super) fn close(mut self, raw: &mut Vec<u8>, codec: &mut Codec) -> Result<(Bytes, ColumnCloseResult), ParquetError> {
        if self.page.rows > 0 {
            self.end_page(raw, codec)?;
        }
        self.written.close()
    }
}
