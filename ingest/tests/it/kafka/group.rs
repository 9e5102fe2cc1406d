//! Sinks that share partitions out: by a consumer group whose members join, leave and are killed, and by number.

use super::*;
use ingest::transport::kafka::Share;

/// Partitions held, by topic and number. Shares are even over all topics together, not within each.
fn held(topics: &[Arc<KafkaTopic>]) -> BTreeSet<(usize, u32)> {
    let of = |(n, topic): (usize, &Arc<KafkaTopic>)| topic.assigned().unwrap().into_iter().map(move |p| (n, p));
    topics.iter().enumerate().flat_map(of).collect()
}

#[test]
fn a_group_shares_partitions_out_and_what_one_lets_go_another_takes_up() {
    let cluster = Cluster::plain(1);
    let sharing = |share| {
        let mut options = options(&cluster, &[("session.timeout.ms", "6000"), ("heartbeat.interval.ms", "500")]);
        (options.share, options.partitions) = (share, 4);
        topics(options)
    };
    let group = || sharing(Share::Group("sinks".to_owned()));
    let first = group();
    wait_for("assignment", || held(&first).len() == 12);
    let second = group();
    let mut kept = held(&first);
    wait_for("rebalance", || {
        let both = [held(&first), held(&second)];
        kept.retain(|partition| both[0].contains(partition));
        both.iter().all(|held| held.len() == 6) && both[0].is_disjoint(&both[1])
    });
    // Cooperative: what stays is held all the while.
    assert_eq!(kept, held(&first));
    drop(second);
    wait_for("rebalance", || held(&first).len() == 12);

    let by_number = [0, 1, 2].map(|member| held(&sharing(Share::Fixed { member, members: 3 })));
    assert_eq!(by_number.iter().map(BTreeSet::len).sum::<usize>(), 12);
    assert_eq!(by_number.iter().flatten().collect::<BTreeSet<_>>().len(), 12, "each partition is one member's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_join_leave_and_are_killed_lose_and_double_nothing() {
    let exporter = Exporter::start().await;
    exporter.page("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 1\n");
    tokio::task::block_in_place(|| {
        let cluster = Cluster::plain(1);
        let dir = tempfile::tempdir().unwrap();
        let of_sink = "  group: sinks\n  session.timeout.ms: 6000\n  heartbeat.interval.ms: 500\n";
        let setup = Setup::new(dir.path(), &cluster, "reef", &exporter.address, 6, ("", of_sink));
        let topics = topics_of(&cluster);
        let agent = Process::start(&["agent"], &setup.agent);
        let member = || {
            let port = free_port();
            (port, Process::listening(port, &["sink"], &setup.sink))
        };
        // How many of the six partitions a member has ever held.
        let lags = |port: u16| get(port, "/metrics").map_or(0, |(_, page)| page.matches("\nstrandline_ingest_lag{").count());
        let lake = || Lake::create(&setup.lake).unwrap();
        let all_in_lake = || {
            let before = taken(&*topics[0]).unwrap();
            wait_for("hot files", || hot_offsets(&lake()).values().map(Vec::len).sum::<usize>() as u64 >= before);
        };

        let (first_port, first) = member();
        wait_for("assignment of all", || lags(first_port) == 6);
        let (second_port, second) = member();
        wait_for("assignment of some", || lags(second_port) >= 3);
        all_in_lake();
        first.kill();
        wait_for("assignment of all", || lags(second_port) == 6);
        all_in_lake();
        let (third_port, third) = member();
        wait_for("assignment of some", || lags(third_port) >= 3);
        assert_eq!(second.ends(), Some(0));
        wait_for("assignment of all", || lags(third_port) == 6);
        all_in_lake();
        assert_eq!(agent.ends(), Some(0));
        assert_eq!(third.ends(), Some(0));
        same_offsets(&lake(), &messages(&*topics[0]), "after the last member ended");
        prove(&cluster, &lake(), "group");
    });
}
