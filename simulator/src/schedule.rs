//! Who comes when, who gets which GPUs, and how each pod's life goes: a scheduler's day, event by event.
//!
//! Every draw about a pod is from a stream of that pod's own name. Placement takes the first fit in order of arrival,
//! smaller pods filling what larger ones leave; a pod goes to the node that it leaves fullest, notebooks and serving to
//! boards without NVLink where they may.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use crate::{
    accelerator, calibrate,
    plan::{Binding, NodePlan, Outcome, PodPlan, Slot},
    presets::Preset,
    replay::Job,
    seed::{Draw, Seed},
    shape::{Habits, Shape},
    spec::{FleetSpec, SpellKind, Team},
};

/// Arrivals are drawn slot by slot, so that no logarithm is needed for the gaps between them.
const SLOT_MS: i64 = 10_000;
/// The fleet fills up over its first minutes.
const OPENING_MS: i64 = 600_000;

/// How long after the bind a kubelet names a pod's devices: at least, and at most.
pub(crate) const NAMING_MS: (i64, i64) = (200, 3_000);

/// A wish for GPUs.
struct Request {
    pod: PodPlan,
    work_ms: i64,
    waits: bool,
    /// How it ends, where a trace says so.
    outcome: Option<Outcome>,
}

enum Event {
    Created(usize),
    GivesUp(usize),
    /// A node has room again, or takes pods again.
    Room {
        node: usize,
        freed: Option<(usize, Vec<Slot>)>,
    },
}

