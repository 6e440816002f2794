//! The hidden states of a decoder's first layers, where texts are read and nothing is predicted.

use std::rc::Rc;

use tch::{Kind, Tensor};

use super::recording::{Recording, Wanted};
use super::transformer::Decoder;
use crate::nn::Mask;
use crate::tape::{Policy, Slot, Tape};

/// The features that stand among the tokens of texts.
pub struct Interleaved {
    /// Positions of all tokens on three axes, `[3, T]`, float.
    pub positions: Tensor,
    /// Tokens that features `[N, D]` replace, int64, these, and what each of the first layers adds to these tokens (DeepStack).
    pub features: Option<(Rc<Tensor>, Vec<Slot>)>,
}

impl Decoder {
    /// Returns the positions of three axes, `[3, T]`, as the decoder takes them: a model of one axis takes the first, `[T]`.
    pub(in crate::model) fn axes_of(&self, positions: &Tensor) -> Tensor {
        if self.config().has_three_axes() { positions.shallow_clone() } else { positions.get(0) }
    }

    /// Records texts that end at `cu_seqlens` `[0, …, T]`; `ids` is `[T, 1]`. Returns the states `[T, D]` after the embedding and after
    /// each layer of the stage, which is the first; ranks that share layers have all tokens between them. The losses that balance routers
    /// are left out. Positions count from 0 in each text, but for what `among` says.
    pub(in crate::model) fn record_states(
        &self,
        tape: &mut Tape,
        cu_seqlens: &[usize],
        ids: Slot,
        among: Option<Interleaved>,
        policy: Policy,
    ) -> Vec<Slot> {
        let positions: Vec<i64> = cu_seqlens.windows(2).flat_map(|ends| 0..(ends[1] - ends[0]) as i64).collect();
        let num_tokens = positions.len() as i64;
        let positions = Tensor::from_slice(&positions);
        let (position_ids, features) = match (among, self.config().has_three_axes()) {
            (Some(among), _) => (self.axes_of(&among.positions), among.features),
            (None, true) => (positions.expand([3, -1], true), None),
            (None, false) => (positions, None),
        };
        let mut recording = Recording {
            parallel: self.config().parallel,
            num_tokens,
            policy,
            wanted: Wanted::default(),
            keep_routing: false,
            split: None,
            ids: None,
            row: None,
            routed: Vec::new(),
            losses: Vec::new(),
            mixer_losses: None,
            piece: None,
            key_values: Vec::new(),
        };
        // Pictures among the tokens were recorded before.
        recording.set_alike(tape, false);
        let table = self.token_table();
        let look_up = move |reads: &[Tensor]| vec![table.look_up(&reads[0].flatten(0, -1).to_kind(Kind::Int64))];
        let mut x = tape.run("embed", &[self.embedding().id], policy, &[ids], 1, look_up)[0];
        x = recording.leave_region(tape, x);
        let (rows, levels) = features.unwrap_or_else(|| (Rc::new(Tensor::new()), Vec::new()));
        if let Some(features) = levels.first() {
            x = tape.put_rows(x, rows.clone(), *features);
        }
        let contexts = self.contexts(&position_ids, cu_seqlens, Mask::Causal);
        let mut states = vec![x];
        for (number, layer) in self.layers.iter().enumerate() {
            x = layer.record(tape, &format!("layer {number}"), x, &contexts[layer.rope], &mut recording);
            if let Some(level) = levels.get(number + 1) {
                x = tape.add_rows(x, rows.clone(), *level);
            }
            states.push(x);
        }
        states
    }

    /// Returns the last of these states `[T, D]`, computed at once and without gradients. Tokens at `rows`, int64, have `features`: what
    /// replaces them, and what each of the first layers adds. Layers are dense.
    pub(in crate::model) fn last_state(
        &self,
        cu_seqlens: &[usize],
        ids: &Tensor,
        position_ids: &Tensor,
        rows: &Tensor,
        features: &[Tensor],
    ) -> Tensor {
        let features: Vec<Tensor> = features.iter().map(|x| x.to_device(self.device).to_kind(self.kind)).collect();
        let contexts = self.contexts(&self.axes_of(position_ids), cu_seqlens, Mask::Causal);
        let mut x_TD = self.token_table().look_up(&ids.to_device(self.device));
        if let Some(features) = features.first() {
            x_TD = x_TD.index_copy(0, rows, features);
        }
        for (number, layer) in self.layers.iter().enumerate() {
            let mixer = &layer.mixer;
            x_TD = layer.with_branch(0, x_TD, |x| mixer.module.forward(&mixer.input(x), &contexts[layer.rope]));
            x_TD = layer.with_branch(1, x_TD, |x| layer.feed_forward.forward(x, ids, None));
            if let Some(level) = features.get(number + 1) {
                x_TD = x_TD.index_add(0, rows, level);
            }
        }
        x_TD
    }
}
