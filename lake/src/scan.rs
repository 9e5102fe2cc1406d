//! Reading a part of a file, batch by batch: what a stretch of nodes or of time has of it, without holding the rest.
//!
//! Files are sorted by (cluster, node), so whole row groups fall out by their statistics; what is left is filtered before its
//! other columns are decoded. A file in another order is read right, only slower.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{AsArray, BooleanArray, DictionaryArray, RecordBatch},
    compute::cast,
    datatypes::{DataType, Field, Int32Type, Schema, SchemaRef, TimestampMicrosecondType},
    error::ArrowError,
};
use parquet::{
    arrow::{
        ProjectionMask,
        arrow_reader::{
            ArrowPredicate, ArrowPredicateFn, ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
            ParquetRecordBatchReaderBuilder, RowFilter,
        },
    },
    errors::ParquetError,
    file::{metadata::RowGroupMetaData, statistics::Statistics},
    schema::types::SchemaDescriptor,
};
use schemas::{Timestamp, tables::Table};

use crate::{Footer, LakeError, Place, read};

/// Rows a batch.
const BATCH_ROWS: usize = 32_768;

/// A stretch of nodes in order of (cluster, node): from one, included, to another, left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeRange {
    /// The first; none: from the beginning.
    pub from: Option<(String, String)>,
    /// The first after it; none: to the end.
    pub to: Option<(String, String)>,
}

impl NodeRange {
    /// One node.
    pub fn only(cluster: &str, node: &str) -> Self {
        // No name lies between a name and that name with a zero byte behind it.
        Self { from: Some((cluster.into(), node.into())), to: Some((cluster.into(), format!("{node}\0"))) }
    }

    /// Whether the node is in it.
    pub fn holds(&self, cluster: &str, node: &str) -> bool {
        let below = |bound: &(String, String)| (cluster, node) < (bound.0.as_str(), bound.1.as_str());
        !self.from.as_ref().is_some_and(below) && self.to.as_ref().is_none_or(below)
    }

    fn is_all(&self) -> bool {
        self.from.is_none() && self.to.is_none()
    }
}

/// What is wanted of a file.
#[derive(Clone, Debug)]
pub struct Scan<'a> {
    /// Its table.
    pub table: &'static Table,
    /// Columns, in the order wanted; none: all.
    pub columns: Option<&'a [&'a str]>,
    /// Nodes.
    pub nodes: NodeRange,
    /// Rows whose time (the table's) lies between the two, both included.
    pub between: Option<(Timestamp, Timestamp)>,
    /// Whether texts come as dictionaries, for those who group by them.
    pub dictionaries: bool,
    /// `(a, b)`: who reads `b` only in rows without `a` gets it as nulls where the file has as many nulls in both. Every row with
    /// `a` must have `b`.
    pub instead: Option<(&'a str, &'a str)>,
}

/// Batches of one file; an error ends them.
pub struct Batches {
    reader: ParquetRecordBatchReader,
    constants: BTreeMap<String, i64>,
    table: &'static Table,
    place: Place,
    schema: SchemaRef,
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, LakeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.reader.next()?;
        let batch = batch.map_err(|e| LakeError::Damaged { path: self.place.location(), source: ParquetError::from(e) });
        Some(batch.and_then(|batch| read::align(self.table, &self.place, &self.schema, &batch, &self.constants)))
    }
}

