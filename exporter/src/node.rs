//! This machine's GPUs as a page: what their boards hold in memory, who holds them, and what we say of ourselves.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant, SystemTime},
};

use attribution::holders::{NodeGpu, NodeInstance};
use schemas::catalogue;

use crate::{
    collectors::counted,
    families::Family,
    hpc::Jobs,
    nvml::{Board, Driver, Fleet, Health},
    owners::{Listing, Owned, Owners},
    pod_labels::PodLabels,
    select::Selection,
    source::{Attributes, Extra, Identity, Page, ReadError, Source, Value},
};

/// Fields that a MIG instance has of its own: its memory, and profiling metrics.
pub const OF_INSTANCE: [u16; 5] = [250, 251, 252, 253, 254];

/// How a node is printed.
#[derive(Debug)]
pub struct How {
    /// What the node calls itself.
    pub hostname: Option<Arc<str>>,
    /// Which GPUs and instances are printed.
    pub selection: Selection,
    /// Readings of a board that is cut are printed on each of its instances' lines, as dcgm-exporter does, and not once.
    pub repeat: bool,
    /// The pod's UID is a label.
    pub pod_uid: bool,
    /// Which labels of a pod are labels; none: none.
    pub pod_labels: Option<PodLabels>,
    /// Window of DCGM_EXP_XID_ERRORS_COUNT.
    pub xid_window: Duration,
    /// Window of DCGM_EXP_CLOCK_EVENTS_COUNT.
    pub clock_window: Duration,
    /// How many GPUs somebody says there should be.
    pub expected: Option<usize>,
}

/// The GPUs of this machine.
#[derive(Debug)]
pub struct Node {
    /// What is asked of the driver.
    pub fleet: Arc<Fleet>,
    /// Who holds the GPUs, where that is asked for.
    pub owners: Option<Arc<Owners>>,
    /// Jobs by the mapping folder of a batch system.
    pub jobs: Option<Arc<Jobs>>,
    /// How it is printed.
    pub how: How,
}

impl Source for Node {
    /// Never waits for the driver, and never fails: what cannot be had is not on the page.
    fn read(&self, page: &mut Page) -> Result<(), ReadError> {
        self.read_at(page, Instant::now());
        Ok(())
    }
}

impl Node {
    fn read_at(&self, page: &mut Page, now: Instant) {
        page.begin(self.how.hostname.clone());
        let listing = self.owners.as_ref().map(|owners| owners.listing(now));
        for board in self.fleet.boards() {
            let whole = board.parts.is_empty();
            let index = board.record.gpu;
            if self.how.selection.gpu(index, !whole) && (whole || !self.how.repeat) {
                let attributes = self.attributes(listing.as_deref(), &board.identity, None);
                let readings = page.device(&board.identity, attributes.as_ref());
                board.readings(0, now, |field, value| {
                    // What instances have of their own is on their lines: a plain sum counts it once.
                    if whole || !of_instance(field) {
                        readings.set(field, value);
                    }
                });
                self.windows(&board, now, page);
            }
            for (n, part) in board.parts.iter().enumerate() {
                if !self.how.selection.instance(part.gi) {
                    continue;
                }
                let attributes = self.attributes(listing.as_deref(), &part.identity, Some(part.gi));
                let readings = page.device(&part.identity, attributes.as_ref());
                if self.how.repeat {
                    board.readings(0, now, |field, value| readings.set(field, value));
                    readings.unset_all(&OF_INSTANCE);
                }
                board.readings(n + 1, now, |field, value| readings.set(field, value));
                if self.how.repeat {
                    self.windows(&board, now, page);
                }
            }
        }
    }

    /// What is counted of a board rather than read: its XIDs, its clock events.
    fn windows(&self, board: &Board, now: Instant, page: &mut Page) {
        let Some(device) = page.last() else { return };
        if let Some(xid) = board.record.last_xid().and_then(|xid| i64::try_from(xid).ok()) {
            device.readings.set(catalogue::id::XID_ERRORS, Value::Int(xid));
        }
        let ms = |window: Duration| ("window_size_in_ms", window.as_millis().to_string());
        if let Some(counts) = board.record.xids_within(self.how.xid_window, now) {
            let window = || ms(self.how.xid_window);
            if counts.is_empty() {
                device.extras.push(Extra::new(counted::XIDS_IN_WINDOW, [window()], 0));
            }
            for (xid, count) in counts {
                device.extras.push(Extra::new(counted::XIDS_IN_WINDOW, [window(), ("xid", xid.to_string())], count));
            }
        }
        let mut totals: BTreeMap<u64, u64> = BTreeMap::new();
        for ((xid, _), seen) in board.record.xids() {
            *totals.entry(xid).or_default() += seen.count;
        }
        for (xid, count) in totals {
            device.extras.push(Extra::new(counted::XIDS, [("xid", xid.to_string())], count));
        }
        if let Some(events) = board.clock_events(now, self.how.clock_window) {
            let window = || ms(self.how.clock_window);
            if events.is_empty() {
                device.extras.push(Extra::new(counted::CLOCK_EVENTS_IN_WINDOW, [window()], 0));
            }
            for (bit, count) in board.clock_events_ever() {
                let event = ("clock_event", clock_event(bit).to_owned());
                device.extras.push(Extra::new(counted::CLOCK_EVENTS, [event], count));
            }
            for (bit, count) in events {
                let event = ("clock_event", clock_event(bit).to_owned());
                device.extras.push(Extra::new(counted::CLOCK_EVENTS_IN_WINDOW, [window(), event], count));
            }
        }
    }

