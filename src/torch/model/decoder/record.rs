//! A decoder's tape of one micro-batch: what enters, the layers, and one of three ends (`record_ends.rs`).

use std::rc::Rc;

use tch::Tensor;

use super::batch::{Targets, TextBatch, TextOptions, TextTape};
use super::recording::{Recording, RouterSums, Wanted};
use super::regions::{FeatureRows, TokenTable};
use super::stage::{Carried, Crossing};
use super::transformer::Decoder;
use crate::device::upload;
use crate::nn::PieceAttention;
use crate::tape::{Boundary, Policy, Slot, Tape};

/// The slots that a stage's layers begin with.
struct Entry {
    /// The residual stream before the first layer of the stage.
    x: Slot,
    /// The slots of [`TextTape::features`].
    features: Vec<Vec<Slot>>,
    /// The boundaries of [`TextTape::inbound`].
    inbound: Vec<Boundary>,
    carried: Carried,
}

impl Decoder {
    /// Returns the tape of one micro-batch; without `targets` it ends at the hidden states, which a stage cannot.
    pub fn tape(&self, batch: &TextBatch, targets: Option<&Targets>, options: &TextOptions) -> TextTape {
        self.tape_behind(Tape::new(), None, batch, targets, options)
    }

    /// Works like `tape`, where features of the inputs for which `is_constant` get no gradients.
    pub(super) fn tape_with_constants(
        &self,
        batch: &TextBatch,
        targets: Option<&Targets>,
        options: &TextOptions,
        is_constant: impl Fn(usize) -> bool,
    ) -> TextTape {
        let mut tape = Tape::new();
        let features = self.stage.is_first.then(|| feature_inputs(&mut tape, batch, options, is_constant));
        self.tape_behind(tape, features, batch, targets, options)
    }

    /// Works like `tape`, on a tape that has something already: `features`, by input and level. The decoder is then a first stage.
    pub(super) fn tape_behind(
        &self,
        mut tape: Tape,
        features: Option<Vec<Vec<Slot>>>,
        batch: &TextBatch,
        targets: Option<&Targets>,
        options: &TextOptions,
    ) -> TextTape {
        let mut recording = self.recording(batch, targets, options);
        // What made features may have been computed by all ranks alike.
        recording.set_alike(&mut tape, false);
        if self.config.routes_by_token() {
            let ids = upload(&batch.input_ids, self.device);
            let taken = move |_: &[Tensor]| vec![ids.shallow_clone()];
            recording.ids = Some(tape.run("tokens", &[], Policy::Keep, &[], 1, taken)[0]);
        }
        let rows: Vec<FeatureRows> =
            batch.feature_rows.iter().map(|rows| FeatureRows::new(rows, &recording, self.device)).collect();
        let Entry { mut x, features, inbound, mut carried } = match self.stage.is_first {
            true => {
                let features = features.unwrap_or_else(|| feature_inputs(&mut tape, batch, options, |_| false));
                self.record_embeddings(&mut tape, batch, targets, features, &rows, &recording)
            }
            false => {
                self.record_inbound(&mut tape, &self.crossing(self.stage.layers.start, batch, options, &recording))
            }
        };
        // Of ranks that spread experts some may have no features, and those that have wait for all in the backward of each layer.
        if self.stage.is_first && self.config.parallel.ep > 1 && options.train_features {
            tape.let_gradients_flow(x);
        }
        let contexts = self.contexts_of(batch);
        let mut deep: Vec<_> = std::mem::take(&mut carried.deep).into_iter().map(Vec::into_iter).collect();
        for (number, layer) in self.stage.layers.clone().zip(&self.layers) {
            x = layer.record(&mut tape, &format!("layer {number}"), x, &contexts[layer.rope], &mut recording);
            for (rows, levels) in rows.iter().zip(&mut deep) {
                x = levels.next().map_or(x, |level| rows.add(&mut tape, x, level));
            }
        }
        carried.deep = deep.into_iter().map(Iterator::collect).collect();
        let made = TextTape {
            tape,
            features,
            hidden: x,
            inbound,
            outbound: Vec::new(),
            reference: None,
            loss: None,
            measures: None,
            predicted: None,
            mixer_losses: Vec::new(),
            routing: None,
            key_values: std::mem::take(&mut recording.key_values),
        };
        match targets {
            None => self.end_at_states(made, recording),
            Some(_) if !self.stage.is_last => {
                let crossing = self.crossing(self.stage.layers.end, batch, options, &recording);
                self.end_at_boundary(made, carried, &crossing, recording)
            }
            Some(targets) if targets.evaluates => self.end_at_scores(made, targets, recording),
            Some(targets) => self.end_at_loss(made, batch, targets, carried, &contexts, recording),
        }
    }

