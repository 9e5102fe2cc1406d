//! Devices asked for and not given (worked number V22).

use schemas::Timestamp;

use super::{
    MeasureError,
    exact::{Ratio, add, mul, whole},
};

/// A job that asked for devices.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// How many.
    pub gpus: u64,
    /// When.
    pub asked: Timestamp,
    /// When it got them.
    pub bound: Option<Timestamp>,
    /// When it gave up before that.
    pub withdrawn: Option<Timestamp>,
}

/// What waited by an instant. Waits that have no end yet stand apart: a mean over those that ended alone would hide them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unserved {
    /// Devices x time waited for them, of all jobs.
    pub unserved_ms: i64,
    /// Mean wait of the jobs that got theirs, to the nearest ms, half up; none where nobody did.
    pub admitted_mean_wait_ms: Option<i64>,
    /// Waits so far of those that wait on, shortest first.
    pub still_waiting_ms: Vec<i64>,
    /// Waits of those that gave up, shortest first.
    pub withdrawn_wait_ms: Vec<i64>,
}

/// What `jobs` waited, as known at `now`: what lies after it has not happened.
pub fn unserved(now: Timestamp, jobs: &[Job]) -> Result<Unserved, MeasureError> {
    let (mut sum, mut admitted, mut waits) = (0, 0, 0);
    let mut answer = Unserved::default();
    for job in jobs.iter().filter(|job| job.asked <= now) {
        let so_far = |at: Option<Timestamp>| at.filter(|at| *at <= now);
        let (bound, withdrawn) = (so_far(job.bound), so_far(job.withdrawn));
        let end = [bound, withdrawn].into_iter().flatten().min();
        let wait = (i128::from(end.unwrap_or(now).ms()) - i128::from(job.asked.ms())).max(0);
        sum = add(sum, mul(i128::from(job.gpus), wait)?)?;
        match (end, bound == end) {
            (None, _) => answer.still_waiting_ms.push(whole(wait)?),
            (Some(_), true) => {
                admitted += 1;
                waits = add(waits, wait)?;
            }
            (Some(_), false) => answer.withdrawn_wait_ms.push(whole(wait)?),
        }
    }
    answer.unserved_ms = whole(sum)?;
    if admitted > 0 {
        answer.admitted_mean_wait_ms = Some(whole(Ratio::new(waits, admitted)?.nearest()?)?);
    }
    answer.still_waiting_ms.sort_unstable();
    answer.withdrawn_wait_ms.sort_unstable();
    Ok(answer)
}
