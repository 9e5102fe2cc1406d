//! A second account, that asks instant by instant, device by device, and knows nothing of sweeps, covers or pieces.
//! Slow and plain on purpose: it reads each rule off the page.

use std::collections::{BTreeMap, BTreeSet};

use ledger::{
    HourRow, hours,
    input::{Device, Held, Holding, Inputs, Readings, Telemetry},
    reading::Reading,
    row::What,
};
use proptest::prelude::*;
use schemas::{
    HOUR_MS,
    status::{Cause, Tier},
};

use crate::worlds::{EDGE, HALF, World, whole, worlds};

/// One whole GPU for one millisecond: divisible by sevenths, by two and three replicas, by up to five pods, and by
/// the parts per million.
const UNIT: i128 = 7 * 60 * 60 * 1_000_000;

/// A row, as (what it says) -> (whole units).
#[derive(Default, Debug, Clone)]
struct Exact {
    held: i128,
    parts: BTreeMap<String, i128>,
    over_share: [i128; 3],
    over: i128,
    covered: i128,
    hot: i128,
    loud: bool,
    flags: BTreeSet<&'static str>,
    tier_flags: [BTreeSet<&'static str>; 3],
}

type Key = (i64, String, bool, String, Kind, String);

/// In the order in which they are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Owner,
    Free,
    Unavailable,
}

/// Whole milliseconds of `parts` that sum to `total`, by the largest remainder.
fn share_out(total: i128, parts: &[i128]) -> Vec<i128> {
    let mut shares: Vec<i128> = parts.iter().map(|p| p.div_euclid(UNIT)).collect();
    let missing = total - shares.iter().sum::<i128>();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|i| (-parts[*i].rem_euclid(UNIT), *i));
    for i in order.into_iter().take(missing as usize) {
        shares[i] += 1;
    }
    shares
}

fn nearest(units: i128) -> i128 {
    (2 * units + UNIT).div_euclid(2 * UNIT)
}

/// A holding with its end after clamping.
#[derive(Clone)]
struct Held1<'a> {
    holding: &'a Holding,
    ids: i128,
    known: i64,
    end: i64,
    cut: Option<i64>,
}

struct Naive<'a> {
    inputs: &'a Inputs,
    horizon: i64,
    /// By device id.
    held: BTreeMap<&'a str, Vec<Held1<'a>>>,
    /// (device, at) -> what it read, all sources together.
    records: BTreeMap<&'a str, BTreeMap<i64, Readings>>,
}

impl<'a> Naive<'a> {
    fn of(inputs: &'a Inputs) -> Self {
        let mut held: BTreeMap<&str, Vec<Held1<'_>>> = BTreeMap::new();
        let mut sorted: Vec<&Holding> = inputs.holdings.iter().collect();
        sorted.sort_by_key(|h| (h.bound, h.pod.uid.clone(), (*h).clone()));
        sorted.dedup();
        for holding in sorted {
            let Held::Device { device, ids, known_from } = &holding.held else { continue };
            let end = holding.end.map_or(i64::MAX, |e| e.ms());
            let bound = holding.bound.ms();
            if end <= bound {
                continue;
            }
            let replicas = i128::from(inputs.devices.iter().find(|d| d.id == *device).unwrap().replicas.get());
            let before = held.entry(&**device).or_default();
            let ids = i128::from(ids.count());
            // The longest held first, until the new one fits.
            for i in 0..before.len() {
                let now: i128 = before.iter().filter(|h| h.end > bound).map(|h| h.ids).sum();
                if now + ids > replicas && before[i].end > bound {
                    before[i].end = bound;
                    before[i].cut = Some(bound);
                }
            }
            before.push(Held1 { holding, ids, known: known_from.map_or(bound, |k| k.ms().max(bound)), end, cut: None });
        }
        let mut records: BTreeMap<&str, BTreeMap<i64, Readings>> = BTreeMap::new();
        for sample in &inputs.samples {
            if inputs.devices.iter().any(|d| d.id == sample.device && d.telemetry == Telemetry::Present) {
                let of_device = records.entry(&sample.device).or_default();
                let merged = of_device.get(&sample.at.ms()).copied().unwrap_or_default().merge(sample.readings);
                of_device.insert(sample.at.ms(), merged);
            }
        }
        Self { inputs, horizon: inputs.rules.horizon_ms, held, records }
    }

