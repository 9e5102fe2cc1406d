//! Up to where hours are closed.

use std::{fs, io::ErrorKind};

use schemas::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Lake, LakeError, publish};

/// The state in `_state/watermark.json`. The closed tree is complete for every hour from `from` up to `closed_to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watermark {
    /// Start of the first hour of the lake.
    pub from: Timestamp,
    /// First instant that is not closed.
    pub closed_to: Timestamp,
}

impl Lake {
    /// The watermark; none in a lake without closed hours.
    pub fn watermark(&self) -> Result<Option<Watermark>, LakeError> {
        let path = self.root.join("_state/watermark.json");
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(LakeError::io("read", &path)(error)),
        };
        let watermark: Watermark = match serde_json::from_slice(&text) {
            Ok(watermark) => watermark,
            Err(source) => return Err(LakeError::State { path, source }),
        };
        // Believed as it stands, it would leave hours unclosed that it says are closed.
        if [watermark.from, watermark.closed_to].iter().any(|at| *at != at.hour()) {
            return Err(LakeError::Watermark { path, what: "its times are not on full UTC hours" });
        }
        if watermark.from > watermark.closed_to {
            return Err(LakeError::Watermark { path, what: "it closes before it begins" });
        }
        Ok(Some(watermark))
    }

    /// Writes the watermark, atomically and durably.
    pub fn set_watermark(&self, watermark: Watermark) -> Result<(), LakeError> {
        let folder = self.root.join("_state");
        publish::make_dirs(&folder)?;
        let path = folder.join("watermark.json");
        let text = serde_json::to_vec_pretty(&watermark).map_err(|source| LakeError::State { path: path.clone(), source })?;
        publish::replace(&path, &text)
    }
}
