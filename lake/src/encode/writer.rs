//! Batches to row groups: columns that repeat themselves by our own [`Chunk`], the others by parquet's writers.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch, StringArray},
    compute::cast,
    datatypes::{DataType, Field, Int32Type, Int64Type, Schema, SchemaRef},
};
use parquet::{
    arrow::{
        ArrowSchemaConverter,
        arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves},
    },
    errors::ParquetError,
    file::{
        metadata::KeyValue,
        properties::{WriterProperties, WriterPropertiesPtr},
        writer::SerializedFileWriter,
    },
    schema::types::ColumnPath,
};

use super::{
    ZSTD_LEVEL,
    chunk::{Chunk, Codec},
    dictionary::UNSEEN,
    runs::Runs,
};

/// Writes a file into memory, one row group at a time.
///
/// Texts come as Utf8 or as dictionaries of it with Int32 keys, in each batch as it likes; the file is the same.
pub(super) struct Writer {
    schema: SchemaRef,
    properties: WriterPropertiesPtr,
    file: SerializedFileWriter<Vec<u8>>,
    /// Makes the writers of the columns that are not ours.
    others: ArrowRowGroupWriterFactory,
    codec: Codec,
    runs: Runs,
    group: Option<Group>,
    groups: usize,
}

/// The row group that is being filled.
struct Group {
    columns: Vec<Column>,
    rows: usize,
}

enum Column {
    Text(Box<Text>),
    Number(Box<Chunk<i64>>),
    Other(Box<ArrowColumnWriter>),
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
        // Parquet's factory makes a writer of every column it knows of, each with two contexts of zstd: so it knows only these.
        let others: Vec<_> = schema.fields().iter().filter(|field| !is_ours(field, &properties)).cloned().collect();
        let others = Arc::new(Schema::new(others));
        let converted = ArrowSchemaConverter::new().convert(&others)?;
        let nowhere = SerializedFileWriter::new(std::io::sink(), converted.root_schema_ptr(), properties.clone())?;
        let others = ArrowRowGroupWriterFactory::new(&nowhere, others);
        let codec = Codec::new(ZSTD_LEVEL)?;
        Ok(Self { schema, properties, file, others, codec, runs: Runs::default(), group: None, groups: 0 })
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
                match column {
                    Column::Text(text) => text.write(field, array, &mut self.runs, &mut self.codec)?,
                    Column::Number(chunk) => {
                        let numbers = array.as_primitive_opt::<Int64Type>().ok_or_else(|| wrong(field, array))?;
                        self.runs.of_numbers(numbers);
                        chunk.write(&self.runs, |row| &numbers.values()[row as usize], &mut [], &mut self.codec)?;
                    }
                    Column::Other(writer) => {
                        for leaf in compute_leaves(field, array)? {
                            writer.write(&leaf)?;
                        }
                    }
                }
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
        let mut others = self.others.create_column_writers(self.groups)?.into_iter();
        let descrs = self.file.schema_descr().columns();
        let column = |(field, descr): (&Arc<Field>, &_)| {
            if is_ours(field, &self.properties) {
                let (descr, properties) = (Arc::clone(descr), self.properties.clone());
                return Ok(if *field.data_type() == DataType::Int64 {
                    Column::Number(Box::new(Chunk::new(descr, properties)))
                } else {
                    let chunk = Chunk::new(descr, properties);
                    Column::Text(Box::new(Text { chunk, dictionary: None, known: Vec::new() }))
                });
            }
            let none = || ParquetError::General(format!("no writer of column {}", field.name()));
            others.next().map(|writer| Column::Other(Box::new(writer))).ok_or_else(none)
        };
        let columns = self.schema.fields().iter().zip(descrs).map(column).collect::<Result<_, _>>()?;
        Ok(Group { columns, rows: 0 })
    }

    fn end_group(&mut self) -> Result<(), ParquetError> {
        let Some(group) = self.group.take() else { return Ok(()) };
        self.groups += 1;
        let mut writer = self.file.next_row_group()?;
        for column in group.columns {
            let (bytes, result) = match column {
                Column::Text(text) => text.chunk.close(&mut self.codec)?,
                Column::Number(chunk) => chunk.close(&mut self.codec)?,
                Column::Other(column) => {
                    column.close()?.append_to_row_group(&mut writer)?;
                    continue;
                }
            };
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

/// Texts, and whole numbers of which the file has a dictionary.
fn is_ours(field: &Field, properties: &WriterProperties) -> bool {
    let dictionary = properties.dictionary_enabled(&ColumnPath::new(vec![field.name().clone()]));
    dictionary && matches!(field.data_type(), DataType::Utf8 | DataType::Int64)
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
