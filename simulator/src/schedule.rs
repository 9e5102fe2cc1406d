//! Who comes when, who gets which GPUs, and how each pod's life goes: a scheduler's day, event by event.
//!
//! Every draw about a pod is from a stream of that pod's own name. Placement takes the first fit in order of arrival,
//! smaller pods filling what larger ones leave; a pod goes to the node that it leaves fullest, notebooks and serving to
//! boards without NVLink where they may.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use exporter::Attributes;

use crate::{
    accelerator,
    plan::{Binding, CONTAINER, NodePlan, Outcome, PodPlan},
    seed::{Draw, Seed},
    shape::Shape,
    spec::{FleetSpec, SpellKind, Team},
};

/// Arrivals are drawn slot by slot, so that no logarithm is needed for the gaps between them.
const SLOT_MS: i64 = 10_000;
/// The fleet fills up over its first minutes.
const OPENING_MS: i64 = 600_000;

/// A wish for GPUs.
struct Request {
    pod: PodPlan,
    work_ms: i64,
    generation: u32,
    waits: bool,
}

enum Event {
    Created(usize),
    GivesUp(usize),
    /// A node has room again, or takes pods again.
    Room {
        node: usize,
        devices: Vec<usize>,
    },
}

/// Every pod of the fleet, in order of (created, namespace, name).
pub(crate) fn pods(spec: &FleetSpec, seed: Seed, nodes: &[NodePlan]) -> Vec<PodPlan> {
    let mut day = Day {
        seed,
        end: spec.end().ms(),
        nodes,
        free: Vec::new(),
        by_free: BTreeMap::new(),
        requests: Vec::new(),
        events: BTreeMap::new(),
        count: 0,
        waiting: Vec::new(),
    };
    for (node, plan) in nodes.iter().enumerate() {
        day.free.push(Vec::new());
        day.release(node, (0..plan.devices.len()).collect());
    }
    let weights: f64 = spec.teams.iter().map(|team| team.weight).sum();
    for team in &spec.teams {
        let gpus = spec.arrivals.load * spec.gpus() as f64 * team.weight / weights;
        day.arrivals(spec, team, gpus);
    }
    for (node, plan) in nodes.iter().enumerate() {
        for spell in plan.spells.iter().filter(|spell| spell.kind != SpellKind::ExporterDown) {
            day.at(spell.to, Event::Room { node, devices: Vec::new() });
        }
    }
    while let Some(((now, _), event)) = day.events.pop_first() {
        if now >= day.end {
            break;
        }
        day.handle(now, event);
    }
    let mut pods: Vec<PodPlan> = day.requests.into_iter().map(|request| request.pod).collect();
    pods.retain(|pod| pod.created < spec.end().ms());
    pods.sort_by(|a, b| (a.created, &a.namespace, &a.name).cmp(&(b.created, &b.namespace, &b.name)));
    pods
}

struct Day<'a> {
    seed: Seed,
    end: i64,
    nodes: &'a [NodePlan],
    /// Free devices of each node, ascending.
    free: Vec<Vec<usize>>,
    /// Nodes by product and number of free devices.
    by_free: BTreeMap<&'a str, BTreeMap<usize, BTreeSet<usize>>>,
    requests: Vec<Request>,
    events: BTreeMap<(i64, u64), Event>,
    count: u64,
    /// Requests that wait, in order of arrival.
    waiting: Vec<usize>,
}

