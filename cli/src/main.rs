//! `strandline`, for people. Everything is in the library, so that tests call what the binary calls.

use std::process::ExitCode;

/// Reading thousands of files of a lake takes and gives back memory all the time.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::main(std::env::args_os())
}
