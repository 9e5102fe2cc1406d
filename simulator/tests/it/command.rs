//! The binary: what it prints and how it exits.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::{Command, Output},
};

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_strandline-sim")).args(arguments).output().unwrap()
}

fn small() -> String {
    format!("{}/../kwok-fleet/fleets/small.yaml", env!("CARGO_MANIFEST_DIR"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn check_explains_a_fleet() {
    let said = sim(&["check", &small()]);
    assert!(said.status.success());
    assert!(text(&said.stdout).starts_with("fleet small, seed 7\n2 nodes, 6 GPUs, 2 hours: 12 GPU-hours\n"), "{said:?}");
    let said = sim(&["check", &small(), "--format", "json", "--seed", "9"]);
    let json: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!((&json["gpus"], &json["seed"], &json["scrapes"]), (&6.into(), &9.into(), &480.into()));
}

#[test]
fn wrong_specs_and_windows_exit_2_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let typo = folder.path().join("typo.yaml");
    let good = std::fs::read_to_string(small()).unwrap();
    std::fs::write(&typo, good.replace("gpus_per_node: 4", "gpus_per_nod: 4")).unwrap();
    let small = small();
    let mixed = small.replace("small.yaml", "mixed.yaml");
    let typo = typo.to_str().unwrap();
    for (arguments, says) in [
        (vec!["check", typo], "unknown key `gpus_per_nod`; did you mean `gpus_per_node`?"),
        (vec!["check", "/no/such/fleet.yaml"], "cannot read the fleet spec /no/such/fleet.yaml"),
        (vec!["truth", &small, "--from", "2026-03-02T01:00:00Z", "--to", "2026-03-02T01:00:00Z"], "is empty or reversed"),
        (vec!["truth", &small, "--to", "2026-03-03T00:00:00Z"], "the fleet is planned from"),
        (vec!["serve", &small, "--speed=-1"], "--speed"),
        (vec!["serve", &small, "--listen", "nowhere"], "no address to listen on"),
        (
            vec!["serve", &small, "--listen", "0", "--web-config-file", "/no/such/web.yml"],
            "--web-config-file: cannot read /no/such/web.yml; check the path",
        ),
        (
            vec!["serve", &small, "--start", "2026-03-01T00:00:00Z"],
            "--start is before the fleet's start, 2026-03-02T00:00:00.000Z; give that or a later time",
        ),
        (vec!["serve", &small, "--listen", "0", "--port-per-node", "65535"], "would end above 65535; begin lower"),
        (vec!["objects", &small, "--at", "2027-01-01T00:00:00Z"], "is outside the fleet's time"),
        (vec!["objects", &small, "--cluster", "moon"], "--cluster moon: the fleet has no such cluster, only lab"),
        (vec!["backfill", &small], "--lake"),
        (vec!["backfill", &small, "--frames", "-", "--to", "2027-01-01T00:00:00Z"], "take a window inside that"),
        (vec!["fidelity", "--preset", "mars"], "`mars` is no preset; there are acme-seren, philly, openb, genai-serving"),
        (vec!["nvml", &small, "--node", "h100-1", "--", "true"], "no node is called `h100-1`; did you mean `h100-0`?"),
        (vec!["nvml", &small, "--node", "h100-0", "--start", "2026-03-01T00:00:00Z", "--", "true"], "before the fleet's start"),
        (
            vec!["nvml", &mixed, "--node", "mi300x-0", "--", "true"],
            "`mi300x-0` has AMD Instinct MI300X, which NVML knows nothing of",
        ),
        (vec!["nvml", &small, "--node", "h100-0", "--speed=1e9", "--", "true"], "--speed"),
        (vec!["nvml", &small, "--node", "h100-0", "--library", "/no/such.so", "--", "true"], "--library /no/such.so"),
        (vec!["nvml", &small, "--node", "h100-0", "--script", typo, "--", "true"], "unknown field `name`"),
        (vec!["nvml", &small, "--node", "h100-0"], "<COMMAND>"),
        (vec!["dance"], "unrecognized subcommand"),
    ] {
        let said = sim(&arguments);
        assert_eq!(said.status.code(), Some(2), "{arguments:?}: {said:?}");
        assert!(text(&said.stderr).contains(says), "{arguments:?}: {}", text(&said.stderr));
    }
}

#[test]
fn truth_prints_rows_in_three_forms() {
    let csv = text(&sim(&["truth", &small(), "--format", "csv"]).stdout);
    let rows = csv.lines().count() - 1;
    assert!(csv.starts_with("hour_start,cluster,node,device,") && rows > 12, "{csv}");
    let json = text(&sim(&["truth", &small(), "--format", "json"]).stdout);
    assert_eq!(json.lines().count(), rows);
    let sum: i64 =
        json.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["ms"].as_i64().unwrap()).sum();
    assert_eq!(sum, 12 * schemas::HOUR_MS);
    let table = text(&sim(&["truth", &small(), "--what", "faults"]).stdout);
    assert!(table.starts_with("cluster  node") && table.contains("exporter_down"), "{table}");
    let holdings = text(&sim(&["truth", &small(), "--what", "holdings", "--format", "csv"]).stdout);
    assert!(holdings.lines().next().unwrap().contains("true_bound"), "{holdings}");
}

#[test]
fn help_has_examples() {
    for arguments in [
        &["--help"][..],
        &["serve", "--help"],
        &["objects", "--help"],
        &["backfill", "--help"],
        &["fidelity", "--help"],
        &["nvml", "--help"],
        &["truth", "--help"],
        &["check", "--help"],
    ] {
        let said = sim(arguments);
        assert!(said.status.success() && text(&said.stdout).contains("Example"), "{arguments:?}");
    }
}

/// `strandline-sim nvml` for the small fleet, with a file in the place of the library: what it does around a command.
fn nvml(folder: &std::path::Path) -> Command {
    let library = folder.join("library.so");
    std::fs::write(&library, "").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_strandline-sim"));
    command.args(["nvml", &small(), "--node", "h100-0", "--start", "2026-03-02T01:00:00Z", "--speed", "60", "--library"]);
    command.arg(library).arg("--folder").arg(folder.join("laid")).env_remove("LD_LIBRARY_PATH");
    command
}

#[test]
fn nvml_becomes_the_command_and_its_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    let show = "readlink $LD_LIBRARY_PATH/libnvidia-ml.so.1; echo $STRANDLINE_SIM_NODE $STRANDLINE_SIM_ORIGIN \
                $STRANDLINE_SIM_SPEED ${STRANDLINE_SIM_SEED:-none}; cat $STRANDLINE_SIM_SPEC | wc -c; exit 7";
    let said = nvml(folder.path()).args(["--", "sh", "-c", show]).output().unwrap();
    assert_eq!(said.status.code(), Some(7), "{said:?}");
    let bytes = std::fs::metadata(small()).unwrap().len();
    let library = folder.path().canonicalize().unwrap().join("library.so");
    let wanted = format!("{}\nh100-0 2026-03-02T01:00:00.000Z 60 none\n{bytes}\n", library.display());
    assert_eq!(text(&said.stdout), wanted);

    let said = nvml(folder.path()).args(["--", "no-such-command"]).output().unwrap();
    assert_eq!(said.status.code(), Some(2));
    assert!(text(&said.stderr).contains("cannot run `no-such-command`"), "{said:?}");
}

