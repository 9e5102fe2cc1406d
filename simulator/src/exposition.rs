//! Which readings pages print, and under which names: the exporter's built-in collectors, or those of a file that the spec names.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use exporter::{Collectors, CollectorsError};
use schemas::catalogue::{self, Field};

use crate::replay::ReplayError;

/// Longest collectors file that is read (chosen: DCGM has some 200 fields, a line each).
const MAX_BYTES: u64 = 1 << 20;

/// Why a file that a spec names cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A trace.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The collectors file cannot be read.
    #[error("exposition.collectors: cannot read {}; paths are beside the spec's own", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        err: io::Error,
    },
    /// It is no collectors file.
    #[error("exposition.collectors: {} is longer than {MAX_BYTES} bytes; name a file with a field a line", .0.display())]
    TooLong(PathBuf),
    /// One of its lines is wrong.
    #[error("exposition.collectors: {}", path.display())]
    Collectors {
        /// The file.
        path: PathBuf,
        /// Which line, and what is wrong with it.
        #[source]
        err: CollectorsError,
    },
    /// It prints nothing.
    #[error("exposition.collectors: {} names no field that is printed; write lines of `field, type, help`", .0.display())]
    Empty(PathBuf),
}

/// Reads a collectors file.
pub(crate) fn read(path: &Path) -> Result<Collectors, LoadError> {
    let failed = |err| LoadError::Read { path: path.to_owned(), err };
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text)).map_err(failed)?;
    if read as u64 > MAX_BYTES {
        return Err(LoadError::TooLong(path.to_owned()));
    }
    let collectors = Collectors::parse(&text).map_err(|err| LoadError::Collectors { path: path.to_owned(), err })?;
    if collectors.families().is_empty() { Err(LoadError::Empty(path.to_owned())) } else { Ok(collectors) }
}

/// The collectors of a plan, ready to be asked for one field.
#[derive(Debug)]
pub(crate) struct Printed {
    pub collectors: Arc<Collectors>,
    /// By field id, with the number of its family.
    fields: Vec<Option<(usize, &'static Field)>>,
}

impl Printed {
    pub fn new(collectors: Arc<Collectors>) -> Self {
        let mut fields = Vec::new();
        let known = collectors.families().iter().enumerate().filter_map(|(at, of)| Some((at, catalogue::by_id(of.field)?)));
        for (family, field, id) in known.filter_map(|(family, field)| Some((family, field, usize::from(field.id?)))) {
            if fields.len() <= id {
                fields.resize(id + 1, None);
            }
            fields[id] = Some((family, field));
        }
        Self { collectors, fields }
    }

    /// What the catalogue says of a field, where pages print it.
    pub fn field(&self, id: u16) -> Option<&'static Field> {
        self.family(id).map(|(_, field)| field)
    }

    /// The same, behind which of the families it is.
    pub fn family(&self, id: u16) -> Option<(usize, &'static Field)> {
        self.fields.get(usize::from(id)).copied().flatten()
    }
}
