//! Every limit of a spec.

use std::collections::{BTreeMap, BTreeSet};

use schemas::HOUR_MS;

use super::{
    Delivery, FixedSpell, FleetSpec, Layout, MAX_GPUS, NodePool, Problem, SpecError, SpellKind, Swaps, Team, refusal::nearest,
};
use crate::{
    accelerator::{self, Vendor},
    mig,
    shape::Shape,
};

/// Most problems that are told at one time: the line of each is looked for in the text.
const MAX_PROBLEMS: usize = 20;
/// Most spells at fixed times.
const MAX_WINDOWS: usize = 1000;
/// Shortest time of a GPU's exchange: its node is drained first (chosen).
const SHORTEST_SWAP_MS: i64 = 300_000;
/// Most replicas of a GPU: their least common multiple and a year of parts per million fit the truth's arithmetic.
const MAX_REPLICAS: u32 = 32;

impl FleetSpec {
    /// Every limit; what is broken comes back together, up to [`MAX_PROBLEMS`].
    pub fn check(&self) -> Result<(), SpecError> {
        let mut found = Vec::new();
        let mut problem = |key: String, message: String| found.push(Problem { line: None, key, message });
        name(&self.name, "name".into(), &mut problem);
        // Up to 2099, as in an import: a time beyond is a slip, and the calendar ends in 9999.
        if self.start != self.start.hour() || !(0..4_102_444_800_000).contains(&self.start.ms()) {
            problem("start".into(), format!("{} is not a full UTC hour of the years 1970 to 2099", self.start));
        }
        if !(1..=8784).contains(&self.hours) {
            problem("hours".into(), format!("{} hours; plan between 1 and 8784 (366 days)", self.hours));
        }
        if !(1000..=600_000).contains(&self.scrape_interval.ms()) {
            problem("scrape_interval".into(), format!("{} is not between 1s and 10m", self.scrape_interval));
        }
        if let Err(err) = jiff::tz::TimeZone::get(&self.time_zone) {
            problem("time_zone".into(), format!("`{}` is no time zone: {err}; write one such as Europe/Paris", self.time_zone));
        }
        if !(self.arrivals.load >= 0.0 && self.arrivals.load <= 5.0) {
            problem("arrivals.load".into(), format!("{} is not between 0 and 5 times the capacity", self.arrivals.load));
        }
        self.check_clusters(&mut problem);
        self.check_teams(&mut problem);
        self.check_faults(&mut problem);
        if let Some(more) = found.len().checked_sub(MAX_PROBLEMS).filter(|more| *more > 0) {
            found.truncate(MAX_PROBLEMS);
            let message = format!("{more} more problems; mend these first");
            found.push(Problem { line: None, key: "and".to_owned(), message });
        }
        if found.is_empty() { Ok(()) } else { Err(SpecError::Limits(found)) }
    }

    /// Resource that the pods of `team` with `shape` ask for: what it says, else whole GPUs of its products, NVIDIA's first.
    pub(crate) fn resource<'a>(&'a self, team: &'a Team, shape: Shape) -> &'a str {
        let whole = || {
            let pools = self.pools().filter(|(_, pool)| team.may_have(&pool.product) && !pool.rename);
            let vendors = pools.filter_map(|(_, pool)| pool.resource());
            vendors.min_by_key(|resource| *resource != "nvidia.com/gpu").unwrap_or("nvidia.com/gpu")
        };
        team.resources.of(shape).unwrap_or_else(whole)
    }

    /// Resource of replicas of shared GPUs, and how many a GPU has, that pods which ask for a part of one of `whole` may have: of
    /// the first pool that gives them under a name of their own.
    pub(crate) fn shared(&self, whole: &str, may_have: impl Fn(&str) -> bool) -> Option<(&'static str, u32)> {
        let shared = |pool: &NodePool| pool.resource().filter(|resource| pool.replicas > 1 && *resource != whole);
        let mut pools = self.pools().filter(|(_, pool)| may_have(&pool.product));
        pools.find_map(|(_, pool)| Some((shared(pool)?, pool.replicas)))
    }