    fn present(device: &Device, t: i64) -> bool {
        device.present.iter().any(|s| s.from.ms() <= t && t < s.to.ms())
    }

    fn instances(&self, gpu: &str) -> impl Iterator<Item = &'a Device> {
        self.inputs.devices.iter().filter(move |d| d.parent.as_deref() == Some(gpu))
    }

    /// Present, and no GPU that is split into instances.
    fn usable(&self, device: &Device, t: i64) -> bool {
        Self::present(device, t) && !self.instances(&device.id).any(|i| Self::present(i, t))
    }

    fn holders(&self, device: &str, t: i64) -> Vec<&Held1<'a>> {
        self.held.get(device).map_or(Vec::new(), |h| h.iter().filter(|h| h.known <= t && t < h.end).collect())
    }

    fn holds(&self, device: &str, uid: &str, t: i64) -> bool {
        self.holders(device, t).iter().any(|h| &*h.holding.pod.uid == uid)
    }

    /// The reason that names the time, and whether any is an unready one.
    fn unavailable(device: &'a Device, t: i64) -> (Option<&'a str>, bool) {
        let active = device.unavailable.iter().filter(|u| u.span.from.ms() <= t && t < u.span.to.ms());
        let named = active.clone().min_by_key(|u| (u.span.from, u.reason.clone())).map(|u| &*u.reason);
        (named, active.clone().any(|u| !["cordoned", "maintenance"].contains(&&*u.reason)))
    }

    /// Why an owner's instant was not seen, where no sample covers it.
    fn cause(&self, device: &Device, uid: &str, t: i64) -> Cause {
        // Since when it has held the device without a break.
        let mut since = t;
        while self.holds(&device.id, uid, since - 1) {
            since -= 1;
            if since < EDGE - 1000 {
                break;
            }
        }
        let last = |device: &str| self.records.get(device).and_then(|r| r.range(..=t).next_back()).map(|(at, _)| *at);
        let mine = last(&device.id);
        if t < since + self.horizon && mine.is_none_or(|m| m < since) {
            return Cause::Handover;
        }
        let on_node = self.inputs.devices.iter().filter(|d| d.node == device.node);
        let answer = on_node.filter_map(|d| last(&d.id)).max();
        let failures = self.inputs.failed_scrapes.iter().filter(|f| f.node == device.node && f.at.ms() <= t);
        let failure = failures.map(|f| f.at.ms()).max();
        if failure.is_some_and(|f| answer.is_none_or(|a| a < f) && t < f + self.horizon) {
            Cause::ExporterDown
        } else if answer.is_some_and(|a| mine.is_none_or(|m| m < a) && t < a + self.horizon) {
            Cause::Stale
        } else {
            Cause::Gap
        }
    }

    /// One tier of a record: parts per million, or why not, and what flags a use of it sets.
    fn tier(&self, device: &Device, tier: Tier, r: &Readings) -> (Result<i128, Cause>, BTreeSet<&'static str>) {
        let util = if device.parent.is_some() { Reading::Absent } else { r.gpu_util };
        let valid = |r: &Reading| if let Reading::Valid(v) = r { Some(*v) } else { None };
        let fields = match tier {
            Tier::Busy => vec![util, r.gr_active],
            Tier::Sm => vec![r.sm_active],
            Tier::Effective => vec![r.tensor_active, r.dram_active],
        };
        let used: Vec<_> = match tier {
            Tier::Busy => fields.iter().filter_map(valid).take(1).collect(),
            Tier::Sm => fields.iter().filter_map(valid).collect(),
            Tier::Effective => fields.iter().filter_map(valid).collect::<Vec<_>>(),
        };
        if used.is_empty() || (tier == Tier::Effective && used.len() < 2) {
            let has = |r| fields.contains(&r);
            let cause = match () {
                () if has(Reading::OutOfRange) => Cause::OutOfRange,
                () if has(Reading::Sentinel) => Cause::Sentinel,
                () => Cause::FieldAbsent,
            };
            return (Err(cause), BTreeSet::new());
        }
        let mut flags = BTreeSet::new();
        for value in &used {
            if value.conflict() {
                flags.insert("conflict");
            }
            if value.clipped() {
                flags.insert(if device.parent.is_some() { "mig_overrange" } else { "overrange_clipped" });
            }
        }
        let ppm = |i: usize| i128::from(used[i].ppm());
        let value = if tier == Tier::Effective { ppm(0).max((2 * ppm(1) * 5 + 4) / 8).min(1_000_000) } else { ppm(0) };
        (Ok(value), flags)
    }

    /// What one instant adds to one owner's row.
    fn see(&self, row: &mut Exact, device: &Device, uid: &str, held: i128, ids: i128, t: i64) {
        let miss = |cause: Cause, row: &mut Exact| {
            for tier in Tier::ALL {
                *row.parts.entry(format!("{tier} {cause}")).or_default() += held;
            }
        };
        if device.telemetry == Telemetry::None {
            return miss(Cause::NoSource, row);
        }
        let record = self.records.get(&*device.id).and_then(|r| r.range(..=t).next_back());
        let Some((at, readings)) = record.filter(|(at, _)| t < **at + self.horizon && self.holds(&device.id, uid, **at)) else {
            let cause = self.cause(device, uid, t);
            return miss(cause, row);
        };
        let pods: BTreeSet<_> = self.holders(&device.id, *at).iter().map(|h| &h.holding.pod.uid).collect();
        let zero = |r: Reading| matches!(r, Reading::Valid(v) if v.is_zero());
        row.covered += 1;
        row.loud |= !(zero(readings.gr_active) && zero(readings.sm_active));
        let hot = device.parent.is_none() && matches!(readings.gpu_util, Reading::Valid(v) if v.at_least(20));
        row.hot += i128::from(hot);
        let replicas = i128::from(device.replicas.get());
        for tier in Tier::ALL {
            let (value, flags) = self.tier(device, *tier, readings);
            match value {
                Err(cause) => *row.parts.entry(format!("{tier} {cause}")).or_default() += held,
                Ok(ppm) => {
                    let weight = UNIT * i128::from(device.weight.num()) / i128::from(device.weight.den());
                    let share = weight * ids / replicas;
                    let activity = weight / 1_000_000 * ppm / pods.len() as i128;
                    *row.parts.entry(format!("{tier} utilized")).or_default() += activity.min(share);
                    *row.parts.entry(format!("{tier} stranded")).or_default() += share - activity.min(share);
                    row.over_share[*tier as usize] += (activity - share).max(0);
                    row.tier_flags[*tier as usize].extend(flags);
                    if activity > share {
                        row.tier_flags[*tier as usize].insert("over_share");
                    }
                }
            }
        }
    }

    /// One hour, as exact sums by row.
    fn hour(&self, from: i64, to: i64) -> (BTreeMap<Key, Exact>, BTreeMap<String, i128>) {
        let hour = from.div_euclid(HOUR_MS) * HOUR_MS;
        let mut rows: BTreeMap<Key, Exact> = BTreeMap::new();
        let mut split_ms: BTreeMap<String, i128> = BTreeMap::new();
        let key = |node: &str, device: Option<&str>, kind, name: &str| {
            (hour, node.to_owned(), device.is_none(), device.unwrap_or("").to_owned(), kind, name.to_owned())
        };
        for t in from..to {
            let mut left: BTreeMap<&'a str, [i128; 3]> = BTreeMap::new();
            for device in &self.inputs.devices {
                if !self.usable(device, t) {
                    continue;
                }
                let one =
                    UNIT * i128::from(device.weight.num()) / i128::from(device.weight.den()) / i128::from(device.replicas.get());
                let (named, unready) = Self::unavailable(device, t);
                let holders = self.holders(&device.id, t);
                let mut by_pod: BTreeMap<&str, i128> = BTreeMap::new();
                for h in &holders {
                    let uid = &*h.holding.pod.uid;
                    *by_pod.entry(uid).or_default() += h.ids;
                    let row = rows.entry(key(&device.node, Some(&device.id), Kind::Owner, uid)).or_default();
                    row.held += one * h.ids;
                    let mut memo =
                        |name: &str, when: bool| *row.parts.entry(name.into()).or_default() += if when { one * h.ids } else { 0 };
                    memo("pre_start", h.holding.started.is_none_or(|s| t < s.ms()));
                    memo("terminating", h.holding.terminating_from.is_some_and(|s| s.ms() <= t));
                    memo("on_unready", unready);
                    if h.cut.is_some_and(|cut| (from..to).contains(&(cut - 1))) {
                        row.flags.insert("end_clamped");
                    }
                    if device.replicas.get() > 1 {
                        row.flags.insert("shared");
                    }
                }
                for (uid, ids) in &by_pod {
                    let row = rows.get_mut(&key(&device.node, Some(&device.id), Kind::Owner, uid)).unwrap();
                    self.see(row, device, uid, one * ids, *ids, t);
                }
                let idle = one * (i128::from(device.replicas.get()) - by_pod.values().sum::<i128>());
                if idle > 0 {
                    let (kind, name, pool) = match named {
                        Some(reason) => (Kind::Unavailable, reason, if unready { 2 } else { 1 }),
                        None => (Kind::Free, if holders.is_empty() { "unheld" } else { "shared_slack" }, 0),
                    };
                    rows.entry(key(&device.node, Some(&device.id), kind, name)).or_default().held += idle;
                    left.entry(&device.node).or_default()[pool] += idle;
                }
            }
            let present = self.inputs.devices.iter().filter(|d| d.parent.is_some() && Self::present(d, t));
            let gpus: BTreeMap<&str, &str> = present.map(|d| (d.parent.as_deref().unwrap(), &*d.node)).collect();
            for (gpu, node) in gpus {
                let used: i128 =
                    self.instances(gpu).filter(|i| Self::present(i, t)).map(|i| UNIT * i128::from(i.weight.num()) / 7).sum();
                *split_ms.entry(gpu.to_owned()).or_default() += 1;
                if used < UNIT {
                    rows.entry(key(node, Some(gpu), Kind::Unavailable, "mig_orphan")).or_default().held += UNIT - used;
                }
            }
            self.by_number(t, &mut left, &mut |node, uid, add: &dyn Fn(&mut Exact)| {
                add(rows.entry(key(node, None, Kind::Owner, uid)).or_default())
            });
        }
        (rows, split_ms)
    }

    /// Holdings by number at one instant, in their order, from what is left on their node.
    fn by_number(&self, t: i64, left: &mut BTreeMap<&'a str, [i128; 3]>, row: &mut dyn FnMut(&str, &str, &dyn Fn(&mut Exact))) {
        let mut wants: Vec<((i64, &str, Option<&str>), &Holding, i128)> = Vec::new();
        let counted: BTreeSet<&Holding> = self.inputs.holdings.iter().filter(|h| matches!(h.held, Held::Count { .. })).collect();
        let something = |h: &Holding| h.end.is_none_or(|end| h.bound < end);
        for holding in &counted {
            let Held::Count { count, weight } = holding.held else { continue };
            if holding.bound.ms() <= t && holding.end.is_none_or(|end| t < end.ms()) {
                let named = self.held.iter().flat_map(|(device, held)| held.iter().map(move |h| (device, h)));
                let named = named.filter(|(device, h)| {
                    let node = &self.inputs.devices.iter().find(|d| *d.id == ***device).unwrap().node;
                    *node == holding.node && h.holding.pod.uid == holding.pod.uid && h.known <= t
                });
                let number = (i128::from(count) - named.map(|(_, h)| h.ids).sum::<i128>()).max(0);
                let units = number * UNIT * i128::from(weight.num()) / i128::from(weight.den());
                wants.push(((holding.bound.ms(), &holding.pod.uid, None), holding, units));
            }
        }
        for (device, held) in &self.held {
            let of = self.inputs.devices.iter().find(|d| *d.id == **device).unwrap();
            for h in held {
                let same = |c: &&&Holding| c.pod.uid == h.holding.pod.uid && c.node == of.node && something(c);
                if h.holding.bound.ms() <= t && t < h.known.min(h.end) && counted.iter().find(same).is_none() {
                    let one = UNIT * i128::from(of.weight.num()) / i128::from(of.weight.den()) / i128::from(of.replicas.get());
                    wants.push(((h.holding.bound.ms(), &h.holding.pod.uid, Some(device)), h.holding, one * h.ids));
                }
            }
        }
        wants.sort_by_key(|(key, ..)| *key);
        for (_, holding, mut wanted) in wants {
            let pools = left.entry(&holding.node).or_default();
            let mut got = [0; 3];
            if wanted == 0 {
                continue;
            }
            for i in 0..3 {
                got[i] = wanted.min(pools[i]);
                pools[i] -= got[i];
                wanted -= got[i];
            }
            let all: i128 = got.iter().sum();
            row(&holding.node, &holding.pod.uid, &|row: &mut Exact| {
                row.held += all;
                row.over += wanted;
                let mut add = |name: &str, units: i128| *row.parts.entry(name.into()).or_default() += units;
                add("free", got[0]);
                add("unavailable", got[1] + got[2]);
                add("on_unready", got[2]);
                add("pre_start", if holding.started.is_none_or(|s| t < s.ms()) { all } else { 0 });
                add("terminating", if holding.terminating_from.is_some_and(|s| s.ms() <= t) { all } else { 0 });
                if wanted > 0 {
                    row.flags.insert("overcommitted");
                }
            });
        }
    }

    /// Rounds one hour and shows it as lines.
    fn lines(&self, from: i64, to: i64) -> Vec<String> {
        let (rows, split_ms) = self.hour(from, to);
        // Level 1.
        let mut capacity: BTreeMap<String, i128> = BTreeMap::new();
        let exact = |device: &str, orphan: bool| -> i128 {
            rows.iter().filter(|(k, _)| !k.2 && k.3 == device && (k.5 == "mig_orphan") == orphan).map(|(_, r)| r.held).sum()
        };
        for device in &self.inputs.devices {
            capacity.insert(device.id.to_string(), nearest(exact(&device.id, false)));
        }
        for (gpu, ms) in split_ms {
            let mut instances: Vec<&Device> = self.instances(&gpu).collect();
            instances.sort_by_key(|d| d.id.clone());
            let mut parts: Vec<i128> = instances.iter().map(|d| exact(&d.id, false)).collect();
            parts.push(exact(&gpu, true));
            let shares = share_out(ms, &parts);
            for (instance, share) in instances.iter().zip(&shares) {
                capacity.insert(instance.id.to_string(), *share);
            }
            *capacity.entry(gpu).or_default() += shares[instances.len()];
        }
        // Level 2, then 3. Keys are in the order of the rule: owner, free, unavailable, each by name.
        let mut lines = Vec::new();
        let mut of_device: BTreeMap<(i64, String, bool, String), Vec<(&Key, &Exact)>> = BTreeMap::new();
        for (key, row) in &rows {
            of_device.entry((key.0, key.1.clone(), key.2, key.3.clone())).or_default().push((key, row));
        }
        for ((_, node, by_number, device), rows) in of_device {
            if by_number {
                let (mut free, mut unavailable) = (None, None);
                for (key, row) in rows {
                    let ms = nearest(row.held);
                    let taken = share_out(ms, &[row.parts["free"], row.parts["unavailable"]]);
                    for (sum, part, exact) in
                        [(&mut free, taken[0], row.parts["free"]), (&mut unavailable, taken[1], row.parts["unavailable"])]
                    {
                        if exact > 0 {
                            *sum = Some(sum.unwrap_or(0) + part);
                        }
                    }
                    lines.push(self.owner_line(key, row, ms));
                }
                for (kind, sum) in [("free", free), ("unavailable", unavailable)] {
                    if let Some(sum) = sum {
                        lines.push(format!("{from} {node} - {kind} held_unknown {}", -sum));
                    }
                }
                continue;
            }
            let parts: Vec<i128> = rows.iter().map(|(_, r)| r.held).collect();
            for ((key, row), ms) in rows.iter().zip(share_out(capacity[&device], &parts)) {
                match key.4 {
                    Kind::Owner => lines.push(self.owner_line(key, row, ms)),
                    Kind::Free => lines.push(format!("{from} {node} {device} free {} {ms}", key.5)),
                    Kind::Unavailable => lines.push(format!("{from} {node} {device} unavailable {} {ms}", key.5)),
                }
            }
        }
        lines.iter().map(|line| line.replacen(&from.to_string(), &(from.div_euclid(HOUR_MS) * HOUR_MS).to_string(), 1)).collect()
    }

    fn owner_line(&self, (hour, node, by_number, device, _, uid): &Key, row: &Exact, ms: i128) -> String {
        let part = |name: &str| row.parts.get(name).copied().unwrap_or(0);
        let memo = |name: &str| share_out(ms, &[part(name), row.held - part(name)])[0];
        let stuck = row.covered > 0 && !row.loud && 2 * row.hot >= row.covered;
        let mut flags = row.flags.clone();
        let mut tiers = Vec::new();
        for tier in Tier::ALL {
            if *by_number {
                tiers.push(format!("{tier} 0+0 no_device_yet={ms} over 0"));
                continue;
            }
            let mut seen = [part(&format!("{tier} utilized")), part(&format!("{tier} stranded"))];
            let mut causes: BTreeMap<&str, i128> =
                Cause::ALL.iter().map(|c| (c.as_str(), part(&format!("{tier} {c}")))).collect();
            let mut over = nearest(row.over_share[*tier as usize]);
            if stuck && *tier != Tier::Busy {
                *causes.get_mut("suspect").unwrap() += seen[0] + seen[1];
                (seen, over) = ([0, 0], 0);
            } else {
                flags.extend(&row.tier_flags[*tier as usize]);
            }
            causes.retain(|_, units| *units > 0);
            let parts: Vec<i128> = seen.iter().chain(causes.values()).copied().collect();
            let shares = share_out(ms, &parts);
            let by: Vec<String> =
                causes.keys().zip(&shares[2..]).filter(|(_, ms)| **ms > 0).map(|(c, ms)| format!("{c}={ms}")).collect();
            tiers.push(format!("{tier} {}+{} {} over {over}", shares[0], shares[1], by.join(" ")));
        }
        if stuck {
            flags.insert("profiling_stuck");
        }
        let memos = [memo("pre_start"), memo("terminating"), memo("on_unready"), nearest(row.over)];
        let device = if *by_number { "-" } else { device };
        format!("{hour} {node} {device} owner {uid} {ms} {tiers:?} {memos:?} {flags:?}")
    }
}

