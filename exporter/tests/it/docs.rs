//! The tables of docs/exporter.md are what the code says: `UPDATE=1 cargo test -p exporter` writes them anew.

use std::fmt::Write;

use clap::CommandFactory;
use exporter::{collectors::counted, config::Args, nvml::calls};
use schemas::catalogue::{self, PromType};

const DOC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/exporter.md");

/// Text fields that are read.
fn is_text(field: u16) -> bool {
    exporter::nvml::session::TEXTS.contains(&field)
}

/// How a field is read, or why it is not.
fn how(field: &catalogue::Field) -> (&'static str, String) {
    match field.id {
        Some(230) => ("same", "nvmlEventSetWait_v2; 0 until the first XID, so that absent means that nobody waits".into()),
        Some(counted::XIDS_IN_WINDOW) => ("same", "counted from nvmlEventSetWait_v2".into()),
        Some(counted::CLOCK_EVENTS_IN_WINDOW) => {
            ("same", "counted from nvmlDeviceGetCurrentClocksEventReasons, once a round".into())
        }
        None if field.name == "DCGM_EXP_XID_ERRORS_TOTAL" => ("same", "counted from nvmlEventSetWait_v2".into()),
        None if field.name == "DCGM_EXP_CLOCK_EVENTS_TOTAL" => {
            ("same", "counted from nvmlDeviceGetCurrentClocksEventReasons, once a round".into())
        }
        Some(9003) => ("missing", "the verdict of DCGM's health watches; strandline_gpu_state and XIDs tell part of it".into()),
        Some(9004) => ("missing", "DCGM's topology check".into()),
        Some(id) if is_text(id) => ("same", "as a label".into()),
        Some(id) => match calls::named(id) {
            Some(call) if (1001..=1034).contains(&id) => ("same on Hopper and later", call),
            Some(call) => ("same", call),
            None => match id {
                1084..=1096 => ("missing", "counted by DCGM's profiling module; NVML does not tell it".into()),
                1200..=1213 => ("missing", "NVLink 5 counters of each link".into()),
                450 => ("missing", "made by DCGM of several counters".into()),
                _ => ("missing", "not read yet".into()),
            },
        },
        None => ("missing", "not read yet".into()),
    }
}

fn fields() -> String {
    let mut out = String::from("| field | id | type | on by default | here | how |\n|---|---|---|---|---|---|\n");
    for field in catalogue::fields() {
        let (here, how) = how(field);
        let kind = if field.prom_type == PromType::Label { "label" } else { field.prom_type.as_str() };
        let id = field.id.map_or_else(String::new, |id| id.to_string());
        let on = if field.default_enabled { "yes" } else { "" };
        let _ = writeln!(out, "| `{}` | {id} | {kind} | {on} | {here} | {how} |", field.name);
    }
    out
}

fn flags() -> String {
    let mut out = String::from("| flag | variable | default | here |\n|---|---|---|---|\n");
    for argument in Args::command().get_arguments() {
        let Some(long) = argument.get_long().filter(|long| !["help", "version"].contains(long)) else { continue };
        let short = argument.get_short().map_or_else(String::new, |short| format!(", `-{short}`"));
        let variable = argument.get_env().map_or_else(String::new, |name| format!("`{}`", name.to_string_lossy()));
        let defaults = argument.get_default_values();
        let default = defaults.first().map_or_else(String::new, |value| format!("`{}`", value.to_string_lossy()));
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let here = match long.starts_with("strandline-") {
            true => format!("ours: {help}"),
            false if help.starts_with("Accepted for") => {
                "accepted; it is said once that it does nothing here, and what to do instead".to_owned()
            }
            false => help,
        };
        let _ = writeln!(out, "| `--{long}`{short} | {variable} | {default} | {here} |");
    }
    out
}

#[test]
fn the_tables_of_the_docs_are_the_codes() {
    let doc = std::fs::read_to_string(DOC).unwrap();
    let mut wanted = doc.clone();
    for (name, table) in [("flags", flags()), ("fields", fields())] {
        let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
        let (before, rest) = wanted.split_once(&begin).unwrap_or_else(|| panic!("no `{begin}` in docs/exporter.md"));
        let (_, after) = rest.split_once(&end).unwrap();
        wanted = format!("{before}{begin}{table}{end}{after}");
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(DOC, &wanted).unwrap();
    }
    assert!(std::fs::read_to_string(DOC).unwrap() == wanted, "docs/exporter.md is old: UPDATE=1 cargo test -p exporter");
}

/// Every family of ours that the code can print is in the docs, and no other.
#[test]
fn the_docs_tell_every_family_of_ours() {
    let mut printed = std::collections::BTreeSet::new();
    for source in ["node.rs", "run.rs"] {
        let code = std::fs::read_to_string(format!("{}/src/{source}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        for part in code.split('"').filter(|part| part.starts_with("strandline_")) {
            printed.insert(part.to_owned());
        }
    }
    let doc = std::fs::read_to_string(DOC).unwrap();
    let told: std::collections::BTreeSet<String> = doc
        .lines()
        .filter_map(|line| line.strip_prefix("| `strandline_"))
        .filter_map(|line| Some(format!("strandline_{}", line.split_once('`')?.0)))
        .collect();
    assert_eq!(told, printed);
}
