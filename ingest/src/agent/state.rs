//! What stands in the agent's state file.

use super::AgentError;
use super::inventory::Inventory;
use attribution::sightings::Sightings;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// What stands in the state file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) targets: BTreeMap<String, TargetState>,
    /// Hex of allocation messages, with their key and time.
    pub(super) outbox: Vec<(String, i64, String)>,
    /// Hex of live holdings by the node's own kubelet.
    #[serde(default)]
    pub(super) local: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct TargetState {
    /// This run has scraped it.
    #[serde(skip)]
    pub(super) of_this_run: bool,
    pub(super) sequence: u64,
    pub(super) sightings: Sightings,
    #[serde(default)]
    pub(super) inventory: Inventory,
}

pub(super) fn state_key(node: &str, source: &str) -> String {
    format!("{node} {source}")
}

/// What stands in the state file; none where there is none.
pub(super) fn load(path: &Path) -> Result<Option<State>, AgentError> {
    let failed = |source| AgentError::State { path: path.to_owned(), source };
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|e| failed(std::io::Error::new(std::io::ErrorKind::InvalidData, e.to_string()))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(e)),
    }
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub(super) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16);
    text.as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => Some((digit(*high)? * 16 + digit(*low)?) as u8),
            _ => None,
        })
        .collect()
}
