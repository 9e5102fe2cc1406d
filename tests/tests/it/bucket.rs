//! A lake in an object store answers as the same lake on disk does: SQL over both trees, hours, reports, checks.

use std::path::Path;

use lake::Lake;
use query::{
    job, proof,
    report::{self, Dimension, Request},
    show,
    sql::Session,
};
use schemas::status::Tier;

use crate::{
    command::{succeeds, tree_text},
    peers::QUERIES,
    s3_server::Server,
};

/// Puts every file of `folder` into the bucket under `prefix`.
fn upload(server: &Server, prefix: &str, root: &Path, folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("_log") {
            upload(server, prefix, root, &path);
        } else if path.is_file() {
            let key = format!("{prefix}/{}", path.strip_prefix(root).unwrap().to_str().unwrap());
            server.put(&key, &std::fs::read(&path).unwrap());
        }
    }
}

#[test]
fn a_lake_in_a_bucket_answers_as_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("lake");
    succeeds(&["demo", "--fleet", &tree_text("kwok-fleet/fleets/small.yaml"), "--keep", root.to_str().unwrap()]);
    let server = Server::start();
    upload(&server, "reef", &root, &root);
    let lakes = [Lake::open(&root).unwrap(), Lake::open_with(&server.location("reef"), || server.access()).unwrap()];
    let answers = || {
        lakes.each_ref().map(|lake| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let session = Session::open(lake).unwrap();
            let ask = |sql: &str| show::text(&runtime.block_on(session.rows(sql)).unwrap(), show::Format::Csv).unwrap();
            let mut said: Vec<String> = QUERIES.iter().map(|query| query.replace("TABLE:", "")).map(|sql| ask(&sql)).collect();
            for tier in [Tier::Busy, Tier::Sm, Tier::Effective] {
                let by = Dimension::parse_list("team,node,hour").unwrap();
                let request = Request { by, ..Request::of(tier) };
                said.push(format!("{:?}", report::report(lake, &request).unwrap().lines));
            }
            for proof in [proof::schema(lake, None), proof::hours(lake, None), proof::offsets(lake), proof::truth(lake)] {
                let proof = proof.unwrap();
                assert_eq!(proof.outcome, proof::Outcome::Holds, "{proof:?}");
                said.push(proof.words);
            }
            let verdict = query::check::check(lake, None).unwrap();
            assert!(verdict.hours == 2 && verdict.faults == 0, "{verdict:?}");
            said
        })
    };
    let [disk, bucket] = answers();
    for (n, (disk, bucket)) in disk.iter().zip(&bucket).enumerate() {
        assert_eq!(disk, bucket, "question {n}");
    }
    assert!(disk[0].contains("owner") && disk.iter().all(|said| said.lines().count() > 0), "{disk:?}");

    // Hours again, into the bucket: as they were.
    let done =
        lakes.each_ref().map(|lake| job::run(lake, job::Options { force: true, ..job::Options::default() }, |_, _| {}).unwrap());
    assert_eq!(done[0].computed, 2);
    assert_eq!((done[0].computed, done[0].rows, done[0].samples), (done[1].computed, done[1].rows, done[1].samples));
    assert_eq!(answers(), [disk.clone(), disk]);
}
