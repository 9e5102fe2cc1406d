//! A column chunk made of runs of equal rows: each different value is looked up once a batch and each run counted once, where
//! parquet's own writer hashes the value of every row.
//!
//! The bytes, the statistics and the indexes are those that parquet's writer makes of the same batches with our properties
//! (writer version 1, no statistics in page headers, no bloom filter), so its rules of when a page or the dictionary ends are
//! kept here to the row. A test holds the two side by side.

use bytes::Bytes;
use parquet::{
    basic::Encoding,
    column::{page::Page as EncodedPage, writer::ColumnCloseResult},
    errors::ParquetError,
    file::properties::{EnabledStatistics, WriterPropertiesPtr},
    schema::types::ColumnDescPtr,
};

use super::{
    dictionary::{Dictionary, UNSEEN},
    hybrid::Hybrid,
    runs::{ABSENT, Run, Runs},
    value::Value,
    written::{Bounds, Codec, Limits, PageDone, Written, compressed},
};

/// One column of one row group, as long as it grows.
pub(super) struct Chunk<V: Value + ?Sized> {
    limits: Limits,
    page: Page<V>,
    /// None once it became too large: then values are written one by one.
    dictionary: Option<Dictionary>,
    codes: Hybrid,
    raw: Vec<u8>,
    written: Written<V>,
}

/// The page that is being filled.
struct Page<V: Value + ?Sized> {
    number: u32,
    rows: usize,
    nulls: usize,
    /// Which rows are there; None where a column has no nulls.
    levels: Option<Hybrid>,
    /// Codes of the rows that are there, while the dictionary lasts.
    codes: Vec<Run>,
    /// The values themselves, after it.
    plain: Vec<u8>,
    text_bytes: i64,
    bounds: Bounds<V>,
}

impl<V: Value + ?Sized> Chunk<V> {
    pub(super) fn new(descr: ColumnDescPtr, properties: WriterPropertiesPtr) -> Self {
        let page = Page {
            number: 0,
            rows: 0,
            nulls: 0,
            levels: (descr.max_def_level() > 0).then(|| Hybrid::new(1)),
            codes: Vec::new(),
            plain: Vec::new(),
            text_bytes: 0,
            bounds: Bounds::default(),
        };
        let (limits, dictionary) = (Limits::new(&descr, &properties), Some(Dictionary::default()));
        let written = Written::new(descr, properties);
        Self { limits, page, dictionary, codes: Hybrid::new(0), raw: Vec::new(), written }
    }

