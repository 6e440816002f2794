//! What a run says of samples.

use crate::config::{Data, ImageLimits, Phase, Template, TooLong, VideoLimits};

/// How samples are made, whatever the model.
#[derive(Clone, Debug)]
pub struct ProcessorOptions {
    pub template: Template,
    pub image: ImageLimits,
    pub video: VideoLimits,
    /// A longer sample is refused, or truncated.
    pub max_tokens: usize,
    pub too_long: TooLong,
    /// A sample with more pictures and videos, or more tokens of them, is refused.
    pub max_images: usize,
    pub max_visual_tokens: usize,
    pub phase: Phase,
}

impl ProcessorOptions {
    pub fn new(data: &Data, phase: Phase) -> Self {
        let Data { template, image, video, pack, .. } = *data;
        let [max_images, max_visual_tokens] =
            [pack.max_images, pack.max_visual_tokens].map(|limit| limit.unwrap_or(usize::MAX));
        let (max_tokens, too_long) = (pack.max_tokens, pack.too_long);
        Self { template, image, video, max_tokens, too_long, max_images, max_visual_tokens, phase }
    }
}

impl Default for ProcessorOptions {
    /// As the model's files say, of any length; a chat template is not needed until it is used.
    fn default() -> Self {
        Self {
            template: Template::FromModel,
            image: ImageLimits::default(),
            video: VideoLimits::default(),
            max_tokens: usize::MAX,
            too_long: TooLong::Skip,
            max_images: usize::MAX,
            max_visual_tokens: usize::MAX,
            phase: Phase::Pretrain,
        }
    }
}
