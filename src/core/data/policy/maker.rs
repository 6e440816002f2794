//! Makes the samples of a policy.

use std::path::Path;
use std::sync::Arc;

use image::RgbImage;
use serde_json::Value as Json;

use super::action_tokens::ActionTokens;
use super::augment::augmented;
use super::chat::Chat;
use super::fast::DecodedActions;
use super::observation::{CameraClip, LearnedActions, Observation};
use super::robots::{Robot, embodiment_of};
use super::scales::{is_replaced, name_of};
use super::spec::{ACTION, Family, STATE, SampleSpec};
use super::{data_names, delay, fastwam_spec, files, groot_spec, kept, robots};
use crate::config::Policy;
use crate::data::card::{fastwam_networks, is_fastwam, is_groot};
use crate::data::contexts::TextProcessor;
use crate::data::decoder::MediaDecoder;
use crate::data::error::DataError;
use crate::data::lerobot::{Dtype, Feature, Set, Step, Window};
use crate::data::limits::Limits;
use crate::data::processor::{ProcessorFolders, ProcessorOptions, guarded};
use crate::data::sample::Sample;
use crate::data::tally::Tally;
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizer_file::read_json_if_exists;
use crate::message::SampleId;

/// Makes samples for one policy, and actions of what it predicts.
pub struct PolicyMaker {
    /// The properties that all samples have in common, and those of the chosen robot.
    pub(super) spec: SampleSpec,
    robots: Vec<Robot>,
    /// The index of the robot that acts; `None`: there are several, and none was chosen.
    chosen: Option<usize>,
    /// Writes pictures and task as a chat, of a policy that is told so.
    pub(super) chat: Option<Chat>,
    /// Makes items of prompts, of a policy with a text tower.
    pub(super) texts: Option<TextProcessor>,
    /// The tokens of actions, of a policy that learns actions as tokens.
    pub(super) tokens: Option<ActionTokens>,
    pub(super) settings: Policy,
    /// The most actions that it has learned to be given of a chunk, where the model's folder says so.
    pub(super) learned_delay: Option<usize>,
    seed: u64,
    pub(super) tokenizer: Tokenizer,
    decoder: Arc<dyn MediaDecoder>,
    limits: Limits,
    pub(super) max_tokens: usize,
    pub(super) cut: Tally,
    /// Samples whose action tokens were cut off, and those with a coefficient below the smallest of FAST's tokenizer.
    pub(super) flawed: [Tally; 2],
    files: Vec<(String, Vec<u8>)>,
}

