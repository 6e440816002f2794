//! Foundation actors compute packs: forward, loss, backward; gradients of features go back to who made them.
//!
//! Stop: between two packs. Drain: activations and gradients in flight are dropped, the parameters stay as the last
//! decided step made them. Peer gone: an encoder's features come again from another one, and the gradients that
//! were returned are returned again; else the engine fails naming the peer, and the scheduler ends the run.

use crate::launch::EdgeSpec;
use loongforge_core::message::ActorId;
use loongforge_core::schedule::{EdgeCredits, PoolSizes};

/// Returns where the foundation actor `me` sends: gradients to every encoder. Where encoders live in foundation actors,
/// features and gradients to every other one.
pub fn edges(me: ActorId, pools: PoolSizes, credits: EdgeCredits) -> Vec<EdgeSpec> {
    let encoders = (0..pools.encoder).map(ActorId::encoder);
    let others = (0..pools.foundation).map(ActorId::foundation).filter(|&other| pools.encoder == 0 && other != me);
    encoders.chain(others).map(|to| EdgeSpec::new(me, to, credits.features)).collect()
}
