//! Other layouts of the same run on a number of devices: how many encoders, and where.

use super::{Samples, SimError, SimReport, SimSpec, simulate};
use crate::config::Placement;
use crate::message::Role;

/// Describes where encoders and foundation are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLayout {
    pub placement: Placement,
    pub encoders: u32,
    pub foundations: u32,
}

/// A layout and how it does.
#[derive(Debug)]
pub struct Alternative {
    pub layout: PoolLayout,
    pub result: Result<SimReport, SimError>,
}

/// Numbers of encoders up to which all are tried.
const TRY_ALL: u32 = 12;

/// Simulates layouts of `devices` ranks, best first; those that cannot be planned last. A replica takes as many devices
/// as it has stages; what is left over is given to the encoders. A model without towers has one layout, the foundation alone.
pub fn alternatives(spec: &SimSpec, samples: &dyn Samples, devices: u32, fixed_lanes: Option<u32>) -> Vec<Alternative> {
    let stages = spec.cluster.stages.max(1);
    let has_encoders = !spec.coordinator.plan.encoders.is_empty();
    let mut layouts: Vec<PoolLayout> = Vec::new();
    let mut add = |placement, encoders, foundations| {
        let layout = PoolLayout { placement, encoders, foundations };
        if foundations > 0 && (encoders > 0) == has_encoders && !layouts.contains(&layout) {
            layouts.push(layout);
        }
    };
    if has_encoders {
        for encoders in candidates(spec, samples, devices, fixed_lanes) {
            let foundations = devices.saturating_sub(encoders) / stages;
            add(Placement::Separate, devices - foundations * stages, foundations);
        }
        if devices.is_multiple_of(stages) {
            add(Placement::Colocated, devices / stages, devices / stages);
        }
    } else {
        add(Placement::Separate, 0, devices / stages);
    }
    let run = |layout: PoolLayout| {
        let PoolLayout { placement, encoders, foundations } = layout;
        let spec = SimSpec { drawn_steps: 0, ..spec.with_pools(placement, encoders, foundations, fixed_lanes) };
        Alternative { layout, result: simulate(&spec, samples) }
    };
    let mut found: Vec<Alternative> = layouts.into_iter().map(run).collect();
    let speed = |found: &Alternative| found.result.as_ref().map_or(0.0, SimReport::tokens_per_second);
    found.sort_by(|left, right| speed(right).total_cmp(&speed(left)));
    found
}

/// Numbers of encoders that are worth a try: around the ratio of the pools' work.
fn candidates(spec: &SimSpec, samples: &dyn Samples, devices: u32, fixed_lanes: Option<u32>) -> Vec<u32> {
    if devices <= TRY_ALL {
        return (1..devices).collect();
    }
    let half = spec.with_pools(
        Placement::Separate,
        devices / 2,
        (devices / 2 / spec.cluster.stages.max(1)).max(1),
        fixed_lanes,
    );
    let short = simulate(&SimSpec { drawn_steps: 0, ..half }, samples);
    let share = short.as_ref().ok().map(|report| {
        let busy = |role| {
            let pools = report.pools.iter().filter(|pool| pool.role == role);
            pools.map(|pool| pool.busy * pool.ranks as f64).sum::<f64>()
        };
        let (encoder, foundation) = (busy(Role::Encoder), busy(Role::Foundation));
        encoder / (encoder + foundation)
    });
    let around = (f64::from(devices) * share.unwrap_or(0.25)).round();
    [0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0]
        .into_iter()
        .map(|factor| ((around * factor).round() as u32).clamp(1, devices - 1))
        .collect()
}