impl Day<'_> {
    fn at(&mut self, at: i64, event: Event) {
        self.events.insert((at, self.count), event);
        self.count += 1;
    }

    /// All that `team` asks for by itself; what comes back later is asked for when it ends.
    fn arrivals(&mut self, spec: &FleetSpec, team: &Team, gpus: f64) {
        let start = spec.start.ms();
        let mix = team.mix;
        let shares = [mix.training, mix.inference, mix.batch, mix.notebook];
        let sum: f64 = shares.iter().sum();
        let allowed = |product: &str| team.products.is_empty() || team.products.iter().any(|p| p == product);
        let most = spec.pools().filter(|(_, pool)| allowed(&pool.product)).map(|(_, pool)| pool.gpus_per_node).max().unwrap_or(1);
        for (&shape, share) in Shape::ALL.iter().zip(shares) {
            if share <= 0.0 {
                continue;
            }
            let wanted = gpus * share / sum;
            let habits = shape.habits();
            let mut draw = self.seed.stream(&format!("arrivals/{}/{}", team.name, shape.as_str()));
            let sizes: Vec<(u32, u32)> = habits.gpus.iter().copied().filter(|(gpus, _)| *gpus <= most).collect();
            let mut number = 0;
            let mut ask = |day: &mut Self, draw: &mut Draw, created: i64, work_pm: i64| {
                let size = draw.weighted(&sizes);
                let work_ms = (habits.duration_ms(draw) * work_pm / 1000).max(1000);
                day.ask(team, shape, number, size, created, work_ms);
                number += 1;
                f64::from(size)
            };
            // The fleet opens with what would be running: replicas for good, jobs with a part of their time left.
            let mut standing = 0.0;
            while standing < wanted {
                let created = start + draw.between(0, OPENING_MS);
                let left_pm = if shape == Shape::Inference { 1000 } else { draw.between(100, 1000) };
                standing += ask(self, &mut draw, created, left_pm);
            }
            if shape == Shape::Inference {
                continue;
            }
            let per_slot = wanted * SLOT_MS as f64 / habits.mean_gpu_ms(most);
            let rest_ppm = ((per_slot - per_slot.floor()) * 1e6).round() as u32;
            let mut slot = start + OPENING_MS;
            while slot < self.end {
                for _ in 0..per_slot.floor() as u64 + u64::from(draw.chance(rest_ppm)) {
                    let created = slot + draw.between(0, SLOT_MS - 1);
                    ask(self, &mut draw, created, 1000);
                }
                slot += SLOT_MS;
            }
        }
    }

    fn ask(&mut self, team: &Team, shape: Shape, number: u32, gpus: u32, created: i64, work_ms: i64) {
        let habits = shape.habits();
        let workload = format!("{}-{}-{number}", team.name, habits.word);
        let name = format!("{workload}-0");
        let pod = PodPlan {
            uid: String::new(),
            attributes: Arc::new(Attributes::of_pod(&team.namespace, &name, CONTAINER)),
            name,
            namespace: team.namespace.clone(),
            team: team.name.clone(),
            workload: format!("{}/{workload}", habits.controller),
            queue: habits.queue,
            shape,
            gpus,
            products: team.products.clone(),
            created,
            withdrawn: None,
            bound: None,
            path: String::new(),
        };
        self.request(pod, work_ms, 0);
    }

    fn request(&mut self, mut pod: PodPlan, work_ms: i64, generation: u32) {
        pod.path = format!("pod/{}/{}/{generation}", pod.namespace, pod.name);
        pod.uid = self.seed.uuid(&pod.path);
        let index = self.requests.len();
        self.at(pod.created, Event::Created(index));
        self.requests.push(Request { pod, work_ms, generation, waits: false });
    }

    fn handle(&mut self, now: i64, event: Event) {
        match event {
            Event::Created(index) => {
                if !self.place(index, now) {
                    self.requests[index].waits = true;
                    self.waiting.push(index);
                    let pod = &self.requests[index].pod;
                    if let Some(patience) = pod.shape.habits().patience_s {
                        let share_pm = self.seed.stream(&format!("{}/patience", pod.path)).between(500, 1500);
                        self.at(now + i64::from(patience) * share_pm, Event::GivesUp(index));
                    }
                }
            }
            Event::GivesUp(index) => {
                if std::mem::take(&mut self.requests[index].waits) {
                    self.requests[index].pod.withdrawn = Some(now);
                    self.waiting.retain(|waiting| *waiting != index);
                }
            }
            Event::Room { node, devices } => {
                self.release(node, devices);
                // Nothing else has changed, so whoever waits can only go here.
                for index in std::mem::take(&mut self.waiting) {
                    if self.takes(node, index, now) {
                        self.bind(index, node, now);
                        self.requests[index].waits = false;
                    } else {
                        self.waiting.push(index);
                    }
                }
            }
        }
    }

    /// Whether `node` has room for a pod at `now` and may take it.
    fn takes(&self, node: usize, index: usize, now: i64) -> bool {
        let pod = &self.requests[index].pod;
        self.free[node].len() >= pod.gpus as usize && wants(pod, &self.nodes[node].accelerator.product) && self.open(node, now)
    }

    fn open(&self, node: usize, now: i64) -> bool {
        !self.nodes[node].spells.iter().any(|spell| spell.kind != SpellKind::ExporterDown && spell.holds(now))
    }

    fn release(&mut self, node: usize, devices: Vec<usize>) {
        self.count_free(node, false);
        self.free[node].extend(devices);
        self.free[node].sort_unstable();
        self.count_free(node, true);
    }

    /// Enters `node` under its number of free devices, or strikes it out.
    fn count_free(&mut self, node: usize, enter: bool) {
        let product = self.nodes[node].accelerator.product.as_str();
        let alike = self.by_free.entry(product).or_default().entry(self.free[node].len()).or_default();
        if enter {
            alike.insert(node);
        } else {
            alike.remove(&node);
        }
    }

    /// Binds a pod if a node has room for it: of the products that suit it, the node that it leaves fullest.
    fn place(&mut self, index: usize, now: i64) -> bool {
        let pod = &self.requests[index].pod;
        let need = pod.gpus as usize;
        let light = matches!(pod.shape, Shape::Inference | Shape::Notebook);
        let best = |(product, by_free): (&&str, &BTreeMap<usize, BTreeSet<usize>>)| {
            let fullest = by_free.range(need..).find_map(|(free, nodes)| {
                let node = nodes.iter().copied().find(|node| self.open(*node, now))?;
                Some((free - need, node))
            })?;
            let misfit = accelerator::by_product(product)?.nvlinks.is_some() == light;
            Some((misfit, fullest))
        };
        let suiting = self.by_free.iter().filter(|(product, _)| wants(pod, product));
        let Some((_, (_, node))) = suiting.filter_map(best).min() else { return false };
        self.bind(index, node, now);
        true
    }

    fn bind(&mut self, index: usize, node: usize, now: i64) {
        self.count_free(node, false);
        let devices: Vec<usize> = self.free[node].drain(..self.requests[index].pod.gpus as usize).collect();
        self.count_free(node, true);
        let request = &self.requests[index];
        let mut draw = self.seed.stream(&format!("{}/life", request.pod.path));
        let binding = life(&request.pod, request.work_ms, node, devices.clone(), now, &mut draw);
        // The scheduler learns of the end a little later than the kubelet has let go.
        let freed = binding.released + draw.between(150, 1200);
        let back = binding.ended + draw.between(2_000, 40_000);
        let comes_back = binding.started.is_some() && draw.chance(request.pod.shape.habits().returns_ppm);
        if comes_back && back < self.end {
            let work_ms = request.pod.shape.habits().duration_ms(&mut draw);
            let again = PodPlan { created: back, withdrawn: None, bound: None, ..request.pod.clone() };
            self.request(again, work_ms, self.requests[index].generation + 1);
        }
        self.requests[index].pod.bound = Some(binding);
        self.at(freed, Event::Room { node, devices });
    }
}