    /// Makes the state that the layers of the tape share, before anything is recorded.
    fn recording(&self, batch: &TextBatch, targets: Option<&Targets>, options: &TextOptions) -> Recording {
        let trains = targets.is_some_and(|targets| !targets.evaluates);
        Recording {
            parallel: self.config.parallel,
            num_tokens: batch.input_ids.numel() as i64,
            policy: options.policy,
            wanted: if trains { Wanted::new(&self.config.balance) } else { Wanted::default() },
            keep_routing: options.keep_routing,
            split: self.split(&batch.input_ids, batch.row.is_some() || self.meets_replicas),
            ids: None,
            row: batch.row.clone(),
            routed: Vec::new(),
            losses: Vec::new(),
            mixer_losses: trains.then(Vec::new),
            piece: batch.past.map(|past| Rc::new(PieceAttention::new(&batch.cu_seqlens, past, self.device))),
            key_values: Vec::new(),
        }
    }

    /// Returns the description of the tensors that cross the boundary before `layer`.
    fn crossing(&self, layer: usize, batch: &TextBatch, options: &TextOptions, recording: &Recording) -> Crossing {
        let tokens = recording.tokens();
        Crossing {
            num_tokens: tokens.end - tokens.start,
            features: (batch.feature_rows.iter().zip(num_levels(batch, options)))
                .map(|(rows, levels)| (rows.len() as i64, levels.saturating_sub(1 + layer)))
                .collect(),
            train_features: options.train_features,
            wanted: recording.wanted,
            kind: self.kind,
        }
    }

    /// Records the embeddings of the tokens, with features in the place of their tokens.
    fn record_embeddings(
        &self,
        tape: &mut Tape,
        batch: &TextBatch,
        targets: Option<&Targets>,
        features: Vec<Vec<Slot>>,
        rows: &[FeatureRows],
        recording: &Recording,
    ) -> Entry {
        let mut x = self.record_tokens(tape, "embed", &batch.input_ids, recording);
        if let Some(noise) = targets.filter(|targets| !targets.evaluates).and_then(|targets| targets.noise.as_ref()) {
            x = noise.record(tape, x, &recording.tokens(), recording.policy, self.device);
        }
        for (rows, levels) in rows.iter().zip(&features) {
            x = levels.first().map_or(x, |&merged| rows.put(tape, x, merged));
        }
        let x = self.config.record_first_residual(tape, x);
        let deep = features.iter().map(|levels| levels.iter().skip(1).copied().collect()).collect();
        let carried = Carried { deep, routers: RouterSums::default(), mixers: None };
        Entry { x, features, inbound: Vec::new(), carried }
    }

    /// Records the inputs that the stage before sends.
    fn record_inbound(&self, tape: &mut Tape, crossing: &Crossing) -> Entry {
        let slots = crossing.tensors(&self.config).into_iter().map(|(.., grad)| tape.input(grad));
        let slots: Vec<Slot> = slots.collect();
        let inbound = crossing.boundaries(&self.config, &slots);
        let (x, carried) = crossing.read(&self.config, &slots);
        Entry { x, features: Vec::new(), inbound, carried }
    }

    /// Records the embeddings of tokens: of those that this rank has outside of regions.
    pub(super) fn record_tokens(&self, tape: &mut Tape, name: &str, ids: &Tensor, recording: &Recording) -> Slot {
        let (table, ids) = (self.token_table(), upload(ids, self.device));
        let look_up = move |_: &[Tensor]| vec![table.look_up(&ids)];
        let x = tape.run(name, &[self.embedding().id], recording.policy, &[], 1, look_up)[0];
        recording.leave_region(tape, x)
    }

    /// Returns the table that ids of tokens are looked up in, `[V, D]`, or this rank's rows of it.
    pub(super) fn token_table(&self) -> TokenTable {
        TokenTable {
            table: self.embedding().weight.shallow_clone(),
            first: self.config.first_token,
            padding: self.config.pad_token_id.unwrap_or(-1),
            is_part: self.config.parallel.tp > 1,
            scale: self.embedding_scale,
        }
    }
}

/// Records the inputs of the tape for features that others send, by input of the decoder and level; those for which `is_constant` get no
/// gradients.
fn feature_inputs(
    tape: &mut Tape,
    batch: &TextBatch,
    options: &TextOptions,
    is_constant: impl Fn(usize) -> bool,
) -> Vec<Vec<Slot>> {
    let mut inputs = |(input, levels): (usize, usize)| {
        let requires_grad = options.train_features && !is_constant(input);
        (0..levels).map(|_| tape.input(requires_grad)).collect()
    };
    num_levels(batch, options).into_iter().enumerate().map(&mut inputs).collect()
}

/// Returns the number of tensors of features that the batch has, by input. Ranks that share a row all have features or none, so that
/// gradients flow alike; some may have no rows of them.
fn num_levels(batch: &TextBatch, options: &TextOptions) -> Vec<usize> {
    let levels = |(rows, levels): (&Vec<i64>, &usize)| if rows.is_empty() && batch.row.is_none() { 0 } else { *levels };
    batch.feature_rows.iter().zip(&options.feature_tensors).map(levels).collect()
}
