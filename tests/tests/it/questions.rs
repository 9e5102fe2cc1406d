//! The questions of `query/sql`: the same answers by DataFusion, DuckDB and Spark, and by hand on a small world.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    command::{succeeds, tree, tree_text},
    peers::python,
};

/// Names and texts of the questions.
fn questions() -> Vec<(String, String)> {
    let files = std::fs::read_dir(tree("query/sql")).unwrap().map(|file| file.unwrap().path());
    let mut found: Vec<(String, String)> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "sql"))
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(&path).unwrap()))
        .collect();
    found.sort();
    found
}

/// Rows of CSV, columns first.
fn rows(text: &str) -> Vec<Vec<String>> {
    let mut rows = vec![vec![String::new()]];
    let (mut quoted, mut chars) = (false, text.chars().peekable());
    while let Some(c) = chars.next() {
        let field = rows.last_mut().unwrap().last_mut().unwrap();
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => field.push(chars.next().unwrap()),
            '"' => quoted = !quoted,
            ',' if !quoted => rows.last_mut().unwrap().push(String::new()),
            '\n' if !quoted => rows.push(vec![String::new()]),
            c => field.push(c),
        }
    }
    assert_eq!(rows.pop().unwrap(), [""], "the text ends with a line");
    rows
}

/// Whether two fields say the same: shares as the same double, which engines print in their own ways, all else as the same text.
fn agree(ours: &str, theirs: &str) -> bool {
    let share = |field: &str| field.contains(['.', 'e']).then(|| field.parse::<f64>().ok()).flatten();
    ours == theirs || share(ours).zip(share(theirs)).is_some_and(|(ours, theirs)| ours.to_bits() == theirs.to_bits())
}

fn ask(lake: &Path, query: &str) -> String {
    succeeds(&["sql", "--lake", lake.to_str().unwrap(), "--format", "csv", query])
}

/// The world that is written by hand.
fn world(folder: &Path) -> PathBuf {
    let lake = folder.join("world");
    std::fs::create_dir(&lake).unwrap();
    peer("questions_world.py", &[&tree("schemas/tables.md"), &lake]);
    lake
}

fn peer(script: &str, arguments: &[&Path]) {
    let made = Command::new(python()).arg(tree("tests/peers").join(script)).args(arguments).output().unwrap();
    assert!(made.status.success(), "{script}: {}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn three_engines_answer_every_question_alike() {
    let folder = tempfile::tempdir().unwrap();
    let demo = folder.path().join("demo");
    succeeds(&["demo", "--fleet", &tree_text("kwok-fleet/fleets/small.yaml"), "--keep", demo.to_str().unwrap()]);
    let (world, answers) = (world(folder.path()), folder.path().join("answers"));
    peer("questions.py", &[&tree("query/sql"), &tree("schemas/tables.md"), &answers, &demo, &world]);
    for (name, query) in questions() {
        let mut answered = 0;
        for lake in [&demo, &world] {
            let ours = rows(&ask(lake, &query));
            answered += ours.len() - 1;
            for engine in ["duckdb", "spark"] {
                let file = answers.join(lake.file_name().unwrap()).join(engine).join(format!("{name}.csv"));
                let theirs = rows(&std::fs::read_to_string(&file).unwrap());
                assert_eq!(ours.len(), theirs.len(), "{}: rows", file.display());
                for (ours, theirs) in ours.iter().zip(&theirs) {
                    let alike = ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| agree(ours, theirs));
                    assert!(alike, "{}:\n{ours:?}\n{theirs:?}", file.display());
                }
            }
        }
        assert!(answered > 0, "no row of {name} was compared");
    }
}

