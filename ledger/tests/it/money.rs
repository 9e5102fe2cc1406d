//! Windows priced: every conformance case, what must hold in any, and a second, naive way to the same numbers.

use std::{collections::BTreeMap, fmt::Write, sync::Arc};

use ledger::money::{
    Bill, Bucket, Idle, IdleRule, Input, MoneyError, Opening, PerUse, Pool, Restart, Row, Run, Term, Terms, Usage, UsedBasis,
    case::run_case, price,
};
use proptest::prelude::*;
use schemas::{HOUR_MS, Timestamp, Window};
use serde_json::Value;

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/vectors/money.jsonl");

#[test]
fn every_case_comes_out_to_the_micro_unit() {
    let cases = std::fs::read_to_string(CASES).unwrap();
    let (mut count, mut failures) = (0, String::new());
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        count += 1;
        let failed = match (run_case(line), case.get("expect"), case.get("expect_error")) {
            (Ok(got), Some(expected), None) => (got != *expected).then(|| format!("got {got}\n  not {expected}")),
            (Err(err), None, Some(expected)) if Some(err.code()) == expected["code"].as_str() => None,
            (got, ..) => Some(format!("got {:?}", got.map_err(|err| format!("{}: {err}", err.code())))),
        };
        if let Some(failed) = failed {
            writeln!(failures, "{}: {failed}", case["name"]).unwrap();
        }
    }
    assert_eq!(count, 88, "cases were added or lost");
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn a_bad_case_names_its_field() {
    let cases = std::fs::read_to_string(CASES).unwrap();
    let case = cases.lines().next().unwrap();
    let check = |from: &str, to: &str, expected: &str| {
        assert!(case.contains(from), "{from}");
        let error = run_case(&case.replacen(from, to, 1)).unwrap_err();
        assert_eq!((error.code(), &*error.to_string()), ("bad_input", expected));
    };
    check(
        "\"micro_per_node_hour\": 24000000",
        "\"micro_per_node_hour\": 24.5",
        "rate_card.pools[0].micro_per_node_hour: a whole number belongs here, and it is 24.5",
    );
    check(
        "\"kind\": \"per_use\"",
        "\"kind\": \"savings_plan\"",
        "rate_card.pools[0].kind: per_use, commitment or block belongs here, and it is \"savings_plan\"",
    );
    check("\"gpus_per_node\": 8", "\"gpus_per_node\": 0", "pool `od`: the number of GPUs must be above 0");
    check("\"gpus\": 8}]", "\"gpus\": -8}]", "run `run-1`: the number of GPUs is -8, and must not be below 0");
}

const HOUR: i64 = HOUR_MS;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_ms(1_772_445_600_000 + ms)
}

fn window(from: i64, to: i64) -> Window {
    Window::new(at(from), at(to)).unwrap()
}

fn pool(name: &str, terms: Terms) -> Pool {
    Pool { name: name.into(), purchase_option: None, currency: None, idle: Idle::Central, tolerance_gpu_ms: None, terms }
}

fn per_use(micro_per_hour: i64) -> PerUse {
    PerUse {
        micro_per_hour,
        gpus_per_price: 1,
        increment_ms: 1,
        minimum_ms: 0,
        basis: UsedBasis::Billed,
        opening: Opening::default(),
    }
}

fn run(id: &str, from: i64, to: i64, gpus: i64) -> Run {
    Run { id: id.into(), pool: "p".into(), from: at(from), to: at(to), gpus, billed_from: at(from), ends: true }
}

fn input(pools: Vec<Pool>, window: Window) -> Input {
    Input { currency: "EUR".into(), window, period: None, pools, runs: vec![], usage: vec![], restarts: vec![] }
}

fn usage(team: Option<&str>, window: Window, gpu_ms: i64) -> Usage {
    let (from, to) = (window.from(), window.to());
    Usage { pool: "p".into(), team: team.map(Into::into), from, to, gpu_ms, on_unready_gpu_ms: 0, unavailable: false }
}

