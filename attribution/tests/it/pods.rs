//! The books of pods and nodes: the vectors, random worlds against a naive answer, and what must not bring them down.

use std::collections::{BTreeMap, BTreeSet};

use attribution::pods::{Book, EndReason, Options, PodHolding, PodState, Receipt, TeamSource, TerminalPhase, cases};
use proptest::prelude::*;
use schemas::Timestamp;
use serde_json::{Value, json};

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/vectors/allocation.jsonl");
/// 2026-03-02T10:00:00Z.
pub const T0: i64 = 1_772_445_600_000;

pub fn receipt(ms: i64) -> Receipt {
    Receipt::at(Timestamp::from_ms(T0 + ms))
}

pub fn rfc(ms: i64) -> String {
    Timestamp::from_ms(T0 + ms).to_string()
}

#[test]
fn every_allocation_case_comes_out() {
    let lines = std::fs::read_to_string(CASES).unwrap();
    let mut failed = Vec::new();
    for line in lines.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let got = cases::run(line).unwrap();
        if got != json!({"expect": case["expect"], "expect_device_seconds": case["expect_device_seconds"]}) {
            failed.push(format!("{}: got {got}", case["name"]));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(lines.lines().count(), 39, "cases were added or lost");
}

/// A pod with one container of `gpus`; `more` is merged into it.
pub fn pod(uid: &str, gpus: Value, more: Value) -> Value {
    let mut pod = json!({
        "metadata": {"uid": uid, "name": uid, "namespace": "surf"},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"nvidia.com/gpu": gpus}}}]},
        "status": {"phase": "Pending"},
    });
    merge(&mut pod, more);
    pod
}

pub fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            more.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, more) => *into = more,
    }
}

fn seen(book: &mut Book, ms: i64, pod: &Value) {
    book.seen(pod.to_string().as_bytes(), receipt(ms)).unwrap();
}

fn only(book: &Book) -> PodHolding {
    let mut holdings: Vec<_> = book.states().into_iter().flat_map(|state| state.holdings).collect();
    assert_eq!(holdings.len(), 1, "{holdings:?}");
    holdings.remove(0)
}

fn bound(scheduled: i64) -> Value {
    json!({"spec": {"nodeName": "dune-1"}, "status": {"conditions": [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc(scheduled)}]}})
}

fn ended(phase: &str, finished: &[Option<i64>]) -> Value {
    let status = |(i, at): (usize, &Option<i64>)| {
        json!({"name": if i == 0 { "main".into() } else { format!("c{i}") },
               "state": {"terminated": {"startedAt": rfc(5_000), "finishedAt": at.map(rfc)}}})
    };
    json!({"status": {"phase": phase, "containerStatuses": finished.iter().enumerate().map(status).collect::<Vec<_>>()}})
}

#[test]
fn the_end_is_the_best_evidence_there_is() {
    let run = |finished: &[Option<i64>], receipt_at: i64| {
        let mut book = Book::new(Options::default());
        let mut running = pod("u", json!("2"), bound(1_000));
        seen(&mut book, 1_300, &running);
        merge(&mut running, ended("Failed", finished));
        seen(&mut book, receipt_at, &running);
        let holding = only(&book);
        assert_eq!((holding.bound - T0, holding.bind_inferred), (1_000, false));
        assert_eq!((holding.end_reason, holding.terminal_phase), (Some(EndReason::Terminal), Some(TerminalPhase::Failed)));
        (holding.ended.unwrap() - T0, holding.end_inferred)
    };
    assert_eq!(run(&[Some(60_000)], 60_900), (60_000, false));
    assert_eq!(run(&[None], 60_900), (60_900, true), "a container without finishedAt");
    assert_eq!(run(&[Some(62_000)], 60_900), (60_900, true), "after its own receipt");
    assert_eq!(run(&[Some(0)], 60_900), (60_900, true), "before the bind");
    assert_eq!(run(&[], 60_900), (60_900, true), "no statuses");
}