impl Scan<'_> {
    /// Starts reading the file. One of an object store is held whole until the batches are dropped.
    pub fn open(&self, place: &Place) -> Result<Batches, LakeError> {
        let damaged = |source: ParquetError| LakeError::Damaged { path: place.location(), source };
        let file = place.input()?;
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).map_err(damaged)?;
        Footer::known_layout(place, metadata.metadata())?;
        let metadata = if self.dictionaries {
            let options = ArrowReaderOptions::new().with_schema(with_dictionaries(metadata.schema()));
            ArrowReaderMetadata::try_new(metadata.metadata().clone(), options).map_err(damaged)?
        } else {
            metadata
        };
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
        let schema = read::projected(self.table, self.columns);
        let schema = if self.dictionaries { with_dictionaries(&schema) } else { schema };
        let found = builder.schema().clone();
        let file_schema = builder.parquet_schema();
        let filter = self.filter(place, file_schema)?;
        let groups = builder.metadata().row_groups();
        let chosen: Vec<usize> = (0..groups.len()).filter(|i| self.may_have(&groups[*i])).collect();
        let spared = self.instead.and_then(|(a, b)| {
            let nulls = |name: &str| nulls(chosen.iter().map(|i| &groups[*i]), found.index_of(name).ok()?);
            (nulls(a)? == nulls(b)?).then_some(b)
        });
        let mut constants = BTreeMap::new();
        let mut wanted = Vec::with_capacity(schema.fields().len());
        for field in schema.fields() {
            let Some(place) = found.index_of(field.name()).ok().filter(|_| spared != Some(field.name())) else { continue };
            match constant(chosen.iter().map(|i| &groups[*i]), place) {
                Some(value) if found.field(place).data_type() == &DataType::Int64 && field.data_type() == &DataType::Int64 => {
                    constants.insert(field.name().clone(), value);
                }
                _ => wanted.push(place),
            }
        }
        let mask = ProjectionMask::roots(file_schema, wanted);
        let mut builder = builder.with_projection(mask).with_row_groups(chosen).with_batch_size(BATCH_ROWS);
        if let Some(filter) = filter {
            builder = builder.with_row_filter(filter);
        }
        let reader = builder.build().map_err(damaged)?;
        Ok(Batches { reader, constants, table: self.table, place: place.clone(), schema })
    }

    fn filter(&self, of: &Place, file: &SchemaDescriptor) -> Result<Option<RowFilter>, LakeError> {
        let place = |column: &str| {
            let missing = || LakeError::MissingColumn { path: of.location(), table: self.table.name, column: column.to_owned() };
            file.root_schema().get_fields().iter().position(|field| field.name() == column).ok_or_else(missing)
        };
        let mut predicates: Vec<Box<dyn ArrowPredicate>> = Vec::new();
        if let Some((from, to)) = self.between {
            let (from, to) = (from.micros(), to.micros());
            let mask = ProjectionMask::roots(file, [place(self.table.time)?]);
            let keep = move |batch: RecordBatch| {
                let times = batch.column(0).as_primitive_opt::<TimestampMicrosecondType>().ok_or_else(|| wrong("a time"))?;
                Ok(times.iter().map(|at| Some(at.is_some_and(|at| from <= at && at <= to))).collect::<BooleanArray>())
            };
            predicates.push(Box::new(ArrowPredicateFn::new(mask, keep)));
        }
        if !self.nodes.is_all() {
            let (cluster, node) = (place("cluster")?, place("node")?);
            let (first, second) = if cluster < node { (0, 1) } else { (1, 0) }; // in the file's order
            let mask = ProjectionMask::roots(file, [cluster, node]);
            let range = self.nodes.clone();
            let keep = move |batch: RecordBatch| {
                let words = |i: usize| -> Result<DictionaryArray<Int32Type>, ArrowError> {
                    let words = cast(batch.column(i), &dictionary())?;
                    words.as_dictionary_opt().cloned().ok_or_else(|| wrong("text"))
                };
                let (clusters, nodes) = (words(first)?, words(second)?);
                let texts = |words: &DictionaryArray<Int32Type>| words.values().as_string_opt::<i32>().cloned();
                let (Some(cluster_texts), Some(node_texts)) = (texts(&clusters), texts(&nodes)) else {
                    return Err(wrong("text"));
                };
                let mut last: Option<((usize, usize), bool)> = None;
                let keep = (0..batch.num_rows()).map(|row| {
                    let (Some(cluster), Some(node)) = (clusters.key(row), nodes.key(row)) else { return Some(false) };
                    let held = match last {
                        Some((pair, held)) if pair == (cluster, node) => held,
                        _ => range.holds(cluster_texts.value(cluster), node_texts.value(node)),
                    };
                    last = Some(((cluster, node), held));
                    Some(held)
                });
                Ok(keep.collect::<BooleanArray>())
            };
            predicates.push(Box::new(ArrowPredicateFn::new(mask, keep)));
        }
        Ok((!predicates.is_empty()).then(|| RowFilter::new(predicates)))
    }

    /// Whether a row group may have a wanted row, by its statistics.
    fn may_have(&self, group: &RowGroupMetaData) -> bool {
        let of = |column: &str| {
            group.columns().iter().find(|chunk| chunk.column_path().string() == column).and_then(|chunk| chunk.statistics())
        };
        if let (Some((from, to)), Some(Statistics::Int64(times))) = (self.between, of(self.table.time)) {
            let out =
                times.max_opt().is_some_and(|max| *max < from.micros()) || times.min_opt().is_some_and(|m| *m > to.micros());
            if out {
                return false;
            }
        }
        let (Some((c0, c1)), Some((n0, n1))) = (ends(of("cluster")), ends(of("node"))) else { return true };
        // Ends of columns, not of pairs: what is said of nodes holds within one cluster only.
        let (low, high) = if c0 == c1 { ((c0, n0), (c1, n1)) } else { ((c0, String::new()), (c1, "\u{10FFFF}".repeat(4))) };
        self.nodes.to.as_ref().is_none_or(|to| low < *to) && self.nodes.from.as_ref().is_none_or(|from| high >= *from)
    }
}

