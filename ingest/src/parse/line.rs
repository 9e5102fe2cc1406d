//! The grammar of one line.

use super::text::unescape;
use super::{Memory, Reason, Text, number};
use std::borrow::Cow;
use std::ops::Range;

/// One series sample. Its labels stand in [`super::Exposition::labels`].
#[derive(Debug, Clone, PartialEq)]
pub struct Sample<'a> {
    /// Metric name.
    pub name: Text<'a>,
    /// Range of its labels in the list that goes with it.
    pub labels: Range<u32>,
    /// The value.
    pub value: f64,
    /// The value as printed: integers above 2^53 and the decimals of a ratio are exact here.
    pub raw: &'a str,
    /// Timestamp in milliseconds, where the line has one.
    pub ts_ms: Option<i64>,
    /// Number of its line, from 1.
    pub line: u32,
}

/// One label. An empty value means the same as no label, but is kept as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label<'a> {
    /// Name.
    pub name: Text<'a>,
    /// Value.
    pub value: Text<'a>,
}

/// The types that a TYPE line may declare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricType {
    /// `counter`
    Counter,
    /// `gauge`
    Gauge,
    /// `histogram`
    Histogram,
    /// `gaugehistogram`
    GaugeHistogram,
    /// `summary`
    Summary,
    /// `info`
    Info,
    /// `stateset`
    StateSet,
    /// `untyped` or `unknown`
    Unknown,
}

impl MetricType {
    /// The type of a word that both formats know.
    pub(super) fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "counter" => MetricType::Counter,
            "gauge" => MetricType::Gauge,
            "histogram" => MetricType::Histogram,
            "gaugehistogram" => MetricType::GaugeHistogram,
            "summary" => MetricType::Summary,
            "info" => MetricType::Info,
            "stateset" => MetricType::StateSet,
            "unknown" => MetricType::Unknown,
            _ => return None,
        })
    }
}

/// A line about a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meta<'a> {
    /// `# HELP name text`.
    Help {
        /// Metric name.
        name: Text<'a>,
        /// Text, unescaped.
        text: Cow<'a, str>,
    },
    /// `# TYPE name type`.
    Type {
        /// Metric name.
        name: Text<'a>,
        /// Declared type.
        kind: MetricType,
    },
}

/// What a line holds. A sample's labels were pushed to the list given to [`entry`], unless its block is known.
pub(super) enum Entry<'a> {
    Nothing,
    Meta(Meta<'a>),
    Sample(Sample<'a>, Block<'a>),
}

/// What stands between a sample's name and its value, braces included.
pub(super) enum Block<'a> {
    /// Nothing, or a block that names the metric too and so is never remembered.
    None,
    /// Its bytes; the labels were read.
    Read(&'a str),
    /// Its number in the memory; the labels were not read.
    Known(u32),
}

/// What is wrong with a line, and at which of its bytes.
pub(super) struct Fault {
    pub at: usize,
    pub reason: Reason,
}

/// Reads one line, without its line feed. `labels` comes empty; after a fault it may hold some.
#[inline]
pub(super) fn entry<'a>(
    line: &'a str,
    labels: &mut Vec<Label<'a>>,
    max_labels: usize,
    memory: Option<&Memory>,
) -> Result<Entry<'a>, Fault> {
    let mut cursor = Cursor { line, at: 0 };
    cursor.blanks();
    match cursor.peek() {
        None => Ok(Entry::Nothing),
        Some(b'#') => comment(cursor),
        Some(_) => sample(cursor, labels, max_labels, memory),
    }
}

/// A comment that is neither HELP nor TYPE, judged by bytes that need not be UTF-8.
pub(super) fn is_plain_comment(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    let Some(rest) = line.strip_prefix(b"#") else { return false };
    let words = rest.trim_ascii_start();
    let keyword = [b"HELP".as_slice(), b"TYPE".as_slice()]
        .iter()
        .any(|k| words.strip_prefix(*k).is_some_and(|after| after.first().is_none_or(u8::is_ascii_whitespace)));
    !(keyword && words.len() < rest.len())
}

