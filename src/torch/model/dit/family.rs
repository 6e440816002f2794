//! A diffusion transformer as a foundation.

use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::config::ContextAttention;
use loongforge_core::message::Tower;
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::network::Network;
use super::qwen_image::{QwenImage, QwenImageConfig};
use super::record::Recorder;
use super::wan::{Wan, WanConfig};
use crate::model::batch::MicroBatch;
use crate::model::columns::{Column, weight_column};
use crate::model::foundation::{
    FoundationFamily, FoundationModel, FoundationShape, FoundationTape, Noised, VelocityTape,
};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::objective::FlowSettings;
use crate::model::parallel_errors::{ContextParallelError, TensorParallelError};
use crate::model::stage::Stage;
use crate::model::towers::FeatureInput;
use crate::params::{ParallelRank, ParamSpec, ParamStore, divide};
use crate::tape::Policy;

/// A transformer as data.
#[derive(Clone, Debug, PartialEq)]
pub enum TransformerConfig {
    Wan(WanConfig),
    QwenImage(QwenImageConfig),
}

/// A transformer that learns the velocity of noised latents.
#[derive(Clone, Debug)]
pub struct DitFamily {
    transformer: TransformerConfig,
    inputs: Vec<FeatureInput>,
    flow: FlowSettings,
}

impl TransformerConfig {
    /// Reads the config of a transformer by its `_class_name`; names are under `prefix`. `text_rows` are the rows of text
    /// that Wan's attention sees.
    ///
    /// # Errors
    /// The class is not known, or a key is wrong; the key is named.
    pub(in crate::model) fn read(
        keys: &Keys<'_>,
        prefix: &str,
        text_rows: i64,
    ) -> Result<TransformerConfig, ModelConfigError> {
        match keys.text_or("_class_name")?.ok_or_else(|| keys.missing("_class_name"))? {
            "WanTransformer3DModel" => Ok(TransformerConfig::Wan(WanConfig::read(keys, prefix, text_rows)?)),
            "QwenImageTransformer2DModel" => Ok(TransformerConfig::QwenImage(QwenImageConfig::read(keys, prefix)?)),
            other => {
                let known = ["WanTransformer3DModel", "QwenImageTransformer2DModel"].map(|name| json!(name));
                Err(keys.unsupported("_class_name", &json!(other), &known))
            }
        }
    }

    /// Returns the width of a hidden state.
    pub fn width(&self) -> i64 {
        match self {
            TransformerConfig::Wan(config) => config.width(),
            TransformerConfig::QwenImage(config) => config.width(),
        }
    }

    /// Returns the number of values of a patch of a latent.
    pub fn patch_dim(&self) -> i64 {
        match self {
            TransformerConfig::Wan(config) => config.patch_dim(),
            TransformerConfig::QwenImage(config) => config.patch_dim(),
        }
    }

    /// Returns the frames, rows and columns of a patch.
    pub fn patch(&self) -> [i64; 3] {
        match self {
            TransformerConfig::Wan(config) => [1, config.patch[0], config.patch[1]],
            TransformerConfig::QwenImage(config) => [1, config.patch, config.patch],
        }
    }

    /// Returns the number of channels of a latent that it makes.
    pub fn channels(&self) -> i64 {
        match self {
            TransformerConfig::Wan(config) => config.out_channels,
            TransformerConfig::QwenImage(config) => config.channels,
        }
    }

    /// Returns the number of channels of the mask of given frames in the input; 0: there is none.
    pub fn mask_channels(&self) -> i64 {
        match self {
            TransformerConfig::Wan(config) => config.mask_channels(),
            TransformerConfig::QwenImage(_) => 0,
        }
    }

    /// Returns the width of a row of text.
    pub fn text_dim(&self) -> i64 {
        match self {
            TransformerConfig::Wan(config) => config.text_dim,
            TransformerConfig::QwenImage(config) => config.text_dim,
        }
    }

    /// Returns the width of a token of a picture, where it takes some.
    pub fn image_dim(&self) -> Option<i64> {
        match self {
            TransformerConfig::Wan(config) => config.image.map(|image| image.width),
            TransformerConfig::QwenImage(_) => None,
        }
    }

    /// Returns the parameters of a stage, of this rank's part of it.
    fn specs(&self, stage: &Stage) -> Vec<ParamSpec> {
        match self {
            TransformerConfig::Wan(config) => config.specs(stage),
            TransformerConfig::QwenImage(config) => config.specs(stage),
        }
    }

