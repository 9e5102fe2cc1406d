//! A past that is written at once is what the real path would have made of it: agents over HTTP, kubelets, log, sink, closing.

use std::path::Path;

use arrow::{
    array::{Array, ArrayRef, RecordBatch, StringArray, new_null_array},
    compute::concat_batches,
};
use ingest::{
    close::{self, Closer},
    frames::{PublishConfig, Transport, publish},
    publish::{ALLOCATIONS, NODES, SAMPLES},
    sink::{self, Sink},
    transport::{
        Topic,
        local::{self, Log},
    },
};
use lake::Lake;
use schemas::{HOUR_MS, tables};
use simulator::{
    FleetSpec, Plan,
    backfill::{
        Agents, frames,
        lake::{Options, backfill},
    },
    spec::{Delivery, Rate, Span},
};
use std::sync::Arc;

use crate::command::{succeeds, tree_text};

/// Columns that say by which way a row came, not what is so.
const ASIDE: [&str; 3] = ["source", "log_partition", "log_offset"];

fn plan(change: impl FnOnce(&mut FleetSpec)) -> Plan {
    let mut spec = FleetSpec::parse(&std::fs::read_to_string(tree_text("kwok-fleet/fleets/small.yaml")).unwrap()).unwrap();
    change(&mut spec);
    let seed = spec.seed;
    Plan::new(spec, seed).unwrap()
}

pub fn write(plan: &Plan, folder: &Path) {
    let lake = Lake::create(folder).unwrap();
    backfill(plan, &lake, &Options { window: plan.window(), threads: 2, agents: Agents::default() }, &|_| {}).unwrap();
}

/// Closed rows of a table, without the columns of [`ASIDE`]; ports of pages are masked in errors.
pub fn rows(folder: &Path, name: &'static str) -> RecordBatch {
    let (lake, table) = (Lake::open(folder).unwrap(), tables::get(name));
    let files = lake.closed_files(table, None).unwrap();
    let batches: Vec<RecordBatch> = files.iter().flat_map(|file| lake::read::rows(table, &file.path, None).unwrap()).collect();
    let all = concat_batches(&table.schema(), &batches).unwrap();
    let mask = |(column, array): (&tables::Column, &ArrayRef)| -> ArrayRef {
        // What a holding is known from is part of what is so; which page was asked is not.
        let aside =
            ASIDE.contains(&column.name.as_str()) && (column.name != "source" || ["gpu_samples", "scrapes"].contains(&name));
        if aside {
            return new_null_array(array.data_type(), array.len());
        }
        match column.name.as_str() {
            "error" => {
                let texts = array.as_any().downcast_ref::<StringArray>().unwrap();
                let masked = texts.iter().map(|text| text.map(|text| text.split_once("/nodes/").map_or(text, |(_, rest)| rest)));
                Arc::new(masked.collect::<StringArray>())
            }
            _ => array.clone(),
        }
    };
    let columns = table.columns.iter().zip(all.columns()).map(mask).collect();
    let fields: Vec<_> = table.schema().fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
    RecordBatch::try_new(Arc::new(arrow::datatypes::Schema::new(fields)), columns).unwrap()
}

pub fn alike(ours: &Path, theirs: &Path, tables: &[&'static str]) {
    for table in tables {
        let (ours, theirs) = (rows(ours, table), rows(theirs, table));
        assert_eq!(ours.num_rows(), theirs.num_rows(), "{table}");
        assert!(ours.num_rows() > 0, "{table}");
        for ((field, ours), theirs) in ours.schema().fields().iter().zip(ours.columns()).zip(theirs.columns()) {
            let differs = (0..ours.len()).find(|row| ours.slice(*row, 1) != theirs.slice(*row, 1));
            if let Some(row) = differs {
                panic!(
                    "{table}.{} row {row}: {:?}, by the real path {:?}",
                    field.name(),
                    ours.slice(row, 1),
                    theirs.slice(row, 1)
                );
            }
        }
    }
}

#[test]
fn a_backfilled_lake_has_the_rows_of_the_real_path_and_its_hours_are_the_truth() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, real) = (folder.path().join("ours"), folder.path().join("real"));
    let (ours_text, real_text) = (ours.to_str().unwrap(), real.to_str().unwrap());
    succeeds(&["demo", "--fleet", &tree_text("kwok-fleet/fleets/small.yaml"), "--keep", real_text]);
    write(&plan(|_| {}), &ours);
    alike(&ours, &real, &["gpu_samples", "scrapes", "allocations", "nodes", "demand", "truth_gpu_hours"]);
    succeeds(&["hours", "--lake", ours_text]);
    alike(&ours, &real, &["gpu_hours", "device_hours"]);
    let check = succeeds(&["check", "--lake", ours_text]);
    assert!(check.contains("closes"), "{check}");
    // One SQL join apart: the ledger allocates what is true, to the millisecond.
    let differ = succeeds(&[
        "sql",
        "--lake",
        ours_text,
        "--format",
        "csv",
        "SELECT SUM(CASE WHEN kind = 'owner' THEN ms ELSE 0 END) AS owned FROM gpu_hours UNION ALL \
         SELECT SUM(CASE WHEN kind = 'owner' THEN ms ELSE 0 END) FROM truth_gpu_hours",
    ]);
    let sums: Vec<&str> = differ.lines().skip(1).collect();
    assert_eq!((sums.len(), sums[0]), (2, sums[1]), "{differ}");
}

#[test]
fn messages_that_come_late_and_twice_close_to_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, real) = (folder.path().join("ours"), folder.path().join("real"));
    let of = |ppm, from, to| Delivery { rate: Rate(ppm), delay: (Span::from_ms(from).unwrap(), Span::from_ms(to).unwrap()) };
    let plan = plan(|spec| {
        spec.faults.late_batches = Some(of(50_000, 60_000, 1_800_000));
        spec.faults.repeated_batches = Some(of(50_000, 1_000, 600_000));
    });
    write(&plan, &ours);
    let file = folder.path().join("fleet.frames");
    let out = std::fs::File::create(&file).unwrap();
    let framed = frames::write(&plan, plan.window(), &Agents::default(), out, |_| {}).unwrap();
    assert!(framed.late > 10 && framed.repeated > 10, "{framed:?}");
    let dir = folder.path().join("log");
    let into = Transport::Log { dir: dir.clone(), partitions: 3, options: local::Options::default() };
    let config = PublishConfig { file, from_frame: 0, into };
    let published = publish(&config, || plan.window().to(), |_| {}).unwrap();
    assert_eq!((published.frames, published.rounds), (framed.frames, framed.rounds));
    // Gone on with from the middle: what is sent again does no harm.
    publish(&PublishConfig { from_frame: framed.frames / 2, ..config }, || plan.window().to(), |_| {}).unwrap();

    let lake = Lake::create(&real).unwrap();
    let log = Log::open(&dir, &[], local::Options::default()).unwrap();
    let topics = [SAMPLES, ALLOCATIONS, NODES].map(|name| log.topic(name).unwrap() as Arc<dyn Topic>);
    let mut sink =
        Sink::open(lake.clone(), topics.to_vec(), sink::Options { cut_age_ms: HOUR_MS, ..Default::default() }).unwrap();
    sink.flush(plan.window().to()).unwrap();
    Closer::new(lake, close::Options::default()).close(plan.window().to(), plan.window().to()).unwrap();
    alike(&ours, &real, &["gpu_samples", "scrapes", "allocations", "nodes", "demand"]);
}
