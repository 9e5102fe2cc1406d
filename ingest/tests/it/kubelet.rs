//! A kubelet of ours: what it answers is set from outside.

use attribution::kubelet::v1alpha1::{self, pods_server};
use attribution::podres::v1;
use attribution::podres::v1::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use schemas::proto::Message;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::net::UnixListener;

/// Its pods.
#[derive(Clone, Default)]
pub struct Kubelet(pub Arc<Mutex<Vec<v1::PodResources>>>);

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(
        &self,
        _: tonic::Request<v1::ListPodResourcesRequest>,
    ) -> Result<tonic::Response<v1::ListPodResourcesResponse>, tonic::Status> {
        Ok(tonic::Response::new(v1::ListPodResourcesResponse { pod_resources: self.0.lock().unwrap().clone() }))
    }

    async fn get_allocatable_resources(
        &self,
        _: tonic::Request<v1::AllocatableResourcesRequest>,
    ) -> Result<tonic::Response<v1::AllocatableResourcesResponse>, tonic::Status> {
        Err(tonic::Status::unimplemented("not asked here"))
    }

    async fn get(
        &self,
        _: tonic::Request<v1::GetPodResourcesRequest>,
    ) -> Result<tonic::Response<v1::GetPodResourcesResponse>, tonic::Status> {
        Err(tonic::Status::unimplemented("not asked here"))
    }
}

impl Kubelet {
    pub fn start(socket: &Path) -> Self {
        let kubelet = Kubelet::default();
        let incoming = tokio_stream::wrappers::UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let service = PodResourcesListerServer::new(kubelet.clone());
        tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        kubelet
    }

    /// One pod of namespace ml more, with a device by a claim.
    pub fn claims(&self, pod: &str, claim: &str, pool: &str, device: &str) {
        let result = v1::ClaimResource {
            driver_name: "gpu.nvidia.com".into(),
            pool_name: pool.into(),
            device_name: device.into(),
            ..v1::ClaimResource::default()
        };
        let claim = v1::DynamicResource { claim_name: claim.into(), claim_namespace: "ml".into(), claim_resources: vec![result] };
        self.add(pod, v1::ContainerResources { name: "main".into(), dynamic_resources: vec![claim], ..Default::default() });
    }

    /// One pod of namespace ml more, with devices of the plugin.
    pub fn holds(&self, pod: &str, ids: &[&str]) {
        let devices = v1::ContainerDevices {
            resource_name: "nvidia.com/gpu".into(),
            device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            ..v1::ContainerDevices::default()
        };
        self.add(pod, v1::ContainerResources { name: "main".into(), devices: vec![devices], ..Default::default() });
    }

    fn add(&self, pod: &str, container: v1::ContainerResources) {
        let pod = v1::PodResources {
            name: pod.into(),
            namespace: "ml".into(),
            containers: vec![container],
            ..v1::PodResources::default()
        };
        self.0.lock().unwrap().push(pod);
    }
}

/// The Pods API of a kubelet of ours.
#[derive(Clone, Default)]
pub struct PodsApi(pub Arc<Mutex<Vec<v1alpha1::Pod>>>);

#[tonic::async_trait]
impl pods_server::Pods for PodsApi {
    async fn list_pods(
        &self,
        _: tonic::Request<v1alpha1::ListPodsRequest>,
    ) -> Result<tonic::Response<v1alpha1::ListPodsResponse>, tonic::Status> {
        let pods = self.0.lock().unwrap().iter().map(Message::encode_to_vec).collect();
        Ok(tonic::Response::new(v1alpha1::ListPodsResponse { pods }))
    }
}

impl PodsApi {
    pub fn start(socket: &Path) -> Self {
        let api = PodsApi::default();
        let incoming = tokio_stream::wrappers::UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let service = pods_server::PodsServer::new(api.clone());
        tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        api
    }

    /// The one pod of namespace ml that there is now: (name, UID, second of its bind); none: no pod.
    pub fn pod(&self, pod: Option<(&str, &str, i64)>) {
        let pod = pod.map(|(name, uid, bound_s)| {
            let gpus = v1alpha1::Quantity { string: "1".into() };
            let resources =
                v1alpha1::ResourceRequirements { limits: [("nvidia.com/gpu".to_owned(), gpus)].into(), ..Default::default() };
            v1alpha1::Pod {
                metadata: Some(v1alpha1::ObjectMeta {
                    name: name.into(),
                    namespace: "ml".into(),
                    uid: uid.into(),
                    labels: [("team".to_owned(), "search".to_owned())].into(),
                    ..v1alpha1::ObjectMeta::default()
                }),
                spec: Some(v1alpha1::PodSpec {
                    node_name: "n1".into(),
                    containers: vec![v1alpha1::Container { resources: Some(resources), ..v1alpha1::Container::default() }],
                    ..v1alpha1::PodSpec::default()
                }),
                status: Some(v1alpha1::PodStatus {
                    phase: "Running".into(),
                    conditions: vec![v1alpha1::PodCondition {
                        r#type: "PodScheduled".into(),
                        status: "True".into(),
                        last_transition_time: Some(v1alpha1::Time { seconds: bound_s, nanos: 0 }),
                    }],
                    ..v1alpha1::PodStatus::default()
                }),
            }
        });
        *self.0.lock().unwrap() = pod.into_iter().collect();
    }
}