fn sample<'a>(
    mut c: Cursor<'a>,
    labels: &mut Vec<Label<'a>>,
    max_labels: usize,
    memory: Option<&Memory>,
) -> Result<Entry<'a>, Fault> {
    let start = c.at;
    let name = c.name_before_block(start)?;
    let after_name = c.at;
    c.blanks();
    if c.peek() != Some(b'{') && c.at == after_name && c.peek().is_some() {
        return Err(c.end_fault(after_name, Reason::BadName));
    }
    let (name, block) = block::<false>(&mut c, start, name, labels, max_labels, memory)?;
    c.blanks();

    let at = c.at;
    let raw = c.token();
    if raw.is_empty() {
        return Err(c.fault(at, Reason::NoValue));
    }
    let value = number::value(raw).map_err(|reason| c.end_fault(at, reason))?;
    c.blanks();
    if c.peek().is_none() {
        return Ok(sample_of(name, labels, value, raw, None, block));
    }
    let at = c.at;
    let ts_ms = number::timestamp(c.token()).map_err(|reason| c.end_fault(at, reason))?;
    c.blanks();
    match c.peek() {
        None => Ok(sample_of(name, labels, value, raw, Some(ts_ms), block)),
        Some(_) => Err(c.end_fault(c.at, Reason::Trailing)),
    }
}

#[inline]
pub(super) fn sample_of<'a>(
    name: Text<'a>,
    labels: &[Label<'a>],
    value: f64,
    raw: &'a str,
    ts_ms: Option<i64>,
    block: Block<'a>,
) -> Entry<'a> {
    Entry::Sample(Sample { name, labels: 0..labels.len() as u32, value, raw, ts_ms, line: 0 }, block)
}

/// The label block that begins here, if one does, and the metric's name from before or inside it. `TIGHT`: no blanks.
#[inline(always)]
pub(super) fn block<'a, const TIGHT: bool>(
    c: &mut Cursor<'a>,
    start: usize,
    mut name: Option<Text<'a>>,
    labels: &mut Vec<Label<'a>>,
    max_labels: usize,
    memory: Option<&Memory>,
) -> Result<(Text<'a>, Block<'a>), Fault> {
    let opened = c.at;
    let bare = name;
    if c.peek() == Some(b'{') {
        // What a block means depends on its bytes alone, so bytes that begin with a known block are that block.
        if let (Some(name), Some((number, length))) = (name, memory.and_then(|memory| memory.guess(c.rest()))) {
            c.at += length;
            return Ok((name, Block::Known(number)));
        }
        c.at += 1;
        label_block::<TIGHT>(c, &mut name, labels, max_labels)?;
    }
    let Some(name) = name else { return Err(c.fault(start, Reason::NoName)) };
    let block = if bare.is_some() && c.at > opened { Block::Read(&c.line[opened..c.at]) } else { Block::None };
    Ok((name, block))
}

/// The labels after `{`, up to and with `}`. A quoted string that no `=` follows is the metric's name. `TIGHT`: no blanks.
pub(super) fn label_block<'a, const TIGHT: bool>(
    c: &mut Cursor<'a>,
    metric: &mut Option<Text<'a>>,
    labels: &mut Vec<Label<'a>>,
    max_labels: usize,
) -> Result<(), Fault> {
    let mut seen = Seen::default();
    let blanks = |c: &mut Cursor<'a>| {
        if !TIGHT {
            c.blanks();
        }
    };
    blanks(c);
    if c.eat(b'}') {
        return Ok(());
    }
    loop {
        let at = c.at;
        let quoted = c.peek() == Some(b'"');
        let name = if quoted { c.quoted()? } else { Text::plain(c.run(LABEL)) };
        if !c.at_byte(b'=') {
            blanks(c);
        }
        if c.eat(b'=') {
            if name.is_empty() || (!quoted && name.as_plain().is_some_and(begins_with_digit)) {
                return Err(c.fault(at, if quoted { Reason::EmptyLabelName } else { Reason::BadLabelName }));
            }
            if !c.at_byte(b'"') {
                blanks(c);
                if !c.at_byte(b'"') {
                    return Err(c.end_fault(c.at, Reason::UnquotedValue));
                }
            }
            let value = c.quoted()?;
            if labels.len() >= max_labels {
                return Err(c.fault(at, Reason::TooManyLabels { limit: max_labels }));
            }
            if name.as_plain().is_none_or(|n| n.len() == 8) && name == *"__name__" {
                return Err(c.fault(at, Reason::ReservedLabel));
            }
            if seen.maybe(name) && labels.iter().any(|l| tick(1) && l.name == name) {
                return Err(c.fault(at, Reason::DuplicateLabel));
            }
            labels.push(Label { name, value });
        } else if quoted {
            if metric.is_some() {
                return Err(c.fault(at, Reason::TwoNames));
            }
            if name.is_empty() {
                return Err(c.fault(at, Reason::EmptyName));
            }
            *metric = Some(name);
        } else if name.is_empty() {
            return Err(c.open_fault(at, Reason::BadLabelName));
        } else {
            return Err(c.open_fault(c.at, Reason::NoEquals));
        }
        if !c.at_byte(b',') {
            blanks(c);
        }
        if c.eat(b',') {
            blanks(c);
            if c.eat(b'}') {
                return Ok(());
            }
        } else if c.eat(b'}') {
            return Ok(());
        } else {
            return Err(c.open_fault(c.at, Reason::NoComma));
        }
    }
}

