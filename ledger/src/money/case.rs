//! One window to be priced as JSON text, and its bill: the form of the conformance vectors.

use schemas::{Timestamp, Window};
use serde_json::{Value, json, value::RawValue};

use super::{Bill, Idle, Input, Opening, PerUse, Pool, Restart, Row, Run, Term, Terms, Usage, UsedBasis, price};
use crate::{
    case::json::{CaseError, Json, Object},
    input::Text,
};

/// The bill of one case, in the shape of the vectors' `expect`.
pub fn run_case(text: &str) -> Result<Value, CaseError> {
    Ok(shown(&price(&read(text)?)?))
}

/// Reads one case. Keys that it does not know are no input.
pub fn read(text: &str) -> Result<Input, CaseError> {
    let raw: &RawValue = serde_json::from_str(text).map_err(CaseError::Json)?;
    let top = Json::top(raw).object()?;
    // An empty window is named before anything else.
    let window_of_case = window(top.get("window"))?;
    let card = top.get("rate_card").object()?;
    Ok(Input {
        window: window_of_case,
        period: optional(top.get("charging_period"), window)?,
        currency: word(top.get("currency"))?,
        pools: card.get("pools").each(pool)?,
        runs: top.get("runs").each(run)?,
        usage: top.get("usage").each(usage)?,
        restarts: top.get("restarts").each(restart)?,
    })
}

/// A bill in JSON.
pub fn shown(bill: &Bill) -> Value {
    let row = |row: &Row| {
        json!({
            "pool": *row.pool, "purchase_option": row.purchase_option.as_deref(), "bucket": row.bucket.as_str(),
            "team": row.team.as_deref(), "gpu_ms": row.gpu_ms, "micro": row.micro,
        })
    };
    let with_rule = |r: &Row| {
        let mut object = row(r);
        object["idle_rule"] = json!(r.idle_rule.map(super::IdleRule::as_str));
        object
    };
    let pool = |p: &super::PoolBill| json!({"pool": *p.pool, "micro": p.micro, "cash_micro": p.cash_micro});
    json!({
        "rows": bill.rows.iter().map(with_rule).collect::<Vec<_>>(),
        "memo": bill.memo.iter().map(row).collect::<Vec<_>>(),
        "pools": bill.pools.iter().map(pool).collect::<Vec<_>>(),
        "total_micro": bill.total_micro,
    })
}

fn optional<'t, 'p, T>(
    json: Json<'t, 'p>,
    read: impl FnOnce(Json<'t, 'p>) -> Result<T, CaseError>,
) -> Result<Option<T>, CaseError> {
    json.given().map(read).transpose()
}

fn or_zero(json: Json<'_, '_>) -> Result<i64, CaseError> {
    Ok(optional(json, Json::int)?.unwrap_or(0))
}

fn word(json: Json<'_, '_>) -> Result<Text, CaseError> {
    Ok(json.text()?.into())
}

fn window(json: Json<'_, '_>) -> Result<Window, CaseError> {
    let ends = json.object()?;
    Ok(Window::new(ends.get("from").time()?, ends.get("to").time()?)?)
}

fn pool(json: Json<'_, '_>) -> Result<Pool, CaseError> {
    let keys = json.object()?;
    let kind = keys.get("kind");
    let terms = match &*kind.text()? {
        "per_use" => Terms::PerUse(per_use(&keys)?),
        "commitment" => Terms::Commitment(Term {
            fee_micro: keys.get("upfront_micro").int()?,
            recurring_micro_per_gpu_hour: keys.get("recurring_micro_per_gpu_hour").int()?,
            ..term(&keys)?
        }),
        "block" => Terms::Block(Term {
            fee_micro: keys.get("fee_micro").int()?,
            usable_to: optional(keys.get("usable_to"), Json::time)?,
            ..term(&keys)?
        }),
        _ => return Err(kind.not("per_use, commitment or block belongs here")),
    };
    let idle = keys.get("idle");
    let idle = match optional(idle, Json::text)?.as_deref() {
        None | Some("central") => Idle::Central,
        Some("by_use") => Idle::ByUse,
        Some("owner") => Idle::Owner(word(keys.get("owner"))?),
        Some(_) => return Err(idle.not("central, by_use or owner belongs here")),
    };
    Ok(Pool {
        name: word(keys.get("pool"))?,
        purchase_option: optional(keys.get("purchase_option"), word)?,
        currency: optional(keys.get("currency"), word)?,
        idle,
        tolerance_gpu_ms: optional(keys.get("tolerance_gpu_ms"), Json::int)?,
        terms,
    })
}

