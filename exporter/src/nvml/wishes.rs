//! What the census thread is asked to do, by whoever sees that it is needed.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// What the census thread is asked to do.
#[derive(Debug, Default)]
pub struct Wishes {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
/// Wishes that are open.
pub struct Wanted {
    /// To end.
    pub stop: bool,
    /// To open the library anew.
    pub driver_gone: bool,
    /// To count the GPUs.
    pub look: bool,
    /// To leave the library alone until then.
    pub released_until: Option<Instant>,
}

impl Wishes {
    /// What is wanted.
    pub fn lock(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wishes for something.
    pub fn wish(&self, change: impl FnOnce(&mut Wanted)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits at most `limit` for a wish; takes those that are done by being seen.
    pub fn wait(&self, limit: Duration) -> Wanted {
        let until = Instant::now() + limit;
        let mut wanted = self.lock();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if wanted.stop || wanted.driver_gone || wanted.look || left.is_zero() {
                let seen = *wanted;
                (wanted.driver_gone, wanted.look) = (false, false);
                return seen;
            }
            wanted = self.changed.wait_timeout(wanted, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
