//! `strandline money`: the worked example of the documentation, the same figures by hand, and what it does with bad input.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

use crate::command::{Ran, strandline, succeeds, tree, tree_text};

const BEGIN: &str = "<!-- money: begin (a test runs these commands and compares) -->\n```\n";
const END: &str = "```\n<!-- money: end -->";

/// The lake of docs/examples/money.
struct Example {
    folder: tempfile::TempDir,
}

impl Example {
    fn new() -> Self {
        let example = Self { folder: tempfile::tempdir().unwrap() };
        for (what, file) in [("devices", "devices.csv"), ("allocations", "allocations.csv")] {
            let file = tree_text(&format!("docs/examples/money/{file}"));
            succeeds(&["import", what, &file, "--lake", &example.lake(), "--to", "2026-03-02T06:00:00Z"]);
        }
        succeeds(&["import", "restarts", &tree_text("docs/examples/money/restarts.csv"), "--lake", &example.lake()]);
        succeeds(&["hours", "--lake", &example.lake()]);
        example
    }

    fn lake(&self) -> String {
        self.folder.path().join("lake").to_str().unwrap().to_owned()
    }

    /// A card of its own, the documentation's with one text put in place of another.
    fn card(&self, from: &str, to: &str) -> String {
        let card = fs::read_to_string(tree("docs/examples/money/rates.yaml")).unwrap();
        assert!(card.contains(from), "{from}");
        self.write("rates.yaml", &card.replacen(from, to, 1))
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn money(&self, card: &str, more: &[&str]) -> Ran {
        let lake = self.lake();
        let mut arguments = vec!["money", "--lake", &lake, "--rates", card];
        arguments.extend(more);
        strandline(&arguments)
    }

    /// The bill as JSON lines; it must come to an end.
    fn bill(&self, card: &str, more: &[&str]) -> Vec<Value> {
        let ran = self.money(card, &[more, &["--format", "json"]].concat());
        assert_eq!(ran.code, 0, "{}", ran.message);
        ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn rates() -> String {
    tree_text("docs/examples/money/rates.yaml")
}

/// (pool, team, bucket) to (GPU-ms, micro).
fn by_row(lines: &[Value]) -> BTreeMap<(String, String, String), (i64, Option<i64>)> {
    let text = |line: &Value, key: &str| line[key].as_str().unwrap_or("-").to_owned();
    let row = |line: &Value| {
        let key = (text(line, "pool"), text(line, "team"), text(line, "bucket"));
        (key, (line["gpu_ms"].as_i64().unwrap(), line["micro"].as_i64()))
    };
    lines.iter().map(row).collect()
}

fn key(pool: &str, team: &str, bucket: &str) -> (String, String, String) {
    (pool.into(), team.into(), bucket.into())
}

#[test]
fn the_documentation_shows_what_the_example_prints() {
    let example = Example::new();
    let printed =
        succeeds(&["money", "--lake", &example.lake(), "--rates", &rates(), "--by", "pool,team", "--basis", "chargeback"]);
    let path = tree("docs/money.md");
    let doc = fs::read_to_string(&path).unwrap();
    let (before, rest) = doc.split_once(BEGIN).unwrap();
    let (shown, after) = rest.split_once(END).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{printed}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(shown, printed, "run it with UPDATE=1 and read the difference");
}

/// GPU-milliseconds of so many GPUs for so many seconds.
const fn gpu_s(gpus: i64, seconds: i64) -> i64 {
    gpus * seconds * 1000
}

#[test]
fn every_figure_of_the_example_is_what_it_is_by_hand() {
    let example = Example::new();
    let rows = by_row(&example.bill(&rates(), &["--by", "pool,team", "--basis", "chargeback"]));
    let (b, y, k) = ("borealis-node", "cumulus-year", "cumulus-block");
    // 15.60 for a node of four: 3.90 a GPU-hour. 11 730 s are billed as 11 760, 47 s as 60.
    // Upfront 35 040 over 4 x 8760 hours is 1.00, with 1.20 recurring 2.20. The block: 48 over 4 x 4 hours is 3.00.
    let expected = BTreeMap::from([
        (key(b, "-", "billing_minimum"), (0, Some(186_333))),
        (key(b, "-", "idle"), (gpu_s(4, 11_730) - gpu_s(4, 9_000) - gpu_s(1, 2_130), Some(9_522_500))),
        (key(b, "-", "unattributed"), (gpu_s(1, 2_130), Some(2_307_500))),
        (key(b, "kelp", "team"), (gpu_s(4, 47), Some(203_667))),
        (key(b, "reef", "team"), (gpu_s(4, 9_000), Some(39_000_000))),
        (key(k, "-", "block_tail"), (gpu_s(4, 1_800), Some(6_000_000))),
        (key(k, "reef", "reserved_idle"), (gpu_s(4, 1_800), Some(6_000_000))),
        (key(k, "reef", "restart_waste_memo"), (0, Some(0))),
        (key(k, "reef", "team"), (gpu_s(4, 10_800), Some(36_000_000))),
        (key(y, "kelp", "reserved_idle"), (gpu_s(4, 6 * 3600) - gpu_s(3, 16_200) - gpu_s(1, 7_200), Some(18_700_000))),
        (key(y, "kelp", "team"), (gpu_s(3, 16_200), Some(29_700_000))),
        (key(y, "reef", "team"), (gpu_s(1, 7_200), Some(4_400_000))),
    ]);
    // Hours are rounded by themselves; what that makes is in `rounding`, and the pools' sums are exact.
    let without: BTreeMap<_, _> = rows.iter().filter(|((.., bucket), _)| bucket != "rounding").collect();
    for (key, (gpu_ms, micro)) in &expected {
        let got = without.get(key).unwrap_or_else(|| panic!("{key:?} of {rows:?}"));
        assert_eq!(got.0, *gpu_ms, "{key:?}");
        assert!((got.1.unwrap() - micro.unwrap()).abs() <= 3, "{key:?}: {got:?}, by hand {micro:?}");
    }
    assert_eq!(without.len(), expected.len(), "{rows:?}");
    for (pool, total) in [(b, 51_220_000), (y, 52_800_000), (k, 48_000_000)] {
        assert_eq!(rows.iter().filter(|((p, ..), _)| p == pool).map(|(_, (_, m))| m.unwrap()).sum::<i64>(), total, "{pool}");
    }
    let memo = example.bill(&rates(), &["--by", "team"]);
    let memo: Vec<&Value> = memo.iter().filter(|line| line["bucket"] == "restart_waste_memo").collect();
    assert_eq!((memo.len(), &memo[0]["memo_gpu_ms"], &memo[0]["memo_micro"]), (1, &gpu_s(4, 1_200).into(), &4_000_000.into()));
}

#[test]
fn showback_chargeback_and_spread_have_one_total() {
    let example = Example::new();
    let card = rates();
    let total = |more: &[&str]| -> (i64, i64) {
        let lines = example.bill(&card, more);
        let sum = |key: &str| lines.iter().filter_map(|line| line[key].as_i64()).sum();
        (sum("gpu_ms"), sum("micro"))
    };
    let shown = total(&["--by", "pool"]);
    assert_eq!(shown.1, 152_020_000);
    for more in [
        &["--by", "team", "--basis", "chargeback"][..],
        &["--by", "team", "--spread-idle"],
        &["--by", "hour,product"],
        &["--by", "provider,region", "--basis", "chargeback", "--spread-idle"],
    ] {
        assert_eq!(total(more), shown, "{more:?}");
    }
    let idle = |more: &[&str]| -> Vec<Value> {
        let is_idle = |line: &Value| line["bucket"] == "reserved_idle" || line["bucket"] == "idle";
        example.bill(&card, more).into_iter().filter(is_idle).map(|line| line["team"].clone()).collect()
    };
    assert_eq!(idle(&["--by", "team"]), [Value::Null, Value::Null], "showback names nobody");
    assert!(
        !idle(&["--by", "team", "--spread-idle"]).contains(&Value::Null)
            || idle(&["--by", "pool,team", "--spread-idle"]).len() > 2
    );
    let ran = example.money(&card, &["--by", "team,hour", "--basis", "chargeback"]);
    assert_eq!(ran.code, 2, "{}", ran.out);
    assert!(ran.message.contains("no hour"), "{}", ran.message);
    // A month that is not whole: by_use waits, and says so.
    let month = example.card("charging_period: window", "charging_period: month");
    let ran = example.money(&month, &["--by", "team", "--basis", "chargeback"]);
    assert!(ran.out.contains("cumulus-block") && ran.out.contains("charging period"), "{}", ran.out);
}

/// The line that says what was done.
fn done(ran: &Ran) -> &str {
    assert_eq!(ran.code, 0, "{}", ran.message);
    ran.out.lines().last().unwrap()
}

fn costs(example: &Example) -> Vec<std::path::PathBuf> {
    let lake = lake::Lake::open(Path::new(&example.lake())).unwrap();
    lake.closed_files(schemas::tables::get("costs"), None).unwrap().into_iter().map(|file| file.path.path().unwrap()).collect()
}

#[test]
fn an_hour_is_priced_again_only_where_something_changed() {
    let example = Example::new();
    let card = rates();
    assert_eq!(done(&example.money(&card, &[])), "6 hours priced, 0 unchanged (table costs)");
    let before: Vec<Vec<u8>> = costs(&example).iter().map(|path| fs::read(path).unwrap()).collect();
    assert_eq!(done(&example.money(&card, &[])), "0 hours priced, 6 unchanged (table costs)");
    // Killed between hours: some are there, one is half (as of another program), the rest are not.
    for path in &costs(&example)[3..] {
        fs::remove_file(path).unwrap();
    }
    fs::write(&costs(&example)[1], b"PAR1").unwrap();
    assert_eq!(done(&example.money(&card, &[])), "4 hours priced, 2 unchanged (table costs)");
    let after: Vec<Vec<u8>> = costs(&example).iter().map(|path| fs::read(path).unwrap()).collect();
    assert_eq!(before, after, "the same hours, byte for byte");
    // One price of a pool that holds in four of the hours, and a comment.
    let dearer = example.card("fee: \"48.00\"", "fee: \"48.01\" # a cent more");
    assert_eq!(done(&example.money(&dearer, &[])), "4 hours priced, 2 unchanged (table costs)");
    assert_eq!(done(&example.money(&dearer, &["--force"])), "6 hours priced, 0 unchanged (table costs)");
    // Part of the window.
    assert_eq!(
        done(&example.money(&dearer, &["--from", "2026-03-02T02:00:00Z", "--to", "2026-03-02T04:00:00Z"])),
        "0 hours priced, 2 unchanged (table costs)"
    );
}

#[test]
fn windows_sum_to_the_whole_and_the_table_says_the_same() {
    let example = Example::new();
    let card = rates();
    let whole: i64 = example.bill(&card, &[]).iter().filter_map(|line| line["micro"].as_i64()).sum();
    let mut sum = 0;
    for hour in 0..6 {
        let (from, to) = (format!("2026-03-02T{hour:02}:00:00Z"), format!("2026-03-02T{:02}:00:00Z", hour + 1));
        sum += example.bill(&card, &["--from", &from, "--to", &to]).iter().filter_map(|line| line["micro"].as_i64()).sum::<i64>();
    }
    assert_eq!(sum, whole);
    let sql = "SELECT SUM(micro) AS micro, SUM(source_micro) AS source FROM costs";
    let row: Value = serde_json::from_str(&succeeds(&["sql", "--lake", &example.lake(), "--format", "json", sql])).unwrap();
    assert_eq!((row["micro"].as_i64(), row["source"].as_i64()), (Some(whole), Some(whole)));
    let lake = lake::Lake::open(Path::new(&example.lake())).unwrap();
    let verdict = query::money::proof::check(&lake, None).unwrap();
    assert_eq!((verdict.hours, verdict.faults, verdict.fault), (6, 0, None));
    assert_eq!(verdict.pools, 5 + 6 + 4, "hours in which each pool costs something");
}

#[test]
fn a_bill_of_what_a_provider_says() {
    let example = Example::new();
    let runs = example.write(
        "runs.csv",
        "run,pool,gpus,from,to\nb-1,borealis-node,4,2026-03-02T00:09:00Z,2026-03-02T03:26:10Z\nb-2,borealis-node,4,2026-03-02T04:00:00Z,2026-03-02T04:00:47Z\n\
         x,borealis-node,no,2026-03-02T04:00:00Z,\n",
    );
    let said = succeeds(&["import", "runs", &runs, "--lake", &example.lake()]);
    assert!(said.contains("2 rows") && said.contains("1 lines") && said.contains("line 4: gpus"), "{said}");
    // 197 min 10 s are billed as 198 min, 47 s as one: 199 min x 4 x 3.90.
    let lines = example.bill(&rates(), &["--by", "pool"]);
    let of = |pool: &str| lines.iter().filter(|l| l["pool"] == pool).filter_map(|l| l["micro"].as_i64()).sum::<i64>();
    assert_eq!((of("borealis-node"), of("cumulus-year")), (199 * 4 * 65_000, 52_800_000));
    let ran = example.money(&rates(), &[]);
    assert!(ran.out.contains("borealis-node 51.740000 (imported)") && ran.out.contains("(terms)"), "{}", ran.out);
    // The same again changes nothing; a corrected run replaces itself; by labels it is found too.
    succeeds(&["import", "runs", &runs, "--lake", &example.lake()]);
    assert!(done(&example.money(&rates(), &[])).starts_with("0 hours priced"));
    let fixed = example.write(
        "fixed.csv",
        "run,provider,purchase_option,gpus,from,to\nb-1,borealis,on-demand,4,2026-03-02T00:10:00Z,2026-03-02T03:25:30Z\n",
    );
    succeeds(&["import", "runs", &fixed, "--lake", &example.lake()]);
    let lines = example.bill(&rates(), &["--by", "pool"]);
    assert_eq!(
        lines.iter().filter(|l| l["pool"] == "borealis-node").filter_map(|l| l["micro"].as_i64()).sum::<i64>(),
        51_220_000
    );
}

/// The card is refused, with all of these words.
fn refused(example: &Example, card: &str, code: u8, words: &[&str]) {
    let ran = example.money(card, &[]);
    assert_eq!(ran.code, code, "{}\n{}", ran.message, ran.out);
    for word in words {
        assert!(ran.message.contains(word), "`{word}` is not in: {}", ran.message);
    }
    assert!(costs(example).is_empty(), "nothing is written");
}

#[test]
fn cards_that_are_refused_say_where_and_why() {
    let example = Example::new();
    let wrong = |from: &str, to: &str, words: &[&str]| refused(&example, &example.card(from, to), 2, words);
    wrong("gpus_per_node: 4", "gpus_per_nod: 4", &["rates.yaml, line 11", "gpus_per_nod", "did you mean `gpus_per_node`"]);
    wrong("match: {provider: borealis", "match: {provder: borealis", &["line 9", "`provder`", "`provider`"]);
    wrong("\"15.60\"", "15.60", &["line 10", "price_per_node_hour", "float", "in quotes"]);
    wrong("\"15.60\"", "15", &["line 10", "price_per_node_hour", "decimal in quotes"]);
    wrong("\"15.60\"", "\"15.6000001\"", &["line 10", "six decimals"]);
    wrong("\"15.60\"", "\"-15.60\"", &["line 7", "borealis-node", "-15600000", "below 0"]);
    wrong("\"15.60\"", "\"1e3\"", &["line 10", "decimal"]);
    wrong("\"15.60\"", "\"99999999999999999999\"", &["line 10", "64 bits"]);
    wrong("kind: per_use", "kind: per_use\n    currency: USD", &["line 7", "borealis-node", "USD", "EUR"]);
    wrong("kind: per_use", "kind: savings_plan", &["line 8", "savings_plan", "commitment"]);
    wrong("currency: EUR", "currency: euro", &["line 2", "three capitals"]);
    wrong("pool: cumulus-block", "pool: cumulus-year", &["line 28", "cumulus-year", "twice"]);
    wrong("to: 2027-01-01", "to: 2026-01-01", &["line 16", "cumulus-year", "term"]);
    wrong("kind: per_use", "kind: per_use\n    from: 2026-03-02T00:30:00Z", &["borealis-node", "full UTC hour"]);
    wrong(
        "reservation: cb-1",
        "reservation: cr-7",
        &["cumulus-year", "line 16", "cumulus-block", "line 28", "2026-03-02T02:00:00"],
    );
    wrong("idle: by_use", "idle: shared", &["idle", "by_use"]);
    wrong("    gpus: 4\n    from: 2026-01-01", "    from: 2026-01-01", &["gpus", "missing"]);
    let write = |text: &str| example.write("rates.yaml", text);
    refused(&example, &write(""), 2, &["no pools", "docs/money.md"]);
    refused(&example, &write("currency: EUR\npools: []\n"), 2, &["no pools"]);
    refused(&example, &write("pools: [\n"), 2, &["YAML"]);
    refused(&example, &write("- a\n"), 2, &["rate card"]);
    refused(&example, "/no/such/rates.yaml", 2, &["/no/such/rates.yaml"]);
    // Prices that are read and are too much to be computed: at once, and in the third hour, before which all is well.
    let dear = |price: &str| {
        example.card("price_per_node_hour: \"15.60\"\n    gpus_per_node: 4", &format!("micro_per_gpu_hour: {price}"))
    };
    refused(&example, &dear("9000000000000000000"), 1, &["borealis-node", "too large", "overflow", "2026-03-02T00"]);
    let ran = example.money(&dear("1000000000000000000"), &[]);
    assert!(ran.code == 1 && ran.message.contains("2026-03-02T02") && ran.message.contains("overflow"), "{}", ran.message);
    let opened = lake::Lake::open(Path::new(&example.lake())).unwrap();
    let verdict = query::money::proof::check(&opened, None).unwrap();
    assert_eq!((verdict.hours, verdict.fault), (2, None));
    costs(&example).iter().for_each(|path| fs::remove_file(path).unwrap());
    // A card of other months.
    let later = fs::read_to_string(rates()).unwrap().replace("2026-0", "2025-0").replace("2027-", "2026-");
    let later = later.replace("kind: per_use", "kind: per_use\n    to: 2026-01-01");
    refused(&example, &write(&later), 1, &["2026-03-02T00:00:00", "2026-01-01T00:00:00", "card of these months"]);
}

#[test]
fn a_lake_without_hour_rows_says_what_to_run() {
    let folder = tempfile::tempdir().unwrap();
    let lake = folder.path().join("lake").to_str().unwrap().to_owned();
    succeeds(&["import", "devices", &tree_text("docs/examples/money/devices.csv"), "--lake", &lake]);
    let ran = strandline(&["money", "--lake", &lake, "--rates", &rates()]);
    assert_eq!(ran.code, 1);
    assert!(ran.message.contains("no hour rows") && ran.message.contains("strandline hours"), "{}", ran.message);
}

#[test]
fn odd_cards_are_used_and_warned_of_and_the_time_stays_whole() {
    let example = Example::new();
    let held = |lines: &[Value]| -> i64 {
        let free = ["idle", "reserved_idle", "block_tail"];
        lines.iter().filter(|l| !free.contains(&l["bucket"].as_str().unwrap())).map(|l| l["gpu_ms"].as_i64().unwrap()).sum()
    };
    let whole = held(&example.bill(&rates(), &[]));
    let sums = |card: &str, words: &[&str]| -> Vec<Value> {
        let ran = example.money(card, &[]);
        assert_eq!(ran.code, 0, "{}", ran.message);
        for word in words.iter().chain(&["sums to the source"]) {
            assert!(ran.out.contains(word), "`{word}` is not in: {}", ran.out);
        }
        let lake = lake::Lake::open(Path::new(&example.lake())).unwrap();
        assert_eq!(query::money::proof::check(&lake, None).unwrap().fault, None);
        example.bill(card, &["--by", "pool,team"])
    };
    // A gap: borealis has no price from 01:00 to 02:00, in which reef holds four GPUs.
    let card = fs::read_to_string(rates()).unwrap();
    let begin = card.find("  - pool: borealis-node").unwrap();
    let end = card.find("  # Cumulus: four GPUs").unwrap();
    let first = card[begin..end].replacen("kind: per_use", "kind: per_use\n    to: 2026-03-02T01:00:00Z", 1);
    let second = card[begin..end].replacen("kind: per_use", "kind: per_use\n    from: 2026-03-02T02:00:00Z", 1);
    let second = second.replace("borealis-node", "borealis-later").replace("15.60", "31.20");
    let gap = example.write("gap.yaml", &format!("{}{first}{second}{}", &card[..begin], &card[end..]));
    let lines =
        sums(&gap, &["no price from 2026-03-02T01:00:00.000Z to 2026-03-02T02:00:00.000Z", "WITHOUT A PRICE: 4.000 GPU-hours"]);
    let rows = by_row(&lines);
    assert_eq!(rows[&key("unpriced", "reef", "unpriced")], (gpu_s(4, 3_600), None));
    assert_eq!(rows[&key("borealis-node", "reef", "team")], (gpu_s(4, 2_400), Some(10_400_000)));
    // 50 minutes at twice the price; the run is one, so that its pad comes once, at the price that it ends with.
    assert_eq!(rows[&key("borealis-later", "reef", "team")], (gpu_s(4, 3_000), Some(26_000_000)));
    assert_eq!(rows[&key("borealis-later", "-", "billing_minimum")], (0, Some(372_667)));
    assert_eq!(held(&lines), whole);
    // A product that no row has.
    let card = example.card("{provider: borealis,", "{product: [Orca X1, Orca X2], provider: borealis,");
    assert_eq!(held(&sums(&card, &["product `Orca X2`", "`Orca X1`", "line 7"])), whole);
    // A product that no row has and nothing else: all of that provider is unpriced, and nothing is free of charge.
    let card = example.card("{provider: borealis,", "{product: Orca X9, provider: borealis,");
    let lines = sums(&card, &["product `Orca X9`", "WITHOUT A PRICE"]);
    assert_eq!(held(&lines) - whole, gpu_s(4, 11_730) - gpu_s(4, 9_000) - gpu_s(1, 2_130), "its free time is shown too");
    assert!(by_row(&lines).iter().all(|((.., bucket), (_, micro))| (bucket == "unpriced") == micro.is_none()));
    // More held than is paid for, inside the tolerance: not billed; and beyond it: refused.
    let card =
        example.card("    gpus: 4\n    from: 2026-01-01", "    gpus: 3\n    tolerance_gpu_ms: 3600000\n    from: 2026-01-01");
    let lines = sums(&card, &["held beyond what is billed, at no cost: 2.000 GPU-hours"]);
    assert_eq!(by_row(&lines)[&key("cumulus-year", "-", "not_billed")], (gpu_s(2, 3_600), Some(0)));
    assert_eq!(held(&lines), whole);
    let card = example.card("    gpus: 4\n    from: 2026-01-01", "    gpus: 3\n    from: 2026-01-01");
    let ran = example.money(&card, &[]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    for word in ["cumulus-year", "14400000", "10800000", "usage_exceeds_capacity", "2026-03-02T01:00:00"] {
        assert!(ran.message.contains(word), "{word}: {}", ran.message);
    }
}

#[test]
fn work_that_restarts_lost_is_a_memo_or_a_row_and_the_bill_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let lake = folder.path().join("lake").to_str().unwrap().to_owned();
    let devices = write(
        "devices.csv",
        "node,device,provider,from,to\n\
         s-1,GPU-00000051-0000-4000-8000-000000000000,borealis,2026-03-02T00:00:00Z,2026-03-02T02:00:00Z\n\
         s-1,GPU-00000051-0000-4000-8000-000000000001,borealis,2026-03-02T00:00:00Z,2026-03-02T02:00:00Z\n",
    );
    // `a` loses 40 min on two GPUs, half of it in the hour before; `b` has no checkpoint; `c` ended well, `d` was removed.
    let allocations = write(
        "allocations.csv",
        "pod,team,node,gpus,bound,ended,last_checkpoint,terminal_phase\n\
         a,reef,s-1,2,2026-03-02T00:00:00Z,2026-03-02T01:20:00Z,2026-03-02T00:40:00Z,Failed\n\
         b,kelp,s-1,1,2026-03-02T01:30:00Z,2026-03-02T01:40:00Z,,Failed\n\
         c,kelp,s-1,1,2026-03-02T01:30:00Z,2026-03-02T01:50:00Z,2026-03-02T01:35:00Z,Succeeded\n\
         d,reef,s-1,1,2026-03-02T01:50:00Z,2026-03-02T02:00:00Z,,\n\
         e,reef,s-1,1,2026-03-02T01:50:00Z,2026-03-02T02:00:00Z,,Unknown\n",
    );
    succeeds(&["import", "devices", &devices, "--lake", &lake]);
    let said = succeeds(&["import", "allocations", &allocations, "--lake", &lake]);
    assert!(said.contains("terminal_phase") && said.contains("line 6"), "{said}");
    succeeds(&["hours", "--lake", &lake]);
    let bill = |basis: &str| -> (Vec<Value>, String) {
        let pool = format!("{{pool: spot, kind: per_use, match: {{}}, price_per_gpu_hour: \"6\", spot_used_basis: {basis}}}");
        let card = write("rates.yaml", &format!("currency: EUR\npools:\n  - {pool}\n"));
        let money = |format: &str| succeeds(&["money", "--lake", &lake, "--rates", &card, "--format", format]);
        let shown = money("table");
        let opened = lake::Lake::open(Path::new(&lake)).unwrap();
        assert_eq!(query::money::proof::check(&opened, None).unwrap().fault, None);
        (money("json").lines().map(|line| serde_json::from_str(line).unwrap()).collect(), shown)
    };
    let minutes = |gpu_minutes: i64| gpu_s(gpu_minutes, 60);
    let (lines, shown) = bill("billed");
    let find = |lines: &[Value], team: &str, bucket: &str| -> Option<Value> {
        lines.iter().find(|line| line["team"] == team && line["bucket"] == bucket).cloned()
    };
    for (team, gpu_minutes, held) in [("reef", 80, 160 + 10), ("kelp", 10, 10 + 20)] {
        let memo = find(&lines, team, "restart_waste_memo").unwrap();
        assert_eq!((&memo["memo_gpu_ms"], &memo["memo_micro"]), (&minutes(gpu_minutes).into(), &(gpu_minutes * 100_000).into()));
        assert_eq!(find(&lines, team, "team").unwrap()["gpu_ms"], minutes(held));
    }
    assert!(shown.contains("1 restarts have no checkpoint") && shown.contains("24.000000"), "{shown}");
    let (lines, shown) = bill("productive");
    for (team, gpu_minutes, held) in [("reef", 80, 160 + 10), ("kelp", 10, 10 + 20)] {
        let waste = find(&lines, team, "restart_waste").unwrap();
        assert_eq!((&waste["gpu_ms"], &waste["micro"]), (&minutes(gpu_minutes).into(), &(gpu_minutes * 100_000).into()));
        assert_eq!(find(&lines, team, "team").unwrap()["gpu_ms"], minutes(held - gpu_minutes));
    }
    assert!(shown.contains("24.000000"), "{shown}");
    // An import goes before the pod's own word, and a later restart loses what was done since the one before.
    let told = write(
        "restarts.csv",
        "pod,at,last_checkpoint\na,2026-03-02T01:20:00Z,2026-03-02T01:00:00Z\na,2026-03-02T00:30:00Z,\nnobody,2026-03-02T00:30:00Z,\n",
    );
    succeeds(&["import", "restarts", &told, "--lake", &lake]);
    let (lines, shown) = bill("billed");
    assert_eq!(find(&lines, "reef", "restart_waste_memo").unwrap()["memo_gpu_ms"], minutes(2 * 20 + 2 * 30));
    assert!(shown.contains("1 imported restarts name a pod that holds nothing"), "{shown}");
}
