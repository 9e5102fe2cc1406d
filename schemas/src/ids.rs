//! Identities: a device is a GPU by UUID, or a MIG instance by parent UUID and GPU instance id (rule A9).

use std::{fmt, str::FromStr};

/// Longest identity that we accept from outside, in bytes.
pub const MAX_ID_BYTES: usize = 256;

/// UUID of a whole GPU, as DCGM prints it (`GPU-` and a UUID; other vendors' forms pass unread).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuUuid(String);

/// Why a text is no identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadId {
    /// No characters at all.
    #[error("the device id is empty")]
    Empty,
    /// Longer than [`MAX_ID_BYTES`].
    #[error("the device id is {0} bytes long, more than {MAX_ID_BYTES}")]
    TooLong(usize),
    /// A character that no device id has and that would break paths or messages.
    #[error("the device id `{0}` has a blank or control character")]
    BadCharacter(String),
}

fn checked(text: &str) -> Result<&str, BadId> {
    if text.is_empty() {
        Err(BadId::Empty)
    } else if text.len() > MAX_ID_BYTES {
        Err(BadId::TooLong(text.len()))
    } else if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        Err(BadId::BadCharacter(text.escape_default().to_string()))
    } else {
        Ok(text)
    }
}

impl GpuUuid {
    /// The UUID in `text`; blanks, control characters and over-long texts are refused.
    pub fn parse(text: &str) -> Result<Self, BadId> {
        checked(text).map(|text| Self(text.to_owned()))
    }

    /// The text as DCGM prints it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A device: `GPU-uuid`, or `GPU-uuid/3` for GPU instance 3 of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    gpu: GpuUuid,
    instance: Option<u32>,
}

impl DeviceId {
    /// The whole GPU.
    pub fn whole(gpu: GpuUuid) -> Self {
        Self { gpu, instance: None }
    }

    /// GPU instance `instance` of `gpu`.
    pub fn instance(gpu: GpuUuid, instance: u32) -> Self {
        Self { gpu, instance: Some(instance) }
    }

    /// UUID of the GPU that this is, or is a part of.
    pub fn gpu(&self) -> &GpuUuid {
        &self.gpu
    }

    /// GPU instance id, for a MIG instance.
    pub fn instance_id(&self) -> Option<u32> {
        self.instance
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.instance {
            None => self.gpu.fmt(f),
            Some(id) => write!(f, "{}/{id}", self.gpu),
        }
    }
}

impl FromStr for DeviceId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let split = text.rsplit_once('/').and_then(|(gpu, id)| Some((gpu, id.parse().ok()?)));
        Ok(match split {
            Some((gpu, id)) => Self::instance(GpuUuid::parse(gpu)?, id),
            None => Self::whole(GpuUuid::parse(text)?),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn device_ids_show_what_they_parse() {
        for text in ["GPU-1c0de000-0000-4000-8000-000000000000", "GPU-1c0de000/3", "tpu-0"] {
            assert_eq!(text.parse::<DeviceId>().unwrap().to_string(), text);
        }
        assert_eq!("GPU-a/3".parse::<DeviceId>().unwrap().instance_id(), Some(3));
        assert_eq!("".parse::<DeviceId>(), Err(BadId::Empty));
        assert!(matches!("GPU a".parse::<DeviceId>(), Err(BadId::BadCharacter(_))));
        assert!(matches!("x".repeat(300).parse::<DeviceId>(), Err(BadId::TooLong(300))));
    }
}
