//! Misbehaviour on purpose: calls that fail or hang, devices that are lost, drivers that are restarted.
//!
//! A script is YAML (or JSON, which is YAML too):
//!
//! ```yaml
//! calls:
//!   - { call: nvmlDeviceGetPowerUsage, device: 0, from: 10m, for: 30s, fail: UNKNOWN }
//!   - { call: nvmlDeviceGet*, after_calls: 100, times: 3, hang: 2s }
//! devices:
//!   - { device: 1, from: 5m, for: 10m, state: lost }
//!   - { device: GPU-1c8e7c5b-7a3e-4d0c-8a53-0f6d2f3b7c11, from: 20m, state: fallen_off }
//! driver:
//!   - { from: 30m, for: 5s }
//! ```
//!
//! `from` counts fleet time from the clock's beginning; without it a rule holds from the beginning, without `for` for good.

use std::sync::atomic::{AtomicU64, Ordering};

use schemas::Timestamp;
use serde::Deserialize;

use super::{Code, FUNCTIONS};
use crate::spec::Span;

/// Most rules of a script, and longest hang.
const MAX_RULES: usize = 1000;
const MAX_HANG_MS: i64 = 3_600_000;

/// What is to go wrong, and when.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    calls: Vec<CallRule>,
    devices: Vec<DeviceRule>,
    driver: Vec<Restart>,
}

/// Calls that go wrong.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallRule {
    /// The function, or the beginning of names and `*`.
    call: String,
    /// Only calls about this device: its index or its UUID.
    device: Option<DeviceName>,
    #[serde(default)]
    from: Option<Span>,
    #[serde(default, rename = "for")]
    lasts: Option<Span>,
    /// So many calls go well first; each process counts its own.
    #[serde(default)]
    after_calls: u64,
    /// So many calls go wrong then; not given: all.
    times: Option<u64>,
    /// The code that they get.
    fail: Option<String>,
    /// How long they hang before, by the wall clock.
    hang: Option<Span>,
    #[serde(skip)]
    seen: AtomicU64,
}

/// A device that goes away.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceRule {
    device: DeviceName,
    #[serde(default)]
    from: Option<Span>,
    #[serde(default, rename = "for")]
    lasts: Option<Span>,
    state: DeviceFault,
}

/// How a device goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceFault {
    /// Counted, and every question about it gets GPU_IS_LOST.
    Lost,
    /// The same, and it is no longer counted: those after it move up.
    FallenOff,
}

/// A driver that is unloaded and loaded.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Restart {
    #[serde(default)]
    from: Option<Span>,
    #[serde(rename = "for")]
    lasts: Span,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum DeviceName {
    Index(u32),
    Uuid(String),
}

impl DeviceName {
    fn is(&self, index: u32, uuid: &str) -> bool {
        match self {
            Self::Index(wanted) => *wanted == index,
            Self::Uuid(wanted) => wanted == uuid,
        }
    }
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// It hangs so long first, milliseconds.
    pub hang_ms: u64,
    /// It fails with this.
    pub fail: Option<Code>,
}

/// What is wrong with a script.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// Not YAML, or not of the right form.
    #[error("{0}")]
    Form(String),
    /// A value that means nothing.
    #[error("{key}: {message}")]
    Value {
        /// The key at fault, with its path.
        key: String,
        /// What is wrong with it, and what to do.
        message: String,
    },
}

/// Fleet time since the clock's beginning in which a rule holds.
fn holds(from: Option<Span>, lasts: Option<Span>, since_ms: i64) -> bool {
    let from = from.map_or(0, Span::ms);
    from <= since_ms && lasts.is_none_or(|lasts| since_ms < from.saturating_add(lasts.ms()))
}

