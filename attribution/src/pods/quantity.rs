//! Kubernetes quantities of things that cannot be split: `2`, `1k`, `2e0`, `2000m`.

/// Why a text is no number of devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCount {
    /// Not in the form of a quantity.
    #[error("`{0}` is no quantity such as 2")]
    Form(String),
    /// Below zero.
    #[error("`{0}` is below zero")]
    Negative(String),
    /// A part of a device, which an extended resource never is.
    #[error("`{0}` is not whole; an extended resource is")]
    Part(String),
    /// More than any node has.
    #[error("`{0}` is above {max}", max = u32::MAX)]
    TooMany(String),
}

/// The number in `text`, exactly: a decimal number and a suffix (`n u m k M G T P E`, `Ki` to `Ei`) or a decimal exponent.
pub fn count(text: &str) -> Result<u32, BadCount> {
    let written = || text.chars().take(40).collect::<String>();
    let form = || BadCount::Form(written());
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && part.is_empty()) || part.contains('.') {
        return Err(form());
    }
    let (tens, twos) = scale(suffix).ok_or_else(form)?;
    // digits x 10^(tens - places) x 2^twos, without trailing zeros of the fraction
    let part = part.trim_end_matches('0');
    let digits = format!("{whole}{part}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    if negative {
        return Err(BadCount::Negative(written()));
    }
    let many = || BadCount::TooMany(written());
    let places = i64::try_from(part.len()).map_err(|_| many())?;
    let mut power = tens - places;
    // A number with many zeros at its end and a small suffix may still be small.
    let bare = digits.trim_end_matches('0');
    power += i64::try_from(digits.len() - bare.len()).map_err(|_| many())?;
    let value: u128 = if bare.len() > 30 {
        return Err(if power < 0 { BadCount::Part(written()) } else { many() });
    } else {
        bare.parse().map_err(|_| form())?
    };
    let value = value.checked_mul(1_u128 << twos).ok_or_else(many)?;
    let value = if power >= 0 {
        let up = u32::try_from(power).ok().and_then(|p| 10_u128.checked_pow(p)).ok_or_else(many)?;
        value.checked_mul(up).ok_or_else(many)?
    } else {
        let down = u32::try_from(-power).ok().and_then(|p| 10_u128.checked_pow(p)).ok_or_else(|| BadCount::Part(written()))?;
        if !value.is_multiple_of(down) {
            return Err(BadCount::Part(written()));
        }
        value / down
    };
    u32::try_from(value).map_err(|_| many())
}

/// A suffix as powers of ten and of two.
fn scale(suffix: &str) -> Option<(i64, u32)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || digits.len() > 4 || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            (exponent.parse().ok()?, 0)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_exact_or_refused() {
        let good = [
            ("2", 2),
            ("0", 0),
            ("-0", 0),
            ("1k", 1000),
            ("2e0", 2),
            ("2E3", 2000),
            ("2000m", 2),
            ("0.5k", 500),
            ("1.50e1", 15),
            ("1Ki", 1024),
            ("+3", 3),
            ("8.", 8),
            (".5e1", 5),
            ("4000000000n", 4),
            ("20e-1", 2),
            ("0.5Ki", 512),
            ("4294967295", u32::MAX),
            ("00000000000000000000000000000000000000000000000007", 7),
            ("70000000000000000000000000000000000000000e-40", 7),
        ];
        for (text, expected) in good {
            assert_eq!(count(text), Ok(expected), "{text}");
        }
        for text in ["", "x", "1.2.3", "1kk", "e5", "1e", "1e+", "0x2", "1 ", " 1", "1_0", ".", "-", "٣", "1e99999"] {
            assert!(matches!(count(text), Err(BadCount::Form(_))), "{text}: {:?}", count(text));
        }
        for text in ["500m", "0.5", "1n", "1e-1", "1e-9999", &format!("0.{}", "3".repeat(5000))] {
            assert!(matches!(count(text), Err(BadCount::Part(_))), "{text}: {:?}", count(text));
        }
        for text in ["4294967296", "1E", "1Ei", "1e9999", &"9".repeat(5000)] {
            assert!(matches!(count(text), Err(BadCount::TooMany(_))), "{text}: {:?}", count(text));
        }
        assert!(matches!(count("-1"), Err(BadCount::Negative(_))));
    }
}
