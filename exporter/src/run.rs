//! The exporter as a process: what it is told becomes collection, pods, pages; signals end it.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant, SystemTime},
};

use attribution::ResourceNames;
use axum::{
    Router,
    http::{HeaderMap, StatusCode, header},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use tokio::sync::mpsc;
use tracing::{info, warn};
use web::metrics::{Counter, Gauge};

use crate::{
    collectors::{self, Collectors, counted},
    config::Config,
    hpc::Jobs,
    node::{self, How, Node},
    nvml::{Ages, Driver, Fleet, OpenError, Options, session::TEXTS},
    owners::{self, Owners},
    pod_labels::PodLabels,
    render::Format,
    serve::{Pages, negotiated},
};

/// Time between two censuses of the GPUs, and between two listings of pods.
const CENSUS: Duration = Duration::from_secs(10);
const LISTING: Duration = Duration::from_secs(5);
/// A call that takes longer is given up on.
const STUCK: Duration = Duration::from_secs(2);
/// How long the driver is let go of on SIGUSR1.
const RELEASE: Duration = Duration::from_secs(600);
/// How often it is looked whether the collectors file has changed.
const LOOK: Duration = Duration::from_secs(5);
/// The first readings are waited for so long before the first scrape is answered.
const FIRST: Duration = Duration::from_secs(5);

/// Why the exporter does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No driver, or no library.
    #[error(transparent)]
    Driver(#[from] OpenError),
    /// The driver shows no GPU.
    #[error(
        "the GPU driver shows no GPU; is there one in this machine, and is it given to this container? (--strandline-wait waits)"
    )]
    NoGpu,
    /// No usable collectors file.
    #[error("cannot read the collectors file {}; name a file of rows `field, type, help` by -f", path.display())]
    Collectors {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        err: std::io::Error,
    },
    /// A collectors file without one good row.
    #[error("{} has no row that can be used: {what}", path.display())]
    NoRows {
        /// The file.
        path: PathBuf,
        /// What is wrong with the first.
        what: String,
    },
    /// The web-config file.
    #[error(transparent)]
    WebConfig(#[from] web::ConfigError),
    /// No listener.
    #[error(transparent)]
    Listen(#[from] web::ListenError),
    /// The server ended.
    #[error("the server ended")]
    Serve(#[source] std::io::Error),
}

impl RunError {
    /// Exit status of the process.
    pub const fn status(&self) -> u8 {
        match self {
            Self::Driver(_) | Self::NoGpu => 3,
            Self::Collectors { .. } | Self::NoRows { .. } | Self::WebConfig(_) | Self::Listen(_) => 2,
            Self::Serve(_) => 1,
        }
    }
}

/// What a running exporter may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// To end.
    End,
    /// To read its collectors file again.
    Reload,
    /// To let go of the driver.
    Release,
    /// To take it up again.
    Resume,
}

/// Reads a collectors file: rows that are bad are said and left out.
pub fn read_collectors(path: Option<&Path>) -> Result<(Collectors, usize), RunError> {
    let Some(path) = path else { return Ok((Collectors::built_in(), 0)) };
    let owned = || path.to_owned();
    let text = (|| {
        if !path.metadata()?.is_file() {
            return Err(std::io::Error::other("it is not a regular file")); // reading a pipe would never end
        }
        if path.metadata()?.len() > collectors::MAX_BYTES as u64 {
            return Err(std::io::Error::other(format!("it is larger than {} bytes", collectors::MAX_BYTES)));
        }
        std::fs::read_to_string(path)
    })();
    let text = text.map_err(|err| RunError::Collectors { path: owned(), err })?;
    let (read, refused) = Collectors::parse_lossy(&text);
    if read.fields().is_empty() {
        let what = refused.first().map_or_else(|| "it is empty".to_owned(), ToString::to_string);
        return Err(RunError::NoRows { path: owned(), what });
    }
    for err in refused.iter().take(20) {
        warn!(file = %path.display(), %err, "a row of the collectors file is left out");
    }
    Ok((read, refused.len()))
}

/// What a reload exchanges, all at once: how pages are printed, and of what.
struct Now {
    pages: Pages,
    node: Node,
}

/// A running exporter's parts.
struct Exporter {
    config: Config,
    now: RwLock<Arc<Now>>,
    owners: Option<Arc<Owners>>,
    metrics: web::Metrics,
    counters: Counters,
}

/// What the process counts of itself.
struct Counters {
    reloads: Counter,
    failed_reloads: Counter,
    pages: Counter,
    refused_rows: Gauge,
}

impl Counters {
    fn new(metrics: &web::Metrics) -> Self {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        metrics.gauge("strandline_exporter_build_info", "1, with the version of this program", &version).set(1.0);
        Self {
            reloads: metrics.counter("strandline_collectors_reloads_total", "times that the collectors file was read again", &[]),
            failed_reloads: metrics.counter(
                "strandline_collectors_reload_failures_total",
                "times that it could not be used then",
                &[],
            ),
            pages: metrics.counter("strandline_pages_total", "pages of metrics that were made", &[]),
            refused_rows: metrics.gauge(
                "strandline_collectors_refused_rows",
                "rows of the collectors file that are left out",
                &[],
            ),
        }
    }
}

impl Exporter {
    fn now(&self) -> Arc<Now> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fleet(&self) -> Arc<Fleet> {
        self.now().node.fleet.clone()
    }
}

/// What the fleet is told so that `collectors` can be printed.
fn options(config: &Config, collectors: &Collectors) -> Options {
    let printed = collectors.fields();
    let clock_events = [counted::CLOCK_EVENTS, counted::CLOCK_EVENTS_IN_WINDOW].iter().any(|family| printed.contains(family));
    Options {
        library: config.library.clone(),
        wanted: node::wanted(&printed, clock_events),
        texts: collectors.labels().iter().map(|(_, field)| *field).filter(|field| TEXTS.contains(field)).collect(),
        interval: config.interval,
        profiling_interval: config.profiling_interval,
        census_interval: CENSUS,
        ages: Ages { device: config.stale_after, profiling: config.profiling_stale_after, stuck: STUCK },
        window: config.windows[1],
        sysfs: config.sysfs.clone(),
    }
}

fn node(
    config: &Config,
    collectors: &Collectors,
    fleet: &Arc<Fleet>,
    owners: Option<&Arc<Owners>>,
    metrics: &web::Metrics,
) -> Node {
    let taken = collectors.labels().iter().map(|(name, _)| name.clone());
    // The same counter each time, so that a reload does not begin it anew.
    let labels = |allowed| {
        let help = "labels of pods that were left out or cut, for their size or number";
        PodLabels::new(allowed, taken, metrics.counter("strandline_pod_labels_refused_total", help, &[]))
    };
    let how = How {
        hostname: hostname().map(Into::into),
        selection: config.selection.clone(),
        repeat: config.repeat,
        pod_uid: config.pod_uid,
        pod_labels: config.pod_labels.clone().map(labels),
        xid_window: config.windows[0],
        clock_window: config.windows[1],
        expected: config.expected,
    };
    let jobs = config.hpc.clone().map(|folder| Arc::new(Jobs::new(folder)));
    Node { fleet: fleet.clone(), owners: owners.cloned(), jobs, how }
}

/// What the node is called: NODE_NAME, else the operating system's name for itself.
fn hostname() -> Option<String> {
    let told = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    let own = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned());
    told.or_else(own).filter(|name| !name.is_empty())
}

