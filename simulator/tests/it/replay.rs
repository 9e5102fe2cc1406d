//! Traces played again: the same jobs for as long, load as it came, pages byte for byte.

use std::{collections::BTreeMap, path::Path};

use simulator::{
    FleetSpec, Plan, Seed, SimClock,
    plan::Outcome,
    replay::pages::{self, Recording},
    spec::NodePool,
    state,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn traces() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/traces")
}

fn spec(nodes: u32, hours: u32, replay: &str) -> FleetSpec {
    let text = format!(
        "name: replayed\nstart: 2026-03-02T00:00:00Z\nhours: {hours}\nscrape_interval: 60s\nreplay: {replay}\nclusters:\n  - name: c\n    \
         node_pools:\n      - {{ name: v100, count: {nodes}, product: Tesla V100-SXM2-32GB, gpus_per_node: 8, region: r, zone: z, provider: p, \
         purchase_option: reserved }}\nteams:\n  - {{ name: t, namespace: t, weight: 1, mix: {{ decode: 1 }} }}\narrivals: {{ load: 0.5 }}\n"
    );
    FleetSpec::parse(&text).unwrap()
}

fn planned(nodes: u32, hours: u32, replay: &str) -> Plan {
    let mut spec = spec(nodes, hours, replay);
    spec.load(&traces()).unwrap();
    Plan::new(spec, Seed(3)).unwrap()
}

#[test]
fn jobs_hold_what_they_held_for_as_long_as_they_did() {
    let plan = planned(150, 48, "{ jobs: { form: philly-jobs, file: philly-jobs/jobs.csv } }");
    let mut reader = csv::Reader::from_path(traces().join("philly-jobs/jobs.csv")).unwrap();
    let mut expected: BTreeMap<String, (i64, i64, String)> = BTreeMap::new();
    for row in reader.records().map(Result::unwrap) {
        // Two days of the trace, which begins at midnight.
        let start: i64 = row[2].parse().unwrap();
        if start < 1_506_902_400 + 48 * 3600 {
            expected.insert(
                format!("job-{}", &row[0]),
                (row[4].parse().unwrap(), row[5].parse().unwrap(), format!("vc-{}", &row[1])),
            );
        }
    }
    let mut found: BTreeMap<String, (i64, i64, String)> = BTreeMap::new();
    for pod in plan.pods() {
        let bound = pod.bound.as_ref().unwrap_or_else(|| panic!("the fleet is large enough for {}", pod.name));
        let job = pod.workload.split_once('/').unwrap().1.to_owned();
        let entry = found.entry(job.clone()).or_insert((0, 0, pod.team.to_string()));
        // A gang begins when the last of its pods can, a few seconds later.
        let slack = if pod.gang > 1 { 10_000 } else { 0 };
        let (duration, told) = (bound.ended - bound.started.unwrap(), expected.get(&job).map_or(0, |(duration, ..)| *duration));
        entry.0 = if (0..=slack).contains(&(told * 1000 - duration)) { told } else { duration / 1000 };
        entry.1 += i64::from(pod.gpus);
        assert_eq!(bound.outcome, Outcome::Succeeded);
        assert!(bound.devices.len() == pod.gpus as usize && pod.created <= bound.bound);
    }
    assert!(expected.len() > 1_500 && expected.values().any(|(_, gpus, _)| *gpus > 8), "{}", expected.len());
    expected.retain(|_, (duration, ..)| *duration > 0);
    assert_eq!(found, expected);
}

#[test]
fn jobs_of_one_name_are_different_pods() {
    let folder = tempfile::tempdir().unwrap();
    let rows = ["a", "a", "a-2", "A", "---", "", "a"].map(|id| format!("{id},v,100,60,1\n")).concat();
    std::fs::write(folder.path().join("t.csv"), format!("job_id,vc,start_unix,duration_s,num_gpus\n{rows}")).unwrap();
    let mut spec = spec(1, 1, "{ jobs: { form: philly-jobs, file: t.csv } }");
    spec.load(folder.path()).unwrap();
    let plan = Plan::new(spec, Seed(3)).unwrap();
    let names: std::collections::BTreeSet<&str> = plan.pods().iter().map(|pod| &*pod.name).collect();
    let uids: std::collections::BTreeSet<&str> = plan.pods().iter().map(|pod| &*pod.uid).collect();
    assert_eq!((plan.pods().len(), names.len(), uids.len()), (7, 7, 7), "{names:?}");
}

