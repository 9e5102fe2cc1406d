//! Two kinds of raw facts become holdings: the API server's, by number, and the kubelet's sightings of devices
//! (rules A3, A9, A16, A17). When a pod holds is the API's word; which device, the kubelet's.

use std::collections::{BTreeMap, BTreeSet};

use schemas::{Timestamp, status::HoldingSource};

use crate::{
    input::{Held, Holding, Ids, Pod, Text},
    row::{Flag, FlagSet},
};

/// A device that the kubelet listed for a container, from the first listing with it to the second without it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sighting {
    /// The node.
    pub node: Text,
    /// The pod's namespace.
    pub namespace: Text,
    /// The pod's name.
    pub pod: Text,
    /// Its UID, where the page says it; the kubelet does not.
    pub pod_uid: Option<Text>,
    /// The container, where told.
    pub container: Option<Text>,
    /// The device.
    pub device: Text,
    /// How many of its ids, or which.
    pub ids: Ids,
    /// First listing that has it.
    pub first_seen: Timestamp,
    /// Where it was missed; none while it is listed.
    pub seen_until: Option<Timestamp>,
    /// The last listing that is known to have it, where listings are told. A pod bound after that is another of the same name, or
    /// was not listed yet: it is not seen here, also while the sighting goes on.
    pub last_listed: Option<Timestamp>,
    /// What else is to be said of it.
    pub flags: FlagSet,
}

impl Sighting {
    fn end(&self) -> Timestamp {
        self.seen_until.unwrap_or(Timestamp::from_ms(i64::MAX))
    }

    /// Whether some listing may have meant a pod bound at `bound`.
    fn may_mean(&self, bound: Timestamp) -> bool {
        match self.last_listed {
            Some(last) => bound <= last,
            None => bound < self.end(),
        }
    }
}

/// The holdings of one cluster.
///
/// In: `api`, what the API server says (none: nobody asked it), and sightings, in any order, repeats allowed. Out:
/// the API's holdings as they are, and beside them a device record for each device that a sighting names; sorted.
///
/// A sighting speaks for the holdings of its (node, namespace, pod) that were live while it lasted, from its
/// beginning or their bind on; where there is none, for the one last bound before it, whose end it does not move.
/// A device record ends with its holding, or where another device took its place. A pod that was bound after the last
/// listing is another one of the same name and is not meant. A sighting that no holding
/// explains is an owner of its own, named after its first sighting. So `api` has to have holdings that ended before the time
/// asked about too, as long as a first listing of them may still come: the hours job adds those of the hour before.
pub fn settle(cluster: &str, api: Option<&[Holding]>, sightings: &[Sighting]) -> Vec<Holding> {
    let mut settled: BTreeSet<Holding> = api.unwrap_or_default().iter().cloned().collect();
    let mut by_name: BTreeMap<(&str, &str, &str), Vec<&Holding>> = BTreeMap::new();
    for holding in
        api.unwrap_or_default().iter().filter(|h| matches!(h.held, Held::Count { .. }) && h.end.is_none_or(|end| h.bound < end))
    {
        by_name.entry((&holding.node, &holding.pod.namespace, &holding.pod.name)).or_default().push(holding);
    }
    let sightings: BTreeSet<&Sighting> = sightings.iter().filter(|s| s.first_seen < s.end()).collect();
    let mut of_holding: BTreeMap<&Holding, Vec<&Sighting>> = BTreeMap::new();
    let mut orphans: BTreeMap<_, Vec<&Sighting>> = BTreeMap::new();
    for sighting in sightings {
        let name = (&*sighting.node, &*sighting.namespace, &*sighting.pod);
        let holders = by_name.get(&name).map_or(Vec::new(), |holdings| holders_of(sighting, holdings));
        if holders.is_empty() {
            orphans.entry((name, &sighting.pod_uid)).or_default().push(sighting);
        }
        for holding in holders {
            of_holding.entry(holding).or_default().push(sighting);
        }
    }
    for (holding, seen) in of_holding {
        settled.extend(device_records(holding, &seen));
    }
    let flags = FlagSet::EMPTY.with(Flag::NoApiHolding, api.is_some());
    for seen in orphans.into_values() {
        settled.extend(own_holdings(cluster, seen, flags));
    }
    settled.into_iter().collect()
}

