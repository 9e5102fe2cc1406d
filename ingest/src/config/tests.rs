#![allow(clippy::unwrap_used)]
use super::*;
use crate::local::LocalPods;

fn agent(text: &str, args: AgentArgs) -> Result<AgentConfig, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.yaml");
    std::fs::write(&path, text).unwrap();
    AgentConfig::load(AgentArgs { config: Some(path.clone()), ..args })
        .map_err(|e| e.to_string().replace(&path.display().to_string(), "FILE"))
}

const FILE: &str = "cluster: reef\nlog_dir: /log\ninterval: 30s\nrefuse_labels: ['*secret*']\n\
                    targets:\n  - {node: dune-1, address: 'dune-1:9400', podres_socket: /s}\n";

#[test]
fn a_file_is_read_and_flags_go_over_it() {
    let config = agent(FILE, AgentArgs::default()).unwrap();
    assert_eq!((config.options.cluster.as_str(), config.options.interval_ms), ("reef", 30_000));
    assert_eq!(config.targets[0].address.as_text(), "http://dune-1:9400/metrics");
    assert_eq!(config.options.state_file.as_deref(), Some(Path::new("/log/agent-state.json")));
    assert!(config.options.page.contract.refuses("my_secret"));
    let args = AgentArgs {
        interval: Some("5s".parse().unwrap()),
        node: Some("n".into()),
        target: Some("localhost:1".into()),
        ..AgentArgs::default()
    };
    let config = agent(FILE, args).unwrap();
    assert_eq!((config.options.interval_ms, config.targets.len()), (5_000, 1));
    assert_eq!((config.targets[0].node.as_str(), config.options.timeout), ("n", Duration::from_secs(5)));
}

#[test]
fn the_example_is_read_as_it_says() {
    let config = agent(include_str!("../../../docs/examples/agent.yaml"), AgentArgs::default()).unwrap();
    let pages: Vec<_> = config.targets.iter().map(|t| t.address.as_text()).collect();
    assert_eq!(pages, ["https://dune-1:9400/metrics", "http://surf-1:9400/metrics"]);
    assert_ne!(config.targets[0].address, "https://dune-1:9400/metrics".parse().unwrap(), "it has the access of all");
    assert_eq!(config.options.collect_interval_ms, Some(30_000));
    assert!(!config.files.is_empty());
}

#[test]
fn secrets_in_the_wrong_place_are_not_shown() {
    for wrong in ["basic_auth: hush", "authorization: hush", "targets: hush", "basic_auth: {username: a, password: {hush: 1}}"] {
        let error = agent(&format!("cluster: reef\nlog_dir: /log\n{wrong}\n"), AgentArgs::default()).unwrap_err();
        assert!(error.starts_with("FILE: ") && !error.contains("hush"), "{error}");
    }
    let both = format!("{FILE}basic_auth: {{username: a}}\nauthorization: {{credentials: hush}}\n");
    assert_eq!(
        agent(&both, AgentArgs::default()).unwrap_err(),
        "how targets are asked: give `basic_auth` or `authorization`, not both"
    );
    let good = agent(&format!("{FILE}authorization: {{credentials: hush}}\n"), AgentArgs::default()).unwrap();
    assert!(!format!("{good:?}").contains("hush"));
}

#[test]
fn what_holds_for_the_life_of_the_process_is_named() {
    let config = agent(FILE, AgentArgs::default()).unwrap();
    let next = |from: &str, to: &str| config.can_become(&agent(&FILE.replace(from, to), AgentArgs::default()).unwrap());
    next("30s", "15s").unwrap();
    next("dune-1:9400", "dune-2:9400").unwrap();
    assert!(next("reef", "bay").unwrap_err().to_string().starts_with("`cluster` cannot change while this process runs"));
    assert!(next("/log", "/other").unwrap_err().to_string().contains("cannot change"));
}

