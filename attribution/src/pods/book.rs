//! The book of pods: events in, holdings and demand out.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use schemas::{Timestamp, proto};

use super::{
    evidence::{About, Evidence, TerminalPhase},
    life::{End, EndReason, Life, Log, Observation, Relists, What},
    object::{self, Claim, Namespace, Pod, Refused},
    options::{self, Options, TeamSource},
    state::{PodDemand, PodHolding, PodState, Share},
};

/// When an event came, and how far the API server's clock is ahead of the one that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// By the watcher's clock.
    pub at: Timestamp,
    /// The API server's clock minus the watcher's, in ms.
    pub api_ahead_ms: i64,
}

impl Receipt {
    /// A receipt whose clock is the API server's.
    pub const fn at(at: Timestamp) -> Self {
        Self { at, api_ahead_ms: 0 }
    }

    /// The receipt on the API server's clock.
    pub const fn api(self) -> Timestamp {
        self.at.plus_ms(self.api_ahead_ms)
    }
}

/// What was kept out, and what came too late to matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Objects that could not be read.
    pub refused: u64,
    /// Events older than what is settled; they changed nothing.
    pub late: u64,
    /// Entries of lists of which neither the UID nor the name could be read; whose they are is unknown.
    pub nameless: u64,
}

/// Every pod that asks for devices, from the events of one cluster's watch.
///
/// The book is a function of the set of events, each with its receipt: repeats and any order give the same, as long as none
/// comes later than `reorder_ms` after one that was received after it. A UID that has ended stays ended.
#[derive(Debug)]
pub struct Book {
    options: Options,
    pods: HashMap<String, Entry>,
    namespaces: HashMap<String, Labels>,
    /// By UID of the pod that a claim is reserved for.
    claims: HashMap<String, BTreeMap<String, Share>>,
    /// By namespace and the pod's own controller: the workload above it, and whether that is known for sure.
    workloads: HashMap<(String, String), (String, bool)>,
    relists: Relists,
    changed: BTreeSet<String>,
    counts: Counts,
    latest: i64,
    settled_before: i64,
    swept: i64,
}

#[derive(Debug)]
struct Entry {
    namespace: Arc<str>,
    name: Arc<str>,
    log: Log,
    /// Hash of the state that was told last, and how many were.
    told: Option<u64>,
    revision: u64,
}

/// What a namespace's labels say, by position in the chain of team sources.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    at: i64,
    teams: Vec<(usize, String)>,
}

/// Whether a pod is one for the book: it asks for devices, by resource name or by a claim. A pod that cannot be read is, so that
/// the book refuses and counts it.
pub fn asks_for_devices(json: &[u8], options: &Options) -> bool {
    match object::read(json).and_then(|pod: Pod| Ok((Evidence::of(&pod, options)?.requests, pod.spec.resource_claims))) {
        Ok((requests, claims)) => !requests.is_empty() || !claims.is_empty(),
        Err(_) => true,
    }
}

