//! A rate card from YAML, every fault with its file, line and key.

use std::collections::BTreeSet;

use ledger::{
    input::Text,
    money::{Idle, Opening, PerUse, Pool, Term, Terms, UsedBasis},
};
use schemas::Timestamp;
use serde_yaml_ng::{Mapping, Value};

use super::card::{Card, CardFault, Entry, LABELS, Match, Period};

/// Why a text is no rate card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}: {what}", if *line == 0 { String::new() } else { format!(", line {line}") })]
pub struct BadCard {
    /// The file.
    pub file: String,
    /// 1-based line; 0 where it is of the whole.
    pub line: usize,
    /// What is wrong, and what to do.
    pub what: Wrong,
}

/// What is wrong with a card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// No YAML.
    #[error("this is no YAML: {0}")]
    Yaml(String),
    /// Nothing in it.
    #[error("the rate card has no pools; docs/money.md shows one")]
    Empty,
    /// A key that there is not.
    #[error("unknown key `{key}`; did you mean `{nearest}`? (there are {known})")]
    Unknown {
        /// The key.
        key: String,
        /// What it may have been.
        nearest: String,
        /// What there is.
        known: String,
    },
    /// A key that is needed.
    #[error("`{0}` is missing")]
    Missing(String),
    /// Something else than belongs there.
    #[error("`{key}` is {found}, and {wanted} belongs there")]
    Not {
        /// The key.
        key: String,
        /// What belongs there.
        wanted: &'static str,
        /// What is there.
        found: String,
    },
    /// A number with a point.
    #[error("`{key}` is the float {found}, and floats are not exact; write \"{found}\" in quotes")]
    Float {
        /// The key.
        key: String,
        /// The number.
        found: String,
    },
    /// Finer than the micro-unit.
    #[error("`{key}` is \"{found}\", with more than six decimals; money is counted in millionths")]
    Decimals {
        /// The key.
        key: String,
        /// The price.
        found: String,
    },
    /// A number beyond 64 bits.
    #[error("`{key}` is \"{found}\", which is beyond 64 bits of micro-units")]
    TooLarge {
        /// The key.
        key: String,
        /// The price.
        found: String,
    },
    /// A price twice, or none.
    #[error("pool `{pool}` needs one of {keys}, and has {count}")]
    OneOf {
        /// The pool.
        pool: String,
        /// The keys.
        keys: &'static str,
        /// How many are given.
        count: usize,
    },
    /// What needs all pools.
    #[error(transparent)]
    Card(CardFault),
}

const TOP: &[&str] = &["currency", "charging_period", "pools"];
const COMMON: [&str; 10] =
    ["pool", "kind", "match", "from", "to", "purchase_option", "currency", "idle", "owner", "tolerance_gpu_ms"];
const PER_USE: &[&str] = &[
    "price_per_gpu_hour",
    "micro_per_gpu_hour",
    "price_per_node_hour",
    "micro_per_node_hour",
    "gpus_per_node",
    "increment_ms",
    "minimum_ms",
    "spot_used_basis",
];
const COMMITMENT: &[&str] =
    &["gpus", "upfront", "upfront_micro", "recurring_per_gpu_hour", "recurring_micro_per_gpu_hour", "paid_at"];
const BLOCK: &[&str] = &["gpus", "fee", "fee_micro", "usable_to", "paid_at"];

/// Reads a card; `file` is for messages.
pub fn card(file: &str, text: &str) -> Result<Card, BadCard> {
    let bad = |line, what| BadCard { file: file.to_owned(), line, what };
    let value: Value = serde_yaml_ng::from_str(text)
        .map_err(|error| bad(error.location().map_or(0, |at| at.line()), Wrong::Yaml(error.to_string())))?;
    if value.is_null() {
        return Err(bad(0, Wrong::Empty));
    }
    let lines = Lines::of(text);
    let top = Keys { file, lines: &lines, item: None, map: mapping(&value, "the rate card").map_err(|what| bad(1, what))? };
    top.only(TOP)?;
    let pools = match top.map.get("pools") {
        None => return Err(bad(0, Wrong::Missing("pools".into()))),
        Some(Value::Sequence(pools)) if !pools.is_empty() => pools,
        Some(Value::Sequence(_) | Value::Null) => return Err(bad(0, Wrong::Empty)),
        Some(other) => return Err(top.not("pools", "a list of pools", other)),
    };
    let period = match top.text("charging_period")?.as_deref() {
        None | Some("month") => Period::Month,
        Some("window") => Period::Window,
        Some(_) => return Err(top.is_not("charging_period", "month or window")),
    };
    let currency = top.needed("currency")?;
    if currency.len() != 3 || !currency.bytes().all(|b| b.is_ascii_uppercase()) {
        return Err(top.is_not("currency", "a code of three capitals such as EUR"));
    }
    let entries = pools.iter().enumerate().map(|(item, value)| {
        let map = mapping(value, "a pool").map_err(|what| bad(lines.item(item), what))?;
        entry(&Keys { file, lines: &lines, item: Some(item), map })
    });
    let entries = entries.collect::<Result<Vec<_>, _>>()?;
    let card = Card { file: file.to_owned(), currency, period, entries };
    card.checked().map_err(|fault| bad(0, Wrong::Card(fault)))
}

