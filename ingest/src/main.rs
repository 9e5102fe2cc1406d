//! `strandline-ingest`: the machine side, one process a role.

use clap::{Parser, Subcommand};
use ingest::allocations::{self, AllocationsArgs, AllocationsConfig};
use ingest::clock::{Clock, SystemClock};
use ingest::config::{AgentArgs, AgentConfig, ConfigError, SinkArgs, SinkConfig};
use ingest::frames::{self, PublishArgs, PublishConfig, Published};
use ingest::run::{self, Reload, RunError};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Scrape GPU metrics, and bring what was scraped into the lake
#[derive(Parser)]
#[command(name = "strandline-ingest", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Scrape exporters, join devices with the node's pods, and take every round into the log
    #[command(after_help = "Example:\n  strandline-ingest agent --cluster reef --node dune-1 --target localhost:9400 \\\n      \
        --podres-socket /var/lib/kubelet/pod-resources/kubelet.sock --log-dir /var/lib/strandline/log\n  \
        strandline-ingest agent --cluster reef --node dune-1 --target localhost:9400 --kafka broker-1:9092 --state-dir /var/lib/strandline\n\n\
        SIGHUP has the configuration read again; one that is wrong is refused, and the old one goes on. SIGTERM ends the\n\
        agent when the rounds that were begun are taken.\n\n\
        Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.")]
    Agent(AgentArgs),
    /// Follow the log into the lake, and close its hours
    #[command(
        after_help = "Example:\n  strandline-ingest sink --log-dir /var/lib/strandline/log --lake /var/lib/strandline/lake\n  \
        strandline-ingest sink --kafka broker-1:9092 --lake /var/lib/strandline/lake\n\n\
        Exit codes: 0 done, 1 failed, 2 wrong usage or configuration."
    )]
    Sink(SinkArgs),
    /// Watch the cluster's pods and nodes: who was given how many GPUs, who waits, and what there is. One process leads
    #[command(after_help = "Example:\n  strandline-ingest allocations --cluster reef --kubeconfig ~/.kube/config \\\n      \
        --log-dir /var/lib/strandline/allocations\n  strandline-ingest allocations --cluster reef --kafka broker-1:9092\n\n\
        The rights it needs: deploy/rbac.yaml. SIGHUP has the mapping files of `team` read again.\n\n\
        Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.")]
    Allocations(AllocationsArgs),
    /// Take a file of messages into the log, as `strandline-sim backfill --frames` writes it
    #[command(after_help = "Example:\n  strandline-ingest publish fleet.frames --log-dir /var/lib/strandline/log\n  \
        strandline-sim backfill fleet.yaml --frames - | strandline-ingest publish - --kafka broker-1:9092\n\n\
        A message sent twice does no harm. Where the log takes no more, the error says with which --from-frame to go on.\n\
        A sink that has closed the hours of long ago counts their rows as late: start it after this, or with a --late-limit that\n\
        reaches back.\n\n\
        Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.")]
    Publish(PublishArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("STRANDLINE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    match start(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("strandline-ingest: {error:#}");
            let usage = error.is::<ConfigError>() || matches!(error.downcast_ref(), Some(RunError::WebConfig(_)));
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

fn start(command: Command) -> anyhow::Result<()> {
    let clock = Arc::new(SystemClock);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match command {
        Command::Agent(args) => {
            let config = AgentConfig::load(args.clone())?;
            runtime.block_on(async {
                let reload = Reload { asked: asked_to_reload(), load: Box::new(move || AgentConfig::load(args.clone())) };
                run::agent(config, reload, clock, asked_to_end()).await
            })?;
        }
        Command::Sink(args) => {
            let config = SinkConfig::load(args)?;
            runtime.block_on(run::sink(config, clock, asked_to_end()))?;
        }
        Command::Allocations(args) => {
            let config = AllocationsConfig::load(args.clone())?;
            runtime.block_on(async {
                let load = Box::new(move || AllocationsConfig::load(args.clone()));
                let reload = allocations::run::Reload { asked: asked_to_reload(), load };
                allocations::run(config, reload, clock, asked_to_end()).await
            })?;
        }
        Command::Publish(args) => publish(&PublishConfig::load(args)?, &clock)?,
    }
    Ok(())
}

fn publish(config: &PublishConfig, clock: &SystemClock) -> anyhow::Result<()> {
    let (began, terminal) = (Instant::now(), std::io::stderr().is_terminal());
    let mut said = began + Duration::from_secs(2);
    let progress = |so_far: &Published| {
        if terminal && Instant::now() >= said {
            said = Instant::now() + Duration::from_millis(500);
            eprint!("\r\x1b[K{} frames, {} bytes", so_far.frames, so_far.bytes);
        }
    };
    let published = frames::publish(config, || clock.now(), progress);
    if terminal {
        eprint!("\r\x1b[K");
    }
    let Published { frames, rounds, holdings, demands, nodes, messages, bytes, left_out } = published?;
    println!(
        "{frames} frames in {:.1} s: {rounds} rounds, {holdings} holdings, {demands} of demand, {nodes} of nodes; {messages} messages of \
         {bytes} bytes taken, {left_out} parts without room",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

/// A message for each SIGHUP. While one waits, another says nothing new.
fn asked_to_reload() -> tokio::sync::mpsc::Receiver<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (sender, asked) = tokio::sync::mpsc::channel(1);
    if let Ok(mut hangup) = signal(SignalKind::hangup()) {
        tokio::spawn(async move {
            while hangup.recv().await.is_some() && !sender.is_closed() {
                let _ = sender.try_send(());
            }
        });
    }
    asked
}

/// SIGTERM or SIGINT.
async fn asked_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(term), Ok(int)) => (term, int),
        // Without signals there is nothing to wait for but the end itself.
        _ => return std::future::pending().await,
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
