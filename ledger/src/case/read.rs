//! JSON text of a case to typed inputs.

use std::{collections::HashSet, num::NonZeroU32};

use schemas::{Timestamp, Window, status::HoldingSource, time::DAY_MS};
use serde_json::value::RawValue;

use super::{
    Case,
    json::{CaseError, Json, Object},
};
use crate::{
    input::{
        Device, FailedScrape, Held, Holding, Ids, Inputs, Pod, Ratio, Readings, Rules, Sample, Span, Telemetry, Text,
        Unavailable, deletion_request, earliest,
    },
    reading::{Reading, Unit},
    row::FlagSet,
};

/// Longest window of a case.
const MAX_WINDOW_MS: i64 = 3653 * DAY_MS;

pub(super) fn case(text: &str) -> Result<Case, CaseError> {
    let raw: &RawValue = serde_json::from_str(text).map_err(CaseError::Json)?;
    let top = Json::top(raw).object()?;
    let ends = top.get("window").object()?;
    let window = Window::new(ends.get("from").time()?, ends.get("to").time()?)?;
    // Each hour of it is computed: a slip in the year would compute for minutes.
    if window.to().ms().saturating_sub(window.from().ms()) > MAX_WINDOW_MS {
        return Err(ends.get("from").not("the window is longer than ten years"));
    }
    let devices = top.get("devices").each(device)?;
    let instances: HashSet<Text> = devices.iter().filter(|d| d.parent.is_some()).map(|d| d.id.clone()).collect();
    let mut inputs =
        Inputs { rules: rules(&top)?, holdings: top.get("allocations").each(holding)?, devices, ..Inputs::default() };
    top.get("samples").each(|sample| record(sample, &instances, &mut inputs))?;
    Ok(Case { inputs, window })
}

fn rules(top: &Object<'_, '_>) -> Result<Rules, CaseError> {
    let horizon_ms = match top.get("horizon_ms").given() {
        Some(horizon) => horizon.int()?,
        None => top.get("scrape_interval_ms").int()?.saturating_mul(2),
    };
    let mut rules = Rules { horizon_ms, ..Rules::default() };
    if let Some(ceilings) = top.get("ceilings").given() {
        let ceilings = ceilings.object()?;
        rules.tensor_ceiling = ratio(ceilings.get("tensor"))?.unwrap_or(rules.tensor_ceiling);
        rules.dram_ceiling = ratio(ceilings.get("dram"))?.unwrap_or(rules.dram_ceiling);
    }
    Ok(rules)
}

fn ratio(json: Json<'_, '_>) -> Result<Option<Ratio>, CaseError> {
    let Some(json) = json.given() else { return Ok(None) };
    let parts = json.object()?;
    let ratio = Ratio::new(parts.get("num").count()?, parts.get("den").count()?);
    ratio.map(Some).ok_or_else(|| json.not("a fraction above 0 belongs here"))
}

fn text(json: Json<'_, '_>) -> Result<Text, CaseError> {
    Ok(json.text()?.into())
}

fn optional<'t, 'p, T>(
    json: Json<'t, 'p>,
    read: impl FnOnce(Json<'t, 'p>) -> Result<T, CaseError>,
) -> Result<Option<T>, CaseError> {
    json.given().map(read).transpose()
}

fn above_zero(json: Json<'_, '_>) -> Result<NonZeroU32, CaseError> {
    match json.given() {
        None => Ok(NonZeroU32::MIN),
        Some(json) => NonZeroU32::new(json.count()?).ok_or_else(|| json.not("a number above 0 belongs here")),
    }
}

