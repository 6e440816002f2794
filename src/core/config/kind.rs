//! Checks that every key of a config has a meaning for the kind of model at hand, so that no key is silently ignored.

use super::{
    Audio, EncoderPool, Eval, Experts, JsonMap, Latents, Learn, LossWeighting, Model, Mtp, Normalize, PackMode, Part,
    Phase, Placement, Policy, Run, RunConfig, Template, TooLong, VideoLimits, Weights,
};
use crate::message::{PoolName, Tower, TowerPart, TowerSet};

/// Kind of a model by its training objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// Predicts tokens.
    Tokens,
    /// Predicts the noise of pictures and clips, with one transformer, or with two, one for high and one for low noise.
    Diffusion { two: bool },
    /// Predicts the actions of a robot.
    Policy,
}

/// The reason why the keys of a config do not fit the kind of its model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KindError {
    /// Keys that are set although the model does not use them.
    #[error("{}: {why}; drop {}", listed(.keys), if .keys.len() == 1 { "it" } else { "them" })]
    Useless { keys: Vec<&'static str>, why: &'static str },
    #[error(
        "`pools.placement: colocated` is not supported for two transformers, each of which has its own pool; set it \
         to separate, or `model.experts` to high or low"
    )]
    ColocatedPair,
    #[error("`data.pack.mode: offline` packs tokens, but the samples of this model have none; set it to step")]
    OfflineOfNoTokens,
    #[error(
        "`data.pack.mode: stream` is not supported for two transformers: it packs before the noise levels of a step, \
         which choose between them, are planned; set it to step"
    )]
    StreamOfPair,
    #[error("`{0}` is for one of two transformers, but this run trains only one; set `pools.foundation` instead")]
    PoolOfPair(&'static str),
    #[error(
        "`sample` needs both transformers, but this run trains only one and has no weights of the other; set `model.load` \
         to a folder of both and `model.weights` to load, or leave the section out"
    )]
    SamplesOfOne,
}

