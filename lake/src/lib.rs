//! The one reader and writer of the lake: Parquet files in two trees (DESIGN 3.4), in a folder of the local disk or in a bucket of an
//! object store (`s3://bucket/prefix`), by the same keys.
//!
//! ```text
//! _hot/<table>/<topic id>/<partition>/<first offset>.parquet    what the sink publishes; create-if-absent (D2)
//! <table>/date=YYYY-MM-DD/hour=HH/part-<shard>.parquet          closed hours; replaced atomically
//! _state/watermark.json                                        up to where hours are closed
//! ```
//!
//! A hot file's name is a pure function of topic id, partition and first offset, so that publishing is a compare-and-swap: of
//! two writers at one offset, one wins and the other learns of it. A closed hour is replaced under the same name, so that a
//! plain glob sees the old rows or the new ones, never both and never half.
//!
//! Modules in reading order: [`path`], `store` (folder and bucket), [`footer`], [`encode`], [`publish`], [`list`], [`read`], [`scan`],
//! [`watermark`], [`turn`], [`removed`], [`tiles`].

mod accepted;
pub mod encode;
pub mod footer;
pub mod list;
mod order;
pub mod path;
pub mod publish;
pub mod read;
pub mod removed;
pub mod scan;
mod store;
pub mod tiles;
pub mod turn;
pub mod watermark;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

pub use footer::Footer;
pub use list::{ClosedFile, HotFile};
pub use path::{ClosedKey, HotKey};
pub use publish::Published;
pub use removed::Removed;
use store::Store;
pub use store::{Access, Place, Version};
pub use turn::Turn;
pub use watermark::Watermark;

/// A lake on a local disk or in an object store. Cheap to clone; holds no open file.
#[derive(Clone)]
pub struct Lake {
    store: Store,
}

/// What stopped an operation on the lake.
#[derive(Debug, thiserror::Error)]
pub enum LakeError {
    /// No folder there.
    #[error("no lake at {}; give the place that a sink writes, or the folder that `strandline demo --keep` or `strandline import` made", .0.display())]
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
    /// The object store refused, or did not answer.
    #[error("cannot {what} {}; check the bucket, AWS_ENDPOINT_URL, AWS_REGION, the credentials and the network", .path.display())]
    Store {
        /// What was tried.
        what: &'static str,
        /// The object's URL.
        path: PathBuf,
        /// The store's reason.
        source: Box<object_store::Error>,
    },
    /// An object store in which two writers can lose each other's rows.
    #[error(
        "the object store of {} lets a second writer put over a first one's file (it does not heed `If-None-Match: *`); a lake needs \
         one that refuses, as Amazon S3 does", .0.display()
    )]
    Unconditional(PathBuf),
    /// An object store that says that a file is there, and then has none.
    #[error("cannot write {}: the object store says that it is there and does not give it; is somebody removing files?", .0.display())]
    Crossed(PathBuf),
    /// The folder lost its mark while it was in use: its disk is not mounted, or somebody moved it.
    #[error("the lake at {} is gone (no {}); is its disk mounted? Nothing is written until it is back", .0.display(), "_state/lake")]
    Gone(PathBuf),
    /// A location that is none.
    #[error("{}: {why}; a lake is a folder, or s3://BUCKET/PREFIX", .location.display())]
    Location {
        /// As given.
        location: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// Rows and requests that anybody on the way could read.
    #[error(
        "the object store of {} is at {endpoint}, without TLS; give an https:// address, or set AWS_ALLOW_HTTP=true where the network \
         is your own", .lake.display()
    )]
    OpenWire {
        /// The lake.
        lake: PathBuf,
        /// The address.
        endpoint: String,
    },
    /// What only works on a local disk.
    #[error("{what} needs a lake on the local disk, and this one is {}; copy it to a folder, and give that", .lake.display())]
    NoFolder {
        /// The lake.
        lake: PathBuf,
        /// What needs it.
        what: &'static str,
    },
    /// Who holds a role cannot be told.
    #[error("cannot read {}; if nothing writes this lake, delete it", .path.display())]
    Turn {
        /// The role's file.
        path: PathBuf,
        /// The reason.
        source: serde_json::Error,
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
    /// The record of what retention has taken away does not parse.
    #[error("cannot read {}; restore it: without it nobody can tell what is missing from what was removed", .path.display())]
    Removed {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: serde_json::Error,
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
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded))
    }

    /// Whether it says that a file is not there, which it was when it was listed.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }

    /// Whether it may go away by itself: a full disk, or an object store that does not answer or is overloaded.
    pub fn passes(&self) -> bool {
        match self {
            Self::Store { source, .. } => matches!(**source, object_store::Error::Generic { .. }),
            Self::Crossed(_) | Self::Gone(_) => true,
            _ => self.is_disk_full(),
        }
    }
}

impl Lake {
    /// The lake at `location` (a folder, or `s3://bucket/prefix`), for writing; made if it is not there. An object store is
    /// reached as the environment says ([`Access::from_env`]), and asked whether it keeps the promise that the lake stands on.
    pub fn create(location: &Path) -> Result<Self, LakeError> {
        Self::create_with(location, Access::from_env)
    }

    /// The same, with another way to reach an object store.
    pub fn create_with(location: &Path, access: impl FnOnce() -> Access) -> Result<Self, LakeError> {
        let store = Store::at(location, access)?;
        store.prepare()?;
        Ok(Self { store })
    }

    /// The lake at `location`, which must be there.
    pub fn open(location: &Path) -> Result<Self, LakeError> {
        Self::open_with(location, Access::from_env)
    }

    /// The same, with another way to reach an object store.
    pub fn open_with(location: &Path, access: impl FnOnce() -> Access) -> Result<Self, LakeError> {
        let store = Store::at(location, access)?;
        if store.is_there()? { Ok(Self { store }) } else { Err(LakeError::NoLake(location.to_owned())) }
    }

    /// Where it lies: its folder, or its `s3://` URL. To be shown; [`Lake::folder`] is for files beside ours.
    pub fn location(&self) -> &Path {
        self.store.location()
    }

    /// Its folder on the local disk, which `what` needs. Errors: [`LakeError::NoFolder`] in an object store.
    pub fn folder(&self, what: &'static str) -> Result<&Path, LakeError> {
        match &self.store {
            Store::Folder(folder) => Ok(folder.root()),
            Store::Bucket(_) => Err(LakeError::NoFolder { lake: self.location().to_owned(), what }),
        }
    }

    /// Whether it lies on a local disk.
    pub fn is_local(&self) -> bool {
        matches!(self.store, Store::Folder(_))
    }

    /// The place of a key ([`HotKey::path`], [`ClosedKey::path`]), whether or not there is a file.
    pub fn place(&self, key: &str) -> Place {
        Place::new(&self.store, key)
    }

    /// A client of the object store for an engine that reads by itself, from the bucket's root; none for a folder.
    pub fn client(&self) -> Result<Option<Arc<dyn object_store::ObjectStore>>, LakeError> {
        self.store.client()
    }
}

impl std::fmt::Debug for Lake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Lake").field(&self.location()).finish()
    }
}