    /// Labels of a device's use: the pod's where exactly one holds it, the job's where exactly one has it.
    fn attributes(&self, listing: Option<&Listing>, identity: &Identity, gi: Option<u32>) -> Option<Arc<Attributes>> {
        let owned = listing.and_then(|listing| listing.owned.get(&(identity.uuid.clone(), gi)));
        let jobs = self.jobs.as_ref().map(|jobs| jobs.of(identity.gpu, gi)).unwrap_or_default();
        let mut labels: Vec<(String, String)> = Vec::new();
        let mut of_pod: Vec<(String, String)> = Vec::new();
        if let Some(owned) = owned.filter(|owned| owned.pods() == 1 && !owned.conflict) {
            let holder = &owned.holders[0];
            labels.push(("namespace".into(), holder.namespace.clone()));
            labels.push(("pod".into(), holder.pod.clone()));
            if owned.holders.len() == 1 {
                labels.push(("container".into(), holder.container.clone()));
            }
            if let Some(uid) = holder.uid.as_ref().filter(|_| self.how.pod_uid) {
                labels.push(("pod_uid".into(), uid.clone()));
            }
            if let Some(wanted) = &self.how.pod_labels {
                of_pod = wanted.of(&holder.labels);
            }
        }
        if let [job] = jobs.as_slice() {
            labels.push(("hpc_job".into(), job.clone()));
        }
        (!labels.is_empty()).then(|| Arc::new(Attributes::new(labels).with_pod_labels(of_pod)))
    }

    /// The node's GPUs, for who joins pods to them.
    pub fn gpus(&self) -> Vec<NodeGpu> {
        let instance = |part: &crate::nvml::session::FoundPart| NodeInstance {
            uuid: part.uuid.clone(),
            gi: part.gi,
            ci: Some(part.ci),
            profile: part.profile.clone(),
        };
        let boards = self.fleet.boards();
        let gpu = |board: &Arc<Board>| NodeGpu {
            index: board.record.gpu,
            minor: board.found.minor,
            uuid: board.found.uuid.clone(),
            instances: board.found.parts.iter().map(instance).collect(),
        };
        boards.iter().map(gpu).collect()
    }

    /// Whether what is printed is of now: the driver answers, GPUs are there, and each was read within `limit`.
    pub fn fresh(&self, now: Instant, limit: Duration) -> Result<(), String> {
        match self.fleet.driver() {
            Driver::Up => {}
            Driver::Released => return Err("the GPU driver is released on request".into()),
            Driver::Down(code) => return Err(format!("the GPU driver does not answer: {code}")),
        }
        let boards = self.fleet.boards();
        if boards.is_empty() {
            return Err("no GPU answers".into());
        }
        for board in boards {
            match board.read_ago(now) {
                Some(age) if age <= limit => {}
                Some(age) => return Err(format!("GPU {} was last read {:.1} s ago", board.record.gpu, age.as_secs_f64())),
                None => return Err(format!("GPU {} was not read yet", board.record.gpu)),
            }
        }
        Ok(())
    }

    /// What dcgm-exporter does not tell.
    pub fn families(&self, now: Instant) -> Vec<Family> {
        let mut out = Vec::new();
        self.fleet_families(now, &mut out);
        self.board_families(now, &mut out);
        self.owner_families(now, &mut out);
        self.job_families(&mut out);
        out
    }

