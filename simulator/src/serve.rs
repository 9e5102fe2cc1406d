//! The exporters of all nodes behind one listener: `/nodes/NAME/metrics`, faults included.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Extension, Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use exporter::{Collectors, HostnameLabel, Pages, Style};

use crate::{
    clock::SimClock,
    plan::Plan,
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

/// Pages of every node at the clock's time, and `/nodes`: their names, one a line.
///
/// A node whose exporter is down, and a scrape that is lost, get what the plan says: the connection closed, 500, an empty
/// page, or no answer at all.
pub fn router(plan: Arc<Plan>, clock: SimClock) -> Router {
    let hostname = match plan.spec().exposition.hostname {
        Hostname::Lower => HostnameLabel::Lower,
        Hostname::Classic => HostnameLabel::Classic,
        Hostname::Absent => HostnameLabel::Absent,
    };
    let pages = Pages::new(Arc::new(Collectors::built_in()), Style { hostname });
    let site = Arc::new(Site { plan, clock, pages });
    Router::new().route("/nodes", get(names)).route("/nodes/{name}/metrics", get(page)).with_state(site)
}

async fn names(State(site): State<Arc<Site>>) -> String {
    site.plan.nodes().iter().flat_map(|node| [&*node.name, "\n"]).collect()
}

async fn page(State(site): State<Arc<Site>>, Path(name): Path<String>) -> Response {
    let Some(node) = site.plan.node(&name) else {
        return (StatusCode::NOT_FOUND, "no such node; see /nodes\n").into_response();
    };
    match site.plan.no_page(node, site.clock.now()) {
        Some(NoPage::Refuse) => (Extension(web::HangUp), "").into_response(),
        Some(NoPage::Error) => (StatusCode::INTERNAL_SERVER_ERROR, "the host engine does not answer\n").into_response(),
        Some(NoPage::Empty) => ([(header::CONTENT_TYPE, web::pages::TEXT)], "").into_response(),
        Some(NoPage::Hang) => std::future::pending().await,
        None => site.pages.answer(&NodeSource { plan: site.plan.clone(), node, clock: site.clock.clone() }),
    }
}
