//! The truth: it sums to capacity, to the millisecond, and is what ever finer sampling comes to.

use std::collections::BTreeMap;

use arrow::array::{Array, Int64Array};
use schemas::{
    HOUR_MS, Timestamp, Window,
    status::{RowKind, Tier},
    tables,
};
use simulator::{TruthError, state, truth, truth_holdings, truth_rows};

use crate::{fleet, ticks};

#[test]
fn every_device_hour_sums_to_capacity() {
    for name in ["small", "demo"] {
        let plan = fleet(name);
        let rows = truth_rows(&plan, plan.window()).unwrap();
        let mut sums: BTreeMap<_, i64> = BTreeMap::new();
        for row in &rows {
            *sums.entry((row.hour_start, plan.board(row.device).uuid.clone())).or_default() += row.ms;
            assert!(row.ms > 0 && row.pre_start_ms <= row.ms && row.terminating_ms <= row.ms && row.on_unready_ms <= row.ms);
            for &tier in Tier::ALL {
                assert!((0..=row.ms).contains(&row.utilized_ms(tier)), "{row:?}");
            }
        }
        assert_eq!(sums.len(), plan.spec().gpus() as usize * plan.spec().hours as usize);
        assert!(sums.values().all(|ms| *ms == HOUR_MS), "{name}");
        for kind in [RowKind::Owner, RowKind::Free, RowKind::Unavailable] {
            assert!(rows.iter().any(|row| row.kind == kind), "{name} has {kind} time");
        }
    }
}

#[test]
fn the_batch_has_the_columns_of_the_table() {
    let plan = fleet("small");
    let batch = truth(&plan, plan.window()).unwrap();
    let rows = truth_rows(&plan, plan.window()).unwrap();
    assert_eq!(batch.schema(), tables::get("truth_gpu_hours").schema());
    assert_eq!(batch.num_rows(), rows.len());
    let column = |name: &str| batch.column_by_name(name).unwrap().as_any().downcast_ref::<Int64Array>().unwrap();
    let (ms, utilized, stranded) = (column("ms"), column("sm_utilized_ms"), column("sm_stranded_ms"));
    assert_eq!(arrow::compute::kernels::aggregate::sum(ms), Some(plan.window().len_ms() * plan.spec().gpus() as i64));
    for (at, row) in rows.iter().enumerate() {
        assert_eq!(utilized.is_null(at), row.kind != RowKind::Owner);
        if row.kind == RowKind::Owner {
            assert_eq!(utilized.value(at) + stranded.value(at), ms.value(at));
        }
    }
    let used: Vec<&str> = batch
        .schema_ref()
        .fields()
        .iter()
        .zip(batch.columns())
        .filter_map(|(field, column)| (column.null_count() == column.len()).then_some(field.name().as_str()))
        .collect();
    assert_eq!(used, ["parent", "profile", "flags", "reservation"], "columns that the truth leaves null");
}

#[test]
fn windows_add_up() {
    let plan = fleet("small");
    let (from, to) = (plan.window().from().plus_ms(1_234_567), plan.window().to().plus_ms(-7));
    let middle = plan.window().from().plus_ms(HOUR_MS);
    let mut parts = truth_rows(&plan, Window::new(from, middle).unwrap()).unwrap();
    parts.extend(truth_rows(&plan, Window::new(middle, to).unwrap()).unwrap());
    assert_eq!(parts, truth_rows(&plan, Window::new(from, to).unwrap()).unwrap());
    let late = Window::new(from, to.plus_ms(8)).unwrap();
    assert!(matches!(truth_rows(&plan, late), Err(TruthError::Outside { .. })));
}

/// Mean SM activity that sampling every `step_ms` sees of owned time, and the true one, ppm.
fn sampled(step_ms: i64) -> (f64, f64) {
    let plan = fleet("small");
    let rows = truth_rows(&plan, plan.window()).unwrap();
    let owners = || rows.iter().filter(|row| row.kind == RowKind::Owner);
    let (exact, held) = owners().fold((0, 0), |(exact, held), row| (exact + row.exact[1] / row.parts, held + row.ms));
    let mut spans: BTreeMap<_, Vec<(Timestamp, Timestamp)>> = BTreeMap::new();
    for holding in truth_holdings(&plan, plan.window()) {
        for device in holding.devices.split(',') {
            spans.entry(device.to_owned()).or_default().push((holding.bound, holding.ended));
        }
    }
    let (mut sum, mut count) = (0_i64, 0_i64);
    for device in plan.devices() {
        let spans = spans.get(&plan.device(device).identity.uuid).map_or(&[][..], Vec::as_slice);
        for at in ticks(&plan, step_ms).filter(|at| spans.iter().any(|(from, to)| from <= at && at < to)) {
            sum += state(&plan, device, at).unwrap().sm;
            count += 1;
        }
    }
    (sum as f64 / count as f64, exact as f64 / held as f64)
}

#[test]
fn point_samples_converge_to_the_truth() {
    let (coarse, exact) = sampled(30_000);
    assert!((coarse / exact - 1.0).abs() < 0.02, "30 s: {coarse} against {exact}");
    let (fine, exact) = sampled(500);
    assert!((fine / exact - 1.0).abs() < 0.000_5, "0.5 s: {fine} against {exact}");
}

#[test]
fn the_three_tiers_tell_the_shapes_apart() {
    let plan = fleet("demo");
    let mut by_shape: BTreeMap<_, ([i128; 3], i64)> = BTreeMap::new();
    for row in truth_rows(&plan, plan.window()).unwrap() {
        let Some(pod) = row.pod else { continue };
        let entry = by_shape.entry(plan.pods()[pod].shape.as_str()).or_default();
        entry.1 += row.ms;
        for (sum, exact) in entry.0.iter_mut().zip(row.exact) {
            *sum += exact / row.parts;
        }
    }
    let mean = |shape: &str, tier: Tier| by_shape[shape].0[tier as usize] as f64 / by_shape[shape].1 as f64 / 1e6;
    assert!(mean("training", Tier::Busy) > 0.8 && mean("training", Tier::Sm) > 0.55, "{by_shape:?}");
    assert!(mean("notebook", Tier::Busy) < 0.3 && mean("notebook", Tier::Sm) < 0.15, "{by_shape:?}");
    assert!(mean("inference", Tier::Effective) > mean("inference", Tier::Sm) * 0.7, "{by_shape:?}");
    assert!(mean("inference", Tier::Busy) > mean("inference", Tier::Sm) + 0.1, "{by_shape:?}");
}

#[test]
fn holdings_state_api_seconds_and_exact_times() {
    let plan = fleet("demo");
    let holdings = truth_holdings(&plan, plan.window());
    assert!(holdings.iter().any(|h| h.bound != h.true_bound) && holdings.iter().any(|h| h.ended != h.true_ended));
    for h in &holdings {
        for (told, exact) in
            [(Some(h.bound), Some(h.true_bound)), (h.started, h.true_started), (Some(h.ended), Some(h.true_ended))]
        {
            let (Some(told), Some(exact)) = (told, exact) else { continue };
            assert_eq!(told.ms() % 1000, 0);
            assert!((0..1000).contains(&(exact.ms() - told.ms())), "{h:?}");
        }
        assert!((200..=3_000).contains(&(h.named.ms() - h.true_bound.ms())), "{h:?}");
    }
}
