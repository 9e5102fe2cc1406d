//! Bad input: a clear error or a counted reject, the right exit code, nothing lost, no panic.

use std::fs;

use crate::command::{strandline, succeeds, tree_text};

/// Writes a file into a new folder; gives the folder and the file's path.
fn file(name: &str, content: &[u8]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

/// The command fails with `code`, and its message has all of `words`.
fn fails(arguments: &[&str], code: u8, words: &[&str]) {
    let ran = strandline(arguments);
    assert_eq!(ran.code, code, "{arguments:?}: {}\n{}", ran.message, ran.out);
    for word in words {
        assert!(ran.message.contains(word), "{arguments:?}: `{word}` is not in: {}", ran.message);
    }
}

#[test]
fn pages_that_are_none() {
    for (name, content, words) in [
        ("html", &b"<!DOCTYPE html><html><body>Sign in</body></html>"[..], &["HTML"][..]),
        ("empty", b"", &["no samples"]),
        ("comments", b"# HELP a b\n# TYPE a gauge\n", &["no samples"]),
        ("binary", b"\x00\xff\xfe\x01\n\x80\x81\n", &["not one sample"]),
    ] {
        let (_folder, path) = file(name, content);
        fails(&["parse", &path], 1, words);
    }
    fails(&["parse", "/no/such/file"], 1, &["/no/such/file"]);
    fails(&["parse", "https://127.0.0.1:1/metrics"], 1, &["127.0.0.1:1"]);
    fails(&["parse", "http://127.0.0.1:1/metrics"], 1, &["127.0.0.1:1"]);
}

#[test]
fn a_truncated_page_keeps_its_whole_lines() {
    let page = fs::read(crate::command::tree("tests/data/pages/dcgm-exporter.txt")).unwrap();
    let (_folder, path) = file("page", &page[..page.len() / 2]);
    let shown: serde_json::Value = serde_json::from_str(&succeeds(&["parse", &path, "--format", "json"])).unwrap();
    assert!(!shown["devices"].as_array().unwrap().is_empty());
    assert!(shown["notes"].as_array().unwrap().iter().any(|note| note.as_str().unwrap().contains("cut")), "{shown}");
}

#[test]
fn values_and_series_that_cannot_be_true() {
    let page = b"DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-a\"} NaN
DCGM_FI_DEV_FB_USED{gpu=\"0\",UUID=\"GPU-a\"} 10
DCGM_FI_DEV_FB_USED{gpu=\"0\",UUID=\"GPU-a\"} 12
DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-a\"} 4294967295
SOMETHING_ELSE{gpu=\"0\",UUID=\"GPU-a\"} 1
";
    let (_folder, path) = file("page", page);
    let shown: serde_json::Value = serde_json::from_str(&succeeds(&["parse", &path, "--format", "json"])).unwrap();
    assert_eq!(shown["duplicate_series"], 1);
    assert_eq!(shown["conflicting_duplicates"], 1);
    assert_eq!(shown["faults"]["sentinel"], 1);
    assert_eq!(shown["faults"]["out_of_range"], 1);
    assert_eq!(shown["extra"][0]["name"], "SOMETHING_ELSE");
    let readings = shown["devices"][0]["readings"].as_array().unwrap();
    let fb = readings.iter().find(|reading| reading["field_id"] == 252).unwrap();
    assert_eq!(fb["value"], 10, "of the same series twice the first is kept");
}

#[test]
fn fleets_with_typos_name_the_nearest_key() {
    let good = fs::read_to_string(crate::command::tree("kwok-fleet/fleets/small.yaml")).unwrap();
    let typo = good.replace("scrape_interval:", "scrape_intervall:");
    assert_ne!(good, typo);
    let (_folder, path) = file("fleet.yaml", typo.as_bytes());
    fails(&["demo", "--fleet", &path], 2, &["scrape_intervall", "scrape_interval", &path]);
    let (_folder, path) = file("fleet.yaml", b"not: [a fleet");
    fails(&["demo", "--fleet", &path], 2, &[&path]);
    fails(&["demo", "--fleet", "/no/such/fleet.yaml"], 2, &["/no/such/fleet.yaml"]);
}

#[test]
fn windows_that_hold_no_time() {
    let (_folder, path) = file("x", b"");
    let lake = std::path::Path::new(&path).parent().unwrap().to_str().unwrap();
    let window = |from, to| ["report", "--lake", lake, "--from", from, "--to", to];
    fails(&window("2026-03-02T11:00:00Z", "2026-03-02T10:00:00Z"), 2, &["empty or reversed"]);
    fails(&window("2026-03-02", "2026-03-02"), 2, &["empty or reversed"]);
    fails(&window("2026-03-02T10:30:00Z", "2026-03-02T12:00:00Z"), 1, &["no hour rows", "10:30:00"]);
    fails(&window("yesterday", "2026-03-02"), 2, &["yesterday"]);
    fails(&window("2026-03-02", "2026-03-03"), 1, &["no hour rows", "strandline hours"]);
    fails(&["check", "--lake", lake, "--from", "2026-03-03", "--to", "2026-03-02"], 2, &["empty or reversed"]);
}

#[test]
fn wrong_usage_is_exit_code_2() {
    fails(&["report"], 2, &["--lake"]);
    fails(&["reprot"], 2, &["report"]);
    fails(&["report", "--lake", "/no/such/lake"], 1, &["no lake at /no/such/lake"]);
    fails(&["report", "--lake", "/tmp", "--by", "tema"], 2, &["tema", "purchase_option"]);
    fails(&["report", "--lake", "/tmp", "--tier", "gpu"], 2, &["busy"]);
    fails(&["sql", "--lake", "/tmp", "--question", "watrfall"], 2, &["did you mean `waterfall`"]);
    fails(&["sql", "--lake", "/tmp", "--print", "hour"], 2, &["no question is called `hour`"]);
    fails(&["sql", "--lake", "/tmp", "--print", "kv-seat-hours", "--kv-gauge", "a'b"], 2, &["`a'b` is no metric name"]);
    fails(&["sql", "--lake", "/tmp"], 2, &["<QUERY>"]);
    fails(&["why", "--lake", "/tmp", "--at", "2026-03-02"], 2, &["--device"]);
    fails(&["conformance", "podsources", "x"], 2, &["podresources"]);
    fails(&["conformance", "accounting", "/no/such/file"], 1, &["/no/such/file"]);
    for command in ["demo", "hours", "report", "money", "sql", "why", "check", "parse", "import", "conformance"] {
        let help = succeeds(&[command, "--help"]);
        assert!(help.contains("Example"), "{command} --help has no example");
    }
}

#[test]
fn a_configuration_file_goes_behind_the_command_line() {
    let (_folder, path) = file("config.yaml", b"lake: /no/such/lake\nby: team\n");
    fails(&["report", "--config", &path], 1, &["no lake at /no/such/lake"]);
    fails(&["report", "--config", &path, "--by", "tema"], 2, &["tema"]);
    let (_folder, path) = file("config.yaml", b"lakee: /tmp\n");
    fails(&["report", "--config", &path], 2, &["--lakee", "--lake"]);
    fails(&["report", "--config", "/no/such/config.yaml"], 2, &["/no/such/config.yaml"]);
}

#[test]
fn damaged_files_in_the_lake_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let lake = folder.path().join("lake").to_str().unwrap().to_owned();
    succeeds(&["demo", "--fleet", &tree_text("kwok-fleet/fleets/small.yaml"), "--hours", "1", "--keep", &lake]);
    let opened = lake::Lake::open(std::path::Path::new(&lake)).unwrap();
    for table in ["gpu_hours", "gpu_samples"] {
        let path = opened.closed_files(schemas::tables::get(table), None).unwrap().remove(0).path.path().unwrap();
        let whole = fs::read(&path).unwrap();
        for damage in [&whole[..whole.len() / 2], &b"PAR1"[..], &[]] {
            fs::write(&path, damage).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            fails(&["sql", "--lake", &lake, &format!("SELECT COUNT(*), MIN(cluster) FROM {table}")], 1, &[name, "damaged"]);
            if table == "gpu_hours" {
                fails(&["report", "--lake", &lake], 1, &[name, "damaged"]);
                fails(&["check", "--lake", &lake], 1, &[name, "damaged"]);
            } else {
                fails(&["hours", "--lake", &lake, "--force"], 1, &[name, "damaged"]);
            }
        }
        fs::write(&path, &whole).unwrap();
    }
    // Hour rows can be made anew from what they were made from.
    let path = opened.closed_files(schemas::tables::get("gpu_hours"), None).unwrap().remove(0).path.path().unwrap();
    fs::write(&path, b"PAR1").unwrap();
    let again = succeeds(&["hours", "--lake", &lake]);
    assert!(again.starts_with("1 hours computed"), "{again}");
    succeeds(&["check", "--lake", &lake]);
    fails(&["sql", "--lake", &lake, "DROP TABLE gpu_hours"], 1, &["DDL"]);
    fails(&["sql", "--lake", &lake, "SELECT nothing FROM gpu_hours"], 1, &["nothing"]);
}

#[test]
fn bad_rows_of_a_table_are_counted_and_the_good_ones_kept() {
    let table = b"pod,start,end,gpus,w
good,0,3600,2,0.5
no-bind,,3600,1,
reversed,7200,3600,1,
words,later,3600,1,
half,0,3600,1.5,
heavy,0,3600,1,1.5
none,0,3600,0,
good,0,3600,2,0.5
good,0,7200,2,0.5
short,1
";
    let (folder, path) = file("pods.csv", table);
    let lake = folder.path().join("lake").to_str().unwrap().to_owned();
    let import = |extra: &[&str]| {
        let mut line = vec!["import", "allocations", &path, "--lake", &lake, "--map", "bound=start", "--map", "ended=end"];
        line.extend(extra);
        strandline(&line)
    };
    let ran = import(&["--map", "weight=w"]);
    assert_eq!(ran.code, 0, "{}", ran.message);
    assert!(ran.out.contains("1 holdings imported (0 of them without an end)"), "{}", ran.out);
    assert!(ran.out.contains("1 rows were never bound and 1 ask for no GPU"), "{}", ran.out);
    assert!(ran.out.contains("6 lines of") && ran.out.contains("rejects"), "{}", ran.out);
    let rejects = succeeds(&["sql", "--lake", &lake, "--format", "csv", "SELECT line, reason FROM rejects ORDER BY line"]);
    for words in ["before the bind", "`later` is no time", "no whole number", "more than a whole GPU", "stands twice", "cells"] {
        assert!(rejects.contains(words), "{words}: {rejects}");
    }
    let ran = import(&["--map", "team=who"]);
    assert_eq!(ran.code, 2, "{}", ran.out);
    assert!(ran.message.contains("`who`") && ran.message.contains("start"), "{}", ran.message);
    let ran = import(&["--map", "temperature=w"]);
    assert_eq!(ran.code, 2);
    assert!(ran.message.contains("temperature") && ran.message.contains("weight"), "{}", ran.message);
}
