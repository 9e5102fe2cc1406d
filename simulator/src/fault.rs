//! What goes wrong, and when: spells of nodes, events of devices, single scrapes. Each can be listed for the truth.

use schemas::{HOUR_MS, Timestamp, Window};
use serde::Serialize;

use crate::{
    plan::{DevicePlan, Held, Plan},
    seed::{self, Draw, Seed},
    spec::{Delivery, Down, FixedSpell, FleetSpec, NoPage, PerDay, SpellKind, Spells, Swaps, matches},
};

/// A spell of a node, on whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spell {
    pub kind: SpellKind,
    pub from: i64,
    pub to: i64,
    pub how: NoPage,
}

impl Spell {
    pub fn holds(&self, at: i64) -> bool {
        self.from <= at && at < self.to
    }

    /// Whether it hides the node's page.
    pub fn hides(&self) -> bool {
        self.kind == SpellKind::ExporterDown || self.silent()
    }

    /// Whether the node answers nobody: no page, no kubelet.
    pub fn silent(&self) -> bool {
        matches!(self.kind, SpellKind::Lost | SpellKind::Reclaimed)
    }

    /// The reason of the inventory's unavailable time; none for a spell that only hides the node.
    pub fn unavailable(&self) -> Option<&'static str> {
        match self.kind {
            SpellKind::ExporterDown => None,
            SpellKind::NotReady => Some("not_ready"),
            SpellKind::Cordon => Some("cordoned"),
            SpellKind::Maintenance | SpellKind::GpuSwap => Some("maintenance"),
            SpellKind::Lost | SpellKind::Reclaimed => Some("lost"),
        }
    }
}

/// Random times are drawn slot by slot, so that no logarithm is needed for the gaps between them.
const SLOT_MS: i64 = 600_000;
const SLOTS_PER_DAY: f64 = 144.0;

/// Random instants of `[start, end)` on whole seconds, `per_day` of them a day on average.
fn instants(per_day: f64, start: i64, end: i64, draw: &mut Draw) -> Vec<i64> {
    let per_slot = per_day / SLOTS_PER_DAY;
    let (whole, rest) = (per_slot.floor(), per_slot - per_slot.floor());
    let rest_ppm = (rest * 1e6).round() as u32;
    let mut found = Vec::new();
    let mut slot = start;
    while slot < end {
        let count = whole as u64 + u64::from(draw.chance(rest_ppm));
        let from = found.len();
        found.extend((0..count).map(|_| slot + draw.between(0, SLOT_MS / 1000 - 1) * 1000));
        found[from..].sort_unstable();
        slot += SLOT_MS;
    }
    found.retain(|at| *at < end);
    found
}

/// What follows an XID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum XidEffect {
    /// Nothing that anybody notices.
    None,
    /// The process that it hit dies.
    Fails,
    /// The board is gone until the node is started anew.
    Drains,
}

/// What follows XID `code`: 13, 31, 43, 45 and 94 end a process; 79 is a board that fell off the bus (NVIDIA's XID catalogue).
pub(crate) const fn xid_effect(code: i64) -> XidEffect {
    match code {
        13 | 31 | 43 | 45 | 94 => XidEffect::Fails,
        79 => XidEffect::Drains,
        _ => XidEffect::None,
    }
}

/// How long after a board fell off the bus its node is drained (chosen).
pub(crate) const DRAIN_AFTER_MS: i64 = 60_000;
/// How long a node takes to start anew (chosen).
const RESTART_MS: i64 = 600_000;

/// When node `name`, of which a board fell off the bus at `at`, is cordoned, and when it is back: whole seconds.
pub(crate) fn repair(seed: Seed, name: &str, at: i64) -> (i64, i64) {
    let from = at + DRAIN_AFTER_MS;
    (from, from + 1000 * seed.stream(&format!("repair/{name}/{at}")).between(3_600, 4 * 3_600))
}

/// How long a node is drained before a board is taken out of it (chosen): its pods are gone by then.
const SWAP_DRAIN_MS: i64 = 120_000;
/// How long a board serves at least before chance takes it out again (chosen).
const SERVICE_MS: i64 = 24 * HOUR_MS;

/// A board that is replaced by another: whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Swap {
    /// When its node is drained.
    pub from: i64,
    /// When the old board is taken out: from then on the slot is empty.
    pub out: i64,
    /// When the node is back with the new one.
    pub to: i64,
}

