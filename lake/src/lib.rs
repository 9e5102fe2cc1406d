//! The one reader and writer of the lake: a folder of Parquet files in two trees (DESIGN 3.4).
//!
//! ```text
//! _hot/<table>/<topic id>/<partition>/<first offset>.parquet    what the sink publishes; create-if-absent (D2)
//! <table>/date=YYYY-MM-DD/hour=HH/part-<shard>.parquet          closed hours; replaced atomically
//! _state/watermark.json                                        up to where hours are closed
//! ```
//!
//! A hot file's name is a pure function of topic id, partition and first offset, so that publishing is a compare-and-swap: of
//! two writers at one offset, one wins and the other learns of it. A closed hour is replaced by renaming over it, so that a
//! plain glob sees the old rows or the new ones, never both and never half.
//!
//! Modules in reading order: [`path`], [`footer`], [`encode`], [`publish`], [`list`], [`read`], [`scan`],
//! [`watermark`], [`tiles`].

pub mod encode;
pub mod footer;
pub mod list;
mod order;
pub mod path;
pub mod publish;
pub mod read;
pub mod scan;
pub mod tiles;
pub mod watermark;

use std::path::{Path, PathBuf};

pub use footer::Footer;
pub use list::{ClosedFile, HotFile};
pub use path::{ClosedKey, HotKey};
pub use publish::Published;
pub use watermark::Watermark;

/// A lake on a local disk. Cheap to clone; holds no open file.
#[derive(Clone, Debug)]
pub struct Lake {
    root: PathBuf,
}

/// What stopped an operation on the lake.
#[derive(Debug, thiserror::Error)]
pub enum LakeError {
    /// No folder there.
    #[error("no lake at {}; give the folder that `strandline demo --keep` or `strandline import` made", .0.display())]
    NoLake(PathBuf),
    /// The disk refused.
    #[error("cannot {what} {}; check the disk and its permissions", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file that is no Parquet, or only half of one.
    #[error("cannot read {} as Parquet; it is damaged or half-written: restore it, or move it out of the lake", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reader's reason.
        source: parquet::errors::ParquetError,
    },
    /// A file whose columns are not the table's.
    #[error("{}: column `{column}` has type {found}, and table {table} has {expected}; was it written by another program?", .path.display())]
    WrongType {
        /// The file.
        path: PathBuf,
        /// Table of its folder.
        table: &'static str,
        /// The column.
        column: String,
        /// Its type in the file.
        found: String,
        /// Its type in the table.
        expected: String,
    },
    /// A column that must not be null is not in the file.
    #[error("{}: column `{column}` of table {table} is missing or has nulls; was it written by another program?", .path.display())]
    MissingColumn {
        /// The file.
        path: PathBuf,
        /// Table of its folder.
        table: &'static str,
        /// The column.
        column: String,
    },
    /// Rows that are not of the table, or that Parquet refuses.
    #[error("cannot encode rows of table {table}")]
    Encode {
        /// The table.
        table: &'static str,
        /// The writer's reason.
        source: parquet::errors::ParquetError,
    },
    /// A file whose rows are not what was written.
    #[error("{} is not as it was written, its content hash differs: restore it, or do hour rows again with `strandline hours --force`", .0.display())]
    Changed(PathBuf),
    /// A Parquet file among the closed hours whose name is not one of theirs.
    #[error("{} is no file of a closed hour, and whoever reads the lake by a glob would count its rows; move it out of the lake", .0.display())]
    Stray(PathBuf),
    /// A file without what our writer puts into its footer.
    #[error("{}: footer key `{key}` is missing or malformed; was it written by another program?", .path.display())]
    Footer {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
    },
    /// A file whose rows may mean something else than we know.
    #[error("{} was written by a newer strandline (row layout {found}, this one knows {}); upgrade before you read this lake", .path.display(), footer::SCHEMA_VERSION)]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its layout.
        found: String,
    },
    /// A watermark that cannot be.
    #[error("{}: {what}; restore it, or delete it and close the hours again", .path.display())]
    Watermark {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// A state file that does not parse.
    #[error("cannot read {}; restore it, or delete it and close the hours again", .path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: serde_json::Error,
    },
}

impl LakeError {
    fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }

    /// Whether the disk is full: the sink stops consuming then, loudly (D3).
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull)
    }
}

impl Lake {
    /// The lake in folder `root`, made if it is not there.
    pub fn create(root: &Path) -> Result<Self, LakeError> {
        publish::make_dirs(root)?;
        Ok(Self { root: root.to_owned() })
    }

    /// The lake in folder `root`, which must be there.
    pub fn open(root: &Path) -> Result<Self, LakeError> {
        if root.is_dir() { Ok(Self { root: root.to_owned() }) } else { Err(LakeError::NoLake(root.to_owned())) }
    }

    /// Its folder.
    pub fn root(&self) -> &Path {
        &self.root
    }
}
