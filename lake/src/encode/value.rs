//! What a column chunk must know of a physical type: PLAIN bytes, and least and greatest values as parquet writes them.

use std::{borrow::Borrow, hash::Hash};

use parquet::{
    basic::Type,
    data_type::ByteArray,
    file::{
        properties::WriterProperties,
        statistics::{Statistics, ValueStatistics},
    },
};

/// A value that has a place among its like: `[u8]` for text, numbers and truth values as they are.
pub(super) trait Bounded: ToOwned<Owned: Borrow<Self>> {
    /// The type in the file.
    const TYPE: Type;

    /// Of two that are not NaN.
    fn is_below(&self, other: &Self) -> bool;

    /// Of a chunk.
    fn statistics(bounds: Option<(&Self, &Self)>, nulls: u64, properties: &WriterProperties) -> Statistics;

    /// The least and the greatest value of a page, for the column index.
    fn page_bounds(bounds: (&Self, &Self), properties: &WriterProperties) -> (Vec<u8>, Vec<u8>);
}

/// A value that a dictionary may have.
pub(super) trait Value: Bounded + Hash {
    /// What parquet's writer adds to its estimate of a page of codes.
    const LEAD: usize;
    /// Bytes of every value, where they are alike.
    const WIDTH: Option<usize>;

    /// Bytes of [`Value::put_plain`].
    fn plain_size(&self) -> usize;

    fn put_plain(&self, out: &mut Vec<u8>);

    /// Bytes of a text; none for a number.
    fn text_bytes(&self) -> Option<usize>;

    /// Whether `plain` begins with the value as [`Value::put_plain`] writes it.
    fn begins(&self, plain: &[u8]) -> bool;
}

impl Bounded for [u8] {
    const TYPE: Type = Type::BYTE_ARRAY;

    fn is_below(&self, other: &Self) -> bool {
        self < other
    }

    fn statistics(bounds: Option<(&Self, &Self)>, nulls: u64, properties: &WriterProperties) -> Statistics {
        let most = properties.statistics_truncate_length();
        let (least, greatest) = (bounds.map(|(least, _)| below(least, most)), bounds.map(|(_, greatest)| above(greatest, most)));
        let exact = |bound: &Option<(Vec<u8>, bool)>| bound.as_ref().is_some_and(|(_, exact)| *exact);
        let (least_exact, greatest_exact) = (exact(&least), exact(&greatest));
        let value = |bound: Option<(Vec<u8>, bool)>| bound.map(|(bytes, _)| ByteArray::from(bytes));
        let statistics = ValueStatistics::new(value(least), value(greatest), None, Some(nulls), false);
        Statistics::ByteArray(statistics.with_min_is_exact(least_exact).with_max_is_exact(greatest_exact))
    }

    fn page_bounds((least, greatest): (&Self, &Self), properties: &WriterProperties) -> (Vec<u8>, Vec<u8>) {
        let most = properties.column_index_truncate_length();
        (below(least, most).0, above(greatest, most).0)
    }
}

impl Value for [u8] {
    const LEAD: usize = 1;
    const WIDTH: Option<usize> = None;

    fn plain_size(&self) -> usize {
        size_of::<u32>() + self.len()
    }

    fn put_plain(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.len() as u32).to_le_bytes());
        out.extend_from_slice(self);
    }

    fn text_bytes(&self) -> Option<usize> {
        Some(self.len())
    }

    fn begins(&self, plain: &[u8]) -> bool {
        let length = (self.len() as u32).to_le_bytes();
        plain.strip_prefix(&length).is_some_and(|rest| rest.starts_with(self))
    }
}

/// `$signed`: whether the old fields of statistics mean the same, for readers that know no others.
macro_rules! number {
    ($of:ty, $physical:ident, $statistics:ident, $signed:literal, $bytes:expr) => {
        impl Bounded for $of {
            const TYPE: Type = Type::$physical;

            fn is_below(&self, other: &Self) -> bool {
                self < other
            }

            fn statistics(bounds: Option<(&Self, &Self)>, nulls: u64, _: &WriterProperties) -> Statistics {
                let (least, greatest) = bounds.unzip();
                let statistics = ValueStatistics::new(least.copied(), greatest.copied(), None, Some(nulls), false);
                Statistics::$statistics(statistics.with_backwards_compatible_min_max($signed))
            }

            fn page_bounds((least, greatest): (&Self, &Self), _: &WriterProperties) -> (Vec<u8>, Vec<u8>) {
                let bytes: fn(&Self) -> Vec<u8> = $bytes;
                (bytes(least), bytes(greatest))
            }
        }
    };
}

number!(i64, INT64, Int64, true, |value| value.to_le_bytes().to_vec());
number!(f32, FLOAT, Float, true, |value| value.to_le_bytes().to_vec());
number!(f64, DOUBLE, Double, true, |value| value.to_le_bytes().to_vec());
number!(bool, BOOLEAN, Boolean, false, |value| vec![u8::from(*value)]);

impl Value for i64 {
    const LEAD: usize = 0;
    const WIDTH: Option<usize> = Some(size_of::<Self>());

    fn plain_size(&self) -> usize {
        size_of::<Self>()
    }

    fn put_plain(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn text_bytes(&self) -> Option<usize> {
        None
    }

    fn begins(&self, plain: &[u8]) -> bool {
        plain.starts_with(&self.to_le_bytes())
    }
}

/// `text` or a shorter one that is not greater, and whether it is `text`.
fn below(text: &[u8], most: Option<usize>) -> (Vec<u8>, bool) {
    let cut = most.filter(|most| text.len() > *most).and_then(|most| {
        let end = (1..=most).rfind(|end| boundary(text, *end))?;
        Some((text[..end].to_vec(), false))
    });
    cut.unwrap_or_else(|| (text.to_vec(), true))
}

/// `text` or a shorter one that is greater, and whether it is `text`.
fn above(text: &[u8], most: Option<usize>) -> (Vec<u8>, bool) {
    let cut = most.filter(|most| text.len() > *most).and_then(|most| {
        let end = (most.saturating_sub(3)..=most).rfind(|end| boundary(text, *end))?;
        let mut kept = str::from_utf8(&text[..end]).ok()?;
        // The last character that has a successor of its own length.
        while let Some(last) = kept.chars().next_back() {
            kept = &kept[..kept.len() - last.len_utf8()];
            let next = char::from_u32(u32::from(last) + 1).filter(|next| next.len_utf8() == last.len_utf8());
            if let Some(next) = next {
                return Some((format!("{kept}{next}").into_bytes(), false));
            }
        }
        None
    });
    cut.unwrap_or_else(|| (text.to_vec(), true))
}

/// Whether a character begins at `at`, or the text ends there.
fn boundary(text: &[u8], at: usize) -> bool {
    text.get(at).is_none_or(|byte| byte & 0xC0 != 0x80)
}
