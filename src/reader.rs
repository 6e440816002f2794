//! A trained model that answers questions about pictures: a checkpoint's folder, encoder and decoder in one thread.

use crate::base::ModelFolders;
use crate::folder::ModelFolder;
use anyhow::{Context, Result};
use loongforge_core::data::{Conversation, Locator, MediaSource, Part, Processor, ProcessorOptions, Sample, Turn};
use loongforge_core::message::{Grid, SampleId};
use loongforge_torch::model::{Decoder, Decoding, EncoderModel, Prompt, Sampling, generate};
use loongforge_torch::nn::ParamStore;
use loongforge_torch::tape::{Execution, Policy};
use loongforge_torch::train::hf::Checkpoint;
use loongforge_torch::train::{Adapters, load_weights};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use tch::{Device, Kind, Tensor};

/// Answers many questions at a time.
pub struct Reader {
    encoder: Option<(Box<dyn EncoderModel>, Rc<ParamStore>)>,
    decoder: Decoder,
    processor: Processor,
    placeholders: Vec<i64>,
    stop_token_ids: Vec<i64>,
}

impl Reader {
    /// Loads a Hugging Face folder, for example a checkpoint of a run, in float32. Where it holds adapters alone, they are
    /// added to their base.
    ///
    /// # Errors
    /// The folder lacks a file, or it is torn or of a model that is not built in.
    pub fn open(folder: &Path, device: Device) -> Result<Self> {
        let ModelFolders { weights, adapters, config } = ModelFolders::find(folder, None)?;
        let model = ModelFolder::open_plain(&config)?;
        let open = |folder: &PathBuf| -> Result<Adapters> {
            Ok(Adapters::open(folder, &model.config, &Checkpoint::open(&weights)?)?)
        };
        let adapters = adapters.as_ref().map(open).transpose()?;
        let load = |specs| -> Result<Rc<ParamStore>> {
            let params = ParamStore::new(specs, Kind::Float, device);
            load_weights(&params, &weights)?;
            params.set_trainable(false);
            adapters.iter().for_each(|adapters| adapters.add_to(&params));
            Ok(Rc::new(params))
        };
        let encoder = match &model.config.encoder {
            Some(family) => {
                let params = load(family.specs())?;
                Some((family.build(&params, Policy::Keep), params))
            }
            None => None,
        };
        let params = load(Decoder::specs(&model.config.decoder))?;
        let processor = Processor::open(&config, &model.json, &ProcessorOptions::default())?;
        Ok(Self {
            encoder,
            decoder: Decoder::new(&model.config.decoder, &params),
            placeholders: model.config.placeholders(),
            stop_token_ids: processor.tokenizer().special().end.iter().copied().collect(),
            processor,
        })
    }

    pub fn processor(&self) -> &Processor {
        &self.processor
    }

    /// What `text` about these pictures becomes before an answer: pictures first, as Qwen-VL's examples have them.
    ///
    /// # Errors
    /// A picture is missing or unusable.
    pub fn question(&self, text: &str, images: &[impl AsRef<Path>]) -> Result<Sample> {
        let mut turn = Turn::text("user", text);
        turn.parts.splice(0..0, images.iter().map(|_| Part::Image));
        let media =
            images.iter().map(|path| MediaSource::Image(Locator::File(path.as_ref().display().to_string()))).collect();
        let conversation = Conversation { turns: vec![turn], media };
        Ok(self.processor.prompt(SampleId(0), &conversation, Path::new(""))?)
    }

    /// `text` before it is continued.
    ///
    /// # Errors
    /// The tokenizer refuses it.
    pub fn text(&self, text: &str) -> Result<Sample> {
        Ok(self.processor.text_prompt(SampleId(0), text)?)
    }

    /// Answers of at most `max_new_tokens` tokens: the most likely ones, or by chance.
    ///
    /// # Errors
    /// The model made tokens that are no text.
    pub fn answer(
        &self,
        questions: &[&Sample],
        max_new_tokens: usize,
        sampling: Option<Sampling>,
    ) -> Result<Vec<String>> {
        let prompts: Vec<Prompt> = questions.iter().map(|question| self.prompt(question)).collect();
        let decoding = Decoding { max_new_tokens, stop_token_ids: self.stop_token_ids.clone(), sampling };
        let answers = generate(&self.decoder, &prompts, &decoding);
        let decode = |ids: &Vec<i64>| self.processor.tokenizer().decode(ids).context("decoding an answer");
        answers.iter().map(decode).collect()
    }

    fn prompt(&self, question: &Sample) -> Prompt {
        let len = question.input_ids.len() as i64;
        let positions = Tensor::from_slice(&question.position_ids).view([3, len]);
        let rows = question.input_ids.iter().enumerate().filter(|(_, id)| self.placeholders.contains(id));
        Prompt {
            input_ids: question.input_ids.clone(),
            position_ids: if self.decoder.config().has_three_axes() { positions } else { positions.get(0) },
            feature_rows: rows.map(|(row, _)| row as i64).collect(),
            features: self.features(question),
        }
    }

    fn features(&self, question: &Sample) -> Vec<Tensor> {
        let Some((encoder, params)) = self.encoder.as_ref().filter(|_| !question.media.is_empty()) else {
            return Vec::new();
        };
        let grids: Vec<Grid> = question.media.iter().map(|item| item.grid).collect();
        let pixels: Vec<Tensor> = question
            .media
            .iter()
            .map(|item| Tensor::from_slice(&item.pixels).view([item.grid.num_patches() as i64, -1]))
            .collect();
        let recorded = encoder.record(&grids);
        let pixels = Tensor::cat(&pixels, 0).to_device(params.flat().device());
        let mut run = Execution::forward_only(recorded.tape, params.clone(), vec![(recorded.pixels, pixels)]);
        run.forward().expect("there is no other rank");
        recorded.outputs.iter().map(|&slot| run.value(slot).shallow_clone()).collect()
    }
}