/// How many nulls a column has in the row groups, where their statistics tell it.
fn nulls<'a>(groups: impl Iterator<Item = &'a RowGroupMetaData>, column: usize) -> Option<u64> {
    groups.map(|group| group.columns().get(column)?.statistics()?.null_count_opt()).sum()
}

/// The one whole number that a column has in all of the row groups, where their statistics tell it: there is nothing to decode.
fn constant<'a>(mut groups: impl Iterator<Item = &'a RowGroupMetaData>, column: usize) -> Option<i64> {
    let of = |group: &RowGroupMetaData| match group.columns().get(column)?.statistics()? {
        Statistics::Int64(ints) if ints.null_count_opt() == Some(0) && ints.min_is_exact() && ints.max_is_exact() => {
            ints.min_opt().filter(|min| Some(*min) == ints.max_opt()).copied()
        }
        _ => None,
    };
    let first = of(groups.next()?)?;
    groups.all(|group| of(group) == Some(first)).then_some(first)
}

/// Smallest and largest text of a column chunk, where both are told exactly.
fn ends(statistics: Option<&Statistics>) -> Option<(String, String)> {
    let Some(Statistics::ByteArray(texts)) = statistics else { return None };
    if !texts.min_is_exact() || !texts.max_is_exact() {
        return None;
    }
    let text = |bytes: &parquet::data_type::ByteArray| std::str::from_utf8(bytes.data()).ok().map(str::to_owned);
    Some((text(texts.min_opt()?)?, text(texts.max_opt()?)?))
}

/// Texts as places in a list of them.
fn dictionary() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

/// The schema with every text as a dictionary.
fn with_dictionaries(schema: &SchemaRef) -> SchemaRef {
    let kind = dictionary();
    let field = |field: &Arc<Field>| match field.data_type() {
        DataType::Utf8 => Arc::new(field.as_ref().clone().with_data_type(kind.clone())),
        _ => field.clone(),
    };
    Arc::new(Schema::new(schema.fields().iter().map(field).collect::<Vec<_>>()))
}

