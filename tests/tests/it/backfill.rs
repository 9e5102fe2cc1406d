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

/// What the small fleet has not: cut and shared GPUs under every form of their ids, accelerators that nobody reads, nodes that are
/// silent for longer than the horizon and the hold-over, exporters that are down in every way but by hanging, boards that fall off
/// the bus, labels that are out of date. Pages print every field.
const ROUGH: &str = r#"
name: rough
seed: 3
start: 2026-03-02T00:00:00Z
hours: 3
scrape_interval: 30s
clusters:
  - name: lab
    node_pools:
      - { name: cut, count: 1, product: NVIDIA H100 80GB HBM3, gpus_per_node: 3, region: r, zone: z, provider: p,
          purchase_option: reserved, mig: [[3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb], [7g.80gb], []] }
      - { name: old, count: 1, product: NVIDIA A100-SXM4-80GB, gpus_per_node: 2, region: r, zone: z, provider: p,
          purchase_option: reserved, mig: [1g.10gb+me, 2g.20gb, 3g.40gb], mig_ids: indexed }
      - { name: shared, count: 1, product: NVIDIA L4, gpus_per_node: 2, region: r, zone: z, provider: p,
          purchase_option: on-demand, replicas: 4, rename: true }
      - { name: sliced, count: 1, product: Tesla T4, gpus_per_node: 2, region: r, zone: z, provider: p,
          purchase_option: spot, replicas: 2 }
      - { name: h100, count: 2, product: NVIDIA H100 80GB HBM3, gpus_per_node: 4, region: r, zone: z, provider: p,
          purchase_option: reserved }
  - name: other
    node_pools:
      - { name: tpu, count: 1, product: TPU v5e, gpus_per_node: 8, region: r, zone: z, provider: google, purchase_option: spot }
      - { name: amd, count: 1, product: AMD Instinct MI300X, gpus_per_node: 4, region: r, zone: z, provider: p, purchase_option: block }
teams:
  - { name: a, namespace: a, weight: 4, mix: { training: 1, batch: 4 }, products: [NVIDIA H100 80GB HBM3] }
  - { name: b, namespace: b, weight: 1, mix: { decode: 4, notebook: 2, batch: 4 }, products: [NVIDIA H100 80GB HBM3],
      resources: { decode: nvidia.com/mig-3g.40gb, notebook: nvidia.com/mig-1g.10gb, batch: nvidia.com/mig-2g.20gb } }
  - { name: c, namespace: c, weight: 1, mix: { batch: 3, notebook: 1 }, products: [NVIDIA A100-SXM4-80GB],
      resources: { batch: nvidia.com/mig-3g.40gb, notebook: nvidia.com/mig-1g.10gb.me } }
  - { name: d, namespace: d, weight: 1, mix: { notebook: 2, batch: 4, crash_loop: 1 }, products: [NVIDIA L4],
      resources: { notebook: nvidia.com/gpu.shared, batch: nvidia.com/gpu.shared, crash_loop: nvidia.com/gpu.shared } }
  - { name: e, namespace: e, weight: 1, mix: { batch: 4, inference: 1 }, products: [Tesla T4] }
  - { name: f, namespace: f, weight: 2, mix: { batch: 1 }, products: [TPU v5e] }
  - { name: g, namespace: g, weight: 1, mix: { batch: 1 }, products: [AMD Instinct MI300X] }
arrivals: { load: 1.3 }
faults:
  lost_scrapes: 0.01
  blanks: 0.003
  out_of_range: 0.002
  stale_labels: { share: 0.5, lasts: [30s, 3m] }
  xid: { per_gpu_day: 60 }
  driver_reload: { per_node_day: 20 }
  windows:
    - { nodes: h100-0, kind: lost, from: 40m, lasts: 25m }
    - { nodes: sliced-0, kind: reclaimed, from: 61m, lasts: 50s }
    - { nodes: sliced-0, kind: reclaimed, from: 80m, lasts: 30m }
    - { nodes: tpu-0, kind: lost, from: 100m, lasts: 10m }
    - { nodes: shared-0, kind: exporter_down, from: 20m, lasts: 12m, how: error }
    - { nodes: old-0, kind: exporter_down, from: 115m, lasts: 9m, how: empty }
    - { nodes: cut-0, kind: exporter_down, from: 50m, lasts: 4m }
"#;

#[test]
fn so_has_one_of_cut_shared_unread_silent_and_lost_devices() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, real, file) = (folder.path().join("ours"), folder.path().join("real"), folder.path().join("rough.yaml"));
    let (ours_text, real_text) = (ours.to_str().unwrap(), real.to_str().unwrap());
    let collectors = tree_text("kwok-fleet/collectors-all.csv");
    let collectors = std::fs::canonicalize(collectors).unwrap();
    std::fs::write(&file, format!("{ROUGH}exposition: {{ collectors: {} }}\n", collectors.display())).unwrap();
    let mut spec = FleetSpec::parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
    spec.load(folder.path()).unwrap();
    let seed = spec.seed;
    let plan = Plan::new(spec, seed).unwrap();
    let faults = simulator::faults(&plan, plan.window());
    for kind in ["off_the_bus", "stale_labels", "counter_reset", "node_death", "spot_reclaim", "exporter_down", "blank"] {
        assert!(faults.iter().any(|fault| fault.kind == kind), "{kind}");
    }
    succeeds(&["demo", "--fleet", file.to_str().unwrap(), "--keep", real_text]);
    write(&plan, &ours);
    alike(&ours, &real, &["gpu_samples", "scrapes", "allocations", "nodes", "demand", "truth_gpu_hours"]);
    succeeds(&["hours", "--lake", ours_text]);
    alike(&ours, &real, &["gpu_hours", "device_hours"]);
    let check = succeeds(&["check", "--lake", ours_text]);
    assert!(check.contains("closes"), "{check}");
    // What nobody reads is unobserved for want of a source as soon as the kubelet has named it, as in the truth.
    let unread = succeeds(&[
        "sql",
        "--lake",
        ours_text,
        "--format",
        "csv",
        "SELECT product, SUM(sm_unobserved_no_source_ms) AS no_source, SUM(sm_unobserved_no_device_yet_ms) AS unnamed, \
         SUM(CASE WHEN device IS NULL THEN 0 ELSE ms END) AS named FROM gpu_hours \
         WHERE kind = 'owner' AND cluster = 'other' GROUP BY product ORDER BY product",
    ]);
    let rows: Vec<Vec<&str>> = unread.lines().skip(1).map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 2, "{unread}");
    for row in rows {
        let [no_source, unnamed, named] = [1, 2, 3].map(|at| row[at].parse::<i64>().unwrap());
        assert!(no_source == named && unnamed * 10 < no_source, "{unread}");
    }
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
