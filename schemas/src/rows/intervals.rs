//! States of holdings, demand and nodes to rows of the interval tables, in the form of the hot tree: one row an observed
//! state, `from_at` and `to_at` the whole interval's ends, `to_at` of one that lasts the time of the observation. Which state
//! stands, and what each hour has of it, is the closing's to say.

use super::{Place, Rows, TIMES_MS};
use crate::proto::{Demand, Holding, Node};

/// Ends of an interval, and what order its observation has.
struct Interval {
    from_ms: i64,
    to_ms: Option<i64>,
    observed_at_ms: i64,
    revision: u64,
}

impl Interval {
    fn checked(self) -> Result<Self, String> {
        let times = [Some(self.from_ms), self.to_ms, Some(self.observed_at_ms)];
        match times.into_iter().flatten().find(|ms| !TIMES_MS.contains(ms)) {
            Some(ms) => Err(format!("bad_time: {ms} ms is outside the years 1970 to 9999")),
            None => Ok(self),
        }
    }

    fn set(&self, source: &str, place: Option<Place>, rows: &mut Rows) {
        rows.time("from_at", self.from_ms);
        rows.time("to_at", self.to_ms.unwrap_or(self.observed_at_ms).max(self.from_ms));
        rows.time("interval_from", self.from_ms);
        if let Some(to) = self.to_ms {
            rows.time("interval_to", to);
        }
        rows.text("source", source);
        rows.time("observed_at", self.observed_at_ms);
        rows.int("revision", i64::try_from(self.revision).unwrap_or(i64::MAX));
        rows.log(place);
        rows.end_row();
    }
}

/// Adds a holding's state to rows of `allocations`. Errors: a code, then words.
pub fn holding(rows: &mut Rows, h: &Holding, place: Option<Place>) -> Result<(), String> {
    let from_ms = h.bound_ms.or(h.known_from_ms).ok_or("no_start: a holding without bind or first sighting")?;
    let observed = h.observed_at_ms;
    let interval = Interval { from_ms, to_ms: h.ended_ms, observed_at_ms: observed, revision: h.revision }.checked()?;
    let moments = [h.started_ms, h.terminating_from_ms, h.known_from_ms, h.last_listed_ms, h.last_checkpoint_ms];
    if let Some(ms) = moments.into_iter().flatten().find(|t| !TIMES_MS.contains(t)) {
        return Err(format!("bad_time: {ms} ms is outside the years 1970 to 9999"));
    }
    rows.text("cluster", &h.cluster);
    rows.text("node", &h.node);
    rows.text("device", &h.device);
    rows.text("holding_id", &h.id);
    rows.text("pod_uid", &h.pod_uid);
    rows.text("namespace", &h.namespace);
    rows.text("pod", &h.pod);
    rows.text("container", &h.container);
    rows.text("team", &h.team);
    rows.text("workload", &h.workload);
    rows.text("queue", &h.queue);
    rows.text("resource", &h.resource);
    let counts = [("count", h.count), ("weight_num", h.weight_num), ("weight_den", h.weight_den), ("ids", h.ids)];
    for (column, value) in counts {
        if let Some(value) = value {
            rows.int(column, i64::from(value));
        }
    }
    rows.text("replica_ids", &sorted(&h.replica_ids));
    let times = [
        ("bound_at", h.bound_ms),
        ("known_from", h.known_from_ms),
        ("started_at", h.started_ms),
        ("terminating_from", h.terminating_from_ms),
        ("last_listed", h.last_listed_ms),
        ("last_checkpoint", h.last_checkpoint_ms),
    ];
    for (column, value) in times {
        if let Some(ms) = value {
            rows.time(column, ms);
        }
    }
    rows.text("end_reason", &h.end_reason);
    rows.text("terminal_phase", &h.terminal_phase);
    rows.text("shape", &h.shape);
    rows.text("flags", &sorted(&h.flags));
    interval.set(&h.source, place, rows);
    Ok(())
}

