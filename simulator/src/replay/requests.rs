//! Traces of requests as load: how many came in each minute, over the most that came in any.

use std::{collections::BTreeMap, path::Path};

use schemas::Timestamp;

use super::{LOAD_STEP_MS, Lines, ReplayError, RequestForm};

const KEY: &str = "replay.requests.file";
/// Length of a window of arrival rates, seconds.
const WINDOW_S: i64 = 600;
/// Longest trace: a year of minutes.
const MOST_STEPS: i64 = 366 * 24 * 60;

/// Load by minute, permille of the peak.
pub(super) fn read(form: RequestForm, path: &Path) -> Result<Vec<i64>, ReplayError> {
    // By minute since the first: requests, or thousandths of requests a second.
    let minutes = match form {
        RequestForm::AzureLlm2023 => requests(path)?,
        RequestForm::ServegenArrivals => rates(path)?,
    };
    let (first, last) = (minutes.keys().next().copied().unwrap_or(0), minutes.keys().next_back().copied().unwrap_or(0));
    let most = minutes.values().copied().max().unwrap_or(0);
    if most == 0 || last - first >= MOST_STEPS {
        let why = ": no requests, or more than a year of them";
        return Err(ReplayError::Empty { key: KEY, path: path.to_owned(), why });
    }
    Ok((first..=last).map(|minute| minutes.get(&minute).map_or(0, |count| count * 1000 / most)).collect())
}

fn requests(path: &Path) -> Result<BTreeMap<i64, i64>, ReplayError> {
    let mut minutes: BTreeMap<i64, i64> = BTreeMap::new();
    Lines::open(KEY, path, &["TIMESTAMP"])?.each(|cells| {
        let cell = cells.first().copied().unwrap_or_default();
        // As written there: a blank between date and time, no zone.
        let at: Timestamp = format!("{}Z", cell.replacen(' ', "T", 1))
            .parse()
            .map_err(|_| format!("TIMESTAMP `{}` is no time", cell.escape_debug()))?;
        *minutes.entry(at.ms().div_euclid(LOAD_STEP_MS)).or_default() += 1;
        Ok(())
    })?;
    Ok(minutes)
}

fn rates(path: &Path) -> Result<BTreeMap<i64, i64>, ReplayError> {
    let mut windows: BTreeMap<i64, i64> = BTreeMap::new();
    Lines::open(KEY, path, &["window_start_s", "rate_per_s"])?.each(|cells| {
        let &[start, rate] = cells else { return Err("is cut short".to_owned()) };
        let start = super::number("window_start_s", start, 0, MOST_STEPS * 60)?;
        let rate: f64 = rate
            .parse()
            .ok()
            .filter(|rate| (0.0..1e9).contains(rate))
            .ok_or_else(|| format!("rate_per_s `{}` is no rate", rate.escape_debug()))?;
        // All clients together.
        *windows.entry(start.div_euclid(WINDOW_S)).or_default() += (rate * 1000.0).round() as i64;
        Ok(())
    })?;
    let of_window =
        |(window, rate): (i64, i64)| (window * WINDOW_S / 60..(window + 1) * WINDOW_S / 60).map(move |minute| (minute, rate));
    Ok(windows.into_iter().flat_map(of_window).collect())
}
