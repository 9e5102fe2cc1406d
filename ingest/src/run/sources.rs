//! Where a running agent's targets come from, and what the API server tells beside them; and how both change under it.

use super::{Reload, UNFOUND, api_ahead, counter};
use crate::agent::{Agent, Target};
use crate::clock::Clock;
use crate::config::AgentConfig;
use crate::discovery::{self, Found};
use crate::join::Claims;
use crate::kubernetes::source::{Look, Options, Source, Wanted};
use attribution::holders::{ClaimName, SliceDevice};
use attribution::watch::ApiError;
use attribution::{SocketError, kubelet};
use schemas::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use web::Metrics;

/// Name of the source that asks the API server.
const KUBERNETES: &str = "kubernetes";
/// How long the first look at the API server is waited for. Where it takes longer, what it finds comes later.
const FIRST_LOOK: Duration = Duration::from_secs(5);

/// Counter of failed requests to the API server, and its help.
pub(crate) const API_FAILURES: (&str, &str) =
    ("strandline_ingest_api_failures_total", "requests to the API server that failed, by reason");

/// Where targets come from.
pub(super) struct Sources {
    fixed: Vec<Target>,
    by_source: BTreeMap<&'static str, Vec<Target>>,
    found: mpsc::Receiver<Found>,
    /// Held so that `found` stays open where nothing watches.
    _open: mpsc::Sender<Found>,
    cluster: Option<Cluster>,
    pods: Option<Kubelet>,
}

/// This node's kubelet, where it tells its pods.
struct Kubelet {
    lists: mpsc::Receiver<List>,
    /// Why the last list failed.
    failing: Option<&'static str>,
}

/// A list of the node's pods as JSON, and when it was had.
type List = (Timestamp, Result<Vec<Vec<u8>>, SocketError>);

/// The API server, and what it told last.
struct Cluster {
    how: Options,
    wanted: watch::Sender<Wanted>,
    looks: mpsc::Receiver<Look>,
    slices: BTreeMap<String, Vec<SliceDevice>>,
    claims: Arc<Claims>,
    ahead_ms: Option<i64>,
}

/// What there is to act on.
pub(super) enum News {
    /// A source of files.
    Found(Found),
    /// The API server.
    Look(Look),
    /// The node's kubelet.
    Pods(List),
}

/// What the agent must act on.
pub(super) enum Heard {
    /// Nothing.
    Nothing,
    /// Its targets may be others.
    Targets,
    /// The node's pods, and when they were listed.
    Pods(Timestamp, Vec<Vec<u8>>),
}

/// Counter of failed lists of the node's pods, and its help.
pub(super) const UNLISTED: (&str, &str) =
    ("strandline_ingest_local_pods_failures_total", "lists of the node's pods that its kubelet did not give, by reason");
/// Time between two lists of the node's pods.
const LIST_EVERY_MS: i64 = 15_000;

/// Lists the node's pods again and again, until nobody listens any more.
async fn list(mut client: kubelet::Client, clock: Arc<dyn Clock>, every_ms: i64, lists: mpsc::Sender<List>) {
    loop {
        let result = client.list().await;
        let now = clock.now();
        if lists.send((now, result)).await.is_err() {
            return;
        }
        tokio::select! {
            () = clock.sleep_until(now.plus_ms(every_ms)) => {}
            () = lists.closed() => return,
        }
    }
}

