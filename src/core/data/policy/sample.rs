//! A sample of a policy: tokens and pictures of what it sees, and columns of numbers.

use image::RgbImage;

use super::action_tokens::{ActionTokens, WrittenActions};
use super::fastwam::Frames;
use super::maker::PolicyMaker;
use super::observation::{CameraClip, LearnedActions, Observation};
use super::robots::Robot;
use super::scales::Scales;
use super::spec::{Family, SampleSpec};
use super::xvla::Rules;
use super::{pictures, prompt, relative};
use crate::data::column::{ColumnValues, SampleColumn};
use crate::data::error::DataError;
use crate::data::lerobot::Window;
use crate::data::sample::{IGNORE_INDEX, Media, Sample};
use crate::message::SampleId;

impl PolicyMaker {
    /// Makes a sample of an observation with the actions that follow, or with none where it asks for them. `domain` is that of X-VLA.
    ///
    /// # Errors
    /// A picture of no camera of the policy, none at all, a number that is not finite, or too many tokens.
    pub(super) fn sample(
        &self,
        Robot { spec, scales, .. }: &Robot,
        id: SampleId,
        seen: &Observation,
        learned: Option<LearnedActions>,
        domain: Option<i64>,
    ) -> Result<Sample, DataError> {
        expect_finite("the state", &seen.state, spec.state_dim)?;
        let mut state = seen.state.clone();
        scales.state.normalize(&mut state);
        let learned = learned.map(|LearnedActions { actions, clips, text }| (actions, clips, text));
        let (actions, clips, text) =
            learned.map_or((None, None, None), |(actions, clips, text)| (Some(actions), Some(clips), text));
        let is_asked = actions.is_none();
        let (values, weights) = self.targets(spec, scales, &seen.state, actions)?;
        let answer = match (&self.tokens, is_asked) {
            (None, _) => None,
            (Some(tokens), true) => {
                Some(WrittenActions { ids: tokens.bos().into_iter().collect(), ..WrittenActions::default() })
            }
            (Some(tokens), false) => Some(self.answer(tokens, spec, &values, text.as_deref())?),
        };
        let sample = match (&self.chat, &spec.frames) {
            (Some(chat), _) => chat.sample(id, &seen.prompt, &self.pictures(&seen.images)?)?,
            (None, Some(frames)) => self.filmed(frames, id, seen, clips.as_ref())?,
            (None, None) => self.prompted(id, seen, &state, answer.unwrap_or_default())?,
        };
        if spec.family == Family::Pi0Fast {
            return Ok(sample);
        }
        let num_targets = weights.iter().filter(|&&weight| weight > 0.0).count() as u32;
        let column = |name: &str, rows: usize, after: Vec<usize>, values: ColumnValues| SampleColumn {
            name: name.to_owned(),
            before: Vec::new(),
            rows,
            after,
            values,
        };
        let of_actions = |name: &str, values: Vec<f32>| {
            column(name, spec.horizon, vec![spec.max_action_dim], ColumnValues::F32(values))
        };
        let number = |name: &str, value: i64| column(name, 1, Vec::new(), ColumnValues::I64(vec![value]));
        let mut columns = vec![of_actions("actions", values), of_actions("action_weights", weights)];
        if spec.state_token {
            state.resize(spec.max_state_dim, 0.0);
            columns.push(column("state", 1, vec![spec.max_state_dim], ColumnValues::F32(state)));
        }
        columns.extend(spec.frames.as_ref().map(|frames| {
            let is_pad = clips.as_ref().map_or(&[][..], |(_, is_pad)| is_pad);
            frames.weights(is_pad, self.settings.mask_padding == Some(true))
        }));
        columns.extend(domain.map(|domain| number("domain", domain)));
        columns.extend(spec.embodiment.as_ref().map(|(_, own)| number("embodiment", *own)));
        let mut sample = sample.with_columns(columns);
        // FastWAM's loss is a mean over samples.
        sample.meta.num_targets = if spec.frames.is_some() { 1 } else { num_targets };
        Ok(sample)
    }

