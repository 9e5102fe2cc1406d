//! A large fleet over HTTP: `strandline-sim serve` in a process of its own, and a light client that asks for every node's page.
//! Budget (release): 100,000 GPUs at 15 s in one process, under 2 GiB; 1 GB/s of text.
//!
//! Every node has a connection of its own that is kept, as real exporters have. Rounds without a pause say what a round costs (in
//! the first every device's hour is laid out, later ones find it); then each node is asked once in 15 s, spread evenly, for the
//! latency. The client's processor time is told apart. Pages are not packed: the server does not offer it.
//!
//! `--test` takes the demo fleet and a second. STRANDLINE_BENCH_ROUNDS: rounds of 15 s (default 3). STRANDLINE_BENCH_FLEET: another
//! spec.
//!
//! Peer: FakeAI's DCGM page (PyPI; a node of 4 GPUs a process), where STRANDLINE_FAKEAI names a Python that has it (`./x bench`
//! makes one). It is the only simulator of DCGM pages that package registries have and that runs without a cluster: aiperf's
//! wheel reads such pages and makes none, all-smi's mock has a port a node and other metric names, and fake-gpu-operator,
//! nvml-mock, nvidia_gpu_exporter's demo and avalanche are Go modules that could not be had.
#![allow(clippy::unwrap_used)]

mod program;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use program::Program;

/// Client threads; each asks one node after the other.
const CLIENTS: usize = 8;
/// How often every node is asked.
const INTERVAL: Duration = Duration::from_secs(15);
/// What is left of the process's open files for other things than connections.
const OTHER_FILES: usize = 200;

fn main() {
    let quick = std::env::args().any(|a| a == "--test");
    let rounds = std::env::var("STRANDLINE_BENCH_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    let (fleet, interval, rounds) =
        if quick { ("demo", Duration::from_secs(1), 1) } else { ("hundred-thousand", INTERVAL, rounds) };
    let folder = tempfile::tempdir().unwrap();
    let targets = folder.path().join("targets.json");
    let began = Instant::now();
    let mut serve = Command::new(env!("CARGO_BIN_EXE_strandline-sim"));
    let fleet = format!("{}/../kwok-fleet/fleets/{fleet}.yaml", env!("CARGO_MANIFEST_DIR"));
    serve.arg("serve").arg(std::env::var("STRANDLINE_BENCH_FLEET").unwrap_or(fleet));
    // Six hours after it has opened the fleet is full.
    serve.args(["--listen", "0", "--start", "2026-03-02T06:10:00Z", "--file-sd"]).arg(&targets).env("RUST_LOG", "warn");
    let mut server = Program::start(&mut serve);
    while !targets.exists() {
        assert!(server.runs(), "the server has ended");
        thread::sleep(Duration::from_millis(20));
    }
    let groups: serde_json::Value = serde_json::from_slice(&std::fs::read(&targets).unwrap()).unwrap();
    let groups = groups.as_array().unwrap();
    let address: SocketAddr = groups[0]["targets"][0].as_str().unwrap().parse().unwrap();
    let paths: Vec<&str> = groups.iter().map(|group| group["labels"]["__metrics_path__"].as_str().unwrap()).collect();
    let connections = paths.len().min(open_files().saturating_sub(OTHER_FILES)).max(CLIENTS);
    println!(
        "server:   {} nodes, planned and listening in {:.1?}, {:.1} s of processor, {} MiB; {connections} connections",
        paths.len(),
        began.elapsed(),
        server.cpu_s(),
        server.peak_mib()
    );
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client { address, connections: Vec::new(), nodes: Vec::new() }).collect();
    for (n, path) in paths.iter().enumerate() {
        let client = &mut clients[n % CLIENTS];
        client.nodes.push(Node { path, offset: interval.mul_f64(n as f64 / paths.len() as f64) });
    }
    for client in &mut clients {
        client.connections.resize_with(connections / CLIENTS, || None);
    }
    let mut ours_us = 0.0;
    for name in ["cold", "warm", "again"] {
        ours_us = round(&format!("{:10}", format!("{name}:")), &server, &mut clients, None).us_a_gpu();
    }
    for n in 1..=rounds {
        round(&format!("{:10}", format!("paced {n}:")), &server, &mut clients, Some(interval)).latencies();
    }
    println!("server:   peak {} MiB", server.peak_mib());
    drop(server);
    match std::env::var_os("STRANDLINE_FAKEAI") {
        Some(python) => fakeai(&python, if quick { 10 } else { 500 }, ours_us),
        None => println!("peer:     FakeAI is not there (STRANDLINE_FAKEAI names a Python that has it)"),
    }
}

/// Open files that the process may have.
fn open_files() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(1024)
}

/// What one client asks for, over connections that it keeps.
struct Client<'a> {
    address: SocketAddr,
    connections: Vec<Option<BufReader<TcpStream>>>,
    nodes: Vec<Node<'a>>,
}

struct Node<'a> {
    path: &'a str,
    /// When it is asked, after the beginning of a paced round.
    offset: Duration,
}