    fn parallel(&self) -> ParallelRank {
        match self {
            TransformerConfig::Wan(config) => config.parallel,
            TransformerConfig::QwenImage(config) => config.parallel,
        }
    }

    fn with_parallel(&self, parallel: ParallelRank) -> TransformerConfig {
        match self.clone() {
            TransformerConfig::Wan(config) => TransformerConfig::Wan(WanConfig { parallel, ..config }),
            TransformerConfig::QwenImage(config) => {
                TransformerConfig::QwenImage(QwenImageConfig { parallel, ..config })
            }
        }
    }

    /// Returns the transformer with the sizes that the rank at `place` computes with.
    fn divided(&self, place: &ParallelRank) -> Result<TransformerConfig, TensorParallelError> {
        let inner = match self {
            TransformerConfig::Wan(config) => config.inner,
            TransformerConfig::QwenImage(config) => config.inner(),
        };
        let (heads, ranks) = (self.num_heads(), place.tp);
        if place.sequence {
            return Err(TensorParallelError::Sequence);
        }
        if heads % ranks as i64 != 0 {
            return Err(TensorParallelError::Tensor { key: "num_attention_heads", size: heads, ranks });
        }
        if inner < ranks as i64 {
            return Err(TensorParallelError::TooFew { key: "ffn_dim", size: inner, axis: "tensor_parallel", ranks });
        }
        Ok(self.with_parallel(*place))
    }

    /// Returns the number of heads of all ranks.
    fn num_heads(&self) -> i64 {
        match self {
            TransformerConfig::Wan(config) => config.num_heads,
            TransformerConfig::QwenImage(config) => config.num_heads,
        }
    }

    /// Returns the number of transformer blocks.
    pub fn num_layers(&self) -> usize {
        match self {
            TransformerConfig::Wan(config) => config.num_layers,
            TransformerConfig::QwenImage(config) => config.num_layers,
        }
    }

    /// Returns the number of tokens of a sample at which attention costs as much as the matrices of a block: `(6·d² + 2·d·f) / (2·d)` of
    /// Wan, `12·d² / (2·d)` of Qwen-Image, whose streams have matrices of their own.
    fn even_length(&self) -> i64 {
        match self {
            TransformerConfig::Wan(config) => 3 * config.width() + config.inner,
            TransformerConfig::QwenImage(config) => 6 * config.width(),
        }
    }

    /// Returns the features that it takes from each tower: tokens of pictures, rows of text, patches of latents.
    fn inputs(&self) -> Vec<FeatureInput> {
        let input = |(tower, width)| FeatureInput { tower, num_tensors: 1, width, placeholders: Vec::new() };
        let pictures = self.image_dim().map(|width| (Tower::Vision, width));
        pictures
            .into_iter()
            .chain([(Tower::Text, self.text_dim()), (Tower::Vae, self.patch_dim())])
            .map(input)
            .collect()
    }
}

impl DitFamily {
    /// Returns the transformer with the mean square error of a run without a seed.
    pub fn new(transformer: TransformerConfig) -> DitFamily {
        DitFamily { inputs: transformer.inputs(), transformer, flow: FlowSettings::default() }
    }

    /// Returns the config of the transformer, without towers and autoencoder.
    pub fn transformer(&self) -> &TransformerConfig {
        &self.transformer
    }

    /// Returns whether all tokens of pictures are multiplied with this parameter.
    fn is_met(&self, name: &str) -> bool {
        let met: &[&str] = match &self.transformer {
            TransformerConfig::Wan(_) => {
                &[".attn1.", ".attn2.to_q", ".attn2.to_out", ".ffn.", ".patch_embedding", ".proj_out"]
            }
            TransformerConfig::QwenImage(_) => {
                &[".attn.to_q", ".attn.to_k", ".attn.to_v", ".attn.to_out", ".img_mlp.", ".img_in", ".proj_out"]
            }
        };
        met.iter().any(|part| format!(".{name}").contains(part))
    }

    /// Returns the stage of the transformer of which this is a rank's part.
    pub(super) fn stage_model(&self, stage: &Stage, params: &ParamStore, policy: Policy) -> DitModel {
        let network: Box<dyn Network> = match &self.transformer {
            TransformerConfig::Wan(config) => Box::new(Wan::new(config, stage, params)),
            TransformerConfig::QwenImage(config) => Box::new(QwenImage::new(config, stage, params)),
        };
        DitModel {
            network,
            columns: self.columns().into(),
            stage: stage.clone(),
            family: self.clone(),
            policy,
            device: params.flat().device(),
            kind: params.flat().kind(),
        }
    }