fn mapping<'a>(value: &'a Value, of: &str) -> Result<&'a Mapping, Wrong> {
    value.as_mapping().ok_or_else(|| Wrong::Not { key: of.into(), wanted: "keys with values", found: shown(value) })
}

fn shown(value: &Value) -> String {
    let text = serde_yaml_ng::to_string(value).unwrap_or_default();
    let text = text.trim();
    if text.chars().count() > 60 { format!("{}...", text.chars().take(60).collect::<String>()) } else { text.to_owned() }
}

/// Where the items of `pools:` and their keys stand; near enough to point at in a card of any style.
struct Lines<'a> {
    text: Vec<&'a str>,
    items: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Self {
        let text: Vec<&str> = text.lines().collect();
        let begin = text.iter().position(|line| line.starts_with("pools")).map_or(0, |at| at + 1);
        let dashes = || (begin..text.len()).filter(|at| text[*at].trim_start().starts_with("- "));
        let indent = |at: usize| text[at].len() - text[at].trim_start().len();
        let least = dashes().map(indent).min().unwrap_or(0);
        let items = dashes().filter(|at| indent(*at) == least).collect();
        Self { text, items }
    }

    /// 1-based line of an item.
    fn item(&self, item: usize) -> usize {
        self.items.get(item).map_or(0, |at| at + 1)
    }

    /// 1-based line of a key, in an item where one is given.
    fn key(&self, item: Option<usize>, key: &str) -> usize {
        let (from, to) = match item {
            None => (0, self.text.len()),
            Some(item) => {
                let at = |item: usize| self.items.get(item).copied();
                (at(item).unwrap_or(0), at(item + 1).unwrap_or(self.text.len()))
            }
        };
        let named = |line: &str| {
            line.split(['{', ',', ' ', '-']).any(|part| part.trim().trim_matches(['"', '\'']).strip_suffix(':') == Some(key))
                || line.trim_start_matches(['-', ' ']).starts_with(&format!("{key}:"))
        };
        (from..to).find(|at| named(self.text[*at])).map_or_else(|| item.map_or(0, |item| self.item(item)), |at| at + 1)
    }
}

/// The keys of the card or of one of its pools.
struct Keys<'a> {
    file: &'a str,
    lines: &'a Lines<'a>,
    item: Option<usize>,
    map: &'a Mapping,
}

