//! Input that means harm, or that a careless hand made: what it must come to. Each test is a fault that there was.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    time::{Duration, Instant},
};

use crate::command::{Ran, strandline, succeeds, tree, tree_text};

/// A new folder, a lake's path in it, and a way to write files beside it.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn lake(&self) -> String {
        self.path("lake")
    }

    fn import(&self, what: &str, content: &str, extra: &[&str]) -> Ran {
        let (file, lake) = (self.file("table", content.as_bytes()), self.lake());
        let mut line = vec!["import", what, &file, "--lake", &lake];
        line.extend(extra);
        strandline(&line)
    }

    fn imported(&self, what: &str, content: &str) -> String {
        let ran = self.import(what, content, &[]);
        assert_eq!(ran.code, 0, "{}", ran.message);
        ran.out
    }

    /// Hours, check, and the report's lines by `by` as CSV, without its header.
    fn report(&self, by: &str) -> Vec<String> {
        let lake = self.lake();
        succeeds(&["hours", "--lake", &lake]);
        succeeds(&["check", "--lake", &lake]);
        let text = succeeds(&["report", "--lake", &lake, "--by", by, "--format", "csv"]);
        text.lines().skip(1).map(|line| line.split(',').take(3).collect::<Vec<_>>().join(",")).collect()
    }
}

fn fails(ran: &Ran, code: u8, words: &[&str]) {
    assert_eq!(ran.code, code, "{}\n{}", ran.message, ran.out);
    for word in words {
        assert!(ran.message.contains(word), "`{word}` is not in: {}", ran.message);
    }
}

#[test]
fn a_later_import_adds_to_what_is_there_in_any_order() {
    let place = Place::new();
    place.imported("allocations", "pod,bound,ended\na,36000,39600\n");
    place.imported("allocations", "pod,bound,ended\nb,0,5400\n");
    place.imported("allocations", "pod,bound,ended\nc,72000,75600\n");
    let expected = ["default/b,,5400000", "default/a,,3600000", "default/c,,3600000"];
    let mut expected: Vec<String> = expected.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(place.report("pod"), expected);
    // The same again changes nothing; another end of the same pod is what stands, earlier or later.
    place.imported("allocations", "pod,bound,ended\na,36000,39600\n");
    let again = succeeds(&["hours", "--lake", &place.lake()]);
    assert!(again.starts_with("0 hours computed"), "{again}");
    place.imported("allocations", "pod,bound,ended\na,36000,37800\n");
    assert_eq!(place.report("pod")[0], "default/a,,1800000");
    place.imported("allocations", "pod,bound,ended\na,36000,43200\n");
    assert_eq!(place.report("pod")[0], "default/a,,7200000");
}

#[test]
fn devices_of_a_node_may_come_in_two_tables() {
    let place = Place::new();
    place.imported("devices", "node,device,from,to,product\nn,GPU-a,3600,7200,H100\n");
    place.imported("devices", "node,device,from,to\nn,GPU-b,0,7200\n");
    assert_eq!(place.report("node"), ["n,10800000,0"]);
    let text = succeeds(&[
        "sql",
        "--lake",
        &place.lake(),
        "--format",
        "csv",
        "SELECT DISTINCT product FROM gpu_hours WHERE device='GPU-a'",
    ]);
    assert_eq!(text.lines().last(), Some("H100"));
}

#[test]
fn pages_imported_later_leave_the_inventory_of_the_earlier_ones() {
    let place = Place::new();
    place.file("page", b"DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",modelName=\"H100\"} 50\n");
    for at in [7200, 10_800, 3600] {
        let rows: String = (0..120).map(|n| format!("{},n,page\n", at + 30 * n)).collect();
        place.imported("scrapes", &format!("at,node,file\n{rows}"));
    }
    assert_eq!(place.report("node,hour").len(), 3);
    assert_eq!(place.report("node"), ["n,10800000,0"]);
}