/// When the boards in slot `gpu` of node `name` are replaced, in order and apart.
pub(crate) fn swaps(spec: &FleetSpec, seed: Seed, name: &str, gpu: u32) -> Vec<Swap> {
    let start = spec.start.ms();
    let swap = |from: i64, lasts: i64| Swap { from, out: from + SWAP_DRAIN_MS, to: from + lasts };
    let fixed = spec.faults.windows.iter().filter(|window| window.kind == SpellKind::GpuSwap && window.gpu == Some(gpu));
    let fixed = fixed.filter(|window| matches(&window.nodes, name));
    let mut found: Vec<Swap> = fixed.map(|window| swap(start + window.from.ms(), window.lasts.ms())).collect();
    let Some(Swaps { per_gpu_day, lasts: (shortest, longest) }) = &spec.faults.gpu_swap else {
        found.sort_by_key(|swap| swap.from);
        return found;
    };
    let mut draw = seed.stream(&format!("gpu_swap/{name}/{gpu}"));
    for from in instants(per_gpu_day.0, start, spec.end().ms(), &mut draw) {
        let drawn = swap(from, draw.between(shortest.ms() / 1000, longest.ms() / 1000) * 1000);
        // What is scripted stands, and a board that is new stays for a while.
        if found.iter().all(|other| drawn.to <= other.from || other.to + SERVICE_MS <= drawn.from) {
            found.push(drawn);
        }
    }
    found.sort_by_key(|swap| swap.from);
    found
}

/// What befalls the boards of a node, as far as the node is drained for it.
pub(crate) struct OfBoards<'a> {
    /// XIDs of all its boards, in order.
    pub xids: &'a [(i64, i64)],
    /// Exchanges of all its boards.
    pub swaps: &'a [Swap],
}

/// The spells of node `name`, by their beginning. Spells of one kind do not overlap.
pub(crate) fn spells(spec: &FleetSpec, seed: Seed, name: &str, spot: bool, boards: &OfBoards<'_>) -> Vec<Spell> {
    let (start, end) = (spec.start.ms(), spec.end().ms());
    let faults = &spec.faults;
    let mut found = Vec::new();
    let mut random = |kind: SpellKind, word: &str, spells: &Spells, how: &[NoPage]| {
        let mut draw = seed.stream(&format!("{word}/{name}"));
        for from in instants(spells.per_node_day.0, start, end, &mut draw) {
            let (shortest, longest) = spells.lasts;
            let to = from + draw.between(shortest.ms() / 1000, longest.ms() / 1000) * 1000;
            let how = how[draw.below(how.len() as u64) as usize];
            found.push(Spell { kind, from, to, how });
        }
    };
    if let Some(Down { per_node_day, lasts, how }) = &faults.exporter_down {
        let spells = Spells { per_node_day: *per_node_day, lasts: *lasts };
        random(SpellKind::ExporterDown, "exporter_down", &spells, how);
    }
    if let Some(spells) = &faults.node_not_ready {
        random(SpellKind::NotReady, "not_ready", spells, &[NoPage::Refuse]);
    }
    if let Some(spells) = &faults.cordon {
        random(SpellKind::Cordon, "cordon", spells, &[NoPage::Refuse]);
    }
    if let Some(spells) = &faults.node_death {
        random(SpellKind::Lost, "node_death", spells, &[NoPage::Refuse]);
    }
    if let Some(spells) = faults.spot_reclaim.as_ref().filter(|_| spot) {
        random(SpellKind::Reclaimed, "spot_reclaim", spells, &[NoPage::Refuse]);
    }
    // A board that fell off the bus: the node is drained, and started anew when somebody has looked at it.
    for &(at, code) in boards.xids {
        if xid_effect(code) == XidEffect::Drains {
            let (from, to) = repair(seed, name, at);
            found.push(Spell { kind: SpellKind::Cordon, from, to, how: NoPage::Refuse });
            found.push(Spell { kind: SpellKind::NotReady, from: to - RESTART_MS, to, how: NoPage::Refuse });
        }
    }
    for &Swap { from, out, to } in boards.swaps {
        found.push(Spell { kind: SpellKind::GpuSwap, from, to, how: NoPage::Refuse });
        found.push(Spell { kind: SpellKind::NotReady, from: out.max(to - RESTART_MS), to, how: NoPage::Refuse });
    }
    let of_node = |window: &&FixedSpell| window.kind != SpellKind::GpuSwap && matches(&window.nodes, name);
    for window in faults.windows.iter().filter(of_node) {
        let from = start + window.from.ms();
        found.push(Spell { kind: window.kind, from, to: from + window.lasts.ms(), how: window.how });
    }
    found.sort_by_key(|spell| (spell.from, spell.kind, spell.to));
    let mut apart: Vec<Spell> = Vec::new();
    for spell in found {
        match apart.iter_mut().rev().find(|earlier| earlier.kind == spell.kind && spell.from <= earlier.to) {
            Some(earlier) => earlier.to = earlier.to.max(spell.to),
            None => apart.push(spell),
        }
    }
    apart
}

