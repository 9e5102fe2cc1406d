//! The commands, and what they have in common: times and windows, the lake, output formats, and the configuration file.

pub mod check;
pub mod conformance;
pub mod demo;
pub mod hours;
pub mod import;
pub mod money;
pub mod parse;
pub mod progress;
pub mod report;
pub mod sql;
pub mod why;

use std::{
    ffi::OsString,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::{Args, Command, ValueEnum};
use lake::Lake;
use query::show::Format;
use schemas::{Timestamp, Window, calendar::Zone};

use crate::failure::Failure;

/// Which lake.
#[derive(Debug, Clone, Args)]
pub struct LakeOption {
    /// The lake: a folder, or s3://BUCKET/PREFIX
    #[arg(long, env = "STRANDLINE_LAKE", value_name = "DIR")]
    pub lake: PathBuf,
}

impl LakeOption {
    /// Opens it.
    pub fn open(&self) -> Result<Lake, Failure> {
        Lake::open(&self.lake).map_err(Failure::failed)
    }
}

/// Which part of time.
#[derive(Debug, Clone, Default, Args)]
pub struct WindowOption {
    /// First instant: RFC 3339 (2026-03-02T10:00:00Z) or a date (2026-03-02, in UTC where no other zone is given)
    #[arg(long, env = "STRANDLINE_FROM", value_name = "TIME", value_parser = bound)]
    pub from: Option<Bound>,
    /// First instant after the last
    #[arg(long, env = "STRANDLINE_TO", value_name = "TIME", value_parser = bound)]
    pub to: Option<Bound>,
}

/// One end of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// An instant.
    At(Timestamp),
    /// The beginning of a local date.
    Date(String),
}

impl WindowOption {
    /// The window, dates in UTC, open ends filled in with the ends of time; none where neither is given.
    pub fn window(&self) -> Result<Option<Window>, Failure> {
        self.in_zone(&Zone::parse("UTC").map_err(|error| Failure::usage(error.to_string()))?)
    }

    /// The window, dates in `zone`.
    pub fn in_zone(&self, zone: &Zone) -> Result<Option<Window>, Failure> {
        if self.from.is_none() && self.to.is_none() {
            return Ok(None);
        }
        let instant = |bound: &Option<Bound>| match bound {
            None => Ok(None),
            Some(Bound::At(at)) => Ok(Some(*at)),
            Some(Bound::Date(date)) => zone.day(date).map(Some).map_err(|error| Failure::usage(error.to_string())),
        };
        // Ends of time on full hours, and far enough from the type's ends that an hour more does not overflow.
        let (first, last) = (Timestamp::from_ms(0), Timestamp::from_ms(253_402_300_800_000));
        let window = Window::new(instant(&self.from)?.unwrap_or(first), instant(&self.to)?.unwrap_or(last));
        window.map(Some).map_err(|error| Failure::usage(error.to_string()))
    }
}

/// Reads an end of a window.
pub fn bound(text: &str) -> Result<Bound, String> {
    let at = time(text)?;
    Ok(if text.len() == 10 { Bound::Date(text.to_owned()) } else { Bound::At(at) })
}

/// Reads a time of the command line.
pub fn time(text: &str) -> Result<Timestamp, String> {
    let whole = if text.len() == 10 && text.bytes().filter(|b| *b == b'-').count() == 2 {
        format!("{text}T00:00:00Z")
    } else {
        text.to_owned()
    };
    whole.parse::<Timestamp>().map_err(|error| error.to_string())
}

/// How rows are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatOption {
    /// For people
    Table,
    /// One object a line
    Json,
    /// With a header
    Csv,
}

impl From<FormatOption> for Format {
    fn from(option: FormatOption) -> Self {
        match option {
            FormatOption::Table => Self::Table,
            FormatOption::Json => Self::Json,
            FormatOption::Csv => Self::Csv,
        }
    }
}

/// A runtime for the commands that wait for something.
pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)
}

/// Reads a file of at most `limit` bytes. What is no regular file (a pipe, a device) may be read too, up to there.
pub fn read_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = fs::File::open(path)?;
    let too_large = || io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than {} MiB", limit >> 20));
    if file.metadata()?.len() > limit {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(too_large()) } else { Ok(bytes) }
}

/// Turns `--config FILE` into options in front of those of the command line, so that the latter win.
///
/// The file is YAML: keys are long options of the command (`lake`, `by`, ...), values their texts; a list repeats the option.
/// An option that the command does not have is refused like one on the command line, with the nearest known one.
/// An option whose variable is set in the environment is left to it.
pub fn configured(arguments: impl IntoIterator<Item = OsString>, commands: &Command) -> Result<Vec<OsString>, Failure> {
    let mut given: Vec<OsString> = arguments.into_iter().collect();
    // After `--` nothing is an option.
    let options = given.iter().position(|a| a == "--").unwrap_or(given.len());
    let is_config = |a: &OsString| a == "--config" || a.to_string_lossy().starts_with("--config=");
    let Some(at) = given[..options].iter().position(is_config) else {
        return Ok(given);
    };
    let flag = given.remove(at).to_string_lossy().into_owned();
    let path = match flag.strip_prefix("--config=") {
        Some(path) => PathBuf::from(path),
        None if at < given.len() => PathBuf::from(given.remove(at)),
        None => return Err(Failure::usage("--config needs the path of a YAML file")),
    };
    let text = fs::read_to_string(&path).map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    let bad = |what: String| Failure::usage(format!("{}: {what}", path.display()));
    let keys: serde_yaml_ng::Mapping = serde_yaml_ng::from_str(&text).map_err(|error| bad(error.to_string()))?;
    // Options go after the names of the command and of its subcommand (`import allocations`).
    let (mut command, mut place) = (commands, 1.min(given.len()));
    while let Some(inner) = given.get(place).and_then(|name| command.find_subcommand(name)) {
        (command, place) = (inner, place + 1);
    }
    let mut from_file = Vec::new();
    for (key, value) in keys {
        let key = key.as_str().ok_or_else(|| bad("a key is no text".into()))?.to_owned();
        let known: Vec<String> = command.get_arguments().filter_map(|a| a.get_long()).map(str::to_owned).collect();
        if !known.contains(&key.replace('_', "-")) {
            let nearest = known.iter().min_by_key(|word| strsim::damerau_levenshtein(word, &key));
            let nearest = nearest.map_or(String::new(), |word| format!("; did you mean `--{word}`?"));
            return Err(bad(format!("`--{key}` is no option of `{}`{nearest}", command.get_name())));
        }
        let option = format!("--{}", key.replace('_', "-"));
        let variable = format!("STRANDLINE_{}", key.replace('-', "_").to_uppercase());
        let on_line = given.iter().any(|a| *a == *option || a.to_string_lossy().starts_with(&format!("{option}=")));
        if std::env::var_os(variable).is_some() || on_line {
            continue;
        }
        let values = match value {
            serde_yaml_ng::Value::Sequence(values) => values,
            one => vec![one],
        };
        for value in values {
            match value {
                serde_yaml_ng::Value::Bool(true) => from_file.push(OsString::from(&option)),
                serde_yaml_ng::Value::Bool(false) => {}
                serde_yaml_ng::Value::String(text) => from_file.push(format!("{option}={text}").into()),
                serde_yaml_ng::Value::Number(number) => from_file.push(format!("{option}={number}").into()),
                _ => return Err(bad(format!("`{key}` must be a text, a number, true, false or a list of these"))),
            }
        }
    }
    given.splice(place..place, from_file);
    Ok(given)
}