    fn fleet_families(&self, now: Instant, out: &mut Vec<Family>) {
        let fleet = &self.fleet;
        let counts = fleet.counts(self.how.expected, now);
        let mut one = |family: Family, value: f64| out.push(family.with([], value));
        one(
            Family::gauge(
                "strandline_gpus_expected",
                "GPUs that this node should have: as told, or on its PCI bus, or the most seen",
            ),
            counts.expected as f64,
        );
        one(Family::gauge("strandline_gpus_seen", "GPUs that answer"), counts.seen as f64);
        one(Family::gauge("strandline_gpus_lost", "GPUs that are expected and do not answer"), counts.lost as f64);
        let up = fleet.driver() == Driver::Up;
        one(Family::gauge("strandline_driver_up", "1 while the driver's library answers"), f64::from(u8::from(up)));
        one(
            Family::counter(
                "strandline_driver_opened_total",
                "times that the driver's library was opened: at start, after restarts",
            ),
            fleet.opened() as f64,
        );
        let shared = fleet.shared();
        let seconds = shared.library_ns.load(Ordering::Relaxed) as f64 / 1e9;
        one(
            Family::counter(
                "strandline_library_cpu_seconds_total",
                "processor time spent inside the driver's library; the rest of process_cpu_seconds_total is ours",
            ),
            seconds,
        );
        one(
            Family::counter("strandline_library_calls_total", "questions put to the driver's library"),
            shared.calls.load(Ordering::Relaxed) as f64,
        );
        if let Some(age) = fleet.census_age(now) {
            one(Family::gauge("strandline_census_age_seconds", "time since the GPUs were last counted"), age.as_secs_f64());
        }
    }