impl Keys<'_> {
    fn bad(&self, key: &str, what: Wrong) -> BadCard {
        BadCard { file: self.file.to_owned(), line: self.lines.key(self.item, key), what }
    }

    fn not(&self, key: &str, wanted: &'static str, found: &Value) -> BadCard {
        self.bad(key, Wrong::Not { key: key.into(), wanted, found: shown(found) })
    }

    fn is_not(&self, key: &str, wanted: &'static str) -> BadCard {
        self.not(key, wanted, self.map.get(key).unwrap_or(&Value::Null))
    }

    /// Refuses keys that there are not.
    fn only(&self, known: &[&str]) -> Result<(), BadCard> {
        for key in self.map.keys() {
            let key = key.as_str().map_or_else(|| shown(key), str::to_owned);
            if !known.contains(&&*key) {
                let nearest =
                    known.iter().min_by_key(|word| strsim::damerau_levenshtein(word, &key)).copied().unwrap_or_default();
                let what = Wrong::Unknown { key: key.clone(), nearest: nearest.into(), known: known.join(", ") };
                return Err(self.bad(&key, what));
            }
        }
        Ok(())
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn text(&self, key: &str) -> Result<Option<Text>, BadCard> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some((**text).into())),
            Some(other) => Err(self.not(key, "a text", other)),
        }
    }

    fn needed(&self, key: &str) -> Result<Text, BadCard> {
        self.text(key)?.ok_or_else(|| self.bad(key, Wrong::Missing(key.into())))
    }

    fn whole(&self, key: &str) -> Result<Option<i64>, BadCard> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Number(number)) => match number.as_i64() {
                Some(whole) => Ok(Some(whole)),
                None if number.is_f64() => Err(self.bad(key, Wrong::Float { key: key.into(), found: number.to_string() })),
                None => Err(self.bad(key, Wrong::TooLarge { key: key.into(), found: number.to_string() })),
            },
            Some(other) => Err(self.not(key, "a whole number", other)),
        }
    }

    fn time(&self, key: &str) -> Result<Option<Timestamp>, BadCard> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let whole = if text.len() == 10 { format!("{text}T00:00:00Z") } else { text.to_string() };
        let read = whole.parse().map_err(|_| self.is_not(key, "a UTC date, or an RFC 3339 time such as 2026-03-02T10:00:00Z"));
        read.map(Some)
    }

    fn needed_time(&self, key: &str) -> Result<Timestamp, BadCard> {
        self.time(key)?.ok_or_else(|| self.bad(key, Wrong::Missing(key.into())))
    }

    /// A price in micro-units: a decimal text of units under `decimal`, or a whole number of micro-units under `micro`.
    fn price(&self, decimal: &str, micro: &str) -> Result<Option<i64>, BadCard> {
        let given = self.whole(micro)?;
        let text = match self.get(decimal) {
            None => return Ok(given),
            Some(Value::String(text)) => text,
            Some(Value::Number(number)) if number.is_f64() => {
                return Err(self.bad(decimal, Wrong::Float { key: decimal.into(), found: number.to_string() }));
            }
            Some(other) => {
                return Err(self.not(
                    decimal,
                    "a decimal in quotes such as \"2.35\" (or a whole number of micro-units under the micro key)",
                    other,
                ));
            }
        };
        if given.is_some() {
            return Err(self.bad(micro, Wrong::OneOf { pool: self.name(), keys: "the decimal and the micro key", count: 2 }));
        }
        self.decimal(decimal, text).map(Some)
    }

    fn decimal(&self, key: &str, text: &str) -> Result<i64, BadCard> {
        let (minus, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
        let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !all_digits(whole) || !all_digits(fraction) {
            return Err(self.is_not(key, "a decimal in quotes such as \"2.35\""));
        }
        if fraction.bytes().skip(6).any(|b| b != b'0') {
            return Err(self.bad(key, Wrong::Decimals { key: key.into(), found: text.into() }));
        }
        let millionths = format!("{whole}{:0<6}", fraction.get(..6).unwrap_or(fraction));
        let micro: i64 =
            millionths.parse().map_err(|_| self.bad(key, Wrong::TooLarge { key: key.into(), found: text.into() }))?;
        Ok(if minus { -micro } else { micro })
    }

    fn name(&self) -> String {
        self.map.get("pool").and_then(Value::as_str).unwrap_or("?").to_owned()
    }
}

fn entry(keys: &Keys<'_>) -> Result<Entry, BadCard> {
    let own = match &*keys.needed("kind")? {
        "per_use" => PER_USE,
        "commitment" => COMMITMENT,
        "block" => BLOCK,
        _ => return Err(keys.is_not("kind", "per_use, commitment or block")),
    };
    keys.only(&COMMON.iter().chain(own).copied().collect::<Vec<_>>())?;
    let matches = matches(keys)?;
    let (from, to) = (keys.time("from")?, keys.time("to")?);
    let terms = if own == PER_USE { Terms::PerUse(per_use(keys)?) } else { paid_ahead(keys, own == BLOCK)? };
    let idle = match keys.text("idle")?.as_deref() {
        None | Some("central") => Idle::Central,
        Some("by_use") => Idle::ByUse,
        Some("owner") => Idle::Owner(keys.needed("owner")?),
        Some(_) => return Err(keys.is_not("idle", "central, by_use or owner")),
    };
    if keys.get("owner").is_some() && !matches!(idle, Idle::Owner(_)) {
        return Err(keys.is_not("owner", "nothing (unless `idle: owner`)"));
    }
    let pool = Pool {
        name: keys.needed("pool")?,
        purchase_option: keys.text("purchase_option")?.or_else(|| matches.only(3).cloned()),
        currency: keys.text("currency")?,
        idle,
        tolerance_gpu_ms: keys.whole("tolerance_gpu_ms")?,
        terms,
    };
    // Ends of time that a date can be printed of.
    let (first, last) = (Timestamp::from_ms(0), Timestamp::from_ms(253_402_297_200_000));
    let line = keys.lines.item(keys.item.unwrap_or(0));
    Ok(Entry { pool, matches, from: from.unwrap_or(first), to: to.unwrap_or(last), line })
}