#[test]
fn an_import_goes_into_a_lake_that_a_demo_made() {
    let place = Place::new();
    let lake = place.lake();
    succeeds(&["demo", "--fleet", &tree_text("kwok-fleet/fleets/small.yaml"), "--hours", "1", "--keep", &lake]);
    let before = place.report("cluster");
    place.imported("allocations", "pod,bound,ended\na,2026-03-02T00:00:00Z,2026-03-02T01:00:00Z\n");
    let after = place.report("cluster");
    assert_eq!(after.len(), before.len() + 1);
    assert!(after.contains(&"imported,,3600000".to_owned()), "{after:?}");
    assert!(before.iter().all(|line| after.contains(line)), "{before:?} {after:?}");
}

#[test]
fn one_wrong_time_does_not_cost_the_good_rows() {
    let place = Place::new();
    let table = "pod,bound,ended\na,0,3600\nend,9999-12-30T00:00:00Z,\nyear1,0001-01-01T00:00:00Z,3600\nneg,-1,3600\nmax,9223372036854775807,\n";
    let out = place.imported("allocations", table);
    assert!(out.contains("1 holdings imported") && out.contains("4 lines of"), "{out}");
    assert_eq!(place.report("pod"), ["default/a,,3600000"]);
    // Times that each may be, but not together: refused as a whole, for hours in between would be lost or without end.
    let far = place.import("allocations", "pod,bound,ended\na,0,3600\nb,2023-01-01T00:00:00Z,2023-01-01T01:00:00Z\n", &[]);
    fails(&far, 1, &["more than ten years", "1970-01-01", "2023-01-01"]);
    let rejects = succeeds(&["sql", "--lake", &place.lake(), "SELECT reason FROM rejects"]);
    assert_eq!(rejects.matches("years 1970 to 2099").count(), 3, "{rejects}");
}

#[test]
fn names_that_cannot_be_are_kept_out_and_the_rest_goes_on() {
    let place = Place::new();
    let (long, huge) = ("n".repeat(2000), "p".repeat(3_000_000));
    let table = format!(
        "pod,node,device,bound,ended\ngood,n,,0,3600\n{long},n,,0,3600\n{huge},n,,0,3600\n\"two\nlines\",n,,0,3600\nesc\u{1b}[2J,n,,0,3600\nb,{long},,0,3600\nc,n,GPU a,0,3600\n"
    );
    let out = place.imported("allocations", &table);
    assert!(out.contains("1 holdings imported") && out.contains("6 lines of"), "{out}");
    assert_eq!(place.report("pod"), ["default/good,,3600000"]);
    for bad in ["", "a/b"] {
        fails(&place.import("allocations", "pod,bound\na,0\n", &["--cluster", bad]), 2, &["cluster"]);
    }
}

#[test]
fn tables_as_spreadsheets_write_them() {
    let place = Place::new();
    let out = place.imported("allocations", "\u{feff}{\"pod\":\"a\",\"bound\":0,\"ended\":3600}\n");
    assert!(out.contains("1 holdings imported"), "{out}");
    let out = place.imported("allocations", "\u{feff}pod,bound,ended\r\nb,0,3600\r\n");
    assert!(out.contains("1 holdings imported"), "{out}");
    let out = place.imported("allocations", "pod,bound,ended\nc,0,3600\n\"d,0,3600\ne,0,3600\n");
    assert!(out.contains("is a quote missing?"), "{out}");
    let mapping = place.file("map.yaml", b"team: who\n");
    fails(&place.import("allocations", "pod,bound\na,0\n", &["--mapping", &mapping]), 2, &["`who`"]);
}

#[test]
fn a_weight_may_be_a_fraction() {
    let place = Place::new();
    let devices =
        "node,device,from,to,weight\nn,GPU-a/1,0,3600,3/7\nn,GPU-a/2,0,3600,4/7\nn,GPU-b/1,0,3600,8/7\nn,GPU-c/1,0,3600,1/0\n";
    let out = place.imported("devices", devices);
    assert!(out.contains("2 devices on 1 nodes imported") && out.contains("2 lines of"), "{out}");
    assert_eq!(place.report("node"), ["n,3600000,0"]);
}