#[test]
fn a_price_beyond_64_bits_is_an_error_that_says_so() {
    let card = |micro| input(vec![pool("p", Terms::PerUse(per_use(micro)))], window(0, HOUR));
    let mut fits = card(1_000_000_000_000_000_000);
    fits.runs = vec![run("a", 0, HOUR, 9)];
    assert_eq!(price(&fits).unwrap().total_micro, 9_000_000_000_000_000_000);
    let mut too_large = fits.clone();
    too_large.runs = vec![run("a", 0, HOUR, 10)];
    let error = price(&too_large).unwrap_err();
    assert_eq!((error.clone(), error.code()), (MoneyError::Overflow("p".into()), "overflow"));
    assert!(error.to_string().contains("pool `p`") && error.to_string().contains("unit"), "{error}");
    // Fractions that 127 bits do not hold.
    let term = Term {
        gpus: i64::MAX,
        from: at(0),
        to: at(i64::MAX / 2),
        fee_micro: i64::MAX,
        recurring_micro_per_gpu_hour: i64::MAX,
        usable_to: None,
        paid_at: None,
    };
    assert_eq!(price(&input(vec![pool("p", Terms::Block(term))], window(0, HOUR))).unwrap_err().code(), "overflow");
}

#[test]
fn a_run_that_goes_on_has_no_pad_yet_and_one_that_changes_its_price_has_one_pad() {
    let terms = Terms::PerUse(PerUse { increment_ms: HOUR, ..per_use(3_600_000) });
    let mut first = input(vec![pool("p", terms)], window(0, HOUR));
    first.runs = vec![Run { ends: false, ..run("a", HOUR / 2, HOUR, 1) }];
    assert_eq!(price(&first).unwrap().total_micro, 1_800_000);
    let mut second = Input { window: window(HOUR, 2 * HOUR), ..first };
    second.runs = vec![Run { billed_from: at(HOUR / 2), ..run("a", HOUR, HOUR + HOUR / 4, 1) }];
    let bill = price(&second).unwrap();
    let pad: i64 = bill.rows.iter().filter(|row| row.bucket == Bucket::BillingMinimum).map(|row| row.micro).sum();
    assert_eq!((bill.total_micro, pad), (900_000 + 900_000, 900_000), "45 minutes are billed as an hour");
}

// ---- any window ----

fn micro() -> impl Strategy<Value = i64> {
    prop_oneof![0..4_i64, 0..10_000_000_i64, Just(70_080_000_000_i64)]
}

/// Pool `p` of any kind over some six hours, in milliseconds that are easy to miss.
fn pools() -> impl Strategy<Value = Pool> {
    let instant = || prop_oneof![(0..7_i64).prop_map(|h| h * HOUR), -HOUR..7 * HOUR];
    let used =
        (micro(), 1..9_i64, prop_oneof![Just(1_i64), Just(60_000), Just(HOUR), 2..5_000_i64], 0..200_000_i64, any::<bool>())
            .prop_map(|(micro_per_hour, gpus_per_price, increment_ms, minimum_ms, productive)| {
                let basis = if productive { UsedBasis::Productive } else { UsedBasis::Billed };
                let opening = Opening { used_gpu_ms: minimum_ms, pad_gpu_ms: micro_per_hour % 977 };
                Terms::PerUse(PerUse { micro_per_hour, gpus_per_price, increment_ms, minimum_ms, basis, opening })
            });
    let term = move || {
        (1..9_i64, instant(), 1..5 * HOUR, micro(), micro(), 0..5 * HOUR).prop_map(
            |(gpus, from, length, fee, recurring, early)| Term {
                gpus,
                from: at(from),
                to: at(from + length),
                fee_micro: fee,
                recurring_micro_per_gpu_hour: recurring,
                usable_to: (early % 3 == 0).then(|| at(from + length - early.min(length))),
                paid_at: (early % 5 == 0).then(|| at(from - early)),
            },
        )
    };
    let block = |mut term: Term| {
        term.recurring_micro_per_gpu_hour = 0;
        Terms::Block(term)
    };
    let terms =
        prop_oneof![used, term().prop_map(|term| Terms::Commitment(Term { usable_to: None, ..term })), term().prop_map(block)];
    let idle = prop_oneof![Just(Idle::Central), Just(Idle::ByUse), Just(Idle::Owner("kelp".into()))];
    (terms, idle).prop_map(|(terms, idle)| Pool {
        idle,
        purchase_option: Some("x".into()),
        tolerance_gpu_ms: Some(i64::MAX),
        ..pool("p", terms)
    })
}