/// Adds a pod's demand to rows of `demand`. Errors: a code, then words.
pub fn demand(rows: &mut Rows, d: &Demand, place: Option<Place>) -> Result<(), String> {
    let interval =
        Interval { from_ms: d.asked_ms, to_ms: d.ended_ms, observed_at_ms: d.observed_at_ms, revision: d.revision }.checked()?;
    rows.text("cluster", &d.cluster);
    rows.text("pod_uid", &d.pod_uid);
    rows.text("namespace", &d.namespace);
    rows.text("pod", &d.pod);
    rows.text("team", &d.team);
    rows.text("queue", &d.queue);
    rows.text("resource", &d.resource);
    rows.int("gpus", i64::from(d.gpus));
    rows.text("product", &d.product);
    rows.text("outcome", &d.outcome);
    rows.text("node", &d.node);
    interval.set("api", place, rows);
    Ok(())
}

/// Adds a node's inventory to rows of `nodes`: the node, its devices, its spells. Errors: a code, then words.
pub fn node(rows: &mut Rows, n: &Node, place: Option<Place>) -> Result<(), String> {
    let interval = |from_ms: i64, to_ms: Option<i64>| {
        Interval { from_ms, to_ms, observed_at_ms: n.observed_at_ms, revision: n.revision }.checked()
    };
    let whole = interval(n.present_from_ms, n.present_to_ms)?;
    let devices = n.devices.iter().map(|d| {
        let to = [d.present_to_ms, n.present_to_ms].into_iter().flatten().min();
        interval(d.present_from_ms.unwrap_or(n.present_from_ms), to).map(|i| (d, i))
    });
    let devices: Vec<_> = devices.collect::<Result<_, _>>()?;
    let spells: Vec<_> = n.unavailable.iter().map(|u| interval(u.from_ms, u.to_ms).map(|i| (u, i))).collect::<Result<_, _>>()?;

    common(rows, n, "node");
    rows.text("product", &n.product);
    rows.text("region", &n.region);
    rows.text("zone", &n.zone);
    rows.text("provider", &n.provider);
    rows.text("purchase_option", &n.purchase_option);
    rows.text("reservation", &n.reservation);
    for (column, value) in
        [("capacity_gpus", n.capacity_gpus), ("allocatable_gpus", n.allocatable_gpus), ("replicas", n.replicas)]
    {
        if let Some(value) = value {
            rows.int(column, i64::from(value));
        }
    }
    rows.text("telemetry", &n.telemetry);
    if !n.labels.is_empty() {
        let labels = rows.index("labels");
        rows.json_at(labels, &n.labels);
    }
    whole.set(&n.source, place, rows);

    for (device, interval) in devices {
        common(rows, n, "device");
        rows.text("device", &device.device);
        rows.text("parent", &device.parent);
        rows.text("profile", &device.profile);
        // What holds for the node holds for its devices, so that a device's row suffices.
        rows.text("product", if device.product.is_empty() { &n.product } else { &device.product });
        rows.text("region", &n.region);
        rows.text("zone", &n.zone);
        rows.text("provider", &n.provider);
        rows.text("purchase_option", &n.purchase_option);
        rows.text("reservation", &n.reservation);
        for (column, value) in
            [("weight_num", device.weight_num), ("weight_den", device.weight_den), ("replicas", device.replicas.or(n.replicas))]
        {
            if let Some(value) = value {
                rows.int(column, i64::from(value));
            }
        }
        rows.text("telemetry", &n.telemetry);
        interval.set(&n.source, place, rows);
    }
    for (spell, interval) in spells {
        common(rows, n, "unavailable");
        rows.text("device", &spell.device);
        rows.text("reason", &spell.reason);
        interval.set(&n.source, place, rows);
    }
    Ok(())
}

fn common(rows: &mut Rows, n: &Node, kind: &str) {
    rows.text("cluster", &n.cluster);
    rows.text("node", &n.node);
    rows.text("kind", kind);
}

fn sorted(texts: &[String]) -> String {
    let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    texts.sort_unstable();
    texts.join(",")
}
