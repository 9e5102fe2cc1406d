//! How a job's life goes once it has its place, and what ends it before its time.

use super::{Day, Event, Job};
use crate::{
    plan::{Binding, Outcome, PodPlan},
    seed::Draw,
    shape::Shape,
    work::{self, Work},
};

/// What ends a job before its time.
#[derive(Clone, Copy)]
pub(super) enum Ending {
    /// Its containers die.
    Fails(&'static str),
    /// It is asked to go.
    Asked(&'static str),
    /// Its node is gone: nothing runs any more, and the API finds out later.
    NodeGone,
}

/// How long the API waits for a node that says nothing before it takes it as not ready, and then before it deletes its pods:
/// the defaults of Kubernetes.
const GRACE_MS: i64 = 40_000;
const EVICTION_MS: i64 = 300_000;

impl Day<'_> {
    /// Lays out the lives of a job that has its places since `now`.
    pub(super) fn live(&mut self, job: usize, now: i64) {
        let leader = self.leader(job);
        let mut draw = self.seed.stream(&format!("{}/life", leader.path()));
        let first = life(leader, self.jobs[job].work_ms, now, &mut draw);
        // The scheduler learns of the end a little later than the kubelet has let go.
        let freed_ms = draw.between(150, 1200);
        let back = first.ended + draw.between(2_000, 40_000);
        let habits = leader.shape.habits();
        let comes_back = first.started.is_some() && draw.chance(habits.returns_ppm);
        let again = (comes_back && back < self.end).then(|| (back, habits.duration_ms(&mut draw)));
        let members = self.jobs[job].members.clone();
        let mut freed = 0;
        // The pods of a gang begin when the last of them can, and end together.
        let mut lives: Vec<Binding> = vec![first.clone()];
        for &member in &members[1..] {
            let mut draw = self.seed.stream(&format!("{}/life", self.pods[member].path()));
            let own = life(&self.pods[member], self.jobs[job].work_ms, now, &mut draw);
            let Binding { bound, named, .. } = own;
            let terminating = first.terminating.map(|asked| asked.max(named + 1));
            let ended = first.ended.max(named + 2);
            lives.push(Binding { bound, named, terminating, ended, released: ended + draw.between(0, 300), ..first.clone() });
        }
        let ready = lives.iter().map(|life| life.named + 1).max().unwrap_or(0);
        let started = first.started.map(|started| started.max(ready)).filter(|started| *started < first.ended);
        for (&member, mut life) in members.iter().zip(lives) {
            let Some(place) = &self.places[member] else { continue };
            let node = &self.nodes[place.node];
            life.started = started.filter(|started| *started < life.terminating.unwrap_or(life.ended));
            life.node = place.node;
            life.devices = place.slots.iter().map(|slot| slot.device).collect();
            life.replicas = if node.replicas > 1 { place.slots.iter().map(|slot| slot.replica).collect() } else { Vec::new() };
            life.unit = node.offers[place.offer].unit;
            freed = freed.max(life.released + freed_ms);
            self.pods[member].bound = Some(life);
        }
        self.jobs[job].again = again;
        self.ends(job, freed);
    }

    fn ends(&mut self, job: usize, freed: i64) {
        self.jobs[job].version += 1;
        self.at(freed, Event::Ends { job, version: self.jobs[job].version });
    }

    /// Makes the job again after its end, under the same names, if it comes back.
    pub(super) fn come_back(&mut self, job: usize) {
        let Some((created, work_ms)) = self.jobs[job].again.take() else { return };
        let again = self.jobs[job].members.iter().map(|member| {
            let pod = &self.pods[*member];
            PodPlan { created, withdrawn: None, bound: None, generation: pod.generation + 1, ..pod.clone() }
        });
        let again = again.collect();
        self.request(again, work_ms, self.jobs[job].priority);
    }

    /// Ends a job at `now` that would have lived longer. Its controller makes it again, and it goes on from what it had saved.
    pub(super) fn end_early(&mut self, job: usize, now: i64, ending: Ending) {
        let leader = self.leader(job);
        let Some(lead) = &leader.bound else { return };
        let mut draw = self.seed.stream(&format!("{}/early/{now}", leader.path()));
        let (why, stopped, ended) = match ending {
            Ending::Fails(why) => (why, None, now + draw.between(200, 3_000)),
            Ending::Asked(why) => (why, None, now + draw.between(1_000, 30_000)),
            Ending::NodeGone => ("node_lost", Some(now), now + GRACE_MS + EVICTION_MS + draw.between(0, 10_000)),
        };
        if lead.ended <= ended || lead.terminating.is_some_and(|asked| asked <= now) {
            return; // it goes by itself
        }
        let back = ended + draw.between(2_000, 40_000);
        let left = self.left(job, stopped.unwrap_or(now));
        let mut freed = 0;
        for member in self.jobs[job].members.clone() {
            let released = draw.between(0, 300);
            let Some(binding) = &mut self.pods[member].bound else { continue };
            // A pod is not asked to go, and does not fail, before its kubelet knows of it.
            let asked = now.max(binding.named + 1);
            let ended = ended.max(asked + 1);
            (binding.terminating, binding.outcome) = match ending {
                Ending::Fails(_) => (None, Outcome::Failed),
                Ending::Asked(_) => (Some(asked), Outcome::Deleted),
                Ending::NodeGone => (Some(ended - 1_000).filter(|asked| *asked > binding.named), Outcome::Deleted),
            };
            binding.stopped = stopped;
            binding.ended = ended;
            binding.released = ended + released;
            binding.why = Some(why);
            let over = binding.stopped.or(binding.terminating).unwrap_or(ended);
            binding.started = binding.started.filter(|started| *started < over);
            freed = freed.max(binding.released + 500);
        }
        self.jobs[job].again = (back < self.end).then_some((back, left));
        self.ends(job, freed);
    }

    /// What is left of a job's work when it stops at `at`: all that it had not saved; of one that saves nothing, all.
    fn left(&self, job: usize, at: i64) -> i64 {
        let Job { members, work_ms, .. } = &self.jobs[job];
        let pod = &self.pods[members[0]];
        let done = pod.bound.as_ref().and_then(|binding| {
            let started = binding.started.filter(|started| *started < at)?;
            let work = Work::of(pod, started, at);
            match work::unsaved_since(&work, at) {
                Some(saved) => Some(saved - started),
                // Who serves or sits at a notebook has no end of work: the time runs on.
                None if pod.shape.serves() || pod.shape == Shape::Notebook => Some(at - started),
                None => None,
            }
        });
        (work_ms - done.unwrap_or(0)).max(1_000)
    }
}

/// How a pod's life goes once it has its place at `now`; which, is for the caller to fill in.
fn life(pod: &PodPlan, work_ms: i64, now: i64, draw: &mut Draw) -> Binding {
    let habits = pod.shape.habits();
    let bound = now + draw.between(30, 400);
    let named = bound + draw.between(super::NAMING_MS.0, super::NAMING_MS.1);
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
    Binding {
        node: 0,
        devices: Vec::new(),
        replicas: Vec::new(),
        unit: (1, 1),
        bound,
        named,
        started,
        terminating,
        stopped: None,
        ended,
        released,
        outcome,
        why: None,
    }
}
