//! A lake on the local disk: what is created is linked into place, what is replaced is renamed over, and both are known to be on
//! disk before anyone is told.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::Created;
use crate::LakeError;

/// File that says that here is a lake: a disk that is not mounted leaves an empty folder where the lake was.
const MARK: &str = "_state/lake";

/// The lake's root.
pub(crate) struct Folder {
    root: PathBuf,
    /// Whether the mark was there; from then on nothing is written where it is not.
    marked: AtomicBool,
}

impl Folder {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root, marked: AtomicBool::new(false) }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path(&self, key: &str) -> PathBuf {
        self.root.join(key)
    }

    pub(super) fn prepare(&self) -> Result<(), LakeError> {
        make_dirs(&self.root)?;
        if !self.path(MARK).exists() {
            self.create(MARK, b"a lake of strandline: hour rows and samples of GPUs, in Parquet\n")?;
        }
        self.marked.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn is_there(&self) -> bool {
        self.marked.fetch_or(self.path(MARK).exists(), Ordering::Relaxed);
        self.root.is_dir()
    }

    pub(super) fn create(&self, key: &str, bytes: &[u8]) -> Result<Created, LakeError> {
        let path = self.place(key)?;
        let scratch = write_scratch(&path, bytes)?;
        let linked = fs::hard_link(&scratch, &path);
        let removed = fs::remove_file(&scratch);
        match linked {
            Ok(()) => {
                removed.map_err(LakeError::io("remove", &scratch))?;
                sync_folder(&path)?;
                Ok(Created::New)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // The link may have been made by a run that died before it synced the folder.
                sync_folder(&path)?;
                Ok(Created::There)
            }
            Err(error) => Err(LakeError::io("publish", &path)(error)),
        }
    }

    pub(super) fn replace(&self, key: &str, bytes: &[u8]) -> Result<(), LakeError> {
        let path = self.place(key)?;
        let scratch = write_scratch(&path, bytes)?;
        if let Err(error) = fs::rename(&scratch, &path) {
            let _ = fs::remove_file(&scratch);
            return Err(LakeError::io("publish", &path)(error));
        }
        sync_folder(&path)
    }

    pub(super) fn read(&self, key: &str) -> Result<Option<Vec<u8>>, LakeError> {
        let path = self.path(key);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(LakeError::io("read", &path)(error)),
        }
    }

    pub(super) fn open(&self, key: &str) -> Result<File, LakeError> {
        let path = self.path(key);
        File::open(&path).map_err(LakeError::io("open", &path))
    }

    pub(super) fn size(&self, key: &str) -> Result<Option<u64>, LakeError> {
        let path = self.path(key);
        match fs::metadata(&path) {
            Ok(found) => Ok(Some(found.len())),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(LakeError::io("look at", &path)(error)),
        }
    }

    pub(super) fn remove(&self, key: &str) -> Result<(), LakeError> {
        let path = self.path(key);
        match fs::remove_file(&path) {
            Ok(()) => sync_folder(&path),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(LakeError::io("remove", &path)(error)),
        }
    }

    /// Files below a folder. A folder that is named like a Parquet file is told too, with `/` behind: globs would take it for one.
    pub(super) fn list(&self, prefix: &str, into: &dyn Fn(&str) -> bool) -> Result<Vec<String>, LakeError> {
        let mut keys = Vec::new();
        let mut folders = vec![prefix.to_owned()];
        while let Some(folder) = folders.pop() {
            let path = self.path(&folder);
            let listing = match fs::read_dir(&path) {
                Ok(listing) => listing,
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
                Err(error) => return Err(LakeError::io("list", &path)(error)),
            };
            for entry in listing {
                let entry = entry.map_err(LakeError::io("list", &path))?;
                let Ok(name) = entry.file_name().into_string() else { continue };
                let key = format!("{folder}/{name}");
                let kind = entry.file_type().map_err(LakeError::io("list", &path))?;
                // A link may lead to a folder on another disk.
                if !(kind.is_dir() || kind.is_symlink() && entry.path().is_dir()) {
                    keys.push(key);
                } else if name.ends_with(".parquet") {
                    keys.push(key + "/");
                } else if into(&key) {
                    folders.push(key);
                }
            }
        }
        keys.sort();
        Ok(keys)
    }

    /// The path of a file that is about to be written, with its folder made.
    pub(crate) fn place(&self, key: &str) -> Result<PathBuf, LakeError> {
        if self.marked.load(Ordering::Relaxed) && !self.path(MARK).exists() {
            return Err(LakeError::Gone(self.root.clone()));
        }
        let path = self.path(key);
        if let Some(folder) = path.parent() {
            make_dirs(folder)?;
        }
        Ok(path)
    }
}

/// Makes `folder` and its parents, and syncs each new entry.
fn make_dirs(folder: &Path) -> Result<(), LakeError> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(parent) = folder.parent().filter(|p| !p.as_os_str().is_empty()) {
        make_dirs(parent)?;
    }
    match fs::create_dir(folder) {
        Ok(()) => sync_folder(folder),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        Err(error) => Err(LakeError::io("make the folder", folder)(error)),
    }
}

/// Writes and syncs a file beside `path` that no glob of ours matches.
fn write_scratch(path: &Path, bytes: &[u8]) -> Result<PathBuf, LakeError> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let scratch = path.with_file_name(format!(".{name}.{}-{count}.tmp", std::process::id()));
    let written = File::create(&scratch).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(error) = written {
        let _ = fs::remove_file(&scratch);
        return Err(LakeError::io("write", &scratch)(error));
    }
    Ok(scratch)
}

fn sync_folder(entry: &Path) -> Result<(), LakeError> {
    let folder = entry.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|file| file.sync_all()).map_err(LakeError::io("sync the folder", folder))
}