#[test]
fn files_without_end_are_read_up_to_a_limit() {
    let place = Place::new();
    fails(&strandline(&["parse", "/dev/zero"]), 1, &["/dev/zero", "64 MiB"]);
    place.file("page", b"DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 50\n");
    let out = place.imported("scrapes", "at,node,file\n0,n,/dev/zero\n30,n,page\n60,n,missing\n90,n,.\n");
    assert!(out.contains("1 pages of") && out.contains("3 lines of"), "{out}");
}

#[test]
fn names_from_a_page_cannot_paint_the_terminal() {
    let place = Place::new();
    let page = b"DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",modelName=\"\x1b[31mred\",pod=\"\x1b[2J\"} 1\n\x1b[2Jbad\n";
    let path = place.file("page", page);
    let text = succeeds(&["parse", &path]);
    assert!(!text.contains('\u{1b}') && text.contains("\\u{1b}[31mred"), "{text}");
    let json = succeeds(&["parse", &path, "--format", "json"]);
    assert!(json.contains("\\u001b[31mred"), "programs get the name as it is: {json}");
    place.imported("allocations", "pod,bound,ended\na,0,3600\n");
    let text = succeeds(&["sql", "--lake", &place.lake(), "SELECT chr(27) || '[2J' AS a"]);
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn a_report_of_endless_names_is_a_table_all_the_same() {
    let place = Place::new();
    let name = "n".repeat(100_000);
    place.file("page", format!("DCGM_FI_DEV_GPU_UTIL{{UUID=\"GPU-a\",modelName=\"{name}\"}} 50\n").as_bytes());
    place.imported("scrapes", "at,node,file\n0,n,page\n");
    let lake = place.lake();
    succeeds(&["hours", "--lake", &lake]);
    let text = succeeds(&["report", "--lake", &lake, "--by", "product,node"]);
    assert!(text.lines().all(|line| line.chars().count() < 400), "{text}");
}

#[test]
fn a_page_made_to_be_slow_costs_what_it_is_long() {
    let names: Vec<String> = (0..250).map(|n| format!("l{n:03}=\"1\"")).collect();
    let backwards: Vec<String> = names.iter().rev().cloned().collect();
    let mut page = String::new();
    for n in 0..2000 {
        let labels = if n % 2 == 0 { &names } else { &backwards };
        page += &format!("DCGM_FI_DEV_GPU_UTIL{{UUID=\"GPU-a\",{},z=\"{}\"}} {}\n", labels.join(","), n / 2, n % 2);
    }
    let timed = |page: &str| {
        let begun = Instant::now();
        (ingest::page::read(page.as_bytes(), None, &ingest::page::Options::default()).unwrap(), begun.elapsed())
    };
    // It once took seventy times as long as the same page in order, which is measured beside it: a busy machine slows both.
    let (_, in_order) = timed(&page.replace(&backwards.join(","), &names.join(",")));
    let (read, took) = timed(&page);
    assert!(took < 35 * in_order + Duration::from_secs(1), "{took:?} against {in_order:?}");
    assert_eq!(read.counts.series, 2000);
    assert!(read.counts.duplicate_series >= 60, "label order makes no other series: {}", read.counts.duplicate_series);
    assert_eq!(read.counts.duplicate_series, read.counts.conflicting_duplicates);
}

#[test]
fn peers_that_lie_are_refused_in_time_with_what_they_did() {
    let page = "DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 1\n";
    let gzip = "\u{1f}\u{8b}"; // in Latin-1, below
    let answers: [(String, &str); 8] = [
        (format!("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{page}"), "cut short"),
        (format!("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{page}"), "content-length"),
        (format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 37\r\n\r\n{page}"), "content-length"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n".into(), "cut short"),
        (format!("HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\n\r\n{page}", page.len()), "206"),
        ("HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n".into(), "302"),
        (
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{page}", page.len()),
            "application/json",
        ),
        (format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{gzip}"), "gzip"),
    ];
    for (answer, words) in answers {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/metrics", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let bytes: Vec<u8> = answer.chars().map(|c| c as u8).collect();
            let _ = stream.write_all(&bytes);
        });
        fails(&strandline(&["parse", &address, "--timeout", "5"]), 1, &[words]);
        server.join().unwrap();
    }
    let refused = strandline(&["parse", "http://me:hush@127.0.0.1:1/metrics"]);
    fails(&refused, 2, &["password"]);
    assert!(!refused.message.contains("hush"), "{}", refused.message);
}