    fn check_clusters(&self, problem: &mut impl FnMut(String, String)) {
        let (mut clusters, mut pools) = (BTreeSet::new(), BTreeSet::new());
        if self.pools().next().is_none() {
            problem("clusters".into(), "no node pool; a fleet has at least one".into());
        }
        for (c, cluster) in self.clusters.iter().enumerate() {
            name(&cluster.name, format!("clusters[{c}].name"), problem);
            if !clusters.insert(&cluster.name) {
                problem(format!("clusters[{c}].name"), format!("`{}` is the name of another cluster", cluster.name));
            }
            for (p, pool) in cluster.node_pools.iter().enumerate() {
                let key = |field: &str| format!("clusters[{c}].node_pools[{p}].{field}");
                name(&pool.name, key("name"), problem);
                if !pools.insert(&pool.name) {
                    problem(key("name"), format!("`{}` is the name of another pool; nodes would share names", pool.name));
                }
                if !(1..=20_000).contains(&pool.count) {
                    problem(key("count"), format!("{} nodes; give between 1 and 20000", pool.count));
                }
                if !(1..=16).contains(&pool.gpus_per_node) {
                    problem(key("gpus_per_node"), format!("{} GPUs a node; give between 1 and 16", pool.gpus_per_node));
                }
                match product_problem(&pool.product) {
                    Some(message) => problem(key("product"), message),
                    None => check_sharing(pool, &key, problem),
                }
                for (field, text) in [
                    ("region", &pool.region),
                    ("zone", &pool.zone),
                    ("provider", &pool.provider),
                    ("purchase_option", &pool.purchase_option),
                ] {
                    name(text, key(field), problem);
                }
            }
        }
        if self.gpus() > MAX_GPUS {
            problem("clusters".into(), format!("{} GPUs; a fleet has at most {MAX_GPUS}", self.gpus()));
        }
    }

    fn check_teams(&self, problem: &mut impl FnMut(String, String)) {
        if self.teams.is_empty() || self.teams.len() > 1000 {
            problem("teams".into(), format!("{} teams; give between 1 and 1000", self.teams.len()));
            return;
        }
        let mut names = BTreeSet::new();
        for (t, team) in self.teams.iter().enumerate() {
            let key = |field: &str| format!("teams[{t}].{field}");
            name(&team.name, key("name"), problem);
            name(&team.namespace, key("namespace"), problem);
            if !names.insert(&team.name) {
                problem(key("name"), format!("`{}` is the name of another team", team.name));
            }
            if !(team.weight > 0.0 && team.weight <= 1e6) {
                problem(key("weight"), format!("{} is not above 0 and at most 1000000", team.weight));
            }
            let shares = || Shape::ALL.iter().map(|shape| team.mix.of(*shape));
            if shares().any(|share| !(0.0..=1e6).contains(&share)) || team.mix.sum() <= 0.0 {
                problem(key("mix"), "shares are numbers between 0 and 1000000, not all 0".into());
            }
            if let Some(gangs) = team.gangs {
                let resource = self.resource(team, Shape::Training);
                let mut nodes: BTreeMap<&str, u32> = BTreeMap::new();
                for (_, pool) in self.pools().filter(|(_, pool)| team.may_have(&pool.product)) {
                    let gives = pool.resources().get(resource).is_some_and(|(unit, _)| *unit == (1, 1));
                    *nodes.entry(&pool.product).or_default() += if gives { pool.count.min(20_000) } else { 0 };
                }
                let most = nodes.into_values().max().unwrap_or(0);
                if !(2..=64).contains(&gangs.nodes) || gangs.nodes > most {
                    let message = format!("{} nodes; a gang has between 2 and 64, and the team's products {most}", gangs.nodes);
                    problem(key("gangs.nodes"), message);
                }
            }
            if !(-1_000_000..=1_000_000).contains(&team.priority) {
                problem(key("priority"), format!("{} is not between -1000000 and 1000000", team.priority));
            }
            for product in &team.products {
                if !self.pools().any(|(_, pool)| pool.product == *product) {
                    problem(key("products"), format!("no node pool has product `{product}`; its pods would wait for ever"));
                }
            }
            for &shape in Shape::ALL.iter().filter(|shape| team.mix.of(**shape) > 0.0) {
                let asked = self.resource(team, shape);
                let given: BTreeSet<String> = self
                    .pools()
                    .filter(|(_, pool)| team.may_have(&pool.product))
                    .flat_map(|(_, pool)| pool.resources().into_keys())
                    .collect();
                if !given.is_empty() && !given.contains(asked) {
                    let given: Vec<&str> = given.iter().map(String::as_str).collect();
                    problem(
                        key(&format!("resources.{}", shape.as_str())),
                        format!("no node of the team's products gives `{asked}`; they give {}", given.join(", ")),
                    );
                }
            }
        }
    }