/// Runs until a signal says to end.
pub async fn run(config: Config, mut signals: mpsc::Receiver<Signal>) -> Result<(), RunError> {
    for warning in &config.warnings {
        warn!("{warning}");
    }
    let metrics = web::Metrics::new();
    let guard = web::Guard::of(config.web_config.as_deref(), &metrics)?;
    // Before it is read: a change while we start is seen by the first look.
    let mut seen = stamp(config.collectors.as_deref());
    let (collectors, refused) = read_collectors(config.collectors.as_deref())?;
    let listener = if config.systemd { web::listen_systemd()? } else { listen(config.address).await? };
    let mut early = None;
    let (told, wait) = (options(&config, &collectors), config.wait);
    let Some(fleet) = unless_ended(in_library(move || Fleet::start(told, wait)), &mut signals, &mut early).await else {
        return Ok(());
    };
    let fleet = fleet?;
    let owners = config.kubernetes.then(Arc::<Owners>::default);
    let node = node(&config, &collectors, &fleet, owners.as_ref(), &metrics);
    let pages = Pages::new(Arc::new(collectors), config.style);
    let counters = Counters::new(&metrics);
    counters.refused_rows.set(refused as f64);
    let now = RwLock::new(Arc::new(Now { pages, node }));
    let exporter = Arc::new(Exporter { config, now, owners: owners.clone(), metrics, counters });
    match unless_ended(first_readings(&exporter), &mut signals, &mut early).await {
        Some(Ok(())) => {}
        ended => {
            let _ = tokio::task::spawn_blocking(move || fleet.stop()).await;
            return ended.unwrap_or(Ok(()));
        }
    }
    match early {
        Some(Signal::Release) => fleet.release(Some(RELEASE)),
        Some(Signal::Resume) => fleet.release(None),
        _ => {}
    }
    let asking = owners.map(|owners| tokio::spawn(follow(exporter.clone(), owners)));
    if let Ok(address) = listener.local_addr() {
        info!(%address, gpus = fleet.boards().len(), "the exporter listens");
    }
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let server = web::serve_guarded(listener, router(exporter.clone()), limits(), guard, async {
        let _ = ended.await;
    });
    let control = async {
        let again = tokio::sync::Notify::new();
        let obey = async {
            loop {
                match signals.recv().await {
                    None | Some(Signal::End) => break,
                    // However many come while one is done: one more.
                    Some(Signal::Reload) => again.notify_one(),
                    Some(Signal::Release) => exporter.fleet().release(Some(RELEASE)),
                    Some(Signal::Resume) => exporter.fleet().release(None),
                }
            }
        };
        let reloads = async {
            let mut looks = tokio::time::interval(LOOK);
            loop {
                tokio::select! {
                    () = again.notified() => {
                        seen = stamp(exporter.config.collectors.as_deref());
                        reload(&exporter).await;
                    }
                    _ = looks.tick() => {
                        let now = stamp(exporter.config.collectors.as_deref());
                        if now != seen {
                            seen = now;
                            reload(&exporter).await;
                        }
                    }
                }
            }
        };
        // Beside each other: a reload waits for the driver, and an end does not wait for a reload.
        tokio::select! {
            () = obey => {}
            () = reloads => {}
        }
        info!("ending: answers that run are finished");
        let _ = end.send(());
        std::future::pending::<()>().await;
    };
    let served = tokio::select! {
        served = server => served.map_err(RunError::Serve),
        () = control => Ok(()),
    };
    if let Some(asking) = asking {
        asking.abort();
    }
    let fleet = exporter.fleet();
    let _ = tokio::task::spawn_blocking(move || fleet.stop()).await;
    served
}

