//! A program in a process of its own, and what it uses up, as Linux tells it.

use std::process::{Child, Command};

/// A running program; it ends with this.
pub struct Program(Child);

impl Program {
    /// Starts it.
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|err| panic!("cannot start {command:?}: {err}")))
    }

    /// Whether it still runs; one that failed ends the bench.
    pub fn runs(&mut self) -> bool {
        let ended = self.0.try_wait().unwrap();
        assert!(ended.is_none_or(|status| status.success()), "the program failed: {ended:?}");
        ended.is_none()
    }

    /// User and system time that it has had, seconds.
    pub fn cpu_s(&self) -> f64 {
        cpu_s(&self.0.id().to_string())
    }

    /// Most memory that it has had, MiB; 0 of one that has ended.
    pub fn peak_mib(&self) -> u64 {
        peak_mib(&self.0.id().to_string())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// User and system time of a process (`self`, or its id), seconds.
pub fn cpu_s(process: &str) -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0; // USER_HZ, fixed in Linux's interface
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The second field is the program's name in parentheses and may hold blanks; 14 and 15 are counted with it.
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let times = after.split_ascii_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok());
    times.sum::<f64>() / TICKS_PER_SECOND
}

/// Most memory that a process (`self`, or its id) has had, MiB.
pub fn peak_mib(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