#[test]
fn parquet_that_is_not_the_lakes_is_refused_wherever_it_would_be_counted() {
    let place = Place::new();
    let lake = place.lake();
    place.imported("allocations", "pod,bound,ended\na,0,3600\n");
    succeeds(&["hours", "--lake", &lake]);
    let hour = format!("{lake}/gpu_hours/date=1970-01-01/hour=00");
    let whole = fs::read(format!("{hour}/part-00000.parquet")).unwrap();
    // Names that nobody reads are nobody's business.
    fs::write(format!("{hour}/.part-00000.parquet.1-0.tmp"), b"half").unwrap();
    fs::write(format!("{hour}/notes.txt"), b"mine").unwrap();
    succeeds(&["check", "--lake", &lake]);
    for name in [
        "date=1970-01-01/hour=00/copy.parquet",
        "date=1970-01-01/hour=00/part-0.parquet",
        "date=1970-01-01/hour=0/part-00000.parquet",
        "date=x/hour=00/part-00000.parquet",
        "x.parquet",
    ] {
        let path = format!("{lake}/gpu_hours/{name}");
        fs::create_dir_all(std::path::Path::new(&path).parent().unwrap()).unwrap();
        fs::write(&path, &whole).unwrap();
        for command in [&["report"][..], &["check"], &["sql", "SELECT SUM(ms) FROM gpu_hours"]] {
            let mut line = command.to_vec();
            line.extend(["--lake", &lake]);
            fails(&strandline(&line), 1, &["no file of a closed hour", name]);
        }
        fs::remove_file(&path).unwrap();
    }
    succeeds(&["report", "--lake", &lake]);
}

#[test]
fn a_lake_may_lie_at_any_path() {
    let place = Place::new();
    place.imported("allocations", "pod,bound,ended\na,0,3600\n");
    succeeds(&["hours", "--lake", &place.lake()]);
    for name in ["a b", "q'uo\"te", "ünï", "100%", "%20x", "st*r", "br[a]c", "q?x", "ha#sh", "back\\slash", "{a,b}", "a:b"] {
        let path = place.path(name);
        fs::rename(place.lake(), &path).unwrap();
        let text = succeeds(&["sql", "--lake", &path, "--format", "csv", "SELECT SUM(ms), MIN(date), MIN(hour) FROM gpu_hours"]);
        assert_eq!(text.lines().last(), Some("3600000,1970-01-01,00"), "{name}");
        fs::rename(&path, place.lake()).unwrap();
    }
}

#[test]
fn a_query_cannot_take_the_machine_with_it() {
    let place = Place::new();
    place.imported("allocations", "pod,bound,ended\na,0,3600\n");
    let rows = "SELECT a.value, b.value, repeat('x', 1000) FROM generate_series(1, 2000) a, generate_series(1, 2000) b";
    fails(&strandline(&["sql", "--lake", &place.lake(), rows]), 1, &["larger than 256 MiB", "LIMIT"]);
    for write in [
        "COPY (SELECT 1) TO '/tmp/x.csv'",
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/etc/passwd'",
        "SELECT * FROM '/etc/passwd'",
        "SET datafusion.execution.batch_size = 1",
        "SELECT 1; SELECT 2",
    ] {
        fails(&strandline(&["sql", "--lake", &place.lake(), write]), 1, &["the query failed"]);
    }
}

