//! The settings of a run for its samples.

use std::path::Path;

use crate::config::{
    AudioAugment, AudioLimits, Data, FrameSize, ImageLimits, JsonMap, Latents, Learn, LossWeighting, Per, Phase,
    Policy, PreferenceLoss, RunConfig, Template, TooLong, Train, TrainFile, VideoLimits,
};
use crate::message::Tower;

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

impl<'a> ProcessorFolders<'a> {
    /// Takes the model's folder for all of them.
    pub fn of(model: &'a Path) -> Self {
        Self { model, media: model, text: None }
    }
}

/// Describes how samples are made, whatever the model.
#[derive(Clone, Debug)]
pub struct ProcessorOptions {
    pub template: Template,
    /// Variables of the chat template.
    pub template_kwargs: JsonMap,
    /// The system message of conversations that have none.
    pub system: Option<String>,
    /// The maker of samples that the program has registered under this name; `None`: the built-in one.
    pub maker: Option<String>,
    pub image: ImageLimits,
    pub video: VideoLimits,
    pub audio: AudioLimits,
    /// Random changes of the recordings of training samples, and the run's seed, which draws them; `None`: none.
    pub changes: Option<(AudioAugment, u64)>,
    /// A longer sample is refused, or truncated.
    pub max_tokens: usize,
    pub too_long: TooLong,
    /// A sample with more pictures and videos, or more tokens of them, is refused.
    pub max_images: usize,
    pub max_visual_tokens: usize,
    pub learned: Learned,
    /// Samples are weighed by their targets, which packs made ahead of time do not tell apart.
    pub weighs_samples: bool,
    /// The kind of samples that pairs of answers make.
    pub pairs: Pairs,
    /// The options that only the maker of a diffusion model's samples reads.
    pub flow: FlowOptions,
    /// The options that only the maker of a robot policy's samples reads.
    pub policy: PolicyOptions,
}

/// Describes how samples of a robot policy are made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyOptions {
    pub settings: Policy,
    /// The run's seed: it draws changes of pictures.
    pub seed: u64,
    /// The sets whose statistics normalize, those that are trained on; empty: what the model's folder says.
    pub sets: Vec<TrainFile>,
    /// True if the vision-language model of a GR00T is a tower of its own, so that pictures and task are an item of that.
    pub prefix_tower: bool,
}

/// Describes how samples of a diffusion model are made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowOptions {
    /// The run's seed: it chooses captions and places of clips.
    pub seed: u64,
    /// The part of visits without a prompt.
    pub dropout: f64,
    /// The part of visits without the pictures that the model is given.
    pub condition_dropout: f64,
    /// The loss is a mean over tokens, not over samples.
    pub per_token: bool,
    /// Masks of records weigh the loss.
    pub masks: bool,
    /// Latents are drawn from what the autoencoder gives.
    pub draws_latents: bool,
    /// The samples that are to be made; `None`: as large as the record's own picture, without guidance.
    pub sampled: Option<Sampled>,
}

/// Describes the samples that a diffusion model is to make.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// The words by which errors name `size` and `frames`.
    pub asked_by: AskedBy,
    /// `None`: that of the record's own picture or clip.
    pub size: Option<FrameSize>,
    pub frames: Option<usize>,
    /// The negative prompt of guidance, or `None` for the model's own.
    pub negative: Option<Option<String>>,
    /// A prompt may have no picture though the model is always given some: it has learned to go without (`data.condition_dropout`).
    pub goes_without: bool,
}

/// Says where a user has asked for samples: in a run's config, or by options of the command `sample`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AskedBy {
    #[default]
    Config,
    Options,
}

impl AskedBy {
    /// Returns the name of `key` of the section `sample` there.
    pub fn name(self, key: &str) -> String {
        match self {
            Self::Config => format!("sample.{key}"),
            Self::Options => format!("--{key}"),
        }
    }
}