#[test]
fn mistakes_are_named_with_the_way_out() {
    let error = |text: &str| agent(text, AgentArgs::default()).unwrap_err();
    assert_eq!(error("clusster: x\n"), "FILE: unknown key `clusster`; did you mean `cluster`?");
    assert_eq!(error("targets: [{node: a, adress: b}]\n"), "FILE: unknown key `adress`; did you mean `address`?");
    assert!(error("interval: soon\n").contains("`soon` is no stretch of time"), "{}", error("interval: soon\n"));
    assert!(error("- a\n").starts_with("FILE: "), "{}", error("- a\n"));
    assert!(error("").starts_with("no cluster; give --cluster"));
    assert!(error("cluster: a/b\n").contains("without `/`"));
    assert!(error("cluster: x\n").starts_with("nothing to scrape"));
    assert_eq!(error("cluster: x\nbasic_auth: {user: me}\n"), "FILE: unknown key `user`; did you mean `username`?");
    assert_eq!(
        error("targets: [{node: a, address: b, tls_config: {insecure_skip_verfy: true}}]\n"),
        "FILE: unknown key `insecure_skip_verfy`; did you mean `insecure_skip_verify`?"
    );
    assert!(error("cluster: x\ntargets: [{node: a, address: b}]\n").starts_with("no log"));
    assert!(error(&FILE.replace("30s", "0s")).contains("interval"));
    let missing = AgentConfig::load(AgentArgs { config: Some("/no/such".into()), ..AgentArgs::default() });
    assert!(missing.unwrap_err().to_string().contains("/no/such"));
    let sink = SinkConfig::load(SinkArgs { lake: Some("/lake".into()), ..SinkArgs::default() }).unwrap_err();
    assert!(sink.to_string().starts_with("no log"));
}

#[test]
fn kafka_is_given_instead_of_a_log_with_secrets_from_files() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("password");
    std::fs::write(&secret, "open-sesame\n").unwrap();
    let text = FILE.replace("log_dir: /log\n", "state_dir: /state\n");
    let kafka = |keys: &str| agent(&format!("{text}kafka: {{{keys}}}\n"), AgentArgs::default());
    let keys = format!("bootstrap_servers: 'a:1', sasl.username: u, sasl.password_file: '{}'", secret.display());
    let config = kafka(&keys).unwrap();
    let shown = format!("{config:?}");
    assert!(shown.contains("sasl.password") && !shown.contains("open-sesame"), "{shown}");
    assert!(matches!(config.transport, AgentTransport::Kafka { spool_dir, .. } if spool_dir == Path::new("/state/spool")));
    let error = |keys: &str| kafka(keys).unwrap_err();
    assert!(error("partitions: 3").contains("no `bootstrap_servers`"));
    assert!(error("bootstrap_servers: a, particions: 3").contains("did you mean `partitions`?"));
    assert!(error("bootstrap_servers: a, enable.idempotence: false").contains("set by strandline"));
    assert!(error("bootstrap_servers: a, group: g").contains("the sink's"));
    assert!(error("bootstrap_servers: a, retention: 1d").contains("at least 7d"));
    assert!(error("bootstrap_servers: a, sasl.password_file: /no/such").contains("cannot read /no/such"));
    let both = agent(FILE, AgentArgs { kafka: Some("a:1".into()), ..AgentArgs::default() }).unwrap_err();
    assert!(both.contains("leave one out"), "{both}");
    let homeless = text.replace("state_dir: /state\n", "");
    let homeless = agent(&homeless, AgentArgs { kafka: Some("a:1".into()), ..AgentArgs::default() }).unwrap_err();
    assert!(homeless.contains("--state-dir"), "{homeless}");
}

#[test]
fn a_pods_socket_is_one_nodes() {
    let with = |more: &str| agent(&format!("{FILE}{more}pods_socket: /p\n"), AgentArgs::default());
    let config = with("").unwrap();
    assert_eq!(config.options.pods_node.as_deref(), Some("dune-1"));
    assert_eq!(config.local_pods, Some(LocalPods { node: "dune-1".into(), socket: "/p".into() }));
    let two = with("  - {node: surf-1, address: 'surf-1:9400'}\n").unwrap_err();
    assert!(two.contains("give that node too"), "{two}");
}

#[test]
fn resource_names_with_a_star_are_beginnings() {
    let names = names(Some(vec!["acme.com/gpu".into(), "acme.com/mig-*".into()]));
    assert_eq!((names.exact, names.prefixes), (vec!["acme.com/gpu".to_owned()], vec!["acme.com/mig-".to_owned()]));
}

#[test]
fn stretches_of_time_have_units() {
    for (text, ms) in [("500ms", 500), ("15s", 15_000), ("10m", 600_000), ("2h", 7_200_000), ("7d", 604_800_000)] {
        assert_eq!(text.parse::<Span>().map(Span::ms), Ok(ms));
    }
    for text in ["", "5", "s", "-5s", "1.5s", "5 s", "99999999999999999999d"] {
        assert!(text.parse::<Span>().is_err(), "{text}");
    }
}