#[test]
fn removal_relist_and_their_flags() {
    let mut book = Book::new(Options::default());
    seen(&mut book, 0, &pod("u", json!("2"), json!({"spec": {"nodeName": "dune-1"}})));
    let unflagged = only(&book);
    assert!(unflagged.bind_inferred && unflagged.bound == T0, "{unflagged:?}");
    // The condition comes later and is better evidence; the same pod goes while nobody watches.
    seen(&mut book, 700, &pod("u", json!("2"), bound(-1_000)));
    assert_eq!((only(&book).bound - T0, only(&book).bind_inferred), (-1_000, false));
    assert!(book.relist([], None, receipt(90_000)).is_empty());
    let gone = only(&book);
    assert_eq!((gone.ended, gone.end_inferred, gone.end_reason), (Some(T0 + 90_000), true, Some(EndReason::Removed)));
    let message = gone.message("reef", Timestamp::from_ms(T0), 3);
    assert_eq!((message.flags, message.end_reason, message.count), (vec!["end_inferred".to_owned()], "removed".into(), Some(2)));
    // An older version that comes late by delivery, and a list older than what is known, say nothing.
    let mut book = Book::new(Options::default());
    seen(&mut book, 0, &pod("u", json!("2"), json!({"metadata": {"resourceVersion": "20"}, "spec": {"nodeName": "a"}})));
    assert!(book.relist([], Some(15), receipt(500)).is_empty());
    seen(&mut book, 900, &pod("u", json!("2"), json!({"metadata": {"resourceVersion": "9"}, "status": {"phase": "Failed"}})));
    assert_eq!(only(&book).ended, None);
    assert!(book.relist([], Some(21), receipt(1_000)).is_empty());
    assert_eq!(only(&book).ended, Some(T0 + 1_000));
    // A clock that lags is put right.
    let mut book = Book::new(Options::default());
    let late = Receipt { at: Timestamp::from_ms(T0), api_ahead_ms: 1_500 };
    book.seen(pod("u", json!(1), json!({"spec": {"nodeName": "a"}})).to_string().as_bytes(), late).unwrap();
    assert_eq!(only(&book).bound, T0 + 1_500);
}

#[test]
fn deletion_is_asked_for_before_the_grace_that_it_gives() {
    let deleted = |stamp: i64, grace: Option<i64>| {
        let mut book = Book::new(Options::default());
        seen(&mut book, 0, &pod("u", json!("1"), bound(0)));
        let metadata = json!({"deletionTimestamp": rfc(stamp), "deletionGracePeriodSeconds": grace});
        seen(&mut book, 100_200, &pod("u", json!("1"), json!({"metadata": metadata, "spec": {"nodeName": "dune-1"}})));
        only(&book).terminating_from.map(|at| at - T0)
    };
    assert_eq!(deleted(400_000, Some(300)), Some(100_000));
    assert_eq!(deleted(700_000, Some(300)), Some(100_200), "the grace was added twice");
    assert_eq!(deleted(400_000, None), Some(100_200));
    assert_eq!(deleted(400_000, Some(i64::MAX)), Some(100_200));
    assert_eq!(deleted(400_000, Some(9_000_000)), Some(0), "not before the bind");
}

