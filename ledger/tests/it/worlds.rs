//! Random small worlds: half a second around a UTC hour edge, two nodes, every rule in reach.

use std::{fmt, num::NonZeroU32};

use ledger::{
    input::{
        Device, FailedScrape, Held, Holding, Ids, Inputs, Pod, Ratio, Readings, Rules, Sample, Span, Telemetry, Text, Unavailable,
    },
    reading::{Reading, Unit},
    row::FlagSet,
};
use proptest::{collection::vec, option, prelude::*, sample::select};
use schemas::{Timestamp, Window, status::HoldingSource};

/// The hour edge in the middle of every world.
pub const EDGE: i64 = 490_000 * 3_600_000;
/// How far a world's window reaches to either side of it.
pub const HALF: i64 = 150;

pub fn at(ms: i64) -> Timestamp {
    Timestamp::from_ms(ms)
}

pub fn window(from: i64, to: i64) -> Window {
    Window::new(at(from), at(to)).unwrap()
}

pub fn whole() -> Window {
    window(EDGE - HALF, EDGE + HALF)
}

/// Inputs that show as few lines as they can.
#[derive(Clone)]
pub struct World(pub Inputs);

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inputs { rules, devices, holdings, samples, failed_scrapes, .. } = &self.0;
        writeln!(f, "times are relative to the hour edge {EDGE}; {rules:?}")?;
        let ms = |t: Timestamp| t.ms().saturating_sub(EDGE);
        for d in devices {
            let spans: Vec<_> = d.present.iter().map(|s| (ms(s.from), ms(s.to))).collect();
            let down: Vec<_> = d.unavailable.iter().map(|u| (ms(u.span.from), ms(u.span.to), &u.reason)).collect();
            let weight = (d.weight.num(), d.weight.den());
            writeln!(
                f,
                "{} on {} weight {weight:?} replicas {} {:?} present {spans:?} unavailable {down:?}",
                d.id, d.node, d.replicas, d.telemetry
            )?;
        }
        for h in holdings {
            let opt = |t: Option<Timestamp>| t.map(ms);
            writeln!(
                f,
                "{} on {} {:?} bound {} started {:?} terminating {:?} end {:?}",
                h.pod.uid,
                h.node,
                h.held,
                ms(h.bound),
                opt(h.started),
                opt(h.terminating_from),
                opt(h.end)
            )?;
        }
        for s in samples {
            writeln!(f, "{} at {} {:?}", s.device, ms(s.at), s.readings)?;
        }
        for s in failed_scrapes {
            writeln!(f, "failed on {} at {}", s.node, ms(s.at))?;
        }
        Ok(())
    }
}

fn instant() -> impl Strategy<Value = i64> {
    (-HALF - 100..HALF + 100).prop_map(|ms| EDGE + ms)
}

/// The devices that a world may have: id, node, parent, weight in sevenths.
pub const CHOICE: [(&str, &str, Option<&str>, u32); 7] = [
    ("A", "n1", None, 7),
    ("B", "n1", None, 7),
    ("C", "n2", None, 7),
    ("M", "n1", None, 7),
    ("M/1", "n1", Some("M"), 3),
    ("M/2", "n1", Some("M"), 2),
    ("M/3", "n1", Some("M"), 1),
];