/// What came of a client's round, or of all of them.
#[derive(Default)]
struct Seen {
    bytes: usize,
    gpus: usize,
    latencies: Vec<Duration>,
    /// By how much the latest question was late.
    late: Duration,
}

/// A round and what it cost.
struct Round {
    seen: Seen,
    server_s: f64,
}

impl Client<'_> {
    fn round(&mut self, begin: Instant, paced: bool) -> Seen {
        let mut seen = Seen::default();
        let mut page = Vec::new();
        for (n, node) in self.nodes.iter().enumerate() {
            let due = begin + node.offset;
            if paced {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                seen.late = seen.late.max(Instant::now().saturating_duration_since(due));
            }
            let place = n % self.connections.len();
            let stream = self.connections[place].get_or_insert_with(|| connect(self.address));
            let asked = Instant::now();
            get(stream, node.path, &mut page);
            seen.latencies.push(asked.elapsed());
            seen.bytes += page.len();
            seen.gpus += page.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"DCGM_FI_DEV_FB_USED{")).count();
        }
        seen
    }
}

fn connect(address: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    BufReader::new(stream)
}

/// Asks for `path` over a kept connection; the body goes into `page`.
fn get(stream: &mut BufReader<TcpStream>, path: &str, page: &mut Vec<u8>) {
    write!(stream.get_mut(), "GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n").unwrap();
    let (mut line, mut length) = (String::new(), 0);
    for n in 0.. {
        line.clear();
        stream.read_line(&mut line).unwrap();
        assert!(n > 0 || line.starts_with("HTTP/1.1 200"), "{path}: {line}");
        if let Some((_, digits)) = line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
            length = digits.trim().parse().unwrap();
        }
        if line.trim_end().is_empty() {
            break;
        }
    }
    page.resize(length, 0);
    stream.read_exact(page).unwrap();
}

/// Every node once: at once, or spread over `interval`.
fn round(name: &str, server: &Program, clients: &mut [Client], interval: Option<Duration>) -> Round {
    let (server_before, client_before) = (server.cpu_s(), program::cpu_s("self"));
    let (ready, begin) = (Barrier::new(clients.len()), Instant::now());
    let mut seen = Seen::default();
    thread::scope(|scope| {
        let ready = &ready;
        let running: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                scope.spawn(move || {
                    ready.wait();
                    client.round(begin, interval.is_some())
                })
            })
            .collect();
        for of_client in running {
            let mut of_client = of_client.join().unwrap();
            seen.bytes += of_client.bytes;
            seen.gpus += of_client.gpus;
            seen.late = seen.late.max(of_client.late);
            seen.latencies.append(&mut of_client.latencies);
        }
    });
    let (server_s, wall) = (server.cpu_s() - server_before, begin.elapsed());
    println!(
        "{name}{} GPUs, {:.0} MB of text in {wall:.2?}: server {server_s:.2} s of processor ({:.0} MB/s), {} MiB at most; client {:.2} s",
        seen.gpus,
        seen.bytes as f64 / 1e6,
        // The system counts hundredths of a second.
        seen.bytes as f64 / server_s.max(0.01) / 1e6,
        server.peak_mib(),
        program::cpu_s("self") - client_before,
    );
    Round { seen, server_s }
}

impl Round {
    /// Processor time of the server for each GPU, microseconds.
    fn us_a_gpu(&self) -> f64 {
        1e6 * self.server_s / self.seen.gpus.max(1) as f64
    }

    fn latencies(mut self) {
        self.seen.latencies.sort_unstable();
        let at = |share: f64| self.seen.latencies[((self.seen.latencies.len() - 1) as f64 * share) as usize];
        println!(
            "          latency p50 {:.2?}, p99 {:.2?}, longest {:.2?}; the latest question {:.2?} late",
            at(0.5),
            at(0.99),
            at(1.0),
            self.seen.late
        );
    }
}

/// The page of FakeAI's node, one after the other.
fn fakeai(python: &std::ffi::OsStr, pages: usize, ours_us: f64) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut serve = Command::new(python);
    serve.args(["-m", "uvicorn", "fakeai.app:app", "--log-level", "error", "--port"]).arg(address.port().to_string());
    let mut peer = Program::start(serve.stdout(Stdio::null()).stderr(Stdio::null()));
    while TcpStream::connect(address).is_err() {
        assert!(peer.runs(), "FakeAI has ended");
        thread::sleep(Duration::from_millis(100));
    }
    let nodes = (0..pages).map(|_| Node { path: "/dcgm/metrics", offset: Duration::ZERO }).collect();
    let mut client = [Client { address, connections: vec![None], nodes }];
    let Round { seen, server_s } = round("FakeAI:   ", &peer, &mut client, None);
    let its_us = 1e6 * server_s / seen.gpus.max(1) as f64;
    if ours_us > 0.0 {
        println!("          {its_us:.1} us of processor a GPU, ours {ours_us:.2}: {:.0} times as much", its_us / ours_us);
    }
}
