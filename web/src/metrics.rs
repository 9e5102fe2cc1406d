//! The process's own metrics: counters and gauges by name and labels, rendered as Prometheus text.
//!
//! Handles are cheap to keep and to count with; registering the same name and labels again gives the same one. Label sets are
//! bounded per name, so that no caller's data can grow the page without end.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Most label sets of one name; handles beyond it count, but are not shown.
pub const MAX_SERIES: usize = 1000;

/// A set of metrics; clones are the same set.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    families: Arc<Mutex<BTreeMap<&'static str, Family>>>,
    unshown: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Family {
    help: &'static str,
    kind: Kind,
    series: BTreeMap<String, Arc<AtomicU64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
}

/// A number that only grows.
#[derive(Clone, Debug)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// What it has come to.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Clone, Debug)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// Sets it.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// What it was set to; 0 before that.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

impl Metrics {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The counter `name` with `labels`; `name` ends in `_total` by custom.
    ///
    /// # Panics
    /// Where `name` is already a gauge: a mistake in our code.
    pub fn counter(&self, name: &'static str, help: &'static str, labels: &[(&str, &str)]) -> Counter {
        Counter(self.series(name, help, Kind::Counter, labels))
    }

    /// The gauge `name` with `labels`.
    ///
    /// # Panics
    /// Where `name` is already a counter: a mistake in our code.
    pub fn gauge(&self, name: &'static str, help: &'static str, labels: &[(&str, &str)]) -> Gauge {
        Gauge(self.series(name, help, Kind::Gauge, labels))
    }

    fn series(&self, name: &'static str, help: &'static str, kind: Kind, labels: &[(&str, &str)]) -> Arc<AtomicU64> {
        let mut families = self.lock();
        let family = families.entry(name).or_insert_with(|| Family { help, kind, series: BTreeMap::new() });
        assert_eq!(family.kind, kind, "metric {name} is registered as two kinds");
        let key = label_block(labels);
        if let Some(cell) = family.series.get(&key) {
            return cell.clone();
        }
        let cell = Arc::new(AtomicU64::new(0)); // also the bits of 0.0
        if family.series.len() < MAX_SERIES {
            family.series.insert(key, cell.clone());
        } else {
            self.unshown.fetch_add(1, Ordering::Relaxed);
        }
        cell
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Family>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The page: these metrics and what the system knows of this process, as Prometheus text.
    pub fn render(&self) -> String {
        self.render_as(false)
    }

    /// The same, or as OpenMetrics without the `# EOF` that ends a whole page.
    pub fn render_as(&self, open_metrics: bool) -> String {
        let head = |page: &mut String, name: &str, help: &str, kind: &str| head(page, name, help, kind, open_metrics);
        let mut page = String::with_capacity(4096);
        for (name, family) in self.lock().iter() {
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
            };
            head(&mut page, name, family.help, kind);
            for (labels, cell) in &family.series {
                let bits = cell.load(Ordering::Relaxed);
                let _ = match family.kind {
                    Kind::Counter => writeln!(page, "{name}{labels} {bits}"),
                    Kind::Gauge => writeln!(page, "{name}{labels} {}", f64::from_bits(bits)),
                };
            }
        }
        let unshown = self.unshown.load(Ordering::Relaxed);
        if unshown > 0 {
            head(
                &mut page,
                "web_unshown_series_total",
                "label sets beyond the limit of one name, counted but not shown",
                "counter",
            );
            let _ = writeln!(page, "web_unshown_series_total {unshown}");
        }
        process(&mut page, open_metrics);
        page
    }
}

