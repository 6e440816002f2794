//! A trained model for forward passes in one thread: encoder and language model, without gradients and optimizer state.

use super::ranks::{DecoderPart, Ranks};
use super::samples::is_diffusion;
use crate::checkpoint::expect_tied_head;
use crate::model::folder::ModelFolder;
use crate::model::locate::ModelFolders;
use anyhow::{Result, anyhow};
use loongforge_core::data::{Media, Sample};
use loongforge_core::message::{Grid, SampleMeta};
use loongforge_core::schedule::Pipeline;
use loongforge_torch::model::{
    AnsweredSamples, Continued, Decoder, DecoderConfig, Decoding, EncoderDecoder, EncoderModel, FeatureInput,
    ModelTower, Prompt, Stage, StageError, TextBatch, TokenScores, generate_each,
};
use loongforge_torch::params::{ParamSpec, ParamStore};
use loongforge_torch::tape::{Execution, Policy};
use loongforge_torch::train::hf::{Checkpoint, LoadOptions, Origin, load_weights_from};
use loongforge_torch::train::{Adapters, load_weights};
use std::path::PathBuf;
use std::rc::Rc;
use tch::{Device, Kind, Tensor};

/// Encoder and language model with their weights; adapters are added to them.
pub struct ForwardModel {
    /// Config and tokenizer.
    folder: ModelFolder,
    /// Each with its parameters, and the tokens that its features replace.
    towers: Vec<LoadedTower>,
    language: Language,
    /// The parameters of the first stage.
    params: Rc<ParamStore>,
    /// The connection to the other ranks, where the decoder is this rank's part alone.
    ranks: Option<Ranks>,
    /// The devices of all stages or ranks.
    devices: Vec<Device>,
}

/// The model that reads prompts and writes answers.
enum Language {
    /// The decoder's stages in order; one where it is whole.
    Decoder(Vec<Decoder>),
    EncoderDecoder(Box<EncoderDecoder>),
}

/// A tower with its weights.
pub(crate) struct LoadedTower {
    input: FeatureInput,
    model: Box<dyn EncoderModel>,
    params: Rc<ParamStore>,
}

impl ForwardModel {
    /// Reads the weights into parameters of this kind; `None`: of the kind that `config.json` names.
    ///
    /// # Errors
    /// A file is missing, or torn, or of a model that is not built in.
    pub fn load(folders: &ModelFolders, kind: Option<Kind>, device: Device) -> Result<Self> {
        Self::load_staged(folders, kind, &[device])
    }

