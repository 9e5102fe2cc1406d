//! The kubelet's Pods API against a kubelet of ours on a real socket: a node's pods become holdings as the API server's do.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use attribution::{
    SocketError,
    kubelet::{
        Client, json_of,
        v1alpha1::{self as api, pods_server},
    },
    pods::{Book, Options, Receipt},
};
use prost::Message;
use schemas::Timestamp;

/// Its pods; none: it is starting.
#[derive(Clone, Default)]
struct Kubelet(Arc<Mutex<Option<Vec<api::Pod>>>>);

#[tonic::async_trait]
impl pods_server::Pods for Kubelet {
    async fn list_pods(
        &self,
        _: tonic::Request<api::ListPodsRequest>,
    ) -> Result<tonic::Response<api::ListPodsResponse>, tonic::Status> {
        let pods = self.0.lock().unwrap().clone();
        let pods = pods.ok_or_else(|| tonic::Status::failed_precondition("Kubelet is initializing"))?;
        let mut pods: Vec<Vec<u8>> = pods.iter().map(Message::encode_to_vec).collect();
        pods.push(b"\xff\xff no pod".to_vec());
        Ok(tonic::Response::new(api::ListPodsResponse { pods }))
    }
}

fn serve(socket: &Path, kubelet: Kubelet) {
    let incoming = tokio_stream::wrappers::UnixListenerStream::new(tokio::net::UnixListener::bind(socket).unwrap());
    let service = pods_server::PodsServer::new(kubelet);
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
}

const T: i64 = 1_772_445_600;

fn at(second: i64) -> Option<api::Time> {
    Some(api::Time { seconds: T + second, nanos: 0 })
}

fn pod() -> api::Pod {
    let gpus = api::Quantity { string: "2".into() };
    let resources = api::ResourceRequirements { limits: [("nvidia.com/gpu".to_owned(), gpus)].into(), ..Default::default() };
    let owner = api::OwnerReference { kind: "Job".into(), name: "night".into(), controller: true };
    api::Pod {
        metadata: Some(api::ObjectMeta {
            name: "p".into(),
            namespace: "ml".into(),
            uid: "u-1".into(),
            creation_timestamp: at(0),
            // Go's zero time is no time.
            deletion_timestamp: Some(api::Time { seconds: -62_135_596_800, nanos: 0 }),
            labels: [("team".to_owned(), "search".to_owned())].into(),
            owner_references: vec![owner],
            ..api::ObjectMeta::default()
        }),
        spec: Some(api::PodSpec {
            node_name: "n1".into(),
            containers: vec![api::Container { name: "main".into(), resources: Some(resources), ..api::Container::default() }],
            ..api::PodSpec::default()
        }),
        status: Some(api::PodStatus {
            phase: "Running".into(),
            conditions: vec![api::PodCondition {
                r#type: "PodScheduled".into(),
                status: "True".into(),
                last_transition_time: at(5),
            }],
            container_statuses: vec![api::ContainerStatus {
                name: "main".into(),
                state: Some(api::ContainerState {
                    running: Some(api::ContainerStateRunning { started_at: at(9) }),
                    terminated: None,
                }),
                last_state: None,
            }],
            ..api::PodStatus::default()
        }),
    }
}

#[tokio::test]
async fn a_nodes_pods_become_holdings() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("pods.sock");
    let mut client = Client::new(&socket, Duration::from_secs(20)).unwrap();
    assert!(matches!(client.list().await, Err(SocketError::NoSocket { .. })));
    let kubelet = Kubelet::default();
    serve(&socket, kubelet.clone());
    let said = client.list().await.unwrap_err();
    assert!(said.to_string().contains("Kubelet is initializing"), "{said}");
    *kubelet.0.lock().unwrap() = Some(vec![pod()]);

    let mut book = Book::new(Options::default());
    let mut listed = async |second: i64| {
        let pods = client.list().await.unwrap();
        let refused = book.relist(pods.iter().map(Vec::as_slice), None, Receipt::at(Timestamp::from_ms((T + second) * 1000)));
        assert_eq!(refused.len(), 1, "what is no pod costs no other");
        book.take_changes().into_iter().flat_map(|state| state.holdings).collect::<Vec<_>>()
    };
    let held = listed(20).await.remove(0);
    assert_eq!((held.uid.as_str(), &*held.namespace, &*held.pod, held.node.as_str()), ("u-1", "ml", "p", "n1"));
    assert_eq!((held.count, held.team.as_str(), held.workload.as_str()), (2, "search", "Job/night"));
    assert_eq!((held.bound, held.bind_inferred, held.started), ((T + 5) * 1000, false, Some((T + 9) * 1000)));
    assert_eq!((held.ended, held.terminating_from), (None, None));
    assert!(listed(30).await.is_empty(), "nothing new");
    *kubelet.0.lock().unwrap() = Some(Vec::new());
    let held = listed(40).await.remove(0);
    assert_eq!((held.ended, held.end_inferred), (Some((T + 40) * 1000), true));
}

#[test]
fn no_bytes_are_too_odd_to_be_read() {
    for bytes in [&b""[..], b"\x0a\x02\x08", &[0xff; 64], &pod().encode_to_vec()[..40]] {
        assert!(serde_json::from_slice::<serde_json::Value>(&json_of(bytes)).is_ok());
    }
    let far = api::ObjectMeta { creation_timestamp: Some(api::Time { seconds: i64::MAX, nanos: -1 }), ..Default::default() };
    let odd = api::Pod { metadata: Some(far), ..api::Pod::default() };
    let json: serde_json::Value = serde_json::from_slice(&json_of(&odd.encode_to_vec())).unwrap();
    assert!(json["metadata"]["creationTimestamp"].is_null());
}