/// XIDs of a device: instants and codes.
pub(crate) fn xids(spec: &FleetSpec, seed: Seed, uuid: &str) -> Vec<(i64, i64)> {
    const CODES: [(i64, u32); 8] = [(13, 20), (31, 25), (43, 10), (45, 10), (63, 10), (74, 5), (79, 3), (94, 17)];
    let Some(rate) = &spec.faults.xid else { return Vec::new() };
    let mut draw = seed.stream(&format!("xid/{uuid}"));
    let instants = instants(rate.per_gpu_day.0, spec.start.ms(), spec.end().ms(), &mut draw);
    instants.into_iter().map(|at| (at, draw.weighted(&CODES))).collect()
}

/// When the driver of node `name` is to be reloaded.
pub(crate) fn reloads(spec: &FleetSpec, seed: Seed, name: &str) -> Vec<i64> {
    let PerDay(rate) = spec.faults.driver_reload.as_ref().map_or(PerDay(0.0), |reload| reload.per_node_day);
    instants(rate, spec.start.ms(), spec.end().ms(), &mut seed.stream(&format!("reload/{name}")))
}

/// A reading that a page misprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misprint {
    pub field: u16,
    pub blank: bool,
    /// Picks among the ways to be wrong.
    pub way: u64,
}

const LOST: u64 = 0x6c6f_7374;
const BLANK: u64 = 0x626c_616e;
const RANGE: u64 = 0x7261_6e67;
const LATE: u64 = 0x6c61_7465;
const REPEATED: u64 = 0x7265_7074;
const STALE: u64 = 0x7374_616c;

impl Plan {
    fn scrape_cell(&self, at: i64) -> u64 {
        (at - self.start_ms()).div_euclid(self.spec().scrape_interval.ms()) as u64
    }

    /// What a scraper of node `node` gets in place of a page at `at`, if anything; where nothing reads the product, an
    /// empty page.
    pub fn no_page(&self, node: usize, at: Timestamp) -> Option<NoPage> {
        let plan = &self.nodes()[node];
        // Where nothing is read no exporter can be down, but the node can be gone.
        let read = plan.has_telemetry();
        let down = plan.spells.iter().find(|spell| spell.holds(at.ms()) && (spell.silent() || read && spell.hides()));
        if let Some(spell) = down {
            return Some(spell.how);
        }
        if !read {
            return Some(NoPage::Empty);
        }
        let lost = self.spec().faults.lost_scrapes.0;
        (seed::mix_below(plan.key ^ LOST, self.scrape_cell(at.ms()), 1_000_000) < lost.into()).then_some(NoPage::Refuse)
    }

    /// How long after its time the round of node `node` at `at` reaches the log, in ms: 0 where it is not late.
    pub fn late_ms(&self, node: usize, at: Timestamp) -> i64 {
        self.delay_ms(self.spec().faults.late_batches, LATE, node, at).unwrap_or(0)
    }

    /// How long after that it reaches the log once more, in ms; none: it comes once.
    pub fn repeated_ms(&self, node: usize, at: Timestamp) -> Option<i64> {
        self.delay_ms(self.spec().faults.repeated_batches, REPEATED, node, at)
    }

    fn delay_ms(&self, delivery: Option<Delivery>, salt: u64, node: usize, at: Timestamp) -> Option<i64> {
        let Delivery { rate, delay: (shortest, longest) } = delivery?;
        let (key, cell) = (self.nodes()[node].key ^ salt, self.scrape_cell(at.ms()));
        let drawn = seed::mix_below(key, cell, 1_000_000) < rate.0.into();
        let range = shortest.ms().abs_diff(longest.ms()) + 1;
        drawn.then(|| shortest.ms() + seed::mix_below(key, !cell, range) as i64)
    }

