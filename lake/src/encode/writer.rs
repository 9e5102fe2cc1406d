//! Batches to row groups: texts and numbers that repeat themselves as a [`Chunk`], the others as a [`Series`].

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch, StringArray},
    compute::cast,
    datatypes::{DataType, Field, Float32Type, Float64Type, Int32Type, Int64Type, SchemaRef, TimeUnit, TimestampMicrosecondType},
};
use bytes::Bytes;
use parquet::{
    arrow::ArrowSchemaConverter,
    column::writer::ColumnCloseResult,
    errors::ParquetError,
    file::{
        metadata::KeyValue,
        properties::{WriterProperties, WriterPropertiesPtr},
        writer::SerializedFileWriter,
    },
    schema::types::ColumnDescPtr,
};

use super::{
    ZSTD_LEVEL,
    chunk::Chunk,
    dictionary::UNSEEN,
    numbers::{Bits, Delta, Plain, Split},
    runs::Runs,
    series::Series,
    written::Codec,
};

/// Writes a file into memory, one row group at a time.
///
/// Texts come as Utf8 or as dictionaries of it with Int32 keys, in each batch as it likes; the file is the same.
pub(super) struct Writer {
    schema: SchemaRef,
    properties: WriterPropertiesPtr,
    file: SerializedFileWriter<Vec<u8>>,
    group: Option<Group>,
    tools: Tools,
}

/// What all columns use, one after the other.
struct Tools {
    codec: Codec,
    runs: Runs,
    /// Bytes of a page.
    raw: Vec<u8>,
    bools: Vec<bool>,
}

/// The row group that is being filled.
struct Group {
    columns: Vec<Column>,
    rows: usize,
}

enum Column {
    Text(Box<Text>),
    /// Whole numbers of which the file has a dictionary.
    Coded(Box<Chunk<i64>>),
    Int(Box<Series<Delta>>),
    Time(Box<Series<Delta>>),
    Float(Box<Series<Split>>),
    Double(Box<Series<Plain>>),
    Bool(Box<Series<Bits>>),
}

/// A column of texts, and the codes of what its last batch had for a dictionary.
struct Text {
    chunk: Chunk<[u8]>,
    dictionary: Option<ArrayRef>,
    known: Vec<u32>,
}

impl Writer {
    pub(super) fn new(schema: SchemaRef, properties: WriterProperties) -> Result<Self, ParquetError> {
        let properties = Arc::new(properties);
        let converted = ArrowSchemaConverter::new().convert(&schema)?;
        let file = SerializedFileWriter::new(Vec::new(), converted.root_schema_ptr(), properties.clone())?;
        let tools = Tools { codec: Codec::new(ZSTD_LEVEL)?, runs: Runs::default(), raw: Vec::new(), bools: Vec::new() };
        Ok(Self { schema, properties, file, group: None, tools })
    }

    /// Errors: a column that is missing, or of another type than the schema says.
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        if batch.num_columns() != self.schema.fields().len() {
            let (has, wants) = (batch.num_columns(), self.schema.fields().len());
            return Err(ParquetError::General(format!("a batch of {has} columns for a table of {wants}")));
        }
        let most = self.properties.max_row_group_row_count().unwrap_or(usize::MAX);
        let mut from = 0;
        while from < batch.num_rows() {
            let mut group = match self.group.take() {
                Some(group) => group,
                None => self.begin()?,
            };
            let rows = (most - group.rows).min(batch.num_rows() - from);
            let part = if rows == batch.num_rows() { batch.clone() } else { batch.slice(from, rows) };
            for ((field, array), column) in self.schema.fields().iter().zip(part.columns()).zip(&mut group.columns) {
                column.write(field, array, &mut self.tools)?;
            }
            group.rows += rows;
            from += rows;
            let full = group.rows >= most;
            self.group = Some(group);
            if full {
                self.end_group()?;
            }
        }
        Ok(())
    }

    fn begin(&self) -> Result<Group, ParquetError> {
        let columns = self.schema.fields().iter().zip(self.file.schema_descr().columns());
        let column = |(field, descr): (&Arc<Field>, &ColumnDescPtr)| Column::new(field, descr, &self.properties);
        Ok(Group { columns: columns.map(column).collect::<Result<_, _>>()?, rows: 0 })
    }

    fn end_group(&mut self) -> Result<(), ParquetError> {
        let Some(group) = self.group.take() else { return Ok(()) };
        let mut writer = self.file.next_row_group()?;
        for column in group.columns {
            let (bytes, result) = column.close(&mut self.tools)?;
            writer.append_column(&bytes, result)?;
        }
        writer.close()?;
        Ok(())
    }

    /// What comes before the footer. No rows come after it.
    pub(super) fn pages(&mut self) -> Result<&[u8], ParquetError> {
        self.end_group()?;
        // What the writer still holds back would not be seen, and of a small file that is all.
        self.file.flush()?;
        Ok(self.file.inner())
    }

    /// The whole file, with these facts in its footer.
    pub(super) fn finish(mut self, facts: Vec<KeyValue>) -> Result<Vec<u8>, ParquetError> {
        self.end_group()?;
        facts.into_iter().for_each(|fact| self.file.append_key_value_metadata(fact));
        self.file.into_inner()
    }
}

