//! Facts that contradict each other or cannot be: each has its message, and the identities hold all the same.

use std::fs;

use crate::command::{strandline, succeeds};

/// A lake of one node and one hour, made by imports.
struct Place(tempfile::TempDir);

impl Place {
    fn new(devices: &str, pods: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.import("devices", &format!("node,device,from,to,product\n{devices}"));
        place.import("allocations", &format!("pod,node,device,bound,ended\n{pods}"));
        place
    }

    fn lake(&self) -> String {
        self.0.path().join("lake").to_str().unwrap().to_owned()
    }

    fn import(&self, kind: &str, text: &str) -> String {
        let file = self.0.path().join(format!("{kind}.csv"));
        fs::write(&file, text).unwrap();
        succeeds(&["import", kind, file.to_str().unwrap(), "--lake", &self.lake()])
    }

    /// Pages of the node at minutes of the hour; each has these lines.
    fn pages(&self, page: &str, minutes: &[u32]) {
        fs::write(self.0.path().join("page"), page).unwrap();
        let rows: String = minutes.iter().map(|m| format!("2026-03-02T00:{m:02}:00Z,n1,page\n")).collect();
        self.import("scrapes", &format!("at,node,file\n{rows}"));
    }

    fn sql(&self, query: &str) -> Vec<String> {
        let text = succeeds(&["sql", "--lake", &self.lake(), "--format", "csv", query]);
        text.lines().skip(1).map(str::to_owned).collect()
    }

    /// Does the hours, proves them, and gives each row as `device kind pod ms flags`.
    fn rows(&self) -> Vec<String> {
        succeeds(&["hours", "--lake", &self.lake()]);
        let check = strandline(&["check", "--lake", &self.lake()]);
        assert!(check.code == 0 && check.out.starts_with("closes: "), "{}", check.out);
        let rows = self.sql("SELECT COALESCE(device, '-') || ' ' || kind || ' ' || COALESCE(pod, reason) || ' ' || CAST(ms AS VARCHAR) || ' ' || COALESCE(flags, '') AS line FROM gpu_hours ORDER BY 1");
        rows.iter().map(|row| row.trim_matches('"').trim().to_owned()).collect()
    }
}

const HOUR: &str = "2026-03-02T00:00:00Z,2026-03-02T01:00:00Z";

#[test]
fn of_two_owners_the_later_bind_ends_the_earlier() {
    let pods = format!("first,n1,GPU-1,{HOUR}\nsecond,n1,GPU-1,2026-03-02T00:30:00Z,2026-03-02T01:00:00Z\n");
    let place = Place::new(&format!("n1,GPU-1,{HOUR},H100\n"), &pods);
    assert_eq!(place.rows(), ["GPU-1 owner first 1800000 end_clamped", "GPU-1 owner second 1800000"]);
    let why = succeeds(&["why", "--lake", &place.lake(), "--pod", "first", "--at", "2026-03-02T00:10:00Z"]);
    assert!(why.contains("cut 2026-03-02T00:30:00.000Z by the next bind of its device (A11)"), "{why}");
}

#[test]
fn intervals_backwards_or_empty_hold_nothing_and_say_so() {
    let pods = format!(
        "backwards,n1,GPU-1,2026-03-02T00:40:00Z,2026-03-02T00:10:00Z\nempty,n1,GPU-1,2026-03-02T00:20:00Z,2026-03-02T00:20:00Z\ngood,n1,GPU-1,{HOUR}\n"
    );
    let devices = format!("n1,GPU-1,{HOUR},H100\nn1,GPU-2,2026-03-02T01:00:00Z,2026-03-02T00:00:00Z,H100\n");
    let place = Place::new(&devices, &pods);
    assert_eq!(place.rows(), ["GPU-1 owner good 3600000"], "an empty holding cuts nobody");
    let rejects = place.sql("SELECT line || ': ' || reason FROM rejects ORDER BY reason");
    assert!(rejects.iter().any(|r| r.contains("is before the bind at 2026-03-02T00:40:00.000Z")), "{rejects:?}");
    assert!(rejects.iter().any(|r| r.contains("the end is not after the beginning")), "{rejects:?}");
}

