//! Rules over the keys of diffusion models. The kind of model is not known here: see `kind.rs`.

use super::error::code;
use super::validate::Rules;
use super::{Density, LossKind, LossWeight, RunConfig, Sampling};

impl Rules<'_> {
    /// Checks the noise levels, the loss, the samples and the dropout of captions and conditions of a diffusion model.
    pub(super) fn flow(&mut self, config: &RunConfig) {
        self.noise_levels(config);
        self.loss(config);
        if let Some(sample) = &config.sample {
            self.samples(sample);
            self.every_epochs(config, "sample", (sample.every_steps, sample.every_epochs));
        }
        let dropout = config.data.caption_dropout;
        self.broken(dropout == Some(1.0), code::OUT_OF_RANGE, &["data.caption_dropout"], || {
            ("`data.caption_dropout` is 1: no prompt would be read".to_owned(), "0.1 is usual")
        });
        let dropout = config.data.condition_dropout;
        self.broken(dropout == Some(1.0), code::OUT_OF_RANGE, &["data.condition_dropout"], || {
            ("`data.condition_dropout` is 1: no given picture would be read".to_owned(), "0.1 is usual")
        });
        let eval = config.eval.as_ref();
        let is_clean = |sigma: &f64| *sigma == 0.0;
        let has_clean = eval.and_then(|eval| eval.sigmas.as_ref()).is_some_and(|sigmas| sigmas.iter().any(is_clean));
        self.broken(has_clean, code::OUT_OF_RANGE, &["eval.sigmas"], || {
            ("`eval.sigmas`: must be above 0, found `0`".to_owned(), "at 0 there is no noise to predict")
        });
        let reads = eval.is_some_and(|eval| eval.reader.is_some());
        self.broken(reads && config.sample.is_none(), code::COMBINATION, &["eval.reader"], || {
            ("`eval.reader` has no samples to read".to_owned(), "add `sample: { prompts: FILE }`")
        });
        let vae = &config.model.vae;
        let trains = vae.freeze == Some(false) || vae.lora.is_some() || !vae.train_patterns.is_empty();
        let keys = ["model.vae.freeze", "model.vae.lora", "model.vae.train_patterns"];
        self.broken(trains, code::COMBINATION, &keys, || {
            let help = "the transformer learns to make its latents, which therefore must not change";
            ("`model.vae`: training the autoencoder is not supported".to_owned(), help)
        });
    }

    fn noise_levels(&mut self, config: &RunConfig) {
        let Some(sigma) = &config.train.sigma else { return };
        let is_normal = matches!(sigma.density, Density::LogitNormal | Density::Logsnr);
        let is_beta = sigma.density == Density::Beta;
        let keys = [
            ("mean", sigma.mean.is_some() && !is_normal, "logit_normal or logsnr"),
            ("std", sigma.std.is_some() && !is_normal, "logit_normal or logsnr"),
            ("scale", sigma.scale.is_some() && sigma.density != Density::Mode, "mode"),
            ("alpha", sigma.alpha.is_some() && !is_beta, "beta"),
            ("beta", sigma.beta.is_some() && !is_beta, "beta"),
        ];
        self.of_another("train.sigma", "train.sigma.density", keys);
        self.broken(sigma.min >= sigma.max, code::COMBINATION, &["train.sigma.min", "train.sigma.max"], || {
            let message = format!("`train.sigma.min` {} is not below `train.sigma.max` {}", sigma.min, sigma.max);
            (message, "noise levels are drawn between them")
        });
        let one = config.model.experts.is_some_and(|experts| experts != super::Experts::Both);
        let is_whole = sigma.min == 0.0 && sigma.max == 1.0 && !one;
        self.broken(sigma.squeeze && is_whole, code::COMBINATION, &["train.sigma.squeeze"], || {
            let message = "`train.sigma.squeeze` has no effect: all noise levels are trained".to_owned();
            (message, "set `train.sigma.min` or `train.sigma.max`, or drop it")
        });
    }

    fn loss(&mut self, config: &RunConfig) {
        let Some(loss) = &config.train.loss else { return };
        let is = |weight| loss.weight == weight;
        let bends = loss.kind != LossKind::Mse;
        self.of_another(
            "train.loss",
            "train.loss.kind",
            [("delta", loss.delta.is_some() && !bends, "huber, pseudo_huber or smooth_l1")],
        );
        let keys = [
            ("gamma", loss.gamma.is_some() && !is(LossWeight::MinSnr), "min_snr"),
            ("slope", loss.slope.is_some() && !is(LossWeight::Linear), "linear"),
        ];
        self.of_another("train.loss", "train.loss.weight", keys);
    }

    /// Reports keys that are set but belong to another choice of `chooser`.
    fn of_another<const N: usize>(&mut self, section: &str, chooser: &str, keys: [(&str, bool, &str); N]) {
        for (key, is_written, of) in keys {
            let key = format!("{section}.{key}");
            self.broken(is_written, code::COMBINATION, &[&key, chooser], || {
                (format!("`{key}` requires `{chooser}`: {of}"), "drop the key, or change that one")
            });
        }
    }

    fn samples(&mut self, sample: &Sampling) {
        let is_moving = sample.frames.is_some() && sample.size.is_none();
        self.broken(is_moving, code::COMBINATION, &["sample.frames", "sample.size"], || {
            (
                "`sample.frames` requires `sample.size`".to_owned(),
                "set the size of the clip's frames, as in `size: 480x832`",
            )
        });
        self.sample_files("sample.prompts", &sample.prompts);
        let guides = sample.guidance.iter().any(|guidance| *guidance != 1.0);
        self.broken(sample.negative.is_some() && !guides, code::COMBINATION, &["sample.negative"], || {
            ("`sample.negative` without guidance: it would not be read".to_owned(), "set `sample.guidance` above 1")
        });
    }
}
