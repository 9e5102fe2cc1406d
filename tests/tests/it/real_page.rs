//! A page in real dcgm-exporter form, scraped over HTTP, parsed, and stored field by field.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    path::Path,
    sync::Arc,
};

use ingest::{
    agent::{Agent, Options, Target, Topics},
    clock::SystemClock,
    close::{self, Closer},
    publish,
    sink::{self, Sink},
    transport::{
        Topic,
        local::{self, Log, TopicSpec},
    },
};
use lake::Lake;
use schemas::Timestamp;
use serde_json::{Value, json};

use crate::command::{succeeds, tree, tree_text};

const PAGE: &str = "tests/data/pages/dcgm-exporter.txt";
const WHOLE: &str = "GPU-5a1d0000-4c0e-4b7f-8000-00009e3779b1";
const LARGE: &str = "GPU-5a1d0001-4c0e-4b7f-8000-00009e3779b1/2";
const SMALL: &str = "GPU-5a1d0001-4c0e-4b7f-8000-00009e3779b1/9";

/// Serves `page` to one request, as dcgm-exporter does: no content type of its own but Go's guess.
fn exporter(page: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/metrics", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).unwrap();
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\r\n", page.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&page).unwrap();
    });
    address
}

fn topics(log: &Log) -> Topics {
    let topic = |name| log.topic(name).unwrap() as Arc<dyn Topic>;
    Topics { samples: topic(publish::SAMPLES), allocations: topic(publish::ALLOCATIONS), nodes: topic(publish::NODES) }
}

