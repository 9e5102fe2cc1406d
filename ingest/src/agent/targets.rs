//! The targets of an agent as they come and go, and the asking of each at its own instant.

use super::state::state_key;
use super::{Agent, AgentError, Asked, Gathered, Known, MAX_DEPARTED, Options, Target, ask, podres_client};
use crate::join::Memory;
use crate::page;
use crate::schedule::{Schedule, offset_ms};
use crate::scrape::Scraper;
use attribution::podres;
use schemas::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinError;

/// What a change of targets did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changed {
    /// Targets that are new.
    pub gained: usize,
    /// Targets that are asked no more.
    pub lost: usize,
}

impl Agent {
    /// From the next rounds on: works by `options` and asks `targets`. Targets that stay lose no round: what is remembered of
    /// them goes on, and so does a round that is under way. Nothing changes where an error is returned. The cluster and the
    /// state file stay what they were.
    pub fn change(&mut self, options: Options, targets: Vec<Target>) -> Result<Changed, AgentError> {
        let mut wanted: Vec<Option<(Target, Option<podres::Client>)>> = Vec::with_capacity(targets.len());
        let mut places: BTreeMap<(String, String), usize> = BTreeMap::new();
        for target in targets {
            if places.insert((target.node.clone(), target.address.as_text()), wanted.len()).is_some() {
                return Err(AgentError::SameTarget { address: target.address.as_text(), node: target.node });
            }
            let podres = podres_client(&target, &options)?;
            wanted.push(Some((target, podres)));
        }
        let mut changed = Changed::default();
        let (old, now) = (std::mem::replace(&mut self.options, options), self.clock.now());
        self.options.cluster.clone_from(&old.cluster);
        self.options.state_file.clone_from(&old.state_file);
        self.scraper = Scraper::new(self.options.timeout, self.options.max_body_bytes);
        self.room = Arc::new(Semaphore::new(self.options.concurrency.max(1)));
        let interval = i64::from(self.options.interval_ms);
        // Instants hang on names and the interval alone: where the interval stays, who stays is due when it was due.
        let same_interval = self.options.interval_ms == old.interval_ms;
        if !same_interval {
            self.schedule = Schedule::new(interval);
        }
        for number in 0..self.targets.len() {
            let Some(known) = &mut self.targets[number] else { continue };
            let place = places.get(&(known.target.node.clone(), known.source.clone()));
            let Some((target, podres)) = place.and_then(|place| wanted[*place].take()) else {
                changed.lost += usize::from(!std::mem::replace(&mut known.leaves, true));
                self.leave(number);
                continue;
            };
            let returns = std::mem::replace(&mut known.leaves, false);
            if returns || !same_interval {
                changed.gained += usize::from(returns);
                self.schedule.add(number, offset_ms(&target.node, &known.source, interval), now);
            }
            known.pages = page::Memory::new(&self.options.page);
            if target.podres_socket != known.target.podres_socket || self.options.timeout != old.timeout {
                known.podres = podres;
                known.change += 1;
            }
            known.target = target;
        }
        let targets = &self.targets;
        self.schedule.keep(|number| targets[number].as_ref().is_some_and(|known| !known.leaves));
        let mut free: Vec<usize> = (0..self.targets.len()).rev().filter(|number| self.targets[*number].is_none()).collect();
        for (target, podres) in wanted.into_iter().flatten() {
            let source = target.address.as_text();
            let remembered = self.departed.remove(&state_key(&target.node, &source)).unwrap_or_default();
            let number = free.pop().unwrap_or(self.targets.len());
            if number == self.targets.len() {
                self.targets.push(None);
            }
            changed.gained += 1;
            self.schedule.add(number, offset_ms(&target.node, &source, interval), now);
            let memory = Memory::of(&target.node);
            self.targets[number] = Some(Known {
                target,
                source,
                podres,
                memory,
                pages: page::Memory::new(&self.options.page),
                sequence: remembered.sequence,
                sightings: remembered.sightings,
                inventory: remembered.inventory,
                health: super::Health::default(),
                restarts: !remembered.of_this_run,
                unmatched: Vec::new(),
                asked: false,
                leaves: false,
                change: 0,
            });
        }
        Ok(changed)
    }

