//! A mixer whose row is shared by several ranks (context parallelism): its attention is an operation of the tape's, and
//! what is before and after it are segments of this rank's tokens. Which decoders can be split so.

use std::rc::Rc;

use tch::Tensor;

use super::config::{DecoderConfig, MixerConfig};
use super::layer::Branch;
use super::regions::Entered;
use crate::nn::{Context, CutMixer, KeyChoice, Mixer};
use crate::tape::{Policy, RowShare, Slot, Tape};
use loongforge_core::config::ContextAttention;

/// The branch's output. Panics where the mixer cannot be cut: [`DecoderConfig::check_context`] says so first.
pub(super) fn record(
    mixer: &Rc<Branch<dyn Mixer>>,
    tape: &mut Tape,
    name: &str,
    entered: Entered,
    context: &Rc<Context>,
    row: &Rc<RowShare>,
    policy: Policy,
) -> Slot {
    fn cut(mixer: &Branch<dyn Mixer>) -> &dyn CutMixer {
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

/// Why the tokens of a decoder's rows cannot be split among ranks. Keys are those of `config.json`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSplit {
    #[error("this model does not support context parallelism: set context_parallel to 1")]
    Model,
    #[error(
        "layer {layer} mixes tokens by {what}, which needs all tokens before its own on one rank: set context_parallel to 1"
    )]
    Mixer { layer: usize, what: &'static str },
    #[error(
        "heads for multi-token prediction read the token after their own: set context_parallel to 1, or train none"
    )]
    Mtp,
    #[error(
        "rotary embeddings that depend on a document's length, with pictures in it, need all of it on one rank: set \
         context_parallel to 1"
    )]
    Rope,
    #[error(
        "{heads} heads cannot be sharded over context_parallel={ranks}: their number must be a multiple of it with \
         context_attention=ulysses; use ring"
    )]
    Heads { heads: i64, ranks: usize },
}

impl DecoderConfig {
    /// Returns whether `ranks` ranks can share the tokens of a row. Sizes are those of one rank, whatever else is
    /// split.
    ///
    /// # Errors
    /// They cannot.
    pub fn check_context(&self, ranks: usize, attention: ContextAttention) -> Result<(), NotSplit> {
        if ranks == 1 {
            return Ok(());
        }
        if self.mtp.as_ref().is_some_and(|mtp| mtp.num_heads > 0) {
            return Err(NotSplit::Mtp);
        }
        if self.rope.depends_on_length() && self.rope.has_three_axes() {
            return Err(NotSplit::Rope);
        }
        for (layer, config) in self.layers.iter().enumerate() {
            let heads = match &config.mixer {
                MixerConfig::Attention(attention) if attention.window.is_some() => {
                    return Err(NotSplit::Mixer { layer, what: "a sliding window" });
                }
                MixerConfig::Attention(attention) => attention.num_heads,
                MixerConfig::Mla(mla) if mla.keys == KeyChoice::All => mla.num_heads,
                MixerConfig::Mla(_) => return Err(NotSplit::Mixer { layer, what: "sparse attention" }),
                MixerConfig::GatedDelta(_) => return Err(NotSplit::Mixer { layer, what: "a gated delta net" }),
            };
            if attention == ContextAttention::Ulysses && heads % ranks as i64 != 0 {
                return Err(NotSplit::Heads { heads, ranks });
            }
        }
        Ok(())
    }
}
