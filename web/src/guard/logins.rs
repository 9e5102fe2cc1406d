//! Basic auth. Bcrypt is slow on purpose, so who may make us run it is bounded: one check at a time, off the async threads, with a
//! pause after a wrong one; a bounded line of waiters, 429 beyond it; and credentials that passed are remembered, so that scrapes
//! with good ones never stand in that line.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use axum::http::HeaderValue;
use base64::{Engine, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, oneshot};

use crate::config::Users;

/// Credentials that passed and are remembered; the oldest goes first.
const REMEMBERED: usize = 256;
/// Requests that wait for a check.
const WAITING: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Login {
    Good,
    Wrong,
    /// Too many wait for a check already.
    Busy,
}

pub(super) struct Logins {
    /// Secret of this process, so that nobody can know a key of `passed`.
    salt: [u8; 32],
    passed: Mutex<VecDeque<[u8; 32]>>,
    line: Semaphore,
    turn: Arc<Semaphore>,
}

impl Logins {
    pub(super) fn new() -> Self {
        let mut salt = [0; 32];
        rustls::crypto::ring::default_provider()
            .secure_random
            .fill(&mut salt)
            .expect("the system gives random bytes; TLS needs them as well");
        Self { salt, passed: Mutex::default(), line: Semaphore::new(WAITING), turn: Arc::new(Semaphore::new(1)) }
    }

    pub(super) async fn check(&self, users: &Users, header: Option<&HeaderValue>) -> Login {
        let Some((name, password)) = header.and_then(credentials) else { return Login::Wrong };
        let (hash, known) = match users.get(&name) {
            Some(hash) => (hash.clone(), true),
            // An unknown name takes as long as a known one: it is checked against another's hash, always the same one, and fails.
            None => {
                let pick = usize::from(self.key(&name, "", b"")[0]) % users.len().max(1);
                let Some(hash) = users.values().nth(pick) else { return Login::Wrong };
                (hash.clone(), false)
            }
        };
        // The hash is part of the key: a user whose password changed must pass anew.
        let key = self.key(&name, &hash, &password);
        if known && self.has_passed(&key) {
            return Login::Good;
        }
        let Ok(_place) = self.line.try_acquire() else { return Login::Busy };
        let turn = self.turn.clone().acquire_owned().await.expect("the semaphore is never closed");
        if known && self.has_passed(&key) {
            return Login::Good; // the same credentials were checked while these waited
        }
        let (tell, told) = oneshot::channel();
        // A task of its own, with the turn: whoever hangs up does not make room for a second check beside this one.
        tokio::spawn(async move {
            let begun = Instant::now();
            let checked = tokio::task::spawn_blocking(move || bcrypt::verify(password, &hash).unwrap_or(false)).await;
            let good = known && checked.unwrap_or(false);
            let _ = tell.send(good);
            if !good {
                // At most half a core for those who guess.
                tokio::time::sleep(begun.elapsed()).await;
            }
            drop(turn);
        });
        if told.await.unwrap_or(false) {
            self.remember(key);
            Login::Good
        } else {
            Login::Wrong
        }
    }

    fn key(&self, name: &str, hash: &str, password: &[u8]) -> [u8; 32] {
        let mut digest = Sha256::new_with_prefix(self.salt);
        for part in [name.as_bytes(), hash.as_bytes(), password] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        digest.finalize().into()
    }

    fn has_passed(&self, key: &[u8; 32]) -> bool {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    fn remember(&self, key: [u8; 32]) {
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        if !passed.contains(&key) {
            if passed.len() == REMEMBERED {
                passed.pop_front();
            }
            passed.push_back(key);
        }
    }
}

impl fmt::Debug for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Logins")
    }
}

/// Name and password of `Basic BASE64`; the password may be any bytes.
fn credentials(header: &HeaderValue) -> Option<(String, Vec<u8>)> {
    let (scheme, encoded) = header.as_bytes().split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let decoded = STANDARD.decode(encoded).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    Some((String::from_utf8(decoded[..colon].to_vec()).ok()?, decoded[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    fn users(all: &[(&str, &str)]) -> Users {
        all.iter().map(|(name, password)| (name.to_string(), bcrypt::hash(password, 4).unwrap().into())).collect()
    }

    fn header(credentials: &str) -> HeaderValue {
        HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(credentials))).unwrap()
    }

    #[tokio::test]
    async fn only_the_right_password_of_a_known_user_passes() {
        let (logins, users) = (Logins::new(), users(&[("ann", "a:secret"), ("bob", "")]));
        for (said, expected) in [
            (Some(header("ann:a:secret")), Login::Good),
            (Some(header("ann:a:secret")), Login::Good),
            (Some(header("bob:")), Login::Good),
            (Some(header("ann:")), Login::Wrong),
            (Some(header("bob:a:secret")), Login::Wrong),
            (Some(header("eve:a:secret")), Login::Wrong),
            (Some(header("eve:")), Login::Wrong),
            (Some(header("ann")), Login::Wrong),
            (Some(HeaderValue::from_static("Basic !")), Login::Wrong),
            (Some(HeaderValue::from_static("Bearer YW5uOmE=")), Login::Wrong),
            (Some(HeaderValue::from_static("")), Login::Wrong),
            (None, Login::Wrong),
        ] {
            assert_eq!(logins.check(&users, said.as_ref()).await, expected, "{said:?}");
        }
        assert_eq!(logins.check(&Users::new(), Some(&header("ann:a:secret"))).await, Login::Wrong);
    }

    #[tokio::test]
    async fn good_credentials_pass_while_guesses_stand_in_line() {
        let logins = Arc::new(Logins::new());
        let users = Arc::new(users(&[("ann", "secret")]));
        let good = header("ann:secret");
        assert_eq!(logins.check(&users, Some(&good)).await, Login::Good);
        let held = logins.turn.clone().acquire_owned().await.unwrap(); // a check that takes long
        let guesses: Vec<_> = (0..WAITING)
            .map(|guess| {
                let (logins, users) = (logins.clone(), users.clone());
                tokio::spawn(async move { logins.check(&users, Some(&header(&format!("ann:{guess}")))).await })
            })
            .collect();
        while logins.line.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(logins.check(&users, Some(&header("ann:other"))).await, Login::Busy);
        assert_eq!(logins.check(&users, Some(&good)).await, Login::Good);
        drop(held);
        for guess in guesses {
            assert_eq!(guess.await.unwrap(), Login::Wrong);
        }
        assert_eq!(logins.line.available_permits(), WAITING);
        // The last guess's pause ends too.
        let _ = tokio::time::timeout(Duration::from_secs(60), logins.turn.acquire()).await.unwrap().unwrap();
    }

    #[test]
    fn memory_of_credentials_is_bounded() {
        let logins = Logins::new();
        for i in 0..REMEMBERED as u64 + 10 {
            logins.remember(logins.key("ann", "hash", &i.to_le_bytes()));
        }
        assert_eq!(logins.passed.lock().unwrap().len(), REMEMBERED);
        assert!(!logins.has_passed(&logins.key("ann", "hash", &0u64.to_le_bytes())));
        assert!(logins.has_passed(&logins.key("ann", "hash", &200u64.to_le_bytes())));
    }
}
