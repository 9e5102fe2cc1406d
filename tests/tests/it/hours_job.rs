//! The hours job: hour by hour it says what the ledger says of everything at once, and it does nothing twice.

use std::{collections::BTreeMap, fs, path::Path};

use arrow::array::{AsArray, RecordBatch};
use ingest::{
    close::{self, Closer},
    publish::{ALLOCATIONS, NODES, SAMPLES},
    sink::{self, Sink},
    transport::{
        Record, Topic,
        local::{self, Log, TopicSpec},
    },
};
use lake::{ClosedKey, Lake, Watermark, read};
use ledger::batch::{Facts, Source, hour_rows};
use schemas::{
    HOUR_MS, Timestamp, Window,
    proto::{Device, Holding, Node},
    tables,
};

use crate::command::{strandline, succeeds, tree_text};

/// Lines of rows as a text each, without the named columns, sorted.
fn lines(batches: &[RecordBatch], without: &[&str]) -> Vec<String> {
    let mut lines = Vec::new();
    for batch in batches {
        let keep: Vec<usize> =
            (0..batch.num_columns()).filter(|i| !without.contains(&batch.schema().field(*i).name().as_str())).collect();
        let batch = batch.project(&keep).unwrap();
        let text = arrow::util::pretty::pretty_format_batches(&[batch]).unwrap().to_string();
        lines.extend(
            text.lines()
                .skip(3)
                .filter(|line| !line.starts_with('+'))
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")),
        );
    }
    lines.sort();
    lines
}

fn rows(lake: &Lake, table: &'static str) -> Vec<RecordBatch> {
    let table = tables::get(table);
    let files = lake.closed_files(table, None).unwrap();
    files.iter().flat_map(|file| read::rows(table, &file.path, None).unwrap()).collect()
}

/// A lake of the small fleet with its faults, hours done.
fn demo(folder: &Path, hours: &str, seed: &str) -> Lake {
    let root = folder.join("lake");
    let fleet = tree_text("kwok-fleet/fleets/small.yaml");
    succeeds(&["demo", "--fleet", &fleet, "--hours", hours, "--seed", seed, "--keep", root.to_str().unwrap()]);
    Lake::open(&root).unwrap()
}

#[test]
fn hour_by_hour_is_what_everything_at_once_says() {
    let folder = tempfile::tempdir().unwrap();
    let lake = demo(folder.path(), "5", "77");
    let mut facts = Facts::default();
    let inputs = [
        ("gpu_samples", Source::GpuSamples),
        ("scrapes", Source::Scrapes),
        ("allocations", Source::Allocations),
        ("nodes", Source::Nodes),
    ];
    for (table, source) in inputs {
        rows(&lake, table).iter().for_each(|batch| facts.add(source, batch).unwrap());
    }
    let begin = lake.watermark().unwrap().unwrap().from;
    let window = Window::new(begin, begin.plus_ms(5 * HOUR_MS)).unwrap();
    let at_once: Vec<RecordBatch> = facts
        .into_nodes()
        .iter()
        .map(|node| hour_rows(&node.cluster, &ledger::hours(&node.inputs, window).unwrap()).unwrap())
        .collect();
    let (by_hour, at_once) = (lines(&rows(&lake, "gpu_hours"), &[]), lines(&at_once, &[]));
    assert!(by_hour.len() > 50, "{} rows", by_hour.len());
    assert_eq!(by_hour, at_once);
}