fn wrong(what: &str) -> ArrowError {
    ArrowError::SchemaError(format!("a column that should be {what} is not"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::{
        array::{ArrayRef, Int64Array, StringArray, TimestampMicrosecondArray},
        datatypes::Int64Type,
    };
    use schemas::tables;

    use super::*;
    use crate::{ClosedKey, Footer, Lake};

    /// Capacity rows of two clusters with three nodes each, a device a minute of the hour.
    fn file(lake: &Lake) -> Place {
        let table = tables::get("device_hours");
        let (mut clusters, mut nodes, mut devices, mut times) = (vec![], vec![], vec![], vec![]);
        for (cluster, node) in [("a", "n1"), ("a", "n2"), ("a", "n9"), ("b", "n1"), ("b", "n2"), ("b", "n3")] {
            for minute in 0..60_i64 {
                clusters.push(cluster);
                nodes.push(node);
                devices.push(format!("GPU-{minute:02}"));
                times.push(minute * 60_000_000);
            }
        }
        let rows = times.len();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(TimestampMicrosecondArray::from(times).with_timezone("UTC")),
            Arc::new(StringArray::from(clusters)),
            Arc::new(StringArray::from(nodes)),
            Arc::new(StringArray::from(devices)),
            Arc::new(Int64Array::from(vec![1; rows])),
        ];
        let batch = RecordBatch::try_new(table.schema(), columns).unwrap();
        lake.publish_closed(table, ClosedKey { hour: Timestamp::from_ms(0), shard: 0 }, &[batch], Footer::default()).unwrap()
    }

    fn count(path: &Place, nodes: NodeRange, between: Option<(i64, i64)>) -> usize {
        let between = between.map(|(from, to)| (Timestamp::from_ms(from), Timestamp::from_ms(to)));
        let scan = Scan {
            table: tables::get("device_hours"),
            columns: Some(&["device"]),
            nodes,
            between,
            dictionaries: true,
            instead: None,
        };
        let plain = Scan { dictionaries: false, ..scan.clone() };
        let rows = |scan: &Scan<'_>| scan.open(path).unwrap().map(|batch| batch.unwrap().num_rows()).sum::<usize>();
        assert_eq!(rows(&scan), rows(&plain));
        rows(&scan)
    }

    #[test]
    fn a_column_of_one_number_is_told_by_its_statistics() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&Lake::create(folder.path()).unwrap());
        let columns = ["capacity_ms", "device"];
        for names in [&columns[..1], &columns] {
            let scan = Scan {
                table: tables::get("device_hours"),
                columns: Some(names),
                nodes: NodeRange::only("b", "n1"),
                between: None,
                dictionaries: false,
                instead: None,
            };
            let batches: Vec<RecordBatch> = scan.open(&path).unwrap().map(Result::unwrap).collect();
            assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 60);
            let ones = |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().iter().all(|n| *n == 1);
            assert!(batches.iter().all(ones));
        }
    }

    #[test]
    fn a_column_read_instead_of_another_is_spared_where_nothing_asks_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let lake = Lake::create(folder.path()).unwrap();
        let table = tables::get("gpu_hours");
        for (shard, workloads) in [[Some("w"), Some("w"), None], [Some("w"), None, None]].into_iter().enumerate() {
            let schema = table.schema();
            let columns = schema.fields().iter().map(|field| -> ArrayRef {
                match field.name().as_str() {
                    "hour_start" => Arc::new(TimestampMicrosecondArray::from(vec![0; 3]).with_timezone("UTC")),
                    "workload" => Arc::new(StringArray::from(workloads.to_vec())),
                    "pod_uid" => Arc::new(StringArray::from(vec![Some("a"), Some("b"), None])),
                    _ if field.data_type() == &DataType::Utf8 => Arc::new(StringArray::from(vec!["x"; 3])),
                    _ if field.data_type() == &DataType::Int64 => Arc::new(Int64Array::from(vec![1, 2, 3])),
                    _ => arrow::array::new_null_array(field.data_type(), 3),
                }
            });
            let batch = RecordBatch::try_new(schema.clone(), columns.collect()).unwrap();
            let key = ClosedKey { hour: Timestamp::from_ms(0), shard: u32::try_from(shard).unwrap() };
            let path = lake.publish_closed(table, key, &[batch], Footer::default()).unwrap();
            let scan = Scan {
                table,
                columns: Some(&["workload", "pod_uid"]),
                nodes: NodeRange::default(),
                between: None,
                dictionaries: true,
                instead: Some(("workload", "pod_uid")),
            };
            let nulls: usize = scan.open(&path).unwrap().map(|batch| batch.unwrap().column(1).null_count()).sum();
            assert_eq!(nulls, [3, 1][shard], "shard {shard}");
        }
    }

    #[test]
    fn a_part_is_the_rows_of_its_nodes_and_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&Lake::create(folder.path()).unwrap());
        let range = |from: Option<(&str, &str)>, to: Option<(&str, &str)>| {
            let own = |end: Option<(&str, &str)>| end.map(|(c, n)| (c.to_owned(), n.to_owned()));
            NodeRange { from: own(from), to: own(to) }
        };
        assert_eq!(count(&path, NodeRange::default(), None), 360);
        assert_eq!(count(&path, range(None, Some(("a", "n9"))), None), 120);
        assert_eq!(count(&path, range(Some(("a", "n9")), Some(("b", "n2"))), None), 120);
        assert_eq!(count(&path, range(Some(("b", "n2")), None), None), 120);
        assert_eq!(count(&path, range(Some(("c", "")), None), None), 0);
        assert_eq!(count(&path, NodeRange::only("b", "n1"), None), 60);
        assert_eq!(count(&path, NodeRange::only("b", "n1"), Some((60_000, 120_000))), 2);
        assert_eq!(count(&path, NodeRange::default(), Some((-5, 0))), 6);
        assert_eq!(count(&path, NodeRange::default(), Some((4_000_000, 5_000_000))), 0);
    }
}
