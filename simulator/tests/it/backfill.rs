//! A past in the lake and as messages: what agents, sink and closing would have made, the same whoever makes it how.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::{
    array::{Array, AsArray, RecordBatch},
    compute::concat_batches,
    datatypes::{Int64Type, TimestampMicrosecondType},
};
use lake::Lake;
use schemas::{
    HOUR_MS, Timestamp, Window,
    proto::{Frame, Message as _, ScrapeRound, frame},
    rows::{Rows, SampleColumns, ScrapeColumns, wire::Envelope},
    status::ScrapeStatus,
    tables,
};
use simulator::{
    Plan, Seed,
    backfill::{
        Agents, frames,
        lake::{BackfillError, Options, Written, backfill},
    },
    spec::{Delivery, NoPage, Rate, Span},
};

use crate::{spec, text};

/// The small fleet with late and repeated rounds.
fn plan() -> Arc<Plan> {
    let mut spec = spec("small");
    let of = |ppm, from, to| Delivery { rate: Rate(ppm), delay: (Span::from_ms(from).unwrap(), Span::from_ms(to).unwrap()) };
    spec.faults.late_batches = Some(of(30_000, 60_000, 1_800_000));
    spec.faults.repeated_batches = Some(of(20_000, 1_000, 600_000));
    Arc::new(Plan::new(spec, Seed(7)).unwrap())
}

fn write(plan: &Plan, folder: &Path, window: Window, threads: usize) -> Result<Written, BackfillError> {
    let lake = Lake::create(folder).unwrap();
    backfill(plan, &lake, &Options { window, threads, agents: Agents::default() }, &|_| {})
}

/// Every Parquet file below `folder`, by its path.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut open) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(folder_of) = open.pop() {
        for entry in std::fs::read_dir(folder_of).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|end| end == "parquet") {
                found.insert(path.strip_prefix(folder).unwrap().to_owned(), std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn rows(folder: &Path, table: &'static str) -> RecordBatch {
    let (lake, table) = (Lake::open(folder).unwrap(), tables::get(table));
    let files = lake.closed_files(table, None).unwrap();
    let batches: Vec<RecordBatch> = files.iter().flat_map(|file| lake::read::rows(table, &file.path, None).unwrap()).collect();
    concat_batches(&table.schema(), &batches).unwrap()
}

fn ints(rows: &RecordBatch, column: &str) -> Vec<Option<i64>> {
    rows.column_by_name(column).unwrap().as_primitive::<Int64Type>().iter().collect()
}

fn texts<'a>(rows: &'a RecordBatch, column: &str) -> Vec<Option<&'a str>> {
    rows.column_by_name(column).unwrap().as_string::<i32>().iter().collect()
}

fn times(rows: &RecordBatch, column: &str) -> Vec<Timestamp> {
    let column = rows.column_by_name(column).unwrap().as_primitive::<TimestampMicrosecondType>();
    column.values().iter().map(|micros| Timestamp::from_micros(*micros)).collect()
}

#[test]
fn files_are_the_same_bytes_whatever_made_them_side_by_side_or_one_by_one() {
    let plan = plan();
    let [one, many, apart] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let written = write(&plan, one.path(), plan.window(), 1).unwrap();
    assert_eq!(write(&plan, many.path(), plan.window(), 3).unwrap(), written);
    let found = files(one.path());
    assert_eq!(files(many.path()), found);
    assert_eq!(found.len(), 12, "six tables, two hours: {:?}", found.keys());
    // The hour that was made last knows as much as both did.
    let second = Window::new(plan.window().from().plus_ms(HOUR_MS), plan.window().to()).unwrap();
    write(&plan, apart.path(), second, 2).unwrap();
    for (path, bytes) in files(apart.path()) {
        assert_eq!(bytes, found[&path], "{}", path.display());
    }
    // Again over what is there: nothing changes.
    write(&plan, one.path(), plan.window(), 2).unwrap();
    assert_eq!(files(one.path()), found);
    let watermark = Lake::open(one.path()).unwrap().watermark().unwrap().unwrap();
    assert_eq!((watermark.from, watermark.closed_to), (plan.window().from(), plan.window().to()));
}

