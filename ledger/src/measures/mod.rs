//! Measures beside the account: fragmentation, memory and seats over time, waiting, weighting, busy devices, sizing and
//! forecasts. Exact integers and fractions throughout; a figure that does not fit is an error, never a wrong number.
//!
//! Modules: `exact` (the arithmetic), [`fragmentation`], [`held`] (memory and seats), [`waiting`], [`weighting`], [`busy`],
//! [`sizing`], [`forecast`], and [`cases`], the vectors' text form.

pub mod busy;
pub mod cases;
pub mod forecast;
pub mod fragmentation;
pub mod held;
pub mod sizing;
pub mod waiting;
pub mod weighting;

mod exact;

pub use exact::Decimal;

/// Why there is no figure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// A number outside what makes sense; the text says which and what is needed.
    #[error("{0}")]
    Input(String),
    /// The exact result does not fit 64 bits, or a step on the way 128.
    #[error("the figures are too large for exact arithmetic; use a shorter window")]
    TooLarge,
}

/// `steps` of nothing are no time; a negative length is an error.
fn length(ms: i64) -> Result<i128, MeasureError> {
    if ms < 0 { Err(MeasureError::Input(format!("a step of {ms} ms; lengths are 0 or more"))) } else { Ok(ms.into()) }
}
