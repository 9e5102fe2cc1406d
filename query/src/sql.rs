//! SQL over the lake, by DataFusion, with the session in UTC.
//!
//! Every table of the lake is there, empty where nothing was written yet, with its columns and the folder's `date` and
//! `hour`. Tables of samples read both trees: closed hours, and beyond the watermark what the sink has published since, of
//! which exact repeats are dropped only when the hour closes. Hour rows do likewise: those of closed hours are read, those of
//! open ones computed now ([`crate::live`]) and flagged `open_hour`. Tables of intervals are made by closing, so they reach up to
//! the watermark. `reconciliation` is a view ([`crate::questions`]).

use std::{path::PathBuf, sync::Arc};

use datafusion::{
    arrow::{
        array::{ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, StringArray, types::TimestampMicrosecondType},
        compute::{cast, filter_record_batch},
        datatypes::{DataType, Field, Schema},
    },
    catalog::TableProvider,
    datasource::{
        MemTable,
        file_format::parquet::ParquetFormat,
        listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl},
    },
    error::DataFusionError,
    execution::{
        context::{SQLOptions, SessionConfig, SessionContext},
        runtime_env::RuntimeEnvBuilder,
    },
};
use lake::{Lake, LakeError};
use schemas::{
    Timestamp,
    tables::{self, Table},
};
use tokio_stream::StreamExt;

use crate::{account::AccountError, live, questions};

/// Memory that one query may work in.
const MAX_WORK_BYTES: usize = 2 << 30;
/// Largest result that is held to be printed.
const MAX_RESULT_BYTES: usize = 256 << 20;

/// Bytes at a file's end that are read at once; an hour's footer fits, a larger one costs a second read.
const FOOTER_BYTES: usize = 16 << 10;

/// Most rows of a table that are read from hours not yet closed.
const MAX_LIVE_ROWS: usize = 2_000_000;
/// Tables whose rows stand in the hot tree as they do in the closed one.
const LIVE: [&str; 4] = ["gpu_samples", "extra_samples", "scrapes", "rejects"];
/// Tables whose rows of open hours are computed, when a statement names them.
const COMPUTED: [&str; 2] = ["gpu_hours", "device_hours"];

/// Questions that are views as well, made when a statement names them.
const VIEWS: [&str; 1] = ["reconciliation"];

