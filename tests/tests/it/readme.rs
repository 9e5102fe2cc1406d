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