/// Each question's rows of the small world, worked out by hand; the world is in `tests/peers/questions_world.py`.
const BY_HAND: &[(&str, &str)] = &[
    // V18: free GPUs per node 8, 4, 4, 2, 1, 1 for an hour; shapes of 8, 4, 2 and 1 lose 60, 20, 10 and 0 %. Node m: three free GPUs of
    // which a pod takes one until 1,800.25 s, so 2 x 1,800,250 + 3 x 1,799,750 = 8,999,750 whole; 3/7 of a GPU free as an instance and
    // 1/7 an orphan; a gang of 2 has one place all along and cannot use the third GPU for 1,799,750. A node with one free GPU.
    (
        "fragmentation",
        "\
product,region,purchase_option,shape,free_ms,gang_ms,usable_ms,scattered_ms,partial_ms,orphan_ms,lost_ms,lost_share
P 22,eu,on-demand,1,3600000,3600000,3600000,0,0,0,0,0.0
P 22,eu,on-demand,2,3600000,0,0,3600000,0,0,3600000,1.0
P 22,eu,on-demand,4,3600000,0,0,3600000,0,0,3600000,1.0
P 22,eu,on-demand,8,3600000,0,0,3600000,0,0,3600000,1.0
P18,r,reserved,1,72000000,72000000,72000000,0,0,0,0,0.0
P18,r,reserved,2,72000000,32400000,64800000,7200000,0,0,7200000,0.1
P18,r,reserved,4,72000000,14400000,57600000,14400000,0,0,14400000,0.2
P18,r,reserved,8,72000000,3600000,28800000,43200000,0,0,43200000,0.6
PM,r,spot,1,10542607,8999750,8999750,0,1542857,514286,2057143,0.18605072871737113
PM,r,spot,2,10542607,3600000,7200000,1799750,1542857,514286,3856893,0.3488224947098611
PM,r,spot,4,10542607,0,0,8999750,1542857,514286,11056893,1.0
PM,r,spot,8,10542607,0,0,8999750,1542857,514286,11056893,1.0
",
    ),
    // V12: all eight for 5 minutes, which is over 5 % of the time, then one. The last device's sample of 23:49:00 speaks for 150 s: from
    // 23:51:30 on 510 s are seen in part, as is the minute of its blank. The other pod has both busy for 120 s of 3,570, under 5 %; before
    // its own first sample, 30 s after it came (32 by the node's clock), nobody speaks for it. It crosses midnight.
    (
        "busy-devices",
        "\
cluster,pod_uid,namespace,pod,team,width,seen_ms,partly_seen_ms,busy_p50,busy_p95,busy_max,coverage
c,burst,,,,8,3030000,570000,1,8,8,0.8416666666666667
c,night,,,,2,3570000,30000,1,1,2,0.9916666666666667
",
    ),
    // V22: 8 GPUs x 30 min = 14,400,000 (and 1 ms of another pod; the mean of the two, 900,000.5, goes up); 16 GPUs x 2 h, censored; one
    // GPU that was given up after 100.5 s.
    (
        "unserved",
        "\
product,region,purchase_option,capacity_ms,idle_ms,unserved_gpu_ms,admitted,admitted_gpu_ms,admitted_mean_wait_ms,\
admitted_longest_wait_ms,waiting,waiting_gpu_ms,waiting_longest_ms,withdrawn,withdrawn_gpu_ms
P-22,eu,on-demand,3600000,3600000,14400001,2,14400001,900001,1800000,0,0,,0,0
P-22,,,0,0,100500,0,0,,,0,0,,1,100500
P18,r,reserved,72000000,72000000,0,0,0,,,0,0,,0,0
PG,r,on-demand,14400000,0,0,0,0,,,0,0,,0,0
PM,r,spot,14400000,10542607,0,0,0,,,0,0,,0,0
,,,0,0,115200000,0,0,,,1,115200000,7200000,0,0
",
    ),
    // V21: 32 seats for 15 min and 8 for 45 are 14 seat-hours; the NaN after them is no reading for its 150 s. Rounds of 1,001 ms speak for
    // 2,502 ms: 2.5 and 1 seats make 8,757 seat-ms, with 599,500 - 2,502 between them.
    (
        "kv-seat-hours",
        "\
cluster,node,source,name,labels,seen_ms,unread_ms,gap_ms,most_seats_ppm,seat_ppm_ms,seat_hours,coverage
c,k,page,vllm:num_requests_running,\"{\"\"model\"\":\"\"m,1\"\"}\",3600000,150000,0,32000000,50400000000000,14.0,0.96
c,k,sparse,vllm:num_requests_running,\"{\"\"model\"\":\"\"m,1\"\"}\",5004,0,596998,2500000,8757000000,0.0024325,0.008312264743306501
",
    ),
    // A 3g instance, 3/7 of a GPU, held for an hour.
    (
        "profile-hours",
        "\
product,profile,team,instances,held_profile_ms,allocated_ms,sm_utilized_ms,sm_stranded_ms,sm_unobserved_ms,profile_hours,sm_coverage
PM,3g.20gb,ml,1,3600000,1542857,771428,771429,0,1.0,1.0
",
    ),
    // Of three devices one worked, one was seen for three quarters of its hour and never did, and nobody saw the third.
    (
        "gang-unused",
        "\
cluster,pod_uid,namespace,pod,team,devices,worked_devices,unused_devices,unseen_devices,allocated_ms,unused_ms,unused_observed_ms,coverage
c,gang,ns,gang,ml,3,1,1,1,10800000,3600000,2700000,0.75
",
    ),
    (
        "never-worked",
        "\
cluster,pod_uid,namespace,pod,workload,team,allocated_ms,observed_ms,unobserved_ms,coverage
c,idler,ns2,idler,,,1000000,900000,100000,0.9
",
    ),
    // V20: 61,440 MiB for an hour are 60 GiB-hours.
    (
        "hbm-hours",
        "\
team,product,allocated_ms,without_memory_ms,fb_unobserved_ms,fb_used_mib_ms,gib_hours
ml,PG,10800000,7200000,0,221184000000,60.0
ml,PM,3343107,3343107,0,,
,PG,1000000,1000000,0,,
",
    ),
    // 3.6 GJ are 1 kWh, from one device of three.
    (
        "energy",
        "\
team,product,allocated_ms,without_energy_ms,energy_mj,kwh,coverage
ml,PG,10800000,7200000,3600000000,1.0,0.3333333333333333
ml,PM,3343107,3343107,,,0.0
,PG,1000000,1000000,,,0.0
",
    ),
    // 1,000,000 of 3 x 3,600,000 + 1,800,250 + 1,542,857 + 1,000,000 allocated.
    (
        "unattributed",
        "\
cluster,namespace,unattributed_pods,allocated_ms,unattributed_ms,unattributed_share,fleet_share
c,ns2,1,1000000,1000000,1.0,0.06603664624439357
c,ns,0,14143107,0,0.0,0.0
",
    ),
    (
        "reserved-idle",
        "\
provider,region,product,purchase_option,capacity_ms,allocated_ms,unavailable_ms,idle_ms,idle_share
p,r,P18,reserved,72000000,0,0,72000000,1.0
",
    ),
    // Two replicas that only the kubelet knows, 2 x 3,600,000. Half an hour, and 250 ms of the next, that only the API server knows.
    // 2 x 3,599,500 by number and 2 x 3,598,000 by device; the second container on GPU-b adds nothing, and an import is neither side.
    (
        "reconciliation",
        "\
hour_utc,cluster,node,namespace,pod,found,api_ms,podres_ms,difference_ms
2027-12-31 23,c,w,ns,unknown,podres_only,0,7200000,-7200000
2027-12-31 23,c,w,ns,unseen,api_only,1800000,0,1800000
2027-12-31 23,c,w,ns,both,both,7199000,7196000,3000
2028-01-01 00,c,w,ns,unseen,api_only,250,0,250
",
    ),
];

#[test]
fn the_small_world_is_answered_as_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let lake = world(folder.path());
    for (name, expected) in BY_HAND {
        let answer = succeeds(&["sql", "--lake", lake.to_str().unwrap(), "--format", "csv", "--question", name]);
        assert_eq!(&answer, expected, "{name}");
    }
}

#[test]
fn every_question_opens_with_itself_and_is_in_the_docs() {
    let docs = std::fs::read_to_string(tree("docs/questions.md")).unwrap();
    let questions = questions();
    assert!(questions.len() >= 16, "questions were lost: {}", questions.len());
    for (name, query) in questions {
        let comment = query.strip_prefix("/* ").and_then(|rest| rest.split_once("*/")).map(|(comment, _)| comment);
        let question = comment.and_then(|comment| comment.split_once("\n\n")).map(|(question, _)| question.trim());
        assert!(question.is_some_and(|question| question.ends_with('?')), "{name} opens with {question:?}");
        assert!(docs.contains(&format!("`{name}`")), "docs/questions.md does not name {name}");
    }
}
