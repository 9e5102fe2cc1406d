//! Prometheus text 0.0.4 and OpenMetrics 1.0 (both with quoted UTF-8 names) to samples: a page of bytes in, borrowed
//! samples and counted bad lines out.
//!
//! ```text
//! page bytes ──lines──> one line ──line | openmetrics──> Sample | Meta | nothing
//!                                        │     └───────> LineError (line, byte offset, reason)
//!                                        └─ labels: read, or known by the bytes of their block (memory)
//! ```
//!
//! * [`page`]: the whole page, `Strict` (the first bad line refuses it, as the Prometheus server does) or `Lenient`
//!   (a bad line is kept out and counted, the good rest goes on).
//! * `line`: the grammar of one line of text, `openmetrics`: of one line of OpenMetrics. No line can reach into the next one: a raw line feed inside quotes ends the
//!   line, so one bad line costs one line.
//! * [`Memory`]: label blocks of a target's earlier pages, which are not read again.
//! * `number`: values and timestamps as Go reads them.
//! * `error`: what can be wrong with a line.
//!
//! * `text`: a piece of the page, its escapes undone on demand.
//!
//! Samples borrow from the page; nothing is copied while scanning. Which outcome the
//! disputed corners of the grammar have is written in `docs/exposition.md`.

mod error;
mod line;
mod memory;
mod number;
mod openmetrics;
mod text;

pub use error::{LineError, PageError, Reason, Rejects};
pub use line::{Label, Meta, MetricType, Sample};
pub use memory::Memory;
pub use text::Text;

use std::borrow::Cow;

/// The grammar of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Prometheus text 0.0.4: timestamps in milliseconds, free comments, no end mark.
    #[default]
    Text,
    /// OpenMetrics 1.0: timestamps in seconds, single spaces, exemplars, `# EOF` at the end.
    OpenMetrics,
}

/// What a bad line does to its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The first bad line refuses the page.
    Strict,
    /// A bad line is kept out and counted; good lines go on.
    Lenient,
}

/// Bounds on what comes from outside. Every one of them is checked before memory is spent on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest page in bytes; a longer one is refused whole, in both modes. Default 64 MiB.
    pub page_bytes: usize,
    /// Longest line in bytes; a longer one is a bad line. Default 1 MiB.
    pub line_bytes: usize,
    /// Most labels on one series; a line with more is bad. Default 256.
    pub labels_per_series: usize,
    /// Most samples of one page; the lines after them are bad. Default 2,000,000.
    pub samples: usize,
    /// How many bad lines are kept one by one; all are counted. Default 100.
    pub rejects_kept: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { page_bytes: 64 << 20, line_bytes: 1 << 20, labels_per_series: 256, samples: 2_000_000, rejects_kept: 100 }
    }
}

/// One page, read.
#[derive(Debug, Clone, Default)]
pub struct Exposition<'a> {
    /// The series samples in document order.
    pub samples: Vec<Sample<'a>>,
    /// All labels of all samples; [`Exposition::labels`] gives one sample's.
    pub labels: Vec<Label<'a>>,
    /// HELP and TYPE lines in document order.
    pub metas: Vec<Meta<'a>>,
    /// The bad lines (always none after a strict reading).
    pub rejects: Rejects,
    /// The last line has no line feed, in text, which has no end mark. Accepted, since real exporters do it; a scraper that
    /// knows the body was cut must not use the page at all.
    pub unterminated: bool,
}

impl<'a> Exposition<'a> {
    /// The labels of one of this page's samples, in document order.
    pub fn labels(&self, sample: &Sample<'a>) -> &[Label<'a>] {
        &self.labels[sample.labels.start as usize..sample.labels.end as usize]
    }

    /// The declared type of a metric: its first TYPE line, wherever that stands in the page.
    pub fn metric_type(&self, name: &str) -> Option<MetricType> {
        self.metas.iter().find_map(|meta| match meta {
            Meta::Type { name: n, kind } if *n == *name => Some(*kind),
            _ => None,
        })
    }

    /// The first HELP text of a metric.
    pub fn help(&self, name: &str) -> Option<Cow<'a, str>> {
        self.metas.iter().find_map(|meta| match meta {
            Meta::Help { name: n, text } if *n == *name => Some(text.clone()),
            _ => None,
        })
    }
}

/// What a page holds, one at a time.
pub enum Item<'a> {
    /// A series sample. Its labels are the list given beside it.
    Sample(Sample<'a>),
    /// A HELP or TYPE line.
    Meta(Meta<'a>),
}

/// What [`each`] knows when it has read the page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many samples were handed out.
    pub samples: usize,
    /// The bad lines.
    pub rejects: Rejects,
    /// The last line has no line feed.
    pub unterminated: bool,
}

/// The labels of a sample, as [`each_remembering`] hands them out.
#[derive(Debug, Clone, Copy)]
pub enum Labels<'l, 'a> {
    /// Read from the line. The number, where the memory took their block: from now on it comes as `Known`. Numbers grow by
    /// one; with 0 the memory has begun anew, and no number of before stands any more.
    Read(&'l [Label<'a>], Option<u32>),
    /// Those of the block with this number.
    Known(u32),
}

/// Reads a whole page into lists. What wants the samples only once, use [`each`]: it holds no more than one series.
///
/// Errors: as [`each`].
pub fn page(bytes: &[u8], format: Format, mode: Mode, limits: Limits) -> Result<Exposition<'_>, PageError> {
    let mut out = Exposition::default();
    let summary = each(bytes, format, mode, limits, |item, labels| match item {
        Item::Meta(meta) => out.metas.push(meta),
        Item::Sample(mut sample) => {
            let first = out.labels.len() as u32;
            sample.labels = first..first + labels.len() as u32;
            out.labels.extend_from_slice(labels);
            out.samples.push(sample);
        }
    })?;
    out.rejects = summary.rejects;
    out.unterminated = summary.unterminated;
    Ok(out)
}

