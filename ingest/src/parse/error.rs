//! What can be wrong with a line or a page, in words a person can act on and in codes a counter can carry.

use std::collections::BTreeMap;

/// Why a line was kept out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Reason {
    /// The line's bytes are not UTF-8.
    #[error("not UTF-8")]
    NotUtf8,
    /// The line is longer than the limit.
    #[error("line is longer than {limit} bytes")]
    LineTooLong {
        /// The limit that was passed.
        limit: usize,
    },
    /// The page already holds as many samples as are allowed.
    #[error("page has more than {limit} samples")]
    TooManySamples {
        /// The limit that was passed.
        limit: usize,
    },
    /// The series has more labels than are allowed.
    #[error("series has more than {limit} labels")]
    TooManyLabels {
        /// The limit that was passed.
        limit: usize,
    },
    /// The line ends in CR LF.
    #[error("line ends in a carriage return; lines of this format end in a line feed alone")]
    CarriageReturn,
    /// A metric name holds a character that needs quotes, or none stands where one must.
    #[error("bad metric name")]
    BadName,
    /// `{""}`.
    #[error("metric name is empty")]
    EmptyName,
    /// `{a="b"} 1`: braces without a name before or inside them.
    #[error("series has no metric name")]
    NoName,
    /// `a{"b"}` or `{"a","b"}`.
    #[error("series has two metric names")]
    TwoNames,
    /// A label name holds a character that needs quotes, or none stands where one must.
    #[error("bad label name")]
    BadLabelName,
    /// `{""="x"}`.
    #[error("label name is empty")]
    EmptyLabelName,
    /// A label called `__name__`.
    #[error("label name `__name__` is reserved")]
    ReservedLabel,
    /// One label name twice on a series.
    #[error("label name stands twice")]
    DuplicateLabel,
    /// No `=` after a label name.
    #[error("expected `=` after the label name")]
    NoEquals,
    /// A label value that is not in double quotes.
    #[error("expected a label value in double quotes")]
    UnquotedValue,
    /// A quote that the line does not close.
    #[error("quote is not closed on its line")]
    OpenQuote,
    /// Neither `,` nor `}` after a label.
    #[error("expected `,` or `}}` after a label")]
    NoComma,
    /// A brace that the line does not close.
    #[error("brace is not closed on its line")]
    OpenBrace,
    /// Nothing after the series.
    #[error("sample has no value")]
    NoValue,
    /// The value is no number.
    #[error("value is not a number")]
    BadValue,
    /// The value is a number that 64-bit floats do not reach.
    #[error("value is beyond the range of a 64-bit float")]
    ValueOutOfRange,
    /// The timestamp is no whole number of milliseconds.
    #[error("timestamp is not a whole number of milliseconds")]
    BadTimestamp,
    /// Text after the timestamp.
    #[error("text after the timestamp")]
    Trailing,
    /// A TYPE line with a word that is no metric type.
    #[error("unknown metric type")]
    BadType,
    /// OpenMetrics: two blanks, a tab or none where one space must stand.
    #[error("expected one space")]
    NoSpace,
    /// OpenMetrics: a line of nothing.
    #[error("empty line; OpenMetrics has none")]
    BlankLine,
    /// OpenMetrics: a line that begins with `#` and is neither HELP, TYPE, UNIT nor EOF.
    #[error(
        "a line with `#` is `# HELP name text`, `# TYPE name type`, `# UNIT name unit` or `# EOF`; OpenMetrics has no comments"
    )]
    BadComment,
    /// OpenMetrics: a unit that is not the end of the metric's name.
    #[error("unit is not the end of the metric's name, after `_`")]
    BadUnit,
    /// OpenMetrics: the timestamp is no number of seconds.
    #[error("timestamp is not a number of seconds")]
    BadSeconds,
    /// OpenMetrics: no label block after the `#` of an exemplar.
    #[error("expected an exemplar, `# {{labels}} value`")]
    BadExemplar,
    /// OpenMetrics: something after the end mark.
    #[error("text after `# EOF`")]
    AfterEnd,
    /// OpenMetrics: no end mark.
    #[error("no `# EOF` at the end: the page was cut")]
    NoEnd,
}