    /// Returns the rows of frames, actions and text, of a policy that learns frames; without `clips` it sees the first ones alone.
    fn filmed(
        &self,
        frames: &Frames,
        id: SampleId,
        seen: &Observation,
        clips: Option<&(Vec<CameraClip>, Vec<bool>)>,
    ) -> Result<Sample, DataError> {
        let first: Vec<CameraClip> = match clips {
            Some(_) => Vec::new(),
            None => seen.images.iter().map(|(camera, picture)| CameraClip::still(camera, picture)).collect(),
        };
        let all = clips.map_or(&first, |(clips, _)| clips);
        let of = |camera: &String| {
            let found = all.iter().find(|clip| clip.camera == *camera);
            found.ok_or_else(|| DataError::Line(format!("has no picture of the camera {camera}, which FastWAM needs")))
        };
        if let Some((other, _)) = seen.images.iter().find(|(name, _)| !self.spec.cameras.contains(name)) {
            let known = self.spec.cameras.join(", ");
            return Err(DataError::Line(format!(
                "has a picture of the unknown camera {other}; the policy's cameras are {known}"
            )));
        }
        let clips = self.spec.cameras.iter().map(of).collect::<Result<Vec<&CameraClip>, _>>()?;
        let texts = self.texts.as_ref().expect("a policy that learns frames has a text tower");
        frames.sample(id, (seen, &clips), (self.spec.horizon, self.max_tokens), texts)
    }

    /// Returns the tokens of pictures and a prompt, where the policy is told no chat. `state` is normalized.
    fn prompted(
        &self,
        id: SampleId,
        seen: &Observation,
        state: &[f32],
        answer: WrittenActions,
    ) -> Result<Sample, DataError> {
        let media = self.items(&seen.images)?;
        let prompt = self.prompt_ids(&seen.prompt, state)?;
        let num_features: usize = media.iter().map(|item| item.num_features).sum();
        let num_asked = num_features + prompt.len();
        let num_tokens = num_asked + answer.ids.len();
        if num_tokens > self.max_tokens {
            let (num_image_tokens, max_tokens) = (num_features, self.max_tokens);
            return Err(DataError::TooLong { num_tokens, num_image_tokens, num_audio_tokens: 0, max_tokens });
        }
        let mut input_ids = vec![self.spec.placeholder; num_features];
        input_ids.extend(prompt);
        input_ids.extend(&answer.ids);
        let axis: Vec<f32> = (0..num_tokens).map(|place| place as f32).collect();
        let position_ids = [axis.as_slice(); 3].concat();
        let mut targets = vec![IGNORE_INDEX; num_tokens];
        // Each token is predicted behind the one before it; what begins an answer is given, where something does.
        let learned = &answer.ids[usize::from(answer.is_begun)..];
        let first = (num_asked + usize::from(answer.is_begun)).saturating_sub(1);
        targets[first..first + learned.len()].copy_from_slice(learned);
        let num_sources = media.len();
        let mut sample = Sample::new(id, input_ids, position_ids, targets, media);
        sample.num_sources = num_sources;
        Ok(sample)
    }

    /// Returns the items of pictures, in the order of the policy's cameras; a camera without a picture has none.
    fn items(&self, images: &[(String, RgbImage)]) -> Result<Vec<Media>, DataError> {
        let item = |picture: &RgbImage| match &self.spec.xvla {
            Some(rules) => rules.item(picture),
            None => Ok(pictures::item(picture, &self.spec.pictures)),
        };
        self.pictures(images)?.into_iter().map(item).collect()
    }