#[test]
fn labels_owners_teams_and_demand() {
    let chain = vec![
        TeamSource::PodLabel("team".into()),
        TeamSource::NamespaceLabel("team".into()),
        TeamSource::Mapping(BTreeMap::from([("surf".to_owned(), "mapped".to_owned())])),
    ];
    let mut book = Book::new(Options { team: chain, ..Options::default() });
    let metadata = json!({
        "creationTimestamp": rfc(-60_000),
        "labels": {"queue": "q", "kueue.x-k8s.io/priority-class": "high", "strandline.io/shape": "pretraining"},
        "annotations": {"strandline.io/last-checkpoint": "2026-03-02T09:59:00.250Z"},
        "ownerReferences": [{"kind": "Node", "name": "x"}, {"kind": "PyTorchJob", "name": "llm", "controller": true}],
    });
    let waiting =
        pod("u", json!("8"), json!({"metadata": metadata, "spec": {"nodeSelector": {"nvidia.com/gpu.product": "H100"}}}));
    seen(&mut book, 0, &waiting);
    let state = book.take_changes().remove(0);
    let demand = state.demand.unwrap();
    assert!(state.holdings.is_empty());
    assert_eq!((demand.gpus, &*demand.product, demand.asked - T0, demand.outcome()), (8, "H100", -60_000, None));
    assert_eq!(demand.team, "mapped");
    book.namespace(json!({"metadata": {"name": "surf", "labels": {"team": "wave"}}}).to_string().as_bytes(), receipt(5)).unwrap();
    assert_eq!(book.take_changes()[0].demand.as_ref().unwrap().team, "wave");
    let mut running = waiting.clone();
    merge(&mut running, bound(7_000));
    merge(
        &mut running,
        json!({"metadata": {"labels": {"team": "crest"}, "annotations": {"strandline.io/last-checkpoint": "soon"}}}),
    );
    seen(&mut book, 7_400, &running);
    let state = book.take_changes().remove(0);
    let demand = state.demand.unwrap();
    assert_eq!((demand.outcome(), demand.ended, &*demand.node), (Some("bound"), Some(T0 + 7_000), "dune-1"));
    let holding = &state.holdings[0];
    assert_eq!((&*holding.team, &*holding.workload, &*holding.queue), ("crest", "PyTorchJob/llm", "q"));
    assert_eq!((&*holding.shape, &*holding.priority_class, holding.last_checkpoint), ("pretraining", "high", None));
    assert_eq!(holding.message("reef", state.observed_at, state.revision).shape, "pretraining");
    // The same once more is no change.
    seen(&mut book, 8_000, &running);
    assert!(book.take_changes().is_empty());
    merge(&mut running, json!({"metadata": {"annotations": {"strandline.io/last-checkpoint": "2026-03-02T10:00:06Z"}}}));
    seen(&mut book, 9_000, &running);
    assert_eq!(book.take_changes()[0].holdings[0].last_checkpoint, Some(T0 + 6_000));
    // One that gives up is withdrawn.
    let mut book = Book::new(Options::default());
    seen(&mut book, 0, &waiting);
    book.deleted(waiting.to_string().as_bytes(), receipt(3_000)).unwrap();
    let state = book.take_changes().remove(0);
    let demand = state.demand.unwrap().message("reef", "u", state.observed_at, 0);
    assert_eq!((&*demand.outcome, demand.ended_ms), ("withdrawn", Some(T0 + 3_000)));
}

#[test]
fn claims_count_their_devices_once() {
    let mut book = Book::new(Options::default());
    let claim = |name: &str, devices: usize, pods: &[&str]| {
        let result = json!({"driver": "gpu.nvidia.com", "pool": "dune-1", "device": "gpu-0", "request": "gpu"});
        let mut results = vec![result.clone(); devices];
        results.push(json!({"driver": "gpu.nvidia.com", "pool": "dune-1", "device": "gpu-1", "adminAccess": true}));
        results.push(json!({"driver": "nic.example", "pool": "dune-1", "device": "nic-0"}));
        let pods: Vec<Value> = pods.iter().map(|uid| json!({"resource": "pods", "name": uid, "uid": uid})).collect();
        json!({"metadata": {"uid": format!("c-{name}"), "name": name, "namespace": "surf"},
               "status": {"allocation": {"devices": {"results": results}}, "reservedFor": pods}})
    };
    book.claim(claim("mine", 2, &["u"]).to_string().as_bytes(), receipt(0)).unwrap();
    book.claim(claim("ours", 1, &["u", "v"]).to_string().as_bytes(), receipt(0)).unwrap();
    book.claim(claim("made", 3, &["u"]).to_string().as_bytes(), receipt(0)).unwrap();
    // One that lost its allocation again was held all the same.
    book.claim(json!({"metadata": {"uid": "c-mine", "name": "mine", "namespace": "surf"}}).to_string().as_bytes(), receipt(9))
        .unwrap();
    let mut running = pod("u", json!("3"), bound(0));
    merge(&mut running, json!({"status": {"extendedResourceClaimStatus": {"resourceClaimName": "made"}}}));
    seen(&mut book, 10, &running);
    let state = book.states().remove(0);
    let held: Vec<_> = state.holdings.iter().map(|h| (h.id.as_str(), h.count, h.weight)).collect();
    assert_eq!(
        held,
        [("u", 3, None), ("u/claim/mine/gpu.nvidia.com", 2, None), ("u/claim/ours/gpu.nvidia.com", 1, Some((1, 2)))]
    );
}

