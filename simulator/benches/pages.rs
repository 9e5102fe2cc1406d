//! How fast pages come: state and text of the demo fleet, one core. Budget (release): 1 GB/s of text, under 60 us a GPU.
#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Instant};

use exporter::{Collectors, Page, Renderer, Style};
use simulator::{FleetSpec, Plan, state};

fn main() {
    let path = format!("{}/../kwok-fleet/fleets/demo.yaml", env!("CARGO_MANIFEST_DIR"));
    let spec = FleetSpec::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (seed, gpus) = (spec.seed, spec.gpus());
    let begun = Instant::now();
    let plan = Plan::new(spec, seed).unwrap();
    println!("plan: {:?}", begun.elapsed());
    let (mut page, mut text) = (Page::new(), Vec::new());
    let mut renderer = Renderer::new(Arc::new(Collectors::built_in()), Style::default());
    let ticks = 60;
    let (mut bytes, mut reading, mut rendering) = (0, 0.0, 0.0);
    for tick in 0..ticks {
        let at = plan.window().from().plus_ms(tick * 1_440_007);
        for node in 0..plan.nodes().len() {
            let begun = Instant::now();
            state::read_node(&plan, node, at, &mut page);
            let read = Instant::now();
            text.clear();
            renderer.render(&page, &mut text);
            reading += (read - begun).as_secs_f64();
            rendering += read.elapsed().as_secs_f64();
            bytes += text.len();
        }
    }
    let each = 1e6 / (ticks as u64 * gpus) as f64;
    println!("state:  {:.2} us a GPU", reading * each);
    println!(
        "render: {:.2} us a GPU, {:.0} MB/s, {} bytes a GPU",
        rendering * each,
        bytes as f64 / rendering / 1e6,
        bytes as u64 / (ticks as u64 * gpus)
    );
    println!("both:   {:.0} MB/s", bytes as f64 / (reading + rendering) / 1e6);
    let begun = Instant::now();
    let rows = simulator::truth_rows(&plan, plan.window()).unwrap().len();
    println!("truth:  {rows} rows in {:?}", begun.elapsed());
}