impl Reason {
    /// Every code, so that counters are there from the start.
    pub const CODES: &[&str] = &[
        "not_utf8",
        "line_too_long",
        "too_many_samples",
        "too_many_labels",
        "carriage_return",
        "bad_name",
        "empty_name",
        "no_name",
        "two_names",
        "bad_label_name",
        "empty_label_name",
        "reserved_label",
        "duplicate_label",
        "no_equals",
        "unquoted_value",
        "open_quote",
        "no_comma",
        "open_brace",
        "no_value",
        "bad_value",
        "value_out_of_range",
        "bad_timestamp",
        "trailing_text",
        "bad_type",
        "no_space",
        "blank_line",
        "bad_comment",
        "bad_unit",
        "bad_seconds",
        "bad_exemplar",
        "after_end",
        "no_end",
    ];

    /// A short stable word for counters and the `rejects` table.
    pub fn code(self) -> &'static str {
        match self {
            Reason::NotUtf8 => "not_utf8",
            Reason::LineTooLong { .. } => "line_too_long",
            Reason::TooManySamples { .. } => "too_many_samples",
            Reason::TooManyLabels { .. } => "too_many_labels",
            Reason::CarriageReturn => "carriage_return",
            Reason::BadName => "bad_name",
            Reason::EmptyName => "empty_name",
            Reason::NoName => "no_name",
            Reason::TwoNames => "two_names",
            Reason::BadLabelName => "bad_label_name",
            Reason::EmptyLabelName => "empty_label_name",
            Reason::ReservedLabel => "reserved_label",
            Reason::DuplicateLabel => "duplicate_label",
            Reason::NoEquals => "no_equals",
            Reason::UnquotedValue => "unquoted_value",
            Reason::OpenQuote => "open_quote",
            Reason::NoComma => "no_comma",
            Reason::OpenBrace => "open_brace",
            Reason::NoValue => "no_value",
            Reason::BadValue => "bad_value",
            Reason::ValueOutOfRange => "value_out_of_range",
            Reason::BadTimestamp => "bad_timestamp",
            Reason::Trailing => "trailing_text",
            Reason::BadType => "bad_type",
            Reason::NoSpace => "no_space",
            Reason::BlankLine => "blank_line",
            Reason::BadComment => "bad_comment",
            Reason::BadUnit => "bad_unit",
            Reason::BadSeconds => "bad_seconds",
            Reason::BadExemplar => "bad_exemplar",
            Reason::AfterEnd => "after_end",
            Reason::NoEnd => "no_end",
        }
    }
}

/// One bad line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct LineError {
    /// Number of the line, from 1.
    pub line: u32,
    /// Byte offset of the fault in the page, from 0.
    pub offset: u64,
    /// Byte of the fault in its line, from 1.
    pub column: u32,
    /// What is wrong.
    pub reason: Reason,
}

/// The bad lines of a page: all counted, the first ones kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rejects {
    /// How many lines were bad.
    pub count: u64,
    /// How many by [`Reason::code`].
    pub by_reason: BTreeMap<&'static str, u64>,
    /// The first of them, as many as [`super::Limits::rejects_kept`] allows.
    pub first: Vec<LineError>,
}

impl Rejects {
    pub(super) fn push(&mut self, error: LineError, keep: usize) {
        self.count += 1;
        *self.by_reason.entry(error.reason.code()).or_default() += 1;
        if self.first.len() < keep {
            self.first.push(error);
        }
    }
}

/// Why a page was refused whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// The page is longer than the limit.
    #[error("page of {bytes} bytes is longer than {limit}; raise the limit if that is right for this target")]
    TooLarge {
        /// The page's length.
        bytes: usize,
        /// The limit that was passed.
        limit: usize,
    },
    /// Strict mode: the first bad line.
    #[error("{0}")]
    Line(LineError),
    /// OpenMetrics without its end mark: part of a page, at fault on the last line that is there.
    #[error("{0}")]
    Cut(LineError),
}
