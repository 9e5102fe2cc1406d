//! Exact parts to whole milliseconds (rule A15).

/// Shares `total` out to `parts` over `den`, whose exact sum is less than 1 away from it: every part gets its floor, and the
/// units missing go one each to the largest fractions, equal ones in the order listed.
pub(super) fn share_out(total: i64, parts: &[i128], den: i128) -> Vec<i64> {
    let mut shares: Vec<i64> = parts.iter().map(|part| part.div_euclid(den) as i64).collect();
    let missing = total - shares.iter().sum::<i64>();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(parts[*at].rem_euclid(den)));
    for at in order.into_iter().take(usize::try_from(missing).unwrap_or(0)) {
        shares[at] += 1;
    }
    shares
}

/// `num / den` to the nearest, halves up.
pub(super) fn nearest(num: i128, den: i128) -> i64 {
    (2 * num + den).div_euclid(2 * den) as i64
}

/// The least common multiple of two numbers above 0.
pub(super) fn lcm(a: i128, b: i128) -> i128 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_missing_go_to_the_largest_fractions_then_in_order() {
        assert_eq!(share_out(100, &[100; 7], 7), [15, 15, 14, 14, 14, 14, 14]);
        assert_eq!(share_out(2, &[6, 4, 2, 2], 7), [1, 1, 0, 0]);
        assert_eq!(share_out(3, &[3, 3], 2), [2, 1]);
        assert_eq!((nearest(3, 2), nearest(-3, 2), lcm(4, 6)), (2, -1, 12));
    }
}
