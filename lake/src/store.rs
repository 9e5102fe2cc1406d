//! Where the bytes of a lake lie: in a folder of the local disk, or in a bucket of an object store. Both have the same keys, and
//! the same promises: a file is there whole or not at all, and of two writers that create one key, one learns that it lost.

mod bucket;
mod folder;

use std::{
    cmp::Ordering,
    fmt,
    fs::File,
    hash::{Hash, Hasher},
    io::{BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use object_store::ObjectStore;
use parquet::{
    errors::ParquetError,
    file::{
        metadata::{ParquetMetaData, ParquetMetaDataReader},
        reader::{ChunkReader, Length},
    },
};

pub use bucket::Access;
use bucket::Bucket;
use folder::Folder;

use crate::LakeError;

/// How an object store's location begins.
const SCHEME: &str = "s3://";
/// Bytes at the end of an object that are asked for first: most footers fit.
const TAIL: u64 = 64 << 10;

/// One of the two kinds. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Store {
    Folder(Arc<Folder>),
    Bucket(Arc<Bucket>),
}

/// How creating a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Created {
    /// It is there, and it is what was given.
    New,
    /// One was there before; it was left alone.
    There,
}

/// Which writing of a file was seen. A store that replaces by it refuses where another one has written since. On a local disk
/// it says nothing: there, who may replace is settled by a lock that dies with its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub(crate) Option<String>);

impl Store {
    /// The store at `location`: `s3://bucket/prefix`, or a folder. Nothing is asked of it yet.
    pub(crate) fn at(location: &Path, access: impl FnOnce() -> Access) -> Result<Self, LakeError> {
        match location.to_str().and_then(|text| text.strip_prefix(SCHEME)) {
            Some(place) => Ok(Self::Bucket(Arc::new(Bucket::new(place, access())?))),
            None => Ok(Self::Folder(Arc::new(Folder::new(location.to_owned())))),
        }
    }

    /// The folder, or the `s3://` URL.
    pub(crate) fn location(&self) -> &Path {
        match self {
            Self::Folder(folder) => folder.root(),
            Self::Bucket(bucket) => bucket.location(),
        }
    }

    /// Makes the lake ready for writing. A bucket that lets a second writer put over a first one's file is refused.
    pub(crate) fn prepare(&self) -> Result<(), LakeError> {
        match self {
            Self::Folder(folder) => folder.prepare(),
            Self::Bucket(bucket) => bucket.prepare(),
        }
    }

    /// Whether there is a lake at all.
    pub(crate) fn is_there(&self) -> Result<bool, LakeError> {
        match self {
            Self::Folder(folder) => Ok(folder.is_there()),
            Self::Bucket(bucket) => bucket.is_there(),
        }
    }

    /// Creates the file, if there is none.
    pub(crate) fn create(&self, key: &str, bytes: Vec<u8>) -> Result<Created, LakeError> {
        match self {
            Self::Folder(folder) => folder.create(key, &bytes),
            Self::Bucket(bucket) => bucket.create(key, bytes.into()),
        }
    }

    /// Puts the file over whatever is there.
    pub(crate) fn replace(&self, key: &str, bytes: Vec<u8>) -> Result<(), LakeError> {
        match self {
            Self::Folder(folder) => folder.replace(key, &bytes),
            Self::Bucket(bucket) => bucket.replace(key, bytes.into()),
        }
    }

    /// Puts the file over the one of version `over` (none: where there is no file); none where another has been there since.
    pub(crate) fn replace_if(&self, key: &str, bytes: Vec<u8>, over: Option<&Version>) -> Result<Option<Version>, LakeError> {
        match self {
            Self::Folder(folder) => folder.replace(key, &bytes).map(|()| Some(Version(None))),
            Self::Bucket(bucket) => bucket.replace_if(key, bytes.into(), over),
        }
    }

    /// The whole file; none where there is none.
    pub(crate) fn read(&self, key: &str) -> Result<Option<(Bytes, Version)>, LakeError> {
        match self {
            Self::Folder(folder) => Ok(folder.read(key)?.map(|bytes| (bytes.into(), Version(None)))),
            Self::Bucket(bucket) => bucket.read(key),
        }
    }

    /// Bytes of the file and its version; none where there is none.
    pub(crate) fn look(&self, key: &str) -> Result<Option<(u64, Version)>, LakeError> {
        match self {
            Self::Folder(folder) => Ok(folder.size(key)?.map(|size| (size, Version(None)))),
            Self::Bucket(bucket) => bucket.look(key),
        }
    }

