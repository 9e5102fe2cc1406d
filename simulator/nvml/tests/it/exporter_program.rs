//! `strandline-exporter` as people run it, on this library: its pages, pods, signals, exit codes, and a real Prometheus.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use simulator::{SimClock, podres::Kubelets};

use crate::world::{World, cut, small, text, tree};

/// The program, one folder above this test: `cargo test --workspace` builds it there.
pub fn program() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let program = this.parent().and_then(|folder| folder.parent()).unwrap().join("strandline-exporter");
    assert!(program.is_file(), "{} is not there; build it by `cargo build -p exporter` with this profile", program.display());
    program
}

/// A running exporter; killed when it is dropped.
pub struct Running {
    child: Child,
    pub port: u16,
    log: tempfile::NamedTempFile,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Eight GPUs on a node.
pub fn eight() -> String {
    small().replacen("gpus_per_node: 4", "gpus_per_node: 8", 1)
}

impl Running {
    pub fn start(world: &World, arguments: &[&str]) -> Self {
        let often = ["--strandline-interval", "100ms", "--strandline-profiling-interval", "200ms"];
        Self::with(world, &[&often[..], arguments].concat())
    }

    /// With these arguments and no others; waits until it listens.
    pub fn with(world: &World, arguments: &[&str]) -> Self {
        let port = free_port();
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut command = world.command(program());
        command.args(["-a", &format!("127.0.0.1:{port}")]).args(arguments);
        command.env("NODE_NAME", "node-a").stdout(Stdio::null()).stderr(log.reopen().unwrap());
        let mut running = Self { child: command.spawn().unwrap(), port, log };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(running.child.try_wait().unwrap().is_none(), "it ended: {}", running.said());
            assert!(began.elapsed() < Duration::from_secs(30), "it does not listen: {}", running.said());
            std::thread::sleep(Duration::from_millis(10));
        }
        running
    }

