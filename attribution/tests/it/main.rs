//! The pod-resources cases, the generated client, and a kubelet on a real socket.

#![allow(clippy::unwrap_used)]

mod kubelet;
mod nodes;
mod pods;

use std::{fs, path::Path, time::Duration};

use attribution::{
    SocketError, conformance,
    podres::{
        Client,
        v1::{self, pod_resources_lister_server as server},
    },
};
use base64::Engine as _;
use serde_json::Value;

fn tree(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn generated_code_follows_the_proto() {
    for (proto, made, path) in
        [("podresources.proto", "v1.rs", "src/podres/v1.rs"), ("pods.proto", "v1alpha1.rs", "src/kubelet/v1alpha1.rs")]
    {
        let files = protox::compile([proto], [tree("proto")]).unwrap();
        let out = tempfile::tempdir().unwrap();
        tonic_prost_build::configure().out_dir(out.path()).compile_fds(files).unwrap();
        let code = fs::read_to_string(out.path().join(made)).unwrap();
        let path = tree(path);
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, &code).unwrap();
        }
        assert!(
            fs::read_to_string(path).unwrap_or_default() == code,
            "stale; run `UPDATE=1 cargo test --profile ci -p attribution` twice"
        );
    }
}

#[test]
fn every_podresources_case_passes_in_both_forms() {
    let cases = fs::read_to_string(tree("../tests/data/vectors/podresources.jsonl")).unwrap();
    let (mut count, mut failed) = (0, Vec::new());
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let wire = base64::engine::general_purpose::STANDARD.decode(case["list_response_pb_b64"].as_str().unwrap()).unwrap();
        for got in [conformance::from_json(line).unwrap(), conformance::from_wire(line, &wire).unwrap()] {
            count += 1;
            if !conformance::agrees(&got, &case) {
                failed.push(format!("{}\n  got      {got}\n  expected {} {}", case["name"], case["expect"], case["unmatched"]));
            }
        }
    }
    assert!(failed.is_empty(), "{} of {count} failed:\n{}", failed.len(), failed.join("\n"));
    assert_eq!(count, 82);
}

struct Kubelet(v1::ListPodResourcesResponse);

#[tonic::async_trait]
impl server::PodResourcesLister for Kubelet {
    async fn list(
        &self,
        _: tonic::Request<v1::ListPodResourcesRequest>,
    ) -> Result<tonic::Response<v1::ListPodResourcesResponse>, tonic::Status> {
        if self.0.pod_resources.is_empty() {
            return Err(tonic::Status::resource_exhausted("rejected by rate limit"));
        }
        Ok(tonic::Response::new(self.0.clone()))
    }

    async fn get_allocatable_resources(
        &self,
        _: tonic::Request<v1::AllocatableResourcesRequest>,
    ) -> Result<tonic::Response<v1::AllocatableResourcesResponse>, tonic::Status> {
        std::future::pending().await
    }

    async fn get(
        &self,
        asked: tonic::Request<v1::GetPodResourcesRequest>,
    ) -> Result<tonic::Response<v1::GetPodResourcesResponse>, tonic::Status> {
        let asked = asked.into_inner();
        match self.0.pod_resources.iter().find(|pod| pod.name == asked.pod_name && pod.namespace == asked.pod_namespace) {
            Some(pod) => Ok(tonic::Response::new(v1::GetPodResourcesResponse { pod_resources: Some(pod.clone()) })),
            None => Err(tonic::Status::unknown("pod not found")),
        }
    }
}

/// A kubelet in a runtime of its own: when that is shut down, its connections break too, as when a kubelet restarts.
fn serve(socket: &Path, kubelet: Kubelet) -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let incoming = {
        let _entered = runtime.enter();
        tokio_stream::wrappers::UnixListenerStream::new(tokio::net::UnixListener::bind(socket).unwrap())
    };
    let service = server::PodResourcesListerServer::new(kubelet);
    runtime.spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    runtime
}

#[tokio::test]
async fn a_client_reads_big_answers_and_outlives_the_kubelet() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kubelet.sock");
    let timeout = Duration::from_secs(20);
    let mut client = Client::new(&socket, timeout).unwrap();
    assert!(matches!(client.list().await, Err(SocketError::NoSocket { .. })));

    // More than gRPC's default limit of 4 MiB.
    let pod = |n: usize| v1::PodResources { name: format!("pod-{n}-{}", "x".repeat(1000)), ..Default::default() };
    let big = v1::ListPodResourcesResponse { pod_resources: (0..6000).map(pod).collect() };
    let running = serve(&socket, Kubelet(big.clone()));
    assert_eq!(client.list().await.unwrap().pod_resources.len(), 6000);
    let known = &big.pod_resources[7];
    assert_eq!(client.get("", &known.name).await.unwrap().as_ref(), Some(known));
    assert_eq!(client.get("", "gone").await.unwrap(), None);

    running.shutdown_background();
    fs::remove_file(&socket).unwrap();
    let restarted = serve(&socket, Kubelet(v1::ListPodResourcesResponse::default()));
    // The broken connection is found out at the next call or the one after.
    let limited = |answer: &Result<usize, SocketError>| {
        matches!(answer, Err(SocketError::Refused { code: tonic::Code::ResourceExhausted, .. }))
    };
    let (first, second) = (client.list().await, client.list().await);
    let codes = [first, second].map(|answer| answer.map(|list| list.pod_resources.len()));
    assert!(codes.iter().any(limited), "{codes:?}");
    restarted.shutdown_background();
}

#[tokio::test]
async fn a_kubelet_that_hangs_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kubelet.sock");
    let running = serve(&socket, Kubelet(v1::ListPodResourcesResponse::default()));
    let mut client = Client::new(&socket, Duration::from_millis(100)).unwrap();
    assert!(matches!(client.allocatable().await, Err(SocketError::Timeout { .. })));
    running.shutdown_background();
}