impl PolicyMaker {
    /// Opens the maker from the `config.json` of a policy and its tokenizer. Statistics are those of the sets that `options.policy`
    /// names; where it names none, those of the processor files in the model's folder.
    ///
    /// # Errors
    /// A file is missing or wrong, the config has a key that is not implemented, the data lacks all cameras, or statistics are
    /// missing.
    pub fn open(
        folders: ProcessorFolders<'_>,
        config: &Json,
        options: &ProcessorOptions,
        decoder: Arc<dyn MediaDecoder>,
    ) -> Result<Self, DataError> {
        let wrong = |reason: String| DataError::file(&folders.model.join("config.json"), reason);
        let policy = data_names::settled(folders.model, config, &options.policy)?;
        let spec = match () {
            () if is_groot(config) => groot_spec::read_with(config, &policy),
            () if is_fastwam(config) => fastwam_spec::read(config),
            () => SampleSpec::of(config),
        };
        let mut robots = robots::find(&spec.map_err(wrong)?, folders.model, &policy)?;
        let own = read_json_if_exists(&folders.model.join("tokenizer_config.json"))?;
        let (texts, mut tokenizer) = match &robots[0].spec.frames {
            Some(_) => open_texts(folders, config, &robots[0].spec).map(|(texts, own)| (Some(texts), own))?,
            None => (None, Tokenizer::open(folders.model, &Json::Null, &own)?),
        };
        if robots[0].spec.xvla.is_some() {
            tokenizer = tokenizer.cut_at(robots[0].spec.prompt.max_tokens)?;
            // lerobot fills up with what the tokenizer calls so.
            let named = own["pad_token"].as_str().or(own["pad_token"]["content"].as_str());
            let named = named.and_then(|token| tokenizer.id(token));
            for rules in robots.iter_mut().filter_map(|robot| robot.spec.xvla.as_mut()) {
                rules.pad_token = named.unwrap_or(rules.pad_token);
            }
        }
        let spec = robots[0].spec.clone();
        let chat = spec.groot.map(|groot| Chat::open(folders, config, options, groot.version)).transpose()?;
        if chat.is_none() && texts.is_none() && tokenizer.num_rows() > spec.placeholder + 1 {
            let (ids, rows) = (tokenizer.num_rows(), spec.placeholder + 1);
            let reason = format!("its tokenizer has {ids} ids, but the policy only {rows}");
            return Err(DataError::file(folders.model, reason));
        }
        let scales = &robots[0].scales;
        let stats = if chat.is_some() { scales.bounds() } else { scales.stats.clone() };
        let widths = robots.iter().map(|robot| robot.spec.action_dim).collect();
        let tokens = ActionTokens::open(&spec, &widths, folders.model, &policy.settings, &tokenizer, &own)?;
        let mut files = files::write(&spec, &stats, &scales.mask, &policy.settings).map_err(wrong)?;
        files.extend(tokens.iter().flat_map(ActionTokens::files).cloned());
        // The only one whose actions have times of their own, so that some can be given.
        if spec.family == Family::Pi05 {
            files.push((delay::FILE.to_owned(), delay::write(policy.settings.max_delay)));
        }
        if robots.iter().any(|robot| !robot.name.is_empty()) {
            let all: Vec<kept::Kept> = robots.iter().map(Robot::kept).collect();
            files.push((kept::FILE.to_owned(), kept::write(&all).map_err(wrong)?));
        }
        Ok(Self {
            settings: policy.settings,
            learned_delay: delay::read(folders.model)?,
            seed: policy.seed,
            limits: Limits::from(&options.image),
            max_tokens: options.max_tokens,
            cut: Tally::new(format!("prompts cut off after {} tokens (tokenizer_max_length)", spec.prompt.max_tokens)),
            flawed: [
                Tally::new(format!(
                    "samples whose action tokens were cut off after {} (max_action_tokens)",
                    spec.action_tokens.max_tokens
                )),
                Tally::new(
                    "samples with a coefficient below the smallest of the tokenizer of actions, which replaces it",
                ),
            ],
            tokens,
            spec,
            chosen: (robots.len() == 1).then_some(0),
            robots,
            chat,
            texts,
            tokenizer,
            decoder,
            files,
        })
    }

    /// Lets the robot of this name act; `None`: the only one.
    ///
    /// # Errors
    /// The reason: there is no such, or one of several must be named.
    pub fn choose(&mut self, name: Option<&str>) -> Result<(), String> {
        self.chosen = Some(robots::chosen(&self.robots, name)?);
        self.spec = self.robot()?.spec.clone();
        Ok(())
    }

    /// Returns the robot that acts.
    pub(super) fn robot(&self) -> Result<&Robot, String> {
        self.chosen.map_or_else(|| robots::chosen(&self.robots, None), Ok).map(|at| &self.robots[at])
    }

    /// Returns the robot that a set was recorded with.
    pub(super) fn robot_of(&self, set: &Set) -> Result<&Robot, String> {
        if self.settings.embodiments.is_empty() {
            return self.robot();
        }
        let name = embodiment_of(&self.settings, set)?;
        Ok(self.robots.iter().find(|robot| robot.name == name).expect("a robot for each embodiment of the settings"))
    }

    /// Makes a sample to learn from: what the step shows, and the actions from there on.
    ///
    /// # Errors
    /// A feature cannot be read or decoded, or a number is not finite.
    pub(in crate::data) fn learn(&self, id: SampleId, step: &Step) -> Result<Sample, DataError> {
        guarded(|| {
            let text = self.settings.text_target.as_ref().map(|key| step.text(key)).transpose()?;
            let robot = self.robot_of(step.set()).map_err(DataError::Line)?;
            let steps = robot.spec.frames.as_ref().map_or(&[0][..], |frames| &frames.steps);
            let clips = self.clips(steps, id, step)?;
            // The first of a camera's frames is what the step shows.
            let first = |clip: &CameraClip| (clip.camera.clone(), clip.pictures[0].clone());
            let seen = self.seen(step, clips.iter().map(first).collect())?;
            let clips = match robot.spec.frames {
                Some(_) => (clips, step.window(&self.settings.action, steps)?.is_pad),
                None => Default::default(),
            };
            let learned = LearnedActions { actions: self.recorded(step)?, clips, text };
            self.sample(robot, id, &seen, Some(learned), Self::domain(robot, Some(step))?)
        })
    }

