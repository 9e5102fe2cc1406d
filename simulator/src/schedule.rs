//! Who comes when, who gets which GPUs, and how each pod's life goes: a scheduler's day, event by event.
//!
//! Every draw about a pod is from a stream of that pod's own name. Placement takes the first fit in order of arrival,
//! smaller jobs filling what larger ones leave; a pod goes to the node that it leaves fullest, notebooks and serving to
//! boards without NVLink where they may. The pods of a gang get their nodes together or not at all. A job of higher priority
//! that finds no room takes that of jobs of lower priority, the latest first.

mod arrivals;
mod life;
mod replayed;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use self::life::Ending;
use crate::{
    accelerator, calibrate,
    fault::{XidEffect, xid_effect},
    plan::{NodePlan, Outcome, PodPlan, Slot},
    presets::Preset,
    seed::Seed,
    shape::{Habits, Shape},
    spec::{FleetSpec, SpellKind},
};

/// How long after the bind a kubelet names a pod's devices: at least, and at most.
pub(crate) const NAMING_MS: (i64, i64) = (200, 3_000);
/// How long a spot node's pods are told beforehand that it goes.
pub(crate) const NOTICE_MS: i64 = 120_000;
/// A job that has taken others' room waits so long before it takes more.
const PREEMPTING_MS: i64 = 60_000;

/// One wish for GPUs: a pod, or the pods of a gang.
struct Job {
    /// Its pods: indices of [`Day::pods`].
    members: Vec<usize>,
    work_ms: i64,
    priority: i32,
    waits: bool,
    /// How often its end was set: an event that knows an earlier one is stale.
    version: u32,
    /// When it is made again after its end, if it is, and how much it has to do.
    again: Option<(i64, i64)>,
    /// Until when room is being made for it.
    preempting: i64,
    /// How it ends, where a trace says so.
    outcome: Option<Outcome>,
}

/// What a job is asked for with.
struct Wish<'a> {
    /// Its name: its pods are called so with a number behind.
    name: &'a str,
    team: &'a Arc<str>,
    namespace: &'a Arc<str>,
    shape: Shape,
    resource: &'a Arc<str>,
    products: &'a Arc<[String]>,
    /// How many of the resource each pod asks for, and how many pods there are, each on a node of its own.
    gpus: u32,
    nodes: u32,
    created: i64,
}

impl Wish<'_> {
    /// Its pods, with nothing decided yet.
    fn pods(&self) -> Vec<PodPlan> {
        let habits = self.shape.habits();
        let workload: Arc<str> = format!("{}/{}", habits.controller, self.name).into();
        let pod = |rank: u32| PodPlan {
            uid: String::new(),
            name: format!("{}-{rank}", self.name).into(),
            namespace: self.namespace.clone(),
            team: self.team.clone(),
            workload: workload.clone(),
            queue: habits.queue,
            shape: self.shape,
            resource: self.resource.clone(),
            gpus: self.gpus,
            part: None,
            rank,
            gang: self.nodes,
            products: self.products.clone(),
            created: self.created,
            withdrawn: None,
            bound: None,
            generation: 0,
            key: 0,
            attributes: OnceLock::new(),
        };
        (0..self.nodes).map(pod).collect()
    }
}

/// Slots of a pod while it has them.
struct Place {
    node: usize,
    offer: usize,
    slots: Vec<Slot>,
}

#[derive(Clone, Copy)]
enum Event {
    Created(usize),
    GivesUp(usize),
    /// The job's room is free again, if this is still its end.
    Ends {
        job: usize,
        version: u32,
    },
    /// A node takes pods again.
    Opens,
    /// A board has an XID.
    Xid {
        node: usize,
        board: usize,
        code: i64,
    },
    /// Another board is there in place of one.
    Swapped {
        node: usize,
        new: usize,
    },
    /// Pods of the node are told to go.
    Drains {
        node: usize,
        why: &'static str,
    },
    /// The node is gone.
    Dies(usize),
}

