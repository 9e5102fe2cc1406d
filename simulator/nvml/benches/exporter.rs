//! What `strandline-exporter` costs on a node: pages of 8 GPUs and of 8 GPUs cut into 56 MIG instances, memory, processor time.
//!
//! Budget (release): /metrics p99 < 2 ms with 8 GPUs, < 20 MiB, < 0.2 % of a core at 1 Hz, of our own code. Estimate: a page of 8
//! GPUs is 370 lines and 75 kB; at 5 GB/s for numbers and 300 ns a line of ours it is made in 0.1 ms, and with HTTP over loopback
//! it is there in 0.3 ms; of 56 instances (some 1,100 lines) in 0.5 ms. Memory: 3 MiB of program, 2 MiB of threads and heap, and
//! as much again for the fleet that the simulator's library plans: 10 MiB. A second: 200 calls of 1 us beside the library's own
//! time, 8 wakings, a page: 0.5 ms, 0.05 % of a core.
//!
//! Measured: docs/performance.md.
//!
//! The library is the simulator's: its time, its plan on the same heap and its file are not the driver's. Pages of its file are
//! told apart; what is called ours holds the plan. The exporter lies beside this bench, built before: `cargo build --release -p
//! exporter` (`./x bench` does it). Peer: none can be had here; dcgm-exporter needs DCGM's own library and a GPU.
//!
//! `--test` takes seconds. STRANDLINE_BENCH_SECONDS: seconds at 1 Hz (default 60).
#![allow(clippy::unwrap_used)]

#[path = "../tests/it/world.rs"]
#[allow(dead_code)]
mod world;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use world::{World, small};

const ONLY_LIBRARY: &str = "--only-library";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == ONLY_LIBRARY) {
        return only_library();
    }
    let quick = arguments.iter().any(|argument| argument == "--test");
    let seconds = std::env::var("STRANDLINE_BENCH_SECONDS").map_or(60, |seconds| seconds.parse().unwrap());
    let (seconds, warm_up, scrapes) = if quick { (3, 3, 200) } else { (seconds, 15, 10_000) };
    for (name, spec) in [("8 GPUs", eight()), ("8 GPUs x 7 MIG instances", cut_in_seven())] {
        // A clock that runs, some minutes into the fleet's first jobs.
        let world = World::new(&spec, "h100-0", 30, 1.0);
        let library = world.command(std::env::current_exe().unwrap()).arg(ONLY_LIBRARY).output().unwrap();
        let exporter = Exporter::start(&world);
        std::thread::sleep(Duration::from_secs(warm_up));
        let mut client = Client::new(exporter.port);
        let page = client.page();
        println!("{name}: a page of {} bytes, {} series", page.len(), page.lines().filter(|line| !line.starts_with('#')).count());
        let kept = (0..scrapes).map(|_| timed(|| client.page())).collect();
        let anew = (0..scrapes / 10).map(|_| timed(|| Client::new(exporter.port).page())).collect();
        println!("  one scrape after the other, a kept connection: {}", told(kept));
        println!("  the same, a connection each:                   {}", told(anew));
        let before = (exporter.cpu_s(), spent_in_library(&client.page()), Instant::now());
        let mut spaced = Vec::new();
        for second in 1..=seconds {
            std::thread::sleep(Duration::from_secs(second).saturating_sub(before.2.elapsed()));
            spaced.push(timed(|| client.page()));
        }
        let ran = before.2.elapsed().as_secs_f64();
        let (all, library_s) = (exporter.cpu_s() - before.0, spent_in_library(&client.page()) - before.1);
        println!("  a scrape a second:                             {}", told(spaced));
        println!(
            "  a reading and a scrape a second, {seconds} s: {:.4} % of a core ours, {:.4} % the library's",
            (all - library_s) / ran * 100.0,
            library_s / ran * 100.0
        );
        let memory = Resident::of(&exporter.child.id().to_string());
        println!("  resident: {memory}");
        print!("  a process that does nothing but open the library: {}", String::from_utf8_lossy(&library.stdout));
    }
}

fn eight() -> String {
    small().replacen("gpus_per_node: 4", "gpus_per_node: 8", 1)
}