impl Script {
    /// Reads a script and checks it. An empty one does nothing.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let script: Self = serde_yaml_ng::from_str(text).map_err(|err| ScriptError::Form(err.to_string()))?;
        script.check()?;
        Ok(script)
    }

    fn check(&self) -> Result<(), ScriptError> {
        let wrong = |key: String, message: String| Err(ScriptError::Value { key, message });
        for (key, length) in [("calls", self.calls.len()), ("devices", self.devices.len()), ("driver", self.driver.len())] {
            if length > MAX_RULES {
                return wrong(key.into(), format!("{length} rules; give at most {MAX_RULES}"));
            }
        }
        for (n, rule) in self.calls.iter().enumerate() {
            let key = |field: &str| format!("calls[{n}].{field}");
            if !FUNCTIONS.lines().any(|name| matches(&rule.call, name)) {
                let nearest = FUNCTIONS.lines().min_by_key(|name| (strsim::damerau_levenshtein(name, &rule.call), *name));
                let message = format!("no NVML function is called `{}`; did you mean `{}`?", rule.call, nearest.unwrap_or("*"));
                return wrong(key("call"), message);
            }
            match &rule.fail {
                None if rule.hang.is_none() => return wrong(key("fail"), "give `fail`, `hang` or both".into()),
                Some(code) if Code::parse(code).is_none() => {
                    let nearest = Code::names().min_by_key(|name| (strsim::damerau_levenshtein(name, code), *name));
                    let message = format!("`{code}` is no NVML code; did you mean `{}`?", nearest.unwrap_or("UNKNOWN"));
                    return wrong(key("fail"), message);
                }
                _ => {}
            }
            if let Some(hang) = rule.hang.filter(|hang| hang.ms() > MAX_HANG_MS) {
                return wrong(key("hang"), format!("{hang} is above 1h"));
            }
        }
        Ok(())
    }

    /// What becomes of a call of `name` about `device` (index and UUID), `since_ms` after the clock's beginning. Counts it.
    pub fn on_call(&self, name: &str, device: Option<(u32, &str)>, since_ms: i64) -> Action {
        let mut action = Action::default();
        for rule in &self.calls {
            let about = |wanted: &DeviceName| device.is_some_and(|(index, uuid)| wanted.is(index, uuid));
            let meant =
                matches(&rule.call, name) && rule.device.as_ref().is_none_or(about) && holds(rule.from, rule.lasts, since_ms);
            if !meant {
                continue;
            }
            let nth = rule.seen.fetch_add(1, Ordering::Relaxed);
            let over = rule.times.is_some_and(|times| nth >= rule.after_calls.saturating_add(times));
            if nth < rule.after_calls || over {
                continue;
            }
            action.hang_ms += rule.hang.map_or(0, |hang| hang.ms() as u64);
            action.fail = action.fail.or_else(|| Code::parse(rule.fail.as_ref()?));
        }
        action
    }

    /// How a device (index and UUID) is away `since_ms` after the clock's beginning.
    pub fn device(&self, index: u32, uuid: &str, since_ms: i64) -> Option<DeviceFault> {
        let rules = self.devices.iter().filter(|rule| rule.device.is(index, uuid) && holds(rule.from, rule.lasts, since_ms));
        rules.map(|rule| rule.state).max()
    }

    /// Whether the driver is away then.
    pub fn driver_away(&self, since_ms: i64) -> bool {
        self.driver.iter().any(|restart| holds(restart.from, Some(restart.lasts), since_ms))
    }

    /// How many restarts are over then, and when the last one was.
    pub fn restarts(&self, origin: Timestamp, since_ms: i64) -> (u32, Option<Timestamp>) {
        let over = self.driver.iter().map(|restart| restart.from.map_or(0, Span::ms).saturating_add(restart.lasts.ms()));
        let over = over.filter(|end| *end <= since_ms);
        let (count, last) = over.fold((0, None), |(count, last): (u32, Option<i64>), end| (count + 1, last.max(Some(end))));
        (count, last.map(|end| origin.plus_ms(end)))
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn calls_go_wrong_by_name_device_time_and_count() {
        let text = "calls:\n- {call: nvmlDeviceGetPowerUsage, device: 1, from: 10s, for: 5s, fail: UNKNOWN}\n\
                    - {call: nvmlDeviceGetT*, after_calls: 2, times: 1, hang: 250ms}";
        let script = Script::parse(text).unwrap();
        let power = |device: u32, since_ms| script.on_call("nvmlDeviceGetPowerUsage", Some((device, "GPU-x")), since_ms).fail;
        assert_eq!(
            (power(1, 9_999), power(1, 10_000), power(1, 14_999), power(1, 15_000)),
            (None, Some(Code::UNKNOWN), Some(Code::UNKNOWN), None)
        );
        assert_eq!(power(0, 12_000), None);
        let hangs: Vec<u64> = (0..4).map(|_| script.on_call("nvmlDeviceGetTemperature", None, 0).hang_ms).collect();
        assert_eq!(hangs, [0, 0, 250, 0]);
    }

    #[test]
    fn devices_and_drivers_go_away_and_come_back() {
        let text = "devices:\n- {device: GPU-x, from: 1m, for: 1m, state: lost}\n- {device: 3, from: 90s, state: fallen_off}\n\
                    driver:\n- {from: 5m, for: 10s}\n- {from: 10m, for: 1s}";
        let script = Script::parse(text).unwrap();
        let states: Vec<_> = [0, 60_000, 90_000, 120_000].map(|since_ms| script.device(3, "GPU-x", since_ms)).into();
        use DeviceFault::{FallenOff, Lost};
        assert_eq!(states, [None, Some(Lost), Some(FallenOff), Some(FallenOff)]);
        assert!(!script.driver_away(299_999) && script.driver_away(300_000) && !script.driver_away(310_000));
        let origin = Timestamp::from_ms(1_000_000);
        assert_eq!(script.restarts(origin, 309_999), (0, None));
        assert_eq!(script.restarts(origin, 310_000), (1, Some(origin.plus_ms(310_000))));
        assert_eq!(script.restarts(origin, 700_000), (2, Some(origin.plus_ms(601_000))));
    }

    #[test]
    fn a_bad_script_is_refused_with_its_key() {
        let refusal = |text: &str| Script::parse(text).unwrap_err().to_string();
        assert!(Script::parse(" \n").is_ok());
        for (text, says) in [
            ("calls: [{call: nvmlDeviceGetPowerUsag, fail: UNKNOWN}]", "did you mean `nvmlDeviceGetPowerUsage`?"),
            ("calls: [{call: nvmlInit_v2}]", "calls[0].fail: give `fail`, `hang` or both"),
            ("calls: [{call: nvmlInit_v2, fail: GPU_LOST}]", "`GPU_LOST` is no NVML code; did you mean `GPU_IS_LOST`?"),
            ("calls: [{call: nvmlInit_v2, hang: 2h}]", "calls[0].hang: 2h is above 1h"),
            ("calls: [{cal: nvmlInit_v2}]", "unknown field `cal`"),
            ("devices: [{device: 0, state: gone}]", "unknown variant `gone`"),
            ("driver: [{from: 1m}]", "missing field `for`"),
        ] {
            assert!(refusal(text).contains(says), "{text}: {}", refusal(text));
        }
    }
}