/// What comes of `work`; none where it is told to end first. Of the other signals that come meanwhile, `early` is the last that is
/// about the driver.
async fn unless_ended<T>(
    work: impl Future<Output = T>,
    signals: &mut mpsc::Receiver<Signal>,
    early: &mut Option<Signal>,
) -> Option<T> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Some(done),
            signal = signals.recv() => match signal {
                None | Some(Signal::End) => return None,
                Some(Signal::Reload) => {} // the first look sees whether the file has changed
                Some(about) => *early = Some(about),
            },
        }
    }
}

/// Runs what opens the driver's library, which may hang, where it holds up nothing else.
async fn in_library(open: impl FnOnce() -> Result<Arc<Fleet>, OpenError> + Send + 'static) -> Result<Arc<Fleet>, RunError> {
    let opened = tokio::task::spawn_blocking(open).await;
    Ok(opened.map_err(|err| RunError::Serve(std::io::Error::other(err)))??)
}

/// What clients may use up of a process that has some megabytes: few connections, and so little time for the head of a request that
/// slow ones do not hold up a scrape for as long as it waits.
fn limits() -> web::Limits {
    web::Limits { connections: 256, header_timeout: Duration::from_secs(3), body_bytes: 4096, ..web::Limits::default() }
}

/// `:PORT` is every address: IPv6's and IPv4's, or IPv4's alone where the machine has no IPv6.
async fn listen(address: web::Address) -> Result<tokio::net::TcpListener, web::ListenError> {
    match web::listen(address).await {
        Err(web::ListenError::Bind { address: refused, err })
            if refused.ip() == std::net::Ipv6Addr::UNSPECIFIED && err.kind() != std::io::ErrorKind::AddrInUse =>
        {
            web::listen(web::Address((std::net::Ipv4Addr::UNSPECIFIED, refused.port()).into())).await
        }
        answer => answer,
    }
}

