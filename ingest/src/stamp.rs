//! Files that are read again where they have changed.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What tells a file from what it was before: its place on disk, the time it was written, its length. A link stands for what
/// it points at, so that a mounted secret whose link is turned is a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp([i128; 5]);

impl Stamp {
    /// The stamp of the file as it is now.
    pub fn of(path: &Path) -> io::Result<Self> {
        let of = std::fs::metadata(path)?;
        Ok(Stamp([of.dev().into(), of.ino().into(), of.mtime().into(), of.mtime_nsec().into(), of.len().into()]))
    }
}

/// The bytes of a file. Errors: also where it is longer than `limit`.
pub(crate) fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {limit} bytes")));
    }
    Ok(bytes)
}
