//! The edges between actors.

use loongforge_core::message::{ActorId, Role};
use loongforge_core::schedule::{EdgeCredits, PoolSizes};

/// One edge, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EdgeSpec {
    pub from: ActorId,
    pub to: ActorId,
    /// Maximum number of bytes in flight.
    pub credit: u64,
}

impl EdgeSpec {
    pub fn new(from: ActorId, to: ActorId, credit: u64) -> Self {
        Self { from, to, credit }
    }
}

/// Returns every edge of a run, by sender. There is at most one from one actor to another.
pub fn topology(pools: &PoolSizes, credits: EdgeCredits) -> Vec<EdgeSpec> {
    pools.actors().flat_map(|actor| edges_from(actor, pools, credits)).collect()
}

/// Returns the outgoing edges of one actor.
pub fn edges_from(actor: ActorId, pools: &PoolSizes, credits: EdgeCredits) -> Vec<EdgeSpec> {
    match actor.role {
        Role::Scheduler => Vec::new(),
        Role::Data => data_edges(actor, pools, credits),
        Role::Encoder => encoder_edges(actor, pools, credits),
        Role::Foundation => foundation_edges(actor, pools, credits),
    }
}

/// Returns where the data actor `me` sends: tokens to every foundation replica, pixels to every encoder. Where an
/// encoder lives in a foundation's actor, one edge carries both and has both credits; the engine must then send a
/// pack's tokens and pixels before those of the next pack.
fn data_edges(me: ActorId, pools: &PoolSizes, credits: EdgeCredits) -> Vec<EdgeSpec> {
    let extra = if pools.encoders.is_empty() { credits.pixels } else { 0 };
    let encoders = pools.encoder_actors().map(|to| EdgeSpec::new(me, to, credits.pixels));
    let foundations = pools.foundation_actors().map(|to| EdgeSpec::new(me, to, credits.tokens + extra));
    encoders.chain(foundations).collect()
}

/// Returns where the encoder actor `me` sends: features to every foundation replica.
fn encoder_edges(me: ActorId, pools: &PoolSizes, credits: EdgeCredits) -> Vec<EdgeSpec> {
    pools.foundation_actors().map(|to| EdgeSpec::new(me, to, credits.features)).collect()
}

/// Returns where the foundation actor `me` sends: gradients to every encoder. If encoders are in foundation actors, it sends features and
/// gradients to every other one.
fn foundation_edges(me: ActorId, pools: &PoolSizes, credits: EdgeCredits) -> Vec<EdgeSpec> {
    let others = pools.foundation_actors().filter(|&other| pools.encoders.is_empty() && other != me);
    pools.encoder_actors().chain(others).map(|to| EdgeSpec::new(me, to, credits.features)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDITS: EdgeCredits = EdgeCredits { pixels: 1, tokens: 10, features: 100 };

    fn names(pools: &PoolSizes) -> Vec<String> {
        topology(pools, CREDITS).iter().map(|edge| format!("{} {} {}", edge.from, edge.to, edge.credit)).collect()
    }

    #[test]
    fn separate_pools_meet_in_both_directions() {
        let edges = [
            "data/0 encoder/0 1",
            "data/0 encoder/1 1",
            "data/0 foundation/0 10",
            "encoder/0 foundation/0 100",
            "encoder/1 foundation/0 100",
            "foundation/0 encoder/0 100",
            "foundation/0 encoder/1 100",
        ];
        assert_eq!(names(&PoolSizes::of_roles(1, 2, 1)), edges);
    }

    #[test]
    fn colocated_actors_exchange_among_themselves() {
        let edges = [
            "data/0 foundation/0 11",
            "data/0 foundation/1 11",
            "foundation/0 foundation/1 100",
            "foundation/1 foundation/0 100",
        ];
        assert_eq!(names(&PoolSizes::of_roles(1, 0, 2)), edges);
    }
}
