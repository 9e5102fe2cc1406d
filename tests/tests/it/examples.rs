//! The worked examples of `docs/accounting.md`, through the command that it tells its readers to run.

use std::fs;

use serde_json::Value;

use crate::command::{succeeds, tree};

#[test]
fn every_worked_example_comes_out_and_is_in_the_text() {
    let text = fs::read_to_string(tree("docs/accounting.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut names = Vec::new();
    for entry in fs::read_dir(tree("docs/examples")).unwrap() {
        let path = entry.unwrap().path();
        // Rate cards and tables of docs/money.md lie beside the cases.
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut case: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        // What is expected is no input.
        let expected = case.as_object_mut().unwrap().remove("expect").unwrap();
        let bare = folder.path().join(&name);
        fs::write(&bare, case.to_string()).unwrap();
        let got: Value = serde_json::from_str(&succeeds(&["hours", "--case", bare.to_str().unwrap()])).unwrap();
        assert_eq!(got, expected, "{name}");
        assert!(text.contains(&format!("(examples/{name})")), "docs/accounting.md does not speak of {name}");
        names.push(name);
    }
    assert_eq!(names.len(), text.matches("](examples/").count(), "{names:?}: the text names one that is not there");
}

/// What the text works out by hand is what the command prints.
#[test]
fn figures_of_the_text_are_those_of_the_examples() {
    let text = fs::read_to_string(tree("docs/accounting.md")).unwrap();
    let plain = |number: &Value| {
        let digits = number.as_i64().unwrap().to_string();
        let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
        groups.join(",")
    };
    for (name, figures) in [
        ("one-gpu-one-hour", &["/totals/tiers/sm/utilized_ms", "/totals/tiers/sm/stranded_ms", "/totals/free_ms"][..]),
        ("two-pods-share", &["/owners/0/allocated_ms", "/owners/0/tiers/sm/over_share_ms", "/totals/free_by/shared_slack"]),
        ("mig-orphan", &["/totals/unavailable_by/mig_orphan", "/totals/allocated_ms", "/totals/tiers/sm/utilized_ms"]),
        ("not-named-yet", &["/owners/1/allocated_ms"]),
    ] {
        let case: Value =
            serde_json::from_str(&fs::read_to_string(tree(&format!("docs/examples/{name}.json"))).unwrap()).unwrap();
        for figure in figures {
            let number = case["expect"].pointer(figure).unwrap_or_else(|| panic!("{name}: no {figure}"));
            assert!(text.contains(&plain(number)), "{name}: {figure} is {}, and not in the text", plain(number));
        }
    }
}
