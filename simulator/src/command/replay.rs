//! `strandline-sim replay`: recorded pages, at their own times.

use std::{path::PathBuf, sync::Arc};

use schemas::Timestamp;
use simulator::{
    SimClock,
    replay::pages::{self, Recording},
};

use super::{Failure, usage};

#[derive(Debug, clap::Args)]
pub struct Replay {
    /// The recording: a folder a node, with a page a file, NODE/2026-03-02T10:00:00Z.txt.
    recording: PathBuf,
    /// Where to listen: a port (loopback only), `:PORT` (every interface), or an address.
    #[arg(long, env = "STRANDLINE_SIM_LISTEN", default_value = "9500")]
    listen: web::Address,
    /// Prometheus web-config file for all pages: TLS, client certificates, users; read again when it changes [default: plain HTTP].
    #[arg(long, env = "STRANDLINE_WEB_CONFIG_FILE", value_name = "FILE")]
    web_config_file: Option<PathBuf>,
    /// How many times faster than the wall's the recording's clock runs.
    #[arg(long, env = "STRANDLINE_SIM_SPEED", default_value_t = 1.0)]
    speed: f64,
    /// Time to begin at (RFC 3339); default: that of the first page.
    #[arg(long)]
    start: Option<Timestamp>,
}

impl Replay {
    pub async fn run(self) -> Result<(), Failure> {
        let recording = Recording::open(&self.recording).map_err(|err| usage("the recording", &err))?;
        if !(0.0..=1e6).contains(&self.speed) {
            return Err(Failure { exit: 2, said: format!("--speed {} is not between 0 and 1000000", self.speed) });
        }
        let start = self.start.or(recording.start()).unwrap_or_default();
        let clock = SimClock::running(start, self.speed);
        let (metrics, ready) = (web::Metrics::new(), web::Ready::at_once());
        let guard = super::guard(self.web_config_file.as_deref(), &metrics)?;
        let listener = web::listen(self.listen).await?;
        let address = listener.local_addr()?;
        tracing::info!(%address, nodes = recording.nodes().count(), at = %clock.now(), "serving a recording");
        let router = pages::router(Arc::new(recording), clock).merge(web::pages(metrics, ready));
        Ok(web::serve_guarded(listener, router, web::Limits::default(), guard, super::interrupted()).await?)
    }
}