    /// Returns the pictures of each camera at these steps from `step` on, changed as the settings say where a sample is trained on.
    fn clips(&self, steps: &[i64], id: SampleId, step: &Step) -> Result<Vec<CameraClip>, DataError> {
        let augment = self.settings.augment.as_ref().filter(|_| id.as_held_out().is_none());
        let mut clips = Vec::new();
        for (key, camera) in self.cameras_of(step.set()) {
            let pictures = step.pictures(key, steps, &*self.decoder, &self.limits)?.into_iter();
            // All frames of a camera are changed alike.
            let changed = pictures.map(|it| match augment {
                Some(augment) => augmented(it, augment, camera, [self.seed, id.0]),
                None => it,
            });
            clips.push(CameraClip { camera: camera.to_owned(), pictures: changed.collect() });
        }
        Ok(clips)
    }

    /// Returns the features of a set that show what the policy's cameras do, each with the camera's name.
    fn cameras_of<'a>(&'a self, set: &'a Set) -> impl Iterator<Item = (&'a str, &'a str)> {
        let own = set.info().cameras().filter(move |feature| !is_replaced(&self.settings, set, &feature.key));
        let named = own.map(|feature| (feature.key.as_str(), name_of(&self.settings, &feature.key)));
        named.filter(|(_, name)| self.spec.cameras.iter().any(|camera| camera == name))
    }

    /// Makes a sample of a step that asks for actions.
    ///
    /// # Errors
    /// Fails as [`PolicyMaker::learn`] does.
    pub(in crate::data) fn ask(&self, id: SampleId, step: &Step) -> Result<Sample, DataError> {
        guarded(|| {
            let robot = self.robot_of(step.set()).map_err(DataError::Line)?;
            self.sample(robot, id, &self.observation(step)?, None, Self::domain(robot, Some(step))?)
        })
    }

    /// Checks that a set has states and actions as the policy's.
    ///
    /// # Errors
    /// The reason.
    pub(in crate::data) fn expect(&self, set: &Set) -> Result<(), String> {
        let spec = &self.robot_of(set)?.spec;
        if let Some(key) = spec.xvla.as_ref().and_then(|rules| rules.domain_key.as_ref())
            && !self.settings.embodiments.is_empty()
            && set.info().feature(key).is_some()
        {
            return Err(format!("both its feature {key} and policy.embodiments say the domain of each frame"));
        }
        for (key, width) in [(&self.settings.state, spec.state_dim), (&self.settings.action, spec.action_dim)] {
            let own = set.info().feature(key).filter(|feature| feature.is_numbers()).map(Feature::width);
            if own != Some(width) {
                let own = own.map_or("none".to_owned(), |own| own.to_string());
                return Err(format!("{key} has {own} numbers, but the policy's has {width}"));
            }
        }
        if let Some(key) = &self.settings.text_target
            && set.info().feature(key).is_none_or(|feature| feature.dtype != Dtype::String)
        {
            return Err(format!("has no feature {key} of texts (policy.text_target)"));
        }
        super::data_keys::expect_all_cameras(spec, &self.settings, set)
    }

    /// Frames at the end of an episode that begin no sample.
    pub(in crate::data) fn dropped_frames(&self) -> usize {
        self.settings.drop_last_frames
    }

    /// Returns the number of tokens of a prompt.
    pub(in crate::data) fn num_tokens(&self, text: &str) -> usize {
        self.tokenizer.encode_document(text).map_or(text.len(), |tokens| tokens.len())
    }

    /// Returns notes for the user about the data and the samples so far.
    pub(in crate::data) fn notes(&self) -> Vec<String> {
        let counted = std::iter::once(&self.cut).chain(&self.flawed).filter_map(Tally::line);
        self.of_data().into_iter().chain(counted).collect()
    }

    /// Returns notes for the user about the data, whatever samples are made.
    pub(in crate::data) fn of_data(&self) -> Vec<String> {
        self.robots.iter().flat_map(Robot::notes).collect()
    }

    /// Returns how many prompts so far were cut off behind the tokens that the policy reads, and that number of tokens.
    pub fn cut_prompts(&self) -> (u64, usize) {
        (self.cut.count(), self.spec.prompt.max_tokens)
    }

    /// Makes a sample that asks for actions: as one to learn from, with actions and weights of 0.
    ///
    /// # Errors
    /// A picture of no camera of the policy, none at all, or a state of another length.
    pub fn observe(&self, observation: &Observation) -> Result<Sample, DataError> {
        guarded(|| {
            let robot = self.robot().map_err(DataError::Line)?;
            self.sample(robot, SampleId(0), observation, None, Self::domain(robot, None)?)
        })
    }

    /// Returns the token that ends actions, and how many a policy may write; `None` of one that writes no actions.
    pub fn writes(&self) -> Option<(i64, usize)> {
        let tokens = self.tokens.as_ref().filter(|tokens| tokens.bos().is_some())?;
        Some((tokens.bar(), self.spec.action_tokens.max_written))
    }

    /// Returns the normalized actions, `[H, max_action_dim]`, of the tokens that a policy has written; and why they are not those of a
    /// whole chunk, where they are not. Panics where the policy writes none.
    pub fn read_tokens(&self, written: &[i64]) -> (Vec<f32>, Option<String>) {
        let (tokens, width) = (self.tokens.as_ref().expect("a policy that writes actions"), self.spec.action_dim);
        let DecodedActions { values, flaw } = tokens.actions(written, width);
        let padded = values.chunks(width).flat_map(|action| {
            let padding = self.spec.max_action_dim - action.len();
            action.iter().copied().chain(std::iter::repeat_n(0.0, padding))
        });
        (padded.collect(), flaw)
    }

    /// Steps of a chunk of actions (H, `chunk_size`).
    pub fn horizon(&self) -> usize {
        self.spec.horizon
    }

    /// Numbers of an action, without padding.
    pub fn action_dim(&self) -> usize {
        self.spec.action_dim
    }

    /// Numbers of a state, without padding.
    pub fn state_dim(&self) -> usize {
        self.spec.state_dim
    }

    /// Returns the policy's names of its cameras, in order.
    pub fn cameras(&self) -> &[String] {
        &self.spec.cameras
    }

    /// Names and contents of lerobot's processor files, with the statistics: they belong into every checkpoint.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        self.files.clone()
    }

    /// Puts the sizes and normalizations of the data into a policy's `config.json`, which a checkpoint has.
    pub fn put_features(&self, config: &mut Json) {
        let spec = &self.spec;
        let feature = |kind: &str, width: usize| serde_json::json!({ "type": kind, "shape": [width] });
        config["input_features"][STATE] = feature("STATE", spec.state_dim);
        config["output_features"][ACTION] = feature("ACTION", spec.action_dim);
        config["normalization_mapping"] = serde_json::json!({
            "VISUAL": "IDENTITY",
            "STATE": super::spec::name_of(spec.state_normalization),
            "ACTION": super::spec::name_of(spec.action_normalization),
        });
        match spec.family {
            Family::FastWam => fastwam_spec::put_cameras(spec, config),
            Family::Groot => groot_spec::put_cameras(spec, config),
            _ => {}
        }
        // lerobot refuses keys that its config does not have: these two say what of this they have in the processor files alone.
        if matches!(spec.family, Family::SmolVla | Family::Xvla | Family::FastWam) {
            return;
        }
        config["use_relative_actions"] = spec.relative.into();
        config["relative_exclude_joints"] = spec.exclude.clone().into();
        match &spec.embodiment {
            // lerobot's class normalizes in a step of its own, and takes no other key.
            Some((tag, _)) => {
                config["normalization_mapping"] =
                    serde_json::json!({ "VISUAL": "IDENTITY", "STATE": "IDENTITY", "ACTION": "IDENTITY" });
                groot_spec::put_embodiment(tag, config);
                if let Some(keys) = config.as_object_mut().filter(|keys| keys.contains_key("type")) {
                    keys.shift_remove("dtype");
                }
            }
            None if spec.action_names.is_empty() => {}
            None => config["action_feature_names"] = spec.action_names.clone().into(),
        }
    }

    /// Returns the step's observation: pictures under the policy's names of cameras, the state, the task.
    ///
    /// # Errors
    /// Named by the feature: a file of it cannot be read or decoded.
    pub fn observation(&self, step: &Step) -> Result<Observation, DataError> {
        let mut images = Vec::new();
        for (key, name) in self.cameras_of(step.set()) {
            let mut frames = step.pictures(key, &[0], &*self.decoder, &self.limits)?;
            images.push((name.to_owned(), frames.swap_remove(0)));
        }
        self.seen(step, images)
    }

    /// Returns the observation that the step shows, with these pictures.
    fn seen(&self, step: &Step, images: Vec<(String, RgbImage)>) -> Result<Observation, DataError> {
        let state = step.numbers(&self.settings.state)?;
        Ok(Observation { images, state, prompt: step.task()?.to_owned(), begun: Vec::new() })
    }

    /// Returns the actions that were recorded from a step on, `[H, action_dim]`, as the robot took them.
    ///
    /// # Errors
    /// Named by the feature: a file of it cannot be read.
    pub fn recorded(&self, step: &Step) -> Result<Window, DataError> {
        let steps: Vec<i64> = (0..self.spec.horizon as i64).collect();
        step.window(&self.settings.action, &steps)
    }

    /// Returns the ids of a prompt that is written out.
    #[cfg(test)]
    pub(super) fn prompt_ids_of(&self, text: &str) -> Vec<i64> {
        self.tokenizer.encode_document(text).unwrap().iter().map(|token| token.id).collect()
    }

    #[cfg(test)]
    pub(super) fn sample_with(&self, seen: &Observation, actions: Window) -> Sample {
        self.sample(self.robot().unwrap(), SampleId(1), seen, Some(actions.into()), None).unwrap()
    }

    #[cfg(test)]
    pub(super) fn sample_of(&self, step: &Step) -> Sample {
        let robot = self.robot_of(step.set()).unwrap();
        let domain = Self::domain(robot, Some(step)).unwrap();
        let actions = self.recorded(step).unwrap();
        self.sample(robot, SampleId(0), &self.observation(step).unwrap(), Some(actions.into()), domain).unwrap()
    }

    /// Returns the domain of a step, or of an observation, where the policy has such.
    fn domain(robot: &Robot, step: Option<&Step>) -> Result<Option<i64>, DataError> {
        let Some(rules) = &robot.spec.xvla else { return Ok(None) };
        step.map_or(Ok(rules.domain), |step| rules.domain_of(step)).map(Some)
    }
}