fn listed(keys: &[&'static str]) -> String {
    keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
}

impl RunConfig {
    /// Checks that every key that is set has a meaning for a model of this kind.
    ///
    /// # Errors
    /// Returns the keys that have none, or that do not fit the kind.
    pub fn expect_keys_of(&self, kind: ModelKind) -> Result<(), KindError> {
        let (keys, why) = match kind {
            ModelKind::Tokens => (self.of_diffusion(), "only for diffusion models, but this model predicts tokens"),
            ModelKind::Diffusion { two } => {
                let experts = ("model.experts", self.model.experts.is_some() && !two);
                let keys = self.of_tokens().into_iter().chain([experts]).collect();
                (keys, "not applicable to this diffusion model")
            }
            ModelKind::Policy => {
                // A policy has a projector, as models that predict tokens may have; that of its text is not there, so not trained.
                let [own, text] = ["model.image_projector", "model.text_projector"];
                let of_tokens = self.of_tokens().into_iter().filter(|(key, _)| *key != own && *key != text);
                let of_text = &self.model.text_projector;
                let of_text = Part { freeze: of_text.freeze.filter(|freeze| !*freeze), ..of_text.clone() };
                // One with an autoencoder has it frozen.
                let mut of_diffusion = self.of_diffusion();
                let vae = Part { freeze: None, ..self.model.vae.clone() };
                let own = of_diffusion.iter_mut().filter(|(key, _)| *key == "model.vae");
                own.for_each(|(_, is_written)| *is_written = vae != Part::default());
                // Its frames have the rate of its data, and its answers are actions.
                let of_both = [
                    ("data.video.fps", self.data.video.fps.is_some()),
                    ("eval.max_new_tokens", self.eval.as_ref().is_some_and(Eval::names_length)),
                    (text, of_text != Part::default()),
                ];
                (of_tokens.chain(of_diffusion).chain(of_both).collect(), "not applicable to a robot policy")
            }
        };
        if kind != ModelKind::Tokens && self.packs_first() {
            return Err(KindError::OfflineOfNoTokens);
        }
        let is_policy = self.policy != Policy::default();
        if is_policy && kind != ModelKind::Policy {
            let why = "only for robot policies, but this model is not one";
            return Err(KindError::Useless { keys: vec!["policy"], why });
        }
        if kind != ModelKind::Policy && self.eval.as_ref().is_some_and(|eval| eval.actions.is_some()) {
            let why = "only for robot policies, but this model is not one";
            return Err(KindError::Useless { keys: vec!["eval.actions"], why });
        }
        let keys: Vec<_> = keys.into_iter().filter(|(_, is_written)| *is_written).map(|(key, _)| key).collect();
        if !keys.is_empty() {
            return Err(KindError::Useless { keys, why });
        }
        let keys = self.of_evaluations(kind);
        if !keys.is_empty() {
            let why =
                "only for evaluations during the run, but neither `eval.every_steps` nor `eval.every_epochs` is set";
            return Err(KindError::Useless { keys, why });
        }
        let ModelKind::Diffusion { two } = kind else { return Ok(()) };
        let both = two && self.model.experts.is_none_or(|experts| experts == Experts::Both);
        let pools = [
            ("pools.foundation_high", self.pools.foundation_high),
            ("pools.foundation_low", self.pools.foundation_low),
        ];
        match pools.into_iter().find(|(_, pool)| pool.is_some()) {
            Some((key, _)) if !both => Err(KindError::PoolOfPair(key)),
            _ if both && self.pools.placement == Placement::Colocated => Err(KindError::ColocatedPair),
            _ if both && self.data.pack.mode == PackMode::Stream => Err(KindError::StreamOfPair),
            _ if two && !both && self.sample.is_some() && !self.model.loads_weights() => Err(KindError::SamplesOfOne),
            _ => Ok(()),
        }
    }

    /// Checks that every key about a tower refers to a tower of a model that predicts tokens.
    ///
    /// # Errors
    /// Returns keys of towers that the model does not have.
    pub fn expect_keys_of_towers(&self, towers: TowerSet) -> Result<(), KindError> {
        let (data, model, pools) = (&self.data, &self.model, &self.pools);
        let part = |tower, of| {
            let (key, part) = model.tower_part(tower, of);
            // What is not there is not trained.
            let part = Part { freeze: part.freeze.filter(|freeze| !*freeze), ..part.clone() };
            (key, part != Part::default())
        };
        let of_pixels = |min: Option<usize>, max: Option<usize>| min.is_some() || max.is_some();
        let of_towers = [
            (Tower::Vision, "data.image", of_pixels(data.image.min_pixels, data.image.max_pixels)),
            (Tower::Vision, "data.video", data.video != VideoLimits::default()),
            (Tower::Vision, "data.pack.max_images", data.pack.max_images.is_some()),
            (Tower::Audio, "data.audio", data.audio != Audio::default()),
        ];
        let mut keys: Vec<&'static str> = Vec::new();
        for tower in [Tower::Vision, Tower::Audio, Tower::Text].into_iter().filter(|tower| !towers.contains(*tower)) {
            let parts = TowerPart::ALL.map(|of| part(tower, of));
            keys.extend(parts.into_iter().filter(|(_, is_written)| *is_written).map(|(key, _)| key));
            let others = of_towers.iter().filter(|(of, _, is_written)| *of == tower && *is_written);
            keys.extend(others.map(|(_, key, _)| *key));
        }
        // Threads are a matter of the machine: nothing is left undone without them. Colocated pools are of one size, with or without
        // encoders.
        let default = EncoderPool::default();
        let replicas = match pools.placement {
            Placement::Separate => pools.encoder.replicas,
            Placement::Colocated => default.replicas,
        };
        let encoder = EncoderPool { threads: default.threads, replicas, ..pools.encoder.clone() };
        let of_encoders = [
            ("pools.encoder", encoder != default),
            ("data.pack.max_visual_tokens", towers.is_empty() && data.pack.max_visual_tokens.is_some()),
        ];
        let has_pool = pools.encoders(towers).iter().any(|(name, ..)| *name == PoolName::ENCODER);
        keys.extend(of_encoders.into_iter().filter(|(_, is_written)| !has_pool && *is_written).map(|(key, _)| key));
        match keys.is_empty() {
            true => Ok(()),
            false => Err(KindError::Useless { keys, why: "for a tower that this model does not have" }),
        }
    }

    /// Returns the keys that are set and bound evaluations during the run, where it has none: other models are also evaluated so after
    /// the last step.
    fn of_evaluations(&self, kind: ModelKind) -> Vec<&'static str> {
        let idle = self.eval.as_ref().filter(|eval| kind == ModelKind::Tokens && !eval.is_during_run());
        let Some(eval) = idle else { return Vec::new() };
        let keys = [("eval.max_samples", eval.max_samples.is_some()), ("eval.limits", !eval.limits.is_empty())];
        keys.into_iter().filter(|(_, is_written)| *is_written).map(|(key, _)| key).collect()
    }

    /// Returns the keys of diffusion models, each with whether it is set.
    fn of_diffusion(&self) -> Vec<(&'static str, bool)> {
        let (data, train, model) = (&self.data, &self.train, &self.model);
        let of_eval = |is: fn(&Eval) -> bool| self.eval.as_ref().is_some_and(is);
        vec![
            ("model.vae", model.vae != Part::default()),
            ("model.experts", model.experts.is_some()),
            ("pools.foundation_high", self.pools.foundation_high.is_some()),
            ("pools.foundation_low", self.pools.foundation_low.is_some()),
            ("data.caption_dropout", data.caption_dropout.is_some()),
            ("data.condition_dropout", data.condition_dropout.is_some()),
            ("data.masks", data.masks),
            ("data.train[].area", data.train.iter().any(|file| file.area.is_some())),
            ("data.image.area", data.image.area.is_some()),
            ("data.image.bucket", data.image.bucket.is_some()),
            ("data.video.area", data.video.area.is_some()),
            ("data.video.bucket", data.video.bucket.is_some()),
            ("data.video.frames", data.video.frames.is_some()),
            ("data.video.take", data.video.take.is_some()),
            ("data.video.first_frame", data.video.first_frame.is_some()),
            ("train.sigma", train.sigma.is_some()),
            ("train.loss", train.loss.is_some()),
            ("train.latents", train.latents != Latents::default()),
            ("eval.sigmas", of_eval(|eval| eval.sigmas.is_some())),
            ("eval.reader", of_eval(|eval| eval.reader.is_some())),
            ("sample", self.sample.is_some()),
        ]
    }

    /// Returns the keys of models that predict tokens, each with whether its value differs from the default.
    fn of_tokens(&self) -> Vec<(&'static str, bool)> {
        let (data, train, model) = (&self.data, &self.train, &self.model);
        let has = |part: &Part| *part != Part::default();
        let of_eval = |is: fn(&Eval) -> bool| self.eval.as_ref().is_some_and(is);
        vec![
            ("model.image_projector", has(&model.image_projector)),
            ("model.audio_encoder", has(&model.audio_encoder)),
            ("model.audio_projector", has(&model.audio_projector)),
            ("model.text_projector", has(&model.text_projector)),
            ("model.mtp", model.mtp != Mtp::default()),
            ("model.moe", model.moe != Model::default().moe),
            ("model.indexer", model.indexer != Model::default().indexer),
            ("model.resize_embeddings", model.resize_embeddings),
            ("data.template", data.template != Template::FromModel),
            ("data.template_kwargs", data.template_kwargs != JsonMap::default()),
            ("data.system", data.system.is_some()),
            ("data.pack.too_long", data.pack.too_long == TooLong::Truncate),
            ("data.pack.max_visual_tokens", data.pack.max_visual_tokens.is_some()),
            ("data.image.min_pixels", data.image.min_pixels.is_some()),
            ("data.image.max_pixels", data.image.max_pixels.is_some()),
            ("data.video.min_frames", data.video.min_frames.is_some()),
            ("data.video.max_frames", data.video.max_frames.is_some()),
            ("data.video.min_pixels", data.video.min_pixels.is_some()),
            ("data.video.max_pixels", data.video.max_pixels.is_some()),
            ("data.video.sound", data.video.sound),
            ("data.audio", data.audio != Audio::default()),
            ("model.reference", model.names_reference()),
            ("train.preference", train.preference.is_some()),
            ("train.loss_weighting", train.loss_weighting != LossWeighting::default()),
            ("train.label_smoothing", train.label_smoothing > 0.0),
            ("train.neftune_alpha", train.neftune_alpha > 0.0),
            ("train.phase", train.phase != Phase::default()),
            ("train.learn", train.learn != Learn::default()),
            ("eval.generate", of_eval(|eval| eval.generate.is_some())),
            ("eval.scores", of_eval(|eval| !eval.scores.is_empty())),
            ("eval.normalize", of_eval(|eval| eval.normalize != Normalize::default())),
            ("eval.pooled_statistics", of_eval(|eval| eval.pooled_statistics.is_some())),
        ]
    }
}