fn per_use(keys: &Object<'_, '_>) -> Result<PerUse, CaseError> {
    let (of_gpu, of_node) = (keys.get("micro_per_gpu_hour"), keys.get("micro_per_node_hour"));
    let (micro_per_hour, gpus_per_price) = match (of_gpu.given(), of_node.given()) {
        (Some(price), None) => (price.int()?, 1),
        (None, Some(price)) => (price.int()?, keys.get("gpus_per_node").int()?),
        _ => return Err(of_gpu.not("a price of the GPU's hour or of the node's belongs to the pool, one of the two")),
    };
    let basis = keys.get("spot_used_basis");
    let opening = match keys.get("opening").given() {
        None => Opening::default(),
        Some(opening) => {
            let keys = opening.object()?;
            Opening { used_gpu_ms: or_zero(keys.get("used_gpu_ms"))?, pad_gpu_ms: or_zero(keys.get("pad_gpu_ms"))? }
        }
    };
    Ok(PerUse {
        micro_per_hour,
        gpus_per_price,
        increment_ms: optional(keys.get("increment_ms"), Json::int)?.unwrap_or(1),
        minimum_ms: or_zero(keys.get("minimum_ms"))?,
        basis: match optional(basis, Json::text)?.as_deref() {
            None | Some("billed") => UsedBasis::Billed,
            Some("productive") => UsedBasis::Productive,
            Some(_) => return Err(basis.not("billed or productive belongs here")),
        },
        opening,
    })
}

/// What commitments and blocks have in common.
fn term(keys: &Object<'_, '_>) -> Result<Term, CaseError> {
    Ok(Term {
        gpus: keys.get("gpus").int()?,
        from: keys.get("from").time()?,
        to: keys.get("to").time()?,
        fee_micro: 0,
        recurring_micro_per_gpu_hour: 0,
        usable_to: None,
        paid_at: optional(keys.get("paid_at"), Json::time)?,
    })
}

fn run(json: Json<'_, '_>) -> Result<Run, CaseError> {
    let keys = json.object()?;
    let from = keys.get("from").time()?;
    Ok(Run {
        id: word(keys.get("run"))?,
        pool: word(keys.get("pool"))?,
        from,
        to: keys.get("to").time()?,
        gpus: keys.get("gpus").int()?,
        billed_from: from,
        ends: true,
    })
}

fn usage(json: Json<'_, '_>) -> Result<Usage, CaseError> {
    let keys = json.object()?;
    let bucket = keys.get("bucket");
    let unavailable = match optional(bucket, Json::text)?.as_deref() {
        None => false,
        Some("unavailable") => true,
        Some(_) => return Err(bucket.not("unavailable belongs here, or nothing")),
    };
    Ok(Usage {
        pool: word(keys.get("pool"))?,
        team: optional(keys.get("team"), word)?,
        from: keys.get("from").time()?,
        to: keys.get("to").time()?,
        gpu_ms: keys.get("gpu_ms").int()?,
        on_unready_gpu_ms: or_zero(keys.get("on_unready_gpu_ms"))?,
        unavailable,
    })
}

fn restart(json: Json<'_, '_>) -> Result<Restart, CaseError> {
    let keys = json.object()?;
    let (gpus, lost_ms) = (keys.get("gpus"), keys.get("lost_ms"));
    // The sign of each by itself: two wrongs make no right.
    let positive = |json: Json<'_, '_>| {
        let n = json.int()?;
        if n < 0 { Err(json.not("a number, 0 or above, belongs here")) } else { Ok(n) }
    };
    let lost = positive(gpus)?.checked_mul(positive(lost_ms)?);
    Ok(Restart {
        pool: word(keys.get("pool"))?,
        team: optional(keys.get("team"), word)?,
        gpu_ms: lost.ok_or_else(|| lost_ms.not("gpus times lost_ms must fit 64 bits"))?,
        at: optional::<Timestamp>(keys.get("at"), Json::time)?,
    })
}
