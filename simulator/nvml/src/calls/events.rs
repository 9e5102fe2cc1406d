//! Event sets and GPM samples: what is made, filled and freed.

use std::ffi::{c_uint, c_ulonglong};

use simulator::nvml::Code;

use super::entries;
use crate::{
    abi::{EventData, EventDataShort, GpmMetricsHead, GpmSupport, Handle},
    boundary::{Answer, Out},
    events::{self, ALL, XID},
    gpm::{self, Sample},
    library::{Session, with_state},
    machine::View,
};

fn fill(view: &View, sample: Handle) -> Answer {
    let filled = Sample::of(view)?;
    with_state(|state| {
        *state.sample(sample)? = Some(filled);
        Ok(())
    })
}

fn register(view: &View, types: u64, set: Handle) -> Answer {
    if types & !ALL != 0 {
        return Err(Code::INVALID_ARGUMENT);
    }
    view.whole()?;
    if types & !XID != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    with_state(|state| {
        let set = state.set(set)?;
        if types & XID != 0 {
            set.register(view);
        }
        Ok(())
    })
}

fn wait(session: &Session, set: Handle, timeout_ms: c_uint) -> Answer<EventData> {
    events::wait(session, set, timeout_ms)
}

entries! {
    node nvmlEventSetCreate(out: Out<Handle>) |_| {
        out.there()?;
        out.put(with_state(|state| state.make_set())?)
    };
    node nvmlEventSetFree(set: Handle) |_| with_state(|state| state.free_set(set));
    node nvmlEventSetWait_v2(set: Handle, out: Out<EventData>, timeout_ms: c_uint) |session| {
        out.there()?;
        out.put(wait(session, set, timeout_ms)?)
    };
    node nvmlEventSetWait(set: Handle, out: Out<EventDataShort>, timeout_ms: c_uint) |session| {
        out.there()?;
        let EventData { device, event_type, event_data, .. } = wait(session, set, timeout_ms)?;
        out.put(EventDataShort { device, event_type, event_data })
    };
    device nvmlDeviceRegisterEvents(types: c_ulonglong, set: Handle) |view| register(view, types, set);
    device nvmlDeviceGetSupportedEventTypes(out: Out<c_ulonglong>) |view| {
        view.whole()?;
        out.put(XID)
    };

    node nvmlGpmSampleAlloc(out: Out<Handle>) |_| {
        out.there()?;
        out.put(with_state(|state| state.make_sample())?)
    };
    node nvmlGpmSampleFree(sample: Handle) |_| with_state(|state| state.free_sample(sample));
    node nvmlGpmMetricsGet(request: Out<GpmMetricsHead>) |session| gpm::metrics(session, request);
    device nvmlGpmSampleGet(sample: Handle) |view| view.whole().and_then(|()| fill(view, sample));
    device nvmlGpmMigSampleGet(gpu_instance: c_uint, sample: Handle) |view| {
        view.whole()?;
        let mut parts = (0..view.board().parts.len()).map(|part| View { instance: Some(part), ..*view });
        let part = parts.find(|part| part.instance_ids().0 == gpu_instance).ok_or(Code::NOT_FOUND)?;
        fill(&part, sample)
    };
    device nvmlGpmQueryDeviceSupport(out: Out<GpmSupport>) |view| {
        let mut asked = out.versioned(gpm::SUPPORT_VERSION)?;
        asked.supported = view.machine.has_gpm().into();
        out.put(asked)
    };
}