/// The holdings that a sighting speaks for.
fn holders_of<'a>(sighting: &Sighting, holdings: &[&'a Holding]) -> Vec<&'a Holding> {
    let meant = |h: &&Holding| sighting.pod_uid.as_ref().is_none_or(|uid| h.pod.uid == *uid);
    let holdings: Vec<&Holding> = holdings.iter().copied().filter(meant).collect();
    let live = |h: &&&Holding| sighting.may_mean(h.bound) && h.end.is_none_or(|end| sighting.first_seen < end);
    let live: Vec<&Holding> = holdings.iter().filter(live).copied().collect();
    if !live.is_empty() {
        return live;
    }
    let before = holdings.iter().filter(|h| h.bound <= sighting.first_seen);
    before.max_by_key(|h| (h.bound, &h.pod.uid)).into_iter().copied().collect()
}

/// A holding's devices, each once, with the ids of all its containers.
fn device_records(holding: &Holding, seen: &[&Sighting]) -> Vec<Holding> {
    let mut of_device: BTreeMap<&Text, Vec<&Sighting>> = BTreeMap::new();
    for sighting in seen {
        of_device.entry(&sighting.device).or_default().push(sighting);
    }
    let record = |(device, here): (&&Text, &Vec<&Sighting>)| {
        let known_from = here.iter().map(|s| s.first_seen).min()?.max(holding.bound);
        let until = here.iter().map(|s| s.end()).max()?;
        // Another device in its place: the kubelet moved the pod, which happens over a reboot.
        let replaced = seen.iter().filter(|s| s.device != **device && s.first_seen >= until).map(|s| s.first_seen).min();
        let mut flags = holding.flags;
        here.iter().for_each(|s| flags.extend(s.flags));
        let held = Held::Device { device: (*device).clone(), ids: ids(here), known_from: Some(known_from) };
        let end = [holding.end, replaced].into_iter().flatten().min();
        Some(Holding { held, end, flags, ..holding.clone() })
    };
    of_device.iter().filter_map(record).collect()
}

/// All ids of some sightings: names together, or the sum over containers of the most that each had.
fn ids(seen: &[&Sighting]) -> Ids {
    let mut named = BTreeSet::new();
    let mut most: BTreeMap<&Option<Text>, u32> = BTreeMap::new();
    for sighting in seen {
        if let Ids::Named(ids) = &sighting.ids {
            named.extend(ids.iter().copied());
        }
        let most = most.entry(&sighting.container).or_default();
        *most = sighting.ids.count().max(*most);
    }
    if seen.iter().all(|s| matches!(s.ids, Ids::Named(_))) {
        return Ids::Named(named.into_iter().collect());
    }
    let sum = most.values().fold(0_u32, |sum, ids| sum.saturating_add(*ids));
    std::num::NonZeroU32::new(sum).map_or(Ids::ONE, Ids::Number)
}

