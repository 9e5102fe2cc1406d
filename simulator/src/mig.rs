//! MIG layouts: which instances a GPU is cut into, where they lie, and what share of it each is.
//!
//! A GPU has seven compute slices and eight of memory. A profile takes `N` compute slices (`Ng`) and as many of memory as lie
//! side by side: one, two, four or all eight, each from a start of its own grid (NVIDIA's table of placements, which is alike
//! for every product of seven slices). A layout is placed by trying those starts.

use crate::accelerator::Accelerator;

/// Compute slices of a GPU.
pub const SLICES: u32 = 7;
/// Memory slices of a GPU.
const MEMORY_SLICES: u32 = 8;

/// A profile of a product, `1g.10gb`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name as the driver has it, `1g.10gb` or `1g.10gb+me`.
    pub name: String,
    /// Compute slices, of [`SLICES`].
    pub slices: u32,
    /// Memory slices, of eight.
    pub memory_slices: u32,
}

/// An instance of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// What it is.
    pub profile: Profile,
    /// First memory slice.
    pub start: u32,
    /// GPU instance id, as drivers number them: the node's number in the binary tree of placements.
    pub id: u32,
}

/// Why a GPU cannot be cut so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The product cannot be cut at all.
    #[error("`{0}` has no MIG; name a product that has, or leave `mig` out")]
    NoMig(String),
    /// The product has no such profile.
    #[error("`{product}` has no MIG profile `{profile}`; it has {}", known.join(", "))]
    Unknown {
        /// The product.
        product: String,
        /// The profile.
        profile: String,
        /// Those that it has.
        known: Vec<String>,
    },
    /// The instances do not lie beside each other on one GPU.
    #[error("[{}] cannot be placed on one `{product}`: {slices} of {SLICES} compute slices, and instances lie on fixed starts; \
             leave some out", layout.join(", "))]
    Unplaceable {
        /// The product.
        product: String,
        /// The profiles asked for.
        layout: Vec<String>,
        /// Their compute slices.
        slices: u32,
    },
    /// More than one instance with media engines.
    #[error("[{}] has two instances with `+me`; a GPU has media engines for one", .0.join(", "))]
    MediaTwice(Vec<String>),
}

/// The product's profile called `name`.
fn profile(product: &Accelerator, name: &str) -> Result<Profile, LayoutError> {
    let parts = |name: &str| -> Option<(u32, u32)> {
        let (slices, memory) = name.split_once("g.")?;
        let memory = memory.strip_suffix("+me").unwrap_or(memory).strip_suffix("gb")?;
        Some((slices.parse().ok()?, memory.parse().ok()?))
    };
    let known = product.mig_profiles.iter().find(|profile| *profile == name).and_then(|name| parts(name));
    let Some((slices, memory_gb)) = known else {
        let (product, known) = (product.product.clone(), product.mig_profiles.clone());
        return Err(LayoutError::Unknown { product, profile: name.to_owned(), known });
    };
    let smallest = product.mig_profiles.iter().filter_map(|name| parts(name)).map(|(_, gb)| gb).min().unwrap_or(memory_gb);
    let memory_slices = match slices {
        1 if 2 * memory_gb < 3 * smallest => 1,
        1 | 2 => 2,
        3 | 4 => 4,
        _ => MEMORY_SLICES,
    };
    Ok(Profile { name: name.to_owned(), slices, memory_slices })
}

impl Profile {
    /// Where it may begin, in the order in which the driver takes them.
    fn starts(&self) -> &'static [u32] {
        match (self.slices, self.memory_slices) {
            (1, 1) => &[0, 1, 2, 3, 4, 5, 6],
            (1, _) => &[0, 2, 4, 6],
            (2, _) => &[0, 2, 4],
            (3, _) => &[4, 0],
            _ => &[0],
        }
    }

    /// Its name in a resource or a label: `+` is no character of one.
    pub fn resource(&self) -> String {
        format!("nvidia.com/mig-{}", self.name.replace('+', "."))
    }

    /// Memory of an instance on a board with `memory_mib`: its slices of eight (chosen; drivers keep a percent more).
    pub fn memory_mib(&self, memory_mib: i64) -> i64 {
        memory_mib * i64::from(self.memory_slices) / i64::from(MEMORY_SLICES)
    }
}