#[test]
fn what_cannot_be_read_is_named_counted_and_kept_out() {
    let mut book = Book::new(Options::default());
    let good = pod("good", json!("1"), bound(0));
    seen(&mut book, 0, &good);
    let most = json!({"name": "more", "resources": {"limits": {"nvidia.com/gpu": u32::MAX}}});
    let two_containers = pod("b", json!(1), json!({"spec": {"containers": [most.clone(), most]}}));
    let deep = format!("{{\"metadata\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for (bad, field) in [
        (pod("b", json!("500m"), json!({})).to_string(), "spec.containers[0].resources.requests[nvidia.com/gpu]"),
        (pod("b", json!("-1"), json!({})).to_string(), "spec.containers[0].resources.requests[nvidia.com/gpu]"),
        (pod("b", json!("1E"), json!({})).to_string(), "spec.containers[0].resources.requests[nvidia.com/gpu]"),
        (pod("b", json!(1.5), json!({})).to_string(), "spec.containers[0].resources.requests[nvidia.com/gpu]"),
        (two_containers.to_string(), "spec.containers: sum of nvidia.com/gpu"),
        (pod("b", json!({"x": 1}), json!({})).to_string(), "spec.containers[0].resources.requests.nvidia.com/gpu"),
        (pod("b", json!("1"), json!({"spec": {"nodeName": 7}})).to_string(), "spec.nodeName"),
        (
            pod("b", json!("1"), json!({"status": {"conditions": [{"lastTransitionTime": "noon"}]}})).to_string(),
            "status.conditions[0].lastTransitionTime",
        ),
        (pod("b", json!("1"), json!({"metadata": {"uid": ""}})).to_string(), "metadata.uid"),
        (pod("b", json!("1"), json!({"metadata": {"uid": "x".repeat(300)}})).to_string(), "metadata.uid"),
        (pod("b", json!("1"), json!({"metadata": {"namespace": null}})).to_string(), "metadata.namespace"),
        (pod("b", json!("1"), json!({"spec": {"containers": {}}})).to_string(), "spec.containers"),
        (deep, "metadata[0]"),
        ("[]".into(), "metadata.uid"),
        ("nonsense".into(), "."),
        (String::new(), "."),
    ] {
        let error = book.seen(bad.as_bytes(), receipt(5)).unwrap_err();
        assert_eq!(error.field, field, "{error}");
        if bad.contains("\"name\":\"b\"") && field.starts_with("spec") {
            assert!(error.to_string().starts_with("pod surf/b is refused: spec."), "{error}");
        }
    }
    assert_eq!(book.counts().refused, 16);
    assert_eq!(book.len(), 1);
    for (quantity, expected) in [(json!("1k"), 1000), (json!("2e0"), 2), (json!(3), 3), (json!("2000m"), 2)] {
        let mut book = Book::new(Options::default());
        seen(&mut book, 0, &pod("q", quantity, bound(0)));
        assert_eq!(only(&book).count, expected);
    }
    // A removal is believed though the rest of the object is not; an unreadable entry of a list is not gone.
    let mut broken = good.clone();
    merge(&mut broken, json!({"spec": {"nodeName": 7}}));
    assert_eq!(book.relist([broken.to_string().as_bytes()], None, receipt(10)).len(), 1);
    assert_eq!(only(&book).ended, None);
    merge(&mut broken, json!({"metadata": {"uid": 5}}));
    assert_eq!(book.relist([broken.to_string().as_bytes()], None, receipt(11)).len(), 1);
    assert_eq!(only(&book).ended, None, "known by its name");
    merge(&mut broken, json!({"metadata": {"uid": "good"}}));
    assert!(book.deleted(broken.to_string().as_bytes(), receipt(20)).is_err());
    assert_eq!(only(&book).ended, Some(T0 + 20));
}

