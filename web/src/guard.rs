//! Who may ask: a web-config file in force on a running server, read again when it or a file that it names changes.
//!
//! Files are looked at when a connection or a request comes, at most once a second and off the async threads. A file that became
//! bad changes nothing: the last good one stays in force, and each such change is logged and counted once. The same holds for a
//! file that would ask less of clients than the running one (no TLS, no verified certificates or no users any more): one that
//! was emptied by mistake must not open the server, so that needs a restart.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
};
use tokio::sync::Mutex;
use tracing::{info, warn};

use crate::{
    config::{ConfigError, Seen, WebConfig},
    metrics::{Counter, Metrics},
};

mod logins;

use logins::{Login, Logins};

/// Least time between two looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a server asks of its clients, and the counters of those refused; clones are the same guard.
///
/// [`Guard::default`] lets everyone in by plain HTTP.
#[derive(Clone, Debug)]
pub struct Guard {
    file: Option<Arc<Watched>>,
    pub(crate) refused: Arc<Refused>,
}

impl Default for Guard {
    fn default() -> Self {
        Self::open(&Metrics::new())
    }
}

impl Guard {
    /// Lets everyone in by plain HTTP; what is refused all the same is counted in `metrics` (`web_refused_total`).
    pub fn open(metrics: &Metrics) -> Self {
        Self { file: None, refused: Arc::new(Refused::counted(metrics)) }
    }

    /// The guard of the web-config file, or [`Guard::open`] where none is given. Blocks while it reads the files.
    ///
    /// Counters: `web_refused_total` by reason and `web_config_reload_failures_total`.
    ///
    /// Errors: [`ConfigError`] where the file is no good now; later it is kept in force as it was.
    pub fn of(file: Option<&Path>, metrics: &Metrics) -> Result<Self, ConfigError> {
        let mut guard = Self::open(metrics);
        if let Some(path) = file {
            let mut seen = Seen::default();
            let config = WebConfig::read_noting(path, &mut seen)?;
            let help = "changes of the web-config file or its files that were not taken";
            guard.file = Some(Arc::new(Watched {
                path: path.to_owned(),
                current: RwLock::new(Arc::new(config)),
                looked: Arc::new(Mutex::new(Looked { at: Instant::now(), seen })),
                failures: metrics.counter("web_config_reload_failures_total", help, &[]),
                logins: Logins::new(),
            }));
        }
        Ok(guard)
    }

    /// Whether connections are TLS now.
    pub fn has_tls(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.current().has_tls())
    }

    /// What is in force now; none where there is no file.
    pub(crate) async fn config(&self) -> Option<Arc<WebConfig>> {
        Some(Watched::refreshed(self.file.as_ref()?).await)
    }

    /// The answer for one who may not ask; none for one who may.
    pub(crate) async fn refusal(&self, config: &WebConfig, headers: &HeaderMap) -> Option<Response<Body>> {
        let file = self.file.as_ref()?;
        if config.users.is_empty() {
            return None;
        }
        match file.logins.check(&config.users, headers.get(header::AUTHORIZATION)).await {
            Login::Good => None,
            Login::Wrong => {
                self.refused.unauthorized.inc();
                let mut answer = said(StatusCode::UNAUTHORIZED, "Unauthorized\n");
                answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic"));
                Some(answer)
            }
            Login::Busy => {
                self.refused.busy.inc();
                let mut answer = said(StatusCode::TOO_MANY_REQUESTS, "too many passwords are being checked; try again\n");
                answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
                Some(answer)
            }
        }
    }
}

/// An answer of plain text.
pub(crate) fn said(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut answer = Response::new(Body::from(text));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

/// Counters of `web_refused_total`, one a reason.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) tls_handshake: Counter,
    pub(crate) late_handshake: Counter,
    pub(crate) plain_http: Counter,
    pub(crate) unauthorized: Counter,
    pub(crate) busy: Counter,
    pub(crate) too_slow: Counter,
    pub(crate) late_answer: Counter,
}

impl Refused {
    fn counted(metrics: &Metrics) -> Self {
        let help = "connections and requests refused or cut off by this server";
        let counter = |reason| metrics.counter("web_refused_total", help, &[("reason", reason)]);
        Self {
            tls_handshake: counter("tls_handshake"),
            late_handshake: counter("late_handshake"),
            plain_http: counter("plain_http"),
            unauthorized: counter("unauthorized"),
            busy: counter("busy"),
            too_slow: counter("too_slow"),
            late_answer: counter("late_answer"),
        }
    }
}

/// One web-config file.
#[derive(Debug)]
struct Watched {
    path: PathBuf,
    current: RwLock<Arc<WebConfig>>,
    looked: Arc<Mutex<Looked>>,
    failures: Counter,
    logins: Logins,
}

/// When the files were looked at, and as what.
#[derive(Debug)]
struct Looked {
    at: Instant,
    seen: Seen,
}

impl Watched {
    fn current(&self) -> Arc<WebConfig> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The config in force, after a look at the files where the last is long enough ago. One looks, others go on meanwhile.
    async fn refreshed(this: &Arc<Self>) -> Arc<WebConfig> {
        if let Ok(mut looked) = this.looked.clone().try_lock_owned()
            && looked.at.elapsed() >= LOOK_EVERY
        {
            let watched = this.clone();
            // Off the async threads: a network file system may hang. Cancelled here, it goes on there and keeps the lock so long.
            let _ = tokio::task::spawn_blocking(move || {
                watched.look(&mut looked.seen);
                looked.at = Instant::now();
            })
            .await;
        }
        this.current()
    }

    fn look(&self, seen: &mut Seen) {
        if !seen.changed() {
            return;
        }
        *seen = Seen::default();
        let file = self.path.display();
        match WebConfig::read_noting(&self.path, seen) {
            Ok(next) => match self.current().would_drop(&next) {
                None => {
                    info!(%file, "read the changed web-config file");
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
                }
                Some(option) => {
                    self.failures.inc();
                    warn!(%file, option, "the changed web-config file no longer has an option that is in force; the last one stays until a restart");
                }
            },
            Err(err) => {
                self.failures.inc();
                let cause = std::error::Error::source(&err).map(ToString::to_string).unwrap_or_default();
                warn!(%err, cause, "the changed web-config file is not taken; the last good one stays in force");
            }
        }
    }
}
