//! Coverage-guided: any bytes as pages of a target. The stages are compiled here by themselves, so that they alone are
//! instrumented and little else is built.
#![no_main]
#![allow(dead_code, unused_imports, missing_docs)]

#[path = "../../src/gzip.rs"]
mod gzip;
#[path = "../../src/page/mod.rs"]
mod page;
#[path = "../../src/parse/mod.rs"]
mod parse;
#[path = "../properties.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::hold(bytes));
