//! Reading a file back in its table's columns: a column added since is null, an unknown one is left out.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{ArrayRef, Int64Array, RecordBatch, new_null_array},
    datatypes::{Schema, SchemaRef},
};
use parquet::{
    arrow::{
        ProjectionMask,
        arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder},
    },
    errors::ParquetError,
    file::reader::{ChunkReader, Length},
};
use schemas::tables::Table;

use sha2::{Digest, Sha256};

use crate::{Footer, LakeError, Place, encode, store::Input};

/// What our writer put into the footer of the file.
pub fn footer(file: &Place) -> Result<Footer, LakeError> {
    Footer::from_metadata(file, &file.metadata()?)
}

/// Checks that the rows of the file are the bytes that our writer wrote: damage inside a page may read as other numbers.
pub fn verify(file: &Place) -> Result<(), LakeError> {
    let metadata = file.metadata()?;
    let stated = Footer::from_metadata(file, &metadata)?.content_hash;
    let chunks = metadata.row_groups().iter().flat_map(|group| group.columns());
    let ends = chunks.map(|chunk| {
        let (start, length) = chunk.byte_range();
        start.saturating_add(length)
    });
    // Before the first page stands the format's name.
    let end = ends.max().unwrap_or(0).max(MAGIC.len() as u64);
    let input = file.input()?;
    let end = usize::try_from(end.min(input.len())).unwrap_or(usize::MAX);
    let bytes = input.get_bytes(0, end).map_err(|source| LakeError::Damaged { path: file.location(), source })?;
    let found = encode::hex(&Sha256::digest(bytes));
    if found == stated { Ok(()) } else { Err(LakeError::Changed(file.location())) }
}

/// How a Parquet file begins.
const MAGIC: &[u8] = b"PAR1";

/// Rows of the file, with the named columns of `table` in the order named (all of them, where `columns` is `None`).
pub fn rows(table: &'static Table, file: &Place, columns: Option<&[&str]>) -> Result<Vec<RecordBatch>, LakeError> {
    let damaged = |source: ParquetError| LakeError::Damaged { path: file.location(), source };
    let builder = ParquetRecordBatchReaderBuilder::<Input>::try_new(file.input()?).map_err(damaged)?;
    Footer::known_layout(file, builder.metadata())?;
    let schema = projected(table, columns);
    let found = builder.schema().clone();
    let wanted: Vec<usize> = schema.fields().iter().filter_map(|field| found.index_of(field.name()).ok()).collect();
    let mask = ProjectionMask::roots(builder.parquet_schema(), wanted);
    let reader = builder.with_projection(mask).with_batch_size(65_536).build().map_err(damaged)?;
    let mut batches = Vec::new();
    for batch in reader {
        let batch = batch.map_err(|error| damaged(ParquetError::from(error)))?;
        batches.push(align(table, file, &schema, &batch, &BTreeMap::new())?);
    }
    Ok(batches)
}

/// Checks that the file is of `table`: its layout is known, and the table's columns are there with their types. Returns
/// how many columns it has beside them, of a later version.
pub fn schema(table: &'static Table, file: &Place) -> Result<usize, LakeError> {
    let metadata = file.metadata()?;
    Footer::from_metadata(file, &metadata)?;
    let metadata = ArrowReaderMetadata::try_new(metadata.into(), ArrowReaderOptions::new());
    let found = metadata.map_err(|source| LakeError::Damaged { path: file.location(), source })?.schema().clone();
    align(table, file, &table.schema(), &RecordBatch::new_empty(found.clone()), &BTreeMap::new())?;
    Ok(found.fields().iter().filter(|field| table.index(field.name()).is_none()).count())
}

/// The schema of the named columns of `table`, or of all of them.
pub fn projected(table: &'static Table, columns: Option<&[&str]>) -> SchemaRef {
    match columns {
        None => table.schema(),
        Some(names) => {
            let schema = table.schema();
            let fields: Vec<_> = names.iter().filter_map(|name| schema.field_with_name(name).ok().cloned()).collect();
            Arc::new(Schema::new(fields))
        }
    }
}

/// A batch of the file in the columns of `schema`; `constants` are columns of whole numbers that were not decoded.
pub(crate) fn align(
    table: &'static Table,
    file: &Place,
    schema: &SchemaRef,
    batch: &RecordBatch,
    constants: &BTreeMap<String, i64>,
) -> Result<RecordBatch, LakeError> {
    let missing = |column: &str| LakeError::MissingColumn { path: file.location(), table: table.name, column: column.to_owned() };
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        if let Some(value) = constants.get(field.name()) {
            columns.push(Arc::new(Int64Array::from_value(*value, batch.num_rows())));
            continue;
        }
        columns.push(match batch.column_by_name(field.name()) {
            Some(column) if column.data_type() == field.data_type() => {
                if !field.is_nullable() && column.null_count() > 0 {
                    return Err(missing(field.name()));
                }
                column.clone()
            }
            Some(column) => {
                return Err(LakeError::WrongType {
                    path: file.location(),
                    table: table.name,
                    column: field.name().clone(),
                    found: column.data_type().to_string(),
                    expected: field.data_type().to_string(),
                });
            }
            None if field.is_nullable() => new_null_array(field.data_type(), batch.num_rows()),
            None => return Err(missing(field.name())),
        });
    }
    RecordBatch::try_new_with_options(
        schema.clone(),
        columns,
        &arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows())),
    )
    .map_err(|error| LakeError::Damaged { path: file.location(), source: ParquetError::from(error) })
}
