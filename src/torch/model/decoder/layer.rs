//! One layer on its parameters, and how it lies on the tape.

use std::rc::Rc;

use tch::Tensor;

use super::branch::{Branch, Entered};
use super::config::{DecoderConfig, FeedForwardConfig, LayerConfig, MixerConfig};
use super::cut;
use super::decoding_ranks::DecodingRanks;
use super::moe::Moe;
use super::recording::{Recording, Split};
use super::streams::{Connection, Opened};
use crate::nn::{
    CompressedAttention, Context, GatedDelta, Mixer, Mla, NormConfig, PieceAttention, RmsNorm, SelfAttention, SwiGlu,
};
use crate::params::{ParamId, ParamSpec, ParamStore, Scope};
use crate::tape::{KeyValues, Slot, Tape};

/// The module of the mixer where it is a gated delta net.
const GATED_DELTA: &str = "linear_attn";

pub(super) struct Layer {
    pub mixer: Rc<Branch<dyn Mixer>>,
    splits: bool,
    pub feed_forward: FeedForward,
    /// The norms of the branches' outputs.
    output_norms: Option<[OutputNorm; 2]>,
    /// Multiplies the outputs of both branches.
    output_scale: Option<f64>,
    /// The connections of the two branches, where the residual is several streams.
    connections: Option<[Connection; 2]>,
    /// The number of its rotary embeddings among the decoder's.
    pub rope: usize,
}

/// The norm of a branch's output.
struct OutputNorm {
    norm: Rc<RmsNorm>,
    ids: Vec<ParamId>,
}

#[derive(Clone)]
pub(super) enum FeedForward {
    Dense(Rc<Branch<SwiGlu>>),
    Moe(Rc<Moe>),
}

impl Layer {
    /// Returns the parameters of a layer whose names begin with `prefix`.
    pub fn specs(config: &DecoderConfig, layer: &LayerConfig, prefix: &str) -> Vec<ParamSpec> {
        let (names, width, std) = (&config.names, config.hidden_size, config.initializer_range);
        let input_norm = |name| match layer.norms_inputs {
            true => layer.norm.specs(prefix, name, width),
            false => Vec::new(),
        };
        let mut specs = input_norm(names.input_norm);
        match &layer.mixer {
            MixerConfig::Attention(attention) => {
                let prefix = format!("{prefix}{}.", names.attention);
                specs.extend(SelfAttention::specs(&prefix, width, attention, &layer.norm, std));
            }
            MixerConfig::Mla(mla) => {
                specs.extend(Mla::specs(&format!("{prefix}{}.", names.attention), width, mla, std))
            }
            MixerConfig::GatedDelta(delta) => specs.extend(delta.specs(&format!("{prefix}{GATED_DELTA}."), std)),
            MixerConfig::Compressed(compressed) => {
                let prefix = format!("{prefix}{}.", names.attention);
                specs.extend(CompressedAttention::specs(&prefix, width, compressed, std));
            }
        }
        specs.extend(Connection::specs(config, prefix));
        let output_norms = layer.output_norms.into_iter().flatten();
        specs.extend(output_norms.flat_map(|name| layer.norm.specs(prefix, name, width)));
        specs.extend(input_norm(names.post_norm));
        let prefix = format!("{prefix}{}.", names.mlp);
        match &layer.feed_forward {
            FeedForwardConfig::Dense { intermediate_size, bias } => {
                specs.extend(SwiGlu::specs(
                    &prefix,
                    (names.gate_up, names.down),
                    width,
                    *intermediate_size,
                    *bias,
                    std,
                ));
            }
            FeedForwardConfig::Moe(moe) => specs.extend(Moe::specs(&prefix, width, moe, std)),
        }
        specs
    }

