//! A policy that writes actions as tokens (Pi0-FAST): a language model with pictures before its prompt.

use std::rc::Rc;
use std::sync::Arc;

use tch::{Device, Tensor};

use super::config::PolicyOptions;
use super::robot::{Acting, ActionChunk, Denoising, Observed, RobotPolicy};
use crate::model::batch::MicroBatch;
use crate::model::columns::{Column, INPUT_IDS, POSITION_IDS};
use crate::model::decoder::{DecoderConfig, DecoderFamily};
use crate::model::decoding::Decoding;
use crate::model::foundation::{FoundationFamily, FoundationModel, FoundationShape};
use crate::model::towers::FeatureInput;
use crate::params::{ParamSpec, ParamStore, StoredTensor};
use crate::tape::Policy;

/// A decoder that writes actions.
#[derive(Clone, Debug)]
pub struct WritingFamily {
    decoder: Arc<DecoderFamily>,
    vocab_size: i64,
    sizes: WritingSizes,
    /// The name under which the table of tokens is stored once more.
    head: String,
    options: PolicyOptions,
}

/// The sizes of the actions that are written as tokens, and the token of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritingSizes {
    /// Actions of a chunk.
    pub horizon: i64,
    /// Numbers of an action, padding included.
    pub action_dim: i64,
    /// The token that features of pictures replace.
    pub image_token: i64,
}

impl WritingFamily {
    /// Makes a policy of a decoder that reads these features. `head` is the name of the parameter that scores tokens.
    pub fn new(decoder: DecoderConfig, inputs: Vec<FeatureInput>, sizes: WritingSizes, head: String) -> WritingFamily {
        let vocab_size = decoder.vocab_size;
        let decoder = Arc::new(DecoderFamily::new(decoder, inputs));
        WritingFamily { decoder, vocab_size, sizes, head, options: PolicyOptions::default() }
    }
}

impl FoundationFamily for WritingFamily {
    fn specs(&self) -> Vec<ParamSpec> {
        let stored = |spec: ParamSpec| match spec.name.ends_with("embed_tokens.weight") {
            true => {
                let head = StoredTensor::repeated(&self.head, &spec.shape);
                let pieces = spec.pieces.iter().cloned().chain([head]).collect();
                spec.stored_as(pieces)
            }
            false => spec,
        };
        self.decoder.specs().into_iter().map(stored).collect()
    }

    fn inputs(&self) -> &[FeatureInput] {
        self.decoder.inputs()
    }

    fn columns(&self) -> Vec<Column> {
        self.decoder.columns()
    }

    fn shape(&self) -> FoundationShape {
        self.decoder.shape()
    }

    fn with_policy(&self, options: PolicyOptions) -> Option<Arc<dyn FoundationFamily>> {
        Some(Arc::new(WritingFamily { options, ..self.clone() }))
    }

    fn as_policy(&self) -> Option<&dyn RobotPolicy> {
        Some(self)
    }

    fn needs_whole_rows(&self) -> Option<&'static str> {
        Some("a robot policy")
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn FoundationModel> {
        self.decoder.build(params, policy)
    }
}

impl RobotPolicy for WritingFamily {
    fn chunk(&self) -> ActionChunk {
        let WritingSizes { horizon, action_dim, image_token } = self.sizes;
        let columns = vec![INPUT_IDS, POSITION_IDS];
        ActionChunk {
            horizon,
            action_dim,
            num_steps: 1,
            vocab_size: self.vocab_size,
            image_token,
            columns,
            writes: true,
        }
    }

    fn options(&self) -> PolicyOptions {
        self.options
    }

    fn is_of_prefix(&self, _name: &str) -> bool {
        true
    }

    fn acting(&self, params: &ParamStore) -> Box<dyn Acting> {
        let device = params.flat().device();
        Box::new(Writer { model: self.build(params, Policy::Keep), device, has_features: !self.inputs().is_empty() })
    }
}

/// A language model that writes actions.
struct Writer {
    model: Box<dyn FoundationModel>,
    device: Device,
    has_features: bool,
}

impl Acting for Writer {
    fn act(&self, _: Observed<'_>, _: Denoising<'_>) -> Option<Tensor> {
        None
    }

    fn write(&self, observed: Observed<'_>, decoding: &Decoding) -> Option<Vec<Vec<i64>>> {
        let Observed { columns, cu_seqlens, features } = observed;
        let features: Vec<Vec<Tensor>> = match self.has_features {
            true => vec![features.iter().map(Tensor::shallow_clone).collect()],
            false => Vec::new(),
        };
        let batch = MicroBatch {
            columns: columns.map(|x, _| x.to_device(self.device)),
            cu_seqlens: cu_seqlens.to_vec(),
            samples: Rc::new([]),
            loss_scale: 0.0,
            num_features: features.iter().map(|of| of.first().map_or(0, |rows| rows.size()[0])).collect(),
            feature_grads: false,
            constant_features: Default::default(),
            row: None,
            shared_features: Vec::new(),
            past: None,
            evaluates: true,
        };
        self.model.generate(&batch, &features, decoding)
    }

    fn device(&self) -> Device {
        self.device
    }
}

#[cfg(test)]
#[path = "writing_tests.rs"]
mod tests;
