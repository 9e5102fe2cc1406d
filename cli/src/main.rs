//! `strandline`, for people. Everything is in the library, so that tests call what the binary calls.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main(std::env::args_os())
}