#[test]
fn rounds_are_there_with_their_status_and_the_size_of_their_page() {
    let plan = plan();
    let folder = tempfile::tempdir().unwrap();
    write(&plan, folder.path(), plan.window(), 2).unwrap();
    let scrapes = rows(folder.path(), "scrapes");
    let (at, node, status) = (times(&scrapes, "at"), texts(&scrapes, "node"), texts(&scrapes, "status"));
    let (bytes, series, devices) = (ints(&scrapes, "body_bytes"), ints(&scrapes, "series"), ints(&scrapes, "devices"));
    let (sequence, error) = (ints(&scrapes, "sequence"), texts(&scrapes, "error"));
    assert_eq!(scrapes.num_rows(), plan.nodes().len() * 240);
    let mut seen = BTreeSet::new();
    for row in 0..scrapes.num_rows() {
        let index = plan.node(node[row].unwrap()).unwrap();
        let since = at[row].ms() - plan.window().from().ms();
        assert_eq!((since % 30_000, sequence[row]), (0, Some(since / 30_000 + 1)));
        let expected = match plan.no_page(index, at[row]) {
            None => {
                let page = text(&plan, index, at[row]);
                let samples = String::from_utf8(page.clone()).unwrap().lines().filter(|line| !line.starts_with('#')).count();
                assert_eq!((bytes[row], series[row]), (Some(page.len() as i64), Some(samples as i64)), "at {}", at[row]);
                assert_eq!((devices[row], error[row]), (Some(plan.nodes()[index].devices.len() as i64), None));
                ScrapeStatus::Ok
            }
            Some(no_page) => {
                assert_eq!((bytes[row], series[row], devices[row]), (Some(0), Some(0), Some(0)));
                assert!(error[row].is_some());
                match no_page {
                    NoPage::Refuse => ScrapeStatus::Refused,
                    NoPage::Error => ScrapeStatus::Http5xx,
                    NoPage::Empty => ScrapeStatus::Empty,
                    NoPage::Hang => ScrapeStatus::Timeout,
                }
            }
        };
        assert_eq!(status[row], Some(expected.as_str()));
        seen.insert(expected.as_str());
    }
    assert!(seen.len() > 2, "{seen:?}");
}

#[test]
fn samples_are_the_states_with_their_holders_and_misprints_are_no_readings() {
    let plan = plan();
    let folder = tempfile::tempdir().unwrap();
    let written = write(&plan, folder.path(), plan.window(), 2).unwrap();
    let samples = rows(folder.path(), "gpu_samples");
    assert_eq!(written.samples, samples.num_rows() as u64);
    let by_uuid: BTreeMap<&str, _> = plan.devices().map(|device| (&*plan.device(device).identity.uuid, device)).collect();
    let (at, device, pod) = (times(&samples, "at"), texts(&samples, "device"), texts(&samples, "pod"));
    let (holders, faults) = (ints(&samples, "holders"), texts(&samples, "faults"));
    let (energy, used, util) =
        (ints(&samples, "dev_total_energy_consumption"), ints(&samples, "dev_fb_used"), ints(&samples, "dev_gpu_util"));
    let mut misprints = 0;
    for row in 0..samples.num_rows() {
        let device = by_uuid[device[row].unwrap()];
        let state = simulator::state(&plan, device, at[row]).unwrap();
        let name = state.holder.map(|pod| &*plan.pods()[pod].name);
        assert_eq!((pod[row], holders[row]), (name, Some(i64::from(name.is_some()))));
        assert_eq!((energy[row], used[row]), (Some(state.energy_mj), Some(state.fb_used_mib)));
        match faults[row] {
            None => assert_eq!(util[row], state.util_pct),
            Some(faults) => {
                misprints += 1;
                assert!(
                    faults.contains(":sentinel") || faults.contains(":out_of_range") || faults.contains("clipped"),
                    "{faults}"
                );
            }
        }
    }
    let listed = simulator::faults(&plan, plan.window());
    let unseen = |fault: &&simulator::Fault| {
        matches!(fault.kind, "blank" | "out_of_range") && plan.no_page(plan.node(&fault.node).unwrap(), fault.from).is_none()
    };
    assert_eq!(misprints, listed.iter().filter(unseen).count());
    assert!(misprints > 5);
}

/// The messages of the plan, in order of delivery.
fn messages(plan: &Plan) -> (Vec<Frame>, frames::Framed) {
    let mut bytes = Vec::new();
    let framed = frames::write(plan, plan.window(), &Agents::default(), &mut bytes, |_| {}).unwrap();
    assert_eq!(framed.bytes, bytes.len() as u64);
    let (mut rest, mut found) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        found.push(Frame::decode_length_delimited(&mut rest).unwrap());
    }
    assert_eq!(framed.frames, found.len() as u64);
    (found, framed)
}

