//! Data actors read, tokenize and measure samples ahead of time, and send tokens and pixels where a plan says.
//!
//! Stop: at once. Drain: samples read ahead are dropped; a resumed run reads them again from the checkpoint's cursor.
//! Peer gone: an encoder's pixels are read again and sent to who takes its units; else its edges refuse parcels, the
//! engine fails naming the peer, and the scheduler ends the run.

use crate::launch::EdgeSpec;
use loongforge_core::message::ActorId;
use loongforge_core::schedule::{EdgeCredits, PoolSizes};

/// Returns where the data actor `me` sends: tokens to every foundation replica, pixels to every encoder. Where an
/// encoder lives in a foundation's actor, one edge carries both and has both credits; the engine must then send a
/// pack's tokens and pixels before those of the next pack.
pub fn edges(me: ActorId, pools: PoolSizes, credits: EdgeCredits) -> Vec<EdgeSpec> {
    let extra = if pools.encoder == 0 { credits.pixels } else { 0 };
    let encoders = (0..pools.encoder).map(|to| EdgeSpec::new(me, ActorId::encoder(to), credits.pixels));
    let foundations =
        (0..pools.foundation).map(|to| EdgeSpec::new(me, ActorId::foundation(to), credits.tokens + extra));
    encoders.chain(foundations).collect()
}
