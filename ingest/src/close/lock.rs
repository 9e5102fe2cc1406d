//! One process at a time closes hours of a lake: a lock on a file of the lake, which also says who closed last.

use super::CloseError;
use lake::Lake;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for another process.
const WAIT: Duration = Duration::from_secs(60);

/// The right to close hours. It goes when this is dropped, also by `kill -9`.
pub(super) struct Lock {
    file: File,
    path: PathBuf,
    /// Epoch of the closer that had it last.
    last: String,
}

impl Lock {
    /// Waits for it, but not for ever.
    pub(super) fn take(lake: &Lake) -> Result<Lock, CloseError> {
        let path = lake.root().join("_state/closing.lock");
        let failed = |source| CloseError::Lock { path: path.clone(), source };
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if began.elapsed() < WAIT => std::thread::sleep(Duration::from_millis(20)),
                Err(TryLockError::WouldBlock) => {
                    return Err(CloseError::Busy { lake: lake.root().to_owned(), wait: WAIT });
                }
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
        }
        let mut last = String::new();
        // Not text: nobody's.
        let _ = file.read_to_string(&mut last);
        Ok(Lock { file, path, last })
    }

    /// Whether the closer of `epoch` had it last.
    pub(super) fn was(&self, epoch: &str) -> bool {
        self.last == epoch
    }

    /// Says that it has it now.
    pub(super) fn is_now(&mut self, epoch: &str) -> Result<(), CloseError> {
        let mut write = || {
            self.file.rewind()?;
            self.file.set_len(0)?;
            self.file.write_all(epoch.as_bytes())
        };
        write().map_err(|source| CloseError::Lock { path: self.path.clone(), source })
    }
}
