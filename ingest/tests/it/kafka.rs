//! A real Apache Kafka on loopback: the transport's promises, TLS and SASL, and below what happens to brokers, agents, sinks and
//! topics while rounds flow.

mod faults;
mod group;
mod lives;

use crate::broker::{Cluster, Security, free_port};
use crate::chaos::hot_offsets;
use crate::kill::{Process, get, wait_for};
use crate::path::{Exporter, closed, closer};
use crate::transport::{Harness, conformance};
use ingest::publish::{ALLOCATIONS, NODES, SAMPLES};
use ingest::sink::{self, Sink};
use ingest::transport::kafka::{Kafka, KafkaTopic, Options, Properties};
use ingest::transport::local::{self, Log, TopicSpec};
use ingest::transport::{Record, Topic, TransportError};
use lake::Lake;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use schemas::Timestamp;
use schemas::proto::{Message, ScrapeRound};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A moment in the middle of an era, ten o'clock.
const T0: i64 = 1_772_445_600_000;

/// A client of `cluster`, with more properties.
fn options(cluster: &Cluster, given: &[(&str, &str)]) -> Options {
    let given = given.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let mut options = Options::new(Properties::new(&cluster.address(), given).unwrap());
    options.replication = Some(cluster.len() as u16);
    options
}

/// The three topics, made where they are missing.
fn topics(options: Options) -> Vec<Arc<KafkaTopic>> {
    let kafka = Kafka::new(options).unwrap();
    kafka.prepare(&[SAMPLES, ALLOCATIONS, NODES]).unwrap();
    kafka.topics(&[SAMPLES, ALLOCATIONS, NODES]).unwrap()
}

/// The same with two partitions each.
pub fn topics_of(cluster: &Cluster) -> Vec<Arc<KafkaTopic>> {
    let mut options = options(cluster, &[]);
    options.partitions = 2;
    topics(options)
}

fn admin(cluster: &Cluster) -> AdminClient<DefaultClientContext> {
    rdkafka::ClientConfig::new().set("bootstrap.servers", cluster.address()).create().unwrap()
}

/// Waits for one of librdkafka's futures.
fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Deletes a topic, and waits until brokers have forgotten it.
fn delete(cluster: &Cluster, name: &'static str) {
    let deleted = wait(admin(cluster).delete_topics(&[name], &AdminOptions::new())).unwrap();
    assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
    let kafka = Kafka::new(options(cluster, &[])).unwrap();
    wait_for("end of the topic", || matches!(kafka.topics(&[name]), Err(TransportError::NoTopic { .. })));
}

/// Messages of a topic, with their partitions and offsets.
fn messages(topic: &dyn Topic) -> Vec<(u32, u64, Vec<u8>)> {
    let mut out = Vec::new();
    for partition in 0..topic.partitions() {
        let bounds = topic.bounds(partition).unwrap();
        let mut next = bounds.start;
        while next < bounds.end {
            let fetched = topic.fetch(partition, next, 8 << 20).unwrap();
            next = fetched.next;
            out.extend(fetched.messages.into_iter().map(|m| (partition, m.offset, m.value.to_vec())));
        }
    }
    out
}

/// How many messages a topic has taken. None while its brokers do not say.
fn taken(topic: &dyn Topic) -> Option<u64> {
    (0..topic.partitions()).map(|partition| topic.bounds(partition).ok().map(|bounds| bounds.end)).sum()
}

/// Reads the rest into the lake, closes all hours, and proves that every offset is in the hot tree once, and every round that
/// Kafka took in the closed tree once. Returns how many rounds there are.
fn prove(cluster: &Cluster, lake: &Lake, case: &str) -> usize {
    let now = topics_of(cluster);
    let far = Timestamp::from_ms(4_102_444_800_000); // 2100
    let topics = now.iter().map(|t| t.clone() as Arc<dyn Topic>).collect();
    Sink::open(lake.clone(), topics, sink::Options::default()).unwrap().flush(far).unwrap();
    closer(lake.clone()).close(far, far).unwrap();
    let all = messages(&*now[0]);
    same_offsets(lake, &all, case);
    assert_eq!(lake.tiles().unwrap().faults, Vec::<String>::new(), "{case}");
    // However often one was sent.
    let taken: BTreeSet<String> = all
        .iter()
        .map(|(_, _, value)| ScrapeRound::decode(&**value).unwrap())
        .map(|round| format!("{} {} {}", round.cluster, round.node, round.sequence))
        .collect();
    let mut found = closed(lake, "scrapes", &["cluster", "node", "sequence"]);
    found.sort();
    assert_eq!(found, taken.iter().cloned().collect::<Vec<_>>(), "{case}");
    taken.len()
}

