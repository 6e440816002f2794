//! A decoder's tape of one micro-batch: embedding, features, layers, norm and loss.

use std::rc::Rc;

use tch::Tensor;

use super::batch::{Targets, TextBatch, TextOptions, TextTape};
use super::recording::{Recording, RouterSums, Wanted};
use super::regions::{FeatureRows, TokenTable};
use super::router_losses::carry_scalar;
use super::rows::{counted, index};
use super::stage::{Carried, Crossing};
use super::transformer::{Decoder, Last};
use crate::model::objective::CrossEntropy;
use crate::model::routing::{RouterLosses, Routing};
use crate::nn::PieceAttention;
use crate::tape::{Policy, Slot, Tape};

impl Decoder {
    /// The tape of one micro-batch; without `targets` it ends at the hidden states, which a stage cannot.
    pub fn tape(&self, batch: &TextBatch, targets: Option<&Targets>, options: &TextOptions) -> TextTape {
        let (policy, stage) = (options.policy, &self.stage);
        let mut tape = Tape::new();
        // Of ranks that share a row all have features or none, so that gradients flow alike; some may have no rows of them.
        let levels =
            |(rows, levels): (&Vec<i64>, &usize)| if rows.is_empty() && batch.row.is_none() { 0 } else { *levels };
        let num_levels: Vec<usize> = batch.feature_rows.iter().zip(&options.feature_tensors).map(levels).collect();
        let trained = targets.filter(|targets| !targets.evaluates);
        let wanted = trained.map_or(Wanted::default(), |_| Wanted::new(&self.config.balance));
        let mut recording = Recording {
            parallel: self.config.parallel,
            num_tokens: batch.input_ids.numel() as i64,
            policy,
            wanted,
            keep_routing: options.keep_routing,
            split: self.split(&batch.input_ids),
            ids: None,
            row: batch.row.clone(),
            routed: Vec::new(),
            losses: Vec::new(),
            mixer_losses: trained.map(|_| Vec::new()),
            piece: batch.past.map(|past| Rc::new(PieceAttention::new(&batch.cu_seqlens, past, self.device))),
            key_values: Vec::new(),
        };
        if self.config.routes_by_token() {
            let ids = batch.input_ids.to_device(self.device);
            let taken = move |_: &[Tensor]| vec![ids.shallow_clone()];
            recording.ids = Some(tape.run("tokens", &[], Policy::Keep, &[], 1, taken)[0]);
        }
        let tokens = recording.tokens();
        let crossing = |layer: usize| Crossing {
            num_tokens: tokens.end - tokens.start,
            features: (batch.feature_rows.iter().zip(&num_levels))
                .map(|(rows, levels)| (rows.len() as i64, levels.saturating_sub(1 + layer)))
                .collect(),
            train_features: options.train_features,
            wanted,
            kind: self.kind,
        };
        let rows: Vec<FeatureRows> =
            batch.feature_rows.iter().map(|rows| FeatureRows::new(rows, &recording, self.device)).collect();
        let (mut features, mut inbound) = (Vec::<Vec<Slot>>::new(), Vec::new());
        let (mut x, before) = if stage.is_first {
            for levels in &num_levels {
                features.push((0..*levels).map(|_| tape.input(options.train_features)).collect());
            }
            let mut x = self.record_tokens(&mut tape, "embed", &batch.input_ids, &recording);
            if let Some(noise) = trained.and_then(|targets| targets.noise.as_ref()) {
                x = noise.record(&mut tape, x, &tokens, policy, self.device);
            }
            for (rows, levels) in rows.iter().zip(&features) {
                x = levels.first().map_or(x, |&merged| rows.put(&mut tape, x, merged));
            }
            let x = self.config.record_first_residual(&mut tape, x);
            let deep = features.iter().map(|levels| levels.iter().skip(1).copied().collect()).collect();
            (x, Carried { deep, routers: RouterSums::default(), mixers: None })
        } else {
            let crossing = crossing(stage.layers.start);
            let slots = crossing.tensors(&self.config).into_iter().map(|(.., grad)| tape.input(grad));
            let slots: Vec<Slot> = slots.collect();
            inbound = crossing.boundaries(&self.config, &slots);
            crossing.read(&self.config, &slots)
        };
        let contexts = self.contexts_of(batch);
        let mut deep: Vec<_> = before.deep.into_iter().map(Vec::into_iter).collect();
        for (number, layer) in stage.layers.clone().zip(&self.layers) {
            x = layer.record(&mut tape, &format!("layer {number}"), x, &contexts[layer.rope], &mut recording);
            for (rows, levels) in rows.iter().zip(&mut deep) {
                x = levels.next().map_or(x, |level| rows.add(&mut tape, x, level));
            }
        }
        let key_values = std::mem::take(&mut recording.key_values);
        let mut made = TextTape {
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
            key_values,
        };
        let tape = &mut made.tape;
        let Some(targets) = targets else {
            let Last { norm, norm_ids, .. } = self.last();
            let norm = norm.clone();
            let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
            let hidden = tape.run("norm", norm_ids, policy, &[x], 1, forward)[0];
            made.hidden = recording.enter_region(tape, hidden);
            made.routing = recording.finish();
            return made;
        };
        let mixer_losses = recording.mixer_losses.replace(Vec::new()).unwrap_or_default();
        if !stage.is_last {
            let mut slots = vec![x];
            slots.extend(deep.into_iter().flatten());
            if let Some(experts) = self.config.num_experts() {
                let sums = recording.carry(tape, before.routers, experts, self.device);
                slots.extend(sums.choices.into_iter().flatten().chain(sums.z));
            }
            if self.config.has_mixer_losses() {
                let sums: Vec<Slot> = before.mixers.into_iter().chain(mixer_losses.iter().copied()).collect();
                slots.push(carry_scalar(tape, "mixer losses", &sums, self.device));
            }
            slots.iter().for_each(|slot| tape.keep(*slot));
            made.outbound = crossing(stage.layers.end).boundaries(&self.config, &slots);
            (made.mixer_losses, made.routing) = (mixer_losses, recording.finish());
            return made;
        }
        if let Some(answers) = &targets.answers {
            let (hidden, labels) = self.record_counted(tape, x, targets, &recording);
            let each = self.cross_entropy().record_each(tape, "log-probabilities", hidden, &labels);
            made.reference = answers.needs_reference().then(|| tape.input(false));
            let (objective, scale) = (answers.clone(), targets.scale);
            let forward = move |reads: &[Tensor]| objective.loss(&reads[0], reads.get(1), scale).into();
            let reads: Vec<Slot> = [each].into_iter().chain(made.reference).collect();
            let found = tape.run("loss of answers", &[], Policy::Keep, &reads, 2, forward);
            found.iter().for_each(|slot| tape.keep(*slot));
            (made.hidden, made.loss, made.measures) = (hidden, Some(found[0]), Some(found[1]));
            if targets.evaluates {
                made.routing = recording.finish();
                return made;
            }
        } else if targets.evaluates {
            let (hidden, [loss, predicted]) = self.record_scores(tape, x, targets, &recording);
            (made.hidden, made.loss, made.predicted) = (hidden, Some(loss), Some(predicted));
            made.routing = recording.finish();
            return made;
        }
        let loss = match made.loss {
            Some(loss) => loss,
            None => {
                let (hidden, loss) = self.record_loss(tape, x, targets, &recording);
                made.hidden = hidden;
                loss
            }
        };
        let num_tokens =
            batch.row.as_ref().map_or(batch.input_ids.numel() as i64, |row| row.split().num_tokens() as i64);
        let share = targets.share();
        // Of the layers' routers; those of prediction heads are not balanced.
        let num_layers = self.config.num_routed_layers();
        let losses = recording.record_losses(tape, before.routers, num_layers, num_tokens, share);
        recording.wanted = Wanted::default();
        let heads = self.record_mtp(tape, x, batch, targets, &contexts, &mut recording);
        let mut others: Vec<(Slot, f64)> = losses.weighted(&self.config.balance).collect();
        if recording.parallel.tp > 1 {
            // All ranks compute these alike, in regions.
            others.iter_mut().for_each(|(slot, _)| *slot = tape.count_once(*slot));
        }
        made.mixer_losses = mixer_losses;
        made.mixer_losses.extend(recording.mixer_losses.take().unwrap_or_default());
        let sums: Vec<Slot> = before.mixers.into_iter().chain(made.mixer_losses.iter().copied()).collect();
        let indexers = (!sums.is_empty()).then(|| {
            let sum = carry_scalar(tape, "mixer losses", &sums, self.device);
            tape.keep(sum);
            (sum, share / num_tokens.max(1) as f64)
        });
        others.extend(indexers.map(|(sum, share)| (sum, self.config.indexer_loss_coef * share)));
        made.routing =
            recording.finish().map(|routing| Routing { losses: RouterLosses { indexers, ..losses }, ..routing });
        made.loss = Some(total(tape, loss, &[heads, others].concat()));
        made
    }

