//! `strandline-sim`: a simulated fleet for anything that reads GPU telemetry.

mod command;
mod output;

use std::{io::IsTerminal, process::ExitCode};

use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    let command = command::Command::parse(); // clap exits 2 on wrong usage
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match command.run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(command::Failure { exit, said }) => {
            if !said.is_empty() {
                eprintln!("error: {said}");
            }
            ExitCode::from(exit)
        }
    }
}
