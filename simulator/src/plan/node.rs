//! One node of a plan: its boards, what they are cut into, and the work that pods lay on them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use exporter::{Identity, Instance};
use schemas::HOUR_MS;

use super::{BoardPlan, BoardSums, DRIVER_VERSION, DevicePlan, Held, InstancePlan, NodePlan, Offer, Plan, Slot, Track};
use crate::{
    accelerator, calibrate,
    fault::{self, OfBoards, Swap, XidEffect},
    mig::{self, Placed},
    seed::Seed,
    spec::{FleetSpec, NodePool},
    timeline::{Build, Carried},
};

/// Node `i` of `pool`, with nobody on it.
pub(super) fn node(spec: &FleetSpec, seed: Seed, cluster: &str, pool: &NodePool, i: u32) -> NodePlan {
    let name: Arc<str> = format!("{}-{i}", pool.name).into();
    let accelerator = accelerator::by_product(&pool.product).expect("a checked spec names known products");
    let mut node = NodePlan {
        boards: Vec::new(),
        devices: Vec::new(),
        replicas: pool.replicas,
        mig_ids: pool.mig_ids,
        offers: Vec::new(),
        cluster: cluster.into(),
        accelerator,
        region: pool.region.clone(),
        zone: pool.zone.clone(),
        provider: pool.provider.clone(),
        purchase_option: pool.purchase_option.clone(),
        pods: Vec::new(),
        skew_ms: fault::skew_ms(spec, seed, &name),
        spells: Vec::new(),
        key: seed.key(&format!("node/{cluster}/{name}")),
        name,
    };
    let swaps: Vec<Vec<Swap>> = (0..pool.gpus_per_node).map(|gpu| fault::swaps(spec, seed, &node.name, gpu)).collect();
    let slots = (0..pool.gpus_per_node).zip(&swaps);
    for (gpu, epoch, swaps) in slots.flat_map(|(gpu, swaps)| (0..=swaps.len()).map(move |epoch| (gpu, epoch, swaps))) {
        // What a board is drawn from goes by its slot, and by how many were there before it.
        let path = match epoch {
            0 => format!("device/{cluster}/{}/{gpu}", node.name),
            _ => format!("device/{cluster}/{}/{gpu}#{epoch}", node.name),
        };
        let board = board(spec, seed, &node, &path, (gpu, epoch, swaps));
        let layout = pool.layout(gpu);
        if layout.is_empty() {
            node.devices.push(device(pool, &board, node.boards.len(), None));
        } else {
            for placed in mig::place(accelerator, layout).expect("a checked spec has layouts that can be placed") {
                let uuid = format!("MIG-{}", seed.uuid(&format!("{path}/{}", placed.id)));
                let memory_mib = placed.profile.memory_mib(accelerator.memory_mib);
                let instance = InstancePlan { placed, uuid, memory_mib };
                node.devices.push(device(pool, &board, node.boards.len(), Some(instance)));
            }
        }
        node.boards.push(BoardPlan { devices: board.devices.start..node.devices.len(), ..board });
    }
    node.offers = offers(pool, &node);
    for board in &mut node.boards {
        let off = board.xids.iter().filter(|(_, code)| fault::xid_effect(*code) == XidEffect::Drains);
        board.lost = off.map(|(at, _)| (*at, fault::repair(seed, &node.name, *at).1)).collect();
    }
    let mut xids: Vec<(i64, i64)> = node.boards.iter().flat_map(|board| &board.xids).copied().collect();
    xids.sort_unstable();
    let swaps = swaps.concat();
    let of_boards = OfBoards { xids: &xids, swaps: &swaps };
    node.spells = fault::spells(spec, seed, &node.name, pool.purchase_option == "spot", &of_boards);
    node
}