impl Sources {
    /// The sources of a configuration, looked at once and from then on watched; and how much of their files cannot be used. They end
    /// when this is dropped. The API server goes on as `before` asks it, where that is not to be asked otherwise.
    pub(super) async fn of(
        config: &AgentConfig,
        before: Option<&mut Sources>,
        clock: &Arc<dyn Clock>,
        metrics: &Metrics,
    ) -> Result<(Self, u64), ApiError> {
        let mut unfound = 0;
        let (sender, found) = mpsc::channel(1);
        let mut by_source = BTreeMap::new();
        if !config.files.is_empty() {
            let mut files = config.files.clone();
            let looked = tokio::task::spawn_blocking(move || {
                let look = files.look();
                (files, look)
            });
            if let Ok((files, look)) = looked.await {
                unfound = look.failures;
                by_source.insert(discovery::FILES, files.targets());
                tokio::spawn(discovery::watch(files, clock.clone(), sender.clone()));
            }
        }
        let pods =
            config.local_pods.as_ref().and_then(|local| match kubelet::Client::new(&local.socket, config.options.timeout) {
                Ok(client) => {
                    let (sender, lists) = mpsc::channel(1);
                    let every_ms = LIST_EVERY_MS.min(i64::from(config.options.interval_ms));
                    tokio::spawn(list(client, clock.clone(), every_ms, sender));
                    Some(Kubelet { lists, failing: None })
                }
                Err(error) => {
                    tracing::error!(%error, "the node's pods are not asked for");
                    None
                }
            });
        let mut sources = Sources { fixed: config.targets.clone(), by_source, found, _open: sender, cluster: None, pods };
        let Some(how) = &config.kubernetes else { return Ok((sources, unfound)) };
        match before {
            Some(before) if before.cluster.as_ref().is_some_and(|cluster| cluster.how == *how) => {
                sources.cluster = before.cluster.take();
                let targets = before.by_source.get(KUBERNETES).cloned().unwrap_or_default();
                sources.by_source.insert(KUBERNETES, targets);
                sources.want();
            }
            _ => sources.ask(how, clock, metrics).await?,
        }
        Ok((sources, unfound))
    }

    /// Begins to ask the API server. Where it is away, the agent goes on without what it would tell, until it is back.
    async fn ask(&mut self, how: &Options, clock: &Arc<dyn Clock>, metrics: &Metrics) -> Result<(), ApiError> {
        let (wanted, wants) = watch::channel(Wanted { nodes: self.nodes(Some(how)), ..Wanted::default() });
        let source = Source::connect(how.clone(), clock.clone(), wants).await?;
        let (sender, mut looks) = mpsc::channel(1);
        tokio::spawn(source.watch(sender));
        let first = tokio::time::timeout(FIRST_LOOK, looks.recv()).await;
        let (slices, claims) = (BTreeMap::new(), Arc::default());
        self.cluster = Some(Cluster { how: how.clone(), wanted, looks, slices, claims, ahead_ms: None });
        match first {
            Ok(Some(look)) => drop(self.take(look, metrics)),
            Ok(None) | Err(_) => tracing::warn!("the API server has not answered yet; the agent begins without it"),
        }
        Ok(())
    }

    /// Waits for news. May be dropped while it waits.
    pub(super) async fn news(&mut self) -> News {
        let look = async {
            match &mut self.cluster {
                Some(cluster) => cluster.looks.recv().await,
                None => None,
            }
        };
        let list = async {
            match &mut self.pods {
                Some(pods) => pods.lists.recv().await,
                None => None,
            }
        };
        tokio::select! {
            Some(found) = self.found.recv() => News::Found(found),
            Some(look) = look => News::Look(look),
            Some(list) = list => News::Pods(list),
            else => std::future::pending().await,
        }
    }

    /// Takes news.
    pub(super) fn hear(&mut self, news: News, metrics: &Metrics) -> Heard {
        match news {
            News::Found(found) => {
                counter(metrics, UNFOUND.0, UNFOUND.1).add(found.failures);
                self.by_source.insert(found.source, found.targets);
                self.want();
                Heard::Targets
            }
            News::Look(look) => {
                if self.take(look, metrics) {
                    Heard::Targets
                } else {
                    Heard::Nothing
                }
            }
            News::Pods((at, result)) => {
                let before = self
                    .pods
                    .as_mut()
                    .and_then(|pods| std::mem::replace(&mut pods.failing, result.as_ref().err().map(SocketError::reason)));
                match result {
                    Ok(pods) => {
                        if before.is_some() {
                            tracing::info!("the kubelet tells its pods again");
                        }
                        Heard::Pods(at, pods)
                    }
                    Err(error) => {
                        metrics.counter(UNLISTED.0, UNLISTED.1, &[("reason", error.reason())]).inc();
                        if before != Some(error.reason()) {
                            tracing::warn!(%error, "the kubelet does not tell its pods; what it told before stands");
                        }
                        Heard::Nothing
                    }
                }
            }
        }
    }