/// A window of some hours with runs, usage and restarts in it.
fn worlds() -> impl Strategy<Value = Input> {
    let team = || prop_oneof![Just(None), Just(Some("kelp")), Just(Some("reef")), Just(Some("tide"))];
    let time = || prop_oneof![0..20_i64, 0..HOUR, 0..9 * HOUR];
    let runs = prop::collection::vec((-2 * HOUR..6 * HOUR, 1..3 * HOUR, 0..9_i64, any::<bool>()), 0..5);
    let uses = prop::collection::vec((team(), time(), 0..100_i64, 0..6_u8), 0..7);
    let lost = prop::collection::vec((team(), time(), -HOUR..5 * HOUR), 0..3);
    (pools(), -HOUR..5 * HOUR, 1..4 * HOUR, runs, uses, lost).prop_map(|(pool, from, length, runs, uses, lost)| {
        let all = window(from, from + length);
        let mut world = input(vec![pool], all);
        if world.pools[0].term().is_none() {
            let made = runs.iter().enumerate().map(|(n, (from, length, gpus, ends))| Run {
                ends: *ends,
                ..run(&format!("run-{n}"), *from, from + length, *gpus)
            });
            world.runs = made.collect();
        }
        world.usage = uses
            .into_iter()
            .map(|(team, gpu_ms, unready, kind)| Usage {
                on_unready_gpu_ms: gpu_ms * unready * i64::from(kind == 1) / 100,
                unavailable: kind == 0,
                ..usage(team, all, gpu_ms)
            })
            .collect();
        let restart = |(team, gpu_ms, when): (Option<&str>, i64, i64)| Restart {
            pool: "p".into(),
            team: team.map(Into::into),
            gpu_ms,
            at: Some(at(when)),
        };
        world.restarts = lost.into_iter().map(restart).collect();
        world
    })
}

/// A fraction by whole numbers that are small here; the naive way's own.
type Fraction = (i128, i128);

fn rounded((num, den): Fraction) -> i64 {
    let floor = num.div_euclid(den);
    let up = i128::from(2 * num.rem_euclid(den) >= den);
    i64::try_from(floor + up).unwrap()
}

/// Cost of the pool's GPU millisecond.
fn naive_rate(pool: &Pool) -> Fraction {
    match &pool.terms {
        Terms::PerUse(t) => (t.micro_per_hour.into(), i128::from(t.gpus_per_price * HOUR)),
        Terms::Commitment(t) | Terms::Block(t) => {
            let gpu_ms = i128::from(t.gpus * (t.to.ms() - t.from.ms()));
            let recurring = i128::from(t.recurring_micro_per_gpu_hour);
            (i128::from(t.fee_micro) * i128::from(HOUR) + recurring * gpu_ms, gpu_ms * i128::from(HOUR))
        }
    }
}

