//! A small world as JSON text, and its account: the form of the conformance vectors.
//!
//! ```text
//! JSON ──read──> inputs, window ──hours──> rows ──account──> JSON in the shape of `expect`
//! ```

use schemas::Window;

use crate::{
    HoursError, hours,
    input::{Inputs, Text},
};

mod account;
pub(crate) mod json;
mod read;

pub use json::CaseError;

/// A case as read.
#[derive(Debug)]
pub struct Case {
    /// What to compute from.
    pub inputs: Inputs,
    /// Over which time.
    pub window: Window,
}

/// Reads one case. Keys that it does not know are no input.
pub fn read(text: &str) -> Result<Case, CaseError> {
    read::case(text)
}

/// The account of one case, in the shape of the vectors' `expect`: every key there, every number an integer.
pub fn run_case(text: &str) -> Result<serde_json::Value, CaseError> {
    let case = read(text)?;
    let rows = hours(&case.inputs, case.window)?;
    Ok(account::of(&case.inputs.devices, &rows))
}

impl From<HoursError> for CaseError {
    fn from(err: HoursError) -> Self {
        Self::Refused(err)
    }
}

/// A map's key for what nobody pays for.
const UNATTRIBUTED: &str = "unattributed";

fn team_or_unattributed(team: &Option<Text>) -> &str {
    team.as_deref().unwrap_or(UNATTRIBUTED)
}
