//! One kubelet per node: its pod-resources socket, answering at the clock's time.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use attribution::podres::v1::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerResources, GetPodResourcesRequest,
    GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse, NumaNode, PodResources, TopologyInfo,
    pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
};
use schemas::Timestamp;
use tokio::{net::UnixListener, sync::watch, task::JoinSet};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, transport::Server};

use crate::{
    clock::SimClock,
    plan::{CONTAINER, NodePlan, Offer, Plan, Slot},
};

/// Longest path of a unix socket, as Linux has it.
const MAX_SOCKET_PATH: usize = 107;

/// Why the sockets could not be laid.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The folder's path is too long for a socket in it.
    #[error("`{}` is too long for a unix socket ({MAX_SOCKET_PATH} bytes); use a folder with a shorter path", .0.display())]
    TooLong(PathBuf),
    /// The operating system refuses.
    #[error("cannot listen on {}", path.display())]
    Bind {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        #[source]
        err: io::Error,
    },
}

/// Running kubelets; dropping it ends them.
#[derive(Debug)]
pub struct Kubelets {
    folder: PathBuf,
    tasks: JoinSet<()>,
    ending: watch::Sender<bool>,
}

/// Path of node `node`'s socket in `folder`.
pub fn socket(folder: &Path, node: &str) -> PathBuf {
    folder.join(format!("{node}.sock"))
}

impl Kubelets {
    /// Lays a socket for every node into `folder`, which is there, and answers on all of them. One task a node.
    pub fn start(plan: &Arc<Plan>, clock: &SimClock, folder: &Path) -> Result<Self, SocketError> {
        let (ending, _) = watch::channel(false);
        let mut kubelets = Self { folder: folder.to_owned(), tasks: JoinSet::new(), ending };
        for (node, node_plan) in plan.nodes().iter().enumerate() {
            let path = kubelets.socket(&node_plan.name);
            if path.as_os_str().len() > MAX_SOCKET_PATH {
                return Err(SocketError::TooLong(path));
            }
            let bind = || {
                if path.exists() {
                    std::fs::remove_file(&path)?; // left behind by one that was killed
                }
                UnixListener::bind(&path)
            };
            let listener = bind().map_err(|err| SocketError::Bind { path: path.clone(), err })?;
            let kubelet = Kubelet { plan: plan.clone(), clock: clock.clone(), node };
            let mut end = kubelets.ending.subscribe();
            kubelets.tasks.spawn(async move {
                let shutdown = async move { drop(end.wait_for(|ending| *ending).await) };
                let serving = Server::builder()
                    .add_service(PodResourcesListerServer::new(kubelet))
                    .serve_with_incoming_shutdown(UnixListenerStream::new(listener), shutdown);
                if let Err(err) = serving.await {
                    tracing::warn!(socket = %path.display(), %err, "a kubelet socket ended");
                }
            });
        }
        Ok(kubelets)
    }

    /// Path of node `node`'s socket.
    pub fn socket(&self, node: &str) -> PathBuf {
        socket(&self.folder, node)
    }

    /// Lets running answers finish, then ends.
    pub async fn stop(mut self) {
        let _ = self.ending.send(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

struct Kubelet {
    plan: Arc<Plan>,
    clock: SimClock,
    node: usize,
}

/// What the kubelet of node `node` answers to List at `at`: its active pods with their devices, by namespace and name.
pub fn list(plan: &Plan, node: usize, at: Timestamp) -> ListPodResourcesResponse {
    let node = &plan.nodes()[node];
    let held = node.devices.iter().flat_map(|device| device.holders(at.ms()));
    let pods: BTreeMap<(&str, &str), usize> = held
        .map(|held| {
            let pod = &plan.pods()[held.pod];
            ((&*pod.namespace, &*pod.name), held.pod)
        })
        .collect();
    let pods = pods.into_iter().map(|((namespace, name), pod)| {
        let pod = &plan.pods()[pod];
        let slots: Vec<Slot> = pod.bound.iter().flat_map(|binding| binding.slots()).collect();
        PodResources {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            containers: vec![ContainerResources {
                name: CONTAINER.to_owned(),
                devices: by_numa(node, &pod.resource, &slots),
                ..ContainerResources::default()
            }],
            ..PodResources::default()
        }
    });
    ListPodResourcesResponse { pod_resources: pods.collect() }
}

/// What the kubelet of node `node` answers to GetAllocatableResources at `at`: its healthy devices, held or not.
pub fn allocatable(plan: &Plan, node: usize, at: Timestamp) -> AllocatableResourcesResponse {
    let node = &plan.nodes()[node];
    let healthy = |offer: &Offer| offer.slots.iter().filter_map(|slot| node.slot_at(*slot, at)).collect::<Vec<_>>();
    let devices = node.offers.iter().flat_map(|offer| by_numa(node, &offer.resource, &healthy(offer))).collect();
    AllocatableResourcesResponse { devices, ..AllocatableResourcesResponse::default() }
}

/// Kubelets give one entry for each resource and set of NUMA nodes; half of a node's GPUs are near each socket.
fn by_numa(node: &NodePlan, resource: &str, slots: &[Slot]) -> Vec<ContainerDevices> {
    let gpus = node.gpus();
    let near = |slot: &Slot| {
        let gpu = node.boards[node.devices[slot.device].board].index as usize;
        i64::from(2 * gpu >= gpus && gpus > 1)
    };
    let mut entries = Vec::new();
    for id in [0, 1] {
        let ids: Vec<String> = slots.iter().filter(|slot| near(slot) == id).map(|slot| node.plugin_id(*slot)).collect();
        if !ids.is_empty() {
            entries.push(ContainerDevices {
                resource_name: resource.to_owned(),
                device_ids: ids,
                topology: Some(TopologyInfo { nodes: vec![NumaNode { id }] }),
            });
        }
    }
    entries
}

impl Kubelet {
    /// A node that is gone answers nobody.
    fn answers(&self) -> Result<(), Status> {
        let now = self.clock.now().ms();
        let gone = self.plan.nodes()[self.node].spells.iter().any(|spell| spell.silent() && spell.holds(now));
        if gone { Err(Status::unavailable("the node is gone")) } else { Ok(()) }
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(&self, _: Request<ListPodResourcesRequest>) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.answers()?;
        Ok(Response::new(list(&self.plan, self.node, self.clock.now())))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        self.answers()?;
        Ok(Response::new(allocatable(&self.plan, self.node, self.clock.now())))
    }

    async fn get(&self, request: Request<GetPodResourcesRequest>) -> Result<Response<GetPodResourcesResponse>, Status> {
        self.answers()?;
        let GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let pods = list(&self.plan, self.node, self.clock.now()).pod_resources;
        let found = pods.into_iter().find(|pod| pod.name == pod_name && pod.namespace == pod_namespace);
        let missing = || Status::unknown(format!("pod {pod_name} in namespace {pod_namespace} not found"));
        Ok(Response::new(GetPodResourcesResponse { pod_resources: Some(found.ok_or_else(missing)?) }))
    }
}
