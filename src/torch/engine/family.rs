//! How a pool's model is made: parameters first, then the model on them. The built-in families, and where to put another.

use super::model::{EncoderModel, EncoderTape, FoundationModel, FoundationTape, MicroBatch};
use crate::model::{ModelConfig, Targets, TextBatch, TextConfig, TextModel, TextOptions, VisionConfig, VisionEncoder};
use crate::nn::{ParamSpec, ParamStore};
use crate::tape::Policy;
use loongforge_core::message::Grid;
use std::rc::Rc;
use std::sync::Arc;

/// A kind of encoder.
pub trait EncoderFamily: Send + Sync {
    /// Its parameters, under their names in `model.safetensors`.
    fn specs(&self) -> Vec<ParamSpec>;
    /// The model on parameters made from [`EncoderFamily::specs`].
    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel>;
}

/// A kind of foundation.
pub trait FoundationFamily: Send + Sync {
    /// Its parameters, under their names in `model.safetensors`.
    fn specs(&self) -> Vec<ParamSpec>;
    /// The model on parameters made from [`FoundationFamily::specs`].
    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn FoundationModel>;
}

/// The two pools of a model; a language model has no encoder.
#[derive(Clone)]
pub struct Families {
    pub encoder: Option<Arc<dyn EncoderFamily>>,
    pub foundation: Arc<dyn FoundationFamily>,
}

impl Families {
    /// The built-in families that a `config.json` describes.
    pub fn of(model: &ModelConfig) -> Self {
        let encoder = model.vision.clone().map(|config| Arc::new(QwenVision(config)) as Arc<dyn EncoderFamily>);
        let foundation = QwenText {
            config: model.text.clone(),
            image_token_id: model.image_token_id,
            num_feature_tensors: model.num_feature_tensors(),
        };
        Self { encoder, foundation: Arc::new(foundation) }
    }
}

struct QwenVision(VisionConfig);

impl EncoderFamily for QwenVision {
    fn specs(&self) -> Vec<ParamSpec> {
        VisionEncoder::specs(&self.0)
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        Box::new(QwenVisionModel { model: VisionEncoder::new(&self.0, params), policy })
    }
}

struct QwenVisionModel {
    model: VisionEncoder,
    policy: Policy,
}

impl EncoderModel for QwenVisionModel {
    fn record(&self, grids: &[Grid]) -> EncoderTape {
        let recorded = self.model.tape(grids, self.policy);
        EncoderTape { tape: Rc::new(recorded.tape), pixels: recorded.pixels, outputs: recorded.outputs }
    }
}

struct QwenText {
    config: TextConfig,
    image_token_id: Option<i64>,
    num_feature_tensors: usize,
}

impl FoundationFamily for QwenText {
    fn specs(&self) -> Vec<ParamSpec> {
        TextModel::specs(&self.config)
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn FoundationModel> {
        let &Self { image_token_id, num_feature_tensors, .. } = self;
        Box::new(QwenTextModel {
            model: TextModel::new(&self.config, params),
            image_token_id,
            num_feature_tensors,
            policy,
        })
    }
}

struct QwenTextModel {
    model: TextModel,
    image_token_id: Option<i64>,
    num_feature_tensors: usize,
    policy: Policy,
}

impl FoundationModel for QwenTextModel {
    fn num_feature_tensors(&self) -> usize {
        self.num_feature_tensors
    }

    fn feature_dim(&self) -> i64 {
        self.model.config().hidden_size
    }

    fn record(&self, batch: &MicroBatch) -> FoundationTape {
        let ids = batch.input_ids();
        let placeholder = |(row, id): (usize, &i64)| (Some(*id) == self.image_token_id).then_some(row as i64);
        // Qwen3's positions have one axis, of which the three are copies for text.
        let axes = if self.model.config().rope.axes.count() == 3 {
            batch.position_ids.shallow_clone()
        } else {
            batch.position_ids.get(0)
        };
        let text = TextBatch {
            input_ids: batch.input_ids.shallow_clone(),
            position_ids: axes,
            cu_seqlens: batch.cu_seqlens.clone(),
            feature_rows: ids.iter().enumerate().filter_map(placeholder).collect(),
        };
        let targets = Targets { labels: batch.targets(), scale: batch.loss_scale };
        let options = TextOptions {
            num_feature_tensors: self.num_feature_tensors,
            train_features: batch.feature_grads,
            policy: self.policy,
        };
        let recorded = self.model.tape(&text, Some(&targets), &options);
        FoundationTape {
            tape: Rc::new(recorded.tape),
            features: recorded.features,
            loss: recorded.loss.expect("there are targets"),
        }
    }
}
