//! What `strandline check` proves beside closure, a line each: columns, offsets, costs, and the truth
//! where a simulation left it.

use lake::{Lake, LakeError, read};
use schemas::{Window, status::Tier, tables};

use crate::{job, money, truth};

/// One proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// What is proved.
    pub name: &'static str,
    /// How it came out.
    pub outcome: Outcome,
    /// In words.
    pub words: String,
}

/// How a proof came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Holds,
    /// It does not.
    Fails,
    /// There is nothing to prove it of.
    NothingToProve,
}

/// Every file of the lake's closed hours inside `window` has its table's columns.
pub fn schema(lake: &Lake, window: Option<Window>) -> Result<Proof, LakeError> {
    let (mut files, mut found_tables, mut later, mut fault) = (0_usize, 0_usize, 0_usize, None);
    for table in tables::all() {
        let list = lake.closed_files(table, window)?;
        found_tables += usize::from(!list.is_empty());
        for file in list {
            files += 1;
            match read::schema(table, &file.path) {
                Ok(columns) => {
                    later += usize::from(columns > 0);
                    let footer = read::footer(&file.path)?;
                    let outside = [footer.min_at, footer.max_at].into_iter().flatten().find(|at| at.hour() != file.key.hour);
                    if let Some(at) = outside {
                        let words =
                            format!("{} has rows of {at}, which is not its folder's hour; restore it", file.path.display());
                        fault = fault.or(Some(words));
                    }
                }
                Err(error) => fault = fault.or(Some(error.to_string())),
            }
        }
    }
    let (outcome, words) = match fault {
        Some(fault) => (Outcome::Fails, fault),
        None if files == 0 => (Outcome::NothingToProve, "no closed hours".into()),
        None => {
            let beside =
                if later > 0 { format!("; {later} have columns of a later version, which are not read") } else { String::new() };
            (Outcome::Holds, format!("{files} files of {found_tables} tables have the columns of their tables{beside}"))
        }
    };
    Ok(Proof { name: "schema", outcome, words })
}

/// Every closed hour that has inputs has hour rows.
pub fn hours(lake: &Lake, window: Option<Window>) -> Result<Proof, LakeError> {
    let (outcome, words) = match job::not_computed(lake, &job::Files::list(lake)?, window)? {
        None => (Outcome::Holds, "every closed hour has its hour rows".to_owned()),
        Some((count, first)) => {
            (Outcome::Fails, format!("{count} closed hours have none, the first of {first}; run `strandline hours`"))
        }
    };
    Ok(Proof { name: "hours", outcome, words })
}

/// Hot files tile their offsets, and closed hours stand on all of them.
pub fn offsets(lake: &Lake) -> Result<Proof, LakeError> {
    let tiles = lake.tiles()?;
    let (outcome, words) = match tiles.faults.first() {
        Some(first) => (Outcome::Fails, format!("{} faults; the first: {first}", tiles.faults.len())),
        None if tiles.partitions == 0 => (Outcome::NothingToProve, "no hot files".into()),
        None => (
            Outcome::Holds,
            format!(
                "{} offsets of {} partitions lie in {} intervals without gap or overlap; closed hours have them in {} places of {}{}",
                tiles.offsets,
                tiles.partitions,
                tiles.intervals,
                tiles.pairs,
                tiles.pairs,
                match tiles.removed {
                    0 => String::new(),
                    removed => format!("; {removed} offsets more were closed, and then removed by retention"),
                }
            ),
        ),
    };
    Ok(Proof { name: "offsets", outcome, words })
}

/// The ledger says what was so, where a simulation left the truth beside it.
pub fn truth(lake: &Lake) -> Result<Proof, LakeError> {
    let name = "truth";
    if lake.closed_files(tables::get("truth_gpu_hours"), None)?.is_empty() {
        return Ok(Proof { name, outcome: Outcome::NothingToProve, words: "no table truth_gpu_hours beside this lake".into() });
    }
    let found = truth::compare(lake)?;
    let wrong: Vec<&str> = found.tiers.iter().filter(|tier| !tier.holds()).map(|tier| tier.tier.as_str()).collect();
    let words = if found.holds() {
        format!(
            "allocated is right to the millisecond for {} owners; {} tiers hold within what nobody saw",
            found.owners,
            Tier::ALL.len()
        )
    } else {
        format!(
            "allocated differs for {} owners and {} (device, owner) pairs; tiers that do not hold: {}",
            found.owner_differences.len(),
            found.device_differences.len(),
            if wrong.is_empty() { "none".into() } else { wrong.join(", ") }
        )
    };
    Ok(Proof { name, outcome: if found.holds() { Outcome::Holds } else { Outcome::Fails }, words })
}

/// Every hour of `costs` sums to its source, and is of the hour rows that there are.
pub fn costs(lake: &Lake, window: Option<Window>) -> Result<Proof, LakeError> {
    let verdict = money::proof::check(lake, window)?;
    let (outcome, words) = match &verdict.fault {
        Some(fault) => (Outcome::Fails, format!("{} faults; the first: {fault}", verdict.faults)),
        None if verdict.hours == 0 => (Outcome::NothingToProve, "no priced hours; `strandline money` makes them".into()),
        None => {
            (Outcome::Holds, format!("{} pools of {} hours sum to their source to the micro-unit", verdict.pools, verdict.hours))
        }
    };
    Ok(Proof { name: "costs", outcome, words })
}
