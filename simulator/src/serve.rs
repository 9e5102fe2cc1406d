//! The exporters of all nodes over HTTP, faults included: behind one listener at `/nodes/NAME/metrics`, or a listener a node, and
//! where they are as Prometheus' `file_sd` has it.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path as FilePath,
    sync::Arc,
};

use axum::{
    Router,
    extract::{Extension, Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use exporter::{HostnameLabel, Pages, Style};
use serde::Serialize;

use crate::{
    clock::SimClock,
    plan::Plan,
    podres,
    spec::{Hostname, NoPage},
    state::NodeSource,
};

/// What the pages are made from.
struct Site {
    plan: Arc<Plan>,
    clock: SimClock,
    pages: Pages,
}

/// Path of a node's page.
pub fn path(node: &str) -> String {
    format!("/nodes/{node}/metrics")
}

/// Spelling of the host name's label, as the exporter's renderer takes it.
pub(crate) fn style(plan: &Plan) -> Style {
    let hostname = match plan.spec().exposition.hostname {
        Hostname::Lower => HostnameLabel::Lower,
        Hostname::Classic => HostnameLabel::Classic,
        Hostname::Absent => HostnameLabel::Absent,
    };
    Style { hostname, ..Style::default() }
}

impl Site {
    fn new(plan: Arc<Plan>, clock: SimClock) -> Arc<Self> {
        let pages = Pages::new(plan.collectors().clone(), style(&plan));
        Arc::new(Self { plan, clock, pages })
    }

    /// The page of node number `node` now, or what the plan says that a scraper gets in its place: the connection closed, 500, an
    /// empty page, or no answer at all.
    async fn page(&self, node: usize) -> Response {
        match self.plan.no_page(node, self.clock.now()) {
            Some(NoPage::Refuse) => (Extension(web::HangUp), "").into_response(),
            Some(NoPage::Error) => (StatusCode::INTERNAL_SERVER_ERROR, "the host engine does not answer\n").into_response(),
            Some(NoPage::Empty) => ([(header::CONTENT_TYPE, web::pages::TEXT)], "").into_response(),
            Some(NoPage::Hang) => std::future::pending().await,
            None => self.pages.answer(&NodeSource { plan: self.plan.clone(), node, clock: self.clock.clone() }),
        }
    }
}

/// Pages of every node at the clock's time, and `/nodes`: their names, one a line.
pub fn router(plan: Arc<Plan>, clock: SimClock) -> Router {
    let by_name = |State(site): State<Arc<Site>>, Path(name): Path<String>| async move {
        match site.plan.node(&name) {
            Some(node) => site.page(node).await,
            None => (StatusCode::NOT_FOUND, "no such node; see /nodes\n").into_response(),
        }
    };
    let site = Site::new(plan, clock);
    Router::new().route("/nodes", get(names)).route("/nodes/{name}/metrics", get(by_name)).with_state(site)
}

/// For each node, in order of [`Plan::nodes`], a router of its own with its page at `/metrics`: what a real exporter has.
pub fn node_routers(plan: Arc<Plan>, clock: SimClock) -> Vec<Router> {
    let site = Site::new(plan, clock);
    let one = |node: usize| {
        let page = move |State(site): State<Arc<Site>>| async move { site.page(node).await };
        Router::new().route("/metrics", get(page)).with_state(site.clone())
    };
    (0..site.plan.nodes().len()).map(one).collect()
}

async fn names(State(site): State<Arc<Site>>) -> String {
    site.plan.nodes().iter().flat_map(|node| [&*node.name, "\n"]).collect()
}

/// One entry of a `file_sd` file: a node's page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TargetGroup {
    /// Its address.
    pub targets: Vec<String>,
    /// `__metrics_path__`, cluster, node, and for an agent of ours `__podres_socket__`.
    pub labels: BTreeMap<&'static str, String>,
}

/// Where the pages of all nodes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listening {
    /// Behind one listener.
    Together(SocketAddr),
    /// A listener a node, in order of [`Plan::nodes`].
    Apart(Vec<SocketAddr>),
}

/// Every node's page as Prometheus' `file_sd_configs` reads it, in order of [`Plan::nodes`]; `sockets` is the folder of the
/// kubelets' sockets, where there are any. A listener on every interface is named by loopback.
pub fn targets(plan: &Plan, listening: &Listening, sockets: Option<&FilePath>) -> Vec<TargetGroup> {
    let one = |(index, node): (usize, &crate::plan::NodePlan)| {
        let (address, path) = match listening {
            Listening::Together(address) => (*address, path(&node.name)),
            Listening::Apart(addresses) => (addresses[index], "/metrics".to_owned()),
        };
        let mut labels: BTreeMap<&'static str, String> =
            [("__metrics_path__", path), ("cluster", node.cluster.to_string()), ("node", node.name.to_string())].into();
        if let Some(folder) = sockets {
            labels.insert("__podres_socket__", podres::socket(folder, &node.name).display().to_string());
        }
        TargetGroup { targets: vec![reachable(address).to_string()], labels }
    };
    plan.nodes().iter().enumerate().map(one).collect()
}

fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        });
    }
    address
}
