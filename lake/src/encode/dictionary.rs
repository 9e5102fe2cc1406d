//! The dictionary of a column chunk: values by their codes, codes by their values.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;

use super::value::Value;

/// Code of a value that was not looked up yet, and of no value.
pub(super) const UNSEEN: u32 = u32::MAX;

/// Values in the order in which they were first seen, each once.
#[derive(Default)]
pub(super) struct Dictionary {
    plain: Vec<u8>,
    entries: Vec<Entry>,
    /// Codes, each at the place of its hash or the next free one after it; twice as many places as values.
    places: Vec<u32>,
    hasher: RandomState,
}

struct Entry {
    start: usize,
    hash: u32,
    /// The last page that has the value.
    page: u32,
}

impl Dictionary {
    /// The code of `value`, which is new if it was not there.
    pub(super) fn code<V: Value + ?Sized>(&mut self, value: &V) -> u32 {
        if self.places.len() < 2 * (self.entries.len() + 1) {
            self.grow();
        }
        let hash = self.hasher.hash_one(value) as u32;
        let mut place = hash as usize & (self.places.len() - 1);
        loop {
            let code = self.places[place];
            let Some(entry) = self.entries.get(code as usize) else { break };
            if entry.hash == hash && value.begins(&self.plain[entry.start..]) {
                return code;
            }
            place = (place + 1) & (self.places.len() - 1);
        }
        let code = self.entries.len() as u32;
        self.places[place] = code;
        self.entries.push(Entry { start: self.plain.len(), hash, page: UNSEEN });
        value.put_plain(&mut self.plain);
        code
    }

    fn grow(&mut self) {
        let many = (4 * self.entries.len()).max(16).next_power_of_two();
        self.places = vec![UNSEEN; many];
        for (code, entry) in (0..).zip(&self.entries) {
            let mut place = entry.hash as usize & (many - 1);
            while self.places[place] != UNSEEN {
                place = (place + 1) & (many - 1);
            }
            self.places[place] = code;
        }
    }

    /// Whether page `number` did not have `code` before; it has now.
    pub(super) fn first_in(&mut self, code: u32, number: u32) -> bool {
        let page = &mut self.entries[code as usize].page;
        std::mem::replace(page, number) != number
    }

    /// The values one after the other, as the dictionary page has them.
    pub(super) fn plain(&self) -> &[u8] {
        &self.plain
    }

    pub(super) fn values(&self) -> usize {
        self.entries.len()
    }

    /// Bits of a code.
    pub(super) fn width(&self) -> u8 {
        (u64::BITS - (self.entries.len().saturating_sub(1) as u64).leading_zeros()) as u8
    }
}
