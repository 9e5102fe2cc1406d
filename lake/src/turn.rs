//! One process at a time does what would be undone by two: closing hours, and taking away what is old.
//!
//! On a local disk it is a lock on a file, which ends with its holder, by `kill -9` too. In a bucket it is a lease that is renewed
//! while the work goes on, and that ends by itself. A holder that was paused past the end of its lease may still write; so what
//! it writes over a closed hour is put under the version that it has read ([`Lake::publish_closed_over`]), and refused where
//! another has been there. The lease alone is about not doing work twice, not about being right.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Seek, Write},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::{Lake, LakeError, Version, store::Store};

/// How long a lease lasts, by the clocks of those who ask for it.
const LEASE_MS: u64 = 120_000;

/// The right to do the work of a role. It goes when this is dropped.
pub struct Turn {
    hold: Hold,
    last: String,
}

enum Hold {
    /// The file is locked while it is open.
    Lock(#[allow(dead_code, reason = "it is held, not used")] File),
    Lease {
        store: Store,
        key: String,
        lease: Lease,
        version: Version,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Lease {
    holder: String,
    /// End of the lease, milliseconds since 1970; 0 once it was given back.
    until_ms: u64,
}

impl Lake {
    /// Takes the turn of `role` (a plain word) for `who`, a name that no other process has; none while another has it.
    pub fn try_turn(&self, role: &str, who: &str) -> Result<Option<Turn>, LakeError> {
        match &self.store {
            Store::Folder(folder) => lock(&folder.place(&format!("_state/{role}.lock"))?, who),
            Store::Bucket(_) => self.lease(format!("_state/{role}.lease"), who),
        }
    }

    fn lease(&self, key: String, who: &str) -> Result<Option<Turn>, LakeError> {
        let mut last = String::new();
        let mut over = None;
        if let Some((text, version)) = self.store.read(&key)? {
            let failed = |source| LakeError::Turn { path: self.place(&key).location(), source };
            let found: Lease = serde_json::from_slice(&text).map_err(failed)?;
            if found.until_ms > now_ms() && found.holder != who {
                return Ok(None);
            }
            last = found.holder;
            over = Some(version);
        }
        let lease = Lease { holder: who.to_owned(), until_ms: now_ms() + LEASE_MS };
        let version = write(&self.store, &key, &lease, over.as_ref())?;
        Ok(version.map(|version| Turn { hold: Hold::Lease { store: self.store.clone(), key, lease, version }, last }))
    }
}

impl Turn {
    /// Who had the turn before; empty where nobody had. Where it is not who has it now, what is remembered of the lake may be old.
    pub fn last(&self) -> &str {
        &self.last
    }

    /// Keeps the turn, to be called while the work goes on; false where it is another's by now.
    pub fn keep(&mut self) -> Result<bool, LakeError> {
        let Hold::Lease { store, key, lease, version } = &mut self.hold else { return Ok(true) };
        if lease.until_ms.saturating_sub(now_ms()) > LEASE_MS / 2 {
            return Ok(true);
        }
        let next = Lease { holder: lease.holder.clone(), until_ms: now_ms() + LEASE_MS };
        let Some(written) = write(store, key, &next, Some(version))? else { return Ok(false) };
        (*lease, *version) = (next, written);
        Ok(true)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Hold::Lease { store, key, lease, version } = &self.hold {
            // Where this fails, the lease ends by itself.
            let _ = write(store, key, &Lease { holder: lease.holder.clone(), until_ms: 0 }, Some(version));
        }
    }
}

fn lock(path: &Path, who: &str) -> Result<Option<Turn>, LakeError> {
    let failed = LakeError::io("lock", path);
    let mut last = String::new();
    let mut take = || {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Not text: nobody's.
        let _ = file.read_to_string(&mut last);
        if last != who {
            file.rewind()?;
            file.set_len(0)?;
            file.write_all(who.as_bytes())?;
        }
        Ok(Some(file))
    };
    let file = take().map_err(failed)?;
    Ok(file.map(|file| Turn { hold: Hold::Lock(file), last }))
}

fn write(store: &Store, key: &str, lease: &Lease, over: Option<&Version>) -> Result<Option<Version>, LakeError> {
    let failed = |source| LakeError::Turn { path: store.location().join(key), source };
    let text = serde_json::to_vec(lease).map_err(failed)?;
    store.replace_if(key, text, over)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