#[test]
fn hours_that_are_not_closed_are_answered_as_they_will_be_when_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let lake = demo(folder.path(), "4", "78");
    let root = lake.location().to_str().unwrap().to_owned();
    let from = lake.watermark().unwrap().unwrap().from;
    let open = from.plus_ms(2 * HOUR_MS);
    let columns = "hour_start, g.cluster, node, device, kind, reason, pod_uid, ms, sm_utilized_ms, sm_stranded_ms, energy_mj, fb_used_mib_ms";
    let third =
        format!("SELECT {columns} FROM gpu_hours g WHERE hour = '02' ORDER BY g.cluster, node, device, kind, reason, pod_uid");
    let ask = |sql: &str| succeeds(&["sql", "--lake", &root, "--format", "csv", sql]);
    let closed = ask(&third);
    assert!(closed.lines().count() > 6);
    let total = ask("SELECT SUM(ms), COUNT(DISTINCT hour_start) FROM gpu_hours WHERE hour < '03'");
    // As if the last two hours had not been closed yet.
    for table in tables::all() {
        for hour in [2, 3] {
            lake.remove_closed(table, ClosedKey { hour: from.plus_ms(hour * HOUR_MS), shard: 0 }).unwrap();
        }
    }
    lake.set_watermark(Watermark { from, closed_to: open }).unwrap();
    assert_eq!(ask(&third), closed, "an open hour, whole and live, is what it becomes");
    assert_eq!(ask("SELECT SUM(ms), COUNT(DISTINCT hour_start) FROM gpu_hours WHERE hour < '03'"), total, "one view of both");
    let flags = ask("SELECT DISTINCT hour FROM gpu_hours WHERE flags LIKE '%open_hour%' ORDER BY hour");
    assert_eq!(flags, "hour\n02\n03\n");
    let capacity = ask("SELECT SUM(capacity_ms) FROM device_hours WHERE hour = '02'");
    assert_eq!(capacity.lines().last().unwrap(), (6 * HOUR_MS).to_string());
    let report = succeeds(&["report", "--lake", &root, "--by", "hour"]);
    assert!(report.contains("2 hours are not closed yet and known up to"), "{report}");
    // The last one is known to its newest scrape, and no further.
    let last = ask("SELECT SUM(ms) FROM gpu_hours WHERE hour = '03'");
    let last: i64 = last.lines().last().unwrap().parse().unwrap();
    assert!(last > 6 * (HOUR_MS - 60_000) && last < 6 * HOUR_MS, "{last}");
    let device =
        ask("SELECT device FROM gpu_hours WHERE kind = 'owner' AND device IS NOT NULL AND hour = '02' ORDER BY device LIMIT 1");
    let at = open.plus_ms(600_000).to_string();
    let why = succeeds(&["why", "--lake", &root, "--device", device.lines().last().unwrap(), "--at", &at]);
    assert!(why.contains("an hour that is not closed yet"), "{why}");
}

const PODS: &str = "pod,namespace,node,device,bound,ended\n";

fn import(lake: &str, folder: &Path, rows: &str) {
    let file = folder.join("pods.csv");
    fs::write(&file, format!("{PODS}{rows}")).unwrap();
    let maps = ["pod=pod", "namespace=namespace", "node=node", "device=device", "bound=bound", "ended=ended"];
    let mut line = vec!["import", "allocations", file.to_str().unwrap(), "--lake", lake];
    maps.iter().for_each(|map| line.extend(["--map", map]));
    succeeds(&line);
}