/// `#` and what follows. `#HELP` without a blank, and a keyword with nothing after it, are plain comments.
fn comment<'a>(mut c: Cursor<'a>) -> Result<Entry<'a>, Fault> {
    c.at += 1;
    let blank = matches!(c.peek(), Some(b' ' | b'\t'));
    c.blanks();
    let keyword = c.token();
    let help = keyword == "HELP";
    if !blank || (!help && keyword != "TYPE") {
        return Ok(Entry::Nothing);
    }
    c.blanks();
    if c.peek().is_none() {
        return Ok(Entry::Nothing);
    }
    let name = c.name_in_meta()?;
    let ends = matches!(c.peek(), None | Some(b' ' | b'\t')) || (help && c.rest() == "\r");
    if !ends {
        return Err(c.end_fault(c.at, Reason::BadName));
    }
    c.blanks();
    let at = c.at;
    let text = c.rest();
    if help {
        return Ok(Entry::Meta(Meta::Help { name, text: unescape(text, false) }));
    }
    let word = text.trim_end_matches([' ', '\t']);
    let kind = if word == "untyped" { Some(MetricType::Unknown) } else { MetricType::from_word(word) };
    match kind {
        Some(kind) => Ok(Entry::Meta(Meta::Type { name, kind })),
        None => Err(c.end_fault(at, Reason::BadType)),
    }
}

/// A place in a line. All moves stop on ASCII bytes, so every slice falls on character boundaries.
pub(super) struct Cursor<'a> {
    pub line: &'a str,
    pub at: usize,
}

