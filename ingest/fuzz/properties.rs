//! What must hold of any bytes that a target may answer with. The fuzzer looks for bytes of which it does not; a test replays
//! the bytes that it has found worth keeping.

use super::gzip;
use super::page::{self, Caps, Memory, Options};
use super::parse::{self, Format, Limits, Mode, PageError};

/// Longest page that is made of packed bytes.
const MAX_PAGE: usize = 1 << 20;

/// Panics where something does not hold of the pages in `bytes`.
///
/// The first byte says how they come: bit 0 packed, bits 1 and 2 which content type, bit 3 with a small memory, bit 4 with
/// tight caps. The rest is pages one after the other, with a zero byte between them.
pub fn hold(bytes: &[u8]) {
    let Some((how, rest)) = bytes.split_first() else { return };
    let unpacked;
    let body = if how & 1 == 0 {
        rest
    } else {
        match gzip::unpack(rest, MAX_PAGE) {
            Ok(Some(page)) => {
                assert!(page.len() <= MAX_PAGE);
                unpacked = page;
                unpacked.as_slice()
            }
            Ok(None) | Err(_) => return,
        }
    };
    let kind = [None, Some("text/plain"), Some("application/openmetrics-text"), Some("text/html")][usize::from(how >> 1 & 3)];
    let memory_bytes = if how & 8 == 0 { Caps::default().memory_bytes } else { 64 };
    let caps = if how & 16 == 0 {
        Caps { memory_bytes, ..Caps::default() }
    } else {
        Caps { extra_samples: 3, devices: 2, labels: 2, label_bytes: 5, pods: 1, memory_bytes }
    };
    let options = Options { caps, ..Options::default() };
    let without = Options { caps: Caps { memory_bytes: 0, ..caps }, ..Options::default() };
    let mut memory = Memory::new(&options);
    for page in body.split(|byte| *byte == 0).take(8) {
        let read = page::read_remembering(page, kind, &options, &mut memory);
        let fresh = page::read(page, kind, &without);
        assert_eq!(format!("{read:?}"), format!("{fresh:?}"), "a memory changes nothing");
        if let Ok(read) = &read {
            let lines = page.split(|byte| *byte == b'\n').count() as u64;
            assert!(read.counts.series + read.bad_lines.count <= lines, "a line is one thing at most");
            assert!(read.devices.len() <= caps.devices && read.extra.len() <= caps.extra_samples, "caps hold");
            let _ = page::describe(read);
        }
        for format in [Format::Text, Format::OpenMetrics] {
            let strict = parse::page(page, format, Mode::Strict, Limits::default());
            let lenient = parse::page(page, format, Mode::Lenient, Limits::default());
            match (strict, lenient) {
                (Ok(strict), Ok(lenient)) => {
                    assert_eq!((strict.samples.len(), 0), (lenient.samples.len(), lenient.rejects.count))
                }
                (Err(PageError::Line(at)), Ok(lenient)) => assert_eq!(Some(&at), lenient.rejects.first.first()),
                (Err(PageError::Line(_) | PageError::Cut(_)), Err(PageError::Cut(_))) => {}
                (strict, lenient) => panic!("the modes do not agree: {strict:?}, {lenient:?}"),
            }
        }
    }
}
