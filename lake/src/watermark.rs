//! Up to where hours are closed.

use schemas::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Lake, LakeError, Version};

/// Its key.
const KEY: &str = "_state/watermark.json";

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
        Ok(self.watermark_now()?.map(|(watermark, _)| watermark))
    }

    /// The watermark and which writing of it that is.
    pub fn watermark_now(&self) -> Result<Option<(Watermark, Version)>, LakeError> {
        let Some((text, version)) = self.store.read(KEY)? else { return Ok(None) };
        let path = || self.place(KEY).location();
        let watermark: Watermark = serde_json::from_slice(&text).map_err(|source| LakeError::State { path: path(), source })?;
        // Believed as it stands, it would leave hours unclosed that it says are closed.
        if [watermark.from, watermark.closed_to].iter().any(|at| *at != at.hour()) {
            return Err(LakeError::Watermark { path: path(), what: "its times are not on full UTC hours" });
        }
        if watermark.from > watermark.closed_to {
            return Err(LakeError::Watermark { path: path(), what: "it closes before it begins" });
        }
        Ok(Some((watermark, version)))
    }

    /// Writes the watermark, atomically and durably.
    pub fn set_watermark(&self, watermark: Watermark) -> Result<(), LakeError> {
        self.store.replace(KEY, self.text(watermark)?)
    }

    /// Writes the watermark over the one of version `over` (none: where there was none), as
    /// [`publish_closed_over`](Lake::publish_closed_over) does; false where another writer has moved it since.
    pub fn set_watermark_over(&self, watermark: Watermark, over: Option<&Version>) -> Result<bool, LakeError> {
        Ok(self.store.replace_if(KEY, self.text(watermark)?, over)?.is_some())
    }

    fn text(&self, watermark: Watermark) -> Result<Vec<u8>, LakeError> {
        serde_json::to_vec_pretty(&watermark).map_err(|source| LakeError::State { path: self.place(KEY).location(), source })
    }
}
