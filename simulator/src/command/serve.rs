//! `strandline-sim serve`: pages, kubelets, and where they are.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::ValueEnum;
use schemas::Timestamp;
use simulator::{
    Plan, SimClock, podres,
    serve::{self, Listening},
    spec::Hostname,
};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use super::{Failure, Fleet, begins, checked_speed, usage};

#[derive(Debug, clap::Args)]
pub struct Serve {
    #[command(flatten)]
    fleet: Fleet,
    /// Where to listen: a port (loopback only), `:PORT` (every interface), or an address.
    #[arg(long, env = "STRANDLINE_SIM_LISTEN", default_value = "9500")]
    listen: web::Address,
    /// Prometheus web-config file for all pages: TLS, client certificates, users; read again when it changes [default: plain HTTP].
    #[arg(long, env = "STRANDLINE_WEB_CONFIG_FILE", value_name = "FILE")]
    web_config_file: Option<PathBuf>,
    /// A listener for each node beside that: the first at this port, the next at the next, each with its page at /metrics. 0: any
    /// free ports, which the file of --file-sd names.
    #[arg(long, env = "STRANDLINE_SIM_PORT_PER_NODE", value_name = "PORT")]
    port_per_node: Option<u16>,
    /// File for all nodes' pages as Prometheus' file_sd_configs reads them (JSON); written anew at each start.
    #[arg(long, env = "STRANDLINE_SIM_FILE_SD", value_name = "FILE")]
    file_sd: Option<PathBuf>,
    /// How many times faster than the wall's the fleet's clock runs.
    #[arg(long, env = "STRANDLINE_SIM_SPEED", default_value_t = 1.0)]
    speed: f64,
    /// Fleet time to begin at (RFC 3339); default: the spec's start.
    #[arg(long)]
    start: Option<Timestamp>,
    /// Folder for the kubelets' sockets, NODE.sock each; made if it is not there. Not given: no kubelets.
    #[arg(long, env = "STRANDLINE_SIM_SOCKETS")]
    sockets: Option<PathBuf>,
    /// Spelling of the host name's label: `hostname` (new dcgm-exporters), `Hostname` (old ones), or none [default: the spec's].
    #[arg(long, value_enum)]
    hostname_label: Option<Spelling>,
    /// Whether pages carry pod labels, as dcgm-exporter's do in Kubernetes mode [default: the spec's].
    #[arg(long)]
    pod_labels: Option<bool>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Spelling {
    Lower,
    Classic,
    Absent,
}

impl Serve {
    pub async fn run(self) -> Result<(), Failure> {
        let plan = self.fleet.plan_with(|spec| {
            if let Some(spelling) = self.hostname_label {
                spec.exposition.hostname = match spelling {
                    Spelling::Lower => Hostname::Lower,
                    Spelling::Classic => Hostname::Classic,
                    Spelling::Absent => Hostname::Absent,
                };
            }
            spec.exposition.pod_labels = self.pod_labels.unwrap_or(spec.exposition.pod_labels);
        })?;
        let plan = Arc::new(plan);
        checked_speed(self.speed)?;
        let start = begins(&plan, self.start)?;
        let clock = SimClock::running(start, self.speed);
        let (metrics, ready) = (web::Metrics::new(), web::Ready::at_once());
        let guard = super::guard(self.web_config_file.as_deref(), &metrics)?;
        let listener = web::listen(self.listen).await?;
        let address = listener.local_addr()?;
        let apart = self.listen_apart(&plan).await?;
        let kubelets = match &self.sockets {
            Some(folder) => {
                std::fs::create_dir_all(folder)?;
                Some(podres::Kubelets::start(&plan, &clock, folder)?)
            }
            None => None,
        };
        if let Some(file) = &self.file_sd {
            let listening = match &apart {
                Some(apart) => Listening::Apart(apart.iter().map(|(_, address)| *address).collect()),
                None => Listening::Together(address),
            };
            let targets = serve::targets(&plan, &listening, self.sockets.as_deref());
            write_whole(file, &serde_json::to_vec_pretty(&targets)?)
                .map_err(|err| usage(format_args!("cannot write {}", file.display()), &err))?;
        }
        metrics.gauge("strandline_sim_nodes", "nodes of the fleet", &[]).set(plan.nodes().len() as f64);
        metrics.gauge("strandline_sim_gpus", "GPUs of the fleet", &[]).set(plan.spec().gpus() as f64);
        tracing::info!(%address, seed = %plan.seed(), nodes = plan.nodes().len(), at = %clock.now(), "serving");

        let (ending, ends) = watch::channel(false);
        let mut servers = JoinSet::new();
        if let Some(apart) = apart {
            for (router, (listener, _)) in serve::node_routers(plan.clone(), clock.clone()).into_iter().zip(apart) {
                let (mut ends, guard) = (ends.clone(), guard.clone());
                let end = async move { drop(ends.wait_for(|ending| *ending).await) };
                servers.spawn(web::serve_guarded(listener, router, web::Limits::default(), guard, end));
            }
        }
        // Scrapers keep a connection a target, and here all targets are one listener's.
        let limits = web::Limits::default();
        let limits = web::Limits { connections: limits.connections + plan.nodes().len(), ..limits };
        let router = serve::router(plan, clock).merge(web::pages(metrics, ready));
        web::serve_guarded(listener, router, limits, guard, super::interrupted()).await?;
        let _ = ending.send(true);
        while let Some(ended) = servers.join_next().await {
            ended??;
        }
        if let Some(kubelets) = kubelets {
            kubelets.stop().await;
        }
        Ok(())
    }

    /// A listener for each node, where that is asked for; all of them before anything is served.
    async fn listen_apart(&self, plan: &Plan) -> Result<Option<Vec<(TcpListener, SocketAddr)>>, Failure> {
        let Some(first) = self.port_per_node else { return Ok(None) };
        let nodes = plan.nodes().len();
        if first > 0 && usize::from(first) + nodes > 65_536 {
            let said = format!("--port-per-node {first}: the ports of {nodes} nodes would end above 65535; begin lower");
            return Err(Failure { exit: 2, said });
        }
        let mut listeners = Vec::with_capacity(nodes);
        for index in 0..nodes {
            // Checked above: the last one fits.
            let port = if first == 0 { 0 } else { first + index as u16 };
            let listener = web::listen(web::Address(SocketAddr::new(self.listen.0.ip(), port))).await?;
            let address = listener.local_addr()?;
            listeners.push((listener, address));
        }
        Ok(Some(listeners))
    }
}

/// Writes a file whole: whoever reads it sees the old one or the new one.
fn write_whole(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(".tmp");
    std::fs::write(&beside, bytes)?;
    std::fs::rename(&beside, file)
}