/// Cumulative cost at an instant, and that of the time used alone.
fn naive_cost(input: &Input, t: Timestamp) -> (i64, i64) {
    let pool = &input.pools[0];
    match &pool.terms {
        Terms::PerUse(terms) => {
            let (mut used, mut pad) = (terms.opening.used_gpu_ms, terms.opening.pad_gpu_ms);
            for run in &input.runs {
                used += run.gpus * (t.min(run.to).ms() - run.from.ms()).max(0);
                if run.ends && run.to <= t {
                    let length = run.to.ms() - run.from.ms();
                    let short = (terms.increment_ms - length % terms.increment_ms) % terms.increment_ms;
                    pad += run.gpus * ((length + short).max(terms.minimum_ms) - length);
                }
            }
            let (num, den) = naive_rate(pool);
            (rounded((num * i128::from(used + pad), den)), rounded((num * i128::from(used), den)))
        }
        Terms::Commitment(term) | Terms::Block(term) => {
            let elapsed = i128::from((t.clamp(term.from, term.to).ms() - term.from.ms()).max(0));
            let fee = rounded((i128::from(term.fee_micro) * elapsed, (term.to.ms() - term.from.ms()).into()));
            let each = i128::from(term.recurring_micro_per_gpu_hour * term.gpus);
            let recurring = rounded((each * elapsed, HOUR.into()));
            (fee + recurring, fee + recurring)
        }
    }
}