/// The board that comes into slot `gpu` after `epoch` of its `swaps`.
fn board(spec: &FleetSpec, seed: Seed, node: &NodePlan, path: &str, (gpu, epoch, swaps): (u32, usize, &[Swap])) -> BoardPlan {
    let uuid = seed.uuid(path);
    let known = node.accelerator.board().map(|board| {
        let board = board.expect("a checked spec names products that can be simulated");
        spec.calibration.map_or(board, |preset| calibrate::board(preset, board))
    });
    // Only NVIDIA's UUIDs are called so; what nobody reads is called by what the kubelet says of it.
    let uuid = match node.accelerator.resource() {
        "nvidia.com/gpu" => format!("GPU-{uuid}"),
        resource => attribution::ids::unread(&node.name, resource, &gpu.to_string()),
    };
    let start = spec.start.ms();
    let mut draw = seed.stream(path);
    let (nominal_idle, tdp) = known.map_or((0, 0), |board| (board.idle_mw, board.tdp_mw));
    let idle_mw = nominal_idle * draw.between(940, 1060) / 1000;
    let ambient_mc = draw.between(25_000, 31_000);
    let idle_mw = spec.calibration.and_then(|preset| calibrate::idle_mw(preset, &mut draw)).unwrap_or(idle_mw);
    // What was measured has the inlet's temperature in it; boards differ by a little.
    let measured = known.is_some_and(|board| board.curve.is_some());
    let ambient_mc = if measured { (ambient_mc - 28_000) / 5 } else { ambient_mc };
    // Up for days before the start: counters have a past. One that comes later has none.
    let booted = start - draw.between(3_600, 2_000_000) * 1000;
    let energy_uj = (start - booted) * draw.between(idle_mw, (tdp / 2).max(idle_mw));
    let came = epoch.checked_sub(1).and_then(|last| swaps.get(last)).map(|swap| swap.to);
    let goes = swaps.get(epoch);
    let (from, out) = (came.unwrap_or(i64::MIN), goes.map_or(i64::MAX, |swap| swap.out));
    let mut xids = if known.is_some() { fault::xids(spec, seed, &uuid) } else { Vec::new() };
    xids.retain(|(at, _)| from <= *at && *at < out);
    BoardPlan {
        index: gpu,
        epoch: epoch as u32,
        from,
        to: goes.map_or(i64::MAX, |swap| swap.to),
        out,
        pci_bus_id: format!("00000000:{:02X}:00.0", 0x0F + 12 * gpu),
        devices: node.devices.len()..node.devices.len(),
        board: known,
        idle_mw,
        ambient_mc,
        xids,
        resets: Vec::new(),
        lost: Vec::new(),
        booted: came.unwrap_or(booted),
        energy_uj: if came.is_some() { 0 } else { energy_uj },
        key: seed.key(path),
        uuid,
    }
}

fn device(pool: &NodePool, board: &BoardPlan, at: usize, instance: Option<InstancePlan>) -> DevicePlan {
    let placed = instance.as_ref().map(|instance| &instance.placed);
    let weight = placed.map_or((1, 1), |placed| (placed.profile.slices, mig::SLICES));
    let key = board.key ^ placed.map_or(0, |placed| u64::from(placed.id + 1) << 32);
    let track = board.board.map(|constants| {
        let build = Build {
            board: constants,
            idle_mw: board.idle_mw,
            share: (weight.0.into(), weight.1.into()),
            memory_mib: instance.as_ref().map_or(constants.memory_mib, |instance| instance.memory_mib),
            instance: instance.is_some(),
            replicas: pool.replicas.into(),
            key,
        };
        Track { build, hours: Vec::new(), last: Mutex::new(None) }
    });
    let printed = |placed: &Placed| Instance { profile: placed.profile.name.clone(), id: placed.id };
    DevicePlan {
        identity: Arc::new(Identity {
            gpu: board.index,
            uuid: board.uuid.clone(),
            pci_bus_id: board.pci_bus_id.clone(),
            model: pool.product.clone(),
            instance: placed.map(printed),
            // Driver, name, serial, UUID and PCI address: what a collectors file may print as labels.
            texts: vec![
                (1, DRIVER_VERSION.to_owned()),
                (50, pool.product.clone()),
                (53, board.serial()),
                (54, board.uuid.clone()),
                (57, board.pci_bus_id.clone()),
            ],
        }),
        id: placed.map_or_else(|| board.uuid.clone(), |placed| format!("{}/{}", board.uuid, placed.id)),
        board: at,
        instance,
        weight,
        held: Vec::new(),
        track,
        key,
    }
}

/// What the node's device plugin offers, by resource name: every slot once.
fn offers(pool: &NodePool, node: &NodePlan) -> Vec<Offer> {
    let mut offers: BTreeMap<String, Offer> = BTreeMap::new();
    for (at, device) in node.devices.iter().enumerate().filter(|(_, device)| node.boards[device.board].epoch == 0) {
        let (resource, unit) = match &device.instance {
            Some(instance) => (instance.placed.profile.resource(), device.weight),
            None => (pool.resource().unwrap_or_default().to_owned(), (1, pool.replicas)),
        };
        let named = || Offer { resource: resource.as_str().into(), unit, slots: Vec::new() };
        let offer = offers.entry(resource.clone()).or_insert_with(named);
        offer.slots.extend((0..pool.replicas).map(|replica| Slot { device: at, replica }));
    }
    offers.into_values().collect()
}

