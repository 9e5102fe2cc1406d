//! Traces of jobs and pods: who asked for how many GPUs, when, and held them for how long.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use super::{Job, JobForm, Lines, ReplayError, number};
use crate::plan::Outcome;

const KEY: &str = "replay.jobs.file";
const DAY_S: i64 = 86_400;
/// Longest job, and latest time, that is believed: a hundred years.
const MOST_S: i64 = 36_525 * DAY_S;

/// The jobs of a trace from `from_ms` after the beginning of its first day on, in order of time.
pub(super) fn read(form: JobForm, path: &Path, from_ms: i64) -> Result<Vec<Job>, ReplayError> {
    let mut jobs = match form {
        JobForm::PhillyJobs => philly(path)?,
        JobForm::OpenbPods => openb(path)?,
    };
    let first = jobs.iter().map(|job| job.at_ms).min().unwrap_or(0);
    // Days begin as they did there, so that the hours of the day stay.
    let begin = first.div_euclid(DAY_S * 1000) * DAY_S * 1000 + from_ms;
    jobs.retain(|job| job.at_ms >= begin);
    jobs.iter_mut().for_each(|job| job.at_ms -= begin);
    jobs.sort_by(|a, b| (a.at_ms, &a.name).cmp(&(b.at_ms, &b.name)));
    name_apart(&mut jobs);
    if jobs.is_empty() {
        let why = ": no job with GPUs after `from`";
        return Err(ReplayError::Empty { key: KEY, path: path.to_owned(), why });
    }
    Ok(jobs)
}

/// Gives jobs of a team that have one name, by the trace or by what is left of their names, numbers from the second on: a pod is known
/// by its name.
fn name_apart(jobs: &mut [Job]) {
    let mut taken: BTreeSet<(Arc<str>, Arc<str>)> = BTreeSet::new();
    // How often a name came, so that many of one name are numbered without trying all numbers.
    let mut counts: BTreeMap<(Arc<str>, Arc<str>), u64> = BTreeMap::new();
    for job in jobs {
        let wanted = (job.team.clone(), job.name.clone());
        while !taken.insert((job.team.clone(), job.name.clone())) {
            let count = counts.entry(wanted.clone()).or_insert(1);
            *count += 1;
            job.name = format!("{}-{count}", wanted.1).into();
        }
    }
}

/// A name as Kubernetes would have it.
fn label(prefix: &str, text: &str) -> Arc<str> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = prefix.chars().chain(text.chars().map(plain)).take(50).collect();
    match name.trim_matches('-') {
        "" => "unnamed".into(),
        name => name.into(),
    }
}

fn philly(path: &Path) -> Result<Vec<Job>, ReplayError> {
    let mut jobs = Vec::new();
    Lines::open(KEY, path, &["job_id", "vc", "start_unix", "duration_s", "num_gpus"])?.each(|cells| {
        let &[id, vc, start, duration, gpus] = cells else { return Err("is cut short".to_owned()) };
        let gpus = number("num_gpus", gpus, 0, 10_000)?;
        let (start, duration) = (number("start_unix", start, 0, MOST_S)?, number("duration_s", duration, 0, MOST_S)?);
        if gpus > 0 && duration > 0 {
            jobs.push(Job {
                at_ms: start * 1000,
                duration_ms: duration * 1000,
                gpus: gpus as u32,
                milli: 1000,
                team: label("vc-", vc),
                name: label("job-", id),
                outcome: Outcome::Succeeded,
                serves: false,
            });
        }
        Ok(())
    })?;
    Ok(jobs)
}

/// Pods that were scheduled and have GPUs, or a part of one.
fn openb(path: &Path) -> Result<Vec<Job>, ReplayError> {
    let mut jobs = Vec::new();
    let columns = ["name", "num_gpu", "gpu_milli", "qos", "pod_phase", "creation_time", "scheduled_time", "deletion_time"];
    Lines::open(KEY, path, &columns)?.each(|cells| {
        let &[name, gpus, milli, qos, phase, created, scheduled, deleted] = cells else { return Err("is cut short".to_owned()) };
        let gpus = number("num_gpu", gpus, 0, 10_000)?;
        if gpus == 0 || scheduled.is_empty() || deleted.is_empty() {
            return Ok(());
        }
        let milli = number("gpu_milli", milli, 1, 1000)?;
        let at = number("creation_time", created, 0, MOST_S)?;
        let (from, to) = (number("scheduled_time", scheduled, 0, MOST_S)?, number("deletion_time", deleted, 0, MOST_S)?);
        if to > from {
            jobs.push(Job {
                at_ms: at * 1000,
                duration_ms: (to - from) * 1000,
                gpus: gpus as u32,
                milli: if gpus == 1 { milli as u32 } else { 1000 },
                team: label("", qos),
                name: label("", name),
                outcome: if phase == "Failed" { Outcome::Failed } else { Outcome::Succeeded },
                serves: qos == "LS",
            });
        }
        Ok(())
    })?;
    Ok(jobs)
}
