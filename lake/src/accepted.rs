//! What an operator has said of topics that were created anew.

use crate::{Lake, LakeError, path::TopicId};

impl Lake {
    /// The id under which a topic was accepted last; none where nobody had to. `topic` is one of our own names.
    pub fn accepted_topic(&self, topic: &str) -> Result<Option<TopicId>, LakeError> {
        let Some((text, _)) = self.store.read(&key(topic))? else { return Ok(None) };
        // What does not read is no acceptance: the operator is asked again.
        Ok(std::str::from_utf8(&text).ok().and_then(|text| TopicId::parse(text.trim()).ok()))
    }

    /// Remembers that `topic` goes on under `id`.
    pub fn accept_topic(&self, topic: &str, id: &TopicId) -> Result<(), LakeError> {
        self.store.replace(&key(topic), id.as_str().as_bytes().to_vec())
    }
}

fn key(topic: &str) -> String {
    format!("_state/accepted/{topic}")
}