    /// Keys below a folder of the lake, sorted. Folders for which `into` says no may be left out.
    pub(crate) fn list(&self, prefix: &str, into: &dyn Fn(&str) -> bool) -> Result<Vec<String>, LakeError> {
        match self {
            Self::Folder(folder) => folder.list(prefix, into),
            Self::Bucket(bucket) => bucket.list(prefix),
        }
    }

    /// Takes the file away; no error where there is none.
    pub(crate) fn remove(&self, key: &str) -> Result<(), LakeError> {
        match self {
            Self::Folder(folder) => folder.remove(key),
            Self::Bucket(bucket) => bucket.remove(key),
        }
    }

    /// A client of its own for the SQL engine, which has threads of its own; none for a folder.
    pub(crate) fn client(&self) -> Result<Option<Arc<dyn ObjectStore>>, LakeError> {
        match self {
            Self::Folder(_) => Ok(None),
            Self::Bucket(bucket) => bucket.client().map(Some),
        }
    }
}

/// Where one file of a lake lies, or would. Cheap to clone; places of one lake are in order of their keys.
#[derive(Clone)]
pub struct Place {
    store: Store,
    key: Arc<str>,
}

impl Place {
    pub(crate) fn new(store: &Store, key: &str) -> Self {
        Self { store: store.clone(), key: key.into() }
    }

    /// Its name below the lake's root, with `/` between the parts.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// For people: the path, or the `s3://` URL.
    pub fn display(&self) -> impl fmt::Display {
        self.location().display().to_string()
    }

    /// Its path on the local disk. Errors: [`LakeError::NoFolder`] in an object store.
    pub fn path(&self) -> Result<PathBuf, LakeError> {
        match &self.store {
            Store::Folder(folder) => Ok(folder.path(&self.key)),
            Store::Bucket(_) => Err(LakeError::NoFolder { lake: self.store.location().to_owned(), what: "the file" }),
        }
    }

    /// Whether the file is there.
    pub fn exists(&self) -> Result<bool, LakeError> {
        Ok(self.store.look(&self.key)?.is_some())
    }

    /// Bytes of the file; none where there is none.
    pub fn size(&self) -> Result<Option<u64>, LakeError> {
        Ok(self.store.look(&self.key)?.map(|(size, _)| size))
    }

    /// Which writing of the file is there; none where there is none.
    pub fn version(&self) -> Result<Option<Version>, LakeError> {
        Ok(self.store.look(&self.key)?.map(|(_, version)| version))
    }

    /// As a path, for errors: a place in a bucket is its URL.
    pub(crate) fn location(&self) -> PathBuf {
        self.store.location().join(&*self.key)
    }

    /// The file, to be read in parts.
    pub(crate) fn input(&self) -> Result<Input, LakeError> {
        match &self.store {
            Store::Folder(folder) => Ok(Input::File(folder.open(&self.key)?)),
            Store::Bucket(bucket) => Ok(Input::Bytes(bucket.bytes(&self.key)?)),
        }
    }

    /// The file's metadata. Of an object only its end is read.
    pub(crate) fn metadata(&self) -> Result<ParquetMetaData, LakeError> {
        let damaged = |source| LakeError::Damaged { path: self.location(), source };
        let bucket = match &self.store {
            Store::Folder(folder) => {
                let file = folder.open(&self.key)?;
                return ParquetMetaDataReader::new().parse_and_finish(&file).map_err(damaged);
            }
            Store::Bucket(bucket) => bucket,
        };
        let mut tail = TAIL;
        loop {
            let (bytes, size) = bucket.tail(&self.key, tail)?;
            let mut reader = ParquetMetaDataReader::new();
            match reader.try_parse_sized(&bytes, size) {
                Ok(()) => return reader.finish().map_err(damaged),
                Err(ParquetError::NeedMoreData(more)) if more as u64 > tail && tail < size => tail = more as u64,
                Err(source) => return Err(damaged(source)),
            }
        }
    }

    fn order(&self) -> (&Path, &str) {
        (self.store.location(), &self.key)
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.location().fmt(f)
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Place {}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.order().hash(state);
    }
}

/// A file that Parquet's readers take: open on disk, or whole in memory.
pub(crate) enum Input {
    File(File),
    Bytes(Bytes),
}

impl Length for Input {
    fn len(&self) -> u64 {
        match self {
            Self::File(file) => file.len(),
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

impl ChunkReader for Input {
    type T = Box<dyn Read>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(match self {
            Self::File(file) => {
                let mut file = file.try_clone()?;
                file.seek(SeekFrom::Start(start))?;
                Box::new(BufReader::new(file))
            }
            Self::Bytes(bytes) => Box::new(bytes.get_read(start)?),
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        match self {
            Self::File(file) => file.get_bytes(start, length),
            Self::Bytes(bytes) => bytes.get_bytes(start, length),
        }
    }
}
