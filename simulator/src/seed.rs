//! Chance as an argument: random streams derived by name from one seed.
//!
//! A stream is ChaCha8 keyed by SHA-256 of seed and name, so a new stream shifts no other. Draws are made by integer
//! arithmetic of our own, so that no library's change of method changes a fleet.

use std::{fmt, str::FromStr};

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};
use sha2::{Digest, Sha256};

/// The seed of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Seed(pub u64);

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Seed {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl Seed {
    fn digest(self, path: &str) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(b"strandline-sim 1\0");
        hash.update(self.0.to_le_bytes());
        hash.update(path.as_bytes());
        hash.finalize().into()
    }

    /// The stream called `path`.
    pub fn stream(self, path: &str) -> Draw {
        Draw(ChaCha8Rng::from_seed(self.digest(path)))
    }

    /// A key for [`mix`], for what is drawn by time and not in sequence.
    pub fn key(self, path: &str) -> u64 {
        let digest = self.digest(path);
        u64::from_le_bytes(digest[..8].try_into().expect("8 bytes of 32"))
    }

    /// A UUID (version 4 in form), different for each path.
    pub fn uuid(self, path: &str) -> String {
        let mut bytes = self.digest(path);
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        let mut text = String::with_capacity(36);
        for (i, byte) in bytes[..16].iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from_digit(digit.into(), 16).expect("a hexadecimal digit"));
            }
        }
        text
    }
}

/// A random stream.
#[derive(Clone, Debug)]
pub struct Draw(ChaCha8Rng);

impl Draw {
    /// The stream of `key` and `at`: for what is drawn piece by piece of time, each by itself.
    pub fn keyed(key: u64, at: u64) -> Self {
        let mut seed = [0; 32];
        for (word, bytes) in (0..).zip(seed.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&mix(key.wrapping_add(word), at).to_le_bytes());
        }
        Self(ChaCha8Rng::from_seed(seed))
    }

    /// A whole number below `n`, which is above 0.
    pub fn below(&mut self, n: u64) -> u64 {
        scale(self.0.next_u64(), n)
    }

    /// A whole number of `[low, high]`.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below(high.abs_diff(low) + 1) as i64
    }

    /// True `ppm` times in a million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }

    /// One of `choices`, each as often as its weight says; they are not all 0.
    pub fn weighted<T: Copy>(&mut self, choices: &[(T, u32)]) -> T {
        let total: u64 = choices.iter().map(|(_, weight)| u64::from(*weight)).sum();
        let mut left = self.below(total);
        for (choice, weight) in choices {
            match left.checked_sub(u64::from(*weight)) {
                Some(rest) => left = rest,
                None => return *choice,
            }
        }
        unreachable!("a number below the sum of the weights falls on one of them")
    }
}

fn scale(random: u64, n: u64) -> u64 {
    ((u128::from(random) * u128::from(n)) >> 64) as u64
}

/// A number that depends on `key` and `at` alone (SplitMix64's finaliser, twice).
pub fn mix(key: u64, at: u64) -> u64 {
    finalise(finalise(key ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(key))
}

/// [`mix`], as a whole number below `n`.
pub fn mix_below(key: u64, at: u64, n: u64) -> u64 {
    scale(mix(key, at), n)
}

fn finalise(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_fixed_by_seed_and_name() {
        let first = |seed: u64, path: &str| Seed(seed).stream(path).below(1 << 40);
        assert_eq!(first(7, "a/b"), 989_028_069_089, "the generator, the derivation or the arithmetic has changed");
        assert_ne!(first(7, "a/b"), first(8, "a/b"));
        assert_ne!(first(7, "a/b"), first(7, "a/c"));
        assert_eq!(Seed(7).uuid("pod/1").len(), 36);
        assert_eq!(Seed(7).uuid("pod/1").as_bytes()[14], b'4');
    }

    #[test]
    fn draws_keep_to_their_ranges() {
        let mut draw = Seed(1).stream("x");
        for _ in 0..10_000 {
            assert!((-3..=5).contains(&draw.between(-3, 5)));
        }
        let heads = (0..100_000).filter(|_| draw.chance(250_000)).count();
        assert!((24_000..26_000).contains(&heads), "{heads}");
        let picks = (0..10_000).filter(|_| draw.weighted(&[('a', 1), ('b', 0), ('c', 3)]) == 'c').count();
        assert!((7_200..7_800).contains(&picks), "{picks}");
        let spread: std::collections::BTreeSet<u64> = (0..1000).map(|at| mix_below(3, at, 100)).collect();
        assert_eq!(spread.len(), 100);
    }
}