    fn check_faults(&self, problem: &mut impl FnMut(String, String)) {
        let faults = &self.faults;
        let spells = [
            ("exporter_down", faults.exporter_down.as_ref().map(|f| f.lasts)),
            ("node_not_ready", faults.node_not_ready.as_ref().map(|f| f.lasts)),
            ("cordon", faults.cordon.as_ref().map(|f| f.lasts)),
            ("node_death", faults.node_death.as_ref().map(|f| f.lasts)),
            ("spot_reclaim", faults.spot_reclaim.as_ref().map(|f| f.lasts)),
            ("gpu_swap", faults.gpu_swap.as_ref().map(|f| f.lasts)),
        ];
        for (kind, lasts) in spells {
            if let Some((shortest, longest)) = lasts.filter(|(shortest, longest)| shortest > longest) {
                problem(format!("faults.{kind}.lasts"), format!("[{shortest}, {longest}] is reversed; give the shortest first"));
            }
            if let Some((shortest, _)) = lasts.filter(|(shortest, _)| shortest.ms() < 1000) {
                problem(format!("faults.{kind}.lasts"), format!("{shortest} is below a second; the API knows whole seconds"));
            }
        }
        if let Some(Swaps { per_gpu_day, lasts: (shortest, _) }) = &faults.gpu_swap {
            if per_gpu_day.0 > 1.0 {
                problem(
                    "faults.gpu_swap.per_gpu_day".into(),
                    format!("{}; a board serves for a day: give at most 1", per_gpu_day.0),
                );
            }
            if shortest.ms() < SHORTEST_SWAP_MS {
                problem("faults.gpu_swap.lasts".into(), format!("{shortest} is too short to drain a node; give at least 5m"));
            }
        }
        for (kind, delivery) in [("late_batches", faults.late_batches), ("repeated_batches", faults.repeated_batches)] {
            if let Some(Delivery { delay: (shortest, longest), .. }) = delivery.filter(|of| of.delay.0 > of.delay.1) {
                problem(format!("faults.{kind}.delay"), format!("[{shortest}, {longest}] is reversed; give the shortest first"));
            }
        }
        if faults.exporter_down.as_ref().is_some_and(|down| down.how.is_empty()) {
            problem("faults.exporter_down.how".into(), "is empty; name one of refuse, error, empty, hang".into());
        }
        if let Some((_, most)) = faults.clock_skew.as_ref().map(|skew| skew.within).filter(|(_, most)| most.ms() > HOUR_MS) {
            problem(
                "faults.clock_skew.within".into(),
                format!("{most} is too far: hours look for rounds in the next hour; give at most 1h"),
            );
        }
        let spans = [
            ("clock_skew.within", faults.clock_skew.as_ref().map(|skew| skew.within)),
            ("stale_labels.lasts", faults.stale_labels.as_ref().map(|stale| stale.lasts)),
        ];
        for (key, span) in spans {
            if let Some((least, most)) = span.filter(|(least, most)| least > most) {
                problem(format!("faults.{key}"), format!("[{least}, {most}] is reversed; give the shortest first"));
            }
        }
        if faults.windows.len() > MAX_WINDOWS {
            problem("faults.windows".into(), format!("{} spells; give at most {MAX_WINDOWS}", faults.windows.len()));
            return;
        }
        for (w, window) in faults.windows.iter().enumerate() {
            let (from, to) = (window.from.ms(), window.from.ms() + window.lasts.ms());
            let overlaps = |other: &&FixedSpell| {
                let together = other.from.ms() < to && from < other.from.ms() + other.lasts.ms();
                let alike = other.kind == window.kind && other.gpu == window.gpu;
                alike && together && may_share_nodes(&other.nodes, &window.nodes)
            };
            if let Some(other) = faults.windows[..w].iter().find(overlaps) {
                problem(
                    format!("faults.windows[{w}].from"),
                    format!("the spell overlaps the one of `{}` from {} on; make them one", other.nodes, other.from),
                );
            }
        }
        let whole = self.end().ms() - self.start.ms();
        for (w, window) in faults.windows.iter().enumerate() {
            let key = |field: &str| format!("faults.windows[{w}].{field}");
            let nodes = self.pools().flat_map(|(_, pool)| (0..pool.count.min(20_000)).map(move |i| format!("{}-{i}", pool.name)));
            if !nodes.into_iter().any(|node| matches(&window.nodes, &node)) {
                problem(key("nodes"), format!("no node is called `{}`; nodes are called <pool>-0, <pool>-1, ...", window.nodes));
            }
            if window.from.ms() >= whole {
                problem(key("from"), format!("{} after the start is beyond the fleet's {} hours", window.from, self.hours));
            }
            match (window.kind, window.gpu) {
                (SpellKind::GpuSwap, None) => {
                    problem(key("gpu"), "is not given; name the index of the GPU that is replaced".into())
                }
                (SpellKind::GpuSwap, Some(gpu)) => {
                    let has = |(_, pool): &(_, &NodePool)| {
                        (0..pool.count.min(20_000)).any(|i| matches(&window.nodes, &format!("{}-{i}", pool.name)))
                    };
                    let fewest = self.pools().filter(has).map(|(_, pool)| pool.gpus_per_node).min();
                    if let Some(fewest) = fewest.filter(|fewest| gpu >= *fewest) {
                        problem(key("gpu"), format!("{gpu}; `{}` has GPUs 0 to {}", window.nodes, fewest.saturating_sub(1)));
                    }
                    if window.lasts.ms() < SHORTEST_SWAP_MS {
                        problem(key("lasts"), format!("{} is too short to drain a node; give at least 5m", window.lasts));
                    }
                }
                (_, Some(_)) => problem(key("gpu"), "is for `gpu_swap` only; the other kinds befall a whole node".into()),
                (_, None) => {}
            }
            if window.from.ms() % 1000 != 0 || window.lasts.ms() % 1000 != 0 {
                problem(key("from"), "spells begin and end on whole seconds, as the API tells them".into());
            }
        }
    }
}