impl<'a> Cursor<'a> {
    /// The metric's name that begins here at `start`; none where a block comes first, which may hold it.
    #[inline]
    pub fn name_before_block(&mut self, start: usize) -> Result<Option<Text<'a>>, Fault> {
        let bare = self.run(METRIC);
        match bare.as_bytes().first() {
            Some(b) if !b.is_ascii_digit() => Ok(Some(Text::plain(bare))),
            Some(_) => Err(self.fault(start, Reason::BadName)),
            None if self.peek() == Some(b'{') => Ok(None),
            None => Err(self.end_fault(start, Reason::BadName)),
        }
    }

    /// The metric's name in a line about it, quoted or not.
    pub fn name_in_meta(&mut self) -> Result<Text<'a>, Fault> {
        let at = self.at;
        let quoted = self.peek() == Some(b'"');
        let name = if quoted { self.quoted()? } else { Text::plain(self.run(METRIC)) };
        if name.is_empty() || (!quoted && name.as_plain().is_some_and(begins_with_digit)) {
            return Err(self.fault(at, Reason::BadName));
        }
        Ok(name)
    }

    #[inline]
    pub fn peek(&self) -> Option<u8> {
        self.line.as_bytes().get(self.at).copied()
    }

    #[inline]
    fn at_byte(&self, byte: u8) -> bool {
        self.peek() == Some(byte)
    }

    #[inline]
    pub fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Skips spaces and tabs.
    #[inline]
    fn blanks(&mut self) {
        while let Some(b' ' | b'\t') = self.peek() {
            tick(1);
            self.at += 1;
        }
    }

    /// The longest run of bytes of a class.
    #[inline]
    fn run(&mut self, class: u8) -> &'a str {
        let bytes = &self.line.as_bytes()[self.at..];
        let n = bytes.iter().position(|b| CLASS[*b as usize] & class == 0).unwrap_or(bytes.len());
        tick(n as u64);
        let run = &self.line[self.at..self.at + n];
        self.at += n;
        run
    }

    /// What stands up to the next blank or the end of the line.
    #[inline]
    pub fn token(&mut self) -> &'a str {
        let bytes = &self.line.as_bytes()[self.at..];
        let n = bytes.iter().position(|b| matches!(b, b' ' | b'\t')).unwrap_or(bytes.len());
        tick(n as u64);
        let token = &self.line[self.at..self.at + n];
        self.at += n;
        token
    }

    pub fn rest(&self) -> &'a str {
        &self.line[self.at..]
    }

    /// The string in double quotes that begins here.
    #[inline(always)]
    fn quoted(&mut self) -> Result<Text<'a>, Fault> {
        let open = self.at;
        let bytes = self.line.as_bytes();
        match memchr::memchr2(b'"', b'\\', &bytes[open + 1..]) {
            Some(n) if bytes[open + 1 + n] == b'"' => {
                tick(n as u64 + 1);
                self.at = open + n + 2;
                Ok(Text::plain(&self.line[open + 1..open + 1 + n]))
            }
            Some(n) => self.quoted_with_escapes(open, open + 1 + n),
            None => Err(Fault { at: open, reason: Reason::OpenQuote }),
        }
    }

    /// The same, from its first backslash on. The byte after a backslash never closes the quote, whatever it is.
    #[cold]
    #[inline(never)]
    fn quoted_with_escapes(&mut self, open: usize, backslash: usize) -> Result<Text<'a>, Fault> {
        let bytes = self.line.as_bytes();
        let mut at = backslash + 2;
        tick(2);
        while let Some(n) = bytes.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
            tick(n as u64 + 1);
            if bytes[at + n] == b'"' {
                self.at = at + n + 1;
                return Ok(Text::with_escapes(&self.line[open..at + n]));
            }
            at = at + n + 2;
        }
        Err(Fault { at: open, reason: Reason::OpenQuote })
    }

    pub fn fault(&self, at: usize, reason: Reason) -> Fault {
        Fault { at, reason }
    }

    /// The fault of a line that would be right but for a carriage return at its end is the carriage return.
    pub fn end_fault(&self, at: usize, reason: Reason) -> Fault {
        if self.line.ends_with('\r') {
            return Fault { at: self.line.len() - 1, reason: Reason::CarriageReturn };
        }
        Fault { at, reason }
    }

    /// At the end of the line the fault is the open brace.
    fn open_fault(&self, at: usize, reason: Reason) -> Fault {
        Fault { at, reason: if self.peek().is_none() { Reason::OpenBrace } else { reason } }
    }
}

fn begins_with_digit(name: &str) -> bool {
    name.as_bytes().first().is_some_and(u8::is_ascii_digit)
}

/// A sieve for label names seen on a series: no bit set means the name is new, so that the list is searched only
/// where two names look alike, and one series costs time linear in its labels for any names a page is likely to
/// have; the labels' limit bounds the rest.
#[derive(Default)]
struct Seen([u64; 4]);

impl Seen {
    #[inline]
    fn maybe(&mut self, name: Text<'_>) -> bool {
        let Some(bytes) = name.as_plain().map(str::as_bytes) else { return true }; // spelled with escapes: may equal any
        let [Some(first), Some(last)] = [bytes.first(), bytes.last()] else { return true };
        let middle = bytes[bytes.len() / 2];
        let hash = u32::from(*first) * 31 + u32::from(middle) * 7 + u32::from(*last) * 3 + bytes.len() as u32;
        let word = &mut self.0[(hash >> 6 & 3) as usize];
        let bit = 1u64 << (hash & 63);
        let was = *word & bit != 0;
        *word |= bit;
        was
    }
}

const METRIC: u8 = 1;
const LABEL: u8 = 2;

/// Which bytes belong to unquoted metric and label names (digits too; a name may not begin with one).
const CLASS: [u8; 256] = {
    let mut table = [0; 256];
    let mut b = 0;
    while b < 256 {
        let c = b as u8;
        if c.is_ascii_alphanumeric() || c == b'_' {
            table[b] = METRIC | LABEL;
        } else if c == b':' {
            table[b] = METRIC;
        }
        b += 1;
    }
    table
};

/// Counts work, for the test that work is linear. Nothing outside tests.
#[inline(always)]
pub(super) fn tick(_n: u64) -> bool {
    #[cfg(test)]
    super::tests::STEPS.with(|s| s.set(s.get() + _n));
    true
}
