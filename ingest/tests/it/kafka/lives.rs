//! `kill -9` of brokers, agent and sink under load, at instants that a seed draws, and the proof after it.

use super::*;
use rdkafka::admin::ResourceSpecifier;

/// Nodes whose rounds flow.
const FLEET: usize = 6;

/// The next number of a seeded row.
fn draw(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

async fn exporter() -> Exporter {
    let exporter = Exporter::start().await;
    exporter.page("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 1\nDCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-b\"} 2\n");
    exporter
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_broker_agent_and_sink_loses_and_doubles_nothing() {
    let exporter = exporter().await;
    tokio::task::block_in_place(|| {
        let mut cluster = Cluster::plain(1);
        let seeds = if std::env::var_os("STRANDLINE_FULL").is_some() { 10 } else { 3 };
        for seed in 1..=seeds {
            one_life(&mut cluster, &exporter.address, seed);
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounds_flow_while_one_of_three_brokers_is_away_and_wait_while_two_are() {
    let exporter = exporter().await;
    tokio::task::block_in_place(|| {
        let mut cluster = Cluster::plain(3);
        let topics = topics_of(&cluster);
        let resource = [ResourceSpecifier::Topic(SAMPLES)];
        let settings = wait(admin(&cluster).describe_configs(&resource, &AdminOptions::new())).unwrap().remove(0).unwrap();
        assert_eq!(settings.get("min.insync.replicas").and_then(|entry| entry.value.as_deref()), Some("2"));
        drop(topics);
        let seeds = if std::env::var_os("STRANDLINE_FULL").is_some() { 5 } else { 1 };
        for seed in 1..=seeds {
            each_broker_goes_once(&mut cluster, &exporter.address, seed);
            one_life(&mut cluster, &exporter.address, 100 + seed);
        }
    });
}

fn each_broker_goes_once(cluster: &mut Cluster, exporter: &str, seed: u64) {
    println!("seed {seed}: each of three");
    let mut random = seed;
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(dir.path(), cluster, &format!("atoll-{seed}"), exporter, FLEET, ("", ""));
    let topics = topics_of(cluster);
    let agent = Process::start(&["agent"], &setup.agent);
    let sink = Process::start(&["sink"], &setup.sink);
    // Waits until `more` rounds have gone into Kafka from now on.
    let flow = |more: u64| {
        let mut before = None;
        wait_for("rounds in Kafka", || {
            let now = taken(&*topics[0]);
            before = before.or(now);
            now.zip(before).is_some_and(|(now, before)| now > before + more)
        });
    };
    flow(FLEET as u64);
    for n in 0..cluster.len() {
        cluster.kill(n);
        // Two of three have it: that is enough to be taken.
        flow(3 * FLEET as u64);
        std::thread::sleep(Duration::from_millis(draw(&mut random) % 500));
        cluster.resume();
        flow(FLEET as u64);
    }
    // One alone must take nothing: what it had could be lost with it. Rounds wait on the agent's disk.
    let alone = draw(&mut random) as usize % cluster.len();
    (0..cluster.len()).filter(|n| *n != alone).for_each(|n| cluster.kill(n));
    wait_for("spool", || !setup.drained());
    cluster.resume();
    flow(FLEET as u64);
    assert_eq!(agent.ends(), Some(0));
    sink.kill();
    let waiting = Process::start(&["agent"], &setup.agent);
    wait_for("empty spool", || setup.drained());
    waiting.kill();
    // As the brokers wrote them: every batch has its producer's number, and batches of several rounds are packed with zstd.
    let batches: Vec<(u8, i64)> = (0..2).flat_map(|n| batches(&cluster.data(0).join(format!("{SAMPLES}-{n}")))).collect();
    assert!(batches.iter().all(|(_, producer)| *producer >= 0), "{batches:?}");
    assert!(batches.iter().any(|(packing, _)| *packing == 4), "{batches:?}");
    let rounds = prove(cluster, &Lake::create(&setup.lake).unwrap(), &format!("seed {seed}"));
    assert!(rounds > 15 * FLEET, "seed {seed}: {rounds}");
}

/// Packing and producer of every batch in the segments of a partition's folder (Kafka's record batch, version 2).
fn batches(folder: &Path) -> Vec<(u8, i64)> {
    let mut out = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "log") {
            continue;
        }
        let bytes = fs::read(path).unwrap();
        let mut rest = bytes.as_slice();
        while let Some(head) = rest.get(..51).filter(|head| head[16] == 2) {
            let length = u32::from_be_bytes(head[8..12].try_into().unwrap()) as usize;
            out.push((head[22] & 7, i64::from_be_bytes(head[43..51].try_into().unwrap())));
            rest = rest.get(12 + length..).unwrap_or_default();
        }
    }
    out
}

/// Lives of the three processes, each ended at a moment that `seed` draws, and then the proof.
fn one_life(cluster: &mut Cluster, exporter: &str, seed: u64) {
    println!("seed {seed}");
    let mut random = seed;
    let dir = tempfile::tempdir().unwrap();
    // A name of its own for every seed: the topics go on from one to the next.
    let setup = Setup::new(dir.path(), cluster, &format!("reef-{seed}"), exporter, FLEET, ("", ""));
    let topics = topics_of(cluster);
    let known = taken(&*topics[0]).unwrap();
    let mut agent = Some(Process::start(&["agent"], &setup.agent));
    let mut sink = Some(Process::start(&["sink"], &setup.sink));
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(300 + draw(&mut random) % 700));
        match draw(&mut random) % 3 {
            0 => {
                cluster.kill(draw(&mut random) as usize % cluster.len());
                std::thread::sleep(Duration::from_millis(draw(&mut random) % 1000));
                cluster.resume();
            }
            1 => {
                agent.take().unwrap().kill();
                agent = Some(Process::start(&["agent"], &setup.agent));
            }
            _ => {
                sink.take().unwrap().kill();
                sink = Some(Process::start(&["sink"], &setup.sink));
            }
        }
    }
    // The brokers go once more while rounds are taken, so that some are in the spool.
    cluster.kill_all();
    wait_for("spool", || !setup.drained());
    agent.take().unwrap().kill();
    cluster.resume();
    let agent = Process::start(&["agent"], &setup.agent);
    // However slow the machine is, enough rounds are taken for the proof to mean something.
    let enough = || taken(&*topics[0]).is_some_and(|now| now > known + FLEET as u64 * 5);
    wait_for("rounds in Kafka and an empty spool", || enough() && setup.drained());
    agent.kill();
    sink.take().unwrap().kill();
    prove(cluster, &Lake::create(&setup.lake).unwrap(), &format!("seed {seed}"));
}