fn matches(keys: &Keys<'_>) -> Result<Match, BadCard> {
    let value = keys.map.get("match").ok_or_else(|| keys.bad("match", Wrong::Missing("match".into())))?;
    let map = value.as_mapping().ok_or_else(|| keys.not("match", "labels such as {provider: x, product: y}, or {}", value))?;
    let inner = Keys { file: keys.file, lines: keys.lines, item: keys.item, map };
    inner.only(&LABELS)?;
    let mut found = Match::default();
    for (label, wanted) in LABELS.iter().zip(&mut found.0) {
        let wrong = |other: &Value| inner.not(label, "a text or a list of texts", other);
        let texts = match inner.get(label) {
            None => continue,
            Some(Value::String(text)) => vec![Text::from(&**text)],
            Some(Value::Sequence(list)) if !list.is_empty() => {
                let text = |value: &Value| value.as_str().map(Text::from).ok_or_else(|| wrong(value));
                list.iter().map(text).collect::<Result<_, _>>()?
            }
            Some(other) => return Err(wrong(other)),
        };
        *wanted = Some(texts.into_iter().collect::<BTreeSet<_>>());
    }
    Ok(found)
}

fn per_use(keys: &Keys<'_>) -> Result<PerUse, BadCard> {
    let of_gpu = keys.price("price_per_gpu_hour", "micro_per_gpu_hour")?;
    let of_node = keys.price("price_per_node_hour", "micro_per_node_hour")?;
    let gpus_per_node = keys.whole("gpus_per_node")?;
    let (micro_per_hour, gpus_per_price) = match (of_gpu, of_node) {
        (Some(price), None) if gpus_per_node.is_none() => (price, 1),
        (Some(_), None) => return Err(keys.is_not("gpus_per_node", "nothing (unless the price is the node's)")),
        (None, Some(price)) => {
            (price, gpus_per_node.ok_or_else(|| keys.bad("gpus_per_node", Wrong::Missing("gpus_per_node".into())))?)
        }
        (of_gpu, of_node) => {
            let count = usize::from(of_gpu.is_some()) + usize::from(of_node.is_some());
            let what = Wrong::OneOf { pool: keys.name(), keys: "price_per_gpu_hour and price_per_node_hour", count };
            return Err(keys.bad("pool", what));
        }
    };
    Ok(PerUse {
        micro_per_hour,
        gpus_per_price,
        increment_ms: keys.whole("increment_ms")?.unwrap_or(1),
        minimum_ms: keys.whole("minimum_ms")?.unwrap_or(0),
        basis: match keys.text("spot_used_basis")?.as_deref() {
            None | Some("billed") => UsedBasis::Billed,
            Some("productive") => UsedBasis::Productive,
            Some(_) => return Err(keys.is_not("spot_used_basis", "billed or productive")),
        },
        opening: Opening::default(),
    })
}

fn paid_ahead(keys: &Keys<'_>, is_block: bool) -> Result<Terms, BadCard> {
    let missing = |key: &str| keys.bad(key, Wrong::Missing(key.into()));
    let fee = if is_block { keys.price("fee", "fee_micro")? } else { keys.price("upfront", "upfront_micro")? };
    let recurring = if is_block { Some(0) } else { keys.price("recurring_per_gpu_hour", "recurring_micro_per_gpu_hour")? };
    if !is_block && fee.is_none() && recurring.is_none() {
        let what = Wrong::OneOf { pool: keys.name(), keys: "upfront and recurring_per_gpu_hour, or both", count: 0 };
        return Err(keys.bad("pool", what));
    }
    let term = Term {
        gpus: keys.whole("gpus")?.ok_or_else(|| missing("gpus"))?,
        from: keys.needed_time("from")?,
        to: keys.needed_time("to")?,
        fee_micro: if is_block { fee.ok_or_else(|| missing("fee"))? } else { fee.unwrap_or(0) },
        recurring_micro_per_gpu_hour: recurring.unwrap_or(0),
        usable_to: keys.time("usable_to")?,
        paid_at: keys.time("paid_at")?,
    };
    Ok(if is_block { Terms::Block(term) } else { Terms::Commitment(term) })
}
