#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use std::cell::Cell;

thread_local! {
    /// Bytes and label comparisons that the scanner did on this thread.
    pub(super) static STEPS: Cell<u64> = const { Cell::new(0) };
}

fn lenient(bytes: &[u8]) -> Exposition<'_> {
    page(bytes, Format::Text, Mode::Lenient, Limits::default()).unwrap()
}

/// `name{a=b,...} value [@ts]` of every sample, for short expectations.
fn shown(text: &str) -> Result<Vec<String>, String> {
    shown_as(text, Format::Text)
}

fn shown_as(text: &str, format: Format) -> Result<Vec<String>, String> {
    let page = page(text.as_bytes(), format, Mode::Strict, Limits::default()).map_err(|e| e.to_string())?;
    let show = |s: &Sample<'_>| {
        let labels: Vec<_> = page.labels(s).iter().map(|l| format!("{}={}", l.name, l.value)).collect();
        let ts = s.ts_ms.map_or(String::new(), |t| format!(" @{t}"));
        format!("{}{{{}}} {}{ts}", s.name, labels.join(";"), s.value)
    };
    Ok(page.samples.iter().map(show).collect())
}

#[track_caller]
fn check(text: &str, expected: &str) {
    assert_eq!(shown(text).unwrap_or_else(|e| vec![format!("error: {e}")]).join(" | "), expected, "{text:?}");
}

/// One line of OpenMetrics, with its end mark behind it.
#[track_caller]
fn check_openmetrics(line: &str, expected: &str) {
    let shown = shown_as(&format!("{line}\n# EOF\n"), Format::OpenMetrics);
    assert_eq!(shown.unwrap_or_else(|e| vec![format!("error: {e}")]).join(" | "), expected, "{line:?}");
}

