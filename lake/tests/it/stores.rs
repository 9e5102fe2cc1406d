//! The same operations on a folder and on a bucket; and what only a bucket can do wrong.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use arrow::array::{AsArray, types::Int64Type};
use hyper::Method;
use lake::{
    Access, ClosedKey, Footer, HotKey, Lake, LakeError, Published, Removed, Watermark, read,
    scan::{NodeRange, Scan},
};
use schemas::{Window, tables, tables::Table};

use crate::{
    at, footer, key, rows,
    s3_server::{Fault, Server},
};

fn table() -> &'static Table {
    tables::get("device_hours")
}

/// One row of device `name`.
fn row(name: &str, ms: i64) -> arrow::array::RecordBatch {
    rows(&[("2026-03-02T10:00:00Z", name, ms)])
}

fn hour() -> ClosedKey {
    ClosedKey::of(at("2026-03-02T10:30:00Z"))
}

/// Runs a test on a lake of each kind.
fn both(test: impl Fn(&Lake)) {
    let dir = tempfile::tempdir().unwrap();
    test(&Lake::create(&dir.path().join("lake")).unwrap());
    let server = Server::start();
    test(&on(&server, "reef"));
}

fn on(server: &Server, prefix: &str) -> Lake {
    Lake::create_with(&server.location(prefix), || server.access()).unwrap()
}

fn read_ms(lake: &Lake) -> Vec<i64> {
    let files = lake.closed_files(table(), None).unwrap();
    let batches = files.iter().flat_map(|file| read::rows(table(), &file.path, Some(&["capacity_ms"])).unwrap());
    batches.flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
}

#[test]
fn publishing_a_hot_file_is_a_compare_and_swap() {
    both(|lake| {
        let (mine, theirs) = ([row("GPU-a", 1)], [row("GPU-b", 2)]);
        assert_eq!(lake.hot_head(table(), &key(0).topic_id, 0).unwrap(), None);
        assert_eq!(lake.publish_hot(table(), &key(5), &mine, footer("a", 7)).unwrap(), Published::New);
        let again = lake.publish_hot(table(), &key(5), &mine, footer("a", 7)).unwrap();
        assert!(again != Published::Taken, "our own bytes are no other writer's: {again:?}");
        assert_eq!(lake.publish_hot(table(), &key(5), &theirs, footer("b", 9)).unwrap(), Published::Taken);
        assert_eq!(lake.publish_hot(table(), &key(8), &theirs, footer("b", 9)).unwrap(), Published::New);
        let files = lake.hot_files(table()).unwrap();
        assert_eq!(files.iter().map(|file| file.key.start).collect::<Vec<_>>(), [5, 8]);
        assert_eq!(read::footer(&files[0].path).unwrap().writer_epoch, "a");
        let (head, found) = lake.hot_head(table(), &key(0).topic_id, 0).unwrap().unwrap();
        assert_eq!((head.key.start, found.end, found.rows), (8, Some(9), 1));
        assert!(head.path.size().unwrap().unwrap() > 500);
        lake.remove_hot(table(), &key(5)).unwrap();
        lake.remove_hot(table(), &key(5)).unwrap();
        assert_eq!(lake.hot_files(table()).unwrap().len(), 1);
    });
}

