//! No device is held beyond its ids (rule A11): a later bind ends the holders before it, longest held first.

use std::collections::VecDeque;

/// A claim on some ids of one device, in UTC milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) bound: i64,
    pub(crate) end: i64,
    pub(crate) ids: u32,
}

/// Where each claim is cut, if it is. `claims` come in order of (bound, pod UID) and each fits the replicas by
/// itself. Order is by the bind, not by the sighting; a claim that holds nothing cuts nobody.
pub(crate) fn cuts(claims: &[Claim], replicas: u32) -> Vec<Option<i64>> {
    let mut cut = vec![None; claims.len()];
    let mut holders: VecDeque<usize> = VecDeque::new();
    for (new, claim) in claims.iter().enumerate() {
        if claim.end <= claim.bound {
            continue;
        }
        holders.retain(|h| claims[*h].end > claim.bound);
        let mut held: u64 = holders.iter().map(|h| u64::from(claims[*h].ids)).sum();
        while held + u64::from(claim.ids) > u64::from(replicas) {
            let Some(oldest) = holders.pop_front() else { break };
            held -= u64::from(claims[oldest].ids);
            cut[oldest] = Some(claim.bound);
        }
        holders.push_back(new);
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(replicas: u32, claims: &[(i64, i64, u32)], expected: &[Option<i64>]) {
        let claims: Vec<_> = claims.iter().map(|&(bound, end, ids)| Claim { bound, end, ids }).collect();
        assert_eq!(cuts(&claims, replicas), expected);
    }

    #[test]
    fn a_later_bind_ends_the_longest_held() {
        check(1, &[(0, i64::MAX, 1), (20, i64::MAX, 1), (30, 40, 1)], &[Some(20), Some(30), None]);
        check(1, &[(0, 10, 1), (10, 20, 1)], &[None, None]);
        check(1, &[(0, 50, 1), (10, 10, 1)], &[None, None]);
        check(3, &[(0, 90, 1), (1, 90, 1), (2, 90, 1), (3, 90, 2)], &[Some(3), Some(3), None, None]);
        check(1, &[(5, 90, 1), (5, 90, 1)], &[Some(5), None]);
    }
}
