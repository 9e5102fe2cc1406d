//! Shapes can be told apart by what exporters print of them, and by nothing else: a blind classifier.

use std::collections::BTreeMap;

use exporter::{Page, Value};
use simulator::{FleetSpec, Plan, Seed, state};

/// A team for each shape.
const FLEET: &str = r#"
name: shapes
start: 2026-03-02T00:00:00Z
hours: 16
clusters:
  - name: lab
    node_pools:
      - { name: h100, count: 14, product: NVIDIA H100 80GB HBM3, gpus_per_node: 8, region: r, zone: z, provider: p,
          purchase_option: reserved }
teams:
  - { name: training, namespace: a, weight: 4, mix: { training: 1 } }
  - { name: prefill, namespace: b, weight: 1, mix: { prefill: 1 } }
  - { name: decode, namespace: c, weight: 1, mix: { decode: 1 } }
  - { name: batch, namespace: d, weight: 4, mix: { batch: 1 } }
  - { name: notebook, namespace: e, weight: 1, mix: { notebook: 1 } }
  - { name: crash, namespace: f, weight: 1, mix: { crash_loop: 1 } }
arrivals: { load: 0.9 }
"#;

/// Length of a window, and what begins before it.
const WINDOW_MS: i64 = 2_400_000;
const SKIPPED_MS: i64 = 150_000;
const STEP_MS: i64 = 30_000;

const FEATURES: usize = 9;

/// Windows of pods by the name of their shape, each by what the pages say of one of its GPUs.
fn windows(seed: u64) -> Vec<(&'static str, [f64; FEATURES])> {
    let plan = Plan::new(FleetSpec::parse(FLEET).unwrap(), Seed(seed)).unwrap();
    let mut page = Page::new();
    let mut found = Vec::new();
    for pod in plan.pods() {
        let Some(binding) = &pod.bound else { continue };
        let (Some(started), ended) = (binding.started, binding.terminating.unwrap_or(binding.ended)) else { continue };
        let ended = ended.min(plan.window().to().ms());
        let uuid = &plan.nodes()[binding.node].devices[binding.devices[0]].id;
        let mut from = started + SKIPPED_MS;
        // A few windows of each pod, so that long ones do not outweigh the others.
        for _ in 0..3 {
            if from + WINDOW_MS > ended {
                break;
            }
            let mut readings: BTreeMap<u16, Vec<f64>> = BTreeMap::new();
            for at in (from..from + WINDOW_MS).step_by(STEP_MS as usize) {
                state::read_node(&plan, binding.node, schemas::Timestamp::from_ms(at), &mut page);
                let device = page.devices().iter().find(|device| device.identity.uuid == *uuid).unwrap();
                for (field, value) in device.readings.as_slice() {
                    let value = match value {
                        Value::Int(value) => *value as f64,
                        Value::Float(value) => *value,
                    };
                    readings.entry(*field).or_default().push(value);
                }
            }
            found.push((pod.shape.as_str(), features(&readings)));
            from += WINDOW_MS;
        }
    }
    found
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn features(readings: &BTreeMap<u16, Vec<f64>>) -> [f64; FEATURES] {
    let of = |field: u16| mean(&readings[&field]);
    let (util, sm) = (&readings[&203], of(1002).max(1e-6));
    let spread = mean(&util.iter().map(|value| (value - of(203)).abs()).collect::<Vec<_>>());
    let idle = util.iter().filter(|value| **value == 0.0).count() as f64 / util.len() as f64;
    [
        of(203) / 100.0,
        spread / 100.0,
        idle,
        of(1002),
        of(1004) / sm,
        of(1005) / sm,
        of(1007) / sm,
        of(1008) / sm,
        of(252) / of(250),
    ]
}

/// Centre of each shape's windows.
fn centres(windows: &[(&'static str, [f64; FEATURES])]) -> BTreeMap<&'static str, [f64; FEATURES]> {
    let mut centres: BTreeMap<&'static str, ([f64; FEATURES], f64)> = BTreeMap::new();
    for (shape, features) in windows {
        let (sum, count) = centres.entry(shape).or_insert(([0.0; FEATURES], 0.0));
        sum.iter_mut().zip(features).for_each(|(sum, feature)| *sum += feature);
        *count += 1.0;
    }
    centres.into_iter().map(|(shape, (sum, count))| (shape, sum.map(|sum| sum / count))).collect()
}

#[test]
fn a_classifier_tells_the_shapes_apart_by_exported_metrics_alone() {
    let (known, unknown) = (windows(1), windows(2));
    let centres = centres(&known);
    assert_eq!(centres.len(), 6, "{:?}", centres.keys());
    // Each feature in units of its mean distance from its shape's centre: what varies within a shape says little.
    let mut scale = [1e-3; FEATURES];
    for (shape, features) in &known {
        for ((scale, feature), centre) in scale.iter_mut().zip(features).zip(centres[shape]) {
            *scale += (feature - centre).abs() / known.len() as f64;
        }
    }
    let mut confused: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (shape, features) in &unknown {
        let distance = |centre: &[f64; FEATURES]| -> f64 {
            features.iter().zip(centre).zip(scale).map(|((feature, centre), scale)| ((feature - centre) / scale).powi(2)).sum()
        };
        let guess = centres.iter().min_by(|a, b| distance(a.1).total_cmp(&distance(b.1))).unwrap().0;
        *confused.entry((shape, guess)).or_default() += 1;
    }
    let right: usize = confused.iter().filter(|((shape, guess), _)| shape == guess).map(|(_, count)| count).sum();
    let share = right as f64 / unknown.len() as f64;
    println!("{right} of {} windows: {share:.4}", unknown.len());
    assert!(unknown.len() > 200 && share >= 0.95, "{share}: {confused:?}");
    // No shape hides behind the others' numbers.
    for shape in centres.keys() {
        let of = |guess: Option<&str>| -> usize {
            confused
                .iter()
                .filter(|((s, g), _)| s == shape && guess.is_none_or(|guess| guess == *g))
                .map(|(_, count)| count)
                .sum()
        };
        assert!(of(Some(shape)) * 10 >= of(None) * 8, "{shape}: {confused:?}");
    }
}
