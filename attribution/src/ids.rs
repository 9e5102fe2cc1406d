//! Device ids: the shapes that device plugins give a GPU, an instance, or a replica of either.
//!
//! | shape | who | means |
//! |---|---|---|
//! | `GPU-uuid` | NVIDIA's plugin | the GPU |
//! | `MIG-uuid` | the same, drivers from R470 | the partition with that UUID |
//! | `MIG-GPU-uuid/gi/ci` | the same, older drivers | GPU instance gi, compute instance ci |
//! | `any::n` | time-slicing, MPS | replica n of what stands before `::` |
//! | `nvidiaN`, `nvidiaN/giM`, either with `/vgpuK` | GKE's plugin | device file N, GPU instance M, replica K |
//! | a bare number | index strategy | the GPU with that index |
//!
//! Ids of products without DCGM have no shape of ours: [`unread`] makes a device's name of them.

/// What an id points at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A whole GPU or a partition by its own UUID.
    Uuid(&'a str),
    /// A partition by parent, GPU instance and compute instance.
    Partition {
        /// UUID of the GPU.
        gpu: &'a str,
        /// GPU instance id.
        gi: u32,
        /// Compute instance id.
        ci: u32,
    },
    /// Device file `/dev/nvidiaN`, and a GPU instance of it.
    Minor {
        /// N.
        minor: u32,
        /// GPU instance id.
        gi: Option<u32>,
    },
    /// The GPU with this index.
    Index(u32),
}

/// A device id, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape<'a> {
    /// What it points at.
    pub target: Target<'a>,
    /// Whether it is one of several replicas.
    pub replica: bool,
}

/// Takes an id apart; none where its shape is unknown.
pub fn shape(id: &str) -> Option<Shape<'_>> {
    if let Some((base, replica)) = id.rsplit_once("::") {
        number(replica)?;
        let inner = shape(base)?;
        return (!inner.replica).then_some(Shape { replica: true, ..inner });
    }
    if let Some(rest) = id.strip_prefix("nvidia") {
        return device_file(rest);
    }
    let target = if let Some(rest) = id.strip_prefix("MIG-GPU-") {
        let mut parts = rest.split('/');
        let (uuid, gi, ci) = (parts.next()?, number(parts.next()?)?, number(parts.next()?)?);
        if uuid.is_empty() || parts.next().is_some() {
            return None;
        }
        Target::Partition { gpu: &id["MIG-".len().."MIG-GPU-".len() + uuid.len()], gi, ci }
    } else if let Some(index) = number(id) {
        Target::Index(index)
    } else if ["GPU-", "MIG-"].iter().any(|prefix| id.len() > prefix.len() && id.starts_with(prefix)) && !id.contains('/') {
        Target::Uuid(id)
    } else {
        return None;
    };
    Some(Shape { target, replica: false })
}

fn device_file(rest: &str) -> Option<Shape<'_>> {
    let mut parts = rest.split('/');
    let minor = number(parts.next()?)?;
    let (mut gi, mut replica) = (None, false);
    for part in parts {
        if let Some(id) = part.strip_prefix("gi").filter(|_| gi.is_none() && !replica) {
            gi = Some(number(id)?);
        } else if let Some(id) = part.strip_prefix("vgpu").filter(|_| !replica) {
            number(id)?;
            replica = true;
        } else {
            return None;
        }
    }
    Some(Shape { target: Target::Minor { minor, gi }, replica })
}

/// Name of a device that only its node's kubelet knows. A product without DCGM shows no UUID on any page, and its plugin numbers
/// its devices or names their PCI addresses, so node and resource make the kubelet's id one of a fleet's: `tpu-0:google.com.tpu:3`.
/// No slash is left in it, for that would make it an instance.
pub fn unread(node: &str, resource: &str, id: &str) -> String {
    format!("{node}:{resource}:{id}").replace('/', ".")
}

/// Digits only: `+1` and `-1` are no ids.
fn number(text: &str) -> Option<u32> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_shape_is_known() {
        let whole = |id| shape(id).unwrap();
        assert_eq!(whole("GPU-1c"), Shape { target: Target::Uuid("GPU-1c"), replica: false });
        assert_eq!(whole("MIG-1c"), Shape { target: Target::Uuid("MIG-1c"), replica: false });
        assert_eq!(whole("MIG-GPU-1c/3/0"), Shape { target: Target::Partition { gpu: "GPU-1c", gi: 3, ci: 0 }, replica: false });
        assert_eq!(whole("GPU-1c::2"), Shape { target: Target::Uuid("GPU-1c"), replica: true });
        assert_eq!(whole("MIG-1c::0"), Shape { target: Target::Uuid("MIG-1c"), replica: true });
        assert_eq!(whole("nvidia3"), Shape { target: Target::Minor { minor: 3, gi: None }, replica: false });
        assert_eq!(whole("nvidia3/gi2/vgpu1"), Shape { target: Target::Minor { minor: 3, gi: Some(2) }, replica: true });
        assert_eq!(whole("nvidia3/vgpu1"), Shape { target: Target::Minor { minor: 3, gi: None }, replica: true });
        assert_eq!(whole("0"), Shape { target: Target::Index(0), replica: false });
    }

    #[test]
    fn other_shapes_are_not_guessed_at() {
        for id in [
            "",
            "all",
            "GPU-",
            "nvidia",
            "nvidiax",
            "nvidia0/gi",
            "nvidia0/vgpu1/gi2",
            "nvidia0/gi1/gi2",
            "GPU-1::x",
            "::1",
            "GPU-1::1::2",
            "-1",
            "99999999999",
            "MIG-GPU-1c/3",
            "MIG-GPU-/1/2",
        ] {
            assert_eq!(shape(id), None, "{id}");
        }
    }
}