    /// Builds the whole transformer on the parameters of a store.
    #[cfg(test)]
    pub(super) fn model(&self, params: &ParamStore, policy: Policy) -> DitModel {
        self.stage_model(&Stage::whole(self.num_layers()), params, policy)
    }
}

impl FoundationFamily for DitFamily {
    fn specs(&self) -> Vec<ParamSpec> {
        self.stage_specs(&Stage::whole(self.num_layers()))
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.inputs
    }

    fn columns(&self) -> Vec<Column> {
        if self.flow.masks { vec![weight_column()] } else { Vec::new() }
    }

    fn shape(&self) -> FoundationShape {
        let width = self.transformer.width();
        FoundationShape {
            width,
            is_causal: false,
            attention: (2 * width) as f64 * self.transformer.num_layers() as f64,
            even_length: self.transformer.even_length(),
            expert_share: 1.0,
            aside: self.specs().into_iter().map(|spec| spec.name).filter(|name| !self.is_met(name)).collect(),
        }
    }

    fn check_context(&self, ranks: usize, attention: ContextAttention) -> Result<(), ContextParallelError> {
        let (heads, parts) = (self.transformer.num_heads(), ranks * self.transformer.parallel().tp);
        if ranks > 1 && attention != ContextAttention::Ulysses {
            return Err(ContextParallelError::Ring);
        }
        if ranks > 1 && heads % parts as i64 != 0 {
            return Err(ContextParallelError::AllHeads { heads, parts });
        }
        Ok(())
    }

    fn needs_whole_rows(&self) -> Option<&'static str> {
        Some("a diffusion transformer, whose tokens attend to later ones")
    }

    fn with_flow(&self, flow: FlowSettings) -> Option<Arc<dyn FoundationFamily>> {
        let mut inputs = self.transformer.inputs();
        let of_latents = inputs.iter_mut().filter(|input| input.tower == Tower::Vae);
        of_latents.for_each(|input| input.num_tensors = 1 + usize::from(flow.draws_latents));
        Some(Arc::new(DitFamily { flow, inputs, ..self.clone() }))
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn FoundationModel> {
        self.build_stage(&Stage::whole(self.num_layers()), params, policy)
    }

    fn divided(&self, place: &ParallelRank) -> Result<Arc<dyn FoundationFamily>, TensorParallelError> {
        let transformer = self.transformer.with_parallel(ParallelRank::default()).divided(place)?;
        Ok(Arc::new(DitFamily { transformer, ..self.clone() }))
    }

    fn num_layers(&self) -> usize {
        self.transformer.num_layers()
    }

    fn stage_specs(&self, stage: &Stage) -> Vec<ParamSpec> {
        let (place, whole) = (self.transformer.parallel(), self.transformer.with_parallel(ParallelRank::default()));
        match place.is_whole() {
            true => whole.specs(stage),
            false => divide(whole.specs(stage), self.transformer.specs(stage), &place),
        }
    }

    fn build_stage(&self, stage: &Stage, params: &ParamStore, policy: Policy) -> Box<dyn FoundationModel> {
        Box::new(self.stage_model(stage, params, policy))
    }
}

/// A transformer on its parameters.
pub(crate) struct DitModel {
    network: Box<dyn Network>,
    family: DitFamily,
    columns: Rc<[Column]>,
    stage: Stage,
    policy: Policy,
    device: Device,
    kind: Kind,
}

impl DitModel {
    /// Returns the recorder of tapes of this stage.
    pub(super) fn recorder(&self) -> Recorder<'_> {
        Recorder {
            network: &*self.network,
            inputs: &self.family.inputs,
            stage: &self.stage,
            flow: &self.family.flow,
            patch_dim: self.family.transformer.patch_dim(),
            policy: self.policy,
            device: self.device,
            kind: self.kind,
        }
    }
}

impl FoundationModel for DitModel {
    fn columns(&self) -> &Rc<[Column]> {
        &self.columns
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.family.inputs
    }

    fn record(&self, batch: &MicroBatch) -> FoundationTape {
        self.recorder().record(batch)
    }

    fn needs_all_features(&self) -> bool {
        true
    }

    fn dropout_rows(&self, batch: &MicroBatch) -> Vec<Tensor> {
        self.recorder().own_rows(batch)
    }

    fn record_velocity(&self, batch: &MicroBatch, at: &Noised) -> Option<VelocityTape> {
        Some(self.recorder().record_velocity(batch, at))
    }
}