/// Says what is made of pairs of answers, and of labeled ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pairs {
    /// They are read as any other sample.
    #[default]
    Shown,
    /// A run learns from them and from nothing else; with a `reference` model it needs what that reads, too.
    Learned { reference: bool },
    /// A run learns from labeled answers in groups of so many, and from nothing else.
    Grouped { size: usize },
    /// A run learns neither from them nor from labeled answers.
    Refused,
}

/// The parts of samples that count in the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    pub phase: Phase,
    pub learn: Learn,
}

impl From<Phase> for Learned {
    /// Returns the options by which every answer is learned.
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
    /// Makes the options of data that teaches what `learned` says; all that only some models have is left out.
    pub fn new(data: &Data, learned: impl Into<Learned>) -> Self {
        let Data { template, image, video, pack, .. } = *data;
        let (template_kwargs, maker) = (data.template_kwargs.clone(), data.maker.clone());
        let [max_images, max_visual_tokens] =
            [pack.max_images, pack.max_visual_tokens].map(|limit| limit.unwrap_or(usize::MAX));
        let (max_tokens, too_long) = (pack.max_tokens, pack.too_long);
        Self {
            template,
            template_kwargs,
            system: data.system.clone(),
            maker,
            image,
            video,
            audio: data.audio.limits(),
            changes: None,
            max_tokens,
            too_long,
            max_images,
            max_visual_tokens,
            learned: learned.into(),
            weighs_samples: false,
            pairs: Pairs::default(),
            flow: FlowOptions {
                dropout: data.caption_dropout.unwrap_or(0.0),
                condition_dropout: data.condition_dropout.unwrap_or(0.0),
                masks: data.masks,
                ..FlowOptions::default()
            },
            policy: PolicyOptions::default(),
        }
    }

    /// Returns the options of a run: for `data`, its own or that of a held-out set.
    pub fn of_run(config: &RunConfig, data: &Data) -> Self {
        let mut options = Self::new(data, &config.train);
        let (settings, sets) = (config.policy.clone(), config.data.train.clone());
        let prefix_tower = config.pools.names(Tower::Text);
        options.policy = PolicyOptions { settings, sets, seed: config.run.seed, prefix_tower };
        options.pairs = match &config.train.preference {
            Some(preference) if preference.loss == PreferenceLoss::Kto => {
                Pairs::Grouped { size: preference.num_grouped() }
            }
            Some(preference) => Pairs::Learned { reference: preference.loss.needs_reference() },
            None => Pairs::Refused,
        };
        options.weighs_samples = config.train.loss_weighting != LossWeighting::Token;
        options.changes = data.audio.augment.clone().map(|augment| (augment, config.run.seed));
        options.flow.seed = config.run.seed;
        options.flow.draws_latents = config.train.latents == Latents::Sample;
        options.flow.per_token = config.train.loss.is_some_and(|loss| loss.per == Per::Token);
        options.flow.sampled = config.sample.as_ref().map(|sample| Sampled {
            asked_by: AskedBy::Config,
            size: sample.size,
            frames: sample.frames,
            negative: sample.guidance.iter().any(|guidance| *guidance != 1.0).then(|| sample.negative.clone()),
            // Of prompts none is dropped, so that `data` does not say it.
            goes_without: config.data.condition_dropout.is_some_and(|dropout| dropout > 0.0),
        });
        options
    }
}

impl Default for ProcessorOptions {
    /// Makes the options that the model's files say, for any length; a chat template is not needed until it is used.
    fn default() -> Self {
        Self {
            template: Template::FromModel,
            template_kwargs: JsonMap::default(),
            system: None,
            maker: None,
            image: ImageLimits::default(),
            video: VideoLimits::default(),
            audio: AudioLimits::default(),
            changes: None,
            max_tokens: usize::MAX,
            too_long: TooLong::Skip,
            max_images: usize::MAX,
            max_visual_tokens: usize::MAX,
            learned: Phase::Pretrain.into(),
            weighs_samples: false,
            pairs: Pairs::default(),
            flow: FlowOptions::default(),
            policy: PolicyOptions::default(),
        }
    }
}