    /// The embeddings of tokens: of those that this rank has outside of regions.
    pub(super) fn record_tokens(&self, tape: &mut Tape, name: &str, ids: &Tensor, recording: &Recording) -> Slot {
        let (table, ids) = (self.token_table(), ids.to_device(self.device));
        let look_up = move |_: &[Tensor]| vec![table.look_up(&ids)];
        let x = tape.run(name, &[self.embedding().id], recording.policy, &[], 1, look_up)[0];
        recording.leave_region(tape, x)
    }

    pub(super) fn token_table(&self) -> TokenTable {
        TokenTable {
            table: self.embedding().weight.shallow_clone(),
            first: self.config.first_token,
            padding: self.config.pad_token_id.unwrap_or(-1),
            is_part: self.config.parallel.tp > 1,
            scale: self.embedding_scale,
        }
    }

    /// The last norm of the counted tokens, in a region, and their labels.
    fn record_counted(&self, tape: &mut Tape, x: Slot, targets: &Targets, recording: &Recording) -> (Slot, Vec<i64>) {
        let (rows, labels) = counted(&targets.labels);
        let x = recording.enter_region(tape, x);
        let taken = tape.take_rows(x, index(&rows, self.device));
        let Last { norm, norm_ids, .. } = self.last();
        let norm = norm.clone();
        let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
        (tape.run("norm", norm_ids, recording.policy, &[taken], 1, forward)[0], labels)
    }