/// Every pod of the fleet, in order of (created, namespace, name).
pub(crate) fn pods(spec: &FleetSpec, seed: Seed, nodes: &[NodePlan]) -> Vec<PodPlan> {
    let mut day = Day {
        seed,
        preset: spec.calibration,
        end: spec.end().ms(),
        nodes,
        free: nodes.iter().map(|node| node.offers.iter().map(|offer| offer.slots.iter().copied().collect()).collect()).collect(),
        by_free: BTreeMap::new(),
        requests: Vec::new(),
        events: BTreeMap::new(),
        count: 0,
        waiting: Vec::new(),
    };
    for (node, plan) in nodes.iter().enumerate() {
        (0..plan.offers.len()).for_each(|offer| day.count_free(node, offer, true));
    }
    if let Some(jobs) = spec.replay.played() {
        day.replay(spec, jobs);
    }
    let teams = if spec.replay.jobs.is_some() { &[][..] } else { &spec.teams };
    let weights: f64 = spec.teams.iter().map(|team| team.weight).sum();
    for team in teams {
        let gpus = spec.arrivals.load * spec.gpus() as f64 * team.weight / weights;
        day.arrivals(spec, team, gpus);
    }
    for (node, plan) in nodes.iter().enumerate() {
        for spell in plan.spells.iter().filter(|spell| spell.kind != SpellKind::ExporterDown) {
            day.at(spell.to, Event::Room { node, freed: None });
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
    preset: Option<Preset>,
    end: i64,
    nodes: &'a [NodePlan],
    /// Free slots of each node's offers.
    free: Vec<Vec<BTreeSet<Slot>>>,
    /// Nodes, with the place of the offer, by (resource, product) and number of free slots.
    by_free: BTreeMap<(&'a str, &'a str), BTreeMap<usize, BTreeSet<(usize, usize)>>>,
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

    /// What pods of `shape` ask for and how they end.
    fn habits(&self, shape: Shape) -> Habits {
        let habits = shape.habits();
        match self.preset {
            Some(preset) => calibrate::habits(preset, habits),
            None => habits,
        }
    }

    /// All that `team` asks for by itself; what comes back later is asked for when it ends.
    fn arrivals(&mut self, spec: &FleetSpec, team: &Team, gpus: f64) {
        let start = spec.start.ms();
        let sum = team.mix.sum();
        let words = Words::of(team);
        for &shape in Shape::ALL {
            let share = team.mix.of(shape);
            if share <= 0.0 {
                continue;
            }
            let habits = self.habits(shape);
            let asks = Asks::of(spec, team, shape);
            let wanted = gpus * share / sum / asks.unit;
            let mut draw = self.seed.stream(&format!("arrivals/{}/{}", team.name, shape.as_str()));
            let sizes: Vec<(u32, u32)> = habits.gpus.iter().copied().filter(|(gpus, _)| *gpus <= asks.most).collect();
            let mut number = 0;
            let mut ask = |day: &mut Self, draw: &mut Draw, created: i64, work_pm: i64| {
                let size = draw.weighted(&sizes);
                let work_ms = (habits.duration_ms(draw) * work_pm / 1000).max(1000);
                day.ask(&words, &asks, shape, number, size, created, work_ms);
                number += 1;
                f64::from(size)
            };
            // The fleet opens with what would be running: replicas for good, jobs with a part of their time left.
            let mut standing = 0.0;
            while standing < wanted {
                let created = start + draw.between(0, OPENING_MS);
                let left_pm = if shape.serves() { 1000 } else { draw.between(100, 1000) };
                standing += ask(self, &mut draw, created, left_pm);
            }
            if shape.serves() {
                continue;
            }
            let per_slot = wanted * SLOT_MS as f64 / habits.mean_gpu_ms(asks.most);
            let mut slot = start + OPENING_MS;
            while slot < self.end {
                let per_slot = match self.preset {
                    Some(preset) => per_slot * calibrate::arrivals_ppm(preset, slot) as f64 / 1e6,
                    None => per_slot,
                };
                let rest_ppm = ((per_slot - per_slot.floor()) * 1e6).round() as u32;
                for _ in 0..per_slot.floor() as u64 + u64::from(draw.chance(rest_ppm)) {
                    let created = slot + draw.between(0, SLOT_MS - 1);
                    ask(self, &mut draw, created, 1000);
                }
                slot += SLOT_MS;
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn ask(&mut self, words: &Words, asks: &Asks, shape: Shape, number: u32, gpus: u32, created: i64, work_ms: i64) {
        let habits = shape.habits();
        let workload = format!("{}-{}-{number}", words.team, habits.word);
        let pod = PodPlan {
            uid: String::new(),
            name: format!("{workload}-0").into(),
            namespace: words.namespace.clone(),
            team: words.team.clone(),
            workload: format!("{}/{workload}", habits.controller).into(),
            queue: habits.queue,
            shape,
            resource: asks.resource.clone(),
            gpus,
            products: words.products.clone(),
            created,
            withdrawn: None,
            bound: None,
            generation: 0,
            key: 0,
            attributes: OnceLock::new(),
        };
        self.request(pod, work_ms);
    }

    /// Asks for what a trace's jobs asked for: a pod for each node that a job needs, at its time, for as long as it was.
    fn replay(&mut self, spec: &FleetSpec, jobs: &[Job]) {
        let most = spec.pools().map(|(_, pool)| pool.gpus_per_node).max().unwrap_or(1);
        let resource: Arc<str> = spec.teams.first().map_or("nvidia.com/gpu", |team| spec.resource(team, Shape::Batch)).into();
        for job in jobs {
            let created = spec.start.ms() + job.at_ms;
            if created >= self.end {
                break;
            }
            let shape = if job.serves { Shape::Inference } else { Shape::Training };
            let habits = shape.habits();
            let (mut left, mut rank) = (job.gpus, 0);
            while left > 0 {
                let gpus = left.min(most);
                let pod = PodPlan {
                    uid: String::new(),
                    name: format!("{}-{rank}", job.name).into(),
                    namespace: job.team.clone(),
                    team: job.team.clone(),
                    workload: format!("{}/{}", habits.controller, job.name).into(),
                    queue: habits.queue,
                    shape,
                    resource: resource.clone(),
                    gpus,
                    products: Arc::new([]),
                    created,
                    withdrawn: None,
                    bound: None,
                    generation: 0,
                    key: 0,
                    attributes: OnceLock::new(),
                };
                let index = self.requests.len();
                self.request(pod, job.duration_ms);
                self.requests[index].outcome = Some(job.outcome);
                (left, rank) = (left - gpus, rank + 1);
            }
        }
    }

    fn request(&mut self, mut pod: PodPlan, work_ms: i64) {
        let path = pod.path();
        pod.uid = self.seed.uuid(&path);
        pod.key = self.seed.key(&path);
        let index = self.requests.len();
        self.at(pod.created, Event::Created(index));
        self.requests.push(Request { pod, work_ms, waits: false, outcome: None });
    }

    fn handle(&mut self, now: i64, event: Event) {
        match event {
            Event::Created(index) => {
                if !self.place(index, now) {
                    self.requests[index].waits = true;
                    self.waiting.push(index);
                    let pod = &self.requests[index].pod;
                    let patience = self.habits(pod.shape).patience_s.filter(|_| self.requests[index].outcome.is_none());
                    if let Some(patience) = patience {
                        let share_pm = self.seed.stream(&format!("{}/patience", pod.path())).between(500, 1500);
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
            Event::Room { node, freed } => {
                if let Some((offer, slots)) = freed {
                    self.count_free(node, offer, false);
                    self.free[node][offer].extend(slots);
                    self.count_free(node, offer, true);
                }
                // Nothing else has changed, so whoever waits can only go here.
                for index in std::mem::take(&mut self.waiting) {
                    match self.takes(node, index, now) {
                        Some(offer) => {
                            self.bind(index, node, offer, now);
                            self.requests[index].waits = false;
                        }
                        None => self.waiting.push(index),
                    }
                }
            }
        }
    }

    /// The offer of `node` that has room for a pod at `now`, if it may take it.
    fn takes(&self, node: usize, index: usize, now: i64) -> Option<usize> {
        let pod = &self.requests[index].pod;
        let plan = &self.nodes[node];
        let offer = plan.offers.iter().position(|offer| offer.resource == pod.resource)?;
        let has_room = self.free[node][offer].len() >= pod.gpus as usize;
        (has_room && wants(pod, &plan.accelerator.product) && self.open(node, now)).then_some(offer)
    }

    fn open(&self, node: usize, now: i64) -> bool {
        !self.nodes[node].spells.iter().any(|spell| spell.kind != SpellKind::ExporterDown && spell.holds(now))
    }

    /// Enters an offer of `node` under its number of free slots, or strikes it out.
    fn count_free(&mut self, node: usize, offer: usize, enter: bool) {
        let plan = &self.nodes[node];
        let kind = (&*plan.offers[offer].resource, plan.accelerator.product.as_str());
        let alike = self.by_free.entry(kind).or_default().entry(self.free[node][offer].len()).or_default();
        if enter {
            alike.insert((node, offer));
        } else {
            alike.remove(&(node, offer));
        }
    }

    /// Binds a pod if a node has room for it: of the products that suit it, the node that it leaves fullest.
    fn place(&mut self, index: usize, now: i64) -> bool {
        let pod = &self.requests[index].pod;
        let need = pod.gpus as usize;
        let light = pod.shape.serves() || pod.shape == Shape::Notebook;
        type ByFree = BTreeMap<usize, BTreeSet<(usize, usize)>>;
        let best = |((_, product), by_free): (&(&str, &str), &ByFree)| {
            let fullest = by_free.range(need..).find_map(|(free, nodes)| {
                let node = nodes.iter().copied().find(|(node, _)| self.open(*node, now))?;
                Some((free - need, node))
            })?;
            let misfit = accelerator::by_product(product)?.nvlinks.is_some() == light;
            Some((misfit, fullest))
        };
        let suiting = self.by_free.iter().filter(|((resource, product), _)| *resource == &*pod.resource && wants(pod, product));
        let Some((_, (_, (node, offer)))) = suiting.filter_map(best).min() else { return false };
        self.bind(index, node, offer, now);
        true
    }

    fn bind(&mut self, index: usize, node: usize, offer: usize, now: i64) {
        self.count_free(node, offer, false);
        let slots = take(&mut self.free[node][offer], self.requests[index].pod.gpus as usize);
        self.count_free(node, offer, true);
        let request = &self.requests[index];
        let mut draw = self.seed.stream(&format!("{}/life", request.pod.path()));
        let shared = self.nodes[node].replicas > 1;
        let binding = Binding {
            devices: slots.iter().map(|slot| slot.device).collect(),
            replicas: if shared { slots.iter().map(|slot| slot.replica).collect() } else { Vec::new() },
            unit: self.nodes[node].offers[offer].unit,
            ..life(&self.habits(request.pod.shape), request.work_ms, request.outcome, node, now, &mut draw)
        };
        // The scheduler learns of the end a little later than the kubelet has let go.
        let freed = binding.released + draw.between(150, 1200);
        let back = binding.ended + draw.between(2_000, 40_000);
        let comes_back = binding.started.is_some() && draw.chance(self.habits(request.pod.shape).returns_ppm);
        if comes_back && back < self.end && request.outcome.is_none() {
            let work_ms = self.habits(request.pod.shape).duration_ms(&mut draw);
            let generation = request.pod.generation + 1;
            let again = PodPlan { created: back, withdrawn: None, bound: None, generation, ..request.pod.clone() };
            self.request(again, work_ms);
        }
        self.requests[index].pod.bound = Some(binding);
        self.at(freed, Event::Room { node, freed: Some((offer, slots)) });
    }
}

/// Takes `count` slots: whole devices in order; replicas of whichever device has most of them free, as NVIDIA's plugin spreads
/// them.
fn take(free: &mut BTreeSet<Slot>, count: usize) -> Vec<Slot> {
    let mut taken = Vec::with_capacity(count);
    for _ in 0..count {
        let mut by_device: BTreeMap<usize, (usize, Slot)> = BTreeMap::new();
        for slot in free.iter() {
            by_device.entry(slot.device).or_insert((0, *slot)).0 += 1;
        }
        let fullest = by_device.into_values().max_by_key(|(count, slot)| (*count, std::cmp::Reverse(*slot)));
        let Some((_, slot)) = fullest else { break };
        free.remove(&slot);
        taken.push(slot);
    }
    taken.sort_unstable();
    taken
}

/// A team's names, shared by its pods.
struct Words {
    team: Arc<str>,
    namespace: Arc<str>,
    products: Arc<[String]>,
}

impl Words {
    fn of(team: &Team) -> Self {
        Self {
            team: team.name.as_str().into(),
            namespace: team.namespace.as_str().into(),
            products: team.products.clone().into(),
        }
    }
}

/// What a team's pods of one shape ask for.
struct Asks {
    resource: Arc<str>,
    /// What one of it is of a whole GPU; where pools differ, in the first.
    unit: f64,
    /// Most of it that one pod can have: one of what is not a whole GPU.
    most: u32,
}

impl Asks {
    fn of(spec: &FleetSpec, team: &Team, shape: Shape) -> Self {
        let resource = spec.resource(team, shape);
        let pools = || spec.pools().map(|(_, pool)| pool).filter(|pool| team.may_have(&pool.product));
        let given: Vec<((u32, u32), u32)> = pools().filter_map(|pool| pool.resources().get(resource).copied()).collect();
        let unit = given.first().map_or((1, 1), |(unit, _)| *unit);
        let whole = unit == (1, 1);
        let most = given.iter().map(|(_, count)| *count).max();
        Self {
            resource: resource.into(),
            unit: f64::from(unit.0) / f64::from(unit.1),
            most: if whole { most.unwrap_or(1) } else { 1 },
        }
    }
}

/// Whether a pod asks for `product`, by name or by asking for none.
fn wants(pod: &PodPlan, product: &str) -> bool {
    pod.products.is_empty() || pod.products.iter().any(|p| p == product)
}

/// How a pod's life goes once it has its place at `now`.
fn life(habits: &Habits, work_ms: i64, known: Option<Outcome>, node: usize, now: i64, draw: &mut Draw) -> Binding {
    let bound = now + draw.between(30, 400);
    let named = bound + draw.between(NAMING_MS.0, NAMING_MS.1);
    let pull = if draw.chance(60_000) { draw.between(60_000, 480_000) } else { draw.between(1_500, 15_000) };
    let started = named + pull;
    let (started, terminating, ended, outcome) = if let Some(outcome) = known {
        (Some(started), None, started + work_ms, outcome)
    } else if draw.chance(10_000) {
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
    let (devices, replicas, unit) = (Vec::new(), Vec::new(), (1, 1)); // for the caller to fill in
    Binding { node, devices, replicas, unit, bound, named, started, terminating, ended, released, outcome }
}