fn device(json: Json<'_, '_>) -> Result<Device, CaseError> {
    let json = json.object()?;
    let telemetry = optional(json.get("telemetry"), Json::text)?;
    Ok(Device {
        parent: optional(json.get("parent"), text)?,
        profile: optional(json.get("mig_profile"), text)?,
        product: optional(json.get("product"), text)?,
        purchase_option: optional(json.get("purchase_option"), text)?,
        weight: ratio(json.get("weight"))?.unwrap_or(Ratio::ONE),
        replicas: above_zero(json.get("replicas"))?,
        telemetry: if telemetry.as_deref() == Some("none") { Telemetry::None } else { Telemetry::Present },
        present: vec![Span {
            from: optional(json.get("present_from"), Json::time)?.unwrap_or(Span::ALWAYS.from),
            to: optional(json.get("present_to"), Json::time)?.unwrap_or(Span::ALWAYS.to),
        }],
        unavailable: json.get("unavailable").each(|json| {
            let json = json.object()?;
            let span = Span { from: json.get("from").time()?, to: json.get("to").time()? };
            Ok(Unavailable { span, reason: text(json.get("reason"))? })
        })?,
        ..Device::new(text(json.get("device"))?, text(json.get("node"))?)
    })
}

fn holding(json: Json<'_, '_>) -> Result<Holding, CaseError> {
    let json = json.object()?;
    let time = |key| optional(json.get(key), Json::time);
    let held = match optional(json.get("device"), text)? {
        Some(device) => Held::Device { device, ids: ids(&json)?, known_from: time("known_from")? },
        None => Held::Count {
            count: optional(json.get("count"), Json::count)?.unwrap_or(1),
            weight: ratio(json.get("weight"))?.unwrap_or(Ratio::ONE),
        },
    };
    Ok(Holding {
        pod: Pod {
            uid: text(json.get("pod_uid"))?,
            namespace: text(json.get("namespace"))?,
            name: text(json.get("pod"))?,
            team: optional(json.get("team"), text)?,
            workload: None,
            queue: None,
        },
        node: text(json.get("node"))?,
        held,
        bound: json.get("bound").time()?,
        started: time("started")?,
        terminating_from: earliest([time("terminating_from")?, deletion(&json)?]),
        end: earliest([time("ended")?, time("terminal")?, time("removed")?]),
        source: HoldingSource::Api,
        flags: FlagSet::EMPTY,
    })
}

fn ids(json: &Object<'_, '_>) -> Result<Ids, CaseError> {
    match json.get("replica_ids").given() {
        None => Ok(Ids::Number(above_zero(json.get("ids"))?)),
        Some(list) => {
            let ids = list.each(|id| id.count())?;
            if ids.is_empty() { Err(list.not("at least one id belongs here")) } else { Ok(Ids::Named(ids)) }
        }
    }
}

fn deletion(json: &Object<'_, '_>) -> Result<Option<Timestamp>, CaseError> {
    let Some(timestamp) = optional(json.get("deletion_timestamp"), Json::time)? else { return Ok(None) };
    let grace = optional(json.get("grace_ms"), Json::int)?.unwrap_or(0);
    Ok(Some(deletion_request(timestamp, grace)))
}

/// A sample of a device, or a failed scrape of a node.
fn record(json: Json<'_, '_>, instances: &HashSet<Text>, inputs: &mut Inputs) -> Result<(), CaseError> {
    let json = json.object()?;
    let at = json.get("at").time()?;
    if json.get("scrape_failed").given().is_some() {
        inputs.failed_scrapes.push(FailedScrape { node: text(json.get("node"))?, at });
        return Ok(());
    }
    let device = text(json.get("device"))?;
    let ratio = if instances.contains(&device) { Unit::InstanceRatio } else { Unit::Ratio };
    let values = json.get("values").object()?;
    let reading = |key, unit| match values.get(key).given() {
        None => Ok(Reading::Absent),
        Some(value) => Reading::parse(&value.number_text()?, unit)
            .map_err(|_| value.not("a decimal number of at most 19 digits belongs here")),
    };
    let readings = Readings {
        gpu_util: reading("203", Unit::Percent)?,
        gr_active: reading("1001", ratio)?,
        sm_active: reading("1002", ratio)?,
        tensor_active: reading("1004", ratio)?,
        dram_active: reading("1005", ratio)?,
        energy_mj: None,
        fb_used_mib: None,
    };
    inputs.samples.push(Sample { device, at, readings, flags: FlagSet::EMPTY });
    Ok(())
}
