//! A real Apache Kafka on loopback: the transport's promises, TLS and SASL, and `kill -9` of everything under load.

use crate::chaos::hot_offsets;
use crate::kill::{Process, wait_for};
use crate::path::{Exporter, closed, closer};
use crate::transport::{Harness, conformance};
use ingest::publish::{ALLOCATIONS, NODES, SAMPLES};
use ingest::sink::{self, Sink};
use ingest::transport::kafka::{Kafka, KafkaTopic, Options, Properties, Share};
use ingest::transport::{Record, Topic, TransportError};
use lake::Lake;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use schemas::Timestamp;
use schemas::proto::{Message, ScrapeRound};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One broker that is its own controller. It is killed by its own process id when this is dropped.
pub struct Broker {
    dir: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
}

fn jars() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = Command::new(root.join("x")).arg("kafka").output().unwrap();
    assert!(output.status.success(), "./x kafka: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().into()
}

fn java(class: &str) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-cp"]);
    command.arg(format!("{}/*", jars().display())).arg(class);
    command
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Broker {
    /// `security`: more lines of its configuration, `PROTOCOL` the one that clients speak.
    pub fn start(protocol: &str, security: impl FnOnce(&Path) -> String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (port, inner, controller) = (free_port(), free_port(), free_port());
        let mut text = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n\
             listeners=CLIENT://127.0.0.1:{port},INNER://127.0.0.1:{inner},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=CLIENT://127.0.0.1:{port},INNER://127.0.0.1:{inner}\n\
             listener.security.protocol.map=CLIENT:{protocol},INNER:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             controller.listener.names=CONTROLLER\ninter.broker.listener.name=INNER\nlog.dirs={}\n\
             offsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\ngroup.initial.rebalance.delay.ms=0\n\
             auto.create.topics.enable=false\nnum.network.threads=2\nnum.io.threads=2\nlog.cleaner.enable=false\n",
            dir.path().join("data").display()
        );
        text.push_str(&security(dir.path()));
        fs::write(dir.path().join("server.properties"), text).unwrap();
        let formatted = java("kafka.tools.StorageTool")
            .args(["format", "-t", "c3RyYW5kbGluZS10ZXN0cw", "-c"])
            .arg(dir.path().join("server.properties"))
            .output()
            .unwrap();
        assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
        let mut broker = Broker { dir, port, child: None };
        broker.resume();
        broker
    }

    pub fn plain() -> Self {
        Self::start("PLAINTEXT", |_| String::new())
    }

    /// Starts it again where it was.
    pub fn resume(&mut self) {
        let log = self.dir.path().join("broker.log");
        let out = File::create(&log).unwrap();
        let child =
            java("kafka.Kafka").arg(self.dir.path().join("server.properties")).stdout(Stdio::null()).stderr(out).spawn().unwrap();
        self.child = Some(child);
        wait_for("Kafka", || {
            let text = fs::read_to_string(&log).unwrap();
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the broker ended: {text}");
            text.contains("Kafka Server started")
        });
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn options(&self, given: &[(&str, &str)]) -> Options {
        let given = given.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let mut options = Options::new(Properties::new(&self.address(), given).unwrap());
        options.replication = Some(1);
        options
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Real {
    broker: Broker,
}

impl Harness for Real {
    fn open(&mut self, name: &str, partitions: u32) -> Arc<dyn Topic> {
        assert_eq!(name, SAMPLES);
        let mut options = self.broker.options(&[]);
        options.partitions = partitions;
        let kafka = Kafka::new(options).unwrap();
        kafka.prepare(&[SAMPLES]).unwrap();
        kafka.topics(&[SAMPLES]).unwrap().remove(0)
    }

    fn close(&mut self) {}

    fn delete(&mut self, name: &str) {
        let admin: AdminClient<DefaultClientContext> =
            rdkafka::ClientConfig::new().set("bootstrap.servers", self.broker.address()).create().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let deleted = runtime.block_on(admin.delete_topics(&[name], &AdminOptions::new())).unwrap();
        assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
        let kafka = Kafka::new(self.broker.options(&[])).unwrap();
        wait_for("end of the topic", || matches!(kafka.topics(&[SAMPLES]), Err(TransportError::NoTopic { .. })));
    }
}

#[test]
fn real_kafka_keeps_the_promises() {
    conformance(Real { broker: Broker::plain() });
}

fn topics(options: Options) -> Vec<Arc<KafkaTopic>> {
    let kafka = Kafka::new(options).unwrap();
    kafka.prepare(&[SAMPLES, ALLOCATIONS, NODES]).unwrap();
    kafka.topics(&[SAMPLES, ALLOCATIONS, NODES]).unwrap()
}

#[test]
fn a_group_shares_partitions_out_and_what_one_lets_go_another_takes_up() {
    let broker = Broker::plain();
    let group = |partitions| {
        let mut options = broker.options(&[("session.timeout.ms", "6000"), ("heartbeat.interval.ms", "500")]);
        (options.share, options.partitions) = (Share::Group("sinks".to_owned()), partitions);
        topics(options)
    };
    let first = group(4);
    // Shares are even over all topics together, not within each.
    let held = |topics: &[Arc<KafkaTopic>]| -> BTreeSet<(usize, u32)> {
        let of = |(n, topic): (usize, &Arc<KafkaTopic>)| topic.assigned().unwrap().into_iter().map(move |p| (n, p));
        topics.iter().enumerate().flat_map(of).collect()
    };
    wait_for("assignment", || held(&first).len() == 12);
    let second = group(4);
    wait_for("rebalance", || {
        let both = [held(&first), held(&second)];
        both.iter().all(|held| held.len() == 6) && both[0].is_disjoint(&both[1])
    });
    drop(second);
    wait_for("rebalance", || held(&first).len() == 12);
}

#[test]
fn tls_and_sasl_are_passed_through_and_secrets_are_not_told() {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let (cert, private) = (key.cert.pem(), key.signing_key.serialize_pem());
    let broker = Broker::start("SASL_SSL", |dir| {
        let store = dir.join("key.pem");
        fs::write(&store, format!("{private}{cert}")).unwrap();
        fs::write(dir.join("ca.pem"), &cert).unwrap();
        format!(
            "ssl.keystore.type=PEM\nssl.keystore.location={}\nsasl.enabled.mechanisms=PLAIN\n\
             listener.name.client.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
             user_agent=\"open-sesame\";\n",
            store.display()
        )
    });
    let ca = broker.dir.path().join("ca.pem");
    let with = |password: &str, ca: &Path| {
        let mut options = broker.options(&[
            ("security.protocol", "SASL_SSL"),
            ("ssl.ca.location", ca.to_str().unwrap()),
            ("sasl.mechanism", "PLAIN"),
            ("sasl.username", "agent"),
            ("sasl.password", password),
        ]);
        options.timeout = Duration::from_secs(3);
        options
    };
    let mine = topics(with("open-sesame", &ca));
    mine[0].produce(&[Record { key: b"reef/n".to_vec(), value: b"x".to_vec(), at_ms: 1_772_445_600_000 }]).unwrap();
    let refused = Kafka::new(with("let-me-in", &ca)).unwrap().prepare(&[SAMPLES]).unwrap_err();
    let text = format!(
        "{:#} {refused:?}",
        anyhow::Error::new(Kafka::new(with("let-me-in", &ca)).unwrap().prepare(&[SAMPLES]).unwrap_err())
    );
    assert!(refused.passes() && !text.contains("let-me-in"), "{text}");
    let bad = Kafka::new(with("open-sesame", Path::new("/no/such/ca.pem"))).map(drop).unwrap_err();
    assert!(matches!(bad, TransportError::Property { .. }), "{bad:?}");
}

/// Messages of a topic, with their partitions and offsets.
fn messages(topic: &dyn Topic) -> Vec<(u32, u64, Vec<u8>)> {
    let mut out = Vec::new();
    for partition in 0..topic.partitions() {
        let (mut next, end) = (0, topic.bounds(partition).unwrap().end);
        while next < end {
            let fetched = topic.fetch(partition, next, 8 << 20).unwrap();
            next = fetched.next;
            out.extend(fetched.messages.into_iter().map(|m| (partition, m.offset, m.value)));
        }
    }
    out
}

/// The next number of a seeded row.
fn draw(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_broker_agent_and_sink_loses_and_doubles_nothing() {
    let exporter = Exporter::start().await;
    exporter.page("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 1\nDCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-b\"} 2\n");
    tokio::task::block_in_place(|| {
        let mut broker = Broker::plain();
        let seeds = if std::env::var_os("STRANDLINE_FULL").is_some() { 10 } else { 3 };
        for seed in 1..=seeds {
            one_life(&mut broker, &exporter.address, seed);
        }
    });
}

/// Samples, allocations and nodes.
pub fn topics_of(broker: &Broker) -> Vec<Arc<KafkaTopic>> {
    let mut options = broker.options(&[]);
    options.partitions = 2;
    topics(options)
}

/// Lives of the three processes, each ended at a moment that `seed` draws, and then the proof.
fn one_life(broker: &mut Broker, exporter: &str, seed: u64) {
    println!("seed {seed}");
    let mut random = seed;
    let dir = tempfile::tempdir().unwrap();
    let nodes = 6;
    let targets: String = (0..nodes).map(|n| format!("  - {{node: n{n}, address: '{exporter}'}}\n")).collect();
    let kafka = format!("kafka: {{bootstrap_servers: '{}', partitions: 2, replication: 1, timeout: 2s}}\n", broker.address());
    let (agent, sink) = (dir.path().join("agent.yaml"), dir.path().join("sink.yaml"));
    let (state, lake_dir) = (dir.path().join("state"), dir.path().join("lake"));
    fs::create_dir_all(&state).unwrap();
    // A cluster of its own for every seed: the topics go on from one to the next.
    let cluster = format!("reef-{seed}");
    fs::write(&agent, format!("cluster: {cluster}\nstate_dir: {}\ninterval: 50ms\n{kafka}targets:\n{targets}", state.display()))
        .unwrap();
    fs::write(&sink, format!("lake: {}\n{kafka}cut_age: 100ms\ncut_rows: 100\n", lake_dir.display())).unwrap();
    let before = topics_of(broker);
    let known: usize = messages(&*before[0]).len();
    drop(before);
    let mut agent_process = Some(Process::start(&["agent"], &agent));
    let mut sink_process = Some(Process::start(&["sink"], &sink));
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(300 + draw(&mut random) % 700));
        match draw(&mut random) % 3 {
            0 => {
                broker.kill();
                std::thread::sleep(Duration::from_millis(draw(&mut random) % 1000));
                broker.resume();
            }
            1 => {
                agent_process.take().unwrap().kill();
                agent_process = Some(Process::start(&["agent"], &agent));
            }
            _ => {
                sink_process.take().unwrap().kill();
                sink_process = Some(Process::start(&["sink"], &sink));
            }
        }
    }
    // The broker goes once more while rounds are taken, so that some are in the spool.
    broker.kill();
    std::thread::sleep(Duration::from_millis(1500));
    agent_process.take().unwrap().kill();
    broker.resume();
    let agent_process = Process::start(&["agent"], &agent);
    let drained = || {
        [SAMPLES, ALLOCATIONS, NODES].iter().all(|topic| {
            let folder = state.join("spool").join(topic);
            let mark = fs::read_to_string(folder.join("forwarded")).unwrap_or_default();
            let end = fs::read(folder.join(topic).join("00000/end")).ok().and_then(|b| b.get(..8)?.try_into().ok());
            end.map_or(0, u64::from_le_bytes) == mark.trim().parse().unwrap_or(0)
        })
    };
    // However slow the machine is, enough rounds are taken for the proof to mean something.
    let enough = || messages(&*topics_of(broker)[0]).len() > known + nodes * 5;
    wait_for("rounds in Kafka and an empty spool", || drained() && enough());
    agent_process.kill();
    sink_process.take().unwrap().kill();

    let now = topics_of(broker);
    let lake = Lake::create(&lake_dir).unwrap();
    let all: Vec<_> = messages(&*now[0]);
    assert!(all.len() > known + nodes * 5, "seed {seed}: {} messages", all.len() - known);
    let far = Timestamp::from_ms(4_102_444_800_000);
    let topics = now.iter().map(|t| t.clone() as Arc<dyn Topic>).collect();
    Sink::open(lake.clone(), topics, sink::Options::default()).unwrap().flush(far).unwrap();
    closer(lake.clone()).close(far, far).unwrap();
    // Hot files hold every offset once.
    let mut offsets = hot_offsets(&lake);
    for partition in 0..now[0].partitions() {
        let mut found = offsets.remove(&partition).unwrap_or_default();
        found.sort_unstable();
        let expected: Vec<u64> = all.iter().filter(|m| m.0 == partition).map(|m| m.1).collect();
        assert_eq!(found, expected, "seed {seed}: partition {partition}");
    }
    assert_eq!(lake.tiles().unwrap().faults, Vec::<String>::new(), "seed {seed}");
    // Closed hours hold every round once, however often it was sent.
    let taken: BTreeSet<String> = all
        .iter()
        .map(|(_, _, value)| ScrapeRound::decode(&**value).unwrap())
        .map(|round| format!("{} {} {}", round.cluster, round.node, round.sequence))
        .collect();
    let mut found = closed(&lake, "scrapes", &["cluster", "node", "sequence"]);
    found.sort();
    assert_eq!(found, taken.into_iter().collect::<Vec<_>>(), "seed {seed}");
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
    let spool = Spool::open(dir.path(), vec![(SAMPLES, connect)], bounds).unwrap();
    let topic = spool.topic(SAMPLES).unwrap();
    let record = |n: i64| Record { key: b"k".to_vec(), value: vec![7; 500], at_ms: 1_772_445_600_000 + n };
    let began = Instant::now();
    for n in 0..100 {
        topic.produce(&[record(n)]).unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(30), "only the first ones wait for Kafka");
    wait_for("the limit", || {
        spool.retain(1_772_445_700_000).unwrap();
        let counts = spool.counts();
        use std::sync::atomic::Ordering::Relaxed;
        let (waiting, dropped, bytes) = (counts.waiting.load(Relaxed), counts.dropped.load(Relaxed), counts.bytes.load(Relaxed));
        assert!(bytes < 18_000, "{bytes}");
        waiting + dropped == 100 && dropped > 50
    });
}