/// The engine's rows as the same lines.
fn engine_line(row: &HourRow) -> String {
    let place = format!("{} {} {}", row.hour_start.ms(), row.place.node, row.place.device.as_deref().unwrap_or("-"));
    match &row.what {
        What::Free(reason) => format!("{place} free {reason} {}", row.ms),
        What::Unavailable(reason) => format!("{place} unavailable {reason} {}", row.ms),
        What::Owner(o) => {
            let tier = |tier: &Tier| {
                let time = &o.tiers[*tier];
                let causes = Cause::ALL.iter().filter(|c| time.unobserved_by(**c) > 0);
                let by: Vec<String> = causes.map(|c| format!("{c}={}", time.unobserved_by(*c))).collect();
                let by =
                    if row.place.device.is_none() { format!("no_device_yet={}", time.unobserved_ms()) } else { by.join(" ") };
                format!("{tier} {}+{} {by} over {}", time.utilized_ms, time.stranded_ms, time.over_share_ms)
            };
            let tiers: Vec<String> = Tier::ALL.iter().map(tier).collect();
            let memos = [o.pre_start_ms, o.terminating_ms, o.on_unready_ms, o.overcommitted_ms];
            let flags: BTreeSet<&str> = o.flags.iter().map(|flag| flag.as_str()).collect();
            format!("{place} owner {} {} {tiers:?} {memos:?} {flags:?}", o.pod.uid, row.ms)
        }
    }
}

fn check(World(inputs): &World) {
    let naive = Naive::of(inputs);
    let mut expected = naive.lines(EDGE - HALF, EDGE);
    expected.extend(naive.lines(EDGE, EDGE + HALF));
    let mut got: Vec<String> = hours(inputs, whole()).unwrap().iter().map(engine_line).collect();
    got.sort();
    expected.sort();
    let missing: Vec<_> = expected.iter().filter(|line| !got.contains(line)).collect();
    let extra: Vec<_> = got.iter().filter(|line| !expected.contains(line)).collect();
    assert!(missing.is_empty() && extra.is_empty(), "instant by instant:\n{missing:#?}\nthe engine:\n{extra:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whole_gpus_come_out_as_instant_by_instant(world in worlds(false, false)) {
        check(&world);
    }

    #[test]
    fn shared_and_split_gpus_too(world in worlds(true, true)) {
        check(&world);
    }
}
