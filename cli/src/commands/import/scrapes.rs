//! Recorded pages with their times, and the kubelets' answers beside them.

use std::{
    collections::{BTreeMap, HashMap},
    io::Write,
    path::PathBuf,
    sync::Arc,
};

use clap::Args;
use ingest::{
    agent::{self, Agent, Gathered, Target, Topics},
    clock::SystemClock,
    join::Answer,
    publish,
    scrape::Body,
};
use schemas::{Timestamp, status::JoinReason};

use crate::{
    commands::{
        import::{Destination, Path, Refused, mapping, summary},
        read_file, runtime,
    },
    failure::Failure,
};

/// Import recorded pages of metrics and the kubelets' answers: an index (CSV or NDJSON) of at, node, file, podresources
#[derive(Debug, Args)]
#[command(after_help = "Example:
  strandline import scrapes index.csv --lake lake --interval 30

index.csv:
  at,node,file,podresources
  2026-03-02T10:00:00Z,node-1,page-1.txt,pods-1.json
  2026-03-02T10:00:30Z,node-1,page-2.txt,pods-2.json

Files are named from the index's folder. podresources is the kubelet's List answer in JSON; where it is left out, the page's own
labels name the pods; where file is left out, the answer says who held what, and nobody saw what they did. The devices of the pages are the inventory, unless --no-inventory.")]
pub struct Options {
    /// The index
    index: PathBuf,
    #[command(flatten)]
    destination: Destination,
    /// Scrape interval in seconds: a page speaks for 2.5 of them at most
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    interval: u32,
    /// What times in seconds count from
    #[arg(long, value_name = "TIME", default_value = "1970-01-01", value_parser = crate::commands::time)]
    epoch: Timestamp,
    /// Do not take the pages' devices for the inventory (a device table is imported beside)
    #[arg(long)]
    no_inventory: bool,
}

struct Entry {
    at: Timestamp,
    node: String,
    page: Option<String>,
    answer: Option<String>,
    line: u64,
}