    /// The last norm and the loss, of counted tokens only.
    fn record_loss(&self, tape: &mut Tape, x: Slot, targets: &Targets, recording: &Recording) -> (Slot, Slot) {
        let (hidden, labels) = self.record_counted(tape, x, targets, recording);
        let weights = targets.weights_of(&counted(&targets.labels).0);
        (hidden, self.cross_entropy().record(tape, "loss", hidden, &labels, weights, targets.scale))
    }

    /// The last norm, the sum of the cross-entropies and the predicted entries, in kept slots.
    fn record_scores(&self, tape: &mut Tape, x: Slot, targets: &Targets, recording: &Recording) -> (Slot, [Slot; 2]) {
        let (hidden, labels) = self.record_counted(tape, x, targets, recording);
        (hidden, self.cross_entropy().record_scores(tape, hidden, &labels))
    }

    /// The objective of the last stage.
    pub(super) fn cross_entropy(&self) -> CrossEntropy {
        let Last { head, head_bias, .. } = self.last();
        CrossEntropy {
            head: head.weight.shallow_clone(),
            bias: head_bias.as_ref().map(|bias| bias.weight.shallow_clone()),
            ids: std::iter::once(head.id).chain(head_bias.as_ref().map(|bias| bias.id)).collect(),
            first_token: self.config.first_token,
            soft_cap: self.config.final_soft_cap,
            smoothing: self.config.smoothing,
            parallel: self.config.parallel,
            device: self.device,
        }
    }
}

/// The loss with others added, each times its weight.
fn total(tape: &mut Tape, loss: Slot, others: &[(Slot, f64)]) -> Slot {
    if others.is_empty() {
        return loss;
    }
    let (mut reads, weights) = (vec![loss], others.iter().map(|(_, weight)| *weight).collect::<Vec<_>>());
    reads.extend(others.iter().map(|(slot, _)| *slot));
    let sum = move |reads: &[Tensor]| {
        let mut sum = reads[0].shallow_clone();
        reads[1..].iter().zip(&weights).for_each(|(other, weight)| sum = &sum + other * *weight);
        vec![sum]
    };
    tape.run("total loss", &[], Policy::Keep, &reads, 1, sum)[0]
}
