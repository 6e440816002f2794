//! A processor from the files of a model folder.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;

use super::loading::MediaLoader;
use super::notes::Notes;
use super::room::PackRoom;
use super::towers::Towers;
use super::{Pairs, ProcessorFolders, ProcessorOptions};
use crate::config::{JsonMap, Learn, Phase, TooLong};
use crate::data::audio::SoundChanges;
use crate::data::card::{EncoderDecoder, ModelCard};
use crate::data::decoder::MediaDecoder;
use crate::data::error::DataError;
use crate::data::in_process::InProcess;
use crate::data::limits::Limits;
use crate::data::media::{MediaKind, MediaProcessor};
use crate::data::positions::PositionKind;
use crate::data::tally::Tally;
use crate::data::template::{ChatTemplate, FLORENCE2, built_in};
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizer_file::read_json_if_exists;

/// Shared by the threads that make samples.
pub struct Processor {
    pub(super) tokenizer: Tokenizer,
    /// `None` where the model has none, which base models do not need.
    pub(super) template: Option<ChatTemplate>,
    /// The system message of conversations that have none.
    pub(super) system: Option<String>,
    pub(super) towers: Towers,
    /// Tells, by kind, whether the template writes files itself.
    pub(super) writes: [bool; MediaKind::ALL.len()],
    pub(super) positions: PositionKind,
    /// Prompts see all of themselves: pictures come before what is learned.
    pub(super) has_prefixes: bool,
    /// The rules of samples of a model whose encoder reads the prompt; `None`: one decoder reads all.
    pub(super) encoder_decoder: Option<EncoderDecoder>,
    pub(super) phase: Phase,
    pub(super) learn: Learn,
    pub(super) weighs_samples: bool,
    pub(in crate::data) pairs: Pairs,
    pub(super) notes: Notes,
    /// A note about the parts of the model's config that training does not apply.
    model_note: Option<String>,
    pub(super) equal_answers: Tally,
    pub(super) loader: MediaLoader,
    pub(super) room: PackRoom,
    pub(super) too_long: TooLong,
}

impl Processor {
    /// Opens the processor from the files of a model folder: the tokenizer, `tokenizer_config.json`, the chat template and, where
    /// `config` has a vision or an audio tower, `preprocessor_config.json` and `video_preprocessor_config.json`. `config` is the model's
    /// `config.json`.
    ///
    /// # Errors
    /// A file is missing, wrong or of another model; for `sft`, also the chat template.
    pub fn open(model_dir: &Path, config: &Json, options: &ProcessorOptions) -> Result<Self, DataError> {
        Self::open_from(ProcessorFolders::of(model_dir), config, options)
    }

