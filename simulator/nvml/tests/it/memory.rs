//! An exporter that runs for long stays what it is: memory, threads, descriptors, and no error (DESIGN 7: below 20 MiB, flat).
//!
//! The library is the simulator's. Pages of its file are told apart, so that what is left is ours and, on the heap, the fleet that
//! it has planned: more than our own, never less.

use std::time::{Duration, Instant};

use crate::{
    exporter_program::{Running, eight, single},
    world::World,
};

const MIB: f64 = 1024.0 * 1024.0;
/// Caches and the allocator's arenas fill in the first seconds, the window of clock events in five minutes: a quarter of the time
/// is not looked at, of 20 minutes as much as the window.
const WARM_UP: u32 = 4;
/// Growth that the slope may say over the whole measurement.
const FLAT: f64 = 0.5 * MIB;
const MOST: f64 = 20.0 * MIB;
/// Largest share of a core at 1 Hz of our own code: five times the budget, as the tests' build is not the one that ships, and other
/// tests run beside it. The bench prints the figure that counts.
const MOST_CPU: f64 = 0.01;

/// What a process uses up.
#[derive(Clone, Copy, Debug)]
struct Use {
    /// Resident bytes, and those of them that are pages of the GPU library's file.
    resident: f64,
    library: f64,
    threads: usize,
    files: usize,
}

impl Use {
    fn of(pid: u32) -> Self {
        let count = |folder: &str| std::fs::read_dir(format!("/proc/{pid}/{folder}")).unwrap().count();
        let (mut resident, mut library, mut in_library) = (0.0, 0.0, false);
        for line in std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap().lines() {
            if let Some(kib) = line.strip_prefix("Rss:") {
                let bytes = kib.trim_end_matches("kB").trim().parse::<f64>().unwrap() * 1024.0;
                resident += bytes;
                library += if in_library { bytes } else { 0.0 };
            } else if line.split(' ').next().is_some_and(|word| word.contains('-')) {
                in_library = line.contains("libnvidia");
            }
        }
        Self { resident, library, threads: count("task"), files: count("fd") }
    }
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

/// Eight GPUs, a reading and a scrape a second: 45 seconds; `./x soak` asks for more by `STRANDLINE_SOAK_MINUTES`, of which 20 are
/// enough here.
#[test]
fn an_exporters_memory_threads_and_files_are_flat() {
    let minutes: Option<u64> = std::env::var("STRANDLINE_SOAK_MINUTES").ok().and_then(|text| text.parse().ok());
    let lasts = minutes.map_or(Duration::from_secs(45), |minutes| Duration::from_secs(60 * minutes.clamp(1, 20)));
    // A fleet of two hours that is watched for minutes, with XIDs and without restarts of the driver, which open the library anew.
    let spec = eight().replace("driver_reload: { per_node_day: 40 }", "driver_reload: { per_node_day: 0 }");
    assert_ne!(spec, eight());
    let world = World::new(&spec, "h100-0", 30, 1.0);
    let arguments = ["--strandline-interval", "1s", "--strandline-profiling-interval", "10s"];
    let running = Running::with(&world, &arguments);
    let (pid, began) = (running.pid(), Instant::now());
    let (mut points, mut uses, mut pages, mut cpu) = (Vec::new(), Vec::new(), 0_u64, None);
    while began.elapsed() < lasts {
        let page = running.page();
        pages += 1;
        // An answer that came too late would be on the next page as a reading that is left out.
        for name in ["strandline_gpus_lost", "strandline_collectors_reload_failures_total"] {
            assert_eq!(single(&page, name), Some(0.0), "{name}");
        }
        let wrong = |line: &&str| {
            ["strandline_collection_errors_total{", "strandline_stale_readings{", "strandline_hanging_calls{"]
                .iter()
                .any(|family| line.starts_with(family) && !line.ends_with(" 0"))
        };
        assert_eq!(page.lines().find(wrong), None);
        if began.elapsed() > lasts / WARM_UP {
            let used = Use::of(pid);
            points.push((began.elapsed().as_secs_f64(), used.resident));
            uses.push(used);
            let of = |name: &str| single(&page, name).unwrap();
            let spent = (of("process_cpu_seconds_total"), of("strandline_library_cpu_seconds_total"), Instant::now());
            cpu.get_or_insert((spent, spent)).1 = spent;
        }
        std::thread::sleep(Duration::from_secs(pages).saturating_sub(began.elapsed()));
    }
    let most = |of: fn(&Use) -> f64| uses.iter().map(of).fold(0.0, f64::max);
    let (resident, own) = (most(|used| used.resident), most(|used| used.resident - used.library));
    let span = points[points.len() - 1].0 - points[0].0;
    let grown = slope(&points) * span;
    let (before, after) = cpu.unwrap();
    let (all, library) = (after.0 - before.0, after.1 - before.1);
    let share = |seconds: f64| seconds / (after.2 - before.2).as_secs_f64();
    println!(
        "exporter: {:.1} MiB at most, {:.1} without the library's file; slope {:.1} KiB over {span:.0} s; {} threads, {} files; \
         {:.3} % of a core ours, {:.3} % the library's; {pages} pages",
        resident / MIB,
        own / MIB,
        grown / 1024.0,
        uses[0].threads,
        uses[0].files,
        share(all - library) * 100.0,
        share(library) * 100.0,
    );
    assert!(grown < FLAT, "memory grows: {grown:.0} bytes over {span:.0} s: {points:?}");
    assert!(own < MOST, "{own} bytes resident beside the library's file");
    let range = |of: fn(&Use) -> usize| (uses.iter().map(of).min().unwrap(), uses.iter().map(of).max().unwrap());
    let (threads, files) = (range(|used| used.threads), range(|used| used.files));
    // A worker of the HTTP server's pool may come and go, and a connection of a scrape that has just ended.
    assert!(threads.1 - threads.0 <= 2 && files.1 - files.0 <= 2, "threads {threads:?}, files {files:?}");
    assert!(share(all - library) < MOST_CPU, "{:.3} % of a core", share(all - library) * 100.0);
    assert!(pages + 3 > lasts.as_secs(), "{pages} pages in {lasts:?}");
    let said = running.said();
    assert!(!said.contains("ERROR") && !said.contains("WARN"), "{said}");
    running.signal("TERM");
    assert_eq!(running.ended(Duration::from_secs(5)).0, Some(0));
}
