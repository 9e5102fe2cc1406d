//! Exact fractions of milliseconds, and how they become whole ones (rule A15).
//!
//! Every operation is checked: a world whose weights, shares and splits have no common denominator in 127 bits is
//! refused, not rounded.

use crate::input::Ratio;

/// A figure that does not fit: a denominator beyond 127 bits, or a whole number beyond 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooFine;

/// `num / den`, with `den` above 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frac {
    num: i128,
    den: i128,
}

impl Frac {
    pub(crate) const ZERO: Self = Self { num: 0, den: 1 };

    /// `num / den`; `den` is above 0.
    pub(crate) fn new(num: i128, den: i128) -> Self {
        debug_assert!(den > 0, "denominators are made of weights, replicas and pods, all above 0");
        Self { num, den }
    }

    pub(crate) fn whole(num: i64) -> Self {
        Self { num: num.into(), den: 1 }
    }

    /// Whether it is above a whole number.
    pub(crate) fn above(self, whole: i32) -> bool {
        self.num.div_euclid(self.den) >= whole.into() && self.num != i128::from(whole) * self.den
    }

    pub(crate) fn is_zero(self) -> bool {
        self.num == 0
    }

    pub(crate) fn plus(self, other: Self) -> Result<Self, TooFine> {
        if self.den == other.den {
            return Ok(Self { num: self.num.checked_add(other.num).ok_or(TooFine)?, den: self.den });
        }
        let common = gcd(self.den, other.den);
        let (up, other_up) = (other.den / common, self.den / common);
        let den = self.den.checked_mul(up).ok_or(TooFine)?;
        let num = self.num.checked_mul(up).zip(other.num.checked_mul(other_up));
        let num = num.and_then(|(a, b)| a.checked_add(b)).ok_or(TooFine)?;
        Ok(Self { num, den })
    }

    pub(crate) fn minus(self, other: Self) -> Result<Self, TooFine> {
        self.plus(Self { num: -other.num, den: other.den })
    }

    pub(crate) fn times(self, num: i128, den: i128) -> Result<Self, TooFine> {
        let (across, other) = (gcd(self.num, den).max(1), gcd(num, self.den).max(1));
        let top = (self.num / across).checked_mul(num / other);
        let bottom = (self.den / other).checked_mul(den / across);
        let (num, den) = top.zip(bottom).ok_or(TooFine)?;
        Ok(Self { num, den })
    }

    /// The product.
    pub(crate) fn by(self, other: Self) -> Result<Self, TooFine> {
        self.times(other.num, other.den)
    }

    /// The nearest whole number, halves up.
    pub(crate) fn nearest(self) -> Result<i64, TooFine> {
        let twice = self.num.checked_mul(2).and_then(|n| n.checked_add(self.den)).ok_or(TooFine)?;
        i64::try_from(twice.div_euclid(self.den.checked_mul(2).ok_or(TooFine)?)).map_err(|_| TooFine)
    }
}

impl From<Ratio> for Frac {
    fn from(ratio: Ratio) -> Self {
        Self { num: ratio.num().into(), den: ratio.den().into() }
    }
}

fn gcd(mut a: i128, mut b: i128) -> i128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.abs()
}

/// The least common multiple of two numbers above 0.
pub(crate) fn lcm(a: i128, b: i128) -> Result<i128, TooFine> {
    (a / gcd(a, b)).checked_mul(b).ok_or(TooFine)
}

/// Shares `total` out to `parts`, whose exact sum is less than 1 away from it: every part gets its floor, and the
/// units missing go one each to the largest fractions, equal ones in the order listed.
pub(crate) fn share_out(total: i64, parts: &[Frac]) -> Result<Vec<i64>, TooFine> {
    let mut shares = Vec::with_capacity(parts.len());
    let mut missing = i128::from(total);
    for part in parts {
        let floor = part.num.div_euclid(part.den);
        missing -= floor;
        shares.push(i64::try_from(floor).map_err(|_| TooFine)?);
    }
    if missing == 0 {
        return Ok(shares);
    }
    debug_assert!(missing > 0 && missing <= parts.len() as i128, "the parts of a level sum to the whole above it");
    let mut order: Vec<(usize, Frac)> =
        parts.iter().map(|p| Frac { num: p.num.rem_euclid(p.den), den: p.den }).enumerate().collect();
    let crossed = |a: &Frac, b: &Frac| a.num.checked_mul(b.den).ok_or(TooFine);
    let mut failed = false;
    order.sort_by(|(_, a), (_, b)| match (crossed(a, b), crossed(b, a)) {
        (Ok(left), Ok(right)) => right.cmp(&left),
        _ => {
            failed = true;
            std::cmp::Ordering::Equal
        }
    });
    if failed {
        return Err(TooFine);
    }
    for (at, _) in order.into_iter().take(usize::try_from(missing).unwrap_or(0)) {
        shares[at] += 1;
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn units_missing_go_to_the_largest_fractions_then_in_order() {
        let sevenths = |nums: &[i128]| nums.iter().map(|n| Frac::new(*n, 7)).collect::<Vec<_>>();
        assert_eq!(share_out(100, &sevenths(&[100; 7])).unwrap(), [15, 15, 14, 14, 14, 14, 14]);
        assert_eq!(share_out(2, &sevenths(&[6, 4, 2, 2])).unwrap(), [1, 1, 0, 0]);
        assert_eq!(share_out(1, &[Frac::new(1, 2), Frac::new(2, 4)]).unwrap(), [1, 0]);
    }

    #[test]
    fn fractions_are_exact_and_never_wrap() {
        let third = Frac::new(1, 3);
        assert_eq!(third.plus(Frac::new(1, 6)).unwrap().nearest(), Ok(1));
        assert_eq!(third.minus(Frac::new(5, 6)).unwrap().nearest(), Ok(0));
        assert_eq!(third.times(9, 2).unwrap().nearest(), Ok(2));
        assert_eq!(Frac::new(i128::MAX, 1).plus(third).map(|_| ()), Err(TooFine));
        assert!(lcm(i128::MAX, i128::MAX - 1).is_err());
    }
}
