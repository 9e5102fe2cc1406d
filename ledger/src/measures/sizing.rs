//! Nodes for a demand (worked number V17): rounded once, at the unit in which nodes are placed.

use super::{
    MeasureError,
    exact::{Ratio, mul, whole},
};

/// A demand and what it must survive.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Work asked for, in any unit.
    pub demand: u64,
    /// What one node does of it.
    pub per_node: u64,
    /// Regions that share it.
    pub regions: u32,
    /// Regions that may be lost.
    pub lost_regions: u32,
    /// Share of the nodes that is broken, in parts per million.
    pub failure_ppm: u32,
    /// Share that is in maintenance.
    pub maintenance_ppm: u32,
    /// GPUs of a node.
    pub gpus_per_node: u32,
}

/// The nodes it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// Before rounding, six places.
    pub exact: String,
    /// Rounded up over all.
    pub nodes: i64,
    /// Rounded up in each region.
    pub per_region: i64,
    /// `per_region` x regions.
    pub placed: i64,
    /// GPUs of those.
    pub gpus: i64,
}

/// Nodes for `d`: demand / per_node x regions / (regions - lost) / ((1 - failure) x (1 - maintenance)).
pub fn nodes(d: &Demand) -> Result<Nodes, MeasureError> {
    let input = |what: &str| Err(MeasureError::Input(what.into()));
    if d.per_node == 0 {
        return input("per_node is 0; a node does something");
    }
    if d.regions <= d.lost_regions {
        return input("lost_regions leaves no region; keep it below regions");
    }
    if d.failure_ppm >= 1_000_000 || d.maintenance_ppm >= 1_000_000 {
        return input("failure_ppm and maintenance_ppm are parts per million, below 1000000");
    }
    let regions = i128::from(d.regions);
    let usable = (1_000_000 - i128::from(d.failure_ppm)) * (1_000_000 - i128::from(d.maintenance_ppm));
    let exact = Ratio::new(d.demand.into(), d.per_node.into())?
        .times(regions, regions - i128::from(d.lost_regions))?
        .times(1_000_000_000_000, usable)?;
    let per_region = exact.times(1, regions)?.ceiling();
    let placed = mul(per_region, regions)?;
    Ok(Nodes {
        exact: exact.six_places()?,
        nodes: whole(exact.ceiling())?,
        per_region: whole(per_region)?,
        placed: whole(placed)?,
        gpus: whole(mul(placed, d.gpus_per_node.into())?)?,
    })
}