    /// Works like [`ForwardModel::load`] with a decoder's layers divided into as many stages as there are `devices`, one behind the
    /// other; the first device has the towers too.
    ///
    /// # Errors
    /// Fails as [`ForwardModel::load`] does, and where the decoder has fewer layers than there are stages, or cannot be cut there.
    pub fn load_staged(folders: &ModelFolders, kind: Option<Kind>, devices: &[Device]) -> Result<Self> {
        let ModelFolders { weights, adapters, config } = folders;
        let folder = ModelFolder::open_plain(config)?;
        expect_tied_head(weights, &folder.config, &folders.ignored())?;
        let kind = kind.unwrap_or_else(|| folder.kind());
        let open = |adapters: &PathBuf| -> Result<Adapters> {
            Ok(Adapters::open(adapters, &folder.config, &Checkpoint::open(weights)?)?)
        };
        let adapters = adapters.as_ref().map(open).transpose()?;
        let options = LoadOptions { resize_embeddings: folders.may_grow(), ..LoadOptions::default() };
        let load_on = |specs: Vec<ParamSpec>, device: Device| -> Result<Rc<ParamStore>> {
            let params = ParamStore::new(specs, kind, device);
            load_weights_from(&params, &Origin::whole(Checkpoint::open(weights)?), &options)?;
            params.set_trainable(false);
            adapters.iter().for_each(|adapters| adapters.add_to(&params));
            Ok(Rc::new(params))
        };
        let load = |specs: Vec<ParamSpec>| load_on(specs, devices[0]);
        let tower = |(it, input): (&ModelTower, &FeatureInput)| LoadedTower::load(it, input, load);
        let towers = folder.config.towers.iter().zip(folder.config.inputs()).map(tower).collect::<Result<_>>()?;
        let foundation = &folder.config.foundation;
        let (language, params) = match (foundation.as_decoder(), foundation.as_encoder_decoder()) {
            (Some(config), _) => {
                let stages =
                    stages_of(config, devices.len()).map_err(|error| anyhow!("--pipeline-parallel: {error}"))?;
                let mut decoders = Vec::new();
                let mut first = None;
                for (stage, device) in stages.into_iter().zip(devices) {
                    let params = load_on(Decoder::stage_specs(config, &stage), *device)?;
                    decoders.push(Decoder::stage(config, stage, &params));
                    first.get_or_insert(params);
                }
                (Language::Decoder(decoders), first.ok_or_else(|| anyhow!("a model needs at least one device"))?)
            }
            (None, Some(_)) if devices.len() > 1 => {
                let model_type = &folder.config.model_type;
                return Err(anyhow!(
                    "{}: a {model_type} model cannot be divided into pipeline stages",
                    config.display()
                ));
            }
            (None, Some(config)) => {
                let params = load(config.specs())?;
                (Language::EncoderDecoder(Box::new(EncoderDecoder::new(config, &params, Policy::Keep))), params)
            }
            (None, None) => {
                let model_type = &folder.config.model_type;
                let instead = match (is_diffusion(&folder), foundation.as_policy()) {
                    (true, _) => "; use `loongforge sample` to make pictures and clips with it",
                    (_, Some(_)) => "; use `loongforge act` or `loongforge serve-policy` for its actions",
                    _ => "",
                };
                return Err(anyhow!(
                    "{}: a {model_type} model is not a language model and has no token scores{instead}",
                    config.display()
                ));
            }
        };
        Ok(Self { towers, language, params, folder, ranks: None, devices: devices.to_vec() })
    }

    /// Works like [`ForwardModel::load`] with the decoder's layers split among as many ranks as there are `devices`, each a thread of
    /// this process. This thread is the first of them, and has the towers.
    ///
    /// # Errors
    /// Fails as [`ForwardModel::load`] does, and where the decoder cannot be split so, there are adapters, or a rank does not come.
    pub fn load_among(folders: &ModelFolders, kind: Kind, devices: &[Device]) -> Result<Self> {
        let ModelFolders { weights, adapters, config } = folders;
        if adapters.is_some() {
            return Err(anyhow!(
                "{}: adapters can only be used on one rank: merge them with `loongforge checkpoint export-hf` first",
                config.display()
            ));
        }
        let folder = ModelFolder::open_plain(config)?;
        let Some(whole) = folder.config.decoder() else {
            let model_type = &folder.config.model_type;
            return Err(anyhow!("{}: a {model_type} model cannot be split among ranks", config.display()));
        };
        expect_tied_head(weights, &folder.config, &[])?;
        let (DecoderPart { decoder, params }, ranks) = Ranks::start(whole, weights, kind, devices)?;
        let load = |specs: Vec<ParamSpec>| -> Result<Rc<ParamStore>> {
            let params = ParamStore::new(specs, kind, devices[0]);
            load_weights(&params, weights)?;
            params.set_trainable(false);
            Ok(Rc::new(params))
        };
        let tower = |(it, input): (&ModelTower, &FeatureInput)| LoadedTower::load(it, input, load);
        let towers = folder.config.towers.iter().zip(folder.config.inputs()).map(tower).collect::<Result<_>>()?;
        let (language, devices) = (Language::Decoder(vec![decoder]), devices.to_vec());
        Ok(Self { towers, language, params, folder, ranks: Some(ranks), devices })
    }

