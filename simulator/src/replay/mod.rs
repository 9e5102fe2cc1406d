//! What was recorded elsewhere, played again: job and pod traces as who holds what, request traces as the load of inference, pages
//! as they were.
//!
//! A trace is read once, when the spec is loaded; from there on a plan is a pure function of it like of everything else in the spec.

mod jobs;
pub mod pages;
mod requests;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{plan::Outcome, spec::Span};

/// Traces that a fleet plays, by the files that hold them: paths beside the spec's own.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Replay {
    /// Jobs or pods, in place of what the teams would ask for.
    pub jobs: Option<Jobs>,
    /// Requests: the load of inference, in place of the day's and the week's.
    pub requests: Option<Requests>,
    /// What is in the files, once they are read.
    #[serde(skip)]
    pub(crate) read: Option<Arc<Traces>>,
}

/// A trace of jobs.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jobs {
    /// Whose form it has.
    pub form: JobForm,
    /// The file.
    pub file: PathBuf,
    /// How far into the trace the fleet begins; jobs of before are passed over.
    pub from: Option<Span>,
}

/// Forms of job traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobForm {
    /// `job_id,vc,start_unix,end_unix,duration_s,num_gpus`.
    PhillyJobs,
    /// `name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,scheduled_time,deletion_time`.
    OpenbPods,
}

/// A trace of requests.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Requests {
    /// Whose form it has.
    pub form: RequestForm,
    /// The file.
    pub file: PathBuf,
}

/// Forms of request traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RequestForm {
    /// `TIMESTAMP,ContextTokens,GeneratedTokens`, a line a request.
    #[serde(rename = "azure-llm-2023")]
    AzureLlm2023,
    /// `client,window_start_s,rate_per_s,...`, a line a client and window.
    ServegenArrivals,
}

/// Why a trace cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file cannot be read.
    #[error("{key}: cannot read {}; paths are beside the spec's own", path.display())]
    Read {
        /// The key that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        err: csv::Error,
    },
    /// No file, or a larger one than is read.
    #[error("{key}: {} is no file of at most {MAX_BYTES} bytes; cut out the part that is to be played", path.display())]
    Size {
        /// The key that names it.
        key: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// A line that is not of the form.
    #[error("{key}: {}, line {line}: {what}", path.display())]
    Line {
        /// The key that names the file.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// 1-based.
        line: u64,
        /// What is wrong.
        what: String,
    },
    /// Nothing to play.
    #[error("{key}: {} has nothing that could be played{why}", path.display())]
    Empty {
        /// The key that names the file.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What was looked for.
        why: &'static str,
    },
}

/// One job of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// When it was asked for, ms after the beginning of the trace's first day.
    pub at_ms: i64,
    pub duration_ms: i64,
    pub gpus: u32,
    /// What it asked of one GPU, thousandths; 1000 where it has whole ones.
    pub milli: u32,
    /// Whose it is: team and namespace.
    pub team: Arc<str>,
    pub name: Arc<str>,
    pub outcome: Outcome,
    /// It serves.
    pub serves: bool,
}

/// What the files say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Traces {
    pub jobs: Vec<Job>,
    /// Load by [`LOAD_STEP_MS`], permille of the peak.
    pub load_pm: Vec<i64>,
}

/// Largest trace that is read (chosen: the whole Philly trace is a tenth of it).
const MAX_BYTES: u64 = 256 << 20;

/// Length of one step of a replayed load.
pub(crate) const LOAD_STEP_MS: i64 = 60_000;

impl Replay {
    /// Reads the files; `folder` is the spec's own.
    pub(crate) fn load(&mut self, folder: &Path) -> Result<(), ReplayError> {
        let mut traces = Traces::default();
        if let Some(Jobs { form, file, from }) = &self.jobs {
            traces.jobs = jobs::read(*form, &folder.join(file), from.map_or(0, Span::ms))?;
        }
        if let Some(Requests { form, file }) = &self.requests {
            traces.load_pm = requests::read(*form, &folder.join(file))?;
        }
        self.read = Some(Arc::new(traces));
        Ok(())
    }

    /// Jobs to be played; none where the teams ask by themselves.
    pub(crate) fn played(&self) -> Option<&[Job]> {
        self.jobs.as_ref()?;
        self.read.as_ref().map(|read| read.jobs.as_slice())
    }
}

impl Traces {
    /// The load `since_ms` after the fleet's start, permille of the peak; the trace begins anew where it ends.
    pub fn load_pm(&self, since_ms: i64) -> Option<i64> {
        let steps = i64::try_from(self.load_pm.len()).ok().filter(|steps| *steps > 0)?;
        Some(self.load_pm[since_ms.div_euclid(LOAD_STEP_MS).rem_euclid(steps) as usize])
    }
}

/// Cells of a CSV file's lines by the names of its columns, with the line's number.
struct Lines {
    key: &'static str,
    path: PathBuf,
    reader: csv::Reader<std::fs::File>,
    columns: Vec<usize>,
}

impl Lines {
    fn open(key: &'static str, path: &Path, columns: &[&str]) -> Result<Self, ReplayError> {
        let failed = |err| ReplayError::Read { key, path: path.to_owned(), err };
        let found = std::fs::metadata(path).map_err(|err| failed(err.into()))?;
        if !found.is_file() || found.len() > MAX_BYTES {
            return Err(ReplayError::Size { key, path: path.to_owned() });
        }
        let mut reader = csv::Reader::from_path(path).map_err(failed)?;
        let header = reader.headers().map_err(failed)?;
        let place = |name: &&str| {
            let what = || format!("no column `{name}`; is it of another form?");
            let found = header.iter().position(|cell| cell.trim() == *name);
            found.ok_or_else(|| ReplayError::Line { key, path: path.to_owned(), line: 1, what: what() })
        };
        let columns = columns.iter().map(place).collect::<Result<_, _>>()?;
        Ok(Self { key, path: path.to_owned(), reader, columns })
    }

    /// Hands over every line; what `each` says of one becomes the error.
    fn each(mut self, mut each: impl FnMut(&[&str]) -> Result<(), String>) -> Result<(), ReplayError> {
        let mut record = csv::StringRecord::new();
        while self.reader.read_record(&mut record).map_err(|err| ReplayError::Read {
            key: self.key,
            path: self.path.clone(),
            err,
        })? {
            let cells: Vec<&str> = self.columns.iter().map(|column| record.get(*column).unwrap_or_default().trim()).collect();
            let line = record.position().map_or(0, csv::Position::line);
            each(&cells).map_err(|what| ReplayError::Line { key: self.key, path: self.path.clone(), line, what })?;
        }
        Ok(())
    }
}

/// A number of a cell, of `[low, high]`.
fn number(name: &str, cell: &str, low: i64, high: i64) -> Result<i64, String> {
    match cell.parse::<i64>() {
        Ok(number) if (low..=high).contains(&number) => Ok(number),
        _ => Err(format!("{name} `{}` is no whole number between {low} and {high}", cell.escape_debug())),
    }
}
