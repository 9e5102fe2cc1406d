//! The pages of a column chunk that are done: their bytes, and what the footer and the indexes say of them.

use std::{borrow::Borrow, io::Write};

use bytes::Bytes;
use parquet::{
    basic::{BoundaryOrder, Encoding, EncodingMask, PageType},
    column::{
        page::{CompressedPage, Page, PageWriteSpec, PageWriter},
        writer::ColumnCloseResult,
    },
    errors::ParquetError,
    file::{
        metadata::{ColumnChunkMetaData, ColumnIndexBuilder, LevelHistogram, OffsetIndexBuilder, PageEncodingStats},
        properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr},
        writer::{SerializedPageWriter, TrackedWrite},
    },
    schema::types::ColumnDescPtr,
};

use super::value::Bounded;

/// Compresses pages.
pub(super) type Codec = zstd::bulk::Compressor<'static>;

/// When a page or the dictionary is full.
pub(super) struct Limits {
    pub(super) page_rows: usize,
    pub(super) page_bytes: usize,
    pub(super) batch_rows: usize,
    pub(super) dictionary_bytes: usize,
}

/// The least and the greatest of some values; none where there are none.
pub(super) struct Bounds<V: Bounded + ?Sized>(pub(super) Option<(V::Owned, V::Owned)>);

/// A page that is full.
pub(super) struct PageDone<V: Bounded + ?Sized> {
    pub(super) rows: usize,
    pub(super) nulls: usize,
    /// Bytes of its values; of texts alone.
    pub(super) text_bytes: Option<i64>,
    pub(super) bounds: Bounds<V>,
    pub(super) encoding: Encoding,
}

/// What is known of the pages that are done.
pub(super) struct Written<V: Bounded + ?Sized> {
    pub(super) descr: ColumnDescPtr,
    pub(super) properties: WriterPropertiesPtr,
    pub(super) statistics: EnabledStatistics,
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

impl Limits {
    pub(super) fn new(descr: &ColumnDescPtr, properties: &WriterProperties) -> Self {
        let path = descr.path();
        Limits {
            page_rows: properties.data_page_row_count_limit(),
            page_bytes: properties.column_data_page_size_limit(path),
            batch_rows: properties.write_batch_size(),
            dictionary_bytes: properties.column_dictionary_page_size_limit(path),
        }
    }
}

impl<V: Bounded + ?Sized> Written<V> {
    pub(super) fn new(descr: ColumnDescPtr, properties: WriterPropertiesPtr) -> Self {
        let statistics = properties.statistics_enabled(descr.path());
        let mut column_index = ColumnIndexBuilder::new(V::TYPE);
        if statistics != EnabledStatistics::Page {
            column_index.to_invalid();
        }
        let offset_index = (!properties.offset_index_disabled()).then(OffsetIndexBuilder::new);
        Written {
            descr,
            properties,
            statistics,
            pages: TrackedWrite::new(Vec::new()),
            dictionary: Vec::new(),
            encodings: Vec::new(),
            uncompressed: 0,
            values: 0,
            rows: 0,
            nulls: 0,
            text_bytes: None,
            bounds: Bounds::default(),
            column_index,
            offset_index,
            last_bounds: None,
            ascending: true,
            descending: true,
        }
    }

    pub(super) fn null_where_none_may_be(&self) -> ParquetError {
        ParquetError::General(format!("column {} is null where it may not be", self.descr.name()))
    }

