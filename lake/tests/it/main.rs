//! The lake through its public face, on a real disk and on an S3-compatible server.

#![allow(clippy::unwrap_used)]

mod s3_server;
mod stores;

use std::{fs, sync::Arc};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, types::Int64Type};
use lake::{ClosedKey, Footer, HotKey, Lake, LakeError, Published, Watermark, path::TopicId, read};
use schemas::{Timestamp, Window, tables};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Rows of `device_hours`: (hour, device, ms).
fn rows(of: &[(&str, &str, i64)]) -> RecordBatch {
    let times = of.iter().map(|r| at(r.0).micros()).collect::<Vec<_>>();
    let text = |of: Vec<&str>| Arc::new(StringArray::from(of)) as ArrayRef;
    RecordBatch::try_new(
        tables::get("device_hours").schema(),
        vec![
            Arc::new(TimestampMicrosecondArray::from(times).with_timezone("UTC")),
            text(vec!["c"; of.len()]),
            text(vec!["n"; of.len()]),
            text(of.iter().map(|r| r.1).collect()),
            Arc::new(Int64Array::from(of.iter().map(|r| r.2).collect::<Vec<_>>())),
        ],
    )
    .unwrap()
}

fn key(start: u64) -> HotKey {
    HotKey { topic_id: TopicId::parse("t1").unwrap(), partition: 0, start }
}

fn footer(epoch: &str, end: u64) -> Footer {
    Footer { topic: Some("t".into()), end: Some(end), records: 1, writer_epoch: epoch.into(), ..Footer::default() }
}

#[test]
fn of_two_writers_at_one_offset_one_wins() {
    let dir = tempfile::tempdir().unwrap();
    let lake = Lake::create(dir.path()).unwrap();
    let table = tables::get("device_hours");
    let (mine, theirs) = (rows(&[("2026-03-02T10:00:00Z", "GPU-a", 1)]), rows(&[("2026-03-02T10:00:00Z", "GPU-b", 2)]));
    assert_eq!(lake.publish_hot(table, &key(5), std::slice::from_ref(&mine), footer("a", 7)).unwrap(), Published::New);
    assert_eq!(lake.publish_hot(table, &key(5), std::slice::from_ref(&mine), footer("a", 7)).unwrap(), Published::AlreadyMine);
    assert_eq!(lake.publish_hot(table, &key(5), &[theirs], footer("b", 9)).unwrap(), Published::Taken);
    assert_eq!(lake.publish_hot(table, &key(5), &[mine], footer("b", 7)).unwrap(), Published::Taken);
    let (head, footer) = lake.hot_head(table, &key(0).topic_id, 0).unwrap().unwrap();
    assert_eq!((head.key.start, footer.end, footer.rows, footer.writer_epoch.as_str()), (5, Some(7), 1, "a"));
    assert_eq!(footer.min_at, Some(at("2026-03-02T10:00:00Z")));
    let left: Vec<_> =
        fs::read_dir(head.path.path().unwrap().parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 1, "no scratch file stays: {left:?}");
}

#[test]
fn a_closed_hour_is_replaced_whole() {
    let dir = tempfile::tempdir().unwrap();
    let lake = Lake::create(dir.path()).unwrap();
    let table = tables::get("device_hours");
    let hour = ClosedKey::of(at("2026-03-02T10:30:00Z"));
    for ms in [1, 2] {
        let batch = rows(&[("2026-03-02T10:00:00Z", "GPU-b", ms), ("2026-03-02T10:00:00Z", "GPU-a", ms)]);
        let batch = lake::encode::sorted(table, &[batch]).unwrap();
        lake.publish_closed(table, hour, &[batch], Footer { writer_epoch: "x".into(), ..Footer::default() }).unwrap();
    }
    let files = lake.closed_files(table, None).unwrap();
    assert_eq!(files.len(), 1);
    assert_eq!(files[0].path.key(), "device_hours/date=2026-03-02/hour=10/part-00000.parquet");
    let back = &read::rows(table, &files[0].path, Some(&["capacity_ms", "device"])).unwrap()[0];
    assert_eq!(back.column(0).as_primitive::<Int64Type>().values(), &[2, 2]);
    assert_eq!(back.column(1).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["GPU-a", "GPU-b"]);
    let later = Window::new(at("2026-03-02T11:00:00Z"), at("2026-03-02T12:00:00Z")).unwrap();
    assert!(lake.closed_files(table, Some(later)).unwrap().is_empty());
    lake.remove_closed(table, hour).unwrap();
    lake.remove_closed(table, hour).unwrap();
    assert!(lake.closed_files(table, None).unwrap().is_empty());
}

