//! The loss of tokens behind the prompt: actions in FAST's tokens, and maybe a text before them. The prefix's stream predicts each from
//! what is before it, and the stream of actions sees none of them. In this way the vision-language model learns from tokens, for which it
//! was trained before, and with `insulate` from nothing else (knowledge insulation, Driess et al. 2025).
//!
//! Shapes: L tokens to predict in a micro-batch, P rows of the prefix's stream of width D.

use tch::{Kind, Tensor};

use super::config::PolicyConfig;
use super::embed::Embed;
use super::head::Head;
use super::layout::{Layout, Predicted};
use crate::device::upload;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::objective::CrossEntropy;
use crate::model::tower_blocks::Part;
use crate::nn::RmsNorm;
use crate::params::{ParallelRank, ParamId, ParamStore};
use crate::tape::{Policy, Slot, Tape};

/// The last norm of the prefix's stream, and the table of tokens as its head.
pub(super) struct TokenHead {
    norm: Part<RmsNorm>,
    table: Tensor,
    ids: Vec<ParamId>,
    weight: f64,
    policy: Policy,
}

impl TokenHead {
    /// Panics where the store lacks one of the parameters.
    pub fn new(config: &PolicyConfig, params: &ParamStore, embed: &Embed, policy: Policy) -> TokenHead {
        let (table, ids) = (embed.tokens.part.table().shallow_clone(), embed.tokens.ids.clone());
        TokenHead { norm: Head::of_tokens(config, params), table, ids, weight: config.options.token_weight, policy }
    }

    /// Records the loss of a batch's tokens by the states `x` `[P, D]` behind the last layer: a float64 scalar. A sample's is the mean of
    /// its cross-entropies, and counts for as much as its actions' does.
    pub fn record(&self, tape: &mut Tape, x: Slot, layout: &Layout, batch: &MicroBatch, samples: &[SampleRow]) -> Slot {
        let (policy, device) = (self.policy, self.table.device());
        let Predicted { rows, labels, samples: of } = &layout.predicted;
        let (part, rows) = (self.norm.part.clone(), upload(&Tensor::from_slice(rows), device));
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0].index_select(0, &rows))];
        let hidden = tape.run("token norm", &self.norm.ids, policy, &[x], 1, forward)[0];
        let head = CrossEntropy {
            head: self.table.shallow_clone(),
            bias: None,
            ids: self.ids.clone(),
            first_token: 0,
            divisor: None,
            soft_cap: None,
            smoothing: None,
            parallel: ParallelRank::default(),
            device,
        };
        let each = head.record_each(tape, "tokens", hidden, labels);
        let mut counts = vec![0u32; samples.len()];
        of.iter().for_each(|sample| counts[*sample] += 1);
        let scale = batch.loss_scale * self.weight;
        let weight =
            |sample: &usize| (scale * f64::from(samples[*sample].num_targets) / f64::from(counts[*sample])) as f32;
        let weights = upload(&Tensor::from_slice(&of.iter().map(weight).collect::<Vec<f32>>()), device);
        let sum = move |reads: &[Tensor]| vec![(&reads[0] * &weights).sum(Kind::Double)];
        tape.run("token loss", &[], Policy::Keep, &[each], 1, sum)[0]
    }
}
