//! The bytes that the fuzzer found worth keeping, replayed.

use ingest::{gzip, page, parse};
use std::path::Path;

#[path = "../../fuzz/properties.rs"]
mod properties;

#[test]
fn what_must_hold_of_any_bytes_holds_of_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/pages");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 30, "{} files", files.len());
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        println!("{}", file.display());
        properties::hold(&bytes);
        // And of every beginning of it: where a connection breaks.
        for end in (0..bytes.len()).step_by(bytes.len() / 50 + 1) {
            properties::hold(&bytes[..end]);
        }
    }
}