    /// Its log.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap()
    }

    /// Status, head and body of an answer.
    fn get(&self, path: &str, headers: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_owned(), body.to_owned())
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A page of metrics.
    pub fn page(&self) -> String {
        let (status, _, body) = self.get("/metrics", "");
        assert_eq!(status, 200);
        body
    }

    /// Looks at pages until one is as wanted.
    fn until(&self, what: &str, mut wanted: impl FnMut(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let page = self.page();
            if wanted(&page) {
                return page;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "{what} does not come\n{}\n{page}", self.said());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends a signal.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for its end: exit status and log.
    pub fn ended(mut self, limit: Duration) -> (Option<i32>, String) {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status.code(), self.said());
            }
            assert!(began.elapsed() < limit, "it does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Lines of DCGM's families, sorted.
fn dcgm(page: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = page.lines().filter(|line| line.starts_with("DCGM_")).collect();
    lines.sort_unstable();
    lines
}

/// Sum of a family's lines.
fn sum(page: &str, family: &str) -> f64 {
    let lines = page.lines().filter(|line| line.starts_with(family) && line.as_bytes().get(family.len()) == Some(&b'{'));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

/// A value without labels.
pub fn single(page: &str, name: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

fn profiled(page: &str) -> bool {
    page.contains("DCGM_FI_PROF_SM_ACTIVE{")
}

/// A runtime that serves the kubelets of a world, whose clock stands.
pub fn kubelets(world: &World, folder: &Path) -> (tokio::runtime::Runtime, Kubelets) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let plan = std::sync::Arc::new(world.setup.plan().unwrap().0);
    let kubelets = runtime.block_on(async { Kubelets::start(&plan, &SimClock::stopped(world.at()), folder) }).unwrap();
    (runtime, kubelets)
}

/// Every line of the simulator's own page, byte for byte: names, labels, pods, values.
#[test]
fn the_page_is_the_simulators_own_with_its_pods() {
    let world = World::new(&eight(), "h100-0", 47, 0.0);
    let folder = tempfile::tempdir().unwrap();
    let (_runtime, kubelets) = kubelets(&world, folder.path());
    let socket = kubelets.socket("h100-0");
    let running = Running::start(&world, &["-k", "--pod-resources-kubelet-socket", socket.to_str().unwrap()]);
    let page = running.until("pods", |page| {
        page.matches("\nDCGM_FI_PROF_SM_ACTIVE{").count() == 8 && page.contains("strandline_gpu_holder_share_ratio{")
    });
    let truth = world.page().replace("hostname=\"h100-0\"", "hostname=\"node-a\"");
    // XIDs come as events from now on; a rate needs a clock that runs.
    let own =
        |line: &&str| line.starts_with("DCGM_FI_DEV_XID_ERRORS{") || line.starts_with("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{");
    let without = |lines: Vec<&str>| lines.into_iter().filter(|line| !own(line)).map(str::to_owned).collect::<Vec<_>>();
    let (ours, theirs) = (without(dcgm(&page)), without(dcgm(&truth)));
    assert!(ours.iter().filter(|line| line.contains(",pod=\"")).count() > 50, "pods are there");
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.len(), theirs.len());
    let heads = |page: &str| {
        page.lines().filter(|line| line.starts_with("# ") && line.contains(" DCGM_")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(heads(&truth).iter().all(|head| heads(&page).contains(head) || head.contains("NVLINK_BANDWIDTH")), "heads alike");
    assert_eq!((single(&page, "strandline_gpus_seen"), single(&page, "strandline_gpus_lost")), (Some(8.0), Some(0.0)));
}

#[test]
fn cut_and_shared_gpus_are_summed_once() {
    let folder = tempfile::tempdir().unwrap();
    let cut_world = World::new(&cut(), "h100-0", 33, 0.0);
    let running = Running::start(&cut_world, &[]);
    let page = running.until("profiling", |page| page.contains("DCGM_FI_PROF_SM_ACTIVE{") && page.contains("GPU_I_ID"));
    let boards = &cut_world.plan.nodes()[cut_world.node].boards;
    let board = |at| simulator::state::board_state(&cut_world.plan, cut_world.node, at, cut_world.at()).unwrap();
    let watts: f64 = (0..boards.len()).map(|at| board(at).power_mw as f64 / 1000.0).sum();
    assert!((sum(&page, "DCGM_FI_DEV_POWER_USAGE") - watts).abs() < 1e-3, "a board's power once");
    let energy: i64 = (0..boards.len()).map(|at| board(at).energy_mj).sum();
    assert_eq!(sum(&page, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION") as i64, energy);
    let used: i64 = cut_world
        .places()
        .iter()
        .map(|(place, _)| {
            let device = simulator::DeviceRef { node: cut_world.node, gpu: place.device.unwrap() };
            simulator::state(&cut_world.plan, device, cut_world.at()).unwrap().fb_used_mib
        })
        .sum();
    assert_eq!(sum(&page, "DCGM_FI_DEV_FB_USED") as i64, used, "memory of instances, and no parent beside them");
    drop(running);
    // As dcgm-exporter has it, where that is asked for.
    let running = Running::start(&cut_world, &["--strandline-mig-board-fields", "repeat"]);
    let page = running.until("profiling", profiled);
    let instances =
        page.lines().filter(|line| line.starts_with("DCGM_FI_DEV_POWER_USAGE{") && line.contains("GPU_I_ID=")).count();
    assert_eq!(instances, 5, "four instances and one of the whole board");
    assert!(!page.lines().any(|line| line.contains("gpu=\"0\"") && line.starts_with("DCGM_") && !line.contains("GPU_I_ID")));
    drop(running);

    // A minute at which some GPU has two pods.
    let calm = World::new(&cut(), "l4-0", 0, 0.0);
    let crowd = |minute: &i64| {
        let list = simulator::podres::list(&calm.plan, calm.node, calm.at().plus_ms(minute * 60_000));
        list.pod_resources.iter().filter(|pod| pod.containers.iter().any(|container| !container.devices.is_empty())).count()
    };
    let minute = (1..115).max_by_key(crowd).unwrap();
    assert!(crowd(&minute) > 2);
    let shared = World::new(&cut(), "l4-0", minute, 0.0);
    let (_runtime, kubelets) = kubelets(&shared, folder.path());
    let socket = kubelets.socket("l4-0");
    let running = Running::start(&shared, &["-k", "--pod-resources-kubelet-socket", socket.to_str().unwrap()]);
    let page = running.until("holders", |page| page.contains("strandline_gpu_holder_share_ratio{"));
    let mut shares: BTreeMap<String, f64> = BTreeMap::new();
    let mut holders = 0;
    for line in page.lines().filter(|line| line.starts_with("strandline_gpu_holder_share_ratio{")) {
        let uuid = line.split_once("UUID=\"").unwrap().1.split_once('"').unwrap().0;
        *shares.entry(uuid.to_owned()).or_default() += line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap();
        holders += 1;
    }
    assert!(holders > shares.len(), "some GPU is shared: {page}");
    assert!(shares.values().all(|share| (share - 1.0).abs() < 1e-9), "{shares:?}");
    assert_eq!(page.lines().filter(|line| line.starts_with("DCGM_FI_DEV_GPU_UTIL{")).count(), 2, "a shared GPU has one line");
    let owners = sum(&page, "strandline_gpu_owners");
    assert_eq!(owners as usize, holders, "each of these pods has one container");
    let many = page.lines().filter(|line| line.starts_with("DCGM_FI_DEV_GPU_UTIL{") && !line.contains("pod=\"")).count();
    assert!(many >= 1, "a line of a GPU that several pods hold names none of them");
}

/// What `promtool check metrics` says of dcgm-exporter's own names, and nothing else.
fn excused(line: &str) -> bool {
    let Some((name, what)) = line.split_once(' ') else { return false };
    // The label modelName, of every line; and a family that is called a counter.
    let camel = what == "label names should be written in 'snake_case' not 'camelCase'";
    let counter = name == "DCGM_FI_DEV_PCIE_REPLAY_COUNTER" && what == "metric name should not include type 'counter'";
    let total = what == "counter metrics should have \"_total\" suffix";
    name.starts_with("DCGM_FI_") && (camel || counter || total)
}

fn promtool() -> String {
    let made = Command::new(tree("x")).arg("promtool").output().unwrap();
    assert!(made.status.success(), "{}", text(&made));
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

#[test]
fn promtool_has_nothing_to_say_but_of_dcgms_names() {
    let world = World::new(&cut(), "h100-0", 47, 0.0);
    let running = Running::start(&world, &["-k", "--pod-resources-kubelet-socket", "/nonexistent.sock"]);
    let page = running.until("profiling", profiled);
    let mut child = Command::new(promtool())
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let said = text(&child.wait_with_output().unwrap());
    let ours: Vec<&str> = said.lines().filter(|line| !line.is_empty() && !excused(line)).collect();
    let ours: std::collections::BTreeSet<&str> = ours.into_iter().collect();
    assert!(ours.is_empty(), "{ours:#?}");
    assert!(page.contains("strandline_attribution_failures_total{reason=\"no_socket\"}"), "why pods are not told");
}

#[test]
fn openmetrics_is_whole_and_negotiated() {
    let world = World::new(&small(), "h100-0", 47, 0.0);
    let running = Running::start(&world, &[]);
    running.until("profiling", profiled);
    let (_, head, page) = running.get("/metrics", "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert!(page.ends_with("# EOF\n") && page.matches("# EOF").count() == 1);
    assert!(page.contains("# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown\n"));
    assert!(page.contains("# TYPE strandline_library_calls counter\nstrandline_library_calls_total "), "{page}");
    // Each family's lines stand together and after its head, which stands once.
    let mut seen = std::collections::BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with("# TYPE ")) {
        assert!(seen.insert(line.split(' ').nth(2).unwrap().to_owned()), "{line}");
    }
    let (_, head, plain) = running.get("/metrics", "Accept: text/plain\r\n");
    assert!(head.contains("content-type: text/plain; version=0.0.4") && !plain.contains("# EOF"));
}

#[test]
fn signals_end_it_reload_it_and_let_go_of_the_driver() {
    let world = World::new(&small(), "h100-0", 47, 0.0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counters.csv");
    std::fs::write(&file, "DCGM_FI_DEV_GPU_TEMP, gauge, heat, in C\nnonsense\n").unwrap();
    let running = Running::start(&world, &["-f", file.to_str().unwrap()]);
    let page = running.page();
    assert!(page.contains("# HELP DCGM_FI_DEV_GPU_TEMP heat, in C\n"), "{page}");
    assert!(!page.contains("DCGM_FI_DEV_POWER_USAGE") && single(&page, "strandline_collectors_refused_rows") == Some(1.0));
    std::fs::write(&file, "DCGM_FI_DEV_POWER_USAGE, gauge, power\nDCGM_FI_DEV_GPU_TEMP, gauge, heat\n").unwrap();
    running.signal("HUP");
    // No page in between is without GPUs.
    running.until("the new file", |page| {
        assert_eq!(page.lines().filter(|line| line.starts_with("DCGM_FI_DEV_GPU_TEMP{")).count(), 4, "{page}");
        page.contains("DCGM_FI_DEV_POWER_USAGE{")
    });
    std::fs::write(&file, "nonsense\n").unwrap();
    running.signal("HUP");
    let page = running.until("a refusal", |page| single(page, "strandline_collectors_reload_failures_total") >= Some(1.0));
    assert!(page.contains("DCGM_FI_DEV_POWER_USAGE{"), "the one before stays in force");
    running.signal("USR1");
    running.until("the driver is let go of", |page| single(page, "strandline_driver_up") == Some(0.0));
    assert_eq!(running.get("/health", "").0, 503);
    running.signal("USR2");
    running.until("it is taken up again", |page| page.contains("DCGM_FI_DEV_POWER_USAGE{"));
    assert_eq!(running.get("/health", "").0, 200);
    running.signal("TERM");
    let (code, said) = running.ended(Duration::from_secs(5));
    assert_eq!(code, Some(0), "{said}");
}

/// Whether a process takes TERM itself.
fn takes_term(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & (1 << 14) != 0)
}

#[test]
fn term_ends_it_however_the_driver_hangs_at_the_start() {
    for call in ["nvmlInit*", "nvmlDeviceGet*"] {
        for more in [&[][..], &["--strandline-wait"]] {
            let script = format!("calls: [{{call: '{call}', hang: 50s}}]");
            let world = World::new(&eight(), "h100-0", 47, 0.0).with_script(&script);
            let port = free_port();
            let log = tempfile::NamedTempFile::new().unwrap();
            let mut command = world.command(program());
            command.args(["-a", &format!("127.0.0.1:{port}")]).args(more);
            command.stdout(Stdio::null()).stderr(log.reopen().unwrap());
            let running = Running { child: command.spawn().unwrap(), port, log };
            let began = Instant::now();
            while !takes_term(running.pid()) {
                assert!(began.elapsed() < Duration::from_secs(20), "{call}: {}", running.said());
                std::thread::sleep(Duration::from_millis(10));
            }
            running.signal("TERM");
            assert_eq!(running.ended(Duration::from_secs(15)).0, Some(0), "{call} {more:?}");
        }
    }
}

#[test]
fn a_driver_that_hangs_while_it_reloads_holds_up_no_page_and_no_end() {
    let script = "calls: [{call: 'nvmlInit*', after_calls: 1, hang: 50s}]";
    let world = World::new(&eight(), "h100-0", 47, 0.0).with_script(script);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counters.csv");
    std::fs::write(&file, "DCGM_FI_DEV_GPU_TEMP, gauge, t\n").unwrap();
    let running = Running::start(&world, &["-f", file.to_str().unwrap()]);
    running.until("the first page", |page| page.matches("\nDCGM_FI_DEV_GPU_TEMP{").count() == 8);
    std::fs::write(&file, "DCGM_FI_DEV_GPU_TEMP, gauge, t\nDCGM_FI_DEV_MEM_CLOCK, gauge, c\n").unwrap();
    for _ in 0..40 {
        running.signal("HUP");
        let began = Instant::now();
        let page = running.page();
        assert_eq!(page.matches("\nDCGM_FI_DEV_GPU_TEMP{").count(), 8, "the page before stands");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
    running.signal("TERM");
    assert_eq!(running.ended(Duration::from_secs(15)).0, Some(0));
}

#[test]
fn a_driver_that_is_let_go_of_is_not_taken_up_by_a_reload() {
    let world = World::new(&eight(), "h100-0", 47, 0.0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counters.csv");
    std::fs::write(&file, "DCGM_FI_DEV_GPU_TEMP, gauge, t\n").unwrap();
    let running = Running::start(&world, &["-f", file.to_str().unwrap()]);
    running.signal("USR1");
    running.until("the release", |page| single(page, "strandline_driver_up") == Some(0.0));
    std::fs::write(&file, "DCGM_FI_DEV_GPU_TEMP, gauge, t\nDCGM_FI_DEV_MEM_CLOCK, gauge, c\n").unwrap();
    running.signal("HUP");
    let page = running.until("the reload", |page| single(page, "strandline_collectors_reloads_total") >= Some(1.0));
    assert_eq!(single(&page, "strandline_driver_opened_total"), Some(1.0));
    running.until("the reload's end", |_| running.said().contains("was read again"));
    assert_eq!(single(&running.page(), "strandline_driver_opened_total"), Some(1.0), "{}", running.said());
    running.signal("USR2");
    running.until("the new fields", |page| page.matches("\nDCGM_FI_DEV_MEM_CLOCK{").count() == 8);
}

fn run(world: &World, arguments: &[&str]) -> Output {
    world.command(program()).args(arguments).output().unwrap()
}

#[test]
fn exit_codes_and_errors_name_the_next_step() {
    let world = World::new(&small(), "h100-0", 47, 0.0);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (nothing, web) = (file("none.csv", "x\n"), file("web.yaml", "tls_server_config: 7\n"));
    for (arguments, code, says) in [
        (&["-a", "127.0.0.1:0", "--strandline-nvml-library", "/nonexistent.so"][..], 3, "install the NVIDIA driver"),
        (&["--strandline-check", "--strandline-nvml-library", "/nonexistent.so"], 3, "cannot load"),
        (&["-a", &address], 2, "is another program on that port?"),
        (&["-a", "127.0.0.1:0", "-f", "/nonexistent.csv"], 2, "cannot read the collectors file"),
        (&["-a", "127.0.0.1:0", "-f", "/dev/zero"], 2, "not a regular file"),
        (&["-a", "127.0.0.1:0", "-f", &nothing], 2, "line 1: `x` is not `field, type, help`"),
        (&["-a", "127.0.0.1:0", "--web-config-file", "/nonexistent.yaml"], 2, "/nonexistent.yaml"),
        (&["-a", "127.0.0.1:0", "--web-config-file", &web], 2, "web.yaml"),
        (&["--no-such-flag"], 2, "unexpected argument"),
        (&["--help"], 0, "Exit status: 0"),
    ] {
        let output = run(&world, arguments);
        assert!(output.status.code() == Some(code) && text(&output).contains(says), "{arguments:?}: {}", text(&output));
    }
    let none = World::new(&small(), "h100-0", 47, 0.0)
        .with_script("devices: [{device: 0, state: fallen_off}, {device: 1, state: fallen_off}, {device: 2, state: fallen_off}, {device: 3, state: fallen_off}]");
    let output = run(&none, &["-a", "127.0.0.1:0"]);
    assert!(output.status.code() == Some(3) && text(&output).contains("shows no GPU"), "{}", text(&output));
    let output = run(&world, &["--strandline-check"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(table.contains("4 expected, 4 seen, 0 lost") && table.contains("by nvmlGpmMetricsGet(2)"), "{table}");
    let output = run(&World::new(&small(), "l4-0", 47, 0.0), &["--strandline-check"]);
    let table = String::from_utf8(output.stdout).unwrap();
    let missing = |field: &str| table.lines().any(|line| line.contains(field) && line.contains("- NOT_SUPPORTED"));
    assert!(missing("DCGM_FI_PROF_SM_ACTIVE"), "{table}");
}

#[test]
fn it_waits_for_a_driver_where_that_is_asked_for() {
    let world = World::after(&small(), "h100-0", 30, 100).with_script("driver: [{from: 90s, for: 1h}]");
    let output = run(&world, &["-a", "127.0.0.1:0"]);
    assert!(output.status.code() == Some(3) && text(&output).contains("is the driver loaded"), "{}", text(&output));
    let running = Running::start(&world, &["--strandline-wait"]);
    assert_eq!(single(&running.page(), "strandline_driver_up"), Some(0.0));
    assert_eq!(running.get("/health", "").0, 503);
    std::fs::write(world.setup.script.as_ref().unwrap(), "").unwrap();
    running.until("the driver", |page| single(page, "strandline_gpus_seen") == Some(4.0));
    assert_eq!(running.get("/health", "").0, 200);
}

#[test]
fn a_driver_that_hangs_is_told_by_health_and_never_by_a_slow_page() {
    let world = World::new(&small(), "h100-0", 30, 0.0).with_script("");
    let running = Running::start(&world, &["--strandline-stale-after", "1s"]);
    running.until("profiling", profiled);
    assert_eq!(running.get("/health", "").0, 200);
    std::fs::write(world.setup.script.as_ref().unwrap(), "calls: [{call: nvmlDeviceGet*, hang: 30s}]").unwrap();
    let mut slowest = Duration::ZERO;
    running.until("nothing is told", |page| {
        let began = Instant::now();
        running.page();
        slowest = slowest.max(began.elapsed());
        !page.contains("DCGM_FI_DEV_POWER_USAGE{")
    });
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    running.until("calls are seen to hang", |page| sum(page, "strandline_hanging_calls") >= 4.0);
    running.until("GPUs are said not to answer", |page| page.contains("state=\"unresponsive\"} 1"));
    let began = Instant::now();
    while running.get("/health", "").0 != 503 {
        assert!(began.elapsed() < Duration::from_secs(20), "health sees nothing");
        std::thread::sleep(Duration::from_millis(50));
    }
    running.signal("TERM");
    let (code, said) = running.ended(Duration::from_secs(15));
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn what_is_no_kubelet_is_counted_and_takes_no_page_down() {
    let world = World::new(&small(), "h100-0", 47, 0.0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let answers = std::thread::spawn(move || {
        // Whatever this is, it is no gRPC.
        for stream in listener.incoming().take(2).flatten() {
            let mut stream = stream;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno");
        }
    });
    let running = Running::start(&world, &["-k", "--pod-resources-kubelet-socket", path.to_str().unwrap()]);
    let page = running.until("a failure", |page| page.contains("strandline_attribution_failures_total{"));
    assert_eq!(page.lines().filter(|line| line.starts_with("DCGM_FI_DEV_GPU_TEMP{")).count(), 4);
    assert!(!page.contains("strandline_gpu_owners{"), "nobody can tell, which is not that they are free");
    drop(running);
    drop(answers);
}

#[test]
fn users_are_asked_for_where_the_web_config_says_so() {
    let world = World::new(&small(), "h100-0", 47, 0.0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yaml");
    // `secret`, at the least cost.
    let hash = "$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";
    std::fs::write(&file, format!("basic_auth_users:\n  prometheus: {hash}\n")).unwrap();
    let running = Running::start(&world, &["--web-config-file", file.to_str().unwrap()]);
    for path in ["/metrics", "/health", "/"] {
        assert_eq!(running.get(path, "").0, 401, "{path}");
    }
    let (status, ..) = running.get("/metrics", "Authorization: Basic cHJvbWV0aGV1czp3cm9uZw==\r\n");
    assert_eq!(status, 401);
    let (status, _, page) = running.get("/metrics", "Authorization: Basic cHJvbWV0aGV1czpzZWNyZXQ=\r\n");
    assert!(
        status == 200
            && page.contains("strandline_gpus_seen 4\n")
            && page.contains("web_refused_total{reason=\"unauthorized\"} 4\n")
    );
}

/// XIDs of a fleet's clock that runs, as counters and as the last one.
#[test]
fn xids_are_counted_by_code() {
    let spec = eight();
    let plan_world = World::new(&spec, "h100-0", 0, 0.0);
    let place = |board| simulator::nvml::Place { node: plan_world.node, board, device: None };
    let boards = 0..plan_world.plan.nodes()[plan_world.node].boards.len();
    let end = plan_world.plan.window().to();
    let xids = boards.flat_map(|board| simulator::nvml::xids(&plan_world.plan, place(board), end));
    let first = xids.map(|(at, _)| at.ms()).min().expect("an XID in this fleet");
    let start = plan_world.plan.window().from().ms();
    // Begin shortly before the first.
    let mut world = World::new(&spec, "h100-0", 0, 20.0);
    world.setup.clock.origin = schemas::Timestamp::from_ms((first - 40_000).max(start));
    let running = Running::start(&world, &[]);
    let page = running.until("an XID", |page| page.contains("strandline_xid_errors_total{"));
    assert!(sum(&page, "strandline_xid_errors_total") >= 1.0);
    assert!(page.contains("strandline_xid_last_timestamp_seconds{"));
    assert!(
        page.lines()
            .any(|line| line.starts_with("DCGM_FI_DEV_XID_ERRORS{") && !line.ends_with(" 0") && line.contains("err_code=\""))
    );
}

/// Families that dcgm-exporter makes itself, by windows and since the start, with their labels.
#[test]
fn counted_families_have_their_windows_and_events() {
    let world = World::new(&small(), "h100-0", 47, 0.0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counters.csv");
    let rows = ["XID_ERRORS_COUNT", "CLOCK_EVENTS_COUNT", "XID_ERRORS_TOTAL", "CLOCK_EVENTS_TOTAL", "GPU_HEALTH_STATUS"];
    std::fs::write(&file, rows.map(|row| format!("DCGM_EXP_{row}, gauge, x\n")).concat()).unwrap();
    let windows = ["-x", "60000", "--clock-events-count-window-size", "2000"];
    let running = Running::start(&world, &[&["-f", file.to_str().unwrap()], &windows[..]].concat());
    let of =
        |page: &str, family: &str| page.lines().filter(|line| line.starts_with(family)).map(str::to_owned).collect::<Vec<_>>();
    let (plan, node, at) = (&world.plan, world.node, world.at());
    let reasons = (0..4).map(|gpu| simulator::state(plan, simulator::DeviceRef { node, gpu }, at).unwrap().clock_reasons);
    let bits: u32 = reasons.map(|mask| mask.count_ones()).sum();
    assert!(bits > 0, "some clock event holds");
    let page = running.until("clock events", |page| of(page, "DCGM_EXP_CLOCK_EVENTS_COUNT{").len() >= bits as usize);
    let counts = of(&page, "DCGM_EXP_CLOCK_EVENTS_COUNT{");
    assert!(counts.iter().all(|line| line.contains("window_size_in_ms=\"2000\"")), "{counts:?}");
    assert_eq!(counts.iter().filter(|line| line.contains("clock_event=\"")).count(), bits as usize, "{counts:?}");
    // Two seconds of rounds ten times a second at most, and all since the start.
    let page = running.until("the window is full", |page| sum(page, "DCGM_EXP_CLOCK_EVENTS_TOTAL") >= f64::from(bits) * 30.0);
    let within = sum(&page, "DCGM_EXP_CLOCK_EVENTS_COUNT");
    assert!(within > 0.0 && within <= f64::from(bits) * 22.0, "{within} of {bits} bits");
    let none = of(&page, "DCGM_EXP_XID_ERRORS_COUNT{");
    assert_eq!(none.len(), 4, "{page}");
    assert!(none.iter().all(|line| line.contains("window_size_in_ms=\"60000\"") && line.ends_with(" 0")), "{none:?}");
    assert!(of(&page, "DCGM_EXP_XID_ERRORS_TOTAL{").is_empty(), "a series once its event has come");
    assert!(of(&page, "DCGM_EXP_GPU_HEALTH_STATUS").is_empty(), "absent, and no refusal");
}
