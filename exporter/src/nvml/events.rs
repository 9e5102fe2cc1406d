//! XIDs as the driver tells them: one thread waits for the events of all boards.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use nvml_wrapper::{EventSet, bitmasks::event::EventTypes};
use tracing::{debug, warn};

use super::{
    board::Health,
    fault::{Fault, Kind},
    fleet::Fleet,
    raw,
    record::Record,
    session::Session,
};

/// How long a wait lasts: so soon the thread sees that it is to leave.
const WAIT_MS: u32 = 500;
/// How long after a fault the set is made anew.
const AGAIN: Duration = Duration::from_secs(1);
/// NVML's event of a critical XID.
const XID: u64 = 0x8;

/// Starts the thread; it leaves when the session is over.
pub fn start(fleet: Arc<Fleet>, session: Arc<Session>) {
    let body = move || {
        while !session.is_over() {
            match watch(&fleet, &session) {
                Ok(()) => {}
                Err(fault) if fault.kind == Kind::DriverGone => {
                    fleet.shared().driver_gone();
                    return;
                }
                Err(fault) => {
                    debug!(code = fault.code, "events are not told for now");
                    pause(&session, AGAIN);
                }
            }
        }
    };
    if let Err(err) = std::thread::Builder::new().name("events".into()).stack_size(1 << 20).spawn(body) {
        warn!(%err, "cannot start the thread that waits for XIDs");
    }
}

fn pause(session: &Session, time: Duration) {
    let until = Instant::now() + time;
    while !session.is_over() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for events of the boards there are, until they change.
fn watch(fleet: &Fleet, session: &Session) -> Result<(), Fault> {
    let changes = session.changes();
    let mut boards: BTreeMap<usize, Arc<Record>> = BTreeMap::new();
    let shared = fleet.shared();
    let Some(set) = shared.in_library(|| register(fleet, session, &mut boards))? else {
        // Nothing to wait for: no boards yet, or none that tells events.
        while !session.is_over() && session.changes() == changes {
            std::thread::sleep(Duration::from_millis(20));
        }
        return Ok(());
    };
    while !session.is_over() && session.changes() == changes {
        match shared.in_library(|| raw::wait(&set, WAIT_MS)) {
            Ok(event) if event.kind & XID != 0 => match boards.get(&event.device) {
                Some(record) => record.xid(event.data, event.gpu_instance, Instant::now(), SystemTime::now()),
                None => warn!(xid = event.data, "an XID of a GPU that is not known"),
            },
            Ok(_) => {}
            Err(fault) if fault.code == "TIMEOUT" => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}

/// A set of the events of all boards that answer and tell events.
fn register<'a>(
    fleet: &Fleet,
    session: &'a Session,
    boards: &mut BTreeMap<usize, Arc<Record>>,
) -> Result<Option<EventSet<'a>>, Fault> {
    if !raw::frees(&session.nvml) || !fleet.waits_for_events() {
        return Ok(None);
    }
    let mut set = session.nvml.create_event_set()?;
    for board in fleet.boards() {
        board.record.watched(false);
        // One that is lost would end every wait at once.
        if board.health(Instant::now()) != Health::Ok {
            continue;
        }
        let Ok(device) = session.nvml.device_by_uuid(board.found.uuid.as_str()) else { continue };
        match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
            Ok(registered) => {
                set = registered;
                boards.insert(raw::handle(&device), board.record.clone());
                board.record.watched(true);
            }
            Err(err) => {
                // The wrapper has taken the set with it: the boards before are registered anew.
                debug!(gpu = board.record.gpu, err = %err.error, "the GPU tells no events");
                set = session.nvml.create_event_set()?;
                for before in boards.values() {
                    let device = session.nvml.device_by_uuid(before.uuid.as_str())?;
                    set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|err| Fault::from(err.error))?;
                }
            }
        }
    }
    Ok((!boards.is_empty()).then_some(set))
}
