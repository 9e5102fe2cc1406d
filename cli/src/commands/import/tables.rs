//! Tables of holdings and of devices.

use std::{
    collections::{BTreeMap, HashMap},
    io::Write,
    path::PathBuf,
};

use clap::Args;
use ingest::publish;
use schemas::{
    Timestamp,
    proto::{Device, Holding, Node},
    status::HoldingSource,
};

use crate::{
    commands::import::{
        Destination, Path, Refused,
        mapping::{self, Mapping},
        summary,
    },
    failure::Failure,
};

/// Import a table (CSV with a header, or NDJSON); columns are mapped with --map FIELD=COLUMN or --mapping FILE
///
/// Fields of allocations: pod, pod_uid, namespace, team, workload, queue, node, device, gpus, weight, bound, started, ended,
/// last_checkpoint, terminal_phase (Succeeded or Failed).
/// Fields of devices: node, device, product, region, zone, provider, purchase_option, reservation, parent, profile, weight, replicas, from, to.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strandline import allocations jobs.csv --lake lake --map pod=job_id --map team=vc --map gpus=num_gpus --map bound=start_unix --map ended=end_unix
  strandline import devices gpus.csv --lake lake --map device=uuid

A holding needs pod, and bound; without a node it is `unplaced`, without a device it is known by number (gpus, default 1).
weight is the share of a GPU that each holds: a number above 0 and up to 1 such as 0.25, or a column over a divisor (gpu_milli/1000).
A row without a bind holds nothing and is counted. Where a node has no inventory, capacity is not known and reports show `-`.")]
pub struct Options {
    /// The table
    file: PathBuf,
    #[command(flatten)]
    destination: Destination,
    /// A field and the column that it is read from; may be given many times
    #[arg(long, value_name = "FIELD=COLUMN")]
    map: Vec<String>,
    /// YAML file of such pairs
    #[arg(long, value_name = "FILE")]
    mapping: Option<PathBuf>,
    /// What times in seconds count from
    #[arg(long, value_name = "TIME", default_value = "1970-01-01", value_parser = crate::commands::time)]
    epoch: Timestamp,
}

const ALLOCATION_FIELDS: &[&str] = &[
    "pod",
    "pod_uid",
    "namespace",
    "team",
    "workload",
    "queue",
    "node",
    "device",
    "gpus",
    "weight",
    "bound",
    "started",
    "ended",
    "last_checkpoint",
    "terminal_phase",
];
const DEVICE_FIELDS: &[&str] = &[
    "node",
    "device",
    "product",
    "region",
    "zone",
    "provider",
    "purchase_option",
    "reservation",
    "parent",
    "profile",
    "weight",
    "replicas",
    "from",
    "to",
];

/// Node of a holding whose node the import does not say.
pub const UNPLACED: &str = "unplaced";
/// Most GPUs of one holding: more is a mistake in the mapping.
const MAX_GPUS: u32 = 100_000;

/// One row, read by field.
struct Row<'a> {
    mapping: &'a Mapping,
    cells: &'a HashMap<String, String>,
    epoch: Timestamp,
}