impl Book {
    /// An empty book.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            pods: HashMap::new(),
            namespaces: HashMap::new(),
            claims: HashMap::new(),
            workloads: HashMap::new(),
            relists: Relists::default(),
            changed: BTreeSet::new(),
            counts: Counts::default(),
            latest: i64::MIN,
            settled_before: i64::MIN,
            swept: i64::MIN,
        }
    }

    /// What was kept out so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Pods in the book.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether no pod is in the book.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Event ADDED or MODIFIED: `json` is the pod. Errors: it was refused and counted; nothing changed.
    pub fn seen(&mut self, json: &[u8], receipt: Receipt) -> Result<(), Refused> {
        self.pod(json, What::Seen, receipt.api().ms()).map(drop)
    }

    /// Event DELETED: `json` is the pod's last state. Errors: it was refused and counted; where its UID could be read, the pod
    /// has ended all the same.
    pub fn deleted(&mut self, json: &[u8], receipt: Receipt) -> Result<(), Refused> {
        let at = receipt.api().ms();
        self.pod(json, What::Deleted, at).map(drop).inspect_err(|_| {
            if let Some(uid) = object::identity(json).uid.filter(|uid| self.pods.contains_key(uid)) {
                self.observe(&uid, Observation { at, what: What::Deleted, version: None, evidence: None });
            }
        })
    }

    /// A full list: `pods` are all that there are, `version` the list's own. A pod of the book that it lacks has ended by then.
    ///
    /// Out: the pods that were refused; one of these is not taken for gone.
    pub fn relist<'a>(
        &mut self,
        pods: impl IntoIterator<Item = &'a [u8]>,
        version: Option<u64>,
        receipt: Receipt,
    ) -> Vec<Refused> {
        let at = receipt.api().ms();
        self.relists.add(at, version);
        let mut refused = Vec::new();
        let mut there: BTreeSet<String> = BTreeSet::new();
        for json in pods {
            match self.pod(json, What::Listed, at) {
                Ok(uid) => drop(there.insert(uid)),
                Err(error) => {
                    refused.push(error);
                    there.extend(self.unreadable(json, at));
                }
            }
        }
        let missing = self.pods.iter().filter(|(uid, entry)| !there.contains(*uid) && entry.log.known_before(at));
        let missing: Vec<String> = missing.map(|(uid, _)| uid.clone()).collect();
        for uid in missing {
            self.observe(&uid, Observation { at, what: What::Missing, version, evidence: None });
        }
        refused
    }

    /// Pods that an unreadable entry of a list may be: they are there.
    fn unreadable(&mut self, json: &[u8], at: i64) -> Vec<String> {
        let identity = object::identity(json);
        let uids: Vec<String> = match (&identity.uid, &identity.namespace, &identity.name) {
            (Some(uid), _, _) => vec![uid.clone()],
            (None, Some(namespace), Some(name)) => {
                let same = self.pods.iter().filter(|(_, e)| *e.namespace == **namespace && *e.name == **name);
                same.map(|(uid, _)| uid.clone()).collect()
            }
            (None, _, _) => {
                self.counts.nameless += 1;
                Vec::new()
            }
        };
        for uid in uids.iter().filter(|uid| self.pods.contains_key(*uid)).cloned().collect::<Vec<_>>() {
            self.observe(&uid, Observation { at, what: What::Listed, version: None, evidence: None });
        }
        uids
    }

    /// A namespace as it is now; its labels may say who pays.
    pub fn namespace(&mut self, json: &[u8], receipt: Receipt) -> Result<(), Refused> {
        let namespace: Namespace = object::read(json).inspect_err(|_| self.counts.refused += 1)?;
        let at = receipt.api().ms();
        self.advance(at);
        let teams = self.options.team.iter().enumerate().filter_map(|(position, source)| match source {
            TeamSource::NamespaceLabel(key) => {
                let team = options::first(&namespace.metadata.labels, std::slice::from_ref(key));
                Some((position, team)).filter(|(_, team)| !team.is_empty())
            }
            TeamSource::PodLabel(_) | TeamSource::Mapping(_) => None,
        });
        let labels = Labels { at, teams: teams.collect() };
        let name = namespace.metadata.name;
        if self.namespaces.get(&name).is_none_or(|known| *known < labels) {
            let of_it = self.pods.iter().filter(|(_, entry)| *entry.namespace == *name);
            self.changed.extend(of_it.map(|(uid, _)| uid.clone()));
            self.namespaces.insert(name, labels);
        }
        Ok(())
    }

    /// A ResourceClaim as it is now: devices that a pod holds beside what it asks by resource name. What was allocated once
    /// counts for the whole life of the pods that it was reserved for.
    pub fn claim(&mut self, json: &[u8], receipt: Receipt) -> Result<(), Refused> {
        let claim: Claim = object::read(json).inspect_err(|_| self.counts.refused += 1)?;
        self.advance(receipt.api().ms());
        let pods: Vec<&String> = claim.status.reserved_for.iter().filter(|c| c.resource == "pods").map(|c| &c.uid).collect();
        let results = claim.status.allocation.iter().flat_map(|a| &a.devices.results);
        let mine = results.filter(|r| !r.admin_access && self.options.resources.drivers.contains(&r.driver));
        let mut by_driver: BTreeMap<&str, u32> = BTreeMap::new();
        mine.for_each(|r| *by_driver.entry(&r.driver).or_default() += 1);
        let among = u32::try_from(pods.len()).unwrap_or(u32::MAX);
        for uid in pods {
            for (driver, devices) in &by_driver {
                let key = format!("{}/{driver}", claim.metadata.name);
                let share = self.claims.entry(uid.clone()).or_default().entry(key).or_insert_with(|| Share {
                    claim: claim.metadata.name.clone(),
                    driver: (*driver).to_owned(),
                    devices: 0,
                    among: 0,
                });
                (share.devices, share.among) = (share.devices.max(*devices), share.among.max(among));
            }
            self.changed.insert(uid.clone());
        }
        Ok(())
    }

    /// What the workload is that the controller `direct` (Kind/name) of pods in `namespace` belongs to. Where it is not `whole`, a
    /// right or an object on the way up was missing, and its pods say so; one that was known before stands.
    pub fn workload(&mut self, namespace: &str, direct: &str, workload: &str, whole: bool) {
        let key = (namespace.to_owned(), direct.to_owned());
        let known = self.workloads.get(&key);
        if known.is_some_and(|(_, known_whole)| *known_whole && !whole) {
            return;
        }
        let new = (workload.to_owned(), whole);
        if known == Some(&new) {
            return;
        }
        let of_it = self.pods.iter().filter(|(_, entry)| {
            *entry.namespace == *namespace && entry.log.life().latest.as_ref().is_some_and(|e| e.about.workload == direct)
        });
        self.changed.extend(of_it.map(|(uid, _)| uid.clone()));
        self.workloads.insert(key, new);
    }

    /// Takes a chain of team sources whose mappings say something else than before. Every pod whose team is another now is told
    /// anew, whole.
    ///
    /// Out: false, and nothing has changed, where the chain has other sources than before: those are read from objects as they come.
    pub fn remap(&mut self, team: Vec<TeamSource>) -> bool {
        let same = |(a, b): (&TeamSource, &TeamSource)| match (a, b) {
            (TeamSource::Mapping(_), TeamSource::Mapping(_)) => true,
            (a, b) => a == b,
        };
        if team.len() != self.options.team.len() || !self.options.team.iter().zip(&team).all(same) {
            return false;
        }
        self.options.team = team;
        self.changed.extend(self.pods.keys().cloned());
        true
    }

    fn pod(&mut self, json: &[u8], what: What, at: i64) -> Result<String, Refused> {
        let read = object::read(json).and_then(|pod: Pod| Ok((Evidence::of(&pod, &self.options)?, pod.metadata)));
        let (evidence, metadata) = read.inspect_err(|_| self.counts.refused += 1)?;
        let version = metadata.version();
        self.pods.entry(metadata.uid.clone()).or_insert_with(|| Entry {
            namespace: metadata.namespace.into(),
            name: metadata.name.into(),
            log: Log::default(),
            told: None,
            revision: 0,
        });
        self.observe(&metadata.uid, Observation { at, what, version, evidence: Some(Arc::new(evidence)) });
        Ok(metadata.uid)
    }

    fn observe(&mut self, uid: &str, observation: Observation) {
        self.advance(observation.at);
        let Some(entry) = self.pods.get_mut(uid) else { return };
        let at = observation.at;
        if !entry.log.insert(observation, self.settled_before) {
            self.counts.late += 1;
            return;
        }
        // A list after this event that lacks the pod, and came before it.
        for (list, version) in self.relists.after(at).collect::<Vec<_>>() {
            if !entry.log.listed_at(list) {
                let missing = Observation { at: list, what: What::Missing, version, evidence: None };
                entry.log.insert(missing, self.settled_before);
            }
        }
        entry.log.settle(self.settled_before);
        if !self.changed.contains(uid) {
            self.changed.insert(uid.to_owned());
        }
    }

    /// Moves on the instant before which nothing comes any more.
    fn advance(&mut self, at: i64) {
        self.latest = self.latest.max(at);
        self.settled_before = self.latest.saturating_sub(self.options.reorder_ms.max(0));
        if self.settled_before.saturating_sub(self.swept) > self.options.reorder_ms.max(60_000) {
            self.swept = self.settled_before;
            self.relists.settle(self.settled_before);
            self.pods.values_mut().for_each(|entry| entry.log.settle(self.settled_before));
        }
    }

    /// Drops pods that ended before `before`. Choose it well before the oldest event that may still come: a UID that is
    /// forgotten would be a new pod.
    pub fn forget(&mut self, before: Timestamp) {
        let over = |life: &Life| life.end.is_some() && life.last_at.is_some_and(|last| last < before.ms());
        self.pods.retain(|_, entry| !over(entry.log.life()));
        let (pods, changed) = (&self.pods, &mut self.changed);
        self.claims.retain(|uid, _| pods.contains_key(uid) || changed.contains(uid));
        changed.retain(|uid| pods.contains_key(uid));
        let direct =
            |entry: &Entry| Some((entry.namespace.to_string(), entry.log.life().latest.as_ref()?.about.workload.clone()));
        let used: BTreeSet<(String, String)> = self.pods.values().filter_map(direct).collect();
        self.workloads.retain(|key, _| used.contains(key));
    }

    /// Takes a holding as another process left it, so that a bind or start whose only evidence was a receipt stands, and a pod
    /// that went while nobody watched ends with the next list. For use before the first event.
    pub fn resume(&mut self, holding: &proto::Holding) {
        let Some(bound) = holding.bound_ms.filter(|_| holding.source == "api" && !holding.pod_uid.is_empty()) else { return };
        if let Some(entry) = self.pods.get(&holding.pod_uid) {
            // Another resource of the same pod.
            let mut evidence = entry.log.life().latest.as_deref().cloned().unwrap_or_default();
            evidence.requests.extend(holding.count.map(|count| (holding.resource.clone(), count)));
            let life = entry.log.life().with_latest(evidence);
            self.pods.entry(holding.pod_uid.clone()).and_modify(|entry| entry.log = Log::resumed(life));
            return;
        }
        let has = |flag: &str| holding.flags.iter().any(|f| f == flag);
        let phase = match holding.terminal_phase.as_str() {
            "Succeeded" => Some(TerminalPhase::Succeeded),
            "Failed" => Some(TerminalPhase::Failed),
            _ => None,
        };
        let reason = if holding.end_reason == "terminal" { EndReason::Terminal } else { EndReason::Removed };
        let end = holding.ended_ms.map(|at| End { at, reason, inferred: has("end_inferred"), phase });
        let about = About {
            workload: holding.workload.clone(),
            queue: holding.queue.clone(),
            shape: holding.shape.clone(),
            last_checkpoint: holding.last_checkpoint_ms,
            resumed_team: holding.team.clone(),
            ..About::default()
        };
        let evidence = Evidence {
            node: Some(holding.node.clone()),
            about,
            requests: holding.count.map(|count| (holding.resource.clone(), count)).into_iter().collect(),
            ..Evidence::default()
        };
        let moments = [holding.started_ms, holding.terminating_from_ms];
        let life = Life::resumed(evidence, holding.observed_at_ms, (bound, has("bind_inferred")), moments, end);
        let entry = Entry {
            namespace: holding.namespace.as_str().into(),
            name: holding.pod.as_str().into(),
            log: Log::resumed(life),
            told: None,
            revision: holding.revision,
        };
        self.pods.insert(holding.pod_uid.clone(), entry);
    }

    /// Takes a pod that waited as another process left it: where no list has it any more, its wait is over. For use before the
    /// first event, after the holdings.
    pub fn resume_demand(&mut self, demand: &proto::Demand) {
        if demand.ended_ms.is_some() || demand.pod_uid.is_empty() || self.pods.contains_key(&demand.pod_uid) {
            return;
        }
        let about = About {
            queue: demand.queue.clone(),
            product: demand.product.clone(),
            resumed_team: demand.team.clone(),
            ..About::default()
        };
        let evidence = Evidence {
            created: Some(demand.asked_ms),
            about,
            requests: [(demand.resource.clone(), demand.gpus)].into(),
            ..Evidence::default()
        };
        let entry = Entry {
            namespace: demand.namespace.as_str().into(),
            name: demand.pod.as_str().into(),
            log: Log::resumed(Life::waiting(evidence, demand.observed_at_ms, demand.asked_ms)),
            told: None,
            revision: demand.revision,
        };
        self.pods.insert(demand.pod_uid.clone(), entry);
    }

    /// The state of every pod, by UID.
    pub fn states(&self) -> Vec<PodState> {
        let mut states: Vec<PodState> = self.pods.iter().filter_map(|(uid, entry)| self.state(uid, entry)).collect();
        states.sort_by(|a, b| a.uid.cmp(&b.uid));
        states
    }

    /// The states that changed since they were last asked for, by UID, each with the time of its last observation and how many
    /// were told of it before.
    pub fn take_changes(&mut self) -> Vec<PodState> {
        let mut states = Vec::new();
        for uid in std::mem::take(&mut self.changed) {
            let Some(entry) = self.pods.get(&uid) else { continue };
            let Some(state) = self.state(&uid, entry) else { continue };
            let mut hash = DefaultHasher::new();
            (&state.holdings, &state.demand).hash(&mut hash);
            let hash = hash.finish();
            // One that had ended before it was first heard of, with nothing that says when it began, is nobody's time.
            let nothing = state.holdings.is_empty() && state.demand.is_none();
            let Some(entry) = self.pods.get_mut(&uid) else { continue };
            if entry.told == Some(hash) || (entry.told.is_none() && nothing) {
                continue;
            }
            entry.told = Some(hash);
            entry.revision += 1;
            states.push(state);
        }
        states
    }

    fn state(&self, uid: &str, entry: &Entry) -> Option<PodState> {
        let life = entry.log.life();
        let evidence = life.latest.as_deref()?;
        let about = &evidence.about;
        let team = self.team(&entry.namespace, about);
        let claims: Vec<&Share> = self.claims.get(uid).into_iter().flat_map(|shares| shares.values()).collect();
        let claims: Vec<&Share> = claims.into_iter().filter(|share| evidence.own_claim.as_ref() != Some(&share.claim)).collect();
        let mut holdings = PodHolding::all(uid, entry.namespace.clone(), entry.name.clone(), life, &claims, &team, &self.options);
        if let Some((workload, whole)) = self.workloads.get(&(entry.namespace.to_string(), about.workload.clone())) {
            for holding in &mut holdings {
                holding.workload.clone_from(workload);
                holding.workload_partial = !whole;
            }
        }
        Some(PodState {
            uid: uid.to_owned(),
            observed_at: Timestamp::from_ms(life.last_at?),
            revision: entry.revision,
            holdings,
            demand: PodDemand::of(entry.namespace.clone(), entry.name.clone(), life, &claims, &team, &self.options),
        })
    }

    /// The first source of the chain that names a team.
    fn team(&self, namespace: &str, about: &About) -> String {
        let labels = self.namespaces.get(namespace);
        let at = |teams: &[(usize, String)], place: usize| teams.iter().find(|(p, _)| *p == place).map(|(_, team)| team.clone());
        let found = self.options.team.iter().enumerate().find_map(|(place, source)| match source {
            TeamSource::PodLabel(_) => at(&about.teams, place),
            TeamSource::NamespaceLabel(_) => labels.and_then(|labels| at(&labels.teams, place)),
            TeamSource::Mapping(teams) => teams.get(namespace).filter(|team| !team.is_empty()).cloned(),
        });
        found.unwrap_or_else(|| about.resumed_team.clone())
    }
}