/// What the naive way makes of a world without by_use and without time that is not billed: amount, and (bucket, team) to (time, money).
fn naive(input: &Input) -> Option<(i64, BTreeMap<(&'static str, Option<Arc<str>>), (i64, i64)>)> {
    let (pool, w) = (&input.pools[0], input.window);
    let mut times: BTreeMap<(&'static str, Option<Arc<str>>), i64> = BTreeMap::new();
    let ms_in = |from: Timestamp, to: Timestamp| (to.min(w.to()).ms() - from.max(w.from()).ms()).max(0);
    let (capacity, tail) = match pool.term() {
        None => (input.runs.iter().map(|run| run.gpus * ms_in(run.from, run.to)).sum::<i64>(), 0),
        Some(t) => (t.gpus * ms_in(t.from, t.to), t.usable_to.map_or(0, |gone| t.gpus * ms_in(gone, t.to))),
    };
    for u in &input.usage {
        let (bucket, team) = match (&u.team, u.unavailable) {
            (_, true) => ("unavailable", None),
            (None, _) => ("unattributed", None),
            (Some(team), _) => ("team", Some(team.clone())),
        };
        *times.entry((bucket, team)).or_default() += u.gpu_ms - if u.unavailable { 0 } else { u.on_unready_gpu_ms };
        *times.entry(("unready", None)).or_default() += if u.unavailable { 0 } else { u.on_unready_gpu_ms };
    }
    if matches!(&pool.terms, Terms::PerUse(t) if t.basis == UsedBasis::Productive) {
        for r in input.restarts.iter().filter(|r| r.at.is_some_and(|at| w.from() <= at && at < w.to())) {
            *times.entry(("restart_waste", r.team.clone())).or_default() += r.gpu_ms;
        }
    }
    let left = capacity - times.values().sum::<i64>();
    if left < 0 || pool.idle == Idle::ByUse {
        return None;
    }
    let owner = if let Idle::Owner(team) = &pool.idle { Some(team.clone()) } else { None };
    times.insert(("block_tail", None), tail.min(left));
    times.insert((if pool.term().is_some() { "reserved_idle" } else { "idle" }, owner), left - tail.min(left));
    times.retain(|_, ms| *ms != 0);
    let (num, den) = naive_rate(pool);
    let mut rows: BTreeMap<_, _> = times.into_iter().map(|(key, ms)| (key, (ms, rounded((num * i128::from(ms), den))))).collect();
    let (before, after) = (naive_cost(input, w.from()), naive_cost(input, w.to()));
    let amount = after.0 - before.0;
    let padded = |run: &&Run| {
        let Terms::PerUse(t) = &pool.terms else { return false };
        let length = run.to.ms() - run.from.ms();
        run.gpus > 0
            && run.ends
            && w.from() < run.to
            && run.to <= w.to()
            && (length % t.increment_ms != 0 || length < t.minimum_ms)
    };
    let minimum = amount - (after.1 - before.1);
    if input.runs.iter().any(|run| padded(&run)) && minimum > 0 {
        rows.insert(("billing_minimum", None), (0, minimum));
    }
    let rounding = amount - rows.values().map(|(_, micro)| micro).sum::<i64>();
    if rounding != 0 {
        rows.insert(("rounding", None), (0, rounding));
    }
    Some((amount, rows))
}

fn sum(rows: &[Row]) -> i64 {
    rows.iter().map(|row| row.micro).sum()
}

fn holds(world: &Input, bill: &Bill) {
    assert_eq!(sum(&bill.rows), bill.total_micro, "{bill:?}");
    assert_eq!(bill.pools.iter().map(|pool| pool.micro).sum::<i64>(), bill.total_micro);
    for pool in &bill.pools {
        let of_pool: Vec<&Row> = bill.rows.iter().filter(|row| row.pool == pool.pool).collect();
        assert_eq!(of_pool.iter().map(|row| row.micro).sum::<i64>(), pool.micro);
        let paid = of_pool.iter().filter(|row| row.bucket != Bucket::NotBilled).map(|row| row.gpu_ms).sum::<i64>();
        assert_eq!(paid, pool.gpu_ms, "what is paid for is somebody's or nobody's: {bill:?}");
    }
    let w = world.window;
    let inside = |r: &&Restart| r.at.is_some_and(|at| w.from() <= at && at < w.to());
    let lost: i64 = world.restarts.iter().filter(inside).map(|r| r.gpu_ms).sum();
    let productive = matches!(&world.pools[0].terms, Terms::PerUse(t) if t.basis == UsedBasis::Productive);
    let used = world.usage.iter().map(|u| u.gpu_ms).sum::<i64>() + if productive { lost } else { 0 };
    let nobodys = [Bucket::Idle, Bucket::ReservedIdle, Bucket::BlockTail];
    let shown: i64 = bill.rows.iter().filter(|row| !nobodys.contains(&row.bucket)).map(|row| row.gpu_ms).sum();
    assert_eq!(shown, used, "no time is lost: {bill:?}");
    let memo: i64 = bill.memo.iter().map(|row| row.gpu_ms).sum();
    assert_eq!(memo, if productive { 0 } else { lost });
    for row in bill.rows.iter().chain(&bill.memo) {
        assert!(row.bucket == Bucket::Rounding || row.micro >= 0, "{row:?}");
        assert!(row.gpu_ms > 0 || matches!(row.bucket, Bucket::Rounding | Bucket::BillingMinimum), "{row:?}");
        assert_eq!(row.idle_rule.is_some(), matches!(row.bucket, Bucket::Idle | Bucket::ReservedIdle), "{row:?}");
    }
    assert!(bill.rows.windows(2).all(|w| {
        let key = |r: &Row| (r.pool.clone(), r.bucket.as_str(), r.team.clone());
        key(&w[0]) < key(&w[1])
    }));
    // A share of idle time below a millisecond has no row; its money, at most a millisecond's, is rounding.
    let (num, den) = naive_rate(&world.pools[0]);
    let shares = if world.pools[0].idle == Idle::ByUse { 4 * rounded((num, den)) } else { 0 };
    let rows = bill.rows.len() as i64 + shares;
    let rounding: i64 = bill.rows.iter().filter(|r| r.bucket == Bucket::Rounding).map(|r| r.micro.abs()).sum();
    assert!(rounding <= rows + 3, "rounding is a few micro-units: {bill:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rows_sum_to_pools_sum_to_the_total(world in worlds()) {
        holds(&world, &price(&world).unwrap());
    }

    #[test]
    fn the_naive_way_agrees(world in worlds()) {
        let bill = price(&world).unwrap();
        if let Some((amount, rows)) = naive(&world) {
            let got: BTreeMap<_, _> =
                bill.rows.iter().map(|r| ((r.bucket.as_str(), r.team.clone()), (r.gpu_ms, r.micro))).collect();
            prop_assert_eq!((bill.total_micro, got), (amount, rows));
        }
    }

    #[test]
    fn order_and_repeats_change_nothing(world in worlds(), turn in 0..7_usize) {
        let mut other = world.clone();
        let twice = other.runs.clone();
        other.runs.extend(twice);
        other.runs.reverse();
        let (uses, lost) = (other.usage.len().max(1), other.restarts.len().max(1));
        other.usage.rotate_left(turn % uses);
        other.usage.reverse();
        other.restarts.rotate_left(turn % lost);
        prop_assert_eq!(price(&other).unwrap(), price(&world).unwrap());
    }

    #[test]
    fn windows_sum_to_the_whole(world in worlds(), cuts in prop::collection::btree_set(-2 * HOUR..9 * HOUR, 1..6)) {
        let mut ends: Vec<i64> = cuts.into_iter().chain([-3 * HOUR, 20 * HOUR]).collect();
        ends.sort_unstable();
        let mut world = Input { usage: vec![], restarts: vec![], ..world };
        let mut total = 0;
        let mut cash = 0;
        for pair in ends.windows(2) {
            world.window = window(pair[0], pair[1]);
            let bill = price(&world).unwrap();
            total += bill.total_micro;
            cash += bill.pools[0].cash_micro;
        }
        let (from, to) = (*ends.first().unwrap(), *ends.last().unwrap());
        world.window = window(from, to);
        let whole = price(&world).unwrap();
        prop_assert_eq!((total, cash), (whole.total_micro, whole.pools[0].cash_micro));
        if let Some(term) = world.pools[0].term() {
            // The windows of a term sum to its fee, and to the recurring cost rounded once.
            let gpu_ms = i128::from(term.gpus * (term.to.ms() - term.from.ms()));
            let recurring = rounded((i128::from(term.recurring_micro_per_gpu_hour) * gpu_ms, HOUR.into()));
            prop_assert_eq!(total, term.fee_micro + recurring);
        }
    }

    #[test]
    fn idle_by_use_is_shared_out_whole_and_moves_no_other_row(world in worlds()) {
        let mut world = world;
        world.pools[0].idle = Idle::ByUse;
        let by_use = price(&world).unwrap();
        holds(&world, &by_use);
        world.pools[0].idle = Idle::Central;
        let central = price(&world).unwrap();
        let is_idle = |row: &&Row| row.idle_rule.is_some();
        let others = |bill: &Bill| -> Vec<Row> {
            bill.rows.iter().filter(|r| !is_idle(r) && r.bucket != Bucket::Rounding).cloned().collect()
        };
        prop_assert_eq!(others(&by_use), others(&central));
        let time = |bill: &Bill| bill.rows.iter().filter(is_idle).map(|row| row.gpu_ms).sum::<i64>();
        prop_assert_eq!(time(&by_use), time(&central));
        // A part of its period leaves it central.
        world.pools[0].idle = Idle::ByUse;
        world.period = Some(Window::new(world.window.from(), world.window.to().plus_ms(1)).unwrap());
        let part = price(&world).unwrap();
        prop_assert!(part.rows.iter().filter(is_idle).all(|row| row.idle_rule == Some(IdleRule::Central)));
        prop_assert_eq!(part.rows, central.rows);
    }

    #[test]
    fn no_text_makes_it_panic(which in 0..88_usize, at in 0.0..1.0_f64, put in "[-0-9e\\[\\]{}\",:.null]{0,6}", cut in 0..12_usize) {
        let cases = std::fs::read_to_string(CASES).unwrap();
        let mut case: Vec<char> = cases.lines().nth(which).unwrap().chars().collect();
        let begin = (case.len() as f64 * at) as usize;
        let end = (begin + cut).min(case.len());
        case.splice(begin..end, put.chars());
        let _ = run_case(&case.into_iter().collect::<String>());
    }
}