/// Every pod of the fleet, in order of (created, namespace, name).
pub(crate) fn pods(spec: &FleetSpec, seed: Seed, nodes: &[NodePlan]) -> Vec<PodPlan> {
    let slots = |node: &NodePlan| node.offers.iter().map(|offer| offer.slots.iter().copied().collect()).collect();
    let mut day = Day {
        seed,
        preset: spec.calibration,
        end: spec.end().ms(),
        nodes,
        free: nodes.iter().map(slots).collect(),
        by_free: BTreeMap::new(),
        pods: Vec::new(),
        places: Vec::new(),
        jobs: Vec::new(),
        on_node: vec![BTreeSet::new(); nodes.len()],
        events: BTreeMap::new(),
        count: 0,
        waiting: Vec::new(),
    };
    for (node, plan) in nodes.iter().enumerate() {
        (0..plan.offers.len()).for_each(|offer| day.count_free(node, offer, true));
        day.node_events(node);
    }
    if let Some(jobs) = spec.replay.played() {
        replayed::jobs(&mut day, spec, jobs);
    }
    let teams = if spec.replay.jobs.is_some() { &[][..] } else { &spec.teams };
    let weights: f64 = spec.teams.iter().map(|team| team.weight).sum();
    for team in teams {
        let gpus = spec.arrivals.load * spec.gpus() as f64 * team.weight / weights;
        arrivals::arrivals(&mut day, spec, team, gpus);
    }
    while let Some(((now, _), event)) = day.events.pop_first() {
        if now >= day.end {
            break;
        }
        day.handle(now, event);
    }
    let mut pods = day.pods;
    pods.retain(|pod| pod.created < spec.end().ms());
    pods.sort_by(|a, b| (a.created, &a.namespace, &a.name).cmp(&(b.created, &b.namespace, &b.name)));
    pods
}

/// Nodes, with the place of the offer, by number of free slots.
type ByFree = BTreeMap<usize, BTreeSet<(usize, usize)>>;

