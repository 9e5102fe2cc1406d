//! `strandline parse`: what we see in a page.

use std::{
    fmt::Write as _,
    io::{self, Read, Write},
    path::Path,
    time::Duration,
};

use clap::{Args, ValueEnum};
use ingest::{
    page::{self, Described, describe},
    scrape::{Address, BadAddress, Scraper},
};

use crate::{
    commands::{read_file, runtime},
    failure::Failure,
};

/// Largest page that is fetched.
const MAX_PAGE_BYTES: usize = 64 << 20;

/// How to print what is no table of rows
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PageFormat {
    /// For people
    Table,
    /// One JSON object
    Json,
}

/// Show what we see in a page of metrics: devices, fields by id, labels, rejected lines with reasons
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strandline parse http://127.0.0.1:9400/metrics
  strandline parse page.txt --format json

Exit code 1 where the page is none at all (HTML, no sample, too large); a page with some bad lines is 0, and they are listed.")]
pub struct Options {
    /// A file, `-` for standard input, or an http:// or https:// address
    source: String,
    /// How to print
    #[arg(long, value_enum, default_value = "table")]
    format: PageFormat,
    /// How long to wait for an address, in seconds
    #[arg(long, default_value_t = 10)]
    timeout: u64,
}

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let (bytes, content_type) = bytes(options)?;
    let page = page::read(&bytes, content_type.as_deref(), &page::Options::default());
    let page = page.map_err(|error| Failure::because(format!("{}: {error}", options.source)))?;
    let described = describe(&page);
    let text = match options.format {
        PageFormat::Json => format!("{}\n", serde_json::to_string_pretty(&described).map_err(Failure::failed)?),
        PageFormat::Table => query::show::printable(&table(&described)),
    };
    out.write_all(text.as_bytes()).map_err(Failure::output)
}

fn bytes(options: &Options) -> Result<(Vec<u8>, Option<String>), Failure> {
    let source = &options.source;
    if source.contains("://") {
        let address: Address = source.parse().map_err(|error: BadAddress| Failure::usage(error.to_string()))?;
        let scraper = Scraper::new(Duration::from_secs(options.timeout), MAX_PAGE_BYTES);
        let body = runtime()?.block_on(scraper.get(&address)).map_err(Failure::failed)?;
        return Ok((body.bytes.to_vec(), body.content_type));
    }
    let read = if source == "-" {
        let mut all = Vec::new();
        // One byte more than a page may have, so that a longer one is told from one that ends there.
        io::stdin().take(MAX_PAGE_BYTES as u64 + 1).read_to_end(&mut all).map(|_| all)
    } else {
        read_file(Path::new(source), MAX_PAGE_BYTES as u64)
    };
    let bytes =
        read.map_err(|error| Failure::because(format!("cannot read {source}: {error}; give a file, `-` or an http:// address")))?;
    Ok((bytes, None))
}

fn table(page: &Described) -> String {
    let mut text = String::new();
    let labels = |labels: &std::collections::BTreeMap<String, String>| {
        labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect::<Vec<_>>().join(" ")
    };
    for device in &page.devices {
        let facts = [
            ("gpu", device.gpu_index.map(|i| i.to_string())),
            ("product", device.product.clone()),
            ("parent", device.parent.clone()),
            ("profile", device.profile.clone()),
            ("host", device.hostname.clone()),
            ("pci", device.pci_bus_id.clone()),
            ("driver", device.driver_version.clone()),
        ];
        let facts: Vec<String> = facts.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?))).collect();
        let _ = writeln!(text, "{}  {}", device.device, facts.join(", "));
        for pod in &device.pods {
            let container = pod.container.as_deref().unwrap_or("-");
            let _ = writeln!(text, "  held by {}/{} container {container} (by the page's labels)", pod.namespace, pod.pod);
        }
        if !device.labels.is_empty() {
            let _ = writeln!(text, "  other labels: {}", labels(&device.labels));
        }
        for reading in &device.readings {
            let value = reading.value.as_ref().map_or("-".to_owned(), ToString::to_string);
            let fault = reading.fault.as_ref().map(|fault| format!("  {fault}")).unwrap_or_default();
            let _ = writeln!(text, "  {:>5}  {:<40} {value:>20} {}{fault}", reading.field_id, reading.name, reading.unit);
        }
        if let Some(message) = &device.xid_message {
            let _ = writeln!(text, "  last XID: {message}");
        }
    }
    if !page.extra.is_empty() {
        let _ = writeln!(text, "outside the catalogue's columns:");
        for extra in &page.extra {
            let value = extra.value.map_or("-".to_owned(), |value| value.to_string());
            let _ = writeln!(text, "  {}{{{}}} {value}", extra.name, labels(&extra.labels));
        }
    }
    let _ = writeln!(
        text,
        "{} devices, {} series, {} stood twice ({} of them with another value), {} labels refused",
        page.devices.len(),
        page.series,
        page.duplicate_series,
        page.conflicting_duplicates,
        page.refused_labels
    );
    if !page.faults.is_empty() {
        let faults: Vec<_> = page.faults.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        let _ = writeln!(text, "readings dropped, clipped or in conflict: {}", faults.join(", "));
    }
    let _ = writeln!(text, "{} rejected", page.rejected.count);
    for reject in &page.rejected.first {
        let column = reject.column.map(|column| format!(", column {column}")).unwrap_or_default();
        let _ = writeln!(text, "  line {}{column}: {}: {}", reject.line, reject.message, reject.text);
    }
    for note in &page.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}