    /// Takes the parameters of a layer whose names begin with `prefix`.
    pub fn new(config: &DecoderConfig, layer: &LayerConfig, prefix: &str, params: &ParamStore) -> Layer {
        let names = &config.names;
        let LayerConfig { mixer, feed_forward, norm, .. } = layer;
        let [input_norm, post_norm] =
            [names.input_norm, names.post_norm].map(|name| layer.norms_inputs.then_some(name));
        let splits = mixer.splits();
        let mixer = match mixer {
            MixerConfig::Attention(attention) => branch(norm, params, prefix, input_norm, names.attention, |scope| {
                Box::new(SelfAttention::new(scope, attention, norm)) as Box<dyn Mixer>
            }),
            MixerConfig::Mla(mla) => branch(norm, params, prefix, input_norm, names.attention, |scope| {
                Box::new(Mla::new(scope, mla)) as Box<dyn Mixer>
            }),
            MixerConfig::GatedDelta(delta) => branch(norm, params, prefix, input_norm, GATED_DELTA, |scope| {
                Box::new(GatedDelta::new(scope, delta)) as Box<dyn Mixer>
            }),
            MixerConfig::Compressed(compressed) => branch(norm, params, prefix, input_norm, names.attention, |scope| {
                Box::new(CompressedAttention::new(scope, compressed)) as Box<dyn Mixer>
            }),
        };
        let feed_forward = match feed_forward {
            FeedForwardConfig::Dense { .. } => {
                FeedForward::Dense(branch(norm, params, prefix, post_norm, names.mlp, |scope| {
                    Box::new(SwiGlu::new(scope, (names.gate_up, names.down), layer.act))
                }))
            }
            FeedForwardConfig::Moe(moe) => FeedForward::Moe(Rc::new(Moe::new(config, layer, params, prefix, moe))),
        };
        let output_norm = |name| {
            let scope = Scope::new(params, prefix);
            let norm = Rc::new(norm.build(&scope, name));
            OutputNorm { norm, ids: scope.into_ids() }
        };
        let rope = config.ropes().iter().position(|rope| **rope == layer.rope).expect("a layer of this decoder");
        Layer {
            mixer,
            splits,
            feed_forward,
            output_norms: layer.output_norms.map(|names| names.map(output_norm)),
            output_scale: layer.output_scale,
            connections: Connection::of_layer(config, prefix, params),
            rope,
        }
    }

    /// Returns the residual after the mixer (0) or the feed-forward (1), which `run` computes of what it reads; without a tape. `[T, D]`
    /// to `[T, D]`.
    pub fn with_branch(&self, branch: usize, x: Tensor, run: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
        let normed = |y_TD: Tensor| {
            let y_TD = match &self.output_norms {
                Some(norms) => norms[branch].norm.forward(&y_TD),
                None => y_TD,
            };
            match self.output_scale {
                Some(scale) => y_TD * scale,
                None => y_TD,
            }
        };
        match &self.connections {
            Some(connections) => {
                let (h_TD, spread) = connections[branch].open(&x);
                spread.close(&x, &normed(run(&h_TD)))
            }
            None => {
                let y_TD = normed(run(&x));
                x + y_TD
            }
        }
    }

    /// Returns the mixer's output `[T, D]` of which `part_TD` is this rank's; mixers that need all heads are computed whole by every
    /// rank.
    pub fn whole(&self, ranks: &DecodingRanks, part_TD: Tensor) -> Tensor {
        if self.splits { ranks.sum(part_TD) } else { part_TD }
    }

    /// Records the norm and the scale of the output `y` of a branch, where there are such, outside of regions.
    fn record_output(&self, tape: &mut Tape, name: &str, branch: usize, y: Slot, recording: &Recording) -> Slot {
        let y = self.record_output_norm(tape, name, branch, y, recording);
        let Some(scale) = self.output_scale else { return y };
        let forward = move |reads: &[Tensor]| vec![&reads[0] * scale];
        tape.run(format!("{name} output scale"), &[], recording.policy, &[y], 1, forward)[0]
    }

    fn record_output_norm(&self, tape: &mut Tape, name: &str, branch: usize, y: Slot, recording: &Recording) -> Slot {
        let Some(norms) = &self.output_norms else { return y };
        let OutputNorm { norm, ids } = &norms[branch];
        let norm = norm.clone();
        recording.set_alike(tape, true);
        let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
        let y = tape.run(format!("{name} output norm"), ids, recording.policy, &[y], 1, forward)[0];
        recording.set_alike(tape, false);
        y
    }

    /// Records both branches with their residuals, and returns the slot of the layer's output. `name` begins the names of its segments.
    pub fn record(
        &self,
        tape: &mut Tape,
        name: &str,
        x: Slot,
        context: &Rc<Context>,
        recording: &mut Recording,
    ) -> Slot {
        let connection = |branch: usize| self.connections.as_ref().map(|both| &both[branch]);
        let (of_mixer, of_mlp) = (format!("{name} mixer"), format!("{name} mlp"));
        let opened = Opened::record(tape, &of_mixer, x, connection(0), recording);
        let y = match recording.piece.clone() {
            Some(piece) => self.record_piece(tape, name, opened.read, context, piece, recording),
            None => self.record_mixer(tape, name, opened.read, context, recording),
        };
        let y = self.record_output(tape, &of_mixer, 0, y, recording);
        let x = opened.close(tape, &of_mixer, x, y, recording.policy);
        let opened = Opened::record(tape, &of_mlp, x, connection(1), recording);
        let y = self.feed_forward.record(tape, name, opened.read, recording);
        let y = self.record_output(tape, &of_mlp, 1, y, recording);
        opened.close(tape, &of_mlp, x, y, recording.policy)
    }