#[test]
fn a_late_row_does_again_the_hours_that_it_changes_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("lake").to_str().unwrap().to_owned();
    import(
        &root,
        folder.path(),
        "a,ns,n1,GPU-1,2026-03-02T00:10:00Z,2026-03-02T05:30:00Z\nb,ns,n1,GPU-2,2026-03-02T03:00:00Z,2026-03-02T05:30:00Z\n",
    );
    let hours = || succeeds(&["hours", "--lake", &root]);
    assert!(hours().starts_with("6 hours computed, 0 unchanged"));
    let files = |root: &str| -> BTreeMap<String, Vec<u8>> {
        let lake = Lake::open(Path::new(root)).unwrap();
        let files = lake.closed_files(tables::get("gpu_hours"), None).unwrap();
        files.iter().map(|file| (file.key.hour.to_string(), fs::read(file.path.path().unwrap()).unwrap())).collect()
    };
    let before = files(&root);
    // Another pod took GPU-1 at 02:00, and was gone at 02:20: it cuts `a` for good.
    import(&root, folder.path(), "c,ns,n1,GPU-1,2026-03-02T02:00:00Z,2026-03-02T02:20:00Z\n");
    assert!(hours().starts_with("4 hours computed, 2 unchanged"));
    let after = files(&root);
    let changed: Vec<&str> =
        before.iter().filter(|(hour, bytes)| after[*hour] != **bytes).map(|(hour, _)| &hour[11..13]).collect();
    assert_eq!(changed, ["02", "03", "04", "05"], "`a` ends at 02:00 in every hour after it");
    let held = succeeds(&[
        "sql",
        "--lake",
        &root,
        "--format",
        "csv",
        "SELECT pod, SUM(ms) FROM gpu_hours WHERE kind = 'owner' GROUP BY pod ORDER BY pod",
    ]);
    assert_eq!(held, format!("pod,sum(gpu_hours.ms)\na,{}\nb,{}\nc,{}\n", 110 * 60_000, 150 * 60_000, 20 * 60_000));
    assert!(hours().starts_with("0 hours computed, 6 unchanged"));
    assert_eq!(files(&root), after, "nothing is written where nothing changed");
    assert_eq!(strandline(&["check", "--lake", &root]).code, 0);
    // Done anew for one hour, the earlier ones stand.
    let again =
        succeeds(&["hours", "--lake", &root, "--force", "--from", "2026-03-02T04:00:00Z", "--to", "2026-03-02T05:00:00Z"]);
    assert!(again.starts_with("1 hours computed, 0 unchanged"), "{again}");
    let carried = rows(&Lake::open(Path::new(&root)).unwrap(), "carried_allocations");
    let pods: Vec<&str> =
        carried.iter().flat_map(|b| b.column_by_name("pod").unwrap().as_string::<i32>().iter().flatten()).collect();
    assert!(!pods.is_empty() && pods.iter().all(|pod| *pod == "c"), "{pods:?}");
}

/// What the API server or the kubelet says of a pod of one GPU, in seconds of the day.
fn told(source: &str, pod: &str, from: i64, to: i64) -> Record {
    let at = |seconds: i64| day().plus_ms(seconds * 1000).ms();
    let said = Holding {
        cluster: "reef".into(),
        node: "n".into(),
        source: source.into(),
        id: format!("{pod}@{from}"),
        namespace: "surf".into(),
        pod: pod.into(),
        observed_at_ms: at(to),
        ended_ms: Some(at(to)),
        ..Holding::default()
    };
    ingest::publish::holding(if source == "api" {
        Holding { pod_uid: format!("u-{pod}"), count: Some(1), bound_ms: Some(at(from)), ..said }
    } else {
        Holding { device: "GPU-a".into(), known_from_ms: Some(at(from)), last_listed_ms: Some(at(to - 60)), ..said }
    })
}

fn day() -> Timestamp {
    "2026-03-02T00:00:00Z".parse().unwrap()
}