impl Row<'_> {
    fn text(&self, field: &str) -> Option<&str> {
        self.cells.get(&self.mapping.origin(field)?.column).map(String::as_str)
    }

    fn owned(&self, field: &str) -> String {
        self.text(field).unwrap_or_default().to_owned()
    }

    fn name(&self, field: &str) -> String {
        self.mapping.origin(field).map_or(field.to_owned(), |origin| format!("{field} (column `{}`)", origin.column))
    }

    fn time(&self, field: &str) -> Result<Option<Timestamp>, String> {
        let read = |text: &str| mapping::time(text, self.epoch).map_err(|error| format!("{}: {error}", self.name(field)));
        self.text(field).map(read).transpose()
    }

    fn whole(&self, field: &str) -> Result<Option<u32>, String> {
        let read = |text: &str| text.parse::<u32>().map_err(|_| format!("{}: `{text}` is no whole number", self.name(field)));
        self.text(field).map(read).transpose()
    }

    /// Every text of the row, checked as a name.
    fn names(&self, fields: &[&str]) -> Result<(), String> {
        let mut texts = fields.iter().filter_map(|field| Some((field, self.text(field)?)));
        texts.try_for_each(|(field, text)| mapping::name(text).map_err(|why| format!("{}: {why}", self.name(field))))
    }

    /// A share of a GPU in lowest terms: a decimal, a fraction such as 3/7, or a column over its divisor. 0 is told apart from absent.
    fn weight(&self) -> Result<Option<(u32, u32)>, String> {
        let Some(text) = self.text("weight") else { return Ok(None) };
        let divisor = self.mapping.origin("weight").and_then(|origin| origin.divisor).unwrap_or(1);
        let bad =
            || format!("{}: `{text}` is no number from 0 to 1 with up to six decimals, and no fraction", self.name("weight"));
        let (text, divisor) = match text.split_once('/') {
            None => (text, divisor),
            Some((over, under)) => {
                let under = under.trim().parse::<u32>().ok().filter(|under| *under > 0 && divisor == 1);
                (over.trim(), under.ok_or_else(bad)?)
            }
        };
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let fraction = fraction.trim_end_matches('0');
        if whole.is_empty() || fraction.len() > 6 || !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        let digits: u64 = format!("{whole}{fraction}").parse().map_err(|_| bad())?;
        let den = 10_u64.pow(u32::try_from(fraction.len()).unwrap_or(0)) * u64::from(divisor);
        if digits > den {
            return Err(format!("{}: {text} over {divisor} is more than a whole GPU", self.name("weight")));
        }
        let by = gcd(digits, den).max(1);
        let narrow = |n: u64| u32::try_from(n / by).map_err(|_| bad());
        Ok(Some((narrow(digits)?, narrow(den)?)))
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn needs(mapping: &Mapping, rows: &mapping::Rows, file: &std::path::Path, fields: &[&str]) -> Result<(), Failure> {
    for &field in fields {
        if !mapping.is_there(field, rows) {
            let column = mapping.origin(field).map(|origin| origin.column.clone()).unwrap_or_default();
            return Err(Failure::usage(format!(
                "{} has no column `{column}` for {field}; give --map {field}=COLUMN, one of: {}",
                file.display(),
                rows.columns.join(", ")
            )));
        }
    }
    Ok(())
}

/// A mapping that names a column which the file does not have is a mistake, not an absent value.
fn mapped_are_there(mapping: &Mapping, rows: &mapping::Rows, file: &std::path::Path) -> Result<(), Failure> {
    needs(mapping, rows, file, &mapping.mapped())
}

/// `import allocations`.
pub fn allocations(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let mapping = Mapping::of(&options.map, options.mapping.as_deref(), ALLOCATION_FIELDS)?;
    let rows = mapping::rows(&options.file)?;
    mapped_are_there(&mapping, &rows, &options.file)?;
    needs(&mapping, &rows, &options.file, &["bound"])?;
    if !mapping.is_there("pod_uid", &rows) {
        needs(&mapping, &rows, &options.file, &["pod"])?;
    }
    let mut path = Path::open(&options.destination)?;
    let started_known = mapping.is_there("started", &rows);
    let mut refused: Vec<Refused> = rows.refused.clone();
    let mut holdings: BTreeMap<String, Holding> = BTreeMap::new();
    let (mut never_bound, mut holds_nothing, mut open) = (0, 0, 0);
    for (line, cells) in &rows.rows {
        let row = Row { mapping: &mapping, cells, epoch: options.epoch };
        match holding(&row, &options.destination.cluster, started_known) {
            Ok(Read::Holding(holding)) => {
                let times = [holding.bound_ms, holding.started_ms, holding.ended_ms];
                times.into_iter().flatten().for_each(|ms| path.saw(Timestamp::from_ms(ms)));
                open += usize::from(holding.ended_ms.is_none());
                if let Some(first) = holdings.get(&holding.id).filter(|first| **first != *holding) {
                    let reason = format!("pod `{}` stands twice with different contents; give --map pod_uid=COLUMN", first.pod);
                    refused.push(Refused { line: *line, reason, text: shown(cells) });
                    continue;
                }
                holdings.insert(holding.id.clone(), *holding);
            }
            Ok(Read::NeverBound) => never_bound += 1,
            Ok(Read::HoldsNothing) => holds_nothing += 1,
            Err(reason) => refused.push(Refused { line: *line, reason, text: shown(cells) }),
        }
    }
    let count = holdings.len();
    path.reaches()?;
    path.supersede(&mut holdings)?;
    path.produce(publish::ALLOCATIONS, &holdings.into_values().map(publish::holding).collect::<Vec<_>>())?;
    let lines = [
        format!("{count} holdings imported ({open} of them without an end)"),
        format!("{never_bound} rows were never bound and {holds_nothing} ask for no GPU: they hold nothing"),
    ];
    finish(path, options, &refused, &lines, count, out)
}

enum Read {
    Holding(Box<Holding>),
    NeverBound,
    HoldsNothing,
}

fn holding(row: &Row<'_>, cluster: &str, started_known: bool) -> Result<Read, String> {
    row.names(ALLOCATION_FIELDS)?;
    let count = row.whole("gpus")?.unwrap_or(1);
    let weight = row.weight()?;
    if count == 0 || weight.is_some_and(|(num, _)| num == 0) {
        return Ok(Read::HoldsNothing);
    }
    if count > MAX_GPUS {
        return Err(format!("{}: {count} is more than {MAX_GPUS}", row.name("gpus")));
    }
    let Some(bound) = row.time("bound")? else { return Ok(Read::NeverBound) };
    let ended = row.time("ended")?;
    if let Some(ended) = ended.filter(|ended| *ended < bound) {
        return Err(format!("{}: {ended} is before the bind at {bound}", row.name("ended")));
    }
    let started = if started_known { row.time("started")? } else { Some(bound) };
    let pod = row.text("pod").or(row.text("pod_uid")).ok_or_else(|| format!("{} is empty", row.name("pod")))?.to_owned();
    let namespace = row.text("namespace").unwrap_or("default").to_owned();
    let uid = row.text("pod_uid").map_or_else(|| format!("import:{cluster}/{namespace}/{pod}"), str::to_owned);
    let device = match row.text("device") {
        None => String::new(),
        Some(id) => id.parse::<schemas::DeviceId>().map_err(|error| format!("{}: {error}", row.name("device")))?.to_string(),
    };
    let by_number = device.is_empty();
    if !by_number && weight.is_some_and(|(num, den)| num != den) {
        return Err(format!(
            "{}: a share of a named device is not a holding's to say; give the device its replicas or weight (`import devices`), or leave the device out",
            row.name("weight")
        ));
    }
    Ok(Read::Holding(Box::new(Holding {
        cluster: cluster.to_owned(),
        node: row.text("node").unwrap_or(UNPLACED).to_owned(),
        source: HoldingSource::Import.as_str().to_owned(),
        id: if by_number { uid.clone() } else { format!("{uid} {device}") },
        observed_at_ms: ended.unwrap_or(bound).ms(),
        pod_uid: uid,
        namespace,
        pod,
        team: row.owned("team"),
        workload: row.owned("workload"),
        queue: row.owned("queue"),
        count: by_number.then_some(count),
        weight_num: weight.map(|(num, _)| num),
        weight_den: weight.map(|(_, den)| den),
        ids: (!by_number).then_some(1),
        bound_ms: Some(bound.ms()),
        known_from_ms: (!by_number).then_some(bound.ms()),
        started_ms: started.map(Timestamp::ms),
        ended_ms: ended.map(Timestamp::ms),
        last_checkpoint_ms: row.time("last_checkpoint")?.map(Timestamp::ms),
        terminal_phase: phase(row)?,
        end_reason: if ended.is_some() { "terminal".to_owned() } else { String::new() },
        device,
        ..Holding::default()
    })))
}

/// The phase in which a pod ended; empty where the row does not say.
fn phase(row: &Row<'_>) -> Result<String, String> {
    match row.text("terminal_phase") {
        None => Ok(String::new()),
        Some(phase @ ("Succeeded" | "Failed")) => Ok(phase.to_owned()),
        Some(other) => Err(format!("{}: `{other}` is neither Succeeded nor Failed", row.name("terminal_phase"))),
    }
}

/// `import devices`.
pub fn devices(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let mapping = Mapping::of(&options.map, options.mapping.as_deref(), DEVICE_FIELDS)?;
    let rows = mapping::rows(&options.file)?;
    mapped_are_there(&mapping, &rows, &options.file)?;
    needs(&mapping, &rows, &options.file, &["device", "node", "from"])?;
    let mut path = Path::open(&options.destination)?;
    let mut refused: Vec<Refused> = rows.refused.clone();
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let mut count = 0;
    for (line, cells) in &rows.rows {
        let row = Row { mapping: &mapping, cells, epoch: options.epoch };
        let read = device(&row).and_then(|(name, read, from, to)| match seen.insert(read.device.clone(), *line) {
            Some(first) => Err(format!("device `{}` stands in line {first} too", read.device)),
            None => Ok((name, read, from, to)),
        });
        match read {
            Err(reason) => refused.push(Refused { line: *line, reason, text: shown(cells) }),
            Ok((name, device, from, to)) => {
                count += 1;
                [Some(from), to].into_iter().flatten().for_each(|at| path.saw(at));
                let node = nodes.entry(name.clone()).or_insert_with(|| Node {
                    cluster: options.destination.cluster.clone(),
                    node: name,
                    source: HoldingSource::Import.as_str().to_owned(),
                    present_from_ms: from.ms(),
                    product: device.product.clone(),
                    region: row.owned("region"),
                    zone: row.owned("zone"),
                    provider: row.owned("provider"),
                    purchase_option: row.owned("purchase_option"),
                    reservation: row.owned("reservation"),
                    ..Node::default()
                });
                node.present_from_ms = node.present_from_ms.min(from.ms());
                node.observed_at_ms = node.observed_at_ms.max(to.unwrap_or(from).ms());
                node.devices.push(device);
            }
        }
    }
    let on = nodes.len();
    path.reaches()?;
    path.join_inventory(&mut nodes)?;
    path.produce(publish::NODES, &nodes.values().map(publish::node).collect::<Vec<_>>())?;
    finish(path, options, &refused, &[format!("{count} devices on {on} nodes imported")], count, out)
}

fn device(row: &Row<'_>) -> Result<(String, Device, Timestamp, Option<Timestamp>), String> {
    row.names(DEVICE_FIELDS)?;
    let id = row.text("device").ok_or_else(|| format!("{} is empty", row.name("device")))?;
    let id: schemas::DeviceId = id.parse().map_err(|error| format!("{}: {error}", row.name("device")))?;
    let node = row.text("node").ok_or_else(|| format!("{} is empty", row.name("node")))?.to_owned();
    let from = row.time("from")?.ok_or_else(|| format!("{} is empty", row.name("from")))?;
    let to = row.time("to")?;
    if to.is_some_and(|to| to <= from) {
        return Err(format!("{}: the end is not after the beginning", row.name("to")));
    }
    let weight = row.weight()?;
    if weight.is_some_and(|(num, _)| num == 0) {
        return Err(format!("{}: a device weighs more than 0", row.name("weight")));
    }
    let device = Device {
        device: id.to_string(),
        parent: row
            .text("parent")
            .map_or_else(|| id.instance_id().map_or(String::new(), |_| id.gpu().to_string()), str::to_owned),
        profile: row.owned("profile"),
        product: row.owned("product"),
        weight_num: weight.map(|(num, _)| num),
        weight_den: weight.map(|(_, den)| den),
        replicas: row.whole("replicas")?.filter(|replicas| *replicas > 0),
        present_from_ms: Some(from.ms()),
        present_to_ms: to.map(Timestamp::ms),
    };
    Ok((node, device, from, to))
}

fn finish(
    path: Path,
    options: &Options,
    refused: &[Refused],
    lines: &[String],
    count: usize,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if count > 0 {
        path.refuse(&options.file, refused)?;
        let to = path.finish(&options.destination)?;
        let mut lines = lines.to_vec();
        lines.push(format!("hours closed up to {to}; next: strandline hours --lake {}", options.destination.lake.display()));
        return summary(out, &options.file, &lines, refused, count);
    }
    summary(out, &options.file, lines, refused, count)?;
    Err(Failure::because(format!("nothing was imported from {}", options.file.display())))
}

fn shown(cells: &HashMap<String, String>) -> String {
    let sorted: BTreeMap<_, _> = cells.iter().collect();
    sorted.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ").chars().take(200).collect()
}