#[test]
fn a_watcher_that_starts_anew_goes_on_from_what_was_told() {
    let mut before = Book::new(Options::default());
    seen(&mut before, 0, &pod("stays", json!("2"), json!({"spec": {"nodeName": "a"}, "metadata": {"labels": {"team": "t"}}})));
    seen(&mut before, 0, &pod("goes", json!("1"), bound(-3_000)));
    let told: Vec<_> = before.take_changes();
    let mut after = Book::new(Options::default());
    for state in &told {
        state.holdings.iter().for_each(|h| after.resume(&h.message("reef", state.observed_at, state.revision)));
    }
    let strip = |book: &Book| book.states().into_iter().flat_map(|s| s.holdings).collect::<Vec<_>>();
    assert_eq!(strip(&after), strip(&before));
    let stays = pod("stays", json!("2"), json!({"spec": {"nodeName": "a"}, "metadata": {"labels": {"team": "t"}}})).to_string();
    after.relist([stays.as_bytes()], None, receipt(500_000));
    let holdings = strip(&after);
    assert_eq!((holdings[0].ended, holdings[0].end_inferred), (Some(T0 + 500_000), true), "{holdings:?}");
    assert_eq!((holdings[1].bound, holdings[1].bind_inferred, holdings[1].ended), (T0, true, None), "the receipt stands");
}

#[test]
fn many_pods_fit_and_what_ended_is_forgotten() {
    let mut book = Book::new(Options::default());
    for i in 0..20_000_i64 {
        let mut one = pod(&format!("u-{i}"), json!("1"), bound(i));
        seen(&mut book, i, &one);
        merge(&mut one, ended("Succeeded", &[Some(i + 60_000)]));
        if i % 2 == 0 {
            seen(&mut book, i + 61_000, &one);
        }
    }
    assert_eq!(book.len(), 20_000);
    assert_eq!(book.take_changes().len(), 20_000);
    book.forget(Timestamp::from_ms(T0 + 3_600_000));
    assert_eq!(book.len(), 10_000);
}

/// One event of a random history.
#[derive(Clone, Debug)]
enum Event {
    Seen(i64, Value),
    Deleted(i64, Value),
    Relist(i64, Vec<Value>),
}

impl Event {
    fn at(&self) -> i64 {
        match self {
            Self::Seen(at, _) | Self::Deleted(at, _) | Self::Relist(at, _) => *at,
        }
    }
}

/// Histories in which anything may follow anything: stale phases, nodes that vanish, uids that return.
fn history() -> impl Strategy<Value = Vec<Event>> {
    let one = (0_u8..4, any::<bool>(), 0_u8..6, proptest::option::of(0_i64..40), proptest::option::of(0_i64..40)).prop_map(
        |(uid, node, phase, scheduled, finished)| {
            let mut pod = pod(&format!("u{uid}"), json!(uid + 1), json!({}));
            if node {
                merge(&mut pod, json!({"spec": {"nodeName": "a"}}));
            }
            if let Some(scheduled) = scheduled.filter(|_| node) {
                merge(&mut pod, bound(scheduled * 1000));
            }
            match phase {
                0 => merge(&mut pod, ended("Succeeded", &[finished.map(|f| f * 1000)])),
                1 => merge(&mut pod, json!({"status": {"phase": "Running"}})),
                _ => {}
            }
            pod
        },
    );
    let event = (0_i64..40, 0_u8..9, one.clone(), proptest::collection::vec(one, 0..4)).prop_map(|(at, kind, pod, pods)| {
        let at = at * 1000 + 500;
        match kind {
            0 => Event::Deleted(at, pod),
            1 => {
                let mut once = BTreeSet::new();
                Event::Relist(at, pods.into_iter().filter(|p| once.insert(p["metadata"]["uid"].to_string())).collect())
            }
            _ => Event::Seen(at, pod),
        }
    });
    // Receipts are one's own: two events of one instant have no order.
    proptest::collection::vec(event, 0..14).prop_map(|events| {
        let mut taken = BTreeSet::new();
        events.into_iter().filter(|event| taken.insert(event.at())).collect()
    })
}

fn feed(book: &mut Book, event: &Event) {
    match event {
        Event::Seen(at, pod) => book.seen(pod.to_string().as_bytes(), receipt(*at)).unwrap(),
        Event::Deleted(at, pod) => book.deleted(pod.to_string().as_bytes(), receipt(*at)).unwrap(),
        Event::Relist(at, pods) => {
            let pods: Vec<String> = pods.iter().map(Value::to_string).collect();
            assert!(book.relist(pods.iter().map(|pod| pod.as_bytes()), None, receipt(*at)).is_empty());
        }
    }
}

