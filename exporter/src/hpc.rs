//! Jobs of a batch system: a folder with a file for each GPU (`0`) or GPU instance (`0.7`), one job a line, as dcgm-exporter reads it.

use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Most files, longest file and longest job id, bytes, and most jobs of a file.
const MOST_FILES: usize = 1024;
const MAX_FILE: u64 = 64 << 10;
const MAX_JOB: usize = 256;
const MOST_JOBS: usize = 256;
/// The folder is read anew after this long.
const AGE: Duration = Duration::from_secs(1);

/// A GPU, or an instance of one, by DCGM's index and GPU instance id.
type Key = (u32, Option<u32>);

/// The folder, and what it said last.
#[derive(Debug)]
pub struct Jobs {
    folder: PathBuf,
    read: Mutex<(Option<Instant>, Folder)>,
}

/// What a folder says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folder {
    /// Jobs by device, in order of their lines.
    pub jobs: BTreeMap<Key, Vec<String>>,
    /// Files that are none of a device or too large, and lines that are too long.
    pub refused: u64,
    /// Whether the folder could be read.
    pub readable: bool,
}

impl Jobs {
    /// The jobs of `folder`.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, read: Mutex::default() }
    }

    /// What the folder says, not older than a second.
    pub fn now(&self) -> Folder {
        self.with(Folder::clone)
    }

    fn with<T>(&self, look: impl FnOnce(&Folder) -> T) -> T {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.0.is_none_or(|at| at.elapsed() >= AGE) {
            *read = (Some(Instant::now()), Folder::read(&self.folder));
        }
        look(&read.1)
    }

    /// Jobs of a device.
    pub fn of(&self, gpu: u32, gi: Option<u32>) -> Vec<String> {
        self.with(|folder| folder.jobs.get(&(gpu, gi)).cloned().unwrap_or_default())
    }
}

impl Folder {
    /// Reads a folder. What is refused is counted; the rest is kept.
    pub fn read(folder: &Path) -> Self {
        let mut found = Self::default();
        let Ok(entries) = std::fs::read_dir(folder) else { return found };
        found.readable = true;
        for entry in entries.flatten().take(MOST_FILES) {
            let name = entry.file_name();
            let key = name.to_str().and_then(key);
            match key.and_then(|key| Some((key, jobs(&entry.path())?))) {
                Some((key, (jobs, refused))) => {
                    found.refused += refused;
                    if !jobs.is_empty() {
                        found.jobs.insert(key, jobs);
                    }
                }
                None => found.refused += 1,
            }
        }
        found
    }
}

fn key(name: &str) -> Option<Key> {
    // One spelling of a number, so that no two files are one device.
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| number.to_string() == text);
    match name.split_once('.') {
        None => Some((number(name)?, None)),
        Some((gpu, gi)) => Some((number(gpu)?, Some(number(gi)?))),
    }
}

/// Jobs of a file, and lines that were refused; none where it cannot be read. An empty line is no job.
fn jobs(path: &Path) -> Option<(Vec<String>, u64)> {
    if !path.metadata().ok()?.is_file() {
        return None; // a pipe would hold us up
    }
    let mut text = String::new();
    let length = std::fs::File::open(path).ok()?.take(MAX_FILE + 1).read_to_string(&mut text).ok()?;
    if length as u64 > MAX_FILE {
        return None;
    }
    let (mut jobs, mut refused) = (Vec::new(), 0);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.len() > MAX_JOB || jobs.len() == MOST_JOBS {
            refused += 1;
        } else if !jobs.iter().any(|job| job == line) {
            jobs.push(line.to_owned());
        }
    }
    Some((jobs, refused))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_are_devices_and_lines_are_jobs() {
        let folder = std::env::temp_dir().join(format!("exporter-jobs-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("7")).unwrap();
        for (name, text) in [
            ("0", "job-1\n\njob-2\njob-1\n".to_owned()),
            ("1.3", "job-3".to_owned()),
            ("2", String::new()),
            ("readme.txt", "x".to_owned()),
            ("3", "x".repeat(70_000)),
            ("4", format!("{}\nshort\n", "y".repeat(300))),
        ] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let found = Folder::read(&folder);
        let of = |gpu, gi| found.jobs.get(&(gpu, gi)).cloned().unwrap_or_default();
        assert_eq!(of(0, None), ["job-1", "job-2"]);
        assert_eq!((of(1, Some(3)), of(4, None)), (vec!["job-3".to_owned()], vec!["short".to_owned()]));
        assert_eq!((found.jobs.len(), found.refused, found.readable), (3, 4, true), "a folder, a name, a size, a line");
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(!Folder::read(&folder).readable);
    }
}
