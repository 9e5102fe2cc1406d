//! A column chunk made of runs of equal rows: each different value is looked up once a batch and each run counted once, where
//! parquet's own writer hashes the value of every row.
//!
//! The bytes, the statistics and the indexes are those that parquet's writer makes of the same batches with our properties
//! (writer version 1, no statistics in page headers, no bloom filter), so its rules of when a page or the dictionary ends are
//! kept here to the row. A test holds the two side by side.

use std::{borrow::Borrow, io::Write};

use bytes::Bytes;
use parquet::{
    basic::{BoundaryOrder, Encoding, EncodingMask, PageType, Type},
    column::{
        page::{CompressedPage, Page as EncodedPage, PageWriteSpec, PageWriter},
        writer::ColumnCloseResult,
    },
    errors::ParquetError,
    file::{
        metadata::{ColumnChunkMetaData, ColumnIndexBuilder, LevelHistogram, OffsetIndexBuilder, PageEncodingStats},
        properties::{EnabledStatistics, WriterPropertiesPtr},
        writer::{SerializedPageWriter, TrackedWrite},
    },
    schema::types::ColumnDescPtr,
};

use super::{
    dictionary::{Dictionary, UNSEEN},
    hybrid::Hybrid,
    runs::{ABSENT, Run, Runs},
    value::Value,
};

/// Compresses pages.
pub(super) type Codec = zstd::bulk::Compressor<'static>;

/// One column of one row group, as long as it grows.
pub(super) struct Chunk<V: Value + ?Sized> {
    descr: ColumnDescPtr,
    properties: WriterPropertiesPtr,
    statistics: EnabledStatistics,
    limits: Limits,
    page: Page<V>,
    /// None once it became too large: then values are written one by one.
    dictionary: Option<Dictionary>,
    codes: Hybrid,
    raw: Vec<u8>,
    written: Written<V>,
}