/// Hot files hold the offset of every message once, and no other.
fn same_offsets(lake: &Lake, messages: &[(u32, u64, Vec<u8>)], case: &str) {
    let mut expected: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for (partition, offset, _) in messages {
        expected.entry(*partition).or_default().push(*offset);
    }
    let mut found = hot_offsets(lake);
    found.values_mut().for_each(|offsets| offsets.sort_unstable());
    assert_eq!(found, expected, "{case}");
}

/// Configurations of an agent of `nodes` nodes, with its state in `dir`, and of a sink with its lake there.
struct Setup {
    agent: std::path::PathBuf,
    sink: std::path::PathBuf,
    state: std::path::PathBuf,
    lake: std::path::PathBuf,
}

impl Setup {
    /// `kafka` and `of_sink`: more lines of the section `kafka` of both, and of the sink alone.
    fn new(dir: &Path, cluster: &Cluster, name: &str, exporter: &str, nodes: usize, (kafka, of_sink): (&str, &str)) -> Self {
        let setup = Setup {
            agent: dir.join("agent.yaml"),
            sink: dir.join("sink.yaml"),
            state: dir.join("state"),
            lake: dir.join("lake"),
        };
        let targets: String = (0..nodes).map(|n| format!("  - {{node: n{n}, address: '{exporter}'}}\n")).collect();
        let section = format!(
            "kafka:\n  bootstrap_servers: '{}'\n  partitions: 2\n  replication: {}\n  timeout: 2s\n{kafka}",
            cluster.address(),
            cluster.len()
        );
        fs::create_dir_all(&setup.state).unwrap();
        let state = setup.state.display();
        let agent = format!("cluster: {name}\nstate_dir: {state}\ninterval: 50ms\n{section}targets:\n{targets}");
        fs::write(&setup.agent, agent).unwrap();
        let sink = format!("lake: {}\ncut_age: 100ms\ncut_rows: 100\n{section}{of_sink}", setup.lake.display());
        fs::write(&setup.sink, sink).unwrap();
        setup
    }

    /// Whether all that went into the agent's spool has left it.
    fn drained(&self) -> bool {
        [SAMPLES, ALLOCATIONS, NODES].iter().all(|topic| {
            let folder = self.state.join("spool").join(topic);
            let mark = fs::read_to_string(folder.join("forwarded")).unwrap_or_default();
            let end = fs::read(folder.join(topic).join("00000/end")).ok().and_then(|b| b.get(..8)?.try_into().ok());
            end.map_or(0, u64::from_le_bytes) == mark.trim().parse().unwrap_or(0)
        })
    }
}

struct Real {
    cluster: Cluster,
}

impl Harness for Real {
    fn open(&mut self, name: &str, partitions: u32) -> Arc<dyn Topic> {
        assert_eq!(name, SAMPLES);
        let mut options = options(&self.cluster, &[]);
        options.partitions = partitions;
        let kafka = Kafka::new(options).unwrap();
        kafka.prepare(&[SAMPLES]).unwrap();
        kafka.topics(&[SAMPLES]).unwrap().remove(0)
    }

    fn close(&mut self) {}

    fn delete(&mut self, name: &str) {
        assert_eq!(name, SAMPLES);
        delete(&self.cluster, SAMPLES);
    }
}

