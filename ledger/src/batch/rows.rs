//! Hour rows and capacities as batches of `gpu_hours` and `device_hours`, in the schema's column order.

use std::{collections::HashMap, sync::Arc};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use schemas::{
    Timestamp,
    status::{Cause, Tier},
    tables,
};

use super::BatchError;
use crate::{
    capacity::DeviceHour,
    row::{Flag, HourRow, OwnerHour, Place, What},
};

/// Columns of one batch by name.
pub(super) type Made = HashMap<String, ArrayRef>;

/// One cluster's hour rows as a batch of `gpu_hours`, in the order given.
pub fn hour_rows(cluster: &str, rows: &[HourRow]) -> Result<RecordBatch, BatchError> {
    let mut made = Made::new();
    texts(&mut made, "cluster", rows, |_| Some(cluster.into()));
    times(&mut made, "hour_start", rows.iter().map(|row| row.hour_start));
    places(&mut made, rows, |row| &row.place);
    texts(&mut made, "kind", rows, |row| Some(row.kind().as_str().into()));
    texts(&mut made, "reason", rows, |row| match &row.what {
        What::Owner(_) => None,
        What::Free(reason) | What::Unavailable(reason) => Some((**reason).into()),
    });
    ints(&mut made, "ms", rows.iter().map(|row| Some(row.ms)));
    owner_texts(&mut made, rows);
    owner_figures(&mut made, rows);
    build("gpu_hours", made)
}

/// The columns that say where.
pub(super) fn places<R>(made: &mut Made, rows: &[R], of: fn(&R) -> &Place) {
    let mut place = |name, get: fn(&Place) -> Option<&str>| texts(made, name, rows, move |row| get(of(row)).map(Into::into));
    place("node", |p| Some(&p.node));
    place("device", |p| p.device.as_deref());
    place("parent", |p| p.parent.as_deref());
    place("profile", |p| p.profile.as_deref());
    place("product", |p| p.product.as_deref());
    place("region", |p| p.region.as_deref());
    place("provider", |p| p.provider.as_deref());
    place("purchase_option", |p| p.purchase_option.as_deref());
    place("reservation", |p| p.reservation.as_deref());
}

fn owner_texts(made: &mut Made, rows: &[HourRow]) {
    let mut owner =
        |name, get: fn(&OwnerHour) -> Option<&str>| texts(made, name, rows, move |row| get(row.owner()?).map(Into::into));
    owner("pod_uid", |o| Some(&o.pod.uid));
    owner("namespace", |o| Some(&o.pod.namespace));
    owner("pod", |o| Some(&o.pod.name));
    owner("workload", |o| o.pod.workload.as_deref());
    owner("team", |o| o.pod.team.as_deref());
    owner("queue", |o| o.pod.queue.as_deref());
    owner("allocation_source", |o| Some(o.source.as_str()));
    texts(made, "owner_source", rows, |row| {
        let owner = row.owner()?;
        let source = match &row.place.device {
            None => owner.source.as_str(),
            Some(_) if owner.flags.contains(Flag::FromLabels) => Flag::FromLabels.as_str(),
            Some(_) if owner.source == schemas::status::HoldingSource::Import => owner.source.as_str(),
            Some(_) => schemas::status::HoldingSource::PodResources.as_str(),
        };
        Some(source.into())
    });
    texts(made, "flags", rows, |row| {
        Some(row.owner()?.flags.to_string().into()).filter(|flags: &std::borrow::Cow<'_, str>| !flags.is_empty())
    });
}

fn owner_figures(made: &mut Made, rows: &[HourRow]) {
    for tier in Tier::ALL {
        let mut figure = |name: String, get: &dyn Fn(&crate::row::TierTime) -> i64| {
            ints(made, &name, rows.iter().map(|row| Some(get(&row.owner()?.tiers[*tier]))));
        };
        figure(format!("{tier}_utilized_ms"), &|time| time.utilized_ms);
        figure(format!("{tier}_stranded_ms"), &|time| time.stranded_ms);
        figure(format!("{tier}_over_share_ms"), &|time| time.over_share_ms);
        for cause in Cause::ALL {
            figure(format!("{tier}_unobserved_{cause}_ms"), &|time| time.unobserved_by(*cause));
        }
    }
    let mut figure = |name: &str, get: fn(&OwnerHour) -> Option<i64>| ints(made, name, rows.iter().map(|row| get(row.owner()?)));
    figure("pre_start_ms", |o| Some(o.pre_start_ms));
    figure("terminating_ms", |o| Some(o.terminating_ms));
    figure("on_unready_ms", |o| Some(o.on_unready_ms));
    figure("held_profile_ms", |o| Some(o.held_profile_ms));
    figure("overcommitted_ms", |o| Some(o.overcommitted_ms));
    figure("energy_mj", |o| o.energy_mj);
    figure("fb_used_mib_ms", |o| o.fb_used_mib_ms);
    figure("fb_unobserved_ms", |o| o.fb_unobserved_ms);
}

/// One cluster's capacities as a batch of `device_hours`.
pub fn device_rows(cluster: &str, hours: &[DeviceHour]) -> Result<RecordBatch, BatchError> {
    let mut made = Made::new();
    times(&mut made, "hour_start", hours.iter().map(|hour| hour.hour_start));
    texts(&mut made, "cluster", hours, |_| Some(cluster.into()));
    texts(&mut made, "node", hours, |hour| Some((&*hour.node).into()));
    texts(&mut made, "device", hours, |hour| Some((&*hour.device).into()));
    ints(&mut made, "capacity_ms", hours.iter().map(|hour| Some(hour.capacity_ms)));
    build("device_hours", made)
}

pub(super) fn texts<'r, R>(made: &mut Made, name: &str, rows: &'r [R], get: impl Fn(&'r R) -> Option<std::borrow::Cow<'r, str>>) {
    made.insert(name.to_owned(), Arc::new(rows.iter().map(get).collect::<StringArray>()));
}

pub(super) fn ints(made: &mut Made, name: &str, values: impl Iterator<Item = Option<i64>>) {
    made.insert(name.to_owned(), Arc::new(values.collect::<Int64Array>()));
}

pub(super) fn times(made: &mut Made, name: &str, values: impl Iterator<Item = Timestamp>) {
    let array: TimestampMicrosecondArray = values.map(|at| Some(at.micros())).collect();
    made.insert(name.to_owned(), Arc::new(array.with_timezone("UTC")));
}

/// The table's columns in order; one that the schema has and we do not make is a mistake of ours, shown as an error.
pub(super) fn build(table: &'static str, mut made: Made) -> Result<RecordBatch, BatchError> {
    let schema = tables::get(table).schema();
    let mut take = |name: &String| {
        made.remove(name).ok_or_else(|| BatchError::Column { table, column: name.clone(), wanted: "made by the ledger" })
    };
    let columns = schema.fields().iter().map(|field| take(field.name())).collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new(schema, columns).map_err(|err| BatchError::Build { table, err })
}
