//! A node for clients to see: a folder with the library, and the variables.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
};

use exporter::{Collectors, Page, Renderer, Style};
use schemas::Timestamp;
use simulator::{
    FleetSpec, Plan,
    nvml::{self, Place, Setup, WallClock},
    plan::DevicePlan,
    state,
};

/// A folder of the tree.
pub fn tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A node, what is known of it, and what its clients are told.
pub struct World {
    folder: tempfile::TempDir,
    pub plan: Plan,
    pub node: usize,
    pub setup: Setup,
}

/// The small fleet's spec without misprints, which are the pages' and not the driver's.
pub fn small() -> String {
    let spec = std::fs::read_to_string(tree("kwok-fleet/fleets/small.yaml")).unwrap();
    let clean = spec.replace("blanks: 0.003", "blanks: 0").replace("out_of_range: 0.002", "out_of_range: 0");
    assert_ne!(spec, clean);
    clean
}

/// The small fleet with GPUs that are cut, and GPUs that are shared.
pub fn cut() -> String {
    let spec = small();
    let cut = spec.replacen(
        "gpus_per_node: 4",
        "gpus_per_node: 4\n        mig: [[3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb], [7g.80gb], [], []]",
        1,
    );
    let shared = cut.replacen("gpus_per_node: 2", "gpus_per_node: 2\n        replicas: 4", 1);
    let asked = shared.replacen(
        "notebook: 1 }",
        "notebook: 1 }\n    resources: { notebook: nvidia.com/mig-1g.10gb, batch: nvidia.com/mig-2g.20gb }",
        1,
    );
    assert!(cut != spec && shared != cut && asked != shared);
    asked
}

fn wall_ms() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64
}

impl World {
    /// Node `node` of a fleet whose clock shows `minute` minutes after the start and runs at `speed`.
    pub fn new(spec: &str, node: &str, minute: i64, speed: f64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The library lies where cargo leaves it for tests: beside this test.
        let library = nvml::beside(&std::env::current_exe().unwrap()).expect("cargo builds the library before its tests");
        let path = nvml::lay(folder.path(), &library, spec).unwrap();
        let start = FleetSpec::parse(spec).unwrap().start;
        let clock = WallClock { origin_ms: wall_ms(), origin: start.plus_ms(minute * 60_000), speed };
        let setup = Setup { spec: path, traces: None, node: node.to_owned(), seed: None, clock, script: None };
        let (plan, node) = setup.plan().unwrap();
        Self { folder, plan, node, setup }
    }

    /// The same, `seconds` of fleet time later: as good as standing there, with a beginning that is past.
    pub fn after(spec: &str, node: &str, minute: i64, seconds: i64) -> Self {
        let mut world = Self::new(spec, node, minute, 0.001);
        world.setup.clock.origin_ms -= seconds * 1_000_000;
        world
    }

    /// The same with a script of misbehaviour.
    pub fn with_script(mut self, text: &str) -> Self {
        let path = self.folder.path().join("script.yaml");
        std::fs::write(&path, text).unwrap();
        self.setup.script = Some(path);
        self
    }

    /// A command that sees the node.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, value) in self.setup.variables() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("LD_LIBRARY_PATH", nvml::search_path(self.folder.path(), None));
        command
    }

    /// Its devices, instances apart, and where they are in the plan.
    pub fn places(&self) -> Vec<(Place, &DevicePlan)> {
        let devices = self.plan.nodes()[self.node].devices.iter().enumerate();
        devices.map(|(n, device)| (Place { node: self.node, board: device.board, device: Some(n) }, device)).collect()
    }

    /// Fleet time of a stopped clock.
    pub fn at(&self) -> Timestamp {
        self.setup.clock.origin
    }

    /// The node's page then.
    pub fn page(&self) -> String {
        let (mut page, mut out) = (Page::new(), Vec::new());
        state::read_node(&self.plan, self.node, self.at(), &mut page);
        Renderer::new(Arc::new(Collectors::built_in()), Style::default()).render(&page, &mut out);
        String::from_utf8(out).unwrap()
    }

    /// Lines of the page as (name, UUID of the device, value as printed); an instance has its own UUID, as NVML gives it.
    pub fn lines(&self) -> Vec<(String, String, String)> {
        let page = self.page();
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        let parsed = lines.map(|line| {
            let (name, rest) = line.split_once('{').unwrap();
            let (labels, value) = rest.rsplit_once("} ").unwrap();
            let label = |name: &str| Some(labels.split_once(&format!("{name}=\""))?.1.split_once('"').unwrap().0);
            let (uuid, id) = (label("UUID").unwrap(), label("GPU_I_ID"));
            let is = |device: &&DevicePlan| {
                let instance = device.identity.instance.as_ref().map(|instance| instance.id.to_string());
                device.identity.uuid == uuid && instance.as_deref() == id
            };
            let device = self.plan.nodes()[self.node].devices.iter().find(is).unwrap();
            let own = device.instance.as_ref().map_or(uuid, |instance| &instance.uuid);
            (name.to_owned(), own.to_owned(), value.to_owned())
        });
        parsed.collect()
    }

    /// Runs test `name` of this program once more, in a process of its own that sees the node; in that process, runs `body`.
    pub fn seen_by(&self, name: &str) {
        let output = self.command(std::env::current_exe().unwrap()).args([name, "--exact", "--nocapture"]).output().unwrap();
        let said = text(&output);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}

/// Whether this process sees a node: then it is the one that a test has started.
pub fn is_client() -> bool {
    std::env::var_os(nvml::SPEC).is_some()
}

/// What a command said, both ways.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Python with the peers' packages: `./x python` makes it on the first call.
pub fn python() -> String {
    let made = Command::new(tree("x")).arg("python").output().unwrap();
    assert!(made.status.success(), "{}", text(&made));
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

/// A command's standard output, line by line as JSON; it must have succeeded.
pub fn json_lines(command: &mut Command) -> Vec<serde_json::Value> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let out = String::from_utf8(output.stdout).unwrap();
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