impl Run {
    /// Gradient lanes unless the config says how many.
    pub(super) const LANES: usize = 4;

    /// Returns whether a number of lanes is set that nothing uses: without `deterministic` there is one for each replica.
    pub fn has_idle_lanes(&self) -> bool {
        !self.deterministic && self.lanes != Self::LANES
    }
}

impl Model {
    /// Returns whether the weights of `model.load` are what the run begins with.
    fn loads_weights(&self) -> bool {
        self.weights == Weights::Load && self.load.is_some()
    }

    /// Fills in defaults that depend on the kind of model: the autoencoder, text tower and image tower of a diffusion model are
    /// frozen, and of two transformers both are trained; a reference model is frozen.
    pub fn settle(&mut self, kind: ModelKind) {
        let two = kind == ModelKind::Diffusion { two: true };
        self.experts = self.experts.or(two.then_some(Experts::Both));
        let is_diffusion = matches!(kind, ModelKind::Diffusion { .. });
        for part in [&mut self.vae, &mut self.text_encoder, &mut self.image_encoder] {
            part.freeze = part.freeze.or(is_diffusion.then_some(true));
        }
        self.reference.freeze = Some(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Tower;

    fn config(more: &[&str]) -> RunConfig {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, "{}\n").unwrap();
        let model = "model: { config: { model_type: x }, weights: random, tokenizer: org/name }";
        let data = format!("data: {{ train: [{{ path: {} }}] }}", path.display());
        let text =
            format!("run: {{ name: a }}\n{model}\n{data}\ntrain: {{ steps: 2, global_batch_size: 1, lr: 1.0 }}\n");
        let overrides: Vec<String> = more.iter().map(|word| (*word).to_owned()).collect();
        crate::config::load_text_with(&text, &overrides).unwrap_or_else(|report| panic!("{report}")).config
    }

    #[test]
    fn keys_without_a_meaning_for_the_model_are_named() {
        let (tokens, one, two) =
            (ModelKind::Tokens, ModelKind::Diffusion { two: false }, ModelKind::Diffusion { two: true });
        for kind in [tokens, one, ModelKind::Policy] {
            config(&[]).expect_keys_of(kind).unwrap();
        }
        let policy = config(&["policy.mask_padding=true"]);
        policy.expect_keys_of(ModelKind::Policy).unwrap();
        assert!(policy.expect_keys_of(tokens).unwrap_err().to_string().contains("`policy`"));
        config(&["model.text_projector.freeze=true"]).expect_keys_of(ModelKind::Policy).unwrap();
        let adapted = config(&["model.text_projector.lora={r: 2}"]).expect_keys_of(ModelKind::Policy);
        assert_eq!(
            adapted.unwrap_err().to_string(),
            "`model.text_projector`: not applicable to a robot policy; drop it"
        );
        let mixed = config(&["policy.mask_padding=true", "data.caption_dropout=0.5", "train.phase=pretrain"]);
        let error = mixed.expect_keys_of(ModelKind::Policy).unwrap_err().to_string();
        assert!(error.contains("`train.phase`") && error.contains("`data.caption_dropout`"), "{error}");
        let flow =
            config(&["train.sigma={shift: auto}", "train.ema=0.9", "data.video.take=middle", "model.vae.load=a/b"]);
        flow.expect_keys_of(one).unwrap();
        let error = flow.expect_keys_of(tokens).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`model.vae`, `data.video.take`, `train.sigma`: only for diffusion models, but this model predicts tokens; drop them"
        );
        let words = config(&["train.phase=pretrain", "data.template=qwen", "data.audio.max_seconds=3"]);
        words.expect_keys_of(tokens).unwrap();
        let error = words.expect_keys_of(two).unwrap_err();
        assert!(
            error.to_string().starts_with("`data.template`, `data.audio`, `train.phase`: not applicable"),
            "{error}"
        );
        for bound in ["max_samples: 4", "limits: {val: 4}"] {
            let eval = format!("eval={{{bound}}}");
            let few = config(&["data.val_size=0.5", &eval]);
            [one, ModelKind::Policy].into_iter().for_each(|kind| few.expect_keys_of(kind).unwrap());
            let error = few.expect_keys_of(tokens).unwrap_err().to_string();
            let why = "only for evaluations during the run, but neither `eval.every_steps` nor `eval.every_epochs` is set; drop it";
            assert!(error.ends_with(why), "{error}");
            config(&["data.val_size=0.5", &eval, "eval.every_steps=1"]).expect_keys_of(tokens).unwrap();
        }
        let experts = config(&["model.experts=high"]);
        experts.expect_keys_of(two).unwrap();
        let error = experts.expect_keys_of(one).unwrap_err().to_string();
        assert_eq!(error, "`model.experts`: not applicable to this diffusion model; drop it");
        let own = "pools.foundation_high={zero: 1}";
        for both in [&[][..], &["model.experts=both", own]] {
            config(both).expect_keys_of(two).unwrap();
        }
        assert_eq!(
            config(&["model.experts=low", own]).expect_keys_of(two),
            Err(KindError::PoolOfPair("pools.foundation_high"))
        );
        assert_eq!(config(&[own]).expect_keys_of(one), Err(KindError::PoolOfPair("pools.foundation_high")));
        let prompts = tempfile::NamedTempFile::new().unwrap();
        let sample = format!("sample={{prompts: {}}}", prompts.path().display());
        let alone = ["model.experts=low", sample.as_str()];
        assert_eq!(config(&alone).expect_keys_of(two), Err(KindError::SamplesOfOne));
        config(&[&alone[..], &["model.load=a/b", "model.weights=load"]].concat()).expect_keys_of(two).unwrap();
        let timed = config(&["data.video.fps=2"]);
        timed.expect_keys_of(tokens).unwrap();
        timed.expect_keys_of(one).unwrap();
        let error = timed.expect_keys_of(ModelKind::Policy).unwrap_err().to_string();
        assert_eq!(error, "`data.video.fps`: not applicable to a robot policy; drop it");
        let colocated = config(&["pools.placement=colocated"]);
        colocated.expect_keys_of(one).unwrap();
        assert_eq!(colocated.expect_keys_of(two), Err(KindError::ColocatedPair));
        assert_eq!(config(&["data.pack.mode=stream"]).expect_keys_of(two), Err(KindError::StreamOfPair));
    }

