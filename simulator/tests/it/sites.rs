//! Where pages are: behind one listener, at a port a node, and the file that says so.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use simulator::serve::{self, Listening};

use crate::fleet;

/// Ended by its own id when it goes.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_file_of_targets_names_every_page_at_a_port_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nodes.json");
    let spec = format!("{}/../kwok-fleet/fleets/small.yaml", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_strandline-sim"));
    command.args([
        "serve",
        &spec,
        "--listen",
        "0",
        "--port-per-node",
        "0",
        "--hostname-label",
        "classic",
        "--pod-labels",
        "false",
    ]);
    command.args(["--speed", "0", "--start", "2026-03-02T01:00:00Z", "--file-sd"]).arg(&file);
    let server = Server(command.stderr(Stdio::null()).spawn().unwrap());
    let began = Instant::now();
    while !file.exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "no file of targets");
        std::thread::sleep(Duration::from_millis(20));
    }
    let groups: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let groups = groups.as_array().unwrap();
    let plan = fleet("small");
    assert_eq!(groups.len(), plan.nodes().len());
    for (group, node) in groups.iter().zip(plan.nodes()) {
        assert_eq!((&group["labels"]["node"], &group["labels"]["__metrics_path__"]), (&(*node.name).into(), &"/metrics".into()));
        let page = get(group["targets"][0].as_str().unwrap(), "/metrics");
        assert!(page.starts_with("HTTP/1.1 200"), "{page}");
        let line = page.lines().find(|line| line.starts_with("DCGM_FI_DEV_GPU_UTIL{")).unwrap();
        assert!(line.contains(&format!(",Hostname=\"{}\"", node.name)), "{line}");
        assert!(!page.contains("pod="), "no pod labels were asked for");
        for device in &node.devices {
            assert!(page.contains(&device.identity.uuid), "the page is that node's own");
        }
    }
    drop(server);
}

#[test]
fn a_web_config_file_is_for_every_page() {
    let folder = tempfile::tempdir().unwrap();
    let (file, config) = (folder.path().join("nodes.json"), folder.path().join("web.yml"));
    let users = "basic_auth_users: {prometheus: $2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi}\n";
    std::fs::write(&config, users).unwrap();
    let spec = format!("{}/../kwok-fleet/fleets/small.yaml", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_strandline-sim"));
    command.args(["serve", &spec, "--listen", "0", "--port-per-node", "0"]);
    command.arg("--file-sd").arg(&file).arg("--web-config-file").arg(&config);
    let server = Server(command.stderr(Stdio::null()).spawn().unwrap());
    let began = Instant::now();
    while !file.exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "no file of targets");
        std::thread::sleep(Duration::from_millis(20));
    }
    let groups: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    for group in groups.as_array().unwrap() {
        let page = get(group["targets"][0].as_str().unwrap(), "/metrics");
        assert!(page.starts_with("HTTP/1.1 401") && page.contains("www-authenticate: Basic\r\n"), "{page}");
    }
    drop(server);
}

#[test]
fn one_listener_has_a_path_a_node_and_every_interface_is_named_by_loopback() {
    let plan = fleet("small");
    let groups = serve::targets(&plan, &Listening::Together("0.0.0.0:9500".parse().unwrap()), Some("/tmp/k".as_ref()));
    let text = serde_json::to_string(&groups[0]).unwrap();
    assert_eq!(
        text,
        "{\"targets\":[\"127.0.0.1:9500\"],\"labels\":{\"__metrics_path__\":\"/nodes/h100-0/metrics\",\
         \"__podres_socket__\":\"/tmp/k/h100-0.sock\",\"cluster\":\"lab\",\"node\":\"h100-0\"}}"
    );
}