/// Hands every sample, with its labels, and every HELP and TYPE line to `visit`, in document order.
///
/// The work is linear in the page's length
/// whatever its bytes are. Errors: `TooLarge` in both modes, before anything is visited; `Cut` in both modes, where an
/// OpenMetrics page has no end mark; `Line`, the first bad line, in strict mode only. After an error the caller throws away
/// what it has seen.
pub fn each<'a>(
    bytes: &'a [u8],
    format: Format,
    mode: Mode,
    limits: Limits,
    mut visit: impl FnMut(Item<'a>, &[Label<'a>]),
) -> Result<Summary, PageError> {
    walk(bytes, format, mode, limits, None, |item, labels| match labels {
        Labels::Read(labels, _) => visit(item, labels),
        Labels::Known(_) => unreachable!("nothing is known without a memory"),
    })
}

/// As [`each`], but the labels of a block that `memory` knows are not read again: their number is handed out.
///
/// The memory is of one target and one set of limits: it guesses each block from the one before it, as pages of one exporter repeat their order. A
/// wrong guess costs time and changes nothing.
pub fn each_remembering<'a>(
    bytes: &'a [u8],
    format: Format,
    mode: Mode,
    limits: Limits,
    memory: &mut Memory,
    visit: impl FnMut(Item<'a>, Labels<'_, 'a>),
) -> Result<Summary, PageError> {
    memory.begin(format);
    walk(bytes, format, mode, limits, Some(memory), visit)
}

#[inline]
fn walk<'a>(
    bytes: &'a [u8],
    format: Format,
    mode: Mode,
    limits: Limits,
    mut memory: Option<&mut Memory>,
    mut visit: impl FnMut(Item<'a>, Labels<'_, 'a>),
) -> Result<Summary, PageError> {
    if bytes.len() > limits.page_bytes {
        return Err(PageError::TooLarge { bytes: bytes.len(), limit: limits.page_bytes });
    }
    let mut out = Summary::default();
    let mut labels: Vec<Label<'a>> = Vec::with_capacity(32);
    // Nearly every page is UTF-8 as a whole; only one that is not is checked again line by line.
    let text = std::str::from_utf8(bytes).ok();
    let mut start = 0;
    let mut number: u32 = 0;
    let mut ended = false;
    while start < bytes.len() {
        let end = memchr::memchr(b'\n', &bytes[start..]).map_or(bytes.len(), |n| start + n);
        number = number.saturating_add(1);
        labels.clear();
        let bytes_of_line = &bytes[start..end];
        let entry = if ended {
            Err(line::Fault { at: 0, reason: Reason::AfterEnd })
        } else if end - start > limits.line_bytes {
            Err(line::Fault { at: 0, reason: Reason::LineTooLong { limit: limits.line_bytes } })
        } else {
            match (text.map_or_else(|| std::str::from_utf8(bytes_of_line), |page| Ok(&page[start..end])), format) {
                (Ok(line), Format::Text) => line::entry(line, &mut labels, limits.labels_per_series, memory.as_deref()),
                (Ok(line), Format::OpenMetrics) => {
                    // With a carriage return it is a bad line, but the page is whole all the same.
                    ended = line.strip_suffix('\r').unwrap_or(line) == openmetrics::END;
                    openmetrics::entry(line, &mut labels, limits.labels_per_series, memory.as_deref())
                }
                // Go's parsers do not look into comments, so a bad byte in one costs nothing.
                (Err(_), Format::Text) if line::is_plain_comment(bytes_of_line) => Ok(line::Entry::Nothing),
                (Err(e), _) => Err(line::Fault { at: e.valid_up_to(), reason: Reason::NotUtf8 }),
            }
        };
        let fault = match entry {
            Ok(line::Entry::Nothing) => None,
            Ok(line::Entry::Meta(meta)) => {
                visit(Item::Meta(meta), Labels::Read(&[], None));
                None
            }
            Ok(line::Entry::Sample(..)) if out.samples == limits.samples => {
                Some(line::Fault { at: 0, reason: Reason::TooManySamples { limit: limits.samples } })
            }
            Ok(line::Entry::Sample(mut sample, block)) => {
                sample.line = number;
                out.samples += 1;
                // Only the block of a good line is remembered, so that whoever is handed a known one has seen it before.
                let labels = match (&mut memory, block) {
                    (Some(memory), line::Block::Known(number)) => {
                        memory.follow(number);
                        Labels::Known(number)
                    }
                    (Some(memory), line::Block::Read(raw)) => memory.meet(raw, &labels),
                    (Some(_), line::Block::None) | (None, _) => Labels::Read(&labels, None),
                };
                visit(Item::Sample(sample), labels);
                None
            }
            Err(fault) => Some(fault),
        };
        if let Some(line::Fault { at, reason }) = fault {
            let error = LineError { line: number, offset: (start + at) as u64, column: at as u32 + 1, reason };
            match mode {
                Mode::Strict => return Err(PageError::Line(error)),
                Mode::Lenient => out.rejects.push(error, limits.rejects_kept),
            }
        }
        start = end + 1;
    }
    if format == Format::OpenMetrics && !ended {
        let at = bytes.len() as u64;
        return Err(PageError::Cut(LineError { line: number.max(1), offset: at, column: 1, reason: Reason::NoEnd }));
    }
    out.unterminated = format == Format::Text && bytes.last().is_some_and(|b| *b != b'\n');
    Ok(out)
}

#[cfg(test)]
mod tests;