#[test]
fn many_writers_at_one_offset_and_one_file() {
    both(|lake| {
        let won = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let won = &won;
                scope.spawn(move || {
                    for start in 0..5 {
                        let rows = [row("GPU-a", writer)];
                        let published =
                            lake.publish_hot(table(), &key(start), &rows, footer(&writer.to_string(), start)).unwrap();
                        won.fetch_add(usize::from(published == Published::New), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!((won.into_inner(), lake.hot_files(table()).unwrap().len()), (5, 5));
    });
}

#[test]
fn closed_hours_are_replaced_listed_scanned_verified_and_removed() {
    both(|lake| {
        assert!(!lake.place(&hour().path(table())).exists().unwrap());
        for ms in [1, 2] {
            let footer = Footer { writer_epoch: "x".into(), ..Footer::default() };
            let place = lake.publish_closed(table(), hour(), &[row("GPU-a", ms), row("GPU-b", ms)], footer).unwrap();
            read::verify(&place).unwrap();
            assert_eq!(read::schema(table(), &place).unwrap(), 0);
        }
        assert_eq!(read_ms(lake), [2, 2]);
        let later = ClosedKey::of(at("2026-03-03T00:00:00Z"));
        lake.publish_closed(table(), later, &[row("GPU-a", 3)], Footer::default()).unwrap();
        let of = |from: &str, to: &str| {
            let files = lake.closed_files(table(), Some(Window::new(at(from), at(to)).unwrap())).unwrap();
            files.iter().map(|file| file.key.hour.to_string()).collect::<Vec<_>>()
        };
        let (ten, midnight) = ("2026-03-02T10:00:00Z", "2026-03-03T00:00:00Z");
        assert_eq!(of("2026-03-02T10:59:00Z", "2026-03-02T12:00:00Z"), [hour().hour.to_string()]);
        assert_eq!(of("2026-03-02T11:00:00Z", midnight), Vec::<String>::new());
        assert_eq!(of(ten, "2026-03-03T00:00:01Z").len(), 2);
        assert_eq!(of("2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z").len(), 2);
        let scan = Scan {
            table: table(),
            columns: Some(&["device"]),
            nodes: NodeRange::only("c", "n"),
            between: None,
            dictionaries: true,
            instead: None,
        };
        let batches = scan.open(&lake.place(&hour().path(table()))).unwrap();
        assert_eq!(batches.map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 2);
        lake.remove_closed(table(), hour()).unwrap();
        lake.remove_closed(table(), hour()).unwrap();
        assert_eq!(read_ms(lake), [3]);
        // What is not there is named.
        let error = read::footer(&lake.place(&hour().path(table()))).unwrap_err();
        assert!(error.is_gone() && error.to_string().contains("hour=10/part-00000.parquet"), "{error}");
    });
}

#[test]
fn state_comes_back_and_a_turn_is_one_writers() {
    both(|lake| {
        assert_eq!(lake.watermark().unwrap(), None);
        let mark = |to: &str| Watermark { from: at("2026-03-02T10:00:00Z"), closed_to: at(to) };
        assert!(lake.set_watermark_over(mark("2026-03-02T11:00:00Z"), None).unwrap());
        let (found, version) = lake.watermark_now().unwrap().unwrap();
        assert_eq!(found, mark("2026-03-02T11:00:00Z"));
        assert!(lake.set_watermark_over(mark("2026-03-02T12:00:00Z"), Some(&version)).unwrap());
        assert_eq!(lake.watermark().unwrap(), Some(mark("2026-03-02T12:00:00Z")));

        let (mut removed, none) = lake.removed().unwrap();
        assert_eq!((removed.offsets(), none), (0, None));
        removed.add("t1/00000", 0, 5);
        assert!(lake.set_removed_over(&removed, None).unwrap());
        assert_eq!(lake.removed().unwrap().0, removed);
        lake.set_raw_from(hour().hour).unwrap();
        assert_eq!(lake.raw_from().unwrap(), Some(hour().hour));

        let mut turn = lake.try_turn("closing", "a").unwrap().unwrap();
        assert_eq!(turn.last(), "");
        assert!(lake.try_turn("closing", "b").unwrap().is_none());
        assert!(lake.try_turn("another", "b").unwrap().is_some());
        assert!(turn.keep().unwrap());
        drop(turn);
        assert_eq!(lake.try_turn("closing", "b").unwrap().unwrap().last(), "a");
        assert_eq!(lake.try_turn("closing", "b").unwrap().unwrap().last(), "b");
    });
}

#[test]
fn offsets_are_proven_over_what_is_there() {
    let anchor = tables::get("nodes");
    both(|lake| {
        let empty = arrow::array::RecordBatch::new_empty(anchor.schema());
        for (start, end) in [(0, 4), (5, 9), (10, 10)] {
            let footer = Footer { tables: Some(String::new()), ..footer("a", end) };
            lake.publish_hot(anchor, &key(start), std::slice::from_ref(&empty), footer).unwrap();
        }
        let tiles = lake.tiles().unwrap();
        assert_eq!((tiles.intervals, tiles.offsets, tiles.removed, tiles.faults), (3, 11, 0, vec![]));
        // What is gone without a word is missed, at the beginning too; what was said to go is not, gone or not.
        lake.remove_hot(anchor, &key(0)).unwrap();
        assert_eq!(lake.tiles().unwrap().faults, ["t1/00000: offsets 0 to 4 are in no file"]);
        let mut removed = Removed::default();
        removed.add("t1/00000", 0, 5);
        removed.add("t1/00000", 5, 10);
        assert!(lake.set_removed_over(&removed, None).unwrap());
        let tiles = lake.tiles().unwrap();
        assert_eq!((tiles.intervals, tiles.offsets, tiles.removed, tiles.faults), (1, 1, 10, vec![]));
        lake.remove_hot(anchor, &key(5)).unwrap();
        assert_eq!(lake.tiles().unwrap().faults, Vec::<String>::new());
    });
}

#[test]
fn a_parquet_file_that_is_not_ours_is_refused_on_both() {
    let dir = tempfile::tempdir().unwrap();
    let lake = Lake::create(dir.path()).unwrap();
    for stray in ["device_hours/part-00000.parquet", "device_hours/date=2026-03-02/hour=10/part-0.parquet"] {
        let path = dir.path().join(stray);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "x").unwrap();
        assert!(matches!(lake.closed_files(table(), None).unwrap_err(), LakeError::Stray(found) if found == path), "{stray}");
        std::fs::remove_file(&path).unwrap();
    }
    // A folder of such a name would be taken for a file by a glob.
    std::fs::create_dir_all(dir.path().join("device_hours/date=2026-03-02/hour=10/part-00000.parquet")).unwrap();
    assert!(matches!(lake.closed_files(table(), None).unwrap_err(), LakeError::Stray(_)));
    // The bucket's folder of the test's server stands for another program that writes there.
    let server = Server::start();
    let lake = on(&server, "reef");
    server.put("reef/device_hours/date=2026-03-02/hour=10/part-0.parquet", b"x");
    let error = lake.closed_files(table(), None).unwrap_err();
    assert!(
        error.to_string().starts_with("s3://lake/reef/device_hours/date=2026-03-02/hour=10/part-0.parquet is no file"),
        "{error}"
    );
}

#[test]
fn a_bucket_is_a_lake_once_something_writes_it() {
    let server = Server::start();
    let open = |prefix: &str| Lake::open_with(&server.location(prefix), || server.access());
    assert!(matches!(open("reef").unwrap_err(), LakeError::NoLake(_)));
    on(&server, "reef");
    assert_eq!(open("reef").unwrap().location(), server.location("reef"));
    assert!(matches!(open("ree").unwrap_err(), LakeError::NoLake(_)), "a prefix ends at a `/`");
    let lake = on(&server, "");
    assert_eq!(lake.closed_files(table(), None).unwrap(), []);
    let error = lake.folder("a test").unwrap_err().to_string();
    assert_eq!(error, "a test needs a lake on the local disk, and this one is s3://lake; copy it to a folder, and give that");
}

#[test]
fn a_store_that_lets_the_second_put_through_is_refused() {
    let server = Server::start();
    server.faults(|_, _| Fault::Unconditional);
    for _ in 0..2 {
        let error = Lake::create_with(&server.location("reef"), || server.access()).unwrap_err();
        assert!(matches!(error, LakeError::Unconditional(_)) && error.to_string().contains("If-None-Match"), "{error}");
    }
}

#[test]
fn a_lost_answer_is_no_other_writer() {
    let server = Server::start();
    let lake = on(&server, "reef");
    server.faults(|method, _| if method == Method::PUT { Fault::LostAnswer } else { Fault::None });
    let rows = [row("GPU-a", 1)];
    assert_eq!(lake.publish_hot(table(), &key(0), &rows, footer("a", 4)).unwrap(), Published::New);
    assert_eq!(lake.publish_hot(table(), &key(0), &rows, footer("b", 4)).unwrap(), Published::Taken);
    let hour = hour();
    let version = lake.publish_closed_over(table(), hour, &rows, Footer::default(), None).unwrap().unwrap();
    let next = lake.publish_closed_over(table(), hour, &[row("GPU-a", 2)], Footer::default(), Some(&version)).unwrap().unwrap();
    assert_ne!(version, next);
    assert_eq!(read_ms(&lake), [2]);
}

#[test]
fn a_writer_that_was_overtaken_writes_nothing() {
    let server = Server::start();
    let (one, other) = (on(&server, "reef"), on(&server, "reef"));
    let write = |lake: &Lake, ms, over| lake.publish_closed_over(table(), hour(), &[row("GPU-a", ms)], Footer::default(), over);
    let first = write(&one, 1, None).unwrap().unwrap();
    assert_eq!(write(&other, 2, None).unwrap(), None, "it believed that there was none");
    let second = write(&other, 2, Some(&first)).unwrap().unwrap();
    assert_eq!(write(&one, 3, Some(&first)).unwrap(), None);
    assert_eq!(read_ms(&one), [2]);
    assert!(write(&one, 3, Some(&second)).unwrap().is_some());
}

#[test]
fn an_overloaded_store_is_asked_again_but_not_for_ever() {
    let server = Server::start();
    let lake = on(&server, "reef");
    // Each request is refused once.
    let mut turn = 0;
    server.faults(move |_, _| {
        turn += 1;
        if turn % 2 == 1 { Fault::Overloaded } else { Fault::None }
    });
    assert_eq!(lake.publish_hot(table(), &key(0), &[row("GPU-a", 1)], footer("a", 4)).unwrap(), Published::New);
    assert_eq!(lake.hot_files(table()).unwrap().len(), 1);
    server.faults(|_, _| Fault::Overloaded);
    let access = Access { retry_for: Duration::from_millis(300), ..server.access() };
    let began = Instant::now();
    let error = Lake::open_with(&server.location("reef"), || access).unwrap_err();
    assert!(error.passes() && began.elapsed() < Duration::from_secs(10), "{error}");
    assert!(error.to_string().starts_with("cannot list s3://lake/reef"), "{error}");
}

#[test]
fn a_put_that_lands_after_its_time_is_found_to_be_ours() {
    let server = Server::start();
    on(&server, "reef");
    let access = Access { timeout: Duration::from_millis(150), retry_for: Duration::from_millis(100), ..server.access() };
    let lake = Lake::open_with(&server.location("reef"), || access).unwrap();
    server.faults(|method, _| if method == Method::PUT { Fault::Late(Duration::from_millis(400)) } else { Fault::None });
    let rows = [row("GPU-a", 1)];
    let error = lake.publish_hot(table(), &key(0), &rows, footer("a", 4)).unwrap_err();
    assert!(error.passes(), "{error}");
    server.faults(|_, _| Fault::None);
    // The server has it in hand still, or has dropped it with the connection; the same put again settles it, whichever it was.
    let published = lake.publish_hot(table(), &key(0), &rows, footer("a", 4)).unwrap();
    assert!(published != Published::Taken, "{published:?}");
    assert_eq!(lake.hot_files(table()).unwrap().len(), 1);
}

#[test]
fn a_lake_in_a_bucket_is_used_and_dropped_inside_a_runtime() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let lake = on(&server, "reef");
        assert_eq!(lake.watermark().unwrap(), None);
        drop(lake);
    });
}

#[test]
fn an_open_wire_is_refused_before_anything_goes_over_it() {
    let mut access = Server::start().access();
    access.settings.insert("AWS_ENDPOINT_URL".into(), "http://192.0.2.1:9000".into());
    let error = Lake::open_with("s3://lake/reef".as_ref(), || access).unwrap_err();
    assert!(error.to_string().contains("AWS_ALLOW_HTTP=true") && matches!(error, LakeError::OpenWire { .. }), "{error}");
}

#[test]
fn listing_goes_over_more_than_one_page() {
    // A page has 1,000 keys.
    let server = Server::start();
    let lake = on(&server, "reef");
    for start in 0..1_100_u64 {
        server.put(&format!("reef/{}", HotKey { start, ..key(0) }.path(table())), b"x");
    }
    let files = lake.hot_files(table()).unwrap();
    assert_eq!((files.len(), files.first().unwrap().key.start, files.last().unwrap().key.start), (1_100, 0, 1_099));
}
