//! A mixer whose row is shared by several ranks (context parallelism): its attention is an operation of the tape's, and what is before
//! and after it are segments of this rank's tokens. This module also says which decoders can be split so.

use std::rc::Rc;

use tch::Tensor;

use super::branch::{Branch, Entered};
use super::config::{DecoderConfig, MixerConfig};
use super::sees::Sees;
use crate::model::parallel_errors::ContextParallelError;
use crate::nn::{Context, KeyChoice, Mixer, QkvMixer};
use crate::tape::{ContextShard, Policy, Slot, Tape};
use loongforge_core::config::ContextAttention;

/// Records the branch's output. Panics where the mixer cannot be cut: [`DecoderConfig::check_context`] says so first.
pub(super) fn record(
    mixer: &Rc<Branch<dyn Mixer>>,
    tape: &mut Tape,
    name: &str,
    entered: Entered,
    context: &Rc<Context>,
    row: &Rc<ContextShard>,
    policy: Policy,
) -> Slot {
    fn cut(mixer: &Branch<dyn Mixer>) -> &dyn QkvMixer {
        mixer.module.cut().expect("a decoder whose tokens can be split")
    }
    let (branch, context) = (mixer.clone(), context.clone());
    let Entered { x, is_normed, ids } = entered;
    let before = move |reads: &[Tensor]| cut(&branch).before(&branch.normed(&reads[0], is_normed), &context.rope);
    let num_cut = cut(mixer).num_cut();
    let parts = tape.run(format!("{name} queries keys values"), &ids, policy, &[x], num_cut, before);
    let y = row.attention(tape, name, [parts[0], parts[1], parts[2]], cut(mixer).scale(), policy);
    let branch = mixer.clone();
    let after = move |reads: &[Tensor]| vec![cut(&branch).after(&reads[0], &reads[1..])];
    let reads: Vec<Slot> = std::iter::once(y).chain(parts[3..].iter().copied()).collect();
    tape.run(format!("{name} mixer output"), &ids, policy, &reads, 1, after)[0]
}

impl DecoderConfig {
    /// Checks that `ranks` ranks can share the tokens of a row. Sizes are those of one rank, whatever else is split.
    ///
    /// # Errors
    /// They cannot.
    pub fn check_context(&self, ranks: usize, attention: ContextAttention) -> Result<(), ContextParallelError> {
        if ranks == 1 {
            return Ok(());
        }
        if self.mtp.as_ref().is_some_and(|mtp| mtp.num_heads > 0) {
            return Err(ContextParallelError::Mtp);
        }
        if self.depends_on_length() && self.has_three_axes() {
            return Err(ContextParallelError::Rope);
        }
        if self.sees != Sees::Back {
            return Err(ContextParallelError::Ahead);
        }
        for (layer, config) in self.layers.iter().enumerate() {
            let heads = match &config.mixer {
                MixerConfig::Attention(attention) if attention.window.is_some() => {
                    return Err(ContextParallelError::Mixer { layer, what: "a sliding window" });
                }
                MixerConfig::Attention(attention) if attention.scores.soft_cap.is_some() => {
                    return Err(ContextParallelError::Mixer { layer, what: "a soft cap of scores" });
                }
                MixerConfig::Attention(attention) if attention.sinks => {
                    return Err(ContextParallelError::Mixer { layer, what: "attention sinks" });
                }
                MixerConfig::Attention(attention) => attention.num_heads,
                MixerConfig::Mla(mla) if mla.keys == KeyChoice::All => mla.num_heads,
                MixerConfig::Mla(_) => return Err(ContextParallelError::Mixer { layer, what: "sparse attention" }),
                MixerConfig::GatedDelta(_) => {
                    return Err(ContextParallelError::Mixer { layer, what: "a gated delta net" });
                }
                MixerConfig::Compressed(_) => {
                    return Err(ContextParallelError::Mixer { layer, what: "compressed attention" });
                }
            };
            if attention == ContextAttention::Ulysses && heads % ranks as i64 != 0 {
                return Err(ContextParallelError::Heads { heads, ranks });
            }
        }
        Ok(())
    }
}