    /// The reading that the page at `at` misprints for a device, if any; none that its page has not.
    pub(crate) fn misprint(&self, device: &DevicePlan, at: i64) -> Option<Misprint> {
        let has = |misprint: &Misprint| {
            self.printed.field(misprint.field).is_some() && (misprint.field != 203 || device.instance.is_none())
        };
        self.drawn_misprint(device.key, at).filter(has)
    }

    fn drawn_misprint(&self, device_key: u64, at: i64) -> Option<Misprint> {
        const FIELDS: [u16; 5] = [155, 203, 1002, 1004, 1005];
        const RANGED: [u16; 3] = [203, 1002, 1004];
        let cell = self.scrape_cell(at);
        let faults = &self.spec().faults;
        let drawn = |salt: u64, ppm: u32| ppm > 0 && seed::mix_below(device_key ^ salt, cell, 1_000_000) < ppm.into();
        let pick = |salt: u64, fields: &[u16]| {
            let way = seed::mix(device_key ^ salt, !cell);
            (fields[(way >> 32) as usize % fields.len()], way & 0xffff)
        };
        if drawn(BLANK, faults.blanks.0) {
            let (field, way) = pick(BLANK, &FIELDS);
            return Some(Misprint { field, blank: true, way });
        }
        if drawn(RANGE, faults.out_of_range.0) {
            let (field, way) = pick(RANGE, &RANGED);
            return Some(Misprint { field, blank: false, way });
        }
        None
    }
}

/// By how much the clock of node `name` is ahead of the fleet's, ms; behind where it is negative.
pub(crate) fn skew_ms(spec: &FleetSpec, seed: Seed, name: &str) -> i64 {
    let Some(skew) = &spec.faults.clock_skew else { return 0 };
    let mut draw = seed.stream(&format!("skew/{name}"));
    let off = draw.chance(skew.share.0).then(|| draw.between(skew.within.0.ms(), skew.within.1.ms()));
    off.map_or(0, |ms| if draw.chance(500_000) { ms } else { -ms })
}

/// Until when a page goes on to show a holder that is gone, where it does.
pub(crate) fn stale_until(plan: &Plan, device: &DevicePlan, held: &Held) -> Option<i64> {
    let stale = plan.spec().faults.stale_labels.as_ref().filter(|_| plan.spec().exposition.pod_labels)?;
    let key = device.key ^ STALE;
    let drawn = seed::mix_below(key, held.named as u64, 1_000_000) < stale.share.0.into();
    let (shortest, longest) = (stale.lasts.0.ms(), stale.lasts.1.ms());
    drawn.then(|| held.until + shortest + seed::mix_below(key, !held.named as u64, (longest - shortest + 1) as u64) as i64)
}

/// When a device's page shows a pod that is gone: from its end on.
fn stale_labels<'a>(plan: &'a Plan, device: &'a DevicePlan) -> impl Iterator<Item = (i64, i64)> + 'a {
    let alone = device.held.iter().filter(move |_| device.track.as_ref().is_some_and(|track| track.build.replicas == 1));
    alone.filter_map(move |held| Some((held.until, stale_until(plan, device, held)?)))
}

/// One thing that went wrong, for the truth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Cluster.
    pub cluster: String,
    /// Node.
    pub node: String,
    /// Device, where it is one device's.
    pub device: Option<String>,
    /// exporter_down, lost_scrape, not_ready, cordoned, maintenance, node_death, spot_reclaim, clock_skew, late_batch,
    /// repeated_batch, xid, off_the_bus, gpu_swap, counter_reset, stale_labels, blank, out_of_range.
    pub kind: &'static str,
    /// The XID's code, the misprinted field, the delay, what scrapers got, or the board that came in the device's place.
    pub detail: String,
    /// From when.
    pub from: Timestamp,
    /// Until when; a single event lasts a millisecond, what hits one scrape lasts its interval.
    pub to: Timestamp,
}