#[test]
fn messages_come_late_and_twice_as_the_truth_lists_them_and_make_the_same_rows() {
    let plan = plan();
    let (messages, framed) = messages(&plan);
    assert!(messages.windows(2).all(|two| two[0].delivered_ms <= two[1].delivered_ms), "in order of delivery");
    let mut times: BTreeMap<(String, i64), Vec<i64>> = BTreeMap::new();
    let (mut first, mut samples) = (BTreeSet::new(), Rows::new(tables::get("gpu_samples")));
    let [mut extra, mut rejects, mut scrapes] =
        ["extra_samples", "rejects", "scrapes"].map(|table| Rows::new(tables::get(table)));
    for message in &messages {
        let Some(frame::Content::Round(round)) = &message.content else { continue };
        let ScrapeRound { node, at_ms, .. } = round;
        times.entry((node.clone(), *at_ms)).or_default().push(message.delivered_ms - at_ms);
        if first.insert((node.clone(), *at_ms)) {
            ScrapeColumns::new().others(&Envelope::of(round), round.devices.len(), None, &mut extra, &mut rejects, &mut scrapes);
            for device in &round.devices {
                SampleColumns::new().device(round, device, None, &mut samples);
            }
        }
    }
    let listed = simulator::faults(&plan, plan.window());
    let (mut late, mut repeated) = (0, 0);
    for ((node, at_ms), delays) in &times {
        let of = |kind: &str| {
            let fault = listed.iter().find(|f| f.kind == kind && f.node == *node && f.from.ms() == *at_ms)?;
            fault.detail.strip_suffix(" ms")?.parse::<i64>().ok()
        };
        let delay = of("late_batch").unwrap_or(0);
        late += u64::from(delay > 0);
        let mut expected = vec![delay];
        expected.extend(of("repeated_batch").map(|again| delay + again));
        repeated += expected.len() as u64 - 1;
        assert_eq!(*delays, expected, "{node} at {at_ms}");
    }
    assert!(late > 5 && repeated > 3, "{late} late, {repeated} repeated");
    assert_eq!((framed.late, framed.repeated, framed.rounds), (late, repeated, times.len() as u64 + repeated));

    let folder = tempfile::tempdir().unwrap();
    write(&plan, folder.path(), plan.window(), 2).unwrap();
    for rows_of in [samples, scrapes] {
        let table = rows_of.table();
        let sorted = lake::encode::sorted(table, &[rows_of.finish()]).unwrap();
        assert!(sorted == lake::encode::sorted(table, &[rows(folder.path(), table.name)]).unwrap(), "{} differs", table.name);
    }
    let repeats: u64 = Lake::open(folder.path())
        .unwrap()
        .closed_files(tables::get("scrapes"), None)
        .unwrap()
        .iter()
        .map(|file| lake::read::footer(&file.path).unwrap().repeats)
        .sum();
    assert_eq!(repeats, repeated, "repeats are dropped when hours close, and counted");
}

#[test]
fn intervals_are_clipped_to_their_hour_and_sum_to_the_whole() {
    let plan = plan();
    let folder = tempfile::tempdir().unwrap();
    write(&plan, folder.path(), plan.window(), 2).unwrap();
    for (table, source) in [("allocations", "api"), ("allocations", "podres"), ("nodes", "api"), ("demand", "api")] {
        let rows = rows(folder.path(), table);
        let (from, to) = (times(&rows, "from_at"), times(&rows, "to_at"));
        let (whole_from, sources) = (times(&rows, "interval_from"), texts(&rows, "source"));
        let whole_to = rows.column_by_name("interval_to").unwrap().as_primitive::<TimestampMicrosecondType>();
        let mut found = 0;
        for row in (0..rows.num_rows()).filter(|row| sources[*row] == Some(source)) {
            let hour = from[row].hour();
            assert!(from[row] < to[row] && to[row] <= hour.plus_ms(HOUR_MS));
            assert_eq!(from[row], whole_from[row].max(hour));
            let end = if whole_to.is_valid(row) { Timestamp::from_micros(whole_to.value(row)) } else { plan.window().to() };
            assert_eq!(to[row], end.min(hour.plus_ms(HOUR_MS)));
            found += 1;
        }
        assert!(found > 10 || table == "demand" && found > 1, "{table} by {source}: {found} rows");
    }
    // The truth's holdings are the API's rows, to the millisecond.
    let rows = rows(folder.path(), "allocations");
    let (from, to, sources) = (times(&rows, "from_at"), times(&rows, "to_at"), texts(&rows, "source"));
    let counts = ints(&rows, "count");
    let held: i64 = (0..rows.num_rows())
        .filter(|row| sources[*row] == Some("api"))
        .map(|row| (to[row].ms() - from[row].ms()) * counts[row].unwrap())
        .sum();
    let truth = simulator::truth_rows(&plan, plan.window()).unwrap();
    let owned: i64 = truth.iter().filter(|row| row.pod.is_some()).map(|row| row.ms).sum();
    assert_eq!(held, owned);
}

#[test]
fn windows_that_leave_a_gap_or_no_full_hours_are_refused() {
    let plan = plan();
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (plan.window().from(), plan.window().to());
    let window = |from, to| Window::new(from, to).unwrap();
    for bad in [window(from.plus_ms(1), to), window(from, to.plus_ms(HOUR_MS))] {
        let refused = write(&plan, folder.path(), bad, 1).unwrap_err();
        assert!(refused.to_string().contains("is not of full UTC hours inside the fleet's time"), "{refused}");
    }
    let mut later = spec("small");
    later.start = from.plus_ms(5 * HOUR_MS);
    let later = Plan::new(later, Seed(7)).unwrap();
    write(&later, folder.path(), later.window(), 1).unwrap();
    let refused = write(&plan, folder.path(), plan.window(), 1).unwrap_err();
    assert!(refused.to_string().contains("would leave a gap between them"), "{refused}");
}