    fn take(&mut self, look: Look, metrics: &Metrics) -> bool {
        for reason in look.failures {
            metrics.counter(API_FAILURES.0, API_FAILURES.1, &[("reason", reason)]).inc();
        }
        counter(metrics, UNFOUND.0, UNFOUND.1).add(look.refused);
        let Some(cluster) = &mut self.cluster else { return false };
        if let Some(slices) = look.slices {
            cluster.slices = slices;
        }
        if let Some(claims) = look.claims {
            cluster.claims = Arc::new(claims);
        }
        // What was measured stands until there is something better: clocks drift slowly.
        cluster.ahead_ms = look.ahead_ms.or(cluster.ahead_ms);
        if let Some(ahead) = cluster.ahead_ms {
            api_ahead(metrics, ahead);
        }
        let changed = look.targets.as_ref().is_some_and(|targets| self.by_source.get(KUBERNETES) != Some(targets));
        if let Some(targets) = look.targets {
            self.by_source.insert(KUBERNETES, targets);
        }
        self.want();
        changed
    }

    /// All targets. Of two for one node and page the first counts, and the configuration's own before those that were found.
    pub(super) fn targets(&self) -> Vec<Target> {
        let mut seen = BTreeSet::new();
        let all = self.fixed.iter().chain(self.by_source.values().flatten());
        all.filter(|target| seen.insert((target.node.clone(), target.address.as_text()))).cloned().collect()
    }

    /// Gives the agent what it must know beside its targets.
    pub(super) fn tell(&self, agent: &mut Agent) {
        if let Some(cluster) = &self.cluster {
            agent.know_slices(&cluster.slices);
            agent.know_claims(Some(&cluster.claims));
            agent.know_skew(cluster.ahead_ms.map(|ahead| -ahead));
        } else {
            agent.know_claims(None);
            agent.know_skew(None);
        }
    }

    /// Has the API server looked at soon, for devices that a kubelet names and nobody knows, and for `claims` that are new.
    pub(super) fn unknown(&self, devices: u64, claims: BTreeSet<ClaimName>) {
        let Some(cluster) = &self.cluster else { return };
        cluster.wanted.send_if_modified(|wanted| {
            let changed = devices > 0 || wanted.claims != claims;
            wanted.unknown = wanted.unknown.wrapping_add(devices);
            wanted.claims = claims;
            changed
        });
    }

    /// Says of which nodes claims are to be known.
    fn want(&self) {
        let Some(cluster) = &self.cluster else { return };
        let nodes = self.nodes(Some(&cluster.how));
        cluster.wanted.send_if_modified(|wanted| {
            let changed = wanted.nodes != nodes;
            wanted.nodes = nodes;
            changed
        });
    }

    /// Nodes whose kubelets are asked.
    fn nodes(&self, how: Option<&Options>) -> BTreeSet<String> {
        let all = self.fixed.iter().chain(self.by_source.values().flatten());
        let own = how.filter(|how| how.podres_socket.is_some()).and_then(|how| how.exporters.as_ref()?.node.clone());
        all.filter(|target| target.podres_socket.is_some()).map(|target| target.node.clone()).chain(own).collect()
    }
}

/// Gives the agent the targets that there are now.
pub(super) fn change(agent: &mut Agent, config: &AgentConfig, sources: &Sources, metrics: &Metrics) {
    match agent.change(config.options.clone(), sources.targets()) {
        Ok(changed) => {
            tracing::info!(gained = changed.gained, lost = changed.lost, targets = agent.targets(), "targets changed");
            super::count_targets(metrics, agent.targets());
        }
        Err(error) => {
            counter(metrics, UNFOUND.0, UNFOUND.1).inc();
            let error = format!("{:#}", anyhow::Error::new(error));
            tracing::error!(error, "targets that were found cannot be used; the old ones go on");
        }
    }
}

/// Reads the configuration again, and lets the agent go on with it. Where it is refused nothing has changed.
pub(super) async fn read_again(
    reload: &mut Reload,
    config: &AgentConfig,
    old: &mut Sources,
    agent: &mut Agent,
    clock: &Arc<dyn Clock>,
    metrics: &Metrics,
) -> anyhow::Result<(AgentConfig, Sources)> {
    let next = (reload.load)()?;
    config.can_become(&next)?;
    let (mut sources, unfound) = Sources::of(&next, Some(old), clock, metrics).await?;
    let checked = match unfound {
        0 => agent.change(next.options.clone(), sources.targets()).map_err(anyhow::Error::new),
        // Anew there are no last good ones that could stay.
        _ => Err(anyhow::anyhow!("a file of targets cannot be used; the lines before name it")),
    };
    if let Err(error) = checked {
        if old.cluster.is_none() && config.kubernetes == next.kubernetes {
            old.cluster = sources.cluster.take();
        }
        return Err(error);
    }
    Ok((next, sources))
}