/// What stopped a query.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// The lake could not be read.
    #[error(transparent)]
    Lake(#[from] LakeError),
    /// A lake at a path that is no URL.
    #[error("the lake's path {} cannot be read by the SQL engine; give one of UTF-8", .0.display())]
    Path(PathBuf),
    /// More rows beyond the watermark than a session reads.
    #[error("table {0} has over {MAX_LIVE_ROWS} rows in hours that are not closed; let the sink close them first")]
    TooMuchLive(&'static str),
    /// Hours that are not closed could not be computed.
    #[error(transparent)]
    Live(#[from] AccountError),
    /// The engine refused or failed.
    #[error("the query failed: {0}")]
    Query(Box<DataFusionError>),
}

impl From<DataFusionError> for SqlError {
    fn from(error: DataFusionError) -> Self {
        Self::Query(Box::new(error))
    }
}

/// A session over one lake.
pub struct Session {
    lake: Lake,
    context: SessionContext,
}

impl Session {
    /// Opens every table of `lake`, read-only.
    pub fn open(lake: &Lake) -> Result<Self, SqlError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut config = SessionConfig::new().with_target_partitions(threads).with_information_schema(true);
        config.options_mut().execution.time_zone = Some("UTC".into());
        // Files are read in Parquet's own types; the tables' schemas say Utf8.
        config.options_mut().execution.parquet.schema_force_view_types = false;
        // A month is hundreds of small files of a hundred columns: the engine would work out statistics of every column of every
        // file for its plan, and read half a megabyte of each to find its footer. Row groups fall out by statistics all the same.
        config.options_mut().execution.collect_statistics = false;
        config.options_mut().execution.parquet.metadata_size_hint = Some(FOOTER_BYTES);
        // What needs more goes to disk where it can, and fails where it cannot: never the machine.
        let runtime = RuntimeEnvBuilder::new().with_memory_limit(MAX_WORK_BYTES, 1.0).build_arc()?;
        let context = SessionContext::new_with_config_rt(config, runtime);
        if let Some(client) = lake.client()? {
            let url = ListingTableUrl::parse(format!("{}/", lake.location().display()))?;
            context.register_object_store(url.object_store().as_ref(), client);
        }
        for table in tables::all() {
            let closed = provider(lake, table)?;
            let both = match live(lake, table)? {
                Some(live) => context.read_table(closed)?.union(context.read_table(live)?)?.into_view(),
                None => closed,
            };
            context.register_table(table.name, both)?;
        }
        Ok(Self { lake: lake.clone(), context })
    }

    /// Runs one SELECT (or SHOW, EXPLAIN); statements that write are refused.
    pub async fn rows(&self, sql: &str) -> Result<Vec<RecordBatch>, SqlError> {
        let read_only = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        self.add_open_hours(sql)?;
        self.add_views(sql).await?;
        let collected = async {
            let frame = self.context.sql_with_options(sql, read_only).await?;
            let schema = Arc::new(frame.schema().as_arrow().clone());
            let mut stream = frame.execute_stream().await?;
            let (mut batches, mut bytes) = (Vec::new(), 0);
            while let Some(batch) = stream.next().await {
                let batch = without_views(&batch?)?;
                bytes += batch.get_array_memory_size();
                if bytes > MAX_RESULT_BYTES {
                    return Err(DataFusionError::ResourcesExhausted(format!(
                        "the result is larger than {} MiB; add a LIMIT, or read the files with a tool that streams",
                        MAX_RESULT_BYTES >> 20
                    )));
                }
                batches.push(batch);
            }
            if batches.is_empty() {
                batches.push(without_views(&RecordBatch::new_empty(schema))?);
            }
            Ok::<_, DataFusionError>(batches)
        };
        match collected.await {
            Ok(batches) => Ok(batches),
            Err(error) => Err(self.damaged_file().map_or_else(|| error.into(), SqlError::from)),
        }
    }

    /// Puts the rows of open hours beside those of closed ones, where `sql` may ask for them.
    fn add_open_hours(&self, sql: &str) -> Result<(), SqlError> {
        let asked: Vec<&str> = COMPUTED.into_iter().filter(|name| sql.to_lowercase().contains(name)).collect();
        if asked.is_empty() {
            return Ok(());
        }
        let hours = live::hours(&self.lake, None)?;
        for name in asked {
            let table = tables::get(name);
            let batches = hours.iter().flat_map(|hour| if name == "gpu_hours" { &hour.rows } else { &hour.capacities });
            let batches = batches.map(|batch| foldered(table, batch)).collect::<Result<Vec<_>, _>>()?;
            if batches.iter().all(|batch| batch.num_rows() == 0) {
                continue;
            }
            let open = Arc::new(MemTable::try_new(with_folders(table), vec![batches])?);
            let closed = provider(&self.lake, table)?;
            let both = self.context.read_table(closed)?.union(self.context.read_table(open)?)?.into_view();
            self.context.deregister_table(name)?;
            self.context.register_table(name, both)?;
        }
        Ok(())
    }

    /// Makes the views that `sql` may ask for.
    async fn add_views(&self, sql: &str) -> Result<(), SqlError> {
        let asked = VIEWS.into_iter().filter(|name| sql.to_lowercase().contains(name));
        for (name, text) in asked.filter_map(|name| Some((name, questions::sql(name)?))) {
            if !self.context.table_exist(name)? {
                self.context.register_table(name, self.context.sql(text).await?.into_view())?;
            }
        }
        Ok(())
    }

    /// The engine does not say which file it choked on; we look.
    fn damaged_file(&self) -> Option<LakeError> {
        for table in tables::all() {
            for file in self.lake.closed_files(table, None).ok()? {
                if let Err(error) = lake::read::footer(&file.path) {
                    return Some(error);
                }
            }
        }
        None
    }
}

/// A folder as a URL: as a path, the engine would take `*`, `?` and `[` in it for a glob and find nothing.
fn folder_url(path: &str) -> String {
    let mut url = "file://".to_owned();
    for byte in path.bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' => url.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => url.push(char::from(byte)),
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url.push('/');
    url
}

/// The table's columns and the folders'.
fn with_folders(table: &'static Table) -> Arc<Schema> {
    let folders = ["date", "hour"].map(|name| Field::new(name, DataType::Utf8, false));
    Arc::new(Schema::new(table.schema().fields().iter().map(|f| f.as_ref().clone()).chain(folders).collect::<Vec<_>>()))
}

/// The table's columns with texts as views: the engine then groups and compares them without copying each.
fn with_views(table: &'static Table) -> Arc<Schema> {
    let field = |field: &Arc<Field>| match field.data_type() {
        DataType::Utf8 => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8View)),
        _ => field.clone(),
    };
    Arc::new(Schema::new(table.schema().fields().iter().map(field).collect::<Vec<_>>()))
}

