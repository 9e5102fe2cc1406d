//! A real API server with its etcd on loopback: generated certificates, RBAC on, no kubelet and no scheduler. Nothing is mocked
//! but time passing: pods are bound by the test, as the scheduler would.

use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Pods of the namespace of [`Cluster::furnish`].
pub const PODS: &str = "/api/v1/namespaces/ml/pods";
const ADMIN: &str = "admin-of-the-test";

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The API server, its etcd, and a client with all rights.
pub struct Cluster {
    api: Option<Process>,
    _etcd: Process,
    pub port: u16,
    etcd_port: u16,
    ca: String,
    programs: PathBuf,
    pub dir: TempDir,
    pub admin: Client,
}

/// Folder of the programs; where they are missing, the test says what to run.
fn programs() -> PathBuf {
    let x = Path::new(env!("CARGO_MANIFEST_DIR")).join("../x");
    let found = Command::new(x).args(["cluster", "--where"]).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    PathBuf::from(String::from_utf8(found.stdout).unwrap().trim())
}

/// A port that nobody listens on now: neither program takes port 0.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Cluster {
    pub async fn start() -> Self {
        let programs = programs();
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let (etcd_port, peer_port, port) = (free_port(), free_port(), free_port());

        let ca_key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let ca = CertifiedIssuer::self_signed(ca, ca_key).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();
        let account = KeyPair::generate().unwrap();
        std::fs::write(file("server.crt"), certificate.pem()).unwrap();
        std::fs::write(file("server.key"), key.serialize_pem()).unwrap();
        std::fs::write(file("account.key"), account.serialize_pem()).unwrap();
        std::fs::write(file("account.pub"), account.public_key_pem()).unwrap();
        std::fs::write(file("tokens.csv"), format!("{ADMIN},admin,admin,\"system:masters\"\n")).unwrap();
        let ca = ca.pem();

        let client_url = format!("http://127.0.0.1:{etcd_port}");
        let peer_url = format!("http://127.0.0.1:{peer_port}");
        let etcd = Command::new(programs.join("etcd"))
            .args(["--name", "test", "--log-level", "error", "--unsafe-no-fsync", "--data-dir"])
            .arg(file("etcd"))
            .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("test={peer_url}")])
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(file("etcd.log")).unwrap())
            .spawn()
            .unwrap();
        let admin = client(port, &ca, ADMIN).await;
        let mut cluster = Cluster { api: None, _etcd: Process(etcd), port, etcd_port, ca, programs, dir, admin };
        cluster.start_api().await;
        cluster
    }

    /// Starts the API server on its port, and waits until it is ready.
    pub async fn start_api(&mut self) {
        let file = |name: &str| self.dir.path().join(name).display().to_string();
        let api = Command::new(self.programs.join("kube-apiserver"))
            .args(["--etcd-servers", &format!("http://127.0.0.1:{}", self.etcd_port)])
            .args(["--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--endpoint-reconciler-type", "none"])
            .args(["--secure-port", &self.port.to_string(), "--service-cluster-ip-range", "10.0.0.0/24"])
            .args(["--tls-cert-file", &file("server.crt"), "--tls-private-key-file", &file("server.key")])
            .args(["--service-account-issuer", "https://kubernetes.default.svc"])
            .args(["--service-account-signing-key-file", &file("account.key")])
            .args(["--service-account-key-file", &file("account.pub")])
            .args(["--token-auth-file", &file("tokens.csv"), "--authorization-mode", "RBAC"])
            // Without a controller manager no namespace has a default account, which pods would need.
            .args(["--disable-admission-plugins", "ServiceAccount"])
            .args(["--etcd-compaction-interval", "0"])
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(self.dir.path().join("api.log")).unwrap())
            .spawn()
            .unwrap();
        self.api = Some(Process(api));
        let began = Instant::now();
        while self.try_call("GET", "/readyz", None).await.is_err() {
            let ended = self.api.as_mut().unwrap().0.try_wait().unwrap();
            assert!(
                ended.is_none() && began.elapsed() < Duration::from_secs(90),
                "the API server is not ready ({ended:?}): {}",
                std::fs::read_to_string(self.dir.path().join("api.log")).unwrap_or_default()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Ends the API server as a crash would.
    pub fn stop_api(&mut self) {
        self.api = None;
    }

    /// Makes etcd forget everything older than now.
    pub fn compact(&self) {
        use std::io::{Read, Write};
        let ask = |path: &str, body: String| {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.etcd_port)).unwrap();
            let length = body.len();
            write!(stream, "POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
                .unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            answer
        };
        let answer = ask("/v3/kv/range", json!({"key": "AA=="}).to_string());
        let revision = answer.split("\"revision\":\"").nth(1).unwrap().split('"').next().unwrap();
        ask("/v3/kv/compaction", json!({"revision": revision, "physical": true}).to_string());
    }

    pub async fn try_call(&self, method: &str, path: &str, body: Option<Value>) -> Result<Value, String> {
        let merge = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = hyper::Request::builder().method(method).uri(path).header("content-type", merge).body(Body::from(body));
        let answer = self.admin.send(request.unwrap()).await.map_err(|e| e.to_string())?;
        let status = answer.status();
        let bytes = answer.into_body().collect_bytes().await.map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&bytes);
        match status.is_success() {
            true => Ok(serde_json::from_str(&text).unwrap_or(Value::Null)),
            false => Err(format!("{method} {path}: {status}: {text}")),
        }
    }

    /// A request as administrator, which must succeed.
    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        self.try_call(method, path, body).await.unwrap()
    }

    /// Creates every object of a manifest, where it is not there yet.
    pub async fn apply(&self, manifest: &str) {
        for document in serde_yaml_ng::Deserializer::from_str(manifest) {
            let object: Value = serde::Deserialize::deserialize(document).unwrap();
            let (group, plural) = match object["kind"].as_str().unwrap() {
                "Namespace" => ("/api/v1", "namespaces"),
                "ServiceAccount" => ("/api/v1", "serviceaccounts"),
                "ClusterRole" => ("/apis/rbac.authorization.k8s.io/v1", "clusterroles"),
                "ClusterRoleBinding" => ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
                "Role" => ("/apis/rbac.authorization.k8s.io/v1", "roles"),
                "RoleBinding" => ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
                other => panic!("no path for a {other}"),
            };
            let path = match object["metadata"]["namespace"].as_str() {
                Some(namespace) => format!("{group}/namespaces/{namespace}/{plural}"),
                None => format!("{group}/{plural}"),
            };
            self.call("POST", &path, Some(object)).await;
        }
    }

    /// A kubeconfig for a service account, by way of `port`.
    pub async fn kubeconfig(&self, namespace: &str, account: &str, port: u16) -> PathBuf {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let token = self.call("POST", &path, Some(request)).await["status"]["token"].as_str().unwrap().to_owned();
        let file = self.dir.path().join(format!("{account}-{port}.kubeconfig"));
        std::fs::write(&file, kubeconfig(port, &self.ca, &token).to_string()).unwrap();
        file
    }
}