/// Everything that went wrong in `window`, by node, time, device and kind.
pub fn faults(plan: &Plan, window: Window) -> Vec<Fault> {
    let (from, to) = (window.from().ms(), window.to().ms());
    let interval = plan.spec().scrape_interval.ms();
    let cells = || {
        let first = (from - plan.start_ms()).div_euclid(interval).max(0);
        (first..).map(|cell| plan.start_ms() + cell * interval).take_while(move |at| *at < to)
    };
    let mut found = Vec::new();
    for (n, node) in plan.nodes().iter().enumerate() {
        let first = found.len();
        if node.skew_ms != 0 {
            let detail = format!("{} ms", node.skew_ms);
            let (cluster, node) = (node.cluster.to_string(), node.name.to_string());
            found.push(Fault { cluster, node, device: None, kind: "clock_skew", detail, from: window.from(), to: window.to() });
        }
        let mut push = |device: Option<&str>, kind: &'static str, detail: String, from: i64, to: i64| {
            found.push(Fault {
                cluster: node.cluster.to_string(),
                node: node.name.to_string(),
                device: device.map(str::to_owned),
                kind,
                detail,
                from: Timestamp::from_ms(from),
                to: Timestamp::from_ms(to),
            });
        };
        for spell in node.spells.iter().filter(|spell| spell.from < to && from < spell.to) {
            match spell.unavailable() {
                Some(_) if spell.kind == SpellKind::Lost => push(None, "node_death", String::new(), spell.from, spell.to),
                Some(_) if spell.kind == SpellKind::Reclaimed => push(None, "spot_reclaim", String::new(), spell.from, spell.to),
                Some(reason) => push(None, reason, String::new(), spell.from, spell.to),
                None => push(None, "exporter_down", spell.how.as_str().to_owned(), spell.from, spell.to),
            }
        }
        let loses = node.has_telemetry() && plan.spec().faults.lost_scrapes.0 > 0;
        for at in cells().take_while(|_| loses) {
            let down = node.spells.iter().any(|spell| spell.hides() && spell.holds(at));
            if !down && plan.no_page(n, Timestamp::from_ms(at)).is_some() {
                push(None, "lost_scrape", NoPage::Refuse.as_str().to_owned(), at, at + interval);
            }
            let late = Some(plan.late_ms(n, Timestamp::from_ms(at))).filter(|delay| *delay > 0);
            let repeated = plan.repeated_ms(n, Timestamp::from_ms(at));
            for (kind, delay) in [("late_batch", late), ("repeated_batch", repeated)] {
                if let Some(delay) = delay {
                    push(None, kind, format!("{delay} ms"), at, at + interval);
                }
            }
        }
        for (b, board) in node.boards.iter().enumerate() {
            if let Some(next) = node.boards.get(b + 1).filter(|next| board.out < to && from < next.from && next.epoch > 0) {
                push(Some(&board.uuid), "gpu_swap", next.uuid.clone(), board.out, next.from);
            }
            for (at, code) in board.xids.iter().filter(|(at, _)| from <= *at && *at < to) {
                push(Some(&board.uuid), "xid", code.to_string(), *at, at + 1);
            }
            for (off, back) in board.lost.iter().filter(|(off, back)| *off < to && from < *back) {
                push(Some(&board.uuid), "off_the_bus", String::new(), *off, (*back).min(board.out));
            }
            for (at, _) in board.resets.iter().filter(|(at, _)| from <= *at && *at < to) {
                push(Some(&board.uuid), "counter_reset", String::new(), *at, at + 1);
            }
        }
        for device in node.devices.iter().filter(|_| node.has_telemetry()) {
            let uuid = Some(&*device.id);
            for (at, until) in stale_labels(plan, device).filter(|(at, until)| *at < to && from < *until) {
                push(uuid, "stale_labels", String::new(), at, until);
            }
            let board = &node.boards[device.board];
            let misprints = plan.spec().faults.blanks.0 > 0 || plan.spec().faults.out_of_range.0 > 0;
            for at in cells().take_while(|_| misprints).filter(|at| board.there(*at)) {
                if let Some(misprint) = plan.misprint(device, at) {
                    let kind = if misprint.blank { "blank" } else { "out_of_range" };
                    push(uuid, kind, misprint.field.to_string(), at, at + interval);
                }
            }
        }
        found[first..].sort_by(|a, b| (a.from, &a.device, a.kind, a.to).cmp(&(b.from, &b.device, b.kind, b.to)));
    }
    found
}