/// MIG and time-slicing of a pool whose product is known.
fn check_sharing(pool: &NodePool, key: &impl Fn(&str) -> String, problem: &mut impl FnMut(String, String)) {
    let Some(product) = accelerator::by_product(&pool.product) else { return };
    if !(1..=MAX_REPLICAS).contains(&pool.replicas) {
        problem(key("replicas"), format!("{} replicas; give between 1 and {MAX_REPLICAS}", pool.replicas));
    }
    if pool.rename && pool.replicas < 2 {
        problem(key("rename"), "renames the replicas of shared GPUs; give `replicas`, or leave it out".into());
    }
    if product.vendor != Vendor::Nvidia && pool.replicas > 1 {
        problem(key("replicas"), format!("`{}` is not time-sliced; leave `replicas` out", pool.product));
    }
    let Some(layout) = &pool.mig else { return };
    if pool.replicas > 1 {
        problem(key("replicas"), "a pool has MIG instances or replicas, not both".into());
    }
    let layouts: Vec<(String, &[String])> = match layout {
        Layout::Every(profiles) => vec![(key("mig"), profiles)],
        Layout::Each(gpus) => {
            if gpus.len() != pool.gpus_per_node as usize {
                problem(
                    key("mig"),
                    format!("has {} lists for {} GPUs a node; write one for each", gpus.len(), pool.gpus_per_node),
                );
            }
            gpus.iter().enumerate().map(|(gpu, profiles)| (format!("{}[{gpu}]", key("mig")), profiles.as_slice())).collect()
        }
    };
    for (key, profiles) in layouts.into_iter().filter(|(_, profiles)| !profiles.is_empty()) {
        if let Err(err) = mig::place(product, profiles) {
            problem(key, err.to_string());
        }
    }
}

