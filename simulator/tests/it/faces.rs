//! All faces tell of one state: pages over HTTP, kubelet sockets, API facts, truth.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use attribution::podres::Client;
use schemas::{Timestamp, proto::Holding, status::RowKind};
use simulator::{
    Plan, SimClock, api_changes, api_facts, podres, serve,
    spec::{NoPage, Span},
    state, truth_rows,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{fleet, spec, text, ticks};

async fn get(address: std::net::SocketAddr, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn pages_over_http_are_the_state_or_the_fault_of_the_moment() {
    let plan = fleet("small");
    let clock = SimClock::stopped(plan.window().from());
    let listener = web::listen("0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(web::serve(listener, serve::router(plan.clone(), clock.clone()), std::future::pending()));
    assert!(get(address, "/nodes").await.ends_with("\r\n\r\nh100-0\nl4-0\n"));
    assert!(get(address, "/nodes/h100-9/metrics").await.starts_with("HTTP/1.1 404"));
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for at in ticks(&plan, 30_000) {
        clock.set(at);
        for (node, name) in [(0, "h100-0"), (1, "l4-0")] {
            let answer = get(address, &serve::path(name)).await;
            let kind = match plan.no_page(node, at) {
                None => {
                    let page = answer.split_once("\r\n\r\n").unwrap().1;
                    assert_eq!(page.as_bytes(), text(&plan, node, at));
                    "page"
                }
                Some(NoPage::Refuse) => {
                    assert_eq!(answer, "");
                    "refused"
                }
                Some(_) => {
                    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
                    "error"
                }
            };
            *seen.entry(kind).or_default() += 1;
        }
    }
    assert!(seen["page"] > 400 && seen["refused"] > 1 && seen["error"] == 12, "{seen:?}");
}

#[tokio::test]
async fn kubelets_answer_what_the_pages_and_the_plan_say() {
    let plan = fleet("small");
    let clock = SimClock::stopped(plan.window().from());
    let folder = tempfile::tempdir().unwrap();
    let kubelets = podres::Kubelets::start(&plan, &clock, folder.path()).unwrap();
    let mut client = Client::new(&kubelets.socket("h100-0"), Duration::from_secs(5)).unwrap();
    let allocatable = client.allocatable().await.unwrap();
    assert_eq!(allocatable.devices.iter().map(|entry| entry.device_ids.len()).sum::<usize>(), 4);
    let mut holders = 0;
    for at in ticks(&plan, 61_007) {
        clock.set(at);
        let mut listed: Vec<(String, String)> = Vec::new();
        for pod in client.list().await.unwrap().pod_resources {
            let devices = pod.containers.iter().flat_map(|container| &container.devices);
            assert!(devices.clone().all(|entry| entry.resource_name == "nvidia.com/gpu" && entry.topology.is_some()));
            listed.extend(
                devices.flat_map(|entry| &entry.device_ids).map(|id| (id.clone(), format!("{}/{}", pod.namespace, pod.name))),
            );
        }
        listed.sort();
        let mut held: Vec<(String, String)> = Vec::new();
        let page = String::from_utf8(text(&plan, 0, at)).unwrap();
        for device in plan.devices().filter(|device| device.node == 0) {
            let uuid = &plan.device(device).identity.uuid;
            let line =
                page.lines().find(|line| line.starts_with("DCGM_FI_DEV_GPU_TEMP{") && line.contains(uuid.as_str())).unwrap();
            match state(&plan, device, at).unwrap().holder {
                Some(pod) => {
                    let pod = &plan.pods()[pod];
                    assert!(
                        line.contains(&format!(r#"container="main",namespace="{}",pod="{}""#, pod.namespace, pod.name)),
                        "{line}"
                    );
                    held.push((uuid.clone(), format!("{}/{}", pod.namespace, pod.name)));
                }
                None => assert!(!line.contains("pod="), "{line}"),
            }
        }
        held.sort();
        holders += held.len();
        assert_eq!(listed, held, "at {at}");
    }
    assert!(holders > 100);
    kubelets.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_kubelets_are_no_burden() {
    let mut many = spec("small");
    many.clusters[0].node_pools[0].count = 200;
    let plan = Arc::new(Plan::new(many, simulator::Seed(1)).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let clock = SimClock::stopped(plan.window().from().plus_ms(3_000_000));
    let kubelets = podres::Kubelets::start(&plan, &clock, folder.path()).unwrap();
    let mut pods = 0;
    for node in plan.nodes() {
        let mut client = Client::new(&kubelets.socket(&node.name), Duration::from_secs(5)).unwrap();
        pods += client.list().await.unwrap().pod_resources.len();
    }
    assert!(pods > 200, "{pods}");
    kubelets.stop().await;
}

#[test]
fn a_socket_path_that_is_too_long_is_refused_before_anything_is_laid() {
    let plan = fleet("small");
    let folder = std::path::Path::new("/tmp").join("x".repeat(120));
    let err = podres::Kubelets::start(&plan, &SimClock::stopped(plan.window().from()), &folder).unwrap_err();
    assert!(err.to_string().contains("is too long for a unix socket"), "{err}");
}

/// A holding's time inside the window, by the API's words, in parts of a whole GPU's millisecond.
fn held_ms(holding: &Holding, plan: &Plan) -> i64 {
    let (from, to) = (plan.window().from().ms(), plan.window().to().ms());
    let bound = holding.bound_ms.unwrap().max(from);
    (holding.ended_ms.unwrap_or(to).min(to) - bound).max(0) * i64::from(holding.count.unwrap())
}

#[test]
fn api_facts_and_truth_allocate_the_same_to_the_millisecond() {
    for name in ["small", "demo"] {
        let plan = fleet(name);
        let facts = api_facts(&plan, plan.window().to());
        let told: BTreeMap<&str, i64> =
            facts.holdings.iter().map(|h| (&*h.id, held_ms(h, &plan))).filter(|(_, ms)| *ms > 0).collect();
        let mut truth: BTreeMap<&str, (i64, i64, (u32, u32))> = BTreeMap::new();
        for row in truth_rows(&plan, plan.window()).unwrap().iter().filter(|row| row.kind == RowKind::Owner) {
            let pod = &plan.pods()[row.pod.unwrap()];
            let of_pod = truth.entry(&pod.uid).or_insert((0, 0, pod.bound.as_ref().unwrap().unit));
            (of_pod.0, of_pod.1) = (of_pod.0 + row.ms, of_pod.1 + 1);
        }
        assert!(told.keys().eq(truth.keys()), "{name}: the same pods hold");
        for (uid, (ms, rows, (num, den))) in truth {
            // Of an instance or a replica each hour's row is rounded.
            let rounding = if den == 1 { 0 } else { rows * i64::from(den) };
            assert!((told[uid] * i64::from(num) - ms * i64::from(den)).abs() <= rounding, "{name}: {uid}");
        }
    }
}

#[test]
fn changes_add_up_to_facts() {
    let plan = fleet("small");
    let mut latest = BTreeMap::new();
    let mut nodes = BTreeMap::new();
    let mut demands = BTreeMap::new();
    let mut before = Timestamp::from_ms(i64::MIN);
    for at in ticks(&plan, 97_003) {
        let changes = api_changes(&plan, before, at);
        assert!(changes.holdings.windows(2).all(|two| two[0].observed_at_ms <= two[1].observed_at_ms));
        for holding in changes.holdings {
            assert!(before.ms() < holding.observed_at_ms && holding.observed_at_ms <= at.ms());
            let times = [holding.bound_ms, holding.started_ms, holding.terminating_from_ms, holding.ended_ms];
            assert!(times.into_iter().flatten().all(|ms| ms % 1000 == 0 && ms <= holding.observed_at_ms), "{holding:?}");
            assert_eq!((&*holding.source, &*holding.resource, &*holding.device), ("api", "nvidia.com/gpu", ""));
            let earlier: Option<Holding> = latest.insert(holding.id.clone(), holding.clone());
            assert!(earlier.is_none_or(|earlier| earlier.revision < holding.revision));
        }
        nodes.extend(changes.nodes.into_iter().map(|node| (node.node.clone(), node)));
        demands.extend(changes.demands.into_iter().map(|demand| (demand.pod_uid.clone(), demand)));
        let facts = api_facts(&plan, at);
        assert_eq!(facts.holdings.into_iter().map(|h| (h.id.clone(), h)).collect::<BTreeMap<_, _>>(), latest);
        assert_eq!(facts.nodes.into_iter().map(|node| (node.node.clone(), node)).collect::<BTreeMap<_, _>>(), nodes);
        assert_eq!(facts.demands.into_iter().map(|d| (d.pod_uid.clone(), d)).collect::<BTreeMap<_, _>>(), demands);
        before = at;
    }
    assert!(latest.values().any(|holding| holding.end_reason == "terminal") && latest.values().any(|h| h.ended_ms.is_none()));
    assert!(demands.values().all(|demand| demand.outcome.is_empty() == demand.ended_ms.is_none()));
    let h100 = &nodes["h100-0"];
    assert_eq!((h100.devices.len(), h100.capacity_gpus, &*h100.purchase_option), (4, Some(4), "reserved"));
    let spells: Vec<(&str, bool)> = h100.unavailable.iter().map(|spell| (&*spell.reason, spell.to_ms.is_some())).collect();
    assert!(spells.contains(&("cordoned", true)) && spells.contains(&("not_ready", true)), "{spells:?}");
    assert!(h100.unavailable.iter().all(|spell| spell.from_ms % 1000 == 0));
}

#[test]
fn spells_are_open_until_they_end() {
    let plan = fleet("small");
    let begun = plan.window().from().plus_ms(71 * 60_000);
    let node = api_facts(&plan, begun).nodes.into_iter().find(|node| node.node == "h100-0").unwrap();
    let cordon = node.unavailable.iter().find(|spell| spell.reason == "cordoned").unwrap();
    assert_eq!((cordon.from_ms, cordon.to_ms), (plan.window().from().ms() + 70 * 60_000, None));
    assert_eq!(Span::from_ms(0), None);
}