/// In OpenMetrics a counter's head has its name without `_total`; one without that ending is of no known kind.
fn head(page: &mut String, name: &str, help: &str, kind: &str, open_metrics: bool) {
    let (name, kind) = match (open_metrics, kind, name.strip_suffix("_total")) {
        (true, "counter", Some(stem)) => (stem, kind),
        (true, "counter", None) => (name, "unknown"),
        _ => (name, kind),
    };
    let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// `{a="x",b="y"}` with values escaped, or nothing.
fn label_block(labels: &[(&str, &str)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let mut block = String::from("{");
    for (i, (name, value)) in labels.iter().enumerate() {
        let _ = write!(block, "{}{name}=\"", if i > 0 { "," } else { "" });
        for c in value.chars() {
            match c {
                '\\' => block.push_str("\\\\"),
                '"' => block.push_str("\\\""),
                '\n' => block.push_str("\\n"),
                c => block.push(c),
            }
        }
        block.push('"');
    }
    block.push('}');
    block
}

/// Figures under the names that every Prometheus client library gives them; left out where the system does not tell.
fn process(page: &mut String, open_metrics: bool) {
    let head = |page: &mut String, name: &str, help: &str, kind: &str| head(page, name, help, kind, open_metrics);
    const TICKS_PER_SECOND: f64 = 100.0; // USER_HZ, fixed in Linux's interface
    const PAGE_BYTES: u64 = 4096;
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return };
    // The second field is the program's name in parentheses and may hold blanks.
    let Some((_, rest)) = stat.rsplit_once(')') else { return };
    let field = |n: usize| rest.split_ascii_whitespace().nth(n - 3).and_then(|text| text.parse::<u64>().ok());
    if let (Some(user), Some(system)) = (field(14), field(15)) {
        head(page, "process_cpu_seconds_total", "user and system CPU time of this process", "counter");
        let _ = writeln!(page, "process_cpu_seconds_total {}", (user + system) as f64 / TICKS_PER_SECOND);
    }
    if let Some(pages) = field(24) {
        head(page, "process_resident_memory_bytes", "resident memory of this process", "gauge");
        let _ = writeln!(page, "process_resident_memory_bytes {}", pages * PAGE_BYTES);
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        head(page, "process_open_fds", "open files of this process", "gauge");
        let _ = writeln!(page, "process_open_fds {}", files.count());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_labels_is_one_series_however_often_asked_for() {
        let metrics = Metrics::new();
        metrics.counter("rounds_total", "rounds", &[("status", "ok")]).inc();
        metrics.clone().counter("rounds_total", "rounds", &[("status", "ok")]).add(2);
        metrics.gauge("lag_ms", "lag", &[("node", "a\"b\\c\nd")]).set(1.5);
        let page = metrics.render();
        assert!(
            page.contains("# HELP rounds_total rounds\n# TYPE rounds_total counter\nrounds_total{status=\"ok\"} 3\n"),
            "{page}"
        );
        assert!(page.contains("lag_ms{node=\"a\\\"b\\\\c\\nd\"} 1.5\n"), "{page}");
    }

    #[test]
    fn openmetrics_has_counters_by_their_stem() {
        let metrics = Metrics::new();
        metrics.counter("rounds_total", "rounds", &[("status", "ok")]).inc();
        let page = metrics.render_as(true);
        assert!(page.contains("# HELP rounds rounds\n# TYPE rounds counter\nrounds_total{status=\"ok\"} 1\n"), "{page}");
        assert!(page.contains("# TYPE process_cpu_seconds counter\nprocess_cpu_seconds_total "), "{page}");
    }

    #[test]
    fn label_sets_are_bounded() {
        let metrics = Metrics::new();
        for i in 0..MAX_SERIES + 5 {
            metrics.counter("seen_total", "seen", &[("from", &i.to_string())]).inc();
        }
        let page = metrics.render();
        assert_eq!(page.lines().filter(|line| line.starts_with("seen_total{")).count(), MAX_SERIES);
        assert!(page.contains("web_unshown_series_total 5\n"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_process_itself_is_on_the_page() {
        let page = Metrics::new().render();
        let value =
            page.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes ")).and_then(|v| v.parse().ok());
        assert!(value.is_some_and(|bytes: u64| bytes > 100_000), "{page}");
    }
}