#[test]
fn a_watermark_that_cannot_be_is_not_believed() {
    let place = Place::new();
    place.imported("allocations", "pod,bound,ended\na,0,3600\n");
    let path = format!("{}/_state/watermark.json", place.lake());
    let good = fs::read(&path).unwrap();
    for bad in [
        "",
        "{}",
        "null",
        r#"{"from":"2026-03-02T05:00:00Z","closed_to":"2026-03-02T01:00:00Z"}"#,
        r#"{"from":"2026-03-02T00:00:17Z","closed_to":"2026-03-02T01:00:00Z"}"#,
    ] {
        fs::write(&path, bad).unwrap();
        fails(&place.import("allocations", "pod,bound,ended\nb,3600,7200\n", &[]), 1, &["watermark.json"]);
    }
    fs::write(&path, good).unwrap();
    place.imported("allocations", "pod,bound,ended\nb,3600,7200\n");
    assert_eq!(place.report("pod").len(), 2);
}

#[test]
fn a_configuration_file_serves_every_command() {
    let place = Place::new();
    let (lake, table) = (place.lake(), place.file("table.csv", b"who,bound,ended\na,0,3600\n"));
    let config = place.file("config.yaml", format!("lake: {lake}\nmap: [pod=who]\n").as_bytes());
    succeeds(&["import", "allocations", &table, "--config", &config]);
    succeeds(&["--config", &config, "import", "allocations", &table]);
    let wrong = place.file("wrong.yaml", b"lakee: x\n");
    fails(&strandline(&["report", "--config", &wrong, "--lake", &lake]), 2, &["--lakee", "`--lake`", "wrong.yaml"]);
    for word in ["help: true", "version: true", "config: x"] {
        let path = place.file("word.yaml", word.as_bytes());
        assert_eq!(strandline(&["check", "--config", &path, "--lake", &lake]).code, 2, "{word}");
    }
    let text = succeeds(&["sql", "--lake", &lake, "--format", "csv", "--", "SELECT 1 AS a"]);
    assert_eq!(text, "a\n1\n");
    let nothing = strandline(&["check", "--lake", &lake, "--from", "2030-01-01"]);
    fails(&nothing, 1, &["no hour rows"]);
    assert!(!nothing.out.contains("closes"), "{}", nothing.out);
}

#[test]
fn what_is_wrong_with_a_fleet_is_said_with_its_line_and_its_key() {
    let good = fs::read_to_string(tree("kwok-fleet/fleets/small.yaml")).unwrap();
    for (right, wrong, words) in [
        ("scrape_interval: 30s", "scrape_interval: 30", &["scrape_interval", "30s"][..]),
        ("start: 2026-03-02T00:00:00Z", "start: 2026-13-02", &["start", "2026-13-02"]),
        ("blanks: 0.003", "blanks: 2", &["faults.blanks", "between 0 and 1"]),
        ("per_gpu_day: 3", "per_gpu_day: 1e18", &["faults.xid.per_gpu_day", "1440"]),
        ("lasts: 6m", "lasts: long", &["faults.windows[0].lasts", "long"]),
        ("product: NVIDIA L4", "product: nvidia l4", &["did you mean `NVIDIA L4`?"]),
    ] {
        assert_eq!(good.matches(right).count(), 1, "{right}");
        let place = Place::new();
        let path = place.file("fleet.yaml", good.replace(right, wrong).as_bytes());
        let ran = strandline(&["demo", "--fleet", &path]);
        fails(&ran, 2, words);
        if !right.starts_with("product") {
            let line = good.lines().position(|line| line.contains(right)).unwrap() + 1;
            fails(&ran, 2, &[&format!("line {line}:")]);
        }
    }
}

#[test]
fn a_flipped_bit_is_not_another_number() {
    let place = Place::new();
    let lake = place.lake();
    place.imported("allocations", "pod,bound,ended\na,0,3600\n");
    succeeds(&["hours", "--lake", &lake]);
    let path = format!("{lake}/gpu_hours/date=1970-01-01/hour=00/part-00000.parquet");
    let whole = fs::read(&path).unwrap();
    for at in (4..1000).step_by(83) {
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        fs::write(&path, flipped).unwrap();
        fails(&strandline(&["check", "--lake", &lake]), 1, &["part-00000.parquet"]);
    }
    succeeds(&["hours", "--lake", &lake, "--force"]);
    succeeds(&["check", "--lake", &lake]);
}
