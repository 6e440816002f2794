//! The prompts of samples: which caption a visit takes, when there is none, and the text that a tower is given.

use std::borrow::Cow;

use image::RgbImage;
use serde_json::Value as Json;

use super::clean::cleaned;
use super::edits::PromptPictures;
use crate::data::card::ModelCard;
use crate::data::contexts::TextProcessor;
use crate::data::error::DataError;
use crate::data::processor::ProcessorFolders;
use crate::data::sample::Media;
use crate::data::tally::Tally;
use crate::message::SampleId;
use crate::rng::Counter;

/// Tells the random numbers of captions from others of the same seed and sample.
const PURPOSE: u64 = 0x0063_6170_7469_6f6e;
/// Makes items of captions.
pub struct Captions {
    text: TextProcessor,
    /// The form of pictures in a prompt; `None` of a text tower that sees none.
    pictures: Option<PromptPictures>,
    /// The caption in place of one that is dropped.
    null: String,
    /// Texts are cleaned as Wan's pipeline does.
    cleans: bool,
    seed: u64,
    dropout: f64,
    empty: Tally,
}

impl Captions {
    /// Opens the captions of the diffusion model of `config`. The tokenizer is the file `folders.text`, or else the one that the model's
    /// folder has for the text tower: `text_tokenizer.json`, a folder `tokenizer`, or its own.
    ///
    /// # Errors
    /// The tokenizer is missing or has more tokens than the tower, or the config's section `text` is wrong.
    pub fn open(folders: ProcessorFolders<'_>, config: &Json, (seed, dropout): (u64, f64)) -> Result<Self, DataError> {
        let mut config = config.clone();
        let is_wan = config["transformer"]["_class_name"] == "WanTransformer3DModel";
        if config["text"].is_null() {
            config["text"] = ModelCard::of(&config).text_defaults().unwrap_or_default();
        }
        let inner = folders.model.join("tokenizer");
        let dir = if inner.is_dir() { &inner } else { folders.model };
        let text = TextProcessor::open(ProcessorFolders { model: dir, ..folders }, &config)?;
        let text = text.ok_or_else(|| DataError::file(&dir.join("config.json"), "has no text_encoder"))?;
        // The null prompt of the pipeline; a tokenizer that puts nothing around a text makes no token of an empty one.
        let null = if is_wan && text.item("").is_ok() { "" } else { " " };
        let pictures = PromptPictures::open(folders.media, &config, &text)?;
        let empty = Tally::new("empty captions, learned as the null prompt");
        Ok(Self { text, pictures, null: null.to_owned(), cleans: is_wan, seed, dropout, empty })
    }

    /// Returns the prompt that a visit of a sample has: one of its captions, or the null prompt.
    pub fn choose<'a>(&'a self, id: SampleId, captions: &'a [String]) -> &'a str {
        let Some(number) = self.number(id, captions.len()) else { return &self.null };
        if captions[number].trim().is_empty() {
            self.empty.add();
        }
        &captions[number]
    }

    /// Returns the number of the caption that a visit has, of so many; `None`: the null prompt.
    pub fn number(&self, id: SampleId, num_captions: usize) -> Option<usize> {
        let numbers = Counter::new(&[self.seed, id.0, PURPOSE]);
        let number = ((numbers.unit(1) * num_captions as f64) as usize).min(num_captions - 1);
        (numbers.unit(0) >= self.dropout).then_some(number)
    }

    /// Returns the prompt that guidance leads away from where nobody names one.
    pub fn null(&self) -> &str {
        &self.null
    }

    /// Makes the item of a text, with pictures before it; an empty one is the null prompt.
    ///
    /// # Errors
    /// Nothing is left of it, or the text tower cannot be shown the pictures.
    pub fn item(&self, text: &str, shown: &[RgbImage]) -> Result<Media, DataError> {
        let text = if self.cleans { Cow::Owned(cleaned(text)) } else { Cow::Borrowed(text) };
        let text = if text.is_empty() { Cow::Borrowed(self.null.as_str()) } else { text };
        let reason = |reason| DataError::Line(format!("its prompt: {reason}"));
        match &self.pictures {
            Some(pictures) if !shown.is_empty() => pictures.item(&self.text, &text, shown),
            _ => self.text.item(&text),
        }
        .map_err(reason)
    }

    /// Returns the form of edited pictures in a prompt; `None` of a text tower that sees none.
    pub fn pictures(&self) -> Option<&PromptPictures> {
        self.pictures.as_ref()
    }

    /// Returns notes for the user about the captions so far, a line each.
    pub fn notes(&self) -> Vec<String> {
        self.text.notes().into_iter().chain(self.empty.line()).collect()
    }
}
