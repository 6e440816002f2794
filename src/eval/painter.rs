//! A diffusion model that makes pictures and clips of prompts: a checkpoint's folder in one thread.

use crate::eval::forward::LoadedTower;
use crate::model::folder::ModelFolder;
use crate::model::locate::ModelFolders;
use anyhow::{Result, anyhow};
use loongforge_core::data::Sample;
use loongforge_core::observe::Clip;
use loongforge_torch::engine::decode;
use loongforge_torch::model::{
    Autoencoder, FeatureInput, FoundationFamily, FoundationModel, MakeSettings, MicroBatch, ModelConfig, NoisePurpose,
    Noised, SampleRow, velocity,
};
use loongforge_torch::params::{ParamSpec, ParamStore};
use loongforge_torch::tape::Policy;
use loongforge_torch::train::hf::Checkpoint;
use loongforge_torch::train::{Adapters, load_weights};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// A transformer with its parameters.
type Loaded = (Box<dyn FoundationModel>, Rc<ParamStore>);

/// Towers, transformers and decoder with their weights; adapters are added to them.
pub struct Painter {
    folder: ModelFolder,
    /// The towers, in the order of the transformer's inputs.
    towers: Vec<LoadedTower>,
    transformer: Loaded,
    /// The one of low noise, where the model has one, and the level below which it predicts.
    low_noise: Option<(Loaded, f64)>,
    autoencoder: Autoencoder,
    decoder: Rc<ParamStore>,
}

impl Painter {
    /// Reads the weights, or with `ema` their averages, into parameters of the kind that `config.json` names. Frames are decoded
    /// in float32.
    ///
    /// # Errors
    /// A file is missing, or torn, or of a model that makes no pictures; there are no averages.
    pub fn load(folders: &ModelFolders, ema: bool, device: Device) -> Result<Self> {
        let ModelFolders { weights, adapters, config } = folders;
        let folder = ModelFolder::open_plain(config)?;
        let autoencoder = ModelConfig::autoencoder(&folder.json)?.ok_or_else(|| {
            let model_type = &folder.config.model_type;
            anyhow!("{}: a {model_type} model makes no pictures: it is not a diffusion model", config.display())
        })?;
        let kind = folder.kind();
        let base = || Checkpoint::open(weights);
        let adapters = match adapters {
            Some(adapters) if ema => Some(Adapters::open_averages(adapters, &folder.config, &base()?)?),
            Some(adapters) => Some(Adapters::open(adapters, &folder.config, &base()?)?),
            None if ema => Some(Adapters::averages(weights, &folder.config, &base()?)?),
            None => None,
        };
        let load_as = |specs: Vec<ParamSpec>, kind: Kind| -> Result<Rc<ParamStore>> {
            let params = ParamStore::new(specs, kind, device);
            if params.ids().next().is_some() {
                load_weights(&params, weights)?;
            }
            params.set_trainable(false);
            adapters.iter().for_each(|adapters| adapters.add_to(&params));
            Ok(Rc::new(params))
        };
        let tower = |input: &FeatureInput| -> Result<LoadedTower> {
            let found = folder.config.towers.iter().find(|it| it.tower == input.tower);
            let found = found.ok_or_else(|| anyhow!("the model has no tower {}", input.tower.name()))?;
            LoadedTower::load(found, input, |specs| load_as(specs, kind))
        };
        let towers = folder.config.inputs().iter().map(tower).collect::<Result<_>>()?;
        let load = |family: &Arc<dyn FoundationFamily>| -> Result<Loaded> {
            let params = load_as(family.specs(), kind)?;
            Ok((family.build(&params, Policy::Keep), params))
        };
        let transformer = load(&folder.config.foundation)?;
        let low_noise = folder.config.low_noise.as_ref().map(load).transpose()?;
        let low_noise = low_noise.zip(folder.json["boundary_ratio"].as_f64());
        let decoder = load_as(autoencoder.decoder_specs(), Kind::Float)?;
        Ok(Self { towers, transformer, low_noise, autoencoder, decoder, folder })
    }

    /// Returns the folder that the model was loaded from, with its config.
    pub fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    /// Returns tokens of a prompt's result, and bytes that computing them takes at least: the inputs, queries, keys and values of
    /// one block of the transformer.
    pub fn size(&self, prompt: &Sample) -> (u64, u64) {
        let tokens = u64::from(prompt.meta.num_tokens);
        let width = self.folder.shape().hidden_size;
        let bytes = self.folder.kind().elt_size_in_bytes() as u64;
        (tokens, tokens.saturating_mul(width).saturating_mul(4 * bytes))
    }

    /// Returns the picture or clip of a prompt; a clip has `fps` frames a second. `draw` is the number of the noise.
    ///
    /// # Errors
    /// The prompt has no size, or the device failed.
    pub fn make(&self, prompt: &Sample, settings: &MakeSettings, draw: u32, fps: f64) -> Result<Clip> {
        let row = SampleRow::new(&prompt.meta, NoisePurpose::Evaluation(draw));
        if row.target.is_none() {
            return Err(anyhow!("the prompt does not give the size of the result"));
        }
        let noise = settings.noise(&row, settings.width(&*self.transformer.0).ok_or_else(no_latents)?);
        let made = self.latents(prompt, &row, settings, noise)?;
        decode(&self.autoencoder, &self.decoder, &row, &made, fps).map_err(|error| anyhow!("{error}"))
    }

    /// Returns the latents `[tokens, width]` that are made of a prompt from this noise.
    ///
    /// # Errors
    /// The device failed.
    pub fn latents(&self, prompt: &Sample, row: &SampleRow, settings: &MakeSettings, noise: Tensor) -> Result<Tensor> {
        let features: Vec<Vec<Tensor>> = self.towers.iter().map(|tower| tower.features(&[prompt])).collect();
        let num_features = features.iter().map(|levels| levels.first().map_or(0, |level| level.size()[0])).collect();
        let (model, params) = &self.transformer;
        let device = params.flat().device();
        let batch = MicroBatch {
            cu_seqlens: vec![0, row.num_tokens],
            samples: Rc::new([row.clone()]),
            num_features,
            evaluates: true,
            ..MicroBatch::filler(model.columns(), device)
        };
        let mut samples = settings.begin(&batch.samples, vec![noise]);
        let mut advance = |(model, params): &Loaded, levels: Range<f64>| -> Result<()> {
            let told = |at: &Noised| Ok(velocity(&**model, params, &batch, &features, at).ok_or_else(no_latents)??);
            settings.advance(&mut samples, &levels, device, told)
        };
        let boundary = self.low_noise.as_ref().map_or(0.0, |(_, boundary)| *boundary);
        advance(&self.transformer, boundary..f64::INFINITY)?;
        if let Some((low_noise, _)) = &self.low_noise {
            advance(low_noise, 0.0..boundary)?;
        }
        Ok(settings.finish(samples, &**model, &batch, &features).remove(0))
    }

    /// Returns the towers, in the order of the transformer's inputs.
    #[cfg(test)]
    pub(crate) fn towers(&self) -> &[LoadedTower] {
        &self.towers
    }
}

fn no_latents() -> anyhow::Error {
    anyhow!("the model makes no latents")
}
