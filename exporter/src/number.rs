//! Numbers as dcgm-exporter prints them: whole numbers as digits, others with six decimals.

use std::io::Write;

/// Appends `value` as digits.
pub fn integer(value: i64, out: &mut Vec<u8>) {
    if value < 0 {
        out.push(b'-');
    }
    digits(value.unsigned_abs(), 1, out);
}

/// Bytes that [`integer`] appends.
pub fn integer_len(value: i64) -> usize {
    usize::from(value < 0) + value.unsigned_abs().checked_ilog10().map_or(1, |log| log as usize + 1)
}

const MILLION: u64 = 1_000_000;

/// Appends `value` with six decimals, the last rounded to nearest of the exact binary value, ties to even: C's `%f`.
pub fn six_decimals(value: f64, out: &mut Vec<u8>) {
    if let Some(units) = millionths(value) {
        if value.is_sign_negative() {
            out.push(b'-');
        }
        digits(units / MILLION, 1, out);
        out.push(b'.');
        digits(units % MILLION, 6, out);
    } else if value.is_finite() {
        write!(out, "{value:.6}").expect("a vector takes every write");
    } else {
        let text: &[u8] = match (value.is_nan(), value > 0.0) {
            (true, _) => b"NaN",
            (false, true) => b"+Inf",
            (false, false) => b"-Inf",
        };
        out.extend_from_slice(text);
    }
}

/// Bytes that [`six_decimals`] appends; none where only printing tells.
pub fn six_decimals_len(value: f64) -> Option<usize> {
    // Whole digits, the point and six more.
    millionths(value).map(|units| usize::from(value.is_sign_negative()) + integer_len((units / MILLION) as i64) + 7)
}

/// The nearest whole number of millionths to the value without its sign; none where it is not plain which that is.
fn millionths(value: f64) -> Option<u64> {
    let scaled = value.abs() * 1e6;
    if scaled.is_nan() || scaled >= 1e14 {
        return None;
    }
    // The product is off by at most an ulp/2 of `scaled`, below 0.01, and so is the sum: only near a tie could they mislead.
    let nearest = (scaled + 0.5) as i64;
    ((scaled - nearest as f64).abs() < 0.48).then_some(nearest as u64)
}

const PAIRS: &[u8; 200] = b"00010203040506070809\
10111213141516171819202122232425262728293031323334353637383940414243444546474849\
50515253545556575859606162636465666768697071727374757677787980818283848586878889\
90919293949596979899";

/// Appends `value`, zeros before it to at least `width` digits.
fn digits(mut value: u64, width: usize, out: &mut Vec<u8>) {
    let mut buffer = [b'0'; 20];
    let mut at = buffer.len();
    while value >= 100 {
        let pair = (value % 100) as usize * 2;
        value /= 100;
        at -= 2;
        buffer[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }
    if value >= 10 {
        let pair = value as usize * 2;
        at -= 2;
        buffer[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    } else if value > 0 {
        at -= 1;
        buffer[at] = b'0' + value as u8;
    }
    at = at.min(buffer.len() - width);
    out.extend_from_slice(&buffer[at..]);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn text(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_at_the_edges() {
        for value in [0, 7, 10, 99, 100, 101, 12_345, -1, i64::MAX, i64::MIN, 2_147_483_632] {
            assert_eq!(text(|out| integer(value, out)), value.to_string());
            assert_eq!(integer_len(value), value.to_string().len());
        }
        for value in [
            0.0,
            -0.0,
            0.5,
            0.0000005,
            0.0000015,
            0.9999995,
            1.0,
            577.123,
            7999.9999995,
            1e8,
            1.5e13,
            140_737_488_355_328.0,
            1e300,
        ] {
            assert_eq!(text(|out| six_decimals(value, out)), format!("{value:.6}"));
        }
        assert_eq!(text(|out| six_decimals(f64::NAN, out)), "NaN");
        assert_eq!(text(|out| six_decimals(f64::NEG_INFINITY, out)), "-Inf");
    }

    proptest! {
        #[test]
        fn every_float_is_printed_as_c_does(value in proptest::num::f64::NORMAL | proptest::num::f64::SUBNORMAL) {
            prop_assert_eq!(text(|out| six_decimals(value, out)), format!("{value:.6}"));
            let printed = format!("{value:.6}").len();
            prop_assert!(six_decimals_len(value).is_none_or(|len| len == printed));
        }

        #[test]
        fn so_are_those_near_a_tie(units in 0_u64..100_000_000_000, steps in -3_i64..=3) {
            let tie = (units as f64 + 0.5) / 1e6;
            let value = f64::from_bits(tie.to_bits().wrapping_add_signed(steps));
            prop_assert_eq!(text(|out| six_decimals(value, out)), format!("{value:.6}"));
            let printed = format!("{value:.6}").len();
            prop_assert!(six_decimals_len(value).is_none_or(|len| len == printed));
        }

        #[test]
        fn every_integer_is_printed(value: i64) {
            prop_assert_eq!(text(|out| integer(value, out)), value.to_string());
            prop_assert_eq!(integer_len(value), value.to_string().len());
        }
    }
}