impl Cluster {
    pub async fn create(&self, path: &str, object: Value) -> Value {
        self.call("POST", path, Some(object)).await
    }

    /// Binds a pod as the scheduler does.
    pub async fn bind(&self, pod: &str, node: &str) {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        self.call("POST", &format!("{PODS}/{pod}/binding"), Some(binding)).await;
    }

    pub async fn delete(&self, pod: &str) {
        self.call("DELETE", &format!("{PODS}/{pod}?gracePeriodSeconds=0"), None).await;
    }

    /// A namespace with a team, a node with eight GPUs.
    pub async fn furnish(&self) {
        self.apply(&rbac()).await;
        self.create("/api/v1/namespaces", json!({"metadata": {"name": "ml", "labels": {"team": "search"}}})).await;
        let labels = json!({
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "topology.kubernetes.io/region": "r1",
            "karpenter.sh/capacity-type": "spot",
        });
        self.create("/api/v1/nodes", json!({"metadata": {"name": "n1", "labels": labels}, "spec": {"providerID": "aws:///z/i"}}))
            .await;
        let gpus = json!({"nvidia.com/gpu": "8"});
        let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let status = json!({"status": {"capacity": gpus, "allocatable": gpus, "conditions": ready}});
        self.call("PATCH", "/api/v1/nodes/n1/status", Some(status)).await;
        self.create("/api/v1/nodes", json!({"metadata": {"name": "cpu-1"}})).await;
    }

