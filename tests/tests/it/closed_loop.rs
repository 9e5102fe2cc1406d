//! Simulator to hours and back to the truth, a few seeds in CI, many under `./x test --full`.

use crate::command::{strandline, succeeds, tree_text};

#[test]
fn the_ledger_matches_the_truth_under_faults() {
    let seeds: u64 = if std::env::var_os("STRANDLINE_FULL").is_some() { 40 } else { 4 };
    for seed in 1..=seeds {
        let folder = tempfile::tempdir().unwrap();
        let lake = folder.path().join("lake").to_str().unwrap().to_owned();
        let (fleet, number) = (tree_text("kwok-fleet/fleets/small.yaml"), seed.to_string());
        let ran = strandline(&["demo", "--fleet", &fleet, "--seed", &number, "--keep", &lake]);
        assert_eq!(ran.code, 0, "replay seed {seed}: {}\n{}", ran.message, ran.out);
        assert!(ran.out.contains("allocated matches to the millisecond"), "seed {seed}: {}", ran.out);
        assert!(ran.out.contains("check: closes"), "seed {seed}: {}", ran.out);

        // Doing the hours again changes nothing, and does nothing.
        let again = succeeds(&["hours", "--lake", &lake]);
        assert!(again.starts_with("0 hours computed"), "seed {seed}: {again}");
    }
}

#[test]
fn a_demo_is_the_same_twice() {
    let folder = tempfile::tempdir().unwrap();
    let report = |name: &str| {
        let lake = folder.path().join(name).to_str().unwrap().to_owned();
        succeeds(&["demo", "--fleet", &tree_text("kwok-fleet/fleets/small.yaml"), "--hours", "1", "--keep", &lake]);
        succeeds(&["report", "--lake", &lake, "--by", "team,node,pod,hour", "--format", "json"])
    };
    assert_eq!(report("a"), report("b"));
}

/// A lake of the small fleet, and the path of one of its hour files.
fn small_lake(folder: &std::path::Path) -> String {
    let lake = folder.join("lake").to_str().unwrap().to_owned();
    succeeds(&["demo", "--fleet", &tree_text("kwok-fleet/fleets/small.yaml"), "--hours", "1", "--keep", &lake]);
    lake
}

#[test]
fn check_names_the_first_device_and_hour_that_does_not_close() {
    use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, types::Int64Type};
    let folder = tempfile::tempdir().unwrap();
    let lake_path = small_lake(folder.path());
    let lake = lake::Lake::open(std::path::Path::new(&lake_path)).unwrap();
    let table = schemas::tables::get("gpu_hours");
    let file = lake.closed_files(table, None).unwrap().remove(0);
    let rows = &lake::read::rows(table, &file.path, None).unwrap()[0];
    let original = rows.clone();
    // One millisecond more in one row of one device.
    let place = table.index("ms").unwrap();
    let mut ms = rows.column(place).as_primitive::<Int64Type>().values().to_vec();
    let device = rows.column(table.index("device").unwrap()).as_string::<i32>().clone();
    let row = (0..rows.num_rows()).find(|row| arrow::array::Array::is_valid(&device, *row)).unwrap();
    ms[row] += 1;
    let mut columns: Vec<ArrayRef> = rows.columns().to_vec();
    columns[place] = std::sync::Arc::new(Int64Array::from(ms));
    let wrong = RecordBatch::try_new(rows.schema(), columns).unwrap();
    lake.publish_closed(table, file.key, &[wrong], lake::Footer::default()).unwrap();
    let ran = strandline(&["check", "--lake", &lake_path]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.out.starts_with("DOES NOT CLOSE"), "{}", ran.out);
    assert!(ran.out.contains(device.value(row)) && ran.out.contains(&file.key.hour.to_string()), "{}", ran.out);
    lake.publish_closed(table, file.key, &[original], lake::Footer::default()).unwrap();
    succeeds(&["check", "--lake", &lake_path]);
}
