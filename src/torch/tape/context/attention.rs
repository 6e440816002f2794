//! Attention over a row that ranks share, on the tape.

use std::rc::Rc;

use tch::Tensor;

use super::heads::{ToHeads, ToTokens};
use super::ring::Ring;
use super::row::{ContextMethod, ContextShard};
use crate::tape::record::{Policy, Slot, Tape};

impl ContextShard {
    /// Records attention within documents, causal but where [`ContextShard::of_heads`] was told another mask: of this rank's queries
    /// `[T, H, C]` to all ranks' keys `[T, K, C]` and values `[T, K, V]`, scores multiplied by `scale`, `[T, H·V]`. `H` is a multiple of
    /// the ranks where heads are exchanged.
    pub fn attention(
        self: &Rc<ContextShard>,
        tape: &mut Tape,
        name: &str,
        queries_keys_values: [Slot; 3],
        scale: f64,
        policy: Policy,
    ) -> Slot {
        let row = self.clone();
        if let ContextMethod::Ring(_) = self.method {
            let ring = Box::new(Ring { row, scale });
            return tape.exchange(format!("{name} ring"), &queries_keys_values, 1, ring)[0];
        }
        let to_heads = Box::new(ToHeads { row: self.clone() });
        let exchanged = tape.exchange(format!("{name} to heads"), &queries_keys_values, 3, to_heads);
        let forward = move |reads: &[Tensor]| {
            let ContextMethod::Heads { documents, .. } = &row.method else { unreachable!("looked at above") };
            vec![documents.forward_with(&reads[0], &reads[1], &reads[2], scale.into())]
        };
        let y = tape.run(format!("{name} attention"), &[], policy, &exchanged, 1, forward)[0];
        let to_tokens = Box::new(ToTokens { row: self.clone() });
        tape.exchange(format!("{name} to tokens"), &[y], 1, to_tokens)[0]
    }
}