/// When a page or the dictionary is full.
struct Limits {
    page_rows: usize,
    page_bytes: usize,
    batch_rows: usize,
    dictionary_bytes: usize,
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

/// The least and the greatest of some values.
struct Bounds<V: Value + ?Sized>(Option<(V::Owned, V::Owned)>);

/// What is known of the pages that are done.
struct Written<V: Value + ?Sized> {
    pages: TrackedWrite<Vec<u8>>,
    dictionary: Vec<u8>,
    encodings: Vec<PageEncodingStats>,
    uncompressed: i64,
    values: i64,
    rows: usize,
    nulls: usize,
    text_bytes: Option<i64>,
    bounds: Bounds<V>,
    column_index: ColumnIndexBuilder,
    offset_index: Option<OffsetIndexBuilder>,
    last_bounds: Option<(V::Owned, V::Owned)>,
    ascending: bool,
    descending: bool,
}

impl<V: Value + ?Sized> Chunk<V> {
    pub(super) fn new(descr: ColumnDescPtr, properties: WriterPropertiesPtr) -> Self {
        let path = descr.path();
        let statistics = properties.statistics_enabled(path);
        let limits = Limits {
            page_rows: properties.data_page_row_count_limit(),
            page_bytes: properties.column_data_page_size_limit(path),
            batch_rows: properties.write_batch_size(),
            dictionary_bytes: properties.column_dictionary_page_size_limit(path),
        };
        let mut column_index = ColumnIndexBuilder::new(V::TYPE);
        if statistics != EnabledStatistics::Page {
            column_index.to_invalid();
        }
        let page = Page {
            number: 0,
            rows: 0,
            nulls: 0,
            levels: (descr.max_def_level() > 0).then(|| Hybrid::new(1)),
            codes: Vec::new(),
            plain: Vec::new(),
            text_bytes: 0,
            bounds: Bounds(None),
        };
        let written = Written {
            pages: TrackedWrite::new(Vec::new()),
            dictionary: Vec::new(),
            encodings: Vec::new(),
            uncompressed: 0,
            values: 0,
            rows: 0,
            nulls: 0,
            text_bytes: None,
            bounds: Bounds(None),
            column_index,
            offset_index: (!properties.offset_index_disabled()).then(OffsetIndexBuilder::new),
            last_bounds: None,
            ascending: true,
            descending: true,
        };
        let dictionary = Some(Dictionary::default());
        Self { descr, properties, statistics, limits, page, dictionary, codes: Hybrid::new(0), raw: Vec::new(), written }
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
            return Err(ParquetError::General(format!("column {} is null where it may not be", self.descr.name())));
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
        let (page, bounded) = (&mut self.page, self.statistics != EnabledStatistics::None);
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
        let Page { rows, nulls, text_bytes, .. } = self.page;
        let (page, written) = (&mut self.page, &mut self.written);
        self.raw.clear();
        if let Some(levels) = &mut page.levels {
            let bytes = levels.finish();
            self.raw.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            self.raw.extend_from_slice(bytes);
            levels.restart(1);
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

        let bounds = page.bounds.0.take();
        if let Some((least, greatest)) = &bounds {
            written.bounds.widen(least.borrow());
            written.bounds.widen(greatest.borrow());
        }
        written.nulls += nulls;
        let bounds = bounds.filter(|_| self.statistics == EnabledStatistics::Page);
        let levels = page.levels.is_some().then(|| LevelHistogram::from(vec![nulls as i64, (rows - nulls) as i64]));
        if written.column_index.valid() {
            match bounds {
                None if rows == nulls => written.column_index.append(true, Vec::new(), Vec::new(), nulls as i64),
                None => written.column_index.to_invalid(),
                Some((least, greatest)) => {
                    let (low, high) = V::page_bounds((least.borrow(), greatest.borrow()), &self.properties);
                    written.column_index.append(false, low, high, nulls as i64);
                    written.follow(least, greatest);
                }
            }
        }
        written.column_index.append_histograms(&None, &levels);
        let of_text = (V::TYPE == Type::BYTE_ARRAY).then_some(text_bytes);
        if let Some(bytes) = of_text {
            *written.text_bytes.get_or_insert(0) += bytes;
        }
        if let Some(index) = &mut written.offset_index {
            index.append_row_count(rows as i64);
            index.append_unencoded_byte_array_data_bytes(of_text);
        }

        let buf = compressed(&self.raw, codec)?;
        let data = EncodedPage::DataPage {
            buf,
            num_values: rows as u32,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let spec = write(&mut written.pages, data, self.raw.len())?;
        written.count(&spec, encoding);
        if let Some(index) = &mut written.offset_index {
            index.append_offset_and_size(spec.offset as i64, spec.compressed_size as i32);
        }
        written.rows += rows;
        (page.rows, page.nulls, page.text_bytes) = (0, 0, 0);
        page.number += 1;
        Ok(())
    }

    fn end_dictionary(&mut self, codec: &mut Codec) -> Result<(), ParquetError> {
        let Some(dictionary) = self.dictionary.take() else { return Ok(()) };
        let encoding = self.properties.dictionary_page_encoding();
        let page = EncodedPage::DictionaryPage {
            buf: compressed(dictionary.plain(), codec)?,
            num_values: dictionary.values() as u32,
            encoding,
            is_sorted: false,
        };
        let mut pages = TrackedWrite::new(Vec::new());
        let spec = write(&mut pages, page, dictionary.plain().len())?;
        self.written.count(&spec, encoding);
        self.written.dictionary = pages.into_inner()?;
        Ok(())
    }

    /// The chunk's bytes and what the footer says of it, offsets counted from the first of them.
    pub(super) fn close(mut self, codec: &mut Codec) -> Result<(Bytes, ColumnCloseResult), ParquetError> {
        if self.page.rows > 0 {
            self.end_page(codec)?;
        }
        self.end_dictionary(codec)?;
        let Self { mut written, properties, descr, .. } = self;
        let pages = std::mem::replace(&mut written.pages, TrackedWrite::new(Vec::new())).into_inner()?;
        let dictionary = written.dictionary.len();
        let mut bytes = written.dictionary;
        bytes.extend_from_slice(&pages);

        let encodings: Vec<_> = written.encodings.iter().map(|of| of.encoding).chain([Encoding::RLE]).collect();
        let mut metadata = ColumnChunkMetaData::builder(descr.clone())
            .set_compression(properties.compression(descr.path()))
            .set_encodings_mask(EncodingMask::new_from_encodings(encodings.iter()))
            .set_page_encoding_stats(written.encodings)
            .set_total_compressed_size(bytes.len() as i64)
            .set_total_uncompressed_size(written.uncompressed)
            .set_num_values(written.values)
            .set_data_page_offset(0);
        if self.statistics != EnabledStatistics::None {
            let bounds = written.bounds.0.as_ref().map(|(least, greatest)| (least.borrow(), greatest.borrow()));
            let (nulls, rows) = (written.nulls as i64, written.rows as i64);
            let levels = (descr.max_def_level() > 0).then(|| LevelHistogram::from(vec![nulls, rows - nulls]));
            metadata = metadata
                .set_statistics(V::statistics(bounds, nulls as u64, &properties))
                .set_unencoded_byte_array_data_bytes(written.text_bytes)
                .set_definition_level_histogram(levels);
        }
        written.column_index.set_boundary_order(match (written.ascending, written.descending) {
            (true, _) => BoundaryOrder::ASCENDING,
            (false, true) => BoundaryOrder::DESCENDING,
            (false, false) => BoundaryOrder::UNORDERED,
        });
        let column_index = if written.column_index.valid() { Some(written.column_index.build()?) } else { None };
        let result = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: written.rows as u64,
            metadata: metadata.build()?,
            bloom_filter: None,
            column_index,
            offset_index: written.offset_index.map(OffsetIndexBuilder::build),
        };
        Ok((bytes.into(), result.update_dictionary_location(dictionary)?))
    }
}

impl<V: Value + ?Sized> Bounds<V> {
    fn widen(&mut self, value: &V) {
        let Some((least, greatest)) = &mut self.0 else {
            self.0 = Some((value.to_owned(), value.to_owned()));
            return;
        };
        if value < (*least).borrow() {
            value.clone_into(least);
        }
        if value > (*greatest).borrow() {
            value.clone_into(greatest);
        }
    }
}

impl<V: Value + ?Sized> Written<V> {
    /// Whether the bounds of pages that are not all null go up or down.
    fn follow(&mut self, least: V::Owned, greatest: V::Owned) {
        if let Some((low, high)) = &self.last_bounds {
            let (low, high, least, greatest) = (low.borrow(), high.borrow(), least.borrow(), greatest.borrow());
            self.ascending &= low <= least && high <= greatest;
            self.descending &= least <= low && greatest <= high;
        }
        self.last_bounds = Some((least, greatest));
    }

    fn count(&mut self, page: &PageWriteSpec, encoding: Encoding) {
        self.uncompressed += page.uncompressed_size as i64;
        let of = PageEncodingStats { page_type: page.page_type, encoding, count: 1 };
        match self.encodings.last_mut() {
            // The dictionary's page is written last and lies first.
            _ if page.page_type == PageType::DICTIONARY_PAGE => self.encodings.insert(0, of),
            Some(last) if last.page_type == page.page_type && last.encoding == encoding => last.count += 1,
            _ => self.encodings.push(of),
        }
        if page.page_type != PageType::DICTIONARY_PAGE {
            self.values += i64::from(page.num_values);
        }
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

fn compressed(raw: &[u8], codec: &mut Codec) -> Result<Bytes, ParquetError> {
    Ok(codec.compress(raw)?.into())
}

fn write<W: Write + Send>(sink: &mut TrackedWrite<W>, page: EncodedPage, raw: usize) -> Result<PageWriteSpec, ParquetError> {
    SerializedPageWriter::new(sink).write_page(CompressedPage::new(page, raw))
}