#[test]
fn holdings_without_a_device_are_taken_from_what_nobody_holds() {
    let pods = format!("one,n1,,2026-03-02T00:00:00Z,2026-03-02T00:30:00Z\ntwo,n1,,{HOUR}\nthree,n1,,{HOUR}\n");
    let place = Place::new(&format!("n1,GPU-1,{HOUR},H100\nn1,GPU-2,{HOUR},H100\n"), &pods);
    let rows = place.rows();
    // Two GPUs for an hour, three pods: what does not fit is beside the sum, and named.
    assert!(rows.contains(&"- free held_unknown -7200000".to_owned()), "{rows:?}");
    let over = place.sql("SELECT SUM(overcommitted_ms) FROM gpu_hours");
    assert_eq!(over, [(30 * 60_000).to_string()]);
    let report = succeeds(&["report", "--lake", &place.lake(), "--by", "pod"]);
    assert!(report.contains("beside the sum, overcommitted: 0.50") && !report.contains(" -2.00"), "{report}");
    let check = succeeds(&["check", "--lake", &place.lake()]);
    assert!(check.contains("overcommitted: imported/n1 holds 1800000 ms by number beyond what it has"), "{check}");
}

#[test]
fn a_share_of_a_named_device_is_refused_and_not_taken_for_the_whole() {
    let place = Place::new(&format!("n1,GPU-1,{HOUR},H100\n"), &format!("whole,n1,GPU-1,{HOUR}\n"));
    let out =
        place.import("allocations", &format!("pod,node,device,weight,bound,ended\nhalf,n1,GPU-1,0.5,{HOUR}\nall,n1,,1,{HOUR}\n"));
    assert!(out.contains("1 holdings imported"), "{out}");
    let rejects = place.sql("SELECT reason FROM rejects");
    assert!(rejects.iter().any(|reason| reason.contains("a share of a named device")), "{rejects:?}");
    assert!(place.rows().contains(&"GPU-1 owner whole 3600000".to_owned()));
}

#[test]
fn samples_out_of_order_and_twice_are_samples_once() {
    let page = "DCGM_FI_PROF_SM_ACTIVE{gpu=\"0\",UUID=\"GPU-1\"} 0.5\n";
    let minutes: Vec<u32> = (0..60).collect();
    let shuffled: Vec<u32> = (0..60).map(|m| m * 37 % 60).chain([5, 5, 59, 0]).collect();
    let utilized = |minutes: &[u32]| {
        let place = Place::new(&format!("n1,GPU-1,{HOUR},H100\n"), &format!("a,n1,GPU-1,{HOUR}\n"));
        place.pages(page, minutes);
        place.rows();
        place.sql("SELECT sm_utilized_ms, sm_stranded_ms FROM gpu_hours WHERE kind = 'owner'")
    };
    assert_eq!(utilized(&minutes), utilized(&shuffled), "a clock that jumps back and forth tells the same hour");
}

#[test]
fn a_device_that_the_inventory_does_not_list_is_there_because_it_answers() {
    let place = Place::new(&format!("n1,GPU-1,{HOUR},H100\n"), &format!("a,n1,GPU-1,{HOUR}\n"));
    place.pages("DCGM_FI_PROF_SM_ACTIVE{gpu=\"9\",UUID=\"GPU-9\"} 0.5\n", &[0, 1, 2, 3]);
    let rows = place.rows();
    assert!(rows.iter().any(|row| row.starts_with("GPU-1 owner a 3600000")), "{rows:?}");
    assert!(rows.iter().any(|row| row.starts_with("GPU-9 free unheld 3600000")), "nobody's, and no one's utilization: {rows:?}");
    let unseen = place.sql("SELECT sm_utilized_ms + sm_stranded_ms FROM gpu_hours WHERE pod = 'a'");
    assert_eq!(unseen, ["0"], "another device's samples say nothing of this one");
}
