//! The order of rows by a few columns, as one number a row: texts count by their rank among the distinct ones, numbers by their
//! distance from the least, nulls first. Sorting numbers is an order of magnitude faster than comparing rows column by column,
//! and rows that are equal keep their order.

use std::{cmp::Ordering, collections::HashMap};

use arrow::{
    array::{Array, ArrayRef, AsArray, UInt32Array},
    datatypes::{DataType, Int64Type, TimeUnit, TimestampMicrosecondType},
};

/// Bits of a row's key that are left when its place stands in the lowest ones.
const KEY_BITS: u32 = u128::BITS - u32::BITS;

/// Places of rows in the order of `keys`, the first key first. None where a key is of another type than the tables' texts, whole
/// numbers and times, or where they are too many values for one number: then rows are to be compared.
pub(crate) fn order(keys: &[ArrayRef]) -> Option<UInt32Array> {
    let rows = keys.first()?.len();
    u32::try_from(rows).ok()?;
    let mut packed = vec![0u128; rows];
    let mut left = KEY_BITS;
    for key in keys {
        let bits = match key.data_type() {
            DataType::Utf8 => texts(key, &mut packed, left)?,
            DataType::Int64 => numbers(key.as_primitive::<Int64Type>().iter(), &mut packed, left)?,
            DataType::Timestamp(TimeUnit::Microsecond, _) => {
                numbers(key.as_primitive::<TimestampMicrosecondType>().iter(), &mut packed, left)?
            }
            _ => return None,
        };
        left -= bits;
    }
    for (place, key) in (0u128..).zip(&mut packed) {
        *key = *key << u32::BITS | place;
    }
    packed.sort_unstable();
    // The lowest 32 bits.
    Some(packed.into_iter().map(|key| key as u32).collect())
}

/// Bits that the numbers 0 to `most` need, where there are that many left.
fn bits(most: u64, left: u32) -> Option<u32> {
    let bits = u64::BITS - most.leading_zeros();
    (bits <= left).then_some(bits)
}

fn texts(key: &ArrayRef, packed: &mut [u128], left: u32) -> Option<u32> {
    let key = key.as_string::<i32>();
    let mut distinct: Vec<&str> = Vec::new();
    let mut known: HashMap<&str, u32> = HashMap::new();
    let mut last: Option<(&str, u32)> = None;
    // The number of each row's text in order of first sight, from 1; 0 is null.
    let mut seen: Vec<u32> = Vec::with_capacity(key.len());
    for text in key {
        seen.push(match (text, last) {
            (None, _) => 0,
            // Neighbours are often alike.
            (Some(text), Some((same, number))) if text == same => number,
            (Some(text), _) => {
                let number = *known.entry(text).or_insert_with(|| {
                    distinct.push(text);
                    distinct.len() as u32
                });
                last = Some((text, number));
                number
            }
        });
    }
    let mut by_text: Vec<u32> = (0..distinct.len() as u32).collect();
    by_text.sort_unstable_by(|a, b| distinct[*a as usize].cmp(distinct[*b as usize]));
    let mut rank = vec![0u32; distinct.len() + 1];
    for (place, number) in (1..).zip(by_text) {
        rank[number as usize + 1] = place;
    }
    let bits = bits(distinct.len() as u64, left)?;
    for (packed, seen) in packed.iter_mut().zip(seen) {
        *packed = *packed << bits | u128::from(rank[seen as usize]);
    }
    Some(bits)
}

fn numbers(key: impl Iterator<Item = Option<i64>> + Clone, packed: &mut [u128], left: u32) -> Option<u32> {
    let (least, most) = key.clone().flatten().fold((i64::MAX, i64::MIN), |(least, most), v| (least.min(v), most.max(v)));
    let range = match least.cmp(&most) {
        Ordering::Greater => 0,
        Ordering::Equal | Ordering::Less => most.abs_diff(least).checked_add(1)?,
    };
    let bits = bits(range, left)?;
    for (packed, value) in packed.iter_mut().zip(key) {
        // 0 is null.
        *packed = *packed << bits | value.map_or(0, |value| u128::from(value.abs_diff(least)) + 1);
    }
    Some(bits)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use arrow::array::{Int64Array, StringArray, TimestampMicrosecondArray};
    use arrow::compute::{SortColumn, SortOptions, lexsort_to_indices};
    use std::sync::Arc;

    /// Rows in the order of places, as text.
    fn rows(keys: &[ArrayRef], places: &UInt32Array) -> Vec<String> {
        let taken: Vec<ArrayRef> = keys.iter().map(|key| arrow::compute::take(key, places, None).unwrap()).collect();
        (0..places.len()).map(|row| taken.iter().map(|key| format!("{:?} ", key.slice(row, 1))).collect()).collect()
    }

    #[test]
    fn rows_stand_as_comparing_them_would_have_it_and_equal_ones_keep_their_order() {
        let mut random = 7u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for rows_of in [0, 1, 2, 500] {
            let text: StringArray = (0..rows_of).map(|_| (draw(9) > 0).then(|| format!("n{}", draw(30)))).collect();
            let number: Int64Array = (0..rows_of).map(|_| (draw(9) > 0).then(|| draw(7) as i64 - 3)).collect();
            let time: TimestampMicrosecondArray = (0..rows_of).map(|_| Some(draw(5) as i64)).collect();
            let keys: Vec<ArrayRef> = vec![Arc::new(text), Arc::new(number), Arc::new(time)];
            let options = Some(SortOptions { descending: false, nulls_first: true });
            let columns: Vec<SortColumn> = keys.iter().map(|key| SortColumn { values: key.clone(), options }).collect();
            let (ours, theirs) = (order(&keys).unwrap(), lexsort_to_indices(&columns, None).unwrap());
            let shown = rows(&keys, &ours);
            assert_eq!(shown, rows(&keys, &theirs));
            for at in 1..shown.len() {
                assert!(shown[at - 1] != shown[at] || ours.value(at - 1) < ours.value(at), "row {at}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_one_number_is_left_to_comparing() {
        let wide = || -> ArrayRef { Arc::new(Int64Array::from(vec![Some(i64::MIN / 2), Some(i64::MAX / 2), None])) };
        assert_eq!(order(&[wide()]).unwrap().values().to_vec(), [2, 0, 1]);
        assert!(order(&[wide(), wide()]).is_none());
        let all: ArrayRef = Arc::new(Int64Array::from(vec![i64::MIN, i64::MAX]));
        assert!(order(&[all]).is_none(), "one number more than fits");
    }
}
