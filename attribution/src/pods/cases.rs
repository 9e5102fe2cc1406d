//! Runs a case of `allocation.jsonl` through the book of pods.

use std::collections::BTreeMap;

use schemas::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{Book, Options, Receipt, Refused};
use crate::holders::ResourceNames;

/// Why a case cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// Not the shape of a case.
    #[error("not an allocation case ({0}); see the vectors' README")]
    Shape(serde_json::Error),
    /// A pod of it is refused.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// An instant that is no time.
    #[error("`{0}` is no instant of a case; give seconds from 0 to a year")]
    Instant(i64),
}

#[derive(Deserialize)]
struct Case<'a> {
    resources: Vec<String>,
    epoch: Option<Timestamp>,
    #[serde(borrow)]
    events: Vec<Event<'a>>,
    end: i64,
    #[serde(default)]
    expect: Vec<Instant>,
}

#[derive(Deserialize)]
struct Event<'a> {
    t: i64,
    #[serde(rename = "type")]
    kind: Kind,
    #[serde(borrow)]
    pod: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pods: Vec<&'a RawValue>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "UPPERCASE")]
enum Kind {
    Added,
    Modified,
    Deleted,
    Relist,
}

#[derive(Deserialize)]
struct Instant {
    at: i64,
}

/// What the account makes of a case: `held` at each instant of its `expect`, and `device_seconds` over the whole, in the shape
/// of `{"expect": .., "expect_device_seconds": ..}`.
pub fn run(line: &str) -> Result<Value, CaseError> {
    let case: Case<'_> = serde_json::from_str(line).map_err(CaseError::Shape)?;
    // Any time will do where none is told, but late enough that no instant is before 1970.
    let epoch = case.epoch.unwrap_or(Timestamp::from_ms(1_772_445_600_000));
    let instant = |seconds: i64| match (0..=366 * 86_400).contains(&seconds) {
        true => Ok(epoch.plus_ms(seconds * 1000)),
        false => Err(CaseError::Instant(seconds)),
    };
    let names = ResourceNames { exact: case.resources.clone(), prefixes: Vec::new(), ..ResourceNames::default() };
    let mut book = Book::new(Options { resources: names, ..Options::default() });
    let mut expect = Vec::new();
    let mut instants = case.expect.iter().map(|instant| instant.at).peekable();
    let mut events = case.events.iter().peekable();
    let held = |book: &Book, at: Timestamp| -> BTreeMap<String, u64> {
        let mut held: BTreeMap<String, u64> = case.resources.iter().map(|name| (name.clone(), 0)).collect();
        for holding in book.states().iter().flat_map(|state| &state.holdings) {
            *held.entry(holding.resource.clone()).or_default() += u64::from(holding.held_at(at.ms()));
        }
        held
    };
    loop {
        // An instant is asked for after all events of that time.
        let next = instants.peek().copied();
        if let Some(event) = events.next_if(|event| next.is_none_or(|at| event.t <= at)) {
            take(&mut book, event, instant(event.t)?)?;
        } else if let Some(at) = instants.next() {
            expect.push(json!({"at": at, "held": held(&book, instant(at)?)}));
        } else {
            break;
        }
    }
    let (begin, end) = (epoch.ms(), instant(case.end)?.ms());
    let mut seconds: BTreeMap<String, i64> = case.resources.iter().map(|name| (name.clone(), 0)).collect();
    for holding in book.states().iter().flat_map(|state| &state.holdings) {
        let (from, to) = (holding.bound.max(begin), holding.ended.unwrap_or(end).min(end));
        *seconds.entry(holding.resource.clone()).or_default() += i64::from(holding.count) * (to - from).max(0);
    }
    seconds.values_mut().for_each(|ms| *ms /= 1000);
    Ok(json!({"expect": expect, "expect_device_seconds": seconds}))
}

fn take(book: &mut Book, event: &Event<'_>, at: Timestamp) -> Result<(), Refused> {
    let receipt = Receipt::at(at);
    let pod = event.pod.map_or("", |pod| pod.get()).as_bytes();
    match event.kind {
        Kind::Added | Kind::Modified => book.seen(pod, receipt),
        Kind::Deleted => book.deleted(pod, receipt),
        Kind::Relist => {
            let refused = book.relist(event.pods.iter().map(|pod| pod.get().as_bytes()), None, receipt);
            refused.into_iter().next().map_or(Ok(()), Err)
        }
    }
}