/// Presence, replicas, whether there is telemetry, and spells of unavailability with their reasons.
type Parts = (Option<(i64, i64)>, u32, bool, Vec<(i64, i64, &'static str)>);

fn device(shared: bool) -> impl Strategy<Value = Parts> {
    let reason = select(vec!["not_ready", "cordoned", "maintenance", "lost"]);
    let replicas = if shared { prop_oneof![3 => Just(1_u32), 1 => 2..4_u32].boxed() } else { Just(1).boxed() };
    (
        option::weighted(0.3, (instant(), instant())),
        replicas,
        prop::bool::weighted(0.9),
        vec((instant(), instant(), reason), 0..3),
    )
}

fn devices(split: bool, shared: bool) -> impl Strategy<Value = Vec<Device>> {
    let last = if split { CHOICE.len() } else { 3 };
    let chosen: Vec<usize> = (0..last).collect();
    (prop::sample::subsequence(chosen, 1..=last), vec(device(shared), last)).prop_map(|(chosen, made)| {
        let one = |i: usize| {
            let (id, node, parent, sevenths) = CHOICE[i];
            let (present, replicas, telemetry, down) = made[i].clone();
            Device {
                parent: parent.map(Text::from),
                profile: parent.map(|_| format!("{sevenths}g").into()),
                weight: Ratio::new(sevenths, 7).unwrap(),
                replicas: NonZeroU32::new(replicas).unwrap(),
                telemetry: if telemetry { Telemetry::Present } else { Telemetry::None },
                present: present.map_or(vec![Span::ALWAYS], |(from, to)| vec![Span { from: at(from), to: at(to) }]),
                unavailable: down
                    .into_iter()
                    .map(|(from, to, reason)| Unavailable { span: Span { from: at(from), to: at(to) }, reason: reason.into() })
                    .collect(),
                ..Device::new(id, node)
            }
        };
        chosen.into_iter().map(one).collect()
    })
}

fn holding(devices: Vec<Device>) -> impl Strategy<Value = Holding> {
    let some = |weight: f64| option::weighted(weight, instant());
    let counted = (0..3_u32, select(vec![1_u32, 7])).prop_map(|(count, sevenths)| (None, count, sevenths));
    let device = (select(devices), 1..3_u32).prop_map(|(device, ids)| (Some(device), ids, 7));
    let held = prop_oneof![1 => counted, 4 => device];
    let uid = select(vec!["u0", "u1", "u2", "u3", "u4"]);
    (uid, held, instant(), some(0.3), some(0.8), some(0.2), some(0.6), select(vec!["n1", "n2"])).prop_map(
        |(uid, (device, number, sevenths), bound, known_from, started, terminating_from, end, node)| Holding {
            pod: Pod {
                uid: uid.into(),
                namespace: "surf".into(),
                name: format!("pod-{uid}").into(),
                team: None,
                workload: None,
                queue: None,
            },
            node: device.as_ref().map_or(node.into(), |d| d.node.clone()),
            held: match device {
                Some(device) => Held::Device {
                    ids: Ids::Number(NonZeroU32::new(number).unwrap().min(device.replicas)),
                    device: device.id,
                    known_from: known_from.map(at),
                },
                None => Held::Count { count: number, weight: Ratio::new(sevenths, 7).unwrap() },
            },
            bound: at(bound),
            started: started.map(at),
            terminating_from: terminating_from.map(at),
            end: end.map(at),
            source: HoldingSource::Api,
            flags: FlagSet::EMPTY,
        },
    )
}

fn sample(devices: Vec<Device>) -> impl Strategy<Value = Sample> {
    let ratio = || {
        option::weighted(
            0.85,
            select(vec!["0", "0", "0.25", "0.333333", "1", "0.1234565", "0.8", "1.005", "1.2", "NaN", "-1", "2147483632"]),
        )
    };
    let percent = option::weighted(0.7, select(vec!["0", "20", "19.9999", "99", "100", "101", "140737488355328"]));
    (select(devices), instant(), percent, ratio(), ratio(), ratio(), ratio()).prop_map(
        |(device, ms, util, gr, sm, tensor, dram)| {
            let unit = if device.parent.is_some() { Unit::InstanceRatio } else { Unit::Ratio };
            let read = |text: Option<&str>, unit| text.map_or(Reading::Absent, |text| Reading::parse(text, unit).unwrap());
            Sample {
                device: device.id,
                at: at(ms),
                readings: Readings {
                    gpu_util: read(util, Unit::Percent),
                    gr_active: read(gr, unit),
                    sm_active: read(sm, unit),
                    tensor_active: read(tensor, unit),
                    dram_active: read(dram, unit),
                    energy_mj: None,
                    fb_used_mib: None,
                },
                flags: FlagSet::EMPTY,
            }
        },
    )
}

fn failed() -> impl Strategy<Value = FailedScrape> {
    (select(vec!["n1", "n2"]), instant()).prop_map(|(node, ms)| FailedScrape { node: node.into(), at: at(ms) })
}

/// Worlds; with `split`, GPUs with instances too, with `shared`, replicas too.
pub fn worlds(split: bool, shared: bool) -> impl Strategy<Value = World> {
    let rest = move |devices: Vec<Device>| {
        let holdings = vec(holding(devices.clone()), 0..9);
        let samples = vec(sample(devices.clone()), 0..25);
        (Just(devices), holdings, samples, vec(failed(), 0..6), 5..90_i64)
    };
    devices(split, shared).prop_flat_map(rest).prop_map(|(devices, holdings, samples, failed_scrapes, horizon_ms)| {
        let mut counted = std::collections::BTreeSet::new();
        // At most one holding by number of a pod on a node.
        let keep = |h: &Holding| matches!(h.held, Held::Device { .. }) || counted.insert((h.pod.uid.clone(), h.node.clone()));
        let holdings = holdings.into_iter().filter(keep).collect();
        World(Inputs {
            rules: Rules { horizon_ms, ..Rules::default() },
            devices,
            holdings,
            samples,
            failed_scrapes,
            ..Inputs::default()
        })
    })
}
