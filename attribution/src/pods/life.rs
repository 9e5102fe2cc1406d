//! One pod's life, from its observations in order (rule A3).
//!
//! Observations are kept until they are older than any that may still come, then folded into one; so the life is the same
//! whatever order they came in, and however often.

use std::{collections::BTreeSet, sync::Arc};

use super::evidence::{Evidence, TerminalPhase};

/// What was observed of a pod, in the order in which observations of one instant count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Observation {
    /// Receipt, on the API server's clock.
    pub(super) at: i64,
    pub(super) what: What,
    /// Version of the object, or of the list that lacks it.
    pub(super) version: Option<u64>,
    /// None where the object could not be read, or is not there.
    pub(super) evidence: Option<Arc<Evidence>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// An event that shows the pod.
    Seen,
    /// A full list that has it.
    Listed,
    /// The event of its removal.
    Deleted,
    /// A full list that lacks it.
    Missing,
}

/// Why a pod holds no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndReason {
    /// A terminal phase.
    Terminal,
    /// Its object is gone.
    Removed,
}

impl EndReason {
    /// The text in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Terminal => "terminal",
            Self::Removed => "removed",
        }
    }
}

/// The end of a pod's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct End {
    pub(super) at: i64,
    pub(super) reason: EndReason,
    /// The instant is a receipt of a terminal phase, or a relist's.
    pub(super) inferred: bool,
    pub(super) phase: Option<TerminalPhase>,
}

/// By how much a bind may be later than the first event that shows it, before it is no clock's word.
const CLOCK_ERROR_MS: i64 = 300_000;

/// What a run of observations amounts to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Life {
    /// Receipt of the last observation, one that said nothing new too.
    pub(super) last_at: Option<i64>,
    version: Option<u64>,
    /// First receipt of any.
    pub(super) first_at: Option<i64>,
    pub(super) created: Option<i64>,
    /// The node, and the receipt of the first event that shows it.
    pub(super) node: Option<(String, i64)>,
    pub(super) scheduled: Option<i64>,
    started: Option<i64>,
    /// Receipt of the first event that shows it running.
    running: Option<i64>,
    terminating: Option<i64>,
    pub(super) end: Option<End>,
    /// The latest state that counts.
    pub(super) latest: Option<Arc<Evidence>>,
    /// Whether the pod was ever seen before it ended.
    pub(super) seen_alive: bool,
}

impl Life {
    /// Takes the next observation. What comes after the end, or was overtaken by a newer version, changes nothing.
    fn take(&mut self, observation: &Observation) {
        let Observation { at, what, version, evidence } = observation;
        self.last_at = Some(*at).max(self.last_at);
        let overtaken = matches!((self.version, version), (Some(known), Some(version)) if *version < known);
        if self.end.is_some() || overtaken {
            return;
        }
        self.first_at.get_or_insert(*at);
        if *what != What::Missing {
            self.version = (*version).max(self.version);
        }
        if let Some(evidence) = evidence {
            self.read(evidence, *at);
        }
        self.end = match what {
            What::Seen | What::Listed => self.terminal(*at),
            What::Deleted => {
                let phase = self.latest.as_ref().and_then(|e| e.terminal);
                let removed = End { at: *at, reason: EndReason::Removed, inferred: false, phase };
                Some(self.terminal(*at).filter(|end| !end.inferred).unwrap_or(removed))
            }
            What::Missing => Some(End { at: *at, reason: EndReason::Removed, inferred: true, phase: None }),
        };
        self.seen_alive |= self.end.is_none();
    }

    fn read(&mut self, evidence: &Arc<Evidence>, at: i64) {
        if let (None, Some(node)) = (&self.node, &evidence.node) {
            self.node = Some((node.clone(), at));
        }
        let earliest = |known: &mut Option<i64>, new: Option<i64>| *known = [*known, new].into_iter().flatten().min();
        earliest(&mut self.created, evidence.created);
        earliest(&mut self.scheduled, evidence.scheduled);
        earliest(&mut self.started, evidence.started);
        earliest(&mut self.running, evidence.running.then_some(at));
        // The timestamp is the request plus the grace; where that is wrong (it has been added twice), the event is not.
        let asked = evidence.deletion.map(|d| d.grace_ms.map_or(at, |grace| d.at.saturating_sub(grace).min(at)));
        earliest(&mut self.terminating, asked);
        self.latest = Some(evidence.clone());
    }

    /// The end by terminal phase, where the latest state is in one.
    fn terminal(&self, at: i64) -> Option<End> {
        let evidence = self.latest.as_ref()?;
        let phase = Some(evidence.terminal?);
        let begin = self.bound().map(|(bound, _)| bound);
        let credible = |(first, last): &(i64, i64)| begin.is_none_or(|begin| begin <= *first) && *last <= at;
        let (end, inferred) = evidence.finished.filter(credible).map_or((at, true), |(_, last)| (last, false));
        Some(End { at: end, reason: EndReason::Terminal, inferred, phase })
    }