#[test]
fn a_pod_that_the_kubelet_lists_after_its_last_hour_is_nobody_new() {
    let folder = tempfile::tempdir().unwrap();
    let names = [SAMPLES, ALLOCATIONS, NODES];
    let specs = names.map(|name| TopicSpec { name, partitions: 1 });
    let log = Log::open(&folder.path().join("log"), &specs, local::Options::default()).unwrap();
    let lake = Lake::create(&folder.path().join("lake")).unwrap();
    let root = lake.location().to_str().unwrap().to_owned();
    let topics = names.map(|name| log.topic(name).unwrap() as std::sync::Arc<dyn Topic>);
    let mut sink = Sink::open(lake.clone(), topics.to_vec(), sink::Options::default()).unwrap();
    let end = day().plus_ms(5 * HOUR_MS);
    let mut closer = Closer::new(lake.clone(), close::Options { close_after_ms: 0, ..close::Options::default() });
    let mut close = |topic: &str, records: &[Record]| {
        log.topic(topic).unwrap().produce(records).unwrap();
        sink.flush(end).unwrap();
        closer.close(end, end).unwrap().parts.get("allocations").copied()
    };
    let node = Node {
        cluster: "reef".into(),
        node: "n".into(),
        source: "api".into(),
        observed_at_ms: day().ms(),
        present_from_ms: day().ms(),
        devices: vec![Device { device: "GPU-a".into(), ..Device::default() }],
        ..Node::default()
    };
    close(NODES, &[ingest::publish::node(&node)]);
    const H: i64 = 3600;
    close(
        ALLOCATIONS,
        &[
            // Ended within the hour before, and seen for more than one.
            told("api", "slow", 3 * H - 1200, 3 * H - 600),
            told("podres", "slow", 3 * H + 600, 4 * H + 600),
            // Ended longer before than anybody is waited for.
            told("api", "ghost", H + 600, H + 1200),
            told("podres", "ghost", 3 * H + 1200, 3 * H + 1260),
            // Listed first when it had ended, on the hour; what the API server says of it comes late.
            told("podres", "edge", 3 * H, 3 * H + 60),
        ],
    );
    let hours = |extra: &[&str]| succeeds(&[&["hours", "--lake", &root], extra].concat());
    let owners = || {
        let sql = "SELECT hour, pod_uid, COALESCE(device, '-'), ms, COALESCE(flags, '-') FROM gpu_hours WHERE kind = 'owner' ORDER BY 1, 2";
        succeeds(&["sql", "--lake", &root, "--format", "csv", sql]).lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(hours(&["--to", "2026-03-02T03:00:00Z"]).starts_with("3 hours computed"));
    assert!(hours(&[]).starts_with("2 hours computed, 3 unchanged"));
    let edge = "03,podres:reef/surf/edge@2026-03-02T03:00:00.000Z,GPU-a,60000,no_api_holding";
    let ghost = "03,podres:reef/surf/ghost@2026-03-02T03:20:00.000Z,GPU-a,60000,no_api_holding";
    assert_eq!(owners(), ["01,u-ghost,-,600000,-", "02,u-slow,-,600000,-", edge, ghost]);

    assert_eq!(close(ALLOCATIONS, &[told("api", "edge", 3 * H - 22, 3 * H)]), Some(1), "the hour that it was in, and no other");
    fs::remove_dir_all(lake.location().join("_hot")).unwrap();
    // The hour that it was in, the one that it is handed on to, and the one that goes on from there: `slow` reaches into it.
    let said = hours(&[]);
    assert!(said.starts_with("3 hours computed, 2 unchanged"), "{said}");
    let right = ["01,u-ghost,-,600000,-", "02,u-edge,-,22000,-", "02,u-slow,-,600000,-", ghost];
    assert_eq!(owners(), right);
    assert!(hours(&["--force"]).starts_with("5 hours computed"));
    assert_eq!(owners(), right);
    assert_eq!(strandline(&["check", "--lake", &root]).code, 0);
}

#[test]
fn a_zone_off_the_full_hour_is_computed_anew_and_refused_where_it_cannot_be() {
    let folder = tempfile::tempdir().unwrap();
    let lake = demo(folder.path(), "3", "79");
    let root = lake.location().to_str().unwrap().to_owned();
    let by = |zone: &str| {
        let text = succeeds(&["report", "--lake", &root, "--by", "hour", "--tz", zone, "--format", "csv"]);
        let sum = |place: usize| {
            text.lines().skip(1).map(|line| line.split(',').nth(place).unwrap().parse::<i64>().unwrap()).sum::<i64>()
        };
        (text.lines().count() - 1, sum(1), sum(2))
    };
    let (utc, delhi) = (by("UTC"), by("Asia/Kolkata"));
    assert_eq!((utc.0, delhi.0), (3, 4), "half an hour at either end");
    assert_eq!((utc.1, utc.2), (delhi.1, delhi.2), "capacity and allocation do not depend on where hours are cut");
    // The half hours of one pod are whole milliseconds of its holding.
    let ran = strandline(&["report", "--lake", &root, "--tz", "Asia/Calcuta"]);
    assert_eq!(ran.code, 2);
    assert!(ran.message.contains("time zone `Asia/Calcuta` is not known"), "{}", ran.message);
    // Raw rows past their retention: hour rows stand, and cannot be cut.
    for table in ["gpu_samples", "scrapes", "allocations", "nodes"] {
        fs::remove_dir_all(lake.location().join(table)).unwrap();
    }
    assert_eq!(by("UTC"), utc, "whole hours need no raw rows");
    let ran = strandline(&[
        "report",
        "--lake",
        &root,
        "--by",
        "day",
        "--tz",
        "Asia/Kolkata",
        "--from",
        "2026-03-01",
        "--to",
        "2026-03-03",
    ]);
    assert_eq!(ran.code, 0, "no midnight of Delhi lies inside these hours: {}", ran.message);
    let ran = strandline(&["report", "--lake", &root, "--by", "hour", "--tz", "Asia/Kolkata"]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.message.contains("is cut at 2026-03-02T00:30:00.000Z") && ran.message.contains("no longer in the lake"),
        "{}",
        ran.message
    );
}

#[test]
fn the_largest_groups_stand_first_and_little_seen_ones_say_little() {
    let folder = tempfile::tempdir().unwrap();
    let lake = demo(folder.path(), "2", "80");
    let root = lake.location().to_str().unwrap().to_owned();
    let json = |extra: &[&str]| -> Vec<serde_json::Value> {
        let line = [&["report", "--lake", &root, "--by", "pod", "--format", "json"], extra].concat();
        succeeds(&line).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let all = json(&[]);
    let top = json(&["--top", "2"]);
    assert_eq!(top.len(), 3);
    let ms = |line: &serde_json::Value| line["allocated_ms"].as_i64().unwrap();
    assert_eq!(top[2]["others"].as_u64().unwrap() as usize, all.len() - 2);
    assert_eq!(top.iter().map(ms).sum::<i64>(), all.iter().map(ms).sum::<i64>(), "nothing is lost in the line of the others");
    assert!(ms(&top[0]) >= ms(&top[1]) && all.iter().all(|line| ms(line) <= ms(&top[0])));
    for line in json(&["--min-coverage", "100"]) {
        let seen_whole = line["unobserved_ms"] == 0;
        assert_eq!(line["utilized_ms"].is_null(), !seen_whole, "{line}");
        assert_eq!(line["used_percent_by_jobs"].is_null(), !seen_whole || line["jobs"] == 0, "{line}");
        assert!(line["allocated_ms"].is_i64() && line["coverage_percent"].is_null() == (line["allocated_ms"] == 0), "{line}");
    }
    for bad in
        [&["--min-coverage", "101"][..], &["--top", "0"], &["--month", "2026-3"], &["--month", "2026-03", "--from", "2026-03-02"]]
    {
        assert_eq!(strandline(&[&["report", "--lake", &root], bad].concat()).code, 2, "{bad:?}");
    }
    let month = succeeds(&["report", "--lake", &root, "--month", "2026-03", "--by", ""]);
    assert!(month.contains("closes to the millisecond"), "{month}");
}

#[test]
fn why_names_the_holding_the_samples_and_the_sums() {
    let folder = tempfile::tempdir().unwrap();
    let lake = demo(folder.path(), "2", "81");
    let root = lake.location().to_str().unwrap().to_owned();
    let row = succeeds(&[
        "sql",
        "--lake",
        &root,
        "--format",
        "csv",
        "SELECT device, namespace, pod, pod_uid, ms, sm_utilized_ms FROM gpu_hours WHERE kind = 'owner' AND device IS NOT NULL AND hour = '01' ORDER BY sm_utilized_ms DESC LIMIT 1",
    ]);
    let cells: Vec<&str> = row.lines().nth(1).unwrap().split(',').collect();
    let [device, namespace, pod, uid, ms, utilized] = cells[..] else { panic!("{row}") };
    let ask = |what: &[&str]| succeeds(&[&["why", "--lake", &root, "--at", "2026-03-02T01:20:00Z"], what].concat());
    let text = ask(&["--device", device]);
    for word in [device, &format!("{namespace}/{pod} (uid {uid}"), "A4", &format!("allocated {ms} = utilized {utilized} +")] {
        assert!(text.contains(word), "{word} is not in\n{text}");
    }
    for name in [pod.to_owned(), format!("{namespace}/{pod}"), uid.to_owned()] {
        assert!(ask(&["--pod", &name]).contains(device), "{name}");
    }
    let json: serde_json::Value = serde_json::from_str(ask(&["--device", device, "--format", "json"]).trim()).unwrap();
    let pieces = json["pieces"].as_array().unwrap();
    let at = |text: &serde_json::Value| text.as_str().unwrap().parse::<Timestamp>().unwrap().ms();
    let whole: i64 = pieces.iter().map(|piece| at(&piece["to"]) - at(&piece["from"])).sum();
    assert_eq!(whole, HOUR_MS, "the pieces tile the hour");
    // By hand from the pieces: parts per million times milliseconds, once rounded.
    let mine = pieces.iter().filter(|piece| piece["pod_uid"] == *uid && piece["said"] == "seen");
    let sum: i64 =
        mine.map(|piece| piece["tiers"]["sm_ppm"].as_i64().unwrap_or(0) * (at(&piece["to"]) - at(&piece["from"]))).sum();
    let utilized: i64 = utilized.parse().unwrap();
    assert!((sum - utilized * 1_000_000).abs() <= 1_000_000, "{sum} against {utilized}");
}

#[test]
fn money_beside_hours_sums_to_the_bill() {
    let folder = tempfile::tempdir().unwrap();
    let lake = demo(folder.path(), "2", "82");
    let root = lake.location().to_str().unwrap().to_owned();
    let card = folder.path().join("rates.yaml");
    fs::write(
        &card,
        "currency: USD\npools:\n  - pool: l4\n    kind: per_use\n    match: {product: NVIDIA L4}\n    price_per_gpu_hour: \"0.70\"\n\
         \x20 - pool: year\n    kind: commitment\n    match: {product: NVIDIA H100 80GB HBM3}\n    gpus: 6\n    from: 2026-01-01\n    to: 2027-01-01\n\
         \x20   upfront: \"0\"\n    recurring_per_gpu_hour: \"2.00\"\n",
    )
    .unwrap();
    let card = card.to_str().unwrap();
    let json = |line: &[&str]| -> Vec<serde_json::Value> {
        let line = [line, &["--lake", &root, "--rates", card, "--format", "json"]].concat();
        succeeds(&line).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let sum = |lines: &[serde_json::Value]| lines.iter().filter_map(|line| line["micro"].as_i64()).sum::<i64>();
    let bill = sum(&json(&["money", "--by", "team"]));
    assert!(bill > 0);
    for by in ["team", "product", "team,hour", ""] {
        assert_eq!(sum(&json(&["report", "--by", by])), bill, "by `{by}`");
    }
    for by in ["pod", "node"] {
        let ran = strandline(&["report", "--lake", &root, "--by", by, "--rates", card]);
        assert!(ran.code == 2 && ran.message.contains("money is not known by"), "{}", ran.message);
    }
    let pod = succeeds(&[
        "sql",
        "--lake",
        &root,
        "--format",
        "csv",
        "SELECT pod_uid FROM gpu_hours WHERE kind = 'owner' AND device IS NOT NULL AND product = 'NVIDIA L4' AND hour = '01' AND on_unready_ms = 0 LIMIT 1",
    ]);
    let why = |extra: &[&str]| {
        succeeds(
            &[&["why", "--lake", &root, "--pod", pod.lines().nth(1).unwrap(), "--at", "2026-03-02T01:10:00Z"], extra].concat(),
        )
    };
    assert!(why(&["--rates", card]).contains("pool `l4` ("), "{}", why(&["--rates", card]));
    assert!(!why(&[]).contains("the price"));
    // Who only asks leaves the bill as it is; who bills writes it, in one currency.
    assert!(succeeds(&["check", "--lake", &root]).contains("costs: holds: "));
    let bill_of = |root: &str| {
        succeeds(&["sql", "--lake", root, "--format", "csv", "SELECT currency, SUM(micro) FROM costs GROUP BY currency"])
    };
    let before = bill_of(&root);
    let euros = folder.path().join("euros.yaml");
    fs::write(&euros, fs::read_to_string(card).unwrap().replace("USD", "EUR")).unwrap();
    let euros = euros.to_str().unwrap();
    succeeds(&["report", "--lake", &root, "--rates", euros]);
    why(&["--rates", euros]);
    assert_eq!(bill_of(&root), before);
    succeeds(&["money", "--lake", &root, "--rates", euros, "--from", "2026-03-02T01:00:00Z", "--to", "2026-03-02T02:00:00Z"]);
    let ran = strandline(&["check", "--lake", &root]);
    assert!(ran.code == 1 && ran.out.contains("are in EUR, those before it in USD"), "{}", ran.out);
    let named = folder.path().join("named.yaml");
    fs::write(&named, fs::read_to_string(card).unwrap().replace("pool: l4", "pool: unpriced")).unwrap();
    let ran = strandline(&["money", "--lake", &root, "--rates", named.to_str().unwrap()]);
    assert!(ran.code == 2 && ran.message.contains("cannot be called `unpriced`"), "{}", ran.message);
}

#[test]
fn what_is_not_computed_or_in_the_wrong_place_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let lake = demo(folder.path(), "3", "85");
    let root = lake.location().to_str().unwrap().to_owned();
    let second = ClosedKey { hour: lake.watermark().unwrap().unwrap().from.plus_ms(HOUR_MS), shard: 0 };
    let check = || strandline(&["check", "--lake", &root]);
    let whole = succeeds(&["report", "--lake", &root]);
    assert!(check().out.contains("hours: holds: ") && !whole.contains("NOT in these sums"));
    // An hour without rows.
    lake.remove_closed(tables::get("gpu_hours"), second).unwrap();
    let ran = check();
    assert!(
        ran.code == 1 && ran.out.contains("hours: FAILS: 1 closed hours have none, the first of 2026-03-02T01:00"),
        "{}",
        ran.out
    );
    let part = succeeds(&["report", "--lake", &root]);
    assert!(part.contains("NOT in these sums: 1 closed hours without hour rows"), "{part}");
    let hours = || succeeds(&["hours", "--lake", &root]);
    assert!(hours().starts_with("1 hours computed, 2 unchanged"));
    assert_eq!(succeeds(&["report", "--lake", &root]), whole);
    // A second file beside its rows, or one of another table in their place: done again, and whole again.
    let of = |table: &str, shard: u32| {
        lake.location().join(ClosedKey { shard, ..second }.path(tables::all().iter().find(|t| t.name == table).unwrap()))
    };
    fs::copy(of("gpu_hours", 0), of("gpu_hours", 1)).unwrap();
    assert!(hours().starts_with("1 hours computed, 2 unchanged"));
    fs::copy(of("device_hours", 0), of("gpu_hours", 0)).unwrap();
    assert!(hours().starts_with("1 hours computed, 2 unchanged"));
    assert_eq!(succeeds(&["report", "--lake", &root]), whole);
    assert_eq!(check().code, 0, "{}", check().out);
    // Rows of one hour in the folder of another.
    let first = ClosedKey { hour: second.hour.plus_ms(-HOUR_MS), shard: 0 };
    fs::copy(lake.location().join(first.path(tables::get("scrapes"))), of("scrapes", 0)).unwrap();
    let ran = check();
    assert!(ran.code == 1 && ran.out.contains("which is not its folder's hour"), "{}", ran.out);
}

#[test]
fn long_statements_are_answered_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("lake");
    Lake::create(&root).unwrap();
    let root = root.to_str().unwrap();
    let sum = |terms: usize| format!("SELECT 1{}", "+1".repeat(terms - 1));
    assert_eq!(succeeds(&["sql", "--lake", root, "--format", "csv", &sum(500)]).lines().last(), Some("500"));
    let ran = strandline(&["sql", "--lake", root, &sum(100_000)]);
    assert!(ran.code == 1 && ran.message.contains("longer than 64 KiB"), "{}", ran.message);
}

#[test]
fn a_lake_with_faults_fails_its_proofs_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let lake = demo(folder.path(), "2", "83");
    let root = lake.location().to_str().unwrap().to_owned();
    let check = |extra: &[&str]| strandline(&[&["check", "--lake", &root], extra].concat());
    let whole = check(&[]);
    for proof in ["closes: ", "schema: holds: ", "offsets: holds: ", "costs: nothing to prove: ", "truth: holds: "] {
        assert!(whole.code == 0 && whole.out.lines().any(|line| line.starts_with(proof)), "{proof}: {}", whole.out);
    }
    // A hot file that is gone is a gap of offsets, and its rows are in closed hours all the same.
    let hot = lake.hot_files(tables::get("scrapes")).unwrap();
    let first = hot
        .iter()
        .find(|file| hot.iter().any(|next| next.key.partition == file.key.partition && next.key.start > file.key.start));
    if let Some(file) = first {
        let bytes = fs::read(file.path.path().unwrap()).unwrap();
        fs::remove_file(file.path.path().unwrap()).unwrap();
        let ran = check(&["--offsets"]);
        assert!(ran.code == 1 && ran.out.starts_with("offsets: FAILS: "), "{}", ran.out);
        fs::write(file.path.path().unwrap(), bytes).unwrap();
    }
    assert_eq!(check(&["--offsets"]).code, 0);
    // A closed hour that was made without a file of the log.
    let samples = tables::get("gpu_samples");
    let closed = lake.closed_files(samples, None).unwrap();
    let (key, rows) = (closed[0].key, read::rows(samples, &closed[0].path, None).unwrap());
    let footer = lake::Footer { inputs: Some("{}".into()), ..lake::Footer::default() };
    let before = fs::read(closed[0].path.path().unwrap()).unwrap();
    lake.publish_closed(samples, key, &rows, footer).unwrap();
    let ran = check(&["--offsets"]);
    assert!(ran.code == 1 && ran.out.contains("of gpu_samples lacks the rows of offset"), "{}", ran.out);
    fs::write(closed[0].path.path().unwrap(), before).unwrap();
    // A table of a later row layout is refused by name, wherever it is read.
    let newer = fs::read(closed[0].path.path().unwrap()).unwrap();
    let place = newer.windows(25).position(|w| w == b"strandline.schema_version").unwrap();
    let mut bytes = newer.clone();
    let digit = (place + 25..place + 32).find(|i| bytes[*i] == b'1').unwrap();
    bytes[digit] = b'9';
    fs::write(closed[0].path.path().unwrap(), bytes).unwrap();
    for command in [&["check", "--lake", &root][..], &["hours", "--lake", &root, "--force"]] {
        let ran = strandline(command);
        assert!(
            ran.code == 1 && ran.message.contains("row layout 9, this one knows 1") && ran.message.contains("upgrade"),
            "{}",
            ran.message
        );
    }
    fs::write(closed[0].path.path().unwrap(), newer).unwrap();
    // Another account of a pod than the truth's.
    let hours = tables::get("gpu_hours");
    let file = lake.closed_files(hours, None).unwrap().remove(0);
    let rows = read::rows(hours, &file.path, None).unwrap();
    let fewer: Vec<RecordBatch> = rows.iter().map(|batch| batch.slice(0, batch.num_rows() - 1)).collect();
    lake.publish_closed(hours, file.key, &fewer, lake::Footer::default()).unwrap();
    let ran = check(&[]);
    assert!(ran.code == 1 && (ran.out.contains("DOES NOT CLOSE") || ran.out.contains("truth: FAILS")), "{}", ran.out);
}

