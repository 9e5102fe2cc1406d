//! Event sets: XIDs as they occur on the fleet's clock.

use std::time::{Duration, Instant};

use schemas::Timestamp;
use simulator::nvml::{self, Code, Place};

use crate::{
    abi::{EventData, Handle, NO_INSTANCE},
    boundary::Answer,
    library::{self, Session},
    machine::{Machine, View},
};

/// The events that there are: critical XIDs.
pub const XID: u64 = 0x8;
/// Every event type of the header.
pub const ALL: u64 = 0xff9f;

/// What a set waits for.
#[derive(Debug, Default)]
pub struct EventSet {
    registered: Vec<Registered>,
}

#[derive(Debug)]
struct Registered {
    gpu: usize,
    /// So many of the GPU's XIDs were before the registration, or are delivered.
    over: usize,
}

/// A waiting caller looks at least so often whether the library is still there.
const SLICE: Duration = Duration::from_millis(250);

/// Every XID of a GPU up to `at`, or without end, in order: when, and the code. The plan's are a whole GPU's.
fn xids(machine: &Machine, gpu: usize, at: Option<Timestamp>) -> Vec<(Timestamp, i64)> {
    let place = Place { node: machine.node, board: gpu, device: None };
    nvml::xids(&machine.plan, place, at.unwrap_or(Timestamp::from_ms(i64::MAX)))
}

impl EventSet {
    /// Waits for XIDs of a GPU from now on.
    pub fn register(&mut self, view: &View) {
        if !self.registered.iter().any(|registered| registered.gpu == view.gpu) {
            let over = xids(view.machine, view.gpu, Some(view.moment.at)).len();
            self.registered.push(Registered { gpu: view.gpu, over });
        }
    }

    /// The first event that is not delivered yet, and marks it so.
    fn take(&mut self, session: &Session) -> Option<EventData> {
        let now = Some(session.moment.at);
        let pending = |registered: &Registered| xids(session.machine, registered.gpu, now).get(registered.over).copied();
        let all = self.registered.iter().enumerate().filter_map(|(n, registered)| Some((n, pending(registered)?)));
        let (n, (_, code)) = all.min_by_key(|(_, (at, _))| *at)?;
        let registered = &mut self.registered[n];
        registered.over += 1;
        let device = session.view(registered.gpu, None).handle();
        let event_data = code as u64;
        Some(EventData { device, event_type: XID, event_data, gpu_instance_id: NO_INSTANCE, compute_instance_id: NO_INSTANCE })
    }

    /// How long until the next event, by the wall clock.
    fn next(&self, session: &Session) -> Option<Duration> {
        let next = |registered: &Registered| xids(session.machine, registered.gpu, None).get(registered.over).map(|(at, _)| *at);
        session.machine.until(&session.moment, self.registered.iter().filter_map(next).min()?)
    }

    fn lost(&self, session: &Session) -> bool {
        self.registered.iter().any(|registered| session.machine.away(&session.moment, registered.gpu).is_some())
    }
}

/// Waits for an event of `set`, at most `timeout_ms`.
pub fn wait(session: &Session, set: Handle, timeout_ms: u32) -> Answer<EventData> {
    let begun = Instant::now();
    let timeout = Duration::from_millis(timeout_ms.into());
    let mut later;
    let mut session = session;
    loop {
        let (event, next, lost) = library::with_state(|state| {
            let set = state.set(set)?;
            Ok((set.take(session), set.next(session), set.lost(session)))
        })?;
        match event {
            Some(event) => return Ok(event),
            None if lost => return Err(Code::GPU_IS_LOST),
            None => {}
        }
        let left = timeout.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(Code::TIMEOUT);
        }
        library::wait(left.min(SLICE).min(next.unwrap_or(SLICE).max(Duration::from_millis(1))));
        later = Session::again()?;
        session = &later;
    }
}
