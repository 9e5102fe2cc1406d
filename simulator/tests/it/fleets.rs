//! The example fleets, and their pages.

use std::sync::Arc;

use exporter::{Collectors, Page, Renderer, Style};
use schemas::Timestamp;
use simulator::{FleetSpec, Plan, state};

pub fn spec(name: &str) -> FleetSpec {
    let path = format!("{}/../kwok-fleet/fleets/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    FleetSpec::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub fn fleet(name: &str) -> Arc<Plan> {
    let spec = spec(name);
    let seed = spec.seed;
    Arc::new(Plan::new(spec, seed).unwrap())
}

/// Instants of the fleet's time, `step_ms` apart.
pub fn ticks(plan: &Plan, step_ms: i64) -> impl DoubleEndedIterator<Item = Timestamp> + use<> {
    let window = plan.window();
    (0..window.len_ms() / step_ms).map(move |tick| window.from().plus_ms(tick * step_ms))
}

pub fn text(plan: &Plan, node: usize, at: Timestamp) -> Vec<u8> {
    let (mut page, mut out) = (Page::new(), Vec::new());
    state::read_node(plan, node, at, &mut page);
    Renderer::new(Arc::new(Collectors::built_in()), Style::default()).render(&page, &mut out);
    out
}