    /// Adds a page, whose bytes are `raw`.
    pub(super) fn add(&mut self, page: PageDone<V>, raw: &[u8], codec: &mut Codec) -> Result<(), ParquetError> {
        let PageDone { rows, nulls, text_bytes, bounds, encoding } = page;
        if let Some((least, greatest)) = &bounds.0 {
            self.bounds.widen_by(least.borrow(), greatest.borrow());
        }
        self.nulls += nulls;
        let bounds = bounds.0.filter(|_| self.statistics == EnabledStatistics::Page);
        let nullable = self.descr.max_def_level() > 0;
        let levels = nullable.then(|| LevelHistogram::from(vec![nulls as i64, (rows - nulls) as i64]));
        if self.column_index.valid() {
            match bounds {
                None if rows == nulls => self.column_index.append(true, Vec::new(), Vec::new(), nulls as i64),
                None => self.column_index.to_invalid(),
                Some((least, greatest)) => {
                    let (low, high) = V::page_bounds((least.borrow(), greatest.borrow()), &self.properties);
                    self.column_index.append(false, low, high, nulls as i64);
                    self.follow(least, greatest);
                }
            }
        }
        self.column_index.append_histograms(&None, &levels);
        if let Some(bytes) = text_bytes {
            *self.text_bytes.get_or_insert(0) += bytes;
        }
        if let Some(index) = &mut self.offset_index {
            index.append_row_count(rows as i64);
            index.append_unencoded_byte_array_data_bytes(text_bytes);
        }
        let data = Page::DataPage {
            buf: compressed(raw, codec)?,
            num_values: rows as u32,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let spec = write(&mut self.pages, data, raw.len())?;
        self.count(&spec, encoding);
        if let Some(index) = &mut self.offset_index {
            index.append_offset_and_size(spec.offset as i64, spec.compressed_size as i32);
        }
        self.rows += rows;
        Ok(())
    }

    /// Adds the dictionary's page, which had `raw` bytes before it was compressed. It lies before all others.
    pub(super) fn add_dictionary(&mut self, page: Page, raw: usize, encoding: Encoding) -> Result<(), ParquetError> {
        let mut pages = TrackedWrite::new(Vec::new());
        let spec = write(&mut pages, page, raw)?;
        self.count(&spec, encoding);
        self.dictionary = pages.into_inner()?;
        Ok(())
    }

    /// The chunk's bytes and what the footer says of it, offsets counted from the first of them.
    pub(super) fn close(mut self) -> Result<(Bytes, ColumnCloseResult), ParquetError> {
        let (dictionary, pages) = (self.dictionary.len(), self.pages.into_inner()?);
        let mut bytes = self.dictionary;
        if bytes.is_empty() {
            bytes = pages;
        } else {
            bytes.extend_from_slice(&pages);
        }
        let encodings: Vec<_> = self.encodings.iter().map(|of| of.encoding).chain([Encoding::RLE]).collect();
        let mut metadata = ColumnChunkMetaData::builder(self.descr.clone())
            .set_compression(self.properties.compression(self.descr.path()))
            .set_encodings_mask(EncodingMask::new_from_encodings(encodings.iter()))
            .set_page_encoding_stats(self.encodings)
            .set_total_compressed_size(bytes.len() as i64)
            .set_total_uncompressed_size(self.uncompressed)
            .set_num_values(self.values)
            .set_data_page_offset(0);
        if self.statistics != EnabledStatistics::None {
            let bounds = self.bounds.0.as_ref().map(|(least, greatest)| (least.borrow(), greatest.borrow()));
            let (nulls, rows) = (self.nulls as i64, self.rows as i64);
            let levels = (self.descr.max_def_level() > 0).then(|| LevelHistogram::from(vec![nulls, rows - nulls]));
            metadata = metadata
                .set_statistics(V::statistics(bounds, nulls as u64, &self.properties))
                .set_unencoded_byte_array_data_bytes(self.text_bytes)
                .set_definition_level_histogram(levels);
        }
        self.column_index.set_boundary_order(match (self.ascending, self.descending) {
            (true, _) => BoundaryOrder::ASCENDING,
            (false, true) => BoundaryOrder::DESCENDING,
            (false, false) => BoundaryOrder::UNORDERED,
        });
        let column_index = if self.column_index.valid() { Some(self.column_index.build()?) } else { None };
        let result = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: self.rows as u64,
            metadata: metadata.build()?,
            bloom_filter: None,
            column_index,
            offset_index: self.offset_index.map(OffsetIndexBuilder::build),
        };
        Ok((bytes.into(), result.update_dictionary_location(dictionary)?))
    }

    /// Whether the bounds of pages that are not all null go up or down.
    fn follow(&mut self, least: V::Owned, greatest: V::Owned) {
        if let Some((low, high)) = &self.last_bounds {
            let (low, high, least, greatest): (&V, &V, &V, &V) = (low.borrow(), high.borrow(), least.borrow(), greatest.borrow());
            self.ascending &= !least.is_below(low) && !greatest.is_below(high);
            self.descending &= !low.is_below(least) && !high.is_below(greatest);
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

impl<V: Bounded + ?Sized> Default for Bounds<V> {
    fn default() -> Self {
        Bounds(None)
    }
}

impl<V: Bounded + ?Sized> Bounds<V> {
    pub(super) fn widen(&mut self, value: &V) {
        self.widen_by(value, value);
    }

    /// By the least and the greatest of more values.
    pub(super) fn widen_by(&mut self, least: &V, greatest: &V) {
        let Some((low, high)) = &mut self.0 else {
            self.0 = Some((least.to_owned(), greatest.to_owned()));
            return;
        };
        if least.is_below((*low).borrow()) {
            least.clone_into(low);
        }
        if (*high).borrow().is_below(greatest) {
            greatest.clone_into(high);
        }
    }
}

pub(super) fn compressed(raw: &[u8], codec: &mut Codec) -> Result<Bytes, ParquetError> {
    Ok(codec.compress(raw)?.into())
}

fn write<W: Write + Send>(sink: &mut TrackedWrite<W>, page: Page, raw: usize) -> Result<PageWriteSpec, ParquetError> {
    SerializedPageWriter::new(sink).write_page(CompressedPage::new(page, raw))
}
