//! Label blocks of a target's earlier pages, by their bytes.
//!
//! A page of one exporter repeats: the same blocks (`{gpu="0",...}`) stand behind the name of every family, in the same order,
//! round after round. So a block is looked for where it is most likely, behind the block that came before it, and one
//! comparison of bytes replaces the reading of its labels. What is not found there is read, and then found by its hash.

use super::line::{Label, tick};
use super::{Format, Labels};
use std::collections::HashMap;
use std::sync::Arc;

/// Label blocks that are known by number. Bounded: where it is full nothing more is taken, and the next page begins anew.
#[derive(Debug, Default)]
pub struct Memory {
    /// Most bytes of blocks.
    limit: usize,
    format: Format,
    blocks: Vec<Known>,
    numbers: HashMap<Arc<str>, u32>,
    bytes: usize,
    full: bool,
    /// The block of the sample before, of the page before where a page begins.
    last: Option<u32>,
}

#[derive(Debug)]
struct Known {
    raw: Arc<str>,
    /// What stood behind it, the latest first.
    next: [Option<u32>; 2],
}

/// Most blocks that are known. A node has tens of devices.
const MAX_BLOCKS: usize = 8_192;

impl Memory {
    /// An empty memory that takes at most `limit` bytes of blocks; with 0 it takes none.
    pub fn new(limit: usize) -> Self {
        Memory { limit, ..Memory::default() }
    }

    /// Makes it fit for a page of this format: the two have other rules for blanks in a block.
    pub(super) fn begin(&mut self, format: Format) {
        if self.full || self.format != format {
            *self = Memory { limit: self.limit, format, ..Memory::default() };
        }
    }

    /// The known block that `rest` begins with, where it is the expected one: its number and its length.
    #[inline]
    pub(super) fn guess(&self, rest: &str) -> Option<(u32, usize)> {
        let next = self.blocks.get(self.last? as usize)?.next;
        next.into_iter().flatten().find_map(|number| {
            let raw = &*self.blocks.get(number as usize)?.raw;
            tick(raw.len().min(rest.len()) as u64);
            rest.as_bytes().starts_with(raw.as_bytes()).then_some((number, raw.len()))
        })
    }

    /// A good sample had this block.
    #[inline]
    pub(super) fn follow(&mut self, number: u32) {
        if let Some(last) = self.last.and_then(|last| self.blocks.get_mut(last as usize))
            && last.next[0] != Some(number)
        {
            last.next = [Some(number), last.next[0]];
        }
        self.last = Some(number);
    }

    /// A good sample had a block that was not expected, with these labels.
    pub(super) fn meet<'l, 'a>(&mut self, raw: &str, labels: &'l [Label<'a>]) -> Labels<'l, 'a> {
        tick(raw.len() as u64);
        if let Some(number) = self.numbers.get(raw).copied() {
            self.follow(number);
            return Labels::Known(number);
        }
        if self.full || self.blocks.len() == MAX_BLOCKS || raw.len() > self.limit - self.bytes {
            self.full = true;
            return Labels::Read(labels, None);
        }
        let number = self.blocks.len() as u32;
        let raw: Arc<str> = raw.into();
        self.bytes += raw.len();
        self.numbers.insert(raw.clone(), number);
        self.blocks.push(Known { raw, next: [None; 2] });
        self.follow(number);
        Labels::Read(labels, Some(number))
    }
}
