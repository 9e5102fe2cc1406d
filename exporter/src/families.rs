//! Families of our own, `strandline_*`, as text.

use std::io::Write;

use crate::render::{Format, label};

/// How a family behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// Labels of a series: name and value.
pub type Labels = Vec<(&'static str, String)>;

/// A family and its series.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Name.
    pub name: &'static str,
    /// What it tells, in one line.
    pub help: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// Its series.
    pub series: Vec<(Labels, f64)>,
}

impl Family {
    /// A gauge without series.
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: Kind::Gauge, series: Vec::new() }
    }

    /// A counter without series; `name` ends in `_total`.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: Kind::Counter, series: Vec::new() }
    }

    /// Adds a series.
    pub fn push(&mut self, labels: Labels, value: f64) {
        self.series.push((labels, value));
    }

    /// The same with a series more.
    pub fn with<const N: usize>(mut self, labels: [(&'static str, String); N], value: f64) -> Self {
        self.push(labels.into(), value);
        self
    }

    /// Appends the family, unless it has no series. In OpenMetrics a counter's head has its name without `_total`.
    pub fn write(&self, format: Format, out: &mut Vec<u8>) {
        if self.series.is_empty() {
            return;
        }
        let (kind, head) = match (self.kind, format) {
            (Kind::Counter, Format::OpenMetrics) => ("counter", self.name.strip_suffix("_total").unwrap_or(self.name)),
            (Kind::Counter, Format::Text) => ("counter", self.name),
            (Kind::Gauge, _) => ("gauge", self.name),
        };
        // Our own texts: without backslashes, quotes and line ends. A vector takes every write.
        let _ = writeln!(out, "# HELP {head} {}\n# TYPE {head} {kind}", self.help);
        for (labels, value) in &self.series {
            out.extend_from_slice(self.name.as_bytes());
            let begin = out.len();
            for (name, value) in labels {
                label(name, value, out);
            }
            if begin < out.len() {
                out[begin] = b'{'; // in the place of the first comma
                out.push(b'}');
            }
            let _ = writeln!(out, " {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_text_in_either_format() {
        let family = Family::counter("strandline_x_total", "x")
            .with([("gpu", "0".into()), ("pod", "a\"b\\c\nd".into())], 3.0)
            .with([], 0.25);
        let text = |format| {
            let mut out = Vec::new();
            family.write(format, &mut out);
            String::from_utf8(out).unwrap_or_default()
        };
        let series = "strandline_x_total{gpu=\"0\",pod=\"a\\\"b\\\\c\\nd\"} 3\nstrandline_x_total 0.25\n";
        assert_eq!(text(Format::Text), format!("# HELP strandline_x_total x\n# TYPE strandline_x_total counter\n{series}"));
        assert_eq!(text(Format::OpenMetrics), format!("# HELP strandline_x x\n# TYPE strandline_x counter\n{series}"));
        let mut out = Vec::new();
        Family::gauge("strandline_y", "y").write(Format::Text, &mut out);
        assert!(out.is_empty(), "a family without series is not there");
    }
}
