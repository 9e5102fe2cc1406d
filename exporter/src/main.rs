//! `strandline-exporter`: GPU metrics of this machine under dcgm-exporter's names.

use std::process::ExitCode;

use exporter::{
    chain::chain,
    config::{Config, UsageError},
    run,
};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let config = match Config::read(std::env::args_os()) {
        Ok(config) => config,
        Err(UsageError::Usage(err)) => {
            // Help and version are no errors.
            let _ = err.print();
            return ExitCode::from(if err.use_stderr() { 2 } else { 0 });
        }
        Err(err) => {
            eprintln!("strandline-exporter: {err}");
            return ExitCode::from(2);
        }
    };
    log(&config);
    // Few threads: collection has its own, and a page is made in less than a millisecond.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).max_blocking_threads(4).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(err) => {
            eprintln!("strandline-exporter: cannot start: {err}");
            return ExitCode::FAILURE;
        }
    };
    let answer = runtime.block_on(async {
        if config.check {
            return run::check(config, |table| print!("{table}")).await;
        }
        let signals = run::signals().map_err(run::RunError::Serve)?;
        run::run(config, signals).await
    });
    // A call that hangs in the driver's library is not waited for.
    runtime.shutdown_background();
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("strandline-exporter: {}", chain(&err));
            ExitCode::from(err.status())
        }
    }
}

fn log(config: &Config) {
    let level = match (config.debug, config.check) {
        (true, _) => "debug",
        (false, true) => "warn",
        (false, false) => "info",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    if config.json {
        log.json().init();
    } else {
        log.init();
    }
}
