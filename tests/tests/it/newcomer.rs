//! What somebody meets who follows the README on a machine of their own.

use std::fs;

use crate::command::{strandline, succeeds, tree};

/// A lake from two pages of a node and the kubelet's answers, without an inventory.
fn podres_only(folder: &std::path::Path) -> String {
    let page = "DCGM_FI_PROF_SM_ACTIVE{gpu=\"0\",UUID=\"GPU-a\"} 0.5\nDCGM_FI_PROF_SM_ACTIVE{gpu=\"1\",UUID=\"GPU-b\"} 0.25\n";
    let pods = r#"{"podResources":[{"name":"p","namespace":"n","containers":[{"name":"c","devices":[
        {"resourceName":"nvidia.com/gpu","deviceIds":["GPU-a"]}]}]}]}"#;
    fs::write(folder.join("page.txt"), page).unwrap();
    fs::write(folder.join("pods.json"), pods).unwrap();
    let mut index = "at,node,file,podresources\n".to_owned();
    for second in (0..3600).step_by(300) {
        index += &format!("{},dune-1,page.txt,pods.json\n", 1_772_445_600 + second);
    }
    fs::write(folder.join("index.csv"), index).unwrap();
    let lake = folder.join("lake").to_str().unwrap().to_owned();
    let index = folder.join("index.csv").to_str().unwrap().to_owned();
    succeeds(&["import", "scrapes", &index, "--lake", &lake, "--interval", "300", "--no-inventory"]);
    succeeds(&["hours", "--lake", &lake]);
    lake
}

#[test]
fn a_node_without_inventory_has_no_known_capacity_whatever_the_grouping() {
    let folder = tempfile::tempdir().unwrap();
    let lake = podres_only(folder.path());
    for by in ["node", "pod", "team", "pod,node,hour", "product", "purchase_option"] {
        let rows = succeeds(&["report", "--lake", &lake, "--by", by, "--format", "json"]);
        for row in rows.lines() {
            let row: serde_json::Value = serde_json::from_str(row).unwrap();
            assert!(row["capacity_ms"].is_null() && row["free_ms"].is_null() && row["unavailable_ms"].is_null(), "{by}: {row}");
        }
        let allocated: i64 = rows
            .lines()
            .map(|row| serde_json::from_str::<serde_json::Value>(row).unwrap()["allocated_ms"].as_i64().unwrap())
            .sum();
        assert_eq!(allocated, 3_600_000, "{by}");
    }
    // Plain SQL over the files says the same: what nobody holds there is no row, so no sum claims it.
    for none in ["SELECT kind, reason, ms FROM gpu_hours WHERE kind <> 'owner'", "SELECT device FROM device_hours"] {
        assert_eq!(succeeds(&["sql", "--lake", &lake, "--format", "json", none]).trim(), "", "{none}");
    }
    let proof: serde_json::Value = serde_json::from_str(&succeeds(&["check", "--lake", &lake, "--format", "json"])).unwrap();
    assert_eq!((&proof["closes"], &proof["device_hours"]), (&true.into(), &0.into()), "nothing to hold it against: {proof}");
}

#[test]
fn an_open_end_is_not_printed_as_a_number() {
    let folder = tempfile::tempdir().unwrap();
    let lake = podres_only(folder.path());
    let ran = strandline(&["report", "--lake", &lake, "--from", "2027-01-01"]);
    assert!(ran.code == 1 && ran.message.contains("from 2027-01-01T00:00:00.000Z to the end"), "{ran:?}");
}

#[test]
fn x_refuses_what_it_does_not_know_before_it_does_anything() {
    let x = |arguments: &[&str]| {
        let output = std::process::Command::new("bash").arg(tree("x")).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    for wrong in [&["test", "--ful"][..], &["soak", "long"], &["demmo"]] {
        let (code, said) = x(wrong);
        assert!(code == Some(2) && said.len() < 2000 && !said.contains("unbound"), "{wrong:?}: {said}");
    }
    let (code, said) = x(&["help"]);
    assert!(code == Some(0) && said.contains("./x test --full"), "{said}");
}
