//! A residual of several streams (hyper-connections): the input that a branch reads of it, and the way in which the branch's output
//! changes it. Without them the residual is one stream, which a branch reads as it is and adds to.
//!
//! Shapes: T tokens, M streams, D hidden size.

use std::rc::Rc;

use tch::Tensor;

use super::config::DecoderConfig;
use super::recording::Recording;
use crate::nn::{HyperConnection, HyperHead, RmsNorm, Spread, StreamsConfig};
use crate::params::{ParamId, ParamSpec, ParamStore, Scope};
use crate::tape::{Policy, Slot, Tape};

/// The modules of the connections of a layer's mixer and feed-forward.
const CONNECTIONS: [&str; 2] = ["attn_hc.", "ffn_hc."];

/// The module of the last mix, beside the last norm.
const HEAD: &str = "hc_head";

/// The connection of one branch.
pub(super) struct Connection {
    module: Rc<HyperConnection>,
    ids: Vec<ParamId>,
}

/// The slots of a branch's input, and of the weights of its output and of the mix of streams.
pub(super) struct Opened {
    pub read: Slot,
    spread: Option<[Slot; 2]>,
}

impl Connection {
    /// Returns the parameters of the connections of both branches of a layer whose names begin with `prefix`; none where the residual is
    /// one stream.
    pub fn specs(config: &DecoderConfig, prefix: &str) -> Vec<ParamSpec> {
        let of_both = |streams: &StreamsConfig| {
            let of = |name: &str| {
                HyperConnection::specs(
                    &format!("{prefix}{name}"),
                    config.hidden_size,
                    streams,
                    config.initializer_range,
                )
            };
            CONNECTIONS.into_iter().flat_map(of).collect()
        };
        config.streams.as_ref().map_or(Vec::new(), of_both)
    }

    /// Takes the connections of both branches of a layer; `None` where the residual is one stream.
    pub fn of_layer(config: &DecoderConfig, prefix: &str, params: &ParamStore) -> Option<[Connection; 2]> {
        let streams = config.streams.as_ref()?;
        Some(CONNECTIONS.map(|name| {
            let scope = Scope::new(params, format!("{prefix}{name}"));
            let module = Rc::new(HyperConnection::new(&scope, streams));
            Connection { module, ids: scope.into_ids() }
        }))
    }

    /// Returns the branch's input `[T, D]`, made of the streams `[T, M·D]`, and how its output is added to them, without a tape.
    pub fn open(&self, x: &Tensor) -> (Tensor, Spread) {
        self.module.open(x)
    }
}

impl Opened {
    /// Records what the branch `name` reads of `x`, outside of regions: `[T, D]`, where there is a connection of `[T, M·D]`.
    pub fn record(
        tape: &mut Tape,
        name: &str,
        x: Slot,
        connection: Option<&Connection>,
        recording: &Recording,
    ) -> Opened {
        let Some(Connection { module, ids }) = connection else { return Opened { read: x, spread: None } };
        let module = module.clone();
        let forward = move |reads: &[Tensor]| {
            let (h, Spread { post_TM, mix_TMM }) = module.open(&reads[0]);
            vec![h, post_TM, mix_TMM]
        };
        recording.set_alike(tape, true);
        let slots = tape.run(format!("{name} streams"), ids, recording.policy, &[x], 3, forward);
        recording.set_alike(tape, false);
        Opened { read: slots[0], spread: Some([slots[1], slots[2]]) }
    }

    /// Records the residual after the branch gave `y`.
    pub fn close(&self, tape: &mut Tape, name: &str, x: Slot, y: Slot, policy: Policy) -> Slot {
        let Some([post, mix]) = self.spread else { return tape.add(x, y) };
        let forward = |reads: &[Tensor]| {
            let spread = Spread { post_TM: reads[2].shallow_clone(), mix_TMM: reads[3].shallow_clone() };
            vec![spread.close(&reads[0], &reads[1])]
        };
        tape.run(format!("{name} residual"), &[], policy, &[x, y, post, mix], 1, forward)[0]
    }
}

/// The norm after the last layer, and before it the last mix of streams.
pub(super) struct LastNorm {
    mix: Option<HyperHead>,
    norm: RmsNorm,
}

impl LastNorm {
    /// `path` is the norm's, behind `prefix`.
    pub fn specs(config: &DecoderConfig, prefix: &str, path: &str) -> Vec<ParamSpec> {
        let mut specs = config.norm.specs(prefix, path, config.hidden_size);
        if let Some(streams) = &config.streams {
            let path = format!("{prefix}{}", head_path(path));
            specs.extend(HyperHead::specs(&path, config.hidden_size, streams, config.initializer_range));
        }
        specs
    }

    /// Takes the norm behind the last layer, and what makes one stream of several before it.
    pub fn new(config: &DecoderConfig, scope: &Scope<'_>, path: &str) -> LastNorm {
        let norm = config.norm.build(scope, path);
        LastNorm { mix: config.streams.as_ref().map(|it| HyperHead::new(scope, &head_path(path), it)), norm }
    }

    /// Maps the residual `[T, M·D]` to `[T, D]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        match &self.mix {
            Some(mix) => self.norm.forward(&mix.forward(x)),
            None => self.norm.forward(x),
        }
    }
}

/// Returns the module of the mix beside the norm at this path.
fn head_path(norm: &str) -> String {
    match norm.rsplit_once('.') {
        Some((base, _)) => format!("{base}.{HEAD}"),
        None => HEAD.to_owned(),
    }
}

impl DecoderConfig {
    /// Returns the width of the residual, all streams of a token together.
    pub(super) fn residual_width(&self) -> i64 {
        self.hidden_size * self.streams.map_or(1, |streams| streams.count)
    }

    /// Returns the residual that begins with embeddings `[T, D]`.
    pub(super) fn first_residual(&self, x_TD: Tensor) -> Tensor {
        self.streams.map_or(x_TD.shallow_clone(), |streams| streams.spread(&x_TD))
    }

    /// Works like `first_residual` on a tape.
    pub(super) fn record_first_residual(&self, tape: &mut Tape, x: Slot) -> Slot {
        let Some(streams) = self.streams else { return x };
        tape.run("streams", &[], Policy::Keep, &[x], 1, move |reads| vec![streams.spread(&reads[0])])[0]
    }
}