    /// Lets a target go whose last round is done; what is known of it is kept.
    pub(super) fn leave(&mut self, number: usize) {
        let Some(known) = self.targets[number].take_if(|known| known.leaves && !known.asked) else { return };
        self.departed.insert(state_key(&known.target.node, &known.source), known.state());
        while self.departed.len() > MAX_DEPARTED {
            self.departed.pop_first();
        }
    }

    pub(super) fn known(&self) -> impl Iterator<Item = (usize, &Known)> {
        self.targets.iter().enumerate().filter_map(|(number, known)| Some((number, known.as_ref()?)))
    }

    /// How many targets there are.
    pub fn targets(&self) -> usize {
        self.known().filter(|(_, known)| !known.leaves).count()
    }

    /// When the next target is due; none where there is none.
    pub fn due(&self) -> Option<Timestamp> {
        self.schedule.next()
    }

    /// Begins to ask every target that is due at `now`; their answers come from [`Agent::answered`]. Returns how many rounds had
    /// no time: because this comes too late, or because the target's last round is not done.
    pub fn begin(&mut self, now: Timestamp) -> u64 {
        let mut skipped = 0;
        let began = self.clock.now();
        for (number, late) in self.schedule.take(now) {
            skipped += late;
            if self.targets[number].as_ref().is_some_and(|known| known.asked) {
                skipped += 1;
            } else {
                self.ask(number, now, began);
            }
        }
        skipped
    }

    /// Whether a target is being asked.
    pub fn is_asking(&self) -> bool {
        !self.asking.is_empty()
    }

    /// Waits for the next answer of a target that is being asked, into `gathered`; false where none is. May be dropped while it
    /// waits.
    pub async fn answered(&mut self, gathered: &mut Gathered) -> bool {
        let Some(asked) = self.asking.join_next().await else { return false };
        if let Ok((number, asked)) = asked {
            self.take(gathered, number, asked);
        }
        true
    }

    pub(super) fn take(&mut self, gathered: &mut Gathered, number: usize, asked: Result<Asked, JoinError>) {
        if let Some(known) = &mut self.targets[number] {
            known.asked = false;
        }
        match asked {
            Ok(asked) => self.one(gathered, asked),
            // A panic in there is a mistake of ours; the other targets' rounds are good all the same.
            Err(error) => {
                tracing::error!(%error, "a scrape task failed");
                if let Some(known) = &mut self.targets[number] {
                    known.podres = podres_client(&known.target, &self.options).ok().flatten();
                }
            }
        }
        if self.targets[number].as_ref().is_some_and(|known| known.leaves) {
            self.leave(number);
        }
    }

    /// Asks a target, for a round at `now` plus the time since `began`.
    pub(super) fn ask(&mut self, number: usize, now: Timestamp, began: Timestamp) {
        let Some(known) = &mut self.targets[number] else { return };
        known.asked = true;
        let (room, clock, scraper) = (self.room.clone(), self.clock.clone(), self.scraper.clone());
        let (address, mut podres, change) = (known.target.address.clone(), known.podres.take(), known.change);
        let asking = async move {
            let _permit = room.acquire_owned().await;
            let sent = clock.now();
            let at = now.plus_ms(sent.ms() - began.ms());
            let (body, answer) = tokio::join!(scraper.get(&address), ask(&mut podres));
            let duration_ms = clock.now().ms() - sent.ms();
            Asked { index: number, at, duration_ms, body, answer, podres, change }
        };
        let asking = tokio::spawn(asking);
        self.asking.spawn(async move { (number, asking.await) });
    }
}