    /// Records the mixer of a piece of a sequence.
    fn record_piece(
        &self,
        tape: &mut Tape,
        name: &str,
        x: Slot,
        context: &Rc<Context>,
        piece: Rc<PieceAttention>,
        recording: &mut Recording,
    ) -> Slot {
        let (mixer, context) = (self.mixer.clone(), context.clone());
        let Entered { x: read, is_normed, ids } = mixer.enter(tape, &format!("{name} mixer"), x, recording);
        let num_past = piece.past();
        let past = (num_past > 0).then(|| [tape.input(true), tape.input(true)]);
        let reads: Vec<Slot> = std::iter::once(read).chain(past.into_iter().flatten()).collect();
        let forward = move |reads: &[Tensor]| {
            let past = (reads.len() > 1).then(|| [&reads[1], &reads[2]]);
            mixer.module.forward_piece(&mixer.normed(&reads[0], is_normed), &context, &piece, past).into()
        };
        let written = tape.run(format!("{name} mixer"), &ids, recording.policy, &reads, 3, forward);
        let own = [written[1], written[2]];
        own.iter().for_each(|slot| tape.keep(*slot));
        recording.key_values.push(KeyValues { past, num_past, own });
        recording.leave_region(tape, written[0])
    }

    fn record_mixer(
        &self,
        tape: &mut Tape,
        name: &str,
        x: Slot,
        context: &Rc<Context>,
        recording: &mut Recording,
    ) -> Slot {
        let (mixer, context) = (self.mixer.clone(), context.clone());
        let policy = recording.policy;
        let Entered { x: read, is_normed, ids } = match self.splits {
            true => mixer.enter(tape, &format!("{name} mixer"), x, recording),
            false => mixer.collect(tape, x, recording),
        };
        let y = match recording.row.clone() {
            Some(row) => cut::record(&mixer, tape, name, Entered { x: read, is_normed, ids }, &context, &row, policy),
            None => {
                let losses = recording.mixer_losses.as_mut().filter(|_| mixer.module.has_loss());
                let with_loss = losses.is_some();
                let forward = move |reads: &[Tensor]| {
                    let x = mixer.normed(&reads[0], is_normed);
                    if !with_loss {
                        return vec![mixer.module.forward(&x, &context)];
                    }
                    let (y, loss) = mixer.module.forward_with_loss(&x, &context);
                    vec![y, loss.expect("a mixer that has a loss")]
                };
                let written =
                    tape.run(format!("{name} mixer"), &ids, policy, &[read], 1 + usize::from(with_loss), forward);
                if let Some(losses) = losses {
                    losses.push(written[1]);
                    tape.keep(written[1]);
                }
                written[0]
            }
        };
        match self.splits {
            true => recording.leave_region(tape, y),
            false => recording.split_rows(tape, y),
        }
    }
}

impl FeedForward {
    fn record(&self, tape: &mut Tape, name: &str, x: Slot, recording: &mut Recording) -> Slot {
        match self {
            FeedForward::Dense(dense) => {
                let Entered { x, is_normed, ids } = dense.enter(tape, &format!("{name} mlp"), x, recording);
                let branch = dense.clone();
                let forward = move |reads: &[Tensor]| vec![branch.module.forward(&branch.normed(&reads[0], is_normed))];
                let y = tape.run(format!("{name} mlp"), &ids, recording.policy, &[x], 1, forward)[0];
                recording.leave_region(tape, y)
            }
            FeedForward::Moe(moe) => moe.record(tape, name, x, recording),
        }
    }

    /// Returns the branch without a tape, its norm included and the residual not: `[T, D]` to `[T, D]`. `ids_T`, int64, are its tokens.
    pub fn forward(&self, x_TD: &Tensor, ids_T: &Tensor, split: Option<&Split>) -> Tensor {
        match self {
            FeedForward::Dense(branch) => branch.module.forward(&branch.input(x_TD)),
            FeedForward::Moe(moe) => moe.forward(x_TD, ids_T, split),
        }
    }
}

/// Takes the norm `norm`, where there is one, and what `build` makes of the parameters under `module`.
fn branch<T: ?Sized>(
    config: &NormConfig,
    params: &ParamStore,
    prefix: &str,
    norm: Option<&str>,
    module: &str,
    build: impl FnOnce(&Scope<'_>) -> Box<T>,
) -> Rc<Branch<T>> {
    let outer = Scope::new(params, prefix);
    let norm = norm.map(|name| config.build(&outer, name));
    let inner = Scope::new(params, format!("{prefix}{module}."));
    let module = build(&inner);
    Rc::new(Branch { norm_ids: outer.into_ids(), ids: inner.into_ids(), norm, module })
}