    /// Returns the pictures in the order of the policy's cameras, of those that are there.
    fn pictures<'a>(&self, images: &'a [(String, RgbImage)]) -> Result<Vec<&'a RgbImage>, DataError> {
        let cameras = &self.spec.cameras;
        if let Some((name, _)) = images.iter().find(|(name, _)| !cameras.contains(name)) {
            let known = if cameras.is_empty() { "none".to_owned() } else { cameras.join(", ") };
            return Err(DataError::Line(format!(
                "has a picture of the unknown camera {name}; the policy's cameras are {known}"
            )));
        }
        let of = |camera: &String| images.iter().find(|(name, _)| name == camera);
        let found: Vec<&RgbImage> = cameras.iter().filter_map(of).map(|(_, picture)| picture).collect();
        match found.is_empty() && !cameras.is_empty() {
            true => Err(DataError::Line(format!("has no picture of any of the cameras {}", cameras.join(", ")))),
            false => Ok(found),
        }
    }

    /// Returns the tokens that the language model learns behind the prompt. `actions` `[H, max_action_dim]` are normalized; steps behind
    /// the end of the episode, which repeat its last action, are among them.
    fn answer(
        &self,
        tokens: &ActionTokens,
        spec: &SampleSpec,
        actions: &[f32],
        text: Option<&str>,
    ) -> Result<WrittenActions, DataError> {
        let own = actions.chunks(spec.max_action_dim).flat_map(|action| &action[..spec.action_dim]);
        let answer = tokens.answer(&own.copied().collect::<Vec<f32>>(), spec.action_dim, text, &self.tokenizer)?;
        if answer.ids.contains(&spec.placeholder) {
            let reason =
                format!("its text to learn has the token {}, which is the placeholder of pictures", spec.placeholder);
            return Err(DataError::Line(reason));
        }
        let flaws = self.flawed.iter().zip([answer.was_cut, answer.num_clipped > 0]);
        flaws.filter(|(_, is_so)| *is_so).for_each(|(flaw, _)| flaw.add());
        Ok(answer)
    }

    fn prompt_ids(&self, task: &str, state: &[f32]) -> Result<Vec<i64>, DataError> {
        if let Some(rules) = &self.spec.xvla {
            return self.filled_prompt(rules, task);
        }
        let text = match (self.spec.family, self.spec.state_token) {
            (Family::Pi05, false) => prompt::with_digits(task, state),
            (Family::Pi0Fast, _) => prompt::with_digits_line(task, state),
            _ => prompt::with_line(task),
        };
        let mut ids: Vec<i64> = self.tokenizer.encode_document(&text)?.iter().map(|token| token.id).collect();
        if ids.contains(&self.spec.placeholder) {
            let reason =
                format!("its task has the token {}, which is the placeholder of pictures", self.spec.placeholder);
            return Err(DataError::Line(reason));
        }
        if ids.len() > self.spec.prompt.max_tokens {
            ids.truncate(self.spec.prompt.max_tokens);
            self.cut.add();
        }
        Ok(ids)
    }

    /// Returns the ids of a task of X-VLA, cut off and filled up to one length.
    fn filled_prompt(&self, rules: &Rules, task: &str) -> Result<Vec<i64>, DataError> {
        let (ids, was_cut) = self.tokenizer.encode_cut(task)?;
        if was_cut {
            self.cut.add();
        }
        let ids: Vec<i64> = ids.into_iter().map(i64::from).collect();
        match ids.iter().find(|id| **id >= self.spec.placeholder) {
            Some(id) => Err(DataError::Line(format!("its task has the token {id}, which the policy does not know"))),
            None => Ok(rules.filled(ids, self.spec.prompt.max_tokens)),
        }
    }

    /// Returns normalized actions and their weights in the loss, `[H, max_action_dim]` each.
    fn targets(
        &self,
        spec: &SampleSpec,
        scales: &Scales,
        state: &[f32],
        actions: Option<Window>,
    ) -> Result<(Vec<f32>, Vec<f32>), DataError> {
        let len = spec.horizon * spec.max_action_dim;
        let (mut padded, mut weights) = (vec![0.0; len], vec![0.0; len]);
        let Some(Window { mut values, is_pad }) = actions else { return Ok((padded, weights)) };
        expect_finite("an action", &values, spec.horizon * spec.action_dim)?;
        relative::to_relative(&mut values, state, &scales.mask);
        scales.action.normalize(&mut values);
        let masks_padding = self.settings.mask_padding.unwrap_or(spec.masks_padding);
        let rows = padded.chunks_mut(spec.max_action_dim).zip(weights.chunks_mut(spec.max_action_dim));
        for ((to, weights), (action, is_pad)) in rows.zip(values.chunks(spec.action_dim).zip(is_pad)) {
            let is_masked = is_pad && masks_padding;
            // GR00T sees nothing of steps that do not count.
            if !(is_masked && spec.family == Family::Groot) {
                to[..spec.action_dim].copy_from_slice(action);
            }
            for (at, weight) in weights.iter_mut().enumerate() {
                // Numbers behind the data's own are learned where the action space has them: they are 0.
                let counts = spec.xvla.as_ref().map_or(at < spec.action_dim, |it| it.space.counts(at, spec.action_dim));
                *weight = f32::from(counts && !is_masked);
            }
        }
        Ok((padded, weights))
    }
}

/// # Errors
/// There are others than `len` finite numbers.
fn expect_finite(what: &str, values: &[f32], len: usize) -> Result<(), DataError> {
    if values.len() != len {
        return Err(DataError::Line(format!("{what} has {} numbers, but needs {len}", values.len())));
    }
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(DataError::Line(format!("{what} has {value}, which is not finite"))),
        None => Ok(()),
    }
}