    /// When it was bound, and whether that is a receipt.
    pub(super) fn bound(&self) -> Option<(i64, bool)> {
        let (_, first) = self.node.as_ref()?;
        let credible = |scheduled: &i64| *scheduled <= first.saturating_add(CLOCK_ERROR_MS);
        Some(self.scheduled.filter(credible).map_or((*first, true), |scheduled| (scheduled, false)))
    }

    pub(super) fn started(&self) -> Option<i64> {
        let (bound, _) = self.bound()?;
        self.started.or(self.running).map(|at| at.max(bound))
    }

    pub(super) fn terminating(&self) -> Option<i64> {
        let (bound, _) = self.bound()?;
        self.terminating.map(|at| at.max(bound)).filter(|at| self.end.is_none_or(|end| *at < end.at))
    }

    /// The same with `evidence` as its latest state.
    pub(super) fn with_latest(&self, evidence: Evidence) -> Self {
        Self { latest: Some(Arc::new(evidence)), ..self.clone() }
    }

    /// A life that another process left waiting since `asked`.
    pub(super) fn waiting(evidence: Evidence, observed_at: i64, asked: i64) -> Self {
        Self {
            last_at: Some(observed_at),
            first_at: Some(asked),
            created: evidence.created,
            seen_alive: true,
            latest: Some(Arc::new(evidence)),
            ..Self::default()
        }
    }

    /// A life as another process left it: `bound` and whether that was a receipt, `moments` of its start and deletion.
    pub(super) fn resumed(
        evidence: Evidence,
        observed_at: i64,
        bound: (i64, bool),
        moments: [Option<i64>; 2],
        end: Option<End>,
    ) -> Self {
        Self {
            last_at: Some(observed_at),
            first_at: Some(bound.0),
            node: evidence.node.clone().map(|node| (node, if bound.1 { bound.0 } else { observed_at })),
            scheduled: Some(bound.0).filter(|_| !bound.1),
            started: moments[0],
            terminating: moments[1],
            end,
            seen_alive: true,
            latest: Some(Arc::new(evidence)),
            ..Self::default()
        }
    }
}

/// Observations that may still be put in order, above a life that is settled.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    settled: Life,
    /// Sorted, each once.
    tail: Vec<Observation>,
    now: Life,
}

impl Log {
    pub(super) fn resumed(life: Life) -> Self {
        Self { now: life.clone(), settled: life, tail: Vec::new() }
    }

    /// The life by all that was observed.
    pub(super) fn life(&self) -> &Life {
        &self.now
    }

    /// Puts an observation in its place; false where it is older than what is settled, and changes nothing.
    pub(super) fn insert(&mut self, mut observation: Observation, settled_before: i64) -> bool {
        if observation.at < settled_before && self.settled.last_at.is_some_and(|last| observation.at < last) {
            return false;
        }
        let Err(place) = self.tail.binary_search(&observation) else { return true };
        // States repeat; one copy is kept.
        let same = [place.checked_sub(1), Some(place)].into_iter().flatten().filter_map(|i| self.tail.get(i)?.evidence.as_ref());
        if let Some(known) = same.chain(&self.settled.latest).find(|known| Some(*known) == observation.evidence.as_ref()) {
            observation.evidence = Some(known.clone());
        }
        if place == self.tail.len() {
            self.now.take(&observation);
            self.tail.push(observation);
        } else {
            self.tail.insert(place, observation);
            self.now = self.settled.clone();
            self.tail.iter().for_each(|o| self.now.take(o));
        }
        true
    }

    /// Whether the pod was heard of before `at`.
    pub(super) fn known_before(&self, at: i64) -> bool {
        self.settled.first_at.is_some_and(|first| first < at) || self.tail.first().is_some_and(|first| first.at < at)
    }

    /// Whether a list of that instant has it.
    pub(super) fn listed_at(&self, at: i64) -> bool {
        self.tail.iter().any(|o| o.at == at && o.what == What::Listed)
    }

    /// Folds what is older than `before`, for good.
    pub(super) fn settle(&mut self, before: i64) {
        let old = self.tail.partition_point(|o| o.at < before);
        for observation in self.tail.drain(..old) {
            self.settled.take(&observation);
        }
        self.tail.shrink_to_fit();
    }
}

/// Instants of the full lists that may still matter to an event that comes late, with the version of each.
#[derive(Clone, Debug, Default)]
pub(super) struct Relists(BTreeSet<(i64, Option<u64>)>);

impl Relists {
    pub(super) fn add(&mut self, at: i64, version: Option<u64>) {
        self.0.insert((at, version));
    }

    pub(super) fn after(&self, at: i64) -> impl Iterator<Item = (i64, Option<u64>)> {
        self.0.range((at.saturating_add(1), None)..).copied()
    }

    pub(super) fn settle(&mut self, before: i64) {
        self.0 = self.0.split_off(&(before, None));
    }
}