/// Largest page or answer that is read.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let rows = mapping::rows(&options.index)?;
    let (mut entries, mut refused) = (Vec::new(), rows.refused);
    for (line, cells) in &rows.rows {
        match entry(options.epoch, *line, cells) {
            Ok(entry) => entries.push(entry),
            Err(reason) => refused.push(Refused { line: *line, reason, text: format!("{cells:?}").chars().take(200).collect() }),
        }
    }
    entries.sort_by(|a, b| (a.at, &a.node, a.line).cmp(&(b.at, &b.node, b.line)));
    let mut path = Path::open(&options.destination)?;
    let topics = Topics {
        samples: path.topic(publish::SAMPLES)?,
        allocations: path.topic(publish::ALLOCATIONS)?,
        nodes: path.topic(publish::NODES)?,
    };
    entries.iter().for_each(|entry| path.saw(entry.at));
    path.reaches()?;
    let runtime = runtime()?;
    let _inside = runtime.enter();
    let nodes: Vec<String> =
        entries.iter().map(|e| e.node.clone()).collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    let target = |node: &String| -> Result<Target, Failure> {
        let address = "http://recorded.invalid/metrics".parse().map_err(Failure::failed)?;
        Ok(Target { node: node.clone(), address, podres_socket: None })
    };
    let targets = nodes.iter().map(target).collect::<Result<Vec<_>, _>>()?;
    let interval_ms = options.interval * 1000;
    let settings =
        agent::Options { interval_ms, publish_nodes: !options.no_inventory, ..agent::Options::new(&options.destination.cluster) };
    let mut agent = Agent::new(settings, targets, topics, Arc::new(SystemClock)).map_err(Failure::failed)?;
    let inventory = path.inventory(agent::SOURCE)?;
    for (index, node) in nodes.iter().enumerate() {
        if let Some(known) = inventory.get(node) {
            agent.remember(index, known);
        }
    }
    let source = options.index.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut statuses: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut count, mut pages, mut series, mut bad_lines) = (0, 0, 0, 0);
    for entry in entries {
        // One at a time: all pages together may be more than the memory.
        let (page, answer) = match read(options, &entry) {
            Ok(both) => both,
            Err(reason) => {
                let text = format!("at={} node={}", entry.at, entry.node);
                refused.push(Refused { line: entry.line, reason, text });
                continue;
            }
        };
        count += 1;
        path.saw(entry.at.plus_ms(1));
        let Some(index) = nodes.iter().position(|node| *node == entry.node) else { continue };
        let gathered: Gathered = match page {
            Some(page) => {
                pages += 1;
                let body = Body { bytes: page.into(), content_type: None };
                agent.recorded(index, entry.at, &source, body, answer)
            }
            None => agent.listed(index, entry.at, answer),
        };
        for (status, n) in &gathered.report.by_status {
            *statuses.entry(status).or_default() += n;
        }
        series += gathered.report.series;
        bad_lines += gathered.report.bad_lines;
        runtime.block_on(agent.publish(vec![gathered])).map_err(Failure::failed)?;
    }
    drop(agent);
    refused.sort_by_key(|refused| refused.line);
    let statuses: Vec<_> = statuses.iter().map(|(status, n)| format!("{n} {status}")).collect();
    let mut lines = vec![format!(
        "{pages} pages of {} nodes imported ({}): {series} series, {bad_lines} lines kept out; {} answers without a page",
        nodes.len(),
        statuses.join(", "),
        count - pages
    )];
    if count == 0 {
        summary(out, &options.index, &lines, &refused, 0)?;
        return Err(Failure::because(format!("nothing was imported from {}", options.index.display())));
    }
    path.refuse(&options.index, &refused)?;
    let to = path.finish(&options.destination)?;
    lines.push(format!("hours closed up to {to}; next: strandline hours --lake {}", options.destination.lake.display()));
    summary(out, &options.index, &lines, &refused, count)
}

/// A row of the index; its files are read when its turn comes.
fn entry(epoch: Timestamp, line: u64, cells: &HashMap<String, String>) -> Result<Entry, String> {
    let cell = |name: &str| cells.get(name).ok_or_else(|| format!("{name} is empty; the index needs at, node and file"));
    let at = mapping::time(cell("at")?, epoch).map_err(|error| format!("at: {error}"))?;
    let node = cell("node")?.clone();
    mapping::name(&node).map_err(|error| format!("node: {error}"))?;
    let answer = cells.get("podresources").cloned();
    let page = if answer.is_none() { Some(cell("file")?.clone()) } else { cells.get("file").cloned() };
    Ok(Entry { at, node, page, answer, line })
}

fn read(options: &Options, entry: &Entry) -> Result<(Option<Vec<u8>>, Answer), String> {
    let folder = options.index.parent().unwrap_or(std::path::Path::new("."));
    let read = |name: &str, file: &String| {
        read_file(&folder.join(file), MAX_FILE_BYTES).map_err(|error| format!("{name}: cannot read {file}: {error}"))
    };
    let answer = match &entry.answer {
        None => Answer::NotAsked,
        Some(file) => {
            let bytes = read("podresources", file)?;
            let json = serde_json::from_slice(&bytes).map_err(|error| format!("podresources: {file}: no JSON: {error}"))?;
            match attribution::conformance::list_from_json(&json) {
                Ok(list) => Answer::Listed(list),
                Err(_) if entry.page.is_none() => {
                    return Err(format!("podresources: {file}: no List answer, and no page beside it"));
                }
                // The page is good all the same; the row says why it has no owner.
                Err(_) => Answer::Failed(JoinReason::ListFailed),
            }
        }
    };
    let page = entry.page.as_ref().map(|file| read("file", file)).transpose()?;
    Ok((page, answer))
}