#[test]
fn pods_of_a_shared_cluster_end_as_they_did() {
    let plan = planned(60, 72, "{ jobs: { form: openb-pods, file: openb-pods/pods.csv, from: 117d } }");
    let failed = plan.pods().iter().filter_map(|pod| pod.bound.as_ref()).filter(|bound| bound.outcome == Outcome::Failed).count();
    assert!(plan.pods().len() > 100 && failed > 10 && failed < plan.pods().len(), "{failed} of {}", plan.pods().len());
    let teams: std::collections::BTreeSet<&str> = plan.pods().iter().map(|pod| &*pod.team).collect();
    assert!(teams.contains("ls") && teams.contains("be"), "{teams:?}");
}

#[test]
fn pods_that_asked_for_a_part_of_a_gpu_hold_as_many_ids_of_one() {
    let mut spec = spec(60, 72, "{ jobs: { form: openb-pods, file: openb-pods/pods.csv, from: 117d } }");
    let pools = &mut spec.clusters[0].node_pools;
    let shared = NodePool { name: "shared".into(), count: 20, replicas: 20, rename: true, ..pools[0].clone() };
    pools.push(shared);
    spec.load(&traces()).unwrap();
    let plan = Plan::new(spec, Seed(3)).unwrap();
    let (mut parts, mut whole, mut beside) = (0, 0, 0);
    for pod in plan.pods() {
        let Some(bound) = &pod.bound else { continue };
        let node = &plan.nodes()[bound.node];
        let Some(part) = pod.part else {
            assert_eq!((node.replicas, bound.unit), (1, (1, 1)), "{}", pod.name);
            whole += 1;
            continue;
        };
        assert_eq!((node.replicas, bound.devices.len() as u32), (20, (part * 20).div_ceil(1000)), "{}", pod.name);
        assert!(bound.devices.iter().all(|device| *device == bound.devices[0]), "{}: all of one GPU", pod.name);
        let device = simulator::DeviceRef { node: bound.node, gpu: bound.devices[0] };
        let held: Vec<(usize, u32)> = plan.holders(device, schemas::Timestamp::from_ms(bound.named)).collect();
        assert!(held.iter().map(|(_, ids)| ids).sum::<u32>() <= 20, "{held:?}");
        parts += 1;
        beside += usize::from(held.len() > 1);
    }
    assert!(parts > 50 && whole > 50 && beside > 10, "{parts} {whole} {beside}");
}

/// Mean of GPU_UTIL over held GPUs in each minute of the first `minutes` after the first ten.
fn utils(plan: &Plan, minutes: i64) -> Vec<f64> {
    let at = |minute: i64| plan.window().from().plus_ms((minute + 10) * 60_000 + 30_000);
    let mean = |minute: i64| {
        let states = plan.devices().filter_map(|device| state(plan, device, at(minute))).filter(|state| state.holder.is_some());
        let utils: Vec<i64> = states.filter_map(|state| state.util_pct).collect();
        utils.iter().sum::<i64>() as f64 / utils.len() as f64
    };
    (0..minutes).map(mean).collect()
}

#[test]
fn requests_are_the_load_of_inference() {
    let plan = planned(20, 24, "{ requests: { form: servegen-arrivals, file: servegen-arrivals/client_rates.csv } }");
    let other = planned(20, 24, "{}");
    let mut rates: BTreeMap<i64, f64> = BTreeMap::new();
    let mut reader = csv::Reader::from_path(traces().join("servegen-arrivals/client_rates.csv")).unwrap();
    for row in reader.records().map(Result::unwrap) {
        *rates.entry(row[1].parse().unwrap()).or_default() += row[2].parse::<f64>().unwrap();
    }
    let minutes = 23 * 60;
    let load: Vec<f64> = (0..minutes).map(|minute| rates[&((minute + 10) / 10 * 600)]).collect();
    let follows = |plan: &Plan| correlation(&utils(plan, minutes), &load);
    let (played, own) = (follows(&plan), follows(&other));
    assert!(played > 0.9 && own < played - 0.05, "{played} with the trace, {own} without");
    let azure = planned(2, 1, "{ requests: { form: azure-llm-2023, file: azure-llm-2023/code.csv } }");
    assert!(azure.pods().iter().any(|pod| pod.bound.is_some()));
}

fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let sum = |of: &dyn Fn(f64, f64) -> f64| a.iter().zip(b).map(|(a, b)| of(a - mean_a, b - mean_b)).sum::<f64>();
    sum(&|a, b| a * b) / (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt()
}

#[test]
fn traces_that_cannot_be_played_are_refused_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let write = |text: &str| std::fs::write(folder.path().join("t.csv"), text).unwrap();
    let refusal = |replay: &str| spec(1, 1, replay).load(folder.path()).unwrap_err().to_string();
    let philly = "{ jobs: { form: philly-jobs, file: t.csv } }";
    assert!(refusal("{ jobs: { form: philly-jobs, file: none.csv } }").starts_with("replay.jobs.file: cannot read "));
    write("job_id,vc,start_unix,duration_s,gpus\n");
    assert!(refusal(philly).ends_with("t.csv, line 1: no column `num_gpus`; is it of another form?"));
    write("job_id,vc,start_unix,duration_s,num_gpus\n1,a,100,10,1\n2,a,100,-10,1\n");
    assert!(
        refusal(philly).ends_with("t.csv, line 3: duration_s `-10` is no whole number between 0 and 3155760000"),
        "{}",
        refusal(philly)
    );
    write("job_id,vc,start_unix,duration_s,num_gpus\n");
    assert!(refusal(philly).ends_with("t.csv has nothing that could be played: no job with GPUs after `from`"));
    write("TIMESTAMP,x\nyesterday,1\n");
    let azure = "{ requests: { form: azure-llm-2023, file: t.csv } }";
    assert!(refusal(azure).ends_with("t.csv, line 2: TIMESTAMP `yesterday` is no time"), "{}", refusal(azure));
    let unread = Plan::new(spec(1, 1, philly), Seed(1)).unwrap_err().to_string();
    assert!(unread.contains("replay: its files are not read yet"), "{unread}");
}

#[tokio::test]
async fn recorded_pages_are_served_as_they_were_at_their_times() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("dune-1")).unwrap();
    let pages = [("2026-03-02T10:00:00Z", "first 1\n"), ("2026-03-02T10:00:15Z", "# odd \u{fe}\nsecond 2")];
    for (at, text) in pages {
        std::fs::write(folder.path().join("dune-1").join(format!("{at}.txt")), text).unwrap();
    }
    let recording = std::sync::Arc::new(Recording::open(folder.path()).unwrap());
    assert_eq!(recording.start(), Some("2026-03-02T10:00:00Z".parse().unwrap()));
    let clock = SimClock::stopped("2026-03-02T09:59:59Z".parse().unwrap());
    let listener = web::listen("0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(web::serve(listener, pages::router(recording, clock.clone()), std::future::pending()));
    for (at, answer) in [
        ("2026-03-02T09:59:59Z", "no page of that node up to now; see /nodes\n"),
        ("2026-03-02T10:00:00Z", pages[0].1),
        ("2026-03-02T10:00:14.999Z", pages[0].1),
        ("2026-03-03T10:00:00Z", pages[1].1),
    ] {
        clock.set(at.parse().unwrap());
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /nodes/dune-1/metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut got = String::new();
        stream.read_to_string(&mut got).await.unwrap();
        assert_eq!(got.split_once("\r\n\r\n").unwrap().1, answer);
    }
    std::fs::write(folder.path().join("dune-1/noon.txt"), "x 1").unwrap();
    let refused = Recording::open(folder.path()).unwrap_err().to_string();
    assert!(refused.ends_with("noon.txt is named after no time; call a page 2026-03-02T10:00:00Z.txt"), "{refused}");
}