    /// A claim of namespace ml that looks at `device` of node n1 without holding it.
    pub async fn claim_with_admin_access(&self, name: &str, device: &str) {
        let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
        self.call("PATCH", "/api/v1/namespaces/ml", Some(label)).await;
        let claims = "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims";
        let request = json!({"name": "all", "exactly": {"deviceClassName": "gpu.nvidia.com", "adminAccess": true}});
        let claim = json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}});
        self.create(claims, claim).await;
        let result = json!({"request": "all", "driver": "gpu.nvidia.com", "pool": "n1", "device": device, "adminAccess": true});
        let status = json!({"status": {"allocation": {"devices": {"results": [result]}}}});
        self.call("PATCH", &format!("{claims}/{name}/status"), Some(status)).await;
    }

    /// An exporter's pod on `node` that runs, with its page on this machine's `port`.
    pub async fn exporter(&self, name: &str, node: &str, port: &str) {
        let mut exporter = pod(name, 0, None, json!({"nodeName": node}));
        exporter["metadata"]["labels"] = json!({"app.kubernetes.io/name": "dcgm-exporter"});
        exporter["metadata"]["annotations"] = json!({"prometheus.io/port": port});
        self.create(PODS, exporter).await;
        let status = json!({"status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
        self.call("PATCH", &format!("{PODS}/{name}/status"), Some(status)).await;
    }
}

fn rbac() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/rbac.yaml")).unwrap()
}

/// Waits until `found` finds something, at most a minute.
pub async fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no {what} within a minute");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub fn pod(name: &str, gpus: u32, owner: Option<&Value>, more: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "labels": {"kueue.x-k8s.io/queue-name": "night"}},
        "spec": {"containers": [{"name": "main", "image": "x"}], "terminationGracePeriodSeconds": 0},
    });
    if gpus > 0 {
        pod["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": gpus.to_string()}});
    }
    if let Some(owner) = owner {
        pod["metadata"]["ownerReferences"] = json!([reference(owner)]);
    }
    for (key, value) in more.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

pub fn reference(owner: &Value) -> Value {
    json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "controller": true,
    })
}

/// JSON is YAML.
fn kubeconfig(port: u16, ca: &str, token: &str) -> Value {
    use base64::Engine as _;
    let ca = base64::engine::general_purpose::STANDARD.encode(ca);
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "t", "cluster": {"server": format!("https://127.0.0.1:{port}"), "certificate-authority-data": ca}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "t", "user": "u"}}],
        "current-context": "c",
    })
}

async fn client(port: u16, ca: &str, token: &str) -> Client {
    let file: Kubeconfig = serde_json::from_value(kubeconfig(port, ca, token)).unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// A pass-through in front of the API server that can be cut.
pub struct Wire {
    pub port: u16,
    cut: tokio::sync::watch::Sender<bool>,
}

impl Wire {
    pub async fn to(port: u16) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let (cut, is_cut) = tokio::sync::watch::channel(false);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut is_cut = is_cut.clone();
                tokio::spawn(async move {
                    if *is_cut.borrow_and_update() {
                        return;
                    }
                    let Ok(mut far) = tokio::net::TcpStream::connect(("127.0.0.1", port)).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = is_cut.changed() => {}
                    }
                });
            }
        });
        Wire { port: own, cut }
    }

    /// Breaks every connection, and lets none through until it is mended.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    pub fn mend(&self) {
        self.cut.send_replace(false);
    }
}