impl Column {
    /// Errors: a column of a type that no table has.
    fn new(field: &Field, descr: &ColumnDescPtr, properties: &WriterPropertiesPtr) -> Result<Self, ParquetError> {
        let (descr, properties) = (descr.clone(), properties.clone());
        Ok(match field.data_type() {
            DataType::Utf8 => {
                let chunk = Chunk::new(descr, properties);
                Column::Text(Box::new(Text { chunk, dictionary: None, known: Vec::new() }))
            }
            DataType::Int64 if properties.dictionary_enabled(descr.path()) => {
                Column::Coded(Box::new(Chunk::new(descr, properties)))
            }
            DataType::Int64 => Column::Int(Box::new(Series::new(descr, properties))),
            DataType::Timestamp(TimeUnit::Microsecond, _) => Column::Time(Box::new(Series::new(descr, properties))),
            DataType::Float32 => Column::Float(Box::new(Series::new(descr, properties))),
            DataType::Float64 => Column::Double(Box::new(Series::new(descr, properties))),
            DataType::Boolean => Column::Bool(Box::new(Series::new(descr, properties))),
            other => return Err(ParquetError::General(format!("column {} is of type {other}", field.name()))),
        })
    }

    fn write(&mut self, field: &Field, array: &ArrayRef, tools: &mut Tools) -> Result<(), ParquetError> {
        let Tools { codec, runs, raw, bools } = tools;
        macro_rules! numbers {
            ($series:ident, $of:ty) => {{
                let numbers = array.as_primitive_opt::<$of>().ok_or_else(|| wrong(field, array))?;
                $series.write(numbers.values(), numbers.nulls(), raw, codec)
            }};
        }
        match self {
            Column::Text(text) => text.write(field, array, runs, codec),
            Column::Coded(chunk) => {
                let numbers = array.as_primitive_opt::<Int64Type>().ok_or_else(|| wrong(field, array))?;
                runs.of_numbers(numbers);
                chunk.write(runs, |row| &numbers.values()[row as usize], &mut [], codec)
            }
            Column::Int(series) => numbers!(series, Int64Type),
            Column::Time(series) => numbers!(series, TimestampMicrosecondType),
            Column::Float(series) => numbers!(series, Float32Type),
            Column::Double(series) => numbers!(series, Float64Type),
            Column::Bool(series) => {
                let values = array.as_boolean_opt().ok_or_else(|| wrong(field, array))?;
                bools.clear();
                bools.extend(values.values());
                series.write(bools, values.nulls(), raw, codec)
            }
        }
    }

    fn close(self, Tools { codec, raw, .. }: &mut Tools) -> Result<(Bytes, ColumnCloseResult), ParquetError> {
        match self {
            Column::Text(text) => text.chunk.close(codec),
            Column::Coded(chunk) => chunk.close(codec),
            Column::Int(series) | Column::Time(series) => series.close(raw, codec),
            Column::Float(series) => series.close(raw, codec),
            Column::Double(series) => series.close(raw, codec),
            Column::Bool(series) => series.close(raw, codec),
        }
    }
}

fn wrong(field: &Field, array: &ArrayRef) -> ParquetError {
    let (name, has, wants) = (field.name(), array.data_type(), field.data_type());
    ParquetError::General(format!("column {name} is of type {has}, the table's is {wants}"))
}

impl Text {
    fn write(&mut self, field: &Field, array: &ArrayRef, runs: &mut Runs, codec: &mut Codec) -> Result<(), ParquetError> {
        if let Some(texts) = array.as_string_opt::<i32>() {
            return self.plain(texts, runs, codec);
        }
        let keyed = array.as_dictionary_opt::<Int32Type>();
        if let Some((keyed, texts)) = keyed.and_then(|keyed| Some((keyed, keyed.values().as_string_opt::<i32>()?))) {
            runs.of_keys(keyed.keys(), keyed.logical_nulls().as_ref());
            let same = self.dictionary.as_ref().is_some_and(|last| Arc::ptr_eq(last, keyed.values()));
            if !same {
                self.known.clear();
                self.known.resize(texts.len(), UNSEEN);
                self.dictionary = Some(keyed.values().clone());
            }
            return self.chunk.write(runs, |key| texts.value(key as usize).as_bytes(), &mut self.known, codec);
        }
        let of = match array.data_type() {
            DataType::Dictionary(_, of) => of,
            of => of,
        };
        if !of.is_string() {
            return Err(wrong(field, array));
        }
        self.plain(cast(array, &DataType::Utf8)?.as_string(), runs, codec)
    }

    fn plain(&mut self, texts: &StringArray, runs: &mut Runs, codec: &mut Codec) -> Result<(), ParquetError> {
        runs.of_texts(texts);
        self.chunk.write(runs, |row| texts.value(row as usize).as_bytes(), &mut [], codec)
    }
}