/// Scrapes `page` once at `at` into a lake in `folder`, and closes the hour.
fn scraped(folder: &Path, page: Vec<u8>, at: Timestamp) {
    let names = [publish::SAMPLES, publish::ALLOCATIONS, publish::NODES];
    let log =
        Log::open(&folder.join("_log"), &names.map(|name| TopicSpec { name, partitions: 1 }), local::Options::default()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let topics = topics(&log);
    runtime.block_on(async {
        let target = Target { node: "gpu-node-7".into(), address: exporter(page).parse().unwrap(), podres_socket: None };
        let options = Options { interval_ms: 30_000, ..Options::new("east") };
        let mut agent = Agent::new(options, vec![target], topics.clone(), Arc::new(SystemClock)).unwrap();
        agent.round(at).await.unwrap();
    });
    let lake = Lake::create(folder).unwrap();
    let mut sink =
        Sink::open(lake.clone(), vec![topics.samples, topics.allocations, topics.nodes], sink::Options::default()).unwrap();
    sink.flush(at).unwrap();
    // Before its hour is closed a row is there as well, once, with its folder's columns.
    let path = folder.to_str().unwrap();
    let live = rows(path, "SELECT date, hour, COUNT(*) AS n FROM gpu_samples GROUP BY date, hour");
    assert_eq!(live, [json!({"date": "2026-03-02", "hour": "10", "n": 3})]);
    let end = at.hour().plus_ms(schemas::HOUR_MS);
    Closer::new(lake, close::Options::default()).close(end, end).unwrap();
    assert_eq!(rows(path, "SELECT date, hour, COUNT(*) AS n FROM gpu_samples GROUP BY date, hour"), live);
}

fn rows(lake: &str, sql: &str) -> Vec<Value> {
    let text = succeeds(&["sql", "--lake", lake, "--format", "json", sql]);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_field_of_the_page_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let lake = folder.path().to_str().unwrap();
    let at: Timestamp = "2026-03-02T10:00:30Z".parse().unwrap();
    scraped(folder.path(), fs::read(tree(PAGE)).unwrap(), at);

    let samples = rows(lake, "SELECT * FROM gpu_samples ORDER BY device");
    assert_eq!(samples.iter().map(|row| row["device"].as_str().unwrap()).collect::<Vec<_>>(), [WHOLE, LARGE, SMALL]);
    let stored = |row: usize, expected: Value| {
        for (column, value) in expected.as_object().unwrap() {
            assert_eq!(&samples[row][column], value, "{column} of {}", samples[row]["device"]);
        }
    };
    stored(
        0,
        json!({
            "cluster": "east", "node": "gpu-node-7", "gpu_index": 0, "product": "NVIDIA H100 80GB HBM3", "parent": null,
            "pci_bus_id": "00000000:1B:00.0", "hostname": "gpu-node-7", "driver_version": "580.65.06",
            "namespace": "research", "pod": "llm-train-0", "container": "trainer", "owner_source": "from_labels", "holders": 1,
            "dev_sm_clock": 1980, "dev_mem_clock": 2619, "dev_memory_temp": 58, "dev_gpu_temp": 61, "dev_power_usage": 612.347,
            // More than INT32's blank, and a reading: energy is int64.
            "dev_total_energy_consumption": 2_147_483_640_i64,
            "dev_pcie_replay_counter": 0, "dev_gpu_util": 97, "dev_mem_copy_util": 41, "dev_enc_util": null,
            "dev_xid_errors": 45, "xid_message": "Preemptive cleanup, due to previous errors",
            "dev_fb_free": 10213, "dev_fb_used": 70778, "dev_nvlink_bandwidth_total": 52144, "dev_vgpu_license_status": 0,
            "prof_gr_engine_active": 0.98125, "prof_sm_active": 0.832417, "prof_pipe_tensor_active": 0.471003,
            "prof_dram_active": 0.555001, "prof_pcie_tx_bytes": 1_188_000_123, "faults": "206:sentinel",
        }),
    );
    stored(
        1,
        json!({
            "parent": "GPU-5a1d0001-4c0e-4b7f-8000-00009e3779b1", "instance_id": 2, "profile": "3g.40gb", "namespace": "serving",
            "pod": "chat-7d9f", "dev_gpu_util": null, "dev_fb_free": null, "dev_fb_used": null, "dev_power_usage": 233.108,
            "dev_total_energy_consumption": 8_812_345_678_901_i64, "dev_xid_errors": 0, "xid_message": "No Error",
            // Slightly above 1 on an instance: kept raw, flagged.
            "prof_sm_active": 1.294, "faults": "251:sentinel,252:sentinel,1002:mig_overrange",
        }),
    );
    stored(
        2,
        json!({
            "instance_id": 9, "profile": "1g.10gb", "namespace": null, "pod": null, "dev_fb_used": 0, "prof_sm_active": 0.0,
            "prof_pipe_tensor_active": null, "faults": "1004:sentinel",
        }),
    );
    let extra = rows(lake, "SELECT device, name, labels, value FROM extra_samples");
    assert_eq!(extra.len(), 1);
    assert_eq!((extra[0]["name"].as_str(), extra[0]["value"].as_f64()), (Some("DCGM_EXP_XID_ERRORS_COUNT"), Some(2.0)));
    assert!(extra[0]["labels"].as_str().unwrap().contains("\"xid\":\"45\""), "{}", extra[0]["labels"]);
    let scrapes = rows(lake, "SELECT status, devices, bad_lines, duplicate_series, body_bytes FROM scrapes");
    let size = fs::metadata(tree(PAGE)).unwrap().len();
    assert_eq!(scrapes, [json!({"status": "ok", "devices": 3, "bad_lines": 0, "duplicate_series": 0, "body_bytes": size})]);
}

#[test]
fn what_parse_shows_is_what_is_stored() {
    let shown: Value = serde_json::from_str(&succeeds(&["parse", &tree_text(PAGE), "--format", "json"])).unwrap();
    assert_eq!(shown["devices"].as_array().unwrap().len(), 3);
    assert_eq!(shown["rejected"]["count"], 0);
    let address = exporter(fs::read(tree(PAGE)).unwrap());
    let fetched: Value = serde_json::from_str(&succeeds(&["parse", &address, "--format", "json"])).unwrap();
    assert_eq!(fetched, shown);
    let table = succeeds(&["parse", &tree_text(PAGE)]);
    assert!(table.contains("  1002  DCGM_FI_PROF_SM_ACTIVE"), "{table}");
}

#[test]
fn a_bad_line_costs_that_line_only() {
    let folder = tempfile::tempdir().unwrap();
    let lake = folder.path().to_str().unwrap();
    let mut page = fs::read_to_string(tree(PAGE)).unwrap();
    page.push_str("DCGM_FI_DEV_SM_CLOCK{gpu=\"0\" 1980\nDCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-x\"} warm\n");
    scraped(folder.path(), page.into_bytes(), "2026-03-02T10:00:30Z".parse().unwrap());
    let counts = rows(lake, "SELECT COUNT(*) AS n, SUM(bad_lines) AS bad FROM scrapes");
    assert_eq!(counts, [json!({"n": 1, "bad": 2})]);
    let rejects = rows(lake, "SELECT line, reason IS NOT NULL AS why, node FROM rejects ORDER BY line");
    assert_eq!(rejects.len(), 2, "{rejects:?}");
    assert_eq!(rejects[0]["node"], "gpu-node-7");
    assert_eq!(rows(lake, "SELECT COUNT(*) AS n FROM gpu_samples"), [json!({"n": 3})]);
}

/// Recorded pages and the kubelet's answers, without a live node: who held what is the kubelet's word, and the hours close.
#[test]
fn recorded_pages_become_hours() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::copy(tree(PAGE), at("page.txt")).unwrap();
    let listed = json!({"pod_resources": [{"name": "chat-7d9f", "namespace": "serving", "containers": [
        {"name": "server", "devices": [{"resource_name": "nvidia.com/gpu", "device_ids": [WHOLE]}]}]}]});
    fs::write(at("pods.json"), listed.to_string()).unwrap();
    let mut index = String::from("at,node,file,podresources\n");
    for minute in 0..60 {
        index.push_str(&format!("2026-03-02T10:{minute:02}:00Z,gpu-node-7,page.txt,pods.json\n"));
    }
    // One answer without its page, and one entry that cannot be read.
    index.push_str("2026-03-02T10:59:30Z,gpu-node-7,,pods.json\n2026-03-02T10:59:40Z,gpu-node-7,missing.txt,\n");
    fs::write(at("index.csv"), index).unwrap();
    let (lake, index) = (at("lake").to_str().unwrap().to_owned(), at("index.csv").to_str().unwrap().to_owned());
    let out = succeeds(&["import", "scrapes", &index, "--lake", &lake, "--interval", "60"]);
    assert!(out.contains("60 pages of 1 nodes imported (60 ok)") && out.contains("1 answers without a page"), "{out}");
    assert!(out.contains("1 lines of") && out.contains("missing.txt"), "{out}");
    succeeds(&["hours", "--lake", &lake]);
    let check = succeeds(&["check", "--lake", &lake]);
    assert!(check.starts_with("closes: "), "{check}");
    // The kubelet's word goes before the page's own labels (rule A17).
    let owners = rows(
        &lake,
        "SELECT device, pod, namespace, SUM(ms) AS ms, SUM(sm_utilized_ms) AS sm FROM gpu_hours WHERE kind = 'owner' GROUP BY 1, 2, 3",
    );
    assert_eq!(owners.len(), 1, "{owners:?}");
    assert_eq!((owners[0]["device"].as_str(), owners[0]["pod"].as_str()), (Some(WHOLE), Some("chat-7d9f")));
    assert_eq!(owners[0]["ms"], 3_600_000);
    // 0.832417 of the hour, to the millisecond.
    assert_eq!(owners[0]["sm"], 2_996_701);
    let disagree = rows(&lake, "SELECT COUNT(*) AS n FROM gpu_samples WHERE label_disagrees");
    assert_eq!(disagree, [json!({"n": 120})], "the labels of the whole GPU and of one instance name other pods");
}
