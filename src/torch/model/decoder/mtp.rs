//! Multi-token prediction (Gloeckle et al. 2024, in the sequential form of DeepSeek-V3, §2.2): a head joins the state at
//! a token with the embedding of the next one, runs one more layer, and predicts the token after that.
//!
//! Shapes: T tokens of a packed row, D hidden size, M counted targets of a head.

use std::rc::Rc;

use tch::Tensor;

use super::config::{DecoderConfig, MtpConfig, MtpPlace, MtpProjection};
use super::layer::Layer;
use super::streams::LastNorm;
use crate::nn::{Linear, RmsNorm};
use crate::params::{ParamId, ParamSpec, ParamStore, Scope, StoredTensor};

impl MtpConfig {
    /// Returns the prefixes of head `number`'s own tensors and of its layer's.
    pub(super) fn prefixes(&self, number: usize) -> (String, String) {
        match &self.names.heads {
            MtpPlace::Numbered(path, first) => {
                let prefix = format!("{path}.{}.", first + number);
                (prefix.clone(), prefix)
            }
            MtpPlace::Single(path) => (format!("{path}."), format!("{path}.layers.0.")),
        }
    }

    /// Returns the tensors in which the heads repeat the embedding, or the model's head.
    pub(super) fn repeated(&self, head: bool, shape: &[i64]) -> Vec<StoredTensor> {
        let Some(names) = self.names.repeats else { return Vec::new() };
        let name = names[usize::from(head)];
        let of_head = |number| StoredTensor::repeated(&format!("{}{name}.weight", self.prefixes(number).0), shape);
        (0..self.num_heads).map(of_head).collect()
    }

    /// Declares the parameters of all prediction heads: a layer each, the norms of embedding and state, the map that joins
    /// them, and the norm before the head.
    pub(super) fn specs(&self, config: &DecoderConfig) -> Vec<ParamSpec> {
        let (width, names) = (config.hidden_size, &self.names);
        let head = |number| {
            let (prefix, layer) = self.prefixes(number);
            let mut specs = Layer::specs(config, &self.layer, &layer);
            for norm in [names.embedding_norm, names.hidden_norm] {
                specs.extend(config.norm.specs(&prefix, norm, width));
            }
            specs.extend(LastNorm::specs(config, &prefix, names.last_norm));
            let linear = |name, inputs| Linear::specs(&prefix, name, inputs, width, false, config.initializer_range);
            specs.extend(match names.project {
                MtpProjection::Joined(name) => linear(name, 2 * width),
                MtpProjection::Apart(both) => both.into_iter().flat_map(|name| linear(name, width)).collect(),
            });
            specs
        };
        (0..self.num_heads).flat_map(head).collect()
    }
}

/// Joins a state with the embedding of the token after it.
pub(super) struct Join {
    embedding_norm: RmsNorm,
    hidden_norm: RmsNorm,
    project: Projection,
    hidden_first: bool,
}

enum Projection {
    Joined(Linear),
    /// The maps of the embedding, and of the state.
    Apart([Linear; 2]),
}

/// One prediction head on its parameters.
pub(super) struct MtpHead {
    pub join: Rc<Join>,
    pub join_ids: Vec<ParamId>,
    pub layer: Layer,
    pub last_norm: Rc<LastNorm>,
    pub last_norm_ids: Vec<ParamId>,
}

impl MtpHead {
    /// Takes the prediction heads of a decoder, in their order; none where it has none.
    pub fn all(config: &DecoderConfig, params: &ParamStore) -> Vec<MtpHead> {
        let Some(mtp) = &config.mtp else { return Vec::new() };
        let head = |number| {
            let (prefix, layer) = mtp.prefixes(number);
            let (scope, last) = (Scope::new(params, prefix.clone()), Scope::new(params, prefix));
            let join = Join {
                embedding_norm: config.norm.build(&scope, mtp.names.embedding_norm),
                hidden_norm: config.norm.build(&scope, mtp.names.hidden_norm),
                project: match mtp.names.project {
                    MtpProjection::Joined(name) => Projection::Joined(Linear::new(&scope, name)),
                    MtpProjection::Apart(both) => Projection::Apart(both.map(|name| Linear::new(&scope, name))),
                },
                hidden_first: mtp.names.hidden_first,
            };
            MtpHead {
                join: Rc::new(join),
                join_ids: scope.into_ids(),
                layer: Layer::new(config, &mtp.layer, &layer, params),
                last_norm: Rc::new(LastNorm::new(config, &last, mtp.names.last_norm)),
                last_norm_ids: last.into_ids(),
            }
        };
        (0..mtp.num_heads).map(head).collect()
    }
}

impl Join {
    /// Returns the state `[T, D]`, or `[T, M·D]` of M streams, which the result has as well.
    pub fn forward(&self, embedding_TD: &Tensor, hidden: &Tensor) -> Tensor {
        let embedding = self.embedding_norm.forward(embedding_TD);
        match &self.project {
            Projection::Joined(project) => {
                let hidden = self.hidden_norm.forward(hidden);
                let both = if self.hidden_first { [hidden, embedding] } else { [embedding, hidden] };
                project.forward(&Tensor::cat(&both, -1))
            }
            Projection::Apart([of_embedding, of_hidden]) => {
                let hidden_TMD = hidden.unflatten(-1, [-1, embedding_TD.size()[1]]);
                let hidden_TMD = of_hidden.forward(&self.hidden_norm.forward(&hidden_TMD));
                (of_embedding.forward(&embedding).unsqueeze(1) + hidden_TMD).flatten(1, 2)
            }
        }
    }
}
