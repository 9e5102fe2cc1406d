//! The binary: what it prints and how it exits.

use std::process::{Command, Output};

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
    let typo = typo.to_str().unwrap();
    for (arguments, says) in [
        (vec!["check", typo], "unknown key `gpus_per_nod`; did you mean `gpus_per_node`?"),
        (vec!["check", "/no/such/fleet.yaml"], "cannot read the fleet spec /no/such/fleet.yaml"),
        (vec!["truth", &small, "--from", "2026-03-02T01:00:00Z", "--to", "2026-03-02T01:00:00Z"], "is empty or reversed"),
        (vec!["truth", &small, "--to", "2026-03-03T00:00:00Z"], "the fleet is planned from"),
        (vec!["serve", &small, "--speed=-1"], "--speed"),
        (vec!["serve", &small, "--listen", "nowhere"], "no address to listen on"),
        (
            vec!["serve", &small, "--start", "2026-03-01T00:00:00Z"],
            "--start 2026-03-01T00:00:00.000Z is outside the fleet's time",
        ),
        (vec!["serve", &small, "--listen", "0", "--port-per-node", "65535"], "would end above 65535; begin lower"),
        (vec!["objects", &small, "--at", "2027-01-01T00:00:00Z"], "is outside the fleet's time"),
        (vec!["objects", &small, "--cluster", "moon"], "--cluster moon: the fleet has no such cluster, only lab"),
        (vec!["backfill", &small], "--lake"),
        (vec!["backfill", &small, "--frames", "-", "--to", "2027-01-01T00:00:00Z"], "take a window inside that"),
        (vec!["fidelity", "--preset", "mars"], "`mars` is no preset; there are acme-seren, philly, openb, genai-serving"),
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
        &["truth", "--help"],
        &["check", "--help"],
    ] {
        let said = sim(arguments);
        assert!(said.status.success() && text(&said.stdout).contains("Example"), "{arguments:?}");
    }
}