    #[test]
    fn keys_about_towers_that_the_model_lacks_are_named() {
        let (vision, none) = (TowerSet::from_iter([Tower::Vision]), TowerSet::default());
        for words in [&[][..], &["model.image_encoder.freeze=true"], &["pools.placement=colocated"]] {
            config(words).expect_keys_of_towers(none).unwrap();
        }
        // Without their number the config would say that the pools differ in size.
        let colocated = ["pools.placement=colocated", "pools.foundation.replicas=2", "pools.encoder.replicas=2"];
        let colocated = config(&[&colocated[..], &["train.global_batch_size=2"]].concat());
        colocated.expect_keys_of_towers(none).unwrap();
        for (words, has, keys) in [
            (&["model.image_encoder.freeze=false"][..], vision, "`model.image_encoder`"),
            (
                &["model.image_projector.lora={r: 2}", "data.image.max_pixels=9"],
                vision,
                "`model.image_projector`, `data.image`",
            ),
            (&["data.video.fps=2", "data.pack.max_images=1"], vision, "`data.video`, `data.pack.max_images`"),
            (
                &["pools.encoder.replicas=2", "data.pack.max_visual_tokens=64"],
                vision,
                "`pools.encoder`, `data.pack.max_visual_tokens`",
            ),
        ] {
            config(words).expect_keys_of_towers(has).unwrap();
            let error = config(words).expect_keys_of_towers(none).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{keys}: for a tower")), "{error}");
        }
        let sound = config(&["model.audio_encoder.lora={r: 4}", "data.audio.max_seconds=3"]);
        sound.expect_keys_of_towers([Tower::Audio].into_iter().collect()).unwrap();
        let error = sound.expect_keys_of_towers(vision).unwrap_err().to_string();
        assert!(error.starts_with("`model.audio_encoder`, `data.audio`: for a tower"), "{error}");
        // Where another pool holds all towers, `encoder` holds none.
        let apart = config(&["pools.vision.replicas=1", "pools.encoder.replicas=2"]);
        let error = apart.expect_keys_of_towers(vision).unwrap_err().to_string();
        assert!(error.starts_with("`pools.encoder`"), "{error}");
    }

    #[test]
    fn towers_of_a_diffusion_model_are_frozen_unless_the_config_says_otherwise() {
        let settled = |more: &[&str], kind| {
            let mut model = config(more).model;
            model.settle(kind);
            [model.vae, model.text_encoder, model.image_encoder, model.foundation].map(|part| part.is_frozen())
        };
        let diffusion = ModelKind::Diffusion { two: false };
        assert_eq!(settled(&[], ModelKind::Tokens), [false; 4]);
        assert_eq!(settled(&[], diffusion), [true, true, true, false]);
        assert_eq!(settled(&["model.text_encoder.freeze=false"], diffusion), [true, false, true, false]);
        assert_eq!(settled(&["model.text_encoder.lora={r: 2}"], diffusion), [true, false, true, false]);
        // What the scheduler takes for frozen: there are no projectors that would be trained.
        let frozen = |more: &[&str], kind| {
            let mut model = config(more).model;
            model.settle(kind);
            model.has_frozen([Tower::Text, Tower::Vae].into_iter().collect())
        };
        assert!(frozen(&[], diffusion) && !frozen(&["model.text_encoder.freeze=false"], diffusion));
        assert!(!frozen(&["model.text_encoder.freeze=true"], ModelKind::Tokens));
    }
}