    /// Works like [`Processor::open`], with files of other folders.
    ///
    /// # Errors
    /// Fails as [`Processor::open`] does.
    pub fn open_from(
        folders: ProcessorFolders<'_>,
        config: &Json,
        options: &ProcessorOptions,
    ) -> Result<Self, DataError> {
        if let Some(name) = &options.maker {
            let reason = format!("`{name}` makes the samples, but what is asked for here needs the built-in maker");
            return Err(DataError::file(Path::new("data.maker"), reason));
        }
        let model_dir = folders.model;
        let config = ModelCard::of(config).thinker();
        let tokenizer_config = read_json_if_exists(&model_dir.join("tokenizer_config.json"))?;
        let tokenizer = Tokenizer::open(model_dir, config, &tokenizer_config)?;
        let encoder_decoder = ModelCard::of(config).encoder_decoder();
        let source = match built_in(options.template) {
            Some(source) => Some(source.to_owned()),
            // No published folder has one: transformers' processor writes the text itself.
            None => ChatTemplate::find(model_dir, &tokenizer_config)?
                .or_else(|| encoder_decoder.is_some().then(|| FLORENCE2.to_owned())),
        };
        let template = source.map(|source| ChatTemplate::new(&source, &tokenizer_config)).transpose()?;
        let template = template.map(|template| template.with_kwargs(options.template_kwargs.clone())).transpose()?;
        let of_tools = match built_in(options.template) {
            Some(_) => None,
            None => ChatTemplate::find_tool_use(model_dir, &tokenizer_config)?,
        };
        let of_tools = of_tools.map(|source| ChatTemplate::new(&source, &tokenizer_config)).transpose()?;
        let template = template.map(|template| match of_tools {
            Some(other) => template.with_tool_use(other),
            None => template,
        });
        if template.is_none() && options.learned.phase == Phase::Sft {
            return Err(no_template(model_dir));
        }
        let towers = Towers::open(folders, config, &tokenizer, options)?;
        let hears_videos =
            towers.audio.is_some() && towers.vision.as_ref().is_some_and(|vision| vision.clock().is_some());
        if options.video.sound && !hears_videos {
            return Err(DataError::file(model_dir, "data.video.sound: this model does not take the sound of videos"));
        }
        let changes = options.changes.clone().filter(|_| towers.audio.is_some());
        let changes = changes.map(|(augment, seed)| SoundChanges::open(augment, seed)).transpose()?;
        let mut processor = Self {
            positions: ModelCard::of(config).positions(),
            has_prefixes: ModelCard::of(config).has_prefixes() || encoder_decoder.is_some(),
            encoder_decoder,
            tokenizer,
            template,
            system: options.system.clone(),
            towers,
            writes: [true; MediaKind::ALL.len()],
            phase: options.learned.phase,
            learn: options.learned.learn,
            weighs_samples: options.weighs_samples,
            pairs: options.pairs,
            notes: Notes::default(),
            model_note: ModelCard::of(config).note(),
            equal_answers: Tally::new("pairs whose answers are equal, so that neither is preferred"),
            loader: MediaLoader {
                decoder: Arc::new(InProcess),
                limits: Limits::from(&options.image),
                video_sound: options.video.sound,
                changes,
            },
            room: PackRoom {
                max_tokens: options.max_tokens,
                max_images: options.max_images,
                max_visual_tokens: options.max_visual_tokens,
            },
            too_long: options.too_long,
        };
        processor.writes = MediaKind::ALL.map(|kind| processor.template_writes(kind));
        Ok(processor)
    }

    /// Lets `decoder` decode pictures, videos and recordings; else this process does.
    pub fn with_decoder(self, decoder: Arc<dyn MediaDecoder>) -> Self {
        Self { loader: MediaLoader { decoder, ..self.loader }, ..self }
    }

    /// Refuses samples of more tokens, those with many pictures before these are decoded.
    #[must_use]
    pub fn with_max_tokens(self, max_tokens: usize) -> Self {
        Self { room: PackRoom { max_tokens, ..self.room }, ..self }
    }

    /// Sets variables of the chat template for every conversation, over those of the options.
    ///
    /// # Errors
    /// There is no chat template, or it has no such variable.
    pub fn with_template_kwargs(self, kwargs: JsonMap) -> Result<Self, DataError> {
        self.expect_template()?;
        let template = self.template.map(|template| template.with_kwargs(kwargs)).transpose()?;
        Ok(Self { template, ..self })
    }

    /// Returns the foundation's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Returns the processor of pictures and videos; `None` for models that see nothing.
    pub fn media_processor(&self) -> Option<&dyn MediaProcessor> {
        self.towers.vision.as_deref()
    }

    /// Returns whether the model hears recordings.
    pub fn hears(&self) -> bool {
        self.towers.audio.is_some()
    }

    /// Returns the rules of samples of a model whose encoder reads the prompt and whose decoder writes the answer; `None`: one decoder
    /// does both.
    pub fn encoder_decoder(&self) -> Option<&EncoderDecoder> {
        self.encoder_decoder.as_ref()
    }

    /// Returns the phase of training, which decides what of a sample is learned (`train.phase`).
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns notes for the user about the conversations so far, each with its count.
    pub fn notes(&self) -> Vec<String> {
        let contexts = self.towers.contexts.as_ref().and_then(|contexts| contexts.notes());
        let of_model = self.model_note.clone();
        self.notes.lines().into_iter().chain(self.equal_answers.line()).chain(contexts).chain(of_model).collect()
    }

    /// # Errors
    /// The model has no chat template, and none was chosen.
    pub fn expect_template(&self) -> Result<&ChatTemplate, DataError> {
        self.template.as_ref().ok_or_else(|| no_template(Path::new("the model")))
    }
}

fn no_template(model_dir: &Path) -> DataError {
    DataError::file(model_dir, "no chat template (chat_template.jinja); set data.template to a built-in one")
}