    fn board_families(&self, now: Instant, out: &mut Vec<Family>) {
        let mut state = Family::gauge("strandline_gpu_state", "1 for the state that a GPU is in");
        let mut age =
            Family::gauge("strandline_reading_age_seconds", "age of the oldest reading that is printed, by how it is read");
        let mut stale = Family::gauge("strandline_stale_readings", "readings that are left out because they are too old");
        let mut hanging = Family::gauge("strandline_hanging_calls", "calls of the driver's library that hang");
        let mut errors = Family::counter("strandline_collection_errors_total", "readings that failed, by field and NVML's code");
        let mut xids = Family::counter("strandline_xid_errors_total", "XID events since this exporter began, by code");
        let mut last = Family::gauge("strandline_xid_last_timestamp_seconds", "when the last XID of a code came, Unix time");
        let mut suspect = Family::gauge(
            "strandline_profiling_suspect",
            "1 while profiling metrics stand at 0 and utilization and power say otherwise",
        );
        for (record, board) in self.fleet.records() {
            let gpu = |more: &[(&'static str, String)]| {
                let mut labels = vec![("gpu", record.gpu.to_string()), ("UUID", record.uuid.clone())];
                labels.extend_from_slice(more);
                labels
            };
            let is = match board.as_ref().map(|board| board.health(now)) {
                Some(Health::Ok) => "ok",
                Some(Health::Lost(_)) => "lost",
                Some(Health::Unresponsive) => "unresponsive",
                None if self.fleet.driver() == Driver::Up => "gone",
                None => "driver_away",
            };
            for name in ["ok", "lost", "unresponsive", "gone", "driver_away"] {
                state.push(gpu(&[("state", name.to_owned())]), f64::from(u8::from(name == is)));
            }
            for ((field, code), count) in record.errors() {
                let field = catalogue::by_id(field).map_or_else(|| field.to_string(), |known| known.name.to_owned());
                errors.push(gpu(&[("field", field), ("code", code.to_owned())]), count as f64);
            }
            for ((xid, instance), seen) in record.xids() {
                let mut labels = vec![("xid", xid.to_string())];
                labels.extend(instance.map(|id| ("GPU_I_ID", id.to_string())));
                xids.push(gpu(&labels), seen.count as f64);
                let at = seen.last.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                last.push(gpu(&labels), at.as_millis() as f64 / 1000.0);
            }
            let Some(board) = board else { continue };
            let mut oldest = [None; 2];
            for place in 0..=board.parts.len() {
                for (oldest, age) in oldest.iter_mut().zip(board.readings(place, now, |_, _| {})) {
                    *oldest = (*oldest).max(age);
                }
            }
            for (group, oldest) in ["device", "profiling"].into_iter().zip(oldest) {
                if let Some(oldest) = oldest {
                    age.push(gpu(&[("group", group.to_owned())]), oldest.as_secs_f64());
                }
            }
            stale.push(gpu(&[]), board.stale(now) as f64);
            hanging.push(gpu(&[]), board.stuck(now) as f64);
            if let Some(doubt) = board.suspect() {
                suspect.push(gpu(&[]), f64::from(u8::from(doubt)));
            }
        }
        out.extend([state, age, stale, hanging, errors, xids, last, suspect]);
    }

    fn owner_families(&self, now: Instant, out: &mut Vec<Family>) {
        let Some(owners) = &self.owners else { return };
        let listing = owners.listing(now);
        let mut count = Family::gauge("strandline_gpu_owners", "pods that hold a device; 0: it is free, absent: nobody can tell");
        let mut share = Family::gauge(
            "strandline_gpu_holder_share_ratio",
            "a container's share of a device among those that hold it; the shares of a held device add up to 1",
        );
        let mut conflict = Family::gauge("strandline_gpu_owner_conflict", "1 while two pods claim a device that is not shared");
        let known = listing.at.is_some_and(|at| now.saturating_duration_since(at) <= crate::owners::HOLD);
        for board in self.fleet.boards() {
            let devices: Vec<(&Arc<Identity>, Option<u32>)> = match board.parts.as_slice() {
                [] => vec![(&board.identity, None)],
                parts => parts.iter().map(|part| (&part.identity, Some(part.gi))).collect(),
            };
            for (identity, gi) in devices.into_iter().filter(|_| known) {
                let mut labels = vec![("gpu", identity.gpu.to_string()), ("UUID", identity.uuid.clone())];
                if let Some(instance) = &identity.instance {
                    labels.push(("GPU_I_PROFILE", instance.profile.clone()));
                    labels.push(("GPU_I_ID", instance.id.to_string()));
                }
                let free = Owned::default();
                let owned = listing.owned.get(&(identity.uuid.clone(), gi)).unwrap_or(&free);
                count.push(labels.clone(), owned.pods() as f64);
                if owned.conflict {
                    conflict.push(labels.clone(), 1.0);
                }
                for holder in &owned.holders {
                    let mut labels = labels.clone();
                    labels.push(("namespace", holder.namespace.clone()));
                    labels.push(("pod", holder.pod.clone()));
                    labels.push(("container", holder.container.clone()));
                    if let Some(uid) = holder.uid.as_ref().filter(|_| self.how.pod_uid) {
                        labels.push(("pod_uid", uid.clone()));
                    }
                    share.push(labels, holder.share.0 as f64 / holder.share.1.max(1) as f64);
                }
            }
        }
        let mut failures =
            Family::counter("strandline_attribution_failures_total", "listings and device ids that named no holder, by reason");
        for (reason, times) in owners.failures() {
            failures.push(vec![("reason", reason.to_owned())], times as f64);
        }
        let mut unmatched = Family::gauge(
            "strandline_attribution_unmatched_ids",
            "device ids of the last listing that no device answers to, by reason",
        );
        for (reason, ids) in &listing.unmatched {
            unmatched.push(vec![("reason", (*reason).to_owned())], *ids as f64);
        }
        out.extend([count, share, conflict, failures, unmatched]);
        if let Some(at) = listing.at {
            let age = now.saturating_duration_since(at).as_secs_f64();
            out.push(Family::gauge("strandline_attribution_age_seconds", "time since pods were last listed").with([], age));
        }
    }

    fn job_families(&self, out: &mut Vec<Family>) {
        let Some(jobs) = &self.jobs else { return };
        let folder = jobs.now();
        let readable = Family::gauge("strandline_hpc_mapping_readable", "1 while the folder of job mappings can be read");
        let refused = Family::gauge("strandline_hpc_mapping_refused", "files and lines of it that cannot be used");
        let mut of = Family::gauge("strandline_gpu_job", "1 for each job that a device has by the folder of job mappings");
        for ((gpu, gi), jobs) in &folder.jobs {
            for job in jobs {
                let mut labels = vec![("gpu", gpu.to_string()), ("hpc_job", job.clone())];
                labels.extend(gi.map(|gi| ("GPU_I_ID", gi.to_string())));
                of.push(labels, 1.0);
            }
        }
        out.push(readable.with([], f64::from(u8::from(folder.readable))));
        out.push(refused.with([], folder.refused as f64));
        out.push(of);
    }
}

/// Whether an instance reads a field of its own.
fn of_instance(field: u16) -> bool {
    OF_INSTANCE.contains(&field) || crate::nvml::gpm::metric(field).is_some()
}

/// Name of a clock event's bit, as DCGM_EXP_CLOCK_EVENTS_COUNT has it.
const fn clock_event(bit: u64) -> &'static str {
    match bit {
        0x1 => "gpu_idle",
        0x2 => "clocks_setting",
        0x4 => "power_cap",
        0x8 => "hw_slowdown",
        0x10 => "sync_boost",
        0x20 => "sw_thermal",
        0x40 => "hw_thermal",
        0x80 => "hw_power_brake",
        0x100 => "display_clocks",
        _ => "unknown",
    }
}

/// The fields that are read so that `printed` can be printed and judged.
pub fn wanted(printed: &BTreeSet<u16>, clock_events: bool) -> BTreeSet<u16> {
    // Utilization, power and its limit, graphics and SM activity: whether profiling can be believed.
    let mut wanted: BTreeSet<u16> = printed.iter().copied().chain([155, 164, 203, 1001, 1002]).collect();
    if clock_events {
        wanted.insert(112);
    }
    wanted
}
