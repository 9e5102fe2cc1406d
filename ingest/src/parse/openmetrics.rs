//! The grammar of one line of OpenMetrics 1.0. Stricter than text: one space where text takes any blanks, no comments, no
//! empty lines; richer by units, exemplars and the end mark.
//!
//! Exemplars are checked and left out: no reading comes from them. Rules that reach over lines (a family's lines stand
//! together, buckets ascend, counters end in `_total`) are not enforced: Prometheus takes such samples, and a reading is
//! not to be lost for the sake of its neighbours.

use super::line::{Cursor, Entry, Fault, Label, Meta, MetricType, block, label_block, sample_of};
use super::text::unescape;
use super::{Memory, Reason, Text, number};

/// The last line of a page.
pub(super) const END: &str = "# EOF";

/// Reads one line, without its line feed. `labels` comes empty; after a fault it may hold some.
#[inline]
pub(super) fn entry<'a>(
    line: &'a str,
    labels: &mut Vec<Label<'a>>,
    max_labels: usize,
    memory: Option<&Memory>,
) -> Result<Entry<'a>, Fault> {
    let c = Cursor { line, at: 0 };
    match c.peek() {
        None => Err(c.fault(0, Reason::BlankLine)),
        Some(b'#') => about(c),
        Some(_) => sample(c, labels, max_labels, memory),
    }
}

fn sample<'a>(
    mut c: Cursor<'a>,
    labels: &mut Vec<Label<'a>>,
    max_labels: usize,
    memory: Option<&Memory>,
) -> Result<Entry<'a>, Fault> {
    let name = c.name_before_block(0)?;
    let after_name = c.at;
    let (name, block) = block::<true>(&mut c, 0, name, labels, max_labels, memory)?;
    match c.peek() {
        None => return Err(c.fault(c.at, Reason::NoValue)),
        Some(b' ') => c.at += 1,
        Some(b'\t') => return Err(c.fault(c.at, Reason::NoSpace)),
        Some(_) => {
            let reason = if c.at == after_name { Reason::BadName } else { Reason::NoSpace };
            return Err(c.end_fault(c.at, reason));
        }
    }
    let (value, raw) = value(&mut c)?;
    let mut ts_ms = None;
    if space(&mut c)? {
        if c.peek() != Some(b'#') {
            ts_ms = Some(timestamp(&mut c)?);
        }
        if c.peek() == Some(b'#') || space(&mut c)? {
            exemplar(&mut c, max_labels)?;
        }
    }
    Ok(sample_of(name, labels, value, raw, ts_ms, block))
}

/// `# {labels} value`, with a timestamp or without, up to the line's end.
fn exemplar(c: &mut Cursor<'_>, max_labels: usize) -> Result<(), Fault> {
    let at = c.at;
    if !c.eat(b'#') {
        return Err(c.end_fault(at, Reason::Trailing));
    }
    if !c.eat(b' ') || !c.eat(b'{') {
        return Err(c.end_fault(at, Reason::BadExemplar));
    }
    // A quoted text without `=` would be a metric's name, and an exemplar has none: as if it had one already.
    label_block::<true>(c, &mut Some(Text::plain("")), &mut Vec::new(), max_labels)?;
    if !c.eat(b' ') {
        let reason = if c.peek().is_none() { Reason::NoValue } else { Reason::NoSpace };
        return Err(c.end_fault(c.at, reason));
    }
    value(c)?;
    if space(c)? {
        timestamp(c)?;
    }
    match c.peek() {
        None => Ok(()),
        Some(_) => Err(c.end_fault(c.at, Reason::Trailing)),
    }
}

/// A value, and the value as printed.
fn value<'a>(c: &mut Cursor<'a>) -> Result<(f64, &'a str), Fault> {
    let at = c.at;
    let raw = c.token();
    if raw.is_empty() {
        return Err(c.fault(at, if c.peek().is_none() { Reason::NoValue } else { Reason::NoSpace }));
    }
    number::value(raw).map(|value| (value, raw)).map_err(|reason| c.end_fault(at, reason))
}

fn timestamp(c: &mut Cursor<'_>) -> Result<i64, Fault> {
    let at = c.at;
    number::seconds(c.token()).map_err(|reason| c.end_fault(at, reason))
}

/// Whether the line goes on: then after one space, with something behind it.
fn space(c: &mut Cursor<'_>) -> Result<bool, Fault> {
    match c.peek() {
        None => Ok(false),
        Some(b' ') if c.rest().len() > 1 => {
            c.at += 1;
            Ok(true)
        }
        Some(b' ') => Err(c.fault(c.at, Reason::Trailing)),
        Some(_) => Err(c.end_fault(c.at, Reason::NoSpace)),
    }
}

/// A line that begins with `#`.
fn about(mut c: Cursor<'_>) -> Result<Entry<'_>, Fault> {
    if c.rest() == END {
        return Ok(Entry::Nothing);
    }
    let keyword = ["# HELP ", "# TYPE ", "# UNIT "].into_iter().find(|k| c.rest().starts_with(k));
    let Some(keyword) = keyword else { return Err(c.end_fault(0, Reason::BadComment)) };
    c.at += keyword.len();
    let name = c.name_in_meta()?;
    if !c.eat(b' ') {
        let reason = if c.peek().is_none() { Reason::NoSpace } else { Reason::BadName };
        return Err(c.end_fault(c.at, reason));
    }
    let (at, text) = (c.at, c.rest());
    if text.ends_with('\r') {
        return Err(c.end_fault(at, Reason::CarriageReturn));
    }
    match keyword {
        "# HELP " => Ok(Entry::Meta(Meta::Help { name, text: unescape(text, true) })),
        "# TYPE " => match MetricType::from_word(text) {
            Some(kind) => Ok(Entry::Meta(Meta::Type { name, kind })),
            None => Err(c.fault(at, Reason::BadType)),
        },
        _ if text.is_empty() || name.get().strip_suffix(text).is_some_and(|rest| rest.ends_with('_')) => Ok(Entry::Nothing),
        _ => Err(c.fault(at, Reason::BadUnit)),
    }
}
