//! Parquet's hybrid of run lengths and packed bits, fed by runs: a long run costs what a short one does.
//!
//! The choices between the two forms are those of parquet's own encoder, so that the bytes are the same: values are gathered in
//! groups of eight; a group of eight equal ones begins a run, any other is packed.

/// Values of a group.
const GROUP: usize = 8;
/// Groups of one packed stretch, one more than which its one-byte header could not count.
const MOST_GROUPS: usize = 63;

/// Encodes values of `width` bits, at most 32.
pub(super) struct Hybrid {
    width: usize,
    out: Vec<u8>,
    group: [u32; GROUP],
    grouped: usize,
    /// The last value, and how often it was put since the last packed group.
    current: u32,
    repeats: usize,
    /// Groups of the packed stretch that is open, and the place of its header.
    packed: usize,
    header: Option<usize>,
}

impl Hybrid {
    pub(super) fn new(width: u8) -> Self {
        let (group, width) = ([0; GROUP], usize::from(width));
        Self { width, out: Vec::new(), group, grouped: 0, current: 0, repeats: 0, packed: 0, header: None }
    }

    /// Begins again with values of `width` bits.
    pub(super) fn restart(&mut self, width: u8) {
        self.out.clear();
        self.width = usize::from(width);
        (self.grouped, self.current, self.repeats, self.packed, self.header) = (0, 0, 0, 0, None);
    }

    /// Puts `value` `count` times.
    pub(super) fn put(&mut self, value: u32, mut count: usize) {
        if count == 0 {
            return;
        }
        if value != self.current {
            if self.repeats >= GROUP {
                self.end_run();
            }
            (self.current, self.repeats) = (value, 0);
        }
        // Until a whole group is of this value; fewer than two groups take that.
        while count > 0 && self.repeats < GROUP {
            self.group[self.grouped] = value;
            self.grouped += 1;
            self.repeats += 1;
            count -= 1;
            if self.grouped == GROUP {
                self.end_group();
            }
        }
        self.repeats += count;
    }

    /// What was put since the start.
    pub(super) fn finish(&mut self) -> &[u8] {
        if self.packed > 0 || self.repeats > 0 || self.grouped > 0 {
            let one_run = self.packed == 0 && (self.repeats == self.grouped || self.grouped == 0);
            if self.repeats > 0 && one_run {
                self.end_run();
            } else {
                if self.grouped > 0 {
                    self.group[self.grouped..].fill(0);
                    self.pack();
                }
                self.end_packed();
            }
        }
        &self.out
    }

    /// Ends a page of levels, whose length comes first, and begins the next one.
    pub(super) fn end_page(&mut self, out: &mut Vec<u8>) {
        let bytes = self.finish();
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(bytes);
        self.restart(1);
    }

    fn end_group(&mut self) {
        if self.repeats >= GROUP {
            self.grouped = 0;
            self.end_packed();
            return;
        }
        self.pack();
        if self.packed >= MOST_GROUPS {
            self.end_packed();
        }
        self.repeats = 0;
    }

    fn end_run(&mut self) {
        let mut length = (self.repeats as u64) << 1;
        while length >= 0x80 {
            self.out.push(length as u8 | 0x80);
            length >>= 7;
        }
        self.out.push(length as u8);
        self.out.extend_from_slice(&self.current.to_le_bytes()[..self.width.div_ceil(8)]);
        (self.grouped, self.repeats) = (0, 0);
    }

    fn pack(&mut self) {
        self.header.get_or_insert_with(|| {
            self.out.push(0);
            self.out.len() - 1
        });
        // Four values of at most 32 bits fit; the whole group is as many bytes as a value has bits.
        let half = |values: &[u32]| values.iter().rev().fold(0u128, |bits, value| bits << self.width | u128::from(*value));
        let (low, high) = (half(&self.group[..4]), half(&self.group[4..]));
        let shift = 4 * self.width;
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&(low | high.checked_shl(shift as u32).unwrap_or(0)).to_le_bytes());
        let carried = if shift == 0 { 0 } else { high.checked_shr((128 - shift) as u32).unwrap_or(0) };
        bytes[16..].copy_from_slice(&carried.to_le_bytes());
        self.out.extend_from_slice(&bytes[..self.width]);
        self.packed += 1;
        self.grouped = 0;
    }

    fn end_packed(&mut self) {
        if let Some(header) = self.header.take() {
            self.out[header] = (self.packed << 1 | 1) as u8;
        }
        self.packed = 0;
    }
}
