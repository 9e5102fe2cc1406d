//! SQL over the lake's closed hours, by DataFusion, with the session in UTC.
//!
//! Every table of the lake is there, empty where nothing was written yet, with its columns and the folder's `date` and
//! `hour`. Views add nothing and hide nothing.

use std::{path::PathBuf, sync::Arc};

use datafusion::{
    arrow::{
        array::RecordBatch,
        datatypes::{DataType, Schema},
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
use schemas::tables::{self, Table};
use tokio_stream::StreamExt;

/// Memory that one query may work in.
const MAX_WORK_BYTES: usize = 2 << 30;
/// Largest result that is held to be printed.
const MAX_RESULT_BYTES: usize = 256 << 20;

/// What stopped a query.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// The lake could not be read.
    #[error(transparent)]
    Lake(#[from] LakeError),
    /// A lake at a path that is no URL.
    #[error("the lake's path {} cannot be read by the SQL engine; give one of UTF-8", .0.display())]
    Path(PathBuf),
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
        // What needs more goes to disk where it can, and fails where it cannot: never the machine.
        let runtime = RuntimeEnvBuilder::new().with_memory_limit(MAX_WORK_BYTES, 1.0).build_arc()?;
        let context = SessionContext::new_with_config_rt(config, runtime);
        for table in tables::all() {
            context.register_table(table.name, provider(lake, table)?)?;
        }
        Ok(Self { lake: lake.clone(), context })
    }

    /// Runs one SELECT (or SHOW, EXPLAIN); statements that write are refused.
    pub async fn rows(&self, sql: &str) -> Result<Vec<RecordBatch>, SqlError> {
        let read_only = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        let collected = async {
            let frame = self.context.sql_with_options(sql, read_only).await?;
            let schema = Arc::new(frame.schema().as_arrow().clone());
            let mut stream = frame.execute_stream().await?;
            let (mut batches, mut bytes) = (Vec::new(), 0);
            while let Some(batch) = stream.next().await {
                let batch = batch?;
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
                batches.push(RecordBatch::new_empty(schema));
            }
            Ok::<_, DataFusionError>(batches)
        };
        match collected.await {
            Ok(batches) => Ok(batches),
            Err(error) => Err(self.damaged_file().map_or_else(|| error.into(), SqlError::from)),
        }
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

fn provider(lake: &Lake, table: &'static Table) -> Result<Arc<dyn TableProvider>, SqlError> {
    let files = lake.closed_files(table, None)?;
    for file in &files {
        // The engine passes over files without bytes; rows that are gone must not go unnoticed.
        if std::fs::metadata(&file.path).is_ok_and(|found| found.len() == 0) {
            lake::read::footer(&file.path)?;
        }
    }
    if files.is_empty() {
        let folders = ["date", "hour"].map(|name| datafusion::arrow::datatypes::Field::new(name, DataType::Utf8, false));
        let fields = table.schema().fields().iter().map(|f| f.as_ref().clone()).chain(folders).collect::<Vec<_>>();
        let schema = Arc::new(Schema::new(fields));
        return Ok(Arc::new(MemTable::try_new(schema, vec![vec![]])?));
    }
    let folder = lake.root().join(table.name);
    let absolute = folder.canonicalize().map_err(|_| SqlError::Path(folder.clone()))?;
    let text = absolute.to_str().ok_or_else(|| SqlError::Path(folder.clone()))?;
    let url = ListingTableUrl::parse(folder_url(text))?;
    let options = ListingOptions::new(Arc::new(ParquetFormat::default()))
        .with_file_extension(".parquet")
        .with_table_partition_cols(vec![("date".into(), DataType::Utf8), ("hour".into(), DataType::Utf8)]);
    let config = ListingTableConfig::new(url).with_listing_options(options).with_schema(table.schema());
    Ok(Arc::new(ListingTable::try_new(config)?))
}
