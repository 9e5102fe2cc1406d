//! A cursor into JSON text that knows where it is, so that an error names the field, and that gives numbers as
//! printed, never as the nearest double.

use std::{collections::BTreeMap, fmt};

use schemas::{Timestamp, time::EmptyWindow};
use serde_json::value::RawValue;

use crate::{HoursError, money::MoneyError};

/// Why a case has no account.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// Not JSON.
    #[error("the case is not JSON")]
    Json(#[source] serde_json::Error),
    /// A field that is missing or holds something else than it should.
    #[error("{field}: {wanted}, and it is {found}")]
    Field {
        /// Which, as a path from the top.
        field: String,
        /// What belongs there.
        wanted: &'static str,
        /// What is there.
        found: String,
    },
    /// A window that holds no time.
    #[error(transparent)]
    EmptyWindow(#[from] EmptyWindow),
    /// A world that the rules refuse.
    #[error(transparent)]
    Refused(HoursError),
    /// A window that is not priced.
    #[error(transparent)]
    NotPriced(#[from] MoneyError),
}

impl CaseError {
    /// The fixed word of each refusal; `bad_input` for what cannot be read at all.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Json(_) | Self::Field { .. } => "bad_input",
            Self::EmptyWindow(_) => "empty_window",
            Self::Refused(err) => err.code(),
            Self::NotPriced(err) => err.code(),
        }
    }
}

/// Where a value is.
#[derive(Clone, Copy)]
enum Path<'p> {
    Top,
    Key(&'p Path<'p>, &'p str),
    Item(&'p Path<'p>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Top => Ok(()),
            Self::Key(Self::Top, key) => f.write_str(key),
            Self::Key(above, key) => write!(f, "{above}.{key}"),
            Self::Item(above, at) => write!(f, "{above}[{at}]"),
        }
    }
}

/// One value of the text; none where the key is absent.
#[derive(Clone, Copy)]
pub(crate) struct Json<'t, 'p> {
    raw: Option<&'t RawValue>,
    path: Path<'p>,
}

/// The keys of one object.
pub(crate) struct Object<'t, 'p> {
    keys: BTreeMap<String, &'t RawValue>,
    path: Path<'p>,
}

impl<'t> Json<'t, 'static> {
    pub(crate) fn top(raw: &'t RawValue) -> Self {
        Self { raw: Some(raw), path: Path::Top }
    }
}

impl<'t, 'p> Json<'t, 'p> {
    /// None where it is absent or null.
    pub(crate) fn given(self) -> Option<Self> {
        self.raw.filter(|raw| raw.get() != "null").map(|_| self)
    }

    fn parsed<T: serde::Deserialize<'t>>(self, wanted: &'static str) -> Result<T, CaseError> {
        self.raw.and_then(|raw| serde_json::from_str(raw.get()).ok()).ok_or_else(|| self.not(wanted))
    }

    /// The error that this is not what it should be.
    pub(crate) fn not(self, wanted: &'static str) -> CaseError {
        let found = self.raw.map_or("absent", |raw| raw.get());
        let found =
            if found.len() > 60 { format!("{}...", found.chars().take(60).collect::<String>()) } else { found.to_owned() };
        CaseError::Field { field: self.path.to_string(), wanted, found }
    }

    pub(crate) fn object(self) -> Result<Object<'t, 'p>, CaseError> {
        Ok(Object { keys: self.parsed("an object belongs here")?, path: self.path })
    }

    pub(crate) fn text(self) -> Result<String, CaseError> {
        self.parsed("a text belongs here")
    }

    pub(crate) fn int(self) -> Result<i64, CaseError> {
        self.parsed("a whole number belongs here")
    }

    pub(crate) fn count(self) -> Result<u32, CaseError> {
        self.parsed("a whole number, 0 or above and below 2^32, belongs here")
    }

    pub(crate) fn time(self) -> Result<Timestamp, CaseError> {
        let wanted = "an RFC 3339 time such as 2026-03-02T10:00:00.000Z belongs here";
        self.parsed::<String>(wanted)?.parse().map_err(|_| self.not(wanted))
    }

    /// A number as printed, or the text of a string.
    pub(crate) fn number_text(self) -> Result<String, CaseError> {
        match self.raw.map(RawValue::get) {
            Some(raw) if raw.starts_with('"') => self.text(),
            Some(raw) if raw.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => Ok(raw.to_owned()),
            _ => Err(self.not("a number, \"NaN\", \"+Inf\" or \"-Inf\" belongs here")),
        }
    }

    /// Each item of a list, read by `item`; an absent list has none.
    pub(crate) fn each<T>(self, mut item: impl FnMut(Json<'t, '_>) -> Result<T, CaseError>) -> Result<Vec<T>, CaseError> {
        let Some(given) = self.given() else { return Ok(Vec::new()) };
        let items: Vec<&'t RawValue> = given.parsed("a list belongs here")?;
        items.into_iter().enumerate().map(|(at, raw)| item(Json { raw: Some(raw), path: Path::Item(&self.path, at) })).collect()
    }
}

impl<'t> Object<'t, '_> {
    /// The value of a key, which may be absent.
    pub(crate) fn get<'s>(&'s self, key: &'s str) -> Json<'t, 's> {
        Json { raw: self.keys.get(key).copied(), path: Path::Key(&self.path, key) }
    }
}
