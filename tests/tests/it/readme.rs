//! The README shows exactly what the demo prints; `UPDATE=1` writes it anew.

use std::fs;

use crate::command::{succeeds, tree};

const BEGIN: &str = "<!-- demo: begin (a test runs the demo and compares) -->\n```\n";
const END: &str = "```\n<!-- demo: end -->";

/// Without what differs from run to run: how long it took.
fn timeless(text: &str) -> String {
    let line = |line: &str| match line.rsplit_once("; ") {
        Some((facts, took)) if line.starts_with("scraped ") && took.ends_with(" s") => format!("{facts}; ... s"),
        _ => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_readme_shows_what_the_demo_prints() {
    let folder = tempfile::tempdir().unwrap();
    let lake = folder.path().join("lake").to_str().unwrap().to_owned();
    let printed = succeeds(&["demo", "--keep", &lake]).replace(&lake, "/tmp/lake");
    let path = tree("README.md");
    let readme = fs::read_to_string(&path).unwrap();
    let (before, rest) = readme.split_once(BEGIN).unwrap();
    let (shown, after) = rest.split_once(END).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{printed}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(
        timeless(shown),
        timeless(&printed),
        "run `UPDATE=1 cargo test --profile ci -p tests readme` and read the difference"
    );
}

#[test]
fn commands_of_the_readme_are_there() {
    let readme = fs::read_to_string(tree("README.md")).unwrap();
    for command in ["demo", "report", "money", "sql", "check", "hours", "parse", "import", "conformance"] {
        assert!(
            readme.contains(&format!("| `strandline {command} ")) || readme.contains(&format!("| `strandline {command}`")),
            "{command}"
        );
        succeeds(&[command, "--help"]);
    }
}

#[test]
fn every_sentence_of_the_failure_modes_names_a_test_that_is_there() {
    fn sources(folder: &std::path::Path, text: &mut String) {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.ends_with("target") {
                sources(&path, text);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                text.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut code = String::new();
    for name in ["attribution", "ingest", "lake", "ledger", "query", "tests"] {
        sources(&tree(name), &mut code);
    }
    let text = std::fs::read_to_string(tree("docs/failure-modes.md")).unwrap();
    let sentences: Vec<&str> = text.lines().filter(|line| line.starts_with("- ")).collect();
    assert!(sentences.len() > 30);
    for sentence in sentences {
        let (_, tests) = sentence.rsplit_once(" (").unwrap_or_else(|| panic!("no test: {sentence}"));
        let names: Vec<&str> = tests.trim_end_matches(").").split(", ").map(|name| name.trim_matches('`')).collect();
        for name in names {
            let test = format!("fn {name}(");
            assert!(code.contains(&test), "no such test: {name} in {sentence}");
        }
    }
}