    /// Returns whether a rank has failed, or a device computes nothing any more, so that [`ForwardModel::continue_each`] always will.
    pub fn has_failed(&self) -> bool {
        self.ranks.as_ref().is_some_and(Ranks::have_failed) || !self.devices.iter().copied().all(computes)
    }

    /// Continues each prompt as its own decoding says, on all ranks; see [`generate_each`].
    ///
    /// # Errors
    /// Another rank has ended, or did not answer in time.
    pub fn continue_each(
        &self,
        prompts: &[Prompt],
        decodings: &[Decoding],
        hear: &mut dyn FnMut(usize, Continued) -> bool,
    ) -> Result<()> {
        let each: Vec<&Decoding> = decodings.iter().collect();
        match (&self.language, &self.ranks) {
            (Language::Decoder(stages), Some(ranks)) => {
                return ranks.continue_each(&stages[0], prompts, decodings, hear);
            }
            (Language::Decoder(stages), None) => generate_each(stages, prompts, &each, hear),
            (Language::EncoderDecoder(both), _) => both.answer_each(prompts, &each, hear),
        }
        Ok(())
    }

    /// Returns the folder that the model was loaded from, with its config.
    pub fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    /// Returns the kind of the weights.
    pub fn kind(&self) -> Kind {
        self.params.flat().kind()
    }

    /// Returns the prompt that a continuation of the sample starts from.
    pub fn prompt(&self, sample: &Sample) -> Prompt {
        let samples = [sample];
        Prompt {
            input_ids: sample.input_ids.clone(),
            position_ids: self.position_ids(&samples),
            feature_rows: self.feature_rows(&sample.input_ids),
            features: self.features(&samples),
        }
    }

    /// Returns the scores of the samples' targets, in their order; the samples are packed into one row, in which none sees another.
    ///
    /// # Errors
    /// The device failed, or the model is in stages.
    pub fn score(&self, samples: &[&Sample]) -> Result<TokenScores> {
        let (mut input_ids, mut labels, mut cu_seqlens) = (Vec::new(), Vec::new(), vec![0]);
        for sample in samples {
            input_ids.extend_from_slice(&sample.input_ids);
            labels.extend_from_slice(&sample.targets);
        }
        for &len in samples.iter().flat_map(|sample| SampleMeta::document_lens(&sample.meta)) {
            cu_seqlens.push(cu_seqlens[cu_seqlens.len() - 1] + len as usize);
        }
        let feature_rows = self.feature_rows(&input_ids);
        let decoder = match &self.language {
            Language::Decoder(stages) => match stages.as_slice() {
                [decoder] => decoder,
                _ => {
                    return Err(anyhow!(
                        "a model in pipeline stages can only generate answers; scores need a model on one device"
                    ));
                }
            },
            Language::EncoderDecoder(both) => {
                let positions: Vec<f32> =
                    samples.iter().flat_map(|it| &it.position_ids[..it.input_ids.len()]).copied().collect();
                let features: Vec<Tensor> = self.features(samples).into_iter().flatten().collect();
                let samples = AnsweredSamples {
                    ids: &input_ids,
                    positions: &positions,
                    targets: &labels,
                    cu_seqlens: &cu_seqlens,
                    feature_rows: feature_rows.concat(),
                };
                return Ok(both.score(&self.params, &samples, &features)?);
            }
        };
        let batch = TextBatch {
            mask: decoder.config().sees.mask_of(&input_ids, &cu_seqlens, &labels),
            feature_rows,
            input_ids: Tensor::from_slice(&input_ids),
            position_ids: self.position_ids(samples),
            cu_seqlens,
            row: None,
            past: None,
            shared: None,
        };
        Ok(decoder.score(&self.params, &batch, &labels, &self.features(samples))?)
    }

