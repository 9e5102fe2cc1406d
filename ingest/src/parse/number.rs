//! Values and timestamps as Go's `strconv` reads them, less what the Prometheus parsers refuse.

use super::Reason;

/// A sample value: decimal, `NaN`, `Inf`, `Infinity` in any case, a sign where Go takes one.
///
/// Not hexadecimal, no underscores (the vectors and all five reference parsers refuse both); a number above the
/// range of f64 is refused, one below it is 0.
pub(super) fn value(token: &str) -> Result<f64, Reason> {
    let bytes = token.as_bytes();
    let (negative, digits) = match bytes.first() {
        Some(b'-') => (true, &bytes[1..]),
        Some(b'+') => (false, &bytes[1..]),
        _ => (false, bytes),
    };
    match digits.first() {
        Some(b'0'..=b'9' | b'.') => {
            // The common integers of DCGM pages, read without the general machinery; exact below 2^53.
            if digits.len() <= 15 {
                let mut n: u64 = 0;
                if digits.iter().all(|b| {
                    n = n * 10 + u64::from(b.wrapping_sub(b'0'));
                    b.is_ascii_digit()
                }) {
                    let v = n as f64;
                    return Ok(if negative { -v } else { v });
                }
            }
            match fast_float2::parse::<f64, _>(bytes) {
                Ok(v) if v.is_infinite() => Err(Reason::ValueOutOfRange),
                Ok(v) => Ok(v),
                Err(_) => Err(Reason::BadValue),
            }
        }
        Some(b'n' | b'N') if digits.len() == bytes.len() && digits.eq_ignore_ascii_case(b"nan") => Ok(f64::NAN),
        Some(b'i' | b'I') if digits.eq_ignore_ascii_case(b"inf") || digits.eq_ignore_ascii_case(b"infinity") => {
            Ok(if negative { f64::NEG_INFINITY } else { f64::INFINITY })
        }
        _ => Err(Reason::BadValue),
    }
}

/// A timestamp: a signed 64-bit number of milliseconds.
pub(super) fn timestamp(token: &str) -> Result<i64, Reason> {
    // `i64::from_str` takes a sign and decimal digits and refuses overflow: the grammar of Go's ParseInt in base 10.
    token.parse().map_err(|_| Reason::BadTimestamp)
}

/// A timestamp of OpenMetrics, a number of seconds, as the nearest whole millisecond.
pub(super) fn seconds(token: &str) -> Result<i64, Reason> {
    let ms = (value(token).map_err(|_| Reason::BadSeconds)? * 1000.0).round();
    // The bounds are exact: -2^63 is an i64, 2^63 is the first float above all of them. NaN is in no range.
    if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&ms) {
        Ok(ms as i64)
    } else {
        Err(Reason::BadSeconds)
    }
}