struct Day<'a> {
    seed: Seed,
    preset: Option<Preset>,
    end: i64,
    nodes: &'a [NodePlan],
    /// Free slots of each node's offers.
    free: Vec<Vec<BTreeSet<Slot>>>,
    /// By resource and product.
    by_free: BTreeMap<(&'a str, &'a str), ByFree>,
    pods: Vec<PodPlan>,
    /// What each pod has.
    places: Vec<Option<Place>>,
    jobs: Vec<Job>,
    /// Jobs with pods on each node.
    on_node: Vec<BTreeSet<usize>>,
    events: BTreeMap<(i64, u64), Event>,
    count: u64,
    /// Jobs that wait, in order of arrival.
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

    /// What is known beforehand of a node: when it takes pods again, and what befalls those that it has.
    fn node_events(&mut self, node: usize) {
        let plan = &self.nodes[node];
        // Before the node opens.
        for (new, board) in plan.boards.iter().enumerate().filter(|(_, board)| board.epoch > 0) {
            self.at(board.from, Event::Swapped { node, new });
        }
        for spell in &plan.spells {
            match spell.kind {
                SpellKind::ExporterDown => continue,
                SpellKind::Reclaimed => self.at(spell.from - NOTICE_MS, Event::Drains { node, why: "spot_reclaimed" }),
                SpellKind::Lost => self.at(spell.from, Event::Dies(node)),
                SpellKind::GpuSwap => self.at(spell.from, Event::Drains { node, why: "drained" }),
                SpellKind::NotReady | SpellKind::Cordon | SpellKind::Maintenance => {}
            }
            self.at(spell.to, Event::Opens);
        }
        for (board, board_plan) in plan.boards.iter().enumerate() {
            for &(at, code) in &board_plan.xids {
                self.at(at, Event::Xid { node, board, code });
                if xid_effect(code) == XidEffect::Drains {
                    self.at(at + crate::fault::DRAIN_AFTER_MS, Event::Drains { node, why: "drained" });
                }
            }
        }
    }

    /// Enters a job; its pods are all there but for their names' random parts.
    fn request(&mut self, pods: Vec<PodPlan>, work_ms: i64, priority: i32) {
        let Some(created) = pods.first().map(|pod| pod.created) else { return };
        let gang = self.seed.key(&pods[0].path());
        let first = self.pods.len();
        for mut pod in pods {
            pod.uid = self.seed.uuid(&pod.path());
            // All pods of a gang work in step.
            pod.key = gang;
            self.pods.push(pod);
            self.places.push(None);
        }
        let members = (first..self.pods.len()).collect();
        let job = self.jobs.len();
        let (version, again, preempting) = (0, None, i64::MIN);
        self.jobs.push(Job { members, work_ms, priority, waits: false, version, again, preempting, outcome: None });
        self.at(created, Event::Created(job));
    }

    fn leader(&self, job: usize) -> &PodPlan {
        &self.pods[self.jobs[job].members[0]]
    }

    fn handle(&mut self, now: i64, event: Event) {
        match event {
            Event::Created(job) => {
                if !self.place(job, now) {
                    self.jobs[job].waits = true;
                    self.waiting.push(job);
                    let pod = self.leader(job);
                    let patience = self.habits(pod.shape).patience_s.filter(|_| self.jobs[job].outcome.is_none());
                    if let Some(patience) = patience {
                        let share_pm = self.seed.stream(&format!("{}/patience", pod.path())).between(500, 1500);
                        self.at(now + i64::from(patience) * share_pm, Event::GivesUp(job));
                    }
                    self.preempt(job, now);
                }
            }
            Event::GivesUp(job) => {
                if std::mem::take(&mut self.jobs[job].waits) {
                    for member in self.jobs[job].members.clone() {
                        self.pods[member].withdrawn = Some(now);
                    }
                    self.waiting.retain(|waiting| *waiting != job);
                }
            }
            Event::Ends { job, version } => {
                if self.jobs[job].version == version {
                    self.release(job);
                    self.come_back(job);
                    self.admit(now);
                }
            }
            Event::Opens => self.admit(now),
            Event::Xid { node, board, code } => self.xid(node, board, code, now),
            Event::Swapped { node, new } => self.swapped(node, new),
            Event::Drains { node, why } => {
                for job in self.on_node[node].clone() {
                    self.end_early(job, now, Ending::Asked(why));
                }
            }
            Event::Dies(node) => {
                for job in self.on_node[node].clone() {
                    self.end_early(job, now, Ending::NodeGone);
                }
            }
        }
    }

    /// Gives room to those who wait, the higher priority first, then in order.
    fn admit(&mut self, now: i64) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_by_key(|job| std::cmp::Reverse(self.jobs[*job].priority)); // stable
        // What did not fit does not fit later on: nothing is freed meanwhile.
        let mut refused = BTreeSet::new();
        for job in waiting {
            let pod = self.leader(job);
            let kind = (pod.resource.clone(), pod.gpus, self.jobs[job].members.len(), pod.products.clone());
            if !refused.contains(&kind) && self.place(job, now) {
                self.jobs[job].waits = false;
            } else {
                refused.insert(kind);
                self.waiting.push(job);
            }
        }
    }

    fn open(&self, node: usize, now: i64) -> bool {
        let closed = |spell: &crate::fault::Spell| {
            let notice = if spell.kind == SpellKind::Reclaimed { NOTICE_MS } else { 0 };
            spell.kind != SpellKind::ExporterDown && spell.from - notice <= now && now < spell.to
        };
        !self.nodes[node].spells.iter().any(closed)
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

    /// Binds a job if there is room for all of it: of the products that suit it, the nodes that it leaves fullest.
    fn place(&mut self, job: usize, now: i64) -> bool {
        let pod = self.leader(job);
        let (need, nodes) = (pod.gpus as usize, self.jobs[job].members.len());
        let light = pod.shape.serves() || pod.shape == Shape::Notebook;
        let best = |((_, product), by_free): (&(&str, &str), &ByFree)| {
            let open = by_free.range(need..).flat_map(|(free, nodes)| nodes.iter().map(move |node| (free - need, *node)));
            let fits = |node: usize, offer: usize| pod.part.is_none() || of_one(&self.free[node][offer], need).is_some();
            let open = open.filter(|(_, (node, offer))| self.open(*node, now) && fits(*node, *offer));
            let fullest: Vec<_> = open.take(nodes).collect();
            let misfit = accelerator::by_product(product)?.nvlinks.is_some() == light;
            (fullest.len() == nodes).then_some((misfit, fullest))
        };
        let suiting = self.by_free.iter().filter(|((resource, product), _)| *resource == &*pod.resource && wants(pod, product));
        let Some((_, found)) = suiting.filter_map(best).min() else { return false };
        let nodes = found.into_iter().map(|(_, node)| node).collect();
        self.bind(job, nodes, now);
        true
    }

    fn bind(&mut self, job: usize, nodes: Vec<(usize, usize)>, now: i64) {
        for (&member, (node, offer)) in self.jobs[job].members.clone().iter().zip(nodes) {
            self.count_free(node, offer, false);
            let (free, count) = (&mut self.free[node][offer], self.pods[member].gpus as usize);
            let slots = match self.pods[member].part.and_then(|_| of_one(free, count)) {
                Some(slots) => {
                    free.retain(|slot| !slots.contains(slot));
                    slots
                }
                None => take(free, count),
            };
            self.count_free(node, offer, true);
            self.on_node[node].insert(job);
            self.places[member] = Some(Place { node, offer, slots });
        }
        self.live(job, now);
    }

    /// Frees what the job has.
    fn release(&mut self, job: usize) {
        for member in self.jobs[job].members.clone() {
            let Some(Place { node, offer, slots }) = self.places[member].take() else { continue };
            self.count_free(node, offer, false);
            self.free[node][offer].extend(slots);
            self.count_free(node, offer, true);
            self.on_node[node].remove(&job);
        }
    }

    /// Makes room for a job on one node, from jobs of lower priority that hold what it asks for: the lowest first, of equal
    /// ones the latest. Gangs wait.
    fn preempt(&mut self, job: usize, now: i64) {
        let Job { priority, preempting, ref members, .. } = self.jobs[job];
        if priority <= 0 || preempting > now || members.len() > 1 {
            return;
        }
        let pod = self.leader(job);
        let mut best: Option<(usize, Vec<usize>)> = None;
        for (node, plan) in self.nodes.iter().enumerate() {
            let offer = plan.offers.iter().position(|offer| offer.resource == pod.resource);
            let Some(offer) = offer.filter(|_| wants(pod, &plan.accelerator.product) && self.open(node, now)) else { continue };
            let mut room = self.free[node][offer].len();
            let lower = |other: &&usize| self.jobs[**other].priority < priority && self.leader(**other).resource == pod.resource;
            let mut victims: Vec<usize> = self.on_node[node].iter().filter(lower).copied().collect();
            victims.sort_by_key(|other| (self.jobs[*other].priority, std::cmp::Reverse(*other)));
            let mut told = Vec::new();
            for other in victims {
                if room >= pod.gpus as usize {
                    break;
                }
                let on = |member: &&usize| self.places[**member].as_ref().is_some_and(|place| place.node == node);
                room += self.jobs[other].members.iter().filter(on).map(|member| self.pods[*member].gpus as usize).sum::<usize>();
                told.push(other);
            }
            if room >= pod.gpus as usize && best.as_ref().is_none_or(|(_, best)| told.len() < best.len()) {
                best = Some((node, told));
            }
        }
        let Some((_, told)) = best else { return };
        self.jobs[job].preempting = now + PREEMPTING_MS;
        for other in told {
            self.end_early(other, now, Ending::Asked("preempted"));
        }
    }

    /// Board `new` gives what the one before it in its slot gave: all of that is free, for its node was drained.
    fn swapped(&mut self, node: usize, new: usize) {
        let boards = &self.nodes[node].boards;
        let (old, new) = (boards[new - 1].devices.clone(), boards[new].devices.clone());
        for free in &mut self.free[node] {
            let gone: Vec<Slot> = free.iter().filter(|slot| old.contains(&slot.device)).copied().collect();
            for slot in gone {
                free.remove(&slot);
                free.insert(Slot { device: slot.device - old.start + new.start, ..slot });
            }
        }
    }

    /// An XID ends what it hits: one pod of the board, or all where the board is gone.
    fn xid(&mut self, node: usize, board: usize, code: i64, now: i64) {
        let devices = self.nodes[node].boards[board].devices.clone();
        let on_board = |job: &&usize| {
            let places = self.jobs[**job].members.iter().filter_map(|member| self.places[*member].as_ref());
            places.filter(|place| place.node == node).flat_map(|place| &place.slots).any(|slot| devices.contains(&slot.device))
        };
        let mut hit: Vec<usize> = self.on_node[node].iter().filter(on_board).copied().collect();
        match xid_effect(code) {
            XidEffect::None => return,
            XidEffect::Fails => {
                let mut draw = self.seed.stream(&format!("xid-hits/{}/{board}/{now}", self.nodes[node].name));
                let one = if hit.is_empty() { 0 } else { draw.below(hit.len() as u64) as usize };
                hit = hit.get(one).copied().into_iter().collect();
            }
            XidEffect::Drains => {}
        }
        for job in hit {
            self.end_early(job, now, Ending::Fails("xid"));
        }
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

/// `count` replicas of one device: of the fullest that has as many free.
fn of_one(free: &BTreeSet<Slot>, count: usize) -> Option<Vec<Slot>> {
    let mut by_device: BTreeMap<usize, Vec<Slot>> = BTreeMap::new();
    free.iter().for_each(|slot| by_device.entry(slot.device).or_default().push(*slot));
    let mut slots = by_device.into_values().filter(|slots| slots.len() >= count).min_by_key(Vec::len)?;
    slots.truncate(count);
    Some(slots)
}

/// Whether a pod asks for `product`, by name or by asking for none.
fn wants(pod: &PodPlan, product: &str) -> bool {
    pod.products.is_empty() || pod.products.iter().any(|p| p == product)
}