/// Owners of sightings that no holding explains: one for each run of listings with the name, by its beginning.
fn own_holdings(cluster: &str, mut seen: Vec<&Sighting>, flags: FlagSet) -> Vec<Holding> {
    seen.sort_by_key(|s| (s.first_seen, s.end()));
    let mut runs: Vec<(Timestamp, Timestamp, Vec<&Sighting>)> = Vec::new();
    for sighting in seen {
        match runs.last_mut() {
            Some((_, end, run)) if sighting.first_seen <= *end => {
                *end = sighting.end().max(*end);
                run.push(sighting);
            }
            _ => runs.push((sighting.first_seen, sighting.end(), vec![sighting])),
        }
    }
    let owner = |(bound, _, run): &(Timestamp, Timestamp, Vec<&Sighting>)| {
        let Sighting { node, namespace, pod: name, .. } = run[0];
        let told = run[0].pod_uid.clone();
        let uid = told.unwrap_or_else(|| format!("podres:{cluster}/{namespace}/{name}@{bound}").into());
        let pod = Pod { uid, namespace: namespace.clone(), name: name.clone(), team: None, workload: None, queue: None };
        let mut of_device: BTreeMap<&Text, Vec<&Sighting>> = BTreeMap::new();
        run.iter().for_each(|s| of_device.entry(&s.device).or_default().push(s));
        let holding = |(device, here): (&Text, Vec<&Sighting>)| {
            let bound = here.iter().map(|s| s.first_seen).min()?;
            let end = here.iter().map(|s| s.end()).max().filter(|end| end.ms() < i64::MAX);
            let mut flags = flags;
            here.iter().for_each(|s| flags.extend(s.flags));
            Some(Holding {
                pod: pod.clone(),
                node: node.clone(),
                held: Held::Device { device: device.clone(), ids: ids(&here), known_from: Some(bound) },
                bound,
                started: Some(bound),
                terminating_from: None,
                end,
                source: HoldingSource::PodResources,
                flags,
            })
        };
        of_device.into_iter().filter_map(holding).collect::<Vec<_>>()
    };
    runs.iter().flat_map(owner).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::input::Ratio;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(ms)
    }

    fn api(uid: &str, count: u32, bound: i64, end: Option<i64>) -> Holding {
        Holding {
            pod: Pod { uid: uid.into(), namespace: "surf".into(), name: "shell".into(), team: None, workload: None, queue: None },
            node: "dune-1".into(),
            held: Held::Count { count, weight: Ratio::ONE },
            bound: at(bound),
            started: None,
            terminating_from: None,
            end: end.map(at),
            source: HoldingSource::Api,
            flags: FlagSet::EMPTY,
        }
    }

    fn seen(device: &str, first_seen: i64, seen_until: Option<i64>) -> Sighting {
        Sighting {
            node: "dune-1".into(),
            namespace: "surf".into(),
            pod: "shell".into(),
            pod_uid: None,
            container: None,
            device: device.into(),
            ids: Ids::ONE,
            first_seen: at(first_seen),
            seen_until: seen_until.map(at),
            last_listed: None,
            flags: FlagSet::EMPTY,
        }
    }

    /// Device records as `uid device known_from..end flags`.
    fn check(api: Option<&[Holding]>, sightings: &[Sighting], expected: &[&str]) {
        let show = |settled: Vec<Holding>| -> Vec<String> {
            let record = |h: &Holding| match &h.held {
                Held::Device { device, known_from, .. } => {
                    let end = h.end.map_or("open".into(), |end| end.ms().to_string());
                    Some(format!("{} {device} {}..{end} {}", h.pod.uid, known_from.unwrap().ms(), h.flags).trim().to_owned())
                }
                Held::Count { .. } => None,
            };
            settled.iter().filter_map(record).collect()
        };
        let settled = settle("bay", api, sightings);
        assert_eq!(show(settled.clone()), expected);
        let by_number = settled.iter().filter(|h| matches!(h.held, Held::Count { .. })).count();
        assert_eq!(by_number, api.map_or(0, <[_]>::len), "the API's holdings stay");
        let repeated: Vec<Sighting> = sightings.iter().rev().chain(sightings).cloned().collect();
        let reversed: Option<Vec<Holding>> = api.map(|api| api.iter().rev().chain(api).cloned().collect());
        assert_eq!(settle("bay", reversed.as_deref(), &repeated), settled, "order and repetition mean nothing");
    }

    #[test]
    fn a_sighting_names_the_device_of_the_holding_live_then() {
        let pods = [api("uid-1", 1, 100, Some(200)), api("uid-2", 1, 300, None)];
        check(Some(&pods), &[seen("A", 110, Some(205)), seen("B", 310, None)], &["uid-1 A 110..200", "uid-2 B 310..open"]);
    }

    #[test]
    fn a_pod_bound_after_the_last_listing_is_another_of_the_name() {
        let pods = [api("uid-1", 1, 100, Some(200)), api("uid-2", 1, 210, None)];
        let old = |last| Sighting { last_listed: Some(at(last)), ..seen("A", 110, Some(250)) };
        check(Some(&pods), &[old(190), seen("B", 220, None)], &["uid-1 A 110..200", "uid-2 B 220..open"]);
        // A listing after its bind may have meant the second pod.
        check(Some(&pods), &[old(220)], &["uid-1 A 110..200", "uid-2 A 210..open"]);
        // So while nobody has missed the name twice: before the kubelet has said, no device is guessed.
        let open = |last| Sighting { seen_until: None, ..old(last) };
        check(Some(&pods), &[open(190)], &["uid-1 A 110..200"]);
        check(Some(&pods), &[open(220)], &["uid-1 A 110..200", "uid-2 A 210..open"]);
    }

    #[test]
    fn a_name_that_keeps_its_device_across_pods_is_two_records() {
        let pods = [api("uid-1", 1, 100, Some(200)), api("uid-2", 1, 210, None)];
        check(Some(&pods), &[seen("A", 110, None)], &["uid-1 A 110..200", "uid-2 A 210..open"]);
    }

    #[test]
    fn a_sighting_before_the_bind_or_after_the_end_moves_neither() {
        let pods = [api("uid-1", 1, 100, Some(200))];
        check(Some(&pods), &[seen("A", 95, Some(150))], &["uid-1 A 100..200"]);
        check(Some(&pods), &[seen("A", 200, Some(230))], &["uid-1 A 200..200"]);
    }

    /// A pod of 22 s that ended on the hour and was listed then for the first time.
    #[test]
    fn a_pod_first_listed_when_it_had_ended_is_no_owner_of_its_own() {
        let (hour, ended) = (14_400_000, api("uid-1", 1, 14_378_000, Some(14_400_000)));
        let listed = Sighting { last_listed: Some(at(hour)), ..seen("A", hour, Some(hour + 60_000)) };
        check(Some(std::slice::from_ref(&ended)), std::slice::from_ref(&listed), &["uid-1 A 14400000..14400000"]);
        // By its UID too, where another pod has its name by now.
        let named = |uid: &str| Sighting { pod_uid: Some(uid.into()), ..listed.clone() };
        let next = api("uid-2", 1, hour + 1_000, None);
        check(Some(&[ended, next.clone()]), &[named("uid-1")], &["uid-1 A 14400000..14400000"]);
        check(Some(&[next]), &[named("uid-1")], &["uid-1 A 14400000..14460000 no_api_holding"]);
    }

    #[test]
    fn a_device_in_the_place_of_another_ends_it() {
        let pods = [api("uid-1", 1, 100, None)];
        check(Some(&pods), &[seen("A", 110, Some(150)), seen("B", 170, None)], &["uid-1 A 110..170", "uid-1 B 170..open"]);
        check(Some(&pods), &[seen("A", 110, Some(150)), seen("B", 150, None)], &["uid-1 A 110..150", "uid-1 B 150..open"]);
        check(Some(&pods), &[seen("A", 110, Some(150)), seen("B", 149, None)], &["uid-1 A 110..open", "uid-1 B 149..open"]);
        check(Some(&pods), &[seen("A", 110, Some(150))], &["uid-1 A 110..open"]);
        check(Some(&pods), &[seen("A", 110, Some(150)), seen("A", 170, None)], &["uid-1 A 110..open"]);
    }

    #[test]
    fn without_the_api_an_owner_is_a_run_of_listings() {
        let sightings = [seen("A", 0, Some(50)), seen("B", 20, Some(50)), seen("A", 90, None)];
        let first = "podres:bay/surf/shell@1970-01-01T00:00:00.000Z";
        let second = "podres:bay/surf/shell@1970-01-01T00:00:00.090Z";
        check(None, &sightings, &[&format!("{first} A 0..50"), &format!("{first} B 20..50"), &format!("{second} A 90..open")]);
        check(Some(&[]), &sightings[2..], &[&format!("{second} A 90..open no_api_holding")]);
        let other = [Holding { node: "dune-2".into(), ..api("uid-1", 1, 0, None) }];
        check(Some(&other), &sightings[2..], &[&format!("{second} A 90..open no_api_holding")]);
    }

    #[test]
    fn containers_add_their_ids_and_names_of_ids_join() {
        let pods = [api("uid-1", 3, 0, None)];
        let in_container = |name: &str, ids| Sighting { container: Some(name.into()), ids, ..seen("A", 10, None) };
        let count = |sightings: &[Sighting]| {
            let settled = settle("bay", Some(&pods), sightings);
            settled.iter().find_map(|h| if let Held::Device { ids, .. } = &h.held { Some(ids.count()) } else { None }).unwrap()
        };
        let two = std::num::NonZeroU32::new(2).unwrap();
        assert_eq!(count(&[in_container("a", Ids::ONE), in_container("b", Ids::Number(two))]), 3);
        assert_eq!(count(&[in_container("a", Ids::Named(vec![0, 1])), in_container("b", Ids::Named(vec![1, 2]))]), 3);
    }
}