/// Waits for the first readings, so that the first scrape is not of nothing; at most for [`FIRST`].
async fn first_readings(exporter: &Exporter) -> Result<(), RunError> {
    let fleet = exporter.fleet();
    let until = Instant::now() + FIRST;
    loop {
        let boards = fleet.boards();
        if !boards.is_empty() && boards.iter().all(|board| board.rounds() > 0) {
            return Ok(());
        }
        let none = boards.is_empty() && fleet.unreadable().is_empty() && fleet.censuses() > 0;
        if none && !exporter.config.wait {
            return Err(RunError::NoGpu);
        }
        if exporter.config.wait && fleet.driver() != Driver::Up || Instant::now() >= until {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn follow(exporter: Arc<Exporter>, owners: Arc<Owners>) {
    let config = &exporter.config;
    let mut names = ResourceNames::default();
    names.exact.extend(config.resource_names.iter().cloned());
    names.unread.clear();
    if !config.dra {
        names.drivers.clear();
    }
    let how = owners::How {
        socket: config.podres_socket.clone(),
        interval: LISTING,
        names,
        node: std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty()),
        details: config.pod_uid || config.pod_labels.is_some(),
        claims: config.dra,
        pods_api: config.pods_api_socket.clone(),
        kubeconfig: None,
    };
    owners::follow(how, owners, || exporter.now().node.gpus(), || exporter.fleet().look_again()).await;
}

/// What tells one state of a file from another.
fn stamp(path: Option<&Path>) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(path?).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

/// Reads the collectors file again. One that cannot be used leaves the last one in force; pages are whole at every moment.
async fn reload(exporter: &Arc<Exporter>) {
    let (collectors, refused) = match read_collectors(exporter.config.collectors.as_deref()) {
        Ok(read) => read,
        Err(err) => {
            exporter.counters.failed_reloads.inc();
            warn!(err = %crate::chain::chain(&err), "the collectors file cannot be used; the one before stays in force");
            return;
        }
    };
    exporter.counters.reloads.inc();
    let before = exporter.fleet();
    let wanted = options(&exporter.config, &collectors);
    let same = before.reads(&wanted);
    let fleet = if same {
        before.clone()
    } else {
        // Other fields: a fleet beside the one before, which is left once this one has read.
        let beside = before.clone();
        match in_library(move || Fleet::start_beside(wanted, true, Some(&beside))).await {
            Ok(fleet) => fleet,
            Err(err) => {
                exporter.counters.failed_reloads.inc();
                warn!(err = %crate::chain::chain(&err), "the collectors file is read, and the driver does not answer");
                return;
            }
        }
    };
    if !same {
        let until = Instant::now() + FIRST;
        let ready = |fleet: &Fleet| {
            let boards = fleet.boards();
            boards.len() >= before.boards().len() && boards.iter().all(|board| board.rounds() > 1)
        };
        while !ready(&fleet) && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let node = node(&exporter.config, &collectors, &fleet, exporter.owners.as_ref(), &exporter.metrics);
    let pages = Pages::new(Arc::new(collectors), exporter.config.style);
    *exporter.now.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Now { pages, node });
    exporter.counters.refused_rows.set(refused as f64);
    if !same {
        fleet.release_as(&before);
        let _ = tokio::task::spawn_blocking(move || before.stop()).await;
        fleet.wait_for_events();
    }
    info!(refused, "the collectors file was read again");
}

fn router(exporter: Arc<Exporter>) -> Router {
    let (page, health, ready) = (exporter.clone(), exporter.clone(), exporter);
    Router::new()
        .route("/", get(|| async { Html(INDEX) }))
        .route("/metrics", get(move |headers: HeaderMap| async move { page.page(&headers) }))
        .route("/health", get(move || async move { health.health() }))
        .route("/-/healthy", get(|| async { "healthy\n" }))
        .route("/-/ready", get(move || async move { ready.health() }))
}

const INDEX: &str = "<!doctype html><html lang=\"en\"><head><title>strandline-exporter</title></head><body>\
<h1>strandline-exporter</h1><p><a href=\"/metrics\">Metrics</a></p><p><a href=\"/health\">Health</a></p></body></html>\n";

impl Exporter {
    /// 200 while what is printed is of now; else 503 with what is old.
    fn health(&self) -> Response {
        match self.now().node.fresh(Instant::now(), self.config.stale_after) {
            Ok(()) => "OK\n".into_response(),
            Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
        }
    }

    fn page(&self, headers: &HeaderMap) -> Response {
        let (format, kind) = negotiated(headers);
        let now = self.now();
        // A node never fails to be read.
        let mut page = match now.pages.text(&now.node, format) {
            Ok(page) => page,
            Err(err) => return (StatusCode::INTERNAL_SERVER_ERROR, format!("{err}\n")).into_response(),
        };
        for family in now.node.families(Instant::now()) {
            family.write(format, &mut page);
        }
        self.counters.pages.inc();
        page.extend_from_slice(self.metrics.render_as(format == Format::OpenMetrics).as_bytes());
        if format == Format::OpenMetrics {
            page.extend_from_slice(b"# EOF\n");
        }
        ([(header::CONTENT_TYPE, kind)], page).into_response()
    }
}
/// Prints what each GPU gives, by which call, and why the rest is missing. True where a GPU answers.
pub async fn check(config: Config, print: impl Fn(&str)) -> Result<(), RunError> {
    let (collectors, _) = read_collectors(config.collectors.as_deref())?;
    // Twice the first interval, so that rates and profiling metrics have two readings.
    let mut told = options(&config, &collectors);
    (told.interval, told.profiling_interval) = (Duration::from_millis(200), Duration::from_millis(400));
    let fleet = Fleet::start(told, false)?;
    let until = Instant::now() + FIRST;
    let ready = |fleet: &Fleet| {
        let boards = fleet.boards();
        fleet.censuses() > 0 && boards.iter().all(|board| board.rounds() > 6)
    };
    while !ready(&fleet) && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let found = fleet.boards();
    print(&crate::check::table(&fleet, &collectors, Instant::now()));
    let answer = if found.is_empty() { Err(RunError::NoGpu) } else { Ok(()) };
    let _ = tokio::task::spawn_blocking(move || fleet.stop()).await;
    answer
}

/// Signals of the operating system, as they come. Must be called inside a tokio runtime.
pub fn signals() -> std::io::Result<mpsc::Receiver<Signal>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (to, signals) = mpsc::channel(8);
    let pairs = [
        (SignalKind::terminate(), Signal::End),
        (SignalKind::interrupt(), Signal::End),
        (SignalKind::hangup(), Signal::Reload),
        (SignalKind::user_defined1(), Signal::Release),
        (SignalKind::user_defined2(), Signal::Resume),
    ];
    for (kind, meaning) in pairs {
        let mut stream = signal(kind)?;
        let to = to.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if to.send(meaning).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(signals)
}
