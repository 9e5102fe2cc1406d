//! The API server as the agent's source: which exporters there are, which devices claims name, and how far the clocks are apart.
//!
//! ```text
//! every refresh: list exporters' pods ──> targets ────────┐
//!                list ResourceSlices ──> claims' devices   ├─> one Look ──> the agent
//!                get claims ──> which of them look only    │
//!                Date of the answers ──> the clocks ───────┘
//! ```
//!
//! Lists, not watches: what is asked for is a page or two, and every agent of a cluster may ask. Of claims only those are asked for
//! that a kubelet lists, and each once. What cannot be had is counted, said
//! once, and leaves what was known before as it was.

use super::{Discovery, targets};
use crate::agent::Target;
use crate::clock::Clock;
use crate::discovery::Defaults;
use crate::join::Claims;
use attribution::holders::{ClaimName, ClaimedDevice, SliceDevice};
use attribution::watch::{Api, ApiError, admin_access, list_slices};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Least time between two looks, whoever asks for one.
const AT_LEAST: Duration = Duration::from_secs(1);
/// Largest possible error of the clocks' difference with which it is told: half of what the ledger passes over.
const MAX_WRONG_MS: i64 = 250;
/// Looks at the start that come soon, so that the clocks are known within seconds.
const SOON: u32 = 8;
/// Most claims asked for at one look; the others are at the next.
const CLAIMS_A_LOOK: usize = 256;

/// How the API server is used.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// How to reach it; none: this pod's service account, else `KUBECONFIG`.
    pub kubeconfig: Option<PathBuf>,
    /// Which exporters are targets; none: none are looked for.
    pub exporters: Option<Discovery>,
    /// This node's pod-resources socket, for exporters that are found; only where those are this node's.
    pub podres_socket: Option<PathBuf>,
    /// How the exporters' pages are asked for.
    pub defaults: Defaults,
    /// Time between two looks.
    pub refresh: Duration,
    /// Time for an answer.
    pub timeout: Duration,
}

/// What is asked for beside the exporters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Nodes whose kubelets are asked: claims on them name devices of their ResourceSlices.
    pub nodes: BTreeSet<String>,
    /// Grows where a kubelet names a device that nobody knows: its slice may be new.
    pub unknown: u64,
    /// Claims that kubelets list.
    pub claims: BTreeSet<ClaimName>,
}

/// What one look found.
#[derive(Debug, Default)]
pub struct Look {
    /// The exporters that there are; none: they were not looked for, or could not be had.
    pub targets: Option<Vec<Target>>,
    /// Devices that claims name, by node; none: they were not looked for, or could not be had.
    pub slices: Option<BTreeMap<String, Vec<SliceDevice>>>,
    /// What it says of claims; none: they were not looked for.
    pub claims: Option<Claims>,
    /// The API server's clock minus ours in ms, once it is known well enough.
    pub ahead_ms: Option<i64>,
    /// Requests that failed, by reason.
    pub failures: Vec<&'static str>,
    /// Pods and slices that cannot be used, and could be at the look before, or were not there.
    pub refused: u64,
}

/// Looks at the API server.
pub struct Source {
    api: Api,
    how: Options,
    wanted: watch::Receiver<Wanted>,
    clock: Arc<dyn Clock>,
    /// Claims that were read, with the devices that each has admin access to.
    claims: BTreeMap<ClaimName, Vec<ClaimedDevice>>,
    /// What could not be listed at the last look, and why.
    failing: BTreeMap<&'static str, &'static str>,
    /// What was refused at the last look.
    refused: BTreeSet<String>,
}

impl Source {
    /// Sets up the connection; nothing is asked yet.
    pub async fn connect(how: Options, clock: Arc<dyn Clock>, wanted: watch::Receiver<Wanted>) -> Result<Self, ApiError> {
        let now = {
            let clock = clock.clone();
            Arc::new(move || clock.now())
        };
        let api = Api::connect(how.kubeconfig.as_deref(), now, how.timeout).await?;
        Ok(Source { api, how, wanted, clock, claims: BTreeMap::new(), failing: BTreeMap::new(), refused: BTreeSet::new() })
    }