/// Views of a result as the plain texts that the rest of the project reads.
fn without_views(batch: &RecordBatch) -> Result<RecordBatch, DataFusionError> {
    let schema = batch.schema();
    let mut fields = Vec::with_capacity(schema.fields().len());
    let mut columns = Vec::with_capacity(schema.fields().len());
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        if *field.data_type() == DataType::Utf8View {
            fields.push(Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8)));
            columns.push(cast(column, &DataType::Utf8)?);
        } else {
            fields.push(field.clone());
            columns.push(column.clone());
        }
    }
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &rows)?)
}

/// A batch of the table with the folder that each row would lie in.
fn foldered(table: &'static Table, batch: &RecordBatch) -> Result<RecordBatch, DataFusionError> {
    let times = batch.column(table.index(table.time).unwrap_or(0)).as_primitive::<TimestampMicrosecondType>();
    let folders = times.iter().map(|at| Timestamp::from_micros(at.unwrap_or(0)).date_hour());
    let (dates, hours): (Vec<String>, Vec<String>) = folders.unzip();
    let mut columns = batch.columns().to_vec();
    columns.extend([Arc::new(StringArray::from(dates)) as ArrayRef, Arc::new(StringArray::from(hours))]);
    Ok(RecordBatch::try_new(with_folders(table), columns)?)
}

/// Rows of hours that are not closed yet, from the hot tree; none where there are none.
fn live(lake: &Lake, table: &'static Table) -> Result<Option<Arc<dyn TableProvider>>, SqlError> {
    if !LIVE.contains(&table.name) {
        return Ok(None);
    }
    let from = lake.watermark()?.map_or(i64::MIN, |watermark| watermark.closed_to.micros());
    let place = table.index(table.time).unwrap_or(0);
    let (mut batches, mut rows) = (Vec::new(), 0);
    for file in lake.hot_files(table)? {
        // What retention takes away meanwhile is in closed hours.
        match lake::read::footer(&file.path) {
            Ok(footer) if footer.max_at.is_some_and(|last| last.micros() >= from) => {}
            Err(error) if !error.is_gone() => return Err(error.into()),
            Ok(_) | Err(_) => continue,
        }
        for batch in lake::read::rows(table, &file.path, None)? {
            let Some(times) = batch.column(place).as_primitive_opt::<TimestampMicrosecondType>() else { continue };
            let keep: BooleanArray = times.iter().map(|at| Some(at.is_some_and(|at| at >= from))).collect();
            let live = filter_record_batch(&foldered(table, &batch)?, &keep).map_err(DataFusionError::from)?;
            rows += live.num_rows();
            if rows > MAX_LIVE_ROWS {
                return Err(SqlError::TooMuchLive(table.name));
            }
            batches.push(live);
        }
    }
    if rows == 0 {
        return Ok(None);
    }
    Ok(Some(Arc::new(MemTable::try_new(with_folders(table), vec![batches])?)))
}

fn provider(lake: &Lake, table: &'static Table) -> Result<Arc<dyn TableProvider>, SqlError> {
    let files = lake.closed_files(table, None)?;
    for file in &files {
        // The engine passes over files without bytes; rows that are gone must not go unnoticed. An object is put whole.
        let local = file.path.path().ok();
        if local.and_then(|path| std::fs::metadata(path).ok()).is_some_and(|found| found.len() == 0) {
            lake::read::footer(&file.path)?;
        }
    }
    if files.is_empty() {
        return Ok(Arc::new(MemTable::try_new(with_folders(table), vec![vec![]])?));
    }
    let folder = lake.location().join(table.name);
    let text = if lake.is_local() { folder.canonicalize().ok() } else { Some(folder.clone()) };
    let text = text.and_then(|path| path.to_str().map(str::to_owned)).ok_or(SqlError::Path(folder))?;
    let url = ListingTableUrl::parse(if lake.is_local() { folder_url(&text) } else { format!("{text}/") })?;
    let options = ListingOptions::new(Arc::new(ParquetFormat::default()))
        .with_file_extension(".parquet")
        .with_table_partition_cols(vec![("date".into(), DataType::Utf8), ("hour".into(), DataType::Utf8)]);
    let config = ListingTableConfig::new(url).with_listing_options(options).with_schema(with_views(table));
    Ok(Arc::new(ListingTable::try_new(config)?))
}