#[test]
fn nvml_prints_its_variables_for_a_shell() {
    let folder = tempfile::tempdir().unwrap();
    let odd = folder.path().join("it's odd");
    std::fs::create_dir(&odd).unwrap();
    let printed = text(&nvml(&odd).args(["--seed", "9", "--print-env"]).output().unwrap().stdout);
    let script =
        format!("{printed}test -e \"$LD_LIBRARY_PATH/libnvidia-ml.so.1\" && echo $STRANDLINE_SIM_SEED $STRANDLINE_SIM_ORIGIN");
    let said = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(text(&said.stdout), "9 2026-03-02T01:00:00.000Z\n", "{printed}");
}

#[test]
fn signals_reach_the_command() {
    use std::io::{BufRead, BufReader};
    let folder = tempfile::tempdir().unwrap();
    let wait = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let mut command = nvml(folder.path());
    let mut child = command.args(["--", "sh", "-c", wait]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn the_published_schema_is_the_one_of_the_code() {
    let path = format!("{}/../kwok-fleet/fleet.schema.json", env!("CARGO_MANIFEST_DIR"));
    let printed = text(&sim(&["schema"]).stdout);
    let published = std::fs::read_to_string(path).unwrap();
    let schema: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let published: serde_json::Value = serde_json::from_str(&published).unwrap();
    assert!(published == schema, "write it anew: strandline-sim schema > kwok-fleet/fleet.schema.json");
    let keys = &schema["properties"];
    for key in ["clusters", "teams", "faults", "time_zone"] {
        assert!(keys[key].is_object(), "{key}");
    }
    assert_eq!(schema["additionalProperties"], false);
}

#[test]
fn series_are_counted_as_pages_have_them() {
    for name in ["small", "demo", "mixed"] {
        let spec = small().replace("small", name);
        let said = sim(&["check", &spec, "--format", "json"]);
        let told: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
        let plan = crate::fleet(name);
        let mut by_metric: BTreeMap<String, u64> = BTreeMap::new();
        let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in 0..plan.nodes().len() {
            let page = text(&crate::text(&plan, node, plan.window().from()));
            for line in page.lines().filter(|line| !line.starts_with('#')) {
                let (metric, rest) = line.split_once('{').unwrap();
                *by_metric.entry(metric.to_owned()).or_default() += 1;
                for pair in rest.rsplit_once('}').unwrap().0.split("\",") {
                    let (label, value) = pair.split_once("=\"").unwrap();
                    labels.entry(label.to_owned()).or_default().insert(value.trim_end_matches('"').to_owned());
                }
            }
        }
        assert_eq!(told["series_by_metric"], serde_json::json!(by_metric), "{name}");
        let counts: BTreeMap<&String, usize> = labels.iter().map(|(label, values)| (label, values.len())).collect();
        assert_eq!(told["label_values"], serde_json::json!(counts), "{name}");
        assert_eq!(told["series"], by_metric.values().sum::<u64>());
    }
}

/// One bad spec of each kind: from the good one by a replacement, the text that stands on the line at fault, and what is said.
#[test]
fn every_bad_spec_is_refused_with_its_file_line_and_key() {
    let good = std::fs::read_to_string(small()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (name, from, to, at, says) in [
        (
            "unplaceable",
            "gpus_per_node: 4",
            "gpus_per_node: 4\n        mig: [4g.40gb, 4g.40gb]",
            "mig: ",
            "mig: [4g.40gb, 4g.40gb] cannot be placed",
        ),
        (
            "no-profile",
            "gpus_per_node: 4",
            "gpus_per_node: 4\n        mig: [9g.90gb]",
            "mig: ",
            "has no MIG profile `9g.90gb`; it has 1g.10gb",
        ),
        (
            "product",
            "NVIDIA L4",
            "NVIDIA L5",
            "NVIDIA L5",
            "node_pools[1].product: no product is called `NVIDIA L5`; did you mean `NVIDIA L4`?",
        ),
        (
            "resource",
            "weight: 2",
            "weight: 2\n    resources: { training: nvidia.com/gpu.shared }",
            "resources: ",
            "teams[0].resources.training: no node",
        ),
        ("gang", "weight: 2", "weight: 2\n    gangs: { share: 0.5, nodes: 2 }", "gangs: ", "teams[0].gangs.nodes: 2 nodes"),
        ("rate", "lost_scrapes: 0.01", "lost_scrapes: -0.01", "lost_scrapes: ", "faults.lost_scrapes: -0.01 is not a share"),
        (
            "per-day",
            "xid: { per_gpu_day: 3 }",
            "xid: { per_gpu_day: -3 }",
            "xid: ",
            "per_gpu_day: -3 is not a number of events a day",
        ),
        ("pools", "name: l4\n", "name: h100\n", "name: h100\n", "node_pools[1].name: `h100` is the name of another pool"),
        (
            "windows",
            "nodes: h100-*, kind: not_ready, from: 100m",
            "nodes: h100-*, kind: cordon, from: 80m",
            "from: 80m",
            "faults.windows[2].from: the spell overlaps",
        ),
        ("before", "from: 40m", "from: -40m", "from: -40m", "`-40m` is no length of time"),
        ("too-long", "from: 40m", "from: 36526d", "from: 36526d", "`36526d` is longer than 36525d, a hundred years"),
        ("beyond", "from: 40m", "from: 4000m", "from: 4000m", "is beyond the fleet's 2 hours"),
        ("weight", "weight: 1", "weight: -1", "weight: -1", "teams[1].weight: -1 is not above 0"),
    ] {
        assert!(good.contains(from), "{name}: the test's own replacement finds nothing");
        let bad = good.replacen(from, to, 1);
        let file = folder.path().join(format!("{name}.yaml"));
        std::fs::write(&file, &bad).unwrap();
        let said = sim(&["check", file.to_str().unwrap()]);
        assert_eq!(said.status.code(), Some(2), "{name}: {said:?}");
        let said = text(&said.stderr);
        let line = bad[..bad.rfind(at).unwrap()].lines().count().max(1);
        let line = if bad[..bad.rfind(at).unwrap()].ends_with('\n') { line + 1 } else { line };
        assert!(said.contains(&format!("{}: line {line}: ", file.display())), "{name}, line {line}: {said}");
        assert!(said.contains(says), "{name}: {said}");
    }
    let said = sim(&["serve", &small(), "--start", "2026-03-01T23:59:59Z", "--listen", "0"]);
    assert_eq!(said.status.code(), Some(2));
    assert!(text(&said.stderr).contains("--start is before the fleet's start, 2026-03-02T00:00:00"), "{said:?}");
}

#[test]
fn what_is_too_much_is_refused_in_bounded_memory_and_words() {
    let said = sim(&["check", "/dev/zero"]);
    assert_eq!(said.status.code(), Some(2));
    assert!(text(&said.stderr).contains("/dev/zero is longer than 4194304 bytes"), "{said:?}");
    let folder = tempfile::tempdir().unwrap();
    let good = std::fs::read_to_string(small()).unwrap();
    let file = folder.path().join("fleet.yaml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, format!("{good}\nreplay: {{ jobs: {{ form: philly-jobs, file: /dev/zero }} }}\n")).unwrap();
    let said = sim(&["check", path]);
    assert_eq!(said.status.code(), Some(2));
    assert!(text(&said.stderr).contains("replay.jobs.file: /dev/zero is no file of at most"), "{said:?}");
    let (before, _) = good.split_once("teams:").unwrap();
    let team = |n: u32| format!("  - {{ name: t{n}, namespace: n, weight: -1, mix: {{ batch: 1 }} }}\n");
    std::fs::write(&file, format!("{before}teams:\n{}", (0..900).map(team).collect::<String>())).unwrap();
    let said = text(&sim(&["check", path]).stderr);
    assert!(
        said.lines().count() == 21 && said.contains("teams[19].weight: -1") && said.contains("and: 880 more problems"),
        "{said}"
    );
    let said = sim(&["backfill", &small(), "--frames", "/dev/full"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(text(&said.stderr).contains("cannot write /dev/full; is the disk full?"), "{said:?}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let small = small();
    for arguments in [
        &["objects", &small, "--at", "2026-03-02T01:00:00Z"][..],
        &["truth", &small, "--format", "json"],
        &["truth", &small, "--what", "holdings", "--format", "csv"],
        &["truth", &small, "--what", "faults"],
        &["check", &small, "--format", "json"],
        &["backfill", &small, "--frames", "-"],
        &["schema"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strandline-sim"));
        let pipes = command.args(arguments).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        drop(child.stdout.take());
        let said = child.wait_with_output().unwrap();
        assert!(said.status.success() && said.stderr.is_empty(), "{arguments:?}: {said:?}");
    }
}
