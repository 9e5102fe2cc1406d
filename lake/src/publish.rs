//! Putting a file where readers see it: whole or not at all, and known to be on disk before anyone is told.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use arrow::array::RecordBatch;
use schemas::tables::Table;

use crate::{ClosedKey, Footer, HotKey, Lake, LakeError, encode, read};

/// How publishing a hot file ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// The file is there, and it is ours.
    New,
    /// The same bytes of the same writer were there: our own try whose answer was lost.
    AlreadyMine,
    /// Another writer holds this offset: drop the buffer, read the head anew (D2).
    Taken,
}

impl Lake {
    /// Publishes the rows of one offset interval, create-if-absent. Sets the footer's offsets from `key` and the caller's `end`.
    ///
    /// Never overwrites and never picks another name. On [`Published::New`] the file and its folder entry are on disk.
    pub fn publish_hot(
        &self,
        table: &'static Table,
        key: &HotKey,
        batches: &[RecordBatch],
        mut footer: Footer,
    ) -> Result<Published, LakeError> {
        footer.start = Some(key.start);
        let bytes = encode::file(table, batches, &mut footer)?;
        let path = self.root.join(key.path(table));
        make_dirs(&self.root.join(key.folder(table)))?;
        let scratch = write_scratch(&path, &bytes)?;
        let linked = fs::hard_link(&scratch, &path);
        let removed = fs::remove_file(&scratch);
        match linked {
            Ok(()) => {
                removed.map_err(LakeError::io("remove", &scratch))?;
                sync_folder(&path)?;
                Ok(Published::New)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let theirs = read::footer(&path)?;
                let mine = theirs.writer_epoch == footer.writer_epoch
                    && theirs.content_hash == footer.content_hash
                    && theirs.end == footer.end;
                // The link may have been made by a run that died before it synced the folder.
                sync_folder(&path)?;
                Ok(if mine { Published::AlreadyMine } else { Published::Taken })
            }
            Err(error) => Err(LakeError::io("publish", &path)(error)),
        }
    }

    /// Publishes one file of a closed hour over whatever was there. Returns its path.
    pub fn publish_closed(
        &self,
        table: &'static Table,
        key: ClosedKey,
        batches: &[RecordBatch],
        mut footer: Footer,
    ) -> Result<PathBuf, LakeError> {
        let bytes = encode::file(table, batches, &mut footer)?;
        let path = self.root.join(key.path(table));
        make_dirs(&self.root.join(key.folder(table)))?;
        replace(&path, &bytes)?;
        Ok(path)
    }

    /// Takes one file of a closed hour away, where new inputs leave it without rows. No error where it is not there.
    pub fn remove_closed(&self, table: &'static Table, key: ClosedKey) -> Result<(), LakeError> {
        let path = self.root.join(key.path(table));
        match fs::remove_file(&path) {
            Ok(()) => sync_folder(&path),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(LakeError::io("remove", &path)(error)),
        }
    }
}

/// Replaces the file at `path` by `bytes`, atomically and durably.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), LakeError> {
    let scratch = write_scratch(path, bytes)?;
    if let Err(error) = fs::rename(&scratch, path) {
        let _ = fs::remove_file(&scratch);
        return Err(LakeError::io("publish", path)(error));
    }
    sync_folder(path)
}

/// Makes `folder` and its parents, and syncs each new entry.
pub(crate) fn make_dirs(folder: &Path) -> Result<(), LakeError> {
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