    /// Returns the positions `[3, T]`, or `[T]` where the model's positions have one axis.
    fn position_ids(&self, samples: &[&Sample]) -> Tensor {
        let of = |sample: &&Sample| Tensor::from_slice(&sample.position_ids).view([3, -1]);
        let positions = Tensor::cat(&samples.iter().map(of).collect::<Vec<_>>(), 1);
        let has_three_axes = matches!(&self.language, Language::Decoder(stages) if stages[0].config().has_three_axes());
        if has_three_axes { positions } else { positions.get(0) }
    }

    /// Returns the tokens that features replace, by tower.
    fn feature_rows(&self, input_ids: &[i64]) -> Vec<Vec<i64>> {
        self.towers.iter().map(|tower| tower.input.rows(input_ids)).collect()
    }

    /// Returns the outputs `[features, D]` of each tower for all items of the samples, one for each level; none without such items.
    fn features(&self, samples: &[&Sample]) -> Vec<Vec<Tensor>> {
        self.towers.iter().map(|tower| tower.features(samples)).collect()
    }
}

/// Returns whether a device computes. Behind an error in a kernel, such as an index that is out of range, a GPU does not: every later call
/// of the process has that error.
pub fn computes(device: Device) -> bool {
    Tensor::f_zeros([1], (Kind::Float, device)).and_then(|zero| zero.f_double_value(&[0])).is_ok()
}

/// Divides a decoder into `num` stages, with as many layers as any other, or one more in the first ones.
fn stages_of(config: &DecoderConfig, num: usize) -> Result<Vec<Stage>, StageError> {
    let layers = config.num_layers();
    let ranges = Pipeline { ranks: num, virtual_stages: 1 }.layers(layers);
    let stages = Stage::all(ranges.ok_or(StageError::TooMany { stages: num, layers })?);
    stages.iter().try_for_each(|stage| stage.check(config))?;
    Ok(stages)
}

impl LoadedTower {
    /// `load` makes parameters with their weights. Its outputs are for `input`.
    ///
    /// # Errors
    /// Fails if `load` does.
    pub fn load(
        tower: &ModelTower,
        input: &FeatureInput,
        load: impl Fn(Vec<ParamSpec>) -> Result<Rc<ParamStore>>,
    ) -> Result<Self> {
        let params = load(tower.family.specs())?;
        Ok(Self { input: input.clone(), model: tower.family.build(&params, Policy::Keep), params })
    }

    #[cfg(test)]
    pub(crate) fn tower(&self) -> loongforge_core::message::Tower {
        self.input.tower
    }

    /// Returns the tower's outputs for all its items of the samples; none without such. Each level is `[features, D]`.
    pub fn features(&self, samples: &[&Sample]) -> Vec<Tensor> {
        let (model, params) = (&self.model, &self.params);
        let media = samples.iter().flat_map(|sample| &sample.media).filter(|item| item.tower == self.input.tower);
        let media: Vec<&Media> = media.collect();
        if media.is_empty() {
            return Vec::new();
        }
        let grids: Vec<Grid> = media.iter().map(|item| item.grid).collect();
        let pixels = media.iter().map(|item| Tensor::from_slice(&item.pixels).view([item.grid.num_cells() as i64, -1]));
        let pixels = Tensor::cat(&pixels.collect::<Vec<_>>(), 0);
        let pixels = pixels.to_device(params.flat().device());
        // In bfloat16 ids would become others.
        let pixels = if model.takes_ids() { pixels } else { pixels.to_kind(params.flat().kind()) };
        let recorded = model.record_items(&grids, &pixels).expect("the items were made here");
        let mut run = Execution::forward_only(recorded.tape, params.clone(), vec![(recorded.pixels, pixels)]);
        run.forward().expect("there is no other rank");
        recorded.outputs.iter().map(|&slot| run.value(slot).shallow_clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_that_is_there_computes() {
        assert!(computes(Device::Cpu) && !computes(Device::Cuda(99)));
    }
}