#[test]
fn days_that_a_lake_lacks_are_no_hours_and_the_rest_closes() {
    let folder = tempfile::tempdir().unwrap();
    let lake = demo(folder.path(), "3", "84");
    let root = lake.location().to_str().unwrap().to_owned();
    let whole = succeeds(&["report", "--lake", &root, "--by", "hour", "--format", "csv"]);
    for table in tables::all() {
        let middle = ClosedKey { hour: lake.watermark().unwrap().unwrap().from.plus_ms(HOUR_MS), shard: 0 };
        lake.remove_closed(table, middle).unwrap();
    }
    let left = succeeds(&["report", "--lake", &root, "--by", "hour", "--format", "csv"]);
    assert_eq!(left.lines().count() + 1, whole.lines().count(), "an hour that is not there is not printed as nothing");
    assert!(left.lines().all(|line| whole.contains(line)), "{left}\n{whole}");
    let again = succeeds(&["hours", "--lake", &root]);
    assert!(again.starts_with("2 hours computed"), "its neighbours stand on it: {again}");
    // What is there closes; that rows of the log are in no hour is said, and where.
    let check = strandline(&["check", "--lake", &root]);
    assert!(check.code == 1 && check.out.starts_with("closes: 12 device-hours"), "{}", check.out);
    assert!(
        check.out.contains("offsets: FAILS") && check.out.contains("the closed hour 2026-03-02T01:00:00.000Z of "),
        "{}",
        check.out
    );
}