/// Whether two patterns may mean one node.
fn may_share_nodes(a: &str, b: &str) -> bool {
    match (a.strip_suffix('*'), b.strip_suffix('*')) {
        (Some(a), Some(b)) => a.starts_with(b) || b.starts_with(a),
        _ => matches(a, b) || matches(b, a),
    }
}

/// Whether `pattern`, a name or the beginning of one and `*`, means `node`.
pub(crate) fn matches(pattern: &str, node: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => node.starts_with(beginning),
        None => pattern == node,
    }
}

/// Names become labels, paths and file names: what Kubernetes allows, 1 to 63 characters.
fn name(text: &str, key: String, problem: &mut impl FnMut(String, String)) {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let outer = |c: char| c.is_ascii_alphanumeric();
    let good = text.chars().all(inner) && text.starts_with(outer) && text.ends_with(outer) && text.len() <= 63;
    if !good {
        problem(
            key,
            format!("`{}` is no name: 1 to 63 letters, digits, `-`, `_`, `.`, no sign at either end", text.escape_debug()),
        );
    }
}

fn product_problem(product: &str) -> Option<String> {
    match accelerator::by_product(product) {
        Some(known) => {
            let missing = known.board()?.err()?;
            Some(format!("`{product}` cannot be simulated yet: its {missing} is not known"))
        }
        None => {
            let all = || accelerator::all().iter().map(|a| a.product.as_str());
            // The same name in other letters is nearer than any other name.
            let nearest = all().find(|known| known.eq_ignore_ascii_case(product)).unwrap_or_else(|| nearest(product, all()));
            Some(format!("no product is called `{product}`; did you mean `{nearest}`?"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const GOOD: &str = include_str!("../../../kwok-fleet/fleets/small.yaml");

    fn refusal(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "the test's own replacement finds nothing: {from}");
        FleetSpec::parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn a_typo_is_named_with_its_line_and_the_nearest_key() {
        let line = GOOD.lines().position(|line| line.contains("gpus_per_node")).unwrap() + 1;
        assert_eq!(
            refusal("gpus_per_node:", "gpu_per_node:"),
            format!("line {line}: clusters[0].node_pools[0]: unknown key `gpu_per_node`; did you mean `gpus_per_node`?")
        );
        let line = GOOD.lines().position(|line| line.starts_with("hours")).unwrap() + 1;
        assert_eq!(refusal("hours:", "hour:"), format!("line {line}: unknown key `hour`; did you mean `hours`?"));
        assert!(refusal("notebook:", "notebok:").contains("unknown key `notebok`; did you mean `notebook`?"));
        assert!(
            refusal("kind: exporter_down", "kind: exporter_dwn")
                .contains("`exporter_dwn` is no word here; did you mean `exporter_down`?")
        );
    }

    #[test]
    fn every_limit_has_its_message() {
        for (from, to, says) in [
            ("hours: 2", "hours: 0", "hours: 0 hours; plan between 1 and 8784"),
            ("hours: 2", "hours: two", "hours: invalid type: string"),
            ("hours: 2", "hours: -1", "hours: invalid type: integer `-1`"),
            ("scrape_interval: 30s", "scrape_interval: 30", "30` is no length of time such as 30s"),
            ("scrape_interval: 30s", "scrape_interval: 11m", "scrape_interval: 11m is not between 1s and 10m"),
            ("start: 2026-03-02T00:00:00Z", "start: 2026-03-02T00:00:01Z", "is not a full UTC hour"),
            ("product: NVIDIA H100 80GB HBM3", "product: NVIDIA H100 80GB HBM", "did you mean `NVIDIA H100 80GB HBM3`?"),
            ("product: NVIDIA H100 80GB HBM3", "product: Tesla V100-SXM2-16GB", "its idle power is not known"),
            (
                "gpus_per_node: 4",
                "gpus_per_node: 4\n        mig: [4g.40gb, 4g.40gb]",
                "node_pools[0].mig: [4g.40gb, 4g.40gb] cannot be",
            ),
            ("gpus_per_node: 4", "gpus_per_node: 4\n        mig: [[7g.80gb]]", "has 1 lists for 4 GPUs a node"),
            ("gpus_per_node: 2", "gpus_per_node: 2\n        mig: [1g.10gb]", "`NVIDIA L4` has no MIG"),
            ("gpus_per_node: 4", "gpus_per_node: 4\n        mig: []", "is empty; name profiles"),
            ("gpus_per_node: 4", "gpus_per_node: 4\n        mig: 7g.80gb", "a list of MIG profiles such as"),
            (
                "gpus_per_node: 4",
                "gpus_per_node: 4\n        mig: [7g.80gb]\n        replicas: 2",
                "instances or replicas, not both",
            ),
            ("gpus_per_node: 4", "gpus_per_node: 4\n        replicas: 0", "0 replicas; give between 1 and 32"),
            ("gpus_per_node: 4", "gpus_per_node: 4\n        rename: true", "give `replicas`"),
            (
                "weight: 2",
                "weight: 2\n    resources: { batch: nvidia.com/mig-1g.10gb }",
                "gives `nvidia.com/mig-1g.10gb`; they give",
            ),
            ("hours: 2", "hours: 2\ntime_zone: Mars/Base", "`Mars/Base` is no time zone"),
            ("gpus_per_node: 4", "gpus_per_node: 17", "17 GPUs a node; give between 1 and 16"),
            ("weight: 2", "weight: -2", "teams[0].weight: -2 is not above 0"),
            ("lost_scrapes: 0.01", "lost_scrapes: 1.5", "1.5 is not a share between 0 and 1"),
            ("namespace: research", "namespace: re/search", "`re/search` is no name"),
            ("nodes: l4-0", "nodes: l5-0", "no node is called `l5-0`"),
            ("blanks: 0.003", "gpu_swap: { per_gpu_day: 3, lasts: [1h, 2h] }", "faults.gpu_swap.per_gpu_day: 3; a board serves"),
            ("blanks: 0.003", "gpu_swap: { per_gpu_day: 1, lasts: [1m, 2h] }", "faults.gpu_swap.lasts: 1m is too short"),
            (
                "blanks: 0.003",
                "clock_skew: { share: 0.1, within: [1s, 2h] }",
                "faults.clock_skew.within: 2h is too far: hours look for rounds",
            ),
            ("kind: exporter_down", "kind: gpu_swap", "faults.windows[0].gpu: is not given; name the index"),
            ("kind: exporter_down", "kind: gpu_swap, gpu: 2", "faults.windows[0].gpu: 2; `l4-0` has GPUs 0 to 1"),
            ("kind: cordon", "kind: cordon, gpu: 0", "faults.windows[1].gpu: is for `gpu_swap` only"),
            (
                "blanks: 0.003",
                "late_batches: { rate: 0.1, delay: [2h, 5m] }",
                "faults.late_batches.delay: [2h, 5m] is reversed; give the shortest first",
            ),
        ] {
            let said = refusal(from, to);
            assert!(said.contains(says), "{to}: {said}");
        }
        assert!(FleetSpec::parse("").is_err());
        assert!(FleetSpec::parse("- a\n- b").is_err());
        assert!(FleetSpec::parse("name: [").unwrap_err().to_string().starts_with("line "));
    }

    #[test]
    fn a_limit_is_named_with_its_line() {
        let line = |text: &str| GOOD.lines().position(|line| line.contains(text)).unwrap() + 1;
        for (from, to, key) in [
            ("gpus_per_node: 2", "gpus_per_node: 17", "clusters[0].node_pools[1].gpus_per_node"),
            ("namespace: serving", "namespace: serving-", "teams[1].namespace"),
            ("nodes: l4-0", "nodes: l5-0", "faults.windows[0].nodes"),
        ] {
            assert!(refusal(from, to).starts_with(&format!("line {}: {key}: ", line(from))), "{}", refusal(from, to));
        }
    }

    #[test]
    fn broken_limits_come_together() {
        let both = GOOD.replacen("scrape_interval: 30s", "scrape_interval: 1ms", 1).replacen("weight: 2", "weight: 0", 1);
        assert_eq!(FleetSpec::parse(&both).unwrap_err().to_string().lines().count(), 2);
    }
}
