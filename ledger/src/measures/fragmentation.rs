//! Free devices that a gang cannot use because they are scattered over nodes (worked number V18).

use std::collections::BTreeMap;

use super::{
    MeasureError,
    exact::{Ratio, add, mul, whole},
    length,
};

/// What was free over a stretch of time: devices per node.
#[derive(Clone, Debug)]
pub struct Step {
    /// Length.
    pub ms: i64,
    /// Free devices of each node.
    pub free: Vec<u32>,
}

/// Of one gang shape, the free time that it could use and that it could not. A gang takes `shape` devices of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Devices of the gang.
    pub shape: u32,
    /// Free device-time.
    pub free_ms: i64,
    /// Time in which gangs could run, summed over gangs.
    pub gang_ms: i64,
    /// `gang_ms` x shape.
    pub usable_ms: i64,
    /// Free and of no use to the shape.
    pub lost_ms: i64,
}

/// Free, usable and lost time of each of `shapes`, in their order.
pub fn shapes(steps: &[Step], shapes: &[u32]) -> Result<Vec<Shape>, MeasureError> {
    let one = |shape: &u32| {
        let size = i128::from(*shape);
        if size == 0 {
            return Err(MeasureError::Input("a gang of 0 devices; a shape is 1 or more".into()));
        }
        let (mut free, mut gangs) = (0, 0);
        for step in steps {
            let ms = length(step.ms)?;
            let sum: i128 = step.free.iter().map(|n| i128::from(*n)).sum();
            let whole: i128 = step.free.iter().map(|n| i128::from(n / shape)).sum();
            free = add(free, mul(sum, ms)?)?;
            gangs = add(gangs, mul(whole, ms)?)?;
        }
        let usable = mul(gangs, size)?;
        Ok(Shape {
            shape: *shape,
            free_ms: whole(free)?,
            gang_ms: whole(gangs)?,
            usable_ms: whole(usable)?,
            lost_ms: whole(free - usable)?,
        })
    };
    shapes.iter().map(one).collect()
}

/// The lost share of a demand mix (shape to parts per million of the demand), in parts per million. A shape without free time
/// loses nothing.
pub fn mix_lost_ppm(steps: &[Step], mix_ppm: &BTreeMap<u32, u32>) -> Result<i64, MeasureError> {
    let sizes: Vec<u32> = mix_ppm.keys().copied().collect();
    // The free time is the same for every shape: one denominator.
    let (mut lost, mut free) = (0, 0);
    for (shape, ppm) in shapes(steps, &sizes)?.iter().zip(mix_ppm.values()) {
        lost = add(lost, mul(shape.lost_ms.into(), i128::from(*ppm))?)?;
        free = shape.free_ms.into();
    }
    if free == 0 { Ok(0) } else { whole(Ratio::new(lost, free)?.nearest()?) }
}
