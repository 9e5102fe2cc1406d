//! How large a lake's samples are on disk, by column, beside what Prometheus' own storage makes of the same readings.
//!
//! ```text
//! strandline demo --hours 6 --keep LAKE && STRANDLINE_PROMTOOL=$(./x promtool) cargo bench -p lake --bench size -- LAKE
//! ```
//!
//! The peer gets each reading as a sample of the series that dcgm-exporter would have printed, and makes blocks of them with
//! `promtool tsdb create-blocks-from openmetrics`. Budget (DESIGN 7): at most half of its chunks and index.
#![allow(clippy::expect_used)]

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::File,
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

use arrow::{
    array::{Array, AsArray, RecordBatch},
    datatypes::{DataType, Float32Type, Float64Type, Int64Type, TimestampMicrosecondType},
};
use lake::{Lake, read};
use parquet::file::reader::{FileReader, SerializedFileReader};
use schemas::{
    catalogue,
    tables::{self, Table},
};

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|a| a != "--bench");
    let Some(folder) = arguments.next().filter(|a| a != "--test").map(PathBuf::from) else {
        println!("size: no lake given, nothing measured; ./x bench makes one");
        return;
    };
    let lake = Lake::open(&folder).expect("a lake");
    let table = tables::get("gpu_samples");
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let text = scratch.path().join("readings.txt");
    let mut out = BufWriter::new(File::create(&text).expect("a file"));
    let (mut rows, mut whole) = (0, 0);
    let (mut bytes, mut readings) = (BTreeMap::<String, i64>::new(), BTreeMap::<&str, u64>::new());
    let files = lake.closed_files(table, None).expect("files");
    for file in &files {
        let path = file.path.path().expect("a lake in a folder");
        whole += size(&path);
        column_bytes(&path, &mut bytes);
        for batch in read::rows(table, &file.path, None).expect("rows") {
            rows += batch.num_rows();
            write_readings(table, &batch, &mut out, &mut readings);
        }
    }
    out.write_all(b"# EOF\n").expect("written");
    drop(out);
    let count: u64 = readings.values().sum();
    println!("lake: {rows} samples with {count} readings in {} files of closed hours", files.len());
    println!("  {whole} bytes: {:.1} a sample, {:.3} a reading", per(whole, rows as u64), per(whole, count));
    let named: u64 = bytes.values().map(|b| b.unsigned_abs()).sum();
    println!("  of which footers, page indexes and dictionaries' headers {:.1} %", 100.0 * per(whole - named.min(whole), whole));
    println!("  column                              bytes  a reading");
    let mut order: Vec<_> = bytes.iter().filter(|(_, b)| **b > 0).collect();
    order.sort_by_key(|(_, bytes)| -**bytes);
    for (name, bytes) in order {
        let read = readings.get(name.as_str()).copied().unwrap_or(rows as u64);
        println!("  {name:<32} {bytes:>8}  {:9.3}", per(bytes.unsigned_abs(), read));
    }
    let Some(promtool) = std::env::var_os("STRANDLINE_PROMTOOL") else {
        println!("size: no peer; set STRANDLINE_PROMTOOL (./x promtool)");
        return;
    };
    let blocks = scratch.path().join("blocks");
    let output = Command::new(promtool)
        .args(["tsdb", "create-blocks-from", "openmetrics"])
        .args([&text, &blocks])
        .output()
        .expect("promtool runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut chunks, mut index) = (0, 0);
    for block in std::fs::read_dir(&blocks).expect("blocks").flatten().map(|entry| entry.path()) {
        chunks += size(&block.join("chunks"));
        index += size(&block.join("index"));
    }
    let theirs = chunks + index;
    println!("promtool: {theirs} bytes ({chunks} of chunks, {index} of index), {:.3} a reading", per(theirs, count));
    println!("  the lake is {:.2} x its size (budget 0.5)", per(whole, theirs));
}

fn per(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

fn size(path: &Path) -> u64 {
    match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().map(|entry| size(&entry.path())).sum(),
        Err(_) => std::fs::metadata(path).map_or(0, |found| found.len()),
    }
}

/// Adds what each column takes in the file.
fn column_bytes(path: &Path, bytes: &mut BTreeMap<String, i64>) {
    let reader = SerializedFileReader::new(File::open(path).expect("a file")).expect("a Parquet file");
    for chunk in reader.metadata().row_groups().iter().flat_map(|group| group.columns()) {
        *bytes.entry(chunk.column_path().string()).or_default() += chunk.compressed_size();
    }
}

/// The readings of `batch` as samples of the series that dcgm-exporter prints, with the labels that a scrape adds.
fn write_readings(table: &'static Table, batch: &RecordBatch, out: &mut impl std::io::Write, readings: &mut BTreeMap<&str, u64>) {
    let column = |name: &str| batch.column(table.index(name).expect("a column of the table"));
    let times = column("at").as_primitive::<TimestampMicrosecondType>();
    let indexes = column("gpu_index").as_primitive::<Int64Type>();
    let texts = [
        ("UUID", "device"),
        ("pci_bus_id", "pci_bus_id"),
        ("modelName", "product"),
        ("Hostname", "hostname"),
        ("DCGM_FI_DRIVER_VERSION", "driver_version"),
        ("container", "container"),
        ("namespace", "namespace"),
        ("pod", "pod"),
        ("instance", "source"),
    ]
    .map(|(label, name)| (label, column(name).as_string::<i32>()));
    let fields: Vec<_> = catalogue::columns().map(|(field, name)| (field.name, name, column(name))).collect();
    let (mut labels, mut line) = (String::new(), String::new());
    for row in 0..batch.num_rows() {
        labels.clear();
        let index = indexes.value(row);
        let _ = write!(labels, "{{gpu=\"{index}\",device=\"nvidia{index}\",job=\"gpus\"");
        for (label, texts) in texts.iter().filter(|(_, texts)| texts.is_valid(row)) {
            let _ = write!(labels, ",{label}=\"{}\"", texts.value(row));
        }
        labels.push('}');
        let seconds = times.value(row) as f64 / 1e6;
        for (name, key, values) in fields.iter().filter(|(_, _, values)| values.is_valid(row)) {
            line.clear();
            let _ = write!(line, "{name}{labels} ");
            let _ = match values.data_type() {
                DataType::Int64 => writeln!(line, "{} {seconds}", values.as_primitive::<Int64Type>().value(row)),
                DataType::Float32 => writeln!(line, "{} {seconds}", values.as_primitive::<Float32Type>().value(row)),
                DataType::Float64 => writeln!(line, "{} {seconds}", values.as_primitive::<Float64Type>().value(row)),
                _ => continue,
            };
            *readings.entry(key).or_default() += 1;
            out.write_all(line.as_bytes()).expect("written");
        }
    }
}