    /// Looks again and again, until nobody listens any more.
    pub async fn watch(mut self, looks: mpsc::Sender<Look>) {
        let mut number: u32 = 0;
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            let look = self.look(&wanted).await;
            let clocks = number < SOON && look.ahead_ms.is_none() && look.failures.is_empty();
            let soon = clocks || look.claims.as_ref().is_some_and(|claims| claims.read.len() < wanted.claims.len());
            if looks.send(look).await.is_err() {
                return;
            }
            number = number.wrapping_add(1);
            // The server dates answers by the second: asked at another part of it each time, they bound the clocks' difference
            // ever closer. Steps of the golden ratio fill the second evenly.
            let part = Duration::from_millis(u64::from(number) * 618 % 1000);
            let wait = if soon { AT_LEAST } else { self.how.refresh.max(AT_LEAST) } + part;
            let at_least = self.clock.now().plus_ms(ms(AT_LEAST));
            let next = self.clock.now().plus_ms(ms(wait));
            tokio::select! {
                () = self.clock.sleep_until(next) => {}
                changed = self.wanted.changed() => match changed {
                    Ok(()) => self.clock.sleep_until(at_least).await,
                    Err(_) => return,
                },
                () = looks.closed() => return,
            }
        }
    }

    async fn look(&mut self, wanted: &Wanted) -> Look {
        let mut look = Look::default();
        let mut refused = BTreeSet::new();
        if let Some(exporters) = &self.how.exporters {
            let found = targets(&self.api, exporters).await;
            if let Some(found) = self.listed("pods", found, &mut look) {
                refused.extend(found.refused.iter().map(|(pod, why)| format!("pod {pod}: {why}")));
                look.targets = Some(self.targets(found, &mut refused));
            }
        }
        if !wanted.nodes.is_empty() {
            let one = wanted.nodes.first().filter(|_| wanted.nodes.len() == 1);
            let slices = list_slices(&self.api, one.map(String::as_str)).await;
            if let Some(mut slices) = self.listed("resourceslices", slices, &mut look) {
                refused.extend(slices.refused.iter().map(ToString::to_string));
                slices.by_node.retain(|node, _| wanted.nodes.contains(node));
                look.slices = Some(slices.by_node);
            }
            look.claims = Some(self.read_claims(&wanted.claims, &mut look).await);
        }
        for what in refused.difference(&self.refused) {
            look.refused += 1;
            tracing::warn!(what, "the API server tells of something that cannot be used; the rest is");
        }
        // What could not be listed this time says nothing about what was refused before.
        match look.failures.is_empty() {
            true => self.refused = refused,
            false => self.refused.append(&mut refused),
        }
        look.ahead_ms = self.api.ahead_ms().filter(|(_, wrong)| *wrong <= MAX_WRONG_MS).map(|(ahead, _)| ahead);
        look
    }

    /// What is known of `wanted`. Where the server does not tell, a claim holds its devices, as nearly all do, and is asked for again.
    async fn read_claims(&mut self, wanted: &BTreeSet<ClaimName>, look: &mut Look) -> Claims {
        self.claims.retain(|claim, _| wanted.contains(claim));
        let unread: Vec<&ClaimName> = wanted.iter().filter(|claim| !self.claims.contains_key(*claim)).collect();
        let mut read: BTreeSet<ClaimName> = BTreeSet::new();
        for claim in unread.iter().take(CLAIMS_A_LOOK) {
            let found = admin_access(&self.api, claim).await;
            let Some(devices) = self.listed("resourceclaims", found, look) else {
                read = unread.iter().map(|claim| (*claim).clone()).collect();
                break;
            };
            self.claims.insert((*claim).clone(), devices);
        }
        read.extend(self.claims.keys().cloned());
        Claims { read, admin: self.claims.values().flatten().cloned().collect() }
    }

    fn targets(&self, found: super::Targets, refused: &mut BTreeSet<String>) -> Vec<Target> {
        let mut targets = Vec::with_capacity(found.found.len());
        for exporter in found.found {
            match self.how.defaults.address(&exporter.url) {
                Ok(address) => {
                    targets.push(Target { node: exporter.node, address, podres_socket: self.how.podres_socket.clone() });
                }
                Err(why) => drop(refused.insert(format!("pod {}: {why}", exporter.pod))),
            }
        }
        targets
    }

    /// What was listed. A failure is counted, and said where it is another than before.
    fn listed<T>(&mut self, what: &'static str, result: Result<T, ApiError>, look: &mut Look) -> Option<T> {
        match result {
            Ok(listed) => {
                if self.failing.remove(what).is_some() {
                    tracing::info!(what, "the API server tells again");
                }
                Some(listed)
            }
            Err(error) => {
                look.failures.push(error.reason());
                if self.failing.insert(what, error.reason()) != Some(error.reason()) {
                    let error = format!("{:#}", anyhow::Error::new(error));
                    tracing::error!(what, error, "the API server does not tell; what it told before stands");
                }
                None
            }
        }
    }
}

fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
