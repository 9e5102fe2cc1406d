//! The memory of an agent on one node stays what it is, however many pods come and go (DESIGN 7: below 40 MiB, flat).

use crate::kill::{Process, wait_for};
use crate::path::{Exporter, Kubelet};
use schemas::catalogue::{self, ValueType};
use std::fmt::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const GPUS: usize = 8;
/// Rounds come this often, as 15 s do on a node: two minutes are a day and more.
const INTERVAL_MS: u64 = 20;
/// Every GPU has another pod this often.
const POD_MS: u64 = 250;
const WARM_UP: Duration = Duration::from_secs(20);
/// Growth that the slope may say over the whole measurement.
const FLAT: f64 = 1024.0 * 1024.0;
const MOST: u64 = 40 << 20;

/// The page of a node as dcgm-exporter prints it, for pods of generation `age`.
fn page(age: u64) -> String {
    let mut out = String::new();
    for field in catalogue::fields().iter().filter(|field| field.default_enabled && field.column.is_some()) {
        let _ = writeln!(out, "# HELP {} {}\n# TYPE {} {}", field.name, field.meaning, field.name, field.prom_type.as_str());
        for gpu in 0..GPUS {
            let value = match field.value_type {
                ValueType::Double => format!("{:.6}", (age % 97) as f64 / 97.0),
                ValueType::Int64 | ValueType::Text => (age % 2).to_string(),
            };
            let _ = writeln!(
                out,
                "{}{{gpu=\"{gpu}\",UUID=\"{}\",device=\"nvidia{gpu}\",modelName=\"NVIDIA H100 80GB HBM3\",Hostname=\"n\",\
                 container=\"main\",namespace=\"surf\",pod=\"{}\"}} {value}",
                field.name,
                uuid(gpu),
                pod(gpu, age)
            );
        }
    }
    out
}

fn uuid(gpu: usize) -> String {
    format!("GPU-7d1f6a02-1111-4222-8333-0123456789a{gpu}")
}

fn pod(gpu: usize, age: u64) -> String {
    format!("train-{age}-worker-{gpu}")
}

/// Bytes of the process that are in memory.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// Slope of the line that fits best, per unit of x.
fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let (mean_x, mean_y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / n, y + point.1 / n));
    let (above, below) = points
        .iter()
        .fold((0.0, 0.0), |(above, below), (x, y)| (above + (x - mean_x) * (y - mean_y), below + (x - mean_x) * (x - mean_x)));
    above / below
}

#[test]
fn a_slope_is_found() {
    let points: Vec<(f64, f64)> = (0..100).map(|i| (f64::from(i), 7.0 + 3.0 * f64::from(i) + f64::from(i % 2))).collect();
    assert!((slope(&points) - 3.0).abs() < 0.01, "{}", slope(&points));
}

/// Two minutes; `./x soak` asks for more by `STRANDLINE_SOAK_MINUTES`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agents_memory_is_flat() {
    let minutes = std::env::var("STRANDLINE_SOAK_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(2).max(1);
    let (exporter, kubelet) = (Exporter::start().await, Kubelet::default());
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kubelet.sock");
    kubelet.start(&socket);
    let config = dir.path().join("agent.yaml");
    let text = format!(
        "cluster: reef\nlog_dir: {}\nlog_retention_bytes: 67108864\ninterval: {INTERVAL_MS}ms\ntimeout: 2s\n\
         targets:\n  - {{node: n, address: '{}', podres_socket: {}}}\n",
        dir.path().join("log").display(),
        exporter.address,
        socket.display()
    );
    std::fs::write(&config, text).unwrap();

    let done = AtomicBool::new(false);
    let pods_come_and_go = || {
        let mut age = 0;
        while !done.load(Ordering::Relaxed) {
            age += 1;
            exporter.page(&page(age));
            let held: Vec<(String, String)> = (0..GPUS).map(|gpu| (pod(gpu, age), uuid(gpu))).collect();
            let ids: Vec<[&str; 1]> = held.iter().map(|(_, id)| [id.as_str()]).collect();
            let pods: Vec<(&str, &[&str])> = held.iter().zip(&ids).map(|((name, _), ids)| (name.as_str(), &ids[..])).collect();
            kubelet.pods(&pods);
            std::thread::sleep(Duration::from_millis(POD_MS));
        }
    };
    let points = tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            scope.spawn(pods_come_and_go);
            let agent = Process::start(&["agent"], &config);
            let began = Instant::now();
            wait_for("log", || dir.path().join("log").exists());
            let mut points = Vec::new();
            while began.elapsed() < Duration::from_secs(60 * minutes) {
                std::thread::sleep(Duration::from_secs(1));
                if began.elapsed() > WARM_UP {
                    points.push((began.elapsed().as_secs_f64(), resident(agent.0.id()) as f64));
                }
            }
            done.store(true, Ordering::Relaxed);
            let _ = Command::new("kill").arg(agent.0.id().to_string()).status().unwrap();
            points
        })
    });
    let (first, last) = (points[0], points[points.len() - 1]);
    let (most, grown) = (points.iter().fold(0.0, |most: f64, point| most.max(point.1)), slope(&points) * (last.0 - first.0));
    println!("agent: {:.1} MiB at most, slope {:.1} KiB over {:.0} s", most / FLAT, grown / 1024.0, last.0 - first.0);
    assert!(grown < FLAT, "memory grows: {:.0} bytes over {:.0} s: {points:?}", grown, last.0 - first.0);
    assert!(most < MOST as f64, "{most} bytes resident");
    let rounds = rounds(dir.path());
    assert!(rounds > 500 * minutes, "only {rounds} rounds were taken: nothing is said of many");
}

/// Rounds that were taken, by the log's own count.
fn rounds(dir: &std::path::Path) -> u64 {
    use ingest::transport::{Topic, local};
    let log = local::Log::reader(&dir.join("log"), local::Options::default()).unwrap();
    log.topic(ingest::publish::SAMPLES).unwrap().bounds(0).unwrap().end
}
