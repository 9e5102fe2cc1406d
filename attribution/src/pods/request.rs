//! What a pod asks of each device resource, as the scheduler counts it (rule A3).

use std::collections::BTreeMap;

use super::{
    object::{Container, PodSpec, Quantity},
    quantity::count,
};
use crate::holders::ResourceNames;

/// Effective requests by resource name, zeros left out.
///
/// ```text
/// running = sum(containers) + sum(all sidecars)            sidecar: init container with restartPolicy Always
/// init(i) = request(i) + sum(sidecars before i)            for an ordinary init container
/// init(i) = sum(sidecars up to and including i)            for a sidecar
/// effective = max(running, init(1), init(2), ...) + overhead
/// ```
///
/// Errors: path of the field and what is wrong with it.
pub(super) fn effective(spec: &PodSpec, names: &ResourceNames) -> Result<BTreeMap<String, u32>, (String, String)> {
    let mut running: BTreeMap<&str, u64> = BTreeMap::new();
    let mut sidecars: BTreeMap<&str, u64> = BTreeMap::new();
    let mut most: BTreeMap<&str, u64> = BTreeMap::new();
    for (index, container) in spec.init_containers.iter().enumerate() {
        let sidecar = container.restart_policy == "Always";
        for (name, asked) in requests(container, names, "initContainers", index)? {
            let before = sidecars.get(name).copied().unwrap_or(0);
            let at_once = before.saturating_add(asked);
            if sidecar {
                sidecars.insert(name, at_once);
            }
            let most = most.entry(name).or_default();
            *most = at_once.max(*most);
        }
    }
    for (index, container) in spec.containers.iter().enumerate() {
        for (name, asked) in requests(container, names, "containers", index)? {
            let sum = running.entry(name).or_default();
            *sum = sum.saturating_add(asked);
        }
    }
    for (name, sum) in sidecars {
        let running = running.entry(name).or_default();
        *running = running.saturating_add(sum);
    }
    for (name, sum) in running {
        let most = most.entry(name).or_default();
        *most = sum.max(*most);
    }
    for (name, quantity) in spec.overhead.iter().filter(|(name, _)| names.counts(name)) {
        let sum = most.entry(name).or_default();
        *sum = sum.saturating_add(number(quantity, || format!("spec.overhead[{name}]"))?);
    }
    let whole = |(name, asked): (&str, u64)| match u32::try_from(asked) {
        Ok(asked) => Ok((name.to_owned(), asked)),
        Err(_) => Err((format!("spec.containers: sum of {name}"), format!("{asked} is above {}", u32::MAX))),
    };
    most.into_iter().filter(|(_, asked)| *asked > 0).map(whole).collect()
}

/// What one container asks; where only a limit is given, the API server takes that.
fn requests<'a>(
    container: &'a Container,
    names: &ResourceNames,
    list: &str,
    index: usize,
) -> Result<BTreeMap<&'a str, u64>, (String, String)> {
    let mut asked = BTreeMap::new();
    for (given, quantities) in [("limits", &container.resources.limits), ("requests", &container.resources.requests)] {
        for (name, quantity) in quantities.iter().filter(|(name, _)| names.counts(name)) {
            let path = || format!("spec.{list}[{index}].resources.{given}[{name}]");
            asked.insert(name.as_str(), number(quantity, path)?);
        }
    }
    Ok(asked)
}

fn number(quantity: &Quantity, path: impl FnOnce() -> String) -> Result<u64, (String, String)> {
    count(&quantity.0).map(u64::from).map_err(|error| (path(), error.to_string()))
}

/// Profiles of GPUs that are cut into four compute slices; all others are cut into seven.
const OF_FOUR: &[&str] = &["1g.6gb", "2g.12gb", "4g.24gb", "1g.24gb", "2g.48gb", "4g.96gb"];

/// Compute share of a whole GPU that one unit of `resource` is, for a MIG profile: numerator and denominator. None for whole
/// GPUs, and where the name does not say (replicas of a shared device).
pub(super) fn weight(resource: &str) -> Option<(u32, u32)> {
    let (_, profile) = resource.rsplit_once("/mig-")?;
    if profile.ends_with(".shared") {
        return None;
    }
    let of = if OF_FOUR.iter().any(|p| profile == *p || profile.strip_prefix(p).is_some_and(|rest| rest.starts_with('.'))) {
        4
    } else {
        7
    };
    // `1c.3g.40gb` is one compute slice of a 3g instance.
    let (first, _) = profile.split_once('.')?;
    let slices: u32 = first.strip_suffix('g').or_else(|| first.strip_suffix('c'))?.parse().ok()?;
    (1..=of).contains(&slices).then_some((slices, of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_weigh_their_compute_slices() {
        for (resource, expected) in [
            ("nvidia.com/gpu", None),
            ("nvidia.com/gpu.shared", None),
            ("nvidia.com/mig-1g.10gb", Some((1, 7))),
            ("nvidia.com/mig-3g.40gb", Some((3, 7))),
            ("nvidia.com/mig-7g.141gb", Some((7, 7))),
            ("nvidia.com/mig-1g.10gb.me", Some((1, 7))),
            ("nvidia.com/mig-2g.12gb", Some((2, 4))),
            ("nvidia.com/mig-1g.6gb.me", Some((1, 4))),
            ("nvidia.com/mig-1c.3g.40gb", Some((1, 7))),
            ("nvidia.com/mig-1g.10gb.shared", None),
            ("nvidia.com/mig-9g.10gb", None),
            ("nvidia.com/mig-0g.10gb", None),
            ("nvidia.com/mig-x", None),
        ] {
            assert_eq!(weight(resource), expected, "{resource}");
        }
    }
}