#[test]
fn real_kafka_keeps_the_promises() {
    conformance(Real { cluster: Cluster::plain(1) });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_and_sasl_are_passed_through_and_secrets_are_not_told() {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let (cert, private) = (key.cert.pem(), key.signing_key.serialize_pem());
    let dir = tempfile::tempdir().unwrap();
    let (store, ca) = (dir.path().join("key.pem"), dir.path().join("ca.pem"));
    fs::write(&store, format!("{private}{cert}")).unwrap();
    fs::write(&ca, &cert).unwrap();
    let properties = format!(
        "ssl.keystore.type=PEM\nssl.keystore.location={}\nsasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512\n\
         listener.name.client.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
         user_agent=\"open-sesame\";\n\
         listener.name.client.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;\n",
        store.display()
    );
    let scram = Some("SCRAM-SHA-512=[name=agent,password=open-barley]".to_owned());
    let exporter = Exporter::start().await;
    exporter.page("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 1\n");
    tokio::task::block_in_place(|| {
        let mut cluster = Cluster::start(1, &Security { protocol: Some("SASL_SSL"), properties, scram });
        for (mechanism, right, wrong) in
            [("PLAIN", "open-sesame", "open-barley"), ("SCRAM-SHA-512", "open-barley", "open-sesame")]
        {
            passed_through(&cluster, &ca, mechanism, (right, wrong));
        }
        real_processes_say_what_they_can_do_and_end_well(&mut cluster, dir.path(), &ca, &exporter.address);
    });
}

fn passed_through(cluster: &Cluster, ca: &Path, mechanism: &str, (right, wrong): (&str, &str)) {
    let with = |password: &str, ca: &Path| {
        let mut options = options(
            cluster,
            &[
                ("security.protocol", "SASL_SSL"),
                ("ssl.ca.location", ca.to_str().unwrap()),
                ("sasl.mechanism", mechanism),
                ("sasl.username", "agent"),
                ("sasl.password", password),
            ],
        );
        options.timeout = Duration::from_secs(5);
        (options.replication, options.partitions) = (Some(1), 2);
        options
    };
    let mine = topics(with(right, ca));
    let positions = mine[1].produce(&[Record { key: b"reef/n".to_vec(), value: b"x".to_vec(), at_ms: T0 }]).unwrap();
    let back = mine[1].fetch(positions[0].partition, positions[0].offset, 100).unwrap();
    assert_eq!(&*back.messages[0].value, b"x", "{mechanism}");
    let refused = Kafka::new(with(wrong, ca)).unwrap().prepare(&[SAMPLES]).unwrap_err();
    assert!(refused.passes(), "{refused:?}");
    let shown = format!("{refused:?}");
    let text = format!("{shown} {:#}", anyhow::Error::new(refused));
    assert!(!text.contains(wrong), "{text}");
    let bad = Kafka::new(with(right, Path::new("/no/such/ca.pem"))).map(drop).unwrap_err();
    assert!(matches!(bad, TransportError::Property { .. }), "{bad:?}");
}

/// Both roles with a password that stands in a file: `/-/ready` follows what they can do, and asked to end they leave nothing
/// behind that only they know.
fn real_processes_say_what_they_can_do_and_end_well(cluster: &mut Cluster, dir: &Path, ca: &Path, exporter: &str) {
    fs::write(dir.join("password"), "open-barley\n").unwrap();
    let sasl = format!(
        "  security.protocol: SASL_SSL\n  ssl.ca.location: {}\n  sasl.mechanism: SCRAM-SHA-512\n  sasl.username: agent\n  \
         sasl.password_file: {}\n",
        ca.display(),
        dir.join("password").display()
    );
    let setup = Setup::new(dir, cluster, "reef", exporter, 3, (&sasl, ""));
    let (of_agent, of_sink) = (free_port(), free_port());
    let ready = |port: u16| get(port, "/-/ready").is_some_and(|(status, _)| status == 200);
    let value = |port: u16, name: &str| -> Option<u64> {
        get(port, "/metrics")?.1.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    let agent = Process::listening(of_agent, &["agent"], &setup.agent);
    let sink = Process::listening(of_sink, &["sink"], &setup.sink);
    wait_for("readiness", || ready(of_agent) && ready(of_sink));
    wait_for("hot file", || value(of_sink, "strandline_ingest_hot_files_total ").is_some_and(|n| n > 0));

    // Without a broker the agent goes on, into its spool, and the sink says that it cannot.
    cluster.kill_all();
    wait_for("unreadiness of the sink", || get(of_sink, "/-/ready").is_some_and(|(status, _)| status == 503));
    wait_for("spool", || value(of_agent, "strandline_ingest_spooled_total ").is_some_and(|n| n > 3));
    assert!(ready(of_agent), "what is in the spool is taken");
    cluster.resume();
    wait_for("readiness", || ready(of_sink));
    wait_for("empty spool", || setup.drained());

    // Asked to end, the agent has what it began taken, then the sink has all of it in files.
    assert_eq!(agent.ends(), Some(0));
    assert!(setup.drained(), "what was taken while it ended went to Kafka");
    assert_eq!(sink.ends(), Some(0));
    let password = ("sasl.password", "open-barley");
    let given = [
        ("security.protocol", "SASL_SSL"),
        ("ssl.ca.location", ca.to_str().unwrap()),
        ("sasl.mechanism", "SCRAM-SHA-512"),
        ("sasl.username", "agent"),
        password,
    ];
    let all = messages(&*topics(options(cluster, &given))[0]);
    let numbers: BTreeSet<(String, u64)> = all
        .iter()
        .map(|(_, _, value)| ScrapeRound::decode(&**value).unwrap())
        .map(|round| (round.node, round.sequence))
        .collect();
    for node in ["n0", "n1", "n2"] {
        let mut of_node: Vec<u64> = numbers.iter().filter(|(name, _)| name == node).map(|(_, number)| *number).collect();
        of_node.sort_unstable();
        let (first, last) = (of_node[0], of_node[of_node.len() - 1]);
        assert_eq!(of_node, (first..=last).collect::<Vec<_>>(), "{node}: no round is missing in between");
    }
    same_offsets(&Lake::open(&setup.lake).unwrap(), &all, "after both ended by themselves");
}

#[test]
fn an_agent_without_its_broker_takes_rounds_into_its_spool_and_the_oldest_go_first() {
    use ingest::transport::spool::{self, Spool};
    let dir = tempfile::tempdir().unwrap();
    // A port where nobody listens.
    let mut options = Options::new(Properties::new(&format!("127.0.0.1:{}", free_port()), BTreeMap::new()).unwrap());
    options.timeout = Duration::from_secs(1);
    let kafka = Kafka::new(options).unwrap();
    let connect: spool::Connect = Box::new(move || kafka.topics(&[SAMPLES]).map(|mut topics| topics.remove(0) as Arc<dyn Topic>));
    let bounds = spool::Options { bytes: 16_000, ..spool::Options::default() };
    let spool = Spool::open(dir.path(), vec![(SAMPLES, connect)], bounds).unwrap().start().unwrap();
    let topic = spool.topic(SAMPLES).unwrap();
    let record = |n: i64| Record { key: b"k".to_vec(), value: vec![7; 500], at_ms: T0 + n };
    let began = Instant::now();
    for n in 0..100 {
        topic.produce(&[record(n)]).unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(30), "only the first ones wait for Kafka");
    wait_for("the limit", || {
        spool.retain(T0 + 100_000).unwrap();
        let counts = spool.counts();
        let (waiting, dropped, bytes) = (
            counts.waiting.load(Ordering::Relaxed),
            counts.dropped.load(Ordering::Relaxed),
            counts.bytes.load(Ordering::Relaxed),
        );
        assert!(bytes < 18_000, "{bytes}");
        waiting + dropped == 100 && dropped > 50
    });
    // What is left is the newest, and a run that finds more of it gone than the last one knew counts that.
    let dropped = spool.counts().dropped.load(Ordering::Relaxed);
    drop((topic, spool));
    let open_log = |retention_bytes| {
        let bounds = local::Options { retention_bytes, ..local::Options::default() };
        Log::open(&dir.path().join(SAMPLES), &[TopicSpec { name: SAMPLES, partitions: 1 }], bounds).unwrap()
    };
    let log = open_log(u64::MAX);
    let kept = log.topic(SAMPLES).unwrap().fetch(0, dropped, usize::MAX).unwrap().messages;
    assert_eq!(kept.iter().map(|m| m.at_ms - T0).collect::<Vec<_>>(), (dropped as i64..100).collect::<Vec<_>>());
    drop(log);
    let more = open_log(8_000).retain(T0).unwrap();
    assert!(more > 5, "{more}");
    let nowhere: spool::Connect = Box::new(|| Err(TransportError::NoTopic { topic: SAMPLES.to_owned(), path: "".into() }));
    let spool = Spool::open(dir.path(), vec![(SAMPLES, nowhere)], bounds).unwrap();
    assert_eq!(spool.counts().dropped.load(Ordering::Relaxed), more);
}