/// Places `layout` on one GPU of `product`: the instances in the order of the layout.
pub fn place(product: &Accelerator, layout: &[String]) -> Result<Vec<Placed>, LayoutError> {
    if product.mig_profiles.is_empty() {
        return Err(LayoutError::NoMig(product.product.clone()));
    }
    let profiles: Vec<Profile> = layout.iter().map(|name| profile(product, name)).collect::<Result<_, _>>()?;
    if profiles.iter().filter(|profile| profile.name.ends_with("+me")).count() > 1 {
        return Err(LayoutError::MediaTwice(layout.to_vec()));
    }
    let slices = profiles.iter().map(|profile| profile.slices).sum();
    let mut order: Vec<usize> = (0..profiles.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse((profiles[*at].memory_slices, profiles[*at].slices)));
    let mut starts = vec![None; profiles.len()];
    let fits = slices <= SLICES && profiles.len() <= SLICES as usize && try_starts(&profiles, &order, 0, &mut starts);
    let placed = |(profile, start): (Profile, Option<u32>)| {
        let start = start?;
        let id = MEMORY_SLICES / profile.memory_slices - 1 + start / profile.memory_slices;
        Some(Placed { profile, start, id })
    };
    let found: Option<Vec<Placed>> = if fits { profiles.into_iter().zip(starts).map(placed).collect() } else { None };
    found.filter(|found| !found.is_empty()).ok_or_else(|| LayoutError::Unplaceable {
        product: product.product.clone(),
        layout: layout.to_vec(),
        slices,
    })
}

/// Depth first over the starts of `order`; `taken` is a bit for each memory slice. At most seven deep.
fn try_starts(profiles: &[Profile], order: &[usize], taken: u32, starts: &mut [Option<u32>]) -> bool {
    let Some((&at, rest)) = order.split_first() else { return true };
    let profile = &profiles[at];
    for &start in profile.starts() {
        let mask = ((1 << profile.memory_slices) - 1) << start;
        if taken & mask == 0 {
            starts[at] = Some(start);
            if try_starts(profiles, rest, taken | mask, starts) {
                return true;
            }
        }
    }
    starts[at] = None;
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::accelerator::by_product;

    fn ids(product: &str, layout: &[&str]) -> Result<Vec<(u32, u32)>, String> {
        let layout: Vec<String> = layout.iter().map(|name| (*name).to_owned()).collect();
        let placed = place(by_product(product).unwrap(), &layout).map_err(|err| err.to_string())?;
        Ok(placed.iter().map(|placed| (placed.id, placed.start)).collect())
    }

    #[test]
    fn layouts_are_placed_as_the_driver_places_them() {
        let h100 = "NVIDIA H100 80GB HBM3";
        assert_eq!(ids(h100, &["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]).unwrap(), [(2, 4), (3, 0), (9, 2), (10, 3)]);
        assert_eq!(ids(h100, &["7g.80gb"]).unwrap(), [(0, 0)]);
        assert_eq!(ids(h100, &["3g.40gb", "4g.40gb"]).unwrap(), [(2, 4), (1, 0)]);
        assert_eq!(ids(h100, &["1g.10gb"; 7]).unwrap(), (0..7).map(|n| (7 + n, n)).collect::<Vec<_>>());
        assert_eq!(ids("NVIDIA H200", &["1g.35gb"; 4]).unwrap(), [(3, 0), (4, 2), (5, 4), (6, 6)]);
        assert_eq!(ids("NVIDIA A100-SXM4-40GB", &["2g.10gb", "2g.10gb", "2g.10gb", "1g.5gb+me"]).unwrap()[3], (13, 6));
    }

    #[test]
    fn what_no_gpu_can_hold_is_refused() {
        let refusal = |product: &str, layout: &[&str]| ids(product, layout).unwrap_err();
        let h100 = "NVIDIA H100 80GB HBM3";
        assert!(refusal(h100, &["4g.40gb", "4g.40gb"]).contains("8 of 7 compute slices"));
        assert!(refusal(h100, &["3g.40gb", "3g.40gb", "1g.10gb"]).contains("cannot be placed"), "memory slices are all taken");
        assert!(refusal(h100, &["2g.10gb"]).contains("has no MIG profile `2g.10gb`; it has 1g.10gb, "));
        assert!(refusal("NVIDIA L4", &["1g.10gb"]).contains("has no MIG"));
        assert!(refusal(h100, &["1g.10gb+me", "1g.10gb+me"]).contains("media engines for one"));
        assert!(refusal(h100, &[]).contains("cannot be placed"));
    }
}
