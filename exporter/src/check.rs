//! What each GPU gives, by which call, and why the rest is missing: the table of `--strandline-check`.

use std::{fmt::Write, time::Instant};

use schemas::catalogue;

use crate::{
    collectors::{Collectors, counted},
    nvml::{Board, Driver, Fleet, Health, Standing, calls},
    source::Value,
};

/// The table of every board and instance, for the families of `collectors`.
pub fn table(fleet: &Fleet, collectors: &Collectors, now: Instant) -> String {
    let mut out = String::new();
    let driver = match fleet.driver() {
        Driver::Up => "answers".to_owned(),
        Driver::Released => "is released".to_owned(),
        Driver::Down(code) => format!("does not answer: {code}"),
    };
    let counts = fleet.counts(None, now);
    let _ = writeln!(out, "driver {driver}; GPUs: {} expected, {} seen, {} lost", counts.expected, counts.seen, counts.lost);
    for (index, code) in fleet.unreadable() {
        let _ = writeln!(out, "GPU at index {index} cannot be read: {code}");
    }
    for board in fleet.boards() {
        describe(&board, collectors, now, &mut out);
    }
    out
}

fn describe(board: &Board, collectors: &Collectors, now: Instant, out: &mut String) {
    let identity = &board.identity;
    let health = match board.health(now) {
        Health::Ok => String::new(),
        Health::Lost(code) => format!(" LOST: {code}"),
        Health::Unresponsive => " UNRESPONSIVE".to_owned(),
    };
    let _ = writeln!(out, "\nGPU {} {} {} {}{health}", identity.gpu, identity.model, identity.uuid, identity.pci_bus_id);
    for (name, field) in collectors.labels() {
        let text = identity.texts.iter().find(|(id, _)| id == field).map_or("- not told", |(_, text)| text.as_str());
        let _ = writeln!(out, "  {name:<48} {text}");
    }
    lines(board, 0, collectors, now, out);
    for (n, part) in board.parts.iter().enumerate() {
        let profile = part.identity.instance.as_ref().map_or("", |instance| instance.profile.as_str());
        let _ = writeln!(out, "  MIG instance {} {profile}", part.gi);
        lines(board, n + 1, collectors, now, out);
    }
}

fn lines(board: &Board, place: usize, collectors: &Collectors, now: Instant, out: &mut String) {
    for family in collectors.families().iter().filter(|family| !counted::is(family.field)) {
        if family.field == catalogue::id::XID_ERRORS {
            if place == 0 {
                let told = board.record.last_xid().map_or("- events are not told".to_owned(), |xid| xid.to_string());
                let _ = writeln!(out, "  {:<48} {told:<24} by nvmlEventSetWait_v2", family.name);
            }
            continue;
        }
        let asked = board.questions.iter().any(|question| question.place == place && question.fields.contains(&family.field));
        if !asked && place > 0 {
            continue; // a board's reading, on the board's own line
        }
        let by = calls::named(family.field).unwrap_or_else(|| "no call of NVML".to_owned());
        let told = match board.standing(place, family.field, now) {
            Standing::Given(Value::Int(value), _) => value.to_string(),
            Standing::Given(Value::Float(value), _) => format!("{value:.6}"),
            Standing::Absent(code) => format!("- {code}"),
            Standing::Unasked if asked => "- no value yet".to_owned(),
            Standing::Unasked => "- NVML does not tell it".to_owned(),
        };
        let _ = writeln!(out, "  {:<48} {told:<24} by {by}", family.name);
    }
}
