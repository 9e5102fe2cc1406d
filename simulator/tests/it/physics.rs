//! Readings that could be a GPU's: inequalities, energy, memory, counters.

use exporter::{Page, Value};
use schemas::{
    Timestamp,
    catalogue::{self, Reading},
};
use simulator::{DeviceRef, Plan, state};

use crate::{fleet, ticks};

#[test]
fn no_physical_inequality_is_violated() {
    let plan = fleet("demo");
    let mut readings = 0;
    let mut page = Page::new();
    let full = std::env::var_os("STRANDLINE_FULL").is_some();
    let (step_ms, least) = if full { (20_000, 10_000_000) } else { (601_000, 300_000) };
    for at in ticks(&plan, step_ms) {
        for device in plan.devices() {
            let Some(now) = state(&plan, device, at) else { continue };
            let board = plan.nodes()[device.node].accelerator;
            assert!(0 <= now.tensor && now.tensor <= now.sm && now.sm <= now.gr && now.gr <= 1_000_000, "{now:?}");
            assert!(now.util_pct.is_none_or(|util| util <= 100 && util * 10_000 >= now.sm), "{now:?}");
            assert!((0..=800_000).contains(&now.dram) && now.occupancy <= now.sm, "{now:?}");
            assert!(now.fp64.max(now.fp32).max(now.fp16) <= now.sm, "{now:?}");
            assert!(now.power_mw <= board.tdp_mw.unwrap() && now.power_mw > board.idle_mw.unwrap() * 9 / 10, "{now:?}");
            assert!(now.fb_used_mib >= 0 && now.fb_total_mib > now.fb_used_mib + now.fb_reserved_mib, "{now:?}");
            assert!((15..95).contains(&now.gpu_temp) && now.mem_temp.is_none_or(|temp| (15..100).contains(&temp)), "{now:?}");
            assert!(now.sm_clock <= board.max_sm_clock_mhz.unwrap() && now.mem_clock <= board.max_mem_clock_mhz.unwrap());
            assert!(now.energy_mj > 0 && now.pcie_replays >= 0 && now.pcie_tx != Some(0) && now.pcie_rx != Some(0));
            if now.holder.is_none() {
                assert_eq!((now.sm, now.util_pct.unwrap_or(0), now.fb_used_mib), (0, 0, 0), "nobody's device is idle: {now:?}");
            }
        }
        for node in 0..plan.nodes().len() {
            state::read_node(&plan, node, at, &mut page);
            readings += page.devices().iter().map(|device| device.readings.as_slice().len()).sum::<usize>();
        }
    }
    assert!(readings > least, "{readings}");
}

#[test]
fn pages_hold_valid_readings_but_for_the_misprints_that_the_truth_lists() {
    let plan = fleet("small");
    let listed = simulator::faults(&plan, plan.window());
    let listed = listed.iter().filter(|fault| matches!(fault.kind, "blank" | "out_of_range")).count();
    let (mut invalid, mut page) = (0, Page::new());
    for at in ticks(&plan, plan.spec().scrape_interval.ms()) {
        for node in 0..plan.nodes().len() {
            state::read_node(&plan, node, at, &mut page);
            for (field, value) in page.devices().iter().flat_map(|device| device.readings.as_slice()) {
                let (printed, number) = match value {
                    Value::Int(value) => (value.to_string(), *value as f64),
                    Value::Float(value) => (format!("{value:.6}"), *value),
                };
                match catalogue::by_id(*field).unwrap().read(&printed, number, false) {
                    Reading::Int(_) | Reading::Ratio(_) => {}
                    Reading::Clipped(..) | Reading::Invalid(_) => invalid += 1,
                }
            }
        }
    }
    assert!(listed > 5, "the small fleet has misprints: {listed}");
    assert_eq!(invalid, listed);
}

/// Energy by adding up power over every piece in which it is constant, microjoules.
fn energy_uj(plan: &Plan, device: DeviceRef, from: Timestamp, to: Timestamp) -> i64 {
    let mut points = plan.breakpoints(device, from, to);
    points.push(to);
    points.windows(2).map(|two| state(plan, device, two[0]).unwrap().power_mw * (two[1].ms() - two[0].ms())).sum()
}

#[test]
fn the_energy_counter_is_the_integral_of_power() {
    let plan = fleet("small");
    let resets: Vec<_> = simulator::faults(&plan, plan.window()).into_iter().filter(|f| f.kind == "counter_reset").collect();
    assert!(!resets.is_empty(), "the small fleet has a driver reload");
    for device in plan.devices() {
        let uuid = &plan.device(device).identity.uuid;
        let mut from = plan.window().from().plus_ms(12_345);
        for at in ticks(&plan, 431_001).skip(1) {
            let reset = resets.iter().rfind(|fault| fault.device.as_ref() == Some(uuid) && from < fault.from && fault.from <= at);
            let (since, before) = match reset {
                Some(reset) => (reset.from, 0),
                None => (from, state(&plan, device, from).unwrap().energy_mj),
            };
            let counted = state(&plan, device, at).unwrap().energy_mj - before;
            let integral = energy_uj(&plan, device, since, at);
            assert!((counted - integral / 1000).abs() <= 1, "{uuid} to {at}: counted {counted} mJ, integral {integral} uJ");
            from = at;
        }
    }
}

#[test]
fn xids_stay_until_the_driver_is_reloaded() {
    let plan = fleet("demo");
    let faults = simulator::faults(&plan, plan.window());
    let by_uuid = |uuid: &str| plan.devices().find(|device| plan.device(*device).identity.uuid == uuid).unwrap();
    let xid = faults.iter().find(|fault| fault.kind == "xid").expect("the demo fleet has an XID");
    let device = by_uuid(xid.device.as_deref().unwrap());
    let code = Some(xid.detail.parse().unwrap());
    assert_eq!(state(&plan, device, xid.from).unwrap().xid, code);
    assert_eq!(state(&plan, device, xid.from.plus_ms(-1)).unwrap().xid, None, "absent while there was none");
    let reset = faults.iter().find(|f| f.kind == "counter_reset" && f.device == xid.device && f.from > xid.from);
    let until = reset.map_or(plan.window().to(), |reset| reset.from);
    assert!(state(&plan, device, until.plus_ms(-1)).unwrap().xid.is_some(), "latched");
    for reset in faults.iter().filter(|fault| fault.kind == "counter_reset") {
        let device = by_uuid(reset.device.as_deref().unwrap());
        let (before, after) = (state(&plan, device, reset.from.plus_ms(-1)).unwrap(), state(&plan, device, reset.from).unwrap());
        assert!(after.energy_mj < before.energy_mj && after.energy_mj == 0 && after.xid.is_none(), "{after:?}");
        assert!(after.holder.is_none(), "drivers are reloaded on free devices");
    }
}
