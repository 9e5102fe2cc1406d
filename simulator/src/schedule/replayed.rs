//! Jobs of a trace, in place of what teams would ask for.

use std::sync::Arc;

use super::{Day, Wish};
use crate::{
    replay::Job,
    shape::{Shape, ids},
    spec::FleetSpec,
};

/// Asks for what `jobs` asked for, at their times and for as long. A job of more GPUs than a node has is a gang; where they cannot
/// be shared out evenly it has a few more. One of a part of a GPU gets replicas of one where the fleet gives them, else a whole one.
pub(super) fn jobs(day: &mut Day<'_>, spec: &FleetSpec, jobs: &[Job]) {
    let most = spec.pools().map(|(_, pool)| pool.gpus_per_node).max().unwrap_or(1).max(1);
    let whole = spec.teams.first().map_or("nvidia.com/gpu", |team| spec.resource(team, Shape::Batch));
    let (resource, shared) = (Arc::<str>::from(whole), spec.shared(whole, |_| true));
    let products: Arc<[String]> = Arc::new([]);
    for job in jobs {
        let created = spec.start.ms() + job.at_ms;
        if created >= day.end {
            break;
        }
        let shape = if job.serves { Shape::Inference } else { Shape::Training };
        let nodes = job.gpus.div_ceil(most);
        let part = shared.filter(|_| job.milli < 1000);
        let resource = part.map_or(resource.clone(), |(shared, _)| shared.into());
        let wish = Wish {
            name: &job.name,
            team: &job.team,
            namespace: &job.team,
            shape,
            resource: &resource,
            products: &products,
            gpus: part.map_or(job.gpus.div_ceil(nodes), |(_, replicas)| ids(job.milli, replicas)),
            nodes,
            created,
        };
        let entered = day.jobs.len();
        let mut pods = wish.pods();
        pods.iter_mut().for_each(|pod| pod.part = part.map(|_| job.milli));
        day.request(pods, job.duration_ms, 0);
        if let Some(entered) = day.jobs.get_mut(entered) {
            entered.outcome = Some(job.outcome);
        }
    }
}