    /// Adds the rows of a batch. `value` gives what a run holds by its `at`; `known` has the codes of `at`s that were looked up,
    /// [`UNSEEN`] for the others, or is empty where an `at` does not come back.
    ///
    /// Errors: a null in a column that has none, a page too large for Parquet.
    pub(super) fn write<'a>(
        &mut self,
        runs: &Runs,
        value: impl Fn(u32) -> &'a V,
        known: &mut [u32],
        codec: &mut Codec,
    ) -> Result<(), ParquetError>
    where
        V: 'a,
    {
        let nullable = self.page.levels.is_some();
        if !nullable && runs.of.iter().any(|run| run.at == ABSENT) {
            return Err(self.written.null_where_none_may_be());
        }
        let most = if nullable && runs.uniform { self.limits.page_rows } else { self.limits.batch_rows };
        let (mut rest, mut left) = (Rest { runs: &runs.of, taken: 0 }, runs.rows);
        while left > 0 {
            let mut batch = left.min(most);
            left -= batch;
            let step = self.rows_that_fit(rest, batch, most, &value);
            while batch > 0 {
                let rows = batch.min(step);
                batch -= rows;
                self.put(&mut rest, rows, &value, known);
                if self.page.rows >= self.limits.page_rows || self.page_size() >= self.limits.page_bytes {
                    self.end_page(codec)?;
                }
                if self.dictionary.as_ref().is_some_and(|known| known.plain().len() >= self.limits.dictionary_bytes) {
                    if self.page.rows > 0 {
                        self.end_page(codec)?;
                    }
                    self.end_dictionary(codec)?;
                }
            }
        }
        Ok(())
    }

    /// How many of the next `rows` rows, which are at most `most`, are taken at once, so that not many more bytes of values than a
    /// page or what is left of the dictionary may hold come with them, each row counted as if its value were new.
    fn rows_that_fit<'a>(&self, rest: Rest<'_>, rows: usize, most: usize, value: &impl Fn(u32) -> &'a V) -> usize
    where
        V: 'a,
    {
        let (limit, used) = match &self.dictionary {
            Some(dictionary) => (self.limits.dictionary_bytes, dictionary.plain().len()),
            None => (self.limits.page_bytes, 0),
        };
        let room = limit.saturating_sub(used);
        let (values, fit) = match V::WIDTH {
            Some(width) if width * most <= limit => return rows,
            Some(width) => (rest.values(rows).map(|run| run.rows as usize).sum(), (room / width).max(1)),
            None => {
                let (mut values, mut bytes, mut fit) = (0, 0, usize::MAX);
                for run in rest.values(rows) {
                    let (size, of) = (value(run.at).plain_size(), run.rows as usize);
                    if fit == usize::MAX && bytes + size * of > room {
                        // The one that does not fit any more is taken too.
                        fit = values + (room - bytes) / size + 1;
                    }
                    bytes += size * of;
                    values += of;
                }
                (values, fit)
            }
        };
        if fit >= values { rows } else { (fit * rows).div_ceil(values).min(rows) }
    }

    /// Puts the next `rows` rows into the page.
    fn put<'a>(&mut self, rest: &mut Rest<'_>, rows: usize, value: &impl Fn(u32) -> &'a V, known: &mut [u32])
    where
        V: 'a,
    {
        let (page, bounded) = (&mut self.page, self.written.statistics != EnabledStatistics::None);
        page.rows += rows;
        let mut left = rows;
        while left > 0 {
            let Run { at, rows } = rest.take(left);
            left -= rows as usize;
            if let Some(levels) = &mut page.levels {
                levels.put(u32::from(at != ABSENT), rows as usize);
            }
            if at == ABSENT {
                page.nulls += rows as usize;
                continue;
            }
            let value = value(at);
            page.text_bytes += value.text_bytes().unwrap_or(0) as i64 * i64::from(rows);
            let Some(dictionary) = &mut self.dictionary else {
                if bounded {
                    page.bounds.widen(value);
                }
                (0..rows).for_each(|_| value.put_plain(&mut page.plain));
                continue;
            };
            let code = match known.get_mut(at as usize) {
                Some(code) => {
                    if *code == UNSEEN {
                        *code = dictionary.code(value);
                    }
                    *code
                }
                None => dictionary.code(value),
            };
            if bounded && dictionary.first_in(code, page.number) {
                page.bounds.widen(value);
            }
            match page.codes.last_mut() {
                Some(last) if last.at == code => last.rows += rows,
                _ => page.codes.push(Run { at: code, rows }),
            }
        }
    }

    /// An upper bound of the page's bytes, as parquet's writer has it.
    fn page_size(&self) -> usize {
        let Some(dictionary) = &self.dictionary else { return self.page.plain.len() };
        let groups = (self.page.rows - self.page.nulls).div_ceil(8);
        let width = usize::from(dictionary.width());
        V::LEAD + groups * (1 + width).max(1 + width.div_ceil(8))
    }

    fn end_page(&mut self, codec: &mut Codec) -> Result<(), ParquetError> {
        let page = &mut self.page;
        self.raw.clear();
        if let Some(levels) = &mut page.levels {
            levels.end_page(&mut self.raw);
        }
        let encoding = match &self.dictionary {
            Some(dictionary) => {
                let width = dictionary.width();
                self.codes.restart(width);
                page.codes.drain(..).for_each(|run| self.codes.put(run.at, run.rows as usize));
                self.raw.push(width);
                self.raw.extend_from_slice(self.codes.finish());
                Encoding::RLE_DICTIONARY
            }
            None => {
                self.raw.append(&mut page.plain);
                Encoding::PLAIN
            }
        };
        let done = PageDone {
            rows: page.rows,
            nulls: page.nulls,
            text_bytes: V::WIDTH.is_none().then_some(page.text_bytes),
            bounds: std::mem::take(&mut page.bounds),
            encoding,
        };
        self.written.add(done, &self.raw, codec)?;
        (page.rows, page.nulls, page.text_bytes) = (0, 0, 0);
        page.number += 1;
        Ok(())
    }

    fn end_dictionary(&mut self, codec: &mut Codec) -> Result<(), ParquetError> {
        let Some(dictionary) = self.dictionary.take() else { return Ok(()) };
        let encoding = self.written.properties.dictionary_page_encoding();
        let page = EncodedPage::DictionaryPage {
            buf: compressed(dictionary.plain(), codec)?,
            num_values: dictionary.values() as u32,
            encoding,
            is_sorted: false,
        };
        self.written.add_dictionary(page, dictionary.plain().len(), encoding)
    }

    /// The chunk's bytes and what the footer says of it, offsets counted from the first of them.
    pub(super) fn close(mut self, codec: &mut Codec) -> Result<(Bytes, ColumnCloseResult), ParquetError> {
        if self.page.rows > 0 {
            self.end_page(codec)?;
        }
        self.end_dictionary(codec)?;
        self.written.close()
    }
}

/// Runs of which some rows are taken.
#[derive(Clone, Copy)]
struct Rest<'a> {
    runs: &'a [Run],
    /// Rows taken of the first.
    taken: u32,
}

impl Rest<'_> {
    /// The next rows that are alike, at most `most` of them; there are some.
    fn take(&mut self, most: usize) -> Run {
        let Run { at, rows } = self.runs[0];
        let left = rows - self.taken;
        if left as usize > most {
            self.taken += most as u32;
            return Run { at, rows: most as u32 };
        }
        (self.runs, self.taken) = (&self.runs[1..], 0);
        Run { at, rows: left }
    }
}

impl<'a> Rest<'a> {
    /// Of the next `rows` rows, the runs that are not null.
    fn values(mut self, mut rows: usize) -> impl Iterator<Item = Run> + 'a {
        let all = std::iter::from_fn(move || {
            let run = (rows > 0).then(|| self.take(rows))?;
            rows -= run.rows as usize;
            Some(run)
        });
        all.filter(|run| run.at != ABSENT)
    }
}