#[test]
fn damaged_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let lake = Lake::create(dir.path()).unwrap();
    let table = tables::get("device_hours");
    let batch = rows(&[("2026-03-02T10:00:00Z", "GPU-a", 1)]);
    let footer = Footer { writer_epoch: "x".into(), ..Footer::default() };
    let path = lake.publish_closed(table, ClosedKey::of(at("2026-03-02T10:00:00Z")), &[batch], footer).unwrap();
    let whole = fs::read(path.path().unwrap()).unwrap();
    for half in [0, 3, whole.len() / 2, whole.len() - 1] {
        fs::write(path.path().unwrap(), &whole[..half]).unwrap();
        let error = read::rows(table, &path, None).unwrap_err();
        assert!(matches!(error, LakeError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("part-00000.parquet"), "{error}");
        assert!(read::footer(&path).is_err());
    }
    fs::write(path.path().unwrap(), &whole).unwrap();
    let other = tables::get("costs");
    assert!(matches!(read::rows(other, &path, None).unwrap_err(), LakeError::MissingColumn { .. }));
}

#[test]
fn the_watermark_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let lake = Lake::create(dir.path()).unwrap();
    assert_eq!(lake.watermark().unwrap(), None);
    let mark = Watermark { from: at("2026-03-02T10:00:00Z"), closed_to: at("2026-03-03T10:00:00Z") };
    lake.set_watermark(mark).unwrap();
    assert_eq!(lake.watermark().unwrap(), Some(mark));
    fs::write(dir.path().join("_state/watermark.json"), "{").unwrap();
    assert!(matches!(lake.watermark().unwrap_err(), LakeError::State { .. }));
    assert!(matches!(Lake::open(&dir.path().join("nowhere")).unwrap_err(), LakeError::NoLake(_)));
}

#[test]
fn columns_carry_field_ids_and_plain_types() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    for table in tables::all() {
        let empty = RecordBatch::new_empty(table.schema());
        let bytes = lake::encode::file(table, &[empty], &mut Footer::default()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        fs::write(&path, bytes).unwrap();
        let reader = SerializedFileReader::new(fs::File::open(&path).unwrap()).unwrap();
        let schema = reader.metadata().file_metadata().schema();
        for (field, column) in schema.get_fields().iter().zip(&table.columns) {
            assert!(field.get_basic_info().has_id(), "{}.{}", table.name, column.name);
            assert_eq!(field.get_basic_info().id(), column.id, "{}.{}", table.name, column.name);
            assert!(field.is_primitive(), "no nested types");
        }
        assert!(reader.metadata().file_metadata().key_value_metadata().unwrap().iter().all(|kv| kv.key != "ARROW:schema"));
    }
}

#[test]
fn the_content_hash_is_that_of_the_rows_however_few() {
    let dir = tempfile::tempdir().unwrap();
    let lake = Lake::create(dir.path()).unwrap();
    let table = tables::get("device_hours");
    let publish = |ms| {
        let batch = rows(&[("2026-03-02T10:00:00Z", "GPU-a", ms)]);
        lake.publish_closed(table, ClosedKey::of(at("2026-03-02T10:00:00Z")), &[batch], footer("a", 1)).unwrap()
    };
    // A hash of nothing would make other rows pass for unchanged ones, and another writer's file for one's own.
    let hash = |ms| read::footer(&publish(ms)).unwrap().content_hash;
    assert_ne!(hash(1), hash(2));
    assert_eq!(hash(1), hash(1));
    let path = publish(1);
    read::verify(&path).unwrap();
    let mut bytes = fs::read(path.path().unwrap()).unwrap();
    bytes[40] ^= 1;
    fs::write(path.path().unwrap(), bytes).unwrap();
    assert!(matches!(read::verify(&path), Err(LakeError::Changed(_))));
}
