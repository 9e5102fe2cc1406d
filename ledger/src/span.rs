//! Sets of instants as sorted, disjoint, non-empty half-open spans of milliseconds.

/// `[from, to)` in UTC milliseconds.
pub(crate) type Ms = (i64, i64);

/// The union of spans in any order; empty and reversed ones vanish, touching ones join.
pub(crate) fn union(spans: impl IntoIterator<Item = Ms>) -> Vec<Ms> {
    let mut spans: Vec<Ms> = spans.into_iter().filter(|(from, to)| from < to).collect();
    spans.sort_unstable();
    let mut joined: Vec<Ms> = Vec::with_capacity(spans.len());
    for (from, to) in spans {
        match joined.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    joined
}

/// What of `spans` is in no span of `minus`; both are unions.
pub(crate) fn subtract(spans: &[Ms], minus: &[Ms]) -> Vec<Ms> {
    let mut left = Vec::new();
    for &(mut from, to) in spans {
        for &(cut_from, cut_to) in minus {
            if cut_to <= from || cut_from >= to {
                continue;
            }
            if from < cut_from {
                left.push((from, cut_from));
            }
            from = cut_to;
        }
        if from < to {
            left.push((from, to));
        }
    }
    left
}

/// The parts of `spans` inside `window`.
pub(crate) fn clip(spans: &[Ms], window: Ms) -> impl Iterator<Item = Ms> {
    spans.iter().filter_map(move |&(from, to)| {
        let (from, to) = (from.max(window.0), to.min(window.1));
        (from < to).then_some((from, to))
    })
}

/// Total length of the parts of `spans` inside `window`.
pub(crate) fn length(spans: &[Ms], window: Ms) -> i64 {
    clip(spans, window).map(|(from, to)| to - from).sum()
}

/// The span of a union that holds `at`.
pub(crate) fn holding(spans: &[Ms], at: i64) -> Option<Ms> {
    let after = spans.partition_point(|(from, _)| *from <= at);
    spans[..after].last().copied().filter(|(_, to)| at < *to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unions_join_and_subtractions_cut() {
        let all = union([(5, 9), (0, 2), (2, 3), (9, 9), (8, 7), (4, 6)]);
        assert_eq!(all, [(0, 3), (4, 9)]);
        assert_eq!(subtract(&all, &[(1, 2), (3, 5), (8, 20)]), [(0, 1), (2, 3), (5, 8)]);
        assert_eq!(subtract(&all, &[]), all);
        assert_eq!(length(&all, (2, 5)), 2);
        assert_eq!((holding(&all, 2), holding(&all, 3), holding(&all, -1)), (Some((0, 3)), None, None));
    }
}
