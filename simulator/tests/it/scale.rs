//! Months of large fleets: what a plan keeps is small, and walks are quick. Prints its figures; all of it with STRANDLINE_FULL=1.

use std::time::Instant;

use simulator::{FleetSpec, Plan, Seed};

fn spec(nodes: u32, hours: u32) -> FleetSpec {
    FleetSpec::parse(&format!(
        r#"
name: large
start: 2026-03-02T00:00:00Z
hours: {hours}
scrape_interval: 15s
clusters:
  - name: c
    node_pools:
      - {{ name: h, count: {nodes}, product: NVIDIA H100 80GB HBM3, gpus_per_node: 8, region: r, zone: z, provider: p,
          purchase_option: reserved }}
teams:
  - {{ name: a, namespace: a, weight: 4, mix: {{ training: 80, batch: 10, notebook: 10 }} }}
  - {{ name: b, namespace: b, weight: 2, mix: {{ inference: 80, batch: 10, notebook: 10 }} }}
"#
    ))
    .unwrap()
}

/// Peak resident memory of this process, MiB, where the system tells it.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib / 1024)
}

#[test]
fn a_large_fleet_is_planned_and_walked() {
    let full = std::env::var_os("STRANDLINE_FULL").is_some();
    let (nodes, hours, walked) = if full { (125, 720, 1000) } else { (8, 24, 8) };
    let begun = Instant::now();
    let plan = Plan::new(spec(nodes, hours), Seed(1)).unwrap();
    println!("{} GPUs, {hours} hours, {} pods: planned in {:?}", nodes * 8, plan.pods().len(), begun.elapsed());
    let begun = Instant::now();
    let (mut samples, mut energy_mj) = (0_u64, 0);
    for device in plan.devices().take(walked) {
        let mut walk = plan.walk(device);
        let mut at = plan.window().from();
        let mut before = 0;
        while at < plan.window().to() {
            let now = walk.at(at).unwrap();
            assert!(now.energy_mj >= before, "no reset is planned, so the counter only grows");
            before = now.energy_mj;
            at = at.plus_ms(15_000);
            samples += 1;
        }
        energy_mj += before;
    }
    assert_eq!(samples, walked as u64 * u64::from(hours) * 240);
    assert!(energy_mj > 0);
    println!("{samples} samples walked in {:?}, peak {:?} MiB", begun.elapsed(), peak_mib());
    if full {
        assert!(peak_mib().is_none_or(|mib| mib < 500), "{:?} MiB", peak_mib());
    }
}