/// Returns the texts of a policy with a text tower, whose tokenizer lies in its folder, or in `tokenizer` there as Diffusers has it.
///
/// # Errors
/// The tokenizer is missing or has more tokens than the tower, or numbers of the data are not as many as the policy's.
fn open_texts(
    folders: ProcessorFolders<'_>,
    config: &Json,
    spec: &SampleSpec,
) -> Result<(TextProcessor, Tokenizer), DataError> {
    let inner = folders.model.join("tokenizer").join("tokenizer.json");
    let own = folders.text.map(Path::to_owned).or(Some(inner).filter(|file| file.is_file()));
    let wrong = |reason: String| DataError::file(&folders.model.join("config.json"), reason);
    let counts =
        [("action_dim", spec.action_dim, spec.max_action_dim), ("proprio_dim", spec.state_dim, spec.max_state_dim)];
    let other = counts.into_iter().find(|(_, own, most)| own != most);
    if let Some((key, own, most)) = other {
        return Err(wrong(format!(
            "`{key}` is {most}, but the data has {own} numbers: set it to {own} (model.overrides)"
        )));
    }
    let networks = fastwam_networks(config);
    let texts = TextProcessor::open(ProcessorFolders { text: own.as_deref(), ..folders }, &networks)?;
    let texts = texts.ok_or_else(|| wrong("has no text_encoder".to_owned()))?;
    let tokenizer = match own {
        Some(file) => Tokenizer::of_file(&file, &networks["text_encoder"])?,
        None => Tokenizer::open(folders.model, &networks["text_encoder"], &Json::Null)?,
    };
    Ok((texts, tokenizer))
}
