//! Encoder actors turn pixels into features and, where they are trained, gradients of features into gradients of weights.
//!
//! Stop: between two units. Drain: activations and gradients in flight are dropped, the parameters stay as the last
//! decided step made them. Peer gone: another encoder's units are given to the others, who take its place in the
//! pool's sums; without a foundation the engine fails naming it, and the scheduler ends the run.

use crate::launch::EdgeSpec;
use loongforge_core::message::ActorId;
use loongforge_core::schedule::{EdgeCredits, PoolSizes};

/// Returns where the encoder actor `me` sends: features to every foundation replica.
pub fn edges(me: ActorId, pools: PoolSizes, credits: EdgeCredits) -> Vec<EdgeSpec> {
    (0..pools.foundation).map(|to| EdgeSpec::new(me, ActorId::foundation(to), credits.features)).collect()
}
