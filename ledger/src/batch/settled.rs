//! Settled holdings as batches of `settled_holdings`, in the schema's column order.

use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch};

use super::{
    BatchError,
    rows::{Made, build, ints, places, texts, times},
};
use crate::{
    input::{Pod, Ratio, Rules, Telemetry},
    row::FlagSet,
    settled::{Settled, SettledRow},
};

/// One cluster's settled holdings as a batch of `settled_holdings`, in the order given.
pub fn settled_rows(cluster: &str, rows: &[SettledRow]) -> Result<RecordBatch, BatchError> {
    let mut made = Made::new();
    texts(&mut made, "cluster", rows, |_| Some(cluster.into()));
    times(&mut made, "hour_start", rows.iter().map(|row| row.hour_start));
    times(&mut made, "from_at", rows.iter().map(|row| row.from));
    times(&mut made, "to_at", rows.iter().map(|row| row.to));
    places(&mut made, rows, |row| &row.place);
    texts(&mut made, "kind", rows, |row| Some(kind(&row.what).into()));
    texts(&mut made, "reason", rows, |row| match &row.what {
        Settled::Free { reason, .. } | Settled::Unavailable { reason, .. } => Some((&**reason).into()),
        Settled::Device | Settled::Held { .. } | Settled::Owner { .. } | Settled::Number { .. } => None,
    });
    owners(&mut made, rows);
    ids(&mut made, rows);
    measures(&mut made, rows);
    taken(&mut made, rows);
    build("settled_holdings", made)
}

fn kind(what: &Settled) -> &'static str {
    match what {
        Settled::Device => "device",
        Settled::Held { .. } => "held",
        Settled::Owner { .. } | Settled::Number { .. } => "owner",
        Settled::Free { .. } => "free",
        Settled::Unavailable { .. } => "unavailable",
    }
}

fn pod(what: &Settled) -> Option<&Pod> {
    match what {
        Settled::Owner { pod, .. } | Settled::Number { pod, .. } => Some(pod),
        Settled::Device | Settled::Held { .. } | Settled::Free { .. } | Settled::Unavailable { .. } => None,
    }
}

fn owners(made: &mut Made, rows: &[SettledRow]) {
    texts(made, "pod_uid", rows, |row| match &row.what {
        Settled::Held { pod_uid, .. } => Some((&**pod_uid).into()),
        what => pod(what).map(|pod| (&*pod.uid).into()),
    });
    let mut label =
        |name, get: fn(&Pod) -> Option<&str>| texts(made, name, rows, move |row| get(pod(&row.what)?).map(Into::into));
    label("namespace", |p| Some(&p.namespace));
    label("pod", |p| Some(&p.name));
    label("workload", |p| p.workload.as_deref());
    label("team", |p| p.team.as_deref());
    label("queue", |p| p.queue.as_deref());
    let said = |row: &SettledRow| match &row.what {
        Settled::Owner { source, flags, .. } | Settled::Number { source, flags, .. } => (Some(*source), *flags),
        Settled::Free { flags, .. } | Settled::Unavailable { flags, .. } => (None, *flags),
        Settled::Device | Settled::Held { .. } => (None, FlagSet::EMPTY),
    };
    texts(made, "allocation_source", rows, |row| Some(said(row).0?.as_str().into()));
    texts(made, "flags", rows, |row| {
        Some(said(row).1.to_string().into()).filter(|flags: &std::borrow::Cow<'_, str>| !flags.is_empty())
    });
    let held_from = rows.iter().map(|row| match &row.what {
        Settled::Owner { held_from, .. } => Some(held_from.micros()),
        _ => None,
    });
    let held_from: arrow::array::TimestampMicrosecondArray = held_from.collect();
    made.insert("held_from".into(), Arc::new(held_from.with_timezone("UTC")));
}

fn ids(made: &mut Made, rows: &[SettledRow]) {
    let ids = |row: &SettledRow| match row.what {
        Settled::Owner { ids, .. } | Settled::Free { ids, .. } | Settled::Unavailable { ids, .. } => i64::from(ids),
        Settled::Device | Settled::Held { .. } | Settled::Number { .. } => 0,
    };
    ints(made, "ids", rows.iter().map(|row| Some(ids(row))));
    for (i, name) in ["pre_start_ids", "terminating_ids", "on_unready_ids"].into_iter().enumerate() {
        let memo = |row: &SettledRow| match &row.what {
            Settled::Owner { memos, .. } => Some(i64::from(memos[i])),
            // Nothing tells ids apart there: 1 where all of it is.
            Settled::Number { pre_start, terminating, .. } => [Some(*pre_start), Some(*terminating), None][i].map(i64::from),
            Settled::Device | Settled::Held { .. } | Settled::Free { .. } | Settled::Unavailable { .. } => None,
        };
        ints(made, name, rows.iter().map(memo));
    }
    let pods = |row: &SettledRow| match &row.what {
        Settled::Held { pods, .. } => Some(i64::from(*pods)),
        _ => None,
    };
    ints(made, "pods", rows.iter().map(pods));
    let orphan = |row: &SettledRow| match &row.what {
        Settled::Unavailable { orphan, .. } => Some(*orphan),
        _ => None,
    };
    made.insert("orphan".into(), Arc::new(rows.iter().map(orphan).collect::<BooleanArray>()));
}

fn measures(made: &mut Made, rows: &[SettledRow]) {
    let mut figure =
        |name: &str, get: fn(&crate::settled::Measure) -> Option<i64>| ints(made, name, rows.iter().map(|row| get(&row.measure)));
    figure("replicas", |m| m.replicas.map(i64::from));
    figure("weight_num", |m| Some(m.weight?.0));
    figure("weight_den", |m| Some(m.weight?.1));
    figure("unit_num", |m| m.unit_num);
    figure("unit_den", |m| m.unit_den);
    figure("split_lcm", |m| m.split_lcm);
    figure("horizon_ms", |m| Some(m.rules.horizon_ms));
    let unlike = |ratio: Ratio, default: Ratio| (ratio != default).then(|| (i64::from(ratio.num()), i64::from(ratio.den())));
    let tensor = |row: &SettledRow| unlike(row.measure.rules.tensor_ceiling, Rules::default().tensor_ceiling);
    let dram = |row: &SettledRow| unlike(row.measure.rules.dram_ceiling, Rules::default().dram_ceiling);
    ints(made, "tensor_ceiling_num", rows.iter().map(|row| Some(tensor(row)?.0)));
    ints(made, "tensor_ceiling_den", rows.iter().map(|row| Some(tensor(row)?.1)));
    ints(made, "dram_ceiling_num", rows.iter().map(|row| Some(dram(row)?.0)));
    ints(made, "dram_ceiling_den", rows.iter().map(|row| Some(dram(row)?.1)));
    texts(made, "telemetry", rows, |row| match row.measure.telemetry {
        Telemetry::Present => None,
        Telemetry::None => Some("none".into()),
    });
}

fn taken(made: &mut Made, rows: &[SettledRow]) {
    for (i, name) in ["free_num", "calm_num", "unready_num", "unlisted_num", "over_num"].into_iter().enumerate() {
        let taken = |row: &SettledRow| match &row.what {
            Settled::Number { taken, .. } => taken[i],
            _ => None,
        };
        ints(made, name, rows.iter().map(taken));
    }
}
