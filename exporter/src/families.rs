//! Families of our own, `strandline_*`, as text.

use std::fmt::Write;

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
    pub fn write(&self, open_metrics: bool, out: &mut String) {
        if self.series.is_empty() {
            return;
        }
        let (kind, head) = match self.kind {
            Kind::Counter if open_metrics => ("counter", self.name.strip_suffix("_total").unwrap_or(self.name)),
            Kind::Counter => ("counter", self.name),
            Kind::Gauge => ("gauge", self.name),
        };
        // Our own texts: without backslashes, quotes and line ends.
        let _ = writeln!(out, "# HELP {head} {}\n# TYPE {head} {kind}", self.help);
        for (labels, value) in &self.series {
            out.push_str(self.name);
            for (n, (name, value)) in labels.iter().enumerate() {
                out.push(if n == 0 { '{' } else { ',' });
                out.push_str(name);
                out.push_str("=\"");
                escaped(value, out);
                out.push('"');
            }
            if !labels.is_empty() {
                out.push('}');
            }
            let _ = match value {
                value if value.is_nan() => writeln!(out, " NaN"),
                value if value.is_infinite() => writeln!(out, " {}Inf", if *value > 0.0 { '+' } else { '-' }),
                value => writeln!(out, " {value}"),
            };
        }
    }
}

fn escaped(value: &str, out: &mut String) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
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
        let text = |open| {
            let mut out = String::new();
            family.write(open, &mut out);
            out
        };
        let series = "strandline_x_total{gpu=\"0\",pod=\"a\\\"b\\\\c\\nd\"} 3\nstrandline_x_total 0.25\n";
        assert_eq!(text(false), format!("# HELP strandline_x_total x\n# TYPE strandline_x_total counter\n{series}"));
        assert_eq!(text(true), format!("# HELP strandline_x x\n# TYPE strandline_x counter\n{series}"));
        let mut out = String::new();
        Family::gauge("strandline_y", "y").write(false, &mut out);
        assert_eq!(out, "", "a family without series is not there");
    }
}
