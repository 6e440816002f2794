//! Rules over `train.preference`.

use super::error::code;
use super::validate::Rules;
use super::{Learn, LossWeighting, Part, Phase, Preference, PreferenceLoss, RunConfig, TooLong, Weights};

impl Rules<'_> {
    /// Checks `train.preference`, its loss, its reference model, and the keys that contradict it.
    pub(super) fn preference(&mut self, config: &RunConfig) {
        let Some(preference) = &config.train.preference else {
            self.broken(config.model.names_reference(), code::COMBINATION, &["model.reference"], || {
                ("`model.reference` requires `train.preference`".to_owned(), "add `train.preference`, or drop it")
            });
            return;
        };
        self.keys_of_loss(preference);
        self.reference(config, preference.loss);
        self.whole_answers(config);
        self.evaluations(config, preference.loss);
        self.uncut_answers(config, preference.loss);
    }

    /// Keys of a loss are written where it is chosen.
    fn keys_of_loss(&mut self, preference: &Preference) {
        let loss = preference.loss;
        let is = |losses: &[PreferenceLoss]| losses.contains(&loss);
        let smooths = is(&[PreferenceLoss::Sigmoid, PreferenceLoss::Robust]);
        for (key, is_written, of) in [
            ("label_smoothing", preference.label_smoothing.is_some() && !smooths, "sigmoid or robust"),
            ("gamma", preference.gamma.is_some() && !is(&[PreferenceLoss::Simpo]), "simpo"),
            ("group_size", preference.group_size.is_some() && !is(&[PreferenceLoss::Kto]), "kto"),
            ("desirable_weight", preference.desirable_weight.is_some() && !is(&[PreferenceLoss::Kto]), "kto"),
            ("undesirable_weight", preference.undesirable_weight.is_some() && !is(&[PreferenceLoss::Kto]), "kto"),
            ("nll_weight", preference.nll_weight.is_some() && is(&[PreferenceLoss::Kto]), "one of those for pairs"),
        ] {
            let key = format!("train.preference.{key}");
            self.broken(is_written, code::COMBINATION, &[&key, "train.preference.loss"], || {
                (format!("`{key}` requires `train.preference.loss`: {of}"), "drop the key, or change the loss")
            });
        }
        let halves = loss == PreferenceLoss::Robust && preference.label_smoothing == Some(0.5);
        self.broken(halves, code::OUT_OF_RANGE, &["train.preference.label_smoothing"], || {
            let message = "`train.preference.label_smoothing`: must be below 0.5 with `robust`, found `0.5`";
            (message.to_owned(), "labels that are right half of the time teach nothing")
        });
    }

    /// A loss that compares has a reference model, of which little can be set.
    fn reference(&mut self, config: &RunConfig, loss: PreferenceLoss) {
        let model = &config.model;
        let (own, compares) = (&model.reference, loss.needs_reference());
        let none = compares && (model.weights == Weights::Random || model.reference_source().is_none());
        let keys = ["train.preference", "train.preference.loss", "model.load"];
        self.broken(none && own.load.is_none(), code::COMBINATION, &keys, || {
            let message = "`train.preference.loss` compares with a reference model, but there are no weights for it";
            let help = "set `model.load`, whose weights are the reference, or `model.reference.load`; `orpo` and `simpo` need no reference";
            (message.to_owned(), help)
        });
        let keys = ["model.reference", "train.preference.loss"];
        self.broken(model.names_reference() && !compares, code::COMBINATION, &keys, || {
            ("`model.reference`: this `train.preference.loss` uses no reference model".to_owned(), "drop the section")
        });
        let others =
            Part { load: None, recompute: own.recompute, frozen_precision: own.frozen_precision, ..Part::default() };
        let unused = Part { load: None, freeze: None, ..own.clone() } != others || own.freeze == Some(false);
        self.broken(unused, code::COMBINATION, &["model.reference"], || {
            let message = "`model.reference`: only `load`, `recompute` and `frozen_precision` can be set";
            (message.to_owned(), "a reference model is loaded from a folder unchanged, and is never trained")
        });
        if let Some(source) = &own.load {
            self.directory("model.reference.load", source, Some("config.json"), true);
        }
    }

    /// Checks that no key goes by tokens: preferences are learned from whole answers.
    fn whole_answers(&mut self, config: &RunConfig) {
        let (train, model) = (&config.train, &config.model);
        self.broken(train.learn != Learn::All, code::COMBINATION, &["train.learn", "train.preference"], || {
            let message =
                "`train.learn` is not supported with `train.preference`, which compares whole answers".to_owned();
            (message, "drop it: `chosen`, `rejected` and `completion` are answers, and every token of them counts")
        });
        self.broken(
            train.label_smoothing > 0.0,
            code::COMBINATION,
            &["train.label_smoothing", "train.preference"],
            || {
                let message = "`train.label_smoothing` smooths the labels of tokens, but `train.preference` learns from whole answers";
                (message.to_owned(), "drop it; `train.preference.label_smoothing` is the share of wrong pairs")
            },
        );
        let keys = ["train.loss_weighting", "train.preference"];
        self.broken(train.loss_weighting != LossWeighting::Token, code::COMBINATION, &keys, || {
            let message = "`train.loss_weighting` weights samples by their tokens, but `train.preference` learns from whole answers";
            (message.to_owned(), "drop it")
        });
        self.broken(train.phase != Phase::Sft, code::COMBINATION, &["train.preference", "train.phase"], || {
            (
                "`train.preference` compares answers and requires `train.phase: sft`".to_owned(),
                "set `train.phase` to sft, or leave it out",
            )
        });
        self.broken(
            model.mtp.num_layers.unwrap_or(0) > 0,
            code::COMBINATION,
            &["train.preference", "model.mtp"],
            || {
                let message = "`model.mtp` is not supported with `train.preference`: prediction heads would also learn rejected answers";
                (message.to_owned(), "leave `model.mtp` out")
            },
        );
    }

    /// Checks that answers are evaluated during the run, and that labeled ones ask nothing.
    fn evaluations(&mut self, config: &RunConfig, loss: PreferenceLoss) {
        let answers = config.eval.as_ref().is_some_and(|eval| eval.generate.is_some_and(|count| count > 0));
        let is_kto = loss == PreferenceLoss::Kto;
        let is_late = config.eval.as_ref().is_some_and(|eval| !eval.is_during_run());
        self.broken(is_late, code::COMBINATION, &["eval.every_steps", "train.preference"], || {
            let message = "`train.preference` evaluates whole answers, which is done only during the run";
            (message.to_owned(), "set `eval.every_steps` to a number of steps, or `eval.every_epochs`")
        });
        self.broken(answers && is_kto, code::COMBINATION, &["eval.generate", "train.preference.loss"], || {
            let message = "`eval.generate` is not supported with `train.preference.loss: kto`, which evaluates groups of labeled answers";
            (message.to_owned(), "drop it; `loongforge evaluate` generates answers with a checkpoint")
        });
    }

    /// No answer is cut: neither to fit a pack nor among ranks.
    fn uncut_answers(&mut self, config: &RunConfig, loss: PreferenceLoss) {
        let compares = loss.needs_reference();
        let cuts = config.data.pack.too_long == TooLong::Truncate;
        self.broken(cuts, code::COMBINATION, &["train.preference", "data.pack.too_long"], || {
            let message = "`data.pack.too_long: truncate` is not supported with `train.preference`: a pair of answers cannot be cut";
            (message.to_owned(), "set it to skip, or raise `data.pack.max_tokens`, which both answers share")
        });
        let pool = &config.pools.foundation;
        let key = "pools.foundation.context_parallel";
        self.broken(pool.context_parallel > 1, code::COMBINATION, &["train.preference", key], || {
            ("`train.preference` with context parallelism is not implemented".to_owned(), "set context_parallel to 1")
        });
        let key = "pools.foundation.chunk_tokens";
        self.broken(pool.chunk_tokens > 0, code::COMBINATION, &["train.preference", key], || {
            (
                "`train.preference` compares whole answers and does not support `chunk_tokens`".to_owned(),
                "set chunk_tokens to 0",
            )
        });
        let key = "pools.foundation.pipeline_parallel";
        self.broken(compares && pool.pipeline_parallel > 1, code::COMBINATION, &["train.preference", key], || {
            let message = "passing log-probabilities of a reference model to later pipeline stages is not implemented";
            (message.to_owned(), "set pipeline_parallel to 1, or choose `loss: orpo` or `simpo`")
        });
    }
}
