//! A real Apache Kafka on loopback: one broker or several, each its own controller too (KRaft). The tests of `ingest` and of
//! `tests` have this file in common.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Brokers of one cluster, killed by their own process ids when this is dropped.
pub struct Cluster {
    dir: tempfile::TempDir,
    brokers: Vec<Broker>,
}

struct Broker {
    number: usize,
    port: u16,
    child: Option<Child>,
}

/// A time that no test sees the end of. Simulated rounds are months old, and brokers would drop them by their age.
const NEVER: u32 = 1_000_000_000;

/// How clients speak to the brokers.
#[derive(Default)]
pub struct Security {
    /// `SASL_SSL` or the like; none: `PLAINTEXT`.
    pub protocol: Option<&'static str>,
    /// More lines of the brokers' configuration.
    pub properties: String,
    /// A SCRAM user, as `kafka-storage format --add-scram` takes it.
    pub scram: Option<String>,
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
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Cluster {
    /// `count` brokers without TLS and users.
    pub fn plain(count: usize) -> Self {
        Self::start(count, &Security::default())
    }

    /// `count` brokers.
    pub fn start(count: usize, security: &Security) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let controllers: Vec<u16> = (0..count).map(|_| free_port()).collect();
        let voters: Vec<String> = controllers.iter().zip(1..).map(|(port, id)| format!("{id}@127.0.0.1:{port}")).collect();
        let mut brokers = Vec::new();
        for (number, controller) in (1..).zip(&controllers) {
            let (port, inner) = (free_port(), free_port());
            let text = format!(
                "process.roles=broker,controller\nnode.id={number}\ncontroller.quorum.voters={voters}\n\
                 listeners=CLIENT://127.0.0.1:{port},INNER://127.0.0.1:{inner},CONTROLLER://127.0.0.1:{controller}\n\
                 advertised.listeners=CLIENT://127.0.0.1:{port},INNER://127.0.0.1:{inner}\n\
                 listener.security.protocol.map=CLIENT:{protocol},INNER:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
                 controller.listener.names=CONTROLLER\ninter.broker.listener.name=INNER\nlog.dirs={data}\n\
                 offsets.topic.replication.factor={count}\noffsets.topic.num.partitions=1\ngroup.initial.rebalance.delay.ms=0\n\
                 auto.create.topics.enable=false\nnum.network.threads=2\nnum.io.threads=2\nlog.cleaner.enable=false\n\
                 broker.heartbeat.interval.ms=500\nbroker.session.timeout.ms=3000\n\
                 log.initial.task.delay.ms={NEVER}\nlog.retention.check.interval.ms={NEVER}\n{more}",
                voters = voters.join(","),
                protocol = security.protocol.unwrap_or("PLAINTEXT"),
                data = dir.path().join(format!("data-{number}")).display(),
                more = security.properties,
            );
            fs::write(dir.path().join(format!("{number}.properties")), text).unwrap();
            let mut format = java("kafka.tools.StorageTool");
            format.args(["format", "-t", "c3RyYW5kbGluZS10ZXN0cw", "-c"]).arg(dir.path().join(format!("{number}.properties")));
            if let Some(user) = &security.scram {
                format.args(["--add-scram", user]);
            }
            let formatted = format.output().unwrap();
            assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
            brokers.push(Broker { number, port, child: None });
        }
        let mut cluster = Cluster { dir, brokers };
        cluster.resume();
        cluster
    }

    /// How many brokers there are, up or not.
    pub fn len(&self) -> usize {
        self.brokers.len()
    }

    /// Starts those that are away again, where they were, and waits for them.
    pub fn resume(&mut self) {
        let away: Vec<usize> = (0..self.len()).filter(|n| self.brokers[*n].child.is_none()).collect();
        for n in &away {
            let broker = &mut self.brokers[*n];
            let file = |end: &str| self.dir.path().join(format!("{}.{end}", broker.number));
            let log = File::create(file("log")).unwrap();
            let child = java("kafka.Kafka").arg(file("properties")).stdout(Stdio::null()).stderr(log).spawn().unwrap();
            broker.child = Some(child);
        }
        // Together: a quorum starts only when most of it is there.
        let began = Instant::now();
        for n in away {
            let broker = &mut self.brokers[n];
            let log = self.dir.path().join(format!("{}.log", broker.number));
            while !fs::read_to_string(&log).unwrap().contains("Kafka Server started") {
                let ended = broker.child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some());
                let text = || fs::read_to_string(&log).unwrap();
                assert!(!ended, "the broker ended: {}", text());
                assert!(began.elapsed() < Duration::from_secs(120), "no broker within two minutes: {}", text());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// `kill -9` of one of them.
    pub fn kill(&mut self, n: usize) {
        if let Some(mut child) = self.brokers[n].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// `kill -9` of all.
    pub fn kill_all(&mut self) {
        (0..self.len()).for_each(|n| self.kill(n));
    }

    /// Where one of them keeps its partitions.
    pub fn data(&self, n: usize) -> PathBuf {
        self.dir.path().join(format!("data-{}", self.brokers[n].number))
    }

    /// What clients are told.
    pub fn address(&self) -> String {
        self.brokers.iter().map(|broker| format!("127.0.0.1:{}", broker.port)).collect::<Vec<_>>().join(",")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill_all();
    }
}
