//! Describes what a run says of samples.

use std::path::Path;

use crate::config::{AudioLimits, Data, ImageLimits, JsonMap, Learn, Phase, Template, TooLong, Train, VideoLimits};

/// Names the folders that a processor is made of.
#[derive(Clone, Copy, Debug)]
pub struct ProcessorFolders<'a> {
    /// Tokenizer and chat template.
    pub model: &'a Path,
    /// The preprocessor configs of pictures, videos and sound.
    pub media: &'a Path,
    /// The file of the text tower's tokenizer; `None`: the one that the model's folder has for it, or else the model's.
    pub text: Option<&'a Path>,
}

/// Describes how samples are made, whatever the model.
#[derive(Clone, Debug)]
pub struct ProcessorOptions {
    pub template: Template,
    /// Variables of the chat template.
    pub template_kwargs: JsonMap,
    pub image: ImageLimits,
    pub video: VideoLimits,
    pub audio: AudioLimits,
    /// A longer sample is refused, or truncated.
    pub max_tokens: usize,
    pub too_long: TooLong,
    /// A sample with more pictures and videos, or more tokens of them, is refused.
    pub max_images: usize,
    pub max_visual_tokens: usize,
    pub learned: Learned,
}

/// Holds what counts in the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    pub phase: Phase,
    pub learn: Learn,
}

impl From<Phase> for Learned {
    /// Every answer.
    fn from(phase: Phase) -> Self {
        Self { phase, learn: Learn::All }
    }
}

impl From<&Train> for Learned {
    fn from(train: &Train) -> Self {
        Self { phase: train.phase, learn: train.learn }
    }
}

impl ProcessorOptions {
    pub fn new(data: &Data, learned: impl Into<Learned>) -> Self {
        let Data { template, image, video, audio, pack, .. } = *data;
        let template_kwargs = data.template_kwargs.clone();
        let [max_images, max_visual_tokens] =
            [pack.max_images, pack.max_visual_tokens].map(|limit| limit.unwrap_or(usize::MAX));
        let (max_tokens, too_long) = (pack.max_tokens, pack.too_long);
        Self {
            template,
            template_kwargs,
            image,
            video,
            audio,
            max_tokens,
            too_long,
            max_images,
            max_visual_tokens,
            learned: learned.into(),
        }
    }
}

impl Default for ProcessorOptions {
    /// Makes the options that the model's files say, for any length; a chat template is not needed until it is used.
    fn default() -> Self {
        Self {
            template: Template::FromModel,
            template_kwargs: JsonMap::default(),
            image: ImageLimits::default(),
            video: VideoLimits::default(),
            audio: AudioLimits::default(),
            max_tokens: usize::MAX,
            too_long: TooLong::Skip,
            max_images: usize::MAX,
            max_visual_tokens: usize::MAX,
            learned: Phase::Pretrain.into(),
        }
    }
}
