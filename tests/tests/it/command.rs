//! Runs `strandline` in this process, as its binary does.

use std::path::{Path, PathBuf};

/// What a command line came to.
#[derive(Debug)]
pub struct Ran {
    /// Exit code.
    pub code: u8,
    /// Standard output.
    pub out: String,
    /// The message on standard error.
    pub message: String,
}

/// Runs a command line, given without the program's name.
pub fn strandline(arguments: &[&str]) -> Ran {
    let mut out = Vec::new();
    let line = std::iter::once("strandline").chain(arguments.iter().copied()).map(Into::into);
    let result = cli::run(line, &mut out);
    let out = String::from_utf8(out).unwrap();
    match result {
        Ok(()) => Ran { code: 0, out, message: String::new() },
        Err(failure) => Ran { code: failure.code(), out, message: failure.message().unwrap_or_default().to_owned() },
    }
}

/// The same, and it must have succeeded.
pub fn succeeds(arguments: &[&str]) -> String {
    let ran = strandline(arguments);
    assert_eq!(ran.code, 0, "{arguments:?}: {}\n{}", ran.message, ran.out);
    ran.out
}

/// A file of the tree.
pub fn tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Its path as text.
pub fn tree_text(path: &str) -> String {
    tree(path).to_str().unwrap().to_owned()
}
