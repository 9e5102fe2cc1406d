//! How a command fails: an exit code, and what to say once.

use std::{error::Error, io};

/// Exit code 1 or 2, with a message unless all was said already.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: Option<String>,
}

impl Failure {
    /// It was tried and failed: exit code 1. The error is shown with its sources.
    pub fn failed(error: impl Error) -> Self {
        Self { code: 1, message: Some(chain(&error)) }
    }

    /// It was tried and failed: exit code 1, with a message of our own.
    pub fn because(message: impl Into<String>) -> Self {
        Self { code: 1, message: Some(message.into()) }
    }

    /// Wrong usage or configuration: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: Some(message.into()) }
    }

    /// What was printed says it all; only the code is left.
    pub fn quiet(code: u8) -> Self {
        Self { code, message: None }
    }

    /// The output could not be written. A reader that went away (`| head`) is no failure worth words.
    pub fn output(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::quiet(0) } else { Self::failed(error) }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// What is to be said, if not said yet.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }
}

/// An error with its sources, outermost first.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        // Some libraries repeat their source in their own text.
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}
