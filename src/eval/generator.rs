//! A trained model that answers questions about pictures and recordings: a checkpoint's folder, encoder and decoder in one thread.

use crate::eval::forward::ForwardModel;
use crate::model::folder::ModelFolder;
use crate::model::locate::ModelFolders;
use anyhow::{Context, Result};
use loongforge_core::data::{
    Conversation, Locator, MediaDecoder, MediaSource, Part, Processor, ProcessorOptions, Sample, Turn,
};
use loongforge_core::message::SampleId;
use loongforge_torch::model::{Continued, Decoding, Prompt, Sampling};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tch::{Device, Kind};

/// Answers many questions at a time.
pub struct Reader {
    model: ForwardModel,
    processor: Processor,
    stop_token_ids: Vec<i64>,
}

impl Reader {
    /// Loads a Hugging Face folder, for example a checkpoint of a run, in float32. Where it holds adapters alone, they are
    /// added to their base.
    ///
    /// # Errors
    /// The folder lacks a file, or it is torn or of a model that is not built in.
    pub fn open(folder: &Path, device: Device) -> Result<Self> {
        Self::open_as(folder, Kind::Float, device)
    }

    /// Works like [`Reader::open`], with weights of this kind in memory.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn open_as(folder: &Path, kind: Kind, device: Device) -> Result<Self> {
        Self::of(ForwardModel::load(&ModelFolders::find(folder, None)?, Some(kind), device)?)
    }

    /// Works like [`Reader::open_as`] on as many ranks as there are `devices`; see [`ForwardModel::load_among`].
    ///
    /// # Errors
    /// As there.
    pub fn open_among(folder: &Path, kind: Kind, devices: &[Device]) -> Result<Self> {
        Self::of(ForwardModel::load_among(&ModelFolders::find(folder, None)?, kind, devices)?)
    }

    /// Works like [`Reader::open_as`] in as many stages as there are `devices`; see [`ForwardModel::load_staged`].
    ///
    /// # Errors
    /// As there.
    pub fn open_staged(folder: &Path, kind: Kind, devices: &[Device]) -> Result<Self> {
        Self::of(ForwardModel::load_staged(&ModelFolders::find(folder, None)?, Some(kind), devices)?)
    }

    /// Lets a model answer that is loaded.
    ///
    /// # Errors
    /// Its folder lacks a file of its processor.
    pub fn of(model: ForwardModel) -> Result<Self> {
        let ModelFolder { path, json, .. } = model.folder();
        let processor = Processor::open(path, json, &ProcessorOptions::default())?;
        let stop_token_ids = model.folder().stop_token_ids(processor.tokenizer())?;
        Ok(Self { model, processor, stop_token_ids })
    }

    /// Lets `decoder` decode pictures and recordings; else this process does.
    pub fn with_decoder(self, decoder: Arc<dyn MediaDecoder>) -> Self {
        Self { processor: self.processor.with_decoder(decoder), ..self }
    }

    /// The tokens that end an answer.
    pub fn stop_token_ids(&self) -> &[i64] {
        &self.stop_token_ids
    }

    /// Returns the model that answers.
    pub fn model(&self) -> &ForwardModel {
        &self.model
    }

    /// Returns what makes tokens of prompts and text of answers.
    pub fn processor(&self) -> &Processor {
        &self.processor
    }

    /// Returns what `text` about these pictures and recordings becomes before an answer: pictures first, then recordings, as
    /// Qwen's examples have them.
    ///
    /// # Errors
    /// A file is missing or unusable, or the model takes none of its kind.
    pub fn question(&self, text: &str, images: &[PathBuf], recordings: &[PathBuf]) -> Result<Sample> {
        let mut turn = Turn::text("user", text);
        let parts = images.iter().map(|_| Part::Image).chain(recordings.iter().map(|_| Part::Audio));
        turn.parts.splice(0..0, parts);
        let file = |path: &PathBuf| Locator::File(path.display().to_string());
        let pictures = images.iter().map(|path| MediaSource::Image(file(path)));
        let media = pictures.chain(recordings.iter().map(|path| MediaSource::Audio(file(path).into()))).collect();
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
        let prompts: Vec<Prompt> = questions.iter().map(|question| self.model.prompt(question)).collect();
        let decoding =
            Decoding { max_new_tokens, stop_token_ids: self.stop_token_ids.clone(), sampling, ..Decoding::default() };
        let mut answers = vec![Vec::new(); prompts.len()];
        self.model.continue_each(&prompts, &vec![decoding; prompts.len()], &mut |index, continued| {
            if let Continued::Token(token) = continued {
                answers[index].push(token);
            }
            true
        })?;
        let decode = |ids: &Vec<i64>| self.processor.tokenizer().decode(ids).context("decoding an answer");
        answers.iter().map(decode).collect()
    }
}