/// Whether a pod asks for `product`, by name or by asking for none.
fn wants(pod: &PodPlan, product: &str) -> bool {
    pod.products.is_empty() || pod.products.iter().any(|p| p == product)
}

/// How a pod's life goes once it has its place at `now`.
fn life(pod: &PodPlan, work_ms: i64, node: usize, devices: Vec<usize>, now: i64, draw: &mut Draw) -> Binding {
    let habits = pod.shape.habits();
    let bound = now + draw.between(30, 400);
    let named = bound + draw.between(200, 3_000);
    let pull = if draw.chance(60_000) { draw.between(60_000, 480_000) } else { draw.between(1_500, 15_000) };
    let started = named + pull;
    let (started, terminating, ended, outcome) = if draw.chance(10_000) {
        // Deleted while its image was still being pulled.
        let asked = named + draw.between(1_000, pull);
        (None, Some(asked), asked + draw.between(500, 3_000), Outcome::Deleted)
    } else if draw.chance(habits.deleted_ppm) {
        let asked = started + work_ms;
        (Some(started), Some(asked), asked + draw.between(1_000, 30_000), Outcome::Deleted)
    } else {
        let outcome = if draw.chance(habits.failed_ppm) { Outcome::Failed } else { Outcome::Succeeded };
        (Some(started), None, started + work_ms, outcome)
    };
    let released = ended + draw.between(0, 300);
    Binding { node, devices, bound, named, started, terminating, ended, released, outcome }
}
