//! `strandline-sim objects`: what the API server has, as a Kubernetes List.

use std::io::{self, Write};

use clap::ValueEnum;
use schemas::Timestamp;
use simulator::objects::{self, Kind};

use super::{Failure, Fleet};

#[derive(Debug, clap::Args)]
pub struct Objects {
    #[command(flatten)]
    fleet: Fleet,
    /// Fleet time (RFC 3339); default: the spec's start.
    #[arg(long)]
    at: Option<Timestamp>,
    /// Which objects.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Which::Nodes, Which::Namespaces, Which::Pods])]
    kinds: Vec<Which>,
    /// Of one cluster only.
    #[arg(long)]
    cluster: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Which {
    Nodes,
    Namespaces,
    Pods,
}

impl Objects {
    pub fn run(self) -> Result<(), Failure> {
        let plan = self.fleet.plan()?;
        let window = plan.window();
        let at = self.at.unwrap_or(window.from());
        if at < window.from() || window.to() < at {
            let said = format!("--at {at} is outside the fleet's time, {} to {}", window.from(), window.to());
            return Err(Failure { exit: 2, said });
        }
        if let Some(cluster) = self.cluster.as_ref().filter(|name| plan.spec().clusters.iter().all(|c| c.name != **name)) {
            let known: Vec<&str> = plan.spec().clusters.iter().map(|cluster| cluster.name.as_str()).collect();
            let said = format!("--cluster {cluster}: the fleet has no such cluster, only {}", known.join(", "));
            return Err(Failure { exit: 2, said });
        }
        let kind = |which: &Which| match which {
            Which::Nodes => Kind::Node,
            Which::Namespaces => Kind::Namespace,
            Which::Pods => Kind::Pod,
        };
        let kinds: Vec<Kind> = self.kinds.iter().map(kind).collect();
        let mut out = io::BufWriter::new(io::stdout().lock());
        serde_json::to_writer_pretty(&mut out, &objects::list(&plan, at, &kinds, self.cluster.as_deref()))?;
        writeln!(out)?;
        Ok(out.flush()?)
    }
}
