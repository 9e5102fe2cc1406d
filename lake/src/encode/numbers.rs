//! Encodings of numbers and truth values, each byte for byte as parquet's own encoder has it.

use parquet::basic::Encoding;

use super::value::Bounded;

/// A value of a fixed width.
pub(super) trait Number: Bounded<Owned = Self> + Copy {
    /// Bytes of it, as pages are measured.
    const WIDTH: usize;

    /// The least and the greatest of some, NaN left out; a zero that is the least is negative, one that is the greatest is not.
    fn bounds(values: &[Self]) -> Option<(Self, Self)>;
}

/// Encodes a page of values.
pub(super) trait Encode: Default {
    type Number: Number;
    const ENCODING: Encoding;

    fn put(&mut self, values: &[Self::Number]);

    /// Bytes of the page, by which it is found to be full.
    fn size(&self) -> usize;

    /// Adds the page's bytes to `out`, and begins the next one.
    fn end_page(&mut self, out: &mut Vec<u8>);
}

macro_rules! whole {
    ($of:ty, $width:literal) => {
        impl Number for $of {
            const WIDTH: usize = $width;

            fn bounds(values: &[Self]) -> Option<(Self, Self)> {
                let (&first, rest) = values.split_first()?;
                Some(rest.iter().fold((first, first), |(least, greatest), value| (least.min(*value), greatest.max(*value))))
            }
        }
    };
}

macro_rules! fraction {
    ($of:ty, $width:literal) => {
        impl Number for $of {
            const WIDTH: usize = $width;

            fn bounds(values: &[Self]) -> Option<(Self, Self)> {
                let none = (Self::INFINITY, Self::NEG_INFINITY);
                let (least, greatest) = values.iter().fold(none, |(least, greatest), &value| {
                    (if value < least { value } else { least }, if value > greatest { value } else { greatest })
                });
                let zero = |value: Self, zero: Self| if value == 0.0 { zero } else { value };
                (least <= greatest).then(|| (zero(least, -0.0), zero(greatest, 0.0)))
            }
        }
    };
}

whole!(i64, 8);
whole!(bool, 1);
fraction!(f32, 4);
fraction!(f64, 8);

/// Values of a block of [`Delta`], and of one of its four parts.
const BLOCK: usize = 256;
const PART: usize = 64;

/// DELTA_BINARY_PACKED: the differences of whole numbers, as few bits of each as the widest of 64 has.
pub(super) struct Delta {
    values: usize,
    first: i64,
    last: i64,
    block: [i64; BLOCK],
    held: usize,
    packed: Vec<u8>,
}

impl Default for Delta {
    fn default() -> Self {
        Self { values: 0, first: 0, last: 0, block: [0; BLOCK], held: 0, packed: Vec::new() }
    }
}

impl Encode for Delta {
    type Number = i64;
    const ENCODING: Encoding = Encoding::DELTA_BINARY_PACKED;

    fn put(&mut self, mut values: &[i64]) {
        if self.values == 0
            && let Some((&first, rest)) = values.split_first()
        {
            (self.first, self.last, self.values, values) = (first, first, 1, rest);
        }
        self.values += values.len();
        while let Some(&first) = values.first() {
            let room = &mut self.block[self.held..];
            let some;
            (some, values) = values.split_at(room.len().min(values.len()));
            room[0] = first.wrapping_sub(self.last);
            for (room, pair) in room[1..].iter_mut().zip(some.windows(2)) {
                *room = pair[1].wrapping_sub(pair[0]);
            }
            self.last = some[some.len() - 1];
            self.held += some.len();
            if self.held == BLOCK {
                self.end_block();
            }
        }
    }

    fn size(&self) -> usize {
        self.packed.len()
    }

    fn end_page(&mut self, out: &mut Vec<u8>) {
        self.end_block();
        for number in [BLOCK as u64, (BLOCK / PART) as u64, self.values as u64, zigzag(self.first)] {
            varint(number, out);
        }
        out.append(&mut self.packed);
        // A page without values says that its first one is 0.
        (self.values, self.first) = (0, 0);
    }
}

impl Delta {
    fn end_block(&mut self) {
        let held = &self.block[..std::mem::take(&mut self.held)];
        let Some(&least) = held.iter().min() else { return };
        varint(zigzag(least), &mut self.packed);
        let widths = self.packed.len();
        self.packed.extend_from_slice(&[0; BLOCK / PART]);
        for (number, part) in held.chunks(PART).enumerate() {
            let mut above = [0; PART];
            let mut bits = 0;
            for (above, difference) in above.iter_mut().zip(part) {
                *above = difference.wrapping_sub(least) as u64;
                bits |= *above;
            }
            let width = u64::BITS - bits.leading_zeros();
            self.packed[widths + number] = width as u8;
            pack(&above, width, &mut self.packed);
        }
    }
}

/// The lowest `width` bits of each value, one after the other.
fn pack(values: &[u64; PART], width: u32, out: &mut Vec<u8>) {
    let (mut words, mut written, mut word, mut filled) = ([0u8; PART * 8], 0, 0, 0);
    if width == 0 {
        return;
    }
    for &value in values {
        word |= value << filled;
        filled += width;
        if filled >= u64::BITS {
            words[written..written + 8].copy_from_slice(&word.to_le_bytes());
            written += 8;
            filled -= u64::BITS;
            word = if filled == 0 { 0 } else { value >> (width - filled) };
        }
    }
    out.extend_from_slice(&words[..written]);
}

fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// BYTE_STREAM_SPLIT: first the lowest byte of every value, then the next of every value.
#[derive(Default)]
pub(super) struct Split {
    streams: [Vec<u8>; 4],
}

impl Encode for Split {
    type Number = f32;
    const ENCODING: Encoding = Encoding::BYTE_STREAM_SPLIT;

    fn put(&mut self, values: &[f32]) {
        for (place, stream) in self.streams.iter_mut().enumerate() {
            stream.extend(values.iter().map(|value| (value.to_bits() >> (8 * place)) as u8));
        }
    }

    fn size(&self) -> usize {
        self.streams.iter().map(Vec::len).sum()
    }

    fn end_page(&mut self, out: &mut Vec<u8>) {
        self.streams.iter_mut().for_each(|stream| out.append(stream));
    }
}

/// PLAIN doubles.
#[derive(Default)]
pub(super) struct Plain(Vec<u8>);

impl Encode for Plain {
    type Number = f64;
    const ENCODING: Encoding = Encoding::PLAIN;

    fn put(&mut self, values: &[f64]) {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn size(&self) -> usize {
        self.0.len()
    }

    fn end_page(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.0);
    }
}

/// PLAIN truth values: eight a byte, the first one lowest.
#[derive(Default)]
pub(super) struct Bits {
    bytes: Vec<u8>,
    values: usize,
}

impl Encode for Bits {
    type Number = bool;
    const ENCODING: Encoding = Encoding::PLAIN;

    fn put(&mut self, mut values: &[bool]) {
        let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
        if let (Some(last), held @ 1..) = (self.bytes.last_mut(), self.values % 8) {
            let some;
            (some, values) = values.split_at((8 - held).min(values.len()));
            *last |= byte(some) << held;
            self.values += some.len();
        }
        self.bytes.extend(values.chunks(8).map(byte));
        self.values += values.len();
    }

    fn size(&self) -> usize {
        self.bytes.len()
    }

    fn end_page(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.bytes);
        self.values = 0;
    }
}