/// Beside the vectors: what those leave open.
#[test]
fn openmetrics_where_the_vectors_leave_a_choice() {
    check_openmetrics(r#"a{b="c",} 1"#, "a{b=c} 1");
    check_openmetrics(r#"a{b="x\"y\\z\nw\q"} 1"#, "a{b=x\"y\\z\nw\\q} 1");
    check_openmetrics("a 1 1751328000.0004", "a{} 1 @1751328000000");
    check_openmetrics("a 1 1751328000.0006", "a{} 1 @1751328000001");
    check_openmetrics("a 1 1.5e3", "a{} 1 @1500000");
    check_openmetrics("a 1 9223372036854776", "error: line 1, column 5: timestamp is not a number of seconds");
    check_openmetrics("a 1 ", "error: line 1, column 4: text after the timestamp");
    check_openmetrics("a 1 2 3", "error: line 1, column 7: text after the timestamp");
    check_openmetrics("a 1 2 # {x=\"y\"} 3 4", "a{} 1 @2000");
    check_openmetrics("a 1 # {x=\"y\",x=\"z\"} 3", "error: line 1, column 14: label name stands twice");
    check_openmetrics("a 1 # {\"x\"} 3", "error: line 1, column 8: series has two metric names");
    check_openmetrics("a 1 # {x=\"y\"}", "error: line 1, column 14: sample has no value");
    check_openmetrics("a 1 # {x=\"y\"} 3 4 5", "error: line 1, column 18: text after the timestamp");
    check_openmetrics("a{b=\"c\"} 1 #", "error: line 1, column 12: expected an exemplar, `# {labels} value`");
    check_openmetrics("a\t1", "error: line 1, column 2: expected one space");
    check_openmetrics("a-b 1", "error: line 1, column 2: bad metric name");
    check_openmetrics("# UNIT a_watts watts", "");
    check_openmetrics("# UNIT watts watts", "error: line 1, column 14: unit is not the end of the metric's name, after `_`");
    check_openmetrics("# UNIT a_kwatts watts", "error: line 1, column 17: unit is not the end of the metric's name, after `_`");
    check_openmetrics("# TYPE a gauge ", "error: line 1, column 10: unknown metric type");
    check_openmetrics(
        "# a comment",
        "error: line 1, column 1: a line with `#` is `# HELP name text`, `# TYPE name type`, \
                       `# UNIT name unit` or `# EOF`; OpenMetrics has no comments",
    );
    let text = "# HELP a l1\\nl2 \\\"b\\\"\n# TYPE a counter\na_total 1\n# EOF";
    let page = page(text.as_bytes(), Format::OpenMetrics, Mode::Strict, Limits::default()).unwrap();
    assert_eq!((page.help("a").as_deref(), page.metric_type("a")), (Some("l1\nl2 \"b\""), Some(MetricType::Counter)));
    assert!(!page.unterminated, "the end mark says that the page is whole");
}

#[test]
fn openmetrics_without_its_end_is_no_page_in_either_mode() {
    for (text, line) in [("", 1), ("a 1\n", 1), ("a 1\nb", 2), ("a 1\n# EO", 2), ("a 1\n# EOF \nb 2\n", 3)] {
        let lenient = page(text.as_bytes(), Format::OpenMetrics, Mode::Lenient, Limits::default());
        let PageError::Cut(at) = lenient.unwrap_err() else { panic!("{text:?}") };
        assert_eq!((at.line, at.reason), (line, Reason::NoEnd), "{text:?}");
    }
    // Bad lines are kept out as in text; what follows the end too. A carriage return behind the end mark is one of them.
    let text = b"a 1\nb  2\nc 3\n# EOF\r\nd 4\n";
    let read = page(text, Format::OpenMetrics, Mode::Lenient, Limits::default()).unwrap();
    assert_eq!(read.samples.iter().map(|s| s.name.to_string()).collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(read.rejects.by_reason, [("after_end", 1), ("carriage_return", 1), ("no_space", 1)].into());
}

/// What the prometheus-parse crate gets wrong, with the right answers; numbers as in the survey that found them.
#[test]
fn what_prometheus_parse_gets_wrong() {
    check(r#"a{l="x,y"} 1"#, "a{l=x,y} 1"); // 1
    check(r#"a{l="x,k=v"} 1"#, "a{l=x,k=v} 1"); // 2
    check(r#"a{l="x=y"} 1"#, "a{l=x=y} 1"); // 3
    check(r#"a{l="x}y"} 1"#, "a{l=x}y} 1"); // 4
    check(r#"a{l="x\"y"} 1"#, r#"a{l=x"y} 1"#); // 5
    check(r#"a{l="C:\\dir"} 1"#, r"a{l=C:\dir} 1"); // 6
    check(r#"a{l="x\ny"} 1"#, "a{l=x\ny} 1"); // 7
    check(r#"a{l="\"x\""} 1"#, r#"a{l="x"} 1"#); // 8
    check("a{} 1", "a{} 1"); // 9
    check(r#"a {l="x"} 1"#, "a{l=x} 1"); // 10
    check(r#"a{l="x"}1"#, "a{l=x} 1"); // 11
    check(r#"a{l="x", k="y"} 1"#, "a{l=x;k=y} 1"); // 12
    check(r#"a{ l = "x" } 1"#, "a{l=x} 1"); // 13
    check("# HELP job:a:sum text\n# TYPE job:a:sum gauge\njob:a:sum 1", "job:a:sum{} 1"); // 14
    check(r#"{"my.metric",l="x"} 1"#, "my.metric{l=x} 1"); // 15
    check("a{l=x} 1", "error: line 1, column 5: expected a label value in double quotes"); // 16
    check("9a 1", "error: line 1, column 1: bad metric name");
    check("é 1", "error: line 1, column 1: bad metric name");
    check("a 1 xyz", "error: line 1, column 5: timestamp is not a whole number of milliseconds"); // 17
    check("a 1 1.5", "error: line 1, column 5: timestamp is not a whole number of milliseconds");
    check("a 1 1700000000123 zzz", "error: line 1, column 19: text after the timestamp"); // 18
    check("a abc", "error: line 1, column 3: value is not a number"); // 19
    check(r#"a{l="x 1"#, "error: line 1, column 5: quote is not closed on its line");
    check("a 0x1p-2", "error: line 1, column 3: value is not a number"); // 20: Go's floats, but the parsers refuse them
    check("#HELP a x\n#TYPE a y\na 1", "a{} 1"); // 22
    check(r#"a{l="x",l="y"} 1"#, "error: line 1, column 9: label name stands twice"); // 23
    check("a 1\na 2", "a{} 1 | a{} 2"); // 24: both are seen here; the page view keeps the first and counts the other
    check("a_total 1 # {trace_id=\"x\"} 0.5", "error: line 1, column 11: timestamp is not a whole number of milliseconds"); // 28
    check("a 9007199254740993\nb 18446744073709551615", "a{} 9007199254740992 | b{} 18446744073709552000"); // 29
}

#[test]
fn help_and_type_are_kept_and_the_first_type_counts() {
    let text = "# HELP a l1\\nl2 b\\\\s \\q\na 1\n# TYPE a gauge\n# TYPE a counter\n# TYPE g gaugehistogram\n# TYPE u untyped\n# HELP e\n";
    let page = page(text.as_bytes(), Format::Text, Mode::Strict, Limits::default()).unwrap();
    assert_eq!(page.help("a").as_deref(), Some("l1\nl2 b\\s \\q")); // 21
    assert_eq!(page.metric_type("a"), Some(MetricType::Gauge)); // 25
    assert_eq!(page.metric_type("g"), Some(MetricType::GaugeHistogram)); // 27
    assert_eq!(page.metric_type("u"), Some(MetricType::Unknown));
    assert_eq!((page.help("e").as_deref(), page.help("none"), page.metric_type("e")), (Some(""), None, None));
}

#[test]
fn a_histogram_stays_in_document_order() {
    let text = "# TYPE h histogram\nh_bucket{x=\"a,b\",le=\"1\"} 1\nh_bucket{x=\"a\",le=\"bad\"} 2\nh_sum 3\nh_count 4\nz 5\n"; // 26
    check(text, "h_bucket{x=a,b;le=1} 1 | h_bucket{x=a;le=bad} 2 | h_sum{} 3 | h_count{} 4 | z{} 5");
}

#[test]
fn bad_bytes_lose_their_line_only() {
    let text = b"a 1\nb{l=\"\xff\"} 2\n# \xfe plain comment\n# HELP c \xfe\nd 4\n"; // 30
    let page = lenient(text);
    assert_eq!(page.samples.iter().map(|s| s.name.to_string()).collect::<Vec<_>>(), ["a", "d"]);
    assert_eq!(page.rejects.count, 2);
    assert_eq!(page.rejects.by_reason, [("not_utf8", 2)].into());
    let lines: Vec<_> = page.rejects.first.iter().map(|e| (e.line, e.offset, e.column)).collect();
    assert_eq!(lines, [(2, 9, 6), (4, 42, 10)]);
}

#[test]
fn a_bad_line_is_counted_and_the_rest_goes_on() {
    let page = lenient(b"a{x=\"1\"} 1\nb{y=\"2\",z=\"3\"} x\nc{w=\"4\"} 3\n");
    assert_eq!(page.samples.len(), 2);
    assert_eq!(page.labels.len(), 2, "the labels of the bad line are gone");
    assert!(page.labels(&page.samples[1])[0].name == *"w");
    assert_eq!(page.rejects.first[0], LineError { line: 2, offset: 26, column: 16, reason: Reason::BadValue });
    assert_eq!(shown("a 1\nb x\n"), Err("line 2, column 3: value is not a number".into()));
}

#[test]
fn values_are_read_as_go_reads_them() {
    let ok = [
        ("0", 0.0),
        ("-0", -0.0),
        ("+17", 17.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("1.5e+06", 1.5e6),
        ("25E-2", 0.25),
        ("123456789012345", 123_456_789_012_345.0),
        ("9223372036854775794", 9_223_372_036_854_775_794_i128 as f64),
        ("1e-400", 0.0),
        ("0.503000", 0.503),
        ("iNf", f64::INFINITY),
        ("+INFINITY", f64::INFINITY),
        ("-inf", f64::NEG_INFINITY),
    ];
    for (text, value) in ok {
        assert_eq!(number::value(text).map(f64::to_bits), Ok(f64::to_bits(value)), "{text}");
    }
    assert!(number::value("NaN").unwrap().is_nan());
    for text in ["", "+", "-", ".", "e5", "1e", "1e+", "+nan", "-NaN", "1_0", "0x10", "infin", "1 ", "１", "--1", "1.2.3", "0b1"]
    {
        assert_eq!(number::value(text), Err(Reason::BadValue), "{text}");
    }
    for text in ["1e400", "-1e309"] {
        assert_eq!(number::value(text), Err(Reason::ValueOutOfRange), "{text}");
    }
    for text in ["", "-", "1.5", "9223372036854775808", "0x1", "1_0", "1\0"] {
        assert_eq!(number::timestamp(text), Err(Reason::BadTimestamp), "{text}");
    }
    assert_eq!(number::timestamp("-9223372036854775808"), Ok(i64::MIN));
}

#[test]
fn every_limit_holds() {
    let small = Limits { page_bytes: 60, line_bytes: 20, labels_per_series: 2, samples: 2, rejects_kept: 1 };
    let too_large = page(&[b'\n'; 61], Format::Text, Mode::Lenient, small);
    assert_eq!(too_large.unwrap_err(), PageError::TooLarge { bytes: 61, limit: 60 });
    let text = b"abcdefghijklmnopqrstu 1\na{b=\"\",c=\"\",d=\"\"} 1\na 1\nb 2\nc 3\n";
    let read = page(text, Format::Text, Mode::Lenient, small).unwrap();
    assert_eq!(read.samples.len(), 2);
    assert_eq!(read.rejects.by_reason, [("line_too_long", 1), ("too_many_labels", 1), ("too_many_samples", 1)].into());
    assert_eq!((read.rejects.count, read.rejects.first.len()), (3, 1));
}

#[test]
fn carriage_returns_are_named() {
    let crlf = lenient(b"# HELP a x\r\n# TYPE a gauge\r\na{x=\"1\"} 1\r\nb 1 2\r\n\r\n");
    assert_eq!(crlf.rejects.by_reason, [("carriage_return", 4)].into());
    assert!(crlf.samples.is_empty());
}

#[test]
fn a_page_without_its_last_line_feed_says_so() {
    assert!(lenient(b"a 1\nb 2").unterminated);
    assert!(!lenient(b"a 1\n").unterminated);
    assert!(!lenient(b"").unterminated);
}

/// Work per byte does not grow with the input, whatever repeats in it. Counted, not timed.
#[test]
fn work_is_linear_on_hostile_input() {
    type Make = fn(usize) -> Vec<u8>;
    let shapes: &[(&str, Make)] = &[
        ("quotes", |n| b"\"".repeat(n)),
        ("backslashes", |n| [b"a{b=\"".to_vec(), b"\\".repeat(n)].concat()),
        ("escaped quotes", |n| [b"a{b=\"".to_vec(), b"\\\"".repeat(n / 2), b"\"} 1".to_vec()].concat()),
        ("open braces", |n| b"{".repeat(n)),
        ("blanks", |n| b" ".repeat(n)),
        ("blanks in braces", |n| [b"a{".to_vec(), b" ".repeat(n), b"} 1".to_vec()].concat()),
        ("commas", |n| [b"a{".to_vec(), b",".repeat(n)].concat()),
        ("lines", |n| b"a{b=\"c\"} x\n".repeat(n / 11)),
        ("not utf-8", |n| b"a{b=\"\xff\"} 1\n".repeat(n / 11)),
        ("digits", |n| [b"a 1".to_vec(), b"1".repeat(n)].concat()),
        ("blocks that are guessed wrong", |n| {
            let long = "v".repeat(2_000);
            let line = |i: usize| format!("a{{b=\"{long}{}\"}} 1\n", i * i % 7);
            (0..n / 2_000).map(line).collect::<String>().into_bytes()
        }),
        ("labels that look alike", |n| {
            let labels: String = (0..n / 10).map(|i| format!("a{:03}x{:02}=\"\",", i / 100 % 1000, i % 100)).collect();
            format!("a{{{labels}}} 1\n").into_bytes()
        }),
        ("series whose labels look alike", |n| {
            let line: String = (0..64).map(|i| format!("a{:02}xyz{:02}z=\"\",", i / 10, i % 10)).collect();
            format!("a{{{line}}} 1\n").repeat(n / 900).into_bytes()
        }),
    ];
    for (name, make) in shapes {
        for (format, remembering) in [(Format::Text, false), (Format::Text, true), (Format::OpenMetrics, true)] {
            let cost = |n: usize| {
                let bytes = make(n);
                let mut memory = Memory::new(if remembering { n / 2 } else { 0 });
                STEPS.with(|s| s.set(0));
                for _ in 0..3 {
                    let _ = each_remembering(&bytes, format, Mode::Lenient, Limits::default(), &mut memory, |_, _| {});
                }
                STEPS.with(Cell::get) as f64 / bytes.len() as f64 / 3.0
            };
            let (small, large) = (cost(20_000), cost(640_000));
            assert!(large <= small * 1.5 + 1.0, "{name}, {format:?}, {remembering}: {small} steps a byte, then {large}");
            assert!(large < 20.0, "{name}, {format:?}, {remembering}: {large} steps a byte");
        }
    }
}

/// A page through a memory, with labels looked up where they are known by number.
fn remembered(memory: &mut Memory, blocks: &mut Vec<Vec<(String, String)>>, bytes: &[u8], format: Format) -> String {
    let mut out = Vec::new();
    let summary = each_remembering(bytes, format, Mode::Lenient, Limits::default(), memory, |item, labels| {
        let labels = match labels {
            Labels::Known(number) => blocks[number as usize].clone(),
            Labels::Read(labels, number) => {
                let labels: Vec<_> = labels.iter().map(|l| (l.name.to_string(), l.value.to_string())).collect();
                if let Some(number) = number {
                    blocks.truncate(number as usize);
                    assert_eq!(blocks.len(), number as usize, "numbers grow by one");
                    blocks.push(labels.clone());
                }
                labels
            }
        };
        out.push(match item {
            Item::Sample(s) => format!("{} {labels:?} {} {} {:?} {}", s.name, s.value, s.raw, s.ts_ms, s.line),
            Item::Meta(meta) => format!("{meta:?}"),
        });
    });
    format!("{out:?} {summary:?}")
}

/// Name, labels, value, timestamp.
type Written = (String, Vec<(String, String)>, f64, Option<i64>);

/// A small writer of the format, for round trips.
fn render(samples: &[Written]) -> String {
    let quoted = |s: &str| format!("\"{}\"", s.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"));
    let legacy = |s: &str, colon: bool| {
        let ok = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colon && c == ':');
        !s.is_empty() && s.chars().all(ok) && !s.starts_with(|c: char| c.is_ascii_digit())
    };
    let mut out = String::new();
    for (name, labels, value, ts) in samples {
        let mut inner: Vec<String> = Vec::new();
        if !legacy(name, true) {
            inner.push(quoted(name));
        }
        for (k, v) in labels {
            inner.push(format!("{}={}", if legacy(k, false) { k.clone() } else { quoted(k) }, quoted(v)));
        }
        let bare = if legacy(name, true) { name.as_str() } else { "" };
        let braces = if inner.is_empty() { String::new() } else { format!("{{{}}}", inner.join(",")) };
        let value = if value.is_infinite() { format!("{value:+}") } else { format!("{value:?}") };
        let ts = ts.map_or(String::new(), |t| format!(" {t}"));
        out.push_str(&format!("{bare}{braces} {value}{ts}\n"));
    }
    out
}

fn any_sample() -> impl Strategy<Value = Written> {
    let text = || prop_oneof![Just(String::new()), "[a-z:_]{1,8}", "[\\\\\"n\n,={}# ]{0,6}", "\\PC{1,8}"];
    let name = || text().prop_filter("names are not empty", |s| !s.is_empty());
    let labels = proptest::collection::btree_map(name(), text(), 0..6)
        .prop_map(|m| m.into_iter().filter(|(k, _)| k != "__name__").collect());
    let value = prop_oneof![any::<f64>(), any::<i32>().prop_map(f64::from), Just(f64::NAN), Just(f64::NEG_INFINITY)];
    (name(), labels, value, any::<Option<i64>>())
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
        let read = lenient(&bytes);
        let _ = page(&bytes, Format::OpenMetrics, Mode::Lenient, Limits::default());
        let strict = page(&bytes, Format::Text, Mode::Strict, Limits::default());
        // The two modes agree: strict refuses exactly the pages that have a bad line, at the first of them.
        match strict {
            Ok(strict) => prop_assert_eq!((read.rejects.count, read.samples.len()), (0, strict.samples.len())),
            Err(PageError::Line(e)) => prop_assert_eq!(Some(&e), read.rejects.first.first()),
            Err(e) => prop_assert!(false, "{e}"),
        }
    }

    #[test]
    fn bytes_that_look_like_metrics_are_read_without_panic(text in "([a-c{}\",=\\\\ #\n\r\t0-9.+NaInf-]|é|HELP |TYPE |# ){0,60}") {
        let read = lenient(text.as_bytes());
        let lines = text.lines().count() as u64;
        prop_assert!(read.samples.len() as u64 + read.rejects.count <= lines);
        for e in &read.rejects.first {
            prop_assert!(e.offset <= text.len() as u64);
        }
    }

    /// Whatever pages a target gives, one after the other: a memory changes nothing of what is read.
    #[test]
    fn a_memory_changes_nothing(
        pages in proptest::collection::vec(
            (any::<bool>(), "((a|b|\\{\"c\",l=\"1\"\\})?( ?\\{(l=\"[12]{0,2}\",?)?( m=\"x\\\\\\\\\")?( ?n=\"y\" )?\\})?( 1| 2 3|x)?\n|# EOF\n){0,12}"),
            0..8,
        ),
        limit in prop_oneof![Just(0_usize), 5..40_usize, Just(10_000)],
    ) {
        let mut memory = Memory::new(limit);
        let mut blocks = Vec::new();
        for (openmetrics, text) in pages {
            let format = if openmetrics { Format::OpenMetrics } else { Format::Text };
            let fresh = remembered(&mut Memory::new(0), &mut Vec::new(), text.as_bytes(), format);
            prop_assert_eq!(remembered(&mut memory, &mut blocks, text.as_bytes(), format), fresh);
        }
    }

    #[test]
    fn what_is_written_is_read_back(samples in proptest::collection::vec(any_sample(), 0..8)) {
        let text = render(&samples);
        let page = page(text.as_bytes(), Format::Text, Mode::Strict, Limits::default()).unwrap();
        let read: Vec<_> = page.samples.iter().map(|s| {
            let labels: Vec<_> = page.labels(s).iter().map(|l| (l.name.to_string(), l.value.to_string())).collect();
            (s.name.to_string(), labels, s.value.to_bits(), s.ts_ms)
        }).collect();
        let bits = |v: f64| if v.is_nan() { f64::NAN.to_bits() } else { v.to_bits() };
        let written: Vec<_> = samples.into_iter().map(|(n, l, v, t)| (n, l, bits(v), t)).collect();
        prop_assert_eq!(read, written);
    }

    /// On the subset that prometheus-parse reads right both say the same of whole pages: names without colons, labels without
    /// commas, equal signs, closing braces and escapes in their values and without blanks around them; all values and
    /// timestamps, blanks and tabs, blank lines, comments, HELP and TYPE before their samples, a last line without its feed.
    #[test]
    fn agrees_with_prometheus_parse_where_that_is_right(
        types in proptest::collection::btree_map("[a-c]", prop_oneof![Just("counter"), Just("gauge"), Just("untyped")], 0..3),
        lines in proptest::collection::vec(
            prop_oneof![
                1 => "[ \t]{0,3}",
                1 => "#[a-z ]{0,9}",
                1 => "# HELP [a-c] [a-z]{1,9}",
                8 => (
                    "[a-c]|[a-z_][a-z0-9_]{0,8}",
                    "(\\{[a-z_][a-z0-9_]{0,5}=\"[A-Za-z0-9äλ ./#\\{:;-]{1,9}\"(,Zz=\"[A-Z#]{1,3}\")?,?\\})?",
                    "[ \t]{1,2}",
                    "NaN|[+-]?Inf|[+-]?[0-9]{1,20}(\\.[0-9]{1,9})?(e[+-]?[0-9]{1,2})?",
                    prop_oneof![Just(None), (-99_999_999_999_i64..2_000_000_000_000).prop_map(Some)],
                    "[ \t]{0,2}",
                ).prop_map(|(name, labels, blanks, value, ts, end)| {
                    let ts = ts.map_or(String::new(), |ts| format!("{blanks}{ts}"));
                    format!("{name}{labels}{blanks}{value}{ts}{end}")
                }),
            ],
            0..12,
        ),
        terminated: bool,
    ) {
        let head: String = types.iter().map(|(name, kind)| format!("# TYPE {name} {kind}\n")).collect();
        let text = head + &lines.join("\n") + if terminated { "\n" } else { "" };
        // What has no timestamp is at the time of the scrape there, and without one here.
        let scraped = prometheus_parse::Scrape::parse(["t 1 4000000000000".to_owned()].map(Ok).into_iter()).unwrap().samples[0].timestamp;
        let theirs = prometheus_parse::Scrape::parse_at(text.lines().map(|l| Ok(l.to_owned())), scraped).unwrap();
        let ours = page(text.as_bytes(), Format::Text, Mode::Strict, Limits::default()).unwrap();
        let theirs: Vec<_> = theirs.samples.iter().map(|s| {
            let (kind, value) = match s.value {
                prometheus_parse::Value::Counter(value) => (Some("counter"), value),
                prometheus_parse::Value::Gauge(value) => (Some("gauge"), value),
                prometheus_parse::Value::Untyped(value) => (None, value),
                ref other => panic!("{other:?} is declared nowhere"),
            };
            let labels: std::collections::BTreeMap<_, _> = s.labels.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            let ts = Some(s.timestamp).filter(|ts| *ts != scraped).map(|ts| ts.timestamp_millis());
            format!("{} {kind:?} {labels:?} {:x} {ts:?}", s.metric, value.to_bits())
        }).collect();
        let ours: Vec<_> = ours.samples.iter().map(|s| {
            let kind = match ours.metric_type(&s.name.get()) {
                Some(MetricType::Counter) => Some("counter"),
                Some(MetricType::Gauge) => Some("gauge"),
                _ => None,
            };
            let labels: std::collections::BTreeMap<_, _> =
                ours.labels(s).iter().map(|l| (l.name.to_string(), l.value.to_string())).collect();
            format!("{} {kind:?} {labels:?} {:x} {:?}", s.name, s.value.to_bits(), s.ts_ms)
        }).collect();
        prop_assert_eq!(ours, theirs);
    }
}

#[test]
fn what_repeats_is_known_and_what_is_changed_is_read() {
    let known = |memory: &mut Memory, text: &str| {
        let mut known = String::new();
        let visit = |item: Item<'_>, labels: Labels<'_, '_>| match (item, labels) {
            (Item::Meta(_), _) => {}
            (_, Labels::Known(number)) => known.push_str(&number.to_string()),
            (_, Labels::Read(_, Some(_))) => known.push('+'),
            (_, Labels::Read(_, None)) => known.push('-'),
        };
        each_remembering(text.as_bytes(), Format::Text, Mode::Lenient, Limits::default(), memory, visit).unwrap();
        known
    };
    let mut memory = Memory::new(40);
    let text = "a{l=\"0\"} 1\na{l=\"1\"} 1\nb{l=\"0\"} 1\nb{l=\"1\"} 1\nc 5\n{\"d\",l=\"0\"} 1\n";
    assert_eq!(known(&mut memory, text), "++01--");
    assert_eq!(known(&mut memory, text), "0101--");
    assert_eq!(known(&mut memory, "a{l=\"2\"} 1\na{l=\"0\"} x\na{l=\"0\"} 1\n"), "+0", "of bad lines nothing is taken");
    assert_eq!(known(&mut memory, "a{l=\"much too long for what is left of it\"} 1\na{l=\"0\"} 1\n"), "-0");
    assert_eq!(known(&mut memory, text), "++01--", "what was full begins anew");
}