/// Enters every pod with the devices that it holds, lays out every hour once to know how the next begins, and puts the
/// counter resets where a board is free.
pub(super) fn work(node: &mut NodePlan, plan: &Plan) {
    node.pods.sort_by_key(|pod| plan.pods[*pod].bound.as_ref().map(|b| (b.bound, *pod)));
    for &index in &node.pods {
        let Some(binding) = &plan.pods[index].bound else { continue };
        let mut ids: BTreeMap<usize, u32> = BTreeMap::new();
        binding.slots().for_each(|slot| *ids.entry(slot.device).or_default() += 1);
        for (device, ids) in ids {
            let held = Held { pod: index, named: binding.named, until: binding.released, ids, since: 0 };
            node.devices[device].held.push(held);
        }
    }
    for device in &mut node.devices {
        device.held.sort_by_key(|held| (held.named, held.pod));
        // Where to begin to look for those who hold together: the first that is still there.
        let mut since = 0;
        for at in 0..device.held.len() {
            let named = device.held[at].named;
            while device.held[since].until <= named && since < at {
                since += 1;
            }
            device.held[at].since = since as u32;
        }
        lay_hours(device, plan);
    }
    resets(node, plan);
}

/// Fills in how every hour of the device begins.
fn lay_hours(device: &mut DevicePlan, plan: &Plan) {
    let Some(mut track) = device.track.take() else { return };
    let hours = plan.spec.hours as usize;
    track.hours = Vec::with_capacity(hours + 1);
    track.hours.push(Carried::default());
    let mut first = 0;
    for index in 0..hours {
        let mut next = plan.lay(device, &track, index).carries();
        let end = plan.start_ms() + (index as i64 + 1) * HOUR_MS;
        while device.held.get(first).is_some_and(|held| held.until <= end) {
            first += 1;
        }
        next.first = first as u32;
        track.hours.push(next);
    }
    device.track = Some(track);
}

fn resets(node: &mut NodePlan, plan: &Plan) {
    let end = plan.spec.end().ms();
    for at in 0..node.boards.len() {
        // A board that is new has counted nothing.
        let board = &node.boards[at];
        if board.epoch > 0 {
            let (from, sums) = (board.from, sums(node, plan, at, board.from));
            node.boards[at].resets.push((from, sums));
        }
    }
    let mut all = fault::reloads(&plan.spec, plan.seed, &node.name);
    // A node that was gone, or was repaired, has loaded its drivers anew.
    all.extend(node.spells.iter().filter(|spell| spell.silent()).map(|spell| spell.to));
    all.extend(node.boards.iter().flat_map(|board| board.lost.iter().map(|(_, to)| *to)));
    all.extend(node.boards.iter().filter(|board| board.epoch > 0).map(|board| board.from));
    all.sort_unstable();
    for wanted in all {
        for at in 0..node.boards.len() {
            let devices = &node.devices[node.boards[at].devices.clone()];
            let bound = |pod: usize, named: i64| plan.pods[pod].bound.as_ref().map_or(named, |b| b.bound);
            let held = devices.iter().flat_map(|device| &device.held);
            let mut busy: Vec<(i64, i64)> = held.map(|held| (bound(held.pod, held.named), held.until)).collect();
            busy.sort_unstable();
            let mut reset = wanted;
            for (from, until) in busy {
                if from <= reset && reset < until {
                    reset = until;
                }
            }
            let board = &node.boards[at];
            let later = board.resets.last().is_none_or(|(last, _)| *last < reset);
            if reset < end.min(board.out) && board.board.is_some() && later {
                let sums = sums(node, plan, at, reset);
                node.boards[at].resets.push((reset, sums));
            }
        }
    }
}

/// What the counters of board `at` would have come to at `reset` since the fleet's start.
fn sums(node: &NodePlan, plan: &Plan, at: usize, reset: i64) -> BoardSums {
    let board = &node.boards[at];
    let mut sums = BoardSums::idle(plan, board, reset);
    for device in &node.devices[board.devices.clone()] {
        sums.add(device, &plan.integrals(device, reset).unwrap_or_default());
    }
    sums
}