/// (uid, bound, end, inferred bind, inferred end) of the pods that held anything, by another way: for each uid, walk the history.
fn naive(history: &[Event]) -> Vec<(String, i64, Option<i64>, bool, bool)> {
    let mut history = history.to_vec();
    history.sort_by_key(Event::at);
    let mut answer = Vec::new();
    for uid in ["u0", "u1", "u2", "u3"] {
        let (mut first_node, mut scheduled, mut end, mut known, mut alive) = (None, None::<i64>, None, false, false);
        for event in &history {
            let at = T0 + event.at();
            let mine = |pod: &&Value| pod["metadata"]["uid"] == uid;
            let (pod, gone) = match event {
                Event::Seen(_, pod) => (Some(pod).filter(mine), false),
                Event::Deleted(_, pod) => (Some(pod).filter(mine), mine(&pod)),
                Event::Relist(_, pods) => (pods.iter().find(mine), known && !pods.iter().any(|pod| mine(&pod))),
            };
            if end.is_some() || (pod.is_none() && !gone) {
                continue;
            }
            known = true;
            if let Some(pod) = pod {
                if pod["spec"]["nodeName"].is_string() && first_node.is_none() {
                    first_node = Some(at);
                }
                if let Some(time) = pod["status"]["conditions"][0]["lastTransitionTime"].as_str() {
                    let time = time.parse::<Timestamp>().unwrap().ms();
                    scheduled = Some(scheduled.map_or(time, |s| s.min(time)));
                }
                let begin = first_node.map(|first| scheduled.unwrap_or(first));
                let finished = pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"].as_str();
                let finished = finished.map(|f| f.parse::<Timestamp>().unwrap().ms());
                let finished = finished.filter(|f| *f <= at && begin.is_none_or(|begin| begin <= *f));
                if pod["status"]["phase"] == "Succeeded" {
                    end = match (finished, gone) {
                        (Some(f), _) => Some((f, false)),
                        (None, gone) => Some((at, !gone)),
                    };
                }
            }
            if gone && end.is_none() {
                end = Some((at, pod.is_none()));
            }
            alive |= end.is_none();
        }
        let Some(first) = first_node else { continue };
        let bound = scheduled.unwrap_or(first);
        if scheduled.is_none() && !alive && end.is_some_and(|(end, _)| end <= bound) {
            continue;
        }
        answer.push((uid.to_owned(), bound, end.map(|e| e.0), scheduled.is_none(), end.is_some_and(|e| e.1)));
    }
    answer
}

fn states(book: &Book) -> Vec<PodState> {
    // How often a state was told is not what it says.
    book.states().into_iter().map(|state| PodState { revision: 0, ..state }).collect()
}

proptest! {
    #[test]
    fn any_order_and_any_repetition_give_the_book_of_a_naive_walk(
        (history, shuffled) in history().prop_flat_map(|history| {
            let twice: Vec<Event> = history.iter().chain(&history).cloned().collect();
            (Just(history), Just(twice).prop_shuffle())
        }),
    ) {
        let mut sorted = history.clone();
        sorted.sort_by_key(Event::at);
        let mut book = Book::new(Options::default());
        sorted.iter().for_each(|event| feed(&mut book, event));
        let holdings: Vec<_> = book.states().into_iter().flat_map(|state| state.holdings).collect();
        let got: Vec<_> =
            holdings.iter().map(|h| (h.uid.clone(), h.bound, h.ended, h.bind_inferred, h.end_inferred)).collect();
        prop_assert_eq!(got, naive(&history));
        let mut other = Book::new(Options::default());
        shuffled.iter().for_each(|event| feed(&mut other, event));
        prop_assert_eq!(states(&other), states(&book));
        // And with next to no time for reordering, in order.
        let mut tight = Book::new(Options { reorder_ms: 0, ..Options::default() });
        sorted.iter().for_each(|event| feed(&mut tight, event));
        prop_assert_eq!(states(&tight), states(&book));
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut book = Book::new(Options::default());
        let _ = (book.seen(&bytes, receipt(0)), book.deleted(&bytes, receipt(1)), book.relist([&bytes[..]], None, receipt(2)));
    }
}