fn cut_in_seven() -> String {
    let seven = format!("[{}]", ["1g.10gb"; 7].join(", "));
    let boards = vec![seven; 8].join(", ");
    let spec = eight().replacen("gpus_per_node: 8", &format!("gpus_per_node: 8\n        mig: [{boards}]"), 1);
    spec.replace(
        "notebook: 1 }",
        "notebook: 1 }\n    resources: { notebook: nvidia.com/mig-1g.10gb, batch: nvidia.com/mig-1g.10gb }",
    )
}

/// This process as the client that does least: memory before and after.
fn only_library() {
    let before = Resident::of("self");
    let nvml = nvml_wrapper::Nvml::init().unwrap();
    assert_eq!(nvml.device_count().unwrap(), 8);
    println!("{}, {:.1} MiB more than before", Resident::of("self"), (Resident::of("self").all - before.all) as f64 / MIB);
}

const MIB: f64 = 1024.0 * 1024.0;

/// Resident bytes.
struct Resident {
    all: u64,
    /// Pages of the GPU library's file.
    library: u64,
    /// Memory of no file: heaps and stacks.
    anonymous: u64,
}

impl Resident {
    fn of(process: &str) -> Self {
        let (mut resident, mut in_library) = (Self { all: 0, library: 0, anonymous: 0 }, false);
        for line in std::fs::read_to_string(format!("/proc/{process}/smaps")).unwrap().lines() {
            let bytes = |kib: &str| kib.trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024;
            if let Some(kib) = line.strip_prefix("Rss:") {
                resident.all += bytes(kib);
                resident.library += if in_library { bytes(kib) } else { 0 };
            } else if let Some(kib) = line.strip_prefix("Anonymous:") {
                resident.anonymous += bytes(kib);
            } else if line.split(' ').next().is_some_and(|word| word.contains('-')) {
                in_library = line.contains("libnvidia");
            }
        }
        resident
    }
}

impl std::fmt::Display for Resident {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| bytes as f64 / MIB;
        write!(
            f,
            "{:.1} MiB, of them {:.1} the library's file: {:.1} without it; {:.1} heap and stacks",
            mib(self.all),
            mib(self.library),
            mib(self.all - self.library),
            mib(self.anonymous)
        )
    }
}

/// A running exporter; ends with this.
struct Exporter {
    child: Child,
    port: u16,
}

impl Exporter {
    fn start(world: &World) -> Self {
        let this = std::env::current_exe().unwrap();
        let program = this.parent().and_then(|folder| folder.parent()).unwrap().join("strandline-exporter");
        assert!(program.is_file(), "{} is not there: cargo build --release -p exporter", program.display());
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = world.command(program);
        let child = command.args(["-a", &format!("127.0.0.1:{port}")]).stderr(Stdio::null()).spawn().unwrap();
        let exporter = Self { child, port };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < Duration::from_secs(20), "the exporter does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        exporter
    }

    /// Processor time of all its threads, seconds, as the scheduler counts it: ticks of 10 ms would be too coarse.
    fn cpu_s(&self) -> f64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten();
        let ns = tasks.filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_ascii_whitespace().next()?.parse::<u64>().ok()
        });
        ns.sum::<u64>() as f64 / 1e9
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// A scraper with a kept connection.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::with_capacity(1 << 18, stream))
    }

    fn page(&mut self) -> String {
        self.0.get_mut().write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let (mut line, mut length) = (String::new(), 0);
        loop {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the connection has ended");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        String::from_utf8(body).unwrap()
    }
}

fn timed(scrape: impl FnOnce() -> String) -> Duration {
    let began = Instant::now();
    let page = scrape();
    let took = began.elapsed();
    assert!(page.contains("DCGM_FI_PROF_SM_ACTIVE{"), "{page}");
    took
}

fn told(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    format!("p50 {:.3} ms, p99 {:.3} ms, at most {:.3} ms ({} scrapes)", at(0.5), at(0.99), at(1.0), times.len())
}

fn spent_in_library(page: &str) -> f64 {
    page.lines().find_map(|line| line.strip_prefix("strandline_library_cpu_seconds_total ")?.parse().ok()).unwrap()
}
